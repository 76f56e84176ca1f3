"""`specviz.advise`: from prompts or finished answers to advice, step by step, with progress saved."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np

from specviz.arguments import MOST, SEED, check, check_int
from specviz.audit import answer_files
from specviz.audit.answer_files import Answer
from specviz.audit.answers import order_unknown
from specviz.errors import ParameterError, PromptError, TraceError, plural
from specviz.files import write_text
from specviz.loop import Run
from specviz.loop.batch import check_rows
from specviz.loop.checks import Prompts, check_processors
from specviz.loop.checks import check_prompts as entries_of
from specviz.loop.drafters import Loadable, default_drafts, load_drafter, load_fitting, load_if_needed
from specviz.loop.machine import computed_by, given_as, identity
from specviz.measure import timing
from specviz.measure.benches import speed
from specviz.measure.progress import bar
from specviz.measure.prompts import check_room, first_turn_key, first_turns
from specviz.measure.report import Entry, Row, Settings, Tick
from specviz.methods.hooks import ADDED
from specviz.methods.sampling import Sampling, check_drawing
from specviz.metrics.costs import Shape
from specviz.metrics.loops import cut_loop
from specviz.models import experts
from specviz.models.additions import HeadModel
from specviz.models.kernels import LAYOUTS, PLAIN
from specviz.models.loading import address
from specviz.models.loading import find as find_model
from specviz.models.protocols import Model
from specviz.models.trimmed import TrimmedModel
from specviz.models.zoo import bundled
from specviz.paths import expanded, home
from specviz.suites import spread
from specviz.suites import suite as load_suite
from specviz.trace import Trace
from specviz.trace.files import Record

from . import prices as pricing
from . import readings as reading
from .devices import Device, device_of, prices_of
from .engines import flags_of
from .grown import grow, settings
from .prices import Passes, Pilot, Prices
from .ranking import Prediction, Ranking, distinct
from .readings import Reading, Text
from .result import Advice, fastest_of, kinds_differ
from .simulation import BASELINE, LONGEST, STORES, Candidate, Cycles, Simulation, candidates
from .stores import cycles_of, decoded, table_bytes
from .stores import settings as settings_of_stores

NUMBER = 24
NOISE = 0.05  # how far below zero a cycle's rest may be, in plain cycles, before a warning
CONFIRMED, ROUNDS = 3, 2  # settings to confirm, and rounds over the confirming prompts
SCHEMA = 2
ROUTED = 8  # texts on which a mixture's experts are counted
WRITING = 5  # progress steps for writing a text; reading it counts as one
Packed: TypeAlias = list[list[Any]]  # rows of plain data


def advise(
    model: Loadable,
    draft: Loadable | None = None,
    suite: Prompts | None = None,
    *,
    answers: str | Path | Sequence[Record] | None = None,
    number: int | None = None,
    batch: int | Sequence[int] | None = None,
    context: int | Sequence[int] | None = None,
    temperature: float | None = None,
    top_k: int = 0,
    top_p: float = 1.0,
    max_new_tokens: int = 128,
    seed: int = 0,
    confirm: Prompts = False,
    stores: bool = False,
    as_device: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    folder: str | Path | None = None,
    tick: Tick | None = None,
) -> Advice:
    """Advise which method, drafter and draft size pay for a model on these texts and this device, if any.

    The target writes its text once (or `answers` supplies it), target and drafters read it once, and passes
    and short runs are timed for about a minute. Every setting of prompt lookup, of speculative decoding with
    each draft model, and of blockwise decoding with heads is then simulated without decoding. Trees of an
    EAGLE drafter are grown along the texts, which needs only passes of the drafter.

    Parameters
    ----------
    model : as in `specviz.generate`
        A causal model.
    draft : model, or list of models, optional
        Drafters. Default: those in the package that belong to the model.
    suite : str, Path or list of prompts
        As for `specviz.suite`. Default: ``town`` for the bundled ``town``, otherwise ``everyday``. Only the
        first turn of a conversation is used.
    answers : path, or list of dict, optional
        JSON lines with finished texts, or their objects, used instead of decoding, as for
        `specviz.audit.answers`.
    number : int, optional
        How many prompts or answers, spread over the kinds of work. Default: 24; if the advice is confirmed,
        at most half of the available prompts.
    batch, context : int or sequence of int
        Further batch sizes and context lengths at which to time passes, to show what would change the answer.
    temperature, top_k, top_p, seed : float, int, float, int
        Sampling of the texts; temperature 0 is greedy. Default: the sampling that the answers record, or
        greedy.
    max_new_tokens : int
        Maximum number of tokens per text.
    confirm : bool, or prompts as `suite`
        Run the best three settings on other prompts: the suite's remaining ones, or those given that are not
        among the advice's.
    stores : bool
        Also consider Token Recycling, UniSpec, Lookahead and SPECTRA. They learn from rejected tokens, so
        each must decode the prompts, which takes as long as four runs.
    as_device : str, optional
        Model another device by a roofline of the passes instead of timing them here: ``h100``, ``a100``,
        ``l4``, ``rtx4090``, or ``BYTES,FLOPS,LAUNCH`` (per second, per second, seconds per layer).
    device, dtype : str, optional
        For models that are not loaded yet.
    folder : path, optional
        Folder for interrupted work. Default: in the user's cache.
    tick : callable
        Called with (done, of, what); default: a progress bar with the time left; where none can be
        shown, a line a minute on standard error.

    Returns
    -------
    Advice

    Raises
    ------
    ParameterError, ModelError, PromptError
        Before any work, with one line that says what to do.
    KeyboardInterrupt
        Progress is kept; repeat the call to continue.
    """
    request = Request(
        draft, suite, answers, number, batch, context, temperature, top_k, top_p, max_new_tokens, seed,
        confirm, stores, as_device,
    )  # fmt: skip
    target = load_if_needed(model, device, dtype)
    given_as = address(model) if isinstance(model, str | Path) else None
    loaded = {"--device": device, "--dtype": dtype} if given_as else {}
    options = [word for name, value in loaded.items() if value is not None for word in (name, str(value))]
    return request.advise(
        target, given_as, options=options, device=device, dtype=dtype, folder=folder, tick=tick
    )


@dataclass(eq=False)
class Request:
    """What `advise` takes apart from the model, checked as far as possible without one.

    Raises
    ------
    ParameterError, ModelError, PromptError
        With one line that says what to do.
    """

    draft: Loadable | None = None
    suite: Prompts | None = None
    answers: str | Path | Sequence[Record] | None = None
    number: int | None = None
    batch: int | Sequence[int] | None = None
    context: int | Sequence[int] | None = None
    temperature: float | None = None
    top_k: int = 0
    top_p: float = 1.0
    max_new_tokens: int = 128
    seed: int = 0
    confirm: Prompts = False
    stores: bool = False
    as_device: str | None = None

    def __post_init__(self) -> None:
        self.most = check_int("max_new_tokens", self.max_new_tokens, 2, MOST)
        check("seed", self.seed, Annotated[int, SEED])
        self.sampling = Sampling(self.temperature or 0.0, self.top_k, self.top_p)
        if self.answers is None or self.temperature is not None:
            check_drawing(not self.sampling.greedy, self.top_k, self.top_p)
        self.batches, self.contexts = _sizes(self.batch, self.context)
        if self.number is not None:
            check_int("number", self.number, 1)
        if self.confirm is None:
            self.confirm = False
        if self.answers is not None and self.suite is not None:
            raise ParameterError("texts come either from answers or from a suite: drop one of them")
        if self.answers is not None and self.confirm is True:
            raise ParameterError(
                "with answers there are no prompts to confirm on: name some (--confirm-prompts, confirm=)"
            )
        if self.confirm is not False and self.as_device is not None:
            raise ParameterError("advice can be confirmed only on this device: drop confirm or --as")
        self.elsewhere = None if self.as_device is None else device_of(self.as_device)
        if self.stores and (self.answers is not None or not self.sampling.greedy):
            raise ParameterError(
                "stores decode greedily: drop answers and leave temperature at 0, or drop stores"
            )
        for each in self.draft if isinstance(self.draft, list | tuple) else [self.draft]:
            if isinstance(each, str | Path):
                find_model(each)  # refuse an unknown name
        self.lines: list[Answer] = []
        self.left_out: dict[str, str] = {}
        self.order_unknown = False
        self.altered: list[str] = []
        if self.answers is not None:
            self._read_answers(self.answers)
        if self.confirm is not False and not self.sampling.greedy:
            if self.temperature is None:
                raise ParameterError(
                    "these answers were sampled, and confirming decodes greedily: drop --confirm-prompts "
                    "(confirm=)"
                )
            raise ParameterError("confirming decodes greedily: leave temperature at 0, or drop confirm")

    def _read_answers(self, given: str | Path | Sequence[Record]) -> None:
        every: list[Record] = [{"kind": each.kind or None, "line": each} for each in answer_files.read(given)]
        self.lines = [each["line"] for each in spread(every, self.number or NUMBER)]
        self.altered = list(dict.fromkeys(each.altered for each in self.lines if each.altered))
        if left := len(every) - len(self.lines):
            self.left_out[plural(left, "answer")] = f"--number is {len(self.lines)}"
        if self.temperature is not None:
            return
        if (self.top_k, self.top_p) != (0, 1.0):
            raise ParameterError(
                "the lines of answers say how they were sampled: drop top_k and top_p, or pass a temperature"
            )
        self.sampling = reading.sampling_of(self.lines)
        self.order_unknown = any(map(order_unknown, self.lines))

    def advise(
        self, target: Model, given_as: str | None = None, *, revision: str | None = None,
        options: Sequence[str] = (), device: str | None = None, dtype: str | None = None,
        folder: str | Path | None = None, tick: Tick | None = None,
    ) -> Advice:  # fmt: skip
        """Advise on a loaded model.

        Parameters
        ----------
        target : Model
        given_as, revision : str, optional
            How a command names the model.
        options : sequence of str
            Words of a command that loads and runs the model as it is here, such as ``--dtype float32``.
        device, dtype : str, optional
            For drafters that are not loaded yet.
        folder, tick
            As for `advise`.

        Raises
        ------
        ParameterError, ModelError, PromptError
            Before any work.
        """
        reading.check_served(target)
        check_processors(target)
        drafters, names = _drafters(target, self.draft, device, dtype)
        if given_as is not None:
            names[""] = given_as
        chosen, others = self.prompts(target)
        texts = reading.texts_of(self.lines, target)
        ids = first_turns(target, chosen)
        check_room([target], chosen, ids)
        # A run with a drafter refuses a prompt that leaves it no room; other prompts are only read.
        lengths = sorted(len(each) for each in [*ids, *(each.ids for each in texts)])
        lengths = [] if self.elsewhere else [lengths[i] for i in pilots(len(lengths))]
        longest = max([*lengths, *map(len, speed.encoded(target, others, self.most))], default=0)
        short = {
            name: f"a prompt of {longest} tokens leaves no room in its context of {each.max_length}"
            for name, each in drafters.items()
            if each.left(longest) < 1
        }
        drafters = {name: each for name, each in drafters.items() if name not in short}
        _check_sizes(target, drafters, self.batches if self.elsewhere is None else [1], self.contexts)
        job = Job(
            target, drafters, chosen, ids, texts, others, self.most, self.sampling, self.seed, self.batches,
            self.contexts, self.elsewhere, self.stores, names, revision, list(options),
            self.left_out | short, self.order_unknown, self.altered,
        )  # fmt: skip
        shown = bar() if tick is None else nullcontext(tick)
        with shown as progress:
            return Work(job, State.of(job, folder), progress)()

    def prompts(self, target: Model) -> tuple[list[Entry], list[Entry]]:
        """Prompts to advise on, none if there are answers, and prompts to confirm on; none is in both.

        Raises
        ------
        PromptError
            If none is left to confirm on.
        """
        entries: list[Entry] = []
        if self.answers is not None:
            taken = {first_turn_key({"prompt": each.prompt}) for each in self.lines}
        else:
            usual = "town" if target.name == "town" else "everyday"
            unique = _unique(usual if self.suite is None else self.suite)
            entries, taken = list(unique.values()), set(unique)
        count = self.number or NUMBER
        if self.confirm is False:
            return entries[:count], []
        if self.confirm is not True:
            left = [entry for key, entry in _unique(self.confirm).items() if key not in taken]
            if not left:
                raise PromptError(
                    "the prompts to confirm on are the same as those of the advice: name others"
                )
            return entries[:count], left[:count]
        count = self.number or min(NUMBER, len(entries) // 2)
        if len(entries) < 2 or len(entries) <= count:
            raise PromptError(
                f"no prompt is left to confirm on ({len(entries)} in all): lower --number or name others"
            )
        return entries[:count], entries[count : 2 * count]


# ---------------------------------------------------------------- the job


@dataclass(eq=False)
class Job:
    """A validated request: models, texts and options."""

    model: Model
    drafters: dict[str, Model]
    chosen: list[Entry]
    ids: list[list[int]]
    answers: list[Text]
    others: list[Entry]  # prompts that confirm the advice
    most: int
    sampling: Sampling
    seed: int
    batches: list[int]
    contexts: list[int]
    elsewhere: Device | None
    stores: bool = False
    given_as: dict[str, str] = field(default_factory=dict)  # name or path of each drafter; "": of the target
    revision: str | None = None  # of the target on the hub
    options: list[str] = field(default_factory=list)  # of a command that decodes as here
    left_out: dict[str, str] = field(default_factory=dict)  # answers that are not used, and why
    order_unknown: bool = False  # whether answers do not say which of temperature and top-p came first
    altered: list[str] = field(default_factory=list)  # settings that answers state and that are not computed

    @property
    def unchecked(self) -> bool:
        """Whether the texts are answers that were sampled: nothing shows that the target wrote them."""
        return bool(self.answers) and not self.sampling.greedy

    @property
    def digest(self) -> str:
        """Hash of everything the work depends on."""
        parts = {
            "schema": SCHEMA, "model": identity(self.model), **computed_by(self.model),
            "drafters": [identity(each) for each in self.drafters.values()],
            "ids": self.ids, "answers": [[each.ids, each.tokens] for each in self.answers],
            "others": [str(sorted(entry.items(), key=str)) for entry in self.others],
            "options": [self.most, vars(self.sampling), self.seed, self.batches, self.contexts,
                        str(self.elsewhere), self.stores],
            "setting": timing.setting(self.model, []),
        }  # fmt: skip
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _drafters(
    target: Model, draft: Loadable | None, device: str | None, dtype: str | None
) -> tuple[dict[str, Model], dict[str, str]]:
    """Load and check the drafters; return them by name, and how a command names each."""
    if draft is None:
        own = list(default_drafts(target.name).values())
        models = [name for name in own if name.endswith("-draft")] or [f"{target.name}-draft"]
        aligned = [name for name in bundled() if any(name.startswith(f"{each}-") for each in models)]
        given = [name for name in (*own, *aligned) if name in bundled()]
        loaded = load_fitting(target, given, device, dtype)
        given = [each.name for each in loaded]
    else:
        every = draft if isinstance(draft, list | tuple) else [draft]
        given = list({each if isinstance(each, str | Path) else id(each): each for each in every}.values())
        loaded = [load_drafter(target, each, device, dtype) for each in given]
    for each in loaded:
        target.check_vocabulary(each)
    if len({each.name for each in loaded}) < len(loaded):
        raise ParameterError(
            "two drafters have the same name: rename one so that tables can distinguish them"
        )
    specs = {
        each.name: address(spec) if isinstance(spec, str | Path) else _argument(each, spec)
        for each, spec in zip(loaded, given)
    }
    return {each.name: each for each in loaded}, specs


def _argument(drafter: Model, given: Loadable) -> str:
    """How a command names a drafter that was given as a loaded model; ``DRAFT`` if it has no file."""
    folder = getattr(getattr(given, "addition", given), "folder", None)
    if drafter.name in bundled() and folder in (None, bundled()[drafter.name]):
        return drafter.name
    if folder is not None:
        return str(folder)
    first = drafter.name.endswith(f"[:{getattr(drafter, 'layers', '')}]")
    if first or isinstance(drafter, TrimmedModel):  # the folder is that of the whole model
        return "DRAFT"
    name = given_as(drafter)
    if name != drafter.name:
        return name
    path = getattr(drafter, "path", None)
    return "DRAFT" if path is None else f"gguf:{path}"


def _unique(given: Prompts) -> dict[str, Entry]:
    """Prompts by their first turn, each once, spread over the kinds of work."""
    entries: list[Entry] = list(load_suite(given)) if isinstance(given, str | Path) else entries_of(given)
    unique: dict[str, Entry] = {}
    for entry in spread(entries, 1 << 30):
        unique.setdefault(first_turn_key(entry), entry)
    return unique


def _sizes(
    batch: int | Sequence[int] | None, context: int | Sequence[int] | None
) -> tuple[list[int], list[int]]:
    """Check and sort the batch sizes, to which 1 is added, and the contexts."""
    return sorted({1, *_checked("batch", batch, 1024)}), sorted(_checked("context", context))


def _checked(name: str, given: int | Sequence[int] | None, most: int | None = None) -> set[int]:
    if given is None:
        return set()
    if isinstance(given, np.ndarray):  # one of no dimensions has no items
        given = np.atleast_1d(given)
    several = given if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    return {check_int(name, each, 1, most) for each in several}


def _check_sizes(
    model: Model, drafters: dict[str, Model], batches: Sequence[int], contexts: Sequence[int]
) -> None:
    if batches[-1] > 1:
        check_rows(model, *(each for each in drafters.values() if each.kind not in ADDED))
    for each in contexts:
        _check_context(model, drafters, each)


def _check_context(model: Model, drafters: dict[str, Model], context: int) -> None:
    for each in (model, *drafters.values()):
        if context + LONGEST + 1 > each.max_length:
            raise ParameterError(
                f"context {context} and a pass of {LONGEST + 1} tokens do not fit into {each.name}'s "
                f"{each.max_length}"
            )


# ---------------------------------------------------------------- saved progress


class State:
    """Progress of a job, in a file that is deleted once the advice is complete."""

    def __init__(self, path: Path, content: Settings) -> None:
        self.path, self.content = path, content
        self.failed = False

    @classmethod
    def of(cls, job: Job, folder: str | Path | None) -> State:
        """Load this job's saved progress, or start empty if it is missing or damaged."""
        parent = home() / "advice" if folder is None else expanded(folder, ParameterError)
        path = parent / f"{job.digest}.partial.json"
        empty: Settings = {"texts": [], "prices": None, "rounds": [], "decoded": {}}
        with suppress(OSError, ValueError, TypeError, AttributeError, LookupError, RecursionError):
            stored = json.loads(path.read_text(encoding="utf8"))
            texts = [[[int(t) for t in tokens], str(end)] for tokens, end in stored["texts"]]
            stored_prices = stored["prices"]
            if stored_prices is not None:
                unpacked(stored_prices)
            # Those that are damaged are decoded again.
            every = {k: v for k, v in stored["decoded"].items() if all(len(columns) == 4 for columns in v)}
            rest = {"rounds": list(stored["rounds"]), "decoded": every}
            return cls(path, {"texts": texts, "prices": stored_prices} | rest)
        return cls(path, empty)

    def keep(self) -> bool:
        """Save the progress and return whether that worked; a failure is reported once."""
        try:
            write_text(self.path, json.dumps(self.content), force=True)
        except TraceError as error:
            if not self.failed:
                print(f"specviz: advise continues without saving its progress: {error}", file=sys.stderr)
            self.failed = True
            return False
        self.failed = False
        return True

    def done(self) -> None:
        """Delete the saved progress once the advice is complete."""
        with suppress(OSError):  # the advice is made: a file that stays does no harm
            self.path.unlink()


