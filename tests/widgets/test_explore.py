"""The explorer's logic without a browser, on a fake decode."""

from __future__ import annotations

import threading

import pytest
from pretended import PARAMETERS, Decoder

import specviz
from specviz.errors import ParameterError, SpecvizError, TraceError
from specviz.methods.base import Parameter
from specviz.rules.gap import CM_ASD
from specviz.widgets import explore
from specviz.widgets.explore import Explorer, positions, slider
from specviz.widgets.job import Job, decoding
from traces import build


def explorer(decoder=None, method="speculative", **more):
    return Explorer(decoder or Decoder(), "town", method, "Who is here?", **more)


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
    gamma = slider(next(p for p in CM_ASD if p.name == "gamma"))
    assert (gamma["high"], gamma["open"]) == (10, True)  # its own limit only keeps it finite


def test_the_code_line_evaluates_to_the_same_settings():
    one = explorer(values={"length": 7})
    one.set(rollback=3.5, review=True)
    seen = {}
    eval(one.code, {"generate": lambda model, text, method, **values: seen.update(values)})
    assert seen == one.values == {"length": 7, "rollback": 3.5, "review": True, "order": "best"}
    assert one.panel.code == one.code
    one.panel.prompt = "What now?"
    assert "'What now?'" in one.panel.code


def test_the_code_line_has_only_what_was_set():
    """A default that is not passed may follow the drafter or a template."""
    one = specviz.explore("eagle", "town", "Hello", tree="static", depth=2)
    assert "method='eagle', draft='town-eagle', tree='static', depth=2)" in one.code


def test_a_row_has_the_settings_that_the_run_had():
    made, own = build("bild", hostile=False), {p.name: p.default for p in PARAMETERS} | {"length": 2}
    made._stores[0].run["parameters"] = made.run["parameters"] | own
    one = explorer(Decoder(made=made), "bild")
    one.run()
    assert one.wait(20) and one.panel.error == ""
    (row,) = one.panel.rows
    assert (row["length"], row["order"]) == (2, "best")
    assert one.panel.answer["words"] == "", "no setting was moved"
    one.panel.method = "speculative"
    one.run("bild")  # with what it declares, which may be more than the panel offers
    assert one.wait(20)
    one._on_message(one.panel, {"do": "use", "run": 2}, [])
    assert one.panel.error == "" and one.values["length"] == 2


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
    decoder = Decoder(made=build("speculative", parameters={"length": 5}))
    one = explorer(decoder)
    sent, states = [], []
    one.panel.send = lambda message, buffers=None: sent.append(message)
    one.panel.observe(lambda change: states.append(change["new"]), names="state")
    one.set(length=5)
    one.run()
    assert one.wait(20)
    assert states == ["waiting", "loading", "running", "done"] and one.panel.error == ""
    assert decoder.runs[0].values == one.values
    cycles = [cycle for message in sent for cycle in message["cycles"]]
    assert cycles == one.panel.shown and [c["cycle"] for c in cycles] == list(range(7))
    assert {"keep": 2, "tokens": [(" two", 1), (" three", 4)]}.items() <= cycles[2].items()
    assert cycles[1]["dropped"] == "<img src=x onerror=alert(1)>\n"
    (row,) = one.panel.rows
    assert row["length"] == 5 and row["run"] == 1 and row["complete"] and row["speedup"] is None
    trace = build("speculative")
    assert row["target_passes"] == len(trace.cycles) - 1
    decoder.how.clear()
    one.run("autoregressive")
    assert one.wait(20)
    assert decoder.runs[1].name == "autoregressive" and decoder.runs[1].values == {}
    first, second = one.panel.rows
    assert second["speedup"] == 1 and first["speedup"] == pytest.approx(
        first["tokens_per_second"] / second["tokens_per_second"]
    )
    assert one.table["method"].tolist() == ["speculative", "autoregressive"]


def test_two_decodes_never_run_at_once():
    gate = threading.Event()
    decoder = Decoder(gate=gate)
    one, other = explorer(decoder), explorer(decoder)
    one.run()
    try:
        one.run()
        assert "A decode is running" in one.panel.error
        other.run()
        assert not other.wait(0.2) and other.panel.state == "waiting"  # waiting for its turn
        other.stop()
        assert other.wait(20) and other.panel.state == "idle" and not other.results
        other.run()
    finally:
        gate.set()
    assert one.wait(20) and other.wait(20)
    assert len(decoder.runs) == 2 and len(one.results) == len(other.results) == 1


def test_a_notebook_that_shows_it_starts_a_decode_once():
    decoder = Decoder()
    one = explorer(decoder)
    for _ in range(2):  # two views of one explorer
        one._on_message(one.panel, {"do": "open"}, [])
    assert one.wait(20) and len(decoder.runs) == 1


