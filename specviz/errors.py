"""The errors that users see: one clear line each, with advice on what to do or install."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from textwrap import shorten

from specviz.escape import line


class SpecvizError(Exception):
    """An error that the caller can fix; the command line prints its one line and exits with status 2.

    The line can contain untrusted names and texts: their line breaks and invisible characters are escaped.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(line(message))


class TraceError(SpecvizError):
    """A trace file that is truncated, foreign, inconsistent or of an unsupported schema."""


class ModelError(SpecvizError):
    """A model that is missing, not supported by this backend, or incompatible with its partner."""


class ParameterError(SpecvizError):
    """An unknown method or parameter, or a value outside its range."""


class PromptError(SpecvizError):
    """A prompt that is empty, unreadable, or longer than the model's context."""


def one_line(error: BaseException | str, most: int = 160) -> str:
    """A library's message as one line, cut between words; if it is empty, the error's type."""
    return shorten(str(error), most, placeholder=" …") or type(error).__name__


def near(name: object, names: Iterable[object], otherwise: str = "it has none") -> str:
    """The end of a message about an unknown name: close matches, or all names, or `otherwise`."""
    listed = list(map(str, names))
    close = difflib.get_close_matches(str(name), listed, n=3, cutoff=0.5)
    if close:
        return "; did you mean " + " or ".join(close) + "?"
    return "; there is " + ", ".join(listed) if listed else f"; {otherwise}"


def plural(number: int, word: str) -> str:
    """A number with its noun: ``1 thread``, ``2 threads``, ``1,000 threads``."""
    return f"{number:,} {word}{'s' * (number != 1)}"


# Packages of the extra `run`, and those that come with it.
RUNNING = ("torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "gguf", "yaml", "tqdm")
# Packages of the extra `lab` that the widgets import.
WIDGETS = ("anywidget", "ipywidgets", "traitlets")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def install(extra: str) -> str:
    """The command that installs an extra of `pyproject.toml`.

    No package index has this distribution, so it is installed from a checkout.
    """
    return f'pip install -e ".[{extra}]" in a checkout of specviz'


@contextmanager
def loading() -> Iterator[None]:
    """Context or decorator in which a missing package raises one line that says what to install.

    Raises
    ------
    ModelError
        If torch, transformers or another package that runs models is missing.
    SpecvizError
        If a package that the widgets need is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name in WIDGETS:
            raise SpecvizError(f"{name} is not installed, and widgets need it: {install('lab')}") from None
        if name not in RUNNING:
            raise
        first = f"pip install torch --index-url {CPU_INDEX} (the CPU build), then "
        raise ModelError(
            f"{name} is not installed, and running models needs it: {first if name == 'torch' else ''}"
            f"{install('run')} (the extra specviz-lm[run]; PyPI has no specviz-lm)"
        ) from None
