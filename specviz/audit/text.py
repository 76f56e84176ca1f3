"""The text audit: every token, every pass and every recorded decision against the target computed alone.

For each prompt the target's own greedy text (our autoregressive loop, itself checked against stock
transformers) is compared with each method's. Then the method's whole text goes through one pass of
the stock module: each token must be the argmax of its row, and each row of the method's own passes must
be that row within the bound. Where something differs the place is recomputed alone and in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import methods as catalogue
from ..arguments import check_threads
from ..draft import Draft
from ..errors import ModelError, ParameterError
from ..loop.checks import check_processors, check_served
from ..loop.cycle import Cycle, decode
from ..loop.drafters import ADDED, bundled_draft, load_drafter, load_if_needed
from ..loop.machine import thread_count as threads_of
from ..loop.run import Run
from ..methods.base import Method
from ..methods.hooks import ADDITIONS
from ..methods.sampling import Sampling
from . import law
from .decisions import recorded
from .reference import Bound, Reference, Stepwise, distance, reference_of
from .result import AuditResult, Difference, Drawn, Row

TIE = 1e-6  # float64 gap below which two tokens tie
SAMPLE = 8  # texts over which the bound is measured
PLACES = 3  # places looked at in one text
RECORDED = 32  # texts whose recorded probabilities are compared
DRAWS = 300  # of the chi-square test
LOOKED = 64  # prompts among which that test looks for a varied one


def run(
    model: Any,
    drafts: Any = None,
    prompts: Sequence[Any] = (),
    methods: Sequence[Any] | None = None,
    max_new_tokens: int = 64,
    dtype: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    sampled: int = 20,
    temperature: float = 1.0,
    laws: bool = True,
    draws: int = DRAWS,
    progress: Callable[[int, int], None] | None = None,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
) -> AuditResult:
    """Audit methods on a target: does each write the target's own greedy text, for the right reasons?

    Parameters
    ----------
    model : Model or what `specviz.load` takes
    drafts : one or a list of the like, optional
        Each method that needs a draft model is run with each. Default: the bundled target's own. An empty
        list leaves such methods out of the default ones.
    prompts : list of str, token ids, chat messages, or dicts with ``prompt`` or ``turns``
        Of several turns the first is decoded.
    methods : list of str, Method or factory, optional
        ``"bild:rollback=0,cap=3"`` sets parameters; a callable makes a fresh `Method`; one that remembers
        begins with what it knows. Default: every method
        that is not lossy by default, and every lossy one in the setting that it declares as exact, of those
        that the model can serve; the result names the others.
    max_new_tokens : int
    dtype, device : str, optional
        For models that are still to be loaded; float32 on the CPU.
    threads : int, optional
        Threads of the backend during the audit.
    sampled : int
        So many of the prompts are decoded again with sampling; passes, records and accepts are rechecked.
        0: nothing is drawn from the model.
    temperature : float
        Of those.
    laws : bool
        Whether the law of sampling is tested too: enumerated on a toy vocabulary, and by chi-square on this
        model, at the prompt (of the first few) whose first tokens vary most.
    draws : int
        Of the chi-square test.
    progress : callable, optional
        Called with (prompts done, prompts to do).
    top_k, top_p, seed
        Of the prompts that are sampled, as `specviz.generate` takes them.

    Returns
    -------
    AuditResult

    Raises
    ------
    ParameterError, ModelError, PromptError
        Before any work.
    """
    with _backend(threads):
        target = audited_model(model, device, dtype)
        check_causal(target)
        ids = encoded(target, prompts)
        factories = _factories(methods, number_format(target))
        chosen = choose(target, factories, drafts, methods is None, device, dtype)
        reference = reference_of(target)
        bound = _measure(target, reference, ids, max_new_tokens)
        sampling = Sampling(temperature, top_k, top_p)
        sampled = min(sampled, len(ids))
        tick = counter(progress, len(ids) + sampled)
        rows = []
        for each, some in ((Sampling(), ids), (sampling, ids[:sampled])):
            decoding = Decoding(each, max_new_tokens, bound.value, seed)
            rows += _rows(_Audit(target, reference, decoding), chosen, some, tick)
        found: list[law.LawResult] = []
        drawn: list[Drawn] = []
        if laws:
            random = [make for make in chosen.factories if _exact(make(), Sampling(1.0), target)]
            found = [each for make in random for each in _enumerated(make)]
            if sampled:
                drawn = _drawn(reference, chosen, random, ids, sampling, draws)
        return result_of(target, max_new_tokens, bound, rows, found, drawn, chosen.left_out)


@dataclass(frozen=True)
class Decoding:
    """How the texts of a row of the table are decoded and judged.

    Parameters
    ----------
    sampling : Sampling
    limit : int
        Most new tokens of a text.
    bound : float
        How far rounding may move a logit.
    seed : int
    """

    sampling: Sampling
    limit: int
    bound: float
    seed: int = 0


@dataclass
class Chosen:
    """Which methods are audited with which drafters; `left_out`: the names of the others with the reasons."""

    target: Any
    factories: list[Callable[[], Method]]
    drafters: list[Any]
    left_out: dict[str, str]


def choose(
    target: Any,
    factories: list[Callable[[], Method]],
    drafts: Any,
    default: bool,
    device: str | None,
    dtype: str | None,
) -> Chosen:
    """The methods that the target can serve, and the drafters; `default`: nobody named the methods.

    Raises
    ------
    ParameterError, ModelError
        If a named method cannot be served.
    """
    if default and isinstance(drafts, list | tuple) and not drafts:
        factories = [make for make in factories if not make().needs_draft]
    factories, left_out = served(target, factories, not default)
    drafters = _drafters(target, drafts, factories, device, dtype)
    factories, undrafted = _drafted(factories, drafters, not default)
    return Chosen(target, factories, drafters, left_out | undrafted)


def encoded(target: Any, prompts: Sequence[Any]) -> list[list[int]]:
    """The prompts as token ids.

    Raises
    ------
    ParameterError
        If there is none.
    """
    if not prompts:
        raise ParameterError("the audit needs at least one prompt")
    return [_ids(target, prompt) for prompt in prompts]


def number_format(target: Any) -> str:
    """The name of a model's number format, without ``torch.``."""
    return str(target.dtype).removeprefix("torch.")


