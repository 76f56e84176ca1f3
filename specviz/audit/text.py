"""The text audit: every token, every pass and every recorded decision against the target computed alone.

For each prompt, the target's own greedy text (from our autoregressive loop, itself checked against stock
transformers) is compared with each method's. Then the method's whole text goes through one pass of the stock
module: each token must be the argmax of its row, and each row of the method's own passes must equal that row
within the bound. If something differs, the place is recomputed alone and in float64.

An invariant model computes a row to the same bits in every pass. A method's text and rows must then equal the
autoregressive ones bit for bit, and only the autoregressive text is compared with the stock module's argmax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .. import methods as catalogue
from ..draft import Draft
from ..loop.cycle import Cycle, decode
from ..loop.drafters import Loadable
from ..loop.machine import number_format, thread_count
from ..loop.run import Run
from ..methods.sampling import Sampling
from ..models.diffusion import Diffusion
from ..models.protocols import Model
from ..rules.speculative import common_prefix
from . import law, setup
from .decisions import Decoded, Records
from .law import GREEDY, Make
from .reference import Bound, Reference, Stepwise, distance, reference_of
from .result import AuditResult, Difference, Drawn, LawResult, Row

TIE = 1e-6  # float64 gap below which two tokens tie
SAMPLE = 8  # texts over which the bound is measured
PLACES = 3  # maximum number of places judged in one text
RECORDED = 32  # texts whose recorded probabilities are compared
DRAWS = 300  # draws of the chi-square test
LOOKED = 16  # prompts among which that test picks the most varied one

Place: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]  # a prompt, and the tokens read after it
Rows: TypeAlias = list[Tensor | None]  # for each token, the row of logits that predicted it, if any


def run(
    model: Loadable,
    drafts: Loadable | None = None,
    prompts: Sequence[setup.Entry] = (),
    methods: Sequence[setup.Given] | None = None,
    max_new_tokens: int = 64,
    dtype: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    sampled: int = 20,
    temperature: float = 1.0,
    laws: bool = True,
    draws: int = DRAWS,
    progress: setup.Progress = None,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
) -> AuditResult:
    """Audit methods on a target: does each write the target's own greedy text, for the right reasons?

    Parameters
    ----------
    model : Model or what `specviz.load` takes
    drafts : the same or a list of these, optional
        Each method that needs a draft model is run with each of them. Default: those bundled with the target.
        An empty list leaves such methods out of the default ones.
    prompts : list of str, token ids, chat messages, or dicts with ``prompt``, ``turns`` or ``messages``
        Of several turns, the first is decoded. A single text is one prompt.
    methods : list of str, class, Method or factory, optional
        ``"bild:rollback=0,cap=3"`` sets parameters; a callable makes a fresh `Method`; an instance starts
        with its memory. Default: of the methods that the model can serve, every one that is not lossy by
        default, and every lossy one with the parameters that it declares exact; the result names the others.
    max_new_tokens : int
    dtype, device : str, optional
        For models that are not yet loaded; see `specviz.load`. Default: ``auto`` on the CPU.
    threads : int, optional
        Threads of the backend during the audit.
    sampled : int
        Number of prompts that are decoded again with sampling, to recheck passes, records and accepts.
        0: nothing is drawn from the model.
    temperature : float
        Temperature for those.
    laws : bool
        Whether to test the law of sampling, too: enumerated on a toy vocabulary, and by chi-square on this
        model, at the prompt (of the first few) whose first tokens vary most.
    draws : int
        Draws of the chi-square test.
    progress : callable, optional
        Called with (prompts and chi-square tests done, their total).
    top_k, top_p, seed
        For the sampled prompts, as in `specviz.generate`.

    Returns
    -------
    AuditResult

    Raises
    ------
    ParameterError, ModelError, PromptError
        Before any work.
    """
    sampling = setup.sampling_of(max_new_tokens, temperature, top_k, top_p, seed, sampled)
    with setup.on_backend(threads):
        target = setup.audited_model(model, device, dtype)
        setup.check_causal(target)
        ids = setup.encoded(target, prompts)
        factories = setup.factories_of(methods, number_format(target))
        lineup = setup.Lineup.choose(target, factories, drafts, methods is not None, device, dtype)
        reference = reference_of(target)
        bound = _measure(target, reference, ids, max_new_tokens)
        sampled = min(sampled, len(ids))
        random = [make for make in lineup.factories if not _is_lossy(make, Sampling(1.0), target)]
        tests = list(lineup.pairs(random)) if laws and sampled else []
        tick = setup.counter(progress, len(ids) + sampled + len(tests))
        rows = []
        for each, some in ((GREEDY, ids), (sampling, ids[:sampled])):
            decoding = Decoding(each, max_new_tokens, bound.value, seed)
            rows += _rows(_Audit(target, reference, decoding), lineup, some, tick)
        results: list[LawResult] = []
        if laws:
            results = [each for make in random for each in _enumerated(make)]
        drawn = _drawn(reference, target, tests, ids, sampling, draws, tick) if tests else []
        if tests and not drawn:
            lineup.left_out["chi-square"] = "chi-square needs first tokens that vary, and no prompt has them"
        return result_of(target, max_new_tokens, bound, rows, results, drawn, lineup.left_out)


@dataclass(frozen=True)
class Decoding:
    """How the texts of a row of the table are decoded and judged."""

    sampling: Sampling
    limit: int  # maximum number of new tokens of a text
    bound: float  # how far rounding may move a logit
    seed: int = 0

    def options(self) -> dict[str, Any]:
        """Keyword arguments for a run."""
        sampling = self.sampling
        return {
            "max_new_tokens": self.limit, "temperature": sampling.temperature, "top_k": sampling.top_k,
            "top_p": sampling.top_p, "seed": self.seed,
        }  # fmt: skip


def result_of(
    target: Model | Diffusion, limit: int, bound: Bound, rows: Sequence[Row], laws: Sequence[LawResult] = (),
    drawn: Sequence[Drawn] = (), left_out: dict[str, str] | None = None,
) -> AuditResult:  # fmt: skip
    """Assemble the result of an audit of this model."""
    return AuditResult(
        target.name, str(target.device), number_format(target), thread_count(target), limit, bound,
        list(rows), list(laws), list(drawn), getattr(target, "kernels", None), left_out or {},
        getattr(target, "invariant", False),
    )  # fmt: skip


def _rows(
    audit: _Audit, lineup: setup.Lineup, prompts: list[list[int]], tick: Callable[[], None]
) -> list[Row]:
    """Audit each method and draft that is exact under the audit's sampling; one row for each."""
    if not prompts:
        return []
    sampling, target = audit.sampling, lineup.target
    exact = [make for make in lineup.factories if sampling.greedy or not _is_lossy(make, sampling, target)]
    pairs = lineup.pairs(exact)
    subjects = [Subject(target, drafter, make, audit.decoding, prompts) for make, drafter in pairs]
    order = sorted(subjects, key=lambda subject: not subject.is_own)
    for number, prompt in enumerate(prompts):
        audit.prompt(number, prompt, order)
        tick()
    records = [Records(subject.traces, sampling, audit.bound, RECORDED) for subject in order]
    for number in range(len(prompts)):  # methods share most of a prompt's texts: each is read once
        for each in records:
            each.compare(number, audit.rows)
        audit.forget()
    for subject, each in zip(order, records, strict=True):
        subject.row.blame(each.bugs)
    return [subject.row for subject in order]


