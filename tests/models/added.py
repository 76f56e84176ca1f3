"""Tiny random heads and slots on a tiny random T5, and a plain computation of their output."""

from __future__ import annotations

import torch
from seq2seq import make
from torch import Tensor

from specviz.models.additions import Heads, Slots
from specviz.models.encoder_decoder import EncoderDecoder
from specviz.models.heads import BlockwiseHeads
from specviz.models.slots import SlotDrafter

VOCABULARY = 5  # so small that random weights sometimes draft the right token
HEADS, SLOTS = 6, 7


def target(family: str = "t5", eos: tuple[int, ...] = (), seed: int = 0, **changes: object) -> EncoderDecoder:
    net = make(family, seed, **{"vocab_size": VOCABULARY} | changes)
    net.generation_config.eos_token_id = list(eos) or None
    served = EncoderDecoder(net, name="large")
    served.eos = eos
    return served


def heads(model: EncoderDecoder, seed: int = 1, number: int = HEADS) -> Heads:
    torch.manual_seed(seed)
    width = model.net.config.d_model
    net = BlockwiseHeads(number, width, 12).requires_grad_(False)
    for parameter in net.parameters():
        parameter.copy_(torch.randn(parameter.shape) * 0.5)
    return Heads(net, {"target": "large", "heads": number, "width": width}, "heads")


def slots(model: EncoderDecoder, seed: int = 1) -> Slots:
    torch.manual_seed(seed)
    width = model.net.config.d_model
    net = SlotDrafter(SLOTS, 2, width, 2, 24).requires_grad_(False).eval()
    for name, parameter in net.named_parameters():
        scale = 1.5 if "relative" in name else 0.35 if parameter.ndim > 1 else 0.1
        parameter.copy_(torch.randn(parameter.shape) * scale + float("norm" in name))
    return Slots(net, {"target": "large", "slots": SLOTS, "width": width}, "slots")


@torch.no_grad()
def states(model: EncoderDecoder, prompt: list[int], text: list[int]) -> Tensor:
    """The target's last hidden states after its start and each token of a text, [1 + n, width]."""
    ids = torch.tensor([prompt]), torch.tensor([[*model.prefix, *text]])
    out = model.net(input_ids=ids[0], decoder_input_ids=ids[1], use_cache=False, output_hidden_states=True)
    return out.decoder_hidden_states[-1][0]


@torch.no_grad()
def filled(model: EncoderDecoder, addition: Slots, prompt: list[int], text: list[int], n: int) -> Tensor:
    """Logits of n slots after a text, [n, vocabulary], from the trained module without a cache."""
    net, drafter = model.net, addition.net.to(model.dtype)
    source = net.encoder(input_ids=torch.tensor([prompt])).last_hidden_state
    written = net.shared(torch.tensor([[*model.prefix, *text]]))
    embedded = torch.cat([written, drafter.slot_embeddings[None, :n]], 1)
    state = drafter(embedded, source)[0, -n:]
    scaled = getattr(net.config, "scale_decoder_outputs", False)
    return net.lm_head(state * net.config.d_model**-0.5 if scaled else state).float()
