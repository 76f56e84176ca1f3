"""Blockwise heads of a causal target: learning, messages and refusals."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import by_heart, llama

import specviz
from specviz.errors import ModelError, ParameterError, PromptError
from specviz.finetune import target_states
from specviz.finetune.answers import AnswerOptions, answer
from specviz.finetune.heads import HeadsLoss, train_heads
from specviz.finetune.training import Pair
from specviz.models import Model
from specviz.models.heads import BlockwiseHeads

PROMPTS = [[3 + i, 5 + i % 7, 9] for i in range(12)]
LEARNT = PROMPTS[:9]
FAST = {"epochs": 150, "batch": 9, "max_new_tokens": 8, "inner": 64, "heads": 3, "say": lambda line: None}


@pytest.fixture
def target() -> Model:
    return llama(seed=3, layers=4, name="tiny", eos=(47,))


@pytest.mark.parametrize("rows", [None, 40])
def test_heads_learn_what_the_target_says_further_on(target: Model, tmp_path: Path, rows: int | None) -> None:
    made = train_heads(target, by_heart(target, LEARNT), tmp_path / "new", draft_vocabulary=rows, **FAST)
    assert (made.learnt, made.held_out) == (9, 1)
    assert max(made.before) < 0.5 and min(made.after) > 0.7
    assert f"| 1 | {made.before[0]:.3f} | {made.after[0]:.3f} |" in (made.path / "README.md").read_text()
    stored = load_file(made.path / "model.safetensors")
    assert {*stored} == {"up", "down", "offset"} | ({"tokens"} if rows else set())
    heads = specviz.load(made.path)
    guesses = heads.on(target).guesses(torch.randn(32), 3)
    assert guesses.shape == (3, 48)
    assert int(torch.isinf(guesses).sum()) == 3 * (48 - len(heads.net.tokens) if rows else 0)
    own = specviz.generate(target, LEARNT, "autoregressive", max_new_tokens=8)
    trace = specviz.generate(target, LEARNT, "blockwise", draft=heads, k=4, max_new_tokens=8)
    assert trace.outputs["token"].tolist() == own.outputs["token"].tolist()
    assert len(trace.cycles) < 0.7 * len(own.cycles)


def test_a_token_that_the_heads_lack_is_no_right_guess(target: Model) -> None:
    """The target chooses among all tokens. In equal states an untrained head repeats its choice."""
    torch.manual_seed(0)
    states, pair = torch.randn(1, 1, 32).expand(9, 1, 32), Pair([3, 5], [4] * 8)
    first = int((target.net.get_output_embeddings().weight @ states[0, 0]).argmax())
    others = torch.tensor([token for token in range(48) if token != first])
    for tokens, hits in ((None, [7, 6]), (torch.tensor([first]), [7, 6]), (others, [0, 0])):
        loss = HeadsLoss(target, BlockwiseHeads(2, 32, 8, tokens), lambda row: states)
        assert loss.right([pair]) == (hits, [7, 6])


def test_answers_without_states_do(target: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = answer(
        target, by_heart(target, LEARNT), tmp_path / "answers", AnswerOptions(8), say=FAST["say"]
    )
    made = train_heads(target, answers, tmp_path / "new", **FAST)
    beside = train_heads(target, by_heart(target, LEARNT), tmp_path / "beside", **FAST)
    assert made.after == pytest.approx(beside.after, abs=0.05)
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(target_states.shutil, "disk_usage", lambda path: usage)
    lines: list[str] = []
    full = train_heads(target, answers, tmp_path / "full", **{**FAST, "say": lines.append, "epochs": 2})
    assert full.held_out == 1 and "more than a quarter of the free" in lines[0]


def test_what_is_refused(target: Model, tmp_path: Path) -> None:
    out = tmp_path / "new"
    quiet = {"say": FAST["say"]}
    answers = answer(target, PROMPTS, tmp_path / "answers", AnswerOptions(4), **quiet)
    other = llama(seed=4, layers=4, name="other", eos=(47,))
    for error, words, model, prompts, given in (
        (ModelError, "answers of tiny", other, answers, {}),
        (PromptError, "two prompts", target, PROMPTS[:1], {}),
        (ParameterError, "heads must be positive", target, PROMPTS, {"heads": 0}),
        (ParameterError, "must lie in 1 .. 48, got 49", target, PROMPTS, {"draft_vocabulary": 49}),
        (ModelError, "Llama-family", specviz.load("town-t5"), PROMPTS, {}),
    ):
        with pytest.raises(error, match=words) as told:
            train_heads(model, prompts, out, **quiet, **given)
        assert "\n" not in str(told.value)
    assert not out.exists()
