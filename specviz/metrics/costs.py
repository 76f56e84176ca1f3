"""What passes cost, counted from a trace alone: FLOPs, bytes moved, arithmetic intensity (BiLD, Figure 8).

The record says what each pass read and after how many tokens; the run's metadata has the model's counts
and widths (``run["model"]["shape"]``). Nothing here is measured: it is what the work is, beside which
measured time is set. A multiplication and an addition are two FLOPs. Only products of matrices count: norms,
softmax, activation functions and rotations are left out, as by PyTorch's own counter.

In a pass, n tokens are fed to a model of L layers of width h, with H heads and G key-value heads of width d,
an inner width f (m matrices: 3 where it is gated, else 2), and a vocabulary of V:

- projections: ``2 n L (2 h d (H + G) + m h f)``
- attention (scores, and values weighted by them): ``4 L H d S``, S being the sum over the fed tokens of how
  many tokens each sees, itself included: for a chain after c cached tokens ``n c + n (n + 1) / 2``; a node
  of a tree sees the cached tokens and its own ancestors
- head: ``2 k h V``, k being the tokens whose logits are read: in a prefill none, in the target's pass the
  root and the sent nodes, in the drafter's one

Bytes are what must be moved at least, each weight being read once a pass however many tokens and rows it
serves:

- weights: every matrix and vector of the layers that run, the head where logits are read, and of the
  embedding the rows of the fed tokens
- cache read: ``2 L G d (c + n)`` elements a row; cache written: ``2 L G d n``

Intensity is FLOPs divided by bytes. What passes between the matrices (``activations``) is named apart and
counts in neither: it is small, and is used where it was made, in the processor's nearest cache.

``flops`` is the work that is asked for. Kernels do more: a masked score is computed and thrown away (all fed
tokens times all slots), and ragged rows of a batch are padded. ``computed`` has that inside.

An encoder-decoder reads its source of P tokens once, in the prefill. The encoder of E layers costs
``2 P E (4 h d H + m h f) + 4 E H d P²``, the keys and values of the decoder's cross-attention
``4 P L h d H``. A pass of the decoder then has ``4 n L h d H`` more of projections and ``4 L H d n P`` more
of attention, and reads ``2 L H d P`` more elements of the cache.

Of a mixture's E experts, each of e elements, a token meets k: in place of ``m h f`` a layer's FLOPs have
``k e`` and what every token meets (the router, a shared expert). A pass over n tokens, of all its rows,
reads the experts that any of them chose: ``E (1 - (1 - k / E)^n)``, as expected where every choice is even
and by itself.

An EAGLE drafter is one layer, whose attention reads r numbers per token. A cycle's first pass reads n pairs
of the text and says what follows the last one (k = 1), each other one n nodes of the tree and what follows
each (k = n). Only those k go on after their keys and values:
``2 n (r d (H + 2 G) + c) + 2 k (d H h + m h f + h V) + 4 H d S``, S being the sum over the k, and c the
elements of the matrix before the layer: in generation 1 every token meets it, in generation 3 pairs alone.
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
from specviz.metrics.cycles import _texts, seconds
from specviz.schema import Metadata
from specviz.trace import KEYS, Trace

if TYPE_CHECKING:
    import pandas as pd

Amount: TypeAlias = float | np.ndarray  # one number, or one per pass
Widths: TypeAlias = Mapping[str, Any]  # counts and widths by name
Report: TypeAlias = str | Path | Widths  # its file, or what it holds
LIMIT = 16 << 20  # bytes of a report
UNSENT = ("below_budget", "unsent", "unreviewed")
WORK = ("tokens", "logits", "seen", "flops", "computed")
MEMORY = ("weights", "cache_read", "cache_written")
COUNTED = (*WORK, *MEMORY, "activations")


@contextmanager
def reading_report(report: Report, bench: str) -> Iterator[Widths]:
    """What a report of ``specviz bench BENCH --json`` holds; what fails while it is read is an error of it.

    Raises
    ------
    TraceError
        If it is not such a report.
    """
    try:
        if isinstance(report, Mapping):
            yield report
        else:
            if Path(report).stat().st_size > LIMIT:
                raise ValueError("it is too long")
            yield json.loads(Path(report).read_text(encoding="utf8"))
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        where = "the report" if isinstance(report, Mapping) else report
        raise TraceError(f"{where} is not a report of 'specviz bench {bench} --json': {error}") from None


@dataclass(frozen=True)
class Ceilings:
    """What a machine can do at most, as it was measured there.

    Parameters
    ----------
    compute : float
        FLOPs per second of a product of large matrices.
    memory : float
        Bytes per second read from memory, beyond every cache.
    cache : dict of int to float
        Bytes per second read again and again from a block of so many bytes: what a model of that size meets,
        which stays in a cache.
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
        """Bytes per second from a block of `size` bytes: those of the measured block nearest in size."""
        if not self.cache:
            return self.memory
        return self.cache[min(self.cache, key=lambda each: abs(np.log(each / max(size, 1))))]

    def seconds(self, flops: float, moved: float, size: float) -> float:
        """The roofline's time: no less than computing takes, and no less than moving, of a model so large."""
        return max(flops / self.compute, moved / self.bandwidth(size))


