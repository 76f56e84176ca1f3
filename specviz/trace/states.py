"""A canvas' record, state by state: its tokens, what a verified pass predicted there, and what it placed.

Stepwise decoding has one pass per state. A pass of SSD verifies several states at once: the root is the state
when the cycle began, and each accepted node leads to the next one. Read this way, the two records are alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from specviz.errors import TraceError
from specviz.rules.cells import caches_by_block
from specviz.trace.checks import list_sizes
from specviz.trace.files import Record

if TYPE_CHECKING:
    import pyarrow as pa

    from specviz.trace.trace import Trace

COLUMNS = (
    "prompt", "cycle", "context", "keep", "end", "block", "refreshed", "top_k", "stop",
    "node_token", "node_parent", "node_position", "node_status",
    "pred_node", "pred_position", "pred_odds", "pred_entropy", "pred_top_token", "pred_top_p",
    "out_token", "out_position", "out_odds", "out_p",
)  # fmt: skip


BY_BLOCK = (
    "run {} used Fast-dLLM's cache rule, in which a state's pass depends on the block: decode again with "
    "cache_rule='predictor'"
)


class Reading(NamedTuple):
    """Predictions of a verified pass for the masked cells that it read at a state.

    Parameters
    ----------
    cell : array of int [cells]
        Ascending.
    token : array of int [cells]
        The likeliest token of each.
    odds : array of float [cells]
        Its log-odds.
    rank : array of float [cells]
        Log-odds by which cells are compared, capped where the run treats them as equally sure.
    entropy : array of float [cells]
    top, p : arrays [cells, top_k]
        The likeliest tokens, best first, and their probabilities.
    """

    cell: np.ndarray
    token: np.ndarray
    odds: np.ndarray
    rank: np.ndarray
    entropy: np.ndarray
    top: np.ndarray
    p: np.ndarray


@dataclass(eq=False)
class Pass:
    """One recorded pass.

    Parameters
    ----------
    cycle, start : int
        Its number, and how many tokens were placed when it began: the state of its root.
    stop : str
        Why drafting stopped.
    refreshed : bool
        Whether it computed every position.
    token, parent, cell : arrays of int [nodes]
        The draft.
    status : list of str [nodes]
    placed : int
        Number of tokens that it placed.
    """

    cycle: int
    start: int
    stop: str
    refreshed: bool
    token: np.ndarray
    parent: np.ndarray
    cell: np.ndarray
    status: list[str]
    placed: int

    @property
    def path(self) -> list[int]:
        """The accepted nodes, from the root down."""
        return [i for i, status in enumerate(self.status) if status == "accepted"]


@dataclass(eq=False, repr=False)
class Written:
    """One canvas and how it was written; state s is the canvas with s tokens.

    Parameters
    ----------
    run : str
    prompt, context : int
        Index in the run; number of tokens in the prompt.
    length, block : int
        Cells of the canvas, and of a block.
    refresh : int
        With a cache, the number of tokens between passes that compute every position; 0 without a cache.
    cell, token : arrays of int [placed]
        In the order in which they were placed.
    odds, p : arrays of float [placed]
        As computed by the pass that placed the token.
    readings : dict of int to Reading
        By state, the predictions there, for every state that a verified pass read.
    passes : list of Pass
    end : str or None
        What ended the text.
    """

    run: str
    prompt: int
    context: int
    length: int
    block: int
    refresh: int
    cell: np.ndarray
    token: np.ndarray
    odds: np.ndarray
    p: np.ndarray
    readings: dict[int, Reading]
    passes: list[Pass]
    end: str | None

    def __len__(self) -> int:
        return len(self.cell)

    def __repr__(self) -> str:
        return f"<canvas of prompt {self.prompt}: {len(self)} tokens in {len(self.passes)} passes>"

    def work(self, state: int) -> int:
        """The current block at a state, from 0; -1 if no cell is masked."""
        masked = np.ones(self.length, bool)
        masked[self.cell[:state]] = False
        return int(masked.argmax()) // self.block if masked.any() else -1


def written(trace: Trace) -> list[Written]:
    """Return the canvases of a trace, in the order of its runs and prompts.

    Raises
    ------
    TraceError
        If a run wrote no canvas or recorded only its text, or the record contradicts itself.
    """
    return [each for part in trace.split() for each in _of_run(part)]


def check_states(trace: Trace) -> None:
    """Check that each pass depends on its state alone, so that what one run read holds for another."""
    for part in trace.split():
        if caches_by_block(part.run["canvas"] or {}):
            raise TraceError(BY_BLOCK.format(part.run["run"]))


def _of_run(part: Trace) -> Iterator[Written]:
    run = part.run
    canvas = run["canvas"]
    if canvas is None:
        raise TraceError(f"run {run['run']} of {run['method']} wrote no canvas: it has no masked cells")
    if run["record"] is None:
        raise TraceError("the trace holds only the text (record=None): record it with 'judged' or 'all'")
    sizes = [canvas.get(name) for name in ("length", "block", "refresh")]
    if any(type(size) is not int or size < 1 for size in sizes):
        raise TraceError(f"run {run['run']} does not say the length, block and refresh of its canvases")
    length, block, refresh = sizes
    refresh = 0 if canvas.get("cache") == "none" else refresh
    sure = (run["parameters"] or {}).get("sure", np.inf)
    table = part.arrow(COLUMNS)
    lists = {name: _lists(table.column(name)) for name in COLUMNS if "_" in name and name != "top_k"}
    plain = {name: table.column(name).to_pylist() for name in COLUMNS if name not in lists}
    rows: dict[int, list[int]] = {}
    for i, prompt in enumerate(plain["prompt"]):
        rows.setdefault(prompt, []).append(i)
    for prompt, own in sorted(rows.items()):
        passes: list[Pass] = []
        readings: dict[int, Reading] = {}
        out: list[list[np.ndarray]] = []
        for i in own:
            row = {name: values[i] for name, values in lists.items()}
            out.append([row[name] for name in ("out_position", "out_token", "out_odds", "out_p")])
            if not plain["cycle"][i]:
                continue
            keep = plain["keep"][i] or 0
            status = row["node_status"].tolist()
            made = Pass(
                plain["cycle"][i], keep, plain["stop"][i] or "", bool(plain["refreshed"][i]),
                row["node_token"], row["node_parent"], row["node_position"], status, len(row["out_token"]),
            )  # fmt: skip
            passes.append(made)
            for state, node in enumerate([-1, *made.path], keep):
                readings[state] = _reading(row, node, plain["top_k"][i] or 1, sure)
        cell, token, odds, p = (np.concatenate(parts) for parts in zip(*out))
        wrong = len(np.unique(cell)) < len(cell) or (cell < 0).any() or (cell >= length).any()
        starts = np.cumsum([0, *(each.placed for each in passes)])[:-1].tolist()
        read = [each.cell for each in readings.values()]
        wrong = wrong or any((each < 0).any() or (each >= length).any() for each in read)
        if wrong or [each.start for each in passes] != starts:
            raise TraceError(f"run {run['run']}, prompt {prompt}: its cells are not those of a canvas")
        yield Written(
            run["run"], prompt, plain["context"][own[0]], length, block, refresh, cell.astype(np.int64),
            token.astype(np.int64), odds, p, readings, passes, plain["end"][own[-1]],
        )  # fmt: skip


def _reading(row: Record, node: int, k: int, sure: float) -> Reading:
    at = np.flatnonzero(row["pred_node"] == node)
    k = k if len(row["pred_top_token"]) else 0
    if not k:
        blank = np.zeros((len(at), 1))
        top, p = blank.astype(np.int64) - 1, blank * np.nan
    else:
        top, p = (row[name].reshape(-1, k)[at] for name in ("pred_top_token", "pred_top_p"))
    cell = row["pred_position"][at].astype(np.int64)
    odds, entropy = row["pred_odds"][at].astype(np.float64), row["pred_entropy"][at]
    return Reading(cell, top[:, 0].astype(np.int64), odds, np.minimum(odds, sure), entropy, top, p)


def _lists(column: pa.ChunkedArray) -> list[np.ndarray]:
    """The rows of a list column; null becomes an empty row."""
    import pyarrow.compute as pc

    size = np.maximum(list_sizes(column), 0)
    values = pc.list_flatten(column).to_numpy(zero_copy_only=False)
    return np.split(values, np.cumsum(size)[:-1])