def counter(progress: Callable[[int, int], None] | None, total: int) -> Callable[[], None]:
    """A function that reports one more of `total` steps as done."""
    done = count(1)

    def tick() -> None:
        if progress:
            progress(next(done), total)

    return tick


def result_of(
    target: Any,
    limit: int,
    bound: Bound,
    rows: Sequence[Row],
    laws: Sequence[law.LawResult] = (),
    drawn: Sequence[Drawn] = (),
    left_out: dict[str, str] | None = None,
) -> AuditResult:
    """The result of an audit of this model."""
    return AuditResult(
        target.name, str(target.device), number_format(target), threads_of(target), limit, bound, list(rows),
        list(laws), list(drawn), getattr(target, "kernels", None), left_out or {},
    )  # fmt: skip


def _rows(audit: _Audit, chosen: Chosen, prompts: list[list[int]], tick: Callable[[], None]) -> list[Row]:
    """A row for each method and draft that decodes exactly under the audit's sampling."""
    if not prompts:
        return []
    sampling, target = audit.decoding.sampling, chosen.target
    subjects = [
        Subject(target, drafter, make, audit.decoding, prompts)
        for make in chosen.factories
        if sampling.greedy or _exact(make(), sampling, target)
        for drafter in make().suited(chosen.drafters)
    ]
    order = sorted(subjects, key=lambda subject: not subject.is_own)
    for number, prompt in enumerate(prompts):
        audit.prompt(number, prompt, order)
        tick()
    for subject in order:
        faults = recorded(subject.traces, audit.reference, sampling, audit.decoding.bound, RECORDED)
        subject.row.blame(faults)
    return [subject.row for subject in order]


