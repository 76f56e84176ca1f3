"""One source that arrives in updates: at each its prompt is written anew, its output verified or rewritten.

The prefix that two prompts share keeps its keys and values; everything after it is computed anew. That is
exact: a row of the cache depends on nothing but the tokens up to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import PromptError
from ..methods.kinds import StreamMethod
from ..methods.sampling import Uniforms
from ..models.template import Template
from ..streams import Stream, Update
from .cycle import Cycle, decode


def decode_stream(
    target: Any,
    stream: Stream,
    method: StreamMethod,
    *,
    template: Template,
    seed: int = 0,
    prompt: int = 0,
    **options: Any,
) -> Iterator[Cycle]:
    """Decode every update of a stream; yield each cycle when it is finished.

    Parameters
    ----------
    target : Model
    stream : Stream
        Asked for its next update when the one before is decoded.
    method : StreamMethod
    template : Template
        Writes an update's prompt.
    seed, prompt : int
        Keys of the random numbers, with the update's number.
    **options
        As `decode` takes them.

    Yields
    ------
    Cycle
        Of each update first the prefill, which says what was reused, then its cycles; the last one says how
        much of the output is displayed.

    Raises
    ------
    PromptError
        If an update leaves no room in the target's context. Everything before it was yielded.
    """
    context: Any = None
    before: list[int] = []  # the prompt of the update before
    output: list[int] = []
    try:
        for number, update in enumerate(stream):
            tokens = template(update.text)
            if target.left(len(tokens)) < 1:
                raise PromptError(
                    f"update {number} has a prompt of {len(tokens)} tokens and leaves no room in "
                    f"{target.name}'s context of {target.max_length}: begin a new stream, as where a "
                    "sentence ends"
                )
            reused = shared(before, tokens)
            if context is not None and not reused:
                context.close()
                context = None
            if context is None:
                room = min(options.get("max_new_tokens", 128), target.left(len(tokens)))
                context = target.open([tokens], room + method.extra_cache_slots)
            context.rewind(reused or 1)
            new: list[int] = []
            for cycle in decode(
                target, tokens, method, prompt=prompt, seed=seed, uniforms=Uniforms(seed, prompt, number),
                previous=output, context=context, **options,
            ):  # fmt: skip
                new += cycle.tokens
                _place(cycle, number, update, min(reused, context.length[0] - 1))  # the root is read again
                if cycle.end is not None:
                    cycle.shown = method.shown(len(new) - (cycle.end == "eos"), update.last)
                yield cycle
            before, output = tokens, new
    finally:
        if context is not None:
            context.close()


def _place(cycle: Cycle, number: int, update: Update, reused: int) -> None:
    """Say in a cycle which update it is of; in the first one also what its prompt took over."""
    cycle.update = number
    if cycle.number == 0:
        cycle.source, cycle.arrival, cycle.reused = update.text, update.time, reused


def shared(one: list[int], other: list[int]) -> int:
    """How many tokens two prompts begin with in common."""
    n = 0
    for a, b in zip(one, other):
        if a != b:
            break
        n += 1
    return n
