"""Results of benches over time: what moved beyond noise, and what is no result."""

from __future__ import annotations

import json
from copy import deepcopy

import pytest

from specviz import cli
from specviz.errors import TraceError
from specviz.measure.history import history
from specviz.measure.report import Bar, Estimate, Part, Report

SETTING = {
    "model": {"name": "m", "parameters": 1}, "device": "cpu", "processor": "p", "threads": 1,
    "dtype": "float32", "versions": {"torch": "2.6"},
}  # fmt: skip


def figure(median, width=0.1):
    return Estimate(median, median - width, median + width, 9)


def result(path, date, medians=(1.0, 2.0, 3.0), value=1.0, **setting):
    rows = [{"method": "a", "g": g, "ms": 7.0, "ratio": figure(m)} for g, m in zip((1, 2), medians)]
    # A count that a run decides, and a figure that is 1 by definition.
    part = Part("by kind", [], [
        {"kind": "code", "same": f"{len(date)}/24", "tokens": hash(date), "ratio": figure(medians[2])},
        {"kind": "one", "ratio": Estimate(1.0, 1.0, 1.0, 9)},
    ])  # fmt: skip
    report = Report("speed", "t", SETTING | setting, [], rows, [Bar("x", value, 0.5)], parts=[part])
    content = report.as_dict() | {"date": f"{date}T10:00:00+00:00"}
    path.write_text(json.dumps(content), encoding="utf8")
    return path


def test_disjoint_intervals_have_moved(tmp_path):
    result(tmp_path / "z.json", "2026-01-01", medians=(9.0, 9.0, 9.0))
    result(tmp_path / "y.json", "2026-02-01")
    result(tmp_path / "a.json", "2026-03-01", medians=(1.15, 1.7, 3.0))
    made = history([tmp_path])
    (row,) = made.rows  # the last two by date, not by name; 1.15 is within the noise
    assert (row["row"], row["figure"], row["before"].median, row["after"].median) == (
        "a 2",
        "ratio",
        2.0,
        1.7,
    )
    assert row["change"] == pytest.approx(-0.15)
    assert len(made.measurements) == 3, "figures without an interval, or 1 by definition, are not judged"
    assert made.title.startswith("1 of 3 figures moved beyond noise: speed (2026-02-01 to 2026-03-01)")


def test_rows_are_matched_where_a_count_differs(tmp_path):
    result(tmp_path / "a.json", "2026-02-01")
    result(tmp_path / "b.json", "2026-03-01", medians=(1.0, 2.0, 5.0))
    (row,) = history([tmp_path]).rows
    assert row["row"].startswith("by kind · code")


def test_limits_and_settings_that_changed_are_named(tmp_path):
    one = result(tmp_path / "a.json", "2026-02-01")
    other = result(tmp_path / "b.json", "2026-03-01", value=0.1, versions={"torch": "2.13"})
    made = history([other, one])
    assert not made.rows
    assert "speed: the limit on x is missed now" in made.notes
    assert "speed: not only the code may have changed: versions torch 2.6, now 2.13" in made.notes


@pytest.mark.parametrize("name", ["device", "processor", "threads", "dtype", "model"])
def test_other_places_are_not_compared(tmp_path, name):
    result(tmp_path / "a.json", "2026-02-01")
    changed = {"model": {"name": "n"}, "threads": 2}.get(name, "other")
    result(tmp_path / "b.json", "2026-03-01", medians=(9.0, 9.0, 9.0), **{name: changed})
    with pytest.raises(TraceError, match="2 results, but no two of the same bench, model, device"):
        history([tmp_path])


def test_what_is_no_result_is_refused(tmp_path):
    good = result(tmp_path / "a.json", "2026-02-01")
    content = json.loads(good.read_text(encoding="utf8"))
    bad = tmp_path / "bad"
    for change in ({"date": "yesterday"}, {"rows": 3}, {"bars": [{"name": "x"}]}, {"bench": None}):
        bad.write_text(json.dumps(deepcopy(content) | change), encoding="utf8")
        with pytest.raises(TraceError, match="it is not the result of a bench"):
            history([bad])
    with pytest.raises(TraceError, match="does not exist"):
        history([tmp_path / "none"])


def test_command(tmp_path, capsys):
    result(tmp_path / "a.json", "2026-02-01")
    result(tmp_path / "b.json", "2026-03-01")
    assert cli.run(["bench", "history", str(tmp_path)]) == 0
    assert "0 of 3 figures moved" in capsys.readouterr().out
    result(tmp_path / "c.json", "2026-04-01", medians=(3.0, 2.0, 3.0))
    out = tmp_path / "out" / "moved.json"
    out.parent.mkdir()
    assert cli.run(["bench", "history", str(tmp_path), "--json", str(out)]) == 1
    (row,) = json.loads(out.read_text(encoding="utf8"))["rows"]
    assert row["row"] == "a 1" and row["after"]["median"] == 3.0
