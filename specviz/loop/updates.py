"""Decode a source that arrives in updates: each gets a new prompt; the last output is verified or rewritten.

The prefix that two successive prompts share keeps its keys and values; everything after it is recomputed.
That is exact, because a row of the cache depends only on the tokens up to it. An encoder-decoder keeps
nothing: every encoder state depends on the whole source, and every row of the decoder's cache on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import PromptError
from ..methods.retranslate import Retranslate
from ..methods.sampling import Uniforms
from ..models.protocols import Context, Model
from ..models.template import Template
from ..rules.speculative import common_prefix
from ..streams import Stream
from .cycle import Cycle, decode


def decode_stream(
    target: Model, stream: Stream, method: Retranslate, *, template: Template, seed: int = 0,
    prompt: int = 0, **options: Any,
) -> Iterator[Cycle]:  # fmt: skip
    """Decode each update of a stream after the previous one; yield every finished cycle.

    Parameters
    ----------
    target : Model
    stream : Stream
    method : Retranslate
    template : Template
        Builds the prompt of an update.
    seed, prompt : int
        Keys of the random numbers, along with the number of the update.
    **options
        Options of `decode`.

    Yields
    ------
    Cycle
        For each update, the prefill, with the number of reused tokens, and its cycles; the last one has the
        number of tokens displayed.

    Raises
    ------
    PromptError
        If an update has no tokens or leaves no room in the target's context, or none comes. Earlier
        cycles were yielded.
    """
    context: Context | None = None
    before: list[int] = []  # the prompt of the previous update
    output: list[int] = []
    number = -1
    try:
        for number, update in enumerate(stream):
            tokens = template(update.text)
            check_room(target, stream.id or prompt + 1, number, tokens)
            room = min(options.get("max_new_tokens", 128), target.left(len(tokens)))
            context, reused = continued(context, target, before, tokens, room + method.extra_cache_slots)
            new: list[int] = []
            for cycle in decode(
                target, tokens, method, prompt=prompt, seed=seed, uniforms=Uniforms(seed, prompt, number),
                previous=output, context=context, **options,
            ):  # fmt: skip
                new += cycle.tokens
                cycle.update = number
                if cycle.number == 0:
                    cycle.source, cycle.arrival = update.text, update.time
                    cycle.reused = min(reused, context.length[0] - 1)  # the root is always recomputed
                if cycle.end is not None:
                    cycle.shown = method.shown(len(new) - (cycle.end == "eos"), update.last)
                yield cycle
            before, output = tokens, new
    finally:
        if context is not None:
            context.close()
    if number < 0:
        raise PromptError(
            f"stream {prompt + 1} gave no update: a generator or a live source is read once, so give each "
            "run one of its own"
        )


def check_room(target: Model, name: str | int, number: int, tokens: list[int]) -> None:
    """Refuse an update whose prompt is empty or fills the target's context (`PromptError`)."""
    if not tokens:
        raise PromptError(
            f"update {number} of stream {name} is empty: drop it, or choose a template with words of its own"
        )
    if target.left(len(tokens)) < 1:
        raise PromptError(
            f"update {number} of stream {name} has a prompt of {len(tokens)} tokens and leaves no room in "
            f"{target.name}'s context of {target.max_length}: start a new stream, for example at the end of "
            "a sentence"
        )


def continued(
    context: Context | None, target: Model, before: list[int], tokens: list[int], room: int
) -> tuple[Context, int]:
    """Return a context that holds the common prefix of two prompts, and its length; a new one without one."""
    whole = target.kind == "encoder-decoder"  # its context can only take a whole prompt
    reused = 0 if context is None or whole else common_prefix(before, tokens)
    if context is None or not reused:
        if context is not None:
            context.close()
        context = target.open([tokens], room)
    if not whole:
        context.rewind(reused or 1)
    return context, reused
