"""Benches of this project, and of claims about the papers' methods that a replay does not judge.

``python -m tests.benchmarks`` lists them, ``python -m tests.benchmarks NAME --help`` shows its options.
``python -m tests.benchmarks same`` compares the texts, counts and untimed verdicts of two versions.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

# Name: what it measures, in one line.
BENCHES = {
    "whatif": "what-ifs against reruns, cycle for cycle (bars: exact ones equal, bounded ones contain)",
    "player": "what the player sends, and its time to open and to step, in Chromium (no model is loaded)",
    "live": "what it costs to show a decode while it runs (bars: 5 percent, 100 ms until a token is seen)",
    "app": "how soon the app shows a saved trace, in Chromium (bar: 1.5 s)",
    "stores": "building a tree and updating its store (bars: 10 percent of a cycle, 1 ms at 150 k words)",
    "retranslation": "re-translation, SSBD, continuous decoding: quality, erasure, speed (bar: 1.3 times)",
    "bild": "BiLD on the encoder-decoders: sweep, ablations, exits, CALM (bars: 1.3 and 1.5 times greedy)",
    "confidence": "CM-ASD and its neighbours: speed, quality, signals, batches (bars: lossless, batch 8)",
    "diffusion": "SSD on the diffusion model (bars: exact, half the passes, 1.4 times stepwise, ...)",
    "answers": "the audit of others' answers (bars: none honest, 95 % of tampered ones, a sibling named)",
    "overhead": "cost of recording: paired runs with and without it, every method (bar: 3 percent)",
    "calibrate": "the calibrated draft size against trying every size (bars: 3 % and 90 s)",
    "projection": "a replay page's projected speedups, against measured ones (bar: median error of 10 %)",
    "eagle": "EAGLE-1, 2, 3 beside UniSpec by language (bars: exact, laws, order of τ in Table 3)",
}


def find(name: str) -> Callable[..., Any]:
    """Return the bench's function."""
    return import_module(f"{__name__}.{name}").bench
