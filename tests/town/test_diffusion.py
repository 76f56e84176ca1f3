"""The masked-diffusion model: its loss, its masks, the plain stepwise decoder, the files, recipe and card."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import random
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from specviz.finetune import masking
from town.corpus import tasks
from town.training import __main__, answers, canvases, diffusion, evaluate, recipes, shards, train
from town.training import tokenizer as pieces
from town.training.tokenizer import ASSISTANT, END, MASK, PAD

TINY = dataclasses.replace(
    recipes.recipe("town-diffusion"), layers=2, width=32, heads=2, kv_heads=1, feed_forward=48, tokens=4_000,
    step=512, micro=512,
)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return pieces.train(pieces.texts(150), size=600)


@pytest.fixture(scope="module")
def shard(tokenizer) -> shards.Shard:
    return shards.pack(tokenizer, (s.turns for s in islice(tasks.stream(0, "train"), 120)), 512)


def sharp() -> Any:
    """A tiny model whose logits differ enough to make its choices unambiguous."""
    net = diffusion.build(TINY).double().eval()
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(4 if p.ndim > 1 else 1)
    return net


def alone(net: Any, canvas: list[int]) -> torch.Tensor:
    """Log-probabilities of every cell but the first, by transformers' own forward with a mask of zeros."""
    ids = torch.tensor([canvas])
    seen = torch.zeros(1, 1, len(canvas), len(canvas), dtype=net.dtype)
    return net(input_ids=ids, attention_mask=seen).logits[0, :-1].log_softmax(-1)


# --- the masks and the loss ------------------------------------------------------------------


def test_only_the_last_answer_is_cells_and_what_is_behind_it_ends(shard) -> None:
    """Also in chats with an earlier answer; every cell after the answer is an end token."""
    turns = 0
    for _, (tokens, answer) in islice(shards.batch_stream(lambda _: shard, 600, 0), 20):
        rng = np.random.default_rng(1)
        canvas, cells = diffusion.answers_only(tokens, answer, rng)
        by_prompt = {}
        for row, said in zip(tokens, answer):
            begin = int(np.flatnonzero(row == ASSISTANT)[-1]) + 1
            by_prompt[tuple(row[:begin])] = row[begin:][said[begin:]].tolist()
            turns += int((row == ASSISTANT).sum() > 1)
        for row, free in zip(canvas, cells):
            begin = int(free.argmax())
            assert free[begin:].all() and not free[:begin].any()
            wanted = by_prompt[tuple(row[:begin])]
            assert row[begin : begin + len(wanted)].tolist() == wanted
            assert (row[begin + len(wanted) :] == END).all()
        assert not (canvas == PAD).any()
        assert canvas.size <= max(diffusion.CELLS, canvas.shape[1])
    assert turns > 3


def test_masks_hide_cells_alone_and_every_count_is_as_likely() -> None:
    rng = np.random.default_rng(0)
    cells = np.zeros((5000, 9), bool)
    cells[:, 4:] = True
    masked, shares = masking.hide(cells, rng)
    assert not (masked & ~cells).any()
    assert np.array_equal(masked.sum(1), np.rint(shares * 5))
    counts = np.bincount(masked.sum(1), minlength=6)
    assert counts[0] == 0 and counts[1:].tolist() == [1000] * 5  # one draw, spread evenly over the rows
    assert np.abs(masked[:, 4:].mean(0) - 0.6).max() < 0.03


def test_the_loss_is_the_bound_that_all_orders_give() -> None:
    """Mean over counts and masks of the loss over t: the mean over all orders of unmasking, cell by cell."""
    net = sharp()
    prompt, said = [0, 2, 40, 4, 3], [50, 60, END]
    whole = prompt + said
    rows = []
    for order in itertools.permutations(range(3)):
        hidden = set(range(3))
        for cell in order:  # the cell is predicted while it and all later ones are masked
            canvas = [MASK if i - 5 in hidden else t for i, t in enumerate(whole)]
            rows.append(alone(net, canvas)[5 + cell - 1, said[cell]].item())
            hidden.discard(cell)
    bound = -sum(rows) / math.factorial(3)

    cells = np.zeros((1, 8), bool)
    cells[:, 5:] = True
    found, patterns = 0.0, 0
    for count in (1, 2, 3):
        for chosen in itertools.combinations((5, 6, 7), count):
            masked = np.zeros((1, 8), bool)
            masked[0, list(chosen)] = True
            each = diffusion.costs(net, np.array([whole]), masked)
            found += float(each.detach().sum()) * 3 / count / 3 / math.comb(3, count)
            patterns += 1
    assert patterns == 7
    assert found == pytest.approx(bound, rel=1e-6)


