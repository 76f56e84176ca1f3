"""What a trace says in numbers: each metric is one function, its definition is its docstring.

Counts are pooled over all cycles of the trace (sums first, one division last), not averaged over
prompts. Prefill (cycle 0) counts as no step. A metric that the trace cannot give is NaN.

Accepted means: the target judged the token and kept it. What a method emits without the target's
judgement (``unreviewed``: BiLD's last block, Algorithm 1, line 2) is drafted and emitted, but it was
neither sent nor accepted: it stands on neither side of A/D, and in A/O only below the line. (The BiLD
paper prints no A/D; here it rates the target's answers to what it was sent, and these were not.)

Where every step emits a bonus or correction token and nothing is cut by the end of a text:
emitted = accepted + steps, tau = emitted / steps, and A/O = 1 - 1/tau.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from specviz.errors import TraceError

if TYPE_CHECKING:
    import pandas as pd

    from specviz.trace import Trace

ROUNDING = 1e-6  # relative: probabilities are recorded in float32


def _ratio(above: float, below: float) -> float:
    return float(above) / float(below) if below else float("nan")


def _silent(trace: Trace) -> bool:
    """Whether no run recorded more than its text."""
    return all(part.run["record"] is None for part in trace.split())


def _steps(trace: Trace) -> pd.DataFrame:
    """The cycles after the prefill."""
    cycles = trace.cycles
    return cycles[cycles["cycle"] > 0]


def _passes(trace: Trace, model: str) -> pd.DataFrame:
    """Passes of a model; a pass that served several rows of a batch, written with each, counts once."""
    passes = trace.passes
    passes = passes[passes["model"] == model]
    timed = passes["start"].notna()
    twice = passes.duplicated(["run", "start", "rows", "tokens"]) & timed & (passes["rows"] > 1)
    return passes[~twice]


def steps(trace: Trace) -> int:
    """Draft-verify cycles; the prefill is none."""
    return len(_steps(trace))


def emitted(trace: Trace) -> int:
    """Tokens that the cycles emitted, the bonus or correction included; an end token counts."""
    return int(trace.cycles["emitted"].sum())


def output(trace: Trace) -> int:
    """Tokens of the final texts: emitted and not taken back by a later cycle's `keep`."""
    return int(trace.outputs["kept"].sum())


def drafted(trace: Trace) -> float:
    """Nodes of all drafts (the root is none), whether or not they were sent to the target."""
    return float("nan") if _silent(trace) else int(trace.cycles["drafted"].sum())


def accepted(trace: Trace) -> int:
    """Draft tokens that the target accepted and that were emitted; neither cut nor unreviewed ones."""
    return int((trace.outputs["origin"] == "draft").sum())


def tau(trace: Trace) -> float:
    """tau: tokens emitted per step, bonus or correction included; autoregressive decoding has 1.00.

    Pooled over all steps, as in Spec-Bench and vLLM. A step is a cycle after the prefill, and has one
    pass of the target (none where its tokens are unreviewed). gpt-fast and others leave the bonus out: see
    `mean_accepted`.
    """
    return _ratio(emitted(trace), steps(trace))


def acceptance_rate(trace: Trace) -> float:
    """A/D: accepted nodes divided by drafted nodes that were sent to the target.

    Nodes behind the first rejection were sent and count; nodes that the drafter pruned or did not send,
    nodes emitted unreviewed, and nodes cut by the end of the text or a limit (no one knows what they
    would have been), do not. For a tree every node sent counts, though only one path can be accepted.
    NaN without drafts.
    """
    cycles = trace.cycles
    return _ratio(cycles["accepted"].sum(), (cycles["sent"] - cycles["cut"]).sum())


def accepted_share(trace: Trace) -> float:
    """A/O: accepted draft tokens divided by tokens of the final texts.

    The share that came from drafts and was checked by the target; unreviewed tokens are only below the line.
    """
    outputs = trace.outputs[trace.outputs["kept"]]
    return _ratio((outputs["origin"] == "draft").sum(), len(outputs))


