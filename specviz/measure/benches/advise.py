"""Advice against measurement: cycles counted in float64, and predicted speeds on other prompts.

Does the simulation do what the methods do? In float64, where rounding changes no decision, each text's cycles
are counted by the simulation and by a run. Do the prices hold? Ten settings are predicted from some prompts
and measured on others.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import torch

from specviz.errors import ParameterError, PromptError, plural
from specviz.loop.cycle import decode
from specviz.loop.drafters import load_drafter
from specviz.loop.machine import computed_by, identity
from specviz.measure import timing
from specviz.measure.advice import readings as reading
from specviz.measure.advice.advising import advise, confirm_on
from specviz.measure.advice.grown import grow, settings
from specviz.measure.advice.ranking import LOADS, Prediction
from specviz.measure.advice.result import CONFIRMED, Advice, compared
from specviz.measure.advice.simulation import BASELINE, BLOCKS, CHAIN, LOOKUP, Candidate, Simulation
from specviz.measure.benches import speed
from specviz.measure.benches.batches import once
from specviz.measure.prompts import check_room, first_turns
from specviz.measure.report import Bar, Entry, Part, Report, Row, Settings, Tick
from specviz.measure.timing import Entrant
from specviz.methods import Method, find
from specviz.methods.sampling import Sampling
from specviz.metrics.interval import LEAST
from specviz.models.protocols import Model
from specviz.models.zoo import bundled
from specviz.suites import spread
from specviz.suites import suite as load_suite

NEAR, SHARE, CLOSE = 0.1, 0.9, 0.95  # error of a speedup; share of settings; of the top speed
TEMPERATURE = 0.8
CYCLES = [("cycle", "cycle predicted", "{:.2f}"), ("cycle_measured", "measured", "{:.2f}")]
COLUMNS = [*CONFIRMED[:3], *CYCLES, *CONFIRMED[3:]]
COUNTED = [
    ("model", "model", ""), ("label", "setting", ""), ("temperature", "temperature", "{:g}"),
    ("badge", "τ is", ""), ("tau", "τ predicted", ""), ("tau_run", "of the run", "{:.4f}"),
    ("same", "texts with as many cycles", ""), ("held", "held", ""),
]  # fmt: skip
BATCHES = [
    ("batch", "batch", ""), ("setting", "setting", ""), ("predicted", "predicted", "{:,.1f}"),
    ("run", "run", "{:,.1f}"), ("off", "off by", "{:+.1%}"), ("gain", "gain predicted", "{:.2f}"),
    ("gain_run", "run", "{:.2f}"),
]  # fmt: skip
NOTES = [
    "exact: the run has the same number of cycles on every text. bounded: the run's τ is between the bounds.",
    "cycle: its time in units of a cycle without drafts. speedup: without the prefill, on other prompts "
    "than those it was predicted from.",
]


def candidate_settings(draft: str, heads: str) -> list[Candidate]:
    """The settings to predict and to measure."""

    def lookup(longest: int, shortest: int, length: int) -> Candidate:
        values = (("ngram_max", longest), ("ngram_min", shortest), ("draft_length", length))
        return Candidate(LOOKUP, "", values, length)

    def chain(length: int, stop: float = 0.0) -> Candidate:
        rest = (("stop", stop),) if stop else ()
        return Candidate(CHAIN, draft, (("draft_length", length), *rest), length)

    chosen = [lookup(3, 1, 2), lookup(3, 1, 4), lookup(3, 1, 10), lookup(2, 2, 4), lookup(2, 2, 10)]
    if draft:
        chosen += [chain(1), chain(2), chain(4), chain(8, 0.4)]
    if heads:
        chosen.append(Candidate(BLOCKS, heads, (("k", 2),), 1))
    return chosen


def bench(
    model: Model,
    drafts: Sequence[Model],
    entries: Sequence[Entry],
    *,
    number: Annotated[int, "How many prompts to advise on, and how many others to confirm on."] = 24,
    max_new_tokens: Annotated[int, "Maximum number of tokens per prompt."] = 96,
    rounds: Annotated[int, "Number of rounds over the confirming prompts."] = 2,
    exact_number: Annotated[int, "How many prompts to count cycles on in float64."] = 20,
    exact_tokens: Annotated[int, "Tokens for each of these prompts."] = 48,
    batches: Annotated[
        Sequence[int], "Batch sizes whose predicted load is checked against real batches."
    ] = (),
    rounds_file: Path | None = None,
    tick: Tick = lambda done, of, name: None,
) -> Report:
    """Predict ten settings on some prompts, measure them on others; count cycles in float64.

    Parameters
    ----------
    model : Model
        A causal model.
    drafts : sequence of Model
        Drafters of the model; the first draft model and the first heads take part.
    entries : sequence of dict
        Prompts; those to advise on and those to confirm on are both spread over their kinds of work.
    number, max_new_tokens, rounds, exact_number, exact_tokens, batches
    rounds_file : Path, optional
        A file that saves the predictions and each finished round.
    tick : callable

    Bars: every exact τ equals the run's, and every other τ's bounds contain it; for nine of ten settings the
    predicted speedup is within 10 % of the measured one, and its interval contains it; the setting predicted
    to be the fastest is at least 0.95 times as fast as the fastest one.

    Raises
    ------
    ParameterError, PromptError
        Before any work, with one line that says what to do.
    """
    reading.check_served(model)
    first = next((each for each in drafts if each.kind in ("causal", "trimmed")), None)
    heads = next((each for each in drafts if each.kind == "heads"), None)
    served = [each for each in (first, heads) if each is not None]
    eagle = [each for each in drafts if each.kind == "eagle"][:1]
    ordered = spread(entries, 2 * number)
    if len(ordered) < 2 * number:
        raise PromptError(f"{2 * number} prompts are needed, and there are {len(ordered)}: lower --number")
    chosen, others = ordered[:number], ordered[number:]
    ids = first_turns(model, ordered)
    check_room([model, *served], ordered, ids)
    speed.encoded(model, others, max_new_tokens)
    candidates = candidate_settings(first.name if first else "", heads.name if heads else "")
    sizes = sorted({1, *timing.counts(batches, "batches")}) if batches else []
    if sizes == [1]:
        raise ParameterError("a batch has two rows or more: raise --batches, or drop it")
    if sizes and sizes[-1] > number:
        raise ParameterError(f"a batch of {sizes[-1]} needs as many prompts: raise --number")
    state = _State(rounds_file, {
        "setting": timing.setting(model, list(drafts)), "number": number, "max_new_tokens": max_new_tokens,
        "settings": [each.label for each in candidates],
        "models": [identity(each) | computed_by(each) for each in (model, *served, *eagle)],
        "prompts": hashlib.sha256(json.dumps(ids).encode()).hexdigest(),
    })  # fmt: skip
    with state.going_on(rounds):
        predictions = state.predictions(
            candidates, lambda: _advice(model, served, chosen, max_new_tokens, tick).predictions
        )
        step = timing.counter(tick, (len(candidates) + 1) * (1 + number * rounds))
        rows, warnings = confirm_on(
            model, {each.name: each for each in served}, predictions, others, max_new_tokens, rounds,
            state.content["rounds"], state.keep, step, [str(entry.get("kind") or "") for entry in chosen],
        )  # fmt: skip
        for row, each in zip(rows, predictions):
            row |= {"cycle": each.cycle, "cycle_measured": row["tau_measured"] / row["measured"][0]}
        counted = state.counted(
            exact_number, exact_tokens,
            lambda: list(_all_counted(model, [*served, *eagle], exact_number, exact_tokens, tick)),
        )  # fmt: skip
        decoded = (
            _loads(model, served, chosen, ids[number:], max_new_tokens, sizes, rounds, tick) if sizes else []
        )
    notes = [*NOTES, *warnings, *_misses(rows), *_unjudged(rows, number)]
    loads = [each["others"] for each in state.content["rounds"]]
    about = timing.setting(
        model, served, prompts=number, max_new_tokens=max_new_tokens, rounds=rounds,
        clock=timing.clock_of(model)[1], quiet=speed.quietness(loads), exact_number=exact_number,
        exact_tokens=exact_tokens, advised=[str(entry.get("id")) for entry in chosen],
        confirmed=[str(entry.get("id")) for entry in others],
    )  # fmt: skip
    notes.append(speed.quietness(loads))
    title = f"Advice on {model.name}: predicted from {number} prompts, measured on {number} others"
    parts = [Part("Cycles in float64: simulated and run", COUNTED, counted)]
    if decoded:
        parts.append(Part("Batches: tokens/s of all rows, predicted and run", BATCHES, decoded))
    return Report("advise", title, about, COLUMNS, compared(rows, number), _bars(rows, counted), notes, (),
                  parts, state.content["rounds"])  # fmt: skip


def _advice(
    model: Model, drafts: Sequence[Model], chosen: Sequence[Entry], most: int, tick: Tick,
    batches: Sequence[int] = (),
) -> Advice:  # fmt: skip
    with timing.temporary_folder() as folder:
        made = advise(
            model,
            list(drafts),
            list(chosen),
            number=len(chosen),
            max_new_tokens=most,
            folder=folder,
            batch=list(batches),
            tick=tick,
        )
    return made


def _loads(
    model: Model, drafts: Sequence[Model], chosen: Sequence[Entry], others: list[list[int]], most: int,
    sizes: Sequence[int], rounds: int, tick: Tick,
) -> list[Row]:  # fmt: skip
    """Compare the advice's table of loads with decoded batches of other prompts.

    As in the advice's short runs, nothing is recorded. All settings take turns in each round.
    """
    made = _advice(model, drafts, chosen, most, tick, sizes)
    by_name = {each.name: each for each in drafts}
    method, _, draft = made.loads[0]["method"].partition(" ")
    rest = next(
        {name: value for name, value in each.candidate.values if name not in ("draft_length", "stop")}
        for each in made.predictions if each.candidate.family == (method, draft)
    )  # fmt: skip
    drafting = Entrant(method, by_name.get(draft))
    runs: dict[str, tuple[Entrant, Callable[[], Method]]] = {"plain": (Entrant(BASELINE), find(BASELINE))}
    runs |= {str(n): (drafting, partial(find(method), draft_length=n, **rest)) for n in LOADS}
    jobs = [(row["batch"], name) for row in made.loads for name in runs]
    speeds: dict[tuple[int, str], list[float]] = {job: [] for job in jobs}
    ids = others[: sizes[-1]]
    for size, name in jobs:  # warm-up
        once(model, *runs[name], ids[:size], size, min(8, most))
    step = timing.counter(tick, rounds * len(jobs))
    with timing.settled():
        for turn in range(rounds):
            begin = turn * len(jobs) // rounds
            for size, name in jobs[begin:] + jobs[:begin]:
                run = once(model, *runs[name], ids, size, most)
                speeds[size, name].append(run.tokens / run.decoding)
                step(f"batches of {size}")
    rows = []
    for row in made.loads:
        plain = np.array(speeds[row["batch"], "plain"])
        for name in runs:
            own = np.array(speeds[row["batch"], name])
            rows.append({
                "batch": row["batch"], "setting": name if name == "plain" else f"{method}, {name}",
                "predicted": row[name], "run": float(np.median(own)),
                "off": float(np.median(own)) / row[name] - 1,
                "gain": row[name] / row["plain"], "gain_run": float(np.median(own / plain)),
            })  # fmt: skip
    return rows


class _State(speed.State):
    """Predictions and measurements so far, saved in a file if one is given."""

    def __init__(self, path: Path | None, plan: Settings) -> None:
        super().__init__(path, plan, predictions=None, counted=None)

    def predictions(
        self, candidates: Sequence[Candidate], make: Callable[[], list[Prediction]]
    ) -> list[Prediction]:
        """Predictions of these settings, in their order: the saved ones, or else new ones."""
        if self.content["predictions"] is None:
            by_candidate = {each.candidate: each for each in make()}
            made = [by_candidate[each].as_dict() for each in candidates]
            for each in made:
                del each["candidate"], each["label"], each["nodes"]
            self.content["predictions"] = made
            self.keep()
        pairs = zip(candidates, self.content["predictions"])
        return [Prediction(candidate, **each) for candidate, each in pairs]

    def counted(self, number: int, tokens: int, make: Callable[[], list[Row]]) -> list[Row]:
        """Cycles counted on `number` prompts of `tokens` tokens: the saved ones, or else counted now."""
        counted: Settings | None = self.content["counted"]
        if counted is None or (counted["number"], counted["tokens"]) != (number, tokens):
            self.content["counted"] = counted = {"number": number, "tokens": tokens, "rows": make()}
            self.keep()
        rows: list[Row] = counted["rows"]
        return rows


# ---------------------------------------------------------------- cycles


def _all_counted(model: Model, drafts: Sequence[Model], number: int, most: int, tick: Tick) -> Iterator[Row]:
    """Count the cycles of the model, and of the bundled town if that is another model."""
    jobs = [(model, [each.name for each in drafts])]
    if model.name != "town":
        from specviz.models import load

        jobs.insert(0, (load("town", "cpu", "float64"), ["town-draft", "town-eagle"]))
    for each, names in jobs:
        target = _wide(each)
        drafters = [load_drafter(target, name, None, None) for name in names if name in bundled()]
        suite = "town" if target.name == "town" else "everyday"
        entries = spread(list(load_suite(suite)), number)
        ids = first_turns(target, entries)
        for temperature in (0.0, TEMPERATURE):
            yield from counted(target, drafters, ids, most, Sampling(temperature), tick)


def _wide(model: Model) -> Model:
    """A causal torch model in float64, loaded again from its path or copied; any other model unchanged."""
    from specviz.models import load
    from specviz.models.model import Model as Causal

    if model.dtype == torch.float64 or not isinstance(model, Causal):
        return model
    if model.path is not None:  # a drafter recognises its target by the loaded weights
        path = Path(model.path)
        packed = path.suffix == ".gguf"
        wide: Model = load(
            f"gguf:{path}" if packed else str(path), "cpu", "float64", backend="torch" if packed else None
        )
        return wide
    net = copy.deepcopy(model.net)
    weights: torch.nn.Module = net  # transformers' own `to` has no types
    weights.to(torch.float64)
    return Causal(net, model.tokenizer, model.name)


def counted(
    model: Model,
    drafters: Sequence[Model],
    ids: Sequence[list[int]],
    most: int,
    sampling: Sampling,
    tick: Tick,
) -> Iterator[Row]:
    """Count the cycles of some settings by simulation and by a run.

    Parameters
    ----------
    model : Model
    drafters : sequence of Model
    ids : sequence of list of int
        Prompts.
    most : int
        Tokens of each text.
    sampling : Sampling
    tick : callable

    Yields
    ------
    dict
        For each setting: ``badge``, ``tau``, ``tau_run``, ``same`` (texts with equal counts), ``held``.
    """
    by_name: Mapping[str, Model] = {each.name: each for each in drafters}
    draft = next((name for name, each in by_name.items() if each.kind not in ("heads", "eagle")), "")
    heads = next((name for name, each in by_name.items() if each.kind == "heads"), "")
    listed = candidate_settings(draft, heads if sampling.greedy else "")
    if sampling.greedy and heads:
        most_k = int(getattr(by_name[heads], "most", 2))
        listed.append(Candidate(BLOCKS, heads, (("k", most_k),), most_k - 1))
    if not sampling.greedy:
        listed = [each for each in listed if "stop" not in dict(each.values)]
    tree = next((name for name, each in by_name.items() if each.kind == "eagle"), "")
    trees = settings(tree) if sampling.greedy and tree else []
    listed += trees
    name = f"{model.name}, temperature {sampling.temperature:g}"
    total = len(ids) * (1 + len(listed))
    texts = []
    for number, prompt in enumerate(ids):
        texts.append(reading.write_text(model, {}, prompt, str(number), most, sampling, number, 0))
        tick(number + 1, total, f"counting cycles, {name}")
    served = [each for each in drafters if each.kind != "eagle" and (sampling.greedy or each.kind != "heads")]
    widths = reading.roundings(texts[0], [model, *served]) if sampling.greedy else {}
    readings = [reading.read(text, model, served, sampling, widths) for text in texts]
    along = [grow(text, model, by_name[tree], trees, lambda: None) for text in texts] if trees else []
    grown = {each: [made[each] for made in along] for each in trees}
    simulation = Simulation(readings, listed, sampling.greedy, grown, model.dtype == torch.float64)
    for row, candidate in enumerate(listed, 1):
        method, cycles, tokens = candidate.build(), [], 0
        for number, prompt in enumerate(ids):
            made = list(decode(
                model, prompt, method, drafter=by_name.get(candidate.draft), max_new_tokens=most,
                sampling=sampling, seed=1, prompt=number,
            ))  # fmt: skip
            cycles.append(sum(each.number > 0 for each in made))
            tokens += sum(len(each.tokens) for each in made)
            tick(row * len(ids) + number + 1, total, f"counting cycles, {name}")
        badge, tau_run = simulation.badge(candidate), tokens / sum(cycles)
        low, high = simulation.tau_bounds(candidate)
        same = int((np.array(cycles) == simulation.counts(candidate)).sum())
        inside = low - 1e-9 <= tau_run <= high + 1e-9
        tau = f"{simulation.tau(candidate):.4f}" + ("" if low == high else f" [{low:.4f}, {high:.4f}]")
        yield {
            "model": model.name, "label": candidate.label, "temperature": sampling.temperature,
            "badge": badge, "tau": tau, "tau_run": tau_run, "same": f"{same}/{len(ids)}",
            "held": bool(same == len(ids) if badge == "exact" else inside),
        }  # fmt: skip


# ---------------------------------------------------------------- bars


def _bars(rows: list[Row], counts: list[Row]) -> list[Bar]:
    near = np.mean([abs(row["off"]) <= NEAR for row in rows])
    covered = [row["covered"] for row in rows if row["covered"] is not None]
    named = max(rows, key=lambda row: row["predicted"][0])
    fastest = max(row["measured"][0] for row in rows)
    exact = [row for row in counts if row["badge"] == "exact"]
    rest = [row for row in counts if row["badge"] != "exact"]
    bars = [Bar(f"exact τ equal to the run's ({len(exact)} settings)", _share(exact), 1.0)] if exact else []
    if rest:
        bars.append(Bar(f"bounded τ around the run's ({len(rest)} settings)", _share(rest), 1.0))
    return [
        *bars,
        Bar("predicted speedups within 10 % of the measured ones", float(near), SHARE),
        *([Bar("intervals around the measured speedups", float(np.mean(covered)), SHARE)] if covered else []),
        Bar(f"speed of the recommended setting ({named['label']}) relative to the fastest",
            named["measured"][0] / fastest, CLOSE),
    ]  # fmt: skip


def _share(rows: list[Row]) -> float:
    return float(np.mean([row["held"] for row in rows]))


def _unjudged(rows: list[Row], number: int) -> list[str]:
    """Say how many predictions have no interval, and why."""
    count = sum(row["covered"] is None for row in rows)
    why = f"an interval needs {LEAST} prompts or more" if number < LEAST else "its timings are too noisy"
    line = f"intervals around the measured speedups: {plural(count, 'setting')} not judged, because {why}"
    return [line] if count else []


def _misses(rows: list[Row]) -> list[str]:
    """Explain each missed prediction: the error in tokens per cycle and in the time of a cycle."""
    lines = []
    for row in rows:
        if abs(row["off"]) <= NEAR and row["covered"] is not False:
            continue
        tau, cycle = row["tau_measured"] / row["tau"] - 1, row["cycle_measured"] / row["cycle"] - 1
        why = "these prompts have different drafts" if abs(tau) >= abs(cycle) else "the clock"
        lines.append(
            f"missed: {row['label']}, {row['off']:+.1%}: τ {tau:+.1%}, time of a cycle {cycle:+.1%} ({why})"
        )
    return lines
