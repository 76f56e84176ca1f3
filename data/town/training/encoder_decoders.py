"""Losses of the bundled encoder-decoders.

A pair of prompt and answer is stored like a chat (:class:`town.training.shards.Shard`): the encoder's ids,
then the answer's, marked. A batch is split into the two sides when it is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from specviz.models.heads import BlockwiseHeads
from specviz.models.slots import SlotDrafter
from town.training.tokenizer import PAD

GUESSES = 6000  # most guesses of blockwise heads scored per batch: the vocabulary projection costs the most
CUTS = 4  # random cuts per text and batch; the slots start after a cut


def sides(tokens: np.ndarray, answer: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch's prompts and answers, int64 [rows, length] each, padded on the right."""
    parted = []
    for mine in (~answer & (tokens != PAD), answer):
        lengths = mine.sum(1)
        side = np.full((len(tokens), lengths.max()), PAD, np.int64)
        side[np.arange(side.shape[1]) < lengths[:, None]] = tokens[mine]
        parted.append(torch.from_numpy(side))
    return parted[0], parted[1]


def shifted(answers: torch.Tensor) -> torch.Tensor:
    """The decoder's input: the start token, then each answer without its last token."""
    return torch.cat((torch.full_like(answers[:, :1], PAD), answers[:, :-1]), 1)


