"""Checks made before any work: the form of the prompts, and whether a model can serve a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from .. import methods
from ..chats import chat
from ..errors import ModelError, ParameterError, PromptError
from ..methods.base import Method
from ..methods.hooks import ADDED
from ..models.protocols import Model
from ..models.ranks import Ranks
from ..streams import Stream
from ..trace.files import Record

if TYPE_CHECKING:
    from ..models.additions import Addition

Prompts: TypeAlias = Any  # prompts in any form that `generate` accepts, a stream, or a list of streams
Field: TypeAlias = str | int | list[str] | None  # a value of one of PROMPT_FIELDS
PROMPT_FIELDS = ("id", "kind", "language", "reference", "segmented")  # fields of a prompt that a trace keeps
# Settings of a generation config whose logits processors read the whole text so far: a block pass
# would need a different processor at each node. Each value switches its setting off.
PREFIX_PROCESSORS = {
    "repetition_penalty": 1.0, "encoder_repetition_penalty": 1.0, "guidance_scale": 1.0,
    "no_repeat_ngram_size": 0, "encoder_no_repeat_ngram_size": 0, "min_length": 0,
} | dict.fromkeys(
    ("bad_words_ids", "sequence_bias", "exponential_decay_length_penalty", "watermarking_config",
     "constraints", "force_words_ids", "min_new_tokens", "suppress_tokens", "begin_suppress_tokens"),
)  # fmt: skip

# -- prompts ---------------------------------------------------------------------------------------


def check_prompts(given: Prompts) -> list[Record]:
    """Return the prompts as a list of dicts with ``prompt`` or ``turns``.

    Raises
    ------
    PromptError
        If the list is empty, or an entry is a stream or not a valid prompt.
    """
    single = (
        isinstance(given, str | Mapping)
        or not isinstance(given, Sequence)
        or (len(given) > 0 and isinstance(given[0], Mapping) and "role" in given[0])
        or (len(given) > 0 and hasattr(given[0], "__index__") and not getattr(given[0], "ndim", 0))
    )
    entries = [given] if single else list(given)
    if any(isinstance(entry, Stream) for entry in entries):
        raise PromptError("streams are decoded by retranslate; the other methods take a fixed prompt")
    if not entries:
        raise PromptError("the prompt is empty; give a text, chat messages, token ids, or a list of prompts")
    return [
        _check_prompt(entry, "" if single else f" (prompt {number} of {len(entries)})")
        for number, entry in enumerate(entries, 1)
    ]


def _check_prompt(entry: Prompts, where: str) -> Record:
    """Return one prompt as a dict; `where` ends the error message if it is invalid."""
    if not isinstance(entry, Mapping):
        entry = {"prompt": entry.tolist() if hasattr(entry, "tolist") else entry}
    if sum(name in entry for name in ("prompt", "turns", "messages")) != 1:
        raise PromptError(f"a prompt needs one of 'prompt', 'turns' and 'messages'{where}")
    if "messages" in entry:
        entry = {"prompt" if name == "messages" else name: value for name, value in entry.items()}
    if "turns" in entry:
        turns = entry["turns"]
        several = isinstance(turns, Sequence) and not isinstance(turns, str) and len(turns) > 0
        if not several or not all(isinstance(turn, str) and turn.strip() for turn in turns):
            raise PromptError(f"'turns' must be a list of non-empty strings{where}")
    elif isinstance(prompt := entry["prompt"], bytes) or not isinstance(prompt, str | Sequence):
        raise PromptError(
            f"a prompt must be a text, chat messages or token ids, got {type(prompt).__name__}{where}"
        )
    elif len(prompt) == 0 or (isinstance(prompt, str) and not prompt.strip()):
        raise PromptError(f"the prompt is empty{where}; give at least one token")
    elif not isinstance(prompt, str) and isinstance(prompt[0], Mapping):
        entry = {**entry, "prompt": chat(prompt, where)}
    checked = {name: _check_field(name, entry[name], where) for name in PROMPT_FIELDS if name in entry}
    blank = [name for name, value in checked.items() if value is None]
    return {name: value for name, value in {**entry, **checked}.items() if name not in blank}


def _check_field(name: str, value: Prompts, where: str, owner: str = "a prompt") -> Field:
    """Return a field of a prompt or stream in a form that the record can hold; None for a blank cell."""
    if hasattr(value, "tolist"):  # NumPy: a number, or an array of texts
        value = value.tolist()
    if value is None or (value != value) is not False:  # pandas' NA compares as NA
        return None
    if name == "segmented":  # of a stream it names the splitter
        kind, kinds = (bool, "true or false") if owner == "a prompt" else (str, "a text")
        if isinstance(value, kind):
            return value
        raise PromptError(f"'segmented' of {owner} must be {kinds}, got {value!r:.60}{where}")
    if name == "reference" and isinstance(value, list | tuple):
        if all(isinstance(each, str) for each in value):
            return list(value)
    elif isinstance(value, str) or (name != "reference" and type(value) is int):
        return value
    kinds = "a text or a list of texts" if name == "reference" else "a text or a whole number"
    raise PromptError(f"{name!r} of {owner} must be {kinds}, got {value!r:.60}{where}")


def check_streams(given: Prompts, method: Method) -> list[Record]:
    """Return the streams as a list of dicts: ``stream``, and the fields that the trace keeps.

    Raises
    ------
    PromptError
        If the list is empty, or an entry is not a stream, has no updates or a field that no record can hold.
    """
    several = [given] if isinstance(given, Stream) else given
    listed = isinstance(several, Sequence) and not isinstance(several, str)
    if not listed or not several or not all(isinstance(each, Stream) for each in several):
        raise PromptError(
            f"{method.name} decodes a source that arrives in updates: pass a specviz.streams.Stream, for "
            "example specviz.streams.fixed_lag(text), or a list of streams"
        )
    empty = [
        number
        for number, each in enumerate(several, 1)
        if isinstance(each.updates, list | tuple) and not each.updates
    ]
    if empty:
        raise PromptError(f"stream {empty[0]} has no updates: give it one, or leave it out")
    return [
        {"stream": s, "kind": "stream"} | _stream_fields(s, number) for number, s in enumerate(several, 1)
    ]


def _stream_fields(given: Stream, number: int) -> Record:
    """Return the fields of a stream that the trace keeps, checked; a blank one is None."""
    fields = ("id", "language", "reference", "segmented")
    return {name: _check_field(name, getattr(given, name), "", f"stream {number}") for name in fields}


def check_batchable(method: Method, entries: list[Record]) -> None:
    """Refuse a method or prompts that cannot be decoded in a batch.

    Raises
    ------
    ParameterError, PromptError
        For a method that decodes streams, exits early or learns from prompt to prompt; for conversations.
    """
    if method.streams:
        raise ParameterError(f"{method.name} decodes streams one after another: drop batch")
    if method.exit_rule is not None:
        raise ParameterError(f"{method.name} exits each token's pass at a different layer: drop batch")
    if method.memory is not None and method.memory["keep"] == "run":
        raise ParameterError(
            f"{method.name} learns from prompt to prompt (keep='run'), but a batch decodes its prompts "
            f"together: pass keep='prompt' or drop batch"
        )
    check_single_turns(entries, "drop batch, or ")


def check_single_turns(entries: Sequence[Record], remedy: str = "") -> None:
    """Refuse conversations (`PromptError`); `remedy` comes before the advice to give them one turn."""
    for number, entry in enumerate(entries, 1):
        if len(entry.get("turns", ())) > 1:
            raise PromptError(
                f"prompt {number} is a conversation, whose turns follow one another: {remedy}give it one turn"
            )


def check_ranks(ranks: Ranks, method: Method, entries: list[Record]) -> None:
    """Raise `PromptError` for a live stream on a split model: it would reach each rank at another time."""
    if ranks.size == 1 or not method.streams:
        return
    if any(not isinstance(entry["stream"].updates, list | tuple) for entry in entries):
        raise PromptError(
            "a live stream reaches each rank at a different time: with a model split over ranks, give its "
            "updates as a list"
        )


# -- methods and models ----------------------------------------------------------------------------


def check_record(record: str | None, greedy: bool, method: Method) -> None:
    """Raise `ParameterError` for a dense record of a run that cannot be replayed position by position."""
    if record != "dense":
        return
    if not greedy:
        raise ParameterError("record='dense' is for greedy runs: a sampled text cannot be replayed")
    if method.streams:
        raise ParameterError("record='dense' needs a fixed prompt; record a stream with 'judged' or 'all'")
    if method.canvas:
        raise ParameterError(
            "record='dense' asks a drafter at every position of a text, which a canvas does not have: "
            "record 'judged' or 'all'"
        )


def check_alone(model: Model) -> None:
    """Refuse a target that only drafts for another model (`ModelError`)."""
    if model.kind in ADDED:
        cast("Addition", model).alone()


def check_writes(model: Model, method: Method) -> None:
    """Refuse a canvas method on a model that is not masked-diffusion, and any other method on one that is.

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
            f"{model.kind}: use another model (bundled: town-diffusion) or another method: {able}"
        )
    raise ParameterError(
        f"{method.name} continues a text token by token, and {model.name} is a masked-diffusion model: use "
        f"one of {able}"
    )


