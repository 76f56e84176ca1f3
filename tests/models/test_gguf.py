"""The GGUF writer against transformers: the same logits and tokens, and what it refuses."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
pytest.importorskip("gguf", reason="gguf is not installed")

from gguf_files import ODD, file, random_model, scores, served, strings, tokenizer
from transformers import LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

import specviz
from specviz.draft import Draft
from specviz.errors import ModelError
from specviz.models.llamacpp import bundled as writing
from specviz.models.llamacpp import write_gguf
from specviz.models.llamacpp.bundled import bundled_gguf
from specviz.models.llamacpp.writer import tensors, turned
from specviz.models.loading import load
from specviz.models.model import Model
from specviz.models.trimmed import TrimmedModel, cut
from specviz.models.zoo import bundled

YARN = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1e4}
TEXT = [0, 2, 300, 41, 17, 999, 2048, 3071, 5, 77, 1234, 600]
# Limits on the largest difference; the logits' standard deviation is 1.9, and the mean difference far less.
WIDE = (
    torch.backends.cpu.get_cpu_capability() == "AVX512"
)  # without it llama.cpp adds halves in another order
TOLERANCE = {"f32": 1e-4, "f16": 1e-2 if WIDE else 2e-2, "q8_0": 0.3, "q4_k_m": 3.0}


def all_scores(model, ids: list[int]) -> np.ndarray:
    """llama.cpp's logits after every token, from one pass."""
    context = model.open([ids[:1]], len(ids))
    found = context.forward(Draft.chain(np.array(ids[1:]))).logits[0].numpy()
    context.close()
    return found


@pytest.mark.parametrize("type", TOLERANCE)
def test_scores_are_those_of_transformers(type: str) -> None:
    found, want = all_scores(served(type), TEXT), scores(random_model(), TEXT)
    assert np.abs(found - want).max() < TOLERANCE[type]
    assert np.abs(found - want).mean() < TOLERANCE[type] / 5
    assert want.std() > 1.5  # otherwise any tolerance would do
    assert (
        served(type).dtype == {"f32": "float32", "f16": "float16", "q8_0": "Q8_0", "q4_k_m": "Q4_K_M"}[type]
    )


def test_bundled_models_have_rows_that_stay_whole(tmp_path: Path) -> None:
    made = write_gguf("town", tmp_path / "town.gguf", "q8_0")
    assert set(made.tensors["Q8_0"]) == {f"blk.{i}.ffn_down.weight" for i in range(8)}  # rows of 384, not 144
    assert "token_embd.weight" in made.tensors["F16"] and "49 in F16" in str(made)
    model, town = load(f"gguf:{made.path}", threads=1), load("town")
    assert np.abs(all_scores(model, TEXT) - scores(town, TEXT)).max() < 0.3
    assert (model.eos, model.max_length, model.vocabulary) == (town.eos, town.max_length, town.vocabulary)
    assert model.parameters == town.parameters and model.layers == town.layers
    model.check_vocabulary(town)
    town.check_vocabulary(model)


@pytest.mark.parametrize("config", [
    LlamaConfig(attention_bias=True, mlp_bias=False, head_dim=24),
    LlamaConfig(num_key_value_heads=4, rope_parameters={"rope_type": "default", "rope_theta": 500000.0}),
    MistralConfig(sliding_window=None, head_dim=32),
    Qwen2Config(),
    Qwen3Config(head_dim=32),
], ids=lambda config: config.model_type)  # fmt: skip
@pytest.mark.parametrize("tied", [True, False])
def test_families(config: object, tied: bool, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    for name, value in {
        "vocab_size": 3080, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 128, "tie_word_embeddings": tied,
        "eos_token_id": 4,
        "bos_token_id": 0, "pad_token_id": 6,
    }.items():  # fmt: skip
        setattr(config, name, value)
    if config.num_key_value_heads not in (2, 4):
        config.num_key_value_heads = 2
    if hasattr(config, "layer_types"):
        config.layer_types = ["full_attention"] * 2
    torch.manual_seed(1)
    net = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)  # biases and norms too
    model = Model(net, tokenizer(), config.model_type)
    write_gguf(model, tmp_path / "x.gguf", "f32")
    found = load(f"gguf:{tmp_path / 'x.gguf'}", threads=1)
    assert found.vocabulary == 3080 and found.piece(3079) == b""
    want = scores(model, TEXT)
    assert np.abs(all_scores(found, TEXT) - want).max() < 3e-4 * np.abs(want).max()


