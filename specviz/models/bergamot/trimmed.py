"""A small drafter cut out of a Bergamot translator: its decoder's first layers and part of its vocabulary.

The layers are trained; the encoder, the embeddings and the head's rows are the target's own, so a folder
holds none of these. It holds ``config.json`` with ``model_type`` "specviz-trimmed-bergamot", the target's
name and content hash, and ``shape``; and ``model.safetensors`` with the layers and ``tokens``, the id of each
row of the head.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from specviz.errors import ModelError
from specviz.models.bergamot import net as modules
from specviz.models.bergamot.model import Bergamot
from specviz.models.bergamot.net import MOST_LAYERS, Config, Decoder
from specviz.models.eight_bits import unpack
from specviz.models.encoder_decoder_context import TargetsEncoder
from specviz.models.kernels import FP16, round_to_halves
from specviz.models.layers import head_rows, over_all
from specviz.models.protocols import Net, Settings
from specviz.models.trimmed import TOKENS, write

TYPE = "specviz-trimmed-bergamot"


class TrimmedDecoder(nn.Module):
    """The trained part (layers of a decoder) and the tokens of the head.

    Parameters
    ----------
    config : Config
        Config of the complete drafter, with the reduced number of decoder layers.
    layers : ModuleList
    tokens : tensor of int [rows]
    """

    tokens: Tensor

    def __init__(self, config: Config, layers: nn.ModuleList, tokens: Tensor) -> None:
        super().__init__()
        self.config, self.layers = config, layers
        self.register_buffer(TOKENS, tokens)

    def temper(self, factor: float) -> None:
        """Scale the head's input, and thus the logits except for their bias, by `factor`."""
        last: Net = self.layers[-1]
        norm = last.ffn.norm
        norm.weight.data *= factor
        norm.bias.data *= factor

    def on(self, target: Net) -> Net:
        """Build the complete translator: the target's encoder, rows of its head, copies of these layers."""
        with torch.device("meta"):
            net = modules.Net(self.config)
        net.encoder = target.encoder
        net.decoder.layers = copy.deepcopy(self.layers).to(target.device, target.dtype)
        net.lm_head = head_rows(target, self.tokens)
        net.lm_head.bias = nn.Parameter(target.lm_head.bias.detach()[self.tokens.to(target.device)], False)
        return net.eval()


class TrimmedBergamot(Bergamot):
    """A trimmed drafter bound to its target: a translator with the target's vocabulary.

    Parameters
    ----------
    weights : TrimmedDecoder
    target : Bergamot
    name : str

    Raises
    ------
    ModelError
        If the shape or the head's tokens do not fit the target.
    """

    def __init__(self, weights: TrimmedDecoder, target: Bergamot, name: str) -> None:
        whole: Net = target.net
        if weights.config != replace(whole.config, decoder_layers=weights.config.decoder_layers):
            raise ModelError(f"{name} is damaged: its shape in config.json does not fit {target.name}")
        self.drafts_for = target.identity
        net = weights.on(whole).requires_grad_(False)
        if target.kernels == FP16:  # rounding a drafter does not change the text of an exact method
            round_to_halves(net)
        super().__init__(net, target.tokenizer, name, target.requested_kernels)
        self.encoder = TargetsEncoder(target)
        self.tokens = weights.tokens.to(target.device)
        self.vocabulary, self.text, self.eos = target.vocabulary, target.text, target.eos
        self.parameters = sum(p.numel() for p in weights.parameters())

    def save(self, net: Net, dtype: torch.dtype, folder: Path) -> None:
        """Write the trained part of `net`, a network of the same structure, to a folder."""
        fields = {"model_type": TYPE, **self.drafts_for, "shape": asdict(net.config)}
        write(TrimmedDecoder(net.config, net.decoder.layers, self.tokens), fields, dtype, folder)

    def logits(self, last: Tensor) -> Tensor:
        """See `EncoderDecoder.logits`; tokens that the head lacks get −inf."""
        return over_all(super().logits(last), self.tokens, self.vocabulary)


def cut(target: Net, layers: int, tokens: Sequence[int]) -> TrimmedDecoder:
    """Cut out the first layers of a translator's decoder, in float32, keeping `tokens` in the head."""
    config = replace(target.config, decoder_layers=layers)
    own = copy.deepcopy(target.decoder.layers[:layers]).float()
    return TrimmedDecoder(config, nn.ModuleList(own), torch.tensor(sorted(tokens)))


def load_trimmed(folder: Path) -> tuple[TrimmedDecoder, Settings]:
    """Load the trained part from a folder, in float32, and its ``config.json``."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    shape = Config(**config["shape"])
    if not 1 <= shape.decoder_layers <= MOST_LAYERS:
        raise ModelError(f"{folder} is damaged: a drafter has 1 to {MOST_LAYERS} decoder_layers")
    tensors = unpack(load_file(folder / "model.safetensors"))
    with torch.device("meta"):
        layers = Decoder(shape).layers
    weights = TrimmedDecoder(shape, layers, tensors[TOKENS].long())
    tensors = {name: value if name == TOKENS else value.float() for name, value in tensors.items()}
    weights.load_state_dict(tensors | {TOKENS: weights.tokens}, assign=True)
    return weights.eval(), config
