"""Compare two traces of one prompt step by step: where their cycles diverge, why, and at which cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from specviz.errors import TraceError, plural
from specviz.escape import html, visible
from specviz.metrics.cycles import conditions
from specviz.rules.speculative import common_prefix
from specviz.trace import Trace, is_trace
from specviz.view import static
from specviz.view.picture import KINDS, Cycle, Picture, letters, milliseconds, picture, prompts, run_names
from specviz.view.static import Page
from specviz.view.updates import is_stream

if TYPE_CHECKING:
    import pandas as pd

SAME, DRAFT, VERDICT, TEXT = REASONS = ("same", "different draft", "different verdict", "different text")
MEANINGS = {
    SAME: "the same draft, the same verdict",
    DRAFT: "the same text so far, but different tokens were drafted",
    VERDICT: "the same tokens were drafted, but different ones were accepted",
    TEXT: "the tokens written here differ, or the text before them differs",
}
MOST_STEPS = 300  # maximum number on a page; the table has them all
FOLDED = 3  # this many identical steps in a row, or more, are folded into one line

Group: TypeAlias = tuple[int, int]  # a half-open range of cycles: start, stop


@dataclass(frozen=True)
class Side:
    """One run's decode of the prompt.

    Parameters
    ----------
    name : str
    shown : Picture
    tokens : array [tokens of the text]
    ends : array [cycles]
        Length of the text after each cycle, excluding tokens that were rolled back later.
    drafts : list of tuple
        For each cycle: the drafted tokens, their parents and their statuses.
    pieces : dict of int to bytes
    """

    name: str
    shown: Picture
    tokens: np.ndarray
    ends: np.ndarray
    drafts: list[tuple[tuple[int, ...], tuple[int, ...], tuple[str, ...]]]
    pieces: dict[int, bytes]

    @property
    def cycles(self) -> tuple[Cycle, ...]:
        return self.shown.cycles

    def cost(self, group: Group) -> dict[str, float]:
        """Cost of a group of cycles: how many there are, their seconds and their draft tokens."""
        some = self.cycles[slice(*group)]
        return {
            "cycles": len(some),
            "seconds": sum(sum(c.times) for c in some),
            "drafted": sum(c.drafted for c in some),
            "accepted": sum(c.accepted for c in some),
            "unreviewed": sum(fates.count("unreviewed") for *_, fates in self.drafts[slice(*group)]),
        }

    def words(self, group: Group) -> str:
        """Describe how many tokens a group of cycles drafted and how many were accepted."""
        cost = self.cost(group)
        count = "" if cost["cycles"] == 1 else f" in {cost['cycles']:.0f} cycles"
        if not cost["cycles"]:
            return f"{self.name} had ended"
        if not cost["drafted"]:
            return f"{self.name} drafted nothing{count}"
        alone = f", {cost['unreviewed']:.0f} written unreviewed" if cost["unreviewed"] else ""
        accepted = f"of which {cost['accepted']:.0f} accepted{alone}"
        return f"{self.name} drafted {cost['drafted']:.0f}, {accepted}{count}"


@dataclass(frozen=True)
class Step:
    """The fewest cycles of both runs that bring both texts from one common length to the next."""

    start: int
    end: int
    groups: tuple[Group, Group]
    why: str
    detail: str


class Difference(Page):
    """Two traces of one prompt side by side; created by `diff`. It displays itself in a notebook.

    ``table`` has the steps, and ``notes`` has caveats about the comparison.
    """

    def __init__(self, sides: tuple[Side, Side], steps: Sequence[Step], notes: Sequence[str]) -> None:
        self.sides, self.steps, self.notes = sides, list(steps), list(notes)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row per step.

        ``start`` and ``end`` are output positions, and ``text`` is the text of a between them. ``why`` is
        ``same``, ``different draft``, ``different verdict`` or ``different text``; ``detail`` explains it.
        For each side, with the suffix ``_a`` or ``_b``: ``cycle`` (the first one; 0 if the run had ended),
        ``cycles``, ``seconds``, and ``drafted``, ``accepted`` and ``unreviewed`` tokens.
        """
        import pandas as pd

        rows = []
        for step in self.steps:
            first = self.sides[0]
            row: dict[str, float | str] = {
                "start": step.start,
                "end": step.end,
                "text": visible(letters(first.pieces, first.tokens[step.start : step.end].tolist())),
                "why": step.why,
            }
            for side, group, letter in zip(self.sides, step.groups, "ab"):
                some = side.cycles[slice(*group)]
                row[f"cycle_{letter}"] = some[0].number if some else 0
                row |= {f"{name}_{letter}": value for name, value in side.cost(group).items()}
            rows.append(row | {"detail": step.detail})
        return pd.DataFrame(rows)

    @property
    def reasons(self) -> pd.DataFrame:
        """One row per reason: its number of steps, and each side's seconds in them."""
        sums = {"steps": ("why", "size"), "a": ("seconds_a", "sum"), "b": ("seconds_b", "sum")}
        table = self.table.groupby("why", sort=False).agg(**sums)
        table.columns = ["steps", *(f"seconds, {side.name}" for side in self.sides)]
        return table.reindex([name for name in REASONS if name in table.index]).reset_index()

    @property
    def title(self) -> str:
        return f"{self.sides[0].name} and {self.sides[1].name}, in step"

    def _repr_html_(self) -> str:
        parts = [f"<h2>{html(self.title)}</h2>", *_parts(self)]
        return f'<div class="specviz"><style>{static.style()}</style>{"".join(parts)}</div>'

    def _page(self) -> str:
        return static.document(self.title, _parts(self))

    def __repr__(self) -> str:
        reasons = ", ".join(f"{n} {why}" for why, n in zip(self.reasons["why"], self.reasons["steps"]))
        return (
            f"<Difference of {' and '.join(s.name for s in self.sides)}: {len(self.steps)} steps, {reasons}>"
        )


