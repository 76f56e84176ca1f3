"""The law of sampling: does a method's output have exactly the target's distribution?

`check` is exact: over a toy vocabulary it runs the method's own drafter and verifier in the real loop,
once in each cell of the space of uniform numbers, and adds up the cells' volumes. `chi_square` is
statistical: it draws from real models with many seeds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import cache, partial
from itertools import chain, pairwise, product
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..draft import Draft
from ..errors import ParameterError
from ..loop.cycle import decode
from ..loop.updates import continued
from ..methods import Given, Make, Method, factory
from ..methods.kinds import SampledTreeMethod
from ..methods.sampling import Sampling
from ..models.context import Pass
from ..models.kernels import LAYOUTS, PLAIN
from ..models.protocols import Context, Model, Prompt
from .reference import Reference, Stepwise, reference_of
from .result import CHANCE, ChiSquare, LawResult

if TYPE_CHECKING:
    from ..loop.cycle import Target

Words: TypeAlias = tuple[int, ...]  # the tokens of a text
Law: TypeAlias = dict[Words, float]  # probability by text
Key: TypeAlias = tuple[int, int, int]  # of a uniform number: its cycle, its use and its index
Numbers: TypeAlias = dict[Key, float]
Trail: TypeAlias = tuple[tuple[Hashable, ...], ...]  # everything that the method did, by cycle

TOLERANCE = 1e-9
STEP = 1e-13  # precision with which a cell's edge is located
GRID = 5  # places at which outcomes are compared before any edge is located
FILLING = 32  # tokens of each text that warms a method with a memory
GREEDY = Sampling()
SETTINGS = (Sampling(1.0), Sampling(0.6), Sampling(0.9, top_k=2), Sampling(1.2, top_p=0.9))
EXPECTED = 5.0  # minimum expected draws of a chi-square test's cell; rarer cells are pooled


class OutsideVocabulary(ParameterError):
    """A method drafted ids outside a toy vocabulary, so its law cannot be enumerated there."""


class Table:
    """A toy language model: its float64 logits are a fixed random function of the whole text.

    Parameters
    ----------
    vocabulary, seed : int
    near : Table, optional
        The logits are the mean of random ones and this model's, so that one can draft for the other.
    eos : tuple of int
        Ids that end a text.
    """

    kind = "causal"
    device, dtype, max_length, parameters = torch.device("cpu"), torch.float64, 1 << 20, 0

    def __init__(
        self, vocabulary: int, seed: int, near: Table | None = None, eos: tuple[int, ...] = ()
    ) -> None:
        self.vocabulary, self.seed, self.near, self.eos = vocabulary, seed, near, eos
        self.name = f"table-{seed}"
        self._rows: dict[Words, Tensor] = {}

    def logits(self, text: Sequence[int]) -> Tensor:
        """Logits after `text`, [vocabulary]."""
        key = tuple(text)
        if key not in self._rows:
            row = torch.from_numpy(np.random.default_rng([self.seed, *key]).normal(0, 1, self.vocabulary))
            self._rows[key] = row if self.near is None else (row + self.near.logits(key)) / 2
        return self._rows[key]

    def left(self, prompt: int) -> int:
        """Number of tokens that can follow a prompt of `prompt` tokens."""
        return self.max_length - prompt

    def open(self, prompts: Sequence[Sequence[int]], room: int) -> _Text | _Pairs:
        """A context of one row."""
        return _Text(self, list(prompts[0]))

    def texts(self, length: int) -> Iterator[Words]:
        """All texts of fewer than `length` tokens."""
        return chain.from_iterable(product(range(self.vocabulary), repeat=n) for n in range(length))


class Reader(Table):
    """A table that drafts as EAGLE does: it reads tokens, and states that it ignores."""

    kind, apart, layers, tokens = "eagle", True, (0,), None

    def open(self, prompts: Sequence[Sequence[int]], room: int) -> _Pairs:
        """A context of one row; only the first token is read."""
        return _Pairs(self, list(prompts[0][:1]))


class _Pairs:
    """A context over a table that reads pairs (`specviz.models.eagle_model.EagleContext`)."""

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
        self.model, self.text, self.nodes = model, text, list[int]()

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

    def prefill(self, hidden: Sequence[int] = ()) -> int:
        return 0

    def extend(self, tokens: Tensor | list[int] | list[list[int]]) -> None:
        self.text += torch.as_tensor(tokens).flatten().tolist()

    def forward(self, draft: Draft, hidden: Sequence[int] = ()) -> Pass:
        self.nodes = draft.tokens.tolist()
        size = self.model.vocabulary
        if strange := next((token for token in self.nodes if not 0 <= token < size), None):
            raise OutsideVocabulary(
                f"the distribution is enumerated over a toy vocabulary of {size} tokens, but token "
                f"{strange} was drafted: draft only ids below self.session.target.vocabulary"
            )
        paths = [[self.nodes[j] for j in draft.path(i)] for i in range(-1, len(draft))]
        rows = torch.stack([self.model.logits(self.text + path) for path in paths])
        return Pass([rows], [len(rows)], {layer: [torch.zeros(len(rows), 1)] for layer in hidden})

    def commit(self, path: Sequence[int]) -> None:
        self.text += [self.nodes[node] for node in path]

    def rewind(self, length: int) -> None:
        del self.text[length:]

    def close(self) -> None:
        pass


def check(
    make: Given, settings: Sequence[Sampling] = SETTINGS, vocabulary: int = 3, length: int = 2
) -> list[LawResult]:
    """Compare the exact law of a method's texts with the target's, on a toy vocabulary.

    A method with a memory is run with an empty and with a filled one: in texts this short, it hardly drafts
    from an empty memory.

    Parameters
    ----------
    make : str, class, Method or callable
        The method, or a function that makes a fresh one.
    settings : sequence of Sampling
        The first is enumerated over texts that are one token longer.
    vocabulary, length : int
        The law is that of all texts of `length` tokens after a fixed prompt.

    Returns
    -------
    list of LawResult
        One for each setting and state of the memory.
    """
    make = factory(make)
    target = Table(vocabulary, 8)
    drafter = (Reader if make().drafts_with == "eagle" else Table)(vocabulary, 9, near=target)
    makers = {make().name: make}
    if (filled := warm(make, target, drafter, [[0, 1]], FILLING)) is not None:
        makers[f"{make().name}, warm"] = filled
    results = []
    for name, maker in makers.items():
        for i, sampling in enumerate(settings):
            steps = length + (i == 0)
            law, cells = law_of(maker, target, drafter, [0, 1], steps, sampling)
            error = apart(law, law_of_target(target, [0, 1], steps, sampling))
            results.append(LawResult(name, spell(sampling), error, TOLERANCE, cells))
    return results


def enumerable(make: Make) -> Make:
    """Adapt a method to a toy vocabulary: small parameters, no files, no memory of another vocabulary."""
    method = make()
    if method.law_check_params:
        return partial(type(method), **(method.values | method.law_check_params))
    remembers = method.memory is not None and method.memory["known"]
    if not remembers and not any(getattr(method, name) for name in method.files):
        return make
    return partial(type(method), **{k: v for k, v in method.values.items() if k not in method.files})


def apart(one: Law, other: Law) -> float:
    """Largest difference between two laws' probabilities of a text."""
    return max(abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in {*one, *other})


