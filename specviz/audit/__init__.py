"""The audit: is a method's text the target's own, are its decisions right, is its distribution the target's?

`run` compares texts and passes with the target computed independently, and `streams` does so for each update
of a stream. `batches` compares the rows of a batch with their prompts' single runs, and `canvases` compares
the order in which a diffusion model's methods write with that of stepwise decoding. `law` checks sampling;
`answers` compares another program's text with the target. `soak` audits random settings for hours and keeps a
ledger.
"""

from __future__ import annotations

from . import law
from .answer_report import AnswersResult
from .answers import run as answers
from .batches import run as batches
from .canvases import run as canvases
from .result import AuditResult, Difference, Row
from .setup import served
from .soak import soak
from .text import run
from .updates import default as stream_methods
from .updates import run as streams

__all__ = [
    "AnswersResult", "AuditResult", "Difference", "Row", "answers", "batches", "canvases", "law", "run",
    "served", "soak", "stream_methods", "streams",
]  # fmt: skip
