"""Schema of a line of a prompt file."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field
from typing_extensions import TypedDict

from specviz.files import whole_text


def _words(text: str) -> str:
    if not text.strip():
        raise ValueError("must be a non-empty string")
    return text


Text = Annotated[str, AfterValidator(whole_text)]
Words = Annotated[Text, AfterValidator(_words)]
Name = Text | int | None
Answers = Text | list[Any] | None


class Part(TypedDict, total=False):
    """A part of a message's content."""

    type: Text
    text: Text


class Message(TypedDict):
    """A turn of a chat."""

    role: Text
    content: Text | list[Part]


class Body(TypedDict, total=False):
    """The request in a line of an OpenAI batch file."""

    messages: Annotated[list[Message], Field(min_length=1)] | None
    prompt: Words | None


# A turn in ShareGPT's format.
Turn = TypedDict("Turn", {"from": Text, "value": Text})
Turns = Annotated[list[Turn], Field(min_length=1)]


Entry = TypedDict(
    "Entry",
    {
        "prompt": Words | None,
        "turns": Annotated[list[Words], Field(min_length=1)] | None,
        "messages": Annotated[list[Message], Field(min_length=1)] | None,
        "id": Name,
        "custom_id": Name,
        "question_id": Name,
        "kind": Name,
        "category": Name,
        "language": Name,
        "source": Name,
        "from": Name,
        "reference": Answers,
        "references": Answers,
    },
    total=False,
)
