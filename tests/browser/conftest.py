"""A real browser for these tests: Chromium driven by Playwright, JupyterLab on a loopback port, axe-core.

Any fault of a page fails its test: a request to another host, a console error, an uncaught error, a
dialog. `SHOTS=DIR` writes a picture of each view into DIR, light and dark, for visual inspection.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

BOOKS = Path(__file__).parents[2] / "notebooks"
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--no-first-run",
    "--force-color-profile=srgb",
    # No host name is resolved, whatever a page requests; the servers' address needs no resolving.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]
LOOPBACK = "127.0.0.1"
PATIENCE = 90  # seconds until a wait counts as failed; a quiet machine needs a few
AXE = "axe-core@4.14.1"  # MPL-2.0; fetched, not shipped

# JupyterLab's execution indicator shows idle before a kernel exists; this does not.
IDLE = """() => {
  const context = window.jupyterapp?.shell?.currentWidget?.sessionContext, kernel = context?.session?.kernel;
  return !!context && context.isReady && !context.pendingInput
    && kernel?.connectionStatus === "connected" && kernel.status === "idle";
}"""
THEME = "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })"
RUN_ALL = """() => {
  window.ran = null;
  window.jupyterapp.commands.execute("notebook:run-all-cells").then(
    (all) => { window.ran = all; }, (error) => { window.ran = String(error); });
}"""
FOUND = """async (selector) => (await axe.run(selector)).violations
  .filter((fault) => ["serious", "critical"].includes(fault.impact))
  .flatMap((fault) => fault.nodes.map((node) => {
    const said = (node.any[0] ?? node.all[0] ?? node.none[0])?.message ?? fault.help;
    return `${fault.id}: ${node.target.join(" ")}: ${said}`;
  }))"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Rerun failed tests once, and list them: a busy machine can delay a page by seconds at any step."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of the Chromium executable."""
    named = (os.environ.get("TEST_BROWSER"), *NAMES)
    path = next((found for name in named if name and (found := shutil.which(name))), None)
    if path is None:
        pytest.skip(f"no Chromium: none of {', '.join(NAMES)} is on the PATH, and TEST_BROWSER names none")
    return path


@pytest.fixture(scope="module")  # not longer: Playwright's event loop must not outlive the tests that need it
def browser(chromium: str) -> Iterator[Any]:
    """Headless Chromium without a network."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright (the test extra)")
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield running
        running.close()


def inside(url: str) -> bool:
    """Whether a request to this URL stays on this machine."""
    parts = urlsplit(url)
    return parts.scheme in ("file", "blob", "data", "about") or parts.hostname == LOOPBACK


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """``open_page(dark=False, allowed=(), **context)``: a page whose every fault fails the test.

    Requests for `allowed`, exact addresses of style sheets, get an empty answer and are not faults.
    """
    wrong: list[str] = []
    contexts: list[Any] = []

    def opened(dark: bool = False, allowed: tuple[str, ...] = (), **more: Any) -> Any:
        more = {"viewport": {"width": 1280, "height": 1000}, **more}
        context = browser.new_context(color_scheme="dark" if dark else "light", **more)
        contexts.append(context)
        context.set_default_timeout(1000 * PATIENCE)
        for url in allowed:
            context.route(url, lambda route: route.fulfill(body="", content_type="text/css"))
        known = lambda url: inside(url) or url in allowed
        context.on("request", lambda r: None if known(r.url) else wrong.append(f"request: {r.url}"))
        told = lambda m: wrong.append(f"console: {m.text} ({m.location['url']})")
        context.on("console", lambda m: told(m) if m.type == "error" else None)
        context.on("weberror", lambda e: wrong.append(f"uncaught: {e.error}"))
        context.on("dialog", lambda d: (wrong.append(f"dialog: {d.message}"), d.dismiss()))
        page = context.new_page()
        page.on("websocket", lambda w: None if inside(w.url) else wrong.append(f"socket: {w.url}"))
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not wrong, "\n".join(wrong)


@pytest.fixture
def shoot() -> Callable[[Any, str], None]:
    """``shoot(page or locator, name)``: take a picture, if `SHOTS` names a folder."""
    folder = os.environ.get("SHOTS")

    def picture(what: Any, name: str) -> None:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            whole = {"full_page": True} if hasattr(what, "goto") else {}
            what.screenshot(path=Path(folder) / f"{name}.png", **whole)

    return picture


# ---------------------------------------------------------------- servers


@contextmanager
def server(home: Path, module: str, arguments: list[str], path: str = "/api/status") -> Iterator[str]:
    """A Jupyter server with its own settings and folders; yields its address, stops it afterwards."""
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        port = free.getsockname()[1]
    config = home / "config"
    config.mkdir()
    others = ("voila.server_extension", "jupyterlab_jupytext", "jupyter_server_terminals")
    (config / "jupyter_server_config.json").write_text(
        json.dumps({"ServerApp": {"jpserver_extensions": dict.fromkeys(others, False)}})
    )
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(config),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
        "OMP_NUM_THREADS": "1",
    }
    log = home / "log.txt"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", module, "--no-browser", f"--port={port}", *arguments],
            stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=home, start_new_session=True,
        )  # fmt: skip
    address, begun = f"http://{LOOPBACK}:{port}", time.monotonic()
    try:
        while True:
            try:
                urllib.request.urlopen(address + path, timeout=5).close()
                break
            except urllib.error.HTTPError:  # it answers
                break
            except OSError:
                if process.poll() is not None or time.monotonic() - begun > PATIENCE:
                    pytest.fail(f"{module} did not start:\n{log.read_text()[-2000:]}")
                time.sleep(0.1)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture(scope="session")