def check_trees(model: Model, method: Method) -> None:
    """Refuse a method that drafts trees on a model that reads only chains (`ParameterError`)."""
    if method.trees and not getattr(model, "trees", True):
        raise ParameterError(
            f"{method.name} drafts trees, but {model.name} reads only chains: its decoder is recurrent, and "
            f"each branch would need its own state; use speculative, prompt_lookup or retranslate"
        )


def check_hidden(model: Model, method: Method, drafter: Model | None) -> None:
    """Refuse a method that needs hidden states on a backend that provides none (`ParameterError`)."""
    if method.hidden_layers(drafter) and not getattr(model, "gives_hidden", True):
        raise ParameterError(
            f"{method.name} needs hidden states of the target's layers, which llama.cpp does not provide: "
            f"use a model in transformers' format"
        )


def check_served(model: Model, method: Method) -> None:
    """Refuse a method that a model cannot serve with any drafter.

    Raises
    ------
    ParameterError, ModelError
        The message says what the method needs.
    """
    check_writes(model, method)
    method.prepare(model)
    method.drafter_of(model)
    if not method.needs_draft:
        check_hidden(model, method, None)
    check_trees(model, method)


def check_processors(model: Model) -> None:
    """Refuse a generation config whose logits processors depend on the whole prefix.

    Raises
    ------
    ModelError
        The message names them.
    """
    config = getattr(getattr(model, "net", None), "generation_config", None)
    values = {name: getattr(config, name, None) for name in PREFIX_PROCESSORS}
    active = [f"{name}={v!r}" for name, v in values.items() if v not in (None, [], PREFIX_PROCESSORS[name])]
    if active:
        raise ModelError(
            f"{model.name}'s generation config sets {', '.join(active)}, which depends on the whole text so "
            f"far and is not supported: switch it off (model.generation_config) to decode without it"
        )
