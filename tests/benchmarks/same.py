"""Check whether two versions of this package write the same texts, counts and untimed verdicts.

``python -m tests.benchmarks same --out FILE`` writes them to a file, ``--compare A B`` prints the differences
between two files. ``--parts``, ``--tables`` and ``--models`` select a piece that finishes within minutes.

Kernels and seeds are fixed, and `DRAFT_SIZE` replaces calibrated draft sizes. While a table is replayed, the
clock counts its calls, so that choices by speed ("the fastest setting") repeat. With ``--timed``, timed cells
are compared, too; this is valid only if both versions call the clock equally often.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

PARTS = ("generate", "audit", "replay")
MODELS = ("town", "town-diffusion", "town-t5", "town-translator")
DRAFTERS = {"town": ("town-draft",), "town-t5": ("town-t5-small", "town-t5-heads")}
DRAFT_SIZE = 16
PROMPTS, NEW_TOKENS = 3, 32
TIMED = ("speedup", "throughput", "latency", "forward_time", "expected_throughput", "draft_latency")


def generated(model: str) -> dict[str, Any]:
    """Texts, τ and counts of every method on a model, greedy and sampled, or the error that refuses it."""
    import specviz as sv
    from specviz import methods

    target = sv.load(model)
    writes = {"diffusion": "canvas"}.get(target.kind, "prompt")
    drafters = [sv.load(name) for name in DRAFTERS.get(model, ())]
    entries = list(sv.suite("town"))[:PROMPTS]
    out: dict[str, Any] = {}
    for name in methods.names(writes):
        for draft in methods.find(name).suited(drafters) or [None]:
            for temperature in (0.0, 0.8):
                key = f"{model}, {name}, {draft.name if draft else '-'}, {temperature:g}"
                options = {"max_new_tokens": NEW_TOKENS, "seed": 0, "temperature": temperature}
                try:
                    trace = sv.generate(target, entries, name, draft=draft, **options)
                except sv.errors.SpecvizError as error:
                    out[key] = str(error)
                    continue
                steps = trace.cycles[trace.cycles["cycle"] > 0]
                counts = {name: int(steps[name].sum()) for name in ("sent", "accepted") if name in steps}
                out[key] = {"texts": list(trace.texts), "cycles": len(steps), **counts}
                with contextlib.suppress(sv.errors.SpecvizError):  # canvases have no τ
                    out[key]["tau"] = sv.metrics.tau(trace)
    return out


def audited(model: str) -> dict[str, Any]:
    """Run the audit and return its JSON result."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "audit.json"
        number = ["--prompts", "6", "--sampled", "2", "--streams", "2", "-n", "24"]
        status = command("audit", "-m", model, *number, "--json", str(file))
        return {f"audit, {model}": {"status": status, "result": json.loads(file.read_text("utf8"))}}


def replayed(table: str, number: int | None) -> dict[str, Any]:
    """Replay a table and return its cells and comparisons, as in ``replay.json``."""
    from specviz.replays import replays

    def draft_size(*_: Any) -> int:
        return DRAFT_SIZE

    count = itertools.count()

    def clock() -> float:
        return next(count) * 2.0**-10  # a power of two, so differences are exact

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        for name in ("perf_counter", "process_time"):
            stack.enter_context(mock.patch(f"time.{name}", clock))
        stack.enter_context(mock.patch("specviz.replays.sources.shared.calibrated", draft_size))
        many = ["--number", str(number)] if number else []
        status = command("replay", table, "--quick", *many, "--out", folder)
        if status:
            return {f"replay, {table}": {"status": status}}
        made = json.loads((Path(folder) / "replay.json").read_text("utf8"))
        setup = replays.opened(folder).setup
    names = ("caption", "place", "compare", "notes", "cells", "comparisons", "verdicts", "checks")
    return {f"replay, {table}": {name: made[name] for name in names} | {"setup": setup}}  # fmt: skip


def command(*arguments: str) -> int:
    """Run a specviz command silently and return its exit status."""
    from specviz.cli import run

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        try:
            status = run(list(arguments))
        except SystemExit as end:
            status = end.code
    if status:
        print(said.getvalue().strip()[-300:], file=sys.stderr)
    return int(status or 0)


def collect(parts: Sequence[str], models: Sequence[str], tables: Sequence[str], number: int | None) -> Any:
    """Collect the selected results, by name."""
    if "replay" in parts and not tables:
        from specviz.replays.recipes import CURVES, RECIPES

        tables = [*RECIPES, *CURVES]
    jobs: list[tuple[str, Any]] = []
    jobs += [
        (f"generate {each}", lambda each=each: generated(each)) for each in models if "generate" in parts
    ]
    jobs += [(f"audit {each}", lambda each=each: audited(each)) for each in models if "audit" in parts]
    jobs += [
        (f"replay {each}", lambda each=each: replayed(each, number)) for each in tables if "replay" in parts
    ]
    out: dict[str, Any] = {}
    for name, job in jobs:
        begin = time.monotonic()
        try:
            out |= job()
        except Exception as error:  # an error is a result to compare, too
            out[name] = f"{type(error).__name__}: {error}"
        print(f"{name}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    return out


def differences(one: Any, other: Any, timed: bool, place: str = "") -> Iterator[str]:
    """Yield one line per difference; timed values count only if `timed`."""
    if isinstance(one, dict) and isinstance(other, dict):
        if not timed and (one.get("metric") in TIMED or place.endswith((".seconds", ".environment"))):
            return
        for key in {**one, **other}:
            if timed or key not in ("clear", "setup", "notes"):
                yield from differences(one.get(key), other.get(key), timed, f"{place}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (a, b) in enumerate(zip(one, other)):
            yield from differences(a, b, timed, f"{place}[{i}]")
    elif one != other and not (one != one and other != other):
        yield f"{place[1:]}: {one!r:.120} / {other!r:.120}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write results or compare two files; return 1 if something differs."""
    parser = argparse.ArgumentParser("python -m tests.benchmarks same", description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"))
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--tables", nargs="*", default=())
    parser.add_argument("--number", type=int, help="prompts of a replay; default: those of --quick")
    parser.add_argument("--timed", action="store_true", help="compare timed values, notes and setup, too")
    given = parser.parse_args(arguments)
    if given.compare:
        one, other = (json.loads(file.read_text("utf8")) for file in given.compare)
        lines = list(differences(one, other, given.timed))
        print(*lines[:200], f"{len(lines)} differences in {len({**one, **other})} entries", sep="\n")
        return int(bool(lines))
    if given.out is None:
        parser.error("say --out FILE, or --compare A B")
    os.environ["SPECVIZ_KERNELS"] = "plain"
    made = collect(given.parts, given.models, given.tables, given.number)
    given.out.write_text(json.dumps(made, ensure_ascii=False, indent=1, sort_keys=True) + "\n", "utf8")
    return 0
