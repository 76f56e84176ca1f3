"""Advice: the simulation against runs, prices with exact answers, a brute-force oracle, and the wording."""

from __future__ import annotations

import itertools
import json
import shlex
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tiny
import torch
from rich.console import Console
from transformers import MixtralConfig, MixtralForCausalLM

import specviz
from specviz import cli, view
from specviz.audit import answer_files
from specviz.errors import ModelError, ParameterError, PromptError
from specviz.loop.cycle import decode
from specviz.loop.drafters import load_drafter
from specviz.measure.advice import advising, devices, engines, grown, prices, readings, simulation
from specviz.measure.advice import ranking as ranking_of
from specviz.measure.advice.prices import Passes, Pilot, Prices
from specviz.measure.advice.ranking import NOT, Ranking
from specviz.measure.advice.readings import Reading, Text
from specviz.measure.advice.result import UNDECIDED, USE, Advice, kinds_differ
from specviz.measure.advice.simulation import BASELINE, CHAIN, LOOKUP, Candidate, Simulation
from specviz.measure.benches.advise import _State, _wide, candidate_settings, counted
from specviz.measure.prompts import first_turn_key
from specviz.methods import find
from specviz.methods.sampling import Sampling
from specviz.metrics import speedups
from specviz.metrics.costs import Shape
from specviz.metrics.speedups import Drafter, PassTimes, Setting
from specviz.models import loading, trimmed
from specviz.models.additions import Heads
from specviz.models.heads import BlockwiseHeads
from specviz.models.model import Model
from specviz.models.trimmed import TrimmedModel
from traces import build

GREEDY = Sampling()
PLAIN = Candidate(BASELINE)


def chain(length, stop=0.0, draft="small"):
    values = (("draft_length", length), *((("stop", stop),) if stop else ()))
    return Candidate(CHAIN, draft, values, length)


def lookup(longest, shortest, length):
    values = (("ngram_max", longest), ("ngram_min", shortest), ("draft_length", length))
    return Candidate(LOOKUP, "", values, length)


@pytest.fixture(scope="module")
def pair():
    target = tiny.TableModel(5, 1, eos=(0,), max_length=96, name="table")
    return target, tiny.TableModel(5, 2, eos=(0,), max_length=96, near=target, mix=0.8, name="small")


def read_all(pair, prompts, sampling=GREEDY, most=24):
    target, draft = pair
    texts = [
        readings.write_text(target, {}, ids, str(i), most, sampling, i, 0) for i, ids in enumerate(prompts)
    ]
    widths = readings.roundings(texts[0], pair) if sampling.greedy else {}
    return [readings.read(text, target, [draft], sampling, widths) for text in texts]


@pytest.fixture(scope="module")
def town():
    return specviz.load("town")