def test_what_is_chosen_anew_brings_its_controls():
    one = explorer(values={"length": 9})
    one.panel.method = "autoregressive"
    assert one.panel.parameters == [] and one.panel.values == {} and "autoregressive" in one.panel.code
    one.panel.method = "speculative"
    assert one.values["length"] == 9, "as it was left"
    one.panel.prompt = "What is 1 + 1?"
    one.panel.model = "other"
    assert one.panel.prompt == "Who is other?" and "'other'" in one.panel.code
    one.panel.prompt = "my own"
    one.panel.model = "town"
    assert one.panel.prompt == "my own", "what was typed stays"
    one.panel.model = "/etc"
    one.run()
    assert one.panel.error == "There is no such model in the list." and not one.results
    one._on_message(one.panel, {"do": "live"}, [])
    assert "There is no such model in the list." in one.panel.error and len(one.children) == 1
    with pytest.raises(ParameterError, match="no such model"):
        one.contest()


def test_a_page_names_no_file_to_read(tmp_path):
    """Its text would otherwise be drafted, and so shown in the page."""
    file = tmp_path / "secret.txt"
    file.write_text("secret")
    one = specviz.explore("spectra", "town", "Hello")
    assert "datastore" not in [p["name"] for p in one.panel.parameters] + list(one.panel.values)
    one.panel.values = one.panel.values | {"datastore": str(file)}  # what a browser could send
    assert "spectra has no parameter 'datastore'" in one.panel.error
    one.run()
    assert one.panel.state == "idle" and not one.results
    for method, name in (
        ("spectra", "datastore"), ("eagle", "template"), ("token_recycling", "template"),
    ):  # fmt: skip
        assert name not in specviz.explore(method, "town", "Hello").panel.values
        with pytest.raises(ParameterError, match=f"explore reads no files: drop {name}"):
            specviz.explore(method, "town", "Hello", **{name: str(file)})


def test_options_of_a_decode_are_checked_first():
    with pytest.raises(ParameterError, match="max_new_tokens"):
        specviz.explore("prompt_lookup", "town", "Hello", max_new_tokens="abc")


def test_results_are_compared_within_their_task():
    decoder = Decoder()
    one = explorer(decoder)
    for method, prompts in (("autoregressive", 1), (None, 1), (None, 2)):
        decoder.how["made"] = build(method or "speculative", prompts=prompts)
        one.run(method)
        assert one.wait(20) and one.panel.error == ""
    assert [row["speedup"] is not None for row in one.panel.rows] == [True, True, False]
    with pytest.raises(TraceError, match="at least two runs"):
        one.race()
    one.race([1, 2])
    assert one.panel.chosen == 0


def test_stopping_keeps_the_trace_so_far():
    gate = threading.Event()
    decoder = Decoder(gate=gate, cycles=1000)
    one = explorer(decoder)
    one.run()
    assert decoder.started.wait(20) and decoder.runs[0].began.wait(20)
    one._on_message(one.panel, {"do": "stop"}, [])
    gate.set()
    assert one.wait(20)
    assert decoder.runs[0].closed and one.panel.state == "stopped"
    (row,) = one.panel.rows
    assert row["complete"] is False and 0 < len(one.panel.shown) < 1000


def test_a_result_is_saved_as_a_trace(tmp_path):
    import specviz

    one = explorer()
    one.run()
    assert one.wait(20)
    sent = []
    one.panel.send = lambda message, buffers: sent.append((message, buffers))
    one._on_message(one.panel, {"do": "save", "run": 1}, [])
    ((message, (data,)),) = sent
    assert message == {"do": "file", "name": "speculative-1.parquet"}
    (tmp_path / message["name"]).write_bytes(data)
    assert specviz.open(tmp_path / message["name"]).text == one.results[0].trace.text
    one.keep = lambda name, trace: f"{name}: {trace.text}"  # as in the app, which stores traces itself
    one._on_message(one.panel, {"do": "save", "run": 1}, [])
    assert len(sent) == 1
    assert one.panel.note == f"speculative-1.parquet: {one.results[0].trace.text}"


def test_an_error_in_the_decode_is_one_line():
    one = explorer(Decoder(fails=SpecvizError("the prompt is too long:\n shorten it")))
    one.run()
    assert one.wait(20)
    assert one.panel.state == "error" and one.panel.error == "the prompt is too long: shorten it"
    one = explorer(Decoder(fails=ZeroDivisionError("division by zero")))
    one.run()
    assert one.wait(20)
    assert one.panel.error == "ZeroDivisionError: division by zero"
    one = explorer()
    one._on_message(one.panel, {"do": "run", "prompt": "  "}, [])
    assert one.wait(20) and one.panel.error == "the prompt is empty; give at least one token"
    one._on_message(one.panel, {"do": "run", "prompt": "Go on."}, [])  # its turn was released
    assert one.wait(20) and one.panel.state == "done" and one.panel.error == ""


def test_a_view_that_opens_during_a_decode_shows_no_old_text():
    one, seen = explorer(), []
    for _ in range(2):
        one.panel.observe(lambda change: seen.append((change["new"], len(one.panel.shown))), "state")
        one.run()
        assert one.wait(20)
        one.panel.unobserve_all("state")
    assert seen[-1] == ("done", 7) and all(not n for state, n in seen if state in ("waiting", "loading"))


