"""Without torch or transformers, or without the widgets' packages, one line names what is missing."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from specviz.errors import RUNNING, ModelError, SpecvizError, loading
from specviz.measure import BENCHES

ROOT = Path(__file__).parents[1]

# Run in a separate process in which some packages cannot be imported.
PROCESS = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
missing, calls, commands = json.loads(sys.argv[1])
for name in missing:
    sys.modules[name] = None
import specviz as sv
from specviz import cli

said = []
for call in calls:
    try:
        eval(call)
        said.append([call, "nothing"])
    except Exception as error:
        said.append([call, f"{type(error).__name__}: {error}"])
for command in commands:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = cli.run(command.split())
    said.append([command, f"{status}: {out.getvalue()}{err.getvalue()}"])
print(json.dumps(said))
"""
CALLS = [
    "sv.load('town')",
    "sv.load('hf:owner/name')",
    "sv.generate('town', 'Hello', 'autoregressive')",
    "sv.load('gguf:town-translator')",
    "sv.method('bild')",
    "sv.stream('town', 'Hello')",
    "sv.calibrate('town')",
    "sv.run(models=['town'], number=1)",
    "sv.replay('unispec/table3')",
    "sv.compare('prompt_lookup')",
    "sv.explore('bild', 'town', 'Hello')",
    "sv.race(live=True)",
    "sv.live('town-translator')",
]
WIDGETS = [
    "sv.player(None)",
    "sv.race([])",
    "sv.flicker([], live=True)",
    "sv.runs('.')",
    "sv.explore('bild', 'town', 'Hello')",
    "sv.live('town-translator')",
    "__import__('specviz.widgets.acceptance')",
]
COMMANDS = [
    "generate bild --prompt Hello --out out",
    "audit --json out.json",
    "generate retranslate --text text.txt --out out",
    "demo --model town --out out",
    "audit --model gguf:town-translator",
    "models align town-draft --target town --prompts text.txt --out out",
    "models eagle town --prompts text.txt --out out",
    "models gguf town --out out.gguf",
    "datastore text.txt --out out",
    "calibrate",
    "replay unispec/table3 --out out",
    "replay ssbd/table2 --setup paper --dry-run",
    "replay ssbd/table2 --setup paper --kit out",
    "bench run --number 1 --out out",
    *(f"bench {name} --json out.json" for name in BENCHES if name != "player"),  # player needs no model
]


def answers(missing, calls, commands, folder):
    """What each call and each command says without some packages."""
    given = json.dumps([missing, calls, commands])
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, given], text=True, capture_output=True, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert [asked for asked, _ in found] == [*calls, *commands]
    return found


@pytest.mark.parametrize(
    ("missing", "calls", "commands"),
    [(["torch", "transformers"], CALLS, COMMANDS), (["transformers"], CALLS[:3], COMMANDS[:2])],
    ids=["torch", "transformers"],
)
def test_one_line_says_what_to_install(missing, calls, commands, tmp_path):
    (tmp_path / "text.txt").write_text("The cook went to the village.\n")
    found = answers(missing, calls, commands, tmp_path)
    torch = "pip install torch --index-url https://download.pytorch.org/whl/cpu (the CPU build), then "
    line = (
        f"{missing[0]} is not installed, and running models needs it: {torch * ('torch' in missing)}"
        'pip install -e ".[run]" in a checkout of specviz (the extra specviz-lm[run]; PyPI has no specviz-lm)'
    )
    for asked, said in found:
        assert said == (f"ModelError: {line}" if asked in calls else f"2: specviz: {line}\n"), asked
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


def test_who_adds_a_result_needs_no_torch(tmp_path):
    from specviz.replays.recorded import list_recorded, results

    one = results(list_recorded()["replays-toys"]).tables[0]
    replace(one, path=tmp_path / "there").save()
    ((_, said),) = answers(["torch", "transformers"], [], ["replay --add there --out ours"], tmp_path)
    assert said.startswith("0: added: ours/added/")


@pytest.mark.parametrize("missing", ["gguf", "yaml"])
def test_a_package_that_reads_one_format_is_named(missing, tmp_path):
    pytest.importorskip("gguf", reason="needs the run extra")
    from specviz.models.llamacpp.writer import write_gguf

    call = "sv.load('bergamot:none')"
    if missing == "gguf":
        write_gguf("town-draft", tmp_path / "a.gguf")
        call = "sv.load('gguf:a.gguf', backend='torch')"
    ((_, said),) = answers([missing], [call], [], tmp_path)
    assert said.startswith(
        f"ModelError: {missing} is not installed, and running models needs it: pip install"
    )


def test_one_line_says_what_the_widgets_need(tmp_path):
    line = 'anywidget is not installed, and widgets need it: pip install -e ".[lab]" in a checkout of specviz'
    for asked, said in answers(["anywidget"], WIDGETS, [], tmp_path):
        assert said == f"SpecvizError: {line}", asked


def test_the_run_extra_declares_what_running_imports():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["run"]
    names = {each.partition(">=")[0] for each in declared}
    by_transformers = {"huggingface_hub"}
    assert {"pyyaml" if name == "yaml" else name for name in RUNNING} - by_transformers == names


def test_what_else_is_missing_is_no_matter_of_ours():
    with pytest.raises(ModuleNotFoundError, match="nonsense"), loading():
        import nonsense  # noqa: F401
    with pytest.raises(SpecvizError, match="ipywidgets is not installed, and widgets need it"), loading():
        raise ModuleNotFoundError("no", name="ipywidgets")
    with pytest.raises(ModelError, match="safetensors is not installed"), loading():
        raise ModuleNotFoundError("no", name="safetensors.torch")


def test_every_extra_that_a_message_names_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = set()
    for path in (ROOT / "specviz").rglob("*.py"):
        text = path.read_text(encoding="utf8")
        assert 'install "specviz-lm' not in text and "install 'specviz-lm" not in text, path
        named |= {part.split("'")[1] for part in text.split("{install(")[1:]}
    assert named >= {"run", "lab", "quality"} and named <= set(extras)
