"""Drafters with eight-bit matrices: rounding loss, refusals, and drafting as before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import llama

import specviz
from specviz.cli import run
from specviz.errors import ModelError
from specviz.finetune.answers import AnswerOptions, Answers, answer
from specviz.finetune.cut import cut
from specviz.finetune.eagle import train_eagle
from specviz.finetune.heads import train_heads
from specviz.finetune.shrink import shrink
from specviz.models import Model
from specviz.models.eight_bits import LEVELS, SCALE, pack, unpack

PROMPTS = [[3 + i, 5 + i % 7, 9] for i in range(12)]


@pytest.fixture(scope="module")
def target() -> Model:
    return llama(seed=3, layers=4, name="tiny", eos=(47,))


@pytest.fixture(scope="module")
def learnt(target: Model, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    file = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    return answer(target, PROMPTS, file, AnswerOptions(8), say=lambda line: None)


@pytest.fixture(scope="module")
def drafters(target: Model, learnt: Answers, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("drafters")
    options = {"epochs": 2, "say": lambda line: None}
    cut(target, learnt, folder / "speculative", layers=1, vocabulary=20)
    train_eagle(target, learnt, folder / "eagle", draft_vocabulary=20, own_head=False, **options)
    train_heads(target, learnt, folder / "blockwise", heads=2, inner=8, draft_vocabulary=20, **options)
    return {path.name: path for path in folder.iterdir()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_no_weight_moves_by_more_than_half_a_scale(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(5)
    sizes = torch.logspace(-12, 2, 40)[:, None]
    matrix = (torch.randn(40, 64, generator=draw) * sizes).to(dtype)
    matrix[7] = 0
    rows = {"m": matrix, "cube": matrix.view(4, 10, 64), "norm": matrix[3], "d2t": torch.arange(9)}
    packed = pack(rows)
    assert packed["m"].dtype == torch.int8 and packed["m"].abs().max() == LEVELS
    assert packed["norm"] is rows["norm"] and packed["d2t"] is rows["d2t"]
    back = unpack(packed)
    assert set(back) == set(rows)
    for name in ("m", "cube"):
        off = (back[name] - rows[name].float()).abs()
        assert (off <= packed[name + SCALE] * 0.5001).all() and off.max() > 0
    assert torch.equal(back["m"][7], torch.zeros(64))


def test_plain_tensors_that_end_in_scale_are_left_alone() -> None:
    plain = {"layer.scale": torch.ones(3, 1), "layer": torch.ones(3, 4)}
    assert {name: id(value) for name, value in unpack(plain).items()} == {n: id(v) for n, v in plain.items()}


@pytest.mark.parametrize("method", ["speculative", "eagle", "blockwise"])
def test_a_shrunk_drafter_drafts_and_the_text_is_the_targets(
    target: Model, drafters: dict[str, Path], tmp_path: Path, method: str
) -> None:
    made = shrink(drafters[method], tmp_path / "small")
    block = {"k": 3} if method == "blockwise" else {}
    assert made.after < made.before == (drafters[method] / "model.safetensors").stat().st_size
    before, after = (load_file(path / "model.safetensors") for path in (drafters[method], made.path))
    matrices = {name for name, value in before.items() if value.is_floating_point() and value.ndim > 1}
    assert matrices == {name.removesuffix(SCALE) for name in after if name.endswith(SCALE)} != set()
    plain = specviz.generate(target, PROMPTS[:3], "autoregressive", max_new_tokens=12)
    taus = []
    for path in (drafters[method], made.path):
        draft = specviz.load(path)
        trace = specviz.generate(target, PROMPTS[:3], method, draft=draft, max_new_tokens=12, **block)
        assert trace.outputs["token"].tolist() == plain.outputs["token"].tolist()
        taus.append(specviz.metrics.tau(trace))
    assert taus[1] == pytest.approx(taus[0], rel=0.25)
    assert "in eight bits" in (made.path / "README.md").read_text(encoding="utf-8")
    assert not list(tmp_path.glob("*.partial"))
    weights = [
        sum(p.numel() for p in specviz.load(path).net.parameters()) for path in (drafters[method], made.path)
    ]
    assert weights[0] == weights[1]


@pytest.mark.parametrize("method", ["speculative", "eagle", "blockwise"])
def test_a_drafter_that_lost_a_scale_is_refused(
    drafters: dict[str, Path], tmp_path: Path, method: str
) -> None:
    path = shrink(drafters[method], tmp_path / "small").path
    tensors = load_file(path / "model.safetensors")
    name = next(name for name in tensors if name.endswith(SCALE))
    del tensors[name]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=f"its {name.removesuffix(SCALE)} holds int8 without a scale"):
        specviz.load(path)


def test_what_cannot_be_shrunk_is_refused_and_nothing_is_written(
    drafters: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="town-draft is a model by itself"):
        shrink("town-draft", tmp_path / "small")
    once = shrink(drafters["speculative"], tmp_path / "once").path
    with pytest.raises(ModelError, match="already in eight bits"):
        shrink(once, tmp_path / "twice")
    with pytest.raises(ModelError, match="once exists: choose another folder, or overwrite it with --force"):
        shrink(drafters["speculative"], once)
    strange = shutil.copytree(drafters["speculative"], tmp_path / "strange")
    (strange / "README.md").write_bytes(b"\xff\xfe#")
    with pytest.raises(ModelError, match=r"README\.md is not UTF-8: save it again as UTF-8"):
        shrink(strange, tmp_path / "thrice")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["once", "strange"]


def test_the_command_and_the_list_of_models(
    drafters: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, own = tmp_path / "small", shutil.copytree(drafters["eagle"], tmp_path / "own")
    (own / "training.json").write_text('{"tokens": 5}', encoding="utf-8")
    assert run(["models", "shrink", str(own), "--out", str(out)]) == 0
    assert (out / "training.json").read_text(encoding="utf-8") == '{"tokens": 5}'
    assert "shrunk: " in capsys.readouterr().out
    assert run(["models", "shrink", str(tmp_path / "none"), "--out", str(tmp_path / "x")]) == 2
    assert "none" in capsys.readouterr().err
    assert {"tokens", "tau"} == set(json.loads((out / "scores.json").read_text(encoding="utf-8")))


def test_what_another_run_left_is_not_destroyed(
    target: Model, learnt: Answers, drafters: dict[str, Path], tmp_path: Path
) -> None:
    for name, make in (
        ("small", lambda out: shrink(drafters["eagle"], out)),
        ("begun", lambda out: cut(target, learnt, out, layers=1, vocabulary=20)),
    ):
        left = tmp_path / f"{name}.partial"
        left.mkdir()
        (left / "checkpoint").write_bytes(b"hours")
        with pytest.raises(ModelError, match="left by another run"):
            make(tmp_path / name)
        assert (left / "checkpoint").read_bytes() == b"hours" and not (tmp_path / name).exists()
