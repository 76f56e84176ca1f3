"""Losses of EAGLE drafters: on the target's states and tokens (generation 1), or on tokens alone (3).

The drafter learns from the frozen target's states and predictions. Only answer tokens count. Places are named
as in `specviz.models.eagle`: from state i and token i + 1 the drafter predicts token i + 2, and is compared
with the target's own distribution p_(i+1) there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

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
    """The ``config.json`` of a drafter: that of a one-layer Llama, as EAGLE drafters are published.

    `target` identifies the model that it was trained on, as `TorchModel.identity`.
    """
    fields = model.config.to_diff_dict()
    fields |= {"architectures": ["LlamaForCausalLM" + "Eagle3" * (model.generation == 3)], **target}
    if model.generation == 3:
        rows = words(model)
        count = model.config.vocab_size if rows is None else len(rows)
        fields |= {"draft_vocab_size": count, LAYERS: list(states)}
        if model.lm_head is None:
            fields[HEAD] = "target"
        # No tensor records this, and a drafter that is trained further must keep it.
        if model.variant.norm_before_residual:
            fields["norm_before_residual"] = True
    return fields


@torch.no_grad()
def sizes(
    target: PreTrainedModel, texts: Sequence[Sequence[int]], layers: Sequence[int], rows: int = 32
) -> list[float]:
    """Root mean square of the target's states after each of `layers`, over the first texts.

    Parameters
    ----------
    texts : sequence of sequences of int
        Token ids, two or more each: a text's first state, often far larger than the others, is left out.
    """
    squares = []
    for text in texts[:rows]:
        ids = torch.tensor([[int(token) for token in text]], device=target.device)
        states = target.get_decoder()(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
        squares.append(torch.stack([states[layer][0, 1:].float().pow(2).mean() for layer in layers]))
    return torch.stack(squares).mean(0).sqrt().tolist()


@torch.no_grad()
def begin(model: Eagle, target: PreTrainedModel, sizes: Sequence[float]) -> None:
    """Initialise generation 3: the target's head, states of one scale, attention to the token just read.

    With as many key-value heads as query heads, each token at first attends to itself and outputs its own
    embedding: g does not contain it, and learning this would take most of a short training.

    Parameters
    ----------
    sizes : sequence of float
        Root mean square of the states of each layer that is read; deep layers' are many times the first's.
    """
    if model.generation == 1:
        return
    if model.lm_head is not None:
        head, kept = target.get_output_embeddings().weight, words(model)
        model.lm_head.weight.copy_(head if kept is None else head[kept])
    for columns, rms in zip(model.fc.weight.chunk(len(sizes), 1), sizes):
        columns.div_(rms)
    attention, size = model.layer.self_attn, model.config.hidden_size
    parts = attention.q_proj, attention.k_proj, attention.v_proj
    if all(part.out_features == size for part in (*parts, attention.o_proj)):
        same = torch.eye(size, device=model.fc.weight.device)
        for part in parts:
            part.weight[:, :size] = same  # of the embedding
            part.weight[:, size:] *= LITTLE  # of the states
        attention.o_proj.weight.copy_(same)


LITTLE = 0.1
NOISE = 0.1  # EAGLE, section 4.2: uniform noise on the states, so that the drafter tolerates its own errors
# Weight of the tokens' loss relative to the states'; w_cls in the paper is 0.1: see town-eagle's card.
WORDS = 1.0
Marks = TypeVar("Marks", np.ndarray, Tensor)
DECAY = 0.8  # EAGLE-3: the weight of each step of the training-time test relative to the one before


class Texts(NamedTuple):
    """Texts as rows whose answers begin in one column: no chain is drafted to the left of `first`.

    Attributes
    ----------
    answers, there : tensor of bool [rows, n]
        Answer tokens; all places that are not padding on the left.
    embedded, states, last : tensor [rows, n, ...]
        Embeddings, the states that the drafter reads, and the target's last states.
    first : int
        The column of the state at which the first chain begins.
    moved : tensor of int [rows]
        Number of columns by which each text is shifted to the right.
    """

    answers: Tensor
    there: Tensor
    embedded: Tensor
    states: Tensor
    last: Tensor
    first: int
    moved: Tensor

    def judged(self, step: int) -> tuple[Tensor, Tensor]:
        """Marks of chains whose guesses count [rows, n - 2 - first - step], and the target's states there."""
        at = chains(self.answers[:, self.first :], step)
        return at, self.last[:, self.first + 1 + step : -1][at]


def chains(answers: Marks, step: int) -> Marks:
    """Marks of the chains, one per state, whose first and `step`-th further guesses are for answer tokens.

    Parameters
    ----------
    answers : array or tensor of bool [rows, n]

    Returns
    -------
    array or tensor of bool [rows, n - 2 - step]
    """
    return answers[:, 2 : answers.shape[1] - step] & answers[:, 2 + step :]


