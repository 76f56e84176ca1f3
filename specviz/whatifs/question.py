"""What-if questions about a saved trace: what would another setting have done?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from specviz.errors import ParameterError, TraceError, plural
from specviz.rules import bild, gap, ngrams, retranslation, speculative, store
from specviz.rules import cells as cell_rules
from specviz.rules.parameters import Parameter
from specviz.trace import Trace, Written, is_trace, written
from specviz.trace.states import BY_BLOCK
from specviz.whatifs import canvases, walk
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
)  # fmt: skip
from specviz.whatifs.cell import build
from specviz.whatifs.costs import Costs, timed
from specviz.whatifs.gap import DraftRecord, GapReplay, read_drafts
from specviz.whatifs.texts import Rounding, Setting, TextRecord, Value, Values, positive, read_texts
from specviz.whatifs.tree import NOT_ALL, STALE, Lessons, Trees, read_lessons
from specviz.whatifs.updates import (
    Choice,
    StreamWalk,
    UpdateRecord,
    build_updates,
    read_updates,
    replay,
    tabulate_updates,
    tolerance,
)  # fmt: skip
from specviz.whatifs.walk import TURN, UNREAD, Place, Step, Walk

if TYPE_CHECKING:
    from specviz.methods import Given

# The methods that can be replayed, with the parameters that a question can change.
METHODS: dict[str, dict[str, Parameter]] = {
    name: {p.name: p for p in parameters}
    for name, parameters in {
        "speculative": speculative.SPECULATIVE,
        "prompt_lookup": ngrams.PROMPT_LOOKUP,
        "bild": bild.BILD,
        "specdec": gap.SPECDEC,
        "cm_asd": gap.CM_ASD,
        "unispec": [p for p in store.UNISPEC if p.name in ("draft_size", "threshold")],
        "retranslate": retranslation.RETRANSLATE,
        "ssd": cell_rules.SSD,
    }.items()
}
# Functions that say why values of a method's parameters are incompatible.
PROBLEMS = {"prompt_lookup": ngrams.problem, "cm_asd": gap.problem}
REPLAYS: dict[str, Callable[..., walk.Replay]] = {
    "speculative": walk.SpeculativeReplay,
    "prompt_lookup": walk.PromptLookupReplay,
    "bild": walk.BiLDReplay,
}
NO_REPLAY = "{} cannot be replayed from a trace"
# Why not, for methods of which a replay might be expected.
NO_TREE = {"eagle": ", because another tree starts cycles at positions where this run grew none: rerun it"}
GAPS = ("specdec", "cm_asd")  # the recorded drafts of either suffice to replay the other
TOKENS_ALONE = "the drafts follow from the tokens alone"
ALL_CYCLES = "every prediction that a cycle needs is recorded"
VAIN = "; the number of rejected draft tokens lies between the bounds"
UNSEEN = ", because it was not recorded: sv.densify(trace, model, draft) records it"
BEYOND = ": a draft may continue beyond the {} recorded tokens after a wrong one, or a choice there is a tie"
TAILED = ", after a wrong token up to {} more"
PARTS = "exact up to the first cycle where the text would diverge; places says where"
DRAFTED_PARTS = (
    "exact up to the first cycle where the text would diverge or the run has no draft; places says where"
)
ALL_DRAFTS = "every draft that a cycle needs is recorded"
BEYOND_DRAFTS = ALL_DRAFTS + "; the number of rejected tokens drafted beyond the run's own drafts is bounded"
SIZE = "the trace does not say how large the draft model's vocabulary is: record it again"
STOPPED = "the replay had to stop in {} of {} texts, see places; the counts are of the cycles before"
STORED = "exact until a tree grows from something this run never read, modelled from there on"
GROWN = "the trees follow from what the store learnt from the passes, as long as the run read the same"
MODEL = "exact for {} of {} cycles, see places for where that ends; from there on " + STALE
STREAMS = "this is a run of streams, but the method decodes prompts"
SHOWS = "hiding text on the display changes no text"
UPDATES = "exact up to the first update where a stream's text would diverge; places says where"
FIRST = "{} of {} updates are answered, up to the first of each stream whose text would diverge; see places"
WHOLE = "no stream's text would diverge"
STATES = "a pass at every state that it would verify is recorded"
CLOSE = (
    "; in {} of {} cycles two choices are closer than the rounding error between passes of different shapes"
)
CANVAS = "this run of {} wrote a canvas, but {} does not write one"
UNTIMED = "prices per token do not cover a pass over several canvases: rerun it"
OTHER_DRAFTER = (
    "the dense record is of {}, and the run drafted with {}: densify it with the run's own drafter"
)
LEFT_OUT = "the store learnt from prompts that are not in this trace: ask about the whole run"
BATCHED = "passes were shared by the rows of a batch, so their times are no single text's: time a run alone"
WARM = "the store was warm when the run began, and its content is not in the record"
NOT_DENSE = "the trace has no dense record of a draft model: sv.densify(trace, model, draft) adds it"


# The best certainty of an answer, and why, for every parameter of a method.
AT_BEST = {
    "bild": (EXACT, PARTS), "specdec": (EXACT, DRAFTED_PARTS), "cm_asd": (EXACT, DRAFTED_PARTS),
    "prompt_lookup": (EXACT, TOKENS_ALONE), "unispec": (MODELLED, STORED), "ssd": (EXACT, STATES),
}  # fmt: skip


def no_replay(method: str) -> str:
    """The message that a method cannot be replayed, with the reason if one might expect otherwise."""
    return NO_REPLAY.format(method) + NO_TREE.get(method, "")


class WhatIf:
    """What-if questions about the trace of one greedy run. Each method answers one; each answer states its
    certainty.

    Parameters
    ----------
    trace : Trace
        A trace of one run. With a dense record it can answer most questions: `specviz.generate(...,
        record="dense")`, `specviz.densify`.

    Raises
    ------
    TraceError
        If the trace holds several runs, a sampled one, or one without a record or prompts.
    """

    def __init__(self, trace: Trace) -> None:
        run = trace.run
        if (run["sampling"] or {}).get("temperature"):
            raise TraceError("what-ifs work only for greedy runs: another setting would sample other tokens")
        if run["record"] is None:
            raise TraceError(
                "the trace holds only the text (record=None): record it with 'judged' or 'dense'"
            )
        texts = run["canvas"] is None and run["method"] != "retranslate"
        # A turn that its conversation left no room for has no tokens, and no cycles.
        prompts = dict(enumerate(run["prompts"] or []))
        if texts and not all(prompts.get(i, {}).get("tokens") for i in set(trace.cycles["prompt"])):
            raise TraceError("the trace holds no prompts (it was redacted): a what-if needs them")
        self.trace = trace
        self._run = run
        self._eos = frozenset(run["eos"] or ())

    @cached_property
    def _records(self) -> tuple[list[TextRecord], Rounding]:
        return read_texts(self.trace)

    @property
    def texts(self) -> list[TextRecord]:
        """The record of each text."""
        return self._records[0]

    @property
    def rounding(self) -> Rounding:
        """Decisions closer than this are ties: passes of a different shape may swap them."""
        return self._records[1]

    @cached_property
    def costs(self) -> Costs:
        """The run's own s(g)."""
        return Costs.of(self.trace)

    def __repr__(self) -> str:
        own = self._run["method"]
        count = len(self._streams if own == "retranslate" else self._written or self.texts)
        method = "ssd" if self._written else own
        parameters = METHODS.get(method, {})
        lines = [f"What if, of run {self._run['run']} ({plural(count, 'text')}):"]
        for name in parameters:
            badge, why = self.can_answer(name, method)
            lines.append(f"  {name}: {badge}; {why}")
        if parameters:
            name, first = next(iter(parameters.items()))
            lines.append(f"Ask it with .{method}({name}={first.default!r}); a list asks for several at once.")
        else:
            lines.append(f"  Nothing: {self._problem(own)}.")
        return "\n".join(lines)

    # -- what can be answered ------------------------------------------------------------------------

    def can_answer(self, parameter: str, method: Given | None = None) -> tuple[str, str]:
        """The best certainty that an answer about a parameter could have, and why.

        Parameters
        ----------
        parameter : str
        method : str, class or Method, optional
            The parameter's method; default: the run's own.

        Returns
        -------
        badge, why : str
        """
        method = str(getattr(method, "name", method) or self._run["method"])
        if method in NO_TREE:
            return RERUN, no_replay(method)
        if parameter not in METHODS.get(method, {}):
            return RERUN, f"a trace cannot tell what another {parameter} would do"
        if problem := self._problem(method):
            return RERUN, problem
        if method in AT_BEST:
            return AT_BEST[method]
        if method == "retranslate":
            shows = parameter in ("k", "mask") and self._run["parameters"]["mask"] == "display"
            return EXACT, f"{SHOWS}; as a draft's, {UPDATES}" if shows else UPDATES
        if not self._dense:
            return RERUN, NOT_DENSE
        if parameter != "stop":
            return EXACT, ALL_CYCLES
        return (EXACT, ALL_CYCLES + TAILED.format(self._tail)) if self._tail else (BOUNDED, self._vain)

    def _problem(self, method: str) -> str:
        """Why no question about a method can be answered; empty if one can."""
        own, lossy = self._run["method"], self._run["exactness"] == "lossy"
        if method not in METHODS:
            return no_replay(method)
        if not len(self.trace.cycles):
            return "the trace holds no text: the run was cut off before its first"
        canvas = self._run["canvas"] is not None
        if method == "ssd" and canvas and lossy:
            return f"this run of {own} skipped states of stepwise decoding"
        if canvas != (method == "ssd"):
            return CANVAS.format(own, method) if canvas else f"this run of {own} wrote no canvas"
        if method == "ssd":
            dual = cell_rules.caches_by_block(self._run["canvas"])
            return BY_BLOCK.format(self._run["run"]) if dual else ""
        if method == "retranslate":
            return (
                "" if own == "retranslate" else f"the source of this run of {own} did not arrive in updates"
            )
        if own == "retranslate":
            return STREAMS
        if method == "bild":
            return "" if own == "bild" else f"it writes its own text, but this is a run of {own}"
        if method in GAPS:
            if own not in GAPS:
                return f"it writes its own text, but this is a run of {own}"
            dense, draft = self._run["dense"] or {}, self._run["draft"] or {}
            if dense and dense.get("name") != draft.get("name"):
                return OTHER_DRAFTER.format(dense.get("name"), draft.get("name"))
            return "" if self._size else SIZE
        if method == "unispec":
            return self._store_problem
        if lossy:
            return f"the text of this run of {own} need not be the target's own"
        if method == "speculative" and not self._run["dense"]:
            # The predictions of an EAGLE layer or of heads depend on where the draft began.
            kind = (self._run["draft"] or {"kind": "none"}).get("kind")
            return "" if kind in (None, "causal", "encoder-decoder") else NOT_DENSE
        return ""

    @property
    def _size(self) -> int | None:
        """Size of the drafter's vocabulary."""
        return positive(((self._run["draft"] or {}).get("shape") or {}).get("vocabulary"))

    @cached_property
    def _drafts(self) -> dict[int, DraftRecord]:
        """What the run's drafts recorded along each text."""
        drafts = read_drafts(self.trace, self.texts)
        return {record.prompt: draft for record, draft in zip(self.texts, drafts)}

    @property
    def _store_problem(self) -> str:
        """Why the store cannot be replayed; empty if it can."""
        run = self._run
        if run["method"] != "unispec":
            return f"the content of its store is not in a run of {run['method']}"
        if ((run["memory"] or {}).get("start") or {}).get("state") != "cold":
            return WARM
        earlier = set(range(max((record.prompt for record in self.texts), default=0)))
        left_out = earlier - set(self.trace.prompts["prompt"])
        if (run["memory"] or {})["start"].get("keep") == "run" and left_out:
            return LEFT_OUT
        return "" if run["record"] == "all" else NOT_ALL

    @cached_property
    def _written(self) -> list[Written]:
        """The run's canvases, if it wrote any."""
        return written(self.trace) if self._run["canvas"] is not None else []

    @cached_property
    def _streams(self) -> list[list[UpdateRecord]]:
        """The record of each stream."""
        return read_updates(self.trace)

    @cached_property
    def _lessons(self) -> tuple[list[Lessons], int]:
        """What the store learnt from the passes of each text, and an id above every token's."""
        lessons = read_lessons(self.trace, self.texts, self._run["parameters"]["candidates"])
        largest = [record.ids.max() for record in self.texts]
        largest += [max(token, *row[0]) for lesson in lessons for _, token, row in lesson.in_order]
        return lessons, int(max(largest)) + 1

    @cached_property
    def _dense(self) -> bool:
        """Whether the drafter's prediction is recorded at every position where it can draft."""
        return all(
            bool((record.draft[: max(0, record.full - len(record.ids))] >= 0).all()) for record in self.texts
        )

    @property
    def _tail(self) -> int:
        """How far the record follows the drafter after a wrong token."""
        return positive((self._run["dense"] or {}).get("tail")) or 0

    @property
    def _vain(self) -> str:
        """Why an answer is only bounded."""
        return ALL_CYCLES + VAIN + (BEYOND.format(self._tail) if self._tail else UNSEEN)

    # -- the questions -------------------------------------------------------------------------------

    def ask(self, **parameters: Values) -> Answer:
        """What would the run's own method have done with these values of its parameters?

        Parameters
        ----------
        **parameters : number or several
            Several values give one row per combination. Parameters that are not named keep their values.
        """
        method = self._run["method"]
        question = getattr(self, method, None) if method in METHODS else None
        if question is None:
            raise ParameterError(f"{no_replay(method)}; there is {', '.join(METHODS)}")
        return question(**parameters)

    def speculative(self, **parameters: Values) -> Answer:
        """What would speculative decoding have done, with this drafter, this draft length and this `stop`?

        The text is the target's own whatever is drafted, so the cycles follow from the drafter's predictions
        along the text. Exact with a dense record. With a `stop` above 0, the tokens drafted after a rejected
        one are exact as far as the record's tails reach, and bounded beyond.

        Parameters
        ----------
        draft_length, stop : number or several
            Default: as in the run, if it used speculative decoding.
        """
        return self._answer("speculative", parameters)

    def prompt_lookup(self, **parameters: Values) -> Answer:
        """What would prompt lookup have done?

        Exact up to a position where the target's two best tokens tie. The drafts follow from the tokens
        alone; a tie is seen in the target's recorded predictions.

        Parameters
        ----------
        ngram_max, ngram_min, draft_length : number or several
        """
        return self._answer("prompt_lookup", parameters)

    def bild(self, **parameters: Values) -> Answer:
        """What would BiLD have done with other thresholds? Exact until its text would diverge.

        Parameters
        ----------
        fallback, rollback, cap, review_end : number or several
        """
        return self._answer("bild", parameters)

    def specdec(self, **parameters: Values) -> Answer:
        """What would SpecDec have done? Like `cm_asd`, needs a run of SpecDec or CM-ASD.

        Parameters
        ----------
        draft_length, top_beta, tau_base : number or several
        """
        return self._answer("specdec", parameters)

    def cm_asd(self, **parameters: Values) -> Answer:
        """What would CM-ASD have done with other weights, windows or thresholds? See `specviz.whatifs.gap`.

        Needs a run of CM-ASD or SpecDec. Exact until its text would diverge, or until a draft would begin at
        a position where the run has no draft. The number of rejected tokens is only bounded if the run's own
        draft was shorter.

        Parameters
        ----------
        k_max, k_min, alpha, tau_base, gamma, top_beta : number or several
        w_entropy, w_margin, w_softmax, w_variance : number or several
            Combinations that do not sum to 1 are left out.
        margin_scale, entropy, gap, adaptive_drafting, adaptive_verification, controller : value or several
        """
        return self._answer("cm_asd", parameters)

    def unispec(self, **parameters: Values) -> Answer:
        """What would UniSpec have done with another draft size or threshold? See `specviz.whatifs.tree`.

        Needs a run that began cold and was recorded with ``record="all"``. Exact as long as every tree grows
        from tokens that the run also read; modelled from the first tree that does not, which `places` names.

        Parameters
        ----------
        draft_size, threshold : number or several
        """
        return self._answer("unispec", parameters)

    def retranslate(self, tokenize: str | None = None, **parameters: Values) -> Answer:
        """What would re-translation have done with another bias, mask or mode? See `specviz.whatifs.updates`.

        Exact, update by update, up to the first update of a stream whose text would differ: from there on
        every draft differs, too, and only a rerun can tell. Masking only the display changes no text, so
        every display `k` is exact to the end; the last recorded update is assumed to be the stream's last, in
        which nothing is hidden. A draft masked by another `k` gives the same text if the tokens that are cut,
        or no longer cut, would have been rejected anyway or are what the target would write by itself.

        Parameters
        ----------
        tokenize : str, optional
            The unit of erasure, as in `specviz.metrics.erasure`; ``model`` needs no sacrebleu.
        mode, beta, k, mask : number or text, or several
            Default: as in the run.

        Returns
        -------
        Answer
            Its table has one row per choice: the ``streams`` replayed to their end, and the exact ``updates``
            ``of`` all. Over these updates it has ``drafted``, ``accepted`` and ``emitted`` tokens, ``A/D``,
            ``A/O`` and ``target_passes``, and for the display ``tokens`` (of each stream's last replayed
            update), ``erased`` and ``NE``, as defined by `specviz.metrics.by_stream`. `places` has the
            ``update`` and the token that the text would have there. `Answer.trace` returns the replayed
            updates as a trace.
        """
        grid, question = self._ask("retranslate", parameters)
        run, own = self._run, Choice(*(self._run["parameters"][name] for name in Choice._fields))
        width, twice = tolerance(run), bool(run["parameters"].get("second_pass"))
        rows: list[tuple[Choice, list[StreamWalk]]] = [
            (choice, [replay(stream, own, choice, self._eos, width, twice) for stream in self._streams])
            for choice in (Choice(**row) for row in grid)
        ]
        table = tabulate_updates(self.trace, rows, tokenize)
        settings = [(choice._asdict(), list[Walk](walks)) for choice, walks in rows]
        places = list_places(settings, self._piece).rename(columns={"cycle": "update"})
        badge, least = weakest(table["badge"]), table["updates"].min()
        why = FIRST.format(least, len(self.trace.updates)) if badge == RERUN else WHOLE
        names = table.columns[len(Choice._fields) : -1]
        return Answer(
            question, badge, why, table, places, dict.fromkeys(names, badge), [row for _, row in settings],
            Choice._fields, False, lambda row: self._stream_cell(rows[row]), True,
        )  # fmt: skip

    def _stream_cell(self, row: tuple[Choice, list[StreamWalk]]) -> Trace:
        """The replayed updates of a row as a trace."""
        choice, walks = row
        label = ", ".join([self._run["run"], *(f"{k}={v}" for k, v in choice._asdict().items())])
        return build_updates(self.trace, walks, choice, label)

    def ssd(self, **parameters: Values) -> Answer:
        """What would SSD have done with this draft length and tree? See `specviz.whatifs.canvases`.

        Needs a run of stepwise decoding or SSD, and uses its blocks, cache and refreshes. Exact: cycles,
        drafts, verdicts and order are those of a rerun. From a text's first near-tie on (`why` counts them,
        `places` says where) they are modelled, unless passes of all shapes round alike (an invariant model).
        Another block or cache needs a rerun, because it would read other states.

        Parameters
        ----------
        draft_length, tree, tail : number or text, or several
            Default: as in the run, if it used SSD.

        Raises
        ------
        ParameterError
            If a draft is longer than the canvas.
        """
        grid, question = self._ask("ssd", parameters)
        texts, dtype = self._written, self._run["dtype"] or ""
        sure = self._run["parameters"].get("sure", np.inf)
        cells, most = min(text.length for text in texts), max(row["draft_length"] for row in grid)
        if most > cells:
            raise ParameterError(f"ssd: a draft_length of {most} exceeds the canvas' {cells} cells")
        # In float64 the record is coarser than the grid, so ties are open in invariant runs, too.
        alike = bool((self._run["backend"] or {}).get("invariant")) and dtype != "float64"
        replays = [[canvases.ssd(text, dtype, sure, alike, **row) for text in texts] for row in grid]
        close = max(sum(walk.close for walk in walks) for walks in replays)
        rows = [(setting, list[Walk](walks)) for setting, walks in zip(grid, replays)]
        table = tabulate(rows, drafter=False)
        shares = [canvases.accepted_share(texts, walks, self._eos) for walks in replays]
        table["A/O"] = np.where(table["badge"] == RERUN, np.nan, shares)
        badge, why = weakest(table["badge"]), STATES
        if badge == RERUN:
            why = _stopped([walks for _, walks in rows])
        if close:
            why += CLOSE.format(f"up to {close}" if len(rows) > 1 else close, int(table["cycles"].max()))

        def cell(row: int) -> Trace:
            setting = grid[row]
            return canvases.build(self.trace, texts, replays[row], setting, self._label(setting))

        return Answer(
            question, badge, why, table, list_places(rows, str), dict.fromkeys(COUNTS, badge),
            [walks for _, walks in rows], tuple(METHODS["ssd"]), False, cell,
        )  # fmt: skip

    def clock(self, answer: Answer, costs: Costs | None = None) -> Answer:
        """How long would that have taken? Modelled from the cost of each pass and each cycle.

        Parameters
        ----------
        answer : Answer
            The answer to another question.
        costs : Costs, optional
            Default: the run's own (`costs`). Another device's: `Costs.read`.

        Returns
        -------
        Answer
            With the columns ``seconds`` and ``tokens_per_second``, without the prefill, and the badge
            modelled; its `why` prints the model's error on the run's own cycles.

        Raises
        ------
        TraceError
            If the run wrote canvases, its rows shared passes, or it holds no times.
        ParameterError
            If a kind of pass has no cost, or there are larger passes than the one size that was timed.
        """
        if self._written:
            raise TraceError(UNTIMED)
        if costs is None and (self.trace.passes["rows"] > 1).any():
            raise TraceError(BATCHED)
        prices = costs or self.costs
        seconds = np.array([prices.seconds(walks, answer.drafter) for walks in answer.walks])
        table = answer.table.drop(columns="badge")
        table = table.assign(seconds=seconds, tokens_per_second=table["emitted"] / seconds)
        table.loc[answer.table["badge"] == RERUN, "tokens_per_second"] = np.nan
        table["badge"] = [weakest([badge, MODELLED]) for badge in answer.table["badge"]]
        if costs is not None:
            why = f"from {prices.source}; this run's time cannot check it"
        elif np.isnan(self.error):
            why = f"from {prices.source}; its cycles are too few to check it"
        else:
            why = (
                f"from {prices.source}; priced from half its cycles; the error on the other half is "
                f"{self.error:.1%}"
            )
        least, largest = min(prices.target, default=0), max(prices.target, default=0)
        steps = [s for row in answer.walks for w in row for s in w.steps if not s.unreviewed]
        few = min((s.sent + 1 for s in steps), default=least)
        if few < least:
            why += f"; passes of fewer than {least} tokens (down to {few}) are priced as {least}"
        sent = max((s.sent_high + 1 for s in steps), default=0)
        if sent > largest and len(prices.target) < 2:
            raise ParameterError(
                f"the cost of a pass of {sent} tokens is unknown, because only passes of "
                f"{plural(largest, 'token')} were timed: pass costs of several sizes (Costs.read)"
            )
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
        """The cost model's error on cycles that it was not fitted to: |modelled / real - 1|.

        Every second cycle is priced by the means of the others, and vice versa; the larger error counts. NaN
        if neither can be priced.
        """
        cycles = timed(self.trace)
        halves = cycles.iloc[::2], cycles.iloc[1::2]
        errors = []
        for part, other in (halves, halves[::-1]):
            if len(part) and len(other):
                costs = Costs.fit(other)
                with suppress(ParameterError):  # a half without target passes has no price for the other's
                    seconds = costs.each(_steps(part), bool(costs.draft)).sum()
                    errors.append(abs(float(seconds) / float(part["duration"].sum()) - 1))
        return max(errors, default=float("nan"))

    # -- the replays ---------------------------------------------------------------------------------

    def _ask(self, method: str, parameters: Setting) -> tuple[list[Setting], str]:
        """The settings of a question, and the question in words; raise if it cannot be answered."""
        grid = self._grid(method, parameters)
        if problem := self._problem(method):
            raise TraceError(f"{method} cannot be answered: {problem}")
        return grid, self._question(method, grid)

    def _piece(self, token: int) -> str:
        """A token's text."""
        return self.trace.pieces.get(token, b"").decode("utf8", "backslashreplace")

    def _label(self, setting: Setting) -> str:
        """The name of a replayed run."""
        return ", ".join([self._run["run"], *(f"{k}={_format(v)}" for k, v in setting.items())])

    def _answer(self, method: str, parameters: Setting) -> Answer:
        grid = self._grid(method, parameters)
        problem = self._problem(method)
        if problem:
            walks = [[Walk([], Place(0, 0, 0, None, problem))] for _ in grid]
        else:
            own = (self._run["parameters"] or {}) if method == self._run["method"] else {}
            rewrites = [method in ("bild", *GAPS) and not row.items() <= own.items() for row in grid]
            walks = [self._replay(self._begin(method, row), other) for row, other in zip(grid, rewrites)]
        rows = list(zip(grid, walks))
        drafter = method in ("speculative", "bild", *GAPS)
        table = tabulate(rows, drafter)
        badge = weakest(table["badge"])
        badges = {name: BOUNDED if f"{name}_lo" in table else EXACT for name in COUNTS}
        if badge in (RERUN, MODELLED):
            badges = dict.fromkeys(COUNTS, badge)

        def cell(row: int) -> Trace:
            setting = grid[row]
            if method in GAPS:  # they have many parameters, but names are limited in length
                setting = {k: v for k, v in setting.items() if v != METHODS[method][k].default}
            return build(self.trace, self.texts, walks[row], method, grid[row], self._label(setting))

        return Answer(
            self._question(method, grid), badge, problem or self._why(method, badge, walks), table,
            list_places(rows, self._piece), badges, walks, tuple(METHODS[method]), drafter, cell,
        )  # fmt: skip

    def _begin(self, method: str, setting: Setting) -> Callable[..., Walk]:
        """The replay of a setting: a function of a text, its end tokens and the rounding."""
        if method == "unispec":
            kept = {"keep": self._run["memory"]["start"].get("keep")}  # a joined run's is not its parameter's
            return Trees(self.texts, *self._lessons, self._run["parameters"] | kept | setting)
        if method not in GAPS:
            return lambda *text: REPLAYS[method](*text, **setting).walk()
        if method == "specdec":  # it is CM-ASD with nothing adaptive
            fixed = {"k_max": setting["draft_length"], "gamma": 0.0}
            fixed |= {"adaptive_drafting": False, "adaptive_verification": False}
            fixed |= {name: setting[name] for name in ("top_beta", "tau_base")}
            setting = {p.name: p.default for p in gap.CM_ASD} | fixed
        vocabulary = self._size
        assert vocabulary is not None

        def begin(record: TextRecord, eos: frozenset[int], rounding: Rounding) -> Walk:
            drafts = self._drafts[record.prompt]
            return GapReplay(record, eos, rounding, drafts, vocabulary, setting).walk()

        return begin

    def _why(self, method: str, badge: str, walks: list[list[Walk]]) -> str:
        """One line that explains a badge."""
        if badge == RERUN:
            unread = any(walk.place is not None and walk.place.why == UNREAD for row in walks for walk in row)
            enough = method in ("bild", "prompt_lookup", "unispec", *GAPS) or self._dense
            more = UNREAD if unread else "" if enough else NOT_DENSE
            return "; ".join(filter(None, (_stopped(walks), more)))
        if badge == MODELLED:
            exact = [sum(walk.exact for walk in row) for row in walks]
            least = int(np.argmin(exact))
            return MODEL.format(exact[least], sum(len(walk.steps) for walk in walks[least]))
        if badge == BOUNDED:
            return BEYOND_DRAFTS if method in GAPS else self._vain
        if method in GAPS:
            return ALL_DRAFTS
        if method == "unispec":
            return GROWN
        return TOKENS_ALONE if method == "prompt_lookup" else ALL_CYCLES

    def _replay(self, replay: Callable[..., Walk], rewrites: bool = False) -> list[Walk]:
        """The replay of each text; `rewrites`: whether an answer that is not in the trace may change."""
        walks: dict[int, Walk] = {}
        for record in self.texts:
            # A later turn's prompt contains the answers before it.
            before = walks.get(record.prompt - 1)
            if record.turn > 0 and (rewrites if before is None else before.place is not None):
                walks[record.prompt] = Walk([], Place(record.prompt, 1, 0, None, TURN))
            else:
                walks[record.prompt] = replay(record, self._eos, self.rounding)
        return list(walks.values())

    @staticmethod
    def _question(method: str, grid: list[Setting]) -> str:
        """The question in words."""
        varied = {name: list(dict.fromkeys(row[name] for row in grid)) for name in METHODS[method]}
        words = [f"{name} = {_spell(values)}" for name, values in varied.items()]
        return f"What if {method} had run with {', '.join(words)}?"

    def _grid(self, method: str, parameters: Setting) -> list[Setting]:
        """Every valid combination of the parameters' values."""
        declared = METHODS[method]
        for name in parameters:
            if name not in declared:
                raise ParameterError(
                    f"{method} has no parameter {name!r}; a what-if takes {', '.join(declared)}"
                )
        own = (self._run["parameters"] or {}) if method == self._run["method"] else {}
        values = []
        for name, parameter in declared.items():
            given = parameters.get(name, own.get(name, parameter.default))
            several = given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
            checked = [parameter.check(value) for value in several]
            if not checked:
                raise ParameterError(f"{name} has no values")
            values.append(checked)
        grid = [dict(zip(declared, each)) for each in itertools.product(*values)]
        problem = PROBLEMS.get(method, lambda _: "")
        fitting = [row for row in grid if not problem(row)]
        if not fitting:
            raise ParameterError(problem(grid[0]))
        return fitting


