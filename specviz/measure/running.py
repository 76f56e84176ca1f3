"""`run`: decode a plan in this process or on an executor, or resume an earlier run of it.

Each finished row is saved at once. All contenders decode a prompt in direct succession, so other load on the
machine affects all alike.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import UTC, datetime
from multiprocessing import active_children, get_context
from pathlib import Path
from threading import current_thread, main_thread
from typing import Annotated, Any, NamedTuple

from specviz import methods
from specviz.arguments import Range, check_threads
from specviz.errors import ParameterError, SpecvizError
from specviz.files import checked, write_bytes
from specviz.measure import work
from specviz.measure.plan import Plan, plain
from specviz.measure.progress import bar
from specviz.measure.report import Row, Settings, Tick
from specviz.measure.rows import AGAIN, Results, begin, key_of, locked, write_json
from specviz.measure.schema import ResumedEnvironment
from specviz.measure.timing import settled
from specviz.models import ranks
from specviz.paths import expanded

AHEAD = 3  # jobs submitted per worker, so that none waits
LOOK = 5.0  # seconds between two checks whether workers are left
ALONE = 60.0  # seconds without any worker until the run is given up


def run(
    plan: Any = None,
    *,
    out: str | Path | None = None,
    executor: Executor | None = None,
    workers: Annotated[int, Range(1)] | None = None,
    retry: bool = False,
    tick: Tick | None = None,
    **keys: Any,
) -> Results:
    """Decode every prompt of a plan with every method and its reference, and save every row.

    Parameters
    ----------
    plan : path or dict, optional
        A TOML file, or its keys: see `specviz.measure.plan`.
    out : path, optional
        The folder; default ``specviz-runs/`` and a digest of the plan. A run of the same plan continues.
    executor : concurrent.futures.Executor, optional
        Runs the work: a process pool (context ``spawn``) or a Dask cluster's ``client.get_executor()``.
        Default: this process. Each worker loads a model once and decodes one text at a time.
    workers : int, optional
        Without an executor: the number of processes on this machine. With one: its number of workers, if it
        does not report it. Each process imports the script that calls this: a script must make the call under
        ``if __name__ == "__main__":``.
    retry : bool
        Decode failed rows again.
    tick : callable
        Called with (done, of, what); default: a progress bar with the time left; where none can be
        shown, a line a minute on standard error.
    **keys
        Keys of the plan; they override the file's.

    Returns
    -------
    Results
        After Ctrl-C or a crash, repeat the call to continue in the same folder.

    Notes
    -----
    A model too large for one GPU is spread by ``device_map`` in its entry of ``models``, or split over
    processes by ``tp_plan = "auto"`` there, every rank of torchrun making this call:
    ``torchrun --nproc-per-node 2 -m specviz bench run plan.toml``. All ranks decode each prompt together;
    only rank 0 writes the folder, calls `tick` and takes the times. This is tested with ranks on the CPU, and
    has never been run on several GPUs.

    Raises
    ------
    ParameterError, ModelError, PromptError, SpecvizError
        Before any work, with one line that says what to do; or when no worker is left.

    Examples
    --------
    >>> found = specviz.run(methods=["prompt_lookup"], number=3, out="RUN")  # doctest: +SKIP
    >>> found.table()[["method", "tau", "pooled_speedup", "paired_speedup"]]  # doctest: +SKIP
    """
    all_ranks = ranks.everyone()
    settled = all_ranks.tried(lambda: Plan.of(plan, **keys))
    elsewhere = executor is not None or workers is not None
    refuse_ranks(settled, elsewhere, all_ranks.size)
    if elsewhere and settled.objects:
        names = ", ".join(settled.objects)
        raise ParameterError(f"{names} is loaded in this process: give its name or folder to run elsewhere")
    own = {cell.method for cell in settled.cells if methods.of_session(cell.method)}
    if elsewhere and own:
        raise ParameterError(
            f"{', '.join(sorted(own))} is a class of this process: run it without workers, or declare it as "
            "an entry point (specviz.methods) of an installed package"
        )
    if executor is None:  # an executor's workers may be on other machines
        all_ranks.tried(lambda: check_threads(settled.threads))
    at_once = workers or 1
    if all_ranks.size > 1:  # the ranks on this machine
        at_once = int(os.environ.get("LOCAL_WORLD_SIZE", all_ranks.size))
    places = [(at_once, work.cores())] if executor is None else machines(executor, workers)
    refuse_sharing(settled, places)
    path = expanded(out, ParameterError) if out is not None else Path("specviz-runs") / settled.digest
    prompts = {name: list(map(plain, suite.entries)) for name, suite in settled.suites.items()}
    warm = {name: len(suite.warm) for name, suite in settled.suites.items()}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with ExitStack() as stack:
        all_ranks.from_leader(lambda: stack.enter_context(locked(path)))
        all_ranks.from_leader(lambda: bool(begin(path, settled.settled, prompts, now, warm)))
        results = all_ranks.tried(lambda: Results(path))
        keep = Keeper(results)
        lacking = {(c, n, p) for c, n, p in all_ranks.from_leader(lambda: lacking_rows(results, retry))}
        jobs = list(jobs_of(settled, lacking, layouts_of(results)))
        done, total = len(results.wanted) - sum(len(job.todo) for job in jobs), len(results.wanted)
        failed = 0
        try:
            shown = bar() if tick is None else nullcontext(tick)
            progress = stack.enter_context(shown if all_ranks.leads else nullcontext(lambda *_: None))
            progress(done, total, "loading and warming up")
            for row in decoded(jobs, settled, executor, workers):
                if all_ranks.leads:  # the other ranks have decoded the same
                    keep(row)
                done += 1
                failed += row["error"] is not None
                where = f"{row['suite']} by {Path(row['model']).name}"
                progress(done, total, f"{where}, {failed} failed" if failed else where)
        except KeyboardInterrupt:
            kept = f"{path} keeps {len(results.done)} of {total} rows; run the same command again to continue"
            raise KeyboardInterrupt(*[kept] * all_ranks.leads) from None
        except SpecvizError as error:
            kept = f" ({path} keeps {len(results.done)} of {total} rows)" if results.done else ""
            raise type(error)(f"{error}{kept}") from error.__cause__
        all_ranks.gather(None)  # so that on every rank the folder is complete
    return results


def lacking_rows(results: Results, retry: bool) -> list[tuple[int, int, int]]:
    """(cell, round, prompt) to decode: missing rows, and with `retry` failed ones.

    A speedup needs a row and its reference's row decoded in direct succession. So in a timed run, a failed
    row is decoded again along with all rows that have the same reference.
    """
    failed = [row for row in results.records() if row["error"] is not None] if retry else []
    against = {cell["cell"]: cell["against"] for cell in results.cells}
    timed = results.plan["timed"]
    again = {
        (cell, row["round"], row["prompt"])
        for row in failed
        for cell in against
        if cell == row["cell"] or (timed and against[cell] == against[row["cell"]])
    }
    return sorted({*results.missing, *again})


class Keeper:
    """Saves rows, and the environments in which they were decoded."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.environments = results.environments
        for digest, place in self.environments.items():
            file = results.path / "environments" / f"{digest}.json"
            checked(ResumedEnvironment, place, str(file), AGAIN)

    def __call__(self, row: Row) -> None:
        """Save a row with its trace, and its environment if that is new."""
        path = self.results.path
        place, digest = row["environment"], None
        if place is not None:
            self._same_weights(place)
            digest = hashlib.sha256(json.dumps(place, sort_keys=True).encode()).hexdigest()[:12]
            if digest not in self.environments:
                write_json(path / "environments" / f"{digest}.json", place)
                self.environments[digest] = place
        row["environment"] = digest
        key = key_of(row["cell"], row["round"], row["prompt"])
        trace = row.pop("trace", None)
        if trace is not None:
            write_bytes(path / "traces" / f"{key}.parquet", trace, force=True)
        write_json(path / "rows" / f"{key}.json", row)

    def _same_weights(self, place: Settings) -> None:
        """Refuse a model or drafter that differs from the one with which the run started.

        With another target, a drafter's layout may differ.
        """
        for other in self.environments.values():
            shared = other["drafts"].keys() & place["drafts"].keys()
            pairs = [(other["model"], place["model"])]
            pairs += [(other["drafts"][name], place["drafts"][name]) for name in shared]
            same_target = other["model"]["name"] == place["model"]["name"]
            for theirs, ours in pairs:
                if theirs["name"] != ours["name"] or other["dtype"] != place["dtype"]:
                    continue
                what = ""
                if theirs.get("chat") != ours.get("chat"):
                    what = "chat variables"
                elif {**theirs, "kernels": 0} != {**ours, "kernels": 0}:
                    what = "weights"
                elif same_target and theirs.get("kernels") != ours.get("kernels"):
                    what = "kernels"
                elif same_target and other.get("invariant", False) != place.get("invariant", False):
                    what = "invariance"
                if what:
                    raise SpecvizError(
                        f"{ours['name']} has different {what} than when {self.results.path} was started: "
                        f"choose another folder"
                    )


