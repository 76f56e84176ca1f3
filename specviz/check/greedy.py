"""Exercise: the greedy verifier."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from .exercise import Case, Exercise, Given, Mistake, before, one_list

EOS = 9


def matching(drafted: list[int], best: list[int]) -> int:
    """Length of the prefix on which draft and target agree."""
    return before(a != b for a, b in zip(drafted, best))


def ended(emitted: list[int], eos: int) -> list[int]:
    """The tokens up to and including the first end of text."""
    return emitted[: emitted.index(eos) + 1] if eos in emitted else emitted


def answer(drafted: list[int], best: list[int], eos: int) -> tuple[list[int]]:
    """Tokens that the cycle emits: the accepted prefix, then one token of the target's own."""
    kept = matching(drafted, best)
    return (ended([*drafted[:kept], best[kept]], eos),)


def no_end(drafted: list[int], best: list[int], eos: int) -> tuple[list[int]]:
    kept = matching(drafted, best)
    return ([*drafted[:kept], best[kept]],)


def end_dropped(drafted: list[int], best: list[int], eos: int) -> tuple[list[int]]:
    (emitted,) = answer(drafted, best, eos)
    return ([t for t in emitted if t != eos],)


def bonus_after_end(drafted: list[int], best: list[int], eos: int) -> tuple[list[int]]:
    head = ended(drafted[: matching(drafted, best)], eos)
    return ([*head, best[len(head)]],)


def shifted(drafted: list[int], best: list[int], kept: int) -> list[int]:
    kept = matching(drafted, best[1:])
    return [*drafted[:kept], best[kept]]


def skipping(drafted: list[int], best: list[int], kept: int) -> list[int]:
    agreeing = [a for a, b in zip(drafted, best) if a == b]
    return [*agreeing, best[len(agreeing)]]


def rule(function: Callable[[list[int], list[int], int], list[int]], says: str) -> Mistake:
    """A mistake unrelated to the end of the text, from a function of (drafted, best, accepted)."""

    def variant(drafted: list[int], best: list[int], eos: int) -> tuple[list[int]]:
        return (ended(function(drafted, best, matching(drafted, best)), eos),)

    return Mistake(variant, says)


MISTAKES = (
    rule(lambda d, b, kept: d if kept == len(d) else [*d[:kept], b[kept]],
        "off by one at the end: no bonus token. After a fully accepted draft of n tokens the pass has also "
        "predicted position n, so best[n] comes for free; best has 1 + n entries."),
    rule(lambda d, b, kept: d[:kept],
        "only the draft's tokens are emitted. Each cycle also emits one of the target's own tokens: a "
        "correction after a mismatch, or the bonus token after a fully accepted draft. Without it a cycle "
        "may emit nothing at all."),
    rule(lambda d, b, kept: [*d[:kept], b[-1]],
        "the last entry of best is always appended. It is right only if the whole draft was accepted; after "
        "a mismatch it was predicted after a token that is not in the text. The next token is "
        "best[kept]."),
    rule(lambda d, b, kept: [*d[:kept], b[max(kept - 1, 0)]],
        "off by one: the target's token is taken from best[kept - 1]. Row i predicts the position of "
        "drafted[i], so after `kept` accepted tokens the next one is best[kept]."),
    rule(lambda d, b, kept: [*d[:kept], b[min(kept + 1, len(b) - 1)]],
        "off by one: the target's token is taken from best[kept + 1]. That row was predicted after the "
        "rejected token; the next one is best[kept]."),
    rule(lambda d, b, kept: [*d[:kept], b[kept], *([] if kept == len(d) else b[-1:])],
        "a bonus token is added after a correction. Each cycle has one token of the target's own: the "
        "correction or the bonus token, never both."),
    rule(lambda d, b, kept: d[: kept + 1] if kept < len(d) else [*d, b[-1]],
        "the rejected draft token itself is emitted. The target's own token, best[kept], must replace it."),
    rule(lambda d, b, kept: [*d[: kept + 1], b[kept]],
        "off by one: the rejected draft token is also kept, before the target's own token."),
    rule(skipping,
        "it does not stop at the first mismatch. Tokens after a mismatch were drafted and judged as the "
        "continuation of a token that is not in the text; they are dropped even if they match."),
    rule(lambda d, b, kept: b,
        "all of best is emitted. After the first mismatch the target's rows continue a text that does not "
        "exist."),
    rule(lambda d, b, kept: [*d, b[-1]], "nothing is ever rejected: the draft is emitted as it is."),
    rule(lambda d, b, kept: [b[0]], "every cycle emits one token: no drafted token is accepted."),
    rule(shifted,
        "drafted[i] is compared with best[i + 1]. Row i of best is the target's token at the position of "
        "drafted[i]."),
    Mistake(no_end,
        "it continues after the end of the text. When an accepted token (or the target's own) is eos, the "
        "text ends there: later accepted tokens and the bonus token are cut."),
    Mistake(end_dropped,
        "the end-of-text token itself is dropped. It is part of the output; the text ends with it, not "
        "before it."),
    Mistake(bonus_after_end,
        "one of the target's own tokens is added after the end of the text. After an accepted eos there is "
        "none."),
)  # fmt: skip


def cases() -> list[Case]:
    """All drafts of up to two tokens over {1, 2, eos}, then longer random ones."""
    cases: list[Given] = []
    for n in (1, 2, 0):
        block: list[Given] = [
            {"drafted": list(drafted), "best": list(best), "eos": EOS}
            for drafted in product((1, 2, EOS), repeat=n)
            for best in product((1, 2, 3, EOS), repeat=n + 1)
        ]
        # Examples with different tokens read better.
        cases += sorted(block, key=lambda g: len(g["best"]) - len(set(g["best"])))
    rng = np.random.default_rng(0)
    for number in range(160):
        n = int(rng.integers(3, 7))
        own = rng.integers(1, 8, n + 1)
        draft = np.where(rng.random(n) < 0.8, own[:n], rng.integers(1, 8, n))
        eos = EOS
        if number % 2:  # in some cases the end of the text has another id
            eos = int(rng.choice([0, EOS, 50256]))
            where = int(rng.integers(n))
            own[where] = eos
            if rng.random() < 0.7:
                draft[where] = eos
        cases.append({"drafted": draft.tolist(), "best": own.tolist(), "eos": eos})
    staged = [Case(g, int(g["eos"] in (*g["drafted"], *g["best"]))) for g in cases]
    return sorted(staged, key=lambda c: c.stage)


EXERCISE = Exercise(
    name="greedy_verifier",
    answer=answer,
    parts=("tokens",),
    parse=one_list,
    cases=cases(),
    stages=("without an end of text", "with an end of text in the block"),
    mistakes=MISTAKES,
    tried="every draft of at most 2 tokens over a small vocabulary, then longer ones",
    further="what would your verifier have to return besides the tokens, so that the loop knows which rows "
    "of the KV cache to keep?",
)
