"""The speed protocol: arithmetic on made-up times, initial stores, and resuming after a kill."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console
from test_benches import check
from typer.testing import CliRunner

from specviz.cli import app
from specviz.cli.benching import _rounds_file
from specviz.errors import ParameterError, PromptError
from specviz.measure import report
from specviz.measure.benches import speed
from specviz.measure.benches.speed import Results, Selection
from specviz.measure.progress import Lines, bar
from specviz.models import load

ENTRIES = [
    {"id": f"{kind}-{i}", "prompt": f"{kind} number {i}", "kind": kind}
    for i in range(5)
    for kind in ("list", "story")
]
USED = (
    "autoregressive",
    "prompt_lookup",
    "prompt_lookup-tuned",
    "unispec-cold",
    "unispec-warm",
    "transformers",
    "transformers-lookup",
)


@pytest.fixture(scope="module")
def target(folders):
    return load(folders.target)


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    for name, value in (
        ("WARM_UP", 2), ("CALIBRATION", 1), ("SIZES", (1, 2, 3, 4)), ("CALIBRATION_ROUNDS", 1)
    ):  # fmt: skip
        monkeypatch.setattr(speed, name, value)


def measured(tokens, seconds, prefill=0.0, head=0, passes=None):
    return {"tokens": tokens, "seconds": seconds, "prefill": prefill, "head": head, "passes": passes}


def made_up(others=0.1):
    """Two rounds, two prompts: x writes the autoregressive texts; y's are one longer, one different."""
    rounds = [
        {
            "autoregressive": [
                measured([1, 2, 3, 4], 5.0 * slow, 1.0 * slow, passes=4), measured([5, 6], 3.0, 1.0, passes=2)
            ],
            "x": [measured([1, 2, 3, 4], 3.0, 1.0, passes=2), measured([5, 6], 2.0, 1.0, passes=2)],
            "y": [measured([1, 2, 3, 4, 9], 3.0, 1.0, head=1), measured([5, 7], 2.0, 1.0, head=1)],
        }
        for slow in (1, 2)
    ]  # fmt: skip
    return Results([{"others": others, "wall": 1.0, "measurements": each} for each in rounds])