class Layouts(NamedTuple):
    """Layouts of matrices with which a model's first rows were decoded; empty without rows or layouts.

    A resumed run keeps them: another layout rounds differently, and a text may diverge from its reference.
    """

    model: dict[str, str]  # by the model's name in the plan
    drafters: dict[str, dict[str, str]]  # by the model's name, then by the drafter's


def layouts_of(results: Results) -> Layouts:
    """The layouts that the rows of a folder were decoded with."""
    layouts = Layouts({}, {})
    models = {cell["cell"]: cell["model"] for cell in results.cells}
    environments = results.environments  # each access reads their files
    for row in results.records():
        model = models[row["cell"]]
        place = environments.get(str(row.get("environment")), {})
        if (layout := place.get("kernels")) is not None:
            layouts.model.setdefault(model, layout)
        drafters = layouts.drafters.setdefault(model, {})
        for name, draft in (place.get("drafts") or {}).items():
            if (layout := draft.get("kernels")) is not None:  # llama.cpp has none
                drafters.setdefault(name, layout)
    return layouts


def jobs_of(plan: Plan, lacking: set[tuple[int, int, int]], layouts: Layouts) -> Iterator[work.Job]:
    """Yield a job for each model, suite, round and prompt that lacks a row, grouped by model."""
    for model in plan.models:
        target = model["model"]
        drafters = {k: v for k, v in layouts.drafters.get(target, {}).items() if k not in plan.objects}
        if target in layouts.model and target not in plan.objects:
            model = {"kernels": layouts.model[target]} | model
        for name, suite in plan.suites.items():
            cells = [c for c in plan.cells if c.model == target and c.suite == name]
            for number, seed in enumerate(plan.seeds):
                for prompt, entry in enumerate(suite.entries):
                    todo = [c.cell for c in cells if (c.cell, number, prompt) in lacking]
                    if todo:
                        yield work.Job(
                            plan.digest, model, name, suite.warm, cells, todo, prompt, number, seed, entry,
                            plan.options, plan.threads, plan.timed, plan.traces, drafters,
                        )  # fmt: skip


