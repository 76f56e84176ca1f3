"""An early-exit pass against a slow forward by transformers' own layers with the same exit."""

from __future__ import annotations

import numpy as np
import pytest
import seq2seq
import torch
from families import PLAIN, VOCABULARY, make

from specviz.draft import Draft
from specviz.errors import ModelError
from specviz.models.context import Context
from specviz.models.encoder_decoder import EncoderDecoder
from specviz.models.model import Model

torch.set_num_threads(1)
LAYERS, TEXT, PROMPT = 4, [3, 1, 4, 1, 5, 9, 2], [7, 3, 11]
NOTHING = Draft.empty()
# In float32, a small model's matrices are packed and skipped layers use one product; in float64, neither.
DTYPES = torch.float32, torch.float64
KINDS = [(name, dtype) for name in (*PLAIN, *seq2seq.CONFIGS) for dtype in DTYPES]


def pair(name: str, dtype: torch.dtype) -> tuple[Model, Slow]:
    """A model, and the slow reference with its weights in float64."""
    if name in PLAIN:
        net, twin = (make(name, num_hidden_layers=LAYERS, layer_types=None) for _ in range(2))
        for layer in net.model.layers:  # norms that differ between layers
            layer.input_layernorm.weight.data.mul_(0.5 + torch.rand_like(layer.input_layernorm.weight))
        slow = SlowGemma2 if name == "gemma2" else SlowLlama
        return Model(net.to(dtype), name=name), slow(twin, net)
    depth = {"num_decoder_layers" if "t5" in name else "decoder_layers": LAYERS}
    net, twin = (seq2seq.make(name, dtype=dtype, **depth) for _ in range(2))
    return EncoderDecoder(net, name=name), (SlowT5 if "t5" in name else SlowBart)(twin, net)


class Slow:
    """One text in float64: each layer reads the inputs that it had, or was given, at every place so far."""

    text = TEXT  # `opened` has computed all but the last token

    def __init__(self, net: torch.nn.Module, like: torch.nn.Module) -> None:
        net.load_state_dict(like.state_dict())
        self.net = net.double()
        self.inputs: list[list[torch.Tensor]] = [[] for _ in range(LAYERS)]

    @torch.no_grad()
    def __call__(self, token: int, leave: int) -> torch.Tensor:
        """Logits after a token that exits after layer `leave`."""
        x = self.embedded(token, len(self.inputs[0]))
        for i in range(LAYERS):
            self.inputs[i].append(x)  # for a skipped layer, the state at the exit
            if i < leave:
                x = self.layer(i, torch.stack(self.inputs[i])[None])
        return self.head(x).float()

    @torch.no_grad()
    def cache(self, layer: int) -> list[torch.Tensor]:
        """Keys and values of a layer, [heads, slots, dim]."""
        return [made.transpose(0, 1) for made in self.made(layer, torch.stack(self.inputs[layer]))]


class SlowLlama(Slow):
    """Without a mask the last position attends to all, and only that one is read, here and below."""

    def embedded(self, token: int, place: int) -> torch.Tensor:
        return self.net.model.embed_tokens.weight[token]

    def turns(self, x: torch.Tensor) -> list[torch.Tensor]:
        places = torch.arange(x.shape[-2])[None]
        return [each.double() for each in self.net.model.rotary_emb(x, places)]

    def layer(self, i: int, x: torch.Tensor) -> torch.Tensor:
        return self.net.model.layers[i](x, position_embeddings=self.turns(x))[0, -1]

    def head(self, x: torch.Tensor) -> torch.Tensor:
        return self.net.lm_head(self.net.model.norm(x))

    def made(self, layer: int, x: torch.Tensor) -> list[torch.Tensor]:
        part, attention = self.net.model.layers[layer], self.net.model.layers[layer].self_attn
        x = part.input_layernorm(x)
        key, value = (p(x).view(len(x), -1, attention.head_dim) for p in (attention.k_proj, attention.v_proj))
        if hasattr(attention, "k_norm"):
            key = attention.k_norm(key)
        cos, sin = (t[0, :, None] for t in self.turns(x[None]))
        left, right = key.chunk(2, -1)
        return [key * cos + torch.cat((-right, left), -1) * sin, value]


