"""Explain why a run is slow or fast by the factors of its speedup, from a trace or another tool's log.

`costs` (seconds of a step and of a plain step), `acceptance` (by position, by context, and what selects the
places where drafts begin), `explanation` (the factors, in words), `sources` (reads the input). No torch.
"""

from specviz.explanations.explanation import Explanation
from specviz.explanations.sources import explain

__all__ = ["Explanation", "explain"]
