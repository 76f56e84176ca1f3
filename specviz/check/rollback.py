"""Exercise: BiLD's rollback."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from .exercise import Case, Exercise, Mistake, tokens

LAWS = ([0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.2, 0.1, 0.7], [0.4, 0.35, 0.25], [0.05, 0.15, 0.8])
THRESHOLDS = (0.5, 1.0, 2.0)


def first_far(drafted: list[int], p: np.ndarray, threshold: float) -> int:
    """The first place where -ln p of the drafted token is above the threshold; n if there is none."""
    for m, y in enumerate(drafted):
        if -np.log(p[m, y]) > threshold:
            return m
    return len(drafted)


def answer(drafted: list[int], p: np.ndarray, threshold: float) -> tuple[list[int]]:
    """Kim et al. 2023, Algorithm 1, lines 9-16, equation 3 with section 4.1's metric."""
    kept = first_far(drafted, p, threshold)
    return ([*drafted[:kept], int(p[kept].argmax())],)


Rule = Callable[[list[int], np.ndarray, float], list[int]]


def given(rule: Rule, drafted: list[int], p: np.ndarray, threshold: float) -> tuple[list[int]]:
    return (rule(drafted, p, threshold),)


def mistake(rule: Rule, says: str) -> Mistake:
    return Mistake(partial(given, rule), says)


def by(distance: Callable[[np.ndarray, int, float], bool]) -> Rule:
    """A rollback at the first token whose row passes another test."""

    def rule(drafted: list[int], p: np.ndarray, threshold: float) -> list[int]:
        far = [distance(p[m], y, threshold) for m, y in enumerate(drafted)]
        kept = far.index(True) if True in far else len(drafted)
        return [*drafted[:kept], int(p[kept].argmax())]

    return rule


def at(row: Callable[[int, int], int]) -> Rule:
    """A rollback whose new token comes from another row of p, a function of (kept, n)."""

    def rule(drafted: list[int], p: np.ndarray, threshold: float) -> list[int]:
        kept = first_far(drafted, p, threshold)
        return [*drafted[:kept], int(p[row(kept, len(drafted))].argmax())]

    return rule


def keeps_then(row: int) -> Rule:
    """The unlikely token stays and the large model's follows, from its place (0) or the next (1)."""

    def rule(drafted: list[int], p: np.ndarray, threshold: float) -> list[int]:
        kept = first_far(drafted, p, threshold)
        if kept == len(drafted):
            return answer(drafted, p, threshold)[0]
        return [*drafted[: kept + 1], int(p[kept + row].argmax())]

    return rule


def without_new(drafted: list[int], p: np.ndarray, threshold: float) -> list[int]:
    return drafted[: first_far(drafted, p, threshold)]


def no_fallback(drafted: list[int], p: np.ndarray, threshold: float) -> list[int]:
    kept = first_far(drafted, p, threshold)
    return drafted if kept == len(drafted) else answer(drafted, p, threshold)[0]


def patched(drafted: list[int], p: np.ndarray, threshold: float) -> list[int]:
    """Each unlikely token is replaced where it stands."""
    far = [-np.log(p[m, y]) > threshold for m, y in enumerate(drafted)]
    return [int(p[m].argmax()) if far[m] else y for m, y in enumerate(drafted)] + [int(p[-1].argmax())]


def patched_first(drafted: list[int], p: np.ndarray, threshold: float) -> list[int]:
    """The first unlikely token is replaced, and what stands behind it stays."""
    kept = first_far(drafted, p, threshold)
    if kept == len(drafted):
        return answer(drafted, p, threshold)[0]
    return [*drafted[:kept], int(p[kept].argmax()), *drafted[kept + 1 :]]


def last_far(drafted: list[int], p: np.ndarray, threshold: float) -> list[int]:
    far = [m for m, y in enumerate(drafted) if -np.log(p[m, y]) > threshold]
    kept = far[-1] if far else len(drafted)
    return [*drafted[:kept], int(p[kept].argmax())]


def whole_block(drafted: list[int], p: np.ndarray, threshold: float) -> list[int]:
    kept = first_far(drafted, p, threshold)
    return [*(drafted if kept == len(drafted) else []), int(p[kept if kept == len(drafted) else 0].argmax())]


def next_row(drafted: list[int], p: np.ndarray, threshold: float) -> list[int]:
    far = [-np.log(p[m + 1, y]) > threshold for m, y in enumerate(drafted)]
    kept = far.index(True) if True in far else len(drafted)
    return [*drafted[:kept], int(p[kept].argmax())]