def test_a_head_of_its_own_is_written_whatever_the_config_says(tmp_path: Path) -> None:
    net = copy.deepcopy(random_model().net)
    draw = torch.Generator().manual_seed(3)
    net.lm_head.weight = torch.nn.Parameter(
        net.lm_head.weight + torch.randn(net.lm_head.weight.shape, generator=draw)
    )
    assert net.config.tie_word_embeddings
    model = Model(net, tokenizer(), "own-head")
    made = write_gguf(model, tmp_path / "x.gguf", "f32")
    assert "output.weight" in made.tensors["F32"]
    written, want = load(f"gguf:{made.path}", threads=1), scores(model, TEXT)
    assert np.abs(all_scores(written, TEXT) - want).max() < 3e-4 * np.abs(want).max()


def test_a_folder_and_a_model_give_the_same_file(tmp_path: Path) -> None:
    write_gguf("town-draft", tmp_path / "a.gguf")
    write_gguf(load("town-draft"), tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_turned() -> None:
    assert turned(np.arange(8)[:, None], 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert turned(np.arange(6), 1).tolist() == [0, 3, 1, 4, 2, 5]


def test_tokenization_is_that_of_transformers() -> None:
    words, model = tokenizer(), served()
    texts = strings(290)
    assert len(texts) >= 2000
    for text in texts:
        assert model.text._tokens(text, False) == words(text, add_special_tokens=False)["input_ids"], text
        assert model.decode(model.encode(text, raw=True)) == text
    for text in ODD:
        plain = words(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert model.text._tokens(text, False) == plain, text
        assert b"".join(map(model.piece, plain)) == text.encode(), text


def test_pieces_are_those_of_transformers() -> None:
    town = load("town")
    assert [served().piece(i) for i in range(3072)] == [town.piece(i) for i in range(3072)]
    assert served().text.special == set(range(16))  # every control token, in the config or not


@pytest.mark.parametrize(
    ("kind", "digits"), [("gpt-2", False), ("smollm", True), ("llama-bpe", False), ("qwen2", True)]
)
def test_pre_tokenizers(kind: str, digits: bool, tmp_path: Path) -> None:
    """Each way of splitting text that the writer supports, on text where they differ."""
    from tokenizers import Regex, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from specviz.models.llamacpp.writer import PATTERNS

    raw = type(tokenizer().backend_tokenizer).from_str(tokenizer().backend_tokenizer.to_str())
    pattern = {name: text for text, name in PATTERNS.items()}.get(kind)
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern:
        raw.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), last])
    elif digits:
        raw.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), last])
    else:
        raw.pre_tokenizer = last
    words = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="<|end|>")
    model = Model(random_model().net, words, kind)
    write_gguf(model, tmp_path / "x.gguf")
    found = load(f"gguf:{tmp_path / 'x.gguf'}")
    for text in [*ODD, *strings(20), "12345 2024-05-24 x1y22z333 \r\n\r\n a\r\n  b", "I'LL THEY'RE"]:
        want = words(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert found.text._tokens(text, False) == want, text


def test_a_model_with_several_chat_templates_keeps_them(tmp_path: Path) -> None:
    words, net = copy.deepcopy(tokenizer()), random_model().net
    words.chat_template = {"default": words.chat_template, "tool_use": "{{ messages }}"}
    write_gguf(Model(net, words, "several"), tmp_path / "x.gguf")
    found = load(f"gguf:{tmp_path / 'x.gguf'}", threads=1)
    assert found.encode("the mill") == served().encode("the mill")
    assert found.weights.meta("tokenizer.chat_template.tool_use") == "{{ messages }}"


def test_without_the_writer_s_package_it_says_what_to_install(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModelError, match=r"llama.cpp is not installed; .*pip install"):
        write_gguf("town-draft", tmp_path / "x.gguf")
    assert not list(tmp_path.iterdir())


def test_an_invariant_model_is_written_like_its_files(tmp_path: Path) -> None:
    model = load("town-draft", dtype="float32", kernels="plain")
    try:
        model.make_invariant()
    except ModelError as error:
        pytest.skip(str(error))
    files = [write_gguf(what, tmp_path / f"{i}.gguf").path for i, what in enumerate(("town-draft", model))]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_what_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "x.gguf"
    draft = load("town-draft")
    drafter = TrimmedModel(cut(draft.net, draft.layers, range(100)), draft, "cut-draft")
    for what, type, line in (
        ("town", "q3", "no GGUF type 'q3'; choose one of f32, f16, q8_0, q4_k_m"),
        (f"gguf:{file()}", "f16", "is no causal language model of its own on torch"),
        (str(tmp_path / "none"), "f16", "no model"),
        (load(f"gguf:{file()}", backend="torch"), "f16", f"it comes from a GGUF file already, {file()}"),
        (draft.first(1), "f16", f"it has 1 of {draft.layers} layers: write the whole model"),
        (drafter, "f16", "its head has 100 of 3072 tokens: write the model that it is cut out of"),
    ):
        with pytest.raises(ModelError, match=line):
            write_gguf(what, out, type)
    with pytest.raises(ModelError, match="is a folder"):
        write_gguf("town-draft", tmp_path)
    out.write_text("mine")
    with pytest.raises(ModelError, match="exists: choose another path"):
        write_gguf("town-draft", out)
    assert out.read_text() == "mine"
    write_gguf("town-draft", out, force=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.gguf"]


@pytest.mark.parametrize("change", [
    {"hidden_size": 8}, {"vocab_size": 5000}, {"num_hidden_layers": 3}, {"num_attention_heads": 7},
])  # fmt: skip
def test_a_folder_whose_weights_are_not_those_of_its_config_is_refused(change: dict, tmp_path: Path) -> None:
    """Otherwise llama.cpp would refuse the file, or transformers would fill in random weights."""
    home, out = tmp_path / "home", tmp_path / "x.gguf"
    shutil.copytree(bundled()["town-draft"], home)
    config = json.loads((home / "config.json").read_text()) | change
    (home / "config.json").write_text(json.dumps(config))
    for use in (load, lambda path: write_gguf(path, out)):
        with pytest.raises(ModelError, match=r"home.* (lacks 9 weights|does not load)") as raised:
            use(home)
        assert "\n" not in str(raised.value)
    assert not out.exists()


def test_a_damaged_folder_is_refused_by_the_writer_too(tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(bundled()["town-draft"], home)
    data = (home / "model.safetensors").read_bytes()
    (home / "model.safetensors").write_bytes(data[:-1000])
    with pytest.raises(ModelError, match="does not load"):
        write_gguf(home, tmp_path / "x.gguf")


@pytest.mark.parametrize(("change", "line"), [
    ({"config.json": {"rope_parameters": YARN}}, "positions are scaled"),
    ({"config.json": {"hidden_act": "gelu"}}, "activation is gelu"),
    ({"config.json": {"model_type": "gemma", "architectures": ["GemmaForCausalLM"]}}, "only the families"),
    ({"generation_config.json": {"eos_token_id": [1, 2, 3, 4]}}, "4 end tokens"),
    ({"tokenizer.json": {"pre_tokenizer": {"type": "Whitespace"}}}, "no name for .* splits text .Whitespace"),
    ({"tokenizer.json": {"normalizer": {"type": "NFKC"}}}, r"splits text .NFKC"),
])  # fmt: skip
def test_what_has_no_counterpart(change: dict, line: str, tmp_path: Path) -> None:
    home = tmp_path / "m"
    shutil.copytree(bundled()["town-draft"], home)
    for name, values in change.items():
        known = json.loads((home / name).read_text())
        (home / name).write_text(json.dumps(known | values))
    with pytest.raises(ModelError, match=line):
        write_gguf(home, tmp_path / "x.gguf")
    assert not list(tmp_path.glob("*.gguf*"))


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gguf

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", full)
    with pytest.raises(ModelError, match=r"cannot write .*: No space left on device"):
        write_gguf("town-draft", tmp_path / "x.gguf")
    assert not list(tmp_path.iterdir())


def test_command(tmp_path: Path) -> None:
    out = tmp_path / "d.gguf"

    def run(*words: str) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, "-m", "specviz", *words], capture_output=True, text=True)

    done = run("models", "gguf", "town-draft", "--out", str(out), "--type", "q8_0")
    assert done.returncode == 0, done.stderr
    assert "in Q8_0" in done.stdout and f"gguf:{out}" in done.stdout
    assert set(tensors(out)) == {"F32", "Q8_0"}
    again = run("models", "gguf", "town-draft", "--out", str(out))
    assert again.returncode == 2 and "exists" in again.stderr


def test_a_bundled_model_is_written_once_and_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path / "home"))
    path = bundled_gguf("town-draft")
    assert path.name == "town-draft.gguf" and path.is_relative_to(tmp_path / "home")
    write_gguf("town-draft", tmp_path / "again.gguf", "f16")
    assert path.read_bytes() == (tmp_path / "again.gguf").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(writing, "write_gguf", None)
        assert bundled_gguf("town-draft") == path, "written once"
    other = tmp_path / "town-draft"
    shutil.copytree(bundled()["town-draft"], other)
    monkeypatch.setattr(writing, "bundled", lambda: {"town-draft": other})
    (other / "README.md").write_text("changed")
    assert bundled_gguf("town-draft") == path, "what is not read does not count"
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-4}))
    assert bundled_gguf("town-draft") != path
    with monkeypatch.context() as patch:
        patch.setattr(writing, "VERSION", 0)
        patch.setattr(writing, "bundled", bundled)
        assert bundled_gguf("town-draft") != path, "another writer writes again"


@pytest.mark.parametrize("kernels", ["int8", "transposed"])
def test_what_is_written_does_not_depend_on_how_models_are_decoded(
    kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf("town-draft", tmp_path / "a.gguf")
    monkeypatch.setenv("SPECVIZ_KERNELS", kernels)
    monkeypatch.setenv("SPECVIZ_INVARIANT", "1")
    write_gguf("town-draft", tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_a_bundled_model_that_is_no_file_of_llamacpp_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path / "home"))
    for name, reason in (
        ("town-t5", "cannot be written as GGUF: only the families"),
        ("town-eagle", "town-eagle is not a model by itself but an EAGLE drafter on town"),
        ("town-diffusion", "town-diffusion is no causal language model of its own"),
    ):
        with pytest.raises(ModelError, match=reason):
            load(f"gguf:{name}")
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="cannot write"):
        load("gguf:town-draft")


def test_a_bundled_file_translates_as_the_model_it_came_from() -> None:
    prompt = "Translate into German: The cook went to the village."
    texts = [
        specviz.generate(load(model), prompt, "autoregressive").text
        for model in ("town-translator", "gguf:town-translator")
    ]
    assert texts[0] == "Der Koch ist ins Dorf gegangen."
    assert texts[1] == texts[0]
