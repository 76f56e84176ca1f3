"""Re-translation: SSBD's tables, by the bench that measures them."""

from __future__ import annotations

from functools import partial
from typing import Any

from specviz.errors import ParameterError
from specviz.loop import generate
from specviz.measure.claims import ratio
from specviz.replays import retranslation
from specviz.replays.recipes import Recipe, Row
from specviz.replays.sources.shared import Found, How, about, known
from specviz.replays.translations import TARGETS, texts
from specviz.replays.translations import streams as arriving
from specviz.streams import simulate_partials

TEMPLATES = ("tower", "qwen3")  # of models by that name; others read the bundled translators' own
NO_COMET = "COMET is not installed (its model weighs 2 GB); BLEU and chrF are in the notes"


def streams(recipe: Recipe, how: How) -> Found:
    """Re-translation and its speculative kinds on sources that arrive in updates, language by language."""
    found = Found(environment=about(how.model))
    template = next((name for name in TEMPLATES if name in how.model.name.lower()), "town")
    partials = bool(recipe.options.get("partials"))
    languages = {name: part["language"] for name, part in recipe.parts["language"].items()}
    chosen = {retranslation.RT: retranslation.Setting(retranslation.RT, {"mode": "rt"})}
    for row in recipe.rows:
        chosen.setdefault(label(row), retranslation.Setting(label(row), row.values))
    done, of = 0, len(languages) * how.prompts * len(chosen)

    def told(name: str) -> None:
        nonlocal done
        done += 1
        how.tick(done, of, name)

    for language, code in languages.items():
        given, right = sources(how, code, partials)
        decoded, quality = retranslation.measure(
            how.model, code, list(chosen.values()), prompts=len(given), max_new_tokens=how.max_new_tokens,
            template=template, given=given, right=right, tick=told,
        )  # fmt: skip
        base = decoded[retranslation.RT]
        for row in recipe.rows:
            mine = decoded[label(row)]
            where = {**row.where, "language": language}
            drafted = mine.sums["drafted"].any()
            found.add(where, "ne", mine.of(ratio, "erased", "final"))
            found.add(where, "throughput", mine.of(ratio, "emitted", "seconds"))
            found.add(where, "speedup", known() if mine is base else mine.over(base))
            found.add(where, "comet", mine.comet)
            if drafted:
                for metric, below in (("a_d", "drafted"), ("a_o", "emitted")):
                    found.add(where, metric, mine.of(ratio, "accepted", below).times(100))
            bleu = mine.of(quality.bleu, "bleu").median
            found.notes.append(f"{language}, {label(row)}: BLEU {bleu:.1f}, chrF {mine.chrf:.1f}")
        speeds = {name: each.sums["emitted"] / each.sums["seconds"] for name, each in decoded.items()}
        fast = max((n for n in speeds if n != retranslation.RT), key=lambda n: decoded[n].over(base).median)
        if not found.traces:
            options = {"template": template, "max_new_tokens": how.max_new_tokens, **chosen[fast].values}
            found.record(
                how, f"{fast}, {language}", speeds[fast] / speeds[retranslation.RT],
                partial(again, how.model, given, {"target_language": TARGETS[code], **options}),
            )  # fmt: skip
    found.absent.append(({"metric": "comet"}, NO_COMET))
    kind = "simulated partials of a recogniser" if partials else "three words more an update"
    name = how.suite.name if how.suite is not None else "generated English texts (bundled)"
    found.data = f"{name}: {how.prompts} texts a language, {kind}"
    return found


def again(model: Any, given: list[Any], options: dict[str, Any], i: int) -> Any:
    """A stream once more, recorded."""
    return generate(model, [given[i]], retranslation.METHOD, **options)


def label(row: Row) -> str:
    """A contender's name among the settings."""
    return (
        retranslation.RT
        if row.values.get("mode") == "rt"
        else " ".join(f"{k}={v}" for k, v in row.values.items())
    )


def sources(how: How, code: str, partials: bool) -> tuple[list[Any], list[list[str]]]:
    """The streams of a language, and the translations that are right."""
    if how.suite is not None:
        some = how.suite.select(language=code, limit=how.prompts)
        right = [list(prompt.get("reference") or []) for prompt in some]
        if not all(right):
            raise ParameterError(f"{how.suite.name} has prompts without a reference: BLEU needs one of each")
        return (some.partials() if partials else some.streams(3)), right
    made = texts(code, how.prompts)
    right = [list(each.references) for each in made]
    if not partials:
        return arriving(made), right
    return [
        simulate_partials(each.source, i, language="en", id=f"{code}-{i:02d}", reference=each.reference)
        for i, each in enumerate(made)
    ], right
