"""The demonstration: every method on a few prompts of each kind of work, and a page to look at."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from specviz import metrics
from specviz.bench.report import Estimate, Report
from specviz.bench.timing import (
    BASELINE,
    Entrant,
    Texts,
    Timed,
    closing,
    lineup,
    paired,
    setting,
    threads,
)
from specviz.errors import PromptError, TraceError
from specviz.loop import Run
from specviz.suites import pick
from specviz.trace.files import partial_of

PAGE, TRACES = "demo.html", "traces"
COLUMNS = [
    ("method", "method", ""),
    ("draft", "draft", ""),
    ("exactness", "exactness", ""),
    ("tau", "τ", "{:.2f}"),
    ("A/D", "A/D", "{:.2f}"),
    ("A/O", "A/O", "{:.2f}"),
    ("tokens_per_second_with_prefill", "tokens/s with prefill", "{:,.0f}"),
    ("speedup_with_prefill", "speedup with prefill [95%]", ""),
    ("same", "same text", ""),
]
SPARE = ("A/O", "exactness", "A/D")
NOTES = [
    "τ: tokens a cycle, the bonus counted. A/D: accepted over drafted and sent; of a tree's nodes most must "
    "fail. A/O: share of the output from drafts. What a method remembers was empty at the first text.",
    "speedup: median over texts of tokens/s over autoregressive decoding's on the same text, side by side, "
    "the prefill's time inside, with its 95 % bootstrap interval. same text: token for token that of "
    "autoregressive decoding.",
]


def plan(out: Path, entrants: list[Entrant], force: bool) -> list[Path]:
    """The files that a demonstration will write, checked before any work.

    Raises
    ------
    TraceError
        If one is there already (unless `force`).
    """
    files = [out / PAGE, *(out / TRACES / e.file for e in entrants)]
    for path in files:
        for name in (path, partial_of(path)):
            if name.exists() and not force:
                raise TraceError(f"{name} exists: choose another --out, or overwrite it with --force")
    return files


def run(
    model: Any,
    drafts: list[Any],
    entries: list[dict[str, Any]],
    out: Path,
    *,
    each: int = 3,
    max_new_tokens: int = 96,
    force: bool = False,
    count: int | None = 1,
    tick: Callable[[int, int, str], None] = lambda done, of, name: None,
) -> tuple[Report, Path]:
    """Decode a few prompts of each kind with every method; write traces and a page.

    Parameters
    ----------
    model : Model
    drafts : list of Model
    entries : list of dict
        Prompts as `specviz.suites.read` gives them.
    out : Path
        Folder for ``demo.html`` and ``traces/``, one Parquet file a run.
    each : int
        Prompts of each kind of work.
    count : int or None
        Threads; None leaves torch's.
    tick : callable
        Told (done, of, label) after each text.

    Returns
    -------
    (Report, Path)
        The table, and the page.

    Raises
    ------
    KeyboardInterrupt
        After Ctrl-C; every trace so far is kept.
    """
    entrants = lineup(drafts)
    if not any(e.method == BASELINE for e in entrants):
        raise PromptError(f"the method {BASELINE} is not installed, and speedups are measured against it")
    files = plan(out, entrants, force)
    chosen = pick(entries, each)
    with threads(count), ExitStack() as stack:
        runs: dict[str, Run] = {}
        stack.enter_context(closing(runs))
        for entrant, file in zip(entrants, files[1:]):
            options = {"draft": entrant.draft, "max_new_tokens": max_new_tokens}
            warm = Run(model, chosen[0], entrant.method, record=None, **options)
            for _ in warm:
                pass
            runs[entrant.label] = Run(model, chosen, entrant.method, out=file, force=force, **options)
        texts = sum(len(e.get("turns", [0])) for e in chosen)
        done = 0

        def told(name: str) -> None:
            nonlocal done
            done += 1
            tick(done, texts * len(runs), name)

        decoders = {label: Texts(run) for label, run in runs.items()}
        times = paired(decoders, texts, model.device, told)
        traces = {label: decoder.finish() for label, decoder in decoders.items()}
        found = setting(model, drafts, prompts=len(chosen), texts=texts, max_new_tokens=max_new_tokens)
    report = tabulate(entrants, times, traces, found)
    return report, write_page(report, traces, out / PAGE, force)


def tabulate(
    entrants: list[Entrant], times: dict[str, Timed], traces: dict[str, Any], found: dict[str, Any]
) -> Report:
    """The demonstration's table."""
    base = times[next(e.label for e in entrants if e.method == BASELINE)]
    rows = []
    for entrant in entrants:
        trace, time = traces[entrant.label], times[entrant.label]
        row = metrics.summary(trace).iloc[0].to_dict()
        plain = entrant.method == BASELINE
        rows.append(
            {
                "method": entrant.method,
                "draft": entrant.draft.name if entrant.draft is not None else None,
                **{name: row[name] for name in ("exactness", "tau", "A/D", "A/O")},
                "tokens_per_second_with_prefill": time.speed,
                "speedup_with_prefill": Estimate(1.0, float("nan"), float("nan"), 0)
                if plain
                else time.over(base),
                "same": f"{time.same(base)}/{len(base.texts)}",
                "tokens": time.tokens,
            }
        )
    model = found["model"]
    title = (
        f"Every method on {model['name']} ({model['parameters'] / 1e6:.2f} M parameters), "
        f"{found['texts']} texts, up to {found['max_new_tokens']} tokens each"
    )
    return Report("demo", title, found, COLUMNS, rows, notes=list(NOTES), spare=SPARE)


def write_page(report: Report, traces: dict[str, Any], path: Path, force: bool) -> Path:
    """One offline page: the table, then for one prompt of each kind the picture under every method."""
    from html import escape

    from specviz.view.picture import picture
    from specviz.view.static import contents, document, fragment, table
    from specviz.writing import write_text

    first = next(iter(traces.values()))
    listed = first.prompts
    kinds = listed.assign(kind=listed["kind"].fillna("")).drop_duplicates("kind")
    parts = [
        f"<p>{escape(report.title)}. {escape(report.where)}.</p>",
        table(report.frame()),
        *(f'<p class="note">{escape(note)}</p>' for note in report.notes),
    ]
    entries, body = [], []
    for kind, index in zip(kinds["kind"], kinds["prompt"]):
        anchor, heading = f"text-{index + 1}", str(kind) or "text"
        shown = [picture(trace, int(index)) for trace in traces.values()]
        anchors = [f"{anchor}-{i + 1}" for i in range(len(shown))]
        entries.append((anchor, heading, list(zip(anchors, traces, (p.draft for p in shown)))))
        body.append(f'<h2 id="{anchor}">{escape(heading)}</h2>')
        body += [fragment(p, a) for p, a in zip(shown, anchors)]
    parts += [contents(entries), *body]
    parts.append(f'<p class="note">All {len(listed)} texts are in {escape(TRACES)}/ (specviz show).</p>')
    return write_text(path, document("specviz demo", parts), force)
