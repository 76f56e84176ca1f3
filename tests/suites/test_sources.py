"""Every benchmark in its published format: files written here, given by path or fetched from a fake hub."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import re
import sys
import tarfile
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import snapshot_download

import specviz as sv
from specviz.errors import ParameterError, PromptError
from specviz.loop.checks import check_prompts
from specviz.suites import catalogue, fetching, rows, tasks

SNAPSHOT = snapshot_download


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Give each test its own cache; reaching the hub or the web fails as if there were no network."""
    import huggingface_hub

    def nothing(*args, **kwargs):
        raise OSError("no network here")

    monkeypatch.setenv(fetching.FOLDER, str(tmp_path / "cache"))
    for name in ("dataset_info", "hf_hub_download", "snapshot_download"):
        monkeypatch.setattr(huggingface_hub, name, nothing)
    monkeypatch.setattr(fetching.urllib.request, "urlopen", nothing)
    return tmp_path / "cache"


def parquet(path: Path, *rows: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def lines(path: Path, *rows: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf8")
    return path


def text(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf8")
    return path


PROGRAM = {"task_id": "HumanEval/0", "prompt": "def f(x):\n    ''' Doubles. '''\n", "entry_point": "f",
           "canonical_solution": "    return 2 * x\n", "test": "def check(f): pass"}  # fmt: skip
BOTH = {"translation": {"de": "Guten Tag.", "en": "Good day."}}
SQUAD = {"version": "1.1", "data": [{"title": "T", "paragraphs": [{"context": "T [SEP] Bo lives here.", "qas": [
    {"id": "q1", "question": "Who?", "answers": [{"text": "Bo", "answer_start": 9}], "is_impossible": False},
]}]}]}  # fmt: skip
SGM = '<srcset setid="t" srclang="any"><doc docid="1"><p>\n<seg id="1">{}</seg>\n</p></doc></srcset>'


def human_eval(folder):
    path = folder / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(PROGRAM).encode() + b"\n"))
    return path


def flores_tar(folder):
    path = folder / "flores200_dataset.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for code, line in (("eng_Latn", "One.\n"), ("deu_Latn", "Eins.\n")):
            info = tarfile.TarInfo(f"./flores200_dataset/devtest/{code}.devtest")
            info.size = len(line)
            archive.addfile(info, io.BytesIO(line.encode()))
    return path


def flores_folder(folder):
    text(folder / "flores101_dataset" / "devtest" / "eng.devtest", "One.\n")
    text(folder / "flores101_dataset" / "devtest" / "deu.devtest", "Eins.\n")
    return folder


def acl_zip(folder):
    path = folder / "2023.iwslt-1.2.dataset.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for code, line in (("en", "One.\n"), ("de", "Eins.\n")):
            archive.writestr(f"2/acl_6060/eval/text/txt/ACL.6060.eval.en-xx.{code}.txt", line)
            archive.writestr(f"2/acl_6060/dev/text/txt/ACL.6060.dev.en-xx.{code}.txt", "dev\n")
    return path


def acl_folder(folder):
    for code, line in (("en", "V&amp;L"), ("de", "V&amp;S")):
        text(
            folder / f"ACL.6060.eval.en-xx.{code}.xml",
            f'<mteval><doc><seg id="1">{line}</seg></doc></mteval>',
        )
    return folder


def french_zip(folder):
    path = folder / "dummy_data.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("dummy_data/train-v1.1.json", "{}")
        archive.writestr("dummy_data/dev-v1.1.json", json.dumps(SQUAD))
    return path


def wmt_sgm(folder):
    text(folder / "newstest2014-deen-src.de.sgm", SGM.format("Guten Tag."))
    text(folder / "newstest2014-deen-ref.en.sgm", SGM.format("Good day."))
    return folder


def ted_xml(folder):
    text(folder / "IWSLT17.TED.tst2015.de-en.de.xml", SGM.format(" Guten Tag. "))
    text(folder / "IWSLT17.TED.tst2015.de-en.en.xml", SGM.format(" Good day. "))
    return folder


def math_folder(folder):
    for number in (2, 10):
        text(folder / "MATH" / "test" / "algebra" / f"{number}.json",
             json.dumps({"problem": f"{number}?", "level": "Level 5", "type": "Algebra", "solution": "$1$"}))  # fmt: skip
    lines(folder / "MATH" / "train" / "algebra" / "1.json", {"problem": "no", "solution": "no"})
    return folder


ARTICLE = "Long ago. " * 50
# Name: writer of a file in the published format, and the expected first prompt.
GIVEN = {
    "spec-bench": (
        lambda f: lines(f / "question.jsonl", {"question_id": 7, "category": "math", "turns": ["a", "b"], "reference": ["1", "2"]}),
        {"id": "7", "kind": "conversation", "language": "en", "turns": ["a", "b"], "reference": ["2"]},
    ),
    "multi-specbench:de": (
        lambda f: lines(f / "de.jsonl", {"question_id": 7, "category": "code_generation", "turns": ["a"]}),
        {"id": "7", "kind": "code", "language": "de", "turns": ["a"]},
    ),
    "mt-bench:de": (
        lambda f: lines(f / "question.jsonl", {"question_id": 7, "category": "coding", "turns": ["a", "b"]}),
        {"id": "7", "kind": "conversation", "language": "de", "turns": ["a", "b"]},
    ),
    "humaneval": (human_eval, {"id": "HumanEval/0", "kind": "code", "language": "en",
                               "prompt": PROGRAM["prompt"], "reference": ["    return 2 * x\n"]}),
    "humaneval-xl:de": (
        lambda f: lines(f / "German.jsonl", PROGRAM | {"task_id": "python/0", "language": "python", "natural_language": "German"}),
        {"id": "python/0", "kind": "code", "language": "de", "prompt": PROGRAM["prompt"]},
    ),
    "humaneval-xl:ja": (
        lambda f: parquet(f / "test-00000-of-00001.parquet", PROGRAM | {"prompt_en": "en", "prompt": "ja"}),
        {"language": "ja", "prompt": "ja"},
    ),
    "mbpp": (
        lambda f: lines(f / "mbpp.jsonl",
                        {"text": "No.", "code": "x", "task_id": 10, "test_list": []},
                        {"text": "Add.", "code": "def add(): ...", "task_id": 11, "test_setup_code": "",
                         "test_list": ["assert add(1, 2) == 3"], "challenge_test_list": []},
                        {"text": "No.", "code": "x", "task_id": 511, "test_list": []}),
        {"id": "mbpp/11", "kind": "code", "reference": ["def add(): ..."],
         "prompt": "Add.\nThe code must pass these tests:\nassert add(1, 2) == 3"},
    ),
    "gsm8k": (
        lambda f: lines(f / "test.jsonl", {"question": "1 + 1?", "answer": "2\n#### 2"}),
        {"id": "1", "kind": "arithmetic", "language": "en", "prompt": "1 + 1?", "reference": ["2\n#### 2"]},
    ),
    "math": (math_folder, {"id": "math/1", "kind": "arithmetic", "prompt": "2?", "reference": ["$1$"]}),
    "math:tenth": (math_folder, {"id": "math/1", "kind": "arithmetic", "prompt": "2?", "reference": ["$1$"]}),
    "math:500": (
        lambda f: lines(f / "test.jsonl", {"problem": "p", "solution": "s", "answer": "1", "subject": "Algebra",
                                           "level": 2, "unique_id": "test/algebra/1.json"}),
        {"id": "test/algebra/1.json", "prompt": "p", "reference": ["s"]},
    ),
    "mgsm:de": (
        lambda f: text(f / "mgsm_de.tsv", '"Eins" sagt er.\t18\n'),
        {"id": "1", "kind": "arithmetic", "language": "de", "prompt": '"Eins" sagt er.', "reference": ["18"]},
    ),
    "mgsm:vi": (
        lambda f: parquet(f / "train-00000-of-00001.parquet", {"index": 0, "question": "Q", "answer": "A"}),
        {"language": "vi", "prompt": "Q", "reference": ["A"]},
    ),
    "webfaq:fr": (
        lambda f: lines(f / "fra.jsonl", {"url": "u", "question": "Q ?", "answer": "R"}, {"question": "Q ?", "answer": "S"}),
        {"id": "1", "kind": "qa", "language": "fr", "prompt": "Q ?", "reference": ["R"]},
    ),
    "xquad:de": (
        lambda f: parquet(f / "validation-00000-of-00001.parquet",
                          {"id": "q1", "context": "C {question}", "question": "Q?",
                           "answers": {"answer_start": [0, 0], "text": ["A", "A"]}}),
        {"id": "q1", "kind": "rag", "language": "de", "reference": ["A"],
         "prompt": "Beantworte die Frage mit Hilfe des Abschnitts.\n\nAbschnitt: C {question}\n\nFrage: Q?"},
    ),
    "xquad:fr": (french_zip, {"id": "q1", "kind": "rag", "language": "fr", "reference": ["Bo"]}),
    "xquad:ja": (
        lambda f: text(f / "valid-v1.1.json", json.dumps(SQUAD)),
        {"id": "q1", "language": "ja", "prompt": "次の文章をもとに質問に答えてください。\n\n文章：T\nBo lives here.\n\n質問：Who?"},
    ),
    "flores:en-de": (
        flores_tar,
        {"id": "flores/1", "kind": "translation", "language": "de", "from": "en", "source": "One.",
         "prompt": "Translate English into German: One.", "reference": ["Eins."]},
    ),
    "flores:de-en": (flores_folder, {"language": "en", "from": "de", "source": "Eins.", "reference": ["One."]}),
    "acl6060": (acl_zip, {"language": "de", "from": "en", "source": "One.", "reference": ["Eins."]}),
    "acl6060:en-de": (acl_folder, {"source": "V&L", "reference": ["V&S"]}),
    "wmt14": (lambda f: parquet(f / "de-en" / "test-00000-of-00001.parquet", BOTH),
              {"language": "en", "from": "de", "source": "Guten Tag.", "reference": ["Good day."]}),
    "wmt14:de-en": (wmt_sgm, {"source": "Guten Tag.", "reference": ["Good day."]}),
    "wmt16:en-de": (lambda f: lines(f / "test.jsonl", BOTH), {"source": "Good day.", "reference": ["Guten Tag."]}),
    "iwslt17": (ted_xml, {"language": "en", "source": "Guten Tag.", "reference": ["Good day."]}),
    "wikitext:fr": (
        lambda f: parquet(f / "test-00000-of-00001.parquet", {"text": f" = {ARTICLE} = \n"}, {"text": ""}, {"text": f" {ARTICLE}\n"}),
        {"kind": "translation", "language": "fr", "from": "en", "source": ARTICLE.strip()},
    ),
    "cnn-dailymail": (
        lambda f: parquet(f / "test-00000-of-00001.parquet", {"article": "A.", "highlights": "H.", "id": "92c5"}),
        {"id": "92c5", "kind": "summarization", "language": "en", "source": "A.", "reference": ["H."],
         "prompt": "Summarize this text in a few sentences.\n\nA."},
    ),
    "xsum": (
        lambda f: parquet(f / "0000.parquet", {"document": "D.", "summary": "S.", "id": "386"}),
        {"id": "386", "kind": "summarization", "source": "D.", "reference": ["S."]},
    ),
    "wikipedia:vi": (
        lambda f: parquet(f / "0000.parquet",
                          *({"_id": f"{i}", "title": t, "text": x, "emb": [0.5]}
                            for i, (t, x) in enumerate([("A", "short"), ("A", ARTICLE), ("A", ARTICLE)]))),
        {"id": "1", "kind": "summarization", "language": "vi", "source": ARTICLE.strip()},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GIVEN)
def test_a_local_file_is_read(name, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(catalogue, "_announced", set())
    write, wanted = GIVEN[name]
    found = sv.suite(name, write(tmp_path))
    assert {key: found[0][key] for key in wanted} == wanted
    assert ("prompt" in found[0]) != ("turns" in found[0])
    assert len(check_prompts(list(found))) == len(found), "a run takes each of them"
    told = capsys.readouterr().err
    assert found.licence in told and told.count("\n") == 1 and found.licence
    sv.suite(name, write(tmp_path))
    assert capsys.readouterr().err == ""  # printed on first use only


def test_every_suite_has_its_test():
    tested = {name.partition(":")[0] for name in GIVEN}
    own = {"town", "multi-town", "demo", "demo-calibration", "everyday", "narrow", "passages", "sums",
           "walkthroughs"}  # fmt: skip
    assert set(catalogue.CATALOGUE) == tested | own | {"multi-sources"}
    table = sv.list_suites()
    assert list(table["name"]) == list(catalogue.CATALOGUE) and (table["licence"] != "").all()
    assert set(table["name"][table["bundled"]]) == own


def test_order_and_number(tmp_path):
    math = sv.suite("math", math_folder(tmp_path / "m"))
    assert [p["prompt"] for p in math] == ["2?", "10?"]  # by number, not by name
    rows = [PROGRAM | {"task_id": f"HumanEval/{i}"} for i in range(164)]
    path = lines(tmp_path / "HumanEval.jsonl", *rows)
    assert len(sv.suite("humaneval", path)) == 164
    assert [p["id"] for p in sv.suite("humaneval:80", path)] == [f"HumanEval/{i}" for i in range(80)]
    assert [p["id"] for p in sv.suite("mbpp", GIVEN["mbpp"][0](tmp_path))] == ["mbpp/11"]  # to mbpp/510
    assert len(sv.suite("webfaq:fr", GIVEN["webfaq:fr"][0](tmp_path))) == 1  # no duplicate questions


def test_a_part_of_a_data_set_in_the_hubs_cache_is_not_the_whole(tmp_path, monkeypatch):
    """The cache holds only one subject of MATH, as another program loaded it."""
    for subject in tasks.SUBJECTS:
        place = tmp_path / "main" / subject / "test-00000-of-00001.parquet"
        place.parent.mkdir(parents=True)
        parquet(place, {"problem": subject, "solution": "1"})
    hub = Hub(monkeypatch, tmp_path / "hub", {"main": tmp_path / "main"})
    kept = tmp_path / "hub" / "EleutherAI/hendrycks_math" / "main" / "algebra" / "test-00000-of-00001.parquet"
    kept.parent.mkdir(parents=True)
    kept.write_bytes((tmp_path / "main" / "algebra" / kept.name).read_bytes())
    assert [entry["prompt"] for entry in sv.suite("math")] == list(tasks.SUBJECTS) and hub.asked
    hub.asked.clear()
    assert len(sv.suite("math")) == len(tasks.SUBJECTS) and not hub.asked


def test_what_a_given_path_holds_is_checked(tmp_path):
    for name in ("mt_bench", "vicuna_bench"):
        text(tmp_path / "data" / name / "question.jsonl", '{"question_id": 1, "turns": ["a"]}\n')
    with pytest.raises(PromptError, match=r"2 files match, such as .* name one of them"):
        sv.suite("mt-bench", tmp_path)
    text(tmp_path / "my.jsonl", '{"prompt": "a"}\n')
    with pytest.raises(PromptError, match="is not Spec-Bench's: every line needs question_id and turns"):
        sv.suite("spec-bench", tmp_path / "my.jsonl")
    text(tmp_path / "PROMPTS.CSV", "prompt,kind\nWho?,3\n")
    own = sv.suite(tmp_path / "PROMPTS.CSV")
    assert [entry["prompt"] for entry in own] == ["Who?"]
    broken = bytearray(gzip.compress(bytes(range(256)) * 400))
    broken[40] ^= 255
    (tmp_path / "flores.tar.gz").write_bytes(broken)
    with pytest.raises(PromptError, match="flores"):
        sv.suite("flores:en-de", tmp_path / "flores.tar.gz")


def test_a_tenth_of_each_subject_of_math(tmp_path):
    for subject, exercises in (("algebra", 20), ("geometry", 11), ("precalculus", 1)):
        for number in range(exercises):
            text(tmp_path / "test" / subject / f"{number}.json",
                 json.dumps({"problem": f"{subject} {number}", "solution": "1"}))  # fmt: skip
    prompts = [entry["prompt"] for entry in sv.suite("math:tenth", tmp_path)]
    assert prompts == ["algebra 0", "algebra 1", "geometry 0", "geometry 1", "precalculus 0"]


def test_talks_become_simulated_partials(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(catalogue, "_announced", set())
    (stream,) = sv.suite("acl6060", acl_zip(tmp_path)).partials()
    assert stream.reference == "Eins." and stream.language == "en"
    assert "simulates" in capsys.readouterr().err


# ---------------------------------------------------------------- faulty files

WRONG = {
    "a broken line": ("gsm8k", lambda f: text(f / "t.jsonl", '{"question": "a", "answer": "b"}\n{"question": "c"'),
                      "t.jsonl, line 2 is not JSON"),
    "a missing field": ("gsm8k", lambda f: lines(f / "t.jsonl", {"question": "a", "answer": "b"}, {"question": "c", "Answer": "d"}),
                        "t.jsonl, line 2: 'answer' is missing; it has 'question', 'Answer'"),
    "an empty field": ("gsm8k", lambda f: lines(f / "t.jsonl", {"question": " ", "answer": "b"}),
                       "line 1, 'question' must be a non-empty string"),
    "no object": ("gsm8k", lambda f: text(f / "t.jsonl", "[1]\n"), "line 1: needs an object with named fields, not a list"),
    "an empty file": ("gsm8k", lambda f: text(f / "t.jsonl", ""), "gsm8k holds no prompt"),
    "not UTF-8": ("gsm8k", lambda f: (f / "t.jsonl").write_bytes(b'{"question": "a",\n"\xff"}') and f / "t.jsonl", "line 2: not UTF-8"),
    "no Parquet": ("xsum", lambda f: text(f / "t.parquet", "PAR1 and no more"), "not a complete Parquet file"),
    "another's Parquet": ("xsum", lambda f: parquet(f / "t.parquet", {"article": "a"}), "row 1: 'document' is missing; it has 'article'"),
    "a short line": ("mgsm:de", lambda f: text(f / "mgsm_de.tsv", "a\t1\nb\n"), "line 2: 2 fields are needed (question, answer), not 1"),
    "a long line": ("mgsm:de", lambda f: text(f / "mgsm_de.tsv", "a\t1\nb\t2\t3\n"), "line 2: 2 fields are needed (question, answer), not 3"),
    "another language": ("wmt14:fr-en", lambda f: lines(f / "t.jsonl", BOTH), "'translation': 'fr' is missing; it has 'de', 'en'"),
    "not parallel": ("flores:en-de", lambda f: text(flores_folder(f) / "flores101_dataset/devtest/deu.devtest", "a\nb\n") and f,
                     "has 1 sentences and"),
    "an empty sentence": ("flores:en-de", lambda f: text(flores_folder(f) / "flores101_dataset/devtest/deu.devtest", "\n") and f,
                          "sentence 1 is empty"),
    "no such language there": ("flores:en-fr", flores_folder, "has no file like"),
    "no archive": ("acl6060", lambda f: text(f / "x.zip", "no"), "has no file like"),
    "a cut archive": ("flores:en-de", lambda f: (f / "c.tar.gz").write_bytes(flores_tar(f).read_bytes()[:80]) and f / "c.tar.gz", "c.tar.gz"),
    "an empty folder": ("gsm8k", lambda f: f, "has no file of gsm8k"),
    "no turns": ("multi-specbench:de", lambda f: lines(f / "de.jsonl", {"turns": ["a"]}, {"turns": [1]}),
                 "de.jsonl, line 2, turns[0] should be a string, not 1"),
    "half a character": ("mbpp", lambda f: text(f / "t.jsonl", '{"task_id": 11, "text": "t", "code": "c", "test_list": ["\\ud800"]}'),
                         "line 1, 'test_list', [0] holds half a character"),
    "no tasks": ("mbpp", lambda f: lines(f / "t.jsonl", {"prompt": "a"}), "line 1: 'task_id and test_list' is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_in_one_line(case, tmp_path):
    name, write, says = WRONG[case]
    with pytest.raises(PromptError) as caught:
        sv.suite(name, write(tmp_path))
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_part_that_is_not_there():
    with pytest.raises(ParameterError, match="flores has no part 'en-deu'; did you mean en-de"):
        sv.suite("flores:en-deu")


# ---------------------------------------------------------------- fetching

URLS = {  # files on the web but not on the hub: how their addresses end
    "spec-bench": "hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl",
    "mt-bench:de": "multilingual-mt-bench/main/fastchat/llm_judge/data/de_mt_bench/question.jsonl",
    "humaneval-xl:de": "humaneval-xl/main/data/python/German.jsonl",
    "xquad:ja": "jsquad-v1.1/valid-v1.1.json",
    "flores:en-de": "nllb/flores200_dataset.tar.gz",
}
HUB = {  # repository and path of a data set's file
    "multi-specbench:de": ("nguyenlab/Multi-SpecBench", "data/de.jsonl"),
    "humaneval": ("openai/openai_humaneval", "openai_humaneval/test-00000-of-00001.parquet"),
    "humaneval-xl:ja": ("kogi-jwu/jhumaneval", "jhumaneval/test-00000-of-00001.parquet"),
    "mbpp": ("google-research-datasets/mbpp", "full/test-00000-of-00001.parquet"),
    "gsm8k": ("openai/gsm8k", "main/test-00000-of-00001.parquet"),
    "math:500": ("HuggingFaceH4/MATH-500", "test.jsonl"),
    "mgsm:de": ("juletxara/mgsm", "mgsm_de.tsv"),
    "mgsm:vi": ("longhoang06/Vi-GSM8K", "data/train-00000-of-00001.parquet"),
    "xquad:de": ("google/xquad", "xquad.de/validation-00000-of-00001.parquet"),
    "xquad:fr": ("qwant/squad_fr", "dummy/1.1.0/dummy_data.zip"),
    "wmt14": ("wmt/wmt14", "de-en/test-00000-of-00001.parquet"),
    "wikitext:fr": ("Salesforce/wikitext", "wikitext-103-raw-v1/test-00000-of-00001.parquet"),
    "cnn-dailymail": ("abisee/cnn_dailymail", "3.0.0/test-00000-of-00001.parquet"),
    "cnn-dailymail:validation": ("abisee/cnn_dailymail", "3.0.0/validation-00000-of-00001.parquet"),
    "xsum:validation": ("EdinburghNLP/xsum", "data/validation-00000-of-00001.parquet"),
    "wmt14:de-en:validation": ("wmt/wmt14", "de-en/validation-00000-of-00001.parquet"),
    "iwslt17:de-en:validation": ("IWSLT/iwslt2017", "iwslt2017-de-en/validation/0000.parquet"),
}

VALIDATION = {  # other splits with the same texts in these tests
    "cnn-dailymail:validation": "cnn-dailymail", "xsum:validation": "xsum",
    "wmt14:de-en:validation": "wmt14", "iwslt17:de-en:validation": "wmt14",
}  # fmt: skip

NEIGHBOURS = {  # neighbouring files that must not be chosen
    "multi-specbench:de": ("data/en.jsonl", "data/mix.jsonl", "code/aide.jsonl"),
    "mbpp": ("sanitized/test-00000-of-00001.parquet", "full/train-00000-of-00001.parquet"),
    "gsm8k": ("socratic/test-00000-of-00001.parquet", "main/train-00000-of-00001.parquet"),
    "mgsm:de": ("mgsm_en.tsv", "exemplars.py"),
    "xquad:de": ("xquad.en/validation-00000-of-00001.parquet",),
    "wmt14": ("fr-en/test-00000-of-00001.parquet", "de-en/train-00000-of-00003.parquet"),
    "wikitext:fr": ("wikitext-2-raw-v1/test-00000-of-00001.parquet",),
    "cnn-dailymail": ("1.0.0/test-00000-of-00001.parquet", "3.0.0/train-00000-of-00003.parquet"),
    "cnn-dailymail:validation": ("3.0.0/test-00000-of-00001.parquet",),
    "xsum:validation": ("data/test-00000-of-00001.parquet",),
    "wmt14:de-en:validation": ("de-en/test-00000-of-00001.parquet",),
    "iwslt17:de-en:validation": ("iwslt2017-de-en/test/0000.parquet",),
}


class Hub:
    """A fake hub client: folders as repositories, and a list of the requests."""

    def __init__(self, monkeypatch, root: Path, branches: dict[str, Path]) -> None:
        import huggingface_hub

        self.root, self.branches, self.asked = root, branches, []
        monkeypatch.setattr(huggingface_hub, "dataset_info", self.info)
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", self.download)
        monkeypatch.setattr(huggingface_hub, "snapshot_download", self.snapshot)

    def info(self, repo, revision, timeout):
        self.asked.append(("list", repo, revision))
        if revision not in self.branches:
            raise LookupError("404")
        here = self.branches[revision]
        names = [p.relative_to(here).as_posix() for p in here.rglob("*") if p.is_file()]
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in names])

    def download(self, repo, name, repo_type, revision):
        assert repo_type == "dataset"
        self.asked.append(("get", repo, name))
        to = self.root / repo / revision / name
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes((self.branches[revision] / name).read_bytes())
        return str(to)

    def snapshot(self, repo, repo_type, revision, local_files_only, allow_patterns):
        assert repo_type == "dataset" and local_files_only and allow_patterns == []
        if not (self.root / repo / revision).is_dir():
            raise LookupError("not cached")
        return str(self.root / repo / revision)


@pytest.mark.parametrize("name", HUB)
def test_the_hub_is_asked_once(name, tmp_path, monkeypatch):
    repo, there = HUB[name]
    (tmp_path / "made").mkdir()
    make, wanted = GIVEN[VALIDATION.get(name, name)]
    if name.startswith("iwslt17"):
        wanted = wanted | {"id": "iwslt17/1"}
    source = make(tmp_path / "made")
    place = tmp_path / "main" / there
    place.parent.mkdir(parents=True)
    if place.suffix == source.suffix or source.suffix == ".zip":
        place.write_bytes(source.read_bytes())
    else:  # JSON lines above, Parquet on the hub
        content = source.read_bytes()
        content = gzip.decompress(content) if source.suffix == ".gz" else content
        parquet(place, *map(json.loads, content.decode().splitlines()))
    for other in ("README.md", *NEIGHBOURS.get(name, ())):
        text(tmp_path / "main" / other, "other")
    hub = Hub(monkeypatch, tmp_path / "hub", {"main": tmp_path / "main"})
    found = sv.suite(name)
    assert {key: found[0][key] for key in wanted} == wanted
    assert hub.asked == [("list", repo, "main"), ("get", repo, there)]
    assert sv.suite(name).digest == found.digest
    assert len(hub.asked) == 2  # the second call reads it from disk


def test_what_the_hub_converted(tmp_path, monkeypatch):
    text(tmp_path / "main" / "xsum.py", "script")
    converted = tmp_path / "converted"
    GIVEN["xsum"][0](converted / "default" / "test")
    hub = Hub(monkeypatch, tmp_path / "hub", {"main": tmp_path / "main", "refs/convert/parquet": converted})
    assert sv.suite("xsum")[0]["id"] == "386"
    assert hub.asked[-1] == ("get", "EdinburghNLP/xsum", "default/test/0000.parquet")
    parquet(converted / "iwslt2017-de-en" / "test" / "0000.parquet", BOTH)
    parquet(converted / "iwslt2017-en-de" / "iwslt2017-test.parquet", BOTH)  # its former name
    assert sv.suite("iwslt17")[0]["source"] == "Guten Tag."
    assert sv.suite("iwslt17:en-de")[0]["source"] == "Good day."


def test_a_file_in_parts_is_whole_or_not_there(tmp_path, monkeypatch):
    row = {"article": "A.", "highlights": "H."}
    part = "3.0.0/test-0000{}-of-00002.parquet"
    parquet(tmp_path / "main" / part.format(0), row | {"id": "a"})
    hub = Hub(monkeypatch, tmp_path / "hub", {"main": tmp_path / "main"})
    with pytest.raises(PromptError, match="no file there matches"):
        sv.suite("cnn-dailymail")
    parquet(tmp_path / "main" / part.format(1), row | {"id": "b"})
    assert [p["id"] for p in sv.suite("cnn-dailymail")] == ["a", "b"]
    (tmp_path / "hub" / "abisee/cnn_dailymail" / "main" / part.format(1)).unlink()  # an incomplete cache
    hub.asked.clear()
    assert len(sv.suite("cnn-dailymail")) == 2 and hub.asked


def test_text_is_fetched_without_the_sound(tmp_path, monkeypatch, own_cache):
    import huggingface_hub

    row = {
        "index": 0,
        "audio": {"bytes": b"sound" * 1000},
        "text_en": "One.",
        "text_de": "Eins.",
        "text_fr": "Un.",
    }
    parquet(tmp_path / "main" / "data" / "eval-00000-of-00001.parquet", row)
    asked = []

    class Remote:
        def open(self, path, mode):
            asked.append(path)
            return (tmp_path / "main" / path.partition("@main/")[2]).open(mode)

    Hub(monkeypatch, tmp_path / "hub", {"main": tmp_path / "main"})
    monkeypatch.setattr(huggingface_hub, "HfFileSystem", Remote)
    for _ in range(2):
        assert sv.suite("acl6060")[0]["reference"] == ["Eins."]
    assert asked == ["datasets/ymoslem/acl-6060@main/data/eval-00000-of-00001.parquet"]
    (kept,) = own_cache.iterdir()
    assert pq.ParquetFile(kept).schema_arrow.names == ["text_en", "text_de"]


class Answer(io.BytesIO):
    def __init__(self, content: bytes, promised: int | None = None) -> None:
        super().__init__(content)
        self.headers = {"Content-Length": str(len(content) if promised is None else promised)}


@pytest.mark.parametrize("name", URLS)
def test_the_web_is_asked_once(name, tmp_path, monkeypatch, own_cache):
    content = GIVEN[name][0](tmp_path).read_bytes()
    asked = []
    monkeypatch.setattr(
        fetching.urllib.request, "urlopen", lambda url, timeout: asked.append(url) or Answer(content)
    )
    for _ in range(2):
        assert sv.suite(name)[0]["kind"] == GIVEN[name][1].get("kind", "rag")
    assert len(asked) == 1 and asked[0].endswith(URLS[name])
    assert len(list(own_cache.iterdir())) == 1


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (Answer(b'{"question_id": 1', promised=90), "the answer ended after 17 of 90 bytes"),
        (Answer(b"<html>Please log in</html>\n"), "line 1: not a JSON object"),
        (Answer(b""), "holds no prompt"),
    ],
)
def test_what_is_no_suite_is_not_kept(answer, says, monkeypatch, own_cache):
    monkeypatch.setattr(fetching.urllib.request, "urlopen", lambda url, timeout: answer)
    with pytest.raises(PromptError) as caught:
        sv.suite("spec-bench")
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert list(own_cache.iterdir()) == []


def test_a_disk_that_keeps_no_file_is_not_the_publishers_fault(monkeypatch, own_cache):
    import huggingface_hub

    def full(*given, **more):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fetching.urllib.request, "urlopen", lambda url, timeout: Answer(b"{}"))
    monkeypatch.setattr(fetching.shutil, "copyfileobj", full)
    says = f"cannot keep spec-bench in {own_cache}: No space left on device; set SPECVIZ_SUITES to another"
    with pytest.raises(PromptError, match=re.escape(says)):
        sv.suite("spec-bench")
    listed = SimpleNamespace(siblings=[SimpleNamespace(rfilename=HUB["gsm8k"][1])])
    monkeypatch.setattr(huggingface_hub, "dataset_info", lambda *given, **more: listed)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", full)
    with pytest.raises(PromptError, match=r"gsm8k in the Hugging Face cache: No space .*; set HF_HOME to"):
        sv.suite("gsm8k")


@pytest.mark.parametrize("name", [*GIVEN, "multi-sources:de"])
def test_without_a_network_one_line_says_what_to_do(name, own_cache):
    with pytest.raises(PromptError) as caught:
        sv.suite(name)
    said = str(caught.value)
    assert "no network here" in said and "=PATH" in said and "\n" not in said
    assert not own_cache.exists() or list(own_cache.iterdir()) == []


def test_the_hubs_own_cache_is_read(tmp_path, monkeypatch):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", SNAPSHOT)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    commit = "740312add88f781978c0658806c59bc2815b9866"
    repository = tmp_path / "datasets--openai--gsm8k"
    text(repository / "refs" / "main", commit)
    row = {"question": "1 + 1?", "answer": "2"}
    parquet(repository / "snapshots" / commit / "main" / "test-00000-of-00001.parquet", row)
    assert sv.suite("gsm8k")[0]["prompt"] == "1 + 1?"


def test_only_questions_that_were_fetched_are_read(tmp_path, monkeypatch, own_cache):
    assert list(catalogue.cached_questions()) == []
    hub = Hub(monkeypatch, tmp_path / "hub", {})
    row = {"question": "1 + 1?", "answer": "2"}
    parquet(tmp_path / "hub" / "openai/gsm8k" / "main" / HUB["gsm8k"][1], row)
    content = GIVEN["spec-bench"][0](tmp_path).read_bytes()
    monkeypatch.setattr(fetching.urllib.request, "urlopen", lambda url, timeout: Answer(content))
    fetched = sv.suite("spec-bench")
    sv.suite("mt-bench:fr")  # of the same format
    next(path for path in own_cache.iterdir() if "fr_mt_bench" in path.name).write_text("damaged {")
    suites = list(catalogue.cached_questions())
    assert [each.name for each in suites] == ["spec-bench", "gsm8k"]
    assert suites[0].digest == fetched.digest and not hub.asked


def test_validation_splits_are_not_measured_on():
    assert all(map(catalogue.measures, ("spec-bench", "gsm8k=FILE", "wmt14:de-en", "town")))
    others = ("wmt14:de-en:validation", "xsum:validation=FILE", "prompts.txt", "")
    assert not any(map(catalogue.measures, others))


def test_without_the_hubs_client(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(PromptError, match="pip install huggingface_hub, or give a local copy: gsm8k=PATH"):
        sv.suite("gsm8k")


def test_terms_to_accept_are_said(tmp_path, monkeypatch):
    import huggingface_hub

    class GatedRepoError(Exception):
        pass

    def gated(*args, **kwargs):
        raise GatedRepoError("403")

    monkeypatch.setattr(huggingface_hub, "dataset_info", gated)
    with pytest.raises(PromptError, match="requires its terms to be accepted"):
        sv.suite("gsm8k")


# ---------------------------------------------------------------- Multi-SpecBench


def test_its_sources_are_put_together(tmp_path):
    for base in catalogue.SOURCES:
        folder = tmp_path / "all" / base
        folder.mkdir(parents=True)
        name = base if base in GIVEN else f"{base}:de"
        if name in GIVEN:
            GIVEN[name][0](folder)
    parquet(tmp_path / "all" / "wikitext" / "test-00000-of-00001.parquet", *[{"text": ARTICLE}] * 90)
    parquet(tmp_path / "all" / "wikipedia" / "de" / "0000.parquet", {"title": "A", "text": ARTICLE})
    lines(tmp_path / "all" / "webfaq" / "deu.jsonl", {"question": "Q?", "answer": "A"})
    (tmp_path / "all" / "xquad" / "validation-00000-of-00001.parquet").rename(
        tmp_path / "all" / "xquad.parquet"
    )
    (tmp_path / "all" / "xquad").rmdir()
    found = sv.suite("multi-sources:de", tmp_path / "all")
    assert found.languages == ["de"]
    assert set(found.kinds) == set(sv.suite("multi-town").kinds)
    assert len(found.select("translation")) == 80 and len(found) == 86
    (tmp_path / "all" / "xquad.parquet").unlink()
    with pytest.raises(PromptError, match="has no xquad"):
        sv.suite("multi-sources:de", tmp_path / "all")


def test_english_is_spec_bench_and_code(tmp_path):
    (tmp_path / "spec-bench").mkdir()
    GIVEN["spec-bench"][0](tmp_path / "spec-bench")
    lines(tmp_path / "humaneval.jsonl", *[PROGRAM | {"task_id": f"HumanEval/{i}"} for i in range(164)])
    found = sv.suite("multi-sources", tmp_path)
    assert found.kinds == ["conversation", "code"] and len(found) == 81
    assert found[0]["id"] == "spec-bench/7" and found[-1]["id"] == "humaneval/HumanEval/79"


def test_a_file_is_no_folder_of_sources(tmp_path):
    path = GIVEN["spec-bench"][0](tmp_path)
    with pytest.raises(PromptError, match=r"question\.jsonl is not a folder: multi-sources:vi needs one"):
        sv.suite("multi-sources:vi", path)


def test_multi_specbench_says_its_languages(tmp_path):
    path = GIVEN["multi-specbench:de"][0](tmp_path)
    assert sv.suite("multi-specbench:vi", path)[0]["language"] == "vi"
    assert "language" not in sv.suite("multi-specbench:mix", path)[0]
    # In a folder, as on the hub, the language's file is found whatever its name.
    for name in ("question_de.json", "de/question.jsonl", "specbench-de-00000-of-00001.jsonl"):
        lines(tmp_path / name.replace("/", "-") / name, {"question_id": 1, "category": "qa", "turns": ["a"]})
        assert len(sv.suite("multi-specbench:de", tmp_path / name.replace("/", "-"))) == 1


def test_a_quoted_field_keeps_its_line_breaks(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'article,highlights\r\n"A.","One.\nTwo."\r\n')
    (row,) = rows.rows(path)
    assert row.values == {"article": "A.", "highlights": "One.\nTwo."}
    path.write_text('article\n"' + "x" * 200_000 + '"\n')
    assert [len(row.values["article"]) for row in rows.rows(path)] == [200_000]
