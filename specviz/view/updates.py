"""What became of each word that a stream's display showed, before it is HTML, an image or text.

A :class:`Ribbon` is one stream's decoding, one row per update. What is *displayed* and what the next update
has as its *draft* are apart: a word's fate is the display's (equal to what stood there, rewritten, new,
hidden), its `reuse` is the draft's (taken over from the output before, or written anew), as the underlines of
Table 7 in Zeng et al. Words are words, or characters in scripts without spaces; punctuation stands alone.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from specviz.errors import TraceError
from specviz.escape import visible
from specviz.rules.retranslation import displayed
from specviz.rules.speculative import common_prefix
from specviz.schema import Metadata
from specviz.trace import Trace, is_trace, listed, whole_characters
from specviz.trace.text import begun_text, token_bytes
from specviz.view.picture import Numbers, cut_off, milliseconds, name_of, prompts

if TYPE_CHECKING:
    import pandas as pd

Traces: TypeAlias = "Trace | Sequence[Trace] | Mapping[str, Trace]"


# What became of a word on the display, and what that means. How it looks is the drawing's.
FATES = {
    "kept": "unchanged since the previous update, as is everything before it",
    "rewritten": "replaces another word",
    "new": "newly added",
    "hidden": "written but not displayed (mask-k); still part of the next draft",
    "erased": "was displayed and is erased: everything after the first change",
}
# How a token came into an output: the marks under the words.
REUSES = {
    "draft": "reused from the previous output, verified in one pass",
    "unreviewed": "reused from the previous output, not verified",
    "": "newly written, token by token",
}
# Scripts whose words are not parted by spaces: Thai, Lao, Burmese, Khmer, kana, Han and their signs.
UNSPACED = (
    (0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF), (0x2E80, 0x312F), (0x31A0, 0x31FF),
    (0x3400, 0x9FFF), (0xF900, 0xFAFF), (0xFF66, 0xFF9F), (0x20000, 0x3FFFF),
)  # fmt: skip
JOINER = "\u200d"
LANGUAGES = {
    "chinese": "zh", "english": "en", "french": "fr", "german": "de", "japanese": "ja", "spanish": "es",
    "vietnamese": "vi",
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """Words that stand together and have one fate and one origin."""

    text: str  # with the spaces before its words
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
        Seconds of the stream's clock; NaN where it has none.
    source : (str, str, str)
        What it has in common with the source before, what of that one is gone, and what is new.
    words : tuple of str
        The output, displayed words first, each with the spaces before it.
    reuse : tuple of str
        For each of them where it comes from (`REUSES`).
    shown : int
        How many of them are displayed.
    kept : int
        How many of these begin the display as they began the one before.
    erased : tuple of str
        What was displayed before, after those.
    draft : tuple of (text, status)
        What was drafted, in runs of one status.
    counts : dict of str to int
        Tokens ``drafted``, ``accepted``, ``unreviewed``, ``emitted``; ``reused`` rows of the cache and
        ``prompt`` tokens.
    prefill, seconds : float
        Seconds for the prompt, and from there on.
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
    counts: Mapping[str, int]
    prefill: float
    seconds: float
    end: str

    @property
    def fates(self) -> tuple[str, ...]:
        """Of each word."""
        before = self.kept + len(self.erased)
        return tuple(
            "hidden" if i >= self.shown else "kept" if i < self.kept else "rewritten" if i < before else "new"
            for i in range(len(self.words))
        )

    @property
    def runs(self) -> tuple[Run, ...]:
        """The words in runs of one fate and one origin."""
        runs = []
        marked = zip(self.words, self.fates, self.reuse)
        for (fate, reuse), group in groupby(marked, key=lambda word: word[1:]):
            texts = [text for text, *_ in group]
            runs.append(Run("".join(texts), len(texts), fate, reuse))
        return tuple(runs)

    def count(self, fate: str) -> int:
        """How many words have this fate."""
        return len(self.erased) if fate == "erased" else self.fates.count(fate)

    def notes(self, cache: bool = True) -> tuple[str, ...]:
        """The update in words; what is nought is left out but for erasures."""
        notes = [f"{self.count('erased')} erased"]
        notes += [f"{n} {fate}" for fate in ("kept", "rewritten", "new", "hidden") if (n := self.count(fate))]
        c = self.counts
        if c["unreviewed"]:
            notes.append(f"draft: {c['unreviewed']} tokens unseen")
        elif c["drafted"]:
            notes.append(f"draft {c['accepted']}/{c['drafted']} tokens")
        if cache:
            notes.append(f"cache {c['reused']}/{c['prompt']}")
        took = self.prefill + self.seconds
        if took == took and took > 0:
            notes.append(milliseconds(took))
        return tuple(notes)


@dataclass(frozen=True)
class Ribbon:
    """One stream by one run.

    Parameters
    ----------
    name : str
        How it was decoded: RT, SSBD with its β, CD, mask-k.
    rows : tuple of Row
        One an update.
    numbers : tuple of (name, value, what it means)
    """

    name: str
    exactness: str
    model: str
    language: str  # BCP 47, empty if unknown
    index: int
    of: int  # streams of the run
    title: str
    rows: tuple[Row, ...]
    numbers: Numbers
    note: str


def check_one_text(
    run: Trace, instead: str = "view.lattice(trace), which draws all its passes in one picture"
) -> None:
    """Refuse (`TraceError`) a run that did not write one text from left to right.

    `instead` says what draws a canvas.
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
    """A text in words, each with the spaces before it; joined they are the text.

    In scripts without spaces a word is a character with its marks; punctuation stands alone.
    """
    pieces: list[str] = []
    inner = False  # the last word may go on
    spaces = ""
    for i, char in enumerate(text):
        if char.isspace():
            spaces, inner = spaces + char, False
            continue
        if pieces and not spaces and (_joins(char) or text[i - 1] == JOINER):
            pieces[-1] += char
            continue
        if char in "'’-" and inner and i + 1 < len(text) and text[i + 1].isalnum():
            pieces[-1] += char
            continue
        letter = char.isalnum() and not _unspaced(char)
        if letter and inner:
            pieces[-1] += char
        else:
            pieces.append(spaces + char)
        spaces, inner = "", letter
    if spaces:  # after the last word
        pieces[-1:] = ["".join([*pieces[-1:], spaces])]
    return pieces


