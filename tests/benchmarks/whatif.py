"""Compare what-ifs with reruns, cycle for cycle.

Each question is answered from one run's dense record, and each setting is then rerun on the same prompts. The
whole structure of every cycle is compared, not sums. For a diffusion model, the question is what SSD would
have done, from a record of stepwise decoding (`canvases`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np

from specviz import metrics
from specviz.errors import ParameterError
from specviz.loop import densify, generate
from specviz.loop.dense import TAIL
from specviz.measure.report import Bar, Report
from specviz.measure.timing import setting
from specviz.suites import spread
from specviz.whatifs import Answer, Costs, Step, Walk, WhatIf

# The recorded run of each question, and the settings replayed on it.
LENGTHS = [{"draft_length": n, "stop": 0.0} for n in (1, 2, 3, 6, 12)]
STOPS = [{"draft_length": n, "stop": s} for n, s in ((8, 0.2), (8, 0.4), (5, 0.6), (12, 0.8), (4, 0.95))]
LOOKUPS = [
    {"ngram_max": most, "ngram_min": least, "draft_length": n}
    for most, least, n in ((1, 1, 10), (2, 1, 5), (3, 1, 10), (3, 2, 16), (5, 3, 3))
]
THRESHOLDS = [
    {"fallback": 0.5, "rollback": 1.0},
    {"fallback": 0.5, "rollback": 4.0},
    {"fallback": 0.7, "rollback": 2.0},
    {"fallback": 0.9, "rollback": 2.0, "cap": 4},
    {"fallback": 0.4, "rollback": 2.0, "review_end": True},
]
TREES = [
    {"draft_size": 24, "threshold": 0.05},
    {"draft_size": 16, "threshold": 0.05},
    {"draft_size": 8, "threshold": 0.05},
    {"draft_size": 24, "threshold": 0.1},
    {"draft_size": 24, "threshold": 0.2},
]
QUESTIONS: dict[str, tuple[str, dict[str, Any], str, list[dict[str, Any]]]] = {
    "draft length": ("speculative", {"draft_length": 8}, "speculative", LENGTHS),
    "stop": ("speculative", {"draft_length": 8}, "speculative", STOPS),
    "n-grams": ("autoregressive", {}, "prompt_lookup", LOOKUPS),
    "thresholds": ("bild", {}, "bild", THRESHOLDS),
    "short tails": ("autoregressive", {}, "speculative", STOPS),
    "trees": ("unispec", {"draft_size": 24}, "unispec", TREES),
}
# For canvases: the cache policies, and the SSD settings.
POLICIES: dict[str, dict[str, Any]] = {
    "no cache": {"cache": "none"},
    "cache, refresh 8": {"cache": "dual", "refresh": 8},
    "cache, refresh 20": {"cache": "dual", "refresh": 20},
}
CHAINS = [
    {"draft_length": n, "tree": tree, "tail": tail}
    for n, tree, tail in (
        (3, "chain", "stepwise"),
        (4, "chain", "stepwise"),
        (5, "chain", "shorter"),
        (4, "mix", "stepwise"),
        (5, "mix", "shorter"),
    )
]
# The record follows the drafter as far as any draft can go, so few answers are merely bounded. To test bounds
# against reruns as well, one question uses a shorter record.
TAILS = {"short tails": 3}
EXACT_FIELDS = ("cycle", "keep", "accepted", "cut", "unreviewed", "emitted")
WIDTH, ANSWERED = 0.1, 0.98
CANVAS_COLUMNS = [
    ("question", "asked", ""),
    ("setting", "setting", ""),
    ("equal", "equal", "{:.3f}"),
    ("close", "close", "{:.2%}"),
    ("passes", "passes", "{:d}"),
    ("rerun", "rerun", "{:d}"),
    ("saved", "saved", "{:.1%}"),
]
ALIKE = {
    "cycles": ["cycle", "keep", "stop", "end", "block", "refreshed", "drafted", "accepted", "cut", "emitted"],
    "nodes": ["cycle", "token", "parent", "position", "status"],
    "outputs": ["cycle", "position", "token", "origin", "order"],
    "passes": ["cycle", "tokens"],
}
COLUMNS = [
    ("question", "question", ""),
    ("setting", "setting", ""),
    ("texts", "texts", "{:d}"),
    ("equal", "equal", "{:.3f}"),
    ("inside", "inside", "{:.3f}"),
    ("width", "width", "{:.1%}"),
    ("answer", "answer", "{:.2%}"),
    ("told", "told", "{:.1%}"),
    ("tau", "τ", "{:+.1%}"),
    ("time", "time", "{:+.1%}"),
]


def bench(
    model: Any,
    drafts: list[Any],
    entries: list[dict[str, Any]],
    *,
    number: int = 100,
    max_new_tokens: int = 64,
    tick: Callable[[int, int, str], None] = lambda done, of, name: None,
) -> Report:
    """Replay each question's settings on a recorded run, rerun them, and compare every cycle.

    Raises
    ------
    ParameterError
        If there is no draft model and the model is not a diffusion model.
    """
    if getattr(model, "kind", None) == "diffusion":
        return canvases(model, entries, prompts=number, max_new_tokens=max_new_tokens, tick=tick)
    if not drafts:
        raise ParameterError("the what-ifs are about a draft model: pass --draft")
    drafter = drafts[0]
    texts = [model.encode(text) for text in enough(entries, number)]
    rest = {"draft": drafter, "max_new_tokens": max_new_tokens}
    rows: list[dict[str, Any]] = []
    widths: list[float] = []
    total = sum(len(settings) for *_, settings in QUESTIONS.values())
    recorded: dict[tuple[str, int], WhatIf] = {}
    for question, (base, own, method, settings) in QUESTIONS.items():
        key = base, TAILS.get(question, TAIL)
        if key not in recorded:
            generate(model, texts[0], base, **rest, **own)  # the first run warms up
            trees = base == "unispec"  # its store learns from the rows of its passes
            trace = generate(model, texts, base, record="all" if trees else "judged", **rest, **own)
            recorded[key] = WhatIf(trace if trees else densify(trace, model, drafter, key[1]))
        for values in settings:
            answer = getattr(recorded[key], method)(**values)
            prices = None
            # Only a speculative base run has the passes to take prices from. They are taken right before
            # the rerun, since the machine's load may change.
            if method == base == "speculative":
                prices = Costs.of(generate(model, texts, base, **rest, **own))
            again = generate(model, texts, method, **rest, **values)
            vague = width(answer, 0)
            if question not in TAILS:
                widths += vague
            row = {"question": question, "setting": spell(values), "texts": len(texts)}
            row |= verdict(answer.walks[0], again)
            row |= {"width": float(np.median(vague)) if vague else None, "answer": interval(answer.table, 0)}
            if method == "unispec":
                row["tau"] = float(answer.table["tau"].iloc[0] / metrics.tau(again) - 1)
            if prices is not None:
                modelled = recorded[key].clock(answer, prices).table["seconds"].iloc[0]
                row["time"] = float(modelled / metrics.seconds(again, prefill=False) - 1)
            rows.append(row)
            tick(len(rows), total, question)
    return judge(rows, widths, setting(model, drafts[:1], prompts=len(texts), max_new_tokens=max_new_tokens))


def canvases(
    model: Any,
    entries: list[dict[str, Any]],
    *,
    prompts: int = 50,
    max_new_tokens: int = 64,
    tick: Callable[[int, int, str], None] = lambda done, of, name: None,
) -> Report:
    """Replay SSD on a record of stepwise decoding, run SSD, and compare every cycle and node."""
    texts = [model.encode(text) for text in enough(entries, prompts)]
    rows: list[dict[str, Any]] = []
    for policy, fixed in POLICIES.items():
        base = generate(model, texts, "stepwise", max_new_tokens=max_new_tokens, **fixed)
        question = WhatIf(base)
        for values in CHAINS:
            answer = question.ssd(**values)
            again = generate(model, texts, "ssd", max_new_tokens=max_new_tokens, **fixed, **values)
            equal = alike(answer.trace(0), again)
            close = [getattr(walk, "close", 0) for walk in answer.walks[0]]
            passes = int(answer.table["target_passes"].iloc[0])
            rows.append(
                {
                    "question": policy,
                    "setting": " ".join(f"{name}={value}" for name, value in values.items()),
                    "texts": len(texts),
                    "equal": sum(equal) / len(texts),
                    "explained": sum(e or c > 0 for e, c in zip(equal, close)) / len(texts),
                    "close": sum(close) / passes,
                    "passes": passes,
                    "rerun": int(metrics.target_passes(again)),
                    "saved": metrics.step_reduction(again).median,
                }
            )
            tick(len(rows), len(POLICIES) * len(CHAINS), policy)
    bars = [
        Bar("texts whose every cycle and node is the rerun's", least(rows, "equal"), 1.0),
        Bar("texts that are equal, or of which a near-tie was named", least(rows, "explained"), 1.0),
    ]
    notes = [
        "equal: share of texts whose replayed drafts, verdicts, tokens, order and positions fed are the "
        "rerun's. close: share of the replayed passes in which two choices lie within a step of the grid, "
        "2^-12; a text without one must be equal.",
        "asked: one run of stepwise decoding for each policy. passes: replayed and real ones of SSD.",
    ]
    where = setting(model, [], prompts=len(texts), max_new_tokens=max_new_tokens)
    return Report("whatif", "What-ifs of SSD against reruns", where, CANVAS_COLUMNS, rows, bars, notes)


def alike(answer: Any, again: Any) -> list[bool]:
    """For each text, whether replayed cycles equal the rerun's except for time and rounding."""

    def each(trace: Any) -> dict[int, tuple]:
        found: dict[int, list[list]] = {}
        for name, columns in ALIKE.items():
            frame = getattr(trace, name)[["prompt", *columns]].astype(object)
            frame = frame.where(frame.notna(), None)
            for prompt, rows in frame.groupby("prompt"):
                found.setdefault(int(prompt), []).append([name, *rows[columns].to_numpy().tolist()])
        return {prompt: tuple(parts) for prompt, parts in found.items()}

    one, other = each(answer), each(again)
    return [one.get(prompt) == other[prompt] for prompt in sorted(other)]