def _is_lossy(make: Make, sampling: Sampling, target: Model) -> bool:
    return setup.is_lossy(make(), number_format(target), sampling)


class Subject:
    """One method with one draft, and its progress through the prompts.

    If it raises on a prompt, its run is restarted after that prompt.
    """

    def __init__(
        self, target: Model, drafter: Model | None, make: Make, decoding: Decoding, prompts: list[list[int]]
    ) -> None:
        self.target, self.drafter, self.make = target, drafter, make
        self.decoding, self.prompts = decoding, prompts
        method = make()
        name = setup.label(method)
        self.is_own = name == "autoregressive"  # the target's own text: one token per pass
        self.takes_ties = method.takes_ties
        # An invariant model's own text is only compared with the stock module, whose 16 bits round otherwise.
        # Scores of 16 bits often tie.
        coarse = getattr(target, "invariant", False) and target.dtype in (torch.float16, torch.bfloat16)
        spared = len(prompts) if coarse and (self.is_own or self.takes_ties) else 0
        self.row = Row(
            name, drafter.name if drafter else "", law.spell(decoding.sampling), decoding.bound, spared=spared
        )
        self.run: Run | None = None
        self.traces: list[Decoded] = []

    def decode(self, number: int) -> list[Cycle]:
        """Decode one prompt and return its cycles; prompts must come in order."""
        if self.run is None:
            self.first = number
            self.texts: dict[int, list[int]] = {}
            prompts, options = self.prompts[number:], self.decoding.options()
            self.run = Run(self.target, prompts, self.make(), draft=self.drafter, **options)
        cycles = self.one_text(self.run)
        self.texts[number - self.first] = _text(cycles)
        if number == len(self.prompts) - 1:
            self.traces.append((self.first, self.run.finish(), self.texts))
        return cycles

    def one_text(self, run: Run) -> list[Cycle]:
        """The cycles up to the end of a text; a run that raises is dropped."""
        cycles = []
        try:
            for cycle in run:
                cycles.append(cycle)
                if cycle.end is not None:
                    break
        except Exception:
            self.run = None
            raise
        return cycles

    def faults(self, number: int, cycles: list[Cycle]) -> list[Difference]:
        """Faults that the text does not show; none for methods that decode prompts."""
        return []


