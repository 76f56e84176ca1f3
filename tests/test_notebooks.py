"""The walkthroughs: sources and notebooks match, contain no outputs, and run from top to bottom."""

from __future__ import annotations

import os
import re
import symtable
from collections.abc import Iterable
from pathlib import Path

import pytest
from benchmarks.walkthroughs import free, torchless

from specviz.site.books import runner


def number(path: Path) -> str:
    """A walkthrough's number: ``02``, ``07a``."""
    return path.stem.partition("_")[0]


FOLDER = Path(__file__).parents[1] / "notebooks"
PAIRS = sorted(FOLDER.glob("*.py"))
SOURCES = [p for p in PAIRS if p.stem[0].isdigit()]  # walkthroughs are numbered; the others are pages
LIVE = [p for p in SOURCES if "specviz models get smollm2" in p.read_text(encoding="utf8")]
# Results stated in a walkthrough's text that its cells must show, with any model or from the bundled traces.
STATEMENTS = {
    "00": [
        r"the record says 1\.89\n",
        r"A/D 0\.148   A/O 0\.475",
        r"([1-9]\d*) decisions, \1 come out as recorded",
        "prompt_lookup: 4 of 4 texts",
        "unispec: 4 of 4 texts",
        r"\b1\.63\b[\s\S]*\b1\.58\b",  # times as fast as without a draft
    ],
    "01": ["the same text in every layout: True", r"smallest s\(5\): \w+"],
    "02": [
        "the same text: True",
        "τ and A/D as in the runs: True",
        r"(\d+) decisions, \1 come out as recorded",
        "every text is the target's own: True",
        r"as they come: labelled exact up to ties, \d+ of \d+ texts differ",
    ],
    "03": [r"\(a\) exact .*'large alone'", r"\(c\) lossy", "fastest: "],
    "04": [
        r"'all but the first' +0\.72",
        r"by the formula: .* 4\.2 drafts whole",
        "as recorded: .* 9 of 121 drafts whole",
        r"never 'accepted' +0\.81 right",
        r"unjudged +0\.748",
        "never seen: 95%",
        r"below_budget +0\.675",  # of the recorded nodes
    ],
    "05": [
        r"answer 1\.96 .* answer 0\.10",
        "the same table: True  badge: exact",
        r"\n3 +5 .* 36\.3",  # five drafted tokens are fastest
        "exact for 5 of 204 cycles",
    ],
    "06": ["the run drafted what this search finds: True", r"([1-9]\d*) decisions, \1 come out as recorded"],
    "07a": [
        "the same candidates: True",
        "sent without their parent: 0",
        "score r or more are the same: True",
    ],
    "07b": [r"(\d+) of \1 texts are autoregressive", r"text 6 of |unispec +smollm2"],  # 6: the first problem
    "07c": ["fastest: "],
    "08": [r"best g +\d+", r"draft size \d+, calibrated on"],
    "10": ["fewer tokens a cycle than the fixed one", "the same text: True"],
    "13": [r"bild +46 +91\b", "nothing accepted: prompt_lookup 72%, unispec 54%, eagle 69%"],
    "14": [
        # On SmolLM2, llama.cpp's rounding may part the texts at a tie.
        r"the same tokens: True|left out: |\A(?![\s\S]*town\.gguf)",
        r"relative_bytes *\n(?:.*\d\.\d\d +\d+\.\d\d\n|name.*\n)*eagle town-eagle|\A(?![\s\S]*town\.gguf)",
        "decision: ",
    ],
    "15": ["within the bounds: True", r"in the interval: \d of 3"],
}
# Slow settings: the source's text, and its faster replacement in the test.
FEWER_TEXTS = (
    "studied, sample = prompts[:14], prompts[49:]",
    "studied, sample = prompts[:7], prompts[49:56]",
)
SMALLER = {
    "01": [('"town": 31}[target]', '"town": 3}[target]')],
    "02": [
        ('sv.suite("town")[:40]', 'sv.suite("town")[:8]'),
        ('"town": 6}[pair]', '"town": 2}[pair]'),
        ("method, max_new_tokens=64) for method", "method, max_new_tokens=24) for method"),
        ('"smollm2": 32, "town": 48}[pair]', '"smollm2": 32, "town": 16}[pair]'),
    ],
    "03": [
        ('suite("de-en", 40)', 'suite("de-en", 2)'),
        ('kind="arithmetic"))[:8]', 'kind="arithmetic"))[:3]'),
    ],
    "06": [FEWER_TEXTS, ("= 48, 24, 40, (8, 24, 64)", "= 24, 24, 24, (8, 24)")],
    "07a": [FEWER_TEXTS, ("large = 48, 64, 96", "large = 24, 64, 48")],
    "07b": [("prompts[:14], prompts[49:], 48, 96", "prompts[:7], prompts[49:56], 24, 48")],
    "07c": [
        ("prompts[:14], prompts[49:], 48", "prompts[:7], prompts[49:56], 24"),
        ('"max_new_tokens": 128}', '"max_new_tokens": 48}'),
    ],
    "08": [
        (
            'sv.calibrate(model, "unispec")',
            'sv.calibrate(model, "unispec", sizes=(1, 8, 16, 24, 32), number=2, rounds=2)',
        ),
        ("sizes=range(1, 50, 4), warm_up=8,", "sizes=(1, 9, 24, 49), warm_up=2, number=2,"),
        ('"town": (25, 128)', '"town": (8, 32)'),
        ('if target == "smollm2" else None', 'if target == "smollm2" else learnt + 3'),
        ("for n in (1, 2, 5)", "for n in (1, 2)"),
        ("few = (1, 2, 3, 4, 6, 8, 12, 16, 24)", "few = (1, 4, 8, 16)"),
        ("sizes=few, warm_up=8", "sizes=few, warm_up=2"),
        ('"town": 31}[target]', '"town": 3}[target]'),
    ],
    "09": [
        ("    :10\n", "    :2\n"),
        ("<= 24][:3]", "<= 24][:2]"),
        ("(0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0)", "(0.0, 0.2, 0.5, 1.0)"),
        ("(None, 0.0, 0.1, 0.2, 0.3, 0.5)", "(None, 0.0, 0.2, 0.5)"),
        ('"German", "zh": "Chinese", "ja"', '"German", "ja"'),
        ('("Control", "Chinese", "Japanese")', '("Control", "Japanese")'),
    ],
    "10": [('suite("de-en", 120)', 'suite("de-en", 16)'), ("translations[:16]", "translations[:4]")],
    "11a": [("(800, 1)", "(100, 1)"), ("(800, n)", "(100, n)"), ("range(50)", "range(8)")],
    "11b": [('startswith("translations")]', 'startswith("translations")][:4]')],
    "11c": [
        ('startswith("translations")]', 'startswith("translations")][:4]'),
        ('"ssd", of=texts[:4], cells=64', '"ssd", of=texts[:2], cells=48'),
        ("for refresh in (1, 4, 8, 16, 48)", "for refresh in (4, 8, 48)"),
        ("for cells in (48, 96)", "for cells in (24, 48)"),
    ],
    "14": [('group, length = "language", 48', 'group, length = "language", 16')],
    "15": [('"town-draft-aligned"], 8)', '"town-draft-aligned"], 6)'), ("LENGTH = 40", "LENGTH = 16")],
}


