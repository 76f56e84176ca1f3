"""Converts a trace to flat typed arrays, and arrays to bytes that are sent to the browser once.

A ragged column is one long array with offsets. Every float is float32 and every integer has the smallest
type that holds it. A token's text is sent once. Data shown for one node at a time (the target's and the
drafter's candidates, entropies, uniform numbers) follows in chunks of `CHUNK` cycles.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike

from specviz import schema
from specviz.errors import TraceError
from specviz.escape import visible
from specviz.files import plain_data
from specviz.rules.cells import starts_with_first
from specviz.trace import Trace, whole_characters
from specviz.trace.checks import flattened, list_sizes
from specviz.trace.text import token_bytes
from specviz.view import updates
from specviz.view.picture import (
    FATES,
    KINDS,
    PHASES,
    cut_off,
    excerpt,
    letters,
    name_of,
    phase_times,
)

if TYPE_CHECKING:
    import pandas as pd

CHUNK = 64  # cycles
ALIGN = 8  # bytes
END = "■"  # shown for a token that ends a text
FIRST = ("token", "parent", "position", "status", "source", "q", "p", "rank", "confidence", "met")
LATER = ("entropy", "margin", "logit_margin", "variance", "score", "threshold", "gap", "u")
INTEGERS = [np.dtype(t) for t in ("u1", "i1", "u2", "i2", "u4", "i4")]
# How a token that the target adds came about: a short phrase, and a sentence that explains it.
CAME = {
    "plain": ("the target's own", "Nothing was drafted: the target writes {token} in its own pass."),
    "bonus": ("the bonus", "Bonus: every token on the path was accepted, and the same pass gives one more "
        "token, {token}."),
    "correction": ("the correction", "Correction: the target's own choice {token} replaces {refused}."),
    "rollback": ("the rollback's correction", "Rollback: the large model's own token {token} replaces "
        "{refused}."),
    "resampled": ("resampled", "Resampled: {token} is drawn from max(0, p − q) after {refused} was "
                  "rejected."),
    "fallback": ("the large model's after the fallback", "Fallback: {why} and handed over; the large model "
                 "writes {token}."),
    "parallel": ("placed in parallel", "In parallel: {token} is placed in the same pass as a more confident "
        "cell."),
}  # fmt: skip
KINDS_SENT = [
    {"name": n, "word": k.word, "mark": k.mark, "meaning": k.meaning}
    | dict(zip(("came", "why"), CAME.get(n, ("", ""))))
    for n, k in KINDS.items()
]
# A node's fate in a word or two, for the legend of a tree.
SHORT = {name: name for name in FATES} | {
    "unjudged": "not judged",
    "unsent": "not sent",
    "below_budget": "over the budget",
    "cut": "after the end of the text",
    "unreviewed": "written, not sent",
}
# Why drafting stopped; a method may have words of its own.
STOPS = {
    "length": "length limit",
    "room": "no room left",
    "eos": "end of the text",
    "fallback": "uncertain",
    "unsure": "uncertain",
    "budget": "budget spent",
    "store": "nothing more stored",
    "text": "end of the copied text",
    "window": "confidence window",
}
# Why the text ended.
ENDS = {
    "eos": "an end token",
    "length": "the limit of new tokens",
    "context": "a full context",
    "interrupted": "an interruption",
}
# The signals of a node that have a lane: column, heading, meaning.
SIGNALS = (
    ("confidence", "confidence", "the drafter's largest probability"),
    ("entropy", "entropy, nats", "how spread out the drafter's distribution is"),
    ("margin", "margin", "the drafter's largest minus second largest probability"),
    ("logit_margin", "logit margin", "the drafter's largest minus second largest logit"),
    ("variance", "logit variance", "how spread out the drafter's logits are over the vocabulary"),
    ("score", "score", "the score by which the method ranked the node, or its weighted confidence"),
    ("threshold", "τ, nats", "how far the token may be below the target's own"),
    ("gap", "gap, nats", "log probability of the target's own token minus this token's, where it was judged"),
)
HEADING = 40  # characters of a signal's heading
FINER = ("logit_margin", "variance")  # shown only if nodes have a threshold or the method declares them

# The player's keys, as its list shows them.
KEYS = (
    ("← →", "the previous or next cycle"),
    ("X Shift+X", "the next or previous rejection"),
    ("W Shift+W", "the next or previous long wait (the slowest 5 % of cycles)"),
    ("/", "find a token's text: Enter goes to the next, Shift+Enter to the previous, Escape closes"),
    ("Shift+← Shift+→", "one phase: draft, verify, commit"),
    ("↑ ↓", "the previous or next node of the draft"),
    ("space", "play or pause"),
    ("Home End", "the prefill, the last cycle"),
    ("PgUp PgDn", "in a stream: the previous or next update"),
    ("S", "step by whole cycles or by their three phases"),
    ("G", "growth: the draft level by level, then the cut nodes"),
    ("Z", "a large tree at full size or fitted to its lane"),
    ("M", "predict mode: guess before the verdict is shown"),
    ("Enter", "predict mode: mark whether this node will survive; so does space on a focused node"),
    ("R", "predict mode: reveal the verdict"),
    ("[ ]", "the previous or next prompt"),
    ("+ - 0", "the timeline: zoom in, zoom out, or show all; so does Ctrl with the wheel"),
    (", .", "a zoomed timeline: earlier or later; so do the wheel and dragging"),
    ("V Shift+V", "save the current view as SVG or PNG"),
    ("P", "projector mode: everything larger"),
    ("?", "this list; Escape closes it"),
)

# Pseudocode for a run whose method declares none; lines as in `Method.pseudocode`.
LOOP = (
    ("", "repeat until the text ends:"),
    ("draft", "    the drafter proposes tokens: a chain or a tree"),
    ("forward", "    one pass of the target reads them all"),
    ("verify", "    walk down from the root:"),
    ("verify:accepted", "        accept a token that passes the method's rule"),
    ("verify:rejected", "        at a rejection stop; later tokens are not judged"),
    ("commit:bonus", "    all accepted: the pass gives one more token, the bonus token"),
    ("commit:correction", "    else: the target's own token replaces it"),
    ("commit:resampled", "    else: a token drawn from the residual"),
    ("commit", "    append; drop the cache rows of unaccepted tokens"),
)

Arrays: TypeAlias = dict[str, np.ndarray]
Json: TypeAlias = dict[str, Any]  # sent along with the arrays
OwnSignal: TypeAlias = tuple[str, str, str, float, float]  # array, heading, meaning, minimum, maximum


def _bent_by(run: Json) -> str:
    """Describe how sampling warps the probabilities used to verify and draw; candidates' stay unwarped."""
    sampling = run.get("sampling") or {}
    temperature, top_k, top_p = (sampling.get(name) for name in ("temperature", "top_k", "top_p"))
    if not temperature:
        return ""
    parts = [f"temperature {temperature:g}"] if temperature != 1 else []
    parts += [f"top-k {top_k}"] if top_k else []
    return ", ".join(parts + ([f"top-p {top_p:g}"] if top_p is not None and top_p < 1 else []))


