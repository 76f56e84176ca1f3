"""Measures the player in a browser: bytes sent first, time to open, time a step.

    python tests/browser/measure_player.py [--cycles 5000] [--nodes 64] [--steps 200]

The trace is synthetic: every cycle a tree of `nodes` tokens with five candidates each. A step is a key press
until the page is laid out again; frames that the browser paints in between are not counted.
"""

from __future__ import annotations

import argparse
import base64
import os
import platform
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1]))
from traces import metadata

from specviz.bench.report import Bar, Report
from specviz.trace import Recorder, Trace
from specviz.widgets import assets
from specviz.widgets.columns import Chunks, columns, pack
from specviz.widgets.page import START

K = 5
VOCABULARY = 32_000
PAGE = "<!doctype html><meta charset=utf-8><body></body>"
MODEL = """([source, data, chunk, start]) => {
  const bytes = (text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
  const state = { ...start, theme: "light", data: bytes(data), chunk: bytes(chunk) }, heard = {};
  window.model = {
    get: (name) => state[name],
    set: (name, value) => { state[name] = value; for (const act of heard[`change:${name}`] ?? []) act(); },
    on: (name, act) => (heard[name] ??= []).push(act), off: () => {}, save_changes: () => {},
  };
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  return import(url).then((m) => { window.view = m.default; });
}"""
OPEN = """() => {
  const begun = performance.now();
  window.view.render({ model: window.model, el: document.body });
  document.body.offsetHeight;
  return performance.now() - begun;
}"""
STEPS = """async (count) => {
  const root = document.querySelector(".player"), found = [];
  for (let i = 0; i < count; i++) {
    const begun = performance.now();
    root.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowRight", bubbles: true }));
    document.body.offsetHeight;
    found.push(performance.now() - begun);
    await new Promise(requestAnimationFrame);
  }
  return found;
}"""


