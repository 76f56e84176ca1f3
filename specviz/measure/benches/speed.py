"""Speed by one protocol: our methods, transformers and llama.cpp, prompt by prompt in turns.

One thread, greedy, the same number of new tokens for all, several rounds over prompts in a fixed order. A
method with a store starts each round with an empty one (cold), or with a copy of one that was filled once by
ten other prompts (warm), so that no store sees a prompt twice. Draft sizes are calibrated on a third set of
prompts. Nothing is recorded while the clock runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import numpy as np

from specviz import methods
from specviz.errors import ParameterError, PromptError, near, plural
from specviz.files import write_text
from specviz.loop import Run
from specviz.loop.machine import computed_by, identity
from specviz.measure import peers, timing
from specviz.measure.benches.trees import draft_sizes, groups
from specviz.measure.calibrate import calibrate
from specviz.measure.prompts import first_turn_key, first_turns
from specviz.measure.report import Bar, Entry, Part, Report, Row, Settings, Tick
from specviz.measure.timing import BASELINE, Phased
from specviz.methods import Method
from specviz.methods.sampling import Sampling
from specviz.metrics import Estimate
from specviz.metrics.interval import pooled
from specviz.metrics.loops import LOOP, TIMES, cut_loop
from specviz.models.protocols import Model
from specviz.paths import expanded
from specviz.rules.parameters import Value
from specviz.suites import spread

LOOKUP, TUNED = "prompt_lookup", "prompt_lookup-tuned"
COLD, WARM = "unispec-cold", "unispec-warm"
GENERATE, GENERATE_LOOKUP = "transformers", "transformers-lookup"
LLAMA, LLAMA_LOOKUP = "llama.cpp", "llama.cpp-lookup"
ENGINES = (GENERATE, GENERATE_LOOKUP, LLAMA, LLAMA_LOOKUP)
PLAIN = (GENERATE, LLAMA)  # engines that decode without drafts
USUAL = (BASELINE, LOOKUP, TUNED, COLD, WARM, GENERATE, GENERATE_LOOKUP, LLAMA)
EXTRA = ("lookahead", "spectra", "token_recycling", LLAMA_LOOKUP)  # only if --only names them
WARM_UP = 10  # prompts that fill a warm store
CALIBRATION = 5  # prompts on which draft sizes are timed
SIZES = (2, 4, 5, 8, 10, 16)  # draft sizes that calibration tries
CALIBRATION_ROUNDS = 2
QUIET = 0.3  # cores that other work may take in a quiet run
BARS = [  # contender, baseline, at least, goal
    (BASELINE, GENERATE, 1.1, 1.3),
    (LOOKUP, GENERATE_LOOKUP, 1.5, 2.0),
    (LOOKUP, BASELINE, 1.35, 1.7),
    (TUNED, BASELINE, 1.35, 1.7),
    (WARM, BASELINE, 1.45, 1.8),
]
KIND_BAR, KIND_GOAL = 0.9, 1.0
COLUMNS = [
    ("contender", "contender", ""), ("g", "g", "{:d}"), ("tau", "τ", "{:.2f}"),
    ("speed", "tokens/s", "{:,.1f}"), ("ratio", "ratio [95%]", ""), ("median", "median [95%]", ""),
]  # fmt: skip
PREFILL = [
    ("contender", "contender", ""), ("speed_prefill", "tokens/s", "{:,.1f}"),
    ("ratio_prefill", "ratio [95%]", ""), ("median_prefill", "median [95%]", ""),
]  # fmt: skip
TEXTS = [
    ("contender", "contender", ""), ("same", "same text", ""), ("loops", "loops", "{:.0%}"),
    ("ratio_without", "ratio without [95%]", ""),
]  # fmt: skip
KINDS = [
    ("shown", "kind of work", ""), ("texts", "prompts", "{:d}"), ("contender", "contender", ""),
    ("tau", "τ", "{:.2f}"), ("ratio", "ratio [95%]", ""),
]  # fmt: skip
NOTES = [
    "ratio: autoregressive decoding's time divided by the contender's, each summed over prompts and rounds, "
    "without the prefill; if a text's length differs from autoregressive decoding's, the latter's time is "
    "scaled to it. median: of the ratios of single prompts. Intervals: 95 %, bootstrap over prompts. For a "
    "kind of task they are over its prompts and rounds, so they show only how certain these prompts' times "
    "are.",
    "prefill: ours is cycle 0, which emits nothing. For transformers and llama.cpp it is the time to the "
    "first new tokens; these tokens and their time are excluded from decoding.",
    "same text: prompts whose output is autoregressive decoding's, token for token, in every round. loops: "
    f"prompts whose output contains the same {LOOP} consecutive tokens {TIMES} times; ratio without: over "
    "the prompts where neither this output nor autoregressive decoding's loops.",
    "The limits were set for SmolLM2 in float32 on 24 questions of Spec-Bench.",
]


# ---------------------------------------------------------------- prompts


@dataclass(frozen=True)
class Selection:
    """Prompts by purpose; no prompt is in two groups."""

    timed: list[Entry]
    warm: list[Entry]  # to fill warm stores
    calibration: list[Entry]  # to time draft sizes on

    @classmethod
    def of(
        cls,
        entries: Sequence[Entry],
        number: int,
        ids: Sequence[str] | None = None,
        fits: Callable[[Entry], bool] = lambda entry: True,
    ) -> Selection:
        """Choose deterministically: the timed prompts by id or spread over kinds of work, then the others.

        Parameters
        ----------
        entries : sequence of dict
        number : int
            Maximum number of prompts to time.
        ids : sequence of str, optional
            The prompts to time, in this order. Default: spread over the kinds of work.
        fits : callable
            Whether the model has room for a prompt; required of the prompts that are not timed.

        Raises
        ------
        PromptError
            If an id is missing.
        """
        timed = spread(entries, number)
        if ids is not None:
            by_id = {str(entry.get("id")): entry for entry in entries}
            missing = [name for name in ids if name not in by_id]
            if missing:
                raise PromptError(f"no prompt has the id {missing[0]}: name the file it is from")
            wanted = [by_id[name] for name in ids]
            timed = wanted if number >= len(wanted) else spread(wanted, number)
        taken = {first_turn_key(entry) for entry in timed}
        others: list[Entry] = []
        for entry in spread(entries, len(entries)):
            if len(others) < WARM_UP + CALIBRATION and first_turn_key(entry) not in taken and fits(entry):
                taken.add(first_turn_key(entry))
                others.append(entry)
        return cls(timed, others[:WARM_UP], others[WARM_UP:])


def leaves_room(model: Model, most: int) -> Callable[[Entry], bool]:
    """A predicate: whether a prompt leaves room for `most` new tokens."""
    return lambda entry: model.left(len(first_turns(model, [entry])[0])) >= most


def chosen_ids(path: Path, prompts: str) -> list[str]:
    """Ids of the questions that a file lists: ``{"questions": [{"question_id": 86}, ...], "sha256": ...}``.

    Parameters
    ----------
    path : Path
    prompts : str
        The file of the questions, or NAME=FILE; it must have the digest that the list states, if any.

    Raises
    ------
    PromptError
        If the list cannot be read, or was made for another file.
    """
    try:
        content = json.loads(path.read_text(encoding="utf8"))
        ids = [str(question["question_id"]) for question in content["questions"]]
        digest = content.get("sha256")
    except OSError as error:
        raise PromptError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PromptError(f'{path} is not a list of questions ({error!r}): {{"questions": [...]}}') from None
    if not ids or len(set(ids)) < len(ids):
        raise PromptError(f"{path} names no question, or names one twice")
    if digest is not None:
        file = expanded(prompts.partition("=")[2] or prompts, PromptError)
        if not file.is_file():
            raise PromptError(f"{path} lists questions of a prompt file: name that file with --prompts")
        if hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            raise PromptError(f"{file} is not the file that {path} was made for (its SHA-256 differs)")
    return ids


# ---------------------------------------------------------------- contenders


@dataclass(frozen=True)
class Contender:
    """A way to decode the prompts."""

    name: str  # as in ``--only``
    method: str = ""  # our method; empty for another engine
    memory: str = ""  # how a store starts: ``cold`` or ``warm``; empty without one
    g: int | None = None  # draft size; None for the method's default
    fixed: bool = False  # whether the size was given, not calibrated
    calibrated: bool = False  # whether the size is calibrated if none is given
    draft: str = ""  # the drafter's name; empty without one
    values: tuple[tuple[str, Value], ...] = ()  # further parameters

    @property
    def label(self) -> str:
        """Name in the tables."""
        return f"{self.name}-{self.g}" if self.fixed else self.name

    def build(self) -> Method:
        """A new method with an empty memory."""
        kind = methods.find(self.method)
        return kind(**({kind.size: self.g} if self.g is not None else {}), **dict(self.values))


def lineup(
    model: Model, only: Sequence[str] | None, chosen: dict[str, int] | None = None, sizes: Sequence[int] = ()
) -> tuple[list[Contender], dict[str, str]]:
    """The contenders, autoregressive decoding first, and why others are left out.

    Parameters
    ----------
    model : Model
    only : sequence of str, optional
        Names; default: `USUAL`.
    chosen : dict of str to int, optional
        Calibrated draft sizes by method.
    sizes : sequence of int
        Additional draft sizes at which UniSpec runs.

    Raises
    ------
    ParameterError
        If a name is unknown, or its contender cannot run here.
    """
    names = dict.fromkeys([BASELINE, *(USUAL if only is None else map(methods.name_of, only))])
    lacking, chosen = lacking_engines(model), chosen or {}
    for name in names:
        if name not in USUAL + EXTRA and not methods.of_session(name):
            raise ParameterError(f"no contender {name!r}" + near(name, USUAL + EXTRA))
        if only is not None and name in lacking:
            raise ParameterError(f"{name} cannot run here: {lacking[name]}")
    out = []
    for name in names:
        if name in lacking:
            continue
        if name in (COLD, WARM):
            memory = name.removeprefix("unispec-")
            out.append(Contender(name, "unispec", memory, chosen.get("unispec"), calibrated=True))
            out += [Contender(name, "unispec", memory, size, True) for size in sizes]
        elif name == TUNED:
            out.append(Contender(name, LOOKUP, g=chosen.get(LOOKUP), calibrated=True))
        else:
            out.append(Contender(name, "" if name in ENGINES else name))
    return out, {name: why for name, why in lacking.items() if name in names}


def lacking_engines(model: Model) -> dict[str, str]:
    """Engines that cannot run this model, and why."""
    out: dict[str, str] = {}
    if not peers.can_generate(model):
        out |= dict.fromkeys((GENERATE, GENERATE_LOOKUP), "the model is not in transformers' format")
    try:
        import llama_cpp  # noqa: F401

        why = "" if gguf_file(model) else "the model does not come from a GGUF file"
    except ImportError:
        why = "llama-cpp-python is not installed"
    if why:
        out |= dict.fromkeys((LLAMA, LLAMA_LOOKUP), why)
    return out


def gguf_file(model: Model) -> Path | None:
    """The GGUF file that a model was read from, for any backend; None without one."""
    path = getattr(model, "path", None)
    return Path(path) if path is not None and Path(path).suffix == ".gguf" else None


@dataclass(frozen=True)
class Phases:
    """Division of a text's time."""

    prefill: float  # seconds until decoding begins
    head: int = 0  # new tokens that came with the prefill
    passes: int | None = None  # the target's passes after it; None if they are not counted