def test_a_batch_of_draws_has_the_bound_as_its_mean(monkeypatch) -> None:
    net = sharp().float()
    monkeypatch.setattr(diffusion, "LONGER", ((1.0, 0, 1),))
    monkeypatch.setattr(diffusion, "CELLS", 100_000)
    row, said = [0, 2, 40, 4, 3, 50, 60, END], [False] * 5 + [True] * 3
    tokens, answer = (np.repeat(np.array([v]), 3000, 0) for v in (row, said))
    with torch.inference_mode():
        weighted, shown = diffusion.masked_loss(net, tokens, answer, 0.0)
        exact = 0.0
        for count in (1, 2, 3):
            for chosen in itertools.combinations((5, 6, 7), count):
                masked = np.zeros((1, 8), bool)
                masked[0, list(chosen)] = True
                each = diffusion.costs(net, np.array([row]), masked)
                exact += float(each.sum()) / count / math.comb(3, count)
    assert float(weighted) == float(shown)
    assert float(weighted) / 3000 == pytest.approx(exact, rel=0.02)


def test_blocks_are_told_from_what_is_written_before_and_masks_behind(monkeypatch) -> None:
    """One block of four, at most the one with the first end token; nothing after it is visible."""
    monkeypatch.setattr(masking, "BLOCKS", (4,))
    canvas = np.full((6000, 20), 50)
    canvas[:, 3 + 6 :] = END  # six words and the end: the second of four blocks contains it
    cells = np.tile(np.arange(20) >= 3, (6000, 1))
    told, masked, weights = masking.hide_blocks(canvas, cells, END, np.random.default_rng(0))
    at = (told.argmax(1) - 3) // 4
    assert np.bincount(at, minlength=2).tolist() == pytest.approx([3000, 3000], rel=0.05) and at.max() == 1
    first = 3 + 4 * at
    places = np.arange(20)
    inside = (places >= first[:, None]) & (places < first[:, None] + 4)
    assert not (told & ~inside).any()
    assert np.array_equal(masked, told | (places >= first[:, None] + 4))
    assert np.array_equal(weights * told.sum(1), np.full(6000, 8.0))  # two blocks of four, over t


def test_a_batch_of_blocks_has_the_sum_of_their_bounds_as_its_mean(monkeypatch) -> None:
    net = sharp().float()
    monkeypatch.setattr(diffusion, "LONGER", ((1.0, 0, 1),))
    monkeypatch.setattr(masking, "BLOCKS", (2,))
    monkeypatch.setattr(diffusion, "CELLS", 100_000)
    row, said = [0, 2, 40, 4, 3, 50, 60, END], [False] * 5 + [True] * 3
    tokens, answer = (np.repeat(np.array([v]), 3000, 0) for v in (row, said))
    # predicted, masked, weight: both cells of the first block, either one of it; then the second block.
    parts = [((5, 6), (5, 6, 7), 0.5), ((5,), (5, 7), 0.5), ((6,), (6, 7), 0.5), ((7,), (7,), 1.0)]
    with torch.inference_mode():
        weighted, _ = diffusion.masked_loss(net, tokens, answer, 1.0)
        exact = 0.0
        for told, masked, weight in parts:
            marks = np.zeros((2, 1, 8), bool)
            marks[0, 0, list(told)] = marks[1, 0, list(masked)] = True
            exact += weight * float(diffusion.costs(net, np.array([row]), *marks).sum())
    assert float(weighted) / 3000 == pytest.approx(exact, rel=0.03)


def test_texts_are_masked_in_blocks_from_a_share_of_the_run_on() -> None:
    made = dataclasses.replace(TINY, blockwise=0.5, blockwise_from=0.6)
    assert [train.extra_weight(made, p) for p in (0.0, 0.59, 0.6, 1.0)] == [0.0, 0.0, 0.5, 0.5]
    chats = recipes.recipe("town")
    assert [train.extra_weight(chats, p) for p in (0.0, 0.39, 0.4, 1.0)] == [0.5, 0.5, 0.0, 0.0]


def test_a_cell_is_told_by_the_place_before_it_from_both_sides() -> None:
    net = sharp()
    canvas = [0, 2, 40, 4, 3, 50, 60, END]
    masked = np.zeros((1, 8), bool)
    masked[0, 5] = True
    told = diffusion.costs(net, np.array([canvas]), masked).detach()
    hidden = [*canvas[:5], MASK, *canvas[6:]]
    expected = cross_entropy(alone(net, hidden)[4:5].float(), torch.tensor([50]), reduction="none")
    assert told == pytest.approx(expected.detach(), rel=1e-5)
    canvas[6] = 61  # what follows it counts
    assert diffusion.costs(net, np.array([canvas]), masked).item() != told.item()