class Subject:
    """One method with one draft on its way through the prompts.

    Its run is restarted behind a prompt on which it raised.
    """

    def __init__(
        self,
        target: Any,
        drafter: Any,
        make: Callable[[], Method],
        decoding: Decoding,
        prompts: list[list[int]],
    ) -> None:
        self.target, self.drafter, self.make = target, drafter, make
        self.decoding, self.prompts = decoding, prompts
        label = _label(make())
        self.is_own = label == "autoregressive"  # the target's own text: one token a pass
        sampling = _spell(decoding.sampling)
        self.row = Row(label, drafter.name if drafter else "", sampling, decoding.bound)
        self.run: Run | None = None
        self.traces: list[tuple[int, Any, dict[int, list[int]]]] = []  # first prompt, trace, texts

    def options(self) -> dict[str, Any]:
        """What the run is told of its length and sampling."""
        sampling = self.decoding.sampling
        return {
            "max_new_tokens": self.decoding.limit, "temperature": sampling.temperature,
            "top_k": sampling.top_k, "top_p": sampling.top_p, "seed": self.decoding.seed,
        }  # fmt: skip

    def decode(self, number: int) -> list[Cycle]:
        """The cycles of one prompt; the prompts come in order."""
        if self.run is None:
            self.first = number
            self.texts: dict[int, list[int]] = {}
            self.run = Run(
                self.target,
                self.prompts[number:],
                self.make(),
                draft=self.drafter,
                **self.options(),
            )
        cycles = []
        try:
            for cycle in self.run:
                cycles.append(cycle)
                if cycle.end is not None:
                    break
        except Exception:
            self.run = None
            raise
        self.texts[number - self.first] = _text(cycles)
        if number == len(self.prompts) - 1:
            for _ in self.run:
                pass
            self.traces.append((self.first, self.run.trace, self.texts))
        return cycles

    def faults(self, number: int, cycles: list[Cycle]) -> list[Difference]:
        """What no text shows: nothing, for methods that decode prompts."""
        return []


