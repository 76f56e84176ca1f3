"""Resume a run that was cut off: load what its file holds, and check that it is the same run."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from .. import schema
from ..errors import ParameterError
from ..models.ranks import DIVERGED
from ..trace import Trace
from ..trace.files import Record, arrow_schema, dump, partial_of
from ..trace.recorder import begun, lock, unlock
from .machine import load_options

if TYPE_CHECKING:
    import pyarrow as pa

Arrival: TypeAlias = tuple[str, float | None]  # an update's text, and when it came
SAME = ("method", "parameters", "sampling", "record", "exactness", "canvas", "dtype")  # equal in both runs
WEIGHTS = ("name", "parameters", "content")
PARTS = {  # fields of which these keys are equal in both runs
    "backend": ("kernels", "invariant"), "model": WEIGHTS, "draft": WEIGHTS, "memory": ("state", "known"),
}  # fmt: skip


@dataclass
class SavedRun:
    """Saved part of a run that was cut off or had fewer prompts; empty if there is no file.

    Attributes
    ----------
    run : dict
        Its metadata.
    table : pyarrow table or None
        Its cycles; after `check`, only those of finished texts.
    finished : list of int
        After `check`: numbers of the texts that need not be decoded again.
    prompts : list of dict
        After `check`: the recorded prompts, up to the last finished one.
    """

    path: Path | None = None
    run: Record = field(default_factory=dict)
    table: pa.Table | None = None
    finished: list[int] = field(default_factory=list)
    prompts: list[Record] = field(default_factory=list)

    def check(
        self, metadata: Record, records: list[list[Record]], sources: list[list[Arrival] | None]
    ) -> None:
        """Find the finished texts, and refuse the file of a different run.

        Parameters
        ----------
        metadata : dict
            Metadata of the run that is about to continue.
        records : list of lists of dict
            For each prompt, the records of its texts; the first includes its tokens.
        sources : list of lists of (str, float or None)
            For each stream, its updates' texts and times; None for prompts and for live streams.

        Raises
        ------
        ParameterError
            The message names the difference.
        """
        if self.table is None:
            return
        if DIVERGED in (self.run["stopped"] or ""):
            raise ParameterError(f"{self.path} holds texts on which {DIVERGED}: choose another path")
        self._check_same(metadata)
        saved, number, ended = self.run["prompts"] or [], 0, self.ended()
        for i, texts in enumerate(records):
            there = saved[number : number + len(texts)]
            for old, new in zip(there, json.loads(dump(texts))):
                if "tokens" not in new:  # a later turn, whose prompt includes the earlier answers
                    new["tokens"] = old.get("tokens")
                if old != new:
                    raise ParameterError(f"prompt {i + 1} is not the one that {self.path} holds{_OTHERWISE}")
            numbers = range(number, number + len(texts))
            listed, whole = sources[i], True
            if listed is not None:
                arrived = self._sources(number)
                if arrived != listed[: len(arrived)]:
                    raise ParameterError(f"stream {i + 1} is not the one that {self.path} holds{_OTHERWISE}")
                whole = len(arrived) == len(listed)  # otherwise it has grown: decode it anew
            if whole and ended.issuperset(numbers):
                self.finished += numbers
            number = numbers.stop
        if number < len(saved):
            raise ParameterError(
                f"{self.path} holds {len(saved)} texts, more than these prompts need ({number}){_OTHERWISE}"
            )
        memory = (metadata["memory"] or {}).get("start", {})
        if memory.get("keep") == "run" and 0 < len(self.finished) < number:
            raise ParameterError(
                f"{self.run['method']} learns from prompt to prompt (keep='run'), and its memory is not in "
                f"the file: decode again with --force (force=True), or choose another path; a run with "
                "keep='prompt' can be resumed"
            )
        self.prompts = saved[: max(self.finished, default=-1) + 1]
        self._keep_finished()
        there, now = _different("", *(_conditions(run) for run in (self.run, json.loads(dump(metadata)))))
        if there and 0 < len(self.finished) < number:
            print(
                f"specviz: {self.path} was timed with {there}, and this run is with {now}: its trace will "
                "hold times of both",
                file=sys.stderr,
            )

    def _check_same(self, metadata: Record) -> None:
        new = json.loads(dump(metadata))
        for name in (*SAME, *PARTS):
            old, here = self.run[name], new[name]
            if name == "memory":  # with keep="run", a run with finished texts is refused anyway
                old, here = ((each or {}).get("start") for each in (old, here))
                if (here or {}).get("keep") == "run":
                    continue
            if keys := PARTS.get(name):
                old, here = ({key: (each or {}).get(key, False) for key in keys} for each in (old, here))
            elif name == "record" and (old, here) == ("judged", "dense"):
                continue  # the dense record is added once all texts are decoded
            there, now = _different(name, old, here)
            if there:
                raise ParameterError(f"{self.path} was decoded with {there}, this run has {now}{_OTHERWISE}")

    def ended(self) -> set[int]:
        """Texts that need not be decoded again: they ended, or their conversation had filled the context.

        A cut-off run's last stream has not ended, since every update of it ends.
        """
        assert self.table is not None
        cycles = self.table.select(["prompt", "update", "cycle", "end", "source"]).to_pandas()
        last = cycles.sort_values(["update", "cycle"]).groupby("prompt").tail(1)
        ended = set(last.loc[last["end"].notna() & (last["end"] != "interrupted"), "prompt"].tolist())
        if cycles["source"].notna().any() and not self.run["complete"]:
            ended.discard(int(cycles["prompt"].max()))
        saved = enumerate(self.run["prompts"] or [])
        return ended | {i for i, each in saved if each.get("turn") and each.get("tokens") == []}

    def has_prompt(self, texts: Sequence[int]) -> bool:
        """Whether all texts of some prompt have ended, if prompt i consists of ``texts[i]`` turns."""
        ended = self.ended()
        ends = np.cumsum(texts, dtype=int)
        return any(ended.issuperset(range(end - n, end)) for n, end in zip(texts, ends.tolist()))

    def _sources(self, prompt: int) -> list[Arrival]:
        """Source after each update of a stream, and when it came, as far as it was decoded."""
        assert self.table is not None
        cycles = self.table.select(["prompt", "update", "source", "arrival"]).to_pandas()
        heads = cycles.query("prompt == @prompt").dropna(subset="source").sort_values("update")
        times = [None if time != time else time for time in heads["arrival"].astype(float)]
        return list(zip(heads["source"], times))

    def _keep_finished(self) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        assert self.table is not None
        finished = pa.array(self.finished, self.table.schema.field("prompt").type)
        self.table = self.table.filter(pc.is_in(self.table.column("prompt"), value_set=finished))

    @property
    def identity(self) -> Record:
        """Metadata that the run keeps when it is resumed: its name and when it was created."""
        return {} if self.table is None else {name: self.run[name] for name in ("run", "created")}

    @property
    def seconds(self) -> float:
        """End of the last finished text, in seconds from the start of the run."""
        import pyarrow.compute as pc

        assert self.table is not None
        ends = pc.add(self.table.column("start"), self.table.column("duration"))
        return float(pc.max(ends).as_py() or 0.0)


_OTHERWISE = ": resume with the same settings or choose another path"


def load_saved(path: Path) -> SavedRun:
    """Load what is saved in `path`, or in the stream that a cut-off run left next to it.

    Raises
    ------
    TraceError
        If it is not a trace, or another run is writing it.
    """
    file = _file(path)
    if file is None:
        return SavedRun()
    trace = Trace.open(file)
    table = trace.arrow([column.name for column in schema.COLUMNS]).cast(arrow_schema())
    return SavedRun(file, trace.run, table)


def saved_options(path: Path, model: object, dtype: str | None, kernels: str | None) -> Record:
    """Options that load the target of the run saved in `path`, as `load_options`; empty if there is none.

    Raises
    ------
    TraceError
        As `load_saved`.
    """
    file = _file(path) if isinstance(model, str | Path) else None  # ranks with a split model share the file
    return {} if file is None else load_options(model, Trace.open(file).run, dtype, kernels)


def _file(path: Path) -> Path | None:
    """The file that holds the saved part of a run, which no other run is writing; None if there is none."""
    partial = partial_of(path)
    file = partial if begun(partial) else path
    if not file.exists():
        return None
    unlock(lock(path))
    return file


def _conditions(run: Record) -> Record:
    """What the times of a run depend on besides its settings; nothing if it has no times."""
    return {"threads": run["threads"]} | (run["machine"] or {}) if run["timing"] else {}


def _different(name: str, old: Record | str, new: Record | str) -> tuple[str, str]:
    """Describe the difference between two metadata values, as (the first's, the second's)."""
    if old == new:
        return "", ""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return f"{name} {old}", f"{name} {new}"
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    owner = {"model": "the model's ", "draft": "the draft model's ", "memory": "the memory's "}.get(name, "")
    if owner:  # the first difference is enough: name, then size, then digest
        keys = keys[:1]
    first, second = (", ".join(f"{owner}{key} {each.get(key)}" for key in keys) for each in (old, new))
    return first, second
