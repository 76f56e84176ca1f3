"""Cost of recording: the same texts with the default record and without one, in turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from specviz.errors import ModelError, ParameterError
from specviz.loop import Run
from specviz.measure import timing
from specviz.measure.report import Bar, Entry, Estimate, Report, Tick
from specviz.measure.timing import Entrant, Texts
from specviz.models.protocols import Model
from specviz.suites import spread

LIMIT = 1.03
RECORDS: dict[str, str | None] = {"without": None, "with": "judged"}
DROP_ORDER = ("close",)
COLUMNS = [
    ("method", "method", ""), ("draft", "draft", ""), ("tokens", "tokens a run", "{:,}"),
    ("without", "ms without", "{:,.0f}"), ("with", "ms with", "{:,.0f}"),
    ("shown", "with/without [95%]", ""), ("close", "ms to close", "{:.1f}"),
]  # fmt: skip


def bench(
    model: Model,
    drafts: list[Model],
    entries: list[Entry],
    *,
    number: int = 28,
    max_new_tokens: int = 128,
    rounds: int = 7,
    only: Sequence[str] | None = None,
    tick: Tick = lambda done, of, name: None,
) -> Report:
    """Time pairs of runs over the same prompts, one with ``record="judged"`` and one with ``record=None``.

    The two runs of a pair take turns at every text, and the order rotates. A run's time covers its texts and
    its end, including the record's conversion and statistics, but not loading the model or checking prompts.
    Ending a run costs a fixed 10 ms or so, so a run has many texts. Bar: the median ratio over `rounds` pairs
    is at most 1.03 for every method.

    Runs every installed method that the model and the drafters support, or those that `only` names.
    """
    chosen = spread(entries, number)
    rows, bars = [], []
    clock, name_of_clock = timing.clock_of(model)
    entrants, refused = [], []
    for entrant in timing.lineup(drafts, list(only) if only else None):
        try:
            Run(model, chosen[:1], entrant.method, draft=entrant.draft, record=None).close()
            entrants.append(entrant)
        except (ModelError, ParameterError) as error:
            if only:
                raise
            refused.append(f"skipped: {error}")
    if not entrants:
        raise ParameterError(f"no method here can run; {refused[0]}")
    step = timing.counter(tick, len(entrants) * (rounds + 1))
    with timing.settled():
        for entrant in entrants:
            pairs = []
            for turn in range(rounds + 1):
                spent, closed, tokens = pair(model, chosen, entrant, turn, max_new_tokens, clock)
                step(entrant.label)
                if turn:  # the first pair warms up
                    pairs.append((spent, closed))
            ratio = Estimate.of([spent["with"] / spent["without"] for spent, _ in pairs])
            medians = {
                name: Estimate.of([1e3 * spent[name] for spent, _ in pairs]).median for name in RECORDS
            }
            rows.append(
                {"method": entrant.method, "draft": entrant.draft.name if entrant.draft is not None else None,
                 "tokens": tokens, **medians, "ratio": ratio,
                 "close": Estimate.of([1e3 * closed for _, closed in pairs]).median}
            )  # fmt: skip
            name = f"recording {entrant.label}: time with recording over time without"
            bars.append(Bar(name, ratio.median, LIMIT, "at most"))
    where = timing.setting(
        model, drafts, prompts=len(chosen), max_new_tokens=max_new_tokens, rounds=rounds, clock=name_of_clock
    )
    title = f"Recording at the default level, {rounds} pairs of runs over {len(chosen)} prompts"
    note = f"ms: median over runs, {name_of_clock}. with/without: median over pairs, with its 95 % bootstrap"
    note += " interval."
    shown = [row | {"shown": str(row["ratio"])} for row in rows]
    return Report("overhead", title, where, COLUMNS, shown, bars, [note, *refused], DROP_ORDER)


def pair(
    model: Model, chosen: list[Entry], entrant: Entrant, turn: int, max_new_tokens: int,
    clock: Callable[[], float],
) -> tuple[dict[str, float], float, int]:  # fmt: skip
    """Seconds of a run with a record and of one without, seconds of ending the former, and its tokens."""
    options = {"draft": entrant.draft, "max_new_tokens": max_new_tokens}
    order = list(RECORDS) if turn % 2 else list(RECORDS)[::-1]
    runs = {name: Run(model, chosen, entrant.method, record=RECORDS[name], **options) for name in order}
    texts = sum(len(e.get("turns", [0])) for e in chosen)
    with timing.closing(runs):
        decoders = {name: Texts(run) for name, run in runs.items()}
        times = timing.paired(decoders, texts, model.device, clock=clock)
        # Flushing the record and building its tables is part of recording.
        endings = {name: partial(_ending, run) for name, run in runs.items()}
        ends = timing.paired(endings, 1, model.device, clock=clock)
    spent = {name: sum(times[name].seconds) + ends[name].seconds[0] for name in RECORDS}
    return spent, ends["with"].seconds[0], times["with"].tokens


def _ending(run: Run, _: int) -> list[int]:
    timing.finish(run)
    return []
