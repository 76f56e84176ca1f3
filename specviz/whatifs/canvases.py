"""Replay SSD with another draft length or tree, from the passes of stepwise decoding or of SSD itself.

Why this is exact: SSD writes stepwise decoding's tokens in the same order, so at every state the record says
which cell comes next with which token. What SSD drafts follows from what the verified passes predicted for
each cell (`specviz.rules.cells`); the latest pass that read a cell counts. SSD verifies every state up to its
current one, and stepwise decoding has a pass at each of them. That pass reads the same cells: the masked ones
of the current block and of the next one, if it computed them, and under the same cache policy it computes the
same. Refreshes occur at the same states, as both come with every R-th token. Nothing else matters.

What can differ: a pass over many canvases rounds differently from a pass over one. Cycles in which choices
differ by at most one step of the grid on which odds are compared are counted (`CanvasWalk.close`). From a
text's first one on, its cycles are a model, unless the run's passes round alike (an invariant model).
Log-odds are recorded in float32, which represents the grid of float32 runs, 2^-12, exactly. For a float64 run
the record is coarser than the grid; choices that it cannot distinguish count as close.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specviz.draft import Draft, depths
from specviz.metrics.cycles import ratio
from specviz.rules.cells import COARSE, judge_cells, pick_cells
from specviz.rules.speculative import next_origin
from specviz.trace import Reading, Trace, Written
from specviz.whatifs.cell import recorded, replayed_run
from specviz.whatifs.texts import Row, Setting
from specviz.whatifs.walk import STOPPED, TIE, Place, Step, Walk

NO_PASS = "no pass at this state is in the record"
SINGLE = 2.0**-23  # relative spacing of float32


@dataclass
class CanvasWalk(Walk):
    """A replayed canvas; `close` is the number of cycles with a near-tie."""

    close: int = 0


class Memory:
    """For each cell, the prediction of the latest verified pass that read it."""

    def __init__(self, cells: int) -> None:
        self.token = np.zeros(cells, np.int64)
        self.odds = np.full(cells, -np.inf)
        self.lead = np.full(cells, np.inf)  # of the token over the second one, in nats

    def learn(self, reading: Reading) -> None:
        """Store what a pass predicted."""
        self.token[reading.cell], self.odds[reading.cell] = reading.token, reading.odds
        self.lead[reading.cell] = lead(reading)


def ssd(
    text: Written, dtype: str, sure: float, alike: bool, draft_length: int, tree: str, tail: str
) -> CanvasWalk:
    """Replay the cycles that SSD would have had.

    Parameters
    ----------
    text : Written
    dtype : str
        Number format of the run.
    sure : float
        Log-odds from which on cells count as equally sure.
    alike : bool
        Whether passes of all shapes round alike; otherwise, the walk is only a model from a near-tie on.
    draft_length, tree, tail
        SSD's parameters.
    """
    walk = CanvasWalk()
    memory, masked, start = Memory(text.length), np.ones(text.length, bool), 0
    while start < len(text):
        room = text.length - start
        if text.refresh:
            room = min(room, text.refresh - start % text.refresh)
        rank = np.minimum(memory.odds, sure)
        cells, parents, stop = pick_cells(masked, rank, text.block, room, draft_length, tree, tail)
        draft = Draft(memory.token[cells], parents, positions=cells)
        path, status = judge(text, start, draft)
        end = min(start + len(path) + 1, len(text))  # the pass places one more, unless the text has ended
        states, count, n = range(start, end), len(walk.steps) + 1, len(draft)
        if missing := [state for state in states if state not in text.readings]:
            walk.place = Place(text.prompt, count, missing[0], None, NO_PASS)
            return walk
        if (n and unsure(masked, memory, text.block, draft_length, dtype, sure)) or any(
            contested(text, state, dtype, sure) for state in states
        ):
            walk.close += 1
            if not alike and walk.modelled is None:
                walk.modelled = Place(text.prompt, count, start, None, TIE)
        odds = memory.odds[cells]
        for state in states:
            memory.learn(text.readings[state])
        masked[text.cell[start:end]] = False
        walk.nodes.append(
            {
                "node_token": draft.tokens.tolist(),
                "node_parent": parents.tolist(),
                "node_position": cells.tolist(),
                "node_status": status,
                "node_score": odds.tolist(),
            }
        )
        cut = status.count("cut")
        walk.steps.append(Step(text.prompt, count, start, n, n, n, n, len(path), cut, 0, end - start, stop))
        start = end
    if text.end not in ("eos", "length"):
        walk.place = Place(text.prompt, len(walk.steps) + 1, start, None, STOPPED)
    return walk


def accepted_share(texts: list[Written], walks: list[CanvasWalk], eos: frozenset[int]) -> float:
    """A/O: the drafted share of the texts, as `specviz.metrics.accepted_share`, which counts no padding."""
    right = output = 0
    for text, walk in zip(texts, walks):
        drafted = np.array([i < step.accepted for step in walk.steps for i in range(step.emitted)], bool)
        inside = text.cell <= text.cell[np.isin(text.token, list(eos))].min(initial=text.length)
        right, output = right + int(drafted[inside[: len(drafted)]].sum()), output + int(inside.sum())
    return ratio(right, output)


def judge(text: Written, start: int, draft: Draft) -> tuple[list[int], list[str]]:
    """The nodes that stepwise decoding places next, one after another, and every node's status."""
    states = iter(range(start, len(text)))

    def place(_: int) -> tuple[int, int] | None:
        state = next(states, None)
        return None if state is None else (int(text.cell[state]), int(text.token[state]))

    path, status = judge_cells(draft, place)
    if start + len(path) == len(text) and path:  # the text ends with a drafted token: cut those below
        for node in np.flatnonzero(draft.mask[:, path[-1]])[1:].tolist():
            status[node] = "cut"
    return path, status


