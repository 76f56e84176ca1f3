"""The training-free methods compared: equal draft sizes, cold and warm, and where each cycle's time goes.

UniSpec's comparison (Do et al., Table 1 and Appendix A) at one draft size g for all methods, and also at a
method's own size, if one is given or calibrated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from specviz import methods, metrics, schema
from specviz.errors import ParameterError, near
from specviz.loop import Run
from specviz.measure import timing
from specviz.measure.prompts import first_turns
from specviz.measure.report import Bar, Entry, Part, Report, Row, Settings, Tick
from specviz.measure.timing import BASELINE, Texts, Timed
from specviz.models.protocols import Model
from specviz.suites import spread
from specviz.trace import Trace

FAMILY = ("prompt_lookup", "lookahead", "token_recycling", "spectra", "unispec")
WARM = 70  # practice prompts that a warm method decodes first
GOAL = 1.4
PHASES = (*schema.PHASES, "between")
COLUMNS = [
    ("method", "method", ""), ("memory", "memory", ""), ("g", "g", "{:d}"), ("tau", "τ", "{:.2f}"),
    ("A/D", "A/D", "{:.3f}"), ("speed", "tokens/s", "{:,.0f}"), ("speedup", "speedup [95%]", ""),
    ("same", "same text", ""),
]  # fmt: skip
DROP_ORDER = ("same", "A/D")
GROUPED = [
    ("group", "", ""), ("method", "method", ""), ("g", "g", "{:d}"), ("tau_cold", "τ cold", "{:.2f}"),
    ("tau_warm", "warm", "{:.2f}"), ("speedup_cold", "speedup cold [95%]", ""),
    ("speedup_warm", "warm [95%]", ""),
]  # fmt: skip
SPLIT = [
    ("method", "method", ""), ("memory", "memory", ""), ("g", "g", "{:d}"), ("drafted", "nodes", "{:.1f}"),
    *((name, name, "{:.2f}") for name in PHASES), ("cycle", "sum", "{:.2f}"),
    ("share", "not forward", "{:.0%}"),
]  # fmt: skip
NOTES = [
    "τ: tokens per cycle, including the bonus token, averaged over kinds of task. g: maximum number of "
    "draft nodes, without the root. tokens/s: over all texts, including prefill and recording. speedup: "
    "median over texts of "
    "tokens/s over autoregressive decoding's on the same text, with its 95 % bootstrap interval.",
    f"cold: each text starts with an empty memory. warm: the method has first decoded up to {WARM} prompts, "
    "which share no clause with the bundled suite, and keeps its memory from text to text. A method without "
    "a memory has one row, as if cold.",
    "between: time outside cycles, mostly recording.",
]


@dataclass(frozen=True)
class Side:
    """A contender: a method, how its memory starts (empty: it has none), and its draft size, if any."""

    method: str
    memory: str = ""
    g: int | None = None

    @property
    def label(self) -> str:
        return ", ".join(
            [self.method, *filter(None, [self.memory, f"g={self.g}" if self.g is not None else ""])]
        )

    def build(self) -> methods.Method:
        """The method, ready to run."""
        values: Settings = {}
        if self.g is not None:
            values[methods.find(self.method).size] = self.g
        if self.memory:
            values["keep"] = "prompt" if self.memory == "cold" else "run"
        return methods.find(self.method)(**values)


def sides(size: int, own: Mapping[str, int]) -> list[Side]:
    """Autoregressive decoding and every installed method of the family, at `size` and at any size of its own.

    Raises
    ------
    ParameterError
        If `own` names another method, or a size is out of a method's range.
    """
    family = [name for name in FAMILY if name in methods.names()]
    for name in own:
        if name not in family:
            raise ParameterError(f"no draft size to compare for {name!r}" + near(name, family))
    contenders = [Side(BASELINE)]
    for name in family:
        keeps = any(p.name == "keep" for p in methods.find(name).parameters)
        for g in dict.fromkeys([size, own.get(name, size)]):
            contenders += [Side(name, state, g) for state in (("cold", "warm") if keeps else ("",))]
    for side in contenders:
        side.build()
    return contenders


def draft_sizes(given: Sequence[int | str]) -> tuple[list[int], dict[str, int]]:
    """Parse draft sizes for all methods (``24`` or ``"24"``; each once), and for one (``"unispec=16"``).

    Raises
    ------
    ParameterError
        For anything else.
    """
    common, own = list[int](), dict[str, int]()
    for each in given:
        method, _, number = str(each).rpartition("=")
        if not number.isdecimal():
            raise ParameterError(f"--size takes a number, or METHOD=NUMBER, not {each!r}")
        if method:
            own[method] = int(number)
        else:
            common.append(int(number))
    return list(dict.fromkeys(common)), own


def bench(
    model: Model,
    entries: list[Entry],
    *,
    number: Annotated[int, "Prompts."] = 70,
    max_new_tokens: Annotated[int, "Maximum number of tokens per prompt."] = 128,
    size: Annotated[
        Sequence[int | str], "Draft nodes for all methods; METHOD=NODES also sets one method.", draft_sizes
    ] = (24,),
    tick: Tick = lambda done, of, name: None,
) -> Report:
    """Compare autoregressive decoding and the training-free family, text by text in turns; greedy.

    Parameters
    ----------
    number : int
        Prompts, spread evenly over the kinds of work; only the first turn of a conversation is used.
    size : sequence of int or str
        The draft size g of all, and draft sizes of single methods (``"unispec=16"``), which also run at that
        size. Default of the latter: each method's calibrated size, if one is stored (`specviz calibrate`).

    Bars, all warm: at equal g, τ(unispec) > τ(token_recycling) > τ(prompt_lookup), means over kinds of work;
    ``unispec``, at its own size if it has one, faster than each other method at its best, and at least 1.4
    times as fast as autoregressive decoding.
    """
    common, own = draft_sizes(size)
    if len(common) > 1:
        raise ParameterError(f"--size takes one number for all methods, not {common}: METHOD=NUMBER adds one")
    if not own:
        stored = {name: timing.calibrated(model, name) for name in FAMILY if name in methods.names()}
        own = {name: g for name, g in stored.items() if g is not None}
    equal = common[-1] if common else 24
    lineup = sides(equal, own)
    chosen = spread(entries, number)
    texts = [
        {"prompt": ids} | {name: entry[name] for name in ("id", "kind", "language") if name in entry}
        for ids, entry in zip(first_turns(model, chosen), chosen)
    ]
    before = timing.practice(model, WARM)
    step = timing.counter(tick, len(lineup) * (len(texts) + 1))
    runs: dict[Side, Run] = {}
    with timing.closing(runs):
        for side in lineup:
            method = side.build()
            first = before if side.memory == "warm" else texts[:2]
            timing.finish(Run(model, first, method, record=None, max_new_tokens=max_new_tokens))
            runs[side] = Run(model, texts, method, max_new_tokens=max_new_tokens)
            step(side.label)
        decoders = {side: Texts(run) for side, run in runs.items()}
        clock, name_of_clock = timing.clock_of(model)
        times = timing.paired(decoders, len(texts), model.device, lambda side: step(side.label), clock)
        traces = {side: timing.finish(run) for side, run in runs.items()}
    rows = {side: _row(side, times, traces[side]) for side in lineup}
    report = Report(
        "trees",
        f"Training-free methods on {model.name}, {len(texts)} texts, up to {max_new_tokens} tokens, greedy",
        timing.setting(model, [], prompts=len(texts), max_new_tokens=max_new_tokens, size=equal, own=own,
                warm=f"{len(before)} warm-up prompts"),
        COLUMNS, list(rows.values()), _bars(rows, times, equal), list(NOTES), DROP_ORDER,
    )  # fmt: skip
    report.setting["clock"] = name_of_clock
    report.notes.append(f"Tokens per second use the {name_of_clock}, milliseconds per cycle the wall clock.")
    for name, heading in (("kind", "By kind of task"), ("language", "By language")):
        report.parts.append(Part(heading, GROUPED, _grouped(lineup, times, traces, texts, name)))
    report.parts.append(
        Part("Milliseconds per cycle", SPLIT, [_split(s, traces[s]) for s in lineup], ("drafted",))
    )
    return report


def groups(texts: list[Entry], name: str) -> dict[str, list[int]]:
    """Numbers of the texts of each kind or language; texts without one are under a dash."""
    numbers: dict[str, list[int]] = {}
    for i, text in enumerate(texts):
        numbers.setdefault(str(text.get(name, "–")), []).append(i)
    return numbers


def only(timed: Timed, numbers: Iterable[int]) -> Timed:
    """The times of some texts."""
    return Timed([timed.seconds[i] for i in numbers], [timed.texts[i] for i in numbers])


def _row(side: Side, times: dict[Side, Timed], trace: Trace) -> Row:
    timed, base = times[side], times[Side(BASELINE)]
    kinds = groups(trace.run["prompts"], "kind").values()
    return {
        "method": side.method, "memory": side.memory or None, "g": side.g,
        "tau": float(np.mean([metrics.tau(trace.select(prompt=numbers)) for numbers in kinds])),
        "tau_pooled": metrics.tau(trace),
        "A/D": metrics.acceptance_rate(trace), "speed": timed.speed,
        "speedup": None if side.method == BASELINE else timed.over(base),
        "same": f"{timed.same(base)}/{len(base.texts)}", "tokens": timed.tokens,
        "seconds": sum(timed.seconds),
    }  # fmt: skip


def _grouped(
    lineup: list[Side], times: dict[Side, Timed], traces: dict[Side, Trace], texts: list[Entry], name: str
) -> list[Row]:
    rows = []
    for group, numbers in groups(texts, name).items():
        by_method: dict[tuple[str, int | None], Settings] = {}
        for side in lineup[1:]:
            row = by_method.setdefault((side.method, side.g), {"method": side.method, "g": side.g})
            state = side.memory or "cold"  # without a memory every text is cold
            over = only(times[side], numbers).over(only(times[lineup[0]], numbers))
            tau = metrics.tau(traces[side].select(prompt=numbers))
            row |= {f"tau_{state}": tau, f"speedup_{state}": over}
        rows += [
            {"group": group if i == 0 else "", name: group, "texts": len(numbers)} | row
            for i, row in enumerate(by_method.values())
        ]
    return rows


def _split(side: Side, trace: Trace) -> Settings:
    """Milliseconds of each phase per cycle, and the share of a cycle that is not the target's pass."""
    steps = trace.cycles[trace.cycles["cycle"] > 0]
    count, spent = max(len(steps), 1), timing.phase_seconds(trace)
    phases = {name: 1e3 * spent[name] / count for name in PHASES}
    inside = sum(phases[name] for name in schema.PHASES)
    return {
        "method": side.method, "memory": side.memory or None, "g": side.g,
        "drafted": float(steps["sent"].sum()) / count, **phases, "cycle": inside + phases["between"],
        "share": (inside - phases["forward"]) / inside if inside else float("nan"),
    }  # fmt: skip


