"""The record of a calibration: its file, and the uses it is valid for."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest

from specviz import calibration
from specviz.calibration import Calibration, Fit, Point
from specviz.cli.calibrating import _show_calibration
from specviz.errors import SpecvizError, TraceError
from specviz.escape import UNSEEN

SETTING = {
    "method": "unispec", "parameters": {"depth": 10}, "model": {"name": "town", "parameters": 5},
    "draft": None, "device": "A processor", "dtype": "float32", "threads": 2, "versions": {"torch": "2.13"},
}  # fmt: skip


def made(device="A processor", g=2, **more):
    """A calibration of four sizes and two texts (4 and 6 tokens); the second of three rounds is slow."""
    seconds = {1: 1.0, 2: 1.2, 4: 1.5, 8: 3.0}
    cycles = {1: [4, 5], 2: [2, 4], 4: [2, 3], 8: [2, 3]}
    points = [
        Point(
            size,
            [4, 6],
            cycles[size],
            [[slow * seconds[size], 2 * slow * seconds[size]] for slow in (1, 9, 1)],
        )
        for size in seconds
    ]
    fits = {name: Fit(g, [1.0] * 8, [2.0] * 8) for name in ("paper", "grid", "monotone")}
    setting = copy.deepcopy(SETTING) | {"device": device}
    how = {"prompts": 2, "warm_up": 0, "max_new_tokens": 8, "rounds": 3, "clock": "wall clock"}
    return Calibration(setting, "draft_size", how, points, fits, "monotone", **more)


def test_what_was_measured():
    g, tau, s, low, high = made().measured()
    assert g.tolist() == [1, 2, 4, 8]
    assert np.allclose(tau, [10 / 9, 10 / 6, 2, 2])
    assert np.allclose(s, np.array([3.0, 3.6, 4.5, 9.0]) / [9, 6, 5, 5])  # the slow round is divided out
    assert np.allclose(low, s)
    assert np.allclose(high, s)
    table = made().table
    assert np.allclose(table["tokens_per_second"], tau / s)
    assert np.allclose(table["ms"], 1e3 * s)


def test_one_size_slow_once_is_no_matter():
    found = made()
    found.points[2].seconds[0] = [50.0, 100.0]
    s, before = found.measured()[2], made().measured()[2]
    assert np.allclose(s / s[0], before / before[0])


def test_it_is_saved_whole(tmp_path):
    path = made().save(tmp_path / "deep" / "x.json")
    assert [p.name for p in path.parent.iterdir()] == ["x.json"]
    assert Calibration.open(path) == made()
    (tmp_path / "taken").write_text("")
    with pytest.raises(TraceError, match="cannot write"):
        made().save(tmp_path / "taken" / "x.json")
    before = path.read_bytes()
    broken = made()
    broken.how["rounds"] = object()
    with pytest.raises(TypeError):
        broken.save(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda said: said.update(specviz="memory"), "specviz should be 'calibration', not 'memory'"),
        (lambda said: said.update(schema=99), "schema should be 1, not 99"),
        (lambda said: said.update(chosen="best"), "which it does not have"),
        (lambda said: said["points"].reverse(), "not in order"),
        (lambda said: said["points"][0].update(g=0), "not in order"),
        (lambda said: said["points"][1].update(g="2"), r"points\[1\]\.g should be a whole number, not '2'"),
        (lambda said: said["fits"]["monotone"].update(g=99), "draft size was not measured"),
        (lambda said: said["fits"]["paper"]["s"].pop(), "curves are incomplete"),
        (lambda said: said["fits"]["paper"]["s"].__setitem__(0, float("nan")), "curves are incomplete"),
        (lambda said: said["fits"]["monotone"]["s"].__setitem__(1, 0.0), "takes no time"),
        (lambda said: said["points"][0]["seconds"][0].__setitem__(0, None), "times are incomplete"),
        (lambda said: said["points"][0]["seconds"][0].__setitem__(0, 0.0), "times are incomplete"),
        (lambda said: said["points"][0]["seconds"][0].__setitem__(0, -1.0), "times are incomplete"),
        (lambda said: said["setting"].pop("device"), "setting lacks 'device'"),
        (lambda said: said["setting"]["model"].update(name=3), "name should be a string, not 3"),
        (lambda said: said.pop("points"), "lacks 'points'"),
        (lambda said: said["points"][0]["tokens"].__setitem__(0, 10**400), "times are incomplete"),
        (lambda said: said["points"][0]["seconds"][0].__setitem__(0, 10**400), "should be a number"),
        (lambda said: said["how"].pop("clock"), "how lacks 'clock'"),
        (lambda said: said["how"].update(prompts="2"), "prompts should be a whole number, not '2'"),
        (lambda said: said["setting"].update(device=["cpu"]), "device should be a string, not a list"),
        (lambda said: said["setting"].update(threads="2"), "threads should be a whole number, not '2'"),
        (lambda said: said.update(created=None), "created should be a string, not null"),
        (lambda said: said.update(ended=3), "ended should be a string, not 3"),
        (lambda said: said.update(spent=float("inf")), "duration is no number"),
        (lambda said: said.update(worked="3"), "worked should be a number, not '3'"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path, change, words):
    path = made().save(tmp_path / "x.json")
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))
    with pytest.raises(TraceError, match=words) as caught:
        Calibration.open(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["points"][2].update(seconds=[]),
        lambda content: content["points"][2]["seconds"].pop(),
        lambda content: content["points"][2]["seconds"][1].append(None),
        lambda content: content["points"][2]["cycles"].append(3),
        lambda content: content["points"][2].update(tokens=[], cycles=[]),
        lambda content: content["points"][2]["seconds"][0].__setitem__(0, None),
        lambda content: content["how"].update(rounds=0),
    ],
)
def test_a_damaged_interrupted_one_is_refused_before_it_goes_on(tmp_path, change):
    unfinished = made()
    unfinished.fits = {}
    for point in unfinished.points:  # the first text of two was timed, in the first round of three
        point.tokens, point.cycles = point.tokens[:1], point.cycles[:1]
        point.seconds = [[1.0, None], [None, None], [None, None]]
    path = unfinished.save(tmp_path / "x.partial")
    assert Calibration.open(path) == unfinished
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(TraceError, match="times are incomplete"):
        Calibration.open(path)


def test_the_command_writes_out_what_a_file_holds(capsys):
    calibration = made(created="\x1b[31mnow", ended="\u202eit is slow")
    calibration.how["clock"] = "a\x07 clock"
    _show_calibration(calibration, new=False)
    out = capsys.readouterr().out
    assert "measured ⟨U+001B⟩[31mnow," in out and not UNSEEN.search(out)


def test_half_a_file_and_none(tmp_path):
    path = made().save(tmp_path / "x.json")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(TraceError, match="delete it and run specviz calibrate"):
        Calibration.open(path)
    with pytest.raises(TraceError, match="cannot read"):
        Calibration.open(tmp_path / "y.json")
    for name, words in (("a\0b", "cannot read"), ("~a\0b", "names a user that this system does not have")):
        with pytest.raises(TraceError, match=words):
            Calibration.open(name)


class TestStored:
    def test_only_where_everything_is_the_same(self, tmp_path):
        with pytest.raises(SpecvizError, match=r"not calibrated for town.*run: specviz calibrate unispec"):
            calibration.stored(SETTING, tmp_path)
        made().save(calibration.file(SETTING, tmp_path))
        assert calibration.stored(SETTING, tmp_path).g == 2
        for name, value, words in (
            ("device", "NVIDIA H100", r"for another device \(A processor, here NVIDIA H100\)"),
            ("dtype", "float16", "another number format"),
            ("threads", 1, r"another number of threads \(2, here 1\)"),
            ("versions", {"torch": "2.14"}, "other versions.*torch 2.13, here torch 2.14"),
            ("model", {"name": "town", "parameters": 6}, "another model.*parameters 5, here parameters 6"),
            ("parameters", {"depth": 4}, "depth 10, here depth 4"),
        ):
            with pytest.raises(SpecvizError, match=words) as caught:
                calibration.stored(SETTING | {name: value}, tmp_path)
            assert "\n" not in str(caught.value)
            assert "specviz calibrate" in str(caught.value)

    def test_a_file_that_was_renamed_is_not_believed(self, tmp_path):
        made("Another").save(calibration.file(SETTING, tmp_path))
        with pytest.raises(SpecvizError, match="is for another device"):
            calibration.stored(SETTING, tmp_path)

    def test_a_copy_of_the_same_setting_is_the_answer(self, tmp_path):
        """A folder that was copied by hand, or a name that another version gave."""
        made(created="2026-01-02").save(tmp_path / "newer.json")
        made(created="2026-01-01", g=4).save(tmp_path / "older.json")
        assert calibration.stored(SETTING, tmp_path).g == 2
        with pytest.raises(SpecvizError, match="is for another number of threads"):
            calibration.stored(SETTING | {"threads": 1}, tmp_path)

    def test_an_interrupted_one_is_no_answer(self, tmp_path):
        unfinished = made()
        unfinished.fits = {}
        with pytest.raises(SpecvizError, match="interrupted"):
            _ = unfinished.g
        unfinished.save(calibration.file(SETTING, tmp_path))
        with pytest.raises(SpecvizError, match="interrupted; run"):
            calibration.stored(SETTING, tmp_path)
        assert list(calibration.calibrations(tmp_path)) == []

    def test_where(self, tmp_path, monkeypatch):
        monkeypatch.setenv("SPECVIZ_CALIBRATIONS", str(tmp_path / "a"))
        assert calibration.folder() == tmp_path / "a"
        assert calibration.folder(tmp_path / "b") == tmp_path / "b"
        monkeypatch.delenv("SPECVIZ_CALIBRATIONS")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
        assert calibration.folder().name == "calibrations"
        hostile = SETTING | {"model": {"name": "../../x y"}}
        assert calibration.file(hostile, tmp_path).parent == tmp_path
