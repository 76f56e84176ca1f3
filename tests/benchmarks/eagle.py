"""Measure EAGLE: UniSpec's Tables 3 and 9 (Do et al.), with drafters trained on English only, or on more.

Parts are independent. A prompt's language is that of its answer; for a translation, the target language.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import Any

import numpy as np

from specviz import audit, metrics
from specviz.audit.law import TOLERANCE
from specviz.audit.result import CHANCE, SHARE
from specviz.errors import ParameterError
from specviz.loop import Run, generate
from specviz.measure.claims import ratio, resampled
from specviz.measure.report import Bar, Estimate, Part, Report
from specviz.measure.sweep import Advanced, Point
from specviz.measure.timing import BASELINE, Timed, closing, paired, quiet_clock, setting
from specviz.metrics.interval import pooled
from specviz.replays.published import published
from specviz.schema import PHASES
from specviz.suites import suite
from specviz.suites.frozen import frozen, take

TARGET = "town"  # defaults
DRAFTS = ("town-eagle-en", "town-eagle", "town-eagle3-en", "town-eagle3")
ENGLISH, ALL = "en", "all"  # a drafter's training languages
STORE = "unispec"
LANGUAGES = ("en", "ja", "de", "fr", "es", "zh", "vi")  # the paper's three come first
UNSEEN = ("ja", "de")  # where drafters trailed UniSpec in the paper
TREES = ("static", "dynamic")
SIZE = 24  # nodes per draft, for all methods
WHOLE = 25  # nodes of EAGLE-1's tree
NUMBERS = ((1, 1), (2, 3), (4, 7), (8, None))  # ranges of a language's prompts
CYCLES = ((1, 4), (5, 12), (13, None))
FIGURES = ("arithmetic", "code")  # kinds whose answers look alike in every language
DEPTHS = (1, 2, 3, 4, 5)

# Label: generation of the weights, tree, and published table; EAGLE-1 is in Table 9 only.
EAGLES = {
    "EAGLE-1": (1, "static", "unispec/table9"),
    "EAGLE-2": (1, "dynamic", "unispec/table3"),
    "EAGLE-3": (3, "dynamic", "unispec/table3"),
}

Tick = Callable[[int, int, str], None]
COLUMNS = [
    ("group", "", ""),
    ("label", "", ""),
    ("tau", "τ [95%]", ""),
    ("speedup", "speedup [95%]", ""),
    ("same", "same text", ""),
    ("paper_tau", "paper: τ", "{:.2f}"),
    ("paper_speedup", "×", "{:.2f}"),
]
DROP_ORDER = ("same",)


@dataclass
class PartResult:
    """Tables, bars and notes of one part."""

    tables: list[Part]
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def knows(drafter: Any) -> str:
    """A drafter's training languages, by its name: English-only ones end in ``-en``, as in the recipes."""
    return ENGLISH if drafter.name.endswith("-en") else ALL


def lineup(model: Any, drafts: Sequence[Any], size: int) -> list[Point]:
    """List autoregressive decoding, UniSpec, and each EAGLE with each of its drafters; equal draft sizes."""
    found = [Point(BASELINE, BASELINE, model=model), Point(STORE, STORE, {"draft_size": size}, model)]
    for name, (generation, tree, _) in EAGLES.items():
        for each in drafts:
            if each.generation == generation:
                label, values = f"{name}, {knows(each)}", {"draft_size": size, "tree": tree}
                found.append(Point(label, "eagle", values, model, each, group=name))
    return found


def prompts_of(language: str, n: int, model: Any) -> list[dict[str, Any]]:
    """Bundled prompts answered in a language, alternating between the seven kinds."""
    whole = suite("multi-town").select(language=language)
    by_kind = {kind: list(whole.select(kind=kind)) for kind in whole.kinds}
    turns = chain.from_iterable(zip(*by_kind.values()))
    found = []
    for entry in take(list(turns), n, f"prompts answered in {language}"):
        chat = entry.get("messages") or [{"role": "user", "content": entry["turns"][0]}]
        found.append({"id": entry["id"], "kind": entry["kind"], "language": language,
                      "prompt": said(model, chat)})  # fmt: skip
    return found


def chats(n: int) -> list[list[dict[str, str]]]:
    """Bundled chats of every kind and language."""
    return [entry["messages"] for entry in take(frozen("audit"), n, "prompts")]


