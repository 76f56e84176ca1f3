"""Prediction alignment of tiny random pairs: learning, refusals, and resuming after a kill."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tiny import llama

import specviz
from specviz.cli import run
from specviz.errors import ModelError, ParameterError, PromptError
from specviz.finetune import align as module
from specviz.finetune import answers, checkpoint, target_states, training
from specviz.finetune.align import align
from specviz.finetune.cut import cut
from specviz.finetune.eagle import train_eagle
from specviz.finetune.heads import train_heads
from specviz.models import Model

WORDS = [f"w{i}" for i in range(30)]
PROMPTS = [f"w{i} w{(3 * i) % 30} w{(7 * i + 2) % 30}" for i in range(20)]
FAST = {"epochs": 40, "rate": 0.01, "batch": 5, "max_new_tokens": 6}


def _save(folder: Path, kind: str, seed: int, **changes: Any) -> Path:
    """Save a tiny model with a vocabulary of words; 0 is padding, 1 the end and 2 the start."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
        T5Config,
        T5ForConditionalGeneration,
    )

    torch.manual_seed(seed)
    words = ["<pad>", "<end>", "<start>", *changes.pop("words", WORDS)]
    rows = len(words) + changes.pop("padding", 0)
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", pad_token="<pad>").save_pretrained(
        folder
    )
    if kind == "causal":
        net: Any = LlamaForCausalLM(LlamaConfig(
            vocab_size=rows, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=48, max_position_embeddings=64, eos_token_id=1, bos_token_id=None,
            initializer_range=0.2, tie_word_embeddings=True,
        ))  # fmt: skip
    else:
        net = T5ForConditionalGeneration(T5Config(
            vocab_size=rows, d_model=32, d_kv=16, d_ff=48, num_layers=1, num_decoder_layers=2,
            num_heads=2, dropout_rate=0.0, pad_token_id=0, eos_token_id=1, decoder_start_token_id=2,
        ))  # fmt: skip
    with torch.no_grad():  # as in published models, padding is never the most likely token
        net.get_output_embeddings().weight[len(words) :] = 0
    net.to(changes.pop("dtype", torch.float32)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["causal", "encoder-decoder"])