@dataclass(frozen=True)
class Shape:
    """A model's counts and widths, and what passes through it cost; see the module for the formulae.

    Parameters
    ----------
    widths : dict
        As `specviz.models.geometry` writes it.
    """

    widths: Widths

    @property
    def encoder(self) -> Shape | None:
        """The encoder's layers, where there are any."""
        own = self.widths.get("encoder")
        return None if own is None else Shape(own)

    @property
    def inner(self) -> int:
        """Width of the heads together."""
        return int(self.widths["heads"] * self.widths["head_dim"])

    @property
    def outer(self) -> int:
        """Width of the key-value heads together."""
        return int(self.widths["kv_heads"] * self.widths["head_dim"])

    @property
    def eagle(self) -> Widths | None:
        """What stands before an EAGLE drafter's layer."""
        return self.widths.get("eagle")

    @property
    def matrices(self) -> int:
        """Elements of a layer's matrices that each fed token meets; of a decoder without those that only the
        source meets."""
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
        """Of a mixture, its experts."""
        return self.widths.get("experts")

    def touched(self, tokens: Amount) -> Amount:
        """Experts of a layer that a pass over so many tokens reads, were each choice even and by itself."""
        assert self.experts is not None
        count = self.experts["count"]
        return count * (1 - (1 - self.experts["chosen"] / count) ** np.asarray(tokens))

    def flops(self, tokens: Amount, seen: Amount, logits: Amount, source: Amount = 0) -> Amount:
        """FLOPs of a pass.

        Parameters
        ----------
        tokens, seen, logits : int or array
            n, S and k.
        source : int or array
            n times the source's tokens, of a decoder.
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
        """Elements of those after the attention, without the head."""
        k = self.widths
        return int(k["hidden"] * self.inner + (2 + k["gated"]) * k["hidden"] * k["feed_forward"])

    def drafting(self, tokens: Amount, pairs: Amount, kept: Amount, seen: Amount) -> Amount:
        """FLOPs of an EAGLE drafter's pass.

        Parameters
        ----------
        tokens, pairs, kept : int or array
            Those fed, those of them that are pairs of the text, and those whose successor is asked for.
        seen : int or array
            Sum over the kept ones of how many each sees.
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
        """Bytes of the weights that a pass reads, but for the embedding's rows.

        Parameters
        ----------
        logits : int or array
            Whose logits are read.
        tokens : int or array
            Of all rows of the pass, which decide how many experts of a mixture are read.
        touched : float or array, optional
            How many are, where it was counted; default: `touched`.
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
        """FLOPs and bytes of a causal model's pass over `tokens` of each row after `cached` ones."""
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
        return float((layers + cross) * self.widths["weight_bytes"])

    @property
    def slot(self) -> int:
        """Bytes of a token's keys and values in all layers."""
        return int(2 * self.widths["layers"] * self.outer * self.widths["cache_bytes"])

    @property
    def embedded(self) -> float:
        """Bytes of a token's embedding."""
        return float(self.widths["hidden"] * self.widths["weight_bytes"])

    def activations(self, tokens: Amount, logits: Amount) -> Amount:
        """Bytes that go into and come out of the matrices."""
        k = self.widths
        attention = 2 * k["hidden"] + 2 * self.inner + 2 * self.outer
        if self.eagle is not None:
            before = (self.eagle["entered"] or self.eagle["fused"]) // k["hidden"]
            attention += before + self.eagle["read"]
        feed_forward = 2 * k["hidden"] + (2 + k["gated"]) * k["feed_forward"]
        if self.experts is not None:
            shared = k["hidden"] + self.experts["shared"] // k["hidden"]
            feed_forward = self.experts["chosen"] * feed_forward + shared
        cross = 2 * k["hidden"] + 2 * self.inner if self.encoder else 0
        each = k["layers"] * (attention + feed_forward + cross)
        head = np.multiply(logits, k["hidden"] + k.get("vocabulary", 0))
        return (np.multiply(tokens, each) + head) * k.get("activation_bytes", 4)


