"""A run, a replay or all of them as one offline page: where it was measured, tables, plots, links to traces.

plotly's script is packed into the page once; the traces of the best, the median and the worst prompt become
pages of the player beside it. The page's policy forbids every connection; without scripts its tables remain.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from specviz import escape
from specviz.errors import ParameterError, TraceError, install
from specviz.escape import html as text
from specviz.escape import markdown as markdown_text
from specviz.escape import script_sources
from specviz.files import write_text
from specviz.measure.rows import Results, fast, key_of, speed
from specviz.paths import folder
from specviz.replays.recipes import CURVES, RECIPES
from specviz.replays.replays import (
    ALL,
    ARROW,
    FILE,
    MARKS,
    Replay,
    Replays,
    marks,
    metric_name,
    said,
)

if TYPE_CHECKING:
    from specviz.trace import Trace

PAGE, PAGES = "report.html", "pages"
POLICY = (
    "default-src 'none'; script-src {}; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
NO_TRACES = (
    "No traces were kept, so there is no player to open: a run keeps them with traces = true (--traces)."
)
MOST_NOTES = 12
MOST_COMPARISONS = 200  # that are listed one by one
WIDE = 5  # columns of numbers of a table whose ratios stand below them
LABEL = 30  # letters of a line of a plot's label
PLOTS = 2  # metrics of a table that are drawn


def opened(path: str | Path) -> Results | Replay | Replays:
    """What a folder holds: a run, a replay, or several.

    Raises
    ------
    TraceError
        If it is none of them.
    """
    from specviz.replays import replays

    path = Path(path)
    if (path / ALL).is_file():
        return replays.opened_all(path)
    if (path / FILE).is_file():
        return replays.opened(path)
    if (path / "run.json").is_file():
        return Results(path)
    raise TraceError(
        f"{path} holds no result: it has neither run.json (specviz bench run) nor {FILE} (specviz replay)"
    )


def csv(found: Results | Replay | Replays) -> str:
    """A run's table, a replay's numbers, or an overview's: a column a name, nothing rounded."""
    return escape.csv(found.table() if isinstance(found, Results) else found.frame())


def write(found: Results | Replay | Replays, path: Path | None = None, force: bool = False) -> Path:
    """Write the page, by default ``report.html`` in the result's own folder, and the traces' pages beside it.

    Raises
    ------
    TraceError
        If a file exists (unless `force`) or cannot be written.
    ParameterError
        If plotly is not installed.
    """
    path = path or found.path / PAGE
    if path.exists() and not force:
        raise TraceError(f"{path} exists: choose another path, or overwrite it with --force")
    page = Page(path, plotly())
    if isinstance(found, Results):
        page.run(found)
    elif isinstance(found, Replay):
        page.replay(found)
    else:
        page.replays(found)
    return write_text(path, page.document(), force)


def markdown(found: Results | Replay | Replays) -> str:
    """A result for an issue."""
    if not isinstance(found, Results):
        return found.markdown()
    shown = found.shown().astype(str)
    rows: list[Any] = [list(shown), ["---"] * len(list(shown)), *shown.to_numpy().tolist()]
    lines = ["| " + " | ".join(map(markdown_text, row)) + " |" for row in rows]
    where = [
        markdown_text(
            f"{e['device']} ({e['processor']}), {e['threads']} thread{'s' * (e['threads'] != 1)}, "
            f"{e['dtype']}; times by {e['clock']}"
        )
        for e in found.environments.values()
    ]
    head = [f"### specviz bench run: {markdown_text(found.path.name)}", ""]
    said = [f"- {each}" for each in [*where, *map(markdown_text, found.notes())]]
    return "\n".join([*head, *lines, "", *said, ""])


