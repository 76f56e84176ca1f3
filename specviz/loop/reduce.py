"""From finished cycles to the record's columns: logits are reduced to a few numbers, many cycles at once.

Predictions (``pred_*``, ranks) and the drafter's signals (``node_confidence`` ...) are of the plain
softmax, so that runs with other temperatures compare. ``node_p``, ``node_q`` and ``out_p`` are what was
tested and drawn from; in greedy decoding that is the plain softmax too.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .clock import Clock
from .cycle import Cycle

TOP = 5  # candidates in each top list
HELD = 32  # cycles reduced at once: more rows would fall out of the processor cache
WAIT = 1.0  # seconds after which fewer are: a kill loses no more than that
HELD_NUMBERS = 1 << 22  # or as soon as their logits have this many entries
BLOCKS = 128  # see `top`


class Reducer:
    """Collects cycles and turns them into rows of the record.

    Parameters
    ----------
    recorder : specviz.trace.Recorder
        Takes the rows.
    record : {"judged", "all", None}
        ``judged`` keeps the predictions that judging read, ``all`` every row of the pass, None the text.
    clock : Clock or None
        What the cycles' marks were taken with.
    """

    def __init__(self, recorder: Any, record: str | None, clock: Clock | None) -> None:
        self.recorder, self.record, self.clock = recorder, record, clock
        self.held: list[Cycle] = []
        self.size = 0
        self.flushed = time.perf_counter()
        self.last: tuple[Any, float] | None = None  # the mark before, in seconds from the start of the run

    def add(self, cycle: Cycle) -> None:
        """Take a finished cycle."""
        self.held.append(cycle)
        if cycle.scores is not None:
            self.size += cycle.scores.numel()
        # One is held back: it may turn out to be the last before an interruption.
        late = time.perf_counter() - self.flushed > WAIT
        if late or len(self.held) > HELD or self.size > HELD_NUMBERS:
            last = self.held.pop()
            self.flush()
            self.held = [last]

    def interrupt(self) -> None:
        """Decoding stopped here: say so in the last cycle, if its text had not ended."""
        if self.held and self.held[-1].end is None:
            self.held[-1].end = "interrupted"

    def flush(self) -> None:
        """Hand over all that is held."""
        held, self.held, self.size = self.held, [], 0
        self.flushed = time.perf_counter()
        if not held:
            return
        if self.record is None:
            rows = [texts(cycle) for cycle in held]
        else:
            with torch.inference_mode():
                rows = reduce(held, self.record == "all")
            for cycle, row in zip(held, rows):
                self.times(cycle, row)
        for row in rows:
            self.recorder.add(row)

    def times(self, cycle: Cycle, row: dict[str, Any]) -> None:
        """Phase and pass times from the marks."""
        if self.clock is None:
            return
        between = self.clock.between
        marks = cycle.marks
        # Event times are float32 and lose precision over a long run, so each start builds on the last one.
        start = 0.0 if self.last is None else self.last[1] + between(self.last[0], marks[0])
        self.last = (marks[0], start)
        row["start"] = start
        row["duration"] = between(marks[0], marks[-1])
        if cycle.draft is None:  # the prefill: target first, then the drafter's
            row["forward_time"], row["draft_time"] = between(marks[0], marks[1]), between(marks[1], marks[2])
        else:
            phases = ("draft_time", "forward_time", "verify_time", "commit_time")
            row.update(zip(phases, map(between, marks, marks[1:])))
        row["pass_start"] = [start + between(marks[0], begin) for _, _, begin, _ in cycle.passes]
        row["pass_duration"] = [between(begin, end) for _, _, begin, end in cycle.passes]


def texts(cycle: Cycle) -> dict[str, Any]:
    """The columns that hold the text."""
    at = np.arange(cycle.keep, cycle.keep + len(cycle.tokens))
    row = {"prompt": cycle.prompt, "cycle": cycle.number, "context": cycle.context, "keep": cycle.keep}
    return row | {
        "end": cycle.end,
        "out_position": at,
        "out_token": cycle.tokens,
        "out_origin": cycle.origins,
    }


def reduce(cycles: list[Cycle], everything: bool) -> list[dict[str, Any]]:
    """Rows of the record, without times, for cycles that may differ in shape.

    Parameters
    ----------
    cycles : list of Cycle
    everything : bool
        Whether every row of the pass is kept, or those that judging read.
    """
    rows = [texts(cycle) for cycle in cycles]
    steps = [(cycle, row) for cycle, row in zip(cycles, rows) if cycle.draft is not None]
    work = Predictions()  # the drafter's rows, then the target's: one lot of calls for all
    for cycle, row in zip(cycles, rows):
        row["pass_model"] = [name for name, *_ in cycle.passes]
        row["pass_tokens"] = [tokens for _, tokens, *_ in cycle.passes]
        row["pass_rows"] = [1] * len(cycle.passes)
        if cycle.control:
            row["control_name"], row["control_value"] = list(cycle.control), list(cycle.control.values())
    for cycle, row in steps:
        describe(cycle, row)
        if logits := believed(cycle):
            work.add(logits, range(len(logits)), row["node_token"])
    for cycle, row in steps:
        if cycle.scores is not None:
            add_pass(cycle, row, work, everything)
    work.reduce()
    for cycle, row in steps:
        if n := len(believed(cycle)):
            part = work.take(n, n)
            row["node_q"], row["node_entropy"], row["node_confidence"] = (
                part.p,
                part.entropy,
                part.top_p[:, 0],
            )
            row["node_margin"] = part.top_p[:, 0] - part.top_p[:, 1]
            row["node_top_token"], row["node_top_p"] = part.top_token, part.top_p
            row["top_k"] = part.top_p.shape[1]
    for cycle, row in steps:
        if cycle.scores is not None:
            wanted, own = row.pop("wanted"), emitted_own(cycle)
            part = work.take(len(row["pred_node"]), len(wanted) + own)
            row["pred_entropy"], row["pred_top_token"], row["pred_top_p"] = (
                part.entropy,
                part.top_token,
                part.top_p,
            )
            row["top_k"] = part.top_p.shape[1]
            if n := len(row["node_token"]):
                row["node_p"], row["node_rank"] = np.full(n, np.nan, np.float32), np.full(n, np.nan)
                row["node_p"][wanted] = part.p[: len(wanted)]
                row["node_rank"][wanted] = part.rank[: len(wanted)]
            if own:
                row["out_p"][-1] = part.p[-1]
        tested(cycle, row, everything)
    return rows


def believed(cycle: Cycle) -> list[Tensor]:
    """The drafter's predictions where it chose each node, unsent ones included; empty if it gave none."""
    assert cycle.draft is not None
    logits = cycle.draft.logits
    rows = list(logits) if logits is not None else []
    unsent = cycle.verdict.unsent if cycle.verdict else None
    return rows + unsent.logits if unsent else rows