def judge(rows: list[dict[str, Any]], widths: list[float], where: dict[str, Any]) -> Report:
    """The report of the compared settings."""
    bars = []
    for question in QUESTIONS:
        some = [row for row in rows if row["question"] == question]
        bars.append(Bar(f"{question}: texts whose every cycle is the rerun's", least(some, "equal"), 1.0))
        bars.append(Bar(f"{question}: texts whose bounds hold the rerun", least(some, "inside"), 1.0))
        if question == "trees":
            continue  # modelled cycles carry no guarantee; their error is printed
        if question != "thresholds":  # how long the texts stay equal is up to them
            bars.append(Bar(f"{question}: cycles that were told", least(some, "told"), ANSWERED))
    answers = [row["answer"] for row in rows if row["answer"] and row["question"] not in TAILS]
    middle = float(np.median(answers)) if answers else 0.0
    bars.append(Bar("median width of an answer's interval of drafted tokens", middle, WIDTH, "at most"))
    # In a trace of a single text, its interval is the answer.
    text = float(np.median(widths)) if widths else 0.0
    bars.append(Bar("median width of a single text's interval of drafted tokens", text, WIDTH, "at most"))
    errors = [abs(row["time"]) for row in rows if row.get("time") is not None]
    notes = [
        "equal: share of texts whose replayed cycles are the rerun's in all that is marked exact, and whose "
        "named token stands where it was said to. inside: share whose bounds hold what the rerun drafted.",
        "width: of the interval of a text's drafted tokens, over its middle, median of the texts that have "
        "one. answer: the same of all texts together. told: replayed cycles over the rerun's. time: modelled "
        "over real decoding time, less one.",
    ]
    texts = sum(row["question"] not in TAILS for row in rows) * where["prompts"]
    wide = f"; the median of those is {np.median(widths):.1%} wide" if widths else ""
    notes.append(f"{len(widths)} of {texts} texts have an interval at all{wide}.")
    notes += [
        f"{question}: the record follows the drafter {n} tokens behind a wrong one, not {TAIL}; what is "
        "bounded for that alone is held against the rerun, but its width is not the bar's."
        for question, n in TAILS.items()
    ]
    off = [abs(row["tau"]) for row in rows if row.get("tau") is not None]
    if off:
        notes.append(
            "trees: told counts the cycles before the replay becomes a model, and equal looks at those. τ: "
            f"modelled over real, less one; median error {np.median(off):.1%}, the largest {max(off):.1%}."
        )
    if errors:
        notes.append(
            f"Median error of the modelled time: {np.median(errors):.1%}, the largest {max(errors):.1%}."
        )
    return Report("whatif", "What-ifs against reruns", where, COLUMNS, rows, bars, notes, dropped=("texts",))


