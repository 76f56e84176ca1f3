"""The heat map of a what-if shows a number per cell, and how certain it is."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
from canvas_traces import build
from town_runs import town_run

import specviz
from specviz import view
from specviz.errors import ParameterError

matplotlib.use("agg")


@pytest.fixture(scope="module")
def asked():
    return specviz.whatif(town_run("speculative"))


def words(ax):
    return [text.get_text() for text in ax.texts]


def test_it_shows_the_table(asked):
    import matplotlib.pyplot as plt

    answer = asked.ask(draft_length=[1, 2, 12], stop=[0.0, 0.4])
    ax = plt.subplots()[1]
    assert view.heat_map(answer, ax=ax) is ax
    grid = ax.images[0].get_array()
    for i, stop in enumerate([0.0, 0.4]):
        for j, length in enumerate([1, 2, 12]):
            row = answer.table.query(f"draft_length == {length} and stop == {stop}").iloc[0]
            assert grid[i, j] == row["tau"]
            assert words(ax)[3 * i + j] == f"{row['tau']:.2f}"  # exact, although other columns are bounded
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("draft_length", "stop")
    assert "exact" in ax.get_title(loc="left")
    plt.close("all")


def test_it_says_how_sure_it_is(asked):
    import matplotlib.pyplot as plt

    answer = asked.ask(draft_length=[1, 12], stop=[0.0, 0.4])
    answer.table["badge"] = ["exact", "bounded", "needs a rerun", "exact"]
    answer.table["drafted_lo"] = 1.0
    ax = view.heat_map(answer, x="stop", y="draft_length", value="drafted")
    assert [word[-1] in "±?~" for word in words(ax)] == [False, True, True, False]
    assert len(ax.patches) == 1
    assert max(ax.patches[0].get_edgecolor()[:3]) < 1, "a white hatch would not show on an empty cell"
    answer.table.loc[2, "tau"] = np.nan
    assert words(view.heat_map(answer)).count("?") == 1
    answer.table["badge"], answer.table["tau"] = "needs a rerun", np.nan
    assert words(view.heat_map(answer)) == ["?"] * 4
    many = view.heat_map(asked.ask(draft_length=range(1, 65), stop=[0.0, 0.5]))
    assert not words(many)  # too many to read
    timed = view.heat_map(asked.clock(asked.ask(draft_length=[1, 2], stop=[0.0, 0.4])), value="seconds")
    assert all(word.endswith("~") for word in words(timed))
    plt.close("all")


def test_the_numbers_of_a_map_have_equal_decimals(asked):
    import matplotlib.pyplot as plt

    answer = asked.ask(draft_length=[1, 2], stop=[0.0, 0.4])
    answer.table["count"], answer.table["badge"] = [1049.0, 1051.0, 99.6, 12345.0], "exact"
    assert set(words(view.heat_map(answer, value="count"))) == {"1,049", "1,051", "100", "12,345"}
    answer.table["count"] = [1.3, 1.0, 0.0123, 9.996]
    assert set(words(view.heat_map(answer, value="count"))) == {"1.30", "1.00", "0.01", "10.00"}
    plt.close("all")


def test_what_is_refused(asked):
    with pytest.raises(ParameterError, match="two parameters with several values"):
        view.heat_map(asked.ask(draft_length=[1, 2]))
    with pytest.raises(ParameterError, match="not draft_length, stop and speed"):
        view.heat_map(asked.ask(draft_length=[1, 2], stop=[0, 0.5]), value="speed")
    lookup = asked.prompt_lookup(ngram_max=[1, 2], ngram_min=1, draft_length=[2, 3])
    assert np.isfinite(view.heat_map(lookup).images[0].get_array()).all()
    with pytest.raises(ParameterError, match="share a cell"):
        view.heat_map(
            asked.prompt_lookup(ngram_max=[2, 3], ngram_min=[1, 2], draft_length=[2, 3]),
            "ngram_max",
            "ngram_min",
        )


def test_parameters_may_be_words_or_switches():
    import matplotlib.pyplot as plt

    answer = specviz.whatif(build("stepwise")).ssd(draft_length=[2, 4], tree=["chain", "mix"])
    ax = view.heat_map(answer, value="target_passes", ax=plt.subplots()[1])
    ticks = {text.get_text() for text in (*ax.get_xticklabels(), *ax.get_yticklabels())}
    assert ticks == {"2", "4", "chain", "mix"}
    plt.close("all")
