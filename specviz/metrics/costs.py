"""Costs of passes, counted from a trace alone: FLOPs, bytes moved, arithmetic intensity (BiLD, Figure 8).

The record says how many tokens each pass read, and after how many; the run's metadata has the model's counts
and widths (``run["model"]["shape"]``). Nothing here is measured: it is the amount of work, with which
measured time is compared. A multiplication and an addition are two FLOPs. Only matrix products count: norms,
softmax, activation functions and rotations are left out, as in PyTorch's own counter.

In a pass, n tokens are fed to a model of L layers of width h, with H heads and G key-value heads of width d,
an inner width f (m matrices: 3 if it is gated, else 2), and a vocabulary of V:

- projections: ``2 n L (2 h d (H + G) + m h f)``
- attention (scores, and values weighted by them): ``4 L H d S``, S being the sum over the fed tokens of how
  many tokens each sees, itself included: for a chain after c cached tokens ``n c + n (n + 1) / 2``; a node
  of a tree sees the cached tokens and its own ancestors
- head: ``2 k h V``, k being the number of tokens whose logits are read: none in a prefill, the root and the
  sent nodes in a pass of the target, one in a pass of the drafter

Bytes are the minimum that must be moved, with each weight read once per pass, however many tokens and rows it
serves:

- weights: every matrix and vector of the layers that run, the head if logits are read, and the embedding's
  rows for the fed tokens
- cache read: ``2 L G d (c + n)`` elements per row; cache written: ``2 L G d n``

Intensity is FLOPs divided by bytes. Data passed between matrices does not count: it is small, and is used
where it was made, in the processor's nearest cache.

``flops`` is the work that is needed. Kernels do more: they compute masked scores and discard them (all fed
tokens times all slots), and pad ragged rows of a batch in every layer, but not in the head. ``computed``
includes that.

A prefill counts whole layers. Llama-family models and Gemma 2 on torch do less: they stop in the last layer
when its keys and values are written, unless a drafter reads its last state or transformers' own modules run.

An encoder-decoder reads its source of P tokens once, in the prefill. The encoder of E layers costs
``2 P E (4 h d H + m h f) + 4 E H d P²``, the keys and values of the decoder's cross-attention
``4 P L h d H``. A pass of the decoder then has ``4 n L h d H`` more for projections and ``4 L H d n P`` more
for attention, and reads ``2 L H d P`` more elements of the cache.

In a mixture of E experts of e elements each, a token passes through k. In place of ``m h f``, a layer's FLOPs
have ``k e`` and the part that every token passes through (the router, a shared expert). A pass over n tokens,
counting all rows, reads the experts that any of them chose: ``E (1 - (1 - k / E)^n)``, the expected number if
choices are uniform and independent.

An EAGLE drafter is one layer, whose attention reads r numbers per token. A cycle's first pass reads n pairs
of the text and predicts the token after the last one (k = 1); every other pass reads n nodes of the tree and
predicts the token after each (k = n). Only those k continue past their keys and values:
``2 n (r d (H + 2 G) + c) + 2 k (d H h + m h f + h V) + 4 H d S``, S being the sum over the k, and c the
elements of the matrix before the layer: in generation 1 every token meets it, in generation 3 only pairs do.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from specviz.errors import TraceError
from specviz.metrics.cycles import _texts, ratio, seconds
from specviz.paths import expanded
from specviz.schema import Metadata
from specviz.trace import KEYS, Trace

if TYPE_CHECKING:
    import pandas as pd

Amount: TypeAlias = float | np.ndarray  # one number, or one per pass
Widths: TypeAlias = Mapping[str, Any]  # counts and widths by name
Report: TypeAlias = str | Path | Widths  # the file of a report, or its content
LIMIT = 16 << 20  # maximum bytes of a report
UNSENT = ("below_budget", "unsent", "unreviewed")
WORK = ("tokens", "logits", "seen", "flops", "computed")
MEMORY = ("weights", "cache_read", "cache_written")
COUNTED = (*WORK, *MEMORY)


@contextmanager
def reading_report(report: Report, bench: str) -> Iterator[Widths]:
    """Yield the content of a ``specviz bench BENCH --json`` report; errors in the block mean a bad report.

    Raises
    ------
    TraceError
        If it is not a report of that bench.
    """
    try:
        if isinstance(report, Mapping):
            yield report
        else:
            path = expanded(report, TraceError)
            if path.stat().st_size > LIMIT:
                raise ValueError("it is too long")
            yield json.loads(path.read_text(encoding="utf8"))
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        where = "the report" if isinstance(report, Mapping) else report
        raise TraceError(f"{where} is not a report of 'specviz bench {bench} --json': {error}") from None


@dataclass(frozen=True)
class Ceilings:
    """Upper limits of a machine's speed, as measured on it.

    Parameters
    ----------
    compute : float
        FLOPs per second of a product of large matrices.
    memory : float
        Bytes per second read from memory, outside every cache.
    cache : dict of int to float
        Bytes per second read repeatedly from a block of this many bytes: the bandwidth for a model of that
        size, which stays in a cache.
    device, dtype : str
    threads : int or None
    """

    compute: float
    memory: float
    cache: Mapping[int, float]
    device: str
    dtype: str
    threads: int | None

    def bandwidth(self, size: float) -> float:
        """Bytes per second from a block of `size` bytes, as measured with the block nearest in size."""
        if not self.cache:
            return self.memory
        return self.cache[min(self.cache, key=lambda each: abs(np.log(each / max(size, 1))))]

    def seconds(self, flops: float, moved: float, size: float) -> float:
        """Roofline time of a pass of a model of `size` bytes: the longer of computing and moving."""
        return max(flops / self.compute, moved / self.bandwidth(size))


@dataclass(frozen=True)
class Shape:
    """A model's counts and widths, and the costs of passing through it; see the module for the formulae.

    Parameters
    ----------
    widths : dict
        As `specviz.models.geometry` writes them.
    """

    widths: Widths

    @property
    def encoder(self) -> Shape | None:
        """The encoder's layers, if there are any."""
        own = self.widths.get("encoder")
        # Its weights have the model's own format, as activations do, whatever the layout of the decoder's.
        return None if own is None else Shape({**own, "activation_bytes": self.activation_bytes})

    @property
    def inner(self) -> int:
        """Total width of the heads."""
        return int(self.widths["heads"] * self.widths["head_dim"])

    @property
    def outer(self) -> int:
        """Total width of the key-value heads."""
        return int(self.widths["kv_heads"] * self.widths["head_dim"])

    @property
    def eagle(self) -> Widths | None:
        """Widths of the part before an EAGLE drafter's layer; None for other models."""
        return self.widths.get("eagle")

    @property
    def matrices(self) -> int:
        """Elements of a layer's matrices that each fed token meets; a decoder's matrices that only the source
        meets are left out."""
        k = self.widths
        if self.eagle is not None:
            return int(self.eagle["fused"] + self.entered + self.after_attention)
        cross = 2 * k["hidden"] * self.inner if self.encoder else 0
        attention = 2 * k["hidden"] * (self.inner + self.outer)
        if self.experts is not None:
            return int(attention + self.experts["shared"] + self.experts["chosen"] * self.experts["elements"])
        return int(attention + (2 + k["gated"]) * k["hidden"] * k["feed_forward"] + cross)

    @property
    def experts(self) -> Widths | None:
        """The experts of a mixture; None for other models."""
        return self.widths.get("experts")

    def touched(self, tokens: Amount) -> Amount:
        """Expected experts of a layer that a pass over `tokens` reads, for uniform, independent choices."""
        assert self.experts is not None
        count = self.experts["count"]
        return count * (1 - (1 - self.experts["chosen"] / count) ** np.asarray(tokens))

    def flops(self, tokens: Amount, seen: Amount, logits: Amount, source: Amount = 0) -> Amount:
        """FLOPs of a pass.

        Parameters
        ----------
        tokens, seen, logits : int or array
            n, S and k, as in the module's formulae.
        source : int or array
            For a decoder with an encoder: n times the source's tokens.
        """
        k = self.widths
        layer = 2 * np.multiply(tokens, self.matrices) + 4 * self.inner * np.add(seen, source)
        return k["layers"] * layer + 2 * np.multiply(logits, k["hidden"] * k.get("vocabulary", 0))

    @property
    def entered(self) -> int:
        """Elements of an EAGLE drafter's matrices that each fed token meets, up to its keys and values."""
        assert self.eagle is not None
        return int(self.eagle["entered"] + self.eagle["read"] * (self.inner + 2 * self.outer))

    @property
    def after_attention(self) -> int:
        """Elements of its matrices after the attention, without the head."""
        k = self.widths
        return int(k["hidden"] * self.inner + (2 + k["gated"]) * k["hidden"] * k["feed_forward"])

    def drafting(self, tokens: Amount, pairs: Amount, kept: Amount, seen: Amount) -> Amount:
        """FLOPs of an EAGLE drafter's pass.

        Parameters
        ----------
        tokens, pairs, kept : int or array
            Tokens fed, those of them that are pairs of the text, and those whose successor is predicted.
        seen : int or array
            Sum over the kept tokens of how many tokens each sees.
        """
        assert self.eagle is not None
        last = self.after_attention + self.widths["hidden"] * self.widths["vocabulary"]
        matrices = np.multiply(tokens, self.entered) + np.multiply(pairs, self.eagle["fused"])
        return 2 * (matrices + np.multiply(kept, last)) + 4 * self.inner * np.asarray(seen)

    def reading(self, source: Amount, seen: Amount) -> Amount:
        """FLOPs of the encoder over a source, and of its keys and values in every layer of the decoder."""
        assert self.encoder is not None
        cross = 4 * np.multiply(source, self.widths["layers"] * self.widths["hidden"] * self.inner)
        return self.encoder.flops(source, seen, 0) + cross

    def weights(self, logits: Amount, tokens: Amount = 1, touched: Amount | None = None) -> Amount:
        """Bytes of the weights that a pass reads, without the embedding's rows.

        Parameters
        ----------
        logits : int or array
            Tokens whose logits are read.
        tokens : int or array
            Tokens of all rows of the pass; they decide how many experts of a mixture are read.
        touched : float or array, optional
            Number of experts read, if it was counted. Default: the estimate of `touched`.
        """
        k = self.widths
        own = k["layers"] * (self.matrices + k["vectors"]) + k["last"]
        if self.experts is not None:
            more = (self.touched(tokens) if touched is None else np.asarray(touched)) - self.experts["chosen"]
            own = own + k["layers"] * self.experts["elements"] * more
        return (own + np.greater(logits, 0) * k["hidden"] * k["vocabulary"]) * k["weight_bytes"]

    def chain(
        self, tokens: int, cached: int, logits: int, rows: int = 1, touched: float | None = None
    ) -> tuple[int, float]:
        """FLOPs and bytes of a causal model's pass over `tokens` of each row, after `cached` ones."""
        seen = tokens * cached + tokens * (tokens + 1) // 2
        moved = self.weights(logits, rows * tokens, touched) + rows * (
            tokens * self.embedded + (cached + 2 * tokens) * self.slot
        )
        return int(rows * self.flops(tokens, seen, logits)), float(moved)

    @property
    def reader(self) -> float:
        """Bytes of the weights that read the source: the encoder's, and those of its keys and values."""
        assert self.encoder is not None
        own = self.encoder.widths
        layers = own["layers"] * (self.encoder.matrices + own["vectors"]) + own["last"]
        cross = 2 * self.widths["layers"] * self.widths["hidden"] * self.inner
        return float(layers * self.activation_bytes + cross * self.widths["weight_bytes"])

    @property
    def slot(self) -> int:
        """Bytes of a token's keys and values in all layers."""
        return int(2 * self.widths["layers"] * self.outer * self.widths["cache_bytes"])

    @property
    def source_slot(self) -> int:
        """Bytes of a source token's keys and values in all layers, which have the model's own format."""
        return int(2 * self.widths["layers"] * self.outer * self.activation_bytes)

    @property
    def activation_bytes(self) -> int:
        """Bytes of an element of what goes from matrix to matrix."""
        return int(self.widths.get("activation_bytes", 4))

    @property
    def embedded(self) -> float:
        """Bytes of a token's embedding."""
        return float(self.widths["hidden"] * self.widths["weight_bytes"])