@dataclass
class Text:
    """A prompt's text, as written by one method."""

    number: int
    prompt: list[int]
    tokens: list[int]
    rows: Rows

    def bug(self, position: int, reason: str, distance: float | None = None) -> Difference:
        """A bug at a position in the text."""
        return Difference(self.number, position, "bug", reason, distance=distance)


class _Audit:
    """Judges each prompt's texts."""

    def __init__(self, target: Model, reference: Reference | Stepwise, decoding: Decoding) -> None:
        self.target, self.reference, self.decoding = target, reference, decoding
        self.bound, self.sampling, self.limit = decoding.bound, decoding.sampling, decoding.limit
        self.invariant = getattr(target, "invariant", False)
        # For one prompt, by the tokens read: methods diverge from its text at the same places.
        self._rows: dict[Place, Tensor] = {}
        self._exact: dict[Place, Tensor] = {}

    def forget(self) -> None:
        """Drop the reference's rows for a prompt."""
        self._rows.clear()
        self._exact.clear()

    def rows(self, prompt: list[int], text: list[int]) -> Tensor:
        """The reference's logits that predict each token of `text` after `prompt`, computed once."""
        key = tuple(prompt), tuple(text)
        if key not in self._rows:
            self._rows[key] = self.reference.rows(prompt, text)
        return self._rows[key]

    def exact(self, prompt: list[int], text: list[int]) -> Tensor:
        """The logits after `prompt` and `text` in float64, computed once."""
        key = tuple(prompt), tuple(text)
        if key not in self._exact:
            every = self.reference.double(prompt, [*text, 0])
            self._exact[key] = every[-1].clone()  # the row that predicts the 0; the others can go
        return self._exact[key]

    def prompt(self, number: int, prompt: list[int], subjects: list[Subject]) -> None:
        """Decode one prompt with each method, and judge the texts."""
        own: Text | None = None
        missing = ""  # why there is no autoregressive text
        if self.sampling.greedy and not any(subject.is_own for subject in subjects):
            try:
                own = self.alone(number, prompt)
            except Exception as error:
                missing = setup.raised(error)
        for subject in subjects:  # the autoregressive one comes first, if there is one
            try:
                cycles = subject.decode(number)
            except Exception as error:  # a method that raises has not written the text
                subject.row.count([Difference(number, -1, "bug", f"it raised {setup.raised(error)}")])
                if subject.is_own:
                    missing = setup.raised(error)
                continue
            text = Text(number, prompt, _text(cycles), _rows_read(cycles))
            if self.sampling.greedy and subject.is_own:
                own = text
            subject.row.tokens += len(text.tokens)
            differences = self.faults(text) + subject.faults(number, cycles)
            if missing:  # a text that was compared with nothing does not hold
                reason = f"no text to compare with: autoregressive decoding raised {missing}"
                differences.append(text.bug(-1, reason))
            if text.tokens:
                rows = self.rows(prompt, text.tokens)
                if own is not None:
                    differences += self.against_own(text, own, subject.takes_ties)
                    if self.invariant:
                        differences += self.bits(text, own)
                    if subject.is_own or not self.invariant:
                        judged = {d.position for d in differences}
                        differences += self.against_reference(text, rows, judged)
                if not any(d.verdict == "bug" for d in differences):
                    differences += self.passes(text, rows)
            subject.row.count(differences)
        self.forget()

    def alone(self, number: int, prompt: list[int]) -> Text:
        """The autoregressive text."""
        method = catalogue.find("autoregressive")()
        cycles = list(decode(self.target, prompt, method, max_new_tokens=self.limit))
        return Text(number, prompt, _text(cycles), _rows_read(cycles))

    def faults(self, text: Text) -> list[Difference]:
        """Faults of the text itself: in its end or its length."""
        limit, length = min(self.limit, self.target.left(len(text.prompt))), len(text.tokens)
        end = next((i for i, token in enumerate(text.tokens) if token in self.target.eos), None)
        if end is not None and end < length - 1:
            return [text.bug(end, f"the text runs {length - 1 - end} tokens beyond its end token")]
        if length > limit:
            return [text.bug(limit, f"the text has {length} tokens; the limit is {limit}")]
        if end is None and length < limit:
            words = f"the text stops after {length} of {limit} tokens, without an end token"
            return [text.bug(length, words)]
        return []

    def against_own(self, text: Text, own: Text, takes_ties: bool) -> list[Difference]:
        """Judge the first place where the text diverges from the autoregressive one."""
        at = common_prefix(text.tokens, own.tokens)
        if at == min(len(text.tokens), len(own.tokens)):  # another length is a separate fault, see `faults`
            return []
        return [self.parted(text, at, own, "the autoregressive text", takes_ties)]

    def parted(self, text: Text, at: int, own: Text, who: str, takes_ties: bool = False) -> Difference:
        """Judge the place where a text diverges from one that the same model wrote.

        An invariant model's rows are the same in every pass, so rounding cannot explain a different token.
        Only a method that `takes_ties` may write another one, if its row scores both alike.
        """
        part = self.place(text, at, own.tokens[at], own.rows[at], who)
        if self.invariant:
            part.verdict = "tie" if takes_ties and part.gap == 0 else "bug"
        return part

    def bits(self, text: Text, own: Text) -> list[Difference]:
        """The first row of an invariant model that does not equal the autoregressive text's bit for bit.

        This needs no bound and no float64: until the texts diverge, both rows follow the same tokens.
        """
        at = common_prefix(text.tokens, own.tokens)
        pairs = zip(text.rows[: at + 1], own.rows[: at + 1])
        for place, (row, alone) in enumerate(pairs):
            if row is not None and alone is not None and not torch.equal(row, alone):
                off = distance(row, alone)
                words = (
                    "this token's logits are not bit-identical to those of a separate pass: "
                    f"largest difference {off:.1e}"
                )
                return [text.bug(place, words, off)]
        return []

    def against_reference(self, text: Text, rows: Tensor, judged: set[int]) -> list[Difference]:
        """Judge places where a token is not the argmax of the stock module's row after the same prefix."""
        best = rows.argmax(-1).tolist()
        wrong = [i for i, (a, b) in enumerate(zip(best, text.tokens)) if a != b and i not in judged]
        return [self.place(text, i, best[i], rows[i], self.reference.name) for i in wrong[:PLACES]]

    def place(self, text: Text, at: int, expected: int, other: Tensor | None, who: str) -> Difference:
        """Judge one place: tie, noise, reference noise, or bug. The reference is a GGUF file's float64.

        `other` is the row from which `who` read `expected`.

        Tie: in float64, both tokens are within `TIE` of the top. Noise: float64's top token is not the
        method's, and the row that the method read is off by no more than the bound, both everywhere and in
        its gap between these two tokens. Reference noise: float64's top token is the method's, and the other
        row is off by no more than the bound in the same way; a separate class, so that it is visible.
        """
        prefix, actual, read = text.tokens[:at], text.tokens[at], text.rows[at]
        exact = self.exact(text.prompt, prefix)
        alone, failed = None, ""
        try:
            alone = self.single(text.prompt, prefix)
        except Exception as error:  # our own pass cannot do what the stock module just did
            failed = f"; a pass of width 1 there raised {setup.raised(error)}"
        gaps = [None if row is None else float(row[expected] - row[actual]) for row in (read, alone, exact)]
        words = [self.target.piece(token).decode("utf8", "backslashreplace") for token in (expected, actual)]
        off = None if read is None else distance(read, exact)
        result = Difference(text.number, at, "bug", "", expected, actual, words[0], words[1], distance=off)
        result.gap, result.gap_alone, result.gap_double = gaps
        best, bound = int(exact.argmax()), self.reference.bound_at([*text.prompt, *prefix])
        loser, lost = read, actual
        if best == actual:
            loser, lost = other, expected
        if failed:
            pass  # always a bug
        elif float(exact.max()) - float(min(exact[expected], exact[actual])) < TIE:
            result.verdict = "tie"
        elif (
            loser is not None
            and abs(float(loser[best] - loser[lost])) <= bound
            and distance(loser, exact) <= bound
        ):
            result.verdict = "reference noise" if best == actual else "noise"
        names = ("in its own pass", "alone", self.reference.exactly)
        numbers = [f"{name} {gap:+.2e}" for name, gap in zip(names, gaps) if gap is not None]
        result.reason = (
            f"{words[1]!r} where {who} has {words[0]!r}; difference of logits: {', '.join(numbers)}"
        )
        if off is not None:
            result.reason += f"; its logits are off by {off:.1e}"
        if other is not None and result.verdict == "reference noise":
            result.reason += f", that of {who} by {distance(other, exact):.1e}"
        result.reason += f" (bound {bound:.1e}){failed}"
        return result

    def single(self, prompt: list[int], prefix: list[int]) -> Tensor:
        """The row of our own pass of width 1 after a prompt (or an encoder's source) and a written prefix."""
        context = self.target.open([prompt], len(prefix) + 1)
        if prefix:
            context.extend([prefix])
        context.prefill()
        row = context.forward(Draft.empty()).logits[0][0]
        context.close()
        return row

    def passes(self, text: Text, rows: Tensor) -> list[Difference]:
        """Check that every row that verification read equals the stock module's within the bound."""
        read = [(i, row) for i, row in enumerate(text.rows) if row is not None]
        if not read:
            return []
        own = torch.stack([row for _, row in read])
        gaps = (own - rows[[i for i, _ in read]]).abs().nan_to_num(torch.inf).amax(-1)
        worst = float(gaps.max())
        if worst <= self.bound:
            return []
        first = read[int((gaps > self.bound).long().argmax())][0]
        words = (
            f"the pass that wrote this token is wrong: logits differ by {worst:.1e} from those of "
            f"{self.reference.name} (bound {self.bound:.1e}), though no token changed"
        )
        return [text.bug(first, words, worst)]


