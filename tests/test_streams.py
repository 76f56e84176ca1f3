"""Sources that arrive in updates: reading, simulation, pushing, and refusals."""

from __future__ import annotations

import json
import random
import threading
from itertools import dropwhile, pairwise
from types import SimpleNamespace

import pytest
import regex
from hypothesis import example, given, settings
from hypothesis import strategies as st

import specviz as sv
from specviz.errors import ParameterError, PromptError, TraceError
from specviz.streams import (
    Live,
    Stream,
    Update,
    fixed_lag,
    follow,
    from_file,
    from_partials,
    save_partials,
    segmentation,
    segmenter,
    simulate_partials,
    word_timed,
    words,
)

JA, ZH, TH = "今日は天気が良いので、公園へ散歩に行きました。", "新的预训练语言模型通常很好。", "วันนี้อากาศดี"
EMOJI = "👨‍👩‍👧‍👦🇩🇪é 好き 한국어 e\u0301が"
texts = st.one_of(
    st.text(max_size=60),
    st.text("ab \n今日は天気がカタ新的。、、1é\u0301🇩🇪👩‍ๆวั", max_size=40),
)
worded = texts.filter(lambda t: t.strip())


@pytest.fixture(params=["budoux", "script runs"])
def cutter(request, monkeypatch):
    """Run with the library, and as if it were not installed."""
    if request.param == "budoux":
        pytest.importorskip("budoux", reason="needs the streams extra")
    else:
        monkeypatch.setattr(segmentation, "_library", lambda: None)
    segmentation._parser.cache_clear()
    yield request.param
    segmentation._parser.cache_clear()


def plain(stream):
    return [update.text for update in stream]


# ---------------------------------------------------------------- words


def test_words_of_scripts_without_spaces(cutter):
    assert words(JA)[:2] == ["今日は", "天気が"] and len(words(JA)) == 6
    assert words("Good  morning,\nall ") == ["Good", "  morning,", "\nall "]
    assert 5 <= len(words(ZH)) <= 9 and words(ZH)[-1].endswith("。")
    assert all(len(word) < 8 for word in words("カタカナと漢字のまざった文、そして終わり。"))
    assert segmenter(JA).startswith(cutter) and "(ja)" in segmenter(JA)
    assert "(zh)" in segmenter(ZH) and segmenter("two words") == "spaces"
    assert "(zh)" in segmenter("漢字", "zh-CN") and "(ja)" in segmenter("漢字", "ja")
    assert "(th)" in segmenter(TH) and "(zh-hant)" in segmenter("漢字", "zh_Hant")


@settings(deadline=None)
@given(texts, st.sampled_from([None, "en", "ja", "zh", "zh-TW", "th"]), st.booleans())
def test_words_are_the_text_and_cut_no_character(text, language, library):
    with pytest.MonkeyPatch.context() as patch:
        if not library:
            patch.setattr(segmentation, "_library", lambda: None)
        segmentation._parser.cache_clear()
        found = words(text, language)
        segmentation._parser.cache_clear()
    if not text.strip():
        assert found == []
        return
    assert "".join(found) == text and all(word.strip() for word in found)
    ends = {m.end() for m in regex.finditer(r"\X", text)}
    at = 0
    for word in found:
        at += len(word)
        assert at in ends


def test_what_of_a_text_still_stands():
    kept = segmentation.kept
    assert kept("", "a") == 0 and kept("der alten Man", "der alten Markt") == len("der alten ")
    assert kept("trans", "translation") == 5, "a word that only grew is kept"
    assert kept("one two", "one") == 3 and kept("新的模", "新的语") == 2
    assert kept("cafe", "cafe\u0301 au lait") == 0, "its last letter is another one"
    assert kept("Hello\nworld", "Hello\nthere") == 6 and kept("Hello.\nworld", "Hello.\nthere") == 7


# ---------------------------------------------------------------- fixed lag


