"""No decoded token is lost: interrupted runs resume, and two runs cannot write one file."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import TableModel, llama

import specviz
from specviz import cli, schema
from specviz.errors import ParameterError, TraceError
from specviz.loop import machine
from specviz.loop import run as loop
from specviz.methods import find
from specviz.trace import Recorder
from specviz.trace.files import partial_of

PROMPTS = [[1, 2], [3], [4, 4, 1], [5], [2, 2]]
SAME = ["token", "origin", "p", "u", "prompt", "cycle", "position"]


@pytest.fixture
def pair():
    target = TableModel(vocabulary=6, seed=1, name="target")
    return target, TableModel(6, 3, near=target, name="drafter")


def decode(pair, prompts=PROMPTS, method="speculative", **options):
    options = {"max_new_tokens": 12, "temperature": 0.8, "seed": 3, "draft": pair[1]} | options
    return specviz.generate(pair[0], prompts, method, **options)


def cut_off(monkeypatch, after, name="decode", error=KeyboardInterrupt):
    """Stop the loop after `after` cycles, as by Ctrl-C; returns the undo."""
    inner, count = getattr(loop, name), [0]

    def stopping(*args, **options):
        for cycle in inner(*args, **options):
            count[0] += 1
            if count[0] > after:
                raise error
            yield cycle

    monkeypatch.setattr(loop, name, stopping)
    return lambda: monkeypatch.setattr(loop, name, inner)


def equal(one, other):
    a, b = (t.outputs[SAME].sort_values(["prompt", "position"], ignore_index=True) for t in (one, other))
    assert a.drop(columns="p").equals(b.drop(columns="p"))
    p = [frame["p"].to_numpy(float) for frame in (a, b)]
    np.testing.assert_allclose(*p, atol=1e-5)  # batched passes have other shapes
    assert one.run["prompts"] == other.run["prompts"]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("record", ["judged", None])
def test_a_run_goes_on_where_it_was_cut_off(pair, batch, record, monkeypatch, tmp_path):
    options: dict = {"record": record}
    if batch > 1:
        pair = llama(seed=0, eos=(), vocabulary=6), llama(seed=1, eos=(), vocabulary=6)
    options["batch"] = batch
    whole = decode(pair, **options)
    path = tmp_path / "a.parquet"
    again = cut_off(monkeypatch, 20, "decode_batch") if batch > 1 else cut_off(monkeypatch, 7)
    first = decode(pair, out=path, **options)
    again()
    assert first.run["complete"] is False
    kept = first.cycles[first.cycles["end"].isin(["length", "eos"])]["prompt"].tolist()
    assert 0 < len(kept) < len(PROMPTS)
    decoded = []
    begin = loop.Run._begin
    monkeypatch.setattr(loop.Run, "_begin", lambda run, n, *more: decoded.append(n) or begin(run, n, *more))
    trace = decode(pair, out=path, resume=True, **options)
    assert not set(decoded) & set(kept)
    equal(trace, whole)
    assert trace.run["complete"] is True
    assert trace.run["run"] == first.run["run"]
    assert specviz.open(path).texts == whole.texts
    assert os.listdir(tmp_path) == ["a.parquet"]
    if record:
        starts = trace.cycles.groupby("prompt")["start"].min()
        assert starts[[p for p in starts.index if p not in kept]].min() > first.cycles["start"].min()


def test_a_run_that_was_killed_goes_on_from_its_partial(pair, monkeypatch, tmp_path):
    whole, path = decode(pair), tmp_path / "a.parquet"
    again = cut_off(monkeypatch, 9)
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "close", lambda *_, **__: None)  # nothing is closed
        options = {"max_new_tokens": 12, "temperature": 0.8, "seed": 3, "draft": pair[1]}
        run = specviz.stream(pair[0], PROMPTS, out=path, **options)
        assert len(list(run)) == 9
        run.recorder._lock.release()  # as the system does when a process ends
    again()
    assert sorted(os.listdir(tmp_path)) == ["_a.parquet.lock", "_a.parquet.partial"]
    equal(decode(pair, out=path, resume=True), whole)
    assert os.listdir(tmp_path) == ["a.parquet"]


def test_a_run_that_was_cut_off_before_its_first_cycle_is_none(pair, tmp_path):
    whole, path = decode(pair), tmp_path / "a.parquet"
    partial_of(path).touch()
    with pytest.raises(TraceError, match="holds nothing yet"):
        specviz.open(partial_of(path))
    with pytest.raises(TraceError, match="holds no traces"):
        specviz.open(tmp_path)
    equal(decode(pair, out=path, resume=True), whole)
    path.unlink()
    partial_of(path).touch()
    equal(decode(pair, out=path), whole)
    assert os.listdir(tmp_path) == ["a.parquet"]


def test_more_prompts_are_added_to_a_finished_run(pair, tmp_path):
    path = tmp_path / "a.parquet"
    decode(pair, PROMPTS[:2], out=path)
    equal(decode(pair, out=path, resume=True), decode(pair))
    equal(decode(pair, out=path, resume=True), decode(pair))  # nothing is missing
    assert specviz.open(path).run["complete"] is True


def test_a_conversation_is_decoded_as_a_whole(pair, monkeypatch, tmp_path):
    prompts = [{"prompt": [1]}, {"turns": ["ab", "c"], "id": "x"}, {"prompt": [2]}]
    monkeypatch.setattr(
        pair[0], "encode", lambda p: [len(m["content"]) % 6 for m in p] if isinstance(p[0], dict) else list(p)
    )
    whole, path = decode(pair, prompts), tmp_path / "a.parquet"
    cycles = whole.cycles.groupby("prompt").size()
    again = cut_off(monkeypatch, int(cycles[:2].sum()) + 1)  # in the second turn
    decode(pair, prompts, out=path)
    again()
    equal(decode(pair, prompts, out=path, resume=True), whole)


def test_a_batch_of_conversations_of_one_turn_goes_on(tmp_path):
    model, path = specviz.load("town"), tmp_path / "a.parquet"
    prompts = [{"turns": [entry["turns"][0]]} for entry in specviz.suite("town")[:3]]
    options = {"max_new_tokens": 6, "out": path, "batch": 2}
    first = specviz.generate(model, prompts[:2], "autoregressive", **options)
    alone = specviz.generate(model, prompts[:2], "autoregressive", max_new_tokens=6)
    assert first.run["prompts"] == alone.run["prompts"]
    again = specviz.generate(model, prompts, "autoregressive", resume=True, **options)
    assert again.texts[:2] == alone.texts and len(again.texts) == 3
    with pytest.raises(TraceError, match="was replaced since it was opened"):
        print(first.texts)  # read only now, from a file that contains the longer run
    again.save(path, force=True)
    assert specviz.open(path).texts == again.texts  # the same run, written again


def test_the_dense_record_goes_on_too(pair, monkeypatch, tmp_path):
    options = {"record": "dense", "temperature": 0.0, "draft": pair[1]}
    whole, path = decode(pair, **options), tmp_path / "a.parquet"
    again = cut_off(monkeypatch, 7)
    decode(pair, out=path, **options)
    again()
    trace = decode(pair, out=path, resume=True, **options)
    columns = [c.name for c in schema.COLUMNS if c.name.startswith(("top_k", "out_", "tail"))]
    one, other = (t.arrow(columns).to_pandas() for t in (trace, whole))
    assert one.astype(str).equals(other.astype(str))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"temperature": 0.5}, "was decoded with temperature 0.8, this run has temperature 0.5"),
        ({"seed": 4}, "was decoded with seed 3, this run has seed 4"),
        (
            {"method": "autoregressive"},
            "was decoded with method speculative, this run has method autoregressive",
        ),
        ({"draft_length": 2}, "was decoded with draft_length 4, this run has draft_length 2"),
        ({"record": "all"}, "was decoded with record judged, this run has record all"),
        ({"prompts": [[1, 2], [4]]}, "prompt 2 is not the one"),
        ({"prompts": [[1, 2]]}, "holds 2 texts, more than these prompts need (1)"),
    ],
)
def test_another_run_does_not_go_on(pair, change, says, tmp_path):
    path = tmp_path / "a.parquet"
    before = decode(pair, PROMPTS[:2], out=path).texts
    with pytest.raises(ParameterError) as caught:
        decode(pair, out=path, resume=True, **change)
    assert says in str(caught.value) and "\n" not in str(caught.value)
    assert specviz.open(path).texts == before
    assert os.listdir(tmp_path) == ["a.parquet"]


@pytest.mark.parametrize("by", ["call", "command"])
def test_a_target_named_again_keeps_its_layout(by, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.txt").write_text("The cook saw the cook.\nTom was tired.\nAnna saw\n")
    prompts = (tmp_path / "p.txt").read_text().splitlines()

    def run(number, resume=False, kernels=None):
        if by == "call":
            options = {"max_new_tokens": 4, "out": "a.parquet", "resume": resume, "kernels": kernels}
            specviz.generate("town", prompts[:number], "autoregressive", **options)
            return
        words = ["generate", "autoregressive", "-m", "town", "--prompts", "p.txt", "-n", "4"]
        words += ["-o", "a.parquet", "--number", str(number), *["--resume"] * resume]
        if cli.run([*words, *(["--kernels", kernels] if kernels else [])]):
            raise ParameterError(capsys.readouterr().err.removeprefix("specviz: ").strip())

    with monkeypatch.context() as patch:
        patch.setenv("SPECVIZ_INVARIANT", "1")
        run(1, kernels="plain")
    with pytest.raises(ParameterError, match=r"with kernels plain, .*, this run has kernels transposed,"):
        run(2, resume=True, kernels="transposed")
    run(2, resume=True)  # the environment says transposed, and not invariant
    trace = specviz.open("a.parquet")
    layout = trace.run["backend"]["kernels"], trace.run["backend"]["invariant"]
    assert len(trace.texts) == 2 and layout == ("plain", True)
    ordinary = specviz.load("town", kernels="plain")
    options = {"max_new_tokens": 4, "out": "a.parquet", "resume": True}
    with pytest.raises(ParameterError, match="with invariant True, this run has invariant False"):
        specviz.generate(ordinary, prompts, "autoregressive", **options)


def test_a_command_may_name_invariance(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["generate", "autoregressive", "-m", "town", "-p", "Tom", "-n", "2", "-o", "a.parquet"]
    assert cli.run(words) == 0
    assert cli.run([*words, "--resume", "--invariant"]) == 2
    assert "was decoded with invariant False, this run has invariant True" in capsys.readouterr().err


def test_what_was_learnt_is_not_in_the_file(tmp_path):
    model, path = llama(seed=0), tmp_path / "a.parquet"
    decode((model, None), PROMPTS[:2], "token_recycling", out=path)
    with pytest.raises(ParameterError, match="learns from prompt to prompt"):
        decode((model, None), PROMPTS, "token_recycling", out=path, resume=True)


def test_a_prompt_starts_from_the_same_memory(tmp_path):
    model, path = llama(seed=0), tmp_path / "a.parquet"
    cold, full, warm = (find("unispec")(keep=keep) for keep in ("prompt", "run", "prompt"))
    decode((model, None), PROMPTS[:2], full)
    warm.load(full.save(tmp_path / "memory", model), model)
    decode((model, None), PROMPTS[:2], cold, out=path)
    with pytest.raises(ParameterError, match="memory's state cold, this run has the memory's state warm"):
        decode((model, None), PROMPTS, warm, out=path, resume=True)
    equal(decode((model, None), PROMPTS, cold, out=path, resume=True), decode((model, None), PROMPTS, cold))


def test_times_of_another_machine_are_not_mixed_in_silence(pair, monkeypatch, tmp_path, capsys):
    path = tmp_path / "a.parquet"
    own = decode(pair, PROMPTS[:2], out=path).run["threads"]
    with monkeypatch.context() as patch:
        patch.setattr(machine, "thread_count", lambda model: 99)
        equal(decode(pair, out=path, resume=True), decode(pair))
    lines = [line for line in capsys.readouterr().err.splitlines() if "timed" in line]
    assert lines == [
        f"specviz: {path} was timed with threads {own}, and this run is with threads 99: its trace will hold "
        "times of both"
    ]
    decode(pair, out=path, resume=True)  # nothing is left to time
    assert "timed" not in capsys.readouterr().err


def test_a_file_is_named_and_not_replaced(pair, tmp_path):
    with pytest.raises(ParameterError, match="name it with out="):
        decode(pair, resume=True, out=tmp_path)
    with pytest.raises(ParameterError, match="drop one"):
        decode(pair, resume=True, force=True, out=tmp_path / "a.parquet")


# -- two writers, kills and full disks -------------------------------------------------------------


def test_two_runs_cannot_write_one_file(pair, tmp_path):
    path = tmp_path / "a.parquet"
    run = specviz.stream(pair[0], PROMPTS, draft=pair[1], out=path)
    next(run)
    for more in ({}, {"force": True}, {"resume": True}):
        with pytest.raises(TraceError, match="is being written by another run"):
            decode(pair, out=path, **more)
    run.close()
    assert os.listdir(tmp_path) == ["a.parquet"]
    decode(pair, out=path, force=True)
    assert len(specviz.open(path).texts) == len(PROMPTS)


def test_what_a_run_saved_is_not_advised_away(pair, tmp_path):
    path = tmp_path / "a.parquet"
    partial_of(path).write_bytes(b"mine")
    with pytest.raises(TraceError) as caught:
        decode(pair, out=path)
    for advice in ("specviz show", "--resume", "move it away"):
        assert advice in str(caught.value)
    assert "force" not in str(caught.value)
    assert partial_of(path).read_bytes() == b"mine"


def command(*arguments, **options):
    return [sys.executable, "-m", "specviz", *map(str, arguments)]


def generate(folders, *more):
    return ("generate", "autoregressive", "-m", folders.target, "--prompts", "p.txt", "-n", "60", *more)


@pytest.mark.skipif(os.name != "posix", reason="kill -9 is POSIX")
def test_a_killed_command_goes_on(folders, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.txt").write_text("".join(f"Prompt {i}\n" for i in range(300)))
    process = subprocess.Popen(
        command(*generate(folders, "-o", "a.parquet")), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    partial = tmp_path / "_a.parquet.partial"
    deadline = time.monotonic() + 240

    def begun() -> bool:
        there = partial.exists() and partial.stat().st_size > 40_000
        return there and len(specviz.open(partial).texts) > 2

    while not begun() and time.monotonic() < deadline:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    monkeypatch.setattr(sys, "argv", ["specviz"])
    few = generate(folders, "-o", "a.parquet", "--number", "2")
    assert cli.run([*map(str, few)]) == 2
    assert "--resume" in capsys.readouterr().err
    saved = len(specviz.open(partial).texts)
    assert saved > 2
    limit = generate(folders, "-o", "a.parquet", "--number", str(saved + 1), "--resume")
    assert cli.run([*map(str, limit)]) == 0, capsys.readouterr().err
    assert len(specviz.open("a.parquet").texts) == saved + 1
    assert sorted(os.listdir(tmp_path)) == ["a.html", "a.parquet", "p.txt"]


@pytest.fixture
def full_disk(monkeypatch):
    """While active, no file can grow beyond a number of bytes: the system itself refuses."""

    class Full:
        def __init__(self, most):
            self.most = most

        def __enter__(self):
            self.before = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.most, self.before[1]))

        def __exit__(self, *_):
            resource.setrlimit(resource.RLIMIT_FSIZE, self.before)

    return Full


WRITERS = {  # every command that writes, and its files without their first bytes
    "generate": ("generate", "autoregressive", "-m", "TARGET", "-p", "Hi", "-n", 9, "-o", "new/a.parquet"),
    "store": ("generate", "unispec", "-m", "TARGET", "-p", "Hello", "-n", 4, "--save-store", "new/a.store"),
    "show --html": ("show", "t.parquet", "--html", "new/a.html"),
    "show --png": ("show", "t.parquet", "--png", "new/a.png"),
    "metrics --aiperf": ("metrics", "t.parquet", "--aiperf", "new/a.jsonl"),
    "audit --json": ("audit", "-m", "TARGET", "-d", "DRAFT", "--number", 1, "-n", 2, "--sampled", 0,
                     "--method", "speculative", "--json", "new/a.json"),
    "datastore": ("datastore", "long.txt", "-m", "TARGET", "-o", "new/a.store"),
    "streams": ("streams", "simulate", "long.txt", "-o", "new/a.jsonl"),
    "lab": ("lab", "new", "--copy-only"),
    "exercises": ("exercises", "new"),
    "gguf": ("models", "gguf", "town-draft", "-o", "new/a.gguf"),
    "convert": ("models", "convert", "published"),
}  # fmt: skip


def files(folder):
    """All files below a folder."""
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.skipif(os.name != "posix", reason="a limit on file size is POSIX")
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_at_every_write(name, folders, full_disk, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "long.txt").write_text("Tom was tired on Sunday.\n" * 40)
    target = TableModel(vocabulary=6, seed=1, name="target")
    specviz.generate(target, [1, 2], "autoregressive", max_new_tokens=3, out="t.parquet")
    (tmp_path / "published").mkdir()
    torch.save({"weight": torch.ones(8, 8)}, tmp_path / "published" / "pytorch_model.bin")
    before = files(tmp_path)
    models = {"TARGET": str(folders.target), "DRAFT": str(folders.draft)}
    arguments = [models.get(str(word), str(word)) for word in WRITERS[name]]
    with full_disk(0):
        status = cli.run(arguments)
    err = capsys.readouterr().err.splitlines()
    assert (status, len(err)) == (2, 1), err
    assert "File too large" in err[0]
    assert files(tmp_path) == before
    status = cli.run(arguments)
    assert status == 0, capsys.readouterr().err


# -- Ctrl-C while modules are imported ------------------------------------------------------------

INTERRUPTED_AT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
import os, signal, sys
class At:
    def find_spec(self, name, *_):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, At())
sys.argv = ["specviz", *{arguments!r}]
from specviz.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("specviz.cli", ["--help"]),
        ("typer", ["--help"]),
        ("specviz.cli.terminal", ["--help"]),
        ("numpy", ["show", "x"]),
        ("numpy.random", ["suites"]),
        ("pandas", ["suites"]),
        ("pandas.core.api", ["suites"]),
        ("pyarrow.lib", ["show", "no/such"]),
        ("torch", ["generate", "autoregressive", "-p", "x"]),
        ("transformers", ["generate", "autoregressive", "-p", "x"]),
    ],
)
def test_ctrl_c_while_a_module_is_imported(module, arguments, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_AT.format(module=module, arguments=arguments)],
        text=True, capture_output=True, timeout=240, cwd=tmp_path,
    )  # fmt: skip
    if done.returncode == 130:
        assert done.stderr == "specviz: interrupted\n"
    else:  # this version of the libraries does not import the module
        assert module not in ("specviz.cli", "typer", "specviz.cli.terminal", "numpy", "pandas", "torch")
        assert "Traceback" not in done.stderr


def test_only_the_text_that_was_cut_off_says_so(pair, monkeypatch):
    from specviz.view.picture import picture

    everything = decode(pair)
    done = (everything.cycles["prompt"] == 0).sum()
    cut_off(monkeypatch, int(done) + 1)
    trace = decode(pair)
    assert trace.run["stopped"] == "interrupted"
    notes = [picture(trace, k).note for k in (0, 1)]
    assert notes == ["", "The run did not finish by itself: interrupted."]


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_a_text_without_a_recorded_end_was_cut_off(missing):
    from types import SimpleNamespace

    from specviz.view.picture import cut_off as cut_off_words

    cycles = pd.DataFrame({"prompt": [0], "end": pd.Series([missing], dtype=object), "source": [None]})
    one = SimpleNamespace(run={"complete": False, "stopped": None}, cycles=cycles)
    assert cut_off_words(one) == "The run did not finish by itself: cut off."
    cycles["end"] = "length"
    assert cut_off_words(one) == ""


def test_an_error_that_an_interruption_became_is_an_interruption(monkeypatch, capsys):
    def broken(*_):
        os.kill(os.getpid(), signal.SIGINT)

    def importing(*_):
        try:
            broken()
            time.sleep(1)
        except KeyboardInterrupt:
            raise ImportError("numpy.core.multiarray failed to import") from None

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
    monkeypatch.setattr(cli, "_run", importing)
    assert cli.run(["suites"]) == 130
    assert capsys.readouterr().err == "specviz: interrupted\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_prompts_file_has_a_number(folders, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"prompt": f"P {i}"}) + "\n" for i in range(4)))
    ask = ("generate", "autoregressive", "-m", str(folders.target), "-n", "2", "--number", "3")
    assert cli.run([*ask, "--prompts", "p.jsonl", "-o", "a.parquet"]) == 0
    assert len(specviz.open("a.parquet").texts) == 3
    assert cli.run([*ask, "-p", "Hello"]) == 2
    assert "--number" in capsys.readouterr().err.splitlines()[-1]
