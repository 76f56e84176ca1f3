"""Diagnosis of EAGLE heads: each planted fault is named; accuracy by depth, in training and in runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import llama
from torch import nn

import specviz
from specviz.cli import run
from specviz.errors import ModelError, PromptError
from specviz.finetune import eagle_loss
from specviz.finetune.check import DraftCheck, _chains, _depth_table, check_draft, verdict, write_card
from specviz.finetune.eagle import train_eagle
from specviz.finetune.heads import HeadsLoss, train_heads
from specviz.models import Model
from specviz.models.additions import EagleHead
from specviz.models.eagle import LAYERS

PROMPTS = [[3 + i, 5 + i % 7, 9] for i in range(12)]
LEARNT = PROMPTS[:10]  # the last is held out
FAST = {"layers": (1, 2, 4), "batch": 9, "max_new_tokens": 14, "epochs": 220, "rate": 0.02}
QUIET = {"say": lambda line: None}


@pytest.fixture(scope="module")
def target() -> Model:
    return llama(seed=3, layers=6, name="tiny", eos=())


@pytest.fixture(scope="module")
def learnt(target: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("heads") / "head"
    return train_eagle(target, LEARNT, out, **FAST, **QUIET).path


def test_a_good_head_is_left_alone(target: Model, learnt: Path) -> None:
    told = check_draft(learnt, target, PROMPTS[:9], 14)
    assert told.depths["forced"][1] > 0.6
    assert told.depths["begun agrees"].all()
    # The trained weights differ between processors, and guesses where cycles begin may be easier.
    agree = told.depths["forced agrees"].all()
    assert ("the shares agree at each depth" if agree else "the shares differ at depth") in told.reason
    assert told.depths["begun places"][1] == told.depths["looped places"][1], "one first guess a cycle"
    assert told.depths["begun"][1] == told.depths["looped"][1], "the same places, the same guesses"
    assert told.depths["forced places"][1] > told.depths["begun places"][1]
    assert "none of these changes makes it better" in told.verdict
    assert told.verdict in str(told) and "looped" in str(told)


def test_other_layers_are_named(target: Model, learnt: Path) -> None:
    wrong = specviz.load(learnt)
    wrong.config[LAYERS] = [2, 3, 5]
    told = check_draft(wrong, target, PROMPTS[:9], 14)
    assert told.verdict.startswith("reading layers 1, 2, 4 would make its first guess right")


def test_shifted_guesses_are_named(target: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head learns the token one position too far ahead."""
    whole = eagle_loss.EagleLoss._read

    def shifted(self, model, tokens, answer, kept):
        texts = whole(self, model, tokens, answer, kept)
        return texts._replace(last=texts.last.roll(-1, 1))

    monkeypatch.setattr(eagle_loss.EagleLoss, "_read", shifted)
    made = train_eagle(target, LEARNT, tmp_path / "head", **FAST, **QUIET)
    monkeypatch.undo()
    told = check_draft(made.path, target, PROMPTS[:9], 14)
    assert told.verdict.startswith("taking its guess as one token further on would make")


def test_another_targets_weights_are_named(target: Model, tmp_path: Path) -> None:
    other = llama(seed=4, layers=6, name="tiny", eos=())
    made = train_eagle(other, LEARNT, tmp_path / "head", **FAST, **QUIET)
    told = check_draft(made.path, target, PROMPTS[:9], 14)
    assert "none of these changes helps: its weights are for another target, or not trained" in told.verdict


def test_a_missing_template_is_named(tmp_path: Path) -> None:
    town = specviz.load("town")
    asked = ["1 + 2 = 3", "On Monday", "Tell me a story", "My friend"]  # continued if without template
    raw = [town.text.encode(prompt, raw=True) for prompt in asked]
    given = {"layers": (2, 5, 8), "batch": 4, "max_new_tokens": 16, "epochs": 60, "rate": 0.02}
    made = train_eagle(town, [*raw, raw[1]], tmp_path / "head", draft_vocabulary=200, **given, **QUIET)
    told = check_draft(made.path, town, asked, 16)
    assert told.verdict.startswith("texts without the chat template would make its first guess right")


def test_the_verdict_is_the_best_change_that_matters() -> None:
    assert verdict({"as it is": 0.5, "b": 0.55}).endswith("makes it better")
    assert verdict({"as it is": 0.05, "b": 0.12}).endswith("or not trained")
    assert verdict({"as it is": 0.05, "b": 0.3, "c": 0.5}) == (
        "c would make its first guess right 50% of the time, not 5%"
    )


