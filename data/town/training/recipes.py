"""Shapes and schedules of the bundled models, one :class:`Recipe` each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from specviz.errors import ParameterError
from town.training.tokenizer import BEGIN, END, PAD, SIZE, STOP


@dataclass(frozen=True)
class Recipe:
    """How a model is made.

    Attributes
    ----------
    layers, width, heads, kv_heads, feed_forward : int
        The Llama shape; input and output embeddings are tied.
    tokens : int
        Tokens of training chats (padding not counted) that a full run reads.
    matrix_rate, rate : float
        Peak learning rates (:class:`specviz.finetune.optimizer.Optimizer`).
    step, micro : int
        Tokens of an update, and of a forward pass.
    prompt_weight, prompt_until : float
        Weight of the user's tokens in the loss (the assistant's count 1) up to this share of the run, then
        zero: they teach the words early; later they are mostly noise, since a user's text is unpredictable.
    start : str or None
        The bundled model whose weights the run starts from.
    target : str or None
        Train on this model's own greedy answers instead of the corpus' answers.
    answers : int
        Shards of target answers; a run reads them repeatedly, since they are expensive to generate.
    texts : str
        The training texts: ``chats`` of all kinds, ``english`` ones, ``translations`` or ``prefixes``
        (`town.corpus.prefixes`), or ``pairs`` (`town.corpus.pairs`).
    encoder : int
        Layers of the encoder, 0 for a causal model. If positive, the shape is T5's, `layers` the decoder's.
    exits : str
        Which decoder layers' losses count: ``last``, ``first`` or ``all``
        (:func:`town.training.encoder_decoders.layer_weights`).
    part : str
        The part that is trained: the ``whole`` model, or on top of the frozen `target` ``heads``
        (`specviz.models.heads`, whose inner layer is `feed_forward`) or ``slots`` (`specviz.models.slots`).
        ``diffusion``: a whole bidirectional model (`town.training.diffusion`). ``eagle``: on top of the
        frozen `target` a layer that reads its states (`specviz.models.eagle`).
    ahead : int
        Number of heads or slots; for an EAGLE-3 drafter, the steps of its training-time test.
    generation : int
        Of an EAGLE drafter: 1, whose weights EAGLE-2 also drafts with, or 3.
    states : tuple of int
        Layers of the target whose states generation 3 reads.
    blockwise, blockwise_from : float
        The share of a diffusion model's texts that are masked as if written block by block, starting at this
        share of the run; in the other texts any cells are masked (`town.training.diffusion`).
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
    encoder: int = 0
    exits: str = "last"
    part: str = "whole"
    ahead: int = 0
    generation: int = 0
    states: tuple[int, ...] = ()
    blockwise: float = 0.0
    blockwise_from: float = 0.0
    context: int = 1024
    seed: int = 0


