"""A model split over processes: real ones, communicating over gloo on the CPU."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import pytest
from checkpoints import tokenizer, write

import specviz
import specviz.measure
from specviz import cli
from specviz.errors import ModelError, ParameterError, SpecvizError
from specviz.models import ranks
from specviz.trace import files

HERE = Path(__file__).parent
PROMPTS = ["the cook lost", "her bag at the station"]
LONG = 150  # seconds
METHODS = {
    "autoregressive": {},
    "sampled": {"method": "speculative", "temperature": 1.0, "seed": 3},
    "unispec": {"draft_size": 12},
    "token_recycling": {"batch": 2, "keep": "prompt"},
    "early_exit": {},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Tiny Llamas, and models of other kinds that can or cannot be split in two."""
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Olmo2Config, Qwen2Config

    root = tmp_path_factory.mktemp("ranks")
    found = write(root)
    small = {
        "vocab_size": 261, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "max_position_embeddings": 160, "initializer_range": 0.5, "bos_token_id": 0,
        "eos_token_id": 1, "pad_token_id": 4,
    }  # fmt: skip
    configs = {
        "tied": Qwen2Config(**small, num_key_value_heads=2, tie_word_embeddings=True),  # and biases
        "probed": Olmo2Config(**small, num_key_value_heads=4),  # of no family whose scores our tests compare
        "alone": LlamaConfig(**small, num_key_value_heads=1),
        "planless": GPT2Config(vocab_size=261, n_embd=32, n_layer=2, n_head=4, n_positions=160),
    }
    for name, config in configs.items():
        torch.manual_seed(7)
        AutoModelForCausalLM.from_config(config).save_pretrained(root / name)
        tokenizer(root / name)
    packed = json.loads((root / "target" / "config.json").read_text())
    packed["quantization_config"] = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    (root / "packed").mkdir()
    for file in (root / "target").iterdir():
        (root / "packed" / file.name).write_bytes(file.read_bytes())
    (root / "packed" / "config.json").write_text(json.dumps(packed))
    return SimpleNamespace(**vars(found), root=root)


def as_rank(work, given, environment, cwd, out, err):
    os.environ.clear()  # the server's environment is that of an earlier test
    os.environ.update(environment)
    os.chdir(cwd)
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    work(*given)


def start(work, given, cwd, size=2):
    """Start `size` processes of `work`, as torchrun would, forked from one that has imported torch."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    context, begun = get_context("forkserver"), []
    context.set_forkserver_preload(["specviz.measure.running", "specviz.models.fetching"])
    for rank in range(size):
        more = {name: str(value) for name, value in (shared | {"RANK": rank, "LOCAL_RANK": rank}).items()}
        environment = dict(os.environ) | more
        files = [cwd / f"{stream}-{rank}.txt" for stream in ("out", "err")]
        process = context.Process(target=as_rank, args=(work, given, environment, cwd, *files))
        process.start()
        begun.append((process, files))
    results = []
    try:
        for process, files in begun:
            process.join(LONG)
            if process.exitcode is None:
                raise subprocess.TimeoutExpired(work.__name__, LONG)
            out, err = (file.read_text() for file in files)
            results.append(SimpleNamespace(status=process.exitcode, out=out, said=err))
    finally:
        for process, _ in begun:
            process.kill()
    return results


def torchrun(arguments, cwd):
    """Run `specviz` with these arguments on two ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    environment = os.environ | {"PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(
        [*command, "specviz", *arguments], cwd=cwd, env=environment, text=True, **pipes
    )
    try:
        out, said = process.communicate(timeout=LONG)
    finally:
        process.terminate()  # which it forwards to its ranks
        process.wait()
    return SimpleNamespace(status=process.returncode, out=out, said=said)


def ended(make, *given):
    """The results of the processes; they are restarted once if they do not end.

    On a heavily loaded machine gloo once deadlocked (in a buffer's destructor, torch 2.13), in one of two
    dozen runs. A person would repeat the command; so does this.
    """
    try:
        return make(*given)
    except subprocess.TimeoutExpired:
        return make(*given)


def words(path):
    lines = (json.dumps({"id": f"p{i}", "prompt": text}) for i, text in enumerate(["her bag", *PROMPTS]))
    path.write_text("\n".join(lines))
    return str(path)


