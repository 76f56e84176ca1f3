"""Metrics of streams: counted by hand, update by update."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import numpy as np
import pytest

import specviz
from specviz import metrics
from specviz.errors import ParameterError, TraceError
from specviz.metrics.quality import pairs
from specviz.metrics.tokens import words
from specviz.trace import Recorder, Trace
from specviz.view import flicker
from specviz.view.updates import ribbon
from specviz.widgets import flicker as widget
from specviz.widgets.columns import columns as player_columns

WORDS = {2: "?", 7: "?", 9: "?", 10: "a", 11: " b", 12: " c", 13: " d", 14: " e", 1: "</s>"}
A, B, C, D, E, END = 10, 11, 12, 13, 14, 1
EMPTY = {"node_token": [], "node_parent": [], "node_status": []}


def trace(*streams, mode="ssbd", **more) -> Trace:
    """A run of streams, of lists of (source, arrival, draft, kept, output, shown); each cycle lasts 50 ms."""
    run = {
        "run": "r",
        "method": "retranslate",
        "eos": [END],
        "prompts": [{"tokens": [2], "reference": each.get("reference")} for each in streams],
        "parameters": {"mode": mode, "beta": 0.2, "target_language": "German"},
        "record": "judged",
    }
    recorder = Recorder(run | more, piece=lambda token: WORDS[token].encode())
    clock = 0.0
    for prompt, each in enumerate(streams):
        for update, (source, arrival, draft, kept, out, shown) in enumerate(each["updates"]):
            key = {"prompt": prompt, "update": update}
            head = {"context": 20, "reused": 5, "keep": 0, "start": clock, "duration": 0.1}
            recorder.add(key | head | {"cycle": 0, "source": source, "arrival": arrival})
            clock += 0.1
            done, cycle = 0, 0
            while done < len(out):
                cycle += 1
                first = bool(draft) and cycle == 1
                count = min(len(out), kept + (mode != "cd")) if first else 1
                word = "unreviewed" if mode == "cd" else "accepted"
                status = ([word] * kept + ["rejected"] + ["unjudged"] * 9)[: len(draft)]
                nodes = {"node_token": draft, "node_status": status, "node_parent": range(-1, len(draft) - 1)}
                origin = ["unreviewed" if mode == "cd" else "draft"] * (kept if first else 0)
                recorder.add(
                    key
                    | {"cycle": cycle, "context": 20 + done, "keep": done, "start": clock, "duration": 0.05}
                    | ({k: list(v) for k, v in nodes.items()} if first else EMPTY)
                    | {"out_token": out[done : done + count], "out_position": list(range(done, done + count))}
                    | {"out_origin": [*origin, "plain"][:count]}
                    | ({"end": "eos", "shown": shown} if done + count == len(out) else {})
                )
                done, clock = done + count, clock + 0.05
    return recorder.close()


GROWS = {
    "reference": "q r",
    "updates": [
        ("x y", 0.5, [], 0, [A, B, C, END], 1),
        ("x y z w", 1.5, [A, B, C], 2, [A, B, D, E, END], 2),
        ("x y z w v", 2.0, [A, B, D, E], 4, [A, B, D, E, END], 4),
    ],
}
TURNS = {
    "updates": [
        ("x", 1.0, [], 0, [A, B, C, END], 3),
        ("x y", 2.0, [A, B, C], 0, [D, END], 1),
    ],
}


@pytest.fixture(scope="module")
def two() -> Trace:
    return trace(GROWS, TURNS)


def test_erasure_by_hand(two):
    shown = metrics.erasure(two)
    assert shown["words"].tolist() == [["a"], ["a", "b"], list("abde"), list("abc"), ["d"]]
    assert shown["erased"].tolist() == [0, 0, 0, 0, 3]
    assert shown["kept"].tolist() == [0, 1, 2, 0, 0]
    assert shown["written"].tolist() == [1, 1, 2, 3, 1]
    assert set(shown["tokenizer"]) == {"13a"}
    drafts = metrics.erasure(two, "draft")
    assert drafts["words"].tolist() == [list("abc"), list("abde"), list("abde"), list("abc"), ["d"]]
    assert drafts["erased"].tolist() == [0, 1, 0, 0, 3]
    own = metrics.erasure(two, tokenize="model")
    assert own["words"].tolist() == [[A], [A, B], [A, B, D, E], [A, B, C], [D]]
    assert own["erased"].tolist() == [0, 0, 0, 0, 3]
    with pytest.raises(ParameterError, match="of must be one of display, draft, not 'screen'"):
        metrics.erasure(two, "screen")


def test_normalized_erasure_by_hand(two):
    assert metrics.normalized_erasure(two) == 3 / 5  # (0 + 3) over (4 + 1): sums first
    assert metrics.normalized_erasure(two, "draft") == 4 / 5
    assert metrics.normalized_erasure(two.select(prompt=0)) == 0
    nothing = trace({"updates": [("x", 0.0, [], 0, [END], 0)]})
    assert np.isnan(metrics.normalized_erasure(nothing))


@pytest.mark.parametrize("end", ["interrupted", None])
def test_an_update_that_was_broken_off_erases_nothing(end):
    """It was never displayed, so neither its missing rest nor its changes count as erased."""
    whole = trace(GROWS)
    columns = whole._table([c.name for c in specviz.schema.COLUMNS]).to_pylist()
    at = next(i for i, row in enumerate(columns) if row["update"] == 1 and row["cycle"] == 2)
    cut = columns[: at + 1]
    cut[-1] |= {"end": end, "shown": None, "out_token": [E]}
    run = {k: whole.run[k] for k in ("run", "method", "eos", "prompts", "parameters")}
    recorders = [Recorder(run, piece=lambda token: WORDS[token].encode()) for _ in range(2)]
    for row in cut:
        recorders[0].add(row)
    broken = recorders[0].close(complete=False, stopped="interrupted")
    assert broken.updates["ids"].tolist() == [[A, B, C], [A, B, D, E]]
    for of, stands in (("display", ["a"]), ("draft", list("abc"))):
        found = metrics.erasure(broken, of)
        assert found["words"].tolist() == [stands, stands] and found["erased"].tolist() == [0, 0]
    assert metrics.normalized_erasure(broken) == 0
    assert metrics.by_stream(broken)["tokens"].tolist() == [1]
    recorders[1].add(columns[0] | {"end": end})
    with pytest.raises(TraceError, match="or it did not end"):  # the reference is that of the whole source
        pairs(broken)
    only = recorders[1].close(complete=False)
    assert metrics.erasure(only)["words"].tolist() == [[]] and metrics.by_stream(only)["tokens"].tolist() == [
        0
    ]


def test_a_stream_by_hand(two):
    table = metrics.by_stream(two)
    first, second = table.iloc[0], table.iloc[1]
    assert table["updates"].tolist() == [3, 2]
    assert (first["drafted"], first["accepted"], first["emitted"]) == (7, 6, 14)
    assert (first["A/D"], first["A/O"]) == (6 / 7, 6 / 14)
    assert (second["A/D"], second["A/O"]) == (0, 0)
    assert table["NE"].tolist() == [0, 3]
    assert table["draft_NE"].tolist() == [1 / 4, 3]
    # 4 plain cycles, then 3 (a verification that gives three tokens, and two more), then 1.
    assert first["seconds"] == pytest.approx(8 * 0.05)
    assert first["prefill"] == pytest.approx(0.3)
    assert first["tokens_per_second"] == pytest.approx(14 / 0.4)
    assert first["tokens_per_second_with_prefill"] == pytest.approx(14 / 0.7)
    assert (first["prompt_tokens"], first["reused"]) == (60, 15)
    estimate = metrics.pooled(table["erased"].to_numpy(), table["tokens"].to_numpy())
    assert estimate.median == metrics.normalized_erasure(two)


def test_drafts_are_those_of_each_update(two):
    table = metrics.drafts(two)
    assert len(table) == len(two.cycles)
    had = table[table["drafted"] > 0][["prompt", "update", "cycle", "drafted", "depth"]]
    assert had.to_numpy().tolist() == [[0, 1, 1, 3, 3], [0, 2, 1, 4, 4], [1, 1, 1, 3, 3]]


@pytest.mark.parametrize("since", [9, 1])
def test_cache_rows_that_are_not_recorded_are_unknown(two, since):
    run = {name: two.run[name] for name in ("run", "method", "eos", "prompts", "parameters", "record")}
    recorder = Recorder(run, piece=lambda token: WORDS[token].encode())
    for row in two.arrow([column.name for column in specviz.schema.COLUMNS]).to_pylist():
        recorder.add(row if row["update"] >= since else row | {"reused": None})
    trace = recorder.close()
    assert metrics.by_stream(trace)["reused"].isna().all() and np.isnan(trace.summary()["reused_share"][0])
    shown = [{name for name, _, _ in ribbon(each).numbers} for each in (two, trace)]
    assert shown[0] - shown[1] == {"cache reused"}
    rows = ribbon(trace).rows
    assert [row.counts["reused"] for row in rows] == [None if row.update < since else 5 for row in rows]
    assert [row.cache for row in rows] == ["" if row.update < since else "cache 5/20" for row in rows]
    assert all(any("cache" in note for note in row.notes()) == bool(row.cache) for row in rows)
    assert [widget._source(row, same_source=True)[-1] for row in rows] == [row.cache for row in rows]
    drawn = flicker.figure([ribbon(trace)])
    assert drawn.count('"said">cache ') == drawn.count('"said">cache 5/20') == len(rows[since:])
    shown = [u for prompt in player_columns(trace)[0]["prompts"] for u in prompt["updates"]]
    for update in shown:
        number = "an unknown number" if update["update"] < since else "5"
        assert update["said"].endswith(f"; {number} of 20 rows of its prompt stay in the cache")


def test_a_stream_without_times_has_none(two):
    rows = two.arrow([column.name for column in specviz.schema.COLUMNS]).to_pylist()
    run = {name: two.run[name] for name in ("run", "method", "eos", "prompts", "parameters")}
    untimed, *prefills = (Recorder(run, piece=lambda token: WORDS[token].encode()) for _ in range(3))
    for row in rows:
        untimed.add(row | {"start": None, "duration": None})
    trace = untimed.close()
    assert trace.updates[["prefill", "duration"]].isna().all(axis=None)
    table = metrics.by_stream(trace)
    assert table[["prefill", "seconds"]].isna().all(axis=None) and table["emitted"].tolist() == [14, 6]
    for recorder, duration in zip(prefills, (0.1, None)):  # without a cycle after it
        recorder.add(rows[0] | {"duration": duration})
        assert recorder.close(complete=False).updates["duration"].isna().tolist() == [duration is None]


def test_lagging_by_hand(two):
    row = metrics.lagging(two).iloc[0]
    # When each token of "a b d e" became final: with 2, 4, 5, 5 of 5 words; the third is the first with all.
    assert row["LAAL"] == pytest.approx((2 + (4 - 5 / 4) + (5 - 10 / 4)) / 3)
    assert row["AL"] == pytest.approx((2 + (4 - 5 / 2) + (5 - 5)) / 3)  # the reference has two tokens
    assert row["LAAL_seconds"] == pytest.approx((0.5 + (1.5 - 2 / 4) + (2 - 4 / 4)) / 3)
    assert row["AL_seconds"] == pytest.approx((0.5 + (1.5 - 2 / 2) + (2 - 4 / 2)) / 3)
    assert metrics.lagging(two, "model")["AL"][0] == row["LAAL"]  # the reference is left out
    for references, al in ((["q r", "q r s t u v w"], row["AL"]), ([], row["LAAL"])):  # the first, or none
        assert metrics.lagging(trace(GROWS | {"reference": references}))["AL"][0] == al
    # The source lost words: no more than its final length was ever needed.
    shrinks = trace({"updates": [("x y z w", 0.0, [], 0, [A, END], 1), ("x y", 1.0, [A], 1, [A, B, END], 2)]})
    assert metrics.lagging(shrinks)["AL"][0] == 2
    untimed = trace({"updates": [("x", None, [], 0, [A, END], 1)]})
    assert metrics.lagging(untimed)["AL"][0] == 1
    assert np.isnan(metrics.lagging(untimed)["AL_seconds"][0])


def test_a_token_is_stable_when_it_stays():
    assert metrics.stable([[1, 2, 3], [1, 9], [1, 2, 3, 4]]).tolist() == [0, 2, 2, 2]
    assert metrics.stable([[1], [1, 2]]).tolist() == [0, 1]
    flickers = [[1, 2], [1, 2], [1, 2], [1], [1, 2]]
    assert metrics.stable(flickers).tolist() == [0, 4]
    assert metrics.stable([[1], []]).tolist() == []


def test_average_lagging_of_wait_k_is_k():
    """Ma et al. 2019: of wait-k with |x| = |y|, AL is k."""
    for k in (1, 3, 5):
        delays = np.minimum(np.arange(10) + k, 10).astype(float)
        assert metrics.average_lagging(delays, 10, 10) == pytest.approx(k)
    assert metrics.average_lagging(np.full(4, 10.0), 10, 4) == 10  # waiting for all lags by all of it


def test_what_nobody_judged():
    carried = {
        "updates": [
            ("x", 0.0, [], 0, [A, B, END], 2),
            ("x y", 1.0, [A, B], 2, [A, B, C, END], 3),
        ]
    }
    run = trace(carried, mode="cd")
    row = metrics.by_stream(run).iloc[0]
    assert np.isnan(row["A/D"])
    assert row["A/O"] == metrics.accepted_share(run) == 2 / 7
    assert np.isnan(metrics.acceptance_rate(run))
    assert (row["accepted"], row["unreviewed"]) == (0, 2)


def test_metrics_of_cycles_count_every_update(two):
    assert metrics.output(two) == 5 + 2  # of the last updates
    assert metrics.emitted(two) == 20
    assert metrics.accepted_share(two) == 6 / 20
    assert metrics.acceptance_rate(two) == 6 / 10
    assert metrics.tokens_per_second(two) == pytest.approx(20 / (0.4 + 5 * 0.05 + 0.05))
    assert metrics.rollback_share(two) == 2 / 20
    assert metrics.on_text(two).tolist() == [1, 1, 0, 1, 1, 1, 1, 0, 0, 0]


def test_the_summary(two):
    row = metrics.summary(two).iloc[0]
    assert (row["streams"], row["updates"], row["tokenizer"]) == (2, 5, "13a")
    assert (row["NE"], row["draft_NE"], row["A/O"]) == (0.6, 0.8, 0.3)
    assert row["reused_share"] == 0.25
    assert row["chrF"] == pytest.approx(metrics.quality(two)["chrf"].median)
    assert not {"fallback_share", "draft_passes", "texts"} & set(row.index)


def test_speedup(two):
    slow = trace({"updates": [(*u[:2], [], 0, *u[4:]) for u in GROWS["updates"]]}, TURNS)
    found = metrics.speedup(two, slow)
    assert found.median == pytest.approx(np.median([14 / 8, 1.0]))  # 14 cycles took 8
    assert metrics.speedup(slow, two).median == pytest.approx(np.median([8 / 14, 1.0]))
    assert metrics.speedup(two, slow, prefill=True).median == pytest.approx(np.median([1.0 / 0.7, 1.0]))
    with pytest.raises(TraceError, match="same streams in the same order"):
        metrics.speedup(two, trace(TURNS, GROWS))


def test_the_rule_with_a_bias_is_decided_again():
    """Equation 3: with β = 0.2 a token stays while it is within 0.25 of the best."""

    def run(status, p, beta=0.2):
        n = len(status)
        recorder = Recorder(
            {"run": "r", "method": "retranslate", "parameters": {"beta": beta}, "record": "all"}
        )
        recorder.add({"cycle": 0, "source": "x"})
        recorder.add(
            {
                "cycle": 1, "node_token": [7] * n, "node_parent": range(-1, n - 1), "node_status": status,
                "node_p": p, "node_rank": [1] * n, "pred_node": range(-1, n - 1), "top_k": 1,
                "pred_top_token": [9] * n, "pred_top_p": [0.5] * n, "out_token": [9], "out_position": [0],
                "out_origin": ["correction"],
            }
        )  # fmt: skip
        return metrics.recheck(recorder.close())

    table = run(["accepted", "accepted", "rejected"], [0.26, 0.3, 0.24])
    assert set(table["rule"]) == {"biased"}
    assert table["agrees"].all()
    assert table["margin"].tolist() == pytest.approx([0.8 * 0.01, 0.8 * 0.05, -0.8 * 0.01], abs=1e-6)
    assert run(["accepted", "rejected"], [0.24, 0.26])["agrees"].tolist() == [False, False]
    assert set(run(["rejected"], [0.4], beta=0.0)["rule"]) == {"greedy"}


# --- tokenizers and quality -------------------------------------------------------------------------


def test_the_tokenizer_is_the_languages():
    def name(language):
        return metrics.tokenizer({"parameters": {"target_language": language}}).name

    japanese = "ja-mecab" if find_spec("MeCab") and find_spec("ipadic") else "char"
    assert [name(x) for x in ("German", "Simplified Chinese", "Japanese")] == ["13a", "zh", japanese]
    assert [name(x) for x in ("Thai", "Lao", "Burmese", "Khmer")] == ["char"] * 4
    assert metrics.tokenizer({}).name == "13a"
    assert metrics.tokenizer({}, "char")("ab c") == ["a", "b", "c"]
    assert metrics.tokenizer({}, "zh")("我们 go") == ["我", "们", "go"]


def test_nothing_is_downloaded(monkeypatch, tmp_path):
    import sacrebleu.utils

    monkeypatch.setattr(sacrebleu.utils, "SACREBLEU_DIR", str(tmp_path))
    with pytest.raises(ParameterError, match="the tokenizer flores101 needs"):
        metrics.tokenizer({}, "flores101")
    with pytest.raises(ParameterError, match="sacrebleu has no tokenizer 'words'"):
        metrics.tokenizer({}, "words")


def test_flores101_is_taken_where_its_file_is(monkeypatch, tmp_path):
    spm = pytest.importorskip("sentencepiece", reason="flores101 needs sentencepiece, which is not here")
    import sacrebleu.tokenizers.tokenizer_spm as theirs
    import sacrebleu.utils

    (tmp_path / "models").mkdir()
    for module in (sacrebleu.utils, theirs):
        monkeypatch.setattr(module, "SACREBLEU_DIR", str(tmp_path))
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d e"] * 9), vocab_size=12, hard_vocab_limit=False,
        model_prefix=str(tmp_path / "models" / "m"), minloglevel=9,
    )  # fmt: skip
    (tmp_path / "models" / "m.model").rename(tmp_path / "models" / "sacrebleu_tokenizer_spm.model")
    assert metrics.tokenizer({"parameters": {"target_language": "Japanese"}}).name == "flores101"
    assert "".join(metrics.tokenizer({})("a b")).replace("▁", " ").strip() == "a b"


def test_without_sacrebleu(two, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    line = r"sacrebleu is not installed: pip install -e \"\.\[quality\]\""
    for ask in (metrics.erasure, metrics.normalized_erasure, metrics.by_stream, metrics.quality):
        with pytest.raises(ParameterError, match=line):
            ask(two)
    assert metrics.normalized_erasure(two, tokenize="model") == 3 / 5
    row = metrics.summary(two).iloc[0]
    assert (row["tokenizer"], row["NE"]) == ("model", 3 / 5)
    assert np.isnan(row["BLEU"])


def test_words():
    assert words("Tom slept.  I") == ["Tom", "slept.", "I"]
    assert words("我们去 Rom です") == ["我", "们", "去", "Rom", "で", "す"]
    assert words("ที่นี่ดี ok") == ["ที่", "นี่", "ดี", "ok"], "Thai: a letter with its marks"
    assert [len(words(text)) for text in ("ນ້ຳ", "ကျား", "ភាសា")] == [2, 1, 2], "Lao, Burmese, Khmer"
    assert words("ภา\u200bษา\u200b\ufeff a\u2060ကျား") == [*"ภาษา", "a", "ကျား"], "no width, no word"
    assert words("a\u200bb \ufeffc a\x1cb") == ["a\u200bb", "\ufeffc", "a", "b"]
    assert words("") == []


def test_quality_is_sacrebleus():
    from sacrebleu import corpus_bleu, corpus_chrf

    references = ["a b d e", "a b d c", "a d e", "b d e a", "a b", "a c d e"]
    streams = [{"reference": reference, "updates": GROWS["updates"]} for reference in references]
    found = metrics.quality(trace(*streams, TURNS))  # the last one has none
    said, references = ["a b d e"] * 6, [references]
    assert found["texts"] == 6
    assert found["bleu"].median == corpus_bleu(said, references).score
    assert found["chrf"].median == corpus_chrf(said, references).score
    assert found["chrf"].low < found["chrf"].median < found["chrf"].high
    assert "tok:13a" in found["signature"]["bleu"]
    assert np.isnan(metrics.quality(trace(*streams), resamples=1)["chrf"].low)
    few = metrics.quality(trace(*streams[:5]))["bleu"]  # too few texts for an interval
    assert (few.pairs, np.isnan(few.low), np.isnan(few.median)) == (5, True, False)
    several = trace({"reference": ["x", "a b d e"], "updates": GROWS["updates"]})
    assert metrics.quality(several)["chrf"].median == 100
    with pytest.raises(TraceError, match="no text of the trace has a reference"):
        metrics.quality(trace(TURNS))


def test_only_scores_that_there_are(two):
    for scores in (["foo"], "bleu"):
        with pytest.raises(ParameterError, match="scores must be a list of bleu and chrf"):
            metrics.quality(two, scores=scores)
