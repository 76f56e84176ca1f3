"""A run, a replay or all of them as one offline page: where it was measured, tables, plots, links to traces.

plotly's script is packed into the page once; the traces of the best, the median and the worst prompt become
pages of the player beside it. The page's policy forbids every connection; without scripts its tables remain.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specviz.errors import ParameterError, TraceError, install
from specviz.escape import html as text
from specviz.escape import script_sources
from specviz.files import write_text
from specviz.measure.report import Row, Values, plural
from specviz.measure.rows import CELL_COLUMNS, ROW_COLUMNS, Results, fast, key_of, speed
from specviz.replays.answers import PART, Answer, answers, reasons
from specviz.replays.cells import FAILS, HOLDS, OPEN, Verdict
from specviz.replays.layout import ARROW, BADGES, MARKS, VERDICTS, grid, like_printed, marks, verdict_lines
from specviz.replays.plots import Figure, Labelled, curve_figures, replay_figures, run_figures
from specviz.replays.replays import Replay, Replays

if TYPE_CHECKING:
    from specviz.trace import Trace

PAGE, PAGES = "report.html", "pages"
POLICY = (
    "default-src 'none'; script-src {}; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)
NO_TRACES = (
    "No traces were kept, so there is no player to open: run with traces = true (--traces) to keep them."
)
MOST_NOTES = 12
MOST_COMPARISONS = 200  # that are listed one by one
WIDE = 5  # columns of numbers of a table whose ratios stand below them
KINDS = ("agrees", "unclear", "against")
TITLES = {FAILS: "Fails here", HOLDS: "Holds here", OPEN: "Cannot be judged here"}
VERDICT_KINDS = {HOLDS: "agrees", FAILS: "against", OPEN: "unclear"}
WAYS = ("clearly as in the paper", "unclear", "clearly the other way")


def write(result: Results | Replay | Replays, path: Path | None = None, force: bool = False) -> Path:
    """Write the page, by default ``report.html`` in the result's own folder, and the traces' pages beside it.

    Raises
    ------
    TraceError
        If a file exists (unless `force`) or cannot be written.
    ParameterError
        If plotly is not installed.
    """
    recorded = result.path.suffix == ".parquet"
    path = path or (result.path.with_suffix(".html") if recorded else result.path / PAGE)
    if path.exists() and not force:
        raise TraceError(f"{path} exists: choose another path, or overwrite it with --force")
    page = Page(path, plotly())
    if isinstance(result, Results):
        page.run(result)
    elif isinstance(result, Replay):
        page.replay(result)
    else:
        page.replays(result)
    return write_text(path, page.document(), force)


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
        self.figures: list[Figure] = []

    # ------------------------------------------------------------ the whole

    def document(self) -> str:
        """The page's HTML."""
        style, boot = (
            files("specviz.replays").joinpath(f"page.{kind}").read_text("utf8") for kind in ("css", "js")
        )
        packed = base64.b64encode(zlib.compress(self.script.encode(), 9)).decode() if self.figures else ""
        policy = POLICY.format(script_sources(boot, *([self.script] if self.figures else [])))
        figures = json.dumps(self.figures, ensure_ascii=True, allow_nan=False).replace("</", "<\\/")
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{text(self.title)}</title>'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            f"<style>{style}</style></head><body><main>{''.join(self.parts)}</main>"
            f'<script type="text/plain" id="plotly">{packed}</script>'
            f'<script type="application/json" id="figures">{figures}</script>'
            f'<script type="module">{boot}</script></body></html>'
        )

    def add(self, *parts: str) -> None:
        self.parts += parts

    def heading(self, title: str, below: str = "") -> None:
        """The page's own."""
        self.title = title
        self.add(f"<h1>{text(title)}</h1>", f"<p class='soft'>{text(below)}</p>" if below else "")

    def environment(self, place: Values) -> None:
        """Where it was measured: what a reader must know to judge it."""
        if not place:
            return
        names = ("device", "processor", "system", "cores", "threads", "dtype", "clock")
        lines: Row = {name: place[name] for name in names if place.get(name) is not None}
        drafters = (("drafter", each) for each in (place.get("drafts") or {}).values())
        for name, each in (("model", place.get("model") or {}), *drafters):
            if isinstance(each, Mapping) and each.get("name"):
                size = f", {each['parameters']:,} parameters" if each.get("parameters") else ""
                mark = f", weights {each['weights']}" if each.get("weights") else ""
                lines.setdefault(name, f"{each['name']}{size}{mark}")
        lines["versions"] = ", ".join(f"{name} {v}" for name, v in (place.get("versions") or {}).items())
        items = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in lines.items())
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

    def plots(self, plots: Sequence[Labelled]) -> None:
        """Figures side by side, each with what it says for those who do not see it."""
        if not plots:
            return
        places = ""
        for label, figure in plots:
            places += (
                f"<div class='figure' role='img' aria-label=\"{text(label)}\" "
                f"data-figure='{len(self.figures)}'></div>"
            )
            self.figures.append(figure)
        self.add(f"<div class='figures'>{places}</div>")

    # ------------------------------------------------------------ a run

    def run(self, results: Results) -> None:
        """A run's page."""
        self.heading(f"specviz bench run: {results.path.name}", f"Begun {results.created}; {results.path}")
        done, of = len(results.done), len(results.wanted)
        self.add(f"<p>{done} of {of} rows, {len(results.failures())} failed.</p>")
        for each in results.environments.values():
            self.environment(each)
        self.add("<h2>Methods</h2>")
        self.table(*run_table(results.shown()))
        self.plots(run_figures(results))
        for by in ("kind", "language"):
            parts = results.shown(by)
            if by in parts:
                self.folded(f"By {by}", *run_table(parts))
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
        if more:
            more = f"<details><summary>{len(lines) - MOST_NOTES} more</summary><ul>{more}</ul></details>"
        self.add(f"<{tag}>{text(title)}</{tag}><ul>{items}</ul>{more}")

    # ------------------------------------------------------------ replays

    def replays(self, every: Replays) -> None:
        """The page of all tables: an overview, then each, paper by paper."""
        papers: dict[str, list[Replay]] = {}
        for each in every.tables:
            papers.setdefault(each.table.partition("/")[0], []).append(each)
        when = max((each.created for each in every.tables), default="")[:10]
        self.heading(
            "The papers' numbers, measured here",
            " · ".join(filter(None, [
                f"{len(every.tables)} tables and figures replayed, {len(every.left)} not (reasons below)",
                every.tables[0].device if every.tables else "", when,
            ])),
        )  # fmt: skip
        links = [("overview", "overview"), *((name, name) for name in papers), ("left", "not replayed")]
        self.add("<nav>", *(f"<a href='#{text(to)}'>{text(word)}</a>" for to, word in links), "</nav>")
        self.answers(answers(every.tables))
        self.add("<h2 id='overview'>Overview</h2>", f"<p>{HOW_TO_READ}</p>")
        rows = [
            [text(r.table.partition("/")[0]), f"{link(r)} <span class='caption'>{text(r.caption)}</span>",
             claims(n := r.counts()), tally(n), f"{n['measured']} of {n['cells']}", f"{r.seconds:.0f}"]
            for those in papers.values() for r in those
        ]  # fmt: skip
        self.table(["paper", "what it shows", "claims", "order", "measured", "seconds"], rows, 2)
        self.add("<div id='left'></div>")
        self.listed("Not replayed", [f"{table}: {why}" for table, why in every.left.items()])
        if every.tables:
            self.environment({**every.tables[0].environment, "model": None, "drafts": None})
        for paper, those in papers.items():
            self.add(f"<h2 id='{text(paper)}'>{text(paper)}: {text(those[0].title)}</h2>",
                     "<p class='links'>", *map(link, those), "</p>")  # fmt: skip
            for each in those:
                self.one(each, "h3")

    def answers(self, papers: Sequence[Answer]) -> None:
        """What a reader asks first: does it pay here; what fails, holds, cannot be judged, and why."""
        cards = ""
        for each in papers:
            kind = "unclear" if each.words == PART else VERDICT_KINDS[each.pays]
            mark = MARKS[KINDS.index(kind)]
            why = ""
            if each.evidence is not None:
                table, shown = each.evidence
                where = f"<a href='#{anchor(table)}'>{text(table)}</a>"
                reason = "; ".join(filter(None, [shown.numbers, shown.reason]))
                why = f"<p>{text(shown.claim)}: {text(reason)} ({where})</p>"
            cards += (
                f"<article><h3>{text(each.title)}</h3>"
                f"<p class='{kind} says'>{mark} {text(each.words)}</p>{why}"
                f"<p class='soft'>{text(each.counts)}; on {text(', '.join(each.models) or 'nothing')}</p>"
                "</article>"
            )
        self.add(f"<div class='answers'>{cards}</div>")
        every = [pair for each in papers for pair in each.claims]
        for verdict, title in TITLES.items():
            groups = reasons(every, verdict)
            count = sum(map(len, groups.values()))
            if not count:
                continue
            body = "".join(self.reason(why, some, verdict) for why, some in groups.items())
            opened = " open" if verdict == FAILS else ""
            kind = VERDICT_KINDS[verdict]
            self.add(
                f"<details class='group'{opened}><summary><span class='{kind}'>{BADGES[verdict]}</span> "
                f"{text(title)}: {plural(count, 'claim')}</summary><ul class='claims'>{body}</ul></details>"
            )

    @staticmethod
    def reason(why: str, some: Sequence[tuple[str, Verdict]], verdict: str) -> str:
        """Claims with one reason: each with its numbers; of those that nobody can judge the names."""
        if verdict == OPEN:
            names = "; ".join(f"{text(v.claim)} ({text(table)})" for table, v in some)
            return f"<li><b>{plural(len(some), 'claim')}</b><span>{text(why)}: {names}</span></li>"
        return "".join(
            f"<li><a href='#{anchor(table)}'>{text(table)}</a><span><b>{text(v.claim)}</b><br>"
            f"{text('; '.join(filter(None, [v.numbers, why])))}</span></li>"
            for table, v in some
        )

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
        )  # fmt: skip
        if made.verdicts:
            self.add(f"<p class='verdict'>{claims(made.counts(), words=True)}</p>")
            items = (
                f"<li><b class='{VERDICT_KINDS[verdict]}'>{BADGES[verdict]} {text(verdict)}</b>"
                f"<span><b>{text(claim)}</b><br>{text(why)}</span></li>"
                for verdict, claim, why in verdict_lines(made)
            )
            self.add(f"<ul class='claims'>{''.join(items)}</ul>")
        self.add(f"<p>{text(made.summary)}.</p>")
        if any(
            n for name, n in made.counts().items() if name in ("clear_agrees", "unclear", "clear_against")
        ):
            self.add(f"<p class='verdict'>order: {tally(made.counts(), words=True)}</p>")
        self.listed("How the run was made", made.remarks(), below)
        self.plots(curve_figures(made) if made.drawn else replay_figures(made))
        if made.measured:
            layout = grid(made)
            left = layout.names
            cells = [[*map(text, row[:left]), *map(coloured, row[left:])] for row in layout.rows]
            self.table([text(h) for h in layout.headings], cells, left)
            self.folded("Every number, with intervals and ratios", *full(made))
            self.folded("Every comparison, one by one", *compared(made))
            self.folded("What each number was measured on", *provenance(made))
        self.listed("Not measured", [f"{which}: {why} ({n})" for which, why, n in made.missing()], below)
        self.add(f"<{below}>What differs</{below}>")
        rows = [[text(s["what"]), text(s["paper"]), text(s["here"])] for s in made.setup]
        self.table(["", "the paper", "here"], rows, words=True)
        self.listed("Where the paper disagrees with itself", made.errata, below)
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


