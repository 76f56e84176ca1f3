"""Prompt suites: the bundled ones, files of prompts, and the benchmarks that papers report.

`suite` returns a `Suite`, a sequence of prompts as `specviz.generate` takes them; `list_suites` lists those
available. A suite that is not bundled is read from a local file or folder, or fetched once from its
publisher; it is not part of this package, and its licence is printed when it is first used.
"""

from .catalogue import list_suites, suite
from .files import read
from .prompts import Suite, pick, spread

__all__ = ["Suite", "list_suites", "pick", "read", "spread", "suite"]