# -- near-ties --------------------------------------------------------------------------------------


def near(odds: np.ndarray, others: np.ndarray, dtype: str, sure: float) -> np.ndarray:
    """Whether odds are too close for the run's grid or the record to distinguish reliably."""
    width = SINGLE * np.maximum(np.abs(odds), np.abs(others)) if dtype == "float64" else COARSE
    settled = (odds == sure) & (others == sure)  # equally sure, whatever they were
    return (np.abs(odds - others) <= width) & ~settled


def lead(reading: Reading) -> np.ndarray:
    """How far each cell's likeliest token leads the second, in nats."""
    if reading.p.shape[1] < 2:
        return np.full(len(reading.cell), np.inf)
    with np.errstate(divide="ignore", invalid="ignore"):
        nats = np.log(reading.p[:, 0].astype(np.float64)) - np.log(reading.p[:, 1].astype(np.float64))
    return np.where(np.isfinite(nats), nats, np.inf)


def unsure(
    masked: np.ndarray, memory: Memory, block: int, draft_length: int, dtype: str, sure: float
) -> bool:
    """Whether different rounding could draft other cells, another order or another token."""
    rank = np.minimum(memory.odds, sure)
    order = pick_cells(masked, rank, block, len(masked), draft_length + 1, "chain", "shorter").cells
    odds = rank[order]
    same = order[1:] // block == order[:-1] // block
    least = 2 * SINGLE if dtype == "float64" else COARSE  # the lead of a token follows from two probabilities
    return bool((near(odds[1:], odds[:-1], dtype, sure) & same).any() or (memory.lead[order] <= least).any())


