"""Views of a drafter's memory show the metrics' numbers and state what they cannot show."""

from __future__ import annotations

import subprocess
import sys

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
from tiny import llama

import specviz
import traces
from specviz import metrics, view
from specviz.errors import TraceError
from specviz.trace import Trace
from specviz.view.picture import MOST_TRIED, picture

matplotlib.use("agg")
PROMPTS = [[3, 4, 5], [6, 7], [4, 9]]


@pytest.fixture(scope="module")
def decoded():
    """A cold run of UniSpec, a run that resumed from it, and the method."""
    model = llama(seed=5, vocabulary=40, eos=(3,))
    method = specviz.method("unispec", draft_size=6)
    options = {"max_new_tokens": 24}
    cold, warm = (specviz.generate(model, PROMPTS, method, **options) for _ in range(2))
    return cold, warm, method, model


@pytest.fixture(autouse=True)
def _no_figure_stays_open():
    yield
    plt.close("all")


def labels(ax):
    return ax.get_legend_handles_labels()[1]


@pytest.mark.parametrize("reading", ["judged", "text"])
def test_acceptance_by_score(decoded, reading):
    ax = plt.subplots()[1]
    assert view.acceptance_by_score(decoded[0], ax, 5, reading) is ax
    table = metrics.by_score(decoded[0], 5, reading)
    sources = [name for name in table["source"].unique() if name != "all"]
    assert labels(ax) == ["share of the nodes", *(f"right: {name}" for name in sources)]
    bars = [bar.get_height() for bar in ax.patches]
    assert bars == table.loc[table["source"] == "all", "share"].tolist()
    assert sum(bars) == pytest.approx(1)
    lines = [each.lines[0] for each in ax.containers if hasattr(each, "has_yerr")]
    points = np.concatenate([line.get_ydata() for line in lines])
    drawn = table[(table["source"] != "all") & (table["counted"] > 0)]
    assert points.tolist() == drawn["rate"].tolist()


def test_right_by(decoded):
    ax = view.right_by(decoded[0])
    assert "depth" in ax.get_title(loc="left")
    assert any("nodes)" in label for label in labels(ax))


def test_levels_at_which_nothing_was_right_are_drawn(decoded, monkeypatch):
    """On a logarithmic axis they are at its lower edge, where their intervals begin."""
    table = metrics.by_source(decoded[0])
    table = table[table["counted"] > 0].assign(source="store").drop_duplicates("depth").head(4)
    shares = {"right": [4, 0, 0, 1], "rate": [0.2, 0.0, 0.0, 0.05], "rate_lo": [0.1, 0.0, 0.0, 0.02]}
    table = table.assign(**{name: values[: len(table)] for name, values in shares.items()}, rate_hi=0.3)
    table["depth"] = [1, 2, 3, 11]
    monkeypatch.setattr(metrics, "by_source", lambda *_: table)
    ax = view.right_by(decoded[0])
    line = next(each.lines[0] for each in ax.containers if hasattr(each, "has_yerr"))
    edge = ax.get_ylim()[0]
    assert line.get_ydata().tolist() == [0.2, edge, edge] and 0 < edge < 0.1
    assert "none is right" in ax.get_xlabel() and "depth 11 and above: not drawn" in ax.get_xlabel()
    ax.figure.canvas.draw()
    ticks = [text.get_text() for text in (*ax.get_yticklabels(), *ax.get_yticklabels(minor=True))]
    assert all(tick.endswith("%") for tick in ticks) and "10%" in ticks and "20%" in ticks
    monkeypatch.setattr(metrics, "by_source", lambda *_: table.assign(right=0, rate=0.0, rate_lo=0.0))
    assert view.right_by(decoded[0]).get_ylim()[0] == pytest.approx(0.15)