class _Audit:
    """Judges each prompt's texts."""

    def __init__(self, target: Any, reference: Reference | Stepwise, decoding: Decoding) -> None:
        self.target, self.reference, self.decoding = target, reference, decoding
        self.bound, self.sampling, self.limit = decoding.bound, decoding.sampling, decoding.limit

    def prompt(self, number: int, prompt: list[int], subjects: list[Subject]) -> None:
        """Decode one prompt with each method, and judge."""
        own: tuple[list[int], list[Tensor | None]] | None = None
        missing = ""  # why there is no autoregressive text
        if self.sampling.greedy and not any(subject.is_own for subject in subjects):
            try:
                own = self.alone(prompt)
            except Exception as error:
                missing = _raised(error)
        rows: dict[tuple[int, ...], Tensor] = {}
        for subject in subjects:  # the autoregressive one comes first, if there is one
            try:
                cycles = subject.decode(number)
            except Exception as error:  # a method that raises has not written the text
                subject.row.count([Difference(number, -1, "bug", f"it raised {_raised(error)}")])
                if subject.is_own:
                    missing = _raised(error)
                continue
            text = _text(cycles)
            if self.sampling.greedy and subject.is_own:
                own = text, _rows_read(cycles)
            subject.row.tokens += len(text)
            found = self.faults(number, prompt, text) + subject.faults(number, cycles)
            if missing:  # what was compared with nothing does not hold
                reason = f"no text to compare with: autoregressive decoding raised {missing}"
                found.append(Difference(number, -1, "bug", reason))
            if text:
                key = tuple(text)
                if key not in rows:
                    rows[key] = self.reference.rows(prompt, text)
                read = _rows_read(cycles)
                if own is not None:
                    found += self.against_own(number, prompt, text, read, own)
                    known = {d.position for d in found}
                    found += self.against_reference(number, prompt, text, read, rows[key], known)
                if not any(d.verdict == "bug" for d in found):
                    found += self.passes(number, text, read, rows[key])
            subject.row.count(found)

    def alone(self, prompt: list[int]) -> tuple[list[int], list[Tensor | None]]:
        """The autoregressive text and the rows it was read from."""
        method = catalogue.find("autoregressive")()
        cycles = list(decode(self.target, prompt, method, max_new_tokens=self.limit))
        return _text(cycles), _rows_read(cycles)

    def faults(self, number: int, prompt: list[int], text: list[int]) -> list[Difference]:
        """What is wrong with the text as such: its end and its length."""
        limit = min(self.limit, self.target.left(len(prompt)))
        eos = set(self.target.eos)
        end = next((i for i, token in enumerate(text) if token in eos), None)
        if end is not None and end < len(text) - 1:
            extra = len(text) - 1 - end
            return [Difference(number, end, "bug", f"the text runs {extra} tokens past its end token")]
        if len(text) > limit:
            words = f"the text has {len(text)} tokens; the limit is {limit}"
            return [Difference(number, limit, "bug", words)]
        if end is None and len(text) < limit:
            words = f"the text stops after {len(text)} of {limit} tokens, without an end token"
            return [Difference(number, len(text), "bug", words)]
        return []

    def against_own(
        self,
        number: int,
        prompt: list[int],
        text: list[int],
        read: list[Tensor | None],
        own: tuple[list[int], list[Tensor | None]],
    ) -> list[Difference]:
        """The first place where the text and the autoregressive text part."""
        expected, other = own
        shared = next((i for i, (a, b) in enumerate(zip(expected, text)) if a != b), None)
        if shared is None:  # a text that is longer or shorter is a fault of its own, see above
            return []
        pair = expected[shared], text[shared]
        rows = read[shared], other[shared]
        return [self.place(number, prompt, text[:shared], *pair, *rows, "the autoregressive text")]

    def against_reference(
        self,
        number: int,
        prompt: list[int],
        text: list[int],
        read: list[Tensor | None],
        rows: Tensor,
        known: set[int],
    ) -> list[Difference]:
        """Places where a token is not the argmax of the stock module's row behind the same prefix."""
        best = rows.argmax(-1).tolist()
        wrong = [i for i, (a, b) in enumerate(zip(best, text)) if a != b and i not in known]
        return [
            self.place(number, prompt, text[:i], best[i], text[i], read[i], rows[i], self.reference.name)
            for i in wrong[:PLACES]
        ]

    def place(
        self,
        number: int,
        prompt: list[int],
        prefix: list[int],
        expected: int,
        found: int,
        read: Tensor | None,
        other: Tensor | None,
        who: str,
    ) -> Difference:
        """Judge one place: tie, noise, reference noise, or bug. Of a GGUF file float64 is the reference.

        Tie: in float64 both tokens lie within `TIE` of the top. Noise: float64 sides with what the method is
        compared with, and the row that the method read is off by no more than the bound, in the gap between
        the two tokens and everywhere. Reference noise: float64 sides with the method, and it is the other
        row that is shown to be off by no more than the bound; a class of its own, so that it is seen.
        """
        exact = self.reference.double(prompt, [*prefix, found])[-1]
        alone, failed = None, ""
        try:
            alone = self.single([*prompt, *prefix])
        except Exception as error:  # our own pass cannot do what the stock module just did
            failed = f"; a pass of width 1 there raised {_raised(error)}"
        words = [self.target.piece(token).decode("utf8", "backslashreplace") for token in (expected, found)]
        gap_double = float(exact[expected] - exact[found])
        bound = self.reference.bound_at([*prompt, *prefix])
        result = Difference(
            number, len(prefix), "bug", "", expected, found, words[0], words[1],
            gap=None if read is None else float(read[expected] - read[found]),
            gap_alone=None if alone is None else float(alone[expected] - alone[found]),
            gap_double=gap_double,
            distance=None if read is None else distance(read, exact),
        )  # fmt: skip
        best = int(exact.argmax())
        loser = {expected: read, found: other}.get(best)
        if failed:  # a bug, whatever the numbers say
            loser = None
        elif float(exact.max()) - float(min(exact[expected], exact[found])) < TIE:
            result.verdict, loser = "tie", None
        if (
            loser is not None
            and abs(float(loser[expected] - loser[found])) <= bound
            and distance(loser, exact) <= bound
        ):
            result.verdict = "noise" if best == expected else "reference noise"
        numbers = [
            f"{name} {value:+.2e}"
            for name, value in (
                ("in its own pass", result.gap),
                ("alone", result.gap_alone),
                (self.reference.exactly, gap_double),
            )
            if value is not None
        ]
        off = ""
        if other is not None and result.verdict == "reference noise":
            off = f", that of {who} by {distance(other, exact):.1e}"
        result.reason = (
            f"{words[1]!r} where {who} has {words[0]!r}; logits apart: {', '.join(numbers)}"
            + ("" if result.distance is None else f"; its row is off by {result.distance:.1e}")
            + off
            + f" (bound {bound:.1e}){failed}"
        )
        return result

    def single(self, ids: list[int]) -> Tensor:
        """Our own pass of width 1 behind `ids`."""
        context = self.target.open([ids], 1)
        context.prefill()
        row = context.forward(Draft.empty()).logits[0][0]
        context.close()
        return row

    def passes(
        self, number: int, text: list[int], read: list[Tensor | None], rows: Tensor
    ) -> list[Difference]:
        """Whether every row that judging read is the stock module's row within the bound."""
        known = [(i, row) for i, row in enumerate(read) if row is not None]
        if not known:
            return []
        own = torch.stack([row for _, row in known])
        gaps = (own - rows[[i for i, _ in known]]).abs().nan_to_num(torch.inf).amax(-1)
        worst = int(gaps.argmax())
        if float(gaps[worst]) <= self.bound:
            return []
        first = known[int((gaps > self.bound).long().argmax())][0]
        return [
            Difference(
                number, first, "bug",
                f"the pass that wrote this token is off: logits differ by {float(gaps[worst]):.1e} from "
                f"those of {self.reference.name} (bound {self.bound:.1e}), though no token changed",
                distance=float(gaps[worst]),
            )
        ]  # fmt: skip