def said(model: Any, chat: list[dict[str, str]]) -> Any:
    """The chat, or the user's last message for a model without a chat template, which continues it."""
    return chat if getattr(model.tokenizer, "chat_template", None) else chat[-1]["content"]


@dataclass
class Decoded:
    """A contender's decodes of a language's texts; with several rounds, times are medians."""

    point: Point
    timed: Timed
    cycles: np.ndarray

    @property
    def tokens(self) -> np.ndarray:
        """Number of tokens of each text."""
        return np.array([len(text) for text in self.timed.texts], float)

    @property
    def tau(self) -> Estimate:
        """Tokens per cycle over all texts, including the bonus token."""
        return pooled(self.tokens, self.cycles)

    def more(self, other: Decoded) -> Estimate:
        """Difference of τ from the other's, resampling the texts jointly."""
        return resampled(lambda a, b, c, d: ratio(a, b) - ratio(c, d), self.tokens, self.cycles,
                         other.tokens, other.cycles)  # fmt: skip


class Setup:
    """State that the parts share: models, options, and recorded runs that several of them read.

    Parameters
    ----------
    model : Model
    drafts : sequence of EagleModel
    languages : sequence of str
    prompts : int or None
        Prompts per part; None: the part's own number.
    rounds, max_new_tokens, size : int
    tick : callable
        Called with progress.
    """

    def __init__(
        self, model: Any, drafts: Sequence[Any], languages: Sequence[str], prompts: int | None, rounds: int,
        max_new_tokens: int, size: int, tick: Tick,
    ) -> None:  # fmt: skip
        self.model, self.drafts, self.languages, self.prompts = model, drafts, languages, prompts
        self.rounds, self.max_new_tokens, self.size, self.tick = rounds, max_new_tokens, size, tick
        self.points = lineup(model, drafts, size)

    def number(self, part: str) -> int:
        """Number of prompts of a part; per language in parts that compare languages."""
        return self.prompts or PARTS[part][1]

    def one_a_generation(self) -> list[Any]:
        """Each generation's drafter with most languages; exactness does not depend on the choice."""
        best = {each.generation: each for each in sorted(self.drafts, key=lambda each: knows(each) == ALL)}
        return [best[generation] for generation in sorted(best)]

    @cached_property
    def recorded(self) -> dict[str, dict[str, Any]]:
        """Traces by language and contender, including UniSpec with an empty memory for each text."""
        cold = Point(f"{STORE}, cold", STORE, {"draft_size": self.size, "keep": "prompt"}, self.model)
        points, done = [*self.points, cold], 0
        found: dict[str, dict[str, Any]] = {}
        for language in self.languages:
            entries = prompts_of(language, self.number("cause"), self.model)
            found[language] = {}
            for point in points:
                found[language][point.label] = generate(
                    self.model, entries, point.method, draft=point.draft, max_new_tokens=self.max_new_tokens,
                    **point.values,
                )  # fmt: skip
                done += 1
                self.tick(done, len(points) * len(self.languages), f"recorded: {language}, {point.label}")
        return found


# -- exact and law -------------------------------------------------------------------------------


def exact(setup: Setup) -> PartResult:
    """Audit that every token of both generations and both trees is the target's."""
    given = [said(setup.model, chat) for chat in chats(setup.number("exact"))]
    result = audit.run(
        setup.model, setup.one_a_generation(), given, [f"eagle:tree={tree}" for tree in TREES],
        setup.max_new_tokens, sampled=0, laws=False,
        progress=lambda done, of: setup.tick(done, of, "exact"),
    )  # fmt: skip
    rows = [{"method": row.method, "draft": row.draft, "prompts": row.prompts, "tokens": row.tokens,
             "equal": row.equal, "tie": row.tie, "noise": row.noise, "reference": row.reference_noise,
             "bug": row.bug} for row in result.rows]  # fmt: skip
    columns = [("method", "", ""), ("draft", "", ""), ("prompts", "prompts", "{:d}"),
               ("tokens", "tokens", "{:,d}"), ("equal", "equal", "{:d}"), ("tie", "tie", "{:d}"),
               ("noise", "noise", "{:d}"), ("reference", "reference noise", "{:d}"),
               ("bug", "bug", "{:d}")]  # fmt: skip
    title = f"Texts equal to the target's own, {len(given)} prompts of seven kinds in seven languages, greedy"
    tables = [Part(title, columns, rows, ("prompts",))]
    if result.differences:
        parted = [
            {"method": row.method, "draft": row.draft, "where": str(one)} for row, one in result.differences
        ]
        tables.append(Part("Every place where they part", [("method", "", ""), ("draft", "", ""),
                                                           ("where", "", "")], parted))  # fmt: skip
    bugs = sum(row.bug for row in result.rows)
    share = max((row.tie + row.noise + row.reference_noise) / row.prompts for row in result.rows)
    name = f"eagle writes the target's text, {len(result.rows)} settings of {len(given)} prompts"
    bars = [
        Bar(f"{name}: bugs", bugs, 0, "at most"),
        Bar(f"{name}: largest share that parts at a tie or by rounding", share, SHARE, "at most"),
    ]
    return PartResult(tables, bars, [f"exact: {result.summary}"])


