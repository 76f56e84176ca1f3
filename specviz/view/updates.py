"""Reduce a stream's updates to the data that renderers (HTML, image, text) draw: the fate of each word.

A :class:`Ribbon` is one stream's decode, one row per update. The *display* and the *draft* of the next update
are separate: a word's fate refers to the display (kept, rewritten, new, hidden), its `reuse` to the draft
(reused from the previous output, or newly written), like the underlines in Table 7 of Zeng et al. In scripts
without spaces, each character is a word; punctuation is separate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import isnan
from typing import TYPE_CHECKING, TypeAlias

import regex

from specviz.errors import TraceError
from specviz.escape import visible
from specviz.rules.retranslation import displayed
from specviz.rules.speculative import common_prefix
from specviz.schema import ENDS, Metadata
from specviz.trace import Trace, is_trace, listed, whole_characters
from specviz.trace.text import begun_text, token_bytes
from specviz.view.picture import Numbers, cut_off, milliseconds, name_of, prompts

if TYPE_CHECKING:
    import pandas as pd

Traces: TypeAlias = "Trace | Sequence[Trace] | Mapping[str, Trace]"


# A word's possible fates on the display, with their meanings; renderers choose the looks.
FATES = {
    "kept": "unchanged since the previous update, as is everything before it",
    "rewritten": "replaces another word",
    "new": "newly added",
    "hidden": "written but not displayed (mask-k); still part of the next draft",
    "erased": "was displayed and is erased: everything after the first change",
}
# Origin of a token in an output, which the marks under the words show.
REUSES = {
    "draft": "reused from the previous output, verified in one pass",
    "unreviewed": "reused from the previous output, not verified",
    "": "newly written, token by token",
}
# Scripts that do not separate words by spaces: Thai, Lao, Burmese, Khmer, kana, Han and their signs.
UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u312f\u31a0-\u31ff\u3400-\u9fff\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff"
)
SPACE, CHAR = r"[\s\x1c-\x1f]", r"[^\s\x1c-\x1f]"  # as in str.isspace
LETTER = rf"[[\p{{L}}\p{{N}}]--[{UNSPACED}]]"
# What belongs to the character before it: a mark, a joiner and what it joins, an emoji's skin tone.
JOINED = rf"[\p{{M}}\u200d\U0001f3fb-\U0001f3ff]|(?<=\u200d){CHAR}"
INNER = r"['’-](?=[\p{L}\p{N}])"  # within a word: Emma's, state-of-the-art
WORD = regex.compile(
    rf"{SPACE}*(?:{LETTER}(?:{LETTER}|{JOINED}|{INNER})*|{CHAR}(?:{JOINED})*)(?:{SPACE}+\Z)?|{SPACE}+",
    regex.V1,
)
LANGUAGES = {
    "chinese": "zh", "english": "en", "french": "fr", "german": "de", "japanese": "ja", "spanish": "es",
    "vietnamese": "vi",
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """Consecutive words with one fate and one origin."""

    text: str  # including the spaces before its words
    words: int
    fate: str
    reuse: str


@dataclass(frozen=True)
class Row:
    """One update.

    Parameters
    ----------
    update : int
    arrival : float
        Seconds on the stream's clock; NaN if it has none.
    source : (str, str, str)
        The prefix shared with the previous source, the removed rest of that source, and the new text.
    words : tuple of str
        The output, displayed words first, each with the spaces before it; of an interrupted update the
        previous display, which stays.
    reuse : tuple of str
        Origin of each word, a key of `REUSES`.
    shown : int
        Number of displayed words.
    kept : int
        Number of leading displayed words that are unchanged from the previous display.
    erased : tuple of str
        The rest of the previous display, after those words.
    draft : tuple of (text, status)
        The drafted text, in runs of one status.
    counts : dict of str to int
        Tokens ``drafted``, ``accepted``, ``unreviewed``, ``emitted``; ``reused`` rows of the KV cache (None
        if unknown) and ``prompt`` tokens.
    prefill, seconds : float
        Seconds for the prompt, and seconds after it.
    end : str
    """

    update: int
    arrival: float
    source: tuple[str, str, str]
    words: tuple[str, ...]
    reuse: tuple[str, ...]
    shown: int
    kept: int
    erased: tuple[str, ...]
    draft: tuple[tuple[str, str], ...]
    counts: Mapping[str, int | None]
    prefill: float
    seconds: float
    end: str

    @property
    def fates(self) -> tuple[str, ...]:
        """The fate of each word."""
        before = self.kept + len(self.erased)
        return tuple(
            "hidden" if i >= self.shown else "kept" if i < self.kept else "rewritten" if i < before else "new"
            for i in range(len(self.words))
        )

    @property
    def runs(self) -> tuple[Run, ...]:
        """The words, grouped into runs of one fate and one origin."""
        runs = []
        marked = zip(self.words, self.fates, self.reuse)
        for (fate, reuse), group in groupby(marked, key=lambda word: word[1:]):
            texts = [text for text, *_ in group]
            runs.append(Run("".join(texts), len(texts), fate, reuse))
        return tuple(runs)

    def count(self, fate: str) -> int:
        """Number of words with this fate."""
        return len(self.erased) if fate == "erased" else self.fates.count(fate)

    @property
    def cache(self) -> str:
        """Reused rows of the KV cache over the prompt's tokens, in words; empty if unknown."""
        reused = self.counts["reused"]
        return "" if reused is None else f"cache {reused}/{self.counts['prompt']}"

    def notes(self, cache: bool = True) -> tuple[str, ...]:
        """Describe the update in short notes; zero counts are left out, except for erasures."""
        notes = [f"{self.count('erased')} erased"]
        notes += [f"{n} {fate}" for fate in ("kept", "rewritten", "new", "hidden") if (n := self.count(fate))]
        c = self.counts
        if c["unreviewed"]:
            notes.append(f"draft: {c['unreviewed']} tokens unseen")
        elif c["drafted"]:
            notes.append(f"draft {c['accepted']}/{c['drafted']} tokens")
        if cache and self.cache:
            notes.append(self.cache)
        took = self.prefill + self.seconds
        if took == took and took > 0:
            notes.append(milliseconds(took))
        return tuple(notes)


