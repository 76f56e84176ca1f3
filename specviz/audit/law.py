"""The law of sampling: does a method's output have exactly the target's distribution?

`check` is exact: over a toy vocabulary it runs the method's own drafter and verifier in the real loop,
once in each cell of the space of uniform numbers, and adds up the cells' volumes. `chi_square` is
statistical: it draws from real models with many seeds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..draft import Draft
from ..errors import ParameterError
from ..loop.cycle import decode
from ..methods.base import Method
from ..methods.kinds import SampledTreeMethod
from ..methods.sampling import Sampling

TOLERANCE = 1e-9
STEP = 1e-13  # how finely a cell's edge is found
GRID = 5  # cells that are looked into before any edge is known
FILLING = 32  # tokens that a method which remembers has decoded before, where it is to be warm
SETTINGS = (Sampling(1.0), Sampling(0.6), Sampling(0.9, top_k=2), Sampling(1.2, top_p=0.9))
CHANCE = 1e-4  # a chi-square test fails by chance this often
EXPECTED = 5.0  # draws that a cell of the chi-square test should expect; rarer ones are pooled


class Table:
    """A language model that is a table: float64 logits, a fixed random function of the whole text.

    Parameters
    ----------
    vocabulary, seed : int
    near : Table, optional
        Logits are a mixture with this model's, so that one can draft for the other.
    eos : tuple of int
        Ids that end a text.
    """

    kind = "causal"
    device, dtype, max_length, parameters = torch.device("cpu"), torch.float64, 1 << 20, 0

    def __init__(
        self, vocabulary: int, seed: int, near: Table | None = None, eos: tuple[int, ...] = ()
    ) -> None:
        self.vocabulary, self.seed, self.near, self.name = vocabulary, seed, near, f"table-{seed}"
        self.eos = eos
        self._rows: dict[tuple[int, ...], Tensor] = {}

    def logits(self, text: Sequence[int]) -> Tensor:
        """What follows `text`, [vocabulary]."""
        key = tuple(text)
        if key not in self._rows:
            row = torch.from_numpy(np.random.default_rng([self.seed, *key]).normal(0, 1, self.vocabulary))
            self._rows[key] = row if self.near is None else (row + self.near.logits(key)) / 2
        return self._rows[key]

    def left(self, prompt: int) -> int:
        """How many tokens can be written behind a prompt of so many."""
        return self.max_length - prompt

    def open(self, prompts: Sequence[Sequence[int]], room: int) -> _Text:
        """A context of one row."""
        return _Text(self, list(prompts[0]))


class Reader(Table):
    """A table that drafts as EAGLE does: it reads tokens, and states that it needs nothing of."""

    kind, apart, layers = "eagle", True, (0,)

    def open(self, prompts: Sequence[Sequence[int]], room: int) -> Any:
        """A context of one row; nothing but the first token is read."""
        return _Pairs(self, list(prompts[0][:1]))


class _Pairs:
    """A context of pairs over a table (`specviz.models.eagle_model.EagleContext`)."""

    def __init__(self, model: Table, text: list[int]) -> None:
        self.model, self.text = model, text
        self.paths: list[list[int]] = []

    def read(self, tokens: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        self.text += tokens.tolist()
        self.paths = []
        return states[-1:], self.model.logits(self.text)[None]

    def grow(self, tokens: Tensor, states: Tensor, above: Tensor | None) -> tuple[Tensor, Tensor]:
        roots = [[] for _ in tokens] if above is None else [self.paths[i] for i in above.tolist()]
        new = [[*path, token] for path, token in zip(roots, tokens.tolist())]
        self.paths += new
        return states, torch.stack([self.model.logits(self.text + path) for path in new])

    def close(self) -> None:
        pass


class _Text:
    """A context over a table."""

    def __init__(self, model: Table, text: list[int]) -> None:
        self.model, self.text, self.nodes = model, text, [0][:0]

    @property
    def length(self) -> list[int]:
        return [len(self.text)]

    @property
    def tokens(self) -> list[list[int]]:
        return [list(self.text)]

    @property
    def room(self) -> int:
        return self.model.max_length - len(self.text)

    @property
    def states(self) -> dict[int, dict[int, Tensor]]:
        return {0: {0: torch.zeros(len(self.text) - 1, 1)}}

    def prefill(self, hidden: Any = ()) -> int:
        return 0

    def extend(self, tokens: Any) -> None:
        if not torch.is_tensor(tokens):
            tokens = [t for row in tokens for t in (row if isinstance(row, list | tuple) else [row])]
        self.text += [int(t) for t in tokens]

    def forward(self, draft: Draft, hidden: Any = ()) -> Any:
        self.nodes = [int(t) for t in draft.tokens]
        paths = [[self.nodes[j] for j in draft.path(i)] for i in range(-1, len(draft))]
        rows = torch.stack([self.model.logits(self.text + path) for path in paths])
        states = {layer: [torch.zeros(len(rows), 1)] for layer in hidden}
        return SimpleNamespace(logits=[rows], tokens=len(rows), hidden=states)

    def commit(self, path: Sequence[int]) -> None:
        self.text += [self.nodes[node] for node in path]

    def rewind(self, length: int) -> None:
        del self.text[length:]

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class LawResult:
    """How far a law is from the target's.

    Parameters
    ----------
    method, sampling : str
    error : float
        Largest difference between the probabilities of a text under the method and under the target.
    bound : float
        What it may be.
    cells : int
        Cells of the uniform space that were run.
    reason : str
        What the method raised, if it has no law; `error` is then infinite.
    """

    method: str
    sampling: str
    error: float
    bound: float
    cells: int
    reason: str = ""

    @property
    def holds(self) -> bool:
        return self.error <= self.bound

    @property
    def verdict(self) -> str:
        return "holds" if self.holds else "does not hold"


def check(
    make: Callable[[], Method],
    settings: Sequence[Sampling] = SETTINGS,
    vocabulary: int = 3,
    length: int = 2,
) -> list[LawResult]:
    """Compare the exact law of a method's texts with the target's, on a toy vocabulary.

    A method that remembers is run from an empty memory and from a filled one: in texts this short an empty
    one hardly drafts.

    Parameters
    ----------
    make : callable
        Makes the method anew.
    settings : sequence of Sampling
        The first is enumerated over one token more than the others.
    vocabulary, length : int
        The law is that of all texts of `length` tokens behind a fixed prompt.

    Returns
    -------
    list of LawResult
        One for each setting and state of the memory.
    """
    target = Table(vocabulary, 8)
    drafter = (Reader if make().drafts_with == "eagle" else Table)(vocabulary, 9, near=target)
    makers = {make().name: make}
    if (filled := warm(make, target, drafter, [[0, 1]], FILLING)) is not None:
        makers[f"{make().name}, warm"] = filled
    results = []
    for name, maker in makers.items():
        for i, sampling in enumerate(settings):
            steps = length + (i == 0)
            found, cells = law_of(maker, target, drafter, [0, 1], steps, sampling)
            expected = law_of_target(target, [0, 1], steps, sampling)
            error = max(abs(found.get(text, 0.0) - expected.get(text, 0.0)) for text in {*found, *expected})
            results.append(LawResult(name, spell(sampling), error, TOLERANCE, cells))
    return results


def warm(
    make: Callable[[], Method], target: Any, drafter: Any, prompts: Sequence[list[int]], length: int
) -> Callable[[], Method] | None:
    """Makes the method with what it learnt from texts of `length` tokens; None if it keeps nothing."""
    full = make()
    if full.memory is None or full.memory["keep"] != "run":
        return None
    for prompt in prompts:
        for _ in decode(target, prompt, full, drafter=drafter, max_new_tokens=length):
            pass

    def again() -> Method:
        method = make()
        method.like(full)
        return method

    return again


def law_of_target(
    target: Any, prompt: Sequence[int], length: int, sampling: Sampling
) -> dict[tuple[int, ...], float]:
    """Probability of each text of `length` tokens under the target alone."""
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        law = {
            (*text, token): chance * p
            for text, chance in law.items()
            for token, p in enumerate(sampling.probabilities(target.logits([*prompt, *text])).tolist())
            if p
        }
    return law


def law_of(
    make: Callable[[], Method],
    target: Table,
    drafter: Table,
    prompt: list[int],
    length: int,
    sampling: Sampling,
    previous: Sequence[int] = (),
    edges: np.ndarray | None = None,
) -> tuple[dict[tuple[int, ...], float], int]:
    """Probability of each text that the method writes in the real loop, and the cells that were run.

    `previous` is what a stream's update before has left, for methods that draft from it; `edges` are guesses
    of where outcomes change.

    What a method does is a step function of its uniform numbers. One number after another, in the order in
    which the method asks for them, [0, 1) is cut where the outcome changes; edges are found by bisection,
    wherever they lie. So the method is known by its behaviour alone, and a wrong one has a wrong law.
    """
    found = _guesses(target, drafter, prompt, length, sampling) if edges is None else edges
    guesses = np.unique(found[(found > 0) & (found < 1)])
    law: dict[tuple[int, ...], float] = {}
    open_cells: list[tuple[dict[tuple, float], float]] = [({}, 1.0)]
    cells = 0

    def play(known: dict[tuple, float]) -> tuple[list[tuple], tuple, tuple[int, ...]]:
        asked: dict[tuple, None] = {}

        def uniforms(cycle: int, use: int, n: int) -> np.ndarray:
            keys = [(cycle, use, i) for i in range(n)]
            asked.update(dict.fromkeys(keys))
            return np.array([known.get(key, 0.5) for key in keys])

        trail, text, method = [], [], make()
        for cycle in decode(
            target,
            list(prompt),
            method,
            drafter=drafter,
            sampling=sampling,
            max_new_tokens=length,
            uniforms=uniforms,
            previous=previous,
        ):
            text += cycle.tokens
            drawn = method.drawn() if isinstance(method, SampledTreeMethod) else ()
            drafted = () if cycle.verdict is None else tuple(cycle.verdict.tokens)
            trail.append((drafted, tuple(cycle.status), tuple(cycle.tokens), drawn))
        return [key for key in asked if key not in known], tuple(trail), tuple(text[:length])

    while open_cells:
        known, volume = open_cells.pop()
        unknown, _, text = play(known)
        if not unknown:
            law[text] = law.get(text, 0.0) + volume
            cells += 1
            continue
        key = unknown[0]

        def outcome(u: float, key: tuple = key, known: dict[tuple, float] = known) -> tuple:
            return play({**known, key: u})[1]

        for middle, width in _cut(outcome, guesses):
            open_cells.append(({**known, key: middle}, volume * width))
    return law, cells


def _cut(outcome: Callable[[float], Any], guesses: np.ndarray) -> list[tuple[float, float]]:
    """Midpoints and widths of the cells of [0, 1) in which `outcome` is constant.

    `guesses` are places where an edge may well lie; they save bisection steps and decide nothing.
    """
    seen: dict[float, Any] = {}

    def at(u: float) -> Any:
        if u not in seen:
            seen[u] = outcome(u)
        return seen[u]

    edges: list[float] = []

    def search(low: float, high: float) -> None:
        if at(low) == at(high):
            return
        if high - low <= 4 * STEP:
            edges.append((low + high) / 2)
            return
        near = guesses[(guesses - STEP > low) & (guesses + STEP < high)]
        if len(near):
            middle = float(near[len(near) // 2])
            search(low, middle - STEP)
            search(middle - STEP, middle + STEP)
            search(middle + STEP, high)
        else:
            middle = (low + high) / 2
            search(low, middle)
            search(middle, high)

    grid = [*np.linspace(0, 1, GRID)[:-1], 1 - 2.0**-53]
    for low, high in pairwise(grid):
        search(float(low), float(high))
    sides = [0.0, *edges, 1.0]
    return [((a + b) / 2, b - a) for a, b in pairwise(sides)]


def _guesses(target: Table, drafter: Table, prompt: list[int], length: int, sampling: Sampling) -> np.ndarray:
    """Where edges lie for methods that draw by inverse CDF and accept by p/q, over all texts."""
    found: list[Tensor] = []
    texts: list[tuple[int, ...]] = [()]
    for _ in range(length):
        for text in texts:
            p, q = (sampling.probabilities(m.logits([*prompt, *text])) for m in (target, drafter))
            rest = (p - q).clamp(min=0)
            found += [p.cumsum(0), q.cumsum(0), (p / q).clamp(max=1), rest.cumsum(0) / rest.sum()]
            if drafter.kind == "eagle":  # a second sibling's draw, and its trial
                for gone in range(target.vocabulary):
                    other = q.index_fill(0, torch.tensor([gone]), 0.0)
                    other, left = other / other.sum(), rest / rest.sum()
                    last = (left - other).clamp(min=0)
                    found += [other.cumsum(0), (left / other).clamp(max=1), last.cumsum(0) / last.sum()]
        texts = [(*text, token) for text in texts for token in range(target.vocabulary)]
    return torch.cat(found).nan_to_num(0).numpy()


def spell(sampling: Sampling) -> str:
    """The settings in words."""
    words = f"temperature {sampling.temperature:g}"
    words += f", top-k {sampling.top_k}" if sampling.top_k else ""
    return words + (f", top-p {sampling.top_p:g}" if sampling.top_p < 1 else "")


@dataclass(frozen=True)
class ChiSquare:
    """A chi-square test of the first tokens' distribution.

    Parameters
    ----------
    statistic : float
    freedom : int
        Degrees of freedom: cells after pooling, minus one.
    p : float
        Chance of a statistic at least as large if the law is the target's.
    draws, cells : int
    threshold : float
        The test fails if p is below it.
    """

    statistic: float
    freedom: int
    p: float
    draws: int
    cells: int
    threshold: float = CHANCE

    @property
    def holds(self) -> bool:
        return self.p >= self.threshold

    def __str__(self) -> str:
        return (
            f"chi-square {self.statistic:.1f}, {self.freedom} degrees of freedom, {self.draws} draws: "
            f"p = {self.p:.3g}, {'holds' if self.holds else 'does not hold'} (threshold {self.threshold:g})"
        )


def chi_square(
    model: Any,
    draft: Any,
    prompt: Any,
    n: int = 2000,
    method: Callable[[], Method] | None = None,
    tokens: int = 2,
    sampling: Sampling = SETTINGS[0],
    seed: int = 0,
) -> ChiSquare:
    """Test the distribution of the first tokens over many seeds against the target's own.

    The target's probabilities come from the stock transformers module. Cells that expect fewer than
    `EXPECTED` draws are pooled into one.

    Parameters
    ----------
    model, draft : Model
    prompt : as `Model.encode` takes it
    n : int
        Draws, one a seed: `seed`, `seed` + 1, ...
    method : callable, optional
        Makes the method; default speculative decoding.
    tokens : int
        1 or 2 tokens make a cell.
    sampling : Sampling

    Raises
    ------
    ParameterError
        If n is too small for two cells, or the text ends before a cell is whole too often to compare.
    """
    from ..methods import find
    from .reference import reference_of

    make = method or find("speculative")
    ids = list(model.encode(prompt))
    law = first_tokens(model, reference_of(model), ids, n, tokens, sampling)
    counts: Counter[tuple[int, ...]] = Counter()
    for i in range(n):
        text: list[int] = []
        # One token more than is looked at, so that the cell's last one may be a draft's.
        for cycle in decode(
            model, ids, make(), drafter=draft, sampling=sampling, max_new_tokens=tokens + 1, seed=seed + i
        ):
            text += cycle.tokens
            if len(text) >= tokens:
                break
        counts[tuple(text[:tokens])] += 1
    return _test(counts, law, n)


def first_tokens(
    model: Any, reference: Any, ids: list[int], n: int, tokens: int, sampling: Sampling
) -> dict[tuple[int, ...], float]:
    """Probabilities of the cells of a chi-square test by the stock module; rare first tokens are left out."""
    ends = set(model.eos)

    def after(text: list[int]) -> np.ndarray:
        p = sampling.probabilities(reference.rows(ids, [*text, 0])[-1])  # what predicts the 0 behind it
        return p.double().cpu().numpy() / float(p.double().sum())

    found: dict[tuple[int, ...], float] = {}
    for token, p in enumerate(after([])):
        if tokens == 1 or token in ends:
            found[(token,)] = p
        elif p * n >= EXPECTED:  # the others' cells are all rare: they land in the pool
            found |= {(token, second): p * b for second, b in enumerate(after([token]))}
    return found


def cells_of(law: dict[tuple[int, ...], float], n: int) -> dict[tuple[int, ...], float]:
    """Of so many draws, how many each cell expects that is no part of the pool."""
    return {cell: p * n for cell, p in law.items() if p * n >= EXPECTED}


def _test(counts: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float], n: int) -> ChiSquare:
    own = cells_of(law, n)
    pool = n - sum(own.values())
    found, wanted = [counts[cell] for cell in own], list(own.values())
    left = n - sum(found)
    if pool >= EXPECTED or not own:
        found.append(left)
        wanted.append(pool)
    elif left or pool > 0:  # too little for a cell of its own: it joins the smallest
        least = int(np.argmin(wanted))
        found[least] += left
        wanted[least] += pool
    if len(found) < 2:
        raise ParameterError(f"{n} draws make only one cell: draw more, or raise the temperature")
    statistic = sum((a - b) ** 2 / b for a, b in zip(found, wanted))
    freedom = len(found) - 1
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    p = float(torch.special.gammaincc(half[0], half[1])) if math.isfinite(statistic) else 0.0
    return ChiSquare(float(statistic), freedom, p, n, len(found))
