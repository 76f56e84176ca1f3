"""UniSpec's experiments (Do et al., Tables 2, 6, 10 to 13), each a bench: the same question, asked here.

The paper asks an 8 B model on GPUs and Spec-Bench's 480 prompts; a note below each table says what it found.
None of these has a bar: they show how much a setting matters on this machine.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specviz import methods
from specviz.bench import passes
from specviz.bench.compare import Contender, against, compare, others, tabulate
from specviz.bench.report import Report
from specviz.bench.timing import BASELINE, calibrated, quiet_clock, setting
from specviz.errors import ModelError, ParameterError
from specviz.metrics.rouge import NAMES as ROUGE
from specviz.metrics.rouge import Rouge
from specviz.models.model import Model
from specviz.suites import spread

Tick = Callable[[int, int, str], None]

FIXED = 80  # nodes of a tree that no one calibrated: Token Recycling's
TRAINING_FREE = ("prompt_lookup", "lookahead", "spectra", "token_recycling", "unispec")
THRESHOLDS = (0.0, 0.01, 0.025, 0.05, 0.1, 0.2)
DEVIATIONS = (1 / 2, 3 / 4, 7 / 8, 1, 9 / 8, 5 / 4, 3 / 2, 2)
DTYPES = ("float32", "float16", "bfloat16")
RATED = ("summarization", "arithmetic")  # kinds of work whose texts ROUGE rates
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
BRANCHES = 3  # of a tree whose passes are timed

FIGURES = [
    ("speed", "tokens/s", "{:,.0f}"),
    ("speedup", "speedup [95%]", ""),
    ("tau", "τ [95%]", ""),
    ("nodes", "nodes a cycle", "{:.1f}"),
    ("same", "same text", ""),
]
SPARE = ("speed", "nodes", "same")


@dataclass(frozen=True)
class Plan:
    """What is compared, under which title, which columns name it, and what a reader must know."""

    title: str
    contenders: list[Contender]
    columns: list[tuple[str, str, str]]
    notes: list[str]


def side_by_side(plan: Callable[[int, str], Plan]) -> Callable[..., Report]:
    """A bench from a plan, which is made for a g* and the words that say where that comes from."""

    def bench(
        model: Any,
        drafts: list[Any],
        entries: list[dict[str, Any]],
        *,
        prompts: int = 35,
        max_new_tokens: int = 128,
        rounds: int = 1,
        size: int | None = None,
        tick: Tick = lambda done, of, name: None,
    ) -> Report:
        g, origin = best_size(model, size)
        made = plan(g, origin)
        chosen = spread(entries, prompts)
        warm = others(entries, chosen)
        texts = count_texts(chosen)
        told = counter(tick, texts * len(made.contenders) * rounds)
        found = compare(
            model, made.contenders, chosen, warm, max_new_tokens=max_new_tokens, rounds=rounds, tick=told
        )
        rows, kinds = tabulate(found)
        clock = quiet_clock(model.device)[1]
        about = setting(
            model, [], prompts=len(chosen), texts=texts, warm=len(warm), rounds=rounds,
            max_new_tokens=max_new_tokens, draft_size=g, clock=clock,
        )  # fmt: skip
        notes = [
            *made.notes,
            "speedup: median over texts of tokens/s (prefill inside) over autoregressive decoding's on the "
            "same text, side by side; τ: tokens a cycle, the bonus counted, pooled. Both with a 95 % "
            f"bootstrap interval over texts. Time: {clock}, recording on."
            + (" By kind of work: speedup, τ." if kinds else ""),
            texts_note(chosen, warm),
        ]
        spare = (*(key for key, _, _ in reversed(kinds)), *SPARE)
        title = f"{made.title}: {model.name}, {texts} texts" + (f", {rounds} rounds" if rounds > 1 else "")
        columns = [*made.columns, *FIGURES, *kinds]
        return Report(plan.__name__, title, about, columns, rows, notes=notes, spare=spare)

    bench.__name__, bench.__doc__ = plan.__name__, plan.__doc__
    return bench


@side_by_side
def ablation(g: int, origin: str) -> Plan:
    """UniSpec whole, and without each of its parts (Table 2)."""
    parts: dict[str, dict[str, Any]] = {
        "whole": {"draft_size": g},
        "without calibration": {"draft_size": FIXED},
        "without scores": {"draft_size": g, "scores": False},
        "without expansion": {"draft_size": g, "neighbours": False, "threshold": 0.0},
    }
    contenders = [Contender(BASELINE, cells={"setting": BASELINE, "g": None})]
    contenders += [
        Contender(name, "unispec", values, cells={"setting": name, "g": values["draft_size"]})
        for name, values in parts.items()
    ]
    notes = [
        f"without calibration: a fixed g = {FIXED}, Token Recycling's; the paper does not name its fixed "
        "size. Without scores: nodes are ranked by 2 to the minus rank. Without expansion: no neighbours and "
        "r = 0.",
        "The paper (Llama-3 8B, RTX 3090; conversation, then code; speedup and τ): whole 1.96, 2.58 and "
        "1.85, 2.59; without calibration 1.61, 2.76 and 1.52, 2.79; without scores 1.48, 2.62 and 1.46, "
        "2.75; without expansion 1.66, 2.20 and 1.63, 2.29.",
    ]
    columns = [("setting", "UniSpec", ""), ("g", "g", "{:d}")]
    return Plan(f"UniSpec without its parts, g* = {g} ({origin})", contenders, columns, notes)


@side_by_side
def temperature(g: int, origin: str) -> Plan:
    """Every installed method without a draft model, at temperature 0 and 1 (Table 6).

    A speedup is over autoregressive decoding at the same temperature. A further round has another seed.
    """
    names = [name for name in (BASELINE, *TRAINING_FREE) if name in methods.names()]
    contenders = [
        Contender(
            f"{name}, T = {t:g}", name, {"draft_size": g} if name == "unispec" else {},
            f"{BASELINE}, T = {t:g}", {"temperature": t, "method": name}, temperature=t,
        )
        for t in (0.0, 1.0) for name in names
    ]  # fmt: skip
    notes = [
        f"UniSpec's g = {g} ({origin}); the others have their own defaults. At temperature 1 each method "
        "draws other texts, of other lengths, from the same law; the speedup compares their tokens a second.",
        "The paper (Llama-3 8B, A100; average speedup at 0 and at 1): Lookahead 1.36 and 1.39, SPECTRA 1.42 "
        "and 1.42, Token Recycling 1.97 and 1.78, UniSpec 2.13 and 1.85.",
    ]
    columns = [("temperature", "T", "{:g}"), ("method", "method", "")]
    return Plan("Greedy and sampled", contenders, columns, notes)


@side_by_side
def threshold(g: int, origin: str) -> Plan:
    """UniSpec's threshold r from 0, which prunes nothing, to 0.2 (Table 12)."""
    contenders = [Contender(BASELINE, cells={"r": None})]
    contenders += [
        Contender(f"r = {r:g}", "unispec", {"draft_size": g, "threshold": r}, cells={"r": r})
        for r in THRESHOLDS
    ]
    notes = [
        "–: autoregressive decoding. r stops weak nodes from being expanded; what is sent are the g nodes of "
        "highest score, so r changes a tree only where fewer than g nodes are at least as good as r.",
        "The paper (Llama-3 8B, RTX 3090; average speedup for r = 0, 0.01, 0.025, 0.05, 0.1, 0.2): 1.90, "
        "1.93, 1.95, 1.99, 1.95, 1.91.",
    ]
    return Plan(f"UniSpec's threshold, g = {g} ({origin})", contenders, [("r", "r", "{:g}")], notes)