def test_a_trace_without_scores_says_so():
    ax = view.acceptance_by_score(traces.build("speculative"))
    assert "no sent node" in ax.texts[0].get_text()
    assert "no node" in view.right_by(traces.build("autoregressive")).texts[0].get_text()


def test_growth_and_warming_up(decoded):
    cold, warm, *_ = decoded
    both = Trace([*cold._stores, *warm._stores])
    ax = view.store_growth(both)
    line = ax.lines[0]
    assert line.get_ydata()[-1] == cold.run["memory"]["end"]["known"]
    first, second = labels(ax)
    assert "cold" in first
    assert f"warm: {cold.run['memory']['end']['known']} entries at the start" in second
    ax = view.warm_up(both, window=1)
    assert labels(ax) == ["unispec (cold)", "unispec (warm)"]
    assert len({each.get_linestyle() for each in view.store_growth(both).lines[::2]}) == 2
    dots, pooled = ax.lines[1:3]
    assert dots.get_ydata().tolist() == pooled.get_ydata().tolist() == metrics.by_prompt(cold)["tau"].tolist()


def test_a_store_from_a_file_or_arrays(decoded, tmp_path):
    *_, method, model = decoded
    path = method.save(tmp_path / "store.safetensors", model)
    titles = {view.store(it).get_title(loc="left") for it in (path, str(path), method.store.arrays())}
    known = method.store.entries
    assert titles == {f"{known} of 40 tokens have successors ({known / 40:.0%})"}
    view.store({"tokens": np.full((4, 2), -1)})  # the store is still empty
    (tmp_path / "x").write_text("no store")
    for wrong, said in (
        (tmp_path / "y", "does not exist"),
        (tmp_path / "x", "cannot be read"),
        ({"a": np.zeros(3)}, "a \\[3\\]"),
        (method, "not from .*: pass what Method.save wrote, or method.store.arrays"),
    ):
        with pytest.raises(TraceError, match=said):
            view.store(wrong)


def test_a_store_file_is_read_without_torch(decoded, tmp_path):
    *_, method, model = decoded
    path = method.save(tmp_path / "store.safetensors", model)
    code = (
        "import sys; sys.modules['torch'] = None; import matplotlib; matplotlib.use('agg');"
        f"from specviz import view; print(view.store({str(path)!r}).get_title(loc='left'))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "tokens have successors" in found.stdout


def test_a_tree_shows_its_scores_and_the_few_dropped_tokens_that_were_tried(decoded):
    cold = decoded[0]
    shown = picture(cold, 0)
    nodes = cold.select(prompt=0).nodes
    assert shown.belief == "score"
    assert [b.value for b in shown.beliefs] == nodes["score"].tolist()
    assert shown.threshold == 0.05
    assert "The score of each drafted node" in view.html(cold)
    assert "threshold 0.05" in view.html(cold)
    assert "Score of each drafted node" in view.confidence(cold).get_title(loc="left")
    names = {name: value for name, value, _ in shown.numbers}
    one = cold.select(prompt=0)
    assert names["nodes/cycle"] == f"{metrics.sent(one) / metrics.steps(one):.1f}"
    long = [cycle for cycle in shown.cycles if "more" in cycle.lost]
    assert long
    for cycle in shown.cycles:
        here = nodes[nodes["cycle"] == cycle.number]
        dropped = int(here["status"].isin(["rejected", "unjudged"]).sum())
        parts = cycle.lost.split("│") if cycle.lost else []
        rest = int(parts.pop().split()[1]) if parts and parts[-1].startswith("…") else 0
        assert len(parts) <= MOST_TRIED
        assert len(parts) + rest <= dropped  # several tokens may form one character
        assert "\n" not in cycle.lost


def test_a_chain_shows_its_confidence():
    shown = picture(traces.build("speculative"), 0)
    assert shown.belief == "confidence"
    assert "nodes/cycle" not in [name for name, *_ in shown.numbers]
    assert picture(traces.build("bild"), 0).threshold == 0.6
