"""Entry points of the widgets that decode: they pass the functions that run models to the widgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import ParameterError, PromptError, loading, near

if TYPE_CHECKING:
    from ..loop.checks import Prompts
    from ..loop.choices import Choices
    from ..loop.drafters import Loadable
    from ..loop.run import Run
    from ..methods import Method
    from ..streams import Stream
    from .explore import Explorer
    from .job import Value
    from .live import Interpreter
    from .live_race import LiveRace

Options: TypeAlias = dict[str, Any]  # by name, as `specviz.generate` takes them

LANGUAGES = ("German", "Chinese", "Japanese", "Control")  # languages of the bundled translators
# Options of a decode besides the method's parameters; `out` is excluded: every decode would write that file.
OPTIONS = (
    "max_new_tokens", "temperature", "top_k", "top_p", "seed", "record", "device", "dtype",
)  # fmt: skip


@loading()
def explore(
    method: str | type[Method] | Method = "speculative", model: Loadable = None, prompt: Prompts = None,
    draft: Loadable = None, **options: Any,
) -> Explorer:  # fmt: skip
    """Open a widget to type a prompt, choose a method, adjust its parameters and watch the text decoded.

    Parameters
    ----------
    method : str, class or Method
        See `specviz.list_methods`; an instance's parameters are the initial settings.
    model : str, path, transformers model or specviz model, optional
        As in `specviz.generate`; by default SmolLM2 if it is downloaded, otherwise ``town``. Other models can
        be selected in the widget and are loaded when they first decode.
    prompt : str, list of chat messages, list of token ids, or dict, optional
        One prompt with one turn; text typed into the box replaces it.
    draft : like `model`, optional
        The draft model, for methods that need one; by default the package's drafter for the model.
    **options
        Initial settings of the method, by name, and these arguments of `specviz.generate`:
        ``max_new_tokens``, ``temperature``, ``top_k``, ``top_p``, ``seed``, ``record``, ``device`` and
        ``dtype``.

    Returns
    -------
    Explorer
        An ipywidgets box that starts decoding as soon as a notebook shows it. Decodes run in a thread, one
        at a time per process; ``results`` and ``table`` hold them.

    Raises
    ------
    ParameterError, ModelError, PromptError
        Before any decode, if an argument is invalid; the message is one line that says what to do.

    Examples
    --------
    >>> specviz.explore()  # doctest: +SKIP
    >>> specviz.explore("bild", "town", "Who was tired?", rollback=1.5)  # doctest: +SKIP
    """
    from ..loop.drafters import bundled_draft
    from ..methods import Method, find, settings_of
    from .explore import Explorer

    kind = find(type(method) if isinstance(method, Method) else method)
    if kind.streams:
        raise ParameterError(
            f"{kind.name} decodes a source that arrives in updates, which explore does not show: use "
            f"specviz.live(model) for a box to type into, or specviz.flicker(trace, live=True) for sliders"
        )
    values, given, where = _sorted("explore", kind, options)
    choices, text = _choices("explore", model, method, draft, prompt, given, where)
    name, values = settings_of(method, values)
    if named := next((p.name for p in kind.parameters if p.any_string and p.name in values), None):
        raise ParameterError(f"explore reads no files: drop {named}, or decode with specviz.generate")
    kind(**values)  # checks them
    if kind.needs_draft and draft is None and bundled_draft(kind, choices.first) is None:
        raise ParameterError(f"{name} needs a draft model: pass draft= (a name, a folder or a model)")
    return Explorer(choices, choices.first, name, text, values)


@loading()
def first_method(model: Loadable = None) -> str:
    """Name of a method that a model can run without a drafter or with a bundled one."""
    from ..loop.choices import Choices
    from ..loop.drafters import bundled_draft
    from ..methods import find

    choices = Choices(model, "speculative", None, None, {}, {})
    name = choices.first
    kinds = [find(each) for each in choices.methods(name)]
    runs = [kind.name for kind in kinds if not kind.needs_draft or bundled_draft(kind, name)]
    # prompt_lookup runs on every target that continues prompts; the next by name need models of some families
    return next(each for each in ("speculative", "prompt_lookup", *runs) if each in runs)


@loading()
def race_live(
    model: Loadable,
    prompt: Prompts,
    methods: Sequence[str | Method | type[Method]],
    draft: Loadable,
    options: Options,
) -> LiveRace:
    """Implement `specviz.race` with ``live=True``."""
    from ..methods import Method, find, name_of, settings_of
    from .live_race import LiveRace, check_entrants

    entrants, kinds = [], []
    for given in methods:
        name, _, settings = given.partition(":") if isinstance(given, str) else (given, "", "")
        kinds.append(find(type(name) if isinstance(name, Method) else name))
        if kinds[-1].streams:
            raise ParameterError(f"{kinds[-1].name} decodes streams, but a live race is over one prompt")
        own = settings_of(given, {})[1] if isinstance(given, Method) else {}
        settings = settings or ",".join(f"{key}={value}" for key, value in own.items())
        entrants.append(":".join(filter(None, [name_of(kinds[-1]), settings])))
    check_entrants(entrants)
    kind = next((each for each in kinds if each.needs_draft), kinds[0])
    stray, given_options, where = _sorted("race", kind, options)
    if stray:
        raise ParameterError(f"write settings after the method's name: {kind.name}:{next(iter(stray))}=...")
    choices, text = _choices("race", model, kind, draft, prompt, given_options, where)
    return LiveRace(choices, choices.first, text, entrants)


def _choices(
    name: str,
    model: Loadable,
    method: str | Method | type[Method],
    draft: Loadable,
    prompt: Prompts,
    given: Options,
    where: Options,
) -> tuple[Choices, str]:
    """Return the available choices and the initial text of the prompt box."""
    from ..loop.checks import check_prompts
    from ..loop.choices import TARGETS, Choices

    if prompt is not None and [len(e.get("turns") or [""]) for e in check_prompts(prompt)] != [1]:
        raise PromptError(f"{name} takes one prompt with one turn: compare several with specviz.generate")
    text = ""
    if prompt is not None:
        (entry,) = check_prompts(prompt)
        text = entry["turns"][0] if "turns" in entry else entry["prompt"]
    choices = Choices(model, method, draft, prompt, given, where)
    if prompt is None:
        text = TARGETS.get(choices.first) or choices.examples(choices.first)[0][1]
    return choices, text if isinstance(text, str) else ""


def _sorted(name: str, kind: type[Method], options: Options) -> tuple[Options, Options, Options]:
    """Split options into the method's parameters, the decode's options, and the model's device and dtype."""
    own = {p.name for p in kind.parameters}
    if stray := next((each for each in options if each not in own and each not in OPTIONS), None):
        raise ParameterError(f"{name} takes no {stray!r}" + near(stray, [*own, *OPTIONS]))
    places = ("device", "dtype")
    return (
        {each: value for each, value in options.items() if each in own},
        {each: value for each, value in options.items() if each not in own and each not in places},
        {each: options[each] for each in places if each in options},
    )


