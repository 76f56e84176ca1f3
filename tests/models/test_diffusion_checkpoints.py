"""LLaDA and Dream checkpoints: the published names on our modules, without the published code."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
import torch.nn.functional as F
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file
from test_pieces import byte_level
from tokenizers import pre_tokenizers
from transformers import AddedToken

from specviz.draft import Draft
from specviz.errors import ModelError
from specviz.models import diffusion_checkpoints, fetching, kernels, load
from specviz.models.diffusion import Diffusion
from specviz.models.diffusion_checkpoints import family

torch.set_num_threads(1)
INDEX = "model.safetensors.index.json"
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
ROWS = 420  # of the embedding and the head: a few more than the tokenizers have
IDS = [5, 77, 200, 31, 5, 9, 141, 66, 12]

# The fields of the published config.json files; rotation and epsilon are large enough to matter.
LLADA = {
    "architectures": ["LLaDAModelLM"],
    "auto_map": {"AutoConfig": "own.Config", "AutoModel": "own.Net", "AutoModelForCausalLM": "own.Net"},
    "model_type": "llada",
    "activation_type": "silu",
    "alibi": False,
    "attention_layer_norm": False,
    "bias_for_layer_norm": False,
    "block_group_size": 1,
    "block_type": "llama",
    "d_model": 16,
    "embedding_size": ROWS,
    "eos_token_id": 1,
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "mask_token_id": 400,
    "max_sequence_length": 48,
    "mlp_hidden_size": 24,
    "mlp_ratio": 4,
    "multi_query_attention": None,
    "n_heads": 4,
    "n_kv_heads": 4,
    "n_layers": 3,
    "rms_norm_eps": 0.02,
    "rope": True,
    "rope_full_precision": True,
    "rope_theta": 500.0,
    "scale_logits": False,
    "vocab_size": ROWS - 4,
    "weight_tying": False,
}
DREAM = {
    "architectures": ["DreamModel"],
    "auto_map": {"AutoConfig": "own.Config", "AutoModel": "own.Net"},
    "model_type": "Dream",
    "hidden_act": "silu",
    "hidden_size": 16,
    "intermediate_size": 24,
    "eos_token_id": 258,
    "mask_token_id": 260,
    "max_position_embeddings": 48,
    "max_window_layers": 3,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "rms_norm_eps": 0.02,
    "rope_scaling": None,
    "rope_theta": 500.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": ROWS,
}
CASES: dict[str, dict[str, Any]] = {
    "llada": LLADA,
    "llada, grouped heads": LLADA | {"n_kv_heads": 2},
    "llada, one key-value head": LLADA | {"n_kv_heads": None, "multi_query_attention": True},
    "llada, biases": LLADA | {"include_qkv_bias": True, "n_kv_heads": 2},
    "llada, tied": LLADA | {"weight_tying": True},
    "llada, sizes left out": {
        k: v for k, v in LLADA.items() if k not in ("mlp_hidden_size", "embedding_size", "n_kv_heads")
    },
    "dream": DREAM,
    "dream, one group a head": DREAM | {"num_key_value_heads": 4},
    "dream, tied": DREAM | {"tie_word_embeddings": True},
    "dream, stretched": DREAM | {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "dream, written again": {k: v for k, v in DREAM.items() if k != "rope_theta"}
    | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
}


# -- the families, by their published modelling files -------------------------------------------------


def sizes(config: dict[str, Any]) -> dict[str, Any]:
    """Map both families' config fields to one set of names."""
    if config["model_type"] == "Dream":
        return {
            "size": config["hidden_size"], "inner": config["intermediate_size"], "rows": config["vocab_size"],
            "layers": config["num_hidden_layers"], "heads": config["num_attention_heads"],
            "groups": config["num_key_value_heads"], "bias": True, "tied": config["tie_word_embeddings"],
            "stretch": (config["rope_scaling"] or {}).get("factor", 1.0),
        }  # fmt: skip
    single = config["multi_query_attention"]
    return {
        "size": config["d_model"], "rows": config.get("embedding_size") or config["vocab_size"],
        "inner": config.get("mlp_hidden_size") or config["mlp_ratio"] * config["d_model"],
        "layers": config["n_layers"], "heads": config["n_heads"],
        "groups": config.get("n_kv_heads") or (1 if single else config["n_heads"]),
        "bias": config["include_qkv_bias"], "tied": config["weight_tying"], "stretch": 1.0,
    }  # fmt: skip