def test_there_are_walkthroughs():
    assert [number(p) for p in SOURCES] == [
        "00", "01", "02", "03", "04", "05", "06", "07a", "07b", "07c", "08", "09", "10", "11a", "11b", "11c",
        "12", "13", "14", "15",
    ]  # fmt: skip
    assert [number(p) for p in LIVE] == [
        "01",
        "02",
        "03",
        "06",
        "07a",
        "07b",
        "07c",
        "08",
        "10",
        "11b",
        "14",
        "15",
    ], "these take SmolLM2 where it is downloaded"
    assert [number(p) for p in SOURCES if free(p)] == ["00", "04", "05", "12", "13"], "these need no torch"


@pytest.mark.parametrize("source", PAIRS, ids=lambda p: p.stem)
def test_pairs_match_and_hold_no_outputs(source):
    jupytext = pytest.importorskip("jupytext", reason="needs the test extra")
    text = jupytext.read(source)
    book = jupytext.read(source.with_suffix(".ipynb"))
    assert [(c.cell_type, c.source) for c in text.cells] == [(c.cell_type, c.source) for c in book.cells], (
        f"run: jupytext --sync {source.relative_to(FOLDER.parent)}"
    )
    code = [c for c in book.cells if c.cell_type == "code"]
    assert not any(c.outputs or c.execution_count for c in code)
    assert "widgets" not in book.metadata
    assert book.metadata["kernelspec"]["name"] == "python3"


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.stem)
def test_a_picture_comes_within_three_cells(source):
    """The first code cell ends in a trace or a figure; every section asks a question before it shows."""
    text = source.read_text(encoding="utf8")
    cells = text.split("\n# %%")
    assert "# %% [markdown]" in text.split("\n# %%\n")[0]
    first = next(c for c in cells[1:] if not c.startswith(" [markdown]"))
    assert first.rstrip().splitlines()[-1].strip() in ("one", "trace")
    assert text.count("**Predict") >= 2


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.stem)
def test_the_first_cell_shows_a_light_still(source):
    """GitHub shows no output, so a still shows the topic of the walkthrough."""
    first = source.read_text(encoding="utf8").split("# %% [markdown]\n", 1)[1].split("# %%", 1)[0]
    (still,) = re.findall(r"!\[.{20,}\]\((stills/.+?)\)", first)
    assert still == f"stills/{number(source)}.png" and (FOLDER / still).stat().st_size < 60_000


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.stem)
def test_a_walkthrough_is_short_and_ends_with_questions(source):
    jupytext = pytest.importorskip("jupytext", reason="needs the test extra")
    cells = jupytext.read(source).cells
    text = [re.sub(r"!\[.*?\]\(.*?\)", "", c.source) for c in cells if c.cell_type == "markdown"]
    words = sum(len(part.split()) for part in text)
    assert words <= 2000 and sum(c.cell_type == "code" for c in cells) <= 25
    assert cells[-1].source.count("<details><summary>") == 5 and "## Five questions" in cells[-1].source
    assert not re.search(r"<summary>[^<]*`", cells[-1].source), "Markdown in HTML is shown literally: <code>"


