"""Learning-rate schedule and checkpoints of a training run."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from specviz.errors import ModelError, TraceError, one_line
from specviz.files import replacing
from specviz.finetune.optimizer import Optimizer
from specviz.trace.recorder import lock, unlock

WARM = 0.03  # share of a run during which the rates rise


def rate_at(progress: float) -> float:
    """Learning-rate factor at `progress` (0 to 1): a linear rise, then a cosine to zero."""
    if progress < WARM:
        return max(progress / WARM, 0.02)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (progress - WARM) / (1 - WARM))))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Context in which `path`, a file or folder of an unfinished run, is written.

    Raises
    ------
    ModelError
        If it cannot be written, as on a full disk.
    """
    try:
        yield
    except BrokenPipeError:  # of the progress on the screen
        raise
    except (OSError, SafetensorError) as error:  # safetensors has an error of its own for a full disk
        why = getattr(error, "strerror", None) or one_line(error, 120)
        raise ModelError(
            f"cannot write {path} ({why}): remove the cause, then repeat the command to continue"
        ) from error


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Context in which no other process works on `path`, a file or folder.

    The folders that it lies in are made, and deleted afterwards if nothing was written into them.

    Raises
    ------
    ModelError
        If another process does, or its place cannot be written.
    """
    if not path.name:
        raise ModelError(f"{path} is a folder: name a file in it")
    try:
        absent = [folder for folder in path.parents if not folder.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        held = lock(path)
    except TraceError as error:
        raise ModelError(str(error)) from None
    except OSError as error:
        raise ModelError(f"cannot write {path}: {error.strerror or error}") from error
    try:
        yield
    finally:
        unlock(held)
        with suppress(OSError):  # of the first one that is not empty
            for folder in absent:
                folder.rmdir()


def write_checkpoint(file: Path, optimizer: Optimizer, state: dict[str, int]) -> None:
    """Write weights, optimiser and position to one file, replaced atomically (errors: `writing`)."""
    tensors = {f"model.{n}": p.detach() for n, p in optimizer.parameters.items()}
    tensors |= {f"optimizer.{n}": t for n, t in optimizer.state.items()}
    with writing(file), replacing(file) as part:
        save_file(tensors, part, metadata={"state": json.dumps(state)})
        with part.open("r+b") as written:
            os.fsync(written.fileno())


def read_checkpoint(file: Path, optimizer: Optimizer) -> dict[str, int]:
    """Load a checkpoint of :func:`write_checkpoint` into the model and optimiser, and return its state.

    Raises
    ------
    ModelError
        If the checkpoint is damaged, or its tensors have other shapes.
    """
    try:
        opened = safe_open(file, "pt")
    except SafetensorError:
        raise ModelError(f"{file} is damaged: delete it to start the training again") from None
    with opened as stored, torch.no_grad():
        state = json.loads(stored.metadata()["state"])
        names = set(stored.keys())
        for prefix, tensors in (("model.", optimizer.parameters), ("optimizer.", optimizer.state)):
            for name, tensor in tensors.items():
                key = prefix + name
                if key not in names or stored.get_slice(key).get_shape() != [*tensor.shape]:
                    raise ModelError(f"{file} has a different shape: delete it or change the recipe back")
                tensor.copy_(stored.get_tensor(key))
    return state