@side_by_side
def deviation(g: int, origin: str) -> Plan:
    """UniSpec's draft size around g* (Table 13)."""
    sizes = sorted({max(1, round(g * factor)) for factor in DEVIATIONS})
    contenders = [Contender(BASELINE, cells={"g": None})]
    contenders += [
        Contender(f"g = {n}", "unispec", {"draft_size": n}, cells={"g": f"{n} (g*)" if n == g else str(n)})
        for n in sizes
    ]
    notes = [
        "–: autoregressive decoding. The sizes are g* times 1/2 to 2; the paper's window of 15 "
        "around 110 is g* times 0.86 to 1.14.",
        "The paper (Llama-3 8B, A100; average speedup for g = 95, 100, 105, 110, 115, 120, 125): 1.95, 2.04, "
        "2.08, 2.13, 2.11, 2.03, 1.95. There τ is larger at 95 than at 110, against its own equation 2.",
    ]
    return Plan(f"UniSpec's draft size around g* = {g} ({origin})", contenders, [("g", "g", "")], notes)


def precision(
    model: Any,
    drafts: list[Any],
    entries: list[dict[str, Any]],
    *,
    prompts: int = 20,
    max_new_tokens: int = 128,
    rounds: int = 1,
    size: int | None = None,
    tick: Tick = lambda done, of, name: None,
) -> Report:
    """Autoregressive decoding and UniSpec in three number formats, with ROUGE (Table 10).

    The prompts are those of summarization and arithmetic that have a reference; where there are none, all
    that have one. A speedup is over autoregressive decoding in the same format.

    Raises
    ------
    ParameterError
        If rouge-score is not installed, or no prompt has a reference.
    """
    rouge = Rouge()
    known = [entry for entry in entries if entry.get("reference")]
    known = [entry for entry in known if entry.get("kind") in RATED] or known
    if not known:
        raise ParameterError(
            "no prompt has a reference: ROUGE needs prompts with 'reference' or 'references'"
        )
    g, origin = best_size(model, size)
    chosen = spread(known, prompts)
    warm = others(entries, chosen)
    contenders = []
    for name in DTYPES:
        other = in_dtype(model, name)
        contenders += [
            Contender(
                f"{method}, {name}", method, {"draft_size": g} if method == "unispec" else {},
                f"{BASELINE}, {name}", {"dtype": name, "method": method}, other,
            )
            for method in (BASELINE, "unispec")
        ]  # fmt: skip
    told = counter(tick, count_texts(chosen) * len(contenders) * rounds)
    found = compare(model, contenders, chosen, warm, max_new_tokens=max_new_tokens, rounds=rounds, tick=told)
    answers = [entry["reference"] for entry in chosen for _ in entry.get("turns", [0])] * rounds
    exact = found[f"{BASELINE}, {DTYPES[0]}"]
    rows = []
    kinds: list[str | None] = list(dict.fromkeys(exact.kinds))
    for kind in [*kinds, None] if len(kinds) > 1 else kinds:
        for decoded in found.values():
            base = found[decoded.contender.against]
            scores = [
                rouge(reference, model.decode([t for t in text if t not in model.eos]))
                for reference, text, own in zip(answers, decoded.timed.texts, decoded.of(kind))
                if own
            ]
            rows.append(
                {"kind": kind or "all", **decoded.contender.cells}
                | {name: sum(score[name] for score in scores) / len(scores) for name in ROUGE}
                | {"speedup": against(decoded, base, kind), "tau": decoded.tau(kind)}
                | {"speed": decoded.timed.speed if kind is None else None}
                | {"same": None if decoded is base else decoded.same(base, kind)}
                | {"float32": None if decoded is exact else decoded.same(exact, kind)}
            )
    columns = [
        ("kind", "work", ""),
        ("dtype", "format", ""),
        ("method", "method", ""),
        *[(name, f"ROUGE-{name[5:]}", "{:.2f}") for name in ROUGE],
        ("speed", "tokens/s", "{:,.0f}"),
        ("speedup", "speedup [95%]", ""),
        ("tau", "τ [95%]", ""),
        ("same", "same text", ""),
        ("float32", "as float32", ""),
    ]
    notes = [
        f"UniSpec's g = {g} ({origin}). ROUGE: F measure in percent, the best of several references. same "
        "text: token for token autoregressive decoding's in the same format; as float32: in float32. The "
        "formats are converted from the loaded weights; the bundled target's are stored in float16, so that "
        "float16 rounds none of them.",
        "The paper (Llama-3 8B; summarization, then arithmetic): the same ROUGE in float32; in float16 9.98 "
        "against 10.05 and 1.81 against 1.65 (ROUGE-1); speedup 2.09 and 2.24 in float32, 2.12 and 2.26 in "
        "float16.",
        texts_note(chosen, warm),
    ]
    about = setting(
        model, [], prompts=len(chosen), warm=len(warm), rounds=rounds, max_new_tokens=max_new_tokens,
        draft_size=g,
    )  # fmt: skip
    about["dtype"] = ", ".join(DTYPES)
    spare = ("rougeL", "rouge2", "speed", "float32", "same")
    title = f"UniSpec in three number formats: {model.name}, {len(chosen)} prompts"
    return Report("precision", title, about, columns, rows, notes=notes, spare=spare)


