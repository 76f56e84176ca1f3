"""Kits to replay a table on someone else's hardware, and checks of the results that they send back.

A kit holds commands, the versions installed here, the setup as data, and checksums. A result is a folder with
a ``replay.json``. It is trusted only as far as it can be checked here: its form, its checksums if it has
them, the printed numbers, and every comparison and verdict, which are recomputed from its cells.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import specviz
from specviz.errors import ParameterError, TraceError, one_line, plural
from specviz.files import write_text
from specviz.measure.report import Row, Settings
from specviz.paths import expanded, folder
from specviz.replays.cells import Cell
from specviz.replays.published import published
from specviz.replays.recipes import CURVES
from specviz.replays.replays import FILE, PRINTED, Replay, figures_of, judged, opened
from specviz.replays.running import calibrates
from specviz.replays.setups import NEVER_RUN

if TYPE_CHECKING:
    from specviz.replays.dry_run import Plan

SETUP, CONSTRAINTS, SUMS, README, CHECK = (
    "setup.json",
    "constraints.txt",
    "SHA256SUMS",
    "README.md",
    "check.py",
)
# Packages that a replay uses, apart from this one.
PINNED = (
    "torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "sentencepiece", "numpy",
    "pandas", "pyarrow", "pydantic", "gguf", "llama-cpp-python", "sacrebleu", "rouge-score", "scipy",
    "scikit-learn",
)  # fmt: skip
WEIGHTS = "weights"  # a kit's folder for downloads
MOST_BYTES = 64 << 20  # size limit of a replay.json to read
SUM = re.compile(r"([0-9a-f]{64}) [ *]([\w.-]{1,100})")
SHOWN = 40  # most numbers that are printed side by side


# ---------------------------------------------------------------- writing a kit


def write(out: str | Path, plans: Sequence[Plan]) -> Path:
    """Write a kit into a new folder.

    Raises
    ------
    ParameterError
        If the folder is not empty.
    """
    path = expanded(out, ParameterError)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ParameterError(f"{path} is not empty: a kit needs a new folder")
    path.mkdir(parents=True, exist_ok=True)
    texts = {
        SETUP: json.dumps(described(plans), indent=1, ensure_ascii=False) + "\n",
        CONSTRAINTS: "".join(f"{name}=={number}\n" for name, number in versions().items()),
        CHECK: (folder("published") / CHECK).read_text(encoding="utf8"),
        README: readme(plans),
    }
    for name, text in texts.items():
        write_text(path / name, text)
    sums = (f"{digest(path / name)}  {name}\n" for name in texts)
    write_text(path / SUMS, "".join(sums))
    return path


def versions() -> dict[str, str]:
    """The installed versions of the `PINNED` packages, without build tags such as ``+cpu``."""
    out = {}
    for name in PINNED:
        try:
            out[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            continue
    return out


def described(plans: Sequence[Plan]) -> Settings:
    """The setup of a table's parts as data; it depends only on the package's version."""
    return {
        "specviz": "setup", "version": specviz.__version__, "table": plans[0].chosen.table,
        "parts": [described_part(each) for each in plans],
    }  # fmt: skip


def described_part(plan: Plan) -> Settings:
    """One part: its checkpoints, suites, wording, numbers, and the recipe's rows."""
    part = plan.chosen.part
    return {
        "part": part.name,
        "checkpoints": [
            {"id": c.id, "architecture": c.architecture, "weights": c.weights, "bytes": c.bytes,
             "bytes_from": c.origin, "licence": c.licence}
            for c in part.checkpoints
        ],
        "suites": dict(part.suites), "wording": part.wording, "template": part.template,
        "number_format": part.dtype or part.gguf, "numbers": part.numbers, "stated": part.stated,
        "unstated": part.unstated,
        "rows": [{"where": dict(row.where), "method": row.method} for row in plan.chosen.recipe.rows],
    }  # fmt: skip


