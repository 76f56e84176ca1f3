"""Decode one prompt, cycle by cycle."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from ..draft import Draft
from ..errors import ModelError, ParameterError, plural
from ..methods.base import Drafting, Method, Request, Session, Verdict
from ..methods.kinds import SizedMethod
from ..methods.retranslate import Retranslate
from ..methods.sampling import Sampling, Uniforms
from ..models.protocols import Context, Model, Pass
from .clock import Clock, Mark, Watched

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from ..models.canvas import Read

NOTHING = Draft.empty()


class Target(Protocol):
    """Interface that the loop needs from the target model."""

    vocabulary: int
    eos: tuple[int, ...]

    def left(self, prompt: int) -> int:
        """How many tokens can follow a prompt of `prompt` tokens."""

    def open(self, prompts: Sequence[Sequence[int]], room: int) -> Any:
        """Open a context of `prompts`, with room for `room` more tokens each."""


@dataclass
class Cycle:
    """A finished cycle.

    Parameters
    ----------
    prompt, number, row : int
        Index of the prompt, of the cycle within it (0 is the prefill), and of its row in a batch.
    context, keep : int
        Committed tokens before the cycle, with and without the prompt.
    tokens : list of int
        Emitted tokens; `origins` says how each came about.
    end : str or None
        What ended the text: eos, length, context or interrupted.
    draft, verdict, status
        The draft, the verdict on it, and the final status of each node. Empty in the prefill.
    scores : tensor [1 + n, vocabulary] or None
        The target's logits at the root and at each node.
    passes : list of (model, rows, tokens, mark, mark)
        Forward passes in order: rows in the pass, and tokens fed for this row.
    marks : list
        Clock marks: begin, drafted, passed, verified, committed; fewer in the prefill, which drafts nothing.
    control : dict
        The controller's values.
    update : int
        Index of the update in a stream. Its first cycle also has `source` (the text so far), `arrival` (in
        seconds) and `reused` (prompt tokens that were not recomputed); its last one `shown` (tokens
        displayed).
    cells_read : Read or None
        For a canvas, the cells that `scores` belong to. A canvas also has `block`, `refreshed` and `cells`,
        the cells of the emitted tokens.
    """

    prompt: int
    number: int
    context: int
    keep: int
    tokens: list[int] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    end: str | None = None
    draft: Draft | None = None
    verdict: Verdict | None = None
    status: list[str] = field(default_factory=list)
    scores: Tensor | None = None
    passes: list[tuple] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    control: dict[str, float] = field(default_factory=dict)
    row: int = 0
    update: int = 0
    source: str | None = None
    arrival: float | None = None
    reused: int | None = None
    shown: int | None = None
    cells_read: Read | None = None
    block: int | None = None
    refreshed: bool | None = None
    cells: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Settings:
    """Options for decoding prompts.

    Parameters
    ----------
    drafter : Model, optional
        Anything that has ``vocabulary``, ``eos``, ``device``, ``left`` and ``open``.
    sampling : Sampling, optional
        Default: greedy.
    max_new_tokens : int
        Maximum number of emitted tokens.
    eos : iterable of int, optional
        Ids that end the text. Default: the target's.
    seed, prompt : int
        Keys of the random numbers.
    uniforms : callable, optional
        ``uniforms(cycle, use, n)`` replaces the generator, so that a test can enumerate all outcomes.
    previous : sequence of int
        In a stream, the output of the previous update.
    """

    drafter: Target | None = None
    sampling: Sampling | None = None
    max_new_tokens: int = 128
    eos: Iterable[int] | None = None
    seed: int = 0
    prompt: int = 0
    uniforms: Callable[[int, int, int], np.ndarray] | None = None
    previous: Sequence[int] = ()


def decode(
    target: Target, tokens: list[int], method: Method, *, clock: Clock | None = None,
    context: Context | None = None, **options: Any,
) -> Iterator[Cycle]:  # fmt: skip
    """Decode one prompt; yield each cycle as it finishes.

    Parameters
    ----------
    target : Model
        Anything that has ``vocabulary``, ``eos``, ``left`` and ``open``.
    tokens : list of int
        The prompt, at least one token and shorter than the target's context.
    method : Method
        Drafter and verifier.
    clock : Clock, optional
        Default None: record no times.
    context : optional
        An open context of the target that holds a prefix of `tokens`. It is extended by the rest and stays
        open. Default: a context is opened, and closed at the end.
    **options
        Fields of `Settings`.

    Yields
    ------
    Cycle
        The prefill, then one for each draft-verify cycle.
    """
    with closing(SingleText(target, tokens, method, clock, Settings(**options))) as text:
        yield text.prefill(context)
        while text.end is None:
            yield text.step()


class Text(ABC):
    """One text being decoded; what a single prompt and a row of a batch have in common.

    `open` serves as `Session.open`. Passes are logged in `passes` as they run; each cycle takes those since
    the previous cycle.
    """

    def __init__(self, target: Target, tokens: list[int], method: Method, settings: Settings) -> None:
        if isinstance(method, SizedMethod) and method.unsized:
            raise ParameterError(
                f"{method.name} has no {method.size} yet: resize it, or decode with generate"
            )
        self.method, self.prompt = method, settings.prompt
        self.passes: list[tuple] = []
        self.prompt_length = self.length = len(tokens)
        self.eos = frozenset(target.eos if settings.eos is None else settings.eos)
        self.limit = min(settings.max_new_tokens, target.left(len(tokens)))
        self.limited_by = "length" if self.limit == settings.max_new_tokens else "context"
        self.end = self.limited_by if self.limit <= 0 else None
        uniforms = settings.uniforms or Uniforms(settings.seed, settings.prompt)
        session = self.session = Session(
            list(tokens), settings.sampling or Sampling(), target,
            settings.drafter or method.drafter_of(cast("Model", target)), self.eos, self.limit, self.open,
            lambda use, n: uniforms(session.cycle, use, n), previous=list(settings.previous),
            text=list(tokens),
        )  # fmt: skip

    @abstractmethod
    def open(self, model: Target, tokens: list[int], room: int, name: str) -> Any:
        """Open a context for the method; its passes are logged under `name`."""

    @property
    def left(self) -> int:
        """How many tokens may still be emitted."""
        return self.limit - (self.length - self.prompt_length)

    def draft(self) -> Draft | Drafting:
        """Begin a cycle: return the method's draft, or the generator that makes it.

        Raises
        ------
        ParameterError
            If the method has since started another text, or returns something that is not a valid draft.
        """
        if getattr(self.method, "session", self.session) is not self.session:
            raise ParameterError(
                f"this {self.method.name} has begun another text: give each unfinished run a method "
                "of its own, by name or as method.again()"
            )
        self.session.cycle += 1
        self.session.control = {}  # signals do not carry over to the next cycle
        proposal = self.method.draft(self.left)
        check_proposal(proposal, self.method, self.left)
        return proposal

    def goes_on(self, verdict: Verdict) -> bool:
        """Take the tokens of a verdict; return whether decoding continues."""
        if not isinstance(verdict, Verdict):
            raise ParameterError(
                f"{self.method.name}.verify must return a Verdict, got {type(verdict).__name__}: return "
                "specviz.methods.Verdict(...), or what the inherited verify returns"
            )
        if not verdict.path and verdict.token is None and not self.method.streams:
            raise ParameterError(
                f"{self.method.name}.verify emitted no token: accept a drafted one or give the target's own"
            )
        nodes = range(len(verdict.tokens))
        if any(node not in nodes for node in verdict.path):
            raise ParameterError(
                f"{self.method.name}.verify returned the path {list(verdict.path)} of a draft of "
                f"{plural(len(nodes), 'node')}: name only its nodes, from 0"
            )
        self.tokens = [verdict.tokens[node] for node in verdict.path]
        self.origins = [origin_of(verdict.status[node]) for node in verdict.path]
        if verdict.token is not None:
            self.tokens.append(verdict.token)
            self.origins.append(verdict.origin)
        self.count, self.end = ending(self.tokens, self.eos, self.left, self.limited_by)
        self.session.text += self.tokens[: self.count]
        return self.end is None

    def unwritten(self, draft: Draft, verdict: Verdict) -> list[int]:
        """The tokens that the target's context lacks once a draft that it read is committed."""
        # A stream's context begins with the tokens that its method keeps unread (`carried`).
        there = draft.read or self.method.streams
        return self.tokens[len(verdict.path) :] if there else self.tokens

    def prefilled(self, marks: list[Mark]) -> Cycle:
        """Return cycle 0. The target runs before the drafter here; the marks still separate the phases."""
        cycle = self._cycle(marks)
        cycle.end = self.end
        return cycle

    def cycle(self, draft: Draft, result: Pass | None, verdict: Verdict, marks: list[Mark]) -> Cycle:
        """Return the cycle that ends with this verdict; call after `goes_on`."""
        cycle = self._cycle(marks)
        cycle.tokens, cycle.origins = self.tokens[: self.count], self.origins[: self.count]
        cycle.end, cycle.draft, cycle.verdict = self.end, draft, verdict
        cycle.status = cut(draft, verdict, self.count) if self.end else verdict.status
        cycle.scores = None if result is None else result.logits[0]
        self.length += self.count
        return cycle

    def _cycle(self, marks: list[Mark]) -> Cycle:
        new = self.passes[:]
        self.passes.clear()
        number, keep = self.session.cycle, self.length - self.prompt_length
        control = dict(self.session.control)
        return Cycle(self.prompt, number, self.length, keep, passes=new, marks=marks, control=control)


