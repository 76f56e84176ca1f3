"""``specviz show``, ``metrics``, ``explain`` and ``import``: read traces and counts, without torch."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specviz import escape
from specviz.cli.arguments import outputs, picture, writable
from specviz.cli.options import CSV, AIPerf, Baseline, Force, Json, Since, argument, option
from specviz.cli.terminal import screen, show_trace
from specviz.errors import ParameterError, TraceError
from specviz.escape import visible
from specviz.files import write_bytes, write_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from specviz.trace import Counts, Trace


def show(
    path: Annotated[
        Path, argument("A trace: a .parquet file, the .partial file of an interrupted run, or a folder.")
    ],
    prompt: Annotated[int | None, option("Which text to show; the first is 1.", min=1)] = None,
    html: Annotated[Path | None, option("Write one offline page with the player to this file.")] = None,
    png: Annotated[Path | None, option("Write a picture of the first prompt to this file.")] = None,
    gif: Annotated[
        Path | None, option("Write the first cycles of the first prompt to this file as an animated GIF.")
    ] = None,
    perfetto: Annotated[Path | None, option("Write a Chrome trace-event file for ui.perfetto.dev.")] = None,
    csv: CSV = False,
    force: Force = False,
) -> None:
    """Show a recorded trace; needs no torch."""
    if csv and (html or png or gif or perfetto):
        raise ParameterError("--csv prints only a table: drop --html, --png, --gif and --perfetto")
    outputs(force, html, png, gif, perfetto)
    picture("png", png)
    picture("gif", gif)
    from specviz.trace import Trace

    trace = Trace.open(path)
    if path.is_dir():
        with suppress(TraceError):  # several rounds stay separate
            trace = trace.join()
    if prompt is not None:
        count = max(len(run.run["prompts"] or []) for run in trace.split())
        if prompt > count:
            there = f"{count} texts (--prompt 1 to {count})" if count != 1 else "one text (--prompt 1)"
            raise TraceError(f"{path} holds {there}, so there is no number {prompt}")
        trace = trace.select(prompt=prompt - 1)
        if not len(trace.cycles):
            raise TraceError(f"{path} holds no cycles of prompt {prompt}")
    written = []  # before anything is printed, because the output's reader may close it early
    if html is not None:
        written.append(f"page: {trace.to_html(html, force=force)}")
    if png is not None:
        from specviz import view

        written.append(f"picture: {write_bytes(png, view.png(trace.split()[0]), force=True)}")
    if gif is not None:
        written.append(f"film: {trace.to_gif(gif, force=True)}")
    if perfetto is not None:
        written.append(f"Perfetto's trace: {trace.to_perfetto(perfetto, force=True)}")
    if csv:
        print(escape.csv(trace.summary()), end="")
    else:
        show_trace(trace, path if prompt is None else None)
    for line in written:
        print(line)


def metrics(
    path: Annotated[Path, argument("A trace: a .parquet file, or a folder.")],
    baseline: Baseline = None,
    csv: CSV = False,
    aiperf: AIPerf = None,
    force: Force = False,
) -> None:
    """Print a trace's metrics as each tool defines them. Needs no torch."""
    if csv and aiperf is not None:
        raise ParameterError("--csv prints only a table: drop --aiperf")
    if aiperf is not None:
        writable(aiperf, force)
    from specviz.metrics import contenders, counts, rosetta
    from specviz.trace import Trace

    parts = contenders(Trace.open(path))
    base = None if baseline is None else Trace.open(baseline)
    several = len(parts) > 1
    if aiperf is not None and several:
        raise ParameterError(f"{path} holds {len(parts)} contenders, and --aiperf takes one: give its file")
    reasons: dict[str, str] = {}
    tables: dict[str, pd.DataFrame] = {}
    if several:
        base, tables, reasons = _comparable(parts, base)
    tables = {
        name: tables[name] if name in tables else rosetta(part, None if name in reasons else base)
        for name, part in parts.items()
    }
    if aiperf is not None:
        (part,) = parts.values()
        counts(part).to_aiperf(aiperf, force=force)
    if csv:
        for name, why in reasons.items():
            print(visible(f"specviz: {name}: no speedups: {why}"), file=sys.stderr)
        print(escape.csv(_joined(tables) if several else tables.popitem()[1]), end="")
    else:
        for name, part in parts.items():
            if several:
                print(f"\n== {visible(name)} ==")
            if (runs := len(part.split())) > 1:
                print(f"\n{runs} runs of the same settings, counted together")
            _print_definitions(tables[name], part, None if name in reasons else base, reasons.get(name))
    if aiperf is not None:
        print(f"AIPerf's records: {aiperf}")
    if reasons and baseline is not None:
        raise typer.Exit(1)


def _comparable(
    parts: dict[str, Trace], base: Trace | None
) -> tuple[Trace | None, dict[str, pd.DataFrame], dict[str, str]]:
    """The baseline, and by name the contenders' definitions, or why they cannot be compared with it.

    Without a baseline it is the one autoregressive contender, which is removed, unless it fits no other.
    """
    from specviz.metrics import counts, rosetta

    plain = [name for name, part in parts.items() if counts(part).plain] if base is None else []
    if len(plain) == 1:
        base = parts.pop(plain[0])
    tables, reasons = {}, {}
    for name, part in parts.items() if base is not None else ():
        try:
            tables[name] = rosetta(part, base)
        except TraceError as error:
            reasons[name] = str(error)
    if base is not None and plain and len(reasons) == len(parts):
        parts[plain[0]], base = base, None
    return base, tables, reasons


