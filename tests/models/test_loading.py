"""Models load from names, folders and objects in memory; others are refused with a reason."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
from pathlib import Path

import httpx
import huggingface_hub
import pytest
import torch
import transformers
from families import make, scores
from test_pieces import byte_level
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import (
    BertConfig,
    Gemma2Config,
    Gemma3Config,
    GptOssConfig,
    Llama4Config,
    MambaConfig,
    MistralConfig,
    PegasusConfig,
    PhiConfig,
    PreTrainedTokenizerFast,
)

import specviz
from specviz import paths
from specviz.draft import Draft
from specviz.errors import ModelError, PromptError, SpecvizError, TraceError
from specviz.finetune import answers
from specviz.finetune.diffusion import read_texts
from specviz.finetune.training import vacant
from specviz.loop import drafters
from specviz.models import available, bundled, choices, devices, fetching, load, loading
from specviz.models.converting import convert
from specviz.models.downloads import DOWNLOADS
from specviz.models.llamacpp.writer import write_gguf
from specviz.models.model import Model

torch.set_num_threads(1)
TINY = dict(vocab_size=37, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2)  # noqa: C408
VISION = {name: value for name, value in TINY.items() if name != "vocab_size"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a tiny Llama in transformers' format, and return its folder."""
    path = tmp_path_factory.mktemp("models") / "village"
    tokenizer = byte_level()
    net = make("llama", vocab_size=len(tokenizer))
    net.generation_config.eos_token_id = [1, 2]
    net.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def test_a_folder(home: Path) -> None:
    model = load(home)
    assert (model.name, model.eos, model.max_length, model.layers) == ("village", (1, 2), 64, 2)
    assert model.vocabulary == model.open([[1]], 4).forward(Draft.empty()).logits[0].shape[1]
    assert model.dtype == torch.float32
    assert model.plain
    assert load(str(home), dtype="bfloat16").dtype == torch.bfloat16
    ids = model.encode("the mill")
    logits = model.open([ids], 4).forward(Draft.empty()).logits[0][0]
    torch.testing.assert_close(
        logits, scores(make("llama", vocab_size=model.vocabulary), ids), atol=1e-4, rtol=0
    )


def test_a_path_is_a_folder_even_if_a_model_has_its_name(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("town-draft", "smollm2"):  # bundled, and one to download
        shutil.copytree(home, name)
        model = load(Path(name))
        assert model.name == name and model.vocabulary == load(home).vocabulary
    assert load("town-draft").vocabulary != load(home).vocabulary
    with pytest.raises(ModelError, match=r"no model 'town' \(or give a folder"):
        load(Path("town"))
    assert loading.address("town-draft") == "town-draft"
    assert loading.address(home) == str(home)
    assert load(loading.address(Path("town-draft"))).vocabulary == load(home).vocabulary


@pytest.mark.parametrize("draft", ["town-draft", "town-eagle"])
def test_a_draft_model_is_loaded_once_with_its_kernels(draft: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, loaded = load("town", invariant=False), []
    real = drafters.load_if_needed
    monkeypatch.setattr(drafters, "load_if_needed", lambda *given: (loaded.append(given), real(*given))[1])
    assert drafters.load_drafter(target, draft, None, None, "transposed").name == draft
    assert [given[3] for given in loaded] == ["transposed" if draft == "town-draft" else None]


def test_half_precision_weights_load_in_float32(home: Path, tmp_path: Path) -> None:
    make("llama").to(torch.bfloat16).save_pretrained(tmp_path / "half")
    for file in home.glob("tokenizer*"):
        shutil.copy(file, tmp_path / "half")
    assert load(tmp_path / "half").dtype == torch.float32
    assert load(tmp_path / "half", dtype="stored").dtype == torch.bfloat16


def test_a_model_in_memory_is_left_as_it_is(home: Path) -> None:
    net = make("gpt2", vocab_size=400)
    before, kind = {k: v.clone() for k, v in net.state_dict().items()}, net.config._attn_implementation
    model = load(net, tokenizer=home)
    model.open([[1, 2], [3]], 8).forward([Draft.empty()] * 2)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert net.config._attn_implementation == kind
    assert model.encode("the")
    assert load(model) is model
    with pytest.raises(ModelError, match="no tokenizer in"):
        load(net, tokenizer="nowhere")


def test_downloaded_models_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path))
    assert available() == bundled()
    file = DOWNLOADS["smollm2"].path
    file.parent.mkdir(parents=True)
    with file.open("wb") as empty:
        empty.truncate(DOWNLOADS["smollm2"].size)
    assert available() == bundled() | {"smollm2": file}