def diff(a: Trace, b: Trace, prompt: int | None = None) -> Difference:
    """Compare two traces of one prompt, cycle by cycle.

    A step is the smallest group of cycles of both runs that takes both texts from one common length to the
    next: for example one cycle of a speculative run and the cycles of a plain run that write the same tokens.
    As long as the texts agree, both sides of a step continue the same text, so their drafts and verdicts can
    be compared.

    Parameters
    ----------
    a, b : Trace
        Each with one run.
    prompt : int, optional
        Index of the prompt, from 0; required if the traces have several.

    Returns
    -------
    Difference
        Displays itself in a notebook; ``table`` has one row per step, ``to_html(path)`` writes a page.

    Raises
    ------
    TraceError
        If a trace has several runs, several prompts without `prompt`, or no cycles of the prompt; if it is of
        a stream or a canvas; or if the prompts or tokenizers differ.
    """
    both = [_one(trace, prompt) for trace in (a, b)]
    notes = _check(both, [trace.split()[0] for trace in (a, b)])
    names = [visible(name) for name in run_names([one.run for one in both])]
    sides = (_side(names[0], both[0]), _side(names[1], both[1]))
    return Difference(sides, _steps(*sides), notes)


def _one(trace: Trace, prompt: int | None) -> Trace:
    """Select one prompt of a trace of one run."""
    runs = is_trace(trace).split()
    if len(runs) != 1:
        raise TraceError(
            f"diff compares two runs, but a trace holds {len(runs)}: choose one with select(run=...)"
        )
    if is_stream(trace):
        raise TraceError("diff compares texts from left to right; streams: specviz.flicker([a, b])")
    if trace.run.get("canvas") is not None:
        raise TraceError("diff compares texts from left to right; canvases: specviz.race([a, b])")
    indices = prompts(trace)
    if prompt is None and len(indices) > 1:
        raise TraceError(
            f"the traces hold {len(indices)} prompts: choose one, for example diff(a, b, prompt=0)"
        )
    return trace.select(prompt=indices[0] if prompt is None else prompt)


def _check(both: Sequence[Trace], whole: Sequence[Trace]) -> list[str]:
    """Raise if the runs cannot be compared; otherwise return notes on the limits of the comparison."""
    records = [(one.run["prompts"] or [{}])[prompts(one)[0]] for one in both]
    ids = [record.get("tokens") or [] for record in records]
    lengths = [len(i) or record.get("length") for i, record in zip(ids, records)]
    shared = both[0].pieces.keys() & both[1].pieces.keys()
    tokenizers = [visible(str(one.run["tokenizer"] or "?")) for one in both]
    complete = all(ids)
    apart = lengths[0] != lengths[1] or (complete and ids[0] != ids[1])
    if any(both[0].pieces[token] != both[1].pieces[token] for token in shared) or (
        apart and tokenizers[0] != tokenizers[1]
    ):
        raise TraceError(
            f"the traces have different tokenizers ({' and '.join(tokenizers)}): their cycles cannot be "
            f"compared"
        )
    if apart:
        raise TraceError("the traces decoded different prompts: diff compares two decodes of one prompt")
    for one in both:
        if not len(one.cycles):
            raise TraceError(f"{one.run['run']} holds no cycles of this prompt")
    notes = [] if complete else ["One trace does not hold the prompt's tokens; only its length was compared."]
    first, second = map(conditions, whole)
    if differ := [word for word in first if first[word] != second[word]]:
        notes.append(f"The runs had different {' and '.join(differ)}: their seconds cannot be compared.")
    if not all(np.isfinite(one.cycles["duration"]).all() for one in both):
        notes.append("One run recorded no times: its seconds are shown as 0.")
    return notes