def encoded(model: Any, prompts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The encoder's output for the prompts, and the mask of their padding."""
    mask = (prompts != PAD).long()
    return model.encoder(input_ids=prompts, attention_mask=mask).last_hidden_state, mask


def states(model: Any, prompts: torch.Tensor, answers: torch.Tensor) -> Sequence[torch.Tensor]:
    """The decoder's normalised hidden states after each layer, [rows, length, width] each."""
    source, mask = encoded(model, prompts)
    found = model.decoder(
        input_ids=shifted(answers), encoder_hidden_states=source, encoder_attention_mask=mask,
        use_cache=False, output_hidden_states=True,
    )  # fmt: skip
    norm = model.decoder.final_layer_norm
    return [*(norm(s) for s in found.hidden_states[1:-1]), found.last_hidden_state]


def layer_weights(exits: str, layers: int) -> dict[int, float]:
    """Loss weight per decoder layer: last layer only, first and last, or all layers.

    ``first``: half each, the early-exit model of BiLD (section 7.2.1). ``all``: layer i weighs i over
    the sum of all i (CALM, Schuster et al. 2022, eq. 6).
    """
    if exits == "first":
        return {0: 0.5, layers - 1: 0.5}
    if exits == "all":
        return {i: 2 * (i + 1) / (layers * (layers + 1)) for i in range(layers)}
    return {layers - 1: 1.0}


class WholeLoss:
    """Summed loss of a batch of pairs; the counterpart of :func:`town.training.train.loss_sums` for chats.

    Parameters
    ----------
    exits : str
        Which layers' losses count (:func:`layer_weights`).
    """

    def __init__(self, exits: str) -> None:
        self.exits = exits

    def __call__(
        self, model: Any, tokens: np.ndarray, answer: np.ndarray, prompt_weight: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss weighted over layers (for the gradient), and that of the last layer."""
        prompts, answers = (side.to(model.device) for side in sides(tokens, answer))
        at = answers != PAD
        wanted = answers[at]
        layers = states(model, prompts, answers)
        total, last = torch.zeros(()), torch.zeros(())
        for layer, weight in layer_weights(self.exits, len(layers)).items():
            last = cross_entropy(scores(model, layers[layer][at]), wanted, reduction="sum")
            total = total + weight * last
        return total, last.detach()


def scores(model: Any, normed: torch.Tensor) -> torch.Tensor:
    """Logits from the head that T5 shares with its embeddings."""
    scale = model.config.d_model**-0.5 if model.config.scale_decoder_outputs else 1.0
    return (normed * scale) @ model.lm_head.weight.T


class HeadsLoss:
    """Summed loss of blockwise heads on a frozen target, scaled to one guess per answer token.

    Only every n-th guess of a batch is scored, so that there are at most `GUESSES`.
    """

    def __init__(self, target: Any) -> None:
        self.target = target.eval().requires_grad_(False)

    def __call__(
        self, heads: BlockwiseHeads, tokens: np.ndarray, answer: np.ndarray, prompt_weight: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss twice: for the gradient and for display."""
        prompts, answers = (side.to(self.target.device) for side in sides(tokens, answer))
        with torch.no_grad():
            state = states(self.target, prompts, answers)[-1]
        at = answers != PAD
        wanted = ahead(answers, len(heads.offset))[at]
        counted = (wanted != PAD).nonzero()
        counted = counted[:: -(-len(counted) // GUESSES) or 1]
        guess = heads(state[at])[counted[:, 0], counted[:, 1]]
        each = cross_entropy(scores(self.target, guess), wanted[counted[:, 0], counted[:, 1]])
        total = each * at.sum()
        return total, total.detach()


def ahead(answers: torch.Tensor, heads: int) -> torch.Tensor:
    """The targets of heads 2, 3 ... at each position, [rows, length, heads]; ``<pad>`` past the end."""
    padding = torch.full_like(answers[:, :1], PAD).expand(-1, heads)
    return torch.cat((answers, padding), 1)[:, 1:].unfold(1, heads, 1)


class SlotsLoss:
    """Summed loss of a parallel drafter on a frozen target, scaled to one slot per answer token.

    Each answer is cut at `CUTS` random positions; the tokens after a cut are predicted in slots.
    """

    def __init__(self, target: Any) -> None:
        self.target = target.eval().requires_grad_(False)

    def __call__(
        self, drafter: SlotDrafter, tokens: np.ndarray, answer: np.ndarray, prompt_weight: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss twice: for the gradient and for display."""
        prompts, answers = (side.to(self.target.device) for side in sides(tokens, answer))
        with torch.no_grad():
            source, mask = encoded(self.target, prompts)
        lengths = (answers != PAD).sum(1)
        cuts = (torch.rand(len(answers), CUTS, device=lengths.device) * lengths[:, None]).long()
        source, mask, answers = (t.repeat_interleave(CUTS, 0) for t in (source, mask, answers))
        state, wanted = slotted(self.target, drafter, source, mask, answers, cuts.flatten())
        found = cross_entropy(scores(self.target, state[wanted != PAD]), wanted[wanted != PAD])
        total = found * lengths.sum()
        return total, total.detach()


def begin(drafter: SlotDrafter, target: Any) -> None:
    """Initialise a parallel drafter with the target's decoder layers, spread evenly from first to last."""
    own, blocks = drafter.decoder, target.decoder.block
    for block, at in zip(own.block, np.linspace(0, len(blocks) - 1, len(own.block)).round().astype(int)):
        block.load_state_dict(blocks[at].state_dict(), strict=False)  # only the first has a position bias
    own.final_layer_norm.load_state_dict(target.decoder.final_layer_norm.state_dict())


def slotted(
    target: Any, drafter: SlotDrafter, source: torch.Tensor, mask: torch.Tensor, answers: torch.Tensor,
    cuts: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The drafter's states with the answer tokens after `cuts` replaced by slots, and those tokens.

    Returns
    -------
    states [rows, length + 1, width], wanted int64 [rows, length + 1]
        ``<pad>`` is wanted where there is no slot.
    """
    written = torch.cat((torch.full_like(answers[:, :1], PAD), answers), 1)
    slot = torch.arange(written.shape[1], device=cuts.device) - cuts[:, None] - 1
    known = drafter.slot_embeddings
    wanted = torch.where((slot >= 0) & (slot < len(known)), written, PAD)
    embedded = torch.where(
        (slot < 0)[..., None], target.shared(written), known[slot.clamp(0, len(known) - 1)]
    )
    return drafter(embedded, source, mask), wanted