EAGLES: dict[int, dict[str, Any]] = {
    1: {"matrix_rate": 0.01, "rate": 0.003},
    3: {"matrix_rate": 0.01, "rate": 0.003, "ahead": 4, "states": (2, 5, 8)},
}
PAIRS: dict[str, Any] = {"texts": "pairs", "step": 2048, "micro": 2048, "prompt_until": 0.0}
RECIPES = {
    r.name: r
    for r in (
        Recipe("town", 8, 144, 4, 2, 384, tokens=18_000_000, step=2048),
        Recipe("town-draft", 2, 128, 4, 2, 256, tokens=12_000_000, step=2048),
        Recipe("town-draft-aligned", 2, 128, 4, 2, 256, tokens=2_500_000, start="town-draft", target="town",
               matrix_rate=0.001, rate=0.001, prompt_until=0.0, answers=12),
        # llama.cpp can quantise rows of 256 to four bits, but not those of the other models.
        Recipe("town-translator", 4, 256, 4, 2, 512, tokens=7_000_000, step=2048, texts="translations"),
        Recipe("town-translator-prefix", 4, 256, 4, 2, 512, tokens=2_000_000, step=2048,
               start="town-translator", texts="prefixes", matrix_rate=0.001, rate=0.001, prompt_until=0.0),
        Recipe("town-t5", 8, 128, 4, 4, 384, tokens=10_000_000, encoder=4, matrix_rate=0.002, rate=0.01,
               **PAIRS),
        Recipe("town-t5-small", 1, 128, 4, 4, 256, tokens=7_500_000, encoder=2, matrix_rate=0.002,
               rate=0.01, **PAIRS),
        Recipe("town-t5-small-aligned", 1, 128, 4, 4, 256, tokens=5_000_000, encoder=2, start="town-t5-small",
               target="town-t5", answers=16, matrix_rate=0.001, rate=0.005, **PAIRS),
        Recipe("town-t5-exit", 8, 128, 4, 4, 384, tokens=4_000_000, encoder=4, start="town-t5", exits="first",
               matrix_rate=0.001, rate=0.006, **PAIRS),
        Recipe("town-t5-calm", 8, 128, 4, 4, 384, tokens=3_000_000, encoder=4, start="town-t5", exits="all",
               matrix_rate=0.001, rate=0.006, **PAIRS),
        Recipe("town-t5-heads", 0, 128, 4, 4, 128, tokens=3_000_000, encoder=4, target="town-t5", answers=32,
               part="heads", ahead=24, matrix_rate=0.015, rate=0.003, **PAIRS),
        Recipe("town-t5-slots", 2, 128, 4, 4, 384, tokens=5_000_000, encoder=4, target="town-t5", answers=32,
               part="slots", ahead=25, matrix_rate=0.002, rate=0.006, **PAIRS),
        Recipe("town-diffusion", 8, 144, 4, 2, 384, tokens=15_000_000, step=2048, micro=2048, start="town",
               part="diffusion", matrix_rate=0.002, rate=0.002, prompt_until=0.0, blockwise=0.5,
               blockwise_from=0.64),
        *(Recipe(f"town-eagle{'3' * (g == 3)}{'-en' * (texts == 'english')}", 1, 144, 4, 2, 384, tokens,
                 texts=texts, target="town", part="eagle", generation=g, prompt_until=0.0, step=2048,
                 micro=2048, **EAGLES[g])
          for g, texts, tokens in ((1, "english", 5_000_000), (1, "chats", 8_000_000),
                                   (3, "english", 4_000_000), (3, "chats", 6_000_000))),
    )
}  # fmt: skip


def recipe(name: str) -> Recipe:
    """The recipe of a bundled model.

    Raises
    ------
    ParameterError
        If no bundled model has that name.
    """
    if name not in RECIPES:
        raise ParameterError(f"no recipe named {name!r}: choose one of {', '.join(RECIPES)}")
    return RECIPES[name]


def changed(
    made: Recipe, tokens: float | None = None, step: int | None = None, rate: float | None = None
) -> Recipe:
    """The recipe with a different length, update size (one pass per update) or peak rates.

    The recipes are sized for a CPU. A GPU reads a thousand times as much, and needs passes of 30,000
    tokens or more to be kept busy.

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
    from transformers import LlamaConfig, LlamaForCausalLM, T5Config, T5ForConditionalGeneration

    from specviz.models.heads import BlockwiseHeads
    from specviz.models.slots import SlotDrafter

    torch.manual_seed(made.seed)
    if made.part == "heads":
        return BlockwiseHeads(made.ahead, made.width, made.feed_forward)
    if made.part == "eagle":
        return build_eagle(made)
    if made.part == "slots":
        return SlotDrafter(made.ahead, made.layers, made.width, made.heads, made.feed_forward)
    if made.part == "diffusion":
        from town.training import diffusion

        return diffusion.build(made)
    if made.encoder:
        return T5ForConditionalGeneration(T5Config(
            vocab_size=SIZE,
            d_model=made.width,
            d_kv=made.width // made.heads,
            d_ff=made.feed_forward,
            num_layers=made.encoder,
            num_decoder_layers=made.layers,
            decoder_layers=made.layers,  # generate() reads the decoder's depth for its cache under this name
            num_heads=made.heads,
            dropout_rate=0.0,
            pad_token_id=PAD,
            eos_token_id=END,
            decoder_start_token_id=PAD,
        ))  # fmt: skip
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


def build_eagle(made: Recipe) -> Any:
    """A fresh drafter of the recipe's shape, seeded by the caller."""
    from transformers import LlamaConfig

    from specviz.models.eagle import Eagle

    config = LlamaConfig(
        vocab_size=SIZE, hidden_size=made.width, num_hidden_layers=1, num_attention_heads=made.heads,
        num_key_value_heads=made.kv_heads, intermediate_size=made.feed_forward,
        max_position_embeddings=made.context, rms_norm_eps=1e-6, tie_word_embeddings=False,
        bos_token_id=BEGIN, eos_token_id=[END, STOP], pad_token_id=PAD,
    )  # fmt: skip
    return Eagle(config, made.generation, states=len(made.states))
