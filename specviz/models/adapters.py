"""Adapters that turn a causal model into a masked-diffusion model: low-rank updates and a mask embedding.

A folder holds neither the model nor a tokenizer: ``config.json`` has ``model_type``
"specviz-diffusion-adapter", the target's name and content hash, its name for `specviz.load` (``load``),
``rank`` and ``mask_token_id``. ``model.safetensors`` has, for each adapted layer, ``NAME.down`` [rank, in]
and ``NAME.up`` [out, rank], whose product is added to the layer's matrix (LoRA, Hu et al. 2021), and ``mask``
[width], the embedding of the mask token. The adapted model has bidirectional attention, and a cell is
predicted at the position before it (Dream, Ye et al. 2025).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from typing_extensions import TypedDict

from specviz.errors import ModelError, one_line
from specviz.files import checked
from specviz.models import choices
from specviz.models.diffusion import Diffusion
from specviz.models.downloads import DOWNLOADS
from specviz.models.eight_bits import pack, unpack
from specviz.models.llama import describes
from specviz.models.model import Model
from specviz.models.torch_model import hashed, move

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from specviz.models.protocols import Net, Settings

TYPE = "specviz-diffusion-adapter"
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SHIFT = 1  # a cell is predicted at the position where the causal model would predict it


class Config(TypedDict):
    """``config.json`` of an adapter."""

    model_type: str
    target: str
    content: str
    load: str
    rank: int
    mask_token_id: int


def adapted(net: PreTrainedModel) -> dict[str, torch.nn.Linear]:
    """The linear layers that an adapter changes, by name."""
    return {
        name: module for name, module in net.named_modules()
        if isinstance(module, torch.nn.Linear) and name.rpartition(".")[2] in LAYERS
    }  # fmt: skip


def base(target: Model) -> Model:
    """Return `target` if it can be adapted.

    Raises
    ------
    ModelError
        If it is not a plain causal model of the Llama family on torch.
    """
    if not isinstance(target, Model) or not describes(target.net):
        raise ModelError(
            f"{target.name} cannot be adapted to masked diffusion: use a causal model of the Llama family "
            f"on torch"
        )
    return target


def read(folder: Path, name: str, fields: Settings) -> tuple[Config, dict[str, Tensor]]:
    """Read an adapter's folder: its config, and its tensors converted from eight bits.

    Parameters
    ----------
    fields : dict
        The contents of the folder's ``config.json``.

    Raises
    ------
    ModelError
        If the folder is damaged.
    """
    config = checked(Config, fields, f"{name}/config.json", error=ModelError)
    try:
        return config, unpack(load_file(folder / "model.safetensors"))
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise ModelError(f"{name} has no readable adapter: {one_line(error, 200)}") from None


def check_content(config: Config, name: str, content: str) -> None:
    """Raise `ModelError` if the target's weights are not those that the adapter was trained on."""
    if content != config["content"]:
        raise ModelError(
            f"{name} was trained on {config['target']} ({config['content'][:8]}), but {config['load']} has "
            f"different weights ({content[:8]})"
        )


def content_of(target: Model) -> str:
    """Hash of a target's weights in float32; those of a GGUF file as read, in any format."""
    return target.content if target.path is not None else hashed(target.net, target.tokenizer, torch.float32)


def check_shapes(target: Model, tensors: dict[str, Tensor], name: str) -> None:
    """Raise `ModelError` if the adapter's layers or shapes do not match the target's."""
    net: Net = target.net
    table: Tensor = net.get_input_embeddings().weight
    wanted: dict[str, tuple[int, ...]] = {"mask": (table.shape[1],)}
    given = {key: tuple(value.shape) for key, value in tensors.items()}
    rank = next((shape[0] for key, shape in given.items() if key.endswith(".down")), 0)
    for key, layer in adapted(net).items():
        wanted |= {f"{key}.down": (rank, layer.in_features), f"{key}.up": (layer.out_features, rank)}
    if given != wanted:
        odd = sorted(set(given.items()) ^ set(wanted.items()))[0][0]
        raise ModelError(
            f"{name} does not fit {target.name}: its {odd} is missing, unexpected or of another shape"
        )


@torch.no_grad()
def merge(
    target: Model, tensors: dict[str, Tensor], mask: int, name: str, kernels: str | None = None
) -> Diffusion:
    """Add an adapter to a target's weights, in place, and return the diffusion model.

    Parameters
    ----------
    target : Model
        Its weights are changed.
    tensors : dict of tensor
        The adapter's tensors, as returned by `read`.
    mask : int
        The mask token's id.
    name : str
    kernels : str, optional
        See `Diffusion`.

    Raises
    ------
    ModelError
        If the adapter's layers or shapes do not match the target's.
    """
    check_shapes(target, tensors, name)
    net: Net = target.net
    table: Tensor = net.get_input_embeddings().weight
    for key, layer in adapted(net).items():
        change = tensors[f"{key}.up"].float() @ tensors[f"{key}.down"].float()
        layer.weight.add_(change.to(layer.weight.device, layer.weight.dtype))
    table[mask] = tensors["mask"].to(table.device, table.dtype)  # also changes a tied head, harmlessly
    net.config.is_causal = False
    choices.convert(net, kernels, auto=False)
    made = Diffusion(net, target.tokenizer, name, mask=mask, shift=SHIFT, kernels=kernels)
    made.source = f"adapter of {target.name}"
    return made


def save(folder: Path, tensors: dict[str, Tensor], target: Model, load: str, mask: int) -> None:
    """Write an adapter's folder, with matrices in eight bits."""
    rank = next(value.shape[0] for key, value in tensors.items() if key.endswith(".down"))
    config = Config(
        model_type=TYPE, target=target.name, content=content_of(target), load=load, rank=rank,
        mask_token_id=mask,
    )  # fmt: skip
    stored = {key: value.detach().float().cpu().contiguous() for key, value in tensors.items()}
    save_file(pack(stored), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load_adapter(
    folder: Path, name: str, fields: Settings, device: torch.device, dtype: torch.dtype | str,
    kernels: str | None = None,
) -> Diffusion:  # fmt: skip
    """Load the diffusion model of an adapter's folder; the target is loaded by the name in its config.

    Parameters
    ----------
    fields : dict
        The contents of the folder's ``config.json``.
    device, dtype, kernels
        See `specviz.load`. ``auto`` is what `fetch` makes of ``stored``: the target's own format.

    Raises
    ------
    ModelError
        If the folder is damaged, or the target is missing or is not the one that the adapter was trained on.
    """
    from specviz.models.loading import GGUF, load

    config, tensors = read(folder, name, fields)
    spec, number = config["load"], "stored" if dtype == "auto" else dtype
    in_file = spec.startswith(GGUF) or spec in DOWNLOADS  # hashed as read, in any format
    for each in (number,) if in_file else ("stored", "float32"):  # a config may name too narrow a format
        try:
            target = load(spec, device, each, kernels="plain", invariant=False, backend="torch")
        except ModelError as error:
            raise ModelError(f"{name} needs its target {spec} (load in its config.json): {error}") from None
        target = base(target)
        content = content_of(target)
        if content == config["content"]:
            break
    check_content(config, name, content)
    move(target.net, target.name, device, number if isinstance(number, torch.dtype) else None)
    mask = config["mask_token_id"]
    if not 0 <= mask < target.vocabulary:
        raise ModelError(f"{name}: mask token {mask} is outside the {target.vocabulary:,} of {target.name}")
    return merge(target, tensors, mask, name, kernels)
