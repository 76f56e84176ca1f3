"""Stepwise comparison of two traces: steps end at equal text lengths and explain the difference."""

from __future__ import annotations

import re

import numpy as np
import pytest

import specviz as sv
from specviz import metrics
from specviz.errors import TraceError
from specviz.trace import Recorder, Trace
from specviz.view import difference
from specviz.view.difference import REASONS
from traces import HOSTILE, PIECES, build, metadata, piece


def made(method: str, cycles: list[tuple[list[int], list[str], list[int]]], **more) -> Trace:
    """A run of these cycles: drafted tokens of a chain, their statuses, emitted tokens."""
    recorder = Recorder(metadata(method) | more, None, "judged", piece=piece)
    length = 0
    for number, (tokens, statuses, out) in enumerate([([], [], []), *cycles]):
        last = number == len(cycles)
        recorder.add({
            "prompt": 0, "cycle": number, "context": 7 + length, "keep": length, "start": 0.01 * number,
            "duration": 0.01, "stop": "none", "end": "length" if last else None, "node_token": tokens,
            "node_parent": np.arange(-1, len(tokens) - 1), "node_status": statuses, "out_token": out,
            "out_position": np.arange(length, length + len(out)), "out_origin": ["plain"] * len(out),
        })  # fmt: skip
        length += len(out)
    return recorder.close()


PLAIN = [([], [], [token]) for token in (2, 3, 4, 5, 6)]
DRAFTED = [
    ([2, 3], ["accepted", "accepted"], [2, 3, 4]),
    ([9, 8], ["rejected", "unjudged"], [5]),
    ([], [], [6]),
]


def test_a_step_ends_where_both_texts_have_one_length():
    shown = sv.diff(made("autoregressive", PLAIN), made("speculative", DRAFTED))
    table = shown.table
    assert table[["start", "end"]].to_numpy().tolist() == [[0, 3], [3, 4], [4, 5]]
    assert table["cycles_a"].tolist() == [3, 1, 1] and table["cycles_b"].tolist() == [1, 1, 1]
    assert table["cycle_a"].tolist() == [1, 4, 5] and table["cycle_b"].tolist() == [1, 2, 3]
    assert table["drafted_b"].tolist() == [2, 2, 0] and table["accepted_b"].tolist() == [2, 0, 0]
    assert table["why"].tolist() == ["different draft", "different draft", "same"]
    assert table["seconds_a"].tolist() == pytest.approx([0.03, 0.01, 0.01])
    assert "both drafted nothing" in table["detail"].iloc[-1]
    assert shown.reasons["steps"].tolist() == [1, 2]
    page = shown._repr_html_()
    assert re.findall(r"<tr><td>([\d–]+)</td>", page) == ["0–2", "3", "4"] and "tokens 0–2: " in page


def test_a_verdict_and_a_text_that_differ():
    lossy = [([2, 3], ["accepted", "rejected"], [2, 3]), ([], [], [4]), ([], [], [7]), ([], [], [6])]
    shown = sv.diff(made("speculative", DRAFTED), made("bild", lossy))
    why = shown.table["why"].tolist()
    assert why == ["different verdict", "different text", "different text"] and set(why) <= set(REASONS)
    assert "the texts diverge at token 3" in shown.table["detail"].iloc[1]
    assert shown.table["detail"].iloc[2].startswith("after token 3 the texts differ")


def test_a_run_that_ends_earlier_has_nothing_more():
    shown = sv.diff(made("autoregressive", PLAIN), made("speculative", DRAFTED[:1]))
    assert shown.table["cycles_b"].tolist() == [1, 0, 0] and shown.table["cycle_b"].iloc[-1] == 0
    assert "nothing more" in shown.table["detail"].iloc[1] and shown.table["why"].iloc[1] == "different text"


def test_recorded_runs_cost_what_the_metrics_say():
    traces = [sv.open(sv.example(name)).select(prompt=1) for name in ("autoregressive", "unispec")]
    shown = sv.diff(*traces)
    table = shown.table
    for trace, letter in zip(traces, "ab"):
        paid = trace.cycles[trace.cycles["cycle"] > 0]
        assert table[f"seconds_{letter}"].sum() == pytest.approx(paid["duration"].sum())
        assert table[f"cycles_{letter}"].sum() == len(paid)
        assert table[f"accepted_{letter}"].sum() == metrics.accepted(trace)
    assert "".join(table["text"]).startswith(traces[0].text[:40])
    assert "different text" not in set(table["why"]) and not shown.notes
    assert not len(sv.diff(traces[1], traces[1]).table.query("why != 'same'"))


def test_what_does_not_compare_is_one_line():
    plain = made("autoregressive", PLAIN)
    other = made("speculative", DRAFTED, prompts=[{"tokens": [2, 3]}])
    for wrong, words in (
        ((plain, other), "different prompts"),
        (
            (plain, made("speculative", DRAFTED, prompts=[{"tokens": [2, 3]}], tokenizer="x")),
            "different tokenizers",
        ),
        ((build("speculative", prompts=2), build("bild", prompts=2)), "choose one, for example diff"),
    ):
        with pytest.raises(TraceError, match=words) as caught:
            sv.diff(*wrong)
        assert "\n" not in str(caught.value)
    slower = made("speculative", DRAFTED, threads=4)
    assert "numbers of threads" in sv.diff(plain, slower).notes[0]


def test_bars_say_what_they_leave_out(monkeypatch):
    shown = sv.diff(made("autoregressive", PLAIN), made("speculative", DRAFTED))
    page = shown._repr_html_()
    assert "step by step.</figcaption>" in page and '<pattern id="sv-d-draft"' in page
    monkeypatch.setattr(difference, "MOST_STEPS", 2)
    assert "step by step, the first 2 of 3 steps.</figcaption>" in shown._repr_html_()


def test_hostile_text_is_escaped(tmp_path):
    evil = PIECES.index(HOSTILE[0])
    draft = [([evil], ["rejected"], [evil]), *PLAIN]
    shown = sv.diff(made("speculative", draft), made("bild", [([], [], [evil]), *PLAIN]))
    for page in (shown._repr_html_(), shown.to_html(tmp_path / "diff.html").read_text(encoding="utf8")):
        assert "<img" not in page and "onerror=alert(1)&gt;" in page and "<script" not in page