class SlowGemma2(SlowLlama):
    def embedded(self, token: int, place: int) -> torch.Tensor:
        return self.net.model.embed_tokens(torch.tensor(token))

    def head(self, x: torch.Tensor) -> torch.Tensor:
        cap = self.net.config.final_logit_softcapping
        return torch.tanh(super().head(x) / cap) * cap


class SlowT5(Slow):
    text = seq2seq.prefix

    def __init__(self, net: torch.nn.Module, like: torch.nn.Module) -> None:
        super().__init__(net, like)
        self.text = seq2seq.prefix(net)
        with torch.no_grad():
            self.read = self.net.get_encoder()(input_ids=torch.tensor([PROMPT])).last_hidden_state
        self.stack = self.net.get_decoder()

    def embedded(self, token: int, place: int) -> torch.Tensor:
        return self.stack.embed_tokens(torch.tensor(token))

    def layer(self, i: int, x: torch.Tensor) -> torch.Tensor:
        bias = self.stack.block[0].layer[0].SelfAttention.compute_bias(x.shape[1], x.shape[1])
        return self.stack.block[i](x, position_bias=bias, encoder_hidden_states=self.read)[0][0, -1]

    def head(self, x: torch.Tensor) -> torch.Tensor:
        scaled = getattr(self.net.config, "scale_decoder_outputs", False)
        return self.net.lm_head(self.stack.final_layer_norm(x) * (len(x) ** -0.5 if scaled else 1))

    def made(self, layer: int, x: torch.Tensor) -> list[torch.Tensor]:
        own = self.stack.block[layer].layer[0]
        x, attention = own.layer_norm(x), own.SelfAttention
        return [p(x).view(len(x), attention.n_heads, -1) for p in (attention.k, attention.v)]


class SlowBart(SlowT5):
    def embedded(self, token: int, place: int) -> torch.Tensor:
        stack = self.stack
        x = super().embedded(token, place) * getattr(stack, "embed_scale", 1.0)
        x = x + stack.embed_positions.weight[place + getattr(stack.embed_positions, "offset", 0)]
        return stack.layernorm_embedding(x) if hasattr(stack, "layernorm_embedding") else x

    def layer(self, i: int, x: torch.Tensor) -> torch.Tensor:
        return self.stack.layers[i](x, encoder_hidden_states=self.read)[0, -1]

    def head(self, x: torch.Tensor) -> torch.Tensor:
        return self.net.lm_head(x) + self.net.final_logits_bias[0]

    def made(self, layer: int, x: torch.Tensor) -> list[torch.Tensor]:
        attention = self.stack.layers[layer].self_attn
        return [p(x).view(len(x), attention.num_heads, -1) for p in (attention.k_proj, attention.v_proj)]


def opened(model: Model) -> Context:
    context = model.open([TEXT if isinstance(model, Model) else PROMPT], 32)
    context.prefill()
    return context


