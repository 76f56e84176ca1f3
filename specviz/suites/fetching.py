"""Files of third-party suites: given locally, or fetched from the hub or the web and kept if complete."""

from __future__ import annotations

import errno
import os
import re
import shutil
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

from specviz.errors import PromptError, one_line
from specviz.files import replacing
from specviz.paths import expanded, home

FOLDER = "SPECVIZ_SUITES"  # the environment variable that names another folder
SECONDS = 30  # timeout of a silent server
# The hub keeps the Parquet files that it made from script-based data sets in the second one.
REVISIONS = ("main", "refs/convert/parquet")
# Errors of this disk, not of the publisher.
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)
PART = re.compile(r"-(\d{5})-of-(\d{5})\.")


@dataclass(frozen=True)
class File:
    """One or more files of a suite, where their publisher keeps them.

    Parameters
    ----------
    pattern : str
        A regular expression that its path matches, in the hub's repository or in a given folder.
    repo : str, optional
        The data set on the Hugging Face hub.
    url : str, optional
        Its address if there is no repository.
    columns : tuple of str
        Columns to fetch from Parquet files that hold more than text.
    rows : int, optional
        With `columns`: this many first rows are enough, and so is one of several parts.
    whole : bool
        Whether a given path is used as it is (an archive, or the folder that it unpacks to).
    least : int
        Least number of files on the hub; the cache of the hub's client may hold only some of them.
    """

    pattern: str
    repo: str | None = None
    url: str | None = None
    columns: tuple[str, ...] = ()
    rows: int | None = None
    whole: bool = False
    least: int = 1

    @property
    def home(self) -> str:
        """Its location, in words."""
        return self.url or f"{self.repo} on the Hugging Face hub"

    def among(self, names: Iterable[str]) -> list[str]:
        """The matching names, in order; none if one of several parts is missing."""
        matching = sorted(name for name in names if re.search(self.pattern, name))
        if self.rows is not None:
            return matching[:1]
        parts = [match for name in matching if (match := PART.search(name))]
        return [] if any(len(matching) < int(match[2]) for match in parts) else matching


def folder() -> Path:
    """Folder for fetched files: ``SPECVIZ_SUITES``, or one in `specviz.paths.home`.

    Files that the hub's client fetches whole are kept in its own cache.
    """
    if os.environ.get(FOLDER):
        return expanded(os.environ[FOLDER])
    return home() / "suites"


