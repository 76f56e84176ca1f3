"""Converts weights published as ``pytorch_model.bin`` to safetensors, in the same folder.

The original file is a pickle, which can run code when it is read. torch therefore reads it with
``weights_only=True``, which accepts tensors and their containers and fails on anything else.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from specviz.errors import ModelError, one_line
from specviz.files import replacing
from specviz.models.loading import SHARDED, SHARDS
from specviz.paths import expanded

BIN, SAFE = "pytorch_model.bin", "model.safetensors"
SHARED = "shared.weight"  # T5's name for the matrix that it also stores as both sides' embeddings


def convert(folder: str | Path, force: bool = False) -> Path:
    """Write ``model.safetensors`` from a folder's ``pytorch_model.bin``, which is kept.

    If several names share one tensor, only one is written, as transformers does: it ties the others again.

    Parameters
    ----------
    folder : str or Path
        The folder as published.
    force : bool
        Whether to overwrite an existing ``model.safetensors``.

    Returns
    -------
    Path
        Path of ``model.safetensors``.

    Raises
    ------
    ModelError
        If ``pytorch_model.bin`` is missing, unreadable or holds more than tensors, or if
        ``model.safetensors`` already exists or cannot be written.
    """
    folder = expanded(folder, ModelError)
    source, target = folder / BIN, folder / SAFE
    if not source.is_file():
        sharded = any(folder.glob(SHARDS))
        raise ModelError(f"{folder} has no {BIN} to convert{f': {SHARDED}' if sharded else ''}")
    if target.exists() and not force:
        raise ModelError(f"{target} already exists: there is nothing to convert, or use --force")
    try:
        content = torch.load(source, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise ModelError(f"{source} holds more than tensors, so it is not read") from None
    except Exception as error:  # a damaged archive can make torch raise anything
        raise ModelError(f"{source} cannot be read: {one_line(error, 120)}") from None
    if not isinstance(content, dict) or not content:
        raise ModelError(f"{source} is not a table of tensors by name")
    tensors: dict[str, torch.Tensor] = {}
    owners: dict[tuple[int, int, torch.Size], str] = {}
    for name in sorted(content, key=lambda name: (name != SHARED, str(name))):
        value = content[name]
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise ModelError(f"{source} is not a table of tensors by name: {str(name)[:60]!r}")
        place = (value.untyped_storage().data_ptr(), int(value.storage_offset()), value.shape)
        if value.numel() and owners.setdefault(place, name) != name:
            continue
        tensors[name] = value.clone(memory_format=torch.contiguous_format)
    try:
        with replacing(target) as path:
            save_file(tensors, path, metadata={"format": "pt"})
    except (OSError, SafetensorError) as error:  # safetensors has an error of its own for a full disk
        why = getattr(error, "strerror", None) or one_line(error, 120)
        raise ModelError(f"cannot write {target}: {why}") from None
    return target
