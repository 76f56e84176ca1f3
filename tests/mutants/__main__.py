"""Plant mutants and see which tests notice: ``python -m tests.mutants``.

Each mutant is planted in a copy of the repository, never in it; the tests that cover its file run there,
with a time limit, and stop at the first failure. Survivors are printed. The same tests run first without a
mutant: they must pass, and their time sets the limit. What was done stands in the record: an interrupted run
goes on from it, and tries only mutants of changed files again.
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
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from specviz.files import write_text
from tests.mutants.planting import Mutant, chosen, covering

ROOT = Path(__file__).parents[2]
COPIED, LINKED = ("specviz", "tests", "pyproject.toml", "README.md"), ("data", "notebooks", "docs", "binder")
OUTCOMES = {0: "survived", 1: "killed", 2: "killed", 3: "killed"}  # of pytest: 2 is an error while collecting


@contextmanager
def copies(root: Path, number: int) -> Iterator[SimpleQueue[Path]]:
    """So many copies of the repository, to be taken and put back."""
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
    """What becomes of a mutant: killed, survived, or out of time (an endless loop, or slow tests)."""
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


def unmutated(tests: list[str], copy: Path, limit: float) -> float:
    """Seconds that the tests take without a mutant; a failure among them ends the run."""
    begin = time.monotonic()
    try:
        status, output = tried(tests, copy, limit)
    except subprocess.TimeoutExpired:
        raise SystemExit(f"{' '.join(tests)} take longer than {limit:g} s without a mutant") from None
    if status:
        raise SystemExit(f"{' '.join(tests)} fail without a mutant:\n{output[-1000:]}")
    return time.monotonic() - begin


def tried(tests: list[str], copy: Path, limit: float) -> tuple[int, str]:
    """Run tests in a copy up to the first failure; the exit status and what was printed."""
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


def run(root: Path, record: Path, number: int, seed: int, jobs: int, limit: float, minutes: float) -> int:
    """Judge the mutants that the record lacks; print the survivors; give how many there are."""
    entries = [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []
    known = {(*entry["mutant"].values(), entry["digest"]): entry for entry in entries}
    end = time.monotonic() + 60 * minutes
    baselines: dict[str, float] = {}
    locks: defaultdict[str, Lock] = defaultdict(Lock)

    def one(mutant: Mutant) -> dict[str, object] | None:
        digest = hashlib.sha256((root / mutant.file).read_bytes()).hexdigest()[:16]
        key = (*mutant.record().values(), digest)
        if key in known:
            return known[key]
        if time.monotonic() > end:
            return None
        copy, begin = queue.get(), time.monotonic()
        tests = covering(root, mutant.file)
        try:
            with locks[mutant.file]:
                if mutant.file not in baselines:
                    baselines[mutant.file] = unmutated(tests, copy, 10 * limit)
            outcome = judged(mutant, tests, copy, limit + 3 * baselines[mutant.file])
        finally:
            queue.put(copy)
        seconds = round(time.monotonic() - begin, 1)
        return {"mutant": mutant.record(), "digest": digest, "outcome": outcome, "seconds": seconds}

    planted, done = chosen(root, number, seed), []
    with copies(root, jobs) as queue, ThreadPoolExecutor(jobs) as pool:
        for mutant, entry in zip(planted, pool.map(one, planted)):
            if entry is None:
                continue
            done.append(entry)
            known[(*mutant.record().values(), entry["digest"])] = entry
            write_text(record, "".join(json.dumps(each) + "\n" for each in known.values()), force=True)
            print(f"{entry['outcome']}: {mutant} ({entry['seconds']} s)", flush=True)
    counts = Counter(str(entry["outcome"]) for entry in done)
    left = len(planted) - len(done)
    words = [f"{n} {name}" for name, n in counts.items()] + [f"{left} not tried"] * bool(left)
    print(", ".join(words))
    return counts["survived"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("--number", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument(
        "--limit",
        type=float,
        default=60,
        help="Seconds for a mutant, beyond three times those that its tests take without one.",
    )
    parser.add_argument("--minutes", type=float, default=30, help="No mutant is begun later.")
    parser.add_argument("--record", type=Path, default=Path("mutants.jsonl"))
    given = parser.parse_args(arguments)
    return int(run(ROOT, **vars(given)) > 0)


if __name__ == "__main__":
    sys.exit(main())
