"""What a method is: declared parameters, a drafter and a verifier."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, final

import numpy as np

from ..errors import ParameterError
from ..models.protocols import Context, Pass
from ..rules.parameters import Parameter as Parameter
from ..rules.parameters import Value
from ..schema import EXACTNESS, Signal, check_signals
from .hooks import Hooks

if TYPE_CHECKING:
    from torch import Tensor

    from ..draft import Draft
    from .sampling import Sampling

Request: TypeAlias = "Context | tuple[Context, Draft]"  # of a pass over pending tokens and a draft
Drafting: TypeAlias = "Generator[Request, Pass, Draft]"  # yields what it asks for, and receives the pass
Signals: TypeAlias = "dict[str, Tensor | np.ndarray]"  # a number of each node, by name


@dataclass
class Unsent:
    """Nodes that a drafter thought of but did not send to the target; they are recorded, not judged.

    Parameters
    ----------
    tokens : list of int
    parents : list of int
        Their numbers go on from the draft's: node ``len(draft) + i`` is the i-th of these.
    status : str or list of str
        ``below_budget`` (of a tree: its score is too low) or ``unsent``, of all or of each.
    logits : sequence of tensor [vocabulary]
        The drafter's predictions where it chose them.
    signals : dict of str to array [n]
        As in `Draft`.
    source : str or list of str
        As in `Draft`.
    """

    tokens: list[int]
    parents: list[int]
    status: str | list[str] = "unsent"
    logits: Sequence[Tensor] = ()
    signals: Signals = field(default_factory=dict)
    source: str | list[str] = "model"

    def __post_init__(self) -> None:
        check_signals(self.signals, len(self.tokens))


@dataclass
class Verdict:
    """A verifier's decision on a draft, as host values (copied in one synchronisation).

    Parameters
    ----------
    path : list of int
        Accepted nodes, from the first level down.
    tokens : list of int
        Token of every node of the draft.
    token : int or None
        The token that follows the path; None if the method has none this time.
    origin : str
        Origin of `token`: bonus, correction, resampled, fallback, plain.
    status : list of str
        For each node: accepted, rejected, unjudged; unreviewed if a method emits drafted tokens without
        verification.
    u : array [n], optional
        Uniform number used to judge each node; NaN where none was used.
    token_u : float, optional
        Uniform that drew `token`.
    p, q : tensors [n], optional
        Probabilities of the nodes' tokens as they were tested. None: the plain softmax (or nothing) was
        tested.
    token_p : tensor [], optional
        The target's probability of `token` as it was drawn. None: the plain softmax.
    unsent : Unsent, optional
        What else the drafter proposed.
    signals : dict of str to array or tensor [n]
        Values computed to judge each node (``gap``), recorded unchanged.
    own_p : array [n], optional
        The target's own probability of the nodes' tokens, if `p` is another one: what rejected siblings left
        of it, or a biased one.
    """

    path: list[int]
    tokens: list[int]
    token: int | None
    origin: str
    status: list[str]
    u: np.ndarray | None = None
    token_u: float | None = None
    p: Tensor | np.ndarray | None = None
    q: Tensor | np.ndarray | None = None
    token_p: Tensor | float | None = None
    unsent: Unsent | None = None
    signals: Signals = field(default_factory=dict)
    own_p: np.ndarray | None = None

    def __post_init__(self) -> None:
        check_signals(self.signals, len(self.tokens))


@dataclass
class Session:
    """What a method may use while it decodes one prompt.

    Parameters
    ----------
    prompt : list of int
        Token ids of the prompt.
    sampling : Sampling
        Temperature, top-k, top-p.
    target : Model
        The model whose text is wanted.
    drafter : Model or None
        The draft model, if the method needs one.
    eos : frozenset of int
        Ids that end the text.
    limit : int
        Tokens that may be generated.
    open : callable
        ``open(model, tokens, room, name)`` gives a context whose passes are timed and recorded under a name.
    uniforms : callable
        ``uniforms(use, n)`` gives the current cycle's uniforms for a use, float64 [n]. A drafter that draws
        takes its chance from here, with use ``DRAFT`` of `specviz.methods.sampling`: then a run repeats.
    previous : list of int
        In a stream the output of the update before, its end token included; else empty.
    states : dict of int to tensor [n, width]
        For methods that ask (`Method.reads_prompt`): by layer, the target's states at the prompt's tokens but
        the last.
    text : list of int
        The prompt and all tokens that were emitted; the loop keeps it up to date.
    control : dict of str to float
        The cycle's signals, which the method sets in `draft`; see `Method.signals`.
    """

    prompt: list[int]
    sampling: Sampling
    target: Any
    drafter: Any
    eos: frozenset[int]
    limit: int
    open: Callable[..., Any]
    uniforms: Callable[[int, int], np.ndarray]
    previous: list[int] = field(default_factory=list)
    states: dict[int, Tensor] = field(default_factory=dict)
    text: list[int] = field(default_factory=list)
    cycle: int = 0
    control: dict[str, float] = field(default_factory=dict)


class Method(Hooks):
    """A drafter and a verifier: subclass it, in a notebook's cell or in a file.

    A method must write `draft`. It may declare `name`, `title`, `parameters` and `signals`, and write its own
    `verify` together with its `guarantee`. The loop calls `start` once for each prompt, and `draft`, `verify`
    and `learn` in each cycle. Parameters arrive checked, as attributes with their names. `Hooks` and
    `specviz.methods.kinds` hold what only few methods need.
    """

    title: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    signals: ClassVar[tuple[Signal, ...]] = ()  # of its nodes and cycles, beyond the usual columns
    # The loop as its paper writes it, about a dozen lines of (when, line); a viewer lights the lines of what
    # happens. `when` is a phase (draft, forward, verify, commit), a phase and what must occur in that cycle
    # (``commit:bonus``: an origin, a node's status, or why drafting or the text ended), or empty: never lit.
    # `specviz.check.method` names labels that nothing lights.
    pseudocode: ClassVar[tuple[tuple[str, str], ...]] = ()
    only_greedy: ClassVar[bool] = False  # whether it has no rule for sampling
    takes_ties: ClassVar[bool] = False  # whether a token that is as likely as the argmax may stand for it

    def __init_subclass__(cls, **options: object) -> None:
        """A class that gives itself no name is called as its class is: ``LastWords`` is ``last_words``.

        Raises
        ------
        TypeError
            If a command could not give its name, or its parameters or signals are no tuple, have a name
            twice, or would hide one of the class' own methods.
        """
        super().__init_subclass__(**options)
        if "name" not in cls.__dict__:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        if cls.exactness is not Method.exactness:
            raise TypeError(
                f"{cls.__name__} defines exactness, which follows from only_greedy and guarantee: rename it "
                "guarantee"
            )
        if not (isinstance(cls.name, str) and re.fullmatch(r"\w[\w.-]*", cls.name)):
            raise TypeError(f"{cls.__name__} cannot be called {cls.name!r}: take letters, digits, - and _")
        for declared, kind in (("parameters", Parameter), ("signals", Signal)):
            if declared in cls.__dict__:
                _check_declared(cls.__name__, declared, cls.__dict__[declared], kind)

    def __init__(self, **values: Value) -> None:
        declared = {p.name: p for p in self.parameters}
        for name in values:
            if name not in declared:
                raise ParameterError(
                    f"{self.name} has no parameter {name!r}" + near(name, declared, "it has none")
                )
        self.chosen = frozenset(values)  # the others have their defaults
        self.lowered: tuple[int, int] | None = None  # a default block, and what a drafter has it lowered to
        for p in self.parameters:
            setattr(self, p.name, p.check(values.get(p.name, p.default)))

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self._displayed().items())
        memory = "" if self.memory is None else f"; memory {self.memory['state']}"
        return f"<{self.name}: {settings or 'no parameters'}{memory}>"

    @classmethod
    def idea(cls) -> str:
        """What the method does, in a sentence: the first paragraph of its docstring."""
        return " ".join(inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].split())

    @property
    def values(self) -> dict[str, Value]:
        """Every parameter with its value."""
        return {p.name: getattr(self, p.name) for p in self.parameters}

    def _displayed(self) -> dict[str, Value]:
        """The parameters as `repr` shows them."""
        return self.values

    def again(self) -> Self:
        """A new instance with the same parameters and a copy of the memory; each row of a batch has its
        own."""
        other = type(self)(**self.values)
        other.chosen = self.chosen
        other.like(self)
        return other

    @final
    def exactness(self, sampling: Sampling, dtype: str) -> str:
        """One of `schema.EXACTNESS`, for these parameters, this sampling and this number format.

        A method that is `only_greedy` guarantees nothing for sampling.
        """
        if self.only_greedy and not sampling.greedy:
            return "lossy"
        given = self.guarantee(sampling, dtype)
        if given not in EXACTNESS:
            raise ParameterError(
                f"{self.name}.guarantee must return one of {', '.join(EXACTNESS)}, got {given!r:.40}"
            )
        return given

    def guarantee(self, sampling: Sampling, dtype: str) -> str:
        """What `exactness` returns, for the sampling that the method has a rule for.

        A method that inherits `verify` from here is exact; a method with its own `verify` must declare its
        guarantee.
        """
        if type(self).verify is not Method.verify:
            raise ParameterError(
                f"{self.name} has its own verification rule: write guarantee(sampling, dtype), which returns "
                "'exact', 'exact up to ties', 'exact in law' or 'lossy'"
            )
        return "exact up to ties" if sampling.greedy else "exact in law"

    def start(self, session: Session) -> None:
        """A prompt begins: open contexts and reset the state of the last prompt."""
        self.session = session

    def draft(self, left: int) -> Draft | Drafting:
        """Propose tokens. `left` tokens may still be emitted, so draft at most ``left - 1``.

        A method whose drafter is a model writes it as a generator: it yields a context that it opened, or
        a context and a draft to read, receives the context's `Pass` over its pending tokens, and returns the
        draft. The loop runs the passes, of one prompt or of all rows of a batch together.
        """
        raise ParameterError(f"{self.name} drafts nothing: write draft(self, left), which returns a Draft")

    def verify(self, draft: Draft, scores: Tensor | None) -> Verdict:
        """Judge a draft by the target's logits [1 + n, vocabulary], row 0 the root's.

        `scores` is None if the draft needs no pass (its ``read`` is False). By default a token is kept if the
        target would write it; when sampling, `specviz.methods.tree.judge` decides. Both are for drafts
        without `q`.
        """
        from .tree import judge

        if draft.q is not None and not self.session.sampling.greedy:
            raise ParameterError(
                f"{self.name} drafts with probabilities q, which the inherited verifier does not use: drop "
                f"q, or write verify as in specviz/methods/speculative.py"
            )
        assert scores is not None
        if hasattr(draft.tokens, "cpu"):  # they may be on the model's device
            draft = replace(draft, tokens=draft.tokens.cpu().numpy())
        return judge(draft, scores, self.session)[0]

    def learn(self, draft: Draft, result: Pass | None, verdict: Verdict) -> None:
        """A cycle was committed and decoding continues: update the drafter."""


def near(name: str, names: Collection[str], otherwise: str) -> str:
    """The end of a sentence about an unknown name: what was probably meant, or what there is."""
    close = difflib.get_close_matches(str(name), list(names), n=3, cutoff=0.5)
    if close:
        return "; did you mean " + " or ".join(close) + "?"
    return "; there is " + ", ".join(sorted(names)) if names else "; " + otherwise


def _check_declared(
    owner: str, attribute: str, declared: Sequence[Parameter | Signal], kind: type[Parameter] | type[Signal]
) -> None:
    """Refuse a class attribute that is no tuple of `kind`, or whose names would hide the class' methods."""
    if not isinstance(declared, tuple | list) or not all(isinstance(one, kind) for one in declared):
        raise TypeError(
            f"{owner}.{attribute} is a tuple of {kind.__name__}, got {declared!r:.60}: a tuple of one ends "
            f"in a comma, as in ({kind.__name__}(...),)"
        )
    names = [one.name for one in declared]
    for name in names:
        if names.count(name) > 1:
            raise TypeError(f"{owner}.{attribute} has {name!r} twice: give each its own name")
        if kind is Parameter and hasattr(Method, name):
            raise TypeError(f"{owner}: a parameter {name!r} would hide Method.{name}: choose another name")
