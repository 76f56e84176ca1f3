"""The recorded traces that come with the package: ``python -m tests.benchmarks.examples [FOLDER]``.

SmolLM2 decodes four prompts with each method on one thread, so that the walkthroughs can read the traces and
run what-ifs on them without a model. `data/traces/README.md` describes each trace.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from specviz.loop import generate
from specviz.measure.timing import threads
from specviz.models import load
from specviz.paths import folder

REPORT = (
    "The town library of Lenfield reopened on Monday after nine weeks. Workers replaced the roof, which "
    "had leaked for more than ten years. The library now has a reading room for children on the ground "
    "floor and a quiet room for students on the first floor. The work cost 240,000 pounds. The town "
    "council paid for half of it, and the other half came from donations. More than six hundred people "
    "visited the library on the first day. The head librarian, Ruth Baker, said that she had not expected "
    "so many visitors."
)
# One worked example, without which a model of this size does not solve the next problem.
SOLVED = (
    "Ben has 3 boxes with 5 pens in each box. He finds 2 more pens. How many pens does he have?",
    "Step 1: Ben has 3 boxes with 5 pens in each box. 3 * 5 = 15. The boxes hold 15 pens.\n"
    "Step 2: Ben finds 2 more pens. 15 + 2 = 17. Ben has 17 pens.\nThe answer is 17 pens.",
)
PROBLEM = "Mia has 5 bags with 10 shells in each bag. She finds 4 more shells. How many shells does she have?"
PROMPTS: tuple[tuple[str, str | list[dict[str, str]]], ...] = (
    ("summary", f"Summarize this report in two sentences:\n\n{REPORT}"),
    ("code", "Write four Python functions: add, subtract, multiply and divide. Give me the code only."),
    (
        "arithmetic",
        [
            {"role": "user", "content": SOLVED[0]},
            {"role": "assistant", "content": SOLVED[1]},
            {"role": "user", "content": PROBLEM},
        ],
    ),
    ("conversation", "What is a good way to learn a new language? Answer in three sentences."),
)
# UniSpec records every row of its passes: a what-if needs all that its store learns from.
METHODS: dict[str, dict[str, Any]] = {
    "autoregressive": {},
    "prompt_lookup": {},
    "unispec": {"draft_size": 5, "record": "all"},
}
LENGTH = 112


def record(into: Path) -> list[Path]:
    """Write one trace per method, replacing existing files.

    Returns
    -------
    list of Path

    Raises
    ------
    ModelError
        If SmolLM2 is not downloaded.
    """
    target = load("smollm2", dtype="float32")  # the format that every machine has
    prompts = [{"id": kind, "kind": kind, "prompt": prompt} for kind, prompt in PROMPTS]
    paths = []
    with threads(1):
        for method, options in METHODS.items():
            generate(target, prompts[-1:], method, max_new_tokens=16, **options)  # the first run warms up
            trace = generate(target, prompts, method, max_new_tokens=LENGTH, **options)
            paths.append(trace.save(into / f"{method}.parquet", force=True))
    return paths


if __name__ == "__main__":
    for path in record(Path(sys.argv[1]) if sys.argv[1:] else folder("traces")):
        print(path)
