"""Library errors reach the user as one line."""

from __future__ import annotations

import pytest

from specviz.errors import one_line


def test_many_lines_are_one_cut_between_words():
    assert one_line(ValueError("a  b\n c")) == "a b c"
    cut = one_line(OSError("word " * 100), 30)
    assert cut == "word word word word word …" and len(cut) <= 30


@pytest.mark.parametrize("error", [KeyError(), ValueError(" \n")])
def test_an_error_without_a_word_is_told_by_its_kind(error):
    assert one_line(error) == type(error).__name__
