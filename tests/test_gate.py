"""Regression tests for attacks with files that others made."""

from __future__ import annotations

import base64
import errno
import hashlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from checkpoints import checkpoint
from fuzz.formats import Plan as PlanForm
from fuzz.formats import ReplayResults, RunResults
from rich.console import Console

import specviz
import traces
from specviz import escape, files
from specviz.errors import ModelError, PromptError, SpecvizError, TraceError
from specviz.replays import markdown, page, terminal
from specviz.replays.replays import opened_result
from specviz.trace import Recorder, Trace, arrow_schema
from specviz.trace.files import KEY

HOSTILE = '\x1b[31mred\x1b[0m\u202e<img src="http://x/y.png">![p](http://x/y.png)|`'


# ---------------------------------------------------------------- one escaper for each format


def test_text_for_markdown_opens_nothing():
    safe = escape.markdown(HOSTILE + "\n[r]: http://x")
    assert "\x1b" not in safe and "\u202e" not in safe and "\n" not in safe
    assert (
        "<img" not in safe and "![" not in safe.replace("!\\[", "") and "](" not in safe.replace("\\](", "")
    )
    assert "[r\\]:" in safe and "\\|" in safe and "\\`" in safe
    assert escape.markdown("1.50 [1.40, 1.60]") == "1.50 [1.40, 1.60]"


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-x", "@SUM(A1)", "\t=1", " =1", "%0A", "|x"])
def test_a_spreadsheet_computes_no_cell(text):
    assert escape.cell(text).startswith("'")


@pytest.mark.parametrize("text", ["-0.3", "+5.2", "1,000", "-1e-5", "50%", "a=b", "–", ""])
def test_numbers_and_words_stay_as_they_are(text):
    assert escape.cell(text) == text


def test_an_error_is_one_line_that_commands_no_terminal(tmp_path):
    with pytest.raises(TraceError) as caught:
        Trace.open(tmp_path / "a\x1b[31m\nb\u202e.parquet")
    line = str(caught.value)
    assert "\n" not in line and "\x1b" not in line and "\u202e" not in line and "⟨U+001B⟩" in line
    code = "import sys; from specviz import cli; sys.exit(cli.run(['show', sys.argv[1]]))"
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a\x1b[31mb")], capture_output=True, text=True
    )
    assert done.returncode == 2 and "\x1b" not in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("form", [RunResults, ReplayResults])
def test_a_device_of_others_commands_neither_terminal_nor_reader(tmp_path, form):
    made = form(tmp_path)
    name = "environments/e.json" if form is RunResults else "replay.json"
    content = json.loads(json.dumps(made.files[name]))
    (content if form is RunResults else content["environment"]).update(device=HOSTILE)
    if form is ReplayResults:
        content["cells"][0]["method"] = "=1+1"
    (made.folder / name).write_text(json.dumps(content))
    result = opened_result(made.folder)
    text = io.StringIO()
    terminal.show(result, Console(file=text, width=200))
    issue = markdown.markdown(result)
    for shown in (text.getvalue(), issue):
        assert "\x1b" not in shown and "\u202e" not in shown
    assert "<img" not in issue and not re.search(r"(?<!\\)!\[", issue)
    if form is ReplayResults:
        assert "\n'=1+1," in markdown.csv(result)


# ---------------------------------------------------------------- results


@pytest.mark.parametrize(
    ("file", "place", "value", "says"),
    [
        ("run.json", ["plan", "cells", 0, "against"], 7, "compares cell 0 with a cell"),
        ("run.json", ["plan", "cells", 1, "suite"], "no", "cell 1 of a suite that is not in the plan"),
        ("run.json", ["plan", "suites", "s", "prompts"], 10**12, r"prompts should be less than"),
        ("run.json", ["plan", "seeds"], 3, r"plan.seeds should be a list, not 3"),
        ("rows/c000-r0-p0000.json", ["tokens"], "3", "tokens should be a whole number, not '3'"),
        ("rows/c000-r0-p0000.json", ["sitting"], ..., "lacks 'sitting'"),
        ("environments/e.json", ["threads"], None, "threads should be a whole number, not null"),
    ],
)
def test_a_damaged_result_names_file_place_and_remedy(tmp_path, file, place, value, says):
    made = RunResults(tmp_path)
    content = json.loads(json.dumps(made.files[file]))
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    (made.folder / file).write_text(json.dumps(content))
    with pytest.raises(TraceError, match=says) as caught:
        opened_result(made.folder).show(Console(file=io.StringIO()))
    line = str(caught.value)
    assert str(made.folder / file) in line and "\n" not in line and "again" in line


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["cells", 0, "metric"], ...), (["cells", 0, "printed"], 3.1), (["cells", 3, "measured"], "1"),
        (["compare"], ["no"]), (["comparisons", 0, "first"], 999), (["table"], "../table"),
            (["runs"], ["../../other"]),
        (["environment"], {"device": "cpu"}),
        (["environment"], {"x": 1}), (["sources", 0, "texts"], -1), (["cells", 0, "source"], 7),
            (["verdicts", 0, "verdict"], "maybe"),
            (["defined", 0], ["a"]), (["cells", 0, "extra"], 1),
    ],
)  # fmt: skip
def test_a_damaged_replay_is_one_line(tmp_path, place, value):
    made = ReplayResults(tmp_path)
    content = json.loads(json.dumps(made.files["replay.json"]))
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    (made.folder / "replay.json").write_text(json.dumps(content))
    with pytest.raises(TraceError, match="the file is damaged: replay the table"):
        opened_result(made.folder)