def test_a_draft_model_is_checked_by_depth() -> None:
    told = check_draft("town-draft", "town", list(specviz.suite("town"))[:4], 32)
    depths = told.depths
    assert depths["begun places"].tolist()[0] == depths["looped places"].tolist()[0] > 0
    assert depths["begun"][1] == depths["looped"][1], "the same places, the same guesses"
    assert depths["forced places"].is_monotonic_decreasing and (depths["forced"] > 0.3).all()


def test_heads_are_checked_by_depth(target: Model, tmp_path: Path) -> None:
    given = {"heads": 3, "inner": 64, "epochs": 200, "batch": 9, "max_new_tokens": 14}
    made = train_heads(target, LEARNT, tmp_path / "heads", **given, **QUIET)
    told = check_draft(made.path, target, PROMPTS[:9], 14)
    depths = told.depths
    assert depths.index.tolist() == [1, 2, 3], "one row for each head"
    assert depths["begun places"][1] == depths["looped places"][1] > 0
    assert depths["begun"][1] == depths["looped"][1] > 0, "the same places, the same guesses"
    assert depths["forced places"].is_monotonic_decreasing
    assert "none of these changes makes it better" in told.verdict
    assert "reading layer 5" in told.variations.index and "reading layer 7" not in told.variations.index
    further = specviz.load(made.path)  # its first head guesses the token after the next
    for name in ("up", "down", "offset"):
        setattr(further.net, name, nn.Parameter(getattr(further.net, name)[1:]))
    further.config["heads"] = 2
    told = check_draft(further, target, PROMPTS[:9], 14)
    assert told.verdict.startswith("taking its guess as one token further on would make")
    other = llama(seed=4, layers=6, name="tiny", eos=())
    told = check_draft(made.path, other, PROMPTS[:9], 14)
    assert "none of these changes helps: its weights are for another target" in told.verdict