@loading()
def live(
    model: Loadable,
    target_language: str = "German",
    *,
    languages: Sequence[str] = LANGUAGES,
    source: str = "",
    **options: Any,
) -> Interpreter:
    """Open a widget to type a source and see its translation below, rewritten at each word.

    Parameters
    ----------
    model : str, path, transformers model or specviz model
        As in `specviz.generate`; loaded once.
    target_language : str
        The language to translate into. A prompt template without ``{target_language}`` ignores it.
    languages : sequence of str
        Other languages to select from, as named in the prompt template.
    source : str
        Initial content of the box.
    **options
        Settings of ``retranslate``, by name, and these arguments of `specviz.generate`: ``max_new_tokens``,
        ``temperature``, ``top_k``, ``top_p``, ``seed``, ``record``, ``device`` and ``dtype``.

    Returns
    -------
    Interpreter
        A widget that always decodes the newest text, in a thread; its ``traces`` hold the finished runs.

    Raises
    ------
    ParameterError, ModelError
        Before any decode, if an argument is invalid; the message is one line that says what to do.
    """
    from ..loop.drafters import load_if_needed
    from ..loop.run import Run
    from ..methods.retranslate import TEMPLATES, Retranslate
    from .live import SETTINGS, Interpreter

    modes = next(p.choices for p in Retranslate.parameters if p.name == "mode")
    values, given, where = _sorted("live", Retranslate, options)
    built = Retranslate(**values, target_language=target_language)
    target = load_if_needed(model, where.get("device"), where.get("dtype"))
    built.prepare(target)  # an encoder-decoder has its own template
    choice = "{target_language}" in TEMPLATES.get(built.template, built.template)

    def decode(stream: Stream, **moved: Value) -> Run:
        return Run(target, stream, "retranslate", **given, **(values | moved))

    widget = Interpreter(
        decode,
        target.decode,
        {name: getattr(built, name) for name in SETTINGS},
        modes,
        list(dict.fromkeys([target_language, *languages])) if choice else [],
        title=f"{target.name}, live",
    )
    widget.source = source
    return widget
