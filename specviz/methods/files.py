"""Arrays in a file: what a method remembers or looks up. Written whole or not at all, nothing pickled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..errors import ParameterError
from ..files import replacing


def write(path: str | Path, arrays: dict[str, np.ndarray], about: dict[str, str]) -> Path:
    """Write arrays by name, and words about them, as a safetensors file.

    Raises
    ------
    ParameterError
        If the disk or the folder refuses.
    """
    path = Path(path)
    try:
        with replacing(path) as part:
            part.touch()
            mode = (
                part.stat().st_mode
            )  # what the user's mask gives; safetensors leaves others no right to read
            save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, part, about)
            part.chmod(mode)
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or error
        raise ParameterError(f"{path} cannot be written ({why}); name another file") from None
    return path


def read(path: str | Path, remedy: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The arrays of such a file, and the words about them.

    Raises
    ------
    ParameterError
        If it is missing or cannot be read; the line ends with the `remedy`.
    """
    path = Path(path)
    try:
        with safe_open(path, "np") as file:
            about = file.metadata() or {}
            return {name: file.get_tensor(name) for name in file.keys()}, about  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        if not path.exists():
            why = "there is no such file"
        elif isinstance(error, OSError):
            why = f"it cannot be read ({error.strerror or error})"
        else:
            why = "it cannot be read (truncated, or another kind of file)"
        raise ParameterError(f"{path}: {why}; {remedy}") from None
