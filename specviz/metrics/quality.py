"""Quality of texts against the references given with their prompts: BLEU and chrF."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from specviz.errors import ParameterError, TraceError
from specviz.metrics.cycles import unfinished
from specviz.metrics.interval import LEAST, RESAMPLES, Estimate
from specviz.metrics.tokens import ABSENT, tokenizer
from specviz.trace import Trace

Scores: TypeAlias = dict[str, Any]  # an `Estimate` per score, and facts about them
SCORES = ("bleu", "chrf")


def quality(
    trace: Trace,
    tokenize: str | None = None,
    resamples: int = RESAMPLES,
    scores: Sequence[str] = SCORES,
) -> Scores:
    """BLEU and chrF of the final texts of a run, by sacrebleu.

    For a stream, the text is the whole output of its last update; for a conversation, that of its last turn.
    Texts without a reference are left out, and texts that did not end.

    Parameters
    ----------
    trace : Trace
        A trace of one run.
    tokenize : str, optional
        BLEU's tokenizer. Default: as in `specviz.metrics.tokenizer`.
    resamples : int
        Resamples of the bootstrap; with 1, or with fewer than six texts, there is no interval.
    scores : sequence of {"bleu", "chrf"}

    Returns
    -------
    dict
        ``bleu`` and ``chrf``: `Estimate`, in percent; the interval is the mean and half width of sacrebleu's
        bootstrap over texts. ``texts`` that were rated; ``signature`` of each, as sacrebleu prints it.

    Raises
    ------
    ParameterError
        If sacrebleu is not installed, or there is no such score.
    TraceError
        If no text has a reference.
    """
    if isinstance(scores, str) or not set(scores) <= set(SCORES):
        raise ParameterError(f"scores must be a list of {' and '.join(SCORES)}, not {scores!r}")
    texts, references = pairs(trace)
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError:
        raise ParameterError(ABSENT) from None
    # sacrebleu takes one list per reference; a missing one is None, since an empty one would be the shortest.
    most = max(map(len, references))
    columns = [[each[i] if i < len(each) else None for each in references] for i in range(most)]
    results: Scores = {"texts": len(texts), "signature": {}}
    metrics: Scores = {"bleu": BLEU(tokenize=tokenizer(trace.run, tokenize).name), "chrf": CHRF()}
    for key in scores:
        metric = metrics[key]
        drawn = resamples if len(texts) >= LEAST else 1
        score = metric.corpus_score(texts, columns, n_bootstrap=drawn)
        signature = metric.get_signature().format()
        report = json.loads(score.format(width=6, signature=signature, is_json=True))
        middle, half = (report.get(f"confidence_{part}", float("nan")) for part in ("mean", "var"))
        low, high = np.clip((middle - half, middle + half), 0, 100).tolist()  # percent
        results[key] = Estimate(float(score.score), low, high, len(texts))
        results["signature"][key] = signature
    return results


def pairs(trace: Trace) -> tuple[list[str], list[list[str]]]:
    """Final texts of a run that have references, with their references.

    A text that did not end is left out, and so is a stream whose last update did not: its reference is that
    of the whole source. A conversation's reference is the right answer to its last turn, so its other turns
    are left out.
    """
    turns = [prompt.get("turn") or 0 for prompt in trace.run["prompts"] or []]  # of a single run
    # A turn that found no room in its conversation is among the prompts, but has no text.
    written = dict(zip(trace.cycles["prompt"].unique().tolist(), trace.texts))
    cut = {prompt for _, prompt in unfinished(trace)}
    last = trace.updates.drop_duplicates("prompt", keep="last").set_index("prompt")
    written = {prompt: text for prompt, text in (written | dict(last["text"])).items() if prompt not in cut}
    texts, references = [], []
    for number, given in trace.prompts[["prompt", "reference"]].values.tolist():
        if number not in written or any(turns[number + 1 : number + 2]):
            continue
        alternatives = (
            [given] if isinstance(given, str) else list(given) if isinstance(given, list | tuple) else []
        )
        if alternatives:
            texts.append(written[number])
            references.append(alternatives)
    if not texts:
        raise TraceError(
            "no text of the trace has a reference to compare with" + ", or it did not end" * bool(cut)
        )
    return texts, references
