"""The metrics of a trace: each metric is one function, and its docstring is its definition.

`cycles` (what the draft-verify cycles did), `payoff` (their output against their cost), `costs` (FLOPs and
bytes of their passes), `updates` (streams: erasure, kept drafts, lagging), `quality` and `rouge` (texts
against references), `signals` (does confidence predict acceptance), `canvases` (masked diffusion: passes
saved, the limit of self-drafting, why chains fail), `tables` (several at once: `summary`, `compare`,
`front`), `definitions` and `rosetta` (the same terms as other tools define them); below them `tokens` (texts
as sacrebleu's tokens) and `interval` (bootstrap over texts).
"""

from specviz.metrics.canvases import (
    CAUSES,
    acceptance_limit,
    by_canvas,
    compare_canvases,
    failures,
    limits_by_text,
    step_reduction,
    valid_tokens_per_second,
)
from specviz.metrics.costs import (
    Ceilings,
    cost_summary,
    pass_costs,
    relative_costs,
)
from specviz.metrics.cycles import (
    READINGS,
    ROUNDING,
    acceptance_rate,
    accepted,
    accepted_share,
    by_depth,
    by_layer,
    by_prompt,
    by_score,
    by_source,
    draft_passes,
    draft_time,
    drafted,
    drafts,
    emitted,
    exactness,
    fallback_share,
    learnt,
    mean_accepted,
    mean_drafted,
    mean_layers,
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
from specviz.metrics.definitions import DEFINITIONS, Definition
from specviz.metrics.interval import Estimate, pooled
from specviz.metrics.payoff import break_even, tau_difference
from specviz.metrics.quality import quality
from specviz.metrics.rosetta import by_position, contenders, counts, rosetta
from specviz.metrics.rouge import rouge
from specviz.metrics.signals import area_under_roc, auroc, calibration_curve, signal_summary, signals
from specviz.metrics.tables import compare, front, summary
from specviz.metrics.tokens import tokenizer
from specviz.metrics.updates import (
    average_lagging,
    by_stream,
    erasure,
    lagging,
    normalized_erasure,
    speedup,
    stable,
)
from specviz.rules.speculative import common_prefix as shared

__all__ = [
    "CAUSES", "DEFINITIONS", "READINGS", "ROUNDING", "Ceilings", "Definition", "Estimate", "acceptance_limit",
    "acceptance_rate", "accepted", "accepted_share", "area_under_roc", "auroc", "average_lagging",
    "break_even", "by_canvas", "by_depth", "by_layer", "by_position", "by_prompt", "by_score", "by_source",
    "by_stream", "calibration_curve", "compare", "compare_canvases", "contenders", "cost_summary", "counts",
    "draft_passes", "draft_time", "drafted", "drafts", "emitted", "erasure", "exactness", "failures",
    "fallback_share", "front", "lagging", "learnt", "limits_by_text", "mean_accepted",
    "mean_drafted", "mean_layers", "mean_sent",
    "normalized_erasure", "on_text", "output", "pass_costs", "peak_memory", "pooled", "quality",
    "recheck", "relative_costs", "rollback_share", "rosetta", "rouge",
    "seconds", "sent", "shared", "signal_summary", "signals", "speedup", "stable", "step_reduction", "steps",
    "summary", "target_passes", "target_share", "tau", "tau_difference", "tokenizer",
    "tokens_per_second", "valid_tokens_per_second",
]  # fmt: skip
