"""Schemas for the lines of ``comet.jsonl`` and of a file of scores; imported only when one is read."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from specviz.measure.schema import Text as Words

Identity = Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")]


class Text(TypedDict):
    """A text to score."""

    id: Identity
    where: dict[Words, Words | int | float]
    source: Words
    hypothesis: Words
    reference: Words


class Score(TypedDict):
    """The score of a text."""

    id: Identity
    score: Annotated[float, Field(ge=-10, le=10, allow_inf_nan=False)]
    model: Annotated[Words, Field(min_length=1, max_length=200)]
