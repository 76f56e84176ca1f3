"""The weights of a Bergamot translator as torch modules, with the passes over whole texts for training.

A transformer encoder, and a decoder with a simpler simple recurrent unit in place of self-attention (Kim et
al. 2019, "From Research to Production and Back: Ludicrously Fast Neural Machine Translation", section 3.1).
From an input x_t it computes f_t = σ(W_f x_t + b), c_t = f_t ∘ c_{t-1} + (1 - f_t) ∘ W x_t and relu(c_t).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPS = 1e-6
PERIOD = 10_000.0
MOST_LAYERS = 256


@dataclass(frozen=True)
class Config:
    """The shape of a translator, with the field names of transformers' configs."""

    vocab_size: int
    d_model: int
    encoder_layers: int
    decoder_layers: int
    encoder_attention_heads: int
    decoder_attention_heads: int
    encoder_ffn_dim: int
    decoder_ffn_dim: int
    eos_token_id: int = 0
    decoder_start_token_id: int = 0  # embedded as zeros
    pad_token_id: int = 0
    max_position_embeddings: int = 1024
    model_type: str = "bergamot"
    is_encoder_decoder: bool = True
    _attn_implementation: str = "sdpa"


class Encoded(NamedTuple):
    """The encoder's output."""

    last_hidden_state: Tensor  # [rows, tokens, width]


class Scored(NamedTuple):
    """The output of a pass over whole texts."""

    logits: Tensor  # [rows, tokens, vocabulary]


class Attention(nn.Module):
    """Multi-head attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, source: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attend with queries from `x` [rows, n, width] to keys and values from `source` [rows, m, width]."""
        q, k, v = (
            proj(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for proj, y in ((self.q_proj, x), (self.k_proj, source), (self.v_proj, source))
        )
        out = F.scaled_dot_product_attention(q, k, v, mask)
        return self.out_proj(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """Two linear layers with a ReLU between them, a residual connection and a norm."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width, EPS)

    def forward(self, x: Tensor) -> Tensor:
        """Transform `x` [..., width]."""
        return self.norm(x + self.fc2(torch.relu(self.fc1(x))))


class Recurrence(nn.Module):
    """A simpler simple recurrent unit."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.forget, self.candidate = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the outputs for a whole text [rows, n, width], starting from a zero state."""
        f = torch.sigmoid(self.forget(x))
        new = (1 - f) * self.candidate(x)
        state, states = torch.zeros_like(new[:, 0]), []
        for i in range(x.shape[1]):
            state = torch.addcmul(new[:, i], f[:, i], state)
            states.append(state)
        return torch.relu(torch.stack(states, 1))


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, a norm after each."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.self_attn, self.norm = Attention(width, heads), nn.LayerNorm(width, EPS)
        self.ffn = FeedForward(width, inner)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Transform `x` [rows, n, width]."""
        return self.ffn(self.norm(x + self.self_attn(x, x, mask)))


class DecoderLayer(nn.Module):
    """Recurrence, attention over the source and feed-forward, a norm after each."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.rnn, self.rnn_norm = Recurrence(width), nn.LayerNorm(width, EPS)
        self.encoder_attn, self.encoder_norm = Attention(width, heads), nn.LayerNorm(width, EPS)
        self.ffn = FeedForward(width, inner)

    def forward(self, x: Tensor, source: Tensor, mask: Tensor | None) -> Tensor:
        """Transform `x` [rows, n, width], attending to `source` [rows, m, width]."""
        x = self.rnn_norm(x + self.rnn(x))
        return self.ffn(self.encoder_norm(x + self.encoder_attn(x, source, mask)))


class Encoder(nn.Module):
    """Embeddings, positions and layers."""

    def __init__(self, config: Config, words: nn.Embedding) -> None:
        super().__init__()
        width, heads, inner = config.d_model, config.encoder_attention_heads, config.encoder_ffn_dim
        self.embed_tokens = words
        self.layers = nn.ModuleList(EncoderLayer(width, heads, inner) for _ in range(config.encoder_layers))

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights."""
        return self.embed_tokens.weight.dtype

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Encoded:
        """Encode ids [rows, n]; `attention_mask` [rows, n] is 0 for padding."""
        x = self.embed_tokens(input_ids)
        x = x * math.sqrt(x.shape[-1]) + places(x.shape[1], x)
        mask = None if attention_mask is None else (attention_mask > 0)[:, None, None]
        for layer in self.layers:
            x = layer(x, mask)
        return Encoded(x)


class Decoder(nn.Module):
    """The decoder's layers."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, heads, inner = config.d_model, config.decoder_attention_heads, config.decoder_ffn_dim
        self.layers = nn.ModuleList(DecoderLayer(width, heads, inner) for _ in range(config.decoder_layers))


class Net(nn.Module):
    """A translator with one embedding table for the source, the decoder's text and the head."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        words = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder, self.decoder = Encoder(config, words), Decoder(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size)
        self.lm_head.weight = words.weight

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.encoder.device

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights."""
        return self.encoder.dtype

    def get_encoder(self) -> Encoder:
        """The encoder (transformers' method name)."""
        return self.encoder

    def get_decoder(self) -> Decoder:
        """The decoder (transformers' method name)."""
        return self.decoder

    def get_input_embeddings(self) -> nn.Embedding:
        """The embeddings (transformers' method name)."""
        return self.encoder.embed_tokens

    def get_output_embeddings(self) -> nn.Linear:
        """The head (transformers' method name)."""
        return self.lm_head

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None, use_cache: bool = False,
    ) -> Scored:  # fmt: skip
        """Compute logits for texts [rows, n] that begin with the start token, without a cache."""
        assert decoder_input_ids is not None
        source = self.encoder(input_ids, attention_mask).last_hidden_state
        mask = None if attention_mask is None else (attention_mask > 0)[:, None, None]
        x = self.encoder.embed_tokens(decoder_input_ids) * math.sqrt(self.config.d_model)
        x = F.pad(x[:, 1:], (0, 0, 1, 0)) + places(x.shape[1], x)
        for layer in self.decoder.layers:
            x = layer(x, source, mask)
        return Scored(self.lm_head(x))


def places(count: int, like: Tensor) -> Tensor:
    """Marian's position embeddings, sines then cosines, of the first `count` positions [count, width]."""
    half = like.shape[-1] // 2
    waves = torch.exp(torch.arange(half) * (-math.log(PERIOD) / (half - 1)))
    angles = torch.arange(count)[:, None] * waves
    return torch.cat((angles.sin(), angles.cos()), 1).to(like)