@settings(deadline=None)
@given(worded, st.integers(1, 7))
@example("\x1f\r0", 1)  # a space to str.strip, but not to a pattern's \s
def test_a_lag_reveals_the_text(text, step):
    updates = list(fixed_lag(text, step))
    assert updates[-1].text == text and [u.last for u in updates] == [False] * (len(updates) - 1) + [True]
    for before, after in pairwise(updates):
        assert after.text.startswith(before.text) and before.text != after.text
    units = words(text)
    assert len(updates) == -(-len(units) // step) and updates[0].text == "".join(units[:step])


def test_a_lag_on_a_clock():
    stream = fixed_lag("one two three four", 3, pace=0.5, id="x", reference="eins")
    assert [(u.text, u.time) for u in stream] == [("one two three", 1.5), ("one two three four", 2.0)]
    assert (stream.id, stream.language, stream.reference, stream.segmented) == ("x", "en", "eins", "spaces")


@pytest.mark.parametrize("make", [fixed_lag, simulate_partials])
def test_a_stream_has_a_limit_of_words(make, monkeypatch):
    """Every update holds all words so far, so memory grows with the square of their number."""
    monkeypatch.setattr(sv.streams.lag, "MOST", 5)
    assert [*make("a b c d e")][-1].text == "a b c d e"
    with pytest.raises(PromptError, match="6 words, and a stream takes at most 5: split it into lines"):
        make("a b c d e f")


def test_lines_of_a_file_are_streams(tmp_path):
    file = tmp_path / "source.txt"
    file.write_bytes("\ufeffone two three four\r\n\n  five six \n".encode())
    first, second = from_file(file, 3)
    assert plain(first) == ["one two three", "one two three four"] and plain(second) == ["five six"]
    assert (first.id, second.id) == ("source:1", "source:3")
    file.write_text("one\u2028two\x0cthree\nfour", encoding="utf8")  # a line ends where a file's lines end
    assert [each.id for each in from_file(file, 3)] == ["source:1", "source:2"]
    file.write_bytes("\ufeffone two three four\r\n\n  five six \n".encode())
    (whole,) = from_file(file, 4, lines=False)
    assert len(plain(whole)) == 2 and plain(whole)[-1].endswith("five six") and whole.id == "source"


@pytest.mark.parametrize(
    ("call", "error", "line"),
    [
        (lambda: fixed_lag(" \n"), PromptError, "the text is empty"),
        (lambda: fixed_lag("a", 0), ParameterError, "words must be a whole number of at least 1, got 0"),
        (lambda: fixed_lag("a", -3), ParameterError, "got -3"),
        (lambda: fixed_lag("a", True), ParameterError, "got True"),
        (lambda: fixed_lag("a", 2.5), ParameterError, "got 2.5"),
        (lambda: fixed_lag(7), ParameterError, "the text must be a string, got int"),
        (lambda: fixed_lag("a", language=3), ParameterError, "language must be a string, got int"),
        (lambda: fixed_lag("a", pace=-1), ParameterError, "pace must be at least 0 seconds per word"),
        (
            lambda: fixed_lag("a", pace=float("nan")),
            ParameterError,
            "pace must be at least 0 seconds per word",
        ),
        (lambda: simulate_partials(""), PromptError, "the text is empty"),
        (lambda: simulate_partials("a", revise=1), ParameterError, "revise must lie in"),
        (lambda: simulate_partials("a", shrink=-0.1), ParameterError, "shrink must lie in"),
        (lambda: simulate_partials("a", seed=-1), ParameterError, "seed must be"),
        (lambda: from_file("nowhere.txt"), PromptError, "cannot read nowhere.txt: No such file"),
        (lambda: from_file("a\0b.txt"), PromptError, "embedded null byte"),
        (lambda: word_timed([], words=0), ParameterError, "words must be"),
        (lambda: word_timed([], words=1, seconds=1), ParameterError, "not both"),
        (lambda: word_timed([], seconds=0), ParameterError, "seconds must be above 0"),
        (lambda: word_timed([]), PromptError, "it contains no words"),
        (lambda: word_timed(3), PromptError, "takes a file, or a list"),
        (lambda: from_partials(3), PromptError, "takes a file, or lines"),
        (lambda: from_partials([]), PromptError, "no partial results"),
        (lambda: from_partials([], clock="mine"), ParameterError, "clock must be utterance or file"),
        (lambda: from_partials(["[" * 100_000]), PromptError, "line 1 is nested too deeply"),
        (lambda: Update(None), PromptError, "an update's text must be a string, got None"),
        (lambda: Update("a \ud83d"), PromptError, "half a character"),
        (lambda: Update("a", "1"), PromptError, "an update's time must be seconds, got '1'"),
        (lambda: Update("a", float("inf")), PromptError, "must be seconds"),
        (lambda: fixed_lag("a \udc00 b"), PromptError, "half a character"),
        (lambda: Stream(None), PromptError, "a stream is a list of specviz.streams.Update(text)"),
        (lambda: Stream(["a"]), PromptError, "a stream is a list of specviz.streams.Update(text)"),
        (lambda: list(Stream(iter(["a"]))), PromptError, "Update objects, got 'a'"),
    ],
)
def test_what_is_refused_in_one_line(call, error, line):
    with pytest.raises(error) as raised:
        call()
    assert line in str(raised.value) and "\n" not in str(raised.value)


def test_files_that_hold_no_text(tmp_path):
    empty, bytes_ = tmp_path / "empty.txt", tmp_path / "bytes.txt"
    empty.write_text(" \n\n")
    bytes_.write_bytes(b"abc\xff")
    with pytest.raises(PromptError, match="has no words"):
        from_file(empty)
    with pytest.raises(PromptError, match="is not UTF-8 \\(byte 3\\)"):
        from_file(bytes_)


# ---------------------------------------------------------------- transcripts with times


def heard(*rows):
    return [{"word": word, "start": start, "end": end} for word, start, end in rows]


WORDS = heard(
    (" Good", 0.0, 0.4), (" morning,", 0.4, 0.9), (" all", 1.9, 2.1), (" of", 2.1, 2.2), (" you.", 2.2, 2.5)
)


def test_updates_by_words_and_by_seconds():
    assert [(u.text, u.time) for u in word_timed(WORDS, 2)] == [
        ("Good morning,", 0.9), ("Good morning, all of", 2.2), ("Good morning, all of you.", 2.5),
    ]  # fmt: skip
    stream = word_timed(WORDS, seconds=0.5, language="en")
    assert [(u.text, u.time, u.last) for u in stream] == [
        ("Good", 0.5, False), ("Good morning,", 1.0, False), ("Good morning, all of you.", 2.5, True),
    ]  # fmt: skip
    assert len(plain(word_timed(WORDS))) == 2, "three words are the default"


def test_words_without_a_space_of_their_own():
    spaced = word_timed(heard(("Good", 0, 1), ("morning", 1, 2)), 1)
    assert plain(spaced) == ["Good", "Good morning"]
    assert plain(word_timed(heard(("今日", 0, 1), ("は。", 1, 2), ("OK", 2, 3)), 3)) == ["今日は。 OK"]


@pytest.mark.parametrize(
    "write",
    [
        lambda w: json.dumps(w),
        lambda w: json.dumps({"text": "...", "words": w}),
        lambda w: json.dumps({"segments": [{"words": w[:2]}, {"words": []}, {"words": w[2:]}]}, indent=1),
        lambda w: "\n".join(map(json.dumps, w)) + "\n\n",
    ],
    ids=["list", "words", "segments", "lines"],
)
def test_the_forms_of_a_transcript(tmp_path, write):
    file = tmp_path / "talk.json"
    file.write_text(write(WORDS), encoding="utf8")
    stream = word_timed(file, 2)
    assert [u.time for u in stream] == [0.9, 2.2, 2.5] and stream.id == "talk"


def test_subtitles(tmp_path):
    vtt, srt = tmp_path / "a.vtt", tmp_path / "a.srt"
    vtt.write_text(
        "WEBVTT\n\nNOTE no cue\n\n00:01.000 --> 00:02.500 align:start\n<v Ann>Good <b>morning</b>,\nall.\n\n"
        "2\n01:00:03.000 --> 01:00:04.000\nBye.\n"
    )
    srt.write_bytes(
        b"1\r\n00:00:01,000 --> 00:00:02,500\r\nGood morning,\r\nall.\r\n\r\n"
        b"2\r\n01:00:03,000 --> 01:00:04,000\r\nBye.\r\n"
    )
    for file in (vtt, srt):
        found = [(u.text, u.time) for u in word_timed(file, 1)]
        assert found == [("Good morning, all.", 2.5), ("Good morning, all. Bye.", 3604.0)]
    for file in (vtt, srt):  # WebVTT alone writes & as an entity
        file.write_text(
            "WEBVTT\n\n00:00:01.000 --> 00:00:02.000\n<v Ann>Q&amp;A &gt;&gt;\n".replace(".000", ",000")
        )
        assert word_timed(file).updates[-1].text == ("Q&A >>" if file == vtt else "Q&amp;A &gt;&gt;")
    vtt.write_text("WEBVTT\n\nsoon --> later\nGood.\n")
    with pytest.raises(PromptError, match="cue 1 has no readable times"):
        word_timed(vtt)


@pytest.mark.parametrize(
    ("entries", "line"),
    [
        ([{"word": "a", "start": 0}], "word 1 lacks 'end'"),
        ([{"start": 0, "end": 1}], "word 1 lacks 'word': each word needs word, start and end"),
        ([*heard(("a", 0, 1)), 7], "word 2 should be an object, not 7"),
        (heard(("a", 0, "1")), "word 1, end should be a number, not '1'"),
        (heard((3, 0, 1)), "word 1, word should be a string, not 3"),
        (heard(("a", 0, True)), "end should be a number, not true"),
        (heard(("a", 2, 1)), "word 1: its times go backwards"),
        (heard(("a", 0, 2), ("b", 0, 1)), "word 2: its times go backwards"),
        (heard(("a", 0, float("nan"))), "word 1, end should be a finite number"),
        (heard(("a", 0, 10**400)), "word 1, end should be a"),
        (heard(("a\ud83d", 0, 1)), "word 1, word holds half a character"),
        (heard((" ", 0, 1)), "it contains no words"),
    ],
)
def test_a_transcript_that_is_refused(tmp_path, entries, line):
    with pytest.raises(PromptError) as raised:
        word_timed(entries)
    assert line in str(raised.value) and "\n" not in str(raised.value)
    file = tmp_path / "t.json"
    file.write_text(json.dumps(entries))
    with pytest.raises(PromptError, match=r"t\.json"):
        word_timed(file)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"word": "a", "start": 0, "end": 1}\n{"word": ', "line 2 is not JSON"),
        ('[{"word": "a",\n "start" 0}]', "t.json is not JSON (Expecting ':' delimiter, line 2"),
        ('{"word": "a", "start": 0, "end": 1' + "0" * 5000 + "}", "has a number that is too long"),
        ('{"text": "a"}', "no list of words"),
        ('{"segments": [{"text": "a", "start": 0, "end": 1}]}', "segments have no words"),
        ("7", "no list of words"),
        ("[" * 100_000, "t.json is nested too deeply"),
        ('{"word": "a", "start": 0, "end": 1}\n' + "[" * 100_000, "line 2 is nested too deeply"),
    ],
)
def test_a_transcript_file_that_is_refused(tmp_path, text, line):
    file = tmp_path / "t.json"
    file.write_text(text)
    with pytest.raises(PromptError) as raised:
        word_timed(file)
    assert line in str(raised.value) and "\n" not in str(raised.value)


