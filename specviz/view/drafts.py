"""Draw one cycle's drafted tree: root on the left, one level per column, and each node's verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specviz.errors import ParameterError, TraceError
from specviz.escape import visible
from specviz.metrics import drafts
from specviz.trace import Trace
from specviz.view.axes import Look, axes, bare, drawable, fonts
from specviz.view.lattices import FRAME, INK, short
from specviz.view.picture import FATE_WORDS
from specviz.view.updates import check_one_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# For each status: its sign, its colour and the style of the line to it; WORDS has the words.
SIGNS = {
    "accepted": ("✓", "#0072b2", "-"),
    "rejected": ("✕", "#d55e00", "--"),
    "unjudged": ("○", "#5f5f5f", ":"),
    "cut": ("│", "#8a8a8a", ":"),
    "unreviewed": ("?", "#2a7fae", "-"),
    "unsent": ("–", "#a0a0a0", ":"),
    "below_budget": ("–", "#a0a0a0", ":"),
    "window": ("·", "#8a8a8a", ":"),  # Lookahead's: read with the draft, but no part of it
}
WORDS = FATE_WORDS | {"window": "only read"}
HELD = ("unsent", "below_budget")  # never reached the target
OWN = "#7a3b00"  # text colour of the target's own token
LABEL = 0.2  # distance from a node's parent to its text, in levels


@dataclass(frozen=True)
class Node:
    """A drafted token: its parent (-1: the root), its rating, and its status after verification."""

    index: int
    parent: int
    depth: int
    text: str
    status: str
    rating: float  # its score, else the drafter's probability of it; NaN if neither was recorded


@dataclass(frozen=True)
class Tree:
    """One cycle's draft, parents before children, and the token emitted after the accepted path."""

    cycle: int
    nodes: tuple[Node, ...]
    sent: int
    window: int  # nodes that were read with them
    held: int  # drafted but not sent
    accepted: int
    own: str  # the target's token after the path; empty if the text ended within the path
    origin: str
    root: str  # the last token of the text
    rated: str  # the kind of rating: score or probability

    @property
    def end(self) -> int:
        """Index of the last accepted node, -1 if there is none."""
        return max((n.index for n in self.nodes if n.status == "accepted"), default=-1)

    @property
    def sentence(self) -> str:
        """Description of the cycle in one sentence."""
        held = f", {self.held} drafted and not sent" if self.held else ""
        text = self.own.replace("\n", "⏎")
        own = f"; then “{text}”, {self.origin}" if self.own else ""
        read = f", with a window of {self.window};" if self.window else ","
        return f"cycle {self.cycle}: {self.sent} nodes sent{held}{read} {self.accepted} accepted{own}"


def _tree(trace: Trace, cycle: int | None, prompt: int | None, held: bool) -> Tree:
    run = trace.split()[0]
    check_one_text(run, "view.canvases(trace) for its trees")
    prompt = int(run.cycles["prompt"].iloc[0]) if prompt is None else prompt
    one = run.select(prompt=prompt)
    cycles, nodes, outputs = one.cycles, one.nodes, one.outputs
    sent = drafts(one).set_index("cycle")["drafted"]
    drafted = cycles[cycles["cycle"].map(sent) > 0]
    if not len(drafted) or not len(nodes):
        raise TraceError(f"prompt {prompt} of run {run.run['run']} has no cycle with a recorded draft")
    if cycle is None:
        cycle = int(drafted["cycle"].iloc[drafted["accepted"].argmax()])
    if cycle not in set(drafted["cycle"]):
        raise ParameterError(f"cycle {cycle} has no draft: those from {drafted['cycle'].min()} "
                             f"to {drafted['cycle'].max()} may have one")  # fmt: skip
    row = drafted[drafted["cycle"] == cycle].iloc[0]
    here = nodes[nodes["cycle"] == cycle].sort_values("node")
    window = int((here["source"] == "window").sum())
    fates = here["source"].astype(str).where(here["source"] == "window", here["status"].astype(str))
    here = here.assign(status=fates)
    rated = "score" if here["score"].notna().any() else "q"
    shown = here if held else here[~here["status"].isin(HELD)]
    tree_nodes = tuple(
        Node(int(i), int(above), int(depth), visible(text), status, float(rating))
        for i, above, depth, text, status, rating in zip(
            shown["node"], shown["parent"], shown["depth"], shown["text"], shown["status"], shown[rated]
        )
    )
    emitted = outputs[outputs["cycle"] == cycle]
    own = emitted[emitted["origin"] != "draft"]
    before = outputs[outputs["cycle"] < cycle]
    return Tree(
        cycle, tree_nodes, int(sent[cycle]), window, int(here["status"].isin(HELD).sum()),
        int(row["accepted"]),
        visible(own["text"].iloc[-1]) or "■" if len(own) else "", own["origin"].iloc[-1] if len(own) else "",
        visible(before["text"].iloc[-1]) if len(before) else "the prompt",
        {"score": "score", "q": "probability"}[rated],
    )  # fmt: skip


