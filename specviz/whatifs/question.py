"""What one may ask of a saved trace: what would another setting have done?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from specviz.errors import ParameterError, TraceError
from specviz.trace import Written, is_trace, written
from specviz.whatifs import canvases, gap
from specviz.whatifs import walk as replays
from specviz.whatifs.answer import (
    BOUNDED,
    COUNTS,
    EXACT,
    MODELLED,
    RERUN,
    Answer,
    list_places,
    tabulate,
    weakest,
)
from specviz.whatifs.cell import build
from specviz.whatifs.costs import Costs, timed
from specviz.whatifs.gap import Asked, asked
from specviz.whatifs.known import Known, Rounding, read, whole
from specviz.whatifs.tree import NOT_ALL, STALE, Lessons, Trees, lessons
from specviz.whatifs.updates import (
    Choice,
    StreamWalk,
    Told,
    build_updates,
    read_updates,
    replay,
    tabulate_updates,
    tolerance,
)
from specviz.whatifs.walk import TURN, Place, Walk

if TYPE_CHECKING:
    import pandas as pd

    from specviz.trace import Trace


class Setting(NamedTuple):
    """A parameter as a what-if takes it: default, least and greatest legal value, or the choices."""

    default: Any
    low: float = 0
    high: float = 0
    choices: tuple[str, ...] = ()


# What can be asked of the methods that can be replayed, as the methods declare it (a test compares).
METHODS: dict[str, dict[str, Setting]] = {
    "speculative": {"draft_length": Setting(4, 1, 64), "stop": Setting(0.0, 0, 1)},
    "prompt_lookup": {
        "ngram_max": Setting(3, 1, 16),
        "ngram_min": Setting(1, 1, 16),
        "draft_length": Setting(10, 1, 64),
    },
    "bild": {
        "fallback": Setting(0.5, 0, 1),
        "rollback": Setting(2.0, 0, float("inf")),
        "cap": Setting(10, 1, 64),
        "review_end": Setting(False, 0, 1),
    },
    "specdec": {
        "draft_length": Setting(10, 1, 64),
        "top_beta": Setting(3, 1, float("inf")),
        "tau_base": Setting(1.0, 0, float("inf")),
    },
    "cm_asd": {
        "k_max": Setting(10, 1, 64),
        "k_min": Setting(1, 1, 64),
        "alpha": Setting(1.0, 0, 1),
        "tau_base": Setting(0.1, 0, float("inf")),
        "gamma": Setting(0.5, 0, float("inf")),
        "top_beta": Setting(3, 1, float("inf")),
        "w_entropy": Setting(1 / 3, 0, 1),
        "w_margin": Setting(1 / 3, 0, 1),
        "w_softmax": Setting(1 / 3, 0, 1),
        "w_variance": Setting(0.0, 0, 1),
        "margin_scale": Setting(1.0, 0, float("inf")),
        "entropy": Setting("complement", choices=("complement", "as_written")),
        "gap": Setting("as_written", choices=("as_written", "as_described")),
        "adaptive_drafting": Setting(True, 0, 1),
        "adaptive_verification": Setting(True, 0, 1),
        "controller": Setting("look_ahead", choices=("look_ahead", "early_stop")),
    },
    "unispec": {"draft_size": Setting(24, 1, 512), "threshold": Setting(0.05, 0, 1)},
    "retranslate": {
        "mode": Setting("ssbd", choices=("rt", "ssbd", "cd")),
        "beta": Setting(0.2, 0, 1),
        "k": Setting(0, 0, float("inf")),
        "mask": Setting("display", choices=("display", "draft")),
    },
    "ssd": {
        "draft_length": Setting(4, 1, 64),
        "tree": Setting("chain", choices=("chain", "mix")),
        "tail": Setting("stepwise", choices=("stepwise", "shorter")),
    },
}
UNTOLD = "{} cannot be replayed from a trace"
# Why not, of methods of which one might expect it.
NO_TREE = {"eagle": ", for another tree begins cycles at places where this run grew none: rerun it"}
GAPS = ("specdec", "cm_asd")  # methods whose drafts say what the other one would do with them
WEIGHTS = ("w_entropy", "w_margin", "w_softmax", "w_variance")
ALL_CYCLES = "every prediction that a cycle needs is recorded"
VAIN = "; how much was drafted in vain lies between the bounds"
UNSEEN = ", for nobody saw it: sv.densify(trace, model, draft) records it"
BEYOND = ": a draft may go on beyond the {} recorded tokens behind a wrong one, or a choice there is a tie"
TAILED = ", behind a wrong token up to {} more"
PARTS = "exact up to the first cycle where the text would part; the place is named"
ASKED = (
    "exact up to the first cycle where the text would part or no draft of the run stood; the place is named"
)
DRAWN = "every draft that a cycle needs is recorded"
BEYOND_DRAFTS = DRAWN + "; how many tokens were drafted in vain, behind the run's own drafts, is bounded"
SIZE = "the trace does not say how large the draft model's vocabulary is: record it anew"
STOPPED = "the replay had to stop in {} of {} texts, see places; the counts are of the cycles before"
STORED = "exact until a tree grows from what this run never read, a model from there on"
GROWN = "the trees follow from what the passes taught the store, as far as the run read the same"
MODEL = "exact for {} of {} cycles, see places for where that ends; from there on " + STALE
STREAMS = "this is a run of streams, and it decodes prompts"
SHOWS = "what a display hides changes no text"
UPDATES = "exact up to the first update where a stream's text would part; the place is named"
FIRST = "{} of {} updates are told, to the first of each stream whose text would part; see places"
WHOLE = "no stream's text would part"
STATES = "a pass at every state that it would verify is recorded"
CLOSE = "; in {} of {} cycles two choices are closer than passes of different shape may round"
CANVAS = "this run of {} wrote a canvas, which {} does not"
UNTIMED = "how long a pass over several canvases takes is not in prices a token: rerun it"
ROUNDING = 1e-5  # of weights that are given in a few digits
WARM = "the store was warm when the run began, and what it held is not in the record"
NOT_DENSE = "the trace has no dense record of a draft model: sv.densify(trace, model, draft) adds it"


def untold(method: str) -> str:
    """That a method cannot be replayed, and where it needs to be said why."""
    return UNTOLD.format(method) + NO_TREE.get(method, "")


class WhatIf:
    """Questions to the trace of one greedy run; each method answers one, each answer says how sure it is.

    Parameters
    ----------
    trace : Trace
        Of one run. `specviz.generate(..., record="dense")` and `specviz.densify` make those that know most.

    Raises
    ------
    TraceError
        If the trace cannot be asked: several runs, a sampled one, one without prompts.
    """

    def __init__(self, trace: Trace) -> None:
        run = trace.run
        if (run["sampling"] or {}).get("temperature"):
            raise TraceError("a what-if is for greedy runs: another setting would draw other tokens")
        if run["record"] is None:
            raise TraceError(
                "the trace holds the text alone (record=None): record it with 'judged' or 'dense'"
            )
        self.trace = trace
        self._run = run
        self._eos = frozenset(run["eos"] or ())

    @cached_property
    def _read(self) -> tuple[list[Known], Rounding]:
        return read(self.trace)

    @property
    def texts(self) -> list[Known]:
        """What is known of each text."""
        return self._read[0]

    @property
    def rounding(self) -> Rounding:
        """Decisions nearer than this are ties: passes of another shape may turn them."""
        return self._read[1]

    @cached_property
    def costs(self) -> Costs:
        """The run's own s(g)."""
        return Costs.of(self.trace)

    def __repr__(self) -> str:
        own = self._run["method"]
        count = len(self._streams if own == "retranslate" else self._written or self.texts)
        asked = "ssd" if self._written else own
        known = METHODS.get(asked, {})
        lines = [f"What if, of run {self._run['run']} ({count} text{'s' * (count != 1)}):"]
        for name in known:
            badge, why = self.can_answer(name, asked)
            lines.append(f"  {name}: {badge}; {why}")
        if known:
            name, setting = next(iter(known.items()))
            lines.append(f"Ask it with .{asked}({name}={setting.default!r}), a list asks several at once.")
        else:
            lines.append(f"  Nothing: {self._problem(own)}.")
        return "\n".join(lines)

    # -- what can be asked ---------------------------------------------------------------------------

    def can_answer(self, parameter: str, method: str | None = None) -> tuple[str, str]:
        """How sure an answer about a parameter would be at best, and why.

        Parameters
        ----------
        parameter : str
        method : str, optional
            Whose; default the run's own.

        Returns
        -------
        badge, why : str
        """
        method = getattr(method, "name", method) or self._run["method"]
        if method in NO_TREE:
            return RERUN, untold(method)
        if parameter not in METHODS.get(method, {}):
            return RERUN, f"nothing in a trace says what another {parameter} would do"
        problem = self._problem(method)
        if problem:
            return RERUN, problem
        if method == "bild":
            return EXACT, PARTS
        if method in GAPS:
            return EXACT, ASKED
        if method == "prompt_lookup":
            return EXACT, "the drafts follow from the tokens alone"
        if method == "unispec":
            return MODELLED, STORED
        if method == "ssd":
            return EXACT, STATES
        if method == "retranslate":
            shows = parameter in ("k", "mask") and self._run["parameters"]["mask"] == "display"
            return EXACT, f"{SHOWS}; as a draft's, {UPDATES}" if shows else UPDATES
        if not self._dense:
            return RERUN, NOT_DENSE
        if parameter != "stop":
            return EXACT, ALL_CYCLES
        return (EXACT, ALL_CYCLES + TAILED.format(self._tail)) if self._tail else (BOUNDED, self._vain)

    def _problem(self, method: str) -> str:
        """Why nothing can be said of a method; empty if something can."""
        own, lossy = self._run["method"], self._run["exactness"] == "lossy"
        if method not in METHODS:
            return untold(method)
        canvas = self._run["canvas"] is not None
        if method == "ssd" and canvas and lossy:
            return f"this run of {own} passed over states of stepwise decoding"
        if canvas != (method == "ssd"):
            return CANVAS.format(own, method) if canvas else f"this run of {own} wrote no canvas"
        if method == "ssd":
            return ""
        if method == "retranslate":
            return "" if own == "retranslate" else f"the source of this run of {own} stood still"
        if own == "retranslate":
            return STREAMS
        if method == "bild":
            return "" if own == "bild" else f"its text is its own, and this is a run of {own}"
        if method in GAPS:
            if own not in GAPS:
                return f"its text is its own, and this is a run of {own}"
            return "" if self._size else SIZE
        if method == "unispec":
            return self._untaught
        if lossy:
            return f"the text of this run of {own} need not be the target's own"
        if method == "speculative" and not (self._run["dense"] or self._run["draft"]):
            return NOT_DENSE
        return ""

    @property
    def _size(self) -> int | None:
        """How large the drafter's vocabulary is."""
        return whole(((self._run["draft"] or {}).get("shape") or {}).get("vocabulary"))

    @cached_property
    def _asked(self) -> dict[int, Asked]:
        """What the run's drafts said along each text."""
        return {known.prompt: told for known, told in zip(self.texts, asked(self.trace, self.texts))}

    @property
    def _untaught(self) -> str:
        """Why the store cannot be replayed; empty if it can."""
        run = self._run
        if run["method"] != "unispec":
            return f"what its store would hold is not in a run of {run['method']}"
        if ((run["memory"] or {}).get("start") or {}).get("state") != "cold":
            return WARM
        return "" if run["record"] == "all" else NOT_ALL

    @cached_property
    def _written(self) -> list[Written]:
        """The canvases of a run that wrote such."""
        return written(self.trace) if self._run["canvas"] is not None else []

    @cached_property
    def _streams(self) -> list[list[Told]]:
        """What is told of each stream."""
        return read_updates(self.trace)

    @cached_property
    def _lessons(self) -> tuple[list[Lessons], int]:
        """What the run's passes taught of each text, and an id above every token's."""
        found = lessons(self.trace, self.texts, self._run["parameters"]["candidates"])
        seen = [known.ids.max() for known in self.texts]
        seen += [max(token, *row[0]) for lesson in found for _, token, row in lesson.taught]
        return found, int(max(seen)) + 1

    @cached_property
    def _dense(self) -> bool:
        """Whether the drafter's opinion is known at every place that it can be asked about."""
        return all(
            bool((known.draft[: max(0, known.full - len(known.ids))] >= 0).all()) for known in self.texts
        )

    @property
    def _tail(self) -> int:
        """How far the record follows the drafter behind a wrong token."""
        return whole((self._run["dense"] or {}).get("tail")) or 0

    @property
    def _vain(self) -> str:
        """Why an answer is only bounded."""
        return ALL_CYCLES + VAIN + (BEYOND.format(self._tail) if self._tail else UNSEEN)

    # -- the questions -------------------------------------------------------------------------------

    def ask(self, **parameters: Any) -> Answer:
        """What would the run's own method have done with these values of its parameters?

        Parameters
        ----------
        **parameters : number or several
            Of several every combination is a row. What is not named stays as it was.
        """
        method = self._run["method"]
        question = getattr(self, method, None) if method in METHODS else None
        if question is None:
            raise ParameterError(f"{untold(method)}; there is {', '.join(METHODS)}")
        return question(**parameters)

    def speculative(self, **parameters: Any) -> Answer:
        """What would speculative decoding have done, with this drafter, this draft length and this `stop`?

        The text is the target's own whatever is drafted, so the cycles follow from what the drafter says at
        the text's places. Exact with a dense record. With a `stop` above 0, what was drafted behind a
        rejected token is exact as far as the record's tails go, and bounded beyond.

        Parameters
        ----------
        draft_length, stop : number or several
            Default: as in the run, if it was one of speculative decoding.
        """
        return self._answer("speculative", partial(partial, replays.speculative), parameters)

    def prompt_lookup(self, **parameters: Any) -> Answer:
        """What would prompt lookup have done? Exact, from the tokens alone.

        Parameters
        ----------
        ngram_max, ngram_min, draft_length : number or several
        """
        return self._answer("prompt_lookup", partial(partial, replays.prompt_lookup), parameters)

    def bild(self, **parameters: Any) -> Answer:
        """What would BiLD have done with other thresholds? Exact up to where its text would part.

        Parameters
        ----------
        fallback, rollback, cap, review_end : number or several
        """
        return self._answer("bild", partial(partial, replays.bild), parameters)

    def specdec(self, **parameters: Any) -> Answer:
        """What would SpecDec have done? From a run of it or of CM-ASD, as `cm_asd`.

        Parameters
        ----------
        draft_length, top_beta, tau_base : number or several
        """

        def begin(draft_length: int, top_beta: int, tau_base: float) -> Callable[..., Walk]:
            fixed = {"k_max": draft_length, "top_beta": top_beta, "tau_base": tau_base, "gamma": 0.0}
            fixed |= {"adaptive_drafting": False, "adaptive_verification": False}
            return self._gap({name: known.default for name, known in METHODS["cm_asd"].items()} | fixed)

        return self._answer("specdec", begin, parameters)

    def cm_asd(self, **parameters: Any) -> Answer:
        """What would CM-ASD have done with other weights, windows or thresholds? See `specviz.whatifs.gap`.

        From a run of it or of SpecDec. Exact up to where its text would part, or where a window would end so
        that the next draft begins at a place at which no draft of the run stood. How many tokens were sent
        in vain is bounded where the run's own draft was shorter.

        Parameters
        ----------
        k_max, k_min, alpha, tau_base, gamma, top_beta : number or several
        w_entropy, w_margin, w_softmax, w_variance : number or several
            Combinations that do not sum to 1 are left out.
        margin_scale, entropy, gap, adaptive_drafting, adaptive_verification, controller : several, too
        """
        return self._answer("cm_asd", lambda **setting: self._gap(setting), parameters)

    def _gap(self, setting: dict[str, Any]) -> Callable[..., Walk]:
        """The replay of a setting of CM-ASD."""
        size = self._size
        assert size is not None

        def replay(known: Known, eos: frozenset[int], rounding: Rounding) -> Walk:
            return gap.cm_asd(known, eos, rounding, self._asked[known.prompt], size, **setting)

        return replay

    def unispec(self, **parameters: Any) -> Answer:
        """What would UniSpec have done with another draft size or threshold? See `specviz.whatifs.tree`.

        From a run that began cold and was recorded with ``record="all"``. Exact as long as every tree grows
        from what the run read too; from the first that does not it is a model, and `places` names it.

        Parameters
        ----------
        draft_size, threshold : number or several
        """

        def begin(**setting: Any) -> Callable[..., Walk]:
            return Trees(self.texts, *self._lessons, self._run["parameters"] | setting)

        return self._answer("unispec", begin, parameters)

    def retranslate(self, tokenize: str | None = None, **parameters: Any) -> Answer:
        """What would re-translation have done with another bias, mask or mode? See `specviz.whatifs.updates`.

        Exact, update for update, up to the first one of a stream whose text would be another: from there on
        each draft is another, too, and a rerun has to say. What is masked for display alone changes no text,
        so every `k` of a display is exact to the end; the last update that is recorded is taken to be the
        stream's last, in which nothing is hidden. A draft masked by another `k` writes the same text where
        what was cut, or now is not, would have been refused anyway or is what the target would write by
        itself.

        Parameters
        ----------
        tokenize : str, optional
            What erasure is counted in, as in `specviz.metrics.erasure`; ``model`` needs no sacrebleu.
        mode, beta, k, mask : number or text, or several
            Default: as in the run.

        Returns
        -------
        Answer
            Its table has one row a choice: ``streams`` that are told to their end; exact ``updates``, ``of``
            how many; over these ``drafted``, ``accepted`` and ``emitted`` tokens, ``A/D``, ``A/O``,
            ``target_passes``, and what is displayed: ``tokens`` of each stream's last one that is told,
            ``erased`` ones, ``NE``. As `specviz.metrics.by_stream` defines them. In `places` stands the
            ``update``, and what the text would have there. `Answer.trace` gives the updates that are told, as
            a trace.
        """
        grid = self._grid("retranslate", parameters)
        choices = [Choice(**row) for row in grid]
        question = self._question("retranslate", grid)
        if problem := self._problem("retranslate"):
            raise TraceError(f"nothing can be said of retranslate: {problem}")
        run, own = self._run, Choice(*(self._run["parameters"][name] for name in Choice._fields))
        width, twice = tolerance(run), bool(run["parameters"].get("second_pass"))
        rows: list[tuple[Choice, list[StreamWalk]]] = [
            (choice, [replay(told, own, choice, self._eos, width, twice) for told in self._streams])
            for choice in choices
        ]
        table = tabulate_updates(self.trace, rows, tokenize)
        pieces = self.trace.pieces
        places = list_places(
            [(choice._asdict(), list[Walk](walks)) for choice, walks in rows],
            lambda token: pieces.get(token, b"").decode("utf8", "backslashreplace"),
        ).rename(columns={"cycle": "update"})
        badge, least = weakest(table["badge"]), table["updates"].min()
        why = FIRST.format(least, len(self.trace.updates)) if badge == RERUN else WHOLE
        names = table.columns[len(Choice._fields) : -1]
        return Answer(
            question, badge, why, table, places, dict.fromkeys(names, badge),
            [list[Walk](walks) for _, walks in rows], Choice._fields, False,
            lambda row: self._begun(rows[row]), True,
        )  # fmt: skip

    def _begun(self, row: tuple[Choice, list[StreamWalk]]) -> Trace:
        """The updates of a row that are told, as a trace."""
        choice, walks = row
        label = ", ".join([self._run["run"], *(f"{k}={v}" for k, v in choice._asdict().items())])
        return build_updates(self.trace, walks, choice, label)

    def ssd(self, **parameters: Any) -> Answer:
        """What would SSD have done with this draft length and tree? See `specviz.whatifs.canvases`.

        From a run of stepwise decoding or of SSD, under that run's blocks, cache and refreshes. Exact:
        cycles, drafts, verdicts and order are a rerun's, but for near-ties, which `why` counts. Another block
        or cache needs a rerun: it would read other states.

        Parameters
        ----------
        draft_length, tree, tail : number or text, or several
            Default: as in the run, if it was one of SSD.

        Raises
        ------
        ParameterError
            If a draft is longer than the canvas.
        """
        grid = self._grid("ssd", parameters)
        question = self._question("ssd", grid)
        if problem := self._problem("ssd"):
            raise TraceError(f"nothing can be said of ssd: {problem}")
        texts, dtype = self._written, self._run["dtype"] or ""
        sure = self._run["parameters"].get("sure", np.inf)
        cells, most = min(text.length for text in texts), max(row["draft_length"] for row in grid)
        if most > cells:
            raise ParameterError(f"ssd: a draft_length of {most} is more than the canvas' {cells} cells")
        told = [[canvases.ssd(text, dtype, sure, **row) for text in texts] for row in grid]
        close = max(sum(walk.close for walk in walks) for walks in told)
        walks = [list[Walk](row) for row in told]
        rows = list(zip(grid, walks))
        table = tabulate(rows, drafter=False)
        badge, why = weakest(table["badge"]), STATES
        if badge == RERUN:
            stopped = max(sum(walk.place is not None for walk in row) for row in walks)
            why = STOPPED.format(f"up to {stopped}" if len(walks) > 1 else stopped, len(texts))
        if close:
            why += CLOSE.format(f"up to {close}" if len(walks) > 1 else close, int(table["cycles"].max()))

        def cell(row: int) -> Trace:
            label = ", ".join([self._run["run"], *(f"{k}={_said(v)}" for k, v in grid[row].items())])
            return canvases.build(self.trace, texts, walks[row], grid[row], label)

        return Answer(
            question, badge, why, table, list_places(rows, str), dict.fromkeys(COUNTS, badge), walks,
            tuple(METHODS["ssd"]), False, cell,
        )  # fmt: skip

    def clock(self, answer: Answer, costs: Costs | None = None) -> Answer:
        """How long would that have taken? Modelled: each pass at its price, each cycle at its.

        Parameters
        ----------
        answer : Answer
            Of another question.
        costs : Costs, optional
            Default: the run's own (`costs`). Another device's: `Costs.read`.

        Returns
        -------
        Answer
            With the columns ``seconds`` and ``tokens_per_second``, the prefill left out, and the badge
            modelled; its `why` prints how far off the model is on the run's own cycles.
        """
        if self._written:
            raise TraceError(UNTIMED)
        found = costs or self.costs
        seconds = np.array([found.seconds(walks, answer.drafter) for walks in answer.walks])
        table = answer.table.drop(columns="badge")
        table = table.assign(seconds=seconds, tokens_per_second=table["emitted"] / seconds)
        table["badge"] = [weakest([badge, MODELLED]) for badge in answer.table["badge"]]
        if costs is None:
            why = f"from {found.source}; priced by half its cycles, the other half is off by {self.error:.1%}"
        else:
            why = f"from {found.source}; this run's time cannot check it"
        least, largest = min(found.target, default=0), max(found.target, default=0)
        few = min((s.sent + 1 for row in answer.walks for w in row for s in w.steps), default=least)
        if few < least:
            why += f"; passes of fewer than {least} tokens (down to {few}) are priced as {least}"
        sent = max((s.sent_high + 1 for walks in answer.walks for w in walks for s in w.steps), default=0)
        if sent > largest:
            why += f"; passes of more than {largest} tokens (up to {sent}) are extrapolated"
        badges = answer.badges | dict.fromkeys(("seconds", "tokens_per_second"), MODELLED)
        if answer.badge == RERUN:
            why += "; " + answer.why
        badge = weakest([answer.badge, MODELLED])
        return replace(
            answer, question=answer.question + " How long?", badge=badge, why=why, table=table, badges=badges
        )

    @cached_property
    def error(self) -> float:
        """How far off the model is where it was not fitted: |modelled / real - 1|.

        Every second cycle is priced by the means of the others, and the other way round; the larger error.
        """
        cycles = timed(self.trace)
        halves = cycles.iloc[::2], cycles.iloc[1::2]
        found = []
        for part, other in (halves, halves[::-1]):
            if len(part) and len(other):
                costs = Costs.fit(other)
                seconds = costs.each(_steps(part), bool(costs.draft)).sum()
                found.append(abs(float(seconds) / float(part["duration"].sum()) - 1))
        return max(found, default=float("nan"))

    # -- how ----------------------------------------------------------------------------------------

    def _answer(
        self, method: str, begin: Callable[..., Callable[..., Walk]], parameters: dict[str, Any]
    ) -> Answer:
        grid = self._grid(method, parameters)
        question = self._question(method, grid)
        problem = self._problem(method)
        if problem:
            walks = [[Walk([], Place(0, 0, 0, None, problem))] for _ in grid]
        else:
            walks = [self._replay(begin(**setting)) for setting in grid]
        rows = list(zip(grid, walks))
        drafter = method in ("speculative", "bild", *GAPS)
        table = tabulate(rows, drafter)
        pieces = self.trace.pieces
        places = list_places(rows, lambda token: pieces.get(token, b"").decode("utf8", "backslashreplace"))
        badge = weakest(table["badge"])
        badges = {name: BOUNDED if f"{name}_lo" in table else EXACT for name in COUNTS}
        if badge in (RERUN, MODELLED):
            badges = dict.fromkeys(COUNTS, badge)
        why = problem or self._why(method, badge, walks)

        def cell(row: int) -> Trace:
            told = grid[row]
            if method in GAPS:  # a name has a limit, and they have many parameters
                told = {k: v for k, v in told.items() if v != METHODS[method][k].default}
            label = ", ".join([self._run["run"], *(f"{k}={_said(v)}" for k, v in told.items())])
            return build(self.trace, self.texts, walks[row], method, grid[row], label)

        return Answer(
            question, badge, why, table, places, badges, walks, tuple(METHODS[method]), drafter, cell
        )

    def _why(self, method: str, badge: str, walks: list[list[Walk]]) -> str:
        if badge == RERUN:
            stopped = max(sum(walk.place is not None for walk in row) for row in walks)
            words = STOPPED.format(f"up to {stopped}" if len(walks) > 1 else stopped, len(self.texts))
            return (
                words
                if method in ("bild", "prompt_lookup", "unispec", *GAPS) or self._dense
                else f"{words}; {NOT_DENSE}"
            )
        if badge == MODELLED:
            told = [sum(walk.exact for walk in row) for row in walks]
            least = int(np.argmin(told))
            return MODEL.format(told[least], sum(len(walk.steps) for walk in walks[least]))
        if badge == BOUNDED:
            return BEYOND_DRAFTS if method in GAPS else self._vain
        if method in GAPS:
            return DRAWN
        if method == "unispec":
            return GROWN
        return "the drafts follow from the tokens alone" if method == "prompt_lookup" else ALL_CYCLES

    def _replay(self, replay: Callable[..., Walk]) -> list[Walk]:
        walks: list[Walk] = []
        for before, known in zip([None, *self.texts], self.texts):
            # A later turn's prompt holds the answers before it.
            again = before is not None and known.turn > 0 and before.prompt == known.prompt - 1
            if again and walks[-1].place is not None:
                walks.append(Walk([], Place(known.prompt, 1, 0, None, TURN)))
            else:
                walks.append(replay(known, self._eos, self.rounding))
        return walks

    @staticmethod
    def _question(method: str, grid: list[dict[str, Any]]) -> str:
        """What is asked, in words."""
        varied = {name: list(dict.fromkeys(row[name] for row in grid)) for name in METHODS[method]}
        words = [f"{name} = {_spell(values)}" for name, values in varied.items()]
        return f"What if {method} had run with {', '.join(words)}?"

    def _grid(self, method: str, parameters: dict[str, Any]) -> list[dict[str, Any]]:
        """Every combination of the parameters' values."""
        known = METHODS[method]
        for name in parameters:
            if name not in known:
                raise ParameterError(
                    f"{method} has no parameter {name!r}; a what-if takes {', '.join(known)}"
                )
        own = (self._run["parameters"] or {}) if method == self._run["method"] else {}
        values = []
        for name, setting in known.items():
            given = parameters.get(name, own.get(name, setting.default))
            several = given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
            checked = [check(name, value, setting) for value in several]
            if not checked:
                raise ParameterError(f"{name} has no values")
            values.append(checked)
        grid = [dict(zip(known, each)) for each in itertools.product(*values)]
        if method == "prompt_lookup":
            grid = [row for row in grid if row["ngram_min"] <= row["ngram_max"]]
            if not grid:
                raise ParameterError("ngram_min must be at most ngram_max")
        if method == "cm_asd":
            grid = [row for row in grid if abs(sum(row[name] for name in WEIGHTS) - 1) <= ROUNDING]
            if not grid:
                raise ParameterError(f"the weights {', '.join(WEIGHTS)} must sum to 1")
            grid = [row for row in grid if row["k_min"] <= row["k_max"]]
            if not grid:
                raise ParameterError("k_min must be at most k_max")
        return grid


