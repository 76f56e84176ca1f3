"""The folder of a run: one small file per finished prompt, and the tables that are computed from them.

A file is written whole or not at all, so a killed run leaves its finished prompts and nothing else. Reading
needs no torch.

A table gives speeds in three ways, because they can disagree about the winner. *Pooled*: the tokens of all
prompts over the seconds of all prompts, so long answers weigh more. *Request*: the mean over prompts of
tokens per second (as in Spec-Bench); its speedup is the ratio of two of these means. *Paired*: the median
over prompts of the ratio of a prompt's two speeds. All three include the prefill; *decode* is pooled without.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock, Timeout

from specviz.errors import ParameterError, SpecvizError, TraceError, plural
from specviz.escape import line
from specviz.files import checked, read_json, read_json_lines, temporary, write_text
from specviz.measure.claims import quotient, resampled
from specviz.measure.report import Entry, Row, Settings, Values
from specviz.metrics import Estimate, pooled
from specviz.metrics.cycles import ratio
from specviz.paths import expanded

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from specviz.trace import Trace

SCHEMA = 1
AGAIN = "delete it and run the same plan again"
OURS = ("lock", "suites")  # left by a run that was killed before it wrote run.json
CELL_COLUMNS = ("model", "method", "draft", "parameters", "suite", "temperature")
ROW_COLUMNS = ("kind", "language", "seed", "round", "id")  # columns that a table may be broken down by
NOTES = 40  # lines below a table
MODELS = ("model", "drafts", "places")  # keys of an environment that say what ran, not where


def key_of(cell: int, number: int, prompt: int) -> str:
    """The file name of a row, without the suffix: its cell, round and prompt."""
    return f"c{cell:03d}-r{number}-p{prompt:04d}"


def file_of(suite: str) -> str:
    """A suite's file name; a name that must be changed gets a hash, so that no two are the same."""
    name = re.sub(r"[^\w.-]+", "_", suite)
    return name if name == suite else f"{name}-{hashlib.sha256(suite.encode()).hexdigest()[:8]}"


