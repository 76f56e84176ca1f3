"""The audit of streams: every update's text against the target's own, every pass against the stock module's.

At β = 0, SSBD must write in each update what re-translation writes: the target's own text after the update's
prompt. If two outputs diverge, the next drafts differ, but no draft may change a text. So each update is
judged alone, by the rule that judges prompts, against a decode from an empty cache. The laws of sampling are
enumerated on a toy vocabulary after every draft of up to two tokens: the target's at β = 0, equation 3's
(Zeng et al.) at β > 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from .. import methods as catalogue
from ..errors import ParameterError, plural
from ..loop.cycle import Cycle
from ..loop.drafters import Loadable
from ..loop.machine import number_format
from ..loop.run import Run
from ..methods.retranslate import Retranslate
from ..methods.sampling import Sampling
from ..models.protocols import Model
from ..models.template import Template
from ..streams import Stream, Update
from . import law, setup
from .law import GREEDY, Make
from .reference import reference_of
from .result import AuditResult, Difference, LawResult, Row
from .text import Decoding, Subject, _Audit, _measure, result_of

END = 2  # the end token of the toy vocabulary, which has three
DRAFTS = ((0, 0), (0, 1), (1, 0), (1, 1), (0, END), (1, END), (END,))  # outputs for the next update's draft
BIAS = 0.3  # β of the lossy law that is enumerated


class Updates(Subject):
    """A stream method and its progress through all updates; a stream on which it raises ends there.

    Parameters
    ----------
    given : sequence of (sequence of Update)
        The streams.
    """

    def __init__(
        self, target: Model, make: Make, decoding: Decoding, given: Sequence[Sequence[Update]]
    ) -> None:
        method = make()
        assert isinstance(method, Retranslate)
        method.prepare(target)
        template = Template(target, *method.wording())
        self.given, self.lost = given, -1
        self.places = [(i, j) for i, updates in enumerate(given) for j in range(len(updates))]
        prompts = [template(given[i][j].text) for i, j in self.places]
        super().__init__(target, None, make, decoding, prompts)
        self.row.draft = plural(len(given), "stream")
        self.row.streams = True

    def decode(self, number: int) -> list[Cycle]:
        """Decode one update and return its cycles; updates must come in order."""
        stream, update = self.places[number]
        if stream == self.lost:
            raise RuntimeError(f"update {update} was not reached")
        if self.run is None:
            streams, options = [Stream(list(each)) for each in self.given[stream:]], self.decoding.options()
            self.run = Run(self.target, streams, self.make(), record=None, **options)
        self.lost = stream  # until its text ends
        cycles = self.one_text(self.run)
        self.lost = -1
        if number == len(self.places) - 1:
            self.run.finish()
        return cycles

    def faults(self, number: int, cycles: list[Cycle]) -> list[Difference]:
        ends = set(self.target.eos)
        for cycle in cycles:
            if cycle.verdict is not None and ends.intersection(cycle.verdict.tokens):
                words = f"cycle {cycle.number} drafts an end token: once accepted, it would freeze the output"
                return [Difference(number, -1, "bug", words)]
        return []


def run(
    model: Loadable,
    streams: Sequence[Stream],
    methods: Sequence[setup.Given] | None = None,
    max_new_tokens: int = 64,
    dtype: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    sampled: int = 5,
    temperature: float = 1.0,
    laws: bool = True,
    progress: setup.Progress = None,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
) -> AuditResult:
    """Audit methods on streams: is each update the target's own text, for the right reasons?

    A GGUF file, which stock transformers do not run, is compared with itself read one token at a time.

    Parameters
    ----------
    model : Model or what `specviz.load` takes
    streams : sequence of Stream
    methods : list of str, class, Method or factory, optional
        As in `specviz.audit.run`. Default: re-translation from scratch, and SSBD at β = 0, with the token at
        the divergence from the verification pass or from a second pass.
    max_new_tokens : int
        Maximum number of new tokens per update.
    dtype, device : str, optional
        For a model that is not yet loaded; see `specviz.load`. Default: ``auto`` on the CPU.
    threads : int, optional
        Threads of the backend during the audit.
    sampled : int
        Number of streams that are decoded again with sampling, to recheck drafts and passes.
    temperature : float
        Temperature for those.
    laws : bool
        Whether to enumerate the laws of sampling: the methods', and equation 3's at β > 0.
    progress : callable, optional
        Called with (updates done, updates to do).
    top_k, top_p, seed
        For the sampled streams, as in `specviz.generate`.

    Returns
    -------
    AuditResult
        ``prompts`` of a row counts updates.

    Raises
    ------
    ParameterError, ModelError, PromptError
        Before any work.
    """
    drawn = setup.sampling_of(max_new_tokens, temperature, top_k, top_p, seed, sampled)
    with setup.on_backend(threads):
        target = setup.audited_model(model, device, dtype)
        given = [list(stream) for stream in streams]
        if not all(given) or not given:
            raise ParameterError("the audit needs at least one stream, and at least one update in each")
        named = default(target) if methods is None else methods
        factories = setup.factories_of(named, number_format(target), streams=True)
        setup.served(target, factories, named=True)
        reference = reference_of(target)
        first = Updates(target, factories[0], Decoding(GREEDY, max_new_tokens, 0.0), given)
        bound = _measure(target, reference, first.prompts, max_new_tokens)
        plans = [(GREEDY, given), (drawn, given[:sampled])]
        tick = setup.counter(progress, sum(len(updates) for _, some in plans for updates in some))
        rows = []
        for sampling, some in plans:
            decoding = Decoding(sampling, max_new_tokens, bound.value, seed)
            subjects = [Updates(target, make, decoding, some) for make in factories if some]
            rows += _rows(_Audit(target, reference, decoding), subjects, tick)
        results: list[LawResult] = []
        if laws:
            lossy: Make = partial(catalogue.find("retranslate"), beta=BIAS)
            results = [each for make in [*factories, lossy] for each in check(make)]
        return result_of(target, max_new_tokens, bound, rows, results)


def _rows(audit: _Audit, subjects: list[Updates], tick: Callable[[], None]) -> list[Row]:
    """Audit all updates and return each method's row; templates may differ between methods."""
    for number in range(len(subjects[0].places) if subjects else 0):
        alike: dict[tuple[int, ...], list[Subject]] = {}
        for subject in subjects:
            alike.setdefault(tuple(subject.prompts[number]), []).append(subject)
        for prompt, those in alike.items():
            audit.prompt(number, list(prompt), those)
        tick()
    for subject in subjects:
        for difference in subject.row.differences:
            difference.prompt, difference.update = subject.places[difference.prompt]
    return [subject.row for subject in subjects]


