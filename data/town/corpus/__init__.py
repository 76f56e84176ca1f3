"""Texts in seven languages, generated from meanings: seeded, streaming, right by construction."""

from __future__ import annotations

import importlib
from typing import cast

from specviz.errors import SpecvizError
from town.corpus.meaning import CODES, Language


def language(code: str) -> Language:
    """The realiser of a language: one of ``meaning.CODES``, or ``"xx"``, the control language."""
    if code not in (*CODES, "xx"):
        raise SpecvizError(f"unknown language {code!r}: choose one of {', '.join((*CODES, 'xx'))}")
    return cast(Language, importlib.import_module(f"town.corpus.{'control' if code == 'xx' else code}"))