def names(config: dict[str, Any]) -> dict[str, str]:
    """Tensor names of each part in the files; {} stands for the layer."""
    if config["model_type"] == "Dream":
        layer = "model.layers.{}."
        return {
            "embedding": "model.embed_tokens", "last": "model.norm", "head": "lm_head",
            "before": layer + "input_layernorm", "after": layer + "post_attention_layernorm",
            "q": layer + "self_attn.q_proj", "k": layer + "self_attn.k_proj",
            "v": layer + "self_attn.v_proj", "o": layer + "self_attn.o_proj",
            "gate": layer + "mlp.gate_proj", "up": layer + "mlp.up_proj", "down": layer + "mlp.down_proj",
        }  # fmt: skip
    root, layer = "model.transformer.", "model.transformer.blocks.{}."
    return {
        "embedding": root + "wte", "last": root + "ln_f", "head": root + "ff_out",
        "before": layer + "attn_norm", "after": layer + "ff_norm",
        "q": layer + "q_proj", "k": layer + "k_proj", "v": layer + "v_proj", "o": layer + "attn_out",
        "gate": layer + "ff_proj", "up": layer + "up_proj", "down": layer + "ff_out",
    }  # fmt: skip


def tensors(config: dict[str, Any], seed: int = 0) -> dict[str, torch.Tensor]:
    """Random weights large enough for attention to matter, under the published names, float64."""
    torch.manual_seed(seed)
    s, name = sizes(config), names(config)
    size, keys = s["size"], s["size"] // s["heads"] * s["groups"]
    shapes = {
        "q": (size, size), "k": (keys, size), "v": (keys, size), "o": (size, size),
        "gate": (s["inner"], size), "up": (s["inner"], size), "down": (size, s["inner"]),
    }  # fmt: skip
    found = {name["embedding"] + ".weight": torch.randn(s["rows"], size)}
    found[name["last"] + ".weight"] = 1 + 0.2 * torch.randn(size)
    if not s["tied"]:
        found[name["head"] + ".weight"] = torch.randn(s["rows"], size)
    for layer in range(s["layers"]):
        for part in ("before", "after"):
            found[name[part].format(layer) + ".weight"] = 1 + 0.2 * torch.randn(size)
        for part, shape in shapes.items():
            found[name[part].format(layer) + ".weight"] = 0.4 * torch.randn(shape)
            if part in "qkv" and s["bias"]:
                found[name[part].format(layer) + ".bias"] = torch.randn(shape[0])
    return {key: value.double() for key, value in found.items()}