def write_json(path: Path, content: Any) -> None:
    """Write a one-line JSON file, whole or not at all."""
    write_text(path, json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n", force=True)


def _row(file: Path) -> Row:
    """Read and check the row of a finished prompt."""
    from specviz.measure.schema import FailedRow, Fields, TimedRow, UntimedRow

    row = read_json(file, Fields, AGAIN)
    good = TimedRow if row.get("timed") else UntimedRow
    return dict(checked(good if row.get("error") is None else FailedRow, row, str(file), AGAIN))


class Results:
    """A run's folder, finished or not.

    Parameters
    ----------
    path : str or Path

    Attributes
    ----------
    plan : dict
        The plan as plain data: ``models``, ``cells``, ``suites``, ``seeds``, ``max_new_tokens``, ...
    cells : list of dict
        The rows of the table: ``cell``, ``model``, ``method``, ``draft``, ``parameters``, ``suite`` ...
    wanted : dict
        (cell, round, prompt) of every row, by its file name without the suffix.
    created : str
    warm : dict
        How many prompts of each suite fill the methods' memories first; empty if that was not recorded.

    Raises
    ------
    TraceError
        If it is not the folder of a run, or its schema is of another version.
    """

    warm: Values = MappingProxyType({})

    def __init__(self, path: str | Path) -> None:
        self.path = expanded(path, TraceError)
        self._read: dict[str, tuple[int, Row]] = {}  # rows by name, with their file's modification time
        file = self.path / "run.json"
        if not file.is_file():
            raise TraceError(
                f"{self.path} is not the folder of a run: it has no run.json (specviz bench run makes one)"
            )
        from specviz.measure.schema import RunFile

        content = read_json(file, Settings)
        if content.get("specviz") != "bench run":
            raise TraceError(f"{file} was not written by specviz bench run")
        if content.get("schema") != SCHEMA:
            raise TraceError(f"{file} has a schema that this version of specviz cannot read")
        checked(RunFile, content, str(file), "the file is damaged: run the plan again into another folder")
        self.warm = content.get("warm", {})
        self._settle(content["plan"], content["created"])

    def _settle(self, plan: Settings, created: str) -> None:
        """Set the plan and the rows that it asks for."""
        self._tables: dict[tuple[str, ...], tuple[list[Row], pd.DataFrame]] = {}  # by `by`, with their rows
        self.plan, self.created = plan, created
        self.cells: list[Row] = self.plan["cells"]
        self.wanted: dict[str, tuple[int, int, int]] = {
            key_of(cell["cell"], number, prompt): (cell["cell"], number, prompt)
            for cell in self.cells
            for number in range(len(self.plan["seeds"]))
            for prompt in range(self.plan["suites"][cell["suite"]]["prompts"])
        }

    def __repr__(self) -> str:
        return f"<Results {self.path}: {self._count()}>"

    def _count(self) -> str:
        failed = len(self.failures())
        return f"{len(self.done)} of {len(self.wanted)} rows" + f", {failed} failed" * bool(failed)

    def _repr_html_(self) -> str:
        page = self.shown().to_html(index=False, border=0, max_rows=100)
        return re.sub(r"(\[[\d.]+), ([\d.]+\])", r"\1,&nbsp;\2", page)  # an interval stays on one line

    @property
    def done(self) -> set[str]:
        """Names of the rows that exist, including failed ones."""
        return {file.stem for file in (self.path / "rows").glob("*.json")} & set(self.wanted)

    @property
    def missing(self) -> list[tuple[int, int, int]]:
        """(cell, round, prompt) of the rows that are still to be decoded."""
        done = self.done
        return [place for key, place in self.wanted.items() if key not in done]

    @property
    def complete(self) -> bool:
        """Whether every row exists, failed or not."""
        return not self.missing

    @property
    def environments(self) -> dict[str, Settings]:
        """Where rows were decoded: digest to device, processor, threads, number format, clock, versions."""
        from specviz.measure.schema import RowEnvironment

        files = sorted((self.path / "environments").glob("*.json"))
        return {file.stem: dict(read_json(file, RowEnvironment, AGAIN)) for file in files}

    def records(self) -> list[Row]:
        """Every row as it is on disk, in order of cells, rounds and prompts.

        Raises
        ------
        TraceError
            If one is damaged; the message names its file.
        """
        rows = []
        files = {file.stem: file for file in (self.path / "rows").glob("*.json")}
        for key, place in self.wanted.items():
            if key not in files:
                continue
            when = files[key].stat().st_mtime_ns
            if key not in self._read or self._read[key][0] != when:
                self._read[key] = when, _row(files[key])
            row = self._read[key][1]
            if (row["cell"], row["round"], row["prompt"]) != place:
                raise TraceError(f"{files[key]} does not match its name: {AGAIN}")
            rows.append(row)
        return rows

    def rows(self) -> pd.DataFrame:
        """One row per finished (cell, round, prompt): seconds, bytes, and ids and texts of its outputs."""
        import pandas as pd

        return pd.DataFrame(self.records())

    def failures(self) -> pd.DataFrame:
        """The rows that failed: where, and why."""
        import pandas as pd

        columns = ["model", "method", "draft", "parameters", "suite", "prompt", "id", "round", "error"]
        failed = [row for row in self.records() if row["error"] is not None]
        return pd.DataFrame([{c: row.get(c) for c in columns} for row in failed], columns=columns)

    def prompts(self, suite: str) -> list[Entry]:
        """The measured prompts of a suite with their references; a stream is a list of [text, time]."""
        if suite not in self.plan["suites"]:
            raise ParameterError(f"the run has no suite {suite!r}; it has {', '.join(self.plan['suites'])}")
        file = self.path / "suites" / f"{file_of(suite)}.jsonl"
        from specviz.measure.schema import SuiteEntry

        return [dict(entry) for entry in read_json_lines(file, SuiteEntry, AGAIN)]

    def trace(self, cell: int, prompt: int, round: int = 0) -> Trace:
        """The trace of a row, if the run kept traces (``traces = true``)."""
        from specviz.trace import Trace

        file = self.path / "traces" / f"{key_of(cell, round, prompt)}.parquet"
        if not file.exists():
            raise TraceError(f"{self.path} has no such trace; a run keeps them with traces = true (--traces)")
        return Trace.open(file)

    def table(self, by: str | Sequence[str] = ()) -> pd.DataFrame:
        """One row per cell, or per value of `by` in each cell.

        Parameters
        ----------
        by : str or sequence of str
            ``kind``, ``language``, ``seed``, ``round`` or ``id``.

        Returns
        -------
        DataFrame
            ``model``, ``method``, ``draft``, ``parameters`` (a text), ``suite``, ``temperature``, those of
            `by`; ``prompts`` finished, ``failures`` (rows), ``pairs`` (prompts that cell and reference
            decoded in one sitting, the basis of every speedup); ``tokens``; ``tau`` (pooled; with ``_low``
            and ``_high``) and ``request_tau`` (mean over prompts); ``pooled_``, ``request_`` and
            ``decode_throughput`` in tokens per second; ``pooled_``, ``request_``, ``paired_`` and
            ``decode_speedup``, each with ``_low`` and ``_high``, its 95 % bootstrap interval over prompts;
            ``prefill_share`` of the time; ``same``, the share of greedy texts that equal the reference's
            token for token; ``peak_memory`` and ``device_memory`` in bytes; ``timed``.
        """
        given = (by,) if isinstance(by, str) else tuple(by)
        for name in given:
            if name not in ROW_COLUMNS:
                raise ParameterError(
                    f"a table can be broken down by {', '.join(ROW_COLUMNS)}, not by {name!r}"
                )
        rows = self.records()
        if given not in self._tables or self._tables[given][0] != rows:  # a run in progress adds rows
            self._tables[given] = rows, self._table(rows, given)
        return self._tables[given][1].copy()

    def _table(self, records: list[Row], given: tuple[str, ...]) -> pd.DataFrame:
        """Compute the table of these rows."""
        import pandas as pd

        parts: dict[tuple, list[Row]] = defaultdict(list)
        for row in records:
            parts[(row["cell"], *(row.get(name) for name in given))].append(row)
        groups = list(dict.fromkeys(key[1:] for key in parts)) or [()]
        lines = []
        for cell in self.cells:
            for group in groups:
                rows = parts.get((cell["cell"], *group), [])
                if not rows and given:
                    continue
                base = parts.get((cell["against"], *group), [])
                head = {name: cell[name] for name in CELL_COLUMNS} | dict(zip(given, group))
                head["parameters"] = words(cell["parameters"])
                lines.append({"cell": cell["cell"]} | head | figures(rows, base, cell))
        return pd.DataFrame(lines)

    def shown(self, by: str | Sequence[str] = ()) -> pd.DataFrame:
        """The table as printed: without columns that tell no rows apart, and with intervals in brackets."""
        import pandas as pd

        table = self.table(by)
        if table.empty:  # no row is decoded yet, so there is nothing to break down
            return table
        keep = [
            c
            for c in (*CELL_COLUMNS, *ROW_COLUMNS)
            if c in table and (c == "method" or distinguishes_rows(table[c]))
        ]
        out: Row = {name: table[name].fillna("").map(str) for name in keep}
        for name in {"model", "draft"} & out.keys():
            short = out[name].map(lambda text: Path(text).name)  # a path by its last part, if that is unique
            out[name] = short if short.nunique() == out[name].nunique() else out[name]
        rows = table.to_dict("records")
        for name, (heading, form) in SHOWN.items():
            cells = []
            for row in rows:
                value = row[name]
                text = "–" if pd.isna(value) else form.format(value / 2**20 if name in BYTES else value)
                if f"{name}_low" in row and not pd.isna(row[f"{name}_low"]):
                    text += f" [{row[f'{name}_low']:.2f}, {row[f'{name}_high']:.2f}]"
                cells.append(text)
            if not table[name].isna().all() and (name != "failures" or table[name].any()):
                out[heading] = cells
        return pd.DataFrame(out)

    def show(self, console: Console) -> None:
        """Print the table, where it was measured, and what failed, on a rich console."""
        from rich.text import Text

        from specviz.measure.report import Column, print_table

        def write(text: str) -> None:
            console.print(Text(line(text)), soft_wrap=not console.is_terminal)

        table = self.shown()
        first = [name for name in table if name in (*CELL_COLUMNS, *ROW_COLUMNS)]
        ends = (
            "MiB", "of means", "tokens/s, mean", "tokens", "prompts", "decoding", "tokens/s pooled", "draft",
        )  # fmt: skip
        ranks = [next((i for i, end in enumerate(ends) if str(name).endswith(end)), None) for name in table]
        columns = [
            Column(str(name), name not in first, None if name in CELL_COLUMNS[1:3] else 0, rank)
            for name, rank in zip(table, ranks)
        ]
        print_table(console, columns, table.to_numpy().tolist())
        for text in (*self.places(), *self.notes()):
            write(text)
        write(f"{self.path}: {self._count()}")

    def places(self) -> list[str]:
        """Where the rows were measured, a line for each environment."""
        lines = [
            f"{e['device']} ({e['processor']}), {plural(e['threads'], 'thread')}, {e['dtype']}"
            + (f", {e['kernels']} kernels" if e.get("kernels") else "")
            + f"; times by {e['clock']}"
            for e in self.environments.values()
        ]
        return list(dict.fromkeys(lines))

    def notes(self) -> list[str]:
        """Sentences that a reader of the table needs."""
        table, notes, mixed = self.table(), [], False
        if not self.plan["timed"]:
            notes.append("untimed: workers may have shared cores, so there are no speeds")
        of_model: dict[str, Settings] = {}  # a cell has one model, so only its environments mix
        for each in self.environments.values():
            name = json.dumps(each.get("model"), sort_keys=True)
            place = {k: v for k, v in each.items() if k not in MODELS}
            mixed = mixed or of_model.setdefault(name, place) != place
        if mixed and self.plan["timed"]:
            notes.append("rows come from several environments: pooled numbers mix them, paired ones do not")
        stores = {row.get("suite") for row in self.records() if row.get("memory")}
        for name in [each for each, count in self.warm.items() if not count and each in stores]:
            if self.plan.get("warm_up"):
                notes.append(f"{name}: no prompt was left to fill memories, so they start empty: set number")
        if self.missing:
            verb = "is" if len(self.missing) == 1 else "are"
            notes.append(f"{plural(len(self.missing), 'row')} {verb} still missing")
        references = {cell["cell"] for cell in self.cells if cell["cell"] == cell["against"]}
        apart = table[(table["pairs"] < table["prompts"]) & ~table["cell"].isin(references)]
        if self.plan["timed"] and len(apart):
            lost = int((apart["prompts"] - apart["pairs"]).max())
            notes.append(
                f"up to {plural(lost, 'prompt')} of a cell without a pair (the reference failed, or the run "
                "was interrupted between the two): left out of the speedups"
            )
        failures: dict[tuple[str, str, int, str], list[str]] = {}
        for _, row in self.failures().iterrows():
            key = (row["model"], row["suite"], row["prompt"], row["error"])
            failures.setdefault(key, []).append(row["method"])
        for (model, suite, prompt, error), methods in failures.items():
            names = list(dict.fromkeys(methods))
            who = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
            notes.append(f"failed: {who} on {model}, {suite} prompt {prompt + 1}: {error}")
        if len(notes) > NOTES:
            count = sum(map(len, list(failures.values())[NOTES - len(notes) :]))
            left = plural(count, "more failure")
            notes[NOTES:] = [f"... and {left} (Results.failures() lists all)"]
        return notes


# Figures in a printed table: column: (heading, format).
SHOWN = {
    "prompts": ("prompts", "{:d}"),
    "failures": ("failed", "{:d}"),
    "tokens": ("tokens", "{:,d}"),
    "tau": ("τ", "{:.2f}"),
    "paired_speedup": ("speedup paired", "{:.2f}"),
    "same": ("same texts", "{:.0%}"),
    "pooled_throughput": ("tokens/s pooled", "{:,.0f}"),
    "request_throughput": ("tokens/s, mean", "{:,.0f}"),
    "pooled_speedup": ("speedup pooled", "{:.2f}"),
    "request_speedup": ("of means", "{:.2f}"),
    "decode_speedup": ("decoding", "{:.2f}"),
    "peak_memory": ("peak MiB", "{:,.0f}"),
    "device_memory": ("of the device", "{:,.0f}"),
}
BYTES = ("peak_memory", "device_memory")


def words(parameters: Values) -> str:
    """Parameters as text in a table."""
    return " ".join(f"{name}={value}" for name, value in parameters.items())


def distinguishes_rows(column: pd.Series) -> bool:
    """Whether a column tells rows apart."""
    return bool(column.fillna("").map(str).nunique() > 1)


# ---------------------------------------------------------------- figures

Rows = Iterable[Row]


def figures(rows: list[Row], base: list[Row], cell: Values) -> Row:
    """A cell's figures over its rows, and relative to the rows of its reference."""
    good = [row for row in rows if row["error"] is None]
    itself = cell["cell"] == cell["against"]
    matched = matched_rows(rows, base)
    pairs = paired(rows, base)
    timed = [row for row in good if fast(row)]
    tokens, steps = sums(good, "tokens"), sums(good, "steps")
    tau = pooled(tokens, steps)
    values = {
        "prompts": len(tokens),
        "failures": len(rows) - len(good),
        "pairs": len({a["prompt"] for a, _ in pairs}),
        "tokens": sum(map(written, good)),
        **named("tau", tau),
        "request_tau": mean([t / s for t, s in zip(tokens, steps) if s]),
        "pooled_throughput": ratio(sum(map(written, timed)), sum(map(seconds, timed))),
        "request_throughput": mean(per_prompt(timed, speed)),
        "decode_throughput": ratio(sum(map(written, timed)), sum(r["decode_seconds"] for r in timed)),
        **speedups([] if itself else pairs, itself and bool(timed)),
        "prefill_share": ratio(sum(r["prefill_seconds"] for r in timed), sum(map(seconds, timed))),
        "same": None,
        "peak_memory": most(good, "peak_memory"),
        "device_memory": most(good, "device_memory"),
        "timed": bool(good) and all(row["timed"] for row in good),
    }
    if not itself and not cell["temperature"] and matched:
        values["same"] = float(np.mean([a["ids"] == b["ids"] for a, b in matched]))
    return values


def matched_rows(rows: Rows, base: Rows) -> list[tuple[Row, Row]]:
    """Each successful row with its reference's row, if that succeeded, too."""
    theirs = {(row["round"], row["prompt"]): row for row in base if row["error"] is None}
    good = [(row, theirs.get((row["round"], row["prompt"]))) for row in rows if row["error"] is None]
    return [(a, b) for a, b in good if b is not None]


def paired(rows: Rows, base: Rows) -> list[tuple[Row, Row]]:
    """Pairs decoded in direct succession, whose times compare; a pair that a kill interrupted is left out."""
    return [
        (a, b) for a, b in matched_rows(rows, base) if a["sitting"] == b["sitting"] and fast(a) and fast(b)
    ]


def speedups(pairs: list[tuple[Row, Row]], itself: bool) -> dict[str, float]:
    """The four speedups over the reference; 1 for `itself`."""
    names = ("pooled_speedup", "request_speedup", "paired_speedup", "decode_speedup")
    estimates = compared(pairs) if pairs else [Estimate.of([1.0] if itself else [])] * len(names)
    return {key: value for name, each in zip(names, estimates) for key, value in named(name, each).items()}


def compared(pairs: list[tuple[Row, Row]]) -> list[Estimate]:
    """Speedups of rows over their references: pooled, request, paired and decode."""
    ours, theirs = [a for a, _ in pairs], [b for _, b in pairs]

    def columns(field: str) -> list[np.ndarray]:
        return [sums(side, key) for side in (ours, theirs) for key in ("written", field)]

    speeds = [np.array(per_prompt(side, speed)) for side in (ours, theirs)]
    ratios: dict[int, list[float]] = defaultdict(list)
    for a, b in pairs:
        ratios[a["prompt"]].append(speed(a) / speed(b))
    return [
        resampled(quotient, *columns("seconds")),
        resampled(lambda a, b: a / b, *speeds),
        Estimate.of([float(np.median(each)) for each in ratios.values()]),
        resampled(quotient, *columns("decode_seconds")),
    ]


def seconds(row: Values) -> float:
    """Seconds of prefill and decoding."""
    return float(row["prefill_seconds"] + row["decode_seconds"])


def speed(row: Values) -> float:
    """Tokens per second, prefill included."""
    return float(written(row) / seconds(row))


def written(row: Values) -> int:
    """Number of tokens of the texts, without a canvas's padding."""
    return int(row["tokens"] if row.get("written") is None else row["written"])


def fast(row: Values) -> bool:
    """Whether a row has a speed."""
    return bool(row["timed"]) and written(row) > 0 and seconds(row) > 0


def per_prompt(rows: Iterable[Values], value: Callable[[Values], float]) -> list[float]:
    """The mean over rounds of each prompt."""
    values: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        values[row["prompt"]].append(value(row))
    return [float(np.mean(each)) for each in values.values()]


def sums(rows: Iterable[Values], field: str) -> np.ndarray:
    """The sum over rounds of each prompt, float [prompts]."""
    totals: dict[int, float] = defaultdict(float)
    for row in rows:
        own = {"seconds": seconds, "written": written}.get(field)
        totals[row["prompt"]] += row[field] if own is None else own(row)
    return np.array(list(totals.values()), float)


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def most(rows: Iterable[Values], field: str) -> int | None:
    return max((row[field] for row in rows if row[field] is not None), default=None)


def named(name: str, estimate: Estimate) -> dict[str, float]:
    """An estimate as three columns."""
    return {name: estimate.median, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


# ---------------------------------------------------------------- starting and resuming


def begin(
    path: Path, plan: Values, prompts: Mapping[str, list[Entry]], created: str,
    warm: Mapping[str, int] = MappingProxyType({}),
) -> Results:  # fmt: skip
    """Make the folder of a run, or open the one of the same plan; a folder without rows accepts any plan.

    Raises
    ------
    SpecvizError
        If it holds another run; the message says what differs.
    """
    for part in filter(temporary, path.rglob("*.part")):  # left by a killed run
        with suppress(OSError):
            part.unlink()
    if (path / "run.json").exists():
        results = Results(path)
        wrong = differences(results.plan, json.loads(json.dumps(plan)))
        if wrong and any(path.glob("rows/*.json")):
            raise SpecvizError(
                f"{path} holds another run: {'; '.join(wrong)}. Give the same plan, or another folder"
            )
        if not wrong:
            return results
    for name, entries in prompts.items():
        lines = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
        write_text(path / "suites" / f"{file_of(name)}.jsonl", lines, force=True)
    content = {"specviz": "bench run", "schema": SCHEMA, "created": created, "plan": plan, "warm": dict(warm)}
    write_json(path / "run.json", content)  # last: a folder without it is not begun
    return Results(path)


def differences(theirs: Values, ours: Values) -> list[str]:
    """Differences between two plans, in words."""
    lines = []
    for key in {**theirs, **ours}:
        a, b = theirs.get(key), ours.get(key)
        if a == b:
            continue
        if key == "cells":
            mine, yours = set(map(labelled, b or [])), set(map(labelled, a or []))
            lines += [f"it has {each}, which this plan lacks" for each in sorted(yours - mine)[:3]]
            lines += [f"it lacks {each}" for each in sorted(mine - yours)[:3]]
            lines += ["its methods are in a different order"] if mine == yours else []
        elif key == "suites":
            for name in {**(a or {}), **(b or {})}:
                one, other = (a or {}).get(name), (b or {}).get(name)
                if one and other and one != other:
                    lines.append(
                        f"its suite {name} has different prompts ({one['prompts']}, here {other['prompts']})"
                    )
        elif key == "models":
            changed = [
                f"{one['model']} has {name} {one.get(name)}, here {other.get(name)}"
                for one, other in zip(a or [], b or [])
                for name in {**one, **other}
                if one["model"] == other["model"] and one.get(name) != other.get(name)
            ]
            lines += changed or [f"its models are {', '.join(m['model'] for m in a or [])}"]
        else:
            lines.append(f"its {key} is {a}, here {b}")
    return lines


def labelled(cell: Values) -> str:
    """A cell in words."""
    parts = [cell["method"], cell["draft"], words(cell["parameters"])]
    warm = f", temperature {cell['temperature']:g}" if cell["temperature"] else ""
    return f"{' '.join(filter(None, parts))} on {cell['model']} ({cell['suite']}{warm})"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Make the folder and lock it against other runs; a killed run leaves no lock.

    Raises
    ------
    SpecvizError, TraceError
        If another run holds the lock, the folder holds something else, or it cannot be written.
    """
    begun = not path.exists() or (path / "run.json").exists()
    others = path.iterdir() if path.is_dir() else [path]
    if not begun and any(file.name not in OURS and not temporary(file) for file in others):
        raise SpecvizError(f"{path} exists and is not the folder of a run: choose another one")
    with ExitStack() as held:
        try:
            path.mkdir(parents=True, exist_ok=True)
            held.enter_context(FileLock(path / "lock", timeout=0))
        except Timeout:
            raise SpecvizError(
                f"another run is writing to {path}: wait for it, or choose another folder"
            ) from None
        except OSError as error:
            raise TraceError(f"cannot write {path}: {error.strerror or error}") from None
        except NotImplementedError:  # a file system without locks
            pass
        yield
