"""``python -m tests.benchmarks NAME --option value``: a bench's options are its function's arguments."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

from specviz.cli.arguments import loaded
from specviz.cli.terminal import progress, screen
from specviz.errors import SpecvizError
from specviz.suites import suite

from . import BENCHES, find

KINDS = {"int": int, "float": float, "str": str}


def options(name: str) -> dict[str, tuple[type, bool]]:
    """A bench's options, from its annotations: the type of a value, and whether it takes several."""
    out = {}
    for option, parameter in signature(find(name)).parameters.items():
        if parameter.kind is Parameter.KEYWORD_ONLY and option != "tick":
            kind = str(parameter.annotation)
            word = kind.removeprefix("Sequence[").removesuffix(" | None").removesuffix("]")
            out[option] = KINDS[word], kind.startswith("Sequence")
    return out


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; options that are not given are absent from the result."""
    parser = argparse.ArgumentParser("python -m tests.benchmarks", description="Measure this project.")
    commands = parser.add_subparsers(dest="name", metavar="NAME", required=True)
    for name, about in BENCHES.items():
        command = commands.add_parser(name, help=about.replace("%", "%%"), argument_default=argparse.SUPPRESS)
        taken = signature(find(name)).parameters
        if {"model", "target", "models"} & taken.keys():
            command.add_argument("--model", nargs="+" if "models" in taken else 1)
            command.add_argument("--device", default="cpu")
            command.add_argument("--dtype", default="float32")
        if "drafts" in taken:
            command.add_argument("--draft", nargs="*")
        if "entries" in taken:
            command.add_argument("--suite", nargs="+", help="suites' names, or files; default: its own")
        for option, (kind, several) in options(name).items():
            more = {"nargs": "*"} if several else {}
            command.add_argument("--" + option.replace("_", "-"), type=kind, **more)
        command.add_argument("--threads", type=int, default=2 if name == "diffusion" else 1)
        command.add_argument("--json", type=Path)
        command.add_argument("--force", action="store_true", default=False)
    return parser.parse_args(arguments)


def subjects(name: str, given: argparse.Namespace) -> list[Any]:
    """A bench's models and prompts, in the order of its arguments: those given, or the module's defaults."""
    from specviz.models import load

    measure = find(name)
    module = sys.modules[measure.__module__]
    where = (getattr(given, "device", "cpu"), getattr(given, "dtype", "float32"))
    own = getattr(module, "MODELS", None) or [getattr(module, "TARGET", "town")]
    chosen = getattr(given, "model", None) or own
    out: list[Any] = []
    for parameter in signature(measure).parameters.values():
        if parameter.kind is Parameter.KEYWORD_ONLY:
            break
        if parameter.name == "models":
            out.append([load(each, *where) for each in chosen])
        elif parameter.name in ("model", "target"):
            out.append(load(chosen[0], *where))
        elif parameter.name == "drafts":
            names = getattr(given, "draft", None) or list(getattr(module, "DRAFTS", ())) or None
            out[-1], drafts = loaded(chosen[0], names, *where, None, None)
            out.append(drafts)
        elif parameter.name == "entries":
            named = given.suite if hasattr(given, "suite") else getattr(module, "SUITES", ["town"])
            out.append([entry for each in named for entry in suite(each)])
        else:  # another role for the bundled target
            companion = (
                None if hasattr(given, "model") else getattr(module, "COMPANIONS", {}).get(parameter.name)
            )
            out.append(load(companion, *where) if companion else None)
    return out


def circumstances(name: str, some: Sequence[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Options and prompts, as ``specviz bench`` keeps them: its history compares results that share them."""
    taken = signature(find(name)).parameters
    kept = {each: str(values.get(each, taken[each].default)) for each in options(name) if each != "rounds"}
    entries = dict(zip(taken, some)).get("entries")
    if entries is None:
        return {"options": kept}
    words = json.dumps(entries, sort_keys=True, default=str).encode()
    return {"options": kept, "entries": hashlib.sha256(words).hexdigest()[:16]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a bench; return 0 if every bar is held, 1 if one is missed, 2 after a one-line error.

    Without a name, list the benches.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == ["same"]:  # it compares two versions, and prints no report
        from .same import main as same

        return same(words[1:])
    if not words:
        print(*(f"{name:14}{about}" for name, about in BENCHES.items()), sep="\n")
        return 0
    given = parsed(words)
    values = {option: getattr(given, option) for option in options(given.name) if hasattr(given, option)}
    try:
        from specviz.measure.timing import threads

        some = subjects(given.name, given)
        with threads(given.threads), progress() as tick:
            report = find(given.name)(*some, tick=tick, **values)
        report.setting |= circumstances(given.name, some, values)
        report.show(screen())
        if hasattr(given, "json"):
            report.write(given.json, given.force)
    except SpecvizError as error:
        print(f"tests.benchmarks: {error}", file=sys.stderr)
        return 2
    return 0 if report.held else 1


if __name__ == "__main__":
    sys.exit(main())
