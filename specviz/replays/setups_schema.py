"""Schema that validates ``data/published/setups.toml``; imported only when that is read."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, with_config
from typing_extensions import TypedDict

from specviz.measure.schema import Text

Number = Annotated[int, Field(ge=1, le=10**7)]
Grid = Annotated[list[float], Field(min_length=1, max_length=20)]


@with_config(ConfigDict(extra="forbid"))
class Shape(TypedDict):
    """As `setups.Shape`."""

    layers: Number
    hidden: Number
    kv_heads: Number
    head_dim: Number
    feed_forward: Number
    heads: NotRequired[Number]
    vocabulary: NotRequired[Number]
    tied: NotRequired[bool]


@with_config(ConfigDict(extra="forbid"))
class Checkpoint(TypedDict):
    """As `setups.Checkpoint`."""

    architecture: Text
    shape: Text
    weights: Text
    stored: Literal["float32", "float16", "bfloat16"]
    licence: Text
    bytes: NotRequired[Annotated[int, Field(ge=1, le=10**12)]]
    size_of: NotRequired[Text]
    gated: NotRequired[bool]
    needs: NotRequired[Text]


@with_config(ConfigDict(extra="forbid"))
class Numbers(TypedDict):
    """Sizes of a run."""

    prompts: Number
    max_new_tokens: Number
    rounds: NotRequired[Number]
    fallbacks: NotRequired[Grid]
    rollbacks: NotRequired[Grid]


@with_config(ConfigDict(extra="forbid"))
class Part(TypedDict):
    """As `setups.Part`."""

    model: Text
    drafts: NotRequired[dict[Text, Text]]
    suites: Annotated[dict[Text, Text], Field(min_length=1)]
    rows: NotRequired[dict[Text, Text]]
    wording: NotRequired[Text]
    template: NotRequired[Text]
    limits: NotRequired[dict[Text, Number]]
    dtype: NotRequired[Literal["float32", "float16", "bfloat16"]]
    numbers: Numbers
    gguf: NotRequired[Text]
    stated: Text
    unstated: NotRequired[Text]


class Content(TypedDict):
    """The whole file."""

    shapes: dict[Text, Shape]
    checkpoints: dict[Text, Checkpoint]
    parts: dict[Text, Part]
    tables: dict[Text, Annotated[list[Text], Field(min_length=1)]]
    without: dict[Text, Text]


def _named(content: Content) -> Content:
    """Check that every name refers to an entry of the file."""
    for id, each in content["checkpoints"].items():
        if each["shape"] not in content["shapes"]:
            raise ValueError(f"has {id} with an unknown shape {each['shape']!r}")
    for name, part in content["parts"].items():
        for id in (part["model"], *part.get("drafts", {}).values()):
            if id not in content["checkpoints"]:
                raise ValueError(f"has parts.{name} with an unknown checkpoint {id!r}")
    for table, names in content["tables"].items():
        if unknown := set(names) - set(content["parts"]):
            raise ValueError(f"has tables.{table} with an unknown part {min(unknown)!r}")
    return content


SetupsFile = Annotated[Content, AfterValidator(_named)]