def pass_costs(trace: Trace) -> pd.DataFrame:
    """One row per forward pass: what it read, what that costs, and how long it took.

    A pass that several rows of a batch shared is one row, because its weights are read once for all of them.

    Returns
    -------
    DataFrame
        ``run``, ``method``, ``prompt``, ``update``, ``cycle`` (for a shared pass, those of its first row),
        ``model`` (target, draft), ``prefill``, ``rows``; ``tokens`` fed, ``logits`` read, ``seen`` (S),
        ``flops``, ``computed``; bytes: ``weights``, ``cache_read``, ``cache_written`` and ``bytes`` (their
        sum); ``intensity`` (FLOPs per byte); ``start`` and ``duration`` in seconds.

    Raises
    ------
    TraceError
        If the shape of a model or the cost of its passes is not known, or the record has no passes.
    """
    table = _shared(trace)
    first = ["run", "method", "prompt", "update", "cycle", "model", "prefill", "rows", "start", "duration"]
    grouped = table.groupby("pass", sort=False)
    costs = grouped[first].first().join(grouped[list(COUNTED)].sum()).reset_index(drop=True)
    costs = costs.astype(dict.fromkeys(WORK, "int64"))
    costs["bytes"] = costs[list(MEMORY)].sum(axis=1)
    costs["intensity"] = costs["flops"] / costs["bytes"]
    return costs[[*first[:8], *COUNTED, "bytes", "intensity", "start", "duration"]]


