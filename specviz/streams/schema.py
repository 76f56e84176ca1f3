"""Schemas for files of partial results and of timed words."""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import AfterValidator, Field
from typing_extensions import TypedDict

from specviz.files import whole_text

Text = Annotated[str, AfterValidator(whole_text)]
Seconds = Annotated[float, Field(allow_inf_nan=False)]


class Partial(TypedDict):
    """An utterance as heard so far."""

    text: Text
    time: NotRequired[Seconds | None]
    final: NotRequired[bool]


class Word(TypedDict):
    """A word and its times."""

    word: Text
    start: Seconds
    end: Seconds
