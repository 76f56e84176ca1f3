"""The explorer's panel in a browser, its kernel pretended: a drag looks its answers up and asks once."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("playwright.sync_api", reason="needs playwright (the test extra)")
pytest.importorskip("anywidget", reason="needs the lab extra")

from town_runs import town_run

from specviz.methods.base import Parameter
from specviz.widgets import assets
from specviz.widgets.explore import Explorer

STATE = ("method", "title", "baseline", "parameters", "values", "code", "state", "progress", "rows", "badges")
STATE += ("columns", "answer", "lookup", "error", "chosen", "theme")
# A widget's model that keeps what is sent; `answer` is what the kernel says back.
STAGE = """async ([source, style, state]) => {
  const heard = {};
  document.head.append(Object.assign(document.createElement("style"), { textContent: style }));
  window.sent = [];
  window.saved = [];
  window.model = {
    get: (name) => state[name],
    set: (name, value) => { state[name] = value; for (const act of heard[`change:${name}`] ?? []) act(); },
    on: (name, act) => (heard[name] ??= []).push(act), off: () => {},
    save_changes: () => window.saved.push(structuredClone(state.values)),
    send: (message) => window.sent.push(message),
  };
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  (await import(url)).default.render({ model: window.model, el: document.body });
}"""
DRAG = """([at]) => {
  const slide = document.querySelector("input[type=range]");
  slide.value = at;
  slide.dispatchEvent(new Event("input"));
}"""


@pytest.fixture
def panel() -> Any:
    """The panel of an explorer that has one result, from a recorded trace."""
    trace = town_run("bild")
    known = trace.run["parameters"]
    real = (
        Parameter("fallback", known["fallback"], 0, 1),
        Parameter("rollback", known["rollback"], 0, None),
        Parameter("cap", known["cap"], 1, 64),
        Parameter("review_end", known["review_end"]),
    )

    class Run:
        def __iter__(self):
            return iter(())

    Run.trace = trace
    one = Explorer("bild", real, lambda method, **values: Run(), lambda **values: f"run({values})", 64)
    one.run()
    assert one.wait(20) and one.panel.answer["run"] == 1
    return one


def test_a_drag_is_one_round_trip(open_page, panel, shoot):
    page = open_page()
    page.goto("about:blank")
    own = panel.panel
    state = {name: getattr(own, name) for name in STATE}
    page.evaluate(STAGE, [assets.script("explore"), assets.style("explore"), json.loads(json.dumps(state))])
    line, code = page.locator(".answer"), page.locator("code.code")
    before = line.inner_text()
    page.evaluate(DRAG, ["0.9"])
    assert page.evaluate("window.sent") == [{"do": "tabulate", "name": "fallback"}]
    assert line.inner_text() == before, "the answer is on its way"
    panel._on_message(own, page.evaluate("window.sent[0]"), [])
    page.evaluate("(table) => window.model.set('lookup', table)", own.lookup)
    seen = set()
    for at in ("0.9", "0.7", "0.3", "0.05"):
        page.evaluate(DRAG, [at])
        panel.set(fallback=float(at))  # what Python says of it
        assert own.answer["words"] in line.inner_text() and code.inner_text() == own.code
        assert (own.answer["text"] or own.answer["why"]) in line.inner_text()
        seen.add(line.inner_text())
    assert len(seen) == 4
    assert page.evaluate("[window.sent.length, window.saved.length]") == [1, 0]
    shoot(page, "explore-drag")
    page.evaluate("() => document.querySelector('input[type=range]').dispatchEvent(new Event('change'))")
    assert page.evaluate("window.saved.map((values) => values.fallback)") == [0.05]
    # another setting makes the table stale: the next drag asks anew
    page.locator("input[type=range]").nth(2).evaluate(
        "(n) => { n.value = 3; n.dispatchEvent(new Event('change')); }"
    )
    page.evaluate(DRAG, ["0.4"])
    assert [message["do"] for message in page.evaluate("window.sent")] == ["tabulate", "tabulate"]
