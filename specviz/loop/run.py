"""One run: check everything, load what must be loaded, decode each prompt, keep the record."""

from __future__ import annotations

import hashlib
import json
import platform
import shlex
import sys
import uuid
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from specviz import calibration, schema

from .. import methods
from ..errors import ModelError, ParameterError, PromptError
from ..methods.base import Method
from ..methods.hooks import ADDITIONS
from ..methods.kinds import SizedMethod, StreamMethod
from ..methods.sampling import Sampling
from ..methods.unmasking import Unmasking
from ..models.ranks import COMMAND, holding
from ..models.ranks import whole as whole_weight
from ..models.template import Template
from ..streams import Stream
from ..trace import Recorder, Trace
from .batch import check_rows, decode_batch
from .clock import clock_for
from .cycle import Cycle, decode
from .dense import densify
from .reduce import Reducer
from .unmasking import decode_canvases
from .updates import decode_stream

RECORDS = ("judged", "all", "dense", None)
# Bundled targets that bring drafters, by what a method drafts with.
DEFAULT_DRAFT = {
    "town": {"model": "town-draft", "eagle": "town-eagle"},
    "town-t5": {"model": "town-t5-small", "heads": "town-t5-heads"},
}
ADDED = ("heads", "slots", "eagle")  # kinds of drafters that are no models by themselves
KEPT = ("id", "kind", "language", "reference", "segmented")  # what a prompt may say of itself
# Settings of a generation config whose logits processors read the whole text so far: a block pass
# would need another one at each node. Beside each the value that switches it off.
PREFIX_PROCESSORS = {
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "bad_words_ids": None,
    "sequence_bias": None,
    "exponential_decay_length_penalty": None,
    "guidance_scale": 1.0,
    "watermarking_config": None,
    "constraints": None,
    "force_words_ids": None,
}