def pair(request, tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    return _save(folder / "large", request.param, 0), _save(
        folder / "small", request.param, 1, dtype=torch.float16
    )


def _quiet(line: str) -> None: ...


def test_the_answers_are_the_targets_own(pair, tmp_path: Path) -> None:
    model = specviz.load(pair[0])
    asked = [model.encode(prompt) for prompt in PROMPTS[:6]] + [model.encode("w3")]
    made = answers.answer(model, asked, tmp_path / "answers.jsonl", answers.AnswerOptions(6), say=_quiet)
    assert sorted(row["number"] for row in made.rows) == list(range(7))
    for row in made.rows:
        prompt, answer = asked[row["number"]], row["answer"]
        own = specviz.generate(model, [prompt], "autoregressive", max_new_tokens=6).outputs["token"].tolist()
        assert answer == own


def test_a_draft_learns_what_its_target_says(pair, tmp_path: Path) -> None:
    target, draft = pair
    weights = load_file(draft / "model.safetensors")
    said: list[str] = []
    found = align(target, draft, PROMPTS[:10], tmp_path / "new", say=said.append, **FAST)
    assert (found.learnt, found.held_out) == (9, 1)
    assert found.before[0] < 0.5
    shares = [f"{share:.3f}" for share in (*found.before, *found.after)]
    assert str(found).endswith(f"on 1 held-out answer: {shares[0]} before, {shares[1]} after)")
    assert f"|  | {' | '.join(shares)} |" in (tmp_path / "new" / "README.md").read_text()
    assert not list(tmp_path.glob("*.partial")) and not list(tmp_path.glob("*.old"))
    assert any("updates" in line for line in said)
    new = load_file(tmp_path / "new" / "model.safetensors")
    assert {t.dtype for t in new.values()} == {torch.float16}
    old = load_file(draft / "model.safetensors")
    assert all(torch.equal(old[name], weights[name]) for name in weights)
    teacher, learner = specviz.load(target), specviz.load(tmp_path / "new", dtype="float32")
    asked = [teacher.encode(prompt) for prompt in PROMPTS[:9]]
    made = answers.answer(teacher, asked, tmp_path / "own", answers.AnswerOptions(6), say=_quiet)
    # Texts this easy must be memorised.
    assert module.share(module.hits(module.Student(learner), training.pairs_of(made))) == 1
    trace = specviz.generate(
        teacher, PROMPTS[:9], "speculative", draft=specviz.load(tmp_path / "new"), draft_length=2,
        max_new_tokens=6,
    )  # fmt: skip
    from specviz.metrics import acceptance_rate

    assert acceptance_rate(trace) > 0.9


@pytest.mark.parametrize("padding", [(7, 0), (0, 7)])
@pytest.mark.parametrize("kind", ["causal", "encoder-decoder"])
def test_heads_padded_to_different_sizes_share_their_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, padding: tuple[int, int]
) -> None:
    target, draft = (
        _save(tmp_path / name, kind, seed, padding=rows)
        for seed, (name, rows) in enumerate(zip(("large", "small"), padding))
    )
    real, laws = module.Judge.__call__, []

    def judged(self: Any, pairs: Any) -> torch.Tensor:
        laws.append(real(self, pairs))
        return laws[-1]

    monkeypatch.setattr(module.Judge, "__call__", judged)
    said: list[str] = []
    given = {**FAST, "soft": True, "every": 0.0, "say": said.append}
    made = align(target, draft, PROMPTS[:10], tmp_path / "new", **given)
    losses = [float(re.search(r"loss ([\d.]+)", line)[1]) for line in said if "loss" in line]
    assert losses[-1] < losses[0]
    assert {law.shape[1] for law in laws} == {3 + len(WORDS)}
    assert all(torch.allclose(law.sum(-1), torch.ones(len(law)), atol=1e-4) for law in laws)
    assert specviz.load(made.path).vocabulary == 3 + len(WORDS) + padding[1]


@pytest.mark.parametrize("family", ["llama", "cohere", "phi"])
@pytest.mark.parametrize("stored", [False, True])
def test_what_is_distilled_is_the_targets_own_law(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, stored: bool
) -> None:
    """It comes from stored last states if the head alone determines it; otherwise the target runs."""
    from transformers import CohereConfig, CohereForCausalLM, PhiConfig, PhiForCausalLM

    torch.manual_seed(0)
    shape = {"vocab_size": 48, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "intermediate_size": 48, "initializer_range": 0.5, "pad_token_id": 0,
             "bos_token_id": 0, "eos_token_id": 1}  # fmt: skip
    target = llama(3, 4, eos=(47,))
    if family == "cohere":  # scales its logits
        target = Model(CohereForCausalLM(CohereConfig(**shape, logit_scale=0.1)).eval(), name=family)
    if family == "phi":  # its head has a bias
        net = PhiForCausalLM(PhiConfig(**shape)).eval()
        torch.nn.init.normal_(net.lm_head.bias)
        target = Model(net, name=family)
    prompts: Any = [[3 + i, 5 + i % 7, 9] for i in range(12)]
    if stored:  # without states
        prompts = answers.answer(target, prompts, tmp_path / "a", answers.AnswerOptions(6), say=_quiet)
    real, compared = module.Judge.__call__, []

    def judged(self: Any, pairs: Any) -> torch.Tensor:
        law, (scores, _) = real(self, pairs), module._scores(target.net, pairs, None)
        compared.append((law - scores.softmax(-1)).abs().max().item())
        assert (self.kept is None) == (family == "cohere")
        return law

    monkeypatch.setattr(module.Judge, "__call__", judged)
    for part in (training, target_states):  # otherwise logits and states are rounded, too
        monkeypatch.setattr(part, "has_bfloat16", lambda device: False)
    most = None if stored else 6
    align(
        target, llama(4, 4), prompts, tmp_path / "new", soft=True, epochs=1, max_new_tokens=most, say=_quiet
    )
    assert compared and max(compared) < 0.02  # states are stored in bfloat16


