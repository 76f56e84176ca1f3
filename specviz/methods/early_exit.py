"""Early exit: BiLD with the first layers of the large model as the small model.

Kim et al. 2023, "Speculative Decoding with Big Little Decoder", section 4.4 and appendix 7.2. The policies
are BiLD's. A drafted token has keys and values of the first layers only. When the whole model verifies the
block, it computes those of every layer, so nothing that is kept comes from an early state. The defaults are
`bild`'s: ``rollback=2`` lies outside [0.5, 1.5], the range of appendix 7.2.1 for early exits.
"""

from __future__ import annotations

from ..models.protocols import Model
from .base import Parameter
from .bild import BiLD


class EarlyExit(BiLD):
    """The large model's first layers write until they are uncertain; the whole model reviews what they
    wrote."""

    name = "early_exit"
    title = "Early exit"
    paper = "Kim et al. 2023, section 4.4"
    parameters = (
        Parameter(
            "layers", 1, 1, None, "layers", "Number of layers after which the drafter exits the model."
        ),
        *BiLD.parameters,
    )
    pseudocode = tuple((when, line.replace("small", "first")) for when, line in BiLD.pseudocode)
    needs_draft = False
    layers: int

    def drafter_of(self, target: Model) -> Model:
        return target.first(self.layers)