@dataclass(frozen=True)
class Ribbon:
    """One stream as one run decoded it.

    Parameters
    ----------
    name : str
        The decoding mode: RT, SSBD with its β, CD, mask-k.
    rows : tuple of Row
        One row per update.
    numbers : tuple of (name, value, meaning)
    """

    name: str
    exactness: str
    model: str
    language: str  # BCP 47, empty if unknown
    index: int
    of: int  # number of streams in the run
    title: str
    rows: tuple[Row, ...]
    numbers: Numbers
    note: str


def check_one_text(
    run: Trace, instead: str = "view.lattice(trace), which draws all its passes in one picture"
) -> None:
    """Refuse (`TraceError`) a run that did not write one text from left to right.

    `instead` names the function that draws a canvas.
    """
    if run.run["canvas"] is not None:
        raise TraceError(f"this run wrote a canvas: use {instead}")
    if is_stream(run):
        raise TraceError("this run decodes a stream: use specviz.flicker(trace) for its updates")


def is_stream(trace: Trace) -> bool:
    """Whether every text of the trace was decoded from a source that arrived in updates."""
    table = trace.arrow(["prompt", "source"])
    with_source = table.filter(table.column("source").is_valid())
    every = set(table.column("prompt").to_pylist())
    return bool(every) and set(with_source.column("prompt").to_pylist()) == every


def words(text: str) -> list[str]:
    """Split a text into words, each with the spaces before it; joined, they give the text.

    In scripts without spaces, a word is a character with its marks. Punctuation is separate.
    """
    pieces: list[str] = WORD.findall(text)
    return pieces


def same(one: Sequence[str], other: Sequence[str]) -> int:
    """Number of leading words that two texts share, ignoring spaces."""
    return common_prefix([word.strip() for word in one], [word.strip() for word in other])


def ribbon(trace: Trace, prompt: int | None = None, k: int | None = None) -> Ribbon:
    """Reduce one stream of one run to the data to draw.

    Parameters
    ----------
    trace : Trace
        A trace of one run.
    prompt : int, optional
        Index of the stream; default: the first.
    k : int, optional
        A display-only mask-k in place of the run's: how many trailing tokens of every update but the last
        are hidden. The result is exact, because such a mask changes only the display.

    Raises
    ------
    TraceError
        If it is not a stream.
    """
    index = prompts(trace)[0] if prompt is None else prompt
    one = trace.select(prompt=index)
    updates = one.updates
    if not len(updates):
        raise TraceError(
            f"this run of {one.run['method']} has no updates: a flicker ribbon needs a source that arrives "
            f"in updates, such as sv.generate(model, sv.streams.fixed_lag(text), 'retranslate')"
        )
    run, rows = one.run, _rows(one, k)
    prompt_row = one.prompts.iloc[0].to_dict() if len(one.prompts) else {}
    facts = [prompt_row[n] for n in ("id", "language") if isinstance(prompt_row.get(n), str)]
    stopped = cut_off(one)
    parameters = run["parameters"] or {}
    return Ribbon(
        name(run),
        str(run["exactness"]),
        name_of(run["model"]),
        LANGUAGES.get(str(parameters.get("target_language", "")).lower(), ""),
        index,
        len(run.get("prompts") or []) or 1,
        ", ".join(facts),
        tuple(rows),
        _numbers(rows, updates),
        stopped,
    )


