"""The doors of the widgets that decode: they hand the looking wing the functions that run models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ParameterError, PromptError, loading

if TYPE_CHECKING:
    from ..methods import Method
    from .explore import Explorer
    from .live import Interpreter

LANGUAGES = ("German", "Chinese", "Japanese", "Control")  # of the bundled translators
# What a decode takes beside the method's parameters; a file to write (`out`) would be the same for each.
OPTIONS = (
    "max_new_tokens", "temperature", "top_k", "top_p", "seed", "record", "device", "dtype",
)  # fmt: skip


@loading()
def explore(
    method: str | type[Method], model: Any, prompt: Any, draft: Any = None, **options: Any
) -> Explorer:
    """Move a method's parameters, decode, and compare: a widget.

    Parameters
    ----------
    method : str or class
        See `specviz.list_methods`.
    model : str, path, transformers model or specviz model
        As in `specviz.generate`; loaded once.
    prompt : str, list of chat messages, list of token ids, or dict
        One prompt of one turn.
    draft : like `model`, optional
        The draft model, for methods that need one.
    **options
        Settings of the method to begin with, by name; and of what `specviz.generate` takes
        ``max_new_tokens``, ``temperature``, ``top_k``, ``top_p``, ``seed``, ``record``, ``device`` and
        ``dtype``.

    Returns
    -------
    Explorer
        An ipywidgets box. Decodes run in a thread, one at a time; ``results`` and ``table`` hold them.

    Raises
    ------
    ParameterError, ModelError, PromptError
        Before any decode, with one line that says what to do.
    """
    from ..loop.run import Run, beside, bundled_draft, prompts, ready
    from ..methods import find, name_of, near
    from .explore import Explorer

    method = name_of(method)
    kind = find(method)
    if kind.streams:
        raise ParameterError(
            f"{method} decodes a source that arrives in updates, which explore does not show: "
            "specviz.live(model) has a box to type into, specviz.flicker(trace, live=True) the sliders"
        )
    own = {p.name for p in kind.parameters}
    for name in options:
        if name not in own and name not in OPTIONS:
            raise ParameterError(f"explore takes no {name!r}" + near(name, [*own, *OPTIONS], ""))
    values = {name: value for name, value in options.items() if name in own}
    kind(**values)
    given = {name: value for name, value in options.items() if name not in own}
    entries = prompts(prompt)
    if len(entries) != 1 or len(entries[0].get("turns") or [""]) != 1:
        raise PromptError("explore takes one prompt of one turn: compare several with specviz.generate")
    where = {name: given.pop(name) for name in ("device", "dtype") if name in given}
    target = ready(model, where.get("device"), where.get("dtype"))
    if kind.needs_draft and draft is None:
        draft = bundled_draft(kind, target.name)
        if draft is None:
            raise ParameterError(f"{method} needs a draft model: pass draft= (a name, a folder or a model)")
    drafter = None
    if kind.needs_draft:
        drafter = beside(target, draft, None, None)

    def decode(run: str, **values: Any) -> Run:
        # A dense record costs a pass of each model and the drafter's tails, and makes most what-ifs exact.
        dense = {"record": "dense"} if run == method == "speculative" and not given.get("temperature") else {}
        return Run(target, prompt, run, draft=drafter, **(dense | given), **values)

    def call(**values: Any) -> str:
        names = {"method": method} | ({"draft": draft} if kind.needs_draft else {}) | where | given | values
        told = [_named(model, "model"), repr(prompt)]
        told += [f"{k}={_named(v, 'draft') if k == 'draft' else repr(v)}" for k, v in names.items()]
        return f"sv.generate({', '.join(told)})"

    return Explorer(
        method,
        kind.parameters,
        decode,
        call,
        given.get("max_new_tokens", 128),
        values,
        title=f"Explore {kind.title or method}",
        show=target.decode,
    )


@loading()
def live(
    model: Any,
    target_language: str = "German",
    *,
    languages: Sequence[str] = LANGUAGES,
    source: str = "",
    **options: Any,
) -> Interpreter:
    """Type a source and see its translation beneath it, written anew at each word: a widget.

    Parameters
    ----------
    model : str, path, transformers model or specviz model
        As in `specviz.generate`; loaded once.
    target_language : str
        What it is translated into.
    languages : sequence of str
        What can be chosen instead; the prompt's template names them.
    source : str
        What stands in the box at first.
    **options
        Settings of ``retranslate``, by name; and of what `specviz.generate` takes ``max_new_tokens``,
        ``temperature``, ``top_k``, ``top_p``, ``seed``, ``record``, ``device`` and ``dtype``.

    Returns
    -------
    Interpreter
        Decodes in a thread, always the newest text; its ``traces`` hold the runs that have ended.

    Raises
    ------
    ParameterError, ModelError
        Before any decode, with one line that says what to do.
    """
    from ..loop.run import Run, ready
    from ..methods import find, near
    from .live import SETTINGS, Interpreter

    kind = find("retranslate")
    own = {p.name: p for p in kind.parameters}
    for name in options:
        if name not in own and name not in OPTIONS:
            raise ParameterError(f"live takes no {name!r}" + near(name, [*own, *OPTIONS], ""))
    values = {name: value for name, value in options.items() if name in own}
    built = kind(**values, target_language=target_language)
    given = {name: value for name, value in options.items() if name not in own}
    where = {name: given.pop(name) for name in ("device", "dtype") if name in given}
    target = ready(model, where.get("device"), where.get("dtype"))

    def decode(stream: Any, **moved: Any) -> Run:
        return Run(target, stream, "retranslate", **given, **(values | moved))

    widget = Interpreter(
        decode,
        target.decode,
        {name: getattr(built, name) for name in SETTINGS},
        own["mode"].choices,
        list(dict.fromkeys([target_language, *languages])),
        title=f"{target.name}, live",
    )
    widget.source = source
    return widget


def _named(model: Any, variable: str) -> str:
    """A name as it was given; a model in memory by the name that a reader would give it."""
    return repr(model) if isinstance(model, str) else variable
