"""Properties of every method that writes canvases, over thousands of small float64 canvases with ties."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from small_canvases import Slow, Weights, case, small

from specviz import methods
from specviz.audit.reference import Wide
from specviz.draft import Draft
from specviz.loop.unmasking import decode_canvases
from specviz.methods.ssd import SSD
from specviz.methods.unmasking import CellReading

WALKS = 36  # random walks through random trees
SLOW = 60  # canvases written by the slow reference
CASES = 100  # models; each with eight prompts, written by stepwise and both trees of ssd: 2400 canvases


def written(case, method, prompts=None, **values):
    """Return each prompt's (cell, token) pairs in order, its number of passes, and its cycles."""
    method = methods.make(method, **case.policy, whole=case.whole, **values)
    prompts = case.prompts if prompts is None else prompts
    found, passes = [[] for _ in prompts], [0] * len(prompts)
    everything = [[] for _ in prompts]
    for cycles in decode_canvases(case.model, prompts, method, max_new_tokens=case.length, eos=case.eos):
        for cycle in cycles:
            if cycle.number:
                assert cycle.tokens, "a pass that places nothing"
                passes[cycle.row] += 1
                found[cycle.row] += zip(cycle.cells, cycle.tokens)
                everything[cycle.row].append(cycle)
    return found, passes, everything


def refreshes(rows):
    """For each row, the states at which a pass computed every position."""
    return [[cycle.keep for cycle in cycles if cycle.refreshed] for cycles in rows]


def slow(case, prompt, weights=None):
    return Slow(weights or Weights(case.model), prompt, case.length, **case.policy)


@pytest.mark.parametrize("part", range(10))
def test_ssd_writes_what_stepwise_writes(part):
    accepted = drafted = 0
    for seed in range(part, CASES, 10):
        each = case(seed, rows=8)
        expected, steps, cycles = written(each, "stepwise")
        fresh = refreshes(cycles)
        for text in expected:
            assert len({cell for cell, _ in text}) == len(text), each
        which = seed % 8
        alone = written(each, "stepwise", each.prompts[which : which + 1])
        assert (alone[0][0], alone[1][0]) == (expected[which], steps[which]), each
        for tree in ("chain", "mix"):
            values = {"draft_length": each.nodes, "tree": tree, "tail": ("stepwise", "shorter")[seed % 2]}
            found, passes, cycles = written(each, "ssd", **values)
            assert found == expected, (each, values)
            assert all(np.array(passes) <= steps), (each, values)
            if each.policy["cache"] == "dual":  # at the same states, so no chain crosses a refresh
                assert refreshes(cycles) == fresh, (each, values)
            for cycle in (cycle for row in cycles for cycle in row):
                accepted += len(cycle.verdict.path)
                drafted += len(cycle.draft)
            if seed % 4 == 0:
                again, few, _ = written(each, "ssd", each.prompts[which : which + 1], **values)
                assert (again[0], few[0]) == (found[which], passes[which]), (each, values)
    assert accepted > 0.2 * drafted