def _side(name: str, one: Trace) -> Side:
    shown = picture(one, prompts(one)[0])
    outputs, nodes = one.outputs, one.nodes
    kept = outputs[outputs["kept"]]
    numbers = [cycle.number for cycle in shown.cycles]
    counts = kept.groupby("cycle", observed=True).size().reindex(numbers, fill_value=0)
    before = int((kept["cycle"] == 0).sum())  # tokens that the prefill wrote
    by_cycle = {
        int(str(number)): (tuple(part["token"]), tuple(part["parent"]), tuple(part["status"].astype(str)))
        for number, part in nodes.groupby("cycle", observed=True)
    }
    return Side(
        name,
        shown,
        kept["token"].to_numpy(),
        before + counts.to_numpy().cumsum(),
        [by_cycle.get(number, ((), (), ())) for number in numbers],
        one.pieces,
    )


def _steps(a: Side, b: Side) -> list[Step]:
    """Split both runs into steps that end where their texts have the same length."""
    same = common_prefix(a.tokens.tolist(), b.tokens.tolist())
    steps: list[Step] = []
    i = j = start = 0
    while i < len(a.ends) or j < len(b.ends):
        first = (i, j)
        i, j = min(i + 1, len(a.ends)), min(j + 1, len(b.ends))
        while True:
            at, bt = (int(side.ends[k - 1]) if k else start for side, k in ((a, i), (b, j)))
            if at < bt and i < len(a.ends):
                i += 1
            elif bt < at and j < len(b.ends):
                j += 1
            else:
                break
        groups = ((first[0], i), (first[1], j))
        end = max(at, bt)
        why, detail = _reason(a, b, groups, start, end, same)
        steps.append(Step(start, end, groups, why, detail))
        start = end
    return steps


def _reason(
    a: Side, b: Side, groups: tuple[Group, Group], start: int, end: int, same: int
) -> tuple[str, str]:
    """Why two groups of cycles differ: one of `REASONS`, and a sentence."""
    words = "; ".join(side.words(group) for side, group in zip((a, b), groups))
    if a.words(groups[0])[len(a.name) :] == b.words(groups[1])[len(b.name) :]:
        words = f"both{b.words(groups[1])[len(b.name) :]}"
    if same < end:
        texts = [_word(side, same) for side in (a, b)]
        where = f"the texts diverge at token {same}: {a.name} wrote {texts[0]}, {b.name} {texts[1]}"
        return TEXT, where if same >= start else f"after token {same} the texts differ; {words}"
    one, other = (side.drafts[group[0]] for side, group in zip((a, b), groups))
    if one[:2] != other[:2]:
        return DRAFT, words
    if one[2] != other[2] or groups[0][1] - groups[0][0] != groups[1][1] - groups[1][0]:
        return VERDICT, words
    return SAME, words


def _word(side: Side, place: int) -> str:
    if place >= len(side.tokens):
        return "nothing more"
    return f"“{visible(letters(side.pieces, [int(side.tokens[place])]))}”"


# ---------------------------------------------------------------- as HTML


def _parts(shown: Difference) -> list[str]:
    """The parts of a page or notebook output: the notes, each run, the reasons and the steps."""
    parts = [f'<p class="note">{html(note)}</p>' for note in shown.notes]
    for side in shown.sides:
        parts.append(static.head(side.shown) + static.chips(side.shown.numbers, f"{side.name}:"))
    parts += [_bars(shown), _reasons(shown), _rows(shown)]
    return parts


def _bars(shown: Difference) -> str:
    """Render each side as a line of steps, each as wide as its time and coloured by its reason."""
    longest = max(side.cost((0, len(side.cycles)))["seconds"] for side in shown.sides) or 1.0
    lines = []
    for k, side in enumerate(shown.sides):
        x, parts = 0.0, []
        for step in shown.steps[:MOST_STEPS]:
            width = side.cost(step.groups[k])["seconds"] * 100 / longest
            title = f"tokens {_places(step.start, step.end)}: {step.why}; {step.detail}"
            kind = step.why.split()[-1]
            parts.append(
                f'<rect x="{x:.2f}%" y="{22 + 40 * k}" width="{width:.2f}%" height="16" class="d-{kind}">'
                f"<title>{html(title)}</title></rect>"
            )
            x += width
        seconds = milliseconds(side.cost((0, len(side.cycles)))["seconds"])
        label = f'<text x="0" y="{16 + 40 * k}">{html(side.name)}: {seconds} after the prefill</text>'
        lines.append(label + "".join(parts))
    label = "Each run's time, step by step"
    if len(shown.steps) > MOST_STEPS:
        label += f", the first {MOST_STEPS} of {len(shown.steps)} steps"
    counts = Counter(step.why for step in shown.steps[:MOST_STEPS])
    reasons = html("; ".join(f"{why}: {plural(number, 'step')}" for why, number in counts.most_common()))
    return (
        f'<figure><figcaption>{label}.</figcaption><svg width="100%" height="82" role="img" '
        f'aria-label="{label}. {reasons}">{static.tiles("d-")}{"".join(lines)}</svg></figure>'
    )


