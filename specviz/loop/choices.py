"""Choices that a widget offers (targets, methods, drafters, prompts), and the run of a choice."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from .. import methods
from ..errors import SpecvizError
from ..methods import Given
from ..methods.base import Method, Parameter, Value
from ..models import available
from ..models.loading import address
from ..models.loading import find as find_model
from ..models.protocols import Model
from ..suites import suite
from ..trace.files import Record
from . import checks
from .checks import Prompts
from .drafters import Loadable, bundled_draft, choose_drafter, load_if_needed
from .run import Run, RunOptions

# Targets to choose from, each with its first prompt. The first one that is available is the default.
TARGETS = {
    "smollm2": "Why does the moon seem to change its shape during a month?",
    "town": "Translate into German: The doctor bought a red bicycle in the old market on Sunday.",
    "town-t5": "Translate into German: The doctor bought a red bicycle.",
    "smollm2-diffusion": "Why does the moon seem to change its shape during a month?",
    "town-diffusion": "Translate into German: The doctor bought a red bicycle.",
}
WARM_UP = 4  # tokens that a method decodes, untimed, before its first run with a target


class Choices:
    """Targets, loaded one at a time, and the methods that they can run.

    Parameters
    ----------
    model : str, path, transformers model or specviz model, optional
        The first choice. Default: SmolLM2 if it is downloaded, otherwise ``town``.
    method : str, class or Method
        `draft` is for this method and for others that use the same kind of drafter.
    draft : like `model`, optional
        Drafter for the first choice. Default: the bundled ones.
    prompt : any form that `generate` takes, optional
        Decoded when no text is given.
    options, where : dict
        Further options of `generate` (`options`) and of `load` (`where`).

    Raises
    ------
    ModelError
        If the model does not exist.
    """

    def __init__(
        self,
        model: Loadable | None,
        method: str | Method | type[Method],
        draft: Loadable | None,
        prompt: Prompts,
        options: Record,
        where: Record,
    ) -> None:
        kind = methods.find(type(method) if isinstance(method, Method) else method)
        there = [name for name in TARGETS if name in available()]
        if model is None:
            model = there[0]
        if isinstance(model, str | Path):
            find_model(model)
            self.first = address(model)
        else:
            model = load_if_needed(model, where.get("device"), where.get("dtype"))
            self.first = model.name
        self.models = list(dict.fromkeys([self.first, *there]))
        self.limit = RunOptions.split(options)[0].max_new_tokens
        self._method, self._drafts_with = methods.name_of(kind), kind.drafts_with
        self._given, self._draft, self._prompt = model, draft, prompt
        self._options, self._where = options, where
        self._target: Model | None = None
        self._name = ""  # name of the loaded target
        self._drafters: dict[str, Model | None] = {}  # by kind of drafter (`Method.drafts_with`)
        self._warm: set[str] = set()

    def methods(self, model: str) -> list[str]:
        """Names of the methods for a model; once it is loaded, only those that it can run."""
        if model == self._name:
            names = [name for name in methods.names() if self._serves(name)]
        else:
            kind = getattr(self._given, "kind", "") if model == self.first else ""
            names = methods.names("canvas" if "diffusion" in (kind or model) else "prompt")
        own = [self._method] if model == self.first else []
        order = [*own, "speculative"]
        return sorted({*own, *names}, key=lambda name: (name not in order, name == "autoregressive", name))

    def _serves(self, name: str) -> bool:
        assert self._target is not None
        try:
            kind = methods.find(name)
            checks.check_served(self._target, kind())
        except SpecvizError:
            return False
        return not kind.streams and (not kind.needs_draft or self._draft_for(self._name, kind) is not None)

    def _draft_for(self, model: str, kind: type[Method]) -> Loadable | None:
        """Choose a target's drafter: the given one if it suits the method, otherwise a bundled one."""
        if not kind.needs_draft:
            return None
        if model == self.first and self._draft is not None and kind.drafts_with == self._drafts_with:
            return self._draft
        return bundled_draft(kind, model)

    def idea(self, method: str) -> str:
        """Describe a method in one sentence."""
        kind = methods.find(method)
        return kind.idea() or kind.title

    def parameters(self, method: str) -> tuple[Parameter, ...]:
        """A method's declared parameters, without strings that may name a file: a page must not choose it."""
        return tuple(p for p in methods.find(method).parameters if not p.any_string)

    def _set(self, method: str, values: dict[str, Value]) -> dict[str, Value]:
        """The values that were set: a drafter or a template may replace the others, the defaults."""
        defaults = {p.name: p.default for p in self.parameters(method)} if values else {}
        return {name: value for name, value in values.items() if value != defaults[name]}

    def examples(self, model: str) -> list[tuple[str, str]]:
        """Prompts to choose from, each with its kind of task."""
        prompts = suite("town" if model.startswith("town") else "everyday", each=1)
        shown = [(str(entry["kind"]), str(entry.get("prompt") or entry["turns"][0])) for entry in prompts]
        return [("example", TARGETS[model]), *shown] if model in TARGETS else shown

    def start(
        self, model: str, text: str, method: Given, values: dict[str, Value], *, dense: bool = False
    ) -> Run:
        """Load the models, warm the method up, and return a run that has not started.

        Parameters
        ----------
        model, text : str
        method : str, class or Method
            A name may carry settings: ``bild:fallback=0.5``.
        values : dict
            Settings of a method that is given by its bare name.
        dense : bool
            Make a dense record if the run allows it: most what-ifs become exact, for one more pass per model.

        Raises
        ------
        ParameterError, ModelError, PromptError
            The message is one line that says what to do.
        """
        target = self._load(model)
        make = methods.factory(method)
        if isinstance(method, str):
            make = partial(make, **self._set(method, values))
        one = method if isinstance(method, Method) else make()
        prompt = text if text.strip() or self._prompt is None else self._prompt
        drafter = self._drafter(target, one)
        if isinstance(method, str) and one.name not in self._warm and not one.canvas:
            options = self._options | {"max_new_tokens": WARM_UP, "record": None}
            Run(target, prompt, make(), draft=drafter, **options).finish()
            self._warm.add(one.name)
        dense = dense and one.name == "speculative" and not self._options.get("temperature")
        return Run(
            target, prompt, one, draft=drafter, **({"record": "dense"} if dense else {}) | self._options
        )

    def _load(self, model: str) -> Model:
        """Return the target of this name; a different one that was loaded is dropped."""
        if model != self._name or self._target is None:
            self._name, self._target = "", None
            self._drafters, self._warm = {}, set()
            given = self._given if model == self.first else model
            self._target = load_if_needed(given, self._where.get("device"), self._where.get("dtype"))
            self._name = model
        return self._target

    def _drafter(self, target: Model, method: Method) -> Model | None:
        """Return the method's drafter, loaded once per target."""
        if not method.needs_draft:
            return None
        kind = method.drafts_with
        draft = self._drafters.get(kind) or self._draft_for(self._name, type(method))
        self._drafters[kind] = choose_drafter(
            target, method, draft, self._where.get("device"), self._where.get("dtype")
        )
        return self._drafters[kind]

    def code(self, model: str, text: str, method: str, values: dict[str, Value]) -> str:
        """Python line that runs this decode."""
        kind = methods.find(method)
        draft = self._draft_for(model, kind)
        names: Record = {"method": method} | ({} if draft is None else {"draft": draft})
        names |= self._where | self._options | self._set(method, values)
        prompt = text if text.strip() or self._prompt is None else self._prompt
        given = self._given if model == self.first else model
        arguments = [_named(given, "model"), repr(prompt)]
        arguments += [f"{k}={_named(v, 'draft') if k == 'draft' else repr(v)}" for k, v in names.items()]
        return f"sv.generate({', '.join(arguments)})"


def _named(model: Loadable, variable: str) -> str:
    """Source text for a model: its name as a literal, or a variable for a model in memory."""
    return repr(model) if isinstance(model, str) else variable