# ---------------------------------------------------------------- partial results


def test_a_final_result_closes_an_utterance(tmp_path):
    lines = [
        '{"text": "its", "time": 0.5}', "", '{"text": "", "time": 0.5, "final": false}',
        '{"text": "It is.", "time": 1, "final": true}', '{"text": "next", "time": 0.5}',
    ]  # fmt: skip
    file = tmp_path / "asr.jsonl"
    file.write_text("\n".join(lines), encoding="utf-8-sig")
    for source in (file, str(file), lines, [json.loads(line) for line in lines if line]):
        first, second = from_partials(source)
        assert list(first) == [Update("its", 0.5), Update("", 0.5), Update("It is.", 1.0, True)]
        assert list(second) == [Update("next", 0.5, True)], "the end of the file ends the last one"
    assert (from_partials(file)[1].id, first.id) == ("asr:2", "utterance:1")


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ([[1, 3], [5, 7], [None, None], [9, 9]], [[1, 3], [2, 4], [None, None], [2, 2]]),
        ([[1, 3], [3, 4, 6], [6, 7]], [[1, 3], [0, 1, 3], [0, 1]]),
    ],
)
def test_times_of_one_clock_start_at_0_in_every_utterance(times, wanted):
    lines = [{"text": "a", "time": t, "final": n == len(own)} for own in times for n, t in enumerate(own, 1)]
    assert [[u.time for u in stream] for stream in from_partials(lines, clock="file")] == wanted
    assert [[u.time for u in stream] for stream in from_partials(lines)] == times, "kept as written"
    with pytest.raises(PromptError, match=f"line {len(lines) + 1}: its time 1 s is before"):
        from_partials([*lines, {"text": "b", "time": 1}], clock="file")


