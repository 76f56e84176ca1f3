"""The prompts that a measurement decodes; of a conversation only its first turn."""

from __future__ import annotations

import json
from collections.abc import Sequence

from specviz.errors import PromptError
from specviz.measure.report import Entry
from specviz.models.protocols import Model


def first_turns(model: Model, entries: Sequence[Entry]) -> list[list[int]]:
    """Token ids of each prompt; of a conversation only its first turn."""
    return [
        list(model.encode([{"role": "user", "content": e["turns"][0]}] if "turns" in e else e["prompt"]))
        for e in entries
    ]


def first_turn_key(entry: Entry) -> str:
    """A key that is equal for entries with the same first turn, be it a text or a chat of one message."""
    prompt = entry["turns"][0] if "turns" in entry else entry["prompt"]
    match prompt:
        case [{"role": "user", "content": str(words)}]:
            prompt = words
    return json.dumps(prompt)


def check_room(models: Sequence[Model], entries: Sequence[Entry], texts: Sequence[Sequence[int]]) -> None:
    """Refuse prompts (`PromptError`) whose token ids in `texts` leave no room in a model's context."""
    for number, (entry, ids) in enumerate(zip(entries, texts, strict=True), 1):
        if full := next((each for each in models if each.left(len(ids)) < 2), None):
            raise PromptError(
                f"prompt {entry.get('id', number)} has {len(ids)} tokens and leaves no room in "
                f"{full.name}'s context of {full.max_length}: shorten or remove it"
            )
