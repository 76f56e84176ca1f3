"""Bench results over time: figures that moved beyond the noise, and files that are no results."""

from __future__ import annotations

import io
import json
import subprocess

import numpy as np
import pytest
from rich.console import Console

from specviz import cli
from specviz.errors import TraceError
from specviz.measure import checkout
from specviz.measure.history import CHANCE, Series, figures, history
from specviz.measure.report import Bar, Estimate, Part, Report

SETTING = {
    "model": {"name": "m", "parameters": 1}, "drafts": [], "device": "cpu", "processor": "p", "threads": 1,
    "dtype": "float32", "versions": {"torch": "2.6", "specviz": "1"}, "wall": [1.0],
}  # fmt: skip
STEADY = (1.0, 2.0, 3.0), (1.02, 1.97, 3.03)


def figure(median):
    return Estimate(median, median - 0.4, median + 0.4, 9)


def content(date, medians=STEADY[0], value=1.0, bench="speed", **setting):
    """A result whose strings and counts vary from run to run, as real ones do."""
    rows = [{"contender": "plain", "shown": str(date), "ratio": Estimate(1.0, 1.0, 1.0, 9)}]
    rows += [
        {"contender": name, "same": f"{day}/24", "tokens": day, "speed": 7.0, "ratio": figure(m)}
        for day, name, m in zip((int(date[-2:]),) * 2, ("a", "b"), medians)
    ]
    part = Part("by size", [], [{"layout": "x", "g": 1, "ms": figure(medians[2])}])
    again = Part("again", [], [{"contender": "a", "ratio": figure(medians[0])}])
    report = Report(bench, "t", SETTING | setting, [], rows, [Bar("x", value, 0.5)], parts=[part, again])
    return report.as_dict() | {"date": f"{date}T10:00:00+00:00"}


def result(path, *given, **more):
    path.write_text(json.dumps(content(*given, **more)), encoding="utf8")
    return path


def three(folder, last=STEADY[0], **more):
    result(folder / "z.json", "2026-01-01", STEADY[0])
    result(folder / "y.json", "2026-01-02", STEADY[1])
    return result(folder / "a.json", "2026-01-03", last, **more)


def test_what_is_beyond_the_noise_between_runs_has_moved(tmp_path):
    three(tmp_path, last=(1.01, 2.6, 3.0))
    made = history([tmp_path])
    (row,) = made.rows
    assert (row["row"], row["figure"]) == ("b", "ratio") and row["before"] == pytest.approx(np.sqrt(2 * 1.97))
    assert row["after"] == 2.6 and row["change"] == pytest.approx(2.6 / row["before"] - 1)
    # A figure in two tables counts once; the baseline's own ratio is 1 in every result and is no figure.
    assert len(made.measurements) == 3 and made.title == "1 of 3 figures moved beyond noise"


def test_a_figure_that_never_varies_makes_the_others_no_noisier(tmp_path):
    three(tmp_path, last=(1.01, 2.6, 3.0))
    made = history([tmp_path]).measurements
    for file in tmp_path.iterdir():
        data = json.loads(file.read_text("utf8"))
        data["rows"] += [{"contender": f"itself {i}", "ratio": vars(figure(1.0))} for i in range(9)]
        file.write_text(json.dumps(data), "utf8")
    assert history([tmp_path]).measurements == made


def test_the_order_is_that_of_the_dates(tmp_path):
    three(tmp_path)
    result(tmp_path / "b.json", "2025-12-31", (1.0, 2.6, 3.0))  # the oldest, so its figure is noise
    assert not history([tmp_path]).rows


def test_without_a_change_one_comparison_in_twenty_lists_a_figure():
    draw = np.random.default_rng(0)

    def listed(shift=0.0):
        noise = np.exp(draw.normal(0, 0.03, (5, 40)))
        noise[-1, 0] *= 1 + shift
        names = [f"c{i}" for i in range(40)]
        rows = [
            [{"contender": n, "ratio": vars(figure(float(m)))} for n, m in zip(names, run)] for run in noise
        ]
        series = Series([{**content("2026-01-01"), "rows": each, "parts": []} for each in rows])
        return any(row["moved"] for row in series.rows())

    share = np.mean([listed() for _ in range(400)])
    assert CHANCE / 3 < share < 2 * CHANCE
    assert np.mean([listed(0.2) for _ in range(100)]) > 0.9