def _rows(one: Trace, k: int | None) -> list[Row]:
    """One row per update of a stream; `k` is as in `ribbon`."""
    updates, pieces = one.updates, one.pieces
    origins = {int(str(u)): o["origin"].astype(str).tolist() for u, o in one.outputs.groupby("update")}
    drafts = {
        int(str(u)): list(zip(d["token"].tolist(), d["status"].astype(str)))
        for u, d in one.nodes.groupby("update")
    }
    final = int(updates["update"].iloc[-1])
    rows: list[Row] = []
    source: list[str] = []
    display: list[str] = []
    for u in updates.to_dict("records"):
        now = words(u["source"] or "")
        common = same(source, now)
        number = int(u["update"])
        written = whole_characters(token_bytes(pieces, u["ids"]))
        seen = u["shown_text"]
        if k is not None:
            seen = begun_text(pieces, u["ids"][: displayed(len(u["ids"]), k, number == final)])
        shown, reuse, texts = _output(written, origins.get(number, []), seen)
        if u["end"] not in ENDS[:-1]:  # interrupted, or cut off by a kill
            shown, reuse, texts = len(display), [""] * len(display), display
        kept = same(display, texts[:shown])
        rows.append(
            Row(
                number,
                float("nan") if u["arrival"] is None else float(u["arrival"]),
                ("".join(now[:common]), "".join(source[common:]), "".join(now[common:])),
                tuple(texts),
                tuple(reuse),
                shown,
                kept,
                tuple(display[kept:]),
                _draft(drafts.get(number, []), pieces),
                {name: int(u[name]) for name in ("drafted", "accepted", "unreviewed", "emitted")}
                | {
                    "reused": None if isnan(u["reused"]) else int(u["reused"]),
                    "prompt": int(u["prompt_tokens"]),
                },
                float(u["prefill"]),
                float(u["duration"]),
                str(u["end"] or ""),
            )
        )
        source, display = now, texts[:shown]
    return rows


def name(run: Metadata) -> str:
    """The paper's name for a run's decoding mode, with its parameters."""
    own = run["parameters"] or {}
    mode = own.get("mode")
    if mode is None:
        return str(run["method"])
    parts = [
        {"rt": "Re-translation (RT)", "ssbd": "SSBD", "cd": "Continuous decoding (CD)"}.get(mode, str(mode))
    ]
    if mode == "ssbd":
        parts.append(f"β = {own.get('beta'):g}")
    if own.get("k"):
        parts.append(f"mask-k {own['k']}" + (" (display)" if own.get("mask") == "display" else ""))
    return ", ".join(parts)


def _output(
    written: list[tuple[str, list[int]]], origins: list[str], shown_text: str
) -> tuple[int, list[str], list[str]]:
    """The number of displayed words, each word's origin, and the words; the mask may split a word in two."""
    text, came = "", []  # `came` has each character's origin
    place = 0
    for piece, ids in written:
        own = origins[place : place + len(ids)]
        drafted = own and all(o == own[0] for o in own) and own[0] in REUSES
        came += [own[0] if drafted else ""] * len(piece)
        text += piece
        place += len(ids)
    at = min(len(shown_text), len(text))
    first = words(text[:at])
    texts = first + words(text[at:])
    reuse, place = [], 0
    for word in texts:
        own = came[place : place + len(word)]
        reuse.append(own[-1] if all(o == own[-1] for o in own[len(word) - len(word.lstrip()) :]) else "")
        place += len(word)
    return len(first), reuse, texts


def _draft(nodes: Sequence[tuple[int, str]], pieces: Mapping[int, bytes]) -> tuple[tuple[str, str], ...]:
    """A draft's text in runs of one status; a character has the status of its first token."""
    parts: list[tuple[str, str]] = []
    place = 0
    for text, ids in whole_characters(token_bytes(pieces, (token for token, _ in nodes))):
        status = nodes[place][1]
        place += len(ids)
        if parts and parts[-1][1] == status:
            parts[-1] = (parts[-1][0] + text, status)
        else:
            parts.append((text, status))
    return tuple(parts)


