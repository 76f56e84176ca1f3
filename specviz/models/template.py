"""Prompt templates: a fixed wording around the user's text, as token ids."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from specviz.errors import ParameterError

if TYPE_CHECKING:
    from specviz.models.protocols import TextModel

MARK = re.compile(r"<\|\w+\|>|<(?:start|end)_of_turn>")  # looks like some model's special token


class Template:
    """A prompt wording. Special tokens are recognised in the wording, never in the user's text.

    Parameters
    ----------
    model : Model
        The model whose tokenizer is used.
    before, after : str
        The wording before and after the user's text.

    Raises
    ------
    ParameterError
        If the model has no tokenizer, or the wording has marks such as ``<start_of_turn>`` that are not
        tokens of this model.
    """

    def __init__(self, model: TextModel, before: str, after: str) -> None:
        if model.text.tokenizer is None:
            raise ParameterError(
                f"{model.name} has no tokenizer, so a template cannot be read: load it with tokenizer="
            )
        self.text = model.text
        specials = self.text.specials
        names = "|".join(re.escape(name) for name in sorted(specials, key=len, reverse=True))
        parts = [re.split(f"({names})", side) if names else [side] for side in (before, after)]
        plain = [part for side in parts for part in side[::2]]
        if unknown := MARK.search(" ".join(plain)):
            raise ParameterError(
                f"the template has {unknown[0]}, which is not a token of {model.name}: use that model's own "
                f"template, or write one that contains {{source}}"
            )
        # Pieces never cross a special token, so the text between two of them can be tokenized separately.
        head, tail = parts[0][-1], parts[1][0]
        self.around = head, tail
        self.before = self._ids(parts[0][:-1])
        self.after = self._ids(["", *parts[1][1:]])
        if self.text.source:  # an encoder reads complete texts, with all tokens that its tokenizer adds
            first, last = self._frame()
            self.before, self.after = [*first, *self.before], [*self.after, *last]
            return
        begin = self.text.begin
        if begin is not None and self.before[:1] != [begin]:
            self.before = [begin, *self.before]

    def _frame(self) -> tuple[list[int], list[int]]:
        """The tokens that the tokenizer adds before and after a text."""
        word, whole = self.text.plain("a"), self.text.encode("a")
        start = next(i for i in range(len(whole)) if whole[i : i + len(word)] == word)
        return whole[:start], whole[start + len(word) :]

    def _ids(self, parts: list[str]) -> list[int]:
        ids: list[int] = []
        for i, part in enumerate(parts):
            ids += [self.text.specials[part]] if i % 2 else self.text.plain(part)
        return ids

    def __call__(self, source: str) -> list[int]:
        """Token ids of the prompt with `source` as the user's text."""
        head, tail = self.around
        return [*self.before, *self.text.plain(head + source + tail), *self.after]
