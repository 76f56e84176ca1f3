"""ROUGE of decoded texts against references, by the package rouge-score."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from specviz.errors import ParameterError, install
from specviz.metrics.interval import pooled
from specviz.metrics.quality import Scores, pairs
from specviz.metrics.tokens import ALONE
from specviz.trace import Trace

NAMES = ("rouge1", "rouge2", "rougeL", "rougeLsum")
# A character of a script without spaces is a word; otherwise a run of letters and digits is.
SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
WORD = re.compile(f"[{ALONE}]|[^\\W{ALONE}]+")


class Words:
    """Tokenizer for rouge-score, whose own one knows only English letters."""

    def tokenize(self, text: str) -> list[str]:
        """Words in lower case."""
        return WORD.findall(text.lower())


class Rouge:
    """ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum: F measures in percent, the best over several references.

    ROUGE-Lsum takes the longest common subsequence sentence by sentence. A line is a sentence; a text of one
    line is split after full stops, question marks and exclamation marks.

    Raises
    ------
    ParameterError
        If rouge-score is not installed.
    """

    def __init__(self) -> None:
        try:
            from rouge_score.rouge_scorer import RougeScorer
        except ImportError:
            raise ParameterError(f"ROUGE needs the package rouge-score: {install('quality')}") from None
        self.scorer = RougeScorer(list(NAMES), tokenizer=Words())

    def __call__(self, references: str | Sequence[str], text: str) -> dict[str, float]:
        """The scores of a text."""
        alternatives = [references] if isinstance(references, str) else list(references)
        scores = self.scorer.score_multi(list(map(lines, alternatives)), lines(text))
        return {name: 100 * scores[name].fmeasure for name in NAMES}


def lines(text: str) -> str:
    """A text with one sentence per line, as ROUGE-Lsum reads it."""
    return text if "\n" in text.strip() else SENTENCE.sub("\n", text)


def rouge(trace: Trace) -> Scores:
    """ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum of the final texts of a run (CM-ASD, Table IV; BiLD).

    F measures in percent of lower-cased words without stemming, the best over several references; Chinese and
    Japanese characters are words. The score is the mean over texts, as in rouge-score and the papers, with a
    95 % bootstrap interval over texts. Texts without a reference are left out, and texts that did not end.

    Parameters
    ----------
    trace : Trace
        A trace of one run.

    Returns
    -------
    dict
        ``rouge1``, ``rouge2``, ``rougeL``, ``rougeLsum``: `Estimate` (the mean in place of a median);
        ``texts``.

    Raises
    ------
    ParameterError
        If rouge-score is not installed.
    TraceError
        If no text has a reference.
    """
    score = Rouge()
    texts, references = pairs(trace)
    each = [score(alternatives, text) for alternatives, text in zip(references, texts)]
    one = np.ones(len(each))
    scores = {name: pooled(np.array([s[name] for s in each]), one) for name in NAMES}
    return {**scores, "texts": len(texts)}
