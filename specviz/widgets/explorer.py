"""The doors of the widgets that decode: they hand the looking wing the functions that run models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import ParameterError, PromptError, loading

if TYPE_CHECKING:
    from ..methods import Method
    from ..streams import Stream
    from .explore import Explorer, Value
    from .live import Interpreter

Options: TypeAlias = dict[str, Any]  # by name, as `specviz.generate` takes them

LANGUAGES = ("German", "Chinese", "Japanese", "Control")  # of the bundled translators
# What a decode takes beside the method's parameters; a file to write (`out`) would be the same for each.
OPTIONS = (
    "max_new_tokens", "temperature", "top_k", "top_p", "seed", "record", "device", "dtype",
)  # fmt: skip


@loading()
def explore(
    method: str | type[Method] | Method, model: Any, prompt: Any, draft: Any = None, **options: Any
) -> Explorer:
    """Move a method's parameters, decode, and compare: a widget.

    Parameters
    ----------
    method : str, class or Method
        See `specviz.list_methods`; of an instance its parameters are what the settings begin with.
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
    from ..loop.checks import check_prompts
    from ..loop.drafters import bundled_draft, load_drafter, load_if_needed
    from ..loop.run import Run
    from ..methods import Method, find, settings_of
    from .explore import Explorer

    kind = find(type(method) if isinstance(method, Method) else method)
    if kind.streams:
        raise ParameterError(
            f"{kind.name} decodes a source that arrives in updates, which explore does not show: "
            "specviz.live(model) has a box to type into, specviz.flicker(trace, live=True) the sliders"
        )
    values, given, where = _sorted("explore", kind, options)
    method, values = settings_of(method, values)
    kind(**values)  # checks them
    if [len(entry.get("turns") or [""]) for entry in check_prompts(prompt)] != [1]:
        raise PromptError("explore takes one prompt of one turn: compare several with specviz.generate")
    target = load_if_needed(model, where.get("device"), where.get("dtype"))
    draft = bundled_draft(kind, target.name) if kind.needs_draft and draft is None else draft
    if kind.needs_draft and draft is None:
        raise ParameterError(f"{method} needs a draft model: pass draft= (a name, a folder or a model)")
    drafter = load_drafter(target, draft, None, None) if kind.needs_draft else None

    def decode(run: str, **values: Value) -> Run:
        # A dense record costs a pass of each model and the drafter's tails, and makes most what-ifs exact.
        dense = {"record": "dense"} if run == method == "speculative" and not given.get("temperature") else {}
        return Run(target, prompt, run, draft=drafter, **(dense | given), **values)

    def call(**values: Value) -> str:
        names = {"method": method} | ({"draft": draft} if kind.needs_draft else {}) | where | given | values
        arguments = [_named(model, "model"), repr(prompt)]
        arguments += [f"{k}={_named(v, 'draft') if k == 'draft' else repr(v)}" for k, v in names.items()]
        return f"sv.generate({', '.join(arguments)})"

    title, most = f"Explore {kind.title or method}", given.get("max_new_tokens", 128)
    return Explorer(method, kind.parameters, decode, call, most, values, title=title, show=target.decode)


def _sorted(name: str, kind: type[Method], options: Options) -> tuple[Options, Options, Options]:
    """Options by whose they are: the method's parameters, the decode's, and where the model is loaded."""
    from ..methods import near

    own = {p.name for p in kind.parameters}
    if stray := next((each for each in options if each not in own and each not in OPTIONS), None):
        raise ParameterError(f"{name} takes no {stray!r}" + near(stray, [*own, *OPTIONS], ""))
    places = ("device", "dtype")
    return (
        {each: value for each, value in options.items() if each in own},
        {each: value for each, value in options.items() if each not in own and each not in places},
        {each: options[each] for each in places if each in options},
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
    from ..loop.drafters import load_if_needed
    from ..loop.run import Run
    from ..methods import find
    from .live import SETTINGS, Interpreter

    kind = find("retranslate")
    modes = next(p.choices for p in kind.parameters if p.name == "mode")
    values, given, where = _sorted("live", kind, options)
    built = kind(**values, target_language=target_language)
    target = load_if_needed(model, where.get("device"), where.get("dtype"))

    def decode(stream: Stream, **moved: Value) -> Run:
        return Run(target, stream, "retranslate", **given, **(values | moved))

    widget = Interpreter(
        decode,
        target.decode,
        {name: getattr(built, name) for name in SETTINGS},
        modes,
        list(dict.fromkeys([target_language, *languages])),
        title=f"{target.name}, live",
    )
    widget.source = source
    return widget


def _named(model: Any, variable: str) -> str:
    """A name as it was given; a model in memory by the name that a reader would give it."""
    return repr(model) if isinstance(model, str) else variable