@pytest.mark.parametrize(
    "change",
    [{"temperature": "0.7"}, {"top_p": "0.9"}, {"top_k": float("nan")}, {"device": 1}, {"dtype": []}],
)
def test_a_plans_values_of_another_type_are_named(tmp_path, change):
    from specviz.measure.plan import Plan

    (name,) = change
    with pytest.raises(SpecvizError, match=f"the plan, {name} should be"):
        Plan.of(PlanForm(tmp_path).seed | change)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"methods = ['{'x' * 1000}']", "unknown method"), (f"models = ['{'x' * 1000}']", "no model"),
        (f"suites = ['{'x' * 1000}']", "no prompts"), ("suites = {a = 5}", "the suite a must be a name"),
        (f"seeds = {'1' * 5000}", "is not TOML"), ("methods = [{method = 'unispec', depth = inf}]", "depth"),
    ],
)  # fmt: skip
def test_a_crafted_plan_is_one_line(tmp_path, text, says):
    from specviz.measure.plan import Plan

    more = "" if text.startswith("methods") else "methods = ['unispec']\n"
    (tmp_path / "plan.toml").write_text(more + text)
    with pytest.raises(SpecvizError, match=says) as caught:
        Plan.of(tmp_path / "plan.toml")
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- partials of runs


def partial(path, extra=None, change=lambda table: table):
    """A truncated run's stream with altered batches."""
    run = json.loads(pa.parquet.read_schema(path.with_name("w.parquet")).metadata[KEY])
    table = change(pa.parquet.read_table(path.with_name("w.parquet")))
    names = arrow_schema(run)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, names) as stream:
        for batch in table.combine_chunks().to_batches():
            stream.write_batch(batch.cast(names), custom_metadata=extra)
    return path


def infinite(table):
    i = table.schema.get_field_index("start")
    return table.set_column(i, "start", pa.array([float("inf")] * len(table)))


@pytest.mark.parametrize(
    ("extra", "change", "says"),
    [
        ({"pieces": b"5"}, lambda t: t, "pieces should be an object, not 5"),
        ({"pieces": b"[" * 100_000}, lambda t: t, "a batch's pieces is nested too deep"),
        ({"prompts": b'{"a": 1}'}, lambda t: t, "prompts should be a list"),
        ({"pieces": b'{"1": "!!"}'}, lambda t: t, "not base64"),
        (None, lambda t: pa.concat_tables([t, t]), "the same cycle of a prompt twice"),
        (None, infinite, "times that are not finite"),
    ],
)
def test_crafted_partials_are_one_line(tmp_path, extra, change, says):
    import pyarrow.parquet  # noqa: F401

    traces.build("tree", path=tmp_path / "w.parquet")
    path = partial(tmp_path / "_r.parquet.partial", extra, change)
    with pytest.raises(TraceError, match=says) as caught:
        Trace.open(path).summary()
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- prompts and models