def cost_summary(trace: Trace) -> pd.DataFrame:
    """The costs of each run, by model and in total, for the prefill and for the other passes.

    Returns
    -------
    DataFrame
        ``run``, ``method``, ``part`` (prefill, decode), ``model`` (target, draft, all); ``passes``; ``flops``
        and ``bytes``, ``flops_per_token`` and ``bytes_per_token`` (tokens of the texts), ``intensity``,
        ``computed`` (FLOPs with masked scores and padding), ``seconds`` (of the passes alone),
        ``flops_per_second`` and ``bytes_per_second``.

    Raises
    ------
    TraceError
        As in `pass_costs`.
    """
    import pandas as pd

    rows = []
    for part in trace.split():
        table, tokens = pass_costs(part), len(_texts(part)) or float("nan")
        for when, prefill in (("prefill", True), ("decode", False)):
            inside = table[table["prefill"] == prefill]
            models = [m for m in ("target", "draft") if (inside["model"] == m).any()]
            for model in [*models, "all"][: len(models) + 1 if models else 0]:
                own = inside if model == "all" else inside[inside["model"] == model]
                flops, moved = float(own["flops"].sum()), float(own["bytes"].sum())
                spent = float(own["duration"].sum(min_count=1))
                row = {"run": part.run["run"], "method": part.run["method"], "part": when, "model": model}
                row |= {"passes": len(own), "flops": flops, "bytes": moved}
                row |= {"flops_per_token": flops / tokens, "bytes_per_token": moved / tokens}
                row |= {"intensity": flops / moved, "computed": float(own["computed"].sum())}
                row |= {
                    "seconds": spent,
                    "flops_per_second": flops / spent,
                    "bytes_per_second": moved / spent,
                }
                rows.append(row)
    return pd.DataFrame(rows)


