"""What the models in torch's hands have in common: device, number format, text to ids and back."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from specviz.errors import ModelError
from specviz.models import choices
from specviz.models import kernels as layouts
from specviz.models.devices import to_format
from specviz.models.layers import PlainFunction, stamp
from specviz.models.ranks import whole
from specviz.models.text import Text, TokenizedModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

UNBOUNDED = 1 << 40  # positions of a model that knows no limit


class TorchModel(TokenizedModel):
    """A transformers model, its tokenizer and its name.

    Parameters
    ----------
    net : PreTrainedModel
    tokenizer : transformers tokenizer, optional
    name : str
    kernels : str, optional
        How its matrices are to lie.
    encoder : bool
        Whether prompts are an encoder's.
    """

    kind: str
    kernels: str  # how they do lie
    layers: int
    invariant: bool = False  # whether each row of a pass gets the bits that it gets alone
    source: str | None = None  # of weights that were read from another format: which it was, and how
    path: Path | None = None  # of the file that was read
    _content: tuple[list[tuple[int, int]], str] | None = None  # the weights' stamp, and their hash

    def __init__(
        self, net: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, name: str,
        kernels: str | None = None, encoder: bool = False,
    ) -> None:  # fmt: skip
        self.name, self.net, self.config, self.tokenizer = name, net, net.config, tokenizer
        self.vocabulary = net.get_output_embeddings().weight.shape[0]
        self.parameters = sum(p.numel() for p in net.parameters())
        self.max_length = getattr(net.config, "max_position_embeddings", None) or UNBOUNDED
        self.eos = eos(net, tokenizer)
        self.text = Text(tokenizer, self.vocabulary, self.eos, encoder)
        self._kernels = layouts.check(kernels)
        self._threads = 0  # on which it was made invariant

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
    def attention_dtype(self) -> torch.dtype:
        """Number format in which attention computes: an invariant model's is float32 at least."""
        return torch.promote_types(self.dtype, torch.float32) if self.invariant else self.dtype

    def function(self, layout: str, invariant: bool = False) -> PlainFunction:
        """What computes its passes: a plain function over the weights.

        Parameters
        ----------
        layout : str
            How its matrices lie (`specviz.models.kernels`).
        invariant : bool, optional
            Whether a row's numbers must not depend on the other rows of a pass (`specviz.models.ordered`).
        """
        raise NotImplementedError

    def ordered_function(self, plain: bool = True) -> PlainFunction:
        """The `function` whose rows get the bits that they get alone; the model is invariant from then on.

        Parameters
        ----------
        plain : bool
            Whether a plain function computes its passes.

        Raises
        ------
        ModelError
            If that was not found to hold here, for this model, layout, format and number of threads.
        """
        if not plain or self.device.type != "cpu":
            where = "on a GPU" if self.device.type != "cpu" else "through transformers' modules"
            way = choices.Way(fault=f"passes {where} sum in a different order")
        else:
            others = () if self._kernels else layouts.candidates(self.device, self.dtype)
            way = choices.way(self, others)
        if way.fault:
            raise ModelError(f"{self.name} cannot be invariant: {way.fault}; load with invariant=False")
        self.kernels, self.invariant, self._threads = way.layout, True, torch.get_num_threads()
        return way.laid(self)

    def order_stale(self, stale: bool) -> bool:
        """Whether an invariant model must try again how: its weights are `stale`, or the threads others."""
        return self.invariant and (stale or self._threads != torch.get_num_threads())

    @property
    def backend(self) -> dict[str, str | int | bool]:
        """What computes, for the record."""
        about: dict[str, str | int | bool] = {"name": "torch", "threads": torch.get_num_threads()}
        return about | {"kernels": self.kernels} | ({"invariant": True} if self.invariant else {})

    @property
    def content(self) -> str:
        """SHA-256 of the weights and the tokenizer, in hexadecimal; of a dequantised file as it was read."""
        now = stamp(self.net)
        if self._content is None or self._content[0] != now:
            self._content = now, hashed(self.net, self.tokenizer)
        return self._content[1]

    @property
    def identity(self) -> dict[str, str]:
        """What a drafter that is trained on it says of it: its name, and of a file the content.

        The content of other models depends on the number format that they are loaded in.
        """
        return {"target": self.name} | ({} if self.path is None else {"content": self.content})

    def keep_content(self, digest: str) -> None:
        """Take this as the hash of the weights as they are now."""
        self._content = stamp(self.net), digest


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
        if ids is not None and ids != []:
            return tuple(ids) if isinstance(ids, (list, tuple)) else (int(ids),)
    return ()


def unserved(name: str, kind: str, reason: str) -> ModelError:
    """That a model of this kind cannot be served, and why."""
    return ModelError(f"{name} ({kind}) is not supported: {reason}")


def move(net: PreTrainedModel, name: str, device: torch.device, dtype: torch.dtype | None = None) -> None:
    """Put a network onto a device, in another number format if one is given (`ModelError` without room)."""
    weights: torch.nn.Module = net  # transformers' own `to` has no types
    try:
        to_format(net, dtype, device) if dtype is not None else weights.to(device)
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        size = dtype.itemsize if dtype is not None else net.dtype.itemsize
        raise no_room(name, device, sum(p.numel() for p in net.parameters()) * size) from None


def no_room(name: str, device: torch.device, size: float) -> ModelError:
    """The error of weights of `size` bytes that do not fit onto a device."""
    return ModelError(
        f"out of memory on {device}: {name} needs {size / 2**30:.1f} GiB; load with dtype='bfloat16', "
        "on another device, or a smaller model"
    )
