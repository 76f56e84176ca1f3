"""The entropy-bounded sampler: one pass places as many cells as a bound on their dependence allows.

Ben-Hamu et al. 2025 ("Accelerated Sampling from Masked Diffusion Models via Entropy Bounded Unmasking",
equation 8 and Algorithm 1): cells are placed in order of confidence, up to the longest prefix U whose
entropies, without the largest, sum to at most γ. That sum bounds the error of placing the cells of U as if
they were independent.
"""

from __future__ import annotations

import numpy as np

from ..draft import Draft
from .base import Parameter
from .sampling import Sampling
from .unmasking import CellReading, Unmasked, Unmasking, placed


class EntropyBounded(Unmasking):
    """Fills the surest cells of the current block as long as their joint error stays below a bound."""

    name = "entropy_bounded"
    title = "Entropy-bounded sampler"
    paper = "Ben-Hamu et al. 2025"
    parameters = (
        Parameter(
            "bound", 0.1, 0, 100, "nats", "Maximum total entropy of a pass, without its most uncertain "
                "cell.", "γ"
        ),
        *Unmasking.parameters,
    )  # fmt: skip
    pseudocode = (
        ("", "x = prompt + L masks; blocks of B cells"),
        ("", "until no mask is left, or a complete block holds an end token:"),
        ("forward", "    p = model(x), at the masked cells of the current block"),
        ("verify", "    order the cells by confidence; H_i = entropy of p_i"),
        ("verify", "    U = the longest beginning with  Σ H_i − max H_i ≤ γ"),
        ("commit:plain", "    the most confident cell gets its most likely token"),
        ("commit:parallel", "    and so do the others of U"),
    )
    entropies = True
    bound: float

    def guarantee(self, sampling: Sampling, dtype: str) -> str:
        return "lossy"  # even with γ = 0: cells of zero entropy are placed at once

    def judge(self, draft: Draft, reading: CellReading) -> Unmasked:
        order = reading.order()
        entropy = reading.entropy[order]
        error = np.cumsum(entropy) - np.maximum.accumulate(entropy)
        count = max(1, int(np.searchsorted(error, self.bound, "right")))
        own = order[:count]
        return placed([], reading, own, ["plain"] + ["parallel"] * (count - 1))
