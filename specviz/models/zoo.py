"""The models that ship with the package."""

from __future__ import annotations

from pathlib import Path

from specviz.errors import SpecvizError
from specviz.paths import folder


def bundled() -> dict[str, Path]:
    """The models in transformers' format: name to folder."""
    try:
        return {path.parent.name: path.parent for path in sorted(folder("models").glob("*/config.json"))}
    except SpecvizError:
        return {}


def ggufs() -> dict[str, Path]:
    """The GGUF files: name to file."""
    try:
        return {path.stem: path for path in sorted(folder("gguf").glob("*.gguf"))}
    except SpecvizError:
        return {}
