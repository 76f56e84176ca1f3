"""Write tiny random Llama checkpoints with a byte-level tokenizer and a chat template."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch

SPECIAL = ("<s>", "<|end|>", "<|user|>", "<|assistant|>", "<pad>")
TEMPLATE = (
    "<s>{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def tokenizer(path: Path, swapped: bool = False, template: bool = True) -> None:
    """A tokenizer with one piece per byte; `swapped` exchanges two of them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    if swapped:
        letters[40], letters[41] = letters[41], letters[40]
    pieces = {piece: i for i, piece in enumerate((*SPECIAL, *letters))}
    made = Tokenizer(models.BPE(pieces, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(list(SPECIAL))
    words = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="<|end|>", pad_token="<pad>"
    )
    if template:
        words.chat_template = TEMPLATE
    words.save_pretrained(path)


def checkpoint(path: Path, seed: int = 0, like: object = None, swapped: bool = False, template: bool = True):
    """A random Llama of two layers; with `like`, those weights plus some noise, so that it drafts well."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=261, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=160, initializer_range=0.5, bos_token_id=0,
        eos_token_id=[1], pad_token_id=4,
    )  # fmt: skip
    net = LlamaForCausalLM(config).eval()
    if like is not None:
        with torch.no_grad():
            for mine, theirs in zip(net.parameters(), like.parameters()):
                mine.copy_(theirs + 0.1 * theirs.std() * torch.randn_like(theirs))
    net.save_pretrained(path)
    tokenizer(path, swapped, template)
    return net


def write(root: Path) -> SimpleNamespace:
    """A target, a draft for it, one with two pieces exchanged, and one without a chat template."""
    target = checkpoint(root / "target")
    checkpoint(root / "draft", 1, like=target)
    checkpoint(root / "stranger", 2, swapped=True)
    checkpoint(root / "plain", 3, template=False)
    names = ("target", "draft", "stranger", "plain")
    return SimpleNamespace(**{name: str(root / name) for name in names})
