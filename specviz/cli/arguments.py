"""Convert command-line arguments to the packages' arguments, and reject wrong ones before any work."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from specviz.errors import ParameterError, PromptError, TraceError, near
from specviz.models.zoo import bundled

if TYPE_CHECKING:
    from specviz.methods.base import Method
    from specviz.models.protocols import Model
    from specviz.suites.files import Prompt

Number = TypeVar("Number", int, float)
Values: TypeAlias = dict[str, Any]  # options by name, for a function that checks them
SWITCH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def listed(option: str, given: str | None, kind: Callable[[str], Number]) -> list[Number] | None:
    """Parse values separated by commas."""
    try:
        return None if given is None else [kind(part.strip()) for part in given.split(",")]
    except ValueError:
        example = "0,0.2,0.5" if kind is float else "3,5"
        raise ParameterError(f"{option} takes numbers separated by commas, such as {example}") from None


def parameters_of(kind: type[Method], pairs: list[str]) -> Values:
    """Parse ``name=value`` texts into values of the types that the method's parameters declare."""
    from specviz.methods.kinds import CALIBRATED

    parameters = {p.name: p for p in kind.parameters}
    values: Values = {}
    for pair in pairs:
        name, equals, text = (part.strip() for part in pair.partition("="))
        if not equals or not name:
            raise ParameterError(f"--set takes name=value, got {pair!r}")
        if name in values:
            raise ParameterError(f"--set gives {name} twice: drop one of them")
        if name not in parameters:
            raise ParameterError(f"{kind.name} has no parameter {name!r}" + near(name, parameters))
        if name == kind.size and text == CALIBRATED:
            values[name] = text
            continue
        value: bool | float | str = text
        default = parameters[name].default
        if isinstance(default, bool):
            value = SWITCH.get(text.lower(), text)
        elif isinstance(default, int | float):
            with suppress(ValueError):
                value = float(text)
            with suppress(ValueError):
                value = int(text)
        values[name] = parameters[name].check(value)
    return values


def entries_of(prompt: str | None, prompts: str | None, number: int | None = None) -> list[Prompt]:
    """The prompts to decode: a single one, or the first ones of a suite or a file."""
    from specviz.suites import suite

    if prompts is not None:
        return list(suite(prompts))[:number]
    if prompt is None or not prompt.strip():
        raise PromptError("the prompt is empty; give at least one word")
    return [{"prompt": prompt}]


def loaded(
    model: str, draft: list[str] | None, device: str, dtype: str, kernels: str | None, invariant: bool | None
) -> tuple[Model, list[Model]]:
    """Load a target and its drafters, and check them against each other.

    `kernels` and `invariant` are the target's: it has them or the command stops. Drafters follow the
    environment variables that the options set.
    """
    from specviz.loop.drafters import ADDED, default_drafts, load_drafter, load_fitting
    from specviz.models import load
    from specviz.models.loading import find

    own = default_drafts(model).values()
    named = (f"{model.removeprefix('gguf:')}-draft", *(f"{name}-aligned" for name in own))
    names = draft or [name for name in bundled() if name.startswith(named) or name in own]
    for name in (model, *names):  # reject an unknown name before a model is read
        find(name)
    target = load(model, device, dtype, kernels=kernels, invariant=invariant)
    if target.kind in ADDED:
        target.alone()
    if draft:
        drafts = [load_drafter(target, name, device, dtype) for name in dict.fromkeys(names)]
    else:
        drafts = load_fitting(target, names, device, dtype)
    for each in drafts:
        target.check_vocabulary(each)
    if len({each.name for each in drafts}) < len(drafts):
        raise ParameterError(
            "two draft models have the same folder name: rename one so that tables can distinguish them"
        )
    return target, drafts


def writable(path: Path, force: bool) -> None:
    """Check, before any work, that a file may be written here."""
    from specviz.trace.recorder import check_absent

    check_absent(path, force)
    if path.is_dir():
        raise TraceError(f"{path} is a folder; name a file")
    above = next(p for p in path.absolute().parents if p.exists())
    if not above.is_dir():
        raise TraceError(f"cannot write {path}: {above} is not a folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise TraceError(f"cannot write {path}: no permission to write into {above}")


def outputs(force: bool, *given: Path | None) -> None:
    """Check, before any work, that files may be written, and that no two are the same."""
    files = [file for file in given if file is not None]
    for file in files:
        writable(file, force)
    distinct(*files)


def distinct(*files: Path) -> None:
    """Refuse two outputs that are the same file."""
    if len({file.resolve() for file in files}) < len(files):
        raise ParameterError("two outputs have the same file name: give each its own")


def picture(kind: str, file: Path | None) -> None:
    """Refuse a picture under another suffix than its kind's."""
    if file is not None and file.suffix.lower() != f".{kind}":
        raise ParameterError(f"--{kind} writes a picture: name a file that ends in .{kind}, not {file}")


def hint(name: str, *arguments: str | int | Path) -> str:
    """Format a command line that can be copied."""
    return shlex.join(["specviz", name, *map(str, arguments)])


@contextmanager
def on_threads(wanted: int | None) -> Iterator[int]:
    """Run on `wanted` threads; by default torch's choice, every physical core, if that many are allowed."""
    import torch

    from specviz.measure.timing import threads

    usual = torch.get_num_threads()
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else usual
    with threads(wanted or min(usual, allowed)) as count:
        yield count
