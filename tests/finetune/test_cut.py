"""Drafters cut out of their target: computation, learning, and the target they belong to."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tiny import llama
from torch.nn.functional import cross_entropy

import specviz
from specviz.cli import run
from specviz.errors import ModelError, ParameterError
from specviz.finetune import cut as cutting
from specviz.finetune import training
from specviz.finetune.align import ABSENT, Student, align, hits, runs_of
from specviz.finetune.answers import AnswerOptions, Answers, answer
from specviz.finetune.cut import cut
from specviz.models import Model, kernels, trimmed

PROMPTS = [[3 + i, 5 + i % 7, 9] for i in range(12)]
FAST = {"epochs": 60, "rate": 0.02, "batch": 6, "say": lambda line: None}


@pytest.fixture(scope="module")
def target() -> Model:
    return llama(seed=3, layers=4, name="tiny", eos=(47,))


@pytest.fixture(scope="module")
def learnt(target: Model, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    file = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    options = AnswerOptions(8, (0.0, 0.7))
    return answer(target, PROMPTS, file, options, say=FAST["say"])


def test_a_cut_draft_is_the_first_layers_with_a_part_of_the_words(
    target: Model, learnt: Answers, tmp_path: Path
) -> None:
    out = cut(target, learnt, tmp_path / "cut", layers=2, vocabulary=20)
    draft = specviz.load(out).on(target)
    assert (draft.vocabulary, len(draft.tokens)) == (48, 20)
    assert 47 in draft.tokens  # the end token
    with pytest.raises(ModelError, match="cut out of its target already"):
        draft.first(1)
    scores = [model.open([PROMPTS[0]], 2).forward([specviz.Draft.chain([4])]).logits[0]
              for model in (draft, target.first(2))]  # fmt: skip
    ours, whole = (rows[:, draft.tokens] for rows in scores)
    size = math.log2(float(ours.norm() / whole.norm()))
    assert torch.allclose(ours, whole * 2.0 ** round(size), atol=1e-2)
    pairs, _ = training.parted(training.pairs_of(learnt))
    with torch.no_grad():
        guessed, wanted = Student(draft)(pairs[: cutting.TEXTS])
    losses = [float(cross_entropy(by * guessed, wanted, ignore_index=ABSENT)) for by in (0.5, 1.0, 2.0)]
    assert losses[1] <= losses[0] and (losses[1] <= losses[2] or round(size) == 0)
    others = [token for token in range(48) if token not in draft.tokens]
    assert torch.isinf(scores[0][:, others]).all()
    assert "2 layers" in (out / "README.md").read_text(encoding="utf-8")
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.skipif(not kernels.multiplies_eight_bits(), reason="no exact products of eight bits here")
def test_in_eight_bits_it_reads_in_any_pass_what_it_reads_alone(
    target: Model, learnt: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, words = cut(target, learnt, tmp_path / "cut", layers=2, vocabulary=20), [4, 5, 6]
    plain = specviz.load(folder).on(target)
    monkeypatch.setattr(trimmed, "of_drafter", lambda target: kernels.W8A8)
    draft = specviz.load(folder).on(target)
    assert (draft.kernels, draft.invariant) == ("w8a8", True)
    together, exact = (
        each.open([PROMPTS[0]], 4).forward([specviz.Draft.chain(words)]).logits[0] for each in (draft, plain)
    )
    for n in range(4):
        alone = draft.open([PROMPTS[0] + words[:n]], 1).forward([specviz.Draft.empty()]).logits[0]
        assert torch.equal(alone[-1], together[n])
    kept = draft.tokens
    assert 0 < (together - exact)[:, kept].abs().max() < 0.1 * exact[:, kept].abs().max()

    def refuse(self: Model) -> None:
        raise ModelError("its sums change")

    monkeypatch.setattr(Model, "make_invariant", refuse)
    assert specviz.load(folder).on(target).kernels == plain.kernels
    draft._threads = 0  # as if laid out for another thread count
    assert draft.open([PROMPTS[0]], 1).forward([specviz.Draft.empty()]).logits[0].isfinite().any()
    assert (draft.kernels, draft.invariant) == (plain.kernels, False)


@pytest.mark.parametrize("soft", [False, True])
def test_it_learns_and_its_texts_stay_the_targets(
    target: Model, learnt: Answers, tmp_path: Path, soft: bool
) -> None:
    begin = cut(target, learnt, tmp_path / "cut", layers=1, vocabulary=40)
    made = align(target, specviz.load(begin), learnt, tmp_path / "new", soft=soft, drawn=None, **FAST)
    assert (made.learnt, made.held_out) == (22, 2)
    draft = specviz.load(made.path)
    assert draft.config["target"] == "tiny"
    own = specviz.generate(target, PROMPTS, "autoregressive", max_new_tokens=8).outputs["token"].tolist()
    rates = []
    for each in (specviz.load(begin), draft):
        trace = specviz.generate(target, PROMPTS, "speculative", draft=each, draft_length=3, max_new_tokens=8)
        assert trace.outputs["token"].tolist() == own
        rates.append(specviz.metrics.acceptance_rate(trace))
    assert rates[1] > 0.5 > rates[0]
    for method in ("bild", "cm_asd", "specdec"):
        specviz.generate(target, PROMPTS[:2], method, draft=draft, max_new_tokens=8)
    batch = specviz.generate(target, PROMPTS, "speculative", draft=draft, max_new_tokens=8, batch=4)
    assert batch.outputs["token"].tolist() == own


def test_an_answer_without_a_word_of_the_draft_teaches_nothing(
    target: Model, learnt: Answers, tmp_path: Path
) -> None:
    begin = cut(target, learnt, tmp_path / "cut", layers=1, vocabulary=3)
    said: list[str] = []
    words = {*specviz.load(begin).on(target).tokens.tolist()}
    given = {"epochs": 1, "batch": 1, "every": 0.0, "drawn": None, "say": said.append}
    assert any(not {*row["answer"]} & words for row in learnt.rows)
    align(target, begin, learnt, tmp_path / "new", **given)
    assert "loss" in said[-1] and not any("nan" in line for line in said)


def test_the_cards_tau_is_that_of_a_run(target: Model, learnt: Answers, tmp_path: Path) -> None:
    begin = cut(target, learnt, tmp_path / "cut", layers=1, vocabulary=40)
    made = align(target, specviz.load(begin), learnt, tmp_path / "new", drawn=False, **{**FAST, "epochs": 12})
    draft = specviz.load(made.path)
    pairs = training.pairs_of(learnt, drawn=False)
    runs = [runs_of(right) for right in hits(Student(draft.on(target)), pairs)]
    trace = specviz.generate(
        target, [pair.prompt for pair in pairs], "speculative", draft=draft, draft_length=4, max_new_tokens=8
    )
    cycles = int((trace.cycles["cycle"] > 0).sum())
    assert training.chain_tau(runs) == pytest.approx(sum(len(pair.answer) for pair in pairs) / cycles)
    assert training.chain_tau(runs) > 1.1
    lines = training.kinds_table([pair._replace(kind="qa") for pair in pairs], runs)
    assert lines[-2].startswith("| all | 12 | ") and lines[-1] == lines[-2].replace("all", "qa")
    *_, total, own = training.kinds_table([pairs[0]._replace(kind="all"), *pairs[1:]], runs)
    assert total == lines[-2] and own.startswith("| all | 1 | "), "a kind that is called all"
    held = [run for pair, run in zip(pairs, runs) if pair.number == 9]
    assert f"{training.chain_tau(held):.2f} |" in (made.path / "README.md").read_text(encoding="utf-8")


def test_greedy_and_drawn_answers_are_told_apart(target: Model, learnt: Answers, tmp_path: Path) -> None:
    begin = specviz.load(cut(target, learnt, tmp_path / "cut", layers=1, vocabulary=40))
    few = {**FAST, "epochs": 1}
    for drawn, words in ((False, "greedy answers"), (True, "drawn at a temperature")):
        said: list[str] = []
        made = align(
            target, begin, learnt, tmp_path / f"new{drawn}", drawn=drawn, **{**few, "say": said.append}
        )
        assert (made.learnt, made.held_out) == (11, 1)
        card = (made.path / "README.md").read_text(encoding="utf-8")
        assert words in card and "| all | 1 | " in card, "measured on a greedy answer"
        assert "tau" in json.loads((made.path / "scores.json").read_text(encoding="utf-8"))
        other, remedy = ("greedy", "drop") if drawn else ("sampled", "use")
        assert said[0] == f"left out: 12 {other} answers ({remedy} --drawn to learn them)"


def test_what_is_refused(target: Model, learnt: Answers, tmp_path: Path) -> None:
    other = llama(seed=4, layers=4, name="other", eos=(47,))
    out = cut(target, learnt, tmp_path / "cut", 1, 20)
    with pytest.raises(ModelError, match="was trained on tiny, and other is a different model"):
        specviz.load(out).on(other)
    with pytest.raises(
        ModelError, match="not a model by itself but a drafter cut out of tiny: decode with tiny"
    ):
        specviz.generate(specviz.load(out), PROMPTS[:1], "autoregressive")
    with pytest.raises(ModelError, match="answers of tiny"):
        cut(other, learnt, tmp_path / "new", 1, 20)
    with pytest.raises(ModelError, match="exists"):
        cut(target, learnt, out, 1, 20)
    for layers in (5, 1.5):
        with pytest.raises(ParameterError, match=f"layers must be a whole number from 1 to 4, got {layers}"):
            cut(target, learnt, tmp_path / "new", layers, 20)
    with pytest.raises(ParameterError, match="vocabulary must be a whole number from 1 to 48, got 49"):
        cut(target, learnt, tmp_path / "new", 1, 49)
    said: list[str] = []
    cut(target, learnt, out, 1, 48, force=True, say=said.append)
    tokens = len(specviz.load(out).on(target).tokens)
    assert said == [f"the answers have {tokens} different tokens: the draft can write these, not 48"]
    with pytest.raises(ModelError, match="cannot be cut"):
        cut("town-t5", learnt, tmp_path / "new", 1, 20)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cut"]


def test_another_files_weights_are_refused_by_their_hash(
    target: Model, learnt: Answers, tmp_path: Path
) -> None:
    draft = specviz.load(cut(target, learnt, tmp_path / "cut", 1, 20))
    draft.config["content"] = "0" * 64
    with pytest.raises(ModelError, match=r"tiny \(00000000\), and this tiny has different weights"):
        draft.on(target)


def test_it_drafts_for_the_same_file_on_llama_cpp(tmp_path: Path) -> None:
    whole = specviz.load("gguf:town-translator", backend="torch")
    asked = ["Translate into German: The baker sells bread.", "Translate into English: Der Hund schläft."]
    prompts = [whole.encode(prompt) for prompt in asked]
    learnt = answer(whole, prompts, tmp_path / "answers", AnswerOptions(8), say=FAST["say"])
    draft = specviz.load(cut(whole, learnt, tmp_path / "cut", layers=2, vocabulary=30))
    assert draft.config["content"] == whole.content
    served = specviz.load("gguf:town-translator")
    own = specviz.generate(served, asked, "autoregressive", max_new_tokens=8).outputs["token"].tolist()
    trace = specviz.generate(served, asked, "speculative", draft=draft, draft_length=2, max_new_tokens=8)
    assert trace.outputs["token"].tolist() == own
    with pytest.raises(ModelError, match="different model"):
        draft.on(specviz.load("town"))


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, made = tmp_path / "prompts.txt", tmp_path / "answers.jsonl"
    file.write_text("\n".join(f"What is {i} plus {i}?" for i in range(11)), encoding="utf-8")
    ask = ["models", "answers", "town", "--prompts", str(file), "-o", str(made), "-n", "6", "--threads", "1"]
    assert run(ask) == 0
    begin, out = tmp_path / "begin", tmp_path / "new"
    assert run(["models", "cut", "town", "--answers", str(made), "-o", str(begin), "--layers", "1",
                "--vocabulary", "30"]) == 0  # fmt: skip
    assert f"cut: {begin}" in capsys.readouterr().out
    given = ["models", "align", str(begin), "--target", "town", "--answers", str(made), "--epochs", "1"]
    assert run([*given, "-o", str(out), "-n", "4"]) == 2
    assert "max_new_tokens has no effect on answers that are given: drop it" in capsys.readouterr().err
    assert run([*given, "-o", str(out), "--soft", "--threads", "1"]) == 0
    assert "on 1 held-out answer: " in capsys.readouterr().out
    say = ["generate", "--model", "town", "--prompt", "What is 2 plus 2?", "-n", "4"]
    assert run([*say[:1], "speculative", *say[1:], "--draft", str(out)]) == 0
    heads = tmp_path / "heads"
    train = ["models", "heads", "town", "--answers", str(made), "-o", str(heads), "--epochs", "1"]
    assert run([*train, "--heads", "2", "--inner", "8", "--draft-vocabulary", "30", "--threads", "1"]) == 0
    assert "by head" in capsys.readouterr().out
    assert run([*say[:1], "blockwise", *say[1:], "--draft", str(heads), "--set", "k=3"]) == 0


def test_others_may_read_what_is_published(tmp_path: Path) -> None:
    """By the user's umask, as any file; safetensors makes its files private."""
    (tmp_path / "work").mkdir()

    def write(folder: Path) -> None:
        (folder / "config.json").write_text("{}")
        save_file({"a": torch.zeros(2)}, folder / "model.safetensors")

    training.publish(tmp_path / "work", tmp_path / "made", write, "card")
    modes = {each.stat().st_mode for each in (tmp_path / "made").iterdir()}
    (tmp_path / "other").touch()
    assert modes == {(tmp_path / "other").stat().st_mode}


def test_only_the_folder_to_write_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own copy stays, and a kill between the two renames loses nothing."""
    out, partial, mine = tmp_path / "made", tmp_path / "made.partial", tmp_path / "made.old" / "mine.txt"
    mine.parent.mkdir()
    mine.write_text("hours")
    replace = os.replace

    def publish(text: str) -> None:
        partial.mkdir(exist_ok=True)
        training.publish(partial, out, lambda folder: (folder / "config.json").write_text(text), "card")

    def killed(source: Path, to: Path) -> None:
        if to == out:
            raise KeyboardInterrupt
        replace(source, to)

    publish("1")
    assert mine.read_text() == "hours" and sorted(os.listdir(tmp_path)) == ["made", "made.old"]
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            publish("2")
    assert (partial / "old" / "config.json").read_text() == "1" and not out.exists()
    publish("2")
    (partial / "old").mkdir(parents=True)  # as a kill after the renames leaves it
    (partial / "old" / "config.json").write_text("1")
    publish("3")
    assert (out / "config.json").read_text() == "3" and mine.read_text() == "hours"
    assert sorted(os.listdir(tmp_path)) == ["made", "made.old"]
