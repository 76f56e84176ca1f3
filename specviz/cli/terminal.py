"""What a terminal shows: the console, the progress bar, a trace's table."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specviz.cli.arguments import hint
from specviz.escape import visible
from specviz.models import ranks

if TYPE_CHECKING:
    from specviz.trace import Trace


def show_trace(trace: Trace, path: Path | None) -> None:
    """The metrics, if there are several runs, and the first prompts as text; how to see more of `path`."""
    from specviz import view

    runs = trace.split()
    if len(runs) > 1:
        _print_table(trace)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    most = 1 if len(runs) > 1 else 2
    print(view.text(trace, colour=colour, most=most))
    count = max(run.cycles["prompt"].nunique() for run in runs)
    if count > most:
        more = f"{count - most} more text{'s' * (count - most != 1)}"
        how = hint("show", path, "--prompt", most + 1) if path else "--out DIR keeps them to look at"
        print(f"\n{more}: {how}")


def _print_table(trace: Trace) -> None:
    """One line a run; runs of streams have a table of their own."""
    parts = trace.split()
    streams = [part for part in parts if len(part.updates)]
    if streams:
        _print_streams(streams)
    if len(streams) < len(parts):
        _print_prompts([part for part in parts if not len(part.updates)])


def _print_streams(parts: list[Trace]) -> None:
    from specviz.measure.report import Column, print_table

    shown = {
        "updates": ("updates", "{:,.0f}"),
        "NE": ("NE", "{:.2f}"),
        "A/D": ("A/D", "{:.2f}"),
        "A/O": ("A/O", "{:.2f}"),
        "tokens_per_second": ("tokens/s", "{:,.0f}"),
        "AL": ("AL", "{:.1f}"),
        "reused_share": ("reused", "{:.0%}"),
        "BLEU": ("BLEU", "{:.1f}"),
    }
    columns = [Column("method"), Column("setting"), Column("exactness", folds=14)]
    spare = {"reused_share": 0, "AL": 1, "A/O": 2}
    columns += [Column(heading, True, drop_rank=spare.get(name)) for name, (heading, _) in shown.items()]
    rows, tokenizers = [], []
    for part in parts:
        row, values = part.summary().iloc[0], part.run["parameters"] or {}
        setting = str(values.get("mode", ""))
        setting += f" β={values['beta']:g}" if setting == "ssbd" else ""
        setting += f" k={values['k']} ({values['mask']})" if values.get("k") else ""
        cells = [
            form.format(row[name]) if row[name] == row[name] else "–" for name, (_, form) in shown.items()
        ]
        rows.append([*map(visible, (row["method"], setting, row["exactness"])), *cells])
        tokenizers.append(row["tokenizer"])
    print_table(screen(), columns, rows)
    names = visible(", ".join(dict.fromkeys(tokenizers)))
    print(
        f"NE: tokens ({names}) erased from the display for each of the last one; "
        "AL: words behind; reused: of the prompts' tokens"
    )


def _print_prompts(parts: list[Trace]) -> None:
    from specviz.measure.report import Column, print_table

    shown = {
        "tau": "τ",
        "A/D": "A/D",
        "A/O": "A/O",
        "tokens_per_second": "tokens/s",
        "target_passes": "target passes",
    }
    columns = [Column("method"), Column("draft"), Column("exactness", folds=14)]
    columns += [
        Column(heading, True, drop_rank=0 if heading == "A/O" else None) for heading in shown.values()
    ]
    rows = []
    for run in parts:
        row = run.summary().iloc[0].to_dict()
        numbers = [row[name] for name in shown]
        forms = ("{:.2f}", "{:.2f}", "{:.2f}", "{:,.0f}", "{:,.0f}")
        cells = [form.format(x) if x == x else "–" for form, x in zip(forms, numbers)]
        names = (row["method"], str((run.run["draft"] or {}).get("name") or "–"), row["exactness"])
        rows.append([*map(visible, names), *cells])
    print_table(screen(), columns, rows)


def screen(stderr: bool = False) -> Any:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # Where nobody reads along, a table is not cut to a terminal's width.
    return Console(file=stream, highlight=False, width=None if stream.isatty() else 160)


@contextmanager
def progress(lines: bool = False) -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on standard error that is told (done, of, what).

    With `lines`, where standard error is no terminal, a line is printed there once a minute.
    """
    if lines and not sys.stderr.isatty():
        yield Lines()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    # Two redraws a second: the bar's thread must not take time from what is measured.
    with Progress(
        *columns,
        console=screen(True),
        transient=True,
        refresh_per_second=2,
        disable=not sys.stderr.isatty() or not ranks.leads(),
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, of, what: bar.update(task, completed=done, total=of, description=what)


class Lines:
    """Progress for a log: at most one line a minute, with the time left."""

    def __init__(self, every: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self.every, self.clock = every, clock
        self.of = self.done = 0

    def __call__(self, done: int, of: int, what: str) -> None:
        now = self.clock()
        another_stage = of != self.of or done < self.done
        self.done = done
        if another_stage:
            self.of, self.begin, self.first, self.shown = of, now, done, float("-inf")
        if now - self.shown < self.every:
            return
        self.shown = now
        steps = done - self.first
        left = f", {(now - self.begin) / steps * (of - done) / 60:.0f} min left" if steps else ""
        print(f"specviz: {done} of {of}{left} ({what})", file=sys.stderr, flush=True)


class Interrupted(Exception):
    """Ctrl-C, with a word on what is kept; typer would drop the word."""