def _bars(rows: dict[Side, Row], times: dict[Side, Timed], size: int) -> list[Bar]:
    best: dict[str, Side] = {}  # of each method when warm: at its own size if it ran at one
    equal: dict[str, Side] = {}
    for side in rows:
        if side.memory != "cold":
            best[side.method] = side
            if side.g == size:
                equal[side.method] = side
    bars = []
    for better, worse in (("unispec", "token_recycling"), ("token_recycling", "prompt_lookup")):
        if better in equal and worse in equal:
            a, b = rows[equal[better]]["tau"], rows[equal[worse]]["tau"]
            name = f"τ of {better} ({a:.2f}) over {worse}'s ({b:.2f}), g={size}"
            bars.append(Bar(name, a / b, 1.0, "more than"))
    if "unispec" in best:
        own = best["unispec"]
        others = [side for side in rows if side.method not in (BASELINE, "unispec") and side.memory != "cold"]
        if others:
            first = max(others, key=lambda side: rows[side]["speedup"].median)
            over = times[own].over(times[first])
            bars.append(Bar(f"{own.label} over {first.label}", over.median, 1.0, "more than"))
        bars.append(
            Bar(f"{own.label} over autoregressive", times[own].over(times[Side(BASELINE)]).median, GOAL)
        )
    return bars