def relative_costs(traces: Mapping[str, Trace], baseline: str, prefill: bool = False) -> pd.DataFrame:
    """FLOPs, bytes, intensity and latency of several traces relative to a baseline's: BiLD's Figure 8.

    All are per token of the texts, because a lossy method may write texts of another length. The paper counts
    the whole answer and names no denominator.

    Parameters
    ----------
    traces : mapping of name to Trace
        Traces of the same prompts. A trace of several runs is pooled.
    baseline : str
        Name of the trace that the others are compared with; usually autoregressive decoding.
    prefill : bool
        Whether to include the prompt's costs and time.

    Returns
    -------
    DataFrame
        One row per name: ``flops`` and ``bytes`` per token; ``intensity``; ``seconds`` per token, of whole
        cycles; then each relative to the baseline's as ``relative_flops``, ``relative_bytes``,
        ``relative_intensity``, and ``speedup``, the baseline's seconds divided by its own.

    Raises
    ------
    TraceError
        If there is no such baseline, the prompts differ, or as in `pass_costs`.
    """
    import pandas as pd

    if baseline not in traces:
        raise TraceError(f"no trace is called {baseline!r}; there are {', '.join(map(str, traces))}")
    rows = []
    for name, trace in traces.items():
        if _prompt_keys(trace) != _prompt_keys(traces[baseline]):
            raise TraceError(
                f"{name} and {baseline} decoded different prompts, so their costs cannot be compared: run "
                f"both on the same prompts"
            )
        table, tokens = pass_costs(trace), len(_texts(trace)) or float("nan")
        table = table if prefill else table[~table["prefill"]]
        flops, moved = float(table["flops"].sum()), float(table["bytes"].sum())
        row = {"name": name, "flops": flops / tokens, "bytes": moved / tokens}
        row["intensity"] = ratio(flops, moved)
        rows.append(row | {"seconds": seconds(trace, prefill) / tokens})
    costs = pd.DataFrame(rows)
    base = costs[costs["name"] == baseline].iloc[0]
    for figure in ("flops", "bytes", "intensity"):
        costs[f"relative_{figure}"] = costs[figure] / base[figure]
    costs["speedup"] = base["seconds"] / costs["seconds"]
    return costs


