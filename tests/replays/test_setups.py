"""The papers' own set-ups: their data, their recipes, and the output of a dry run."""

from __future__ import annotations

import shlex
import tomllib

import pytest
import torch
from checkpoints import tokenizer

import specviz
from specviz import cli
from specviz.errors import ModelError, ParameterError, TraceError
from specviz.files import checked
from specviz.paths import folder
from specviz.replays import dry_run, setups
from specviz.replays.published import published
from specviz.replays.recipes import CURVES, RECIPES
from specviz.replays.replays import covers
from specviz.replays.setups_schema import SetupsFile
from specviz.replays.tasks import tasks_of
from specviz.suites.catalogue import CATALOGUE

torch.set_num_threads(1)
SETUPS = setups.Setups()
PAIRS = [(table, part) for table, parts in SETUPS.tables.items() for part in parts]


def chosen(table: str, part: str | None = None) -> setups.Chosen:
    return setups.choose(table, RECIPES.get(table) or CURVES[table], "paper", part)


# ---------------------------------------------------------------- the data


def test_every_table_has_a_set_up_or_a_reason():
    assert set(SETUPS.tables) | set(SETUPS.without) >= {*RECIPES, *CURVES}
    assert set(SETUPS.tables) <= {*RECIPES, *CURVES}
    assert not set(SETUPS.tables) & set(SETUPS.without)
    assert set(SETUPS.parts) == {part for _, part in PAIRS}, "a part that no table has"
    used = {each.id for part in SETUPS.parts.values() for each in part.checkpoints}
    assert used == set(SETUPS.checkpoints), "a checkpoint that no part has"


def test_bild_has_its_twelve_checkpoints_each_for_its_own_data():
    ids = [id for id in SETUPS.checkpoints if id.startswith("kssteven/")]
    assert len(ids) == 12
    assert all(SETUPS.checkpoints[id].pickled for id in ids)
    for part, data in (("iwslt", "iwslt2017"), ("wmt", "wmt2014"), ("xsum", "xsum"), ("cnndm", "cnndm")):
        one = SETUPS.parts[part]
        assert all(data in each.name for each in one.checkpoints)
        assert "large" in one.model.name
        assert one.drafts["aligned"].name == f"{one.drafts['small'].name}-bild-aligned"


@pytest.mark.parametrize(("table", "name"), PAIRS)
def test_a_part_speaks_the_words_of_its_table(table, name):
    part, recipe = SETUPS.parts[name], RECIPES.get(table) or CURVES[table]
    tasks = set(tasks_of(recipe))
    assert tasks & set(part.suites)
    assert set(part.drafts) & set(recipe.drafts) or not recipe.drafts
    if part.gguf or table.startswith("ssbd"):
        assert part.template in ("tower", "qwen3")
    for suite in part.suites.values():
        base, _, piece = suite.partition(":")
        assert not piece or piece in CATALOGUE[base].parts
    if table in RECIPES:
        rows = published(table).to_dict("records")
        made = chosen(table, name).recipe
        assert not part.rows or any(covers(part.rows, row) for row in rows)
        assert any(covers(each.where, row) for each in made.rows for row in rows) or not made.rows


def test_sizes_on_the_pages_are_those_of_the_shapes():
    """A decoder's shape gives its number of weights, so a wrong shape or size shows."""
    sized = [each for each in SETUPS.checkpoints.values() if each.size and each.shape.vocabulary]
    assert len(sized) >= 8
    for each in sized:
        if not each.architecture.startswith("EAGLE"):
            assert each.shape.parameters * 2 == pytest.approx(each.size, rel=0.01), each.id
    tower = SETUPS.checkpoints["Unbabel/Tower-Plus-2B"]
    assert tower.size is None
    assert tower.origin == "estimate from its shape"
    assert tower.parameters == pytest.approx(2.61e9, rel=0.01)  # Gemma 2 2B


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda f: f["parts"]["iwslt"].update(model="a/b"), "unknown checkpoint 'a/b'"),
        (lambda f: f["tables"].update({"bild/table1": ["none"]}), "unknown part 'none'"),
        (lambda f: f["checkpoints"]["Qwen/Qwen3-8B"].update(shape="x"), "unknown shape 'x'"),
        (lambda f: f["checkpoints"]["Qwen/Qwen3-8B"].update(bytes="16 GB"), r"\.bytes .*not '16 GB'"),
        (lambda f: f["parts"]["iwslt"].update(sutes={}), "sutes"),
        (lambda f: f["parts"]["iwslt"]["numbers"].update(fallbacks=["x"]), r"fallbacks\[0\]"),
    ],
)
def test_the_schema_refuses_what_is_wrong(change, line):
    content = tomllib.loads((folder("published") / setups.FILE).read_text(encoding="utf8"))
    change(content)
    with pytest.raises(TraceError, match=line):
        checked(SetupsFile, content, "setups.toml")


