"""What a picture of a trace shows, before it is HTML, an image or text.

A :class:`Picture` is one prompt's decoding, reduced to what is drawn: spans of text with how each came about,
cycles with their times, and what the drafter believed of each token. The three renderers read nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specviz.trace import whole_characters

if TYPE_CHECKING:
    from specviz.trace import Trace

PHASES = ("draft", "forward", "verify", "commit")


@dataclass(frozen=True)
class Kind:
    """How a token came about: its word, its mark (never colour alone) and its colours.

    The hues are Okabe and Ito's, which stay apart for colour-blind readers.
    """

    word: str
    mark: str
    hue: str
    meaning: str


KINDS = {
    "plain": Kind("plain", "", "#8a8a8a", "the target alone, one pass for one token"),
    "draft": Kind("draft", "", "#0072b2", "drafted and accepted"),
    "bonus": Kind("bonus", "+", "#009e73", "the target's extra token after a whole draft was accepted"),
    "correction": Kind("correction", "×", "#d55e00", "the target's token in place of a rejected one"),
    "rollback": Kind("rollback", "↶", "#d55e00", "the large model took a token back and wrote its own"),
    "resampled": Kind("resampled", "~", "#cc79a7", "drawn from the residual after a rejection"),
    "fallback": Kind("fallback", "▾", "#e69f00", "the small model handed over to the large one"),
}
STATUS_MARKS = {"accepted": "✓", "rejected": "×", "unjudged": "·", "cut": "|", "pruned": "−", "unsent": "−"}

# Characters that would vanish, command a terminal, or reorder what stands beside them.
UNSEEN = [*(i for i in range(32) if i != 10), 0x7F, *range(0x80, 0xA0)]
UNSEEN += [0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
CONTROL = dict.fromkeys(UNSEEN, "\ufffd")


def visible(text: str) -> str:
    """The text with every control character but the line break made visible."""
    return text.translate(CONTROL)


@dataclass(frozen=True)
class Span:
    """A stretch of text of whole characters; several tokens where a character needs them."""

    text: str
    kind: str
    cycle: int
    position: int
    tokens: tuple[int, ...]
    p: float  # the target's probability of its first token
    opens: bool  # first span of its cycle


@dataclass(frozen=True)
class Cycle:
    """One draft-verify cycle: when, how long, how many."""

    number: int
    start: float  # seconds from the prompt's first cycle
    times: tuple[float, float, float, float]  # draft, forward, verify, commit
    drafted: int
    accepted: int
    emitted: int
    stop: str
    lost: str  # text of the rejected draft token and all behind it


@dataclass(frozen=True)
class Belief:
    """A judged draft token: where it stood, how sure the drafter was, what became of it."""

    position: int
    confidence: float
    status: str


@dataclass(frozen=True)
class Picture:
    method: str
    exactness: str
    model: str
    draft: str
    index: int
    of: int
    prompt: str
    spans: tuple[Span, ...]
    prefill: Cycle | None
    cycles: tuple[Cycle, ...]
    beliefs: tuple[Belief, ...]
    threshold: float | None
    headline: tuple[tuple[str, str, str], ...]  # (name, value, what it means)
    note: str  # what is missing, if the run was cut off


def _number(value: object) -> float:
    return float("nan") if value is None else float(value)  # type: ignore[arg-type]


def _name(model: object) -> str:
    return str(model.get("name", "")) if isinstance(model, dict) else str(model or "")


def headline(trace: Trace) -> tuple[tuple[str, str, str], ...]:
    """The metrics of one run as (name, value, meaning); what does not apply is left out."""
    from specviz import metrics

    row = metrics.summary(trace).iloc[0]
    shown = (
        ("tokens", "output", "{:,.0f}", "tokens in the final text"),
        ("τ", "tau", "{:.2f}", "emitted tokens a cycle, the bonus counted; autoregressive decoding has 1.00"),
        (
            "A/D",
            "A/D",
            "{:.2f}",
            "accepted draft tokens over those sent to the target and not cut by the end",
        ),
        ("A/O", "A/O", "{:.2f}", "share of the output that came from drafts"),
        (
            "tokens/s",
            "tokens_per_second",
            "{:,.0f}",
            "output tokens a second, the prefill's time left out",
        ),
        ("target passes", "target_passes", "{:,.0f}", "forward passes of the target after the prefill"),
        ("draft passes", "draft_passes", "{:,.0f}", "forward passes of the drafter"),
        ("fallback", "fallback_share", "{:.0%}", "cycles that handed over, over generated tokens"),
        ("rollback", "rollback_share", "{:.0%}", "cycles that took tokens back, over generated tokens"),
    )
    found = []
    for name, column, form, why in shown:
        value = row.get(column)
        if value is None or value != value or (column.startswith("draft") and not value):
            continue
        if column in ("A/D", "A/O") and not row["drafted"]:
            continue
        if column.endswith("_share") and row["method"] != "bild":
            continue
        found.append((name, form.format(value), why))
    return tuple(found)


def picture(
    trace: Trace, prompt: int, of: int = 1, numbers: tuple[tuple[str, str, str], ...] | None = None
) -> Picture:
    """Reduce one prompt of one run to what is drawn.

    Parameters
    ----------
    trace : Trace
        A trace of one run.
    prompt : int
        Index of the prompt.
    of : int
        How many prompts the run has, for the caption.
    numbers : tuple, optional
        The run's :func:`headline`, where it is known already.

    Returns
    -------
    Picture
    """
    one = trace.select(prompt=prompt)
    run, cycles, outputs, nodes = one.run, one.cycles, one.outputs, one.nodes
    rollback = run["method"] == "bild"

    kept = outputs[outputs["kept"]]
    place = 0
    spans: list[Span] = []
    rows = list(zip(*(kept[c].tolist() for c in ("origin", "cycle", "position", "p"))))
    seen = -1
    ends = set(run["eos"] or [])
    for text, ids in one.tokens(prompt) if len(kept) else ():
        if ids[0] in ends:
            text = "■"
        origin, cycle, position, p = rows[place]
        place += len(ids)
        kind = "rollback" if rollback and origin == "correction" else origin if origin in KINDS else "plain"
        number = int(cycle)
        spans.append(Span(text, kind, number, int(position), tuple(ids), _number(p), number != seen))
        seen = number

    lost: dict[int, str] = {}
    if len(nodes):
        gone = nodes[nodes["status"].isin(["rejected", "unjudged"])]
        for cycle_number, dropped in gone.groupby("cycle", observed=True):
            pieces = [(t, one.pieces.get(t, b"?")) for t in dropped["token"].tolist()]
            lost[int(str(cycle_number))] = "".join(text for text, _ in whole_characters(pieces))

    first = float(cycles["start"].min()) if len(cycles) else 0.0
    found = []
    for row in cycles.to_dict("records"):
        times = tuple(np.nan_to_num([_number(row[f"{name}_time"]) for name in PHASES]).tolist())
        number = int(row["cycle"])
        found.append(
            Cycle(
                number,
                _number(row["start"]) - first,
                times,
                int(row["sent"]),
                int(row["accepted"]),
                int(row["emitted"]),
                str(row["stop"]),
                lost.get(number, ""),
            )
        )

    beliefs: tuple[Belief, ...] = ()
    if len(nodes):
        context = dict(zip(cycles["cycle"].tolist(), cycles["context"].tolist()))
        start = len((run.get("prompts") or [{}])[prompt].get("tokens") or []) or min(context.values())
        where = nodes["cycle"].map(context) - start + nodes["position"] - 1
        beliefs = tuple(
            Belief(int(w), float(c), str(s)) for w, c, s in zip(where, nodes["confidence"], nodes["status"])
        )

    table = one.prompts
    text = str(table["text"].iloc[0]) if len(table) else ""
    threshold = (run.get("parameters") or {}).get("fallback")
    note = (
        ""
        if run.get("complete", True)
        else f"The run did not end by itself: {run.get('stopped') or 'cut off'}."
    )
    return Picture(
        method=str(run["method"]),
        exactness=str(run["exactness"]),
        model=_name(run["model"]),
        draft=_name(run["draft"]),
        index=prompt,
        of=of,
        prompt=text,
        spans=tuple(spans),
        prefill=next((c for c in found if c.number == 0), None),
        cycles=tuple(c for c in found if c.number > 0),
        beliefs=beliefs,
        threshold=float(threshold) if isinstance(threshold, int | float) else None,
        headline=headline(trace) if numbers is None else numbers,
        note=note,
    )


def pictures(trace: Trace, most: int = 3) -> list[Picture]:
    """Pictures of a trace's first prompts: of each run in turn, at most `most` a run."""
    found = []
    for run in trace.split():
        numbers = list(dict.fromkeys(run.cycles["prompt"].tolist())) or [0]
        top = headline(run)
        found += [picture(run, int(n), len(numbers), top) for n in numbers[:most]]
    return found
