"""This package on llama.cpp against llama-cpp-python's own decoding: the same file and texts, in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch

from specviz.draft import Draft
from specviz.loop import Run
from specviz.loop.machine import thread_count
from specviz.measure import timing
from specviz.measure.benches import peers
from specviz.measure.benches.peers import compared_row, spent
from specviz.measure.prompts import first_turns
from specviz.measure.report import Bar, Entry, Report, Row, Settings, Tick
from specviz.measure.timing import BASELINE, Texts, Timed
from specviz.methods import find
from specviz.methods.signals import likeliest
from specviz.models import load
from specviz.models.llamacpp import write_gguf
from specviz.models.llamacpp.library import ends_the_process, special_kernels
from specviz.models.llamacpp.model import WHOLE, Weights
from specviz.models.llamacpp.native import Native
from specviz.models.protocols import Model
from specviz.suites import spread
from specviz.trace import Trace

COLUMNS = [("file", "file", ""), *(each for each in peers.COLUMNS if each[0] != "draft")]
DROP_ORDER = peers.DROP_ORDER
THROUGH = "our context"
GENERATE, OWN_LOOKUP, LOOKUP = "llama-cpp-python generate", "llama-cpp-python prompt lookup", "prompt_lookup"
PEERS = {THROUGH: GENERATE, BASELINE: GENERATE, LOOKUP: OWN_LOOKUP}
NOTHING = Draft.empty()
WIDE: Settings = {  # 27 million parameters
    "num_hidden_layers": 8, "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4,
    "intermediate_size": 1536, "max_position_embeddings": 1024, "tie_word_embeddings": True,
}  # fmt: skip
NOTES = [
    "tokens/s with prefill: median over texts, and its quartiles. Ratios: medians over texts of tokens/s "
    "on the same text, with a 95 % bootstrap interval. Peers: greedy Llama.generate for autoregressive; the "
    "same with LlamaPromptLookupDecoding (same n-grams and length; needs logits_all) for prompt_lookup. "
    "Each text starts with an empty cache on both sides.",
    "our context: only feeds the argmax of its scores back; autoregressive: the method, cycle by cycle, "
    "with its record.",
    "same text: equal to our autoregressive decoding token for token; passes of one and of many tokens "
    "round differently, so other texts diverge at near-ties (specviz audit names them).",
    "wide: random weights with the cost per token of a small real model. The bundled models cost so little "
    "per token that the overhead around a pass is visible.",
]


@dataclass
class Side:
    """One model file: its texts, the times of all decoders, and the traces of ours."""

    name: str
    model: Any
    ids: list[list[int]]
    times: dict[str, Timed]
    traces: dict[str, Trace]


def bench(
    model: Model,
    entries: list[Entry],
    *,
    number: Annotated[int, "Prompts."] = 21,
    max_new_tokens: Annotated[int, "Maximum number of tokens per prompt."] = 128,
    rounds: Annotated[int, "How often all prompts are decoded."] = 1,
    tick: Tick = lambda done, of, name: None,
) -> Report:
    """Compare autoregressive decoding and prompt lookup on llama.cpp with those of its Python package.

    Decoding is greedy. A model in transformers' format is first written as an F16 GGUF file, in a temporary
    folder. Both sides decode from token ids to token ids and count the end token. Bars on medians over texts
    of the ratio of tokens per second: decoding through our context over ``Llama.generate`` at least 0.95, on
    the model's file and on a wider one of random weights, and on the latter also the recorded run;
    ``prompt_lookup`` over ``LlamaPromptLookupDecoding`` more than 1.
    """
    with TemporaryDirectory(prefix="specviz-") as home:
        native = hasattr(model, "gives_hidden")
        given: Any = model if native else _written(model, Path(home) / f"{model.name}.gguf")
        wide = _written(_wide(), Path(home) / "wide.gguf")
        ids = first_turns(given, spread(entries, number))
        few = first_turns(wide, spread(entries, max(1, len(ids) // 3)))  # a different tokenizer
        step = timing.counter(tick, rounds * (5 * len(ids) + 3 * len(few)))
        sides = [
            _decoded(given, given.name, ids, rounds, max_new_tokens, [BASELINE, LOOKUP], step),
            _decoded(wide, "wide", few, rounds, max_new_tokens, [BASELINE], step),
        ]
        around = [_around(side) for side in sides]
        about = timing.setting(
            given, [], prompts=len(ids), rounds=rounds, max_new_tokens=max_new_tokens,
            clock=timing.clock_of(given)[1], backend=given.backend,
        )  # fmt: skip
    rows: list[Row] = [
        {"file": side.name, "decoder": name}
        | compared_row(
            timed, side.times[BASELINE], side.times.get(PEERS.get(name, "")), side.traces.get(name)
        )
        for side in sides
        for name, timed in side.times.items()
    ]
    by = {(row["file"], row["decoder"]): row for row in rows}
    bars = [
        Bar(f"{ours} over generate, {name}", by[name, ours]["peer"].median, 0.95)
        for name, ours in ((given.name, THROUGH), ("wide", THROUGH), ("wide", BASELINE))
    ]
    lookup = by[given.name, LOOKUP]["peer"].median
    bars.append(Bar("prompt_lookup over llama-cpp-python's own", lookup, 1.0, "more than"))
    version = about["versions"].get("llama-cpp-python", "")
    title = f"Against llama-cpp-python {version}: {given.name}, {given.dtype}, {len(ids)} texts, greedy"
    notes = [*NOTES, *around, *(spent(trace) for trace in sides[0].traces.values())]
    return Report("llamacpp", title, about, COLUMNS, rows, bars, notes, DROP_ORDER)


def _written(model: Model, path: Path) -> Any:
    return load(f"gguf:{write_gguf(model, path, 'f16').path}")


def _wide() -> Any:
    """A model of seeded random weights with a bundled tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    like = load("town-draft")
    torch.manual_seed(0)
    config = LlamaConfig(**WIDE, vocab_size=like.vocabulary, eos_token_id=list(like.eos))
    return load(LlamaForCausalLM(config), tokenizer=like.tokenizer)