def test_prompts_are_taken_as_generate_takes_them(pair, tmp_path: Path) -> None:
    entries = [{"id": str(i), "turns": [prompt, "And then?"]} for i, prompt in enumerate(PROMPTS[:4])]
    given = {"epochs": 1, "max_new_tokens": 4, "say": _quiet}
    made = [align(*pair, prompts, tmp_path / str(len(prompts[0])), **given).path
            for prompts in (entries, PROMPTS[:4])]  # fmt: skip
    one, other = (load_file(folder / "model.safetensors") for folder in made)
    assert all(torch.equal(one[name], other[name]) for name in one)
    chat = [{"role": "user", "content": "w1"}]
    given = [{"messages": chat, "kind": "qa"}, {"prompt": "w1", "kind": None}, [3]]
    assert training.tasks(given) == [(chat, "qa"), ("w1", ""), ([3], "")]
    assert training.tasks(chat) == [(chat, "")]
    assert training.tasks(np.array(["w1", "w2"])) == [("w1", ""), ("w2", "")], "a column of a table"


def test_kinds_of_work_come_with_the_prompts_and_open_no_markdown(tmp_path: Path) -> None:
    target, draft = (llama(seed, 4, eos=(47,), name=f"m{seed}`<b>") for seed in (3, 4))
    prompts = [{"prompt": [3 + i, 5], "kind": "a|b<i>"} for i in range(6)]
    made = align(target, draft, prompts, tmp_path / "<u>", epochs=1, max_new_tokens=4, say=_quiet)
    card = (made.path / "README.md").read_text(encoding="utf-8")
    assert r"| a\|b&lt;i> | 1 | " in card
    assert not re.search("<[biu]>", card) and card.startswith("# &lt;u>\n") and "of m3\\`&lt;b> (" in card


def test_only_answers_are_learnt(pair) -> None:
    """The loss is the mean over the answers' tokens, as for single rows, whatever the batch's padding."""
    model = specviz.load(pair[1], dtype="float32")
    prefix = getattr(model, "prefix", None)
    pairs = [training.Pair([5, 6, 7, 8], [9, 10, 1]), training.Pair([4], [3, 3, 4, 5, 6, 7])]
    heads: list[int] = []
    head = model.net.get_output_embeddings()
    seen = head.register_forward_hook(lambda _, read, scores: heads.append(scores[..., 0].numel()))
    scores, wanted = module._scores(model.net, pairs, prefix)
    seen.remove()
    assert heads == [len(wanted)]  # no logits for prompts or padding
    assert wanted.tolist() == [9, 10, 1, 3, 3, 4, 5, 6, 7]
    rows = []
    for prompt, answer, *_ in pairs:
        if prefix:
            ids = {"input_ids": [prompt], "decoder_input_ids": [[*prefix, *answer[:-1]]]}
        else:
            ids = {"input_ids": [prompt + answer[:-1]]}
        rows.append(model.net(**{n: torch.tensor(v) for n, v in ids.items()}).logits[0, -len(answer) :])
    assert torch.allclose(scores, torch.cat(rows), atol=1e-4)


