"""Re-translation: SSBD's tables, by the bench that measures them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from specviz.errors import ParameterError
from specviz.loop import generate
from specviz.measure import retranslation
from specviz.measure.claims import ratio
from specviz.measure.report import Settings
from specviz.measure.rows import words
from specviz.models.protocols import Model
from specviz.replays.recipes import Recipe, Row
from specviz.replays.sources.shared import Measurement, RunOptions, about, exact
from specviz.replays.translations import TARGETS, bundled, texts
from specviz.streams import Stream, simulate_partials
from specviz.trace import Trace

TEMPLATES = ("tower", "qwen3")  # of models by that name; others read their own
NO_COMET = "COMET is not installed (its model weighs 2 GB); BLEU and chrF are in the notes"


def streams(recipe: Recipe, options: RunOptions) -> Measurement:
    """Re-translation and its speculative kinds on sources that arrive in updates, language by language."""
    made = Measurement(environment=about(options.model))
    template = next((name for name in TEMPLATES if name in options.model.name.lower()), None)
    partials = bool(recipe.options.get("partials"))
    languages = {name: part["language"] for name, part in recipe.parts["language"].items()}
    chosen = {retranslation.RT: retranslation.Setting(retranslation.RT, {"mode": "rt"})}
    for row in recipe.rows:
        chosen.setdefault(label(row), retranslation.Setting(label(row), row.values))
    step = options.counter(len(languages) * options.number * len(chosen))
    for language, code in languages.items():
        given = sources(options, code, partials)
        decoded, quality = retranslation.measure(
            options.model, given, list(chosen.values()), max_new_tokens=options.max_new_tokens,
            template=template, tick=step,
        )  # fmt: skip
        base = decoded[retranslation.RT]
        for row in recipe.rows:
            mine = decoded[label(row)]
            where = {**row.where, "language": language}
            drafted = mine.sums["drafted"].any()
            made.add(where, "ne", mine.of(ratio, "erased", "final"))
            made.add(where, "throughput", mine.of(ratio, "emitted", "seconds"))
            made.add(where, "speedup", exact() if mine is base else mine.over(base))
            made.add(where, "comet", mine.comet)
            if drafted:
                for metric, below in (("a_d", "drafted"), ("a_o", "emitted")):
                    made.add(where, metric, mine.of(ratio, "accepted", below).times(100))
            bleu = mine.of(quality.bleu, "bleu").median
            made.notes.append(f"{language}, {label(row)}: BLEU {bleu:.1f}, chrF {mine.chrf:.1f}")
        speeds = {name: each.sums["emitted"] / each.sums["seconds"] for name, each in decoded.items()}
        fast = max((n for n in speeds if n != retranslation.RT), key=lambda n: decoded[n].over(base).median)
        if not made.traces:
            shared: Settings = {"max_new_tokens": options.max_new_tokens}
            shared |= {} if template is None else {"template": template}
            again_options = {"target_language": TARGETS[code], **shared, **chosen[fast].values}
            decode = partial(again, options.model, given.streams, again_options)
            made.record(options, f"{fast}, {language}", speeds[fast] / speeds[retranslation.RT], decode)
    made.absent.append(({"metric": "comet"}, NO_COMET))
    kind = "simulated partials of a recogniser" if partials else "three words more an update"
    name = options.suite.name if options.suite is not None else "generated English texts (bundled)"
    made.data = f"{name}: {options.number} texts a language, {kind}"
    return made


def again(model: Model, given: Sequence[Stream], options: Settings, i: int) -> Trace:
    """A stream once more, recorded."""
    return generate(model, [given[i]], retranslation.METHOD, **options)


def label(row: Row) -> str:
    """A contender's name among the settings."""
    if row.values.get("mode") == "rt":
        return retranslation.RT
    return words(row.values)


def sources(options: RunOptions, code: str, partials: bool) -> retranslation.Sources:
    """The streams of a language, and the translations that are right."""
    if options.suite is not None:
        some = options.suite.select(language=code, limit=options.number)
        right = [list(prompt.get("reference") or []) for prompt in some]
        if not all(right):
            name = options.suite.name
            raise ParameterError(f"{name} has prompts without a reference: BLEU needs one of each")
        return retranslation.Sources(TARGETS[code], some.partials() if partials else some.streams(3), right)
    made = bundled(code, options.number)
    if not partials:
        return made
    given = [
        simulate_partials(each.source, i, language="en", id=f"{code}-{i:02d}", reference=each.reference)
        for i, each in enumerate(texts(code, options.number))
    ]
    return replace(made, streams=given)