def claims(n: Mapping[str, int], words: bool = False) -> str:
    """How many claims hold here, fail here, cannot be judged here."""
    counts = [n["holds"], n["fails"], n["open"]]
    if not sum(counts):
        return "–"
    parts = (
        f"<span class='{VERDICT_KINDS[word]}'>{BADGES[word]} {c}{' ' + word if words else ''}</span>"
        for word, c in zip(VERDICTS, counts)
    )
    return f"<span class='counts'>{' '.join(parts)}</span>"


def tally(n: Mapping[str, int], words: bool = False) -> str:
    """How many comparisons clearly go the paper's way, are unclear, clearly do not: a bar, and numbers."""
    counts = [n["clear_agrees"], n["unclear"], n["clear_against"]]
    if not sum(counts):
        return "" if words else "–"
    bar = "".join(f"<i class='{kind}' style='flex:{c}'></i>" for kind, c in zip(KINDS, counts) if c)
    parts = (
        f"<span class='{kind}'>{mark} {c}{' ' + word if words else ''}</span>"
        for kind, mark, c, word in zip(KINDS, MARKS, counts, WAYS)
    )
    return f"<span class='bar' aria-hidden='true'>{bar}</span> <span class='counts'>{' '.join(parts)}</span>"


HOW_TO_READ = (
    "The printed numbers come from other models on other machines, so they need not recur here; "
    f"the paper's claims about them may still hold. {MARKS[0]} the claim holds here, {MARKS[2]} it fails "
    f"here, {MARKS[1]} it cannot be judged here: too few texts, too small a difference, or not measured. The "
    "order of the contenders, whether a method pays (above 1) and by how much are separate claims. A "
    "difference is clear if its p, corrected for all comparisons of the table (Holm), is at most 0.05. For "
    "times it must also exceed the control's difference: one contender that decoded the same texts under "
    "two names in the same run. Each pair of measurements is compared once; by chance half of the "
    "comparisons agree with the paper."
)