def test_a_stopped_alignment_goes_on_as_if_nothing_had_been(pair, tmp_path: Path, monkeypatch) -> None:
    target, draft = pair
    given = {**FAST, "epochs": 4, "every": 0.0, "say": _quiet}
    align(target, draft, PROMPTS, tmp_path / "whole", **given)
    real, count = training.write_checkpoint, [0]

    def killed(*arguments: Any) -> None:
        real(*arguments)
        count[0] += 1
        if count[0] == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(training, "write_checkpoint", killed)
    with pytest.raises(KeyboardInterrupt):
        align(target, draft, PROMPTS, tmp_path / "broken", **given)
    assert not (tmp_path / "broken").exists()
    with pytest.raises(ModelError, match="left by another run or an earlier version: continue it with"):
        align(target, draft, PROMPTS, tmp_path / "broken", **{**given, "seed": 5})
    settings = tmp_path / "broken.partial" / "settings"
    marks = settings.read_text()
    settings.write_text(marks.split()[0])  # as earlier versions wrote it
    with pytest.raises(ModelError, match="left by another run or an earlier version: continue it with"):
        align(target, draft, PROMPTS, tmp_path / "broken", **given)
    settings.write_text(marks)
    said: list[str] = []
    monkeypatch.setattr(answers, "_answer_batch", None)  # the answers exist already
    found = align(target, draft, PROMPTS, tmp_path / "broken", **{**given, "say": said.append})
    assert said[0].startswith("resuming after 6 of ")
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "broken"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert (found.learnt, found.held_out) == (18, 2)
    cards = [(tmp_path / name / "README.md").read_text(encoding="utf-8") for name in ("whole", "broken")]
    curves = [re.findall(r"\| (\d+) \| [\d.]+ \| (\d+\.\d{3}) \|", card) for card in cards]
    assert curves[0] == curves[1] and len(curves[0]) == training.POINTS


@pytest.mark.parametrize("soft", [False, True])
def test_answers_that_were_cut_off_go_on_as_if_nothing_had_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, soft: bool
) -> None:
    """The lines are then in another order, but the drafter learns the same weights."""
    target, draft = llama(3, 4, eos=(47,)), llama(4, 4, eos=(47,))
    prompts = [[3 + i, 5 + i % 7, *range(9, 9 + i % 4)] for i in range(20)]
    given = {"epochs": 2, "batch": 4, "max_new_tokens": 9, "soft": soft, "say": _quiet}
    align(target, draft, prompts, tmp_path / "whole", **given)
    real = answers._decoded

    def killed(*arguments: Any) -> Any:
        for number, each in enumerate(real(*arguments)):
            if number == 7:
                raise KeyboardInterrupt
            yield each

    with monkeypatch.context() as patch:
        patch.setattr(answers, "_decoded", killed)
        with pytest.raises(KeyboardInterrupt):
            align(target, draft, prompts, tmp_path / "broken", **given)
    align(target, draft, prompts, tmp_path / "broken", **given)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "broken"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_that_was_killed_at_its_beginning_is_no_other_run(tmp_path: Path) -> None:
    partial = tmp_path / "new.partial"
    partial.mkdir()
    (partial / ".0123456789abcdef.part").write_text("ha")
    assert training.begun(tmp_path / "new", ["mark", 3], force=False) == partial
    (partial / "answers.jsonl").write_text("")
    assert training.begun(tmp_path / "new", ["mark", 3.0], force=False) == partial
    with pytest.raises(ModelError, match="left by another run"):
        training.begun(tmp_path / "new", ["another"], force=False)


def test_a_training_that_fails_says_so_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = llama(3, 4, eos=(47,)), llama(4, 4, eos=(47,))
    prompts, out = [[3 + i, 5] for i in range(6)], tmp_path / "new"
    given = {"batch": 2, "max_new_tokens": 4, "every": 0.0, "say": _quiet}
    for epochs in (float("inf"), float("nan"), 0):
        with pytest.raises(ParameterError, match="epochs must be positive"):
            align(target, draft, prompts, out, epochs=epochs, **given)
    with pytest.raises(ModelError, match="the loss is not finite: lower the rate"):
        align(target, draft, prompts, out, rate=1e30, **given)
    assert not out.exists()
    with monkeypatch.context() as patch:
        patch.setattr(training, "rate_at", lambda progress: 1.0 if progress < 0.5 else _stop())
        with pytest.raises(KeyboardInterrupt):
            align(target, draft, prompts, out, force=True, **given)
    checkpoint = tmp_path / "new.partial" / training.CHECKPOINT
    checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    with pytest.raises(ModelError, match="is damaged: delete it to start the training again"):
        align(target, draft, prompts, out, **given)


def _stop() -> float:
    raise KeyboardInterrupt


