"""What EAGLE's drafters learn: the target's states (generation 1), or its words alone, step by step (3).

A batch is read by the frozen target; its states and predictions are what is learnt from. Only tokens of
answers count. Places are named as in `specviz.models.eagle`: from state i and token i + 1 the drafter says
what token i + 2 is, against the target's own distribution p_(i+1) there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from specviz.models.eagle import HEAD, LAYERS, Eagle, attention_shape
from specviz.models.layers import embeddings, head_rows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specviz.models.protocols import Settings


def config(model: Eagle, target: dict[str, str], states: Sequence[int]) -> Settings:
    """The ``config.json`` of a drafter: a Llama's of one layer, as EAGLE's are published.

    `target` is what it says of the model that it was trained on, as `TorchModel.identity`.
    """
    fields = model.config.to_diff_dict()
    fields |= {"architectures": ["LlamaForCausalLM" + "Eagle3" * (model.generation == 3)], **target}
    if model.generation == 3:
        rows = words(model)
        count = model.config.vocab_size if rows is None else len(rows)
        fields |= {"draft_vocab_size": count, LAYERS: list(states)}
        if model.lm_head is None:
            fields[HEAD] = "target"
    return fields


@torch.no_grad()
def sizes(
    target: PreTrainedModel, texts: Sequence[Sequence[int]], layers: Sequence[int], rows: int = 32
) -> list[float]:
    """Root mean square of the target's states behind each of `layers`, over the first texts.

    Parameters
    ----------
    texts : sequence of sequences of int
        Token ids, two or more each: a text's first state is left out, often far larger than the others.
    """
    squares = []
    for text in texts[:rows]:
        ids = torch.tensor([[int(token) for token in text]], device=target.device)
        states = target.get_decoder()(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
        squares.append(torch.stack([states[layer][0, 1:].float().pow(2).mean() for layer in layers]))
    return torch.stack(squares).mean(0).sqrt().tolist()


@torch.no_grad()
def begin(model: Eagle, target: PreTrainedModel, sizes: Sequence[float]) -> None:
    """Start generation 3 from the target's head, and from states brought to one size.

    Parameters
    ----------
    sizes : sequence of float
        Root mean square of the states of each layer that is read: deep layers' are many times the first's.
    """
    if model.generation == 3:
        if model.lm_head is not None:
            head, kept = target.get_output_embeddings().weight, words(model)
            model.lm_head.weight.copy_(head if kept is None else head[kept])
        for part, size in zip(model.fc.weight.chunk(len(sizes), 1), sizes):
            part.div_(size)


NOISE = 0.1  # EAGLE, section 4.2: uniform noise on the states, so that the drafter bears its own
WORDS = 1.0  # the weight of the words' loss beside the states'; there w_cls = 0.1: see the recipe's card
DECAY = 0.8  # EAGLE-3's: a later step of the test counts so much less


class EagleLoss:
    """Summed loss of a batch of chats, in nats.

    Parameters
    ----------
    target : transformers model
        A causal one, frozen and in its mode of evaluation: here it is read, not changed.
    layers : tuple of int
        Whose states generation 3 reads (0 the embedding, the last behind the final norm).
    steps : int
        Steps of the training-time test (generation 3).
    """

    def __init__(self, target: PreTrainedModel, layers: tuple[int, ...] = (), steps: int = 1) -> None:
        self.target, self.layers, self.steps = target, layers, steps
        self._rows: tuple[Tensor, Tensor] | None = None  # a drafter's tokens, and the target's head of them

    def __call__(
        self, model: Eagle, tokens: np.ndarray, answer: np.ndarray, prompt_weight: float,
        kept: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The loss for the gradient, and the first step's cross-entropy of words, to be shown.

        `kept` [rows, n, layers + 1, width] are the target's states of the layers that are read and of the
        last, where they were kept; else the target is run.
        """
        fused = model.generation == 3
        answers, embedded, states, last = self._read(model, tokens, answer, kept)
        if model.training and not fused:
            states = states + (torch.rand_like(states) - 0.5) * 2 * NOISE
        total = shown = last.new_zeros(())
        for step, out in enumerate(unroll(model, embedded, states, self.steps if fused else 1)):
            at = answers[:, 2 + step :]
            out, wanted = out[at], last[:, 1 + step : -1][at]
            cross = -(self._target(model, wanted) * self._words(model, out).log_softmax(-1)).sum()
            if fused:
                total = total + DECAY**step * cross
            else:
                imitated = F.smooth_l1_loss(out, wanted, reduction="sum") / out.shape[-1]
                total = imitated + WORDS * cross
            if not step:
                shown = cross.detach()
        return total, shown

    def right(
        self, model: Eagle, tokens: np.ndarray, answer: np.ndarray, steps: int, kept: Tensor | None = None
    ) -> tuple[list[int], list[int]]:
        """How often the drafter's likeliest token is the target's, 1, 2 ... `steps` steps on; of how many."""
        each = self.hits(model, tokens, answer, steps, kept)
        counted = [int(answer[:, 2 + step :].sum()) for step in range(len(each))]
        none = [0] * (steps - len(each))
        return [int(step.sum()) for step in each] + none, counted + none

    @torch.no_grad()
    def hits(
        self, model: Eagle, tokens: np.ndarray, answer: np.ndarray, steps: int, kept: Tensor | None = None
    ) -> list[Tensor]:
        """Where the drafter's likeliest token is the target's, by step: bool [rows, n - 2 - step].

        Entry i is the chain from state i, whose guess is token i + 2 + step; false outside of answers. The
        text's own tokens are read in every step; after the first, the drafter's own states with them.
        """
        every = []
        answers, embedded, states, last = self._read(model, tokens, answer, kept)
        for step, out in enumerate(unroll(model, embedded, states, steps)):
            at = answers[:, 2 + step :]
            best = self._words(model, out[at]).argmax(-1)
            if (tokens_of := words(model)) is not None:
                best = tokens_of[best]
            right = torch.zeros_like(at)
            right[at] = best == self._scores(last[:, 1 + step : -1][at]).argmax(-1)
            every.append(right)
        return every

    @torch.no_grad()
    def _read(
        self, model: Eagle, tokens: np.ndarray, answer: np.ndarray, kept: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Marks of the answers [rows, n], embeddings, states that the drafter reads, final states."""
        device = self.target.device
        ids, answers = torch.from_numpy(tokens).to(device), torch.from_numpy(answer).to(device)
        kind, fused = model.fc.weight.dtype, model.generation == 3
        # Not the first layer's input: some families add positions to it, and a draft knows the table alone.
        embedded = F.embedding(ids, embeddings(self.target)).to(kind)
        if kept is not None:
            kept = kept.to(device, kind)
            last = kept[:, :, -1]
            return answers, embedded, kept[:, :, :-1].flatten(2) if fused else last, last
        net = self.target.get_decoder()
        layers = net(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
        last = layers[-1].to(kind)
        states = torch.cat([layers[layer] for layer in self.layers], -1).to(kind) if fused else last
        return answers, embedded, states, last

    def _scores(self, states: Tensor) -> Tensor:
        """The target's head, of its states or of those that imitate them, in the drafter's number format."""
        head = self.target.get_output_embeddings()
        return head(states.to(head.weight.dtype)).to(states.dtype)

    def _head(self, model: Eagle) -> Tensor:
        """The target's head, of the tokens that the drafter has."""
        tokens = words(model)
        if tokens is None:
            return self.target.get_output_embeddings().weight.to(model.fc.weight.dtype)
        if self._rows is None or not torch.equal(self._rows[0], tokens):
            self._rows = tokens, head_rows(self.target, tokens).weight.to(model.fc.weight.dtype)
        return self._rows[1]

    def _words(self, model: Eagle, out: Tensor) -> Tensor:
        if model.generation == 1:
            return self._scores(out)
        out = model.norm(out)
        return F.linear(out, self._head(model)) if model.lm_head is None else model.lm_head(out)

    @torch.no_grad()
    def _target(self, model: Eagle, states: Tensor) -> Tensor:
        """The target's distributions behind its states [n, width], over the words that the drafter has."""
        few = words(model) is not None
        return (F.linear(states, self._head(model)) if few else self._scores(states)).softmax(-1)


def words(model: Eagle) -> Tensor | None:
    """Ids of the tokens that the drafter's head has; None: all."""
    return None if model.generation == 1 else model.tokens


def unroll(model: Eagle, embedded: Tensor, states: Tensor, steps: int) -> Iterator[Tensor]:
    """What drafting chains from every place of a text make up, step by step (EAGLE-3, figure 6).

    Parameters
    ----------
    model : Eagle
    embedded : tensor [rows, n, width]
        Of the text's tokens.
    states : tensor [rows, n, width * layers]
        The target's.
    steps : int

    Yields
    ------
    tensor [rows, n - 2 - step, width]
        Entry i is the chain that begins at state i: it has read tokens i + 1 to i + 1 + step, and says token
        i + 2 + step. In its first step it read the target's state, in the others its own.
    """
    width = embedded.shape[1] - 2
    states, chains = model.fuse(states[:, :-2]), Chains(model, width)
    for step in range(min(steps, width)):
        left = width - step
        read = F.pad(embedded[:, 1 + step : 1 + width], (0, 0, 0, step))
        x, base = model.enter(read, states)
        states = model.leave(base, chains.attend(x))
        yield states[:, :left]


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
        """What the attention gives, [rows, width, heads * dim], for a step's inputs [rows, width, size]."""
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, repeat_kv

        attention, rows, step = self.model.layer.self_attn, len(x), len(self.keys)
        queries, groups, dim = attention_shape(self.model.config)
        group = queries // groups

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