def context(
    model: Any,
    drafts: list[Any],
    entries: list[dict[str, Any]],
    *,
    prompts: int = 14,
    max_new_tokens: int = 64,
    rounds: int = 15,
    size: int | None = None,
    lengths: Sequence[int] = LENGTHS,
    tick: Tick = lambda done, of, name: None,
) -> Report:
    """What a longer context costs a tree, and does to τ (Table 11).

    Time: one pass over a tree of g nodes against one over the root alone, `rounds` of each, on a random model
    with a long context (built here, seeded) up to 32 k, and on `model` within its own. τ and the speedup are
    `model`'s: earlier turns, questions and answers of other prompts, are put in front of each text.
    """
    g, origin = best_size(model, size)
    long = long_model(max(lengths) + g + 1)
    if model.device != long.device:
        long = Model(long.net.to(model.device), name=long.name)
    own = [n for n in (128, 256, 512, 1024, 2048, 4096) if n + max_new_tokens + g < model.max_length]
    alone = [entry for entry in entries if question(entry)]
    chosen = spread(alone, prompts) if alone else []
    warm = others(alone, chosen)
    if not getattr(model.tokenizer, "chat_template", None):
        own = []
    told = counter(tick, len(lengths) + 2 * (1 + len(own)) * len(chosen))
    rows: list[dict[str, Any]] = []
    for length in lengths:
        told(f"a pass behind {length}")
        rows.append({"model": long.name, "context": length} | _tree_pass(long, g, length, rounds))
    for length in [0, *own]:
        if not chosen:
            break
        asked = [behind(entry, alone, length, model) for entry in chosen] if length else chosen
        pair = [Contender(BASELINE), Contender("unispec", "unispec", {"draft_size": g})]
        found = compare(model, pair, asked, warm, max_new_tokens=max_new_tokens, tick=told)
        decoded, base = found["unispec"], found[BASELINE]
        mean = round(sum(decoded.prompt) / len(decoded.prompt))
        row = {"model": model.name, "context": mean} | _tree_pass(model, g, mean, rounds)
        row |= {"tau": decoded.tau(), "speedup": against(decoded, base), "same": decoded.same(base)}
        rows.append(row)
    columns = [
        ("model", "model", ""),
        ("context", "context", "{:,}"),
        ("one", "ms, 1 token", "{:.2f}"),
        ("tree", f"ms, tree of {g}", "{:.2f}"),
        ("ratio", "s(g) [95%]", ""),
        ("tau", "τ [95%]", ""),
        ("speedup", "speedup [95%]", ""),
        ("same", "same text", ""),
    ]
    notes = [
        f"g = {g} ({origin}). s(g): a tree's pass over one token's behind the same context. {long.name}: "
        f"random weights, {long.parameters / 1e6:.1f} M of them, so it has no τ. {model.name}: its context "
        "is the mean of the prompts' lengths; earlier questions and answers of the suite stand in front, "
        "more of them than it was trained on.",
        "The paper (Qwen3 8B, RTX A6000, 1 k to 32 k): average speedup 1.86 at 1 k, then 1.92 to 1.93; τ 2.4 "
        "to 2.9 at 1 k and much the same at 32 k (up to 3.65 in code).",
    ]
    if not own or not chosen:
        notes.append(
            "τ at longer contexts is left out: it needs prompts of one turn, and a model with a chat "
            "template and room for longer ones."
        )
    about = setting(
        model, [], prompts=len(chosen), rounds=rounds, max_new_tokens=max_new_tokens, draft_size=g,
        clock=quiet_clock(model.device)[1],
    )  # fmt: skip
    title = f"Longer contexts: {long.name} and {model.name}"
    return Report("context", title, about, columns, rows, notes=notes, spare=("same", "one", "tree"))


