"""Measure diffusion models: SSD's tables and figures (Gao et al. 2025), on the bundled model.

Parts are independent, so a long measurement can be made piece by piece. Unless a part says otherwise,
canvases are written *whole*, every cell, as in the paper; *ended* texts stop after the first complete
block with an end token, as a user would want.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch

from specviz import audit, metrics
from specviz.audit.result import SHARE
from specviz.errors import ParameterError
from specviz.loop import Run, generate
from specviz.loop.clock import Clock, clock_for
from specviz.loop.unmasking import session_of
from specviz.measure.canvases import Measured, Way, ssd, stepwise, timed, write
from specviz.measure.report import Bar, Estimate, Part, Report
from specviz.measure.timing import paired, quiet_clock, setting
from specviz.methods.unmasking import CellReading, read_cells
from specviz.replays import canvases
from specviz.replays.canvases import PAPER, suite
from specviz.replays.sources.canvases import DRAFTS
from specviz.whatifs import whatif

from . import printed
from .loading import loading as loaded

TARGET = "town-diffusion"  # default
TREES = ("chain", "mix")
BLOCKS, REFRESH = (4, 8, 32), (8, 16, 32)
LENGTH = 64  # cells, in most parts
SHORT, LONG = 32, 256  # cells: for the exactness check, and for the cache's speed
BATCHED = 8  # batch size if nothing is timed
SHARED = 40  # prompts per audit; several audits run in parallel
GROWING = (32, 64, 128, 256)  # cells of Figure 3
FEWER, FASTER = 0.5, 1.4  # share of passes saved at N = 4, and speed over stepwise decoding

Tick = Callable[[int, int, str], None]


@dataclass
class PartResult:
    """Tables, bars and notes of one part."""

    tables: list[Part]
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class Steps:
    """Report the progress of a part."""

    def __init__(self, tick: Tick, name: str, of: int) -> None:
        self.tick, self.name, self.of, self.done = tick, name, of, 0

    def __call__(self, label: str = "") -> None:
        self.done += 1
        self.tick(self.done, self.of, f"{self.name}: {label}" if label else self.name)


def spelt(policy: Mapping[str, Any]) -> str:
    """Describe a cache policy in words."""
    kept = f"dual, refresh {policy['refresh']}" if policy["cache"] == "dual" else "none"
    sure = f", sure {policy['sure']:g}" if "sure" in policy else ""
    return f"B {policy['block']}, cache {kept}{sure}"


def phase_times(mine: Measured, clock: Clock) -> dict[str, float]:
    """Milliseconds of each phase per pass; ``rest`` is outside all phases, mainly opening the canvas."""
    marks = [mark for text in mine.texts for mark in text.marks]
    spans = [list(each) for each in zip(*marks)]
    names = ("draft", "forward", "verify", "commit")
    sums = {name: float(clock.seconds(spans[i], spans[i + 1]).sum()) for i, name in enumerate(names)}
    sums["rest"] = sum(mine.seconds) - sum(sums.values())
    return {name: 1e3 * seconds / len(marks) for name, seconds in sums.items()}


def batches(model: Any, prompts: int, rounds: int, tick: Tick) -> PartResult:
    """Figure 1: throughput by batch size, with and without cache."""
    rows, notes = canvases.batches(model, suite(prompts), rounds, tick, LENGTH)
    columns = [("way", "", ""), ("batch", "batch", "{:d}"), ("speed", "valid tokens/s [95%]", ""),
               ("times", "× batch 1 [95%]", ""), ("ms", "ms a cycle", "{:.2f}"),
               ("fed", "positions a cycle", "{:.0f}"), ("same", "same", "{:.0%}")]  # fmt: skip
    title = f"Figure 1: throughput by batch size, {prompts} prompts of {LENGTH} cells, {rounds} rounds"
    return PartResult([Part(title, columns, rows, ("same",))], [], notes)


def exact(model: Any, prompts: int, rounds: int, tick: Tick, blocks: Sequence[int] = BLOCKS) -> PartResult:
    """Audit that cells, tokens and order equal those of stepwise decoding under the same policy."""
    ids = [model.encode(entry["prompt"]) for entry in suite(prompts)]
    kept = [("none", 8), *(("dual", refresh) for refresh in REFRESH)]
    policies = [{"block": block, "whole": True, "cache": each, "refresh": refresh}
                for block in blocks for each, refresh in kept]  # fmt: skip
    drafts = [(n, tree) for tree in TREES for n in DRAFTS]
    jobs = [(policy, drafts, first, ids[first : first + SHARED])
            for policy in sorted(policies, key=lambda each: each["cache"] == "dual")  # slowest first
            for first in range(0, len(ids), SHARED)]  # fmt: skip
    found = list(audited(model, jobs, Steps(tick, "exact", len(jobs))))
    rows, flips, bugs, parted = [], [], 0, 0
    for policy in policies:
        row: dict[str, Any] = {"policy": spelt(policy)}
        for k, (n, tree) in enumerate(drafts):
            mine = [(job[2], result[k]) for job, result in zip(jobs, found) if job[0] == policy]
            equal = sum(each.equal for _, each in mine)
            row[f"{tree} {n}"] = f"{equal}/{len(ids)}"
            for count in ("tokens", "passes", "steps"):
                row[f"{tree} {n} {count}"] = sum(getattr(each, count) for _, each in mine)
            bugs += sum(each.bug for _, each in mine)
            parted += len(ids) - equal
            for first, each in mine:
                flips += [{"policy": spelt(policy), "way": ssd(n, tree).label, "prompt": first + one.prompt,
                           "step": one.position, "verdict": one.verdict, "reason": one.reason}
                          for one in each.differences]  # fmt: skip
        rows.append(row)
    texts = len(policies) * len(drafts) * len(ids)
    columns = [("policy", "", "")] + [(f"{tree} {n}", f"{tree}, N {n}", "") for n, tree in drafts]
    title = f"Texts equal to stepwise decoding's, cell by cell in order: {len(ids)} prompts of {SHORT} cells"
    tables = [Part(title, columns, rows)]
    if flips:
        columns = [("policy", "", ""), ("way", "", ""), ("prompt", "prompt", "{:d}"),
                   ("step", "step", "{:d}"), ("verdict", "", ""), ("reason", "", "")]  # fmt: skip
        tables.append(Part("Every place where they part", columns, flips))
    name = f"ssd is stepwise in {len(policies) * len(drafts)} settings, {len(ids)} prompts each"
    bars = [Bar(f"{name}: bugs", bugs, 0, "at most"),
            Bar(f"{name}: share of texts that part at a tie or by rounding", (parted - bugs) / texts,
                SHARE, "at most")]  # fmt: skip
    tokens = sum(row[f"{tree} {n} tokens"] for row in rows for n, tree in drafts)
    note = (
        f"exact: {tokens:,} tokens in {texts:,} texts; {parted} part, {bugs} by "
        f"a bug. ssd writes up to {BATCHED} prompts together, stepwise decoding each alone. Log-odds of "
        "every cell in work are compared besides, within the audit's bound."
    )
    return PartResult(tables, bars, [note])


Job = tuple[dict[str, Any], list[tuple[int, str]], int, list[list[int]]]  # policy, drafts, first number, ids


def audited(model: Any, jobs: Sequence[Job], steps: Steps) -> Iterator[Sequence[Any]]:
    """Audit the jobs and yield their rows in order; on the CPU, one single-threaded process per thread."""
    count = torch.get_num_threads() if torch.device(model.device).type == "cpu" else 1
    with ExitStack() as stack:
        each: Callable[..., Iterable[Any]] = map
        if count > 1:
            each = stack.enter_context(ProcessPoolExecutor(count, get_context("spawn"))).map
        for job, rows in zip(jobs, each(partial(audit_of, model, count), jobs)):
            steps(spelt(job[0]))
            yield rows


def audit_of(model: Any, count: int, job: Job) -> Sequence[Any]:
    """Audit one job and return its rows."""
    policy, drafts, _, ids = job
    ways = [ssd(n, tree, **policy) for n, tree in drafts]
    return audit.canvases(model, ids, ways, BATCHED, SHORT, threads=1 if count > 1 else None).rows


def bound(n: int, policy: Mapping[str, Any]) -> float:
    """Upper bound of the step reduction: N + 1 tokens a pass, unless a refresh cuts the chain."""
    if policy["cache"] == "none":
        return n / (n + 1)
    return 1 - -(-policy["refresh"] // (n + 1)) / policy["refresh"]


def passes(model: Any, prompts: int, rounds: int, tick: Tick) -> PartResult:
    """Tables 1 and 3: passes saved, mix-order against the chain, and the lossy methods."""
    ids = [model.encode(entry["prompt"]) for entry in suite(prompts)]
    policies = [PAPER, PAPER | {"refresh": 32}, PAPER | {"cache": "none"}, PAPER | {"sure": 100.0}]
    steps = Steps(tick, "passes", 2 * len(policies) * (3 + 2 * len(DRAFTS)) + 2 * len(DRAFTS))
    rows, bars, notes = [], [], []
    fewer_by_mix: list[tuple[float, str]] = []
    for whole in (True, False):
        for each in policies:
            policy = each | {"whole": whole}
            ways = [stepwise(**policy)] + [ssd(n, tree, **policy) for tree in TREES for n in DRAFTS]
            ways += [Way("fast_dllm", policy | {"threshold": 0.9}),
                     Way("entropy_bounded", policy | {"bound": 0.1})]  # fmt: skip
            found = {}
            for way in ways:
                found[way.label] = write(model, ids, way, LENGTH, BATCHED)
                steps(f"{spelt(policy)}: {way.label}")
            base = found["stepwise"]
            taken = np.array([text.passes for text in base], float)
            for way in ways[1:]:
                texts = found[way.label]
                mine = np.array([text.passes for text in texts], float)
                n, tree = way.values.get("draft_length"), way.values.get("tree")
                differ = sum(a.text(model.eos) != b.text(model.eos) for a, b in zip(base, texts))
                rows.append({
                    "written": "whole" if whole else "ended", "policy": spelt(policy), "way": way.label,
                    "canvases": sum(text.canvases for text in texts) / mine.sum(),
                    "passes": mine.mean(), "fewer": 1 - mine.sum() / taken.sum(),
                    "bound": bound(n, policy) if n else None,
                    "a_pass": sum(len(text.order) for text in texts) / mine.sum(),
                    "differ": differ / len(ids),
                    "paper": printed.saved(tree, n) if whole and tree else None,
                })  # fmt: skip
                if n == 4 and tree == "chain" and policy == PAPER:
                    bars.append(Bar(f"passes saved at N 4, chain, whole canvases of {LENGTH} cells, "
                                    f"{spelt(policy)}", rows[-1]["fewer"], FEWER))  # fmt: skip
                if n == 4 and tree == "chain" and not whole and each == PAPER:
                    notes.append(f"Of texts that end it saves {rows[-1]['fewer']:.1%} at N 4 (not judged: "
                                 "the paper writes every cell).")  # fmt: skip
            for n in DRAFTS:
                chain, mix = (sum(t.passes for t in found[ssd(n, tree).label]) for tree in TREES)
                where = f"{'whole' if whole else 'ended'}, {spelt(policy)}, N {n}"
                fewer_by_mix.append((1 - mix / chain, where))
    least, where = min(fewer_by_mix)
    name = f"passes mix-order saves over the chain, the least of {len(fewer_by_mix)} suites ({where})"
    bars.append(Bar(name, least, 0, "more than"))
    states = fewer = more = 0
    for refresh in (8, 32):
        for n in DRAFTS:
            for prompt in ids:
                counts = side_by_side(model, prompt, n, PAPER | {"refresh": refresh}, LENGTH)
                states += len(counts)
                fewer += sum(mix < chain for chain, mix in counts)
                more += sum(mix > chain for chain, mix in counts)
            steps(f"mix-order beside the chain, refresh {refresh}, N {n}")
    bars.append(
        Bar(f"states of {states:,} where mix-order accepts fewer than the chain", fewer, 0, "at most")
    )
    notes.append(f"From the same state mix-order accepts more than the chain in {more:,} of {states:,}.")
    notes.append(
        "sure 100: no cells are held equally sure, those of the padding behind a text neither. canvases: "
        "in a pass, the root among them. bound: N + 1 tokens in every pass, unless a refresh cuts "
        "the draft. differ: share of texts, up to their end, that are not stepwise decoding's. paper: Table "
        "3, LLaDA-8B-Instruct on MATH, 256 cells."
    )
    columns = [("written", "", ""), ("policy", "", ""), ("way", "", ""), ("canvases", "canvases", "{:.1f}"),
               ("passes", "passes a text", "{:.1f}"), ("fewer", "fewer", "{:.1%}"),
               ("bound", "bound", "{:.1%}"), ("a_pass", "tokens a pass", "{:.2f}"),
               ("differ", "differ", "{:.0%}"), ("paper", "paper", "{:.1%}")]  # fmt: skip
    title = f"Tables 1 and 3: passes saved, {len(ids)} prompts of {LENGTH} cells"
    return PartResult([Part(title, columns, rows, ("paper", "canvases", "a_pass"))], bars, notes)


def side_by_side(
    model: Any, prompt: list[int], n: int, policy: Mapping[str, Any], length: int
) -> list[tuple[int, int]]:
    """Count tokens that the chain and the mix-order tree accept at each state of stepwise decoding.

    The mix-order tree begins with the chain, so one pass gives both verdicts. Drafts come from the
    previous pass.
    """
    chain, mix = (ssd(n, tree, **policy)() for tree in TREES)
    counts = []
    canvas = model.open([prompt], length, **mix.policy(), canvases=mix.nodes)
    try:
        for each in (chain, mix):
            each.start(session_of(prompt, model, frozenset(model.eos), length))
        while canvas.open_cells().any():
            drafts = [each.propose(canvas, 0) for each in (chain, mix)]
            (read,) = canvas.forward(drafts[1])
            (reading,) = read_cells([read], mix.block, mix.sure)
            guess, belief = mix.guess.copy(), mix.belief.copy()
            counts.append((len(chain.judge(drafts[0], first(reading, len(drafts[0]))).path),
                           len(mix.judge(drafts[1], reading).path)))  # fmt: skip
            root = first(reading, 0)
            guess[root.cell], belief[root.cell] = root.token, root.odds
            for each in (chain, mix):
                each.guess, each.belief = guess.copy(), belief.copy()
            at = root.surest(-1)
            assert at is not None
            canvas.commit([])
            canvas.fill([int(root.cell[at])], [int(root.token[at])])
    finally:
        canvas.close()
    return counts


def first(reading: CellReading, nodes: int) -> CellReading:
    """The part of a pass's reading that covers the first `nodes` canvases, or the root alone for 0."""
    kept = reading.canvas < nodes
    canvas, cell, token, odds = (
        each[kept] for each in (reading.canvas, reading.cell, reading.token, reading.odds)
    )
    return CellReading(canvas, cell, token, odds, reading.entropy[kept], reading.work[kept], reading.sure)


