"""The roofline: rows hold the requested work, ceilings are rates, and unknown values are refused."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from tiny import llama

from specviz.errors import ParameterError
from specviz.measure.benches import ceilings, roofline
from specviz.metrics.costs import Shape


@pytest.fixture
def quick(monkeypatch):
    measure = ceilings.measure
    small = {"block": 1 << 16, "rounds": 2}
    monkeypatch.setattr(ceilings, "LEAST", 1e-4)
    monkeypatch.setitem(ceilings.SIDE, "cpu", 64)
    monkeypatch.setattr(
        ceilings, "measure", lambda device, dtype, sizes, rounds: measure(device, dtype, sizes, **small)
    )


def test_the_bench_prints_every_kind_of_pass(quick):
    model, draft = (llama(seed, max_length=160, name=f"llama-{seed}") for seed in (0, 1))
    found = roofline.bench(model, [draft], rounds=2)
    assert len(found.rows) == 2 * 2 * 5
    shape = Shape(model.geometry)
    row = next(r for r in found.rows if r["pass"] == "4 tokens" and r["rows"] == 8)
    assert row["mflops"] * 1e6 == pytest.approx(8 * shape.flops(4, 4 * 127 + 10, 4))
    prefill = next(r for r in found.rows if r["pass"] == "prefill 64" and r["rows"] == 1)
    assert prefill["mflops"] * 1e6 == pytest.approx(shape.flops(64, 64 * 65 / 2, 0)), "no logits are read"
    assert set(found.setting["ceilings"]["cache"]) == {int(shape.weights(1))}
    assert row["ratio"] == pytest.approx(row["median"] / row["roofline"])
    named = {row["what"] for row in found.parts[0].rows}
    assert named == {"memory", "cache", "copy", "triad", "compute"}
    for width in (80, 120):
        console = Console(width=width, file=io.StringIO())
        found.show(console)
        assert any(
            "prefill 64" in line and "llama-1" in line for line in console.file.getvalue().splitlines()
        )


def test_what_cannot_be_counted_is_refused():
    short = llama(0)
    with pytest.raises(ParameterError, match="needs 144 tokens"):
        roofline.bench(short, [])
    odd = llama(0, max_length=160)
    odd.geometry = None
    with pytest.raises(ParameterError, match="costs of llama-0 are unknown"):
        roofline.bench(odd, [])