def columns(trace: Trace, prompts: Iterable[int] | None = None) -> tuple[Json, Arrays]:
    """Build the header and arrays that the player needs at the start.

    Parameters
    ----------
    trace : Trace
        A trace of one run.
    prompts : iterable of int, optional
        The prompts to include; all by default.

    Returns
    -------
    header : dict
        The run's facts, the words that codes stand for, and for each prompt its index, text and rows.
    arrays : dict of str to array
        One entry per cycle (``cycle``, ``context``, ``keep``, ``stop``, ``end``, ``times`` [cycles x phases],
        ``control_*``); offsets ``node_at``, ``out_at``, ``pass_at`` [cycles + 1] into arrays with one entry
        per drafted node (``node_*``), emitted token (``out_*``) and forward pass (``pass_*``, seconds from
        the cycle's start). Missing integers are -1, missing floats NaN; columns of nodes, tokens and passes
        that are missing throughout are left out.

    Raises
    ------
    TraceError
        If the trace holds several runs or no cycles.
    """
    one = trace if prompts is None else trace.select(prompt=prompts)
    run, cycles = one.run, one.cycles
    if not len(cycles):
        raise TraceError("the trace holds no cycles: nothing can be shown")
    emitted = _names("out", ("token", "position", "origin", "p", "order", "odds"))
    table = one.arrow([*_names("node", (*FIRST, "threshold")), *emitted, *PASSES])
    weighed = table.column("node_threshold").null_count < len(table)
    nodes, outs, passes = (_at(table, f"{g}_{n}") for g, n in PARTS)
    arrays: Arrays = {name: _small(cycles[name]) for name in ("cycle", "context", "keep")}
    arrays["times"] = phase_times(cycles).astype(np.float32)
    arrays |= {"node_at": _small(nodes), "out_at": _small(outs), "pass_at": _small(passes)}
    words: dict[str, list[str]] = {"status": list(schema.STATUSES), "phase": list(PHASES)}
    for name in ("stop", "end"):
        arrays[name], words[name] = _coded(cycles[name])
    for name in (c for c in cycles.columns if c.startswith("control_")):
        arrays[name] = cycles[name].to_numpy(np.float32)
    arrays |= _group(table, "node", FIRST, np.diff(nodes), words)
    arrays |= _group(table, "out", ("token", "position", "p"), np.diff(outs), words)
    origin = flattened(table.column("out_origin"), np.diff(outs)).to_pylist()
    index = kind_numbers(run["method"])
    arrays["out_kind"] = np.array([index.get(each or "plain", 0) for each in origin], np.uint8)
    if run.get("canvas"):
        arrays |= {name: _small(cycles[name].astype(np.float64)) for name in ("block", "refreshed")}
        arrays |= _group(table, "out", ("order", "odds"), np.diff(outs), words)
    shown, arrays["out_by"], arrays["out_gone"] = _texts(one, outs, arrays["out_token"].tolist())
    arrays["out_text"], words["text"] = _coded(shown)
    size = np.diff(passes)
    arrays |= _group(table, "pass", ("model", "tokens", "duration"), size, words)
    began = flattened(table.column("pass_start"), size).to_numpy(zero_copy_only=False).astype(np.float64)
    arrays["pass_start"] = (began - np.repeat(cycles["start"].to_numpy(np.float64), size)).astype(np.float32)

    ids = np.unique(np.concatenate([arrays["node_token"], arrays["out_token"]]).astype(np.int64))
    return _header(one, words, ids.tolist(), weighed), arrays