# ---------------------------------------------------------------- choosing


def test_a_part_answers_to_its_own_rows_and_says_where_the_others_are():
    one = chosen("unispec/table1", "qwen3-8b")
    assert all(row.where["model"] == "Qwen-3-8B" for row in one.recipe.rows)
    reasons = {where["model"]: why for where, why in one.recipe.absent if "model" in where}
    assert reasons["Qwen-3-14B"] == "of another model: --setup paper --part qwen3-14b"
    assert "Qwen-3-8B" not in reasons
    assert one.dtype == "float16"
    assert one.recipe.whole["max_new_tokens"] == 1024
    assert chosen("bild/table1", "iwslt").dtype == "float32", "the paper says none: as stored"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"setup": "ours"}, "setup must be 'paper'"),
        ({"setup": "paper"}, "several models: choose one with --part iwslt or --part wmt"),
        ({"setup": "paper", "part": "tower"}, "no part 'tower'; it has iwslt, wmt, xsum, cnndm"),
        ({"part": "iwslt"}, "part needs a setup"),
    ],
)
def test_what_cannot_be_chosen_is_one_line(options, line):
    with pytest.raises(ParameterError, match=line):
        specviz.replay("bild/table1", **options)
    with pytest.raises(ParameterError, match="are not published"):
        specviz.replay("cm_asd/table1", setup="paper")


def test_pickled_checkpoints_are_asked_for_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path))
    with pytest.raises(
        ModelError, match=r"run once: hf download kssteven/T5-large-xsum .* && specviz models"
    ):
        specviz.replay("bild/table1", setup="paper", part="xsum", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_download_command_fetches_the_weights_into_the_folder(tmp_path, monkeypatch):
    """Each --exclude takes one pattern; a second value would be the name of a file to fetch."""
    download = pytest.importorskip("huggingface_hub.cli.download")
    from huggingface_hub.cli.hf import app

    given = {}
    monkeypatch.setattr(download, "snapshot_download", lambda **how: given.update(how) or "there")
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path / "of mine"))
    one = SETUPS.parts["xsum"].model
    get, convert = one.commands()
    with pytest.raises(SystemExit) as end:
        app(shlex.split(get)[1:])
    assert not end.value.code
    assert given["local_dir"] == str(one.path) and " " in given["local_dir"]
    assert given["allow_patterns"] is None
    assert given["ignore_patterns"] == ["*.pt", "*.pth", "training_args.bin"]
    assert shlex.split(convert) == ["specviz", "models", "convert", str(one.path)]


# ---------------------------------------------------------------- a dry run


def test_a_dry_run_says_what_it_would_take(monkeypatch, capsys):
    monkeypatch.setattr(dry_run, "rate", lambda device, dtype: 10e9)
    command = ["replay", "bild/table1", "--setup", "paper", "--part", "iwslt", "--dry-run", "--number", "10"]
    assert cli.run(command) == 0
    out = capsys.readouterr().out
    for words in (
        "kssteven/mT5-large-iwslt2017-de-en", "4.92 GB (from its page), licence: none stated",
        "7.32 GB of weights", "estimate: weights", "estimate: 56,320 tokens", "measured on cpu",
        "specviz models convert", "iwslt17:de-en:validation, licence: CC-BY-NC-ND-4.0",
        "was never run on these published weights", "wording: {source}", "the paper gives none",
        "pip install sentencepiece",
    ):  # fmt: skip
        assert words in out, words
    # 10 texts of 128 tokens; two curves of 5 x 4 thresholds, reference and control; 4.92 GB per token.
    plan = dry_run.plan(chosen("bild/table1", "iwslt"), "cpu", None, 10, None)
    assert plan.tokens == 10 * 128 * 2 * (5 * 4 + 2) * plan.chosen.recipe.whole.get("rounds", 1)
    assert plan.seconds == pytest.approx(plan.tokens * 4.92e9 / 10e9)
    assert plan.memory > 7.32e9


@pytest.mark.parametrize(
    ("options", "dropped"),
    [
        (["--dry-run", "--quick"], "--quick"), (["--dry-run", "--model", "town"], "--model"),
        (["--dry-run", "--threads", "2", "--fit", "ours"], "--threads, --fit"),
        (["--add", "there", "--number", "3"], "TABLE, --setup, --number"),
        (["--add", "there", "--device", "cuda"], "TABLE, --setup, --device"),
    ],
)  # fmt: skip
def test_options_without_effect_are_refused(options, dropped, capsys, tmp_path):
    assert cli.run(["replay", "bild/table1", "--setup", "paper", *options]) == 2
    assert capsys.readouterr().err.strip().endswith(f": drop {dropped}")
    both = ["--dry-run", "--kit", str(tmp_path / "kit")]
    assert cli.run(["replay", "bild/table1", "--setup", "paper", *both]) == 2
    assert "drop one of them" in capsys.readouterr().err and not (tmp_path / "kit").exists()


