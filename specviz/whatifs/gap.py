"""Replays of CM-ASD and SpecDec, from what a run of either recorded of its drafts.

Their text is their own, as BiLD's is: another setting is followed exactly, cycle for cycle, up to the first
place where it would write another token. What it needs of a place the run's own drafts say: the drafter's
token and its signals there, and how far that token lies behind the target's own. Where no draft of the run
stood, the record says nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from specviz.whatifs.known import Known, Rounding, number
from specviz.whatifs.walk import STOPPED, TIE, UNRATED, Halt, Step, Walk, replayed

if TYPE_CHECKING:
    from specviz.trace import Trace

SIGNALS = ("entropy", "logit_margin", "margin", "variance")
SURE = 2e-5  # a confidence that is computed again from float32 signals is this near to the one that was used
COLUMNS = ("prompt", "keep", "node_token", "node_parent", "node_gap", "node_rank", "node_p", "pred_node",
           "pred_top_p", "top_k", "out_token", *(f"node_{name}" for name in SIGNALS))  # fmt: skip
UNASKED = "no draft of the run stood here, so nothing says what the draft model would write"
SHORT = "the run's draft ended before this, and what the draft model would write on decides what is sent"


@dataclass(eq=False)
class Asked:
    """What the drafts of a run said along one text.

    Parameters
    ----------
    signals : array [tokens, 4]
        Of the drafter's prediction at each place: `SIGNALS`; NaN where it was not asked.
    gap, rank : arrays [tokens]
        Of the drafter's token under the target.
    tails : dict of int to list of (token, signals [4])
        What the drafter wrote behind its own token at a place where the text has another.
    """

    signals: np.ndarray
    gap: np.ndarray
    rank: np.ndarray
    tails: dict[int, list[tuple[int, np.ndarray]]] = field(default_factory=dict)


def asked(trace: Trace, texts: list[Known]) -> list[Asked]:
    """What the run's drafts said along each text."""
    found = {
        known.prompt: Asked(
            np.full((len(known.text), len(SIGNALS)), np.nan), *np.full((2, len(known.text)), np.nan)
        )
        for known in texts
    }
    words = {known.prompt: known.text.tolist() for known in texts}
    for row in trace.arrow(COLUMNS).to_pylist():
        nodes, text, at = row["node_token"] or [], words[row["prompt"]], row["keep"] or 0
        if not nodes or row["node_parent"] != list(range(-1, len(nodes) - 1)) or row["node_entropy"] is None:
            continue
        told = found[row["prompt"]]
        each = np.array([[number(x) for x in row[f"node_{name}"]] for name in SIGNALS]).T
        here = text[at : at + len(nodes)]
        right = next((i for i, (a, b) in enumerate(zip(nodes, here)) if a != b), len(here))
        k = row["top_k"] or 0
        most = {node: row["pred_top_p"][i * k] for i, node in enumerate(row["pred_node"] or ())}
        for i in range(min(right + 1, len(nodes), len(here))):
            told.signals[at + i] = each[i]
            gap = number((row["node_gap"] or [None] * len(nodes))[i])
            p, rank = ((row[f"node_{name}"] or [None] * len(nodes))[i] for name in ("p", "rank"))
            if gap != gap and p and i - 1 in most:  # not sent, but the pass happened to hold its place
                gap = max(0.0, math.log(most[i - 1] / p))
            if gap == gap and rank is not None:
                told.gap[at + i], told.rank[at + i] = gap, rank
        if right < len(here):
            tail = list(zip(nodes[right + 1 :], each[right + 1 :]))
            if len(tail) > len(told.tails.get(at + right, [])):
                told.tails[at + right] = tail
    return [found[known.prompt] for known in texts]


@dataclass
class Policy:
    """How a setting drafts and judges; the formulas are those of `specviz.methods.cm_asd`.

    Parameters
    ----------
    setting : dict
        Every parameter of `cm_asd` with its value.
    size : int
        Of the drafter's vocabulary.
    width : float
        Confidences nearer than this may be swapped by a pass of another shape.
    """

    setting: dict[str, Any]
    size: int
    width: float

    @property
    def adaptive(self) -> bool:
        return bool(self.setting["adaptive_drafting"])

    def confidence(self, signals: np.ndarray) -> float:
        """C of one place."""
        given, (entropy, lead, margin, variance) = self.setting, (float(x) for x in signals)
        share = entropy / math.log(self.size)
        each = {
            "w_entropy": 1 - share if given["entropy"] == "complement" else share,
            "w_margin": 1 / (1 + math.exp(-min(given["margin_scale"] * lead, 700.0))),
            "w_softmax": min(1.0, margin / (1 - 1 / self.size)),
            "w_variance": variance / (variance + 2 * math.log(self.size)),
        }
        return min(1.0, max(0.0, sum(given[name] * each[name] for name in each if given[name])))

    def window(self, mean: float, at: int, slack: float) -> int:
        """k_j of a mean confidence; `slack` is how far the mean may be off."""
        low, high = (self.clipped(mean + away) for away in (-slack, slack))
        if low != high:
            raise Halt(at, TIE)
        return low

    def clipped(self, mean: float) -> int:
        given = self.setting
        return min(given["k_max"], max(given["k_min"], math.floor(given["alpha"] * mean * given["k_max"])))

    def threshold(self, sure: float) -> float:
        """τ of a confidence."""
        given = self.setting
        if not given["adaptive_verification"]:
            return float(given["tau_base"])
        return float(
            given["tau_base"] + given["gamma"] * (sure if given["gap"] == "as_described" else 1 - sure)
        )


