"""Terminal output: the console, the progress bar, a trace's table."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from specviz.cli.arguments import hint
from specviz.errors import plural
from specviz.escape import visible
from specviz.models import ranks

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from specviz.trace import Trace


def show_trace(trace: Trace, path: Path | None) -> None:
    """Print metrics if there are several runs, the first prompts as text, and how to see more of `path`."""
    from specviz import view
    from specviz.view.static import MOST_RUNS

    runs = trace.split()
    if len(runs) > 1:
        _print_table(trace)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    most = 1 if len(runs) > 1 else 2
    print(view.text(trace, colour=colour, most=most, rest=False))
    if len(runs) > MOST_RUNS:
        more = plural(len(runs) - MOST_RUNS, "more run")
        print(f"\n{more}: {hint('show', 'FILE')} shows one of the folder")
    texts = max((sorted(run.cycles["prompt"].unique()) for run in runs), key=len)
    if len(texts) > most:
        more = plural(len(texts) - most, "more text")
        how = hint("show", path, "--prompt", texts[most] + 1) if path else "--out DIR keeps them"
        print(f"\n{more}: {how}")


# Columns of the table of runs: name in the summary, heading, format, order of dropping if it is too wide.
PROMPT_COLUMNS = (
    ("tau", "τ", "{:.2f}", None), ("A/D", "A/D", "{:.2f}", None), ("A/O", "A/O", "{:.2f}", 0),
    ("tokens_per_second", "tokens/s", "{:,.0f}", None), ("target_passes", "target passes", "{:,.0f}", None),
)  # fmt: skip
STREAM_COLUMNS = (
    ("updates", "updates", "{:,.0f}", None), ("NE", "NE", "{:.2f}", None), ("A/D", "A/D", "{:.2f}", None),
    ("A/O", "A/O", "{:.2f}", 2), ("tokens_per_second", "tokens/s", "{:,.0f}", None),
    ("AL", "AL", "{:.1f}", 1), ("reused_share", "reused", "{:.0%}", 0), ("BLEU", "BLEU", "{:.1f}", None),
)  # fmt: skip


def _print_table(trace: Trace) -> None:
    """Print one line per run; runs of streams get a separate table."""
    from specviz.metrics import contenders

    rows = [(part, part.summary().iloc[0].copy()) for part in trace.split()]
    titles = {each.run["run"]: name for name, part in contenders(trace).items() for each in part.split()}
    for part, row in rows:
        row["method"] = titles[part.run["run"]]  # including what distinguishes it from others of the method
    streams = [(part, row) for part, row in rows if part.has_streams]
    prompts = [(part, row) for part, row in rows if not part.has_streams]
    if streams:
        _print_runs([(_setting(part), row) for part, row in streams], "setting", STREAM_COLUMNS)
        names = visible(", ".join(dict.fromkeys(row["tokenizer"] for _, row in streams)))
        print(
            f"NE: tokens ({names}) erased from the display per final token; "
            "AL: lag in words; reused: share of the prompts' tokens"
        )
    if prompts:
        drafts = [(str((part.run["draft"] or {}).get("name") or "–"), row) for part, row in prompts]
        _print_runs(drafts, "draft", PROMPT_COLUMNS)


def _setting(part: Trace) -> str:
    """Describe how a run decoded its streams."""
    values = part.run["parameters"] or {}
    setting = str(values.get("mode", ""))
    setting += f" β={values['beta']:g}" if setting == "ssbd" else ""
    return setting + (f" k={values['k']} ({values['mask']})" if values.get("k") else "")


def _print_runs(
    parts: list[tuple[str, pd.Series]], second: str, shown: Sequence[tuple[str, str, str, int | None]]
) -> None:
    """Print a table of runs' summaries, each given with the text of its second column."""
    from specviz.measure.report import Column, print_table

    columns = [Column("method"), Column(second), Column("exactness", folds=14)]
    columns += [Column(heading, True, drop_rank=rank) for _, heading, _, rank in shown]
    rows = []
    for text, row in parts:
        cells = [form.format(row[name]) if row[name] == row[name] else "–" for name, _, form, _ in shown]
        rows.append([*map(visible, (row["method"], text, row["exactness"])), *cells])
    print_table(screen(), columns, rows)


def screen(stderr: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # Output that is not to a terminal is not cut to a terminal's width.
    return Console(file=stream, highlight=False, width=None if stream.isatty() else 160)


@contextmanager
def progress() -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on standard error, updated by calls with (done, of, what).

    If standard error is not a terminal, a line is printed there once a minute.
    """
    if not sys.stderr.isatty():
        from specviz.measure.progress import Lines

        yield Lines() if ranks.leads() else lambda done, of, what: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.description}", markup=False)
    # Two redraws a second: the bar's thread must not take time from what is measured.
    with Progress(
        BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), text, console=screen(True), transient=True,
        refresh_per_second=2, disable=not ranks.leads(),
    ) as bar:  # fmt: skip
        task = bar.add_task("", total=None)
        yield lambda done, of, what: bar.update(task, completed=done, total=of, description=what)


class Interrupted(Exception):
    """Ctrl-C, with a message on what is kept, which typer would drop."""


@contextmanager
def message_kept() -> Iterator[None]:
    """Carry the message of a KeyboardInterrupt past typer."""
    try:
        yield
    except KeyboardInterrupt as error:
        if not str(error):
            raise
        raise Interrupted(str(error)) from None