def test_limits_and_settings_that_changed_are_named(tmp_path):
    three(tmp_path, value=0.1, versions={"torch": "2.13", "specviz": "2"}, wall=[2.0])
    made = history([tmp_path])
    assert not made.rows
    said = "speed of m, cpu, 1 thread, float32, 2026-01-01 to 2026-01-03: "
    assert f"{said}the limit on x is missed now" in made.notes
    assert f"{said}not only this package changed: torch 2.6, now 2.13" in made.notes


def test_the_commits_are_named(tmp_path):
    three(tmp_path)
    for file, commit in (("y.json", "aaa"), ("a.json", "bbb+")):
        kept = json.loads((tmp_path / file).read_text("utf8"))
        (tmp_path / file).write_text(json.dumps(kept | {"commit": commit}), "utf8")
    assert any("measured at bbb+, before at aaa" in note for note in history([tmp_path]).notes)


def test_a_result_names_the_commit_of_its_checkout(tmp_path):
    def git(*words):
        about = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", *about, *words], cwd=tmp_path, check=True, capture_output=True).stdout

    file = tmp_path / "a.py"
    file.write_text("1", "utf8")
    git("init")
    assert checkout.commit.__wrapped__(file) is None  # the repository does not track the file
    git("add", ".")
    git("commit", "-m", "a")
    head = git("rev-parse", "--short=12", "HEAD").decode().strip()
    assert checkout.commit.__wrapped__(file) == head
    file.write_text("2", "utf8")
    assert checkout.commit.__wrapped__(file) == head + "+"
    assert content("2026-01-01")["commit"] == checkout.commit()


