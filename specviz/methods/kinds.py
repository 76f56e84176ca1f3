"""Base classes of methods with additional hooks: a calibrated size, sampled trees.

For methods that write canvases, see `specviz.methods.unmasking.Unmasking`.
"""

from __future__ import annotations

from typing import Self

from ..errors import ParameterError
from ..rules.parameters import Value
from .base import Method

CALIBRATED = "calibrated"  # instead of a draft size: the best one measured on this device


class SizedMethod(Method):
    """One parameter, named by `size`, sets the number of drafted nodes; a calibration can choose it.

    Attributes
    ----------
    calibrated : bool
        Whether each run takes its draft size from a calibration.
    unsized : bool
        Whether no draft size has been taken yet.
    """

    def __init__(self, **values: Value) -> None:
        given = values.get(self.size)
        self.calibrated = self.unsized = isinstance(given, str) and given == CALIBRATED  # not an array
        if self.unsized:
            del values[self.size]
        super().__init__(**values)

    def _displayed(self) -> dict[str, Value]:
        return super()._displayed() | ({self.size: CALIBRATED} if self.unsized else {})

    def again(self) -> Self:
        other = super().again()
        other.calibrated, other.unsized = self.calibrated, self.unsized
        return other

    def resize(self, nodes: int) -> None:
        """Set another draft size and everything derived from it; keep the memory."""
        calibrated, chosen = self.calibrated, self.chosen
        type(self).__init__(self, **(self.values | {self.size: nodes}))
        self.calibrated, self.chosen = calibrated, chosen if calibrated else chosen | {self.size}


class SampledTreeMethod(SizedMethod):
    """A method that draws several children of a node from one distribution q, without replacement."""

    def drawn(self) -> tuple[int, ...]:
        """Every token drawn for the last draft, sent or not: everything that its uniforms can change."""
        raise ParameterError(
            f"{self.name} is a SampledTreeMethod: write drawn(), which returns the drawn tokens"
        )
