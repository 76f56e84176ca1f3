"""The test set of re-translation: English texts of the corpus' test split that arrive three words at a time.

The same sources for every target language, so that languages compare: only what is made of them differs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import zip_longest

from specviz.corpus.prefixes import TARGETS, draw
from specviz.corpus.translation import Translation
from specviz.errors import ParameterError
from specviz.streams import Stream, fixed_lag

LAG = 3  # words an update: the paper's w
REFERENCES = 8  # accepted translations of a text that BLEU is told


def texts(target: str, n: int = 100, seed: int = 0) -> list[Translation]:
    """English texts with their translations; text `i` is the same one for every target language.

    Parameters
    ----------
    target : str
        A key of `specviz.corpus.prefixes.TARGETS`: de, zh, ja, or xx, the control language.
    n, seed : int

    Raises
    ------
    ParameterError
        For another language.
    """
    if target not in TARGETS:
        raise ParameterError(f"no test texts for {target!r}: choose of {', '.join(TARGETS)}")
    return [draw(random.Random(f"streams:{seed}:{i}"), "test", target) for i in range(n)]


def references(made: Translation, most: int = REFERENCES) -> list[str]:
    """Right translations of a whole text, the reference first, all different."""
    gap = "" if made.to_code in ("zh", "ja") else " "
    first = [sentence[0] for sentence in made.accepted]
    joined = (
        gap.join(own or other for own, other in zip(sentences, first))
        for sentences in zip_longest(*made.accepted)
    )
    return list(dict.fromkeys(joined))[:most]


def streams(made: Sequence[Translation], lag: int = LAG) -> list[Stream]:
    """The texts as streams, `lag` words more at each update, named by their target language and number."""
    return [
        fixed_lag(each.source, lag, each.from_code, id=f"{each.to_code}-{i:02d}", reference=each.reference)
        for i, each in enumerate(made)
    ]