def test_every_kind_of_case_occurs():
    """The random cases cover the intended ranges."""
    found = [case(seed) for seed in range(CASES)]
    assert {each.policy["block"] for each in found} == set(range(1, 10))
    assert {each.length for each in found} == set(range(1, 18))
    assert {each.nodes for each in found} == set(range(1, 7))
    assert {(each.model.shift, each.model.layers) for each in found} == {
        (shift, layers) for shift in (0, 1) for layers in (1, 2, 3)
    }


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_stepwise_is_what_the_policy_says(cache):
    for seed in range(SLOW // 2):
        each = case(10_000 + seed, rows=1, cache=cache)
        ((expected,), _, (cycles,)) = written(each, "stepwise")
        steps = slow(each, each.prompts[0]).write(each.eos, each.whole)
        assert [step[:2] for step in steps] == expected, each
        odds = [cycle.verdict.odds[0] for cycle in cycles]
        np.testing.assert_allclose(odds, [step[2] for step in steps], rtol=0, atol=1e-8, err_msg=str(each))


def test_without_a_cache_stepwise_is_transformers_own_forward():
    for seed in range(12):
        each = case(20_000 + seed, rows=1, cache="none")
        ((expected,), *_) = written(each, "stepwise")
        state, net = slow(each, each.prompts[0]), each.model.net
        for cell, token in expected:
            sees = torch.zeros((1, 1, len(state.tokens), len(state.tokens)), dtype=torch.float64)
            with torch.no_grad(), Wide():
                rows = net(torch.tensor([state.tokens]), attention_mask=sees, use_cache=False).logits[0]
            rows[:, each.model.mask] = -torch.inf
            begin = state.begin - each.model.shift
            logits = {at: rows[begin + at].numpy() for at in state.open}
            assert state.surest(logits)[:2] == (cell, token), each
            state.place(cell, token)


def grown(rng, state, most, vocabulary):
    """A random tree from a state: its nodes' parents, cells, tokens and own states."""
    parents, cells, tokens, states = [], [], [], []
    room = 10**6 if state.cache == "none" else state.refresh - (0 if state.refreshes else state.since)
    for _ in range(rng.integers(most + 1)):
        parent = int(rng.integers(-1, len(parents)))
        before = states[parent] if parent >= 0 else state
        depth = 1 if parent < 0 else states[parent].depth + 1
        if depth >= room or len(before.open) < 2:
            continue
        there = [cell for cell in sorted(before.open) if cell // before.block == before.work]
        node = before.copy()
        node.depth = depth
        cells.append(int(rng.choice(there)))
        tokens.append(int(rng.integers(vocabulary)))
        node.place(cells[-1], tokens[-1])
        parents.append(parent)
        states.append(node)
    return parents, cells, tokens, states


@pytest.mark.parametrize("part", range(6))
def test_packed_canvases_are_the_passes_of_their_states(part):
    """Random trees and paths: each packed canvas against a pass over that state alone."""
    packed = 0
    for seed in range(part, WALKS, 6):
        rng = np.random.default_rng(30_000 + seed)
        each = case(30_000 + seed, rows=int(rng.integers(1, 4)), ties="none")
        each.length, each.policy["cache"] = max(each.length, 4), "dual" if seed % 6 else "none"
        weights = Weights(each.model)
        states = [slow(each, prompt, weights) for prompt in each.prompts]
        canvas = each.model.open(each.prompts, each.length, **each.policy, canvases=7)
        while rows := [row for row, state in enumerate(states) if state.open]:
            rows = sorted(rng.choice(rows, size=rng.integers(1, len(rows) + 1), replace=False).tolist())
            trees = [grown(rng, states[row], 7, each.model.vocabulary) for row in rows]
            drafts = [
                Draft(tokens, parents, positions=np.array(cells, int)) if parents else Draft.empty()
                for parents, cells, tokens, _ in trees
            ]
            for row, tree, draft, read in zip(rows, trees, drafts, canvas.forward(drafts, rows)):
                state, (parents, cells, tokens, nodes) = states[row], tree
                fed = len(state.window())
                assert read.refreshed == state.refreshes
                expected = {(-1, cell): logits for cell, logits in state.forward().items()}
                for node, parent in enumerate(parents):  # a state is reached through its parent's pass
                    before = nodes[parent] if parent >= 0 else state
                    nodes[node] = before.copy()
                    nodes[node].place(cells[node], tokens[node])
                    fed += len(nodes[node].window())
                    said = nodes[node].forward()
                    expected |= {(node, cell): logits for cell, logits in said.items()}
                    packed += 1
                assert read.fed == fed, each
                assert list(zip(read.canvas.tolist(), read.cell.tolist())) == sorted(expected), each
                for i, key in enumerate(sorted(expected)):
                    np.testing.assert_allclose(
                        read.logits[i].numpy(), expected[key], rtol=0, atol=1e-8, err_msg=f"{key}: {each}"
                    )
                end = int(rng.integers(-1, len(parents)))
                states[row] = nodes[end] if end >= 0 else state
                canvas.commit(draft.path(end) if end >= 0 else [], row)
                state = states[row]
                if state.open:  # what the pass itself places
                    own = [cell for cell in sorted(state.open) if cell // state.block == state.work]
                    place = int(rng.choice(own)), int(rng.integers(each.model.vocabulary))
                    canvas.fill(place[:1], place[1:], row)
                    state.place(*place)
                assert canvas.tokens[row] == state.tokens
    assert packed > 60


class Both(SSD):
    """Mix order, which also judges the chain from the same state."""

    def judge(self, draft, told):
        n = int((draft.parents == np.arange(len(draft)) - 1).argmin() or len(draft)) if len(draft) else 0
        mine = told.canvas < n
        chain = Draft(draft.tokens[:n], draft.parents[:n], positions=draft.positions[:n]) if n else draft
        some = CellReading(
            *(getattr(told, f)[mine] for f in ("canvas", "cell", "token", "odds", "entropy", "work"))
        )
        other = deepcopy(self, {id(self.session): self.session})
        fewer = SSD.judge(other, chain, some).path
        verdict = super().judge(draft, told)
        assert verdict.path[: len(fewer)] == fewer
        COUNTS.append((len(fewer), len(verdict.path)))
        return verdict


COUNTS: list[tuple[int, int]] = []


def test_from_the_same_state_mix_never_accepts_fewer():
    COUNTS.clear()
    for seed in range(60):
        each = case(40_000 + seed, rows=3)
        method = Both(**each.policy, whole=each.whole, draft_length=each.nodes, tree="mix", tail="shorter")
        for _ in decode_canvases(each.model, each.prompts, method, max_new_tokens=each.length, eos=each.eos):
            pass
    fewer, more = np.array(COUNTS).T
    assert (more >= fewer).all()
    assert more.sum() > fewer.sum()


@pytest.mark.parametrize("shift", [0, 1])
def test_a_constant_model_writes_from_left_to_right(shift):
    """All cells and all tokens tie, so the leftmost cell gets the lowest id."""
    model = small(np.random.default_rng(0), "constant")
    model.shift = shift
    for method in methods.names("canvas"):
        kind = methods.make(method, block=4, cache="dual", refresh=3, whole=True)
        placed = [
            pair
            for cycles in decode_canvases(model, [[1, 2]], kind, max_new_tokens=10, eos=())
            for pair in zip(cycles[0].cells, cycles[0].tokens)
        ]
        lowest = int(model.mask == 0)  # the mask is never written
        assert placed == [(cell, lowest) for cell in range(10)], method
