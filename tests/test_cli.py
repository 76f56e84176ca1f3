"""The command line: its output, and that every user error is reported in one line with status 2."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from functools import wraps
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from checkpoints import write

import specviz
from specviz import cli, methods, suites
from specviz.audit.soak import read_ledger
from specviz.cli import arguments
from specviz.errors import SpecvizError
from specviz.loop import run as loop
from specviz.measure import plan
from specviz.measure.benches import batches, speed
from specviz.measure.rows import Results
from specviz.models.converting import convert
from specviz.trace import Recorder

HOSTILE = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    return write(tmp_path_factory.mktemp("models"))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NO_COLOR", raising=False)
    return tmp_path


@pytest.fixture
def say(capsys):
    """Run the command line; returns (status, output, errors)."""

    def call(*arguments):
        status = cli.run([str(a) for a in arguments])
        return status, *capsys.readouterr()

    return call


def process(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "specviz", *map(str, arguments)],
        text=True,
        capture_output=True,
        timeout=300,
        **options,
    )


def files(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_help_and_version_need_nothing():
    code = (
        "import sys\nfrom specviz.cli import run\n"
        "assert run(['--help']) == run(['--version']) == run([]) == run(['bench']) == 0\n"
        "names = 'demo generate show audit bench models suites lab'.split()\n"
        "assert all(run([name, '--help']) == 0 for name in names)\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pandas', 'matplotlib', 'plotly'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for command in ("demo", "generate", "show", "audit", "bench", "models", "suites", "lab"):
        assert f"\n  {command}" in done.stdout
    assert not re.search(r"^  .*\.\.\.$", done.stdout, re.M), "each command's first sentence fits into a line"


def test_a_command_that_is_declared_alone_has_the_same_help(say, capsys):
    def names(command, path=()):
        for name, inner in getattr(command, "commands", {}).items():
            yield (*path, name)
            yield from names(inner, (*path, name))

    whole = cli._command()
    every = list(names(whole))
    assert ("show",) in every and ("models", "get") in every
    for words in every:
        assert list(cli._command(words[0]).commands) == [words[0]]
        whole.main([*words, "--help"], "specviz", standalone_mode=False)
        want = capsys.readouterr().out
        assert say(*words, "--help") == (0, want, "") and "Usage: specviz" in want


def test_generate_show(here, say, folders):
    (here / "p.jsonl").write_text(json.dumps({"prompt": HOSTILE}) + '\n{"turns": ["Hello", "And?"]}\n')
    status, out, err = say(
        "generate", "bild", "--model", folders.target, "--draft", folders.draft, "--prompts", "p.jsonl",
        "--set", "fallback=0", "--set", "review_end=false", "--out", "o", "-n", 12, "--threads", 1,
    )  # fmt: skip
    assert status == 0, err
    assert files(here) == ["o/bild.html", "o/bild.parquet", "p.jsonl"]
    assert "on cpu, 1 thread, float32" in out
    assert err == ""
    assert "bild" in out
    assert "[lossy]" in out
    assert "\x1b" not in out  # no terminal, no colour
    trace = specviz.open("o")
    assert trace.run["parameters"] | {"fallback": 0, "review_end": False} == trace.run["parameters"]
    assert len(trace.texts) == 3
    page = (here / "o/bild.html").read_text(encoding="utf8")
    assert HOSTILE not in page
    assert "&lt;/script&gt;" in page

    say(
        "generate",
        "speculative",
        "-m",
        folders.target,
        "-d",
        folders.draft,
        "-p",
        "Hi",
        "--out",
        "o",
        "-n",
        8,
    )
    assert specviz.open("o/speculative.parquet").prompts["text"][0] == "<s><|user|>Hi<|assistant|>"
    say("generate", "autoregressive", "-m", folders.target, "-p", "Hi", "--out", "raw", "-n", 4, "--raw")
    assert specviz.open("raw/autoregressive.parquet").prompts["text"][0].endswith("Hi")
    status, out, err = say("show", "o")
    assert status == 0, err
    assert "tokens/s" in out
    assert out.index("speculative") > 0
    assert out.endswith("\n2 more texts: specviz show o --prompt 2\n") and out.count("more text") == 1
    assert say("show", "o/bild.parquet")[1].endswith(
        "\n1 more text: specviz show o/bild.parquet --prompt 3\n"
    )
    specviz.open("o/bild.parquet").select(prompt=[1, 2]).save("some.parquet")
    assert "more text" not in say("show", "some.parquet")[1]
    both = specviz.open("o").select(prompt=[1, 2])
    both.save("both")
    assert say("show", "both")[1].endswith("\n1 more text: specviz show both --prompt 3\n")
    status, out, err = say("show", "o", "--prompt", 4)
    assert status == 2
    assert "3 texts (--prompt 1 to 3)" in one_line(err)
    status, out, err = say("show", "o/bild.parquet", "--prompt", 2, "--html", "x/a.html", "--png", "x/a.png")
    assert status == 0, err
    assert (here / "x/a.png").read_bytes().startswith(b"\x89PNG")
    assert "default-src 'none'" in (here / "x/a.html").read_text(encoding="utf8")


def test_tables_for_scripts_are_unrounded_and_alone(here, say, folders):
    say("generate", "prompt_lookup", "-m", folders.target, "-p", "Hello", "--out", "o", "-n", 6)
    trace = specviz.open("o")
    for command, table in (("show", trace.summary()), ("metrics", specviz.metrics.rosetta(trace))):
        status, out, err = say(command, "o", "--csv")
        read = pd.read_csv(StringIO(out))
        assert (status, err, len(read)) == (0, "", len(table)) and list(read) == list(table)
        number = "tau" if command == "show" else "value"
        assert read[number].to_numpy(float) == pytest.approx(table[number].to_numpy(float), nan_ok=True)
    for command, option in (("show", "--html"), ("metrics", "--aiperf")):
        status, out, err = say(command, "o", "--csv", option, "x.html")
        assert (status, out, files(here)) == (2, "", ["o/prompt_lookup.html", "o/prompt_lookup.parquet"])
        assert "drop --" in one_line(err)


def test_methods_in_one_folder_are_not_pooled(here, say, folders):
    for method in ("autoregressive", "prompt_lookup", "unispec"):
        say("generate", method, "-m", folders.target, "-p", "Hello", "--out", "o", "-n", 6)
    say("generate", "unispec", "-m", folders.target, "-p", "Hello", "--out", "o/b.parquet", "-n", 6,
        "--set", "draft_size=3")  # fmt: skip
    status, out, err = say("metrics", "o")
    assert status == 0 and not err and "speedups: pass" not in out
    names = [line.strip("= ") for line in out.splitlines() if line.startswith("== ")]
    assert sorted(names) == ["prompt_lookup", "unispec (draft_size 24)", "unispec (draft_size 3)"]
    table = pd.read_csv(StringIO(say("metrics", "o", "--csv")[1]))
    alone = pd.read_csv(
        StringIO(say("metrics", "o/b.parquet", "--baseline", "o/autoregressive.parquet", "--csv")[1])
    )
    part = table[table["contender"] == "unispec (draft_size 3)"].drop(columns="contender")
    assert part.reset_index(drop=True).equals(alone)
    status, _, err = say("metrics", "o", "--aiperf", "x")
    assert status == 2 and "holds 4 contenders, and --aiperf takes one" in one_line(err)
    with pytest.raises(specviz.errors.TraceError, match="holds 4 contenders"):
        specviz.metrics.rosetta(specviz.open("o"))
    say(
        "generate",
        "autoregressive",
        "-m",
        folders.target,
        "-p",
        "Others",
        "--out",
        "o/b.parquet",
        "-n",
        6,
        "-f",
    )
    status, out, _ = say("metrics", "o")
    assert status == 0 and "== autoregressive ==" in out and "speedups: pass" in out, "no baseline of these"
    assert out.count("2 runs of the same settings, counted together") == 1


def test_a_contender_that_was_cut_off_is_left_out_of_the_speedups_alone(here, say, folders):
    for method in ("autoregressive", "prompt_lookup", "unispec"):
        say("generate", method, "-m", folders.target, "-p", "Hello", "--out", "o", "-n", 6)
    cut = specviz.open("o/prompt_lookup.parquet")
    recorder = Recorder(cut.run, here / "o" / "prompt_lookup.parquet", piece=lambda token: b"x", force=True)
    for row in cut.arrow([column.name for column in specviz.schema.COLUMNS]).to_pylist()[:-1]:
        recorder.add(row)
    recorder.close(complete=False, stopped="interrupted")
    (here / "b").mkdir()
    for given in ((), ("--baseline", "b/autoregressive.parquet")):
        if given:
            (here / "o" / "autoregressive.parquet").rename(here / "b" / "autoregressive.parquet")
        status, out, err = say("metrics", "o", *given)
        assert (status, err) == (len(given) // 2, "")
        first, second = re.split("== unispec ==", out)
        assert re.search("speedups: unknown: run .*: the text was cut off before its end", first)
        assert "cut off" not in second and "\nspeedup\n" in second and "\nspeedup\n" not in first
        status, out, err = say("metrics", "o", *given, "--csv")
        assert status == len(given) // 2 and "prompt_lookup: no speedups: run" in one_line(err)
        table = pd.read_csv(StringIO(out))
        compared = {name: set(part["quantity"]) for name, part in table.groupby("contender")}
        assert compared["unispec"] - compared["prompt_lookup"] == {"speedup"}


def test_show_needs_no_torch(here, say, folders):
    say("generate", "autoregressive", "-m", folders.target, "-p", "Hello", "--out", "o", "-n", 6)
    code = (
        "import sys\nfrom specviz.cli import run\n"
        "assert run(['show', 'o', '--html', 'a.html', '--png', 'a.png']) == 0\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_text_that_fills_the_context_says_so(here, say, folders):
    ask = ("generate", "autoregressive", "-m", folders.target, "-p", "x" * 120)
    status, out, err = say(*ask, "-n", 128)
    assert status == 0, err
    assert "The text is cut off where the model's context, or its sliding window, was full." in out
    status, out, err = say(*ask, "-n", 1)
    assert "context" not in out and "ms in 1 cycle: " in out


def test_a_partial_opens(here, say, folders, monkeypatch):
    say("generate", "autoregressive", "-m", folders.target, "-p", "Hello", "--out", "o", "-n", 6)
    monkeypatch.setattr("specviz.trace.recorder.write_parquet", _full)
    status, _, err = say(
        "generate", "autoregressive", "-m", folders.target, "-p", "Hello", "--out", "q", "-n", 6
    )
    assert status == 2
    assert "No space left" in one_line(err)
    assert files(here / "q") == ["_autoregressive.parquet.partial"]
    status, out, err = say("show", "q")
    assert status == 0, err
    assert "autoregressive" in out


def _full(*_):
    raise OSError(28, "No space left on device")


def one_line(err):
    lines = [line for line in err.splitlines() if line]
    assert len(lines) == 1, lines
    assert lines[0].startswith("specviz: ")
    return lines[0]


BASE = ("generate", "speculative", "--model", "TARGET", "--draft", "DRAFT")
ASK = ("--prompt", "Hello")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        # missing or unknown names; near matches are offered
        (("generate", "speculative", "--model", "no/such", "--draft", "DRAFT", *ASK), "no model 'no/such'"),
        (("generate", "speculative", "--model", "no/such", *ASK), "'no/such'; did you mean hf:no/such?"),
        (("generate", "speculative", "--model", "./no/such", *ASK), "no model './no/such'; there is "),
        (("generat",), "Did you mean 'generate'? (specviz --help)"),
        (("generate",), "Missing argument 'method'. (specviz generate --help)"),
        (("bench", "run", "--methd", "x"), "(specviz bench run --help)"),
        (("generate", "bild", "--model", "twn", *ASK), "did you mean town"),
        (("generate", "speculative", "--model", "TARGET", "--draft", "no/such", *ASK), "no model 'no/such'"),
        (("generate", "speculative", "--model", "EMPTY", "--draft", "DRAFT", *ASK), "config.json"),
        (("generate", "speculative", "--model", "TARGET", *ASK), "--draft"),
        (("generate", "speculatve", "--model", "TARGET", *ASK), "did you mean speculative"),
        ((*BASE, *ASK, "--set", "draft_lenght=3"), "did you mean draft_length"),
        (("generate", "autoregressive", "--model", "TARGET", *ASK, "--set", "k=3"), "no parameter 'k'"),
        # values
        ((*BASE, *ASK, "--set", "draft_length=0"), "[1, 64]"),
        ((*BASE, *ASK, "--set", "draft_length=2.5"), "whole number"),
        ((*BASE, *ASK, "--set", "draft_length=many"), "whole number"),
        ((*BASE, *ASK, "--set", "draft_length"), "name=value"),
        ((*BASE, *ASK, "--set", "draft_length=3", "--set", "draft_length=4"), "gives draft_length twice"),
        (("generate", "bild", *BASE[2:], *ASK, "--set", "fallback=1.5"), "[0, 1]"),
        (("generate", "bild", *BASE[2:], *ASK, "--set", "fallback=nan"), "number"),
        (("generate", "bild", *BASE[2:], *ASK, "--set", "review_end=maybe"), "True or False"),
        ((*BASE, *ASK, "--temperature", "-1"), "temperature"),
        ((*BASE, *ASK, "--top-p", "0"), "top_p"),
        ((*BASE, *ASK, "--max-new-tokens", "0"), "max-new-tokens"),
        ((*BASE, *ASK, "--threads", "0"), "threads"),
        ((*BASE, *ASK, "--record", "some"), "judged, all, dense or none"),
        ((*BASE, *ASK, "--device", "gpu"), "device"),
        ((*BASE, *ASK, "--dtype", "int4"), "dtype"),
        ((*BASE, *ASK, "--seed", "-1"), "seed"),
        # prompts
        (BASE, "--prompt"),
        ((*BASE, *ASK, "--prompts", "good.jsonl"), "either --prompt"),
        ((*BASE, "--prompt", ""), "empty"),
        ((*BASE, "--prompt", " \n "), "empty"),
        ((*BASE, "--prompt", "x" * 500), "context of 160"),
        ((*BASE, "--prompts", "bad.jsonl"), "bad.jsonl, line 2"),
        ((*BASE, "--prompts", "none.jsonl"), "none.jsonl"),
        ((*BASE, "--prompts", "empty.jsonl"), "no prompt"),
        # a draft of another vocabulary
        (("generate", "speculative", "-m", "TARGET", "-d", "STRANGER", *ASK), "id 45 is"),
        # output paths
        ((*BASE, *ASK, "--out", "there"), "there/speculative.parquet exists"),
        ((*BASE, *ASK, "--out", "page"), "page/speculative.html exists"),
        ((*BASE, *ASK, "--out", "cut"), "_speculative.parquet.partial exists"),
        ((*BASE, *ASK, "--out", "good.jsonl"), "--out takes a folder or a .parquet"),
        ((*BASE, *ASK, "--out", "text.txt"), "--out takes a folder or a .parquet"),
        ((*BASE, *ASK, "--out", "good.jsonl/deeper"), "is not a folder"),
        # other commands
        (("show", "no/such"), "does not exist"),
        (("show", "EMPTY"), "holds no traces"),
        (("show", "good.jsonl"), "good.jsonl"),
        (("show", "there", "--html", "page/speculative.html"), "exists"),
        (("demo", "--out", "old", "-m", "TARGET", "-d", "DRAFT"), "demo.html exists"),
        (("demo", "--out", "page.html"), "--out takes a folder"),
        (("demo", "--out", "new", "-m", "TARGET", "-d", "STRANGER", "--prompts", "good.jsonl"), "vocabular"),
        (("demo", "--out", "new", "--prompts", "bad.jsonl"), "line 2"),
        (("bench", "bathces"), "did you mean batches"),
        (("bench", "batches", "--prompts", "bad.jsonl"), "line 2"),
        (("bench", "batches", "--json", "good.jsonl"), "exists"),
        (("bench", "batches", "--size", "3"), "takes no --size"),
        (("bench", "trees", "--size", "many"), "--size takes a number"),
        (("audit", "--number", "0"), "--number"),
        (("audit", "--batch", "4", "--streams", "3"), "drop --streams"),
        (("audit", "--method", "unispec", "--streams", "3"), "none of these does: drop it"),
        (("audit", "--method", "retranslate", "--number", "3"), "drop --prompts and --number"),
        (("audit", "--prompts", "good.jsonl", "--seed", "3"), "drop it or --prompts"),
        (("audit", "--ledger", "l.jsonl", "--model", "town"), "add --soak"),
        (("audit", "--soak", "--ledger", "l.jsonl", "--invariant"), "drop --invariant"),
        (("audit", "--model", "town-diffusion", "--sampled", "3"), "diffusion model"),
        (("audit", "--prompts", "bad.jsonl"), "line 2"),
        (("audit", "--json", "good.jsonl"), "exists"),
        (("lab", "good.jsonl", "--copy-only"), "is a file"),
        # usage
        (("generat",), "generate"),
        (("generate",), "method"),
        (("generate", "bild", "--modle", "x"), "--model"),
        (("show",), "path"),
        (("show", "there", "--prompt", "0"), "--prompt"),
        (("demo", "--number", "none"), "--number"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, tuple) else "",
)  # fmt: skip
def test_bad_input_is_one_line_and_status_2(here, say, folders, arguments, says):
    (here / "good.jsonl").write_text('{"prompt": "Hello"}\n')
    (here / "bad.jsonl").write_text('{"prompt": "Hello"}\n{"prompt": \n')
    (here / "empty.jsonl").write_text("\n\n")
    for path in (
        "there/speculative.parquet",
        "page/speculative.html",
        "cut/_speculative.parquet.partial",
        "old/demo.html",
    ):
        (here / path).parent.mkdir(exist_ok=True)
        (here / path).write_text("mine")
    (here / "EMPTY").mkdir()
    known = {name.upper(): getattr(folders, name) for name in ("target", "draft", "stranger", "plain")}
    before = files(here)
    status, out, err = say(*(known.get(a, a) for a in arguments))
    assert status == 2
    assert says in one_line(err)
    assert out == ""
    assert files(here) == before  # nothing half-written
    assert all((here / p).read_text() == "mine" for p in before if "jsonl" not in p)


def test_force_replaces(here, say, folders):
    (here / "o").mkdir()
    (here / "o/autoregressive.parquet").write_text("mine")
    (here / "o/autoregressive.html").write_text("mine")
    status, _, err = say(
        "generate", "autoregressive", "-m", folders.target, "-p", "Hello", "--out", "o", "-n", 4, "--force"
    )
    assert status == 0, err
    assert len(specviz.open("o").texts) == 1
    assert "specviz" in (here / "o/autoregressive.html").read_text(encoding="utf8")


def test_a_file_may_be_named(here, say, folders):
    status, _, err = say(
        "generate", "autoregressive", "-m", folders.target, "-p", "Hi", "-o", "a/b.parquet", "-n", 4
    )
    assert status == 0, err
    assert files(here) == ["a/b.html", "a/b.parquet"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which Linux has")
def test_a_full_disk_before_the_first_cycle(here, say, folders):
    (here / "o").mkdir()
    (here / "o/_autoregressive.parquet.partial").symlink_to("/dev/full")
    status, out, err = say(
        "generate", "autoregressive", "-m", folders.target, "-p", "Hi", "-o", "o", "-n", 4, "--force"
    )
    assert status == 2
    assert "No space left on device" in one_line(err)
    assert out == ""
    assert files(here) == []


def test_a_full_disk_under_the_page(here, say, folders, monkeypatch):
    monkeypatch.setattr("specviz.files.os.replace", _full)
    status, _, err = say("generate", "autoregressive", "-m", folders.target, "-p", "Hi", "-o", "o", "-n", 4)
    assert status == 2
    assert "No space left" in one_line(err)
    assert not list(here.rglob("*.html*"))


@pytest.mark.skipif(os.name != "posix", reason="a limit on file size is POSIX")
def test_a_disk_that_fills_up_while_a_run_goes_on(here, folders):
    """A limit on file sizes simulates the full disk: the write really fails in the middle."""
    done = process(
        "generate", "autoregressive", "-m", folders.target, "-p", "Hello", "-o", "o", "-n", 100,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (14_000, 14_000)),
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "cannot write o/autoregressive.parquet: File too large" in one_line(done.stderr)
    assert files(here) in ([], ["o/_autoregressive.parquet.partial"])


def test_what_was_not_used_or_not_measured_is_said_so_or_left_out(here, say, folders):
    status, out, err = say(
        "generate", "autoregressive", "-m", folders.target, "-d", folders.draft, "-p", "Hello", "-n", 4,
        "--record", "none",
    )  # fmt: skip
    assert status == 0
    assert one_line(err) == "specviz: autoregressive uses no draft model, so --draft is ignored"
    assert "time" not in out


def test_a_long_prompt_leaves_the_complaint_to_us(here, say, folders, monkeypatch):
    from transformers import tokenization_utils_base as tokenization

    heard = []
    monkeypatch.setattr(tokenization.logger, "warning", lambda *words: heard.append(words))
    for more in ((), ("--raw",)):
        status, _, err = say("generate", "autoregressive", "-m", "town", "-p", "x " * 2000, *more)
        assert status == 2
        assert "context of 1024" in one_line(err)
    assert not heard


def test_raw_prompts_of_a_file(here, say, folders):
    say("generate", "autoregressive", "-m", folders.target, "-p", "Hi", "--out", "raw", "-n", 4, "--raw")
    turns = [{"turns": ["Hi"]}, {"turns": ["Hi", "And you?"]}]
    for number, entries in enumerate((turns[:1], turns)):
        Path(f"{number}.jsonl").write_text("\n".join(map(json.dumps, entries)))
    given = ("generate", "autoregressive", "-m", folders.target, "-n", 4, "--raw")
    say(*given, "--prompts", "0.jsonl", "--out", "turns")
    runs = [specviz.open(f"{name}/autoregressive.parquet").run for name in ("raw", "turns")]
    assert runs[0]["prompts"][0]["tokens"] == runs[1]["prompts"][0]["tokens"]
    status, _, err = say(*given, "--prompts", "1.jsonl", "--out", "none")
    assert status == 2 and "prompt 2 is a conversation: drop --raw" in " ".join(err.split())


def test_ctrl_c_while_the_bar_is_drawn_is_an_interruption_too(here, say, folders, monkeypatch):
    @contextmanager
    def interrupting():
        def tick(done, of, what):
            raise KeyboardInterrupt

        yield tick

    monkeypatch.setattr(cli.decoding, "progress", interrupting)
    (here / "p.txt").write_text("Hello\nOne\n")
    ask = ("-m", folders.target, "--prompts", "p.txt", "-n", 4, "--out")
    status, out, err = say("generate", "autoregressive", *ask, "o")
    assert (status, one_line(err)) == (130, "specviz: interrupted")
    assert "trace: o" in out
    assert specviz.open("o").run["stopped"] == "interrupted"
    status, out, err = say("demo", "--draft", folders.draft, *ask, "d")
    assert (status, one_line(err)) == (130, "specviz: interrupted")
    assert out == "traces so far: d/traces (specviz show d/traces)\n"
    assert set(specviz.open("d").runs["stopped"]) == {"interrupted"}


@pytest.mark.parametrize(("out", "last"), [(("--out", "o"), "write_parquet"), ((), "Recorder._close")])
def test_ctrl_c_while_the_trace_is_written(here, say, folders, monkeypatch, out, last):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"specviz.trace.recorder.{last}", interrupted)
    status, _, err = say("generate", "autoregressive", "-m", folders.target, "-p", "Hello", "-n", 4, *out)
    if not out:
        assert (status, one_line(err)) == (130, "specviz: interrupted")
        return
    partial = "o/_autoregressive.parquet.partial"
    assert status == 2 and one_line(err).endswith(f"while the trace was written: the run is in {partial}")
    assert len(specviz.open(partial).outputs) == 4


def test_ctrl_c_keeps_the_trace(here, say, folders, monkeypatch):
    decode = loop.decode

    def interrupted(*args, **options):
        for cycle in decode(*args, **options):
            if cycle.number == 5:
                raise KeyboardInterrupt
            yield cycle

    monkeypatch.setattr(loop, "decode", interrupted)
    status, out, err = say(
        "generate", "autoregressive", "-m", folders.target, "-p", "Hello", "--out", "o", "-n", 50
    )
    assert status == 130
    assert one_line(err) == "specviz: interrupted"
    assert "trace: o" in out
    trace = specviz.open("o")
    assert trace.run["stopped"] == "interrupted"
    assert len(trace.outputs) == 4
    assert files(here) == ["o/autoregressive.html", "o/autoregressive.parquet"]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "on the GPU"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
            "this machine",
        ),
        (MemoryError(), "this machine"),
    ],
)
def test_out_of_memory(here, say, folders, monkeypatch, error, says):
    def full(*_, **__):
        raise error
        yield

    monkeypatch.setattr(loop, "decode", full)
    status, _, err = say("generate", "autoregressive", "-m", folders.target, "-p", "Hello")
    assert status == 2
    last = one_line(err)
    assert last.startswith("specviz: out of memory")
    assert says in last
    assert "fewer new tokens or a smaller batch" in last


def test_other_errors_are_not_hidden(here, say, folders, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("a bug of ours")
        yield

    monkeypatch.setattr(loop, "decode", broken)
    with pytest.raises(RuntimeError, match="a bug of ours"):
        say("generate", "autoregressive", "-m", folders.target, "-p", "Hello")


def test_a_broken_pipe_is_quiet(here, say, folders):
    say("generate", "autoregressive", "-m", folders.target, "-p", "Hello", "--out", "o", "-n", 6)
    read, write_end = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "specviz", "show", "o"],
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    os.close(write_end)
    assert done.stderr == ""
    assert done.returncode == 1


def test_files_are_written_although_the_output_is_closed(here, monkeypatch):
    path = specviz.example("prompt_lookup")

    class Closed(StringIO):
        def write(self, text):
            raise BrokenPipeError

    for words in (
        ["show", path, "--html", "a.html", "--png", "a.png", "--perfetto", "a.json"],
        ["metrics", path, "--aiperf", "a.jsonl"],
        ["import", "a.jsonl", "--from", "aiperf", "--aiperf", "b.jsonl"],
        ["explain", path, "--png", "b.png", "--html", "b.html", "--json", "b.json"],
    ):
        monkeypatch.setattr(sys, "stdout", Closed())
        assert cli.run([str(word) for word in words]) == 1
    for name in ("a.html", "a.png", "a.json", "a.jsonl", "b.jsonl", "b.png", "b.html", "b.json"):
        assert Path(name).exists(), name


def test_an_ascii_terminal_is_no_error(here, say, folders):
    say("generate", "autoregressive", "-m", folders.target, "-p", "Hello", "--out", "o", "-n", 6)
    done = process("show", "o", env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.returncode == 0, done.stderr


def test_demo(here, say, folders):
    (here / "p.jsonl").write_text(
        "".join(json.dumps({"prompt": p, "kind": p}) + "\n" for p in ("Hello", "One"))
    )
    arguments = ("demo", "--model", folders.target, "--draft", folders.draft, "--prompts", "p.jsonl", "-n", 6)
    status, out, err = say(*arguments)
    assert status == 0, err
    assert "autoregressive" in out
    assert "speedup" in out
    assert out.splitlines()[-1] == "page: specviz-demo/demo.html"
    able = [name for name in methods.names("prompt") if methods.find(name).drafts_with == "model"]
    assert len(files(here / "specviz-demo")) == 1 + len(able)  # the page, a trace a method
    status, out, _ = say(*arguments)  # without --out a second one is written next to the first
    assert status == 0
    assert out.splitlines()[-1] == "page: specviz-demo-2/demo.html"


def test_a_demo_without_its_model_names_two_commands(here, say, monkeypatch):
    monkeypatch.setenv("SPECVIZ_HOME", str(here / "empty"))
    status, out, err = say("demo")
    assert (status, out) == (2, "")
    assert "`specviz models get smollm2`" in one_line(err)
    assert "`specviz demo --model town`" in err
    assert not list(here.iterdir())


def test_a_demo_of_a_translator_names_its_bench(here, say):
    status, out, err = say("demo", "--model", "bergamot-en-pt")
    assert (status, out) == (2, "")
    assert "run `specviz bench streams --model bergamot-en-pt`" in one_line(err)
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--prompts", "missing.jsonl"], "no prompts 'missing.jsonl'"),
        (["--confirm-prompts", "missing.jsonl"], "no prompts 'missing.jsonl'"),
        (["--as", "h200x"], "a device is one of"),
        (["--as", "h100", "--confirm"], "confirmed only on this device"),
        (["--stores", "--answers", "greedy.jsonl"], "stores decode greedily"),
        (["--answers", "broken.jsonl"], "broken.jsonl, line 2 lacks 'answer'"),
        (["--answers", "greedy.jsonl", "--confirm"], "no prompts to confirm on"),
        (["--answers", "sampled.jsonl", "--confirm-prompts", "town"], "these answers were sampled"),
        (["--answers", "sampled.jsonl", "--top-p", "0.9"], "drop top_k and top_p"),
        (["--draft", "no-such-draft"], "no model 'no-such-draft'"),
        (["--temperature", "0.5", "--top-k", "-1"], "top_k must be a whole number of at least 0"),
        (["--temperature", "0.5", "--top-p", "2"], "top_p must lie in (0, 1]"),
        (["--seed", "-1"], "seed must be a whole number from 0"),
    ],
)
def test_advise_refuses_wrong_options_before_it_loads_the_model(here, say, monkeypatch, options, says):
    def loaded(*given, **named):
        raise AssertionError("the model was loaded first")

    monkeypatch.setattr("specviz.models.load", loaded)
    whole, half = {"prompt": "a", "answer": "b"}, {"prompt": "a"}
    answers = {"greedy": [whole], "broken": [whole, half], "sampled": [whole | {"temperature": 0.7}]}
    for name, lines in answers.items():
        (here / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    status, out, err = say("advise", "smollm2", *options)
    assert (status, out) == (2, "") and says in one_line(err)


def test_a_demo_says_what_it_takes(say):
    status, out, _ = say("demo", "--help")
    assert status == 0
    assert "about three minutes on two cores" in " ".join(re.sub("[│╭╮╰╯─]", " ", out).split())


@pytest.mark.smollm2
def test_a_demo_of_smollm2(smollm2_file, here, say, monkeypatch):
    for name, fewer in (("SIZES", (2, 4)), ("MEASURED", 1), ("CALIBRATION_TOKENS", 4), ("WARM_UP", 2)):
        monkeypatch.setattr(f"specviz.measure.demo.{name}", fewer)
    whole = suites.suite  # its longer prompts would take most of the time
    brief = lambda name: [entry for entry in whole(name) if len(json.dumps(entry)) < 250]
    monkeypatch.setattr(suites, "suite", brief)
    status, out, err = say("demo", "--number", 1, "-n", 2)
    assert status == 0, err
    first, second, about, *_ = out.splitlines()
    assert re.match(r"[\w. -]+ writes [0-9.]+ tokens/s, [0-9.]+ times our own plain decoding", first)
    assert "prefill" in second
    assert about.startswith("smollm2 (4-bit, dequantised), 134.5 M parameters: 4 texts, up to 2 tokens")
    assert len(files(here / "specviz-demo")) == 1 + 6 + 4  # a drafter for each of four methods


def test_bench_status_and_json(here, say, folders, monkeypatch):
    (here / "p.jsonl").write_text('{"prompt": "Hello"}\n{"prompt": "One"}\n' * 4)
    models = ("--model", folders.target, "--draft", folders.draft)
    options = ("--prompts", "p.jsonl", "--only", "autoregressive,unispec", "--sizes", "1,8", "-n", 4)
    options += ("--rounds", 3)
    measure, reports = batches.bench, []

    @wraps(measure)
    def once(*given, **more):  # the second time, the same report with a limit that it misses
        if not reports:
            reports.append(measure(*given, **more))
            return reports[0]
        return replace(reports[0], bars=[replace(bar, limit=1e9) for bar in reports[0].bars])

    monkeypatch.setattr(batches, "WANTED", 1e-9)
    monkeypatch.setattr(batches, "bench", once)
    for limit, wanted in ((1e-9, 0), (1e9, 1)):
        status, out, err = say("bench", "batches", *models, *options, "--json", f"{wanted}.json", "--force")
        assert status == wanted, err
        last = out.splitlines()[-1]
        assert last.startswith("batches: ")
        assert ("missed" in last) == bool(wanted)
        found = json.loads((here / f"{wanted}.json").read_text(encoding="utf8"))
        assert found["summary"] == last
        assert found["held"] is not bool(wanted)
        assert {bar["limit"] for bar in found["bars"]} == {limit}
        assert "1 thread" in last
    status, out, err = say("bench", "passes", *models, "--rounds", 3, "--largest", 4, "--context", 16)
    assert status == 0, err
    assert "s(g)" in out


def test_audit(here, say, folders):
    status, out, err = say(
        "audit",
        "--model",
        folders.target,
        "--draft",
        folders.draft,
        "--number",
        2,
        "-n",
        4,
        "--sampled",
        1,
        *("--method", "speculative", "--method", "unispec"),
        "--json",
        "a.json",
    )
    assert status == 0, out + err
    assert out.splitlines()[-1].startswith("audit of target")
    assert json.loads((here / "a.json").read_text(encoding="utf8"))["holds"] is True


def test_a_failed_audit_is_status_1(here, say, folders, monkeypatch):
    from specviz.methods.speculative import Speculative

    verify = Speculative.verify

    def wrong(self, draft, scores):
        found = verify(self, draft, scores)
        found.token = (found.token + 1) % 261
        return found

    monkeypatch.setattr(Speculative, "verify", wrong)
    status, out, err = say(
        "audit",
        "--model",
        folders.target,
        "--draft",
        folders.draft,
        "--number",
        2,
        "-n",
        4,
        "--method",
        "speculative",
    )
    assert status == 1, out + err
    assert "bug" in out


def test_models(say):
    status, out, err = say("models")
    assert status == 0, err
    for word in ("autoregressive", "speculative", "draft_length", "fallback", "[0, 1]", "nats"):
        assert word in out
    assert re.search(r"datastore +a string +A datastore", out)
    assert re.search(r"target_language +German ", out), "a value as it is written"


def test_card_figures(tmp_path, folders):
    (tmp_path / "training.json").write_text(json.dumps({"tokens": 1234567}))
    scores = {"translation": {"en-de": {"bleu": 30.04, "share": 0.912}}, "acceptance": {"all": 0.7}}
    (tmp_path / "scores.json").write_text(json.dumps(scores))
    figures = cli.models._card(tmp_path)
    assert figures == "1,234,567 tokens seen, BLEU en-de 30.0 (0.91 of a paraphrase's), A/D as a draft 0.70"
    (tmp_path / "scores.json").write_text("{")
    assert cli.models._card(tmp_path) == "1,234,567 tokens seen"
    assert cli.models._weights(Path(folders.target)) == cli.models._weights(Path(folders.draft)) > 10_000


def test_lab(here, say, monkeypatch):
    status, out, err = say("lab", "mine", "--copy-only")
    assert status == 0, err
    count = len(files(here))
    assert out == f"walkthroughs: mine ({count} files copied)\n"
    books = [name for name in files(here) if name.endswith(".ipynb")]
    assert len(books) >= 4
    (here / books[0]).write_text("my edits")
    (here / books[1]).unlink()
    assert say("lab", "mine", "--copy-only")[1] == "walkthroughs: mine (1 file copied, existing ones kept)\n"
    assert (here / books[0]).read_text() == "my edits"
    out = say("lab", "mine", "--copy-only", "--force")[1]
    assert out == f"walkthroughs: mine ({count} files copied, existing ones replaced)\n"
    assert (here / books[0]).read_text() != "my edits"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    status, _, err = say("lab", "other")
    assert status == 2
    assert 'pip install -e ".[lab]"' in one_line(err)
    assert not (here / "other").exists()


def test_a_leading_tilde_is_the_home_folder(here, say, monkeypatch):
    """No shell writes it out in ``--html=~/a.html``, and Python has no shell."""
    home = here / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    trace = specviz.generate("town", "Hello", "prompt_lookup", max_new_tokens=4)
    trace.to_html("~/a.html"), trace.to_perfetto("~/a.json")
    trace.save("~/a.parquet")
    specviz.streams.save_partials(specviz.streams.simulate_partials("Hello there"), "~/p.jsonl")
    assert specviz.streams.from_partials("~/p.jsonl")[0].updates[-1].text == "Hello there"
    (home / "t.txt").write_text("The cook saw the cook.\n")
    assert len(specviz.suite("~/t.txt")) == len(specviz.streams.from_file("~/t.txt")) == 1
    for words in (
        ("show", "~/a.parquet", "--html=~/b.html", "--png=~/b.png"),
        ("generate", "unispec", "--prompts=~/t.txt", "-n", 4, "--out=~/o", "--save-store=~/a.store"),
        ("generate", "unispec", "-p", "~/t.txt", "-n", 4, "--store=~/a.store"),
        ("datastore", "~/t.txt", "--out=~/d.store"),
        ("generate", "spectra", "-p", "Hello", "-n", 4, "--set", "datastore=~/d.store"),
        ("exercises", "~/class"), ("lab", "~/mine", "--copy-only"),
    ):  # fmt: skip
        status, _, err = say(*words)
        assert status == 0, err
    assert not (here / "~").exists() and [path.name for path in here.iterdir()] == ["home"]
    assert {"a.html", "a.json", "b.html", "b.png", "o", "a.store", "d.store", "class", "mine"} < {
        path.name for path in home.iterdir()
    }
    assert {path.name for path in (home / "o").iterdir()} == {"unispec.html", "unispec.parquet"}
    status, _, err = say("generate", "unispec", "--prompts=~/t.txt", "--out=~/o")
    assert status == 2 and "--force" in one_line(err), "the check before any work looks at the same files"
    status, _, err = say("show", "~no-such-user/a.parquet")
    assert status == 2 and "names a user that this system does not have" in one_line(err)


@pytest.mark.parametrize(
    "read",
    [
        plan.read, Results, specviz.runs, convert, read_ledger,
        lambda path: next(specviz.audit.soak(path)), lambda path: speed.chosen_ids(Path("ids.json"), path),
    ],
)  # fmt: skip
def test_what_is_read_from_python_may_be_in_the_home_folder(here, monkeypatch, read):
    monkeypatch.setenv("HOME", str(here))
    (here / "damaged").write_text("[")
    (here / "ids.json").write_text('{"questions": [{"question_id": 1}], "sha256": "0"}')
    with pytest.raises(SpecvizError, match=re.escape(str(here / "damaged"))):
        read("~/damaged")


def test_a_models_name_cannot_drive_the_terminal(here, say, folders):
    hostile = here / "mo\x1b[31mdel"
    shutil.copytree(folders.target, hostile)
    (here / "text.txt").write_text("Tom was tired on Sunday.\n")
    status, out, err = say("datastore", "text.txt", "-m", hostile, "-o", "a.store")
    assert status == 0 and "\x1b" not in out.splitlines()[0], err
    audit = ("audit", "-m", hostile, "--method", "autoregressive", "--number", 1, "-n", 2, "--sampled", 0)
    status, out, err = say(*audit)
    assert status == 0 and "⟨U+001B⟩" in out and "\x1b" not in out, err


def test_lab_starts_jupyterlab_on_the_copy(here, say, monkeypatch):
    pytest.importorskip("jupyterlab")
    started = []

    class Server:
        def __init__(self, command):
            started.append(command)
            self.interrupts = 2

        def wait(self):  # JupyterLab ends by itself after Ctrl-C, once its kernels have
            if self.interrupts:
                self.interrupts -= 1
                raise KeyboardInterrupt
            return 0

    monkeypatch.setattr(subprocess, "Popen", Server)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    jupyterlab = [sys.executable, "-m", "jupyterlab"]
    assert say("lab", "mine", "--no-browser")[0] == 0
    assert started.pop() == [*jupyterlab, "mine", "--no-browser"]
    assert say("lab", "mine", "--port", 9999, "--ip=0.0.0.0", "--no-browser")[0] == 0
    assert started.pop() == [*jupyterlab, "mine", "--no-browser", "--port", "9999", "--ip=0.0.0.0"]
    assert say("lab", "mine", "--browser=firefox")[0] == 0
    assert started.pop() == [*jupyterlab, "mine", "--browser=firefox"]
    assert say("lab", "--port=9999")[0] == 0  # the folder is optional
    assert started.pop() == [*jupyterlab, "specviz-notebooks", "--port=9999"]
    monkeypatch.setattr(os, "geteuid", lambda: 0)  # a container's root user, whom JupyterLab refuses
    assert say("lab", "mine")[0] == 0
    assert started.pop() == [*jupyterlab, "mine", "--allow-root"]
    assert say("lab", "mine", "--allow-root")[0] == 0
    assert started.pop() == [*jupyterlab, "mine", "--allow-root"]
    for wrong in (("mine", "other"), ("mine", "--copy-only", "--port", 1)):
        status, _, err = say("lab", *wrong)
        assert status == 2
        assert "is not one of its options" in one_line(err)
    assert not started


def test_what_a_method_learnt_is_kept_in_a_file(say, here):
    ask = ["generate", "unispec", "-p", "Translate into German: Tom was tired on Sunday.", "-n", 16]
    status, out, _ = say(*ask, "--save-store", "a.store")
    assert status == 0
    assert "store: a.store" in out
    status, _, error = say(*ask, "--save-store", "a.store")
    assert status == 2
    assert "--force" in error
    assert say(*ask, "--store", "a.store", "--out", "kept.parquet")[0] == 0
    assert specviz.open("kept.parquet").run["memory"]["start"]["state"] == "warm"
    status, _, error = say("generate", "prompt_lookup", "-p", "x", "--store", "a.store")
    assert status == 2
    assert "keeps no memory" in error


@pytest.mark.parametrize(
    ("keep", "file", "last", "option"),
    [
        ("run", "p.txt", 0, "--resume"),
        ("run", "p.txt", 1, "--force"),
        ("prompt", "p.txt", 1, "--resume"),
        ("run", "p.jsonl", 1, "--resume"),  # the second turn of a conversation
        ("run", "p.jsonl", 2, "--force"),
        ("run", "full.jsonl", 2, "--force"),  # the second turn has no room
    ],
)
def test_what_is_advised_after_ctrl_c_works(here, say, monkeypatch, keep, file, last, option):
    """What a method learnt from finished prompts cannot be resumed; the store waits for a run that can be."""
    (here / "p.txt").write_text("The cook saw the cook.\nTom was tired.\n")
    (here / "p.jsonl").write_text(
        '{"turns": ["The cook saw the cook.", "Tom was tired."]}\n{"prompt": "Who?"}\n'
    )
    full = {"turns": ["The cook saw the cook.", "Tom was tired. " * 400]}
    (here / "full.jsonl").write_text(json.dumps(full) + '\n{"prompt": "Who?"}\n')
    ask = ("generate", "unispec", "--set", f"keep={keep}", "--prompts", file, "-n", 4)
    ask += ("--out", "o.parquet", "--save-store", "a.store")
    decode = loop.decode

    def interrupted(model, ids, method, **options):
        cycles = decode(model, ids, method, **options)
        if options["prompt"] == last:
            yield next(cycles)
            raise KeyboardInterrupt
        yield from cycles

    with monkeypatch.context() as patch:
        patch.setattr(loop, "decode", interrupted)
        status, out, _ = say(*ask)
    assert status == 130
    assert re.findall("with (--resume|--force)", out.splitlines()[-1]) == [option]
    made = ["full.jsonl", "o.html", "o.parquet", "p.jsonl", "p.txt"]
    assert files(here) == ["a.store"] * (option == "--force") + made
    status, out, err = say(*ask, option)
    assert status == 0, err
    assert files(here) == ["a.store", *made]
    assert specviz.open("o.parquet").run["complete"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["replay", "-n", "5", "--device", "cuda"], "drop --max-new-tokens, --device"),
        (["generate", "speculative", "-p", "hi", "--revision", "abc"], "drop revision='abc'"),
    ],
)
def test_options_without_effect_are_refused(say, words, says) -> None:
    status, _, err = say(*words)
    assert status and says in one_line(err)


def test_two_outputs_of_one_name_are_refused(here, say, tmp_path) -> None:
    specviz.generate("town", "Hello", "prompt_lookup", max_new_tokens=4).save(tmp_path / "t.parquet")
    status, _, err = say("show", str(tmp_path / "t.parquet"), "--png", "x.png", "--gif", "x.png")
    assert status and "the same file name" in one_line(err) and not (tmp_path / "x.png").exists()
    status, _, err = say("show", str(tmp_path / "t.parquet"), "--png", "x.jpg")
    assert status and "ends in .png, not x.jpg" in one_line(err) and not (tmp_path / "x.jpg").exists()
    for words in (
        ("explain", "t.parquet", "--html", "r", "--json", "r"),
        ("advise", "smollm2", "--html", "r", "--json", "./r"),
        ("generate", "unispec", "-p", "x", "--out", "r.parquet", "--save-store", "r.parquet"),
        ("generate", "unispec", "-p", "x", "--out", "r.parquet", "--save-store", "r.html"),
    ):
        status, _, err = say(*words)
        assert status == 2 and "the same file name" in one_line(err)
    status, _, err = say("explain", "t.parquet", "--png", "x.jpg")
    assert status == 2 and "ends in .png, not x.jpg" in one_line(err)
    assert files(tmp_path) == ["t.parquet"]


def test_closed_streams_are_no_error(monkeypatch):
    def run():
        print("lost")
        print(sys.stdout.isatty(), file=sys.stderr)
        sys.stdout.flush()
        return 0

    monkeypatch.setattr(cli, "run", run)
    with monkeypatch.context() as closed:
        closed.setattr(sys, "stdout", None)
        closed.setattr(sys, "stderr", None)
        with pytest.raises(SystemExit) as end:
            cli.main()
        for stream in (sys.stdout, sys.stderr):
            stream.close()
    assert end.value.code == 0


@pytest.mark.parametrize("model", ["smollm2", "gguf:smollm2"])
def test_bundled_drafts_of_a_file_include_the_aligned_one(model, monkeypatch):
    """BiLD is defined with an aligned draft."""
    given = {}
    target = SimpleNamespace(kind="causal", check_vocabulary=None)
    monkeypatch.setattr("specviz.models.load", lambda *args, **options: target)
    monkeypatch.setattr("specviz.models.loading.find", lambda name: None)
    monkeypatch.setattr(
        "specviz.loop.drafters.load_fitting", lambda target, names, *more: given.update(names=names) or []
    )
    arguments.loaded(model, None, "cpu", "auto", None, None)
    assert {"smollm2-draft", "smollm2-draft-aligned", "smollm2-eagle3"} <= set(given["names"])
