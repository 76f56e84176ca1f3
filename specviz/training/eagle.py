"""What EAGLE's drafters learn: the target's states (generation 1), or its words alone, step by step (3).

A batch is read by the frozen target; its states and predictions are what is learnt from. Only tokens of
answers count. Places are named as in `specviz.models.eagle`: from state i and token i + 1 the drafter says
what token i + 2 is, against the target's own distribution p_(i+1) there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig

from specviz.models.eagle import LAYERS, Eagle
from specviz.training.recipes import Recipe
from specviz.training.shards import Shard
from specviz.training.tokenizer import BEGIN, END, PAD, SIZE, STOP


def build(made: Recipe) -> Eagle:
    """A fresh drafter of the recipe's shape, seeded by the caller."""
    config = LlamaConfig(
        vocab_size=SIZE, hidden_size=made.width, num_hidden_layers=1, num_attention_heads=made.heads,
        num_key_value_heads=made.kv_heads, intermediate_size=made.feed_forward,
        max_position_embeddings=made.context, rms_norm_eps=1e-6, tie_word_embeddings=False,
        bos_token_id=BEGIN, eos_token_id=[END, STOP], pad_token_id=PAD,
    )  # fmt: skip
    return Eagle(config, made.generation, states=len(made.states))


def config(model: Eagle, target: str, states: Sequence[int]) -> dict[str, Any]:
    """The ``config.json`` of a drafter: a Llama's of one layer, as EAGLE's are published."""
    found = model.config.to_diff_dict()
    found |= {"architectures": ["LlamaForCausalLM" + "Eagle3" * (model.generation == 3)], "target": target}
    if model.generation == 3:
        found |= {"draft_vocab_size": len(model.lm_head.weight), LAYERS: list(states)}
    return found


