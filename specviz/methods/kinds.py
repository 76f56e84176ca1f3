"""Kinds of methods that have hooks of their own: a calibrated size, sampled trees, streams.

Methods that write canvases are `specviz.methods.unmasking.Unmasking`.
"""

from __future__ import annotations

from typing import Self

from ..errors import ParameterError
from ..rules.parameters import Value
from .base import Method

CALIBRATED = "calibrated"  # in place of a draft size: the best one that was measured on this device


class SizedMethod(Method):
    """One parameter, named by `size`, sets the number of drafted nodes; a calibration can choose it.

    Attributes
    ----------
    calibrated : bool
        Whether each run takes its draft size from a calibration.
    unsized : bool
        Whether none was taken yet.
    """

    def __init__(self, **values: Value) -> None:
        self.calibrated = self.unsized = values.get(self.size) == CALIBRATED
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
        """Take another draft size, and all that follows from it; the memory stays."""
        calibrated, chosen = self.calibrated, self.chosen
        type(self).__init__(self, **(self.values | {self.size: nodes}))
        self.calibrated, self.chosen = calibrated, chosen


class SampledTreeMethod(SizedMethod):
    """Several children of a node are drawn from one distribution q, without replacement."""

    def drawn(self) -> tuple[int, ...]:
        """Every token drawn for the last draft, sent or not: all that its uniforms can change."""
        raise ParameterError(
            f"{self.name} is a SampledTreeMethod: write drawn(), which returns the drawn tokens"
        )


class StreamMethod(Method):
    """Decodes sources that arrive in updates, and only those."""

    streams = True

    def wording(self) -> tuple[str, str]:
        """The prompt's text before and after the source."""
        raise ParameterError(
            f"{self.name} is a StreamMethod: write wording(), which returns the text around a source"
        )

    def shown(self, tokens: int, last: bool) -> int:
        """How many of an output's tokens are displayed; `last`: the source is complete."""
        return tokens

    def carried(self, previous: list[int], left: int) -> list[int]:
        """Tokens of the previous update's output that stay without another pass; at most `left`."""
        return []
