"""EAGLE drafters bound to a target, with their own KV cache."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specviz.models import geometry
from specviz.models.attention import attend
from specviz.models.choices import of_drafter
from specviz.models.context import StorageShape, Store, memory_error
from specviz.models.eagle import Eagle, attention_shape
from specviz.models.kernels import width
from specviz.models.layers import Lines, RMSNorm, Rotary, activation, compact, head_rows, stamp, turn
from specviz.models.ranks import whole

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specviz.models.additions import EagleHead
    from specviz.models.model import Model
    from specviz.models.text import Text


class EagleModel:
    """A drafter bound to its target: it reads the target's tokens and hidden states and drafts what follows.

    Parameters
    ----------
    addition : EagleHead
    target : Model
        Its embeddings and head are used if the drafter has none of its own.

    Attributes
    ----------
    generation : int
        1 or 3.
    layers : tuple of int
        Layers of the target whose states it reads, concatenated in this order.
    width : int
        Width of the concatenated states.
    geometry : dict
        Counts and widths, from `specviz.models.geometry.eagle`.
    """

    kind = "eagle"
    apart = True  # it also reads hidden states, so in a batch each row has a separate context

    text: Text
    tokenizer: PreTrainedTokenizerBase | None
    vocabulary: int
    max_length: int
    eos: tuple[int, ...]

    def __init__(self, addition: EagleHead, target: Model) -> None:
        self.addition, self.target, self.name = addition, target, addition.name
        self.net, self.bound_to = bound(addition.net, target), stamp(target.net)
        size = width(of_drafter(target), target.dtype)
        self.geometry = {**geometry.eagle(self.net, target.net), "weight_bytes": size}
        self.parameters = sum(p.numel() for p in self.net.parameters())
        self.generation = self.net.generation
        self.layers = addition.layers(target)
        self.width = self.net.target_size * len(self.layers)
        for name in ("text", "tokenizer", "vocabulary", "max_length", "eos"):
            setattr(self, name, getattr(target, name))
        self.arithmetic: Arithmetic | None = None

    def __repr__(self) -> str:
        return f"<EagleModel {self.name}: EAGLE-{self.generation} on {self.target.name}>"

    @property
    def device(self) -> torch.device:
        """The target's device."""
        return self.target.device

    @property
    def dtype(self) -> torch.dtype:
        """The target's number format."""
        return self.target.dtype

    @property
    def kernels(self) -> str:
        """Layout of the matrices (`specviz.models.kernels`)."""
        return of_drafter(self.target)

    @property
    def tokens(self) -> Tensor | None:
        """Token of each logit, a row of the head; None if the head covers the vocabulary."""
        return self.net.tokens

    def left(self, prompt: int) -> int:
        """Number of tokens that can follow a prompt of `prompt` tokens."""
        return self.target.left(prompt)

    def on(self, target: Model) -> EagleModel:
        """See `Addition.on`."""
        return self if target is self.target else self.addition.on(target)

    def open(self, prompts: Sequence[Sequence[int]], room: int) -> EagleContext:
        """Open an empty context for the text of a single prompt; for `room` see `Model.open`.

        Raises
        ------
        ModelError
            If the storage does not fit into memory.
        """
        (prompt,) = prompts
        if (now := stamp(self.target.net)) != self.bound_to:  # the target may have been trained or moved
            self.net, self.bound_to, self.arithmetic = bound(self.addition.net, self.target), now, None
        if self.arithmetic is None:
            self.arithmetic = Arithmetic(self.net, self.target)
        return EagleContext(self, len(prompt) + room)


