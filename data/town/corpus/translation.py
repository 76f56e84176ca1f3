"""Translations that are right by construction, of whole texts and of every prefix of the source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from town.corpus import language
from town.corpus.meaning import (
    STEADY,
    Language,
    Pick,
    Piece,
    Sentence,
    keyed_pick,
    paraphrases,
    partial,
)

UNSPACED = ("zh", "ja")  # written without spaces: the unit of their prefixes is the character


def units(text: str, code: str) -> list[str]:
    """The units in which a source text is read: words, or characters in Chinese and Japanese."""
    return list(text) if code in UNSPACED else text.split()


def _pick(seed: int, index: int) -> Pick:
    """The choices of sentence `index` of a text; those of ``STEADY`` are the same in all of its sentences."""
    whole, own = keyed_pick(seed), keyed_pick(seed * 1009 + index + 1)

    def pick(key, options, weights=None):  # type: ignore[no-untyped-def]
        return (whole if key.startswith(STEADY) else own)(key, options, weights)

    return pick


def say(sentences: Sequence[Sentence], code: str, seed: int) -> str:
    """A text in one language; equal seeds make equal choices of words and order."""
    spoken = language(code)
    said = [spoken.join(spoken.pieces(s, _pick(seed, i))) for i, s in enumerate(sentences)]
    return ("" if code in UNSPACED else " ").join(said)


def _open(pieces: list[Piece]) -> list[Piece]:
    """Drop the closing punctuation from pieces, since the text continues."""
    while pieces and pieces[-1].slot == "mark":
        pieces = pieces[:-1]
    return pieces


@dataclass(frozen=True)
class Translation:
    """One text in two languages.

    Attributes
    ----------
    meanings : tuple[Sentence, ...]
    from_code, to_code : str
    seed : int
        Decides every free choice of both sides.
    most : int
        Most accepted paraphrases per sentence.
    """

    meanings: tuple[Sentence, ...]
    from_code: str
    to_code: str
    seed: int
    most: int = 64

    @cached_property
    def source(self) -> str:
        """The source text."""
        return say(self.meanings, self.from_code, 2 * self.seed)

    @cached_property
    def reference(self) -> str:
        """The reference translation."""
        return say(self.meanings, self.to_code, 2 * self.seed + 1)

    @cached_property
    def accepted(self) -> tuple[tuple[str, ...], ...]:
        """The reference of each sentence, followed by other right translations, all different."""
        spoken = language(self.to_code)
        found = []
        for i, meaning in enumerate(self.meanings):

            def one(pick: Pick, meaning: Sentence = meaning) -> str:
                return spoken.join(spoken.pieces(meaning, pick))

            reference = one(_pick(2 * self.seed + 1, i))
            others = paraphrases(one, self.most)
            texts = [reference, *(t for t in others if t != reference)]
            found.append(tuple(texts[: self.most]))
        return tuple(found)

    @cached_property
    def length(self) -> int:
        """How many units the source has."""
        return len(units(self.source, self.from_code))

    def said(self, n: int) -> list[set[str]]:
        """The slots of each sentence that the first `n` source units express in full; the last set belongs to
        the sentence being read. Punctuation does not count."""
        spoken = language(self.from_code)
        found: list[set[str]] = []
        for i, meaning in enumerate(self.meanings):
            pieces = spoken.pieces(meaning, _pick(2 * self.seed, i))
            text = spoken.join(pieces)
            size = len(units(text, self.from_code))
            found.append(_slots(spoken, pieces, self.from_code, min(n, size)))
            n -= size
            if n <= 0:
                break
        return found

    def prefix(self, n: int) -> str:
        """The reference partial translation of the first `n` units of the source.

        Only slots that the source has expressed in full are translated, with the same choices as in the
        reference; ``prefix(length)`` is the reference.

        Raises
        ------
        ValueError
            If `n` is not between 0 and ``length``.
        """
        if not 0 <= n <= self.length:
            raise ValueError(f"the source has {self.length} units: n = {n} is not a prefix of it")
        spoken = language(self.to_code)
        texts = []
        for i, (meaning, slots) in enumerate(zip(self.meanings, self.said(n), strict=False)):
            pick = _pick(2 * self.seed + 1, i)
            if "all" in slots:
                texts.append(spoken.join(spoken.pieces(meaning, pick)))
                continue
            part = partial(meaning, slots)
            if part is not None:
                texts.append(spoken.join(_open(spoken.pieces(part, pick))))
        return ("" if self.to_code in UNSPACED else " ").join(texts)


def _slots(spoken: Language, pieces: list[Piece], code: str, n: int) -> set[str]:
    """The slots whose pieces are all within the first `n` units, and "all" when every piece is."""
    read = 0
    for k in range(1, len(pieces) + 1):
        # Joined again, because a later piece may change an earlier one (elision, contraction).
        if len(units(spoken.join(pieces[:k]), code)) > n:
            break
        read = k
    unread = {p.slot for p in pieces[read:]}
    if not unread:
        return {"all", *(p.slot for p in pieces)} - {"mark"}
    return {p.slot for p in pieces[:read]} - unread - {"mark"}


def translate(
    meaning: Sentence | Sequence[Sentence], source: str, target: str, seed: int, most: int = 64
) -> Translation:
    """Generate a sentence or a story with its translation.

    Parameters
    ----------
    meaning : Sentence or sequence of Sentence
    source, target : str
        Language codes (``meaning.CODES``, or ``"xx"``, the control language).
    seed : int
        Decides every free choice of both sides.
    most : int
        Most accepted paraphrases per sentence.

    Returns
    -------
    Translation
    """
    meanings = (meaning,) if isinstance(meaning, Sentence) else tuple(meaning)
    return Translation(meanings, source, target, seed, most)