def warm(
    make: Make, target: Target, drafter: Target | None, prompts: Sequence[list[int]], length: int
) -> Make | None:
    """A function that makes the method with a memory of texts of `length` tokens; None if it keeps none."""
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
    target: Table, prompt: Sequence[int], length: int, sampling: Sampling, draft: Sequence[int] = (),
    beta: float = 0.0,
) -> Law:  # fmt: skip
    """Probability of each text of at most `length` tokens under the target alone.

    `beta` is that of equation 3 (Zeng et al.): while a text is a prefix of the draft, its next token has the
    law (1 - β) p + β δ.
    """
    law: Law = {(): 1.0}
    for place in range(length):
        longer: Law = {}
        for text, chance in law.items():
            if text and text[-1] in target.eos:
                longer[text] = chance
                continue
            p = sampling.probabilities(target.logits([*prompt, *text])).tolist()
            if place < len(draft) and text == tuple(draft[:place]):
                p = [(1 - beta) * each + beta * (token == draft[place]) for token, each in enumerate(p)]
            longer |= {(*text, token): chance * each for token, each in enumerate(p) if each}
        law = longer
    return law


def law_of(
    make: Make, target: Table, drafter: Table, prompt: list[int], length: int, sampling: Sampling,
    previous: Sequence[int] = (), edges: np.ndarray | None = None,
) -> tuple[Law, int]:  # fmt: skip
    """Probability of each text that the method writes in the real loop, and the number of cells run.

    `previous` is the output of a stream's previous update, for methods that draft from it; `edges` are
    guesses of where outcomes change.

    A method's behaviour is a step function of its uniform numbers. For one number after another, in the order
    in which the method takes them, [0, 1) is cut where the outcome changes; bisection locates the edges. So
    the method is judged by its behaviour alone, and a wrong method has a wrong law.
    """
    places = _guesses(target, drafter, prompt, length, sampling) if edges is None else edges
    guesses = np.unique(places[(places > 0) & (places < 1)])
    play = partial(
        _play, make, target, list(prompt), length, drafter=drafter, sampling=sampling, previous=previous
    )
    law: Law = {}
    open_cells: list[tuple[Numbers, float]] = [({}, 1.0)]
    cells = 0
    while open_cells:
        fixed, volume = open_cells.pop()
        free, _, text = play(fixed)
        if not free:
            law[text] = law.get(text, 0.0) + volume
            cells += 1
            continue

        def outcome(u: float, key: Key = free[0], fixed: Numbers = fixed) -> Trail:
            return play({**fixed, key: u})[1]

        for middle, width in _cut(outcome, guesses):
            open_cells.append(({**fixed, free[0]: middle}, volume * width))
    return law, cells


