"""Measure the host's cost of a tree: building it from the store, and updating the store from the pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from specviz import methods
from specviz.loop import Run, generate
from specviz.measure.prompts import first_turns
from specviz.measure.report import Bar, Report
from specviz.measure.timing import practice, quiet_clock, setting, settled, synchroniser
from specviz.methods import Session
from specviz.methods.sampling import Sampling
from specviz.suites import spread

STORES = ("token_recycling", "unispec")
LARGE = 150_000
SHARE, MOST = 0.10, 1.0
WARM = 35
PARTS = ("draft", "learn", "verify")
COLUMNS = [
    ("method", "method", ""),
    ("what", "on", ""),
    ("nodes", "nodes", "{:.0f}"),
    ("draft", "draft ms", "{:.3f}"),
    ("learn", "learn ms", "{:.3f}"),
    ("both", "both ms", "{:.3f}"),
    ("verify", "verify ms", "{:.3f}"),
    ("cycle", "cycle ms", "{:.2f}"),
    ("share", "both/cycle", "{:.1%}"),
]
NOTES = [
    "draft: building the tree. learn: writing what the pass taught into the store. verify: judging, and "
    "finding each node's top-k on the device.",
    "Texts: means over the cycles of a warm run. Store alone: medians, with a full store, random successors, "
    "logits of random numbers, and no threshold, so that every node is there.",
]


def bench(
    model: Any,
    drafts: list[Any],
    entries: list[dict[str, Any]],
    *,
    number: int = 14,
    max_new_tokens: int = 64,
    rounds: int = 51,
    size: int = 128,
    tick: Callable[[int, int, str], None] = lambda done, of, name: None,
) -> Report:
    """Time trees of up to `size` nodes: on texts, and without a model at its vocabulary and at 150 k.

    Bars: draft and learn take at most 10 % of the cycle on texts, and at most 1 ms at a vocabulary of 150 k.
    """
    found = [name for name in STORES if name in methods.names()]
    rows, bars = [], []
    for at, name in enumerate(found):
        rows.append(texts(model, entries, name, number, max_new_tokens, size))
        bars.append(Bar(f"{name}: draft and learn over the cycle", rows[-1]["share"], SHARE, "at most"))
        for vocabulary in (model.vocabulary, LARGE):
            rows.append(alone(name, vocabulary, size, rounds, model.device))
        bars.append(Bar(f"{name}: draft and learn at V = {LARGE:,}, ms", rows[-1]["both"], MOST, "at most"))
        tick(at + 1, len(found), name)
    return Report(
        "stores",
        f"Trees of up to {size} nodes from a store, {model.name}",
        setting(model, [], prompts=number, max_new_tokens=max_new_tokens, rounds=rounds, size=size,
                clock=quiet_clock(model.device)[1]),
        COLUMNS, rows, bars, list(NOTES),
    )  # fmt: skip


def texts(
    model: Any, entries: list[dict[str, Any]], name: str, prompts: int, length: int, size: int
) -> dict[str, Any]:
    """Time the method's parts in a warm decode."""
    method = methods.find(name)(draft_size=size)
    for _ in Run(model, practice(model, WARM), method, record=None, max_new_tokens=length):
        pass
    chosen = first_turns(model, spread(entries, prompts))
    # The record times cycles by the wall clock, so the parts must use it, too.
    with stopwatch(method, time.perf_counter) as spent, settled():
        trace = generate(model, chosen, method, max_new_tokens=length)
    steps = trace.cycles[trace.cycles["cycle"] > 0]
    parts = {part: 1e3 * sum(seconds) / len(steps) for part, seconds in spent.items()}
    cycle = 1e3 * float(steps["duration"].mean())
    return _row(name, "texts", float(steps["sent"].mean()), parts, cycle)


def alone(name: str, vocabulary: int, size: int, rounds: int, device: Any) -> dict[str, Any]:
    """Time cycles without a model: a full store, and random logits for a pass."""
    rng = np.random.default_rng(0)
    kind = methods.find(name)
    values = {p.name: 0.0 for p in kind.parameters if p.name == "threshold"}
    method: Any = kind(draft_size=size, **values)
    target = SimpleNamespace(vocabulary=vocabulary)
    nothing: Any = None
    method.start(Session([1], Sampling(), target, None, frozenset(), size, nothing, nothing))
    store = method.store
    store.tokens[:] = rng.integers(0, vocabulary, store.tokens.shape)
    if hasattr(store, "p"):
        store.p[:] = np.sort(rng.dirichlet(np.full(store.p.shape[1], 0.5), vocabulary))[:, ::-1]
    logits = torch.from_numpy(rng.normal(0, 3, (size + 1, vocabulary)).astype(np.float32)).to(device)
    wait = synchroniser(device)
    nodes = []
    with stopwatch(method, quiet_clock(device)[0], wait) as spent, settled(), torch.inference_mode():
        for _ in range(rounds + 3):  # the first few warm up
            draft = method.draft(size)
            verdict = method.verify(draft, logits[: len(draft) + 1])
            method.learn(draft, None, verdict)
            nodes.append(len(draft))
    parts = {part: 1e3 * float(np.median(seconds[3:])) for part, seconds in spent.items()}
    return _row(name, f"V = {vocabulary:,}", float(np.mean(nodes)), parts, None)


def _row(name: str, what: str, nodes: float, parts: dict[str, float], cycle: float | None) -> dict[str, Any]:
    both = parts["draft"] + parts["learn"]
    share = None if cycle is None else both / cycle
    return {
        "method": name,
        "what": what,
        "nodes": nodes,
        **parts,
        "both": both,
        "cycle": cycle,
        "share": share,
    }


@contextmanager
def stopwatch(
    method: Any, clock: Callable[[], float], wait: Callable[[], None] = lambda: None
) -> Iterator[dict[str, list[float]]]:
    """Time each call of a method's parts, and yield the seconds by part."""
    spent: dict[str, list[float]] = {part: [] for part in PARTS}

    def timed(part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any) -> Any:
            wait()
            begin = clock()
            found = call(*given)
            wait()
            spent[part].append(clock() - begin)
            return found

        return run

    for part in PARTS:
        setattr(method, part, timed(part, getattr(method, part)))
    try:
        yield spent
    finally:
        for part in PARTS:
            delattr(method, part)
