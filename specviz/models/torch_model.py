"""What the models in torch's hands have in common: device, number format, text to ids and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from specviz.errors import ModelError
from specviz.models.text import Text, check_vocabularies

UNBOUNDED = 1 << 40  # positions of a model that knows no limit


class TorchModel:
    """A transformers model, its tokenizer and its name."""

    name: str
    net: PreTrainedModel
    text: Text
    parameters: int

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
    def backend(self) -> dict[str, Any]:
        """What computes, for the record."""
        return {"name": "torch", "threads": torch.get_num_threads()}

    # -- text -----------------------------------------------------------------------------------

    def encode(self, prompt: str | Sequence[Any], *, raw: bool = False) -> list[int]:
        """Token ids of a text, of chat messages, or of ids (checked); see `Text.encode`."""
        return self.text.encode(prompt, self.name, raw=raw)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, special tokens left out."""
        return self.text.decode(ids)

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for."""
        return self.text.piece(token)

    def check_vocabulary(self, other: Any) -> None:
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


def eos(net: PreTrainedModel, tokenizer: Any) -> tuple[int, ...]:
    """Ids that end a text: the generation config's, else the config's or the tokenizer's."""
    for source in (getattr(net, "generation_config", None), net.config, tokenizer):
        found = getattr(source, "eos_token_id", None)
        if found is not None:
            return tuple(found) if isinstance(found, (list, tuple)) else (int(found),)
    return ()


def no_room(name: str, device: torch.device, size: float) -> ModelError:
    """The error of weights of `size` bytes that do not fit onto a device."""
    return ModelError(
        f"out of memory on {device}: {name} needs {size / 2**30:.1f} GiB; load with dtype='bfloat16', "
        "on another device, or a smaller model"
    )