class SingleText(Text):
    """A text that is decoded alone, in single-row contexts."""

    def __init__(
        self, target: Target, tokens: list[int], method: Method, clock: Clock | None, settings: Settings
    ) -> None:
        self.clock = clock
        self.opened: list[Watched] = []
        super().__init__(target, tokens, method, settings)

    def open(self, model: Target, tokens: list[int], room: int, name: str) -> Watched:
        self.opened.append(Watched(model.open([tokens], room), name, self.clock, self.passes))
        return self.opened[-1]

    def close(self) -> None:
        """Close the contexts that were opened here."""
        for context in self.opened:
            context.close()

    def mark(self) -> Mark:
        """Mark the current time, or return None without a clock."""
        return self.clock.mark() if self.clock else None

    def prefill(self, context: Context | None = None) -> Cycle:
        """Run cycle 0: the target reads the prompt, in a new or a given context, and the method starts."""
        begin = self.mark()
        method, session = self.method, self.session
        prompt, room = session.prompt, self.limit + method.extra_cache_slots
        if isinstance(method, Retranslate):
            prompt = prompt + method.carried(session.previous, self.limit)
        if context is None:
            self.target = self.open(session.target, prompt, room, "target")
        else:
            self.target = Watched(context, "target", self.clock, self.passes)
            held = context.length[0]
            self.target.reserve(self.prompt_length - held + room)
            self.target.extend([prompt[held:]])
        self.hidden = method.hidden_layers(session.drafter)
        if method.reads_prompt:
            self.target.prefill(self.hidden)
            session.states = self.target.states.pop(0, {})  # the context need not keep them
        else:
            self.target.prefill()
        passed = self.mark()
        method.start(session)
        self.options = {} if method.exit_rule is None else {"leave": method.exit_rule}
        return self.prefilled([begin, passed, self.mark()])

    def step(self) -> Cycle:
        """Run the next draft-verify cycle."""
        method, context = self.method, self.target
        begin = self.mark()
        draft = drafted_by(self.draft(), self.method, self.left)
        drafted = self.mark()
        result = context.forward(draft, self.hidden, **self.options) if draft.read else None
        check_scores(result)
        passed = self.mark()
        verdict = method.verify(draft, None if result is None else result.logits[0])
        verified = self.mark()
        if self.goes_on(verdict):  # the context is not used after the last cycle
            if draft.read:
                context.commit(verdict.path)
            if new := self.unwritten(draft, verdict):
                context.extend([new])
            method.learn(draft, result, verdict)
        return self.cycle(draft, result, verdict, [begin, drafted, passed, verified, self.mark()])


