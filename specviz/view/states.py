"""Compare stepwise and speculative unmasking side by side, one state per row.

Both place the same tokens in the same cells in the same order, so the number of placed cells identifies a
state (figure 2 of SSD, Gao et al. 2025). Stepwise decoding runs a pass at every state; speculative unmasking
skips the states that its draft covers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specviz.errors import TraceError
from specviz.rules.speculative import common_prefix
from specviz.schema import Metadata
from specviz.trace import Trace
from specviz.view.axes import axes, bare, fonts
from specviz.view.canvas import STATES, WHY, Canvas, Pass, Placed, canvas
from specviz.view.lattices import FRAME, GRID, INK, short
from specviz.view.picture import name_of, prompts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 80  # maximum number of states drawn
DONE = "#5f5f5f"
LETTERS = 18  # maximum length of a token's text


@dataclass(frozen=True)
class Aligned:
    """Two runs aligned by state.

    Parameters
    ----------
    base, other : Canvas
        The stepwise run, and the run compared with it.
    same : int
        Number of states common to both: the placements on which they agree.
    parted : bool
        Whether the runs diverge after these.
    """

    base: Canvas
    other: Canvas
    same: int
    parted: bool

    @property
    def passes(self) -> list[Pass]:
        """The other run's passes that begin at a common state."""
        return [one for one in self.other.passes if one.begun < self.same]

    @property
    def saved(self) -> list[int]:
        """States at which stepwise decoding ran a pass and the other did not."""
        begun = {one.begun for one in self.passes}
        return [state for state in range(self.same) if state not in begun]

    @property
    def sentence(self) -> str:
        """The comparison in one or two sentences."""
        there, saved = self.same, len(self.saved)
        share = f" ({saved / there:.0%})" if there else ""
        sentence = (
            f"{there} states: stepwise runs a pass at each, {self.other.method} at {there - saved}; "
            f"{saved} saved{share}"
        )
        if self.parted:
            sentence += f". They diverge at state {there}: the runs are not compared from there on"
        return sentence


def align(stepwise: Trace, ssd: Trace, prompt: int | None = None) -> Aligned:
    """Align two runs of one prompt by state.

    Raises
    ------
    TraceError
        If one did not write canvases, the first is not stepwise, or the model, prompt or policy differs.
    """
    runs = [trace.split()[0] for trace in (stepwise, ssd)]
    index = prompts(runs[0])[0] if prompt is None else prompt
    base, other = (canvas(run, index) for run in runs)
    if base.method != "stepwise":
        raise TraceError(
            f"the first trace is the reference: it must be from stepwise, not from {base.method}"
        )
    names = [name_of(run.run["model"]) for run in runs]
    if names[0] != names[1]:
        raise TraceError(f"different models: {names[0]} and {names[1]}")
    records: list[Metadata] = [(run.run["prompts"] or [{}] * (index + 1))[index] for run in runs]
    lengths = [one.get("length", len(one.get("tokens") or [])) for one in records]
    both = all(one.get("tokens") for one in records)
    if lengths[0] != lengths[1] or (both and records[0]["tokens"] != records[1]["tokens"]):
        raise TraceError(f"different prompts: prompt {index} of the two traces differs")
    for name, value in base.policy.items():
        if other.policy.get(name) != value:
            raise TraceError(
                f"different policies: {name} is {value} and {other.policy.get(name)}; the states agree only "
                f"under the same policy ({', '.join(base.policy)})"
            )
    first, second = _placements(base), _placements(other)
    same = common_prefix([(p.cell, p.token) for p in first], [(p.cell, p.token) for p in second])
    return Aligned(base, other, same, same < max(len(first), len(second)))


def _placements(shown: Canvas) -> list[Placed]:
    return [placed for one in shown.passes for placed in one.placed]


