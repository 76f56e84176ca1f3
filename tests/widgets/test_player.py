"""The player's Python side: its messages, its settings, its refusals; the methods' pseudocode."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("anywidget", reason="needs the lab extra")

from benchmarks.front_end import LATER, first_size, sent_size, unpack
from traitlets import TraitError

import specviz as sv
from specviz.errors import ParameterError, TraceError
from specviz.view.static import Page
from specviz.widgets import assets
from specviz.widgets.columns import Chunks, columns, pack
from specviz.widgets.player import player
from specviz.widgets.stateful import Stateful
from traces import build


def test_a_small_trace_travels_whole():
    trace = build("bild", prompts=3)
    shown = sv.player(trace, prompts=[0, 2], cycle=2, predict=True)
    header, arrays = columns(trace, [0, 2])
    assert shown.data == pack(header, arrays)
    assert [p["prompt"] for p in unpack(shown.data)[0]["prompts"]] == [0, 2]
    assert unpack(shown.chunk)[0]["number"] == 0
    assert (shown.cycle, shown.predict, shown.phase) == (2, True, "commit")


def test_chunks_are_sent_when_wanted():
    trace = build("tree", prompts=9, tokens=40)
    shown = player(trace)
    assert len(Chunks(trace)) > 1
    shown.want = 1
    assert shown.chunk == pack(*Chunks(trace)[1])
    before = shown.chunk
    shown.want = 999  # values from a browser are not trusted
    assert shown.chunk == before


def test_a_state_that_is_none():
    trace = build()
    with pytest.raises(ParameterError, match="no 'cycles'; it has prompt, cycle"):
        player(trace, cycles=3)
    with pytest.raises(ParameterError, match="cannot start with these settings"):
        player(trace, phase="later")
    for name in ("data", "score"):
        with pytest.raises(ParameterError, match=f"no '{name}'"):
            player(trace, **{name: b""})
    wrongs = [{"prompt": 99}, {"prompt": -1}, {"cycle": 0, "prompt": 1}, {"cycle": -5}]
    wrongs += [{"cycle": len(trace.cycles)}, *({"speed": x} for x in (-1, 0, float("nan"), float("inf")))]
    for state in wrongs:
        with pytest.raises(ParameterError, match=r"cannot start with .*: (there is no|speed takes)"):
            player(trace, **state)
    two = player(build(prompts=2), cycle=1, prompt=1, speed=0.1)
    with pytest.raises(TraitError, match="no prompt 2: the player has 2"):
        two.prompt = 2
    assert (two.prompt, two.cycle) == (1, 1)
    two._lengths[0] = 1
    two.prompt = 0
    assert two.cycle == 0, "a cycle that the prompt does not have"


def test_several_runs_are_refused(tmp_path):
    build("bild", path=tmp_path / "a.parquet")
    build("tree", path=tmp_path / "b.parquet")
    with pytest.raises(TraceError, match="select"):
        player(sv.open(tmp_path))


def test_the_page_holds_every_run_and_no_address(tmp_path):
    build("bild", path=tmp_path / "t/a.parquet")
    build("tree", path=tmp_path / "t/b.parquet")
    page = sv.open(tmp_path / "t").to_html(tmp_path / "p.html").read_text(encoding="utf8")
    assert 'id="data-1"' in page and 'id="chunk-1-0"' in page
    assert "<noscript" not in page and "onerror=alert" not in page.replace("&quot;", '"').split("&lt;img")[0]
    body = page.replace("http://www.w3.org/2000/svg", "")
    assert "http://" not in body and "https://" not in body
    with pytest.raises(TraceError, match="exists"):
        sv.open(tmp_path / "t").to_html(tmp_path / "p.html")


def test_the_player_writes_the_page_that_it_shows(tmp_path):
    shown = player(build("tree", prompts=4), prompts=[1, 3], cycle=2, predict=True)
    page = shown.to_html(tmp_path / "p.html").read_text(encoding="utf8")
    (state,) = json.loads(page.split('id="views">')[1].split("</script>")[0])
    assert state["view"] == "player" and state["chunks"] == page.count('id="chunk-0-') >= 1
    assert state["numbers"] == [2, 4]
    still = page.partition('<details class="still"')[2]
    assert re.findall(r"Text (\d) of 4", still) == ["2", "4"], "a static picture of the same prompts"
    assert state["state"]["cycle"] == 2 and state["state"]["predict"] and state["state"]["want"] == 0


def test_whatever_has_to_html_has_a_page():
    def kinds(of):
        return [of, *(kind for each in of.__subclasses__() for kind in kinds(each))]

    made = set(kinds(Page)) - {Page, Stateful}
    assert len(made) >= 6
    assert not [kind.__name__ for kind in made if kind._page is Page._page]


def test_the_front_end_is_small_and_plain():
    folder = Path(sv.__file__).parent / "widgets"
    files = [*folder.glob("*.js"), *folder.glob("*.css")]
    assert first_size() < 190_000 and sent_size("player") < 120_000
    assert all(sent_size(name) < 40_000 for name in LATER)
    assert {*LATER, "player", "race", "explore"} <= {f.stem for f in files}
    words = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "@import", "url(h")
    for file in files:
        text = file.read_text(encoding="utf8")
        for word in words:
            assert word not in text, f"{file.name}: {word}"
    assert assets.script("player").endswith("export default { render };\n")


def test_methods_write_their_loop_down():
    pytest.importorskip("torch", reason="needs the run extra")
    from specviz import methods, schema

    phases = {"", "draft", "forward", "verify", "commit"}
    stops = {"length", "fallback", "unsure", "room", "none", "store", "budget", "window", "refresh", "tail"}
    words = {*schema.STATUSES, *schema.ORIGINS, *schema.ENDS, *stops}
    for name in methods.names():
        lines = methods.find(name).pseudocode
        assert 3 <= len(lines) <= 16, name
        for when, line in lines:
            phase, _, event = when.partition(":")
            assert phase in phases and (not event or event in words), f"{name}: {when}"
            assert len(line) <= 90


def test_pseudocode_is_checked_as_data(tmp_path):
    own = [["draft", "    guess <b>"], ["commit:bonus", "p/q"]]
    trace = build("tree", path=tmp_path / "a.parquet", pseudocode=own)
    assert sv.open(tmp_path / "a.parquet").run["pseudocode"] == own
    assert trace.redact().run["pseudocode"] == own
    assert columns(trace)[0]["run"]["pseudocode"] == own
    wrongs = ([["draft"]], [["draft", 3]], ["draft"], [["", "x" * 300]], [["", ""]] * 65)
    for i, wrong in enumerate(wrongs):
        with pytest.raises(TraceError, match="pseudocode"):
            build("tree", path=tmp_path / f"{i}.parquet", pseudocode=wrong)


@pytest.mark.parametrize("door", [sv.player, sv.whatif, sv.flicker])
def test_what_is_no_trace_is_told_how_to_become_one(door):
    with pytest.raises(TraceError, match=r"not str: open the file first, with specviz.open\('run.parquet'\)"):
        door("run.parquet")
    with pytest.raises(TraceError, match="not NoneType: one that generate or open gave"):
        door([None] if door is sv.flicker else None)
