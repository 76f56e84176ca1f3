"""Prompt files: every format is read, and an unreadable line is named."""

from __future__ import annotations

import csv
import gzip
import json

import pytest

from specviz.errors import PromptError
from specviz.suites import pick, read, spread


def file(tmp_path, *lines, name="p.jsonl"):
    path = tmp_path / name
    path.write_bytes(b"\n".join(x if isinstance(x, bytes) else x.encode() for x in lines))
    return path


def test_plain_lines(tmp_path):
    path = file(tmp_path, "\ufeffone", "", "  zwei ", "三", name="p.txt")
    assert read(path) == [{"prompt": "one"}, {"prompt": "zwei"}, {"prompt": "三"}]


def test_json_lines(tmp_path):
    chat = [{"role": "user", "content": "hi"}]
    path = file(
        tmp_path,
        json.dumps({"prompt": "a", "id": 3, "kind": "qa", "language": "en", "reference": "b", "more": 1}),
        "",
        json.dumps({"turns": ["x", "y"], "prompt": "x", "references": ["z"]}),
        json.dumps({"messages": chat}),
    )
    assert read(path) == [
        {"prompt": "a", "id": 3, "kind": "qa", "language": "en", "reference": "b"},
        {"turns": ["x", "y"], "reference": ["z"]},
        {"prompt": chat},
    ]


def test_a_plain_line_may_begin_with_a_brace(tmp_path):
    lines = ("Hello", "{name} is here", "Bye")
    assert read(file(tmp_path, *lines, name="p.txt")) == [{"prompt": line} for line in lines]
    assert read(file(tmp_path, *lines, name="p")) == [{"prompt": line} for line in lines]
    lines = ("Say this:", GOOD)  # a question about JSON, or a broken file of it?
    assert read(file(tmp_path, *lines, name="p.txt")) == [{"prompt": line} for line in lines]
    with pytest.raises(PromptError, match=r"line 1: not a JSON .*line 2 is one.*\.txt file"):
        read(file(tmp_path, *lines, name="p"))
    assert read(file(tmp_path, GOOD, name="p.txt")) == [{"prompt": "a"}]
    with pytest.raises(PromptError, match=r"line 2: .*every line begins"):
        read(file(tmp_path, GOOD, '{"prompt": "b"', name="p.txt"))
    with pytest.raises(PromptError, match=r"line 1: .*plain lines go into a \.txt file"):
        read(file(tmp_path, "Hello", name="p.jsonl"))


def test_spec_bench_form(tmp_path):
    path = file(
        tmp_path,
        json.dumps({"question_id": 81, "category": "writing", "turns": ["a", "b"]}),
        json.dumps({"question_id": 321, "category": "qa", "turns": ["a"], "reference": ["b"]}),
        json.dumps({"question_id": 401, "category": "rag", "turns": ["a"], "reference": [["b", "c"]]}),
        json.dumps({"question_id": 82, "category": "math", "turns": ["a", "b"], "reference": ["c", ""]}),
        json.dumps({"question_id": 83, "category": "math", "turns": ["a", "b"], "reference": []}),
        json.dumps({"question_id": 84, "category": "math", "kind": "arithmetic", "turns": ["a"]}),
    )
    assert read(path) == [
        {"turns": ["a", "b"], "id": 81, "kind": "conversation"},
        {"turns": ["a"], "id": 321, "kind": "qa", "reference": ["b"]},
        {"turns": ["a"], "id": 401, "kind": "rag", "reference": ["b", "c"]},
        {"turns": ["a", "b"], "id": 82, "kind": "conversation"},
        {"turns": ["a", "b"], "id": 83, "kind": "conversation"},
        {"turns": ["a"], "id": 84, "kind": "arithmetic"},
    ]


def test_a_category_of_another_file_is_the_kind_as_it_is(tmp_path):
    path = file(
        tmp_path,
        json.dumps({"prompt": "a", "category": "math"}),
        json.dumps({"turns": ["a", "b"], "category": "coding", "reference": ["c", "d"]}),
        json.dumps({"prompt": "a", "category": "math", "kind": "arithmetic"}),
    )
    assert read(path) == [
        {"prompt": "a", "kind": "math"},
        {"turns": ["a", "b"], "kind": "coding", "reference": ["c", "d"]},
        {"prompt": "a", "kind": "arithmetic"},
    ]