def test_other_settings_of_the_training_leave_the_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = llama(3, 4, eos=(47,)), llama(4, 4, eos=(47,))
    prompts, out = [[3 + i, 5] for i in range(6)], tmp_path / "new"
    lines: list[str] = []
    given = {"batch": 2, "max_new_tokens": 4, "soft": True, "every": 0.0, "say": lines.append}
    with pytest.raises(ModelError, match=r"lower the rate, with --force \(it keeps the answers\)"):
        align(target, draft, prompts, out, rate=1e30, **given)
    kept = sorted(path.name for path in (tmp_path / "new.partial").iterdir())
    assert kept == ["answers.jsonl", training.CHECKPOINT, training.CURVE, "settings", target_states.FILE]
    with pytest.raises(ModelError, match=r"overwrite it with --force$"):
        align(target, draft, prompts[1:], out, **given)
    monkeypatch.setattr(answers, "_answer_batch", None)  # the answers exist already
    with pytest.raises(ModelError, match=r"overwrite it with --force \(its answers stay\)$"):
        align(target, draft, prompts, out, rate=0.001, **given)
    lines.clear()
    align(target, draft, prompts, out, rate=0.001, force=True, **given)
    first = next(line for line in lines if not line.startswith("the target reads"))  # its states, again
    assert first.startswith("5 answers to learn") and [path.name for path in tmp_path.iterdir()] == ["new"]


@pytest.mark.parametrize("epochs", [0.2, 2])
def test_rates_are_those_of_the_middles_of_the_updates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs: float
) -> None:
    """Otherwise a training of one update would only warm up."""
    target, draft = llama(3, 4, eos=(47,)), llama(4, 4, eos=(47,))
    points: list[float] = []
    real = training.rate_at
    monkeypatch.setattr(training, "rate_at", lambda progress: points.append(progress) or real(progress))
    prompts: Any = [[3 + i, 5] for i in range(6)]
    align(target, draft, prompts, tmp_path / "new", epochs=epochs, max_new_tokens=4, say=_quiet)
    assert points == ([0.5] if epochs < 1 else [0.25, 0.75])


def test_only_one_process_works_in_a_folder(tmp_path: Path) -> None:
    target, draft = llama(3, 4, eos=(47,)), llama(4, 4, eos=(47,))
    prompts: Any = [[3 + i, 5] for i in range(6)]
    held: list[str] = []

    def repeat(line: str) -> None:
        with pytest.raises(ModelError, match=r"new\.partial is being written by another run: wait") as error:
            align(target, draft, prompts, tmp_path / "new", force=True, say=_quiet)
        held.append(str(error.value))

    align(target, draft, prompts, tmp_path / "new", epochs=1, max_new_tokens=4, say=repeat)
    assert held and [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_checkpoint_is_on_the_disk_before_it_replaces_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, n=name, real=real: [calls.append(n), real(*given)][1])
    net = torch.nn.Linear(2, 2)
    checkpoint.write_checkpoint(tmp_path / "a", checkpoint.Optimizer(net, 0.1, 0.1), {"updates": 3})
    assert calls == ["fsync", "replace"]


def test_a_drafter_of_a_folder_is_bound_to_its_weights(tmp_path: Path) -> None:
    own, moved, other = (tmp_path / name / "my-model" for name in ("a", "moved", "b"))
    for folder, seed in ((own, 0), (other, 1)):
        _save(folder, "causal", seed)
    given = {"heads": 1, "inner": 8, "epochs": 1, "max_new_tokens": 4, "say": _quiet}
    heads = train_heads(own, PROMPTS[:4], tmp_path / "heads", **given).path
    shutil.copytree(own, moved.with_name("elsewhere"))
    specviz.load(heads).on(specviz.load(moved.with_name("elsewhere"), dtype="bfloat16"))
    with pytest.raises(ModelError, match=r"trained on my-model .* and this my-model has different weights"):
        specviz.load(heads).on(specviz.load(other))
    config = json.loads((heads / "config.json").read_text(encoding="utf-8"))
    del config["content"]  # as drafters of before
    (heads / "config.json").write_text(json.dumps(config), encoding="utf-8")
    specviz.load(heads).on(specviz.load(other))