class Ours(Phased):
    """A run of ours with the division of each text's time."""

    @property
    def phases(self) -> list[Phases]:
        return [Phases(prefill, 0, cycles) for prefill, cycles in zip(self.prefills, self.cycles)]


@dataclass
class Transformers:
    """transformers' own decoding of the same weights; a streamer records when tokens arrive."""

    peer: peers.TransformersPeer
    texts: list[list[int]]
    clock: Callable[[], float]
    options: Mapping[str, int]
    phases: list[Phases] = field(default_factory=list)

    def __call__(self, number: int) -> list[int]:
        begin, puts = self.clock(), list[tuple[float, int]]()
        streamer = SimpleNamespace(
            put=lambda tokens: puts.append((self.clock(), tokens.numel())), end=lambda: None
        )
        tokens = self.peer.generate(self.texts[number], streamer=streamer, **self.options)
        (first, head), later = puts[1], puts[2:]  # the very first is the prompt
        self.phases.append(Phases(first - begin, head, len(later)))
        return tokens


@dataclass
class LlamaCpp:
    """llama-cpp-python's own generation from the same file."""

    peer: peers.LlamaCppPeer
    texts: list[list[int]]
    clock: Callable[[], float]
    phases: list[Phases] = field(default_factory=list)

    def __call__(self, number: int) -> list[int]:
        tokens: list[int] = []
        begin, prefill = self.clock(), 0.0
        for token in self.peer.tokens(self.texts[number]):
            if not tokens:
                prefill = self.clock() - begin
            tokens.append(token)
        self.phases.append(Phases(prefill, 1))
        return tokens


