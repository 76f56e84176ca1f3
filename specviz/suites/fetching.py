"""Files of other people's suites: from the hub or the web into the user's cache, whole or not at all."""

from __future__ import annotations

import os
import shutil
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from specviz.errors import PromptError

FOLDER = "SPECVIZ_SUITES"  # the environment variable that names another folder
SECONDS = 30  # that a server may stay silent


@dataclass(frozen=True)
class File:
    """A file of a suite, where its makers keep it.

    Parameters
    ----------
    name : str
        Its path in the hub's repository; or its name in our cache.
    repo : str, optional
        The data set on the Hugging Face hub.
    revision : str, optional
        Of the repository.
    url : str, optional
        Where there is no repository.
    """

    name: str
    repo: str | None = None
    revision: str | None = None
    url: str | None = None

    @property
    def home(self) -> str:
        """Where it is, in words."""
        return self.url or f"{self.repo} on the Hugging Face hub"


def folder() -> Path:
    """Where fetched files are kept: what ``SPECVIZ_SUITES`` names, or the user's cache.

    Files from the hub are kept in the hub's own cache.
    """
    if os.environ.get(FOLDER):
        return Path(os.environ[FOLDER])
    from platformdirs import user_cache_path

    return user_cache_path("specviz", appauthor=False) / "suites"


def fetch(file: File, suite: str) -> Path:
    """The file on this disk: from the cache, else from the network.

    Raises
    ------
    PromptError
        If it is neither cached nor reachable.
    """
    return _from_hub(file, suite) if file.repo else _from_web(file, suite)


def forget(path: Path) -> None:
    """Drop a file from our cache, because it is not what it should be."""
    if folder() in path.parents:
        with suppress(OSError):
            path.unlink()


def _from_hub(file: File, suite: str) -> Path:
    try:
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
    except ImportError:
        raise PromptError(
            f"{suite} is fetched from the Hugging Face hub: pip install huggingface_hub, or give a local file"
        ) from None
    what = {"repo_id": file.repo, "filename": file.name, "repo_type": "dataset", "revision": file.revision}
    cached = try_to_load_from_cache(**what)
    if isinstance(cached, str):
        return Path(cached)
    try:
        return Path(hf_hub_download(**what, etag_timeout=SECONDS))
    except Exception as error:  # the client's own kinds of error differ between its versions
        raise _unreachable(file, suite, error) from None


def _from_web(file: File, suite: str) -> Path:
    path = folder() / file.name
    if path.exists():
        return path
    assert file.url is not None
    part = path.with_name(f".{path.name}.{uuid4().hex[:8]}.part")  # two processes may fetch at once
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(file.url, timeout=SECONDS) as answer, part.open("wb") as out:
            shutil.copyfileobj(answer, out)
            length = answer.headers.get("Content-Length")
            if length is not None and out.tell() != int(length):
                raise OSError(f"the answer ended after {out.tell()} of {length} bytes")
        os.replace(part, path)
    except (OSError, ValueError) as error:
        raise _unreachable(file, suite, error) from None
    finally:
        with suppress(OSError):
            part.unlink()
    return path


def _unreachable(file: File, suite: str, error: Exception) -> PromptError:
    said = " ".join(str(error).split())[:120] or type(error).__name__
    gated = type(error).__name__ == "GatedRepoError"
    why = (
        "wants its terms accepted there and a token (hf auth login)"
        if gated
        else f"is not reachable ({said})"
    )
    return PromptError(
        f"{suite} is not on this disk, and {file.home} {why}; with a network it is fetched once, or give a "
        f"local copy: {suite}=PATH"
    )
