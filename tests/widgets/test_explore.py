"""The explorer's logic without a browser, on a decode that is only pretended."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest

from specviz.errors import ParameterError, SpecvizError, TraceError
from specviz.methods.base import Parameter
from specviz.widgets import explore
from specviz.widgets.explore import Explorer, positions, slider
from traces import build

PARAMETERS = (
    Parameter("length", 4, 1, 64, "tokens", "Tokens drafted in a cycle.", "γ"),
    Parameter("rollback", 2.0, 0, None, "nats", "Taken back above this.", "α"),
    Parameter("review", False, meaning="Whether it looks twice."),
    Parameter("order", "best", choices=("best", "first"), meaning="Which comes first."),
)


@dataclass
class Cycle:
    tokens: list[int]
    keep: int | None = None


@dataclass
class Run:
    """What `specviz.stream` gives, as far as the explorer may know it."""

    method: str
    values: dict
    cycles: int = 6
    gate: threading.Event | None = None
    fails: Exception | None = None
    trace: object = None
    closed: bool = False
    began: threading.Event = field(default_factory=threading.Event)

    def __iter__(self):
        for i in range(self.cycles):
            yield Cycle([2, 3], 2 * i)
            self.began.set()
            if self.gate is not None:
                assert self.gate.wait(20)
            if self.closed:
                return
            if self.fails:
                raise self.fails
        self.trace = build(self.method)

    def close(self):
        self.closed = True
        self.trace = build(self.method)
        self.trace._stores[0].run["complete"] = False


class Decode:
    """Hands out pretended runs and remembers them."""

    def __init__(self, **how):
        self.how, self.runs = how, []

    def __call__(self, method, **values):
        self.runs.append(Run(method, values, **self.how))
        return self.runs[-1]


def call(**values):
    return "generate(method='speculative', " + ", ".join(f"{k}={v!r}" for k, v in values.items()) + ")"


def explorer(decode=None, **more):
    return Explorer("speculative", PARAMETERS, decode or Decode(), call, 64, **more)


def test_controls_are_the_declared_parameters():
    panel = explorer().panel
    length, rollback, review, order = panel.parameters
    assert (length["low"], length["high"], length["step"], length["open"]) == (1, 64, 1, False)
    assert (length["unit"], length["symbol"]) == ("tokens", "γ") and length["meaning"].startswith("Tokens")
    assert rollback["low"] == 0 and rollback["high"] >= 8 and rollback["open"]
    assert review["kind"] == "bool" and order["choices"] == ["best", "first"]
    assert panel.values == {"length": 4, "rollback": 2.0, "review": False, "order": "best"}


def test_a_slider_without_bounds_still_holds_its_default():
    for default in (0.0, -3.0, 5.0):
        control = slider(Parameter("x", default))
        assert control["low"] <= default <= control["high"] and control["open"]


def test_the_code_line_evaluates_to_the_same_settings():
    one = explorer(values={"length": 7})
    one.set(rollback=3.5, review=True)
    seen = {}
    eval(one.code, {"generate": lambda **given: seen.update(given)})
    assert seen == {"method": "speculative"} | one.values
    assert one.values == {"length": 7, "rollback": 3.5, "review": True, "order": "best"}
    assert one.panel.code == one.code


def test_illegal_settings_are_one_line():
    one = explorer()
    with pytest.raises(ParameterError, match="length must lie in"):
        one.set(length=99)
    with pytest.raises(ParameterError, match="no parameter 'gamma'"):
        one.set(gamma=1)
    one.panel.values = one.panel.values | {"length": 99}  # what a browser could send
    assert "length must lie in [1, 64]" in one.panel.error and "\n" not in one.panel.error
    one.run()
    assert one.panel.state == "idle" and not one.results
    one.panel.values = one.panel.values | {"length": 9}
    assert one.panel.error == ""


def test_a_decode_is_followed_and_becomes_a_row():
    decode = Decode()
    one = explorer(decode, show=lambda ids: "x" * len(ids))
    told = []
    one.panel.observe(lambda change: told.append(change["new"]), names="progress")
    one.set(length=5)
    one.run()
    assert one.wait(20)
    assert one.panel.state == "done" and one.panel.error == ""
    assert decode.runs[0].values == one.values
    assert told[0]["tokens"] == 0 and told[-1]["tokens"] == 12 and told[-1]["cycles"] == 6
    assert told[-1]["text"] == "x" * 12 and told[-1]["limit"] == 64
    (row,) = one.panel.rows
    assert row["length"] == 5 and row["run"] == 1 and row["complete"] and row["speedup"] is None
    trace = build("speculative")
    assert row["target_passes"] == len(trace.cycles) - 1
    one.run("autoregressive")
    assert one.wait(20)
    assert decode.runs[1].method == "autoregressive" and decode.runs[1].values == {}
    first, second = one.panel.rows
    assert second["speedup"] == 1 and first["speedup"] == pytest.approx(
        first["tokens_per_second"] / second["tokens_per_second"]
    )
    assert one.table["method"].tolist() == ["speculative", "autoregressive"]


def test_two_decodes_never_run_at_once():
    gate = threading.Event()
    decode = Decode(gate=gate)
    one, other = explorer(decode), explorer(decode)
    one.run()
    try:
        one.run()
        assert "A decode is running" in one.panel.error
        other.run()
        assert "A decode is running" in other.panel.error and other.panel.state == "idle"
    finally:
        gate.set()
    assert one.wait(20)
    assert len(decode.runs) == 1 and len(one.results) == 1
    other.run()
    assert other.wait(20) and len(other.results) == 1


def test_cancel_keeps_the_trace_so_far():
    gate = threading.Event()
    decode = Decode(gate=gate, cycles=1000)
    one = explorer(decode)
    one.run()
    assert decode.runs[0].began.wait(20) if decode.runs else True
    one.cancel()
    gate.set()
    assert one.wait(20)
    assert decode.runs[0].closed and one.panel.state == "cancelled"
    (row,) = one.panel.rows
    assert row["complete"] is False and one.panel.progress["cycles"] < 1000


def test_an_error_in_the_decode_is_one_line():
    one = explorer(Decode(fails=SpecvizError("the prompt is too long:\n shorten it")))
    one.run()
    assert one.wait(20)
    assert one.panel.state == "error" and one.panel.error == "the prompt is too long: shorten it"
    one = explorer(Decode(fails=ZeroDivisionError("division by zero")))
    one.run()
    assert one.wait(20)
    assert one.panel.error == "ZeroDivisionError: division by zero"
    one = explorer(lambda method, **values: 1 / 0)
    one.run()
    assert one.wait(20) and one.panel.error == "ZeroDivisionError: division by zero"
    one._decode = Decode()
    one.run()  # the lock was given back
    assert one.wait(20) and one.panel.state == "done"


def test_buttons_are_messages():
    decode = Decode()
    one = explorer(decode)
    one._on_message(one.panel, {"do": "run"}, [])
    assert one.wait(20) and len(one.results) == 1
    one.set(length=11)
    one._on_message(one.panel, {"do": "use", "run": 1}, [])
    assert one.values["length"] == 4
    for bad in ({"do": "play", "run": 9}, {"do": "explode"}, {}):
        one._on_message(one.panel, bad, [])
        assert one.panel.error and "\n" not in one.panel.error
    with pytest.raises(TraceError, match="there are 1 to 1"):
        one.play(5)


def test_a_moved_slider_is_answered_from_the_last_result():
    real = (
        Parameter("fallback", 0.6, 0, 1),
        Parameter("rollback", 2.0, 0, None),
        Parameter("cap", 10, 1, 64),
    )
    real += (Parameter("extra", 1, 0, 9),)

    class Own(Run):
        def __iter__(self):
            yield from super().__iter__()
            self.trace = build("bild", hostile=False)

    one = Explorer("bild", real, lambda method, **values: Own(method, values), call, 64)
    assert one.panel.answer == {} and one.panel.badges == {}
    one.run()
    assert one.wait(20) and one.panel.error == ""
    assert one.panel.badges["fallback"]["badge"] == "exact"
    assert one.panel.badges["extra"]["badge"] == "needs a rerun"
    assert one.panel.answer["run"] == 1 and one.panel.answer["badge"] == ""
    one.set(extra=2)
    assert one.panel.answer["badge"] == "needs a rerun" and one.panel.answer["why"]
    one.set(extra=1, fallback=0.0)
    told = one.panel.answer
    assert told["words"] == "fallback = 0.0" and told["badge"] in ("exact", "needs a rerun") and told["why"]
    assert len(one.results) == 1, "nothing was decoded"


def test_a_drag_finds_in_its_table_what_python_answers(monkeypatch):
    real = (
        Parameter("fallback", 0.6, 0, 1),
        Parameter("rollback", 2.0, 0, None),
        Parameter("cap", 10, 1, 64),
    )

    class Own(Run):
        def __iter__(self):
            yield from super().__iter__()
            self.trace = build("bild", hostile=False)

    one = Explorer("bild", real, lambda method, **values: Own(method, values), call, 64)
    one._on_message(one.panel, {"do": "tabulate", "name": "cap"}, [])  # nothing has run: the code alone
    assert one.panel.lookup["entries"][6]["code"] == call(fallback=0.6, rollback=2.0, cap=7)
    assert one.panel.lookup["entries"][6]["answer"] == {}
    one.run()
    assert one.wait(20) and one.panel.lookup == {}, "a new result makes the table stale"
    for name in ("cap", "fallback"):
        one._on_message(one.panel, {"do": "tabulate", "name": name}, [])
        found, places = one.panel.lookup, positions(slider(one._parameters[name]))
        assert found["name"] == name and name not in found["fixed"] and len(found["entries"]) == len(places)
        for k in (0, len(places) // 2, len(places) - 1):
            one.set(**{name: places[k]})
            assert found["entries"][k]["answer"] == one.panel.answer
            assert found["entries"][k]["code"] == one.panel.code
    one.set(cap=10, fallback=0.6)
    monkeypatch.setattr(explore, "TABLE", -1.0)  # no time at all
    one._tabulate("cap")
    assert one.panel.lookup["entries"] == [None] * 64
    one._on_message(one.panel, {"do": "tabulate", "name": "gamma"}, [])
    assert one.panel.error and "\n" not in one.panel.error


def test_a_slider_stands_where_the_browser_says():
    assert positions(slider(Parameter("cap", 10, 1, 4))) == [1, 2, 3, 4]
    found = positions(slider(Parameter("fallback", 0.6, 0, 1)))
    assert len(found) == 101 and found[7] == 0.07 and found[-1] == 1.0


def test_an_answer_says_its_numbers_and_bounds(monkeypatch):
    import pandas as pd

    class Question:
        def can_answer(self, name):
            return "bounded", "why"

        def ask(self, **values):
            row = {
                "cycles": 9,
                "tau": 2.5,
                "A/D": 0.5,
                "A/D_lo": 0.4,
                "A/D_hi": 0.6,
                "drafted": 20,
                "badge": "bounded",
            }
            return type("Answer", (), {"table": pd.DataFrame([row | values]), "why": "because"})

    told = explore._answer_words(Question(), {"stop": 0.4}, ["stop"])
    assert told == {
        "badge": "bounded",
        "why": "because",
        "text": "9 cycles, τ 2.50, A/D 0.50 [0.4, 0.6], 20 drafted",
    }


def test_a_result_opens_in_the_player_and_all_of_them_race():
    one = explorer()
    one.panel.theme = "dark"
    for method in (None, "autoregressive"):
        one.run(method)
        assert one.wait(20)
    one._on_message(one.panel, {"do": "play", "run": 1}, [])
    assert one.panel.error == "" and one.panel.chosen == 1
    assert type(one.children[1]).__name__ == "Player" and one.children[1].theme == "dark"
    one._on_message(one.panel, {"do": "race"}, [])
    assert one.panel.error == "" and one.panel.chosen == 0
    assert [lane.method for lane in one.children[1].fields[0].lanes] == ["speculative", "autoregressive"]