def _header(one: Trace, words: dict[str, list[str]], ids: list[int], weighed: bool) -> Json:
    """Build the header; `weighed` says whether nodes have a threshold."""
    run, own, pieces = one.run, _own_signals(one), one.pieces
    filled, bent = run.get("canvas"), _bent_by(run)
    return {
        "run": _facts(run),
        "loop": run.get("pseudocode") or LOOP,
        "at": f" at {bent}" if bent else "",
        "before": f", before {bent}" if bent else "",
        "notes": _notes(one),
        "words": words,
        "kinds": KINDS_SENT,
        # on a canvas the score is the log-odds of the confidence, so only the confidence is shown
        "signals": [
            own["node"].pop(row[0], row)
            for row in SIGNALS
            if (weighed or row[0] not in FINER or row[0] in own["node"])
            and not (filled and row[0] == "score")
        ]
        + list(own["node"].values()),
        "controls": list(own["cycle"].values()),
        "canvas": filled and filled | {"first": starts_with_first(filled)},
        "keys": KEYS,
        "fates": FATES,
        "short": SHORT,
        "stops": STOPS,
        "ends": ENDS,
        "prompts": _prompts(one),
        "pieces": {str(token): _piece(pieces, token) for token in ids},
        "chunk": CHUNK,
        "chunks": -(-len(one.cycles) // CHUNK),
    }


def _own_signals(trace: Trace) -> dict[str, dict[str, OwnSignal]]:
    """Signals that the method declares or records beyond the schema's columns, by level and name.

    Each is (array, heading, meaning, minimum, maximum); a node signal's array name omits ``node_``.
    """
    rows: dict[str, dict[str, OwnSignal]] = {"node": {}, "cycle": {}}
    fixed = {name for name, *_ in SIGNALS}
    for signal in trace.signals.to_dict("records"):
        level, name = signal["level"], signal["signal"]
        frame, column = (trace.nodes, name) if level == "node" else (trace.cycles, f"control_{name}")
        if column not in frame:  # declared but never recorded
            continue
        values = frame[column].to_numpy(np.float64)
        values = values[np.isfinite(values)]
        if not len(values):
            continue
        array = column if level == "cycle" or name in fixed else f"own_{name}"
        heading = visible(schema.Signal(name, signal["unit"], level=level).heading[:HEADING])
        least, most = min(0.0, float(values.min())), max(0.0, float(values.max()))
        rows[level][name] = (array, heading, visible(signal["meaning"]), least, most if most > least else 1.0)
    return rows


class Chunks:
    """Sequence of the per-node details, in chunks of `CHUNK` cycles; the rows are those of `columns`.

    Parameters
    ----------
    trace : Trace
        A trace of one run.
    prompts : iterable of int, optional
        The prompts to include; all by default.
    """

    def __init__(self, trace: Trace, prompts: Iterable[int] | None = None) -> None:
        self._trace = trace if prompts is None else trace.select(prompt=prompts)
        self._texts: dict[int, str] = {}  # by token, for tokens of the chunks built so far
        predicted = _names("pred", ("node", "position", "odds", "entropy", "top_token", "top_p"))
        drafted = _names("node", (*LATER, "token", "top_token", "top_p"))
        self._table = self._trace.arrow(["top_k", *predicted, *drafted])
        recorded = self._trace.signals
        self._own = [
            name for name in recorded.loc[recorded["level"] == "node", "signal"] if name in self._trace.nodes
        ]
        self._node_at = _at(self._table, "node_token")

    def __len__(self) -> int:
        return -(-len(self._table) // CHUNK)

    def __getitem__(self, number: int) -> tuple[Json, Arrays]:
        """Return the header and arrays of a chunk.

        The arrays are the offsets ``node_at`` and ``pred_at`` [cycles + 1]; ``top_k`` [cycles]; the other
        ``pred_*`` columns; the candidates, flat [predictions x top_k] and [nodes x top_k], best first; and
        further ``node_*`` signals.
        """
        if not 0 <= number < len(self):
            raise IndexError(number)
        table = self._table.slice(number * CHUNK, CHUNK)
        nodes, preds = _at(table, "node_token"), _at(table, "pred_node")
        top_k = table.column("top_k").fill_null(0).to_numpy()
        arrays: Arrays = {"node_at": _small(nodes), "pred_at": _small(preds), "top_k": _small(top_k)}
        arrays |= _group(table, "node", LATER, np.diff(nodes), {})
        rows = slice(*self._node_at[[number * CHUNK, min((number + 1) * CHUNK, len(self._table))]])
        for name in self._own:
            arrays[f"node_own_{name}"] = self._trace.nodes[name].to_numpy(np.float32)[rows]
        arrays |= _group(table, "pred", ("node", "position", "odds", "entropy"), np.diff(preds), {})
        tops = [np.zeros(0, np.int64)]
        for group, count in (("pred", np.diff(preds)), ("node", np.diff(nodes))):
            lists = _group(table, group, ("top_token", "top_p"), count * top_k, {})
            arrays |= lists
            tops += [lists[f"{group}_top_token"]] if f"{group}_top_token" in lists else []
        tokens = np.unique(np.concatenate(tops).astype(np.int64))
        ids, pieces = tokens[tokens >= 0].tolist(), self._trace.pieces
        self._texts |= {token: _piece(pieces, token) for token in ids if token not in self._texts}
        header = {"number": number, "pieces": {str(token): self._texts[token] for token in ids}}
        return header, arrays


PARTS = (("node", "token"), ("out", "token"), ("pass", "model"))
PASSES = ["pass_model", "pass_tokens", "pass_start", "pass_duration"]


def _names(group: str, names: Sequence[str]) -> list[str]:
    return [f"{group}_{name}" for name in names]


def _at(table: pa.Table, name: str) -> np.ndarray:
    """Offsets at which each row's list begins; the last one is the total number of entries."""
    return np.concatenate([[0], np.cumsum(np.maximum(list_sizes(table.column(name)), 0))])


def _group(
    table: pa.Table, group: str, names: Sequence[str], size: np.ndarray, words: dict[str, list[str]]
) -> Arrays:
    """Flatten a group's list columns into arrays; columns that are missing throughout are left out.

    The words that codes stand for are added to `words`; a word list already in it keeps its codes.
    """
    columns_of_group: Arrays = {}
    for name in names:
        column = table.column(f"{group}_{name}")
        if size.any() and column.null_count == len(column):  # need not be flattened
            continue
        values = flattened(column, size)
        if len(values) and values.null_count == len(values):
            continue
        if pa.types.is_dictionary(values.type) or pa.types.is_string(values.type):
            key = name if group == "node" else f"{group}_{name}"
            columns_of_group[f"{group}_{name}"], words[key] = _coded_arrow(values, words.get(key))
        elif pa.types.is_floating(values.type):
            columns_of_group[f"{group}_{name}"] = values.to_numpy().astype(np.float32)
        else:
            whole = values.cast(pa.int64()).fill_null(-1)
            columns_of_group[f"{group}_{name}"] = _small(whole.to_numpy())
    return columns_of_group


def _coded_arrow(values: pa.Array, words: list[str] | None) -> tuple[np.ndarray, list[str]]:
    if pa.types.is_dictionary(values.type):
        values = values.cast(pa.string())
    if words is None:
        words = [w for w in pc.unique(values).to_pylist() if w is not None]
    codes = pc.index_in(values, value_set=pa.array(words, pa.string())).fill_null(-1)
    return _small(codes.to_numpy()), [visible(w) for w in words]


def _coded(values: Iterable[Hashable]) -> tuple[np.ndarray, list[str]]:
    """Encode words as integer codes (-1 for a missing word); returns the codes and the words."""
    codes_by_word: dict[str, int] = {}
    codes = [codes_by_word.setdefault(v, len(codes_by_word)) if isinstance(v, str) else -1 for v in values]
    return _small(codes), list(codes_by_word)


def _small(values: ArrayLike) -> np.ndarray:
    """Convert whole numbers to the smallest type that holds them; missing values become -1."""
    whole = np.asarray(values)
    if whole.dtype.kind == "f":
        whole = np.nan_to_num(whole, nan=-1)
    whole = whole.astype(np.int64)
    low, high = (int(whole.min()), int(whole.max())) if whole.size else (0, 0)
    for kind in INTEGERS:
        info = np.iinfo(kind)
        if info.min <= low and high <= info.max:
            return whole.astype(kind)
    raise TraceError(f"a number in the trace is too large to show: {max(high, -low)}")


def kind_numbers(method: str) -> dict[str, int]:
    """Map the origin of an emitted token to its kind, as an index into `KINDS`."""
    index = {name: i for i, name in enumerate(KINDS)}
    return index | {"correction": index["rollback"]} if method in schema.ROLLBACK else index


def _texts(trace: Trace, out_at: np.ndarray, ids: list[int]) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Each emitted token's displayed text, the token that completes it, and the cycle that rolled it back.

    A character that spans several tokens is shown at the last of them; the others are empty. The last array
    holds rows of the cycles' table, or -1 if the token stayed.
    """
    table, pieces = trace.cycles, trace.pieces
    ends = set(trace.run["eos"] or [])
    alone = {token: END if token in ends else _piece(pieces, token) for token in set(ids)}
    shown, by, gone = [alone[token] for token in ids], np.arange(len(ids)), np.full(len(ids), -1)
    if trace.run.get("canvas"):  # a cell shows its own token, regardless of its neighbours
        return shown, _small(by), _small(gone)
    keep, prompt = table["keep"].to_numpy(np.float64), table["prompt"].tolist()
    standing: dict[int, list[int]] = {}
    for i in range(len(table)):
        text = standing.setdefault(prompt[i], [])
        if np.isfinite(keep[i]):
            gone[text[int(keep[i]) :]] = i
            del text[int(keep[i]) :]
        text += range(int(out_at[i]), int(out_at[i + 1]))
    for text in standing.values():
        words = [row for row in text if ids[row] not in ends]
        place = 0
        for joined, group in whole_characters(token_bytes(pieces, (ids[row] for row in words))):
            rows = words[place : place + len(group)]
            place += len(group)
            if len(rows) > 1:
                for row in rows:
                    shown[row], by[row] = "", rows[-1]
                whole = joined if "\ufffd" not in joined else letters(pieces, group)
                shown[rows[-1]] = visible(whole)
    return shown, _small(by), _small(gone)


def _piece(pieces: Mapping[int, bytes], token: int) -> str:
    """One token's text, with invisible characters spelled out and partial characters as ``⟨0xE7⟩``."""
    text = letters(pieces, [token])
    return text if text.isascii() and text.isprintable() else visible(text)


def _notes(one: Trace) -> list[str]:
    """Caveats that the reader needs to interpret the trace correctly."""
    run, unfinished = one.run, cut_off(one)
    notes = [unfinished] if unfinished else []
    if run.get("record") is None:
        notes.append(
            "Only the text was recorded: this trace has no drafts, times or passes (record='judged' keeps "
            "them)."
        )
    if run.get("replayed"):
        notes.append(f"A what-if, not a run: {run['replayed']}.")
    return [visible(note) for note in notes]


def _facts(run: Json) -> Json:
    """The facts about the run that the player shows."""
    names = ("run", "method", "parameters", "sampling", "exactness", "eos", "dtype", "threads", "timing")
    facts = {name: plain_data(run.get(name)) for name in (*names, "record", "pseudocode")}
    return facts | {"model": visible(name_of(run["model"])), "draft": visible(name_of(run["draft"]))}


def _prompts(trace: Trace) -> list[Json]:
    """Each prompt in the order of the cycles: its index, rows ``[first, last)`` of the cycles, and text.

    ``opens`` is the row, counted from ``first``, at which the player opens.
    """
    index = trace.cycles["prompt"].to_numpy()
    by_prompt = trace.prompts.set_index("prompt").to_dict("index") if len(trace.prompts) else {}
    edges = np.flatnonzero(np.diff(index)) + 1
    streams = trace.cycles["source"].notna().any()
    counts = trace.cycles[["drafted", "accepted", "judged"]]
    rows = []
    for first, last in zip([0, *edges.tolist()], [*edges.tolist(), len(index)]):
        row = by_prompt.get(int(index[first]), {})
        facts = {n: row[n] if isinstance(row.get(n), str) else "" for n in ("kind", "language", "text")}
        rows.append(
            {"prompt": int(index[first]), "first": first, "last": last}
            | {name: visible(word) for name, word in facts.items()}
            | {"excerpt": excerpt(facts["text"])}
            | {"updates": _updates(trace.cycles.iloc[first:last], first) if streams else []}
            | {"opens": _teaching_row(counts.iloc[first:last])}
        )
    return rows


def _teaching_row(cycles: pd.DataFrame) -> int:
    """Row of the prompt's most instructive cycle: the first that both accepts and rejects.

    Failing that, it is the first that rejects, then the first that drafts, then the first after the prefill.
    """
    drafted, accepted, judged = (
        cycles[name].fillna(0).to_numpy() for name in ("drafted", "accepted", "judged")
    )
    rejects = judged > accepted
    written = np.arange(len(cycles)) > 0
    for fits in (rejects & (accepted > 0), rejects, drafted > 0, written):
        if fits.any():
            return int(np.argmax(fits))
    return 0


def _updates(cycles: pd.DataFrame, first: int) -> list[Json]:
    """Describe each update of a stream; empty without updates.

    An entry has the update's rows ``[first, last)``, its number, its source, the offset of the new text, the
    number of cache rows kept, a sentence, and the number of displayed tokens.
    """
    entries: list[Json] = []
    before: list[str] = []
    for row, each in enumerate(
        cycles[["update", "context", "source", "reused", "shown"]].to_dict("records"), first
    ):
        if isinstance(each["source"], str):
            now = updates.words(each["source"])
            common = "".join(now[: updates.same(before, now)])
            source, old = visible(each["source"]), visible(common)
            reused = int(each["reused"]) if each["reused"] == each["reused"] else None
            fresh = source[len(old) :].strip()
            line = (
                f"the source continues with ‘\u2068{fresh}\u2069’"
                if fresh
                else "the source brings nothing new"
            )
            kept = "an unknown number" if reused is None else reused
            line += f"; {kept} of {int(each['context'])} rows of its prompt stay in the cache"
            facts = {"source": source, "new": js_length(old), "reused": reused, "said": line, "shown": None}
            entries.append({"update": int(each["update"]), "first": row} | facts)
            before = now
        if entries:
            entries[-1]["last"] = row + 1
            if each["shown"] == each["shown"] and each["shown"] is not None:
                entries[-1]["shown"] = int(each["shown"])
    return entries


# ---------------------------------------------------------------- bytes


def js_length(text: str) -> int:
    """Length of a text in JavaScript, where a character beyond U+FFFF, for example an emoji, counts twice."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def pack(header: Json, arrays: Mapping[str, np.ndarray]) -> bytes:
    """Serialise the header and arrays to bytes, which `unpack` in shared.js reads without a copy.

    The layout is the header's length (4 bytes, little endian), the header as JSON with the arrays' types,
    offsets and lengths, then the arrays, each aligned to 8 bytes. Equal arrays are stored once; an array
    whose entries are all equal is stored as one entry.
    """
    index: dict[str, tuple[str, int, int, bool]] = {}
    buffers: list[bytes] = []
    seen: dict[tuple[str, bytes], int] = {}
    place = 0
    for name, array in arrays.items():
        kind = array.dtype.newbyteorder("<").str[1:]
        same = array.size > 1 and bool((array == array.flat[0]).all())
        kept = array.flat[:1] if same else array
        data = np.ascontiguousarray(kept, array.dtype.newbyteorder("<")).tobytes()
        if (kind, data) not in seen:
            seen[kind, data] = place
            buffers.append(data + bytes(-len(data) % ALIGN))
            place += len(buffers[-1])
        index[name] = (kind, seen[kind, data], array.size, same)
    text = json.dumps({"header": header, "arrays": index}, ensure_ascii=False, allow_nan=False)
    words = text.encode("utf8", "replace")
    words += b" " * (-(len(words) + 4) % ALIGN)
    return struct.pack("<I", len(words)) + words + b"".join(buffers)
