"""The demonstration: methods compared on a few prompts of each kind of work, and a page of the results."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specviz import metrics
from specviz.errors import ModelError, PromptError, SpecvizError, TraceError
from specviz.loop import Run
from specviz.measure import timing
from specviz.measure.calibrate import calibrate
from specviz.measure.report import Entry, Estimate, Part, Report, Row, Settings, Tick, Values
from specviz.measure.timing import BASELINE, Entrant, Phased, Timed
from specviz.methods import find
from specviz.methods.kinds import CALIBRATED
from specviz.models.protocols import Model
from specviz.models.zoo import bundled
from specviz.suites import pick
from specviz.trace import Trace
from specviz.trace.files import partial_of
from specviz.trace.recorder import begun

if TYPE_CHECKING:
    from specviz.widgets.page import Gallery, View

PAGE, TRACES = "demo.html", "traces"
PAGE_LIMIT = 1_400_000  # bytes
LANES = 3  # of the race on the page
# Methods for a model without drafters: exact ones that need no training.
UNTRAINED = [BASELINE, "prompt_lookup", "lookahead", "spectra", "token_recycling", "unispec"]
# Methods that show a model's trained drafters.
TRAINED = ["speculative", "eagle", "blockwise", "bild"]
SIZED = "unispec"  # the method whose draft size is calibrated
SIZES = (2, 4, 5, 8, 10)
MEASURED = 2  # practice prompts to calibrate on; the others first fill the method's memory
CALIBRATION_TOKENS = 24
# Defaults are for a device that computes many nodes in the time of one. On a CPU the trained drafters of
# SmolLM2 are fastest with few tokens per cycle (docs/results.md).
SMALLER: dict[str, Settings] = {
    "token_recycling": {"draft_size": 24},
    "speculative": {"draft_length": 2},
    "eagle": {"draft_size": 3, "depth": 2, "branches": 2},
    "blockwise": {"k": 2},
}
WARM_UP = 8  # tokens that each method writes before the clock runs
TOKENS = 36  # default maximum per text
FEWEST = 16  # tokens per text on a slow machine, at least
MINIMUM = 5  # prompts on a slow machine, at least
SECONDS = 110  # target for the total decoding time of all contenders on a slow machine
COLUMNS = [
    ("method", "method", ""), ("draft", "draft", ""), ("exactness", "exactness", ""),
    ("tau", "τ", "{:.2f}"), ("A/D", "A/D", "{:.2f}"), ("A/O", "A/O", "{:.2f}"),
    ("tokens_per_second", "tokens/s", "{:,.1f}"), ("speedup", "speedup", "{:.2f}"),
    ("speedup_with_prefill", "speedup with prefill [95%]", ""), ("same", "same text", ""),
]  # fmt: skip
DROP_ORDER = ("A/O", "exactness", "A/D", "same")
INSIDE = "_with_prefill"
ITSELF = Estimate(1.0, float("nan"), float("nan"), 0)  # the baseline's own speedup
LOSSY = "Lossy methods, whose texts may differ from the model's own"
NOTES = [
    "tokens/s and speedup: over all texts together, without the prefill (reading the prompt). With prefill: "
    "including its time; the median over texts of tokens/s relative to autoregressive decoding on the same "
    "text, with its 95 % bootstrap interval.",
    "τ: tokens per cycle, including the bonus token. A/D: accepted draft tokens over sent ones; in a tree "
    "most nodes must fail. A/O: share of the output that came from drafts. same text: equal to "
    "autoregressive decoding token for token. Every method's memory was empty at the first text.",
    "Our methods write their record while the clock runs.",
]


PLAIN = (
    "{}, plain: its plain decoding of the same file, prompts, threads and number of tokens, alternating "
    "with ours, without a record. Its texts may differ from ours because its arithmetic differs."
)


def plan(out: Path, entrants: list[Entrant], force: bool) -> list[Path]:
    """The files that a demonstration will write, checked before any work.

    Raises
    ------
    TraceError
        If one exists already, or was left unfinished (unless `force`).
    """
    files = [out / PAGE, *(out / TRACES / e.file for e in entrants)]
    for path in () if force else files:
        if path.exists():
            raise TraceError(f"{path} exists: choose another --out, or overwrite it with --force")
        if begun(partial := partial_of(path)):
            raise TraceError(
                f"{partial} was left by an interrupted demo: look at it (specviz show), move it away, or "
                "choose another --out"
            )
    return files


def other_engines(path: Path | None) -> tuple[list[Any], list[str]]:
    """Other engines that run a model's GGUF file here, and a sentence about each one that is missing.

    Parameters
    ----------
    path : Path or None
        The file that the torch model was read from, if any.
    """
    if path is None:
        return [], []
    from specviz.models import load

    try:
        return [load(f"gguf:{path}")], []
    except ModelError as error:
        return [], [f"llama.cpp's plain decoding of this file is missing here: {error}"]


def run(
    model: Model,
    drafts: list[Model],
    entries: list[Entry],
    out: Path,
    *,
    each: int = 3,
    max_new_tokens: int | None = None,
    force: bool = False,
    count: int | None = 1,
    path: Path | None = None,
    practice: Sequence[Entry] = (),
    names: Sequence[str] | None = None,
    tick: Tick = lambda done, of, name: None,
) -> tuple[Report, Path]:
    """Decode a few prompts of each kind of work with several methods; write traces and a page.

    Parameters
    ----------
    model : Model
    drafts : list of Model
    entries : list of dict
        Prompts as `specviz.suites.read` returns them.
    out : Path
        Folder for ``demo.html`` and ``traces/``, with one Parquet file per run.
    each : int
        Prompts of each kind of work.
    max_new_tokens : int, optional
        Maximum per text. Default: `TOKENS`, or fewer if this machine would take longer than `SECONDS`.
    count : int or None
        Number of threads; None keeps torch's.
    path : Path, optional
        The GGUF file that the model was read from: other engines' plain decoding of it is timed, too.
    practice : sequence of dict
        Other prompts on which UniSpec's draft size is calibrated, unless it was before. Default: it runs with
        its default size.
    names : sequence of str, optional
        Methods, each with one drafter; those that lack a drafter are left out. Default: with drafters every
        method with each of them, without drafters the methods that need no training.
    tick : callable
        Called with (done, of, label) after each text.

    Returns
    -------
    (Report, Path)
        The table, and the page.

    Raises
    ------
    KeyboardInterrupt
        After Ctrl-C; every trace so far is kept.
    """
    few = names or (None if drafts else UNTRAINED)
    entrants = timing.lineup(drafts, list(few) if few else None)
    if few:
        entrants = once_each(entrants)
    if not any(e.method == BASELINE for e in entrants):
        raise PromptError(f"the method {BASELINE} is not installed, but speedups are relative to it")
    files = plan(out, entrants, force)
    chosen, brief = pick(entries, each), min(WARM_UP, max_new_tokens or WARM_UP)
    with timing.threads(count), ExitStack() as stack:
        parameters, remarks = sizes(model, practice, tick) if few else ({}, [])
        engines, missing = other_engines(path)
        if max_new_tokens is None:
            max_new_tokens, number = affordable(model, chosen, len(entrants) + len(engines))
            if max_new_tokens < TOKENS:
                fewer = f", and {number} texts, not {len(chosen)}" if number < len(chosen) else ""
                remarks.append(
                    f"At most {max_new_tokens} tokens per text, not {TOKENS}{fewer}, because this machine is "
                    "slow: -n sets another number of tokens, for all texts."
                )
            chosen = [chosen[i] for i in np.linspace(0, len(chosen) - 1, number).round().astype(int)]
        runs: dict[str, Run] = {}
        stack.enter_context(timing.closing(runs))
        for entrant, file in zip(entrants, files[1:]):
            more = {"draft": entrant.draft} | parameters.get(entrant.method, {})
            timing.finish(Run(model, chosen[0], entrant.method, max_new_tokens=brief, record=None, **more))
            runs[entrant.label] = Run(
                model, chosen, entrant.method, out=file, force=force, max_new_tokens=max_new_tokens, **more
            )
        for engine in engines:
            timing.finish(Run(engine, chosen[0], BASELINE, max_new_tokens=brief, record=None))
            runs[name_of(engine)] = Run(engine, chosen, BASELINE, max_new_tokens=max_new_tokens, record=None)
        texts = sum(len(e.get("turns", [0])) for e in chosen)
        decoders = {label: Phased(run) for label, run in runs.items()}
        times = timing.paired(decoders, texts, model.device, timing.counter(tick, texts * len(runs)))
        traces = {label: timing.finish(run) for label, run in runs.items()}
        about = timing.setting(model, drafts, prompts=len(chosen), texts=texts, max_new_tokens=max_new_tokens)
        prefills = {label: sum(decoder.prefills) for label, decoder in decoders.items()}
    for engine in engines:
        del traces[name_of(engine)]  # it has no record
    report = tabulate(entrants, engines, times, prefills, traces, about)
    report.notes += remarks + missing
    return report, write_page(report, traces, out / PAGE, force)


def once_each(entrants: Sequence[Entrant]) -> list[Entrant]:
    """Each method with one drafter: the first, or for BiLD one aligned with its target, as in its paper.

    Without an aligned drafter, BiLD has the first one, too.
    """
    chosen: dict[str, Entrant] = {}
    for each in entrants:
        aligned = each.draft is not None and each.draft.name.endswith("-aligned")
        if each.method not in chosen or (each.method == "bild" and aligned):
            chosen[each.method] = each
    return list(chosen.values())


def affordable(model: Model, entries: Sequence[Entry], contenders: int) -> tuple[int, int]:
    """Tokens per text and number of prompts that all contenders can decode in `SECONDS`.

    Each contender is assumed to be as fast as plain decoding. Prompts are left out only if `FEWEST` tokens of
    each take longer, and at least `MINIMUM` remain.
    """
    lengths = [sum(map(len, entry.get("turns") or [str(entry.get("prompt"))])) for entry in entries]
    longest = entries[int(np.argmax(lengths))]
    first, second = (Run(model, longest, BASELINE, max_new_tokens=WARM_UP, record=None) for _ in range(2))
    timing.finish(first)
    decoder, begin = Phased(second), time.perf_counter()
    tokens = sum(len(decoder(turn)) for turn in range(len(longest.get("turns", [0]))))
    prefill = sum(decoder.prefills)  # of all its turns
    each = (time.perf_counter() - begin - prefill) / max(tokens, 1)
    second.close()
    texts = sum(len(entry.get("turns", [0])) for entry in entries)
    reading = prefill * sum(lengths) / max(lengths)  # extrapolated by characters from the longest text
    mine = SECONDS / contenders
    affordable_tokens = (mine - reading) / (each * texts)
    share = min(1.0, mine / (reading + FEWEST * each * texts))
    number = min(len(entries), max(MINIMUM, int(share * len(entries))))
    return int(np.clip(affordable_tokens, FEWEST, TOKENS)), number


def sizes(model: Model, practice: Sequence[Entry], tick: Tick) -> tuple[dict[str, Settings], list[str]]:
    """Parameters by method, and a sentence about the draft sizes of the methods that need no training.

    UniSpec's size is calibrated for this model and machine on other prompts, and the other methods use the
    same one, because the cost of a pass depends on how many tokens it reads, not on who drafted them. An
    earlier calibration is reused; without prompts each method has its default size.
    """
    chosen: dict[str, Settings] = {name: dict(more) for name, more in SMALLER.items()}
    fixed = {name: find(name)(**chosen.get(name, {})) for name in UNTRAINED if find(name).size}
    default = fixed.pop(SIZED).values[find(SIZED).size]
    others = ", ".join(f"{name} {method.values[method.size]}" for name, method in fixed.items())
    if not practice:
        return chosen, [f"Maximum draft tokens per pass: {SIZED} {default}, {others}."]
    try:
        size, origin = timing.calibrated(model, SIZED), "from an earlier calibration here"
        if size is None:
            measured = calibrate(
                model, SIZED, list(practice[:MEASURED]), SIZES, warm_up=list(practice[MEASURED:]) or 0,
                max_new_tokens=CALIBRATION_TOKENS, rounds=1, tick=tick,
            )  # fmt: skip
            size = measured.g
            origin = (
                f"the best of {SIZES[0]} to {SIZES[-1]} by {measured.spent:.0f} s on other prompts, kept "
                f"for the next time; specviz calibrate {SIZED} takes longer and is more precise"
            )
    except SpecvizError as error:
        return chosen, [
            f"Maximum draft tokens per pass: {SIZED} {default} (not calibrated: {error}), {others}."
        ]
    chosen |= {name: {method.size: size} for name, method in fixed.items()}
    chosen[SIZED] = {find(SIZED).size: CALIBRATED}
    return chosen, [
        f"Maximum draft tokens per pass: {SIZED} {size} ({origin}). The other methods use the same size, "
        f"because the cost of a pass depends on how many tokens it reads, not on who drafted them."
    ]


def name_of(engine: Any) -> str:
    """Name of a model's engine: ``llama.cpp``."""
    return str(engine.backend["name"])