def law(setup: Setup) -> PartResult:
    """Audit that samples have the target's law: enumerated on a toy, and by chi-square on the models."""
    given = [said(setup.model, chat) for chat in chats(setup.number("law"))]
    result = audit.run(
        setup.model, list(setup.drafts), given, [f"eagle:tree={tree}" for tree in TREES],
        setup.max_new_tokens, sampled=len(given), progress=lambda done, of: setup.tick(done, of, "law"),
    )  # fmt: skip
    toys = [{"method": each.method, "sampling": each.sampling, "cells": each.cells, "error": each.error}
            for each in result.laws]  # fmt: skip
    drawn = [{"method": each.method, "draft": each.draft, "prompt": each.prompt,
              "cells": each.test and each.test.cells, "statistic": each.test and each.test.statistic,
              "p": each.test and each.test.p} for each in result.drawn]  # fmt: skip
    tables = [
        Part("The law of sampling, enumerated on a toy vocabulary", [
            ("method", "", ""), ("sampling", "", ""), ("cells", "cells", "{:,d}"),
            ("error", "largest error", "{:.1e}")], toys),
        Part("The law of the first two tokens on the models, chi-square at temperature 1", [
            ("method", "", ""), ("draft", "", ""), ("prompt", "prompt", "{:d}"), ("cells", "cells", "{:d}"),
            ("statistic", "chi-square", "{:.1f}"), ("p", "p", "{:.3f}")], drawn, ("prompt",)),
    ]  # fmt: skip
    sampled = [row for row in result.rows if row.sampling != "greedy"]
    nan = float("nan")
    error = max((each.error for each in result.laws), default=nan)
    least = min((each.test.p if each.test else nan for each in result.drawn), default=nan)
    bugs = sum(row.bug for row in sampled) if sampled else nan
    texts = sum(row.prompts for row in sampled)
    bars = [
        Bar(f"largest error of {len(toys)} enumerated laws", error, TOLERANCE, "at most"),
        Bar(f"least p of {len(drawn)} chi-square tests", least, CHANCE),
        Bar(f"sampled texts whose passes, records or accepts are wrong, of {texts}", bugs, 0, "at most"),
    ]
    return PartResult(tables, bars, [f"law: {result.summary}"])


# -- the table -----------------------------------------------------------------------------------


def table(setup: Setup) -> PartResult:
    """Table 3: τ and speedup of each contender in each language."""
    each = setup.number("table")
    found: dict[str, dict[str, Decoded]] = {}
    done, of = 0, each * setup.rounds * len(setup.points) * len(setup.languages)

    def advance(language: str, label: str) -> None:
        nonlocal done
        done += 1
        setup.tick(done, of, f"table: {language}, {label}")

    for language in setup.languages:
        entries = prompts_of(language, each, setup.model)
        found[language] = measure(setup, entries, partial(advance, language))
    printed = paper()
    rows = []
    for language, those in found.items():
        base = those[BASELINE]
        for label, decoded in those.items():
            name = decoded.point.group or label
            rows.append({
                "group": language if decoded is base else "", "language": language, "label": label,
                "draft": decoded.point.draft.name if decoded.point.draft else None, "tau": decoded.tau,
                "speedup": None if decoded is base else decoded.timed.over(base.timed),
                "same": f"{decoded.timed.same(base.timed)}/{each}",
                "paper_tau": None if label.endswith(ALL) else printed.get((name, language, "tau")),
                "paper_speedup": None if label.endswith(ALL) else printed.get((name, language, "speedup")),
            })  # fmt: skip
    clock = quiet_clock(setup.model.device)[1]
    notes = [
        "τ: tokens a cycle over all texts, the bonus counted. speedup: median over texts of tokens/s over "
        "autoregressive decoding's on the same text, prompt's pass inside, nothing recorded, in turns; "
        f"{clock}, median of {setup.rounds} rounds. Intervals: 95 % bootstrap over texts. en, all: what the "
        "drafter was trained on.",
        f"{STORE} begins each language (and round) with an empty memory and keeps it from prompt to prompt "
        "(keep=run, its default); its τ holds those first texts, too.",
        "paper: Llama-3.1-8B-Instruct on an A100 (of EAGLE-1 Table 9, Llama-3-8B-Instruct), other texts and "
        "other draft sizes for each method: only directions compare.",
        *([f"EAGLE-1's tree has {WHOLE} nodes; here its first {setup.size}."] if setup.size < WHOLE else []),
        *missing(setup.points),
    ]
    title = (
        f"Table 3: {setup.model.name}, {each} texts a language, {setup.size} nodes a draft, up to "
        f"{setup.max_new_tokens} tokens, greedy"
    )
    return PartResult([Part(title, COLUMNS, rows, DROP_ORDER)], bars_of(found), notes)


