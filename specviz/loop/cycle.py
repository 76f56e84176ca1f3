"""One prompt, decoded cycle by cycle."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..draft import Draft
from ..errors import ParameterError
from ..methods.base import Method, Session, Verdict
from ..methods.sampling import Sampling, Uniforms
from .clock import Clock, Watched

NOTHING = Draft.empty()


@dataclass
class Cycle:
    """A finished cycle.

    Parameters
    ----------
    prompt, number, row : int
        Index of the prompt, and of the cycle within it; cycle 0 is the prefill. In a batch its row.
    context : int
        Committed tokens before the cycle.
    tokens : list of int
        What it emitted, and `origins` how each came about.
    end : str or None
        What ended the decoding: eos, length, context.
    draft, verdict, status
        What was proposed, what was decided, and the final status of each node. None in the prefill.
    scores : tensor [1 + n, vocabulary] or None
        The target's logits at the root and at each node.
    passes : list of (model, rows, tokens, mark, mark)
        Forward passes, in order: how many rows were in it, and this one's tokens.
    marks : list
        Clock marks: begin, drafted, passed, verified, committed.
    control : dict
        The controller's values.
    update : int
        Which update of a stream; with it, in its first cycle, `source` (the text so far), `arrival` (when it
        came, in seconds) and `reused` (prompt tokens that were not computed anew); in its last one `shown`
        (tokens that are displayed).
    read : Read or None
        Of a canvas: which cells `scores` are of. With it `block` and `refreshed`, and of what was emitted the
        `cells`.
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
    scores: Any = None
    passes: list[tuple] = field(default_factory=list)
    marks: list[Any] = field(default_factory=list)
    control: dict[str, float] = field(default_factory=dict)
    row: int = 0
    update: int = 0
    source: str | None = None
    arrival: float | None = None
    reused: int | None = None
    shown: int | None = None
    read: Any = None
    block: int | None = None
    refreshed: bool | None = None
    cells: list[int] = field(default_factory=list)


def decode(
    target: Any,
    tokens: list[int],
    method: Method,
    *,
    drafter: Any = None,
    sampling: Sampling | None = None,
    max_new_tokens: int = 128,
    eos: Any = None,
    seed: int = 0,
    prompt: int = 0,
    uniforms: Any = None,
    clock: Clock | None = None,
    previous: Sequence[int] = (),
    context: Any = None,
) -> Iterator[Cycle]:
    """Decode one prompt; yield each cycle when it is finished.

    Parameters
    ----------
    target, drafter : Model
        Anything with the model's face: ``vocabulary``, ``eos``, ``device``, ``left``, ``open``.
    tokens : list of int
        The prompt, at least one token and shorter than the target's context.
    method : Method
        Drafter and verifier.
    sampling : Sampling, optional
        Default: greedy.
    max_new_tokens : int
        Never more than these are emitted.
    eos : iterable of int, optional
        Ids that end the text. Default: the target's.
    seed, prompt : int
        Keys of the random numbers.
    uniforms : callable, optional
        ``uniforms(cycle, use, n)`` in place of the generator: a test can walk through all outcomes.
    clock : Clock, optional
        None takes no times.
    previous : sequence of int
        In a stream, the output of the update before.
    context : optional
        A context of the target that begins with `tokens`, as far as it holds any, and stays open; it gets the
        rest. Default: one is opened, and closed at the end.

    Yields
    ------
    Cycle
        First the prefill, then one for each draft-verify cycle.
    """
    passes: list[tuple] = []
    opened: list[Any] = []

    def open_context(model: Any, ids: list[int], room: int, name: str) -> Watched:
        opened.append(Watched(model.open([ids], room), name, clock, passes))
        return opened[-1]

    text = Text(
        target, tokens, method, open_context, passes, drafter=drafter, sampling=sampling,
        max_new_tokens=max_new_tokens, eos=eos, seed=seed, prompt=prompt, uniforms=uniforms,
        previous=previous,
    )  # fmt: skip
    mark = clock.mark if clock else lambda: None
    try:
        begin = mark()
        begun = text.session.prompt + method.carried(text.session.previous, text.limit)
        if context is None:
            context = open_context(target, begun, text.limit + method.spare, "target")
        else:
            context = Watched(context, "target", clock, passes)
            context.reserve(len(tokens) - context.length[0] + text.limit + method.spare)
            context.extend([begun[context.length[0] :]])
        layers = method.hidden_layers(text.session.drafter)
        if method.reads_prompt:
            context.prefill(layers)
            text.session.states = context.states.pop(0, {})  # the context keeps none
        else:
            context.prefill()
        passed = mark()
        method.start(text.session)
        rule = {} if method.leave is None else {"leave": method.leave}
        yield text.prefilled([begin, passed, mark()])
        while text.end is None:
            begin = mark()
            draft = drafted_by(text.draft())
            drafted = mark()
            result = context.forward(draft, layers, **rule) if draft.read else None
            passed = mark()
            verdict = method.verify(draft, None if result is None else result.logits[0])
            verified = mark()
            if text.goes_on(verdict):  # what nobody reads is not committed
                if draft.read:
                    context.commit(verdict.path)
                if verdict.token is not None:
                    context.extend([[verdict.token]])
                method.learn(draft, result, verdict)
            yield text.cycle(draft, result, verdict, [begin, drafted, passed, verified, mark()])
    finally:
        for each in opened:
            each.close()