def emitted_own(cycle: Cycle) -> bool:
    """Whether the token behind the accepted ones was emitted."""
    return cycle.verdict is not None and len(cycle.tokens) > len(cycle.verdict.path)


def describe(cycle: Cycle, row: dict[str, Any]) -> None:
    """What was drafted and decided, as far as the host knows it."""
    draft, verdict = cycle.draft, cycle.verdict
    assert draft is not None
    assert verdict is not None
    n = len(draft)
    row["out_p"] = np.full(len(cycle.tokens), np.nan, np.float32)
    if verdict.token_u is not None and emitted_own(cycle):
        row["out_u"] = np.array([np.nan] * len(verdict.path) + [verdict.token_u])
    row["stop"], row["depth"], row["width"] = draft.stop, n, min(n, 1)
    row["node_token"], row["node_parent"], row["node_status"] = verdict.tokens, draft.parents, cycle.status
    row["node_position"] = draft.offsets if n else draft.parents
    row["node_source"] = [draft.source] * n if isinstance(draft.source, str) else list(draft.source)
    if not draft.is_chain:
        row["depth"], row["width"] = draft.depth, draft.width
    if n and verdict.u is not None:
        row["node_u"] = verdict.u
    if (more := verdict.unsent) is not None:
        parents = [*draft.parents.tolist(), *more.parents]
        position = [*draft.offsets.tolist()]
        for parent in more.parents:
            position.append(1 if parent < 0 else position[parent] + 1)
        row |= {"node_parent": np.array(parents), "node_position": np.array(position)}
        row["node_token"] = verdict.tokens + more.tokens
        row["node_status"] = cycle.status + [more.status] * len(more.tokens)
        row["node_source"] += [draft.source if isinstance(draft.source, str) else "model"] * len(more.tokens)
        if verdict.u is not None:
            row["node_u"] = np.append(verdict.u, np.full(len(more.tokens), np.nan))