def audited_model(model: Any, device: str | None, dtype: str | None) -> Any:
    """A model that can be audited, loaded if need be.

    Raises
    ------
    ModelError
        If it only drafts for another model, or its generation config sets what no method decodes with.
    """
    target = load_if_needed(model, device, dtype)
    if target.kind in ADDED:
        target.alone()
    check_processors(target)
    return target


def check_causal(target: Any) -> None:
    """Refuse a model that writes canvases.

    Raises
    ------
    ParameterError
    """
    if target.kind == "diffusion":
        raise ParameterError(f"{target.name} is a masked-diffusion model: audit it with audit.canvases")


def _raised(error: Exception) -> str:
    """An exception in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _enumerated(make: Callable[[], Method]) -> list[law.LawResult]:
    """The exact laws of a method on the toy vocabulary; one that raises has none and does not hold."""

    def toy() -> Method:  # a file or a memory of another vocabulary means nothing there
        method = make()
        if method.law_check_params:
            return type(method)(**(method.values | method.law_check_params))
        known = method.memory is not None and method.memory["known"]
        if not known and not any(getattr(method, name) for name in method.files):
            return method
        return type(method)(**{k: v for k, v in method.values.items() if k not in method.files})

    try:
        return law.check(toy)
    except Exception as error:
        return [law.LawResult(_label(make()), "toy", float("inf"), law.TOLERANCE, 0, _raised(error))]


def _drawn(
    reference: Reference | Stepwise,
    chosen: Chosen,
    factories: list[Callable[[], Method]],
    prompts: list[list[int]],
    sampling: Sampling,
    draws: int,
) -> list[Drawn]:
    """Chi-square tests of each method on the model; none where no prompt's first tokens vary enough.

    A method that remembers is warm: it has decoded the prompt, and others, before.
    """
    target = chosen.target
    laws = [law.first_tokens(target, reference, prompt, draws, 2, sampling) for prompt in prompts[:LOOKED]]
    spread = [len(law.cells_of(each, draws)) for each in laws]
    number = int(np.argmax(spread))
    if spread[number] < 2:
        return []
    found = []
    for make in factories:
        for drafter in make().suited(chosen.drafters):
            result = Drawn(_label(make()), drafter.name if drafter else "", _spell(sampling), number)
            try:
                read = [prompts[number], *prompts[:SAMPLE]]
                begun = law.warm(make, target, drafter, read, law.FILLING) or make
                result.test = law.chi_square(target, drafter, prompts[number], draws, begun, 2, sampling)
            except Exception as error:
                result.reason = _raised(error)
            found.append(result)
    return found


def _text(cycles: list[Cycle]) -> list[int]:
    text: list[int] = []
    for cycle in cycles:
        del text[cycle.keep :]
        text += cycle.tokens
    return text


def _rows_read(cycles: list[Cycle]) -> list[Tensor | None]:
    """For each token of the text the row of the method's own pass that predicts it, if one did."""
    read: list[Tensor | None] = []
    for cycle in cycles:
        del read[cycle.keep :]
        if cycle.verdict is None:
            continue
        for i in range(len(cycle.tokens)):
            row = 0 if i == 0 else 1 + cycle.verdict.path[i - 1]
            known = cycle.scores is not None and row < len(cycle.scores)
            read.append(cycle.scores[row] if known else None)
    return read


