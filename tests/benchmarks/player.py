"""Measure the player in Chromium: how many bytes it sends, and how long opening and a step take.

The traces are synthetic: every cycle is a tree of tokens on ten levels, from several sources, with the
target's candidates at each node. A step lasts from a key press until the page is laid out again; frames
that the browser paints in between are not counted.
"""

from __future__ import annotations

import base64
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from specviz.errors import SpecvizError
from specviz.measure.report import Bar, Report
from specviz.trace import Recorder, Trace
from specviz.widgets import assets
from specviz.widgets.columns import Chunks, columns, pack
from specviz.widgets.page import START

from .front_end import LATER, first_size, sent_size

K = 5
VOCABULARY = 32_000
LEVELS = 10
WARM_UP = 30  # steps
SOURCES = ("store", "neighbour", "prompt", "ngram")
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
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


def synthetic(cycles: int, nodes: int, tokens: int | None = None) -> Trace:
    """Make up a trace of `cycles` cycles or up to `tokens` tokens; its drafts are trees of `nodes` tokens."""
    rng = np.random.default_rng(0)
    run = {
        "run": "synthetic", "method": "synthetic", "parameters": {"threshold": 0.05}, "sampling": {},
        "exactness": "exact up to ties", "model": {"name": "none"}, "draft": None, "tokenizer": "none",
        "eos": [0], "prompts": [{"tokens": [1] * 7}], "machine": {}, "threads": 1, "dtype": "float32",
        "versions": {}, "created": "", "timing": "none", "peak_memory": {},
    }  # fmt: skip
    recorder = Recorder(run, piece=lambda token: b" t%d" % token)
    depth = np.sort(np.arange(nodes) % min(LEVELS, nodes)) + 1
    above = np.searchsorted(depth, depth - 1)  # start of the level above; width is its size
    width = np.searchsorted(depth, depth) - above
    clock, emitted = 0.0, 0
    for number in range(cycles):
        parent = np.where(depth == 1, -1, above + np.floor(rng.random(nodes) ** 2 * width).astype(int))
        # as in a language, few tokens are common and many are rare
        token = np.minimum(rng.zipf(1.3, nodes) + 1, VOCABULARY - 1)
        score = rng.random(nodes) ** depth
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
        ends = number == cycles - 1 or (tokens is not None and emitted + len(out) >= tokens)
        spent = rng.uniform(0.5, 1.5, 4) * (0.003, 0.006, 0.0002, 0.0003)
        recorder.add(
            {
                "prompt": 0, "cycle": number, "context": 7 + emitted, "keep": emitted, "stop": "length",
                "end": "length" if ends else None, "depth": int(depth.max()), "width": int(width.max()),
                "start": clock, "duration": spent.sum() + 1e-4, "draft_time": spent[0],
                "forward_time": spent[1], "verify_time": spent[2], "commit_time": spent[3],
                "node_token": token, "node_parent": parent, "node_position": depth,
                "node_source": [SOURCES[k] for k in rng.integers(0, len(SOURCES), nodes)],
                "node_status": status.tolist(), "node_score": score, "node_q": rng.random(nodes),
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
        if ends:
            break
    return recorder.close()


def chromium() -> str:
    """Find Chromium's path.

    Raises
    ------
    SpecvizError
        If there is no Chromium.
    """
    named = (os.environ.get("TEST_BROWSER"), *BROWSERS)
    path = next((found for name in named if name and (found := shutil.which(name))), None)
    if path is None:
        raise SpecvizError(
            "views are measured in Chromium, and none is on the PATH: install one "
            "(apt-get install chromium-headless-shell), or name it in TEST_BROWSER"
        )
    return path


def _spent(session: Any) -> dict[str, float]:
    """Return the page's CPU seconds so far: of its main thread, and of scripts, styles and layout."""
    found = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    names = {"thread": ("ThreadTime",), "work": ("ScriptDuration", "RecalcStyleDuration", "LayoutDuration")}
    return {name: sum(found[part] for part in parts) for name, parts in names.items()}


def _measured(browser: Any, cycles: int, nodes: int, steps: int) -> dict[str, Any]:
    """Open a trace, step through it, and return its table row."""
    trace = synthetic(cycles, nodes)
    begun, spent = time.perf_counter(), time.process_time()
    data = pack(*columns(trace))
    chunk = pack(*Chunks(trace)[0])
    prepared, spent = time.perf_counter() - begun, time.process_time() - spent
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_content(PAGE)
    page.add_style_tag(content=assets.style("player"))
    texts = [base64.b64encode(b).decode("ascii") for b in (data, chunk)]
    page.evaluate(MODEL, [assets.script("player"), *texts, START])
    opened = page.evaluate(OPEN)
    page.evaluate(STEPS, WARM_UP)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = _spent(session)
    taken: list[float] = page.evaluate(STEPS, steps)
    each = {name: (value - before[name]) / steps * 1e3 for name, value in _spent(session).items()}
    page.close()
    return {
        "cycles": cycles, "nodes": nodes, "bytes": len(data) / 1e6, "chunk": len(chunk) / 1e3,
        "prepared": prepared, "cpu": spent, "opened": opened / 1e3,
        "median": float(np.median(taken)), "p95": float(np.quantile(taken, 0.95)),
        "work": each["work"], "thread": each["thread"],
    }  # fmt: skip


def bench(
    *,
    number: int = 5000,
    max_new_tokens: int = 64,
    rounds: int = 200,
    tick: Callable[[int, int, str], None] = lambda done, of, name: None,
) -> Report:
    """Measure the player on a long trace of trees, on one with trees twice as large, and on a short page.

    No model is loaded. Here `number` counts cycles, `max_new_tokens` the nodes of a tree, and `rounds` the
    steps.

    Raises
    ------
    SpecvizError
        If Playwright or Chromium is not installed.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise SpecvizError(
            "the player is measured with Playwright, which is not installed: pip install playwright"
        ) from None
    path = chromium()
    rows = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        for k, nodes in enumerate((max_new_tokens, 2 * max_new_tokens)):
            tick(k, 2, f"trees of {nodes} nodes")
            rows.append(_measured(browser, number if not k else max(1, number // 10), nodes, rounds))
        version = browser.version
        browser.close()
    tick(2, 2, "a page")
    with tempfile.TemporaryDirectory() as folder:
        page = synthetic(200, 4, tokens=200).to_html(Path(folder) / "page.html").stat().st_size / 1e6
    later = max(map(sent_size, LATER)) / 1e3
    row = rows[0]
    return Report(
        "player",
        f"The player on {number:,} cycles of {max_new_tokens}-node trees, and on larger trees",
        {"device": f"Chromium {version}, {platform.machine()}", "threads": 1, "dtype": "float32"},
        [
            ("cycles", "cycles", "{:,d}"), ("nodes", "nodes", "{:d}"), ("bytes", "first MB", "{:.2f}"),
            ("chunk", "chunk kB", "{:.0f}"), ("prepared", "Python s", "{:.2f}"),
            ("cpu", "its CPU s", "{:.2f}"),
            ("opened", "open s", "{:.2f}"), ("median", "step ms", "{:.1f}"), ("p95", "95% ms", "{:.1f}"),
            ("work", "its CPU ms", "{:.1f}"), ("thread", "with painting", "{:.1f}"),
        ],
        rows,
        [
            Bar("first send, MB", row["bytes"], 8, "at most"),
            Bar("open, s", row["opened"], 2, "at most"),
            Bar("median step, ms", row["median"], 16, "at most"),
            Bar("page of 200 tokens, MB", page, 1, "at most"),
            Bar("scripts and styles, player to explorer, kB", first_size() / 1e3, 190, "at most"),
            Bar("a later view's, as sent, kB", later, 40, "at most"),
        ],
        [
            "step: from a key press until the page is laid out, median over "
            f"{rounds} steps. Load of the machine at the end: {os.getloadavg()[0]:.1f} on "
            f"{os.cpu_count()} cores."
        ],
    )  # fmt: skip