def _joined(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Join the tables of several contenders; the first column names them."""
    import pandas as pd

    return pd.concat(tables, names=["contender"]).reset_index("contender")


def explain(
    source: Annotated[
        Path,
        argument("A trace (.parquet, or a folder), or another tool's file: responses or a log."),
    ],
    plain: Annotated[
        Path | None,
        option("The same prompts decoded without drafts: an autoregressive trace, or the same tool's file."),
    ] = None,
    origin: Annotated[
        str | None,
        option(
            "The tool that wrote the file, as for specviz import; default: detected from the file.", "--from"
        ),
    ] = None,
    since: Since = None,
    png: Annotated[Path | None, option("Write the waterfall to this file as a picture.")] = None,
    page: Annotated[
        Path | None,
        option(
            "Write an offline page to this file, and a trace's player next to it, where links open the worst "
            "cycles.",
            "--html",
        ),
    ] = None,
    json: Json = None,
    force: Force = False,
) -> None:
    """Explain why a run is slow or fast. Show each factor's cost and the break-even point. Needs no torch."""
    outputs(force, png, page, json)
    picture("png", png)
    from specviz.explanations import explain as explained

    result = explained(source, plain, origin=origin, since=since)
    written = []
    if png is not None:
        written.append(f"picture: {result.to_png(png, force=True)}")
    if page is not None:
        written.append(f"page: {result.to_html(page, force=force)}")
    if json is not None:
        write_text(json, result.to_json() + "\n", force)
    for line in (result.text(), *written):
        print(line)


def import_counts(
    path: Annotated[
        Path, argument("A file of JSON lines, one request per line, a page of counters, or a log.")
    ],
    origin: Annotated[
        str,
        option(
            "vllm (responses of a server with --per-request-spec-decode-metrics), vllm-metrics (what "
            "curl HOST:8000/metrics printed: sums over all requests), vllm-log (what it prints), "
            "aiperf (profile_export.jsonl), "
            "spec-bench (an answer file), llama.cpp (responses of llama-server), llama.cpp-log (what it "
            "prints), sglang (responses with meta_info), lm-studio (responses of /api/v0) or mlx-lm (one "
            "response per line).",
            "--from",
        ),
    ],
    since: Since = None,
    baseline: Baseline = None,
    aiperf: AIPerf = None,
    force: Force = False,
) -> None:
    """Read another tool's speculation counts. Check them, and print the metrics as each tool defines them."""
    if aiperf is not None:
        writable(aiperf, force)
    from specviz.metrics import by_position, rosetta
    from specviz.trace import read_counts
    from specviz.trace.counts import UNDRAFTED
    from specviz.trace.foreign import COUNTERS
    from specviz.trace.vllm_log import DRAFTING_ONLY, VLLM_LOG

    counts = read_counts(path, origin, since=since)
    base = None if baseline is None else read_counts(baseline, origin, plain=True)
    if aiperf is not None:
        counts.to_aiperf(aiperf, force=force)
    print(visible(repr(counts).strip("<>")))
    if counts.pooled:
        rates = " ".join(f"{rate:.3f}" for rate in by_position(counts)["rate"])
        print(f"share of all drafts accepted at each position: {rates}")
        if counts.origin == COUNTERS and counts.total("steps") == counts.total("drafts"):
            print("steps: those with a draft; they and the prefills account for all generated tokens")
        if counts.origin == VLLM_LOG:
            print(f"not counted: {DRAFTING_ONLY}")
    if counts.least_steps:
        print(f"steps: {UNDRAFTED}")
    _print_definitions(rosetta(counts, base), counts, base)
    for side in filter(None, (counts, base)):
        for line, why in side.left_out.to_numpy():
            print(visible(f"skipped: {side.where}, line {line}: {why}"))
    if aiperf is not None:
        print(f"AIPerf's records: {aiperf}")


def _print_definitions(
    table: pd.DataFrame, counts: Trace | Counts, baseline: Trace | Counts | None, why: str | None = None
) -> None:
    """Print one line per definition, and below them why values, or all speedups, are missing."""
    from specviz.measure.report import Column, print_table
    from specviz.metrics.definitions import LEGEND
    from specviz.metrics.rosetta import differing_settings
    from specviz.trace import Trace

    columns = [Column("who", folds=32), Column("value", True), Column("average")]
    columns += [Column("formula", drop_rank=0, folds=28)]
    for quantity, rows in table.groupby("quantity", sort=False):
        print(f"\n{quantity}")
        valued = rows[rows["value"].notna()]
        cells = []
        for row in valued.to_dict("records"):
            value = f"{row['value']:.3f}" + (f" to {row['high']:.3f}" if row["badge"] == "bounded" else "")
            average = row["average"].replace("mean over requests", "by request")
            cells.append([row["who"], value, average, row["formula"]])
        print_table(screen(), columns, cells)
        for row in rows[rows["value"].isna()].to_dict("records"):
            print(visible(f"unknown: {row['who']}: {row['why']}"))
    screen().print(f"\n{LEGEND}", markup=False)
    if getattr(counts, "pooled", False):
        why = "the file holds sums over all requests"
    if why is not None:
        print(visible(f"\nspeedups: unknown: {why}"))
    elif isinstance(counts, Trace) and isinstance(baseline, Trace):
        if differing := differing_settings(counts, baseline):
            print(f"\nspeedups: besides its method, the baseline differs in {', '.join(differing)}")
    elif baseline is None:
        print("\nspeedups: pass the same prompts decoded without speculation with --baseline")
