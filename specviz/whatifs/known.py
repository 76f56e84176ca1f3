"""What a trace tells of a text, place by place: what the drafter would write there, what the target would.

Two sources are put together. The dense record holds both models' predictions at every place, the text before
it given, and the tails: what the drafter writes behind a first token of its own that is not the text's
(`specviz.loop.densify`). The cycles hold what the drafts of the run really asked, among it such tails too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from specviz.errors import TraceError

if TYPE_CHECKING:
    from specviz.trace import Trace

WIDEN = 3.0  # a decision nearer than so many times the largest rounding that was seen is a tie ...
EPSILON = {"bfloat16": 7.9e-3, "float16": 9.8e-4}
SINGLE = 1.2e-7  # whatever the models compute in, probabilities are recorded in float32
FLOOR = 16  # ... and never less than so many epsilons of the number format
COLUMNS = (
    "prompt", "cycle", "context", "keep", "end", "top_k",
    "node_token", "node_parent", "node_source", "node_confidence", "node_margin", "node_p",
    "pred_node", "pred_top_token", "pred_top_p", "out_token", "out_p",
    "out_top_token", "out_top_p", "out_draft_token", "out_draft_p", "out_draft_rated",
    "tail_position", "tail_token", "tail_p", "tail_margin",
)  # fmt: skip


@dataclass(eq=False)
class Known:
    """One text and what is known at its places; arrays are of shape [tokens], -1 or NaN where nothing is.

    Parameters
    ----------
    prompt, turn : int
        Index in the run; turn of its conversation.
    ids : array of int
        The prompt's tokens.
    text : array of int
        The output, the end token included.
    end : str or None
        What ended it.
    limit, full : int
        Tokens that could be generated; length of a text that fills the drafter's context.
    draft, sure, gap : arrays
        The drafter's first token, its probability, and how far the second one is behind.
    best, edge : arrays
        The target's first token, and how far the second one is behind.
    p, rated : arrays
        The target's probability of the text's token, and of the drafter's.
    tails : dict of int to list of (token, probability, lead over the second)
        What the drafter writes behind its own token at a place where the text has another.
    top_k : int
        How many candidates the dense record has of a place; 0 without one.
    wanted, drafted : dict of int to list of (token, probability)
        Those candidates, best first: the target's and the drafter's.
    """

    prompt: int
    turn: int
    ids: np.ndarray
    text: np.ndarray
    end: str | None
    limit: int
    full: int
    draft: np.ndarray
    sure: np.ndarray
    gap: np.ndarray
    best: np.ndarray
    edge: np.ndarray
    p: np.ndarray
    rated: np.ndarray
    tails: dict[int, list[tuple[int, float, float]]] = field(default_factory=dict)
    top_k: int = 0
    wanted: dict[int, list[tuple[int, float]]] = field(default_factory=dict)
    drafted: dict[int, list[tuple[int, float]]] = field(default_factory=dict)

    def before(self, start: int) -> int:
        """The token before the output's position `start`."""
        return int(self.text[start - 1] if start else self.ids[-1])


@dataclass(frozen=True)
class Rounding:
    """How near two probabilities must be for a pass of another shape to swap them.

    Parameters
    ----------
    draft, target : float
        `WIDEN` times the largest difference between a probability of the run and of the dense record.
    """

    draft: float
    target: float


def read(trace: Trace) -> tuple[list[Known], Rounding]:
    """Everything known of each text of a run that ended by itself.

    Raises
    ------
    TraceError
        If the trace holds several runs, no prompts, or does not say how long its models' contexts are.
    """
    run = trace.run
    longest = whole((run["model"] or {}).get("max_length"))
    drafter = run["dense"] or run["draft"] or {}
    full = whole(drafter.get("max_length")) if drafter else 0
    prefix = whole(
        (run["model"] or {}).get("prefix")
    )  # an encoder-decoder writes behind this, not the prompt
    most = whole((run["sampling"] or {}).get("max_new_tokens"))
    if longest is None or full is None or most is None:
        raise TraceError(
            "the trace does not say how long its models' contexts are (an older one): record it anew"
        )
    # A dense record of another drafter says nothing of what this one wrote, and the other way round.
    same = not run["dense"] or not run["draft"] or run["dense"].get("name") == run["draft"].get("name")
    cycles: dict[int, list[dict[str, Any]]] = {}
    for row in trace.arrow(COLUMNS).to_pylist():
        cycles.setdefault(row["prompt"], []).append(row)
    texts, errors = [], ([0.0], [0.0])
    for number, rows in sorted(cycles.items()):
        said = run["prompts"][number]
        if not said.get("tokens"):
            raise TraceError("the trace holds no prompts (it was redacted): a what-if needs them")
        ids = np.array(said["tokens"])
        text = np.array([t for row in rows for t in row["out_token"] or ()], np.int64)
        sizes = [len(row["out_token"] or ()) for row in rows]
        if [row["keep"] or 0 for row in rows] != (np.cumsum(sizes) - sizes).tolist():
            raise TraceError("the run took back text that it had written; what-ifs are for runs that do not")
        n, end = len(text), rows[-1]["end"]
        taken = len(ids) if prefix is None else prefix
        limit = n if end in ("length", "context") else min(most, longest - taken)
        blank = np.full((6, n), np.nan)
        nothing = np.full((2, n), -1)
        known = Known(
            number, said.get("turn") or 0, ids, text, end, limit, full + len(ids) - taken,
            nothing[0], blank[0], blank[1], nothing[1], blank[2], blank[3], blank[4],
        )  # fmt: skip
        for row in rows:
            _asked(known, row, row["keep"] or 0, same)
        for row in rows:
            _dense(known, row, row["keep"] or 0, errors)
        texts.append(known)
    floor = FLOOR * EPSILON.get(run["dtype"] or "", SINGLE)
    return texts, Rounding(*(max(floor, WIDEN * max(seen)) for seen in errors))