class Run:
    """A run as an iterator of finished cycles; its `trace` is there when it ends, however it ends.

    Made by `stream`; `generate` exhausts one. Closing it early keeps the trace so far.
    """

    def __init__(
        self,
        model: Any,
        prompt: Any,
        method: str | Method | type[Method] = "speculative",
        *,
        draft: Any = None,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
        batch: int = 1,
        record: str | None = "judged",
        out: str | Path | None = None,
        force: bool = False,
        device: str | None = None,
        dtype: str | None = None,
        kernels: str | None = None,
        **parameters: Any,
    ) -> None:
        # What can be checked without a model is checked first.
        self.method = method if isinstance(method, Method) else methods.make(method, **parameters)
        if isinstance(method, Method) and parameters:
            raise ParameterError(f"the method has its parameters already; drop {', '.join(parameters)}")
        self.sampling = Sampling(temperature, top_k, top_p)
        if self.method.only_greedy and not self.sampling.greedy:
            raise ParameterError(
                f"{self.method.name} decodes greedily: it compares a token with the target's likeliest one, "
                "not with a draw; leave temperature at 0 (speculative samples)"
            )
        self.max_new_tokens = whole("max_new_tokens", max_new_tokens, 1)
        self.seed = whole("seed", seed, 0)
        self.batch = whole("batch", batch, 1)
        if record not in RECORDS:
            raise ParameterError(f"record must be 'judged', 'all', 'dense' or None, got {record!r}")
        if record == "dense" and not self.sampling.greedy:
            raise ParameterError("record='dense' is for greedy runs: a sampled text cannot be replayed")
        if record == "dense" and self.method.streams:
            raise ParameterError(
                "record='dense' is for a prompt that stands still; a stream is recorded 'judged' or 'all'"
            )
        if record == "dense" and self.method.canvas:
            raise ParameterError(
                "record='dense' asks a drafter at every place of a text; a canvas has none: record "
                "'judged' or 'all'"
            )
        self.record = record
        self.prompts = streams(prompt, self.method) if self.method.streams else prompts(prompt)
        if self.batch > 1:
            together(self.method, self.prompts)
        self.model = ready(model, device, dtype, kernels)
        if self.model.kind in ADDED:
            self.model.alone()
        check_writes(self.model, self.method)
        self.ranks = holding(self.model)  # the processes that it is split over
        if self.ranks.size > 1 and self.method.streams:
            to_come = [e for e in self.prompts if not isinstance(e["stream"].updates, list | tuple)]
            if to_come:
                raise PromptError(
                    "a stream that is still to come reaches each rank at another time: give its updates as a "
                    "list to a model split over ranks"
                )
        self._said = hashlib.sha256()  # all that it emitted, which the ranks compare
        self.drafter = partner(self.model, self.method, draft, device, dtype)
        if self.batch > 1:
            check_rows(self.model, self.drafter)
        refuse_processors(self.model)
        if self.drafter is not None:
            self.model.check_vocabulary(self.drafter)
            if record == "dense" and self.drafter.kind in ADDED:
                raise ParameterError(
                    f"record='dense' asks the drafter at every place of a text, and {self.drafter.name} "
                    f"({self.drafter.kind}) cannot be asked there: record 'judged' or 'all'"
                )
        check_hidden(self.model, self.method, self.drafter)
        self.method.prepare(self.model)
        if isinstance(self.method, Unmasking):
            self.method.fits(self.max_new_tokens)
        self.calibration = None
        # The method may have run elsewhere before.
        if isinstance(self.method, SizedMethod) and self.method.calibrated:
            ran = self.model, self.method, self.drafter
            where, options = setting(*ran), calibrate_options(*ran)
            program = COMMAND.format(self.ranks.size) if self.ranks.size > 1 else "specviz"
            self.calibration = calibration.Calibration.of(
                self.ranks.told(lambda: asdict(calibration.stored(where, options=options, program=program)))
            )
            self.method.resize(self.calibration.g)
        self.template: Template | None = None
        if isinstance(self.method, StreamMethod):
            self.template = Template(self.model, *self.method.wording())
        still = self.prompts if self.template is None else ()
        self.ids = [  # of the first turns; later ones are checked when they exist
            self._ids(
                entry["turns"][:1] if "turns" in entry else entry["prompt"],
                "turns" in entry,
                f"prompt {i}" if len(still) > 1 else "the prompt",
            )
            for i, entry in enumerate(still)
        ]
        self.clock = clock_for(self.model.device) if record else None
        name = f"{self.method.name}-{uuid.uuid4().hex[:8]}"
        path = Path(out) if out is not None and self.ranks.leads else None
        if path is not None and path.suffix != ".parquet":
            path = path / f"{name}.parquet"
        recorder = Recorder(self._metadata(name), path, record, piece=self.model.piece, force=force)
        self.recorder = recorder
        self.reducer = Reducer(recorder, record, self.clock, self.method.learned_top_k)
        self.trace: Trace | None = None
        self._stopped = "closed by the caller"
        self._cycles = self._decode()

    def __iter__(self) -> Iterator[Cycle]:
        return self

    def __next__(self) -> Cycle:
        cycle = next(self._cycles)
        if self.ranks.size > 1:
            self._said.update(json.dumps([cycle.prompt, cycle.keep, cycle.tokens]).encode())
        return cycle

    def close(self, stopped: str = "closed by the caller") -> None:
        """Stop here and keep the trace so far, which says why it `stopped`."""
        self._stopped = stopped
        self._cycles.close()
        if self.trace is None:  # it had not begun
            self._end(stopped)

    def _decode(self) -> Generator[Cycle, None, None]:
        try:
            if self.batch > 1:
                yield from self._together()
            else:
                for entry in self.prompts:
                    yield from self._texts(entry)
        except KeyboardInterrupt:
            self._end("interrupted")
        except GeneratorExit:
            self._end(self._stopped)
            raise
        except BaseException as error:
            # The record must not hide what went wrong, nor be lost by it.
            with suppress(Exception):
                self._end(f"{type(error).__name__}: {error}"[:500])
            raise
        else:
            self._end(None)

    def _texts(self, entry: dict[str, Any]) -> Iterator[Cycle]:
        """The texts of one prompt: one for each turn, a turn's answer being part of the next one's prompt."""
        if self.template is not None:
            yield from self._stream(entry)
            return
        turns = entry.get("turns")
        if turns is None:
            yield from self._text(self._ids(entry["prompt"], False), entry, {})
            return
        messages: list[Any] = []
        for number, turn in enumerate(turns):
            messages.append(turn)
            ids = self._ids(messages, True)
            answer: list[int] = []
            cells: list[int] = []
            for cycle in self._text(ids, entry, {"turn": number}):
                answer += cycle.tokens
                cells += cycle.cells
                yield cycle
            if cells:  # a canvas', from left to right, up to its end
                answer = [answer[i] for i in np.argsort(cells)]
                end = next((i for i, token in enumerate(answer) if token in self.model.eos), len(answer))
                answer = answer[:end]
            messages.append(self.model.decode([t for t in answer if t not in self.model.eos]))

    def _together(self) -> Iterator[Cycle]:
        """All prompts, `batch` at a time."""
        options = self._options() | {"drafter": self.drafter, "rows": self.batch}
        del options["prompt"]
        if isinstance(self.method, Unmasking):
            for first in range(0, len(self.ids), self.batch):
                some = self.ids[first : first + self.batch]
                for cycles in self._canvases(some, first):
                    if cycles[0].number == 0:
                        for i in range(first, first + len(some)):
                            self._begun(self.ids[i], self.prompts[i], {})
                    self.reducer.add(*cycles)
                    yield from cycles
            return
        for cycles in decode_batch(self.model, self.ids, self.method, **options):
            for cycle in cycles:
                if cycle.number == 0:  # prompts begin in their order
                    self._begun(self.ids[cycle.prompt], self.prompts[cycle.prompt], {})
            self.reducer.add(*cycles)
            yield from cycles

    def _text(self, ids: list[int], entry: dict[str, Any], more: dict[str, Any]) -> Iterator[Cycle]:
        self._begun(ids, entry, more)
        if isinstance(self.method, Unmasking):
            for cycles in self._canvases([ids], len(self.recorder.run["prompts"]) - 1):
                self.reducer.add(*cycles)
                yield from cycles
            return
        for cycle in decode(self.model, ids, self.method, drafter=self.drafter, **self._options()):
            self.reducer.add(cycle)
            yield cycle

    def _canvases(self, ids: list[list[int]], first: int) -> Iterator[list[Cycle]]:
        length, clock = self.max_new_tokens, self.clock
        assert isinstance(self.method, Unmasking)
        return decode_canvases(
            self.model,
            ids,
            self.method,
            max_new_tokens=length,
            first=first,
            clock=clock,
        )

    def _begun(self, ids: list[int], entry: dict[str, Any], more: dict[str, Any]) -> None:
        """A prompt begins: the record gets it."""
        said = {k: entry[k] for k in KEPT if entry.get(k) is not None}
        self.recorder.run["prompts"].append({"tokens": ids} | said | more)

    def _stream(self, entry: dict[str, Any]) -> Iterator[Cycle]:
        assert isinstance(self.method, StreamMethod)
        assert self.template is not None
        self._begun(self.template(""), entry, {})  # each update says its source itself
        for cycle in decode_stream(
            self.model, entry["stream"], self.method, template=self.template, **self._options()
        ):
            self.reducer.add(cycle)
            yield cycle

    def _options(self) -> dict[str, Any]:
        return {
            "sampling": self.sampling,
            "max_new_tokens": self.max_new_tokens,
            "seed": self.seed,
            "prompt": len(self.recorder.run["prompts"]) - 1,
            "clock": self.clock,
        }

    def _end(self, stopped: str | None) -> None:
        if stopped is not None:
            self.reducer.interrupt()
        self.reducer.flush()
        if self.method.memory is not None:
            self.recorder.run["memory"]["end"] = self.method.memory
        self.recorder.run["peak_memory"] = peak_memory(self.model.device)
        trace = self.recorder.close(complete=stopped is None, stopped=stopped)
        if stopped is None:
            self.ranks.check(self._said.hexdigest(), "text")
        if self.record == "dense" and stopped is None:
            trace = densify(trace, self.model, self.drafter)
            if self.recorder.path is not None:
                trace.save(self.recorder.path, force=True)
        self.trace = trace

    def _ids(self, prompt: Any, turns: bool, name: str = "the prompt") -> list[int]:
        if turns:  # questions and answers by turns
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
        if self.method.canvas and self.model.left(len(ids)) < self.max_new_tokens:
            raise PromptError(
                f"{name} has {len(ids)} tokens, and a canvas of {self.max_new_tokens} cells behind it is "
                f"beyond {self.model.name}'s {self.model.max_length}: shorten it, or lower max_new_tokens"
            )
        return ids

    def _metadata(self, name: str) -> dict[str, Any]:
        model, drafter = self.model, self.drafter
        dtype = str(model.dtype).removeprefix("torch.")
        sampling = {name: getattr(self.sampling, name) for name in ("temperature", "top_k", "top_p")}
        tokenizer = getattr(model, "tokenizer", None)
        return {
            "run": name,
            "method": self.method.name,
            "parameters": self.method.values,
            "sampling": sampling | {"seed": self.seed, "max_new_tokens": self.max_new_tokens},
            "exactness": self._exactness(dtype),
            "signals": schema.as_metadata(self.method.signals),
            "pseudocode": [list(line) for line in self.method.pseudocode],
            "model": about(model),
            "draft": None if drafter is None else about(drafter),
            "canvas": self._canvas(),
            "memory": None if self.method.memory is None else {"start": self.method.memory},
            "calibration": self._calibrated(),
            "tokenizer": None if tokenizer is None else getattr(tokenizer, "name_or_path", "") or model.name,
            "eos": list(model.eos),
            "prompts": [],
            "machine": machine_of(model),
            "threads": threads(model),
            "dtype": dtype,
            "backend": getattr(model, "backend", None),
            "versions": versions() | getattr(model, "versions", {}),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "timing": self.clock.timing if self.clock else None,
        }

    def _exactness(self, dtype: str) -> str:
        """The method's; in a batch passes have other shapes than alone, so it is exact up to ties at most."""
        label = self.method.exactness(self.sampling, dtype)
        return "exact up to ties" if label == "exact" and self.batch > 1 else label

    def _canvas(self) -> dict[str, Any] | None:
        if not isinstance(self.method, Unmasking):
            return None
        policy = {"length": self.max_new_tokens} | self.method.policy()
        return policy | {"mask": self.model.mask, "shift": self.model.shift}

    def _calibrated(self) -> dict[str, Any] | None:
        if self.calibration is None:
            return None
        known = {"parameter": self.method.size, "value": self.calibration.g}
        return known | {"device": self.calibration.device, "created": self.calibration.created}