def test_bundled_names(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "HERE", tmp_path / "specviz")
    assert bundled() == {}
    with pytest.raises(SpecvizError, match="'models' is missing"):
        paths.folder("models")
    shutil.copytree(home, tmp_path / "data" / "models" / "village")  # a checkout
    assert paths.folder("models") == tmp_path / "data" / "models"
    assert load("village").name == "village"
    with pytest.raises(ModelError, match=r"no model 'vilage'; did you mean village\? \(or give a folder"):
        load("vilage")
    shutil.copytree(tmp_path / "data", tmp_path / "specviz" / "data")  # an installed wheel
    assert paths.folder("models") == tmp_path / "specviz" / "data" / "models"


def test_bad_folders(home: Path, tmp_path: Path) -> None:
    for spec, line in (
        (tmp_path / "none", "or give a folder, gguf:PATH or hf:<id>"),
        (home / "config.json", "is a file"),
        (tmp_path, "has no config.json"),
    ):
        with pytest.raises(ModelError, match=line):
            load(spec)
    bare = tmp_path / "bare"
    shutil.copytree(home, bare)
    (bare / "model.safetensors").rename(bare / "pytorch_model.bin")
    with pytest.raises(ModelError, match="no safetensors weights"):
        load(bare)
    (bare / "pytorch_model.bin").rename(bare / "pytorch_model-00001-of-00002.bin")
    for read in (load, convert):
        with pytest.raises(ModelError, match="its pickle is in several files, which are not converted"):
            read(bare)
    (bare / "config.json").rename(bare / "adapter_config.json")
    with pytest.raises(ModelError, match="holds a LoRA adapter: merge it into its model"):
        load(bare)
    mute = tmp_path / "mute"
    shutil.copytree(home, mute)
    for file in mute.glob("token*"):
        file.unlink()
    with pytest.raises(ModelError, match=r"has no tokenizer: put the model's tokenizer\.json there"):
        load(mute)
    assert load(mute, tokenizer=str(home)).encode("Who") == load(home).encode("Who")
    broken = tmp_path / "broken"
    shutil.copytree(home, broken)
    (broken / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00not json")
    with pytest.raises(ModelError, match="does not load"):
        load(broken)
    (broken / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config\.json is not JSON"):
        load(broken)


def test_a_user_that_does_not_exist_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = "~no-such-user/model"
    for spec in (nobody, f"gguf:{nobody}", f"bergamot:{nobody}"):
        with pytest.raises(ModelError, match=r"^~no-such-user/model names a user that this system does not"):
            load(spec)
    with pytest.raises(ModelError, match="names a user"):
        write_gguf("town-draft", nobody)
    for read, error in ((answers.read, ModelError), (read_texts, PromptError), (specviz.explain, TraceError)):
        with pytest.raises(error, match="names a user"):
            read(nobody)
    with pytest.raises(ModelError, match="names a user"):
        vacant(nobody, False)
    monkeypatch.setenv(paths.HOME, nobody)
    with pytest.raises(SpecvizError, match="names a user"):
        load("smollm2")


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_weights_in_several_formats_are_refused_in_a_line(name: str) -> None:
    net = make(name).to(torch.bfloat16)
    wide = net.model.layers[1].mlp.down_proj.float()
    for options in ({}, {"device": "cpu"}, {"dtype": "auto"}, {"dtype": "stored"}):
        with pytest.raises(ModelError, match="several number formats; load it with dtype='float32'"):
            load(net, **options)
        assert wide.weight.dtype == torch.float32
    assert load(net, dtype="float32").open([[1, 2]], 1).forward(Draft.empty()).logits


def test_code_that_comes_with_a_model_is_not_run(home: Path, tmp_path: Path) -> None:
    evil = tmp_path / "evil"
    shutil.copytree(home, evil)
    config = json.loads((evil / "config.json").read_text())
    config |= {
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Net"},
    }
    (evil / "config.json").write_text(json.dumps(config))
    (evil / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(ModelError, match="never run"):
        load(evil)
    assert not (tmp_path / "ran").exists()


def test_an_uncached_hub_model_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    with pytest.raises(
        ModelError, match="hf:nobody/nothing at revision v1 is neither cached nor reachable"
    ) as caught:
        load("hf:nobody/nothing", revision="v1")
    assert "pass a local folder" in str(caught.value)
    assert "\n" not in str(caught.value)


def _cached(home: Path, cache: Path) -> Path:
    """Put the model into a cache of the hub, and return the folder of its files."""
    shutil.rmtree(cache, ignore_errors=True)
    base = cache / "models--dale--village"
    (base / "refs").mkdir(parents=True)
    (base / "refs" / "main").write_text("0" * 40)
    folder = base / "snapshots" / ("0" * 40)
    shutil.copytree(home, folder)
    return folder


def _set(file: Path, **fields: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


OWN = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Net"}
DAMAGE = {
    "does not load as a language model: Error while deserializing": lambda folder: (
        folder / "model.safetensors"
    ).write_bytes(b"{"),
    "comes with its own code, which is never run": lambda folder: _set(
        folder / "config.json", model_type="own", auto_map=OWN
    ),
    "does not load as a language model: .* model type `heath`": lambda folder: _set(
        folder / "config.json", model_type="heath"
    ),
    r"config\.json is not JSON": lambda folder: (folder / "config.json").write_text("{"),
    "hf:dale/village has no tokenizer, or none that is cached: pass tokenizer=": lambda folder: (
        folder / "tokenizer.json"
    ).unlink(),
    "hf:dale/village is neither cached nor reachable": lambda folder: (folder / "model.safetensors").unlink(),
}


@pytest.mark.parametrize("line", DAMAGE)
def test_a_cached_hub_model_that_does_not_load_says_why_without_network(
    line: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    folder = _cached(home, tmp_path)
    assert load("hf:dale/village").name == "dale/village"
    DAMAGE[line](folder)
    with pytest.raises(ModelError, match=line) as caught:
        load("hf:dale/village")
    assert "\n" not in str(caught.value)


def test_a_hub_model_without_safetensors_is_not_called_unreachable(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(fetching, "model_info", lambda *_, **__: None)  # the hub answers
    (_cached(home, tmp_path) / "model.safetensors").unlink()
    with pytest.raises(
        ModelError, match=r"no safetensors weights, .*: download .* then convert pytorch_model.bin once"
    ):
        load("hf:dale/village")


def test_a_hub_repository_without_a_config_is_not_called_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(fetching, "model_info", lambda *_, **__: None)  # the hub answers
    answer = httpx.Response(404, request=httpx.Request("HEAD", "https://hub/config.json"))
    lacking = huggingface_hub.errors.RemoteEntryNotFoundError("404", response=answer)
    offline = huggingface_hub.errors.LocalEntryNotFoundError("offline")
    for error, line in ((lacking, "has no config.json: .*; a LoRA adapter: merge"), (offline, "is neither")):

        def fail(error: Exception = error, **_: object) -> None:
            raise error

        monkeypatch.setattr(fetching, "hf_hub_download", fail)
        with pytest.raises(ModelError, match=f"^hf:dale/village {line}"):
            load("hf:dale/village")


def test_a_tokenizer_comes_from_a_folder_the_cache_or_a_hub_that_answers(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    queries: list[str] = []

    def unreachable(source: str, **_: object) -> None:
        queries.append(source)
        raise OSError("the hub does not answer")

    monkeypatch.setattr(fetching, "model_info", unreachable)
    monkeypatch.setenv("HOME", str(home.parent))
    net = make("llama", vocab_size=400)
    _cached(home, tmp_path)
    for words in ("hf:dale/village", "~/village"):
        assert load(net, tokenizer=words).encode("Who") == load(net, tokenizer=home).encode("Who")
    assert not queries
    with pytest.raises(ModelError, match=r"no tokenizer in hf:nobody/nothing .*the hub does not answer"):
        load(net, tokenizer="hf:nobody/nothing")
    with pytest.raises(ModelError, match=r"no tokenizer in nobody/nothing \(a folder, or hf:<id>\)"):
        load(net, tokenizer="nobody/nothing")
    assert queries == ["nobody/nothing"]
    (_cached(home, tmp_path) / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="no tokenizer in hf:dale/village") as caught:
        load(net, tokenizer="hf:dale/village")
    assert "the hub does not answer" not in str(caught.value)
    for file in _cached(home, tmp_path).iterdir():
        file.name == "config.json" or file.unlink()  # as an interrupted load leaves it
    snapshot = tmp_path / "models--dale--village" / "snapshots" / ("0" * 40)
    (snapshot / "config.json").write_text('{"model_type": "qwen2"}')
    for words in ("hf:dale/village", snapshot):
        with pytest.raises(ModelError, match=r"no tokenizer in .*: it has no tokenizer files"):
            load(net, tokenizer=words)
    assert queries[1:] == ["dale/village"] * 2, "the hub is queried where the cache has no vocabulary"
    with monkeypatch.context() as reachable:
        reachable.setattr(fetching, "model_info", lambda *_, **__: None)
        with pytest.raises(ModelError, match=r"in hf:dale/village .*: it has no tokenizer files"):
            load(net, tokenizer="hf:dale/village")
    (snapshot / "tiktoken.model").write_text("")
    with pytest.raises(ModelError) as caught:
        load(net, tokenizer=snapshot)
    assert "no tokenizer files" not in str(caught.value), "transformers reads such files"
    with pytest.raises(ModelError, match="town-eagle has its target's tokenizer: drop tokenizer="):
        load("town-eagle", tokenizer=home)


def test_a_full_disk_is_not_called_unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(fetching, "model_info", lambda *_, **__: None)  # the hub answers

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fetching, "hf_hub_download", full)
    with pytest.raises(ModelError, match="the disk is full, so dale/village was not downloaded"):
        load("hf:dale/village")


def test_an_empty_list_of_end_tokens_is_none(home: Path, tmp_path: Path) -> None:
    shutil.copytree(home, tmp_path / "copy")
    _set(tmp_path / "copy" / "generation_config.json", eos_token_id=[])
    _set(tmp_path / "copy" / "config.json", eos_token_id=3)
    assert load(tmp_path / "copy").eos == (3,)
    for file in ("generation_config.json", "config.json"):  # -1 is none, too
        _set(tmp_path / "copy" / file, eos_token_id=-1)
    model = load(tmp_path / "copy")
    assert model.eos == (model.tokenizer.eos_token_id,)


def test_devices_and_dtypes(home: Path) -> None:
    for options, line in (
        ({"device": "cuda:99"}, "device cuda:99 is not available"),
        ({"device": "gpu"}, "no device 'gpu'; choose cpu, cuda"),
        ({"device": "meta"}, "device meta is not available; use cpu"),
        ({"dtype": "int3"}, "no dtype 'int3'; choose one of float32"),
    ):
        with pytest.raises(ModelError, match=line):
            load(home, **options)
    with pytest.raises(ModelError, match="got int"):
        load(3)
    with pytest.raises(ModelError, match="tokenizer is a transformers tokenizer"):
        load(home, tokenizer=3)


REFUSED = {
    "of encoder-decoders, T5, mT5, BART and Marian": (
        PegasusConfig(vocab_size=37, d_model=16, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=8),
        "PegasusForConditionalGeneration",
    ),
    "is bidirectional": (
        Gemma2Config(**TINY, num_key_value_heads=1, head_dim=8, use_bidirectional_attention=True),
        "Gemma2ForCausalLM",
    ),
    "sinks": (
        GptOssConfig(**TINY, num_key_value_heads=1, head_dim=8, num_local_experts=2),
        "GptOssForCausalLM",
    ),
    "layers and heads|state|recurrent|attention is custom": (
        MambaConfig(vocab_size=37, hidden_size=16, num_hidden_layers=1),
        "MambaForCausalLM",
    ),
    "not a causal": (BertConfig(**TINY), "BertLMHeadModel"),
    "takes more than text; load only its language model": (
        Gemma3Config(
            text_config={**TINY, "num_key_value_heads": 1, "head_dim": 8},
            vision_config={**VISION, "image_size": 8, "patch_size": 4}, mm_tokens_per_image=4,
        ),
        "Gemma3ForConditionalGeneration",
    ),
}  # fmt: skip


@pytest.mark.parametrize("reason", REFUSED)
def test_an_unsupported_model_is_refused_by_name(reason: str) -> None:
    config, name = REFUSED[reason]
    torch.manual_seed(0)
    net = getattr(transformers, name)(config).eval()
    with pytest.raises(ModelError, match=f"{name} .*is not supported: .*({reason})"):
        load(net)


def test_a_config_that_is_not_supported_is_refused_before_the_weights_are_read(
    home: Path, tmp_path: Path
) -> None:
    config, _ = REFUSED["takes more than text; load only its language model"]
    shutil.copytree(home, tmp_path / "seeing")
    config.save_pretrained(tmp_path / "seeing")
    (tmp_path / "seeing" / "model.safetensors").write_bytes(b"{")
    with pytest.raises(ModelError, match=r"seeing .gemma3. is not supported: it takes more than text"):
        load(tmp_path / "seeing")


def test_the_text_part_of_a_composite_model_is_judged_by_its_own_config() -> None:
    whole = Llama4Config(text_config=TINY)
    assert fetching._built(whole) is whole.text_config
    whole = REFUSED["takes more than text; load only its language model"][0]
    assert fetching._built(whole) is whole


def test_an_untested_family_is_probed() -> None:
    torch.manual_seed(0)
    config = PhiConfig(
        **TINY, num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2, initializer_range=0.4
    )
    model = load(transformers.PhiForCausalLM(config).eval())
    logits = model.open([[1, 2, 3]], 4).forward(Draft.empty()).logits[0][0]
    torch.testing.assert_close(logits, scores(model.net, [1, 2, 3]), atol=1e-4, rtol=0)


@pytest.mark.parametrize("layout", ["onednn", "fp16", "int8"])
def test_a_layout_is_refused_if_transformers_runs_the_model(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    net = transformers.PhiForCausalLM(PhiConfig(**TINY, num_key_value_heads=2)).eval()
    net.save_pretrained(tmp_path)
    for given in (net, str(tmp_path)):
        with pytest.raises(ModelError, match=f"transformers' modules, .*: drop kernels='{layout}'"):
            load(given, kernels=layout)
    before = load(str(tmp_path), "cpu", "float32").content
    assert load(str(tmp_path), "cpu", "float32", kernels="plain").content == before
    monkeypatch.setenv("SPECVIZ_KERNELS", "fp16")  # models without such a layout ignore it
    assert load(str(tmp_path), "cpu", "float32").content == before


def test_the_content_of_files_is_that_of_their_bytes(tmp_path: Path) -> None:
    folder, parts = tmp_path / "whole", tmp_path / "parts"
    for path, more in ((folder, {}), (parts, {"max_shard_size": "20KB"})):
        make("llama").save_pretrained(path, **more)
    files = [*folder.glob("*.safetensors"), *parts.glob("*.safetensors")]
    assert len(files) == 3
    words = tmp_path / "words"  # whose tokenizer pads and cuts until it first encodes a text
    shutil.copytree(bundled()["town"], words)
    fields = json.loads((words / "tokenizer.json").read_text("utf8"))
    fields["padding"] = {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None}
    fields["padding"] |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}
    fields["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    (words / "tokenizer.json").write_text(json.dumps(fields), "utf8")
    for each in (folder, parts):
        models = [load(each, tokenizer=words, dtype=dtype) for dtype in ("float32", "bfloat16", "float64")]
        assert len({model.file_content for model in models}) == 1 and len(models[0].file_content) == 64
        model, late = models[0], load(each, tokenizer=words)
        encoded = load(each, tokenizer=words)
        encoded.tokenizer("The baker sells bread.")
        assert encoded.file_content == models[0].file_content and encoded.content == models[0].content
        before = model.file_content
        file = sorted(each.glob("*.safetensors"))[-1]
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        assert model.file_content == before != load(each, tokenizer=words).file_content
        assert late.file_content == late.content  # the files are no longer its own
        with torch.no_grad():
            model.net.model.norm.weight[0] += 1
        assert model.file_content == model.content
        assert "content" not in model.identity and "content" in models[1].identity


def test_the_hash_of_weights_in_memory_is_of_every_element() -> None:
    net = make("llama").to(torch.bfloat16)
    first = load(net).content
    assert load(net).content == first
    weight = net.model.embed_tokens.weight
    weight.data[[1, 2]] = weight.data[[2, 1]]  # neither its sum, its place nor its version changes
    assert load(net).content != first


def test_a_network_that_cannot_be_converted_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    net = make("llama")

    def refuse(**given: object) -> None:
        raise ValueError("You cannot cast a bitsandbytes model\nin a new `dtype`.")

    monkeypatch.setattr(net, "to", refuse)
    with pytest.raises(ModelError, match=r"^\S+: You cannot cast a bitsandbytes model in a new"):
        load(net, dtype="float32")


def test_unknown_characters_are_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    words = Tokenizer(WordLevel({"<unk>": 0, "<s>": 1, "a": 2, "b": 3}, unk_token="<unk>"))
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", bos_token="<s>")
    net = make("llama", vocab_size=4)
    model = load(net, tokenizer=tokenizer)
    for _ in range(2):
        specviz.generate(model, ["a b", "a z", "b", "z z"], "autoregressive", max_new_tokens=2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("specviz: 2 prompts (2, 4) contain characters that ")
    tokenizer.bos_token = "<unk>"  # GPT-2 also begins texts with this token
    specviz.generate(load(net, tokenizer=tokenizer), "a", "autoregressive", max_new_tokens=2)
    assert not capsys.readouterr().err


def test_a_sliding_window_bounds_the_context() -> None:
    net = transformers.MistralForCausalLM(
        MistralConfig(**TINY, num_key_value_heads=1, sliding_window=8)
    ).eval()
    model = Model(net)
    assert model.max_length == 8
    context = model.open([[1, 2, 3, 4, 5, 6]], 2)
    logits = context.forward(Draft.chain([7, 8])).logits[0][2]
    torch.testing.assert_close(logits, scores(net, [1, 2, 3, 4, 5, 6, 7, 8]), atol=1e-4, rtol=0)
    with pytest.raises(SpecvizError, match="at most 8"):
        model.open([[1] * 9], 2)


def test_vocabularies(home: Path, tmp_path: Path) -> None:
    one = load(home)
    one.check_vocabulary(load(home))
    other = tmp_path / "other"
    shutil.copytree(home, other)
    data = json.loads((other / "tokenizer.json").read_text())
    a, b = (next(k for k, v in data["model"]["vocab"].items() if v == i) for i in (40, 50))
    data["model"]["vocab"] |= {a: 50, b: 40}
    data["model"]["merges"] = []
    (other / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(
        ModelError, match=r"different vocabularies: id 40 is .* in the one and .* in the other"
    ):
        one.check_vocabulary(load(other))
    padded = load(make("llama", vocab_size=one.vocabulary + 3), tokenizer=home)
    one.check_vocabulary(padded)  # a head may have rows that no token uses
    with pytest.raises(ModelError, match="differ in size"):
        one.check_vocabulary(load(make("llama", vocab_size=one.vocabulary + 3)))


def test_the_plain_layout_copies_nothing() -> None:
    net = make("llama")
    model = Model(net, plain=True, kernels="plain")
    _, _, _, _, _, gate_up, _ = model._llama.weights[0]
    matrix = gate_up.product.matrices[1]
    assert matrix.data_ptr() == net.model.layers[0].mlp.up_proj.weight.data_ptr()
    ids = [1, 2, 3]
    logits = model.open([ids], 4).forward(Draft.empty()).logits[0][0]
    torch.testing.assert_close(logits, scores(net, ids), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(("number", "features", "warns"), [
    ("float16", {"avx512_fp16": False, "amx_bf16": True}, True),
    ("bfloat16", {"avx512_bf16": False, "amx_bf16": False, "avx512_fp16": True}, True),
    ("float16", {"avx512_fp16": True}, False), ("bfloat16", {"amx_bf16": True}, False),
    ("float16", {}, True), ("float32", {"avx512_fp16": False}, False),
])  # fmt: skip
def test_an_emulated_number_format_causes_a_warning(number, features, warns, monkeypatch, capsys):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features, raising=False)
    specviz.load("town", dtype=number)
    assert "no instructions" not in capsys.readouterr().err  # a small model loses no time
    monkeypatch.setattr(choices, "large", lambda net: True)
    specviz.load("town", dtype=number)
    line = capsys.readouterr().err
    assert (f"no instructions for {number}" in line) == warns


@pytest.mark.parametrize(("avx512", "amx", "has", "warns"), [
    (True, False, True, False), (False, True, True, False), (False, False, False, True),
    (None, None, False, True),
])  # fmt: skip
def test_an_older_torch_tests_single_sets_of_instructions(avx512, amx, has, warns, monkeypatch):
    """Versions without `get_capabilities` have private functions; without these, none are assumed."""
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    for name, value in (("_is_avx512_bf16_supported", avx512), ("_is_amx_tile_supported", amx)):
        if value is None:
            monkeypatch.delattr(torch.cpu, name, raising=False)
        else:
            monkeypatch.setattr(torch.cpu, name, lambda value=value: value, raising=False)
    assert devices.has_bfloat16.__wrapped__(torch.device("cpu")) is has
    assert devices.emulates("cpu", "bfloat16") is warns
    assert devices.emulates("cpu", "float16")  # older versions do not test for it
