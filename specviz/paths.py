"""Location of the package's data: next to the code in an installed wheel, at the root in a checkout.

Downloads and measurements are kept elsewhere, in `home`.
"""

from __future__ import annotations

import os
from pathlib import Path

from specviz.errors import SpecvizError

HERE = Path(__file__).resolve().parent
HOME = "SPECVIZ_HOME"  # the environment variable that names another folder


def expanded(path: str | Path, error: type[SpecvizError] = SpecvizError) -> Path:
    """Replace a leading ``~`` or ``~user`` by that user's home folder.

    Raises
    ------
    SpecvizError
        Of the type `error`, if there is no such user.
    """
    try:
        return Path(path).expanduser()
    except (RuntimeError, ValueError):  # ValueError: a name that no user can have
        raise error(f"{path} names a user that this system does not have: write out the path") from None


def home() -> Path:
    """Folder for downloads, calibrations and suites: ``SPECVIZ_HOME``, or else the user's cache."""
    if os.environ.get(HOME):
        return expanded(os.environ[HOME])
    from platformdirs import user_cache_path

    return user_cache_path("specviz", appauthor=False)


def folder(name: str) -> Path:
    """The data folder called `name` (``models``, ``traces``, ``published``, ``recipes`` ...).

    Raises
    ------
    SpecvizError
        If neither the installed package nor the checkout has it.
    """
    for root in (HERE / "data", HERE.parent / "data"):
        if (root / name).is_dir():
            return root / name
    raise SpecvizError(
        f"the package's data folder {name!r} is missing; reinstall specviz-lm or use a full checkout"
    )


def walkthroughs() -> Path:
    """The folder of the walkthroughs, as notebooks.

    Raises
    ------
    SpecvizError
        If neither the installed package nor the checkout has it.
    """
    for root in (HERE / "notebooks", HERE.parent / "notebooks"):
        if any(root.glob("*.ipynb")):
            return root
    raise SpecvizError("the walkthroughs are missing; reinstall specviz-lm or use a full checkout")


def example(name: str) -> Path:
    """A recorded trace of SmolLM2: ``autoregressive``, ``prompt_lookup`` or ``unispec``.

    Raises
    ------
    SpecvizError
        If there is no trace of that name; the message lists the available ones.
    """
    traces = {path.stem: path for path in sorted(folder("traces").glob("*.parquet"))}
    if name not in traces:
        raise SpecvizError(f"no recorded trace {name!r}; available: {', '.join(traces) or 'none'}")
    return traces[name]