def reference(config: dict[str, Any], raw: dict[str, torch.Tensor], ids: list[int]) -> torch.Tensor:
    """Logits [positions, rows] of the family's forward pass with full attention."""
    s, name, n = sizes(config), names(config), len(ids)
    dim = s["size"] // s["heads"]

    def norm(x: torch.Tensor, part: str, layer: int = 0) -> torch.Tensor:
        square = x.pow(2).mean(-1, keepdim=True)
        return x * (square + config["rms_norm_eps"]).rsqrt() * raw[name[part].format(layer) + ".weight"]

    def linear(x: torch.Tensor, part: str, layer: int = 0) -> torch.Tensor:
        key = name[part].format(layer)
        return F.linear(x, raw[key + ".weight"], raw.get(key + ".bias"))

    # Angles are float32 in both families' code.
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    speeds = 1.0 / (theta ** (torch.arange(0, dim, 2, dtype=torch.float) / dim)) / s["stretch"]
    angles = torch.arange(n, dtype=torch.float)[:, None] * speeds

    def turn(x: torch.Tensor) -> torch.Tensor:  # [positions, heads, dim]: halves, not neighbours
        left, right = x.chunk(2, -1)
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)

    x = raw[name["embedding"] + ".weight"][ids]
    for i in range(s["layers"]):
        h = norm(x, "before", i)
        q, k, v = (linear(h, part, i).view(n, -1, dim) for part in "qkv")
        k, v = (t.repeat_interleave(s["heads"] // s["groups"], 1) for t in (turn(k), v))
        weights = torch.einsum("ihd,jhd->hij", turn(q), k).div(dim**0.5).softmax(-1)
        x = x + linear(torch.einsum("hij,jhd->ihd", weights, v).reshape(n, -1), "o", i)
        h = norm(x, "after", i)
        x = x + linear(F.silu(linear(h, "gate", i)) * linear(h, "up", i), "down", i)
    return linear(norm(x, "last"), "embedding" if s["tied"] else "head")


# -- folders ------------------------------------------------------------------------------------------


def write(folder: Path, config: dict[str, Any], raw: dict[str, torch.Tensor], shards: int = 1) -> Path:
    """Write a checkpoint as published, including code that must not run."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    keys = list(raw)
    if shards == 1:
        save_file(raw, folder / "model.safetensors")
    else:
        where = {key: f"model-{i % shards + 1:05}-of-{shards:05}.safetensors" for i, key in enumerate(keys)}
        for file in set(where.values()):
            save_file({key: raw[key] for key in keys if where[key] == file}, folder / file)
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))
    (llada_words if config["model_type"] == "llada" else dream_words)(folder)
    for name in ("own", "tokenization_dream", "modeling_llada", "configuration_dream"):
        (folder / f"{name}.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    return folder


def llada_words(folder: Path) -> None:
    """One tokenizer.json; the mask token is an added token, not the tokenizer's ``mask_token``."""
    words = byte_level()
    words.add_tokens([AddedToken(f"<|reserved_{i}|>", special=True) for i in range(400 - len(words))])
    words.add_tokens([AddedToken("<|mdm_mask|>", special=True)])
    words.save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["auto_map"] = {"AutoTokenizer": ["own.Words", None]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def dream_words(folder: Path) -> None:
    """Vocabulary and merges for a custom tokenizer class."""
    pieces = {piece: i for i, piece in enumerate([*ALPHABET, "th", "the"])}
    added = ["<|endoftext|>", "<|beginoftext|>", "<|mask|>"]
    (folder / "vocab.json").write_text(json.dumps(pieces))
    (folder / "merges.txt").write_text("#version: 0.2\nt h\nth e\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "added_tokens_decoder": {
                    str(len(pieces) + i): {"content": text, "special": True} for i, text in enumerate(added)
                },
                "tokenizer_class": "DreamTokenizer",
                "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
                "bos_token": added[1],
                "eos_token": added[0],
                "mask_token": added[2],
                "pad_token": added[0],
                "chat_template": "{% for m in messages %}<|beginoftext|>{{ m['content'] }}{% endfor %}",
            }
        )
    )


