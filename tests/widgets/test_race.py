"""The race's lanes are the traces' tables, aligned."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

import specviz as sv
from specviz import metrics
from specviz.errors import ParameterError, TraceError
from specviz.trace import Recorder
from specviz.widgets.columns import END
from specviz.widgets.lanes import PARTIAL, fields
from traces import EOS, FIRST_HALF, build, cycles, metadata, piece

METHODS = ("autoregressive", "speculative", "bild", "tree")


def made(run: dict, rows: list[dict]) -> sv.Trace:
    """A trace of these cycles."""
    recorder = Recorder(run, None, "judged", piece=piece)
    for row in rows:
        recorder.add(row)
    return recorder.close()


PREFILL = {"prompt": 0, "cycle": 0, "context": 0, "keep": 0, "start": 0.0, "duration": 0.01}


def plain(cycle: int, keep: int, tokens: list[int], end: str | None = None) -> dict:
    """A cycle of 10 ms without a draft."""
    n = len(tokens)
    return {
        "prompt": 0, "cycle": cycle, "context": 7 + keep, "keep": keep, "end": end, "start": 0.01 * cycle,
        "duration": 0.01, "out_position": np.arange(keep, keep + n), "out_token": tokens,
        "out_origin": ["plain"] * n, "out_p": [0.5] * n,
    }  # fmt: skip


def changed(method: str, **fields_of_run) -> sv.Trace:
    """A synthetic trace with altered metadata."""
    return made(metadata(method) | fields_of_run, cycles(method))


@pytest.fixture(scope="module")
def four():
    return [build(method) for method in METHODS]


def test_lanes_are_the_tables(four):
    (field,) = fields(four)
    assert [lane.method for lane in field.lanes] == list(METHODS)
    for lane, trace in zip(field.lanes, four):
        rows = trace.cycles[trace.cycles["cycle"] > 0]
        assert lane.blocks["cycle"].tolist() == rows["cycle"].tolist()
        for name, column in (("tokens", "emitted"), ("sent", "sent"), ("accepted", "accepted")):
            assert lane.blocks[name].tolist() == rows[column].tolist()
        width = lane.blocks["end"] - lane.blocks["begin"]
        assert np.allclose(width, rows["duration"])
        assert np.isclose(lane.finish, metrics.seconds(trace))
        assert np.isclose(lane.prefill, trace.cycles["duration"].iloc[0])
        assert lane.output == metrics.output(trace)
        # the pass that paid for each token
        cycle = lane.blocks["cycle"][lane.tokens["block"]]
        assert cycle.tolist() == trace.outputs["cycle"].tolist()
        assert lane.tokens["position"].tolist() == trace.outputs["position"].tolist()
        assert (np.isinf(lane.tokens["gone"]) == trace.outputs["kept"]).all()
        longest = np.sort(width)[::-1][:3]
        assert np.allclose(width[lane.waits], longest)


def test_speed_is_the_metrics_ratio(four):
    (field,) = fields(four)
    assert field.baseline == 0 and field.comparable and not field.notes
    table = metrics.compare(dict(zip(METHODS, four)), "autoregressive")
    assert np.allclose([field.speedup(i) for i in range(4)], table["speedup"])
    assert np.allclose([field.speedup(i, prefill=True) for i in range(4)], table["speedup_with_prefill"])
    (other,) = fields(four[1:])
    assert other.baseline == 0 and other.lanes[0].method == "speculative"


def test_a_page_counts_prompts_from_one_and_names_units(tmp_path):
    pytest.importorskip("anywidget", reason="needs the lab extra")
    pair = [build(name, prompts=4).select(prompt=[1, 3]) for name in ("autoregressive", "speculative")]
    page = sv.race(pair).to_html(tmp_path / "race.html").read_text(encoding="utf8")
    assert json.loads(page.split('id="views">')[1].split("</script>")[0])[0]["numbers"] == [2, 4]
    assert re.findall(r"<tr><td[^>]*>(\d)</td>", page) == ["2", "2", "4", "4"]
    assert all(f">{name}, s</th>" in page for name in ("prefill", "finish"))


def test_text_of_the_cells_is_the_text():
    pair = [build("autoregressive", hostile=False), build("speculative", hostile=False)]
    for lane, trace in zip(fields(pair)[0].lanes, pair):
        words = [lane.texts[i] for i in lane.tokens["text"]]
        assert "".join(w for w in words if w != END) == trace.text


def test_a_character_of_several_tokens_is_shown_by_the_one_that_completes_it():
    rows = [plain(1, 0, [FIRST_HALF, FIRST_HALF + 1]), plain(2, 2, [EOS], "eos")]
    (field,) = fields([made(metadata(), [PREFILL, *rows]), build("autoregressive")])
    lane = field.lanes[0]
    assert [lane.texts[i] for i in lane.tokens["text"]] == [PARTIAL, "猫", END]


def test_time_between_cycles_is_left_out():
    rows = cycles("speculative")
    late = [dict(row, start=row["start"] + 5.0 * row["cycle"]) for row in rows]
    plain, waited = made(metadata(), rows), made(metadata() | {"run": "late"}, late)
    (field,) = fields([plain, waited])
    assert np.isclose(field.lanes[0].finish, field.lanes[1].finish)


def test_a_token_taken_back_is_gone_from_then_on():
    rows = [PREFILL, plain(1, 0, [2, 3]), plain(2, 1, [4]), plain(3, 2, [EOS], "eos")]
    (field,) = fields([made(metadata(), rows), build("autoregressive")])
    lane = field.lanes[0]
    assert lane.tokens["gone"].tolist() == pytest.approx([np.inf, 0.03, np.inf, np.inf])
    assert lane.tokens["position"].tolist() == [0, 1, 1, 2]
    assert lane.output == 3
    assert lane.texts[lane.tokens["text"][-1]] == END


def test_where_the_texts_part():
    one = build("speculative")
    rows = cycles("speculative")
    at = next(i for i, r in enumerate(rows) if r["cycle"] == 3)
    position = int(rows[at]["out_position"][0])
    other = [dict(r) for r in rows]
    other[at]["out_token"] = [99, *list(rows[at]["out_token"])[1:]]
    (field,) = fields([one, made(metadata() | {"run": "other"}, other)])
    assert [lane.parts for lane in field.lanes] == [-1, position]
    cut = [dict(r) for r in rows[:-2]]  # truncated: it stopped, it did not diverge
    (field,) = fields([one, made(metadata() | {"run": "cut"}, cut)])
    assert field.lanes[1].parts == -1 and field.lanes[1].end == ""
    assert any("was cut off" in note for note in field.notes)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"machine": {"processor": "another", "device": "cpu", "system": "Linux"}}, "machines"),
        ({"threads": 7}, "threads"),
        ({"dtype": "bfloat16"}, "number formats"),
        ({"model": {"name": "other", "parameters": 5}}, "target models"),
        ({"backend": {"name": "torch", "threads": 1, "kernels": "fp16", "invariant": True}}, "kernels"),
    ],
)
def test_clocks_that_differ_are_never_compared_silently(change, word):
    (field,) = fields([build("autoregressive"), changed("speculative", **change)])
    assert not field.comparable
    assert np.isnan(field.speedup(1))
    assert any("Not comparable" in note and word in note for note in field.notes)


def test_a_row_of_a_batch_does_not_race_a_text_alone():
    """Its cycle times cover all rows."""
    rows = [dict(row) for row in cycles("speculative", 2)]
    begun = [row["start"] for row in rows if row["prompt"] == 0]
    for row, start in zip((row for row in rows if row["prompt"] == 1), begun):
        row["start"] = start
    together = made(metadata("speculative", prompts=2), rows)
    for field in fields([build("autoregressive", 2), together]):
        assert not field.comparable and "different batches" in field.notes[0]
    notes = sv.diff(build("autoregressive", 2), together, prompt=0).notes
    assert "different batches" in notes[0]


def test_what_cannot_race_says_so():
    one = build("speculative")
    with pytest.raises(TraceError, match="at least two runs"):
        fields([one])
    for files in (["a.parquet", "b.parquet"], "a.parquet", {"one": one, "two": "a.parquet"}):
        with pytest.raises(TraceError, match=r"not str: open the file first, .*open\('a.parquet'\)"):
            fields(files)
    with pytest.raises(TraceError, match="the same prompt"):
        fields([one, build("autoregressive", seed=3)])
    with pytest.raises(TraceError, match=r"select\(prompt"):
        fields([build("speculative", prompts=2), build("bild", prompts=3)])
    with pytest.raises(TraceError, match="recorded no times"):
        fields([one, build("autoregressive", record=None)])


def test_prompts_that_differ_are_left_out_and_said():
    first, second = metadata(prompts=2), metadata("bild", prompts=2)
    second["prompts"][1]["tokens"] = [3, 3, 3]
    pair = [made(first, cycles(prompts=2)), made(second, cycles("bild", prompts=2))]
    (field,) = fields(pair)
    assert any("1 of 2 prompts skipped" in note for note in field.notes)
    with pytest.raises(TraceError, match="the same prompt"):
        fields([trace.select(prompt=1) for trace in pair])


def test_redacted_traces_race_with_a_note():
    pair = [build("autoregressive").redact(), build("speculative").redact()]
    (field,) = fields(pair)
    assert any("only its length was compared" in note for note in field.notes)


def test_names_tell_settings_apart():
    runs = [
        metadata("speculative") | {"run": "a", "parameters": {"draft_length": 4}},
        metadata("speculative") | {"run": "b", "parameters": {"draft_length": 8}},
    ]
    traces = [made(run, cycles("speculative")) for run in runs]
    assert [lane.name for lane in fields(traces)[0].lanes] == [
        "speculative (draft_length 4)",
        "speculative (draft_length 8)",
    ]
    assert [lane.name for lane in fields({"short": traces[0], "long": traces[1]})[0].lanes] == [
        "short",
        "long",
    ]
    assert [lane.name for lane in fields([traces[0], traces[0]])[0].lanes] == [
        "speculative #1",
        "speculative #2",
    ]


def test_another_prompt_begins_at_its_start():
    pytest.importorskip("anywidget", reason="needs the lab extra")
    two = [build(name, prompts=2) for name in ("bild", "tree")]
    one = sv.race(two, prompt=1, time=0.02, playing=True)
    assert (one.time, one.playing) == (0.02, True)
    one.prompt = 0
    assert (one.time, one.playing) == (0, False)
    one.set_state(
        {"prompt": 1, "time": 0.01, "playing": True}
    )  # one message of the page, which restarts itself
    assert (one.time, one.playing) == (0.01, True)


def test_a_pace_that_is_none(four):
    pytest.importorskip("anywidget", reason="needs the lab extra")
    for pace in (0, -5, float("nan"), float("inf")):
        with pytest.raises(ParameterError, match="cannot start with these settings: pace takes a positive"):
            sv.race(four, pace=pace)
    assert sv.race(four, pace=0.5).pace == 0.5
