"""Sizes of the front-end's files, and the inverse of `specviz.widgets.columns.pack`."""

from __future__ import annotations

import json
import struct
from importlib.resources import files
from typing import Any

import numpy as np

from specviz.widgets import assets

LATER = ("app", "flicker", "live", "live_race", "runs", "tokens")  # views added after the first three


def names() -> list[str]:
    """Names of the front-end's files."""
    return sorted(f.name for f in files("specviz.widgets").iterdir() if f.name.endswith((".js", ".css")))


def first_size() -> int:
    """Bytes of the files of the player, the race and the explorer, including comments."""
    folder = files("specviz.widgets")
    of = [name for name in names() if name.partition(".")[0] not in (*LATER, *assets.ADDED)]
    return sum(len(folder.joinpath(name).read_bytes()) for name in of)


def sent_size(name: str) -> int:
    """Bytes that a view sends: its script and style, including shared code."""
    return len(assets.script(name).encode()) + len(assets.style(name).encode())


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Decode the header and arrays that `pack` encodes."""
    length = struct.unpack_from("<I", data)[0]
    index = json.loads(data[4 : 4 + length])
    base = 4 + length
    arrays = {}
    for name, (kind, place, count, same) in index["arrays"].items():
        kept = np.frombuffer(data, np.dtype("<" + kind), 1 if same else count, base + place)
        arrays[name] = np.repeat(kept, count) if same else kept
    return index["header"], arrays