def test_a_view_that_opens_during_a_decode_is_sent_the_text_so_far():
    gate = threading.Event()
    one, sent, arrived = explorer(Decoder(gate=gate)), [], threading.Event()
    one.panel.send = lambda message, buffers=None: (sent.extend(message["cycles"]), arrived.set())
    one._on_message(one.panel, {"do": "run"}, [])
    try:
        assert arrived.wait(20) and one.panel.shown == []
        one._on_message(one.panel, {"do": "open"}, [])
        assert one.panel.state == "running" and one.panel.shown == sent[: len(one.panel.shown)] != []
    finally:
        gate.set()
    assert one.wait(20) and one.panel.shown == sent


def test_a_bad_value_that_is_typed_during_a_decode_is_named_and_the_decode_is_done():
    gate = threading.Event()
    decoder = Decoder(gate=gate)
    one = explorer(decoder)
    one.run()
    try:
        assert decoder.started.wait(20)
        one.panel.values = one.panel.values | {"length": 999}
        error = one.panel.error
    finally:
        gate.set()
    assert one.wait(20) and len(one.panel.rows) == 1
    assert one.panel.state == "done" and one.panel.error == error != ""
    one.set(length=5)
    assert one.panel.error == "" and one.panel.answer["words"] == "length = 5"


def test_buttons_are_messages():
    one = explorer()
    one._on_message(one.panel, {"do": "run"}, [])
    assert one.wait(20) and len(one.results) == 1
    one.set(length=11)
    one._on_message(one.panel, {"do": "use", "run": 1}, [])
    assert one.values["length"] == 4
    one._on_message(one.panel, {"do": "baseline"}, [])
    assert one.wait(20) and len(one.results) == 2
    one._on_message(one.panel, {"do": "use", "run": 2}, [])  # a method without parameters
    assert one.method == "autoregressive"
    for bad in ({"do": "play", "run": 9}, {"do": "explode"}, {}):
        one._on_message(one.panel, bad, [])
        assert one.panel.error and "\n" not in one.panel.error
    with pytest.raises(TraceError, match="runs are numbered 1 to 2"):
        one.play(5)


def test_a_moved_slider_is_answered_from_the_last_result():
    real = (
        Parameter("fallback", 0.6, 0, 1),
        Parameter("rollback", 2.0, 0, None),
        Parameter("cap", 10, 1, 64),
    )
    real += (Parameter("extra", 1, 0, 9),)
    one = explorer(Decoder(real, made=build("bild", hostile=False)), "bild")
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
    one = explorer(Decoder(real, made=build("bild", hostile=False)), "bild")
    one._on_message(one.panel, {"do": "tabulate", "name": "cap"}, [])  # nothing has run: only code changes
    assert "'cap': 7" in one.panel.lookup["entries"][6]["code"]
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
    assert positions(slider(Parameter("cap", 2, 1, 4))) == [1, 2, 3, 4]
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


def test_a_race_needs_a_second_method():
    decoder = Decoder()
    decoder.methods = lambda model: ["autoregressive"]
    one = explorer(decoder, "autoregressive")
    one._on_message(one.panel, {"do": "live"}, [])
    assert one.panel.error == "town runs no method but autoregressive: race on another model"


def test_a_bad_value_is_not_kept_with_its_method():
    one = explorer()
    first, other = one.method, next(name for name in one.panel.methods if name != one.method)
    one.set(length=9)
    one.panel.values = one.panel.values | {"length": 99}
    assert one.panel.error
    one.panel.method = other
    assert one.panel.error == "" and set(one.panel.values) == {p["name"] for p in one.panel.parameters}
    one.panel.method = first
    assert one.panel.error == "" and one.panel.values["length"] == 4  # the default, since 99 is out of range
    one.set(length=9)
    one.panel.method = other
    one.panel.method = first
    assert one.panel.values["length"] == 9


def test_a_race_without_the_baseline_is_against_another_method():
    decoder = Decoder()
    decoder.methods = lambda model: ["stepwise", "fast_dllm", "ssd"]
    assert explorer(decoder, "ssd").contest().panel.entrants == ["ssd", "stepwise"]
    decoder.methods = lambda model: ["speculative", "autoregressive"]
    for method in decoder.methods("town"):
        assert explorer(decoder, method).contest().panel.entrants == ["autoregressive", "speculative"]


def test_what_is_closed_keeps_no_view():
    one = explorer()
    one.run()
    assert one.wait(20)
    one.play(1)
    views = one.children
    one.close()
    assert len(views) == 2 and [each.comm for each in views] == [None, None]


def test_a_job_stopped_before_its_turn_does_nothing():
    called = []
    job = Job(called.append)
    job.stopped.set()
    job.run()
    assert not called and not decoding.locked()
