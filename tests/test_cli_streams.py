"""The command line on sources that arrive in updates."""

from __future__ import annotations

import json
import re

import pytest

from specviz import cli
from specviz.trace import Trace

RUN = ("generate", "retranslate", "--threads", 1)
TEXT = "Tom reads a book.\nThe baker sells fresh bread.\n"


@pytest.fixture
def say(capsys, tmp_path, monkeypatch):
    """Run the command line in an empty folder with a text in it; returns (status, output, errors)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text(TEXT)

    def call(*arguments):
        status = cli.run([str(a) for a in arguments])
        return status, *capsys.readouterr()

    return call


def test_a_text_update_by_update(say, tmp_path):
    status, out, err = say(*RUN, "--text", "t.txt", "--lag", 2, "--set", "k=1", "--out", "o")
    assert status == 0 and not err
    trace = Trace.open(tmp_path / "o" / "retranslate.parquet")
    assert [p["id"] for p in trace.run["prompts"]] == ["t:1", "t:2"]
    lines = out.splitlines()
    assert lines[:2] == ["t:1", "   0  Tom reads"] and "   2  The baker sells fresh bread." in lines
    for line, told in zip(lines[2::3], lines[3::3]):
        if not line.startswith("      "):
            break
        assert "rows kept" in told and " ms)" in told
    assert any("{+" in line and not line.startswith("      {+") for line in lines), "kept before what is new"
    assert out.count("1 hidden") == 3, "until a stream's last update"
    said = [int(n) for n in re.findall(r"(\d+) of \d+ drafted accepted", out)]
    assert said and sum(said) == trace.cycles["accepted"].sum()
    assert "ms per update" in out and "page: " in out
    assert "prefill" in out.partition("ms per update")[2].partition("t:1")[0], "tokens/s's"


def test_partial_results_with_more_keys_are_no_transcript(say, tmp_path):
    line = {"text": "Tom reads a book.", "final": True, "confidence": 0.9}
    (tmp_path / "p.json").write_text(json.dumps(line) + "\n")
    status, out, err = say(*RUN, "--stream", "p.json")
    assert status == 0 and "Tom reads a book." in out, err


def test_a_run_of_streams_that_goes_on_shows_the_later_ones(say, tmp_path):
    first, *_ = TEXT.splitlines()
    (tmp_path / "t.txt").write_text(first + "\n")
    assert say(*RUN, "--text", "t.txt", "--out", "o")[0] == 0
    (tmp_path / "t.txt").write_text(TEXT)
    status, out, err = say(*RUN, "--text", "t.txt", "--out", "o", "--resume")
    assert status == 0, err
    lines = out.splitlines()
    assert "t:2" in lines and "t:1" not in lines and any(line.startswith("t:2 ") for line in lines)
    assert len(Trace.open(tmp_path / "o" / "retranslate.parquet").prompts) == 2


def test_partials_are_made_and_decoded(say, tmp_path):
    status, out, _ = say("streams", "simulate", "t.txt", "--out", "p.jsonl", "--seed", 3)
    assert status == 0 and "generate retranslate --model town-translator --stream p.jsonl" in out
    found = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [f["text"] for f in found if f["final"]] == TEXT.splitlines()
    assert "exists" in say("streams", "simulate", "t.txt", "--out", "p.jsonl")[2]
    status, out, err = say(*RUN, "--stream", "p.jsonl")
    assert status == 0 and not err and "p:1\n" in out and "p:2\n" in out
    assert sum(line[:6].strip().isdecimal() for line in out.splitlines()) == len(found)


def test_the_clock_of_partial_results(say, tmp_path):
    lines = [{"text": "Tom", "time": 2, "final": True}, {"text": "Tom reads", "time": 5}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / "w.json").write_text('{"word": "Tom", "start": 0, "end": 1}')
    for clock, second in ((), 5), (("--clock", "file"), 3):
        assert say(*RUN, "--stream", "p.jsonl", "--out", "o", "--force", *clock)[0] == 0
        assert Trace.open(tmp_path / "o" / "retranslate.parquet").updates["arrival"].tolist() == [2, second]
    err = say(*RUN, "--stream", "w.json", "--clock", "file")[2]
    assert "w.json is a transcript, which has one clock: drop --clock" in err


def test_a_transcript_is_a_stream(say, tmp_path):
    cue = "WEBVTT\n\n00:01.000 --> 00:02.000\nTom reads \x1b[31m\n\n00:02.000 --> 00:03.000\na book.\n"
    (tmp_path / "t.vtt").write_text(cue)
    status, out, _ = say(*RUN, "--stream", "t.vtt", "--lag", 1)
    assert status == 0 and "Tom reads ⟨U+001B⟩[31m a book." in out and "\x1b" not in out


def test_a_document_on_one_line_is_a_transcript(say, tmp_path):
    heard = [{"word": w, "start": i, "end": i + 1} for i, w in enumerate(["Tom", "reads", "a", "book."])]
    for document in ({"words": heard}, {"segments": [{"words": heard}]}):
        (tmp_path / "whisper.jsonl").write_text(json.dumps({"text": "Tom reads a book."} | document) + "\n")
        status, out, err = say(*RUN, "--stream", "whisper.jsonl", "--lag", 1)
        assert status == 0, err
        assert "   0  Tom\n" in out and "   3  Tom reads a book.\n" in out
    partials = [{"text": "Tom", "words": []}, {"text": "Tom reads", "words": []}]  # updates that list words
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(each) + "\n" for each in partials))
    status, out, err = say(*RUN, "--stream", "p.jsonl")
    assert status == 0 and "   1  Tom reads\n" in out, err


def test_a_line_of_a_book_is_refused(say, tmp_path):
    (tmp_path / "book.txt").write_text("a " * 10_001)
    for words in ((*RUN, "--text", "book.txt"), ("streams", "simulate", "book.txt", "-o", "p.jsonl")):
        status, _, err = say(*words)
        assert status == 2 and "10,001 words, and a stream takes at most 10,000: split it into lines" in err


def test_what_a_file_holds_counts_not_how_it_is_called(say, tmp_path):
    heard = [{"word": w, "start": n, "end": n + 1} for n, w in enumerate(["Tom", "reads"])]
    (tmp_path / "words.jsonl").write_text("\n".join(map(json.dumps, heard)))
    (tmp_path / "partials.json").write_text('{"text": "Tom"}\n{"text": "Tom reads", "final": true}\n')
    (tmp_path / "whisper.json").write_text(json.dumps({"text": "Tom reads", "segments": [{"words": heard}]}))
    status, _, err = say(*RUN, "--stream", "partials.json", "--lag", 1)
    assert status == 2 and "partials.json holds partial results" in err and "drop --lag" in err
    for name, lag in (("words.jsonl", ("--lag", 1)), ("partials.json", ()), ("whisper.json", ("--lag", 1))):
        status, out, err = say(*RUN, "--stream", name, *lag)
        assert status == 0 and not err and "   0  Tom\n" in out and "   1  Tom reads\n" in out, name


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            (*RUN, "--prompt", "x"),
            "decodes a source that arrives in updates: give --text or --stream",
        ),
        ((*RUN, "--prompts", "town"), "not --prompts"),
        (("generate", "unispec", "--text", "t.txt"), "unispec takes a fixed prompt"),
        (("generate", "unispec", "--stream", "t.txt"), "t.txt, line 1 is not JSON"),
        ((*RUN, "--text", "t.txt", "--stream", "x"), "for retranslate --text or --stream"),
        (RUN, "for retranslate --text or --stream"),
        ((*RUN, "--text", "t.txt", "--lag", 0), "--lag must be at least 1, got 0"),
        (("generate", "unispec", "-p", "x", "--lag", 2), "--lag is for --text and --stream"),
        (("generate", "unispec", "-p", "x", "--language", "ja"), "--language is for --text and --stream"),
        ((*RUN, "--text", "t.txt", "--clock", "file"), "--clock is for --stream: drop it with --text"),
        ((*RUN, "--text", "none.txt"), "cannot read none.txt"),
        ((*RUN, "--text", "t.txt", "--raw"), "with --text use --set template=plain"),
        ((*RUN, "--text", "t.txt", "--set", "beta=2"), "[0, 1]"),
        (("streams", "simulate", "none.txt", "--out", "p"), "cannot read none.txt"),
    ],
)
def test_what_is_refused_in_one_line(say, tmp_path, arguments, line):
    status, out, err = say(*arguments)
    assert status == 2 and not out and line in err and err.count("\n") == 1 and err.startswith("specviz: ")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["t.txt"]


def test_a_stream_goes_to_a_translator_by_default(say, tmp_path):
    status, _, err = say("generate", "retranslate", "--text", "t.txt", "--out", "o")
    assert status == 0, err
    assert Trace.open(tmp_path / "o" / "retranslate.parquet").run["model"]["name"] == "town-translator"