def tabulate(
    entrants: list[Entrant],
    engines: Sequence[Model],
    times: Mapping[str, Timed],
    prefills: Mapping[str, float],
    traces: Mapping[str, Trace],
    about: Settings,
) -> Report:
    """The demonstration's tables: exact methods and plain decodings by speed; lossy methods separately.

    `engines` are other engines' models, whose plain decoding was timed. `times` and `prefills` (total
    seconds) are by label or engine.
    """
    baseline = next(e.label for e in entrants if e.method == BASELINE)
    base = times[baseline]
    speeds = {name: t.tokens / (sum(t.seconds) - prefills[name]) for name, t in times.items()}

    def row(name: str) -> Row:
        timed = times[name]
        return {
            "tokens_per_second": speeds[name], "speedup": speeds[name] / speeds[baseline],
            "tokens_per_second_with_prefill": timed.speed,
            "speedup_with_prefill": ITSELF if name == baseline else timed.over(base),
            "same": f"{timed.same(base)}/{len(base.texts)}", "tokens": timed.tokens,
            "seconds": sum(timed.seconds), "prefill": prefills[name],
        }  # fmt: skip

    rows: list[Row] = []
    for entrant in entrants:
        summary = metrics.summary(traces[entrant.label]).iloc[0].to_dict()
        names = {"method": entrant.method, "draft": entrant.draft.name if entrant.draft is not None else None}
        figures = {name: summary[name] for name in ("exactness", "tau", "A/D", "A/O")}
        rows.append(names | figures | row(entrant.label))
    for engine in engines:
        name = name_of(engine)
        unknown = dict.fromkeys(("draft", "exactness", "tau", "A/D", "A/O"))
        names = {"method": f"{name}, plain", "engine": name, "format": str(engine.dtype)}
        rows.append(unknown | names | row(name))
    rows.sort(key=lambda row: -row["tokens_per_second"])
    lossy = [row for row in rows if row.get("exactness") == "lossy"]
    exact = [row for row in rows if row.get("exactness") != "lossy"]
    columns = [column for column in COLUMNS if column[0] != "draft" or any(e.draft for e in entrants)]
    title = title_of(exact, about)
    parts = [Part(LOSSY, columns, lossy, DROP_ORDER)] if lossy else []
    notes = NOTES + [PLAIN.format(name_of(engine)) for engine in engines]
    return Report("demo", title, about, columns, exact, notes=notes, dropped=DROP_ORDER, parts=parts)