WIDGETS = re.compile(  # the lab extra brings IPython, too
    r"from IPython|ipywidgets\.|sv\.(player|race|flicker|live|explore|runs)\(|\.surface\(\)"
    r"|view\.interactive\."
)


def test_books_with_widgets_say_that_they_need_the_lab():
    texts = {p.stem: p.read_text(encoding="utf8") for p in PAIRS if p.stem != "start"}  # which installs it
    widgets = {name for name, text in texts.items() if WIDGETS.search(text)}
    lab = re.compile(r"pip install -e \"\.\[[a-z,]*\blab\b[a-z,]*\]\"")
    named = {name for name, text in texts.items() if lab.search(text.split("\n# %%\n")[0])}
    assert named == widgets


# After a walkthrough's control: its callback gives different output at an end of its first slider.
MOVE = """
from IPython.utils.capture import capture_output as _captured

_slider, _seen = next(each for each in controls.widget.children if hasattr(each, "min")), []
for _value in (_slider.value, _slider.min if _slider.value == _slider.max else _slider.max):
    with _captured() as _shown:
        controls(**{**controls.widget.kwargs, _slider._kwarg: _value})
    _seen.append(_shown.stdout + "".join(str(each.data) for each in _shown.outputs))
assert len(set(_seen)) == 2, _seen
"""