def _prompt_keys(trace: Trace) -> set[tuple[Hashable, ...]]:
    """The decoded prompts of all runs: by id, because a later turn includes the previous answer, otherwise by
    text or length."""
    # A turn that found no room in its conversation has no cycles.
    keys = ["run", "prompt"]
    decoded = set(trace.cycles[keys].drop_duplicates().itertuples(index=False, name=None))
    prompts = trace.prompts
    prompts = prompts[np.array([key in decoded for key in zip(prompts["run"], prompts["prompt"])], bool)]
    named = prompts["id"].notna()
    names = (
        prompts["id"].where(named, prompts["text"]).where(named | (prompts["text"] != ""), prompts["tokens"])
    )
    return set(zip(prompts["prompt"], names, prompts["turn"].fillna(0)))


def shape_of(run: Metadata, model: str = "target") -> Shape:
    """Shape of a run's target or drafter, from the run's metadata.

    Raises
    ------
    TraceError
        If the metadata has none.
    """
    about = run["model" if model == "target" else "draft"] or {}
    if not isinstance(about.get("shape"), dict):
        raise TraceError(
            f"the record of {run['method']} does not say the shape of {about.get('name') or 'its ' + model}, "
            "so the cost of its passes is unknown: the model has matrices other than those of attention and "
            "a feed-forward network"
        )
    return Shape(about["shape"])


def _shared(trace: Trace) -> pd.DataFrame:
    """One row per pass and batch row, with its part of the costs; a shared pass has one ``pass`` number."""
    import pandas as pd

    table = pd.concat([_of_run(part) for part in trace.split()], ignore_index=True)
    return table.assign(**{"pass": table.groupby(["run", "model", "pass"], sort=False).ngroup()})