# ------------------------------------------------------------ what they share


def best_size(model: Any, size: int | None) -> tuple[int, str]:
    """g* of an experiment, and where it comes from: asked for, calibrated, or UniSpec's own default."""
    if size is not None:
        return methods.find("unispec")(draft_size=size).values["draft_size"], "as asked for"
    if (found := calibrated(model, "unispec")) is not None:
        return found, "as calibrated"
    return methods.find("unispec")().values["draft_size"], "UniSpec's default, not calibrated"


def texts_note(chosen: list[dict[str, Any]], warm: list[dict[str, Any]]) -> str:
    """Which prompts were measured, and what a method that remembers knew before."""
    state = f"warm: {len(warm)} other prompts were decoded before" if warm else "cold at the first text"
    return f"{len(chosen)} prompts; what methods remember stays from text to text, and was {state}."


def count_texts(chosen: list[dict[str, Any]]) -> int:
    """Texts of these prompts: a conversation has one a turn."""
    return sum(len(entry.get("turns", [0])) for entry in chosen)


def counter(tick: Tick, whole: int) -> Callable[[str], None]:
    """A function that is told what was done, and passes on how much of the whole that makes."""
    done = 0

    def told(label: str) -> None:
        nonlocal done
        done += 1
        tick(done, whole, label)

    return told


