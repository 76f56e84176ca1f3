"""Prompts that SmolLM2 writes itself: how turns begin, and which ones are kept."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from smollm2 import own_prompts
from specviz.models.model import Model

WORDS = {1: " is", 2: " rain", 3: " wet?", 4: "Дождь", 5: "<|x|>", 6: " "}


def test_only_new_whole_english_prompts_are_kept() -> None:
    target = SimpleNamespace(eos=(0,), decode=lambda ids: "".join(WORDS[i] for i in ids))
    turns = {
        "kept": [1, 2, 3, 0],
        "not ended": [1, 2, 3],
        "two words": [1, 6, 0],
        "other letters": [1, 4, 4, 3, 0],
        "a mark of the template": [1, 2, 5, 0],
        "a copy": [1, 2, 3, 6, 0],
    }
    rows = [{"number": n, "kind": "Why", "answer": turn} for n, turn in enumerate(turns.values())]
    kept = list(own_prompts.prompts(target, SimpleNamespace(rows=rows[::-1])))
    assert kept == [{"id": "own-0", "kind": "own", "prompt": "Why is rain wet?"}]


def test_turns_begin_as_drawn(smollm2: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_prompts, "TOKENS", 2)
    written = own_prompts.write(smollm2, 6, tmp_path / "own.written")
    begun = {row["number"]: smollm2.decode(row["prompt"]) for row in written.rows}
    assert len(begun) == 6
    assert all(begun[row["number"]].endswith(f"user\n{row['kind']}") for row in written.rows)
    assert len({row["kind"] for row in written.rows}) > 1