def given(file: File, path: Path, suite: str) -> list[Path]:
    """Find the file in a path that the user gave: the path itself, or the matching files of a folder.

    Raises
    ------
    PromptError
        If the path does not exist or has no such file.
    """
    if not path.exists():
        raise PromptError(f"there is no {path} to read {suite} from")
    if not path.is_dir() or file.whole:
        return [path]
    names = file.among(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
    if not names:
        raise PromptError(f"{path} has no file of {suite} as in {file.home} (a path like {file.pattern})")
    return [path / name for name in names]


def fetch(file: File, suite: str) -> list[Path]:
    """Paths of the file on this disk, fetched from the network if it is not cached.

    Raises
    ------
    PromptError
        If it is neither cached nor reachable, or huggingface_hub is needed and not installed.
    """
    if paths := cached(file):
        return paths
    if file.repo is None:
        return [_from_web(file, suite)]
    try:
        import huggingface_hub  # noqa: F401
    except ImportError:
        raise PromptError(
            f"{suite} is fetched from the Hugging Face hub: pip install huggingface_hub, or give a local "
            f"copy: {suite}=PATH"
        ) from None
    return [_columns(file, suite)] if file.columns else _from_hub(file, suite)


def cached(file: File) -> list[Path]:
    """Paths of the file if it was fetched before; otherwise none."""
    if file.repo is None or file.columns:
        path = _kept(file)
        return [path] if path.exists() else []
    for revision in REVISIONS:
        with suppress(Exception):  # no client, or not cached; its exception differs between versions
            from huggingface_hub import snapshot_download

            here = Path(
                snapshot_download(
                    file.repo, repo_type="dataset", revision=revision, local_files_only=True,
                    allow_patterns=[],  # fetch nothing: whether the cache has enough is checked below
                )
            )  # fmt: skip
            names = file.among(p.relative_to(here).as_posix() for p in here.rglob("*") if p.is_file())
            if len(names) >= file.least:
                return [here / name for name in names]
    return []


def _kept(file: File) -> Path:
    """Path in our own folder of a file from the web, or of some columns of one on the hub."""
    if file.url is not None:
        return folder() / re.sub(r"[^\w.]+", "-", file.url.partition("://")[2])
    name = re.sub(r"\W+", "-", f"{file.repo} {file.pattern} {' '.join(file.columns)}").strip("-")
    return folder() / f"{name}.parquet"


def single(paths: list[Path]) -> Path:
    """The only path, for a suite that is read from one file.

    Raises
    ------
    PromptError
        If several files of a given folder match.
    """
    if len(paths) > 1:
        raise PromptError(f"{len(paths)} files match, such as {paths[0]} and {paths[1]}: name one of them")
    return paths[0]


def forget(path: Path) -> None:
    """Delete a bad file from our cache; the hub's client checks its own."""
    if folder() in path.parents:
        with suppress(OSError):
            path.unlink()


def _from_hub(file: File, suite: str) -> list[Path]:
    from huggingface_hub import hf_hub_download

    assert file.repo is not None
    revision, names = _listed(file, suite)
    try:
        return [
            Path(hf_hub_download(file.repo, name, repo_type="dataset", revision=revision)) for name in names
        ]
    except Exception as error:
        raise _unreachable(file, suite, error) from None


def _listed(file: File, suite: str) -> tuple[str, list[str]]:
    """The revision that has the file, and its names there; one query, since downloads retry for long."""
    from huggingface_hub import dataset_info

    assert file.repo is not None
    for revision in REVISIONS:
        try:
            siblings = dataset_info(file.repo, revision=revision, timeout=SECONDS).siblings or ()
        except Exception as error:  # differs between versions, too
            if revision == REVISIONS[0]:  # not every data set has the second one
                raise _unreachable(file, suite, error) from None
            continue
        if names := file.among(sibling.rfilename for sibling in siblings):
            return revision, names
    raise _unreachable(file, suite, LookupError(f"no file there matches {file.pattern}"))


def _columns(file: File, suite: str) -> Path:
    """Fetch some columns of a Parquet file on the hub into our own file, without sound and vectors."""
    path = _kept(file)
    revision, names = _listed(file, suite)
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
        from huggingface_hub import HfFileSystem

        def batches() -> Iterator[pa.RecordBatch]:
            count = 0
            for there in names:
                with HfFileSystem().open(f"datasets/{file.repo}@{revision}/{there}", "rb") as remote:
                    source = pq.ParquetFile(remote)
                    wanted = [column for column in file.columns if column in source.schema_arrow.names]
                    for batch in source.iter_batches(1024, columns=wanted):
                        yield batch
                        count += len(batch)
                        if file.rows is not None and count >= file.rows:
                            return

        table = pa.Table.from_batches(batches()).slice(0, file.rows)
        _written(path, lambda part: pq.write_table(table, part))
    except Exception as error:
        raise _unreachable(file, suite, error) from None
    return path


def _from_web(file: File, suite: str) -> Path:
    path = _kept(file)

    def receive(part: Path) -> None:
        assert file.url is not None
        with urllib.request.urlopen(file.url, timeout=SECONDS) as answer, part.open("wb") as out:
            shutil.copyfileobj(answer, out)
            length = answer.headers.get("Content-Length")
            if length is not None and out.tell() != int(length):
                raise OSError(f"the answer ended after {out.tell()} of {length} bytes")

    try:
        _written(path, receive)
    except (OSError, ValueError, HTTPException) as error:
        raise _unreachable(file, suite, error) from None
    return path


def _written(path: Path, write: Callable[[Path], None]) -> None:
    """`write` a temporary file, then move it to `path`: two processes may fetch at once, and one may die."""
    with replacing(path) as part:
        write(part)


def _unreachable(file: File, suite: str, error: Exception) -> PromptError:
    if isinstance(error, OSError) and error.errno in DISK:
        ours = file.repo is None or file.columns
        place, name = (folder(), FOLDER) if ours else ("the Hugging Face cache", "HF_HOME")
        return PromptError(f"cannot keep {suite} in {place}: {error.strerror}; set {name} to another folder")
    reason = one_line(error, 160)
    gated = type(error).__name__ == "GatedRepoError"
    why = (
        "requires its terms to be accepted and a token (hf auth login)"
        if gated
        else f"does not provide it ({reason})"
    )
    return PromptError(
        f"{suite} is not on this disk, and {file.home} {why}; connect to a network to fetch it once, or "
        f"give a "
        f"local copy: {suite}=PATH"
    )
