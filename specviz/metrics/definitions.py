"""What acceptance length, acceptance rate and speedup mean in each tool, for one and the same decode.

The same words stand for different numbers. They differ in what is counted (with or without the target's own
token; drafts or what could have been drafted; with or without steps that had no draft), in how texts are
averaged (sums first and one division: *pooled*; or a mean over requests) and in what happens at a text's end
(whole steps, or only tokens that were emitted). `DEFINITIONS` states each of them once, `rosetta` computes
them all.

Symbols: a request has S verify steps, N of them with a draft, D drafted tokens, A accepted, E emitted by the
steps, O tokens of the answer, T seconds with the prefill, P of the prefill, F until the first tokens; k is
the largest draft of a step, W the seconds for all requests. Σ sums over all requests, mean averages one value
per request; a prime marks the baseline. Of a step: a accepted, m = emitted - 1 (a if the method emits no
token of its own after an accepted one: `oracle`), d the depth of its draft. […] is 1 if it holds, else 0.
`LEGEND` is the short form.

In two cases an engine would print another number than its formula gives for this decode. Prefill emits
nothing here, so that every later step emits at least one token; engines emit a first token in it, and
``completion_tokens`` is one more than their steps emitted. And a trace does not tell what the target would
have accepted after the text's end: if a tool counts whole steps and a text was cut in mid-draft, the number
is only bounded. A block that is emitted unreviewed (BiLD's last one) is a step like any other.

Each definition was read in the tool's own source; ``source`` names the version or commit, and the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from specviz.trace.counts import Counts

LEGEND = (
    "S steps, N of them with a draft, D drafted tokens, A accepted, E emitted, O of the answer; T seconds of "
    "a request, P of its prefill, F until its first tokens, W of the whole run; k the largest draft; ′ the "
    "baseline; of a step a accepted, m = emitted - 1 (a without a token of the target's own), d the draft's "
    "depth; […] 1 where it holds"
)
LENGTH, RATE, SPEED = "acceptance length", "acceptance rate", "speedup"
POOLED, MEAN = "pooled", "mean over requests"
WHOLE, EMITTED = "whole steps", "emitted tokens"


# ---------------------------------------------------------------- what a definition is computed from


SYMBOLS = {
    "S": "steps",
    "N": "drafts",
    "D": "drafted",
    "A": "accepted",
    "E": "emitted",
    "O": "output",
    "T": "seconds",
    "P": "prefill",
    "F": "first",
}


@dataclass(frozen=True)
class Tally:
    """A run's numbers under the symbols above: arrays [requests]; a, m, d, n and w are arrays [steps].

    M is the sum of a request's m.
    """

    S: np.ndarray
    N: np.ndarray
    D: np.ndarray
    A: np.ndarray
    E: np.ndarray
    O: np.ndarray  # noqa: E741
    T: np.ndarray
    P: np.ndarray
    F: np.ndarray
    M: np.ndarray
    eos: np.ndarray
    W: float
    k: float
    a: np.ndarray
    m: np.ndarray
    d: np.ndarray
    n: np.ndarray  # 1 if the step had a draft
    w: np.ndarray  # number of such steps


def tally(counts: Counts, whole: bool, most: bool = False) -> Tally:
    """Collect the numbers of a run.

    With `whole`, as if every last step had emitted all that it accepted: at least, or with `most` at most.
    """
    of = {symbol: counts.column(name) for symbol, name in SYMBOLS.items()}
    a, m, d = counts.each("accepted"), counts.each("emitted") - 1, counts.each("depth")
    beyond, w = np.nan_to_num(counts.each("beyond")), counts.each("times")
    # If there are as many drafts as steps that may have had one, each of these steps had one.
    all_drafted = of["N"].sum() >= w[d != 0].sum()
    had = np.where(np.isnan(d), 1.0 if all_drafted else np.nan, d > 0)
    matches = of["E"] - of["S"]
    if len(a):
        request, n = counts.steps["request"], len(counts.requests)
        at, short = request.to_numpy(np.int64), m < a  # steps that end with a draft token
        # The text's end cuts the target's own token in its last step only. In others the method emits none.
        if (short & request.duplicated(keep="last").to_numpy()).any():
            matches = matches + np.bincount(at, w * np.where(short, a - m, 0.0), n)
            m, short = np.where(short, a, m), np.zeros_like(short)
        if whole:
            more = beyond if most else np.zeros_like(beyond)
            of["A"] = of["A"] + np.bincount(at, w * more, n)
            of["E"] = of["E"] + np.bincount(at, w * (more + short), n)
            a = a + more
    eos = counts.requests["eos"].to_numpy(np.float64, na_value=np.nan)
    k = float("nan") if counts.most is None else float(counts.most)
    return Tally(**of, M=matches, eos=eos, W=counts.wall, k=k, a=a, m=m, d=d, n=had, w=w)


def _ratio(above: np.ndarray, below: np.ndarray) -> float:
    """Pooled: sums first, one division last. A NumPy number, as from `_mean`: it may divide by zero."""
    return np.float64(above.sum() / below.sum()) if below.sum() else float("nan")


def _mean(above: np.ndarray, below: np.ndarray) -> float:
    """Mean over requests of their own ratios; requests with a zero denominator are left out."""
    some = below != 0
    return np.float64((above[some] / below[some]).mean()) if some.any() else float("nan")


def _share(t: Tally, hit: np.ndarray, of: np.ndarray, needed: np.ndarray) -> float:
    """Share of some steps; NaN if a number that it depends on (the depth of drafts) is not known."""
    if not len(needed) or np.isnan(needed).any():
        return float("nan")
    return _ratio(t.w * (hit & of), t.w * of)


def _judged(t: Tally) -> float:
    """Matches over the tokens that were judged: in a round, all matches and the first mismatch."""
    if not len(t.d) or np.isnan(t.d).any():
        return float("nan")
    m, d, w = (each[t.d > 0] for each in (t.m, t.d, t.w))
    return _ratio(w * m, w * (m + (m < d)))


def _per_second(t: Tally, tokens: np.ndarray | None = None) -> float:
    return _mean(t.O if tokens is None else tokens, t.T)


def _per_token(t: Tally) -> float:
    """Mean over requests of seconds per token after the first ones."""
    return _mean(np.where(t.O > 1, t.T - t.F, 0.0), np.where(t.O > 1, t.O - 1, 0.0))


@dataclass(frozen=True)
class Definition:
    """One definition of a quantity.

    Parameters
    ----------
    name : str
    quantity : str
        ``acceptance length``, ``acceptance rate`` or ``speedup``.
    average : str
        ``pooled`` or ``mean over requests``.
    end : str
        At a text's end: ``whole steps`` or ``emitted tokens``.
    formula : str
    needs : tuple of str
        The numbers of `specviz.trace.Counts` that it is computed from.
    of : callable
        The number from a `Tally`; a speedup takes the baseline's as well.
    who : tuple of str
        Who prints it, with its name there.
    counts : str
        What is counted, in words.
    source : str
        Where the definition was read.
    """

    name: str
    quantity: str
    average: str
    end: str
    formula: str
    needs: tuple[str, ...]
    of: Callable[..., float]
    who: tuple[str, ...]
    counts: str
    source: str

    @property
    def compares(self) -> bool:
        """Whether it needs a baseline."""
        return self.quantity == SPEED


VLLM = "vllm 0.33.0, v1/spec_decode/metrics.py"
VLLM_BENCH = "vllm 0.33.0, benchmarks/serve.py"
AIPERF = "aiperf 0.13.0, metrics/types/spec_decode_metrics.py"
SPEC_BENCH = "github.com/hemingkx/Spec-Bench 132ba4c, evaluation/speed.py"
EAGLE = "github.com/SafeAILab/EAGLE 2320d52, eagle"
SGLANG = "sglang 0.5.23, srt/managers/tokenizer_manager.py"
SGLANG_LOG = "sglang 0.5.23, srt/managers/scheduler_components/metrics_reporter.py"
SPECFORGE = "github.com/sgl-project/SpecForge"
GPT_FAST = "github.com/meta-pytorch/gpt-fast 05f7c16, generate.py"
CANDIDATES = "transformers 5.23.0, generation/candidate_generator.py"
ASSISTED = (
    "github.com/gante/huggingface-demos 1362c46, experiments/faster_generation/benchmark_decoder_open.py"
)
LLAMA_CPP = "github.com/ggml-org/llama.cpp, pull 24536"

DEFINITIONS: tuple[Definition, ...] = (
    # ------------------------------------------------ acceptance length
    Definition(
        "tau, whole steps", LENGTH, POOLED, WHOLE, "ΣE / ΣS", ("emitted", "steps"),
        lambda t: _ratio(t.E, t.S),
        ("EAGLE (τ)", "Spec-Bench (#Mean accepted tokens)", "SGLang (accept len, avg_spec_accept_length)"),
        "accepted + the target's own token, per step; steps without a draft count; the prefill is not a step",
        f"{SPEC_BENCH}: mean of accept_lengths; {EAGLE}, issue 195; "
        f"{SGLANG_LOG}: spec_num_accept_tokens / spec_num_forward_ct",
    ),
    Definition(
        "tau, emitted tokens", LENGTH, POOLED, EMITTED, "ΣE / ΣS", ("emitted", "steps"),
        lambda t: _ratio(t.E, t.S),
        ("specviz (tau)",),
        "the same, but tokens after the end of the text are not counted",
        "specviz.metrics.tau",
    ),
    Definition(
        "1 + accepted a draft", LENGTH, POOLED, WHOLE, "1 + ΣA / ΣN", ("accepted", "drafts"),
        lambda t: 1 + _ratio(t.A, t.N),
        ("vLLM (mean acceptance length)", "AIPerf (token-weighted acceptance length)",
         "llama.cpp (mean acceptance length)"),
        "accepted + 1, per step with a draft; steps without one are not counted, so a drafter that rarely "
        "drafts looks good",
        f"{VLLM} (SpecDecodingLogging); {VLLM_BENCH}; {AIPERF}; {LLAMA_CPP}",
    ),
    Definition(
        "1 + accepted a draft, by request", LENGTH, MEAN, WHOLE, "mean(1 + A / N)", ("accepted", "drafts"),
        lambda t: 1 + _mean(t.A, t.N),
        ("AIPerf (acceptance length)", "vLLM (mean_acceptance_length of a request)"),
        "the same per request; requests without any draft are skipped",
        AIPERF,
    ),
    Definition(
        "tokens a verify, by request", LENGTH, MEAN, EMITTED, "mean(O / S)", ("output", "steps"),
        lambda t: _mean(t.O, t.S),
        ("SGLang (spec_accept_length of a request)", "SpecForge (its earlier benchmark)"),
        "all tokens of the answer, including the one that an engine's prefill emits, over verify passes",
        f"{SGLANG}: completion_tokens / spec_verify_ct; {SPECFORGE} f28b5ec, "
        "specforge/benchmarks/sglang.py",
    ),
    Definition(
        "tokens a verify", LENGTH, POOLED, EMITTED, "ΣO / ΣS", ("output", "steps"),
        lambda t: _ratio(t.O, t.S),
        ("SpecForge (accept_length)",),
        "the same tokens and passes, summed first",
        f"{SPECFORGE} 2d3271d, specforge/benchmarks/runner.py; 9116048, "
        "benchmarks/benchmarker/utils.py",
    ),
    Definition(
        "accepted a step", LENGTH, POOLED, WHOLE, "ΣA / ΣS", ("accepted", "steps"),
        lambda t: _ratio(t.A, t.S),
        ("gpt-fast (Mean Accepted)",),
        "draft tokens only, without the target's own token, so it is one less than the others",
        f"{GPT_FAST} (accept_counts)",
    ),
    Definition(
        "matches a round", LENGTH, POOLED, EMITTED, "Σm / ΣS", ("emitted", "steps"),
        lambda t: _ratio(t.M, t.S),
        ("transformers-style (n_matches)",),
        "a round's new tokens minus one, after cutting at an end token or the length limit",
        "transformers 5.23.0, generation/utils.py (_assisted_decoding)",
    ),
    Definition(
        "tokens an index", LENGTH, MEAN, WHOLE, "mean(E / (S - 1))", ("emitted", "steps"),
        lambda t: _mean(t.E, t.S - 1),
        ("EAGLE (alpha_length.py)",),
        "divided by the index of the last step, which counts from 0: one step too few, so the value is too "
        "high; averaged over a question's turns, then over questions",
        "github.com/SafeAILab/EAGLE a47b61e, eagle/evaluation/alpha_length.py: new_tokens / idxs",
    ),
    # ------------------------------------------------ acceptance rate
    Definition(
        "accepted of drafted", RATE, POOLED, WHOLE, "ΣA / ΣD", ("accepted", "drafted"),
        lambda t: _ratio(t.A, t.D),
        ("vLLM (draft acceptance rate)", "AIPerf (overall draft acceptance rate)",
         "llama.cpp (draft acceptance)"),
        "over all drafted and sent tokens, including those after a rejection; for a tree, every node",
        f"{VLLM}; {VLLM_BENCH}; {AIPERF}; {LLAMA_CPP}",
    ),
    Definition(
        "accepted of drafted, by request", RATE, MEAN, WHOLE, "mean(A / D)", ("accepted", "drafted"),
        lambda t: _mean(t.A, t.D),
        ("AIPerf (draft acceptance rate)",),
        "the same per request; AIPerf prints percent",
        AIPERF,
    ),
    Definition(
        "accepted of the budget", RATE, POOLED, WHOLE, "ΣA / (k ΣS)", ("accepted", "steps", "most"),
        lambda t: _ratio(t.A, t.k * t.S),
        ("SGLang (accept rate)",),
        "over the largest draft that a step could have, drafted or not",
        f"{SGLANG_LOG}: spec_num_correct_drafts / total_draft_tokens",
    ),
    Definition(
        "accepted of the budget, by request", RATE, MEAN, WHOLE, "mean(A / (k S))",
        ("accepted", "steps", "most"), lambda t: _mean(t.A, t.k * t.S),
        ("SGLang (spec_accept_rate of a request)",),
        "the same per request",
        f"{SGLANG}: spec_num_correct_drafts / spec_num_proposed_drafts",
    ),
    Definition(
        "accepted per verified", RATE, MEAN, WHOLE, "mean((A + N) / (D + N))",
        ("accepted", "drafted", "drafts"), lambda t: _mean(t.A + t.N, t.D + t.N),
        ("AIPerf (accepted per verified)",),
        "the target's own token is in both numerator and denominator",
        AIPERF,
    ),
    Definition(
        "at the second position", RATE, POOLED, WHOLE, "Σ[a ≥ 2] / ΣN", ("accepted", "drafts"),
        lambda t: _share(t, t.a >= 2, t.n == 1, t.n),
        ("vLLM (per-position acceptance rate)", "llama.cpp (acceptance rate per position)"),
        "over all steps with a draft, whether or not they got that far; `by_position` has every position",
        f"{VLLM}; {VLLM_BENCH}; {LLAMA_CPP}",
    ),
    Definition(
        "1-α", RATE, POOLED, WHOLE, "Σ[a ≥ 2] / Σ[a ≥ 1, d ≥ 2]", ("accepted", "depth"),
        lambda t: _share(t, t.a >= 2, (t.a >= 1) & (t.d >= 2), t.d),
        ("EAGLE (n-α)",),
        "given that the first was accepted; EAGLE measures it on chains, its τ on trees",
        "github.com/SafeAILab/EAGLE 577ad72, eagle/evaluation/alpha.py: alpha / alpha_num, counted in "
        "08dc06c, eagle/model/utils_alpha.py; issue 169",
    ),
    Definition(
        "accepted of judged", RATE, POOLED, EMITTED, "Σm / Σ(m + [m < d])", ("emitted", "depth"), _judged,
        ("transformers-style (matches of its confidence threshold)",),
        "a round's matches over the matches and the first mismatch: later tokens were never judged; for "
        "chains",
        f"{CANDIDATES}: update_candidate_strategy",
    ),
    Definition(
        "all accepted", RATE, POOLED, EMITTED, "Σ[m = d > 0] / ΣN", ("emitted", "depth"),
        lambda t: _share(t, t.m == t.d, t.d > 0, t.d),
        ("transformers-style (its heuristic schedule)",),
        "share of fully accepted drafts; after one the next draft is 2 tokens longer, otherwise 1 shorter",
        f"{CANDIDATES}: update_candidate_strategy",
    ),
    Definition(
        "nothing accepted", RATE, POOLED, WHOLE, "Σ[a = 0] / ΣS", ("accepted", "steps"),
        lambda t: _ratio(t.w * (t.a == 0), t.S) if t.w.sum() == t.S.sum() else float("nan"),
        ("gpt-fast (the first of Acceptance probs)",),
        "share of steps that gave only the target's own token",
        GPT_FAST,
    ),
    Definition(
        "accepted of output", RATE, POOLED, EMITTED, "ΣA / ΣO", ("accepted", "output"),
        lambda t: _ratio(t.A, t.O),
        ("LM Studio (acceptedDraftTokensCount / predictedTokensCount)",),
        "over the answer's tokens, not over drafts: 1 - 1/tau if nothing is cut",
        "lmstudio.ai/docs/typescript/llm-prediction/speculative-decoding",
    ),
    # ------------------------------------------------ speedup; a primed symbol is b's
    Definition(
        "mean tokens/s", SPEED, MEAN, EMITTED, "mean(O / T) / mean(O′ / T′)", ("output", "seconds"),
        lambda t, b: _per_second(t) / _per_second(b),
        ("Spec-Bench", "EAGLE (speed.py)", "gpt-fast (Average tokens/sec of two runs)"),
        "prefill included; a short answer weighs as much as a long one; tokens from ids on both sides; "
        "in the scripts, EAGLE's and Medusa's tokens run to the end of the last step",
        f"{SPEC_BENCH}; {EAGLE}/evaluation/speed.py; {GPT_FAST}",
    ),
    Definition(
        "mean tokens/s, baseline from text", SPEED, MEAN, EMITTED, "mean(O / T) / mean((O′ - [end]) / T′)",
        ("output", "seconds", "eos"), lambda t, b: _per_second(t) / _per_second(b, b.O - b.eos),
        ("Spec-Bench (as its script counts)", "EAGLE (as its script counts)"),
        "the same, but the baseline's tokens come from re-encoding its text, without its end token",
        f"{SPEC_BENCH}: len(tokenizer(answer).input_ids) - 1",
    ),
    Definition(
        "throughput", SPEED, POOLED, EMITTED, "(ΣO / W) / (ΣO′ / W′)", ("output", "wall"),
        lambda t, b: (t.O.sum() / t.W) / (b.O.sum() / b.W),
        ("vLLM (bench serve)", "SGLang (bench_serving)", "SpecForge (bench_model_speedup.py)"),
        "prefill included; all tokens over the time of the whole run, in which requests may overlap",
        f"{VLLM_BENCH} and sglang 0.5.23, benchmark/serving.py (output_throughput); {SPECFORGE} "
        "260057f, benchmarks/bench_model_speedup.py",
    ),
    Definition(
        "time per token", SPEED, POOLED, EMITTED, "(ΣT′ / ΣO′) / (ΣT / ΣO)", ("output", "seconds"),
        lambda t, b: _ratio(b.T, b.O) / _ratio(t.T, t.O),
        ("transformers-style (average time per token)",),
        "prefill included; one request at a time",
        ASSISTED,
    ),
    Definition(
        "time per input", SPEED, POOLED, EMITTED, "ΣT′ / ΣT", ("seconds",), lambda t, b: _ratio(b.T, t.T),
        ("transformers-style (average time per input)",),
        "only latency: a shorter answer counts as faster",
        ASSISTED,
    ),
    Definition(
        "paired latency", SPEED, MEAN, EMITTED, "mean(T′ / T)", ("seconds",), lambda t, b: _mean(b.T, t.T),
        ("shreyansh26/Speculative-Decoding",),
        "each prompt against itself, all prompts with equal weight",
        "github.com/shreyansh26/Speculative-Decoding c6fddeb, common/metrics.py",
    ),
    Definition(
        "decode tokens/s", SPEED, POOLED, EMITTED, "(ΣO / Σ(T - P)) / (ΣO′ / Σ(T′ - P′))",
        ("output", "seconds", "prefill"), lambda t, b: _ratio(t.O, t.T - t.P) / _ratio(b.O, b.T - b.P),
        ("llama.cpp (eval time)", "specviz (compare, one text at a time)"),
        "without the prefill: what decoding alone gained; each row of a batch counts the whole time",
        "github.com/ggml-org/llama.cpp, eval time next to prompt eval time",
    ),
    Definition(
        "time per output token", SPEED, MEAN, EMITTED, "mean((T′ - F′) / (O′ - 1)) / mean((T - F) / (O - 1))",
        ("output", "seconds", "first"), lambda t, b: _per_token(b) / (_per_token(t) or np.nan),
        ("vLLM (bench serve, TPOT)", "AIPerf (inter token latency)"),
        "after the first tokens; if the first step emits several, it still counts as one",
        f"{VLLM_BENCH} (tpot); aiperf 0.13.0, metrics/types/inter_token_latency_metric.py",
    ),
)  # fmt: skip
