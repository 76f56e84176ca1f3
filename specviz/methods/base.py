"""What a method is: declared parameters, a drafter and a verifier."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ..errors import ParameterError
from ..schema import Signal, check_signals

if TYPE_CHECKING:
    from torch import Tensor

    from ..draft import Draft
    from .sampling import Sampling

ADDITIONS = {  # what drafts on top of the very target that it was trained on, in words
    "heads": "heads on the target",
    "eagle": "an EAGLE drafter of the target",
}
CALIBRATED = "calibrated"  # in place of a draft size: the best one that was measured on this device


@dataclass(frozen=True)
class Parameter:
    """A method's parameter, declared once: checked before any work, shown in help and records.

    Parameters
    ----------
    name : str
        Keyword of `specviz.generate`.
    default : bool, int, float or str
        Its type is the parameter's type.
    low, high : float, optional
        Legal values, both ends included.
    choices : tuple of str
        Legal values of a text parameter; without any, every text is.
    unit : str
        ``tokens``, ``probability``, ``nats`` ...
    meaning : str
        One sentence.
    symbol : str
        The paper's symbol.
    """

    name: str
    default: Any
    low: float | None = None
    high: float | None = None
    unit: str = ""
    meaning: str = ""
    symbol: str = ""
    choices: tuple[str, ...] = ()

    def check(self, value: Any) -> Any:
        """The value in the parameter's type.

        Raises
        ------
        ParameterError
            If it has another type or lies outside the range.
        """
        kind = type(self.default)
        if kind is bool:
            if isinstance(value, bool | np.bool_):
                return bool(value)
            raise ParameterError(f"{self.name} must be True or False, got {value!r}")
        if kind is str:
            if value in self.choices or (not self.choices and isinstance(value, str)):
                return value
            if not self.choices:
                raise ParameterError(f"{self.name} must be a text, got {value!r}")
            raise ParameterError(f"{self.name} must be one of {', '.join(self.choices)}, got {value!r}")
        number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        if not number or value != value or (kind is int and value != int(value)):
            raise ParameterError(
                f"{self.name} must be {'a whole' if kind is int else 'a'} number, got {value!r}"
            )
        low = -float("inf") if self.low is None else self.low
        high = float("inf") if self.high is None else self.high
        if not low <= value <= high:
            raise ParameterError(f"{self.name} must {self.range}, got {value:g}")
        return kind(value)

    @property
    def range(self) -> str:
        """The legal values in words."""
        if self.choices:
            return "be one of " + ", ".join(self.choices)
        if isinstance(self.default, str):
            return "be a text"
        if self.low is not None and self.high is not None:
            return f"lie in [{self.low:g}, {self.high:g}]"
        if self.low is not None:
            return f"be at least {self.low:g}"
        return "be a number" if self.high is None else f"be at most {self.high:g}"


@dataclass
class Unsent:
    """Nodes that a drafter thought of but did not send to the target; they are recorded, not judged.

    Parameters
    ----------
    tokens : list of int
    parents : list of int
        Their numbers go on from the draft's: node ``len(draft) + i`` is the i-th of these.
    status : str or list of str
        ``pruned`` (below a threshold) or ``unsent`` (beyond what is sent), of all or of each.
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
    logits: Sequence[Any] = ()
    signals: dict[str, Any] = field(default_factory=dict)
    source: str | list[str] = "model"

    def __post_init__(self) -> None:
        check_signals(self.signals, len(self.tokens))


@dataclass
class Verdict:
    """What a verifier decided about a draft, as host values (one synchronisation brought them over).

    Parameters
    ----------
    path : list of int
        Accepted nodes, from the first level down.
    tokens : list of int
        Token of every node of the draft.
    token : int or None
        The token that follows the path; None if the method has none this time.
    origin : str
        How `token` came about: bonus, correction, resampled, fallback, plain.
    status : list of str
        For each node: accepted, rejected, unjudged; unreviewed where a method emits drafted tokens
        without the target's judgement.
    u : array [n], optional
        Uniform used to judge each node; NaN where none was.
    token_u : float, optional
        Uniform that drew `token`.
    p, q : tensors [n], optional
        Probabilities of the nodes' tokens as they were tested. None: the plain softmax was (or nothing).
    token_p : tensor [], optional
        The target's probability of `token` as it was drawn. None: the plain softmax.
    unsent : Unsent, optional
        What else the drafter had proposed.
    signals : dict of str to array or tensor [n]
        What was computed of each node to judge it (``gap``), recorded as is.
    own_p : array [n], optional
        The target's own probability of the nodes' tokens, where `p` is what rejected siblings left of it.
    """

    path: list[int]
    tokens: list[int]
    token: int | None
    origin: str
    status: list[str]
    u: np.ndarray | None = None
    token_u: float | None = None
    p: Any = None
    q: Any = None
    token_p: Any = None
    unsent: Unsent | None = None
    signals: dict[str, Any] = field(default_factory=dict)
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
        ``uniforms(use, n)`` gives the current cycle's uniforms for a use, float64 [n].
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


