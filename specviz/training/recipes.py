"""Shapes and schedules of the bundled models, one :class:`Recipe` each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from specviz.errors import ParameterError
from specviz.training.tokenizer import BEGIN, END, PAD, SIZE, STOP


@dataclass(frozen=True)
class Recipe:
    """How a model is made.

    Attributes
    ----------
    layers, width, heads, kv_heads, feed_forward : int
        The Llama shape; input and output embeddings are tied.
    tokens : int
        Tokens of training chats (padding not counted) that a whole run reads.
    matrix_rate, rate : float
        Peak learning rates (:class:`specviz.training.optimizer.Optimizer`).
    step, micro : int
        Tokens of an update, and of a forward pass.
    prompt_weight, prompt_until : float
        Weight of the user's tokens in the loss (the assistant's count 1) up to this share of the run, then
        zero: they teach the words early; later they are mostly noise, since what a user says cannot be known.
    start : str or None
        The bundled model whose weights the run starts from.
    target : str or None
        Train on this model's own greedy answers instead of the corpus' answers.
    answers : int
        Shards of such answers; a run reads them again and again, since they are dear to make.
    texts : str
        What is read: ``chats`` of all kinds, or ``translations`` or ``prefixes`` (`specviz.corpus.prefixes`).
    context, seed : int
    """

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    feed_forward: int
    tokens: int
    matrix_rate: float = 0.0035
    rate: float = 0.0035
    step: int = 1024
    micro: int = 1024
    prompt_weight: float = 0.5
    prompt_until: float = 0.4
    start: str | None = None
    target: str | None = None
    answers: int = 8
    texts: str = "chats"
    context: int = 1024
    seed: int = 0


RECIPES = {
    r.name: r
    for r in (
        Recipe("town", 8, 144, 4, 2, 384, tokens=18_000_000, step=2048),
        Recipe("town-draft", 2, 128, 4, 2, 256, tokens=12_000_000, step=2048),
        Recipe("town-draft-aligned", 2, 128, 4, 2, 256, tokens=2_500_000, start="town-draft", target="town",
               matrix_rate=0.001, rate=0.001, prompt_until=0.0, answers=12),
        # Rows of 256 can be cut to four bits by llama.cpp; those of the others cannot.
        Recipe("town-translator", 4, 256, 4, 2, 512, tokens=7_000_000, step=2048, texts="translations"),
        Recipe("town-translator-prefix", 4, 256, 4, 2, 512, tokens=2_000_000, step=2048,
               start="town-translator", texts="prefixes", matrix_rate=0.001, rate=0.001, prompt_until=0.0),
    )
}  # fmt: skip


def recipe(name: str) -> Recipe:
    """The recipe of a bundled model.

    Raises
    ------
    ParameterError
        If there is none of that name.
    """
    if name not in RECIPES:
        raise ParameterError(f"no recipe named {name!r}: choose one of {', '.join(RECIPES)}")
    return RECIPES[name]


def changed(
    made: Recipe, tokens: float | None = None, step: int | None = None, rate: float | None = None
) -> Recipe:
    """The recipe with another length, another size of update (one pass each) or other peak rates.

    The recipes are cut for a processor. A GPU reads a thousand times as much, and needs passes of 30,000
    tokens or more to have anything to do.

    Raises
    ------
    ParameterError
        If a value is not positive.
    """
    given = {"tokens": tokens, "step": step, "rate": rate}
    for name, value in given.items():
        if value is not None and not value > 0:
            raise ParameterError(f"{name} must be positive, got {value}")
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if tokens is not None:
        changes["tokens"] = int(tokens)
    if step is not None:
        changes["micro"] = step
    if rate is not None:
        changes["matrix_rate"] = rate
    return replace(made, **changes)


def build(made: Recipe) -> Any:
    """A fresh model of the recipe's shape, seeded."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(made.seed)
    config = LlamaConfig(
        vocab_size=SIZE,
        hidden_size=made.width,
        num_hidden_layers=made.layers,
        num_attention_heads=made.heads,
        num_key_value_heads=made.kv_heads,
        intermediate_size=made.feed_forward,
        max_position_embeddings=made.context,
        tie_word_embeddings=True,
        bos_token_id=BEGIN,
        eos_token_id=[END, STOP],
        pad_token_id=PAD,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config)