MISTAKES = (
    mistake(
        lambda d, p, t: d[: first_far(d, p, t) + 1] if first_far(d, p, t) < len(d) else answer(d, p, t)[0],
        "the rollback keeps the wrong token: the unlikely one itself stays. It is thrown away with all that"
        " follows, and the large model's own token takes its place.",
    ),
    mistake(
        keeps_then(0),
        "the rollback keeps the wrong token: the large model's token comes behind the unlikely one, and "
        "should come in its place.",
    ),
    mistake(
        keeps_then(1),
        "the rollback keeps the wrong token and continues behind it. Row m of p is for the place of "
        "drafted[m]: throw that token away and put the argmax of row m there.",
    ),
    mistake(
        patched,
        "unlikely tokens are exchanged one by one. What the small model wrote behind the first of them "
        "continued a token that is gone, so it goes, too.",
    ),
    mistake(
        patched_first,
        "the unlikely token is exchanged, but what was drafted behind it stays. That was written, and "
        "judged, as its continuation; it goes, too.",
    ),
    mistake(
        without_new,
        "the large model's own token is missing. The cycle always ends with one: in the place of the first "
        "unlikely token, or behind a block that was kept whole.",
    ),
    mistake(
        no_fallback,
        "off by one at the end: a block that is kept whole is also followed by the large model's token, "
        "argmax p[n]. The large model was called because it is to write there (fallback).",
    ),
    mistake(
        last_far,
        "it rolls back to the last unlikely token. The first one counts: everything behind it hangs on it.",
    ),
    mistake(
        whole_block,
        "it throws the whole block away. The tokens before the first unlikely one stay.",
    ),
    mistake(
        at(lambda kept, n: n),
        "after a rollback the new token is taken from the last row of p. The row of the first unlikely "
        "token is meant; the last one was predicted behind text that is gone.",
    ),
    mistake(
        at(lambda kept, n: max(kept - 1, 0)),
        "off by one: the new token is taken from the row before. Row m of p is for the place of drafted[m].",
    ),
    mistake(
        at(lambda kept, n: min(kept + 1, n)),
        "off by one: the new token is taken from the row behind the unlikely token. Row m of p is for the "
        "place of drafted[m].",
    ),
    mistake(
        by(lambda row, y, t: y != row.argmax()),
        "it rolls back wherever the token is not the large model's argmax. That is greedy verification; "
        "BiLD keeps whatever is likely enough: -ln p <= threshold.",
    ),
    mistake(
        by(lambda row, y, t: -np.log2(row[y]) > t),
        "the distance is taken with the logarithm to base 2. The threshold is in nats: use the natural one.",
    ),
    mistake(
        by(lambda row, y, t: -np.log10(row[y]) > t),
        "the distance is taken with the logarithm to base 10. The threshold is in nats: use the natural one.",
    ),
    mistake(
        by(lambda row, y, t: row[y] < t),
        "the probability itself is compared with the threshold. The distance is -ln p, and a large one "
        "rolls back.",
    ),
    mistake(
        by(lambda row, y, t: row[y] > t),
        "the probability itself is compared with the threshold. The distance is -ln p, and a large one "
        "rolls back.",
    ),
    mistake(
        by(lambda row, y, t: -np.log(row[y]) < t),
        "the comparison is the wrong way round: a token is taken back when -ln p is above the threshold.",
    ),
    mistake(
        by(lambda row, y, t: -np.log(row.max()) > t),
        "it looks at the large model's best token. The distance is that of the drafted token: -ln "
        "p[m][drafted[m]].",
    ),
    mistake(
        next_row,
        "off by one: drafted[m] is judged by row m + 1 of p. Row m is for its place.",
    ),
    mistake(
        by(lambda row, y, t: -np.log(row[y]) >= t),
        "`>=` in place of `>`. At threshold 0 a token that the large model is certain of has distance 0, "
        "and stays.",
    ),
)  # fmt: skip


def parse(returned: Any, **given: Any) -> tuple[list[int]]:
    return (tokens(returned),)


def cases() -> list[Case]:
    """All blocks of one token over five distributions; longer ones drawn; then threshold 0."""
    cases = []
    laws = np.array(LAWS)
    for rows in product(range(len(LAWS)), repeat=2):
        for y in range(3):
            cases += [Case({"drafted": [y], "p": laws[list(rows)], "threshold": t}) for t in THRESHOLDS]
    rng = np.random.default_rng(2)
    for n, count in ((2, 120), (3, 80), (5, 60), (0, 5)):
        for _ in range(count):
            p = laws[rng.integers(len(LAWS), size=n + 1)]
            likely = p[:n].argmax(-1)
            drafted = np.where(rng.random(n) < 0.6, likely, rng.integers(3, size=n))
            threshold = float(rng.choice(THRESHOLDS))
            cases.append(Case({"drafted": drafted.tolist(), "p": p, "threshold": threshold}))
    sure = np.eye(3)
    for y in range(3):
        cases.append(Case({"drafted": [y], "p": np.stack([sure[y], laws[0]]), "threshold": 0.0}, 1))
        cases.append(Case({"drafted": [y], "p": np.stack([laws[y], laws[0]]), "threshold": 0.0}, 1))
    return cases


EXERCISE = Exercise(
    name="bild_rollback",
    answer=answer,
    parts=("tokens",),
    parse=parse,
    cases=cases(),
    stages=("at thresholds 0.5, 1 and 2", "at threshold 0"),
    mistakes=MISTAKES,
    tried="every block of one token over five distributions, then longer ones",
    further="with a threshold of 0, when is what comes out still not the large model's own greedy text? "
    "Think of the block in which the small model ends the text.",
)
