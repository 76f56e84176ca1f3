"""Time of a pass and of its parts, relative to reading the weights once, the lower bound of every pass."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import closing

import numpy as np
import torch

from specviz.errors import ParameterError, plural
from specviz.measure.benches.ceilings import measure as ceilings
from specviz.measure.benches.passes import Rounds
from specviz.measure.report import Part, Row
from specviz.measure.timing import quiet_clock, seconds_of, settled, synchroniser, threads
from specviz.models import ordered
from specviz.models.attention import attend
from specviz.models.kernels import width
from specviz.models.layers import Lines
from specviz.models.model import Model
from specviz.models.protocols import Model as AnyModel

SIZES = (1, 5, 9)
CACHED = "Above 100 %: part of the weights stays in the processor's cache from one pass to the next."
COLUMNS = [
    ("g", "g", "{:d}"), ("part", "part", ""), ("mb", "weights, MB", "{:.1f}"), ("median", "ms", "{:.2f}"),
    ("rate", "GB/s", "{:.1f}"), ("share", "of the read rate", "{:.0%}"),
]  # fmt: skip


def measure(model: AnyModel, context: int, rounds: int) -> Part:
    """Time whole passes and their parts, and the rate at which each reads its weights.

    Parameters
    ----------
    model : Model
        A model of the Llama family on torch, on one device.
    context : int
        Tokens committed before the pass.
    rounds : int

    Raises
    ------
    ParameterError
        If the model runs through transformers' modules.
    """
    if not isinstance(model, Model) or (llama := model.plain_function) is None:
        raise ParameterError(
            f"--floor needs a model of the Llama family on torch, and {model.name} is not one"
        )
    lines = list(llama.lines())
    head, products = lines[:1], lines[1:]
    size = {name: _bytes(each) for name, each in (("layers", products), ("head", head))}
    whole = size["layers"] + size["head"]
    rates = {}
    count, cpu = torch.get_num_threads(), model.device.type == "cpu"
    for number in sorted({1, min(2, os.cpu_count() or 1), count} if cpu else {count}):
        with threads(number):
            rates[number] = ceilings(model.device, model.dtype, rounds=5)[0].memory
    rate = rates[count]
    rows: list[Row] = []
    for number, each in rates.items():
        words = "the memory's read rate" + (f", {plural(number, 'thread')}" if cpu else "")
        rows.append({"part": words, "mb": whole / 1e6, "median": 1e3 * whole / each, "rate": each / 1e9})
    parts: dict[int, dict[str, tuple[int, Callable[[], None]]]] = {
        g: {
            "products of the layers": (size["layers"], _products(products, max(g, llama.least))),
            "head": (size["head"], _products(head, g)),
            "attention": (0, _attention(model, context, g)),
        }
        for g in SIZES
    }
    passes, times = _rounds(model, context, rounds, [call for g in SIZES for _, call in parts[g].values()])
    for g, own in zip(SIZES, times.reshape(rounds, len(SIZES), -1).transpose(1, 0, 2)):
        timed = {"the whole pass": (whole, passes[g])}
        timed |= {name: (moved, own[:, i]) for i, (name, (moved, _)) in enumerate(parts[g].items())}
        # Subtract within each round, so that changes in the machine's speed cancel.
        timed["norms, positions, Python"] = (0, passes[g] - own.sum(1))
        rows += [_row(g, name, moved, float(np.median(ms)), rate) for name, (moved, ms) in timed.items()]
    return Part("The lower bound: reading the weights once", COLUMNS, rows)


def _bytes(lines: Sequence[Lines]) -> int:
    return round(sum(w.numel() * width(line.layout, w.dtype) for line in lines for w in line.weights))


def _row(g: int, part: str, moved: int, time: float, rate: float) -> Row:
    row: Row = {"g": g, "part": part, "median": time}
    if moved:
        row |= {"mb": moved / 1e6, "rate": moved / time / 1e6, "share": 1e3 * moved / time / rate}
    return row


def _products(lines: Sequence[Lines], rows: int) -> Callable[[], None]:
    inputs = [line.weights[0].new_ones(rows, line.weights[0].shape[1]) for line in lines]

    def call() -> None:
        for line, x in zip(lines, inputs):
            line(x)

    return call


def _attention(model: Model, context: int, g: int) -> Callable[[], None]:
    """A call that computes every layer's attention of `g` queries over random keys and values."""
    heads = model.heads * model.group
    query = torch.randn(1, g, heads, model.dim, dtype=model.dtype, device=model.device)
    shape = model.shape(1, context + g if not model.invariant else ordered.whole_blocks(context + g))
    sizes = shape.layers, 2, 1, shape.heads, shape.slots, shape.dim
    pairs = torch.randn(sizes, dtype=shape.dtype, device=model.device)

    def call() -> None:
        for key, value in pairs:
            attend(query.transpose(1, 2), key, value, None if g == 1 else mask)

    def call_in_order() -> None:
        function = model.plain_function
        sums = ordered.SUMS[0] if function is None else function.sums
        seen = ordered.sight(mask, 1, heads, model.heads, None, sums)
        for key, value in pairs:
            ordered.attend(query, key, value, seen, model.dim**-0.5)

    size = 1, 1, g if model.invariant else model.group * g, shape.slots
    mask = torch.zeros(size, dtype=model.attention_dtype, device=model.device)
    return call_in_order if model.invariant else call


def _rounds(
    model: Model, context: int, rounds: int, calls: Sequence[Callable[[], None]]
) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """Milliseconds of whole passes by size, and of each call, [rounds, calls]; all take turns in each round.

    A part timed alone would have its weights in the cache.
    """
    wait, clock = synchroniser(model.device), quiet_clock(model.device)[0]
    times = []
    with closing(Rounds({"": model}, SIZES, context)) as passes, settled(), torch.inference_mode():
        for call in calls:
            call()
        for _ in range(rounds):
            passes()
            times.append([1e3 * seconds_of(call, wait=wait, clock=clock) for call in calls])
        return passes.spent()[""], np.array(times)
