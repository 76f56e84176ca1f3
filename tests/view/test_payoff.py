"""Payoff views draw the records' values and refuse runs that cannot be compared."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from specviz import metrics, view
from specviz.errors import ParameterError, TraceError
from specviz.metrics import break_even, tau_difference
from specviz.view import payoff
from traces import build

PROMPTS = 8


@pytest.fixture(autouse=True)
def _no_figure_stays_open():
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


def trace(method: str, **more):
    return build(method, prompts=PROMPTS, **more)


@pytest.fixture(scope="module")
def runs():
    return {"plain": trace("autoregressive"), "chain": trace("speculative"), "lossy": trace("bild")}


def test_a_cycle_is_priced_in_plain_passes(runs):
    table = break_even(runs, "plain").set_index("name")
    plain = 0.0065  # seconds: the synthetic record's cycle without a draft
    assert table.loc["plain", ["tau", "cost", "speedup"]].tolist() == pytest.approx([1, 1, 1])
    chain = table.loc["chain"]
    assert chain["cost"] == pytest.approx(0.0085 / plain), "four draft tokens of 0.5 ms and the same pass"
    assert chain["forward"] == pytest.approx(0.006 / plain)
    assert chain["draft_cost"] == pytest.approx(0.002 / plain)
    assert chain["rest"] == pytest.approx(0.0005 / plain)
    for name, run in runs.items():
        assert table.loc[name, "tau"] == pytest.approx(metrics.tau(run))
        want = metrics.tokens_per_second(run) / metrics.tokens_per_second(runs["plain"])
        assert table.loc[name, "speedup"] == pytest.approx(want)
    assert table["exactness"].tolist() == ["exact up to ties", "exact up to ties", "lossy"]
    assert table["prompts"].tolist() == [PROMPTS] * 3


def test_the_spread_is_over_prompts(runs):
    table = break_even(runs, "plain").set_index("name")
    each = break_even(runs, "plain", per="prompt")
    assert len(each) == 3 * PROMPTS
    for name in ("chain", "lossy"):
        own, row = each[each["name"] == name], table.loc[name]
        assert own["tau"].min() <= row["tau_lo"] < row["tau"] < row["tau_hi"] <= own["tau"].max()
        assert row["speedup_lo"] < row["speedup"] < row["speedup_hi"]
        assert np.allclose(own["speedup"], own["tau"] / own["cost"])
    assert np.isnan(table.loc["plain", "tau_lo"]), "τ is one on every prompt"
    few = {name: run.select(prompt=[0, 1]) for name, run in runs.items()}
    assert break_even(few, "plain")["tau_lo"].isna().all(), "no interval of two prompts"


def test_a_difference_of_tau_is_paired(runs):
    found = tau_difference(runs["chain"], runs["plain"])
    assert found.median == pytest.approx(metrics.tau(runs["chain"]) - 1) and found.pairs == PROMPTS
    alone = break_even(runs, "plain").set_index("name").loc["chain"]
    # τ of plain decoding is 1 on every prompt, so only the other run's varies.
    assert (found.low, found.high) == pytest.approx((alone["tau_lo"] - 1, alone["tau_hi"] - 1))
    same = tau_difference(runs["chain"], runs["chain"])
    assert (same.median, same.low, same.high) == (0, 0, 0), "a prompt is drawn for both"
    back = tau_difference(runs["plain"], runs["chain"])
    assert (back.low, back.high) == pytest.approx((-found.high, -found.low))
    few = tau_difference(*(runs[name].select(prompt=[0, 1]) for name in ("chain", "plain")))
    assert few.pairs == 2 and np.isnan(few.low), "no interval of two prompts"
    with pytest.raises(TraceError, match="decoded other prompts"):
        tau_difference(runs["chain"], runs["plain"].select(prompt=[0, 1]))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"threads": 2}, "a different model, number format, machine or number of threads"),
        ({"dtype": "bfloat16"}, "a different model, number format"),
        ({"model": {"name": "another"}}, "a different model"),
        ({"replayed": "replayed from run x"}, "has no cycle times"),
    ],
)
def test_what_does_not_compare_is_refused(runs, change, line):
    with pytest.raises(TraceError, match=line):
        break_even({**runs, "other": trace("speculative", **change)}, "plain")


def test_other_prompts_and_missing_baselines_are_refused(runs):
    with pytest.raises(TraceError, match="decoded different prompts"):
        break_even({**runs, "few": build("speculative", prompts=2)}, "plain")
    with pytest.raises(TraceError, match="no trace is called 'ar'; there are plain, chain, lossy"):
        break_even(runs, "ar")
    with pytest.raises(TraceError, match="the baseline is speculative"):
        break_even(runs, "chain")
    with pytest.raises(TraceError, match="has no cycle times"):
        break_even({**runs, "silent": trace("speculative", record=None)}, "plain")
    with pytest.raises(ParameterError, match="per must be 'run' or 'prompt'"):
        break_even(runs, "plain", per="token")
    with pytest.raises(TraceError, match="needs one run of autoregressive decoding, but there are 0"):
        view.why_it_pays([runs["chain"]])
    with pytest.raises(TraceError, match="there are 2"):
        view.why_it_pays([runs["plain"], trace("autoregressive"), runs["chain"]])


def test_the_figure_has_every_run_and_the_lines(runs):
    ax = view.why_it_pays([runs["chain"], runs["plain"], runs["lossy"]])
    labels = {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}
    table = break_even(runs, "plain").set_index("name")
    chain = next(line for label, line in labels.items() if label.startswith("speculative, town-draft"))
    assert chain.get_xydata().tolist() == [table.loc["chain", ["cost", "tau"]].tolist()]
    assert f"{table.loc['chain', 'speedup']:.2f}×" in chain.get_label()
    lossy = next(line for label, line in labels.items() if "(lossy)" in label)
    assert lossy.get_markerfacecolor() == "white" != chain.get_markerfacecolor()
    x, y = labels[payoff.EVEN].get_data()
    assert np.array_equal(x, y), "break-even is τ = cost"
    assert f"{PROMPTS} prompts; times measured" in ax.get_title(loc="left")
    assert view.why_it_pays(runs, ax=ax) is ax


def test_few_prompts_have_no_intervals(runs):
    assert "intervals" not in view.why_it_pays(runs).get_title(loc="left")
    few = {name: build(run.run["method"], prompts=4) for name, run in runs.items()}
    assert view.why_it_pays(few).get_title(loc="left").startswith("4 prompts, too few for intervals;")


def test_runs_of_one_method_are_told_apart(runs):
    alike = [trace("speculative", parameters={"length": 4}) for _ in range(3)]
    other = trace("speculative", parameters={"length": 6})
    table, _, order = payoff.payoff([runs["plain"], *alike, other])
    first = "speculative, town-draft, length 4"
    assert table["name"].tolist()[1:4] == [first, f"{first} (2)", f"{first} (3)"]
    assert table["name"].tolist()[4].endswith("length 6") and len(table) == len(order) == 5


def test_a_line_of_equal_speedup_stays_inside():
    assert payoff.line(1.0, (0.5, 2.0), (0.8, 3.0)) == ((0.8, 2.0), (0.8, 2.0))
    assert payoff.line(2.0, (0.5, 2.0), (0.8, 3.0)) == ((0.5, 1.5), (1.0, 3.0))
    assert payoff.line(9.0, (0.5, 2.0), (0.8, 3.0)) is None


def test_a_click_opens_the_method_s_trace(runs, tmp_path):
    pytest.importorskip("plotly")
    from specviz.view import interactive

    evil = {"name": "<img src=x onerror=alert(1)>", "parameters": 1}
    given = [*runs.values(), trace("speculative", draft=evil)]
    folder = tmp_path / "pages"
    made = interactive.why_it_pays(given, pages=folder)
    points = [part for part in made.figure.data if part.customdata is not None]
    assert [part.customdata[0] for part in points] == [
        (folder / f"method-{i}.html").as_posix() for i in range(4)
    ]
    assert sorted(p.name for p in folder.iterdir()) == ["index.html", *(f"method-{i}.html" for i in range(4))]
    table = break_even(runs, "plain")
    for part, row in zip(points, table.to_dict("records")):
        assert (part.x[0], part.y[0]) == pytest.approx((row["cost"], row["tau"]))
        assert "click: its trace" in part.text[0]
    assert points[2].marker.symbol.endswith("-open"), "a lossy method's mark is hollow"
    assert "&lt;img" in points[3].text[0] and "<img" not in points[3].text[0] + points[3].name
    assert "<img src=x" not in (folder / "index.html").read_text(encoding="utf8")
    with pytest.raises(TraceError, match="exists"):
        interactive.why_it_pays(given, pages=folder)
    assert "click" not in interactive.why_it_pays(runs).figure.data[-1].text[0]


def test_dollars_in_a_name_are_no_mathematics(runs):
    named = {"plain $_$": next(iter(runs.values())), "$5 to $6": list(runs.values())[1]}
    ax = view.why_it_pays(named)
    ax.figure.canvas.draw()
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert any(r"\$5 to \$6" in text for text in texts)


def test_a_selection_keeps_its_prompts_numbers(runs):
    chosen = {name: trace.select(prompt=[1, 2]) for name, trace in runs.items()}
    base = next(name for name, trace in runs.items() if trace.run["method"] == "autoregressive")
    table = metrics.break_even(chosen, base, per="prompt")
    assert set(table["prompt"]) == {1, 2}


@pytest.mark.parametrize("limits", [((0.1, 9.5), (0.9, 2.0)), ((0.8, 1.6), (0.9, 2.5)), ((0.5, 2), (1, 9))])
def test_numbers_of_lines_do_not_run_into_each_other(limits):
    (left, right), (bottom, top) = limits
    lines = payoff.lines(*limits)
    ends = [((x[1] - left) / (right - left), (y[1] - bottom) / (top - bottom)) for x, y in lines.values()]
    assert len(lines) > 2
    for i, one in enumerate(ends):
        assert all(max(abs(a - b) for a, b in zip(one, other)) >= payoff.APART for other in ends[:i])
    for speedup, (x, y) in lines.items():
        assert [b / a for a, b in zip(x, y)] == pytest.approx([speedup] * 2)


def test_words_below_a_figure_take_the_notebook_s_colours(runs):
    """A dark JupyterLab inverts the colours of the figure, but not those of the words below it."""
    pytest.importorskip("plotly")
    from specviz.view import interactive

    shown = interactive.why_it_pays(runs)._repr_html_()
    figure = shown.index('<div class="specviz-figure">')
    words = shown.index("<p>", figure)
    inside = shown[figure:words]
    assert inside.count("<div") == inside.count("</div>") and "<details>" in shown[words:]
