"""Reduce a trace to the data that the renderers (HTML, image, text) draw.

A :class:`Picture` holds one prompt's decode: spans of text with their origins, cycles with their times, and
the drafter's confidence in each token. The three renderers read nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from specviz import metrics, schema
from specviz.escape import visible, written_out
from specviz.schema import Metadata
from specviz.trace import Trace, whole_characters
from specviz.trace.text import token_bytes

if TYPE_CHECKING:
    import pandas as pd

    from specviz.view.canvas import Canvas

NAMED = schema.PHASES  # phases that the trace times
PHASES = (*NAMED, "rest")  # with the rest of a cycle's time, so that they add up to its duration
PHASE_HUES = dict(zip(PHASES, ("#56b4e9", "#0072b2", "#e69f00", "#999999", "#cfcfcf")))


@dataclass(frozen=True)
class Kind:
    """The origin of a token: its word, its mark (never colour alone), its hue and its terminal colour.

    The hues are Okabe and Ito's, which colour-blind readers can distinguish.
    """

    word: str
    mark: str
    hue: str
    code: str  # ANSI colour code
    meaning: str


KINDS = {
    "plain": Kind("target alone", "", "#8a8a8a", "", "written by the target alone, one pass for one token"),
    "draft": Kind("accepted draft", "", "#0072b2", "34", "drafted and accepted"),
    "unreviewed": Kind("unreviewed", "?", "#56b4e9", "36", "drafted and written without verification"),
    "bonus": Kind("bonus", "+", "#009e73", "32", "the target's extra token after a fully accepted draft"),
    "correction": Kind(
        "correction", "×", "#d55e00", "33;1", "the target's token that replaces a rejected one"
    ),
    "rollback": Kind(
        "rollback", "↶", "#d55e00", "33;1", "the large model took a token back and wrote its own"
    ),
    "resampled": Kind("resampled", "~", "#cc79a7", "35", "drawn from the residual after a rejection"),
    "fallback": Kind("fallback", "▾", "#e69f00", "33", "the small model handed over to the large one"),
    "parallel": Kind(
        "in parallel", "∥", "#cc79a7", "35", "on a canvas: placed in the same pass as a more confident cell"
    ),
}
# A draft token's possible fates, in the order of the legends. The confidence lanes draw them.
FATES = {
    "accepted": "accepted",
    "rejected": "rejected",
    "unjudged": "sent, not judged: after a rejection, off the path, or only read",
    "unreviewed": "written, not sent",
    "cut": "cut: by the end of the text or a limit",
    "unsent": "drafted, not sent",
    "below_budget": "drafted, not sent: the tree's budget went to better scores",
}

FATE_WORDS = {fate: words.partition(":")[0] for fate, words in FATES.items()} | {"unjudged": "not judged"}

MOST_TRIED = 4  # maximum number of a tree's rejected tokens that are written out
# The drafter's signals about the tokens that it drafts: a description of each, and the method parameters that
# are thresholds on it.
BELIEFS = {
    "confidence": ("The drafter's confidence in each draft token", ("fallback", "stop")),
    "score": ("The score of each drafted node", ("threshold",)),
    "weighted confidence": ("The drafter's weighted confidence in each draft token", ()),
}


@dataclass(frozen=True)
class Span:
    """A piece of text of whole characters; it has several tokens if a character needs them."""

    text: str  # bytes that are not UTF-8 are written as ⟨0xFF⟩
    kind: str
    cycle: int
    position: int
    tokens: tuple[int, ...]
    p: float  # the target's probability of its first token
    opens: bool  # first span of its cycle


@dataclass(frozen=True)
class Cycle:
    """One draft-verify cycle: its start, times and token counts."""

    number: int
    start: float  # seconds from the prompt's first cycle
    times: tuple[float, ...]  # seconds in each of PHASES; their sum is the cycle's duration
    pause: float  # seconds from its end to the next cycle (recording and other work); part of no cycle
    drafted: int
    sent: int
    judged: int
    accepted: int
    emitted: int
    stop: str
    passes: int  # passes of the target; may be 0
    lost: str  # text of the draft tokens that were sent and dropped: the rejected one and everything after it

    @property
    def label(self) -> str:
        """Accepted over sent; a dash if nothing was sent."""
        return f"{self.accepted}/{self.sent}" if self.sent else "–"


@dataclass(frozen=True)
class Belief:
    """A draft token: its position, the drafter's confidence (see `Picture.belief`) and its status."""

    position: int
    value: float
    status: str
    more: str = ""  # its other signals, its gap and the allowed gap