def _measure(target: Any, reference: Reference | Stepwise, ids: list[list[int]], limit: int) -> Bound:
    """The bound, over texts spread evenly among the prompts."""
    picks = sorted({round(i) for i in np.linspace(0, len(ids) - 1, min(SAMPLE, len(ids)))})
    texts = []
    for pick in picks:
        cycles = decode(target, ids[pick], catalogue.find("autoregressive")(), max_new_tokens=limit)
        texts.append((ids[pick], [token for cycle in cycles for token in cycle.tokens]))
    return reference.bound(texts)


def _ids(target: Any, prompt: Any) -> list[int]:
    if isinstance(prompt, dict) and "role" not in prompt:
        turns = prompt.get("turns")
        prompt = [{"role": "user", "content": turns[0]}] if turns else prompt.get("prompt", "")
    return list(target.encode(prompt))


def _exact(method: Method, sampling: Sampling, target: Any) -> bool:
    return method.exactness(sampling, number_format(target)) != "lossy"


def _factories(given: Sequence[Any] | None, dtype: str, streams: bool = False) -> list[Callable[[], Method]]:
    """Functions that make each method anew; all of them decode prompts, or all of them streams."""
    if given is None:
        found: list[Callable[[], Method]] = []
        for name in ("autoregressive", *(n for n in catalogue.names("prompt") if n != "autoregressive")):
            kind = catalogue.find(name)
            for values in ({}, kind.exact):
                if kind(**values).exactness(Sampling(), dtype) != "lossy":
                    found.append(partial(kind, **values))
                    break
        return found
    result = [_factory(each) for each in catalogue.as_list(given)]
    for make in result:
        method = make()
        if method.canvas:
            raise ParameterError(f"{method.name} writes canvases: audit it with audit.canvases")
        if method.streams != streams:
            raise ParameterError(
                f"{method.name} decodes {'streams' if method.streams else 'prompts'}: audit it with "
                f"{'audit.streams' if method.streams else 'audit.run'}"
            )
        if method.exactness(Sampling(), dtype) == "lossy":
            raise ParameterError(
                f"{_label(method)} is lossy by design, so there is nothing to audit; set parameters with "
                f"which it is exact ({method.name}:name=value)"
            )
    return result


