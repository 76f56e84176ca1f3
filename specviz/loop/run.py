"""One run: check the arguments, load the models, decode each prompt, keep the record."""

from __future__ import annotations

import hashlib
import json
import sys
import uuid
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import numpy as np

from specviz import calibration, schema

from .. import methods
from ..arguments import MOST, SEED, Range, check_fields
from ..errors import ParameterError, PromptError, near, plural
from ..methods.base import Method
from ..methods.hooks import ADDED
from ..methods.kinds import SizedMethod
from ..methods.retranslate import Retranslate
from ..methods.sampling import Sampling, check_drawing
from ..methods.unmasking import Unmasking
from ..models.ranks import COMMAND, holding
from ..models.template import Template
from ..paths import expanded
from ..trace import Recorder, Trace
from ..trace.checks import check_new_run
from ..trace.files import GROWTH, Record, check_fits
from ..trace.recorder import check_absent
from . import checks, machine
from .batch import check_rows, decode_batch
from .checks import Prompts
from .clock import clock_for
from .cycle import Cycle, decode
from .dense import densify
from .drafters import Loadable, choose_drafter, load_if_needed
from .reduce import Reducer
from .resume import Arrival, SavedRun, load_saved, saved_options
from .unmasking import decode_canvases
from .updates import check_room, decode_stream

if TYPE_CHECKING:
    from ..models.diffusion import Diffusion


@dataclass(frozen=True)
class RunOptions:
    """Options of every run, as `generate` documents them; the method's parameters are separate.

    Raises
    ------
    ParameterError
        If an option has the wrong type or is out of range.
    """

    max_new_tokens: Annotated[int, Range(1, MOST)] = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: Annotated[int, SEED] = 0
    batch: Annotated[int, Range(1)] = 1
    record: Literal["judged", "all", "dense", None] = "judged"
    out: str | Path | None = None
    force: bool = False
    resume: bool = False
    device: str | None = None
    dtype: str | None = None
    kernels: str | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.resume and (self.out is None or Path(self.out).suffix != ".parquet"):
            raise ParameterError("resume=True continues a file: name it with out=, ending in .parquet")
        if self.resume and self.force:
            raise ParameterError(
                "resume=True keeps the file's content and force=True replaces it: drop one of them"
            )

    @property
    def sampling(self) -> Sampling:
        """Temperature, top-k and top-p."""
        return Sampling(self.temperature, self.top_k, self.top_p)

    @classmethod
    def names(cls) -> set[str]:
        """The options' names."""
        return {field.name for field in fields(cls)}

    @classmethod
    def split(cls, keywords: Record) -> tuple[RunOptions, Record]:
        """Split keywords into the options, checked, and the parameters of the method."""
        names = cls.names()
        options = cls(**{name: value for name, value in keywords.items() if name in names})
        return options, {name: value for name, value in keywords.items() if name not in names}