def about(model: Any) -> dict[str, Any]:
    """What the record says of a model."""
    known = {"name": model.name, "parameters": model.parameters, "max_length": model.max_length}
    known |= {"kind": model.kind, "shape": getattr(model, "geometry", None)}
    known |= {"content": content(model), "source": getattr(model, "source", None)}
    return known | ({"prefix": len(model.prefix)} if hasattr(model, "prefix") else {})


def content(model: Any) -> str | None:
    """SHA-256 of a model's weights and tokenizer; None where it is split, or keeps none."""
    return None if holding(model).size > 1 else getattr(model, "content", None)


def generate(
    model: Any, prompt: Any, method: str | Method | type[Method] = "speculative", **options: Any
) -> Trace:
    """Decode one prompt, or several, one after another or in batches, and return the trace.

    Parameters
    ----------
    model : str, path, transformers model or specviz model
        A bundled name, a folder, ``hf:<id>``, or a loaded model.
    prompt : str, list of chat messages, list of token ids, dict, or a list of such
        A dict holds ``prompt`` or ``turns`` (texts, decoded in turn as one conversation) and may say ``id``,
        ``kind``, ``language`` and ``reference``, which the trace keeps.
    method : str, Method or class of one
        See `specviz.list_methods`.
    draft : like `model`, optional
        The draft model, for methods that need one; the others leave it alone.
    max_new_tokens : int
        Most tokens generated for each prompt. Default 128.
    temperature, top_k, top_p : float, int, float
        Sampling; temperature 0 (the default) is greedy, top_k 0 and top_p 1 are off.
    seed : int
        Seed of the random numbers.
    batch : int
        How many prompts are decoded together at most. Each is decoded as it would be alone (up to ties); a
        method that learns from prompt to prompt needs ``keep="prompt"``. Default 1: one after another.
    record : {"judged", "all", "dense", None}
        What the trace keeps: what judging read; every row of every pass; what judging read and, by one more
        pass of each model over the finished text, what they say at each place of it, with the drafter's tails
        (see `densify`), which `specviz.whatif` reads; or the text alone.
    out : path, optional
        Where to write the trace: a ``.parquet`` file, or a folder that gets a new file.
    force : bool
        Whether an existing file may be replaced.
    device, dtype, kernels : str, optional
        For models that are still to be loaded; see `specviz.load`.
    **parameters
        The method's own, by name.

    Returns
    -------
    Trace
        Of all prompts. After Ctrl-C the trace so far, with ``run["complete"]`` False.

    Raises
    ------
    ParameterError, ModelError, PromptError
        Before any work, with one line that says what to do.
    """
    run = Run(model, prompt, method, **options)
    for _ in run:
        pass
    assert run.trace is not None
    return run.trace


