"""A small drafter cut out of its target: its first layers and part of its vocabulary.

The layers are trained; the embedding and the head's rows are the target's own, so a folder holds neither. It
holds ``config.json`` with ``model_type`` "specviz-trimmed", the target's name and content hash, and the
trimmed model's config under ``shape``; and ``model.safetensors`` with the layers, the last norm and
``tokens``, the id of each row of the head. Tokens not among these are never drafted.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from specviz.errors import ModelError
from specviz.models.choices import of_drafter
from specviz.models.eight_bits import unpack
from specviz.models.kernels import FP16, INT4, INT8, W8A8, round_to_halves
from specviz.models.layers import embeddings, head_rows, over_all
from specviz.models.model import Model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedConfig, PreTrainedModel

    from specviz.models.context import Context
    from specviz.models.protocols import Net, Settings

TYPE = "specviz-trimmed"
TOKENS = "tokens"


class TrimmedNet(nn.Module):
    """The trained part (layers and last norm) and the tokens of the head.

    Parameters
    ----------
    net : PreTrainedModel
        Of a Llama-like class; its embedding and head are never read.
    tokens : tensor of int [rows]
        The id of each row of the head.
    """

    tokens: Tensor

    def __init__(self, net: PreTrainedModel, tokens: Tensor) -> None:
        super().__init__()
        base: Net = net.model
        self.config = net.config
        self.layers, self.norm = base.layers, base.norm
        self.register_buffer(TOKENS, tokens)

    def temper(self, factor: float) -> None:
        """Scale the last norm, and thus the logits, by `factor`."""
        self.norm.weight.data *= factor

    def on(self, target: PreTrainedModel, dtype: torch.dtype | None = None) -> PreTrainedModel:
        """Build the complete model with a target's embedding and rows of its head; layers are copied."""
        table = embeddings(target)
        dtype = dtype or table.dtype
        net: Net = _empty(self.config)
        net.model.layers = copy.deepcopy(self.layers).to(table.device, dtype)
        net.model.norm = copy.deepcopy(self.norm).to(table.device, dtype)
        net.model.embed_tokens.weight = nn.Parameter(table.detach().to(dtype), False)
        net.lm_head = head_rows(target, self.tokens).to(dtype)
        net.model.rotary_emb = type(net.model.rotary_emb)(self.config).to(table.device)
        own, whole = net.model.rotary_emb, target.model.rotary_emb
        if own.inv_freq.shape == whole.inv_freq.shape:  # a GGUF file's factors are in no config
            own.inv_freq, own.original_inv_freq = (whole.inv_freq.clone() for _ in range(2))
        return net.eval()


class TrimmedModel(Model):
    """A trimmed drafter bound to its target: a causal model with the target's vocabulary.

    Parameters
    ----------
    weights : TrimmedNet
    target : Model
    name : str
    """

    def __init__(self, weights: TrimmedNet, target: Model, name: str) -> None:
        self.drafts_for = target.identity
        net = weights.on(target.net).requires_grad_(False)
        if target.kernels == FP16:  # rounding a drafter does not change the text of an exact method
            round_to_halves(net)
        # The trained layers were never stored in four bits.
        self._targets = INT8 if target.requested_kernels == INT4 else target.requested_kernels
        super().__init__(net, target.tokenizer, name, kernels=self._targets)
        if of_drafter(target) == W8A8:
            self._round()
        self.tokens = weights.tokens.to(target.device)
        self.vocabulary, self.text, self.eos = target.vocabulary, target.text, target.eos
        self.max_length = min(self.max_length, target.max_length)
        self.parameters = sum(p.numel() for p in weights.parameters())

    def _round(self) -> None:
        """Compute in eight bits if the model can then be invariant.

        Rounding turns tiny differences into steps. Without invariance, drafting the same tokens again in
        another pass, as dense traces and advice do, would often give different results.
        """
        self.requested_kernels, self.invariant = W8A8, False
        self._llama = self._laid()
        try:
            self.make_invariant()
        except ModelError:
            self.requested_kernels = self._targets
            self._llama = self._laid()

    def open(self, prompts: Sequence[Sequence[int]], room: int) -> Context:
        """See `Model.open`; with another number of threads the arithmetic may have to change."""
        if self.kernels == W8A8 and self.order_stale(False):
            self._round()
        return super().open(prompts, room)

    def first(self, layers: int) -> Model:
        """Refuse: the head has rows of some tokens only."""
        raise ModelError(f"{self.name} is cut out of its target already: call first of the target")

    def save(self, net: PreTrainedModel, dtype: torch.dtype, folder: Path) -> None:
        """Write the trained part of `net`, a network of the same structure, to a folder."""
        fields = {"model_type": TYPE, **self.drafts_for, "shape": net.config.to_dict()}
        write(TrimmedNet(net, self.tokens), fields, dtype, folder)

    def logits(self, last: Tensor) -> Tensor:
        """See `Model.logits`; tokens that the head lacks get −inf."""
        return over_all(super().logits(last), self.tokens, self.vocabulary)


def cut(target: PreTrainedModel, layers: int, tokens: Sequence[int]) -> TrimmedNet:
    """Cut out a target's first layers and last norm, in float32, keeping `tokens` in the head."""
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    net: Net = _empty(config)
    base: Net = target.model
    net.model.layers = copy.deepcopy(base.layers[:layers]).float()
    net.model.norm = copy.deepcopy(base.norm).float()
    return TrimmedNet(net, torch.tensor(sorted(tokens)))


def write(weights: nn.Module, config: Settings, dtype: torch.dtype, folder: Path) -> None:
    """Write ``model.safetensors``, with ``tokens`` as int32, and ``config.json``."""
    tensors = {
        name: value.to(torch.int32) if name == TOKENS else value.to(dtype).contiguous()
        for name, value in weights.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def load_trimmed(folder: Path) -> tuple[TrimmedNet, Settings]:
    """Load the trained part from a folder, in float32, and its ``config.json``."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    shape = dict(config["shape"])
    net = _empty(AutoConfig.for_model(shape.pop("model_type"), **shape))
    tensors = unpack(load_file(folder / "model.safetensors"))
    weights = TrimmedNet(net, tensors[TOKENS].long())
    tensors = {name: value if name == TOKENS else value.float() for name, value in tensors.items()}
    weights.load_state_dict(tensors | {TOKENS: weights.tokens}, assign=True)
    return weights.eval(), config


def _empty(config: PreTrainedConfig) -> Net:
    """A model's modules on the meta device, without weights."""
    config = copy.deepcopy(config)
    config.tie_word_embeddings = False
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)