def decoded(
    jobs: list[work.Job], plan: Plan, executor: Executor | None, workers: int | None
) -> Iterator[Row]:
    """Yield the rows of all jobs: from an executor, from a new process pool, or decoded in this process."""
    if executor is not None:
        yield from spread_out(jobs, executor, plan, workers, ours=False)
        return
    if workers is not None:
        with processes(workers) as pool:
            yield from spread_out(jobs, pool, plan, workers, ours=True)
        return
    try:
        with settled():  # once; each job then collects only new objects
            for job in jobs:
                yield from work.rows(job, plan.objects)
    finally:
        work.forget()


def spread_out(
    jobs: list[work.Job], executor: Executor, plan: Plan, workers: int | None, ours: bool
) -> Iterator[Row]:
    """Yield the rows of all jobs as an executor finishes them; with `ours` it ends with the run.

    If a job's workers die repeatedly and the executor identifies the job, each of its cells gets a failed
    row. If the executor does not, or no worker is left, the run stops.
    """
    waiting, running = iter(jobs), dict[Future, work.Job]()
    since: float | None = None
    addresses = present(executor)
    count = sum(n for n, _ in machines(executor, workers)) if addresses is None else len(addresses)

    def more() -> None:
        while len(running) < AHEAD * max(1, count) and (job := next(waiting, None)) is not None:
            running[executor.submit(work.work, job)] = job

    try:
        more()
        while running:
            finished = wait(running, LOOK, FIRST_COMPLETED).done
            if addresses is not None and (now := present(executor)) != addresses:  # workers come and go
                addresses, count = now, len(now)  # type: ignore[arg-type]
                if addresses:
                    refuse_sharing(plan, machines(executor, workers))
            since = (since or time.monotonic()) if addresses == frozenset() and not finished else None
            if since is not None and time.monotonic() - since > ALONE:
                raise SpecvizError("no worker is left: start workers, then run the same command again")
            for future in finished:
                job = running.pop(future)
                try:
                    yield from future.result()
                except Exception as error:
                    if type(error).__name__ != "KilledWorker":  # Dask's error; Dask need not be installed
                        raise
                    yield from lost(job, error)
            more()
    except (BrokenExecutor, CancelledError) as error:
        for future in wait(running, LOOK).done:
            if not future.cancelled() and future.exception() is None:
                yield from future.result()
        again = "give the same command again"
        what = f"the executor stopped working (has its scheduler ended?): start it, then {again}"
        if isinstance(error, BrokenExecutor):
            what = (
                f"a worker died (killed, or out of memory): {again}, with fewer workers if memory ran out; "
                'in a script, call run() under if __name__ == "__main__"'
            )
        raise SpecvizError(what) from error
    finally:
        for future in () if ours else running:
            future.cancel()


def lost(job: work.Job, error: Exception) -> Iterator[Row]:
    """Yield failed rows for a job that kills its workers."""
    for place, cell in enumerate(job.cells):
        if cell.cell in job.todo:
            why = {"timed": job.timed, "clock": None, "environment": None, "error": work.named_error(error)}
            yield work.about(job, cell, place) | why


