"""Connect a widget's panel in a page with its Python half in this process, carrying messages by hand."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any

from specviz.widgets import assets

BLANK = "data:text/html,<!doctype html><html lang=en><title>widget</title><body style='margin:0'>"
STAGE = """async ([source, style, state]) => {
  const heard = {}, outbox = [], dirty = new Map();
  document.head.append(Object.assign(document.createElement("style"), { textContent: style }));
  const tell = (name, ...more) => { for (const act of heard[name] ?? []) act(...more); };
  window.outbox = outbox;
  window.model = {
    get: (name) => state[name],
    set: (name, value) => { state[name] = value; dirty.set(name, value); tell(`change:${name}`); },
    on: (name, act) => (heard[name] ??= []).push(act), off: () => {},
    save_changes: () => { for (const change of dirty) outbox.push(["set", ...change]); dirty.clear(); },
    send: (message) => outbox.push(["send", message]),
  };
  // All traits first, then what hears of them, as a notebook does.
  window.arrive = (events) => {
    for (const [what, ...more] of events) {
      if (what === "set") { state[more[0]] = more[1]; tell(`change:${more[0]}`); }
      else tell("msg:custom", more[0], more[1].map((bytes) => new DataView(Uint8Array.from(bytes).buffer)));
    }
  };
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  (await import(url)).default.render({ model: window.model, el: document.body });
}"""

# Log of screen-reader announcements: every change of a live region, with its time.
LISTEN = """() => {
  window.heard = [];
  const loud = (node) => node.getAttribute("aria-live") !== "off" && node.textContent;
  for (const node of document.querySelectorAll("[aria-live], output, [role=status], [role=alert]"))
    new MutationObserver(() => { if (loud(node)) window.heard.push([performance.now(), node.textContent]); })
      .observe(node, { childList: true, characterData: true, subtree: true });
}"""

# Draw a second view of an offline page's widget.
AGAIN = """async (view) => {
  const source = document.getElementById(`module-${view}`).textContent, el = document.createElement("div");
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  document.body.append(el);
  (await import(url)).default.render({ model: window.specviz, el });
}"""


def stop_clock(page: Any) -> None:
    """From now on, time passes for the page only while ``page.clock.run_for`` runs."""
    page.clock.install(time=0)
    page.clock.pause_at(1000)


class Bridge:
    """Carries traits and messages between a page and a panel while a test waits for something."""

    def __init__(self, page: Any, panel: Any, view: str) -> None:
        self.page, self.panel = page, panel
        self.messages: list[dict[str, Any]] = []
        self._events: queue.SimpleQueue[list[Any]] = queue.SimpleQueue()
        names = panel.traits(sync=True)
        own = [name for name in names if not name.startswith("_") and name not in DROPPED]
        page.goto(BLANK)
        page.evaluate(STAGE, [assets.script(view), assets.style(view), {n: getattr(panel, n) for n in own}])
        panel.observe(lambda change: self._events.put(["set", change["name"], change["new"]]), names=own)
        panel.send = self._send

    def _send(self, message: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        self.messages.append(message)
        self._events.put(["send", message, [list(each) for each in buffers or []]])

    def carry(self) -> None:
        """Carry everything that is pending in either direction."""
        events = []
        while not self._events.empty():
            events.append(self._events.get())
        if events:
            self.page.evaluate("(events) => window.arrive(events)", events)
        for what, *more in self.page.evaluate("() => window.outbox.splice(0)"):
            if what == "set":
                self.panel.set_trait(more[0], more[1])
            else:
                self.panel._handle_custom_msg(more[0], [])

    def until(self, holds: Callable[[], object], seconds: float = 180) -> None:
        """Carry messages until a condition holds, or fail after `seconds`."""
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, f"{self.panel.state}: {self.panel.error}"
            self.carry()
            self.page.wait_for_timeout(10)
        self.carry()


DROPPED = ("layout", "tabbable", "tooltip")