class Method:
    """A drafter and a verifier. Subclass it in one file and name it in the entry points.

    The loop calls, for each prompt, `start` once and then, each cycle, `draft`, `verify` and `learn`.
    Class attributes say what the method is; parameters arrive checked, as attributes of their names.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    signals: ClassVar[tuple[Signal, ...]] = ()  # of its nodes and cycles, beyond the usual columns
    exact: ClassVar[dict[str, Any]] = {}  # where a lossy method is exact: the setting that the audit runs
    toy: ClassVar[dict[str, Any]] = {}  # parameters under which the law of sampling can be enumerated
    files: ClassVar[tuple[str, ...]] = ()  # parameters that name a file of one vocabulary
    # The loop as its paper writes it, about a dozen lines of (when, line); a viewer lights the lines of what
    # happens. `when` is a phase (draft, forward, verify, commit), a phase and what must occur in that cycle
    # (``commit:bonus``: an origin, a node's status, or why drafting or the text ended), or empty: never lit.
    pseudocode: ClassVar[tuple[tuple[str, str], ...]] = ()
    needs_draft: ClassVar[bool] = False
    drafts_with: ClassVar[str] = "model"  # what that draft must be: a model, or heads or eagle on the target
    guessed: ClassVar[str] = ""  # the parameter that says how long a block the drafter may have to guess
    size: ClassVar[str] = (
        ""  # the parameter that says how many nodes a draft has, if one does: calibration turns it
    )
    hidden: ClassVar[tuple[int, ...]] = ()  # layers whose states the pass must return, see `hidden_layers`
    draws_siblings: ClassVar[bool] = False  # whether several children of a node are drawn from one q
    reads_prompt: ClassVar[bool] = False  # whether the prefill must return them too: `Session.states`
    leave: Callable[[Any], bool] | None = None  # whether the target's pass leaves behind a layer
    taught: int = 0  # successors of each row that the method learns from; record="all" keeps as many
    only_greedy: ClassVar[bool] = False  # whether it has no rule for sampling
    canvas: ClassVar[bool] = False  # whether it writes masked canvases of a diffusion model, and only those
    streams: ClassVar[bool] = False  # whether it decodes sources that arrive in updates, and only those
    spare: int = 0  # slots a draft may need beyond the tokens that may still be emitted (side branches)
    calibrated: bool = False  # whether each run takes its draft size from a calibration
    unsized: bool = False  # whether none has come yet

    def __init_subclass__(cls, **options: Any) -> None:
        """A class that gives itself no name is called as its class is: ``LastWords`` is ``last_words``."""
        super().__init_subclass__(**options)
        if "name" not in cls.__dict__:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, **values: Any) -> None:
        known = {p.name: p for p in self.parameters}
        self.calibrated = self.unsized = bool(self.size) and values.get(self.size) == CALIBRATED
        if self.unsized:
            del values[self.size]
        for name in values:
            if name not in known:
                raise ParameterError(
                    f"{self.name} has no parameter {name!r}" + near(name, known, "it has none")
                )
        for p in self.parameters:
            setattr(self, p.name, p.check(values.get(p.name, p.default)))

    def __repr__(self) -> str:
        values = self.values
        if self.unsized:
            values[self.size] = CALIBRATED
        said = ", ".join(f"{name}={value!r}" for name, value in values.items())
        known = "" if self.memory is None else f"; memory {self.memory['state']}"
        return f"<{self.name}: {said or 'no parameters'}{known}>"

    @property
    def values(self) -> dict[str, Any]:
        """Every parameter with its value."""
        return {p.name: getattr(self, p.name) for p in self.parameters}

    @property
    def memory(self) -> dict[str, Any] | None:
        """What is remembered of earlier texts: state (cold, warm), keep, known, bytes; None: nothing."""
        return None

    def save(self, path: Any, model: Any) -> Any:
        """Write what is remembered to a file, where something is; see `specviz.methods.memory`."""
        raise ParameterError(f"{self.name} remembers nothing from text to text")

    def load(self, path: Any, model: Any) -> None:
        """Start from what was saved."""
        raise ParameterError(f"{self.name} remembers nothing from text to text")

    def resize(self, nodes: int) -> None:
        """Take another draft size, and all that follows from it; what is remembered stays."""
        calibrated = self.calibrated
        type(self).__init__(self, **(self.values | {self.size: nodes}))
        self.calibrated = calibrated

    def like(self, other: Method) -> None:
        """Remember what another method of the same kind remembers; most methods remember nothing."""

    def again(self) -> Method:
        """Another one with the same parameters that remembers the same: each row of a batch has its own."""
        other = type(self)(**self.values)
        other.like(self)
        return other

    def exactness(self, sampling: Sampling, dtype: str) -> str:
        """``exact``, ``exact up to ties`` or ``lossy``, of these parameters and number format.

        A method that keeps the `verify` it inherits from here is exact; another one says what it is.
        """
        if type(self).verify is not Method.verify:
            raise NotImplementedError
        return "exact up to ties" if sampling.greedy else "exact"

    def prepare(self, target: Any) -> None:
        """A run with this model is about to begin: refuse here, before any work, what does not fit it."""

    @classmethod
    def suited(cls, drafters: Iterable[Any]) -> list[Any]:
        """Those of `drafters` that the method can draft with; [None] if it needs none."""
        if not cls.needs_draft:
            return [None]
        return [d for d in drafters if cls.drafts_with == (d.kind if d.kind in ADDITIONS else "model")]

    def drafter_of(self, target: Any) -> Any:
        """The part of the target that drafts for it, for methods that take no draft model; None: no part."""
        return None

    def hidden_layers(self, drafter: Any) -> tuple[int, ...]:
        """Layers of the target whose states every pass returns, when it drafts with `drafter`."""
        return self.hidden

    def wording(self) -> tuple[str, str]:
        """For streams: the prompt's text before and behind the source."""
        raise NotImplementedError

    def shown(self, tokens: int, last: bool) -> int:
        """For streams: how many of an output's tokens are displayed; `last`: the source is complete."""
        return tokens

    def carried(self, previous: list[int], left: int) -> list[int]:
        """For streams: tokens of the update before that stand without another look; at most `left`."""
        return []

    def start(self, session: Session) -> None:
        """A prompt begins: open contexts, forget the last prompt."""
        self.session = session

    def draft(self, left: int) -> Draft | Generator[Any, Any, Draft]:
        """Propose tokens. `left` tokens may still be emitted, so at most ``left - 1`` lead to a pass.

        A method whose drafter is a model writes it as a generator: it yields a context that it opened, or it
        and a draft to be read, is given that context's `Pass` over what is pending, and returns the draft.
        The loop runs the passes, of one prompt or of all rows of a batch together.
        """
        raise NotImplementedError

    def drawn(self) -> tuple[int, ...]:
        """Every token that was drawn for the last draft, sent or not: all that its uniforms can change."""
        return ()

    def verify(self, draft: Draft, scores: Tensor | None) -> Verdict:
        """Judge a draft by the target's logits [1 + n, vocabulary], row 0 the root's.

        `scores` is None where the draft asked for no pass (its ``read`` is False). By default a token is kept
        if the target would write it, or sampled as `specviz.methods.tree.judge` does: for drafts without `q`.
        """
        from .tree import judge

        assert scores is not None
        return judge(draft, scores, self.session)[0]

    def learn(self, draft: Draft, result: Any, verdict: Verdict) -> None:
        """A cycle was committed and decoding goes on: bring the drafter up to date."""


def near(name: str, known: Any, otherwise: str) -> str:
    """The end of a sentence about an unknown name: what was probably meant, or what there is."""
    close = difflib.get_close_matches(str(name), list(known), n=3, cutoff=0.5)
    if close:
        return "; did you mean " + " or ".join(close) + "?"
    return "; there is " + ", ".join(sorted(known)) if known else "; " + otherwise