Decoder = Ours | Transformers | LlamaCpp


class Stage:
    """Resources shared by all rounds: other engines' copies of the model, and filled stores."""

    def __init__(
        self,
        model: Model,
        lineup: list[Contender],
        texts: list[list[int]],
        others: list[list[int]],
        most: int,
        drafts: Mapping[str, Model] | None = None,
    ) -> None:
        self.model, self.lineup, self.texts, self.others, self.most = model, lineup, texts, others, most
        self.drafts = drafts or {}
        self.clock = timing.clock_of(model)[0]
        names = {contender.name for contender in lineup}
        self.peer: Any = peers.TransformersPeer(model, most) if names & {GENERATE, GENERATE_LOOKUP} else None
        self.llamas = {
            name: self._llama(name == LLAMA_LOOKUP) for name in (LLAMA, LLAMA_LOOKUP) if name in names
        }
        self.stores: dict[str, Method] = {}

    def _llama(self, lookup: bool) -> peers.LlamaCppPeer:
        values = methods.find(LOOKUP)().values
        # No longer than needed: with prompt lookup a row of scores is kept for every position. Its drafts run
        # past the last token, which llama-cpp-python does not check.
        length = max(map(len, self.texts + self.others)) + self.most + values["draft_length"]
        given = (values["ngram_max"], values["draft_length"]) if lookup else None
        return peers.LlamaCppPeer(self.model, self.most, given, length)

    def prepare(self, tick: Callable[[str], None]) -> None:
        """Fill the warm stores with all other prompts; every other contender decodes one of them."""
        for contender in self.lineup:
            method = contender.build() if contender.method else None
            texts = self.before(contender)
            decode = self._decoder(contender, method, texts)
            for number in range(len(texts)):
                decode(number)
                tick(contender.label)
            if contender.memory == "warm":
                assert method is not None
                self.stores[contender.label] = method

    def before(self, contender: Contender) -> list[list[int]]:
        """Prompts that a contender decodes before the rounds."""
        return self.others if contender.memory == "warm" else self.others[:1]

    def decoders(self) -> dict[str, Decoder]:
        """All contenders, ready for a round: each with an empty store, or with a copy of its filled one."""
        out: dict[str, Decoder] = {}
        for contender in self.lineup:
            method = contender.build() if contender.method else None
            if method is not None and contender.label in self.stores:
                method.like(self.stores[contender.label])
            out[contender.label] = self._decoder(contender, method, self.texts)
        return out

    def _decoder(self, contender: Contender, method: Method | None, texts: list[list[int]]) -> Decoder:
        if method is not None:
            prompts = [{"prompt": ids} for ids in texts]
            draft = self.drafts.get(contender.draft)
            run = Run(self.model, prompts, method, draft=draft, record=None, max_new_tokens=self.most)
            return Ours(run, self.clock)
        if contender.name in self.llamas:
            return LlamaCpp(self.llamas[contender.name], texts, self.clock)
        options = peers.lookup_options() if contender.name == GENERATE_LOOKUP else {}
        return Transformers(self.peer, texts, self.clock, options)


