"""What the models in torch's hands have in common: device, number format, text to ids and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from specviz.errors import ModelError
from specviz.models.layers import stamp
from specviz.models.ranks import whole
from specviz.models.text import Text, check_vocabularies

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specviz.models.protocols import Prompt, TextModel

UNBOUNDED = 1 << 40  # positions of a model that knows no limit


class TorchModel:
    """A transformers model, its tokenizer and its name."""

    name: str
    net: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    text: Text
    parameters: int
    kernels: str
    source: str | None = None  # of weights that were read from another format: which it was, and how
    path: Path | None = None  # of the file that was read
    _content: tuple[list[tuple[int, int]], str] | None = (
        None  # what the weights were when they were hashed, and the hash
    )

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        size = f"{self.parameters / 1e6:.2f} M parameters"
        return f"<{type(self).__name__} {self.name}: {size}, {dtype} on {self.device}>"

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.net.device

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights."""
        return self.net.dtype

    @property
    def backend(self) -> dict[str, str | int | bool]:
        """What computes, for the record."""
        return {"name": "torch", "threads": torch.get_num_threads(), "kernels": self.kernels}

    @property
    def content(self) -> str:
        """SHA-256 of the weights and the tokenizer, in hexadecimal; of a dequantised file as it was read."""
        now = stamp(self.net)
        if self._content is None or self._content[0] != now:
            self._content = now, hashed(self.net, self.tokenizer)
        return self._content[1]

    def keep_content(self, digest: str) -> None:
        """Take this as the hash of the weights as they are now."""
        self._content = stamp(self.net), digest

    # -- text -----------------------------------------------------------------------------------

    def encode(self, prompt: Prompt, *, raw: bool = False) -> list[int]:
        """Token ids of a text, of chat messages, or of ids (checked); see `Text.encode`."""
        return self.text.encode(prompt, self.name, raw=raw)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens left out."""
        return self.text.decode(ids)

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for."""
        return self.text.piece(token)

    def check_vocabulary(self, other: TextModel) -> None:
        """Check that token ids mean the same in both models.

        Raises
        ------
        ModelError
            Naming the first id whose pieces differ; or the sizes, where there are no tokenizers to compare.

        Notes
        -----
        Heads of one family are padded to different sizes (Qwen2.5 0.5B and 7B); ids beyond the tokenizer are
        never written, so that alone is no difference.
        """
        check_vocabularies(self, other)


def hashed(net: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> str:
    """SHA-256 of a model's weights, by name, and of its tokenizer."""
    digest = hashlib.sha256()
    for name, weight in sorted(net.named_parameters()):  # a tied one comes once
        values = whole(weight.detach()).cpu().contiguous()
        digest.update(f"{name} {list(values.shape)} {values.dtype}".encode())
        digest.update(values.view(torch.uint8).numpy().data if values.numel() else b"")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        digest.update(backend.to_str().encode("utf8", "surrogatepass"))
    elif tokenizer is not None:
        digest.update(json.dumps(sorted(tokenizer.get_vocab().items())).encode())
    return digest.hexdigest()


def eos(net: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
    """Ids that end a text: the generation config's, else the config's or the tokenizer's."""
    for source in (getattr(net, "generation_config", None), net.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            return tuple(ids) if isinstance(ids, (list, tuple)) else (int(ids),)
    return ()


def no_room(name: str, device: torch.device, size: float) -> ModelError:
    """The error of weights of `size` bytes that do not fit onto a device."""
    return ModelError(
        f"out of memory on {device}: {name} needs {size / 2**30:.1f} GiB; load with dtype='bfloat16', "
        "on another device, or a smaller model"
    )
