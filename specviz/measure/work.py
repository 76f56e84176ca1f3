"""Work of a worker: decode one prompt with every contender in turn, timed, each with a copy of its memory.

A worker is this process, a process of a pool, or one of a Dask cluster. It keeps the model and the warmed-up
methods of the last suite, so that a model is loaded once. A `Job` and its rows are plain data.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch

from specviz import methods
from specviz.errors import ModelError, ParameterError, PromptError
from specviz.loop import Run
from specviz.loop.drafters import load_drafter
from specviz.loop.machine import computed_by, identity, machine_of, peak_memory, thread_count, versions
from specviz.measure.phases import phases_of
from specviz.measure.plan import Cell
from specviz.measure.report import Entry, Row, Settings
from specviz.measure.timing import clock_of, finish, settled, synchroniser, threads
from specviz.methods import Method
from specviz.models.protocols import Model
from specviz.models.ranks import holding
from specviz.trace import Trace

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_ALONE = threading.Lock()  # a process decodes one text at a time, even with several threads


@dataclass
class Job:
    """One prompt of one round, for the cells that still lack it."""

    plan: str  # its digest
    model: Settings  # an entry of `Plan.models`
    suite: str
    warm: list[Entry]  # prompts that fill the methods' memories
    cells: list[Cell]  # all of this model and suite
    todo: list[int]  # numbers of those to decode
    number: int  # the prompt's place in its suite
    round: int
    seed: int  # of the round
    entry: Entry  # the prompt
    options: Settings  # as `Plan.options`
    threads: int
    timed: bool
    traces: bool
    layouts: Settings = field(default_factory=dict)  # drafters' layouts in the saved rows, if any
    # Makes every job unique: a cluster may answer an identical job from its cache.
    ticket: str = field(default_factory=lambda: uuid4().hex[:12])


def work(job: Job) -> list[Row]:
    """All rows of a job, for an executor."""
    return list(rows(job))


def rows(job: Job, objects: dict[str, Model] | None = None) -> Iterator[Row]:
    """Yield the rows of a job as they finish; the order rotates with the prompt and the round.

    Raises
    ------
    ModelError, ParameterError
        If a cell cannot run at all. An error in one prompt is part of its row.
    """
    with _ALONE, threads(job.threads):
        bench = bench_for(job, objects or {})
        first = (job.number + job.round) % len(job.cells)
        turns = job.cells[first:] + job.cells[:first]
        with settled():
            for place, cell in enumerate(turns):
                if cell.cell in job.todo:
                    yield about(job, cell, place) | bench.row(job, cell)


def about(job: Job, cell: Cell, place: int) -> Settings:
    """The fields of a row that describe its prompt and its cell."""
    labels = {key: job.entry.get(key) for key in ("id", "kind", "language")}
    return {
        "cell": cell.cell, "round": job.round, "seed": job.seed, "prompt": job.number, **labels,
        "model": cell.model, "method": cell.method, "draft": cell.draft, "parameters": cell.parameters,
        "suite": cell.suite, "temperature": cell.temperature, "place": place, "sitting": job.ticket,
        "started": datetime.now(UTC).isoformat(timespec="milliseconds"),
    }  # fmt: skip


# ---------------------------------------------------------------- models and methods


class Bench:
    """A model, its draft models and its warmed-up methods for one suite."""

    def __init__(self, job: Job, models: dict[str, Model]) -> None:
        self.models = models
        spec = job.model
        self.model = self._loaded(**spec)
        self.ranks = holding(self.model)
        self.clock, self.clock_name = clock_of(self.model)
        self.wait = synchroniser(self.model.device)
        self.drafts = {cell.draft: self._draft(cell.draft, job.layouts) for cell in job.cells if cell.draft}
        self.methods: dict[int, Method] = {}
        self.broken: dict[int, str] = {}  # why a cell cannot decode
        self.environment = self._environment()
        for cell in sorted(job.cells, key=lambda cell: cell.cell == cell.against):  # references last
            self._warm_up(job, cell)

    def _loaded(self, model: str, **how: Any) -> Any:
        if model not in self.models:
            from specviz.models import load

            self.models[model] = load(model, **how)
        return self.models[model]

    def _draft(self, name: str, layouts: Settings) -> Any:
        if name not in self.models:
            self.models[name] = load_drafter(self.model, name, None, None, layouts.get(name))
        return self.models[name]

    def _environment(self) -> Settings:
        """The circumstances that a reader needs to judge a measurement; no name of a machine or a person."""
        model = self.model
        return {
            **machine_of(model), "cores": cores(), "threads": thread_count(model),
            "dtype": str(model.dtype).removeprefix("torch."), "clock": self.clock_name,
            **computed_by(model), "model": identity(model),
            "places": [[str(device), layers] for device, layers in getattr(model, "places", None) or ()],
            "drafts": {name: self._identity(draft) for name, draft in self.drafts.items()},
            "versions": versions() | getattr(model, "versions", {}),
        }  # fmt: skip

    @staticmethod
    def _identity(draft: Model) -> Settings:
        layout = getattr(draft, "kernels", None)
        return identity(draft) | ({} if layout is None else {"kernels": layout})

    def _run(self, job: Job, cell: Cell, method: Method, entry: Entry, number: int, record: Any) -> Run:
        """A run of one prompt. Each prompt of a round has its own random numbers."""
        draws = int(np.random.SeedSequence([job.seed, number]).generate_state(1)[0])
        draft = self.drafts[cell.draft] if cell.draft else None
        options = job.options
        if not cell.temperature:  # these are for the plan's other temperatures
            options = {name: value for name, value in options.items() if name not in ("top_k", "top_p")}
        return Run(
            self.model, [entry.get("stream", entry)], method, draft=draft, record=record, seed=draws,
            temperature=cell.temperature, **options,
        )  # fmt: skip

    def _warm_up(self, job: Job, cell: Cell) -> None:
        """Decode the warm-up prompts, to warm up the machine and to fill memories.

        Without any, the first measured prompt warms up the machine, and memories stay empty.
        """
        method = fresh(cell)
        job = replace(job, seed=0)  # memories must not depend on the round that comes first
        try:
            for number, entry in enumerate(job.warm or [job.entry]):
                with contextlib.suppress(PromptError):  # a prompt that is too long is skipped
                    finish(self._run(job, cell, method, entry, number, None))
        except (ModelError, ParameterError) as error:
            self.ranks.stop(error)
            raise type(error)(f"{cell.label} on {cell.model}: {error}") from None
        except Exception as error:
            self.ranks.stop(error)
            self.broken[cell.cell] = f"while warming up: {named_error(error)}"
        self.methods[cell.cell] = method if job.warm else fresh(cell)

    def row(self, job: Job, cell: Cell) -> Row:
        """Decode the job's prompt; return its output and its costs. An error is part of the row."""
        row: Row = {"timed": job.timed, "clock": self.clock_name if job.timed else None}
        row |= {"environment": self.environment, "error": self.broken.get(cell.cell)}
        if row["error"]:
            return row
        try:
            method = fresh(cell)
            method.like(self.methods[cell.cell])
            state = (method.memory or {}).get("state")
            run = self._run(job, cell, method, job.entry, job.number, "judged" if job.traces else None)
            decoded = self._decode(run, job.timed)
        except Exception as error:
            self.ranks.stop(error)
            return row | {"error": named_error(error)}
        eos = self.model.eos
        texts = [self.model.decode([t for t in text_of(ids, eos) if t not in eos]) for ids in decoded["ids"]]
        more = {"text": texts, "memory": state, "exactness": run.recorder.run["exactness"]}
        if job.traces:
            more["trace"] = parquet(finish(run))
        return row | decoded | more

    def _decode(self, run: Run, timed: bool) -> Settings:
        """Decode a run to its end. Tokens are counted from their ids, including the end token."""
        ids: list[list[int]] = []
        current: list[int] = []
        cells: list[int] = []
        steps = sent = accepted = 0
        prefill = decode = 0.0  # seconds
        phases = phases_of(run)
        reset_peak(self.model.device)
        self.wait()
        start = time.perf_counter()
        mark = self.clock()
        for cycle in run:
            phases.take(cycle)
            if cycle.number == 0:
                self.wait()
                prefill += (now := self.clock()) - mark
                mark = now
            else:
                steps += 1
                sent += len(cycle.draft) if cycle.draft is not None and cycle.draft.read else 0
                accepted += cycle.origins.count("draft")
            del current[cycle.keep :], cells[cycle.keep :]
            current += cycle.tokens
            cells += cycle.cells
            if cycle.end is not None:
                self.wait()
                decode += (now := self.clock()) - mark
                mark, end = now, cycle.end
                ids.append([current[i] for i in np.argsort(cells)] if cells else list(current))
        wall = time.perf_counter() - start
        finish(run)
        seconds = {"prefill_seconds": prefill, "decode_seconds": decode, "wall_seconds": wall}
        return {
            "ids": ids, "tokens": sum(map(len, ids)),
            "written": sum(len(text_of(each, self.model.eos)) for each in ids),
            "prompt_tokens": sum(len(prompt["tokens"]) for prompt in run.recorder.run["prompts"]),
            "steps": steps, "sent": sent, "accepted": accepted, "end": end,
            "phases": phases.sums() or None if timed else None,
            **(seconds if timed else dict.fromkeys(seconds)), **peak(self.model.device),
        }  # fmt: skip


