"""The audit: is a method's text the target's own, are its decisions right, is its law the target's?

`run` compares texts and passes with the target computed independently; `law` checks sampling.
"""

from __future__ import annotations

from . import law
from .result import AuditResult, Difference, Row
from .text import run

__all__ = ["AuditResult", "Difference", "Row", "law", "run"]
