"""Base class of the models on torch: device, number format, tokenizer and content hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from specviz.errors import ModelError
from specviz.models import choices
from specviz.models import kernels as layouts
from specviz.models.devices import to_format
from specviz.models.geometry import BYTES
from specviz.models.layers import PlainFunction, stamp
from specviz.models.ranks import whole
from specviz.models.text import Text, TokenizedModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specviz.models.protocols import Settings

UNBOUNDED = 1 << 40  # maximum length of a model without a limit


class TorchModel(TokenizedModel):
    """A transformers model, its tokenizer and its name.

    Parameters
    ----------
    net : PreTrainedModel
    tokenizer : transformers tokenizer, optional
    name : str
    kernels : str, optional
        Requested layout of its matrices.
    encoder : bool
        Whether prompts go to an encoder.
    """

    kind: str
    kernels: str  # the layout in use
    requested_kernels: str | None  # the layout that `load` was given
    requested_invariant: bool | None = None  # likewise
    chosen_format: bool = False  # whether `load` was free to choose the number format
    layers: int
    geometry: Settings | None = None  # see `specviz.models.geometry`; None: its passes cannot be priced
    invariant: bool = False  # whether each row of a pass is bit-identical to the row computed alone
    source: str | None = None  # description of the source format, for weights converted from another format
    path: Path | None = None  # of the file that was read
    _content: tuple[list[tuple[int, int]], str] | None = None  # fingerprint of the weights, and their hash
    # The same for weights that are as read from files.
    _stored: tuple[list[tuple[int, int]], str | Callable[[], str]] | None = None

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
        self.requested_kernels = layouts.check(kernels)
        self._threads = 0  # number of threads for which it was made invariant

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        size = f"{self.parameters / 1e6:.2f} M parameters"
        return f"<{type(self).__name__} {self.name}: {size}, {dtype} on {self.device}>"

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.net.device

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights."""
        return self.net.dtype

    @property
    def attention_dtype(self) -> torch.dtype:
        """Number format in which attention computes: at least float32 for an invariant model."""
        return torch.promote_types(self.dtype, torch.float32) if self.invariant else self.dtype

    def function(self, layout: str, invariant: bool = False) -> PlainFunction:
        """Build the plain function over the weights that computes passes.

        Parameters
        ----------
        layout : str
            Layout of the matrices (`specviz.models.kernels`).
        invariant : bool, optional
            Whether a row's numbers must not depend on the other rows of a pass (`specviz.models.ordered`).
        """
        raise NotImplementedError

    def ordered_function(self, plain: bool = True) -> PlainFunction:
        """Build the invariant `function`, and mark the model as invariant.

        Parameters
        ----------
        plain : bool
            Whether a plain function computes the passes.

        Raises
        ------
        ModelError
            If invariance fails here, for this model, layout, format and number of threads.
        """
        if not plain or self.device.type != "cpu":
            where = "on a GPU" if self.device.type != "cpu" else "through transformers' modules"
            way = choices.Way(fault=f"passes {where} sum in a different order")
        else:
            others = () if self.requested_kernels else layouts.candidates(self.device, self.dtype)
            way = choices.way(self, others)
        if way.fault:
            raise ModelError(f"{self.name} cannot be invariant: {way.fault}; load with invariant=False")
        self.kernels, self.invariant, self._threads = way.layout, True, torch.get_num_threads()
        return way.laid(self)

    def _weigh(self) -> None:
        """Record in the geometry the bytes of a weight in the layout, of the cache, and of activations."""
        if self.geometry is not None:
            own, cached = self.dtype.itemsize, self.attention_dtype.itemsize
            sizes = dict(zip(BYTES, (layouts.width(self.kernels, self.dtype), cached, own)))
            self.geometry = {**self.geometry, **sizes}

    def order_stale(self, stale: bool) -> bool:
        """Whether invariance must be set up anew: the weights are `stale` or the thread count changed."""
        return self.invariant and (stale or self._threads != torch.get_num_threads())

    @property
    def backend(self) -> dict[str, str | int | bool]:
        """Description of the backend for the trace."""
        about: dict[str, str | int | bool] = {"name": "torch", "threads": torch.get_num_threads()}
        return about | {"kernels": self.kernels} | ({"invariant": True} if self.invariant else {})

    @property
    def content(self) -> str:
        """SHA-256 of weights and tokenizer, in hexadecimal; dequantised files are hashed as read."""
        now = stamp(self.net)
        if self._content is None or self._content[0] != now:
            self._content = now, hashed(self.net, self.tokenizer)
        return self._content[1]

    @property
    def file_content(self) -> str:
        """As `content`, but the same in each number format that a model is loaded in from its files."""
        if self._stored is None or self._stored[0] != stamp(self.net):
            return self.content
        now, digest = self._stored
        if not isinstance(digest, str):
            digest = digest()
            self._stored = now, digest
        return digest

    @property
    def identity(self) -> dict[str, str]:
        """Entry that identifies this target in a drafter's config: its name and, if from files, its content.

        The content of a model in memory depends on its number format.
        """
        from_files = self._stored is not None and self._stored[0] == stamp(self.net)
        return {"target": self.name} | ({"content": self.file_content} if from_files else {})

    def keep_content(self, digest: str) -> None:
        """Set the hash of the current weights."""
        self._content = self._stored = stamp(self.net), digest

    def keep_files(self, files: Sequence[Path]) -> None:
        """Let `file_content` be the hash of these files, from which the current weights were read."""
        states = [(file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        words = _words(self.tokenizer)  # now: encoding a text can change the tokenizer's settings

        def digest() -> str:
            if states != [(file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.exists()]:
                return self.content  # they were replaced since
            made = hashlib.sha256()
            for file in files:
                with file.open("rb") as stream:
                    hashlib.file_digest(stream, lambda: made)
            made.update(words)
            return made.hexdigest()

        self._stored = stamp(self.net), digest


def hashed(
    net: torch.nn.Module, tokenizer: PreTrainedTokenizerBase | None, dtype: torch.dtype | None = None
) -> str:
    """SHA-256 of a model's weights, with their names, and of its tokenizer.

    With a `dtype`, each weight is hashed as converted to it; the model stays as it is.
    """
    digest = hashlib.sha256()
    for name, weight in sorted(net.named_parameters()):  # yields tied weights once
        values = whole(weight.detach()).cpu().to(dtype).contiguous()
        digest.update(f"{name} {list(values.shape)} {values.dtype}".encode())
        digest.update(values.view(torch.uint8).numpy().data if values.numel() else b"")
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        # transformers drops these settings when it first encodes a text; the hash must not depend on that.
        backend.no_truncation()
        backend.no_padding()
    digest.update(_words(tokenizer))
    return digest.hexdigest()


def _words(tokenizer: PreTrainedTokenizerBase | None) -> bytes:
    """A tokenizer as bytes, to be hashed."""
    if (backend := getattr(tokenizer, "backend_tokenizer", None)) is not None:
        text: str = backend.to_str()
        return text.encode("utf8", "surrogatepass")
    return b"" if tokenizer is None else json.dumps(sorted(tokenizer.get_vocab().items())).encode()


def eos(net: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
    """Ids that end a text: from the generation config, else from the config, else from the tokenizer."""
    for source in (getattr(net, "generation_config", None), net.config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        ids = ids if isinstance(ids, (list, tuple)) else [-1 if ids is None else ids]
        if valid := tuple(int(i) for i in ids if i >= 0):  # some configs use -1 for no token
            return valid
    return ()


def unserved(name: str, kind: str, reason: str) -> ModelError:
    """The error for a model that cannot be served, with the reason."""
    return ModelError(f"{name} ({kind}) is not supported: {reason}")


def move(net: PreTrainedModel, name: str, device: torch.device, dtype: torch.dtype | None = None) -> None:
    """Move a network to a device, converting it if a `dtype` is given (`ModelError` if memory runs out)."""
    weights: torch.nn.Module = net  # transformers' own `to` has no types
    try:
        to_format(net, dtype, device) if dtype is not None else weights.to(device)
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        size = dtype.itemsize if dtype is not None else net.dtype.itemsize
        raise no_room(name, device, sum(p.numel() for p in net.parameters()) * size) from None


def no_room(name: str, device: torch.device, size: float) -> ModelError:
    """The error for weights of `size` bytes that do not fit on a device."""
    return ModelError(
        f"out of memory on {device}: {name} needs {size / 2**30:.1f} GiB; load with dtype='bfloat16', "
        "on another device, or a smaller model"
    )