def anchor(table: str) -> str:
    """A table's name within the page."""
    return text(table.replace("/", "-"))


def link(replay: Replay) -> str:
    """A link to a table's section."""
    return f"<a href='#{anchor(replay.table)}'>{text(replay.table.partition('/')[2])}</a>"


def run_table(shown: Any) -> tuple[list[str], list[list[str]], int]:
    """A run's table as cells of HTML, and how many of its columns are names."""
    names = sum(column in (*CELL_COLUMNS, *ROW_COLUMNS) for column in shown)
    return [text(column) for column in shown], shown.astype(str).map(text).to_numpy().tolist(), names


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
    shown = [k for k in keys if any(str(cell.column(k)) not in ("", "-") for cell in made.cells)]
    rows = []
    for cell, tally in zip(made.cells, made.tallies()):
        here = "–" if cell.measured is None else like_printed(cell.measured, cell.printed)
        if cell.low is not None and cell.high is not None:
            here += f" [{like_printed(cell.low, cell.printed)}, {like_printed(cell.high, cell.printed)}]"
        ratio = "" if cell.ratio is None else f"{cell.ratio:.2f}"
        mark = coloured(marks(tally)) if any(tally) else ""
        unit = f" {cell.unit}" if cell.unit else ""
        rows.append(
            [*(text(cell.column(k)) for k in shown), text(cell.printed + unit), text(here), ratio, mark]
        )
    return [*(text(k) for k in shown), "printed", "measured", "ratio", "order"], rows, len(shown)