# ---------------------------------------------------------------- workers


@contextmanager
def processes(
    count: int, begin: Callable[..., None] = work.attend, given: tuple[Any, ...] = ()
) -> Iterator[Executor]:
    """A pool of `count` processes on this machine.

    They ignore Ctrl-C, which is for this process, and end when this process ends for any reason.

    Parameters
    ----------
    count : int
    begin : callable
        Called first in each process, with `given`; it must call `work.attend`.
    """
    before, listening = set(active_children()), current_thread() is main_thread()
    with ProcessPoolExecutor(count, get_context("spawn"), begin, given) as pool:
        # A new process inherits the handler.
        heard = signal.signal(signal.SIGINT, signal.SIG_IGN) if listening else None
        try:
            for _ in range(count):
                pool.submit(work.cores)
        finally:
            if listening:
                signal.signal(signal.SIGINT, heard)
        ours = set(active_children()) - before
        try:
            yield pool
        except BaseException:
            for process in ours:  # what they decode would be lost anyway
                process.kill()
            raise


def present(executor: Executor) -> frozenset[str] | None:
    """Addresses of a Dask cluster's current workers; None for another executor."""
    client = getattr(executor, "_client", None)
    return None if client is None else frozenset(client.scheduler_info(n_workers=-1)["workers"])


def machines(executor: Executor, workers: int | None) -> list[tuple[int, int]]:
    """For each machine, how many of an executor's processes work there at once, and how many cores they have.

    Threads of one process count once: they decode one text at a time.

    Raises
    ------
    ParameterError, SpecvizError
        If an executor does not report its workers, or a cluster's worker cannot run this package.
    """
    client = getattr(executor, "_client", None)
    if client is None:
        count = 1 if hasattr(executor, "_threads") else workers or getattr(executor, "_max_workers", None)
        if count is None:
            raise ParameterError("the number of this executor's workers is unknown: pass workers=")
        return [(int(count), work.cores())]
    hosts: Counter[str] = Counter()
    least: dict[str, int] = {}
    places = client.scheduler_info(n_workers=-1)["workers"]
    for address, cores in client.run(work.cores, on_error="return").items():
        if isinstance(cores, OSError):  # the worker has just left
            continue
        if not isinstance(cores, int):
            raise SpecvizError(
                f"the worker {address} cannot run specviz ({work.named_error(cores)}): install it there"
            )
        if address in places:
            host = places[address]["host"]
            hosts[host] += 1
            least[host] = min(cores, least.get(host, cores))
    return [(hosts[host], least[host]) for host in hosts]


def refuse_ranks(plan: Plan, elsewhere: bool, size: int) -> None:
    """Refuse a plan that does not split each model over the ranks of torchrun, or splits one without ranks.

    Raises
    ------
    ParameterError, ModelError
    """
    loaded = {name for name, model in plan.objects.items() if ranks.holding(model).size > 1}
    names = {model["model"] for model in plan.models}
    split = loaded & names | {model["model"] for model in plan.models if model.get("tp_plan")}
    whole = sorted(names - split)
    if elsewhere and (split or size > 1):
        raise ParameterError(
            "torchrun's ranks decode one text together and workers decode one each: drop --workers or --dask "
            "(executor=), or tp_plan and torchrun"
        )
    if split and size == 1:
        ranks.join()  # raises, and says how to start ranks
    if whole and size > 1:
        raise ParameterError(
            f"{size} ranks would all decode {whole[0]} whole: split it with tp_plan = 'auto' in the plan, or "
            "run without torchrun"
        )


def refuse_sharing(plan: Plan, places: list[tuple[int, int]]) -> None:
    """Refuse to time workers that would share cores or a GPU.

    Parameters
    ----------
    places : list of (int, int)
        Workers and cores of each machine.

    Raises
    ------
    ParameterError
    """
    if not plan.timed:
        return
    if not places:
        raise ParameterError("the cluster has no workers: start some first")
    threads = max(plan.threads, *(getattr(model, "threads", 1) for model in plan.objects.values()), 1)
    instead = "or do without times: timed = false (--untimed); the rows then say so"
    for workers, cores in places:
        if workers * threads > cores:
            raise ParameterError(
                f"{workers} worker(s) of {threads} thread(s) on {cores} core(s) would not be timed "
                f"correctly: use fewer, {instead}"
            )
    named = (
        model.get("device") or ("device_map" if model.get("device_map") else "cpu") for model in plan.models
    )
    devices = {str(name).partition(":")[0] for name in named} - {"cpu"}
    most = max(workers for workers, _ in places)
    if most > 1 and devices:
        raise ParameterError(
            f"{most} workers on one {devices.pop()} device would not be timed correctly: use one, {instead}"
        )
