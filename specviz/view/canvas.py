"""Reduce a canvas decode to the data that views draw: masked, drafted, judged and placed cells by pass.

A :class:`Canvas` is one prompt's decode by a method that fills masked cells, taken from the trace alone:
the states, the canvases of each draft, and why each pass placed no more.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow.compute as pc

from specviz.errors import TraceError
from specviz.escape import visible
from specviz.rules.cells import starts_with_first
from specviz.schema import Metadata
from specviz.trace import Trace
from specviz.trace.checks import list_sizes
from specviz.view.picture import first_run, letters, name_of

if TYPE_CHECKING:
    import pandas as pd

Row: TypeAlias = Mapping[Hashable, Any]  # a table row, by column
END = "■"  # a token that ends a text


@dataclass(frozen=True)
class State:
    """The state of a cell in a pass: its word, its sign (never colour alone), its colour and its meaning.

    The hues are those of `KINDS` and, for drafted cells, of the tree in the player. Placed cells are
    filled; cells whose draft was not placed are outlined.
    """

    word: str
    sign: str
    hue: str
    meaning: str


# In the order of the legends. If several fit a cell, the first applies, except for `masked` and `final`.
STATES = {
    "accepted": State("accepted", "✓", "#0072b2", "drafted, verified in this pass and placed"),
    "bonus": State("bonus", "+", "#009e73", "placed by the pass itself after a fully accepted draft"),
    "correction": State("correction", "≠", "#d55e00", "placed by the pass itself where no draft matched"),
    "plain": State("one token", "•", "#5f5f5f", "placed by a pass that had no draft"),
    "parallel": State("in parallel", "∥", "#cc79a7", "placed in the same pass as a more confident cell"),
    "rejected": State("rejected", "✕", "#d55e00", "drafted; the pass would place another cell or token next"),
    "cut": State("cut", "│", "#8a8a8a", "verified, but the text had ended"),
    "drafted": State("drafted, not judged", "○", "#56b4e9", "drafted after a rejection or off the path"),
    "final": State("final", "", "#e3edf4", "placed by an earlier pass"),
    "masked": State(
        "masked", "", "#000000", "masked; darker means the pass was more confident of its top token"
    ),
}

# Why a pass placed no more tokens: the text of a note, and a sentence.
WHY = {
    "end": ("the end", "the text ended"),
    "first": ("no draft yet", "no cells had been read, so nothing was drafted"),
    "tail": ("tail", "fewer cells were masked than a draft needs, so nothing was drafted"),
    "refresh": ("refresh", "the next refresh cut the draft short"),
    "short": ("short draft",
              "no more was drafted: no later cells had been read, or none were masked"),
    "skip": ("skip", "a skip of the mix-order tree was taken, and nothing grows from it"),
    "length": ("whole draft", "every drafted token was accepted"),
    "order": ("wrong order",
              "the guess for the next cell was right, but the draft had another cell there"),
    "token": ("wrong token", "the guess for the next cell was another token"),
    "border": ("block border",
               "the next cell belongs to another block than the one that the drafting pass was writing"),
    "none": ("", "one token per pass"),
    "parallel": ("parallel", "every cell that passed its rule was placed"),
}  # fmt: skip


@dataclass(frozen=True)
class Node:
    """A canvas of a draft: its parent's canvas with one more token.

    Parameters
    ----------
    cell : int
        The cell that it fills; `text` is the token.
    odds : float
        The drafter's log-odds; `p` is its probability.
    next : tuple (cell, text, log-odds), or None
        The placement that the pass would make next in this canvas; None if it was not read.
    """

    index: int
    parent: int
    depth: int
    cell: int
    token: int
    text: str
    odds: float
    p: float
    status: str
    next: tuple[int, str, float] | None


@dataclass(frozen=True)
class Placed:
    """A cell that gets its token in a pass; `odds` are from the pass that placed it."""

    cell: int
    token: int
    text: str
    origin: str
    odds: float
    p: float
    order: int


@dataclass(frozen=True)
class Pass:
    """One pass over a state and the canvases of a draft.

    Parameters
    ----------
    number : int
        Number of the cycle.
    begun : int
        Number of cells placed before it: the state at which it begins.
    block : int
        The current block; -1 if it was not recorded.
    refreshed : bool
        Whether every position was computed although there is a cache.
    root : tuple (cell, text, log-odds), or None
        The placement that the pass would make next in the state itself.
    read : dict of int to float
        For each masked cell that was read in the state itself, the probability of its most likely token.
    why : str
        Why no more was placed, a key of `WHY`.
    """

    number: int
    begun: int
    block: int
    refreshed: bool
    nodes: tuple[Node, ...]
    placed: tuple[Placed, ...]
    root: tuple[int, str, float] | None
    read: dict[int, float]
    why: str

    @property
    def ended(self) -> int:
        """Number of cells placed at its end."""
        return self.begun + len(self.placed)

    @property
    def accepted(self) -> int:
        return sum(p.origin == "draft" for p in self.placed)

    def states(self) -> dict[int, tuple[str, float]]:
        """The state (a key of `STATES`) and probability of each cell that was drafted or placed in it."""
        states: dict[int, tuple[str, float]] = {}
        for node in self.nodes:
            state = "drafted" if node.status == "unjudged" else node.status
            rank = list(STATES).index
            if node.cell not in states or rank(state) < rank(states[node.cell][0]):
                states[node.cell] = (state, node.p)
        for one in self.placed:
            states[one.cell] = ("accepted" if one.origin == "draft" else one.origin, one.p)
        return states

    @property
    def sentence(self) -> str:
        """A description of the pass in one sentence."""
        own = [p for p in self.placed if p.origin != "draft"]
        drafted = f"{len(self.nodes)} drafted, {self.accepted} accepted; " if self.nodes else ""
        words = ", ".join(f"{p.text} in cell {p.cell}" for p in self.placed)
        more = f": {WHY[self.why][1]}" if self.why != "none" else ""
        extra = f", {own[-1].origin} last" if own and self.nodes else ""
        fresh = ", a refresh" if self.refreshed else ""
        return f"pass {self.number}{fresh}: {drafted}{len(self.placed)} placed ({words}{extra}){more}"


@dataclass(frozen=True)
class Canvas:
    """One prompt's canvas and how it was filled.

    Parameters
    ----------
    order : array of int [cells]
        Position of each cell in the order of placement, from 0; -1 if it stayed masked.
    words : tuple of str [cells]
        The token of each cell; empty if it stayed masked.
    """

    run: Metadata
    prompt: int
    length: int
    block: int
    order: np.ndarray
    tokens: np.ndarray
    words: tuple[str, ...]
    passes: tuple[Pass, ...]

    @property
    def method(self) -> str:
        return str(self.run["method"])

    @property
    def cached(self) -> bool:
        return self.policy.get("cache") == "dual"

    @property
    def policy(self) -> dict[str, int | str | None]:
        """The settings that compared runs must share: length, block, cache, its refresh interval and rule."""
        settings = self.run["canvas"]
        names = ("length", "block", "cache", *(("refresh",) if settings.get("cache") == "dual" else ()))
        rule = {"cache_rule": "fast_dllm"} if settings.get("cache_rule") == "fast_dllm" else {}
        return {name: settings.get(name) for name in names} | rule

    @property
    def name(self) -> str:
        """Method, model and policy."""
        own = self.run.get("parameters") or {}
        tree = f" {own['tree']}, N = {own['draft_length']}" if "draft_length" in own else ""
        cache = f"dual cache, refresh after {self.policy['refresh']}" if self.cached else "no cache"
        if "cache_rule" in self.policy:
            cache = "dual cache by Fast-dLLM's rule"
        return visible(f"{self.method}{tree} · {name_of(self.run['model'])} · {cache}")


def _probability(odds: float) -> float:
    return float("nan") if odds != odds else float(1 / (1 + np.exp(-np.clip(odds, -60, 60))))


def canvas(trace: Trace, prompt: int | None = None) -> Canvas:
    """Reduce one prompt of a trace's first run to the data to draw.

    Raises
    ------
    TraceError
        If the run wrote no canvases, or only its text was recorded.
    """
    run, index = first_run(trace, prompt)
    facts = run.run
    if facts.get("canvas") is None:
        raise TraceError(
            f"{facts['method']} wrote its text from left to right, so there is no canvas to show; stepwise, "
            "ssd, fast_dllm and entropy_bounded write canvases"
        )
    one = run.select(prompt=index)
    if facts.get("record") is None:
        raise TraceError("only the text was recorded: use record='judged' to keep how a canvas was filled")
    length, block = int(facts["canvas"]["length"]), int(facts["canvas"]["block"])
    sure = float((facts["parameters"] or {}).get("sure", np.inf))
    starts = starts_with_first(facts["canvas"])
    texts = _texts(one)
    cycles = one.cycles
    outputs, drafts = (dict(iter(t.groupby("cycle"))) for t in (one.outputs, one.nodes))
    predictions = _predictions(one)
    order, tokens, words = np.full(length, -1), np.full(length, -1), [""] * length
    guesses: dict[int, int] = {}  # for each cell, the top token in the latest verified pass
    passes = []
    for row in _records(cycles):
        if not (number := int(row["cycle"])):
            continue
        read = predictions.get(number, [])
        nexts = _nexts(read, block, texts, sure, starts)
        placed = []
        for at in _records(outputs.get(number)):
            cell, token = int(at["position"]), int(at["token"])
            order[cell], tokens[cell], words[cell] = at["order"], token, texts(token)
            odds = float(at["odds"])
            placed.append(
                Placed(cell, token, texts(token), at["origin"], odds, _probability(odds), int(at["order"]))
            )
        nodes = [_node(n, texts, nexts) for n in _records(drafts.get(number))]
        path = [-1, *(n.index for n in nodes if n.status == "accepted")]
        begun = int(row["keep"])
        longest = int((facts["parameters"] or {}).get("draft_length", 0))
        passes.append(
            Pass(
                number=number,
                begun=begun,
                block=int(row["block"]) if row["block"] == row["block"] else -1,
                refreshed=bool(row["refreshed"]) and facts["canvas"].get("cache") == "dual",
                nodes=tuple(nodes),
                placed=tuple(placed),
                root=nexts.get(-1),
                read={cell: _probability(odds) for node, cell, odds, _ in read if node == -1},
                why=_why(row, nodes, placed, guesses, longest, _work(order, begun - 1, block), block),
            )
        )
        for node in path:
            guesses |= {cell: token for at, cell, _, token in read if at == node}
    order.flags.writeable = tokens.flags.writeable = False  # `pictures` keeps them
    return Canvas(facts, index, length, block, order, tokens, tuple(words), tuple(passes))


def _records(table: pd.DataFrame | None) -> list[Row]:
    return [] if table is None else [dict(zip(table, row)) for row in table.itertuples(index=False)]


def _node(row: Row, texts: Callable[[int], str], nexts: dict[int, tuple[int, str, float]]) -> Node:
    odds, token, index = float(row["score"]), int(row["token"]), int(row["node"])
    return Node(
        index=index,
        parent=int(row["parent"]),
        depth=int(row["depth"]),
        cell=int(row["position"]),
        token=token,
        text=texts(token),
        odds=odds,
        p=_probability(odds),
        status=str(row["status"]),
        next=nexts.get(index),
    )


def _texts(trace: Trace) -> Callable[[int], str]:
    """Create a function from token to cell text: `END` for an end token, partial characters written out."""
    pieces, ends = trace.pieces, set(trace.run["eos"] or [])

    @cache
    def text(token: int) -> str:
        return END if token in ends else visible(letters(pieces, [token])).replace("\n", "⏎")

    return text


Prediction = tuple[int, int, float, int]  # node, cell, log-odds, most likely token


def _predictions(trace: Trace) -> dict[int, list[Prediction]]:
    """The pass's predictions for each cell that it read, by cycle."""
    table = trace.arrow(["cycle", "top_k", "pred_node", "pred_position", "pred_odds", "pred_top_token"])
    count = np.maximum(list_sizes(table.column("pred_position")), 0)
    flat = {n: pc.list_flatten(table.column(n)).to_numpy() for n in table.column_names[2:]}
    by_cycle, at, top = {}, 0, 0
    ks = np.nan_to_num(table.column("top_k").to_numpy().astype(float)).astype(int)
    for cycle, k, n in zip(table.column("cycle").to_numpy().tolist(), ks.tolist(), count.tolist()):
        some = slice(at, at + n)
        best = flat["pred_top_token"][top : top + n * k : max(k, 1)]
        by_cycle[cycle] = list(
            zip(
                flat["pred_node"][some].tolist(), flat["pred_position"][some].tolist(),
                flat["pred_odds"][some].tolist(), best.tolist() if k else [-1] * n,
            )
        )  # fmt: skip
        at, top = at + n, top + n * k
    return by_cycle