def readme(plans: Sequence[Plan]) -> str:
    """The kit's instructions, with the commands in the order in which to run them."""
    from specviz.replays.dry_run import gguf_lines, gigabytes

    table = plans[0].chosen.table
    extras = "run,quality" + ",calibrate" * calibrates(plans[0].chosen.recipe)
    lines = [
        f"# {table}, to be measured on your machine",
        "",
        f"Made by specviz {specviz.__version__}. {NEVER_RUN[0].upper()}{NEVER_RUN[1:]}.",
        "",
        "## 1. Install",
        "Python 3.11 or newer; install specviz of the version above, from its checkout or wheel, with:",
        "```",
        "python3 -m venv .venv",
        f'.venv/bin/pip install -c {CONSTRAINTS} "SPECVIZ[{extras}]"   # SPECVIZ: its checkout or wheel',
        f".venv/bin/python {CHECK}   # checksums of this kit, and the versions",
        "```",
        "pip's torch supports CUDA, and MPS on a Mac. For llama.cpp add the extra `llamacpp`:",
        "on a Mac it is built with Metal.",
        "",
        "## 2. Fetch and measure",
    ]
    for plan in plans:
        part = plan.chosen.part
        base = f".venv/bin/specviz replay {table} --setup paper --part {part.name}"
        lines += [
            f"### {part.name}: {part.model.id}",
            *(f"- {line}" for line in [*plan.facts(), *gguf_lines(plan.chosen)]),
            f"- download: {gigabytes(plan.download)} of weights",
            f"- memory: about {gigabytes(plan.memory)} (estimate)",
            "",
            "```",
            f"export SPECVIZ_HOME=$PWD/{WEIGHTS}",
            f"{base} --dry-run --device cuda   # sizes, and the time on this device",
            *(f".venv/bin/{line}" for each in part.checkpoints for line in each.commands(WEIGHTS)),
            f"{base} --device cuda --out {part.name}   # CUDA",
            f"{base} --device mps --out {part.name}    # a Mac, on torch",
        ]
        if part.gguf:
            file = f"{part.model.name}.{part.gguf}.gguf"
            lines.append(f"{base} --model gguf:{file} --device mps --out {part.name}   # llama.cpp on Metal")
        lines += [
            "```",
            "`--number N` uses fewer prompts, `--max-new-tokens N` shorter texts, `--dtype bfloat16` another "
            "number format.",
            "",
        ]
    return "\n".join([
        *lines,
        "## 3. Send back",
        "What you measured, each part in a folder of its own:",
        "```",
        *(f".venv/bin/python {CHECK} {plan.chosen.part.name}   # adds setup and checksums" for plan in plans),
        "```",
        "Send the folders back. The recipient runs `specviz replay --add FOLDER` on each.",
        "",
    ])  # fmt: skip


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---------------------------------------------------------------- adding a result


@dataclass(frozen=True)
class Added:
    """A result that came back, with our own replay of the table if there is one."""

    replay: Replay
    ours: Replay | None
    notes: list[str]

    def rows(self) -> list[Row]:
        """The numbers that were measured there: ``what``, ``printed``, ``here`` and ``there``."""
        mine = {key(cell): cell for cell in self.ours.measured} if self.ours else {}
        out = []
        for cell in self.replay.measured:
            here = mine.get(key(cell))
            names = (*cell.keys.values(), cell.model, cell.metric)
            out.append({
                "what": ", ".join(str(value) for value in names if value),
                "printed": cell.printed or "-",
                "here": "-" if here is None or here.measured is None else f"{here.measured:.4g}",
                "there": f"{cell.measured:.4g}",
            })  # fmt: skip
        return out

    def lines(self) -> list[str]:
        """In words: where it was measured, what was checked, and the numbers side by side."""
        rows = self.rows()
        here = self.ours.device if self.ours else "nothing of this table"
        return [
            f"added: {self.replay.path}",
            f"there: {self.replay.device}",
            f"here: {here}",
            *(f"note: {note}" for note in self.notes),
            *(f"  {r['what']}: printed {r['printed']}, here {r['here']}, there {r['there']}"
              for r in rows[:SHOWN]),
            *([f"  {len(rows) - SHOWN} more: specviz bench report {self.replay.path} --html"]
              if len(rows) > SHOWN else []),
            f"{self.replay.table}: {self.replay.summary}",
        ]  # fmt: skip


def key(cell: Cell) -> tuple[str, ...]:
    """Key that identifies a printed number within its table."""
    return (*map(str, cell.keys.values()), cell.metric, cell.device, cell.model)