def bound(net: Eagle, target: Model) -> Eagle:
    """Copy a drafter's weights to a target's device and number format.

    Many folders contain embeddings and a head equal to the target's. These are not copied; the target's are
    used instead.
    """
    theirs = {
        "embed_tokens": target.net.get_input_embeddings(),
        "lm_head": target.net.get_output_embeddings(),
    }
    net = copy.copy(net)
    net._modules = dict(net._modules)
    for name, their in theirs.items():
        own = net._modules[name]
        if not isinstance(own, nn.Embedding | nn.Linear) or own.weight.shape != their.weight.shape:
            continue
        if name == "lm_head" and (net.d2t is not None or their.bias is not None):
            continue
        weight = whole(their.weight)
        if torch.equal(own.weight.to(weight.device, weight.dtype), weight):
            net._modules[name] = None
    if net.lm_head is None and net.tokens is not None:  # its rows are some of the target's
        net.lm_head = head_rows(target.net, net.tokens)
    net = copy.deepcopy(net).to(target.device, target.dtype).requires_grad_(False)
    # Recreated because its frequencies must stay float32; the conversion has rounded them.
    net.rotary = LlamaRotaryEmbedding(net.config).to(target.device)
    return net


class Arithmetic:
    """The layer as one function over a storage, using the parameters of `Eagle` and its target directly.

    Parameters
    ----------
    net : Eagle
    target : Model
    """

    def __init__(self, net: Eagle, target: Model) -> None:
        layer, own = net.layer, target.net
        attention, mlp = layer.self_attn, layer.mlp
        layout = of_drafter(target)
        self.net, self.config, self.generation = net, net.config, net.generation
        # If the target is in shards, each rank gathers a copy: every rank holds the whole drafter.
        words = net.embed_tokens or own.get_input_embeddings()
        assert isinstance(words, nn.Embedding)
        self.embedding = whole(words.weight.detach())
        self.fc = Lines(net.fc, layout=layout)
        self.qkv = Lines(attention.q_proj, attention.k_proj, attention.v_proj, layout=layout)
        self.o = Lines(attention.o_proj, layout=layout)
        self.gate_up = Lines(mlp.gate_proj, mlp.up_proj, layout=layout)
        self.down = Lines(mlp.down_proj, layout=layout)
        self.head = Lines(net.lm_head or own.get_output_embeddings(), layout=layout)
        self.act = activation(net.config.hidden_act)
        self.after = layer.post_attention_layernorm.weight.detach()
        self.norm = RMSNorm(net.config.rms_norm_eps, self.embedding)
        self.variant = net.variant
        if net.generation == 3:
            self.before = layer.input_layernorm.weight.detach(), layer.hidden_norm.weight.detach()
            self.last = net.norm.weight.detach()
        self.rotary = Rotary(net.rotary, self.embedding)

    def fuse(self, states: Tensor) -> Tensor:
        """Fuse the target's states [n, width * layers] to [n, width]; see `Eagle.fuse`."""
        if self.generation == 1:
            return states
        if self.variant.norm_before_fc:
            states = self.norm(states, self.net.input_norm.weight)
        if self.variant.fc_norm:
            weights = [weight for norm in self.net.fc_norm for weight in norm.parameters()]
            parts = zip(weights, states.chunk(self.net.states, -1))
            states = torch.cat([self.norm(part, weight) for weight, part in parts], -1)
        return self.fc(states)

    def __call__(
        self, tokens: Tensor, states: Tensor, positions: slice, mask: Tensor | None, store: Store, keep: int
    ) -> tuple[Tensor, Tensor]:
        """Read tokens [n] with states [n, width], fused or the drafter's own, over an aimed storage.

        Returns
        -------
        states, logits : tensors [keep, width], [keep, rows of the head] (float32)
            For the last `keep` tokens.
        """
        (heads, groups, dim), n = attention_shape(self.config), len(tokens)
        embedded = F.embedding(tokens, self.embedding)
        if self.generation == 3:
            normed = self.norm(states, self.before[1])
            x = normed if self.variant.norm_before_residual else states
            y = self.qkv(torch.cat((self.norm(embedded, self.before[0]), normed), -1))
        else:
            x = self.fc(torch.cat((embedded, states), -1))
            y = self.qkv(x)
        y = y.view(1, n, heads + 2 * groups, dim)
        cos, sin = self.rotary(store.reach)
        turned = turn(y.narrow(2, 0, heads + groups), cos[positions], sin[positions])
        new = y.narrow(2, heads, 2 * groups).view(1, n, 2, groups, dim).permute(2, 0, 3, 1, 4)
        keys, values = store.write_both(0, new)
        queries = turned.narrow(2, 0, heads)[:, n - keep :]  # the other outputs are not needed
        out = attend(queries.transpose(1, 2), keys, values, mask, dim**-0.5)
        x = self.o.add(out.transpose(1, 2).reshape(keep, -1), x[n - keep :])
        gate, up = self.gate_up(self.norm(x, self.after)).chunk(2, -1)
        x = self.down.add(self.act(gate).mul_(up), x)
        if self.generation == 3:
            normed = self.norm(x, self.last)
            logits = compact(self.head(normed))
            x = normed if self.variant.norm_output else x
        else:
            logits = compact(self.head(x))
        return x, logits