def check_scores(result: Pass | None) -> None:
    """Refuse NaN scores, for example after a float16 overflow; one score per node is tested.

    On a GPU nothing is tested, because reading a score would wait for the pass.

    Raises
    ------
    ModelError
        The message says what to do.
    """
    if result is None or result.logits[0].device.type != "cpu":
        return
    if bool(result.logits[0][:, 0].isnan().any()):
        raise ModelError(
            "the model's scores are not numbers (NaN): load it with dtype='float32' or check its weights"
        )


def check_proposal(proposal: object, method: Method, left: int) -> None:
    """Refuse an invalid return value of `Method.draft`.

    Raises
    ------
    ParameterError
        If it is not a draft, or is a chain longer than what may still be emitted (streams may exceed that).
    """
    if isinstance(proposal, Draft):
        if len(proposal) > left and proposal.is_chain and not method.streams:
            raise ParameterError(
                f"{method.name} drafted {len(proposal)} tokens although only {left} may still be emitted: "
                f"draft at most left - 1, because the target adds one"
            )
    elif not isinstance(proposal, Generator):
        raise ParameterError(
            f"{method.name}.draft must return a Draft, got {type(proposal).__name__}: return "
            "sv.Draft.chain(tokens), or sv.Draft.empty() to draft nothing"
        )