def execute(source: Path, tmp_path: Path, smaller: Iterable[tuple[str, str]] = (), **variables: str) -> str:
    """Run a walkthrough from top to bottom and return its output as text; it must draw and not warn.

    `smaller` lists settings of it, each with its replacement.
    """
    jupytext = pytest.importorskip("jupytext", reason="needs the test extra")
    pytest.importorskip("nbclient", reason="needs the test extra")
    import nbformat

    text = source.read_text(encoding="utf8")
    for setting, fewer in smaller:
        assert setting in text
        text = text.replace(setting, fewer)
    book = jupytext.reads(text, fmt="py:percent")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    if number(source) in ("02", "08"):  # their controls draw, and the pictures must reach the page
        environment["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    environment |= {"SPECVIZ_CALIBRATIONS": str(tmp_path / "calibrations"), **variables}
    if free(source):  # then it runs where importing torch fails
        environment |= torchless(tmp_path)
    client = runner(book, tmp_path, 600)
    for place in [i for i, c in enumerate(book.cells) if "controls = ipywidgets.interact(" in c.source]:
        book.cells.insert(place + 1, nbformat.v4.new_code_cell(MOVE))
    client.execute(env=environment)
    shown = [o for c in book.cells if c.cell_type == "code" for o in c.outputs]
    assert any("image/png" in o.get("data", {}) for o in shown)
    assert not [o for o in shown if o.get("name") == "stderr"], "a warning in a walkthrough distracts"
    printed = "".join(o["text"] for o in shown if o.get("name") == "stdout")
    output = "".join([printed, *(o.get("data", {}).get("text/plain", "") for o in shown)])
    for statement in STATEMENTS.get(number(source), ()):
        assert re.search(statement, output), f"{statement!r} is not shown"
    return output


@pytest.mark.parametrize(
    "name", ["01", "02", "03", "05", "06", "07a", "07b", "07c", "08", "09", "10", "11a", "11b", "14"]
)
def test_a_parameter_has_a_control(name):
    """`MOVE` asserts, when the walkthrough runs, that the control changes the output."""
    source = next(p for p in SOURCES if number(p) == name)
    assert source.read_text(encoding="utf8").count("controls = ipywidgets.interact(") == 1


def global_reads(table: symtable.SymbolTable) -> set[str]:
    """The global names that a function and those inside it read."""
    names = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global()}
    return names.union(*map(global_reads, table.get_children()))


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.stem)
def test_no_later_cell_rebinds_what_a_control_reads(source):
    """After Run All a control runs with the last values of the names that its function reads."""
    jupytext = pytest.importorskip("jupytext", reason="needs the test extra")
    code = [c.source for c in jupytext.read(source).cells if c.cell_type == "code"]
    tables = [symtable.symtable(text, source.name, "exec") for text in code]
    reads = {each.get_name(): global_reads(each) for table in tables for each in table.get_children()}
    for i, text in enumerate(code):
        for name in re.findall(r"controls = ipywidgets\.interact\(\s*(\w+)", text):
            names = {name}
            while more := set().union(*(reads.get(each, ()) for each in names)) - names:
                names |= more
            symbols = [symbol for table in tables[i + 1 :] for symbol in table.get_symbols()]
            later = {symbol.get_name() for symbol in symbols if symbol.is_assigned()}
            again = {"root", "near", "store"} if number(source) == "07a" else set()  # of the same cycle
            assert names & later == again


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: p.stem)
def test_it_runs(source, tmp_path):
    """Run on bundled models only, with nothing downloaded; slow walkthroughs use smaller settings."""
    execute(source, tmp_path, SMALLER.get(number(source), ()), SPECVIZ_HOME=str(tmp_path / "home"))


@pytest.mark.slow
@pytest.mark.parametrize("source", [p for p in SOURCES if number(p) in SMALLER], ids=lambda p: p.stem)
def test_it_runs_at_full_size(source, tmp_path):
    execute(source, tmp_path, SPECVIZ_HOME=str(tmp_path / "home"))


@pytest.mark.slow
@pytest.mark.smollm2
@pytest.mark.parametrize("source", LIVE, ids=lambda p: p.stem)
def test_it_runs_on_smollm2(source, smollm2_file, tmp_path, monkeypatch):
    monkeypatch.delenv("SPECVIZ_KERNELS", raising=False)  # the layout that is fastest here
    assert "smollm2" in execute(source, tmp_path)
