"""Models, prompts, methods and drafters: from what a caller passes to what an audit uses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import TypeAlias, TypeVar, cast

import torch

from .. import methods as catalogue
from ..arguments import check_int, check_threads
from ..errors import ModelError, ParameterError
from ..loop.checks import check_alone, check_processors, check_served
from ..loop.drafters import Loadable, bundled_draft, load_drafter, load_if_needed
from ..loop.run import RunOptions
from ..methods import Given, Make, Method
from ..methods.hooks import ADDITIONS
from ..methods.kinds import SizedMethod
from ..methods.sampling import Sampling, check_drawing
from ..models.kernels import W8A8, WHOLE_NUMBERS
from ..models.protocols import Model, Prompt
from . import law

G = TypeVar("G", bound=Given)
Entry: TypeAlias = "Prompt | Mapping[str, str | Sequence[str]]"  # a prompt, or a dict that holds one
Progress: TypeAlias = Callable[[int, int], None] | None


@dataclass
class Lineup:
    """The methods to audit and their drafters; `left_out` has the other methods' names and the reasons."""

    target: Model
    factories: list[Make]
    drafters: list[Model]
    left_out: dict[str, str]

    @classmethod
    def choose(
        cls, target: Model, factories: list[Make], drafts: Loadable | None, named: bool, device: str | None,
        dtype: str | None,
    ) -> Lineup:  # fmt: skip
        """Choose the methods that the target can serve, and drafters; `named`: the caller named the methods.

        Raises
        ------
        ParameterError, ModelError
            If a named method cannot be served, or no suitable draft is given for it.
        """
        factories, left_out = served(target, factories, named)
        none = not named and isinstance(drafts, list | tuple) and not drafts
        drafters = [] if none else _drafters(target, drafts, factories, device, dtype)
        able = [make for make in factories if make().suited(drafters)]
        for method in (make() for make in factories if make not in able):
            if named:
                raise ParameterError(
                    f"{method.name} cannot draft with any of the given drafts: also pass a suitable one"
                )
            left_out[method.name] = (
                f"{method.name} needs {ADDITIONS.get(method.drafts_with, 'a draft model')}"
            )
        return cls(target, able, drafters, left_out)

    def pairs(self, factories: Sequence[Make] | None = None) -> Iterator[tuple[Make, Model | None]]:
        """Each method, of all or of `factories`, with every drafter that suits it."""
        for make in self.factories if factories is None else factories:
            for drafter in make().suited(self.drafters):
                yield make, drafter


def served(target: Model, methods: Sequence[G], named: bool = False) -> tuple[list[G], dict[str, str]]:
    """Split methods into those that a model can serve and the others, with the reasons.

    Parameters
    ----------
    target : Model
    methods : sequence of str, Method or factory
        As `run` takes them.
    named : bool
        Whether the caller named them: then the first one that cannot be served is refused.

    Returns
    -------
    (list, dict of str to str)
        Those of `methods` that can be served; the names of the others with the reasons.

    Raises
    ------
    ParameterError, ModelError
        If `named`, and one cannot be served.
    """
    able, left_out = [], {}
    for each in methods:
        method = catalogue.factory(each)()
        try:
            check_served(target, method)
            if isinstance(method, SizedMethod) and method.calibrated:
                raise ParameterError(
                    f"{method.name} has a calibrated draft size, and an audit needs a fixed one: name the "
                    f"calibration's, such as {method.name}:{method.size}=4"
                )
        except (ParameterError, ModelError) as error:
            if named:
                raise
            left_out[method.name] = str(error)
        else:
            able.append(each)
    return able, left_out


def _drafters(
    target: Model, drafts: Loadable | None, factories: list[Make], device: str | None, dtype: str | None
) -> list[Model]:
    needing = [method for method in (make() for make in factories) if method.needs_draft]
    if not needing:
        return []
    if drafts is None:
        bundled = [bundled_draft(method, target.name) for method in needing]
        drafts = [name for name in dict.fromkeys(bundled) if name is not None]
        if not drafts:
            raise ParameterError("methods with a draft model need drafts= (names, folders or models)")
    named = drafts if isinstance(drafts, list | tuple) else [drafts]
    if not named:
        raise ParameterError("methods with a draft model need at least one draft")
    drafters = [load_drafter(target, draft, device, dtype) for draft in named]
    for drafter in drafters:
        target.check_vocabulary(drafter)
    return drafters