def mean_accepted(trace: Trace) -> float:
    """Mean number of draft tokens accepted in a step, without the bonus: tau - 1 if nothing is cut."""
    return _ratio(accepted(trace), steps(trace))


def target_passes(trace: Trace) -> float:
    """Forward passes of the target after the prefill."""
    return _count(trace, "target")


def draft_passes(trace: Trace) -> float:
    """Forward passes of the drafter after the prefill; a drafter without a model has none."""
    return _count(trace, "draft")


def _count(trace: Trace, model: str) -> float:
    return float("nan") if _silent(trace) else int((_passes(trace, model)["cycle"] > 0).sum())


def seconds(trace: Trace, prefill: bool = True) -> float:
    """Time during which a cycle ran, in seconds.

    The union of the cycles' intervals, so that rows of a batch that ran at once count once. Recording
    and whatever happened between cycles are outside.

    Parameters
    ----------
    prefill : bool
        Whether cycle 0 counts.
    """
    cycles = trace.cycles if prefill else _steps(trace)
    total = 0.0
    for _, run in cycles.groupby("run", observed=True, sort=False):
        known = run["start"].notna() & run["duration"].notna()
        total += float(run["duration"][~known].sum())
        if not known.any():
            continue
        order = np.argsort(run["start"][known].to_numpy(), kind="stable")
        start = run["start"][known].to_numpy()[order]
        end = start + run["duration"][known].to_numpy()[order]
        reached = np.concatenate([[-np.inf], np.maximum.accumulate(end)[:-1]])
        total += float(np.maximum(0, end - np.maximum(start, reached)).sum())
    return total


def tokens_per_second(trace: Trace, prefill: bool = False) -> float:
    """Tokens of the final texts per second of decoding.

    Parameters
    ----------
    prefill : bool
        Whether the prefill's time is inside, as in Spec-Bench; everywhere called "tokens/s with prefill".
    """
    return _ratio(output(trace), seconds(trace, prefill))


def fallback_share(trace: Trace) -> float:
    """Fallbacks per generated token, as in BiLD's Table 4.

    A fallback is a cycle in which drafting stopped to hand over to the target: the drafter was unsure
    (``fallback``), or its run was full (``length``). A block emitted unreviewed was handed to no one. The
    paper names no denominator; ours is the tokens of the final texts.
    """
    if _silent(trace):
        return float("nan")
    cycles = _steps(trace)
    handed = cycles["stop"].isin(["fallback", "length"]) & (cycles["unreviewed"] == 0)
    return _ratio(handed.sum(), output(trace))


def rollback_share(trace: Trace) -> float:
    """Rollbacks per generated token, as in BiLD's Table 4 (for exact methods: rejections).

    A rollback is a cycle in which the target rejected a node and so threw it away with all behind it. For a
    tree it is a cycle in which the target left the drafted tree before a leaf. The paper names no
    denominator; ours is the tokens of the final texts.
    """
    return float("nan") if _silent(trace) else _ratio(len(_rejections(trace)), output(trace))


def _rejections(trace: Trace) -> pd.DataFrame:
    """Cycles in which judging ended at a node all of whose judged children were rejected."""
    from specviz.trace import KEYS

    keys = list(KEYS)
    nodes = trace.nodes
    taken = nodes.loc[nodes["status"].isin(["accepted", "cut"]), [*keys, "parent"]].drop_duplicates()
    refused = nodes.loc[nodes["status"] == "rejected", [*keys, "parent"]].drop_duplicates()
    both = refused.merge(taken, how="left", on=[*keys, "parent"], indicator=True)
    return both[both["_merge"] == "left_only"][keys].drop_duplicates()


