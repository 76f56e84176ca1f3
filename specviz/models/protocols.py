"""The seam between methods and models: what the loop, a method and the audit may ask of each.

These are structural types: whatever has the members is accepted, and nothing needs to inherit from them.
`specviz.models.Model`, `EncoderDecoder` and `LlamaCpp` are models here, and their contexts are contexts.
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
    from specviz.models.context import Exit
    from specviz.models.text import Text

Tokens: TypeAlias = "Sequence[int] | Tensor"
Path: TypeAlias = "Sequence[int]"  # node indices, from a child of the root down
Positions: TypeAlias = "slice | Tensor"  # places in the text: the same of all rows, or [rows, n]
Prompt: TypeAlias = "str | Sequence[int] | Sequence[Mapping[str, str]]"  # a text, ids, or chat messages
ExitRule: TypeAlias = "Callable[[Exit], bool]"
Settings: TypeAlias = "dict[str, Any]"  # what a JSON file of a model holds: its reader checks every field
Net: TypeAlias = "Any"  # a transformers model of a family that was checked: its parts have no declared types
Spec: TypeAlias = "str | os.PathLike[str] | PreTrainedModel | Model"  # what is loaded: see `load`
AnyTokenizer: TypeAlias = "Any"  # transformers', fast or slow, or llama.cpp's with the same face


class Pass(Protocol):
    """The results of one forward pass.

    Attributes
    ----------
    logits : list of tensor [1 + nodes, vocabulary]
        One for each row, float32: entry 0 predicts the token after the last committed one (the root), entry
        1 + i the token after node i.
    fed : list of int
        Tokens fed of each row, padding not counted.
    tokens : int
        Their sum.
    hidden : dict of int to list of tensor [1 + nodes, width]
        Hidden states at the same places, by layer and row.
    layers : int or None
        Layers that the token went through, of a pass with an exit rule.
    """

    logits: list[Tensor]
    fed: list[int]
    hidden: dict[int, list[Tensor]]
    layers: int | None

    @property
    def tokens(self) -> int: ...


class Context(Protocol):
    """Rows of committed tokens over one model; one text is a batch of one row.

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
        Slots of each row whose keys and values are computed.
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
        """Compute every pending token but each row's last; return how many tokens were fed."""

    def forward(self, drafts: Draft | Sequence[Draft], hidden: Sequence[int] = ()) -> Pass:
        """Run one pass over the pending tokens and the nodes of a draft (one draft for each row)."""

    def commit(self, paths: Sequence[int] | Sequence[Path]) -> None:
        """Keep a path of nodes of each row's draft, and drop the other nodes."""

    def extend(self, tokens: Tokens | Sequence[Tokens]) -> None:
        """Commit tokens that no draft held: a bonus token, a correction, new source text."""

    def rewind(self, length: int | Sequence[int]) -> None:
        """Forget everything after the first `length` tokens of each row."""

    def reserve(self, room: int) -> None:
        """Make sure that `room` more tokens fit after the longest row."""

    def close(self) -> None:
        """Free the storage."""


class TextModel(Protocol):
    """A tokenizer and a vocabulary: what stands behind token ids.

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
        """Token ids of a text, of chat messages or of ids."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, without special tokens."""

    def piece(self, token: int) -> bytes:
        """The bytes of one token."""


class Drafter(Protocol):
    """What proposes tokens for a target: a smaller model, or heads, slots and EAGLE layers bound to a target.

    Attributes
    ----------
    name, kind : str
        `kind` is ``causal``, ``encoder-decoder``, ``diffusion``, ``heads``, ``slots`` or ``eagle``.
    parameters : int
    vocabulary : int
        Columns of its logits; token ids mean what they mean to the target.
    """

    name: str
    kind: str
    parameters: int
    vocabulary: int

    def left(self, prompt: int) -> int:
        """How many tokens can follow a prompt of `prompt` tokens."""


class Unbound(Protocol):
    """Weights that draft for one target, before they are bound to it."""

    kind: str

    def on(self, target: Model) -> Model:
        """What drafts for `target`."""


class Model(Drafter, TextModel, Protocol):
    """A language model that can open contexts.

    Attributes
    ----------
    layers : int
    max_length : int
        Most tokens of one text.
    device : torch.device
        Where ids are taken and logits arrive.
    dtype : torch.dtype or str
        The number format; llama.cpp's is a name.
    """

    layers: int
    max_length: int

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype | str: ...

    def open(self, prompts: Sequence[Sequence[int]], room: int) -> Context:
        """A context of `prompts`, not yet computed; `room` tokens fit after the longest one."""

    def first(self, layers: int) -> Model:
        """Its first `layers` layers with the same head: an early-exit drafter."""

    def check_vocabulary(self, other: TextModel) -> None:
        """Raise `ModelError` unless token ids mean the same in both."""


class Rows(Protocol):
    """What is asked of a context before tokens are added: its slots, and how long the model lets a row be."""

    slots: int

    @property
    def model(self) -> Limited: ...


class Worded(Protocol):
    """A model of so many token ids."""

    name: str
    vocabulary: int


class Limited(Protocol):
    """A model of so many positions."""

    name: str
    max_length: int


class Device(Protocol):
    """What an error about memory names: the model, where its weights are, and in which number format."""

    name: str

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...


class Storage(Protocol):
    """Where a decoder's layers keep their keys and values during a pass.

    Attributes
    ----------
    reach : int
        Positions that a pass may use, counted from 0.
    """

    reach: int

    def write(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values [rows, heads, tokens, dim]; return all that the pass may read."""

    def write_both(self, layer: int, new: Tensor) -> tuple[Tensor, Tensor]:
        """The same, of one tensor [2, rows, heads, tokens, dim]."""
