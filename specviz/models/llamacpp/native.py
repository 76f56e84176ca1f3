"""Wrapper for a context of llama.cpp, with its batch in NumPy arrays and checked arguments.

llama.cpp checks its arguments with assertions, which abort Python without an exception. The wrapper checks
the same conditions first and raises errors.
"""

from __future__ import annotations

import ctypes
import weakref
from typing import TYPE_CHECKING

import numpy as np
import torch

from specviz.errors import ModelError
from specviz.models.llamacpp.library import last_message, library

if TYPE_CHECKING:
    from specviz.models.llamacpp.model import LlamaCpp, Weights

SEQUENCES = 256  # LLAMA_MAX_SEQ: sequence ids are smaller
BATCH = 2048  # most tokens of a pass
BLOCK = 512  # tokens of a pass that llama.cpp computes at once
PAGE = 256  # cells are a multiple of this, so that a pass can hold a token of every sequence


class Native:
    """A ``llama_context`` for one or more sequences in shared cells.

    Parameters
    ----------
    model : LlamaCpp
    cells : int
        Number of tokens that it holds, over all sequences.
    sequences : int
        Number of sequence ids, counted from 0. Each pass compares all pairs of sequences, and logits of as
        many tokens are allocated in advance, so it should be no larger than needed.

    Attributes
    ----------
    batch : int
        Maximum tokens of one `decode`.
    cells, sequences : int
        As given, with `cells` rounded up.

    Raises
    ------
    ModelError
        If the context cannot be created, for example for lack of memory.
    """

    def __init__(self, model: LlamaCpp, cells: int, sequences: int = 1) -> None:
        lib = self.lib = library()
        self.weights = model.weights  # must outlive the context
        given = lib.llama_context_default_params()
        given.n_ctx = -(-cells // PAGE) * PAGE
        given.n_batch, given.n_ubatch = BATCH, BLOCK
        given.n_seq_max = self.sequences = sequences
        given.n_outputs_max = given.n_outputs_max_per_seq = 0
        given.n_threads = given.n_threads_batch = model.threads
        given.kv_unified = True
        given.swa_full = True  # keep cells outside a sliding window, so that rewinding works
        given.offload_kqv = given.op_offload = model.gpu_layers != 0
        # F32, F16 and Q8_0 files: without it, passes of one and of many tokens differ less.
        given.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        given.type_k = given.type_v = model.cache_type
        given.embeddings, given.no_perf = False, True
        last_message()
        pointer = lib.llama_init_from_model(self.weights.pointer, given)
        if not pointer:
            reason = last_message() or "out of memory"
            raise ModelError(
                f"no context of {cells} tokens for {model.name}: {reason}; load it with a smaller context="
            )
        self.pointer = pointer
        self.memory = lib.llama_get_memory(pointer)
        # The finalizer holds the weights until then: cyclic garbage is collected in no particular order.
        self._free = weakref.finalize(self, _free, pointer, self.weights)
        self.name, self.vocabulary = model.name, model.vocabulary
        self.cells, self.batch = int(lib.llama_n_ctx(pointer)), int(lib.llama_n_batch(pointer))
        self.tokens = np.zeros(self.batch, np.int32)
        self.positions = np.zeros(self.batch, np.int32)
        self.counts = np.ones(self.batch, np.int32)
        self.lists = np.zeros(self.batch, np.uintp)  # address of each token's sequence ids
        self.outputs = np.zeros(self.batch, np.int8)
        self.places = np.arange(self.cells, dtype=np.int32)
        self.ids = np.arange(SEQUENCES, dtype=np.int32)
        self.alone = self.ids.ctypes.data + 4 * np.arange(SEQUENCES, dtype=np.uintp)  # lists of one id each
        self._view: tuple[int, int, np.ndarray] | None = None
        number = ctypes.POINTER(ctypes.c_int32)
        self._batch = lib.llama_batch(
            0, self.tokens.ctypes.data_as(number), None, self.positions.ctypes.data_as(number),
            self.counts.ctypes.data_as(number), self.lists.ctypes.data_as(ctypes.POINTER(number)),
            self.outputs.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )  # fmt: skip

    def use(self, threads: int) -> None:
        """Set the number of threads."""
        self.lib.llama_set_n_threads(self.pointer, threads, threads)

    def decode(self, count: int) -> None:
        """Compute the first `count` entries of the batch arrays.

        Raises
        ------
        ModelError
            If there are too many for a pass, or llama.cpp rejects them.
        """
        if not 0 < count <= self.batch:
            raise ModelError(f"a pass of {count} tokens through {self.name}; a pass takes 1 to {self.batch}")
        self._batch.n_tokens = count
        status = self.lib.llama_decode(self.pointer, self._batch)
        if status == 1:
            raise ModelError(
                f"{self.name}'s cells are full ({self.cells}): open with more room or load it with a larger "
                "context="
            )
        if status:
            raise ModelError(
                f"llama.cpp could not compute {count} tokens (status {status}): {last_message()}"
            )

    def logits(self, rows: int) -> torch.Tensor:
        """The logits of the last `decode` [rows, vocabulary], float32.

        They are a copy, because the trace keeps rows for many cycles and llama.cpp overwrites them in the
        next pass. NumPy copies from a cached view; torch would take three times as long right after a pass.
        """
        address = ctypes.addressof(self.lib.llama_get_logits(self.pointer).contents)
        if self._view is None or self._view[:2] != (address, rows):
            block = (ctypes.c_float * (rows * self.vocabulary)).from_address(address)
            self._view = address, rows, np.ctypeslib.as_array(block).reshape(rows, self.vocabulary)
        return torch.from_numpy(self._view[2].copy())

    def one(self, token: int, position: int) -> torch.Tensor:
        """Fast path: feed one token of sequence 0 and return its logits [1, vocabulary]."""
        self.tokens[0], self.positions[0] = token, position
        self.counts[0] = self.outputs[0] = 1
        self.lists[0] = self.alone[0]
        self.decode(1)
        return self.logits(1)

    def remove(self, sequence: int, start: int) -> None:
        """Remove a sequence from a position on; cells that no sequence uses become free."""
        self._check_sequence(sequence)
        if not self.lib.llama_memory_seq_rm(self.memory, sequence, start, -1):
            raise ModelError(f"{self.name} cannot drop part of its text (it keeps a state, not a cache)")

    def copy(self, source: int, target: int, start: int, end: int) -> None:
        """Add the cells of a sequence at positions start ... end to another sequence."""
        self._check_sequence(source)
        self._check_sequence(target)
        self.lib.llama_memory_seq_cp(self.memory, source, target, start, end)

    @property
    def alive(self) -> bool:
        """Whether the context is not yet freed; at exit, that may happen before the last text is closed."""
        return self._free.alive

    def clear(self) -> None:
        """Remove all sequences."""
        self.lib.llama_memory_clear(self.memory, False)

    def free(self) -> None:
        """Free the memory; the context cannot be used afterwards."""
        self._free()

    def move(self, other: Native, sequence: int) -> None:
        """Copy a sequence's computed cells to another context of the same model."""
        self._check_sequence(sequence)
        other._check_sequence(sequence)
        size = self.lib.llama_state_seq_get_size(self.pointer, sequence)
        room = (ctypes.c_uint8 * size)()
        got = self.lib.llama_state_seq_get_data(self.pointer, room, size, sequence)
        if got != size or not self.lib.llama_state_seq_set_data(other.pointer, room, size, sequence):
            raise ModelError(f"{self.name}'s cells do not fit into {other.cells} others: {last_message()}")

    def _check_sequence(self, sequence: int) -> None:
        if not 0 <= sequence < self.sequences:
            raise ModelError(f"this context has sequences 0 to {self.sequences - 1}, not {sequence}")


def _free(pointer: ctypes.c_void_p, weights: Weights) -> None:
    library().llama_free(pointer)


def rounded(sequences: int) -> int:
    """Round up a number of sequences, so that contexts have few different sizes: 1, 16, 32 ... 256."""
    return 1 if sequences <= 1 else min(SEQUENCES, max(16, 1 << (sequences - 1).bit_length()))
