"""Metrics of the cycles: each metric is one function, and its docstring is its definition.

Counts are pooled over all cycles of the trace (sums first, one division last), not averaged over
prompts. The prefill (cycle 0) is not a step. A metric that the trace cannot give is NaN.

*Accepted* means that the target judged the token and kept it. Tokens that a method emits without verification
(``unreviewed``: BiLD's last block, Algorithm 1, line 2) are drafted and emitted, but neither sent nor
accepted: A/D does not count them, and A/O counts them only in its denominator. (The BiLD paper prints no A/D;
here it rates the target's verdicts on the tokens it was sent, and these were not sent.)

In a stream, every update has an output, which the next one supersedes. "Of the final texts" counts only the
last output; "of the texts" counts all of them, because each was decoded. `specviz.metrics.updates` has the
metrics of streams.

If every step emits a bonus or correction token, and the end of the text cuts nothing:
emitted = accepted + steps, tau = emitted / steps, and A/O = 1 - 1/tau.

`Counts`, which are read from other tools' files, can take the place of a trace in `steps`, `emitted`,
`output`, `sent`, `accepted`, `tau`, `acceptance_rate`, `accepted_share`, `mean_accepted` and `mean_sent`: the
sums are those of the tool, including cut drafts, and unknown values are NaN.

A canvas (diffusion) is written to the end of a block, but its text ends with its first end token. `emitted`,
`accepted` and `tau` count every token that was placed, padding included; metrics of the texts do not.
`specviz.metrics.canvases` has the metrics of canvases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from specviz.errors import TraceError
from specviz.rules import speculative
from specviz.rules.bild import rolls_back
from specviz.rules.cells import COARSE, caches_by_block
from specviz.rules.gap import passes
from specviz.rules.retranslation import biased, keeps
from specviz.schema import ENDS, EXACTNESS, ROLLBACK
from specviz.trace import KEYS, Trace
from specviz.trace.counts import Counts
from specviz.trace.states import Written, written

if TYPE_CHECKING:
    import pandas as pd

ROUNDING = 1e-6  # relative: probabilities are recorded in float32
GRID = COARSE * 1.01  # step of the grid on which logits of canvases are compared, rounded up


def ratio(above: float, below: float) -> float:
    """A quotient; NaN if the divisor is zero."""
    return float(above) / float(below) if below else float("nan")


def _silent(trace: Trace) -> bool:
    """Whether every run recorded its text alone."""
    return all(part.run["record"] is None for part in trace.split())


def unfinished(trace: Trace) -> list[tuple[str, int]]:
    """Run and prompt of each text that did not end: it was interrupted, or cut off by a kill."""
    last = trace.cycles.drop_duplicates(["run", "prompt"], keep="last")
    last = last[~last["end"].isin(ENDS[:-1])]
    return list(zip(last["run"].astype(str).tolist(), last["prompt"].tolist()))


def check_finished(*traces: Trace) -> None:
    """Check that every text ended: a part of a text is not compared with a whole one."""
    for run, prompt in (text for trace in traces for text in unfinished(trace)):
        raise TraceError(
            f"run {run}, prompt {prompt}: the text was cut off before its end, so it cannot be compared: "
            "select the others, or decode it to its end"
        )


def _steps(trace: Trace) -> pd.DataFrame:
    """The cycles after the prefill."""
    cycles = trace.cycles
    return cycles[cycles["cycle"] > 0]


def drafts(trace: Trace) -> pd.DataFrame:
    """The draft of each cycle, as far as the target read it. Lookahead's window is read, but is no draft.

    Returns
    -------
    DataFrame
        One row per cycle: ``run``, ``prompt``, ``update``, ``cycle``; ``drafted``, its candidates, and
        ``depth``, the longest path of them; both 0 without a draft, and NaN in a run that recorded its text
        alone.
    """
    keys, nodes = ["run", "prompt", "update", "cycle"], trace.nodes
    nodes = nodes[~nodes["status"].isin(["below_budget", "unsent", "unreviewed"])]
    by = nodes[nodes["source"] != "window"].groupby(keys, observed=True)["depth"]
    table = trace.cycles[keys].merge(by.agg(drafted="size", depth="max").reset_index(), how="left", on=keys)
    columns = ["drafted", "depth"]
    silent = table["run"].isin([part.run["run"] for part in trace.split() if part.run["record"] is None])
    table[columns] = table[columns].fillna(0).where(~silent)
    return table if silent.any() else table.astype(dict.fromkeys(columns, int))


def _passes(trace: Trace, model: str) -> pd.DataFrame:
    """Passes of a model; a pass shared by several rows of a batch is recorded with each, but counts once."""
    passes = trace.passes
    passes = passes[passes["model"] == model]
    timed = passes["start"].notna()
    twice = passes.duplicated(["run", "start"]) & timed & (passes["rows"] > 1)
    return passes[~twice]


def _streamed(trace: Trace, rows: pd.DataFrame) -> np.ndarray:
    """Which rows (with ``run`` and ``prompt``) belong to a source that arrived in updates; bool [rows]."""
    cycles = trace.cycles
    streams = cycles.loc[cycles["source"].notna(), ["run", "prompt"]].drop_duplicates()
    if not len(streams):
        return np.zeros(len(rows), bool)
    return rows[["run", "prompt"]].merge(streams, how="left", indicator=True)["_merge"].to_numpy() == "both"


def _canvases(trace: Trace, rows: pd.DataFrame) -> np.ndarray:
    """Which rows (with ``run``) belong to a run that wrote canvases; bool [rows]."""
    wrote = [part.run["run"] for part in trace.split() if part.run["canvas"] is not None]
    return rows["run"].isin(wrote).to_numpy()


def _texts(trace: Trace) -> pd.DataFrame:
    """Tokens of the texts; for a stream, those of every update's output."""
    outputs = trace.outputs
    return outputs[outputs["kept"].to_numpy() | _streamed(trace, outputs)]


