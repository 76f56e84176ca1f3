"""Drafting by confidence and acceptance by rank and gap: CM-ASD, and SpecDec, which does not adapt.

Sen, Dasgupta and Waghela 2025 ("Confidence-Modulated Speculative Decoding for Large Language Models"),
section III and Algorithm 1; Xia et al. 2023 ("Speculative Decoding: Exploiting Speculative Execution for
Accelerating Seq2seq Generation"), Spec-Verification. `specviz.methods.cm_asd` describes the readings of the
paper that the string parameters select.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from .arrays import Array, Number
from .parameters import LARGE, Parameter, Settings

TOP_BETA = Parameter(
    "top_beta",
    3,
    1,
    LARGE,
    "tokens",
    "An accepted token must be among this many most likely tokens of the target.",
    "β",
)
SPECDEC = (
    Parameter("draft_length", 10, 1, 64, "tokens", "Number of tokens that the draft model writes per "
        "cycle.", "k"),
    TOP_BETA,
    Parameter(
        "tau_base", 1.0, 0, None, "nats",
        "How far the log probability of an accepted token may be below that of the target's own token.", "τ",
    ),
)  # fmt: skip
CM_ASD = (
    Parameter("k_max", 10, 1, 64, "tokens", "Maximum number of tokens in a window; the size of a fixed "
        "window.", "k_max"),
    Parameter("k_min", 1, 1, 64, "tokens", "Minimum number of tokens in a window.", "k_min"),
    Parameter("alpha", 1.0, 0, 1, "share", "Scales the window: this times the mean confidence times "
        "k_max.", "α"),
    Parameter("tau_base", 0.1, 0, None, "nats", "The gap that is always allowed.", "τ_base"),
    Parameter("gamma", 0.5, 0, LARGE, "nats", "How strongly confidence changes the allowed gap.", "γ"),
    TOP_BETA,
    Parameter("w_entropy", 1 / 3, 0, 1, "share", "Weight of the entropy signal.", "λ_1"),
    Parameter("w_margin", 1 / 3, 0, 1, "share", "Weight of the logit margin's sigmoid.", "λ_2"),
    Parameter("w_softmax", 1 / 3, 0, 1, "share", "Weight of the softmax margin.", "λ_3"),
    Parameter("w_variance", 0.0, 0, 1, "share", "Weight of the logits' variance.", "λ_4"),
    Parameter("margin_scale", 1.0, 0, LARGE, "1 / logit", "Sharpness of that sigmoid.", "β_m"),
    Parameter(
        "entropy", "complement", choices=("complement", "as_written"),
        meaning="complement: 1 − H / log |V|, which rises with confidence; as_written: H / log |V|.",
    ),
    Parameter(
        "gap", "as_written", choices=("as_written", "as_described"),
        meaning="as_written: τ = τ_base + γ (1 − C), wider if uncertain; as_described: τ_base + γ C.",
    ),
    Parameter("adaptive_drafting", True, meaning="False: every window is k_max tokens."),
    Parameter("adaptive_verification", True, meaning="False: every threshold is τ_base."),
    Parameter(
        "controller", "look_ahead", choices=("look_ahead", "early_stop"),
        meaning="look_ahead: k_max tokens are drafted, the window's are sent; early_stop: drafting ends "
            "when the mean confidence so far justifies no further token.",
    ),
)  # fmt: skip
WEIGHTS = ("w_entropy", "w_margin", "w_softmax", "w_variance")
ROUNDING = 1e-5  # three thirds written with five digits sum to less than 1


def lossless(
    top_beta: float, tau_base: float, gamma: float = 0.0, adaptive_verification: bool = False
) -> bool:
    """Whether only the likeliest token, or one as likely, is accepted: rank 0 and gap 0 are equivalent."""
    return top_beta == 1 or (tau_base == 0 and (gamma == 0 or not adaptive_verification))


def problem(values: Settings) -> str:
    """Why CM-ASD's parameter values contradict each other; empty if they do not."""
    weights = {name: values[name] for name in WEIGHTS}
    total = sum(weights.values())
    if abs(total - 1) > ROUNDING:
        terms = " + ".join(f"{name} {weight:.4g}" for name, weight in weights.items() if weight)
        return (
            f"the weights of the signals must sum to 1, but {terms or 'all'} = {total:.6g}: "
            f"set {', '.join(WEIGHTS)} together"
        )
    if values["k_min"] > values["k_max"]:
        return f"k_min must be at most k_max, got {values['k_min']} and {values['k_max']}"
    return ""


