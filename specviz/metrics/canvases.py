"""Metrics of canvas decoding: passes saved, the limit of self-drafting, why chains fail.

For runs of diffusion language models (`stepwise`, `ssd` and the lossy samplers). The paper is Gao et al. 2025
("Self Speculative Decoding for Diffusion Large Language Models"): Table 1 (step reduction, TPS), section 5.1
with Table 2 (limits), Figure 4 (failures).

Decoding stops with the first complete block that holds an end token. The tokens after the end token in that
block were placed and cost passes, but are not part of the text: `emitted` and `tau` count them, `output` and
tokens per second do not.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from specviz.errors import ParameterError, TraceError
from specviz.metrics.cycles import _texts, check_finished, ratio, seconds
from specviz.metrics.interval import Estimate, pooled
from specviz.trace import Reading, Trace, Written, written
from specviz.trace.states import check_states

if TYPE_CHECKING:
    import pandas as pd

CAUSES = ("none", "short", "order", "token", "border")


def by_canvas(trace: Trace, stepwise: Trace | None = None) -> pd.DataFrame:
    """Passes and tokens of every canvas, in the order of runs and prompts.

    Parameters
    ----------
    trace : Trace
    stepwise : Trace, optional
        A run of stepwise decoding over the same prompts.

    Returns
    -------
    DataFrame
        ``run``, ``prompt``; ``placed`` tokens; ``valid`` ones, up to but not including the first end token
        (or the first masked cell, if the run was cut off);
        ``passes``; ``reduction`` = 1 - passes / placed, the step reduction (stepwise decoding places one
        token per pass). With `stepwise`, also ``stepwise``, the passes of that run, and ``saved`` = 1 -
        passes / stepwise. The two differ if a lossy method writes a text of another length.

    Raises
    ------
    TraceError
        If a run wrote no canvas, or `stepwise` is not one comparable stepwise run, lacks a prompt, or one of
        the two was cut off before a text's end.
    """
    import pandas as pd

    ends = {part.run["run"]: part.run["eos"] or [] for part in trace.split()}
    rows = []
    for each in written(trace):
        order = np.argsort(each.cell)
        text = each.token[order][np.minimum.accumulate(each.cell[order] == np.arange(len(each)))]
        stop = np.flatnonzero(np.isin(text, ends[each.run]))
        valid = int(stop[0]) if len(stop) else len(text)
        rows.append((each.run, each.prompt, len(each), valid, len(each.passes)))
    table = pd.DataFrame(rows, columns=["run", "prompt", "placed", "valid", "passes"])
    table["reduction"] = 1 - table["passes"] / table["placed"]
    if stepwise is None:
        return table
    if {part.run["method"] for part in stepwise.split()} != {"stepwise"}:
        raise TraceError("passes are compared with a trace of stepwise decoding")
    if len(stepwise.split()) > 1 or any(policy(part) != policy(stepwise) for part in trace.split()):
        raise TraceError(
            "passes are compared with one run of stepwise decoding under the same length, block and cache"
        )
    base = {each.prompt: len(each.passes) for each in written(stepwise)}
    if lost := sorted(set(table["prompt"]) - set(base)):
        raise TraceError(f"the stepwise trace has no prompt {lost[0]}")
    check_finished(trace, stepwise)
    table["stepwise"] = table["prompt"].map(base)
    table["saved"] = 1 - table["passes"] / table["stepwise"]
    return table


def compare_canvases(traces: Mapping[str, Trace], base: Trace) -> pd.DataFrame:
    """Which texts of each run equal a base run's, and the passes saved: the two questions of section 4.

    The runs may differ in their cache or tie rule; the table shows whether that changes a text.

    Parameters
    ----------
    traces : mapping of name to Trace
        One run each, of the same prompts as `base`.
    base : Trace
        The run that the others are compared with, usually one of stepwise decoding.

    Returns
    -------
    DataFrame
        One row per run, by its name: ``same_order``, texts whose cells were filled with the same tokens in
        the same order; ``same_text``, texts that read the same; ``passes``, of all texts; ``saved``, as in
        `step_reduction`; ``exactness``, as the method claims it.

    Raises
    ------
    TraceError
        If a run wrote no canvas, its prompts are not those of `base`, or one was cut off before a text's end.
    """
    import pandas as pd

    check_finished(base, *traces.values())
    own = _filled(base)
    rows = {}
    for name, trace in traces.items():
        other = _filled(trace)
        if other.keys() != own.keys():
            raise TraceError(f"{name} wrote other prompts than the run it is compared with")
        rows[name] = {
            "same_order": sum(other[prompt] == own[prompt] for prompt in own),
            "same_text": sum(a == b for a, b in zip(trace.texts, base.texts)),
            "passes": int(by_canvas(trace)["passes"].sum()),
            "saved": step_reduction(trace).median,
            "exactness": trace.run["exactness"],
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def _filled(trace: Trace) -> dict[int, list[tuple[int, int]]]:
    """Cell and token of each placement, in order, by prompt."""
    return {each.prompt: list(zip(each.cell.tolist(), each.token.tolist())) for each in written(trace)}


def policy(run: Trace) -> tuple[Hashable, ...]:
    """Settings that two comparable runs share: how their canvases were opened, and where a text ends."""
    about, own = run.run["canvas"], run.run["parameters"]
    cached = (about["refresh"], about.get("cache_rule")) if about["cache"] != "none" else None
    return about["length"], about["block"], about["cache"], cached, own.get("whole"), own.get("sure")


def step_reduction(trace: Trace, stepwise: Trace | None = None) -> Estimate:
    """Share of stepwise decoding's passes that was saved (Step in Table 1), pooled over texts.

    1 - passes / tokens placed; with `stepwise`, 1 - passes / the passes of that trace, prompt by prompt.
    Tau is tokens per pass, 1 / (1 - reduction). 95 % bootstrap interval over texts.

    Parameters
    ----------
    trace : Trace
    stepwise : Trace, optional
        As in `by_canvas`, which has the values of each text.
    """
    table = by_canvas(trace, stepwise)
    below = table["placed" if stepwise is None else "stepwise"].to_numpy()
    return pooled(below - table["passes"].to_numpy(), below)


def valid_tokens_per_second(trace: Trace) -> float:
    """The paper's TPS: tokens up to but not including the first end token, per second of decoding.

    Opening the canvas and the first pass, which reads the prompt, are included: section 4.1 excludes nothing.
    """
    ends = {part.run["run"]: part.run["eos"] or [] for part in trace.split()}
    by_canvas(trace)  # raises if a run wrote no canvas
    texts = _texts(trace)
    last = sum(int(own["token"].isin(ends[run]).sum()) for run, own in texts.groupby("run", observed=True))
    return ratio(len(texts) - last, seconds(trace))


def acceptance_limit(
    stepwise: Trace, lengths: Sequence[int] = (3, 4, 5), top: Sequence[int] = (1, 2, 3, 4, 5)
) -> pd.DataFrame:
    """How many passes self-drafting could save at most (section 5.1, Table 2), from stepwise passes.

    The paper describes the count in three sentences, which are read as follows. The passes of a text are cut
    into rounds of N + 1; the last round may be shorter. The draft of a round is its first pass's prediction
    for every cell that it read. That pass places one token itself. The token of each other step is *matched*
    if it is among the draft's `k` likeliest for its cell, wherever it comes in the order, and its pass would
    then have been saved. ``reduction`` = matched / steps, at most N / (N + 1).

    A method that verifies could not continue after a token that it had not drafted. In the other reading
    (``restarted``) a round ends at the first step that is not matched, and the next one begins there: its
    reduction is 1 - rounds / steps. Neither reading needs the draft's order: a tree could hold every order.

    Parameters
    ----------
    stepwise : Trace
        A run of stepwise decoding, or of `ssd`, whose verified passes are the same.
    lengths : sequence of int
        Draft lengths N.
    top : sequence of int
        Candidates per cell, k; at most as many as the record holds (5).

    Returns
    -------
    DataFrame
        For each N and k: ``draft_length``, ``top``; ``steps``, ``rounds``, ``matched``; ``unread``, steps
        whose cell the round's first pass did not read (beyond the next block, or outside the window of a
        cached pass) and which count as not matched; ``reduction`` with its 95 % bootstrap interval over texts
        ``reduction_lo``, ``reduction_hi``; ``restarts`` (rounds), ``restarted``, ``restarted_lo``,
        ``restarted_hi`` in the other reading; ``bound`` = N / (N + 1).

    Raises
    ------
    TraceError
        If the pass at some state was not recorded, or depends on more than the state (Fast-dLLM's dual
        cache).
    ParameterError
        If a length or a number of candidates is below 1, or more candidates are needed than were recorded.
    """
    import pandas as pd

    each = limits_by_text(stepwise, lengths, top)
    return pd.DataFrame([_limit(own) for _, own in each.groupby(["draft_length", "top"], sort=False)])


def limits_by_text(
    stepwise: Trace, lengths: Sequence[int] = (3, 4, 5), top: Sequence[int] = (1, 2, 3, 4, 5)
) -> pd.DataFrame:
    """The counts of `acceptance_limit`, one row for each N, k and text.

    Columns: ``draft_length``, ``top``, ``steps``, ``rounds``, ``matched``, ``unread`` and ``restarts``.
    Parameters and errors are those of `acceptance_limit`.
    """
    import pandas as pd

    for given in (lengths, top):
        if not isinstance(given, Iterable):
            raise ParameterError(f"lengths and top are lists of whole numbers, not {given!r}")
    lengths, top = list(lengths), list(top)
    if not lengths or not top or min(*lengths, *top, 1) < 1:
        raise ParameterError("lengths and top are whole numbers of at least 1")
    texts = written(stepwise)
    check_states(stepwise)
    ranks = [_ranks(text, max(top)) for text in texts]
    rows = [(n, k, *_rounds(rank, n, k)) for n in lengths for k in top for rank in ranks]
    return pd.DataFrame(rows, columns=["draft_length", "top", *COUNTS])


COUNTS = ("steps", "rounds", "matched", "unread", "restarts")


def _limit(texts: pd.DataFrame) -> dict[str, float]:
    """One row of `acceptance_limit`."""
    n, k = (int(texts[name].iloc[0]) for name in ("draft_length", "top"))
    steps, matched, restarts = (texts[name].to_numpy() for name in ("steps", "matched", "restarts"))
    return (
        {"draft_length": n, "top": k}
        | {name: int(texts[name].sum()) for name in COUNTS[:-1]}
        | pooled(matched, steps).columns("reduction")
        | {"restarts": int(restarts.sum())}
        | pooled(steps - restarts, steps).columns("restarted")
        | {"bound": n / (n + 1)}
    )


UNREAD = np.iinfo(np.int64).max  # rank of a cell that was not read, above any number of candidates


def _ranks(text: Written, most: int) -> np.ndarray:
    """Rank of each step's token at its cell in the pass of each state; [states, steps]."""
    ranks = np.full((len(text), len(text)), UNREAD)
    step = np.empty(text.length, np.int64)
    step[text.cell] = np.arange(len(text))
    reached = np.zeros(text.length, bool)
    reached[text.cell] = True
    for state in range(len(text)):
        reading = _at(text, state)
        if reading.top.shape[1] < most:
            raise ParameterError(f"the record holds {reading.top.shape[1]} candidates per cell, not {most}")
        some = reached[reading.cell]
        steps = step[reading.cell[some]]
        same = reading.top[some] == text.token[steps, None]
        ranks[state, steps] = np.where(same.any(1), same.argmax(1), reading.top.shape[1])
    return ranks


