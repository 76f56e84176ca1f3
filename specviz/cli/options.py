"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from typer.models import ArgumentInfo, OptionInfo

from specviz.arguments import check_threads

Given = TypeVar("Given")


def option(
    help: str, *names: str, min: int | None = None, metavar: str | None = None,
    callback: Callable[[Given], Given] | None = None,
) -> OptionInfo:  # fmt: skip
    """An option of a command; without `names` it is called as its parameter."""
    return typer.Option(*names, help=help, min=min, metavar=metavar, callback=callback)


def argument(help: str, metavar: str | None = None) -> ArgumentInfo:
    """An argument of a command."""
    return typer.Argument(help=help, metavar=metavar)


Model = Annotated[str, option("Bundled name, folder, gguf:FILE, or hf:<id>.", "--model", "-m")]
Draft = Annotated[str | None, option("Draft model; default: the bundled one, if any.", "--draft", "-d")]
Drafts = Annotated[
    list[str] | None, option("Draft model; may be repeated. Default: all bundled ones.", "--draft", "-d")
]
Device = Annotated[str, option("cpu, cuda, cuda:1 or mps.")]
Dtype = Annotated[str, option("float32, float16, bfloat16, float64 or auto.")]


def _pin(value: str | None) -> str | None:
    """Pin a layout for every model of this process, and of those that it starts."""
    if value is not None:
        import os

        # Before torch is loaded; `specviz.models.kernels` checks the name and says which there are.
        # Half a character, which no environment holds, becomes a question mark, which no layout is called.
        os.environ["SPECVIZ_KERNELS"] = value.encode("utf8", "replace").decode("utf8")
    return value


Kernels = Annotated[
    str | None,
    option(
        "How the matrices lie on a CPU: plain, transposed or onednn. Default: SPECVIZ_KERNELS, or "
        "what is fastest here, measured once.",
        callback=_pin,
    ),
]


def _set_invariant(value: bool | None) -> bool | None:
    """Let every model of this process that can be invariant be so, or none."""
    if value is not None:
        import os

        os.environ["SPECVIZ_INVARIANT"] = str(int(value))
    return value


Invariant = Annotated[
    bool | None,
    option(
        "Compute each row of a pass as it is computed alone, bit for bit (Llama family, CPU). Default: "
        "SPECVIZ_INVARIANT, or not.",
        "--invariant/--no-invariant",
        callback=_set_invariant,
    ),
]
Revision = Annotated[str | None, option("Branch, tag or commit of a hub model.")]
Force = Annotated[bool, option("Replace files that exist.", "--force", "-f")]


def checked_threads(threads: int | None) -> int | None:
    """An option's number of threads, or None where it was left out."""
    return threads if threads is None else check_threads(threads)


OneThread = Annotated[int, option("Threads on the CPU.", min=1, callback=checked_threads)]
Threads = Annotated[
    int | None, option("Threads on the CPU; default: every physical core.", min=1, callback=checked_threads)
]
Prompts = Annotated[
    str | None,
    option(
        "A suite (specviz suites lists them), NAME=FILE for a local copy of one, or a file: JSON lines "
        "with prompt or turns, or plain lines.",
    ),
]
Number = Annotated[int | None, option("How many of --prompts, the first ones; default: all.", min=1)]
NewTokens = Annotated[int, option("Most tokens for each prompt.", "--max-new-tokens", "-n", min=1)]
Baseline = Annotated[
    Path | None,
    option("The same prompts without speculation, in the same kind of file; tells speedups, too."),
]
Json = Annotated[Path | None, option("Write the result as JSON.")]
Settings = Annotated[
    list[str] | None, option("A parameter of the method; may be repeated.", "--set", metavar="NAME=VALUE")
]
CSV = Annotated[bool, option("Print CSV, unrounded, for a script.", "--csv")]
AIPerf = Annotated[Path | None, option("Write AIPerf's records, JSON lines.")]
