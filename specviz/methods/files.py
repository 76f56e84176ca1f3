"""Files of arrays, for memories and datastores: written completely or not at all, without pickle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ..errors import ParameterError
from ..files import replacing
from ..paths import expanded


def write(path: str | Path, arrays: dict[str, np.ndarray], about: dict[str, str]) -> Path:
    """Write named arrays and text metadata as a safetensors file.

    Raises
    ------
    ParameterError
        If the file cannot be written.
    """
    path = expanded(path, ParameterError)
    try:
        with replacing(path) as part:
            part.touch()
            mode = part.stat().st_mode  # by the user's umask; safetensors lets no other user read the file
            save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, part, about)
            part.chmod(mode)
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or error
        raise ParameterError(f"{path} cannot be written ({why}); name another file") from None
    return path


def read(path: str | Path, remedy: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read the arrays and the metadata of a file written by `write`.

    Raises
    ------
    ParameterError
        If it is missing or cannot be read; the message ends with `remedy`.
    """
    path = expanded(path, ParameterError)
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
