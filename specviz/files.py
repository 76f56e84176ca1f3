"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from specviz.errors import TraceError


def write_bytes(path: Path, content: bytes, force: bool = False) -> Path:
    """Write a file under another name, wait until it is on the disk, then rename it.

    Raises
    ------
    TraceError
        If it exists (unless `force`), or the disk or the folder refuses.
    """
    if path.exists() and not force:
        raise TraceError(f"{path} exists: choose another path, or overwrite it with --force (force=True)")
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise TraceError(f"cannot write {path}: {error.strerror or error}") from None
    return path


def write_text(path: Path, text: str, force: bool = False) -> Path:
    """As `write_bytes`, in UTF-8; half a surrogate pair, which some models write, is kept."""
    return write_bytes(path, text.encode("utf8", "surrogatepass"), force)