def _places(nodes: tuple[Node, ...]) -> dict[int, float]:
    """Each node's height: leaves stacked downwards, accepted first; a parent level with its first child."""
    below: dict[int, list[Node]] = {}
    for node in nodes:
        below.setdefault(node.parent, []).append(node)
    y: dict[int, float] = {}
    free = 0

    def place(index: int) -> float:
        nonlocal free
        children = sorted(below.get(index, []), key=lambda n: (n.status != "accepted", n.index))
        if not children:
            free += 1
            return free - 1.0
        for child in children:
            y[child.index] = place(child.index)
        return y[children[0].index]

    y[-1] = place(-1)
    return y


def draft_tree(
    trace: Trace, cycle: int | None = None, prompt: int | None = None, ax: Axes | None = None,
    held: bool = False,
) -> Axes:  # fmt: skip
    """Draw the tree that one cycle drafted and the target's verdict on it.

    The root, on the left, is the text's last token; each level is a column. A node shows its sign, its
    token and its score (or, without one, the drafter's probability). The accepted path is the thick line;
    the framed token after it is the one that the target adds.

    Parameters
    ----------
    trace : Trace
        Its first run is used, from any method that drafts a tree or a chain.
    cycle : int, optional
        Counted from 1. Default: the first cycle with the highest number of accepted tokens.
    prompt : int, optional
        Default: the first.
    ax : Axes, optional
    held : bool
        Also draw nodes that were drafted but not sent to the target.

    Returns
    -------
    Axes

    Raises
    ------
    TraceError
        If the run wrote canvases or decoded a stream, or has no recorded draft for this prompt.
    ParameterError
        If the cycle does not exist or drafted nothing.
    """
    shown = _tree(trace, cycle, prompt, held)
    y = _places(shown.nodes)
    depth = {-1: 0} | {node.index: node.depth for node in shown.nodes}
    deep, grown = max(depth.values()), {node.parent for node in shown.nodes}
    rows = max(y.values()) + 1
    ax = axes(ax, (2.2 + 1.35 * (deep + 1), 1.0 + 0.24 * rows))
    text: Look = {"size": 7.5, "va": "center", "family": fonts(), "parse_math": False, "zorder": 3}
    paper = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    for node in shown.nodes:
        sign, hue, dashes = SIGNS[node.status]
        kept = node.status == "accepted"
        x0, y0, y1 = depth[node.parent], y[node.parent], y[node.index]
        x1 = node.depth if node.index in grown else x0 + LABEL  # a leaf's line ends at its token
        ax.plot([x0, x0 + 0.06, x0 + 0.06, x1], [y0, y0, y1, y1], color=hue, lw=2.2 if kept else 0.9,
                ls=dashes, zorder=2 if kept else 1, solid_joinstyle="round")  # fmt: skip
        rating = "" if np.isnan(node.rating) else f" {node.rating:.2f}".replace(" 0.", " .")
        ax.text(x0 + LABEL, y1, f"{sign} {drawable(short(node.text))}{rating}", color=hue, bbox=paper,
                weight="bold" if kept else "normal", **text)  # fmt: skip
    root, box = drawable(short(shown.root)), paper | {"edgecolor": FRAME, "pad": 1.6, "lw": 0.8}
    ax.text(-0.06, y[-1], root, color=INK, bbox=paper, ha="right", weight="bold", **text)
    if shown.own:
        end, own = shown.end, f"{shown.origin} {drawable(short(shown.own))}"
        height = y[end] - 0.95 if end in grown else y[end]
        ax.text(depth[end] + 0.12, height, own, color=OWN, bbox=box, **text)
    _dress(ax, shown, deep, rows)
    return ax


def _dress(ax: Axes, shown: Tree, deep: int, rows: float) -> None:
    """Set the limits, level labels, title and the key to the signs in use."""
    ax.set(xlim=(-0.75, deep + 0.9), ylim=(rows - 0.4, -1.6), yticks=[])
    ax.set_xticks(np.arange(1, deep + 1) - 0.4, [f"level {i}" for i in range(1, deep + 1)], size=7)
    bare(ax)
    ax.set_title(drawable(shown.sentence), loc="left", size=9, parse_math=False)
    there = [name for name in SIGNS if any(node.status == name for node in shown.nodes)]
    keys = "   ".join(f"{SIGNS[name][0]} {WORDS[name]}" for name in there)
    ax.set_xlabel(f"{keys}   number: {shown.rated}", loc="left", size=7.5)