def _of_run(part: Trace) -> pd.DataFrame:
    import pandas as pd

    if part.run["canvas"] is not None:
        raise TraceError(
            f"passes of {part.run['method']} cover windows of canvases, and the cost of such passes is not "
            f"counted: Trace.passes has their times and the positions fed"
        )
    if "control_layers" in part.cycles:  # CALM
        raise TraceError(
            f"passes of {part.run['method']} exit after different layers, and the cost of such passes is "
            f"not counted: see metrics.by_layer for how far they went"
        )
    passes = part.passes
    for model in passes.loc[passes["tokens"] > 0, "model"].unique():
        shape_of(part.run, model)  # raises if the model's shape is unknown
    table = _recorded_passes(part)
    if not len(table):
        raise TraceError(f"the record of {part.run['method']} holds no passes, so they cannot be counted")
    # Batch rows that shared a pass recorded the same start.
    alone = (table["rows"] == 1) | table["start"].isna()
    same = table["start"].where(~alone, -1.0 - np.arange(len(table)))
    table["pass"] = table.groupby(["model", same], observed=True, sort=False).ngroup()
    table["share"] = table.groupby("pass")["tokens"].transform("size")
    models = [table[table["model"] == model] for model in table["model"].unique()]
    return pd.concat([_priced(own, shape_of(part.run, own["model"].iloc[0])) for own in models]).sort_index()


def _recorded_passes(part: Trace) -> pd.DataFrame:
    """Each recorded pass, with the tokens before it (``cached``), ``seen`` and ``logits``."""
    import pandas as pd

    keys = list(KEYS)
    passes = part.passes
    passes = passes[passes["tokens"] > 0].reset_index(drop=True)
    cycles = part.cycles[[*keys, "context", "reused"]]
    table = passes.merge(cycles, how="left", on=keys)
    nodes = part.nodes
    sent = nodes[~nodes["status"].isin(UNSENT)].groupby(keys, observed=True)["depth"].agg(["size", "sum"])
    table = table.join(sent, on=keys).fillna({"size": 0, "sum": 0})
    n, length = table["tokens"].to_numpy(float), table["context"].to_numpy(float)
    prefill = (table["cycle"] == 0).to_numpy()
    target = (table["model"] == "target").to_numpy()
    eagle = ~target & ((part.run["draft"] or {}).get("kind") == "eagle")
    number = table.groupby([*keys, "model"], observed=True).cumcount().to_numpy()
    if (number[target] > 0).any():
        raise TraceError(
            "a cycle has several passes of the target, and what each of them read is not recorded"
        )
    # The target reads the text's pending tokens, then the draft's nodes, each of which sees its ancestors.
    m, depth = table["size"].to_numpy(), table["sum"].to_numpy()
    pending = n - m
    start = length - pending
    seen = pending * start + pending * (pending + 1) / 2 + m * length + depth
    # The drafter's i-th pass ends i drafted tokens beyond the text.
    drafter_start = length + number - n
    start = np.where(target, start, drafter_start)
    start = np.where(prefill, table["reused"].fillna(0), start)
    chain = n * start + n * (n + 1) / 2
    seen, logits = np.where(target & ~prefill, seen, chain), np.where(prefill, 0, np.where(target, 1 + m, 1))
    if eagle.any():
        # The first pass reads pairs, one fewer than the text has tokens; pass i reads level i of a tree.
        nodes = table.groupby([*keys, "model"], observed=True)["tokens"].cumsum().to_numpy() - n
        first = table.groupby([*keys, "model"], observed=True)["tokens"].transform("first").to_numpy()
        pairs = np.where(prefill, n, length - 1)
        start = np.where(eagle, np.where(number > 0, pairs + nodes - first, pairs - n), start)
        seen = np.where(eagle, np.where(number > 0, n * (pairs + number), pairs), seen)
        logits = np.where(eagle, np.where(number > 0, n, 1), logits)
    table["pairs"] = np.where(eagle & (number == 0), n, 0)
    table["cached"], table["seen"], table["logits"] = start, seen, logits
    table["prefill"] = prefill
    if (start < 0).any() or (target & ~prefill & (pending < 1)).any():
        raise TraceError(
            "the trace is damaged: a pass has fewer tokens than its draft, or more than its text"
        )
    # One source per update of a stream: an encoder reads each of them anew.
    begun = part.cycles[part.cycles["cycle"] == 0].set_index(["prompt", "update"])["context"]
    table["source"] = begun.reindex(pd.MultiIndex.from_frame(table[["prompt", "update"]])).to_numpy(float)
    return table


