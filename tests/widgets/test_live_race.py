"""The live race's logic without a browser, on fake decodes."""

from __future__ import annotations

import threading

import pytest
from pretended import Decoder, Run

import specviz
from specviz.errors import ParameterError, SpecvizError
from specviz.widgets.live_race import LiveRace

METHODS = ["autoregressive", "speculative"]


class Clocked(Decoder):
    """A decoder in which a speculative run's cycles take three times as long as an autoregressive run's."""

    def start(self, model, text, method, values, *, dense=False):
        run = super().start(model, text, method, values)
        run.clock = type("Clock", (), {"seconds": lambda self, first, last: [last[0] - first[0]]})()
        length = 3.0 if run.name == "speculative" else 1.0
        inner = run._going

        def marked():
            for cycle in inner:
                cycle.marks = [0.0, length]
                yield cycle

        run._going = marked()
        return run


def contest(decoder=None, methods=METHODS):
    return LiveRace(decoder or Clocked(), "town", "Who is here?", methods)


def test_the_one_whose_clock_is_behind_has_the_next_turn():
    one = contest(Clocked(cycles=8))
    one.run()
    assert one.wait(20) and one.panel.state == "done" and one.panel.error == ""
    clocks, ends = {0: 0.0, 1: 0.0}, {0: 9.0, 1: 27.0}
    for cycle in one.panel.shown:
        other = 1 - cycle["lane"]
        assert clocks[cycle["lane"]] == min(clocks.values()) or clocks[other] == ends[other]
        clocks[cycle["lane"]] = cycle["seconds"]
    assert clocks == {0: 9.0, 1: 27.0}, "a clock counts its own cycles alone"
    assert [trace.run["method"] for trace in one.traces] == METHODS
    assert [type(child).__name__ for child in one.children] == ["RacePanel", "Race"]
    assert [row["ended"] for row in one.panel.finishes] == [True, True]
    assert one.panel.over == [0, 1]
    assert one.panel.finishes[0]["speedup"] == 1
    seen = []
    one.panel.observe(lambda change: seen.append((change["new"], len(one.panel.shown))), "state")
    one.run()
    assert one.wait(20) and seen[0] == ("waiting", 0), "a view that opens now shows no old text"


def test_a_stopped_race_keeps_what_was_decoded():
    gate = threading.Event()
    decoder = Clocked(gate=gate, cycles=1000)
    one = contest(decoder)
    one._on_message(one.panel, {"do": "open"}, [])
    assert decoder.started.wait(20)
    one._on_message(one.panel, {"do": "stop"}, [])
    gate.set()
    assert one.wait(20) and one.panel.state == "stopped" and one.panel.error == ""
    assert all(run.closed for run in decoder.runs)


def test_a_view_that_opens_during_a_race_is_sent_the_texts_so_far():
    gate = threading.Event()
    one = contest(Clocked(gate=gate, cycles=8))
    sent = []
    arrived = threading.Event()
    one.panel.send = lambda message, buffers=None: (sent.extend(message["cycles"]), arrived.set())
    one.run()
    try:
        assert arrived.wait(20) and one.panel.shown == []
        one._on_message(one.panel, {"do": "open"}, [])
        assert one.panel.shown == sent[: len(one.panel.shown)] != []
    finally:
        gate.set()
    assert one.wait(20) and one.panel.shown == sent


def test_entrants_are_two_or_three_that_differ():
    for methods, words in (
        (["bild"], "two or three methods, got 1"),
        ([*METHODS, "bild", "eagle"], "two or three methods, got 4"),
        (["bild", "bild"], "one is listed twice"),
    ):
        with pytest.raises(ParameterError, match=words):
            contest(methods=methods)
    one = contest()
    one._on_message(one.panel, {"do": "run", "prompt": "Go.", "entrants": ["bild"]}, [])
    assert "two or three methods" in one.panel.error and one.panel.state == "idle"
    one._on_message(one.panel, {"do": "run", "prompt": "Go.", "entrants": ["oracle:file=/etc", "bild"]}, [])
    assert "method 'oracle:file=/etc' is not in the list" in one.panel.error and not one.traces
    one._on_message(one.panel, {"do": "run", "prompt": "Go.", "entrants": ["speculative", "bild"]}, [])
    assert one.wait(20) and one.panel.error == "" and one.panel.entrants == ["speculative", "bild"]


def test_an_error_is_one_line():
    one = contest(Clocked(fails=SpecvizError("no room:\n shorten it")))
    one.run()
    assert one.wait(20) and one.panel.state == "error" and one.panel.error == "no room: shorten it"
    one._on_message(one.panel, {"do": "run", "prompt": " ", "entrants": METHODS}, [])
    assert one.wait(20) and one.panel.error.startswith("the prompt is empty")


def test_recorded_runs_and_live_ones_take_their_own_arguments():
    trace = specviz.open(specviz.example("unispec"))
    for given, words in (
        ({"traces": [trace], "live": True}, "pass model, prompt and methods, not traces"),
        ({}, "race takes traces, or live=True"),
        ({"traces": [trace], "model": "town"}, "are only for live=True"),
    ):
        with pytest.raises(ParameterError, match=words):
            specviz.race(**given)


def test_a_pretended_run_ends_as_a_run_does():
    run = Run("speculative", {}, cycles=1)
    assert len(list(run)) == 2 and run.trace is not None


def test_a_race_keeps_the_names_it_began_with():
    gate = threading.Event()
    one = contest(Clocked(gate=gate))
    one.run()
    one.panel.entrants = ["bild", "autoregressive", "speculative"]  # while it runs
    gate.set()
    assert one.wait(20) and one.panel.error == ""
    (field,) = one.children[1].fields
    assert one.panel.lanes == [lane.name for lane in field.lanes] == METHODS
    one.run()
    assert one.wait(20) and one.panel.lanes == one.panel.entrants


def test_a_race_that_is_closed_or_fails_leaves_nothing():
    gate = threading.Event()
    decoder = Clocked(gate=gate)
    one = contest(decoder)
    one.run()
    assert decoder.started.wait(20) and decoder.runs[0].began.wait(20)
    one.close()
    gate.set()
    assert one.wait(20) and len(one.children) == 1, "nobody would close the recorded race"
    decoder = Clocked()
    other = contest(decoder)
    other.run()
    assert other.wait(20) and len(other.traces) == 2
    decoder.how["fails"] = SpecvizError("no room")
    other.run()
    assert other.wait(20) and other.panel.state == "error" and other.traces == []
