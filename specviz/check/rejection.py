"""Exercise: the rejection rule: accept, residual, bonus."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from .exercise import Case, Exercise, Given, Misfit, Mistake, Returned, array, before, two
from .result import words

Accept = Callable[[list[int], np.ndarray, np.ndarray, list[float]], int]
Law = Callable[[np.ndarray, np.ndarray, int], np.ndarray]
LAWS = (
    [0.6, 0.3, 0.1], [0.1, 0.6, 0.3], [0.3, 0.1, 0.6], [0.5, 0.25, 0.25], [0.2, 0.7, 0.1], [0.1, 0.2, 0.7],
    [0.5, 0.5, 0.0], [0.0, 0.4, 0.6],
)  # fmt: skip


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities along the last axis."""
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def over(values: np.ndarray) -> np.ndarray:
    """Values divided by their sum; unchanged if the sum is zero."""
    return values / values.sum() if values.sum() > 0 else values


def accepted(drafted: list[int], q: np.ndarray, p: np.ndarray, u: list[float]) -> int:
    """Number of tokens accepted before the first rejection."""
    return before(not u[i] * q[i, x] < p[i, x] for i, x in enumerate(drafted))


def after(p: np.ndarray, q: np.ndarray, kept: int) -> np.ndarray:
    """The distribution of the next token: the residual after a rejection, p after the whole draft."""
    return p[kept] if kept == len(q) else over(np.maximum(p[kept] - q[kept], 0))


def answer(
    drafted: list[int], draft_logits: np.ndarray, target_logits: np.ndarray, temperature: float,
    u: list[float], accept: Accept = accepted, law: Law = after, tempered: str = "pq",
) -> tuple[int, np.ndarray]:  # fmt: skip
    """Leviathan et al. 2023, Algorithm 1, lines 8-15; the last three arguments substitute other rules."""
    q = softmax(draft_logits / (temperature if "q" in tempered else 1))
    p = softmax(target_logits / (temperature if "p" in tempered else 1))
    kept = accept(drafted, q, p, u)
    return kept, law(p, q, kept)


def tested(test: Callable[[float, float, float], bool], says: str) -> Mistake:
    """A mistake that accepts tokens up to the first that fails a test of p(x), q(x) and u."""

    def until(drafted: list[int], q: np.ndarray, p: np.ndarray, u: list[float]) -> int:
        return before(not test(p[i, x], q[i, x], u[i]) for i, x in enumerate(drafted))

    return Mistake(partial(answer, accept=until), says)


def counted(drafted: list[int], q: np.ndarray, p: np.ndarray, u: list[float]) -> int:
    return sum(bool(u[i] * q[i, x] < p[i, x]) for i, x in enumerate(drafted))


def one_more(drafted: list[int], q: np.ndarray, p: np.ndarray, u: list[float]) -> int:
    return min(accepted(drafted, q, p, u) + 1, len(drafted))


def likeliest(drafted: list[int], q: np.ndarray, p: np.ndarray, u: list[float]) -> int:
    return before(x != p[i].argmax() for i, x in enumerate(drafted))


def lawful(law: Law, says: str) -> Mistake:
    return Mistake(partial(answer, law=law), says)


def rejected(rest: Callable[[np.ndarray, np.ndarray], np.ndarray], says: str) -> Mistake:
    """A law that is wrong only after a rejection."""
    return lawful(lambda p, q, kept: p[kept] if kept == len(q) else rest(p[kept], q[kept]), says)


def bonus(law: Law, says: str) -> Mistake:
    """A law that is wrong only after a fully accepted draft of at least one token."""
    return lawful(lambda p, q, kept: (law if kept == len(q) > 0 else after)(p, q, kept), says)


MISTAKES = (
    Mistake(partial(answer, tempered="p"),
        "q ignores the temperature. The draft was sampled at the temperature, so q is softmax(draft_logits "
        "/ temperature): the distribution that the token was actually drawn from."),
    Mistake(partial(answer, tempered="q"),
        "p ignores the temperature. The required distribution is softmax(target_logits / temperature)."),
    Mistake(partial(answer, tempered=""),
        "the temperature is ignored. Both models' logits are divided by it before the softmax."),
    tested(lambda p, q, u: p >= q,
        "u is not used: a token is accepted exactly when p >= q. If p < q it must still be accepted with "
        "probability p / q; otherwise it appears too rarely."),
    tested(lambda p, q, u: u < p,
        "u is compared with p(x) alone. The token was already drawn with probability q(x); accept if u < "
        "p(x) / q(x)."),
    tested(lambda p, q, u: u * p < q,
        "the ratio is inverted: accept if u < p(x) / q(x), the target's probability over the draft's."),
    tested(lambda p, q, u: not u * q < p,
        "the comparison is reversed: a small u accepts. Accept if u < p(x) / q(x)."),
    tested(lambda p, q, u: u * q <= p,
        "`<=` instead of `<`. u can be exactly 0, and then a token with target probability 0 is accepted."),
    Mistake(partial(answer, accept=likeliest),
        "a token is accepted when it is the target's argmax. That is the greedy rule; here accept if u < "
        "p(x) / q(x)."),
    Mistake(partial(answer, accept=counted),
        "it counts every token that passes the test. The first rejection ends the block: later tokens were "
        "drafted as the continuation of a token that is not in the text."),
    Mistake(partial(answer, accept=one_more), "off by one: the rejected token is counted as accepted."),
    rejected(lambda p, q: np.maximum(p - q, 0),
        "the residual is not renormalised. max(0, p - q) sums to the probability of a rejection, not to 1; "
        "divide it by its sum."),
    rejected(lambda p, q: p,
        "after a rejection it draws from p itself. Tokens that the draft proposes too rarely would then "
        "still appear too rarely; draw from max(0, p - q), divided by its sum."),
    rejected(lambda p, q: over(np.maximum(q - p, 0)),
        "the residual has the wrong sign: it is max(0, p - q), the probability that the draft is missing."),
    rejected(lambda p, q: over(np.abs(p - q)),
        "the residual uses |p - q|. Where q is larger than p nothing is missing: use max(0, p - q)."),
    rejected(lambda p, q: over(np.minimum(p, q)),
        "the residual uses min(p, q). That part was already accepted; what is missing is max(0, p - q)."),
    rejected(lambda p, q: q,
        "after a rejection it draws from the draft's q. What is missing is max(0, p - q), divided by its "
        "sum."),
    bonus(lambda p, q, kept: p[kept - 1],
        "off by one at the bonus token: after a fully accepted draft the distribution is the last row of p, "
        "p[n], not p[n - 1]. p has one row more than there are drafted tokens."),
    bonus(lambda p, q, kept: over(np.maximum(p[kept] - q[kept - 1], 0)),
        "the bonus token is drawn from a residual. After a fully accepted draft nothing was proposed for "
        "that position, so its distribution is p[n] itself."),
    bonus(lambda p, q, kept: over(np.maximum(p[kept - 1] - q[kept - 1], 0)),
        "a fully accepted draft is treated like a rejection of its last token. The distribution is then "
        "p[n], for the bonus token."),
    lawful(lambda p, q, kept: p[kept] if kept == len(q) else p[kept + 1],
        "off by one: after a rejection the distribution is for the position of the rejected token, row "
        "`kept`, not for the next one."),
)  # fmt: skip