def default(target: Model) -> list[str]:
    """The default methods of an audit of streams.

    A model without the special tokens of the bundled prompt gets the source alone as its prompt.
    """
    template, method = "", Retranslate()
    method.prepare(target)
    try:
        Template(target, *method.wording())
    except ParameterError:
        template = ",template={source}"
    return [
        f"retranslate:{setting}{template}" for setting in ("mode=rt", "beta=0", "beta=0,second_pass=true")
    ]


def check(make: Make, settings: Sequence[Sampling] = law.SETTINGS, length: int = 3) -> list[LawResult]:
    """Compare the exact law of an update's texts with equation 3's, on a toy vocabulary with an end token.

    While a text is a prefix of the draft, its next token has the law (1 - β) p + β δ, otherwise p. At β = 0,
    and in re-translation, which ignores β, this is the target's own law.

    Parameters
    ----------
    make : callable
        Makes a fresh method.
    settings : sequence of Sampling
    length : int
        Maximum number of tokens of a text; a draft is cut to one less.

    Returns
    -------
    list of LawResult
        One for each setting, the worst of all drafts.
    """
    values = make().values
    beta = values.get("beta", 0.0) if values.get("mode") == "ssbd" else 0.0
    masked = values.get("k", 0) if values.get("mask") == "draft" else 0
    target = law.Table(END + 1, 8, eos=(END,))
    results = []
    for sampling in settings:
        error, cells, reason = 0.0, 0, ""
        edges = _edges(target, length, sampling, beta)
        try:
            for previous in DRAFTS:
                actual, count = law.law_of(make, target, target, [0, 1], length, sampling, previous, edges)
                draft = [token for token in previous if token != END]
                draft = draft[: max(0, len(draft) - masked)][: length - 1]
                expected = law.law_of_target(target, [0, 1], length, sampling, draft, beta)
                error, cells = max(error, law.apart(actual, expected)), cells + count
        except Exception as fault:  # a method that raises has no law
            error, reason = float("inf"), setup.raised(fault)
        name = setup.label(make()) + (", equation 3" if beta else "")
        results.append(LawResult(name, law.spell(sampling), error, law.TOLERANCE, cells, reason))
    return results


def _edges(target: law.Table, length: int, sampling: Sampling, beta: float) -> np.ndarray:
    """Likely places where a uniform number changes a decision; they only save bisection steps."""
    places: list[torch.Tensor] = []
    for text in target.texts(length):
        p = sampling.probabilities(target.logits([0, 1, *text]))
        left = p.repeat(len(p), 1).fill_diagonal_(0)  # row y: p without y
        left = left.cumsum(1) / left.sum(1, keepdim=True)
        places += [p.cumsum(0), (1 - beta) * p + beta, left.flatten()]
    return torch.cat(places).nan_to_num(0).numpy()
