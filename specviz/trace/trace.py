"""The record of one or several runs: its parts, tables, texts and pictures."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Sequence
from functools import cache, cached_property
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specviz import schema
from specviz.draft import depths
from specviz.errors import TraceError
from specviz.files import write_text
from specviz.paths import expanded
from specviz.trace.checks import (
    check_lengths,
    check_new_run,
    check_values,
    flattened,
    index_within,
    list_sizes,
)
from specviz.trace.display import hook
from specviz.trace.files import (
    KEYS,
    PARTIAL,
    TOKEN_COLUMNS,
    Record,
    arrow_schema,
    partial_of,
    reason,
    write_parquet,
)
from specviz.trace.perfetto import perfetto
from specviz.trace.reading import StoredRun, as_trace_error, open_file, open_partial
from specviz.trace.signals import DISTINCT, unpack
from specviz.trace.text import begun_text, text_of, token_bytes, whole_characters

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class Trace:
    """One or several runs, as tables.

    Made by `specviz.generate`, `Recorder.close` or `Trace.open`. Data are read when first needed. In Jupyter
    it displays itself as a static picture.
    """

    def __init__(self, stores: Sequence[StoredRun], prompts: frozenset[int] | None = None) -> None:
        self._stores = list(stores)
        self._prompts = prompts

    # ------------------------------------------------------------ files

    @classmethod
    def open(cls, path: str | Path) -> Trace:
        """Open a trace file, an interrupted run (``.partial``), a folder of these, or a folder with them
        in ``traces``.

        Raises
        ------
        TraceError
            If there is no trace, or a file is truncated, foreign, inconsistent or of an unsupported schema.
        """
        path = expanded(path, TraceError)
        if path.is_dir():
            files = _traces(path) or _traces(path / "traces")
            if not files:
                raise TraceError(f"{path} holds no traces (*.parquet)")
        elif path.exists():
            files = [path]
        elif (partial := partial_of(path)).exists():
            raise TraceError(f"{path} does not exist, but a running or interrupted run does: open {partial}")
        else:
            raise TraceError(f"{path} does not exist")
        stores = [open_partial(p) if p.name.endswith(PARTIAL) else open_file(p) for p in files]
        seen: dict[str, StoredRun] = {}
        for store in stores:
            if (other := seen.setdefault(store.run["run"], store)) is not store:
                raise TraceError(f"{other.path} and {store.path} hold the same run: move one of them away")
        return cls(stores)

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the trace: one run to a file ``*.parquet``, several to a folder of files.

        If prompts are selected, only those are written; the others keep their numbers and nothing else.

        Raises
        ------
        TraceError
            If the file exists (unless `force`) or cannot be written, two runs have the same name, or no
            reader would accept the run's metadata.
        """
        path = expanded(path, TraceError)
        single = path.suffix == ".parquet"
        if single and len(self._stores) != 1:
            raise TraceError(f"{len(self._stores)} runs need a folder, not the file {path}")
        names = [path]
        if not single:
            if len(set(self._ids)) < len(self._ids):
                raise TraceError("two runs have the same name: save them in separate folders")
            names = [path / f"{name}.parquet" for name in _file_names(self._ids)]
        for name in names:
            if name.exists() and not force:
                raise TraceError(f"{name} exists: choose another name, or replace it with force=True")
        for name, store in zip(names, self._stores, strict=True):
            table = Trace([store], self._prompts)._table([c.name for c in schema.COLUMNS])
            run = _chosen(store.run, self._prompts, table)
            check_new_run(run)
            try:
                name.parent.mkdir(parents=True, exist_ok=True)
                remedy = "save parts of it, with select(prompt=...)"
                write_parquet(name, run, table.cast(arrow_schema()).to_batches(), remedy)
            except OSError as error:
                raise TraceError(f"cannot write {name}: {reason(error)}") from error
        return path

    def redact(self) -> Trace:
        """A copy that is safer to share, without prompts, references, paths and machine names.

        Dropped: every prompt's tokens, name and reference (its kind, language and length stay), pieces
        of tokens that occur only in prompts, the sources of a stream's updates, folders in front of model
        and tokenizer names and of the run's, the machine (the kind of its device stays), how llama.cpp was
        built, why a run stopped, and text in parameters that looks like a path or is a prompt's wording.
        What remains: the generated, drafted and predicted text, which can repeat a prompt's words; numbers,
        times, parameters and versions.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        stores, taken = [], set[str]()
        for store in self._stores:
            table = Trace([store], self._prompts)._table([c.name for c in schema.COLUMNS])
            source = table.column("source").cast(pa.string())
            hidden = pc.if_else(pc.is_null(source), source, "")  # still shows that there was an update
            table = with_column(table, "source", hidden.to_pylist())
            run = _redact(_chosen(store.run, self._prompts, table), table)
            name = run["run"]
            more = (f"{name}-{number}" for number in count(2))
            run["run"] = next(each for each in chain([name], more) if each not in taken)
            taken.add(run["run"])
            table = with_column(table, "run", [run["run"]] * len(table))
            stores.append(StoredRun(run, table=table))
        return Trace(stores)

    # ------------------------------------------------------------ parts

    @property
    def _ids(self) -> list[str]:
        return [store.run["run"] for store in self._stores]

    @property
    def run(self) -> Record:
        """The run's metadata (`schema.RUN_FIELDS`), without the token pieces.

        Raises
        ------
        TraceError
            If the trace holds several runs.
        """
        if len(self._stores) != 1:
            raise TraceError(
                f"the trace holds {len(self._stores)} runs: use select(run=...) for one, or .runs"
            )
        return {k: v for k, v in self._stores[0].run.items() if k != "pieces"}

    def select(
        self,
        *,
        prompt: int | Iterable[int] | None = None,
        method: Any = None,
        run: str | Iterable[str] | None = None,
    ) -> Trace:
        """The part of the trace with the given prompts, methods (names, classes or instances) and runs; one
        or several of each.

        A trace that has already been reduced to them returns itself, with the tables that it has made.
        """

        def some(value: Any) -> set[Any]:
            try:
                return {value} if isinstance(value, str | int | np.integer) else set(value)
            except TypeError:
                raise TraceError(
                    f"select takes one or several, such as prompt=3 or prompt=[3, 4], got {value!r:.80}"
                ) from None

        stores = self._stores
        if method is not None:
            several = [method] if hasattr(method, "name") else some(method)
            named = {getattr(each, "name", each) for each in several}
            stores = [s for s in stores if s.run["method"] in named]
        if run is not None:
            runs = some(run)
            stores = [s for s in stores if s.run["run"] in runs]
        if not stores:
            there = ", ".join(self._ids[:8])
            if method is not None:
                there += f"; methods: {', '.join(dict.fromkeys(s.run['method'] for s in self._stores))}"
            raise TraceError(f"no such run; available: {there}")
        prompts = self._prompts
        if prompt is not None:
            numbers = some(prompt)
            if wrong := [p for p in numbers if not isinstance(p, int | np.integer)]:
                raise TraceError(f"prompts are numbered from 0, got {wrong[0]!r:.80}")
            chosen = frozenset(map(int, numbers))
            count = max(len(s.run["prompts"] or []) for s in stores)
            if count and not any(0 <= p < count for p in chosen):
                there = f"there are {count} (0 to {count - 1})" if count > 1 else "there is one (0)"
                raise TraceError(f"no such prompt; {there}")
            prompts = chosen if prompts is None else prompts & chosen
        return self if (stores, prompts) == (self._stores, self._prompts) else Trace(stores, prompts)

    @cached_property
    def _parts(self) -> tuple[Trace, ...]:
        return tuple(Trace([store], self._prompts) for store in self._stores)

    def split(self) -> list[Trace]:
        """One trace per run, always the same ones, with the tables that they have made.

        A trace of one run returns itself.
        """
        return [self] if len(self._stores) == 1 else list(self._parts)

    def join(self) -> Trace:
        """Join runs that differ only in their texts into one run, prompt after prompt.

        ``specviz bench run --traces`` leaves one file per text. Joined, a method's texts are one run, which
        views and metrics expect.

        Returns
        -------
        Trace
            One run per method, models, settings and machine; a joined run has a name of its own, and its
            clock continues from text to text. It states a drafter's memory only if every text began with
            the same one; its ``keep`` is then ``prompt``.

        Raises
        ------
        TraceError
            If such runs decoded a prompt more than once, as in several rounds, or were redacted, so that
            this cannot be seen.

        Examples
        --------
        >>> trace = specviz.open("run/traces").join()  # doctest: +SKIP
        >>> specviz.view.why_it_pays(trace)  # doctest: +SKIP
        """
        from specviz.trace.joining import contenders, join

        groups = contenders(self.split())
        alone = self._prompts is None  # then a single run stays as it is
        return Trace([g[0]._stores[0] if alone and len(g) == 1 else join(g) for g in groups])

    @property
    def pieces(self) -> dict[int, bytes]:
        """Bytes of each token id that occurs, by id (one run)."""
        _ = self.run
        return self._stores[0].pieces

    def _table(self, names: Sequence[str]) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        parts = []
        for store in self._stores:
            with as_trace_error(store.path or Path("the trace")):
                table = store.columns(list(dict.fromkeys([*KEYS, *names])))
                lists = [f.name for f in table.schema if pa.types.is_list(f.type)]
                sizes = {name: list_sizes(table.column(name)) for name in lists}
                check_lengths(
                    sizes, table.column("top_k") if "top_k" in table.schema.names else None, store.where
                )
                check_values(table, store.where)
                for name in ("run", "method"):
                    if not set(pc.unique(table.column(name)).to_pylist()) <= {store.run[name]}:
                        raise TraceError(f"{store.where}: rows have a different {name} than the file")
                count = len(store.run["prompts"] or [])
                if count and (pc.max(table.column("prompt")).as_py() or 0) >= count:
                    raise TraceError(f"{store.where}: rows have more prompts than the metadata ({count})")
                if self._prompts is not None:
                    chosen = pa.array(sorted(self._prompts), pa.int32())
                    table = table.filter(pc.is_in(table.column("prompt"), chosen))
                parts.append(_prompt_by_prompt(table).select(list(names)))
        return pa.concat_tables(parts).unify_dictionaries()

    # ------------------------------------------------------------ tables

    def arrow(self, names: Sequence[str]) -> pa.Table:
        """Return columns of the record (`schema.COLUMNS`), checked; one row per cycle, words as codes."""
        return self._table(names)

    @cached_property
    def runs(self) -> pd.DataFrame:
        """One row per run with the fields of `schema.RUN_FIELDS`; nested fields as JSON text."""
        import pandas as pd

        rows = []
        for store in self._stores:
            row = {k: v for k, v in store.run.items() if k not in ("prompts", "pieces")}
            for name in ("model", "draft"):
                row[name] = (store.run[name] or {}).get("name")
            row["prompts"] = len(store.run["prompts"] or [])
            for name, value in row.items():
                if isinstance(value, dict | list):
                    row[name] = json.dumps(value, ensure_ascii=False)
            rows.append(row)
        return pd.DataFrame(rows)

    @cached_property
    def signals(self) -> pd.DataFrame:
        """One row per signal that the methods declare or recorded beyond the schema's columns.

        ``run``, ``signal``, ``level`` (node: a column of `nodes`; cycle: a column of `cycles`, named
        ``control_`` and the signal's name), ``unit`` and ``meaning``, both empty if none was declared.
        """
        import pandas as pd

        rows: list[Record] = []
        for part in self.split():
            fixed = {c.name for c in schema.COLUMNS}
            recorded = {
                "node": [n for n in map(str, part.nodes) if f"node_{n}" not in fixed and schema.is_signal(n)],
                "cycle": [n[8:] for n in map(str, part.cycles) if n.startswith("control_")],
            }
            for level in schema.LEVELS:
                declared = schema.declared(part.run, level)
                for name in dict.fromkeys([*declared, *recorded[level]]):
                    signal = declared.get(name) or schema.Signal(name, level=level)
                    rows.append({"run": part.run["run"], "signal": name, "level": level}
                                | {"unit": signal.unit, "meaning": signal.meaning})  # fmt: skip
        return pd.DataFrame(rows, columns=["run", "signal", "level", "unit", "meaning"])

    @cached_property
    def prompts(self) -> pd.DataFrame:
        """One row per prompt: id, turn, kind, language, number of tokens, text and reference."""
        import pandas as pd

        rows = []
        for store in self._stores:
            for i, prompt in enumerate(store.run["prompts"] or []):
                if (self._prompts is None or i in self._prompts) and prompt != UNSELECTED:
                    ids = prompt.get("tokens") or []
                    row = {"run": store.run["run"], "prompt": i}
                    row |= {name: prompt.get(name) for name in ("id", "turn", "kind", "language")}
                    row |= {"tokens": prompt.get("length", len(ids)), "text": text_of(store, ids)}
                    rows.append(row | {"reference": prompt.get("reference")})
        names = ["run", "prompt", "id", "turn", "kind", "language", "tokens", "text", "reference"]
        return pd.DataFrame(rows, columns=names)

    @cached_property
    def cycles(self) -> pd.DataFrame:
        """One row per cycle: the scalar columns, controller values (``control_*``) and counts.

        Counts: `drafted` nodes of the draft; `sent` of them to the target (all except the unsent and
        unreviewed ones); `judged` (accepted or rejected); `accepted`; `rejected`; `cut` by the text's end;
        `unreviewed` (emitted without the target); `emitted` tokens.
        """
        import pandas as pd
        import pyarrow.compute as pc

        scalars = [c.name for c in schema.COLUMNS if not c.type.startswith("list")]
        names = [*scalars, "control_name", "control_value", "node_token", "node_status", "out_token"]
        table = self._table(names)
        frame = pd.DataFrame({name: _numpy(table.column(name)) for name in scalars})
        drafted = np.maximum(list_sizes(table.column("node_token")), 0)
        size = np.maximum(list_sizes(table.column("node_status")), 0)
        row = np.repeat(np.arange(len(table)), size)
        status = pc.list_flatten(table.column("node_status"))

        def count(*words: str) -> np.ndarray:
            import pyarrow as pa

            chosen = pc.is_in(status, pa.array(words)).to_numpy()
            return np.bincount(row[chosen], minlength=len(table))

        frame["drafted"] = drafted
        frame["sent"] = drafted - count("below_budget", "unsent", "unreviewed")
        frame["judged"] = count("accepted", "rejected")
        for word in ("accepted", "rejected", "cut", "unreviewed"):
            frame[word] = count(word)
        frame["emitted"] = np.maximum(list_sizes(table.column("out_token")), 0)
        size = np.maximum(list_sizes(table.column("control_name")), 0)
        row = np.repeat(np.arange(len(table)), size)
        control = pc.list_flatten(table.column("control_name")).to_numpy(zero_copy_only=False)
        value = _flat(table.column("control_value"), size)
        names = sorted(set(control) - {None})
        if len(names) > DISTINCT:  # in traces of an earlier version
            _warn_of_names(self._stores[0].where if len(self._stores) == 1 else "the trace")
        for name in names[:DISTINCT]:
            column = np.full(len(table), np.nan)
            chosen = control == name
            column[row[chosen]] = value[chosen]
            frame[f"control_{name}"] = column
        return frame

    @cached_property
    def has_streams(self) -> bool:
        """Whether a text's source arrived in updates."""
        sources = self._table(["source"]).column("source")
        return len(sources) > sources.null_count

    @cached_property
    def updates(self) -> pd.DataFrame:
        """One row per update of a stream, the level above the cycle; empty if no source arrived in updates.

        `source` so far and `arrival`; `prompt_tokens` and how many of them were `reused`; `text`, the whole
        output, and `shown_text`, the displayed part (whole characters), with `ids`, the output's tokens
        without the end token, and `shown`, how many of them are displayed; `drafted`, `accepted`,
        `unreviewed` and `emitted` tokens (end token included) and `cycles`, without the prefill; `prefill`
        and `duration`, seconds of the prompt and of the cycles after it; `end`.
        """
        import pandas as pd

        keys = ["run", "prompt", "update"]
        cycles = self.cycles
        streams = cycles.loc[cycles["source"].notna(), ["run", "prompt"]].drop_duplicates()
        cycles = cycles.merge(streams, on=["run", "prompt"])
        first = cycles["cycle"] == 0
        heads = cycles[first].set_index(keys)
        if heads["source"].isna().any() or not heads.index.is_unique:
            raise TraceError("the trace is damaged: each update of a stream has one cycle 0, with its source")
        rest = cycles[~first].groupby(keys, observed=True)
        frame = heads[["method", "source", "arrival"]].copy()
        frame["prompt_tokens"], frame["reused"] = heads["context"], heads["reused"]
        frame["prefill"] = heads["duration"]
        for name in ("drafted", "accepted", "unreviewed", "emitted", "duration"):
            sums = rest[name].sum(min_count=int(name == "duration"))
            frame[name] = sums.reindex(frame.index, fill_value=0)
        frame["cycles"] = rest.size().reindex(frame.index, fill_value=0)
        frame.loc[(frame["cycles"] == 0) & frame["prefill"].isna(), "duration"] = np.nan
        last = cycles.groupby(keys, observed=True)[["end", "shown"]].last()
        frame["end"] = last["end"].reindex(frame.index)
        tokens = self.outputs.groupby(keys, observed=True, sort=False)["token"].agg(list)
        rows = {store.run["run"]: store for store in self._stores}
        data: dict[str, list[Any]] = {"ids": [], "shown": [], "text": [], "shown_text": []}
        for key in frame.index:
            store, ids = rows[key[0]], tokens.get(key, [])
            ends = set(store.run["eos"] or [])
            ids = [token for token in ids if token not in ends]
            shown = last["shown"].get(key)
            shown = len(ids) if shown is None or shown != shown else min(int(shown), len(ids))
            data["ids"].append(ids)
            data["shown"].append(shown)
            data["text"].append(text_of(store, ids))
            data["shown_text"].append(begun_text(store.pieces, ids[:shown]))
        for name, values in data.items():
            frame[name] = pd.Series(values, frame.index, dtype=int if name == "shown" else object)
        return frame.reset_index()

    def _long(self, group: str, index: str | None) -> pd.DataFrame:
        """A group's list columns as one long table, with the keys of their cycles."""
        import pandas as pd

        columns = [
            c.name for c in schema.COLUMNS if c.name.startswith(group + "_") and c.name not in schema.FLAT
        ]
        table = self._table([*KEYS, *columns])
        size = np.zeros(len(table), np.int64)
        for name in columns:
            np.maximum(size, list_sizes(table.column(name)), out=size)
        data = {name: _numpy(table.column(name)).repeat(size) for name in KEYS}
        if index:
            data[index] = index_within(size)
        for name in columns:
            data[name[len(group) + 1 :]] = _flat(table.column(name), size)
        return pd.DataFrame(data)

    @cached_property
    def nodes(self) -> pd.DataFrame:
        """One row per drafted node: index, parent, depth, token, text, status, probabilities and signals.

        A method's own signal has a column of its name, NaN where a cycle did not give it.
        `text` is the token's own bytes; bytes that are only part of a character show as ``\\x..``.
        """
        frame = self._long("node", "node")
        table = self._table(["node_token", "signal_name", "signal_value"])
        size = np.maximum(list_sizes(table.column("node_token")), 0)
        for name, values in unpack(table, size, set(frame.columns), "the trace").items():
            frame[name] = values
        starts = np.flatnonzero(frame["node"].to_numpy() == 0)
        base = np.repeat(starts, np.diff([*starts, len(frame)]))
        parent = frame["parent"].to_numpy().astype(np.int64)
        depth = depths(np.where(parent < 0, -1, parent + base))
        _insert(frame, "parent", "depth", depth)
        _insert(frame, "token", "text", self._piece_texts(frame))
        return frame

    @cached_property
    def outputs(self) -> pd.DataFrame:
        """One row per emitted token: position, token, text, origin, probability, uniform number, kept.

        `kept` is false if a later cycle's `keep` removed the token.
        """
        frame = self._long("out", None)
        _insert(frame, "token", "text", self._piece_texts(frame))
        kept = np.zeros(len(frame), bool)
        for _, _, index in self._survivors:
            kept[index] = True
        frame["kept"] = kept
        return frame

    @cached_property
    def tails(self) -> pd.DataFrame:
        """One row per token of the dense record's tails: position of the token that the tail follows, token,
        text, probability, margin.
        """
        frame = self._long("tail", None)
        _insert(frame, "token", "text", self._piece_texts(frame))
        return frame

    @cached_property
    def passes(self) -> pd.DataFrame:
        """One row per forward pass: model, rows, tokens, start and duration in seconds."""
        return self._long("pass", None)

    def tops(self, group: str = "pred") -> pd.DataFrame:
        """The top-k candidates as one long table.

        Parameters
        ----------
        group : {"pred", "node"}
            The target's candidates at each prediction (`node` is the node before it, -1 the root), or the
            drafter's candidates when it chose each node.

        Returns
        -------
        DataFrame
            Keys of the cycle, ``node``, ``place`` (0 is the best), ``token``, ``text``, ``p``.
        """
        if group not in ("pred", "node"):
            raise TraceError(f"group must be 'pred' or 'node', not {group!r}")
        import pandas as pd

        own = "pred_node" if group == "pred" else "node_token"
        names = (f"{group}_top_token", f"{group}_top_p")
        table = self._table([*KEYS, "top_k", own, "node_token", *names])
        size = np.maximum(list_sizes(table.column(names[0])), 0)
        k = np.maximum(_numpy(table.column("top_k"), 0), 1).astype(np.int64)
        within = index_within(size)
        each = np.repeat(k, size)
        data = {name: _numpy(table.column(name)).repeat(size) for name in KEYS}
        entry = within // each
        if group == "pred":
            count = np.maximum(list_sizes(table.column(own)), 0)
            start = np.cumsum(count) - count
            entry = _flat(table.column(own), count)[np.repeat(start, size) + entry]
        data |= {"node": entry, "place": within % each, "token": _flat(table.column(names[0]), size)}
        frame = pd.DataFrame(data | {"p": _flat(table.column(names[1]), size)})
        _insert(frame, "token", "text", self._piece_texts(frame))
        return frame

    # ------------------------------------------------------------ text

    @cached_property
    def _survivors(self) -> list[tuple[StoredRun, int, np.ndarray]]:
        """For each run and prompt, which rows of the long output table make up its text."""
        result = []
        base = 0
        for store in self._stores:
            table = Trace([store], self._prompts)._table([*KEYS, "keep", "out_token"])
            size = np.maximum(list_sizes(table.column("out_token")), 0)
            ends = np.cumsum(size) + base
            prompts = table.column("prompt").to_numpy()
            keep = table.column("keep").to_pylist()
            texts: dict[int, list[int]] = {}
            for i, prompt in enumerate(prompts.tolist()):
                text = texts.setdefault(prompt, [])
                if (survive := keep[i]) is not None:
                    if survive > len(text):
                        raise TraceError(f"{store.where}: cycle {i} keeps {survive} of {len(text)} tokens")
                    del text[survive:]
                text.extend(range(int(ends[i] - size[i]), int(ends[i])))
            result += [(store, prompt, np.array(text, np.int64)) for prompt, text in texts.items()]
            if store.run.get("canvas") is not None:
                first = len(result) - len(texts)
                result[first:] = [(s, p, self._in_order(s, index)) for s, p, index in result[first:]]
            base += int(size.sum())
        return result

    def _in_order(self, store: StoredRun, index: np.ndarray) -> np.ndarray:
        """A canvas' tokens from left to right, up to its first end token; padding after that is not text."""
        index = index[np.argsort(self._cells[index, 0], kind="stable")]
        cells = self._cells[index, 0]
        index = index[: int((cells == np.arange(len(cells))).cumprod().sum())]  # a masked cell ends the text
        ends = np.flatnonzero(np.isin(self._cells[index, 1], list(store.run["eos"] or [])))
        return index[: ends[0] + 1] if len(ends) else index

    @cached_property
    def _cells(self) -> np.ndarray:
        """Position and token of each row of the long output table, [rows, 2]."""
        import pyarrow.compute as pc

        table = self._table(["out_position", "out_token"])
        columns = [pc.list_flatten(table.column(name)).to_numpy() for name in ("out_position", "out_token")]
        return np.stack(columns, 1)

    @cached_property
    def texts(self) -> list[str]:
        """The text of each prompt of each run, in decoding order, without end tokens.

        A turn that found no room in its conversation has none, though it is among `prompts`.
        """
        token = self.outputs["token"].to_numpy()
        return [text_of(store, token[index].tolist()) for store, _, index in self._survivors]

    @property
    def text(self) -> str:
        """The generated text.

        Raises
        ------
        TraceError
            If the trace holds several texts.
        """
        if len(self.texts) > 1:
            raise TraceError(
                f"the trace holds {len(self.texts)} texts: use select(prompt=...) for one, or .texts"
            )
        return self.texts[0] if self.texts else ""

    def tokens(self, prompt: int | None = None) -> list[tuple[str, list[int]]]:
        """A text for display: whole characters, each with the token ids that make it up.

        Parameters
        ----------
        prompt : int, optional
            Which prompt; needed if there are several.
        """
        matching = [s for s in self._survivors if prompt is None or s[1] == prompt]
        if len(matching) != 1:
            raise TraceError(f"{len(matching)} texts match: select one run and name its prompt")
        store, _, index = matching[0]
        ids = self.outputs["token"].to_numpy()[index].tolist()
        return whole_characters(token_bytes(store.pieces, ids))

    def _piece_texts(self, frame: pd.DataFrame) -> np.ndarray:
        """Each row's token as text."""
        texts = np.empty(len(frame), object)
        runs, tokens = frame["run"], frame["token"].to_numpy()
        for store in self._stores:
            rows = (runs == store.run["run"]).to_numpy()
            ids, index = np.unique(tokens[rows], return_inverse=True)
            pieces = token_bytes(store.pieces, ids.tolist())
            shown = [piece.decode("utf8", "backslashreplace") for _, piece in pieces]
            texts[rows] = np.array(shown, object)[index]
        return texts

    # ------------------------------------------------------------ numbers and pictures

    def summary(self) -> pd.DataFrame:
        """One row per run with the standard metrics; `specviz.metrics` defines each."""
        frame: pd.DataFrame = hook("summary")(self)
        return frame

    def recheck(self) -> pd.DataFrame:
        """Recompute the decision on every judged node from the record; see `specviz.metrics.recheck`."""
        frame: pd.DataFrame = hook("recheck")(self)
        return frame

    def to_html(self, path: str | Path, *, force: bool = False) -> Path:
        """Write one offline page with the player of every run; replace an existing file only with `force`.

        The page's address holds its position: ``run.html#prompt=2&cycle=7`` opens there, with the page's own
        numbers.
        """
        page: Path = hook("page")(self, Path(path), force)
        return page

    def to_perfetto(self, path: str | Path, *, force: bool = False) -> Path:
        """Write a Chrome trace-event file (JSON), for ui.perfetto.dev or chrome://tracing.

        Each run is a process. Each batch row has a track of cycles, which contain their phases draft,
        forward, verify and commit one after another, and a track of forward passes. Counters show how many
        sent tokens each cycle accepted and how many not, and the rate. Times are in microseconds from the
        start of the run. A cycle's slice contains its emitted text; redact the trace first if that matters.

        Raises
        ------
        TraceError
            If the file exists (unless `force`) or cannot be written, or the trace has no times.

        Notes
        -----
        The format is Google's *Trace Event Format*.
        """
        return write_text(Path(path), perfetto(self), force)

    def to_gif(
        self, path: str | Path, cycles: Iterable[int] | None = None, *, prompt: int | None = None,
        seconds: float = 1.2, force: bool = False,
    ) -> Path:  # fmt: skip
        """Write some cycles as an animated GIF: the text so far and the draft that was judged.

        Parameters
        ----------
        path : path
        cycles : iterable of int, optional
            Numbers of cycles, for example ``range(5, 15)``; the first twelve by default.
        prompt : int, optional
            Default: the first.
        seconds : float
            How long each cycle is shown.
        force : bool
            Overwrite an existing file.

        Raises
        ------
        TraceError
            If the file exists or cannot be written, or the run wrote a canvas or decoded a stream.
        ParameterError
            If there is no such cycle, or there are too many.
        """
        film: Path = hook("film")(self, Path(path), cycles, prompt, seconds, force)
        return film

    def _repr_html_(self) -> str:
        return str(hook("html")(self))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> Record:
        bundle: Record = {"text/plain": repr(self)}
        with contextlib.suppress(ImportError):  # without matplotlib the picture is left out
            bundle["text/html"] = hook("html")(self)
            bundle["image/png"] = base64.b64encode(hook("png")(self)).decode("ascii")
        return bundle

    def __repr__(self) -> str:
        try:
            return str(hook("text")(self))
        except ImportError:
            methods = ", ".join(dict.fromkeys(s.run["method"] for s in self._stores))
            return f"<Trace of {len(self._stores)} run(s): {methods}; {len(self.cycles)} cycles>"


def is_trace(given: Any) -> Trace:
    """Return `given` if it is a trace; otherwise raise an error that says how to get one."""
    if isinstance(given, Trace):
        return given
    how = f"open the file first, with specviz.open({str(given)!r})" if isinstance(given, str | Path) else ""
    raise TraceError(
        f"a Trace is needed, not {type(given).__name__}: {how or 'one that generate or open gave'}"
    )


def listed(traces: Trace | Iterable[Trace]) -> list[Trace]:
    """Return one trace, or several, as a list."""
    if isinstance(traces, Trace | str | Path):
        return [is_trace(traces)]
    try:
        return list(traces)
    except TypeError:
        return [is_trace(traces)]


@cache
def _warn_of_names(where: str) -> None:
    """Warn once that a table leaves out signals of the cycles."""
    print(
        f"specviz: {where} holds more than {DISTINCT} signals of its cycles: the table of cycles has the "
        f"first {DISTINCT} by name",
        file=sys.stderr,
    )


def _prompt_by_prompt(table: pa.Table) -> pa.Table:
    """Put the cycles of each prompt one after another, as in a run of one prompt at a time.

    A batch records its rows' cycles as they come, but whatever reads a text goes through its cycles in order.
    """
    prompt = table.column("prompt").to_numpy()
    if (prompt[1:] >= prompt[:-1]).all():
        return table
    return table.take(np.argsort(prompt, kind="stable"))


def _numpy(column: pa.ChunkedArray, empty: float | None = None) -> Any:
    """Convert a column to NumPy (null is NaN) or, for words, to a pandas categorical."""
    import pandas as pd
    import pyarrow as pa

    if isinstance(column.type, pa.DictionaryType):
        return pd.Categorical(column.to_pandas())
    return (column if empty is None else column.fill_null(empty)).to_numpy()


def _flat(column: pa.ChunkedArray, size: np.ndarray) -> Any:
    """`flattened` as NumPy or, for words, as a pandas categorical."""
    import pyarrow as pa

    values = flattened(column, size)
    return values.to_pandas().to_numpy() if values.type == pa.bool_() else _numpy(values)


def _insert(frame: pd.DataFrame, after: str, name: str, values: Any) -> None:
    frame.insert(list(frame.columns).index(after) + 1, name, values)


PATH_LIKE = re.compile(r"[\\/~]")
UNSELECTED: Record = {"selected": False}  # stands for a prompt that a saved selection leaves out
NAME_LIMIT = 100  # maximum characters of a run's name in a file name
SLOT = "{source}"  # placeholder for the source in a template of streams


def _traces(folder: Path) -> list[Path]:
    """Files of the runs in a folder, including those that were cut off; hidden files are skipped."""
    partial = [path for path in folder.glob(f"[!.]*.parquet{PARTIAL}") if path.stat().st_size]
    return sorted([*folder.glob("[!._]*.parquet"), *partial])


def _file_names(runs: Sequence[str]) -> list[str]:
    """A file name for each run: its own name, or the usable part of that with a mark."""
    names: list[str] = []
    taken: set[str] = set()  # in lower case: some file systems ignore case
    for run in runs:
        name = re.sub(r"[^A-Za-z0-9_-]", "_", run)[:NAME_LIMIT].lstrip("_")
        if not name or name != run or name.lower() in taken:
            mark = hashlib.blake2b(run.encode("utf8", "surrogatepass"), digest_size=3).hexdigest()
            name = f"{name or 'run'}-{mark}"
        while name.lower() in taken:  # as rare as two equal marks
            name += "-"
        taken.add(name.lower())
        names.append(name)
    return names


def with_column(table: pa.Table, name: str, values: np.ndarray | list[str] | pa.Array) -> pa.Table:
    """The table with new values in a column, in the column's type."""
    import pyarrow as pa

    at = table.schema.get_field_index(name)
    field = table.schema.field(at)
    return table.set_column(at, field, pa.array(values, field.type, from_pandas=True))


def _used(table: pa.Table) -> set[int]:
    """Tokens that occur in the cycles."""
    import pyarrow.compute as pc

    used: set[int] = set()
    for name in TOKEN_COLUMNS:
        used.update(pc.unique(pc.list_flatten(table.column(name))).to_pylist())
    return used


def _chosen(run: Record, prompts: frozenset[int] | None, table: pa.Table) -> Record:
    """The run's metadata, with unselected prompts emptied and the token pieces of these dropped."""
    every = run["prompts"] or []
    if prompts is None or prompts >= set(range(len(every))):
        return run
    kept = run | {"prompts": [p if i in prompts else dict(UNSELECTED) for i, p in enumerate(every)]}
    return kept | {"pieces": pieces_in(kept, table)}


def pieces_in(run: Record, table: pa.Table) -> Record:
    """The token pieces, as in the metadata, of the tokens in the run's cycles and prompts."""
    used = _used(table).union(run["eos"] or (), *(p.get("tokens") or () for p in run["prompts"]))
    if (mask := (run["canvas"] or {}).get("mask")) is not None:
        used.add(mask)
    return {token: text for token, text in (run["pieces"] or {}).items() if int(token) in used}


def _redact(run: Record, table: pa.Table) -> Record:
    """The run's metadata without anything that identifies a person, a machine or a prompt."""

    def scrub(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: scrub(v) for k, v in value.items()}
        if isinstance(value, list):
            return [scrub(v) for v in value]
        if isinstance(value, str) and SLOT in value:  # a user's own template
            return SLOT
        return re.split(r"[\\/]", value)[-1] if isinstance(value, str) and PATH_LIKE.search(value) else value

    kept = {
        name: scrub(run[name]) for name in schema.RUN_FIELDS if name not in ("prompts", "pieces", "machine")
    }
    for name in ("pseudocode", "signals"):  # the method's own text, in which p/q is not a path
        kept[name] = run[name]
    kept["stopped"] = None if run["stopped"] is None else "stopped"
    devices = {}  # only their kind: a name can be the processor's
    for name in ("machine", "calibration"):
        device = (run[name] or {}).get("device")
        plain = isinstance(device, str) and re.fullmatch(r"(cpu|cuda|mps)(:\d+)?", device)
        devices[name] = {"device": device} if plain else None
    kept["machine"] = devices["machine"]
    if kept["calibration"]:
        kept["calibration"] |= devices["calibration"] or {"device": None}
    if kept["backend"]:
        kept["backend"].pop("system", None)
    kept["prompts"] = [
        p
        if p == UNSELECTED
        else {name: p.get(name) for name in ("kind", "language", "turn")}
        | {"length": p.get("length") or len(p.get("tokens") or [])}
        for p in run["prompts"] or []
    ]
    used = _used(table)
    kept["pieces"] = {token: text for token, text in (run["pieces"] or {}).items() if int(token) in used}
    return kept