class TestArithmetic:
    def test_ratio_of_summed_times(self):
        results = made_up()
        # Without prefill: 4 + 2 + 8 + 2 seconds against 2 + 1 + 2 + 1; with it: 5 + 3 + 10 + 3 against 10.
        assert results.ratio("x").median == pytest.approx(16 / 6)
        assert results.ratio("x", prefill=True).median == pytest.approx(21 / 10)
        assert results.ratio("autoregressive", "x").median == pytest.approx(6 / 16)
        assert results.ratio("x", texts=[1]).median == pytest.approx(4 / 2)

    def test_a_text_of_another_length_is_scaled(self):
        # y wrote 4 and 1 tokens after its one-token head; autoregressive decoding wrote 4 and 2.
        assert made_up().ratio("y").median == pytest.approx((4 + 8 + (2 + 2) / 2) / (2 + 1 + 2 + 1))

    def test_a_text_that_its_head_ends_counts_nowhere(self):
        results = made_up()
        for each in results.rounds:
            each["measurements"]["y"][1]["tokens"] = [5]
        assert results.ratio("y").median == pytest.approx((4 + 8) / (2 + 2))
        assert results.median("y", prefill=False).median == pytest.approx(3)

    def test_median_of_single_prompts(self):
        results = made_up()
        assert results.median("x", prefill=False).median == pytest.approx((12 / 4 + 4 / 2) / 2)
        assert results.median("x", prefill=True).median == pytest.approx((15 / 6 + 6 / 4) / 2)

    def test_interval_of_a_kind_is_over_prompts_and_rounds(self):
        rounds = made_up().rounds
        few = Results(rounds * 3).ratio_of_few("x", [0])
        assert few.pairs == 6
        assert few.median == pytest.approx(3)
        assert 2 <= few.low < 3 < few.high <= 4
        assert np.isnan(Results(rounds).ratio_of_few("x", [0]).low)
        assert np.isnan(Results(rounds * 3).ratio("x").low)  # two prompts are too few

    def test_speed_and_tau(self):
        results = made_up()
        assert results.speed("x", prefill=False) == pytest.approx(12 / 6)
        assert results.speed("x", prefill=True) == pytest.approx(12 / 10)
        assert results.speed("y", prefill=False) == pytest.approx(10 / 6)
        assert results.tau("x") == pytest.approx(12 / 8)
        assert results.tau("x", [0]) == 2
        assert results.tau("y") is None

    def test_same_texts_and_loops(self):
        results = made_up()
        assert results.same("x") == [True, True]
        assert results.same("y") == [False, False]
        results.rounds[1]["measurements"]["x"][0]["tokens"] = [7] * 22
        assert results.same("x") == [False, True]
        assert results.loops("x") == [True, False]
        row = speed._row(results, speed.Contender("x"))
        assert (row["same"], row["equal"], row["loops"]) == ("1/2", 0.5, 0.5)
        assert row["ratio_without"].median == pytest.approx(4 / 2)  # only the second prompt

    @pytest.mark.parametrize(("tokens", "expected"), [
        ([7] * 22, True), ([7] * 21, False), (list(range(30)) * 2 + list(range(20)), True),
        (list(range(30)) * 2 + list(range(19)), False), (list(range(96)), False), ([], False),
    ])  # fmt: skip
    def test_loops(self, tokens, expected):
        assert speed.loops(tokens) is expected

    def test_bars_turn_on_what_they_name(self):
        def bars(**seconds):
            names = dict.fromkeys(
                ("autoregressive", "prompt_lookup", "unispec-warm", "transformers", "transformers-lookup"),
                1.0,
            )
            measurements = {
                name: [measured([1, 2], taken, passes=2)] * 2 for name, taken in (names | seconds).items()
            }
            results = Results([{"others": 0.0, "wall": 1.0, "measurements": measurements}] * 3)
            contenders, _ = speed.lineup(Fake(), list(names), {"unispec": 4})
            by_kind = list(speed._by_kind(results, contenders, [{"kind": "a"}, {"kind": "b"}]))
            for row in by_kind:
                low = row["ratio"].median - 0.2
                row["ratio"] = report.Estimate(row["ratio"].median, low, low + 0.4, 6)
            found, unjudged = speed._bars(results, contenders, by_kind)
            assert not unjudged
            return {bar.name: bar for bar in found}

        # Each time is a multiple of autoregressive decoding's.
        good = bars(**{"prompt_lookup": 1 / 1.4, "unispec-warm": 1 / 1.5, "transformers": 1.2,
                       "transformers-lookup": 1.2})  # fmt: skip
        held = {name: bar.held for name, bar in good.items()}
        assert sum(held.values()) == len(held) == 8
        assert str(good["prompt_lookup over autoregressive"]).endswith("met; goal 1.7: missed")
        assert good["unispec-warm: lower end of the worst kind's interval (a)"].value == pytest.approx(1.3)
        slow = bars(**{"prompt_lookup": 1 / 1.05, "unispec-warm": 1 / 1.4, "transformers": 1.05,
                       "transformers-lookup": 1.5})  # fmt: skip
        missed = [name for name, bar in slow.items() if not bar.held]
        assert missed == [
            "autoregressive over transformers", "prompt_lookup over autoregressive",
            "unispec-warm over autoregressive",
            "prompt_lookup: lower end of the worst kind's interval (a)",
        ]  # fmt: skip

    def test_the_tables_fit_80_columns(self):
        estimate = report.Estimate(1.234, 1.111, 1.432, 24)
        for columns in (speed.COLUMNS, speed.PREFILL, speed.TEXTS, speed.KINDS):
            row = {key: 12.3 if form else estimate for key, _, form in columns}
            row |= {"contender": "prompt_lookup-tuned", "shown": "summarization", "g": 24, "texts": 4}
            console = Console(width=80, file=io.StringIO())
            report.Part("title", columns, [row | {"same": "24/24"}]).print(console)
            lines = console.file.getvalue().splitlines()
            assert max(map(len, lines)) <= 80
            assert any("prompt_lookup-tuned" in line and "1.43]" in line for line in lines)


class Fake:
    """A model that every engine but llama.cpp can run."""

    net = SimpleNamespace(generate=None)


