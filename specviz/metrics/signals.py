"""How well the drafter's own confidence predicts which of its tokens the target accepts.

Only judged nodes count, those that the target accepted or rejected. Nodes that were never sent, nodes after
a rejection and nodes cut by the end of a text have no verdict. So every number here describes drafts that got
that far: a controller that sends only what it is sure of is rated on what it sent, and acceptance means what
the method's rule accepts. Under a strict rule (greedy, or a gap of 0) it means "the target would have written
this token too".

The signals of `SIGNALS` are numbered as in CM-ASD, section III.B (1), and all rise with confidence. C_t is
their weighted sum. Methods' own signals (`specviz.schema.Signal`) are rated along with them, unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from specviz.errors import ParameterError
from specviz.metrics.cycles import _rates
from specviz.metrics.interval import LEAST, RESAMPLES, Estimate
from specviz.trace import KEYS, Trace

if TYPE_CHECKING:
    import pandas as pd

    from specviz.schema import Metadata

# What each signal is; all are in [0, 1]. `specviz.methods.signals` computes them from logits.
SIGNALS = {
    "score": "the method's own score, as it was recorded (CM-ASD: C_t)",
    "ensemble": "C_t, recomputed from the signals below",
    "confidence": "largest probability",
    "entropy": "1 − H / log |V|",
    "logit_margin": "σ(s (z₁ − z₂))",
    "softmax_margin": "(p₁ − p₂) / (1 − 1/|V|), cut at 1",
    "variance": "v / (v + 2 log |V|) of the logits' variance v",
}
ENSEMBLE = ("entropy", "logit_margin", "softmax_margin", "variance")  # λ1, λ2, λ3, and a fourth
EQUAL = (1 / 3, 1 / 3, 1 / 3, 0.0)
OUTCOMES = ("accepted", "first")
# The other columns of the table.
NOT_SIGNALS = ("run", "prompt", "text", "cycle", "node", *OUTCOMES, "gap", "threshold")


def signals(
    trace: Trace,
    weights: Sequence[float] = EQUAL,
    margin_scale: float = 1.0,
    entropy: str = "complement",
    vocabulary: int | None = None,
) -> pd.DataFrame:
    """The drafter's signals at every judged node, normalised as in CM-ASD, and the verdict.

    They describe the drafter's plain distribution, before temperature and top-p. If the logit margin was not
    recorded, it is computed from the two likeliest tokens' probabilities: z1 - z2 = ln p1 - ln p2.

    Parameters
    ----------
    trace : Trace
    weights : three or four floats
        λ of the ensemble, in the order of `ENSEMBLE`; they sum to 1.
    margin_scale : float
        s of the logit margin's sigmoid; it changes the order of nodes by the ensemble, not by that signal.
    entropy : {"complement", "as_written"}
        1 - H/log |V|, or the paper's H/log |V|, which rises with uncertainty.
    vocabulary : int, optional
        |V|. Default: the drafter's, if the run records it. Without it, entropy, variance and ensemble are
        missing, and the softmax margin is the plain one (|V| → ∞).

    Returns
    -------
    DataFrame
        One row per judged node: ``run``, ``prompt``, ``text`` (identifies the prompt, also in other runs of
        it), ``cycle``, ``node``; a column for each of `SIGNALS` (NaN if unknown) and for each node signal of
        the methods' own, as recorded; ``accepted``; ``first``, whether the token is the target's own first
        choice (rank 0; false if the rank is unknown); ``gap`` to that choice and the ``threshold`` that was
        allowed, in nats.

    Raises
    ------
    ParameterError
        If the weights do not sum to 1, or another value is invalid.
    """
    import pandas as pd

    given = np.zeros(len(ENSEMBLE))
    given[: len(weights)] = weights[: len(ENSEMBLE)]
    # three thirds written with five digits sum to less than 1
    if not 3 <= len(weights) <= len(given) or (given < 0).any() or abs(given.sum() - 1) > 1e-5:
        raise ParameterError(
            f"weights must be numbers from 0 to 1 that sum to 1, for {', '.join(ENSEMBLE)}; got "
            f"{tuple(weights)}"
        )
    if not margin_scale > 0 or (vocabulary is not None and vocabulary < 2):
        raise ParameterError("margin_scale must be above 0, and the vocabulary must have at least two tokens")
    if entropy not in ("complement", "as_written"):
        raise ParameterError(f"entropy must be 'complement' or 'as_written', not {entropy!r}")
    parts = trace.split()
    tables = [_signals(part, given, margin_scale, entropy == "complement", vocabulary) for part in parts]
    return pd.concat(tables, ignore_index=True)


def _signals(
    part: Trace, weights: np.ndarray, scale: float, complement: bool, vocabulary: int | None
) -> pd.DataFrame:
    nodes = part.nodes
    # BiLD may keep the end of a text without the target reading it: such nodes were never judged.
    nodes = nodes[nodes["status"].isin(["accepted", "rejected"])]
    table = nodes[["run", "prompt", "cycle", "node"]].astype({"run": object}).reset_index(drop=True)
    keys = {number: _text_key(part.run, number) for number in table["prompt"].unique()}
    table.insert(2, "text", table["prompt"].map(keys))

    def column(name: str) -> np.ndarray:
        return nodes[name].to_numpy(np.float64)

    size = vocabulary or _vocabulary(part)
    most = np.log(size) if size else np.nan  # the largest entropy
    doubt, spread = column("entropy") / most, column("variance")
    values = {"score": column("score"), "confidence": column("confidence")}
    if part.run["canvas"] is not None:  # a canvas' score is the log-odds of its confidence
        values["score"] = np.full(len(nodes), np.nan)
    values["entropy"] = 1 - doubt if complement else doubt
    values["logit_margin"] = 1 / (1 + np.exp(-scale * _logit_margin(part, nodes)))
    values["softmax_margin"] = np.minimum(1, column("margin") / (1 - 1 / size if size else 1))
    values["variance"] = spread / (spread + 2 * most)
    terms = [weight * values[name] for weight, name in zip(weights, ENSEMBLE) if weight]
    values["ensemble"] = np.sum(terms, axis=0)
    for name in SIGNALS:
        table[name] = values[name]
    for name in part.signals.query("level == 'node'")["signal"]:
        if name not in table and name in nodes:
            table[name] = column(name)
    table["accepted"] = (nodes["status"] == "accepted").to_numpy()
    table["first"] = (nodes["rank"] == 0).to_numpy()
    for name in ("gap", "threshold"):
        table[name] = column(name)
    return table


def _text_key(run: Metadata, number: int) -> str:
    """What identifies a prompt in every run of it, also where its earlier turns were answered otherwise.

    This is its id with the tokens of its conversation's first turn, or its run if it was redacted.
    """
    prompts = run["prompts"] or []
    own = prompts[number] if number < len(prompts) else {}
    turn = own.get("turn") or 0
    first = prompts[number - turn] if turn <= number < len(prompts) else own
    whose = (own.get("id"), first.get("tokens"))
    return f"{number} {turn} {whose if any(whose) else run['run']}"


def _vocabulary(part: Trace) -> int | None:
    """|V| of the drafter, or of a target that drafts for itself."""
    shape = (part.run["draft"] or part.run["model"] or {}).get("shape") or {}
    size = shape.get("vocabulary")
    return size if isinstance(size, int) and size > 1 else None


def _logit_margin(part: Trace, nodes: pd.DataFrame) -> np.ndarray:
    """z1 - z2 of each node: recorded, or from the two likeliest tokens' probabilities."""
    recorded = nodes["logit_margin"].to_numpy(np.float64)
    if np.isfinite(recorded).all():
        return recorded
    tops = part.tops("node")
    keys = [*KEYS, "node"]
    both = (tops.loc[tops["place"] == place, [*keys, "p"]] for place in (0, 1))
    p = nodes[keys]
    for name, candidate in zip(("first", "second"), both):
        p = p.merge(candidate.rename(columns={"p": name}), how="left", on=keys)
    with np.errstate(divide="ignore", invalid="ignore"):
        derived = np.log(p["first"].to_numpy(np.float64)) - np.log(p["second"].to_numpy(np.float64))
    return np.where(np.isfinite(recorded), recorded, derived)


