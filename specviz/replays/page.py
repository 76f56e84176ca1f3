"""Write a run, a replay or all replays as one offline page: environment, tables, plots, links to traces.

plotly's script is embedded once; the traces of the best, median and worst prompt become player pages in a
folder next to the page, ``report-pages`` for ``report.html``. The content security policy forbids every
connection; without scripts the page's tables remain readable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

from specviz.errors import TraceError, plural
from specviz.escape import html as text
from specviz.files import write_text
from specviz.measure.report import Row, Values
from specviz.measure.rows import CELL_COLUMNS, ROW_COLUMNS, Results, key_of
from specviz.replays.answers import PART, Answer, answers, reasons
from specviz.replays.cells import FAILS, HOLDS, OPEN, Verdict
from specviz.replays.costs import HEADINGS, IN_WORDS, PHASES, Cost, pooled
from specviz.replays.kept_traces import contender_of, marked, median_row
from specviz.replays.layout import ARROW, BADGES, MARKS, VERDICTS, grid, like_printed, marks, verdict_lines
from specviz.replays.plots import Figure, Labelled, curve_figures, replay_figures, run_figures
from specviz.replays.replays import Replay, Replays
from specviz.trace import Trace
from specviz.view import plotlyjs

PAGE = "report.html"
TAG = re.compile(r"<[^>]*>")
SHARE = re.compile(r" share-(\d+)'")  # the class of a bar's segment, with the segment's count
NO_TRACES = (
    "No traces were kept, so there is no player to open: run with traces = true (--traces) to keep them."
)
MOST_NOTES = 12
MOST_COMPARISONS = 200  # of a table that lists them one by one
CLICKS = (
    "A click on a measured point opens its contender's median prompt, where a trace of it was kept; in words:"
)
NO_CLICKS = "A click on a point opens nothing: no traces of these contenders were kept."
WIDE = 5  # with more columns of numbers, ratios go below the numbers
KINDS = ("agrees", "unclear", "against")
TITLES = {FAILS: "Fails here", HOLDS: "Holds here", OPEN: "Cannot be judged here"}
VERDICT_KINDS = {HOLDS: "agrees", FAILS: "against", OPEN: "unclear"}
MANY = {HOLDS: "hold here", FAILS: "fail here"}  # for several claims
WAYS = ("clearly as in the paper", "unclear", "clearly the other way")


def write(result: Results | Replay | Replays, path: Path | None = None, force: bool = False) -> Path:
    """Write the page, by default ``report.html`` in the result's folder, and the player pages of its traces.

    Raises
    ------
    TraceError
        If the page or its folder of player pages exists (unless `force`) or cannot be written.
    ParameterError
        If plotly is not installed.
    """
    recorded = result.path.suffix == ".parquet"
    path = path or (result.path.with_suffix(".html") if recorded else result.path / PAGE)
    page = Page(path, plotlyjs.script())
    for each in (path, page.pages):
        if each.exists() and not force:
            raise TraceError(f"{each} exists: choose another path, or overwrite it with --force")
    if isinstance(result, Results):
        page.run(result)
    elif isinstance(result, Replay):
        page.replay(result)
    else:
        page.replays(result)
    return write_text(path, page.document(), force)


def machines_of(tables: Sequence[Replay]) -> str:
    """Where tables were measured, in words: the full setting if they share one, else the machines."""
    every = list(dict.fromkeys(place for each in tables for place in each.device.split("; ")))
    if len(every) < 2:
        return "".join(every)
    machines = ", ".join(dict.fromkeys(place.partition(",")[0] for place in every))
    return f"{machines}; each table names its number format and kernels"


class Page:
    """Collects the parts of a page.

    Parameters
    ----------
    path : Path
        Where the page is written; links are relative to it.
    script : str
        plotly's script.
    """

    def __init__(self, path: Path, script: str) -> None:
        self.path, self.script = path, script
        self.pages = path.with_name(f"{path.stem}-pages")  # the folder of player pages
        self.title = ""
        self.parts: list[str] = []
        self.figures: list[Figure] = []
        self.players: set[str] = set()  # player pages written so far

    # ------------------------------------------------------------ the whole

    def document(self) -> str:
        """The page's HTML."""
        style, boot = (
            files("specviz.replays").joinpath(f"page.{kind}").read_text("utf8") for kind in ("css", "js")
        )
        body = "".join(self.parts)
        shares = sorted(set(map(int, SHARE.findall(body))))
        style += "".join(f".share-{count}{{flex:{count}}}" for count in shares)
        figures = json.dumps(self.figures, ensure_ascii=True, allow_nan=False)
        return plotlyjs.document(self.title, style, body, boot, figures, self.script if self.figures else "")

    def add(self, *parts: str) -> None:
        self.parts += parts

    def heading(self, title: str, below: str = "") -> None:
        """Set the page's title and add its heading."""
        self.title = title
        self.add(f"<h1>{text(title)}</h1>", f"<p class='soft'>{text(below)}</p>" if below else "")

    def environment(self, place: Values) -> None:
        """Add the environment that a reader needs to judge the measurements."""
        if not place:
            return
        names = ("device", "processor", "system", "cores", "threads", "processes", "dtype", "clock")
        lines: Row = {name: place[name] for name in names if place.get(name) is not None}
        drafters = [("drafter", each) for each in (place.get("drafts") or {}).values()]
        for name, each in (("model", place.get("model") or {}), *drafters):
            if isinstance(each, Mapping) and each.get("name"):
                size = f", {each['parameters']:,} parameters" if each.get("parameters") else ""
                mark = f", sampled weights {each['weights']}" if each.get("weights") else ""
                lines[name] = "; ".join(filter(None, (lines.get(name), f"{each['name']}{size}{mark}")))
        if place.get("versions"):
            lines["versions"] = ", ".join(f"{name} {v}" for name, v in place["versions"].items())
        items = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in lines.items())
        self.add(f"<h2>Environment</h2><dl>{items}</dl>")

    def table(
        self, headings: Sequence[str], rows: Iterable[Sequence[str]], names: int = 1, words: bool = False
    ) -> None:
        """Add a table of cells that are already HTML; the first `names` columns are names, others numbers.

        With `words` the others are sentences. In a wide table, ratios go below their numbers.
        """
        wide = " class='wide'" if len(headings) - names > WIDE else ""
        head = "".join(
            f"<th scope='col'{self._side(i, names, words)}>{h}</th>" for i, h in enumerate(headings)
        )
        body = "".join(f"<tr>{row}</tr>" for row in self._rows([list(row) for row in rows], names, words))
        what = ", ".join(list(filter(None, (TAG.sub("", heading) for heading in headings)))[:3])
        self.add(
            f"<div class='scroll' tabindex='0' role='region' aria-label='Table of {what}'><table{wide}>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
        )

    def _rows(self, rows: list[list[str]], names: int, words: bool) -> Iterator[str]:
        """Rows of cells; a name that repeats, with all names to its left, is written once and spans rows."""
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

    def plots(self, plots: Sequence[Labelled], opened: Mapping[str, str]) -> None:
        """Add figures side by side, labelled for screen readers, and links to what clicks open (`opened`)."""
        if not plots:
            return
        places = ""
        for label, figure in plots:
            places += (
                f"<div class='figure' role='group' aria-label=\"{text(label)}\" "
                f"data-figure='{len(self.figures)}'></div>"
            )
            self.figures.append(figure)
        self.add(f"<div class='figures'>{places}</div>")
        if not opened:
            self.add(f"<p class='soft'>{NO_CLICKS}</p>")
            return
        links = "; ".join(f"<a href='{text(to)}'>{text(name)}</a>" for name, to in opened.items())
        self.add(f"<p class='soft'>{CLICKS} {links}.</p>")

    # ------------------------------------------------------------ a run

    def run(self, results: Results) -> None:
        """Fill the page of a run."""
        self.heading(f"specviz bench run: {results.path.name}", f"Begun {at(results.created)}")
        done, of = len(results.done), len(results.wanted)
        self.add(f"<p>{done} of {of} rows, {len(results.failures())} failed.</p>")
        for each in results.environments.values():
            self.environment(each)
        self.add("<h2>Methods</h2>")
        self.table(*run_table(results.shown()))
        medians = {
            cell["cell"]: self.median(results, cell)
            for cell in results.cells
            if cell["cell"] != cell["against"]
        }
        self.plots(*run_figures(results, medians))
        for by in ("kind", "language"):
            parts = results.shown(by)
            if by in parts:
                self.folded(f"By {by}", *run_table(parts))
        self.listed("Notes", results.notes())
        self.add("<h2>Traces</h2>")
        self.traces(results)

    def traces(self, results: Results, front: str = "") -> None:
        """Add links to the best, median and worst prompt of the fastest contender, in the player."""
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

    def player(self, name: str, trace: Trace | Callable[[], Trace]) -> str:
        """Write a trace, or the one that a callable opens, as a player page, once; return its link."""
        from specviz.widgets import page

        if name not in self.players:
            self.players.add(name)
            page.write(trace() if callable(trace) else trace, self.pages / f"{name}.html", force=True)
        return f"{quote(self.pages.name)}/{quote(name)}.html"

    def median(self, results: Results, cell: Values, language: str = "", front: str = "") -> str:
        """Link to a contender's median prompt; empty if no trace of it was kept."""
        row = median_row(results, cell, language)
        if row is None:
            return ""
        at = row["cell"], row["prompt"], row["round"]
        name = f"{front}{results.path.name}-{key_of(row['cell'], row['round'], row['prompt'])}"
        return self.player(name, lambda: results.trace(*at))

    def played(self, of: str, traces: Sequence[tuple[str, Trace, str, str]]) -> None:
        """Add player pages and links; a trace is (page's name, trace, the link's words, words after it)."""
        links = [
            f"<span><a href='{text(self.player(name, trace))}'>{text(words)}</a> "
            f"<span class='soft'>{text(more)}</span></span>"
            for name, trace, words, more in traces
        ]
        self.add(f"<p>In the player, {text(of)}: {'; '.join(links)}.</p>")

    def listed(self, title: str, lines: Sequence[str], tag: str = "h2") -> None:
        """Add a list with a heading, unless it is empty."""
        if not lines:
            return
        items = "".join(f"<li>{text(line)}</li>" for line in lines[:MOST_NOTES])
        more = "".join(f"<li>{text(line)}</li>" for line in lines[MOST_NOTES:])
        if more:
            more = f"<details><summary>{len(lines) - MOST_NOTES} more</summary><ul>{more}</ul></details>"
        self.add(f"<{tag}>{text(title)}</{tag}><ul>{items}</ul>{more}")

    # ------------------------------------------------------------ replays

    def replays(self, every: Replays) -> None:
        """Fill the page of all tables: an overview, then each table, paper by paper."""
        papers: dict[str, list[Replay]] = {}
        for each in every.tables:
            papers.setdefault(each.table.partition("/")[0], []).append(each)
        dates = sorted({each.created[:10] for each in every.tables})
        self.heading(
            "The papers' numbers, measured here",
            " · ".join(filter(None, [
                f"{len(every.tables)} tables and figures replayed, {len(every.left)} not (reasons below)",
                machines_of(every.tables), " to ".join(dict.fromkeys((*dates[:1], *dates[-1:]))),
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
            places = [each.environment for each in every.tables]
            shared = {
                key: value for key, value in places[0].items() if all(p.get(key) == value for p in places)
            }
            self.environment(shared | {"model": None, "drafts": None})
        for paper, those in papers.items():
            self.add(f"<h2 id='{text(paper)}'>{text(paper)}: {text(those[0].title)}</h2>",
                     "<p class='links'>", *map(link, those), "</p>")  # fmt: skip
            for each in those:
                self.one(each, "h3")

    def answers(self, papers: Sequence[Answer]) -> None:
        """Add the main answers: whether each paper's method pays here, and its claims by verdict."""
        cards = ""
        for each in papers:
            kind = "unclear" if each.words.startswith(PART) else VERDICT_KINDS[each.pays]
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
        """Claims that share a reason, with their numbers; of those that cannot be judged, only the names."""
        if verdict == OPEN:
            names = "; ".join(f"{text(v.claim)} ({text(table)})" for table, v in some)
            return f"<li><b>{plural(len(some), 'claim')}</b><span>{text(why)}: {names}</span></li>"
        return "".join(
            f"<li><a href='#{anchor(table)}'>{text(table)}</a><span><b>{text(v.claim)}</b><br>"
            f"{text('; '.join(filter(None, [v.numbers, why])))}</span></li>"
            for table, v in some
        )

    def replay(self, made: Replay) -> None:
        """Fill the page of one table."""
        self.heading(f"{made.table}, measured here", f"{made.device} · {at(made.created)}")
        self.one(made)
        self.environment(made.environment)

    def one(self, made: Replay, tag: str = "h2") -> None:
        """Add a table's section."""
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
        medians = self.medians(made)
        self.plots(*(curve_figures if made.drawn else replay_figures)(made, medians))
        if made.measured:
            layout = grid(made)
            left = layout.names
            cells = [[*map(text, row[:left]), *map(coloured, row[left:])] for row in layout.rows]
            self.table([text(h) for h in layout.headings], cells, left)
            self.folded("Every number, with intervals and ratios", *full(made))
            self.folded("Every comparison, one by one", *compared(made))
            self.folded("What each number was measured on", *provenance(made))
        self.costs(pooled(made.costs), below)
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

    def costs(self, costs: Sequence[Cost], below: str) -> None:
        """Add where each contender's time goes, and a projection of its speedup to other costs."""
        if not costs:
            return
        self.add(f"<{below}>Where the time goes</{below}>", f"<p>{text(IN_WORDS)}</p>")
        first = len(HEADINGS) - len(PHASES)
        legend = " · ".join(f"<i class='{name}'></i>{name}" for name in PHASES)
        rows = [[*map(text, each.row()[:first]), spent(each)] for each in costs]
        self.table([*map(text, HEADINGS[:first]), f"<span class='phases'>{legend}</span>"], rows)
        cells = "".join(
            f"<tr><td class='name'>{text(each.row()[0])}</td><td class='n'>{each.tau:.2f}</td>"
            f"<td class='n'>{each.speedup:.2f}</td>"
            f"<td class='n'><output data-cost='{text(projected(each))}'>{each.speedup:.2f}</output></td></tr>"
            for each in costs
        )
        names = dict.fromkeys(name for each in costs for name in each.elsewhere)
        choice = "".join(f"<option value='{text(name)}'>{text(name)}</option>" for name in names)
        self.add(
            f"<div class='projection' hidden><p><b class='badge'>modelled</b> {PROJECTION}</p>"
            f"<p class='controls'><label>device <select><option value=''>this one</option>{choice}</select>"
            "</label>",
            *(
                f"<label>{words} × <input type='range' min='0' max='2' step='0.05' value='1'> "
                "<output>1.00</output></label>"
                for words in ("what drafts add to a pass", "cost of drafting")
            ),
            "</p><div class='scroll' tabindex='0' role='region' aria-label='Table of projected speedups'>"
            "<table><thead><tr><th scope='col'>contender</th><th scope='col' class='n'>τ</th>"
            "<th scope='col' class='n'>speedup here</th><th scope='col' class='n'>speedup there</th></tr>"
            f"</thead><tbody>{cells}</tbody></table></div></div>",
        )

    def medians(self, made: Replay) -> dict[int, str]:
        """Links to the median prompt of each figure whose trace was kept."""
        links: dict[int, str] = {}
        runs = [Results(made.path / name) for name in made.runs if (made.path / name / "run.json").is_file()]
        kept = [each for each in made.traces if each["name"] == "median" and recording(made, each).is_file()]
        for cell in made.measured:
            source = cell.source
            if source is None or cell.figure is None or cell.figure in links:
                continue
            front = f"{anchor(made.table)}-"
            for results in runs:
                contender = contender_of(results, source)
                if contender is not None and (
                    link := self.median(results, contender, source.language, front)
                ):
                    links[cell.figure] = link
            for each in kept:
                if each.get("contender") == source.contender and each.get("task") in ("", source.task):
                    file = recording(made, each)
                    links[cell.figure] = self.player(f"{front}{file.stem}", partial(Trace.open, file))
        return links

    def recorded(self, made: Replay) -> None:
        """Add links to the traces of a replay without a run, if the files exist."""
        files = [(each, recording(made, each)) for each in made.traces]
        played: dict[str, list[tuple[str, Trace, str, str]]] = {}
        for each, file in files:
            if file.is_file():
                name = f"{anchor(made.table)}-{file.stem}"
                one = name, Trace.open(file), f"{each['name']}: {each['figure']}", ""
                played.setdefault(each["of"], []).append(one)
        for of, there in played.items():
            self.played(of, there)

    def folded(self, name: str, headings: list[str], rows: list[list[str]], names: int) -> None:
        """Add a collapsed table, unless it is empty."""
        if rows:
            self.add(f"<details><summary>{text(name)}</summary>")
            self.table(headings, rows, names)
            self.add("</details>")


def spent(cost: Cost) -> str:
    """A contender's phases as a bar and in percent."""
    shares = {name: round(100 * share) for name, share in cost.shares.items()}
    bar = "".join(f"<i class='{name} share-{share}'></i>" for name, share in shares.items() if share)
    return f"<span class='bar' aria-hidden='true'>{bar}</span> {' · '.join(map(str, shares.values()))} %"


def projected(cost: Cost) -> str:
    """The data from which the page's script projects a speedup, as JSON."""
    passes = cost.sums["passes"] / cost.sums["cycles"] * cost.plain["cycles"] / cost.plain["passes"]
    rest = sum(cost.passes(name) for name in PHASES[2:])
    plain = sum(cost.passes(name, plain=True) for name in PHASES if name != "forward")
    forward, draft = cost.passes("forward"), cost.passes("draft")
    return json.dumps({
        "gain": cost.tau / cost.plain_tau, "passes": passes, "here": [forward, draft], "rest": rest,
        "plain": plain, "elsewhere": cost.elsewhere,
    })  # fmt: skip


def recording(made: Replay, each: Mapping[str, str]) -> Path:
    """Path of a recorded trace; drops folders from its name, as the file may come from someone else."""
    return made.path / "traces" / Path(each["file"]).name


def at(time: str) -> str:
    """Format an ISO 8601 time for readers, to the minute; return other text unchanged."""
    try:
        return f"{datetime.fromisoformat(time).astimezone(UTC):%d %B %Y, %H:%M} UTC"
    except ValueError:
        return time


def claims(n: Mapping[str, int], words: bool = False) -> str:
    """The numbers of claims that hold here, fail here and cannot be judged here."""
    counts = [n["holds"], n["fails"], n["open"]]
    if not sum(counts):
        return "–"
    counted = [MANY.get(word, word) if c != 1 else word for word, c in zip(VERDICTS, counts)]
    parts = (
        f"<span class='{VERDICT_KINDS[word]}'>{BADGES[word]} {c}{' ' + shown if words else ''}</span>"
        for word, shown, c in zip(VERDICTS, counted, counts)
    )
    return f"<span class='counts'>{' '.join(parts)}</span>"


def tally(n: Mapping[str, int], words: bool = False) -> str:
    """A bar and numbers: comparisons that clearly agree with the paper, are unclear, clearly disagree."""
    counts = [n["clear_agrees"], n["unclear"], n["clear_against"]]
    if not sum(counts):
        return "" if words else "–"
    bar = "".join(f"<i class='{kind} share-{c}'></i>" for kind, c in zip(KINDS, counts) if c)
    parts = (
        f"<span class='{kind}'>{mark} {c}{' ' + word if words else ''}</span>"
        for kind, mark, c, word in zip(KINDS, MARKS, counts, WAYS)
    )
    return f"<span class='bar' aria-hidden='true'>{bar}</span> <span class='counts'>{' '.join(parts)}</span>"


PROJECTION = (
    "What is accepted stays; the costs change. Another device's passes are those of a roofline (its memory "
    "and its arithmetic at their published rates), without the time of the decoding loop. On this one the "
    "sliders scale what was measured: 0 is a pass over drafts that costs what one token does, or drafts that "
    "cost nothing. For SmolLM2 in another number format, another layout and two threads, with passes timed "
    "there, such projections were off by 3.8 % in the median and by at most 11.8 % (docs/results.md)."
)
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
    """A table's anchor within the page."""
    return text(table.replace("/", "-"))


def link(replay: Replay) -> str:
    """A link to a table's section."""
    return f"<a href='#{anchor(replay.table)}'>{text(replay.table.partition('/')[2])}</a>"


def run_table(shown: Any) -> tuple[list[str], list[list[str]], int]:
    """A run's table as headings and cells of HTML, and how many of its columns are names."""
    names = sum(column in (*CELL_COLUMNS, *ROW_COLUMNS) for column in shown)
    return [text(column) for column in shown], shown.astype(str).map(text).to_numpy().tolist(), names


def coloured(cell: str) -> str:
    """Style a grid's cell: printed in grey, measured in bold, the ratio below; or colour a row's marks."""
    printed, arrow, here = cell.partition(f" {ARROW} ")
    if not arrow:
        return " ".join(tinted(part) for part in cell.split(" ")) if cell[:1] in MARKS else text(cell)
    value, _, ratio = here.partition(" ")
    return f"<span class='printed'>{text(printed)}</span> {ARROW} <span class='here'>{text(value)}</span>" + (
        f" <span class='ratio'>{text(ratio.strip('()'))}</span>" if ratio else ""
    )


def tinted(mark: str) -> str:
    """A mark with its number, in the mark's colour."""
    return f"<span class='{KINDS[MARKS.index(mark[0])]}'>{text(mark)}</span>"


def full(made: Replay) -> tuple[list[str], list[list[str]], int]:
    """Every number of a table: printed, measured, their ratio, and a tally of its comparisons."""
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
    """Every comparison of a table; nothing if there are more than `MOST_COMPARISONS`."""
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
    """What the figures were measured on, one row each, without empty columns."""
    rows = [source.as_dict() for source in made.sources]
    names = [name for name in (rows[0] if rows else {}) if any(row[name] not in ("", 0) for row in rows)]
    cells = [[text(str(row[name])) for name in names] for row in rows]
    return [text(name.replace("_", " ")) for name in names], cells, len(names)