def time(model: Any, prompts: int, rounds: int, tick: Tick) -> PartResult:
    """Wall-clock speed of ssd over stepwise decoding with the same cache, and where the time goes."""
    ids = [model.encode(entry["prompt"]) for entry in suite(prompts)]
    policies = [PAPER, PAPER | {"refresh": 32}]
    ways = [
        [stepwise(**each), *(ssd(n, tree, **each) for tree in TREES for n in DRAFTS)] for each in policies
    ]
    steps = Steps(tick, "time", sum(map(len, ways)) * len(ids) * rounds)
    clock, threads = clock_for(model.device), setting(model, [])["threads"]
    rows, split, best = [], [], []
    for some in ways:
        found = timed(model, ids, some, LENGTH, rounds, steps)
        base = found[0]
        for measured in found:
            over = None if measured is base else measured.over(base)
            n = measured.passes
            where = {"policy": spelt(measured.way.values), "way": measured.way.label}
            rows.append(where | {
                "over": over, "speed": measured.speed(model.eos), "passes": n / len(measured.texts),
                "fewer": None if over is None else 1 - n / base.passes,
                "ms": 1e3 * sum(measured.seconds) / len(measured.texts),
                "same": None if over is None else
                sum(a.order == b.order for a, b in zip(measured.texts, base.texts)) / len(base.texts),
            })  # fmt: skip
            split.append(where | {
                "fed": sum(text.fed for text in measured.texts) / n,
                "refreshes": sum(text.refreshes for text in measured.texts) / n,
                "a_pass": 1e3 * sum(measured.seconds) / n, **phase_times(measured, clock),
            })  # fmt: skip
            if over is not None:
                best.append((over.median, over, where))
    value, over, where = max(best, key=lambda each: each[0])
    name = f"ssd over stepwise, {threads} threads, the best of {len(best)} settings ({where['policy']}, "
    bars = [Bar(f"{name}{where['way'][5:]}: {over})", value, FASTER)]
    columns = [("policy", "", ""), ("way", "", ""), ("over", "× stepwise [95%]", ""),
               ("speed", "valid tokens/s [95%]", ""), ("ms", "ms a text", "{:.1f}"),
               ("passes", "passes", "{:.1f}"), ("fewer", "fewer", "{:.1%}"),
               ("same", "same", "{:.0%}")]  # fmt: skip
    phases = [(name, f"{name} ms", "{:.2f}") for name in ("draft", "forward", "verify", "commit", "rest")]
    more = [("policy", "", ""), ("way", "", ""), ("fed", "positions a pass", "{:.1f}"),
            ("refreshes", "refreshes", "{:.0%}"), ("a_pass", "ms a pass", "{:.2f}")]  # fmt: skip
    title = f"Wall-clock, {len(ids)} prompts of {LENGTH} cells, {rounds} rounds"
    notes = [
        f"× stepwise: median over texts of the ratio of times, in turns; {quiet_clock(model.device)[1]}.",
        recorded(model, rounds, prompts),
    ]
    tables = [Part(title, columns, rows, ("same", "ms")),
              Part("Where the time of a pass goes", more + phases, split)]  # fmt: skip
    return PartResult(tables, bars, notes)