def _play(
    make: Make, target: Table, prompt: list[int], length: int, fixed: Numbers, **options: Any
) -> tuple[list[Key], Trail, Words]:
    """Decode with some uniform numbers fixed; return the others taken, what happened, and the text."""
    taken: dict[Key, None] = {}

    def uniforms(cycle: int, use: int, n: int) -> np.ndarray:
        keys = [(cycle, use, i) for i in range(n)]
        taken.update(dict.fromkeys(keys))
        return np.array([fixed.get(key, 0.5) for key in keys])

    trail, text, method = [], list[int](), make()
    for cycle in decode(target, prompt, method, max_new_tokens=length, uniforms=uniforms, **options):
        text += cycle.tokens
        drawn = method.drawn() if isinstance(method, SampledTreeMethod) else ()
        drafted = () if cycle.verdict is None else tuple(cycle.verdict.tokens)
        trail.append((drafted, tuple(cycle.status), tuple(cycle.tokens), drawn))
    return [key for key in taken if key not in fixed], tuple(trail), tuple(text[:length])


def _cut(outcome: Callable[[float], Hashable], guesses: np.ndarray) -> list[tuple[float, float]]:
    """Midpoints and widths of the cells of [0, 1) in which `outcome` is constant.

    `guesses` are likely places of edges; they save bisection steps and do not affect the result.
    """
    at = cache(outcome)
    edges: list[float] = []

    def search(low: float, high: float) -> None:
        if at(low) == at(high):
            return
        if high - low <= 4 * STEP:
            edges.append((low + high) / 2)
            return
        near = guesses[(guesses - STEP > low) & (guesses + STEP < high)]
        if len(near) == 1:
            middle = float(near[0])
            search(low, middle - STEP)
            search(middle - STEP, middle + STEP)
            search(middle + STEP, high)
        else:  # cut between the two middle guesses, which halves their number
            half = len(near) // 2
            middle = float(near[half - 1 : half + 1].mean()) if len(near) else (low + high) / 2
            search(low, middle)
            search(middle, high)

    grid = [*np.linspace(0, 1, GRID)[:-1], 1 - 2.0**-53]
    for low, high in pairwise(grid):
        search(float(low), float(high))
    sides = [0.0, *edges, 1.0]
    return [((a + b) / 2, b - a) for a, b in pairwise(sides)]


def _guesses(target: Table, drafter: Table, prompt: list[int], length: int, sampling: Sampling) -> np.ndarray:
    """Likely edges, over all texts, for methods that draw by inverse CDF and accept by p/q."""
    places: list[Tensor] = []
    for text in target.texts(length):
        p, q = (sampling.probabilities(m.logits([*prompt, *text])) for m in (target, drafter))
        rest = (p - q).clamp(min=0)
        places += [p.cumsum(0), q.cumsum(0), (p / q).clamp(max=1), rest.cumsum(0) / rest.sum()]
        if drafter.kind == "eagle":  # a second sibling's draw and test
            for gone in range(target.vocabulary):
                other = q.index_fill(0, torch.tensor([gone]), 0.0)
                other, left = other / other.sum(), rest / rest.sum()
                last = (left - other).clamp(min=0)
                places += [other.cumsum(0), (left / other).clamp(max=1), last.cumsum(0) / last.sum()]
    return torch.cat(places).nan_to_num(0).numpy()


def spell(sampling: Sampling) -> str:
    """The sampling settings in words."""
    if sampling.greedy:
        return "greedy"
    words = f"temperature {sampling.temperature:g}"
    words += f", top-k {sampling.top_k}" if sampling.top_k else ""
    return words + (f", top-p {sampling.top_p:g}" if sampling.top_p < 1 else "")