class EagleContext:
    """A drafter's KV cache for one text, with one slot per pair of state and token.

    Pair i consists of the target's state at token i and of token i + 1: a text of n tokens has n − 1 pairs.
    A tree's nodes are read after them, with the drafter's own states, and the next pairs overwrite them.

    Parameters
    ----------
    model : EagleModel
    slots : int

    Attributes
    ----------
    length : int
        Number of pairs read.
    """

    def __init__(self, model: EagleModel, slots: int) -> None:
        self.model, self.length = model, 0
        heads, groups, dim = attention_shape(model.net.config)
        try:
            self.store = Store(StorageShape(1, 1, groups, slots, dim, model.dtype, model.device))
        except RuntimeError as error:
            raise memory_error(error, f"a cache of {slots} tokens for", model) from None
        self.group = heads // groups
        self.slots = slots
        # One row per tree node, 0 for the slots that it sees. Unused rows see the text and themselves.
        self.mask = torch.full((64, slots), -torch.inf, dtype=model.dtype, device=model.device)
        self.nodes = self.depth = 0

    def close(self) -> None:
        """Free the storage."""
        self.store = self.mask = None  # type: ignore[assignment]

    @torch.no_grad()
    def read(self, tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Read pairs of the text; return the state and the prediction after the last one.

        Parameters
        ----------
        tokens : tensor of int [n]
            For each state, the token that follows it.
        states : tensor [n, width]
            The target's states, its layers concatenated.

        Returns
        -------
        state, logits : tensors [1, width of the layer], [1, rows of the head]
        """
        start, n, rows = self.length, len(tokens), len(self.mask)
        end = start + n
        self.store.aim(start, n, end)
        self.length, self.nodes, self.depth = end, 0, 0
        self.mask[:, start:end] = 0
        tree = self.mask[:, end : end + rows]
        tree.fill_(-torch.inf).diagonal().zero_()
        arithmetic = self.model.arithmetic
        assert arithmetic is not None
        return arithmetic(tokens, arithmetic.fuse(states), slice(start, end), None, self.store, 1)

    @torch.no_grad()
    def grow(self, tokens: Tensor, states: Tensor, above: Tensor | None) -> tuple[Tensor, Tensor]:
        """Read one level of a tree below the text: k nodes, with the drafter's states of their parents.

        Parameters
        ----------
        tokens : tensor of int [k]
        states : tensor [k, width of the layer]
            The drafter's own state at each node's parent.
        above : tensor of int [k], optional
            Index of each parent among the nodes read so far, in reading order. None: the root.

        Returns
        -------
        states, logits : tensors [k, width], [k, rows of the head]
        """
        k = len(tokens)
        start = self.length + self.nodes
        end = start + k
        if self.nodes + k > len(self.mask):
            more = self.mask.new_full((self.nodes + 2 * k, self.slots), -torch.inf)
            more[:, : self.length] = 0
            more[:, self.length :].diagonal().zero_()
            more[: self.nodes] = self.mask[: self.nodes]
            self.mask = more
        rows = self.mask[self.nodes : self.nodes + k]
        if above is not None:  # a node sees what its parent sees
            torch.maximum(rows, self.mask.index_select(0, above), out=rows)
        self.store.aim(start, k, end)
        place = self.length + self.depth
        self.nodes, self.depth = self.nodes + k, self.depth + 1
        mask = rows[:, :end].expand(self.group, -1, -1).reshape(1, 1, -1, end)
        assert self.model.arithmetic is not None
        return self.model.arithmetic(tokens, states, slice(place, place + 1), mask, self.store, k)