Numbers = tuple[tuple[str, str, str], ...]  # (name, value, meaning)


@dataclass(frozen=True)
class Picture:
    method: str
    exactness: str
    model: str
    draft: str
    index: int
    of: int  # number of texts in the run
    kind: str  # kind of task and language, if the prompt has them
    prompt: str
    spans: tuple[Span, ...]
    counts: tuple[tuple[str, int], ...]  # tokens of each kind; one span's tokens may be of several kinds
    prefill: Cycle | None
    cycles: tuple[Cycle, ...]
    beliefs: tuple[Belief, ...]
    belief: str  # the signal that their values are, a key of `BELIEFS`
    threshold: float | None
    limit: str  # name of the threshold's parameter; empty without one
    numbers: Numbers  # metrics of this text
    silent: bool  # only the text was recorded
    canvas: Canvas | None  # how the canvas was filled, if the run fills one
    note: str  # why the text is incomplete; empty if it is not

    @property
    def name(self) -> str:
        """The text's number among the run's texts."""
        return f"text {self.index + 1} of {self.of}" if self.of > 1 else "text"

    @property
    def phases(self) -> dict[str, float]:
        """Seconds in each phase that occurs, over all cycles; they add up to the cycles' durations."""
        total = {name: sum(c.times[i] for c in self.cycles) for i, name in enumerate(PHASES)}
        return {name: seconds for name, seconds in total.items() if seconds > 0}

    @property
    def drafts(self) -> bool:
        """Whether anything was drafted."""
        return any(c.drafted for c in self.cycles)

    @property
    def why_no_beliefs(self) -> str:
        """Message in place of the drafter's confidence; empty if there is confidence to show."""
        if any(np.isfinite(b.value) for b in self.beliefs):
            return ""
        if self.silent:
            return "Only the text was recorded."
        return "The drafter gave no confidence." if self.drafts else "Nothing was drafted."

    @property
    def sentence(self) -> str:
        """Description of the beliefs."""
        return BELIEFS[self.belief][0]

    @property
    def threshold_name(self) -> str:
        """Description of the threshold."""
        return f"{self.limit} threshold" if self.limit != "threshold" else self.limit


# Markers with which chat templates begin and end the user's turn.
USER = re.compile(
    r"<\|?(?:im_start|start_of_turn|start_header_id)\|?>user(?:<\|end_header_id\|>)?|<\|user\|>|\[INST\]"
)
ENDED = re.compile(r"<\|?(?:im_end|end_of_turn|eot_id|end|assistant)\|?>|\[/INST\]|</s>")


def milliseconds(seconds: float) -> str:
    """Format a duration as the player does."""
    if not isfinite(seconds):
        return "not recorded"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    digits = 2 if seconds < 0.01 else 1 if seconds < 0.1 else 0
    return f"{seconds * 1e3:.{digits}f} ms"


def excerpt(prompt: str, most: int = 90) -> str:
    """The start of a prompt on one line; for a chat, the start of the user's last turn."""
    *_, last = USER.split(prompt)
    turn = ENDED.split(last)[0].strip() if last != prompt else ""
    line = " ".join(visible(turn or prompt).split())
    return line if len(line) <= most else line[:most] + "…"


def badge(exactness: str) -> str:
    """CSS class for a label in `schema.EXACTNESS`."""
    return {"exact": "yes", "exact up to ties": "ties", "exact in law": "ties"}.get(exactness, "lossy")


