"""A causal model adapted to masked diffusion: its loss, folder, decoding and refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import specviz
from specviz.errors import ModelError, ParameterError, PromptError
from specviz.finetune import answers, diffusion, masking, training
from specviz.finetune.diffusion import AdaptedNet, MaskedLoss, adapt, read_texts
from specviz.models import Model, adapters, fetching, kernels
from specviz.models.llamacpp import write_gguf
from specviz.models.zoo import bundled

TEXTS = [{"prompt": f"What is {a} + 1?", "answer": f"{a + 1}"} for a in range(30)]
FAST = {"rank": 4, "epochs": 2, "batch": 8, "say": lambda line: None}


@pytest.fixture
def target() -> Model:
    return specviz.load("town", dtype="float32", invariant=False, kernels="plain")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> training.Trained:
    return adapt("town", TEXTS, tmp_path_factory.mktemp("adapter") / "new", rate=0.02, **FAST)


def test_merged_weights_are_rounded_to_float16_by_name(made: training.Trained) -> None:
    if not kernels.multiplies_halves():
        pytest.skip("torch has no product with weights in float16 here")
    model = specviz.load(made.path, kernels="fp16")
    assert model.kernels == "fp16" and all(map(kernels.in_halves, kernels.matrices(model.net)))


def test_it_learns_and_its_folder_computes_what_was_trained(made: training.Trained, target: Model) -> None:
    assert (made.learnt, made.held_out) == (27, 3) and made.after < made.before
    assert f"|  | {made.before[0]:.3f} | {made.after[0]:.3f} |" in (made.path / "README.md").read_text()
    assert sum(file.stat().st_size for file in made.path.iterdir()) < 200_000
    tensors = adapters.unpack(load_file(made.path / "model.safetensors"))
    config = json.loads((made.path / "config.json").read_text())
    mask = config["mask_token_id"]
    assert config["load"] == "town"
    net = AdaptedNet(target, 4, mask)
    named = {name if name == "mask" else f"net.{name}": value for name, value in tensors.items()}
    assert not net.load_state_dict(named, strict=False).unexpected_keys
    for module in net.modules():  # float32, whatever this processor trains in
        if isinstance(module, diffusion.AdaptedLinear):
            module.weight = module.weight.float()
    for name in net.names:
        net.net.get_submodule(name).weight = target.net.get_submodule(name).weight
    net.head = target.net.get_output_embeddings().weight
    model = specviz.load(made.path)
    prompt = model.encode("What is 7 + 1?")
    ids = torch.tensor([[*prompt, 5, mask, 9, mask]])
    cells = ids == mask
    with torch.no_grad():
        wanted = net(ids, cells, cells)
    canvas = model.open([prompt], 4, block=4)
    canvas.fill([0, 2], [5, 9])
    read = canvas.forward(specviz.Draft.empty())
    got = read.logits if hasattr(read, "logits") else read[0].logits
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4)


def test_the_stored_format_is_the_targets(made: training.Trained) -> None:
    """The bundled town is stored in float16; without a dtype both are in float32."""
    assert specviz.load(made.path, dtype="stored").dtype == torch.float16
    assert specviz.load(made.path).dtype == torch.float32


def test_ssd_writes_what_stepwise_writes_on_it(made: training.Trained) -> None:
    given = {"max_new_tokens": 16, "block": 8, "cache": "dual"}
    model = specviz.load(made.path)
    assert model.kind == "diffusion" and model.shift == 1 and model.source == "adapter of town"
    steps, ssd = (specviz.generate(model, "What is 7 + 1?", m, **given) for m in ("stepwise", "ssd"))
    assert (
        steps.outputs.set_index("position")["token"].to_dict()
        == ssd.outputs.set_index("position")["token"].to_dict()
    )


def test_a_run_goes_on(tmp_path: Path, made: training.Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    class Cut(Exception):
        pass

    def stop(line: str) -> None:
        if line.startswith("3 of"):
            raise Cut

    given = FAST | {"every": 0.0, "rate": 0.02}
    with pytest.raises(Cut):
        adapt("town", TEXTS, tmp_path / "cut", **given | {"say": stop})
    lines: list[str] = []
    adapt("town", TEXTS, tmp_path / "cut", **given | {"say": lines.append})
    assert lines[0].startswith("resuming after")
    one, other = (load_file(path / "model.safetensors") for path in (made.path, tmp_path / "cut"))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_trained_adapter_is_trained_further(tmp_path: Path, made: training.Trained) -> None:
    more = adapt("town", TEXTS, tmp_path / "more", start=made.path, **FAST | {"rank": 2, "seed": 1})
    assert more.before == pytest.approx(made.after, rel=0.02)  # the saved matrices have eight bits
    assert more.after < more.before
    config = json.loads((more.path / "config.json").read_text())
    assert config["rank"] == 4 and "| trained further from | new |" in (more.path / "README.md").read_text()


def test_padding_and_masks() -> None:
    pairs = [diffusion.Pair([3, 4, 5], [7, 2]), diffusion.Pair([3], [8, 9, 2])]
    for seed in range(20):
        rng = np.random.default_rng(seed)
        canvas, cells = diffusion.canvases(pairs, 2, rng)
        assert canvas[0, :5].tolist() == [3, 4, 5, 7, 2] and canvas[1, :4].tolist() == [3, 8, 9, 2]
        assert (canvas[0, 5:] == 2).all() and cells.sum(1).tolist() == [
            canvas.shape[1] - 3,
            canvas.shape[1] - 1,
        ]
        masks = masking.draw_masks(canvas, cells, 2, 0.5, rng)
        assert not (masks.learnt & ~masks.masked).any() and not (masks.masked & ~cells).any()
        assert len(masks.weights) == masks.learnt.sum()


def test_blocks_are_drawn_from_all_texts_of_a_sorted_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    canvas = np.repeat(np.arange(8)[:, None] + 10, 6, 1)
    real, drawn = masking.hide_blocks, []
    monkeypatch.setattr(
        masking, "hide_blocks", lambda rows, *rest: drawn.append({*rows[:, 0]}) or real(rows, *rest)
    )
    for seed in range(20):
        masks = masking.draw_masks(canvas, canvas > 0, 2, 0.5, np.random.default_rng(seed))
        assert not (masks.learnt & ~masks.masked).any() and len(masks.weights) == masks.learnt.sum()
    assert {len(rows) for rows in drawn} == {4} and set.union(*drawn) == set(range(10, 18))


def test_a_target_named_by_its_path_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(bundled()["town"], tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    adapt("./mine", TEXTS[:4], "new", **FAST | {"epochs": 1})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert specviz.load(tmp_path / "new").source == "adapter of mine"


def test_a_target_without_an_end_token_is_refused(
    target: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.eos = ()
    monkeypatch.setattr(diffusion, "load", lambda *given, **options: target)
    with pytest.raises(ModelError, match="town has no end token"):
        adapt("town", TEXTS, tmp_path / "new", **FAST)


def test_what_is_refused(target: Model, made: training.Trained, tmp_path: Path) -> None:
    out, quiet = tmp_path / "new", {"say": lambda line: None}
    for error, words, model, texts, given in (
        (PromptError, "two texts", "town", TEXTS[:1], {}),
        (PromptError, "prompt 2: ", "town", [TEXTS[0], {"prompt": "", "answer": "b"}, TEXTS[1]], {}),
        (
            PromptError,
            "at most 2 tokens",
            "town",
            [{"prompt": "a", "answer": "one two three"}] * 3,
            {"longest": 2},
        ),
        (ParameterError, "rank must be a whole number of at least 1", "town", TEXTS, {"rank": 0}),
        (ParameterError, "rank must be a whole number of at least 1", "town", TEXTS, {"rank": 8.0}),
        (ParameterError, "longest must be a whole number of at least 1", "town", TEXTS, {"longest": 0}),
        (ParameterError, "by name", target, TEXTS, {}),
        (
            PromptError,
            "prompt 2 is a question of the suite narrow",
            "town",
            [TEXTS[0], {"prompt": specviz.suite("narrow")[0]["prompt"], "answer": "a"}],
            {},
        ),
        (ModelError, "Llama family", "town-t5", TEXTS, {}),
        (ModelError, "nowhere", "town", TEXTS, {"start": tmp_path / "nowhere"}),
        (ModelError, "town-draft is not a diffusion adapter", "town", TEXTS, {"start": "town-draft"}),
        (ModelError, "has different weights", "town-draft", TEXTS, {"start": made.path}),
    ):
        with pytest.raises(error, match=words) as caught:
            adapt(model, texts, out, **quiet, **given)
        assert "\n" not in str(caught.value)
    assert not out.exists()
    target.tokenizer.chat_template = "".join(
        t.content for t in target.tokenizer.added_tokens_decoder.values()
    )
    with pytest.raises(ModelError, match="no unused special token"):
        diffusion.unused_token(target)


def test_texts_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    for line, words in (
        ("{", "line 2 is not JSON"),
        ("[" * 200_000, "line 2 is nested too deeply"),
        ('{"prompt": "a"}', "line 2"),
        ("[]", "line 2"),
    ):
        file.write_text(f"{json.dumps(TEXTS[0])}\n{line}\n")
        with pytest.raises(PromptError, match=words):
            read_texts(file)
    file.write_text(json.dumps(TEXTS[0]), encoding="utf-8-sig")
    assert read_texts(file) == TEXTS[:1]


def test_folders_that_do_not_fit(made: training.Trained, tmp_path: Path) -> None:
    config = json.loads((made.path / "config.json").read_text())
    weights = load_file(made.path / "model.safetensors")
    for change, dropped, words in (
        ({"content": "0" * 64}, None, r"trained on town \(00000000\), but town has different weights"),
        ({"load": "town-draft"}, None, "has different weights"),
        ({"load": "nowhere"}, None, r"needs its target nowhere \(load in its config.json\): no model"),
        ({"mask_token_id": 10**6}, None, "outside"),
        ({"rank": "four"}, None, "config.json"),
        ({}, "mask", "its mask is missing"),
        ({}, next(n for n in weights if n.endswith("down")), "does not fit town"),
        ({}, next(n for n in weights if n.endswith("down.scale")), "holds int8 without a scale"),
    ):
        folder = tmp_path / str(abs(hash((*change.items(), dropped))))
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config | change))
        save_file({n: t for n, t in weights.items() if n != dropped}, folder / "model.safetensors")
        with pytest.raises(ModelError, match=words) as caught:
            specviz.load(folder)
        assert "\n" not in str(caught.value)
    (folder / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ModelError, match="no readable adapter"):
        specviz.load(folder)


def test_an_adapter_on_the_hub(
    made: training.Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    base = tmp_path / "models--dale--adapter"
    shutil.copytree(made.path, base / "snapshots" / ("0" * 40))
    (base / "refs").mkdir()
    (base / "refs" / "main").write_text("0" * 40)
    assert specviz.load("hf:dale/adapter").source == "adapter of town"
    with pytest.raises(ModelError, match="has its target's tokenizer: drop tokenizer="):
        specviz.load("hf:dale/adapter", tokenizer=bundled()["town"])
    monkeypatch.setattr(fetching.ranks, "join", lambda: SimpleNamespace(tried=lambda call: call()))
    for spec in ("hf:dale/adapter", str(made.path)):
        with pytest.raises(ModelError, match=r"is not a causal model, .*: drop tp_plan"):
            fetching.fetch_split(spec, "float32", None, None)


def test_a_gguf_file_is_adapted_on_torch(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    path = write_gguf("town", tmp_path / "town.gguf", "f32").path
    with pytest.raises(PromptError, match="two texts"):  # raised after loading
        adapt(f"gguf:{path}", TEXTS[:1], tmp_path / "new", **FAST)


def retrained(folder: Path, made: Path, number: torch.dtype) -> Path:
    """Write a target with other weights of the same shape, in a format, and an adapter that names it."""
    target = shutil.copytree(bundled()["town"], folder / "town")
    weights = {name: value.to(number) for name, value in load_file(target / "model.safetensors").items()}
    weights["model.norm.weight"] += 0.001
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    named = shutil.copytree(made, folder / "adapter")
    config = json.loads((named / "config.json").read_text()) | {"load": str(target)}
    (named / "config.json").write_text(json.dumps(config))
    return named


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "stored"])
def test_a_retrained_target_is_refused_in_any_format(
    made: training.Trained, tmp_path: Path, dtype: str
) -> None:
    with pytest.raises(ModelError, match=r"trained on town .* has different weights"):
        specviz.load(retrained(tmp_path, made.path, torch.float16), dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_the_target_is_rounded_after_the_check(made: training.Trained, dtype: str) -> None:
    plain, model = specviz.load("town", dtype=dtype), specviz.load(made.path, dtype=dtype)
    assert model.dtype == plain.dtype
    assert torch.equal(model.net.model.norm.weight, plain.net.model.norm.weight)
    assert model.net.model.rotary_emb.inv_freq.dtype == torch.float32


def test_a_target_stored_in_a_wider_format_than_its_config_names_is_recognised(
    made: training.Trained, tmp_path: Path
) -> None:
    folder = retrained(tmp_path, made.path, torch.float32)
    own = json.loads((tmp_path / "town/config.json").read_text())
    assert own.get("dtype", own.get("torch_dtype")) == "float16"
    content = adapters.content_of(specviz.load(tmp_path / "town", dtype="float32"))
    config = json.loads((folder / "config.json").read_text()) | {"content": content}
    (folder / "config.json").write_text(json.dumps(config))
    assert specviz.load(folder, dtype="bfloat16").dtype == torch.bfloat16


def test_held_out_answers_have_one_bound(target: Model) -> None:
    loss = MaskedLoss(AdaptedNet(target, 2, diffusion.unused_token(target)), target.eos[0])
    pairs = [training.Pair([5, 6, 7], [40 + i] * i + [target.eos[0]], i) for i in range(8)]  # lengths differ
    first = diffusion.bound(loss, pairs, 4)
    torch.rand(1)  # masks do not depend on what was drawn before
    assert first == diffusion.bound(loss, pairs[::-1], 4) != diffusion.bound(loss, pairs[:4], 4)


def test_all_texts_end_with_the_token_that_pads_them(target: Model, tmp_path: Path) -> None:
    """Otherwise those that the target ended with another one count for nothing when masked by blocks."""
    target.eos = (*target.eos, 9)
    row = answers.Row(number=0, kind="", temperature=0.0, prompt=[5, 6], answer=[7, 8, 9])
    learnt = answers.Answers(tmp_path / "a", {"model": "town", "content": target.file_content}, [row])
    pairs = diffusion._pairs(target, TEXTS[:2], learnt, 64)
    assert pairs[-1].answer == [7, 8, target.eos[0]]
    for seed in range(9):
        canvas, cells = diffusion.canvases(pairs, target.eos[0], np.random.default_rng(seed))
        *_, weights = masking.hide_blocks(canvas, cells, target.eos[0], np.random.default_rng(seed))
        assert (weights > 0).all()


def test_a_wide_batch_is_learnt_whole_in_several_passes(
    target: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diffusion, "has_bfloat16", lambda device: False)  # only training uses bfloat16
    net = diffusion.AdaptedNet(target, 2, diffusion.unused_token(target))
    loss = diffusion.MaskedLoss(net, target.eos[0])
    pairs = [training.Pair([5, 6, 7 + i], [9, 10 + i, 2], i) for i in range(6)]

    def taken() -> tuple[float, int]:
        rows = []
        monkeypatch.setattr(net, "forward", lambda *given: rows.append(len(given[0])) or kind(net, *given))
        torch.manual_seed(1)
        with torch.no_grad():
            value = float(loss(pairs)[0])
        assert sum(rows) == len(pairs)
        return value, len(rows)

    kind = diffusion.AdaptedNet.forward
    whole, passes = taken()
    assert passes == 1
    monkeypatch.setattr(diffusion, "CELLS", 40)
    parts, passes = taken()
    assert passes > 1 and parts == pytest.approx(whole, rel=1e-5)


def test_other_texts_do_not_go_on(tmp_path: Path) -> None:
    class Cut(Exception):
        pass

    def stop(line: str) -> None:
        if line.startswith("3 of"):
            raise Cut

    with pytest.raises(Cut):
        adapt("town", TEXTS, tmp_path / "cut", **FAST | {"every": 0.0, "say": stop})
    others = [{**each, "prompt": each["prompt"][::-1]} for each in TEXTS]
    with pytest.raises(ModelError, match="left by another run"):
        adapt("town", others, tmp_path / "cut", **FAST | {"every": 0.0})


def test_blank_lines_and_line_separators_in_a_text(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    odd = {"prompt": "a\u2028b", "answer": "c\x85d"}
    lines = [json.dumps(odd, ensure_ascii=False), "", json.dumps(TEXTS[0]), ""]
    file.write_text("\n".join(lines), encoding="utf-8")
    assert [each["prompt"] for each in diffusion.read_texts(file)] == [odd["prompt"], TEXTS[0]["prompt"]]
