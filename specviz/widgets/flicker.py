"""The live flicker ribbon: a cursor over the updates, and sliders for β and k with precomputed answers.

The browser computes nothing. For every k it receives where each output is cut, and for every β which recorded
run answers it and up to which update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import traitlets as t

from specviz.errors import TraceError
from specviz.escape import spaced, visible
from specviz.rules.retranslation import exactness
from specviz.trace import Trace
from specviz.view import updates
from specviz.view.flicker import block, figure, marks
from specviz.view.picture import badge
from specviz.view.updates import FATES, Ribbon, Row, Traces, alike, distinct, name, named, ribbon
from specviz.whatifs import whatif
from specviz.widgets.assets import script, style
from specviz.widgets.columns import Json, js_length, pack
from specviz.widgets.stateful import Stateful, Value

MOST_K = 10
RECORDED = "recorded"
BETAS = tuple(round(0.05 * i, 2) for i in range(21))
FATED = ("erased", "kept", "rewritten", "new", "hidden")  # as flicker.js numbers them
KEYS = (
    ("← →", "the previous or next update"),
    ("Home End", "the first or last update"),
    ("space", "play or pause, at the stream's own pace"),
    ("[ ]", "less or more β"),
    ("- +", "hide fewer or more tokens (k)"),
    ("D", "show what was drafted"),
    ("P", "projector mode: everything larger"),
    ("?", "this list; Escape closes it"),
)
REUSES = ["", "draft", "unreviewed"]


@dataclass(frozen=True)
class Answer:
    """The what-if answer for a β: the recorded run it comes from, up to which update, and how certain it is.

    ``exactness`` is that of a run with this β, not of the run that provides the answer.
    """

    run: int
    until: int  # number of updates that are answered
    badge: str
    why: str
    exactness: str


@dataclass
class Column:
    """One run, or several runs that differ only in β.

    Parameters
    ----------
    name : str
    runs : list of Trace
    ribbons : list of Ribbon
        The ribbon of each run, as recorded.
    betas : dict of float to Answer
        Empty if the runs do not use β or cannot be replayed.
    k : int
        Number of tokens that the runs hid.
    masked : str
        Why another k cannot be shown; empty if it can.
    """

    name: str
    runs: list[Trace]
    ribbons: list[Ribbon]
    betas: dict[float, Answer]
    k: int
    masked: str

    @property
    def ks(self) -> list[int]:
        """The values of k that can be shown."""
        return [self.k] if self.masked else sorted({*range(MOST_K + 1), self.k})


def columns(traces: Traces, prompt: int | None = None) -> list[Column]:
    """Group the runs into columns of a live ribbon; see `specviz.flicker`.

    Raises
    ------
    TraceError
        If a run does not decode a stream, or the sources differ.
    """
    groups: list[list[tuple[str, Trace]]] = []
    for label, run in named(traces):
        group = next((g for g in groups if not label and not g[0][0] and _siblings(g[0][1], run)), None)
        if group is None:
            groups.append(group := [])
        group.append((label, run))
    made = []
    values = sorted({*BETAS, *(beta for group in groups for beta in _own([run for _, run in group]))})
    names = distinct([g[0][0] or name(g[0][1].run) for g in groups], [g[0][1] for g in groups])
    for label, group in zip(names, groups):
        runs = [run for _, run in group]
        ribbons = [ribbon(run, prompt) for run in runs]
        own = runs[0].run["parameters"] or {}
        short = label.replace(f", β = {own['beta']:g}", "") if own.get("mode") == "ssbd" else label
        hidden = bool(own.get("k")) and own.get("mask") == "draft"
        why = "its mask also applies to the draft: another k needs a rerun" if hidden else ""
        made.append(Column(short, runs, ribbons, _betas(runs, ribbons, values), int(own.get("k") or 0), why))
    for column in made:
        for one in column.ribbons:
            if not alike(one, made[0].ribbons[0]):
                raise TraceError(
                    f"{made[0].name} and {one.name} did not decode the same stream: their sources differ; "
                    f"runs can be shown side by side only for one source"
                )
    return made


def _siblings(one: Trace, other: Trace) -> bool:
    """Whether two runs differ only in β."""
    a, b = ({k: v for k, v in (run.run["parameters"] or {}).items() if k != "beta"} for run in (one, other))
    same = all(one.run[k] == other.run[k] for k in ("method", "model", "sampling"))
    return same and a == b and a.get("mode") == "ssbd"


def _own(runs: Sequence[Trace]) -> list[float]:
    """The β of each run of a column; empty if β has no effect or the run samples."""
    parameters = [run.run["parameters"] or {} for run in runs]
    if parameters[0].get("mode") != "ssbd" or (runs[0].run["sampling"] or {}).get("temperature"):
        return []
    return [float(each["beta"]) for each in parameters]


def _betas(runs: Sequence[Trace], ribbons: Sequence[Ribbon], values: Sequence[float]) -> dict[float, Answer]:
    """For every β of the slider that all columns share, the answer that covers the most updates."""
    own = _own(runs)
    if not own:
        return {}
    count = len(ribbons[0].rows)
    try:
        limits = [partings(run, one.index, values) for run, one in zip(runs, ribbons)]
    except TraceError:  # the trace records too little to replay
        return {}
    answers = {}
    for beta in values:
        if beta in own:
            run = own.index(beta)
            answers[beta] = Answer(run, count, RECORDED, "this run was recorded", ribbons[run].exactness)
            continue
        run = max(range(len(runs)), key=lambda i: limits[i][beta][0])
        until, why = limits[run][beta]
        base, sure = f"from the run with β = {own[run]:g}", exactness("ssbd", beta, True)
        if until < count:
            words = f"exact before update {until}" if until else "needs a rerun"
            answers[beta] = Answer(run, until, words, f"{base}; {why}", sure)
        else:
            answers[beta] = Answer(run, count, "exact", f"{base}: every verdict is the same", sure)
    return answers


def table(made: Sequence[Column]) -> Json:
    """Build the JSON lookup table for the browser."""
    first = made[0].ribbons[0]
    every = [one for c in made for one in c.ribbons]
    same_source, most = updates.same_cache([c.ribbons[0] for c in made]), max(updates.slowest(every), 1e-9)
    owns = {c.k for c in made}
    ks = {k for c in made for k in c.ks}
    return {
        "title": "Stream" + (f" ({visible(first.title)})" if first.title else ""),
        "model": visible(first.model),
        "language": first.language or None,
        "keys": KEYS,
        "fates": FATES,
        "betas": sorted({beta for c in made for beta in c.betas}),
        "ks": [*([-1] if len(owns) > 1 else []), *sorted(ks)],
        "sources": [_source(row, same_source) for row in first.rows],
        "unit": updates.widest(every),
        "columns": [
            {
                "name": visible(c.name),
                "masked": c.masked,
                "k": c.k,
                "betas": [_answer(beta, answer) for beta, answer in c.betas.items()],
                "runs": [_run(c, run, one, same_source, most) for run, one in zip(c.runs, c.ribbons)],
            }
            for c in made
        ],
    }


def _answer(beta: float, answer: Answer) -> list[float | str | Json]:
    """Encode the answer for a β: run, number of updates, badge, reason, and the exactness of its text."""
    sure = {"exactness": answer.exactness, "kind": badge(answer.exactness)}
    return [beta, answer.run, answer.until, answer.badge, answer.why, sure]


def _source(row: Row, same_source: bool) -> list[str | float | None]:
    """Encode an update's source: label, arrival, its old, removed and new text, and the reused cache rows."""
    arrived = row.arrival if np.isfinite(row.arrival) else None
    label = f"{row.update}" + ("" if arrived is None else f", {arrived:.4g} s")
    common, gone, new = (visible(part).strip() for part in row.source)
    cache = row.cache if same_source else ""
    fresh = f"{' ' * bool(gone)}{new}" if gone or new else "no change"
    return [label, arrived, "… " * bool(common), gone, fresh, cache]


