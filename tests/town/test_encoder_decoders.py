"""The recipes of the encoder-decoders, of blockwise heads and of the parallel drafter, on tiny shapes."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from specviz.finetune.optimizer import Optimizer
from specviz.models.heads import BlockwiseHeads, load_heads
from specviz.models.slots import SlotDrafter, load_slots
from town.corpus import pairs as corpus
from town.training import __main__, answers, encoder_decoders, pairs, recipes, shards
from town.training import tokenizer as pieces
from town.training.tokenizer import END, PAD

SHAPE = {
    "width": 32,
    "heads": 2,
    "kv_heads": 2,
    "feed_forward": 48,
    "tokens": 3_000,
    "step": 1024,
    "micro": 512,
}
TINY = dataclasses.replace(recipes.recipe("town-t5"), layers=3, encoder=1, **SHAPE)


@pytest.fixture(scope="module")
def tokenizer():
    return pieces.train((t for s in islice(corpus.stream(0, "train"), 150) for t in s.turns[0]), size=600)


@pytest.fixture(scope="module")
def shard(tokenizer) -> shards.Shard:
    return shards.pack(tokenizer, islice(shards.turns("pairs", 0, "train"), 120), 512, "pairs")


@pytest.fixture(scope="module")
def model() -> Any:
    return recipes.build(TINY).eval()


def _batch(shard: shards.Shard, size: int = 600) -> tuple[np.ndarray, np.ndarray]:
    return shards.batches(shard, size, random.Random(3), pairs=True)[0]


def _rows(shard: shards.Shard, size: int = 600) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Prompt and answer of each row of the batch, one by one."""
    rows = []
    for tokens, said in zip(*_batch(shard, size)):
        tokens, said = tokens[tokens != PAD], said[tokens != PAD]
        rows.append((torch.from_numpy(tokens[~said])[None], torch.from_numpy(tokens[said])[None]))
    return rows


# --- data ----------------------------------------------------------------------------------


def test_the_tokenizer_ends_a_text_and_has_no_chats(tokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    pieces.save(tokenizer, tmp_path, pairs=True)
    standard = AutoTokenizer.from_pretrained(tmp_path)
    ids = standard("Anna liest.")["input_ids"]
    assert ids == answers.pair_ids(tokenizer, "Anna liest.") == [*ids[:-1], END]
    assert standard.decode([PAD, *ids], skip_special_tokens=True) == "Anna liest."
    assert standard.chat_template is None
    generation = GenerationConfig.from_pretrained(tmp_path)
    assert (generation.decoder_start_token_id, generation.eos_token_id, generation.pad_token_id) == (
        PAD,
        END,
        PAD,
    )


def test_the_stream_has_four_tasks_and_long_texts() -> None:
    samples = list(islice(corpus.stream(1, "train"), 400))
    count = {task: sum((s.kind, s.language) == task for s in samples) for task in corpus.SHARES}
    assert sum(count.values()) == len(samples)
    for task, share in corpus.SHARES.items():
        assert abs(count[task] / len(samples) - share) < 0.1
    assert {s.target for s in samples if s.kind == "translation"} == {"en", "de"}
    assert {len(s.meaning) for s in samples if s.kind == "translation"} == {1, 2, 3, 4, 5}
    again = list(islice(corpus.stream(1, "train"), 3))
    assert [s.turns for s in again] == [s.turns for s in samples[:3]]


def test_batches_hold_every_pair_once_and_pad_little(shard: shards.Shard) -> None:
    rows, cells, said = [], 0, 0
    for tokens, answer in shards.batches(shard, 600, random.Random(0), pairs=True):
        prompts, told = encoder_decoders.sides(tokens, answer)
        assert prompts.numel() + told.numel() <= 600 or len(tokens) == 1
        cells += prompts.numel() + told.numel()
        said += int((prompts != PAD).sum() + (told != PAD).sum())
        rows += [tuple(a[a != PAD].tolist() + b[b != PAD].tolist()) for a, b in zip(prompts, told)]
    assert sorted(rows) == sorted(tuple(shard.chat(i)[0].tolist()) for i in range(len(shard)))
    assert said == shard.starts[-1]
    assert cells < 1.4 * said


# --- losses --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exits", "weights"), [("last", [0, 0, 1]), ("first", [0.5, 0, 0.5]), ("all", [1 / 6, 2 / 6, 3 / 6])]
)
def test_the_loss_is_that_of_plain_rows_and_truncated_decoders(
    shard: shards.Shard, model: Any, exits: str, weights: list[float]
) -> None:
    weighted, last = encoder_decoders.WholeLoss(exits)(model, *_batch(shard), 0.0)
    blocks, each = list(model.decoder.block), []
    for layers in (1, 2, 3):
        model.decoder.block = torch.nn.ModuleList(blocks[:layers])
        with torch.inference_mode():
            each.append(sum(float(model(input_ids=p, labels=a).loss) * a.numel() for p, a in _rows(shard)))
    assert weighted.item() == pytest.approx(sum(w * e for w, e in zip(weights, each)), rel=1e-4)
    assert last.item() == pytest.approx(each[-1], rel=1e-4)