def measure(setup: Setup, entries: list[dict[str, Any]], tick: Callable[[str], None]) -> dict[str, Decoded]:
    """Time all contenders on a language's texts in turns; each first decodes one text to warm up."""
    clock, _ = quiet_clock(setup.model.device)
    found: dict[str, Decoded] = {}
    seconds: dict[str, list[list[float]]] = {point.label: [] for point in setup.points}
    for number in range(setup.rounds):
        runs: dict[str, Run] = {}
        with closing(runs):
            for point in setup.points:
                shared = {"draft": point.draft, "max_new_tokens": setup.max_new_tokens, "record": None}
                for _ in Run(setup.model, entries[:1], point.method, **shared, **point.values):
                    pass
                runs[point.label] = Run(setup.model, entries, point.method, **shared, **point.values)
            decoders = {label: Advanced(run, len(entries)) for label, run in runs.items()}
            timed = paired(decoders, len(entries), setup.model.device, tick, clock)
        for point in setup.points:
            seconds[point.label].append(timed[point.label].seconds)
            if not number:
                cycles = decoders[point.label].sums["cycles"]
                found[point.label] = Decoded(point, timed[point.label], cycles)
    for label, decoded in found.items():
        decoded.timed.seconds = np.median(seconds[label], axis=0).tolist()
    return found


def paper() -> dict[tuple[str, str, str], float]:
    """The numbers in UniSpec's tables, by our label, language and metric."""
    found = {}
    for name, source in [(STORE, "unispec/table3"), *((name, place) for name, (*_, place) in EAGLES.items())]:
        frame = published(source)
        rows = frame[frame["method"].str.lower().str.startswith(name.lower())]
        for row in rows.to_dict("records"):
            found[name, row["language"].lower(), row["metric"]] = row["value"]
    return found


def missing(points: Sequence[Point]) -> list[str]:
    """Describe the comparisons that lack a drafter."""
    wanted = [f"{name}, {known}" for name in EAGLES for known in (ENGLISH, ALL)]
    absent = [label for label in wanted if label not in {point.label for point in points}]
    return [f"Not judged, for there is no such drafter: {'; '.join(absent)}."] if absent else []


def bars_of(found: Mapping[str, Mapping[str, Decoded]]) -> list[Bar]:
    """The paper's claims on each generation; a bar needs the whole interval of a difference of τ."""
    bars = []

    def larger(language: str, one: str, other: str) -> None:
        if {one, other} <= found[language].keys():
            a, b = found[language][one], found[language][other]
            by = a.more(b)
            name = (
                f"{language}: τ of {one} ({a.tau.median:.2f}) above {other}'s ({b.tau.median:.2f}), by {by}"
            )
            bars.append(Bar(f"{name}; its lower end", by.low, 0, "more than"))

    for name in EAGLES:
        own, every = f"{name}, {ENGLISH}", f"{name}, {ALL}"
        if "en" in found:
            larger("en", own, STORE)
        for language in (code for code in UNSEEN if code in found):
            larger(language, STORE, own)
            larger(language, every, own)
    return bars


# -- cause and time ------------------------------------------------------------------------------


