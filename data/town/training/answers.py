"""A model's own greedy answers: training data for aligned drafts, and the basis of scores.

BiLD (section 3.5.1) aligns the small model by fine-tuning it on the large model's outputs for
training prompts, in place of the data set's answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from specviz.errors import ModelError
from town.corpus import pairs, tasks
from town.training.shards import Shard, made_by, read, write
from town.training.tokenizer import END, PAD, STOP, encode_chat

ANSWERED = 2048  # chats in a shard of a target's answers
LONGEST = 160  # tokens of an answer


def load(folder: Path) -> Any:
    """A bundled model in float32.

    Raises
    ------
    ModelError
        If the folder contains no model yet.
    """
    if not (folder / "model.safetensors").exists():
        raise ModelError(f"no model in {folder}: first run python -m town.training {folder.name}")
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    from specviz.models.diffusion_checkpoints import family, read_config

    if family(read_config(folder)):
        from specviz.models.loading import load as ready

        return ready(folder).net
    pairs = AutoConfig.from_pretrained(folder, local_files_only=True).is_encoder_decoder
    kind = AutoModelForSeq2SeqLM if pairs else AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=torch.float32, local_files_only=True)


def prompt_ids(tokenizer: Any, messages: Sequence[dict[str, str]]) -> list[int]:
    """Ids of a chat that ends with the user's turn, ready for the answer; matches the chat template."""
    said = [m["content"] for m in messages]
    ids, _ = encode_chat(tokenizer, zip(said[::2], [*said[1::2], ""]))
    return ids[:-1]


def greedy(
    model: Any, prompts: Sequence[Sequence[int]], longest: int | None = None, rows: int | None = None
) -> list[list[int]]:
    """Greedy continuations, without the end token; one that does not end within `longest` is cut.

    For an encoder-decoder: its answers to prompts that end with ``<|end|>``. `rows` are decoded per batch: by
    default 64, and 512 on a GPU.
    """
    import torch

    model.eval()
    rows = rows or (64 if model.device.type == "cpu" else 512)
    answers: list[list[int]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    with torch.inference_mode():
        for first in range(0, len(order), rows):
            batch = order[first : first + rows]
            width = max(len(prompts[i]) for i in batch)
            ids = torch.full((len(batch), width), PAD)
            mask = torch.zeros_like(ids)
            for row, i in enumerate(batch):
                ids[row, width - len(prompts[i]) :] = torch.tensor(prompts[i])
                mask[row, width - len(prompts[i]) :] = 1
            found = model.generate(
                input_ids=ids.to(model.device), attention_mask=mask.to(model.device), do_sample=False,
                max_new_tokens=longest or LONGEST, eos_token_id=[END, STOP], pad_token_id=PAD,
            )  # fmt: skip
            written = 1 if model.config.is_encoder_decoder else width  # a decoder begins with its start token
            for row, i in enumerate(batch):
                for token in found[row, written:].tolist():
                    if token in (END, STOP):
                        break
                    answers[i].append(token)
    return answers


def _messages(chat: Sequence[str]) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(chat)]


def answered_shard(
    cache: Path, target: Path, tokenizer: Any, seed: int, number: int, longest: int, chats: int = ANSWERED,
    device: str = "cpu",
) -> Shard:  # fmt: skip
    """Training prompts with the greedy answers of the model in folder `target`.

    A conversation is answered turn by turn, each turn following the model's own earlier answers, as in a run;
    each turn becomes a chat of its own in which only its answer counts.
    """
    import numpy as np

    mark = made_by(tokenizer, target / "model.safetensors")
    file = cache / f"answers-{target.name}-{mark}-{seed}-{longest}-{chats}-{number:05d}.safetensors"
    if file.exists():
        return read(file)
    model = load(target).to(device)
    chats_so_far: list[list[str]] = [[] for _ in range(chats)]
    samples = list(islice(tasks.stream(f"aligned:{seed}:{number}", "train"), chats))
    tokens: list[int] = []
    said: list[bool] = []
    starts = [0]
    for turn in range(max(len(s.turns) for s in samples)):
        going = [(s, chat) for s, chat in zip(samples, chats_so_far) if turn < len(s.turns)]
        for sample, chat in going:
            chat.append(sample.turns[turn][0])
        prompts = [prompt_ids(tokenizer, _messages(chat)) for _, chat in going]
        for (_, chat), prompt, answer in zip(going, prompts, greedy(model, prompts)):
            chat.append(tokenizer.decode(answer))
            spoken = [*answer, END] if len(answer) < LONGEST else answer  # a cut answer has no end to learn
            if len(prompt) + len(spoken) <= longest:
                tokens += [*prompt, *spoken]
                said += [False] * len(prompt) + [True] * len(spoken)
                starts.append(len(tokens))
    shard = Shard(np.array(tokens, np.uint16), np.array(said, np.uint8), np.array(starts, np.int64))
    write(file, shard)
    return shard


def pair_ids(tokenizer: Any, text: str) -> list[int]:
    """Ids of a prompt in the form an encoder-decoder reads."""
    return [*tokenizer.encode(text, add_special_tokens=False).ids, END]


def answered_pairs(model: Any, tokenizer: Any, texts: Sequence[str]) -> Shard:
    """Prompts with the greedy answers of the encoder-decoder `model`."""
    import numpy as np

    prompts = [pair_ids(tokenizer, text) for text in texts]
    tokens: list[int] = []
    said: list[bool] = []
    starts = [0]
    for prompt, answer in zip(prompts, greedy(model, prompts)):
        spoken = [*answer, END] if len(answer) < LONGEST else answer  # a cut answer has no end to learn
        tokens += [*prompt, *spoken]
        said += [False] * len(prompt) + [True] * len(spoken)
        starts.append(len(tokens))
    return Shard(np.array(tokens, np.uint16), np.array(said, np.uint8), np.array(starts, np.int64))


def answered_pairs_shard(
    cache: Path, target: Path, tokenizer: Any, seed: int, number: int, chats: int = ANSWERED,
    device: str = "cpu",
) -> Shard:  # fmt: skip
    """Training prompts of `town.corpus.pairs` with the greedy answers of the model in folder `target`."""
    mark = made_by(tokenizer, target / "model.safetensors")
    file = cache / f"answers-{target.name}-{mark}-{seed}-{chats}-{number:05d}.safetensors"
    if not file.exists():
        texts = [s.turns[0][0] for s in islice(pairs.stream(f"aligned:{seed}:{number}", "train"), chats)]
        write(file, answered_pairs(load(target).to(device), tokenizer, texts))
    return read(file)
