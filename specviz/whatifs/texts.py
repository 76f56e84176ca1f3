"""What a trace records at each position of a text: the drafter's prediction and the target's.

Two sources are combined. The dense record holds both models' predictions at every position, given the text
before it, and the tails: what the drafter writes after a first token that differs from the text
(`specviz.loop.densify`). The cycles hold the predictions of the run's own drafts and passes, including tails.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from specviz.draft import ROOT
from specviz.errors import TraceError
from specviz.rules.speculative import common_prefix
from specviz.trace import Trace

WIDEN = 3.0  # a decision closer than this multiple of the largest observed rounding is a tie ...
SINGLE = 1.2e-7  # whatever the models compute in, probabilities are recorded in float32
EPSILON = {"bfloat16": 7.9e-3, "float16": 9.8e-4, "float32": SINGLE, "float64": SINGLE}
FLOOR = 16  # ... and so is one closer than this many epsilons of the number format
COLUMNS = (
    "prompt", "cycle", "context", "keep", "end", "top_k",
    "node_token", "node_parent", "node_source", "node_status", "node_confidence", "node_margin", "node_p",
    "pred_node", "pred_top_token", "pred_top_p", "out_token", "out_p",
    "out_top_token", "out_top_p", "out_draft_token", "out_draft_p", "out_draft_rated",
    "tail_position", "tail_token", "tail_p", "tail_margin",
)  # fmt: skip
Tail: TypeAlias = list[tuple[int, float, float]]
Candidates: TypeAlias = list[tuple[int, float]]
Row: TypeAlias = dict[str, Any]  # a cycle of the record, by column; or a run's metadata, by field
Setting: TypeAlias = dict[str, Any]  # values of a method's parameters, by name
Value: TypeAlias = bool | float | str  # one of these values
Values: TypeAlias = Value | Iterable[Value]  # an argument of a question


@dataclass(eq=False)
class TextRecord:
    """One text and the record of its positions; arrays are [tokens], -1 or NaN where nothing is recorded.

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
    draft, draft_p, draft_lead : arrays
        The drafter's top token, its probability, and its lead over the second one.
    target, target_lead : arrays
        The target's top token, and its lead over the second one.
    p, draft_target_p : arrays
        The target's probability of the text's token, and of the drafter's.
    tails : dict of int to list of (token, probability, lead over the second)
        What the drafter writes after its own token, by the position where that differs from the text.
    top_k : int
        Number of candidates per position in the dense record; 0 without one.
    target_top, draft_top : dict of int to list of (token, probability)
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
    draft_p: np.ndarray
    draft_lead: np.ndarray
    target: np.ndarray
    target_lead: np.ndarray
    p: np.ndarray
    draft_target_p: np.ndarray
    tails: dict[int, Tail] = field(default_factory=dict)
    top_k: int = 0
    target_top: dict[int, Candidates] = field(default_factory=dict)
    draft_top: dict[int, Candidates] = field(default_factory=dict)

    def before(self, start: int) -> int:
        """The token before the output's position `start`."""
        return int(self.text[start - 1] if start else self.ids[-1])


@dataclass(frozen=True)
class Rounding:
    """How close two probabilities must be for a pass of another shape to swap them.

    Parameters
    ----------
    draft, target : float
        `WIDEN` times the largest difference between a probability of the run and of the dense record.
    """

    draft: float
    target: float


def read_texts(trace: Trace) -> tuple[list[TextRecord], Rounding]:
    """Read the record of each text of a run.

    Raises
    ------
    TraceError
        If the trace holds several runs or does not say how long its models' contexts are, or if the run
        rolled back text.
    """
    run = trace.run
    longest = positive((run["model"] or {}).get("max_length"))
    drafter = run["dense"] or run["draft"] or {}
    full = positive(drafter.get("max_length")) if drafter else 0
    # An encoder-decoder's output follows this many tokens, not the prompt.
    prefix = positive((run["model"] or {}).get("prefix"))
    most = positive((run["sampling"] or {}).get("max_new_tokens"))
    if longest is None or full is None or most is None:
        raise TraceError(
            "the trace does not say how long its models' contexts are (an older one): record it again"
        )
    # A dense record of another drafter says nothing about what this one wrote, and vice versa.
    same = not run["dense"] or not run["draft"] or run["dense"].get("name") == run["draft"].get("name")
    cycles: dict[int, list[Row]] = {}
    for row in trace.arrow(COLUMNS).to_pylist():
        cycles.setdefault(row["prompt"], []).append(row)
    texts, errors = [], ([0.0], [0.0])
    for number_, rows in sorted(cycles.items()):
        prompt = run["prompts"][number_]
        ids = np.array(prompt["tokens"])
        text = np.array([t for row in rows for t in row["out_token"] or ()], np.int64)
        sizes = [len(row["out_token"] or ()) for row in rows]
        if [row["keep"] or 0 for row in rows] != (np.cumsum(sizes) - sizes).tolist():
            raise TraceError("the run rolled back text that it had written; what-ifs need runs that do not")
        n, end = len(text), rows[-1]["end"]
        taken = len(ids) if prefix is None else prefix
        limit = n if end in ("length", "context") else min(most, longest - taken)
        blank, unset = np.full((5, n), np.nan), np.full((2, n), -1)
        record = TextRecord(
            number_, prompt.get("turn") or 0, ids, text, end, limit, full + len(ids) - taken,
            unset[0], blank[0], blank[1], unset[1], blank[2], blank[3], blank[4],
        )  # fmt: skip
        for row in rows:
            _read_cycle(record, row, row["keep"] or 0, same)
        for row in rows:
            _read_dense(record, row, row["keep"] or 0, errors)
        texts.append(record)
    floor = FLOOR * spacing(run["dtype"])
    return texts, Rounding(*(max(floor, WIDEN * max(differences)) for differences in errors))


