"""Plots of confidence against verdicts, and of the control loop, match the record."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
import traces
from specviz import metrics, view
from specviz.errors import ParameterError, TraceError
from specviz.metrics.signals import SIGNALS
from specviz.view.control import Loop, loop
from specviz.view.picture import picture


@pytest.fixture(autouse=True)
def _no_figure_stays_open():
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(scope="module")
def trace():
    return traces.build("cm_asd", prompts=6, tokens=60, seed=2)


def test_reliability_draws_the_curve_of_each_signal(trace):
    ax = view.reliability(trace)
    table = metrics.signals(trace)
    rated = metrics.auroc(table).set_index("signal")
    lines = {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}
    assert len(lines) == 6, "C_t and five signals; the ensemble is C_t"
    line = next(line for label, line in lines.items() if label.startswith("largest probability"))
    curve = metrics.calibration_curve(table).query("signal == 'confidence'")
    assert np.allclose(line.get_ydata(), curve["rate"])
    assert f"{rated.loc['confidence', 'auroc']:.3f}" in line.get_label()
    assert len(view.reliability(trace, "entropy").get_legend().texts) == 1
    with pytest.raises(ParameterError, match="no signal 'hunch'"):
        view.reliability(trace, "hunch")


def test_reliability_of_nothing_says_so():
    ax = view.reliability(traces.build("autoregressive"))
    assert "no judged node" in ax.texts[0].get_text()


def test_auroc_puts_the_best_on_top(trace):
    ax = view.auroc(trace, ("entropy", "variance", "logit_margin"))
    rated = metrics.auroc(metrics.signals(trace)).query("signal in ['entropy', 'variance', 'logit_margin']")
    drawn = [line.get_xdata()[0] for line in ax.lines if line.get_linestyle() == "None"]
    assert np.allclose(drawn, rated["auroc"]) and ax.yaxis_inverted()


@pytest.mark.parametrize("accepted", [True, False])
def test_signals_of_one_outcome_have_no_auroc(trace, monkeypatch, accepted):
    table = metrics.signals(trace)
    monkeypatch.setattr(metrics, "signals", lambda *_: table[table["accepted"] == accepted])
    assert "the same outcome" in view.auroc(trace).texts[0].get_text()
    words = [text.get_text() for text in view.reliability(trace).get_legend().texts]
    assert "largest probability" in words and not any("nan" in word for word in words)
    assert not view.reliability(trace).get_legend().get_title().get_text()
    for nothing in (np.nan, np.inf):
        without = table.assign(**dict.fromkeys(SIGNALS, nothing))
        monkeypatch.setattr(metrics, "signals", lambda *_, without=without: without)
        assert "no judged node has a signal" in view.auroc(trace).texts[0].get_text()


def test_a_score_is_c_t_only_where_it_sets_a_threshold(trace, monkeypatch):
    words = lambda ax: [text.get_text() for text in (*ax.get_yticklabels(), *ax.texts)]
    assert "C_t, as recorded" in words(view.auroc(trace))
    table = metrics.signals(trace).assign(threshold=np.nan, ensemble=np.nan)
    monkeypatch.setattr(metrics, "signals", lambda *_: table)
    shown = words(view.auroc(trace))
    assert "score" in shown and "and against score" in shown and "C_t, as recorded" not in shown
    assert not any("nan" in word for word in shown)


def test_a_legend_of_few_texts_promises_no_interval(trace):
    title = lambda trace: view.reliability(trace).get_legend().get_title().get_text()
    assert title(trace) == "AUROC, 95 %"
    assert title(traces.build("cm_asd", prompts=2, tokens=60, seed=2)) == "AUROC"


def test_readings_cross_where_confidence_is_one_half():
    ax = view.threshold_readings(0.2, 0.6)
    written, described = (line.get_ydata() for line in ax.lines[:2])
    assert np.allclose([written[0], written[-1]], [0.8, 0.2]), "as written: wide where C is 0"
    assert np.allclose([described[0], described[-1]], [0.2, 0.8])
    over = view.threshold_readings(0.2, 0.6, over="entropy").lines
    assert np.allclose(over[0].get_ydata(), described), "with the complement, wide where entropy is large"
    with pytest.raises(ParameterError, match="at least 0"):
        view.threshold_readings(-0.1)
    with pytest.raises(ParameterError, match="over"):
        view.threshold_readings(over="time")


def test_the_dots_of_a_run_fall_on_their_side(trace):
    ax = view.threshold_readings(trace=trace)  # the run's own parameters
    kept, lost = (np.asarray(dots.get_offsets()) for dots in ax.collections[:2])
    falls = lambda c: 0.1 + 0.5 * (1 - c)
    assert (kept[:, 1] <= falls(kept[:, 0]) + 1e-6).all() and (lost[:, 1] > falls(lost[:, 0])).all()


def test_the_loop_is_the_record(trace):
    shown = loop(trace, 1)
    one = trace.select(prompt=1)
    cycles = one.cycles[one.cycles["cycle"] > 0]
    assert len(shown.nodes) == len(one.nodes)
    assert shown.cycles["accepted"].tolist() == cycles["accepted"].tolist()
    assert shown.cycles["window"].tolist() == cycles["sent"].tolist(), "k_j are sent"
    assert shown.cycles["unsent"].tolist() == (cycles["drafted"] - cycles["sent"]).tolist()
    assert (np.floor(shown.nodes["x"] + 0.5) == shown.nodes["cycle"]).all(), "each in its cycle's column"
    assert shown.certainty == "confidence C_t"
    first = shown.nodes[shown.nodes["cycle"] == 1]
    assert shown.cycles["mean"].iloc[0] == pytest.approx(first["value"].mean()), "C̄ of all that was drafted"
    assert first["threshold"].isna().tolist() == (first["status"] == "unsent").tolist()


def test_the_control_loop_has_three_panels(trace):
    import matplotlib.pyplot as plt

    ax = plt.subplots()[1]
    assert view.control_loop(trace, 2, ax=ax) is ax
    sure, window, gaps = ax.child_axes
    assert sure.get_xlim() == window.get_xlim() == gaps.get_xlim()
    words = [text.get_text() for text in gaps.get_legend().texts]
    assert "allowed, τ_t" in words and "accepted" in words and "rejected" in words
    few = view.control_loop(trace, 2, most=3).child_axes[2]
    assert "more cycles" in few.get_xlabel()


def drawn(shown: Loop, monkeypatch):
    monkeypatch.setattr(view.control, "loop", lambda *_: shown)
    ax = view.control_loop(None)
    ax.figure.canvas.draw()
    return ax.child_axes


def test_the_loop_shows_single_values_and_names_what_is_beyond(trace, monkeypatch):
    shown = loop(trace, 2)
    gaps = shown.nodes["gap"].where(shown.nodes["status"] != "rejected", 99.0)
    mean = shown.cycles["mean"].where(shown.cycles["cycle"] == 2)
    nodes, cycles = shown.nodes.assign(gap=gaps), shown.cycles.assign(mean=mean)
    sure, _, far = drawn(replace(shown, nodes=nodes, cycles=cycles), monkeypatch)
    assert sure.lines[0].get_marker() == ".", "a mean without neighbours has no line"
    words = [text.get_text() for text in far.get_legend().texts]
    assert any(word.startswith("rejected, beyond") for word in words) and "rejected" not in words
    none = replace(shown, cycles=shown.cycles.assign(mean=np.nan))
    assert "mean" not in [text.get_text() for text in drawn(none, monkeypatch)[0].get_legend().texts]
    one = replace(shown, nodes=nodes[nodes["cycle"] == 1], cycles=shown.cycles.head(1))
    ticks = drawn(one, monkeypatch)[2].get_xticks()
    assert all(float(tick).is_integer() for tick in ticks)


def test_the_loop_of_a_tree_has_each_node_s_own_score():
    trace = traces.build("unispec", tokens=20)
    assert loop(trace).certainty == "score" == picture(trace, 0).belief


def test_the_loop_of_other_methods():
    shown = loop(traces.build("bild", tokens=60))
    assert shown.allowed == ("−ln p of the large model", "α_RB") and shown.least == 0.6
    judged = shown.nodes[shown.nodes["gap"].notna()]
    assert ((judged["gap"] <= 2.0) == (judged["status"] == "accepted")).all()
    plain = view.control_loop(traces.build("speculative", tokens=30))
    assert "another rule" in plain.child_axes[2].texts[0].get_text()
    with pytest.raises(TraceError, match="drafted nothing"):
        view.control_loop(traces.build("autoregressive"))
