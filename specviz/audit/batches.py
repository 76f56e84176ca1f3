"""The audit of batches: is every row what its prompt gives when it is decoded alone?

Both are decoded with the same seed, so a row's random numbers are those of its single run. Where the texts
are equal, the rows of logits that judging read must agree within the bound. Where they part greedily, the
place is judged as the text audit does it. Where a sampled text or that of a lossy method parts, or its draft,
the first cycle that differs must have drawn the same uniforms and read (of drafter and target) the same rows
within the bound: then rounding has turned a decision. Anything else is a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from .. import methods as catalogue
from ..arguments import check_int
from ..errors import ParameterError
from ..loop.batch import check_rows, decode_batch
from ..loop.checks import check_batchable
from ..loop.cycle import Cycle, decode
from ..methods.base import Method
from ..methods.sampling import Sampling
from .reference import reference_of
from .result import AuditResult, Difference, Row
from .text import (
    Decoding,
    _Audit,
    _backend,
    _exact,
    _factory,
    _label,
    _measure,
    _raised,
    _rows_read,
    _spell,
    _text,
    audited_model,
    check_causal,
    choose,
    counter,
    encoded,
    result_of,
)  # fmt: skip

ROUNDS = 4  # batches' worth of prompts that are decoded in one go, so that rows come and go


def run(
    model: Any,
    drafts: Any = None,
    prompts: Sequence[Any] = (),
    methods: Sequence[Any] | None = None,
    batch: int = 8,
    max_new_tokens: int = 64,
    dtype: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    sampled: int = 20,
    temperature: float = 1.0,
    progress: Callable[[int, int], None] | None = None,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
) -> AuditResult:
    """Audit batched decoding: each row against its prompt's single run.

    Parameters
    ----------
    model, drafts, prompts, max_new_tokens, dtype, device, threads, sampled, temperature, progress, top_k,
    top_p, seed
        As `specviz.audit.run` takes them.
    methods : list of str, Method or factory, optional
        Lossy ones too. Default: every method that decodes prompts. Those that remember do so for one prompt.
    batch : int
        Rows.

    Returns
    -------
    AuditResult
        Without laws: those are the single run's.

    Raises
    ------
    ParameterError, ModelError, PromptError
        Before any work.
    """
    batch = check_int("batch", batch, 1)
    with _backend(threads):
        target = audited_model(model, device, dtype)
        check_causal(target)
        ids = encoded(target, prompts)
        given = catalogue.names("prompt") if methods is None else methods
        factories = [_cold(_factory(each)) for each in catalogue.as_list(given)]
        if methods is None:  # a pass that leaves early is one row's own: no batch is run so
            factories = [make for make in factories if make().exit_rule is None]
        for make in factories:
            check_batchable(make(), [])
        check_rows(target)
        chosen = choose(target, factories, drafts, methods is None, device, dtype)
        check_rows(*chosen.drafters)
        reference = reference_of(target)
        bound = _measure(target, reference, ids, max_new_tokens)
        pairs = [
            (sampling, some, make, drafter)
            for sampling, some in ((Sampling(), ids), (Sampling(temperature, top_k, top_p), ids[:sampled]))
            if some
            for make in chosen.factories
            if sampling.greedy or not make().only_greedy
            for drafter in make().suited(chosen.drafters)
        ]
        tick = counter(progress, len(pairs))
        rows = []
        for sampling, some, make, drafter in pairs:
            audit = _Rows(target, reference, Decoding(sampling, max_new_tokens, bound.value, seed))
            rows.append(audit.method(make, drafter, some, batch))
            tick()
        return result_of(target, max_new_tokens, bound, rows, left_out=chosen.left_out)


class _Rows(_Audit):
    """Compares rows with single runs."""

    def method(self, make: Callable[[], Method], drafter: Any, prompts: list[list[int]], batch: int) -> Row:
        """One method with one draft, all prompts."""
        named = f"{_spell(self.sampling)}, {batch} rows"
        row = Row(_label(make()), drafter.name if drafter else "", named, self.bound, spared=1)
        options = {
            "drafter": drafter, "sampling": self.sampling, "max_new_tokens": self.limit,
            "seed": self.decoding.seed,
        }  # fmt: skip
        exact = self.sampling.greedy and _exact(make(), self.sampling, self.target)
        for first in range(0, len(prompts), ROUNDS * batch):
            some = prompts[first : first + ROUNDS * batch]
            found: list[list[Cycle]] = [[] for _ in some]
            failed = ""
            try:
                for cycles in decode_batch(self.target, some, make(), rows=batch, **options):
                    for cycle in cycles:
                        found[cycle.prompt].append(cycle)
            except Exception as error:  # a batch that raises has not written its texts
                failed = f"the batch raised {_raised(error)}"
            for i, prompt in enumerate(some):
                if failed:
                    row.count([Difference(first + i, -1, "bug", failed)])
                    continue
                alone = list(decode(self.target, prompt, make(), prompt=i, **options))
                row.tokens += len(_text(found[i]))
                row.count(self.compare(first + i, prompt, found[i], alone, exact))
        return row

    def compare(
        self, number: int, prompt: list[int], row: list[Cycle], alone: list[Cycle], exact: bool
    ) -> list[Difference]:
        """What sets a row apart from its single run; `exact`: it is greedy, and the text the target's own."""
        text, expected = _text(row), _text(alone)
        read, other = _rows_read(row), _rows_read(alone)
        part = next((i for i, (a, b) in enumerate(zip(expected, text)) if a != b), None)
        if part is None and len(text) != len(expected):
            words = f"the row has {len(text)} tokens; alone the text has {len(expected)}"
            return [Difference(number, min(len(text), len(expected)), "bug", words)]
        if part is not None and exact:
            pair = expected[part], text[part]
            rows = read[part], other[part]
            return [self.place(number, prompt, text[:part], *pair, *rows, "the text decoded alone")]
        if part is not None:
            return [self.turned(number, part, row, alone)]
        for i, (a, b) in enumerate(zip(read, other)):
            if a is not None and b is not None and (apart := _apart(a, b)) > 2 * self.bound:
                words = (
                    f"logits differ by {apart:.1e} from those of the single run (bound {2 * self.bound:.1e})"
                )
                return [Difference(number, i, "bug", f"{words}, though no token changed", distance=apart)]
        return []

    def turned(self, number: int, part: int, row: list[Cycle], alone: list[Cycle]) -> Difference:
        """Whether rounding alone can have parted two texts: judged at the first cycle that differs."""
        worst = 0.0
        for one, other in zip(row, alone):
            worst = max(worst, _between(one, other))
            if not _same_uniforms(one, other):
                return Difference(number, part, "bug", f"cycle {one.number} drew other random numbers")
            if worst > 2 * self.bound:
                words = f"in cycle {one.number} logits differ by {worst:.1e} (bound {2 * self.bound:.1e})"
                return Difference(
                    number, part, "bug", f"{words} from those of the single run", distance=worst
                )
            if one.tokens != other.tokens or one.status != other.status:
                break
        words = f"a decision of cycle {one.number} was turned by rounding: logits differ by {worst:.1e}"
        return Difference(number, part, "noise", words, distance=worst)


