"""Measure the cost of showing a decode while it runs, and how soon a token is on the page.

Plain and shown decodes are paired: the same prompt, back to back, in alternating order. A shown decode runs
through the explorer's loop and feed, and its messages go to a socket as a kernel sends them: as signed JSON.
The browser's share is measured in Chromium, on the same messages.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from specviz.errors import SpecvizError
from specviz.loop.choices import TARGETS, Choices
from specviz.measure.report import Bar, Report, Tick
from specviz.measure.timing import counter, setting
from specviz.metrics import Estimate
from specviz.widgets import assets
from specviz.widgets.explore import Explorer
from specviz.widgets.live_race import LiveRace

from .player import PAGE, chromium

TARGET = "smollm2"
METHODS = ("autoregressive", "speculative")
MOST, SOON = 1.05, 100.0  # limit over a plain decode's time; ms until a token is on the page
DRAW = """async ([source, style, state, messages]) => {
  const heard = {}, took = [];
  document.head.append(Object.assign(document.createElement("style"), { textContent: style }));
  const model = {
    get: (name) => state[name], set: () => {}, off: () => {}, save_changes: () => {}, send: () => {},
    on: (name, act) => (heard[name] ??= []).push(act),
  };
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  (await import(url)).default.render({ model, el: document.body });
  for (const message of messages) {
    const begun = performance.now();
    for (const act of heard["msg:custom"]) act(message, []);
    document.body.offsetHeight;
    took.push(performance.now() - begun);
    await new Promise(requestAnimationFrame);
  }
  return took;
}"""


class Wire:
    """A socket that sends a panel's messages as a kernel does."""

    def __init__(self) -> None:
        import zmq
        from jupyter_client.session import Session

        self.messages: list[Any] = []
        self.sent: dict[int, float] = {}  # time its message was sent, by cycle
        self._session = Session(key=b"bench")
        self._socket = zmq.Context.instance().socket(zmq.PUB)
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self._reader = zmq.Context.instance().socket(zmq.SUB)
        self._reader.connect(f"tcp://127.0.0.1:{port}")
        self._reader.subscribe(b"")

    def send(self, message: Any, buffers: Any = None) -> None:
        """Send a message, and record it with the time at which its cycles were sent."""
        content = {"comm_id": "panel", "data": {"method": "custom", "content": message}}
        self._session.send(self._socket, "comm_msg", content)
        now = time.perf_counter()
        self.messages.append(message)
        self.sent |= dict.fromkeys((cycle["cycle"] for cycle in message["cycles"]), now)

    def close(self) -> None:
        """Close both sockets."""
        self._socket.close(0)
        self._reader.close(0)


class Noted:
    """A run that records when each of its cycles was finished."""

    def __init__(self, run: Any) -> None:
        self.run, self.born = run, {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.run, name)

    def __iter__(self) -> Iterator[Any]:
        for cycle in self.run:
            self.born[cycle.number] = time.perf_counter()
            yield cycle


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Wall-clock and processor seconds (all threads) of a call."""
    begun, used = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - begun, time.process_time() - used


def bench(target: Any, *, max_new_tokens: int = 96, rounds: int = 8, tick: Tick = lambda *_: None) -> Report:
    """Time plain against shown decodes, race lanes against single decodes, and the page.

    Raises
    ------
    SpecvizError
        If no browser is installed.
    """
    choices = Choices(target, "speculative", None, None, {"max_new_tokens": max_new_tokens}, {})
    model = choices.first
    prompt = TARGETS.get(model.partition(" (")[0], "Who is here?")
    step = counter(tick, rounds * len(METHODS) + 1)
    rows, bars, late, messages, sizes = [], [], [], [], []
    for method in METHODS:
        one = Explorer(choices, model, method, prompt)
        ratios, processor, plain_times = [], [], []
        for number in range(-1, rounds):  # the first round is a warm-up
            wire = Wire()
            one.panel.send = wire.send
            noted = Noted(choices.start(model, prompt, method, {}))
            plain = choices.start(model, prompt, method, {})
            calls = [
                lambda run=plain: [None for _ in run],
                lambda run=noted, one=one: one._follow(run, threading.Event()),
            ]
            order = [0, 1] if number % 2 else [1, 0]
            took = dict(zip(order, [timed(calls[i]) for i in order]))
            wire.close()
            if number < 0:
                continue
            ratios.append(took[1][0] / took[0][0])
            processor.append(took[1][1] / took[0][1])
            plain_times.append(took[0][0])
            late += [1e3 * (wire.sent[cycle] - born) for cycle, born in noted.born.items()]
            messages = wire.messages
            sizes += [len(str(m)) for m in messages]
            rate = len(messages) / took[1][0]
            step(method)
        ratio = Estimate.of(ratios)
        rows.append({
            "method": method, "plain": 1e3 * sum(plain_times) / len(plain_times), "ratio": ratio,
            "processor": Estimate.of(processor), "messages": rate,
        })  # fmt: skip
        bars.append(Bar(f"shown over plain decoding, {method}", ratio.median, MOST, "at most"))
    race = lanes(choices, model, prompt, rounds)
    for row, share in zip(rows, race):
        row["race"] = share
    drawn = draw(one, messages)
    step("page")
    soon = max(late) + max(drawn)
    bars.append(Bar("ms until a token is on the page, the slowest", soon, SOON, "at most"))
    notes = [
        f"A token left in a message at most {max(late):.1f} ms after it came to exist, and Chromium drew a "
        f"message in at most {max(drawn):.1f} ms (median {sorted(drawn)[len(drawn) // 2]:.1f} ms).",
        f"The longest message had {max(sizes):,} characters.",
        "Race over alone: a method's speed in a live race of both, over its speed when it decodes alone.",
    ]
    columns = [
        ("method", "method", ""), ("plain", "plain, ms", "{:.0f}"), ("ratio", "shown / plain", "{:.3f}"),
        ("processor", "its processor time", "{:.3f}"),
        ("messages", "messages/s", "{:.1f}"), ("race", "race / alone", "{:.3f}"),
    ]  # fmt: skip
    made = setting(target, [], tokens=max_new_tokens, rounds=rounds)
    return Report("live", "decoding while it is shown", made, columns, rows, bars, notes)


def lanes(choices: Choices, model: str, prompt: str, rounds: int) -> list[Estimate]:
    """Tokens a second in a live race over those of single decodes, paired, by method."""
    from specviz import metrics

    shares: list[list[float]] = [[] for _ in METHODS]
    contest = LiveRace(choices, model, prompt, METHODS)
    contest.panel.send = lambda message, buffers=None: None
    for _ in range(rounds):
        alone = [choices.start(model, prompt, method, {}).finish() for method in METHODS]
        contest.run()
        contest.wait()
        if contest.panel.error:
            raise SpecvizError(contest.panel.error)
        for share, own, raced in zip(shares, alone, contest.traces):
            share.append(metrics.tokens_per_second(raced) / metrics.tokens_per_second(own))
    return [Estimate.of(share) for share in shares]


def draw(one: Explorer, messages: list[Any]) -> list[float]:
    """Milliseconds that Chromium needs to lay out each message's text."""
    from playwright.sync_api import sync_playwright

    own = [name for name in one.panel.traits(sync=True) if name[0] != "_"]
    names = [name for name in own if name not in ("layout", "tabbable", "tooltip")]
    state = {name: getattr(one.panel, name) for name in names} | {"state": "running", "shown": []}
    given = [assets.script("explore"), assets.style("explore"), state, messages]
    path = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.set_content(PAGE)
        took: list[float] = page.evaluate(DRAW, given)
        browser.close()
    return took