def plotly() -> str:
    """plotly's script.

    Raises
    ------
    ParameterError
        If it is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ParameterError(f"a report's plots need plotly: {install('lab')}") from None
    return str(get_plotlyjs())


class Page:
    """Collects the parts of a page.

    Parameters
    ----------
    path : Path
        Where it will lie; links are relative to it.
    script : str
        plotly's.
    """

    def __init__(self, path: Path, script: str) -> None:
        self.path, self.script = path, script
        self.title = ""
        self.parts: list[str] = []
        self.figures: list[dict[str, Any]] = []

    # ------------------------------------------------------------ the whole

    def document(self) -> str:
        """The page's HTML."""
        style, boot = (
            files("specviz.replays").joinpath(f"page.{kind}").read_text("utf8") for kind in ("css", "js")
        )
        packed = base64.b64encode(zlib.compress(self.script.encode(), 9)).decode() if self.figures else ""
        policy = POLICY.format(script_sources(boot, *([self.script] if self.figures else [])))
        told = json.dumps(self.figures, ensure_ascii=True, allow_nan=False).replace("</", "<\\/")
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{text(self.title)}</title>'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            f"<style>{style}</style></head><body><main>{''.join(self.parts)}</main>"
            f'<script type="text/plain" id="plotly">{packed}</script>'
            f'<script type="application/json" id="figures">{told}</script>'
            f'<script type="module">{boot}</script></body></html>'
        )

    def add(self, *parts: str) -> None:
        self.parts += parts

    def heading(self, title: str, below: str = "") -> None:
        """The page's own."""
        self.title = title
        self.add(f"<h1>{text(title)}</h1>", f"<p class='soft'>{text(below)}</p>" if below else "")

    def environment(self, found: Mapping[str, Any]) -> None:
        """Where it was measured: what a reader must know to judge it."""
        if not found:
            return
        told: dict[str, Any] = {}
        for name in ("device", "processor", "system", "cores", "threads", "dtype", "clock"):
            if found.get(name) is not None:
                told[name] = found[name]
        model = found.get("model") or {}
        for name, each in [("model", model), *(("drafter", d) for d in (found.get("drafts") or {}).values())]:
            if isinstance(each, Mapping) and each.get("name"):
                size = f", {each['parameters']:,} parameters" if each.get("parameters") else ""
                mark = f", weights {each['weights']}" if each.get("weights") else ""
                told.setdefault(name, f"{each['name']}{size}{mark}")
        told["versions"] = ", ".join(f"{name} {v}" for name, v in (found.get("versions") or {}).items())
        items = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in told.items())
        self.add(f"<h2>Environment</h2><dl>{items}</dl>")

    def table(
        self, headings: Sequence[str], rows: Iterable[Sequence[str]], names: int = 1, words: bool = False
    ) -> None:
        """A table of cells that are already HTML: the first `names` columns are names, the others numbers.

        With `words` the others are sentences. In a wide table ratios stand below their numbers.
        """
        wide = " class='wide'" if len(headings) - names > WIDE else ""
        head = "".join(
            f"<th scope='col'{self._side(i, names, words)}>{h}</th>" for i, h in enumerate(headings)
        )
        body = "".join(f"<tr>{row}</tr>" for row in self._rows([list(row) for row in rows], names, words))
        self.add(
            f"<div class='scroll' tabindex='0' role='region' aria-label='table'><table{wide}>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def _rows(self, rows: list[list[str]], names: int, words: bool) -> Iterator[str]:
        """Rows of cells; a name that stands for several rows, as all in front of it do, is written once."""
        for at, row in enumerate(rows):
            cells = ""
            for i, cell in enumerate(row):
                span, upto = "", i + 1
                if i < names - 1:
                    if at and rows[at - 1][:upto] == row[:upto]:
                        continue
                    many = 1
                    while at + many < len(rows) and rows[at + many][:upto] == row[:upto]:
                        many += 1
                    span = f" rowspan='{many}'" if many > 1 else ""
                cells += f"<td{self._side(i, names, words)}{span}>{cell}</td>"
            yield cells

    @staticmethod
    def _side(i: int, names: int, words: bool) -> str:
        return " class='name'" if i < names else " class='words'" if words else " class='n'"

    def plots(self, made: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """Figures beside each other, each with what it says for those who do not see it."""
        if not made:
            return
        places = ""
        for label, figure in made:
            places += (
                f"<div class='figure' role='img' aria-label=\"{text(label)}\" "
                f"data-figure='{len(self.figures)}'></div>"
            )
            self.figures.append(figure)
        self.add(f"<div class='figures'>{places}</div>")

    # ------------------------------------------------------------ a run

    def run(self, results: Results) -> None:
        """A run's page."""
        from specviz.measure.rows import KEPT, SAID

        self.heading(f"specviz bench run: {results.path.name}", f"Begun {results.created}; {results.path}")
        done, of = len(results.done), len(results.wanted)
        self.add(f"<p>{done} of {of} rows, {len(results.failures())} failed.</p>")
        for each in results.environments.values():
            self.environment(each)
        self.add("<h2>Methods</h2>")
        shown = results.shown()
        self.table([text(c) for c in shown], shown.astype(str).map(text).to_numpy().tolist(),
                   sum(c in (*SAID, *KEPT) for c in shown))  # fmt: skip
        self.plots(run_figures(results))
        for by in ("kind", "language"):
            parts = results.shown(by)
            if by in parts:
                self.add(f"<details><summary>By {by}</summary>")
                self.table([text(c) for c in parts], parts.astype(str).map(text).to_numpy().tolist(),
                           sum(c in (*SAID, *KEPT) for c in parts))  # fmt: skip
                self.add("</details>")
        self.listed("Notes", results.notes())
        self.add("<h2>Traces</h2>")
        self.traces(results)

    def traces(self, results: Results, front: str = "") -> None:
        """Links to the best, the median and the worst prompt of the fastest contender, in the player."""
        chosen = marked(results)
        if chosen is None:
            self.add(f"<p>{NO_TRACES}</p>")
            return
        cell, prompts = chosen
        label = " ".join(filter(None, [cell["method"], cell["draft"] and Path(cell["draft"]).name]))
        self.played(label, [
            (f"{front}{results.path.name}-{key_of(row['cell'], row['round'], row['prompt'])}",
             results.trace(row["cell"], row["prompt"], row["round"]), f"{name}: {figure}",
             ", ".join(str(row[k]) for k in ("kind", "language", "id") if row.get(k) is not None))
            for name, (row, figure) in prompts.items()
        ])  # fmt: skip

    def played(self, of: str, traces: Sequence[tuple[str, Trace, str, str]]) -> None:
        """Traces as pages of the player, and links: (page's name, trace, the link's words, what follows)."""
        from specviz.widgets import page

        links = []
        for name, trace, words, more in traces:
            page.write(trace, self.path.parent / PAGES / f"{name}.html", force=True)
            links.append(
                f"<span><a href='{PAGES}/{text(name)}.html'>{text(words)}</a> "
                f"<span class='soft'>{text(more)}</span></span>"
            )
        self.add(f"<p>In the player, {text(of)}: {'; '.join(links)}.</p>")

    def listed(self, title: str, lines: Sequence[str], tag: str = "h2") -> None:
        """A list below a heading, if there is anything."""
        if not lines:
            return
        items = "".join(f"<li>{text(line)}</li>" for line in lines[:MOST_NOTES])
        more = "".join(f"<li>{text(line)}</li>" for line in lines[MOST_NOTES:])
        more = (
            f"<details><summary>{len(lines) - MOST_NOTES} more</summary><ul>{more}</ul></details>"
            if more
            else ""
        )
        self.add(f"<{tag}>{text(title)}</{tag}><ul>{items}</ul>{more}")

    # ------------------------------------------------------------ replays

    def replays(self, every: Replays) -> None:
        """The page of all tables: an overview, then each, paper by paper."""
        papers: dict[str, list[Replay]] = {}
        for each in every.found:
            papers.setdefault(each.table.partition("/")[0], []).append(each)
        when = max((each.created for each in every.found), default="")[:10]
        self.heading(
            "The papers' numbers, measured here",
            " · ".join(filter(None, [
                f"{len(every.found)} tables and figures replayed, {len(every.left)} listed with the reason",
                every.found[0].device if every.found else "", when,
            ])),
        )  # fmt: skip
        links = [("overview", "overview"), *((name, name) for name in papers), ("left", "not replayed")]
        self.add("<nav>", *(f"<a href='#{text(to)}'>{text(word)}</a>" for to, word in links), "</nav>")
        self.add("<h2 id='overview'>Overview</h2>", f"<p>{HOW_TO_READ}</p>")
        rows = [
            [text(r.table.partition("/")[0]),
             f"<a href='#{anchor(r.table)}'>{text(r.table.partition('/')[2])}</a> "
             f"<span class='caption'>{text(r.caption)}</span>",
             verdicts(n := r.counts()), f"{n['measured']} of {n['cells']}", f"{r.seconds:.0f}"]
            for those in papers.values() for r in those
        ]  # fmt: skip
        self.table(["paper", "what it shows", "the same order here?", "measured", "seconds"], rows, 2)
        self.add("<div id='left'></div>")
        self.listed("Not replayed", [f"{table}: {why}" for table, why in every.left.items()])
        if every.found:
            self.environment({**every.found[0].environment, "model": None, "drafts": None})
        for paper, those in papers.items():
            chips = (f"<a href='#{anchor(r.table)}'>{text(r.table.partition('/')[2])}</a>" for r in those)
            self.add(f"<h2 id='{text(paper)}'>{text(paper)}: {text(title(paper))}</h2>",
                     "<p class='links'>", *chips, "</p>")  # fmt: skip
            for each in those:
                self.one(each, "h3")

    def replay(self, made: Replay) -> None:
        """The page of one table."""
        self.heading(f"{made.table}, measured here", f"{made.device} · {made.created}")
        self.one(made)
        self.environment(made.environment)

    def one(self, made: Replay, tag: str = "h2") -> None:
        """A table's section."""
        below = f"h{int(tag[1]) + 1}"
        self.add(
            f"<section><{tag} id='{anchor(made.table)}'>{text(made.table)}: {text(made.caption)}</{tag}>",
            f"<p class='soft'>{text(made.place)} · {made.seconds:.0f} seconds on {text(made.device)}</p>",
            f"<p>{text(made.summary)}.</p>", f"<p class='verdict'>{verdicts(made.counts(), words=True)}</p>",
        )  # fmt: skip
        self.plots(curve_figures(made) if made.table in CURVES else replay_figures(made))
        if any(cell["measured"] is not None for cell in made.cells):
            headings, rows, left = made.grid()
            cells = [[*map(text, row[:left]), *map(coloured, row[left:])] for row in rows]
            self.table([text(h) for h in headings], cells, left)
            self.folded("Every number, with intervals and ratios", *full(made))
            self.folded("Every comparison, one by one", *compared(made))
        self.listed("Not measured", [f"{which}: {why} ({n})" for which, why, n in made.missing()], below)
        self.add(f"<{below}>What differs</{below}>")
        rows = [[text(s["what"]), text(s["paper"]), text(s["here"])] for s in made.setup]
        self.table(["", "the paper", "here"], rows, words=True)
        self.listed("Notes", made.notes, below)
        for name in made.runs:
            if (made.path / name / "run.json").is_file():
                self.traces(Results(made.path / name), f"{anchor(made.table)}-")
        self.recorded(made)
        self.add("</section>")

    def recorded(self, made: Replay) -> None:
        """The traces of a replay without a run, as far as they are there."""
        from specviz.trace import Trace

        files = [(each, made.path / "traces" / Path(each["file"]).name) for each in made.traces]
        there = [
            (f"{anchor(made.table)}-{file.stem}", Trace.open(file), f"{each['name']}: {each['figure']}", "")
            for each, file in files
            if file.is_file()
        ]
        if there:
            self.played(made.traces[0]["of"], there)

    def folded(self, name: str, headings: list[str], rows: list[list[str]], names: int) -> None:
        """A table that a reader opens."""
        if rows:
            self.add(f"<details><summary>{text(name)}</summary>")
            self.table(headings, rows, names)
            self.add("</details>")


def verdicts(n: Mapping[str, int], words: bool = False) -> str:
    """How many comparisons clearly go the paper's way, are unclear, clearly do not: a bar, and numbers."""
    counts = [n["clear_agrees"], n["unclear"], n["clear_against"]]
    if not sum(counts):
        return "" if words else "–"
    bar = "".join(f"<i class='{kind}' style='flex:{c}'></i>" for kind, c in zip(KINDS, counts) if c)
    said = (
        f"<span class='{kind}'>{mark} {c}{' ' + word if words else ''}</span>"
        for kind, mark, c, word in zip(KINDS, MARKS, counts, SAID)
    )
    return f"<span class='bar' aria-hidden='true'>{bar}</span> <span class='counts'>{' '.join(said)}</span>"


KINDS = ("agrees", "unclear", "against")
SAID = ("clearly the paper's way", "unclear", "clearly the other way")
HOW_TO_READ = (
    "A number that was printed for another model on another machine is not expected again; the order of the "
    "contenders may be. Of every two in a column that the paper tells apart: "
    f"{MARKS[0]} they clearly stand in the same order here, {MARKS[1]} the texts are too few or the "
    f"difference too small to tell, {MARKS[2]} they clearly stand in the other one. Clear: 95 % of the "
    "differences on the same texts, drawn anew, have one sign; where nothing differs, one comparison in "
    "twenty is clear by chance. The same measurement stands beside what was printed for each of a paper's "
    "devices and models."
)


def anchor(table: str) -> str:
    """A table's name within the page."""
    return text(table.replace("/", "-"))


def coloured(cell: str) -> str:
    """A cell of a grid: printed in grey, measured in bold, the ratio below; or a row's verdicts."""
    printed, arrow, here = cell.partition(f" {ARROW} ")
    if not arrow:
        return " ".join(tinted(part) for part in cell.split(" ")) if cell[:1] in MARKS else text(cell)
    value, _, ratio = here.partition(" ")
    return f"<span class='printed'>{text(printed)}</span> {ARROW} <span class='here'>{text(value)}</span>" + (
        f" <span class='ratio'>{text(ratio.strip('()'))}</span>" if ratio else ""
    )


def tinted(mark: str) -> str:
    """A mark with its number."""
    return f"<span class='{KINDS[MARKS.index(mark[0])]}'>{text(mark)}</span>"


def full(made: Replay) -> tuple[list[str], list[list[str]], int]:
    """Every number of a table: what was printed, what was measured, the ratio, and the comparisons."""
    keys = [*made.keys, "metric", "device", "model"]
    shown = [k for k in keys if any(str(cell[k]) not in ("", "-") for cell in made.cells)]
    agreed = made.agreement()
    rows = []
    for i, cell in enumerate(made.cells):
        if cell["measured"] is None:
            here, ratio = "–", ""
        else:
            here = said(cell["measured"], cell["printed"])
            if cell["low"] is not None:
                here += f" [{said(cell['low'], cell['printed'])}, {said(cell['high'], cell['printed'])}]"
            ratio = f"{cell['measured'] / cell['value']:.2f}" if cell["value"] else ""
        mark = coloured(marks(agreed[i])) if any(agreed[i]) else ""
        unit = "" if not cell["unit"] else f" {cell['unit']}"
        rows.append([*(text(cell[k]) for k in shown), text(cell["printed"] + unit), text(here), ratio, mark])
    return [*(text(k) for k in shown), "printed", "measured", "ratio", "order"], rows, len(shown)


def compared(made: Replay) -> tuple[list[str], list[list[str]], int]:
    """Every comparison of a table that is not too large."""
    found = made.comparisons()
    if len(found) > MOST_COMPARISONS:
        return [], [], 0
    held = [name for name in made.held if found[name].astype(str).nunique() > 1]
    rows = []
    for each in found.to_dict("records"):
        words = str(each["verdict"])
        if words in ("agrees", "against"):
            place = 1 if not each["clear"] else 0 if words == "agrees" else 2
            words = f"<span class='{KINDS[place]}'>{MARKS[place]} {SAID[place]}</span>"
        numbers = [text(f"{each[name]:+.3g}") for name in ("printed", "measured")]
        rows.append([*(text(each[name]) for name in (*held, "first", "second")), *numbers, words])
    names = [*(text(name) for name in held), "this", "less this", "printed", "here", "order"]
    return names, rows, len(held) + 2


def title(paper: str) -> str:
    """A paper's title."""
    told = json.loads((folder("published") / paper / "tables.json").read_text(encoding="utf8"))
    return str(told["title"])


def marked(results: Results) -> tuple[dict[str, Any], dict[str, tuple[dict[str, Any], str]]] | None:
    """The fastest contender that left traces, and its best, median and worst prompt with their figure."""
    best: tuple[float, dict[str, Any], list[tuple[float, dict[str, Any]]], str] | None = None
    fine = [row for row in results.records() if row["error"] is None]
    for cell in results.cells:
        if cell["cell"] == cell["against"]:
            continue
        base = {(r["round"], r["prompt"]): r for r in fine if r["cell"] == cell["against"]}
        timed, counted_ = [], []
        for row in (r for r in fine if r["cell"] == cell["cell"]):
            key = key_of(row["cell"], row["round"], row["prompt"])
            if not (results.path / "traces" / f"{key}.parquet").exists():
                continue
            other = base.get((row["round"], row["prompt"]))
            if other is not None and fast(row) and fast(other):
                timed.append((speed(row) / speed(other), row))
            if row["steps"]:
                counted_.append((row["tokens"] / row["steps"], row))
        ranked, unit = (timed, "× as fast") if timed else (counted_, "tokens a cycle")
        if ranked:
            ranked.sort(key=lambda each: each[0])
            middle = ranked[len(ranked) // 2][0]
            if best is None or middle > best[0]:
                best = middle, cell, ranked, unit
    if best is None:
        return None
    _, cell, ranked, unit = best
    places = {"best": ranked[-1], "median": ranked[len(ranked) // 2], "worst": ranked[0]}
    return cell, {name: (row, f"{value:.2f} {unit}") for name, (value, row) in places.items()}


# ---------------------------------------------------------------- plots


def run_figures(results: Results) -> list[tuple[str, dict[str, Any]]]:
    """Speedups by their three averages, and τ, of each contender."""
    table = results.table()
    own = {cell["cell"] for cell in results.cells if cell["cell"] == cell["against"]}
    table = table[~table["cell"].isin(own)]
    contenders: Any = table.fillna("").itertuples()
    labels = [
        " ".join(filter(None, [str(r.method), str(r.draft or "") and Path(str(r.draft)).name, r.parameters]))
        + (f" ({r.suite}, {r.model})" if len(set(table["suite"] + table["model"])) > 1 else "")
        for r in contenders
    ]
    made = []
    for title, names in (
        ("times as fast as the reference", ("pooled_speedup", "request_speedup", "paired_speedup")),
        ("tokens a cycle (τ)", ("tau",)),
    ):
        traces = []
        for name, symbol in zip(names, ("circle", "diamond", "square")):
            values = table[name]
            if values.notna().any():
                spans = [
                    (v, lo, hi) for v, lo, hi in zip(values, table[f"{name}_low"], table[f"{name}_high"])
                ]
                traces.append(dots("here", name.partition("_")[0], labels, spans, symbol))
        if traces:
            made.append((f"{title}, by method", figure(title, traces, one=title.startswith("times"))))
    return made


def replay_figures(made: Replay) -> list[tuple[str, dict[str, Any]]]:
    """Printed beside measured, contender by contender, for the first metrics of a table."""
    shown = [made.cells[i] for i in made.shown()]
    metrics = list(dict.fromkeys(c["metric"] for c in shown if c["measured"] is not None))
    first = [name for name in RECIPES[made.table].metrics if name in metrics]
    metrics = list(dict.fromkeys([*first, *(m for m in metrics if not m.endswith("_gain"))]))
    found = []
    for metric in sorted(metrics, key=lambda m: m != "speedup")[:PLOTS]:
        cells = [c for c in shown if c["metric"] == metric]
        labels = [", ".join(contender(name, str(c[name])) for name in made.compare) for c in cells]
        values = [(c["value"], None, None) for c in cells]
        beside = spread_over(made, cells)
        labels = [" · ".join([label, *(str(c[k]) for k in beside)]) for label, c in zip(labels, cells)]
        where = [
            named(c, [*(k for k in made.keys if k not in made.compare), "device", "model"]) for c in cells
        ]
        printed = dots("printed", "printed", labels, values, "circle-open", where)
        own: dict[tuple[str, str], tuple[Any, Any, Any]] = {}
        for label, cell in zip(labels, cells):
            if cell["measured"] is not None:  # once, though the paper printed it of several devices
                place = label, named(cell, [k for k in made.keys if k not in made.compare])
                own[place] = cell["measured"], cell["low"], cell["high"]
        if not own:
            continue
        names, columns = [label for label, _ in own], [column for _, column in own]
        here = dots("here", "measured here", names, list(own.values()), "diamond", columns)
        axis = axis_of(metric, cells[0]["unit"])
        both = [printed, here] if any(v is not None for v, _, _ in values) else [here]
        drawn = figure(axis, both, metric == "speedup")
        found.append((f"{made.table}, {axis}: printed and measured", drawn))
    return found


def curve_figures(made: Replay) -> list[tuple[str, dict[str, Any]]]:
    """Curves as the paper draws them: quality by speed, or a metric by what varies."""
    metrics = list(dict.fromkeys(cell["metric"] for cell in made.cells))
    along = made.compare[-1]
    if "speedup" in metrics and {"dataset", "curve", "setting"} <= set(made.cells[0]):
        datasets = dict.fromkeys(cell["dataset"] for cell in made.cells)
        return [trade_off(made, dataset) for dataset in datasets]
    found = []
    for metric in metrics[:PLOTS]:
        lines: dict[str, list[dict[str, Any]]] = {}
        for cell in made.cells:
            if cell["metric"] == metric:
                name = ", ".join(str(cell[key]) for key in made.compare[:-1]) or "measured here"
                lines.setdefault(name, []).append(cell)
        traces = [line(i, name, [(c[along], c["measured"], "") for c in those], "lines+markers")
                  for i, (name, those) in enumerate(lines.items())]  # fmt: skip
        units = {"throughput": "tokens/s", "latency": "s", "forward_time": "s"}
        axis = axis_of(metric, units.get(metric, ""))
        found.append((f"{made.table}: {axis} by {along}", chart(along, axis, traces)))
    return found


def trade_off(made: Replay, dataset: str) -> tuple[str, dict[str, Any]]:
    """Quality by speed of every setting on a data set."""
    settings: dict[tuple[str, str], dict[str, float]] = {}
    for cell in made.cells:
        if cell["dataset"] == dataset:
            settings.setdefault((cell["curve"], cell["setting"]), {})[cell["metric"]] = cell["measured"]
    lines: dict[str, list[tuple[float, float, str]]] = {}
    quality = next(name for values in settings.values() for name in values if name != "speedup")
    for (curve, setting), values in settings.items():
        lines.setdefault(curve, []).append((values["speedup"], values[quality], setting))
    traces = [line(i, name, points, "markers") for i, (name, points) in enumerate(lines.items())]
    axes = axis_of("speedup", "x"), f"{axis_of(quality, '')}, {dataset}"
    return f"{made.table}: {axes[1]} by {axes[0]}", chart(*axes, traces)


SYMBOLS = ("circle", "diamond", "square", "cross", "triangle-up", "x")


def line(number: int, name: str, points: Sequence[tuple[Any, Any, str]], mode: str) -> dict[str, Any]:
    """One curve of a chart; curves differ by their marks, too."""
    x, y, words = zip(*points)
    return {
        "type": "scatter", "mode": mode, "name": text(name), "meta": f"curve{number}", "x": [
            text(each) if isinstance(each, str) else round(each, 6) for each in x],
        "y": [round(float(each), 6) for each in y], "text": [text(each) for each in words],
        "hovertemplate": "%{x}, %{y}<br>%{text}<extra>" + text(name) + "</extra>",
        "marker": {"symbol": SYMBOLS[number % len(SYMBOLS)], "size": 9, "opacity": 0.85},
    }  # fmt: skip


def chart(x: str, y: str, traces: list[dict[str, Any]]) -> dict[str, Any]:
    """Curves with their layout."""
    return {
        "data": traces,
        "layout": {
            "height": 380, "margin": {"t": 40, "b": 46, "l": 10, "r": 14}, "showlegend": len(traces) > 1,
            "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom"},
            "xaxis": {"title": {"text": text(x)}}, "yaxis": {"title": {"text": text(y)}}, "shapes": [],
            "hovermode": "closest",
        },
    }  # fmt: skip


def contender(key: str, value: str) -> str:
    """A contender's name; a bare number says of what."""
    return f"{key.replace('_', ' ')} {value}" if value.replace(".", "", 1).isdigit() else value


def spread_over(made: Replay, cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """Columns that stand beside a contender's name: a line of a plot is one column of the table."""
    keys = [key for key in made.needed() if key in made.keys]
    return [key for key in keys if 1 < len({str(cell[key]) for cell in cells}) <= 4]


def named(cell: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Where a number stands, by some of its keys."""
    return ", ".join(str(cell[key]) for key in keys if str(cell[key]) not in ("", "-"))


def dots(
    kind: str, name: str, labels: Sequence[str], values: Sequence[tuple[Any, Any, Any]], symbol: str,
    hover: Sequence[str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """A scatter of values by label, with intervals where they are known.

    plotly reads tags, so names are escaped.
    """
    clean: Callable[[Any], Any] = lambda v: None if v is None or v != v else round(float(v), 6)
    x = [clean(v) for v, _, _ in values]
    made: dict[str, Any] = {
        "type": "scatter", "mode": "markers", "name": text(name), "meta": kind, "x": x,
        "y": ["<br>".join(map(text, wrap(label, LABEL))) for label in labels],
        "marker": {"symbol": symbol, "size": 9, "opacity": 1 if kind == "here" else 0.75},
    }  # fmt: skip
    if any(clean(low) is not None for _, low, _ in values):
        above = [None if clean(h) is None else h - v for v, _, h in values]
        below = [None if clean(low) is None else v - low for v, low, _ in values]
        made["error_x"] = {"type": "data", "symmetric": False, "array": list(map(clean, above)),
                           "arrayminus": list(map(clean, below)), "thickness": 1.2, "width": 3}  # fmt: skip
    if hover is not None:
        made["text"] = [text(each) for each in hover]
        made["hovertemplate"] = "%{y}: %{x}<br>%{text}<extra>" + text(name) + "</extra>"
    return made


def axis_of(metric: str, unit: str) -> str:
    """A metric with its unit, for an axis."""
    unit = "times as fast" if unit == "x" else unit
    return metric_name(metric) + (f" ({unit})" if unit else "")


def figure(axis: str, traces: list[dict[str, Any]], one: bool = False) -> dict[str, Any]:
    """Traces with their layout; contenders stand in the table's order, from above. `one` marks 1."""
    labels = {label for trace in traces for label in trace["y"]}
    rows, tall = max(4, len(labels)), max((label.count("<br>") for label in labels), default=0)
    line = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1, "meta": "one"}
    return {
        "data": traces,
        "layout": {
            "height": 110 + (26 + 10 * tall) * rows,
            "margin": {"t": 34, "b": 46, "l": 10, "r": 14}, "showlegend": True,
            "legend": {"orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom"},
            "yaxis": {"autorange": "reversed", "type": "category"},
            "xaxis": {"rangemode": "tozero", "title": {"text": text(axis)}},
            "shapes": [line] if one else [], "hovermode": "closest",
        },
    }  # fmt: skip
