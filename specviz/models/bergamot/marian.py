"""Reads a Marian binary file: named matrices, some in eight bits, and the embedded configuration.

The layout, in little endian: the version (1) and the number of items; for each item the length of its name,
its type, its number of dimensions and its size in bytes; then all names, all shapes, padding, and the data.
Marian's source calls this the binary format (``src/common/binary.cpp``); 8-bit matrices are intgemm's.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import torch
import yaml

from specviz.errors import ModelError
from specviz.models.protocols import Settings

VERSION = 1
CONFIG = "special:model.yml"
FLOAT32, INT8, INTGEMM8 = 0x0404, 0x0101, 0x4101
TYPES = {FLOAT32: "float32 matrix", INT8: "int8"}  # names of what is not supported
MOST_ITEMS = 100_000
TABLE = "Wemb"  # the embeddings, which are stored untransposed because their rows are read individually
INPUT_SCALE = "_QuantMultA"  # ends the name of a scale of activations, which are not quantised here


@dataclass(frozen=True)
class MarianFile:
    """The contents of a Marian binary file.

    Attributes
    ----------
    config : dict
        The configuration embedded in the file.
    tensors : dict of str to tensor
        Float32: vectors [n], and matrices [out, in], except the embeddings [tokens, width].
    """

    config: Settings
    tensors: dict[str, torch.Tensor]


def read(path: Path) -> MarianFile:
    """Read a file and dequantise its 8-bit matrices.

    Parameters
    ----------
    path : Path

    Raises
    ------
    ModelError
        If the file is missing, is not a Marian binary, is truncated or damaged, or is not quantised.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from None
    try:
        return _parsed(data, path)
    except (struct.error, ValueError, OverflowError, RuntimeError):
        raise ModelError(f"{path} is not a Marian binary file, or it is truncated") from None


def _parsed(data: bytes, path: Path) -> MarianFile:
    version, count = struct.unpack_from("<QQ", data)
    if version != VERSION or not 0 < count <= MOST_ITEMS:
        raise ModelError(f"{path} is not a Marian binary file of version {VERSION}")
    headers = [struct.unpack_from("<QQQQ", data, 16 + 32 * i) for i in range(count)]
    at = 16 + 32 * count
    ends = list(accumulate((name for name, *_ in headers), initial=at))
    names = [data[start : end - 1].decode() for start, end in pairwise(ends)]
    at = ends[-1]
    shapes: list[tuple[int, ...]] = []
    for _, _, dimensions, _ in headers:
        shapes.append(struct.unpack_from(f"<{dimensions}i", data, at))
        at += 4 * dimensions
    (padding,) = struct.unpack_from("<Q", data, at)
    ends = list(accumulate((size for *_, size in headers), initial=at + 8 + padding))
    if ends[-1] > len(data):
        raise ModelError(f"{path} is truncated: it has {len(data):,} of {ends[-1]:,} bytes")
    tensors: dict[str, torch.Tensor] = {}
    config: Settings = {}
    for name, (_, kind, *_), shape, (start, end) in zip(names, headers, shapes, pairwise(ends)):
        if name == CONFIG:
            config = _config(data[start:end], path)
        elif name.endswith(INPUT_SCALE):
            continue
        elif kind == INTGEMM8:
            tensors[name] = _multiplied(data[start:end], name, shape, path)
        elif kind == FLOAT32 and math.prod(shape) == max(shape, default=1):
            values = np.frombuffer(data[start:end], "<f4", math.prod(shape))
            tensors[name] = torch.from_numpy(values.astype(np.float32))
        else:
            raise ModelError(
                f"{path} is not quantised: it holds {name!r:.60} in an unsupported type "
                f"({TYPES.get(kind, hex(kind))}); convert it with marian-conv --gemm-type intgemm8"
            )
    return MarianFile(config, tensors)


def _multiplied(data: bytes, name: str, shape: tuple[int, ...], path: Path) -> torch.Tensor:
    """Dequantise an 8-bit matrix. Its scale follows the integers, which are the weights times the scale."""
    count = math.prod(shape)
    (scale,) = struct.unpack_from("<f", data, count)
    if not 0 < scale < math.inf:
        raise ModelError(f"{path} is damaged: the scale of {name!r:.60} is {scale}, not a positive number")
    values = torch.from_numpy(np.frombuffer(data, np.int8, count).astype(np.float32)) / scale
    return values.view(shape if name == TABLE else shape[::-1])


def _config(data: bytes, path: Path) -> Settings:
    try:
        config = yaml.safe_load(data.rstrip(b"\0").decode())
    except Exception:  # a malformed value of a tagged type raises whatever its constructor meets
        config = None
    if not isinstance(config, dict):
        raise ModelError(f"{path} is damaged: its {CONFIG} is not a list of settings")
    return config
