"""What decoding of canvases says in numbers: passes saved, the limit of self-drafting, why chains fail.

Of diffusion language models' runs (`stepwise`, `ssd` and the lossy samplers). The paper is Gao et al. 2025
("Self Speculative Decoding for Diffusion Large Language Models"): Table 1 (step reduction, TPS), section 5.1
with Table 2 (limits), Figure 4 (failures).

A text ends with the first complete block that holds an end token. What fills that block after it was placed
and cost passes, but is not a text: `emitted` and `tau` count it, `output` and tokens per second do not.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from specviz.errors import ParameterError, TraceError
from specviz.metrics.cycles import _texts, ratio, seconds
from specviz.metrics.interval import Estimate, pooled
from specviz.trace import Reading, Trace, Written, written

if TYPE_CHECKING:
    import pandas as pd

CAUSES = ("none", "short", "order", "token", "border")


def by_canvas(trace: Trace, stepwise: Trace | None = None) -> pd.DataFrame:
    """Passes and tokens of every canvas, in the order of runs and prompts.

    Parameters
    ----------
    trace : Trace
    stepwise : Trace, optional
        Of stepwise decoding over the same prompts.

    Returns
    -------
    DataFrame
        ``run``, ``prompt``; ``placed`` tokens; ``valid`` ones, up to but not including the first end token;
        ``passes``; ``reduction`` = 1 - passes / placed, the step reduction (stepwise decoding places one
        token per pass). With `stepwise` also ``stepwise``, its passes, and ``saved`` = 1 - passes / those: a
        lossy method may write a text of another length, and then the two differ.

    Raises
    ------
    TraceError
        If a run wrote no canvas, or `stepwise` is none or lacks a prompt.
    """
    import pandas as pd

    ends = {part.run["run"]: part.run["eos"] or [] for part in trace.split()}
    rows = []
    for each in written(trace):
        text = each.token[np.argsort(each.cell)]
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
    table["stepwise"] = table["prompt"].map(base)
    table["saved"] = 1 - table["passes"] / table["stepwise"]
    return table


def compare_canvases(traces: Mapping[str, Trace], base: Trace) -> pd.DataFrame:
    """Which texts of each run are those of another, and the passes it saved: section 4's two questions.

    The two may differ in their cache or tie rule: whether that changes a text is what the table shows.

    Parameters
    ----------
    traces : mapping of name to Trace
        One run each, of the same prompts as `base`.
    base : Trace
        The run that the others are held against, as a rule one of stepwise decoding.

    Returns
    -------
    DataFrame
        A row a run, by its name: ``same_order``, texts whose cells were filled with the same tokens in the
        same order; ``same_text``, texts that read the same; ``passes``, of all texts; ``saved``, as
        `step_reduction` has it; ``exactness``, which the method claims.

    Raises
    ------
    TraceError
        If a run wrote no canvas, or its prompts are not those of `base`.
    """
    import pandas as pd

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
    """What makes two runs comparable: how their canvases were opened, and where a text ends."""
    about, own = run.run["canvas"], run.run["parameters"]
    cached = (about["refresh"], about.get("cache_rule")) if about["cache"] != "none" else None
    return about["length"], about["block"], about["cache"], cached, own.get("whole"), own.get("sure")


def step_reduction(trace: Trace, stepwise: Trace | None = None) -> Estimate:
    """Share of stepwise decoding's passes that were saved (Table 1's Step), pooled over texts.

    1 - passes / tokens placed; with `stepwise`, 1 - passes / the passes of that trace, prompt by prompt.
    Tau is tokens per pass, 1 / (1 - reduction). 95 % bootstrap interval over texts.

    Parameters
    ----------
    trace : Trace
    stepwise : Trace, optional
        As in `by_canvas`, which has the figure of every text.
    """
    table = by_canvas(trace, stepwise)
    below = table["placed" if stepwise is None else "stepwise"].to_numpy()
    return pooled(below - table["passes"].to_numpy(), below)


def valid_tokens_per_second(trace: Trace) -> float:
    """The paper's TPS: tokens up to but not including the first end token, per second of decoding.

    Opening the canvas and the first pass, which reads the prompt, are inside: section 4.1 leaves nothing
    out.
    """
    ends = {part.run["run"]: part.run["eos"] or [] for part in trace.split()}
    by_canvas(trace)  # refuses what is not a canvas
    texts = _texts(trace)
    last = sum(int(own["token"].isin(ends[run]).sum()) for run, own in texts.groupby("run", observed=True))
    return ratio(len(texts) - last, seconds(trace))


def acceptance_limit(
    stepwise: Trace, lengths: Sequence[int] = (3, 4, 5), top: Sequence[int] = (1, 2, 3, 4, 5)
) -> pd.DataFrame:
    """How many passes self-drafting could save at most (section 5.1, Table 2), from stepwise passes.

    What the paper counts is told in three sentences; this is how they are read here. The passes of a text are
    cut into rounds of N + 1, the last one perhaps shorter. The draft of a round is what its first pass said
    of every cell that it read. That pass places a token itself; the token of each other step is *matched* if
    it is among the draft's `k` likeliest of its cell, wherever in the order it comes, and then it would have
    cost no pass. ``reduction`` = matched / steps, at most N / (N + 1).

    A method that verifies could not go on after a token that it had not drafted. In the other reading
    (``restarted``) a round ends where the first step is not matched, and the next one begins there: its
    reduction is 1 - rounds / steps. Neither asks for the draft's order: a tree could hold them all.

    Parameters
    ----------
    stepwise : Trace
        Of stepwise decoding, or of `ssd`, whose verified passes are the same.
    lengths : sequence of int
        Draft lengths N.
    top : sequence of int
        Candidates of a cell, k; as many as the record holds (5).

    Returns
    -------
    DataFrame
        For each N and k: ``draft_length``, ``top``; ``steps``, ``rounds``, ``matched``; ``unread`` steps,
        whose cell the round's first pass did not read (beyond the next block, or outside the window of a
        cached pass) and which count as not matched; ``reduction`` with its 95 % bootstrap interval over texts
        ``reduction_lo``, ``reduction_hi``; ``restarts`` (rounds), ``restarted``, ``restarted_lo``,
        ``restarted_hi`` in the other reading; ``bound`` = N / (N + 1).

    Raises
    ------
    TraceError
        If a pass at some state is not in the record.
    ParameterError
        If a length or a number of candidates is none.
    """
    import pandas as pd

    each = limits_by_text(stepwise, lengths, top)
    return pd.DataFrame([_limit(own) for _, own in each.groupby(["draft_length", "top"], sort=False)])


def limits_by_text(
    stepwise: Trace, lengths: Sequence[int] = (3, 4, 5), top: Sequence[int] = (1, 2, 3, 4, 5)
) -> pd.DataFrame:
    """What `acceptance_limit` counts, a row for each N, k and text: ``draft_length``, ``top`` and the counts.

    The counts are ``steps``, ``rounds``, ``matched``, ``unread`` and ``restarts``. Parameters and errors are
    those of `acceptance_limit`.
    """
    import pandas as pd

    for given in (lengths, top):
        if not isinstance(given, Iterable):
            raise ParameterError(f"lengths and top are lists of whole numbers, not {given!r}")
    lengths, top = list(lengths), list(top)
    if not lengths or not top or min(*lengths, *top, 1) < 1:
        raise ParameterError("lengths and top are whole numbers of at least 1")
    texts = written(stepwise)
    ranks = [_ranks(text, max(top)) for text in texts]
    rows = [(n, k, *_rounds(rank, n, k)) for n in lengths for k in top for rank in ranks]
    return pd.DataFrame(rows, columns=["draft_length", "top", *COUNTS])


COUNTS = ("steps", "rounds", "matched", "unread", "restarts")


def _limit(texts: pd.DataFrame) -> dict[str, float]:
    """A row of `acceptance_limit`."""
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


UNREAD = np.iinfo(np.int64).max  # a rank that no number of candidates reaches


def _ranks(text: Written, most: int) -> np.ndarray:
    """Rank of each step's token at its cell in each earlier state's pass; [states, steps]."""
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
    """Steps, rounds, matched and unread steps, and rounds that end at a miss; of one text."""
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
    """Why chains of SSD's drafts break off (Figure 4 (a), counted).

    Of each pass that verified drafts, where the chain ended: there the model placed a token y in a cell i,
    and the next draft of the chain was not that. (Of a mix-order tree, too, whether or not a skip held it.)

    - ``none``: nothing was refused; all of `draft_length` drafts were placed, or the text ended before.
    - ``short``: nothing was refused, but there were fewer drafts: a refresh cut them, few cells were masked,
      or the next block's had not been read.
    - ``border``: y came into another block than the one in work in the pass that the drafts are from: no pass
      had looked at it as the current block.
    - ``order``: in that block, and y was what the drafts held for i: only not next (Figure 4 (a)).
    - ``token``: in that block, and the draft for i was another token.

    Of ``order``, ``held`` are those whose i was in the chain, as in the figure; of the others a longer draft
    would have held it.

    Parameters
    ----------
    trace : Trace
        Of `ssd`, or of a what-if: ``specviz.whatif(stepwise).ssd(draft_length=4).trace()`` has the chains
        that would have been drafted.

    Returns
    -------
    DataFrame
        One row for each cause, in this order: ``cause``, ``chains``, ``share`` of all chains with its 95 %
        bootstrap interval over texts ``share_lo``, ``share_hi``; ``held``. Shares sum to 1. Passes without a
        draft are no chains.

    Raises
    ------
    TraceError
        If a run is of another method.
    """
    import pandas as pd

    for part in trace.split():
        if part.run["method"] != "ssd":
            raise TraceError(
                f"chains are drafted by ssd, and this is a run of {part.run['method']}: from a stepwise run "
                "specviz.whatif(trace).ssd(draft_length=4).trace() shows what would have been drafted"
            )
    lengths = {part.run["run"]: part.run["parameters"]["draft_length"] for part in trace.split()}
    counts, held = [], 0
    for text in written(trace):
        causes = [_cause(text, number, lengths[text.run]) for number in range(len(text.passes))]
        counts.append([sum(cause == name for cause, _ in causes) for name in CAUSES])
        held += sum(inside for _, inside in causes)
    return pd.DataFrame(_shares(np.array(counts).reshape(-1, len(CAUSES)), held))


def _shares(counts: np.ndarray, held: int) -> list[dict[str, float | str]]:
    """The rows of `failures` from the number of chains by text and cause."""
    chains = counts.sum(1)
    rows: list[dict[str, float | str]] = []
    for name, own in zip(CAUSES, counts.T):
        share = pooled(own, chains).columns("share")
        rows.append(
            {"cause": name, "chains": int(own.sum()), **share, "held": held if name == "order" else 0}
        )
    return rows


def _cause(text: Written, number: int, length: int) -> tuple[str, bool]:
    """Why the chain of a pass ended, empty without one; whether a chain held what came out of order."""
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
    # Of a path that ended with a skip the chain failed a step before: where the skip was taken.
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
    """The token that the latest verified pass before a state gave a cell; None if none read it."""
    for before in range(state - 1, -1, -1):
        reading = _at(text, before)
        at = np.flatnonzero(reading.cell == cell)
        if len(at):
            return int(reading.token[at[0]])
    return None