def _decoded(
    model: Model, name: str, texts: list[list[int]], rounds: int, most: int, methods: list[str],
    step: Callable[[Any], None],
) -> Side:  # fmt: skip
    """Decode every text with our methods and with their peers, in turns."""
    ids = texts * rounds
    values = find(LOOKUP)().values
    theirs = {GENERATE: Peer(model, most)}
    if LOOKUP in methods:
        theirs[OWN_LOOKUP] = Peer(model, most, (values["ngram_max"], values["draft_length"]))
    longest = max(range(len(ids)), key=lambda i: len(ids[i]))
    for peer in theirs.values():  # warm-up
        peer(ids[longest])
    runs: dict[str, Run] = {}
    with timing.closing(runs):
        for method in methods:
            timing.finish(Run(model, [ids[longest]], method, max_new_tokens=most))
            runs[method] = Run(model, ids, method, max_new_tokens=most)
        decoders: dict[str, Callable[[int], list[int]]] = {
            THROUGH: lambda i: through(model, ids[i], most),
            **{method: Texts(run) for method, run in runs.items()},
            **{name: partial(peer.text, ids) for name, peer in theirs.items()},
        }
        times = timing.paired(decoders, len(ids), "cpu", step, timing.clock_of(model)[0])
        traces = {method: timing.finish(run) for method, run in runs.items()}
    once = {name: timed.each_once(len(texts)) for name, timed in times.items()}
    return Side(name, model, texts, once, traces)


class Peer:
    """llama-cpp-python's own greedy generation from a model's file, from token ids to token ids.

    Parameters
    ----------
    model : LlamaCpp
    most : int
        Maximum number of new tokens.
    lookup : (longest n-gram, tokens) or None
        Parameters of its prompt lookup, if used.
    """

    def __init__(self, model: Any, most: int, lookup: tuple[int, int] | None = None) -> None:
        from llama_cpp import Llama
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        count = thread_count(model)
        whole = Weights(model.path, 0, words=True).type in WHOLE
        with special_kernels(not ends_the_process(whole)):
            self.llama = Llama(
                str(model.path), n_ctx=model.max_length, n_threads=count, n_threads_batch=count,
                flash_attn=False, n_gpu_layers=model.gpu_layers, verbose=False, logits_all=lookup is not None,
                draft_model=LlamaPromptLookupDecoding(*lookup) if lookup else None,
            )  # fmt: skip
        self.ends, self.most = frozenset(model.eos), most

    def __call__(self, ids: list[int]) -> list[int]:
        return list(self.tokens(ids))

    def text(self, texts: list[list[int]], number: int) -> list[int]:
        """Continue text `number`."""
        return self(texts[number])

    def tokens(self, ids: list[int]) -> Iterator[int]:
        """Yield the new tokens as they are generated."""
        self.llama.reset()
        tokens = self.llama.generate(ids, temp=0.0, repeat_penalty=1.0)
        for number, token in enumerate(tokens, 1):
            yield token
            if token in self.ends or number == self.most:
                break


def through(model: Model, ids: list[int], most: int) -> list[int]:
    """Decode greedily with the context's methods alone."""
    context = model.open([ids], most)
    tokens: list[int] = []
    while True:
        token = likeliest(context.forward(NOTHING).logits[0])
        tokens.append(token)
        if token in model.eos or len(tokens) == most:
            context.close()
            return tokens
        context.extend([token])


def _around(side: Side) -> str:
    """A sentence on the time per token spent outside llama_decode, ours and theirs."""
    clock = timing.clock_of(side.model)[0]
    ids = side.ids[:3]
    with _counted(Native, "decode", clock) as inside:
        run = Run(side.model, ids, BASELINE, max_new_tokens=32, record=None)
        begin = clock()
        tokens = sum(len(cycle.tokens) for cycle in run)
        ours = (clock() - begin - sum(inside)) / tokens
        passes = len(inside) / tokens
    from llama_cpp._internals import LlamaContext

    peer = Peer(side.model, 32)
    with _counted(LlamaContext, "decode", clock) as inside:
        begin = clock()
        tokens = sum(len(peer(text)) for text in ids)
        theirs = (clock() - begin - sum(inside)) / tokens
    return (
        f"outside llama_decode, {side.name}: autoregressive {ours * 1e6:.0f} µs per token and {passes:.2f} "
        f"passes, llama-cpp-python {theirs * 1e6:.0f} µs and {len(inside) / tokens:.2f} (our prefill "
        "leaves the last prompt token to the first cycle)"
    )


@contextmanager
def _counted(owner: Any, name: str, clock: Callable[[], float]) -> Iterator[list[float]]:
    """Record the seconds of each call of a method."""
    spent: list[float] = []
    plain = getattr(owner, name)

    def timed(*arguments: Any) -> Any:
        begin = clock()
        result = plain(*arguments)
        spent.append(clock() - begin)
        return result

    setattr(owner, name, timed)
    try:
        yield spent
    finally:
        setattr(owner, name, plain)