# ---------------------------------------------------------------- measurement


class Load:
    """Use of the processor by other processes since the creation of this object."""

    def __init__(self) -> None:
        self.begin = time.perf_counter(), _busy(), time.process_time()

    def others(self) -> float | None:
        """Cores that other work took, on average; None if the system does not report it."""
        wall, busy, own = self.begin
        now = _busy()
        passed = time.perf_counter() - wall
        if busy is None or now is None or not passed:
            return None
        return max(0.0, (now - busy - (time.process_time() - own)) / passed)


def _busy(path: Path = Path("/proc/stat")) -> float | None:
    """Busy seconds of all cores since the machine started; None if the system does not report them."""
    try:
        counts = [int(n) for n in path.read_text().splitlines()[0].split()[1:]]
    except (OSError, ValueError, IndexError):
        return None
    user, nice, system, _, _, irq, soft, steal = counts[:8]  # without idle and I/O wait
    return (user + nice + system + irq + soft + steal) / os.sysconf("SC_CLK_TCK")


def quietness(loads: Sequence[float | None]) -> str:
    """Describe whether a run was quiet, from the other load in each of its rounds."""
    measured = [load for load in loads if load is not None]
    if len(measured) < len(loads) or not measured:
        return "unknown load (this system does not report other processes' CPU time)"
    most = max(measured)
    return f"{'quiet' if most <= QUIET else 'NOT quiet'} (other work took {most:.2f} of a core)"


def loops(tokens: Sequence[int]) -> bool:
    """Whether an output repeats itself (`specviz.metrics.loops.cut_loop`)."""
    return cut_loop(tokens) < len(tokens)


def one_round(stage: Stage, turn: int, tick: Callable[[str], None]) -> Settings:
    """Let every contender decode every text once; the order rotates over texts and rounds.

    Returns
    -------
    dict
        ``others`` (cores of other work), ``wall`` (seconds), and ``measurements``: for each contender a list
        over the texts of ``tokens``, ``seconds``, ``prefill``, ``head`` and ``passes``.
    """
    decoders = stage.decoders()
    with timing.closing({name: each.run for name, each in decoders.items() if isinstance(each, Ours)}):
        names = list(decoders)
        first = turn % len(names)
        ordered = {name: decoders[name] for name in names[first:] + names[:first]}
        load, begin = Load(), time.perf_counter()
        times = timing.paired(ordered, len(stage.texts), stage.model.device, tick, stage.clock)
        wall, others = time.perf_counter() - begin, load.others()
    measurements = {
        name: [
            {"tokens": tokens, "seconds": seconds, **asdict(phases)}
            for tokens, seconds, phases in zip(times[name].texts, times[name].seconds, decoders[name].phases)
        ]
        for name in names
    }
    return {"others": others, "wall": wall, "measurements": measurements}