def _enumerated(make: Make) -> list[LawResult]:
    """The exact laws of a method on the toy vocabulary; one that raises has none, and does not hold."""
    try:
        return law.check(law.enumerable(make))
    except Exception as error:
        return [LawResult(setup.label(make()), "toy", float("inf"), law.TOLERANCE, 0, setup.raised(error))]


def _drawn(
    reference: Reference | Stepwise, target: Model, pairs: list[tuple[Make, Model | None]],
    prompts: list[list[int]], sampling: Sampling, draws: int, tick: Callable[[], None],
) -> list[Drawn]:  # fmt: skip
    """Chi-square tests of each method on the model; none if no prompt's first tokens vary enough.

    A method with a memory is warm: it has decoded the prompt and others before.
    """
    laws = [law.first_tokens(target, reference, prompt, draws, 2, sampling) for prompt in prompts[:LOOKED]]
    sizes = [len(law.cells_of(each, draws)) for each in laws]
    number = int(np.argmax(sizes))
    if sizes[number] < 2:
        return []
    results = []
    for make, drafter in pairs:
        result = Drawn(setup.label(make()), drafter.name if drafter else "", law.spell(sampling), number)
        try:
            warm = law.warm(make, target, drafter, [prompts[number], *prompts[:SAMPLE]], law.FILLING) or make
            result.test = law.chi_square(target, drafter, prompts[number], draws, warm, 2, sampling)
        except Exception as error:
            result.reason = setup.raised(error)
        results.append(result)
        tick()
    return results


