"""``python -m tests.fuzz FORMAT --inputs 5000``."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]  # the tests' own helpers

from .formats import FORMATS  # noqa: E402
from .harness import Report, fuzz  # noqa: E402

STEP = 500  # inputs between two lines of progress

parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
parser.add_argument("format", choices=[*FORMATS, "all"])
parser.add_argument("--inputs", type=int, default=5000)
parser.add_argument("--first", type=int, default=0, help="number of the first input")
parser.add_argument("--seed", type=int, default=0)
given = parser.parse_args()
failed = False
for name in FORMATS if given.format == "all" else [given.format]:
    report, begin, end = Report(), time.monotonic(), given.first + given.inputs
    for first in range(given.first, end, STEP):
        report += fuzz(name, min(STEP, end - first), given.seed, first)
        done = min(first + STEP, end)
        rate = (done - given.first) / (time.monotonic() - begin)
        print(f"{name} {given.first} to {done - 1}, {rate:.0f} a second: {report}", flush=True)
    failed |= bool(report.crashes)
sys.exit(failed)