class Results:
    """The rounds as arrays [rounds, texts], and the figures derived from them.

    Parameters
    ----------
    rounds : list of dict
        As `one_round` returns them.
    """

    def __init__(self, rounds: list[Row]) -> None:
        self.rounds = rounds
        self.names = list(rounds[0]["measurements"])

    def of(self, name: str, key: Callable[[Row], float]) -> np.ndarray:
        """`key` of every measurement of a contender: [rounds, texts]."""
        return np.array([[key(each) for each in r["measurements"][name]] for r in self.rounds], np.float64)

    def seconds(self, name: str, prefill: bool) -> np.ndarray:
        """Time, with or without the prefill: [rounds, texts]."""
        return self.of(name, lambda each: each["seconds"] - (0 if prefill else each["prefill"]))

    def tokens(self, name: str, prefill: bool) -> np.ndarray:
        """Tokens that were written in `seconds`: [rounds, texts]."""
        return self.of(name, lambda each: len(each["tokens"]) - (0 if prefill else each["head"]))

    def pairs(
        self, name: str, base: str, prefill: bool, texts: Iterable[int] | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Seconds of `base`, scaled to the contender's tokens, and of the contender: each [rounds, texts]."""
        chosen = slice(None) if texts is None else list(texts)
        own, theirs = self.tokens(name, prefill)[:, chosen], self.tokens(base, prefill)[:, chosen]
        good = (own > 0) & (theirs > 0)
        scale = np.divide(own, theirs, out=np.zeros_like(own), where=good)
        above = self.seconds(base, prefill)[:, chosen] * scale
        return above, np.where(good, self.seconds(name, prefill)[:, chosen], 0.0)

    def ratio(
        self, name: str, base: str = BASELINE, prefill: bool = False, texts: Iterable[int] | None = None,
        chance: float = 0.05,
    ) -> Estimate:  # fmt: skip
        """How many times as fast as `base`: the ratio of summed times, with its interval over prompts."""
        above, below = self.pairs(name, base, prefill, texts)
        return pooled(above.sum(0), below.sum(0), chance)

    def ratio_of_few(self, name: str, texts: Iterable[int]) -> Estimate:
        """Like `ratio` without the prefill, over a few prompts; the interval is over prompts and rounds."""
        above, below = self.pairs(name, BASELINE, False, texts)
        return pooled(above.ravel(), below.ravel())

    def median(self, name: str, prefill: bool) -> Estimate:
        """Median over prompts of the ratio of a prompt's summed times."""
        above, below = (each.sum(0) for each in self.pairs(name, BASELINE, prefill))
        return Estimate.of((above[below > 0] / below[below > 0]).tolist())

    def speed(self, name: str, prefill: bool) -> float:
        """Tokens per second."""
        seconds = self.seconds(name, prefill).sum()
        return float(self.tokens(name, prefill).sum() / seconds) if seconds else float("nan")

    def tau(self, name: str, texts: Iterable[int] | None = None) -> float | None:
        """Tokens per pass of the target; None if passes are not counted."""
        chosen = slice(None) if texts is None else list(texts)
        if any(each["passes"] is None for each in self.rounds[0]["measurements"][name]):
            return None
        passes = self.of(name, lambda each: each["passes"])[:, chosen].sum()
        return float(self.tokens(name, False)[:, chosen].sum() / passes) if passes else None

    def same(self, name: str) -> list[bool]:
        """For each prompt, whether the text is autoregressive decoding's in every round."""
        pairs = [(r["measurements"][name], r["measurements"][BASELINE]) for r in self.rounds]
        each = [[a["tokens"] == b["tokens"] for a, b in zip(own, base)] for own, base in pairs]
        return np.all(each, axis=0).tolist()

    def loops(self, name: str) -> list[bool]:
        """For each prompt, whether the output loops in any round."""
        each = [[loops(m["tokens"]) for m in r["measurements"][name]] for r in self.rounds]
        return np.any(each, axis=0).tolist()


def bench(
    model: Model,
    entries: Sequence[Entry],
    *,
    source: str = "",
    number: Annotated[int, "How many prompts to time."] = 24,
    max_new_tokens: Annotated[int, "Maximum number of tokens per prompt."] = 96,
    rounds: Annotated[int, "Number of rounds over all prompts."] = 3,
    ids: Annotated[Path | None, "A JSON file that lists the questions of --prompts to time."] = None,
    only: Annotated[Sequence[str] | None, "Contenders, such as unispec-warm,llama.cpp."] = None,
    size: Annotated[
        Sequence[int | str],
        "Also run UniSpec with this many draft nodes; METHOD=NODES replaces calibration.",
        draft_sizes,
    ] = (),
    rounds_file: Path | None = None,
    tick: Tick = lambda done, of, name: None,
) -> Report:
    """Measure decoding speed against transformers and llama.cpp on the same weights.

    Decoding is greedy, from token ids to token ids; only the first turn of a conversation is used.

    Parameters
    ----------
    model : Model
    entries : sequence of dict
        Prompts: the timed ones, ten others that fill warm stores, and five others to calibrate on.
    source : str
        The prompts' file, or NAME=FILE, whose digest `ids` may state.
    number : int
        How many prompts to time.
    ids : Path, optional
        A file that lists the prompts to time, in order (`chosen_ids`). Default: spread over kinds of work.
    only : sequence of str, optional
        Contenders of `USUAL` and `EXTRA`; autoregressive decoding always runs. Default: `USUAL`.
    size : sequence of int or str
        Additional draft sizes at which ``unispec`` runs; ``"unispec=16"`` or ``"prompt_lookup=8"`` replaces a
        calibrated draft size.
    rounds_file : Path, optional
        A file that saves each finished round, so that the same call continues after the last one.
    tick : callable
        Called with (done, of, what).

    Bars on ratios of summed times without the prefill: `BARS`, set for SmolLM2 in float32; for prompt lookup
    and warm UniSpec the ratio's interval on each kind of work must not fall below 0.9. The texts of all our
    methods must equal autoregressive decoding's.

    Raises
    ------
    ParameterError, PromptError
        Before any work, with one line that says what to do.
    KeyboardInterrupt
        After Ctrl-C; with a `rounds_file` the message says how many rounds are saved.
    """
    sizes, given = checked_sizes(size)
    selection = Selection.of(
        entries,
        number,
        chosen_ids(ids, source) if ids is not None else None,
        leaves_room(model, max_new_tokens),
    )
    contenders, _ = lineup(model, only, given, sizes)
    _check_sized(contenders, {*given, *["unispec"] * bool(sizes)})
    texts, warm = encoded(model, selection.timed, max_new_tokens), first_turns(model, selection.warm)
    wanted = [name for name in (LOOKUP, "unispec") if any(_open(c, name) for c in contenders)]
    _check_enough(selection, contenders, bool(wanted))
    plan = plan_of(model, contenders, texts, warm, max_new_tokens)
    state = State(rounds_file, plan, calibration={})
    calibration = state.content["calibration"]
    with state.going_on(rounds):
        for name in wanted:
            if name not in calibration:
                calibration[name] = _calibrated(model, name, selection, max_new_tokens, tick)
                state.keep()
        chosen = given | {name: measured["g"] for name, measured in calibration.items()}
        contenders, lacking = lineup(model, only, chosen, sizes)
        stage = Stage(model, contenders, texts, warm or texts[:1], max_new_tokens)
        run_rounds(stage, state, rounds, tick)
    return _report(model, selection, contenders, lacking, state.content, max_new_tokens)


class State:
    """Rounds so far, and what `empty` names; saved in a file if one is given, whose plan must be the same."""

    def __init__(self, path: Path | None, plan: Settings, **empty: Any) -> None:
        self.path = path
        plan = json.loads(json.dumps(plan))
        self.content: Settings = {"plan": plan, "rounds": [], **empty}
        if path is None or not path.exists():
            return
        try:
            stored = json.loads(path.read_text(encoding="utf8"))
            other = [name for name in plan if stored["plan"].get(name) != plan[name]]
            [stored[name] for name in self.content], stored.get("calibration", {}).items()
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise ParameterError(f"{path} holds no readable rounds: delete it") from None
        if other:
            raise ParameterError(
                f"{path} holds rounds of another measurement (other {', '.join(other)}): delete it, or write "
                "the result elsewhere"
            )
        self.content = stored

    def keep(self) -> None:
        """Write the file."""
        if self.path is not None:
            write_text(self.path, json.dumps(self.content), force=True)

    @contextmanager
    def going_on(self, rounds: int) -> Iterator[None]:
        """On Ctrl-C, say how many rounds are saved."""
        try:
            yield
        except KeyboardInterrupt:
            if self.path is None:
                raise
            kept = f"{len(self.content['rounds'])} of {rounds} rounds are kept"
            raise KeyboardInterrupt(f"{kept}: run the same command again to continue") from None


def run_rounds(stage: Stage, state: State, rounds: int, tick: Tick) -> None:
    """Run the missing rounds, and save each when it ends."""
    kept = state.content["rounds"]
    missing = rounds - len(kept)
    if missing <= 0:
        return
    before = sum(len(stage.before(each)) for each in stage.lineup)
    step = timing.counter(tick, before + len(stage.lineup) * len(stage.texts) * missing)
    stage.prepare(step)
    while (turn := len(kept)) < rounds:
        kept.append(one_round(stage, turn, step))
        state.keep()


def checked_sizes(size: Sequence[int | str]) -> tuple[list[int], dict[str, int]]:
    """Check UniSpec's additional draft sizes, and those that replace calibration."""
    sizes, given = draft_sizes(size)
    for name in given:
        if name not in (LOOKUP, "unispec"):
            raise ParameterError(f"--size takes a number, unispec=NUMBER or {LOOKUP}=NUMBER, not {name}=...")
    for g in sizes:
        methods.find("unispec")(draft_size=g)
    for name, g in given.items():
        methods.find(name)(**{methods.find(name).size: g})
    return sizes, given


def _check_sized(contenders: Sequence[Contender], names: Iterable[str]) -> None:
    """Refuse a draft size for a method that no contender runs at a size."""
    for name in sorted({*names} - {each.method for each in contenders if each.calibrated}):
        sized = TUNED if name == LOOKUP else f"{COLD} or {WARM}"
        raise ParameterError(
            f"--size for {name} needs the contender {sized}: add it to --only, or drop the size"
        )


def _open(contender: Contender, method: str) -> bool:
    """Whether a contender's draft size is still to be calibrated."""
    return contender.calibrated and contender.method == method and contender.g is None


def _check_enough(selection: Selection, contenders: list[Contender], calibrating: bool) -> None:
    warm = any(c.memory == "warm" for c in contenders)
    wanted = WARM_UP * (warm or calibrating) + CALIBRATION * calibrating
    if len(selection.warm) + len(selection.calibration) < wanted:
        there = len(selection.warm) + len(selection.calibration)
        raise PromptError(
            f"besides {plural(len(selection.timed), 'timed prompt')} the suite has {there} more, and "
            f"{wanted} are needed to fill stores and to calibrate: lower --number, name a larger file, or "
            f"select contenders that need no warm-up or calibration with --only"
        )


def encoded(model: Model, entries: list[Entry], most: int) -> list[list[int]]:
    texts = first_turns(model, entries)
    for number, (entry, ids) in enumerate(zip(entries, texts), 1):
        if model.left(len(ids)) < most:
            raise PromptError(
                f"prompt {entry.get('id', number)} has {len(ids)} tokens, and {most} new ones are beyond "
                f"{model.name}'s context of {model.max_length}: lower --max-new-tokens or remove the prompt"
            )
    return texts


def _calibrated(model: Model, name: str, selection: Selection, most: int, tick: Tick) -> Settings:
    """Calibrate a method's draft size on untimed prompts; the result is saved with the rounds only."""
    with timing.temporary_folder() as folder:
        measured = calibrate(
            model, name, _firsts(selection.calibration), SIZES, warm_up=_firsts(selection.warm),
            max_new_tokens=most, rounds=CALIBRATION_ROUNDS, folder=folder,
            tick=lambda done, of, what: tick(done, of, f"calibrating {name}, {what}"),
        )  # fmt: skip
    return {"g": measured.g, "summary": measured.summary, "points": measured.table.to_dict("records")}


def _firsts(entries: list[Entry]) -> list[Entry]:
    return [{"turns": entry["turns"][:1]} if "turns" in entry else entry for entry in entries]


def plan_of(
    model: Model, contenders: list[Contender], texts: list[Any], warm: list[Any], most: int
) -> Settings:
    """Everything that must be equal for rounds to be combined."""
    circumstances = timing.setting(model, [])
    return {
        "model": identity(model) | computed_by(model),
        "contenders": [asdict(each) for each in contenders],
        "texts": hashlib.sha256(json.dumps([texts, warm]).encode()).hexdigest(),
        "max_new_tokens": most,
        **{name: circumstances[name] for name in ("dtype", "threads", "device", "processor", "versions")},
    }


# ---------------------------------------------------------------- report


def _report(
    model: Model,
    selection: Selection,
    contenders: list[Contender],
    lacking: dict[str, str],
    state: Settings,
    most: int,
) -> Report:
    results = Results(state["rounds"])
    rows = [_row(results, contender) for contender in contenders]
    by_kind = list(_by_kind(results, contenders, selection.timed))
    loads = [each["others"] for each in state["rounds"]]
    circumstances = timing.setting(
        model, [], prompts=len(selection.timed), max_new_tokens=most, rounds=len(state["rounds"]),
        clock=timing.clock_of(model)[1], backend=getattr(model, "backend", None),
        others=loads, quiet=quietness(loads),
        wall=[each["wall"] for each in state["rounds"]],
        calibration=state["calibration"], left_out=lacking,
        questions={
            group: [{"id": entry.get("id"), "kind": entry.get("kind")} for entry in entries]
            for group, entries in asdict(selection).items()
        },
    )  # fmt: skip
    if any(contender.name in (LLAMA, LLAMA_LOOKUP) for contender in contenders):
        circumstances["versions"]["llama-cpp-python"] = metadata.version("llama-cpp-python")
    title = (
        f"Speed of {model.name}: {len(selection.timed)} prompts, {most} new tokens, greedy, "
        f"rounds: {len(state['rounds'])}, without the prefill"
    )
    bars, unjudged = _bars(results, contenders, by_kind)
    parts = [
        Part("With the prefill included", PREFILL, _columns(rows, PREFILL)),
        Part("Texts", TEXTS, _columns(rows, TEXTS)),
        Part("By kind of task, without the prefill", KINDS, by_kind),
    ]
    notes = [*NOTES, *_remarks(results, contenders, circumstances), *unjudged]
    drop_order = ("median",)
    return Report(
        "speed", title, circumstances, COLUMNS, rows, bars, notes, drop_order, parts, state["rounds"]
    )


def _row(results: Results, contender: Contender) -> Row:
    name = contender.label
    base = name == BASELINE
    looping = results.loops(name)
    straight = [i for i, each in enumerate(zip(looping, results.loops(BASELINE))) if not any(each)]
    same = results.same(name)
    return {
        "contender": name, "method": contender.method or None, "memory": contender.memory or None,
        "g": contender.g, "tau": results.tau(name),
        "speed": results.speed(name, prefill=False),
        "speed_prefill": results.speed(name, prefill=True),
        "ratio": None if base else results.ratio(name),
        "median": None if base else results.median(name, prefill=False),
        "ratio_prefill": None if base else results.ratio(name, prefill=True),
        "median_prefill": None if base else results.median(name, prefill=True),
        "same": f"{sum(same)}/{len(same)}", "equal": sum(same) / len(same),
        "loops": sum(looping) / len(looping),
        "ratio_without": None if base else results.ratio(name, texts=straight),
    }  # fmt: skip


def _by_kind(results: Results, contenders: list[Contender], entries: list[Entry]) -> Iterator[Row]:
    for kind, texts in groups(entries, "kind").items():
        for i, contender in enumerate(contenders[1:]):
            name = contender.label
            yield {
                "kind": kind, "shown": kind if i == 0 else "", "texts": len(texts), "contender": name,
                "tau": results.tau(name, texts), "ratio": results.ratio_of_few(name, texts),
            }  # fmt: skip


@dataclass(frozen=True)
class BestExact:
    """The fastest exact method, compared with the fastest plain decoding of the same file."""

    contender: str
    engine: str  # the engine with the fastest plain decoding; `BASELINE`: ours
    ratio: Estimate

    @property
    def line(self) -> str:
        """The comparison as the reports print it."""
        return (
            "best exact method relative to the fastest plain decoding of this file by any installed engine "
            f"({self.engine}): {self.contender}, {self.ratio.median:.2f}"
        )


def best_over_plain(results: Results, exact: Sequence[str]) -> BestExact | None:
    """Compare the fastest exact contender with the fastest engine that ran; None without contenders.

    Parameters
    ----------
    results : Results
    exact : sequence of str
        Labels of exact contenders that draft.
    """
    speed = lambda name: results.speed(name, prefill=False)
    if not exact:
        return None
    best = max(exact, key=speed)
    engine = max((name for name in (BASELINE, *PLAIN) if name in results.names), key=speed)
    return BestExact(best, engine, results.ratio(best, engine))


def _columns(rows: list[Row], columns: list[tuple[str, str, str]]) -> list[Row]:
    return [{key: row[key] for key, *_ in columns} for row in rows]


def _bars(results: Results, contenders: list[Contender], by_kind: list[Row]) -> tuple[list[Bar], list[str]]:
    """The bars of the contenders that ran, and notes on those that could not be judged."""
    ran = [contender.label for contender in contenders]
    bars = [
        Bar(f"{name} over {base}", results.ratio(name, base).median, limit, goal=goal)
        for name, base, limit, goal in BARS
        if name in ran and base in ran
    ]
    for contender in contenders[1:]:
        if contender.method:
            same = results.same(contender.label)
            title = f"{contender.label}: texts equal to {BASELINE}'s ({sum(same)} of {len(same)})"
            bars.append(Bar(title, sum(same) / len(same), 1.0))
    unjudged = []
    for name in (LOOKUP, TUNED, WARM):
        rows = [row for row in by_kind if row["contender"] == name]
        if not rows:
            continue
        if any(np.isnan(row["ratio"].low) for row in rows):
            unjudged.append(
                f"{name} by kind of task: not judged, because an interval needs six pairs of a text and a "
                "round of each kind"
            )
            continue
        worst = min(rows, key=lambda row: row["ratio"].low)
        title = f"{name}: lower end of the worst kind's interval ({worst['kind']})"
        bars.append(Bar(title, worst["ratio"].low, KIND_BAR, goal=KIND_GOAL))
    return bars, unjudged


def _lossy(method: str) -> bool:
    return methods.find(method)().exactness(Sampling(), "float32") == "lossy"


def _remarks(results: Results, contenders: list[Contender], circumstances: Settings) -> Iterator[str]:
    """Notes on this measurement."""
    sure = [each for each in contenders if each.method and not _lossy(each.method)]
    exact = [each.label for each in sure]
    best = max(exact, key=lambda name: results.speed(name, prefill=False))
    for engine in (LLAMA, GENERATE):
        if engine in results.names:
            ratio = results.ratio(best, engine).median
            yield f"best exact method relative to the plain decoding of {engine}: {best}, {ratio:.2f}"
    if drafting := best_over_plain(results, exact[1:]):
        yield drafting.line
    questions = circumstances["questions"]
    memories = {contender.memory for contender in contenders} - {""}
    if "cold" in memories:
        yield f"{COLD}: the store is empty when a round begins"
    if "warm" in memories:
        names = ", ".join(str(entry["id"]) for entry in questions["warm"])
        yield f"{WARM}: each round begins with a copy of a store filled once by other prompts ({names})"
    if memories:
        yield "stores keep learning from prompt to prompt within a round; none sees a prompt twice"
    chosen = ", ".join(str(entry["id"]) for entry in questions["calibration"])
    for name, measured in circumstances["calibration"].items():
        yield f"draft size of {name}, calibrated on other prompts ({chosen}): {measured['summary']}"
    for name in dict.fromkeys(contender.method for contender in contenders if contender.calibrated):
        if name not in circumstances["calibration"]:
            yield f"draft size of {name}: given, not calibrated"
    for name, why in circumstances["left_out"].items():
        yield f"skipped: {name} ({why})"
    minutes = sum(circumstances["wall"]) / 60
    yield f"{circumstances['quiet']}; {minutes:.0f} minutes of rounds; clock: {circumstances['clock']}"
    versions = ", ".join(f"{name} {version}" for name, version in circumstances["versions"].items())
    yield f"format {circumstances['dtype']}, kernels {circumstances['kernels'] or 'not stated'}; {versions}"
    if any(contender.name in {LLAMA, LLAMA_LOOKUP} for contender in contenders):
        yield "llama.cpp computes in the file's number format, transformers in ours"