def recorded(model: Any, rounds: int, prompts: int) -> str:
    """Describe the cost of recording, from paired decodes of the same canvases with and without it."""
    entries = suite(prompts)
    ids = [model.encode(entry["prompt"]) for entry in entries]
    shares = []
    for way in (stepwise(**PAPER), ssd(4, **PAPER)):

        def bare(i: int, way: Way = way) -> list[int]:
            return [token for _, token in write(model, [ids[i]], way, LENGTH)[0].order]

        def kept(i: int, way: Way = way) -> list[int]:
            run = Run(model, ids[i], way(), max_new_tokens=LENGTH)
            return [token for cycle in run for token in cycle.tokens]

        kept(0)
        ratios: list[float] = []
        for _ in range(rounds):
            times = paired({"bare": bare, "kept": kept}, len(ids), model.device,
                           clock=quiet_clock(model.device)[0])  # fmt: skip
            ratios += [b / a - 1 for a, b in zip(times["bare"].seconds, times["kept"].seconds)]
        shares.append(f"{way.label} {np.median(ratios):.1%}")
    return (
        "What recording a text adds, its run's setup included (not in the table): " + ", ".join(shares) + "."
    )


def cache(model: Any, prompts: int, rounds: int, tick: Tick) -> PartResult:
    """Compare the dual cache with none, at one token a pass and the paper's generation length."""
    ids = [model.encode(entry["prompt"]) for entry in suite(prompts)]
    ways = [stepwise(**PAPER | {"cache": "none"})] + [stepwise(**PAPER | {"refresh": r}) for r in REFRESH]
    found = timed(model, ids, ways, LONG, rounds, Steps(tick, "cache", len(ways) * len(ids) * rounds))
    rows = [{"policy": spelt(each.way.values), "over": None if each is found[0] else each.over(found[0]),
             "speed": each.speed(model.eos), "ms": 1e3 * sum(each.seconds) / each.passes,
             "fed": sum(text.fed for text in each.texts) / each.passes,
             "same": sum(a.text(model.eos) == b.text(model.eos) for a, b in zip(each.texts, found[0].texts))
             / len(each.texts)} for each in found]  # fmt: skip
    columns = [("policy", "", ""), ("over", "× no cache [95%]", ""), ("speed", "valid tokens/s [95%]", ""),
               ("ms", "ms a pass", "{:.2f}"), ("fed", "positions a pass", "{:.1f}"),
               ("same", "same texts", "{:.0%}")]  # fmt: skip
    over = found[1].over(found[0])
    bars = [
        Bar(
            f"dual cache, refresh 8, over none at {LONG} cells, stepwise ({over})",
            over.median,
            1,
            "more than",
        )
    ]
    notes = ["same texts: the dual cache is an approximation, and its texts are its own."]
    title = f"Stepwise decoding with and without cache, {len(ids)} prompts of {LONG} cells"
    return PartResult([Part(title, columns, rows)], bars, notes)


