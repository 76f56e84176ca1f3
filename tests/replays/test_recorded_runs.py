"""Recorded runs: writing, reading without torch, damage, and comparison."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from benchmarks.recording import write_replays
from rich.console import Console

import specviz as sv
from specviz.errors import ModelError, ParameterError, SpecvizError, TraceError
from specviz.methods import find
from specviz.methods.autoregressive import Autoregressive
from specviz.paths import folder
from specviz.replays import comparing, kits, recorded, recordings, running
from specviz.replays.published import claims
from specviz.replays.recorded import results
from specviz.replays.sources.shared import again


class Echo(sv.Method):
    """Draft the beginning of the text."""

    def draft(self, left):
        return sv.Draft.chain(self.session.text[: min(4, left - 1)])


@pytest.fixture(scope="module")
def suite():
    return sv.suite("town", limit=7)


@pytest.fixture(scope="module")
def run(tmp_path_factory, suite):
    """A run of two methods and the control, and its recording."""
    path = tmp_path_factory.mktemp("runs")
    methods = ["prompt_lookup", {"method": again(Autoregressive)}]
    with pytest.MonkeyPatch.context() as patch:  # other kernels are fastest on some machines
        patch.setenv("SPECVIZ_KERNELS", "plain")
        results = sv.run(methods=methods, suites=[suite], warm_up=0, max_new_tokens=12, out=path / "own")
    return results, recorded.write(results, path / "own.parquet", "own")


def test_the_page_of_the_runs_lists_every_column():
    page = (folder("runs") / "README.md").read_text("utf8")
    for path in folder("runs").glob("*.parquet"):
        named = [name for name in pq.read_schema(path).names if not name.startswith("here_")]
        assert named and not [name for name in named if f"`{name}`" not in page], path.name


def test_a_recorded_run_has_the_tables_of_its_folder_and_no_text(run):
    results, path = run
    kept = sv.results(path)
    assert kept.complete and kept.name == "own" and path.stat().st_size < 60_000
    columns = [name for name in results.table() if name != "device_memory"]
    assert kept.table()[columns].equals(results.table()[columns])
    assert kept.environments == results.environments and "processor" in kept.places()[0] + "processor"
    content = path.read_bytes()
    table = pq.read_table(path)
    texts = {text for row in results.records() for text in row["text"] if len(text) > 12}
    assert texts and not any(text in str(table.to_pylist()) for text in texts) and b'"text"' not in content
    with pytest.raises(ParameterError, match="keeps no prompts"):
        kept.prompts("town")
    with pytest.raises(TraceError, match="keeps no traces"):
        kept.trace(0, 0)


def test_reading_one_loads_no_torch(run):
    code = f"import specviz as sv, sys; sv.results({str(run[1])!r}).shown(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_only_prompts_that_every_contender_finished_are_kept(run, tmp_path, suite):
    results, _ = run
    shutil.copytree(results.path, tmp_path / "half")
    (tmp_path / "half" / "rows" / "c001-r0-p0002.json").unlink()
    for file in (tmp_path / "half" / "rows").glob("c000-*"):  # measured before padding was counted separately
        row = json.loads(file.read_text())
        assert row.pop("written") == row["tokens"]
        file.write_text(json.dumps(row))
    half = recorded.results(recorded.write(sv.results(tmp_path / "half"), tmp_path / "h.parquet", "own"))
    assert all(row["written"] == row["tokens"] for row in half.records())
    assert {row["prompt"] for row in half.records()} == set(range(len(suite))) - {2}
    assert len(half.missing) == len(half.cells)


def test_damaged_files_end_in_one_line(run, tmp_path):
    content = run[1].read_bytes()
    table = pq.read_table(run[1])
    about = json.loads(table.schema.metadata[b"specviz"])

    def changed(**more):
        file = tmp_path / "x.parquet"
        pq.write_table(table.replace_schema_metadata({b"specviz": json.dumps(about | more).encode()}), file)
        return file

    short = tmp_path / "short.parquet"
    short.write_bytes(content[: len(content) // 2])
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"a": [1]}), other)
    odd = tmp_path / "odd.parquet"
    rows = [row | {"digest": "none"} for row in table.to_pylist()]
    pq.write_table(pa.Table.from_pylist(rows).replace_schema_metadata(table.schema.metadata), odd)
    cases = [short, other, odd, tmp_path / "gone.parquet"]
    cases = [lambda f=f: f for f in cases]
    cases += [lambda: changed(schema=9), lambda: changed(environments=3), lambda: changed(plan={})]
    for make in cases:
        with pytest.raises(TraceError) as error:
            sv.results(make())
        assert "\n" not in str(error.value)


def test_a_method_of_ones_own_is_compared_prompt_by_prompt(run, suite):
    made = sv.compare(Echo, run[1], suite=suite)
    (row,) = (each for each in made.rows if each["contender"] == "prompt_lookup")
    assert len(made.rows) == 1 and row["ratio"] > 0 and 0 <= row["p"] <= 1 and row["tau"] >= 1
    assert made.method["same"] == made.method["of"] == len(suite), "exact: token for token the recorded text"
    assert any("prompts of own.parquet" in note for note in made.notes)
    assert list(made.frame()["contender"]) == ["prompt_lookup"]


def test_the_recorded_method_itself_is_not_clearly_other(run, suite):
    made = sv.compare("prompt_lookup", run[1], suite=suite)
    (row,) = made.rows
    assert row["tau"] == pytest.approx(made.method["tau"]) and not row["clear"]


def rewritten(file, run, change):
    """Write the recorded run with its metadata changed."""
    table = pq.read_table(run[1])
    about = json.dumps(change(json.loads(table.schema.metadata[b"specviz"]))).encode()
    pq.write_table(table.replace_schema_metadata({b"specviz": about}), file)
    return file


def elsewhere(file, run, **changes):
    """Write the recorded run as another machine would have written it."""

    def change(about):
        ((key, place),) = about["environments"].items()
        return about | {"environments": {key: place | changes}}

    return rewritten(file, run, change)


def test_the_home_folder_is_written_out(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "cwd/~").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "cwd")  # where a folder called ~ is refused, too, before a replay begins
    for place in (tmp_path, tmp_path / "cwd/~"):
        (place / "run.json").write_text("{}")
    for work in (lambda: sv.replay("unispec/table3", quick=True, out="~"), lambda: running.replay_all("~")):
        with pytest.raises(SpecvizError, match=f"^{tmp_path} holds another kind of result"):
            work()
    with pytest.raises(ParameterError, match=f"^{tmp_path} is not empty"):
        kits.write("~", [])
    places = []
    monkeypatch.setattr("specviz.measure.running.run", lambda plan, out, tick: places.append(out))
    monkeypatch.setattr(recordings, "write", lambda results, path, *_, **__: places.append(path))
    with pytest.raises(TraceError, match=f"^{tmp_path}/none holds no recorded runs"):
        sv.compare("prompt_lookup", "~/none")
    recordings.record("town-languages", "~/runs")
    assert places == [tmp_path / "runs/town-languages", tmp_path / "runs/town-languages.parquet"]


def test_padding_of_a_canvas_is_no_token():
    """Neither τ nor the compared totals count padding, so τ is the quotient of the totals."""
    rows = [
        {"round": 0, "prompt": i, "error": None, "steps": 4, "tokens": 64, "written": 20, "timed": True,
         "prefill_seconds": 1.0, "decode_seconds": 1.0} for i in range(3)
    ]  # fmt: skip
    assert comparing.tau(rows, rows) == 5
    written, steps = comparing.totals(rows, value=comparing.steps_of)
    assert (written / steps).tolist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dtype", "bfloat16"), ("model", {"name": "town", "weights": "0" * 16}), ("kernels", "fp16"),
        ("kernels", "int8"),
    ],
)  # fmt: skip
def test_what_writes_other_texts_is_refused(run, suite, tmp_path, name, value):
    file = elsewhere(tmp_path / "x.parquet", run, **{name: value})
    with pytest.raises(ParameterError, match="record it here") as error:
        comparing.compare("prompt_lookup", file, suite=suite, model=sv.load("town", kernels="plain"))
    assert f"({'weights' if name == 'model' else name} " in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("processor", "Abacus"), ("threads", 7), ("device", "cuda:0"), ("kernels", "onednn-unpadded")],
)
def test_another_machine_is_compared_by_tokens_per_cycle(run, suite, tmp_path, name, value):
    file = elsewhere(tmp_path / "x.parquet", run, **{name: value})
    model = sv.load("town", kernels="plain")
    made = sv.compare("prompt_lookup", file, suite=suite, model=model)
    (row,) = made.rows
    assert made.by == "τ" and made.method["same"] == made.method["of"] == len(suite)
    assert (row["ratio"], row["low"], row["high"], row["clear"]) == (1, 1, 1, False), "the same drafts"
    assert any(f"tokens per cycle are compared, and no times ({name} " in note for note in made.notes)
    console = Console(width=120, file=io.StringIO())
    made.show(console)
    assert "this method's τ over its" in console.file.getvalue()


def test_fewer_tokens_per_cycle_are_a_ratio_below_one(run, suite, tmp_path):
    file = elsewhere(tmp_path / "x.parquet", run, processor="Abacus")
    model = sv.load("town", kernels="plain")
    fewer = sv.compare("prompt_lookup", file, suite=suite, model=model, draft_length=1)
    (less,) = fewer.rows
    assert less["ratio"] == pytest.approx(fewer.method["tau"] / less["tau"]) and less["ratio"] < 1


def test_other_prompts_and_methods_that_cannot_be_compared_are_refused(run, suite, tmp_path):
    with pytest.raises(ParameterError, match="differ from those"):
        comparing.compare("prompt_lookup", run[1], suite=sv.suite("demo"))
    with pytest.raises(ParameterError, match="compares with autoregressive"):
        comparing.compare("ssd", run[1], suite=suite)
    with pytest.raises(SpecvizError, match="holds no recorded run"):
        comparing.compare("prompt_lookup", tmp_path / "none")


def test_a_canvas_method_is_compared_under_the_recorded_reference_s_own_settings():
    """The reference is decoded here again: with another cache it would be another one."""
    says = (
        "^town-diffusion.parquet compares with stepwise cache=dual whole=True, and ssd here with stepwise: "
        "give cache='dual', whole=True$"
    )
    for run in (None, "town-diffusion"):
        with pytest.raises(ParameterError, match=says if run else says[1:-1]):
            sv.compare("ssd", run=run)
    with pytest.raises(ParameterError, match=r"here with stepwise cache=dual: give whole=True$"):
        sv.compare("ssd", run="town-diffusion", cache="dual")
    kind, path = find("ssd"), folder("runs")
    values = {"cache": "dual", "whole": True, "draft_length": 2}
    for given in (values, values | {"block": 8, "refresh": 8}):
        assert comparing.chosen(path, None, kind, given).name == "town-diffusion"
    stream = type("Stream", (find("retranslate"),), {"name": "stream"})
    bare = type("Bare", (kind,), {"name": "bare", "parameters": kind.parameters[:1]})
    with pytest.raises(ParameterError, match=r"stepwise: add cache, whole to the parameters of its class$"):
        sv.compare(bare, run="town-diffusion")
    with pytest.raises(ParameterError, match=r"give target_language='[^']+'$"):
        sv.compare(stream, run="bergamot-streams", target_language="Japanese")
    with pytest.raises(ParameterError, match=r"^ssd has no parameter 'cash'"):
        sv.compare("ssd", cash="dual")


def test_a_run_whose_prompts_must_be_fetched_is_taken_if_it_is_the_only_one(tmp_path):
    kind, name = find("unispec"), "smollm2-questions"
    shutil.copy(folder("runs") / f"{name}.parquet", tmp_path)
    available = {"smollm2", "town"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specviz.models.loading.find", lambda model: available)
        assert comparing.chosen(tmp_path, None, kind, {}).name == name
        shutil.copy(folder("runs") / "town-languages.parquet", tmp_path)
        assert comparing.chosen(tmp_path, None, kind, {}).name == "town-languages"


def test_only_rows_decoded_in_one_sitting_are_compared_by_their_times():
    """A ratio took a method's row of one day and its reference's of another."""

    def rows(cell, seconds, sitting="a"):
        return [
            {"cell": cell, "round": 0, "prompt": i, "error": None, "steps": 4, "tokens": 8, "timed": True,
             "prefill_seconds": 0.0, "decode_seconds": seconds, "sitting": sitting} for i in range(8)
        ]  # fmt: skip

    twin, base = rows(1, 1.0), rows(0, 1.0)
    twin[3] |= {"sitting": "b", "decode_seconds": 50.0}
    cells = [{"cell": 0, "against": 0, "method": "autoregressive"},
             {"cell": 1, "against": 0, "method": "autoregressive_again"}]  # fmt: skip
    results = SimpleNamespace(cells=cells, records=lambda: [*base, *twin])
    assert comparing.control(results) == 0
    pairs = comparing.in_pairs(twin, base)
    assert [row["prompt"] for row in pairs[0]] == [row["prompt"] for row in pairs[1]] == [0, 1, 2, 4, 5, 6, 7]
    assert len(comparing.totals(twin, base, value=comparing.steps_of)[0]) == 8, "counts have no clock"


@pytest.mark.parametrize(
    ("name", "value"),
    [("models", []), ("prompts", 1.5), ("warm_up", None), ("max_new_tokens", "12"), ("threads", [1])],
)
def test_a_recording_that_cannot_be_decoded_again_says_what_is_wrong(run, suite, tmp_path, name, value):
    def change(about):
        return about | {"plan": about["plan"] | {name: value}}

    file = rewritten(tmp_path / "x.parquet", run, change)
    with pytest.raises(TraceError, match=rf"x\.parquet, plan\.{name} .*: the file is damaged"):
        comparing.compare("prompt_lookup", file, suite=suite)


def test_a_recording_without_models_environments_reference_or_rows_is_refused(run, suite, tmp_path):
    def without_models(about):
        del about["plan"]["models"]
        return about

    def without_a_reference(about):
        for cell, other in zip(about["plan"]["cells"], (1, 0, 0)):
            cell["against"] = other
        return about

    for change, wrong in (
        (without_models, "plan lacks 'models'"),
        (lambda about: about | {"environments": {}}, "environments is too short"),
        (without_a_reference, "has no reference"),
    ):
        file = rewritten(tmp_path / "x.parquet", run, change)
        with pytest.raises(TraceError, match=wrong):
            comparing.compare("prompt_lookup", file, suite=suite)
    pq.write_table(pq.read_table(run[1]).slice(0, 0), tmp_path / "empty.parquet")
    with pytest.raises(TraceError, match="has no rows"):
        comparing.compare("prompt_lookup", tmp_path / "empty.parquet", suite=suite)


def test_only_a_plan_s_own_options_load_a_recorded_model(run, suite, tmp_path, monkeypatch):
    given = {}

    def load(name, **options):
        given.update(options, name=name)
        raise ModelError("enough")

    def change(about):
        about["plan"]["models"][0]["backend"] = "llama.cpp"
        return about

    monkeypatch.setattr("specviz.models.load", load)
    file = rewritten(tmp_path / "x.parquet", run, change)
    with pytest.raises(ModelError, match="enough"):
        comparing.compare("prompt_lookup", file, suite=suite)
    assert given["name"] == "town" and given["dtype"] == "float32" and "backend" not in given


def test_rows_without_an_environment_are_recorded(run, tmp_path):
    shutil.copytree(run[0].path, tmp_path / "run")
    for file in (tmp_path / "run" / "rows").iterdir():
        row = json.loads(file.read_text())
        del row["environment"]
        file.write_text(json.dumps(row))
    path = recorded.write(sv.results(tmp_path / "run"), tmp_path / "x.parquet", "own")
    assert len(recorded.results(path).records()) == len(run[0].records())


def test_replays_are_recorded_cell_by_cell_and_shown_again(tmp_path):
    import numpy as np

    from specviz.measure.claims import ratio, resampled
    from specviz.replays import markdown, replays
    from specviz.replays.cells import CONTROL, Check
    from specviz.replays.recipes import RECIPES
    from specviz.replays.sources.shared import Measurement

    found = Measurement(checks=[Check(CONTROL, "autoregressive", "", 9, 9, 1.0, 0.98, 1.02)])
    for i, method in enumerate(("EAGLE-2", "UNISPEC (ours)")):
        found.on(model="m", method=method, device="cpu", texts=9, date="2026-11-25", task="EN")
        values = np.random.default_rng(i).normal(2 + i, 0.1, 9)
        found.add({"method": method, "language": "EN"}, "speedup", resampled(ratio, values, np.ones(9)))
    made = replays.compared("unispec/table3", RECIPES["unispec/table3"], found, {"table": "unispec/table3"})
    every = replays.Replays(tmp_path, [made], {"unispec/table4": "a setting"})
    file = write_replays(every, tmp_path / "replays.parquet")
    again = sv.results(file)
    assert again.left == every.left and markdown.markdown(again.tables[0]) == markdown.markdown(made)
    assert replays.opened_result(file).tables[0].verdicts == made.verdicts
    frame = pq.read_table(file).to_pandas()
    assert set(frame.loc[frame["measured"].notna(), "here_model"]) == {"m"}
    table = pq.read_table(file)
    for change in (
        lambda t: t.drop_columns(["here_model"]),
        lambda t: t.drop_columns(["value"]),
        lambda t: t.set_column(t.column_names.index("keys"), "keys", pa.array(["{"] * len(t))),
        lambda t: t.replace_schema_metadata({b"specviz": b'{"specviz": "recorded replays", "schema": 1}'}),
        lambda t: t.slice(0, 0),
    ):
        pq.write_table(change(table), tmp_path / "bad.parquet")
        with pytest.raises(TraceError) as error:
            sv.results(tmp_path / "bad.parquet")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["replays", "replays-toys"])
def test_recorded_verdicts_are_on_the_papers_claims(name):
    """On all of today's claims and on no earlier ones, whose verdicts would decide a paper's result."""
    for made in results(folder("runs") / f"{name}.parquet").tables:
        if not made.drawn:
            now = [(claim["text"], claim["question"]) for claim in claims(made.table)]
            assert [(each.claim, each.question) for each in made.verdicts] == now, made.table
            assert all(cell.figure is None or cell.figure < len(made.figures) for cell in made.cells)
