"""Counts and widths of a model, from which the costs of its passes are computed.

A geometry is a plain dict of `schema.SHAPE_FIELDS`, stored in a run's metadata (``run["model"]["shape"]``)
and read by `specviz.metrics.costs`. It exists only if the model has exactly the matrices that it implies: a
model with packed weights, adapters or layers that differ has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from torch import nn

from specviz.models import experts
from specviz.models.layers import embeddings
from specviz.models.ranks import here

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

    from specviz.models.protocols import Net, Settings


LAYER = ("layers", "hidden", "heads", "kv_heads", "head_dim", "feed_forward")
BYTES = ("weight_bytes", "cache_bytes", "activation_bytes")  # of an element


def causal(net: PreTrainedModel, layers: int) -> Settings | None:
    """The geometry of the first `layers` layers of a transformers causal model.

    Returns
    -------
    dict or None
        `schema.SHAPE_FIELDS`, and for a mixture `schema.EXPERT_FIELDS` under ``experts``. None if the model's
        matrices differ from those that these fields imply.
    """
    config = net.config
    stack = _stack(net)
    if stack is None:
        return None
    hidden, heads = config.hidden_size, config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    dim = getattr(config, "head_dim", None) or hidden // heads
    inner = _first_of(config, "intermediate_size", "n_inner", "ffn_dim") or 4 * hidden
    if experts.of_layer(stack[0]) is not None:
        inner = _first_of(config, "moe_intermediate_size") or inner
    sizes = _layer_sizes(layers, hidden, heads, kv_heads, dim, inner) | _ends(net)
    chosen = _first_of(config, "num_experts_per_tok", "top_k_experts")
    return _checked(sizes, net, stack, 2 * hidden * dim * (heads + kv_heads), chosen)


def encoder_decoder(net: PreTrainedModel, layers: int, prefix: int) -> Settings | None:
    """The geometry of a transformers encoder-decoder with the first `layers` layers of its decoder.

    Parameters
    ----------
    net : PreTrainedModel
        Of the T5, mT5, BART and Marian families.
    layers : int
    prefix : int
        Number of tokens that every text of the decoder begins with.

    Returns
    -------
    dict or None
        `schema.SHAPE_FIELDS` of the decoder, whose layers also attend to the source; ``prefix``; and
        `schema.ENCODER_FIELDS` under ``encoder``. None if the model's matrices differ.
    """
    config = net.config
    encoder, decoder = (_stack(part) for part in (net.get_encoder(), net.get_decoder()))
    if encoder is None or decoder is None:
        return None
    hidden = _first_of(config, "d_model", "hidden_size")

    def sizes(side: str, count: int) -> dict[str, int]:
        heads = _first_of(config, f"{side}_attention_heads", "num_heads")
        dim = getattr(config, "d_kv", None) or hidden // heads
        return _layer_sizes(count, hidden, heads, heads, dim, _first_of(config, f"{side}_ffn_dim", "d_ff"))

    own, other = sizes("decoder", layers), sizes("encoder", len(encoder))
    attention = 8 * hidden * own["heads"] * own["head_dim"]  # self-attention and cross-attention
    written = _checked(
        {"layers": layers, "prefix": prefix} | own | _ends(net), net.get_decoder(), decoder, attention
    )
    read = _checked(other, net.get_encoder(), encoder, 4 * hidden * other["heads"] * other["head_dim"])
    return None if written is None or read is None else written | {"encoder": read}


def eagle(net: Net, target: Net) -> Settings:
    """The geometry of an EAGLE drafter with its own head or its target's.

    Parameters
    ----------
    net : specviz.models.eagle.Eagle
    target : PreTrainedModel

    Returns
    -------
    dict
        `schema.SHAPE_FIELDS` of its layer, and `schema.EAGLE_FIELDS` under ``eagle``.
    """
    config, layer, fc = net.config, net.layer, net.fc.weight
    head = (net.lm_head or target.get_output_embeddings()).weight
    embedding = (net.embed_tokens or target.get_input_embeddings()).weight
    vectors = sum(p.numel() for p in layer.parameters() if p.ndim < 2)
    size = fc.element_size()
    fuses = net.generation == 3
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    sizes = _layer_sizes(1, config.hidden_size, heads, kv_heads, config.head_dim, config.intermediate_size)
    return sizes | {
        "gated": True,
        "vectors": vectors,
        "last": sum(p.numel() for p in net.parameters() if p.ndim < 2) - vectors,
        "vocabulary": head.shape[0],
        "tied": head.data_ptr() == embedding.data_ptr(),
        **dict.fromkeys(BYTES, size),
        "eagle": {
            "read": layer.self_attn.q_proj.in_features,
            "entered": 0 if fuses else fc.numel(),
            "fused": fc.numel() if fuses else 0,
        },
    }


def gguf(
    meta: Callable[[str], str | None], parameters: int, size: int, cache_bytes: int, vocabulary: int
) -> Settings | None:
    """The geometry of a GGUF file's model, from its metadata.

    Parameters
    ----------
    meta : callable
        Maps a key of the file's metadata to its text, or None.
    parameters, size : int
        Total number of weights in the file's tensors, and their size in bytes.
    cache_bytes : int
        Bytes of an element of the KV cache.
    vocabulary : int

    Returns
    -------
    dict or None
        As from `causal`, except that the metadata does not distinguish ``vectors`` and ``last``: all are
        counted in ``last``. None if the number of parameters does not fit.
    """
    kind = meta("general.architecture")

    def number(key: str) -> int:
        text = meta(f"{kind}.{key}") or ""
        return int(text) if text.isdecimal() else 0

    layers, hidden, heads = number("block_count"), number("embedding_length"), number("attention.head_count")
    if not (layers and hidden and heads):
        return None
    kv_heads = number("attention.head_count_kv") or heads
    dim = number("attention.key_length") or hidden // heads
    inner = number("feed_forward_length")
    attention = hidden * dim * (2 * heads + 2 * kv_heads)
    count, chosen = number("expert_count"), number("expert_used_count")
    if count:
        inner = number("expert_feed_forward_length") or inner
    shared = count * hidden + 3 * hidden * number("expert_shared_feed_forward_length")  # with the router
    most = layers * (8 * hidden + inner) + 2 * hidden  # upper bound for the remaining norms and biases
    for gated, tied in ((True, True), (True, False), (False, True), (False, False)):
        feed_forward = (2 + gated) * hidden * inner
        each = attention + (shared + count * feed_forward if count else feed_forward)
        matrices = layers * each + (2 - tied) * vocabulary * hidden
        if 0 < parameters - matrices <= most:
            break
    else:
        return None
    if count and not 0 < chosen <= count:
        return None
    mixed = {"count": count, "chosen": chosen, "elements": feed_forward, "shared": shared}
    return _layer_sizes(layers, hidden, heads, kv_heads, dim, inner) | {
        "vocabulary": vocabulary,
        "tied": tied,
        "weight_bytes": size / parameters,
        "cache_bytes": cache_bytes,
        "activation_bytes": 4,
        "gated": gated,
        "vectors": 0,
        "last": parameters - matrices,
        **({"experts": mixed} if count else {}),
    }


def _layer_sizes(*values: int) -> dict[str, int]:
    return dict(zip(LAYER, values, strict=True))


def _stack(net: nn.Module) -> nn.ModuleList | None:
    """The layers: the longest module list directly under the model or its base."""
    base = getattr(net, "base_model", net)
    lists = [part for part in base.children() if isinstance(part, nn.ModuleList)]
    return max(lists, key=len, default=None)


def _ends(net: PreTrainedModel) -> dict[str, int]:
    """Sizes of the embedding and head, and bytes per element."""
    head, embedding = net.get_output_embeddings().weight, embeddings(net)
    size = head.element_size()
    return {
        "vocabulary": head.shape[0],
        "tied": here(head).data_ptr() == here(embedding).data_ptr(),
        **dict.fromkeys(BYTES, size),
    }


def _checked(
    sizes: dict[str, int], net: nn.Module, stack: nn.ModuleList, attention: int, chosen: int = 0
) -> Settings | None:
    """Complete `sizes`; None unless each layer is `attention` and a feed-forward network or experts."""
    kinds = {_counted(layer) for layer in stack}
    kind = kinds.pop()
    inner = sizes["hidden"] * sizes["feed_forward"]
    if kinds or kind is None or not inner:
        return None
    matrices, vectors, shared, mixed = kind
    last = sum(p.numel() for p in net.parameters() if p.ndim < 2) - vectors * len(stack)
    rest = matrices - attention if mixed is None else mixed.elements
    if rest not in (2 * inner, 3 * inner):
        return None
    sizes = sizes | {"gated": rest == 3 * inner, "vectors": vectors, "last": last}
    if mixed is None:
        return sizes
    if matrices != attention or not 0 < chosen <= mixed.number:
        return None
    return sizes | {
        "experts": {
            "count": mixed.number, "chosen": chosen, "elements": mixed.elements, "shared": shared,
        }
    }  # fmt: skip


def _counted(layer: nn.Module) -> tuple[int, int, int, experts.Counts | None] | None:
    """Elements of a layer's matrices, its vectors and the matrices next to its experts, and expert counts.

    None if the layer has parameters that are neither floating-point matrices nor vectors.
    """
    parts = {name: p for name, p in layer.named_parameters() if "relative_attention_bias" not in name}
    mixed = experts.of_layer(layer)
    shared = 0
    if mixed is not None:
        parts = {name: p for name, p in parts.items() if not name.startswith(f"{mixed.name}.")}
        shared = _matrices(p for name, p in parts.items() if name.startswith(mixed.block))
    if any(p.ndim > 2 or not p.is_floating_point() for p in parts.values()):
        return None
    vectors = sum(p.numel() for p in parts.values() if p.ndim < 2)
    return _matrices(parts.values()) - shared, vectors, shared, mixed and mixed.counts


def _matrices(parts: Iterable[nn.Parameter]) -> int:
    """Number of elements of the matrices among `parts`."""
    return sum(p.numel() for p in parts if p.ndim == 2)


def _first_of(config: PreTrainedConfig, *names: str) -> int:
    """The first of these fields that the config has; 0 if it has none."""
    return next((value for name in names if (value := getattr(config, name, None)) is not None), 0)
