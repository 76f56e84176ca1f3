"""The optional parts of the package: what is missing, and what installs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from specviz.errors import ModelError

# Of the extra `run`, and what comes with it.
RUNNING = ("torch", "transformers", "tokenizers", "safetensors", "huggingface_hub")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def install(extra: str) -> str:
    """The command that installs an extra, as `pyproject.toml` names it.

    No package index offers the distribution, so a checkout is where it comes from.
    """
    return f'pip install -e ".[{extra}]" in a checkout of specviz'


@contextmanager
def loading() -> Iterator[None]:
    """Within, a missing torch or transformers is a `ModelError` of one line; it also decorates functions.

    Raises
    ------
    ModelError
        Naming what to install, and where it comes from.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in RUNNING:
            raise
        first = f"pip install torch --index-url {CPU_INDEX} (the CPU build), then "
        raise ModelError(
            f"{name} is not installed, and running models needs it: {first if name == 'torch' else ''}"
            f"{install('run')} (the extra specviz-lm[run]; PyPI has no specviz-lm)"
        ) from None