def synthetic(cycles: int, nodes: int) -> Trace:
    """A run of `cycles` cycles whose drafts are trees of `nodes` tokens on four levels."""
    rng = np.random.default_rng(0)
    recorder = Recorder(metadata("tree"), piece=lambda token: b" t%d" % token)
    parent = np.array([-1 if i < nodes // 8 else (i - nodes // 8) // 2 for i in range(nodes)])
    depth = np.ones(nodes, int)
    for i in np.flatnonzero(parent >= 0):
        depth[i] = depth[parent[i]] + 1
    clock, emitted = 0.0, 0
    for number in range(cycles):
        # words as a language has them: few that are common, many that are rare
        token = np.minimum(rng.zipf(1.3, nodes) + 1, VOCABULARY - 1)
        status = np.full(nodes, "unjudged", object)
        path: list[int] = []
        below = np.flatnonzero(parent == -1)
        while len(below):
            chosen = int(rng.integers(0, 2 * len(below)))
            status[below] = "rejected"
            if chosen >= len(below):
                break
            path.append(int(below[chosen]))
            status[path[-1]] = "accepted"
            below = np.flatnonzero(parent == path[-1])
        out = [*token[path].tolist(), 2 + number % 99]
        spent = rng.uniform(0.5, 1.5, 4) * (0.003, 0.006, 0.0002, 0.0003)
        recorder.add(
            {
                "prompt": 0, "cycle": number, "context": 7 + emitted, "keep": emitted, "stop": "length",
                "end": "length" if number == cycles - 1 else None, "depth": int(depth.max()),
                "width": nodes // 2,
                "start": clock, "duration": spent.sum() + 1e-4, "draft_time": spent[0],
                "forward_time": spent[1], "verify_time": spent[2], "commit_time": spent[3],
                "node_token": token, "node_parent": parent, "node_position": depth,
                "node_source": ["model"] * nodes, "node_status": status.tolist(), "node_q": rng.random(nodes),
                "node_p": rng.random(nodes), "node_rank": rng.integers(0, 5000, nodes),
                "node_confidence": rng.random(nodes), "node_entropy": rng.random(nodes),
                "node_margin": rng.random(nodes), "node_met": np.ones(nodes, bool),
                "node_top_token": np.minimum(rng.zipf(1.3, nodes * K) + 1, VOCABULARY - 1),
                "node_top_p": rng.random(nodes * K), "pred_node": np.arange(-1, nodes),
                "pred_entropy": rng.random(nodes + 1), "pred_top_p": rng.random((nodes + 1) * K), "top_k": K,
                "pred_top_token": np.minimum(rng.zipf(1.3, (nodes + 1) * K) + 1, VOCABULARY - 1),
                "out_position": np.arange(emitted, emitted + len(out)), "out_token": out,
                "out_origin": ["draft"] * len(path) + ["correction"], "out_p": rng.random(len(out)),
                "pass_model": ["draft", "target"], "pass_rows": [1, 1], "pass_tokens": [nodes, nodes + 1],
                "pass_start": [clock, clock + spent[0]], "pass_duration": [spent[0], spent[1]],
            }
        )  # fmt: skip
        clock += spent.sum() + 2e-4
        emitted += len(out)
    return recorder.close()


def _spent(session: Any) -> dict[str, float]:
    """CPU seconds of the page's main thread so far: in all, and in scripts, styles and layout."""
    found = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    names = {"thread": ("ThreadTime",), "work": ("ScriptDuration", "RecalcStyleDuration", "LayoutDuration")}
    return {name: sum(found[part] for part in parts) for name, parts in names.items()}


def measure(cycles: int, nodes: int, steps: int) -> Report:
    """The report of one trace."""
    from playwright.sync_api import sync_playwright

    trace = synthetic(cycles, nodes)
    begun, spent = time.perf_counter(), time.process_time()
    data = pack(*columns(trace))
    chunk = pack(*Chunks(trace)[0])
    prepared, spent = time.perf_counter() - begun, time.process_time() - spent
    named = (os.environ.get("TEST_BROWSER"), "chromium-headless-shell", "chromium")
    path = next(found for name in named if name and (found := shutil.which(name)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.set_content(PAGE)
        page.add_style_tag(content=assets.style("player"))
        texts = [base64.b64encode(b).decode("ascii") for b in (data, chunk)]
        page.evaluate(MODEL, [assets.script("player"), *texts, START])
        opened = page.evaluate(OPEN)
        page.evaluate(STEPS, 30)
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        before = _spent(session)
        taken: list[float] = page.evaluate(STEPS, steps)
        each = {name: (value - before[name]) / steps * 1e3 for name, value in _spent(session).items()}
        version = browser.version
        browser.close()
    row: dict[str, Any] = {
        "cycles": cycles, "nodes": nodes, "bytes": len(data) / 1e6, "chunk": len(chunk) / 1e3,
        "prepared": prepared, "cpu": spent, "opened": opened / 1e3,
        "median": float(np.median(taken)), "p95": float(np.quantile(taken, 0.95)),
        "work": each["work"], "thread": each["thread"],
    }  # fmt: skip
    load = os.getloadavg()[0]
    return Report(
        "player",
        f"The player on {cycles:,} cycles of {nodes}-node trees",
        {"device": f"Chromium {version}, {platform.machine()}", "threads": 1, "dtype": "float32"},
        [
            ("cycles", "cycles", "{:,d}"), ("nodes", "nodes", "{:d}"), ("bytes", "first MB", "{:.2f}"),
            ("chunk", "chunk kB", "{:.0f}"), ("prepared", "Python s", "{:.2f}"),
            ("cpu", "its CPU s", "{:.2f}"),
            ("opened", "open s", "{:.2f}"), ("median", "step ms", "{:.1f}"), ("p95", "95% ms", "{:.1f}"),
            ("work", "its CPU ms", "{:.1f}"), ("thread", "with painting", "{:.1f}"),
        ],
        [row],
        [
            Bar("first send, MB", row["bytes"], 8, "at most"),
            Bar("open, s", row["opened"], 2, "at most"),
            Bar("median step, ms", row["median"], 16, "at most"),
        ],
        [f"Load of the machine at the end: {load:.1f} on {os.cpu_count()} cores."],
    )  # fmt: skip


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("cycles", 5000), ("nodes", 64), ("steps", 200)):
        options.add_argument(f"--{name}", type=int, default=default)
    report = measure(**vars(options.parse_args()))
    report.show(Console())
    return 0 if report.held else 1


if __name__ == "__main__":
    sys.exit(main())
