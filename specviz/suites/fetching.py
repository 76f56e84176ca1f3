"""Files of other people's suites: given, or from the hub or the web, kept whole or not at all."""

from __future__ import annotations

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
from specviz.paths import home

FOLDER = "SPECVIZ_SUITES"  # the environment variable that names another folder
SECONDS = 30  # that a server may stay silent
# Where the hub keeps the Parquet files that it made of a data set that came as a script.
REVISIONS = ("main", "refs/convert/parquet")
PART = re.compile(r"-(\d{5})-of-(\d{5})\.")


@dataclass(frozen=True)
class File:
    """A file of a suite, or several, where the makers keep them.

    Parameters
    ----------
    pattern : str
        A regular expression that its path matches, in the hub's repository or in a folder that is given.
    repo : str, optional
        The data set on the Hugging Face hub.
    url : str, optional
        Where there is no repository.
    columns : tuple of str
        Of Parquet files with more than text: only these are fetched.
    rows : int, optional
        With `columns`: the first so many rows are enough, and so is one of several parts.
    whole : bool
        Whether a given path is taken as it is (an archive, or the folder that it unpacks to).
    least : int
        How many files of the hub's it has: the hub's client may have kept some of them alone.
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
        """Where it is, in words."""
        return self.url or f"{self.repo} on the Hugging Face hub"

    def among(self, names: Iterable[str]) -> list[str]:
        """Those names that are of this file, in order; none if one of several parts is not there."""
        matching = sorted(name for name in names if re.search(self.pattern, name))
        if self.rows is not None:
            return matching[:1]
        parts = [match for name in matching if (match := PART.search(name))]
        return [] if any(len(matching) < int(match[2]) for match in parts) else matching


def folder() -> Path:
    """Where fetched files are kept: what ``SPECVIZ_SUITES`` names, or `specviz.paths.home`.

    Files that the hub's client fetches whole are kept in its own cache.
    """
    if os.environ.get(FOLDER):
        return Path(os.environ[FOLDER])
    return home() / "suites"


def given(file: File, path: Path, suite: str) -> list[Path]:
    """The file in what a person gave: it, or what matches in a folder.

    Raises
    ------
    PromptError
        If there is no such thing.
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
    """The file on this disk: from the cache, else from the network.

    Raises
    ------
    PromptError
        If it is neither cached nor reachable.
    """
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


def single(paths: list[Path]) -> Path:
    """The one file that a suite is read from.

    Raises
    ------
    PromptError
        If several in a given folder match.
    """
    if len(paths) > 1:
        raise PromptError(f"{len(paths)} files match, such as {paths[0]} and {paths[1]}: name one of them")
    return paths[0]


def forget(path: Path) -> None:
    """Drop a file from our cache, because it is not what it should be; the hub's client checks its own."""
    if folder() in path.parents:
        with suppress(OSError):
            path.unlink()


def _from_hub(file: File, suite: str) -> list[Path]:
    from huggingface_hub import hf_hub_download, snapshot_download

    assert file.repo is not None
    for revision in REVISIONS:
        with suppress(Exception):  # not cached; what is raised differs between the client's versions
            here = Path(
                snapshot_download(
                    file.repo, repo_type="dataset", revision=revision, local_files_only=True,
                    allow_patterns=[],  # all that is there: we look ourselves whether it is enough
                )
            )  # fmt: skip
            names = file.among(p.relative_to(here).as_posix() for p in here.rglob("*") if p.is_file())
            if len(names) >= file.least:
                return [here / name for name in names]
    revision, names = _listed(file, suite)
    try:
        return [
            Path(hf_hub_download(file.repo, name, repo_type="dataset", revision=revision)) for name in names
        ]
    except Exception as error:
        raise _unreachable(file, suite, error) from None


def _listed(file: File, suite: str) -> tuple[str, list[str]]:
    """The revision that has the file, and its names there; asked once, where a download retries for long."""
    from huggingface_hub import dataset_info

    assert file.repo is not None
    for revision in REVISIONS:
        try:
            siblings = dataset_info(file.repo, revision=revision, timeout=SECONDS).siblings or ()
        except Exception as error:  # as above
            if revision == REVISIONS[0]:  # that a data set has no second one says nothing
                raise _unreachable(file, suite, error) from None
            continue
        if names := file.among(sibling.rfilename for sibling in siblings):
            return revision, names
    raise _unreachable(file, suite, LookupError(f"no file there matches {file.pattern}"))


def _columns(file: File, suite: str) -> Path:
    """Some columns of a Parquet file on the hub, as a file of our own: sound and vectors stay there."""
    assert file.repo is not None
    name = re.sub(r"\W+", "-", f"{file.repo} {file.pattern} {' '.join(file.columns)}").strip("-")
    path = folder() / f"{name}.parquet"
    if path.exists():
        return path
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
    assert file.url is not None
    path = folder() / re.sub(r"[^\w.]+", "-", file.url.partition("://")[2])
    if path.exists():
        return path

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
    """`write` a file beside `path`, then put it there: two processes may fetch at once, one may die."""
    with replacing(path) as part:
        write(part)


def _unreachable(file: File, suite: str, error: Exception) -> PromptError:
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
