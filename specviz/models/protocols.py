"""Interfaces between methods and models, as used by the decoding loop, the methods and the audit.

The classes are structural types: any object with the members is accepted, without inheriting from them.
`specviz.models.Model`, `EncoderDecoder` and `LlamaCpp` satisfy `Model`, and their contexts satisfy `Context`.
Importing this loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import os

    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

    from specviz.draft import Draft
    from specviz.models import context
    from specviz.models.text import Text

Tokens: TypeAlias = "Sequence[int] | Tensor"
Path: TypeAlias = "Sequence[int]"  # node indices, from a child of the root down
Positions: TypeAlias = "slice | Tensor"  # positions in the text: the same for all rows, or [rows, n]
Prompt: TypeAlias = "str | Sequence[int] | Sequence[Mapping[str, str]]"  # a text, ids, or chat messages
Pass: TypeAlias = "context.Pass"  # the results of a forward pass
ExitRule: TypeAlias = "Callable[[context.Exit], bool]"
Settings: TypeAlias = "dict[str, Any]"  # contents of a model's JSON file; its reader checks every field
Net: TypeAlias = "Any"  # a transformers model of a checked family; its parts have no declared types
Spec: TypeAlias = "str | os.PathLike[str] | PreTrainedModel | Model"  # a model to load: see `load`
AnyTokenizer: TypeAlias = "Any"  # a fast or slow tokenizer of transformers, or llama.cpp's equivalent


class Context(Protocol):
    """A batch of rows of committed tokens over one model; a single text is a batch of one row.

    Attributes
    ----------
    rows : int
    length : list of int
        Committed tokens of each row.
    tokens : list of lists of int
        The committed tokens of each row, on the host.
    room : int
        Tokens that still fit after the longest row, draft nodes included.
    cached : list of int
        Number of slots of each row whose keys and values are computed.
    """

    rows: int
    cached: list[int]

    @property
    def length(self) -> list[int]: ...

    @property
    def tokens(self) -> list[list[int]]: ...

    @property
    def room(self) -> int: ...

    def prefill(self, rows: Sequence[int] | None = None) -> int:
        """Compute every pending token except the last of each row; return the number of tokens fed."""

    def forward(self, drafts: Draft | Sequence[Draft], hidden: Sequence[int] = ()) -> Pass:
        """Run one pass over the pending tokens and the nodes of a draft (one draft per row)."""

    def commit(self, paths: Sequence[int] | Sequence[Path]) -> None:
        """Commit a path of nodes of each row's draft and drop the other nodes."""

    def extend(self, tokens: Tokens | Sequence[Tokens]) -> None:
        """Commit tokens that were not in a draft: a bonus token, a correction, new source text."""

    def rewind(self, length: int | Sequence[int]) -> None:
        """Drop everything after the first `length` tokens of each row."""

    def reserve(self, room: int) -> None:
        """Ensure that `room` more tokens fit after the longest row."""

    def close(self) -> None:
        """Free the storage."""


class TextModel(Protocol):
    """The part of a model that maps between text and token ids.

    Attributes
    ----------
    name : str
    vocabulary : int
        Columns of the logits.
    eos : tuple of int
        Ids that end a text.
    """

    name: str
    text: Text
    vocabulary: int
    eos: tuple[int, ...]

    def encode(self, prompt: Prompt, *, raw: bool = False) -> list[int]:
        """Convert a text, chat messages or ids to checked token ids."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, without special tokens."""

    def piece(self, token: int) -> bytes:
        """The bytes of one token."""


class Drafter(Protocol):
    """A proposer of tokens for a target: a smaller model, or heads, slots or EAGLE layers bound to a target.

    Attributes
    ----------
    name, kind : str
        `kind` is ``causal``, ``encoder-decoder``, ``diffusion``, ``heads``, ``slots`` or ``eagle``.
    parameters : int
    vocabulary : int
        Columns of its logits; token ids have the same meaning as for the target.
    """

    name: str
    kind: str
    parameters: int
    vocabulary: int

    def left(self, prompt: int) -> int:
        """Number of tokens that can follow a prompt of `prompt` tokens."""


class Unbound(Protocol):
    """A drafter's weights that are not yet bound to a target."""

    kind: str

    def on(self, target: Model) -> Model:
        """Bind to `target` and return the drafter."""


class Model(Drafter, TextModel, Protocol):
    """A language model that can open contexts.

    Attributes
    ----------
    layers : int
    max_length : int
        Maximum tokens of one text.
    device : torch.device
        Device of ids and logits.
    dtype : torch.dtype or str
        The number format; a name for llama.cpp.
    """

    layers: int
    max_length: int

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype | str: ...

    def open(self, prompts: Sequence[Sequence[int]], room: int) -> Context:
        """Open a context of `prompts`, not yet computed; `room` tokens fit after the longest one."""

    def first(self, layers: int) -> Model:
        """Early-exit drafter: the first `layers` layers with the same head."""

    def check_vocabulary(self, other: TextModel) -> None:
        """Raise `ModelError` unless token ids mean the same in both."""


class Storage(Protocol):
    """The KV cache as a decoder's layers use it during a pass.

    Attributes
    ----------
    reach : int
        Number of positions, counted from 0, that a pass may use.
    """

    reach: int

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values [rows, heads, tokens, dim]; return all that the pass may read."""

    def write_both(self, layer: int, new: Tensor) -> tuple[Tensor, Tensor]:
        """Same as `write`, with keys and values in one tensor [2, rows, heads, tokens, dim]."""