def steps(trace: Trace | Counts) -> float:
    """Draft-verify cycles, without the prefill."""
    return trace.total("steps") if isinstance(trace, Counts) else len(_steps(trace))


def emitted(trace: Trace | Counts) -> float:
    """Tokens that the cycles emitted, including the bonus token or correction; an end token counts."""
    return trace.total("emitted") if isinstance(trace, Counts) else int(trace.cycles["emitted"].sum())


def output(trace: Trace | Counts) -> float:
    """Tokens of the final texts: emitted, and neither removed by a later cycle's `keep` nor superseded."""
    return trace.total("output") if isinstance(trace, Counts) else int(trace.outputs["kept"].sum())


def drafted(trace: Trace) -> float:
    """Nodes of all drafts (without the root), whether or not they were sent to the target.

    Only recorded nodes count: of the nodes left out when a tree is cut to a size, the record keeps the best
    (`UniSpec`: at most 12 per cycle; ``control_candidates`` in `Trace.cycles` counts all of them).
    """
    return float("nan") if _silent(trace) else int(trace.cycles["drafted"].sum())


def sent(trace: Trace | Counts) -> float:
    """Nodes that the target read: those of all drafts, except unsent and unreviewed ones.

    The root is not counted, so a pass reads one more token. Divided by `steps` it is the mean draft size, at
    most g for a tree that is cut to g nodes. Tokens that are read without being candidates (Lookahead's
    window) count as sent.
    """
    if isinstance(trace, Counts):
        return trace.total("drafted")
    return float("nan") if _silent(trace) else int(trace.cycles["sent"].sum())


def accepted(trace: Trace | Counts) -> float:
    """Draft tokens that the target accepted and that were emitted, without cut and unreviewed ones."""
    if isinstance(trace, Counts):
        return trace.total("accepted")
    return int((trace.outputs["origin"] == "draft").sum())


def tau(trace: Trace | Counts) -> float:
    """tau: tokens emitted per step, with the bonus token or correction; 1.00 for autoregressive decoding.

    Pooled over all steps, as in Spec-Bench and vLLM. A step is a cycle after the prefill, and has one
    pass of the target (none if its tokens are unreviewed). gpt-fast and others exclude the bonus token:
    see `mean_accepted`. For a canvas, tau is tokens placed per pass; stepwise decoding has 1.00.
    """
    return ratio(emitted(trace), steps(trace))


def acceptance_rate(trace: Trace | Counts) -> float:
    """A/D: accepted nodes divided by drafted nodes that were sent to the target.

    Nodes after the first rejection were sent and count. Nodes that the drafter did not send, nodes emitted
    unreviewed, and nodes cut by the end of the text or a limit (their verdict is unknown) do not. NaN without
    drafts.

    For a tree every sent node counts, although only one path can be accepted and at most one of several
    siblings. A/D then shows how much of the verified tree was wasted, not how good the drafter is. It falls
    as the tree grows while tau rises, so compare it only between drafts of the same size.
    """
    if isinstance(trace, Counts):
        return ratio(trace.total("accepted"), trace.total("drafted"))
    cycles = trace.cycles
    return ratio(cycles["accepted"].sum(), (cycles["sent"] - cycles["cut"]).sum())


def accepted_share(trace: Trace | Counts) -> float:
    """A/O: accepted draft tokens divided by tokens of the texts.

    The share that came from drafts and was verified by the target; unreviewed tokens count only in the
    denominator. In a stream, continuous decoding carries its draft from output to output without
    verification; there A/O is the share that was kept, as in `specviz.metrics.by_stream`.
    """
    if isinstance(trace, Counts):
        return ratio(trace.total("accepted"), trace.total("output"))
    outputs = _texts(trace)
    carried = (outputs["origin"] == "unreviewed") & _streamed(trace, outputs)
    return ratio(((outputs["origin"] == "draft") | carried).sum(), len(outputs))