def _factory(given: Any) -> Callable[[], Method]:
    if isinstance(given, Method):
        return given.again
    if isinstance(given, type):
        return catalogue.find(given)
    if not isinstance(given, str):
        return given  # type: ignore[no-any-return]
    name, _, settings = given.partition(":")
    kind = catalogue.find(name.strip())
    known = {p.name: p for p in kind.parameters}
    values: dict[str, Any] = {}
    for setting in filter(None, settings.split(",")):
        key, equals, word = (part.strip() for part in setting.partition("="))
        if not equals:
            raise ParameterError(f"write {name}:name=value, not {given!r}")
        default = known[key].default if key in known else ""
        try:
            if isinstance(default, bool):
                values[key] = {"true": True, "1": True, "false": False, "0": False}[word.lower()]
            else:
                values[key] = word if isinstance(default, str) else float(word)
        except (KeyError, ValueError):
            raise ParameterError(f"{key} of {name} cannot be {word!r}") from None
    kind(**values)
    return partial(kind, **values)


def served(target: Any, methods: Sequence[Any], named: bool = False) -> tuple[list[Any], dict[str, str]]:
    """Which of some methods a model can serve, and why not the others.

    Parameters
    ----------
    target : Model
    methods : sequence of str, Method or factory
        As `run` takes them.
    named : bool
        Whether a person named them: then the first one that cannot be served is refused.

    Returns
    -------
    (list, dict of str to str)
        Those of `methods` that can be served; the names of the others with the reasons.

    Raises
    ------
    ParameterError, ModelError
        If `named`.
    """
    able, left_out = [], {}
    for each in methods:
        method = _factory(each)()
        try:
            check_served(target, method)
        except (ParameterError, ModelError) as error:
            if named:
                raise
            left_out[method.name] = str(error)
        else:
            able.append(each)
    return able, left_out


def _drafters(
    target: Any, drafts: Any, factories: list[Callable[[], Method]], device: str | None, dtype: str | None
) -> list[Any]:
    if not any(make().needs_draft for make in factories):
        return []
    if drafts is None:
        bundled = [bundled_draft(make(), target.name) for make in factories if make().needs_draft]
        drafts = [name for name in dict.fromkeys(bundled) if name is not None]
        if not drafts:
            raise ParameterError("methods with a draft model need drafts= (names, folders or models)")
    each = drafts if isinstance(drafts, list | tuple) else [drafts]
    found = [load_drafter(target, draft, device, dtype) for draft in each]
    if not found:
        raise ParameterError("methods with a draft model need at least one draft")
    for drafter in found:
        target.check_vocabulary(drafter)
    return found


def _drafted(
    factories: list[Callable[[], Method]], drafters: list[Any], named: bool
) -> tuple[list[Callable[[], Method]], dict[str, str]]:
    """Those of the methods that have a drafter, and why not the others; the named ones must have one."""
    able = [make for make in factories if make().suited(drafters)]
    lacking = [make() for make in factories if make not in able]
    if named and lacking:
        name = lacking[0].name
        raise ParameterError(f"none of the drafts is one that {name} drafts with: pass such a one too")
    return able, {
        method.name: f"{method.name} needs {ADDITIONS.get(method.drafts_with, 'a draft model')}"
        for method in lacking
    }


def _label(method: Method) -> str:
    """The method's name, with the parameters that are not the default."""
    changed = [f"{p.name}={getattr(method, p.name):g}" if not isinstance(p.default, str | bool)
               else f"{p.name}={getattr(method, p.name)}"
               for p in method.parameters if getattr(method, p.name) != p.default]  # fmt: skip
    return method.name + (f" ({', '.join(changed)})" if changed else "")


def _spell(sampling: Sampling) -> str:
    return "greedy" if sampling.greedy else law.spell(sampling)


@contextmanager
def _backend(threads: int | None) -> Iterator[None]:
    """So many threads, and float32 products in float32 (TF32 off), until the audit is over."""
    before, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    if threads is not None:
        torch.set_num_threads(check_threads(threads))
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.set_float32_matmul_precision(precision)
