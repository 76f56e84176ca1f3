"""Prices of a device that is not available, from a roofline of its passes.

A pass takes its launches plus the longer of its FLOPs at the compute rate and its bytes at the memory rate
(`specviz.metrics.costs`). Nothing is measured: the times are modelled, and a bound that kernels do not reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specviz.errors import ParameterError
from specviz.metrics.costs import Shape
from specviz.models.protocols import Model

from .prices import TARGET, Passes, Pilot, Prices, pass_sizes
from .simulation import CHAIN, Candidate, Family

BYTES = 2  # per weight and per cached number: 16-bit formats
LAUNCH = 20e-6  # seconds per layer: about ten kernels, not captured as a graph


@dataclass(frozen=True)
class Device:
    """The rates of a device.

    Parameters
    ----------
    name : str
    memory : float
        Bytes per second.
    compute : float
        FLOPs per second, dense, 16 bit.
    launch : float
        Seconds per layer of a pass of any size.
    source : str
        Origin of the two rates; empty if the user gave them.
    """

    name: str
    memory: float
    compute: float
    launch: float = LAUNCH
    source: str = ""

    @property
    def words(self) -> str:
        """The device and its rates as text."""
        return (
            f"{self.name} ({self.memory / 1e9:,.0f} GB/s, {self.compute / 1e12:,.0f} TFLOP/s, "
            f"{self.launch * 1e6:g} µs per layer{self.source and '; rates: '}{self.source})"
        )


# Memory, and dense 16-bit compute with 32-bit accumulation; data sheets print twice that, with sparsity.
NVIDIA = "NVIDIA's data sheet of the "
PRESETS = {
    "h100": Device("h100", 3.35e12, 989e12, source=NVIDIA + "H100 SXM"),
    "a100": Device("a100", 2.039e12, 312e12, source=NVIDIA + "A100 80GB SXM"),
    "l4": Device("l4", 300e9, 121e12, source=NVIDIA + "L4"),
    "rtx4090": Device("rtx4090", 1.008e12, 165.2e12, source="NVIDIA's Ada whitepaper"),
}


def device_of(given: str) -> Device:
    """Parse a preset's name, or ``BYTES,FLOPS[,LAUNCH]`` (per second, per second, seconds per layer).

    Raises
    ------
    ParameterError
    """
    if not isinstance(given, str):
        raise ParameterError(f"a device is one of {', '.join(PRESETS)}, or BYTES,FLOPS,LAUNCH; got {given!r}")
    if given.lower() in PRESETS:
        return PRESETS[given.lower()]
    parts = given.split(",")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if (
        len(numbers) not in (2, 3)
        or not all(0 <= each < float("inf") for each in numbers)
        or not all(numbers[:2])
    ):
        raise ParameterError(
            f"a device is one of {', '.join(PRESETS)}, or BYTES,FLOPS,LAUNCH such as 3.35e12,989e12,20e-6 "
            f"(bytes and FLOPs per second, seconds per layer); got {given!r}"
        )
    return Device(given, numbers[0], numbers[1], numbers[2] if len(numbers) > 2 else LAUNCH)


def prices_of(
    device: Device, model: Model, drafters: Mapping[str, Model], candidates: Sequence[Candidate],
    between: tuple[int, int], batches: Sequence[int], contexts: Sequence[int],
    touched: Mapping[int, float] | None = None,
) -> Prices:  # fmt: skip
    """Model a device's prices in the form in which `specviz.measure.advice.prices.measure` measures them.

    For a mixture, `touched` gives by pass size how many experts of a layer one row reads; the rows of a
    batch are assumed to choose independently.

    Raises
    ------
    ParameterError
        If a model's shape is unknown.
    """
    families: list[Family] = list(dict.fromkeys(each.family for each in candidates))
    chains = {draft for method, draft in families if method == CHAIN}
    models = {TARGET: model} | {name: drafters[name] for name in drafters if name in chains}
    sizes = pass_sizes(candidates)
    made: dict[tuple[str, int], Passes] = {}
    elsewhere: dict[tuple[str, int], Passes] = {}
    for name, each in models.items():
        shape = _shape(each)
        own = sizes if name == TARGET else [1, 2]
        read = (touched or {}) if name == TARGET else {}

        def passes(
            at: Sequence[int], rows: int = 1, shape: Shape = shape, own: Sequence[int] = tuple(own),
            read: Mapping[int, float] = read,
        ) -> Passes:  # fmt: skip
            ms = [
                [[1e3 * _seconds(device, shape, g, context, rows, read.get(g))] for context in at]
                for g in own
            ]
            return Passes(list(own), list(at), np.array(ms))

        made[name, 1] = passes(sorted(set(between)))
        for rows in (rows for rows in batches if rows > 1):
            made[name, rows] = passes([sum(between) // 2], rows)
        for context in contexts:
            elsewhere[name, context] = passes([context])
    ordered = sorted(made, key=lambda key: key[1])  # one row first
    free = Pilot(np.empty(0), *(np.empty(0, np.int64) for _ in range(4)))
    return Prices({key: made[key] for key in ordered}, elsewhere, dict.fromkeys(families, free),
                  f"a roofline of {device.words}")  # fmt: skip


def pass_seconds(device: Device, model: Model, tokens: float, context: float) -> float:
    """Seconds of a model's pass over `tokens` tokens after `context` tokens, on a device.

    Raises
    ------
    ParameterError
        If the model's shape is unknown.
    """
    return _seconds(device, _shape(model), max(1, round(tokens)), round(context), 1)


def _shape(model: Model) -> Shape:
    widths = getattr(model, "geometry", None)
    if widths is None:
        raise ParameterError(f"the shape of {model.name} is unknown, so it has no roofline: drop --as")
    return Shape({**widths, "weight_bytes": BYTES, "cache_bytes": BYTES})


def _seconds(
    device: Device, shape: Shape, tokens: int, context: int, rows: int, touched: float | None = None
) -> float:
    """Seconds of a pass that computes the logits of every token."""
    if touched is not None and shape.experts is not None:
        count = shape.experts["count"]
        touched = count * (1 - (1 - touched / count) ** rows)
    flops, moved = shape.chain(tokens, context, tokens, rows, touched)
    return shape.widths["layers"] * device.launch + max(flops / device.compute, moved / device.memory)