def signal_names(table: pd.DataFrame) -> list[str]:
    """The signals in a table that `signals` made: those of `SIGNALS`, then the methods' own."""
    return [*SIGNALS, *(name for name in map(str, table) if name not in {*SIGNALS, *NOT_SIGNALS})]


def _unit_range(name: str, values: np.ndarray) -> bool:
    """Whether a signal is in [0, 1]; a method's own signal may have any range."""
    return name in SIGNALS or (values.min() >= 0 and values.max() <= 1)


def signal_summary(trace: Trace) -> pd.DataFrame:
    """The methods' own signals, of nodes and of cycles: what they mean and how well they predict acceptance.

    Returns
    -------
    DataFrame
        One row per run and signal: ``run``, ``signal``, ``level`` (node or cycle), ``unit``, ``meaning``;
        ``counted`` values, their ``low``, ``median`` and ``high``; ``auroc``, for a node signal, the area
        under the ROC curve for acceptance; ``correlation``, for a cycle signal, Spearman's with the share of
        the judged nodes that was accepted.
    """
    import pandas as pd

    rows = []
    for part in trace.split():
        judged = signals(part)
        cycles = part.cycles[part.cycles["cycle"] > 0]
        share = cycles["accepted"] / cycles["judged"].replace(0, np.nan)
        for signal in part.signals.to_dict("records"):
            name, of_node = signal["signal"], signal["level"] == "node"
            frame, column = (part.nodes, name) if of_node else (cycles, f"control_{name}")
            values = frame[column].astype(float) if column in frame else pd.Series(dtype=float)
            rows.append(signal | {"counted": values.count(), "low": values.min(), "median": values.median()}
                        | {"high": values.max(), "auroc": np.nan, "correlation": np.nan})  # fmt: skip
            if of_node and name in judged:
                rated = judged[judged[name].notna()]
                whole = [0] * len(rated)  # one group: the cost is quadratic in the number of groups
                rows[-1]["auroc"] = area_under_roc(rated[name], rated["accepted"], whole, 1).median
            elif not of_node:
                both = pd.DataFrame({"value": values, "share": share}).dropna().rank()
                rows[-1]["correlation"] = both["value"].corr(both["share"])
    columns = ["run", "signal", "level", "unit", "meaning", "counted", "low", "median", "high"]
    return pd.DataFrame(rows, columns=[*columns, "auroc", "correlation"])


