"""Plant mutants and see which tests notice: ``python -m tests.mutants``.

A warm process (``warm.py``) forks for each mutant and runs the tests that reach it, up to the first failure.
A mutant that survives there is planted in a copy of the repository, never in the original, and the whole test
files that cover it run; mutants that survive this as well are printed. The tests first run without a mutant:
they must pass, and their time sets the limits. The results are recorded, so an interrupted run resumes, and
only the mutants of changed files are tried again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from specviz.files import write_text
from tests.mutants.planting import Mutant, chosen, covering

ROOT = Path(__file__).parents[2]
COPIED, LINKED = ("specviz", "tests", "pyproject.toml", "README.md"), ("data", "notebooks", "docs", "binder")
Entry = dict[str, Any]
OUTCOMES = {0: "survived", 1: "killed", 2: "killed", 3: "killed"}  # pytest's; 2 is an error while collecting


@contextmanager
def copies(root: Path, number: int) -> Iterator[SimpleQueue[Path]]:
    """Yield a queue of `number` copies of the repository, to be taken and put back."""
    queue: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for i in range(number):
            copy = Path(folder) / str(i)
            copy.mkdir()
            for name in COPIED:
                if (root / name).is_dir():
                    shutil.copytree(root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
                elif (root / name).exists():
                    shutil.copy(root / name, copy)
            for name in LINKED:
                if (root / name).exists():
                    (copy / name).symlink_to((root / name).resolve())
            queue.put(copy)
        yield queue


def judged(mutant: Mutant, tests: list[str], copy: Path, limit: float) -> str:
    """Judge one mutant: killed, survived, or out of time (an endless loop or slow tests)."""
    path = copy / mutant.file
    source = path.read_bytes()
    path.write_bytes(mutant.applied(source))
    try:
        status, output = tried(tests, copy, limit)
    except subprocess.TimeoutExpired:
        return "out of time"
    finally:
        path.write_bytes(source)
    if status not in OUTCOMES:
        raise SystemExit(f"no tests ran for {mutant}: {output[-1000:]}")
    return OUTCOMES[status]


def tried(tests: list[str], copy: Path, limit: float) -> tuple[int, str]:
    """Run tests in a copy up to the first failure; return the exit status and the output."""
    environment = os.environ | {
        "PYTHONPATH": str(copy),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command, cwd=copy, env=environment, timeout=limit, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def warmly(root: Path, planted: list[Mutant], jobs: int, limit: float, end: float) -> Iterator[Entry]:
    """Yield the warm process's outcome for each mutant as it arrives."""
    given = {
        "mutants": [mutant.record() for mutant in planted],
        "files": sorted({name for mutant in planted for name in covering(root, mutant.file)}),
        "jobs": jobs, "limit": limit, "budget": limit / 2, "end": end,
    }  # fmt: skip
    command = [sys.executable, "-m", "tests.mutants.warm"]
    environment = os.environ | {"PYTHONPATH": f"{root}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, cwd=root, env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(given))
        process.stdin.close()
        for line in process.stdout:
            entry = json.loads(line)
            if "failures" in entry:
                raise SystemExit(f"{' '.join(entry['failures'])} fail without a mutant")
            if "file" in entry:
                print(f"without a mutant: {entry['file']} ({entry['seconds']:g} s)", flush=True)
            else:
                yield entry
        if process.wait():
            errors.seek(0)
            raise SystemExit(f"no tests ran: {errors.read()[-1000:]}")


def run(root: Path, record: Path, number: int, seed: int, jobs: int, limit: float, minutes: float) -> int:
    """Judge the mutants missing from the record, print every outcome, and return the number of survivors."""
    entries = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    known = {(*entry["mutant"].values(), entry["digest"]): entry for entry in entries}
    end = time.time() + 60 * minutes
    planted = {mutant: digest(root / mutant.file) for mutant in chosen(root, number, seed)}
    keys = {mutant: (*mutant.record().values(), of_file) for mutant, of_file in planted.items()}
    todo = [mutant for mutant, key in keys.items() if key not in known]

    def show(mutant: Mutant) -> None:
        entry = known[keys[mutant]]
        by = ", " + entry["by"] if entry.get("by") else ""
        print(f"{entry['outcome']}: {mutant} ({entry['seconds']:g} s{by})", flush=True)

    def note(mutant: Mutant, outcome: str, seconds: float, by: str = "") -> None:
        entry = {"mutant": mutant.record(), "digest": planted[mutant], "outcome": outcome, "seconds": seconds}
        known[keys[mutant]] = entry | {"by": by}
        write_text(record, "".join(json.dumps(each) + "\n" for each in known.values()), force=True)
        show(mutant)

    for mutant in planted:
        if mutant not in todo:
            show(mutant)
    alive: dict[Mutant, float] = {}
    for entry in warmly(root, todo, jobs, limit, end) if todo else ():
        mutant = todo[entry["number"]]
        if entry["outcome"] == "survived":
            alive[mutant] = entry["seconds"]
        else:
            note(mutant, entry["outcome"], entry["seconds"], entry["by"])

    def coldly(mutant: Mutant) -> tuple[str, float]:
        copy, begin = queue.get(), time.monotonic()
        try:
            outcome = judged(mutant, covering(root, mutant.file), copy, 10 * limit)
        finally:
            queue.put(copy)
        return outcome, round(alive[mutant] + time.monotonic() - begin, 1)

    with copies(root, jobs if alive else 0) as queue, ThreadPoolExecutor(jobs) as pool:
        for mutant, result in zip(alive, pool.map(coldly, alive)):
            note(mutant, *result)
    outcomes = Counter(str(known[key]["outcome"]) for key in keys.values() if key in known)
    left = len(planted) - outcomes.total()
    words = [f"{n} {name}" for name, n in outcomes.items()] + [f"{left} not tried"] * bool(left)
    print(", ".join(words))
    return outcomes["survived"]


def digest(path: Path) -> str:
    """Hash of a file's content."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--limit",
        type=float,
        default=60,
        help="Seconds that a test may take beyond ten times those without a mutant, and a mutant's tests "
        "together; in a copy of the repository, ten times as many.",
    )
    parser.add_argument("--minutes", type=float, default=30, help="No mutant is begun later.")
    parser.add_argument("--record", type=Path, default=Path("mutants.jsonl"))
    given = parser.parse_args(arguments)
    return int(run(ROOT, **vars(given)) > 0)


if __name__ == "__main__":
    sys.exit(main())
