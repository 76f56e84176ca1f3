"""The decoding loop: draft, forward, verify, commit, learn, record; independent of model and method."""

from .cycle import Cycle, decode
from .dense import densify
from .run import Run, generate, stream

__all__ = ["Cycle", "Run", "decode", "densify", "generate", "stream"]