def check(name: str, value: Any, setting: Setting) -> Any:
    """A parameter's value in its type.

    Raises
    ------
    ParameterError
        If it has another type or lies outside the range.
    """
    kind = type(setting.default)
    if kind is str:
        if value in setting.choices:
            return value
        raise ParameterError(f"{name} must be one of {', '.join(setting.choices)}, got {value!r}")
    if kind is bool:
        if isinstance(value, bool | np.bool_):
            return bool(value)
        raise ParameterError(f"{name} must be True or False, got {value!r}")
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not number or value != value or (kind is int and value != int(value)):
        raise ParameterError(f"{name} must be {'a whole' if kind is int else 'a'} number, got {value!r}")
    if not setting.low <= value <= setting.high:
        raise ParameterError(f"{name} must lie in [{setting.low:g}, {setting.high:g}], got {value:g}")
    return kind(value)


def _steps(cycles: pd.DataFrame) -> list[replays.Step]:
    """Real cycles as steps."""
    return [
        replays.Step(
            row.prompt, row.cycle, row.keep, row.sent, row.sent, row.drafted, row.drafted, row.accepted,
            row.cut, row.unreviewed, row.emitted, row.stop,
        )
        for row in cast(Any, cycles.itertuples())
    ]  # fmt: skip


def _spell(values: list[Any]) -> str:
    """A parameter's values in words."""
    if len(values) > 4:
        return f"{_said(values[0])} ... {_said(values[-1])}"
    return " or ".join(map(_said, values))


def _said(value: Any) -> str:
    return str(value) if isinstance(value, bool | str) else f"{value:g}"


def whatif(trace: Trace) -> WhatIf:
    """Ask a saved trace what another setting would have done; see `WhatIf` for the questions.

    Examples
    --------
    >>> found = specviz.whatif(trace).speculative(draft_length=range(1, 9))  # doctest: +SKIP
    >>> found.badge, found.table  # doctest: +SKIP
    >>> found.trace(draft_length=8)  # doctest: +SKIP
    """
    return WhatIf(is_trace(trace))