def cm_asd(
    known: Known, eos: frozenset[int], rounding: Rounding, told: Asked, size: int, **setting: Any
) -> Walk:
    """`specviz.methods.cm_asd`, and with nothing adaptive `specviz.methods.specdec`."""
    text, n = known.text, len(known.text)
    policy = Policy(setting, size, SURE + rounding.draft)
    early = setting["controller"] == "early_stop" and policy.adaptive

    def place(at: int) -> tuple[int, np.ndarray]:
        """What the drafter writes at a place of the text."""
        if at >= n:
            raise Halt(n, STOPPED)
        if known.draft[at] < 0 or told.signals[at, 0] != told.signals[at, 0]:
            raise Halt(at, UNASKED)
        if known.gap[at] < rounding.draft:
            raise Halt(at, TIE)
        return int(known.draft[at]), told.signals[at]

    def chain(start: int, most: int) -> tuple[list[int], list[float], int, bool]:
        """The drafter's tokens and confidences from a place on, as far as is known.

        Also how many follow the text, and whether more is known to come, to `most` or to an end token.
        """
        tokens: list[int] = []
        sure: list[float] = []
        matched = 0
        while len(tokens) < most:
            at = start + matched
            if matched < len(tokens):  # behind a token that is not the text's
                tail = told.tails.get(at, [])
                i = len(tokens) - matched - 1
                if i >= len(tail):
                    return tokens, sure, matched, True
                token, signals = tail[i]
            else:
                if at == n and known.end != "eos":
                    raise Halt(n, STOPPED)
                token, signals = place(at)
                matched += token == text[at]
            tokens.append(token)
            sure.append(policy.confidence(signals))
            if token in eos:
                break
            if early and policy.window(sum(sure) / len(sure), at, policy.width) <= len(sure):
                break
        return tokens, sure, matched, False

    def own(at: int) -> None:
        """The target writes its own token here: it must be the text's."""
        if known.best[at] < 0:
            raise Halt(at, UNRATED)
        if known.edge[at] < rounding.target:
            raise Halt(at, TIE)
        if known.best[at] != text[at]:
            raise Halt(at, "the target's own token stands here, and it is another", int(known.best[at]))

    def passes(at: int, sure: float) -> bool:
        """Whether the drafter's token at a place is accepted."""
        if known.edge[at] < rounding.target:
            raise Halt(at, TIE)
        if known.best[at] == known.draft[at]:
            return True
        gap, rank = told.gap[at], told.rank[at]
        if gap != gap:
            raise Halt(at, UNRATED)
        limit = policy.threshold(sure)
        if rank < setting["top_beta"] and abs(gap - limit) <= width_of(gap, sure):
            raise Halt(at, TIE)
        return bool(gap <= limit and rank < setting["top_beta"])

    def width_of(gap: float, sure: float) -> float:
        """How near a gap may come to its threshold before rounding decides."""
        moved = setting["gamma"] * policy.width if setting["adaptive_verification"] else 0.0
        return moved + SURE * (1 + gap) + 4 * rounding.target

    def cycle(start: int, count: int) -> Step:
        left = known.limit - start
        most = max(0, min(setting["k_max"], left - 1, known.full - len(known.ids) - start))
        why = "length" if most == setting["k_max"] else "room"
        tokens, sure, matched, more = chain(start, most)
        j = len(tokens)
        wrong = j > matched  # the last of the matched ones is followed by a token that is not the text's
        ended = bool(matched) and start + matched == n and known.end == "eos"
        sent = high = j
        drafted = drafted_high = j
        if not policy.adaptive:
            sent = high = drafted = drafted_high = most
        elif early and j:
            total = sum(sure)
            if tokens[-1] in eos:
                last = start + matched
                window = policy.window(total / j, last, policy.width)
                sent = high = min(j, window)
                why = "eos" if sent == j else "window"
            elif more:  # the next one is drafted, and sent or not; beyond that nobody saw it
                sent, drafted, high, drafted_high = j, j + 1, most, most
                why = ""
            else:
                window = policy.window(total / j, start + matched, policy.width)
                sent = high = min(j, window)
                why = "window" if sent < most else why
        elif j:
            if more:
                low = policy.clipped(sum(sure) / most - policy.width)
                top = policy.clipped((sum(sure) + most - j) / most + policy.width)
                sent, high, why = min(low, j), min(top, most), ""
            else:
                window = policy.window(sum(sure) / j, start + matched, policy.width)
                sent = high = min(j, window)
                why = "eos" if tokens[sent - 1] in eos else "window" if sent < most else why
            drafted = drafted_high = most
        if sent != high and sent <= matched:
            raise Halt(start + matched, SHORT)
        at, accepted = start, 0
        reach = min(sent, matched + wrong)  # of what is sent, that which is known
        while accepted < reach:
            at = start + accepted
            if not passes(at, sure[accepted]):
                own(at)
                break
            if known.draft[at] != text[at]:
                raise Halt(at, "the draft model's token would be accepted here", int(known.draft[at]))
            accepted += 1
        else:
            at = start + accepted
            if at < n:
                own(at)
            elif known.end != "eos":
                raise Halt(at, STOPPED)
        emitted = min(accepted + 1, n - start)
        cut = sent - accepted if ended and accepted == matched and sent > accepted else 0
        return Step(
            known.prompt, count, start, sent, high, drafted, drafted_high, accepted, cut, 0, emitted, why
        )

    return replayed(known, cycle)