def mean_accepted(trace: Trace | Counts) -> float:
    """Mean number of draft tokens accepted per step, without the bonus token: tau - 1 if nothing is cut.

    For a tree it is the mean length of the accepted path. It is CM-ASD's Tok as defined in the text of Table
    III; the table gives autoregressive decoding 1.00, which only `tau` does.
    """
    return ratio(accepted(trace), steps(trace))


def mean_drafted(trace: Trace) -> float:
    """Nodes drafted per step, whether or not they were sent (`drafted`): the cost of a look-ahead window."""
    return ratio(drafted(trace), steps(trace))


def mean_sent(trace: Trace | Counts) -> float:
    """Nodes sent to the target per step (`sent`); CM-ASD's mean k_j, if the end of the text cut no node."""
    return ratio(sent(trace), steps(trace))


def draft_time(trace: Trace) -> float:
    """Mean seconds of drafting per step; times 1000 it is t_d of CM-ASD's Table III.

    This includes tokens that were drafted and not sent. Steps without a recorded time do not count.
    """
    return float(_steps(trace)["draft_time"].mean())


def target_share(trace: Trace) -> float:
    """Share of the texts' tokens that the target wrote itself: the large model's engagement (BiLD, Figure 9).

    Bonus, correction, resampled, fallback and plain tokens over all tokens of the texts. The rest came from
    drafts: accepted (`accepted_share`) or unreviewed.
    """
    outputs = _texts(trace)
    return ratio((~outputs["origin"].isin(["draft", "unreviewed"])).sum(), len(outputs))


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

    It is the union of the cycles' intervals, so that rows of a batch that ran at once count once: for a whole
    trace, the batch's time; for one prompt of it (`Trace.select`), the time in which its row was decoded.
    Recording and anything else between cycles is excluded. NaN if no cycle has a time.

    Parameters
    ----------
    prefill : bool
        Whether cycle 0 counts.
    """
    cycles = trace.cycles if prefill else _steps(trace)
    if len(cycles) and cycles["duration"].isna().all():
        return float("nan")
    total = 0.0
    for _, run in cycles.groupby("run", observed=True, sort=False):
        timed = run["start"].notna() & run["duration"].notna()
        total += float(run["duration"][~timed].sum())
        if not timed.any():
            continue
        order = np.argsort(run["start"][timed].to_numpy(), kind="stable")
        start = run["start"][timed].to_numpy()[order]
        end = start + run["duration"][timed].to_numpy()[order]
        reached = np.concatenate([[-np.inf], np.maximum.accumulate(end)[:-1]])
        total += float(np.maximum(0, end - np.maximum(start, reached)).sum())
    return total


def tokens_per_second(trace: Trace, prefill: bool = False) -> float:
    """Tokens of the texts per second of decoding.

    Parameters
    ----------
    prefill : bool
        Whether to include the prefill's time, as in Spec-Bench; called "tokens/s with prefill" everywhere.
    """
    return ratio(len(_texts(trace)), seconds(trace, prefill))


PER = ("token", "cycle")


def fallback_share(trace: Trace, per: str = "token") -> float:
    """Fallbacks per generated token, as in BiLD's Table 4.

    A fallback is a cycle in which drafting stopped to hand over to the target: the drafter was uncertain
    (``fallback``) or had reached its maximum length (``length``). A block emitted unreviewed is not handed
    over. The paper names no denominator; ours is the tokens of the texts.

    Parameters
    ----------
    trace : Trace
    per : {"token", "cycle"}
        The other reading divides by the steps, each of which hands over once: the share that were fallbacks.

    Raises
    ------
    TraceError
        If `per` is invalid.
    """
    if _silent(trace):
        return float("nan")
    cycles = _steps(trace)
    handed = cycles["stop"].isin(["fallback", "length"]) & (cycles["unreviewed"] == 0)
    return ratio(handed.sum(), _below(trace, per))


def rollback_share(trace: Trace, per: str = "token") -> float:
    """Rollbacks per generated token, as in BiLD's Table 4 (for exact methods: rejections).

    A rollback is a cycle in which the target rejected a node and so dropped it with everything after it. For
    a tree it is a cycle in which the target left the drafted tree before a leaf. The paper names no
    denominator; ours is the tokens of the texts.

    Parameters
    ----------
    trace : Trace
    per : {"token", "cycle"}
        The other reading divides by the steps: the share of cycles with a rollback, which may be what CM-ASD
        means by "frequency of rollbacks".

    Raises
    ------
    TraceError
        If `per` is invalid.
    """
    return float("nan") if _silent(trace) else ratio(len(_rejections(trace)), _below(trace, per))


def _below(trace: Trace, per: str) -> float:
    if per not in PER:
        raise TraceError(f"per must be one of {', '.join(PER)}, not {per!r}")
    return len(_texts(trace)) if per == "token" else steps(trace)


def _rejections(trace: Trace) -> pd.DataFrame:
    """Cycles in which judging ended at a node all of whose judged children were rejected."""
    keys = [*KEYS, "parent"]
    nodes = trace.nodes
    taken = nodes.loc[nodes["status"].isin(["accepted", "cut"]), keys].drop_duplicates()
    refused = nodes.loc[nodes["status"] == "rejected", keys].drop_duplicates()
    both = refused.merge(taken, how="left", on=keys, indicator=True)
    return both[both["_merge"] == "left_only"][list(KEYS)].drop_duplicates()


def mean_layers(trace: Trace) -> float:
    """Mean number of the target's layers that a token ran through, for methods with early exit.

    NaN if no pass could exit early (only `calm` records how far each went).
    """
    layers = _layers(trace)
    return float(layers.mean()) if len(layers) else float("nan")


def by_layer(trace: Trace) -> pd.DataFrame:
    """How many tokens left the target after each of its layers; for methods with early exit.

    Returns
    -------
    DataFrame
        One row per layer, from the first to the deepest that a token reached: ``tokens``, and their
        ``share``. The row of the target's last layer has the tokens that did not exit early.

    Raises
    ------
    TraceError
        If no pass of the trace could exit early.
    """
    import pandas as pd

    layers = _layers(trace)
    if not len(layers):
        raise TraceError("no pass of this trace could exit early: calm records the exit layer of each pass")
    tokens = np.bincount(layers)[1:]
    index = pd.RangeIndex(1, len(tokens) + 1, name="layer")
    return pd.DataFrame({"tokens": tokens, "share": tokens / tokens.sum()}, index=index)


def _layers(trace: Trace) -> np.ndarray:
    """Layers that each token went through, in order; empty if no pass could exit early."""
    cycles = _steps(trace)
    if "control_layers" not in cycles:
        return np.zeros(0, np.int64)
    return cycles["control_layers"].dropna().to_numpy(np.int64)


def by_depth(trace: Trace) -> pd.DataFrame:
    """Acceptance by depth in the draft; the first level is depth 1.

    A chain has one node at each depth. A tree has several, of which at most one is accepted, so shares of
    nodes and shares of cycles differ.

    Returns
    -------
    DataFrame
        Counts of nodes by ``depth``: ``sent`` (neither cut nor unreviewed), ``judged`` (accepted or rejected;
        in a tree, the children of the path's nodes), ``accepted``.
        Shares: ``rate`` = accepted / judged; ``given`` = accepted / cycles in which some node at that depth
        was judged (the chance of going one deeper; in a chain the same as ``rate``); ``overall`` = accepted /
        steps with a draft, as in vLLM's acceptance per position. Lookahead's window is sent, but is no draft.
    """
    import pandas as pd

    nodes = trace.nodes
    status = nodes["status"]
    nodes = nodes.assign(
        sent=~status.isin(["below_budget", "unsent", "cut", "unreviewed"]),
        judged=status.isin(["accepted", "rejected"]),
        accepted=status == "accepted",
    )
    draft = (nodes["sent"] | (status == "cut")) & (nodes["source"] != "window")
    drafts = len(nodes[draft].drop_duplicates([*KEYS]))
    table = nodes.groupby("depth")[["sent", "judged", "accepted"]].sum().reset_index()
    reached = nodes[nodes["judged"]].drop_duplicates([*KEYS, "depth"]).groupby("depth").size()
    table["rate"] = table["accepted"] / table["judged"].where(table["judged"] > 0)
    table["given"] = table["accepted"] / table["depth"].map(reached)
    table["overall"] = table["accepted"] / drafts if drafts else float("nan")
    return pd.DataFrame(table)


def on_text(trace: Trace) -> np.ndarray:
    """Whether each drafted node and all its ancestors are in the final text (for a stream, in its update's
    text).

    This also covers nodes that were never judged or sent, so nodes excluded by a budget or a threshold can be
    rated too. In a greedy run these are the nodes that the target would have accepted; a sampled text is one
    of many. Siblings with the same token are all right, though only one of them can be accepted. A node of a
    canvas is right if its cell received its token, in whatever order, which is more than SSD accepts.

    Returns
    -------
    array of float, one entry for each row of ``trace.nodes``
        1, 0, or NaN if the text ended before the node's position.
    """
    nodes, keys, text = trace.nodes, [*KEYS], ["run", "prompt", "update"]
    kept = _texts(trace)[[*text, "position", "token"]]
    begin = nodes[keys].merge(trace.cycles[[*keys, "keep"]], how="left", on=keys)["keep"]
    depth = nodes["depth"].to_numpy()
    cells = _canvases(trace, nodes)
    place = nodes[text].assign(position=np.where(cells, nodes["position"], begin.to_numpy() + depth - 1))
    text_token = place.merge(kept, how="left", on=[*text, "position"])["token"].to_numpy(np.float64)
    right = np.where(np.isnan(text_token), np.nan, text_token == nodes["token"].to_numpy())
    first = np.arange(len(nodes)) - nodes["node"].to_numpy()
    above = first + nodes["parent"].to_numpy()
    for level in range(2, int(depth.max(initial=0)) + 1):
        at = np.flatnonzero(depth == level)
        # All descendants of a wrong node are wrong, even beyond the end of the text.
        right[at] = np.where(right[above[at]] == 0, 0.0, right[at])
    return right


READINGS = ("judged", "text")


def by_score(trace: Trace, bins: int = 10, reading: str = "judged") -> pd.DataFrame:
    """Acceptance by the score that the method gave a node, as in UniSpec's Figure 3.

    Covers nodes sent to the target, in `bins` equal intervals of the score from 0 to 1. The paper does not
    say which nodes its rate is a share of; there are two readings. ``judged``: accepted nodes over judged
    ones (accepted or rejected). Nodes off the path, decided by their siblings or parents, do not count, which
    flatters low scores. ``text``: nodes that are in the final text (`on_text`) over all nodes that were sent;
    those off the path are misses.

    Parameters
    ----------
    trace : Trace
    bins : int
    reading : {"judged", "text"}

    Returns
    -------
    DataFrame
        One row for each source, and ``all``, and each bin that has nodes: ``source``, ``low``, ``high``;
        ``sent`` nodes; ``share``, their part of the source's nodes (Figure 3's sample density);
        ``counted`` nodes; ``right`` ones; ``rate`` = right / counted with its 95 % Wilson interval
        ``rate_lo``, ``rate_hi``.

    Raises
    ------
    TraceError
        If `reading` or `bins` is invalid, or a run wrote canvases.
    """
    import pandas as pd

    if reading not in READINGS or bins < 1:
        raise TraceError(f"reading must be one of {', '.join(READINGS)}, and bins at least 1")
    if any(part.run.get("canvas") is not None for part in trace.split()):
        raise TraceError(
            "the scores of a canvas' drafts are log-odds, not shares: use reliability for their confidence"
        )
    nodes = _rated(trace, reading)
    nodes = nodes[nodes["score"].notna()]
    nodes = nodes.assign(bin=np.clip((nodes["score"] * bins).astype(int), 0, bins - 1))
    table = _rates(pd.concat([nodes, nodes.assign(source="all")]), ["source", "bin"])
    whole = table.groupby("source", observed=True)["sent"].transform("sum")
    table.insert(1, "low", table["bin"] / bins)
    table.insert(2, "high", (table.pop("bin") + 1) / bins)
    table.insert(4, "share", table["sent"] / whole)
    return table


def by_source(trace: Trace) -> pd.DataFrame:
    """How often sent nodes are right, by source and depth: the share in the final text (`on_text`).

    Returns
    -------
    DataFrame
        ``source``, ``depth``; ``sent`` nodes, ``counted``, ``right``, ``rate``, ``rate_lo``, ``rate_hi`` as
        in `by_score`.

    Raises
    ------
    TraceError
        If a run wrote canvases.
    """
    return _rates(_rated(trace, "text"), ["source", "depth"])


def _rated(trace: Trace, reading: str) -> pd.DataFrame:
    """Sent nodes with a column ``right``, NaN for those that do not count."""
    if reading == "text" and any(part.run.get("canvas") is not None for part in trace.split()):
        raise TraceError("drafts of a canvas are judged at their state, not against the text: use by_depth")
    nodes = trace.nodes
    status = nodes["status"]
    if reading == "judged":
        right = np.where(status == "accepted", 1.0, np.where(status == "rejected", 0.0, np.nan))
    else:
        right = on_text(trace)
    return nodes.assign(right=right)[~status.isin(["below_budget", "unsent", "cut", "unreviewed"])]


def _rates(nodes: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Counts and shares of `right` in groups, with Wilson's interval."""
    groups = nodes.groupby(by, observed=True)["right"]
    table = groups.agg(sent="size", counted="count", right="sum").reset_index()
    table["right"] = table["right"].astype(int)
    n, z = table["counted"].where(table["counted"] > 0).astype(float), 1.959964
    rate = table["right"] / n
    middle = (rate + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(rate * (1 - rate) / n + z**2 / (4 * n**2))
    table["rate"] = rate
    table["rate_lo"], table["rate_hi"] = (middle - half).clip(0, 1), (middle + half).clip(0, 1)
    return table


def by_prompt(trace: Trace) -> pd.DataFrame:
    """Steps, tokens and tau of every text, in the order they were decoded.

    A method's memory grows from text to text, so this also shows how it warms up.

    Returns
    -------
    DataFrame
        ``run``, ``prompt``, ``kind``, ``language``, ``steps``, ``emitted``, ``sent``, ``tau``; ``sent`` is
        NaN where only the text was recorded.
    """
    keys = ["run", "prompt"]
    groups = _steps(trace).groupby(keys, observed=True, sort=False)
    table = groups.agg(steps=("cycle", "size"), emitted=("emitted", "sum"), sent=("sent", "sum"))
    table = trace.prompts[[*keys, "kind", "language"]].merge(table.reset_index(), on=keys, how="inner")
    silent = [part.run["run"] for part in trace.split() if part.run["record"] is None]
    sent = table["sent"].where(~table["run"].isin(silent))
    return table.assign(tau=table["emitted"] / table["steps"], sent=sent)


def learnt(trace: Trace) -> pd.DataFrame:
    """How full a method's store of successors is, cycle by cycle.

    For methods that store the successors of every token that the target reads (UniSpec, Algorithm 1, lines
    41-44; Token Recycling): those of the root and of each sent node, but not of end tokens, and not in the
    cycle in which a text ends.
    Counted from the record, which holds the tokens that were read.

    Returns
    -------
    DataFrame
        One row per cycle after the prefill: ``run``, ``prompt``, ``cycle``; ``tokens`` whose successors this
        run has learnt so far (all that are known if the run began cold; with ``keep="prompt"``, since the
        prompt began); ``new`` ones of this cycle; ``root_known``, whether the root was among them before.

    Raises
    ------
    TraceError
        If a run's method has no memory or stores no successors, if its prompts are not in the trace, or if
        earlier prompts that the store learnt from were left out.
    """
    import pandas as pd

    tables = []
    for part in trace.split():
        run, keys = part.run, list(KEYS)
        about = (run["memory"] or {}).get("start")
        if about is None or _silent(part):
            raise TraceError(f"{run['method']} has no memory, or only the text was recorded")
        cycles = _steps(part).reset_index(drop=True)
        prompts = [(prompt.get("tokens") or [None])[-1] for prompt in run["prompts"]]
        # A turn that found no room in its conversation has no tokens, and no cycles.
        decoded = set(cycles["prompt"].tolist())
        if any(prompts[number] is None for number in decoded):
            raise TraceError("the trace holds no prompts (it was redacted), so their last tokens are unknown")
        if about.get("keep") == "run" and set(range(max(decoded, default=0))) - set(part.prompts["prompt"]):
            raise TraceError("the store learnt from prompts that are not in this trace: pass the whole run")
        # A cycle's root is the last token before it: the prompt's, or the last one emitted.
        last = part.outputs.groupby(keys, observed=True)["token"].last()
        last = cycles[keys].merge(last.reset_index(), how="left", on=keys)["token"]
        first = ~cycles["prompt"].duplicated()
        roots = np.where(first, [prompts[number] for number in cycles["prompt"]], last.shift())
        nodes = part.nodes
        if not nodes["source"].isin(["store", "neighbour"]).all():
            raise TraceError(f"{run['method']} keeps no successors for each token it reads")
        nodes = nodes[~nodes["status"].isin(["below_budget", "unsent", "unreviewed"])]
        number = nodes[keys].merge(cycles[keys].assign(index=np.arange(len(cycles))), how="left", on=keys)
        words = np.concatenate([roots.astype(np.int64), nodes["token"].to_numpy(np.int64)])
        when = np.concatenate([np.arange(len(cycles)), number["index"].to_numpy(np.int64)])
        era = cycles["prompt"].to_numpy() if about.get("keep") == "prompt" else np.zeros(len(cycles), int)
        seen = pd.DataFrame({"era": era[when], "word": words, "when": when})
        seen = seen[~seen["word"].isin(run["eos"] or ())]  # nothing may follow an end token
        read_before_end = seen[cycles["end"].isna().to_numpy()[seen["when"]]].sort_values(
            "when", kind="stable"
        )
        fresh = read_before_end.drop_duplicates(["era", "word"])
        new = np.bincount(fresh["when"], minlength=len(cycles))
        table = cycles[["run", "prompt", "cycle"]].assign(new=new)
        table["tokens"] = table.groupby(era)["new"].cumsum()
        since = fresh.set_index(["era", "word"])["when"]
        first_seen = since.reindex(pd.MultiIndex.from_arrays([era, roots.astype(np.int64)])).to_numpy()
        table["root_known"] = first_seen < np.arange(len(cycles))
        tables.append(table[["run", "prompt", "cycle", "tokens", "new", "root_known"]])
    return pd.concat(tables, ignore_index=True)


def peak_memory(trace: Trace) -> float:
    """Largest peak of resident bytes over the runs; NaN if it was not measured.

    It is the peak of the process up to the run's end, earlier runs in it included: measure runs to compare in
    processes of their own.
    """
    recorded = [(part.run["peak_memory"] or {}).get("process") for part in trace.split()]
    values = [float(value) for value in recorded if isinstance(value, int | float)]
    return max(values, default=float("nan"))


def exactness(trace: Trace) -> str:
    """The weakest label of the runs in `schema.EXACTNESS`; empty if a run has none."""
    labels = {part.run["exactness"] for part in trace.split()}
    return max(labels, key=EXACTNESS.index) if labels <= set(EXACTNESS) else ""


def recheck(trace: Trace) -> pd.DataFrame:
    """Recompute the decision on every judged node from the record.

    The rule follows from the run's metadata: ``rollback`` (methods bild and early_exit: keep y iff
    -ln p(y) <= the rollback threshold, BiLD eq. 3), ``greedy`` (temperature 0: keep the target's first
    candidate after the node's parent; without recorded candidates, rank 0), ``biased`` (method retranslate
    with a bias: keep y iff it is that candidate or (1 - β) max p ≤ (1 - β) p(y) + β, equation 3 of Zeng et
    al.), ``gap`` (nodes with a threshold: keep y iff its gap is at most that and fewer than ``top_beta``
    tokens are likelier; specdec, cm_asd), ``surest`` (a canvas: keep y iff its cell is the surest masked one
    of the current block, the leftmost of equals, and y is that cell's likeliest token),
    ``oracle`` (method oracle: keep y iff p(y) is at least ``least``) or ``sampling`` (keep iff
    u < min(1, p/q); q = 1 for a drafter that did not sample; Leviathan et al. 2023, algorithm 1).

    Returns
    -------
    DataFrame
        One row per node that was accepted or rejected: keys of its cycle, ``node``, ``status``, ``rule``,
        ``expected`` (whether the rule keeps it), ``margin`` (how far the decision was from flipping:
        threshold minus value; for canvases, log-odds of its cell minus those of the surest other one; NaN for
        greedy) and ``agrees``. A decision within float32 rounding agrees either way. Nodes whose record
        lacks a number that the rule needs are left out, and those of Fast-dLLM's dual cache.
    """
    import pandas as pd

    tables = [_recheck(part) for part in trace.split()]
    names = [*KEYS, "node", "status", "rule", "expected", "margin", "agrees"]
    return pd.concat(tables, ignore_index=True)[names]


class _Decisions(NamedTuple):
    """Recomputed decisions on judged nodes: rule, whether kept, margin, whether it is within rounding."""

    rule: str
    nodes: pd.DataFrame
    expected: np.ndarray
    margin: np.ndarray
    close: np.ndarray


def _recheck(part: Trace) -> pd.DataFrame:
    run, nodes, parameters = part.run, part.nodes, part.run["parameters"] or {}
    nodes = nodes[nodes["status"].isin(["accepted", "rejected"])].copy()
    if run.get("canvas") is not None:
        again = _Decisions("surest", *_surest(part, nodes))
    elif run["method"] in ROLLBACK:
        again = _by_rollback(run["run"], nodes, parameters.get("rollback"))
    elif run["method"] == "oracle":
        nodes, (p,) = _recorded(nodes, "p")
        margin = p - parameters.get("least", np.nan)
        again = _Decisions("oracle", nodes, margin >= 0, margin, np.abs(margin) <= ROUNDING)
    elif nodes["threshold"].notna().any():
        again = _by_gap(nodes, parameters.get("top_beta", np.inf))
    elif not (run["sampling"] or {}).get("temperature"):
        again = _by_first_choice(part, nodes, parameters)
    else:
        nodes, (p, u) = _recorded(nodes, "p", "u")
        q = nodes["q"].fillna(1.0).to_numpy(np.float64)
        margin = np.minimum(1.0, p / q) - u
        again = _Decisions(
            "sampling", nodes, speculative.accepts(p, q, u), margin, np.abs(margin) <= ROUNDING
        )
    rule, nodes, expected, margin, close = again
    agrees = (expected == (nodes["status"] == "accepted").to_numpy()) | close
    return nodes.assign(rule=rule, expected=expected, margin=margin, agrees=agrees)


def _recorded(nodes: pd.DataFrame, *names: str) -> tuple[pd.DataFrame, np.ndarray]:
    """The nodes for which all `names` were recorded, and those numbers: float64 [names, nodes]."""
    nodes = nodes[nodes[list(names)].notna().all(axis=1)]
    return nodes, nodes[list(names)].to_numpy(np.float64).T


def _by_rollback(run: str, nodes: pd.DataFrame, threshold: float | None) -> _Decisions:
    """BiLD, equation 3."""
    if not isinstance(threshold, int | float):
        raise TraceError(f"run {run} does not say its rollback threshold")
    nodes, (p,) = _recorded(nodes, "p")
    with np.errstate(divide="ignore"):
        distance = -np.log(p)
    margin = threshold - distance
    close = np.isfinite(margin) & (np.abs(margin) <= ROUNDING * (1 + distance))
    return _Decisions("rollback", nodes, ~rolls_back(distance, threshold), margin, close)


def _by_gap(nodes: pd.DataFrame, top_beta: float) -> _Decisions:
    """The gap that each node was allowed, and its rank."""
    nodes, (threshold, gap, rank) = _recorded(nodes, "threshold", "gap", "rank")
    margin = threshold - gap
    # a gap of exactly 0 is not a matter of rounding
    close = (rank < top_beta) & (np.abs(margin) <= ROUNDING * (1 + gap)) & (gap > 0)
    return _Decisions("gap", nodes, passes(gap, rank, threshold, top_beta), margin, close)


def _by_first_choice(part: Trace, nodes: pd.DataFrame, parameters: Mapping[str, float]) -> _Decisions:
    """The target's first candidate; for a biased re-translation, also what the bias lets through."""
    tops = part.tops("pred")
    first = tops.loc[tops["place"] == 0, [*KEYS, "node", "token", "p"]]
    first = first.rename(columns={"node": "parent", "token": "first", "p": "most"})
    # A left merge keeps the nodes' order.
    merged = nodes.drop(columns="p").merge(first, how="left", on=[*KEYS, "parent"])
    best = merged["first"].to_numpy(np.float64)
    decidable = ~np.isnan(best) | nodes["rank"].notna().to_numpy()
    expected = np.where(np.isnan(best), nodes["rank"] == 0, nodes["token"].to_numpy() == best)[decidable]
    nodes, most = nodes[decidable], merged["most"].to_numpy(np.float64)[decidable]
    beta = parameters.get("beta")
    if part.run["method"] != "retranslate" or not beta:
        return _Decisions("greedy", nodes, expected, np.full(len(nodes), np.nan), np.zeros(len(nodes), bool))
    own = nodes["p"].to_numpy(np.float64)
    margin = biased(own, beta) - (1 - beta) * most
    return _Decisions("biased", nodes, expected | keeps(most, own, beta), margin, np.abs(margin) <= ROUNDING)


def _surest(part: Trace, nodes: pd.DataFrame) -> tuple[pd.DataFrame, np.ndarray, np.ndarray, np.ndarray]:
    """Recomputed decisions on canvases: the decidable nodes, whether kept, margin, whether close."""
    decisions: dict[tuple[int, int, int], tuple[bool, float, bool] | None] = {}
    wide = part.run["dtype"] == "float64"  # then numbers equal in the record (float32) may have differed
    for text in [] if caches_by_block(part.run["canvas"]) else written(part):
        for each in text.passes:
            states = dict(zip([-1, *each.path], range(each.start, each.start + len(each.path) + 1)))
            for node, status in enumerate(each.status):
                state = states.get(int(each.parent[node]))
                if status in ("accepted", "rejected") and state in text.readings:
                    place = int(each.cell[node]), int(each.token[node])
                    decisions[text.prompt, each.cycle, node] = _decided(text, state, *place, wide)
    keys = zip(*(nodes[name].tolist() for name in ("prompt", "cycle", "node")))
    again = [decisions.get(key) for key in keys]
    decided = np.array([each is not None for each in again], bool)
    rows = [each for each in again if each is not None]
    kept, margin, close = (
        np.array([row[i] for row in rows], kind) for i, kind in enumerate((bool, float, bool))
    )
    return nodes[decided], kept, margin, close


def _decided(text: Written, state: int, cell: int, token: int, wide: bool) -> tuple[bool, float, bool] | None:
    """Whether a state places this token in this cell; the margin; whether that is within rounding."""
    reading = text.readings[state]
    work = np.flatnonzero(reading.cell // text.block == text.work(state))
    at = np.flatnonzero(reading.cell[work] == cell)
    if not len(at):
        return False, np.nan, False
    odds, mine = reading.rank[work], int(at[0])
    margin = float(odds[mine] - np.delete(odds, mine).max(initial=-np.inf))
    p, top = reading.p[work[mine]], reading.top[work[mine]]
    if top[0] < 0:  # no candidates were recorded
        return None
    surest, first = int(odds.argmax()) == mine, token == int(top[0])
    cells = (wide or margin != 0) and abs(margin) <= ROUNDING * (1 + abs(odds[mine]))
    # Logits are compared on a grid: of two tokens closer than its step, the lower id was taken.
    own, best = p[top == token].max(initial=0.0), p[0]
    tokens = own > 0 and float(np.log(best / own)) <= GRID and len(top) > 1 and p[1] >= best * np.exp(-GRID)
    close = (cells and (first or tokens)) or (tokens and (surest or cells))
    return surest and first, margin, bool(close)


def batch_rows(trace: Trace) -> int:
    """How many texts were decoded at once: rows of a batch share the start of their cycles."""
    begun = trace.cycles["start"].notna()
    sharing = trace.cycles[begun].groupby(["run", "start"], observed=True).size()
    return int(sharing.max()) if len(sharing) else 1  # fewer towards the end, as texts end


def conditions(run: Trace) -> dict[str, str]:
    """Conditions that must agree before the times of two runs may be compared, by their name in messages."""
    facts = run.run
    machine, backend = facts["machine"] or {}, facts["backend"] or {}
    return {
        "machines": f"{machine.get('processor')}, {machine.get('device')}",
        "numbers of threads": str(facts["threads"]),
        "number formats": str(facts["dtype"]),
        "kernels": f"{backend.get('kernels')}, invariant {backend.get('invariant')}",
        "batches": str(batch_rows(run)),
        "clocks": str(facts["timing"]),
    }