def title_of(exact: Sequence[Values], about: Values) -> str:
    """The headline, and a line on the model and the texts."""
    model = about["model"]
    size = f"{model['parameters'] / 1e6:.1f} M parameters"
    name, tokens = model["name"], about["max_new_tokens"]
    lines = [
        headline(exact, about["dtype"]),
        f"{name}, {size}: {about['texts']} texts, up to {tokens} tokens each",
    ]
    if name in bundled():
        lines.insert(
            0,
            f"{name} is a toy model of {size}: its time goes into function calls, not reading weights.",
        )
    return "\n".join(lines)


def headline(rows: Sequence[Values], dtype: str) -> str:
    """Compare the best exact method with our and other engines' plain decoding, in two lines.

    Parameters
    ----------
    rows : sequence of mapping
        Exact methods and other engines' plain decodings, with their tokens per second.
    dtype : str
        Number format of our model.
    """

    def speed(row: Values) -> float:
        return float(row["tokens_per_second"])

    ours = next(row for row in rows if row["method"] == BASELINE)
    best = max((row for row in rows if "engine" not in row and row is not ours), key=speed, default=ours)
    other = max((row for row in rows if "engine" in row), key=speed, default=None)

    def over(row: Values, inside: str = "") -> str:
        key = f"tokens_per_second{inside}"
        return f"{best[key] / row[key]:.2f}"

    name = best["method"] + (f" with {best['draft']}" if best.get("draft") else "")
    sentence = f"{name} writes {speed(best):,.1f} tokens/s, {over(ours)} times our own plain decoding"
    inside = (
        f"Including the prefill (reading the prompt), all texts together: {over(ours, INSIDE)} times our own"
    )
    if other is None:
        return f"{sentence} ({speed(ours):,.1f} tokens/s)\n{inside}"
    fastest = "the fastest plain decoding of this file here"
    theirs = f"{over(other)} times {other['engine']}'s"
    figures = f"({speed(other):,.1f} tokens/s"
    if other["format"] != dtype:
        figures += f"; it computes with {other['format']} weights, we with {dtype}"
    if speed(other) > speed(ours):
        sentence += f" and {theirs}, {fastest} {figures})"
    else:
        sentence += f", {fastest} ({speed(ours):,.1f} tokens/s), and {theirs} {figures})"
    return f"{sentence}\n{inside} and {over(other, INSIDE)} times {other['engine']}'s"