class TestLoad:
    def test_quiet_is_what_stays_below_the_limit_in_every_round(self):
        assert speed.quietness([0.1, 0.3]) == "quiet (other work took 0.30 of a core)"
        assert speed.quietness([0.1, 0.7, 0.0]) == "NOT quiet (other work took 0.70 of a core)"
        assert "unknown load" in speed.quietness([0.1, None])
        assert "unknown load" in speed.quietness([])

    def test_other_work_is_all_but_our_own(self, monkeypatch):
        now = {"wall": 10.0, "busy": 100.0, "own": 5.0}
        monkeypatch.setattr(speed.time, "perf_counter", lambda: now["wall"])
        monkeypatch.setattr(speed.time, "process_time", lambda: now["own"])
        monkeypatch.setattr(speed, "_busy", lambda: now["busy"])
        load = speed.Load()
        now.update(wall=20.0, busy=116.0, own=14.0)
        assert load.others() == pytest.approx(0.7)
        now.update(busy=108.0)  # clocks of different resolution
        assert load.others() == 0
        now.update(busy=None)
        assert load.others() is None

    def test_the_system_s_count(self, tmp_path, monkeypatch):
        monkeypatch.setattr(speed.os, "sysconf", lambda name: 100)
        file = tmp_path / "stat"
        file.write_text("cpu  100 200 300 99999 88888 10 20 70 5 5\ncpu0 1 1 1 1 1 1 1 1 1 1\n")
        assert speed._busy(file) == pytest.approx(7.0)  # not idle or iowait; user already includes guests
        file.write_text("what else\n")
        assert speed._busy(file) is None
        assert speed._busy(tmp_path / "none") is None


class TestSelection:
    def test_groups_are_apart_and_always_alike(self):
        chosen = Selection.of(ENTRIES, 4)
        assert chosen == Selection.of(ENTRIES, 4)
        names = [[e["id"] for e in group] for group in (chosen.timed, chosen.warm, chosen.calibration)]
        assert names == [["list-0", "story-0", "list-1", "story-1"], ["list-2", "story-2"], ["list-3"]]

    def test_ids_set_the_order(self):
        chosen = Selection.of(ENTRIES, 24, ["story-3", "list-0"])
        assert [e["id"] for e in chosen.timed] == ["story-3", "list-0"]
        assert [e["id"] for e in chosen.warm] == ["story-0", "list-1"]
        assert [e["id"] for e in Selection.of(ENTRIES, 1, ["story-3", "list-0"]).timed] == ["story-3"]
        with pytest.raises(PromptError, match="no prompt has the id 86"):
            Selection.of(ENTRIES, 24, ["list-0", "86"])

    def test_no_text_stands_in_two_groups_and_none_is_too_long(self):
        twins = [{**entry, "id": "twin", "prompt": ENTRIES[0]["prompt"]} for entry in ENTRIES[2:3]]
        chosen = Selection.of([*ENTRIES[:2], *twins, *ENTRIES[2:]], 2, None, lambda e: e["id"] != "list-1")
        assert [e["id"] for e in chosen.timed] == ["list-0", "story-0"]
        assert [e["id"] for e in chosen.warm + chosen.calibration] == ["story-1", "story-2", "list-2"]

    def test_a_list_of_questions(self, tmp_path):
        questions, ids = tmp_path / "q.jsonl", tmp_path / "ids.json"
        questions.write_text('{"question_id": 86, "turns": ["What?"]}\n')
        digest = hashlib.sha256(questions.read_bytes()).hexdigest()
        ids.write_text(json.dumps({"questions": [{"question_id": 86, "kind": "qa"}], "sha256": digest}))
        assert speed.chosen_ids(ids, str(questions)) == ["86"]
        assert speed.chosen_ids(ids, f"spec-bench={questions}") == ["86"]
        with pytest.raises(PromptError, match="name that file with --prompts"):
            speed.chosen_ids(ids, "town")
        questions.write_text("another\n")
        with pytest.raises(PromptError, match="SHA-256"):
            speed.chosen_ids(ids, str(questions))
        for content in (
            "[]",
            "{",
            '{"questions": []}',
            '{"questions": [{"question_id": 1}, {"question_id": 1}]}',
        ):
            ids.write_text(content)
            with pytest.raises(PromptError, match=r"ids\.json"):
                speed.chosen_ids(ids, "town")
        with pytest.raises(PromptError, match="cannot read"):
            speed.chosen_ids(tmp_path / "none.json", "town")