def _number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def name_of(model: Metadata | str | None) -> str:
    """The name in a run's `model` or `draft`; empty if there is none."""
    return str(model.get("name", "")) if isinstance(model, Mapping) else str(model or "")


def run_names(runs: Sequence[Metadata]) -> list[str]:
    """Name each run by its method; repeated methods add the differing drafter and parameters, or a number."""
    settings = [{"draft": name_of(run["draft"]), **(run["parameters"] or {})} for run in runs]
    names = []
    for run, own in zip(runs, settings):
        others = [each for other, each in zip(runs, settings) if other["method"] == run["method"]]
        differing = [
            f"{key} {value}" for key, value in own.items() if any(o.get(key) != value for o in others)
        ]
        names.append(run["method"] + (f" ({', '.join(differing)})" if differing else ""))
    return [
        name if names.count(name) == 1 else f"{name} #{names[: i + 1].count(name)}"
        for i, name in enumerate(names)
    ]


def _nodes(trace: Trace) -> float:
    return metrics.sent(trace) / max(1, metrics.steps(trace))


def headline(trace: Trace) -> Numbers:
    """The metrics of a trace of one run, pooled over its texts; those that do not apply are left out."""
    drafts, tree = metrics.drafted(trace) != 0, bool((trace.cycles["width"] > 1).any())
    lossy = trace.run["method"] in schema.ROLLBACK
    shown: list[tuple[bool, str, Callable[[Trace], float], str, str]] = [
        (True, "tokens", metrics.output, "{:,.0f}", "tokens in the final text"),
        (True, "τ", metrics.tau, "{:.2f}",
         "tokens emitted per cycle, including the bonus token; autoregressive has 1.00"),
        (tree, "nodes/cycle", _nodes, "{:.1f}", "nodes of a tree that were sent, without the root"),
        (drafts, "A/D", metrics.acceptance_rate, "{:.2f}",
         "accepted draft tokens over sent ones, without cut ones"),
        (drafts, "A/O", metrics.accepted_share, "{:.2f}",
         "share of the text that is accepted draft tokens"),
        (True, "tokens/s", metrics.tokens_per_second, "{:,.0f}",
         "tokens per second, without the prefill's time"),
        (True, "target passes", metrics.target_passes, "{:,.0f}",
         "forward passes of the target after the prefill"),
        (metrics.draft_passes(trace) != 0, "draft passes", metrics.draft_passes, "{:,.0f}",
         "forward passes of the drafter after the prefill"),
        (lossy, "fallback", metrics.fallback_share, "{:.0%}",
         "cycles that handed over, per token of the text"),
        (lossy, "rollback", metrics.rollback_share, "{:.0%}",
         "cycles that took tokens back, per token of the text"),
    ]  # fmt: skip
    values = ((name, measure(trace), form, why) for applies, name, measure, form, why in shown if applies)
    return tuple((name, form.format(value), why) for name, value, form, why in values if value == value)


def letters(pieces: Mapping[int, bytes], tokens: Iterable[int]) -> str:
    """Decode tokens; bytes that are not UTF-8 become surrogates, which `specviz.escape` writes out."""
    return b"".join(piece for _, piece in token_bytes(pieces, tokens)).decode("utf8", "surrogateescape")


def _written(text: str, tokens: list[int], pieces: dict[int, bytes]) -> str:
    """A span's text, with bytes that are not UTF-8 written out."""
    if "\ufffd" not in text:
        return text
    return re.sub("[\udc80-\udcff]", written_out, letters(pieces, tokens))


