"""FLOPs and bytes of passes, their time by the machine's ceilings, and their measured time."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import numpy as np
import torch

from specviz.errors import ParameterError, plural
from specviz.measure.benches import ceilings as measuring
from specviz.measure.benches.passes import measure_models
from specviz.measure.report import Part, Report, Row, Tick
from specviz.measure.timing import clock_of, setting
from specviz.methods import find
from specviz.metrics import Ceilings
from specviz.metrics.costs import Shape
from specviz.models.protocols import Model

CONTEXT = 128  # tokens before the pass
SIZES = (1, 4, 8, 16)
PREFILL = 64
BATCHES = (1, 8)
COLUMNS = [
    ("model", "model", ""), ("pass", "pass", ""), ("rows", "rows", "{:d}"), ("mflops", "MFLOPs", "{:.1f}"),
    ("mb", "MB", "{:.2f}"), ("intensity", "FLOPs/byte", "{:.2f}"), ("bound", "bound by", ""),
    ("roofline", "roofline ms", "{:.3f}"), ("median", "measured ms", "{:.3f}"), ("q25", "25%", "{:.3f}"),
    ("q75", "75%", "{:.3f}"), ("ratio", "ratio", "{:.2f}"),
]  # fmt: skip
DROP_ORDER = ("q25", "q75", "mb", "bound")
NOTES = [
    "ratio: the measured time divided by the roofline's.",
    "The roofline uses the bandwidth measured by reading a block of the model's size repeatedly: a small "
    "model stays in the processor's caches.",
    "Bytes are weights, keys and values. A pass over few tokens also pays for each kernel launch, which no "
    "ceiling includes.",
]


def bench(
    model: Model,
    drafts: list[Model],
    *,
    rounds: Annotated[int, "Number of passes of each kind."] = 31,
    tick: Tick = lambda done, of, name: None,
) -> Report:
    """Compare every kind of pass of the target and of each draft model with the machine's roofline."""
    # an EAGLE drafter has no passes of its own
    drafts = [each for each in drafts if find("speculative").suited([each])]
    models, shapes = [model, *drafts], []
    for each in models:
        geometry = getattr(each, "geometry", None)
        if geometry is None:
            raise ParameterError(
                f"the costs of {each.name} are unknown: it has matrices other than those of attention and a "
                f"feed-forward network"
            )
        if getattr(each, "kind", "causal") != "causal":
            raise ParameterError(f"{each.name} is an encoder-decoder; bench roofline needs a causal model")
        if each.max_length < CONTEXT + max(SIZES):
            raise ParameterError(
                f"bench roofline needs {CONTEXT + max(SIZES)} tokens of {each.name}'s context"
            )
        shapes.append(Shape(geometry))
    sizes = [int(shape.weights(1)) for shape in shapes]
    dtype = model.dtype if isinstance(model.dtype, torch.dtype) else torch.float32
    total = 1 + len(models)
    top, kernels = measuring.measure(model.device, dtype, sizes, max(5, rounds // 3))
    tick(1, total, "ceilings")
    rows = []
    for number, (each, shape) in enumerate(zip(models, shapes)):
        rows += [{"model": each.name, **row} for row in passes(each, shape, top, rounds)]
        tick(2 + number, total, each.name)
    clock = clock_of(model)[1]
    about = setting(model, drafts, context=CONTEXT, rounds=rounds, clock=clock, ceilings=asdict(top))
    title = f"Passes after {CONTEXT} tokens against the roofline, median of {rounds}"
    parts = [Part("The machine's ceilings", measuring.COLUMNS, kernels)]
    return Report("roofline", title, about, COLUMNS, rows, notes=NOTES, dropped=DROP_ORDER, parts=parts)


def passes(model: Model, shape: Shape, top: Ceilings, rounds: int) -> list[Row]:
    """Each kind of pass: its costs, the roofline's time and the measured one, in milliseconds."""
    rows = []
    size = float(shape.weights(1))
    for batch in BATCHES:
        spent = measure_models({"": model}, SIZES, CONTEXT, rounds, rows=batch, prefill=PREFILL)[""]
        for name, times in spent.items():
            tokens, cached, logits = (PREFILL, 0, 0) if name < 0 else (name, CONTEXT - 1, name)
            flops, moved = shape.chain(tokens, cached, logits, batch)
            q25, median, q75 = np.quantile(times, (0.25, 0.5, 0.75)).tolist()
            best = 1e3 * top.seconds(flops, moved, size)
            computing = flops / top.compute >= moved / top.bandwidth(size)
            row: Row = {"pass": f"prefill {PREFILL}" if name < 0 else plural(name, "token")}
            row |= {"rows": batch, "mflops": flops / 1e6, "mb": moved / 1e6, "intensity": flops / moved}
            row |= {"bound": "computing" if computing else "moving", "roofline": best}
            row |= {"median": median, "q25": q25, "q75": q75, "ratio": median / best}
            rows.append(row)
    return rows
