"""The base class of methods: declared parameters, a drafter and a verifier."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias, final

import numpy as np

from ..errors import ParameterError, near
from ..models.protocols import Context, Pass
from ..rules.parameters import Parameter as Parameter
from ..rules.parameters import Value
from ..schema import EXACTNESS, LINES_LIMIT, WORD_LIMIT, Signal, check_signals, is_word
from .hooks import Hooks

if TYPE_CHECKING:
    from torch import Tensor

    from ..draft import Draft
    from .sampling import Sampling

Request: TypeAlias = "Context | tuple[Context, Draft]"  # for a pass over pending tokens and a draft
Drafting: TypeAlias = "Generator[Request, Pass, Draft]"  # yields requests and receives their passes
Signals: TypeAlias = "dict[str, Tensor | np.ndarray]"  # one number per node, by name
INSTANCE = {  # attributes that the base classes set on instances
    "Method": ("session", "chosen", "lowered"),
    "SizedMethod": ("calibrated", "unsized"),
    "DraftModelMethod": ("drafter",),
}


@dataclass
class Unsent:
    """Nodes that the drafter considered but did not send to the target; they are recorded but not judged.

    Parameters
    ----------
    tokens : list of int
    parents : list of int
        Numbering continues from the draft: node ``len(draft) + i`` is the i-th of these.
    status : str or list of str
        ``below_budget`` (in a tree: the score is too low) or ``unsent``; one for all or one for each.
    logits : sequence of tensor [vocabulary]
        The drafter's predictions where it chose each node.
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
        Nodes that the drafter considered but did not send.
    signals : dict of str to array or tensor [n]
        Values computed to judge each node (``gap``), recorded unchanged.
    own_p : array [n], optional
        The target's own probability of the nodes' tokens, if `p` differs from it: reduced by rejected
        siblings, or biased.
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
    """The inputs and services that a method uses while it decodes one prompt.

    Parameters
    ----------
    prompt : list of int
        Token ids of the prompt.
    sampling : Sampling
        Temperature, top-k, top-p.
    target : Model
        The model whose text is decoded.
    drafter : Model or None
        The draft model, if the method needs one.
    eos : frozenset of int
        Ids that end the text.
    limit : int
        Tokens that may be generated.
    open : callable
        ``open(model, tokens, room, name)`` returns a context whose passes are timed and recorded as `name`.
    uniforms : callable
        ``uniforms(use, n)`` returns the current cycle's uniforms for a use, float64 [n]. A drafter that
        samples takes its random numbers from here, with use ``DRAFT`` of `specviz.methods.sampling`, so that
        the run can be repeated.
    previous : list of int
        In a stream, the output of the previous update, including its end token; otherwise empty.
    states : dict of int to tensor [n, width]
        For methods that set `Method.reads_prompt`: by layer, the target's hidden states at all prompt tokens
        except the last.
    text : list of int
        The prompt and all emitted tokens; the loop keeps it up to date.
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
    """A drafter and a verifier: subclass it in a notebook cell or in a file.

    A method must define `draft`. It may declare `name`, `title`, `parameters` and `signals`, and define its
    own `verify`, which also needs its own `guarantee`. The loop calls `start` once for each prompt, and
    `draft`, `verify` and `learn` in each cycle. The checked parameters are attributes of the same names.
    `Hooks` and `specviz.methods.kinds` hold features that only a few methods need.
    """

    title: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    signals: ClassVar[tuple[Signal, ...]] = ()  # recorded per node or cycle, in addition to the usual columns
    # The paper's loop as about a dozen pairs (when, line); a viewer highlights the lines that apply to a
    # cycle. `when` is a phase (draft, forward, verify, commit), a phase with a condition on the cycle
    # (``commit:bonus``: an origin, a node's status, or why drafting or the text ended), or empty: never
    # highlighted. `specviz.check.method` reports labels that never apply.
    pseudocode: ClassVar[tuple[tuple[str, str], ...]] = ()
    only_greedy: ClassVar[bool] = False  # whether it has no rule for sampling
    takes_ties: ClassVar[bool] = False  # whether a token as likely as the argmax may replace it

    def __init_subclass__(cls, **options: object) -> None:
        """Check the declarations. A method without a name gets its class's: ``LastWords`` is ``last_words``.

        Raises
        ------
        TypeError
            If the class overrides `exactness`, its name cannot be used in a command, its parameters or
            signals are not a tuple, repeat a name, or would hide an attribute of a base class, or no record
            can hold its pseudocode.
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
                _check_declared(cls, declared, cls.__dict__[declared], kind)
        lines = cls.pseudocode
        good = isinstance(lines, tuple | list) and all(isinstance(pair, tuple | list) for pair in lines)
        if not good or len(lines) > LINES_LIMIT or not all(map(_is_line, lines)):
            raise TypeError(
                f"{cls.__name__}.pseudocode is at most {LINES_LIMIT} pairs (when, line) of texts of at most "
                f"{WORD_LIMIT} characters"
            )

    def __init__(self, **values: Value) -> None:
        declared = {p.name: p for p in self.parameters}
        for name in values:
            if name not in declared:
                raise ParameterError(f"{self.name} has no parameter {name!r}" + near(name, declared))
        self.chosen = frozenset(values)  # the others have their defaults
        self.lowered: tuple[int, int] | None = None  # a default block length, and its lowered value
        for p in self.parameters:
            setattr(self, p.name, p.check(values.get(p.name, p.default)))

    def __repr__(self) -> str:
        settings = ", ".join(f"{name}={value!r}" for name, value in self._displayed().items())
        memory = "" if self.memory is None else f"; memory {self.memory['state']}"
        return f"<{self.name}: {settings or 'no parameters'}{memory}>"

    @classmethod
    def idea(cls) -> str:
        """The method in one sentence: the first paragraph of its docstring."""
        return " ".join(inspect.cleandoc(cls.__doc__ or "").partition("\n\n")[0].split())

    @property
    def values(self) -> dict[str, Value]:
        """Every parameter with its value."""
        return {p.name: getattr(self, p.name) for p in self.parameters}

    def _displayed(self) -> dict[str, Value]:
        """The parameters as `repr` shows them."""
        return self.values

    def again(self) -> Self:
        """A new instance with the same parameters and a copy of the memory, as each row of a batch needs."""
        other = type(self)(**self.values)
        other.chosen, other.lowered = self.chosen, self.lowered
        other.like(self)
        return other

    @final
    def exactness(self, sampling: Sampling, dtype: str) -> str:
        """The guarantee, one of `schema.EXACTNESS`, for a sampling and a number format.

        An `only_greedy` method guarantees nothing when sampling.
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
        """The value of `exactness`, for a sampling that the method supports.

        A method that inherits `verify` is exact up to ties, or in law; a method with its own `verify` must
        define its guarantee.
        """
        if type(self).verify is not Method.verify:
            raise ParameterError(
                f"{self.name} has its own verification rule: write guarantee(sampling, dtype), which returns "
                "'exact', 'exact up to ties', 'exact in law' or 'lossy'"
            )
        return "exact up to ties" if sampling.greedy else "exact in law"

    def start(self, session: Session) -> None:
        """Begin a prompt: open contexts and reset the state of the previous prompt."""
        self.session = session

    def draft(self, left: int) -> Draft | Drafting:
        """Propose tokens. `left` tokens may still be emitted, so draft at most ``left - 1``.

        A method whose drafter is a model defines this as a generator. It yields a context that it opened, or
        such a context with a draft to read, receives the `Pass` over the context's pending tokens, and
        finally returns the draft. The loop runs the passes, for one prompt or all rows of a batch at once.
        """
        raise ParameterError(f"{self.name} drafts nothing: write draft(self, left), which returns a Draft")

    def verify(self, draft: Draft, scores: Tensor | None) -> Verdict:
        """Judge a draft by the target's logits [1 + n, vocabulary], row 0 the root's.

        `scores` is None if the draft needs no pass (its ``read`` is False). The default rule is
        `specviz.methods.tree.judge`: when greedy, a token is accepted if the target would write it; when
        sampling, siblings are tried in turn, for drafts without `q`.
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
        """Update the drafter after a committed cycle, if decoding continues."""


