"""s(g): what one pass over g tokens costs in units of a pass over one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from specviz.bench.report import Estimate, Report
from specviz.bench.timing import quiet_clock, setting, settled, synchroniser
from specviz.draft import Draft
from specviz.errors import ParameterError
from specviz.methods import find

SIZES = (1, 2, 4, 8, 16, 32, 64)
COLUMNS = [
    ("model", "model", ""),
    ("g", "g", "{:d}"),
    ("median", "ms", "{:.2f}"),
    ("q25", "25%", "{:.2f}"),
    ("q75", "75%", "{:.2f}"),
    ("ratio", "s(g) [95%]", ""),
    ("each", "ms a token", "{:.3f}"),
]


def measure(
    model: Any, sizes: Sequence[int] = SIZES, context: int = 128, rounds: int = 31, branches: int = 1
) -> list[dict[str, Any]]:
    """Time passes of each size behind the same context, in turns.

    Parameters
    ----------
    model : Model
    sizes : sequence of int
        Numbers of tokens in a pass; 1 is added where it is missing.
    context : int
        Tokens committed before the pass.
    rounds : int
        Passes of each size.
    branches : int
        Children of a node in what is read behind the root: 1 is a chain, more a tree.

    Returns
    -------
    list of dict
        For each size: ``g``, ``median``, ``q25``, ``q75`` (milliseconds), ``ratio`` (s(g), an `Estimate`: the
        median over rounds of its time over that of one token in the same round), ``each`` (ms a token).

    Raises
    ------
    ParameterError
        If the model's context is too short.
    """
    sizes = sorted({1, *sizes})
    if sizes[0] < 1 or context < 1:
        raise ParameterError("a pass holds at least one token, and so does its context")
    if context + sizes[-1] > model.max_length:
        raise ParameterError(
            f"{context} tokens of context and {sizes[-1]} in a pass do not fit into {model.name}'s "
            f"{model.max_length}"
        )
    ids = np.random.default_rng(0).integers(0, model.vocabulary, context + sizes[-1]).tolist()
    drafts = {
        g: Draft(np.array(ids[context : context + g - 1], np.int64), np.arange(g - 1) // branches - 1)
        for g in sizes
    }
    wait, (clock, _) = synchroniser(model.device), quiet_clock(model.device)
    spent: dict[int, list[float]] = {g: [] for g in sizes}
    opened = model.open([ids[:context]], sizes[-1])
    try:
        opened.prefill()
        for g in sizes * 3:
            opened.forward(
                drafts[g]
            )  # also computes the last token of the context: from here on it is the root
        with settled():
            for turn in range(rounds):
                first = turn % len(sizes)
                for g in sizes[first:] + sizes[:first]:
                    wait()
                    begin = clock()
                    opened.forward(drafts[g])
                    wait()
                    spent[g].append(1e3 * (clock() - begin))
    finally:
        opened.close()
    one = np.array(spent[1])
    rows = []
    for g in sizes:
        q25, median, q75 = np.quantile(spent[g], (0.25, 0.5, 0.75)).tolist()
        ratio = Estimate.of((np.array(spent[g]) / one).tolist())
        rows.append({"g": g, "median": median, "q25": q25, "q75": q75, "ratio": ratio, "each": median / g})
    return rows


def bench(
    model: Any,
    drafts: list[Any],
    entries: list[dict[str, Any]],
    *,
    prompts: int = 128,
    max_new_tokens: int = 64,
    rounds: int = 51,
    tick: Callable[[int, int, str], None] = lambda done, of, name: None,
) -> Report:
    """s(g) of the target and of each draft model.

    Here `prompts` is the length of the context and `max_new_tokens` the largest g; `entries` is not read.
    """
    drafts = find("speculative").suited(drafts)  # an EAGLE drafter has no passes of its own
    models = [model, *drafts]
    context = min(prompts, model.max_length // 2)
    sizes = [g for g in SIZES if g <= min(max_new_tokens, min(m.max_length for m in models) - context)]
    rows = []
    for number, each in enumerate(models):
        rows += [{"model": each.name, **row} for row in measure(each, sizes, context, rounds)]
        tick(number + 1, len(models), each.name)
    return Report(
        "passes",
        f"One pass over g tokens behind {context}, median of {rounds}",
        setting(model, drafts, context=context, rounds=rounds, clock=quiet_clock(model.device)[1]),
        COLUMNS,
        rows,
        notes=["s(g) is flat while reading the weights costs more than computing with them, and then grows."],
    )