def parse(returned: Returned, **given: np.ndarray) -> tuple[int, np.ndarray]:
    kept, law = two(returned, "kept (how many are accepted) and law (a distribution)")
    if isinstance(kept, list | tuple) or (isinstance(kept, np.ndarray) and kept.ndim):
        raise Misfit("kept is the number of accepted draft tokens, an integer, not the tokens.")
    if isinstance(kept, np.ndarray):
        kept = kept.item()
    if isinstance(kept, bool) or not isinstance(kept, int | np.integer):
        raise Misfit(f"kept must be an integer (int); it is {words(kept)}.")
    if isinstance(law, int | float | np.number) or (isinstance(law, np.ndarray) and not law.ndim):
        raise Misfit(
            "law must be the distribution that the next token is drawn from, not a single number or token."
        )
    law = array(law, given["target_logits"].shape[1:], "law")
    if not np.isfinite(law).all():
        raise Misfit("law holds inf or NaN: something was divided by zero. Clip p - q at 0 before summing.")
    if (law < -1e-9).any():
        raise Misfit(
            "law has a negative entry: p - q is negative where q is larger than p. Clip it at 0 first."
        )
    return int(kept), law


def case(rng: np.random.Generator, n: int, temperature: float) -> Case:
    """A random case of n drafted tokens whose decisions do not depend on rounding."""
    while True:
        p = np.array([LAWS[i] for i in rng.integers(len(LAWS), size=n + 1)])
        q = np.array([LAWS[i] for i in rng.integers(len(LAWS), size=n)]).reshape(n, 3)
        drafted = [int(rng.choice(3, p=row)) for row in q]
        u = rng.integers(1, 20, n) / 20 + 0.013
        if rng.random() < 0.5:  # otherwise long drafts are hardly ever fully accepted
            u /= 4
        u = u.round(3)
        if all(abs(u[i] * q[i, x] - p[i, x]) > 0.004 for i, x in enumerate(drafted)):
            return build(drafted, q, p, temperature, u.tolist(), int(temperature != 1))


def build(
    drafted: list[int], q: np.ndarray, p: np.ndarray, temperature: float, u: list[float], stage: int
) -> Case:
    """Build a case from its probabilities at its temperature."""
    with np.errstate(divide="ignore"):  # an added constant does not change the softmax
        logits = {"draft_logits": temperature * np.log(q) + 2, "target_logits": temperature * np.log(p) + 1}
    given: Given = {"drafted": drafted, **logits, "temperature": temperature, "u": u}
    shown: Given = {"drafted": drafted, "u": u, "temperature": temperature}
    shown |= {"q = softmax(draft_logits / temperature)": q, "p = softmax(target_logits / temperature)": p}
    return Case(given, stage, {name: value for name, value in shown.items() if np.size(value)})


def cases() -> list[Case]:
    """Random cases with a fixed seed."""
    rng = np.random.default_rng(1)
    plain, warped = ((1, 100), (2, 80), (3, 60), (5, 40), (0, 4)), ((1, 80), (2, 60), (4, 40))
    drawn = lambda: float(rng.choice([0.5, 0.8, 1.5]))
    cases = [case(rng, n, 1) for n, count in plain for _ in range(count)]
    cases += [case(rng, n, drawn()) for n, count in warped for _ in range(count)]
    never = np.array([[0.5, 0.5, 0.0], [0.3, 0.6, 0.1]])
    cases.append(build([2], np.array([[0.1, 0.2, 0.7]]), never, 1, [0.0], 2))
    return cases


EXERCISE = Exercise(
    name="rejection_rule",
    answer=answer,
    parts=("kept", "law"),
    parse=parse,
    cases=cases(),
    stages=("at temperature 1", "at other temperatures", "with u exactly 0"),
    mistakes=MISTAKES,
    tried="blocks of 0 to 5 tokens, at temperatures 0.5 to 1.5",
    further="what would kept and law be if the drafter took its argmax and q were 1 on that token? Does the "
    "rule still give the distribution p?",
)
