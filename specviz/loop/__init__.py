"""The loop: draft, forward, verify, commit, learn, record. It looks inside neither model nor method."""

from .cycle import Cycle, decode
from .dense import densify
from .run import Run, generate, stream

__all__ = ["Cycle", "Run", "decode", "densify", "generate", "stream"]
