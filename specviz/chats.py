"""Convert chat messages from the forms of servers and data sets to the plain one that templates take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

from specviz.errors import PromptError

if TYPE_CHECKING:
    from specviz.suites.schema import Part

Message: TypeAlias = "Mapping[str, str | Sequence[Part]]"


def chat(messages: Sequence[Message], where: str = "") -> list[dict[str, str]]:
    """Convert messages so that each has a role and one text as its content.

    A content of several parts, as in OpenAI's interface, becomes its texts joined by line breaks.

    Parameters
    ----------
    messages : sequence of dict
        ``role``, ``content`` and any other keys that the template reads, which are kept.
    where : str
        Appended to error messages.

    Raises
    ------
    PromptError
        If a message has no role, a part is not text (an image), or the chat ends with the assistant's turn.
    """
    plain = []
    for number, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, list | tuple):
            content = "\n".join(_part(part, number, where) for part in content)
        if not isinstance(content, str) or not isinstance(message.get("role"), str):
            raise PromptError(f"message {number} needs a role and a content, both strings{where}")
        plain.append(cast("dict[str, str]", {**message, "content": content}))
    if plain and plain[-1]["role"] == "assistant":
        raise PromptError(
            f"the chat ends with the assistant's turn: the last message must be the user's{where}"
        )
    return plain


def _part(part: Part, number: int, where: str) -> str:
    """The text of one part of a content."""
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise PromptError(f"message {number} has a part of type {str(kind)[:30]!r}: only text is read{where}")
    return text
