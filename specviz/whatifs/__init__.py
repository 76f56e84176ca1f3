"""What another setting would have done, replayed from a trace: `whatif`.

Every answer states its certainty. ``exact``: a rerun would do the same, cycle for cycle. ``bounded``: the
value is between two numbers. ``modelled``: computed from measured costs, or from a store that may be stale.
``needs a rerun``: the record does not say. What-ifs need no torch and no model.

Its modules, bottom up: `texts` (the record of each position of a text), `walk` (the replays), `gap` (CM-ASD's
and SpecDec's), `tree` (UniSpec's), `answer`, `costs`, `cell` (a replayed setting as a trace), `canvases`
(SSD's replay), `updates` (of streams), `question`. The decisions are those of `specviz.rules`.
"""

from specviz.whatifs.answer import BADGES, Answer
from specviz.whatifs.costs import Costs
from specviz.whatifs.question import WhatIf, whatif
from specviz.whatifs.walk import Place, Step, Walk

__all__ = ["BADGES", "Answer", "Costs", "Place", "Step", "Walk", "WhatIf", "whatif"]
