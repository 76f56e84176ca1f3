"""Metrics of streams: how much shown text is taken back, how much of a draft is kept, how late words come.

For runs whose source arrives in updates (`specviz.Trace.updates`), as Zeng et al. ("Self-Speculative
Biased Decoding for Faster Re-translation", section 4.1) report them. Everything is counted per update
(`erasure`), then per stream (`by_stream`); over several streams, sums come first and one division last.
`by_stream` holds both sides of each ratio, so that `pooled` gives it with its bootstrap interval over
streams: ``pooled(table["erased"], table["tokens"])``.

An update has two outputs. The *display* is what a reader sees of it, without masked tokens; the *draft* is
all of it, before masking.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from specviz import schema
from specviz.errors import ParameterError, TraceError
from specviz.metrics.interval import Estimate
from specviz.metrics.tokens import MODEL, tokenizer, words
from specviz.rules.speculative import common_prefix
from specviz.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

DISPLAY, DRAFT = OUTPUTS = ("display", "draft")
STREAM = ["run", "prompt"]


def erasure(trace: Trace, of: str = DISPLAY, tokenize: str | None = None) -> pd.DataFrame:
    """Tokens of the previous output that each update took back, because the new output differs from there on.

    Arivazhagan et al. 2020a ("Re-translation versus Streaming for Simultaneous Translation", section 3.3): to
    turn output o_{u-1} into o_u, a reader's screen deletes the |o_{u-1}| - |LCP(o_{u-1}, o_u)| tokens after
    their longest common prefix, whether or not the same words come again. The first update erases nothing,
    nor does an interrupted one: the previous output stays.

    Parameters
    ----------
    trace : Trace
    of : {"display", "draft"}
        Successive displays, or the whole outputs, masked or not.
    tokenize : str, optional
        A tokenizer of sacrebleu, or ``model`` for the model's own tokens. Default: ``flores101`` if its
        file is there, otherwise the standard one for the run's target language; see `tokenizer`. A masked
        output may end inside a word; that piece counts as erased once the word is complete.

    Returns
    -------
    DataFrame
        One row per update: ``run``, ``prompt``, ``update``; ``words``, the output's tokens (list of str; for
        ``model`` list of int); ``tokens``, how many; ``kept`` and ``erased`` ones of the previous output;
        ``written``, those after the kept ones; ``tokenizer``, its name.

    Raises
    ------
    ParameterError
        If `of` is invalid, sacrebleu is not installed, or the tokenizer's model or dictionary is missing.
    """
    import pandas as pd

    if of not in OUTPUTS:
        raise ParameterError(f"of must be one of {', '.join(OUTPUTS)}, not {of!r}")
    tables = []
    for part in trace.split():
        updates = part.updates
        if tokenize == MODEL:
            name, cuts = MODEL, [ids[:n] for ids, n in zip(updates["ids"], updates["shown"])]
            cuts = cuts if of == DISPLAY else updates["ids"].tolist()
        else:
            cut = tokenizer(part.run, tokenize)
            name = cut.name
            cuts = [cut(text) for text in updates["shown_text" if of == DISPLAY else "text"]]
        table = updates[[*STREAM, "update"]].copy()
        first = ~table.duplicated(STREAM)
        for i in np.flatnonzero(~updates["end"].isin(schema.ENDS[:-1])):  # interrupted, or cut off by a kill
            cuts[i] = [] if first.iloc[i] else cuts[i - 1]
        table["words"] = pd.Series(cuts, table.index, dtype=object)
        before = [[], *cuts[:-1]]
        kept = [0 if new else common_prefix(a, b) for new, a, b in zip(first, before, cuts)]
        had = np.where(first, 0, np.array([len(each) for each in before[: len(cuts)]], int))
        table["tokens"] = np.array([len(each) for each in cuts], int)
        table["kept"] = np.array(kept, int)
        table["erased"] = had - table["kept"]
        table["written"] = table["tokens"] - table["kept"]
        tables.append(table.assign(tokenizer=name))
    return pd.concat(tables, ignore_index=True)


def normalized_erasure(trace: Trace, of: str = DISPLAY, tokenize: str | None = None) -> float:
    """NE: tokens erased between successive outputs, divided by the tokens of the last outputs.

    Arivazhagan et al. 2020a: how many tokens were shown and taken back for each token that remains in the
    end; 0 for a display that only grows. Pooled over streams (sums first, one division last), because the
    papers do not say how they average. Parameters as in `erasure`; NaN without streams.
    """
    table = erasure(trace, of, tokenize)
    last = table[~table.duplicated(STREAM, keep="last")]["tokens"].sum()
    return float(table["erased"].sum() / last) if last else float("nan")


def by_stream(trace: Trace, tokenize: str | None = None) -> pd.DataFrame:
    """All counts and times of each stream, summed over its updates.

    Parameters
    ----------
    trace : Trace
    tokenize : str, optional
        As in `erasure`.

    Returns
    -------
    DataFrame
        One row per stream, in the order they were decoded: ``run``, ``prompt``, ``id``, ``language``;
        ``updates``; then

        - ``tokens`` of the last display, ``erased`` from earlier displays, ``NE`` = erased / tokens;
          ``draft_tokens``, ``draft_erased``, ``draft_NE`` of the outputs before masking; ``tokenizer``.
          `erasure` defines them.
        - ``drafted`` tokens that were sent to the target, ``accepted`` of them; ``unreviewed``, kept without
          verification (continuous decoding); ``emitted`` tokens of all outputs, end tokens included.
          ``A/D`` = accepted / drafted, Zeng et al.'s accepted draft tokens over draft length. ``A/O`` =
          (accepted + unreviewed) / emitted, over total output tokens. Continuous decoding keeps its draft
          unjudged: its A/D is NaN (the paper prints 100), and its A/O is the share that was kept.
        - ``seconds`` after the prompt's prefill, including the verification pass, and ``prefill``, seconds
          of the prompts. ``tokens_per_second`` = emitted / seconds is the paper's TPS (appendix A.1:
          tokens emitted per update over generation time; Table 5: counted from the first token of output);
          ``tokens_per_second_with_prefill`` includes the prompts. In continuous decoding the pass that reads
          the carried tokens is part of the prefill, so only the second number includes it.
        - ``prompt_tokens`` and how many were ``reused``: rows of the KV cache that an update did not compute.
        - ``AL``, ``LAAL`` in words and ``AL_seconds``, ``LAAL_seconds``: see `lagging`.
    """
    import pandas as pd

    updates = trace.updates
    groups = updates.groupby(STREAM, observed=True, sort=False)
    sums = {name: (name, "sum") for name in ("unreviewed", "emitted", "prompt_tokens")}
    table = groups.agg(updates=("update", "size"), **sums)
    table[["prefill", "seconds"]] = groups[["prefill", "duration"]].sum(min_count=1)
    table["reused"] = groups["reused"].agg(lambda kept: kept.sum(skipna=False))
    table = table.reset_index()
    cycles = trace.cycles
    judged = cycles.assign(sent=cycles["sent"] - cycles["cut"])
    judged = judged.groupby(STREAM, observed=True)[["sent", "accepted"]].sum()
    table = table.merge(judged.reset_index().rename(columns={"sent": "drafted"}), how="left", on=STREAM)
    for of, prefix in ((DISPLAY, ""), (DRAFT, "draft_")):
        counted = erasure(trace, of, tokenize)
        erased = counted.groupby(STREAM, observed=True, sort=False).agg(
            erased=("erased", "sum"), tokens=("tokens", "last"), tokenizer=("tokenizer", "last")
        )
        table = table.merge(erased.drop(columns="tokenizer").add_prefix(prefix).reset_index(), on=STREAM)
        table[f"{prefix}NE"] = table[f"{prefix}erased"] / table[f"{prefix}tokens"].where(
            table[f"{prefix}tokens"] > 0
        )
    table["tokenizer"] = erased["tokenizer"].to_numpy()
    table["A/D"] = table["accepted"] / table["drafted"].where(table["drafted"] > 0)
    table["A/O"] = (table["accepted"] + table["unreviewed"]) / table["emitted"].where(table["emitted"] > 0)
    with_prefill = table["seconds"] + table["prefill"]
    for name, seconds in (("", table["seconds"]), ("_with_prefill", with_prefill)):
        table[f"tokens_per_second{name}"] = table["emitted"] / seconds.where(seconds > 0)
    table = table.merge(lagging(trace, tokenize), on=STREAM)
    return pd.DataFrame(trace.prompts[[*STREAM, "id", "language"]].merge(table, on=STREAM))


def speedup(trace: Trace, baseline: Trace, prefill: bool = False) -> Estimate:
    """Speedup over another trace of the same streams.

    Tokens per second of a stream (`by_stream`) over the baseline's on the same stream; the median over
    streams with its 95 % bootstrap interval, as in this package's benches. Zeng et al. divide the means over
    three runs.

    Parameters
    ----------
    trace, baseline : Trace
        The baseline is usually re-translation from scratch (``mode="rt"``).
    prefill : bool
        Whether to include the time of the prompts.

    Raises
    ------
    TraceError
        If they did not decode the same streams in the same order.
    """
    if _sources(trace) != _sources(baseline):
        raise TraceError("a speedup needs the same streams in the same order, and these differ")
    name = "tokens_per_second" + ("_with_prefill" if prefill else "")
    one, other = (by_stream(each, MODEL)[name].to_numpy(np.float64) for each in (trace, baseline))
    return Estimate.of((one / other).tolist())


def _sources(trace: Trace) -> list[list[str]]:
    """The source after each update of each stream."""
    groups = trace.updates.groupby(STREAM, observed=True, sort=False)
    return [part["source"].tolist() for _, part in groups]


def lagging(trace: Trace, tokenize: str | None = None) -> pd.DataFrame:
    """Average lagging of the displays: how far they are behind a translator who never waits.

    Ma et al. 2019 (STACL, equation 8), computed as SimulEval does:
    AL = 1/τ Σ_{t=1..τ} (g(t) - (t-1) |x| / |y|), where g(t) is the delay of target token t, |x| the length of
    the source, |y| the reference's (of several, the first's; without any, the output's), τ the first token
    with g(t) ≥ |x|.
    LAAL (Papi et al. 2022) takes the longer of reference and output as |y|: writing too much gains nothing.

    A re-translated token may be taken back. Its delay is that of the first update from which on every display
    begins with the last display's tokens up to it: when it was displayed for good. In words, g(t) is how many
    of the source's words were known by then (the most that any update so far had, at most |x|); a character
    of a script without spaces is a word. In seconds, it is when that update arrived on the stream's own
    clock, which must be 0 when the source begins (a pause before it counts; `from_partials` with
    ``clock="file"`` reads times that run on), and |x| is when the last one did: decoding time is not included
    (SimulEval's computation-unaware delay).

    Parameters
    ----------
    trace : Trace
    tokenize : str, optional
        How to count the target's tokens, as in `erasure`. References are counted the same way (with
        ``model`` they are left out, and |y| is the output's length).

    Returns
    -------
    DataFrame
        One row per stream: ``run``, ``prompt``, ``AL``, ``LAAL`` in words, ``AL_seconds``, ``LAAL_seconds``
        (NaN without arrival times). NaN if nothing was displayed.
    """
    import pandas as pd

    shown = erasure(trace, DISPLAY, tokenize)
    runs = {part.run["run"]: part.run for part in trace.split()}
    references = trace.prompts.set_index(STREAM)["reference"]
    updates = trace.updates
    rows = []
    for (run, prompt), own in shown.groupby(STREAM, observed=True, sort=False):
        arrived = updates.iloc[own.index]
        displays = own["words"].tolist()
        reference, length = references.get((run, prompt)), len(displays[-1])
        if isinstance(reference, list | tuple):
            reference = next(iter(reference), None)
        if isinstance(reference, str) and reference and tokenize != MODEL:
            length = len(tokenizer(runs[run], tokenize)(reference))
        source_words = np.array([len(words(text)) for text in arrived["source"]])
        source_seen = np.minimum(np.maximum.accumulate(source_words), source_words[-1]).astype(float)
        arrival = arrived["arrival"].to_numpy(np.float64)
        at = stable(displays)
        row: dict[str, Hashable] = {"run": run, "prompt": prompt}
        for name, delays in (("", source_seen), ("_seconds", arrival)):
            for metric, target in (("AL", length), ("LAAL", max(length, len(displays[-1])))):
                row[metric + name] = average_lagging(delays[at], float(delays[-1]), target)
        rows.append(row)
    names = [*STREAM, "AL", "LAAL", "AL_seconds", "LAAL_seconds"]
    return pd.DataFrame(rows, columns=names)


def stable(outputs: Sequence[Sequence[Hashable]]) -> np.ndarray:
    """For each token of the last output, the update from which on all outputs agree with it up to that token.

    Parameters
    ----------
    outputs : sequence of sequences of tokens
        Tokens of each update's output.

    Returns
    -------
    array of int [tokens of the last output]
    """
    last = outputs[-1]
    same = np.array([common_prefix(each, last) for each in outputs])
    lasting = np.minimum.accumulate(same[::-1])[::-1]  # the least of this and later updates; ascending
    return np.searchsorted(lasting, np.arange(1, len(last) + 1))


def average_lagging(delays: np.ndarray, source: float, target: int) -> float:
    """Average lagging of one text (Ma et al. 2019, equation 8).

    Parameters
    ----------
    delays : array [tokens]
        g(t), in the unit of `source`.
    source : float
        The source's length |x|.
    target : int
        The target's length |y|.
    """
    if not len(delays) or not target or not source > 0 or np.isnan(delays).any():
        return float("nan")
    full = np.flatnonzero(delays >= source)
    tau = int(full[0]) + 1 if len(full) else len(delays)
    return float(np.mean(delays[:tau] - np.arange(tau) * source / target))
