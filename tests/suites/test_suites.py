"""Suites: the bundled ones, their names, selecting prompts, and error messages."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest

import specviz as sv
from specviz import cli
from specviz.errors import ParameterError, PromptError
from specviz.loop.checks import check_prompts
from specviz.paths import folder
from specviz.suites import Suite
from town.corpus import tasks
from town.corpus.meaning import CODES
from town.suites import cell, lines

REAL = [p / "shared" / "real" / "spec-bench" / "question.jsonl" for p in Path(__file__).parents]
SPEC_BENCH = next((path for path in REAL if path.exists()), None)  # next to the checkout, if present


def write(path, *objects):
    path.write_text("".join(json.dumps(o) + "\n" for o in objects), encoding="utf8")
    return path


# ---------------------------------------------------------------- bundled


def test_the_small_suite():
    found = sv.suite("town")
    assert len(found) == 70 and len(found.kinds) == 7
    assert any(len(e["turns"]) == 2 for e in found)
    assert len({e["id"] for e in found}) == 70 and all(e["reference"] for e in found)


def test_the_prompts_of_the_demo():
    shown, practice = sv.suite("demo"), sv.suite("demo-calibration")
    assert len(shown) == 10 and len(shown.kinds) == 7
    documents = [text for e in shown for text in e["prompt"].split("\n\n") if len(text.split()) > 60]
    assert len(documents) == 3 and all(100 <= len(text.split()) <= 200 for text in documents)
    paragraphs = [{part for e in each for part in e["prompt"].split("\n\n")} for each in (shown, practice)]
    assert not paragraphs[0] & paragraphs[1]  # calibration and timing share no text


def test_the_suite_for_real_models():
    found = sv.suite("everyday")
    assert len(found) == 21 and found.kinds == sv.suite("town").kinds
    assert {len(found.select(kind)) for kind in found.kinds} == {3}
    assert len({e["turns"][0] for e in found}) == 21


def test_the_narrow_tasks_have_answers():
    found = sv.suite("narrow")
    assert (
        len(found) == 60
        and len(found.kinds) == 5
        and {len(found.select(kind)) for kind in found.kinds} == {12}
    )
    for entry in found.select("arithmetic"):  # the reference solves the sum
        text = entry["reference"]
        a, sign, b, result = re.match(r"(\d+) ([+-]) (\d+) = (\d+)", text).groups()
        assert int(a) + int(sign + b) == int(result)
    for entry in found.select("code"):
        compile(entry["reference"], "reference", "exec")


def test_the_large_suite_is_whole():
    found = sv.suite("multi-town")
    assert found.kinds == list(tasks.KINDS) and found.languages == list(CODES)
    assert (found.counts == 80).all(axis=None) and len(found) == 3920
    assert all(e["reference"] and all(e["reference"]) for e in found)
    assert len({(e["kind"], e["language"], *e["turns"]) for e in found}) == 3920
    assert {len(e["turns"]) for e in found.select("conversation")} == {2}
    translations = found.select("translation")
    assert {(e["from"], e["language"]) for e in translations} == {
        ("de", "en"), *(("en", code) for code in CODES if code != "en"),
    }  # fmt: skip


def test_the_large_suite_is_what_is_generated():
    content = (folder("suites") / "multi-town.jsonl.gz").read_bytes()
    assert len(content) < 500_000
    text = gzip.decompress(content)
    assert hashlib.sha256(text).hexdigest().startswith("6d2821f752a15230")
    known = [json.loads(line) for line in text.splitlines()]
    for kind, code in (("translation", "ja"), ("code", "vi"), ("conversation", "de")):
        made = lines(cell(kind, code, 5)).splitlines()
        kept = [e for e in known if (e["kind"], e["language"]) == (kind, code)][:5]
        assert [json.loads(line) for line in made] == kept


# ---------------------------------------------------------------- choosing


def test_choosing():
    found = sv.suite("multi-town", kind=("qa", "rag"), language="ja", each=3)
    assert [e["id"] for e in found] == [f"{k}-ja-0{i}" for k in ("qa", "rag") for i in range(3)]
    assert len(sv.suite("multi-town", limit=5)) == 5
    assert isinstance(found[1:3], Suite) and found[1:3][0] is not None and len(found[1:3]) == 2
    assert found[0]["id"] == "qa-ja-00" and found[-1]["id"] == "rag-ja-02"
    assert repr(found) == "<Suite multi-town: 6 prompts, 2 kinds, language ja; licence: Apache-2.0>"


def test_equal_suites_have_equal_digests():
    one = sv.suite("town", limit=3)
    assert one.digest == sv.suite("town")[:3].digest != sv.suite("town", limit=4).digest


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"kind": "summarisation"}, "did you mean summarization"),
        ({"language": "xx"}, "has no language 'xx'; there is en, de"),
        ({"limit": 0}, "limit must be a whole number"),
        ({"each": True}, "each must be a whole number"),
        ({"template": "Into German: {}"}, "a template must contain {source}"),
        ({"template": "Into German: {source}"}, "has no source text"),
    ],
)
def test_a_wrong_choice_is_said(wrong, says):
    with pytest.raises(ParameterError) as caught:
        sv.suite("town", **wrong)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_sources_become_streams(tmp_path):
    source = "one two three four"
    known = {"from": "en", "language": "de", "reference": ["eins zwei"]}
    path = write(tmp_path / "p.jsonl", {"prompt": f"Say: {source}", "source": source, **known})
    found = sv.suite(path)
    (stream,) = found.streams(3)
    assert [u.text.strip() for u in stream] == ["one two three", "one two three four"]
    assert (stream.id, stream.reference, stream.language) == ("1", "eins zwei", "en")
    (heard,) = found.partials(seed=1)
    assert list(heard)[-1].text == "one two three four"
    assert found.worded("de: {source}")[0]["prompt"] == "de: one two three four"


# ---------------------------------------------------------------- names and files


def test_a_file_is_a_suite(tmp_path):
    path = write(tmp_path / "mine.jsonl", {"prompt": "a"}, {"prompt": "b", "id": "x"})
    found = sv.suite(path)
    assert [e["id"] for e in found] == ["1", "x"] and found.licence == ""
    assert "2 prompts; licence: not stated" in repr(found)
    packed = tmp_path / "mine.jsonl.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert sv.suite(packed).digest == found.digest
    packed.write_bytes(gzip.compress(path.read_bytes())[:-9])
    with pytest.raises(PromptError, match="not a complete gzip file"):
        sv.suite(packed)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("towns", "did you mean town"),
        ("spec-bnch", "did you mean spec-bench"),
        ("zzz", "neither a suite nor a file; there is town, multi-town"),
        ("town:de", "town has no parts"),
        ("town=x.jsonl", "comes with the package"),
        ("spec-bench=none.jsonl", "there is no none.jsonl"),
    ],
)
def test_an_unknown_name_is_said(name, says):
    with pytest.raises((ParameterError, PromptError)) as caught:
        sv.suite(name)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_path_of_no_suite(tmp_path):
    path = write(tmp_path / "p.jsonl", {"prompt": "a"})
    with pytest.raises(PromptError, match="this is not a suite; did you mean gsm8k"):
        sv.suite("gsm8", path)


def test_two_prompts_of_one_id(tmp_path):
    with pytest.raises(PromptError, match="two prompts have the id '1'"):
        sv.suite(write(tmp_path / "p.jsonl", {"prompt": "a", "id": "1"}, {"prompt": "b", "id": 1}))
    mixed = sv.suite(write(tmp_path / "q.jsonl", {"prompt": "a"}, {"prompt": "b", "id": 1}, {"prompt": "c"}))
    assert [prompt["id"] for prompt in mixed] == ["#1", "1", "3"]
    blank = Suite([{"prompt": "a", "id": None}, {"prompt": "b", "id": None}], "s")
    assert [prompt["id"] for prompt in blank] == ["1", "2"]


def test_a_broken_line_is_named(tmp_path):
    path = write(tmp_path / "question.jsonl", {"question_id": 1, "category": "qa", "turns": ["a"]})
    path.write_text(path.read_text() + '{"question_id": 2, "category"\n')
    with pytest.raises(PromptError, match="line 2: not a JSON object"):
        sv.suite("spec-bench", path)
    assert path.exists()  # a given file is never deleted
    with pytest.raises(PromptError, match="holds no prompt"):
        sv.suite("spec-bench", write(tmp_path / "empty.jsonl"))


# ---------------------------------------------------------------- the command line


def test_the_command_lists_and_shows(tmp_path, capsys):
    assert cli.run(["suites"]) == 0
    out, _ = capsys.readouterr()
    assert all(f"\n{name} " in out for name in ("town", "spec-bench", "flores", "xsum"))
    origins = {line.split()[0]: "bundled" in line for line in out.splitlines() if line[:1].strip()}
    assert origins["town"] and not origins["xsum"] and "fetched" in out
    hostile = {"question_id": 1, "category": "qa", "turns": ["\x1b[2JWho?" + " very" * 99]}
    path = write(tmp_path / "question.jsonl", hostile)
    assert cli.run(["suites", "spec-bench", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "spec-bench: 1 prompt, licence: Apache-2.0" in out and "\x1b" not in out
    assert out.rstrip().endswith("…")
    assert cli.run(["suites", "spec-bnch"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "did you mean spec-bench" in err


def test_prompts_are_a_suite_everywhere(tmp_path, capsys):
    path = write(tmp_path / "question.jsonl", {"question_id": 9, "category": "math", "turns": ["Hi", "You?"]})
    out = tmp_path / "o"
    asked = ["generate", "autoregressive", "--prompts", f"spec-bench={path}", "-n", "2", "-o", str(out)]
    assert cli.run(asked) == 0, capsys.readouterr()
    said = [(p["id"], p["kind"], p["turn"]) for p in sv.open(out / "autoregressive.parquet").run["prompts"]]
    assert said == [("9", "conversation", 0), ("9", "conversation", 1)]


# ---------------------------------------------------------------- the real Spec-Bench


@pytest.mark.skipif(SPEC_BENCH is None, reason="Spec-Bench's question.jsonl is not beside this checkout")
def test_the_real_spec_bench():
    found = sv.suite(f"spec-bench={SPEC_BENCH}")
    assert len(found) == 480 and found.languages == ["en"]
    kinds = ["conversation", "translation", "summarization", "qa", "arithmetic", "rag"]
    assert found.kinds == kinds and (found.counts == 80).all(axis=None)
    assert {len(e["turns"]) for e in found.select("conversation")} == {2}
    assert {len(e["turns"]) for e in found.select(kinds[1:])} == {1}
    assert sum("reference" in e for e in found) == 352
    assert all(len(e["reference"]) == 1 for e in found if "reference" in e and e["kind"] != "rag")
    assert max(len(e["reference"]) for e in found.select("rag")) > 1, "all answers that count as right"
    assert len(check_prompts(list(found))) == 480, "a run takes each of them"