def calibration_curve(
    table: pd.DataFrame, bins: int = 10, outcome: str = "accepted", among: Sequence[str] | None = None
) -> pd.DataFrame:
    """How often nodes of a given confidence are accepted, for each signal.

    A signal is calibrated if `rate` equals its `mean` in every bin. Only the largest probability claims to
    be: the others are normalised into [0, 1] without being probabilities of anything. A method's own signal
    that leaves [0, 1] is cut into equal intervals of its range.

    Parameters
    ----------
    table : DataFrame
        As `signals` returns it.
    bins : int
        Number of equal intervals.
    outcome : {"accepted", "first"}
        What is predicted: that the method's rule accepts the token, or that it is the target's first choice.
    among : sequence of str, optional
        Only these signals.

    Returns
    -------
    DataFrame
        For each signal with values and each bin with nodes: ``signal``, ``low``, ``high``, ``mean`` of the
        signal there, ``counted`` nodes, ``right`` ones, ``rate`` with its 95 % Wilson interval ``rate_lo``,
        ``rate_hi`` (for independent nodes, which those of one text are not quite).

    Raises
    ------
    ParameterError
        If `bins` or `outcome` is invalid, or the table has no such signal.
    """
    import pandas as pd

    if bins < 1 or outcome not in OUTCOMES:
        raise ParameterError(f"bins must be at least 1, and outcome one of {', '.join(OUTCOMES)}")
    names = signal_names(table)
    if among is not None and (isinstance(among, str) or not set(among) <= set(names)):
        raise ParameterError(f"among must be a list of {', '.join(names)}, not {among!r}")
    parts = []
    for name in among or names:
        values, right = _finite(table, name, outcome)
        if not len(values):
            continue
        least, width = 0.0, 1.0
        if not _unit_range(name, values):
            least, width = values.min(), np.ptp(values) or 1.0
        # rounding may lead beyond the ends of the scale
        index = np.clip(((values - least) / width * bins).astype(int), 0, bins - 1)
        part = pd.DataFrame({"bin": index, "value": values, "right": right})
        rates = _rates(part, ["bin"]).drop(columns="sent")
        rates.insert(0, "signal", name)
        rates.insert(1, "low", least + width * rates["bin"] / bins)
        rates.insert(2, "high", least + width * (rates["bin"] + 1) / bins)
        rates.insert(3, "mean", part.groupby("bin")["value"].mean().to_numpy())
        parts.append(rates.drop(columns="bin"))
    columns = ["signal", "low", "high", "mean", "counted", "right", "rate", "rate_lo", "rate_hi"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def _finite(table: pd.DataFrame, name: str, outcome: str) -> tuple[np.ndarray, np.ndarray]:
    """A signal's finite values, and the outcomes of those nodes."""
    values = table[name].to_numpy(np.float64)
    finite = np.isfinite(values)
    return values[finite], table[outcome].to_numpy(float)[finite]


def auroc(
    table: pd.DataFrame, outcome: str = "accepted", resamples: int = RESAMPLES, than: str = "ensemble"
) -> pd.DataFrame:
    """How well each signal separates accepted nodes from rejected ones: the area under the ROC curve.

    It is the share of pairs of an accepted and a rejected node in which the accepted one has the larger
    signal, a tie counting half; 0.5 is chance. Intervals are a 95 % bootstrap over prompts, because nodes of
    one text are not independent. All signals use the same resamples, so that they can be compared pairwise.

    Parameters
    ----------
    table : DataFrame
        As `signals` returns it. Runs over the same prompts (seeds) are pooled; a prompt is drawn with all its
        runs.
    outcome : {"accepted", "first"}
        As in `calibration_curve`.
    resamples : int
    than : str
        The signal that the others are compared with.

    Returns
    -------
    DataFrame
        For each signal with values: ``signal``, ``auroc``, ``low``, ``high``; ``ece``, the calibration
        curve's mean distance (10 bins) from the diagonal, weighted by count, NaN for a signal that leaves
        [0, 1]; ``nodes`` that were judged, ``right`` ones, ``prompts``; ``gain``, its AUROC minus that of
        `than`, ``gain_lo``, ``gain_hi``. Best first.

    Raises
    ------
    ParameterError
        If there is no such outcome or signal.
    """
    import pandas as pd

    among = signal_names(table)
    if outcome not in OUTCOMES or than not in among:
        raise ParameterError(
            f"outcome must be one of {', '.join(OUTCOMES)}, and than one of {', '.join(among)}"
        )
    rated = {
        name: _rated(table, name, outcome, resamples)
        for name in among if len(_finite(table, name, outcome)[0])
    }  # fmt: skip
    rows = pd.DataFrame([row for row, _ in rated.values()], columns=RATED)
    base, unknown = rows.loc[rows["signal"] == than, "auroc"], np.full(resamples, np.nan)
    rows["gain"] = rows["auroc"] - (base.iloc[0] if len(base) else np.nan)
    bounds = []
    for _, areas in rated.values():
        gains = areas - (rated[than][1] if than in rated else unknown)
        gains = gains[np.isfinite(gains)]
        bounds.append(np.quantile(gains, (0.025, 0.975)) if len(gains) else (np.nan, np.nan))
    rows[["gain_lo", "gain_hi"]] = np.reshape(bounds, (-1, 2))
    return rows.sort_values("auroc", ascending=False, ignore_index=True)


RATED = ["signal", "auroc", "low", "high", "ece", "nodes", "right", "prompts"]


def _rated(
    table: pd.DataFrame, name: str, outcome: str, resamples: int
) -> tuple[tuple[str | float, ...], np.ndarray]:
    """A row of `auroc` without the gain (`RATED`), and the areas of the resamples."""
    import pandas as pd

    values, right = _finite(table, name, outcome)
    group = pd.factorize(table["text"])[0]
    # groups keep their numbers, so that every signal is resampled with the same prompts
    own = group[np.isfinite(table[name].to_numpy(np.float64))]
    area, areas = _area(values, right.astype(bool), own, int(group.max()) + 1, resamples)
    bins = calibration_curve(table, outcome=outcome, among=[name])
    error = ((bins["rate"] - bins["mean"]).abs() * bins["counted"]).sum() / bins["counted"].sum()
    error = error if _unit_range(name, values) else np.nan
    row = (name, area.median, area.low, area.high, error, len(values), int(right.sum()), area.pairs)
    return row, areas


def area_under_roc(
    score: Sequence[float],
    right: Sequence[bool],
    group: Sequence[int] | None = None,
    resamples: int = RESAMPLES,
) -> Estimate:
    """Area under the ROC curve of a score for a binary outcome, with a 95 % bootstrap interval over groups.

    Parameters
    ----------
    score : sequence of float
    right : sequence of bool
    group : sequence of int, optional
        Group of each item (a text's nodes), numbered from 0. Default: each item is its own group.
    resamples : int

    Returns
    -------
    Estimate
        The area in place of a median. NaN if all items have one outcome; no interval for fewer than six
        groups.
    """
    of = np.arange(len(score)) if group is None else np.asarray(group)
    count = int(of.max(initial=-1)) + 1
    return _area(np.asarray(score, np.float64), np.asarray(right, bool), of, count, resamples)[0]


def _area(
    score: np.ndarray, right: np.ndarray, group: np.ndarray, groups: int, resamples: int
) -> tuple[Estimate, np.ndarray]:
    """The area, and its value in each resample (NaN if one outcome is missing)."""
    # wins[i, j]: pairs of a right item of group i and a wrong one of group j that are in order. A resample
    # that draws group i c_i times has c' wins c of its c' up · c' down pairs in order: exact, ties included.
    wins = np.zeros((groups, groups))
    above, whose = score[right], group[right]
    order = np.lexsort((score[~right], group[~right]))
    below, edges = score[~right][order], np.searchsorted(group[~right][order], np.arange(groups + 1))
    for j in range(groups):
        own = below[edges[j] : edges[j + 1]]
        if len(own):
            count = (np.searchsorted(own, above, "left") + np.searchsorted(own, above, "right")) / 2
            wins[:, j] = np.bincount(whose, count, groups)
    up, down = np.bincount(whose, minlength=groups), np.diff(edges)
    present = int((np.bincount(group, minlength=groups) > 0).sum())
    value = wins.sum() / (up.sum() * down.sum()) if up.sum() and down.sum() else float("nan")
    if present < LEAST or not np.isfinite(value):
        return Estimate(float(value), float("nan"), float("nan"), present), np.full(resamples, np.nan)
    times = np.random.default_rng(0).multinomial(groups, np.full(groups, 1 / groups), resamples).astype(float)
    pairs = (times @ up) * (times @ down)
    with np.errstate(invalid="ignore", divide="ignore"):
        areas = np.where(pairs > 0, ((times @ wins) * times).sum(1) / pairs, np.nan)
    low, high = np.nanquantile(areas, (0.025, 0.975))
    return Estimate(float(value), float(low), float(high), present), areas
