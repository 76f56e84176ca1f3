"""The recipes on a tiny shape: data, loss, optimiser, killing and resuming, the files of a model."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from reads import Waits
from tiny import llama

import specviz
from specviz.errors import ModelError, ParameterError
from specviz.finetune.optimizer import Optimizer, orthogonal
from town import suites
from town.corpus import tasks
from town.training import answers, evaluate, recipes, shards, train, translators
from town.training import tokenizer as pieces
from town.training.card import card, sparkline

TINY = dataclasses.replace(
    recipes.recipe("town"), layers=1, width=32, heads=2, kv_heads=1, feed_forward=48, tokens=8_000,
    step=1024, micro=512,
)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer():
    return pieces.train(pieces.texts(150), size=600)


@pytest.fixture(scope="module")
def shard(tokenizer) -> shards.Shard:
    return shards.pack(tokenizer, (s.turns for s in islice(tasks.stream(0, "train"), 120)), 512)


# --- tokenizer -----------------------------------------------------------------------------


def test_specials_have_their_ids(tokenizer) -> None:
    assert [tokenizer.token_to_id(s) for s in pieces.SPECIALS] == list(range(16))
    assert tokenizer.get_vocab_size() == 600


def test_text_comes_back_and_digits_stand_alone(tokenizer) -> None:
    for text in ("Anna hat 1205 Äpfel.", "彼女は本を3冊読みました。", "def f(x):\n    return x", "\x00 €🙂"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    found = [tokenizer.decode([i]) for i in tokenizer.encode("12 + 345 = 357").ids]
    assert [p for p in found if p.strip().isdigit()] == list("12345357")


def test_the_chat_is_what_the_template_says(tokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer, GenerationConfig

    pieces.save(tokenizer, tmp_path)
    standard = AutoTokenizer.from_pretrained(tmp_path)
    sample = tasks.sample(random.Random(3), "train", "conversation", "fr")
    whole = [*sample.messages, {"role": "assistant", "content": sample.turns[-1][1]}]
    ids, said = pieces.encode_chat(tokenizer, sample.turns)
    assert standard.apply_chat_template(whole)["input_ids"] == ids
    prompt = answers.prompt_ids(tokenizer, sample.messages)
    assert standard.apply_chat_template(sample.messages, add_generation_prompt=True)["input_ids"] == prompt
    assert ids[: len(prompt)] == prompt
    spoken = "".join(turn[1] for turn in sample.turns)
    assert tokenizer.decode([i for i, s in zip(ids, said) if s]) == spoken
    assert sum(i == pieces.END and s for i, s in zip(ids, said)) == 2
    generation = GenerationConfig.from_pretrained(tmp_path)
    assert generation.eos_token_id == [pieces.END, pieces.STOP]
    assert (generation.bos_token_id, generation.pad_token_id) == (pieces.BEGIN, pieces.PAD)


# --- shards --------------------------------------------------------------------------------


def test_a_shard_is_cached_and_the_same_each_time(tokenizer, tmp_path: Path) -> None:
    first = shards.corpus_shard(tmp_path, tokenizer, 0, 1, 512, chats=20)
    (file,) = tmp_path.iterdir()
    stamp = file.stat().st_mtime_ns
    again = shards.corpus_shard(tmp_path, tokenizer, 0, 1, 512, chats=20)
    assert file.stat().st_mtime_ns == stamp
    file.unlink()
    anew = shards.corpus_shard(tmp_path, tokenizer, 0, 1, 512, chats=20)
    for other in (again, anew):
        assert np.array_equal(first.tokens, other.tokens)
        assert np.array_equal(first.answer, other.answer)
    other = shards.corpus_shard(tmp_path, tokenizer, 0, 2, 512, chats=20)
    assert not np.array_equal(first.tokens[:50], other.tokens[:50])


def test_shards_made_ahead_are_the_same(tokenizer, tmp_path: Path) -> None:
    pieces.save(tokenizer, tmp_path / "pieces")
    ahead = shards.Ahead(tmp_path / "a", tmp_path / "pieces" / "tokenizer.json", 3, 512, workers=1, chats=20)
    try:
        found = [ahead(n) for n in (1, 2)]  # a run that was stopped resumes from any shard
    finally:
        ahead.close()
    for n, one in zip((1, 2), found):
        other = shards.corpus_shard(tmp_path / "b", tokenizer, 3, n, 512, chats=20)
        assert np.array_equal(one.tokens, other.tokens)
        assert np.array_equal(one.starts, other.starts)


def test_batches_hold_every_chat_once(shard: shards.Shard) -> None:
    made = shards.batches(shard, 700, random.Random(0))
    rows = []
    for tokens, answer in made:
        assert tokens.size <= 700 or len(tokens) == 1
        assert not answer[tokens == pieces.PAD].any()
        rows += [tuple(row[row != pieces.PAD]) for row in tokens]
    assert sorted(rows) == sorted(tuple(shard.chat(i)[0].tolist()) for i in range(len(shard)))
    assert sum(int(a.sum()) for _, a in made) == int(shard.answer.sum())


def test_a_stream_goes_on_where_it_stopped(shard: shards.Shard) -> None:
    whole = list(islice(shards.batch_stream(lambda n: shard, 700, 1), 30))
    for at in (0, 7, len(shards.batches(shard, 700, random.Random("1:0"))) - 1):
        rest = shards.batch_stream(lambda n: shard, 700, 1, whole[at][0])
        for (_, (one, _)), (_, (other, _)) in zip(whole[at + 1 :], islice(rest, 29 - at), strict=True):
            assert np.array_equal(one, other)


# --- loss and optimiser ----------------------------------------------------------------------


def _batch(shard: shards.Shard, size: int = 600) -> tuple[np.ndarray, np.ndarray]:
    return shards.batches(shard, size, random.Random(0))[0]


def test_the_loss_is_that_of_plain_rows(shard: shards.Shard) -> None:
    model = recipes.build(TINY)
    tokens, answer = _batch(shard)
    weighted, said = train.loss_sums(model, tokens, answer, 0.25)
    expected = prompt = 0.0
    for row, marks in zip(torch.from_numpy(tokens), torch.from_numpy(answer)):
        ids = row[row != pieces.PAD][None]
        scores = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        each = -scores.gather(1, ids[0, 1:, None])[:, 0]
        mine = marks[1 : ids.shape[1]]
        expected += float(each[mine].detach().sum())
        prompt += float(each[~mine].detach().sum())
    assert said.item() == pytest.approx(expected, rel=1e-4)
    assert weighted.item() == pytest.approx(expected + 0.25 * prompt, rel=1e-4)
    alone, said_alone = train.loss_sums(model, tokens, answer, 0.0)
    assert alone.item() == pytest.approx(said_alone.item()) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("shape", [(6, 20), (20, 6), (3, 8, 8)])
def test_orthogonal_updates(shape: tuple[int, ...]) -> None:
    found = orthogonal(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.3
    assert values.max() < 1.4


def test_the_optimiser_learns(shard: shards.Shard) -> None:
    model = recipes.build(TINY)
    optimizer = Optimizer(model, 0.01, 0.01)
    assert {len(optimizer.matrices), len(optimizer.others)} == {7, 4}
    tokens, answer = _batch(shard)
    losses = []
    for _ in range(30):
        weighted, said = train.loss_sums(model, tokens, answer, 0.1)
        count = int(answer[:, 1:].sum())
        (weighted / count).backward()
        optimizer.step(1.0)
        losses.append(float(said) / count)
    assert losses[-1] < 0.5 * losses[0]


def test_an_update_waits_for_no_device(shard: shards.Shard) -> None:
    model = recipes.build(TINY)
    optimizer = Optimizer(model, 0.01, 0.01)
    for prompt_weight in (0.5, 0.0):
        with Waits() as waits:
            train.loss_sums(model, *_batch(shard), prompt_weight)[0].backward()
            optimizer.step(1.0)
        assert not waits.sends
        assert waits.reads.total() <= 1  # transformers checks once per pass whether texts are packed


def test_rates_rise_and_fall() -> None:
    rates = [train.rate_at(i / 100) for i in range(101)]
    assert rates[0] < 0.05
    assert max(rates) == pytest.approx(1, abs=0.01)
    assert rates[-1] == pytest.approx(0, abs=1e-9)
    assert rates.index(max(rates)) < 5


# --- runs ------------------------------------------------------------------------------------


def _train(model, shard: shards.Shard, file: Path, **rest):
    return train.train(TINY, model, lambda n: shard, shard, file, say=lambda line: None, **rest)


def test_a_stopped_run_goes_on_as_if_nothing_had_been(shard: shards.Shard, tmp_path: Path) -> None:
    straight, broken = recipes.build(TINY), recipes.build(TINY)
    whole = _train(straight, shard, tmp_path / "a.safetensors")
    assert whole["done"]
    half = _train(broken, shard, tmp_path / "b.safetensors", stop_after=3)
    assert not half["done"]
    resumed = recipes.build(dataclasses.replace(TINY, seed=9))  # all weights come from the checkpoint
    rest = _train(resumed, shard, tmp_path / "b.safetensors")
    assert (rest["tokens"], rest["updates"]) == (whole["tokens"], whole["updates"])
    for one, other in zip(straight.parameters(), resumed.parameters()):
        assert torch.allclose(one, other, atol=1e-6)
    assert whole["curve"][-1][2] < whole["curve"][0][2]


def test_a_checkpoint_of_another_shape_is_refused(shard: shards.Shard, tmp_path: Path) -> None:
    _train(recipes.build(TINY), shard, tmp_path / "c.safetensors", stop_after=1)
    other = recipes.build(dataclasses.replace(TINY, width=16))
    with pytest.raises(ModelError, match="a different shape"):
        _train(other, shard, tmp_path / "c.safetensors")


_KILLED = """
import dataclasses, sys
from pathlib import Path
from types import SimpleNamespace
import torch
torch.set_num_threads(1)
from town.training import recipes, shards, train
recipe = dataclasses.replace(recipes.recipe("town"), layers=1, width=32, heads=2, kv_heads=1, feed_forward=48,
                             tokens=10**9, step=512, micro=512)
