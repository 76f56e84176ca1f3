"""The command ``specviz``: thin wrappers around the packages, which are loaded when a command needs them.

An error that the user can fix gives one line on standard error and exit status 2; a missed limit or a failed
audit gives 1; Ctrl-C gives 130 and keeps the trace so far.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import copy
from functools import cache
from types import FrameType
from typing import Annotated, Any

import typer

from specviz.cli import (
    advising,
    auditing,
    benching,
    calibrating,
    decoding,
    doctoring,
    lessons,
    looking,
    models,
    publishing,
    replaying,
    serving,
    sources,
)
from specviz.cli.options import option
from specviz.cli.terminal import Interrupted
from specviz.errors import SpecvizError
from specviz.escape import visible
from specviz.models import ranks

app = typer.Typer(
    name="specviz",
    help="See and measure speculative decoding. Start with: specviz demo",
    add_completion=False,
    rich_markup_mode=None,
)


def _doors(
    context: typer.Context,
    version: Annotated[bool, option("Print the version and exit.", "--version")] = False,
) -> None:
    if version:
        import specviz

        print(f"specviz {specviz.__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


for command in (
    decoding.demo, decoding.generate, looking.show, looking.metrics, looking.explain, serving.app,
    auditing.audit, replaying.replay, calibrating.calibrate, advising.advise,
    models.datastore, sources.suites, lessons.exercises, doctoring.doctor,
    publishing.site,
):  # fmt: skip
    app.command(command.__name__)(command)
app.command("lab", context_settings={"ignore_unknown_options": True})(lessons.lab)
app.command("import")(looking.import_counts)
app.callback(invoke_without_command=True)(_doors)
for name, group in (
    ("bench", benching.bench_app), ("models", models.models_app), ("streams", sources.streams_app),
):  # fmt: skip
    app.add_typer(group, name=name)


# From arguments to an exit status.


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status.

    An error that the user can fix never ends in a traceback.
    """
    interrupted: list[int] = []
    with _noting(interrupted):
        try:
            return _run(arguments)
        except KeyboardInterrupt:
            return _interrupted()
        except Exception:
            if not interrupted:
                raise
            return _interrupted()  # some libraries turn Ctrl-C during an import into another error


@contextmanager
def _noting(interrupted: list[int]) -> Iterator[None]:
    """Record each Ctrl-C in `interrupted`."""

    def note(number: int, frame: FrameType | None) -> None:
        interrupted.append(number)
        signal.default_int_handler(number, frame)

    usual = signal.default_int_handler
    ours = signal.getsignal(signal.SIGINT) is usual and threading.current_thread() is threading.main_thread()
    if ours:  # leave another handler alone; other threads cannot set one
        signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGINT, usual)


@cache
def _command(first: str = "") -> Any:
    """The parsed declarations of the command or group named `first`; without one, those of all.

    Reading all of them takes a large part of a second, so a call reads only those of its own command.
    """
    own = copy(app)
    own.registered_commands = [each for each in app.registered_commands if each.name == first]
    own.registered_groups = [each for each in app.registered_groups if each.name == first]
    return typer.main.get_command(own if own.registered_commands or own.registered_groups else app)


def _run(arguments: list[str] | None) -> int:
    # typer may bring its own copy of click: reach the base class of its errors through a public name.
    complaint: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
    words = sys.argv[1:] if arguments is None else arguments
    try:
        status = _command(*words[:1]).main(arguments, "specviz", standalone_mode=False)
        sys.stdout.flush()
        if status == 130:  # newer versions of typer return this on Ctrl-C, older ones raise Abort
            raise KeyboardInterrupt
        return status if isinstance(status, int) else 0
    except SpecvizError as error:
        if not ranks.leads() and not isinstance(error, ranks.RankError):
            return 2  # rank 0 meets the same error and reports it
        return _complain(str(error))
    except complaint as error:
        if not ranks.leads():
            return 2
        where = error.ctx.command_path if error.ctx else "specviz"
        return _complain(f"{error.format_message()} ({where} --help)")
    except (KeyboardInterrupt, typer.Abort):
        return _interrupted()
    except Interrupted as error:
        return _interrupted(f": {error}")
    except BrokenPipeError:
        return _quiet()
    except MemoryError as error:
        return _complain(_memory(error))
    except OSError as error:
        if error.errno == errno.EPIPE:
            return _quiet()
        if error.errno is None:
            raise
        return _complain(f"{error.strerror}" + (f": {error.filename}" if error.filename else ""))
    except RuntimeError as error:  # torch has no public class for a full CPU memory
        if "out of memory" not in str(error) and "allocate memory" not in str(error):
            raise
        return _complain(_memory(error))


def _complain(line: str) -> int:
    print("specviz: " + visible(" ".join(line.split())), file=sys.stderr)
    return 2


def _interrupted(more: str = "") -> int:
    if ranks.leads():
        print(f"specviz: interrupted{more}", file=sys.stderr)
    return 130


def _memory(error: BaseException) -> str:
    where = "on the GPU" if "CUDA" in str(error) or "MPS" in str(error) else "on this machine"
    return (
        f"out of memory {where}: use shorter prompts, fewer new tokens or a smaller batch, "
        f"or --dtype bfloat16 where the command has it"
    )


def _quiet() -> int:
    """End silently when the reader of our output has gone, also when Python flushes at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def main() -> None:
    """Run the command line as a program."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell closed it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        with suppress(AttributeError):
            getattr(sys, name).reconfigure(errors="replace")
    sys.exit(run())