def least(rows: list[dict[str, Any]], name: str) -> float:
    """The smallest value of a column."""
    return min(row[name] for row in rows)


def verdict(walks: list[Walk], again: Any) -> dict[str, float]:
    """Shares of texts that match the rerun, and of cycles that the replay determined."""
    cycles = again.cycles
    cycles = cycles[cycles["cycle"] > 0]
    real = {number: some.to_dict("records") for number, some in cycles.groupby("prompt")}
    written = again.outputs.groupby("prompt")["token"].apply(list).to_dict()
    found = [compare(walk, real[number], written[number]) for number, walk in enumerate(walks)]
    replayed = sum(walk.exact for walk in walks)
    return {
        "equal": float(np.mean([equal for equal, _ in found])),
        "inside": float(np.mean([inside for _, inside in found])),
        "told": replayed / len(cycles),
    }


def compare(walk: Walk, rows: list[dict[str, Any]], text: list[int]) -> tuple[bool, bool]:
    """Compare a replayed text with its rerun.

    Returns
    -------
    equal : bool
        Whether all replayed cycles equal the rerun's in every field marked exact, including the last cycle;
        and if the replay stopped at a token, whether the rerun wrote that token there, in that cycle.
    inside : bool
        Whether bounded values are within their bounds.
    """
    upto = walk.exact
    pairs = list(zip(walk.steps[:upto], rows))
    equal = len(pairs) == upto and all(same(*pair) for pair in pairs)
    inside = all(
        s.sent <= r["sent"] <= s.sent_high and s.drafted <= r["drafted"] <= s.drafted_high for s, r in pairs
    )
    place = walk.place
    if place is None and walk.modelled is None:
        equal = equal and len(walk.steps) == len(rows)
    elif place is not None and place.token is not None:
        row = rows[place.cycle - 1] if place.cycle <= len(rows) else {"keep": 0, "emitted": 0}
        here = row["keep"] <= place.position < row["keep"] + row["emitted"]
        equal = equal and here and text[place.position] == place.token
    return equal, inside