def aligned(answers: Tensor, embedded: Tensor, states: Tensor, last: Tensor) -> Texts:
    """Shift texts that are padded on the right so that their answers begin in one column."""
    places = torch.arange(answers.shape[1], device=answers.device)
    marked = answers & (places > 1)  # the first two tokens are never drafted
    begins = torch.where(marked, places, len(places)).amin(1)
    ends = torch.where(marked, places + 1, 0).amax(1)
    begins = torch.minimum(begins, ends)  # 0 for a text without an answer
    column = max(int(begins.max()), 2)
    moved = torch.where(ends > 0, column - begins, 0)
    source = torch.arange(max(int((ends + moved).max()), 3), device=answers.device) - moved[:, None]
    there, judged = source >= 0, (source >= 0) & (source < len(places))
    rows, source = torch.arange(len(moved), device=answers.device)[:, None], source.clamp(0, len(places) - 1)
    return Texts(
        marked[rows, source] & judged, there, embedded[rows, source], states[rows, source],
        last[rows, source], column - 2, moved,
    )  # fmt: skip


class EagleLoss:
    """Summed loss of a batch of chats, in nats.

    Parameters
    ----------
    target : transformers model
        A causal model, frozen and in evaluation mode; it is not changed.
    steps : int
        Steps of the training-time test (generation 3).
    """

    def __init__(self, target: PreTrainedModel, steps: int = 1) -> None:
        self.target, self.steps = target, steps
        self._rows: tuple[Tensor, Tensor] | None = None  # a drafter's tokens, and their rows in the head

    def __call__(
        self, model: Eagle, tokens: np.ndarray, answer: np.ndarray, kept: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The loss for the gradient, and the first step's cross-entropy of tokens for display.

        Only answers are judged. `kept` [rows, n, layers + 1, width] holds the target's states of the layers
        that generation 3 reads (0 is the embedding), then of the last layer, after the final norm.
        """
        fused = model.generation == 3
        texts = self._read(model, tokens, answer, kept)
        states = texts.states
        if model.training and not fused:
            states = states + (torch.rand_like(states) - 0.5) * 2 * NOISE
        total = shown = texts.last.new_zeros(())
        first, wanted = texts.judged(0)
        target = self._target(model, wanted)  # once: a later step's places are among the first step's
        place = first.new_zeros(first.shape, dtype=torch.long)
        place[first] = torch.arange(len(wanted), device=place.device)
        chains = unroll(model, texts.embedded, states, self.steps if fused else 1, texts.first, texts.there)
        for step, out in enumerate(chains):
            at, wanted = texts.judged(step)
            out = out[at]
            p = target[place[:, step:][at]] if step else target
            cross = -(p * self._words(model, out).float().log_softmax(-1)).sum()
            if fused:
                total = total + DECAY**step * cross
            else:
                imitated = F.smooth_l1_loss(out.float(), wanted, reduction="sum") / out.shape[-1]
                total = imitated + WORDS * cross
            if not step:
                shown = cross.detach()
        return total, shown

    @torch.no_grad()
    def hits(
        self, model: Eagle, tokens: np.ndarray, answer: np.ndarray, steps: int, kept: Tensor
    ) -> list[Tensor]:
        """Whether the drafter's most likely token is the target's, by step: bool [rows, n - 2 - step].

        Entry i is the chain from state i, whose guess is token i + 2 + step; false outside answers. Every
        step reads the text's own tokens; steps after the first read them with the drafter's own states.
        """
        every = []
        texts = self._read(model, tokens, answer, kept)
        drafted = unroll(model, texts.embedded, texts.states, steps, texts.first, texts.there)
        for step, out in enumerate(drafted):
            at, wanted = texts.judged(step)
            best = self._words(model, out[at]).argmax(-1)
            if (tokens_of := words(model)) is not None:
                best = tokens_of[best]
            rows, columns = at.nonzero(as_tuple=True)
            right = at.new_zeros(len(tokens), tokens.shape[1] - 2 - step)
            right[rows, columns + texts.first - texts.moved[rows]] = best == self._scores(wanted).argmax(-1)
            every.append(right)
        return every

    @torch.no_grad()
    def _read(self, model: Eagle, tokens: np.ndarray, answer: np.ndarray, kept: Tensor) -> Texts:
        device = self.target.device
        ids, answers = torch.from_numpy(tokens).to(device), torch.from_numpy(answer).to(device)
        kind = model.fc.weight.dtype
        # Not the first layer's input: some families add positions to it, but drafting reads only the table.
        embedded = F.embedding(ids, embeddings(self.target)).to(kind)
        kept = kept.to(device, kind)
        last = kept[:, :, -1]
        states = kept[:, :, :-1].flatten(2) if model.generation == 3 else last
        return aligned(answers, embedded, states, last)

    def _scores(self, states: Tensor) -> Tensor:
        """Apply the target's head to its states or to imitations of them, in their number format."""
        head = self.target.get_output_embeddings()
        return head(states.to(head.weight.dtype)).to(states.dtype)

    def _head(self, model: Eagle) -> Tensor:
        """The target's head rows for the drafter's tokens."""
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
        if model.lm_head is not None:
            return model.lm_head(out)
        # As drafting does: the whole head has its bias, some of its rows have none.
        bias = getattr(self.target.get_output_embeddings(), "bias", None) if words(model) is None else None
        return F.linear(out, self._head(model), None if bias is None else bias.to(out.dtype))

    @torch.no_grad()
    def _target(self, model: Eagle, states: Tensor) -> Tensor:
        """The target's distributions from its states [n, width], over the drafter's tokens."""
        tokens = words(model)
        if tokens is None:
            return self._scores(states).float().softmax(-1)
        bias = getattr(self.target.get_output_embeddings(), "bias", None)
        bias = None if bias is None else bias[tokens].to(states.dtype)
        return F.linear(states, self._head(model), bias).float().softmax(-1)


def words(model: Eagle) -> Tensor | None:
    """Token ids of the drafter's head rows; None if it has the whole vocabulary."""
    return None if model.generation == 1 else model.tokens


def unroll(
    model: Eagle, embedded: Tensor, states: Tensor, steps: int, first: int = 0, there: Tensor | None = None
) -> Iterator[Tensor]:
    """Draft chains from every place of a text and yield their states, step by step (EAGLE-3, figure 6).

    Parameters
    ----------
    model : Eagle
    embedded : tensor [rows, n, width]
        Embeddings of the text's tokens.
    states : tensor [rows, n, width * layers]
        The target's states.
    steps : int
    first : int
        The state at which the first chain begins.
    there : tensor of bool [rows, n], optional
        Places that may be attended to; default all.

    Yields
    ------
    tensor [rows, n - 2 - first - step, width]
        Entry i is the chain that begins at state first + i = j: it has read tokens j + 1 to j + 1 + step, and
        predicts token j + 2 + step. Its first step reads the target's states, later steps its own.
    """
    width = embedded.shape[1] - 2
    seen = torch.ones(width - first, width, dtype=torch.bool, device=embedded.device).tril(first)
    seen = seen if there is None else seen & there[:, None, None, :width]
    states, chains = model.fuse(states[:, :-2]), Chains(model, first, seen)
    for step in range(min(steps, width - first)):
        begin = first * (step > 0)  # before the first chain, only keys and values are needed
        read = F.pad(embedded[:, 1 + step + begin : 1 + width], (0, 0, 0, step))
        x, base = model.enter(read, states)
        states = model.leave(base[:, first - begin :], chains.attend(x))
        yield states[:, : width - first - step]


class Chains:
    """Attention of draft chains, one from every place of a text, in parallel (EAGLE-3, figure 6).

    In the first step entry i is place first + i and attends to the places up to it: plain causal attention.
    s steps later it is s places further on, and attends to what its chain saw at first and to its own steps.

    Parameters
    ----------
    model : Eagle
    first : int
        The place at which the first chain begins.
    seen : tensor of bool [..., chains, places]
        Places of the text that each chain attends to.
    """

    def __init__(self, model: Eagle, first: int, seen: Tensor) -> None:
        self.model, self.first, self.seen = model, first, seen
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def attend(self, x: Tensor) -> Tensor:
        """Attention output of one step, [rows, chains, heads * dim].

        `x` is the step's input, [rows, chains, size]; the first step reads all places, [rows, places, size].
        """
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb, repeat_kv

        attention, rows, step = self.model.layer.self_attn, len(x), len(self.keys)
        queries, groups, dim = attention_shape(self.model.config)
        group, (number, places) = queries // groups, self.seen.shape[-2:]
        before = x.shape[1] - number  # places before the first chain's

        def heads(y: Tensor) -> Tensor:
            return y.view(rows, y.shape[1], -1, dim).transpose(1, 2)

        positions = torch.arange(x.shape[1], device=x.device)[None] + (step + self.first if step else 0)
        cos, sin = self.model.rotary(x, positions)
        query, key = heads(attention.q_proj(x[:, before:])), heads(attention.k_proj(x))
        query, _ = apply_rotary_pos_emb(query, query, cos[:, before:], sin[:, before:])
        key, _ = apply_rotary_pos_emb(key, key, cos, sin)
        self.keys.append(repeat_kv(key, group))
        self.values.append(repeat_kv(heads(attention.v_proj(x)), group))
        if step == 0:
            out = F.scaled_dot_product_attention(query, self.keys[0], self.values[0], self.seen)
        else:
            scores = query @ self.keys[0].mT
            own = [(query * key).sum(-1, keepdim=True) for key in self.keys[1:]]
            weights = torch.cat([scores.masked_fill(~self.seen, -torch.inf), *own], -1) * dim**-0.5
            weights = weights.softmax(-1)
            out = weights[..., :places] @ self.values[0]
            for i, value in enumerate(self.values[1:]):
                out = out + weights[..., places + i, None] * value
        return out.transpose(1, 2).reshape(rows, number, -1)
