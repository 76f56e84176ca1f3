"""Outgoing kits, returned results and COMET scores are checked; hostile ones end in one line."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import math
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from checkpoints import tokenizer

import specviz
from specviz import cli
from specviz.errors import SpecvizError, TraceError
from specviz.measure import fits
from specviz.measure.claims import ratio, resampled
from specviz.paths import folder
from specviz.replays import comet, dry_run, kits, running, setups
from specviz.replays.cells import CONTROL, HOLDS, Check
from specviz.replays.recipes import RECIPES
from specviz.replays.replays import Replays, compared, opened, opened_all, opened_result
from specviz.replays.sources.shared import Measurement
from specviz.suites import Suite

torch.set_num_threads(1)
GERMAN, CHINESE = "English→German", "English→Chinese"
SENTENCES = ("The mill is old and the cook is here today.", "Rain fell on the town all night long.",
             "A doctor bought a red bicycle on Sunday.")  # fmt: skip


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    """SSBD's Table 2 replayed with Tower+ 2B's setup, on a tiny Gemma 2 under that name."""
    from transformers import AutoTokenizer, Gemma2Config, Gemma2ForCausalLM

    root = tmp_path_factory.mktemp("ssbd")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPECVIZ_HOME", str(root))
        path = setups.Setups().parts["tower"].model.path
        torch.manual_seed(0)
        config = Gemma2Config(
            vocab_size=264, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, head_dim=8, sliding_window=64, max_position_embeddings=1024,
            initializer_range=0.4, eos_token_id=1, pad_token_id=4, bos_token_id=0,
        )  # fmt: skip
        Gemma2ForCausalLM(config).eval().save_pretrained(path, max_shard_size="8KB")
        tokenizer(path)
        words = AutoTokenizer.from_pretrained(path)
        words.add_special_tokens({"additional_special_tokens": ["<start_of_turn>", "<end_of_turn>"]})
        words.save_pretrained(path)
        about = {"kind": "translation", "language": "de", "from": "en"}
        texts = [
            {"id": text, "source": text, "prompt": text, "reference": [text[::-1]], **about}
            for text in SENTENCES
        ]
        patch.setattr(setups.Chosen, "suites", lambda self: {GERMAN: Suite(texts, "flores:en-de")})
        yield specviz.replay("ssbd/table2", setup="paper", part="tower", dtype="float32", quick=True,
                             number=3, max_new_tokens=8, out=root / "ssbd-table2")  # fmt: skip


@pytest.fixture
def result(replayed, tmp_path):
    """A copy of the returned result."""
    path = tmp_path / "tower"
    shutil.copytree(replayed.path, path)
    return path


def test_the_set_up_fills_its_own_models_rows(replayed):
    rows = {(cell.keys["language"], cell.model) for cell in replayed.measured}
    assert rows == {(GERMAN, "Tower+ 2B")}
    empty = [cell for cell in replayed.cells if cell.measured is None and cell.keys["language"] == GERMAN]
    why = {cell.model: cell.why for cell in empty if cell.metric == "ne"}
    assert why["Qwen3 4B"] == "of another model: --setup paper --part qwen3-4b"
    assert replayed.settings["template"] == "tower"


# ---------------------------------------------------------------- kits


@pytest.fixture
def kit(tmp_path, monkeypatch):
    monkeypatch.setattr(dry_run, "rate", lambda device, dtype: 1e10)
    assert cli.run(["replay", "ssbd/table2", "--setup", "paper", "--kit", str(tmp_path / "kit")]) == 0
    return tmp_path / "kit"


def test_a_kit_says_what_to_run_and_names_no_folder_of_this_machine(kit):
    text = (kit / "README.md").read_text()
    for words in ("--part tower --device cuda --out tower", "--device mps", "llama.cpp on Metal",
                  "weights/checkpoints/Tower-Plus-2B", "never run on these published weights",
                  "specviz replay --add FOLDER", "CC-BY-NC-SA-4.0",
                  "check.py tower  ", "check.py qwen3-4b  "):  # fmt: skip
        assert words in text, words
    assert str(setups.home()) not in text
    assert str(kit.parent) not in text
    content = json.loads((kit / "setup.json").read_text())
    assert [part["part"] for part in content["parts"]] == ["tower", "qwen3-4b"]
    assert "torch==" in (kit / "constraints.txt").read_text()
    for line in (kit / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((kit / name).read_bytes()).hexdigest() == digest
    assert cli.run(["replay", "ssbd/table2", "--setup", "paper", "--kit", str(kit)]) == 2


def test_a_kit_of_a_table_with_a_calibrated_size_installs_what_fits_it(tmp_path, monkeypatch, kit):
    assert '"SPECVIZ[run,quality]"' in (kit / "README.md").read_text()
    monkeypatch.setattr(dry_run, "rate", lambda device, dtype: 1e10)
    command = ["replay", "unispec/table9", "--setup", "paper", "--kit", str(tmp_path / "other")]
    assert cli.run(command) == 0
    assert '"SPECVIZ[run,quality,calibrate]"' in (tmp_path / "other/README.md").read_text()
    named = (tmp_path / "other/constraints.txt").read_text()
    assert "\nscipy==" in named and "\nscikit-learn==" in named


def test_a_missing_fit_is_noticed_before_a_model_is_loaded(tmp_path, monkeypatch):
    def needed():
        raise SpecvizError("scipy is not installed")

    monkeypatch.setattr(fits, "needed", needed)
    monkeypatch.setattr(running, "measure", lambda *_: "measured")
    with pytest.raises(SpecvizError, match="scipy is not installed"):
        specviz.replay("unispec/table12", quick=True, out=tmp_path)
    assert specviz.replay("bild/table1", quick=True, out=tmp_path) == "measured"
    monkeypatch.setattr(running.calibration, "calibrations", lambda: iter([object()]))
    assert specviz.replay("unispec/table12", quick=True, out=tmp_path / "other") == "measured", (
        "it has its fits"
    )


@pytest.mark.parametrize("option", ["--number", "--max-new-tokens", "--dtype", "--device"])
def test_a_kit_refuses_the_sizes_that_its_commands_would_not_have(option, tmp_path, capsys):
    value = {"--dtype": "float16", "--device": "cuda"}.get(option, "10")
    command = ["replay", "bild/table1", "--setup", "paper", "--kit", str(tmp_path / "kit")]
    assert cli.run([*command, option, value]) == 2
    assert capsys.readouterr().err.strip().endswith(f"how to choose others: drop {option}")
    assert not (tmp_path / "kit").exists()


def run_check(kit, *arguments):
    return subprocess.run(
        [sys.executable, "-I", str(kit / "check.py"), *map(str, arguments)], capture_output=True, text=True
    )


def test_the_kits_own_check_needs_python_alone(kit, result, tmp_path):
    assert run_check(kit).returncode == 0
    packed = run_check(kit, result)
    assert packed.returncode == 0, packed.stderr
    assert (result / "setup.json").read_bytes() == (kit / "setup.json").read_bytes()
    added = kits.add(result, tmp_path / "ours")
    assert "checksums of 2 files match" in added.notes
    assert run_check(kit, tmp_path).returncode == 1
    (kit / "README.md").write_text("changed")
    wrong = run_check(kit)
    assert wrong.returncode == 1
    assert wrong.stdout.startswith("changed or missing: README.md\n") and wrong.stdout.endswith("\n1 fault\n")
    for content in (b"\xff x y\n", b"", None):
        (kit / "SHA256SUMS").unlink() if content is None else (kit / "SHA256SUMS").write_bytes(content)
        wrong = run_check(kit)
        assert (wrong.returncode, wrong.stderr) == (1, "") and wrong.stdout.startswith("changed or missing: ")


# ---------------------------------------------------------------- results that come back


def test_a_result_is_placed_beside_ours_with_its_device(result, replayed, tmp_path, capsys):
    ours = tmp_path / "ours"
    shutil.copytree(replayed.path, ours / "ssbd-table2")
    change(result, lambda c: [s.update(device="cuda:0 NVIDIA T4", processor="") for s in c["sources"]])
    assert cli.run(["replay", "--add", str(result), "--out", str(ours)]) == 0
    out = capsys.readouterr().out
    assert "there: cuda:0 NVIDIA T4, float32" in out
    assert f"here: {replayed.device}" in out
    assert "it came without checksums" in out
    (place,) = (ours / "added").iterdir()
    assert place.name.startswith("ssbd-table2-cuda-0-NVIDIA-T4")
    kept = opened(place)
    assert kept.device.startswith("cuda:0 NVIDIA T4")
    assert (kept.runs, kept.traces) == ([], [])
    added = kits.add(result, ours)
    rows = added.rows()
    assert len(rows) == len(replayed.measured)
    assert all(row["here"] == row["there"] != "-" for row in rows)


def test_a_result_of_the_home_folder_is_placed_there(result, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    added = kits.add("~/tower", "~/ours")
    assert added.replay.path.parent == tmp_path / "ours/added" and not list((tmp_path / "cwd").iterdir())
    for read in (opened, opened_result):
        assert read("~/tower").path == result
    Replays(tmp_path / "all", [], {}).save()
    assert opened_all("~/all").path == opened_result("~/all").path == tmp_path / "all"


def change(path, how):
    content = json.loads((path / "replay.json").read_text())
    how(content)
    (path / "replay.json").write_text(json.dumps(content))


def test_verdicts_are_made_anew_from_the_cells(result, tmp_path):
    """Verdicts in a result are not trusted: editing them to "holds" changes nothing."""
    change(result, lambda c: [v.update(verdict=HOLDS) for v in c["verdicts"]])
    added = kits.add(result, tmp_path / "ours")
    claimed = [each.verdict for each in opened(result).verdicts]
    assert set(claimed) == {HOLDS}
    assert {each.verdict for each in added.replay.verdicts} != {HOLDS}
    assert any("by its cells, but holds here according to its makers" in note for note in added.notes)


def one_measured(content):
    return next(cell for cell in content["cells"] if cell["measured"] is not None)


DAMAGED = {
    "another printed number": lambda c: c["cells"][0].update(value=9.9, printed="9.9"),
    "a row of its own": lambda c: c["cells"][0].update(model="Mine"),
    "another table": lambda c: c.update(table="unispec/table1"),
    "no table": lambda c: c.update(table="../../etc/passwd"),
    "not a number": lambda c: one_measured(c).update(measured=math.nan),
    "a huge number": lambda c: one_measured(c).update(measured=1e300),
    "two values of a figure": lambda c: one_measured(c).update(measured=0.123),
    "a comparison of its own": lambda c: c["comparisons"].append(
        {"first": 0, "second": 1, "printed": 1.0, "measured": 99.0, "low": None, "high": None, "p": 0.0,
         "clear": True, "split": False, "derived": False}
    ),
    "a path that leads out": lambda c: c.update(runs=["../../out"]),
    "no cells": lambda c: c.update(cells=[]),
    "another version": lambda c: c.update(schema=99),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_result_ends_in_one_line(damage, result, tmp_path, capsys):
    if damage == "two values of a figure":

        def twice(content):  # SSBD's speedup is in one row only; let another row show the same figure
            cell = one_measured(content)
            other = next(c for c in content["cells"] if c["measured"] is not None and c is not cell)
            other.update(figure=cell["figure"])

        change(result, twice)
    else:
        change(result, DAMAGED[damage])
    assert cli.run(["replay", "--add", str(result), "--out", str(tmp_path / "ours")]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1, err
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 200_000, b"\xff\xfe", b"null", b"{}"])
def test_what_is_no_result_ends_in_one_line(content, tmp_path, capsys):
    (tmp_path / "replay.json").write_bytes(content)
    assert cli.run(["replay", "--add", str(tmp_path)]) == 2
    assert cli.run(["replay", "--add", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.count("\n") == 2


@pytest.mark.parametrize(
    ("sums", "line"),
    [
        ("0" * 64 + "  replay.json", "does not match SHA256SUMS"),
        ("rm -rf /", "is not the checksum"),
        ("0" * 64 + "  ../replay.json", "is not the checksum"),
        ("", "does not cover replay.json"),
    ],
)
def test_checksums_that_do_not_hold(sums, line, result, tmp_path):
    (result / "SHA256SUMS").write_text(sums)
    with pytest.raises(TraceError, match=line):
        kits.add(result, tmp_path / "ours")


@pytest.mark.parametrize("content", ["{", "[]", '{"specviz": "setup", "table": "x", "version": 1}', "null"])
def test_a_set_up_that_is_none(content, result, tmp_path):
    (result / "setup.json").write_text(content)
    with pytest.raises(TraceError, match=r"is not the setup of a kit|is for another table"):
        kits.add(result, tmp_path / "ours")


# ---------------------------------------------------------------- COMET


def script():
    spec = importlib.util.spec_from_file_location("comet_script", folder("comet") / "score.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made_up(texts, model):
    """Stand in for COMET: different texts get different scores."""
    return [0.5 + (int(text["id"], 16) % 1000) / 4000 for text in texts]


@pytest.fixture
def scores(result, tmp_path):
    file = tmp_path / "scores.jsonl"
    script().main([str(result / "comet.jsonl"), str(file)], made_up)
    return file


def test_texts_go_out_and_their_scores_come_back(result, scores):
    lines = [json.loads(line) for line in (result / "comet.jsonl").read_text().splitlines()]
    assert len(lines) == 2 * len(SENTENCES)  # RT's and SSBD's
    assert {line["source"] for line in lines} == set(SENTENCES)
    assert lines[0]["reference"] == lines[0]["source"][::-1]
    before = opened(result)
    assert all(cell.measured is None for cell in before.cells if cell.metric == "comet")
    assert "--score comet=FILE" in next(
        c.why for c in before.cells if c.metric == "comet" and c.model[0] == "T"
    )
    made = comet.scored(before, scores)
    by_id = {each["id"]: each["score"] for each in map(json.loads, scores.read_text().splitlines())}
    for method in ("RT", "SSBD"):
        (cell,) = (c for c in made.cells if c.metric == "comet" and c.keys["method"] == method
                   and c.measured is not None)  # fmt: skip
        mine = [by_id[line["id"]] for line in lines if line["where"]["method"] == method]
        assert cell.measured == pytest.approx(np.mean(mine))
        assert (cell.keys["language"], cell.model) == (GERMAN, "Tower+ 2B")
        assert cell.source.method == "retranslate"
    assert any("Unbabel/wmt22-comet-da" in note for note in made.notes)
    again = opened(result)
    assert [c.measured for c in again.cells] == [c.measured for c in made.cells]
    twice = comet.scored(again, scores)
    assert len(twice.comparisons) == len(made.comparisons)
    assert twice.notes == made.notes
    others = [c for c in made.comparisons if made.cells[c.first].metric != "comet"]
    assert others == before.comparisons


def test_scores_are_paid_for_together_with_what_was_judged_before(tmp_path):
    """COMET's p-values were corrected among themselves alone, and the others' stayed as they were."""
    table, made = "ssbd/table3", Measurement(checks=[Check(CONTROL, "a", "", 40, 40, 1.0, 0.98, 1.02)])
    random, texts = np.random.default_rng(0), []
    for i, row in enumerate(RECIPES[table].rows):
        where = {**row.where, "language": CHINESE}
        made.on(model="m", method=str(row.values), task="Chinese", texts=12)
        made.add(where, "ne", resampled(ratio, random.normal(2 + i / 40, 0.1, 12), np.ones(12)))
        texts += comet.rows(where, ["s"] * 12, [f"{row.where} {i}" for i in range(12)], [["r"]] * 12)
    before = replace(compared(table, RECIPES[table], made, {"table": table}), path=tmp_path)
    comet.write(tmp_path, texts)
    lines = [{"id": each["id"], "score": random.normal(0.8, 0.01), "model": "c"} for each in texts]
    (tmp_path / "scores.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    after = comet.scored(before, tmp_path / "scores.jsonl")
    others = [each for each in after.comparisons if after.cells[each.first].metric != "comet"]
    assert len(others) == len(before.comparisons) < len(after.comparisons)
    assert [each.measured for each in others] == [each.measured for each in before.comparisons]
    again, changed = kits.rejudged(opened(tmp_path), tmp_path)
    assert not changed
    assert [each.p for each in again.comparisons] == pytest.approx([c.p for c in after.comparisons], rel=0.2)
    least = min(range(len(others)), key=lambda i: before.comparisons[i].p)
    assert others[least].p > 1.5 * before.comparisons[least].p


def spoil(file, how):
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(line) + "\n" for line in how(lines)))


SPOILT = {
    "a score is missing": (lambda lines: lines[1:], "lacks the scores of"),
    "not finite": (lambda lines: [{**lines[0], "score": math.nan}, *lines[1:]], "line 1.*score"),
    "two models": (lambda lines: [{**lines[0], "model": "mine"}, *lines[1:]], "scores from 2 models"),
    "an id of another kind": (lambda lines: [{**lines[0], "id": "../x"}, *lines[1:]], "line 1.*id"),
    "no score": (lambda lines: [{"id": lines[0]["id"], "model": "m"}], "lacks 'score'"),
    "text for a number": (lambda lines: [{**lines[0], "score": "1"}, *lines[1:]], "line 1.*score"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_scores_are_checked(what, result, scores):
    how, line = SPOILT[what]
    spoil(scores, how)
    with pytest.raises(TraceError, match=line) as caught:
        comet.scored(opened(result), scores)
    assert "\n" not in str(caught.value)


def test_texts_that_were_changed_get_no_score(result, scores):
    spoil(result / "comet.jsonl", lambda lines: [{**lines[0], "hypothesis": "better"}, *lines[1:]])
    with pytest.raises(TraceError, match="was changed"):
        comet.scored(opened(result), scores)
    (result / "comet.jsonl").unlink()
    with pytest.raises(SpecvizError, match="only re-translation replays"):
        comet.scored(opened(result), scores)


@pytest.mark.parametrize(
    ("table", "score", "says"),
    [
        ("ssbd/table2", "comet=", "--score takes"),
        ("ssbd/table2", "bleu=x", "--score takes"),
        ("ssbd/table2", "comet=none.jsonl", "there is no none.jsonl"),
        ("bild/table1", f"comet={__file__}", "bild/table1 has none"),
    ],
)
def test_the_command_takes_a_file_of_comet_alone(table, score, says, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(running, "measure", lambda *_: pytest.fail("it decodes first"))
    command = ["replay", table, "--quick", "--number", "1", "-n", "4", "--out", str(tmp_path / "o")]
    assert cli.run([*command, "--score", score]) == 2
    err = capsys.readouterr().err
    assert says in err and err.strip().count("\n") == 0