def same(step: Step, row: dict[str, Any]) -> bool:
    """Whether a replayed cycle equals the real one in every field that is not bounded."""
    exact = (step.cycle, step.start, step.accepted, step.cut, step.unreviewed, step.emitted)
    equal = exact == tuple(row[name] for name in EXACT_FIELDS)
    if step.certain:
        equal = equal and (step.sent, step.drafted) == (row["sent"], row["drafted"])
    return equal and step.stop in ("", row["stop"])


def width(answer: Answer, row: int) -> list[float]:
    """Relative width of the interval of drafted tokens, for each text for which it is only bounded."""
    found = []
    for walk in answer.walks[row]:
        low = sum(step.drafted for step in walk.steps)
        high = sum(step.drafted_high for step in walk.steps)
        if high > low:
            found.append(2 * (high - low) / (high + low))
    return found


def interval(table: Any, row: int) -> float | None:
    """Relative width of an answer's interval of drafted tokens; None without an interval."""
    if "drafted_lo" not in table:
        return None
    low, high = (float(table[f"drafted_{side}"].iloc[row]) for side in ("lo", "hi"))
    return 2 * (high - low) / (high + low)


def enough(entries: list[dict[str, Any]], n: int) -> list[Any]:
    """Pick `n` distinct one-turn prompts: all turns of the suite, joined in pairs if those are too few."""
    turns = [turn for e in spread(entries, len(entries)) for turn in e.get("turns", [e.get("prompt")])]
    plain = list(dict.fromkeys(text for text in turns if isinstance(text, str)))
    pairs = (
        f"{text}\n{plain[(i + gap) % len(plain)]}"
        for gap in range(1, len(plain))
        for i, text in enumerate(plain)
    )
    found: dict[str, Any] = {}
    for text in chain(turns, pairs):
        if len(found) == n:
            break
        found.setdefault(repr(text), text)
    if len(found) < n:
        raise ParameterError(
            f"there are {len(found)} prompts, and {n} are wanted: give more, or a lower --number"
        )
    return list(found.values())


def spell(values: dict[str, Any]) -> str:
    """Describe a setting in words."""
    return " ".join(f"{name}={value:g}" for name, value in values.items())
