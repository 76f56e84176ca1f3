"""Fake decodes: the parts of a run that a decoding widget uses, without a model."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace

from specviz.draft import Draft
from specviz.errors import PromptError
from specviz.methods.base import Parameter
from traces import build

PARAMETERS = (
    Parameter("length", 4, 1, 64, "tokens", "Tokens drafted in a cycle.", "γ"),
    Parameter("rollback", 2.0, 0, None, "nats", "Taken back above this.", "α"),
    Parameter("review", False, meaning="Whether it looks twice."),
    Parameter("order", "best", choices=("best", "first"), meaning="Which comes first."),
)
WORDS = {0: b"", 2: b" two", 3: b" three", 4: b"\xe2\x82", 5: b"\xac", 6: b"<img src=x onerror=alert(1)>\n"}


@dataclass
class Cycle:
    """A finished cycle, as far as a feed reads it."""

    number: int = 1
    keep: int = 0
    tokens: list[int] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    status: list[str] = field(default_factory=list)
    draft: Draft | None = None
    verdict: SimpleNamespace | None = None
    cells: list[int] = field(default_factory=list)
    marks: list[float] = field(default_factory=list)


def judged(number, keep, tokens, origins, drafted, status, parents=None):
    """A cycle with a verified draft."""
    draft = Draft.chain(drafted) if parents is None else Draft(drafted, parents)
    return Cycle(number, keep, tokens, origins, status, draft, SimpleNamespace(tokens=drafted))


@dataclass
class Run:
    """A stand-in for the result of `specviz.stream`, as far as a widget uses it."""

    name: str
    values: dict
    cycles: int = 6
    gate: threading.Event | None = None
    fails: Exception | None = None
    made: object = None  # the trace at its end
    trace: object = None
    closed: bool = False
    began: threading.Event = field(default_factory=threading.Event)
    clock: object = None

    def __post_init__(self):
        self.model = SimpleNamespace(piece=lambda token: WORDS[token], eos=(0,))
        self.method = SimpleNamespace(name=self.name)
        self._going = self._cycles()

    def __iter__(self):
        return self

    def __next__(self):
        return next(self._going)

    def _cycles(self):
        yield Cycle(0)
        for i in range(self.cycles):
            yield judged(i + 1, 2 * i, [2, 3], ["draft", "correction"], [2, 6], ["accepted", "rejected"])
            self.began.set()
            if self.gate is not None:
                assert self.gate.wait(20)
            if self.closed:
                return
            if self.fails:
                raise self.fails
        self.trace = self.made or build(self.name)

    def close(self):
        self.closed = True
        self.trace = build(self.name)
        self.trace._stores[0].run["complete"] = False


class Decoder:
    """Creates fake runs and remembers them."""

    def __init__(self, parameters=PARAMETERS, **how):
        self.how, self.runs, self.own = how, [], parameters
        self.started = threading.Event()
        self.models, self.limit = ["town", "other"], 64

    def methods(self, model):
        return ["speculative", "bild", "autoregressive"]

    def idea(self, method):
        return f"What {method} does."

    def parameters(self, method):
        return () if method == "autoregressive" else self.own

    def examples(self, model):
        return [("qa", f"Who is {model}?"), ("sum", "What is 1 + 1?")]

    def start(self, model, text, method, values, *, dense=False):
        if not text.strip():
            raise PromptError("the prompt is empty; give at least one token")
        self.runs.append(Run(method.partition(":")[0], values, **self.how))
        self.started.set()
        return self.runs[-1]

    def code(self, model, text, method, values):
        return f"generate({model!r}, {text!r}, {method!r}, **{values!r})"