def _lost(nodes: pd.DataFrame, pieces: dict[int, bytes]) -> dict[int, str]:
    """Text of the draft tokens that were sent and dropped, by cycle. For a chain it is the whole text; for a
    tree, the best few rejected tokens at the deepest level tried, and the number of the others."""
    lost, names = {}, ["cycle", "parent", "depth", "token", "status"]
    dropped = nodes.loc[nodes["status"].isin(["rejected", "unjudged"]), names]
    dropped = dropped.sort_values("cycle", kind="stable")
    cycle, parent, depth, token, status = (dropped[name].to_numpy() for name in names)
    numbers, starts = np.unique(cycle, return_index=True)
    for number, first, last in zip(numbers.tolist(), starts, [*starts[1:], len(cycle)]):
        shown = token[first:last]
        chain = len(np.unique(parent[first:last])) == len(shown)
        if not chain:
            levels = np.where(status[first:last] == "rejected", depth[first:last], 0)
            shown = shown[(levels > 0) & (levels == levels.max())][:MOST_TRIED]
        tokens = shown.tolist()
        parts = [_written(text, ids, pieces) for text, ids in whole_characters(token_bytes(pieces, tokens))]
        if chain:
            lost[number] = "".join(parts)
        else:
            rest = [f"… {last - first - len(shown)} more"] if last - first > len(shown) else []
            lost[number] = "│".join([*(part.replace("\n", "⏎") for part in parts), *rest])
    return lost


def phase_times(cycles: pd.DataFrame) -> np.ndarray:
    """Seconds that each cycle spent in each phase of `PHASES`.

    Returns
    -------
    array, shape (cycles, phases)
        A row sums to the cycle's duration. If nothing was drafted there is no drafting phase: its time
        counts as rest.
    """
    named = np.nan_to_num(cycles[[f"{name}_time" for name in NAMED]].to_numpy(float))
    if not cycles["drafted"].any():
        named[:, 0] = 0.0
    rest = np.nan_to_num(np.maximum(cycles["duration"].to_numpy(float) - named.sum(1), 0.0))
    return np.column_stack([named, rest])


def _cycles(frame: pd.DataFrame, passes: dict[int, int], lost: dict[int, str]) -> list[Cycle]:
    times = phase_times(frame)
    start = frame["start"].to_numpy(float)
    following = np.append(start[1:], np.nan)
    pause = np.nan_to_num(np.maximum(following - start - times.sum(1), 0.0))
    return [
        Cycle(
            number=int(row["cycle"]),
            start=begin,
            times=tuple(spent),
            pause=gap,
            drafted=int(row["drafted"]),
            sent=int(row["sent"]),
            judged=int(row["judged"]),
            accepted=int(row["accepted"]),
            emitted=int(row["emitted"]),
            stop=str(row["stop"]),
            passes=passes.get(int(row["cycle"]), 0),
            lost=lost.get(int(row["cycle"]), ""),
        )
        for row, begin, spent, gap in zip(
            frame.to_dict("records"), (start - start[:1]).tolist(), times.tolist(), pause.tolist()
        )
    ]


# The drafter's further signals at a node: column name to text.
ALSO = {
    "confidence": "largest probability {:.3f}",
    "entropy": "entropy {:.3f} nats",
    "margin": "softmax margin {:.3f}",
    "logit_margin": "logit margin {:.2f}",
    "variance": "logit variance {:.2f}",
    "score": "score {:.3f}",
}


def _details(
    nodes: pd.DataFrame, belief: str, rollback: float | None, own: Iterable[tuple[str, str]] = ()
) -> list[str]:
    """Each node's gap, allowed gap and signals as text; `own`: names and units of the method's signals."""
    parts: list[list[str]] = [[] for _ in range(len(nodes))]

    def say(values: np.ndarray, words: str) -> None:
        for i in np.flatnonzero(np.isfinite(values)):
            parts[i].append(words.format(values[i]))

    if isinstance(rollback, int | float):  # BiLD, equation 3
        judged = nodes["status"].isin(["accepted", "rejected"]).to_numpy()
        with np.errstate(divide="ignore"):
            gap = np.where(judged, -np.log(nodes["p"].to_numpy(float)), np.nan)
        allowed, words = np.full(len(nodes), float(rollback)), ("−ln p", "α_RB")
    else:
        gap, allowed = nodes["gap"].to_numpy(float), nodes["threshold"].to_numpy(float)
        words = ("gap", "τ")
    for i in np.flatnonzero(~np.isnan(gap) & ~np.isnan(allowed)):
        sign = "≤" if gap[i] <= allowed[i] else ">"
        parts[i].append(f"{words[0]} {gap[i]:.3f} {sign} {words[1]} {allowed[i]:.3f}")
    for name, form in ALSO.items():
        if name != belief:
            say(nodes[name].to_numpy(float), form)
    for name, unit in own:
        say(nodes[name].to_numpy(float), f"{name} {{:.3g}} {unit}".rstrip())
    return [", ".join(each) for each in parts]


