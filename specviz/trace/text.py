"""Turns token ids into text."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping

from specviz.trace.reading import StoredRun


def whole_characters(pieces: Iterable[tuple[int, bytes]]) -> list[tuple[str, list[int]]]:
    """Join tokens until their bytes are whole characters.

    Byte-level tokenizers split Chinese, Japanese and emoji between tokens, so a single piece is not text.

    Parameters
    ----------
    pieces : iterable of (token id, bytes)

    Returns
    -------
    list of (text, token ids)
        Texts in order. Bytes that are not UTF-8 become the replacement character.
    """
    result: list[tuple[str, list[int]]] = []
    decoder = codecs.getincrementaldecoder("utf8")("replace")
    text, ids = "", []
    for token, piece in pieces:
        text += decoder.decode(piece)
        ids.append(token)
        if not decoder.getstate()[0]:  # nothing left over: the characters are complete
            result.append((text, ids))
            text, ids = "", []
    if ids:
        result.append((text + decoder.decode(b"", True), ids))
    return result


def token_bytes(pieces: Mapping[int, bytes], tokens: Iterable[int]) -> list[tuple[int, bytes]]:
    """Each token with its bytes; a token without bytes is shown as its number."""
    return [(token, pieces[token] if token in pieces else f"<{token}>".encode()) for token in tokens]


def text_of(store: StoredRun, ids: list[int]) -> str:
    ends = set(store.run["eos"] or [])
    kept = token_bytes(store.pieces, (token for token in ids if token not in ends))
    return b"".join(piece for _, piece in kept).decode("utf8", "replace")


def begun_text(pieces: Mapping[int, bytes], ids: list[int]) -> str:
    """Text of tokens that others will follow; an incomplete last character is left out."""
    joined = b"".join(piece for _, piece in token_bytes(pieces, ids))
    return codecs.getincrementaldecoder("utf8")("replace").decode(joined)