def same_cache(context: Context, slow: Slow) -> None:
    for layer in range(LAYERS):
        for found, want in zip(context.store.data[layer, :, 0, :, : context.filled[0]], slow.cache(layer)):
            torch.testing.assert_close(found.double(), want, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_a_text_whose_tokens_leave_here_and_there(name: str, dtype: torch.dtype) -> None:
    model, slow = pair(name, dtype)
    context = opened(model)
    *before, token = slow.text
    for each in before:
        slow(each, LAYERS)
    for leave in (4, 1, 3, 2, 1, 1, 4, 2, 3, 4):
        found = context.forward(NOTHING, leave=lambda door: door.layer == leave)  # noqa: B023
        assert found.layers == leave
        assert found.tokens == 1
        assert found.hidden == {}
        assert found.logits[0].shape == (1, VOCABULARY)
        assert not found.logits[0].is_inference()
        torch.testing.assert_close(found.logits[0][0], slow(token, leave), atol=2e-4, rtol=1e-4)
        same_cache(context, slow)
        token = int(found.logits[0].argmax())
        context.extend([token])
    # A pass over nodes also reads the propagated states.
    found = context.forward(Draft.chain(np.array([5, 6])))
    for place, each in enumerate((token, 5, 6)):
        torch.testing.assert_close(found.logits[0][place], slow(each, LAYERS), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(("name", "dtype"), KINDS)
def test_a_rule_that_never_leaves_changes_nothing(name: str, dtype: torch.dtype) -> None:
    model, _ = pair(name, dtype)
    asked, plain = opened(model), opened(model)
    for _ in range(5):
        layers = []
        found = asked.forward(NOTHING, leave=lambda door: layers.append(door.layer))  # noqa: B023
        want = plain.forward(NOTHING)
        assert layers == [1, 2, 3]
        assert found.layers == LAYERS
        assert want.layers is None
        assert torch.equal(found.logits[0], want.logits[0])
        assert torch.equal(asked.store.data, plain.store.data)
        for context in (asked, plain):
            context.extend([int(found.logits[0].argmax())])


def test_what_a_rule_sees() -> None:
    """States before and after each layer, and what the model would predict there."""
    model, _ = pair("llama", torch.float32)
    whole = opened(model).forward(NOTHING, hidden=range(LAYERS))
    seen = []

    def rule(door, leave=3):
        torch.testing.assert_close(door.before, whole.hidden[door.layer - 1][0])
        torch.testing.assert_close(door.after, whole.hidden[door.layer][0])
        seen.append(door.logits())
        return door.layer == leave

    assert torch.equal(
        opened(model).forward(NOTHING, leave=lambda door: rule(door, 9)).logits[0], whole.logits[0]
    )
    seen.clear()
    found = opened(model).forward(NOTHING, leave=rule).logits[0]
    assert torch.equal(found, seen[-1])
    assert not found.is_inference()
    for layers, logits in enumerate(seen, 1):  # the first `layers` layers, with the same norm and head
        want = opened(model.first(layers)).forward(NOTHING).logits[0]
        torch.testing.assert_close(logits, want)


def test_leaving_again_writes_over_what_was_there() -> None:
    model, slow = pair("llama", torch.float64)
    context = opened(model)
    first = context.forward(NOTHING, leave=lambda door: door.layer == 1)
    again = context.forward(NOTHING, leave=lambda door: door.layer == 2)
    for token in TEXT[:-1]:
        slow(token, LAYERS)
    torch.testing.assert_close(again.logits[0][0], slow(TEXT[-1], 2), atol=1e-4, rtol=0)
    assert not torch.allclose(first.logits[0], again.logits[0])
    same_cache(context, slow)


def test_what_cannot_leave_is_refused_in_one_line() -> None:
    model, _ = pair("llama", torch.float32)
    before = opened(model)
    cache = before.store.data.clone()
    for context, draft, more in (
        (model.open([TEXT], 8), NOTHING, {}),  # seven pending tokens
        (before, Draft.chain(np.array([1])), {}),
        (before, NOTHING, {"hidden": (1,)}),
        (model.open([[1], [2]], 8), [NOTHING, NOTHING], {}),
    ):
        with pytest.raises(ModelError, match=r"^a pass that may exit early reads one pending token") as error:
            context.forward(draft, leave=lambda door: True, **more)
        assert "\n" not in str(error.value)
    assert torch.equal(before.store.data, cache)
    for other in (Model(make("gemma"), name="gem"), Model(make("llama"), name="gem", plain=False)):
        with pytest.raises(ModelError, match=r"^a pass of gem .* cannot exit early"):
            other.open([[1]], 8).forward(NOTHING, leave=lambda door: True)
