"""The package as installed: light imports, and a wheel that runs elsewhere."""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "transformers", "pandas", "pyarrow", "matplotlib", "plotly", "typer", "numpy")


def run(code: str, cwd: Path | None = None, **more: str) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=os.environ | more, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_loads_nothing_heavy():
    code = f"import sys, specviz; specviz.__version__; print([m for m in {HEAVY} if m in sys.modules])"
    assert run(code) == "[]"


def test_looking_loads_no_plotting():
    """matplotlib is imported on the first picture, pandas on the first table."""
    code = (
        "import sys, specviz as sv\n"
        "sv.view, sv.player, sv.race\n"
        "print([m for m in ('torch', 'pandas', 'matplotlib', 'plotly') if m in sys.modules])\n"
        "trace = sv.open(sv.example('unispec'))\n"
        "sv.player(trace), repr(trace), trace._repr_html_()\n"
        "print([m for m in ('torch', 'matplotlib', 'plotly') if m in sys.modules])"
    )
    assert run(code).splitlines() == ["[]", "[]"]


def test_command_line_help_needs_no_torch():
    code = (
        "import sys; sys.argv = ['specviz', '--help']\n"
        "sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from specviz.cli import main\n"
        "try: main()\n"
        "except SystemExit as e: print('exit', e.code)"
    )
    assert run(code).splitlines()[-1] in ("exit 0", "exit None")


def test_every_door_opens():
    import specviz

    for name in specviz.__all__:
        assert getattr(specviz, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = specviz.nonsense


def test_dir_lists_the_doors_only():
    import specviz

    names = {name for name in dir(specviz) if not name.startswith("__")}
    assert names == {name for name in specviz.__all__ if not name.startswith("__")}


def test_doors_are_documented():
    import specviz

    for name in specviz.__all__:
        value = getattr(specviz, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), name


def test_the_catalog_names_what_can_be_loaded():
    import specviz as sv

    table = sv.catalog()
    names = {kind: set(rows["name"]) for kind, rows in table.groupby("kind")}
    assert names["model"] == set(sv.list_models()) and names["method"] == set(sv.list_methods())
    assert names["suite"] == set(sv.list_suites()["name"])
    assert names["published"] == set(sv.list_published()["name"])


def private_imports(source: str) -> list[str]:
    """Imports of the package that are neither public names nor those of a public submodule."""
    import specviz

    wrong = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            wrong += [a.name for a in node.names if a.name.startswith("specviz.")]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "specviz":
            below = node.module.removeprefix("specviz").removeprefix(".")
            public = specviz.__all__ if not below else ()
            if below in specviz.SUBMODULES:
                module = import_module(node.module)
                public = getattr(module, "__all__", [n for n in dir(module) if not n.startswith("_")])
            inner = (name.rpartition(".") for name in specviz.SUBMODULES)
            public = {*public, *(name for parent, _, name in inner if parent == below)}
            wrong += [f"{node.module}.{a.name}" for a in node.names if a.name not in public]
    return wrong


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.py")), ids=lambda path: path.stem)
def test_walkthroughs_import_public_names_only(path):
    assert not private_imports(path.read_text(encoding="utf8"))


def test_a_private_import_is_noticed():
    assert private_imports("import specviz.loop") == ["specviz.loop"]
    assert private_imports("from specviz.loop.run import Run") == ["specviz.loop.run.Run"]
    assert private_imports("from specviz import Draft, paths") == ["specviz.paths"]
    assert private_imports("from specviz.methods import _points") == ["specviz.methods._points"]
    assert not private_imports("import specviz as sv\nfrom specviz.methods import find")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The built wheel, installed into a separate folder."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    site = folder / "site"
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
        "--target",
        str(site),
        str(path),
    ]
    subprocess.run(install, check=True)
    return path, site


def test_the_wheel_holds_its_data(wheel):
    names = zipfile.ZipFile(wheel[0]).namelist()
    for wanted in (
        "data/models/town/model.safetensors",
        "data/traces/unispec.parquet",
        "data/suites/town.jsonl",
        "data/suites/multi-town.jsonl.gz",
        "data/suites/frozen/audit.jsonl.gz",
        "data/published/unispec/table1.csv",
        "data/published/unispec/tables.json",
        "data/recipes/unispec.toml",
        "data/runs/replays.parquet",
        "data/templates/token_recycling.json",
    ):
        assert f"specviz/{wanted}" in names
    assert any(n.startswith("specviz/notebooks/") and n.endswith(".ipynb") for n in names)
    assert "specviz/view/style.css" in names
    assert not any(n.startswith("tests/") or "data/town/" in n for n in names)
    assert wheel[0].stat().st_size < 95e6, "PyPI takes files of up to 100 MB"


def test_the_drafters_of_smollm2_stay_small():
    kinds = ("draft", "draft-aligned", "eagle3", "heads")
    files = [path for kind in kinds for path in (ROOT / "data" / "models" / f"smollm2-{kind}").iterdir()]
    assert len(files) > len(kinds) and sum(path.stat().st_size for path in files) < 40e6


def test_the_package_stands_without_the_generator():
    imports = re.compile(r"^\s*(from|import) town\b", re.MULTILINE)
    for path in sorted((ROOT / "specviz").rglob("*.py")):
        assert not imports.search(path.read_text(encoding="utf8")), path


def test_published_numbers_come_with_the_wheel(wheel, tmp_path):
    code = "import specviz as sv; print(len(sv.list_published()), len(sv.published('unispec/table1')))"
    tables, numbers = run(code, tmp_path, PYTHONPATH=str(wheel[1])).split()
    assert int(tables) >= 20 and int(numbers) == 615


def test_a_decode_runs_from_the_wheel(wheel, tmp_path):
    _, site = wheel
    code = "import json, specviz as sv; print(sv.__file__); print(json.dumps(sv.suite('town')[0]))"
    where, prompt = run(code, tmp_path, PYTHONPATH=str(site)).splitlines()
    assert where.startswith(str(site)), "the installed copy must be the one that runs"
    (tmp_path / "one.jsonl").write_text(prompt)
    options = ["--prompts", "one.jsonl", "-n", "12", "-o", str(tmp_path / "out")]
    done = subprocess.run(
        [sys.executable, "-m", "specviz", "generate", "speculative", *options],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "out" / "speculative.parquet").exists()
    (page,) = (tmp_path / "out").glob("*.html")
    assert str(page) in done.stdout.replace("\n", "")