def plan(folders, path, **more):
    """Three contenders on two prompts; untimed, because the test's processes share cores."""
    model = {"model": folders.target, "draft": folders.draft}
    return {
        "models": [model | more], "methods": ["speculative", {"method": "unispec", "draft_size": 12}],
        "suites": [words(path / "words.jsonl")], "number": 2, "warm_up": 1, "max_new_tokens": 8,
        "timed": False, "traces": True,
    }  # fmt: skip


# ---------------------------------------------------------------- the work of every rank


def rank_decodes(root, found):
    """In each rank: texts by several models and methods, split and whole, and the refusals."""
    rank = os.environ["RANK"]
    os.environ["SPECVIZ_CALIBRATIONS"] = f"{root}/calibrations"
    texts, refused = {}, {}

    def text(model, method, **options):
        given = {"draft": f"{root}/draft"} if method == "speculative" else {}
        options = {"max_new_tokens": 12} | given | options
        return specviz.generate(model, PROMPTS, method, **options).outputs["token"].tolist()

    def refusal(name, make, *given, **options):
        try:
            make(*given, **options)
        except SpecvizError as error:
            refused[name] = [type(error).__name__, str(error)]

    for folder in ("target", "tied", "probed"):
        parts, model = specviz.load(f"{root}/{folder}", tp_plan="auto"), specviz.load(f"{root}/{folder}")
        heads = parts.open([[1, 2]], 4).store.data.shape[3]
        here = model.heads if folder == "probed" else model.heads // 2  # its plan gathers keys again
        texts[folder] = [heads == here, parts.geometry == model.geometry]
        for name, options in METHODS.items():
            if folder == "target" or name == "unispec":
                options = dict(options)
                method = options.pop("method", name)
                one, other = text(parts, method, **options), text(model, method, **options)
                texts[f"{folder} {name}"] = [len(one) > 12, one == other]
        if folder == "target":
            split, same = parts, model
    texts["written"] = [text(split, "unispec", out=f"{root}/traces-{rank}") == text(same, "unispec")]
    town = [specviz.load("town", **how) for how in ({"tp_plan": "auto"}, {})]
    one, other = (text(model, "eagle", draft="town-eagle3") for model in town)
    texts["eagle"] = [len(one) > 12, one == other]

    refusal("parted", text, split, "autoregressive", temperature=1.0, seed=int(rank))
    for name in ("alone", "planless", "packed"):
        refusal(name, specviz.load, f"{root}/{name}", tp_plan="auto")
    for name in ("town-diffusion", "town-eagle", "town-t5"):
        refusal(name, specviz.load, name, tp_plan="auto")
    refusal("missing", specviz.load, f"{root}/target" if rank == "0" else "nowhere", tp_plan="auto")
    refusal("uncalibrated", text, split, "unispec", draft_size="calibrated")
    refusal("leaves", split.check_leaves)
    refusal("live", specviz.generate, split, specviz.streams.Stream(iter(())), "retranslate")
    measured = specviz.calibrate(split, "unispec", [PROMPTS[0]], [1, 2, 4, 8], warm_up=0, rounds=1,
                                 max_new_tokens=6)  # fmt: skip
    best = specviz.generate(split, PROMPTS[0], "unispec", max_new_tokens=6, draft_size="calibrated").run
    texts["calibrated"] = [best["parameters"]["draft_size"] == measured.g, "2 × " in measured.device]
    told = [split.ranks.from_leader(lambda: f"of {rank}"), [point.seconds for point in measured.points]]
    refusal("told", split.ranks.from_leader, lambda: specviz.load("nobody"))
    words(Path(root) / f"words-{rank}.jsonl")
    run = {"methods": ["unispec"], "suites": [f"{root}/words-{rank}.jsonl"], "out": f"{root}/none-{rank}"}
    refusal("whole", specviz.run, models=[f"{root}/target"], **run)
    files.RUN_LIMIT = 0  # of a trace's file, which rank 0 alone writes
    refusal("large", text, split, "autoregressive", out=f"{root}/large-{rank}")
    again = text(split, "autoregressive") == text(same, "autoregressive")  # nothing has desynchronised them
    Path(found, f"{rank}.json").write_text(json.dumps([texts, refused, told, again]))


@pytest.fixture(scope="module")
def decoded(folders, tmp_path_factory):
    found = tmp_path_factory.mktemp("decoded")
    for each in ended(start, rank_decodes, (str(folders.root), str(found)), found):
        assert each.status == 0, each.said
    return [json.loads((found / f"{rank}.json").read_text()) for rank in range(2)]