def _stopped(walks: list[list[Walk]]) -> str:
    """Say in how many texts the replay had to stop."""
    stopped = max(sum(walk.place is not None for walk in row) for row in walks)
    return STOPPED.format(f"up to {stopped}" if len(walks) > 1 else stopped, len(walks[0]))


def _steps(cycles: pd.DataFrame) -> list[Step]:
    """Convert real cycles to steps."""
    names = ["prompt", "cycle", "keep", "sent", "sent", "drafted", "drafted", "accepted", "cut", "unreviewed",
             "emitted", "stop"]  # fmt: skip
    return [Step(*row) for row in cycles[names].itertuples(index=False, name=None)]


def _spell(values: list[Value]) -> str:
    """A parameter's values in words."""
    if len(values) > 4:
        return f"{_format(values[0])} ... {_format(values[-1])}"
    return " or ".join(map(_format, values))


def _format(value: Value) -> str:
    """A parameter's value in words."""
    return str(value) if isinstance(value, bool | str) else f"{value:g}"


def whatif(trace: Trace) -> WhatIf:
    """Ask a saved trace what another setting would have done; see `WhatIf` for the questions.

    Examples
    --------
    >>> answer = specviz.whatif(trace).speculative(draft_length=range(1, 9))  # doctest: +SKIP
    >>> answer.badge, answer.table  # doctest: +SKIP
    >>> answer.trace(draft_length=8)  # doctest: +SKIP
    """
    return WhatIf(is_trace(trace))
