"""Blockwise heads of a causal target: learning, messages and refusals."""

from __future__ import annotations

import json
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
from specviz.finetune.heads import HeadsLoss, measure, train_heads
from specviz.finetune.training import Pair, Settings, chain_tau, pairs_of
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


def test_the_cards_tau_is_that_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_states, "has_bfloat16", lambda device: False)
    target = llama(seed=3, layers=4, name="tiny", eos=())
    learnt = answer(target, PROMPTS, tmp_path / "a", AnswerOptions(8, (0.0, 0.7)), ["qa"] * 12, FAST["say"])
    made = train_heads(target, learnt, tmp_path / "new", **FAST | {"max_new_tokens": None})
    net = specviz.load(made.path)
    pairs, settings = pairs_of(learnt, drawn=False), Settings(1, 0.1, 16, None, 0, 60.0, FAST["say"])
    twin = target_states.twin(target.net)
    states = target_states.states_of_answers(twin, pairs, (4,), tmp_path, settings)
    loss = HeadsLoss(target, net.on(target).net, states)
    _, runs = measure(loss, pairs)
    texts = [pair.prompt for pair in pairs]
    trace = specviz.generate(target, texts, "blockwise", draft=net, k=4, max_new_tokens=8)
    cycles = int((trace.cycles["cycle"] > 1).sum())  # the first writes a token without a state to draft from
    assert chain_tau(runs) == pytest.approx(sum(len(pair.answer) - 1 for pair in pairs) / cycles)
    assert chain_tau(runs) > 1.1
    card = (made.path / "README.md").read_text(encoding="utf-8")
    held = [run for pair, run in zip(pairs, runs) if pair.number == 9]
    assert (
        f"| qa | 1 | {sum(run > 0 for run in held[0]) / len(held[0]):.3f} | {chain_tau(held):.2f} |" in card
    )
    assert "τ of chains of 3." in card and "150 times, peak rate 0.01 |" in card
    scores = json.loads((made.path / "scores.json").read_text(encoding="utf-8"))
    assert scores == {"tokens": made.tokens, "tau": round(chain_tau(held), 3)}


def test_end_tokens_come_first_and_a_small_vocabulary_is_reported(target: Model, tmp_path: Path) -> None:
    lines: list[str] = []
    for rows in (3, 48):
        given = {**FAST, "epochs": 1, "max_new_tokens": 4, "say": lines.append, "draft_vocabulary": rows}
        made = train_heads(target, PROMPTS, tmp_path / str(rows), **given)
        tokens = load_file(made.path / "model.safetensors")["tokens"].tolist()
        assert 47 in tokens and tokens == sorted(tokens)
        words = [line for line in lines if "different tokens: the draft can write these, not" in line]
        assert len(words) == (rows == 48) and len(tokens) == (3 if rows == 3 else int(words[0].split()[3]))


def test_a_token_that_the_heads_lack_is_no_right_guess(target: Model) -> None:
    """The target chooses among all tokens. In equal states an untrained head repeats its choice."""
    torch.manual_seed(0)
    states, pair = torch.randn(1, 1, 32).expand(9, 1, 32), Pair([3, 5], [4] * 8)
    first = int((target.net.get_output_embeddings().weight @ states[0, 0]).argmax())
    others = torch.tensor([token for token in range(48) if token != first])
    for tokens, hits in ((None, [7, 6]), (torch.tensor([first]), [7, 6]), (others, [0, 0])):
        loss = HeadsLoss(target, BlockwiseHeads(2, 32, 8, tokens), lambda row: states)
        (right,) = loss.hits([pair])
        assert ([int(head.sum()) for head in right], [len(head) for head in right]) == (hits, [7, 6])


def test_heads_without_a_place_in_any_answer_have_no_share(target: Model) -> None:
    loss = HeadsLoss(target, BlockwiseHeads(2, 32, 8, None), lambda row: torch.randn(3, 1, 32))
    shares, _ = measure(loss, [Pair([3, 5], [4, 6])])
    assert [share == share for share in shares] == [True, False]


def test_states_are_not_kept_without_room(
    target: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run can go on where there is room."""

    class Cut(Exception):
        pass

    def stop(line: str) -> None:
        lines.append(line)
        if " updates  loss" in line:
            raise Cut

    lines: list[str] = []
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    with monkeypatch.context() as patch:
        patch.setattr(target_states.shutil, "disk_usage", lambda path: usage)
        with pytest.raises(Cut):
            train_heads(target, PROMPTS, tmp_path / "new", **FAST | {"epochs": 1, "say": stop, "every": 0.0})
    assert any(line.endswith("free 0.0 GB: the target reads the texts in every epoch") for line in lines)
    assert not (tmp_path / "new.partial" / target_states.FILE).exists()
    made = train_heads(target, PROMPTS, tmp_path / "new", **FAST | {"epochs": 1})
    assert (made.learnt, made.held_out) == (11, 1)


def test_answers_may_be_given(target: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = answer(
        target, by_heart(target, LEARNT), tmp_path / "answers", AnswerOptions(8), say=FAST["say"]
    )
    own = FAST | {"max_new_tokens": None}
    made = train_heads(target, answers, tmp_path / "new", **own)
    beside = train_heads(target, by_heart(target, LEARNT), tmp_path / "beside", **FAST)
    assert made.after == pytest.approx(beside.after, abs=0.05)
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(target_states.shutil, "disk_usage", lambda path: usage)
    lines: list[str] = []
    full = train_heads(target, answers, tmp_path / "full", **{**own, "say": lines.append, "epochs": 2})
    assert full.held_out == 1 and "more than a quarter of the free" in lines[0]


def test_what_is_refused(target: Model, tmp_path: Path) -> None:
    out = tmp_path / "new"
    quiet = {"say": FAST["say"]}
    answers = answer(target, PROMPTS, tmp_path / "answers", AnswerOptions(4), **quiet)
    other = llama(seed=4, layers=4, name="other", eos=(47,))
    for error, words, model, prompts, given in (
        (ModelError, "answers of tiny", other, answers, {}),
        (PromptError, "two prompts", target, PROMPTS[:1], {}),
        (ParameterError, "heads must be a whole number of at least 1", target, PROMPTS, {"heads": 0}),
        (ParameterError, "heads must be a whole number of at least 1", target, PROMPTS, {"heads": 2.5}),
        (ParameterError, "inner must be a whole number of at least 1", target, PROMPTS, {"inner": 8.0}),
        (ParameterError, "from 1 to 48, got 49", target, PROMPTS, {"draft_vocabulary": 49}),
        (ParameterError, "max_new_tokens has no effect on answers that are given: drop it", target, answers,
         {"max_new_tokens": 4}),
        (ModelError, "Llama-family", specviz.load("town-t5"), PROMPTS, {}),
        (PromptError, "prompts is a list; for a file use list", target, "prompts.jsonl", {}),
        (PromptError, "is a question of the suite town", target, specviz.suite("town"), {}),
        (PromptError, "answers are too short: head 4 needs 5 tokens", target, answers, {"heads": 4}),
    ):  # fmt: skip
        with pytest.raises(error, match=words) as told:
            train_heads(model, prompts, out, **quiet, **given)
        assert "\n" not in str(told.value)
    assert not out.exists()