def test_blank_results_are_left_out_until_something_is_heard():
    heard = enumerate(["", " ", "", "Tom", "", "Tim"], 1)
    lines = [{"text": text, "time": n, "final": n in (2, 6)} for n, text in heard]
    (only,) = from_partials(lines, clock="file")
    assert (plain(only), only.id) == (["Tom", "", "Tim"], "utterance:2")
    assert [u.time for u in only] == [2, 3, 4], "the first utterance ended at 2 s"
    with pytest.raises(PromptError, match="no partial results"):
        from_partials([{"text": " ", "final": True}])


@pytest.mark.parametrize(
    ("bad", "line"),
    [
        ('{"text": "b"', "line 3 is not JSON (Expecting ',' delimiter, column"),
        ("[1]", "line 3 should be an object, not a list"),
        ('{"time": 1}', "line 3 lacks 'text'"),
        ('{"text": 5}', "line 3, text should be a string, not 5"),
        (r'{"text": "\ud83d"}', "line 3, text holds half a character"),
        ('{"text": "b", "time": "1"}', "line 3, time should be a number, not '1'"),
        ('{"text": "b", "time": NaN}', "line 3, time should be a finite number"),
        ('{"text": "b", "time": 1' + "0" * 400 + "}", "line 3, time should be a"),
        ('{"text": "b", "final": 1}', "line 3, final should be true or false, not 1"),
        ('{"text": "b", "time": 0.5}', "line 3: its time 0.5 s is before the previous 1 s"),
    ],
)
def test_an_error_names_the_line(tmp_path, bad, line):
    file = tmp_path / "asr.jsonl"
    file.write_text('{"text": "a", "time": 1}\n\n' + bad + "\n")
    with pytest.raises(PromptError) as raised:
        from_partials(file)
    assert f"asr.jsonl, {line}" in str(raised.value) and "\n" not in str(raised.value)