def _joins(char: str) -> bool:
    """Whether a character belongs to the one before it: a mark, a joiner, an emoji's colour."""
    return unicodedata.category(char)[0] == "M" or char == JOINER or 0x1F3FB <= ord(char) <= 0x1F3FF


def _unspaced(char: str) -> bool:
    code = ord(char)
    return any(low <= code <= high for low, high in UNSPACED)


def same(one: Sequence[str], other: Sequence[str]) -> int:
    """How many words two texts begin with in common; spaces do not count."""
    return common_prefix([word.strip() for word in one], [word.strip() for word in other])


def ribbon(trace: Trace, prompt: int | None = None, k: int | None = None) -> Ribbon:
    """Reduce one stream of one run to what is drawn.

    Parameters
    ----------
    trace : Trace
        A trace of one run.
    prompt : int, optional
        Which stream; default the first.
    k : int, optional
        Another display-only mask-k than the run's: how many last tokens are hidden, of every update but the
        last. Exact, for such a mask changes nothing but the display.

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
    """A row for each update of a stream; `k` as `ribbon` takes it."""
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
                | {"reused": _whole(u["reused"]), "prompt": int(u["prompt_tokens"])},
                float(u["prefill"]),
                float(u["duration"]),
                str(u["end"] or ""),
            )
        )
        source, display = now, texts[:shown]
    return rows


def name(run: Metadata) -> str:
    """How a run decoded its streams, as the paper calls it."""
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


def _whole(value: float | None) -> int:
    return int(value) if value == value and value is not None else 0


def _output(
    written: list[tuple[str, list[int]]], origins: list[str], shown_text: str
) -> tuple[int, list[str], list[str]]:
    """How many words are displayed, where each comes from, and the words; the mask may cut one in two."""
    text, came = "", []  # of each character
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
    """A draft's text in runs of one status; a character has that of its first token."""
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
    """The stream's figures, all updates together; what does not apply is left out."""
    erased, final = sum(r.count("erased") for r in rows), len(rows[-1].words)
    total = {n: float(updates[n].sum()) for n in ("drafted", "accepted", "unreviewed", "emitted")}
    seconds, prefill = float(updates["duration"].sum()), float(updates["prefill"].sum())
    reused, prompt = float(updates["reused"].sum()), float(updates["prompt_tokens"].sum())
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
        ("cache reused", reused, prompt, "{:.0%}",
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
        Every run of each.
    prompt : int, optional
        Which stream; default the first.

    Raises
    ------
    TraceError
        If one is not a stream, or their sources differ.
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
    """Most words that a row has, or takes back to."""
    return max(1, *(max(len(row.words), row.kept + len(row.erased)) for one in ribbons for row in one.rows))


def slowest(ribbons: Sequence[Ribbon]) -> float:
    """Seconds of the update that took longest; 0 where none was timed."""
    took = [row.prefill + row.seconds for one in ribbons for row in one.rows]
    return max((seconds for seconds in took if seconds == seconds), default=0.0)


def same_cache(ribbons: Sequence[Ribbon]) -> bool:
    """Whether the runs read and reused as many tokens of the prompt at every update."""
    counts = [[(row.counts["reused"], row.counts["prompt"]) for row in one.rows] for one in ribbons]
    return all(each == counts[0] for each in counts)


def alike(one: Ribbon, other: Ribbon) -> bool:
    """Whether two ribbons are of one source."""
    return [row.source for row in one.rows] == [row.source for row in other.rows]


def distinct(names: list[str], runs: Sequence[Trace]) -> list[str]:
    """The names; where one stands twice, with the parameters that differ, and else with a number.

    A ribbon's name holds ``beta`` and ``mode`` already.
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
    """Every run of what was given, with the name that it was given."""
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