def chi_square(
    model: Model, draft: Model | None, prompt: Prompt, n: int = 2000, method: Given = "speculative",
    tokens: int = 2, sampling: Sampling = SETTINGS[0], seed: int = 0,
) -> ChiSquare:  # fmt: skip
    """Test the distribution of the first tokens over many seeds against the target's own.

    The target's probabilities come from the audit's reference. Cells that expect fewer than
    `EXPECTED` draws are pooled into one.

    Parameters
    ----------
    model, draft : Model
    prompt : as `Model.encode` takes it
    n : int
        Draws, one per seed: `seed`, `seed` + 1, ...
    method : str, class, Method or callable
        The method, or a function that makes a fresh one.
    tokens : int
        Number of first tokens that make a cell, 1 or 2.
    sampling : Sampling

    Raises
    ------
    ParameterError
        If the draws fill only one cell: `n` is too small, or the distribution too narrow.
    """
    make = factory(method)
    ids = list(model.encode(prompt))
    law = first_tokens(model, reference_of(model), ids, n, tokens, sampling)
    # One token more than a cell has, so that the cell's last one may come from a draft.
    drawn = partial(decode, model, ids, drafter=draft, sampling=sampling, max_new_tokens=tokens + 1)
    counts: Counter[Words] = Counter()
    context: Context | None = None
    try:
        for i in range(n):
            drawing, text = make(), list[int]()
            if not drawing.reads_prompt:  # the draws share the prompt's keys and values
                room = tokens + 1 + drawing.extra_cache_slots
                context, _ = continued(context, model, ids, ids, room)
            for cycle in drawn(drawing, seed=seed + i, context=context):
                text += cycle.tokens
                if len(text) >= tokens:
                    break
            counts[tuple(text[:tokens])] += 1
    finally:
        if context is not None:
            context.close()
    limits = sampling.top_k or sampling.top_p < 1
    exact = model.dtype == torch.float32 and getattr(model, "kernels", PLAIN) in LAYOUTS
    return _test(counts, law, n, rounds=bool(limits) and not exact)


def first_tokens(
    model: Model, reference: Reference | Stepwise, ids: list[int], n: int, tokens: int, sampling: Sampling
) -> Law:
    """Probabilities of a chi-square test's cells by the reference, without cells of few expected draws."""

    def after(text: list[int]) -> np.ndarray:
        p = sampling.probabilities(reference.rows(ids, [*text, 0])[-1])  # the row that predicts the 0
        p = p.cpu().double()  # MPS has no float64
        return p.numpy() / float(p.sum())

    def often(p: np.ndarray) -> list[tuple[int, float]]:
        return [(int(token), float(p[token])) for token in np.flatnonzero(p * n >= EXPECTED)]

    law: Law = {}
    for token, p in often(after([])):  # texts that begin with another token go into the pool
        if tokens == 1 or token in model.eos:
            law[(token,)] = p
        else:
            law |= {(token, second): both for second, both in often(p * after([token]))}
    return law


def cells_of(law: Law, n: int) -> Law:
    """Expected number of `n` draws for each cell that is not pooled."""
    return {cell: p * n for cell, p in law.items() if p * n >= EXPECTED}


def _test(counts: Counter[Words], law: Law, n: int, rounds: bool = False) -> ChiSquare:
    """Test the counts; `rounds`: rounding may let a token in at the edge of top-k or top-p."""
    own = cells_of(law, n)
    pool = n - sum(own.values())
    drawn, expected = [counts[cell] for cell in own], list(own.values())
    left = n - sum(drawn)
    if pool >= EXPECTED or not own:
        drawn.append(left)
        expected.append(pool)
    elif left or pool > 0:  # too few for a separate cell: they join the smallest
        least = int(np.argmin(expected))
        drawn[least] += left
        expected[least] += pool
    if len(drawn) < 2:
        raise ParameterError(f"{n} draws fill only one cell: draw more or raise the temperature")
    statistic = sum((a - b) ** 2 / b for a, b in zip(drawn, expected))
    impossible = left if pool < CHANCE and not rounds else 0
    if impossible:
        statistic = math.inf  # the target hardly ever draws these texts, which the smallest cell could hide
    freedom = len(drawn) - 1
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    p = float(torch.special.gammaincc(half[0], half[1])) if math.isfinite(statistic) else 0.0
    return ChiSquare(float(statistic), freedom, p, n, len(drawn), impossible=impossible)