@settings(deadline=None)
@given(worded, st.integers(0, 99), st.floats(0, 0.9), st.floats(0, 0.9))
def test_simulated_partials_end_at_the_text(text, seed, revise, shrink):
    stream = simulate_partials(text, seed, revise=revise, shrink=shrink)
    updates = list(stream)
    assert updates[-1].text == text and updates[-1].last and not any(u.last for u in updates[:-1])
    assert updates == list(simulate_partials(text, seed, revise=revise, shrink=shrink))
    times = [u.time for u in updates]
    assert times == sorted(times)
    if not revise and not shrink:
        assert all(b.text.startswith(a.text) for a, b in pairwise(updates))


def test_words_of_other_languages_are_misheard_as_cut_off():
    text = "No lo sé: su son no van a ver one."
    for language in ("es", "pt-BR"):
        streams = [plain(simulate_partials(text, seed, language=language)) for seed in range(30)]
        cut = [w for s in streams for t in s for w in t.split() if w not in text.split()]
        assert cut and all(any(full.startswith(w) for full in text.split()) for w in cut)
    english, unknown = (plain(simulate_partials(text, 3, language=name)) for name in ("EN-us", None))
    assert english == unknown == plain(simulate_partials(text, 3))


def test_words_are_taken_back_now_and_then():
    text = "one two three four five six seven eight nine ten"
    for shrink, some in ((0.4, True), (0.0, False)):
        streams = [plain(simulate_partials(text, seed, revise=0, shrink=shrink)) for seed in range(10)]
        assert any(len(b) < len(a) for s in streams for a, b in pairwise(s)) == some
        assert all(text.startswith(t) and t for s in streams for t in s)


