"""Draw a what-if over two parameters as a heat map: one cell per setting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specviz.errors import ParameterError
from specviz.view.axes import axes, literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Rectangle

    from specviz.rules.parameters import Value
    from specviz.whatifs import Answer

# The mark that a badge adds to a cell's number, so that every map shows how certain its numbers are.
MARKS = {"exact": "", "bounded": "±", "modelled": "~", "needs a rerun": "?"}
NAMES = {"tau": "τ, tokens per cycle", "tokens_per_second": "tokens/s"}
ROOM = 120  # maximum number of cells with a printed number; in larger maps they are only coloured


def heat_map(
    answer: Answer, x: str | None = None, y: str | None = None, value: str = "tau", ax: Axes | None = None
) -> Axes:
    """Map one number of an answer over two of its parameters; the brightest cell is the largest.

    A cell's number is followed by ± if it is bounded, ~ if it is modelled, and ? if the replay had to stop.
    Such cells are hatched: a count covers only the cycles before that, and an unknown ratio is only a ?.

    Parameters
    ----------
    answer : Answer
        From `specviz.whatif`, with several values of both parameters and one value of every other.
    x, y : str, optional
        Default: the two parameters that have several values.
    value : str
        A column of ``answer.table``.
    ax : Axes, optional

    Returns
    -------
    Axes
        ``answer.trace(...)`` returns the trace of a cell.

    Raises
    ------
    ParameterError
        If the answer lacks a column, or has several rows for one cell.
    """
    table = answer.table
    several = [name for name in answer.parameters if table[name].nunique() > 1]
    x = x or next((name for name in several if name != y), None)
    y = y or next((name for name in several if name != x), None)
    for name in (x, y, value):
        if name is None or name not in table:
            raise ParameterError(
                f"a map needs two parameters with several values and one number, not {x}, {y} and {value}; "
                f"the answer has {', '.join(several) or 'none'} and the columns {', '.join(map(str, table))}"
            )
    assert x is not None
    assert y is not None
    if x == y or table.duplicated([x, y]).any():
        raise ParameterError(
            f"several settings share a cell of {x} and {y}: ask for one value of the other parameters"
        )
    grid = table.pivot(index=y, columns=x, values=value).to_numpy(np.float64)
    badges = table.pivot(index=y, columns=x, values="badge").to_numpy()
    columns, rows = sorted(table[x].unique()), sorted(table[y].unique())
    ax = axes(ax, (max(4.0, 1.4 + 0.62 * len(columns)), max(2.2, 1.2 + 0.42 * len(rows))), boxed=True)
    image = ax.imshow(grid, cmap="cividis", aspect="auto", origin="lower")
    ax.set_xticks(range(len(columns)), list(map(_tick, columns)))
    ax.set_yticks(range(len(rows)), list(map(_tick, rows)))
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    ax.set_title(f"{NAMES.get(value, value)} [{answer.badges.get(value, answer.badge)}]", loc="left", size=10)
    ax.figure.colorbar(image, ax=ax)
    _numbers(ax, grid, badges, f"{value}_lo" in table)
    return ax


def _tick(value: Value) -> str:
    """Format a parameter's value, which may be a number, a string or a boolean."""
    return literal(str(value)) if isinstance(value, str | bool | np.bool_) else f"{value:g}"


def _numbers(ax: Axes, grid: np.ndarray, badges: np.ndarray, has_interval: bool) -> None:
    """Write each cell's number with its badge's mark, and hatch the cells whose replay had to stop."""
    values = grid[~np.isnan(grid)]
    middle = (values.min() + values.max()) / 2 if len(values) else 0.0
    # All numbers get the decimals that give the largest one three digits.
    largest = np.abs(values).max(initial=0)
    decimals = 2 - min(2, int(np.floor(np.log10(largest)))) if largest > 0 else 0
    for i, j in np.ndindex(grid.shape):
        badge = str(badges[i, j])
        stopped, number = badge == "needs a rerun", grid[i, j]
        if stopped:
            ax.add_patch(_hatch(i, j))
        if grid.size <= ROOM and (stopped or number == number):
            colour = "white" if number <= middle else "black"
            # A badge applies to the whole row; an exact number in a bounded row gets no mark.
            mark = MARKS.get(badge, "") if badge != "bounded" or has_interval else ""
            word = f"{number:,.{decimals}f}" if number == number else ""
            ax.text(j, i, word + mark, ha="center", va="center", color=colour, size=8)


def _hatch(row: int, column: int) -> Rectangle:
    from matplotlib.patches import Rectangle

    return Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, hatch="///", linewidth=0, edgecolor="0.7")
