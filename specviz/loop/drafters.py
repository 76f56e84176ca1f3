"""Models for a run: loaded if need be, and a drafter chosen and checked against its target."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
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

Loadable: TypeAlias = Any  # a loaded model, or anything that `specviz.load` accepts
# Drafters bundled for each target, by kind of drafter (`Method.drafts_with`).
DEFAULT_DRAFT = {
    "town": {"model": "town-draft", "eagle": "town-eagle"},
    "town-t5": {"model": "town-t5-small", "heads": "town-t5-heads"},
    "smollm2": {"model": "smollm2-draft", "eagle": "smollm2-eagle3", "heads": "smollm2-heads"},
}


def default_drafts(target: str) -> dict[str, str]:
    """Names of the drafters bundled for a target, by kind of drafter.

    Parameters
    ----------
    target : str
        What `specviz.load` accepts, or the name of a model that it returned.
    """
    name = target.removeprefix("gguf:").partition(" (")[0]
    files = {download.path.stem: each for each, download in DOWNLOADS.items()}
    there = bundled()
    named = DEFAULT_DRAFT.get(files.get(name, name), {})
    return {what: draft for what, draft in named.items() if draft in there}


def bundled_draft(method: Method | type[Method], target: str) -> str | None:
    """Name of the bundled drafter of a target for a method; None if there is none.

    BiLD uses the aligned drafter if there is one, as in its paper.
    """
    own = default_drafts(target).get(method.drafts_with)
    aligned = f"{own}-aligned"
    return aligned if method.name == "bild" and aligned in bundled() else own


def load_if_needed(
    model: Loadable | None, device: str | None, dtype: str | None, kernels: str | None = None,
    invariant: bool | None = None,
) -> Model:  # fmt: skip
    """Return a model that can open contexts; load it if it is a name, a path or a transformers model."""
    if model is None:
        raise ModelError("no model was given")
    from ..models import load

    return load(model, device, dtype, kernels=kernels, invariant=invariant)


def load_drafter(
    model: Model, draft: Loadable, device: str | None, dtype: str | None, kernels: str | None = None
) -> Model:
    """Load a draft model, by default on the target's device and in its number format.

    A drafter trained on top of a target has no `kernels` of its own: see `specviz.models.choices.of_drafter`.

    Raises
    ------
    ModelError
        If it is of another kind than the target, or was trained on top of another target.
    """
    return _fitted(model, _loaded(model, draft, device, dtype, kernels))


def _loaded(
    model: Model, draft: Loadable, device: str | None, dtype: str | None, kernels: str | None = None
) -> Model:
    """Load a drafter with a target's device and format, whether or not the two fit each other."""
    own = number_format(model)
    if dtype is None and hasattr(torch, own) and not str(draft).startswith("gguf:"):
        # A quantized file has its own format; a target whose weights were rounded for speed sets none.
        dtype = "auto" if getattr(model, "kernels", None) == FP16 else own
    device = device or str(model.device)
    if hasattr(draft, "open") and hasattr(draft, "encode"):
        # A loaded drafter keeps its format and may be on another device of the same kind.
        device, dtype = device.partition(":")[0], None
    if getattr(draft, "kind", None) in ADDED:  # these have no device before they are attached to a target
        unbound: Model = draft
        return unbound
    if kernels is not None and isinstance(draft, str | Path):
        from ..models.fetching import is_addition

        kernels = None if is_addition(draft) else kernels  # an addition has none of its own
    return load_if_needed(draft, device, dtype, kernels)


def _fitted(model: Model, drafter: Model) -> Model:
    """Return the drafter attached to its target, or raise `ModelError` if the two do not fit."""
    if drafter.kind in ADDED:
        return cast("Unbound", drafter).on(model)
    if drafter.kind != model.kind:
        raise ModelError(
            f"a draft model must be of the target's kind: {model.name} is {model.kind}, {drafter.name} is "
            f"{drafter.kind}"
        )
    return drafter


def load_fitting(model: Model, names: Iterable[str], device: str | None, dtype: str | None) -> list[Model]:
    """Load those of a package's drafters that fit a target; print on stderr why another is left out.

    For example, a drafter that reads hidden states does not fit a GGUF file on llama.cpp.

    Raises
    ------
    ModelError
        If a drafter cannot be loaded.
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
    """Return the draft model, loaded if need be, or a part of the target; None if the method needs none.

    Raises
    ------
    ParameterError
        If the method needs a drafter and none is given or bundled with the target, or if it was set to draft
        longer blocks than the drafter predicts. A default block length is lowered instead.
    ModelError
        If the drafter does not fit the target or the method.
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
    """Lower a method's default block length to the drafter's maximum; refuse a longer one that was set.

    A length that an earlier run's drafter lowered is restored first.
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
    if fitted != length:  # a new instance checks it with the other parameters
        setattr(method, name, getattr(type(method)(**method.values | {name: fitted}), name))
