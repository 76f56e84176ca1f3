"""Chat messages in the forms that servers and data sets give them, as the plain ones that templates take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias, cast

from specviz.errors import PromptError

if TYPE_CHECKING:
    from specviz.suites.schema import Part

Message: TypeAlias = "Mapping[str, str | Sequence[Part]]"


def chat(messages: Sequence[Message], where: str = "") -> list[dict[str, str]]:
    """The messages, each with a role and a content that is one text.

    A content of several parts, as OpenAI's interface has it, becomes its texts, a line break between them.

    Parameters
    ----------
    messages : sequence of dict
        ``role``, ``content`` and whatever else the template reads, which is kept.
    where : str
        Ends the message of an error.

    Raises
    ------
    PromptError
        If a message has no role, a part is no text (an image), or the chat ends with the assistant's turn.
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
            f"the chat ends with the assistant's turn: end it with the user's, which is answered{where}"
        )
    return plain


def _part(part: Part, number: int, where: str) -> str:
    """The text of a content's part."""
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise PromptError(f"message {number} has a part of type {str(kind)[:30]!r}: only text is read{where}")
    return text
