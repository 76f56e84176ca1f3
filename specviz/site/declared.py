"""Pages of the methods, generated from their declarations."""

from __future__ import annotations

import inspect
import sys

from specviz import methods
from specviz.errors import ParameterError
from specviz.loop.drafters import bundled_draft
from specviz.methods import Method, Parameter
from specviz.methods.hooks import ADDITIONS
from specviz.methods.sampling import Sampling
from specviz.site.links import source

FORMAT = "float32"


def pages() -> dict[str, str]:
    """Each method's page, and the list of all, by name on the site."""
    kinds = {name: methods.find(name) for name in methods.names()}
    rows = "\n".join(
        f"| [`{name}`]({name}.md) | {_cell(kind.idea() or kind.title)} | {_cell(kind.paper)} | "
        f"{_exactness(kind, 0.0)} |"
        for name, kind in kinds.items()
    )
    listing = (
        "# Methods\n\nEach page is generated from the method's declarations in its file.\n\n"
        f"| method | what it does | paper | greedy text, {FORMAT} |\n|---|---|---|---|\n{rows}\n"
    )
    return {"methods/index": listing} | {f"methods/{name}": page(name, kind) for name, kind in kinds.items()}


def page(name: str, kind: type[Method]) -> str:
    """A method's page as Markdown."""
    module = sys.modules[kind.__module__]
    file = kind.__module__.replace(".", "/") + ".py"
    about = inspect.getdoc(module) or ""
    facts = [
        f"- Guarantee in {FORMAT} with default parameters: *{_exactness(kind, 0.0)}* when greedy, "
        f"*{_exactness(kind, 1.0)}* when sampling",
        f"- Drafter: {_drafter(kind)}",
        f"- Draft: {'a tree' if kind.trees else 'a chain'}{', of canvases' * kind.canvas}",
    ]
    facts += [f"- Paper: {kind.paper}"] if kind.paper else []
    parts = [f"# {name}", f"**{_cell(kind.title)}**", "\n".join(facts), about]
    if kind.pseudocode:
        lines = "\n".join(line for _, line in kind.pseudocode)
        parts += ["## The loop", f"```text\n{lines}\n```"]
    if kind.parameters:
        rows = "\n".join(map(_parameter, kind.parameters))
        parts += ["## Parameters", f"| name | default | range | meaning |\n|---|---|---|---|\n{rows}"]
    if kind.signals:
        rows = "\n".join(f"| `{s.name}` | {s.unit} | {_cell(s.meaning)} |" for s in kind.signals)
        parts += ["## Recorded signals", f"| name | unit | meaning |\n|---|---|---|\n{rows}"]
    parts += [
        "## Run it",
        f"```\nspecviz generate {name} {_command(kind)}\n```",
        f"Source: [`{file}`]({source(file)})",
    ]
    return "\n\n".join(parts) + "\n"


def _parameter(p: Parameter) -> str:
    """A parameter's row of the table."""
    switch = isinstance(p.default, bool)
    legal = "true or false" if switch else p.range.removeprefix("be ").removeprefix("lie in ")
    legal = f"{legal} {p.unit}".strip()
    symbol = f" Paper: {_cell(p.symbol)}." if p.symbol else ""
    return f"| `{p.name}` | {_code(p.default)} | {legal} | {_cell(p.meaning)}{symbol} |"


def _command(kind: type[Method]) -> str:
    """Options for a command line that runs the method."""
    if kind.streams:
        return "--text FILE --lag 3"
    needed = kind.needs_draft and bundled_draft(kind, "town") is None
    return f'{"--model town-diffusion " * kind.canvas}{"--draft FOLDER " * needed}--prompt "..."'


def _drafter(kind: type[Method]) -> str:
    if not kind.needs_draft:
        return "no draft model"
    return f"{ADDITIONS.get(kind.drafts_with, 'a draft model of your choice')} (`--draft`)"


def _exactness(kind: type[Method], temperature: float) -> str:
    try:
        return kind().exactness(Sampling(temperature), FORMAT)
    except ParameterError:
        return "depends on its parameters"


def _code(value: bool | float | str) -> str:
    return f"`{value!r}`" if value != "" else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