def _canvas(trace: Trace, prompt: int) -> Canvas:
    from specviz.view.canvas import canvas  # canvas.py imports this module

    return canvas(trace, prompt)


def picture(trace: Trace, prompt: int) -> Picture:
    """Reduce one prompt of one run to the data to draw.

    Parameters
    ----------
    trace : Trace
        A trace of one run.
    prompt : int
        Index of the prompt.

    Returns
    -------
    Picture
    """
    one = trace.select(prompt=prompt)
    run, cycles, outputs, nodes = one.run, one.cycles, one.outputs, one.nodes
    rollback = run["method"] in schema.ROLLBACK

    kept = outputs[outputs["kept"]]
    filled = run.get("canvas") is not None  # positions are cells, emitted in any order
    if filled:
        kept = kept.sort_values("position", kind="stable")
    # On a canvas, dropped tokens were in other cells; the lattice shows where.
    passes = one.passes
    counts = passes[passes["model"] == "target"]["cycle"].value_counts()
    read = {int(str(number)): int(count) for number, count in counts.items()}
    lanes = _cycles(cycles, read, _lost(nodes, one.pieces) if len(nodes) and not filled else {})

    parameters = run.get("parameters") or {}
    belief, beliefs = _beliefs(one, parameters.get("rollback") if rollback else None, filled)
    prompt_row = one.prompts.iloc[0].to_dict() if len(one.prompts) else {}
    numbers = {n: v for n in BELIEFS[belief][1] if isinstance(v := parameters.get(n), int | float) and v > 0}
    limit, threshold = next(iter(numbers.items()), ("", None))
    note = cut_off(one)
    if not note and (cycles["end"] == "context").any():
        note = "The text is cut off where the model's context, or its sliding window, was full."
    return Picture(
        method=str(run["method"]),
        exactness=str(run["exactness"]),
        model=name_of(run["model"]),
        draft=name_of(run["draft"]),
        index=prompt,
        of=len(run.get("prompts") or []) or max(1, cycles["prompt"].nunique()),
        kind=", ".join(prompt_row[n] for n in ("kind", "language") if isinstance(prompt_row.get(n), str)),
        prompt=str(prompt_row.get("text") or ""),
        spans=_spans(one, kept, prompt, rollback),
        counts=_counts(kept, rollback),
        prefill=next((c for c in lanes if c.number == 0), None),
        cycles=tuple(c for c in lanes if c.number > 0),
        beliefs=beliefs,
        belief=belief,
        threshold=None if threshold is None else float(threshold),
        limit=limit,
        numbers=headline(one),
        silent=run.get("record") is None,
        canvas=_canvas(one, prompt) if filled and run.get("record") is not None else None,
        note=note,
    )


def _spans(one: Trace, kept: pd.DataFrame, prompt: int, rollback: bool) -> tuple[Span, ...]:
    """Split the text into whole characters, each with the origin of its first token."""
    spans: list[Span] = []
    rows = list(zip(*(kept[c].tolist() for c in ("origin", "cycle", "position", "p"))))
    place, seen = 0, -1
    ends = set(one.run["eos"] or [])
    for text, ids in one.tokens(prompt) if len(kept) else ():
        text = "■" if ids[0] in ends else _written(text, ids, one.pieces)
        origin, cycle, position, p = rows[place]
        position = position if position == position else place  # a file may lack a cycle's context length
        place += len(ids)
        kind, number = _kind(origin, rollback), int(cycle)
        spans.append(Span(text, kind, number, int(position), tuple(ids), _number(p), number != seen))
        seen = number
    return tuple(spans)