def whole(value: Any) -> int | None:
    """A count of a file's metadata, None if it is none."""
    return value if type(value) is int and value > 0 else None


def _asked(known: Known, row: dict[str, Any], start: int, same: bool) -> None:
    """What a cycle's draft and pass say of the places they stand at."""
    nodes = row["node_token"] or []
    chain = row["node_parent"] == list(range(-1, len(nodes) - 1)) if nodes else True
    if not chain:
        return
    here = known.text[start : start + len(nodes)].tolist()
    right = next((i for i, (a, b) in enumerate(zip(nodes, here)) if a != b), min(len(nodes), len(here)))
    if same and row["node_confidence"] is not None and set(row["node_source"] or ()) == {"model"}:
        sure, gap = row["node_confidence"], row["node_margin"]
        rated = row["node_p"] or [None] * len(nodes)
        for i in range(min(right + 1, len(here))):
            at = start + i
            known.draft[at] = nodes[i]
            known.sure[at], known.gap[at] = number(sure[i]), number(gap[i])
            known.rated[at] = number(rated[i])
        if right < len(here) and right + 1 < len(nodes):
            known.tails[start + right] = [
                (token, number(p), number(lead))
                for token, p, lead in zip(nodes[right + 1 :], sure[right + 1 :], gap[right + 1 :])
            ]
    for i, p in enumerate(row["out_p"] or ()):
        known.p[start + i] = number(p)
    k = row["top_k"] or 0
    for i, node in enumerate(row["pred_node"] or ()):
        at = start + node + 1
        if node < right and at < len(known.text) and row["pred_top_token"]:
            known.best[at] = row["pred_top_token"][i * k]
            if k > 1:
                known.edge[at] = row["pred_top_p"][i * k] - row["pred_top_p"][i * k + 1]


def _dense(known: Known, row: dict[str, Any], start: int, errors: tuple[list[float], list[float]]) -> None:
    """The dense record's columns of a cycle; where the cycle asked the same, how far the answers differ."""
    k, tokens = row["top_k"] or 0, row["out_token"] or []
    for i, token in enumerate(tokens):
        at, first = start + i, i * k
        if row["out_draft_token"] is not None and row["out_draft_p"][first] is not None:
            top, p = row["out_draft_token"][first : first + k], row["out_draft_p"][first : first + k]
            if known.draft[at] == top[0]:
                errors[0].append(np.nan_to_num(abs(p[0] - known.sure[at])))
            else:  # what the run wrote there stands behind another token
                known.tails.pop(at, None)
            known.draft[at], known.sure[at] = top[0], p[0]
            known.top_k, known.drafted[at] = k, list(zip(top, p))
            known.gap[at] = p[0] - p[1] if k > 1 else 1.0
            known.rated[at] = number(row["out_draft_rated"][i])
        if row["out_top_token"] is not None:
            top, p = row["out_top_token"][first : first + k], row["out_top_p"][first : first + k]
            if token in top:
                place = top.index(token)
                if known.p[at] == known.p[at]:
                    errors[1].append(abs(p[place] - known.p[at]))
                else:
                    known.p[at] = p[place]
            known.best[at], known.edge[at] = top[0], p[0] - p[1] if k > 1 else 1.0
            known.top_k, known.wanted[at] = k, list(zip(top, p))
    tails: dict[int, list[tuple[int, float, float]]] = {}
    for at, *entry in zip(*(row[f"tail_{name}"] or () for name in ("position", "token", "p", "margin"))):
        tails.setdefault(at, []).append((entry[0], number(entry[1]), number(entry[2])))
    for at, tail in tails.items():
        own = known.tails.get(at, [])
        for mine, other in zip(own, tail):
            if mine[0] != other[0]:  # they part at a tie: what the run wrote is what it wrote
                break
            errors[0].append(np.nan_to_num(abs(mine[1] - other[1])))
        else:
            known.tails[at] = own + tail[len(own) :]


def number(value: float | None) -> float:
    """NaN for null."""
    return float("nan") if value is None else value