def stream(
    model: Any, prompt: Any, method: str | Method | type[Method] = "speculative", **options: Any
) -> Run:
    """Like `generate`, but gives an iterator of finished cycles whose ``trace`` is there at the end.

    Examples
    --------
    >>> run = specviz.stream(model, "...", method="bild", draft=small)  # doctest: +SKIP
    >>> for cycle in run:  # doctest: +SKIP
    ...     print(model.decode(cycle.tokens), end="")
    >>> run.trace  # doctest: +SKIP
    """
    return Run(model, prompt, method, **options)


def ready(model: Any, device: str | None, dtype: str | None, kernels: str | None = None) -> Any:
    """A model that can open contexts: loaded if it is a name, a path or a transformers model."""
    if model is None:
        raise ModelError("no model was given")
    if hasattr(model, "open") and hasattr(model, "encode") and not isinstance(model, Path):
        if device is not None and torch.device(device).type != torch.device(model.device).type:
            raise ModelError(f"{model.name} is on {model.device}; load it on {device}, or drop device=")
        if kernels not in (None, "auto", getattr(model, "kernels", None)):
            raise ModelError(f"{model.name} is loaded already: pass kernels={kernels!r} to load")
        return model
    from ..models import load

    return load(model, device, dtype, kernels=kernels)


