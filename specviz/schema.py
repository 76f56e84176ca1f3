"""The record's schema in one place: the meaning of every column of a trace.

One run is one Parquet file, and one row is one draft-verify cycle. All methods write the same
columns; values that a method does not have are null. List columns of one group (``node_*`` ...) have
the same length within a row, except the flat top-k lists, which are `top_k` times as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from specviz.errors import ParameterError

# 2: tails of the dense record, a method's memory, calibration; 3: updates of a stream;
# 4: more confidence signals, the threshold a node met and its gap; kinds and shapes of models; 5: canvases;
# 6: nodes for which a tree had no room are below_budget
VERSION = 6
OLDER = (5,)  # older versions that can be read, by `RENAMED`
# Values of older versions by column, and today's. Nodes over a tree's budget were called pruned.
RENAMED = {"node_status": {"pruned": "below_budget"}}

STATUSES = ("below_budget", "unsent", "unjudged", "accepted", "rejected", "cut", "unreviewed")
PHASES = ("draft", "forward", "verify", "commit")  # phases of a cycle, as named in `Method.pseudocode`
ORIGINS = ("draft", "unreviewed", "bonus", "correction", "resampled", "fallback", "plain", "parallel")
UNKNOWN = 2**31 - 1  # in a replay: a token that was certainly drafted but not recorded
ENDS = ("eos", "length", "context", "interrupted")
ROLLBACK = ("bild", "early_exit")  # methods with BiLD's policies: they fall back, and roll back by -ln p
EXACTNESS = ("exact", "exact up to ties", "exact in law", "lossy")  # from the strictest to the loosest


@dataclass(frozen=True)
class Column:
    """One column: its name, its type (Arrow's spelling), and what it holds."""

    name: str
    type: str
    meaning: str


# Names that a node signal cannot have: the other columns of `Trace.nodes` and of `specviz.metrics.signals`.
RESERVED = frozenset((
    "run", "method", "prompt", "row", "update", "cycle", "node", "token", "text", "parent", "depth", "position",
    "source", "status", "rank", "top_token", "top_p", "ensemble", "softmax_margin", "accepted", "first",
))  # fmt: skip
LEVELS = ("node", "cycle")
NAME_LIMIT = 64  # maximum characters of a signal's name
WORD_LIMIT = 256  # maximum characters of a unit, a meaning, a line of pseudocode ...
LINES_LIMIT = 64  # ... and maximum lines of pseudocode


@dataclass(frozen=True)
class Signal:
    """A number that a method records for each drafted node or for each cycle, declared once.

    Parameters
    ----------
    name : str
        Its key in ``Draft.signals``, or in ``Session.control`` for a signal of the cycle.
    unit : str
        ``tokens``, ``nats`` ...; empty for a pure number.
    meaning : str
        One sentence.
    level : {"node", "cycle"}

    Raises
    ------
    ParameterError
        If the name is not an identifier or is that of another column, the level is neither, or the unit or
        the meaning is no text or too long for the record.
    """

    name: str
    unit: str = ""
    meaning: str = ""
    level: str = "node"

    def __post_init__(self) -> None:
        if self.level not in LEVELS:
            raise ParameterError(f"signal {self.name!r}: level is 'node' or 'cycle', not {self.level!r}")
        if not (is_signal(self.name) if self.level == "node" else is_name(self.name)):
            raise ParameterError(
                f"a {self.level} signal cannot be called {self.name!r}: take an identifier of at most "
                f"{NAME_LIMIT} characters that no other column of the record has"
            )
        for field, text in (("unit", self.unit), ("meaning", self.meaning)):
            if not is_word(text):
                raise ParameterError(
                    f"signal {self.name!r}: {field} is a text of at most {WORD_LIMIT} characters, "
                    f"got {text!r:.60}"
                )

    @property
    def heading(self) -> str:
        """Name and unit, as a label shows them."""
        return self.name.replace("_", " ") + (f", {self.unit}" if self.unit else "")


def is_word(text: str) -> bool:
    """Whether a run's metadata can hold a text as a unit, a meaning or a line of pseudocode."""
    return isinstance(text, str) and len(text) <= WORD_LIMIT


def is_name(name: Any) -> bool:
    """Whether a text can name a signal of a cycle."""
    return isinstance(name, str) and name.isidentifier() and len(name) <= NAME_LIMIT


def is_signal(name: Any) -> bool:
    """Whether a text can name a signal of a node."""
    return is_name(name) and name not in RESERVED


def check_signals(signals: dict[str, Any], nodes: int) -> None:
    """Check that the record can hold a draft's signals.

    Raises
    ------
    ParameterError
        If one has a name that a signal cannot have, or not one value for each node.
    """
    for name, values in signals.items():
        if not is_signal(name):
            raise ParameterError(f"a node signal cannot be called {name!r}: choose another name")
        if not hasattr(values, "__len__"):
            raise ParameterError(f"the signal {name!r} is {values!r:.40}: give one value for each node")
        if len(values) != nodes:
            raise ParameterError(f"the signal {name!r} has {len(values)} values for {nodes} nodes")


def column_of(signal: str) -> str:
    """The column under which a node signal is passed to the recorder."""
    return f"node_{signal}" if f"node_{signal}" in _NAMES else f"{_PREFIX}{signal}"


def signal_of(column: str) -> str | None:
    """The node signal that `column_of` gave this name, if it has no fixed column; otherwise None."""
    name = column.removeprefix(_PREFIX)
    return name if name != column and is_signal(name) else None


def declared(run: dict[str, Any], level: str) -> dict[str, Signal]:
    """The signals of a level that a run's metadata declares, by name."""
    return {s["name"]: Signal(**s) for s in run.get("signals") or [] if s["level"] == level}


def as_metadata(signals: tuple[Signal, ...]) -> list[dict[str, str]] | None:
    """Signals in the form of the run's metadata; None if there are none."""
    return [asdict(signal) for signal in signals] or None


# fmt: off
COLUMNS: tuple[Column, ...] = (
    # which cycle
    Column("run", "string", "Identifier of the run; one run is one file."),
    Column("method", "string", "The method's name, as sv.generate takes it."),
    Column("prompt", "int32", "Index of the prompt in the run."),
    Column("row", "int32", "Row of the batch that decoded it."),
    Column("seed", "uint64", "Seed of the run's random numbers."),
    Column("update", "int32", "Which update of a stream (re-translation), from 0; 0 where the source stands still."),
    Column("cycle", "int32", "Number of the cycle within prompt and update; 0 is the prefill."),
    Column("context", "int32", "Committed tokens before the cycle, the prompt included."),
    Column("keep", "int32", "How many earlier output tokens survive before this cycle's output is appended."),
    Column("depth", "int32", "Length of the draft's longest path."),
    Column("width", "int32", "Nodes on the draft's broadest level."),
    Column("stop", "string", "Why drafting stopped: length, fallback, eos, room, none ..."),
    Column("end", "string", "What ended the prompt's decoding in this cycle: eos, length, context, interrupted; else null."),
    # a canvas of masked cells (diffusion); null elsewhere
    Column("block", "int32", "The current block when the cycle began, from 0."),
    Column("refreshed", "bool", "Whether the pass computed every position, not the current block alone."),
    Column("control_name", "list<string>", "Names of the controller's values in this cycle."),
    Column("control_value", "list<double>", "Those values."),
    # an update of a stream, the level above the cycle; null if the source does not change
    Column("source", "string", "Text of the source so far; in the update's first cycle (0), else null."),
    Column("arrival", "double", "When the update came, in seconds of the stream's own clock; in cycle 0."),
    Column("reused", "int32", "Tokens of the update's prompt whose keys and values were kept; in cycle 0."),
    Column("shown", "int32", "How many tokens of the update's output are displayed, the others being masked; in its last cycle."),
    # time, in seconds; start counts from the start of the run
    Column("start", "double", "When the cycle began."),
    Column("duration", "double", "The whole cycle, recording excluded. Rows of a batch that ran together have the same start and times: those of all."),
    Column("draft_time", "double", "Time spent drafting."),
    Column("forward_time", "double", "The target's pass."),
    Column("verify_time", "double", "Deciding what to keep."),
    Column("commit_time", "double", "Gathering the cache and learning from the pass."),
    # what was drafted
    Column("node_token", "list<int32>", "Token of each node; in a replay UNKNOWN where it was not recorded."),
    Column("node_parent", "list<int32>", "Parent of each node; -1 is the root."),
    Column("node_position", "list<int32>", "Offset from the root's position (1 is the next token); of a canvas the cell it places, 0 the first of the answer."),
    Column("node_source", "list<string>", "Where the node came from: model, store, prompt, layer ..."),
    Column("node_status", "list<string>", "below_budget (of a tree, its score too low for the nodes that are sent), unsent, unjudged (after a rejection, not tried because a sibling was accepted, or only read: a window), accepted, rejected, cut, unreviewed (emitted, never sent to the target)."),
    Column("node_q", "list<float>", "The drafter's probability of the token, as it was sampled and tested; of siblings that are tried one after another, what is left of it without the rejected ones (where nothing was sampled, of 1)."),
    Column("node_p", "list<float>", "The target's probability of the token, as it was tested: of siblings that were drawn one after another, what the rejected ones left of it; in sampled re-translation with its bias β (greedy: the plain probability)."),
    Column("node_rank", "list<int32>", "Rank of the token in the target's distribution; 0 is the top. Ties share the better rank."),
    Column("node_u", "list<float>", "The uniform number that the accept decision used."),
    Column("node_confidence", "list<float>", "The drafter's largest probability where it chose the node."),
    Column("node_entropy", "list<float>", "Entropy of the drafter's distribution there, in nats."),
    Column("node_margin", "list<float>", "The drafter's largest probability minus its second largest there."),
    Column("node_logit_margin", "list<float>", "The drafter's largest logit minus its second largest there."),
    Column("node_variance", "list<float>", "Variance of the drafter's logits there, over the vocabulary."),
    Column("node_score", "list<float>", "The score by which the method ranked the node, or its weighted confidence; of a canvas the drafted token's log-odds."),
    Column("node_met", "list<bool>", "Whether the node met the drafter's threshold."),
    Column("node_threshold", "list<float>", "The largest gap that the verifier allowed the node, in nats."),
    Column("node_gap", "list<float>", "The target's largest log probability there minus the token's, in nats; null where nothing was judged."),
    Column("signal_name", "list<string>", "Names of the cycle's node signals that have no column of their own."),
    Column("signal_value", "list<float>", "Their values, flat [signals x nodes]: all nodes of the first signal, then of the next."),
    Column("node_top_token", "list<int32>", "The drafter's top_k tokens where it chose each node, flat [nodes x top_k]."),
    Column("node_top_p", "list<float>", "Their probabilities."),
    # what the target predicted: at the root (-1) and at each node it read
    Column("pred_node", "list<int32>", "After which node the prediction stands; -1 is the root."),
    Column("pred_position", "list<int32>", "Of a canvas: which of its cells was read; null elsewhere."),
    Column("pred_odds", "list<float>", "Of a canvas: log-odds of the cell's likeliest token, which determines the most confident cell; null elsewhere."),
    Column("pred_entropy", "list<float>", "Entropy of the target's distribution there, in nats."),
    Column("pred_top_token", "list<int32>", "The target's top_k tokens, best first, flat [predictions x top_k]."),
    Column("pred_top_p", "list<float>", "Their probabilities."),
    Column("top_k", "int32", "How many candidates each top list holds."),
    # what the cycle emitted
    Column("out_position", "list<int32>", "Position in the output; 0 is the first generated token. Of a canvas the cell, in the order of unmasking."),
    Column("out_token", "list<int32>", "Token."),
    Column("out_origin", "list<string>", "draft (accepted), unreviewed (drafted, never sent to the target), bonus, correction, resampled, fallback, plain, parallel (placed in the same pass as a more confident cell)."),
    Column("out_p", "list<float>", "The target's probability of the token."),
    Column("out_u", "list<float>", "The uniform number it was sampled with; null where none was."),
    Column("out_order", "list<int32>", "Of a canvas: its place in the order of unmasking, from 0; null elsewhere."),
    Column("out_odds", "list<float>", "Of a canvas: its log-odds in the pass that placed it; null elsewhere."),
    # the dense record: both models' predictions at each emitted token's place, given the final text before it
    Column("out_top_token", "list<int32>", "The target's top_k tokens there, best first, flat [tokens x top_k]."),
    Column("out_top_p", "list<float>", "Their probabilities."),
    Column("out_draft_token", "list<int32>", "The drafter's top_k tokens there, flat; 0 without a probability where its own context was full."),
    Column("out_draft_p", "list<float>", "Their probabilities."),
    Column("out_draft_rated", "list<float>", "The target's probability of the drafter's first token there."),
    # and its tails: the drafter's continuation after its first token, where that is not the text's
    Column("tail_position", "list<int32>", "Output position at which the drafter's first token stands that the entry's tail follows."),
    Column("tail_token", "list<int32>", "What the drafter writes after it, one entry per token, to an end token or as far as the run's 'dense' says."),
    Column("tail_p", "list<float>", "The drafter's probability of the token, its largest there."),
    Column("tail_margin", "list<float>", "That minus its second largest."),
    # each forward pass
    Column("pass_model", "list<string>", "Which model: target, draft."),
    Column("pass_rows", "list<int32>", "Rows in the pass."),
    Column("pass_tokens", "list<int32>", "Tokens fed to it; of several rows this one's own."),
    Column("pass_start", "list<double>", "When it began, seconds from the start of the run."),
    Column("pass_duration", "list<double>", "How long it took, seconds; a pass of several rows stands with each of them, at the same start."),
)
# fmt: on

_NAMES = frozenset(c.name for c in COLUMNS)
_PREFIX = "signal:"

# Column groups whose lists have one entry per node, prediction, output token, token of a tail, or pass.
GROUPS = ("node", "pred", "out", "tail", "pass")
FLAT: tuple[str, ...] = ("node_top_token", "node_top_p", "pred_top_token", "pred_top_p")
ADDED = ("signal_name", "signal_value")  # columns that earlier files of this version lack; null there
FLAT += ("out_top_token", "out_top_p", "out_draft_token", "out_draft_p")

# The run's metadata in the file (key b"specviz", JSON).
Metadata: TypeAlias = Mapping[str, Any]  # of a run, by the names of `RUN_FIELDS`
RUN_FIELDS: dict[str, str] = {
    "schema": "Version of this schema.",
    "run": "Identifier.",
    "method": "Method name.",
    "parameters": "Every parameter of the method with its value.",
    "sampling": "temperature, top_k, top_p, seed, max_new_tokens.",
    "exactness": "exact, exact up to ties, exact in law, or lossy: of method, parameters, sampling and number format.",
    "signals": "What the method declares of its signals, a list of {name, unit, meaning, level: node or cycle}; null where it declares none.",
    "pseudocode": "The method's own loop as [[when, line], ...]; see Method.pseudocode.",
    "model": "The target: {name, parameters, max_length, kind: causal, encoder-decoder or diffusion, shape, content, source}; shape has the counts and widths that its costs follow from (SHAPE_FIELDS), null where they are not known; content is the SHA-256 of its weights and tokenizer; source says of weights that were read from another format which it was, and how.",
    "draft": "The drafter: as for the target, plus kernels, its matrix layout; null where there is none.",
    "dense": "The drafter of the dense record: {name, parameters, max_length}, and tail: most tokens of a tail.",
    "canvas": "Of a diffusion model's run: {length, block, cache: none or dual, refresh, cache_rule, mask: the mask token's id, shift}; null elsewhere.",
    "memory": "What the drafter remembered when the run began and when it ended: {start, end}, each {state: cold or warm, keep, known, bytes}; null where it never does.",
    "calibration": "Where the draft size was measured to be the best: {parameter, value, device, created}; null where it was given.",
    "tokenizer": "Name of the tokenizer.",
    "eos": "Ids that end a text.",
    "prompts": "For each prompt {tokens} (its ids) and, where it had them, id, turn, kind, language, reference and segmented (whether, or by what, its text is split into words). A redacted one has length, its number of tokens, in place of tokens, id and reference; {selected: false} stands for one that a saved selection leaves out.",
    "pieces": "Bytes (base64) of every token id that occurs in the run; the recorder fills it.",
    "machine": "{processor, device, system}.",
    "threads": "Threads that the backend used.",
    "backend": "What computed: {name: torch or llama.cpp, threads}; of torch also kernels (the matrix layout) and invariant (whether results were independent of batching), of llama.cpp system (how it was built), gpu_layers, flash_attention and the file's type.",
    "dtype": "Number format of the target.",
    "versions": "Versions of Python, specviz and the libraries that ran.",
    "created": "When the run began, ISO 8601, UTC.",
    "record": "What was kept: judged, all or dense.",
    "replayed": "For cycles that a what-if replayed: from which run, and what is left out; null for a run.",
    "timing": "How phase times were taken: host clock, device events or synchronised; and its stated cost.",
    "peak_memory": "{process, device}: peak resident bytes of the process so far, earlier runs in it included; device is null where there is none.",
    "complete": "Whether the run ended by itself.",
    "stopped": "Why it did not, where it did not.",
}

# Fields of a model's shape. An encoder-decoder's is its decoder's; it also has "prefix", the tokens that
# begin every text of the decoder, and "encoder", the encoder's shape.
SHAPE_FIELDS: dict[str, str] = {
    "layers": "How many.",
    "hidden": "Width of what goes from layer to layer.",
    "heads": "Query heads.",
    "kv_heads": "Key-value heads.",
    "head_dim": "Width of a head.",
    "feed_forward": "Inner width of the feed-forward network.",
    "gated": "Whether that has three matrices, not two.",
    "vectors": "Elements of the norms and biases of a layer.",
    "last": "Of those that stand in no layer.",
    "vocabulary": "Rows of the head.",
    "tied": "Whether the head is the embedding.",
    "weight_bytes": "Bytes of a parameter; of a quantized file the mean.",
    "cache_bytes": "Bytes of an element of the KV cache.",
    "activation_bytes": "Bytes of an element of what goes from matrix to matrix.",
}
# A mixture's feed_forward is the inner width of one expert.
EXPERT_FIELDS: dict[str, str] = {
    "count": "Experts of a layer.",
    "chosen": "How many of them a token meets.",
    "elements": "Elements of one expert's matrices.",
    "shared": "Elements of the matrices next to the experts that every token meets: the router, a shared expert.",
}
ENCODER_FIELDS = tuple(SHAPE_FIELDS)[:9]
# An EAGLE drafter's shape is that of its one layer, with the head that it uses; "eagle" describes the part
# before the layer. Its first pass of a cycle reads pairs of the text, the others nodes of the tree.
EAGLE_FIELDS: dict[str, str] = {
    "read": "Width of what the attention reads of a token.",
    "entered": "Elements of the matrix that every token meets before the attention; 0: none.",
    "fused": "Elements of the matrix that fuses the target's states, which pairs meet and nodes do not; 0: none.",
}
