"""EAGLE's losses against step-by-step drafting, drafters for a user's model, and the bundled model cards."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tiny import by_heart, llama
from transformers import GemmaConfig, GemmaForCausalLM, GPT2Config, GPT2LMHeadModel

import specviz
from specviz.cli import run
from specviz.errors import ModelError, ParameterError, PromptError
from specviz.finetune import answers, eagle_loss, target_states, training
from specviz.finetune.eagle import KeptLoss, measure, save, train_eagle
from specviz.models import Model, kernels
from specviz.models.additions import EagleHead
from specviz.models.eagle import LAYERS, Eagle, Variant
from town.corpus import tasks
from town.training import eagle_cards, evaluate, recipes, shards
from town.training.eagle import ReadingLoss

PROMPTS = [[3 + i, 5 + i % 7, 9] for i in range(12)]
LEARNT = PROMPTS[:9]
FAST = {"layers": (1, 2, 4), "batch": 5, "max_new_tokens": 8, "say": lambda line: None}
KINDS = [(1, None), (3, None), (3, 20)]


@pytest.fixture
def target() -> Model:
    return llama(seed=3, layers=4, name="tiny", eos=(47,))


def head(target: Model, generation: int, rows: int | None) -> EagleHead:
    """A random drafter; with `rows`, its head covers every second token."""
    config = target.config.__class__(**{**target.config.to_dict(), "num_hidden_layers": 1})
    torch.manual_seed(1)
    net = Eagle(config, generation, rows)
    for parameter in net.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    if rows:
        net.d2t.copy_(torch.arange(rows))
    return EagleHead(net.eval(), {LAYERS: [1, 2, 4], "target": "tiny"}, "head")


# --- the loss ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("generation", "rows"), KINDS)
def test_the_loss_is_that_of_drafting_step_by_step(target: Model, generation: int, rows: int | None) -> None:
    """Every chain is drafted as in a run, token by token over a cache, and scored only within answers."""
    made, steps = head(target, generation, rows), 3
    drafter = made.on(target)
    rng = np.random.default_rng(0)
    tokens, answer = rng.integers(0, 48, (3, 9)), np.zeros((3, 9), bool)
    answer[0, 3:7] = answer[1, 5:9] = answer[2, 4:6] = answer[2, 8] = True
    kept = torch.arange(48) if rows is None else 2 * torch.arange(rows)
    total = shown = 0.0
    hits, counted = [0] * steps, [0] * steps
    for ids, said in zip(torch.from_numpy(tokens), answer):
        with torch.no_grad():
            out = target.net(input_ids=ids[None], output_hidden_states=True)
        states = torch.cat([out.hidden_states[layer][0] for layer in drafter.layers], -1)
        for i in range(7):
            context = drafter.open([ids.tolist()], steps)
            state, logits = context.read(ids[1 : i + 2], states[: i + 1])
            for step in range(min(steps, 7 - i)):
                at = i + 2 + step
                if step:
                    above = None if step == 1 else torch.tensor([step - 2])
                    state, logits = context.grow(ids[at - 1 : at], state, above)
                if not (said[i + 2] and said[at]):
                    continue
                p = out.logits[0, at - 1, kept].softmax(-1)
                cross = -float(p @ logits[0].log_softmax(-1))
                shown += cross * (step == 0)
                if generation == 3:
                    total += 0.8**step * cross
                elif step == 0:
                    imitated = F.smooth_l1_loss(state[0], out.hidden_states[-1][0, at - 1])
                    total += 1.0 * cross + float(imitated)
                hits[step] += int(kept[logits[0].argmax()] == out.logits[0, at - 1].argmax())
                counted[step] += 1
    loss = ReadingLoss(target.net, (1, 2, 4), steps)
    found = loss(made.net, tokens, answer, 0.0)
    assert [float(value.detach()) for value in found] == pytest.approx([total, shown], rel=1e-4)
    assert loss.right(made.net, tokens, answer, steps) == (hits, counted)
    made.net.train()  # generation 1 then adds noise to the states
    noisy = float(loss(made.net, tokens, answer, 0.0)[0].detach())
    assert (noisy == pytest.approx(total, rel=1e-4)) == (generation == 3)


# --- a user's target ---------------------------------------------------------------------------


@pytest.mark.parametrize(("generation", "rows"), KINDS)
def test_a_drafter_learns_what_its_target_says(
    target: Model, tmp_path: Path, generation: int, rows: int | None
) -> None:
    said: list[str] = []
    given = {**FAST, "layers": FAST["layers"] if generation == 3 else None, "draft_vocabulary": rows}
    out = tmp_path / "new"
    given |= {"epochs": 120, "rate": 0.02, "batch": 9, "every": 0.0, "say": said.append}
    found = train_eagle(target, by_heart(target, LEARNT), out, generation, **given)
    assert (found.learnt, found.held_out) == (9, 1)
    losses = [float(re.search(r"loss ([\d.]+)", line)[1]) for line in said if "loss" in line]
    assert losses[-1] < 0.6 * losses[0]
    assert found.before[0] < 0.3
    assert found.after[0] >= (0.5 if rows else 0.8)  # a small head lacks some of the answer's tokens
    assert sum(found.after[1:]) > sum(found.before[1:])
    text = (out / "README.md").read_text(encoding="utf-8")
    assert f"| 1 | {found.before[0]:.3f} | {found.after[0]:.3f} |" in text
    assert not list(tmp_path.glob("*.partial"))

    stored = load_file(out / "model.safetensors")
    layer = "midlayer" if generation == 3 else "layers.0"
    assert stored[f"{layer}.self_attn.q_proj.weight"].shape == (32, 32 * (1 + (generation == 3)))
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert config.get(LAYERS) == ([1, 2, 4] if generation == 3 else None)
    if rows:
        alone = specviz.generate(target, LEARNT, "autoregressive", max_new_tokens=8).outputs
        counts = np.bincount(alone["token"], minlength=48)
        kept = torch.arange(rows) + stored["d2t"]
        assert (
            kept.tolist() == sorted(kept.tolist()) and stored["t2d"].nonzero()[:, 0].tolist() == kept.tolist()
        )
        assert counts[kept].min() >= np.delete(counts, kept).max()
        assert config["draft_vocab_size"] == rows == len(stored["lm_head.weight"])

    assert Model(target.net).plain  # no hooks remain on it
    assert target.net.lm_head.weight.requires_grad
    drafter = specviz.load(out)
    run = {"max_new_tokens": 8}
    trace = specviz.generate(target, LEARNT[:3], "eagle", draft=drafter, **run)
    alone = specviz.generate(target, LEARNT[:3], "autoregressive", **run)
    assert trace.outputs["token"].tolist() == alone.outputs["token"].tolist()
    assert len(trace.cycles) < len(alone.cycles)


def test_steps_that_no_answer_has_are_no_zeros(tmp_path: Path) -> None:
    target = llama(seed=3, layers=4, name="tiny", eos=())
    made = train_eagle(target, PROMPTS, tmp_path / "new", **FAST | {"max_new_tokens": 3, "epochs": 1})
    assert np.isnan([*made.before, *made.after]).tolist() == [False, False, False, True] * 2
    assert str(made).endswith(f"{made.after[2]:.3f}, – after)")
    assert "| 4 | – | – |" in (made.path / "README.md").read_text(encoding="utf-8")


def test_a_head_without_rows_of_its_own_has_the_targets_bias(target: Model) -> None:
    torch.manual_seed(0)
    net, out = target_states.twin(target.net), torch.randn(5, 32)
    net.lm_head.bias = torch.nn.Parameter(torch.randn(48))
    whole, rows = (
        Eagle(target.config, 3, number, variant=Variant(head=False)).eval() for number in (None, 48)
    )
    scores = [eagle_loss.EagleLoss(net)._words(model, out) for model in (whole, rows)]
    normed = whole.norm(out)
    assert torch.allclose(scores[0], F.linear(normed, net.lm_head.weight, net.lm_head.bias), atol=1e-4)
    assert torch.allclose(scores[1], F.linear(normed, net.lm_head.weight), atol=1e-4)  # as drafting computes


def test_a_batch_has_prompts_of_one_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise most of a batch is padding: answers of one length have prompts of any."""
    target = llama(seed=3, layers=4, name="tiny", eos=())
    batches: list[set[int]] = []

    def learn(net: Any, others: Any, loss: Any, pairs: Any, partial: Any, settings: Any, size: Any) -> None:
        order = training.batches(list(map(size, pairs)), 3, "seed")
        batches.extend({len(pairs[place].prompt) for place in batch} for batch in order)
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "learn", learn)
    prompts = [[5 + i] * (40 if i % 3 else 2) for i in range(19)]
    with pytest.raises(KeyboardInterrupt):
        train_eagle(target, prompts, tmp_path / "new", **FAST)
    assert len(batches) == 6 and sum(len(lengths) > 1 for lengths in batches) <= 1