def lengths(model: Any, prompts: int, rounds: int, tick: Tick) -> PartResult:
    """Figure 3: valid tokens a second by generation length, and by examples before the prompt; N = 3."""
    ways = [stepwise(**PAPER), ssd(3, **PAPER)]
    sizes = [(length, 0) for length in GROWING] + [(LENGTH, shots) for shots in (0, 1, 2, 3)]
    steps = Steps(tick, "lengths", len(sizes) * len(ways) * prompts * rounds)
    tables: list[list[dict[str, Any]]] = [[], []]
    for i, (length, shots) in enumerate(sizes):
        ids = [model.encode(entry["prompt"]) for entry in suite(prompts, shots)]
        plain, drafted = timed(model, ids, ways, length, rounds, steps)
        tables[i >= len(GROWING)].append({
            "cells": length, "shots": shots, "prompt": float(np.mean([len(each) for each in ids])),
            "plain": plain.speed(model.eos), "drafted": drafted.speed(model.eos), "over": drafted.over(plain),
            "fewer": 1 - drafted.passes / plain.passes,
        })  # fmt: skip
    columns = [("cells", "cells", "{:d}"), ("prompt", "prompt tokens", "{:.0f}"),
               ("plain", "stepwise tokens/s [95%]", ""), ("drafted", "ssd [95%]", ""),
               ("over", "× [95%]", ""), ("fewer", "fewer", "{:.1%}")]  # fmt: skip
    words = f"{prompts} prompts, ssd with N 3, {spelt(PAPER)}"
    return PartResult([
        Part(f"Figure 3, left: valid tokens a second by generation length, {words}", columns, tables[0]),
        Part("Figure 3, right: by examples in front of the prompt",
             [("shots", "examples", "{:d}"), *columns], tables[1]),
    ], [], ["Valid tokens: up to the first end token. Every cell is written, so longer canvases cost more "
            "for the same text."])  # fmt: skip


