"""Sources that arrive in updates: a text read aloud, a transcript that is still being heard, someone typing.

A `Stream` is what `specviz.generate` decodes by ``retranslate``. `fixed_lag` and `from_file` reveal a text so
many words at a time, `word_timed` follows a transcript's clock, `from_partials` reads what a recogniser
guessed while it listened, `simulate_partials` makes such guesses up, and `Live` is pushed into while it is
decoded. `follow` tells what a reader sees of it.
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