def _run(column: Column, run: Trace, one: Ribbon, same_source: bool, most: float) -> Json:
    """Encode one run: the data that does not depend on k, and for every k how its words are cut."""
    left_out = ("updates", "erased a word", "cache reused")
    return {
        "exactness": one.exactness,
        "kind": badge(one.exactness),
        "numbers": [f"{v} {n}" for n, v, _ in one.numbers if n not in left_out],
        "rows": [_row(row, same_source, most) for row in one.rows],
        "cuts": {k: _cuts(one if k == column.k else ribbon(run, one.index, k)) for k in column.ks},
    }


def _row(row: Row, same_source: bool, most: float) -> tuple[str, list[list[str]], list[str], list[float]]:
    """Encode an update: text, marked draft, notes on its cost, and the widths in percent of its two bars."""
    notes = [word for word in row.notes(not same_source) if word.split(" ")[-1] not in FATES]
    draft = [[*marks(status, spaced(text))] for text, status in row.draft] or [["", "none"]]
    took = [round(100 * max(0.0, t) / most, 1) for t in (row.prefill, row.seconds) if t == t]
    return "".join(row.words), draft, notes, took


def _cuts(masked: Ribbon) -> Json:
    """For one k, group the words of each update into spans of one fate, as the browser draws them.

    Returns
    -------
    dict
        ``erased``: the erasure metric as text; ``rows``: for each update, one ``[fate, origin, characters,
        words]`` per span, fate being an index into `FATED`. Erased text is ``[0, from, to, words]``, from and
        to being offsets into the text displayed by the previous update. Both count as `js_length` does.
    """
    cuts: list[list[list[int]]] = []
    before = ""
    for row in masked.rows:
        runs = [[FATED.index(r.fate), REUSES.index(r.reuse), js_length(r.text), r.words] for r in row.runs]
        if row.erased:
            at = sum(r.fate == "kept" for r in row.runs)
            end = js_length(before)
            runs.insert(at, [0, end - js_length("".join(row.erased)), end, len(row.erased)])
        cuts.append(runs)
        before = "".join(row.words[: row.shown])
    erased = next((f"{value} {n}" for n, value, _ in masked.numbers if n == "erased a word"), "")
    return {"erased": erased, "rows": cuts}