def test_heads_of_another_layer_are_named(
    target: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states, guesses = HeadsLoss._states, HeadsLoss._guesses

    def remembered(self, pairs):
        self.read = []
        for pair in pairs:
            ids = torch.tensor([[*pair.prompt, *pair.answer]])
            layers = target.net.get_decoder()(ids, output_hidden_states=True).hidden_states
            self.read.append(layers[5][0, len(pair.prompt) - 1 : -1].detach())
        return states(self, pairs)

    monkeypatch.setattr(HeadsLoss, "_states", remembered)
    monkeypatch.setattr(HeadsLoss, "_guesses", lambda self, _, rows: guesses(self, self.read, rows))
    given = {"heads": 2, "inner": 64, "epochs": 200, "batch": 9, "max_new_tokens": 14}
    made = train_heads(target, LEARNT, tmp_path / "heads", **given, **QUIET)
    told = check_draft(made.path, target, PROMPTS[:9], 14)
    assert told.verdict.startswith("reading layer 5 would make its first guess right")


def test_heads_without_the_template_are_named(tmp_path: Path) -> None:
    town = specviz.load("town")
    asked = ["1 + 2 = 3", "On Monday", "Tell me a story", "My friend"]
    raw = [town.text.encode(prompt, raw=True) for prompt in asked]
    given = {"heads": 2, "inner": 64, "batch": 4, "max_new_tokens": 16, "epochs": 60, "draft_vocabulary": 200}
    made = train_heads(town, [*raw, raw[1]], tmp_path / "heads", **given, **QUIET)
    told = check_draft(made.path, town, asked, 16)
    assert told.verdict.startswith("texts without the chat template would make its first guess right")


def test_chains_are_counted_from_where_they_begin() -> None:
    text, right = [7] * 5, np.array([7, 7, 0, 7, 7])
    chains = [(0, text)], [(0, [right[depth:] for depth in range(4)])]
    # From each position: 1 1 0 | 1 0 | 0 | 1 1 | 1.
    assert _chains(*chains).tolist() == [[[4, 5], [2, 3], [0, 1], [0, 0]]]
    assert _chains(*chains, [np.array([1, 3])]).tolist() == [[[2, 2], [1, 2], [0, 0], [0, 0]]]
    short = (0, [7] * 5), (0, [right[depth:] for depth in range(3)])  # too short for a chain of four
    both = _chains([short[0], *chains[0]], [short[1], *chains[1]]).tolist()
    assert both == [[[4, 5], [2, 3], [0, 1], [0, 0]]] * 2


def depths(forced, begun, looped, texts: int = 20):
    """Depths of equal texts: right guesses and places of each text at depth 1."""
    return _depth_table(*(np.tile([[each]], (texts, 1, 1)) for each in (forced, begun, looped)))


def test_why_the_shares_differ() -> None:
    def reason(forced, begun, looped, texts: int = 20) -> str:
        return DraftCheck("a", "b", texts, depths(forced, begun, looped, texts)).reason

    assert "bootstrapped over texts, includes zero" in reason((5, 10), (1, 2), (1, 2))
    assert "harder to guess there" in reason((8, 10), (1, 2), (1, 2))
    assert "easier to guess there" in reason((2, 10), (1, 2), (1, 2))
    assert "reads something else than in a finished text" in reason((8, 10), (8, 10), (1, 2))
    assert "give more prompts to compare the shares" in reason((8, 10), (8, 10), (1, 2), 5)
    assert "give more prompts to compare the shares" in reason((8, 10), (8, 10), (0, 0))


def test_texts_not_places_are_the_independent_units() -> None:
    """One text of a thousand places is one observation; a difference that all texts share counts."""
    one, rest = [[900, 1000]], [[5, 10]]
    forced, looped = np.array([one] + [rest] * 9), np.array([[[90, 200]]] + [rest] * 9)
    assert _depth_table(forced, looped, looped)["forced agrees"].all(), "only one text differs"
    shares = np.arange(10)[:, None, None]
    paired = [np.concatenate([shares * 9 + extra, np.full_like(shares, 100)], 2) for extra in (9, 0)]
    assert not _depth_table(paired[0], paired[1], paired[1])["forced agrees"].any(), "all texts differ"


def test_a_card_keeps_one_table_of_depths(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    card = tmp_path / "README.md"
    card.write_text("# a\n\nText.\n")
    for share in (50, 60):
        write_card(DraftCheck("a", "b", 3, depths((share, 100), (5, 10), (5, 10), 1)), tmp_path, "demo")
    text = card.read_text()
    begin = "Acceptance by depth (`specviz models check`), on 3 greedy answers to prompts of demo"
    assert text.startswith(f"# a\n\nText.\n\n{begin}")
    assert "| 1 | 0.600 of 100 | 0.500 of 10 | 0.500 of 10 |" in text and "0.500 of 100" not in text
    empty = DraftCheck("a", "b", 1, depths((1, 2), (0, 0), (0, 0), 1)).card("`<b>")
    assert "| 1 | 0.500 of 2 | – of 0 | – of 0 |" in empty and "on 1 greedy answer to" in empty
    assert "<b>" not in empty
    card.write_text(text + "\nStored in eight bits.\n\nAnd more.\n")
    write_card(DraftCheck("a", "b", 3, depths((70, 100), (5, 10), (5, 10), 1)), tmp_path, "demo")
    again = card.read_text()
    assert again == text.replace("0.600", "0.700") + "\nStored in eight bits.\n\nAnd more.\n"


def test_what_is_refused(target: Model, learnt: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="draft models of causal targets are checked"):
        check_draft("town-t5-heads", "town-t5", ["Anna closed the window."], 8)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="has no card"):
        write_card(DraftCheck("a", "b", 1, depths((1, 2), (1, 2), (1, 2), 1)), tmp_path, "demo")
    (tmp_path / "README.md").write_bytes(b"\xff")
    with pytest.raises(ModelError, match="not UTF-8"):
        write_card(DraftCheck("a", "b", 1, depths((1, 2), (1, 2), (1, 2), 1)), tmp_path, "demo")
    with pytest.raises(PromptError, match="prompts is a list; for a file use list"):
        check_draft(learnt, target, "everyday")
    with pytest.raises(PromptError, match="no prompt"):
        check_draft(learnt, target, [])
    with pytest.raises(PromptError, match="too short"):
        check_draft(learnt, target, [[3, 4]], 1)
    with pytest.raises(ModelError, match="different model"):
        check_draft(learnt, llama(seed=4, layers=6, name="other"), PROMPTS)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["models", "check", "town-eagle", "--target", "town", "--prompts", "demo", "--number", "2"]
    assert run([*given, "-n", "16", "--threads", "1"]) == 0
    told = capsys.readouterr().out
    assert "town-eagle on town" in told and "its first guess is right" in told
    assert isinstance(specviz.load("town-eagle"), EagleHead)
