"""The byte-level BPE that all bundled models share.

Every byte can be encoded. Each digit is its own token, so that numbers are read digit by digit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from town.corpus import tasks

SIZE = 3072
SPECIALS = ("<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>", "<|system|>", "<pad>", "<mask>",
            *(f"<|r{i}|>" for i in range(8)))  # fmt: skip
BEGIN, STOP, USER, ASSISTANT, END, SYSTEM, PAD, MASK = range(8)
CHAT = (
    "<s>{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def texts(samples: int, seed: int = 0) -> Iterator[str]:
    """Every turn of the first `samples` training chats."""
    for sample in islice(tasks.stream(f"tokenizer:{seed}", "train"), samples):
        for turn in sample.turns:
            yield from turn


def train(lines: Iterable[str], size: int = SIZE) -> Any:
    """Train a byte-level BPE of `size` tokens, special tokens included; a ``tokenizers.Tokenizer``."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[AddedToken(s, special=True, normalized=False) for s in SPECIALS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return tokenizer


def save(tokenizer: Any, folder: Path, context: int = 1024, pairs: bool = False) -> None:
    """Write the files that tell transformers how to load the tokenizer and how to end a generation.

    With `pairs`, write an encoder-decoder's: no chats, ``<|end|>`` after every text, ``<pad>`` to start with.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if pairs:
        from tokenizers.processors import TemplateProcessing

        ending = SPECIALS[END]
        tokenizer.post_processor = TemplateProcessing(f"$A {ending}", None, [(ending, END)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "<|end|>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
    }
    generation = {"bos_token_id": BEGIN, "eos_token_id": [END, STOP], "pad_token_id": PAD, "do_sample": False}
    if pairs:
        generation |= {"eos_token_id": END, "decoder_start_token_id": PAD}
    else:
        config["chat_template"] = CHAT
    for name, content in (("tokenizer_config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def encode_chat(tokenizer: Any, turns: Iterable[tuple[str, str]]) -> tuple[list[int], list[bool]]:
    """Token ids of a chat, and a mask of the assistant's tokens (its ``<|end|>`` included).

    The ids match those of the chat template: no token crosses a special token.
    """
    ids, answer = [BEGIN], [False]
    for user, assistant in turns:
        asked = [USER, *tokenizer.encode(user, add_special_tokens=False).ids, END, ASSISTANT]
        said = [*tokenizer.encode(assistant, add_special_tokens=False).ids, END]
        ids += asked + said
        answer += [False] * len(asked) + [True] * len(said)
    return ids, answer


def encode_pair(tokenizer: Any, turns: Iterable[tuple[str, str]]) -> tuple[list[int], list[bool]]:
    """Token ids of a prompt and its answer, each with ``<|end|>``, and a mask of the answer's tokens."""
    ((user, assistant),) = turns
    asked, said = ([*tokenizer.encode(t, add_special_tokens=False).ids, END] for t in (user, assistant))
    return asked + said, [False] * len(asked) + [True] * len(said)
