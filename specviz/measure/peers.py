"""Other engines' own greedy decoding of the same weights, from token ids to token ids."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from specviz.errors import ModelError
from specviz.loop.machine import thread_count
from specviz.methods import find
from specviz.models.llamacpp.library import ends_the_process, special_kernels
from specviz.models.llamacpp.model import WHOLE, Weights


class TransformersPeer:
    """transformers' decoding of a model's weights."""

    def __init__(self, model: Any, max_new_tokens: int) -> None:
        if not can_generate(model):
            raise ModelError(f"{model.name} is not in transformers' format: there is nothing to compare with")
        self.net = twin(model)
        self.options = {
            "max_new_tokens": max_new_tokens,
            "do_sample": False,
            "use_cache": True,
            "pad_token_id": model.eos[0] if model.eos else 0,
            "eos_token_id": list(model.eos) or None,
        }

    def generate(self, ids: list[int], **more: Any) -> list[int]:
        """Call ``generate`` and return the new tokens."""
        return generated(self.net, ids, **self.options, **more)


def generated(net: Any, ids: list[int], **options: Any) -> list[int]:
    """The new tokens of a call of transformers' ``generate``."""
    given = torch.tensor([ids], device=net.device)
    out = net.generate(given, attention_mask=torch.ones_like(given), **options)
    # An encoder-decoder's output begins with its own start token, and does not hold the prompt.
    start = 1 if getattr(net.config, "is_encoder_decoder", False) else len(ids)
    tokens: list[int] = out[0, start:].tolist()
    return tokens


def lookup_options() -> dict[str, int]:
    """Options of ``generate`` for a prompt lookup with our draft length and longest n-gram."""
    ours = find("prompt_lookup")().values
    return {"prompt_lookup_num_tokens": ours["draft_length"], "max_matching_ngram_size": ours["ngram_max"]}


def can_generate(model: Any) -> bool:
    """Whether transformers itself decodes with this model's modules."""
    return hasattr(getattr(model, "net", None), "generate")


def twin(model: Any) -> Any:
    """Copy a model with its weights in transformers' layout, so that neither side runs on the other's.

    Raises
    ------
    ModelError
        If there is no memory for it.
    """
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        net = copy.deepcopy(model.net)
        for parameter in net.parameters():
            parameter.data = parameter.data.contiguous()
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        raise ModelError(
            f"no memory for a second copy of {model.name}: use a smaller model or dtype"
        ) from None
    return net


class LlamaCppPeer:
    """llama-cpp-python's generation from a model's file.

    Parameters
    ----------
    model : Model
        A model from a GGUF file, on any backend.
    most : int
        Maximum number of new tokens.
    lookup : (longest n-gram, tokens) or None
        Parameters of its prompt lookup, if used.
    length : int, optional
        Tokens of its context. Default: the model's.
    """

    def __init__(
        self, model: Any, most: int, lookup: tuple[int, int] | None = None, length: int | None = None
    ) -> None:
        from llama_cpp import Llama
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        path, count = Path(model.path), thread_count(model)
        whole = Weights(path, 0, words=True).type in WHOLE
        with special_kernels(not ends_the_process(whole)):
            self.llama = Llama(
                str(path), n_ctx=length or model.max_length, n_threads=count, n_threads_batch=count,
                flash_attn=False, n_gpu_layers=getattr(model, "gpu_layers", 0), verbose=False,
                logits_all=lookup is not None,
                draft_model=LlamaPromptLookupDecoding(*lookup) if lookup else None,
            )  # fmt: skip
        self.ends, self.most = frozenset(model.eos), most

    def tokens(self, ids: list[int]) -> Iterator[int]:
        """Yield the new tokens as they are generated."""
        self.llama.reset()
        tokens = self.llama.generate(ids, temp=0.0, repeat_penalty=1.0)
        for number, token in enumerate(tokens, 1):
            yield token
            if token in self.ends or number == self.most:
                break