def test_texts_are_those_of_one_process(decoded, folders):
    for texts, _, told, again in decoded:
        assert len(texts) == 3 + 5 + 1 + 1 + 1 + 1 + 1
        assert all(all(held) for held in texts.values()), texts
        assert told == ["of 0", decoded[0][2][1]] and again
    assert len(list(folders.root.glob("calibrations/*"))) == 1
    assert [any(folders.root.glob(f"traces-{rank}/*")) for rank in range(2)] == [True, False]


def test_what_cannot_be_split_is_refused_on_every_rank(decoded, folders):
    said = {
        "parted": ("SpecvizError", "rank 1 has a different text than rank 0, so the ranks are out of step"),
        "alone": ("ModelError", "alone has 1 key-value head(s), which 2 ranks cannot share: load it with"),
        "planless": ("ModelError", "no tensor-parallel plan for planless (gpt2): load it with device_map"),
        "packed": ("ModelError", "packed is quantised"),
        "town-diffusion": ("ModelError", "town-diffusion is not a causal model"),
        "town-eagle": ("ModelError", "town-eagle is not a causal model"),
        "town-t5": ("ModelError", "no tensor-parallel plan for town-t5 (t5)"),
        "missing": ("ModelError", "rank 1: no model 'nowhere'"),
        "uncalibrated": (
            "SpecvizError",
            "run: torchrun --nproc-per-node 2 -m specviz calibrate unispec "
            f"--model {folders.root / 'target'} --tp-plan auto",
        ),
        "leaves": ("ModelError", "cannot exit early"),
        "live": ("PromptError", "a live stream reaches each rank at a different time"),
        "told": ("ModelError", "no model 'nobody'"),
        "whole": ("ParameterError", "2 ranks would all decode"),
        "large": ("TraceError", "decode the prompts in several runs"),
    }
    for _, refused, *_ in decoded:
        assert set(refused) == set(said)
        for name, (_, line) in said.items():
            assert line in refused[name][1] and "\n" not in refused[name][1], name
    assert {name: kind for name, (kind, _) in decoded[0][1].items() if name != "missing"} == {
        name: kind for name, (kind, _) in said.items() if name != "missing"
    }


# ---------------------------------------------------------------- runs


def rank_runs(arguments, dies):
    """In each rank: run the command line and record who writes; one rank dies silently."""
    from specviz.measure import rows, work

    decode, write, begun = work.Bench.row, rows.write_text, []

    def row(self, job, cell):
        begun.append(cell)
        if dies and os.environ["RANK"] == "1" and len(begun) == 5:
            os._exit(1)
        return decode(self, job, cell)

    def write_text(path, text, force=False):
        with open("writers", "a") as file:
            file.write(os.environ["RANK"])
        return write(path, text, force)

    work.Bench.row, rows.write_text = row, write_text
    sys.exit(cli.run(arguments))