def contested(text: Written, state: int, dtype: str, sure: float) -> bool:
    """Whether different rounding could unmask another cell at a state."""
    reading = text.readings[state]
    odds = np.sort(reading.rank[reading.cell // text.block == text.cell[state] // text.block])[-2:]
    return len(odds) > 1 and bool(near(odds[1:], odds[:1], dtype, sure).any())


# -- as a trace -------------------------------------------------------------------------------------


def build(
    trace: Trace, texts: list[Written], walks: list[CanvasWalk], parameters: Setting, label: str
) -> Trace:
    """Make a trace of replayed cycles with the metadata of their run, without times."""
    run = replayed_run(trace)
    names = ("block", "cache", "refresh", "cache_rule", "sure", "whole")
    shared = {name: value for name, value in run["parameters"].items() if name in names}
    if run["method"] != "ssd":
        run |= {"exactness": "exact up to ties", "pseudocode": None}
    words = run["replayed"]
    if modelled := sum(walk.close > 0 for walk in walks):
        words += f"; in {modelled} of {len(walks)} texts the cycles are only modelled from a near-tie on"
    run |= {"run": label, "method": "ssd", "parameters": parameters | shared, "replayed": words}
    shift = (run["canvas"] or {}).get("shift") or 0
    cycles: list[Row] = []
    for text, walk in zip(texts, walks):
        cycles.append({"prompt": text.prompt, "cycle": 0, "context": text.context, "keep": 0})
        cycles += [_cycle(text, step, nodes, shift) for step, nodes in zip(walk.steps, walk.nodes)]
    return recorded(run, trace.pieces, cycles)


def _cycle(text: Written, step: Step, nodes: dict[str, list], shift: int) -> Row:
    """A cycle in the recorder's form."""
    start, end, n = step.start, step.start + step.emitted, step.sent
    status, parents = nodes["node_status"], np.array(nodes["node_parent"], np.int64)
    path = [node for node, word in enumerate(status) if word == "accepted"]
    state = dict(zip([-1, *path], range(start, end)))  # state of each verified canvas
    readings = {node: text.readings[at] for node, at in state.items()}
    refused = any(
        word == "rejected" and parents[i] == (path[-1] if path else -1) for i, word in enumerate(status)
    )
    origins = ["draft"] * len(path) + [next_origin(n, refused)] * (end - start - len(path))
    p, rank = zip(*(_rated(readings, nodes, node) for node in range(n))) if n else ((), ())
    level = depths(parents) if n else np.zeros(0, np.int64)
    k = min((each.top.shape[1] for each in readings.values()), default=0)
    row: Row = {
        "prompt": text.prompt, "cycle": step.cycle, "context": text.context + start, "keep": start,
        "depth": int(level.max(initial=0)), "width": int(np.bincount(level).max()) if n else 0,
        "stop": step.stop, "end": text.end if end == len(text) else None,
        "block": text.work(start), "refreshed": not text.refresh or start % text.refresh == 0,
        "node_source": ["self"] * n, "node_confidence": sure(nodes["node_score"]),
        "node_p": list(p), "node_rank": list(rank),
        "pred_node": [node for node, each in readings.items() for _ in each.cell],
        "out_position": text.cell[start:end].tolist(), "out_token": text.token[start:end].tolist(),
        "out_origin": origins,
        "out_p": text.p[start:end].tolist(), "out_order": list(range(start, end)),
        "out_odds": text.odds[start:end].tolist(), "top_k": k,
        "pass_model": ["target"], "pass_rows": [1], "pass_tokens": [_fed(text, step, nodes, shift)],
    }  # fmt: skip
    for name, attribute in (("position", "cell"), ("odds", "odds"), ("entropy", "entropy")):
        row[f"pred_{name}"] = np.concatenate(
            [getattr(each, attribute) for each in readings.values()]
        ).tolist()
    row["pred_top_token"] = np.concatenate([each.top.ravel() for each in readings.values()]).tolist()
    row["pred_top_p"] = np.concatenate([each.p.ravel() for each in readings.values()]).tolist()
    return row | nodes


def sure(odds: list[float]) -> list[float]:
    """Convert log-odds to probabilities."""
    with np.errstate(over="ignore"):
        return (1 / (1 + np.exp(-np.array(odds)))).tolist()


def _rated(readings: dict[int, Reading], nodes: dict[str, list], node: int) -> tuple[float, float]:
    """The model's probability and rank of a judged node's token; NaN if they are not recorded."""
    parent, cell = nodes["node_parent"][node], nodes["node_position"][node]
    if nodes["node_status"][node] not in ("accepted", "rejected"):
        return np.nan, np.nan
    reading = readings[parent]
    at = np.flatnonzero(reading.cell == cell)
    rank = np.flatnonzero(reading.top[at[0]] == nodes["node_token"][node]) if len(at) else at
    return (float(reading.p[at[0], rank[0]]), float(rank[0])) if len(rank) else (np.nan, np.nan)


def _fed(text: Written, step: Step, nodes: dict[str, list], shift: int) -> int:
    """Positions that the pass computes: each canvas' window, or everything (`specviz.models.canvas`)."""
    whole = text.context + text.length
    if not text.refresh:
        return whole * (1 + step.sent)

    def window(masked: np.ndarray, placed: int | None) -> int:
        first = int(masked.argmax()) // text.block * text.block
        cells = min(first + text.block, text.length) - first
        before = shift and masked[first]  # the position before the block, while it predicts its first cell
        outside = placed is not None and not first - before <= placed < first + cells
        return int(cells + before + outside)

    masked = np.ones(text.length, bool)
    masked[text.cell[: step.start]] = False
    canvases = {-1: masked}
    last = int(text.cell[step.start - 1]) if step.start else None
    total = whole if step.start % text.refresh == 0 else window(masked, last)
    for node, (parent, cell) in enumerate(zip(nodes["node_parent"], nodes["node_position"])):
        canvases[node] = canvases[parent].copy()
        canvases[node][cell] = False
        total += window(canvases[node], cell)
    return total
