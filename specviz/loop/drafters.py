"""Models on their way into a run: loaded if need be, a drafter chosen and checked against its target."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, TypeAlias, cast

import torch

from ..errors import ModelError, ParameterError
from ..methods.base import Method
from ..methods.hooks import ADDED, ADDITIONS
from ..models.downloads import DOWNLOADS
from ..models.kernels import FP16
from ..models.protocols import Model, Unbound
from ..models.zoo import bundled
from .machine import number_format

Loadable: TypeAlias = Any  # a model that is loaded, or what `specviz.load` takes
# Targets that have drafters in the package, by what a method drafts with.
DEFAULT_DRAFT = {
    "town": {"model": "town-draft", "eagle": "town-eagle"},
    "town-t5": {"model": "town-t5-small", "heads": "town-t5-heads"},
    "smollm2": {"model": "smollm2-draft", "eagle": "smollm2-eagle3", "heads": "smollm2-heads"},
}


def default_drafts(target: str) -> dict[str, str]:
    """Names of a target's drafters in the package, by what a method drafts with.

    Parameters
    ----------
    target : str
        What `specviz.load` takes, or the name of a model that it gave.
    """
    name = target.removeprefix("gguf:").partition(" (")[0]
    files = {download.path.stem: each for each, download in DOWNLOADS.items()}
    there = bundled()
    named = DEFAULT_DRAFT.get(files.get(name, name), {})
    return {what: draft for what, draft in named.items() if draft in there}


def bundled_draft(method: Method | type[Method], target: str) -> str | None:
    """Name of the drafter that the package has of a target for a method, if it has one.

    BiLD takes the aligned draft where there is one, as in its paper.
    """
    own = default_drafts(target).get(method.drafts_with)
    aligned = f"{own}-aligned"
    return aligned if method.name == "bild" and aligned in bundled() else own


def load_if_needed(
    model: Loadable | None, device: str | None, dtype: str | None, kernels: str | None = None
) -> Model:
    """A model that can open contexts: loaded if it is a name, a path or a transformers model."""
    if model is None:
        raise ModelError("no model was given")
    from ..models import load

    return load(model, device, dtype, kernels=kernels)


def load_drafter(
    model: Model, draft: Loadable, device: str | None, dtype: str | None, kernels: str | None = None
) -> Model:
    """A draft model, loaded on the target's device and in its number format, where it has no other.

    What was trained on top of a target has no `kernels` of its own: see `specviz.models.choices.of_drafter`.

    Raises
    ------
    ModelError
        If it is of another kind than the target, or was trained on top of another one.
    """
    return _fitted(model, _loaded(model, draft, device, dtype, kernels))


def _loaded(
    model: Model, draft: Loadable, device: str | None, dtype: str | None, kernels: str | None = None
) -> Model:
    """A drafter in a target's place and format, whether or not it fits it."""
    own = number_format(model)
    if dtype is None and hasattr(torch, own) and not str(draft).startswith("gguf:"):
        # That of a quantized file is its own; a target whose weights were rounded for speed says nothing.
        dtype = "auto" if getattr(model, "kernels", None) == FP16 else own
    device = device or str(model.device)
    if hasattr(draft, "open") and hasattr(draft, "encode"):
        # A loaded one has its own format, and may be on another device of the same kind.
        device, dtype = device.partition(":")[0], None
    if getattr(draft, "kind", None) in ADDED:  # which have no device before they are on a target
        unbound: Model = draft
        return unbound
    return load_if_needed(draft, device, dtype, kernels)


def _fitted(model: Model, drafter: Model) -> Model:
    """A drafter on its target, if it fits it."""
    if drafter.kind in ADDED:
        return cast("Unbound", drafter).on(model)
    if drafter.kind != model.kind:
        raise ModelError(
            f"a draft model must be of the target's kind: {model.name} is {model.kind}, {drafter.name} is "
            f"{drafter.kind}"
        )
    return drafter


def load_fitting(model: Model, names: Iterable[str], device: str | None, dtype: str | None) -> list[Model]:
    """Those of a package's drafters that fit a target; a line on stderr says why another is left out.

    What reads hidden states, for one, does not fit a GGUF file on llama.cpp.

    Raises
    ------
    ModelError
        If one cannot be loaded.
    """
    drafters = []
    for name in dict.fromkeys(names):
        loaded = _loaded(model, name, device, dtype)
        try:
            drafter = _fitted(model, loaded)
            model.check_vocabulary(drafter)
        except ModelError as error:
            print(f"specviz: without {name}: {error}", file=sys.stderr)
        else:
            drafters.append(drafter)
    return drafters


def choose_drafter(
    model: Model, method: Method, draft: Loadable | None, device: str | None, dtype: str | None
) -> Model | None:
    """The draft model, loaded if need be, or a part of the target; None if the method needs none.

    Raises
    ------
    ParameterError
        If it needs one, none was given, and none is bundled with the target; or if the method was told to
        draft longer blocks than it predicts. A default block is lowered to the longest one.
    ModelError
        If it is of another kind than the target.
    """
    own = method.drafter_of(model)
    if own is not None or not method.needs_draft:
        return own
    needed = ADDITIONS.get(method.drafts_with, "a draft model")
    if draft is None:
        draft = bundled_draft(method, model.name)
        if draft is None:
            raise ParameterError(f"{method.name} needs {needed}: pass draft= (a name, a folder or a model)")
        print(f"specviz: no draft model given, using {draft}", file=sys.stderr)
    drafter = load_drafter(model, draft, device, dtype)
    if not method.suited([drafter]):
        raise ModelError(f"{method.name} drafts with {needed}; {drafter.name} is {drafter.kind}")
    _fit_block(method, drafter)
    return drafter


def _fit_block(method: Method, drafter: Model) -> None:
    """Lower a method's default block to the longest one that the drafter predicts; refuse a chosen one.

    What an earlier run's drafter lowered is raised again first.
    """
    name = method.block_length_param
    longest = getattr(drafter, "most", None)
    if not name:
        return
    if name in method.chosen:
        if longest is not None and getattr(method, name) > longest:
            raise ParameterError(
                f"{method.name} uses blocks of {getattr(method, name)} tokens, and {drafter.name} has "
                f"{drafter.kind} for {longest}: set {name} to at most that"
            )
        return
    whole = length = getattr(method, name)
    if method.lowered is not None and length == method.lowered[1]:
        whole = method.lowered[0]
    fitted = whole if longest is None else min(whole, longest)
    method.lowered = (whole, fitted) if fitted < whole else None
    if fitted != length:  # checked with the others
        setattr(method, name, getattr(type(method)(**method.values | {name: fitted}), name))