def _numbers(rows: Sequence[Row], updates: pd.DataFrame) -> Numbers:
    """The stream's metrics over all updates; those that do not apply are left out."""
    erased, final = sum(r.count("erased") for r in rows), rows[-1].shown
    total = {n: float(updates[n].sum()) for n in ("drafted", "accepted", "unreviewed", "emitted")}
    seconds, prefill = float(updates["duration"].sum()), float(updates["prefill"].sum())
    reused, prompt = float(updates["reused"].sum(skipna=False)), float(updates["prompt_tokens"].sum())
    unseen = "; the target never verified them" if total["unreviewed"] else ""
    taken = total["accepted"] + total["unreviewed"]
    ratios = (  # name, above and below the line, form, meaning
        ("erased a word", erased, final, "{:.2f}",
         f"{erased} words erased from the display, over {final} words of the final text: normalized "
         f"erasure, counted here in words; specviz.metrics counts it in tokens of sacrebleu's tokenizer"),
        ("A/D", total["accepted"], 0 if unseen else total["drafted"], "{:.2f}",
         "accepted draft tokens over drafted ones"),
        ("A/O", taken, total["emitted"] if total["drafted"] else 0, "{:.2f}",
         f"reused draft tokens over written tokens{unseen}"),
        ("cache reused", reused, prompt if reused == reused else 0, "{:.0%}",
         "prompt tokens whose keys and values were kept, over all prompt tokens"),
        ("tokens/s", total["emitted"], seconds, "{:,.0f}",
         "output tokens per second, from the first output token on (without the prompt's time)"),
    )  # fmt: skip
    whole = ("in all", milliseconds(seconds + prefill), "the time of all updates, including their prompts")
    return (
        ("updates", f"{len(rows)}", "how often the source grew or changed, including the first time"),
        *((name, form.format(above / below), why) for name, above, below, form, why in ratios if below),
        *([whole] if seconds > 0 else []),
    )


def side_by_side(traces: Traces, prompt: int | None = None) -> list[Ribbon]:
    """The ribbons of several runs over one stream.

    Parameters
    ----------
    traces : Trace, list of Trace, or dict of name to Trace
        Every run of every trace is used.
    prompt : int, optional
        Index of the stream; default: the first.

    Raises
    ------
    TraceError
        If a run is not of a stream, or the sources differ.
    """
    given = named(traces)
    ribbons = [ribbon(run, prompt) for _, run in given]
    names = distinct([label or r.name for (label, _), r in zip(given, ribbons)], [run for _, run in given])
    for r, label in zip(ribbons[1:], names[1:]):
        if not alike(r, ribbons[0]):
            raise TraceError(
                f"{names[0]} and {label} did not decode the same stream: their sources differ; runs can be "
                f"shown side by side only for one source"
            )
    return [replace(r, name=visible(label)) for r, label in zip(ribbons, names)]


def widest(ribbons: Sequence[Ribbon]) -> int:
    """Width of the widest row in words, erased words included."""
    return max(1, *(max(len(row.words), row.kept + len(row.erased)) for one in ribbons for row in one.rows))


def slowest(ribbons: Sequence[Ribbon]) -> float:
    """Seconds of the slowest update; 0 if none was timed."""
    took = [row.prefill + row.seconds for one in ribbons for row in one.rows]
    return max((seconds for seconds in took if seconds == seconds), default=0.0)


def same_cache(ribbons: Sequence[Ribbon]) -> bool:
    """Whether the runs have the same numbers of prompt tokens and reused cache rows at every update."""
    counts = [[(row.counts["reused"], row.counts["prompt"]) for row in one.rows] for one in ribbons]
    return all(each == counts[0] for each in counts)


def alike(one: Ribbon, other: Ribbon) -> bool:
    """Whether two ribbons have the same source."""
    return [row.source for row in one.rows] == [row.source for row in other.rows]


def distinct(names: list[str], runs: Sequence[Trace]) -> list[str]:
    """Make names distinct: add the differing parameters to repeated names, and a number if none differ.

    ``beta`` and ``mode`` are not added, because a ribbon's name already contains them.
    """
    settings = [run.run["parameters"] or {} for run in runs]
    out: list[str] = []
    times = Counter[str]()
    for name, own in zip(names, settings):
        same = [other for n, other in zip(names, settings) if n == name]
        differ = [k for k in own if k not in ("beta", "mode") and any(o.get(k) != own[k] for o in same)]
        full = ", ".join([name, *(f"{k} {own[k]}" for k in differ)])
        times[full] += 1
        out.append(full if times[full] == 1 else f"{full} ({times[full]})")
    return out


def named(traces: Traces) -> list[tuple[str, Trace]]:
    """Every run of the given traces, with the name given to it (empty if there is none)."""
    if isinstance(traces, Mapping):
        pairs = [(str(label), trace) for label, trace in traces.items()]
    else:
        pairs = [("", trace) for trace in listed(traces)]
    runs = [
        (label if len(parts) == 1 else "", run)
        for label, trace in pairs
        for parts in [is_trace(trace).split()]
        for run in parts
    ]
    if not runs:
        raise TraceError("no run to draw")
    return runs
