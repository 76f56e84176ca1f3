"""Each class of the papers' checkpoints, tiny: its files and tensor names are converted, loaded and run."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import seq2seq
import torch
from checkpoints import tokenizer
from eagles import published, target
from families import make
from safetensors.torch import load_file
from test_diffusion_checkpoints import DREAM, LLADA, tensors, write
from test_eagle_loading import FIRST, THIRD

import specviz as sv
from specviz import cli
from specviz.errors import ModelError
from specviz.models.converting import convert
from specviz.replays.setups import Checkpoint, Setups

torch.set_num_threads(1)
WORDS = 261  # of the tokenizer that the tests write


def pickled(folder: Path, content: dict[str, torch.Tensor]) -> None:
    """Save weights as older trainers did, with shared tensors stored as shared."""
    torch.save(content, folder / "pytorch_model.bin")
    for file in folder.glob("*.safetensors"):
        file.unlink()


def seq2seq_folder(name: str) -> Callable[[Path], None]:
    def made(folder: Path) -> None:
        net = seq2seq.make(name, dtype=torch.float32, vocab_size=WORDS)
        net.save_pretrained(folder)
        tokenizer(folder, template=False)
        shared = {"shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}
        state = net.state_dict()
        assert shared <= set(state), "T5 stores one matrix under three names"
        pickled(folder, state)

    return made


def causal_folder(name: str) -> Callable[[Path], None]:
    def made(folder: Path) -> None:
        make(name, vocab_size=WORDS).save_pretrained(folder, max_shard_size="8KB")
        assert len(list(folder.glob("model-0000*-of-*.safetensors"))) > 1
        assert (folder / "model.safetensors.index.json").is_file()
        tokenizer(folder)

    return made


def eagle_folder(name: str) -> Callable[[Path], None]:
    def made(folder: Path) -> None:
        pickled(published(name).write(folder), {k: v.clone() for k, v in published(name).tensors().items()})

    return made


def llada_folder(folder: Path) -> None:
    write(folder, LLADA, tensors(LLADA), shards=3)


def dream_folder(folder: Path) -> None:
    write(folder, DREAM, tensors(DREAM), shards=3)


# By class name in `setups.toml`: a function that writes its folder, and the kind of the loaded model.
LAYOUTS: dict[str, tuple[Callable[[Path], None], str]] = {
    "MT5ForConditionalGeneration": (seq2seq_folder("mt5"), "encoder-decoder"),
    "T5ForConditionalGeneration": (seq2seq_folder("t5"), "encoder-decoder"),
    "Gemma2ForCausalLM": (causal_folder("gemma2"), "causal"),
    "Qwen3ForCausalLM": (causal_folder("qwen3"), "causal"),
    "LlamaForCausalLM": (causal_folder("llama3-rope"), "causal"),
    "LLaDAModelLM": (llada_folder, "diffusion"),
    "DreamModel": (dream_folder, "diffusion"),
    "EAGLE": (eagle_folder(FIRST), "eagle"),
    "EAGLE-3": (eagle_folder(THIRD), "eagle"),
}
CHECKPOINTS = Setups().checkpoints


def one_of(architecture: str) -> Checkpoint:
    return next(each for each in CHECKPOINTS.values() if each.architecture == architecture)


def test_every_class_that_a_set_up_names_is_tried_here():
    assert {each.architecture for each in CHECKPOINTS.values()} == set(LAYOUTS)


@pytest.mark.parametrize("architecture", LAYOUTS)
def test_a_tiny_checkpoint_alike_is_found_converted_loaded_and_run(architecture, tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path))
    checkpoint, (write_folder, kind) = one_of(architecture), LAYOUTS[architecture]
    assert not checkpoint.here
    assert checkpoint.location == f"hf:{checkpoint.id}"
    checkpoint.path.parent.mkdir()
    write_folder(checkpoint.path)
    if checkpoint.pickled:
        assert not checkpoint.here
        assert cli.run(["models", "convert", str(checkpoint.path)]) == 0
    assert checkpoint.here
    assert checkpoint.location == str(checkpoint.path)
    loaded = sv.load(checkpoint.location, dtype="float32")
    assert loaded.kind == kind
    if kind == "eagle":
        model = target(dtype=torch.float32)
        trace = sv.generate(model, [[3, 1, 4]], "eagle", draft=loaded, max_new_tokens=6)
    else:
        method = "stepwise" if kind == "diffusion" else "autoregressive"
        trace = sv.generate(loaded, ["the mill"], method, max_new_tokens=8)
    assert len(trace.outputs)


def test_the_conversion_keeps_every_number_and_one_of_each_shared_tensor(tmp_path):
    net = seq2seq.make("t5", dtype=torch.float32)
    pickled(tmp_path, net.state_dict())
    stored = load_file(convert(tmp_path))
    assert "shared.weight" in stored
    assert "encoder.embed_tokens.weight" not in stored
    assert all(torch.equal(value, net.state_dict()[name]) for name, value in stored.items())
    with pytest.raises(ModelError, match="already exists"):
        convert(tmp_path)
    convert(tmp_path, force=True)


class Harm:
    def __reduce__(self):
        return (print, ("this ran",))


@pytest.mark.parametrize("content", ["harm", "object", "list", "number", "empty", "damaged", "none"])
def test_nothing_but_tensors_is_read(content, tmp_path, capfd):
    file = tmp_path / "pytorch_model.bin"
    lines = {"harm": "more than tensors", "object": "more than tensors", "damaged": "cannot be read",
             "none": "has no pytorch_model.bin"}  # fmt: skip
    line = lines.get(content, "is not a table of tensors")
    if content == "harm":
        file.write_bytes(pickle.dumps({"a": Harm()}))
    elif content == "damaged":
        torch.save({"a": torch.ones(9)}, file)
        file.write_bytes(file.read_bytes()[:200])
    elif content != "none":
        values = {"object": {"a": Path("x")}, "list": [torch.ones(2)], "number": {"a": 1.0}, "empty": {}}
        torch.save(values[content], file)
    assert cli.run(["models", "convert", str(tmp_path)]) == 2
    out, err = capfd.readouterr()
    assert line in err
    assert err.count("\n") == 1
    assert "this ran" not in out
    assert not (tmp_path / "model.safetensors").exists()