def partner(model: Any, method: Method, draft: Any, device: str | None, dtype: str | None) -> Any:
    """The draft model, loaded if need be, or a part of the target; None if the method needs none.

    Raises
    ------
    ParameterError
        If it needs one, none was given, and none is bundled with the target.
    ModelError
        If it is of another kind than the target.
    """
    own = method.drafter_of(model)
    if own is not None or not method.needs_draft:
        return own
    if draft is None:
        draft = bundled_draft(method, model.name)
        if draft is None:
            what = ADDITIONS.get(method.drafts_with, "a draft model")
            raise ParameterError(f"{method.name} needs {what}: pass draft= (a name, a folder or a model)")
        print(f"specviz: no draft model given, using {draft}", file=sys.stderr)
    found = beside(model, draft, device, dtype)
    if not method.suited([found]):
        wants = ADDITIONS.get(method.drafts_with, "a draft model")
        raise ModelError(f"{method.name} drafts with {wants}; {found.name} is {found.kind}")
    asked = getattr(method, method.block_length_param) if method.block_length_param else 1
    if asked > getattr(found, "most", asked):
        raise ParameterError(
            f"{method.name} asks for blocks of {asked} tokens, and {found.name} has {found.kind} for "
            f"{found.most}: set {method.block_length_param} to at most that"
        )
    return found