_benches: dict[tuple[str, ...], Bench] = {}
_models: dict[str, Model] = {}
_held: list[str] = []  # the model that `_models` holds, with its drafts


def bench_for(job: Job, objects: dict[str, Model]) -> Bench:
    """The bench of a job: the last one if plan, model and suite are the same, otherwise a new one."""
    key = (job.plan, json.dumps(job.model), job.suite)
    if key in _benches:
        return _benches[key]
    _benches.clear()  # first free the memories of the last suite's methods
    held = json.dumps([job.plan, job.model])
    if _held != [held]:
        _models.clear()
        _held[:] = [held]
    _models.update(objects)
    _benches[key] = made = Bench(job, _models)
    return made


def forget() -> None:
    """Release models and methods."""
    _benches.clear()
    _models.clear()
    _held.clear()


def fresh(cell: Cell) -> Method:
    """A cell's method with an empty memory."""
    return methods.find(cell.method)(**cell.parameters)


def text_of(ids: list[int], eos: Iterable[int]) -> list[int]:
    """Tokens up to and including the first end token; anything after it on a canvas is padding."""
    ends = frozenset(eos)
    return ids[: next((i + 1 for i, token in enumerate(ids) if token in ends), len(ids))]


def named_error(error: Exception) -> str:
    """An error in one line, with its type."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


def parquet(trace: Trace) -> bytes:
    """A trace as the bytes of a Parquet file."""
    with tempfile.TemporaryDirectory() as folder:
        return trace.save(Path(folder) / "trace.parquet").read_bytes()


# ---------------------------------------------------------------- the machine


def attend() -> None:
    """Set up a pool's process: ignore Ctrl-C, which is for its parent, and exit when its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def follow() -> None:
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def reset_peak(device: torch.device) -> None:
    """Reset the peaks of memory, if the system can."""
    with contextlib.suppress(OSError):
        if CLEAR.exists():
            CLEAR.write_text("5")
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak(device: torch.device) -> dict[str, int | None]:
    """Peak bytes since `reset_peak`: of the process, including all loaded models, and of the device.

    If the system cannot reset a peak (it is not Linux), the process's peak is that of its lifetime.
    """
    memory = peak_memory(device)
    process = memory["process"]
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = STATUS.read_text().splitlines()
        process = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return {"peak_memory": process, "device_memory": memory["device"]}
