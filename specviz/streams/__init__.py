"""Sources that arrive in updates: a text read aloud, a live transcript, someone typing.

`specviz.generate` decodes a `Stream` with the method ``retranslate``. `fixed_lag` and `from_file` reveal a
text some words at a time, `word_timed` follows a transcript's clock, `from_partials` reads a recogniser's
partial results, `simulate_partials` simulates them, and `Live` takes pushes while it is decoded. `follow`
yields what a reader sees.
"""

from .lag import fixed_lag, from_file
from .live import Live
from .partials import from_partials, save_partials, simulate_partials
from .segmentation import segmenter, words
from .shown import Shown, follow
from .stream import Stream, Update
from .timed import word_timed

__all__ = [
    "Live", "Shown", "Stream", "Update", "fixed_lag", "follow", "from_file", "from_partials", "save_partials",
    "segmenter", "simulate_partials", "word_timed", "words",
]  # fmt: skip
