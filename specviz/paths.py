"""Where the package's data lies: beside the code in an installed wheel, at the root in a checkout."""

from __future__ import annotations

import os
from pathlib import Path

from specviz.errors import SpecvizError

HERE = Path(__file__).resolve().parent


def folder(name: str) -> Path:
    """The data folder called `name` (``models``, ``traces``, ``suites``, ``templates``, ``published``).

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


def home() -> Path:
    """Where this user's downloads and measurements are kept: ``SPECVIZ_HOME``, or the system's cache."""
    if given := os.environ.get("SPECVIZ_HOME"):
        return Path(given).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("specviz", appauthor=False)


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
        If there is none of that name; the message lists those there are.
    """
    found = {path.stem: path for path in sorted(folder("traces").glob("*.parquet"))}
    if name not in found:
        raise SpecvizError(f"no recorded trace {name!r}; there is {', '.join(found) or 'none'}")
    return found[name]