shard = shards.read(Path(sys.argv[1]))
train.train(recipe, recipes.build(recipe), lambda n: shard, shard, Path(sys.argv[2]), every=0.0)
"""


def test_a_killed_run_leaves_a_checkpoint(shard: shards.Shard, tmp_path: Path) -> None:
    data, checkpoint = tmp_path / "shard.safetensors", tmp_path / "run" / "checkpoint.safetensors"
    shards.write(data, shard)
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(data), str(checkpoint)], stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(suites.FILE.parents[1])},
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 120
        while not checkpoint.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert checkpoint.exists()
        time.sleep(0.3)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    said: list[str] = []
    state = train.train(
        TINY, recipes.build(TINY), lambda n: shard, shard, checkpoint, stop_after=1, say=said.append
    )
    assert state["updates"] >= 1
    assert "going on after" in said[0]


# --- answers, scores, cards --------------------------------------------------------------------


def test_greedy_batches_equal_single_rows(tokenizer) -> None:
    model = recipes.build(dataclasses.replace(TINY, layers=2)).eval()
    prompts = [answers.prompt_ids(tokenizer, m) for m in tasks.prompts(5, 1)]
    together = answers.greedy(model, prompts, longest=12)
    for prompt, answer in zip(prompts, together, strict=True):
        with torch.inference_mode():
            best = model(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 :].argmax(-1)
        assert best[:-1].tolist() == answer
        assert len(answer) == 12 or int(best[-1]) in (pieces.END, pieces.STOP)


def test_aligned_data_is_the_models_own(tokenizer, tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    pieces.save(tokenizer, folder)
    with pytest.raises(ModelError, match="first run"):
        answers.load(folder)
    recipes.build(TINY).half().save_pretrained(folder)
    made = answers.answered_shard(tmp_path, folder, tokenizer, 0, 0, 400, chats=6)
    model = answers.load(folder)
    ids, said = made.chat(0)
    start = int(said.argmax())
    (answer,) = answers.greedy(model, [ids[:start].tolist()])
    assert len(answer) == answers.LONGEST  # random weights never end: the answer is cut ...
    assert answer == ids[start:].tolist()  # ... and no end token is learnt from it
    again = answers.answered_shard(tmp_path, folder, tokenizer, 0, 0, 400, chats=6)
    assert np.array_equal(made.tokens, again.tokens)


def forced(target: Any, draft: Any, prompt: list[int], text: list[int], limit: int) -> tuple[int, int]:
    """Accepted and drafted tokens without the loop: the draft's predictions on the target's own text.

    Up to the first disagreement a draft has read only that text. Tokens drafted after the end are cut and do
    not count; the last position before the limit is the target's.
    """
    row = torch.tensor([[*prompt, *text[:-1]]])
    with torch.inference_mode():
        predicted = draft.net(input_ids=row).logits[0, len(prompt) - 1 :].argmax(-1).tolist()
    accepted = drafted = at = 0
    while at < len(text):
        n = min(evaluate.DRAFTED, limit - at - 1)
        agree = 0
        while agree < n and at + agree < len(text) and predicted[at + agree] == text[at + agree]:
            agree += 1
        accepted += agree
        drafted += agree if at + agree == len(text) else n
        at += agree + 1
    return accepted, drafted


def test_acceptance_is_that_of_teacher_forcing() -> None:
    ends, limit = (1, 7, 9), 18
    target = llama(seed=0, eos=ends)
    draft = llama(seed=5, eos=ends, like=target, noise=0.15)
    prompts = [[first, 5, 9, first + 3] for first in range(14, 26)]
    entries = [{"prompt": p, "kind": "odd" if i % 2 else "even"} for i, p in enumerate(prompts)]
    found = evaluate.acceptance(target, draft, entries, longest=limit)
    alone = specviz.generate(target, prompts, "autoregressive", max_new_tokens=limit).outputs
    texts = alone.groupby("prompt")["token"].apply(list).tolist()
    assert {text[-1] in ends for text in texts} == {True, False}  # some end by themselves, some by the limit
    counts = np.array([forced(target, draft, p, t, limit) for p, t in zip(prompts, texts)])
    for kind, some in (("even", counts[::2]), ("odd", counts[1::2]), ("all", counts)):
        accepted, drafted = some.sum(0)
        assert 0 < accepted < drafted
        assert found[kind] == accepted / drafted


def test_bleu_knows_the_same_from_another() -> None:
    assert evaluate.bleu(["Anna kauft ein Buch."], [["Anna kauft ein Buch."]], "de") == pytest.approx(100)
    assert evaluate.bleu(["アンナは本を買いました。"], [["アンナは本を読みました。"]], "ja") < 90


def test_a_card_says_how_it_was_made() -> None:
    made = recipes.changed(recipes.recipe("town-draft"), tokens=10**8, step=32768, rate=0.01)
    training = {"recipe": dataclasses.asdict(made),
                "tokens": 1234567, "updates": 99, "seconds": 600.0, "where": "1 CPU thread",
                "curve": [(0, None, 8.0), (600000, 3.0, 2.5), (1234567, 2.0, 1.5)]}  # fmt: skip
    found = {
        "translation": {"en-de": {"bleu": 60.0, "paraphrase": 70.0, "share": 0.857, "accepted": 0.5}},
        "losses": {"qa": {"nats_per_token": 0.2, "bits_per_character": 0.1, "choice_bits_per_character": 0}},
        "answered": {"qa": 0.9}, "acceptance": {"all": 0.7},
    }  # fmt: skip
    text = card("town-draft", 600_000, training, found)
    for part in ("1,234,567", "Apache-2.0", "updates of about 32,768",
                 "python -m town.training town-draft --tokens 100000000 --step 32768 --rate 0.01",
                 "| qa | 0.200",
                 "| all | 0.70 |", "| seed | 0 |", "0.86"):  # fmt: skip
        assert part in text
    assert sparkline([3, 2, 1]) == "█▅▁"


def test_a_translators_card_and_scores() -> None:
    made = recipes.recipe("town-translator-prefix")
    training = {"recipe": dataclasses.asdict(made), "tokens": 9, "updates": 9, "seconds": 60.0, "where": "-",
                "curve": [(0, None, 8.0), (9, 2.0, 1.5)]}  # fmt: skip

    class Pieces:
        def encode(self, text: str, add_special_tokens: bool = True) -> Any:
            return SimpleNamespace(ids=[6 + ord(c) % 90 for c in text])

        def decode(self, ids: list[int]) -> str:
            return " ".join(map(str, ids))

    net = recipes.build(dataclasses.replace(made, layers=1, width=16, heads=2, kv_heads=1, feed_forward=16))
    found = translators.scores(net, Pieces(), n=2)
    assert set(found["translation"]) == {"en-de", "en-zh", "en-ja", "en-xx"}
    for row in found["translation"].values():
        assert row["bleu"] < row["paraphrase"]  # it has learnt nothing
        assert row["longer"] > 1
    text = translators.card("town-translator-prefix", 3_000_000, training, found)
    assert "python -m town.training town-translator-prefix`" in text
    assert "| English to Control |" in text


def test_unknown_recipes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    from town.training.__main__ import main

    with pytest.raises(ParameterError, match="town-draft"):
        recipes.recipe("city")
    assert main(["city"]) == 2
    assert "city" in capsys.readouterr().err
    assert main(["town", "--tokens", "0"]) == 2
    assert "tokens must be positive" in capsys.readouterr().err
    assert main(["town", "--device", "cuda:99"]) == 2
    assert "cuda:99" in capsys.readouterr().err


def test_the_recipes_have_the_sizes_that_the_zoo_promises() -> None:
    sizes = {n: sum(p.numel() for p in recipes.build(r).parameters()) for n, r in recipes.RECIPES.items()}
    assert 2_000_000 <= sizes["town"] <= 4_000_000
    assert 3_000_000 <= sizes["town-translator"] == sizes["town-translator-prefix"] <= 3_500_000
    assert sizes["town"] < sizes["town-diffusion"] <= 4_000_000  # biases
    assert 300_000 <= sizes["town-draft"] == sizes["town-draft-aligned"] <= 700_000
    assert 2_500_000 <= sizes["town-t5"] == sizes["town-t5-exit"] == sizes["town-t5-calm"] <= 3_000_000
    assert 600_000 <= sizes["town-t5-small"] == sizes["town-t5-small-aligned"] <= 900_000
    assert sizes["town-t5-heads"] <= 1_000_000
    assert sizes["town-t5-slots"] <= 1_000_000
    assert sizes["town-eagle"] == sizes["town-eagle-en"] <= 300_000
    assert sizes["town-eagle3"] == sizes["town-eagle3-en"] <= 800_000


# --- the shipped models --------------------------------------------------------------------------


def test_the_suite_is_whole() -> None:
    lines = suites.FILE.read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    assert len({e["id"] for e in entries}) == len(entries) == 70
    assert {e["kind"] for e in entries} == set(tasks.KINDS)
    for entry in entries:
        assert entry["turns"][0] == entry["prompt"] == entry["messages"][0]["content"]
        assert entry["turns"][-1] == entry["messages"][-1]["content"]
        assert entry["references"]
        assert len(entry["turns"]) == (2 if entry["kind"] == "conversation" else 1)


@pytest.mark.parametrize(
    "name", [n for n, r in recipes.RECIPES.items() if not r.encoder and r.part != "eagle"]
)
def test_bundled_models_load(name: str) -> None:
    folder = evaluate.ROOT / name
    model = answers.load(folder)
    assert sum(f.stat().st_size for f in folder.iterdir()) < 10_000_000
    shared = evaluate.ROOT / "town"
    assert (folder / "tokenizer.json").read_bytes() == (shared / "tokenizer.json").read_bytes()
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation["eos_token_id"] == [pieces.END, pieces.STOP]
    made = recipes.recipe(name)
    assert (model.config.num_hidden_layers, model.config.hidden_size) == (made.layers, made.width)


def test_the_bars_are_met() -> None:
    assert all(met for _, _, met in evaluate.bars())
