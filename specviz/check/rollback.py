"""Exercise: BiLD's rollback."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from .exercise import Case, Exercise, Mistake, before, one_list

LAWS = ([0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.2, 0.1, 0.7], [0.4, 0.35, 0.25], [0.05, 0.15, 0.8])
THRESHOLDS = (0.5, 1.0, 2.0)


Test = Callable[[np.ndarray, int, float], bool]  # (row of p, token drafted there, threshold)
Rule = Callable[[list[int], np.ndarray, int], list[int]]  # (drafted, p, tokens before the first unlikely)


def far(row: np.ndarray, token: int, threshold: float) -> bool:
    """Whether -ln p of a token is above the threshold."""
    return bool(-np.log(row[token]) > threshold)


def then(kept: list[int], row: np.ndarray) -> list[int]:
    """Append the large model's own token, from a row of p, to some tokens."""
    return [*kept, int(row.argmax())]


def rolled_back(drafted: list[int], p: np.ndarray, kept: int) -> list[int]:
    """The tokens before the first unlikely one, then the large model's own token in its place."""
    return then(drafted[:kept], p[kept])


def unlikely(drafted: list[int], p: np.ndarray, threshold: float, test: Test = far) -> list[bool]:
    """Which tokens are unlikely by a test."""
    return [test(p[m], y, threshold) for m, y in enumerate(drafted)]


def answer(drafted: list[int], p: np.ndarray, threshold: float) -> tuple[list[int]]:
    """Kim et al. 2023, Algorithm 1, lines 9-16, equation 3 with section 4.1's metric."""
    return (rolled_back(drafted, p, before(unlikely(drafted, p, threshold))),)


def mistake(rule: Rule, says: str, test: Test = far) -> Mistake:
    """A rollback that writes something else, or uses another test."""

    def variant(drafted: list[int], p: np.ndarray, threshold: float) -> tuple[list[int]]:
        return (rule(drafted, p, before(unlikely(drafted, p, threshold, test))),)

    return Mistake(variant, says)


def by(test: Test, says: str) -> Mistake:
    """A rollback at the first token whose row passes another test."""
    return mistake(rolled_back, says, test)


def after_far(rule: Rule, says: str) -> Mistake:
    """A rule that is wrong only if something is rolled back."""
    return mistake(lambda d, p, kept: (rolled_back if kept == len(d) else rule)(d, p, kept), says)


def patched(drafted: list[int], p: np.ndarray, threshold: float) -> tuple[list[int]]:
    """Replace each unlikely token in place."""
    new = [int(p[m].argmax()) if off else drafted[m] for m, off in enumerate(unlikely(drafted, p, threshold))]
    return (then(new, p[-1]),)


def last_far(drafted: list[int], p: np.ndarray, threshold: float) -> tuple[list[int]]:
    places = np.flatnonzero(unlikely(drafted, p, threshold))
    return (rolled_back(drafted, p, int(places[-1]) if len(places) else len(drafted)),)


def next_row(drafted: list[int], p: np.ndarray, threshold: float) -> tuple[list[int]]:
    return (rolled_back(drafted, p, before(unlikely(drafted, p[1:], threshold))),)


MISTAKES = (
    after_far(lambda d, p, kept: d[: kept + 1],
        "the rollback keeps the wrong token: the unlikely one itself stays. It must be dropped with "
        "everything after it, and the large model's own token replaces it."),
    after_far(lambda d, p, kept: then(d[: kept + 1], p[kept]),
        "the rollback keeps the wrong token: the large model's token follows the unlikely one but should "
        "replace it."),
    after_far(lambda d, p, kept: then(d[: kept + 1], p[kept + 1]),
        "the rollback keeps the wrong token and continues after it. Row m of p is for the position of "
        "drafted[m]: drop that token and put the argmax of row m there."),
    Mistake(patched,
        "unlikely tokens are replaced one by one. What the small model wrote after the first of them "
        "continued a token that is gone, so it must be dropped, too."),
    after_far(lambda d, p, kept: [*then(d[:kept], p[kept]), *d[kept + 1 :]],
        "the unlikely token is replaced, but what was drafted after it stays. That was written and judged "
        "as its continuation, so it must be dropped, too."),
    mistake(lambda d, p, kept: d[:kept],
        "the large model's own token is missing. The cycle always ends with one: in place of the first "
        "unlikely token, or after a block that was kept whole."),
    mistake(lambda d, p, kept: d if kept == len(d) else then(d[:kept], p[kept]),
        "off by one at the end: a block that is kept whole is also followed by the large model's token, "
        "argmax p[n]. The large model was called in order to write there (fallback)."),
    Mistake(last_far,
        "it rolls back to the last unlikely token. The first one counts: everything after it depends on it."),
    after_far(lambda d, p, kept: then([], p[0]),
        "it drops the whole block. The tokens before the first unlikely one stay."),
    mistake(lambda d, p, kept: then(d[:kept], p[-1]),
        "after a rollback the new token is taken from the last row of p. Use the row of the first unlikely "
        "token; the last row was predicted after text that is gone."),
    mistake(lambda d, p, kept: then(d[:kept], p[max(kept - 1, 0)]),
        "off by one: the new token is taken from the row before. Row m of p is for the position of "
        "drafted[m]."),
    mistake(lambda d, p, kept: then(d[:kept], p[min(kept + 1, len(d))]),
        "off by one: the new token is taken from the row after the unlikely token. Row m of p is for the "
        "position of drafted[m]."),
    by(lambda row, y, t: y != row.argmax(),
        "it rolls back wherever the token is not the large model's argmax. That is greedy verification; "
        "BiLD keeps whatever is likely enough: -ln p <= threshold."),
    by(lambda row, y, t: -np.log2(row[y]) > t,
        "the distance uses the logarithm to base 2. The threshold is in nats: use the natural one."),
    by(lambda row, y, t: -np.log10(row[y]) > t,
        "the distance uses the logarithm to base 10. The threshold is in nats: use the natural one."),
    by(lambda row, y, t: row[y] < t,
        "the probability itself is compared with the threshold. The distance is -ln p, and a large one "
        "rolls back."),
    by(lambda row, y, t: row[y] > t,
        "the probability itself is compared with the threshold. The distance is -ln p, and a large one "
        "rolls back."),
    by(lambda row, y, t: -np.log(row[y]) < t,
        "the comparison is reversed: a token is rolled back when -ln p is above the threshold."),
    by(lambda row, y, t: -np.log(row.max()) > t,
        "it uses the large model's top token. The distance is that of the drafted token: -ln "
        "p[m][drafted[m]]."),
    Mistake(next_row, "off by one: drafted[m] is judged by row m + 1 of p. Row m is for its position."),
    by(lambda row, y, t: -np.log(row[y]) >= t,
        "`>=` instead of `>`. At threshold 0 a token that the large model is certain of has distance 0, "
        "and stays."),
)  # fmt: skip


def cases() -> list[Case]:
    """All blocks of one token over five distributions, then longer random ones, then threshold 0."""
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
    parse=one_list,
    cases=cases(),
    stages=("at thresholds 0.5, 1 and 2", "at threshold 0"),
    mistakes=MISTAKES,
    tried="every block of one token over five distributions, then longer ones",
    further="with a threshold of 0, when is the output still not the large model's own greedy text? Think "
    "of the block in which the small model ends the text.",
)
