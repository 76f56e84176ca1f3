"""The commit that a result was measured at."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from functools import cache, partial
from pathlib import Path


@cache
def commit(file: Path = Path(__file__)) -> str | None:
    """The commit of the checkout that holds `file`, with ``+`` if its tracked files were changed since.

    None if git is missing or does not track the file, as in an installed package.
    """
    git = partial(subprocess.run, cwd=file.parent, capture_output=True, text=True, timeout=10, check=True)
    with suppress(OSError, subprocess.SubprocessError):
        git(["git", "ls-files", "--error-unmatch", file.name])
        changed = git(["git", "status", "--porcelain", "--untracked-files=no"]).stdout
        return str(git(["git", "rev-parse", "--short=12", "HEAD"]).stdout).strip() + "+" * bool(changed)
    return None
