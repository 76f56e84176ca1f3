"""GGUF files for tests: random Llamas with the bundled tokenizer, written once per session."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from specviz.models.llamacpp import write_gguf
from specviz.models.loading import load
from specviz.models.model import Model
from specviz.models.zoo import bundled
from town.training.recipes import Recipe, build

torch.set_num_threads(1)
ODD = [
    "7 and 42 and 1,234.56 and ２３ and ٣٤ and ½²Ⅷ", "a  b   c    d", "   ", " x", "x ",
    "\n", "\n\n  \n\t x\n",
    "\t",
    "it's we'll I'M don'T 's 'll", "🙂🙃 👩‍👩‍👧 🇩🇪 ☃️", "e\u0301 é ﬁ ǆ", "…—“”‘’ ¿¡ «»",
    "a\u00a0b\u3000c\u200bd\u2028e",
    "<|end|> <s></s> <|user|>hi<|assistant|> <pad> <|nope|> <mask", "<|end|>", "\x00\x01\x7f",
    "ß ẞ İ ı ſ", "𝔘𝔫𝔦 𠀀𠀁",
    "http://a.b/c?d=e&f=g#h", "x" * 300, "ก็ ภาษาไทย हिन्दी العربية עברית", "100%-ig 3rd 5G v2.0.1",
]  # fmt: skip


@cache
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(bundled()["town"])


@cache
def random_model(width: int = 256, layers: int = 2, seed: int = 0) -> Model:
    """A random Llama of the translators' shape, with logits spread enough for greedy texts to vary."""
    net = build(Recipe("random", layers, width, 4, 2, 2 * width, tokens=0, seed=seed)).eval()
    with torch.no_grad():
        for name, weight in net.named_parameters():
            if weight.ndim == 2:
                weight.mul_(6 if "embed" in name else 3)
    net.generation_config.eos_token_id = [4, 1]
    return Model(net, tokenizer(), f"random-{width}")


@cache
def folder() -> Path:
    return Path(mkdtemp(prefix="specviz-gguf-"))


def file(type: str = "f32", width: int = 256, layers: int = 2, seed: int = 0) -> Path:
    """A GGUF file of `random_model`."""

    path = folder() / f"random-{width}-{layers}-{seed}-{type}.gguf"
    if not path.exists():
        write_gguf(random_model(width, layers, seed), path, type)
    return path


@cache
def served(type: str = "f32", width: int = 256, layers: int = 2, seed: int = 0) -> Any:
    return load(f"gguf:{file(type, width, layers, seed)}", threads=1)


def strings(n: int) -> list[str]:
    """`n` sentences of the corpus in each of its seven languages."""
    import random

    from town.corpus import translation, world
    from town.corpus.meaning import CODES

    rng = random.Random(0)
    said = [world.sentence(rng, None) for _ in range(n)]
    return [translation.say([sentence], code, i) for i, sentence in enumerate(said) for code in CODES]


@torch.no_grad()
def scores(model: Model, ids: list[int]) -> np.ndarray:
    """transformers' own logits after every token."""
    return model.net(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float().numpy()