def check_writes(model: Any, method: Method) -> None:
    """Refuse a method that writes masked canvases on a model that does not, and the other way round.

    Raises
    ------
    ParameterError
    """
    if method.canvas == (model.kind == "diffusion"):
        return
    able = ", ".join(methods.names("canvas" if model.kind == "diffusion" else "prompt"))
    if method.canvas:
        raise ParameterError(
            f"{method.name} writes the canvases of a masked-diffusion model, and {model.name} is "
            f"{model.kind}: take another model (bundled: town-diffusion), or another method: {able}"
        )
    raise ParameterError(
        f"{method.name} continues a text token by token, and {model.name} is a masked-diffusion model: take "
        f"one of {able}"
    )


def check_hidden(model: Any, method: Method, drafter: Any) -> None:
    """Refuse a method that reads hidden states on a backend that gives none.

    Raises
    ------
    ParameterError
    """
    if method.hidden_layers(drafter) and not getattr(model, "gives_hidden", True):
        raise ParameterError(
            f"{method.name} needs hidden states of the target's layers, and llama.cpp gives none: run it on "
            "a model in transformers' format"
        )


def check_served(model: Any, method: Method) -> None:
    """Refuse a method that a model cannot serve, whatever drafts for it.

    Raises
    ------
    ParameterError, ModelError
        Saying what the method needs.
    """
    check_writes(model, method)
    method.prepare(model)
    method.drafter_of(model)
    if not method.needs_draft:
        check_hidden(model, method, None)


def bundled_draft(method: Method | type[Method], target: str) -> str | None:
    """Name of the drafter that a bundled target brings for a method, if it brings one."""
    return DEFAULT_DRAFT.get(target, {}).get(method.drafts_with)


def refuse_processors(model: Any) -> None:
    """Refuse a generation config whose logits processors depend on the whole prefix.

    Raises
    ------
    ModelError
        Naming them.
    """
    config = getattr(getattr(model, "net", None), "generation_config", None)
    found = [
        f"{name}={value!r}"
        for name, off in PREFIX_PROCESSORS.items()
        if (value := getattr(config, name, None)) not in (None, off)
    ]
    if found:
        raise ModelError(
            f"{model.name}'s generation config sets {', '.join(found)}, which depends on the whole text so "
            "far and is not served: switch it off there (model.generation_config) to decode without it"
        )


def together(method: Method, entries: list[dict[str, Any]]) -> None:
    """Refuse what cannot be decoded in a batch.

    Raises
    ------
    ParameterError, PromptError
        Streams; conversations; a method that learns from one prompt for the next, or leaves passes early.
    """
    if method.streams:
        raise ParameterError(f"{method.name} decodes streams, one after another: leave batch out")
    if method.exit_rule is not None:
        raise ParameterError(f"{method.name} leaves each token's pass at a place of its own: leave batch out")
    if method.memory is not None and method.memory["keep"] == "run" and len(entries) > 1:
        raise ParameterError(
            f"{method.name} learns from prompt to prompt (keep='run'), and those of a batch are decoded at "
            "once: pass keep='prompt', or leave batch out"
        )
    for i, entry in enumerate(entries):
        if len(entry.get("turns", ())) > 1:
            raise PromptError(
                f"prompt {i} is a conversation, whose turns follow one another: leave batch out, or give it "
                "one turn"
            )