def drafted_by(proposal: Draft | Drafting, method: Method, left: int) -> Draft:
    """Return the draft, running the passes that a drafting generator requests."""
    if isinstance(proposal, Draft):
        return proposal
    result: Any = None  # a generator must first be sent None
    while True:
        try:
            context, read = pass_request(proposal.send(result))
        except StopIteration as done:
            return finished(done.value, method, left)
        result = context.forward(read)


def finished(value: Draft | None, method: Method, left: int) -> Draft:
    """Check and return the draft that a drafting generator ended with.

    Raises
    ------
    ParameterError
        If it is not a draft, or `check_proposal` refuses it.
    """
    if not isinstance(value, Draft):
        raise ParameterError(
            f"a drafting generator must return a Draft at its end, got {type(value).__name__}: "
            "return sv.Draft.empty() to draft nothing"
        )
    check_proposal(value, method, left)
    return value


def pass_request(request: Request) -> tuple[Context, Draft]:
    """Split what a drafter yielded into a context and the draft to read after its pending tokens.

    Raises
    ------
    ParameterError
        If it is neither a context nor a context with a draft.
    """
    context, draft = request if isinstance(request, tuple) and len(request) == 2 else (request, NOTHING)
    if not (hasattr(context, "extend") and isinstance(draft, Draft)):
        raise ParameterError(
            f"a drafting generator yields a context that session.open gave, or (context, draft), got "
            f"{request!r:.60}"
        )
    return context, draft


def origin_of(status: str) -> str:
    """Origin of an emitted node: ``draft``, or ``unreviewed`` if the target never read it."""
    return status if status == "unreviewed" else "draft"


def ending(emitted: list[int], eos: frozenset[int], left: int, limited_by: str) -> tuple[int, str | None]:
    """How many of a cycle's tokens are emitted, and what ends the text there, if anything.

    An end token ends the text wherever it occurs, and is emitted; otherwise the limit is `left` tokens.
    """
    for i, token in enumerate(emitted[:left]):
        if token in eos:
            return i + 1, "eos"
    return (left, limited_by) if len(emitted) >= left else (len(emitted), None)


def cut(draft: Draft, verdict: Verdict, count: int) -> list[str]:
    """Statuses after the text ended at `count` tokens: nodes below the last emitted one become ``cut``."""
    if count > len(verdict.path):
        return verdict.status  # the text ended with the target's own token
    last = verdict.path[count - 1]
    below = draft.mask[:, last].copy()  # the last emitted node and its descendants
    below[last] = False
    return ["cut" if dropped else status for dropped, status in zip(below, verdict.status)]