def test_the_same_batch_has_the_same_masks(shard) -> None:
    net = diffusion.build(TINY)
    _, (tokens, answer) = next(shards.batch_stream(lambda _: shard, 600, 0))
    with torch.inference_mode():
        first, again = (float(diffusion.masked_loss(net, tokens, answer, 0.0)[0]) for _ in range(2))
        other = float(diffusion.masked_loss(net, tokens[::-1].copy(), answer[::-1].copy(), 0.0)[0])
    assert first == again != other


def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(shard, tmp_path: Path) -> None:
    def run(file: str, *stops: int | None) -> dict[str, torch.Tensor]:
        for stop in stops:
            net = diffusion.build(TINY)
            train.train(TINY, net, lambda _: shard, shard, tmp_path / file, stop_after=stop,
                        loss_sums=diffusion.masked_loss, say=lambda _: None)  # fmt: skip
        return net.state_dict()

    whole, parts = run("whole", None), run("parts", 3, None)
    assert all(torch.equal(value, parts[name]) for name, value in whole.items())


def test_it_starts_as_the_causal_model_that_now_sees_what_follows() -> None:
    causal = recipes.build(dataclasses.replace(TINY, part="whole")).eval()
    net = diffusion.build(TINY, causal).eval()
    ids = torch.tensor([[0, 2, 40, 4, 3, 50, 60, 70]])
    later = ids.clone()
    later[0, -1] = 71
    with torch.inference_mode():
        ahead = torch.ones(8, 8, dtype=torch.bool).tril()[None, None]
        same = net.model(input_ids=ids, attention_mask={"full_attention": ahead}).last_hidden_state
        assert torch.allclose(causal.model(input_ids=ids).last_hidden_state, same, atol=1e-5)
        seen, other = (
            net.model(input_ids=i, attention_mask={"full_attention": None}).last_hidden_state[0, 0]
            for i in (ids, later)
        )
    assert not torch.allclose(seen, other, atol=1e-5)


# --- the stepwise decoder --------------------------------------------------------------------


def naive(net: Any, prompt: list[int], cells: int, block: int) -> list[int]:
    """One prompt, one cell at a time, by log p - log(1 - p)."""
    canvas = prompt + [MASK] * cells
    for begin in range(len(prompt), len(canvas), block):
        for _ in range(block):
            table = alone(net, canvas)
            choices = []
            for i in range(begin, begin + block):
                if canvas[i] == MASK:
                    p, token = table[i - 1].exp().max(-1)
                    choices.append((float(p.log() - (1 - p).log()), -i, int(token)))
            _, at, token = max(choices)
            canvas[-at] = token
        if END in canvas[begin : begin + block]:
            break
    said = canvas[len(prompt) :]
    return said[: said.index(END)] if END in said else said


@torch.inference_mode()
def test_batched_stepwise_is_what_each_prompt_gives_alone() -> None:
    """Prompts of many lengths, more than a batch; some answers end early, some fill the canvas."""
    net = sharp()
    words = torch.zeros_like(net.lm_head.weight)
    words[[END, *range(40, 60)]] = torch.randn(21, 32, generator=torch.Generator().manual_seed(1)).double()
    net.lm_head.weight = torch.nn.Parameter(words)  # it can only write twenty words and the end
    rng = random.Random(0)
    prompts = [[0, *(rng.randrange(16, 3072) for _ in range(rng.randint(1, 12))), 3] for _ in range(24)]
    for block in (4, 8):
        said = canvases.stepwise(net, prompts, cells=16, block=block, rows=7)
        assert said == [naive(net, p, 16, block) for p in prompts]
        assert len({len(a) for a in said}) > 2
        assert len({t for a in said for t in a}) > 5


def test_equal_cells_are_filled_from_the_left() -> None:
    """A model with the same output everywhere fills a block from its first cell on."""
    seen: list[list[int]] = []

    class Flat:
        device = torch.device("cpu")

        def eval(self) -> None:
            pass

        def model(self, input_ids: torch.Tensor, **_: Any) -> Any:
            seen.append(input_ids[0, 2:].tolist())

            class Out:
                last_hidden_state = torch.ones(*input_ids.shape, 1)

            return Out

        class lm_head:
            weight = torch.tensor([[0.0]] * 9 + [[2.0]])

    assert canvases.stepwise(Flat(), [[0, 3]], cells=4, block=4) == [[9] * 4]
    assert seen == [[9] * n + [MASK] * (4 - n) for n in range(4)]