def aligned(
    stepwise: Trace, ssd: Trace, prompt: int | None = None, ax: Axes | None = None, most: int = MOST
) -> Axes:
    """Draw stepwise and speculative unmasking by state: which passes were saved, and why each chain ended.

    A row is the step from one state to the next: the cell and token that both runs place. On the left, a
    square is a pass of stepwise decoding; an empty square is a saved pass. On the right, a bar is one pass of
    the other run and spans its placements, each with a sign for its origin, and a note says why it ended.

    Parameters
    ----------
    stepwise, ssd : Trace
        Their first runs are used; same model, prompt and policy (length, block, cache, refresh).
    prompt : int, optional
        Default: the first.
    ax : Axes, optional
    most : int
        Maximum number of states drawn.

    Returns
    -------
    Axes
        If the runs diverge, the states from there on are left out and the title says so.

    Raises
    ------
    TraceError
        If one did not write canvases, the first is not stepwise, or the model, prompt or policy differs.
    """
    from matplotlib.patches import Rectangle

    both = align(stepwise, ssd, prompt)
    drawn = min(both.same, most)
    ax = axes(ax, (8.6, 1.5 + 0.22 * max(1, drawn)))
    saved = set(both.saved)
    placements = _placements(both.base)
    for state in range(drawn):
        placed = placements[state]
        empty = state in saved
        ax.add_patch(
            Rectangle(
                (0.0, state + 0.16), 0.68, 0.68, facecolor="white" if empty else DONE, edgecolor=DONE,
                ls=":" if empty else "-", lw=1.0,
            )
        )  # fmt: skip
        ax.text(3.0, state + 0.5, f"cell {placed.cell}", size=7.5, va="center", color=FRAME)
        word = short(placed.text, LETTERS)
        ax.text(4.35, state + 0.5, word, size=8, va="center", family=fonts(), parse_math=False)
    for one in both.passes:
        if one.begun >= drawn:
            break
        _bar(ax, one, min(one.ended, drawn))
    _dress(ax, both, drawn)
    return ax


def _bar(ax: Axes, one: Pass, end: int) -> None:
    """Draw one pass of the speculative run over the states from its first to `end`."""
    from matplotlib.patches import FancyBboxPatch

    begin = one.begun
    ax.add_patch(
        FancyBboxPatch(
            (1.32, begin + 0.14), 0.76, end - begin - 0.28, boxstyle="round,pad=0,rounding_size=0.18",
            facecolor="#e3edf4" if len(one.placed) > 1 else "#f2f2f2", edgecolor=FRAME, lw=0.9,
        )
    )  # fmt: skip
    for placed in one.placed[: end - begin]:
        state = STATES["accepted" if placed.origin == "draft" else placed.origin]
        y = begin + 0.5 + placed.order - begin
        ax.text(1.7, y, state.sign, size=8, color=state.hue, weight="bold", ha="center", va="center")
    fresh = "R " if one.refreshed else ""
    ax.text(1.22, begin + 0.5, f"{fresh}{one.number}", size=7, va="center", ha="right", color=INK)
    note = WHY[one.why][1] if one.why != "none" else ""
    ax.text(7.0, end - 0.5, note, size=7.5, va="center", color=INK)
    ax.plot([-0.3, 12.6], [end, end], color=GRID, lw=0.6, zorder=0)


def _dress(ax: Axes, both: Aligned, drawn: int) -> None:
    """Set the limits, column labels, title and the key to the signs in use."""
    ax.set_xlim(-0.3, 12.6)
    ax.set_ylim(drawn, 0)
    ax.set_yticks([state + 0.5 for state in range(drawn)], [str(state) for state in range(drawn)], size=7)
    ax.set_xticks([0.34, 1.7, 3.4], ["stepwise", both.other.method, "places"], size=8)
    ax.annotate(
        "why it placed no more", (7.0, 1), xycoords=("data", "axes fraction"), xytext=(0, 3.5),
        textcoords="offset points", size=8,
    )  # fmt: skip
    bare(ax)
    ax.set_ylabel("state: cells placed before")
    ax.set_title(f"{both.other.name}\n{both.sentence}", loc="left", size=9, parse_math=False)
    used = dict.fromkeys(
        "accepted" if placed.origin == "draft" else placed.origin
        for one in both.passes
        for placed in one.placed
    )
    keys = "  ".join(f"{STATES[name].sign} {STATES[name].word}" for name in STATES if name in used)
    more = f"; {both.same - drawn} more states are in the traces" if both.same > drawn else ""
    ax.set_xlabel(f"{keys};  empty square: a saved pass; R: a refresh{more}", loc="left", size=8)