def test_without_git_it_names_none(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checkout.commit.__wrapped__() is None


def test_figures_that_came_or_went_are_named(tmp_path):
    last = three(tmp_path)
    data = json.loads(last.read_text(encoding="utf8"))
    data["parts"] = []
    last.write_text(json.dumps(data), encoding="utf8")
    made = history([tmp_path])
    assert len(made.measurements) == 2
    assert any("1 figure only before or after: by size · x 1 · ms" in note for note in made.notes)


def test_rows_that_cannot_be_told_apart_are_not_compared():
    data = content("2026-01-01")
    data["rows"] += [data["rows"][1]]
    data["rows"] += [
        {"contender": "c", "ratio": vars(figure(1.0)) | {"median": m}} for m in (10**400, None, "x")
    ]
    data["rows"] += [{"contender": "d", "ratio": vars(figure(1.0)) | {"median": 10**400}}]
    assert not [key for key in figures(data) if key[1] in "cd"]
    assert ("", "a", "ratio") not in figures(data) and ("", "b", "ratio") in figures(data)


@pytest.mark.parametrize(
    "name",
    [
        "device", "processor", "threads", "dtype", "model", "drafts", "prompts", "options", "entries",
        "invariant", "gpu_layers",
    ],
)  # fmt: skip
def test_other_places_are_not_compared(tmp_path, name):
    changed = {"model": {"name": "n"}, "threads": 2, "drafts": [{"name": "d"}]}.get(name, "other")
    three(tmp_path, last=(9.0, 9.0, 9.0), **{name: changed})
    with pytest.raises(TraceError, match="3 results, but no three of one bench"):
        history([tmp_path])


def test_each_place_is_named(tmp_path):
    for count in (1, 2):
        (tmp_path / str(count)).mkdir()
        for name, day, medians in (("a", 1, STEADY[0]), ("b", 2, STEADY[1]), ("c", 3, (9.0, 2.0, 3.0))):
            result(tmp_path / str(count) / f"{name}.json", f"2026-01-0{day}", medians, threads=count)
    made = history([tmp_path / "1", tmp_path / "2"])
    places = ["speed of m, cpu, 1 thread, float32", "speed of m, cpu, 2 threads, float32"]
    assert list(dict.fromkeys(row["bench"] for row in made.rows)) == places
    compared = [note for note in made.notes if note.startswith("compared: ")]
    assert compared == [f"compared: 3 results of {each}, 2026-01-01 to 2026-01-03" for each in places]
    console = Console(width=200, file=io.StringIO())
    made.show(console)
    assert console.file.getvalue().splitlines()[1] == "", "no single place under the title"


def test_places_that_share_a_name_say_in_what_they_differ(tmp_path):
    for processor in ("EPYC", "Xeon"):
        (tmp_path / processor).mkdir()
        for day in (1, 2, 3):
            medians = STEADY[day % 2]
            result(tmp_path / processor / f"{day}.json", f"2026-01-0{day}", medians, processor=processor)
    notes = history([tmp_path / "EPYC", tmp_path / "Xeon"]).notes
    compared = [note.split(", ")[4] for note in notes if note.startswith("compared: ")]
    assert compared == ["processor EPYC", "processor Xeon"]


def test_results_without_figures_are_not_called_compared(tmp_path):
    for day in (1, 2, 3):
        made = content(f"2026-01-0{day}", bench="roofline") | {"rows": [{"ms": 1.0}], "parts": []}
        (tmp_path / f"r{day}.json").write_text(json.dumps(made), "utf8")
    line = (
        "not compared, because its results share no figure with an interval that varies: roofline of m, cpu"
    )
    with pytest.raises(TraceError, match=f"^{line}"):
        history([tmp_path])
    three(tmp_path)
    notes = history([tmp_path]).notes
    assert sum(note.startswith(line) for note in notes) == 1
    assert not [note for note in notes if note.startswith("compared: ") and "roofline" in note]


def test_a_bench_of_the_project_is_compared_too(tmp_path):
    """Also results from when it was a command of `specviz bench`, and of benches that are gone."""
    for day, medians in enumerate((*STEADY, (9.0, 2.0, 3.0)), 1):
        result(tmp_path / f"{day}.json", f"2026-01-0{day}", medians, bench="overhead")
    (row, *_) = history([tmp_path]).rows
    assert row["bench"] == "overhead of m, cpu, 1 thread, float32" and row["row"] == "a"


def test_its_own_results_are_not_a_bench(tmp_path):
    for day in (1, 2, 3):
        result(tmp_path / f"{day}.json", f"2026-01-0{day}", bench="history")
    with pytest.raises(TraceError, match="no three of one bench"):
        history([tmp_path])


@pytest.mark.parametrize(
    "change",
    [
        {"date": "yesterday"}, {"rows": 3}, {"bars": [{"name": "x"}]}, {"bench": None}, {"setting": {}},
        {"rows": [3]}, {"parts": [{"title": "x", "rows": [{"a": "\ud800"}]}]},
    ],
)  # fmt: skip
def test_what_is_no_result_is_one_line(tmp_path, capsys, change):
    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(content("2026-01-01") | change), encoding="utf8")
    assert cli.run(["bench", "history", str(bad)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_nothing_to_read(tmp_path):
    with pytest.raises(TraceError, match="does not exist"):
        history([tmp_path / "none"])
    with pytest.raises(TraceError, match=r"holds no \.json file"):
        history([tmp_path])


def test_command(tmp_path, capsys):
    three(tmp_path)
    assert cli.run(["bench", "history", str(tmp_path)]) == 0
    assert "0 of 3 figures moved" in capsys.readouterr().out
    result(tmp_path / "c.json", "2026-02-01", (3.0, 2.0, 3.0))
    out = tmp_path / "out" / "moved.json"
    out.parent.mkdir()
    assert cli.run(["bench", "history", str(tmp_path), "--json", str(out)]) == 1
    (row,) = json.loads(out.read_text(encoding="utf8"))["rows"]
    assert row["row"] == "a" and row["after"] == 3.0