def test_simulated_partials_grow_shrink_and_revise():
    text = "Their son would write to me for a week, and then we will wait by the sea for the new weather."
    streams = [plain(simulate_partials(text, seed)) for seed in range(20)]
    assert len({tuple(s) for s in streams}) > 15
    pairs = [(a, b) for s in streams for a, b in pairwise(s)]
    assert any(len(b) < len(a) for a, b in pairs), "some shrink"
    assert any(not b.startswith(a) and len(b) > len(a) for a, b in pairs), "some are revised"
    misheard = {w for s in streams for t in s for w in t.split()} - set(text.split())
    assert misheard & {"there", "wood", "weak", "knew", "whether"}, "by sound"
    told = [t.split() for s in streams for t in s[:-1]]
    assert all(words[:-2] == text.split()[: len(words) - 2] for words in told if len(words) > 2), (
        "two at most"
    )
    assert any(t != JA and t.startswith("今日は天気") for t in plain(simulate_partials(JA, 1)))


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.lists(st.tuples(st.text(max_size=9), st.floats(0, 9)), min_size=1, max_size=4), min_size=1)
)
@example([[("Yes.", 0.35)], [("The", 1.05), ("The baker", 2.1)]])
def test_partials_go_through_a_file(tmp_path_factory, utterances):
    file = tmp_path_factory.mktemp("partials") / "p.jsonl"
    streams = [
        Stream([Update(text, time) for (text, _), time in zip(u, sorted(time for _, time in u))])
        for u in utterances
    ]
    assert save_partials(streams, file) == file
    spoken = [list(dropwhile(lambda update: not update.text.strip(), s)) for s in streams]
    if any(spoken):
        assert [list(s) for s in from_partials(file)] == [s for s in spoken if s]


def test_a_file_of_partials_is_whole_or_not_there(tmp_path):
    file = tmp_path / "new" / "p.jsonl"
    save_partials(simulate_partials("one two three", 1), file)
    with pytest.raises(TraceError, match="exists"):
        save_partials(simulate_partials("four", 1), file)
    save_partials(simulate_partials("four", 1), file, force=True)
    assert plain(from_partials(file)[0])[-1] == "four"

    def failing():
        yield Update("a")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        save_partials(Stream(failing()), file, force=True)
    assert plain(from_partials(file)[0])[-1] == "four"
    with pytest.raises(TraceError, match="cannot write"):
        save_partials(simulate_partials("x", 1), file / "below.jsonl")
    assert [p.name for p in file.parent.iterdir()] == ["p.jsonl"]


# ---------------------------------------------------------------- live


def test_what_was_overtaken_is_left_out():
    live = Live("typed", "en")
    for text in ("a", "a b", "a b c"):
        live.push(text)
    reader = iter(live)
    assert next(reader).text == "a b c" and live.skipped == 2
    live.push("a b")
    live.finish()
    live.finish()
    assert [(u.text, u.last) for u in reader] == [("a b", True)]
    with pytest.raises(PromptError, match="the stream is finished"):
        live.push("more")
    with pytest.raises(PromptError, match="takes texts, got int"):
        Live().push(3)


def test_every_push_can_be_asked_for():
    live = Live(skip=False)
    for text in "abc":
        live.push(text)
    live.finish("d")
    found = list(live)
    assert [u.text for u in found] == list("abcd") and live.skipped == 0
    assert [u.last for u in found] == [False, False, False, True]
    assert [u.time for u in found] == sorted(u.time for u in found) and found[0].time == 0


def test_the_end_comes_once_more_if_it_was_read():
    live = Live()
    live.push("a")
    assert next(iter(live)) == Update("a", 0.0)
    live.finish()
    assert list(live) == [Update("a", 0.0, True)]
    empty = Live()
    empty.finish()
    assert list(empty) == []


def test_who_waits_is_told_of_a_push():
    live, seen, told = Live(), [], threading.Event()

    def read():
        for update in live:
            seen.append(update.text)
            told.set()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    told.wait(0.05)  # it waits by now
    live.push("a")
    assert told.wait(20) and seen == ["a"]
    live.finish()
    reader.join(20)
    assert not reader.is_alive()