@pytest.fixture(scope="module")
def homes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder of each family; tests must not change them."""
    base = tmp_path_factory.mktemp("checkpoints")
    return {
        "llada": write(base / "meadow", LLADA, tensors(LLADA)),
        "dream": write(base / "brook", DREAM, tensors(DREAM), shards=3),
    }


# -- what they compute --------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_the_familys_own_pass(case: str, shards: int, tmp_path: Path) -> None:
    config = CASES[case]
    raw = tensors(config)
    folder = write(tmp_path / "village", config, raw, shards)
    model = load(folder, dtype="float64")
    assert isinstance(model, Diffusion)
    dream = config["model_type"] == "Dream"
    assert (model.name, model.mask, model.shift) == ("village", 260 if dream else 400, int(dream))
    assert (model.layers, model.heads, model.max_length) == (3, sizes(config)["groups"], 48)
    read = model.open([IDS], 4, block=4).forward(Draft.empty())[0]
    want = reference(config, raw, IDS + [model.mask] * 4)
    want[:, model.mask] = -torch.inf  # the mask token is never placed
    first = len(IDS) - model.shift  # a cell is read at its position, or one before
    torch.testing.assert_close(read.logits, want[first : first + 4], atol=1e-9, rtol=1e-9)
    with torch.no_grad():  # by the modules themselves, whose norms are always float32
        found = model.net(torch.tensor([IDS]), use_cache=False).logits[0]
    torch.testing.assert_close(found, reference(config, raw, IDS), atol=2e-4, rtol=1e-4)
    assert not (folder / "ran").exists()


def test_every_tensor_is_there_once_and_takes_no_gradient(homes: dict[str, Path]) -> None:
    for home in homes.values():
        net = load(home).net
        parts = [*net.parameters(), *net.buffers()]
        assert not any(part.is_meta or part.requires_grad for part in parts)
        assert not net.training
        assert not net.config.is_causal
        assert not any(getattr(part, "is_causal", False) for part in net.modules())


def test_a_tied_head_is_the_embedding_and_a_stored_one_is_not_read(tmp_path: Path) -> None:
    for config in (CASES["llada, tied"], CASES["dream, tied"]):
        raw = tensors(config)
        head = names(config)["head"] + ".weight"
        other = raw | {head: torch.randn(ROWS, 16).double()}
        net = load(write(tmp_path / config["model_type"], config, other)).net
        assert net.lm_head.weight is net.model.embed_tokens.weight
        torch.testing.assert_close(
            net.lm_head.weight, raw[names(config)["embedding"] + ".weight"].float(), atol=0, rtol=0
        )


def test_number_formats(homes: dict[str, Path], tmp_path: Path) -> None:
    assert load(homes["llada"]).dtype == torch.float32
    assert load(homes["llada"], dtype="stored").dtype == torch.float64
    raw = {key: value.bfloat16() for key, value in tensors(DREAM).items()}
    raw = {k: v.float() if "norm" in k or "embed" in k else v for k, v in raw.items()}
    folder = write(tmp_path / "mixed", DREAM, raw, 2)
    for asked, number in (("stored", torch.bfloat16), ("float16", torch.float16), ("float32", torch.float32)):
        assert {p.dtype for p in load(folder, dtype=asked).net.parameters()} == {number}
    whole = load(folder, dtype="stored").net.state_dict()
    assert all(torch.equal(whole[key], value.bfloat16()) for key, value in raw.items())


# -- tokenizers ---------------------------------------------------------------------------------------


def test_weights_are_rounded_to_float16_by_name(homes: dict[str, Path]) -> None:
    if not kernels.multiplies_halves():
        pytest.skip("torch has no product with weights in float16 here")
    model = load(homes["llada"], kernels="fp16")
    assert model.kernels == "fp16" and all(map(kernels.in_halves, kernels.matrices(model.net)))


def test_tokenizers_without_their_code(homes: dict[str, Path]) -> None:
    llada, dream = load(homes["llada"]), load(homes["dream"])
    assert llada.encode("the mill", raw=True) == byte_level()("the mill")["input_ids"][:-1]
    assert dream.encode("the", raw=True) == [257]
    assert dream.encode("the") == [259, 257]  # with the chat template
    assert dream.decode(dream.encode("an old mühle")) == "an old mühle"
    assert dream.piece(260) == b"<|mask|>"
    assert llada.piece(400) == b"<|mdm_mask|>"
    assert not any(name.startswith("transformers_modules") for name in sys.modules)
    assert not any((home / "ran").exists() for home in homes.values())


def test_a_tokenizer_of_the_users(homes: dict[str, Path], tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(homes["llada"], bare, ignore=shutil.ignore_patterns("tokenizer*"))
    with pytest.raises(
        ModelError, match=r"bare has no tokenizer next to its weights \(tokenizer.json\); pass"
    ):
        load(bare)
    words = load(homes["llada"]).tokenizer
    assert load(bare, tokenizer=words).encode("the", raw=True) == load(homes["llada"]).encode("the", raw=True)
    with pytest.raises(ModelError, match="the tokenizer of bare has no token 400, the mask_token_id"):
        load(bare, tokenizer=byte_level())


def test_the_ends_of_a_text(homes: dict[str, Path], tmp_path: Path) -> None:
    assert load(homes["llada"]).eos == (1,)
    several = tmp_path / "several"
    shutil.copytree(homes["llada"], several)
    config = json.loads((several / "config.json").read_text()) | {"eos_token_id": 5}
    (several / "config.json").write_text(json.dumps(config))
    for ids, wanted in (([3, 7], (3, 7)), ([-1, 7], (7,)), (-1, (5,)), ([], (5,)), (None, (5,))):
        (several / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
        assert load(several).eos == wanted


# -- what is refused ----------------------------------------------------------------------------------


def test_families() -> None:
    assert family(LLADA) == family({"model_type": "llada"}) == "LLaDA"
    assert family({"architectures": ["LLaDAModelLM"]}) == "LLaDA"
    assert family(DREAM) == family({"architectures": ["DreamModel"], "model_type": "own"}) == "Dream"
    for config in (
        {},
        {"model_type": "llama"},
        {"model_type": "llada_moe", "architectures": ["LLaDAMoEModelLM"]},
    ):
        assert family(config) is None


LLADA_REFUSED = [
    ({"alibi": True}, "alibi is true in its config.json, and this backend supports only false"),
    ({"activation_type": "gelu"}, 'activation_type is "gelu" .* supports only "silu"'),
    ({"activation_type": None}, "activation_type is null"),
    ({"layer_norm_type": "gemma_rms"}, 'layer_norm_type is "gemma_rms" .* supports only "rms"'),
    ({"block_type": "sequential"}, 'block_type is "sequential" .* supports only "llama"'),
    ({"clip_qkv": 8.0}, "clip_qkv is 8.0 .* supports only none"),
    ({"attention_layer_norm": True}, "attention_layer_norm is true"),
    ({"scale_logits": True}, "scale_logits is true"),
    ({"input_emb_norm": True}, "input_emb_norm is true"),
    ({"include_bias": True}, "include_bias is true"),
    ({"bias_for_layer_norm": True}, "bias_for_layer_norm is true"),
    ({"layer_norm_with_affine": False}, "layer_norm_with_affine is false"),
    ({"rope": False}, "rope is false .* supports only true"),
    ({"rope_scaling": {"type": "linear", "factor": 2}}, "rope_scaling is"),
    ({"rope_parameters": {"rope_theta": 10.0}}, "rope_parameters is"),
    ({"block_group_size": 3}, "block_group_size is 3"),
    ({"quantization_config": {"bits": 4}}, "quantization_config is"),
    ({"n_kv_heads": 2, "multi_query_attention": True}, "n_kv_heads 2 and multi_query_attention True"),
    ({"n_kv_heads": 3}, "width 16, 4 heads and 3 key-value heads do not fit"),
    ({"n_heads": 3, "n_kv_heads": 3}, "width 16, 3 heads"),
    ({"d_model": None}, "a positive whole number as d_model, but has None"),
    ({"n_layers": "3"}, "a positive whole number as n_layers, but has '3'"),
    ({"n_layers": 10**8}, "it has 30 tensors for 100,000,000 layers"),
    ({"rms_norm_eps": 0}, "a positive number as rms_norm_eps, but has 0"),
    ({"mask_token_id": None}, "names no mask_token_id"),
    ({"mask_token_id": ROWS}, f"mask_token_id {ROWS} is outside its vocabulary of {ROWS}"),
    ({"mask_token_id": "<mask>"}, "mask_token_id '<mask>' is outside"),
    ({"mask_token_id": ROWS - 1}, f"has no token {ROWS - 1}, the mask_token_id of its config.json"),
    ({"eos_token_id": "end"}, "eos_token_id should be a whole number, not 'end'"),
]
DREAM_REFUSED = [
    ({"hidden_act": "gelu"}, 'hidden_act is "gelu" .* supports only "silu" or "swish"'),
    ({"use_sliding_window": True, "sliding_window": 8}, "use_sliding_window is true"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 'rope_scaling is {"type": "dynamic"'),
    ({"rope_scaling": "linear"}, 'rope_scaling is "linear"'),
    ({"rope_parameters": {"rope_type": "longrope"}}, 'rope_parameters is {"rope_type": "longrope"}'),
    ({"rope_scaling": {"type": "linear"}}, "factor"),
    ({"quantization_config": {"bits": 4}}, "quantization_config is"),
    ({"num_key_value_heads": 3}, "4 heads and 3 key-value heads"),
    ({"mask_token_id": None}, "names no mask_token_id"),
]


@pytest.mark.parametrize(("changes", "line"), LLADA_REFUSED, ids=lambda x: str(x)[:40])
def test_what_a_llada_config_may_not_ask_for(
    changes: dict, line: str, homes: dict[str, Path], tmp_path: Path
) -> None:
    _refused(homes["llada"], tmp_path, LLADA | changes, line)


@pytest.mark.parametrize(("changes", "line"), DREAM_REFUSED, ids=lambda x: str(x)[:40])
def test_what_a_dream_config_may_not_ask_for(
    changes: dict, line: str, homes: dict[str, Path], tmp_path: Path
) -> None:
    _refused(homes["dream"], tmp_path, DREAM | changes, line)


def test_a_field_left_out_has_its_published_default(homes: dict[str, Path], tmp_path: Path) -> None:
    for field in ("block_type", "layer_norm_type", "activation_type", "rope"):
        config = {key: value for key, value in LLADA.items() if key != field}
        _refused(homes["llada"], tmp_path / field, config, f"{field} is ")


def _refused(home: Path, place: Path, config: dict[str, Any], line: str) -> None:
    folder = place / "village"
    shutil.copytree(home, folder)
    (folder / "config.json").write_text(json.dumps(config))
    _says(folder, line)


def _says(folder: Path, line: str, **options: Any) -> None:
    with pytest.raises(ModelError, match=line) as caught:
        load(folder, **options)
    assert "\n" not in str(caught.value)
    assert "village" in str(caught.value)
    assert not (folder / "ran").exists()


def _weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    def act(folder: Path) -> None:
        raw = load_file(folder / "model.safetensors")
        change(raw)
        save_file(raw, folder / "model.safetensors")

    return act


BLOCK = "model.transformer.blocks.1."
BROKEN: dict[str, Callable[[Path], Any]] = {
    rf"it lacks 1 tensor \({BLOCK}up_proj.weight\)$": _weights(lambda raw: raw.pop(BLOCK + "up_proj.weight")),
    r"it lacks 10 tensors \(model.transformer.wte.weight, .*, \.\.\.\)$": _weights(
        lambda raw: [raw.pop(key) for key in list(raw) if "blocks.1" in key or "wte" in key]
    ),
    r"it has in addition 2 tensors \(lora.a, lora.b\)$": _weights(
        lambda raw: raw.update({"lora.a": torch.ones(2), "lora.b": torch.ones(2)})
    ),
    r"it lacks 1 tensor \(.*ln_f.weight\) and has in addition 1 tensor \(ln_f.weight\)$": _weights(
        lambda raw: raw.update({"ln_f.weight": raw.pop("model.transformer.ln_f.weight")})
    ),
    rf"{BLOCK}ff_out.weight of village is \[24, 16\] in model.safetensors, and \[16, 24\] by": _weights(
        lambda raw: raw.update({BLOCK + "ff_out.weight": raw[BLOCK + "ff_out.weight"].T.contiguous()})
    ),
    rf"{BLOCK}q_proj.weight of village is stored as I8; F64, F32, F16, BF16 are read": _weights(
        lambda raw: raw.update({BLOCK + "q_proj.weight": raw[BLOCK + "q_proj.weight"].to(torch.int8)})
    ),
    "model.safetensors of village is not a safetensors file": lambda folder: (
        folder / "model.safetensors"
    ).write_bytes(b"\x08\0\0\0\0\0\0\0not json"),
    "village has neither model.safetensors nor": lambda folder: (folder / "model.safetensors").rename(
        folder / "part.safetensors"
    ),
    f"village/{INDEX} is not JSON": lambda folder: (folder / INDEX).write_text("{"),
    f"village/{INDEX}, weight_map.a is not a file of the folder": lambda folder: (folder / INDEX).write_text(
        json.dumps({"weight_map": {"a": "../model.safetensors"}})
    ),
    "the tokenizer of village does not load": lambda folder: (folder / "tokenizer.json").write_text("{}"),
    "village/generation_config.json is not JSON": lambda folder: (
        folder / "generation_config.json"
    ).write_text("{"),
}


@pytest.mark.parametrize("line", BROKEN, ids=lambda x: str(x)[:50])
def test_broken_folders(line: str, homes: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "village"
    shutil.copytree(homes["llada"], folder)
    BROKEN[line](folder)
    _says(folder, line)


def test_a_missing_shard(homes: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "village"
    shutil.copytree(homes["dream"], folder)
    (folder / "model-00002-of-00003.safetensors").unlink()
    _says(folder, r"village lacks 1 of the 3 weight files .* \(first model-00002-of-00003.safetensors\)")


def test_pickled_weights_alone(homes: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "village"
    shutil.copytree(homes["llada"], folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    _says(folder, "has no safetensors weights .other formats can run code and are not read")


def test_a_full_device(homes: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 byte")

    monkeypatch.setattr(diffusion_checkpoints.nn.Module, "get_submodule", full)
    shutil.copytree(homes["llada"], folder := tmp_path / "village")
    _says(folder, "out of memory on cpu: village needs 0.0 GiB; load with dtype='bfloat16'")


def test_refusals_come_before_any_weight_is_read(
    homes: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr(diffusion_checkpoints, "_fill", refuse)
    _refused(homes["llada"], tmp_path, LLADA | {"mask_token_id": ROWS - 1}, "has no token")
    folder = tmp_path / "short" / "village"
    shutil.copytree(homes["llada"], folder)
    BROKEN[next(iter(BROKEN))](folder)
    _says(folder, "lacks 1 tensor")


# -- from a hub ---------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache and no network."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _cached(cache: Path, home: Path, *left_out: str, ref: str = "main") -> Path:
    base = cache / "models--dale--brook"
    (base / "refs").mkdir(parents=True)
    (base / "refs" / ref).write_text("0" * 40)
    folder = base / "snapshots" / ("0" * 40)
    shutil.copytree(home, folder, ignore=shutil.ignore_patterns(*left_out))
    return folder


def test_a_cached_hub_checkpoint_needs_no_network(homes: dict[str, Path], cache: Path) -> None:
    folder = _cached(cache, homes["dream"], ref="v2")
    model = load("hf:dale/brook", revision="v2")
    assert (model.name, model.kind, model.shift) == ("dale/brook", "diffusion", 1)
    assert not (folder / "ran").exists()
    with pytest.raises(ModelError, match="hf:dale/brook is neither cached nor reachable"):
        load("hf:dale/brook")  # that revision is not cached


@pytest.mark.parametrize("left_out", ["*-00002-*", INDEX, "*.safetensors"])
def test_a_cut_off_download_is_not_taken_for_a_checkpoint(
    left_out: str, homes: dict[str, Path], cache: Path
) -> None:
    _cached(cache, homes["dream"], left_out)
    with pytest.raises(ModelError, match="hf:dale/brook is neither cached nor reachable") as caught:
        load("hf:dale/brook")
    assert "\n" not in str(caught.value)


def test_only_what_is_read_is_downloaded(
    homes: dict[str, Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = homes["dream"]
    got: list[str] = []

    def one(repo_id: str, revision: str | None, filename: str) -> str:
        return str(_cached(cache, hub, *(p.name for p in hub.iterdir() if p.name != filename)) / filename)

    def some(
        repo_id: str, revision: str | None, allow_patterns: list[str], local_files_only: bool = False
    ) -> str:
        folder = cache / "models--dale--brook" / "snapshots" / ("0" * 40)
        if not local_files_only:
            offered = [*(p.name for p in hub.iterdir()), "pytorch_model.bin", "weights.pt", "sub/own.py"]
            got.extend(filter_repo_objects(offered, allow_patterns=allow_patterns))
            for name in got:
                shutil.copy(hub / name, folder)
        return str(folder)

    monkeypatch.setattr(fetching, "model_info", lambda *_, **__: None)
    monkeypatch.setattr(fetching, "hf_hub_download", one)
    monkeypatch.setattr(fetching, "snapshot_download", some)
    assert load("hf:dale/brook").shift == 1
    assert sorted(got) == sorted(
        ["config.json", "vocab.json", "merges.txt", "tokenizer_config.json", INDEX]
        + [f"model-{i:05}-of-00003.safetensors" for i in (1, 2, 3)]
    )


def test_a_download_that_breaks_off_is_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Reset(Exception):  # as in the hub's client, where these are not OSErrors
        pass

    def broken(**_: object) -> None:
        raise Reset("connection reset\nby peer")

    monkeypatch.setattr(fetching, "model_info", lambda *_, **__: None)
    monkeypatch.setattr(fetching, "hf_hub_download", broken)
    with pytest.raises(ModelError, match="hf:dale/brook is neither cached nor reachable") as caught:
        load("hf:dale/brook")
    assert "\n" not in str(caught.value)