def _is_line(pair: Sequence[str]) -> bool:
    return len(pair) == 2 and all(map(is_word, pair))


def _check_declared(
    cls: type[Method], attribute: str, declared: Sequence[Parameter | Signal],
    kind: type[Parameter] | type[Signal],
) -> None:  # fmt: skip
    """Refuse an attribute that is no tuple of `kind`, repeats a name, or would hide one of a base class."""
    owner = cls.__name__
    if not isinstance(declared, tuple | list) or not all(isinstance(one, kind) for one in declared):
        raise TypeError(
            f"{owner}.{attribute} is a tuple of {kind.__name__}, got {declared!r:.60}: a tuple of one ends "
            f"in a comma, as in ({kind.__name__}(...),)"
        )
    names = [one.name for one in declared]
    inherited = {p.name for base in cls.__mro__[1:] for p in getattr(base, "parameters", ())}
    for name in names:
        if names.count(name) > 1:
            raise TypeError(f"{owner}.{attribute} has {name!r} twice: give each its own name")
        for base in cls.__mro__[1:] if kind is Parameter and name not in inherited else ():
            if name in base.__dict__ or name in INSTANCE.get(base.__name__, ()):
                hides = f"would hide {base.__name__}.{name}"
                raise TypeError(f"{owner}: a parameter {name!r} {hides}: choose another name")