def by_depth(trace: Trace) -> pd.DataFrame:
    """Acceptance by depth in the draft; the first level is depth 1.

    Returns
    -------
    DataFrame
        ``depth``; ``sent`` nodes there (neither cut nor unreviewed), ``judged`` (accepted or rejected),
        ``accepted``; ``given`` = accepted / positions reached, where a position is reached if some node
        there was judged (the chance of going one deeper); ``overall`` = accepted / steps with a draft, as
        vLLM's acceptance per position.
    """
    import pandas as pd

    from specviz.trace import KEYS

    nodes = trace.nodes
    status = nodes["status"]
    nodes = nodes.assign(
        sent=~status.isin(["pruned", "unsent", "cut", "unreviewed"]),
        judged=status.isin(["accepted", "rejected"]),
        accepted=status == "accepted",
    )
    drafts = int((_steps(trace)["sent"] > 0).sum())
    table = nodes.groupby("depth")[["sent", "judged", "accepted"]].sum().reset_index()
    reached = nodes[nodes["judged"]].drop_duplicates([*KEYS, "depth"]).groupby("depth").size()
    table["given"] = table["accepted"] / table["depth"].map(reached)
    table["overall"] = table["accepted"] / drafts if drafts else float("nan")
    return pd.DataFrame(table)


def peak_memory(trace: Trace) -> float:
    """Largest peak of resident bytes of the process over the runs; NaN if it was not measured."""
    found = [(part.run["peak_memory"] or {}).get("process") for part in trace.split()]
    known = [float(value) for value in found if isinstance(value, int | float)]
    return max(known, default=float("nan"))


def exactness(trace: Trace) -> str:
    """The weakest label of the runs: lossy, exact up to ties, exact; empty if a run has none."""
    from specviz.schema import EXACTNESS

    labels = {part.run["exactness"] for part in trace.split()}
    return max(labels, key=EXACTNESS.index) if labels <= set(EXACTNESS) else ""


def _measure(trace: Trace) -> dict[str, Any]:
    return {
        "exactness": exactness(trace),
        "texts": len(trace.texts),
        "output": output(trace),
        "steps": steps(trace),
        "emitted": emitted(trace),
        "drafted": drafted(trace),
        "accepted": accepted(trace),
        "tau": tau(trace),
        "A/D": acceptance_rate(trace),
        "A/O": accepted_share(trace),
        "mean_accepted": mean_accepted(trace),
        "tokens_per_second": tokens_per_second(trace),
        "tokens_per_second_with_prefill": tokens_per_second(trace, prefill=True),
        "seconds": seconds(trace),
        "target_passes": target_passes(trace),
        "draft_passes": draft_passes(trace),
        "fallback_share": fallback_share(trace),
        "rollback_share": rollback_share(trace),
        "peak_memory": peak_memory(trace),
    }


def summary(trace: Trace) -> pd.DataFrame:
    """One row a run: every metric of this module, by its name or the field's (``tau``, ``A/D``, ``A/O``).

    ``tokens_per_second`` leaves the prefill's time out; ``seconds`` has it inside. `peak_memory` is in
    bytes, `seconds` in seconds, the shares are per token of the final texts.
    """
    import pandas as pd

    rows = []
    for part in trace.split():
        rows.append({"run": part.run["run"], "method": part.run["method"], **_measure(part)})
    return pd.DataFrame(rows)


def compare(traces: Mapping[str, Trace], baseline: str) -> pd.DataFrame:
    """The metrics of several traces side by side, with their speedup.

    Parameters
    ----------
    traces : mapping of name to Trace
        A trace of several runs is pooled.
    baseline : str
        The name that the others are compared with; usually autoregressive decoding.

    Returns
    -------
    DataFrame
        One row a name; ``speedup`` = tokens per second / the baseline's, of decoding alone;
        ``speedup_with_prefill`` the same with the prefill's time inside. Both are ratios of totals, not
        means of ratios.

    Raises
    ------
    TraceError
        If there is no such baseline.
    """
    import pandas as pd

    if baseline not in traces:
        raise TraceError(f"no trace is called {baseline!r}; there are {', '.join(map(str, traces))}")
    table = pd.DataFrame([{"name": name, **_measure(trace)} for name, trace in traces.items()])
    base = table[table["name"] == baseline].iloc[0]
    for name, column in (
        ("speedup", "tokens_per_second"),
        ("speedup_with_prefill", "tokens_per_second_with_prefill"),
    ):
        table[name] = table[column] / base[column]
    return table