@pytest.mark.parametrize(
    ("table", "number"),
    [
        ("unispec/table1", 5 + 2),
        ("unispec/table10", 2 * 3),  # two formats: UniSpec, the reference, the control
        ("unispec/table11", 6 * 3),  # as many contexts
        ("ssbd/table2", 3), ("ssbd/table3", 10), ("ssbd/table4", 7),  # two have a row of re-translation
        ("ssd/table1", 5), ("ssd/table2", 1), ("ssd/table3", 8),
        ("ssd/figure3", 3 * (0.5 + 2 + 2)),  # half and twice the length; with 0 and 3 examples
    ],
)  # fmt: skip
def test_a_dry_run_counts_each_decode(table, number):
    part = next(iter(setups.Setups().of(table)))
    assert dry_run.contenders(chosen(table, part.name)) == number


def test_a_dry_run_of_a_table_lists_every_part(monkeypatch, capsys):
    monkeypatch.setattr(dry_run, "rate", lambda device, dtype: 10e9)
    for alone in (["--quick"], ["--dry-run"], ["--kit", "k"], ["--part", "a"], ["--model", "town"]):
        assert cli.run(["replay", *alone]) == 2
        assert f"name a table, or use --all: drop {alone[0]}" in capsys.readouterr().err
    assert cli.run(["replay"]) == 0
    capsys.readouterr()
    assert cli.run(["replay", "unispec/table9", "--setup", "paper", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "part llama3-eagle" in out
    assert "part llama31-eagle" in out
    assert "Meta Llama 3 Community License, accept its licence on the hub first" in out
    for wrong in (["replay", "unispec/table9", "--dry-run"], ["replay", "--dry-run", "--setup", "paper"],
                  ["replay", "--all", "--setup", "paper"], ["replay", "--all", "--part", "a"],
                  ["replay", "--all", "--score", "comet=a"]):  # fmt: skip
        assert cli.run(wrong) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 5


def test_the_rate_is_measured():
    assert 1e7 < dry_run.rate("cpu", "float32") < 1e13
    for device in ("cuda:99", "gpu"):
        with pytest.raises(ParameterError, match=f"device {device} is not available"):
            dry_run.rate(device, "float32")
    with pytest.raises(ParameterError, match="must be one of float32, float16"):
        dry_run.plan(chosen("bild/table1", "iwslt"), "cpu", "int3", None, None)


# ---------------------------------------------------------------- a replay of a setup, tiny


def test_a_replay_of_a_set_up_runs_its_own_loading_path(tmp_path, monkeypatch):
    """Tiny T5 folders under BiLD's published names are converted, loaded and measured into their column."""
    from transformers import T5Config, T5ForConditionalGeneration

    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path))
    monkeypatch.setattr(setups.Chosen, "suites", own_texts)
    for number, each in enumerate(SETUPS.parts["xsum"].checkpoints):
        torch.manual_seed(number)
        config = T5Config(vocab_size=261, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2,
                          decoder_start_token_id=4, pad_token_id=4, eos_token_id=1)  # fmt: skip
        net = T5ForConditionalGeneration(config).eval()
        net.save_pretrained(each.path)
        tokenizer(each.path, template=False)
        torch.save(net.state_dict(), each.path / "pytorch_model.bin")
        (each.path / "model.safetensors").unlink()
        assert cli.run(["models", "convert", str(each.path)]) == 0
    made = specviz.replay(
        "bild/table1",
        setup="paper",
        part="xsum",
        quick=True,
        number=2,
        max_new_tokens=6,
        out=tmp_path / "out",
    )
    assert {cell.keys["dataset"] for cell in made.measured} == {"XSUM"}
    assert made.sources[0].model == "T5-large-xsum"
    assert made.sources[0].dtype == "float32"
    again = specviz.replay(
        "bild/table1",
        setup="paper",
        part="xsum",
        quick=True,
        number=2,
        max_new_tokens=6,
        out=tmp_path / "out",
    )
    assert again.created == made.created


def own_texts(self: setups.Chosen) -> dict[str, specviz.suites.Suite]:
    from specviz.suites import Suite

    texts = [self.part.wording.format(source=text) for text in ("the mill is old", "a cook was here", "rain")]
    made = [
        {"id": text, "kind": "summarization", "language": "en", "prompt": text, "reference": [text[-9:]]}
        for text in texts
    ]
    return {task: Suite(made, "own") for task in self.part.suites}
