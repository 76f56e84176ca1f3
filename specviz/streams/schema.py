"""What files of partial results and of timed words hold, as the gate checks them."""

from __future__ import annotations

from typing import Annotated, NotRequired

from pydantic import AfterValidator, Field
from typing_extensions import TypedDict

from specviz.files import whole_text

Text = Annotated[str, AfterValidator(whole_text)]
Seconds = Annotated[float, Field(allow_inf_nan=False)]


class Partial(TypedDict):
    """What is heard of an utterance so far."""

    text: Text
    time: NotRequired[Seconds | None]
    final: NotRequired[bool]


class Word(TypedDict):
    """A word and when it was said."""

    word: Text
    start: Seconds
    end: Seconds
