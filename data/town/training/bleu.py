"""Corpus BLEU with the tokenisation of each language."""

from __future__ import annotations

from collections.abc import Sequence

# sacrebleu's ja-mecab needs a dictionary that is not installed: Japanese is scored by characters.
SCHEMES = {"de": "13a", "ja": "char", "zh": "zh"}


def bleu(said: Sequence[str], references: Sequence[Sequence[str]], code: str) -> float:
    """Corpus BLEU of sacrebleu; `references` holds one list per reference, each as long as `said`."""
    import sacrebleu

    scheme = SCHEMES.get(code, "13a")
    return float(sacrebleu.corpus_bleu(list(said), [list(r) for r in references], tokenize=scheme).score)
