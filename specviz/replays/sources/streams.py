"""SSBD's tables: re-translation, measured by its bench."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial

import numpy as np

from specviz.measure import retranslation
from specviz.measure.claims import Quality, ratio
from specviz.measure.report import Entry, Settings, Values
from specviz.measure.rows import words
from specviz.measure.timing import decoded
from specviz.models.protocols import Model
from specviz.replays import comet
from specviz.replays.recipes import Recipe, Row
from specviz.replays.sources.shared import Measurement, RunOptions, exact, references_of
from specviz.replays.tasks import text_of
from specviz.replays.translations import LAG, NAMES, TARGETS, bundled, texts
from specviz.streams import Stream, simulate_partials
from specviz.suites import Suite
from specviz.trace import Trace

TEMPLATES = ("tower", "qwen3")  # of models with these names; others use their own
NO_COMET = f"COMET is {comet.HOW}; BLEU and chrF are in the notes"


def streams(recipe: Recipe, options: RunOptions) -> Measurement:
    """Measure re-translation and its speculative variants on streams, language by language."""
    made = Measurement.begin(options)
    template = options.template or next((t for t in TEMPLATES if t in options.model.name.lower()), None)
    partials = bool(recipe.options.get("partials"))
    chosen = {retranslation.RT: retranslation.Setting(retranslation.RT, {"mode": "rt"})}
    for row in recipe.rows:
        chosen.setdefault(label(row), retranslation.Setting(label(row), row.values))
    chosen[TWICE] = retranslation.Setting(TWICE, {"mode": "rt"})
    every = sources(recipe, options, made, partials)
    step = options.counter(sum(len(each.streams) for each in every.values()) * len(chosen) * options.rounds)
    twice: list[np.ndarray] = []
    to_score: list[Entry] = []
    for language, given in every.items():
        with made.keeping({"language": language}):
            code = recipe.parts["language"][language]["language"]
            ours = "generated English texts" if code in TARGETS else "thirty English sentences"
            suited = options.suite_of(language, f"{ours} (bundled)")
            suited += ", simulated partials" if partials else ", three words an update"
            task = f"English→{given.language}"  # the model's, which may not be the paper's
            made.on(suite=suited, task=task, language=code, texts=len(given.streams))
            decoded, quality = measured(options, given, list(chosen.values()), template, step)
            base = decoded[retranslation.RT]
            whole = [list(each)[-1].text for each in given.streams]
            made.by(retranslation.METHOD, {"mode": "rt"})
            made.ability(task, base.texts, given.references or [], whole)
            for row in recipe.rows:
                mine = decoded[label(row)]
                where = {**row.where, "language": language}
                made.by(row.method, row.values)
                add_figures(made, where, mine, base)
                if mine is not base:
                    made.cost(mine.phases, base.phases, options.model)
                if row.values.get("beta") == 0 and "mode" not in row.values:
                    made.same_texts(task, mine.tokens, base.tokens)
                if given.references:
                    to_score += comet.rows(where, whole, mine.texts, given.references)
                    bleu = mine.of(quality.bleu, "bleu").median
                    made.notes.append(f"{task}, {label(row)}: BLEU {bleu:.1f}, chrF {mine.chrf:.1f}")
            speeds = {name: each.sums["emitted"] / each.sums["seconds"] for name, each in decoded.items()}
            twice.append(np.stack([speeds[TWICE], speeds[retranslation.RT]]))
            others = [name for name in decoded if name not in (retranslation.RT, TWICE)]
            fast = max(others, key=lambda n: decoded[n].over(base).median)
            if not made.traces:
                shared: Settings = {"max_new_tokens": options.max_new_tokens}
                shared |= {} if template is None else {"template": template}
                values = {"target_language": given.language, **shared, **chosen[fast].values}
                decode = partial(trace_of, options.model, given.streams, values)
                made.by("retranslate", chosen[fast].values)
                made.record(options, f"{fast}, {task}", speeds[fast] / speeds[retranslation.RT], decode)
    if twice:
        made.control(retranslation.RT, *np.concatenate(twice, 1))
    comet.write(options.path, to_score)
    made.absent.append(({"metric": "comet"}, NO_COMET))
    return made


TWICE = "RT again"  # the control


def measured(
    options: RunOptions, given: retranslation.Sources, chosen: Sequence[retranslation.Setting],
    template: str | None, step: Callable[[str], None],
) -> tuple[dict[str, retranslation.Decoded], Quality]:  # fmt: skip
    """Measure the settings on a language's streams; in the replay's folder they outlast a kill."""
    key = {
        "settings": [[each.label, each.values] for each in chosen], "template": template,
        "language": given.language, "right": given.references,
        "texts": [list(map(asdict, stream)) for stream in given.streams],
    }  # fmt: skip
    return options.outlasting(
        key,
        lambda: retranslation.measure(
            options.model, given, chosen, max_new_tokens=options.max_new_tokens, rounds=options.rounds,
            template=template, tick=step,
        ),
        retranslation.packed,
        lambda content: retranslation.unpacked(content, chosen),
        step,
        len(given.streams) * len(chosen) * options.rounds,
    )  # fmt: skip


def add_figures(
    made: Measurement, where: Values, mine: retranslation.Decoded, base: retranslation.Decoded
) -> None:
    """Add a contender's figures for one language."""
    made.add(where, "ne", mine.of(ratio, "erased", "final"))
    made.add(where, "throughput", mine.of(ratio, "emitted", "seconds"))
    made.add(where, "speedup", exact() if mine is base else mine.over(base))
    if mine.sums["drafted"].any():
        for metric, below in (("a_d", "drafted"), ("a_o", "emitted")):
            made.add(where, metric, mine.of(ratio, "accepted", below).times(100))


def trace_of(model: Model, given: Sequence[Stream], options: Settings, i: int) -> Trace:
    """Decode a stream again and return its trace."""
    return decoded(model, [given[i]], retranslation.METHOD, **options)


def label(row: Row) -> str:
    """A contender's name among the settings."""
    if row.values.get("mode") == "rt":
        return retranslation.RT
    return words(row.values)


def sources(
    recipe: Recipe, options: RunOptions, made: Measurement, partials: bool
) -> dict[str, retranslation.Sources]:
    """The streams of each language, with reference translations if there are any."""

    def own(language: str, part: Values, start: int) -> list[Entry]:
        if part["language"] not in TARGETS:
            return [
                {"prompt": list(each)[-1].text} for each in bundled(part["language"], options.number).streams
            ]
        some = texts(part["language"], options.number)
        return [{"prompt": each.source, "reference": list(each.references)} for each in some]

    out = {}
    for language, entries in options.prompts(recipe, made, own).items():
        code = recipe.parts["language"][language]["language"]
        if not options.suites:
            given = bundled(code, options.number)
            if partials:
                given = replace(given, streams=simulated(code, options.number))
            out[language] = given
            continue
        with made.keeping({"language": language}):
            named = [each | {"source": text_of(each, options.suites, language)} for each in entries]
            some = Suite(named, options.suite_of(language, ""))
            right = [references_of(entry.get("reference")) for entry in entries]
            arriving = some.partials() if partials else some.streams(LAG)
            out[language] = retranslation.Sources(NAMES[code], arriving, right if all(right) else None)
    return out


def simulated(code: str, number: int) -> list[Stream]:
    """Bundled sources as a speech recogniser might have produced them."""
    return [
        simulate_partials(each.source, i, language="en", id=f"{code}-{i:02d}", reference=each.reference)
        for i, each in enumerate(texts(code, number))
    ]
