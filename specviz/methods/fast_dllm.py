"""Confidence-threshold parallel decoding: one pass places every cell that is confident enough.

Fast-dLLM (Wu et al. 2025, section 3.3, Algorithm 1). The cells are placed as if they were independent, which
they are not: the text can differ from stepwise decoding's. The closer the threshold is to 1, the smaller the
difference.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from ..draft import Draft
from .base import Parameter
from .sampling import Sampling
from .unmasking import CellReading, Unmasked, Unmasking, placed


class FastDLLM(Unmasking):
    """Fills the current block's cells whose token is likelier than a threshold, and always the surest one."""

    name = "fast_dllm"
    title = "Confidence-threshold parallel decoding"
    paper = "Wu et al. 2025"
    parameters = (
        Parameter(
            "threshold", 0.9, 0, 1, "probability", "A cell is placed if its most likely token's probability "
                "is above this.", "τ"
        ),
        *Unmasking.parameters,
    )  # fmt: skip
    exact: ClassVar = {"threshold": 1.0}
    pseudocode = (
        ("", "x = prompt + L masks; blocks of B cells"),
        ("", "until no mask is left, or a complete block holds an end token:"),
        ("forward", "    p = model(x), at the masked cells of the current block"),
        ("commit:plain", "    the most confident cell gets its most likely token"),
        ("commit:parallel", "    and so does every cell with max p_i > τ"),
    )
    threshold: float

    def guarantee(self, sampling: Sampling, dtype: str) -> str:
        return "exact" if self.threshold == 1 else "lossy"

    def judge(self, draft: Draft, reading: CellReading) -> Unmasked:
        first, *rest = reading.order()
        with np.errstate(over="ignore"):
            above = 1 / (1 + np.exp(-reading.odds)) > self.threshold  # none is above 1
        more = [i for i in rest if above[i]]
        return placed([], reading, [first, *more], ["plain"] + ["parallel"] * len(more))