class Run:
    """Iterator over the finished cycles of a run; its `trace` is available once it ends, for any reason.

    Created by `stream`; `generate`, which documents the keywords, runs one to the end. Closing it early
    keeps the trace so far.
    """

    def __init__(
        self,
        model: Loadable,
        prompt: Prompts,
        method: str | Method | type[Method] = "speculative",
        *,
        draft: Loadable | None = None,
        **keywords: Any,
    ) -> None:
        self.options, parameters = RunOptions.split(keywords)
        self._check(prompt, method, parameters)
        self._load(model, draft)
        self._fit()
        self._encode()
        self._open()
        self._digest = hashlib.sha256()  # of everything emitted; the ranks compare it
        self.trace: Trace | None = None
        self._stopped = "closed by the caller"
        self._cycles = self._decode()

    # -- before any work ---------------------------------------------------------------------------

    def _check(self, prompt: Prompts, method: str | Method | type[Method], parameters: Record) -> None:
        """Check what can be checked without a model."""
        if isinstance(method, Method) and parameters:
            raise ParameterError(f"the method already has its parameters; drop {', '.join(parameters)}")
        kind = methods.find(type(method) if isinstance(method, Method) else method)
        if hidden := {p.name for p in kind.parameters} & self.options.names():
            raise ParameterError(
                f"{kind.name} has a parameter {min(hidden)!r}, which is an option of every run: rename it"
            )
        self._check_names(kind, parameters)
        self.method = method if isinstance(method, Method) else kind(**parameters)
        self.sampling = self.options.sampling
        check_drawing(not self.sampling.greedy, self.sampling.top_k, self.sampling.top_p)
        if self.method.only_greedy and not self.sampling.greedy:
            raise ParameterError(
                f"{self.method.name} decodes greedily: it compares a token with the target's top token, not "
                f"with a sample; leave temperature at 0 (speculative can sample)"
            )
        checks.check_record(self.options.record, self.sampling.greedy, self.method)
        given = self.options.out
        out = self.out = None if given is None else expanded(given, ParameterError)
        if out is not None and out.suffix == ".parquet" and out.exists():
            check_absent(out, self.options.force or self.options.resume)
        self.prompts = (
            checks.check_streams(prompt, self.method) if self.method.streams else checks.check_prompts(prompt)
        )
        if self.options.batch > 1:
            checks.check_batchable(self.method, self.prompts)

    def _check_names(self, kind: type[Method], parameters: Record) -> None:
        """Refuse an unknown name that resembles a parameter of the method or an option of every run."""
        own = {p.name for p in kind.parameters}
        for name in parameters:
            meant = near(name, sorted(own | self.options.names() | {"draft"}))
            if name not in own and meant.startswith("; did you mean"):
                raise ParameterError(f"{kind.name} has no parameter {name!r}{meant}")

    def _load(self, model: Loadable, draft: Loadable | None) -> None:
        """Load the target and the drafter; refuse models that do not fit each other or the method."""
        options, method = self.options, self.method
        how: Record = {"dtype": options.dtype, "kernels": options.kernels}
        if options.resume and self.out is not None:
            how |= saved_options(self.out, model, **how)
        self.model = load_if_needed(model, options.device, **how)
        checks.check_alone(self.model)
        checks.check_writes(self.model, method)
        checks.check_trees(self.model, method)
        self.ranks = holding(self.model)  # the processes that the model is split over
        checks.check_ranks(self.ranks, method, self.prompts)
        self.drafter = choose_drafter(self.model, method, draft, options.device, options.dtype)
        if options.batch > 1:
            check_rows(self.model, self.drafter)
        checks.check_processors(self.model)
        if self.drafter is not None:
            self.model.check_vocabulary(self.drafter)
            if options.record == "dense" and self.drafter.kind in ADDED:
                raise ParameterError(
                    f"record='dense' runs the drafter at every position of a text, which {self.drafter.name} "
                    f"({self.drafter.kind}) does not support: record 'judged' or 'all'"
                )
        checks.check_hidden(self.model, method, self.drafter)

    def _fit(self) -> None:
        """Prepare the method for these models: its memory, its canvas, its calibrated draft size."""
        method = self.method
        method.prepare(self.model)
        if isinstance(method, Unmasking):
            method.fits(self.options.max_new_tokens)
        self.calibration = None
        if isinstance(method, SizedMethod) and method.calibrated:  # another run may have set another size
            models = self.model, method, self.drafter
            setting, options = machine.calibration_setting(*models), machine.calibrate_options(*models)
            program = COMMAND.format(self.ranks.size) if self.ranks.size > 1 else "specviz"
            self.calibration = calibration.Calibration.of(
                self.ranks.from_leader(
                    lambda: asdict(
                        calibration.stored(
                            setting, options=options, program=program, model_as=machine.given_as(self.model)
                        )
                    )
                )
            )
            method.resize(self.calibration.g)

    def _encode(self) -> None:
        """Encode each prompt's first turn and check that it has room; later turns are checked in time."""
        self.template: Template | None = None
        if isinstance(self.method, Retranslate):
            self.template = Template(self.model, *self.method.wording())
            self.ids = [self.template("") for _ in self.prompts]
            self._warn_of_unknown("stream", self._listed(self.template))
            return
        for i, entry in enumerate(self.prompts):
            text = getattr(self.model, "text", None)
            if len(entry.get("turns", ())) > 1 and text is not None and not (text.chats or text.source):
                raise PromptError(
                    f"prompt {i + 1} is a conversation, and {self.model.name} has no chat template: give it "
                    "prompts of one turn"
                )
        self.ids = [
            self._ids(
                entry["turns"][:1] if "turns" in entry else entry["prompt"],
                "turns" in entry,
                f"prompt {i + 1} of {len(self.prompts)}" if len(self.prompts) > 1 else "the prompt",
            )
            for i, entry in enumerate(self.prompts)
        ]
        self._warn_of_unknown("prompt", list(enumerate(self.ids, 1)))

    def _listed(self, template: Template) -> list[tuple[str | int, list[int]]]:
        """Name and last prompt of each stream that is a list; every update must have tokens and room."""
        last = []
        for number, entry in enumerate(self.prompts, 1):
            if isinstance(entry["stream"].updates, list | tuple):
                name, tokens = entry["id"] or number, list[int]()
                for i, update in enumerate(entry["stream"].updates):
                    tokens = template(update.text)
                    check_room(self.model, name, i, tokens)
                last.append((name, tokens))
        return last

    def _warn_of_unknown(self, kind: str, prompts: Sequence[tuple[str | int, list[int]]]) -> None:
        """Warn once per model about prompts with characters that its tokenizer does not know."""
        text = getattr(self.model, "text", None)
        unknown = getattr(text, "unknown", None)
        lossy = [(name, tuple(ids)) for name, ids in prompts if unknown in ids]
        if text is None or not lossy or text.reported.issuperset(ids for _, ids in lossy):
            return
        text.reported.update(ids for _, ids in lossy)
        if self.ranks.leads:
            which = ", ".join(str(name) for name, _ in lossy[:3]) + ", ..." * (len(lossy) > 3)
            verb = "contains" if len(lossy) == 1 else "contain"
            print(
                f"specviz: {plural(len(lossy), kind)} ({which}) {verb} characters that "
                f"{self.model.name}'s tokenizer does not know: the model cannot read them",
                file=sys.stderr,
            )

    def _open(self) -> None:
        """Open the record: a new one, or the saved one of a run that is resumed."""
        options = self.options
        self.clock = clock_for(self.model.device) if options.record else None
        record = "judged" if options.record == "dense" else options.record  # `densify` adds the rest
        name = f"{self.method.name}-{uuid.uuid4().hex[:8]}"
        path = self.out if self.ranks.leads else None
        if path is not None and path.suffix != ".parquet":
            path = path / f"{name}.parquet"
        metadata = self._metadata(name)
        self.ranks.from_leader(lambda: self._check_record(metadata))
        saved = SavedRun()
        if options.resume:
            saved = load_saved(path) if path is not None else saved
            self.ranks.from_leader(
                lambda: saved.check(metadata | {"record": options.record}, self._records(), self._sources())
            )
            if (saved.run.get("memory") or {}).get("start", {}).get("keep") == "run" and saved.finished:
                metadata["memory"] = saved.run["memory"]  # nothing is left to decode, so nothing to learn
            saved.prompts = self.ranks.from_leader(lambda: saved.prompts)
            saved.finished = self.ranks.from_leader(lambda: saved.finished)
            metadata |= {"prompts": saved.prompts} | saved.identity
        self._finished = set(saved.finished)
        self.recorder = Recorder(
            metadata, path, record, piece=self.model.piece, force=options.force, saved=saved.table
        )
        self.reducer = Reducer(self.recorder, record, self.clock, self.method.learned_top_k)
        if self.clock is not None and saved.table is not None:
            self.reducer.last = self.clock.mark(), saved.seconds

    def _check_record(self, metadata: Record) -> None:
        """Refuse prompts that no record could hold; the recorder gets them one by one, as they begin."""
        run = metadata | {"prompts": [*chain.from_iterable(self._records())]}
        check_new_run(run)
        if self.out is not None:
            check_fits(run, growth=GROWTH)

    def _records(self) -> list[list[Record]]:
        """Records of each prompt's texts; the tokens of later turns are not known yet."""
        records = []
        for entry, ids in zip(self.prompts, self.ids):
            turns = range(len(entry["turns"])) if "turns" in entry else [None]
            records.append([_described(entry, turn) for turn in turns])
            records[-1][0]["tokens"] = ids
        return records

    def _sources(self) -> list[list[Arrival] | None]:
        """Texts and times of the updates of each stream that is a list; None for everything else."""
        updates = [getattr(entry.get("stream"), "updates", None) for entry in self.prompts]
        return [
            [(u.text, u.time) for u in each] if isinstance(each, list | tuple) else None for each in updates
        ]

    # -- the run -----------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Cycle]:
        return self

    def __next__(self) -> Cycle:
        cycle = next(self._cycles)
        if self.ranks.size > 1:
            self._digest.update(json.dumps([cycle.prompt, cycle.keep, cycle.tokens]).encode())
        return cycle

    def finish(self) -> Trace:
        """Decode everything that is left; return the trace."""
        for _ in self:
            pass
        assert self.trace is not None
        return self.trace

    def close(self, stopped: str = "closed by the caller") -> None:
        """Stop here and keep the trace so far, with `stopped` as the reason."""
        self._stopped = stopped
        self._cycles.close()
        if not self.recorder.closed:  # decoding had not started
            self._end(stopped)

    def _decode(self) -> Generator[Cycle, None, None]:
        try:
            if self.options.batch > 1:
                yield from self._batches()
            else:
                number = 0
                for prompt, (entry, ids) in enumerate(zip(self.prompts, self.ids), 1):
                    texts = range(number, number + len(entry.get("turns", [0])))
                    number = texts.stop
                    if not self._finished.issuperset(texts):
                        yield from self._texts(entry, ids, texts, prompt)
            self.ranks.check(self._digest.hexdigest(), "text")  # before the file says that it is complete
        except KeyboardInterrupt:
            self._end("interrupted")
        except GeneratorExit:
            self._end(self._stopped)
            raise
        except BaseException as error:
            # Saving the record must not hide the original error, and the error must not lose the record.
            with suppress(Exception):
                self._end(f"{type(error).__name__}: {error}"[:500])
            raise
        else:
            self._end(None)

    def _texts(self, entry: Record, ids: list[int], texts: range, prompt: int) -> Iterator[Cycle]:
        """Decode the texts of one prompt, one per turn; a turn's answer is part of the next turn's prompt.

        A turn that leaves no room ends its conversation with a warning that names `prompt`, the prompt's
        number from 1, but not the run.
        """
        if self.template is not None:
            yield from self._stream(entry, ids, texts[0])
            return
        if "turns" not in entry:
            yield from self._text(ids, entry, texts[0])
            return
        messages: list[str] = []
        for turn, number in enumerate(texts):
            messages.append(entry["turns"][turn])
            answer: list[int] = []
            cells: list[int] = []
            try:
                tokens = (
                    self._ids(messages, True, f"turn {turn + 1} of prompt {entry.get('id', prompt)}")
                    if turn
                    else ids
                )
            except PromptError as full:
                print(f"specviz: {full}; the conversation ends before it", file=sys.stderr)
                for left in texts[turn:]:
                    self._begin(left, [], entry, left - texts[0])
                return
            for cycle in self._text(tokens, entry, number, turn):
                answer += cycle.tokens
                cells += cycle.cells
                yield cycle
            if cells:  # a canvas: order its tokens from left to right, up to the end token
                answer = [answer[i] for i in np.argsort(cells)]
                end = next((i for i, token in enumerate(answer) if token in self.model.eos), len(answer))
                answer = answer[:end]
            messages.append(self.model.decode([t for t in answer if t not in self.model.eos]))

    def _batches(self) -> Iterator[Cycle]:
        """Decode all prompts, `batch` at a time."""
        for cycles in self._rows([i for i in range(len(self.ids)) if i not in self._finished]):
            for cycle in cycles:
                if cycle.number == 0:  # prompts begin in order
                    for number in range(len(self.recorder.run["prompts"]), cycle.prompt + 1):
                        entry = self.prompts[number]
                        self._begin(number, self.ids[number], entry, 0 if "turns" in entry else None)
            self.reducer.add(*cycles)
            yield from cycles

    def _rows(self, numbers: list[int]) -> Iterator[list[Cycle]]:
        """Decode these prompts in batches; yield the cycles that ran together."""
        if isinstance(self.method, Unmasking):
            for first in range(0, len(numbers), self.options.batch):
                yield from self._canvases(numbers[first : first + self.options.batch])
            return
        options = self._options() | {"drafter": self.drafter, "rows": self.options.batch, "numbers": numbers}
        yield from decode_batch(self.model, [self.ids[i] for i in numbers], self.method, **options)

    def _text(self, ids: list[int], entry: Record, number: int, turn: int | None = None) -> Iterator[Cycle]:
        self._begin(number, ids, entry, turn)
        if isinstance(self.method, Unmasking):
            for cycles in self._canvases([number], ids):
                self.reducer.add(*cycles)
                yield from cycles
            return
        options = self._options() | {"drafter": self.drafter, "prompt": number}
        for cycle in decode(self.model, ids, self.method, **options):
            self.reducer.add(cycle)
            yield cycle

    def _canvases(self, numbers: list[int], ids: list[int] | None = None) -> Iterator[list[Cycle]]:
        """Decode the canvases of these prompts in one batch; `ids` replaces the tokens of a single prompt."""
        assert isinstance(self.method, Unmasking)
        prompts = [self.ids[number] for number in numbers] if ids is None else [ids]
        options: Record = {
            "max_new_tokens": self.options.max_new_tokens,
            "numbers": numbers,
            "clock": self.clock,
        }
        return decode_canvases(cast("Diffusion", self.model), prompts, self.method, **options)

    def _stream(self, entry: Record, ids: list[int], number: int) -> Iterator[Cycle]:
        assert isinstance(self.method, Retranslate)
        self._begin(number, ids, entry)  # each update records its own source
        options = self._options() | {"template": self.template, "prompt": number}
        for cycle in decode_stream(self.model, entry["stream"], self.method, **options):
            self.reducer.add(cycle)
            yield cycle

    def _begin(self, number: int, ids: list[int], entry: Record, turn: int | None = None) -> None:
        """Add the prompt of a text that begins to the record."""
        if number == len(self.recorder.run["prompts"]):  # otherwise a resumed run already has it
            self.recorder.run["prompts"].append({"tokens": ids} | _described(entry, turn))

    def _options(self) -> Record:
        return {
            "sampling": self.sampling,
            "max_new_tokens": self.options.max_new_tokens,
            "seed": self.options.seed,
            "clock": self.clock,
        }

    def _end(self, stopped: str | None) -> None:
        if stopped is not None:
            self.reducer.interrupt()
        try:
            self.reducer.flush()
        except BaseException as error:  # the file must not stay open and locked
            words = stopped or f"{type(error).__name__}: {error}"[:500]
            self.trace = self.recorder.close(complete=False, stopped=words)
            raise
        if self.method.memory is not None and "end" not in self.recorder.run["memory"]:
            self.recorder.run["memory"]["end"] = self.method.memory
        self.recorder.run["peak_memory"] = machine.peak_memory(self.model.device)
        self.trace = self.recorder.close(complete=stopped is None, stopped=stopped)
        if stopped is None and self.options.record == "dense":
            self._densify(self.trace)

    def _densify(self, trace: Trace) -> None:
        """Add the dense record; until it is complete, the trace and its file stay those of ``judged``."""
        try:
            dense = densify(trace, self.model, self.drafter)
            if self.recorder.path is not None:
                dense.save(self.recorder.path, force=True)
        except KeyboardInterrupt:
            self.recorder.run["stopped"] = "interrupted"  # the command's exit status depends on it
            print("specviz: interrupted: the trace is whole, without its dense record", file=sys.stderr)
            return
        self.trace = dense

    # -- prompts and metadata ----------------------------------------------------------------------

    def _ids(self, prompt: Prompts, turns: bool, name: str = "the prompt") -> list[int]:
        if turns:  # alternating questions and answers
            prompt = [
                {"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(prompt)
            ]
        ids = list(self.model.encode(prompt))
        for model in filter(None, (self.model, self.drafter)):
            if model.left(len(ids)) < 1:
                raise PromptError(
                    f"{name} has {len(ids)} tokens and leaves no room in {model.name}'s context of "
                    f"{model.max_length}: shorten it"
                )
        length = self.options.max_new_tokens
        if self.method.canvas and self.model.left(len(ids)) < length:
            raise PromptError(
                f"{name} has {len(ids)} tokens, and a canvas of {length} cells after it exceeds "
                f"{self.model.name}'s {self.model.max_length}: shorten it or lower max_new_tokens"
            )
        return ids

    def _metadata(self, name: str) -> Record:
        model, drafter, options = self.model, self.drafter, self.options
        dtype = machine.number_format(model)
        drawn = ("temperature", "top_k", "top_p", "seed", "max_new_tokens")
        tokenizer = getattr(model, "tokenizer", None)
        return {
            "run": name,
            "method": self.method.name,
            "parameters": self.method.values,
            "sampling": {name: getattr(options, name) for name in drawn},
            "exactness": self._exactness(dtype),
            "pseudocode": [list(line) for line in self.method.pseudocode],
            "signals": schema.as_metadata(self.method.signals),
            "model": machine.about(model),
            "draft": None if drafter is None else machine.about_drafter(drafter),
            "canvas": self._canvas(),
            "memory": None if self.method.memory is None else {"start": self.method.memory},
            "calibration": self._calibrated(),
            "tokenizer": None if tokenizer is None else getattr(tokenizer, "name_or_path", "") or model.name,
            "eos": list(model.eos),
            "prompts": [],
            "machine": machine.machine_of(model),
            "threads": machine.thread_count(model),
            "dtype": dtype,
            "backend": getattr(model, "backend", None),
            "versions": machine.versions() | getattr(model, "versions", {}),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "timing": self.clock.timing if self.clock else None,
        }

    def _exactness(self, dtype: str) -> str:
        """The method's exactness, weakened in a batch, where ties may make a text differ from the target's.

        Passes of a batch have other shapes than single ones, so the text is at most exact up to ties, or
        exact in law when tokens are drawn. An invariant model gives each row the same bits in any pass.
        """
        label = self.method.exactness(self.sampling, dtype)
        if getattr(self.model, "invariant", False) and not self.method.takes_ties:
            return "exact" if label == "exact up to ties" else label
        if label == "exact" and self.options.batch > 1:
            return "exact up to ties" if self.sampling.greedy else "exact in law"
        return label

    def _canvas(self) -> Record | None:
        if not isinstance(self.method, Unmasking):
            return None
        policy = {"length": self.options.max_new_tokens} | self.method.policy()
        return policy | {name: getattr(self.model, name) for name in ("mask", "shift")}

    def _calibrated(self) -> Record | None:
        if self.calibration is None:
            return None
        assert isinstance(self.method, SizedMethod)
        size = {"parameter": self.method.size, "value": self.calibration.g}
        return size | {"device": self.calibration.device, "created": self.calibration.created}


def _described(entry: Record, turn: int | None) -> Record:
    """The fields of a prompt that the record keeps."""
    described = {name: entry[name] for name in checks.PROMPT_FIELDS if entry.get(name) is not None}
    return described if turn is None else described | {"turn": turn}


def generate(
    model: Loadable, prompt: Prompts, method: str | Method | type[Method] = "speculative", **options: Any
) -> Trace:
    """Decode one or several prompts, one after another or in batches, and return the trace.

    Parameters
    ----------
    model : str, path, transformers model or specviz model
        Anything that `specviz.load` accepts, or a loaded model.
    prompt : str, list of chat messages, list of token ids, dict, or a list of these
        A dict holds ``prompt``, ``messages`` (a chat that ends with the user's turn) or ``turns`` (texts,
        decoded one after another as a conversation) and may hold ``id``, ``kind``, ``language``,
        ``reference`` and ``segmented``, which the trace keeps.
    method : str, Method or Method class
        See `specviz.list_methods`.
    draft : like `model`, optional
        The draft model, for methods that need one; other methods ignore it.
    max_new_tokens : int
        Maximum number of new tokens per prompt. Default 128.
    temperature, top_k, top_p : float, int, float
        Sampling; temperature 0 (the default) is greedy, top_k 0 and top_p 1 are off.
    seed : int
        Seed of the random numbers.
    batch : int
        Maximum number of prompts decoded at once. Each is decoded as if it were alone (up to ties); a method
        that learns from prompt to prompt needs ``keep="prompt"``. Default 1: one after another.
    record : {"judged", "all", "dense", None}
        What the trace keeps. ``judged``: the predictions that verification read. ``all``: every row of every
        pass. ``dense``: as ``judged``, plus both models' predictions at every position of the finished text,
        from one more pass of each, and the drafter's tails (see `densify`); `specviz.whatif` reads these.
        None: only the text.
    out : path, optional
        Where to write the trace: a ``.parquet`` file, or a folder that gets a new file.
    force : bool
        Whether an existing file may be replaced.
    resume : bool
        Continue a run that was interrupted or had fewer prompts: finished texts in the file `out` are kept,
        and the others are decoded. Method, models, a saved memory, sampling and prompts must be the same;
        another machine or number of threads gives a warning, because the times differ. A target given by
        name is loaded in the file's number format and layout, unless `dtype` or `kernels` name others.
    device, dtype, kernels : str, optional
        For models that are not loaded yet; see `specviz.load`. `kernels` applies to the target only.
    **parameters
        The method's own parameters, by name.

    Returns
    -------
    Trace
        The trace of all prompts. After Ctrl-C the trace so far, with ``run["complete"]`` False; if only the
        dense record is missing, the complete trace, with ``run["record"]`` ``judged``.

    Raises
    ------
    ParameterError, ModelError, PromptError
        Raised before any work; the message is one line that says what to do.
    """
    return Run(model, prompt, method, **options).finish()


def stream(
    model: Loadable, prompt: Prompts, method: str | Method | type[Method] = "speculative", **options: Any
) -> Run:
    """Like `generate`, but return an iterator of finished cycles that has a ``trace`` at the end.

    Examples
    --------
    >>> run = specviz.stream(model, "...", method="bild", draft=small)  # doctest: +SKIP
    >>> for cycle in run:  # doctest: +SKIP
    ...     print(model.decode(cycle.tokens), end="")
    >>> run.trace  # doctest: +SKIP
    """
    return Run(model, prompt, method, **options)
