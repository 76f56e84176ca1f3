"""A datastore finds the n-grams of its text, as plain loops would, and explains what is wrong with a file."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import TableModel, llama

from specviz import cli
from specviz.errors import ParameterError
from specviz.methods import datastore
from specviz.methods.datastore import Datastore, suffix_array
from specviz.methods.prefix_tree import END

V = 4
TEXT = st.lists(st.integers(0, V - 1), min_size=1, max_size=50)


class Letters(TableModel):
    """A table model that encodes letters."""

    def encode(self, prompt, *, raw=False):
        assert raw
        return [ord(c) - 97 for c in prompt.strip()]


MODEL = Letters(vocabulary=26, name="letters")


@settings(max_examples=200, deadline=None)
@given(tokens=TEXT)
def test_the_suffixes_are_in_order(tokens):
    assert suffix_array(np.array(tokens)).tolist() == sorted(range(len(tokens)), key=lambda i: tokens[i:])


def test_long_repetitions_are_ordered_as_far_as_anybody_looks():
    tokens = np.tile([0, 1], 300)
    order = suffix_array(tokens).tolist()
    assert sorted(order) == list(range(600))
    heads = [tokens[i : i + datastore.SORTED].tolist() for i in order]
    assert heads == sorted(heads)


@settings(max_examples=200, deadline=None)
@given(tokens=TEXT, text=TEXT, longest=st.integers(1, 6), depth=st.integers(1, 4), most=st.integers(1, 8))
def test_continuations_are_the_most_frequent(tokens, text, longest, depth, most):
    found = Datastore(tokens).continuations(np.array(text), longest, depth, most)
    ends, length = [], 0
    for n in range(1, min(longest, len(text)) + 1):
        here = [i for i in range(n, len(tokens) + 1) if tokens[i - n : i] == text[-n:]]
        ends, length = (here, n) if here else (ends, length)
    behind = [tuple(tokens[i : i + depth]) for i in ends]
    count = Counter(rest[:level] for rest in behind for level in range(1, len(rest) + 1))
    nodes = {tuple(row[:i]) for row in found.tolist() for i in range(1, depth + 1) if END not in row[:i]}
    assert len(nodes) == min(most, len(count))
    assert sorted((count[node] for node in nodes), reverse=True) == sorted(count.values())[::-1][: len(nodes)]
    heads = [count[tuple(t for t in row if t != END)] for row in found.tolist()]
    assert heads == sorted(heads, reverse=True)


def test_of_very_many_places_some_are_looked_at():
    tokens = np.tile([0, 1, 0, 2, 0, 1], 1000)
    found = Datastore(tokens).continuations(np.array([0]), 1, 1, 9)
    assert found.tolist() == [[1], [2]]


class TestFile:
    def test_built_from_a_text_saved_and_loaded(self, tmp_path):
        text = tmp_path / "a.txt"
        text.write_text("abcabd\n", encoding="utf-8-sig")
        store = Datastore.open(text, MODEL)
        assert store.tokens.tolist() == [0, 1, 2, 0, 1, 3]
        path = store.save(tmp_path / "a.datastore", MODEL)
        assert sorted(p.name for p in tmp_path.iterdir()) == ["a.datastore", "a.txt"]
        again = Datastore.open(path, MODEL)
        assert again.tokens.tolist() == store.tokens.tolist()
        assert again.suffixes.tolist() == store.suffixes.tolist()

    def test_line_ends_of_windows_are_plain_ones(self, tmp_path):
        text, texts = tmp_path / "a.txt", []
        text.write_bytes(b"ab\r\ncd\n")
        Datastore.build(text, SimpleNamespace(encode=lambda text, raw: texts.append(text) or [0]))
        assert texts == ["ab\ncd\n"]

    def test_a_wrong_text(self, tmp_path):
        text = tmp_path / "a.txt"
        with pytest.raises(ParameterError, match="no such file"):
            Datastore.open(text, MODEL)
        with pytest.raises(ParameterError, match="no such file"):
            Datastore.build(text, MODEL)
        text.write_text(" \n", encoding="utf8")
        with pytest.raises(ParameterError, match="is empty"):
            Datastore.open(text, MODEL)
        text.write_bytes(b"caf\xe9")
        with pytest.raises(ParameterError, match="not UTF-8 text"):
            Datastore.open(text, MODEL)
        text.write_text("abc", encoding="utf8")
        with pytest.raises(ParameterError, match="has no tokenizer"):
            Datastore.build(text, llama())
        with pytest.raises(ParameterError, match="is empty"):
            Datastore([])

    def test_a_wrong_file(self, tmp_path):
        path = Datastore([0, 1, 2, 0, 1, 3] * 20).save(tmp_path / "x", MODEL)
        with pytest.raises(ParameterError, match="another vocabulary than table's"):
            Datastore.load(path, TableModel(vocabulary=25))
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ParameterError, match="cannot be read"):
            Datastore.open(path, MODEL)
        for end in (b"\x7f" * 8, bytes(8)):  # an invalid position, a duplicate position
            path.write_bytes(whole[:-488] + end + whole[-480:])  # the tokens come last
            with pytest.raises(ParameterError, match="damaged"):
                Datastore.load(path, MODEL)
        path.write_text("abc", encoding="utf8")
        with pytest.raises(ParameterError, match=r"cannot be read \(truncated, or another kind of file\)"):
            Datastore.load(path, MODEL)

    def test_another_files_arrays_are_no_datastore(self, tmp_path):
        from specviz.methods.files import write

        path = write(tmp_path / "x", {"tokens": np.zeros(3, np.int32)}, {"specviz": "memory"})
        with pytest.raises(ParameterError, match="not a specviz datastore"):
            Datastore.load(path, MODEL)


def test_the_command(tmp_path, capsys):
    text, out = tmp_path / "a.txt", tmp_path / "a.datastore"
    text.write_text("The cook visited the doctor. " * 9, encoding="utf8")
    assert cli.run(["datastore", str(text), "--out", str(out)]) == 0
    assert "tokens of town" in capsys.readouterr().out
    assert cli.run(["datastore", str(text), "--out", str(out)]) == 2
    assert "exists" in capsys.readouterr().err
    arguments = ["generate", "spectra", "--prompt", "The", "-n", "8", "--set", f"datastore={out}"]
    assert cli.run(arguments) == 0
    capsys.readouterr()
    assert cli.run([*arguments[:-1], f"datastore={tmp_path / 'none'}"]) == 2
    assert "there is no such file; build one with specviz datastore" in capsys.readouterr().err
