"""The loop: draft, forward, verify, commit, learn, record. It looks inside neither model nor method."""

from .cycle import Cycle, decode
from .run import Run, generate, stream

__all__ = ["Cycle", "Run", "decode", "generate", "stream"]