def _cold(make: Callable[[], Method]) -> Callable[[], Method]:
    """The method, remembering for one prompt only where it would for all."""
    method = make()
    if method.streams:
        raise ParameterError(f"{method.name} decodes streams, which have no batches")
    if method.memory is None or method.memory["keep"] == "prompt":
        return make
    return partial(type(method), **(method.values | {"keep": "prompt"}))


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """Largest difference of two rows of logits."""
    both = torch.isinf(one) & (one == other)
    return float((one - other).masked_fill(both, 0.0).abs().nan_to_num(torch.inf).max())


def _between(one: Cycle, other: Cycle) -> float:
    """Largest difference of what two cycles read before they part: rows behind the same tokens."""
    if one.verdict is None or other.verdict is None or one.draft is None or other.draft is None:
        return 0.0
    found = [0.0]
    said = (one.draft.logits, other.draft.logits)
    believed = [[] if logits is None else list(logits) for logits in said]
    shared = 0
    for a, b in zip(one.verdict.tokens, other.verdict.tokens):
        if a != b:
            break
        shared += 1
    found += [_apart(a, b) for a, b in zip(*(rows[: shared + 1] for rows in believed))]
    if (
        one.scores is not None
        and other.scores is not None
        and np.array_equal(one.draft.parents[:shared], other.draft.parents[:shared])
    ):
        found += [_apart(a, b) for a, b in zip(one.scores[: shared + 1], other.scores[: shared + 1])]
    return max(found)


def _same_uniforms(one: Cycle, other: Cycle) -> bool:
    """Whether both cycles drew the same numbers, as far as both drew."""
    if one.verdict is None or other.verdict is None:
        return one.verdict is other.verdict
    drawn = one.verdict.token_u, other.verdict.token_u
    if None not in drawn and drawn[0] != drawn[1]:
        return False
    if one.verdict.u is None or other.verdict.u is None:
        return True
    a, b = (np.asarray(cycle.verdict.u, np.float64) for cycle in (one, other))  # type: ignore[union-attr]
    n = min(len(a), len(b))
    a, b = a[:n], b[:n]
    return bool((np.isnan(a) | np.isnan(b) | (a == b)).all())