def test_a_target_in_packed_matrices_teaches(target: Model, tmp_path: Path) -> None:
    if kernels.ONEDNN not in kernels.candidates(torch.device("cpu"), torch.float32):
        pytest.skip("oneDNN's layout does not serve this processor")
    packed = Model(target.net, name="tiny", kernels=kernels.ONEDNN)
    alone = specviz.generate(packed, LEARNT[:2], "autoregressive", max_new_tokens=8)
    made = train_eagle(packed, LEARNT, tmp_path / "new", **FAST | {"batch": 9, "epochs": 1, "steps": 2})
    assert packed.kernels == "onednn" and made.learnt > 0
    trace = specviz.generate(packed, LEARNT[:2], "eagle", draft=specviz.load(made.path), max_new_tokens=8)
    assert trace.outputs["token"].tolist() == alone.outputs["token"].tolist()


@pytest.mark.parametrize("generation", [1, 3])
def test_a_stopped_training_goes_on_as_if_nothing_had_been(
    target: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, generation: int
) -> None:
    given = {**FAST, "layers": None, "epochs": 3, "every": 0.0}
    if generation == 3:
        given["layers"] = (1, 2, 4)
    train_eagle(target, PROMPTS, tmp_path / "whole", generation, **given)
    real, count = training.write_checkpoint, [0]

    def killed(*arguments: Any) -> None:
        real(*arguments)
        count[0] += 1
        if count[0] == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(training, "write_checkpoint", killed)
    with pytest.raises(KeyboardInterrupt):
        train_eagle(target, PROMPTS, tmp_path / "broken", generation, **given)
    assert not (tmp_path / "broken").exists()
    with pytest.raises(ModelError, match="left by another run"):
        train_eagle(target, PROMPTS, tmp_path / "broken", generation, **{**given, "seed": 2})
    torch.manual_seed(99)  # as in another process
    said: list[str] = []
    monkeypatch.setattr(answers, "_answer_batch", None)  # the answers exist already
    train_eagle(target, PROMPTS, tmp_path / "broken", generation, **{**given, "say": said.append})
    assert said[0].startswith("resuming after 4 of ")
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "broken"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_states_are_read_in_bfloat16_where_the_processor_computes_in_it(
    target: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States differ only by rounding."""
    texts, read = [list(range(3, 20)), list(range(5, 12))], {}
    for half in (False, True):
        monkeypatch.setattr(target_states, "has_bfloat16", lambda device, half=half: half)
        read[half] = target_states._read(target.net, texts, (1, 4))
    for alone, coarse in zip(read[False], read[True], strict=True):
        assert alone.shape == coarse.shape and alone.dtype == coarse.dtype == torch.bfloat16
        off = (coarse.float() - alone.float()).norm(dim=-1) / alone.float().norm(dim=-1)
        assert 0 < off.max() < 0.1 and off.median() < 0.02


def test_answers_are_read_by_the_target_once(
    target: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their states go to a file, whatever the order of lengths; a kill loses only the last texts."""
    prompts = [list(range(3, 5 + i % 4)) for i in range(40)]
    made = answers.answer(target, prompts, tmp_path / "a", answers.AnswerOptions(8), say=FAST["say"])
    texts = [[*row["prompt"], *row["answer"]] for row in made.rows]
    file, counted = tmp_path / "states", []
    real = target_states._read

    def reading(net: Any, some: Any, layers: Any) -> list[torch.Tensor]:
        counted.append(len(some))
        if len(counted) == 2:
            file.open("ab").write(b"half a text")
            raise KeyboardInterrupt
        return real(net, some, layers)

    monkeypatch.setattr(target_states, "_read", reading)
    monkeypatch.setattr(target_states, "has_bfloat16", lambda device: False)
    settings = training.Settings(1, 0.01, 16, 8, 0, 60.0, FAST["say"])
    given = (target.net, texts, (1, 4), file, settings)
    with pytest.raises(KeyboardInterrupt):
        target_states.compute_states(*given)
    states = target_states.compute_states(*given)
    assert counted == [16, 16, 16, 8]
    for number, text in enumerate(texts):
        with torch.no_grad():
            hidden = target.net.get_decoder()(torch.tensor([text]), output_hidden_states=True).hidden_states
        alone = torch.stack([hidden[1][0, :-1], hidden[4][0, :-1]], 1)
        assert states(number).shape == alone.shape
        assert torch.allclose(states(number), alone, atol=0.03, rtol=0.01)  # bfloat16

    monkeypatch.setattr(target_states, "_read", real)
    monkeypatch.setattr(training, "has_bfloat16", lambda device: False)  # its rounding changes results
    runs = {}
    for name in ("kept", "full disk"):
        if name == "full disk":
            usage = shutil.disk_usage(tmp_path)._replace(free=1000)
            monkeypatch.setattr(target_states.shutil, "disk_usage", lambda path, usage=usage: usage)
        lines: list[str] = []
        given = {**FAST, "max_new_tokens": None, "epochs": 3, "say": lines.append, "every": 0.0}
        runs[name] = train_eagle(target, made, tmp_path / name, **given)
        assert any("GB of states are more than" in line for line in lines) == (name == "full disk")
    assert runs["kept"].after == pytest.approx(runs["full disk"].after, abs=0.05)


def test_states_that_were_cut_off_are_computed_in_the_same_passes(target: Model, tmp_path: Path) -> None:
    """Batched with other texts, a text's states would round differently and change the drafter."""
    net, texts = target_states.twin(target.net), [list(range(3, 5 + 3 * i)) for i in range(1, 14)]
    settings = training.Settings(1, 0.1, 4, 8, 0, 60, lambda line: None)
    target_states.compute_states(net, texts, (1, 4), tmp_path / "whole", settings)
    whole, cut = (tmp_path / "whole").read_bytes(), tmp_path / "cut"
    for part in np.linspace(0, 1, 40):
        cut.write_bytes(whole[: int(part * len(whole))])
        target_states.compute_states(net, texts, (1, 4), cut, settings)
        assert cut.read_bytes() == whole


def test_a_drafter_is_trained_further(target: Model, tmp_path: Path) -> None:
    given = {**FAST, "epochs": 40, "rate": 0.02, "batch": 9}
    first = train_eagle(target, by_heart(target, LEARNT), tmp_path / "first", **given, draft_vocabulary=20)
    second = train_eagle(
        target, by_heart(target, LEARNT), tmp_path / "second", **{**given, "layers": None}, start=first.path
    )
    assert second.before == pytest.approx(first.after) and second.after[0] >= first.after[0]
    one, other = (load_file(made.path / "model.safetensors") for made in (first, second))
    assert torch.equal(one["d2t"], other["d2t"])
    assert not torch.equal(one["midlayer.mlp.up_proj.weight"], other["midlayer.mlp.up_proj.weight"])
    assert "| trained further from | first |" in (second.path / "README.md").read_text(encoding="utf-8")
    for error, words, wrong in (
        (ParameterError, "keeps its layers and head: drop", {"layers": (1, 2, 4)}),
        (ParameterError, "keeps its layers and head: drop", {"draft_vocabulary": 20}),
        (ParameterError, "keeps its layers and head: drop", {"own_head": False}),
        (ParameterError, "is of generation 3, not 1", {"generation": 1}),
        (ModelError, "town is not an EAGLE drafter", {"start": "town"}),
        (ModelError, "nowhere", {"start": str(tmp_path / "nowhere")}),
        (ModelError, "was trained on", {"start": "town-eagle3"}),
    ):
        with pytest.raises(error, match=words):
            train_eagle(target, by_heart(target, LEARNT), tmp_path / "third",
                        **{**given, "layers": None, "start": first.path, **wrong})  # fmt: skip
    assert sorted(p.name for p in tmp_path.iterdir()) == ["first", "second"]


def test_what_a_drafter_computes_otherwise_is_kept_or_refused(target: Model, tmp_path: Path) -> None:
    config = target.config.__class__(**{**target.config.to_dict(), "num_hidden_layers": 1})
    given = {**FAST, "layers": None, "epochs": 1}
    for name in ("norm_before_residual", "norm_output"):
        torch.manual_seed(1)
        net, folder = Eagle(config, 3, variant=Variant(**{name: True})), tmp_path / name
        folder.mkdir()
        save(net, target.identity, (1, 2, 4), torch.float32, folder)
        stated = json.loads((folder / "config.json").read_text(encoding="utf-8")) | {name: True}
        (folder / "config.json").write_text(json.dumps(stated), encoding="utf-8")
    train_eagle(target, PROMPTS, tmp_path / "new", **given, start=tmp_path / "norm_before_residual")
    assert specviz.load(tmp_path / "new").net.variant.norm_before_residual
    with pytest.raises(ModelError, match="norm_output goes on from normed states, which is not trained here"):
        train_eagle(target, PROMPTS, tmp_path / "other", **given, start=tmp_path / "norm_output")


def test_other_families_teach_through_their_own_modules(tmp_path: Path) -> None:
    """GPT-2 adds positions to its embeddings and Gemma scales them; a drafter reads the bare table."""
    torch.manual_seed(0)
    nets: list[Any] = [
        GPT2LMHeadModel(GPT2Config(vocab_size=48, n_embd=32, n_layer=3, n_head=4, n_positions=64,
                                   initializer_range=0.3, bos_token_id=0, eos_token_id=47)),
        GemmaForCausalLM(GemmaConfig(vocab_size=48, hidden_size=32, num_hidden_layers=3, head_dim=8,
                                     num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
                                     max_position_embeddings=64, initializer_range=0.3, eos_token_id=47)),
    ]  # fmt: skip
    for net in nets:
        name = net.config.model_type
        other = Model(net.eval(), name=name)
        given = {**FAST, "layers": (0, 1, 3), "epochs": 120, "rate": 0.02, "batch": 9}
        found = train_eagle(other, by_heart(other, LEARNT), tmp_path / name, **given)
        assert found.after[0] > 0.7 and sum(found.after) > sum(found.before)
        drafter = specviz.load(tmp_path / name)
        trace = specviz.generate(other, LEARNT[:2], "eagle", draft=drafter, max_new_tokens=6)
        alone = specviz.generate(other, LEARNT[:2], "autoregressive", max_new_tokens=6)
        assert trace.outputs["token"].tolist() == alone.outputs["token"].tolist()


def test_what_is_refused_is_refused_before_work(
    target: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import CohereConfig, CohereForCausalLM

    monkeypatch.setattr(answers, "_answer_batch", None)
    capped = Model(CohereForCausalLM(CohereConfig(
        vocab_size=48, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=48, logit_scale=0.1, initializer_range=0.5, pad_token_id=0, bos_token_id=0,
        eos_token_id=1)).eval(), name="capped")  # fmt: skip
    shallow = llama(layers=2, name="shallow")
    full = tmp_path / "full"
    full.mkdir()
    out = tmp_path / "new"
    for error, words, model, prompts, where, given in (
        (ModelError, "exists: choose another folder$", target, PROMPTS, full, {}),
        (ModelError, r"capped \(cohere\) does not compute its tokens from its "
            r"head", capped, PROMPTS, out, {}),
        (ModelError, "kind encoder-decoder: an EAGLE drafter needs a causal", "town-t5", PROMPTS, out, {}),
        (ModelError, "does not compute its tokens", target.first(2), PROMPTS, out, {}),
        (PromptError, "two prompts", target, PROMPTS[:1], out, {}),
        (PromptError, "prompt 2 of 2", target, [[3], []], out, {}),
        (PromptError, "prompts is a list; for a file use list", target, "prompts.jsonl", out, {}),
        (PromptError, "prompt 1 has 96 tokens and leaves no room", target, [[3] * 96, [3]], out, {}),
        (ParameterError, "generation must be 1", target, PROMPTS, out, {"generation": 2}),
        (ParameterError, "layers needs gen", target, PROMPTS, out, {"generation": 1, "layers": (1,)}),
        (ParameterError, "draft_vocabulary needs gen", target, PROMPTS, out,
         {"generation": 1, "draft_vocabulary": 5}),
        (ParameterError, "steps needs gen", target, PROMPTS, out, {"generation": 1, "steps": 4}),
        (ParameterError, "draft_vocabulary must be a whole number from 1 to 48, got 49", target, PROMPTS, out,
         {"draft_vocabulary": 49}),
        (ParameterError, "layers 1, 5: tiny has 0", target, PROMPTS, out, {"layers": (1, 5)}),
        (ParameterError, "authors' choice of layers 2, 1, -1", shallow, PROMPTS, out, {}),
        (ParameterError, "one or more", target, PROMPTS, out, {"layers": ()}),
        *((ParameterError, f"{name} must be positive", target, PROMPTS, out, {name: 0})
          for name in ("epochs", "rate")),
        *((ParameterError, f"{name} must be a whole number of at least 1, got {value}", target, PROMPTS, out,
           {name: value})
          for name in ("steps", "batch", "max_new_tokens") for value in (0, 2.5)),
    ):  # fmt: skip
        with pytest.raises(error, match=words) as told:
            train_eagle(model, prompts, where, **given)
        assert "\n" not in str(told.value)
    assert [p.name for p in tmp_path.iterdir()] == ["full"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "prompts.txt", str(tmp_path / "new")
    file.write_text("What is 12 plus 30?\nTell me a story.\n", encoding="utf-8")
    given = ["models", "eagle", "town", "--prompts", str(file), "--out", out, "-n", "4", "--threads", "1"]
    assert run([*given, "--epochs", "1", "--layers", "2,5,8", "--draft-vocabulary", "9"]) == 0
    told = capsys.readouterr().out
    assert f"eagle: {out} (agreement with the target, by step, on 1 held-out answer: " in told
    assert f"--draft {out}" in told
    assert specviz.load(out).on(specviz.load("town")).layers == (2, 5, 8)
    further = [*given[:-5], str(tmp_path / "more"), *given[-4:], "--epochs", "1", "--start", out]
    assert run(further) == 0
    assert "| trained further from | new |" in (tmp_path / "more" / "README.md").read_text(encoding="utf-8")
    capsys.readouterr()
    for wrong in ([], ["--force", "--layers", "two"]):
        assert run([*given, *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_the_cards_tau_is_that_of_a_run(
    target: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_states, "has_bfloat16", lambda device: False)
    made = train_eagle(target, by_heart(target, LEARNT), tmp_path / "new", **FAST, epochs=60, rate=0.02)
    told = (made.path / "README.md").read_text(encoding="utf-8")
    drafter = specviz.load(made.path).on(target)
    read = (*drafter.layers, target.layers)
    learnt = answers.answer(target, PROMPTS, tmp_path / "a", answers.AnswerOptions(8), say=FAST["say"])
    pairs, settings = training.pairs_of(learnt), training.Settings(1, 0.1, 16, None, 0, 60.0, FAST["say"])
    net = target_states.twin(target.net)
    kept = target_states.states_of_answers(net, pairs, read, tmp_path, settings)
    loss = KeptLoss(eagle_loss.EagleLoss(target.net, 4), kept)
    _, runs = measure(drafter.addition.net, loss, pairs)
    trace = specviz.generate(
        target, [pair.prompt for pair in pairs], "eagle", draft=drafter, draft_size=4, depth=4, branches=1,
        max_new_tokens=8,
    )  # fmt: skip
    cycles = int((trace.cycles["cycle"] > 0).sum())
    assert training.chain_tau(runs) == pytest.approx(sum(len(pair.answer) for pair in pairs) / cycles)
    assert training.chain_tau(runs) > 1.1 and "| all | 1 | " in told


# --- the bundled ones --------------------------------------------------------------------------


def test_the_english_recipe_reads_english_chats_only() -> None:
    english = {c for s in islice(tasks.stream(5, "train"), 800) if s.language == "en" for c in s.turns[0]}
    read = list(islice(shards.turns("english", 5, "train"), 60))
    assert {recipes.recipe(name).texts for name in ("town-eagle-en", "town-eagle3-en")} == {"english"}
    for turns in read:
        text = " ".join(part for turn in turns for part in turn)
        assert turns[0][0] in english
        assert not re.search(r"[^\x00-\x7f‘’“”–—…£€°×é]", text), text
        assert "ranslate" not in text


NAMES = [name for name, made in recipes.RECIPES.items() if made.part == "eagle"]


@pytest.mark.parametrize("name", NAMES)
def test_bundled_drafters_load_and_draft(name: str) -> None:
    folder, made = evaluate.ROOT / name, recipes.recipe(name)
    assert sum(file.stat().st_size for file in folder.iterdir()) < 2_000_000
    drafter = specviz.load(name)
    assert name in specviz.list_models()
    assert drafter.net.generation == made.generation
    ahead = json.loads((folder / "scores.json").read_text(encoding="utf-8"))["ahead"]
    assert list(ahead) == ["en", "de", "fr", "es", "zh", "ja", "vi", "translations"]
    assert 0.3 < ahead["en"]["right"][3] < ahead["en"]["right"][0] < 1
    prompt = ["What is 12 plus 30?"]
    trace = specviz.generate("town", prompt, "eagle", draft=drafter, max_new_tokens=8)
    alone = specviz.generate("town", prompt, "autoregressive", max_new_tokens=8)
    assert trace.outputs["token"].tolist() == alone.outputs["token"].tolist()


def test_a_card_tells_languages_and_departures() -> None:
    made = recipes.recipe("town-eagle3-en")
    training = {"recipe": asdict(made), "tokens": 9, "updates": 9, "seconds": 60.0, "where": "-",
                "curve": [(0, None, 8.0), (9, 2.0, 1.5)]}  # fmt: skip
    found = eagle_cards.scores(
        recipes.recipe("town-eagle-en"), evaluate.ROOT / "town-eagle-en", evaluate.ROOT, n=2
    )
    assert found["texts"] == 2
    for row in found["ahead"].values():
        assert len(row["right"]) == len(row["of"]) == 4
        assert row["of"][0] > row["of"][3] - 1 > 0
    text = eagle_cards.card("town-eagle3-en", 800_000, training, found)
    for part in ("| de (never read) |", "language: [en]\n", "EAGLE-3, 1 layer × 144", "4 steps, the",
                 "layers 2, 5, 8", "python -m town.training town-eagle3-en`"):  # fmt: skip
        assert part in text
    assert "| en (never read) |" not in text
    first = recipes.recipe("town-eagle")
    text = eagle_cards.card("town-eagle", 300_000, training | {"recipe": asdict(first)}, found)
    for part in ("weighs 1.0 beside", "EAGLE's 0.1", "| de | ", "reads the last states", "fr, es, zh"):
        assert part in text
