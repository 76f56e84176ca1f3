"""Why is this run slow or fast? The factors of its speedup, from its record or another tool's log; no torch.

`costs` (seconds of a step and of a plain step), `acceptance` (by position, by context, and what selects the
places where drafts begin), `explanation` (the factors, in words), `sources` (reads what is explained).
"""

from specviz.explanations.explanation import Explanation
from specviz.explanations.sources import explain

__all__ = ["Explanation", "explain"]