def _text(cycles: list[Cycle]) -> list[int]:
    text: list[int] = []
    for cycle in cycles:
        del text[cycle.keep :]
        text += cycle.tokens
    return text


def _rows_read(cycles: list[Cycle]) -> Rows:
    """For each token of the text, the row of the method's own pass that predicted it, if any."""
    read: Rows = []
    for cycle in cycles:
        del read[cycle.keep :]
        if cycle.verdict is None:
            continue
        scores: Sequence[Tensor] | Tensor = () if cycle.scores is None else cycle.scores
        places = [0, *(1 + node for node in cycle.verdict.path)][: len(cycle.tokens)]
        read += [scores[place] if place < len(scores) else None for place in places]
    return read


def _measure(target: Model, reference: Reference | Stepwise, ids: list[list[int]], limit: int) -> Bound:
    """Measure the bound over texts spread evenly among the prompts."""
    texts = []
    for pick in spread(len(ids), SAMPLE):
        cycles = decode(target, ids[pick], catalogue.find("autoregressive")(), max_new_tokens=limit)
        texts.append((ids[pick], [token for cycle in cycles for token in cycle.tokens]))
    return reference.bound(texts)


def spread(count: int, most: int) -> list[int]:
    """At most `most` of `count` indices, spread evenly, the first and the last among them."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(most, count))})