def factories_of(given: Sequence[Given] | Given | None, dtype: str, streams: bool = False) -> list[Make]:
    """Functions that make each method afresh; all must decode prompts, or all streams."""
    if given is None:
        names = ("autoregressive", *(n for n in catalogue.names("prompt") if n != "autoregressive"))
        settings = [[partial(kind), partial(kind, **kind.exact)] for kind in map(catalogue.find, names)]
        exact = ([make for make in pair if not is_lossy(make(), dtype)] for pair in settings)
        return [pair[0] for pair in exact if pair]
    result = [catalogue.factory(each) for each in catalogue.as_list(given)]
    for make in result:
        method = make()
        if method.canvas:
            raise ParameterError(f"{method.name} writes canvases: audit it with audit.canvases")
        if method.streams != streams:
            reads, where = ("streams", "audit.streams") if method.streams else ("prompts", "audit.run")
            raise ParameterError(f"{method.name} decodes {reads}: audit it with {where}")
        if is_lossy(method, dtype):
            values = ",".join(f"{name}={json.dumps(value)}" for name, value in method.exact.items())
            raise ParameterError(
                f"{label(method)} is lossy by design, so there is nothing to audit"
                + f"; what makes it exact: {method.name}:{values}" * bool(values)
            )
    return result


def is_lossy(method: Method, dtype: str, sampling: Sampling = law.GREEDY) -> bool:
    """Whether a method, with its parameters, guarantees nothing that could be audited."""
    return method.exactness(sampling, dtype) == "lossy"


def audited_model(model: Loadable, device: str | None, dtype: str | None) -> Model:
    """Load a model if needed, and check that it can be audited.

    Raises
    ------
    ModelError
        If it only drafts for another model, its generation config has settings that no method supports, or
        its layout rounds to integers.
    """
    target = load_if_needed(model, device, dtype)
    check_alone(target)
    check_processors(target)
    if (layout := getattr(target, "kernels", None)) in (*WHOLE_NUMBERS, W8A8):
        raise ModelError(
            f"kernels={layout!r} rounds {target.name} to integers, and the reference of an audit does not: "
            "audit another layout, such as kernels='plain'"
        )
    return target


def check_causal(target: Model) -> None:
    """Refuse a model that writes canvases (`ParameterError`)."""
    if target.kind == "diffusion":
        raise ParameterError(f"{target.name} is a masked-diffusion model: audit it with audit.canvases")


def encoded(target: Model, prompts: Sequence[Entry]) -> list[list[int]]:
    """The prompts as token ids (`ParameterError` if there are none)."""
    if not prompts:
        raise ParameterError("the audit needs at least one prompt")
    ids = []
    for entry in [prompts] if isinstance(prompts, str | Mapping) else prompts:
        prompt = cast("Prompt", entry)
        if isinstance(entry, dict) and "role" not in entry:
            turns = entry.get("turns")
            messages = entry.get("messages") or entry.get("prompt", "")
            prompt = [{"role": "user", "content": turns[0]}] if turns else messages
        ids.append(list(target.encode(prompt)))
    return ids


def sampling_of(
    limit: int, temperature: float, top_k: int, top_p: float, seed: int, sampled: int
) -> Sampling:
    """The sampling of the texts that are decoded again; wrong settings are refused before any work."""
    check_int("sampled", sampled, 0)
    sampling = RunOptions(limit, temperature, top_k, top_p, seed).sampling
    check_drawing(not sampling.greedy, top_k, top_p)
    return sampling


def counter(progress: Progress, total: int) -> Callable[[], None]:
    """A function that reports one more finished step of `total`."""
    done = count(1)

    def tick() -> None:
        if progress:
            progress(next(done), total)

    return tick


def label(method: Method) -> str:
    """The method's name, with the parameters that differ from the default."""
    changed = []
    for p in method.parameters:
        if (value := getattr(method, p.name)) != p.default:
            changed.append(
                f"{p.name}={value}" if isinstance(p.default, str | bool) else f"{p.name}={value:g}"
            )
    return method.name + (f" ({', '.join(changed)})" if changed else "")


def raised(error: Exception) -> str:
    """An exception in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


@contextmanager
def on_backend(threads: int | None) -> Iterator[None]:
    """Set the threads, and compute float32 products in float32 (TF32 off), during the audit."""
    before, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    if threads is not None:
        torch.set_num_threads(check_threads(threads))
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.set_float32_matmul_precision(precision)
