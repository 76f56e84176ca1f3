"""Many runs as points: quality against speed over a sweep of settings."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from specviz.errors import ParameterError, TraceError
from specviz.metrics import cycles
from specviz.metrics.interval import RESAMPLES, Estimate
from specviz.metrics.quality import quality
from specviz.metrics.rouge import rouge
from specviz.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

Source: TypeAlias = Trace | str | Path
Several: TypeAlias = Source | list[Source] | tuple[Source, ...]

SCORES: dict[str, Callable[[Trace, int], Estimate]] = {
    "bleu": lambda trace, resamples: quality(trace, None, resamples, ["bleu"])["bleu"],
    "chrf": lambda trace, resamples: quality(trace, None, resamples, ["chrf"])["chrf"],
    "rougeL": lambda trace, resamples: rouge(trace)["rougeL"],
}


def front(quality: ArrayLike, speed: ArrayLike) -> np.ndarray:
    """The Pareto front: points that no other point beats (at least as good in both, better in one).

    Parameters
    ----------
    quality, speed : sequence of float
        Values of each point; larger is better. A point with a NaN is on no front and beats none.

    Returns
    -------
    array of bool
    """
    x, y = np.asarray(quality, np.float64), np.asarray(speed, np.float64)
    at_least = (x[:, None] >= x) & (y[:, None] >= y)  # [i, j]: i is at least as good as j in both
    beaten = (at_least & ~at_least.T).any(0)
    unbeaten: np.ndarray = ~beaten & np.isfinite(x) & np.isfinite(y)
    return unbeaten


MEASURES = (cycles.tau, cycles.fallback_share, cycles.rollback_share, cycles.target_share)


def sweep(
    traces: Several | Mapping[str, Several], base: Source, score: str = "bleu", resamples: int = RESAMPLES
) -> pd.DataFrame:
    """Quality and speed of every run of a sweep (BiLD's Figures 4, 5 and 10), one row per run.

    Parameters
    ----------
    traces : path, Trace, list of them, or dict of name to them
        Runs over the same prompts; each run is a point. A folder stands for its files. The names of a dict
        become the rows' ``group``: the curve that they belong to.
    base : Trace or path
        Reference for speed: the large model's greedy decoding of the same prompts.
    score : {"bleu", "chrf", "rougeL"}
        Measure of quality, against the prompts' references.
    resamples : int
        Resamples of sacrebleu's bootstrap, which takes longer than the score; with 1 there is no interval.

    Returns
    -------
    DataFrame
        ``group``, ``method``, ``exactness``; ``quality`` in percent with its 95 % interval ``quality_lo``,
        ``quality_hi``; ``speed``, the base's seconds over the run's for all the texts, prefill included (the
        papers' latency per example: a shorter text is faster); ``speed_a_token``, tokens per second over
        the base's; `tau`, `fallback_share`, `rollback_share`, `target_share`; a column for each
        parameter that differs among the runs that have it; ``front``, whether no run, including the base,
        beats it in quality and speed; ``base``; ``trace``, the path of its file, empty if none was given. The
        base is the first row.

    Raises
    ------
    ParameterError
        If there is no such score, or a package that it needs is not installed.
    TraceError
        If a run has other prompts than the base, or no prompt has a reference.
    """
    import pandas as pd

    if score not in SCORES:
        raise ParameterError(f"score must be one of {', '.join(SCORES)}, not {score!r}")
    _, start, at = _opened("", base)[0]
    options = score, resamples, start
    rows = [_point("", start, at, *options) | {"base": True}]
    for name, given in _named(traces):
        rows += [_point(group, run, path, *options) for group, run, path in _opened(name, given)]
    table = pd.DataFrame(rows)
    for name in [str(c) for c in table if str(c).startswith("parameter ")]:
        own = table[name][~table["base"] & table[name].notna()].map(repr)
        table = table.drop(columns=name) if own.nunique() < 2 else table.rename(columns={name: name[10:]})
    table["front"] = front(table["quality"], table["speed"])
    return table


def _point(
    group: str, run: Trace, path: Path | None, score: str, resamples: int, start: Trace
) -> dict[str, Hashable]:
    """A row of `sweep`, with its speed relative to `start`."""
    if _prompts(run) != _prompts(start):
        raise TraceError(
            f"the run {run.run['run']} has different prompts than the base, or a different order"
        )
    return {
        "group": group or str(run.run["method"]),
        "method": str(run.run["method"]),
        "exactness": cycles.exactness(run),
        **SCORES[score](run, resamples).columns("quality"),
        "speed": cycles.ratio(cycles.seconds(start), cycles.seconds(run)),
        "speed_a_token": cycles.ratio(cycles.tokens_per_second(run), cycles.tokens_per_second(start)),
        **{measure.__name__: measure(run) for measure in MEASURES},
        **{f"parameter {k}": v for k, v in (run.run["parameters"] or {}).items()},
        "base": False,
        "trace": str(path) if path else "",
    }


def _named(traces: Several | Mapping[str, Several]) -> list[tuple[str, Source]]:
    if isinstance(traces, Mapping):
        return [(str(name), each) for name, given in traces.items() for each in _several(given)]
    return [("", each) for each in _several(traces)]


def _several(given: Several) -> list[Source]:
    return list(given) if isinstance(given, list | tuple) else [given]


def _opened(name: str, given: Source) -> list[tuple[str, Trace, Path | None]]:
    """Runs with their names and files."""
    if isinstance(given, Trace):
        return [(name, run, None) for run in given.split()]
    path = Path(given)
    files = sorted(path.glob("[!._]*.parquet")) if path.is_dir() else [path]
    if not files:
        raise TraceError(f"{path} holds no traces (*.parquet)")
    return [(name, run, file) for file in files for run in Trace.open(file).split()]


def _prompts(run: Trace) -> list[list[int] | None]:
    """Prompt tokens of the selected texts."""
    prompts, chosen = run.run["prompts"] or [], sorted(run.cycles["prompt"].unique().tolist())
    return [prompts[i].get("tokens") if i < len(prompts) else None for i in chosen]