def spacing(dtype: str | None) -> float:
    """Relative spacing of a model's numbers; quantized files round what they multiply to eight bits."""
    return EPSILON.get(dtype or "float32", 2.0**-8)


def positive(value: Value | None) -> int | None:
    """A count from a file's metadata; None if it is not a positive integer."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def number(value: float | None) -> float:
    """Return the value, or NaN for None."""
    return float("nan") if value is None else value


def is_chain(row: Row) -> bool:
    """Whether a cycle's draft is a chain; an empty one counts as a chain."""
    n = len(row["node_token"] or ())
    return n == 0 or row["node_parent"] == list(range(-1, n - 1))


def _read_cycle(record: TextRecord, row: Row, start: int, same: bool) -> None:
    """Add what a cycle's draft and pass say about the positions that they cover."""
    if is_chain(row):
        path: Sequence[int] = range(_read_chain(record, row, start, same))
    else:
        path = [node for node, status in enumerate(row["node_status"] or ()) if status == "accepted"]
    places = {ROOT: start} | {node: start + depth for depth, node in enumerate(path, 1)}
    k = row["top_k"] or 0
    for i, node in enumerate(row["pred_node"] or ()):
        at = places.get(node, len(record.text))
        if at < len(record.text) and row["pred_top_token"]:
            record.target[at] = row["pred_top_token"][i * k]
            top = row["pred_top_p"][i * k : i * k + 2]
            record.target_lead[at] = top[0] - top[1] if k > 1 else 1.0


def _read_chain(record: TextRecord, row: Row, start: int, same: bool) -> int:
    """Add what a cycle's chain says about the drafter; return how many of its tokens are the text's."""
    nodes = row["node_token"] or []
    right = common_prefix(nodes, record.text[start : start + len(nodes)].tolist())
    if same and row["node_confidence"] is not None and set(row["node_source"] or ()) == {"model"}:
        p, lead = row["node_confidence"], row["node_margin"]
        target_p = row["node_p"] or [None] * len(nodes)
        for i in range(min(right + 1, len(nodes), len(record.text) - start)):
            at = start + i
            record.draft[at] = nodes[i]
            record.draft_p[at], record.draft_lead[at] = number(p[i]), number(lead[i])
            record.draft_target_p[at] = number(target_p[i])
        if start + right < len(record.text) and right + 1 < len(nodes):
            entries = zip(nodes[right + 1 :], p[right + 1 :], lead[right + 1 :])
            record.tails[start + right] = [(token, number(x), number(y)) for token, x, y in entries]
    for i, p in enumerate(row["out_p"] or ()):
        record.p[start + i] = number(p)
    return right


def _read_dense(record: TextRecord, row: Row, start: int, errors: tuple[list[float], list[float]]) -> None:
    """Add the dense record's columns of a cycle; collect their differences from the cycle's own values."""
    k, tokens = row["top_k"] or 0, row["out_token"] or []
    for i, token in enumerate(tokens):
        at, first = start + i, i * k
        if row["out_draft_token"] is not None and row["out_draft_p"][first] is not None:
            top, p = row["out_draft_token"][first : first + k], row["out_draft_p"][first : first + k]
            if record.draft[at] == top[0]:
                errors[0].append(np.nan_to_num(abs(p[0] - record.draft_p[at])))
            else:  # the run's tail at this position follows another token
                record.tails.pop(at, None)
            record.draft[at], record.draft_p[at] = top[0], p[0]
            record.top_k, record.draft_top[at] = k, list(zip(top, p))
            record.draft_lead[at] = p[0] - p[1] if k > 1 else 1.0
            record.draft_target_p[at] = number(row["out_draft_rated"][i])
        if row["out_top_token"] is not None:
            top, p = row["out_top_token"][first : first + k], row["out_top_p"][first : first + k]
            if token in top:
                place = top.index(token)
                if record.p[at] == record.p[at]:
                    errors[1].append(abs(p[place] - record.p[at]))
                else:
                    record.p[at] = p[place]
            record.target[at], record.target_lead[at] = top[0], p[0] - p[1] if k > 1 else 1.0
            record.top_k, record.target_top[at] = k, list(zip(top, p))
    tails: dict[int, Tail] = {}
    for at, *entry in zip(*(row[f"tail_{name}"] or () for name in ("position", "token", "p", "margin"))):
        tails.setdefault(at, []).append((entry[0], number(entry[1]), number(entry[2])))
    for at, tail in tails.items():
        own = record.tails.get(at, [])
        for mine, other in zip(own, tail):
            if mine[0] != other[0]:  # they diverge at a tie: keep what the run wrote
                break
            errors[0].append(np.nan_to_num(abs(mine[1] - other[1])))
        else:
            record.tails[at] = own + tail[len(own) :]
