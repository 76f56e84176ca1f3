"""GGUF models ready to run on llama.cpp, with the interface of `specviz.models.Model`."""

from __future__ import annotations

import ctypes
import hashlib
import os
import weakref
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import torch

from specviz.arguments import check_threads
from specviz.errors import ModelError
from specviz.files import exists
from specviz.models import geometry
from specviz.models.gguf.header import BIDIRECTIONAL
from specviz.models.llamacpp.context import LlamaCppContext
from specviz.models.llamacpp.library import ends_the_process, last_message, library, system, versions
from specviz.models.llamacpp.native import Native, rounded
from specviz.models.llamacpp.text import GgufText, Tokenizer
from specviz.models.text import Text, TokenizedModel
from specviz.paths import expanded

CONTEXT = 4096  # default limit on the tokens of a text
LAYERS = 512  # LLAMA_MAX_LAYERS
THREADS = 512  # GGML_MAX_N_THREADS
IDLE = 4  # contexts kept for reuse
WHOLE_NAMES = {"ALL_F32": "float32", "MOSTLY_F16": "float16", "MOSTLY_BF16": "bfloat16"}
WHOLE = frozenset(WHOLE_NAMES.values())  # types that are not quantized


class Weights:
    """A file loaded by llama.cpp; freed after the last context that uses it.

    With `words`, only the metadata and the vocabulary are read.
    """

    def __init__(self, path: Path, gpu_layers: int, words: bool = False) -> None:
        lib = library()
        given = lib.llama_model_default_params()
        given.n_gpu_layers, given.vocab_only = gpu_layers, words
        if not words:
            vocabulary_only = Weights(path, 0, words=True)
            vocabulary_only.check(path)
            if ends_the_process(vocabulary_only.type in WHOLE):
                given.use_extra_bufts = False
        last_message()
        self.pointer = lib.llama_model_load_from_file(os.fsencode(path), given)
        if not self.pointer:
            raise ModelError(f"{path} does not load as a GGUF model: {last_message() or 'no reason given'}")
        self._free = weakref.finalize(self, lib.llama_model_free, self.pointer)

    def check(self, path: Path) -> None:
        """Reject a shape at which llama.cpp would abort the process, or that leaves no room for text."""
        for name, low, high in (("block_count", 1, LAYERS), ("context_length", 1, 2**31 - 1)):
            key = f"{self.meta('general.architecture')}.{name}"
            value = self.meta(key)
            if value is not None and not (value.isdecimal() and low <= int(value) <= high):
                raise ModelError(
                    f"{path} is damaged: its {key} is {value[:40]}, which must be from {low} to {high}"
                )

    def check_kind(self, name: str) -> None:
        """Reject models that are not causal or whose cells cannot be rewound."""
        lib = library()
        for test, what in (
            (lib.llama_model_has_encoder, "it has an encoder"),
            (lib.llama_model_is_recurrent, "it is recurrent, so its state cannot be rewound"),
            (lib.llama_model_is_hybrid, "it has recurrent layers, whose state cannot be rewound"),
            (lib.llama_model_is_diffusion, "it is a diffusion model"),
        ):
            if test(self.pointer):
                raise ModelError(f"{name} is not supported: {what}")
        if self.meta(f"{self.meta('general.architecture')}.attention.causal") == "false":
            raise ModelError(f"{name} is not supported: {BIDIRECTIONAL}")

    @property
    def type(self) -> str:
        """The file's number format."""
        from gguf.constants import LlamaFileType

        try:
            name = LlamaFileType(int(self.meta("general.file_type") or "")).name
        except ValueError:
            return "GGUF"
        return WHOLE_NAMES.get(name, name.removeprefix("MOSTLY_"))

    def meta(self, key: str) -> str | None:
        """A value of the file's metadata, as text (long values are cut off); None if it is missing."""
        room = ctypes.create_string_buffer(1 << 12)
        count = library().llama_model_meta_val_str(self.pointer, key.encode(), room, len(room))
        return room.value.decode("utf8", "replace") if count >= 0 else None


