"""Models that ship with the package or were downloaded."""

from __future__ import annotations

from pathlib import Path

from specviz.errors import SpecvizError
from specviz.models.downloads import DOWNLOADS, local_path
from specviz.paths import folder


def bundled() -> dict[str, Path]:
    """Bundled models in transformers' format: a mapping from name to folder."""
    try:
        return {path.parent.name: path.parent for path in sorted(folder("models").glob("*/config.json"))}
    except SpecvizError:
        return {}


def available() -> dict[str, Path]:
    """Bundled and downloaded models that `specviz.load` accepts by name: a mapping from name to path."""
    return bundled() | {name: path for name in DOWNLOADS if (path := local_path(name))}
