"""The bundled models as GGUF files: each is written once, into the cache, when it is first asked for."""

from __future__ import annotations

import hashlib
from pathlib import Path

from specviz.models.llamacpp.writer import write_gguf
from specviz.models.zoo import bundled
from specviz.paths import home

TYPE = "f16"


def bundled_gguf(name: str) -> Path:
    """A bundled model's GGUF file in float16.

    Its folder is named by the content of the model, so that a new version of the package writes it again.

    Parameters
    ----------
    name : str
        One of `specviz.models.zoo.bundled`.

    Raises
    ------
    ModelError
        If llama.cpp does not run models of its family, or the cache cannot be written.
    """
    digest = hashlib.sha256()
    for file in sorted(bundled()[name].iterdir()):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    path = home() / "gguf" / digest.hexdigest()[:16] / f"{name}.gguf"
    if not path.is_file():
        write_gguf(
            name, path, TYPE, force=True
        )  # by two processes at once: either file is whole, and the same
    return path
