"""How soon ``specviz app`` shows a saved trace: from a key press on its name until the player is laid out."""

from __future__ import annotations

import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import specviz
from specviz.errors import SpecvizError
from specviz.measure.report import Bar, Report, Tick

from .player import chromium

EXAMPLES = ("autoregressive", "prompt_lookup", "unispec")  # bundled traces
SOON = 1.5  # seconds until a saved trace is shown
SHOWN = """(before) => {
  const tree = document.querySelector(".sv.player .tree");
  return tree && !before.some((player) => player.contains(tree)) && tree.getBoundingClientRect().height > 0;
}"""
PATIENCE = 120.0  # seconds for the app to start


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve the app on a folder of traces; yield its address, with the token."""
    log, own = folder.with_name("log"), folder.with_name("own")
    own.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "specviz", "app", str(folder), "--model", "town", "--no-browser"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--port", str(port)], stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            env=os.environ | {"TMPDIR": str(own), "JUPYTER_CONFIG_DIR": str(own / "c")},
            # Background jobs of a shell ignore Ctrl-C, and their children inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
    begun = time.monotonic()
    try:
        while not (address := re.search(r"http://127\S+token=\S+", log.read_text())):
            if process.poll() is not None or time.monotonic() - begun > PATIENCE:
                raise SpecvizError(f"the app does not begin: {log.read_text()[-200:]}")
            time.sleep(0.1)
        yield address[0]
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def bench(*, rounds: int = 10, tick: Tick = lambda *_: None) -> Report:
    """Open the bundled traces in the app, one after another, `rounds` times.

    Raises
    ------
    SpecvizError
        If no browser is installed, or the app does not start.
    """
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise SpecvizError(
            "the app is measured with Playwright, which is not installed: pip install playwright"
        ) from None
    path = chromium()
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        traces = Path(folder) / "traces"
        traces.mkdir()
        for name in EXAMPLES:
            shutil.copy(specviz.example(name), traces / f"{name}.parquet")
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        with served(traces) as address:
            took = _opened(browser, address, rounds, tick)
        version = browser.version
        browser.close()
    rows = [{"trace": name, "median": median(each), "slowest": max(each)} for name, each in took.items()]
    slowest = max(row["slowest"] for row in rows)
    return Report(
        "app",
        f"Saved traces in the app, {rounds} times each",
        {"device": f"Chromium {version}, {platform.machine()}", "threads": 1, "dtype": "float32"},
        [("trace", "trace", ""), ("median", "median s", "{:.2f}"), ("slowest", "slowest s", "{:.2f}")],
        rows,
        [Bar("s until a saved trace is shown, the slowest", slowest, SOON, "at most")],
        ["From a key press on the trace's name until its player is laid out; the first time counts."],
    )


def _opened(browser: Any, address: str, rounds: int, tick: Tick) -> dict[str, list[float]]:
    """Seconds until each trace is shown, per round."""
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.set_default_timeout(1000 * PATIENCE)
    page.goto(address)
    page.wait_for_selector(".sv.explore tbody tr")  # the explorer decodes as soon as it is shown
    page.locator(".sv.app").get_by_role("button", name="Traces").press("Enter")
    took: dict[str, list[float]] = {name: [] for name in EXAMPLES}
    for turn in range(rounds):
        for number, name in enumerate(EXAMPLES):
            tick(turn * len(EXAMPLES) + number, rounds * len(EXAMPLES), name)
            button = page.get_by_role("button", name=f"{name}.parquet")
            button.wait_for()
            before = page.locator(".sv.player").element_handles()
            begun = time.perf_counter()
            button.press("Enter")
            page.wait_for_function(SHOWN, arg=before)
            took[name].append(time.perf_counter() - begun)
    return took
