"""The test set for encoder-decoders: translations between English and German, and summaries in both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specviz.errors import ParameterError
from specviz.measure.claims import Quality
from specviz.measure.report import Entry
from specviz.metrics.rouge import Rouge
from specviz.suites.frozen import frozen, take

# Task: (kind, language of the prompt, language of the answer).
TASKS = {
    "de-en": ("translation", "de", "en"),
    "en-de": ("translation", "en", "de"),
    "sum-en": ("summarization", "en", "en"),
    "sum-de": ("summarization", "de", "de"),
}
SENTENCES = (2, 3, 4)  # sentences in a text to translate


def suite(task: str, n: int, start: int = 0) -> list[Entry]:
    """Bundled prompts with their references.

    Parameters
    ----------
    task : str
        A key of `TASKS`.
    n : int
    start : int
        Number of the first prompt.

    Returns
    -------
    list of dict
        As `specviz.generate` takes them: ``id``, ``kind``, ``language``, ``prompt``, ``reference``.

    Raises
    ------
    ParameterError
        For an unknown task, or if fewer prompts are bundled.
    """
    if task not in TASKS:
        raise ParameterError(f"unknown task {task!r}: choose one of {', '.join(TASKS)}")
    entries = [entry for entry in frozen("pairs") if entry["task"] == task]
    return take(entries, start + n, f"prompts of {task}")[start:]


class Score:
    """Quality of texts in percent: BLEU of translations, ROUGE-L of summaries.

    Parameters
    ----------
    entries : list of dict
        Entries of one task, as `suite` returns them.

    Attributes
    ----------
    name : str
        ``BLEU`` or ``ROUGE-L``; empty if a text has no reference, so that there is no score.
    """

    def __init__(self, entries: Sequence[Entry]) -> None:
        given = [entry.get("reference") or [] for entry in entries]
        self.right = [[each] if isinstance(each, str) else list(each) for each in given]
        translations, scored = entries[0].get("kind") == "translation", all(self.right)
        self.name = "" if not scored else "BLEU" if translations else "ROUGE-L"
        self.bleu = Quality("13a", self.right) if scored and translations else None
        self.rouge = Rouge() if scored and not translations else None

    def statistics(self, texts: Sequence[str]) -> np.ndarray:
        """Summands of the score of a set of texts, [texts, ...]."""
        if self.bleu is not None:
            return self.bleu.statistics(texts)
        if self.rouge is None:
            return np.full((len(texts), 2), np.nan)
        each = [self.rouge(right, text)["rougeL"] for right, text in zip(self.right, texts)]
        return np.stack([np.array(each), np.ones(len(each))], 1)

    def of(self, sums: np.ndarray) -> np.ndarray:
        """The score of summed statistics [..., n]."""
        return self.bleu.bleu(sums) if self.bleu is not None else sums[..., 0] / sums[..., 1]
