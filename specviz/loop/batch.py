"""Decode several prompts together, as rows of one context; each row accepts its own number of tokens.

Each row has its own method, session and random numbers and is judged by the same code as a single prompt, so
it decides as it would alone. The rows share forward passes: one pass of the target per cycle, and one pass of
the drafter for all rows that request one at the same time. When a row's text ends, the next prompt takes its
place. When no prompt is waiting, the row is removed and later passes are narrower.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import groupby
from typing import Any, cast

import torch

from ..draft import Draft
from ..errors import ModelError
from ..methods.base import Drafting, Method
from ..models.context import Pass, nested
from ..models.devices import send
from ..models.protocols import Model, Path, Tokens
from .clock import Clock, Mark, Watched
from .cycle import Cycle, Settings, Target, Text, check_scores, finished, pass_request

WASTE = 1.5  # adjacent rows are prefilled together if padding computes at most this multiple of their tokens


def decode_batch(
    target: Target, prompts: Sequence[list[int]], method: Method, *, rows: int,
    numbers: Sequence[int] | None = None, clock: Clock | None = None, **options: Any,
) -> Iterator[list[Cycle]]:  # fmt: skip
    """Decode prompts, at most `rows` at a time; yield the cycles that ran together.

    Parameters
    ----------
    target : Model
        Its contexts must support several rows.
    prompts : list of lists of int
    method : Method
        Each prompt gets its own instance (`Method.again`).
    rows : int
    numbers : sequence of int, optional
        Number of each prompt, which keys its random numbers. Default: its index in the list.
    clock : Clock, optional
        Default None: record no times.
    **options
        Fields of `Settings`, the same for every prompt.

    Yields
    ------
    list of Cycle
        One for each row that took part: the prefills of new rows, or a draft-verify cycle of every row.
    """
    numbered = list(zip(range(len(prompts)) if numbers is None else numbers, prompts))
    with closing(Batch(target, numbered, method, rows, clock, Settings(**options))) as batch:
        while True:
            while new := batch.enter():
                yield batch.prefill(new)
            batch.leave()
            if not batch.texts:
                return
            yield batch.step()


def check_rows(*models: Model | None) -> None:
    """Raise `ModelError` for the first model whose contexts decode only one prompt."""
    for model in models:
        if model is not None and not getattr(model, "batches", True):
            raise ModelError(
                f"{model.name} runs on a backend that decodes one prompt at a time: drop batch, or load the "
                f"model in transformers' format"
            )


class Batch:
    """Texts being decoded, in the order of the contexts' rows."""

    def __init__(
        self, target: Target, prompts: Sequence[tuple[int, list[int]]], method: Method, rows: int,
        clock: Clock | None, settings: Settings,
    ) -> None:  # fmt: skip
        self.target, self.method, self.clock, self.settings = target, method, clock, settings
        self.waiting = list(prompts)[::-1]  # reversed, so that `pop` takes the next prompt
        self.texts: list[Any] = [None] * min(rows, len(prompts))
        self.contexts: dict[int, Shared] = {}

    def mark(self) -> Mark:
        """Mark the current time, or return None without a clock."""
        return self.clock.mark() if self.clock else None

    def enter(self) -> list[Row]:
        """Start waiting prompts in the free places and return their rows."""
        new = []
        for place, old in enumerate(self.texts):
            if self.waiting and (old is None or old.end is not None):
                number, tokens = self.waiting.pop()
                row = place if old is None else old.row
                self.texts[place] = Row(self, tokens, number, place, row)
                new.append(self.texts[place])
        return new

    def prefill(self, new: list[Row]) -> list[Cycle]:
        """Prefill new rows and return cycle 0 of each."""
        begin = self.mark()
        room = max(text.limit for text in new) + self.method.extra_cache_slots
        for text in new:
            text.target = text.open(self.target, text.session.prompt, room, "target")
            text.target.prefill()
        # A drafter may need the target's hidden states at the prompt's tokens.
        self._compute(self.method.hidden_layers(new[0].session.drafter) if self.method.reads_prompt else ())
        passed = self.mark()
        for text in new:
            text.method.start(text.session)
        self._compute()
        marks = [begin, passed, self.mark()]
        cycles = [text.prefilled(marks) for text in new]
        self._free()
        return cycles

    def _compute(self, hidden: tuple[int, ...] = ()) -> None:
        for shared in self.contexts.values():
            shared.prefill(hidden)

    def step(self) -> list[Cycle]:
        """Run one draft-verify cycle of every row."""
        begin = self.mark()
        drafts = self._drafts()
        drafted = self.mark()
        judged = [text for text in self.texts if drafts[text.place].read]
        results: list[Pass | None] = [None] * len(self.texts)
        if judged:
            context, layers = judged[0].target.shared, self.method.hidden_layers(judged[0].session.drafter)
            passes = context.forward(judged, [drafts[text.place] for text in judged], layers)
            for text, result in zip(judged, passes):
                check_scores(result)
                results[text.place] = result
        passed = self.mark()
        verdicts = [
            text.method.verify(draft, None if result is None else result.logits[0])
            for text, draft, result in zip(self.texts, drafts, results)
        ]
        verified = self.mark()
        on = [text for text, verdict in zip(self.texts, verdicts) if text.goes_on(verdict)]
        kept = [text.place for text in on if drafts[text.place].read]
        new = {text.place: text.unwritten(drafts[text.place], verdicts[text.place]) for text in on}
        written = [place for place, tokens in new.items() if tokens]
        if on:
            context = on[0].target.shared.context
            if kept:
                context.commit([verdicts[place].path for place in kept], kept)
            if written:  # empty if no verdict adds a token after its draft
                context.extend([new[place] for place in written], written)
        for text in on:
            text.method.learn(drafts[text.place], results[text.place], verdicts[text.place])
        marks = [begin, drafted, passed, verified, self.mark()]
        cycles = [text.cycle(*each, marks) for text, *each in zip(self.texts, drafts, results, verdicts)]
        self._free()
        return cycles

    def _free(self) -> None:
        """Close the private contexts of texts that ended; their rows of shared contexts are reused."""
        for text in self.texts:
            if text.end is not None:
                text.close()

    def _drafts(self) -> list[Draft]:
        """Return every row's draft. Rows that request passes of one context at the same time share a pass."""
        drafts: list[Any] = [text.draft() for text in self.texts]
        drafting: list[tuple[int, Drafting, Any]] = [  # a generator must first be sent None
            (place, draft, None) for place, draft in enumerate(drafts) if not isinstance(draft, Draft)
        ]
        while drafting:
            requests: dict[Shared, dict[int, Draft]] = {}
            for place, generator, result in drafting:
                try:
                    part, draft = pass_request(generator.send(result))
                    assert isinstance(part, Part)
                    requests.setdefault(part.shared, {})[place] = draft
                except StopIteration as done:
                    text = self.texts[place]
                    drafts[place] = finished(done.value, text.method, text.left)
            generators, drafting = {place: generator for place, generator, _ in drafting}, []
            for shared, rows in requests.items():
                passes = shared.forward([self.texts[place] for place in rows], list(rows.values()))
                drafting += [(place, generators[place], result) for place, result in zip(rows, passes)]
            drafting.sort(key=lambda each: each[0])  # `forward` takes a context's rows in ascending order
        return drafts

    def leave(self) -> None:
        """Remove texts that ended and were not replaced; the last row moves into each gap."""
        for place in reversed(range(len(self.texts))):
            if self.texts[place].end is None:
                continue
            if len(self.texts) > 1:
                for shared in self.contexts.values():
                    shared.drop(place)
            last = self.texts.pop()
            if place < len(self.texts):
                self.texts[place], last.place = last, place

    def close(self) -> None:
        """Close all contexts."""
        for shared in self.contexts.values():
            shared.context.close()
        for text in filter(None, self.texts):
            text.close()