class LlamaCpp(TokenizedModel):
    """A causal language model in a GGUF file, with the interface of `specviz.models.protocols.Model`.

    Parameters
    ----------
    path : str or Path
    threads : int, optional
        Number of threads for llama.cpp. Default: torch's number of threads when a context is opened.
    gpu_layers : int, default 0
        Layers on the GPU (Metal, CUDA), if llama-cpp-python was built for one; -1: all.
    context : int, optional
        Maximum tokens of one text. Default: the model's positions, but at most 4096, because all cells are
        allocated at once.

    Attributes
    ----------
    gives_hidden : bool
        False: llama.cpp provides no hidden states, which some methods need for drafting.
    batches : bool
        False: the rows of a context are fixed; none can be replaced or dropped.
    dtype : str
        The file's type: ``float32``, ``float16``, ``Q8_0``, ``Q4_K_M`` ...
    vocabulary, parameters, layers : int
    eos : tuple of int
        Ids that end a text.
    max_length : int
        Maximum tokens of one text.

    Raises
    ------
    ModelError
        If the file is missing, damaged or not supported, or llama.cpp is not installed.
    """

    kind = "causal"
    gives_hidden = False
    batches = False

    def __init__(
        self, path: str | Path, threads: int | None = None, gpu_layers: int = 0, context: int | None = None
    ) -> None:  # fmt: skip
        path = expanded(path, ModelError)
        _check_file(path)
        for name, value, low in (
            ("threads", threads, 1), ("gpu_layers", gpu_layers, -1), ("context", context, 1),
        ):  # fmt: skip
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < low):
                raise ModelError(f"{name} must be a whole number of at least {low}, got {value!r}")
        if threads is not None and threads > THREADS:
            raise ModelError(f"llama.cpp computes on at most {THREADS} threads, got {threads}")
        if threads is not None:
            check_threads(threads)
        lib = library()
        if gpu_layers and not lib.llama_supports_gpu_offload():
            raise ModelError(
                "this llama.cpp was built without a GPU, so gpu_layers must be 0: install llama-cpp-python "
                'again with CMAKE_ARGS="-DGGML_METAL=on" or "-DGGML_CUDA=on"'
            )
        self.path, self.name = path, path.stem
        self.gpu_layers, self._threads = gpu_layers, threads
        self.weights = Weights(path, gpu_layers)
        pointer = self.weights.pointer
        self.weights.check_kind(self.name)
        self.tokenizer = Tokenizer(self.weights, self.name)
        self.vocabulary = len(self.tokenizer)
        self.eos = self.tokenizer.eos
        if not self.eos:
            raise ModelError(
                f"{self.name} is not supported: its vocabulary names no end token, so no text would end; "
                "convert the model again"
            )
        self.text: Text = GgufText(self.tokenizer, self.vocabulary, self.eos)
        self.parameters = int(lib.llama_model_n_params(pointer))
        self.layers = int(lib.llama_model_n_layer(pointer))
        self.positions = int(lib.llama_model_n_ctx_train(pointer))
        if context is not None and context > self.positions:
            raise ModelError(f"{self.name} has {self.positions} positions; context={context} exceeds that")
        self.max_length = context or min(self.positions, CONTEXT)
        self.dtype = self.weights.type
        self.cache_type = lib.GGML_TYPE_F32 if self.dtype == "float32" else lib.GGML_TYPE_F16
        self.geometry = geometry.gguf(
            self.weights.meta, self.parameters, int(lib.llama_model_size(pointer)),
            4 if self.dtype == "float32" else 2, self.vocabulary,
        )  # fmt: skip
        self.versions = versions()
        self.device = torch.device("cpu")  # of the logits, even if a GPU computes them
        self._idle: list[Native] = []

    def __repr__(self) -> str:
        size = f"{self.parameters / 1e6:.2f} M parameters"
        return f"<LlamaCpp {self.name}: {size}, {self.dtype}, {self.threads} threads>"

    @property
    def threads(self) -> int:
        """Number of threads of a context opened now."""
        return self._threads or torch.get_num_threads()

    @property
    def backend(self) -> dict[str, str | int | bool]:
        """Description of the backend for the trace."""
        return {
            "name": "llama.cpp", "system": system(), "threads": self.threads, "gpu_layers": self.gpu_layers,
            "flash_attention": False, "type": self.dtype,
        }  # fmt: skip

    @property
    def files(self) -> list[Path]:
        """The files that hold the model: one, or all parts of a split one, of which the path is the first."""
        parts = int(self.weights.meta("split.count") or 1)
        stem = self.path.stem.removesuffix(f"-00001-of-{parts:05}")  # llama.cpp refuses other names
        names = [f"{stem}-{part:05}-of-{parts:05}.gguf" for part in range(1, parts + 1)]
        return [self.path] if parts == 1 else [self.path.with_name(name) for name in names]

    @property
    def digest(self) -> str:
        """Distinguishes files of the same name: a digest of the size, the header and samples of the data."""
        digest = hashlib.sha256()
        for path in self.files:
            size = path.stat().st_size
            digest.update(str(size).encode())
            with open(path, "rb") as file:
                digest.update(file.read(1 << 20))
                for i in range(64):
                    file.seek(size * i // 64)
                    digest.update(file.read(1 << 12))
        return digest.hexdigest()[:16]

    @cached_property
    def content(self) -> str:
        """SHA-256 of the file, or of all parts in order, in hexadecimal."""
        digest = hashlib.sha256()
        for path in self.files:
            with open(path, "rb") as file:
                hashlib.file_digest(file, lambda: digest)
        return digest.hexdigest()

    # -- running ----------------------------------------------------------------------------------

    def open(self, prompts: Sequence[Sequence[int]], room: int) -> LlamaCppContext:
        """See `Model.open`; the number of rows is limited by llama.cpp's number of sequences."""
        return LlamaCppContext(self, prompts, room)

    def first(self, layers: int) -> LlamaCpp:
        """Raise `ModelError`: llama.cpp always runs all layers."""
        raise ModelError(
            f"{self.name} runs on llama.cpp, which cannot stop after layer {layers}; use another drafter"
        )

    def take(self, cells: int, sequences: int) -> Native:
        """Take an empty context of at least this many cells and sequences: an idle one, or a new one."""
        cells, sequences = max(cells, self.max_length), rounded(sequences)
        fit = [each for each in self._idle if each.cells >= cells and each.sequences >= sequences]
        if not fit:
            return Native(self, cells, sequences)
        native = min(fit, key=lambda each: (each.sequences, each.cells))
        self._idle.remove(native)
        native.use(self.threads)
        return native

    def give(self, native: Native) -> None:
        """Return a context for reuse."""
        if not native.alive:
            return
        native.clear()
        self._idle.append(native)
        if len(self._idle) > IDLE:
            self._idle.pop(0).free()


def _check_file(path: Path) -> None:
    """Check that the path is a GGUF file; raise `ModelError` otherwise."""
    if not exists(path):
        raise ModelError(f"no file {path}; write a GGUF model as gguf:PATH")
    if path.is_dir():
        raise ModelError(
            f"{path} is a folder; name the .gguf file in it, or drop 'gguf:' for a model's folder"
        )
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from None
    if magic != b"GGUF":
        raise ModelError(f"{path} is not a GGUF file (it begins with {magic!r})")
