"""ROUGE of decoded texts against references, by the package rouge-score."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from specviz.errors import ParameterError

NAMES = ("rouge1", "rouge2", "rougeL")
# A character of a script without spaces is a word; otherwise a run of letters and digits is.
ALONE = "\u3040-\u30ff\u3400-\u9fff"
WORD = re.compile(f"[{ALONE}]|[^\\W{ALONE}]+")


class Words:
    """The tokenizer that rouge-score is given: its own knows no letters but English ones."""

    def tokenize(self, text: str) -> list[str]:
        """Words in lower case."""
        return WORD.findall(text.lower())


class Rouge:
    """ROUGE-1, ROUGE-2 and ROUGE-L: F measures in percent, of several references the best.

    Raises
    ------
    ParameterError
        If rouge-score is not installed.
    """

    def __init__(self) -> None:
        try:
            from rouge_score.rouge_scorer import RougeScorer
        except ImportError:
            raise ParameterError(
                "ROUGE needs the package rouge-score: pip install 'specviz-lm[quality]'"
            ) from None
        self.scorer: Any = RougeScorer(list(NAMES), tokenizer=Words())

    def __call__(self, references: str | Sequence[str], text: str) -> dict[str, float]:
        """The scores of a text."""
        known = [references] if isinstance(references, str) else list(references)
        found = self.scorer.score_multi(known, text)
        return {name: 100 * found[name].fmeasure for name in NAMES}