class Text:
    """One prompt on its way to its text: what the loop of one and the loop of a batch do alike.

    Parameters
    ----------
    open : callable
        As `Session.open`.
    passes : list
        Where passes are written down as they are run; every cycle takes those that came since the last one.
    target, tokens, method, others
        As `decode` takes them.
    """

    def __init__(
        self,
        target: Any,
        tokens: list[int],
        method: Method,
        open: Any,
        passes: list[tuple],
        *,
        drafter: Any = None,
        sampling: Sampling | None = None,
        max_new_tokens: int = 128,
        eos: Any = None,
        seed: int = 0,
        prompt: int = 0,
        uniforms: Any = None,
        previous: Sequence[int] = (),
    ) -> None:
        if method.unsized:
            raise ParameterError(
                f"{method.name} has no {method.size} yet: resize it, or decode with generate"
            )
        source = uniforms or Uniforms(seed, prompt)
        self.method, self.passes, self.prompt = method, passes, prompt
        self.begin = self.length = len(tokens)
        self.ends = frozenset(target.eos if eos is None else eos)
        self.limit = min(max_new_tokens, target.left(len(tokens)))
        self.full = "length" if self.limit == max_new_tokens else "context"
        self.end = self.full if self.limit <= 0 else None
        session = self.session = Session(
            list(tokens), sampling or Sampling(), target, drafter or method.drafter_of(target), self.ends,
            self.limit, open, lambda use, n: source(session.cycle, use, n), previous=list(previous),
            text=list(tokens),
        )  # fmt: skip

    @property
    def left(self) -> int:
        """How many tokens may still be emitted."""
        return self.limit - (self.length - self.begin)

    def draft(self) -> Draft | Generator[Any, Any, Draft]:
        """A cycle begins: what the method proposes."""
        self.session.cycle += 1
        return self.method.draft(self.left)

    def goes_on(self, verdict: Verdict) -> bool:
        """Take the tokens of a verdict; whether decoding goes on behind them."""
        self.tokens = [verdict.tokens[node] for node in verdict.path]
        self.origins = [origin_of(verdict.status[node]) for node in verdict.path]
        if verdict.token is not None:
            self.tokens.append(verdict.token)
            self.origins.append(verdict.origin)
        self.count, self.end = ending(self.tokens, self.ends, self.left, self.full)
        self.session.text += self.tokens[: self.count]
        return self.end is None

    def prefilled(self, marks: list[Any]) -> Cycle:
        """Cycle 0. In it the target comes first; phases are told apart by their marks all the same."""
        cycle = self._cycle(marks)
        cycle.end = self.end
        return cycle

    def cycle(self, draft: Draft, result: Any, verdict: Verdict, marks: list[Any]) -> Cycle:
        """The cycle that ends with this verdict, `goes_on` having been asked."""
        cycle = self._cycle(marks)
        cycle.tokens, cycle.origins = self.tokens[: self.count], self.origins[: self.count]
        cycle.end, cycle.draft, cycle.verdict = self.end, draft, verdict
        cycle.status = cut(draft, verdict, self.count) if self.end else verdict.status
        cycle.scores = None if result is None else result.logits[0]
        self.length += self.count
        return cycle

    def _cycle(self, marks: list[Any]) -> Cycle:
        new = self.passes[:]
        self.passes.clear()
        number, keep = self.session.cycle, self.length - self.begin
        control = dict(self.session.control)
        return Cycle(self.prompt, number, self.length, keep, passes=new, marks=marks, control=control)


def drafted_by(proposed: Draft | Generator[Any, Any, Draft]) -> Draft:
    """The draft; the passes that a drafter asks for on the way are run as it asks."""
    if isinstance(proposed, Draft):
        return proposed
    result = None
    while True:
        try:
            asked = proposed.send(result)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        context, draft = request(asked)
        result = context.forward(draft)


def request(asked: Any) -> tuple[Any, Draft]:
    """What a drafter yielded: a context, and what its pass shall read there behind what is pending."""
    return asked if isinstance(asked, tuple) else (asked, NOTHING)


def origin_of(status: str) -> str:
    """Origin of an emitted node: ``draft``, or ``unreviewed`` where the target never saw it."""
    return status if status == "unreviewed" else "draft"


def ending(emitted: list[int], eos: frozenset[int], left: int, full: str) -> tuple[int, str | None]:
    """How many of a cycle's tokens are emitted, and what ends the text there, if anything.

    An end token ends it wherever it stands, and stays; otherwise `left` tokens are the limit.
    """
    for i, token in enumerate(emitted[:left]):
        if token in eos:
            return i + 1, "eos"
    return (left, full) if len(emitted) >= left else (len(emitted), None)


def cut(draft: Draft, verdict: Verdict, count: int) -> list[str]:
    """Statuses when the text ended after `count` tokens: nodes behind the last emitted one are cut."""
    if count > len(verdict.path):
        return verdict.status  # it ended with the target's own token
    last = verdict.path[count - 1]
    below = draft.mask[:, last].copy()  # nodes that see the last emitted one
    below[last] = False
    return ["cut" if gone else status for gone, status in zip(below, verdict.status)]