class TestLineup:
    def test_who_is_left_out_and_why(self):
        contenders, lacking = speed.lineup(Fake(), None, {"unispec": 4, "prompt_lookup": 5}, [8])
        assert [c.label for c in contenders] == [
            "autoregressive", "prompt_lookup", "prompt_lookup-tuned", "unispec-cold", "unispec-cold-8",
            "unispec-warm", "unispec-warm-8", "transformers", "transformers-lookup",
        ]  # fmt: skip
        assert [c.g for c in contenders if c.method == "unispec"] == [4, 8, 4, 8]
        assert [c.g for c in contenders if c.method == "prompt_lookup"] == [None, 5]  # the default first
        assert list(lacking) == ["llama.cpp"]
        assert [c.label for c in speed.lineup(Fake(), ["spectra"])[0]] == ["autoregressive", "spectra"]
        with pytest.raises(ParameterError, match=r"no contender 'unispek-cold'.*unispec-cold"):
            speed.lineup(Fake(), ["unispek-cold"])
        with pytest.raises(ParameterError, match=r"llama\.cpp cannot run here"):
            speed.lineup(Fake(), ["llama.cpp"])


def test_bench(target):
    ticks = []
    result = speed.bench(
        target, ENTRIES, number=6, max_new_tokens=12, rounds=2, size=[3],
        tick=lambda *given: ticks.append(given),
    )  # fmt: skip
    everything = result.as_dict()
    rounds = everything["measurements"]
    result.measurements = []
    data = check(result, bars=5 + 6 + 3)
    assert [row["contender"] for row in data["rows"]] == [
        "autoregressive", "prompt_lookup", "prompt_lookup-tuned", "unispec-cold", "unispec-cold-3",
        "unispec-warm", "unispec-warm-3", "transformers", "transformers-lookup",
    ]  # fmt: skip
    assert {row["same"] for row in data["rows"]} == {"6/6"}
    assert data["rows"][0]["tau"] == 1
    calibrated = data["setting"]["calibration"]
    assert list(calibrated) == ["prompt_lookup", "unispec"]
    assert {row["g"] for row in data["rows"] if row["g"] not in (None, 3)} == {
        each["g"] for each in calibrated.values()
    } - {3}
    assert data["setting"]["quiet"] == speed.quietness(data["setting"]["others"])
    assert [len(group) for group in data["setting"]["questions"].values()] == [6, 2, 1]
    assert ticks[-1][0] == ticks[-1][1] == 7 * 1 + 2 * 2 + 9 * 6 * 2
    assert len(rounds) == 2
    for each in rounds:
        for name, texts in each["measurements"].items():
            for text in texts:
                assert 0 < text["prefill"] < text["seconds"], name
                if name in ("autoregressive", "transformers"):
                    assert text["passes"] == len(text["tokens"]) - text["head"]
                assert (text["head"] > 0) == name.startswith("transformers")
    kinds = data["parts"][2]["rows"]
    assert {(row["kind"], row["texts"]) for row in kinds} == {("list", 3), ("story", 3)}
    pairs = {row["ratio"]["pairs"] for row in kinds if row["contender"] == "prompt_lookup"}
    assert pairs == {6}  # three prompts in two rounds


def test_prefill_apart_is_all_but_cycle_0(target, monkeypatch):
    """The clock ticks once per reading, so cycle 0 ends one tick after the start."""
    monkeypatch.setattr(speed.timing, "clock_of", lambda model: (iter(range(999)).__next__, "ticks"))
    contenders, _ = speed.lineup(target, ["autoregressive"])
    stage = speed.Stage(target, contenders, [target.encode("Hello")], [], 5)
    (text,) = speed.one_round(stage, 0, lambda label: None)["measurements"]["autoregressive"]
    assert (text["seconds"], text["prefill"]) == (3, 1)  # start, start, cycle 0, end


def test_who_begins_differs_from_text_to_text_and_from_round_to_round(target):
    contenders, _ = speed.lineup(target, ["prompt_lookup", "transformers"])
    texts = [target.encode(entry["prompt"]) for entry in ENTRIES[:2]]
    stage = speed.Stage(target, contenders, texts, texts[:1], 2)
    order = []
    for turn in range(3):
        speed.one_round(stage, turn, order.append)
    assert [name[0] for name in order[::3]] == ["a", "p", "p", "t", "t", "a"]
    assert all(len(set(order[i : i + 3])) == 3 for i in range(0, len(order), 3))


