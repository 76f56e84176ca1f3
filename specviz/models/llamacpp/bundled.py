"""The bundled models as GGUF files, each written to the cache on first use."""

from __future__ import annotations

import hashlib
from pathlib import Path

from specviz.models.llamacpp.writer import VERSION, write_gguf
from specviz.models.zoo import bundled
from specviz.paths import home

TYPE = "f16"
READ = "config.json", "generation_config.json", "tokenizer*", "*.safetensors"  # files that are hashed


def bundled_gguf(name: str) -> Path:
    """Return a bundled model's GGUF file in float16, after writing it if necessary.

    Its folder is named after a hash of the model's content and the writer's version, so that a change of
    either leads to a new file.

    Parameters
    ----------
    name : str
        One of `specviz.models.zoo.bundled`.

    Raises
    ------
    ModelError
        If llama.cpp does not support the model's family, or the cache cannot be written.
    """
    digest = hashlib.sha256(f"{TYPE} {VERSION}".encode())
    folder = bundled()[name]
    for file in sorted(file for pattern in READ for file in folder.glob(pattern)):
        digest.update(file.name.encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    path = home() / "gguf" / digest.hexdigest()[:16] / f"{name}.gguf"
    if not path.is_file():
        write_gguf(name, path, TYPE, force=True)  # concurrent processes write identical files
    return path
