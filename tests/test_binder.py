"""Binder: its environment builds from `binder/` alone, decodes, and stays within its disk and memory.

The build follows repo2docker's steps: its own Jupyter packages, requirements.txt, postBuild at the root of
the repository, the server started by `start`. It runs them in a virtual environment, not in a conda
environment in an image. Not tested: the image itself, JupyterHub's part of the server, and PyTorch's index
wherever pip is configured to find torch's CPU wheel elsewhere (`find-links`). The sizes are printed unless
xdist runs the tests.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
import tomllib
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
BINDER = ROOT / "binder"
BOOKS = ("start", "explorer", "00_quickstart", "01_autoregressive")
MEMORY = 1e9  # bytes, for all processes; mybinder.org guarantees no more
DISK = 2.2e9  # bytes; PyPI's torch for Linux, with CUDA's libraries, would take several times as much
PATIENCE = 300  # seconds for one cell

# Packages of repo2docker's environment for Python 3.11 before any requirement (its release 2026.4.0).
SERVER = (
    "jupyterlab==4.4.9", "notebook==7.4.7", "jupyter_server==2.17.0", "jupyter-resource-usage==1.2.0",
    "ipykernel==7.0.1", "ipywidgets==8.1.7", "jupyter_client==8.6.3", "ipython==9.6.0",
)  # fmt: skip

# In the notebooks' kernel: the explorer on display decodes as if its button were pressed.
DECODE = """
explorer = {explorer}
for method in (None, "autoregressive"):
    explorer.run(method)
    assert explorer.wait(60) and not explorer.panel.error, explorer.panel.error
    assert explorer.results[-1].trace.texts[0].strip()
"""
EXPLORERS = {"start": "_", "explorer": "_"}


def requirements(lines: list[str]) -> dict[str, str]:
    """Package names in the requirements with their version specifiers; pip's options are left out."""
    from packaging.requirements import Requirement

    plain = [line.partition("#")[0].strip() for line in lines]
    asked = [Requirement(line) for line in plain if line and not line.startswith("-")]
    return {one.name: str(one.specifier) for one in asked}


def test_requirements_agree_with_the_package_and_its_constraints():
    text = (BINDER / "requirements.txt").read_text()
    here = requirements(text.splitlines())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = requirements([*project["dependencies"], *extras["run"], *extras["lab"], *extras["calibrate"]])
    assert not needed.keys() - here.keys(), "add these to binder/requirements.txt"
    pins = requirements((ROOT / "constraints.txt").read_text().splitlines())
    pins["torch"] += "+cpu"  # PyPI has no such label: only PyTorch's CPU index can serve it
    del pins["jupyterlab"]  # the server is repo2docker's
    both = here.keys() & pins.keys()
    assert {name: here[name] for name in both} == {name: pins[name] for name in both}
    assert "--extra-index-url https://download.pytorch.org/whl/cpu" in text.splitlines()