class Row(Text):
    """One text of a batch.

    Attributes
    ----------
    place : int
        Its current row in the contexts. The last row moves when another row leaves.
    row : int
        The row it started in, as recorded in the trace.
    target : Part
        Its row of the target's context.
    """

    def __init__(self, batch: Batch, tokens: list[int], prompt: int, place: int, row: int) -> None:
        super().__init__(batch.target, tokens, batch.method.again(), replace(batch.settings, prompt=prompt))
        self.batch, self.place, self.row = batch, place, row
        self.opened = 0
        self.own_contexts: list[Watched] = []
        self.target: Any = None

    def open(self, model: Target, tokens: list[int], room: int, name: str) -> Part | Watched:
        """Open a row of a shared context; the n-th context that each row opens is the same one."""
        if getattr(model, "apart", False):
            return self.open_alone(model, tokens, room, name)
        batch, key = self.batch, self.opened
        self.opened += 1
        if key not in batch.contexts:
            prompts = [text.session.prompt for text in batch.texts]
            prompts[self.place] = tokens
            batch.contexts[key] = Shared(model.open(prompts, room), name, batch.clock, prompts)
        shared = batch.contexts[key]
        shared.place(self.place, tokens, room)
        return Part(shared, self)

    def open_alone(self, model: Target, tokens: list[int], room: int, name: str) -> Watched:
        """Open a context for this row only, for a drafter that reads hidden states as well as tokens."""
        self.own_contexts.append(Watched(model.open([tokens], room), name, self.batch.clock, self.passes))
        return self.own_contexts[-1]

    def close(self) -> None:
        """Close the contexts that belong to this row only."""
        for context in self.own_contexts:
            context.close()
        self.own_contexts.clear()

    def _cycle(self, marks: list[Mark]) -> Cycle:
        cycle = super()._cycle(marks)
        cycle.row = self.row
        return cycle