def test_answers_without_room_are_reported(tmp_path: Path) -> None:
    target, draft = llama(3, 4, eos=()), llama(4, 4, eos=(), max_length=12)
    prompts = [[3 + i] * (9 if i == 2 else 2) for i in range(6)]
    made = answers.answer(target, prompts, tmp_path / "a", answers.AnswerOptions(6), say=_quiet)
    said: list[str] = []
    assert align(target, draft, made, tmp_path / "new", epochs=1, say=said.append).learnt == 4
    assert said[0] == "left out, as a model has no room: 1 answer"


def test_a_full_disk_is_one_line_and_the_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, draft = llama(3, 4, eos=(47,)), llama(4, 4, eos=(47,))
    prompts, out = [[3 + i, 5] for i in range(6)], tmp_path / "new"
    given = {"batch": 2, "max_new_tokens": 4, "say": _quiet}

    def full(*arguments: Any, **options: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    for owner, name, path in (
        (checkpoint, "save_file", r"new.partial/checkpoint.safetensors"),
        (module.Student, "save", r"new.partial/model"),
    ):
        words = rf"^cannot write .*/{path} \(Error .*\(os error 28\)\): remove the cause, then repeat"
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, full)
            with pytest.raises(ModelError, match=words):
                align(target, draft, prompts, out, **given)
        assert not out.exists() and not list(tmp_path.glob("new.partial/.*.part"))
    align(target, draft, prompts, out, **given)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_a_replaced_folder_that_cannot_be_moved_or_deleted(tmp_path: Path, monkeypatch) -> None:
    path, partial = tmp_path / "new", tmp_path / "new.partial"
    path.mkdir()
    partial.mkdir()
    (path / "config.json").write_text("old")
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda *given: False)
        with pytest.raises(
            ModelError, match=r"new is read-only: make it writable, or choose another folder$"
        ):
            training.vacant(path, force=True)

    def full(*given: Any, **options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    def write(folder: Path) -> None:
        (folder / "config.json").write_text("new")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(ModelError, match=r"^cannot write .*new \(Permission denied\): remove the cause"):
            training.publish(partial, path, write, "")
    assert (path / "config.json").read_text() == "old"
    shutil.rmtree(partial / "model")
    monkeypatch.setattr(os, "unlink", full)
    monkeypatch.setattr(os, "rmdir", full)
    training.publish(partial, path, write, "")
    assert (path / "config.json").read_text() == "new"
    with pytest.raises(ModelError, match=r"^cannot write .*new.partial \(Permission denied\)"):
        training.begun(path, ["other"], force=True)


def test_models_in_memory_are_aligned_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[str | None] = []

    def load(model: Any, device: str | None, *rest: Any, **options: Any) -> SimpleNamespace:
        devices.append(device)
        return SimpleNamespace(name="some")

    monkeypatch.setattr(module, "load", load)
    one, other = (SimpleNamespace(device=torch.device(name)) for name in ("cuda:0", "cpu"))
    for given in ((one, "town-draft"), ("town", one), (one, one), ("town", "town-draft")):
        with pytest.raises(ModelError, match=r"llama\.cpp"):
            module._pair(*given, None)
    assert devices == ["cuda:0"] * 6 + [None] * 2
    with pytest.raises(ModelError, match="target and draft are on cuda:0 and cpu: load both on one device"):
        module._pair(one, other, None)


def test_what_is_refused_is_refused_before_work(pair, tmp_path: Path, monkeypatch) -> None:
    target, draft = pair
    monkeypatch.setattr(answers, "_answer_batch", None)
    foreign = _save(tmp_path / "foreign", "causal", 2, words=["x", *WORDS[1:]])
    kind = "causal" if json.loads((target / "config.json").read_text())["model_type"] == "t5" else "t5"
    other = _save(tmp_path / "other", kind, 2)
    full = tmp_path / "full"
    full.mkdir()
    out = tmp_path / "new"
    for error, words, call in (
        (ModelError, "of the same kind as the target", (target, other, PROMPTS, out)),
        (ModelError, "exists: choose another folder$", (target, draft, PROMPTS, full)),
        (ModelError, "--force", (target, draft, PROMPTS, draft)),
        *(
            (ModelError, "exists: choose another folder$", (target, draft, PROMPTS, name))
            for name in (".", "/", "")
        ),
        (PromptError, "two prompts", (target, draft, PROMPTS[:1], out)),
        (PromptError, "prompt 2 of 3", (target, draft, ["w1", "", "w2"], out)),
        (PromptError, "two different prompts", (target, draft, ["w1"] * 12, out)),
        (PromptError, "prompts is a list; for a file use list", (target, draft, "prompts.jsonl", out)),
        (PromptError, "prompts is a list; for a file use list", (target, draft, Path("a.txt"), out)),
    ):
        with pytest.raises(error, match=words):
            align(*call, say=_quiet)
    if kind == "t5":
        with pytest.raises(ModelError, match="different vocabularies"):
            align(target, foreign, PROMPTS, out, say=_quiet)
        with pytest.raises(PromptError, match="prompt 2 has 64 tokens and leaves no room"):
            align(target, draft, ["w1", " ".join(["w1"] * 64)], out, say=_quiet)
    for name, value in (("epochs", 0), ("rate", 0), ("batch", 0), ("max_new_tokens", 0), ("batch", 2.5)):
        number = "positive" if name in ("epochs", "rate") else "a whole number of at least 1"
        with pytest.raises(ParameterError, match=f"{name} must be {number}, got {value}"):
            align(target, draft, PROMPTS, out / "deep" / "er", say=_quiet, **{name: value})
    assert {p.name for p in tmp_path.iterdir()} == {"foreign", "other", "full"}


def test_a_model_in_memory_is_used_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other device is passed on, and the advice for another number format names a parameter of load."""

    class Loading(Exception):
        pass

    def load(model: Any, device: Any, *rest: Any, **options: Any) -> None:
        raise Loading(device)

    target, half = llama(3, 4, eos=(47,)), llama(4, 4, eos=(47,), name="half")
    learnt = answers.answer(target, [[3, 5], [4, 6]], tmp_path / "a", answers.AnswerOptions(4), say=_quiet)
    half.net.to(torch.bfloat16)
    with pytest.raises(ModelError, match="the model is in bfloat16: load it with dtype='float32'"):
        align(half.net, target, learnt, tmp_path / "new")
    assert half.net.dtype == torch.bfloat16
    for train, given in (
        (align, (target, learnt)), (train_eagle, (learnt,)), (train_heads, (learnt,)), (cut, (learnt,)),
    ):  # fmt: skip
        with pytest.raises(
            ModelError, match="half is in bfloat16: load it with dtype='float32' for training"
        ):
            train(half, *given, tmp_path / "new")
        with monkeypatch.context() as patch:
            patch.setattr(sys.modules[train.__module__], "load", load)
            with pytest.raises(Loading, match=r"None|cpu"):
                train(target, *given, tmp_path / "new")


def test_the_command(pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, draft = map(str, pair)
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join(PROMPTS), encoding="utf-8")
    out = str(tmp_path / "new")
    given = [
        "models",
        "align",
        draft,
        "--target",
        target,
        "--prompts",
        str(file),
        "--out",
        out,
        "--epochs",
        "1",
    ]
    assert run([*given, "--max-new-tokens", "4", "--threads", "1"]) == 0
    told = capsys.readouterr().out
    assert f"aligned: {out} (agreement with the target, on 2 held-out answers: " in told
    assert f"--draft {out}" in told
    assert run(given) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert run([*given, "--force", "-n", "4", "--threads", "1"]) == 0
    assert not Path(f"{out}.old").exists()
    assert run(["models", "align", "no-such", "-t", target, "--prompts", str(file), "-o", out]) == 2
    assert "no-such" in capsys.readouterr().err


def test_some_prompt_is_learnt_and_some_is_held_out() -> None:
    for numbers in ([3, 7], [0, 1, 2], list(range(0, 40, 3))):  # gaps: answers were too long
        pairs = [training.Pair([5 + number], [6, 1], number) for number in numbers]
        learnt, held = training.parted(pairs)
        assert learnt and held and len(learnt) + len(held) == len(numbers)
        # Whatever is left out, a prompt's number alone decides whether it is held out.
        assert {pair.number % 10 for pair in held} == {9} or {pair.number for pair in held} == {numbers[-1]}
    with pytest.raises(PromptError, match="is held out or repeats one that is: give two different prompts"):
        training.parted([training.Pair([5], [6, 1], 4), training.Pair([5], [7, 1], 4)])
    with pytest.raises(PromptError, match="is held out or repeats one that is: give two different prompts"):
        training.parted([training.Pair([5], [6, 1], 4), training.Pair([5], [7, 1], 8)])


def test_of_many_held_out_answers_some_of_every_kind_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "MEASURED", 20)
    pairs = [
        training.Pair([5, number], [6, 1], number, kind="first" if number < 500 else "last")
        for number in range(1000)
    ]
    _, held = training.parted(pairs)
    assert len(held) == 20 and {pair.kind for pair in held} == {"first", "last"}


def test_nothing_is_learnt_of_a_held_out_prompt_that_stands_twice() -> None:
    """Otherwise its greedy answer would be memorised, and the measurement would not be held out."""
    pairs = [training.Pair([5 + number % 15], [6, 1], number) for number in range(30)]
    pairs += [training.Pair([5 + 14], [7, 1], 29, drawn=True)]
    lines: list[str] = []
    learnt, held = training.parted(pairs, lines.append)
    assert lines == ["left out, as their prompts are held out under another number: 3 answers"]
    assert [pair.number for pair in held] == [9, 19, 29, 29]
    assert not {tuple(pair.prompt) for pair in held} & {tuple(pair.prompt) for pair in learnt}
    assert {pair.number for pair in learnt} == set(range(30)) - {9, 24, 4, 19, 14, 29}


def test_drawn_answers_must_be_given(pair, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="drawn answers must be given"):
        align(*pair, PROMPTS, tmp_path / "new", drawn=True)


def test_answers_of_the_other_kind_are_refused(tmp_path: Path) -> None:
    target, draft = llama(3, 4, eos=(47,)), llama(4, 4, eos=(47,))
    prompts = [[3 + i, 5] for i in range(4)]
    for temperature, drawn, words in (
        (0.7, False, "sampled.jsonl holds no greedy answers: add --drawn"),
        (0.0, True, "greedy.jsonl holds no sampled answers: drop --drawn"),
    ):
        file = tmp_path / f"{'greedy' if drawn else 'sampled'}.jsonl"
        made = answers.answer(target, prompts, file, answers.AnswerOptions(4, (temperature,)), say=_quiet)
        with pytest.raises(PromptError, match=words):
            align(target, draft, made, tmp_path / "new", drawn=drawn, say=_quiet)
        align(target, draft, made, tmp_path / file.stem, drawn=None, epochs=1, say=_quiet)
    assert {p.name for p in tmp_path.iterdir()} == {"greedy.jsonl", "greedy", "sampled.jsonl", "sampled"}


def test_another_draft_of_the_same_name_does_not_go_on(tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    def stop(line: str) -> None:
        if " of " in line and "updates" in line:
            raise Cut

    target = _save(tmp_path / "large", "causal", 0)
    drafts = [_save(tmp_path / folder / "small", "causal", seed) for seed, folder in ((1, "a"), (2, "b"))]
    with pytest.raises(Cut):
        align(target, drafts[0], PROMPTS, tmp_path / "new", **FAST, every=0.0, say=stop)
    with pytest.raises(ModelError, match="left by another run"):
        align(target, drafts[1], PROMPTS, tmp_path / "new", **FAST)
