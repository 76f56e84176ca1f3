"""Methods with a memory: what they learn from one text serves the next, and can be saved to a file."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from ..errors import ModelError, ParameterError
from ..models.protocols import Model
from ..rules.parameters import Value
from .base import Parameter, Session
from .files import read, write
from .kinds import SizedMethod

if TYPE_CHECKING:
    from .sampling import Sampling

KEEP = Parameter(
    "keep",
    "run",
    choices=("run", "prompt"),
    meaning="How long the memory lasts: across prompts (run) or for one prompt (prompt).",
)


class Memory(Protocol):
    """The contents of a method's memory."""

    @property
    def entries(self) -> int:
        """Number of entries in use."""

    @property
    def bytes(self) -> int:
        """Size in bytes."""

    def arrays(self) -> dict[str, np.ndarray]:
        """All contents, by name: views, not copies."""


class Remembering(SizedMethod):
    """A method whose drafter learns from the target's passes.

    The memory is created when the first run begins, or loaded. With ``keep="run"`` it lasts as long as the
    method, also from one run to the next if the same `Method` is passed to both; with ``keep="prompt"`` each
    prompt starts with an empty memory, or with the loaded one.
    """

    store: Any = None
    vocabulary: int | None = None  # size of the memory's vocabulary
    loaded: dict[str, np.ndarray] | None = None
    shape: ClassVar[tuple[str, ...]] = ()  # parameters that set the memory's shape
    keep: str

    def guarantee(self, sampling: Sampling, dtype: str) -> str:
        return "exact up to ties" if sampling.greedy else "exact in law"  # its drafts are judged by `tree.py`

    def fresh(self, vocabulary: int) -> Any:
        """An empty memory."""
        raise NotImplementedError

    def prepare(self, target: Model) -> None:
        """Check the memory against the model; start a new one if there is none, or for each prompt.

        Raises
        ------
        ModelError
            If the memory is for another vocabulary than the model's.
        """
        if self.vocabulary not in (None, target.vocabulary):
            raise ModelError(
                f"{self.name} has a memory for a vocabulary of {self.vocabulary:,} tokens, and the model has "
                f"{target.vocabulary:,}: use a new method for it"
            )
        if self.store is None or self.keep == "prompt":
            self._begin(target.vocabulary)

    def start(self, session: Session) -> None:
        self.prepare(session.target)
        self.session = session

    def _begin(self, vocabulary: int) -> None:
        """Start a new memory: empty, or a copy of the loaded one."""
        self.store, self.vocabulary = self.fresh(vocabulary), vocabulary
        if self.loaded is not None:
            for name, array in self.store.arrays().items():
                array[...] = self.loaded[name]

    def like(self, other: Self) -> None:
        """Copy another instance's memory; with ``keep="prompt"``, only the one that a prompt starts with."""
        self.vocabulary, self.loaded = other.vocabulary, other.loaded  # loaded arrays are never written to
        if self.keep != "prompt":
            self.store = copy.deepcopy(other.store)

    @property
    def memory(self) -> dict[str, Value]:
        entries = self.store.entries if self.store is not None else 0
        warm = bool(entries) or self.loaded is not None
        size = self.store.bytes if self.store is not None else 0
        return {"state": "warm" if warm else "cold", "keep": self.keep, "known": entries, "bytes": size}

    def save(self, path: str | Path, model: Model) -> Path:
        """Save the memory to a file; `model` must be the model whose tokens it holds.

        Raises
        ------
        ParameterError
            If no run has begun yet and nothing was loaded.
        """
        if self.store is None:
            raise ParameterError(f"{self.name} has an empty memory: decode something before saving")
        about = {"specviz": "memory", "method": self.name, "vocabulary": fingerprint(model)}
        about |= {name: str(getattr(self, name)) for name in self.shape}
        return write(path, self.store.arrays(), about)

    def load(self, path: str | Path, model: Model) -> None:
        """Start from a memory written by `save`.

        Raises
        ------
        ParameterError
            If the file is missing or damaged, or for another method, other parameters or another vocabulary.
        """
        arrays, about = read(path, "save one with --save-store or Method.save")
        if about.get("specviz") != "memory":
            raise ParameterError(f"{path} is not the memory of a specviz method")
        if about.get("method") != self.name:
            raise ParameterError(f"{path} is the memory of {about.get('method')}, not of {self.name}")
        for name in self.shape:
            if about.get(name) != str(getattr(self, name)):
                raise ParameterError(
                    f"{path} was made with {name}={about.get(name)}, and the method has {getattr(self, name)}"
                )
        if about.get("vocabulary") != fingerprint(model):
            raise ParameterError(f"{path} was made for another vocabulary than {model.name}'s")
        expected = self.fresh(model.vocabulary).arrays()
        for name, array in expected.items():
            saved = arrays.get(name)
            if saved is None or saved.shape != array.shape or saved.dtype != array.dtype:
                raise ParameterError(f"{path} is damaged: {name} is not {array.dtype} {list(array.shape)}")
            if (
                saved.dtype == np.int32
                and len(saved)
                and not -1 <= saved.min() <= saved.max() < model.vocabulary
            ):
                raise ParameterError(f"{path} is damaged: {name} holds ids outside the vocabulary")
            if saved.dtype == np.float32 and not ((saved >= 0) & (saved <= 1)).all():
                raise ParameterError(f"{path} is damaged: {name} holds numbers that are not probabilities")
        self.loaded = arrays
        self._begin(model.vocabulary)


def fingerprint(model: Model) -> str:
    """Digest of the meaning of a model's token ids."""
    digest = hashlib.sha256(str(model.vocabulary).encode())
    for token in range(model.vocabulary):
        piece = model.piece(token)
        digest.update(len(piece).to_bytes(4, "big") + piece)
    return digest.hexdigest()[:32]