def test_a_lone_surrogate_in_a_prompts_file_is_refused_where_it_stands(tmp_path):
    (tmp_path / "p.jsonl").write_text('{"prompt": "fine"}\n{"turns": ["a", "b \\ud83d"]}\n')
    with pytest.raises(PromptError, match=r"p\.jsonl, line 2, turns\[1\] holds half a character"):
        specviz.suite(tmp_path / "p.jsonl")


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("generation_config.json", '{"eos_token_id": [1, 2', "generation_config.json is not JSON"),
        ("generation_config.json", '{"eos_token_id": "x"}', "generation_config.json, eos_token_id should be"),
        (
            "config.json",
            '{"model_type": {"a": 1}}',
            "config.json, model_type should be a string, not an object",
        ),
        ("config.json", '{"model_type": "llama", "eos_token_id": {}}', "config.json, eos_token_id should be"),
        ("config.json", '{"model_type": "llama", "vocab_size": "no"}', "vocab_size should be a whole number"),
        ("tokenizer.json", '{"version": "1.0", "model": {"type": "No"}}', "does not load"),
        (
            "tokenizer.json",
            '{"model": {"vocab": {"a": 4294967295}}}',  # all ids up to it would be enumerated
            r"tokenizer.json, model.vocab.a should be less than 134217728.*fetch or save it again",
        ),
        ("tokenizer.json", '{"added_tokens": [{"id": -1}]}', r"added_tokens\[0\].id should be"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json should be an object, not a list"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "../x"}}', "is not a file of the folder"),
    ],
)
def test_a_damaged_model_folder_is_one_line(tmp_path, file, content, says):
    checkpoint(tmp_path / "m")
    (tmp_path / "m" / file).write_text(content)
    with pytest.raises(ModelError, match=says) as caught:
        specviz.load(tmp_path / "m")
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- files are written


def test_a_file_is_written_under_a_name_that_nobody_foresees(tmp_path, monkeypatch):
    (tmp_path / "a.txt.part").write_text("somebody else's")
    names = []
    replace = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (names.append(str(a)), replace(a, b)))
    for text in ("one", "two"):
        files.write_text(tmp_path / "a.txt", text, force=True)
    assert len(set(names)) == 2 and (tmp_path / "a.txt").read_text() == "two"
    assert (tmp_path / "a.txt.part").read_text() == "somebody else's"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "a.txt.part"]
    monkeypatch.setattr(os, "replace", lambda a, b: (_ for _ in ()).throw(OSError(errno.EACCES, "no")))
    with pytest.raises(TraceError, match="cannot write"):
        files.write_text(tmp_path / "b.txt", "x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.txt", "a.txt.part"]


def scripts(html):
    """The policy's script sources, and the hashes of the scripts that a browser would run."""
    sources = re.search(r"script-src ([^;]*);", html)[1].split()
    inline = re.findall(r"<script(?: type=\"module\")?>(.*?)</script>", html, re.DOTALL)
    return sources, [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in inline]


def test_pages_run_their_own_scripts_alone(tmp_path):
    pytest.importorskip("plotly")
    import plotly.graph_objects as go

    from specviz.view.interactive import Interactive

    trace = traces.build("tree", path=tmp_path / "t.parquet")
    player = trace.to_html(tmp_path / "t.html").read_text("utf8")
    report = page.write(opened_result(RunResults(tmp_path / "r").folder)).read_text("utf8")
    figure = go.Figure(go.Scatter(x=[1], y=[1], text=["</script><script>alert(1)</script>"]))
    sweep = Interactive(figure, "t").to_html(tmp_path / "s.html").read_text("utf8")
    for html in (player, report, sweep):
        sources, hashes = scripts(html)
        assert hashes and {f"'sha256-{each}'" for each in hashes} <= set(sources)
        policy = re.search('http-equiv="Content-Security-Policy" content="([^"]*)"', html)[1]
        assert "unsafe" not in policy, "neither of scripts nor of styles"
        markup = re.sub("<(script|style)[^>]*>.*?</\1>", "", html, flags=re.DOTALL)
        assert not re.search(r"<[^>]*\sstyle=", markup), "a style attribute has no hash"
    injected = player.replace("<main>", "<main><script>alert(1)</script>")
    sources, hashes = scripts(injected)
    assert not {f"'sha256-{each}'" for each in hashes} <= set(sources)


def test_voila_alone_needs_what_a_policy_should_not_allow():
    """`specviz app` is Voila's page, whose inline scripts and styles are built at run time."""
    package = Path(files.__file__).parent
    written = [p for p in package.rglob("*") if p.suffix in (".py", ".js")]
    names = {p.relative_to(package).as_posix() for p in written if "'unsafe-inline'" in p.read_text("utf8")}
    assert names == {"cli/serving.py"}


def test_pydantic_is_imported_when_a_file_is_read_and_not_before(tmp_path):
    recorder = Recorder(traces.metadata("tree"))
    for cycle in traces.cycles("tree"):
        recorder.add(cycle)
    assert np.isfinite(recorder.close().cycles["start"]).all()
    path = tmp_path / "t.parquet"
    traces.build("tree", path=path)
    code = (
        "import sys, specviz, specviz.trace, specviz.view\nassert 'pydantic' not in sys.modules\n"
        f"specviz.open({str(path)!r})\nassert 'pydantic' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