def _at(text: Written, state: int) -> Reading:
    if state not in text.readings:
        raise TraceError(
            f"run {text.run}, prompt {text.prompt}: no pass at the state with {state} tokens is recorded; "
            "stepwise and ssd verify every state, recorded with 'judged' or 'all'"
        )
    return text.readings[state]


def _rounds(rank: np.ndarray, n: int, k: int) -> tuple[int, int, int, int, int]:
    """Steps, rounds, matched and unread steps, and rounds that end at a miss, for one text."""
    steps = len(rank)
    step = np.arange(steps)
    first = step - step % (n + 1)
    seen = rank[first, step]
    later = step > first
    matched = int((later & (seen < k)).sum())
    unread = int((later & (seen == UNREAD)).sum())
    restarts = at = 0
    while at < steps:
        restarts += 1
        ahead = rank[at, at + 1 : at + n + 1] < k
        at += 1 + (len(ahead) if ahead.all() else int(ahead.argmin()))
    return steps, -(-steps // (n + 1)), matched, unread, restarts


def failures(trace: Trace) -> pd.DataFrame:
    """Why chains of SSD's drafts end (Figure 4 (a), counted).

    For each pass that verified drafts, this looks at the place where the chain ended: there the model placed
    a token y in a cell i, and that was not the chain's next draft (in a mix-order tree too, even if a skip
    held it).

    - ``none``: nothing was rejected; all of `draft_length` drafts were placed, or the text ended before.
    - ``short``: nothing was rejected, but there were fewer drafts: a refresh cut them, few cells were masked,
      or the next block had not been read.
    - ``border``: y was placed in a block that was not the current one in the pass that made the drafts: no
      pass had read it as the current block.
    - ``order``: in that block, and the drafts held y for i, but not as the next one (Figure 4 (a)).
    - ``token``: in that block, and the draft for i was another token.

    Of ``order``, ``held`` counts those whose i was in the chain, as in the figure; a longer draft would have
    held the others.

    Parameters
    ----------
    trace : Trace
        A run of `ssd`, or a what-if: ``specviz.whatif(stepwise).ssd(draft_length=4).trace()`` has the chains
        that would have been drafted.

    Returns
    -------
    DataFrame
        One row per cause, in this order: ``cause``, ``chains``, ``share`` of all chains with its 95 %
        bootstrap interval over texts ``share_lo``, ``share_hi``; ``held``. Shares sum to 1. Passes without a
        draft have no chain.

    Raises
    ------
    TraceError
        If a run is of another method, or used Fast-dLLM's dual cache.
    """
    import pandas as pd

    for part in trace.split():
        if part.run["method"] != "ssd":
            raise TraceError(
                f"chains are drafted by ssd, and this is a run of {part.run['method']}: from a stepwise run "
                "specviz.whatif(trace).ssd(draft_length=4).trace() shows what would have been drafted"
            )
    check_states(trace)
    lengths = {part.run["run"]: part.run["parameters"]["draft_length"] for part in trace.split()}
    counts, held = [], 0
    for text in written(trace):
        causes = [_cause(text, number, lengths[text.run]) for number in range(len(text.passes))]
        counts.append([sum(cause == name for cause, _ in causes) for name in CAUSES])
        held += sum(inside for _, inside in causes)
    return pd.DataFrame(_shares(np.array(counts).reshape(-1, len(CAUSES)), held))


def _shares(counts: np.ndarray, held: int) -> list[dict[str, float | str]]:
    """The rows of `failures`, from the number of chains by text and cause."""
    chains = counts.sum(1)
    rows: list[dict[str, float | str]] = []
    for name, own in zip(CAUSES, counts.T):
        share = pooled(own, chains).columns("share")
        rows.append(
            {"cause": name, "chains": int(own.sum()), **share, "held": held if name == "order" else 0}
        )
    return rows


def _cause(text: Written, number: int, length: int) -> tuple[str, bool]:
    """Why the chain of a pass ended, empty without one; whether it held what came out of order."""
    made = text.passes[number]
    if not len(made.status):
        return "", False
    path = made.path
    below = made.parent == (path[-1] if path else -1)
    refused = [i for i in np.flatnonzero(below).tolist() if made.status[i] == "rejected"]
    main = int(
        (np.diff(made.parent, prepend=-2) == 1).cumprod().sum()
    )  # nodes of the chain, before its skips
    on_chain = [node for node in path if node < main]
    if not refused and len(on_chain) == len(path):
        ended = text.end in ("eos", "length") and number == len(text.passes) - 1
        return ("none" if ended or main >= length else "short"), False
    # If the path ended with a skip, the chain failed one step earlier, where the skip was taken.
    at = made.start + len(on_chain)
    if at >= len(text):
        return "none", False
    cell, token = int(text.cell[at]), int(text.token[at])
    if cell // text.block != text.work(made.start - 1):
        return "border", False
    after = range(len(on_chain), main)
    drafted = {int(made.cell[node]): int(made.token[node]) for node in after}
    guess = drafted.get(cell, _guess(text, made.start, cell))
    if guess != token:
        return "token", False
    return "order", cell in drafted


def _guess(text: Written, state: int, cell: int) -> int | None:
    """Token that the latest verified pass before a state predicted for a cell; None if none read it."""
    for before in range(state - 1, -1, -1):
        reading = _at(text, before)
        at = np.flatnonzero(reading.cell == cell)
        if len(at):
            return int(reading.token[at[0]])
    return None
