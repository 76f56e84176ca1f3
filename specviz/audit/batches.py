"""The audit of batches: does every row equal the result of its prompt decoded alone?

Both are decoded with the same seed, so a row's random numbers are those of its single run. If the texts are
equal, the logits that verification read must agree within the bound. If greedy texts diverge, the place is
judged as in the text audit. If a sampled text or that of a lossy method diverges, or its draft, the first
cycle that differs must have drawn the same uniforms and read the same logits (of drafter and target) within
the bound: then rounding has changed a decision. Anything else is a bug.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np

from .. import methods as catalogue
from ..arguments import check_int
from ..errors import ParameterError
from ..loop.batch import check_rows, decode_batch
from ..loop.checks import check_batchable
from ..loop.cycle import Cycle, decode
from ..loop.drafters import Loadable
from ..loop.machine import number_format
from ..models.protocols import Model
from ..rules.speculative import common_prefix
from . import law, setup
from .law import GREEDY, Make
from .reference import distance, reference_of
from .result import AuditResult, Difference, Row
from .text import Decoding, Text, _Audit, _measure, _rows_read, _text, result_of

ROUNDS = 4  # batches' worth of prompts per run: more than one, so that rows are replaced mid-run


def run(
    model: Loadable,
    drafts: Loadable | None = None,
    prompts: Sequence[setup.Entry] = (),
    methods: Sequence[setup.Given] | None = None,
    batch: int = 8,
    max_new_tokens: int = 64,
    dtype: str | None = None,
    device: str | None = None,
    threads: int | None = None,
    sampled: int = 20,
    temperature: float = 1.0,
    progress: setup.Progress = None,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
) -> AuditResult:
    """Audit batched decoding: each row against its prompt's single run.

    Parameters
    ----------
    model, drafts, prompts, max_new_tokens, dtype, device, threads, sampled, temperature, progress, top_k,
    top_p, seed
        As in `specviz.audit.run`.
    methods : list of str, class, Method or factory, optional
        Also lossy ones. Default: every method that decodes prompts. A memory lasts for one prompt.
    batch : int
        Number of rows.

    Returns
    -------
    AuditResult
        Without laws: `specviz.audit.run` tests those.

    Raises
    ------
    ParameterError, ModelError, PromptError
        Before any work.
    """
    batch = check_int("batch", batch, 1)
    drawn = setup.sampling_of(max_new_tokens, temperature, top_k, top_p, seed, sampled)
    with setup.on_backend(threads):
        target = setup.audited_model(model, device, dtype)
        setup.check_causal(target)
        ids = setup.encoded(target, prompts)
        given = catalogue.names("prompt") if methods is None else methods
        factories = [_cold(catalogue.factory(each)) for each in catalogue.as_list(given)]
        if methods is None:  # early exits are decided per row, so they cannot run in a batch
            factories = [make for make in factories if make().exit_rule is None]
        for make in factories:
            check_batchable(make(), [])
        check_rows(target)
        lineup = setup.Lineup.choose(target, factories, drafts, methods is not None, device, dtype)
        check_rows(*lineup.drafters)
        reference = reference_of(target)
        bound = _measure(target, reference, ids, max_new_tokens)
        pairs = [
            (sampling, some, make, drafter)
            for sampling, some in ((GREEDY, ids), (drawn, ids[:sampled]))
            if some
            for make, drafter in lineup.pairs()
            if sampling.greedy or not make().only_greedy
        ]
        tick = setup.counter(progress, len(pairs))
        rows = []
        for sampling, some, make, drafter in pairs:
            audit = _Rows(target, reference, Decoding(sampling, max_new_tokens, bound.value, seed))
            rows.append(audit.method(make, drafter, some, batch))
            tick()
        return result_of(target, max_new_tokens, bound, rows, left_out=lineup.left_out)


class _Rows(_Audit):
    """Compares rows with single runs."""

    def method(self, make: Make, drafter: Model | None, prompts: list[list[int]], batch: int) -> Row:
        """Audit one method with one draft on all prompts."""
        name = f"{law.spell(self.sampling)}, {batch} rows"
        row = Row(setup.label(make()), drafter.name if drafter else "", name, self.bound, spared=1)
        options: dict[str, Any] = {
            "drafter": drafter, "sampling": self.sampling, "max_new_tokens": self.limit,
            "seed": self.decoding.seed,
        }  # fmt: skip
        exact = self.sampling.greedy and not setup.is_lossy(make(), number_format(self.target))
        model = drafter or make().drafter_of(self.target)
        for first in range(0, len(prompts), ROUNDS * batch):
            some = prompts[first : first + ROUNDS * batch]
            rows: list[list[Cycle]] = [[] for _ in some]
            try:
                for cycles in decode_batch(self.target, some, make(), rows=batch, **options):
                    for cycle in cycles:
                        rows[cycle.prompt].append(cycle)
            except Exception as error:  # a batch that raises has not written its texts
                for i in range(len(some)):
                    words = f"the batch raised {setup.raised(error)}"
                    row.count([Difference(first + i, -1, "bug", words)])
                continue
            for i, prompt in enumerate(some):
                alone = list(decode(self.target, prompt, make(), prompt=i, **options))
                row.tokens += len(_text(rows[i]))
                row.count(self.compare(first + i, prompt, rows[i], alone, exact, model is not None))
                self.forget()
        return row

    def compare(
        self, number: int, prompt: list[int], row: list[Cycle], alone: list[Cycle], exact: bool,
        drafted: bool = False,
    ) -> list[Difference]:  # fmt: skip
        """Compare a row with its single run.

        `exact`: it must be the target's own greedy text; `drafted`: a model drafts, which also rounds.
        """
        text, other = (Text(number, prompt, _text(each), _rows_read(each)) for each in (row, alone))
        if self.invariant and (parted := self.bits(text, other)):
            return parted
        part = common_prefix(text.tokens, other.tokens)
        if part < min(len(text.tokens), len(other.tokens)):
            if exact:
                return [self.parted(text, part, other, "the text decoded alone")]
            return [self.turned(text, part, row, alone, drafted)]
        if len(text.tokens) != len(other.tokens):
            words = f"the row has {len(text.tokens)} tokens; decoded alone, the text has {len(other.tokens)}"
            return [text.bug(part, words)]
        for i, (a, b) in enumerate(zip(text.rows, other.rows)):
            if a is not None and b is not None and (apart := distance(a, b)) > 2 * self.bound:
                words = f"logits differ by {apart:.1e} from those of the single run"
                words += f" (bound {2 * self.bound:.1e}), though no token changed"
                return [text.bug(i, words, apart)]
        return []

    def turned(
        self, text: Text, part: int, row: list[Cycle], alone: list[Cycle], drafted: bool
    ) -> Difference:
        """Judge, at the first cycle that differs, whether rounding alone can explain two texts."""
        worst = 0.0
        for one, other in zip(row, alone):
            worst = max(worst, _between(one, other))
            if not _same_uniforms(one, other):
                return text.bug(part, f"cycle {one.number} drew different random numbers")
            if worst > 2 * self.bound:
                words = f"in cycle {one.number} logits differ by {worst:.1e} (bound {2 * self.bound:.1e})"
                return text.bug(part, f"{words} from those of the single run", worst)
            if one.tokens != other.tokens or one.status != other.status:
                break
        if worst == 0 and not drafted:
            words = f"cycle {one.number} decided otherwise, though all logits are equal to the bit"
            return text.bug(part, words, 0.0)
        words = f"rounding changed a decision of cycle {one.number}: logits differ by {worst:.1e}"
        return Difference(text.number, part, "noise", words, distance=worst)


def _cold(make: Make) -> Make:
    """The method, with a memory that lasts for only one prompt."""
    method = make()
    if method.streams:
        raise ParameterError(f"{method.name} decodes streams, which cannot be batched")
    if method.memory is None or method.memory["keep"] == "prompt":
        return make
    return partial(type(method), **(method._displayed() | {"keep": "prompt"}))


def _between(one: Cycle, other: Cycle) -> float:
    """Largest difference between the rows that two cycles read after the same tokens."""
    if one.verdict is None or other.verdict is None or one.draft is None or other.draft is None:
        return 0.0
    shared = common_prefix(one.verdict.tokens, other.verdict.tokens)
    pairs = [(one.draft.logits, other.draft.logits)]
    if np.array_equal(one.draft.parents[:shared], other.draft.parents[:shared]):
        pairs.append((one.scores, other.scores))
    rows = (zip(*pair) for pair in pairs if pair[0] is not None and pair[1] is not None)
    return max((distance(a, b) for both in rows for a, b in islice(both, shared + 1)), default=0.0)


def _same_uniforms(one: Cycle, other: Cycle) -> bool:
    """Whether both cycles drew the same numbers, as far as both drew."""
    if one.verdict is None or other.verdict is None:
        return one.verdict is other.verdict
    if one.verdict.token_u is not None and other.verdict.token_u not in (None, one.verdict.token_u):
        return False
    if one.verdict.u is None or other.verdict.u is None:
        return True
    return all(a == b or np.isnan(a) or np.isnan(b) for a, b in zip(one.verdict.u, other.verdict.u))
