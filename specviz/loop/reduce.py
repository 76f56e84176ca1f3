"""From finished cycles to the record's columns: logits are reduced to a few numbers, many cycles at once.

Predictions (``pred_*``, ranks) and the drafter's signals (``node_confidence`` ...) are of the plain
softmax, so that runs with other temperatures compare. ``node_p``, ``node_q`` and ``out_p`` are what was
tested and drawn from; in greedy decoding that is the plain softmax too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .clock import Clock
from .cycle import Cycle

TOP = 5  # candidates in each top list
HELD = 16  # cycles reduced at once
HELD_NUMBERS = 1 << 22  # or as soon as their logits have this many entries
BLOCKS = 128  # see `top`


class Reducer:
    """Collects cycles and turns them into rows of the record.

    Parameters
    ----------
    recorder : specviz.trace.Recorder
        Takes the rows.
    record : {"judged", "all", None}
        ``judged`` keeps the predictions that judging read, ``all`` every row of the pass, None the text alone.
    clock : Clock or None
        What the cycles' marks were taken with.
    """

    def __init__(self, recorder: Any, record: str | None, clock: Clock | None) -> None:
        self.recorder, self.record, self.clock = recorder, record, clock
        self.held: list[Cycle] = []
        self.size = 0
        self.last: tuple[Any, float] | None = (
            None  # the mark before, and its seconds from the start of the run
        )

    def add(self, cycle: Cycle) -> None:
        """Take a finished cycle."""
        self.held.append(cycle)
        if cycle.scores is not None:
            self.size += cycle.scores.numel()
        # One is held back: it may turn out to be the last before an interruption.
        if len(self.held) > HELD or self.size > HELD_NUMBERS:
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
        # From mark to mark: float32 event times lose precision over a long run, so each start builds on the last.
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
    drafter, target = Predictions(), Predictions()
    for cycle, row in zip(cycles, rows):
        row["pass_model"] = [name for name, *_ in cycle.passes]
        row["pass_tokens"] = [tokens for _, tokens, *_ in cycle.passes]
        row["pass_rows"] = [1] * len(cycle.passes)
        if cycle.control:
            row["control_name"], row["control_value"] = list(cycle.control), list(cycle.control.values())
        if cycle.draft is not None:
            describe(cycle, row)
            if cycle.draft.logits is not None and len(cycle.draft):
                drafter.add(cycle.draft.logits, range(len(cycle.draft)), row["node_token"])
            if cycle.scores is not None:
                add_pass(cycle, row, target, everything)
    drafter.reduce()
    target.reduce()
    for cycle, row in zip(cycles, rows):
        if cycle.draft is None:
            continue
        if cycle.draft.logits is not None and len(cycle.draft):
            part = drafter.take(len(cycle.draft), len(cycle.draft))
            row |= {"node_q": part.p, "node_confidence": part.top_p[:, 0], "node_entropy": part.entropy}
            row |= {"node_margin": part.top_p[:, 0] - part.top_p[:, 1]}
            row |= {"node_top_token": part.top_token, "node_top_p": part.top_p, "top_k": TOP}
        if cycle.scores is not None:
            judged = row.pop("judged")
            out = len(cycle.tokens) > len(cycle.verdict.path)
            part = target.take(len(row["pred_node"]), len(judged) + out)
            row |= {"pred_top_token": part.top_token, "pred_top_p": part.top_p, "pred_entropy": part.entropy}
            row["top_k"] = TOP
            n = len(cycle.draft)
            row["node_p"], row["node_rank"] = np.full(n, np.nan, np.float32), np.full(n, np.nan)
            row["node_p"][judged], row["node_rank"][judged] = part.p[: len(judged)], part.rank[: len(judged)]
            if out:
                row["out_p"][-1] = part.p[-1]
    tested(cycles, rows, everything)
    return rows


def describe(cycle: Cycle, row: dict[str, Any]) -> None:
    """What was drafted and decided, as far as the host knows it."""
    draft, verdict = cycle.draft, cycle.verdict
    assert draft is not None and verdict is not None
    n = len(draft)
    row |= {
        "depth": n if draft.is_chain else draft.depth,
        "width": min(n, 1) if draft.is_chain else draft.width,
    }
    row |= {"stop": draft.stop, "node_token": verdict.tokens, "node_parent": draft.parents}
    row |= {"node_position": draft.offsets if n else draft.parents, "node_status": cycle.status}
    row["node_source"] = [draft.source] * n if isinstance(draft.source, str) else list(draft.source)
    if verdict.u is not None:
        row["node_u"] = verdict.u
    row["out_p"] = np.full(len(cycle.tokens), np.nan, np.float32)
    if verdict.token_u is not None and len(cycle.tokens) > len(verdict.path):
        row["out_u"] = np.array([np.nan] * len(verdict.path) + [verdict.token_u])


def add_pass(cycle: Cycle, row: dict[str, Any], target: Predictions, everything: bool) -> None:
    """Queue the target's rows that are kept, and the probabilities that are wanted of them."""
    draft, verdict, status = cycle.draft, cycle.verdict, cycle.status
    assert draft is not None and verdict is not None
    read = [i for i, s in enumerate(status) if everything or s == "accepted"]
    judged = [i for i, s in enumerate(status) if everything or s in ("accepted", "rejected")]
    nodes = [-1, *read]
    place = {node: i for i, node in enumerate(nodes)}
    at = [place[parent] for parent in draft.parents[judged].tolist()]
    tokens = [verdict.tokens[i] for i in judged]
    if len(cycle.tokens) > len(verdict.path):  # the target's own token was emitted
        at.append(place[verdict.path[-1] if verdict.path else -1])
        tokens.append(verdict.token)
    scores = cycle.scores
    if len(nodes) < len(scores):
        first = len(nodes) == nodes[-1] + 2  # a chain's prefix needs no copy
        scores = scores[: len(nodes)] if first else scores[[node + 1 for node in nodes]]
    target.add(scores, at, tokens)
    row["pred_node"] = nodes
    row["judged"] = judged


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
        p = logits.softmax(-1)
        top_p = p.gather(1, places)
        # H = log sum exp(x) - sum p x, and log sum exp(x) = max x - log max p. A p of 0 may meet -inf.
        entropy = best[:, 0] - top_p[:, 0].log() - (p * logits).nansum(-1)
        at = torch.tensor(self.at, dtype=torch.long, device=logits.device)
        tokens = torch.tensor(self.tokens, dtype=torch.long, device=logits.device)
        own = logits[at, tokens]
        rank = (best[at] > own[:, None]).sum(1)
        self.p, self.top_p = p[at, tokens].cpu().numpy(), top_p.cpu().numpy()
        self.entropy, self.top_token = entropy.clamp_(min=0).cpu().numpy(), places.cpu().numpy()
        self.rank = rank.cpu().numpy()
        for i in np.flatnonzero(
            self.rank == best.shape[1]
        ):  # outside the top list: rare, so counted one by one
            self.rank[i] = int((logits[self.at[i]] > own[i]).sum())

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
    costs a third of a plain top-k on a CPU.
    """
    rows, vocabulary = logits.shape
    k = min(k, vocabulary)
    if vocabulary < 8192:
        return logits.topk(k)
    width = -(-vocabulary // BLOCKS)
    if vocabulary % BLOCKS:
        logits = torch.nn.functional.pad(logits, (0, width * BLOCKS - vocabulary), value=-torch.inf)
    blocks = logits.view(rows, BLOCKS, width)
    chosen = blocks.amax(-1).topk(k).indices
    values, at = blocks.gather(1, chosen[:, :, None].expand(-1, -1, width)).view(rows, -1).topk(k)
    return values, chosen.gather(1, at // width) * width + at % width


def tested(cycles: list[Cycle], rows: list[dict[str, Any]], everything: bool) -> None:
    """Probabilities as they were tested and drawn, where those are not the plain softmax's."""
    wanted: list[tuple[dict[str, Any], str, Any]] = []
    for cycle, row in zip(cycles, rows):
        if cycle.draft is None or cycle.verdict is None:
            continue
        verdict = cycle.verdict
        signals = {f"node_{name}": values for name, values in cycle.draft.signals.items()}
        for name, values in (signals | {"node_p": verdict.p, "node_q": verdict.q}).items():
            if values is not None and len(values):
                wanted.append((row, name, values))
        if verdict.token_p is not None and len(cycle.tokens) > len(verdict.path):
            wanted.append((row, "token_p", verdict.token_p[None]))
    tensors = [values.float() for *_, values in wanted if torch.is_tensor(values)]
    flat = torch.cat(tensors).cpu().numpy() if tensors else np.empty(0, np.float32)
    at = 0
    for row, name, values in wanted:
        if torch.is_tensor(values):
            values, at = flat[at : at + len(values)], at + len(values)
        if name == "node_p" and not everything:  # behind the first rejection nothing was tested
            judged = [s in ("accepted", "rejected") for s in row["node_status"]]
            values = np.where(judged, values, np.nan)
        row[name] = values
    for cycle, row in zip(cycles, rows):
        if cycle.draft is None or cycle.verdict is None:
            continue
        if "node_p" in row:
            path = cycle.verdict.path[: len(cycle.tokens)]
            row["out_p"][: len(path)] = row["node_p"][path]
        if "token_p" in row:
            row["out_p"][-1] = row.pop("token_p")[0]