def cause(setup: Setup) -> PartResult:
    """Explain τ: how often first tokens are right, and how soon a store learns a language."""
    deep, work, learning = [], [], []
    compared = [point for point in setup.points[1:] if point.values.get("tree", "dynamic") == "dynamic"]
    for language, traces in setup.recorded.items():
        for point in compared:
            share, sure = first(traces[point.label])
            given = metrics.by_depth(traces[point.label]).set_index("depth")["given"]
            deep.append({"group": language if point is compared[0] else "", "language": language,
                         "label": point.label, "first": share, "sure": sure,
                         **{f"d{depth}": given.get(depth) for depth in DEPTHS}})  # fmt: skip
        for figures in (False, True):
            taus = {point.label: tau_of(traces[point.label], figures) for point in compared}
            work.append({"group": "" if figures else language, "language": language,
                         "answers": "figures, code" if figures else "words", **taus})  # fmt: skip
        learning.append({"language": language, **learnt(traces[f"{STORE}, cold"], traces[STORE])})
    each = setup.number("cause")
    title = f"How often the drafts are right, {each} recorded texts a language"
    columns = [
        ("group", "", ""),
        ("label", "", ""),
        ("first", "first token [95%]", ""),
        ("sure", "sure", "{:.2f}"),
    ]
    columns += [(f"d{depth}", f"depth {depth}" if depth == 1 else str(depth), "{:.2f}") for depth in DEPTHS]
    tables = [Part(title, columns, deep)]
    columns = [
        ("group", "", ""),
        ("answers", "answers", ""),
        *((p.label, p.label, "{:.2f}") for p in compared),
    ]
    tables.append(Part("τ of answers in words, and in figures and code (arithmetic, code)", columns, work))
    spans = [(f"{key}{low}", words + spelt(low, high), "{:.2f}")
             for key, words, some in (("c", "cycle ", CYCLES), ("n", "text ", NUMBERS))
             for low, high in some]  # fmt: skip
    columns = [("language", "", ""), ("cold", "τ cold [95%]", ""), ("kept", "kept [95%]", ""),
               ("more", "more by [95%]", ""), *spans]  # fmt: skip
    tables.append(Part(f"What {STORE} learns: τ of each text begun with an empty memory, and kept", columns,
                       learning, ("n8", "n4", "n2", "n1")))  # fmt: skip
    notes = [
        "first token: share of drafts whose likeliest first token is the one that the target wrote; sure: "
        "what the drafter thought of it, the mean (of unispec its score). depth: share of the drafts judged "
        "there in which one of the tokens was right.",
        "cold: every text begins with an empty memory; kept: the same texts in one run. cycle: τ of cold "
        "texts by the cycle's number in its text; text: τ of kept ones by the text's number in its run.",
    ]
    return PartResult(tables, [], notes)


def first(trace: Any) -> tuple[Estimate, float]:
    """How often the likeliest first token is the target's, and the mean score the drafter gave it."""
    nodes = trace.nodes
    nodes = nodes[(nodes["depth"] == 1) & nodes["status"].isin(["accepted", "rejected"])]
    if not len(nodes):
        return Estimate.of([]), float("nan")
    best = nodes.loc[nodes.groupby(["prompt", "cycle"])["score"].idxmax()]
    right = (best["status"] == "accepted").groupby(best["prompt"])
    return pooled(right.sum().to_numpy(), right.size().to_numpy()), float(best["score"].mean())


def tau_of(trace: Any, figures: bool) -> float:
    """τ of answers in figures and code, or of the others."""
    table = metrics.by_prompt(trace)
    some = table[table["kind"].isin(FIGURES) == figures]
    return float(ratio(some["emitted"].sum(), some["steps"].sum()))


def learnt(cold: Any, kept: Any) -> dict[str, Any]:
    """τ of the same texts with an empty and with a kept memory, overall and as the memory fills."""
    one, other = metrics.by_prompt(cold), metrics.by_prompt(kept)
    sums = [table[name].to_numpy(float) for table in (other, one) for name in ("emitted", "steps")]
    found: dict[str, Any] = {
        "cold": pooled(one["emitted"].to_numpy(), one["steps"].to_numpy()),
        "kept": pooled(other["emitted"].to_numpy(), other["steps"].to_numpy()),
        "more": resampled(lambda a, b, c, d: ratio(a, b) - ratio(c, d), *sums),
    }
    steps = cold.cycles[cold.cycles["cycle"] > 0]
    for low, high in CYCLES:
        found[f"c{low}"] = steps["emitted"][steps["cycle"].between(low, high or np.inf)].mean()
    for low, high in NUMBERS:
        some = other[(other["prompt"] + 1).between(low, high or np.inf)]
        found[f"n{low}"] = float(ratio(some["emitted"].sum(), some["steps"].sum()))
    return found