def test_heads_learn_tokens_ahead(shard: shards.Shard, model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = BlockwiseHeads(3, 32, 8)
    torch.nn.init.normal_(heads.down, std=0.1)
    torch.nn.init.normal_(heads.offset)
    tokens, answer = _batch(shard)
    found, _ = encoder_decoders.HeadsLoss(model)(heads, tokens, answer, 0.0)
    total = count = 0.0
    with torch.inference_mode():
        for prompt, told in _rows(shard):
            state = model(input_ids=prompt, labels=told, output_hidden_states=True).decoder_hidden_states[-1][
                0
            ]
            for head in range(3):
                h = state + heads.offset[head] + (state @ heads.up[head]).relu() @ heads.down[head]
                assert torch.allclose(heads(state)[:, head], h, atol=1e-5)
                assert torch.allclose(heads(state, head), heads(state)[:, :head], atol=1e-6)
                score = model.lm_head(h * 32**-0.5)[: told.shape[1] - head - 1]
                total += (
                    float(cross_entropy(score, told[0, head + 1 :], reduction="sum")) if len(score) else 0.0
                )
                count += len(score)
    assert found.item() == pytest.approx(total / count * answer.sum(), rel=1e-4)
    monkeypatch.setattr(encoder_decoders, "GUESSES", 50)
    some, _ = encoder_decoders.HeadsLoss(model)(heads, tokens, answer, 0.0)
    assert some.item() != pytest.approx(found.item(), rel=1e-6)
    assert not any(p.requires_grad for p in model.parameters())


def test_slots_stand_for_the_tokens_behind_a_cut(shard: shards.Shard, model: Any) -> None:
    torch.manual_seed(0)
    drafter = SlotDrafter(4, 2, 32, 2, 48).eval()
    prompts, told = encoder_decoders.sides(*_batch(shard))
    source, mask = encoder_decoders.encoded(model, prompts)
    cuts = (told != PAD).sum(1) // 3
    with torch.inference_mode():
        state, wanted = encoder_decoders.slotted(model, drafter, source, mask, told, cuts)
        for row, (prompt, answer) in enumerate(_rows(shard)):
            cut, n = int(cuts[row]), min(4, answer.shape[1] - int(cuts[row]))
            written = torch.tensor([[PAD, *answer[0, :cut]]])
            embedded = torch.cat((model.shared(written), drafter.slot_embeddings[None, :n]), 1)
            alone = drafter(embedded, model.encoder(input_ids=prompt).last_hidden_state)[0, cut + 1 :]
            assert torch.allclose(state[row, cut + 1 : cut + 1 + n], alone, atol=1e-4)
            assert wanted[row][wanted[row] != PAD].tolist() == answer[0, cut : cut + n].tolist()
            fewer = drafter(embedded[:, :-1], model.encoder(input_ids=prompt).last_hidden_state)
            assert torch.allclose(fewer[0, cut + 1 :], alone[:-1], atol=1e-4)


@pytest.mark.parametrize("part", ["heads", "slots"])
def test_losses_of_parts_fall_and_leave_the_target_alone(part: str, shard: shards.Shard, model: Any) -> None:
    made = dataclasses.replace(recipes.recipe(f"town-t5-{part}"), ahead=4, **SHAPE)
    trained = recipes.build(made)
    before = {n: p.clone() for n, p in model.state_dict().items()}
    loss = {"heads": encoder_decoders.HeadsLoss, "slots": encoder_decoders.SlotsLoss}[part](model)
    optimizer = Optimizer(trained, 0.04, 0.01)
    assert ("up" in optimizer.matrices) == (part == "heads")  # each head has its own matrix
    assert "offset" not in optimizer.matrices
    tokens, answer = _batch(shard)
    seen = []
    for _ in range(30):
        weighted, shown = loss(trained, tokens, answer, 0.0)
        (weighted / answer.sum()).backward()
        optimizer.step(1.0)
        seen.append(float(shown))
    assert seen[-1] < 0.8 * seen[0]
    assert all(torch.equal(before[n], p) for n, p in model.state_dict().items())


def test_t5s_tables_are_no_matrices_to_the_optimiser(model: Any) -> None:
    matrices = Optimizer(copy.deepcopy(model).requires_grad_(True), 0.01, 0.01).matrices
    assert not any("shared" in n or "bias" in n for n in matrices)
    assert len(matrices) == (4 + 2) * 1 + (8 + 2) * 3


# --- answers, scores, cards ------------------------------------------------------------------


def test_greedy_batches_equal_single_rows(tokenizer, model: Any) -> None:
    prompts = [answers.pair_ids(tokenizer, s.turns[0][0]) for s in islice(corpus.stream(2, "test"), 4)]
    for prompt, answer in zip(prompts, answers.greedy(model, prompts, longest=8)):
        written = [PAD]
        for token in answer:
            with torch.inference_mode():
                scores = model(
                    input_ids=torch.tensor([prompt]), decoder_input_ids=torch.tensor([written])
                ).logits
            assert int(scores[0, -1].argmax()) == token
            written.append(token)
        assert 0 < len(answer) <= 8


def test_agreement_and_guesses_of_what_cannot_be_wrong(tokenizer, monkeypatch) -> None:
    monkeypatch.setattr(answers, "LONGEST", 10)
    model = recipes.build(dataclasses.replace(TINY, seed=1)).eval()
    texts = [s.turns[0][0] for s in islice(corpus.stream(3, "test"), 6)]
    own = answers.answered_pairs(model, tokenizer, texts)
    assert PAD not in own.tokens
    assert pairs.agreement(model, own) == 1
    other = recipes.build(dataclasses.replace(TINY, seed=5)).eval()
    assert pairs.agreement(other, own) < 0.5
    heads = BlockwiseHeads(3, 32, 8)
    found = pairs.guesses(heads, model, own, 4)
    assert found["right"][0] == found["accepted"][0] == 1  # the target's own head on its own answers
    lengths = np.add.reduceat(own.answer.astype(int), own.starts[:-1])
    assert found["of"] == [sum(max(n - i, 0) for n in lengths) for i in range(4)]
    slots = pairs.guesses(SlotDrafter(4, 1, 32, 2, 48).eval(), model, own, 4)
    assert slots["of"] == found["of"]
    assert all(a <= r for a, r in zip(slots["accepted"], slots["right"]))


def test_every_recipe_runs_and_its_folder_loads(tokenizer, tmp_path: Path, monkeypatch) -> None:
    """Small, aligned, calm, heads and slots in one tiny zoo: each starts from those made before it."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    models, cache = tmp_path / "models", tmp_path / "cache"
    pieces.save(tokenizer, models / "town")
    monkeypatch.setattr(answers, "LONGEST", 6)
    monkeypatch.setattr(answers, "ANSWERED", 40)
    monkeypatch.setattr(__main__, "DEV_CHATS", 5)
    monkeypatch.setattr(pairs, "TEXTS", 3)
    for name, value in (("corpus_shard", shards.corpus_shard),):
        monkeypatch.setattr(shards, name, lambda *a, _f=value, **k: _f(*a, chats=60, **k))
    for name in (
        "town-t5",
        "town-t5-small",
        "town-t5-small-aligned",
        "town-t5-calm",
        "town-t5-heads",
        "town-t5-slots",
    ):
        made = recipes.recipe(name)
        layers = (
            min(made.layers, 2) if made.part == "slots" else made.layers and (1 if "small" in name else 3)
        )
        made = dataclasses.replace(
            made, layers=layers, encoder=1, ahead=min(made.ahead, 4), answers=1, **SHAPE
        )
        monkeypatch.setitem(recipes.RECIPES, name, made)
        __main__.make(made, models / name, models=models, cache=cache, threads=1)
        text = (models / name / "README.md").read_text(encoding="utf-8")
        assert f"python -m town.training {name}`" in text
        assert json.loads((models / name / "training.json").read_text(encoding="utf-8"))["done"]
        assert not (cache / name / "checkpoint.safetensors").exists()
    net = AutoModelForSeq2SeqLM.from_pretrained(models / "town-t5-calm")
    ids = AutoTokenizer.from_pretrained(models / "town-t5-calm")("Anna", return_tensors="pt")
    assert net.generate(**ids, max_new_tokens=3).shape[0] == 1  # more decoder than encoder layers
    assert "| town-t5-calm, en-de |" in (models / "town-t5-calm" / "README.md").read_text(encoding="utf-8")
    heads, config = load_heads(models / "town-t5-heads")
    assert (config["target"], config["model_type"], len(heads.offset)) == ("town-t5", "specviz-blockwise", 4)
    slots, config = load_slots(models / "town-t5-slots")
    assert (config["target"], config["model_type"], len(slots.slot_embeddings)) == (
        "town-t5",
        "specviz-slots",
        4,
    )
    assert not (models / "town-t5-slots" / "tokenizer.json").exists()


# --- the shipped models -----------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n, r in recipes.RECIPES.items() if r.encoder])
def test_bundled_models_load(name: str) -> None:
    from tokenizers import Tokenizer

    folder, made = __main__.ROOT / name, recipes.recipe(name)
    assert sum(f.stat().st_size for f in folder.iterdir()) < 7_000_000
    if made.part != "whole":
        part, config = (load_heads if made.part == "heads" else load_slots)(folder)
        assert config[made.part] == made.ahead
        assert sum(p.numel() for p in part.parameters()) <= 1_000_000
        return
    net = answers.load(folder)
    assert (net.config.num_layers, net.config.num_decoder_layers) == (made.encoder, made.layers)
    own, shared = (Tokenizer.from_file(str(f / "tokenizer.json")) for f in (folder, __main__.ROOT / "town"))
    assert own.get_vocab() == shared.get_vocab()
    generation = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    assert (generation["eos_token_id"], generation["decoder_start_token_id"]) == (END, PAD)
    asked = torch.tensor([answers.pair_ids(own, "Translate into German: Anna is reading a book.")])
    said = own.decode(net.generate(asked, max_new_tokens=20)[0].tolist())
    assert "Anna" in said and "Buch" in said