class Shared:
    """A context shared by all rows of a batch; each pass is timed and logged for every row in it."""

    def __init__(self, context: Any, name: str, clock: Clock | None, prompts: list[list[int]]) -> None:
        self.context, self.name, self.clock = context, name, clock
        self.fresh: dict[int, list[int]] = dict(enumerate(prompts))  # rows not yet placed, as opened
        self.prefill_queue: list[Row] = []
        self.unwritten: dict[int, list[Tokens]] = {}  # by row, tokens not yet written to the context

    def place(self, row: int, tokens: list[int], room: int) -> None:
        """Load `tokens` into a row, to be computed later, with room for more after them."""
        self.unwritten.pop(row, None)
        if self.fresh.pop(row, None) != tokens:
            self.context.replace(row, tokens, room)

    def drop(self, row: int) -> None:
        """Remove a row; the last row takes its number."""
        self.settle()
        self.context.drop(row)

    def extend(self, row: int, tokens: Tokens) -> None:
        """Queue tokens to append to a row; `settle` writes those of all rows at once."""
        if len(tokens):
            self.unwritten.setdefault(row, []).append(tokens)

    def settle(self) -> None:
        """Write the queued tokens."""
        if self.unwritten:
            rows = sorted(self.unwritten)
            self.context.extend([chained(self.unwritten[row]) for row in rows], rows)
            self.unwritten.clear()

    def length(self, row: int) -> int:
        """Number of committed tokens in a row."""
        return int(self.context.length[row]) + sum(map(len, self.unwritten.get(row, ())))

    def rewind(self, row: int, length: int) -> None:
        """Drop everything after the first `length` tokens of a row."""
        if length > self.length(row):
            raise ModelError(f"rewind of row {row} to {length} tokens: it holds {self.length(row)}")
        new = self.unwritten.pop(row, None)
        held = self.context.length[row]
        if length < held or (new is None and length == held):
            self.context.rewind(length, [row])
        elif new is not None and length > held:
            self.unwritten[row] = [chained(new)[: length - held]]

    def forward(self, texts: list[Row], drafts: list[Draft], hidden: Sequence[int] = ()) -> list[Pass]:
        """Run one pass over some rows, in the order of their places; return each row's result."""
        self.settle()
        begin = self.clock.mark() if self.clock else None
        result = self.context.forward(drafts, hidden, [text.place for text in texts])
        self._note(texts, result.fed, begin)
        return [
            Pass([logits], [fed], {layer: [states[i]] for layer, states in result.hidden.items()})
            for i, (logits, fed) in enumerate(zip(result.logits, result.fed))
        ]

    def prefill(self, hidden: tuple[int, ...] = ()) -> None:
        """Compute the queued prompts: those of adjacent rows in one pass if their lengths are similar."""
        self.settle()
        texts, self.prefill_queue = sorted(self.prefill_queue, key=lambda text: text.place), []
        context = self.context
        due = {text: context.due(text.place) for text in texts}
        texts = [text for text in texts if due[text] > 0]
        groups: list[list[Row]] = []
        # A pass over several rows feeds padding to those between them.
        for _, run in groupby(enumerate(texts), lambda each: context.joint or each[1].place - each[0]):
            rows = [text for _, text in run]
            counts = [due[text] for text in rows]
            joint = context.joint or len(rows) * max(counts) <= WASTE * sum(counts)
            groups += [rows] if joint else [[text] for text in rows]
        for group in groups:
            begin = self.clock.mark() if self.clock else None
            places = [text.place for text in group]
            if context.prefill(places, hidden) if hidden else context.prefill(places):
                self._note(group, [due[text] for text in group], begin)
            for text in group if hidden else ():
                text.session.states = context.states.pop(text.place)

    def _note(self, texts: list[Row], fed: list[int], begin: Mark) -> None:
        end = self.clock.mark() if self.clock else None
        for text, tokens in zip(texts, fed):
            text.passes.append((self.name, len(texts), tokens, begin, end))


