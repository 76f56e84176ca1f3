"""Small canvases for tests: tiny random bidirectional models, and a slow reference for their passes.

`Slow` has no packing, slots or masks: it keeps the keys and values of each position in a dict, and computes
one canvas at a time, position by position where the policy requires it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from specviz.methods.unmasking import SURE
from specviz.models.diffusion import Diffusion

GRID = 2.0**-30
TIES = ("none", "none", "twins", "still", "flat", "constant", "twins still")


@dataclass
class Case:
    """A model, prompts and a policy."""

    model: Diffusion
    prompts: list[list[int]]
    length: int
    policy: dict
    whole: bool
    eos: list[int]
    nodes: int  # N
    ties: str

    def __str__(self) -> str:
        return (
            f"length {self.length}, {self.policy}, whole {self.whole}, eos {self.eos}, N {self.nodes}, "
            f"ties {self.ties!r}, shift {self.model.shift}, prompts {self.prompts}"
        )


def case(seed: int, rows: int = 4, cache: str | None = None, ties: str | None = None) -> Case:
    """Draw a case that depends only on the seed."""
    rng = np.random.default_rng(seed)
    ties = ties or TIES[rng.integers(len(TIES))]
    model = small(rng, ties)
    length = int(rng.integers(1, 18))
    policy = {
        "block": int(rng.integers(1, 10)),
        "cache": cache or str(rng.choice(["none", "dual"])),
        "refresh": int(rng.integers(1, 21)),
    }
    prompts = [rng.integers(model.vocabulary, size=rng.integers(1, 7)).tolist() for _ in range(rows)]
    eos = rng.choice(model.vocabulary, size=rng.integers(0, 3), replace=False).tolist()
    nodes = int(rng.integers(1, min(6, length) + 1))
    return Case(model, prompts, length, policy, bool(rng.integers(2)), eos, nodes, ties)


def small(rng: np.random.Generator, ties: str = "none") -> Diffusion:
    """A tiny model in float64.

    `ties`: "twins": pairs of tokens with equal logits; "still": no position attends to another, so all masks
    get the same logits; "flat": attention is uniform; "constant": all logits are equal.
    """
    heads, kept = [(4, 1), (4, 2), (2, 2), (2, 1)][rng.integers(4)]
    vocabulary = int(rng.integers(7, 21))
    sizes = {
        "vocab_size": vocabulary, "hidden_size": 8, "intermediate_size": 12,
        "num_hidden_layers": int(rng.integers(1, 4)), "num_attention_heads": heads,
        "num_key_value_heads": kept, "max_position_embeddings": 64,
        "tie_word_embeddings": bool(rng.integers(2)),
    }  # fmt: skip
    net: torch.nn.Module
    if rng.integers(2):
        net = Qwen2ForCausalLM(Qwen2Config(**sizes))
    else:
        net = LlamaForCausalLM(LlamaConfig(**sizes))
    net = net.double().eval().requires_grad_(False)
    for parameter in net.parameters():
        noise = torch.from_numpy(rng.normal(size=tuple(parameter.shape)))
        parameter.copy_(noise * (0.5 if parameter.ndim > 1 else 0.1) + (parameter.ndim == 1))
    for layer in net.model.layers:
        layer.self_attn.is_causal = False
        for name in ("q_proj", "k_proj", "v_proj"):
            line = getattr(layer.self_attn, name)
            if line.bias is not None:
                line.bias.sub_(1)
            if "flat" in ties and name != "v_proj":
                line.weight.zero_()
                if line.bias is not None:
                    line.bias.zero_()
        if "still" in ties:
            layer.self_attn.o_proj.weight.zero_()
    half = vocabulary // 2
    if "twins" in ties:
        net.lm_head.weight[half : 2 * half] = net.lm_head.weight[:half].clone()
    if "constant" in ties:
        net.lm_head.weight.zero_()
    mask = int(rng.integers(vocabulary))
    return Diffusion(net, mask=mask, shift=int(rng.integers(2)), name="small")


class Slow:
    """A state of stepwise decoding, with the keys and values that its policy keeps.

    Attributes
    ----------
    rows : list of dict of int to (key, value)
        One dict per layer, by position.
    behind : set of int
        Positions whose token was placed after they were computed.
    """

    def __init__(
        self, weights: Weights, prompt: list[int], length: int, block: int, cache: str, refresh: int
    ):
        self.weights, self.begin, self.length = weights, len(prompt), length
        self.block, self.cache, self.refresh = block, cache, refresh
        self.tokens = [*prompt, *[weights.model.mask] * length]
        self.open = set(range(length))
        self.since = refresh
        self.rows: list[dict[int, tuple[np.ndarray, np.ndarray]]] = [{} for _ in weights.layers]
        self.behind: set[int] = set()

    def copy(self) -> Slow:
        """Copy the state."""
        other = Slow.__new__(Slow)
        other.__dict__ |= self.__dict__
        other.tokens, other.open = list(self.tokens), set(self.open)
        other.rows = [dict(rows) for rows in self.rows]
        other.behind = set(self.behind)
        return other

    @property
    def work(self) -> int | None:
        """The current block."""
        return min(self.open) // self.block if self.open else None

    @property
    def refreshes(self) -> bool:
        """Whether the next pass computes every position."""
        return self.cache == "none" or self.since >= self.refresh

    def window(self) -> list[int]:
        """The positions that the next pass computes."""
        everything = range(len(self.tokens))
        if self.refreshes:
            return list(everything)
        first = self.work * self.block if self.open else self.length
        wanted = {self.begin + c for c in range(first, min(first + self.block, self.length))}
        if self.weights.model.shift and first in self.open:
            wanted.add(self.begin + first - 1)
        return sorted(wanted | self.behind)

    def forward(self) -> dict[int, np.ndarray]:
        """Run one pass; return the logits of the masked cells it computes in this block and the next."""
        window = self.window()
        if self.refreshes:
            self.since = 0
        states = self.weights.forward(self.tokens, window, self.rows)
        self.behind -= set(window)
        shift = self.weights.model.shift
        return {
            cell: self.weights.logits(states[self.begin + cell - shift])
            for cell in sorted(self.open)
            if cell < (self.work + 2) * self.block and self.begin + cell - shift in states
        }

    def place(self, cell: int, token: int) -> None:
        """Unmask a cell with a token."""
        self.open.remove(cell)
        self.tokens[self.begin + cell] = token
        self.behind.add(self.begin + cell)
        self.since += 1

    def surest(self, logits: dict[int, np.ndarray]) -> tuple[int, int, float]:
        """Cell, token and log-odds of the next placement."""
        found = []
        for cell, row in logits.items():
            if cell // self.block == self.work:
                token = int(np.round(row / GRID).argmax())
                others = np.delete(row, token)
                odds = row[token] - others.max() - np.log(np.exp(others - others.max()).sum())
                odds = min(odds, SURE.default)
                found.append((-np.round(odds / GRID), cell, token, odds))
        _, cell, token, odds = min(found)
        return cell, token, odds

    def write(self, eos: list[int], whole: bool) -> list[tuple[int, int, float]]:
        """Decode to the end: (cell, token, log-odds) in order."""
        steps = []
        while True:
            steps.append(self.surest(self.forward()))
            self.place(*steps[-1][:2])
            if not self.open:
                return steps
            done = self.tokens[self.begin : self.begin + self.work * self.block]
            if not whole and set(done) & set(eos):
                return steps


class Weights:
    """A model's weights, and its layers in NumPy, one position at a time."""

    def __init__(self, model: Diffusion) -> None:
        self.model, net = model, model.net
        config = net.config
        self.heads, self.kept, self.eps = config.num_attention_heads, model.heads, config.rms_norm_eps
        self.dim = model.dim
        weight = {name: value.numpy() for name, value in net.state_dict().items()}
        self.embedding, self.norm = weight["model.embed_tokens.weight"], weight["model.norm.weight"]
        self.head = net.lm_head.weight.numpy()
        self.layers = [
            {name.removeprefix(start): value for name, value in weight.items() if name.startswith(start)}
            for start in (f"model.layers.{i}." for i in range(model.layers))
        ]
        cos, sin = net.model.rotary_emb(net.lm_head.weight, torch.arange(64)[None])
        self.cos, self.sin = cos[0].double().numpy(), sin[0].double().numpy()

    def normed(self, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x * x).mean() + self.eps) * weight

    def turned(self, x: np.ndarray, at: int) -> np.ndarray:
        half = self.dim // 2
        other = np.concatenate((-x[:, half:], x[:, :half]), 1)
        return x * self.cos[at] + other * self.sin[at]

    def forward(self, tokens: list[int], window: list[int], rows: list) -> dict[int, np.ndarray]:
        """Final states of the positions in `window`; their keys and values are written into `rows`."""
        x = {at: self.embedding[tokens[at]] for at in window}
        for layer, kept in zip(self.layers, rows):

            def line(name: str, value: np.ndarray, layer: dict = layer) -> np.ndarray:
                return layer[f"{name}.weight"] @ value + layer.get(f"{name}.bias", 0.0)

            queries = {}
            for at in window:
                h = self.normed(x[at], layer["input_layernorm.weight"])
                q, k, v = (line(f"self_attn.{name}_proj", h).reshape(-1, self.dim) for name in "qkv")
                queries[at] = self.turned(q, at)
                kept[at] = self.turned(k, at), v
            keys = np.stack([kept[at][0] for at in range(len(tokens))])  # [positions, key-value heads, dim]
            values = np.stack([kept[at][1] for at in range(len(tokens))])
            for at in window:
                out = []
                for head in range(self.heads):
                    mine = head * self.kept // self.heads
                    scores = keys[:, mine] @ queries[at][head] / np.sqrt(self.dim)
                    p = np.exp(scores - scores.max())
                    out.append(p @ values[:, mine] / p.sum())
                y = x[at] + line("self_attn.o_proj", np.concatenate(out))
                h = self.normed(y, layer["post_attention_layernorm.weight"])
                gate = line("mlp.gate_proj", h)
                x[at] = y + line("mlp.down_proj", gate / (1 + np.exp(-gate)) * line("mlp.up_proj", h))
        return x

    def logits(self, state: np.ndarray) -> np.ndarray:
        found = self.head @ self.normed(state, self.norm)
        found[self.model.mask] = -np.inf
        return found
