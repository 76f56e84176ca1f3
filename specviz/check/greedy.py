"""Exercise: the greedy verifier."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from .exercise import Case, Exercise, Mistake, tokens

EOS = 9


def matching(drafted: list[int], best: list[int]) -> int:
    """Length of the prefix on which draft and target agree."""
    kept = 0
    while kept < len(drafted) and drafted[kept] == best[kept]:
        kept += 1
    return kept


def ended(emitted: list[int], eos: int) -> list[int]:
    """The tokens up to and with the first end of text."""
    return emitted[: emitted.index(eos) + 1] if eos in emitted else emitted


def answer(drafted: list[int], best: list[int], eos: int) -> tuple[list[int]]:
    """What the cycle emits: the accepted prefix, then one token of the target's own."""
    kept = matching(drafted, best)
    return (ended([*drafted[:kept], best[kept]], eos),)


def variant(
    rule: Callable[[list[int], list[int]], list[int]], drafted: list[int], best: list[int], eos: int
) -> tuple[list[int]]:
    """A wrong verifier that minds the end of the text."""
    return (ended(rule(drafted, best), eos),)


def shifted(drafted: list[int], best: list[int]) -> list[int]:
    kept = 0
    while kept < len(drafted) and drafted[kept] == best[kept + 1]:
        kept += 1
    return [*drafted[:kept], best[kept]]


def both(drafted: list[int], best: list[int]) -> list[int]:
    kept = matching(drafted, best)
    return [*drafted[:kept], best[kept], *([] if kept == len(drafted) else best[-1:])]


def skipping(drafted: list[int], best: list[int]) -> list[int]:
    kept = [a for a, b in zip(drafted, best) if a == b]
    return [*kept, best[len(kept)]]


def no_end(drafted: list[int], best: list[int], eos: int) -> tuple[list[int]]:
    kept = matching(drafted, best)
    return ([*drafted[:kept], best[kept]],)


def end_dropped(drafted: list[int], best: list[int], eos: int) -> tuple[list[int]]:
    (emitted,) = answer(drafted, best, eos)
    return ([t for t in emitted if t != eos],)


def bonus_after_end(drafted: list[int], best: list[int], eos: int) -> tuple[list[int]]:
    kept = matching(drafted, best)
    head = ended(drafted[:kept], eos)
    return ([*head, best[len(head)]],)


def rule(function: Callable[[list[int], list[int]], list[int]], says: str) -> Mistake:
    """A mistake that has nothing to do with the end of the text."""
    return Mistake(partial(variant, function), says)


MISTAKES = (
    rule(
        lambda d, b: d if matching(d, b) == len(d) else [*d[: matching(d, b)], b[matching(d, b)]],
        "off by one at the end: no bonus token. After a wholly accepted draft of n tokens the pass has also "
        "predicted place n, so best[n] comes for free; best has 1 + n entries.",
    ),
    rule(
        lambda d, b: d[: matching(d, b)],
        "only the draft's tokens are emitted. Each cycle also emits one of the target's own: a correction "
        "after a mismatch, the bonus after a wholly accepted draft. Without it a cycle may emit nothing at "
        "all.",
    ),
    rule(
        lambda d, b: [*d[: matching(d, b)], b[-1]],
        "the last entry of best is always appended. It is right only when the whole draft was accepted; "
        "after a mismatch it was predicted behind a token that is not in the text. The next token is "
        "best[kept].",
    ),
    rule(
        lambda d, b: [*d[: matching(d, b)], b[max(matching(d, b) - 1, 0)]],
        "off by one: the target's token is taken from best[kept - 1]. Row i predicts the place of "
        "drafted[i], so after `kept` accepted tokens the next one is best[kept].",
    ),
    rule(
        lambda d, b: [*d[: matching(d, b)], b[min(matching(d, b) + 1, len(b) - 1)]],
        "off by one: the target's token is taken from best[kept + 1]. That row was predicted behind the "
        "rejected token; the next one is best[kept].",
    ),
    rule(
        both,
        "a bonus is added after a correction. There is one token of the target's own a cycle: the "
        "correction or the bonus, never both.",
    ),
    rule(
        lambda d, b: d[: matching(d, b) + 1] if matching(d, b) < len(d) else [*d, b[-1]],
        "the rejected draft token itself is emitted. In its place comes the target's own token, best[kept].",
    ),
    rule(
        lambda d, b: [*d[: matching(d, b) + 1], b[matching(d, b)]],
        "off by one: the rejected draft token is kept, too, before the target's own token.",
    ),
    rule(
        skipping,
        "it does not stop at the first mismatch. What stands behind a mismatch was drafted, and judged, as "
        "the continuation of a token that is not in the text; it is gone even if it matches.",
    ),
    rule(
        lambda d, b: b,
        "all of best is emitted. Behind the first mismatch the target's rows answer a text that does not "
        "exist.",
    ),
    rule(lambda d, b: [*d, b[-1]], "nothing is ever rejected: the draft is emitted as it is."),
    rule(
        lambda d, b: [b[0]],
        "every cycle emits one token: nothing that was drafted is accepted.",
    ),
    rule(
        shifted,
        "drafted[i] is compared with best[i + 1]. Row i of best is the target's token in the place of "
        "drafted[i].",
    ),
    Mistake(
        no_end,
        "it goes on behind the end of the text. When an accepted token (or the target's own) is eos, the "
        "text ends there: what was accepted behind it, and the bonus, are cut.",
    ),
    Mistake(
        end_dropped,
        "the end-of-text token itself is dropped. It is part of the output; the text ends with it, not "
        "before it.",
    ),
    Mistake(
        bonus_after_end,
        "a token of the target's own is added behind the end of the text. After an accepted eos there is "
        "none.",
    ),
)  # fmt: skip


def parse(returned: Any, **given: Any) -> tuple[list[int]]:
    return (tokens(returned),)


def cases() -> list[Case]:
    """All drafts of up to two tokens over {1, 2, eos}; longer ones drawn."""
    cases: list[dict[str, Any]] = []
    for n in (1, 2, 0):
        block: list[dict[str, Any]] = [
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
        if number % 2:  # now and then the end of the text has another id
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
    parse=parse,
    cases=cases(),
    stages=("without an end of text", "with an end of text in the block"),
    mistakes=MISTAKES,
    tried="every draft of at most 2 tokens over a small vocabulary, then longer ones",
    further="what would your verifier have to return, beside the tokens, so that the loop knows which rows "
    "of the KV cache to keep?",
)