def write_page(report: Report, traces: dict[str, Trace], path: Path, force: bool) -> Path:
    """Write an offline page: the result, a race, the tables; then player and picture of a method and prompt.

    The page offers one prompt of each kind of work, as many as `PAGE_LIMIT` has room for.
    """
    from specviz.files import write_text

    listed = next(iter(traces.values())).prompts
    kinds = listed.assign(kind=listed["kind"].fillna("")).drop_duplicates("kind")
    chosen = [int(index) for index in kinds["prompt"]]
    while True:
        page = _gallery(report, traces, chosen, len(listed)).document("specviz demo")
        size = len(page.encode("utf8"))
        if size <= PAGE_LIMIT or len(chosen) == 1:
            return write_text(path, page, force)
        fitting = int(len(chosen) * PAGE_LIMIT / size)  # at least one less
        chosen = chosen[: max(1, min(len(chosen) - 1, fitting))]


def _gallery(report: Report, traces: dict[str, Trace], chosen: list[int], count: int) -> Gallery:
    """The page's parts, with the chosen prompts to select from."""
    from html import escape

    from specviz.view.picture import picture
    from specviz.view.static import fragment, table
    from specviz.widgets.page import Gallery, player_view

    ordered = _by_speed(report, traces)
    *result, ran = report.title.split("\n")
    above = [f"<h1>specviz demo</h1><p>{escape(ran)}. {escape(report.where)}.</p>"]
    above += [f'<p class="result">{escape(line)}</p>' for line in result[-2:-1]]
    above += [f'<p class="note">{escape(line)}</p>' for line in [*result[:-2], *result[-1:]]]
    between = ["<h2>Exact methods, by speed</h2>", table(report.table.frame())]
    for part in report.parts:
        inner = table(part.frame())
        between.append(f"<details><summary>{escape(part.title)}</summary>{inner}</details>")
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in report.notes)
    between.append(f"<details><summary>What the numbers mean</summary>{notes}</details>")
    some = {label: trace.select(prompt=chosen) for label, trace in ordered.items()}
    about = next(iter(some.values())).prompts
    kinds = about["kind"].fillna("")
    names = [f"{number + 1}: {kind or 'text'}" for number, kind in zip(about["prompt"], kinds)]
    below = f"{len(chosen)} of {count} texts can be selected here; all are in {TRACES}/ (specviz show)."
    return Gallery(
        "".join(above),
        _race(report, some),
        "".join(between),
        [player_view(trace, label) for label, trace in some.items()],
        names,
        [[fragment(picture(trace, index)) for index in chosen] for trace in some.values()],
        f'<p class="note">{escape(below)}</p>',
    )


def _by_speed(report: Report, traces: dict[str, Trace]) -> dict[str, Trace]:
    """The traces in the order of the tables' rows."""
    names = {(t.run["method"], (t.run["draft"] or {}).get("name")): label for label, t in traces.items()}
    rows = [*report.rows, *(row for part in report.parts for row in part.rows)]
    labels = [names.get((row["method"], row.get("draft"))) for row in rows]
    return {label: traces[label] for label in [*filter(None, labels), *traces]}


def _race(report: Report, traces: dict[str, Trace]) -> View | None:
    """The two fastest exact methods and plain decoding against each other; None if they cannot race."""
    from specviz.widgets.lanes import fields
    from specviz.widgets.page import race_view

    exact = {label: t for label, t in traces.items() if t.run["exactness"] != "lossy"}
    plain = {label: t for label, t in exact.items() if t.run["method"] == BASELINE}
    drafting = [label for label in exact if label not in plain][: LANES - len(plain)]
    try:
        return race_view(fields({label: exact[label] for label in [*drafting, *plain]}))
    except TraceError:  # a single method, or no times
        return None