def in_dtype(model: Any, dtype: str) -> Any:
    """The model with its weights in another number format: a copy, unless it has it already.

    Raises
    ------
    ModelError
        If there is no memory for it.
    """
    kind = getattr(torch, dtype)
    if model.dtype == kind:
        return model
    try:
        net = copy.deepcopy(model.net).to(kind)
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        raise ModelError(f"no memory for a copy of {model.name} in {dtype}: use a smaller model") from None
    return Model(net, model.tokenizer, model.name)


def long_model(positions: int) -> Model:
    """A random Llama of 4.5 M parameters with room for so many positions; always the same one.

    Two query heads share one key-value head, so that, as in a large model, attention costs no more than a few
    times what the weights do at 32 k.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=2048, hidden_size=384, intermediate_size=1536, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=32, max_position_embeddings=positions, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = LlamaForCausalLM(config)
    return Model(net.eval().requires_grad_(False), name="random Llama")


def _tree_pass(model: Any, g: int, length: int, rounds: int) -> dict[str, Any]:
    """Times of a pass over one token and over a tree of `g` nodes, in turns."""
    one, tree = passes.measure(model, (1, g + 1), length, rounds, BRANCHES)
    return {"one": one["median"], "tree": tree["median"], "ratio": tree["ratio"]}


def question(entry: dict[str, Any]) -> str:
    """What a prompt of a single turn asks; empty for another."""
    asked = entry["turns"][0] if len(entry.get("turns", ())) == 1 else entry.get("prompt", "")
    return asked if isinstance(asked, str) else ""


def behind(entry: dict[str, Any], others: list[dict[str, Any]], length: int, model: Any) -> dict[str, Any]:
    """The prompt as the last turn of a conversation of at most `length` tokens."""
    turns: list[dict[str, str]] = []
    last = {"role": "user", "content": question(entry)}
    for other in spread(others, len(others)):
        known = other.get("reference")
        if other is entry or not known:
            continue
        answer = known if isinstance(known, str) else known[0]
        pair = [{"role": "user", "content": question(other)}, {"role": "assistant", "content": answer}]
        if len(model.encode([*turns, *pair, last])) > length:
            break
        turns += pair
    about = {name: entry[name] for name in ("kind", "language") if name in entry}
    return about | {"prompt": [*turns, last]}