def run(command: list[str], cwd: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A command's output, both streams as one."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(command, cwd=cwd, env=environment, text=True, check=False, **streams)


def build(folder: Path) -> tuple[Path, Path, dict[str, str]]:
    """A copy of the repository and the environment built from its `binder/`: their folders, and variables."""
    source, prefix = folder / "source", folder / "environment"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".*", "__pycache__", "tests"))
    hidden = ("PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment["PATH"] = os.pathsep.join([str(prefix / "bin"), os.environ["PATH"]])
    environment |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_RETRIES": "0", "PIP_PROGRESS_BAR": "off"}
    environment["SPECVIZ_HOME"] = str(folder / "home")  # a Binder has no downloaded models
    environment.pop("SPECVIZ_KERNELS", None)
    assert run([sys.executable, "-m", "venv", str(prefix)], folder, environment).returncode == 0

    # Unlike repo2docker's, these calls do not precompile bytecode, which halves the time.
    pip = [str(prefix / "bin/pip"), "install", "--no-cache-dir", "--no-compile"]
    probe = run([*pip, "--no-deps", "platformdirs"], folder, environment)
    if probe.returncode:
        pytest.skip(f"no package index can be reached: {probe.stdout.strip().splitlines()[-1]}")
    done = run([*pip, *SERVER], folder, environment)
    assert done.returncode == 0, done.stdout[-3000:]
    done = run([*pip, "-r", "binder/requirements.txt"], source, environment)
    if done.returncode and "No matching distribution found for torch" in done.stdout and not reached():
        pytest.skip("torch's CPU build cannot be had: PyTorch's index cannot be reached")
    assert done.returncode == 0, done.stdout[-3000:]
    done = run(["bash", "binder/postBuild"], source, environment)
    assert done.returncode == 0, done.stdout[-3000:]
    assert "target passes" in done.stdout, "postBuild decodes"
    done = run([str(prefix / "bin/pip"), "check"], source, environment)
    assert done.returncode == 0, done.stdout
    return source, prefix, environment


def reached() -> bool:
    """Whether PyTorch's index is reachable."""
    try:
        urllib.request.urlopen("https://download.pytorch.org/whl/cpu/torch/", timeout=20).close()
    except OSError:
        return False
    return True


@contextmanager
def serve(
    folder: Path, source: Path, environment: dict[str, str]
) -> Iterator[tuple[Any, Callable[..., Any]]]:
    """The environment's JupyterLab, started by `binder/start`: its process, and a function to query it."""
    import psutil

    token = secrets.token_hex(16)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = {
        "JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces", "IPYTHONDIR": "ipython",
    }  # fmt: skip
    environment |= {name: str(folder / place) for name, place in places.items()}
    command = [
        "bash", "binder/start", "jupyter", "lab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}",
    ]  # fmt: skip

    def ask(method: str, path: str, /, **content: Any) -> Any:
        data = json.dumps(content).encode() if content else None
        request = urllib.request.Request(f"http://127.0.0.1:{port}/api/{path}", data, method=method)
        request.add_header("Authorization", f"token {token}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read() or "null")

    log = folder / "log.txt"
    with log.open("wb") as out:
        process = psutil.Popen(command, stdout=out, stderr=out, cwd=source, env=environment)
    try:
        begun = time.monotonic()
        while True:
            try:
                ask("GET", "status")
                break
            except OSError:
                if process.poll() is not None or time.monotonic() - begun > 120:
                    pytest.fail(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")
                time.sleep(0.2)
        yield process, ask
    finally:
        children = process.children(recursive=True)
        process.terminate()
        for left in psutil.wait_procs([process, *children], timeout=20)[1]:
            left.kill()


class Memory(threading.Thread):
    """The largest sum of a process tree's proportional set sizes (PSS), sampled every 0.1 s."""

    def __init__(self, process: Any) -> None:
        super().__init__(daemon=True)
        self.process, self.peak, self.stopped = process, 0, threading.Event()

    def run(self) -> None:
        while not self.stopped.wait(0.1):
            self.peak = max(self.peak, self.now())

    def now(self) -> int:
        """The current sum in bytes."""
        import psutil

        total = 0
        for one in [self.process, *self.process.children(recursive=True)]:
            try:
                total += one.memory_full_info().pss
            except (psutil.NoSuchProcess, psutil.AccessDenied):  # it has ended
                continue
        return total

    def __enter__(self) -> Memory:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.join()


def execute(book: Path, kernel: str, runtime: Path) -> None:
    """Run a notebook's cells, and those that `DECODE` adds, in a kernel that the server has started."""
    import nbformat
    from jupyter_client import BlockingKernelClient

    client = BlockingKernelClient(connection_file=str(runtime / f"kernel-{kernel}.json"))
    client.load_connection_file()
    client.start_channels(hb=False)  # a machine under load misses heartbeats
    shown = []
    try:
        client.wait_for_ready(timeout=60)
        cells = [cell.source for cell in nbformat.read(book, as_version=4).cells if cell.cell_type == "code"]
        if book.stem in EXPLORERS:
            # Right after the cell that shows the explorer, where `_` is that explorer.
            place = 1 + next(k for k, cell in enumerate(cells) if "sv.explore(" in cell)
            cells.insert(place, DECODE.format(explorer=EXPLORERS[book.stem]))
        for cell in cells:
            reply = client.execute_interactive(cell, timeout=PATIENCE, output_hook=shown.append)["content"]
            assert reply["status"] == "ok", f"{book.name}: {reply['ename']}: {reply['evalue']}\n{cell}"
    finally:
        client.stop_channels()
    warnings = [m["content"]["text"] for m in shown if m["content"].get("name") == "stderr"]
    assert not warnings, f"{book.name}: {warnings}"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that is removed afterwards: pytest would keep two gigabytes for each of three runs."""
    yield tmp_path
    # Not awaited: a disk that discards freed blocks takes up to two minutes.
    subprocess.Popen(["rm", "-rf", str(tmp_path)], start_new_session=True)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory is read from Linux's /proc")
@pytest.mark.skipif(
    f"python-{sys.version_info[0]}.{sys.version_info[1]}" != (BINDER / "runtime.txt").read_text().strip(),
    reason="Binder's environment is for the Python in binder/runtime.txt",
)
@pytest.mark.skipif(not (find_spec("jupyter_client") and find_spec("psutil")), reason="needs the test extra")
def test_it_builds_and_decodes_within_a_gigabyte(folder, capsys):
    begun = time.monotonic()
    source, prefix, environment = build(folder)
    built = time.monotonic() - begun
    rows = []
    with serve(folder, source, environment) as (process, ask):
        alone = Memory(process).now()
        for name in BOOKS:
            begun, path = time.monotonic(), f"notebooks/{name}.ipynb"
            wanted = {"path": path, "name": name, "type": "notebook", "kernel": {"name": "python3"}}
            with Memory(process) as memory:
                session = ask("POST", "sessions", **wanted)
                execute(source / path, session["kernel"]["id"], folder / "runtime")
            rows.append((name, memory.peak, time.monotonic() - begun))
            ask("DELETE", f"sessions/{session['id']}")
    disk = sum(file.lstat().st_blocks * 512 for file in prefix.rglob("*"))
    with capsys.disabled():
        print(f"\nBinder: built in {built:.0f} s, {disk / 1e6:.0f} MB on disk without unused bytecode")
        print(f"  peak memory in MB: {alone / 1e6:.0f} the server alone; with it")
        for name, peak, seconds in rows:
            print(f"  {peak / 1e6:.0f} {name} ({seconds:.0f} s)")
    assert disk < DISK
    peaks = [peak for _, peak, _ in rows]
    assert alone < min(peaks) and max(peaks) < MEMORY