@pytest.mark.parametrize("skip", [True, False])
def test_no_last_push_is_lost(skip):
    draw = random.Random(0)
    for _ in range(30):
        live, seen = Live(skip=skip), []

        def push(live=live):
            for i in range(40):
                live.push(str(i))
                if draw.random() < 0.2:
                    threading.Event().wait(0.0005)
            live.finish()

        def read(live=live, seen=seen):
            seen.extend(live)

        threads = [threading.Thread(target=f, daemon=True) for f in (push, read)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert seen[-1].text == "39" and seen[-1].last and not any(u.last for u in seen[:-1])
        texts = [int(u.text) for u in seen]
        assert texts == sorted(texts) and len(set(texts)) + live.skipped >= 40 - (not skip)


# ---------------------------------------------------------------- decoded


@pytest.fixture(scope="module")
def town():
    return sv.load("town")


def test_what_is_displayed_update_by_update(town):
    source = "The baker sells fresh bread near the old market."
    streams = [fixed_lag(source, 3, id="a"), simulate_partials(source, 1)]
    run = sv.stream(town, streams, "retranslate", k=2, record="all")
    seen = list(follow(run, town.decode))
    assert [u.stream for u in seen] == sorted(u.stream for u in seen) and {u.stream for u in seen} == {0, 1}
    stood = ""
    for u in seen:
        if u.update == 0:
            stood = ""
            assert u.reused == 0
        assert u.kept + u.erased == stood and u.text == u.kept + u.new
        assert (u.erased_tokens > 0) >= (u.erased != "")
        assert u.accepted <= u.drafted and u.reused < u.prompt and u.seconds > 0
        stood = u.text
    hidden = [[u.hidden for u in seen if u.stream == s] for s in (0, 1)]
    assert all(h[-1] == 0 and set(h[:-1]) == {2} for h in hidden)
    cycles = run.trace.cycles
    assert sum(u.accepted for u in seen) == cycles["accepted"].sum()
    assert sum(u.drafted for u in seen) == (cycles["sent"] - cycles["cut"]).sum()
    assert run.trace.run["prompts"][0]["segmented"] == "spaces"
    assert [u.source for u in seen if u.stream == 0] == plain(streams[0])


def test_a_character_that_is_only_begun_waits():
    def cycle(update, text, shown):
        return SimpleNamespace(
            number=0, prompt=0, update=update, tokens=[*text.encode(), 0], status=[], end="eos", shown=shown,
            source="", arrival=None, context=1, reused=0,
        )  # fmt: skip

    show = lambda ids: bytes(ids).decode("utf8", "replace")
    first, second = follow([cycle(0, " 新的x", 5), cycle(1, " 新的x", 8)], show)
    assert (first.text, first.hidden) == ("新", 3) and (second.kept, second.new) == ("新", "的x")
    (broken,) = follow([cycle(0, " 新的x", 8)], lambda ids: show(ids[:5]))
    assert broken.text == "新\ufffd", "what is broken for good is shown"


def test_a_live_stream_is_decoded_while_it_is_pushed(town):
    live = Live(skip=False)
    run = sv.stream(town, live, "retranslate")
    shown = follow(run, town.decode)
    live.push("The baker")
    first = next(shown)
    live.push("The baker sells bread.")
    second = next(shown)
    live.finish()
    last = next(shown)
    assert next(shown, None) is None and run.trace.run["complete"]
    assert (first.source, second.source, last.source) == ("The baker", *["The baker sells bread."] * 2)
    assert last.kept == second.text and not last.new and not last.erased and last.reused == last.prompt - 1


@pytest.mark.parametrize("given", ["Tom reads", ["Tom", "Tom reads"], [Update("Tom"), "Tom reads"]])
def test_a_stream_of_no_updates_is_refused(given):
    with pytest.raises(PromptError, match=r"list of specviz.streams.Update\(text\).*fixed_lag"):
        Stream(given)


def test_a_stream_without_updates_decodes_nothing_in_one_line(town):
    with pytest.raises(PromptError, match="stream 2 has no updates"):
        sv.generate(town, [Stream([Update("Tom")]), Stream([])], "retranslate")
    once = Stream(iter([Update("Tom"), Update("Tom reads", last=True)]))
    assert sv.generate(town, once, "retranslate", mode="rt", max_new_tokens=4).updates["source"].tolist()
    with pytest.raises(
        PromptError, match="stream 1 gave no update: a generator or a live source is read once"
    ):
        sv.generate(town, once, "retranslate", max_new_tokens=4)
