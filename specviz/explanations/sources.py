"""Explain a trace, its file, or another tool's log."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specviz.errors import ParameterError, TraceError, plural
from specviz.explanations import acceptance, costs
from specviz.explanations.costs import PARTS, PLAIN, Costs, Plain
from specviz.explanations.explanation import Explanation
from specviz.metrics import Estimate, contenders
from specviz.paths import expanded
from specviz.trace import Counts, Trace, read_counts
from specviz.trace.counts import UNDRAFTED
from specviz.trace.engines import origin_of
from specviz.trace.foreign import COUNTERS, UNCLEAR
from specviz.trace.vllm_log import DRAFTING_ONLY, VLLM_LOG

if TYPE_CHECKING:
    import pandas as pd

WORST = 5  # cycles to list
LISTED = 3  # skipped lines to list
RECORDS = (".parquet", ".partial")
NO_PLAIN = (
    "the cost of a plain step: decode the same prompts with method 'autoregressive' and pass that trace as "
    "plain (--plain)"
)
NO_TIMES = "the cost of a plain step: a comparison needs the decoding time without the prefill"
NO_PLAIN_LOG = (
    "the cost of a plain step: pass a file of the same format, with the same requests without speculation, "
    "as plain (--plain)"
)
NO_STEPS = "how many steps had no draft, and therefore the tokens and cost of a step"
LLAMA_CPP = ("llama.cpp", "llama.cpp-log", "lm-studio")
ALL_ACCEPTED = 50  # least number of draft tokens, all accepted, that casts doubt on the count
NO_REJECTED = (
    "possibly rejected drafts: every counted draft token was accepted, and llama.cpp does not count rejected "
    "drafts for models that cannot remove part of a sequence"
)
COUNTS_STEPS = {  # which file from the same tool has this number
    COUNTERS: "keep vllm:generation_tokens_total and vllm:time_to_first_token_seconds_count in the page",
    "aiperf": "a server's records with completion_tokens contain it; specviz's do not",
}


def explain(
    source: Trace | Counts | str | Path,
    plain: Trace | Counts | str | Path | None = None,
    *,
    origin: str | None = None,
    since: str | Path | None = None,
) -> Explanation:
    """Explain why a run is slow or fast: speedup = τ / (s(g) + drafter + fixed), factor by factor.

    Parameters
    ----------
    source : Trace, Counts, str or Path
        A trace of one method, its file or a folder of traces; or another tool's file, see
        `specviz.trace.read_counts`. In a folder, the autoregressive run is the baseline.
    plain : same types, optional
        Decoding without drafts: a trace of method ``autoregressive``, or the same tool's file of a run
        without speculation. Without it, the run's own steps without a draft serve as plain steps, if there
        are any.
    origin : str, optional
        The tool that wrote the file, as in `specviz.trace.read_counts`. Default: detected from the file.
    since : str or Path, optional
        For a page of vLLM's counters: an earlier page of the same server; only what came after it counts.

    Returns
    -------
    Explanation
        Print it or show it in a notebook; its fields are numbers and tables.

    Raises
    ------
    TraceError
        If the file cannot be read, holds several methods, a stream or a canvas, or has no drafts.
    ParameterError
        If one of `source` and `plain` is a trace and the other a log, or `source` takes no `since`.
    """
    given = _opened(source, origin, since=since)
    if since is not None and (isinstance(given, Trace) or given is source):
        raise ParameterError(f"since works only for a file of a server's counters ({COUNTERS}): drop it")
    if isinstance(given, Counts):
        other = None if plain is None else _opened(plain, origin or given.origin, True)
        if isinstance(other, Trace):
            raise ParameterError(
                "plain is a trace, but the run to explain is another tool's log: pass a log of that tool"
            )
        return _of_counts(given, other)
    base = None if plain is None else _opened(plain, None)
    if isinstance(base, Counts):
        raise ParameterError("plain is another tool's log, but the run to explain is a trace: pass a trace")
    runs = given.split()
    own = [part for part in runs if part.run["method"] == PLAIN]
    rest = [part for part in runs if part.run["method"] != PLAIN]
    if not rest:
        raise TraceError("this run has no drafts: pass it as plain to compare other runs with it")
    settings = contenders(given.select(run=[part.run["run"] for part in rest]))
    if len(settings) > 1:
        named = {name: part.split()[0].run["run"] for name, part in settings.items()}
        names = "; ".join(f"{run} is {name}" for name, run in list(named.items())[:6])
        raise TraceError(
            f"the trace holds {len(settings)} settings: give one run's file, or select(run=...): {names}"
        )
    if base is None and own:
        base = given.select(run=[part.run["run"] for part in own])
    if own:
        given = given.select(run=[part.run["run"] for part in rest])
    path = source if isinstance(source, str | Path) else None
    return _of_trace(given, base, path)


def _opened(
    source: Trace | Counts | str | Path, origin: str | None, plain: bool = False,
    since: str | Path | None = None,
) -> Trace | Counts:  # fmt: skip
    if not isinstance(source, str | Path):
        return source
    path = expanded(source, TraceError)
    if origin is None and (path.is_dir() or path.suffix in RECORDS):
        return Trace.open(path)
    return read_counts(path, origin or origin_of(path), plain=plain, since=since)


def _draft(part: Trace) -> str:
    return str((part.run["draft"] or {}).get("name") or "")


def _of_trace(trace: Trace, base: Trace | None, path: str | Path | None) -> Explanation:
    own = costs.of_trace(trace)
    plain = costs.within(trace) if base is None else costs.of_plain_run(trace, base)
    run = trace.split()[0].run
    missing = []
    if np.isnan(own.cycle):
        missing.append("the time of a cycle: the run was recorded without times")
    if plain is None:
        missing.append(NO_PLAIN)
    elif base is None:
        missing.append(f"plain decoding itself; {NO_PLAIN}")
    if run["record"] is None:
        missing.append("which tokens were drafted: the run recorded only its text")
    steps = acceptance.draft_counts(trace)
    chain = bool((steps["depth"] == steps["sent"]).all())
    draft = _draft(trace.split()[0])
    name = run["method"] + (f" with {draft}" if draft else "")
    player = "" if path is None else shlex.join(["specviz", "show", str(path)])
    return _explained(
        name, "specviz", None, own, plain, missing,
        positions=acceptance.positions(trace), contexts=acceptance.contexts(trace, steps),
        starts=acceptance.starts(trace, steps), lengths=acceptance.by_length(trace, steps),
        places=acceptance.places(trace), worst=_worst(trace, steps, plain),
        depths=steps["depth"].to_numpy() if chain else None, player=player, trace=trace,
    )  # fmt: skip


def _of_counts(counts: Counts, base: Counts | None) -> Explanation:
    own = costs.of_counts(counts)
    plain = None if base is None else costs.of_plain_counts(counts, base)
    missing = []
    if np.isnan(own.steps):
        missing.append(": ".join(filter(None, (NO_STEPS, COUNTS_STEPS.get(counts.origin)))))
    else:
        if np.isnan(own.cycle):
            missing.append("how long decoding took, without the prefill")
        if np.isnan(own.draft):
            missing.append("how long drafting took, and so how the cost of a step splits")
        if plain is None:
            missing.append(NO_TIMES if np.isnan(own.cycle) else NO_PLAIN_LOG)
        if counts.least_steps:
            missing.append(f"the exact number of steps: {UNDRAFTED}")
    positions = acceptance.positions(counts)
    if positions is None:
        unknown = "which steps had a draft" if len(counts.steps) else "how many tokens each step accepted"
        missing.append(f"{unknown}, and so acceptance by position")
    missing += [
        "which tokens were drafted, in which context, and which steps were worst: only a trace has these"
    ]
    if counts.pooled:
        missing.append("single requests: the file holds sums over all of them")
    if counts.origin == VLLM_LOG:
        missing.append("exact counts: the log rounds its rates to three decimals")
        missing.append(DRAFTING_ONLY)
    drafted = counts.total("drafted")
    if drafted != drafted:
        missing.append("how many tokens were drafted")
    if counts.origin in LLAMA_CPP and drafted == counts.total("accepted") >= ALL_ACCEPTED:
        missing.append(NO_REJECTED)
    skipped = counts.left_out.to_numpy().tolist()
    missing += [f"line {line} is skipped: {why}" for line, why in skipped[:LISTED]]
    if len(skipped) > LISTED:
        more = plural(len(skipped) - LISTED, "more line")
        missing.append(f"{more} skipped; specviz import lists all of them")
    depths = counts.each("depth")
    times = counts.each("times")
    all_depths = len(depths) > 0 and not np.isnan(depths).any()
    made = _explained(
        counts.origin, counts.origin, counts.version, own, plain, missing, positions=positions,
        depths=depths if all_depths else None, times=times,
    )  # fmt: skip
    unclear, covered = sum(str(why).startswith(UNCLEAR) for _, why in skipped), len(counts.requests)
    words = f"This covers only {covered} of {covered + unclear} requests: the others have no counts."
    return replace(made, scope=words) if unclear else made


def _explained(
    name: str, origin: str, version: str | None, own: Costs, plain: Plain | None, missing: list[str],
    positions: pd.DataFrame | None, contexts: pd.DataFrame | None = None, starts: pd.DataFrame | None = None,
    lengths: pd.DataFrame | None = None, places: float = float("nan"), worst: pd.DataFrame | None = None,
    depths: np.ndarray | None = None, player: str = "", times: np.ndarray | None = None,
    trace: Trace | None = None,
) -> Explanation:  # fmt: skip
    nan = float("nan")
    timed = plain is not None and not np.isnan(own.cycle)
    speedup = costs.ratio(own, plain) if timed and plain is not None else Estimate(nan, nan, nan, 0)
    factors = _factors(own, plain if timed else None)
    even = rate = nan
    if depths is not None and not np.isnan(own.tau):
        rate = acceptance.even_rate(depths, own.tau, times)
        if timed and plain is not None:
            even = acceptance.even_rate(depths, own.cycle / plain.cycle, times)
    return Explanation(
        name, origin, version, own, plain, speedup, factors, positions, contexts, starts, lengths, places,
        worst, even, rate, missing, player, trace,
    )  # fmt: skip


def _factors(own: Costs, plain: Plain | None) -> pd.DataFrame:
    """One row per factor: the tokens first, then a cycle's extra cost over a plain step, part by part."""
    import pandas as pd

    columns = ["factor", "plain_steps", "speedup", "without"]
    if plain is None:
        return pd.DataFrame([("tau", float("nan"), own.tau, float("nan"))], columns=columns)
    cost = own.cycle / plain.cycle
    if np.isnan(own.forward) or np.isnan(plain.forward):
        parts = [("cycle", cost - 1)]
        if own.draft == own.draft:
            parts = [("draft", own.draft / plain.cycle), ("cycle", cost - 1 - own.draft / plain.cycle)]
    else:
        more = {"forward": own.forward - plain.forward, "draft": own.draft, "rest": own.rest - plain.rest}
        parts = [(part, more[part] / plain.cycle) for part in PARTS]
    rows = [("tau", float("nan"), own.tau, 1 / cost)]
    at = 1.0
    for part, steps in parts:
        at += steps
        rows.append((part, steps, own.tau / at, own.tau / (cost - steps)))
    return pd.DataFrame(rows, columns=columns)


def _worst(trace: Trace, counts: pd.DataFrame, plain: Plain | None) -> pd.DataFrame:
    """The cycles with the most time beyond their tokens' plain cost, or if unknown, the most per token."""
    keys = ["run", "prompt", "cycle"]
    times = {"duration": "seconds", "draft_time": "draft", "forward_time": "forward"}
    steps = costs.steps_of(trace)[[*keys, "emitted", *times]].rename(columns=times)
    steps = steps.merge(counts.astype({"accepted": int}), how="left", on=keys)
    steps["lost"] = float("nan") if plain is None else steps["seconds"] - steps["emitted"] * plain.cycle
    order = steps["lost"] if plain is not None else steps["seconds"] / steps["emitted"].clip(lower=1)
    order = order.dropna() if plain is None else order[order > 0]  # a cycle that gained time lost none
    worst = steps.loc[order.sort_values(ascending=False, kind="stable").index[:WORST]]
    columns = [*keys, "sent", "accepted", "emitted", "seconds", "lost", "draft", "forward"]
    return worst[columns].reset_index(drop=True)
