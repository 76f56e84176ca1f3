"""Show example texts with the large model's tokens marked (BiLD's Figure 9), as HTML or in a terminal.

Tokens that the target wrote itself are bold, underlined and coloured: fallback, correction, bonus,
resampled and plain tokens. The rest came from the drafter. The marks are readable without colour.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from specviz.errors import TraceError
from specviz.escape import html, spaced, visible
from specviz.trace import Trace
from specviz.view.picture import KINDS, excerpt, name_of, picture, prompts
from specviz.view.static import Page, document, style

DRAFTED = ("draft", "unreviewed")
PROMPT = 160  # maximum number of characters shown of a prompt
STYLE = """
.specviz.specviz.specviz .eg{width:100%;
th,td{text-align:left;vertical-align:top;font-variant-numeric:normal}
th{white-space:nowrap;font-weight:600;color:var(--soft)}
td{white-space:pre-wrap;unicode-bidi:plaintext;width:100%;overflow-wrap:anywhere}
tbody tr:last-child>*{border-bottom:2px solid var(--line)}
small{color:var(--soft);font-weight:400}
}
.specviz :is(.eg,.legend) mark{background:none;color:color-mix(in srgb,var(--hue) 60%,var(--fg));
font-weight:700;text-decoration:underline 2px;text-underline-offset:.2em}
.specviz mark.plain{--hue:#8a8a8a}
.specviz mark.bonus{--hue:#009e73;text-decoration-style:double}
.specviz mark:is(.correction,.rollback){--hue:#d55e00;text-decoration-style:dashed}
.specviz mark.resampled{--hue:#cc79a7;text-decoration-style:wavy}
.specviz mark.fallback{--hue:#e69f00;text-decoration-style:solid}
"""


@dataclass(frozen=True)
class Piece:
    """A piece of text of one kind; an empty kind means no mark."""

    text: str
    kind: str = ""


@dataclass(frozen=True)
class Row:
    """One text: the name of its run, its pieces, and a note such as the large model's share of tokens."""

    name: str
    pieces: tuple[Piece, ...]
    note: str = ""


@dataclass(frozen=True)
class Example:
    """One prompt and the texts to compare."""

    prompt: str
    rows: tuple[Row, ...]


class Examples(Page):
    """Examples that display themselves in a notebook or terminal; created by `specviz.view.examples`.

    Attributes
    ----------
    examples : list of Example
    """

    def __init__(self, examples: Sequence[Example]) -> None:
        self.examples = list(examples)

    @property
    def used(self) -> list[str]:
        """The kinds of the marks that occur."""
        kinds = {piece.kind for one in self.examples for row in one.rows for piece in row.pieces}
        return [name for name in KINDS if name in kinds]

    def _fragment(self) -> str:
        bodies = "".join(_body(one) for one in self.examples)
        keys = "".join(
            f'<span title="{html(KINDS[k].meaning)}"><mark class="{k}">{KINDS[k].word}</mark></span>'
            for k in self.used
        )
        legend = f'<div class="legend"><span>Written by the large model:</span>{keys}</div>' if keys else ""
        return f'{legend}<div class="table"><table class="eg">{bodies}</table></div>'

    def _page(self) -> str:
        return document("specviz examples", [f"<style>{STYLE}</style>{self._fragment()}"])

    def _repr_html_(self) -> str:
        return f'<div class="specviz wide"><style>{style()}{STYLE}</style>{self._fragment()}</div>'

    def __repr__(self) -> str:
        return self.text()

    def text(self, colour: bool = False) -> str:
        """Render for a terminal: the large model's tokens are in ``[brackets]``, or bold and underlined.

        Parameters
        ----------
        colour : bool
            Use bold, underlined ANSI colours instead of brackets.
        """
        lines = []
        for one in self.examples:
            wide = max(len(row.name) for row in one.rows)
            lines.append(f"prompt: {spaced(excerpt(one.prompt, PROMPT))}")
            for row in one.rows:
                body = "".join(_terminal(piece, colour) for piece in row.pieces).replace("\n", "⏎")
                lines.append(
                    f"  {row.name:<{wide}}  {body.strip()}" + (f"  ({visible(row.note)})" if row.note else "")
                )
            lines.append("")
        return "\n".join(lines).rstrip()


def _body(one: Example) -> str:
    prompt = ""
    if one.prompt:
        words = html(excerpt(one.prompt, PROMPT))
        prompt = f'<tr><th scope="row">prompt</th><td><small>{words}</small></td></tr>'
    rows = "".join(
        f'<tr><th scope="row">{html(row.name)}'
        + (f"<br><small>{html(row.note)}</small>" if row.note else "")
        + f'</th><td dir="auto">{"".join(map(_marked, row.pieces))}</td></tr>'
        for row in one.rows
    )
    return f"<tbody>{prompt}{rows}</tbody>"


def _marked(piece: Piece) -> str:
    text = html(spaced(piece.text) if piece.text.strip(" ") == "" else visible(piece.text))
    if not piece.kind:
        return text
    word = text.lstrip(" ")
    kind = KINDS[piece.kind]
    title = html(f"{kind.word}: {kind.meaning}")
    return f'{text[: len(text) - len(word)]}<mark class="{piece.kind}" title="{title}">{word}</mark>'


def _terminal(piece: Piece, colour: bool) -> str:
    text = visible(piece.text)
    if not piece.kind:
        return text
    word = text.lstrip(" ")
    gap = text[: len(text) - len(word)]
    return f"{gap}\x1b[1;4;{KINDS[piece.kind].code or '39'}m{word}\x1b[0m" if colour else f"{gap}[{word}]"


def examples(
    traces: Trace | Mapping[str, Trace],
    large: Trace | None = None,
    small: Trace | None = None,
    which: int | Iterable[int] | None = None,
    most: int = 3,
) -> Examples:
    """Compare texts: ground truth, large, small, and each method with the large model's tokens marked.

    Parameters
    ----------
    traces : Trace or dict of name to Trace
        One or more traces; the first run of each is a row under its name.
    large, small : Trace, optional
        Runs of the two models alone, shown as rows without marks.
    which : int or iterable of int, optional
        Prompts by index. Default: the first `most` whose text has tokens from both models and, if `large`
        is given, differs from the large model's own text.
    most : int
        How many prompts are chosen if `which` is not given.

    Returns
    -------
    Examples
        Displays itself in a notebook; ``to_html(path)`` writes a page, ``text(colour)`` is for a terminal.

    Raises
    ------
    TraceError
        If there is no run, a run fills a canvas, the runs' prompts differ, or a prompt does not exist.
    """
    named = dict(traces) if isinstance(traces, Mapping) else {"": traces}
    methods = {
        name or f"{run.run['method']}": run for name, given in named.items() for run in given.split()[:1]
    }
    alone = {name: run.split()[0] for name, run in (("large", large), ("small", small)) if run is not None}
    if not methods:
        raise TraceError("no run to show examples of")
    for name, run in methods.items():
        if run.run.get("canvas") is not None:
            raise TraceError(
                f"{name} fills a canvas with one model, so there are no tokens of a large model to mark; "
                f"view.lattice shows how it was filled"
            )
    first = next(iter(methods.values()))
    for name, run in [*methods.items(), *alone.items()]:
        if _ids(run) != _ids(first):
            raise TraceError(f"{name} decoded other prompts: examples compares texts of the same prompts")
    there = prompts(first)
    chosen = [which] if isinstance(which, int) else list(which) if which is not None else None
    if chosen is None:
        rated = (index for index in there if _mixed(first, index, alone.get("large")))
        chosen = list(islice(rated, most)) or there[:most]
    for index in chosen:
        if index not in there:
            raise TraceError(f"no prompt {index}; the traces have {len(there)} ({there[0]} to {there[-1]})")
    return Examples([_example(methods, alone, index) for index in chosen])


def _ids(run: Trace) -> list[str | None]:
    return [each.get("tokens") for each in run.run["prompts"] or []]


def _mixed(run: Trace, index: int, large: Trace | None) -> bool:
    """Whether the text has tokens from both models and differs from the large model's own text."""
    one = run.select(prompt=index)
    kept = one.outputs[one.outputs["kept"]]
    share = (~kept["origin"].isin(DRAFTED)).mean()
    return 0 < share < 1 and (large is None or large.select(prompt=index).text != one.text)


def _example(methods: Mapping[str, Trace], alone: Mapping[str, Trace], index: int) -> Example:
    first = next(iter(methods.values()))
    prompt_row = first.select(prompt=index).prompts.iloc[0]
    given = prompt_row["reference"]
    references = [given] if isinstance(given, str) else list(given) if isinstance(given, list | tuple) else []
    rows = [Row("ground truth", (Piece(references[0]),))] if references else []
    for name, run in alone.items():
        rows.append(Row(name, (Piece(run.select(prompt=index).text),), name_of(run.run["model"])))
    for name, run in methods.items():
        shown = picture(run, index)
        spans = [s for s in shown.spans if s.text != "■"]
        own = sum(count for kind, count in shown.counts if kind not in DRAFTED)
        whole = sum(count for _, count in shown.counts)
        note = f"{own} of {whole} tokens from the large model"
        pieces = tuple(Piece(s.text, "" if s.kind in DRAFTED else s.kind) for s in spans)
        rows.append(Row(visible(name), pieces, note))
    return Example(str(prompt_row["text"] or ""), tuple(rows))
