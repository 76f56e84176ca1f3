"""Weights that passes no longer read, moved from memory to a file.

A packed layout is a copy of a model's matrices. The originals must stay within reach, for drafters cut out of
the model, for training and for the audit, but take as much memory as the copy. A parked weight is mapped from
a file without a name: the system reads its pages when something uses them, and drops them when memory is
short. Changes to a parked weight stay in memory. The file vanishes with the process.
"""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Sequence
from tempfile import TemporaryFile

import torch
from torch.utils.weak import WeakIdKeyDictionary

from specviz.paths import home

LEAST = 1 << 26  # bytes of weights from which a model is worth a file
FREE = 0.1  # share of the disk that stays free

_parked: WeakIdKeyDictionary = WeakIdKeyDictionary()  # the address of each parked parameter


class Parking:
    """A file that holds weights, mapped into memory.

    Parameters
    ----------
    weights : sequence of parameters
        Contiguous, on the CPU. They are moved: each becomes a part of the mapping.

    Raises
    ------
    OSError
        If the file cannot be written, or would fill the disk. The weights then stay where they are.
    """

    def __init__(self, weights: Sequence[torch.nn.Parameter]) -> None:
        folder = home()
        folder.mkdir(parents=True, exist_ok=True)
        disk = shutil.disk_usage(folder)
        if disk.free - sum(weight.nbytes for weight in weights) < FREE * disk.total:
            raise OSError("the disk is almost full")
        self.places: dict[int, tuple[int, int]] = {}  # by parameter: first byte and number of bytes
        with TemporaryFile(dir=folder) as file:
            for weight in weights:
                start = file.seek(-file.tell() % mmap.PAGESIZE, 1)
                self.places[id(weight)] = start, weight.nbytes
                file.write(memoryview(weight.data.flatten().view(torch.uint8).numpy()))
            file.flush()
            self.pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        for weight in weights:
            start, _ = self.places[id(weight)]
            flat = torch.frombuffer(self.pages, dtype=weight.dtype, count=weight.numel(), offset=start)
            weight.data = flat.view(weight.shape)
            _parked[weight] = weight.data_ptr()

    def drop(self, weights: Sequence[torch.nn.Parameter]) -> None:
        """Drop from memory what was read of weights since they were parked, and any changes to them."""
        for weight in weights:
            if id(weight) in self.places and hasattr(mmap, "MADV_DONTNEED"):  # not on Windows
                self.pages.madvise(mmap.MADV_DONTNEED, *self.places[id(weight)])


def park(weights: Sequence[torch.nn.Parameter]) -> Parking | None:
    """Move weights from memory to one file. Parked weights, shards and those of other devices stay.

    None if there is too little to move, or if the file cannot be written.
    """
    chosen = [weight for weight in weights if _movable(weight.data) and not _is_parked(weight)]
    if not chosen or sum(weight.nbytes for weight in chosen) < LEAST:
        return None
    try:
        return Parking(chosen)
    except OSError:
        return None


def _movable(data: torch.Tensor) -> bool:
    return type(data) is torch.Tensor and data.device.type == "cpu" and data.is_contiguous()


def _is_parked(weight: torch.nn.Parameter) -> bool:
    return _parked.get(weight) == weight.data_ptr()