READINGS = {"reduction": "rounds of N + 1", "restarted": "until a miss"}


def limits(model: Any, prompts: int, rounds: int, tick: Tick) -> PartResult:
    """Table 2 and Figure 4 (a), counted: the savings self-drafting could reach, and why its chains end."""
    entries = suite(prompts)
    limit: list[dict[str, Any]] = []
    causes: list[dict[str, Any]] = []
    policies = [PAPER | {"cache": "none"}, PAPER]
    steps = Steps(tick, "limits", 2 * len(policies))
    for policy in policies:
        trace = generate(model, entries, stepwise(**policy)(), max_new_tokens=LENGTH, batch=BATCHED)
        steps(f"stepwise decoding recorded, {spelt(policy)}")
        table = metrics.acceptance_limit(trace, lengths=DRAFTS)
        for n, some in table.groupby("draft_length", sort=False):
            for key, reading in READINGS.items():
                row = {"policy": spelt(policy), "n": n, "reading": reading, "bound": some["bound"].iloc[0]}
                figures = zip(some["top"], some[key], some[f"{key}_lo"], some[f"{key}_hi"])
                limit.append(row | {f"k{k}": Estimate(a, b, c, len(entries)) for k, a, b, c in figures})
        for n in DRAFTS:
            found = metrics.failures(whatif(trace).ssd(draft_length=n).trace()).set_index("cause")
            row = {"policy": spelt(policy), "n": n, "chains": int(found["chains"].sum())}
            row |= dict(zip(found.index.astype(str), found["share"])) | {"held": int(found["held"].sum())}
            causes.append(row)
        steps(f"causes, {spelt(policy)}")
    for n in DRAFTS:
        row = {"policy": "paper: LLaDA-8B, MATH", "n": n, "reading": "", "bound": n / (n + 1)}
        limit.append(row | {f"k{k}": f"{value:.3f}" for k, value in enumerate(printed.limits(n), 1)})
    columns = [("policy", "", ""), ("n", "N", "{:d}"), ("reading", "", "")]
    columns += [(f"k{k}", f"k = {k} [95%]", "") for k in range(1, 6)] + [("bound", "bound", "{:.3f}")]
    title = f"Table 2: passes saved if all that the draft's top k hold were accepted, {prompts} prompts of "
    shares = [("none", "all accepted"), ("short", "cut short"), ("order", "order"), ("token", "token"),
              ("border", "block border")]  # fmt: skip
    why = [("policy", "", ""), ("n", "N", "{:d}"), ("chains", "chains", "{:,d}")]
    why += [(cause, words, "{:.1%}") for cause, words in shares]
    why += [("held", "order, in the chain", "{:,d}")]
    tables = [Part(f"{title}{LENGTH} cells", columns, limit, ("k4", "k3"))]
    tables += [Part("Figure 4 (a), counted: why a chain of drafts ended, share of chains", why, causes)]
    note = (
        "Table 2 is computed from recorded stepwise passes: rounds of N + 1 steps, as it is written; until a "
        "miss: a round ends at the first token that was not drafted. Figure 4: what stepwise decoding did "
        "where the chain's next draft was refused: the drafted token in another order, another token, or a "
        "token of a block that was not in work when the drafts were made."
    )
    return PartResult(tables, [], [note])


