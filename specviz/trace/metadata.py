"""Types that a run's metadata is checked against; imported when such metadata is read.

`specviz.schema.RUN_FIELDS` says what each field means.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated, Literal, NotRequired

from pydantic import AfterValidator, Field
from typing_extensions import TypedDict

from specviz import schema
from specviz.trace.files import Record

Count = Annotated[int, Field(ge=0, lt=2**63)]
Cells = Annotated[int, Field(ge=1, le=2**24)]  # number of cells
Number = Annotated[float, Field(allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
Text = Annotated[str, Field(max_length=1 << 20)]
Word = Annotated[str, Field(max_length=schema.WORD_LIMIT)]
Facts = dict[str, Text | Number | None]


def _sizes(shape: object, fields: set[str]) -> bool:
    """Whether a shape has exactly these fields, all above zero; norms and yes-or-no fields may be zero."""
    if not isinstance(shape, dict) or set(shape) != fields:
        return False
    least = dict.fromkeys(("vectors", "last", "gated", "tied", "entered", "fused"), 0)
    return all(isinstance(v, int | float) and least.get(name, 1e-6) <= v < 1e12 for name, v in shape.items())


def _shape(shape: Record) -> Record:
    """Check a model's shape: a decoder's, with an encoder, experts or the first part of an EAGLE drafter."""
    own = dict(shape)
    encoder, eagle, experts = (own.pop(name, None) for name in ("encoder", "eagle", "experts"))
    if encoder is None:
        good = _sizes(own, set(schema.SHAPE_FIELDS))
    else:
        good = _sizes(own, {*schema.SHAPE_FIELDS, "prefix"}) and _sizes(encoder, set(schema.ENCODER_FIELDS))
    if experts is not None:
        good = good and _sizes(experts, set(schema.EXPERT_FIELDS)) and experts["chosen"] <= experts["count"]
    if not good or not (eagle is None or _sizes(eagle, set(schema.EAGLE_FIELDS))):
        raise ValueError("is not the shape of a model")
    return shape


def pieces_of(pieces: Mapping[str, str]) -> dict[int, bytes]:
    """Decode token pieces to bytes by token id.

    Raises
    ------
    ValueError
        If a key is not an id, or a text is not base64.
    """
    try:
        return {int(token): base64.b64decode(text, validate=True) for token, text in pieces.items()}
    except (ValueError, binascii.Error):
        raise ValueError("holds token pieces that are not base64 by token id") from None


class Model(TypedDict, total=False):
    """A model or a drafter."""

    name: Text | int | None
    parameters: Count | Number | None
    max_length: Count | None
    kind: Word | None
    shape: Annotated[Record, AfterValidator(_shape)] | None
    content: Word | None
    source: Text | None
    prefix: Count | None
    tail: Count | None
    kernels: Word | None


class Prompt(TypedDict, total=False):
    """A prompt of a run."""

    tokens: list[TokenId] | None
    id: Text | int | None
    kind: Text | int | None
    language: Text | int | None
    length: Count | None
    turn: Count | None
    reference: Text | list[Text] | None
    segmented: Word | bool | None  # of a stream, how it is split into words


class Sampling(TypedDict, total=False):
    """How tokens were chosen."""

    temperature: Number | None
    top_k: Count | None
    top_p: Number | None
    seed: int | None
    max_new_tokens: Count | None


class Canvas(TypedDict):
    """How a canvas was written."""

    length: Cells
    block: Cells
    cache: Word
    refresh: Count | None
    mask: NotRequired[TokenId | None]
    shift: NotRequired[int | None]


Memory = TypedDict(  # noqa: UP013  what a drafter remembered
    "Memory",
    {
        "state": Word, "keep": NotRequired[Word | int | None], "known": Count,
        "bytes": NotRequired[Count | None],
    },
)  # fmt: skip


class Memories(TypedDict, total=False):
    """A drafter's memory when the run began and when it ended."""

    start: Memory | None
    end: Memory | None


class Signal(TypedDict):
    """A signal that the run describes: `schema.Signal`."""

    name: Word
    unit: Word
    meaning: Word
    level: Literal["node", "cycle"]


def _named(signal: Signal) -> Signal:
    if not (schema.is_signal if signal["level"] == "node" else schema.is_name)(signal["name"]):
        raise ValueError("has an invalid signal name")
    return signal


Line = Annotated[list[Word], Field(min_length=2, max_length=2)]


class Run(TypedDict):
    """All metadata of a run."""

    schema: int
    run: Text
    method: Text
    parameters: NotRequired[Record | None]
    sampling: NotRequired[Sampling | None]
    exactness: NotRequired[Text | None]
    signals: NotRequired[list[Annotated[Signal, AfterValidator(_named)]] | None]
    pseudocode: NotRequired[Annotated[list[Line], Field(max_length=schema.LINES_LIMIT)] | None]
    model: NotRequired[Model | None]
    draft: NotRequired[Model | None]
    dense: NotRequired[Model | None]
    canvas: NotRequired[Canvas | None]
    memory: NotRequired[Memories | None]
    calibration: NotRequired[Facts | None]
    tokenizer: NotRequired[Text | None]
    eos: NotRequired[list[TokenId] | None]
    prompts: NotRequired[list[Prompt] | None]
    pieces: NotRequired[Annotated[dict[str, str], AfterValidator(pieces_of)] | None]
    machine: NotRequired[dict[str, Text | None] | None]
    threads: NotRequired[int | None]
    backend: NotRequired[Record | None]
    dtype: NotRequired[Text | None]
    versions: NotRequired[Record | None]
    created: NotRequired[Text | None]
    record: NotRequired[Text | None]
    replayed: NotRequired[Text | None]
    timing: NotRequired[Text | Record | None]
    peak_memory: NotRequired[dict[str, Count | None] | None]
    complete: NotRequired[bool | None]
    stopped: NotRequired[Text | None]


class BatchExtra(TypedDict, total=False):
    """Metadata that a batch of a partial stream adds."""

    pieces: dict[str, str]
    prompts: list[Prompt]