def test_the_bound_of_a_kind_is_the_objective_on_its_canvases(tokenizer, monkeypatch) -> None:
    """An untrained model is nearly uniform: the loss is the log of the vocabulary for each cell."""
    net = diffusion.build(TINY).eval()
    samples = [tasks.sample(random.Random(3), "test", "qa") for _ in range(2)]
    monkeypatch.setattr(canvases, "DRAWS", 64)
    found = canvases.losses(net, tokenizer, samples, cells=64)
    nats = math.log(3072)
    tokens = sum(len(tokenizer.encode(s.turns[-1][1]).ids) + 1 for s in samples)
    assert found["nats_per_token"] == pytest.approx(nats * 2 * 64 / tokens, rel=0.03)
    characters = sum(len(s.turns[-1][1]) for s in samples)
    assert found["bits_per_character"] == pytest.approx(
        found["nats_per_token"] * tokens / characters / math.log(2)
    )


# --- files, recipe, card ---------------------------------------------------------------------


def test_the_recipe_runs_and_its_folder_is_a_dream_checkpoint(tokenizer, tmp_path: Path, monkeypatch) -> None:
    from safetensors.torch import load_file

    models, cache = tmp_path / "models", tmp_path / "cache"
    pieces.save(tokenizer, models / "town")
    monkeypatch.setattr(__main__, "DEV_CHATS", 5)
    monkeypatch.setattr(canvases, "LENGTHS", (32, 40))
    monkeypatch.setattr(evaluate, "TEXTS", 2)
    made = shards.corpus_shard
    monkeypatch.setattr(shards, "corpus_shard", lambda *a, **k: made(*a, chats=60, **k))
    few = {"translations": 3, "answered": 2}
    for name, n in few.items():
        whole = getattr(evaluate, name)
        monkeypatch.setattr(evaluate, name, lambda *a, _f=whole, _n=n, **k: _f(*a, n=_n, **k))
    monkeypatch.setitem(recipes.RECIPES, "town-diffusion", TINY)
    causal = recipes.build(dataclasses.replace(TINY, part="whole"))
    causal.save_pretrained(models / "town")
    out = models / "town-diffusion"
    __main__.make(TINY, out, models=models, cache=cache, threads=1)

    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    assert (config["model_type"], config["architectures"]) == ("Dream", ["DreamModel"])
    assert (config["mask_token_id"], config["eos_token_id"]) == (MASK, END)
    assert (config["bos_token_id"], config["pad_token_id"]) == (0, PAD)
    assert config["rope_theta"] == 10000.0 and "auto_map" not in config
    stored = load_file(out / "model.safetensors")
    net = answers.load(out)
    assert {t.dtype for t in stored.values()} == {torch.float16}
    assert set(stored) == {n for n, _ in net.named_parameters()}
    assert all(not layer.self_attn.is_causal for layer in net.model.layers)
    assert torch.equal(net.model.norm.weight, stored["model.norm.weight"].float())
    assert json.loads((out / "training.json").read_text(encoding="utf-8"))["done"]
    assert not (cache / "town-diffusion" / "checkpoint.safetensors").exists()
    text = (out / "README.md").read_text(encoding="utf-8")
    assert "python -m town.training town-diffusion`" in text
    assert "| cells | 32 | 40 |" in text
    assert "nats a cell, padding included" in text


def test_the_card_says_what_the_scores_are() -> None:
    folder = evaluate.ROOT / "town-diffusion"
    found = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    training = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    parameters = sum(math.prod(shape) for shape in evaluate.shapes(folder / "model.safetensors"))
    assert 2_000_000 <= parameters <= 4_000_000
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert text == canvases.card("town-diffusion", parameters, training, found)
    pair = found["translation"]["en-de"]
    assert f"| en-de | {pair['bleu']:.1f} | {pair['paraphrase']:.1f} |" in text
    assert f"| {training['tokens']:,} in" in text.replace("tokens seen ", "")
    assert all(f"| {kind} |" in text for kind in tasks.KINDS)
    assert set(found["canvas"]["bleu"]) == {"32", "64", "128", "256"}


def test_the_shipped_model_translates_stepwise() -> None:
    from tokenizers import Tokenizer

    folder = evaluate.ROOT / "town-diffusion"
    own = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompt = answers.prompt_ids(
        own, [{"role": "user", "content": "Translate into German: Anna is reading a book."}]
    )
    (said,) = canvases.stepwise(answers.load(folder), [prompt], cells=32)
    assert "Anna" in own.decode(said) and "Buch" in own.decode(said)
