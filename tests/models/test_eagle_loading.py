"""Published EAGLE folders: which load, from disk and from a hub, and which are refused with a reason."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from eagles import FORMATS, IDS, Published, published, target
from families import make
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file, save_file
from torch import Tensor

from specviz import cli
from specviz.errors import ModelError
from specviz.models import fetching, load
from specviz.models.additions import EagleHead
from specviz.models.eagle_loading import read_layers

torch.set_num_threads(1)
THIRD, FIRST, OTHER = "authors, EAGLE-3", "authors, EAGLE-1", "speculators, EAGLE-3"


def test_a_folder_is_an_addition(tmp_path: Path) -> None:
    head = load(published(THIRD).write(tmp_path / "swift"))
    assert isinstance(head, EagleHead)
    assert (head.name, head.kind, head.net.generation) == ("swift", "eagle", 3)
    assert "on a model of width 16" in repr(head)
    with pytest.raises(ModelError, match="not a model by itself but an EAGLE drafter on a model of width 16"):
        head.encode("the mill")
    model = target()
    assert head.on(model).on(model).width == 48
    named = load(published("speculators, EAGLE-3").write(tmp_path / "named"))
    assert named.trained_on == "brook/Village-1B"


@pytest.mark.parametrize("name", FORMATS)
def test_half_precision_in_several_files(name: str, tmp_path: Path) -> None:
    made = published(name)
    folder = made.write(tmp_path / "head")
    whole = load(folder).net
    tensors = {key: x if key in ("d2t", "t2d") else x.bfloat16() for key, x in made.tensors().items()}
    (folder / "model.safetensors").unlink()
    keys = sorted(tensors)
    for number, part in enumerate((keys[::2], keys[1::2]), 1):
        save_file({key: tensors[key] for key in part}, folder / f"model-{number:05}-of-00002.safetensors")
    half = load(folder).net
    for key, value in half.state_dict().items():
        rounded = value if key == "d2t" else whole.state_dict()[key].bfloat16()
        assert torch.equal(value.to(rounded.dtype), rounded)
        assert value.dtype == {"d2t": torch.int64, "embed_tokens.weight": torch.bfloat16}.get(
            key, torch.float32
        )


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({}, (2, 16, 29)),  # the authors' code
        ({IDS: [2, 16, 29]}, (2, 16, 29)),  # vLLM, speculators: a layer's input
        ({"eagle_config": {IDS: [1, 15, 28]}}, (2, 16, 29)),  # SpecForge, SGLang, NVIDIA: a layer's output
        ({"eagle_config": {IDS: [-1, 15, 28]}}, (0, 16, 29)),
        ({IDS: [0, 7, 29], "eagle_config": {IDS: [1, 15, 28]}}, (0, 7, 29)),
        ({IDS: None, "eagle_config": {IDS: None}}, (2, 16, 29)),
    ],
)
def test_which_layers_are_read(config: dict[str, Any], layers: tuple[int, ...]) -> None:
    assert read_layers(config, 3, 32) == layers


# -- what is refused ------------------------------------------------------------------------------------


def _drop(*names: str) -> Callable[[Published], None]:
    def change(made: Published) -> None:
        for name in names:
            made.raw.pop(name, made.more.pop(name, None))

    return change


def _set(**more: Any) -> Callable[[Published], None]:
    def change(made: Published) -> None:
        made.config = made.config | more

    return change


def _put(name: str, value: Callable[[Tensor], Tensor] | Tensor) -> Callable[[Published], None]:
    def change(made: Published) -> None:
        made.raw[name] = value(made.raw[name]) if callable(value) else value

    return change


def _unset(key: str) -> Callable[[Published], None]:
    def change(made: Published) -> None:
        made.config = {name: value for name, value in made.config.items() if name != key}

    return change


ROPE = {"type": "dynamic", "factor": 2.0}
REFUSED: dict[str, tuple[str, Callable[[Published], None], str]] = {
    "fc of 1": (FIRST, _drop("fc.weight", "fc.bias"), "no tensor fc.weight: an EAGLE-1 drafter"),
    "bias of fc": ("authors, EAGLE-1, Qwen2", _set(bias=True), "no tensor fc.bias"),
    "fc of 3": (THIRD, _drop("fc.weight"), "no tensor fc.weight: an EAGLE-3 drafter"),
    "a projection": (THIRD, _drop("self_attn.v_proj.weight"), r"no tensor midlayer.self_attn.v_proj.weight"),
    "a norm": (OTHER, _drop("hidden_norm.weight"), "no tensor midlayer.hidden_norm.weight"),
    "all norms": (OTHER, _drop("hidden_norm.weight", "norm.weight"), "no tensor .*norm.weight"),
    "a bias": ("nvidia, EAGLE-3", _drop("self_attn.k_proj.bias"), "no tensor midlayer.self_attn.k_proj.bias"),
    "head": (THIRD, _drop("lm_head.weight"), "no tensor lm_head.weight"),
    "tied head": ("with the target's head", _set(tie_word_embeddings=True), "no tensor lm_head.weight"),
    "d2t": (THIRD, _drop("d2t"), "no tensor d2t"),
    "own embeddings": ("narrower than its target", _drop("embed_tokens.weight"), "no tensor embed_tokens"),
    "norm before fc": (THIRD, _set(norm_before_fc=True), "no tensor input_norm.weight"),
    "shape": (THIRD, _put("fc.weight", lambda x: x[:, 1:]), "fc.weight is 16 x 47, but .* needs 16 x 48"),
    "states": ("specforge, EAGLE-3", _set(**{IDS: [1, 2]}), "fc.weight is 16 x 48, but .* needs 16 x 32"),
    "heads": (THIRD, _set(num_attention_heads=2), r"k_proj.weight is 8 x 32, but .* needs 16 x 32"),
    "rows": (THIRD, _set(draft_vocab_size=21), "(d2t|lm_head.weight) is 20.*needs 21"),
    "unknown": (THIRD, _put("self_attn.q_norm.weight", torch.ones(4)), "unknown .*self_attn.q_norm"),
    "input norm of 1": (FIRST, _put("input_layernorm.weight", torch.ones(16)), "EAGLE-1.*input_lay"),
    "out of range": (THIRD, _put("d2t", lambda x: x + 30), "d2t leads to tokens .* vocabulary has 37"),
    "below range": (THIRD, _put("d2t", lambda x: x - 9), "d2t leads to tokens -"),
    "twice": (THIRD, _put("d2t", -torch.arange(20)), "d2t maps to one token twice"),
    "floats for ids": (THIRD, _put("d2t", lambda x: x.float()), "d2t holds float32, and only plain weights"),
    "integers": (THIRD, _put("mlp.up_proj.weight", lambda x: x.to(torch.int8)), "up_proj.weight holds int8"),
    "eighths": (THIRD, _put("fc.weight", lambda x: x.to(torch.float8_e4m3fn)), "fc.weight holds float8"),
    "quantised": (THIRD, _set(quantization_config={"quant_method": "fp8"}), "is quantised"),
    "keys": (THIRD, _unset("num_attention_heads"), "config.json of head lacks num_attention_heads"),
    "layers": (THIRD, _set(num_hidden_layers=2), "has 2 layers, and only EAGLE drafters with one layer"),
    "more layers": (FIRST, _put("layers.1.mlp.up_proj.weight", torch.ones(24, 16)), "has 2 layers"),
    "rope": (THIRD, _set(rope_scaling=ROPE), "uses dynamic rotary positions; supported are default, linear"),
    "part": (THIRD, _set(partial_rotary_factor=0.5), "rotary positions in a part of each head"),
    "window": (THIRD, _set(layer_types=["sliding_attention"], sliding_window=8), "uses a sliding window"),
    "latent": (THIRD, _set(kv_lora_rank=512), r"uses latent attention \(kv_lora_rank in its config\)"),
    "scaled": (FIRST, _set(logit_scale=0.1), "uses scaled scores"),
    "norms": ("speculators, EAGLE-1", _set(layernorms=True), "uses norms around its layer"),
    "unfused": (THIRD, _set(eagle_config={"use_aux_hidden_state": False}), "reads one state"),
    "wide first": (FIRST, _set(target_hidden_size=32), "must be as wide as its target, which is 32"),
    "activation": (THIRD, _set(hidden_act="swoosh"), "does not load as eagle: .*swoosh"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str, tmp_path: Path) -> None:
    name, change, line = REFUSED[what]
    made = published(name)
    change(made)
    with pytest.raises(ModelError, match=line) as caught:
        load(made.write(tmp_path / "head"))
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    folder = published(THIRD).write(tmp_path / "head")
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    for broken in (whole[:-100], b"\x08\x00\x00\x00\x00\x00\x00\x00not json", b""):
        file.write_bytes(broken)
        with pytest.raises(ModelError, match="has no readable safetensors") as caught:
            load(folder)
        assert "\n" not in str(caught.value)
    file.rename(folder / "pytorch_model.bin")
    with pytest.raises(
        ModelError, match=r"has no safetensors weights .* convert pytorch_model.bin once"
    ) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_the_conversion_that_the_line_gives(tmp_path: Path) -> None:
    made = published(FIRST)
    folder = made.write(tmp_path / "head")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="specviz models convert FOLDER"):
        load(folder)
    assert cli.run(["models", "convert", str(folder)]) == 0
    assert torch.equal(load(folder).net.fc.weight, made.raw["fc.weight"])


def test_a_model_of_one_layer_is_still_a_model(tmp_path: Path) -> None:
    from test_pieces import byte_level

    words = byte_level()
    for name in ("llama", "gpt2"):
        one = {"n_layer": 1} if name == "gpt2" else {"num_hidden_layers": 1}
        make(name, vocab_size=len(words), **one).save_pretrained(tmp_path / name)
        words.save_pretrained(tmp_path / name)
        assert load(tmp_path / name).kind == "causal"


# -- targets that do not fit ----------------------------------------------------------------------------


def test_targets_that_do_not_fit(tmp_path: Path) -> None:
    third = load(published(THIRD).write(tmp_path / "third"))
    last = published("specforge, EAGLE-3")
    last.config = last.config | {"eagle_config": {IDS: [1, 3, 7]}}
    final = load(last.write(tmp_path / "final"))
    wide, words = target(hidden_size=32), target(vocab_size=40)
    shallow = type(wide)(make("llama", num_hidden_layers=4), name="brook")
    ggml = SimpleNamespace(kind="causal", name="brook", layers=8)
    both = SimpleNamespace(kind="encoder-decoder", name="brook", layers=8)
    for head, model, line in (
        (third, wide, "a model of width 16, and village's is 32"),
        (third, words, "a vocabulary of 37, and village's has 40"),
        (third, ggml, "brook runs on llama.cpp, which provides no hidden states"),
        (third, both, "brook is encoder-decoder"),
        (
            final,
            target(),
            "the state after the last layer, 8, and village's is available only after its norm",
        ),
        (final, shallow, "a model whose layers 2, 4, 8 it reads, and brook has 4"),
        (load(published("narrower than its target").write(tmp_path / "narrow")), wide, "a model of width 16"),
    ):
        with pytest.raises(ModelError, match=line) as caught:
            head.on(model)
        assert "\n" not in str(caught.value)


def test_a_drafter_trained_here_knows_its_target(tmp_path: Path) -> None:
    made = published("specforge, EAGLE-3")
    made.config = made.config | {"target": "brook", IDS: [1, 3, 8]}
    head = load(made.write(tmp_path / "head"))
    with pytest.raises(ModelError, match="trained on brook, and village is a different model"):
        head.on(target())
    model = target()
    model.name = "brook"
    assert head.on(model).layers == (1, 3, 8)


# -- from a hub -----------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache and no network."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _cached(cache: Path, home: Path, *left_out: str) -> Path:
    base = cache / "models--dale--EAGLE3-brook"
    (base / "refs").mkdir(parents=True)
    (base / "refs" / "main").write_text("0" * 40)
    folder = base / "snapshots" / ("0" * 40)
    shutil.copytree(home, folder, ignore=shutil.ignore_patterns(*left_out))
    return folder


@pytest.mark.parametrize("name", [FIRST, THIRD, "speculators, EAGLE-3"])
def test_a_cached_drafter_needs_no_network(name: str, tmp_path: Path, cache: Path) -> None:
    _cached(cache, published(name).write(tmp_path / "head"))
    head = load("hf:dale/EAGLE3-brook")
    assert (head.name, head.kind) == ("dale/EAGLE3-brook", "eagle")
    assert head.on(target()).width


def test_only_what_is_read_is_downloaded(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = published(THIRD).write(tmp_path / "head")
    got: list[str] = []
    beside = ["pytorch_model.bin", "weights.pt", "README.md", "sub/own.py", "eagle.py"]

    def one(repo_id: str, revision: str | None, filename: str) -> str:
        return str(_cached(cache, hub, *(p.name for p in hub.iterdir() if p.name != filename)) / filename)

    def some(
        repo_id: str, revision: str | None, allow_patterns: list[str], local_files_only: bool = False
    ) -> str:
        folder = cache / "models--dale--EAGLE3-brook" / "snapshots" / ("0" * 40)
        if not local_files_only:
            there = [p.name for p in hub.iterdir()]
            got.extend(filter_repo_objects([*there, *beside], allow_patterns=allow_patterns))
            for name in set(got) & set(there):
                shutil.copy(hub / name, folder)
        return str(folder)

    monkeypatch.setattr(fetching, "model_info", lambda *_, **__: None)
    monkeypatch.setattr(fetching, "hf_hub_download", one)
    monkeypatch.setattr(fetching, "snapshot_download", some)
    assert load("hf:dale/EAGLE3-brook").net.generation == 3
    assert sorted(got) == ["config.json", "model.safetensors"]
    # If the hub has only a pickle, the error says what to do.
    shutil.rmtree(cache)
    (hub / "model.safetensors").unlink()
    with pytest.raises(
        ModelError, match=r"no safetensors weights, .*: download .* then convert pytorch_model.bin once"
    ) as caught:
        load("hf:dale/EAGLE3-brook")
    assert "\n" not in str(caught.value)


def test_a_drafter_that_is_not_there(cache: Path) -> None:
    with pytest.raises(ModelError, match="hf:dale/EAGLE3-brook is neither cached nor reachable"):
        load("hf:dale/EAGLE3-brook")


def test_a_cut_off_download_is_no_drafter(tmp_path: Path, cache: Path) -> None:
    _cached(cache, published(THIRD).write(tmp_path / "head"), "*.safetensors")
    with pytest.raises(ModelError, match="hf:dale/EAGLE3-brook is neither cached nor reachable"):
        load("hf:dale/EAGLE3-brook")


def test_a_config_is_no_program(tmp_path: Path) -> None:
    folder = published(THIRD).write(tmp_path / "head")
    config = json.loads((folder / "config.json").read_text())
    for value in ([], "eagle", 3):
        (folder / "config.json").write_text(json.dumps(value))
        with pytest.raises(ModelError):
            load(folder)
    for change in ({"eagle_config": [1]}, {IDS: ["two"]}, {"rope_scaling": "llama3"}, {"hidden_size": "16"}):
        (folder / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(ModelError) as caught:
            load(folder).on(target())
        assert "\n" not in str(caught.value)