def prompts(given: Any) -> list[dict[str, Any]]:
    """The prompts as a list of dicts with ``prompt`` or ``turns``.

    Raises
    ------
    PromptError
        If it is empty or of no known form.
    """
    single = (
        isinstance(given, str | Mapping)
        or not isinstance(given, Sequence)
        or (len(given) > 0 and isinstance(given[0], Mapping) and "role" in given[0])
        or (len(given) > 0 and hasattr(given[0], "__index__"))
    )
    entries = [given] if single else list(given)
    if any(isinstance(entry, Stream) for entry in entries):
        raise PromptError(
            "a stream is decoded by retranslate; the other methods take a prompt that stands still"
        )
    if not entries:
        raise PromptError("the prompt is empty; give a text, chat messages, token ids, or a list of prompts")
    found = []
    for i, entry in enumerate(entries):
        where = "" if single else f" (prompt {i})"
        if not isinstance(entry, Mapping):
            entry = {"prompt": entry.tolist() if hasattr(entry, "tolist") else entry}
        if ("prompt" in entry) == ("turns" in entry):
            raise PromptError(f"a prompt needs either 'prompt' or 'turns'{where}")
        if "turns" in entry:
            turns = entry["turns"]
            if (
                isinstance(turns, str)
                or not turns
                or not all(isinstance(t, str) and t.strip() for t in turns)
            ):
                raise PromptError(f"'turns' must be a list of texts that are not empty{where}")
        elif not isinstance(entry["prompt"], str | Sequence):
            raise PromptError(
                f"a prompt is a text, chat messages or token ids, got {type(entry['prompt']).__name__}{where}"
            )
        elif len(entry["prompt"]) == 0 or (isinstance(entry["prompt"], str) and not entry["prompt"].strip()):
            raise PromptError(f"the prompt is empty{where}; give at least one token")
        found.append(dict(entry))
    return found


def streams(given: Any, method: Method) -> list[dict[str, Any]]:
    """The streams that a method decodes, as a list of dicts with ``stream`` and what is kept of each.

    Raises
    ------
    PromptError
        If something else is among them, or nothing.
    """
    several = [given] if isinstance(given, Stream) else given
    known = isinstance(several, Sequence) and not isinstance(several, str)
    if not known or not several or not all(isinstance(each, Stream) for each in several):
        raise PromptError(
            f"{method.name} decodes a source that arrives in updates: pass a specviz.streams.Stream, for "
            "example specviz.streams.fixed_lag(text), or a list of such"
        )
    return [
        {"stream": s, "kind": "stream"} | {k: getattr(s, k) for k in KEPT if k != "kind"} for s in several
    ]


def setting(model: Any, method: Method, drafter: Any = None) -> dict[str, Any]:
    """What a measurement of a draft size holds for: the keys of `calibration.SETTING`.

    Threads are a processor's; on another device they are no part of it.
    """
    where, count = machine_of(model), holding(model).size
    cpu = torch.device(model.device).type == "cpu"
    processor = where["processor"] if count == 1 else f"{count} × {where['processor']}"
    known = versions()
    return {
        "method": method.name,
        "parameters": {name: value for name, value in method.values.items() if name != method.size},
        "model": identity(model) | {"kernels": getattr(model, "kernels", None)},
        "draft": None if drafter is None or not method.needs_draft else identity(drafter),
        "device": processor if cpu else where["device"],
        "dtype": str(model.dtype).removeprefix("torch."),
        "threads": threads(model) if cpu else None,
        "versions": {
            name: known[name] for name in ("python", "specviz", "torch", "transformers") if name in known
        }
        | getattr(model, "versions", {}),
    }