def _kind(origin: str, rollback: bool) -> str:
    """The kind that a token is drawn as, from its origin."""
    return "rollback" if rollback and origin == "correction" else origin if origin in KINDS else "plain"


def _counts(kept: pd.DataFrame, rollback: bool) -> tuple[tuple[str, int], ...]:
    """The number of tokens of each kind, in the order of the legends."""
    kinds = [_kind(origin, rollback) for origin in kept["origin"].tolist()]
    return tuple((kind, kinds.count(kind)) for kind in KINDS if kind in kinds)


def cut_off(one: Trace) -> str:
    """Message for a text that its run did not finish; empty for a complete text."""
    if one.run.get("complete", True):
        return ""
    last = one.cycles.groupby("prompt")[["end", "source"]].tail(1)  # a stream may have more to come
    ended = last["end"].notna() & (last["end"] != "interrupted")
    if len(last) and last["source"].isna().all() and ended.all():
        return ""
    return f"The run did not finish by itself: {one.run.get('stopped') or 'cut off'}."


def certainty(nodes: pd.DataFrame, filled: bool) -> str:
    """The column with the drafter's certainty of each node: ``confidence`` or ``score``."""
    names = ["confidence", "score"]
    if not filled and nodes.duplicated(["prompt", "update", "cycle", "parent"]).any():
        names.reverse()  # siblings share one confidence, their parent's; the score is a node's own
    return next((name for name in names if nodes[name].notna().any()), "confidence")


def _beliefs(one: Trace, rollback: float | None, filled: bool) -> tuple[str, tuple[Belief, ...]]:
    """Choose the drafter's signal to show, and return its name and its value at each node."""
    nodes, cycles = one.nodes, one.cycles.dropna(subset="context")
    belief = column = certainty(nodes, filled)
    # If both are recorded, a node's verdict follows from its score.
    if nodes["score"].notna().any() and nodes["threshold"].notna().any():
        belief, column = "weighted confidence", "score"
    if not len(nodes):
        return belief, ()
    context = dict(zip(cycles["cycle"].tolist(), cycles["context"].tolist()))
    start = min((at for number, at in context.items() if number > 0), default=0)
    where = nodes["position"]
    if not filled:
        where = nodes["cycle"].map(context) - start + where - 1
    about = one.signals
    about = about[about["signal"].isin(list(nodes)) & ~about["signal"].isin(list(ALSO))]
    units = [visible(unit).replace("{", "{{").replace("}", "}}") for unit in about["unit"]]
    details = _details(nodes, column, rollback, zip(about["signal"], units))
    return belief, tuple(
        Belief(int(w), float(c), str(s), more)
        for w, c, s, more in zip(where, nodes[column], nodes["status"], details)
        if w == w  # the trace may lack the cycle's context length
    )


def prompts(trace: Trace) -> list[int]:
    """Indices of the prompts in a trace of one run, in the order they were decoded."""
    return [int(n) for n in dict.fromkeys(trace.cycles["prompt"].tolist())] or [0]


def first_run(trace: Trace, prompt: int | None) -> tuple[Trace, int]:
    """A trace's first run, and `prompt` or, if it is None, the index of the run's first prompt."""
    run = trace.split()[0]
    return run, prompts(run)[0] if prompt is None else prompt


# The pictures of each run by prompt, which go with the run: its text, HTML and images draw the same ones.
_made: WeakKeyDictionary[Trace, dict[int, Picture]] = WeakKeyDictionary()


def pictures(trace: Trace, most: int = 3) -> list[Picture]:
    """Pictures of the first prompts of each run in turn, at most `most` per run; each is made once."""
    shown = []
    for run in trace.split():
        made = _made.setdefault(run, {})
        for number in prompts(run)[:most]:
            if number not in made:
                made[number] = picture(run, number)
            shown.append(made[number])
    return shown