class TestStores:
    def test_no_store_sees_a_prompt_twice(self, target, monkeypatch):
        """Watch each of our runs: its prompts, and its store's contents beforehand."""
        runs = []

        class Watched(speed.Run):
            def __init__(self, model, prompts, method, **options):
                super().__init__(model, prompts, method, **options)
                if method.name == "unispec":
                    before = {name: array.copy() for name, array in method.store.arrays().items()}
                    runs.append((method, [tuple(p["prompt"]) for p in prompts], before))

        monkeypatch.setattr(speed, "Run", Watched)
        speed.bench(target, ENTRIES, number=3, max_new_tokens=8, rounds=2, size=["unispec=2"], only=USED[3:5])
        chosen = Selection.of(ENTRIES, 3)
        timed, warm = (
            [tuple(target.encode(e["prompt"])) for e in group] for group in (chosen.timed, chosen.warm)
        )
        assert [prompts for _, prompts, _ in runs] == [warm[:1], warm, timed, timed, timed, timed]
        assert len({id(method) for method, _, _ in runs}) == 6
        empty = [not (before["tokens"] >= 0).any() for *_, before in runs]
        assert empty == [True, True, True, False, True, False]
        filled = runs[1][0].store.arrays()
        for *_, before in (runs[3], runs[5]):  # both rounds start with the store that the other prompts left
            assert all(np.array_equal(before[name], filled[name]) for name in filled)
        grown = runs[3][0].store.arrays()
        assert not all(np.array_equal(grown[name], filled[name]) for name in filled)

    def test_calibration_sees_other_prompts_alone(self, target, monkeypatch):
        given = []

        def watched(model, method, prompts, sizes, *, warm_up, **options):
            given.append((prompts, warm_up))
            return calibrate(model, method, prompts, sizes, warm_up=warm_up, **options)

        calibrate = speed.calibrate
        monkeypatch.setattr(speed, "calibrate", watched)
        speed.bench(
            target,
            ENTRIES,
            number=3,
            max_new_tokens=6,
            rounds=1,
            only=["unispec-cold", "prompt_lookup-tuned"],
        )
        chosen = Selection.of(ENTRIES, 3)
        assert given == [(chosen.calibration, chosen.warm)] * 2

    def test_too_few_other_prompts(self, target):
        with pytest.raises(
            PromptError, match="besides 9 timed prompts the suite has 1 more, and 3 are needed"
        ):
            speed.bench(target, ENTRIES, number=9)
        speed.bench(target, ENTRIES[:1], number=1, max_new_tokens=2, rounds=1, only=["prompt_lookup"])

    def test_sizes_are_unispec_s(self, target):
        with pytest.raises(ParameterError, match="unispec=NUMBER"):
            speed.bench(target, ENTRIES, size=["spectra=3"])
        with pytest.raises(ParameterError, match="draft_length"):
            speed.bench(target, ENTRIES, size=["prompt_lookup=65"])
        with pytest.raises(ParameterError, match="draft_size"):
            speed.bench(target, ENTRIES, size=[0])
        for size in ([16], ["unispec=16"]):
            with pytest.raises(
                ParameterError, match="needs the contender unispec-cold or unispec-warm: add it"
            ):
                speed.bench(target, ENTRIES, size=size, only=["prompt_lookup"])
        with pytest.raises(ParameterError, match="needs the contender prompt_lookup-tuned"):
            speed.bench(target, ENTRIES, size=["prompt_lookup=8"], only=["prompt_lookup", "unispec-warm"])
        assert speed.checked_sizes(["3", 3, "unispec=4"]) == ([3], {"unispec": 4})

    def test_a_prompt_without_a_name_is_named_by_its_number(self, target):
        with pytest.raises(PromptError, match="prompt 2 has 9 tokens, and 155 new ones"):
            speed.encoded(target, [{"prompt": [3]}, {"prompt": [3] * 9}], 155)

    def test_a_prompt_without_room(self, target):
        with pytest.raises(PromptError, match=r"prompt list-0 has .* context of 160"):
            speed.bench(target, ENTRIES, number=1, max_new_tokens=159)


OPTIONS = {
    "number": 2,
    "max_new_tokens": 6,
    "rounds": 2,
    "only": ["prompt_lookup", "unispec-cold", "unispec-warm"],
}