def identity(model: Any) -> dict[str, Any]:
    """What tells a model from another one of the same name: its size and a digest of some of its weights."""
    found = {"name": model.name, "parameters": model.parameters, "vocabulary": model.vocabulary}
    net = getattr(model, "net", None)
    if net is None and hasattr(model, "digest"):
        found["weights"] = model.digest
    if net is not None and model in _split:
        found["weights"] = _split[model]
    elif net is not None:
        digest = hashlib.sha256()
        for weight in net.parameters():
            flat = whole_weight(weight.detach()).flatten()
            digest.update(flat[:: max(1, len(flat) // 16)][:16].double().cpu().numpy().tobytes())
        found["weights"] = digest.hexdigest()[:16]
        if holding(model).size > 1:
            _split[model] = found["weights"]
    return found


# The digests of split models: for one every weight is gathered, which takes its time.
_split: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def whole(name: str, value: Any, low: int) -> int:
    """`value` as an int of at least `low`."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < low:
        raise ParameterError(f"{name} must be a whole number of at least {low}, got {value!r}")
    return int(value)


def threads(model: Any) -> int:
    """Threads that a model's backend computes on."""
    return getattr(model, "threads", None) or torch.get_num_threads()


def beside(model: Any, draft: Any, device: str | None, dtype: str | None) -> Any:
    """A draft model, loaded on the target's device and in its number format, where it has no other.

    Raises
    ------
    ModelError
        If it is of another kind than the target, or was trained on top of another one.
    """
    own = str(model.dtype).removeprefix("torch.")
    if dtype is None and hasattr(torch, own) and not str(draft).startswith("gguf:"):
        dtype = own  # that of a quantized file is its own
    loaded = getattr(draft, "kind", None) in ADDED  # which have no device before they are on a target
    found = draft if loaded else ready(draft, device or str(model.device), dtype)
    if found.kind in ADDED:
        return found.on(model)
    if found.kind != model.kind:
        raise ModelError(
            f"a draft model must be of the target's kind: {model.name} is {model.kind}, {found.name} is "
            f"{found.kind}"
        )
    return found


def machine(device: torch.device) -> dict[str, str]:
    """Processor, device and system; no name of the machine or of a person."""
    processor = platform.processor() or platform.machine()
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf8") as lines:
        processor = next(
            (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), processor
        )
    name = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else str(device)
    return {"processor": processor, "device": name, "system": f"{platform.system()} {platform.release()}"}


def machine_of(model: Any) -> dict[str, str]:
    """As `machine`, of a model; of one that is split over ranks with all their devices."""
    found, together = machine(model.device), holding(model)
    if together.size > 1:
        devices = together.gather(found["device"])
        same = len(set(devices)) == 1
        found["device"] = f"{len(devices)} × {devices[0]}" if same else " + ".join(devices)
    return found


@cache
def versions() -> dict[str, str]:
    """Versions of Python, specviz and the libraries that ran."""
    found = {"python": platform.python_version()}
    for package, name in (
        ("specviz", "specviz-lm"),
        *((n, n) for n in ("torch", "transformers", "numpy", "pyarrow")),
    ):
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(name)
    return found


def peak_memory(device: torch.device) -> dict[str, int | None]:
    """Peak resident bytes of the process, and of the device where it keeps count."""
    process = None
    with suppress(ImportError):  # Windows
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    cuda = torch.device(device).type == "cuda"
    return {"process": process, "device": torch.cuda.max_memory_allocated(device) if cuda else None}


def calibrate_options(model: Any, method: Method, drafter: Any = None) -> str:
    """What `specviz calibrate` must be told, beside method and model, to measure in this setting."""
    device, dtype = torch.device(model.device).type, str(model.dtype).removeprefix("torch.")
    told = [] if drafter is None else ["--draft", drafter.name]
    if holding(model).size > 1:
        told += ["--tp-plan", "auto"]
    elif device != "cpu":
        told += ["--device", device]
    if device == "cpu":
        told += ["--threads", str(threads(model))]
    told += [] if dtype == "float32" else ["--dtype", dtype]
    for p in method.parameters:
        if p.name != method.size and method.values[p.name] != p.default:
            told += ["--set", f"{p.name}={method.values[p.name]}"]
    return "".join(f" {shlex.quote(word)}" for word in told)