def test_a_run_is_one_folder_that_survives_a_rank(folders, tmp_path):
    file = tmp_path / "plan.toml"
    given = plan(folders, tmp_path, tp_plan="auto")
    lines = [
        f"{key} = {json.dumps(value)}" for key, value in given.items() if key not in ("models", "methods")
    ]
    lines += ['methods = ["speculative", {method = "unispec", draft_size = 12}]', "[[models]]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in given["models"][0].items()]
    file.write_text("\n".join(lines))
    arguments = ["bench", "run", str(file), "--out", str(tmp_path / "run")]

    first, second = start(rank_runs, (arguments, True), tmp_path)
    assert second.status == 1 and not second.out
    assert first.status == 2 and not first.out
    (line,) = (line for line in first.said.splitlines() if line.startswith("specviz:"))
    assert line.startswith("specviz: rank 0 of 2 stopped or lost another rank: ")
    assert line.endswith("/run keeps 4 of 6 rows)")
    assert set((tmp_path / "writers").read_text()) == {"0"}

    done = ended(torchrun, arguments, tmp_path)
    assert done.status == 0, done.said
    assert done.out.count("6 of 6 rows") == 1 and "2 × cpu" in done.out
    split = specviz.results(tmp_path / "run")
    whole = specviz.run(plan(folders, tmp_path), out=tmp_path / "whole")
    assert split.complete and not len(split.failures())
    assert {p.name for p in (tmp_path / "run").iterdir()} == {p.name for p in whole.path.iterdir()}
    kept = ("cell", "prompt", "ids", "steps", "sent", "accepted", "end", "exactness", "memory", "text")
    assert [[row[k] for k in kept] for row in split.records()] == [
        [row[k] for k in kept] for row in whole.records()
    ]
    (said,) = split.environments.values()
    (other,) = whole.environments.values()
    assert said["model"] == other["model"]
    for one, two in zip(said["drafts"].values(), other["drafts"].values(), strict=True):
        assert {**one, "kernels": 0} == {**two, "kernels": 0}  # each run chooses its own kernels
    assert said["clock"] == "wall clock" and said["device"] == "2 × cpu"
    assert split.trace(2, 1).outputs["token"].tolist() == whole.trace(2, 1).outputs["token"].tolist()


# ---------------------------------------------------------------- one process


def test_alone_it_is_refused_with_the_command(folders, tmp_path, capsys):
    with pytest.raises(ModelError, match="torchrun --nproc-per-node N -m specviz bench run"):
        specviz.load(folders.target, tp_plan="auto")
    out = tmp_path / "run"
    given = plan(folders, tmp_path, tp_plan="auto")
    with pytest.raises(ModelError, match="this is a single process"):
        specviz.run(given, out=out)
    with pytest.raises(ParameterError, match="drop --workers or --dask"):
        specviz.run(given, out=out, executor=ThreadPoolExecutor(1), workers=2)
    assert not out.exists()
    for options, line in (
        ({"device_map": "auto"}, "drop one of them"),
        ({"device": "cpu"}, "drop device="),
    ):
        with pytest.raises(ModelError, match=line):
            specviz.load(folders.target, tp_plan="auto", **options)
    with pytest.raises(ModelError, match="tp_plan must be 'auto'"):
        specviz.load(folders.target, tp_plan="colwise")
    with pytest.raises(ModelError, match="tp_plan does not work with a GGUF file: drop it"):
        specviz.load("gguf:x.gguf", tp_plan="auto")
    assert cli.run(["calibrate", "unispec", "--model", folders.target, "--tp-plan", "auto"]) == 2
    assert "torchrun --nproc-per-node N -m specviz" in capsys.readouterr().err


def test_a_damaged_folder_is_not_split(folders, tmp_path, monkeypatch):
    from specviz.models import fetching

    def load():
        fetching.fetch_split(str(tmp_path / "model"), "float32", None, None)

    def fail(*_):
        raise TypeError("odd")

    shutil.copytree(folders.target, tmp_path / "model")
    monkeypatch.setattr(ranks, "join", lambda: ranks.ALONE)
    with monkeypatch.context() as patch:
        patch.setattr(fetching, "load_addition", fail)
        with pytest.raises(ModelError, match="model does not load as a language model: odd"):
            load()
    (tmp_path / "model" / "generation_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"generation_config\.json is not JSON"):
        load()


def test_each_rank_has_a_gpu_of_its_own(monkeypatch):
    known = {
        "RANK": "1",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    }
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    with pytest.raises(ModelError, match="torch sees 1: start as many ranks"):
        ranks.join()
    assert not ranks.leads() and ranks._met == []


def test_a_run_whose_texts_differ_is_not_complete(tmp_path):
    out = tmp_path / "run.parquet"
    given = {"max_new_tokens": 2, "out": out}
    run = specviz.stream("town", "the cook", "autoregressive", **given)
    run.ranks = ranks.Ranks(False)
    run.ranks.gather = lambda value: [value, "other"]
    with pytest.raises(SpecvizError, match="rank 1 has a different text"):
        run.finish()
    saved = specviz.open(out).run
    assert not saved["complete"] and "the ranks are out of step" in saved["stopped"]
    with pytest.raises(ParameterError, match="the ranks are out of step: choose another path"):
        specviz.generate("town", "the cook", "autoregressive", resume=True, **given)


def test_one_process_is_rank_0_of_1(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    alone = ranks.everyone()
    assert (alone.rank, alone.size, alone.leads, ranks.leads()) == (0, 1, True, True)
    assert alone.gather({"a": 1}) == [{"a": 1}] and alone.from_leader(lambda: 3) == 3
    mine = ModelError("no such model")
    with pytest.raises(ModelError) as caught:
        alone.tried(lambda: (_ for _ in ()).throw(mine))
    assert caught.value is mine
