"""Measuring: paired runs, and benches that print a table and keep bars.

`run` decodes a plan (models x methods x parameters x suites x seeds) and keeps every row in a folder, which
`results` opens. A bench is a function that returns a `Report`; `BENCHES` says where each one lives. Importing
this loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from specviz.errors import ParameterError
from specviz.extras import loading

if TYPE_CHECKING:
    from specviz.bench.replaying.replays import Replay, replay, replay_all
    from specviz.bench.report import Report
    from specviz.bench.runs.rows import Results, results
    from specviz.bench.runs.running import run

__all__ = ["BENCHES", "Replay", "Results", "find", "replay", "replay_all", "results", "run"]

_DOORS = {  # where each lives
    "run": "runs.running",
    "results": "runs.rows",
    "Results": "runs.rows",
    "replay": "replaying.replays",
    "replay_all": "replaying.replays",
    "Replay": "replaying.replays",
}


def __getattr__(name: str) -> Any:
    if name not in _DOORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with loading():
        value = getattr(import_module(f"{__name__}.{_DOORS[name]}"), name)
    globals()[name] = value
    return value


# Name: what it measures, in one line.
BENCHES: dict[str, str] = {
    "overhead": "what recording costs: paired runs with and without, every method (bar: at most 3 %)",
    "peers": "this package against transformers: same models, prompts and threads, in one run",
    "speed": "our methods beside transformers and llama.cpp, cold and warm (bars: those of SmolLM2)",
    "llamacpp": "this package on llama.cpp against llama-cpp-python's own decoding of the same file",
    "whatif": "what-ifs against reruns, cycle for cycle (bars: exact ones equal, bounded ones contain)",
    "player": "what the player sends, and its time to open and to step, in Chromium (no model is loaded)",
    "trees": "the training-free methods at equal draft size, cold and warm (bars: order of τ, speed)",
    "stores": "building a tree and updating its store (bars: 10 % of a cycle, 1 ms at 150 k words)",
    "calibrate": "the calibrated draft size against trying every one (bars: 3 %, and 90 s)",
    "retranslation": "re-translation, SSBD, continuous decoding: quality, erasure, speed (bar: 1.3 times)",
    "bild": "BiLD on the encoder-decoders: sweep, ablations, exits, CALM (bars: 1.3 and 1.5 times greedy)",
    "confidence": "CM-ASD and its neighbours: speed, quality, signals, batches (bars: lossless, batch 8)",
    "diffusion": "SSD on the diffusion model (bars: exact, 50 % fewer passes, 1.4 times stepwise, ...)",
    "eagle": "EAGLE-1, 2, 3 beside UniSpec by language (bars: exact, laws, order of τ in Table 3)",
    "batches": "throughput and latency by batch size (bar: autoregressive at 8 is 3 times 1)",
    "passes": "what a pass over g tokens costs in units of a pass over one",
    "roofline": "what passes cost in FLOPs and bytes, and their time beside the machine's measured ceilings",
    "ablation": "UniSpec without each of its three parts (Table 2)",
    "temperature": "methods without a draft model, greedy and at temperature 1 (Table 6)",
    "precision": "UniSpec in float32, float16 and bfloat16, with ROUGE (Table 10)",
    "context": "UniSpec as the context grows: a pass's time, and τ (Table 11)",
    "threshold": "UniSpec's threshold r (Table 12)",
    "deviation": "UniSpec's draft size around the best one (Table 13)",
}
# Where a bench lives, if not in the module of its name as the function `bench`.
PLACES = {
    name: f"experiments:{name}"
    for name in ("ablation", "temperature", "precision", "context", "threshold", "deviation")
}


def find(name: str) -> Callable[..., Report]:
    """The bench's function.

    Raises
    ------
    ParameterError
        If there is no such bench; near names are offered.
    """
    if name not in BENCHES:
        from specviz.methods import near

        raise ParameterError(f"no bench {name!r}" + near(name, BENCHES, ""))
    module, _, function = PLACES.get(name, f"{name}:bench").partition(":")
    return getattr(import_module(f"specviz.bench.{module}"), function)