def _work(order: np.ndarray, state: int, block: int) -> int:
    """The current block at a state: the first block with a masked cell."""
    masked = (order < 0) | (order >= state)
    return int(masked.argmax()) // block


def _nexts(
    read: list[Prediction], block: int, texts: Callable[[int], str], sure: float, starts: bool
) -> dict[int, tuple[int, str, float]]:
    """The next placement in each canvas: the most confident cell of its first block with masked cells.

    Log-odds from `sure` upwards count as equal, and ties go to the leftmost cell. If `starts`, a block's
    first cell is always filled first.
    """
    nexts: dict[int, tuple[int, str, float]] = {}
    for node, cell, odds, token in read:  # from left to right
        had = nexts.get(node)
        if had is not None and (cell // block != had[0] // block or (starts and had[0] % block == 0)):
            continue
        if had is None or min(odds, sure) > had[2]:
            nexts[node] = (cell, texts(token), min(odds, sure))
    return nexts


def _why(
    row: Row,
    nodes: list[Node],
    placed: list[Placed],
    guesses: dict[int, int],
    most: int,
    work: int,
    size: int,
) -> str:
    """Why a pass placed no more; for a rejected draft, one of the causes of `specviz.metrics.failures`.
    `work` is the current block of the pass that made the guesses."""
    if isinstance(row["end"], str):
        return "end"
    if not most:
        return "parallel" if any(p.origin == "parallel" for p in placed) else "none"
    if not nodes:
        return row["stop"] if row["stop"] in ("first", "tail", "refresh") else "none"
    tip = max((n.index for n in nodes if n.status == "accepted"), default=-1)
    if any(n.parent == tip for n in nodes):  # the drafted children of the tip were rejected
        own = placed[-1]
        if own.cell // size != work:
            return "border"
        return "order" if guesses.get(own.cell) == own.token else "token"
    if tip >= 0 and nodes[tip].parent != tip - 1:
        return "skip"
    if row["stop"] == "refresh":
        return "refresh"
    return "length" if nodes[tip].depth >= most else "short"