def _priced(table: pd.DataFrame, shape: Shape) -> pd.DataFrame:
    """Add costs to the passes of one model."""
    table = table.copy()
    n, start, seen, logits = (table[name].to_numpy() for name in ("tokens", "cached", "seen", "logits"))
    if shape.eagle is not None:
        return _priced_eagle(table, shape)
    share = table["share"].to_numpy()
    prefill = table["prefill"].to_numpy()
    source, encoded = np.zeros(len(table)), np.zeros(len(table))
    if shape.encoder is not None:  # the decoder has a prefix in place of the prompt
        source, prefix = table["source"].to_numpy(), shape.widths["prefix"]
        # Its prefill reads the prefix but one token, and the source unless a model with that encoder did.
        # Carried tokens are read by the same pass, after the prefix.
        encoded = np.where(prefill & (n >= source + prefix - 1), source, 0)
        n = n - encoded
        start = np.where(prefill, 0, start - source + prefix)
        seen = np.where(prefill, n * (n + 1) / 2, seen - n * (source - prefix))
    # Kernels compute every score of fed tokens and slots, and pad all rows to one length.
    most_fed, longest, most_logits, longest_source, most_encoded = (
        table.assign(fed=n, end=start + n, source=source, encoded=encoded)
        .groupby("pass")[name]
        .transform("max")
        .to_numpy()
        for name in ("fed", "end", "logits", "source", "encoded")
    )
    rows = table["rows"].to_numpy() / share
    table["flops"] = shape.flops(n, seen, logits, n * source)
    padded = shape.flops(most_fed, most_fed * longest, 0, most_fed * longest_source)
    table["computed"] = rows * padded + shape.flops(0, 0, logits)  # the head runs on no padding
    fed = table.assign(fed=n).groupby("pass")["fed"].transform("sum").to_numpy()
    table["weights"] = shape.weights(most_logits, fed) / share + n * shape.embedded
    table["cache_read"] = (start + n) * shape.slot + source * shape.source_slot
    table["cache_written"] = n * shape.slot
    if encoded.any():
        assert shape.encoder is not None
        idle = n == 0  # the decoder did not run
        table["weights"] = table["weights"].where(~idle, 0)
        table["weights"] += (encoded > 0) * shape.reader / share + encoded * shape.embedded
        table["cache_read"] = table["cache_read"].where(~idle, 0)
        table["cache_written"] += encoded * shape.source_slot
        table["flops"] += shape.reading(encoded, encoded**2)
        table["computed"] += rows * shape.reading(most_encoded, most_encoded**2)
        seen = seen + encoded**2
    return table.assign(seen=seen)


def _priced_eagle(table: pd.DataFrame, shape: Shape) -> pd.DataFrame:
    """`_priced` for an EAGLE drafter, each of whose passes covers one text."""
    assert shape.eagle is not None
    n, start, seen, logits, pairs = (
        table[name].to_numpy() for name in ("tokens", "cached", "seen", "logits", "pairs")
    )
    table["flops"] = shape.drafting(n, pairs, logits, seen)
    table["computed"] = shape.drafting(n, pairs, logits, logits * (start + n))
    idle = (pairs == 0) * shape.eagle["fused"] * shape.widths["weight_bytes"]
    table["weights"] = shape.weights(1) - idle + n * shape.embedded
    table["cache_read"] = (start + n) * shape.slot
    table["cache_written"] = n * shape.slot
    return table