class TestGoingOn:
    def test_a_killed_bench_goes_on_after_its_last_round(self, target, tmp_path, monkeypatch):
        kept = tmp_path / "out.json.rounds"
        first = 3 * 1 + 2 + 4 * 2  # warm-up, filling a store, a round of two texts

        def tick(done, of, what):
            if not what.startswith("calibrating") and done > first:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt, match="1 of 2 rounds are kept"):
            speed.bench(target, ENTRIES, rounds_file=kept, tick=tick, **OPTIONS)
        before = json.loads(kept.read_text())
        assert len(before["rounds"]) == 1
        monkeypatch.setattr(speed, "calibrate", None)  # the draft size is saved, too
        turns = []
        one_round = speed.one_round

        def watched(stage, turn, tick):
            turns.append(turn)
            return one_round(stage, turn, tick)

        monkeypatch.setattr(speed, "one_round", watched)
        result = speed.bench(target, ENTRIES, rounds_file=kept, **OPTIONS)
        assert turns == [1]
        assert result.measurements[0] == before["rounds"][0]
        assert {row["same"] for row in result.rows} == {"2/2"}

    def test_rounds_file_something_else_are_refused(self, target, tmp_path):
        kept = tmp_path / "rounds"
        speed.bench(target, ENTRIES, rounds_file=kept, **OPTIONS)
        with pytest.raises(ParameterError, match=r"rounds of another measurement \(other max_new_tokens\)"):
            speed.bench(target, ENTRIES, rounds_file=kept, **OPTIONS | {"max_new_tokens": 7})
        kept.write_text("{}")
        with pytest.raises(ParameterError, match="delete it"):
            speed.bench(target, ENTRIES, rounds_file=kept, **OPTIONS)


def test_llama_cpp_decodes_the_same_file(tmp_path):
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    from specviz.models.llamacpp import write_gguf

    model = load(f"gguf:{write_gguf('town-draft', tmp_path / 'x.gguf', 'f32').path}")
    with pytest.raises(ParameterError, match="transformers cannot run here"):
        speed.bench(model, ENTRIES, only=["transformers"])
    only = ["prompt_lookup", "llama.cpp", "llama.cpp-lookup"]
    result = speed.bench(model, ENTRIES, number=2, max_new_tokens=12, rounds=1, only=only)
    assert [row["same"] for row in result.rows] == ["2/2"] * 4
    assert result.setting["versions"]["llama-cpp-python"]
    texts = result.measurements[0]["measurements"]["llama.cpp"]
    assert all(text["head"] == 1 and 0 < text["prefill"] < text["seconds"] for text in texts)
    assert any(
        "best exact method relative to the plain decoding of llama.cpp" in note for note in result.notes
    )


def test_the_command(folders, tmp_path):
    questions, ids, out = tmp_path / "q.jsonl", tmp_path / "ids.json", tmp_path / "out.json"
    lines = [{"question_id": i, "category": "qa", "turns": [f"Question {i}"]} for i in range(5)]
    questions.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ids.write_text(json.dumps({"questions": [{"question_id": 3}, {"question_id": 1}]}))
    given = ["bench", "speed", "-m", str(folders.target), "--prompts", str(questions), "--ids", str(ids)]
    given += ["-n", "6", "--rounds", "1", "--only", "unispec-warm", "--size", "unispec=2", "--size", "3"]
    result = CliRunner().invoke(app, [*given, "--json", str(out)])
    assert result.exit_code in (0, 1), result.output
    data = json.loads(out.read_text())
    assert [q["id"] for q in data["setting"]["questions"]["timed"]] == ["3", "1"]
    assert [(r["contender"], r["g"]) for r in data["rows"]] == [
        ("autoregressive", None), ("unispec-warm", 2), ("unispec-warm-3", 3),
    ]  # fmt: skip
    assert data["setting"]["calibration"] == {}
    assert len(data["measurements"]) == 1
    assert not _rounds_file(out).exists()


def test_a_log_gets_a_line_a_minute(capsys):
    now = [0.0]
    tell = Lines(clock=lambda: now[0])
    for done in range(5):
        tell(done, 5, "x")
        now[0] += 30
    tell(0, 9, "y")
    now[0] += 30
    tell(3, 9, "y")
    tell(0, 9, "z")  # another stage with the same number of steps
    assert capsys.readouterr().err.splitlines() == [
        "specviz: 2 of 5, 2 min left (x)", "specviz: 4 of 5, 0 min left (x)",
        "specviz: 3 of 9, 1 min left (y)",
    ]  # fmt: skip


def test_where_no_bar_can_be_shown_there_are_lines(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with bar() as tell:
        assert isinstance(tell, Lines)
