"""The recorded traces that come with the package: ``python -m specviz.bench.examples [FOLDER]``.

A few prompts of the bundled suite, decoded by the bundled pair with each method and recorded densely, so that
the walkthroughs read them, and ask what-ifs of them, without a model.
"""

from __future__ import annotations

import sys
from pathlib import Path

from specviz.bench.timing import threads
from specviz.loop import densify, generate
from specviz.loop.dense import TAIL
from specviz.models import load
from specviz.paths import folder
from specviz.suites import suite

# One of each kind of work, in four languages.
IDS = (
    "translation-00", "conversation-01", "summarization-00", "qa-05", "arithmetic-02", "rag-00", "code-00",
)  # fmt: skip
METHODS = ("autoregressive", "speculative", "bild")
TAILS = {"autoregressive": 3}  # shorter than others, so that a walkthrough has something bounded to show
LENGTH = 96


def record(into: Path) -> list[Path]:
    """Write one trace a method; existing files are replaced.

    Returns
    -------
    list of Path
    """
    entries = {entry["id"]: entry for entry in suite("town")}
    target, drafter = load("town"), load("town-draft")
    paths = []
    with threads(1):
        for method in METHODS:
            generate(target, [1, 2], method, draft=drafter, max_new_tokens=8)  # the first run warms up
            trace = generate(
                target, [entries[name] for name in IDS], method, draft=drafter, max_new_tokens=LENGTH
            )
            trace = densify(trace, target, drafter, TAILS.get(method, TAIL))
            paths.append(trace.save(into / f"{method}.parquet", force=True))
    return paths


if __name__ == "__main__":
    for path in record(Path(sys.argv[1]) if sys.argv[1:] else folder("traces")):
        print(path)
