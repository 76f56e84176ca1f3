"""The machine's ceilings: its memory bandwidths and compute rate, measured on each call and not saved.

A ceiling is the median over rounds of the fastest available kernel. Bandwidth counts the bytes that a kernel
reads and writes; a processor that fetches a cache line before overwriting it moves more. The read bandwidth
is the one that matters for the weights of a pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from specviz.loop.clock import EventClock
from specviz.loop.machine import machine
from specviz.measure.report import Row
from specviz.measure.timing import quiet_clock, settled, synchroniser
from specviz.metrics import Ceilings

BLOCK = 1 << 30  # bytes of the memory test, or twice the largest cache if that is more
LEAST = 0.02  # seconds of one timing
WIDE = 1024  # columns of the matrix in the matrix-vector product
SIDE = {"cpu": 1024, "mps": 4096, "cuda": 8192}  # side of the square matrices in the timed product
COLUMNS = [
    ("what", "ceiling", ""), ("size", "block, MB", "{:.1f}"), ("kernel", "kernel", ""),
    ("median", "median", "{:.1f}"), ("q25", "25%", "{:.1f}"), ("q75", "75%", "{:.1f}"), ("unit", "", ""),
]  # fmt: skip


def measure(
    device: str | torch.device = "cpu",
    dtype: torch.dtype = torch.float32,
    sizes: Sequence[int] = (),
    rounds: int = 11,
    block: int | None = None,
) -> tuple[Ceilings, list[Row]]:
    """Measure the ceilings with torch's current number of threads.

    Parameters
    ----------
    device : str or torch.device
    dtype : torch.dtype
        Number format of the data.
    sizes : sequence of int
        Bytes of blocks that are read repeatedly, such as the sizes of models.
    rounds : int
        Timings of each kernel; each lasts at least 20 ms.
    block : int, optional
        Bytes of the memory test. Default: 1 GiB, or twice the largest cache if that is more.

    Returns
    -------
    Ceilings
        The medians of the fastest kernels.
    list of dict
        Every kernel: ``what`` (memory, cache, copy, triad, compute), ``size`` (MB), ``kernel``, ``median``,
        ``q25``, ``q75`` in ``unit`` (GB/s or GFLOP/s).
    """
    device = torch.device(device)
    block = block or max(BLOCK, 2 * _largest_cache())
    rows: list[Row] = []

    def take(what: str, size: float, kernel: str, work: float, call: Callable[[], object]) -> float:
        rates = work / np.array(_timed(call, device, rounds)) / 1e9
        q25, median, q75 = np.quantile(rates, (0.25, 0.5, 0.75)).tolist()
        unit = "GFLOP/s" if what == "compute" else "GB/s"
        rows.append({"what": what, "size": size / 1e6, "kernel": kernel, "unit": unit})
        rows[-1] |= {"median": median, "q25": q25, "q75": q75}
        return median * 1e9

    def read(what: str, size: int) -> float:
        matrix = torch.ones(max(1, size // dtype.itemsize // WIDE), WIDE, dtype=dtype, device=device)
        vector = torch.ones(WIDE, dtype=dtype, device=device)
        moved = matrix.numel() * dtype.itemsize
        kernels: dict[str, Callable[[], object]] = {
            "sum": matrix.sum,
            "matrix-vector product": lambda: torch.mv(matrix, vector),
        }
        return max(take(what, moved, name, moved, call) for name, call in kernels.items())

    def write(size: int) -> None:
        a, b, c = (torch.ones(size // dtype.itemsize, dtype=dtype, device=device) for _ in range(3))
        take("copy", 2 * size, "b = a", 2 * size, lambda: b.copy_(a))
        take("triad", 3 * size, "c = a + 2 b", 3 * size, lambda: torch.add(a, b, alpha=2, out=c))

    with settled(), torch.inference_mode():
        memory = read("memory", block)
        write(block // 3)
        cache = {size: read("cache", size) for size in sorted(set(sizes))}
        side = SIDE.get(device.type, 1024)
        left, right = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(2))
        compute = take(
            "compute",
            3 * side * side * dtype.itemsize,
            f"product of {side} x {side}",
            2.0 * side**3,
            lambda: torch.mm(left, right),
        )
    here = machine(device)
    name = here["processor"] if device.type == "cpu" else here["device"]
    words = str(dtype).removeprefix("torch.")
    ceilings = Ceilings(compute, memory, cache, name, words, torch.get_num_threads())
    return ceilings, rows


def _timed(call: Callable[[], object], device: torch.device, rounds: int) -> list[float]:
    """Seconds of one call in each round; a round repeats the call to last long enough for the clock."""
    wait, (clock, _) = synchroniser(device), quiet_clock(device)
    events = EventClock(device)

    def seconds(times: int) -> float:
        if device.type == "cuda":  # the device's own clock, which excludes the host's launches
            begin = events.mark()
            for _ in range(times):
                call()
            return float(events.seconds([begin], [events.mark()])[0]) / times
        wait()
        start = clock()
        for _ in range(times):
            call()
        wait()
        return (clock() - start) / times

    seconds(1)  # touches the pages and selects the kernels
    times = max(1, int(np.ceil(LEAST / max(seconds(2), 1e-7))))
    return [seconds(times) for _ in range(rounds)]


def _largest_cache() -> int:
    """Bytes of the processor's largest cache; 0 if the system does not report it."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="ascii").strip()
        sizes.append(int(text[:-1]) << {"K": 10, "M": 20}.get(text[-1], 0))
    return max(sizes)