def pass_costs(trace: Trace) -> pd.DataFrame:
    """One row per forward pass: what it read, what that costs, and how long it took.

    A pass that several rows of a batch shared is one row: its weights are read once for all of them.

    Returns
    -------
    DataFrame
        ``run``, ``method``, ``prompt``, ``update``, ``cycle`` (of a shared pass the first one's), ``model``
        (target, draft), ``prefill``, ``rows``; ``tokens`` fed, ``logits`` read, ``seen`` (S), ``flops``,
        ``computed``; bytes: ``weights``, ``cache_read``, ``cache_written``, ``activations`` and ``bytes``
        (the first three); ``intensity`` (FLOPs a byte); ``start`` and ``duration`` in seconds.

    Raises
    ------
    TraceError
        If a model's shape is not known, or the record has no passes.
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
    """The costs of each run, by model and together, without the prefill.

    Returns
    -------
    DataFrame
        ``run``, ``method``, ``part`` (prefill, decode), ``model`` (target, draft, all); ``passes``; ``flops``
        and ``bytes``, ``flops_per_token`` and ``bytes_per_token`` (tokens of the texts), ``intensity``,
        ``computed`` (FLOPs with masked scores and padding), ``seconds`` (the passes' own),
        ``flops_per_second`` and ``bytes_per_second``.

    Raises
    ------
    TraceError
        As `pass_costs`.
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
    """FLOPs, bytes, intensity and latency of several traces over the baseline's: BiLD's Figure 8.

    All are per token of the texts, for a lossy method may write texts of another length. The paper counts the
    whole answer; it names no denominator.

    Parameters
    ----------
    traces : mapping of name to Trace
        Of the same prompts. A trace of several runs is pooled.
    baseline : str
        The name that the others are set against; usually autoregressive decoding.
    prefill : bool
        Whether the prompt's costs and time are inside.

    Returns
    -------
    DataFrame
        One row a name: ``flops`` and ``bytes`` a token; ``intensity``; ``seconds`` a token, of whole
        cycles; then each over the baseline's as ``relative_flops``, ``relative_bytes``,
        ``relative_intensity``, and ``speedup``, the baseline's seconds over its own.

    Raises
    ------
    TraceError
        If there is no such baseline, the prompts differ, or as `pass_costs`.
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
        row = {"name": name, "flops": flops / tokens, "bytes": moved / tokens, "intensity": flops / moved}
        rows.append(row | {"seconds": seconds(trace, prefill) / tokens})
    costs = pd.DataFrame(rows)
    base = costs[costs["name"] == baseline].iloc[0]
    for figure in ("flops", "bytes", "intensity"):
        costs[f"relative_{figure}"] = costs[figure] / base[figure]
    costs["speedup"] = base["seconds"] / costs["seconds"]
    return costs


def _prompt_keys(trace: Trace) -> set[tuple[Hashable, ...]]:
    """The decoded prompts of all runs, by name, for a later turn holds the answer before; else by what they
    say."""
    # A turn that its conversation left no room for has no cycles.
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
    """The shape that a run's metadata has of its target or drafter.

    Raises
    ------
    TraceError
        If it has none.
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
    """One row per pass and row of the batch, with its part of the costs; ``pass`` numbers what is shared."""
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
        shape_of(part.run, model)  # what a model of no known shape reads may follow other rules
    table = _recorded_passes(part)
    if not len(table):
        raise TraceError(f"the record of {part.run['method']} holds no passes, so they cannot be counted")
    # A batch's rows that a pass served say the same start.
    alone = (table["rows"] == 1) | table["start"].isna()
    same = table["start"].where(~alone, -1.0 - np.arange(len(table)))
    table["pass"] = table.groupby(["model", same], observed=True, sort=False).ngroup()
    table["share"] = table.groupby("pass")["tokens"].transform("size")
    models = [table[table["model"] == model] for model in table["model"].unique()]
    return pd.concat([_priced(own, shape_of(part.run, own["model"].iloc[0])) for own in models]).sort_index()


def _recorded_passes(part: Trace) -> pd.DataFrame:
    """Each pass as it is recorded, with what it read: ``cached`` tokens before it, ``seen``, ``logits``."""
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
    # The target reads what it lacks of the text, then the draft's nodes, each of which sees its ancestors.
    m, depth = table["size"].to_numpy(), table["sum"].to_numpy()
    pending = n - m
    start = length - pending
    seen = pending * start + pending * (pending + 1) / 2 + m * length + depth
    # The drafter's i-th pass ends i drafted tokens after the text.
    drafter_start = length + number - n
    start = np.where(target, start, drafter_start)
    start = np.where(prefill, table["reused"].fillna(0), start)
    chain = n * start + n * (n + 1) / 2
    seen, logits = np.where(target & ~prefill, seen, chain), np.where(prefill, 0, np.where(target, 1 + m, 1))
    if eagle.any():
        # The first pass reads pairs, of which a text has one less than tokens; the i-th level i of a tree.
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
    # Of each update of a stream its own: an encoder reads each source anew.
    begun = part.cycles[part.cycles["cycle"] == 0].set_index(["prompt", "update"])["context"]
    table["source"] = begun.reindex(pd.MultiIndex.from_frame(table[["prompt", "update"]])).to_numpy(float)
    return table


def _priced(table: pd.DataFrame, shape: Shape) -> pd.DataFrame:
    """`table` of one model's passes with their costs."""
    table = table.copy()
    n, start, seen, logits = (table[name].to_numpy() for name in ("tokens", "cached", "seen", "logits"))
    if shape.eagle is not None:
        return _priced_eagle(table, shape)
    share = table["share"].to_numpy()
    prefill = table["prefill"].to_numpy()
    source, encoded = np.zeros(len(table)), np.zeros(len(table))
    if shape.encoder is not None:  # the decoder has a prefix in place of the prompt
        source, prefix = table["source"].to_numpy(), shape.widths["prefix"]
        # Its prefill reads the source, unless another model of the same encoder has, and the prefix but one.
        # Carried tokens are read by the same pass, after the prefix.
        encoded = np.where(prefill & (n >= source + prefix - 1), source, 0)
        n = n - encoded
        start = np.where(prefill, 0, start - source + prefix)
        seen = np.where(prefill, n * (n + 1) / 2, seen - n * (source - prefix))
    # Kernels compute every score of the fed tokens and the slots, in rows of one length.
    most_fed, longest, most_logits, longest_source, most_encoded = (
        table.assign(fed=n, end=start + n, source=source, encoded=encoded)
        .groupby("pass")[name]
        .transform("max")
        .to_numpy()
        for name in ("fed", "end", "logits", "source", "encoded")
    )
    rows = table["rows"].to_numpy() / share
    table["flops"] = shape.flops(n, seen, logits, n * source)
    table["computed"] = rows * shape.flops(
        most_fed, most_fed * longest, most_logits, most_fed * longest_source
    )
    fed = table.assign(fed=n).groupby("pass")["fed"].transform("sum").to_numpy()
    table["weights"] = shape.weights(most_logits, fed) / share + n * shape.embedded
    table["cache_read"] = (start + n + source) * shape.slot
    table["cache_written"] = n * shape.slot
    table["activations"] = shape.activations(n, logits)
    if encoded.any():
        assert shape.encoder is not None
        idle = n == 0  # the decoder was not run
        table["weights"] = table["weights"].where(~idle, 0)
        table["weights"] += (encoded > 0) * shape.reader / share + encoded * shape.embedded
        table["cache_read"] = table["cache_read"].where(~idle, 0)
        table["cache_written"] += encoded * shape.slot
        table["flops"] += shape.reading(encoded, encoded**2)
        table["computed"] += rows * shape.reading(most_encoded, most_encoded**2)
        table["activations"] += shape.encoder.activations(encoded, 0)
        seen = seen + encoded**2
    return table.assign(seen=seen)


def _priced_eagle(table: pd.DataFrame, shape: Shape) -> pd.DataFrame:
    """`_priced` of an EAGLE drafter, each of whose passes is of one text."""
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
    table["activations"] = shape.activations(n, logits)
    return table