def spelt(low: int, high: int | None) -> str:
    """Format a range of numbers."""
    return f"{low}+" if high is None else f"{low}–{high}" if high > low else str(low)


def time(setup: Setup) -> PartResult:
    """Break down a cycle's time, and give the τ a method needs to pay off."""
    rows = []
    base = 0.0
    for point in setup.points:
        cycles = [traces[point.label].cycles for traces in setup.recorded.values()]
        steps = [table[table["cycle"] > 0] for table in cycles]
        count = sum(map(len, steps))
        row: dict[str, Any] = {"label": point.label}
        for phase in PHASES:
            row[phase] = 1e3 * sum(float(table[f"{phase}_time"].sum()) for table in steps) / count
        row["cycle"] = sum(row[phase] for phase in PHASES)
        row["nodes"] = sum(float(table["sent"].sum()) for table in steps) / count
        base = base or row["cycle"]
        row["pays"] = row["cycle"] / base
        row["tau"] = sum(float(table["emitted"].sum()) for table in steps) / count
        rows.append(row)
    columns = [("label", "", ""), ("nodes", "nodes", "{:.1f}"), *((name, name, "{:.2f}") for name in PHASES)]
    columns += [("cycle", "sum", "{:.2f}"), ("pays", "pays from τ", "{:.2f}"), ("tau", "τ", "{:.2f}")]
    note = (
        "time: wall clock of recorded runs, of the phases alone. pays from τ: a cycle's time over "
        "autoregressive decoding's, which is the τ that makes up for it; τ: over all languages."
    )
    return PartResult([Part("Milliseconds a cycle, all languages", columns, rows)], [], [note])


# Name: function, and default number of prompts (per language in table and cause).
PARTS: dict[str, tuple[Callable[[Setup], PartResult], int]] = {
    "exact": (exact, 300),
    "law": (law, 20),
    "table": (table, 42),
    "cause": (cause, 42),
    "time": (time, 42),
}


def bench(
    target: Any,
    drafts: Sequence[Any],
    *,
    parts: Sequence[str] = (),
    languages: Sequence[str] = LANGUAGES,
    number: int | None = None,
    rounds: int = 3,
    max_new_tokens: int = 128,
    size: int = SIZE,
    tick: Tick = lambda done, of, name: None,
) -> Report:
    """Compare EAGLE's three generations with UniSpec, by language.

    Parameters
    ----------
    target : Model
    drafts : sequence of EagleModel
        Drafters on the target. A name that ends in ``-en`` means trained on English only.
    parts : sequence of str
        Keys of `PARTS`. Default: all.
    languages : sequence of str
        Languages of the answers.
    number : int, optional
        Prompts per part, or per language if languages are compared. Default: the part's own number.
    rounds : int
        How often each text is timed.
    size : int
        Nodes per draft, for all methods.

    Raises
    ------
    ParameterError
        For an unknown part or language, or drafts that are no EAGLE drafters.
    """
    for name in parts:
        if name not in PARTS:
            raise ParameterError(f"no part {name!r}: choose of {', '.join(PARTS)}")
    for code in languages:
        if code not in suite("multi-town").languages:
            raise ParameterError(f"no prompts in {code!r}: choose of {', '.join(LANGUAGES)}")
    wrong = [each.name for each in drafts if each.kind != "eagle"]
    if wrong or not drafts:
        found = f"{wrong[0]} is none" if wrong else "there is none"
        raise ParameterError(f"bench eagle compares EAGLE drafters, and {found}: name them with --draft")
    setup = Setup(target, drafts, languages, number, rounds, max_new_tokens, size, tick)
    labels = [point.label for point in setup.points]
    if twice := next((label for label in labels if labels.count(label) > 1), None):
        raise ParameterError(
            f"two drafters for {twice}: of a generation one may know English alone (NAME-en), and one more"
        )
    tables: list[Part] = []
    bars: list[Bar] = []
    notes: list[str] = []
    for name in parts or PARTS:
        part = PARTS[name][0](setup)
        tables += part.tables
        bars += part.bars
        notes += part.notes
    counts = {name: setup.number(name) for name in parts or PARTS}
    about = setting(target, list(drafts), prompts=counts, rounds=rounds, max_new_tokens=max_new_tokens,
                    size=size, languages=list(languages))  # fmt: skip
    about["clock"] = quiet_clock(target.device)[1]
    head = tables[0]
    return Report("eagle", head.title, about, head.columns, head.rows, bars, notes, head.dropped, tables[1:])
