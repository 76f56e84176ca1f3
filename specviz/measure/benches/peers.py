"""This package against transformers: the same weights, prompts, threads and number format, in one run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch

from specviz import metrics
from specviz.errors import ModelError
from specviz.loop import Run
from specviz.measure import timing
from specviz.measure.prompts import first_turns
from specviz.measure.report import Bar, Entry, Estimate, Report, Row, Settings, Tick
from specviz.measure.timing import BASELINE, Entrant, Texts, Timed
from specviz.methods import find
from specviz.models.protocols import Model
from specviz.models.trimmed import TrimmedModel
from specviz.suites import spread
from specviz.trace import Trace

COLUMNS = [
    ("decoder", "decoder", ""), ("draft", "draft", ""), ("speed", "tokens/s with prefill", "{:,.0f}"),
    ("q25", "25%", "{:,.0f}"), ("q75", "75%", "{:,.0f}"), ("peer", "over its peer [95%]", ""),
    ("baseline", "over our autoregressive [95%]", ""), ("tau", "τ", "{:.2f}"), ("same", "same text", ""),
]  # fmt: skip
DROP_ORDER = ("q25", "q75", "tau", "same")
GENERATE, COMPILED = "transformers generate", "transformers generate, compiled"
ASSISTED, COPIED = "transformers assisted", "transformers prompt lookup"
LOOKUP = "prompt_lookup"
NOTES = [
    "tokens/s with prefill: median over texts, and its quartiles. Ratios: medians over texts of tokens/s "
    "on the same text, with a 95 % bootstrap interval. Peers: generate for autoregressive, assisted "
    "generation with the same draft model and length for speculative, its own prompt lookup with the same "
    "n-grams and length for prompt_lookup.",
    "same text: equal to our autoregressive decoding token for token (bild is lossy).",
]


def bench(
    model: Model,
    drafts: list[Model],
    entries: list[Entry],
    *,
    number: Annotated[int, "Prompts."] = 21,
    max_new_tokens: Annotated[int, "Maximum number of tokens per prompt."] = 128,
    rounds: Annotated[int, "How often all prompts are decoded."] = 1,
    tick: Tick = lambda done, of, name: None,
) -> Report:
    """Compare autoregressive and speculative decoding with transformers' own, text by text in turns.

    Decoding is greedy. Both sides decode from token ids to token ids and count the end token. Assisted
    generation always drafts as many tokens as ours (constant schedule, no confidence threshold). Bars on
    medians over texts of the ratio of tokens per second: our autoregressive over ``generate`` (on CUDA also
    with a compiled static cache) at least 1.0, ``prompt_lookup`` over transformers' own at least 1.0;
    ``speculative`` over assisted generation at least 1.2 with each draft model; ``speculative`` and ``bild``
    with their best draft model over our autoregressive more than 1.
    """
    ids = first_turns(model, spread(entries, number))
    prompts = len(ids)
    ids *= rounds
    # transformers assists with models, not with EAGLE drafters, and takes a logit's index for its token id
    drafts = [each for each in drafts if find("speculative").suited([each])]
    narrow = [each.name for each in drafts if isinstance(each, TrimmedModel)]
    length = find("speculative")().values["draft_length"]
    cuda = torch.device(model.device).type == "cuda"
    whole = [each for each in drafts if each.name not in narrow]
    theirs = opponents(Peer(model, max_new_tokens), ids, whole, length, cuda)
    longest = max(range(len(ids)), key=lambda i: len(ids[i]))
    for decode in theirs.values():  # warm-up; the longest text first, so that compiled code covers its sizes
        decode(longest)
        decode(0)
    runs: dict[Entrant, Run] = {}
    ours = [Entrant(BASELINE), Entrant(LOOKUP)]
    ours += [Entrant(name, draft) for name in ("speculative", "bild") for draft in drafts]
    with timing.closing(runs):
        for side in ours:
            options: Settings = {"draft": side.draft, "max_new_tokens": max_new_tokens}
            timing.finish(Run(model, [ids[longest], ids[0]], side.method, **options))
            runs[side] = Run(model, ids, side.method, **options)
        texts = {side: Texts(run) for side, run in runs.items()}
        step = timing.counter(tick, len(ids) * (len(texts) + len(theirs)))
        times = timing.paired({**texts, **theirs}, len(ids), model.device, lambda side: step(side.label))
        traces = {side: timing.finish(run) for side, run in runs.items()}
    times = {side: timed.each_once(prompts) for side, timed in times.items()}
    peers = {Entrant(BASELINE): Entrant(GENERATE), Entrant(LOOKUP): Entrant(COPIED)}
    peers |= {Entrant("speculative", each): Entrant(ASSISTED, each) for each in whole}
    base = times[Entrant(BASELINE)]
    rows = [
        {"decoder": side.method, "draft": side.draft.name if side.draft is not None else None}
        | compared_row(timed, base, times.get(peers[side]) if side in peers else None, traces.get(side))
        for side, timed in times.items()
    ]
    bars = _bars(rows, cuda, times)
    sizes = {"rounds": rounds, "max_new_tokens": max_new_tokens, "draft_length": length}
    about = timing.setting(model, drafts, prompts=prompts, **sizes)
    version = about["versions"].get("transformers", "")
    about_texts = f"{model.name}, {prompts} texts"
    title = f"Against transformers {version}: {about_texts}, {length} draft tokens, greedy"
    skipped = [
        f"{name} predicts a part of the vocabulary, which transformers' assisted generation cannot: skipped"
        for name in narrow
    ]
    notes = [*NOTES, *skipped, *map(spent, traces.values())]
    return Report("peers", title, about, COLUMNS, rows, bars, notes, DROP_ORDER)


def opponents(
    peer: Peer, ids: list[list[int]], drafts: list[Model], length: int, cuda: bool
) -> dict[Entrant, Callable[[int], list[int]]]:
    """transformers' own decoders, each called with the number of a text."""
    theirs: dict[Entrant, Callable[[int], list[int]]] = {
        Entrant(GENERATE): lambda i: peer.generate(ids[i]),
        Entrant(COPIED): lambda i: peer.generate(ids[i], **lookup_options()),
    }
    if cuda:
        theirs[Entrant(COMPILED)] = lambda i: peer.generate(ids[i], cache_implementation="static")
    for draft in drafts:
        theirs[Entrant(ASSISTED, draft)] = partial(_assisted, peer, ids, twin(draft), length)
    return theirs