# -- the confidence ----------------------------------------------------------------------------------


def entropy_share(entropy: Number, vocabulary: int) -> Number:
    """H / log |V|, from 0 (sure) to 1 (no idea)."""
    return entropy / math.log(vocabulary)


def margin_share(margin: Array, vocabulary: int) -> Array:
    """The softmax margin divided by 1 - 1 / |V|, at most 1.

    A sure model has a margin of 1, so the scaled one would exceed 1 by up to 1 / (|V| - 1).
    """
    return (margin / (1 - 1 / vocabulary)).clip(None, 1)


def variance_share(variance: Number, vocabulary: int) -> Number:
    """v / (v + 2 log |V|) for the logits' variance v, in [0, 1).

    CM-ASD names the logits' variance but gives no scale; this one is ours. Normally distributed logits put
    their probability on a few tokens once the variance exceeds about 2 log |V| (Derrida 1981, the random
    energy model), where this share is 1/2.
    """
    return variance / (variance + 2 * math.log(vocabulary))


def blend(signals: Iterable[tuple[float, Array]]) -> Array:
    """C_t, the weighted mean of signals, clipped to [0, 1] (section III (1), "Unified confidence score")."""
    weighted = list(signals)
    total = sum(weight for weight, _ in weighted)  # 1, except for `ROUNDING`
    return sum(weight / total * signal for weight, signal in weighted).clip(0, 1)  # type: ignore[union-attr]


def confidence(signals: np.ndarray, vocabulary: int, values: Settings) -> np.ndarray:
    """C_t from recorded signals, as `specviz.methods.signals.ensemble` computes it from logits.

    Parameters
    ----------
    signals : array [..., 4]
        Entropy, logit margin, softmax margin and variance of the drafter's prediction.
    vocabulary : int
        Size of the drafter's vocabulary.
    values : mapping
        CM-ASD's parameters.
    """
    entropy, lead, margin, variance = np.moveaxis(np.asarray(signals, np.float64), -1, 0)
    share = entropy_share(entropy, vocabulary)
    with np.errstate(invalid="ignore"):  # from infinite logits
        each = {
            "w_entropy": 1 - share if values["entropy"] == "complement" else share,
            "w_margin": 1 / (1 + np.exp(-np.minimum(values["margin_scale"] * lead, 700.0))),
            "w_softmax": margin_share(margin, vocabulary),
            "w_variance": np.nan_to_num(variance_share(variance, vocabulary), nan=1.0),
        }
        return blend((values[name], signal) for name, signal in each.items() if values[name])


# -- the window --------------------------------------------------------------------------------------


def window(mean: float, values: Settings) -> int:
    """k_j = min(k_max, max(k_min, ⌊α C̄ k_max⌋)), section III (b)."""
    k_max: int = values["k_max"]
    return min(k_max, max(values["k_min"], math.floor(values["alpha"] * mean * k_max)))


def sent(tokens: Sequence[int], window: int, eos: Collection[int], most: int, stop: str) -> tuple[int, str]:
    """How many of the drafted tokens go to the target, and why no more (lines 10-12).

    Parameters
    ----------
    tokens : sequence of int
        At least one; nothing follows an end token.
    window : int
    eos : collection of int
    most : int
        Maximum number of tokens that could be drafted; `stop` is the reason for this limit.
    """
    count = min(window, len(tokens))
    return count, "eos" if tokens[count - 1] in eos else "window" if count < most else stop


# -- the verdict -------------------------------------------------------------------------------------


def threshold(confidence: Number, values: Settings) -> Number:
    """τ_t of each node (line 16), in nats."""
    moved = confidence if values["gap"] == "as_described" else 1 - confidence
    return values["tau_base"] + (values["gamma"] if values["adaptive_verification"] else 0.0) * moved


def passes(gap: Number, rank: Number, threshold: Number | float, top_beta: float) -> Number:
    """Whether a drafted token is accepted.

    Parameters
    ----------
    gap : [...]
        log p(y1) - log p(y), in nats.
    rank : [...]
        Number of likelier tokens. Equals share a rank, so all tokens that tie at the top pass with β = 1,
        although argmax names one.
    threshold : [...]
    top_beta : int
        β.
    """
    return (gap <= threshold) & (rank < top_beta)