def add_pass(cycle: Cycle, row: dict[str, Any], work: Predictions, everything: bool) -> None:
    """Queue the target's rows that are kept, and the probabilities that are wanted of them.

    Of an unsent node too the target's opinion is kept, where the pass happened to hold it.
    """
    draft, verdict = cycle.draft, cycle.verdict
    assert draft is not None
    assert verdict is not None
    if not verdict.tokens and verdict.unsent is None:  # nothing drafted: the target's own token alone
        assert verdict.token is not None
        work.add(cycle.scores, [0], [verdict.token])
        row["pred_node"], row["wanted"] = [-1], []
        return
    keep = ("accepted", "rejected", "unsent", "pruned")
    nodes = [-1, *(i for i, s in enumerate(cycle.status) if everything or s == "accepted")]
    place = {node: i for i, node in enumerate(nodes)}
    parents = row["node_parent"].tolist()
    wanted = [
        i for i, s in enumerate(row["node_status"]) if (everything or s in keep) and parents[i] in place
    ]
    at = [place[parents[i]] for i in wanted]
    tokens = [row["node_token"][i] for i in wanted]
    if emitted_own(cycle):
        at.append(place[verdict.path[-1] if verdict.path else -1])
        tokens.append(verdict.token)
    scores = cycle.scores
    if len(nodes) < len(scores):
        first = len(nodes) == nodes[-1] + 2  # a chain's prefix needs no copy
        scores = scores[: len(nodes)] if first else scores[[node + 1 for node in nodes]]
    work.add(scores, at, tokens)
    row["pred_node"] = nodes
    row["wanted"] = wanted


class Predictions:
    """Rows of logits of many cycles, reduced together: top-k, entropy, and chosen tokens' p and rank."""

    def __init__(self) -> None:
        self.blocks: list[Tensor] = []
        self.rows = 0
        self.at: list[int] = []
        self.tokens: list[int] = []
        self.row = self.pair = 0  # how far `take` has come

    def add(self, logits: Any, at: Any, tokens: list[int]) -> None:
        """Queue rows [n, vocabulary] (or a list of rows) and ask for ``p[at[i], tokens[i]]``."""
        self.blocks.append(torch.stack(logits) if isinstance(logits, list) else logits)
        self.at.extend(self.rows + i for i in at)
        self.tokens.extend(tokens)
        self.rows += len(logits)

    def reduce(self) -> None:
        """Do the work, once, on the device; then bring the few numbers over."""
        if not self.blocks:
            return
        logits = self.blocks[0] if len(self.blocks) == 1 else torch.cat(self.blocks)
        self.blocks = []
        best, places = top(logits, TOP)
        tied = best[:, 0] == best[:, 1]
        if bool(tied.any()):  # the first of equals stands first, as argmax has it
            rows = tied.nonzero()[:, 0]
            first = logits[rows].argmax(-1)
            at = (places[rows] == first[:, None]).long()
            at = torch.where(at.any(1), at.argmax(1), places.shape[1] - 1)
            places[rows, at], places[rows, 0] = places[rows, 0], first
        p = logits.softmax(-1)
        top_p = p.gather(1, places)
        # H = log sum exp(x) - sum p x, and log sum exp(x) = max x - log max p. A p of 0 may meet -inf.
        # (nansum is ten times the price of a dot product, so it is kept for the rows that need it.)
        bound = best[:, 0] - top_p[:, 0].log()
        entropy = bound - torch.linalg.vecdot(p, logits)
        at = torch.tensor(self.at, dtype=torch.long, device=logits.device)
        tokens = torch.tensor(self.tokens, dtype=torch.long, device=logits.device)
        own = logits[at, tokens]
        rank = (best[at] > own[:, None]).sum(1)
        self.p, self.top_p = p[at, tokens].cpu().numpy(), top_p.cpu().numpy()
        self.entropy, self.top_token = entropy.clamp_(min=0).cpu().numpy(), places.cpu().numpy()
        if len(unsure := np.flatnonzero(np.isnan(self.entropy))):
            some = torch.from_numpy(unsure).to(logits.device)
            exact = bound[some] - (p[some] * logits[some]).nansum(-1)
            self.entropy[unsure] = exact.clamp_(min=0).cpu().numpy()
        self.rank = rank.cpu().numpy()
        if len(beyond := np.flatnonzero(self.rank == best.shape[1])):  # outside the top list: counted in full
            some = torch.from_numpy(beyond).to(logits.device)
            self.rank[beyond] = (logits[at[some]] > own[some, None]).sum(1).cpu().numpy()

    def take(self, rows: int, pairs: int) -> Predictions:
        """The next cycle's part."""
        part = Predictions()
        a, b = slice(self.row, self.row + rows), slice(self.pair, self.pair + pairs)
        part.entropy, part.top_token, part.top_p = self.entropy[a], self.top_token[a], self.top_p[a]
        part.p, part.rank = self.p[b], self.rank[b]
        self.row, self.pair = a.stop, b.stop
        return part


