"""EAGLE on a finished text: the method drafts, and the text decides what the target would accept.

Its drafts depend only on the target's hidden states at the text's tokens, as rejected nodes leave no trace.
So the target reads the text once, and the method drafts along it, cycle by cycle: passes of the drafter only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

import numpy as np
import torch

from specviz.draft import ROOT, Draft
from specviz.loop.dense import Branching, read_in_blocks
from specviz.methods.base import Session, Verdict
from specviz.methods.eagle import Eagle
from specviz.methods.sampling import Sampling
from specviz.models.context import Pass
from specviz.models.protocols import Model

from .readings import Text
from .simulation import TREE, Candidate, Cycles

States = dict[int, torch.Tensor]  # by layer: [tokens, width]
# Nodes, levels, children. The first three are chains, which every engine with EAGLE heads can draft.
SIZES = ((2, 2, 1), (3, 3, 1), (4, 4, 1), (4, 3, 2), (8, 4, 2))


def settings(draft: str) -> list[Candidate]:
    """The trees to grow with a drafter."""
    made = []
    for size, depth, branches in SIZES:
        values = (("draft_size", size), ("depth", depth), ("branches", branches))
        made.append(Candidate(TREE, draft, values, depth))
    return made


def grow(
    text: Text, model: Model, drafter: Model, candidates: Sequence[Candidate], done: Callable[[], None]
) -> dict[Candidate, Cycles]:
    """Grow each setting's trees along a greedy text and return its cycles."""
    layers = Eagle().hidden_layers(drafter)
    before, states = _states(text, model, layers)
    made = {}
    for candidate in candidates:
        rows = list(_cycles(text, model, drafter, candidate, before, states))
        at, sent, levels, accepted = np.array(rows, np.int64).reshape(-1, 4).T
        full = ((accepted == sent) & (sent > 0)).astype(float)
        made[candidate] = Cycles(at, np.ones(len(at)), sent, levels, full, accepted)
        done()
    return made


def _states(text: Text, model: Model, layers: tuple[int, ...]) -> tuple[States, States]:
    """The target's hidden states at all prompt tokens but the last, and at those that predict the answer."""
    parts: dict[int, list[torch.Tensor]] = {layer: [] for layer in layers}
    with closing(model.open([text.ids], len(text.tokens))) as context:
        before = _prefill(context, layers)
        for _, result in read_in_blocks(context, text.tokens, layers):
            for layer in layers:
                parts[layer].append(result.hidden[layer][0].clone())
    return before, {layer: torch.cat(each) for layer, each in parts.items()}


def _prefill(context: Branching, layers: tuple[int, ...]) -> States:
    """Prefill, and return the hidden states at all prompt tokens but the last, by layer."""
    context.prefill(hidden=layers)
    states: States = context.states.pop(0, {})
    return states


def _cycles(
    text: Text, model: Model, drafter: Model, candidate: Candidate, before: States, states: States
) -> Iterator[tuple[int, int, int, int]]:
    """Yield each cycle's start, its numbers of nodes and levels, and how many nodes match the text."""
    method, tokens = Eagle(**dict(candidate.values)), text.tokens
    session = Session(
        list(text.ids), Sampling(), model, drafter, text.eos, text.limit,
        lambda which, ids, room, name: which.open([ids], room), lambda use, n: np.zeros(n),
        states=dict(before), text=list(text.ids),
    )  # fmt: skip
    method.start(session)
    at = 0
    while at < len(tokens):
        session.cycle += 1
        draft = method.draft(text.limit - at)
        written = draft.tokens.tolist()
        path = _path(draft, written, tokens[at:])
        levels = 0 if method.growth is None else len(method.growth.levels)
        yield at, len(draft), levels, len(path)
        new = tokens[at : at + len(path) + 1]
        at += len(new)
        if at < len(tokens):
            hidden = {layer: [_rows(each, at - len(new), path, len(draft))] for layer, each in states.items()}
            verdict = Verdict(path, written, new[-1], "bonus", ["unjudged"] * len(draft))
            method.learn(draft, Pass([], [1 + len(draft)], hidden), verdict)
            session.text += new
    method.context.close()


def _path(draft: Draft, written: list[int], rest: list[int]) -> list[int]:
    """The nodes that match the text, from the first level down."""
    path: list[int] = []
    parent = ROOT
    for token in rest:
        children = np.flatnonzero(draft.parents == parent)
        parent = next((int(node) for node in children if written[node] == token), -2)
        if parent < 0:
            break
        path.append(parent)
    return path


def _rows(states: torch.Tensor, at: int, path: list[int], nodes: int) -> torch.Tensor:
    """Hidden states of a pass over a draft: the root's and the path's; the others are never read, so zero."""
    rows = states.new_zeros(1 + nodes, states.shape[1])
    rows[[0, *(node + 1 for node in path)]] = states[at : at + 1 + len(path)]
    return rows