def chained(parts: list[Tokens]) -> Tokens:
    """Concatenate token sequences: lists, or tensors, which stay on their device."""
    if len(parts) == 1:
        return parts[0]
    if any(torch.is_tensor(part) for part in parts):
        device = next(part.device for part in parts if torch.is_tensor(part))
        return torch.cat([send(part, device, torch.long) for part in parts])
    return [token for part in parts for token in part]


class Part:
    """One row of a shared context, presented to its method as a single-row context."""

    rows = 1

    def __init__(self, shared: Shared, text: Row) -> None:
        self.shared, self.text = shared, text

    @property
    def model(self) -> Model:
        return self.shared.context.model

    @property
    def length(self) -> list[int]:
        """Number of committed tokens."""
        return [self.shared.length(self.text.place)]

    @property
    def tokens(self) -> list[list[int]]:
        """The committed tokens."""
        self.shared.settle()
        return [self.shared.context.tokens[self.text.place]]

    @property
    def room(self) -> int:
        """How many more tokens fit."""
        context, row = self.shared.context, self.text.place
        queued = self.length[0] - context.length[row]
        return int(min(context.slots, self.model.max_length) - context.filled[row] - queued)

    def extend(self, tokens: Tokens | Sequence[Tokens]) -> None:
        """Append committed tokens, like `Context.extend`."""
        self.shared.extend(self.text.place, cast("Tokens", tokens[0] if nested(tokens) else tokens))

    def commit(self, paths: Sequence[int] | Sequence[Path]) -> None:
        """Keep the accepted path of the last draft, like `Context.commit`."""
        self.shared.context.commit([paths[0] if nested(paths) else paths], [self.text.place])

    def rewind(self, length: int | Sequence[int]) -> None:
        """Drop tokens from the end, like `Context.rewind`."""
        self.shared.rewind(self.text.place, length if isinstance(length, int) else int(length[0]))

    def reserve(self, room: int) -> None:
        """Make room for more tokens, like `Context.reserve`."""
        self.shared.settle()
        context = self.shared.context
        context.reserve(room - self.room + context.room)

    def prefill(self) -> None:
        """Queue the prompt. New rows are prefilled together, before their first pass."""
        self.shared.prefill_queue.append(self.text)

    def forward(self, draft: Draft, hidden: Sequence[int] = ()) -> Pass:
        """Run a pass of this row alone, for methods that do not yield their requests."""
        return self.shared.forward([self.text], [draft], hidden)[0]
