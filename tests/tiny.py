"""Tiny models for tests: a table instead of a network, and random Llamas of a few thousand weights."""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import torch

from specviz.draft import Draft
from specviz.errors import ModelError
from specviz.loop.run import generate


class TableModel:
    """A language model that is a table: logits in float64, a function of the whole text so far.

    Parameters
    ----------
    vocabulary : int
    seed : int
        Two models with the same seed are identical.
    near : TableModel, optional
        Logits are between this model's and the seed's own, so that a drafter can be good.
    """

    kind = "causal"
    dtype = torch.float64
    device = torch.device("cpu")
    parameters = 0
    tokenizer = None

    def __init__(
        self, vocabulary=4, seed=0, eos=(), max_length=64, scale=2.0, near=None, mix=0.7, name="table"
    ):
        self.vocabulary, self.seed, self.eos, self.max_length = vocabulary, seed, tuple(eos), max_length
        self.scale, self.near, self.mix, self.name = scale, near, mix, name
        self.fed = []  # tokens of each pass
        self.opened = 0

    def logits(self, text) -> torch.Tensor:
        own = _row(self.seed, self.vocabulary, tuple(text)) * self.scale
        return own if self.near is None else self.mix * self.near.logits(text) + (1 - self.mix) * own

    def encode(self, prompt):
        return [ord(c) % self.vocabulary for c in prompt] if isinstance(prompt, str) else list(prompt)

    def decode(self, ids):
        return "".join(chr(97 + i) for i in ids)

    def piece(self, token):
        return b"%c" % (97 + token)

    def check_vocabulary(self, other):
        if self.vocabulary != other.vocabulary:
            raise ModelError(f"the vocabularies differ in size: {self.vocabulary} and {other.vocabulary}")

    def left(self, prompt):
        return self.max_length - prompt

    def first(self, layers):
        """A table close to this one, as a model's first layers approximate the whole."""
        name = f"{self.name}[:{layers}]"
        size = self.vocabulary, self.seed + 1000, self.eos, self.max_length, self.scale
        return TableModel(*size, near=self, name=name)

    def open(self, prompts, room):
        self.opened += 1
        return TableContext(self, list(prompts[0]), room)


@lru_cache(100_000)
def _row(seed, vocabulary, text):
    rng = np.random.default_rng([seed, *text])
    return torch.from_numpy(rng.normal(size=vocabulary))


class TableContext:
    """One row of text over a table, as strict about its use as a real context."""

    def __init__(self, model, text, room):
        self.model, self.text, self.slots = model, text, len(text) + room
        self.cached, self.draft, self.closed = 0, None, False

    @property
    def length(self):
        return [len(self.text)]

    def extend(self, tokens):
        if not torch.is_tensor(tokens):
            (tokens,) = tokens
        self.text += [int(t) for t in tokens]
        assert len(self.text) <= min(self.slots, self.model.max_length)
        self.draft = None

    def prefill(self):
        fed = max(len(self.text) - 1 - self.cached, 0)
        self.cached = max(self.cached, len(self.text) - 1)
        return fed

    def forward(self, draft: Draft, hidden=()):
        assert len(self.text) + len(draft) <= min(self.slots, self.model.max_length)
        tokens = [int(t) for t in draft.tokens]
        texts = [[tokens[j] for j in draft.path(i)] for i in range(-1, len(draft))]
        fed = max(len(self.text) - self.cached, 1) + len(draft)
        self.model.fed.append(fed)
        self.cached, self.draft = len(self.text), tokens
        rows = torch.stack([self.model.logits(self.text + text) for text in texts])
        return SimpleNamespace(logits=[rows], tokens=fed, hidden={})

    def commit(self, path):
        self.text += [self.draft[node] for node in path]
        self.cached, self.draft = len(self.text), None

    def rewind(self, length):
        assert 1 <= length <= len(self.text)
        del self.text[length:]
        self.cached, self.draft = min(self.cached, length), None

    def reserve(self, room):
        self.slots = max(self.slots, min(len(self.text) + room, self.model.max_length))

    def branch(self, lengths, room):
        return TableRows([TableContext(self.model, self.text[:length], room) for length in lengths])

    def close(self):
        self.closed = True


class TableRows:
    """Several rows of text over a table, for code that reads its rows separately."""

    def __init__(self, rows):
        self.rows = rows

    def extend(self, tokens):
        for row, new in zip(self.rows, tokens, strict=True):
            row.extend([new])

    def forward(self, drafts, hidden=()):
        passes = [row.forward(draft) for row, draft in zip(self.rows, drafts, strict=True)]
        return SimpleNamespace(logits=[each.logits[0] for each in passes], tokens=0, hidden={})

    def close(self):
        for row in self.rows:
            row.close()


def llama(seed=0, layers=2, vocabulary=48, eos=(1,), max_length=96, name=None, like=None, noise=0.0):
    """A random Llama; with `like`, that model's weights plus noise, so that it drafts well."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from specviz.models import Model

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_length,
        initializer_range=0.5,
        bos_token_id=0,
        eos_token_id=list(eos),
        pad_token_id=None,
    )
    torch.manual_seed(seed)
    net = LlamaForCausalLM(config).eval()
    if like is not None:
        with torch.no_grad():
            for mine, theirs in zip(net.parameters(), like.net.parameters()):
                mine.copy_(theirs + noise * theirs.std() * torch.randn_like(theirs))
    return Model(net, name=name or f"llama-{seed}")


def by_heart(target, prompts: list[list[int]]) -> list[list[int]]:
    """The prompts, and one to hold out: its answer is the end of the first prompt's, learnt by heart."""
    first = generate(target, prompts[:1], "autoregressive", max_new_tokens=1)
    return [*prompts, [*prompts[0], *first.outputs["token"].tolist()]]