def loading(model: Any, prompts: int, rounds: int, tick: Tick) -> PartResult:
    """Measure a process's memory while it loads a synthetic checkpoint of several files."""
    steps = Steps(tick, "loading", 1)
    found = loaded()
    steps()
    row = found | {"gigabytes": found["bytes"] / 1e9, "share": found["largest"] / found["bytes"]}
    columns = [
        ("gigabytes", "GB", "{:.2f}"), ("shards", "files", "{:d}"), ("tensors", "tensors", "{:d}"),
        ("share", "largest", "{:.1%}"), ("seconds", "s", "{:.1f}"), ("resident_ratio", "peak", "{:.3f}"),
        ("anonymous_ratio", "without mapped files", "{:.3f}"), ("whole_ratio", "with libraries", "{:.3f}"),
    ]  # fmt: skip
    name = f"peak memory of loading {row['gigabytes']:.2f} GB over its size"
    title = "Loading a synthetic checkpoint of LLaDA's names and proportions: resident memory over its size"
    return PartResult([Part(title, columns, [row])], [Bar(name, found["resident_ratio"], 1.1, "at most")])


# Name: function, and default number of prompts.
PARTS: dict[str, tuple[Callable[..., PartResult], int]] = {
    "exact": (exact, 200),
    "passes": (passes, 40),
    "time": (time, 20),
    "cache": (cache, 8),
    "lengths": (lengths, 8),
    "batches": (batches, 16),
    "limits": (limits, 60),
    "loading": (loading, 1),
}