def packed(prices: Prices) -> Settings:
    """Convert prices to plain data."""

    def passes(each: dict[tuple[str, int], Passes]) -> Packed:
        return [[*key, p.sizes, p.contexts, p.ms.tolist()] for key, p in each.items()]

    pilots = [
        [*family, *(getattr(p, column.name).tolist() for column in fields(p))]
        for family, p in prices.pilots.items()
    ]
    return {"passes": passes(prices.passes), "elsewhere": passes(prices.elsewhere), "pilots": pilots,
            "clock": prices.clock}  # fmt: skip


def unpacked(content: Settings) -> Prices:
    """Restore prices from the plain data of `packed`."""

    def passes(rows: Packed) -> dict[tuple[str, int], Passes]:
        return {(name, n): Passes(sizes, contexts, np.array(ms)) for name, n, sizes, contexts, ms in rows}

    pilots = {
        (method, draft): Pilot(np.array(ms), *(np.array(column, np.int64) for column in rest))
        for method, draft, ms, *rest in content["pilots"]
    }
    return Prices(passes(content["passes"]), passes(content["elsewhere"]), pilots, content["clock"])


# ---------------------------------------------------------------- the work


class Work:
    """Carries a job through its steps to the advice."""

    def __init__(self, job: Job, state: State, tick: Tick) -> None:
        self.job, self.state, self.tick = job, state, tick
        self.served = {name: each for name, each in job.drafters.items() if self._why_left_out(each) is None}
        self.left_out = job.left_out | {
            name: why for name, each in job.drafters.items() if (why := self._why_left_out(each)) is not None
        }
        most = self.most = {name: int(getattr(each, "most", 1)) for name, each in self.served.items()}
        kinds = {name: each.kind for name, each in self.served.items()}
        self.trees = {name: each for name, each in self.served.items() if each.kind == "eagle"}
        self.listed = list(candidates(kinds, most, job.sampling.greedy))
        self.grown = [each for name in self.trees for each in settings(name)]
        self.stores = settings_of_stores() if job.stores else []
        self.listed += [*self.grown, *self.stores]
        count = len(job.answers or job.ids)
        self.total = (WRITING + 1) * count
        low, room = self._low([each.ids for each in job.answers] or job.ids)
        contexts = [*range(1 + (low < room)), *job.contexts]  # texts end after `low` if there is room
        self.priced = pricing.steps(self.listed, most, len(pilots(count)), job.batches, contexts)
        if job.elsewhere is None:
            self.total += self.priced
        self.total += count * (len(self.grown) + len(self.stores))
        self.total += (CONFIRMED + 1) * (1 + len(job.others) * ROUNDS) if job.others else 0
        self.count = 0

    def _why_left_out(self, drafter: Model) -> str | None:
        if drafter.kind == "eagle" and not self.job.sampling.greedy:
            return "its trees are simulated only along greedy texts"
        if drafter.kind in ("eagle", "heads") and self.job.elsewhere is not None:
            return "the roofline does not cover its drafting cost"
        if drafter.kind == "slots":
            return "its blocks cannot be simulated along a text: time it with specviz bench drafters"
        if drafter.kind == "heads" and not self.job.sampling.greedy:
            return "blockwise decoding is greedy"
        return None

    def done(self, what: str, count: int = 1) -> None:
        """Report finished steps."""
        self.count += count
        self.tick(self.count, self.total, what)

    def __call__(self) -> Advice:
        with self._kept():
            texts = self._texts()
            return self.of(texts, self._readings(texts))

    def of(self, texts: list[Text], readings: list[Reading]) -> Advice:
        """Build the advice from texts that have been read."""
        with self._kept():
            measured = self._prices(texts)
            wide = str(self.job.model.dtype).endswith("float64")
            simulation = Simulation(
                readings, self.listed, self.job.sampling.greedy, self._grown(texts), wide, self.job.unchecked
            )
            ranking = Ranking(simulation, measured)
            predictions = [self._with_memory(each, texts) for each in ranking.predictions()]
            confirmed, more = self._confirmed(predictions) if self.job.others else ([], [])
        drafting = next(each for each in predictions if each.drafts)
        label = fastest_of(confirmed)["label"] if confirmed else drafting.candidate.label
        best = next(each.candidate for each in predictions if each.candidate.label == label)
        advice = Advice(
            self._setting(texts, measured), predictions,
            ranking.oracle() if self.job.sampling.greedy else None, ranking.elsewhere() + ranking.sampled(),
            flags_of(
                best, self._engine_name(best.draft), fastest_chain(predictions, best),
                getattr(self.trees.get(best.draft), "generation", 3),
            ),
            self._warnings(readings) + noisy(predictions) + more, confirmed,
            ranking.passes(), ranking.drafters(), self._decode, partial(self._elsewhere, texts, readings),
            ranking.loads(),
        )  # fmt: skip
        self.state.done()
        return advice

    def _engine_name(self, draft: str) -> str:
        """The name or path under which other engines load a drafter."""
        return self.job.given_as.get(draft, draft).removeprefix("hf:").removeprefix("gguf:") or "DRAFT"

    def _elsewhere(
        self, texts: list[Text], readings: list[Reading], device: str, batch: int | Sequence[int] | None,
        context: int | Sequence[int] | None,
    ) -> Advice:  # fmt: skip
        """The advice for the same texts on another device."""
        batches, contexts = _sizes(batch, context)
        _check_sizes(self.job.model, self.job.drafters, [1], contexts)
        job = replace(self.job, elsewhere=device_of(device), batches=batches, contexts=contexts, others=[])
        state = State(self.state.path, self.state.content | {"prices": None})
        return Work(job, state, lambda *_: None).of(texts, readings)

    @contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            if not self.state.keep():
                raise
            raise KeyboardInterrupt("progress is kept: run the same command again to continue") from None

    def _texts(self) -> list[Text]:
        """The given answers, or the target's own texts; those not saved yet are decoded."""
        job, stored = self.job, self.state.content["texts"]
        if job.answers:
            self.done("reading answers", WRITING * len(job.answers))
            return job.answers
        texts = []
        for number, (entry, ids) in enumerate(zip(job.chosen, job.ids)):
            name = str(entry.get("id", number))
            if number < len(stored):
                tokens, end = stored[number]
                limit = min(job.most, job.model.left(len(ids)))
                text = Text(
                    name, str(entry.get("kind") or ""), ids, tokens, end, limit, frozenset(job.model.eos)
                )
            else:
                text = reading.write_text(
                    job.model, entry, ids, name, job.most, job.sampling, number, job.seed
                )
                stored.append([text.tokens, text.end])
                self.state.keep()
            texts.append(text)
            self.done("writing the target's own texts", WRITING)
        return texts

    def _readings(self, texts: list[Text]) -> list[Reading]:
        job = self.job
        drafters = [each for each in self.served.values() if each.kind != "eagle"]
        longest = max(texts, key=lambda text: len(text.ids))
        widths = reading.roundings(longest, [job.model, *drafters]) if job.sampling.greedy else {}
        readings = []
        for text in texts:
            readings.append(reading.read(text, job.model, drafters, job.sampling, widths))
            self.done("reading them")
        return readings

    def _grown(self, texts: list[Text]) -> dict[Candidate, list[Cycles]]:
        """Cycles of every tree, grown along each text, and of every store."""
        made: dict[Candidate, list[Cycles]] = {each: [] for each in self.grown}
        for text in texts:
            for name, drafter in self.trees.items():
                listed = [each for each in self.grown if each.draft == name]
                for candidate, cycles in grow(
                    text, self.job.model, drafter, listed, lambda: self.done("growing trees")
                ).items():
                    made[candidate].append(cycles)
        return made | {each: self._decoded(each, texts) for each in self.stores}

    def _decoded(self, candidate: Candidate, texts: list[Text]) -> list[Cycles]:
        """Cycles of a store on each text: from saved progress, or by decoding every prompt."""
        stored = self.state.content["decoded"]
        if candidate.label not in stored:
            step = partial(self.done, f"decoding with {candidate.method}")
            stored[candidate.label] = decoded(self.job.model, candidate, texts, step)
            self.state.keep()
        else:
            self.done("decoded before", len(texts))
        return list(map(cycles_of, stored[candidate.label]))

    def _prices(self, texts: list[Text]) -> Prices:
        job, content = self.job, self.state.content
        if job.elsewhere is not None:
            return prices_of(
                job.elsewhere, job.model, self.served, self.listed, self._between(texts), job.batches,
                job.contexts, self._touched(texts),
            )  # fmt: skip
        saved = None if content["prices"] is None else unpacked(content["prices"])
        if saved is not None:
            rows = [each for each in job.batches if each not in saved.batches]
            further = [each for each in job.contexts if each not in saved.contexts]
            lacking = pricing.steps(self.listed, self.most, 0, rows, further)
            self.done("measured before", self.priced - lacking)

        def keep(measured: Prices) -> None:
            content["prices"] = packed(measured)
            self.state.keep()

        by_length = sorted(texts, key=lambda text: len(text.ids))
        chosen = [by_length[i] for i in pilots(len(texts))]
        options = {
            "max_new_tokens": min(pricing.PILOT_TOKENS, job.most), "temperature": job.sampling.temperature,
            "top_k": job.sampling.top_k, "top_p": job.sampling.top_p, "seed": job.seed,
        }  # fmt: skip
        return pricing.measure(
            job.model, self.served, self.listed, [text.ids for text in chosen], self._between(texts),
            job.batches, job.contexts, options, self.done, saved, keep,
        )  # fmt: skip

    @property
    def _shape(self) -> Shape | None:
        """The target's shape, or None if its geometry is unknown."""
        widths = getattr(self.job.model, "geometry", None)
        return None if widths is None else Shape(widths)

    def _touched(self, texts: list[Text]) -> dict[int, float] | None:
        """Experts per layer that a pass reads, by size, counted on the first texts; None if not possible."""
        net, shape = getattr(self.job.model, "net", None), self._shape
        if net is None or shape is None or shape.experts is None:
            return None
        chosen = experts.choices(net, [text.ids + text.tokens for text in texts[:ROUTED]])
        answers = [each[:, len(text.ids) :] for each, text in zip(chosen, texts)]
        return experts.touched(answers, shape.experts["count"], pricing.pass_sizes(self.listed))

    def _experts(self, texts: list[Text]) -> Settings | None:
        """A mixture's number of experts per layer, and how many of them a pass of each size reads."""
        shape = self._shape
        if shape is None or shape.experts is None:
            return None
        counts = self._touched(texts)
        by = "expected" if counts is None else "counted"
        if counts is None:
            counts = {size: float(shape.touched(size)) for size in pricing.pass_sizes(self.listed)}
        return {"count": shape.experts["count"], "by": by, "touched": {str(g): n for g, n in counts.items()}}

    def _between(self, texts: list[Text]) -> tuple[int, int]:
        """Two contexts that bracket most of the cycles and leave room for the longest pass."""
        low, most = self._low([text.ids for text in texts])
        ends = sorted(len(text.ids) + len(text.tokens) for text in texts)
        return low, min(max(low, ends[(9 * len(ends)) // 10]), most)

    def _low(self, ids: Sequence[list[int]]) -> tuple[int, int]:
        """The context before most of the cycles after these prompts, and the longest that leaves room."""
        models = (self.job.model, *self.served.values())
        most = max(1, min(each.max_length for each in models) - LONGEST - 2)
        return min(max(1, sorted(map(len, ids))[len(ids) // 10]), most), most

    def _with_memory(self, prediction: Prediction, texts: list[Text]) -> Prediction:
        candidate = prediction.candidate
        memory: int | None = 0
        if candidate.method in STORES:
            memory = table_bytes(self.job.model, candidate)
        elif candidate.draft:
            longest = max(len(text.ids) + len(text.tokens) for text in texts)
            memory = memory_of(self.served[candidate.draft], longest)
        return replace(prediction, memory=memory)

    def _confirmed(self, predictions: list[Prediction]) -> tuple[list[Row], list[str]]:
        """Measure the best settings on other prompts and compare them with their predictions."""
        chosen = distinct(predictions)[:CONFIRMED]
        missing = ROUNDS - len(self.state.content["rounds"])
        self.total = self.count + (len(chosen) + 1) * ((missing > 0) + len(self.job.others) * missing)
        return confirm_on(
            self.job.model, self.served, chosen, self.job.others, self.job.most, ROUNDS,
            self.state.content["rounds"], self.state.keep, self.done,
            [str(entry.get("kind") or "") for entry in self.job.chosen] or [t.kind for t in self.job.answers],
        )  # fmt: skip

    def _setting(self, texts: list[Text], measured: Prices) -> Settings:
        job = self.job
        return timing.setting(
            job.model, list(job.drafters.values()), clock=measured.clock,
            as_device=None if job.elsewhere is None else job.elsewhere.words, texts=len(texts),
            tokens=sum(len(text.tokens) for text in texts), max_new_tokens=job.most,
            between=measured.passes["", 1].contexts[:1] + measured.passes["", 1].contexts[-1:],
            **vars(job.sampling), kernels=getattr(job.model, "kernels", None), answers=bool(job.answers),
            confirmed_on=len(job.others), left_out=self.left_out, experts=self._experts(texts),
            given_as=job.given_as, revision=job.revision, options=job.options,
            prompts=[{"id": text.name, "kind": text.kind} for text in texts],
            others=[{"id": str(entry.get("id", i)), "kind": entry.get("kind")}
                    for i, entry in enumerate(job.others)],
        )  # fmt: skip

    def _decode(self, candidate: Candidate) -> Trace:
        """Decode the first prompt with a setting and return its trace."""
        job = self.job
        run = Run(
            job.model, job.ids[0] if job.ids else job.answers[0].ids, candidate.build(),
            draft=job.drafters.get(candidate.draft), max_new_tokens=job.most, seed=job.seed,
            **vars(job.sampling),
        )  # fmt: skip
        return timing.finish(run)

    def _warnings(self, readings: list[Reading]) -> list[str]:
        lines = []
        foreign = [each for each in readings if self.job.answers and not each.own.all()]
        if foreign:
            wrong = sum(int((~each.own).sum()) for each in foreign)
            lines.append(
                f"{plural(wrong, 'token')} of {plural(len(foreign), 'text')} "
                f"{'differs' if wrong == 1 else 'differ'} from what {self.job.model.name} writes: τ is for "
                "these texts, not for the target's own"
            )
        if self.job.unchecked:
            lines.append(
                f"whether {self.job.model.name} wrote these sampled answers was not checked: τ is for these "
                "texts, and for the target's own only if it did (specviz audit --answers tests that)"
            )
        if self.job.order_unknown:
            lines.append(
                "the answers' engine is not named, or its order of temperature and top-p is not known: the "
                "temperature is taken first"
            )
        if self.job.altered:
            lines.append(
                f"some answers were decoded with {'; '.join(self.job.altered[:3])}, which is not computed: τ "
                "is that of other settings"
            )
        close = sum(each.close for each in readings)
        if close:
            lines.append(
                f"in {close} of {plural(len(readings), 'text')} two of the target's tokens are closer "
                "than the rounding error between passes of different shapes: a run may write the other one, "
                f"so τ of {'that text' if close == 1 else 'those texts'} is bounded"
            )
        looping = sum(cut_loop(each.text.tokens) < len(each.text.tokens) for each in readings)
        if looping > len(readings) / 10:
            lines.append(
                f"{looping} of {plural(len(readings), 'text')} "
                f"{'repeats itself' if looping == 1 else 'repeat themselves'}, which any drafter predicts: "
                "the gain is smaller on texts that do not"
            )
        return lines


def pilots(count: int) -> list[int]:
    """Which of `count` texts, sorted by length, are decoded in the short runs."""
    every = np.linspace(0, count - 1, min(pricing.PILOTS, count) + 2).round().astype(int)[1:-1]
    return list(dict.fromkeys(every.tolist()))


def fastest_chain(predictions: Sequence[Prediction], best: Candidate) -> tuple[Candidate, float] | None:
    """The fastest setting of the same method and drafter without threshold and branches, and its speedup."""
    for each in predictions:
        values = dict(each.candidate.values)
        if each.candidate.family == best.family and "stop" not in values and values.get("branches", 1) == 1:
            return each.candidate, each.speedup
    return None


def noisy(predictions: Sequence[Prediction]) -> list[str]:
    """Warn if a cycle seems to have taken less time than its passes alone."""
    worst = min(predictions, key=lambda each: each.rest)
    if worst.rest >= -NOISE:
        return []
    return [
        f"the timings are noisy: a cycle of {worst.candidate.label} seems to take less time than its passes "
        f"do alone (by {-worst.rest:.2f} of a plain cycle). Repeat it while the machine does nothing else"
    ]


def memory_of(drafter: Model, tokens: int) -> int | None:
    """Bytes of a drafter's weights and of its KV cache for `tokens` tokens; None if unknown."""
    bits = getattr(drafter.dtype, "itemsize", None)
    layout = getattr(drafter, "kernels", None) or getattr(getattr(drafter, "target", None), "kernels", PLAIN)
    if bits is None or layout not in LAYOUTS:  # packed weights
        return None
    elements = drafter.parameters
    if isinstance(drafter, TrimmedModel):  # the copied rows of the target's head were not trained: add them
        elements += drafter.net.lm_head.weight.numel()
    elif isinstance(drafter, HeadModel) and drafter.head is not None:
        elements += drafter.head.weights[0].numel()
    shape = getattr(drafter, "geometry", None)
    cache = Shape(shape).slot * tokens if shape else 0
    return int(elements * bits + cache)


def confirm_on(
    model: Model, drafters: dict[str, Model], chosen: Sequence[Prediction], entries: Sequence[Entry],
    most: int, rounds: int, kept: list[Row], keep: Callable[[], object],
    done: Callable[[str], None], advised_kinds: Sequence[str],
) -> tuple[list[Row], list[str]]:  # fmt: skip
    """Decode prompts with some settings and without drafts, in turns, and compare with the predictions.

    Parameters
    ----------
    model, drafters
    chosen : sequence of Prediction
    entries : sequence of dict
    most, rounds : int
    kept : list of dict
        Rounds measured so far; new ones are appended.
    keep, done : callable
        Called after each round, and after each text with a description of the step.
    advised_kinds : sequence of str
        Kinds of work of the texts used for the predictions.

    Returns
    -------
    rows : list of dict
        ``label``, ``tau``, ``tau_measured``, ``predicted`` and ``measured`` (value, low, high), ``joint``
        (as ``measured``, but 95 % holds for the intervals of all settings at once), ``off`` (measured /
        predicted - 1), ``covered`` (whether the predicted interval, if any, holds ``measured``).
    warnings : list of str
    """
    names = [each.candidate.label for each in chosen]
    lineup = [speed.Contender(BASELINE, BASELINE)]
    for each, name in zip(chosen, names):
        candidate = each.candidate
        lineup.append(speed.Contender(name, candidate.method, draft=candidate.draft, values=candidate.values))
    texts = speed.encoded(model, list(entries), most)
    stage = speed.Stage(model, lineup, texts, texts[:1], most, drafters)
    if len(kept) < rounds:
        stage.prepare(lambda label: done(f"confirming {label}"))
    while len(kept) < rounds:
        kept.append(speed.one_round(stage, len(kept), lambda label: done(f"confirming {label}")))
        keep()
    results = speed.Results(kept)
    rows = []
    for each, name in zip(chosen, names):
        ratio, joint = results.ratio(name), results.ratio(name, chance=0.05 / len(chosen))
        rows.append({
            "label": name, "tau": each.tau, "tau_measured": results.tau(name),
            "predicted": [each.speedup, each.low, each.high],
            "measured": [ratio.median, ratio.low, ratio.high],
            "joint": [joint.median, joint.low, joint.high],
            "off": ratio.median / each.speedup - 1,
            "covered": bool(each.low <= ratio.median <= each.high) if each.low == each.low else None,
        })  # fmt: skip
    warning = kinds_differ(advised_kinds, [str(entry.get("kind") or "") for entry in entries])
    return rows, [warning] if warning else []