class TestSimulation:
    @pytest.mark.parametrize("most", [3, 24, 90])
    def test_cycles_are_those_of_runs(self, pair, most):
        """Cycles, and the tokens drafted and sent in each, up to the limits of text and context."""
        target, draft = pair
        prompts = [[1, 2, 3], [4, 4, 1, 4, 4], [2] * 9, [1, 3, 1, 3, 1]]
        listed = [lookup(3, 1, 1), lookup(3, 1, 10), lookup(2, 2, 4), lookup(4, 3, 16)]
        listed += [chain(1), chain(4), chain(16), chain(8, 0.4), chain(16, 0.8)]
        made = Simulation(read_all(pair, prompts, most=most), listed)
        assert any(each.text.end == "eos" for each in made.readings) or most == 3
        for candidate in listed:
            assert made.badge(candidate) == "exact"
            method = find(candidate.method)(**dict(candidate.values))
            for i, ids in enumerate(prompts):
                run = [c for c in decode(target, ids, method, drafter=draft, max_new_tokens=most) if c.number]
                cycles = made.cycles[candidate][i]
                assert [len(c.draft) for c in run] == cycles.sent.tolist()
                assert [c.keep for c in run] == cycles.at.tolist()
                if candidate.method == CHAIN:
                    passes = [sum(name == "draft" for name, *_ in c.passes) for c in run]
                    assert passes == cycles.drafted.tolist() and cycles.certain
                    for full, cycle in zip(cycles.full, run[1:]):
                        fed = [tokens for name, _, tokens, *_ in cycle.passes if name == "draft"]
                        assert not fed or fed[0] == 1 + full

    def test_heads(self):
        """Heads that predict from a table: where they have a state and room, and how long a run is right."""
        text = Text("0", "", [5], [1, 2, 3, 4, 5, 6], "length", 6, frozenset())
        guesses = np.array([[9, 9], [2, 3], [3, 9], [9, 9], [5, 6], [6, 7]])
        reading = Reading(text, np.ones(6, bool), False, guesses={"h": guesses})
        places = simulation.block_places(reading, "h")
        assert places.sent.tolist() == [0, 2, 2, 2, 1, 0]  # the first has no state, the last has no room
        assert places.accepted.tolist() == [0, 2, 1, 0, 1, 0]
        assert simulation.walk(places, 2).at.tolist() == [0, 1, 4]
        assert simulation.walk(places, 1).at.tolist() == [0, 1, 3, 4]

    def test_a_copied_end_token_ends_a_draft(self):
        """Chat templates put end tokens in prompts; nothing after an end token is copied."""
        text = Text("0", "", [1, 2, 0, 3, 1, 2], [4, 4, 4], "length", 3, frozenset({0}))
        places = simulation.lookup_places(Reading(text, np.ones(3, bool), False), 3, 1)
        assert places.sent.tolist() == [1, 0, 0] and places.accepted.tolist() == [0, 0, 0]

    def test_certain_odds_are_a_greedy_walk(self):
        rng = np.random.default_rng(0)
        sent = np.minimum(4, np.arange(30)[::-1])
        right = rng.random(30) < 0.7
        accepted = np.array([right[s : s + sent[s]].cumprod().sum() for s in range(30)])
        zero = np.zeros(30, np.int64)
        greedy = simulation.walk(simulation.Places(sent, sent, sent, accepted), 4)
        (sampled,) = simulation.walk_sampled(
            [simulation.Places(sent, sent, sent, zero, right.astype(float))], 4
        )
        assert sampled.count == greedy.count and sampled.variance == 0
        assert np.flatnonzero(sampled.weight).tolist() == greedy.at.tolist()
        assert sampled.full[greedy.at].tolist() == greedy.full.tolist()
        assert sampled.accepted[greedy.at].tolist() == greedy.accepted.tolist()

    def test_sampled_texts_are_walked_as_one_by_one(self):
        """Of several lengths at once: chances, and moments of the number of cycles, by recursion."""
        rng, every = np.random.default_rng(1), []
        for n, copied in ((1, False), (9, True), (6, False), (9, False)):
            sent = np.minimum(rng.integers(0, 5, n), n - np.arange(n))
            agreeing = rng.integers(0, 5, n) if copied else None
            every.append(simulation.Places(sent, sent, sent, 0 * sent, rng.random(n), agreeing))
        for length in (1, 3):
            for places, cycles in zip(every, simulation.walk_sampled(every, length)):
                n = len(places.sent)
                outcomes, visited = [], np.zeros(n + 2)
                visited[0] = 1
                for at in range(n):
                    m = min(int(places.sent[at]), length)
                    right = m if places.agreeing is None else min(m, int(places.agreeing[at]))
                    kept = [float(np.prod(places.odds[at : at + j])) for j in range(right + 1)] + [0.0]
                    outcomes.append([a - b for a, b in itertools.pairwise(kept)])
                    for j, p in enumerate(outcomes[-1]):
                        visited[min(at + 1 + j, n)] += visited[at] * p
                    assert cycles.full[at] == pytest.approx(kept[m] if m and right == m else 0)
                    assert cycles.accepted[at] == pytest.approx(
                        sum(j * p for j, p in enumerate(outcomes[-1]))
                    )

                def moments(at, outcomes=outcomes, n=n):
                    if at >= n:
                        return 0.0, 0.0
                    after = [(p, *moments(at + 1 + j)) for j, p in enumerate(outcomes[at])]
                    mean = sum(p * one for p, one, _ in after)
                    return 1 + mean, 1 + 2 * mean + sum(p * two for p, _, two in after)

                mean, square = moments(0)
                assert cycles.weight == pytest.approx(visited[:n]) and cycles.count == pytest.approx(mean)
                assert cycles.variance == pytest.approx(square - mean**2, abs=1e-12)

    def test_a_draft_with_the_end_token_is_accepted_whole(self, town):
        """No bonus token follows it: runs with the same setting count the same number of accepted tokens."""
        prompts = ["The cook saw the cook.", "Name the animals.", "Who is in the garden?"]
        drafter = load_drafter(town, "town-draft", None, None)
        trace = specviz.generate(
            town, prompts, find("speculative")(draft_length=4), draft=drafter, max_new_tokens=32
        )
        cycles = trace.cycles[trace.cycles["cycle"] > 0]
        ended = cycles[cycles["end"] == "eos"]
        assert (ended["emitted"] == ended["accepted"]).any()
        candidate = chain(4, draft=drafter.name)
        texts = [readings.write_text(town, {}, town.encode(p), "", 32, GREEDY, 0, 0) for p in prompts]
        widths = readings.roundings(texts[0], (town, drafter))
        made = Simulation(
            [readings.read(each, town, [drafter], GREEDY, widths) for each in texts], [candidate]
        )
        assert made.accepted_share(candidate) == cycles["accepted"].sum() / cycles["sent"].sum()

    def test_sampled_cycles_in_the_mean(self, pair):
        """For given texts, the expected number of cycles is within five standard errors of the runs' mean."""
        target, draft = pair
        sampling, most, seeds = Sampling(1.0), 10, 150
        ids = [1, 2]
        method, candidate = find("speculative")(draft_length=3), chain(3)
        runs = np.array([
            sum(c.number > 0 for c in decode(target, ids, method, drafter=draft, max_new_tokens=most,
                                             sampling=sampling, seed=seed))
            for seed in range(seeds)
        ])  # fmt: skip
        texts = [readings.write_text(target, {}, ids, "", most, sampling, 0, 1000 + s) for s in range(seeds)]
        made = Simulation(
            [readings.read(each, target, [draft], sampling, {}) for each in texts], [candidate], greedy=False
        )
        counts = made.counts(candidate)
        error = np.sqrt(runs.var() / seeds + counts.var() / seeds)
        assert abs(runs.mean() - counts.mean()) < 5 * error
        low, high = made.tau_bounds(candidate)
        assert made.badge(candidate) == "bounded" and low < made.tau(candidate) < high

    def test_trees_are_those_of_runs(self, town):
        """In float64, a method replayed along the text sends the same trees as a real run."""
        model = _wide(town)
        drafter = load_drafter(model, "town-eagle", None, None)
        ids = model.encode("Tell me about the market.")
        text = readings.write_text(model, {}, ids, "", 20, GREEDY, 0, 0)
        listed = grown.settings("town-eagle")
        made = grown.grow(text, model, drafter, listed, lambda: None)
        for candidate in listed:
            method = find("eagle")(**dict(candidate.values))
            run = [c for c in decode(model, ids, method, drafter=drafter, max_new_tokens=20) if c.number]
            assert [len(c.draft) for c in run] == made[candidate].sent.tolist()
            assert [c.keep for c in run] == made[candidate].at.tolist()
            passes = [sum(name == "draft" for name, *_ in c.passes) for c in run]
            assert passes == made[candidate].drafted.tolist()
        chains = {each.length for each in listed if dict(each.values)["branches"] == 1}
        assert chains == {2, 3, 4} and len(listed) == 5
        assert max(len(each.at) for each in made.values()) < 20

    def test_what_the_bench_counts(self, pair):
        target, draft = pair
        for sampling in (GREEDY, Sampling(0.8)):
            rows = list(counted(target, [draft], [[1, 2], [3, 1, 2]], 12, sampling, lambda *_: None))
            assert all(row["held"] for row in rows)
            assert {row["badge"] for row in rows} == {"exact" if sampling.greedy else "bounded"}

    def test_a_confidence_at_the_threshold_bounds_tau(self, pair):
        """Rounding may put it on either side, so a run may draft on or not."""
        made = read_all(pair, [[4, 4, 1, 4, 4], [1, 3, 1, 3, 1]])
        p = float(made[1].records["small"].draft_p[2])
        listed = [chain(4), chain(4, p), chain(4, p + 1e-6)]
        assert [Simulation(made, listed).badge(each) for each in listed] == ["exact", "bounded", "exact"]

    def test_ties_bound_tau(self, pair):
        made = read_all(pair, [[4, 4, 1, 4, 4], [1, 3, 1, 3, 1]])
        made[0].close_drafts["small"] = made[1].close_drafts["small"] = True
        together = Simulation(made, [chain(4), lookup(3, 1, 4)])
        low, high = together.tau_bounds(chain(4))
        assert low < together.tau(chain(4)) <= high and together.badge(chain(4)) == "bounded"
        assert together.badge(lookup(3, 1, 4)) == "exact"
        made[1].own[0] = False
        assert Simulation(made, [chain(4)]).badge(chain(4)) == "modelled"

    def test_a_run_that_writes_another_text_may_write_another_length(self, pair):
        """Of all lengths up to the limit, and of all numbers of cycles that these allow."""
        made = read_all(pair, [[1, 2, 3], [4, 4, 1, 4, 4], [1, 3, 1, 3, 1]])
        place = next(i for i, each in enumerate(made) if len(each.text.tokens) < each.text.limit)
        made[place].close = True
        listed = [PLAIN, chain(4), lookup(3, 1, 4)]
        simulated = Simulation(made, listed)
        rest = [i for i in range(3) if i != place]
        for candidate in listed:
            tokens = simulated.tokens[rest].sum()
            cycles = simulated.counts(candidate)[rest].sum()
            low, high = simulated.tau_bounds(candidate)
            n = made[place].text.limit
            each = [
                (tokens + t) / (cycles + c)
                for t in range(1, n + 1) for c in range(-(-t // (candidate.length + 1)), t + 1)
            ]  # fmt: skip
            assert low == pytest.approx(min(each)) and max(each) <= high < max(each) + 0.1
            assert simulated.badge(candidate) == ("bounded" if candidate.length else "exact")

    def test_an_end_token_that_is_not_stated_is_the_likeliest(self, pair):
        """A chat model has several; an answer that stopped need not say with which."""
        target = tiny.TableModel(5, 1, eos=(0, 3), max_length=96, name="table")
        ids = next(
            ids for ids in itertools.product(range(1, 5), repeat=2)
            if readings.write_text(target, {}, list(ids), "", 24, GREEDY, 0, 0).tokens[-1] == 3
        )  # fmt: skip
        for sampling in (GREEDY, Sampling(0.5)):
            text = readings.write_text(target, {}, list(ids), "", 24, GREEDY, 0, 0)
            tokens = list(text.tokens)
            text.tokens[-1], text.end_assumed = target.eos[0], True
            widths = {"table": 1e-9, "small": 1e-9}
            reading = readings.read(text, target, [pair[1]], sampling, widths)
            assert reading.text.tokens == tokens and reading.own.all()
            assert reading.records["small"].text.tolist() == tokens

    def test_rounding_shows_where_a_model_is_sure(self):
        """Its probabilities are then near 1 and hide it, but not its logits."""
        target = tiny.TableModel(5, 1, max_length=96, scale=60.0, name="table")
        noise, table = {1: 0.0, 2: 0.01}, target.logits

        def opened(prompts, room):
            context = tiny.TableContext(target, list(prompts[0]), room)
            forward = context.forward

            def noisy(draft, hidden=()):
                result = forward(draft, hidden)
                result.logits[0] += noise[min(2, len(result.logits[0]))]
                return result

            context.forward = noisy
            return context

        target.open = opened
        text = Text("0", "", [1, 2], [1, 2, 3, 4, 1, 2], "length", 6, frozenset())
        assert readings.roundings(text, [target])["table"] == pytest.approx(0.03)
        target.logits = lambda text: table(text) if len(text) < 7 else torch.tensor([0, 0.02, 0, -9, -9.0])
        assert readings.read(text, target, [], GREEDY, {"table": 0.03}).close
        assert not readings.read(text, target, [], GREEDY, {"table": 0.01}).close


# ---------------------------------------------------------------- prices


def flat(slope=0.0, draft=2.0, rest=1.0, per_token=0.5, batches=(), per_context=0.01, two=0.0):
    """Prices with an exact answer: a pass of g tokens takes 10 (1 + slope (g - 1)), plus a term for context.

    A drafter's pass over two tokens takes `two` more than a pass over one.
    """
    sizes, contexts = [1, 2, 4, 9, 17], [0, 100]
    ms = np.array([[10 * (1 + slope * (g - 1)) + c * per_context for c in contexts] for g in sizes])
    many = {("", rows): Passes(sizes, [50], ms[:, :1, None].repeat(3, 2)) for rows in batches}
    small = np.array([[draft + more + c * per_context for c in contexts] for more in (0, two)])
    passes = {("", 1): Passes(sizes, contexts, ms[..., None].repeat(3, 2)),
              ("small", 1): Passes([1, 2], contexts, small[..., None].repeat(3, 2))}  # fmt: skip
    many |= {("small", rows): Passes([1, 2], [50], small[:, :1, None].repeat(3, 2)) for rows in batches}
    pilots = {}
    for family in ((BASELINE, ""), (LOOKUP, ""), (CHAIN, "small")):
        n = np.zeros(12, np.int64) if family[0] == BASELINE else np.arange(12) % 4
        whole = np.arange(12) % 3 < 2 if family[1] else np.zeros(12, bool)
        ms_each = 10 * (1 + slope * n) + rest + per_token * n
        ms_each += (draft * n + two * (whole & (n > 0))) if family[1] else 0
        pilots[family] = Pilot(ms_each, n, n, np.zeros(12, np.int64), whole.astype(np.int64))
    return Prices(passes | many, {}, pilots, "a test's")


class TestPrices:
    def test_a_sum_of_passes(self):
        made = flat(slope=0.3)
        cycles = simulation.Cycles(
            np.array([0, 3, 10]),
            np.ones(3),
            np.array([2, 6, 0]),
            np.array([2.0, 6.0, 0.0]),
            np.array([1.0, 0, 0]),
            np.array([2, 0, 0]),
        )
        counts, vector = made.counts((CHAIN, "small"), cycles, 20), made.vector()
        forward = sum(10 * (1 + 0.3 * sent) + c / 100 for sent, c in ((2, 20), (6, 23), (0, 30)))
        drafting = sum(n * (2 + c / 100) for n, c in ((2, 20), (6, 23)))
        rest = 3 * 1 + 0.5 * 8
        assert counts @ vector == pytest.approx(forward + drafting + rest)
        assert made.groups(counts, vector) == pytest.approx(
            {"pass": forward, "draft": drafting, "rest": rest}
        )

    def test_a_whole_draft_s_second_token_is_paid_once(self):
        """The drafter's pass includes it, so the rest of the cycle does not."""
        made = flat(two=1.5, per_context=0.0)
        at, sent = np.array([0, 3, 10]), np.array([2, 6, 4])
        cycles = simulation.Cycles(at, np.ones(3), sent, sent.astype(float), np.array([1.0, 0, 0]), sent)
        total = made.counts((CHAIN, "small"), cycles, 0) @ made.vector()
        assert total == pytest.approx(3 * 10 + 12 * 2 + 1.5 + 3 * 1 + 12 * 0.5)

    def test_the_rest_of_a_tree_s_cycle_grows_with_its_levels(self):
        """Each level is a pass of the drafter, however many nodes it has."""
        levels, nodes = np.tile([2, 3, 3, 4, 4], 4), np.tile([2, 3, 4, 4, 8], 4)
        nothing = np.zeros(len(nodes), np.int64)
        pilot = Pilot(10.0 + 1 + 5 * levels, nodes, levels, nothing, nothing)
        without = flat(per_context=0.0)
        tree = simulation.TREE, "head"
        made = Prices(without.passes, {}, without.pilots | {tree: pilot}, "a test's")
        for sent, drafted in ((4, 3), (4, 4), (8, 4)):
            at, one = np.zeros(1, np.int64), np.ones(1, np.int64)
            cycles = simulation.Cycles(at, np.ones(1), sent * one, drafted * one, np.zeros(1), 0 * one)
            assert made.counts(tree, cycles, 0) @ made.vector() == pytest.approx(10 + 1 + 5 * drafted)
            assert made.batch_ms(tree, [cycles], 1) == pytest.approx(10 + 1 + 5 * drafted)

    def test_short_runs_say_after_which_drafts_two_tokens_are_read(self):
        target = tiny.TableModel(5, 1, max_length=96, name="table")
        same = tiny.TableModel(5, 1, max_length=96, near=target, mix=1.0, name="same")
        listed, texts = [PLAIN, chain(3, draft="same")], [[1, 2, 3], [4, 1]]
        made = prices.run_pilots(
            target, {"same": same}, listed, texts, {"max_new_tokens": 24}, lambda name: None
        )
        pilot = made[CHAIN, "same"]
        firsts = np.flatnonzero(np.diff(pilot.context, prepend=99) < 0)
        assert 0 < pilot.two.sum() < len(pilot.two)
        assert not pilot.two[firsts].any()

    def test_passes_are_timed_between_the_short_runs(self):
        """Otherwise the drift of a machine that slows down would be counted in the rest of a cycle."""
        target = tiny.llama()
        done: list[str] = []
        texts = [[1, 2, 3], [4, 1], [2, 2]]
        made = prices.measure(
            target, {}, [PLAIN], texts, (8, 16), [1], [], {"max_new_tokens": 4}, done.append
        )
        order = [len(list(same)) if what.startswith("passes") else 0 for what, same in
                 itertools.groupby(done, key=lambda what: what.split()[0])]  # fmt: skip
        assert order[1::2] == [0] * len(texts)
        assert min(order[::2]) > 0 and len(order[::2]) == len(texts) + 1
        assert made.passes["", 1].ms.shape == (len(prices.pass_sizes([PLAIN])), 2, prices.ROUNDS)
        assert made.passes["", 1].contexts == [8, 16]

    def test_loads(self, pair):
        """Shared passes make a row cheaper; if passes cost more per token, drafting no longer pays."""
        listed = [PLAIN, lookup(3, 1, 4), *(chain(length) for length in (1, 2, 4, 8))]
        made = Simulation(read_all(pair, [[1, 2, 3], [4, 4, 1, 4, 4]], most=20), listed)
        costs = flat(slope=0.0, draft=0.1, rest=0.0, per_token=0.0, batches=(8,))
        one, eight = Ranking(made, costs).loads()
        assert (one["batch"], eight["batch"], one["method"]) == (1, 8, "speculative small")
        fastest = max(one[str(length)] for length in (1, 2, 4, 8))
        assert one["gain"] == pytest.approx(fastest / one["plain"]) and one["gain"] > 1
        assert one["latency"] == pytest.approx(1e3 / fastest)
        assert 7 < eight["plain"] / one["plain"] < 9
        steep = flat(slope=2.0, draft=0.1, rest=0.0, per_token=0.0, batches=(8,))
        assert all(row["gain"] < 1 for row in Ranking(made, steep).loads())

    def test_elsewhere_and_in_batches(self):
        made = flat(slope=0.3, batches=(4,))
        cycles = simulation.plain(5)
        assert made.batch_ms((BASELINE, ""), [cycles], 4) == pytest.approx(5 * (10 + 1) / 4)
        assert made.batches == [1, 4]

    def test_a_batch_waits_for_its_longest_row(self):
        """Half the cycles send nothing and half send four, so three in four pairs of rows wait for a four."""
        made = flat(slope=1.0, draft=2.0, rest=1.0, per_token=0.5, batches=(2,), per_context=0.0)
        sent = np.array([0, 4, 0, 4])
        halves = simulation.Cycles(np.arange(4), np.ones(4), sent, np.zeros(4), np.zeros(4), np.zeros(4))
        passes, own = (0.25 * 10 + 0.75 * 50 + 1) / 2, 0.5 * 2  # a cycle sends two tokens on average
        assert made.batch_ms((LOOKUP, ""), [halves], 2) == pytest.approx(4 * (passes + own))
        drafting = replace(halves, drafted=sent.astype(float))
        assert made.batch_ms((CHAIN, "small"), [drafting], 2) == pytest.approx(
            4 * (passes + 0.75 * 4 * 2 / 2 + own)
        )

    def test_noise_makes_no_batch_gain_time(self):
        noisy = flat(rest=-5.0, per_token=0.0, batches=(8,))
        assert noisy.batch_ms((BASELINE, ""), [simulation.plain(5)], 8) == pytest.approx(5 * 10 / 8, rel=0.1)

    def test_they_are_kept_as_plain_data(self):
        made = flat(slope=0.3, batches=(4,))
        again = advising.unpacked(json.loads(json.dumps(advising.packed(made))))
        assert np.array_equal(again.vector(), made.vector())
        draws = [each.vector(draw=np.random.default_rng(3)) for each in (made, again)]
        assert np.array_equal(*draws)


class TestRanking:
    @pytest.fixture(scope="class")
    def made(self):
        target = tiny.TableModel(5, 1, max_length=96, name="table")
        pair = target, tiny.TableModel(5, 2, max_length=96, near=target, mix=0.8, name="small")
        prompts = [[1, 2, 3], [4, 4, 1, 4, 4], [2] * 9, [1, 3, 1, 3, 1], [3, 3, 2], [4, 1], [2, 1]]
        listed = [PLAIN, lookup(3, 1, 3), chain(1), chain(3), chain(8)]
        return Simulation(read_all(pair, prompts, most=12), listed)

    def test_a_speedup_by_hand(self, made):
        """If every pass costs the same, the speedup is τ over the cycle's cost."""
        ranking = Ranking(made, flat(rest=0.0, per_token=0.0, draft=0.0, per_context=0.0))
        for each in ranking.predictions():
            assert each.speedup == pytest.approx(each.tau)
            assert each.speedup == pytest.approx(each.tau / each.cycle)
            drafting = np.nan_to_num(each.drafting)
            assert each.cycle == pytest.approx(each.forward + drafting + each.rest)
            assert (each.drafting != each.drafting) == (each.candidate.method == LOOKUP)  # part of the rest
            if each.drafts:
                assert each.low <= each.speedup <= each.high

    def test_a_sampled_run_s_own_chances_are_in_its_interval(self):
        """Even if all texts are alike, the number of accepted tokens varies from run to run."""
        tokens, odds = [1] * 40, 0.5
        text = Text("", "", [1], tokens, "length", len(tokens), frozenset())
        reading = Reading(text, np.ones(len(tokens), bool), False, {"small": text.record(100)},
                          odds={"small": np.full(len(tokens), odds)})  # fmt: skip
        texts, runs, rng = 8, 4000, np.random.default_rng(5)
        made = Simulation([reading] * texts, [PLAIN, chain(1)], greedy=False)
        prices = flat(rest=0.0, per_token=0.0, draft=0.0, per_context=0.0)
        by_label = {each.candidate: each for each in Ranking(made, prices).predictions()}
        place, cycles = np.zeros((runs, texts), int), np.zeros((runs, texts), int)
        while (there := place < len(tokens)).any():
            drafted = place < len(tokens) - 1  # the last token comes from the target
            place += there * (1 + (drafted & (rng.random(place.shape) < odds)))
            cycles += there
        speedups = texts * len(tokens) / cycles.sum(1)
        low, high = by_label[chain(1)].low, by_label[chain(1)].high
        assert np.mean((low <= speedups) & (speedups <= high)) == pytest.approx(0.95, abs=0.03)
        speeds = 100 * speedups  # a cycle takes 10 ms
        low, high = by_label[chain(1)].speed_low, by_label[chain(1)].speed_high
        assert np.mean((low <= speeds) & (speeds <= high)) == pytest.approx(0.95, abs=0.03)
        assert by_label[PLAIN].low == by_label[PLAIN].high == 1

    def test_the_clock_s_noise_is_counted_once_for_each_set_of_texts(self):
        """Alike texts leave only the noise of the two sets' prices, which are drawn apart."""
        text = Text("", "", [1], [1] * 40, "length", 40, frozenset())
        reading = Reading(text, np.ones(40, bool), False, {"small": text.record(100)})
        made = Simulation([reading] * 8, [PLAIN, lookup(1, 1, 3)])
        noisy = flat(slope=0.2, rest=0.0, per_token=0.0, per_context=0.0)
        passes = noisy.passes["", 1]
        passes.ms = passes.ms[..., :1] * np.random.default_rng(2).normal(1, 0.1, (5, 2, 15))
        ranking = Ranking(made, noisy)
        drafting = next(each for each in ranking.predictions() if each.drafts)
        plain, own = (ranking.counts[each] @ ranking.draws.T for each in (PLAIN, drafting.candidate))
        alone = np.log(plain.sum(0) / own.sum(0)).std()
        assert np.log(drafting.high / drafting.low) == pytest.approx(2 * 1.96 * 2**0.5 * alone, rel=0.15)

    def test_only_intervals_draw_prices(self, made, monkeypatch):
        """The residuals of the short runs are the same in every draw."""
        draws, residuals = [], []
        vector, one = Prices.vector, Prices._residuals
        monkeypatch.setattr(
            Prices,
            "vector",
            lambda self, *given, draw=None: draws.append(draw) or vector(self, *given, draw=draw),
        )
        monkeypatch.setattr(Prices, "_residuals", lambda *given: residuals.append(given) or one(*given))
        costs = flat()
        Ranking(made, costs).best(costs.vector())
        assert draws == [None]
        Ranking(made, costs).predictions()
        assert len(draws) > ranking_of.DRAWS and len(residuals) == len(costs.pilots)

    def test_where_drafting_does_not_pay_the_speed_is_plain(self, made, monkeypatch):
        monkeypatch.setattr(ranking_of, "WORTH", 100.0)
        ranking = Ranking(made, flat(draft=0.5, batches=(4,)))
        row = ranking.elsewhere()[-1]
        assert (row["best"], row["speed"]) == (NOT, ranking._speed(PLAIN, 4))
        assert ranking._speed(chain(3), 4) != row["speed"]

    def test_the_oracle_is_the_best_of_all_sequences(self, made):
        prices_made = flat(slope=0.2)
        ranking = Ranking(made, prices_made)
        oracle = ranking.oracle()
        assert oracle["speedup"] >= max(each.speedup for each in ranking.predictions()) - 1e-9
        vector = prices_made.vector()
        for number in range(len(made.readings)):
            n = min(7, len(made.readings[number].text.tokens))
            ends, costs = ranking._choices(number, len(made.readings[number].text.tokens), vector)
            ends = np.minimum(ends, n)
            best = np.zeros(n + 1)
            for at in range(n - 1, -1, -1):
                best[at] = (costs[:, at] + best[ends[:, at]]).min()
            assert best[0] == pytest.approx(cheapest(0, ends, costs, n))

    def test_the_oracle_may_take_a_length_that_is_not_listed(self):
        """Drafts of two and three tokens are right, in turns, and each further token is dear."""
        text = Text("", "", [1], [1] * 70, "length", 70, frozenset())
        accepted = np.tile([2, 0, 0, 3, 0, 0, 0], 10)
        one = np.full(70, 16)
        some = simulation.Places(one, one, one, accepted)
        speedup = {}
        for listed in ([1, 2], [1, 3], [1, 2, 3]):
            reading = Reading(text, np.ones(70, bool), False, {"small": text.record(200)})
            made = Simulation([reading], [PLAIN])
            made.candidates = [PLAIN, *map(chain, listed)]
            made.places[chain(1).family, ()] = [some]
            made.cycles |= {each: [simulation.walk(some, each.length)] for each in made.candidates[1:]}
            speedup[tuple(listed)] = Ranking(made, flat(slope=0.1, draft=1.0)).oracle()["speedup"]
        assert len(set(speedup.values())) == 1

    def test_what_is_said(self, made):
        setting = {
            "model": {"name": "<b>table"}, "texts": 7, "tokens": 70, "between": [1, 20], "clock": "none",
            "device": "cpu", "threads": 1, "dtype": "float64", "temperature": 0, "left_out": {},
            "confirmed_on": 0, "given_as": {}, "revision": None, "options": [], "top_k": 0, "top_p": 1.0,
        }  # fmt: skip

        def advice(**costs):
            ranking = Ranking(made, flat(**costs))
            predictions = ranking.predictions()
            flags = engines.flags_of(predictions[0].candidate)
            return specviz.measure.advice.result.Advice(
                setting, predictions, ranking.oracle(), ranking.elsewhere(), flags
            )

        good = advice(slope=0.0, draft=0.5, rest=0.1, per_token=0.0)
        assert "Its cycles are exact and" in " ".join(good.notes)
        unsure = [replace(each, badge="bounded") for each in good.predictions[:1]] + good.predictions[1:]
        assert "Its cycles are bounded and" in " ".join(replace(good, predictions=unsure).notes)
        assert good.answer == USE and good.sentence.startswith("Draft with speculative (small)")
        bad = advice(slope=1.0, draft=5.0)
        assert bad.answer == NOT and bad.sentence.startswith("Do not draft.")
        assert f"It breaks even at {bad.best.cycle:.2f} tokens per cycle" in bad.sentence
        loads = advice(slope=0.0, draft=0.5, batches=(4,))
        assert [row["where"] for row in loads.changes] == ["batch 1", "batch 4"]
        assert not Ranking(made, flat()).loads()
        drawn = view.advice(good.table)
        assert {line.get_label() for line in drawn.get_lines()[1:]} == {"prompt_lookup", "speculative, small"}
        row = {"label": good.table["label"].iloc[0], "measured": [1.2, 1.1, 1.3]}
        words = [text.get_text() for text in view.advice(good.table, [row]).get_legend().texts]
        assert words.count("measured") == 1 and words[0] == "without drafts"
        chain_line = next(line for line in drawn.get_lines() if line.get_label() == "speculative, small")
        assert chain_line.get_xdata().tolist() == [1, 3, 8]
        with pytest.raises(ParameterError, match="no column"):
            view.advice(good.table.drop(columns="low"))
        page = good._page()
        assert "<b>table" not in page and "&lt;b&gt;table" in page and "<script" not in page
        plain = json.loads(json.dumps(good.as_dict(), allow_nan=False))
        assert plain["answer"] == USE and len(plain["predictions"]) == 5
        console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
        good.show(console)
        assert good.sentence in console.export_text()
        assert good.table["label"].iloc[0] == good.best.candidate.label

    def test_what_was_measured_decides(self, made):
        predictions = Ranking(made, flat(slope=0.0, draft=0.5, rest=0.1, per_token=0.0)).predictions()
        setting = {"confirmed_on": 5, "given_as": {}, "options": []}

        def advice(*measured):
            rows = [
                {"label": f"s{i}", "measured": list(each), "joint": list(each), "predicted": [1.7, 1.2, 2.2]}
                for i, each in enumerate(measured)
            ]
            return Advice(setting, predictions, None, [], [], confirmed=rows)

        assert Advice(setting, predictions, None, [], []).answer == USE
        slow = advice((0.56, 0.5, 0.6), (0.65, 0.6, 0.7))
        assert slow.answer == NOT
        assert slow.sentence == (
            "Do not draft. On 5 other prompts the fastest of 2 settings, s1, ran at 0.65 [0.60, 0.70] times "
            "the plain speed; 1.70 [1.20, 2.20] was predicted."
        )
        assert advice((0.65, 0.6, 0.7)).sentence.startswith("Do not draft. On 5 other prompts s0 ran at 0.65")
        unsure = advice((1.25, 0.98, 1.4))
        assert unsure.answer == UNDECIDED and "--confirm" not in unsure.sentence
        good = advice((1.25, 1.1, 1.4), (1.3, 1.2, 1.4))
        assert good.answer == USE and good.sentence.startswith("Draft with s1: 1.30 [1.20, 1.40] times")
        good.confirmed[1]["joint"] = [1.3, 0.99, 1.5]  # the best of two is not as sure as one named before
        assert good.answer == UNDECIDED and "s1 ran at 1.30 [0.99, 1.50] times" in good.sentence
        good.setting |= {"texts": 7, "tokens": 70, "between": [1, 2], "device": "cpu", "threads": 1,
                         "clock": "c", "dtype": "float32", "temperature": 0, "left_out": {}}  # fmt: skip
        assert any("the fastest of 2 settings is advised" in note and "97.5%" in note for note in good.notes)

    def test_noise_and_thresholds_are_named(self, made):
        calm = Ranking(made, flat(rest=0.1)).predictions()
        assert advising.noisy(calm) == []
        wild = [replace(each, rest=-0.26) for each in calm]
        assert "seems to take less time than its passes" in advising.noisy(wild)[0]
        sure, fixed = chain(16, 0.6), chain(4)
        listed = [replace(calm[0], candidate=sure), replace(calm[0], candidate=fixed, speedup=1.34)]
        found = advising.fastest_chain(listed, sure)
        assert found == (fixed, 1.34)
        by_engine = {each.engine: each for each in engines.flags_of(sure, "small", found)}
        assert '"num_speculative_tokens": 4' in by_engine["vLLM"].flags
        assert "predicted 1.34 times" in by_engine["vLLM"].note
        assert "--spec-draft-n-max 16" in by_engine["llama.cpp"].flags
        wide, narrow = (
            Candidate("eagle", "head", (("draft_size", 4), ("depth", 4), ("branches", branches)), 4)
            for branches in (2, 1)
        )
        listed = [replace(calm[0], candidate=wide), replace(calm[0], candidate=narrow, speedup=1.2)]
        assert advising.fastest_chain(listed, wide) == (narrow, 1.2)
        assert advising.fastest_chain(listed[:1], wide) is None


def cheapest(at, ends, costs, n):
    """The least cost of all sequences of cycles from a place on; of those that end alike, the cheapest."""
    if at == n:
        return 0.0
    by_end = {end: costs[ends[:, at] == end, at].min() for end in set(ends[:, at].tolist())}
    return min(cost + cheapest(end, ends, costs, n) for end, cost in by_end.items())


# ---------------------------------------------------------------- from prompts to an advice


class TestSurface:
    PASSES = PassTimes([1, 2, 4, 9, 17], [10, 110], [1, 4], np.full((5, 2), 10.0), np.ones((2, 5)), 0.0)

    def test_a_point_has_the_acceptance_of_its_tau(self):
        setting = Setting("x", 4.0, 2.5)
        assert speedups.written(np.array(4.0), np.array(setting.rate)) == pytest.approx(2.5, abs=1e-3)
        cost = speedups.cycle_cost(self.PASSES, 0.0, np.array([4.0]), 10, 4, 0.1)
        assert cost == pytest.approx(1.4)  # all passes take the same time; four tokens add 0.1 each

    def test_other_temperatures(self, pair):
        """Sampling odds along a greedy text: Σ min(p, q) at each position, and p of a copied token."""
        target, draft = pair
        listed = [PLAIN, lookup(3, 1, 4), chain(1), chain(4)]
        made = read_all(pair, [[1, 2, 3], [4, 4, 1, 4, 4]], most=20)
        for reading in made:
            text = reading.text
            for temperature in readings.TEMPERATURES:
                warm, odds = reading.at(temperature), []
                for place in range(len(text.tokens)):
                    before = text.ids + text.tokens[:place]
                    p, q = (
                        Sampling(temperature).probabilities(model.logits(before)) for model in (target, draft)
                    )
                    odds.append((torch.minimum(p, q).sum().item(), p[text.tokens[place]].item()))
                assert np.allclose(warm.odds["small"], [both for both, _ in odds], atol=1e-5)
                assert np.allclose(warm.copied, [own for _, own in odds], atol=1e-5)
        greedy = Simulation(made, listed)
        warm = Simulation([each.at(1.0) for each in made], listed, greedy=False)
        for candidate in listed[1:]:
            assert 1 <= warm.tau(candidate) <= candidate.length + 1
        quoting = Text("", "", [1, 2, 3], [1, 2, 3] * 5, "length", 15, frozenset())
        widths = readings.roundings(quoting, pair)
        quoted = readings.read(quoting, target, [draft], GREEDY, widths)
        assert Simulation([quoted], listed).tau(listed[1]) == 3
        low = Simulation([quoted.at(0.7)], listed, greedy=False).tau(listed[1])
        assert 1 < low < Simulation([quoted], listed).tau(listed[1]), "a copy that agrees may not be drawn"
        rows = Ranking(greedy, flat()).sampled()
        assert [row["where"] for row in rows] == ["temperature 0.7", "temperature 1"]

    def test_it_follows_prices(self):
        target = tiny.TableModel(5, 1, max_length=96, name="table")
        pair = target, tiny.TableModel(5, 2, max_length=96, near=target, mix=0.8, name="small")
        made = Simulation(read_all(pair, [[1, 2, 3], [4, 1], [2] * 9]), [PLAIN, chain(1), chain(3)])
        ranking = Ranking(made, flat(slope=0.3, per_context=0.0, batches=(4,)))
        passes, (drafter,) = ranking.passes(), ranking.drafters()
        assert passes(np.array([1.0, 3.0]), 50, 1) == pytest.approx([10, 16])
        assert passes.one(50, 4) == pytest.approx(11)
        for setting, each in zip(drafter.settings, ranking.predictions()[::-1]):
            at = speedups.cycle_cost(passes, drafter.fixed, np.array([setting.sent]), 50, 1, 2.5 / 11)
            assert setting.tau / at == pytest.approx(
                next(p.speedup for p in ranking.predictions() if p.candidate.label == setting.label), rel=0.02
            ), each

    def test_sliders_move_the_surface_and_a_click_decodes(self):
        pytest.importorskip("plotly")
        from specviz.widgets.surface import SpeedupSurface

        settings = [Setting("one", 1.0, 1.5), Setting("<b>four", 4.0, 2.5)]
        drafters = [Drafter("small", 2.0, 0.0, 0.5, settings), Drafter("copy", 0.0, 0.0, 0.0, settings[:1])]
        asked = []

        def decode(key):
            asked.append(key)
            raise ParameterError("no trace <here>")

        made = SpeedupSurface(self.PASSES, drafters, {"one": 1, "<b>four": 4}, decode)
        before = made.figure.data[0].z
        words = [each.description for each in (made.context, made.batch, made.cost)]
        assert words == ["context, tokens", "batch, texts", "token cost, passes"]
        assert made.cost.value == pytest.approx(0.25) and "pays from an acceptance of" in made.sentence
        made.cost.value = 0.0
        assert (made.figure.data[0].z >= before).all() and made.figure.data[0].z.max() > before.max()
        made.rate.value = 0.0
        assert made.sentence.startswith("At an acceptance of 0.00 the best draft has 1 token: 1.00 times")
        assert "<b>" not in made.figure.data[2].text[1]
        made.show_trace([1])
        made.drafter.value = "copy"
        made.show_trace([1])  # this point no longer exists
        made.show_trace([0])
        assert asked == [4, 1] and made.cost.value == 0

    def test_the_list_decodes_and_one_player_stays_open(self):
        pytest.importorskip("plotly")
        from specviz.widgets.job import decoding
        from specviz.widgets.surface import SpeedupSurface

        settings = [Setting("one", 1.0, 1.5), Setting("four", 4.0, 2.5)]
        drafters = [Drafter("small", 2.0, 0.0, 0.5, settings), Drafter("none", 0.0, 0.0, 0.0, [])]
        calls = []

        def decode(key):
            calls.append((key, decoding.locked()))
            return build("speculative")

        made = SpeedupSurface(self.PASSES, drafters, {"one": 1, "four": 4}, decode)
        assert "speedup" in made.figure.layout.title.text
        made.choice.value = "four"
        made.button.click()
        first = made._player
        made.show_trace([0])
        assert calls == [(4, True), (1, True)] and not decoding.locked()
        kept = made._player
        with decoding:  # waiting would block the kernel, and the other decode's stop button
            made.show_trace([0])
        assert len(calls) == 2 and made._player is kept
        parts = [*made.children, made.rate, made.button, made._player]
        assert first.comm is None and all(each.comm is not None for each in parts)
        made.drafter.value = "none"
        assert made.button.disabled and made.choice.options == ()
        made.close()
        assert all(each.comm is None for each in parts)

    def test_the_sentence_does_not_contradict_itself(self):
        pytest.importorskip("plotly")
        from specviz.widgets.surface import LENGTHS, SpeedupSurface

        made = SpeedupSurface(self.PASSES, [Drafter("small", 2.0, 0.0, 0.5, [])])
        pays = float(made.sentence.rpartition("acceptance of ")[2].split()[0])
        for rate in np.arange(99) / 100:
            best = made.speedup(LENGTHS.astype(float), np.full(len(LENGTHS), rate)).max()
            assert (best > 1) == (rate >= pays), rate
        made.rate.value = pays - 0.004
        shown = made.sentence
        made.rate.value = pays
        assert made.sentence == shown, "both are shown with two digits"


SMALL = {"ROUNDS": 2, "PILOTS": 1, "PILOT_TOKENS": 6}


@pytest.fixture
def quick(monkeypatch):
    for name, value in SMALL.items():
        monkeypatch.setattr(prices, name, value)
    monkeypatch.setattr(simulation, "LENGTHS", (1, 2, 4))
    monkeypatch.setattr(simulation, "NGRAMS", ((3, 1),))
    monkeypatch.setattr(simulation, "STOPS", (0.0, 0.4))


@pytest.fixture(scope="module")
def models():
    target = tiny.llama(seed=3, eos=(1,), max_length=128, name="tiny")
    return target, tiny.llama(seed=4, eos=(1,), max_length=128, name="tiny-small", like=target, noise=0.02)


PROMPTS = [[3, 4, 5], [7, 8], [9, 3, 9, 3], [5, 6, 7, 8], [11, 12], [13, 14, 15], [2, 3], [21, 22]]


def ask(models, folder, **more):
    target, draft = models
    given = {"max_new_tokens": 12, "number": 6, "folder": folder, "tick": lambda *_: None}
    return specviz.advise(target, draft, PROMPTS, **(given | more))


class TestAdvise:
    def test_confirmed_and_resumed(self, models, tmp_path, quick, monkeypatch):
        written = []
        write_text = readings.write_text
        monkeypatch.setattr(
            readings, "write_text", lambda *given: written.append(given) or write_text(*given)
        )
        ticks = []

        def stop(done, of, what):
            ticks.append((done, of))
            if len(written) == 4:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt, match="again to continue"):
            ask(models, tmp_path, confirm=True, tick=stop)
        assert list(tmp_path.iterdir())
        made = ask(models, tmp_path, confirm=True, tick=lambda *now: ticks.append(now[:2]))
        assert len(written) == 6  # the first four were saved
        assert not list(tmp_path.iterdir())
        assert all(done <= of for done, of in ticks) and ticks[-1][0] == ticks[-1][1]
        assert len(made.confirmed) == 3 and made.setting["confirmed_on"] == 2
        assert all(row["joint"][0] == row["measured"][0] for row in made.confirmed)
        by_label = {each.candidate.label: each for each in made.predictions}
        confirmed = [by_label[row["label"]] for row in made.confirmed]
        assert len({(e.candidate.family, e.tau, e.accepted) for e in confirmed}) == 3, "no draft twice"
        assert {row["label"] for row in made.confirmed} <= {each.candidate.label for each in made.predictions}
        kinds = {each.candidate.family for each in made.shown}
        assert kinds == {(BASELINE, ""), (LOOKUP, ""), (CHAIN, "tiny-small")}
        trace = made.decode(made.best.candidate)
        assert trace.run["method"] == made.best.candidate.method and len(trace.outputs)
        shown = made.surface()
        assert made._repr_mimebundle_().keys() >= {"text/html", "text/plain"}
        assert [each.name for each in shown.drafters.values()] == [
            "prompt_lookup",
            "speculative (tiny-small)",
        ]

    @pytest.mark.parametrize("longest", [96, simulation.LONGEST + 4])  # the latter has one context
    @pytest.mark.parametrize("confirm", [False, True])
    def test_the_total_is_what_runs(self, models, tmp_path, quick, monkeypatch, longest, confirm):
        monkeypatch.setattr(prices, "PILOTS", 4)  # two of four texts
        target, small = models[0], tiny.llama(seed=4, max_length=longest, name="small")
        net = BlockwiseHeads(1, 32, 12).requires_grad_(False)
        heads = Heads(net, {"target": "tiny", "heads": 1, "width": 32}, "tiny-heads")  # blocks of two tokens
        ticks = []
        given = {"number": 4, "confirm": confirm, "tick": lambda *now: ticks.append(now[:2])}
        ask((target, [small, heads]), tmp_path, **given)
        assert {of for _, of in ticks} == {ticks[-1][0]}

    def test_timed_passes_are_kept_part_by_part(self, models, tmp_path, quick):
        def stop(done, of, what):
            if what == "passes after 10 tokens":
                raise KeyboardInterrupt

        given = {"batch": 2, "context": (8, 10)}
        with pytest.raises(KeyboardInterrupt):
            ask(models, tmp_path, **given, tick=stop)
        ticks = []
        made = ask(models, tmp_path, **given, tick=lambda *now: ticks.append(now))
        timed = [what for *_, what in ticks if what.startswith(("short runs", "passes"))]
        assert timed == ["passes after 10 tokens"] * 4  # two rounds of two models
        assert ticks[-1][0] == ticks[-1][1] and len({of for _, of, _ in ticks}) == 1
        assert {row["where"] for row in made.changes} >= {"context 8", "context 10", "batch 2"}

    @pytest.mark.parametrize("content", ["{}", '{"texts": [], "prices": {"passes": []}}', "[" * 100_000])
    def test_kept_work_that_is_damaged_is_done_anew(self, models, tmp_path, quick, content):
        def stop(done, of, what):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            ask(models, tmp_path, tick=stop)
        (kept,) = tmp_path.iterdir()
        kept.write_text(content, encoding="utf-8")
        with pytest.raises(KeyboardInterrupt):
            ask(models, tmp_path, tick=stop)
        assert len(json.loads(kept.read_text(encoding="utf-8"))["texts"]) == 1

    def test_answers(self, town, tmp_path, quick):
        own = readings.write_text(town, {}, town.encode("Hello"), "", 12, GREEDY, 0, 0)
        file = tmp_path / "answers.jsonl"
        given = {"turns": ["Hello", "And?"], "token_ids": own.tokens, "kind": "greeting", "id": 7}
        words = {
            "messages": [{"role": "user", "content": "Hello"}],
            "answer": "Good",
            "finish_reason": "stop",
        }
        wrong = [*own.tokens[:3], own.tokens[3] + 1]
        file.write_text("".join(json.dumps(each) + "\n" for each in (given, words)), "utf8")
        texts = readings.texts_of(answer_files.read(file), town)
        assert texts[0].tokens == own.tokens and texts[0].end == own.end and texts[0].ids == own.ids
        assert (texts[0].name, texts[0].kind) == ("7", "greeting")
        assert texts[1].end == "eos" and texts[1].tokens[-1] in town.eos
        assert texts[1].end_assumed and not texts[0].end_assumed
        lines = (given, given | {"token_ids": wrong})
        file.write_text("".join(json.dumps(each) + "\n" for each in lines), "utf8")
        made = specviz.advise(town, "town-draft", answers=file, folder=tmp_path, tick=lambda *_: None)
        assert any("1 token of 1 text differs from what town writes" in each for each in made.warnings)
        assert {each.badge for each in made.predictions} == {"modelled"}

    def test_answers_say_how_they_were_sampled(self, tmp_path):
        file = tmp_path / "answers.jsonl"

        def of(*settings):
            lines = ({"prompt": "a", "answer": "b", **each} for each in settings)
            file.write_text("".join(json.dumps(each) + "\n" for each in lines), "utf8")
            return readings.sampling_of(answer_files.read(file))

        assert of({}, {"temperature": 0}, {"temperature": 0, "top_p": 0.9}) == GREEDY
        assert of({"temperature": 0.7, "top_p": 0.9}) == Sampling(0.7, 0, 0.9)
        with pytest.raises(PromptError, match="answers of 2 kinds of sampling"):
            of({"temperature": 0.7}, {})

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("[1]", "line 1"), ('{"prompt": "a"}', "lacks 'answer' (a string) or 'token_ids'"),
            ('{"answer": "a"}', "lacks 'prompt', 'turns' or 'messages'"), ("{", "not JSON"),
            ('{"prompt": "a", "token_ids": [99999]}', "outside the vocabulary"),
            ('{"prompt": "a", "turns": ["b"], "answer": "c"}', "has several of"),
            ('{"prompt": "a", "token_ids": ["x"]}', "token_ids"), ("", "holds no answers"),
            ('{"prompt": "a", "answer": 3}', "answer"), ('{"prompt": "a", "answer": ""}', "is empty"),
        ],
    )  # fmt: skip
    def test_bad_answers_are_one_line(self, town, tmp_path, line, words):
        file = tmp_path / "answers.jsonl"
        file.write_text(line + "\n", "utf8")
        with pytest.raises(PromptError) as error:
            readings.texts_of(answer_files.read(file), town)
        assert words in str(error.value) and "\n" not in str(error.value)

    def test_refusals(self, models, tmp_path):
        target, draft = models
        for more, kind, words in (
            ({"confirm": True, "temperature": 0.5}, ParameterError, "greedily: leave temperature at 0"),
            ({"seed": -1}, ParameterError, "seed must be a whole number from 0"),
            ({"confirm": True, "number": 8}, PromptError, "no prompt is left to confirm on"),
            ({"context": [4096]}, ParameterError, "do not fit into tiny"),
            ({"top_k": 5}, ParameterError, "temperature 0 draws nothing"),
            ({"top_p": 0.9, "as_device": "h100"}, ParameterError, "temperature 0 draws nothing"),
            (
                {"answers": [{"prompt": "a", "answer": "b"}], "suite": None, "temperature": 0.0, "top_k": 5},
                ParameterError,
                "temperature 0 draws nothing",
            ),
            ({"batch": [0]}, ParameterError, "batch"),
            ({"batch": 4.0}, ParameterError, "batch"),
            ({"context": "8"}, ParameterError, "context"),
            ({"answers": tmp_path / "x", "suite": "town"}, ParameterError, "drop one"),
            ({"max_new_tokens": 1}, ParameterError, "max_new_tokens"),
            (
                {"max_new_tokens": 2**63},
                ParameterError,
                "max_new_tokens must be a whole number of at least 2 and below",
            ),
            ({"answers": tmp_path / "x", "suite": None, "number": 0}, ParameterError, "number"),
            ({"confirm": [[3, 4] * 60], "max_new_tokens": 500}, PromptError, "lower --max-new-tokens"),
        ):
            given = {"suite": PROMPTS, "folder": tmp_path, "tick": lambda *_: None} | more
            with pytest.raises(kind, match=words):
                specviz.advise(target, draft, **given)
        with pytest.raises(ModelError, match="causal"):
            specviz.advise("town-t5", suite=PROMPTS)

    def test_the_advised_setting_is_a_command_of_this_package(self, models, tmp_path, quick, capsys):
        made = ask(models, tmp_path)
        drafting = [one for one in made.predictions if one.drafts]
        assert drafting
        for each in drafting:
            words = shlex.split(replace(made, predictions=[each], confirmed=[]).command)
            assert words[:5] == ["specviz", "generate", each.candidate.method, "-m", "MODEL"]
            words = [{"MODEL": "town", "FILE": str(tmp_path / "none.txt"), "small": "town-draft"}.get(w, w)
                     for w in words[1:]]  # fmt: skip
            assert cli.run(words) == 2
            assert "none.txt" in capsys.readouterr().err  # everything else is valid

    def test_the_command_names_what_was_given(self, tmp_path, quick):
        copy = shutil.copytree(loading.find("town-draft"), tmp_path / "mine")
        made = specviz.advise(
            "town", ["town-draft", copy], PROMPTS, folder=tmp_path, tick=lambda *_: None, max_new_tokens=8
        )
        commands = {
            each.candidate.draft: shlex.split(replace(made, predictions=[each], confirmed=[]).command)
            for each in made.predictions
            if each.candidate.draft
        }
        assert {name: words[words.index("--draft") + 1] for name, words in commands.items()} == {
            "town-draft": "town-draft", "mine": str(copy),
        }  # fmt: skip
        assert all(words[words.index("-m") + 1] == "town" for words in commands.values())

    def test_a_loaded_drafter_is_named_by_its_folder(self, town, models, tmp_path):
        mine = shutil.copytree(loading.find("town-draft"), tmp_path / "mine")
        given = [specviz.load(mine), specviz.load("town-draft")]
        assert advising._drafters(town, given, None, None)[1] == {
            "mine": str(mine),
            "town-draft": "town-draft",
        }
        assert advising._drafters(models[0], models[1], None, None)[1] == {"tiny-small": "DRAFT"}
        file = SimpleNamespace(name="q", path=tmp_path / "q.gguf")
        assert advising._argument(file, file) == f"gguf:{file.path}"
        assert advising._drafters(town, town.first(1), None, None)[1] == {"town[:1]": "DRAFT"}
        small = TrimmedModel(trimmed.cut(town.net, 1, range(100)), town, "small")
        assert advising._drafters(town, small, None, None)[1] == {"small": "DRAFT"}
        for name in ("town-eagle", "town-draft"):
            other = shutil.copytree(loading.find(name), tmp_path / "other" / name[5:])
            assert advising._drafters(town, specviz.load(other), None, None)[1] == {name[5:]: str(other)}

    def test_a_drafter_named_twice_is_one(self, town):
        for twice in (["town-draft"] * 2, [loading.find("town-draft")] * 2):
            assert list(advising._drafters(town, twice, None, None)[0]) == ["town-draft"]

    def test_sizes_are_numbers_or_lists_of_them(self):
        assert advising._sizes(None, None) == ([1], [])
        assert advising._sizes(np.int64(4), np.array([8, 2])) == ([1, 4], [2, 8])
        assert advising._sizes((2,), range(3, 5)) == ([1, 2], [3, 4])
        assert advising._sizes(np.array(4), (n for n in (8, 2))) == ([1, 4], [2, 8])
        with pytest.raises(ParameterError, match="'8'"):
            advising._sizes("8", None)

    def test_memory_counts_the_rows_of_a_cut_head(self):
        target, tokens = tiny.llama(max_length=64, name="tiny"), torch.tensor([1, 5, 7])
        width, size = target.config.hidden_size, target.dtype.itemsize
        small = TrimmedModel(trimmed.cut(target.net, 1, tokens.tolist()), target, "small")
        cache = Shape(small.geometry).slot
        assert advising.memory_of(small, 10) == (small.parameters + 3 * width) * size + 10 * cache
        net = BlockwiseHeads(1, width, 12, tokens).requires_grad_(False)
        heads = Heads(net, {"target": "tiny", "heads": 1, "width": width}, "heads").on(target)
        assert advising.memory_of(heads, 10) == (heads.parameters + 3 * width) * size
        small.kernels = "int8"
        assert advising.memory_of(small, 10) is None

    def test_a_drafter_without_room_for_a_prompt_is_left_out(self, models, tmp_path, quick):
        """A run with it would be refused, also one that confirms; the target itself has room."""
        target = models[0]
        small = tiny.llama(seed=4, eos=(1,), max_length=32, name="short", like=target, noise=0.02)
        given = {"max_new_tokens": 6, "number": 2, "folder": tmp_path, "tick": lambda *_: None}
        long = [3, 4, 5, 6] * 8
        for more in ({"suite": [long]}, {"suite": PROMPTS[:2], "confirm": [long]}):
            made = specviz.advise(target, small, **(given | more))
            reason = "short (a prompt of 32 tokens leaves no room in its context of 32)"
            assert f"skipped: {reason}" in made.notes
            assert {each.candidate.family[0] for each in made.predictions} == {BASELINE, LOOKUP}
            assert {each.candidate.draft for each in made.on("h100").predictions} == {""}
        assert "short" in {
            each.candidate.draft for each in specviz.advise(target, small, [long[:31]], **given).predictions
        }

    def test_a_long_prompt_that_no_run_decodes_keeps_its_drafter(self, models, tmp_path, quick):
        target = models[0]
        small = tiny.llama(seed=4, eos=(1,), max_length=32, name="short", like=target, noise=0.02)
        given = {"max_new_tokens": 6, "folder": tmp_path, "tick": lambda *_: None}
        long = [3, 4, 5, 6] * 8
        for prompts, more in (([*PROMPTS[:5], long], {}), ([long], {"as_device": "h100"})):
            made = specviz.advise(target, small, prompts, number=len(prompts), **(given | more))
            assert "short" in {each.candidate.draft for each in made.predictions}

    def test_progress_that_is_not_saved_is_not_promised(self, models, tmp_path, quick, capsys):
        def stop(done, of, what):
            if what == "reading them":
                raise KeyboardInterrupt

        (tmp_path / "file").write_text("")
        with pytest.raises(KeyboardInterrupt) as error:
            ask(models, tmp_path / "file", tick=stop)
        assert not str(error.value)
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1 and lines[0].startswith(
            "specviz: advise continues without saving its progress: "
        )

    def test_a_folder_of_one_s_home(self, models, tmp_path, quick, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        monkeypatch.chdir(tmp_path)
        with pytest.raises(KeyboardInterrupt, match="progress is kept"):
            ask(models, "~/x", tick=lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        assert list((tmp_path / "home" / "x").iterdir()) and not (tmp_path / "~").exists()

    def test_progress_that_cannot_be_deleted_costs_no_advice(self, tmp_path):
        (tmp_path / "file").write_text("")
        for path in (tmp_path / "file" / "x.json", tmp_path / "none", tmp_path):
            advising.State(path, {}).done()

    def test_the_same_answers_to_other_prompts_are_another_work(self, models):
        def digest(prompt: int) -> str:
            text = Text("0", "", [prompt], [5, 6, 7], "length", 3, frozenset())
            return advising.Job(models[0], {}, [], [], [text], [], 3, GREEDY, 0, [1], [], None).digest

        assert digest(3) == digest(3) != digest(4)

    def test_stores_are_decoded_once(self, models, tmp_path, quick, monkeypatch):
        def stop(done, of, what):
            if what == "decoding with lookahead":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            ask(models, tmp_path, stores=True, tick=stop)
        ticks = []
        made = ask(models, tmp_path, stores=True, tick=lambda *now: ticks.append(now))
        assert all(done <= of for done, of, _ in ticks)
        assert "decoding with unispec" not in {what for *_, what in ticks}  # it was saved
        rows = {each.candidate.method: each for each in made.predictions if not each.candidate.by_place}
        assert set(rows) == set(simulation.STORES)
        target = models[0]
        for name, row in rows.items():
            method, cycles, tokens = find(name)(draft_size=16), 0, 0
            for i, ids in enumerate(PROMPTS[:6]):
                run = [c for c in decode(target, ids, method, max_new_tokens=12, prompt=i) if c.number]
                cycles, tokens = cycles + len(run), tokens + sum(len(c.tokens) for c in run)
            assert row.badge == "counted" and row.tau == row.tau_low == row.tau_high == tokens / cycles
            assert row.cycle == pytest.approx(row.forward + row.rest)
            assert row.memory == method.memory["bytes"] > 0
        with pytest.raises(ParameterError, match="stores decode greedily"):
            ask(models, tmp_path, stores=True, temperature=1.0)

    def test_sampled(self, models, tmp_path, quick):
        made = ask(models, tmp_path, temperature=1.0)
        assert made.oracle is None and {each.badge for each in made.predictions if each.drafts} == {"bounded"}
        assert any("Σ min(p, q)" in each for each in made.notes)
        assert not any("was not checked" in each for each in made.warnings), "it wrote them itself"

    def test_sampled_answers(self, town, tmp_path, quick):
        """Nothing shows that the model wrote them, so the advice says so; confirming would be greedy."""
        file = tmp_path / "answers.jsonl"
        own = readings.write_text(town, {}, town.encode("Hello"), "", 12, Sampling(0.8, 0, 0.9), 0, 0)
        line = {"turns": ["Hello"], "token_ids": own.tokens, "temperature": 0.8, "top_p": 0.9, "min_p": 0.1}
        file.write_text(json.dumps(line) + "\n", "utf8")
        given = {"answers": file, "folder": tmp_path, "tick": lambda *_: None}
        made = specviz.advise(town, "town-draft", **given)
        assert any("whether town wrote these sampled answers was not checked" in w for w in made.warnings)
        assert any("some answers were decoded with min_p 0.1, which is not" in w for w in made.warnings)
        assert {each.badge for each in made.predictions} == {"modelled"}
        words = shlex.split(made.command)
        assert words[-6:-2] == ["--temperature", "0.8", "--top-p", "0.9"]
        with pytest.raises(ParameterError, match="these answers were sampled, and confirming decodes greedi"):
            specviz.advise(town, "town-draft", confirm=["The cook saw the cook."], **given)
        with pytest.raises(ParameterError, match="drop top_k and top_p, or pass a temperature"):
            specviz.advise(town, "town-draft", top_k=5, **given)

    def test_as_many_answers_as_prompts_are_read(self, tmp_path):
        """24 unless a number is given, spread over the kinds; the notes say how many were left out."""
        file = tmp_path / "answers.jsonl"
        lines = [{"prompt": str(i), "answer": "b", "kind": "ab"[i >= 40]} for i in range(50)]
        file.write_text("".join(json.dumps(each) + "\n" for each in lines), "utf8")
        request = advising.Request(answers=file)
        assert [each.kind for each in request.lines] == ["a", "b"] * 10 + ["a"] * 4
        assert request.left_out == {"26 answers": "--number is 24"}
        assert len(advising.Request(answers=file, number=50).lines) == 50
        assert [each.name for each in advising.Request(answers=[lines[0] | {"id": 7}]).lines] == ["7"]
        altered = advising.Request(answers=[*lines, lines[0] | {"repeat_penalty": 1.1}], number=3).altered
        assert altered == [], "only those of the chosen lines count"

    def test_answers_are_confirmed_on_other_prompts(self, town, tmp_path):
        """Each prompt is used once, and none whose answer is there, in whatever form the two are written."""
        file = tmp_path / "answers.jsonl"
        prompts = (
            {"turns": ["Hello", "And?"]}, {"messages": [{"role": "user", "content": "Name the animals."}]},
            {"prompt": "Who is in the garden?"},
        )  # fmt: skip
        file.write_text("".join(json.dumps(each | {"answer": "Good."}) + "\n" for each in prompts), "utf8")
        chat = [{"role": "user", "content": "Who is in the garden?"}]
        confirm = ["Name the animals.", {"turns": ["Hello"]}, {"prompt": chat}]
        others = ["The cook saw the cook.", "Once upon a time", "The cook saw the cook."]
        chosen, left = advising.Request(answers=file, confirm=[*confirm, *others]).prompts(town)
        assert chosen == []
        assert [first_turn_key(each) for each in left] == [json.dumps(each) for each in others[:2]]
        with pytest.raises(PromptError, match="the same as those of the advice"):
            advising.Request(answers=file, confirm=confirm).prompts(town)


def test_flags_say_the_setting():
    made = {each.engine: each for each in engines.flags_of(lookup(3, 2, 7))}
    config = json.loads(shlex.split(made["vLLM"].flags)[1])
    assert config == {
        "method": "ngram", "num_speculative_tokens": 7, "prompt_lookup_max": 3, "prompt_lookup_min": 2,
    }  # fmt: skip
    assert "--speculative-num-draft-tokens 8 " in made["SGLang"].flags  # with the verified token
    assert not made["mlx-lm"].flags and "no prompt lookup" in made["mlx-lm"].note
    assert "--speculative-ngram-max-trie-depth 10 " in made["SGLang"].flags
    assert "older versions take --speculative-ngram-min-match-window-size 2" in made["SGLang"].note
    assert "after the latest match" in engines.flags_of(lookup(3, 3, 7))[2].note
    made = {each.engine: each for each in engines.flags_of(chain(4, 0.4), "my draft")}
    config = json.loads(shlex.split(made["vLLM"].flags)[1])
    assert config == {"method": "draft_model", "model": "my draft", "num_speculative_tokens": 4}
    assert "no threshold" in made["vLLM"].note and "--spec-draft-p-min 0.4" in made["llama.cpp"].flags
    assert shlex.split(made["mlx-lm"].flags)[2] == "my draft"
    assert all(engines.READ in each.source for each in made.values())
    assert not any(each.flags for each in engines.flags_of(Candidate("blockwise", "heads", (("k", 2),), 1)))
    tree = Candidate("eagle", "head", (("draft_size", 8), ("depth", 3), ("branches", 4)), 3)
    made = {each.engine: each for each in engines.flags_of(tree, "a head")}
    config = json.loads(shlex.split(made["vLLM"].flags)[1])
    assert config == {"method": "eagle3", "model": "a head", "num_speculative_tokens": 3}
    words = shlex.split(made["SGLang"].flags)
    assert words[1] == "EAGLE3" and words[3] == "a head" and words[5::2] == ["3", "4", "9"]
    assert shlex.split(made["llama.cpp"].flags)[1::2] == ["draft-eagle3", "a head", "3"]
    assert not made["mlx-lm"].flags and "only this package" not in made["SGLang"].note
    assert "without branches" in made["vLLM"].note and not made["SGLang"].note
    chain_of_four = Candidate("eagle", "head", (("draft_size", 4), ("depth", 4), ("branches", 1)), 4)
    made = {each.engine: each for each in engines.flags_of(tree, "a head", (chain_of_four, 1.27))}
    for name in ("vLLM", "llama.cpp"):
        assert "predicted 1.27 times the plain speed" in made[name].note
    assert json.loads(shlex.split(made["vLLM"].flags)[1])["num_speculative_tokens"] == 4
    assert shlex.split(made["llama.cpp"].flags)[-1] == "4"
    assert shlex.split(made["SGLang"].flags)[5::2] == ["3", "4", "9"], "it drafts the tree itself"
    alone = {each.engine: each for each in engines.flags_of(chain_of_four, "a head")}
    assert not alone["vLLM"].note and alone["llama.cpp"].note == "both models as GGUF files"
    made = {each.engine: each for each in engines.flags_of(tree, "smollm2-eagle3", generation=1)}
    assert '"method": "eagle"' in made["vLLM"].flags and "only this package reads" in made["vLLM"].note
    assert not made["llama.cpp"].flags and " EAGLE " in made["SGLang"].flags


def test_other_engines_get_a_drafter_that_they_can_load(models):
    job = advising.Job(models[0], {}, [], [], [], [], 3, GREEDY, 0, [1], [], None)
    job.given_as = {"a": "hf:org/a", "b": "gguf:some/b.gguf", "c": "/c"}
    names = [advising.Work._engine_name(SimpleNamespace(job=job), name) for name in ("a", "b", "c", "d", "")]
    assert names == ["org/a", "some/b.gguf", "/c", "d", "DRAFT"]
    path = shlex.quote(str(loading.find("town-draft")))
    made = {each.engine: each for each in engines.flags_of(chain(4), "town-draft")}
    assert path in made["mlx-lm"].flags and not made["mlx-lm"].note
    made = engines.flags_of(chain(4), "smollm2-draft")
    assert all("only this package reads" in each.note for each in made)


def test_kinds_of_work_that_differ():
    assert kinds_differ(["a", "b"], ["b", "a", "a", "b"]) == "" == kinds_differ(["a"], ["", ""])
    assert "2 code" in kinds_differ(["prose"] * 4, ["code", "code"])


def test_ten_settings_are_among_those_simulated():
    every = set(simulation.candidates({"d": "causal", "h": "heads"}, {"h": 4}, True))
    chosen = candidate_settings("d", "h")
    assert len(chosen) == 10 and set(chosen) <= every


def test_the_command_line(capsys, tmp_path):
    assert cli.run(["advise", "town", "--answers", str(tmp_path / "none.jsonl")]) == 2
    assert "it is not a file" in capsys.readouterr().err
    assert cli.run(["advise", "town", "--batch", "x"]) == 2
    assert "--batch takes numbers" in capsys.readouterr().err


def test_the_command_that_is_printed_decodes(tmp_path, quick, capsys, monkeypatch):
    """It has the model as it was named, samples as the texts were sampled, and computes as the advice did."""
    monkeypatch.setenv("SPECVIZ_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    shutil.copytree(loading.find("town"), "mine")
    (tmp_path / "prompts.txt").write_text("The cook saw the cook.\nOnce upon a time\n", "utf8")
    sampling = ["--temperature", "0.7", "--top-k", "5", "--top-p", "0.9"]
    loaded = ["--dtype", "float64", "--kernels", "plain", "--no-invariant", "--threads", "1"]
    words = ["advise", "./mine", "--prompts", "prompts.txt", "-n", "6", *sampling, "--seed", "3", *loaded]
    assert cli.run([*words, "--json", "advice.json"]) == 0
    made = json.loads((tmp_path / "advice.json").read_text("utf8"))
    command = shlex.split(made["command"])
    assert command[0] == "specviz" and command[3:5] == ["-m", "./mine"]
    assert command[-15:] == [*sampling, *loaded, "--prompts", "FILE"]
    capsys.readouterr()
    assert cli.run([*command[1:-1], "prompts.txt", "-n", "2"]) == 0, capsys.readouterr().err


def test_a_command_names_the_revision(models, tmp_path, quick):
    request = advising.Request(models[1], PROMPTS, number=2, max_new_tokens=6)
    made = request.advise(models[0], "hf:a/b", revision="main", folder=tmp_path, tick=lambda *_: None)
    assert shlex.split(made.command)[3:7] == ["-m", "hf:a/b", "--revision", "main"]


class TestDevices:
    def test_a_roofline(self, models, tmp_path, quick):
        """If memory-bound, a pass costs its bytes; if launch-bound, all pass sizes cost the same."""
        shape = devices._shape(models[0])
        slow = devices.device_of("1e6,1e15,0")
        moved = shape.chain(4, 10, 4, 1)[1]
        assert devices._seconds(slow, shape, 4, 10, 1) == pytest.approx(moved / 1e6)
        made = ask(models, tmp_path, as_device="1e30,1e30,1e-3", batch=[8], context=[64])
        assert made.best.speedup == pytest.approx(made.best.tau / made.best.cycle)
        assert made.predictions[0].rest == 0 and made.setting["as_device"].startswith("1e30,1e30,1e-3")
        lookup_made = next(each for each in made.predictions if each.candidate.method == LOOKUP)
        assert lookup_made.speedup == pytest.approx(lookup_made.tau)
        assert any(each.startswith("modelled: ") for each in made.notes)

    def test_a_mixture_reads_more_experts_the_longer_the_draft(self, tmp_path, quick):
        """The router decides which, both in timed passes and in those predicted for another device."""
        config = MixtralConfig(
            vocab_size=96, hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, num_local_experts=6, num_experts_per_tok=2, max_position_embeddings=256,
        )  # fmt: skip
        torch.manual_seed(0)
        mixture = Model(MixtralForCausalLM(config).eval(), name="mixture", plain=False)
        device = {"as_device": "1e9,1e30,0", "batch": [4]}
        prompts = [[3, 4, 5, 3, 4, 5, 3], [7, 8, 7, 8, 7]]
        options = {"suite": prompts, "max_new_tokens": 16, "folder": tmp_path}
        for more in (device, {}):
            made = advising.advise(mixture, **options, **more)
            own = made.setting["experts"]
            assert own["count"] == 6 and own["by"] == "counted"
            assert own["touched"]["1"] == 2 < own["touched"]["5"] < 6
            assert any(line.startswith("experts: of the 6 in a layer") for line in made.notes)
        there = advising.advise(mixture, **options, **device)
        times = dict(zip(there.passes.sizes, there.passes.ms[:, 0]))
        shape = Shape({**mixture.geometry, "weight_bytes": 2, "cache_bytes": 2})
        _, moved = shape.chain(5, there.passes.contexts[0], 5, 1, own["touched"]["5"])
        assert times[5] == pytest.approx(1e3 * moved / 1e9)

    def test_an_advice_is_priced_elsewhere_without_decoding(self, models, tmp_path, quick, monkeypatch):
        device = {"batch": [8], "context": [64]}
        asked = ask(models, tmp_path, as_device="1e9,1e12,1e-5", **device)
        made = ask(models, tmp_path, confirm=True)
        for room, name in ((readings, "write_text"), (readings, "read"), (prices, "measure")):
            monkeypatch.setattr(room, name, lambda *_: pytest.fail("it decodes or measures again"))
        there = made.on("1e9,1e12,1e-5", **device)
        assert there.table.equals(asked.table) and there.changes == asked.changes and there.changes
        assert there.setting["as_device"] == asked.setting["as_device"] and not there.confirmed
        assert made.on("h100").best.speedup != there.best.speedup
        assert made.on("1e9,1e12,1e-5", 8, 64).changes == there.changes
        with pytest.raises(ParameterError, match="a device is one of"):
            made.on("h200x")
        with pytest.raises(ParameterError, match="a device is one of"):
            made.on(None)
        with pytest.raises(ParameterError, match="do not fit into"):
            made.on("h100", context=[1 << 20])
        with pytest.raises(ParameterError, match="advise again"):
            replace(made, elsewhere=None).on("h100")

    def test_a_model_of_one_row_is_priced_in_batches_elsewhere(self, models, tmp_path, quick, monkeypatch):
        """A roofline decodes nothing."""
        monkeypatch.setattr(models[0], "batches", False, raising=False)
        made = ask(models, tmp_path, as_device="1e9,1e12,1e-5", batch=4)
        assert {row.get("batch") for row in made.changes} >= {1, 4}
        assert made.on("1e9,1e12,1e-5", 4).changes == made.changes
        with pytest.raises(ModelError, match="decodes one prompt at a time"):
            ask(models, tmp_path, batch=4)

    def test_presets_say_where_their_rates_are_from(self):
        for name, device in devices.PRESETS.items():
            assert device == devices.device_of(name.upper()) and f"rates: {device.source}" in device.words
        assert "rates" not in devices.device_of("1e12,1e14").words

    @pytest.mark.parametrize("given", ["h200x", "1,2,3,4", "0,1,1", "1e12", "nan,1", "1,-1"])
    def test_bad_devices(self, given):
        with pytest.raises(ParameterError, match="a device is one of"):
            devices.device_of(given)


def test_counts_on_other_prompts_are_not_taken_for_these(tmp_path):
    state = _State(tmp_path / "rounds", {"model": "m"})
    assert state.counted(6, 48, lambda: [{"label": "a"}]) == [{"label": "a"}]
    again = _State(tmp_path / "rounds", {"model": "m"})
    assert again.counted(6, 48, list) == [{"label": "a"}], "they were kept"
    assert again.counted(20, 48, lambda: [{"label": "b"}]) == [{"label": "b"}]
    assert again.counted(20, 24, list) == []
