"""The live widget's logic without a browser, on a fake decode."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("anywidget", reason="needs the lab extra")

import specviz as sv
from specviz.errors import ParameterError, PromptError
from specviz.widgets.job import decoding
from specviz.widgets.live import Interpreter

SETTINGS = {"mode": "ssbd", "beta": 0.2, "k": 1, "target_language": "German"}


class Run:
    """A stand-in for the run of `specviz.stream`, as far as the widget uses it: the source in capitals."""

    def __init__(self, stream, values, gate, fails):
        self.stream, self.values, self.gate, self.fails = stream, values, gate, fails
        self.recorder = SimpleNamespace(run={"exactness": "lossy"})
        self.trace, self.sources = None, []

    def __iter__(self):
        for number, update in enumerate(self.stream):
            if self.gate is not None:
                assert self.gate.wait(20)
            if self.fails:
                raise self.fails
            self.sources.append(update.text)
            tokens = [*map(ord, update.text.upper()), 0]
            yield SimpleNamespace(
                number=0, prompt=0, update=number, tokens=tokens, status=["accepted", "rejected"], end="eos",
                shown=len(tokens) - 1 - (0 if update.last else self.values["k"]), source=update.text,
                arrival=update.time, context=9, reused=min(number, 4),
            )  # fmt: skip
        self.trace = SimpleNamespace(cycles=self.sources)


def interpreter(gate=None, fails=None, **more):
    runs = []

    def decode(stream, **values):
        runs.append(Run(stream, values, gate, fails))
        return runs[-1]

    show = lambda ids: "".join(map(chr, ids))
    one = Interpreter(decode, show, SETTINGS | more, ["rt", "ssbd", "cd"], ["German", "Chinese"], "live")
    return one, runs


def until(true):
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_what_is_typed_is_shown():
    one, runs = interpreter()
    one.source = "one two"
    until(lambda: one.shown.get("source") == "one two")
    assert one.shown == {"kept": "", "new": "ONE TW", "erased": "", "hidden": 1, "source": "one two"}
    one.source = "one ten "
    until(lambda: one.shown.get("source") == "one ten")
    assert (one.shown["kept"], one.shown["new"], one.shown["erased"]) == ("ONE ", "TE", "TW")
    figures = one.figures
    assert (figures["erased"], figures["all_erased"], figures["updates"]) == (1, 1, 2)
    assert (figures["all_drafted"], figures["all_accepted"], figures["reused"], figures["prompt"]) == (
        4,
        2,
        1,
        9,
    )
    assert figures["exactness"] == "lossy" and figures["ms"] is None
    one.finish()
    assert one.wait(20) and one.shown["new"] == "N" and one.shown["hidden"] == 0
    assert len(runs) == len(one.traces) == 1 and runs[0].values == SETTINGS
    one.source = "more"
    until(lambda: len(runs) == 2 and one.shown.get("source") == "more")


def test_half_a_character_is_refused_beneath_the_box():
    one, runs = interpreter()
    one.source = "one \ud83d"
    assert one.error == "an update's text holds half a character (a lone surrogate)"
    one.source = "one \U0001f600"
    assert one.error == "", "the text is good now"
    until(lambda: one.shown.get("source") == "one \U0001f600")
    one.source = "one \U0001f600 \ud83d"
    assert one.error
    one.source = "one \U0001f600 "
    assert one.error == "", "the text is good again, and was sent before"
    one.finish()
    assert one.wait(20) and len(runs) == 1


def test_typing_does_not_wait_and_the_newest_text_wins():
    gate = threading.Event()
    one, runs = interpreter(gate)
    begun = time.monotonic()
    for text in ("a", "a b", "a b c", "a b c d"):
        one.source = text
    assert time.monotonic() - begun < 5 and one.shown == {}
    gate.set()
    until(lambda: one.shown.get("source") == "a b c d")
    assert runs[0].sources[-1] == "a b c d" and len(runs[0].sources) <= 2
    assert one.figures["skipped"] >= 2
    one.source = "a b c d  "
    time.sleep(0.1)
    assert runs[0].sources.count("a b c d") == 1, "a space is nothing new"
    one._on_message(one, {"do": "finish"}, [])
    assert one.wait(20) and runs[0].sources.count("a b c d") == 2, "once more as the last"


def test_it_waits_for_another_decode_and_drops_what_was_left_meanwhile():
    one, runs = interpreter()
    with decoding:
        one.source = "now"
        until(lambda: runs and one.waiting)
        one.close()
        assert not runs[0].sources
    until(lambda: not one._thread.is_alive())
    assert not runs[0].sources and not one.waiting, "it was left while it waited"
    other, runs = interpreter()
    other.source = "later"
    until(lambda: runs and runs[0].sources == ["later"])
    assert not other.waiting and decoding.acquire(timeout=20), "between two updates other decodes may run"
    decoding.release()
    other.close()


def test_a_setting_begins_anew_and_the_old_run_is_left():
    one, runs = interpreter()
    one.source = "a b"
    until(lambda: one.shown)
    one.beta = 0.5
    until(lambda: len(runs) == 2 and runs[1].sources == ["a b"])
    assert runs[1].values == SETTINGS | {"beta": 0.5} and runs[0].sources == ["a b"], "no last update for it"
    one.source = ""
    until(lambda: len(one.traces) == 2)
    assert one.shown == {} and one.figures == {} and one.wait(20)
    with pytest.raises(Exception, match="beta"):
        one.beta = 1.5
    one.close()


def test_an_error_is_one_line_and_the_next_text_a_new_try():
    one, runs = interpreter(fails=PromptError("no\nroom"))
    one.source = "a"
    until(lambda: one.error)
    assert one.error == "no room" and one.wait(20)
    one.source = "a b"
    until(lambda: len(runs) == 2)
    strange, _ = interpreter(fails=KeyError("x"))
    strange.source = "a"
    until(lambda: strange.error)
    assert strange.error == "KeyError: 'x'"
    assert strange.wait(20)
    strange.source = ""
    assert strange.error == ""


def test_the_door_decodes():
    one = sv.live("town", beta=0.3, k=1, max_new_tokens=24)
    assert (one.beta, one.k, one.mode, one.target_language) == (0.3, 1, "ssbd", "German")
    assert one.languages == ["German", "Chinese", "Japanese", "Control"] and one.modes == ["rt", "ssbd", "cd"]
    assert "a widget, drawn by a notebook" in repr(one) and "\n" not in repr(one), "what a script prints"
    one.source = "Tom reads"
    until(lambda: one.shown)
    one.source = "Tom reads a book."
    until(lambda: one.shown["source"] == "Tom reads a book.")
    assert one.figures["reused"] > 5 and one.figures["ms"] > 0 and one.figures["drafted"] > 0
    one.finish()
    assert one.wait(20)
    trace = one.traces[0]
    assert trace.run["parameters"]["beta"] == 0.3 and trace.run["complete"] and one.shown["hidden"] == 0
    one.source = "Tom " * 3000
    until(lambda: one.error)
    assert "leaves no room" in one.error and "\n" not in one.error


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"betta": 1}, "live takes no 'betta'; did you mean beta"),
        ({"beta": 1.5}, "beta must lie in [0, 1]"),
        ({"k": -1}, "k must be at least 0"),
        ({"template": "no slot"}, "{source}"),
        ({"out": "x"}, "live takes no 'out'"),
    ],
)
def test_the_door_refuses_in_one_line(options, line):
    with pytest.raises(ParameterError) as raised:
        sv.live("town", **options)
    assert line in str(raised.value) and "\n" not in str(raised.value)