def bench(
    model: Any,
    *,
    parts: Sequence[str] = (),
    number: int | None = None,
    rounds: int = 3,
    tick: Tick = lambda done, of, name: None,
) -> Report:
    """Measure SSD and related methods on a diffusion model.

    Parameters
    ----------
    model : Diffusion
    parts : sequence of str
        Keys of `PARTS`; ``exact:8`` checks exactness only for blocks of 8 cells. Default: all.
    number : int, optional
        Prompts per part. Default: the part's own number.
    rounds : int
        How often each text is timed.

    Raises
    ------
    ParameterError
        For an unknown part, or a model that writes no canvases.
    """
    if getattr(model, "kind", None) != "diffusion":
        raise ParameterError(f"bench diffusion measures a diffusion model, and {model.name} is none")
    chosen = [part_named(name) for name in parts or PARTS]
    tables: list[Part] = []
    bars: list[Bar] = []
    notes = [
        "Prompts: bundled ones. Every second one is a translation from English into German; the others cycle "
        "through the other six kinds."
    ]
    counts = {}
    for name, measure, usual in chosen:
        counts[name] = number or usual
        found = measure(model, number or usual, rounds, tick)
        tables += found.tables
        bars += found.bars
        notes += found.notes
    about = setting(model, [], prompts=counts, rounds=rounds)
    about["clock"] = quiet_clock(model.device)[1]
    head = tables[0]
    return Report("diffusion", f"{model.name}. {head.title}", about, head.columns, head.rows, bars, notes,
                  head.dropped, tables[1:])  # fmt: skip


def part_named(name: str) -> tuple[str, Callable[..., PartResult], int]:
    """Find a part by its name.

    Raises
    ------
    ParameterError
        If there is no part of that name.
    """
    part, _, block = name.partition(":")
    if part not in PARTS or (block and (part != "exact" or block not in map(str, BLOCKS))):
        sizes = ", ".join(f"exact:{size}" for size in BLOCKS)
        raise ParameterError(f"no part {name!r}: choose of {', '.join(PARTS)} ({sizes} for one block size)")
    measure, number = PARTS[part]
    if block:
        return name, partial(exact, blocks=[int(block)]), number
    return name, measure, number
