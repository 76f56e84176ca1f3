"""Prompt suites: the bundled ones, files of prompts, and the benchmarks that papers report.

`suite` gives a `Suite`, a sequence of prompts as `specviz.generate` takes them; `list_suites` says which
there are. What is not bundled comes from a local file or folder, or is fetched once from where its makers
keep it; nothing of it is part of this package, and its licence is printed when it is first used.
"""

from .catalogue import list_suites, suite
from .files import read
from .prompts import Suite, pick, spread

__all__ = ["Suite", "list_suites", "pick", "read", "spread", "suite"]