def top(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest of each row, best first: values and indices [rows, k].

    Over a large vocabulary the k best lie in the k blocks with the largest maxima: finding those first
    costs a half to a third of a plain top-k on a CPU.
    """
    rows, vocabulary = logits.shape
    k = min(k, vocabulary)
    if vocabulary < 2048:
        return logits.topk(k)
    width = max(64, -(-vocabulary // BLOCKS))
    blocks_of_row = -(-vocabulary // width)
    if spare := width * blocks_of_row - vocabulary:
        logits = torch.nn.functional.pad(logits, (0, spare), value=-torch.inf)
    blocks = logits.view(rows, blocks_of_row, width)
    chosen = blocks.amax(-1).topk(k).indices
    values, at = blocks.gather(1, chosen[:, :, None].expand(-1, -1, width)).view(rows, -1).topk(k)
    return values, chosen.gather(1, at // width) * width + at % width


def tested(cycle: Cycle, row: dict[str, Any], everything: bool) -> None:
    """Signals, and probabilities as they were tested and drawn where those are not the plain softmax's."""
    draft, verdict = cycle.draft, cycle.verdict
    assert draft is not None
    assert verdict is not None
    sent, n = len(draft), len(row["node_token"])
    if verdict.token_p is not None and emitted_own(cycle):
        row["out_p"][-1] = float(verdict.token_p)
    if n == 0:
        return
    for name, values in draft.signals.items():
        row[f"node_{name}"] = padded(values, n)
    if verdict.unsent is not None:
        for name, values in verdict.unsent.signals.items():
            row.setdefault(f"node_{name}", np.full(n, np.nan))[sent:] = host(values)
    if verdict.q is not None:
        row["node_q"] = padded(verdict.q, n)
    if verdict.p is not None:
        row["node_p"] = padded(verdict.p, n)
        if not everything:  # behind the first rejection nothing was tested
            row["node_p"][[s not in ("accepted", "rejected") for s in row["node_status"]]] = np.nan
    if "node_p" in row:
        path = verdict.path[: len(cycle.tokens)]
        row["out_p"][: len(path)] = row["node_p"][path]


def host(values: Any) -> np.ndarray:
    """A tensor or array on the host."""
    return values.float().cpu().numpy() if torch.is_tensor(values) else np.asarray(values)


def padded(values: Any, n: int) -> np.ndarray:
    """`values` of the sent nodes as a new array of `n`; unsent nodes have none."""
    found = host(values)
    if len(found) == n:
        return found.copy()
    return np.append(found, np.full(n - len(found), np.nan if found.dtype != bool else False))