def _reasons(shown: Difference) -> str:
    a, b = shown.sides
    rows = "".join(
        f'<tr><td><span class="why d-{why.split()[-1]}">{why}</span></td><td>{steps}</td>'
        f"<td>{milliseconds(x)}</td><td>{milliseconds(y)}</td><td>{MEANINGS[why]}</td></tr>"
        for why, steps, x, y in shown.reasons.itertuples(index=False)
    )
    head = f"<th>reason</th><th>steps</th><th>{html(a.name)}</th><th>{html(b.name)}</th><th>meaning</th>"
    return _table("reasons", head, rows)


def _rows(shown: Difference) -> str:
    """Render the steps as a table; long runs of identical steps are folded into one line."""
    a, b = shown.sides
    texts = [_by_cycle(side) for side in shown.sides]
    rows = []
    for same, some in groupby(shown.steps[:MOST_STEPS], key=lambda step: step.why == SAME):
        stretch = list(some)
        if same and len(stretch) >= FOLDED:
            costs = [
                sum(s.cost(step.groups[k])["seconds"] for step in stretch) for k, s in enumerate(shown.sides)
            ]
            text = "".join(texts[0][i] for i in range(stretch[0].groups[0][0], stretch[-1].groups[0][1]))
            times = " and ".join(map(milliseconds, costs))
            rows.append(
                f'<tr class="same"><td>{_places(stretch[0].start, stretch[-1].end)}</td><td colspan="2">'
                f'<span class="text">{text}</span></td><td>same: {len(stretch)} steps, {times}</td></tr>'
            )
            continue
        for step in stretch:
            cells = "".join(
                f"<td>{_cell(side, group, texts[k])}</td>"
                for k, (side, group) in enumerate(zip(shown.sides, step.groups))
            )
            why = f'<span class="why d-{step.why.split()[-1]}">{step.why}</span>: {html(step.detail)}'
            rows.append(f"<tr><td>{_places(step.start, step.end)}</td>{cells}<td>{why}</td></tr>")
    more = len(shown.steps) - MOST_STEPS
    note = f'<p class="note">{more} more steps are in the table.</p>' if more > 0 else ""
    head = f"<th>tokens</th><th>{html(a.name)}</th><th>{html(b.name)}</th><th>why</th>"
    return _table("steps", head, "".join(rows)) + note


def _places(start: int, end: int) -> str:
    """Name the tokens [start, end); a step may write none."""
    if end <= start:
        return "–"
    return f"{start}–{end - 1}" if end - start > 1 else str(start)


def _table(name: str, head: str, rows: str) -> str:
    whole = f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
    place = f'<div class="table" tabindex="0" role="group" aria-label="Table of {name}">'
    return f'{place}<table class="{name}">{whole}</table></div>'


def _by_cycle(side: Side) -> dict[int, str]:
    """Each cycle's written text, coloured, followed by its dropped draft tokens; keyed by cycle index."""
    place = {cycle.number: i for i, cycle in enumerate(side.cycles)}
    texts = dict.fromkeys(range(len(side.cycles)), "")
    for span in side.shown.spans:
        if span.cycle in place:
            mark = f"<sup>{KINDS[span.kind].mark}</sup>" if KINDS[span.kind].mark else ""
            texts[place[span.cycle]] += (
                f'<span class="t {span.kind}">{mark}{static.shown_token(span.text)}</span>'
            )
    for i, cycle in enumerate(side.cycles):
        if cycle.lost:
            texts[i] += f'<s title="sent and dropped">{static.shown_token(cycle.lost)}</s>'
    return texts


def _cell(side: Side, group: Group, texts: dict[int, str]) -> str:
    numbers = [cycle.number for cycle in side.cycles[slice(*group)]]
    if not numbers:
        return "–"
    name = f"cycle {numbers[0]}" if len(numbers) == 1 else f"cycles {numbers[0]}–{numbers[-1]}"
    text = "│".join(texts[i] for i in range(*group))
    cost = milliseconds(side.cost(group)["seconds"])
    return f'<span class="text">{text}</span><span class="cost">{name}, {cost}</span>'