def _assisted(peer: Peer, ids: list[list[int]], assistant: Any, length: int, number: int) -> list[int]:
    return peer.assisted(ids[number], assistant, length)


def compared_row(timed: Timed, base: Timed, peer: Timed | None, trace: Trace | None) -> Row:
    """A decoder's figures, also relative to its peer and to our autoregressive decoding (None if missing)."""
    low, middle, high = np.quantile(timed.speeds(), (0.25, 0.5, 0.75)).tolist()
    return {
        "speed": middle, "q25": low, "q75": high, "peer": None if peer is None else timed.over(peer),
        "baseline": None if timed is base else timed.over(base),
        "tau": None if trace is None else metrics.tau(trace), "same": f"{timed.same(base)}/{len(base.texts)}",
        "tokens": timed.tokens, "seconds": sum(timed.seconds),
    }  # fmt: skip


def _bars(rows: list[Row], cuda: bool, times: dict[Entrant, Timed]) -> list[Bar]:
    by = {(row["decoder"], row["draft"]): row for row in rows}
    bars = [Bar("autoregressive over generate", by[BASELINE, None]["peer"].median, 1.0)]
    bars.append(Bar("prompt_lookup over transformers' own", by[LOOKUP, None]["peer"].median, 1.0))
    if cuda:
        over: Estimate = times[Entrant(BASELINE)].over(times[Entrant(COMPILED)])
        bars.append(Bar("autoregressive over generate with the compiled static cache", over.median, 1.0))
    drafts = [draft for decoder, draft in by if decoder == "speculative"]
    for draft in drafts:
        if by["speculative", draft]["peer"] is None:
            continue
        bars.append(Bar(f"speculative over assisted, {draft}", by["speculative", draft]["peer"].median, 1.2))
    for name in ("speculative", "bild") if drafts else ():
        best = max(drafts, key=lambda draft: by[name, draft]["baseline"].median)
        bars.append(
            Bar(f"{name} ({best}) over autoregressive", by[name, best]["baseline"].median, 1.0, "more than")
        )
    return bars


def spent(trace: Trace) -> str:
    """Where a run's time went, in a sentence."""
    draft = (trace.run["draft"] or {}).get("name")
    label = trace.run["method"] + (f", {draft}" if draft else "")
    shares = ", ".join(f"{name} {share:.0%}" for name, share in timing.phases(trace).items())
    return f"time of {label}: {shares}"


class Peer:
    """transformers' own decoding of a model's weights, greedy, from token ids to token ids."""

    def __init__(self, model: Any, max_new_tokens: int) -> None:
        if not can_generate(model):
            raise ModelError(f"{model.name} is not in transformers' format: there is nothing to compare with")
        self.net = twin(model)
        self.options = {
            "max_new_tokens": max_new_tokens,
            "do_sample": False,
            "use_cache": True,
            "pad_token_id": model.eos[0] if model.eos else 0,
            "eos_token_id": list(model.eos) or None,
        }

    def generate(self, ids: list[int], **more: Any) -> list[int]:
        """Call ``generate`` and return the new tokens."""
        given = torch.tensor([ids], device=self.net.device)
        out = self.net.generate(given, attention_mask=torch.ones_like(given), **self.options, **more)
        # An encoder-decoder's output begins with its own start token, and does not hold the prompt.
        start = 1 if self.net.config.is_encoder_decoder else len(ids)
        return out[0, start:].tolist()

    def assisted(self, ids: list[int], assistant: Any, length: int) -> list[int]:
        """Call ``generate(assistant_model=...)`` with drafts of `length` tokens."""
        config = assistant.generation_config
        config.num_assistant_tokens = length
        config.num_assistant_tokens_schedule = "constant"
        config.assistant_confidence_threshold = 0.0
        return self.generate(ids, assistant_model=assistant)


def lookup_options() -> dict[str, int]:
    """Options of ``generate`` for a prompt lookup with our draft length and longest n-gram."""
    ours = find(LOOKUP)().values
    return {"prompt_lookup_num_tokens": ours["draft_length"], "max_matching_ngram_size": ours["ngram_max"]}


def can_generate(model: Any) -> bool:
    """Whether transformers itself decodes with this model's modules."""
    return hasattr(getattr(model, "net", None), "generate")


def twin(model: Any) -> Any:
    """Copy a model with its weights in transformers' layout, so that neither side runs on the other's.

    Raises
    ------
    ModelError
        If there is no memory for it.
    """
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        net = copy.deepcopy(model.net)
        for parameter in net.parameters():
            parameter.data = parameter.data.contiguous()
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        raise ModelError(
            f"no memory for a second copy of {model.name}: use a smaller model or dtype"
        ) from None
    return net
