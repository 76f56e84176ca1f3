"""What a trace says in numbers: each metric is one function, its definition is its docstring.

`cycles` (what the draft-verify cycles did), `costs` (FLOPs and bytes of their passes), `updates` (streams:
erasure, kept drafts, lagging), `quality` and `rouge` (texts against references), `signals` (does certainty
predict acceptance), `sweeps` (many runs as points, or over seeds), `tables` (several at once: `summary`,
`compare`); below them `tokens` (texts as sacrebleu's tokens) and `interval` (bootstrap over texts).
"""

from specviz.metrics.costs import (
    Ceilings,
    cost_summary,
    cycle_costs,
    pass_costs,
    relative_costs,
    roofline_times,
)
from specviz.metrics.cycles import (
    READINGS,
    ROUNDING,
    acceptance_rate,
    accepted,
    accepted_share,
    by_depth,
    by_prompt,
    by_score,
    by_source,
    draft_passes,
    draft_time,
    drafted,
    emitted,
    exactness,
    fallback_share,
    learnt,
    mean_accepted,
    mean_drafted,
    mean_sent,
    on_text,
    output,
    peak_memory,
    recheck,
    rollback_share,
    seconds,
    sent,
    steps,
    target_passes,
    target_share,
    tau,
    tokens_per_second,
)
from specviz.metrics.interval import Estimate, pooled
from specviz.metrics.quality import comet, quality, relative_bleu
from specviz.metrics.rouge import rouge
from specviz.metrics.signals import area_under_roc, auroc, calibration_curve, signals
from specviz.metrics.sweeps import front, over_seeds, sweep
from specviz.metrics.tables import compare, summary
from specviz.metrics.tokens import tokenizer
from specviz.metrics.updates import (
    average_lagging,
    by_stream,
    erasure,
    lagging,
    normalized_erasure,
    shared,
    speedup,
    stable,
)

__all__ = [
    "READINGS",
    "ROUNDING",
    "Ceilings",
    "Estimate",
    "acceptance_rate",
    "accepted",
    "accepted_share",
    "area_under_roc",
    "auroc",
    "average_lagging",
    "by_depth",
    "by_prompt",
    "by_score",
    "by_source",
    "by_stream",
    "calibration_curve",
    "comet",
    "compare",
    "cost_summary",
    "cycle_costs",
    "draft_passes",
    "draft_time",
    "drafted",
    "emitted",
    "erasure",
    "exactness",
    "fallback_share",
    "front",
    "lagging",
    "learnt",
    "mean_accepted",
    "mean_drafted",
    "mean_sent",
    "normalized_erasure",
    "on_text",
    "output",
    "over_seeds",
    "pass_costs",
    "peak_memory",
    "pooled",
    "quality",
    "recheck",
    "relative_bleu",
    "relative_costs",
    "rollback_share",
<<<<<<< HEAD
    "roofline_times",
=======
    "rouge",
>>>>>>> main
    "seconds",
    "sent",
    "shared",
    "signals",
    "speedup",
    "stable",
    "steps",
    "summary",
    "sweep",
    "target_passes",
    "target_share",
    "tau",
    "tokenizer",
    "tokens_per_second",
]
