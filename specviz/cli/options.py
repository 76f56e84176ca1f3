"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specviz.arguments import check_threads

Model = Annotated[str, typer.Option("--model", "-m", help="Bundled name, folder, gguf:FILE, or hf:<id>.")]


Draft = Annotated[
    str | None, typer.Option("--draft", "-d", help="Draft model; default: the bundled one, if any.")
]


Drafts = Annotated[
    list[str] | None,
    typer.Option("--draft", "-d", help="Draft model; may be repeated. Default: all bundled ones."),
]


Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or mps.")]


Dtype = Annotated[str, typer.Option(help="float32, float16, bfloat16, float64 or auto.")]


def _pin(value: str | None) -> str | None:
    """Pin a layout for every model of this process, and of those that it starts."""
    if value is not None:
        import os

        # Before torch is loaded; `specviz.models.kernels` checks the name and says which there are.
        os.environ["SPECVIZ_KERNELS"] = value
    return value


Kernels = Annotated[
    str | None,
    typer.Option(
        "--kernels",
        callback=_pin,
        help="How the matrices lie on a CPU: plain, transposed or onednn. Default: SPECVIZ_KERNELS, or "
        "what is fastest here, measured once.",
    ),
]


Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")]


Force = Annotated[bool, typer.Option("--force", "-f", help="Replace files that exist.")]


def checked_threads(threads: int | None) -> int | None:
    """An option's number of threads, or None where it was left out."""
    return threads if threads is None else check_threads(threads)


OneThread = Annotated[int, typer.Option(min=1, callback=checked_threads, help="Threads on the CPU.")]


Threads = Annotated[
    int | None,
    typer.Option(min=1, callback=checked_threads, help="Threads on the CPU; default: every physical core."),
]


Prompts = Annotated[
    str | None,
    typer.Option(
        "--prompts",
        help="A suite (specviz suites lists them), NAME=FILE for a local copy of one, or a file: JSON lines "
        "with prompt or turns, or plain lines.",
    ),
]


Number = Annotated[
    int | None, typer.Option("--number", min=1, help="How many of --prompts, the first ones; default: all.")
]


NewTokens = Annotated[int, typer.Option("--max-new-tokens", "-n", min=1, help="Most tokens for each prompt.")]


Baseline = Annotated[
    Path | None,
    typer.Option(help="The same prompts without speculation, in the same kind of file; tells speedups, too."),
]


CSV = Annotated[bool, typer.Option("--csv", help="Print CSV, unrounded, for a script.")]
AIPerf = Annotated[Path | None, typer.Option("--aiperf", help="Write AIPerf's records, JSON lines.")]
