"""The result of a check, as text and as HTML."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

RIGHT, WRONG, TODO = "right", "wrong", "todo"
SIGNS = {RIGHT: "✓", WRONG: "✗", TODO: "…"}

# Colours follow the host's theme by its variables; the sign and the words repeat their meaning.
STYLE = """
.specviz-check{--bg0:#fff;--fg0:#1b1b1b;--hue:#d55e00;
--fg:var(--jp-content-font-color1,var(--vscode-editor-foreground,var(--fg0)));
--bg:var(--jp-layout-color0,var(--vscode-editor-background,var(--bg0)));
color:var(--fg);background:var(--bg);
font:14px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;
max-width:780px;padding:.3em 1em;margin:.3em 0;
border-left:4px solid var(--hue);overflow-wrap:anywhere}
@media (prefers-color-scheme:dark){.specviz-check{--bg0:#161616;--fg0:#eee}}
.specviz-check.right{--hue:#009e73}.specviz-check.todo{--hue:#8a8a8a}
.specviz-check p{margin:.35em 0}
.specviz-check .sign{color:color-mix(in srgb,var(--hue) 70%,var(--fg));font-weight:700;margin-right:.4em}
.specviz-check .table{overflow-x:auto}
.specviz-check.specviz-check table{border-collapse:collapse;margin:.6em 0;font-size:.93em;border:0}
.specviz-check.specviz-check tbody tr{background:none}
.specviz-check.specviz-check tbody :is(th,td){text-align:left;vertical-align:top;padding:.2em 1.2em .2em 0;
border:0;border-bottom:1px solid color-mix(in srgb,var(--fg) 18%,var(--bg));color:inherit;max-width:none}
.specviz-check.specviz-check tbody th{font-weight:400;white-space:nowrap}
.specviz-check.specviz-check tbody .given th{color:color-mix(in srgb,var(--fg) 72%,var(--bg))}
.specviz-check td{font-family:ui-monospace,Menlo,Consolas,monospace;white-space:pre-wrap;line-height:1.35}
.specviz-check .yours td,.specviz-check .right td{font-weight:700}
""".strip()

MOST = 20  # maximum rows and columns of an array to show; no example has as many

_SHORT = reprlib.Repr()
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxset = _SHORT.maxdict = 12
_SHORT.maxstring = _SHORT.maxother = 160


@dataclass(frozen=True, repr=False)
class Result:
    """A check's verdict: true if every case is right.

    Parameters
    ----------
    exercise : str
        Name of the exercise.
    state : str
        ``right``, ``wrong`` or ``todo``.
    headline : str
        How many cases are right or wrong.
    says : str
        What is wrong, or a question that leads further.
    rows : list of (kind, name, value)
        The example: the ``given`` values, those that ``yours`` returned, and the ``right`` ones.
    score : str
        How many exercises are right so far; empty if no score is kept.
    """

    exercise: str
    state: str
    headline: str
    says: str = ""
    rows: list[tuple[str, str, str]] = field(default_factory=list)
    score: str = ""

    def __bool__(self) -> bool:
        return self.state == RIGHT

    def __repr__(self) -> str:
        lines = [f"{SIGNS[self.state]} {self.exercise}: {self.headline}"]
        if self.says:
            lines.append(f"  {self.says}")
        width = max((len(name) for _, name, _ in self.rows), default=0)
        for _, name, value in self.rows:
            first, *more = value.splitlines() or [""]
            lines.append(f"    {name:{width}}  {first}")
            lines += [f"    {'':{width}}  {line}" for line in more]
        if self.score:
            lines.append(f"  {self.score}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        parts = [
            f"<div class='specviz-check {self.state}' role='status'><style>{STYLE}</style>",
            f"<p><span class='sign' aria-hidden='true'>{SIGNS[self.state]}</span>"
            f"<strong>{escape(self.exercise)}</strong>: {escape(self.headline)}</p>",
        ]
        if self.says:
            parts.append(f"<p>{escape(self.says)}</p>")
        if self.rows:
            parts.append("<div class='table'><table><tbody>")
            for kind, name, value in self.rows:
                cells = f"<th scope='row'>{escape(name)}</th><td>{escape(value)}</td>"
                parts.append(f"<tr class='{escape(kind)}'>{cells}</tr>")
            parts.append("</tbody></table></div>")
        if self.score:
            parts.append(f"<p>{escape(self.score)}</p>")
        return "".join([*parts, "</div>"])


def words(value: Any) -> str:
    """Format a value as a few short lines: arrays by rows, numbers with at most three decimals."""
    if isinstance(value, np.ndarray) and value.ndim in (1, 2) and value.dtype.kind in "biuf" and value.size:
        rows = (value[None] if value.ndim == 1 else value)[:MOST, :MOST]
        cells = [[number(x, decimals(rows)) for x in row] for row in rows.tolist()]
        width = max(len(cell) for row in cells for cell in row)
        return "\n".join(" ".join(f"{cell:>{width}}" for cell in row) for row in cells)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return number(value, decimals(np.array([value])))
    try:
        return _SHORT.repr(value)
    except Exception:  # a student's own __repr__ may raise anything
        return f"a {type(value).__name__}"


def number(x: Any, places: int = 3) -> str:
    """Format a number briefly, and a truth value as 1 or 0."""
    if isinstance(x, bool | int):
        return str(int(x))
    return f"{x:.{places}f}" if abs(x) < 1e6 else f"{x:.3g}"


def decimals(values: np.ndarray) -> int:
    """Decimals, at most three, that show every number of an array to within half a unit of the third."""
    return next(k for k in range(4) if k == 3 or (np.abs(values - values.round(k)) < 5e-4).all())