@torch.no_grad()
def sizes(target: Any, texts: Shard, layers: Sequence[int], rows: int = 32) -> list[float]:
    """Root mean square of the target's states behind each of `layers`, over the first texts."""
    found = []
    for i in range(min(rows, len(texts))):
        ids = torch.from_numpy(texts.chat(i)[0].astype(np.int64))[None].to(target.device)
        states = target.get_decoder()(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
        found.append(torch.stack([states[layer][0, 1:].float().pow(2).mean() for layer in layers]))
    return torch.stack(found).mean(0).sqrt().tolist()


@torch.no_grad()
def begin(model: Eagle, target: Any, sizes: Sequence[float]) -> None:
    """Start generation 3 from the target's head, and from states brought to one size.

    Parameters
    ----------
    sizes : sequence of float
        Root mean square of the states of each layer that is read: deep layers' are many times the first
        ones'.
    """
    if model.generation == 3:
        rows = torch.arange(len(model.lm_head.weight))
        head = target.get_output_embeddings().weight
        model.lm_head.weight.copy_(head[rows if model.d2t is None else rows + model.d2t])
        for part, size in zip(model.fc.weight.chunk(len(sizes), 1), sizes):
            part.div_(size)


NOISE = 0.1  # EAGLE, section 4.2: uniform noise on the states, so that the drafter bears its own
WORDS = 1.0  # the weight of the words' loss beside the states'; there w_cls = 0.1: see the recipe's card
DECAY = 0.8  # EAGLE-3's: a later step of the test counts so much less


class EagleLoss:
    """Summed loss of a batch of chats, as `specviz.training.train.loss_sums` gives that of a model.

    Parameters
    ----------
    target : transformers model
        A causal one; it is not changed.
    layers : tuple of int
        Whose states generation 3 reads (0 the embedding, the last behind the final norm).
    steps : int
        Steps of the training-time test (generation 3).
    """

    def __init__(self, target: Any, layers: tuple[int, ...] = (), steps: int = 1) -> None:
        self.target, self.layers, self.steps = target.eval().requires_grad_(False), layers, steps

    def __call__(
        self, model: Eagle, tokens: np.ndarray, answer: np.ndarray, prompt_weight: float
    ) -> tuple[Tensor, Tensor]:
        """The loss for the gradient, and the first step's cross-entropy of words, to be shown."""
        device = self.target.device
        ids, said = torch.from_numpy(tokens).to(device), torch.from_numpy(answer).to(device)
        with torch.no_grad():
            net = self.target.get_decoder()
            found = net(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
            # Not the first of the states: some families scale it, or add positions.
            embedded = F.embedding(ids, self.target.get_input_embeddings().weight)
        if model.generation == 3:
            return self._fused(model, ids, said, embedded, found)
        return self._features(model, ids, said, embedded, found[-1])

    def _features(
        self, model: Eagle, ids: Tensor, said: Tensor, embedded: Tensor, states: Tensor
    ) -> tuple[Tensor, Tensor]:
        noisy = states[:, :-2]
        if model.training:
            noisy = noisy + (torch.rand_like(noisy) - 0.5) * 2 * NOISE
        x, base = model.enter(embedded[:, 1:-1], noisy)
        out = model.leave(base, Chains(model, x.shape[1]).attend(x))
        at = said[:, 2:]  # f^_(i+1) says token i + 2
        out, wanted = out[at], states[:, 1:-1][at]
        p, words = self._target(wanted), F.linear(out, self._head()).log_softmax(-1)
        cross = -(p * words).sum()
        imitated = F.smooth_l1_loss(out, wanted, reduction="sum") / out.shape[-1]
        return imitated + WORDS * cross, cross.detach()

    def _fused(
        self, model: Eagle, ids: Tensor, said: Tensor, embedded: Tensor, found: Any
    ) -> tuple[Tensor, Tensor]:
        states = model.fuse(torch.cat([found[layer] for layer in self.layers], -1))[:, :-2]
        width = states.shape[1]
        chains = Chains(model, width)
        total, shown = ids.new_zeros((), dtype=torch.float32), None
        for step in range(self.steps):
            # Entry i is the chain that begins at state i: at this step it reads token i + 1 + step.
            last = ids.shape[1] - 2 - step
            if last < 1:
                break
            read = F.pad(embedded[:, 1 + step : 1 + step + last], (0, 0, 0, width - last))
            x, base = model.enter(read, states)
            states = model.leave(base, chains.attend(x))
            at = said[:, 2 + step :]
            p = self._target(found[-1][:, 1 + step : 1 + step + last][at])
            words = model.lm_head(model.norm(states[:, :last][at])).log_softmax(-1)
            if model.d2t is not None:
                kept = torch.arange(len(model.d2t), device=ids.device) + model.d2t
                p = p[:, kept]
                p = p / p.sum(-1, keepdim=True).clamp(min=1e-6)
            cross = -(p * words).sum()
            total = total + DECAY**step * cross
            shown = cross.detach() if shown is None else shown
        assert shown is not None
        return total, shown

    def _head(self) -> Tensor:
        return self.target.get_output_embeddings().weight

    @torch.no_grad()
    def _target(self, states: Tensor) -> Tensor:
        """The target's distributions behind states [n, width]."""
        return F.linear(states, self._head()).float().softmax(-1)


class Chains:
    """Attention of drafting chains, one from every place of a text, all at once (EAGLE-3, figure 6).

    In the first step entry i is place i and sees the places up to it: plain causal attention. In a later step
    it stands so many places further on, and sees what chain i saw at first, and its own steps.

    Parameters
    ----------
    model : Eagle
    width : int
        Places of a text.
    """

    def __init__(self, model: Eagle, width: int) -> None:
        self.model, self.width = model, width
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def attend(self, x: Tensor) -> Tensor:
        """Of the next step's inputs [rows, width, size], what the attention gives, [.., heads * dim]."""
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, repeat_kv

        config, attention = self.model.config, self.model.layer.self_attn
        rows, dim, step = len(x), config.head_dim, len(self.keys)
        group = config.num_attention_heads // config.num_key_value_heads

        def heads(y: Tensor) -> Tensor:
            return y.view(rows, self.width, -1, dim).transpose(1, 2)

        positions = torch.arange(step, step + self.width, device=x.device)[None]
        cos, sin = self.model.rotary(x, positions)
        query, key = apply_rotary_pos_emb(heads(attention.q_proj(x)), heads(attention.k_proj(x)), cos, sin)
        self.keys.append(repeat_kv(key, group))
        self.values.append(repeat_kv(heads(attention.v_proj(x)), group))
        if step == 0:
            out = F.scaled_dot_product_attention(query, self.keys[0], self.values[0], is_causal=True)
        else:
            scores = query @ self.keys[0].mT
            beyond = torch.ones(self.width, self.width, dtype=torch.bool, device=x.device).triu(1)
            own = [(query * key).sum(-1, keepdim=True) for key in self.keys[1:]]
            weights = torch.cat([scores.masked_fill(beyond, -torch.inf), *own], -1) * dim**-0.5
            weights = weights.softmax(-1)
            out = weights[..., : self.width] @ self.values[0]
            for i, value in enumerate(self.values[1:]):
                out = out + weights[..., self.width + i, None] * value
        return out.transpose(1, 2).reshape(rows, self.width, -1)