def add(result: str | Path, root: str | Path) -> Added:
    """Check a result that came back and store it next to ours.

    Parameters
    ----------
    result : path
        A folder with a ``replay.json``, or the file.
    root : path
        The folder of our replays, one folder per table; the result is stored in its folder ``added``.

    Raises
    ------
    TraceError
        If it is damaged, its checksums do not match, its printed numbers are not those of a table here, or a
        comparison contradicts its cells.
    """
    path, root = expanded(result, TraceError), expanded(root, ParameterError)
    path = path.parent if path.name == FILE else path
    file = path / FILE
    if file.is_file() and file.stat().st_size > MOST_BYTES:
        raise TraceError(f"{file} is too large for a replay: {file.stat().st_size:,} bytes")
    notes = [summed(path)]
    try:
        there = opened(path)
    except (OSError, ValueError) as error:
        raise TraceError(f"{file} cannot be read: {one_line(error, 120)}") from None
    check_printed(there, file)
    notes += packed(path, there.table)
    made, changed = rejudged(there, file)
    notes += changed
    name = re.sub(r"[^A-Za-z0-9]+", "-", there.device).strip("-")[:60] or "device"
    place = root / "added" / f"{there.table.replace('/', '-')}-{name}-{digest(file)[:8]}"
    place.mkdir(parents=True, exist_ok=True)
    placed = replace(made, path=place, runs=[], traces=[], notes=[*made.notes, *notes])
    placed.save()
    ours = root / there.table.replace("/", "-")
    return Added(placed, opened(ours) if (ours / FILE).is_file() else None, notes)


def summed(path: Path) -> str:
    """Verify the checksums that came with a result; return in words what they cover."""
    file = path / SUMS
    if not file.is_file():
        return f"it came without checksums ({SUMS})"
    lines = file.read_bytes()[:100_000].decode("utf8", "replace").splitlines()
    names = []
    for line in lines:
        match = SUM.fullmatch(line.strip())
        if match is None:
            raise TraceError(
                f"{file} has a line that is not the checksum of a file next to it: {line[:60]!r}"
            )
        file_here = path / match[2]
        if not file_here.is_file() or file_here.stat().st_size > MOST_BYTES or digest(file_here) != match[1]:
            raise TraceError(
                f"{file_here} does not match {SUMS}: it was changed or damaged in transit; ask for it again"
            )
        names.append(match[2])
    if FILE not in names:
        raise TraceError(f"{file} does not cover {FILE}: run the kit's {CHECK} on the folder again")
    return f"checksums of {plural(len(names), 'file')} match"


def packed(path: Path, table: str) -> list[str]:
    """Check the setup that came with a result; return notes if it is missing or of another version."""
    file = path / SETUP
    if not file.is_file() or file.stat().st_size > MOST_BYTES:
        return ["it came without its kit's setup"]
    try:
        content = json.loads(file.read_text(encoding="utf8"))
        same = content["specviz"] == "setup" and content["table"] == table
        number = str(content["version"])[:40]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise TraceError(f"{file} is not the setup of a kit") from None
    if not same:
        raise TraceError(f"{file} is for another table than {table}")
    return [] if number == specviz.__version__ else [f"its kit was made with specviz {number}"]


def check_printed(there: Replay, file: Path) -> None:
    """Check that a result's printed numbers are those of the table here.

    Raises
    ------
    TraceError
    """
    if there.table in CURVES:
        return
    try:
        frame = published(there.table)
    except ParameterError:
        raise TraceError(f"{file} is for {there.table}, which is in no paper here") from None
    columns = [name for name in frame if name not in ("paper", "table")]
    names = [str(name) for name in columns if name not in PRINTED]
    rows = frame[columns].to_dict("records")
    printed = {(*(str(row[n]) for n in names), *(str(row[n]) for n in PRINTED)) for row in rows}
    for number, cell in enumerate(there.cells):
        mine = (*(str(cell.keys.get(n)) for n in names), *(str(getattr(cell, n)) for n in PRINTED))
        if mine not in printed:
            raise TraceError(
                f"{file}, cells[{number}] is not a number of {there.table}: {cell.printed!r:.40}"
            )


def rejudged(there: Replay, file: Path) -> tuple[Replay, list[str]]:
    """Recompute a replay's comparisons and verdicts from its cells; also describe the changed verdicts.

    Results do not include the spread over texts. Intervals stand in for it: those of the cells, and for a
    difference on shared texts the comparison's own.
    """
    for each in there.comparisons:
        first, second = (there.cells[i].measured for i in (each.first, each.second))
        if first is None or second is None or abs(first - second - each.measured) > 1e-9 * max(1, abs(first)):
            raise TraceError(
                f"{file} has a comparison of cells {each.first} and {each.second} that does not match their "
                f"values"
            )
    made = judged(there, there.cells, figures_of(there.cells, there, file), there.comparisons)
    before = {(each.claim, each.question): each.verdict for each in there.verdicts}
    changed = [
        f"“{each.claim}”: {each.verdict} by its cells, but {before[each.claim, each.question]} according to "
        f"its makers"
        for each in made.verdicts
        if before.get((each.claim, each.question), each.verdict) != each.verdict
    ]
    return made, changed