def lab(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Path]]:
    """JupyterLab: its address, its token, and the folder that it serves."""
    pytest.importorskip("jupyterlab", reason="needs jupyterlab (the test extra)")
    home, root = tmp_path_factory.mktemp("lab"), tmp_path_factory.mktemp("served")
    settings = home / "settings/@jupyterlab/apputils-extension"
    settings.mkdir(parents=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
    token = secrets.token_hex(16)
    arguments = [
        "--allow-root", f"--ServerApp.ip={LOOPBACK}", "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={root}", f"--IdentityProvider.token={token}",
        "--LabApp.expose_app_in_browser=True", "--LabApp.extension_manager=readonly",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]  # fmt: skip
    with server(home, "jupyterlab", arguments) as address:
        yield address, token, root


@pytest.fixture(scope="session")
def set_theme() -> Callable[[Any, bool], None]:
    """``set_theme(page, dark)``: JupyterLab does not follow the system's theme, so set both."""

    def chosen(page: Any, dark: bool) -> None:
        page.emulate_media(color_scheme="dark" if dark else "light")
        page.evaluate(THEME, "JupyterLab Dark" if dark else "JupyterLab Light")
        light = "false" if dark else "true"
        page.wait_for_selector(f"body[data-jp-theme-light='{light}']", state="attached")

    return chosen


@pytest.fixture
def run_notebook(
    open_page: Callable[..., Any], lab: tuple[str, str, Path], set_theme: Callable[[Any, bool], None]
) -> Callable[..., Any]:
    """``run_notebook(path, dark=False)``: a copy's page in JupyterLab, all cells run without an error."""
    address, token, root = lab

    def run(source: Path, dark: bool = False) -> Any:
        name = f"{secrets.token_hex(4)}-{source.name}"
        shutil.copy(source, root / name)
        if (source.parent / "stills").exists():
            shutil.copytree(source.parent / "stills", root / "stills", dirs_exist_ok=True)
        page = open_page(dark, viewport={"width": 1280, "height": 1500})
        page.goto(f"{address}/lab/tree/{name}?token={token}&reset", wait_until="domcontentloaded")
        page.wait_for_function(IDLE)
        set_theme(page, dark)  # JupyterLab's server remembers the last choice
        page.evaluate(RUN_ALL)
        page.wait_for_function("() => window.ran !== null")
        failed = page.locator(".jp-OutputArea-output[data-mime-type$='stderr']").all_inner_texts()
        assert page.evaluate("window.ran") is True, f"a cell of {source.name} failed: {failed}"
        page.wait_for_function(IDLE)
        return page

    return run


@pytest.fixture
def serve_page(chromium: str, tmp_path: Path) -> Iterator[Callable[[Path], str]]:
    """``serve_page(notebook)``: the address of a notebook as a page, under Voila."""
    pytest.importorskip("voila", reason="needs voila (the test extra)")
    running = ExitStack()
    arguments = [
        f"--Voila.ip={LOOPBACK}",
        # jupytext's front end supports only JupyterLab; Voila logs an error on loading it
        "--VoilaConfiguration.extension_denylist=jupyterlab-jupytext",
    ]
    yield lambda book: running.enter_context(server(tmp_path, "voila", [*arguments, str(book)]))
    running.close()


# ---------------------------------------------------------------- accessibility


@pytest.fixture(scope="session")
def axe(request: pytest.FixtureRequest) -> Callable[..., list[str]]:
    """``axe(page, selector)``: serious and critical violations below the selector, one per line.

    axe-core is fetched from npm once and kept in pytest's cache; if neither has it, the calling test is
    skipped.
    """

    @cache
    def text() -> str:
        folder = request.config.cache.mkdir(AXE.replace("@", "-"))
        source = folder / "node_modules/axe-core/axe.min.js"
        if not source.exists():
            npm = shutil.which("npm")
            if npm is None:
                pytest.skip("axe-core is not in pytest's cache, and there is no npm to fetch it")
            call = [npm, "install", f"--prefix={folder}", "--no-audit", "--no-fund", "--ignore-scripts", AXE]
            done = subprocess.run(call, capture_output=True, text=True, timeout=120, check=False)
            if done.returncode:
                pytest.skip(f"npm could not fetch {AXE}: {done.stderr.strip().splitlines()[-1:]}")
        return source.read_text(encoding="utf8")

    def check(page: Any, selector: str) -> list[str]:
        page.evaluate(f"() => {{ if (!window.axe) {{ {text()} }} }}")
        return page.evaluate(FOUND, selector)

    return check