GOOD = json.dumps({"prompt": "a"})


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("not json", "not a JSON object"),
        ('{"prompt": "b"', "not a JSON object"),
        ("[1]", "not a list"),
        ('{"prompt": ""}', "non-empty"),
        ('{"prompt": 3}', "prompt should be a string, not 3"),
        ('{"text": "b"}', "'text'"),
        ('{"turns": []}', "turns"),
        ('{"turns": ["a", " "]}', "turns"),
        ('{"turns": "ab"}', "turns"),
        ('{"messages": [{"role": "user"}]}', "messages"),
        (
            '{"prompt": "a", "reference": [["b"]]}',
            "reference should be a text or a list of texts, not [['b']]",
        ),
        ('{"prompt": "a", "id": [1]}', "id should be a string, not a list"),
        (r'{"prompt": "a \ud83d"}', "prompt holds half a character"),
        (r'{"prompt": "a", "language": "\ud83d"}', "language holds half a character"),
        ("[" * 100_000, "nested too deep"),
        (b'{"prompt": "\xff"}', "UTF-8"),
    ],
)
def test_the_bad_line_is_named(tmp_path, bad, says):
    with pytest.raises(PromptError, match="line 3") as caught:
        read(file(tmp_path, GOOD, "", bad, GOOD))
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_without_prompts(tmp_path):
    with pytest.raises(PromptError, match="no prompt"):
        read(file(tmp_path, "", "  "))
    with pytest.raises(PromptError, match="cannot read"):
        read(tmp_path)


def test_picking_is_even_over_kinds():
    entries = [{"prompt": str(i), "kind": "ab"[i >= 4]} for i in range(7)]
    assert [e["prompt"] for e in pick(entries, 2)] == ["0", "1", "4", "5"]
    assert [e["prompt"] for e in spread(entries, 5)] == ["0", "4", "1", "5", "2"]
    assert len(spread(entries, 99)) == 7


@pytest.mark.parametrize(
    ("ending", "mark"), [(".csv", ","), (".tsv", "\t"), (".csv.gz", ","), (".CSV.GZ", ",")]
)
def test_a_table_has_a_column_of_prompts(tmp_path, ending, mark):
    path = tmp_path / f"a{ending}"
    rows = [["id", "prompt", "kind"], ["0", '"Name one, two"', "qa"], ["1", '"Two\nlines"', ""]]
    content = "\ufeff" + "\n".join(mark.join(row) for row in rows) + "\n"
    write = gzip.open if ending.lower().endswith(".gz") else open
    with write(path, "wb") as file:
        file.write(content.encode("utf8"))
    assert read(path) == [
        {"prompt": "Name one, two", "id": "0", "kind": "qa"}, {"prompt": "Two\nlines", "id": "1"},
    ]  # fmt: skip


def test_a_field_of_a_table_may_be_as_long_as_a_file(tmp_path):
    limit = csv.field_size_limit()
    (prompt,) = read(file(tmp_path, "prompt", "a" * 200_000, name="p.csv"))
    assert len(prompt["prompt"]) == 200_000 and csv.field_size_limit() == limit


@pytest.mark.parametrize("row", ['"Hello" he said', '"unbalanced quote'])
@pytest.mark.parametrize(("ending", "mark"), [(".csv", ","), (".tsv", "\t")])
def test_a_quote_that_closes_no_field_swallows_no_rows(tmp_path, ending, mark, row):
    path = tmp_path / f"a{ending}"
    path.write_text(f"prompt{mark}language\n{row}{mark}de\nsecond{mark}fr\n", "utf8")
    with pytest.raises(
        PromptError, match=r"not a table .*: a field that begins with a quote needs"
    ) as caught:
        read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [("a,b\n1,2\n", "a column named prompt"), ("prompt,id\n", "no row"), ("prompt,id\n,3\n", "row 1")],
)
def test_a_table_without_prompts_is_one_line(tmp_path, content, says):
    path = tmp_path / "a.csv"
    path.write_text(content, "utf8")
    with pytest.raises(PromptError, match=says):
        read(path)


@pytest.mark.parametrize(("ending", "mark", "name"), [(".csv", ",", "commas"), (".tsv", "\t", "tabs")])
def test_a_row_with_more_fields_than_the_header_is_one_line(tmp_path, ending, mark, name):
    path = tmp_path / f"a{ending}"
    path.write_text(f"id{mark}prompt\n1{mark}First\n2{mark}Name one{mark} two\n", "utf8")
    with pytest.raises(PromptError, match=f"row 2 has more fields than the header: .* contains {name}"):
        read(path)
    path.write_text(f"prompt\nName one{mark} two\n", "utf8")
    with pytest.raises(PromptError, match="row 1 has more fields than the header"):
        read(path)


def test_a_number_that_python_refuses_is_named(tmp_path):
    path = file(tmp_path, '{"prompt": "a", "id": ' + "9" * 5000 + "}")
    with pytest.raises(PromptError, match=r"line 1: not a JSON object \(a number is too long\)"):
        read(path)
    path = file(tmp_path, '{"prompt": ' + "[" * 200_000)
    with pytest.raises(PromptError, match=r"line 1: not a JSON object \(it is nested too deep\)"):
        read(path)
