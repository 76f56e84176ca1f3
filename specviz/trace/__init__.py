"""The record of a run: written cycle by cycle, kept in Parquet, read without torch.

`Recorder` takes finished cycles from a loop; everything else reads a `Trace`. The columns and
their meaning are in `specviz.schema`. A trace file is untrusted data: its types, lengths and numbers
are checked before use, and nothing in it is ever executed.

The modules from the bottom up, each importing only from those before it: `files`, `checks`, `reading`,
`text`, `display`, `perfetto`, `trace`, `states`, `recorder`. Separate from these are `counts`,
for runs of which only numbers were recorded, `foreign`, which reads counts from other tools' files, and
`aiperf`, which writes them.
"""

from specviz.trace.counts import Counts
from specviz.trace.files import KEYS, PARTIAL, arrow_schema
from specviz.trace.foreign import read_counts
from specviz.trace.recorder import Recorder
from specviz.trace.states import Reading, Written, written
from specviz.trace.text import whole_characters
from specviz.trace.trace import Trace, is_trace, listed

__all__ = [
    "KEYS", "PARTIAL", "Counts", "Reading", "Recorder", "Trace", "Written", "arrow_schema", "is_trace",
    "listed", "read_counts", "whole_characters", "written",
]  # fmt: skip
