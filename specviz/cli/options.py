"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.models import ArgumentInfo, OptionInfo

from specviz.arguments import check_threads
from specviz.paths import expanded

Given = TypeVar("Given")


def _written_out(value: Any) -> Any:
    """Replace a leading ``~`` of paths, which a shell leaves in ``--out=~/file``; keep other values."""
    if isinstance(value, list | tuple):
        return [_written_out(each) for each in value]
    return expanded(value) if isinstance(value, Path) else value


def option(
    help: str, *names: str, min: int | None = None, metavar: str | None = None,
    callback: Callable[[Given], Given] | Callable[[typer.Context, Given], Given] = _written_out,
) -> OptionInfo:  # fmt: skip
    """An option of a command; without `names` it is named after its parameter."""
    return typer.Option(*names, help=help, min=min, metavar=metavar, callback=callback)


def argument(help: str, metavar: str | None = None) -> ArgumentInfo:
    """An argument of a command."""
    return typer.Argument(help=help, metavar=metavar, callback=_written_out)


MODEL = "Bundled or downloaded name, folder, gguf:NAME or FILE, bergamot:PAIR, or hf:<id>"
Model = Annotated[str, option(f"{MODEL}.", "--model", "-m")]
Draft = Annotated[str | None, option("Draft model; default: the bundled one, if any.", "--draft", "-d")]
Drafts = Annotated[
    list[str] | None, option("Draft model; may be repeated. Default: all bundled ones.", "--draft", "-d")
]
Device = Annotated[str, option("cpu, cuda, cuda:1 or mps.")]
DTYPE = "float32, float16, bfloat16, float64, stored (the weights' own), or auto (the fastest here)"
Dtype = Annotated[str, option(f"{DTYPE}.")]


def _pin(context: typer.Context, variable: str, value: str) -> None:
    """Set an environment variable until the command ends, for its models and its child processes."""
    import os

    def restore(before: str | None = os.environ.get(variable)) -> None:
        os.environ.pop(variable, None)
        if before is not None:
            os.environ[variable] = before

    context.call_on_close(restore)
    # A lone surrogate, which no environment can hold, becomes a question mark, which no valid value has.
    os.environ[variable] = value.encode("utf8", "replace").decode("utf8")


def _pin_layout(context: typer.Context, value: str | None) -> str | None:
    if value is not None:  # `specviz.models.kernels` checks the name and lists the valid ones
        _pin(context, "SPECVIZ_KERNELS", value)
    return value


Kernels = Annotated[
    str | None,
    option(
        "Layout of the matrices on a CPU: plain, transposed, onednn, onednn-unpadded, fp16 (weights rounded "
        "to float16), or quantized int8, int4 or w8a8. Default: SPECVIZ_KERNELS, or the fastest here, "
        "measured once.",
        callback=_pin_layout,
    ),
]


def _pin_invariant(context: typer.Context, value: bool | None) -> bool | None:
    if value is not None:
        _pin(context, "SPECVIZ_INVARIANT", str(int(value)))
    return value


Invariant = Annotated[
    bool | None,
    option(
        "Compute each row of a pass bit for bit as if it were alone (on a CPU). Default: SPECVIZ_INVARIANT, "
        "or on for large causal models where it costs at most 10 %, measured once, or where auto chose "
        "bfloat16.",
        "--invariant/--no-invariant",
        callback=_pin_invariant,
    ),
]
Revision = Annotated[str | None, option("Branch, tag or commit of a hub model.")]
Force = Annotated[bool, option("Replace files that exist.", "--force", "-f")]


def checked_threads(threads: int | None) -> int | None:
    """Check an option's number of threads; None if it was left out."""
    return threads if threads is None else check_threads(threads)


OneThread = Annotated[int, option("Threads on the CPU.", min=1, callback=checked_threads)]
Threads = Annotated[
    int | None, option("Threads on the CPU; default: every physical core.", min=1, callback=checked_threads)
]
FILE = (
    "JSON lines (.jsonl) or a list (.json) with prompt, messages or turns, a table (.csv, .tsv) with a "
    "column prompt, or plain lines (.txt); each also as .gz"
)
Prompts = Annotated[
    str | None,
    option(
        f"A suite (specviz suites lists them), NAME=FILE for a local copy of one, or a file: {FILE}.",
    ),
]
Number = Annotated[int | None, option("Use only the first N of --prompts; default: all.", min=1)]
NewTokens = Annotated[int, option("Maximum number of tokens per prompt.", "--max-new-tokens", "-n", min=1)]
Baseline = Annotated[
    Path | None,
    option("The same prompts without speculation, in the same kind of file; adds speedups."),
]
Since = Annotated[
    Path | None,
    option("For vllm-metrics: an earlier page of the same server; count only what came after it."),
]
Json = Annotated[Path | None, option("Write the result to this file as JSON.")]
Settings = Annotated[
    list[str] | None, option("A parameter of the method; may be repeated.", "--set", metavar="NAME=VALUE")
]
CSV = Annotated[bool, option("Print unrounded CSV for a script.", "--csv")]
AIPerf = Annotated[Path | None, option("Write AIPerf's records to this file as JSON lines.")]