class LiveFlicker(Stateful):
    """A flicker ribbon with a cursor; created by ``specviz.flicker(traces, live=True)``.

    These traits reflect the view's state and can be set:

    - ``update``: row of the cursor, from 0; the text displayed at that update appears above the ribbon.
    - ``beta``: one of the slider's values, for columns that use β.
    - ``k``: number of tokens that the display hides; -1, if runs differ, keeps each as recorded.
    - ``playing``: whether the cursor advances by itself, at the stream's own pace.
    - ``theme``: ``auto``, ``light`` or ``dark``; ``projector``: whether everything is larger.
    """

    _esm = script("flicker")
    _css = style("flicker")
    NAME = "the ribbon"
    STATE = ("update", "beta", "k", "playing", "theme", "projector")
    update = t.Int(0).tag(sync=True)
    beta = t.Float(-1.0).tag(sync=True)
    k = t.Int(-1).tag(sync=True)

    def __init__(self, traces: Traces, prompt: int | None = None, **state: Value) -> None:
        self.columns = columns(traces, prompt)
        state.setdefault("update", len(self.columns[0].ribbons[0].rows) - 1)
        owns = {column.k for column in self.columns}
        state.setdefault("k", owns.pop() if len(owns) == 1 else -1)
        recorded = [b for c in self.columns for b, answer in c.betas.items() if answer.badge == RECORDED]
        state.setdefault("beta", recorded[0] if recorded else -1.0)
        header = table(self.columns)
        updates = range(len(header["sources"]))
        self._legal = {"update": updates, "beta": header["betas"] or [-1.0], "k": header["ks"]}
        super().__init__(pack(header, {}), state)

    @t.validate("update", "beta", "k")
    def _legal_value(self, proposal: t.Bunch) -> float:
        name, value = proposal["trait"].name, proposal["value"]
        legal = self._legal[name]
        if value not in legal:
            if list(legal) == [-1.0]:
                raise t.TraitError(f"no run here uses {name}, or its trace cannot be replayed: drop {name}")
            raise t.TraitError(f"{name} takes one of {', '.join(f'{x:g}' for x in legal)}, got {value:g}")
        return float(value) if name == "beta" else int(value)

    def _page(self) -> str:
        still = block([figure([one for column in self.columns for one in column.ribbons[:1]])])
        names = ", ".join(column.name for column in self.columns)
        return self._document("flicker", f"specviz flicker: {names}", still)


def partings(trace: Trace, prompt: int, betas: Sequence[float]) -> dict[float, tuple[int, str]]:
    """For each β, how many updates a run with another β can answer, and why it cannot answer the next."""
    one = trace.select(prompt=prompt)
    answer = whatif(one).retranslate("model", beta=list(betas))
    count, pieces = len(one.updates), one.pieces
    parts = dict.fromkeys(betas, (count, ""))
    for beta, (walk,) in zip(betas, answer.walks):
        if walk.place is not None:
            update, token = walk.place.cycle, walk.place.token
            word = "" if token is None else pieces.get(token, b"").decode("utf8", "replace").strip()
            shown = f" (‘{visible(word)}’)" if word and "\ufffd" not in word else ""
            parts[beta] = update, f"at update {update} {walk.place.why}{shown}"
    return parts