def recheck(trace: Trace) -> pd.DataFrame:
    """Decide every judged node again from what was recorded.

    The rule follows from the run's metadata: ``rollback`` (method bild: keep y iff -ln p(y) <= the
    rollback threshold, BiLD eq. 3), ``greedy`` (temperature 0: keep the target's first candidate
    after the node's parent; without recorded candidates, rank 0) or ``sampling`` (keep iff
    u < min(1, p/q); q = 1 for a drafter that did not sample; Leviathan et al. 2023, algorithm 1).

    Returns
    -------
    DataFrame
        One row a node that was accepted or rejected: keys of its cycle, ``node``, ``status``, ``rule``,
        ``expected`` (whether the rule keeps it), ``margin`` (how far the decision was from turning:
        threshold minus value; NaN for greedy) and ``agrees``. A decision nearer than float32 rounding
        agrees either way. Nodes whose record lacks a number the rule needs are left out.
    """
    import pandas as pd

    from specviz.trace import KEYS

    tables = [_recheck(part) for part in trace.split()]
    names = [*KEYS, "node", "status", "rule", "expected", "margin", "agrees"]
    return pd.concat(tables, ignore_index=True)[names]


def _recheck(part: Trace) -> pd.DataFrame:
    from specviz.trace import KEYS

    run, keys = part.run, list(KEYS)
    sampling, parameters = run["sampling"] or {}, run["parameters"] or {}
    nodes = part.nodes
    nodes = nodes[nodes["status"].isin(["accepted", "rejected"])].copy()
    if run["method"] == "bild":
        threshold = parameters.get("rollback")
        if not isinstance(threshold, int | float):
            raise TraceError(f"run {run['run']} does not say its rollback threshold")
        rule = "rollback"
        nodes = nodes[nodes["p"].notna()]
        with np.errstate(divide="ignore"):
            distance = -np.log(nodes["p"].to_numpy(np.float64))
        margin = threshold - distance
        expected = margin >= 0
        close = np.isfinite(margin) & (np.abs(margin) <= ROUNDING * (1 + distance))
    elif not sampling.get("temperature"):
        rule = "greedy"
        tops = part.tops("pred")
        first = tops.loc[tops["place"] == 0, [*keys, "node", "token"]]
        first = first.rename(columns={"node": "parent", "token": "first"})
        # A left merge keeps the nodes' order.
        best = nodes.merge(first, how="left", on=[*keys, "parent"])["first"].to_numpy(np.float64)
        known = ~np.isnan(best) | nodes["rank"].notna().to_numpy()
        expected = np.where(np.isnan(best), nodes["rank"] == 0, nodes["token"].to_numpy() == best)[known]
        nodes = nodes[known]
        margin = np.full(len(nodes), np.nan)
        close = np.zeros(len(nodes), bool)
    else:
        rule = "sampling"
        nodes = nodes[nodes["p"].notna() & nodes["u"].notna()]
        p, u = (nodes[name].to_numpy(np.float64) for name in ("p", "u"))
        q = nodes["q"].fillna(1.0).to_numpy(np.float64)
        ratio = np.minimum(1.0, p / q)
        margin = ratio - u
        expected = margin > 0
        close = np.abs(margin) <= ROUNDING
    agrees = (expected == (nodes["status"] == "accepted").to_numpy()) | close
    return nodes.assign(rule=rule, expected=expected, margin=margin, agrees=agrees)