def compared(made: Replay) -> tuple[list[str], list[list[str]], int]:
    """Every comparison of a table that is not too large."""
    frame, verdicts = made.compared(), made.comparisons
    if len(frame) > MOST_COMPARISONS:
        return [], [], 0
    shared = [name for name in made.shared_columns if frame[name].astype(str).nunique() > 1]
    rows = []
    for row, each in zip(frame.to_dict("records"), verdicts):
        words, place = each.verdict, each.place
        if place is not None:
            words = f"<span class='{KINDS[place]}'>{MARKS[place]} {WAYS[place]}</span>"
        ends = "" if each.low is None or each.high is None else f" [{each.low:+.3g}, {each.high:+.3g}]"
        numbers = [text(f"{each.printed:+.3g}"), text(f"{each.measured:+.3g}{ends}"), text(f"{each.p:.2g}")]
        rows.append([*(text(row[name]) for name in (*shared, "first", "second")), *numbers, words])
    names = [*(text(name) for name in shared), "this", "less this", "printed", "here", "p", "order"]
    return names, rows, len(shared) + 2


def provenance(made: Replay) -> tuple[list[str], list[list[str]], int]:
    """What the figures were measured on, one row each, in the columns that say anything."""
    rows = [source.as_dict() for source in made.sources]
    names = [name for name in (rows[0] if rows else {}) if any(row[name] not in ("", 0) for row in rows)]
    cells = [[text(str(row[name])) for name in names] for row in rows]
    return [text(name.replace("_", " ")) for name in names], cells, len(names)


def marked(
    results: Results, contenders: Sequence[tuple[str, Values, str | None]] = ()
) -> tuple[Row, dict[str, tuple[Row, str]]] | None:
    """The fastest contender that left traces, and its best, median and worst prompt with their figure.

    `contenders` (method, parameters, drafter) are those to choose of; without any all are.
    """
    good = [row for row in results.records() if row["error"] is None]
    cells = [
        cell for cell in results.cells
        if cell["cell"] != cell["against"]
        and (not contenders or (cell["method"], cell["parameters"], cell["draft"]) in contenders)
    ]  # fmt: skip
    ranked = [(cell, *ranked_rows(results, cell, good)) for cell in cells]
    cell, rows, unit = max(ranked, key=lambda each: median_value(each[1]), default=({}, [], ""))
    if not rows:
        return None
    places = {"best": rows[-1], "median": rows[len(rows) // 2], "worst": rows[0]}
    return cell, {name: (row, f"{value:.2f} {unit}") for name, (value, row) in places.items()}


def median_value(rows: Sequence[tuple[float, Row]]) -> float:
    """The figure of the middle one of ranked rows; minus infinity without any."""
    return rows[len(rows) // 2][0] if rows else float("-inf")


def ranked_rows(results: Results, cell: Values, good: Sequence[Row]) -> tuple[list[tuple[float, Row]], str]:
    """A contender's rows with a trace by speedup, or where there are no times by tokens per cycle; the
    unit."""
    base = {(row["round"], row["prompt"]): row for row in good if row["cell"] == cell["against"]}
    timed, counted = [], []
    for row in (row for row in good if row["cell"] == cell["cell"]):
        key = key_of(row["cell"], row["round"], row["prompt"])
        if not (results.path / "traces" / f"{key}.parquet").exists():
            continue
        other = base.get((row["round"], row["prompt"]))
        if other is not None and fast(row) and fast(other):
            timed.append((speed(row) / speed(other), row))
        if row["steps"]:
            counted.append((row["tokens"] / row["steps"], row))
    rows, unit = (timed, "× as fast") if timed else (counted, "tokens per cycle")
    return sorted(rows, key=lambda each: each[0]), unit
