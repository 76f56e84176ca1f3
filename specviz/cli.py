"""The command ``specviz``: thin doors to the rooms, loaded when a command needs them.

What a person can mend ends in one line on standard error and exit status 2; a missed bar or a failed
audit in 1; Ctrl-C in 130, with the trace so far kept.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specviz.errors import ModelError, ParameterError, PromptError, SpecvizError, TraceError
from specviz.models import ranks
from specviz.writing import write_bytes, write_text

if TYPE_CHECKING:
    from specviz.trace import Trace

MOST_DIFFERENCES = 40  # that the audit prints

app = typer.Typer(
    name="specviz",
    help="See and measure speculative decoding. Start with: specviz demo",
    add_completion=False,
    rich_markup_mode=None,
)

Model = Annotated[str, typer.Option("--model", "-m", help="Bundled name, folder, gguf:FILE, or hf:<id>.")]
Draft = Annotated[
    str | None, typer.Option("--draft", "-d", help="Draft model; default: the bundled one, if any.")
]
Drafts = Annotated[
    list[str] | None,
    typer.Option("--draft", "-d", help="Draft model; may be repeated. Default: all bundled ones."),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1 or mps.")]
Dtype = Annotated[str, typer.Option(help="float32, float16, bfloat16, float64 or auto.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace files that exist.")]
OneThread = Annotated[int, typer.Option(min=1, help="Threads on the CPU.")]
Prompts = Annotated[
    str | None,
    typer.Option(
        "--prompts",
        help="A suite (specviz suites lists them), NAME=FILE for a local copy of one, or a file: JSON lines "
        "with prompt or turns, or plain lines.",
    ),
]
NewTokens = Annotated[int, typer.Option("--max-new-tokens", "-n", min=1, help="Most tokens for each prompt.")]

Baseline = Annotated[
    Path | None,
    typer.Option(help="The same prompts without speculation, in the same kind of file; tells speedups, too."),
]
AIPerf = Annotated[Path | None, typer.Option("--aiperf", help="Write AIPerf's records, JSON lines.")]


@app.callback(invoke_without_command=True)
def _doors(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        import specviz

        print(f"specviz {specviz.__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


# ---------------------------------------------------------------- commands


@app.command()
def demo(
    out: Annotated[
        Path | None, typer.Option(help="Folder to write; default: a new folder specviz-demo.")
    ] = None,
    model: Model = "town",
    draft: Drafts = None,
    prompts: Prompts = "town",
    each: Annotated[int, typer.Option(min=1, help="Prompts of each kind of work.")] = 3,
    max_new_tokens: NewTokens = 96,
    threads: OneThread = 1,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    force: Force = False,
) -> None:
    """Decode a few prompts of each kind of work with every method: a table, traces, an offline page."""
    if out is None:
        number = 1
        out = Path("specviz-demo")
        while out.exists() and not force:
            number += 1
            out = Path(f"specviz-demo-{number}")
    elif out.suffix[1:2].isalpha() and not out.is_dir():  # run-0.6 is a folder's name
        raise TraceError(f"--out takes a folder, and {out} looks like a file")
    _writable(out / "demo.html", force)
    from specviz.suites import suite

    entries = list(suite(prompts or "town"))
    with _loading():
        from specviz.bench import demo as demonstration

        target, drafts = _models(model, draft, device, dtype, None)
    traces = out / demonstration.TRACES
    try:
        with _progress() as tick:
            report, page = demonstration.run(
                target,
                drafts,
                entries,
                out,
                each=each,
                max_new_tokens=max_new_tokens,
                force=force,
                count=threads,
                tick=tick,
            )
    except KeyboardInterrupt:
        if traces.is_dir():
            print(f"traces so far: {traces} ({_command('show', traces)})")
        raise
    report.show(_console())
    print(f"traces: {traces} ({_command('show', traces)})")
    print(f"page: {page}")


@app.command()
def generate(
    method: Annotated[str, typer.Argument(help="A decoding method; specviz models lists them.")],
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="Bundled name, folder, gguf:FILE, or hf:<id>. Default: town; streams: town-translator; "
            "canvases: town-diffusion.",
        ),
    ] = None,
    draft: Draft = None,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="The text to go on from.")] = None,
    prompts: Prompts = None,
    text: Annotated[
        Path | None, typer.Option(help="For retranslate: a text file, revealed --lag words at a time.")
    ] = None,
    stream: Annotated[
        Path | None,
        typer.Option(
            help="For retranslate: partial results as JSON lines (text, time, final), or a transcript with "
            "times (JSON, WebVTT, SRT)."
        ),
    ] = None,
    lag: Annotated[
        int,
        typer.Option(help="Words that an update of a text or a transcript brings; of WebVTT and SRT: cues."),
    ] = 3,
    language: Annotated[
        str | None, typer.Option(help="The source's, as en or ja: which words --lag counts.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Leave the model's chat template out.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the method; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for METHOD.parquet and METHOD.html, or a .parquet file."),
    ] = None,
    max_new_tokens: NewTokens = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="0 is off.")] = 0,
    top_p: Annotated[float, typer.Option(help="1 is off.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 0,
    record: Annotated[
        str,
        typer.Option(help="What the trace keeps: judged, all, dense (for what-ifs), none (the text)."),
    ] = "judged",
    batch: Annotated[
        int, typer.Option(min=1, help="Prompts decoded together at most; 1: one after another.")
    ] = 1,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads on the CPU; default: every physical core.")
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    revision: Revision = None,
    store: Annotated[
        Path | None, typer.Option(help="What the method learnt earlier: a file of --save-store.")
    ] = None,
    save_store: Annotated[
        Path | None, typer.Option("--save-store", help="Write what the method has learnt in the end.")
    ] = None,
    force: Force = False,
) -> None:
    """Decode your own prompts with one method; print what happened, write the trace and a page."""
    given = [
        name
        for name, value in (
            ("--prompt", prompt),
            ("--prompts", prompts),
            ("--text", text),
            ("--stream", stream),
        )
        if value is not None
    ]
    if len(given) != 1:
        raise PromptError(
            "give either --prompt TEXT or --prompts FILE; for retranslate --text or --stream FILE"
        )
    if record not in ("judged", "all", "dense", "none"):
        raise ParameterError(f"--record is judged, all, dense or none, not {record!r}")
    if out is not None and out.suffix != ".parquet" and out.suffix[1:2].isalpha() and not out.is_dir():
        raise TraceError(f"--out takes a folder or a .parquet file, and {out} looks like another file")
    file = None if out is None else out if out.suffix == ".parquet" else out / f"{Path(method).name}.parquet"
    if file is not None:
        _writable(file, force)
        _writable(file.with_suffix(".html"), force)
    if save_store is not None:
        _writable(save_store, force)
    streamed = text is not None or stream is not None
    if streamed and batch > 1:
        raise ParameterError("streams are decoded one after another: drop --batch")
    entries: list[Any] = _streams(text, stream, lag, language) if streamed else _entries(prompt, prompts)
    with _loading():
        from specviz import methods
        from specviz.loop.run import bundled_draft
        from specviz.models.loading import find, load

    kind = methods.find(method)
    if kind.streams != streamed:
        raise PromptError(
            f"{method} decodes a source that arrives in updates: give --text or --stream, not {given[0]}"
            if kind.streams
            else f"{method} takes a prompt that stands still: give --prompt or --prompts, not {given[0]}"
        )
    model = model or ("town-translator" if kind.streams else "town-diffusion" if kind.canvas else "town")
    built = kind(**_parameters(kind, set_ or []))
    if (store or save_store) and built.memory is None:
        raise ParameterError(f"{method} remembers nothing from text to text: drop --store and --save-store")
    find(model)
    if kind.needs_draft and draft is None and bundled_draft(kind, Path(model).name) is None:
        what = methods.base.ADDITIONS.get(kind.drafts_with, "a draft model")
        raise ParameterError(f"{method} needs {what}: pass --draft (a bundled name, a folder or hf:<id>)")
    if draft is not None and not kind.needs_draft:
        print(f"specviz: {method} uses no draft model, so --draft is left alone", file=sys.stderr)
    with _loading():
        target = load(model, device, dtype, revision=revision)
        drafter = load(draft, device, dtype) if draft is not None and kind.needs_draft else None
    if store is not None:
        built.load(store, target)
    for entry in entries if raw and not streamed else ():
        if isinstance(entry.get("prompt"), str):
            entry["prompt"] = target.encode(entry["prompt"], raw=True)
    from specviz.loop import Run

    with _threads(threads) as count:
        run = Run(
            target, entries, built, draft=drafter, max_new_tokens=max_new_tokens, temperature=temperature,
            top_k=top_k, top_p=top_p, seed=seed, batch=batch, record=None if record == "none" else record,
            out=file, force=force,
        )  # fmt: skip
        try:
            if streamed:
                _follow(run, target.decode)
            else:
                texts = sum(len(e.get("turns", [0])) for e in run.prompts)
                with _progress() as tick:
                    done = 0
                    for cycle in run:
                        if cycle.end is not None:
                            done += 1
                            tick(done, texts, method)
        except KeyboardInterrupt:  # it may come while something is drawn, too
            run.close("interrupted")
    trace = run.trace
    assert trace is not None
    if not streamed:
        _show(trace, file)
    size = trace.run["calibration"]
    calibrated = f", {size['parameter']} {size['value']} by calibration" if size else ""
    number = str(target.dtype).removeprefix("torch.")
    print(f"\non {target.device}, {count} thread{'s' * (count != 1)}, {number}{calibrated}")
    if file is not None:
        page = trace.to_html(file.with_suffix(".html"), force=force)
        print(f"trace: {file}\npage: {page}")
    if save_store is not None:
        built.save(save_store, target)
        learnt = trace.run["memory"]["end"]
        print(f"store: {save_store} ({learnt['known']:,} entries, {learnt['bytes'] / 1e6:.1f} MB)")
    if trace.run["stopped"] == "interrupted":
        raise KeyboardInterrupt


@app.command()
def show(
    path: Annotated[
        Path, typer.Argument(help="A trace: a .parquet file, a .partial of a run cut off, or a folder.")
    ],
    prompt: Annotated[int | None, typer.Option(min=1, help="Which text; the first is 1.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write one offline page with the player.")] = None,
    png: Annotated[Path | None, typer.Option(help="Write a picture of the first prompt.")] = None,
    force: Force = False,
) -> None:
    """Show a recorded trace; needs no torch."""
    for file in filter(None, (html, png)):
        _writable(file, force)
    from specviz.trace import Trace

    trace = Trace.open(path)
    if prompt is not None:
        count = max(len(run.run["prompts"] or []) for run in trace.split())
        if prompt > count:
            there = f"{count} texts (--prompt 1 to {count})" if count != 1 else "one text (--prompt 1)"
            raise TraceError(f"{path} holds {there}, so none is number {prompt}")
        trace = trace.select(prompt=prompt - 1)
        if not len(trace.cycles):
            raise TraceError(f"{path} holds no cycle of prompt {prompt}")
    _show(trace, path if prompt is None else None)
    if html is not None:
        print(f"page: {trace.to_html(html, force=force)}")
    if png is not None:
        from specviz import view

        print(f"picture: {write_bytes(png, view.png(trace.split()[0]), force=True)}")


@app.command()
def metrics(
    path: Annotated[Path, typer.Argument(help="A trace: a .parquet file, or a folder.")],
    baseline: Baseline = None,
    aiperf: AIPerf = None,
    force: Force = False,
) -> None:
    """Print every tool's acceptance length, rate and speedup of a trace; needs no torch."""
    if aiperf is not None:
        _writable(aiperf, force)
    from specviz.metrics import counts
    from specviz.trace import Trace

    trace = Trace.open(path)
    _print_definitions(trace, None if baseline is None else Trace.open(baseline))
    if aiperf is not None:
        print(f"AIPerf's records: {counts(trace).to_aiperf(aiperf, force=force)}")


@app.command("import")
def import_counts(
    path: Annotated[Path, typer.Argument(help="A file of JSON lines, a request a line.")],
    origin: Annotated[
        str,
        typer.Option(
            "--from",
            help="vllm (responses of a server with --per-request-spec-decode-metrics), aiperf "
            "(profile_export.jsonl) or spec-bench (an answer file).",
        ),
    ],
    baseline: Baseline = None,
    aiperf: AIPerf = None,
    force: Force = False,
) -> None:
    """Read what another tool counted of speculation, check it, and print what every tool makes of it."""
    if aiperf is not None:
        _writable(aiperf, force)
    from specviz.trace import read_counts
    from specviz.view.picture import visible

    found = read_counts(path, origin)
    base = None if baseline is None else read_counts(baseline, origin, plain=True)
    print(visible(repr(found).strip("<>")))
    _print_definitions(found, base)
    for side in filter(None, (found, base)):
        for line, why in side.left_out.to_numpy():
            print(visible(f"left out: {side.where}, line {line}: {why}"))
    if aiperf is not None:
        print(f"AIPerf's records: {found.to_aiperf(aiperf, force=force)}")


@app.command()
def audit(
    model: Model = "town",
    draft: Drafts = None,
    prompts: Annotated[
        str, typer.Option("--prompts", help="How many generated prompts; or a suite, or a file.")
    ] = "100",
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method", help="NAME or NAME:parameter=value,...; may be repeated. Default: every exact one."
        ),
    ] = None,
    max_new_tokens: NewTokens = 64,
    sampled: Annotated[int, typer.Option(min=0, help="Prompts that are decoded again with sampling.")] = 20,
    streams: Annotated[
        int, typer.Option(min=0, help="Texts that arrive in updates, for methods that decode such; 0: none.")
    ] = 10,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Instead: whether each row of such batches is its prompt's single run."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the generated prompts.")] = 0,
    threads: OneThread = 1,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    json: Annotated[Path | None, typer.Option("--json", help="Write the result as JSON.")] = None,
    force: Force = False,
) -> None:
    """Check that every exact method writes the target's own text; exit status 1 when one does not.

    Of a diffusion model: the same cells, tokens and order as stepwise decoding under the same cache policy.
    """
    if json is not None:
        _writable(json, force)
    if prompts.lstrip("-").isdecimal():
        if (number := int(prompts)) < 1:
            raise PromptError(f"--prompts must be at least 1, got {number}")
        from specviz.corpus import tasks

        entries: list[Any] = tasks.prompts(number, seed)
    else:
        from specviz.suites import suite

        entries = list(suite(prompts))
    with _loading():
        from specviz import audit as auditing

        target, drafts = _models(model, draft, device, dtype, None)
    if not getattr(target.tokenizer, "chat_template", None):  # a plain model goes on from the user's words
        entries = [e[-1]["content"] if isinstance(e, list) else e for e in entries]
    cells = target.kind == "diffusion"
    still, moving = (method, []) if batch is not None or cells else _streaming(method)
    given = _test_streams(target, streams) if moving != [] else []
    result = None
    with _progress() as tick:
        if cells:
            result = auditing.canvases(
                target, entries, method, batch or 1, max_new_tokens, threads=threads,
                progress=lambda done, of: tick(done, of, "prompts"),
            )  # fmt: skip
        elif batch is not None:
            result = auditing.batches(
                target, drafts, entries, still, batch, max_new_tokens, threads=threads, sampled=sampled,
                progress=lambda done, of: tick(done, of, "methods"),
            )  # fmt: skip
        elif still != []:
            result = auditing.run(
                target, drafts, entries, still, max_new_tokens=max_new_tokens, threads=threads,
                sampled=sampled, progress=lambda done, of: tick(done, of, "prompts"),
            )  # fmt: skip
        if given:
            more = auditing.streams(
                target, given, moving, max_new_tokens=max_new_tokens, threads=threads,
                sampled=min(sampled, len(given) // 2), progress=lambda done, of: tick(done, of, "updates"),
            )  # fmt: skip
            result = more if result is None else result.joined(more)
    if result is None:
        raise ParameterError("nothing to audit: these methods decode streams, so --streams must be above 0")
    from specviz.bench.report import Column, print_table
    from specviz.view.picture import visible

    rows = result.table()
    names = list(rows[0]) if rows else []
    spare = ("bound", "tokens", "prompts")  # the summary line has them, too
    columns = [
        Column(
            name,
            right=all(isinstance(row[name], int | float | None) for row in rows),
            folds=14 if name in ("method", "sampling") else None,
            spare=spare.index(name) if name in spare else None,
        )
        for name in names
    ]
    print_table(_console(), columns, [[_cell(row[name]) for name in names] for row in rows])

    for audited, difference in result.differences[:MOST_DIFFERENCES]:
        print(visible(f"{audited.method} {audited.draft} {audited.sampling}: {difference}"))
    if len(result.differences) > MOST_DIFFERENCES:
        print(f"{len(result.differences) - MOST_DIFFERENCES} more differences are in the result (--json)")
    print(result.summary)
    if json is not None:
        write_text(json, result.to_json() + "\n", force)
    raise typer.Exit(0 if result.holds else 1)


def _benches() -> Iterator[tuple[str, str]]:
    """What follows ``specviz bench``, each with a line."""
    from specviz.bench import BENCHES

    yield "run", "a run of your own: models x methods x parameters x suites (see bench run --help)"
    yield "report", "what a run or a replay found, as a text, as Markdown, as CSV or as a page"
    yield from BENCHES.items()


class Benches(typer.core.TyperGroup):
    """``specviz bench NAME`` is short for ``specviz bench measure NAME``, and what the help lists."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_benches()))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["measure", *args]
        return super().parse_args(ctx, args)


bench_app = typer.Typer(cls=Benches, invoke_without_command=True, rich_markup_mode=None)
app.add_typer(bench_app, name="bench")


@bench_app.callback()
def benches(context: typer.Context) -> None:
    """Measure: a run of your own (bench run), or one that has a name (bench NAME; bench NAME --help)."""
    if context.invoked_subcommand is not None:
        return
    for known, meaning in _benches():
        print(f"{known:13} {meaning}")


@bench_app.command("measure")
def bench(
    name: Annotated[str, typer.Argument(help="Which one; specviz bench lists them.")],
    model: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="Bundled name, folder, or hf:<id>; bench retranslation takes several. Default: town; "
            "there the bundled translators, in bench bild and confidence the encoder-decoders, in bench "
            "diffusion town-diffusion.",
        ),
    ] = None,
    draft: Drafts = None,
    prompts: Prompts = "town",
    number: Annotated[
        int | None, typer.Option("--number", min=1, help="How many prompts; default: the bench's.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", "-n", min=1, help="Default: the bench's.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Repetitions; default: the bench's.")] = None,
    size: Annotated[
        list[str] | None,
        typer.Option(
            "--size", help="Draft nodes; in bench trees METHOD=NODES for one method besides. May be repeated."
        ),
    ] = None,
    languages: Annotated[
        str | None,
        typer.Option(help="Of bench retranslation, as de,ja; default: de,zh,ja,xx; of bench eagle: seven."),
    ] = None,
    betas: Annotated[str | None, typer.Option(help="Of bench retranslation, as 0,0.2,0.5.")] = None,
    masks: Annotated[str | None, typer.Option("--k", help="Of bench retranslation, as 3,5.")] = None,
    tasks: Annotated[
        str | None, typer.Option(help="Of bench bild and confidence, as de-en,en-de,sum-en,sum-de.")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="Of bench retranslation: town, tower, qwen3, or a text with {source}.")
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(help="Of bench diffusion, as exact:8,time, and eagle, as table; default: all."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads on the CPU; default: 1, of bench diffusion 2.")
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    json: Annotated[Path | None, typer.Option("--json", help="Write the result as JSON.")] = None,
    force: Force = False,
) -> None:
    """Print a table and one summary line; exit status 1 when a bar is missed."""
    from specviz.bench import BENCHES, find
    from specviz.suites import suite

    if name not in BENCHES:
        find(name)
    if json is not None:
        _writable(json, force)
    asked = {"prompts": number, "max_new_tokens": max_new_tokens, "rounds": rounds, **_sizes(size or [])}
    asked |= {"languages": _listed("--languages", languages, str), "betas": _listed("--betas", betas, float)}
    asked |= {"masks": _listed("--k", masks, int), "tasks": _listed("--tasks", tasks, str)}
    asked |= {"template": template, "parts": _listed("--part", part, str)}
    given = {option: value for option, value in asked.items() if value is not None}
    with _loading():
        measure = find(name)
    for option in given.keys() - signature(measure).parameters.keys():
        said = {"own": "size", "masks": "k", "prompts": "number", "parts": "part"}.get(
            option, option.replace("_", "-")
        )
        raise ParameterError(f"bench {name} takes no --{said}")
    threads = threads or (2 if name == "diffusion" else 1)
    if name == "player":
        with _progress() as tick:
            report = measure(tick=tick, **given)
    elif name == "retranslation":
        with _loading():
            from specviz.bench.runner import threads as using
            from specviz.models import load

            targets = [load(each, device, dtype) for each in model or _translators()]
        with using(threads), _progress() as tick:
            report = measure(targets, tick=tick, **given)
    elif model is not None and len(model) > 1:
        raise ParameterError(f"bench {name} takes one --model")
    elif name == "diffusion":
        with _loading():
            from specviz.bench.runner import threads as using
            from specviz.models import load

            target = load(model[0] if model else import_module(measure.__module__).TARGET, device, dtype)
        with using(threads), _progress() as tick:
            report = measure(target, tick=tick, **given)
    elif name in ("bild", "confidence", "eagle"):
        with _loading():
            from specviz.bench.runner import threads as using
            from specviz.models import load

            bundled = import_module(measure.__module__)
            target, drafts = _models(
                model[0] if model else bundled.TARGET, draft or list(bundled.DRAFTS), device, dtype, None
            )
            more = {} if model else getattr(bundled, "BESIDE", {})
            beside = {role: load(each, device, dtype) for role, each in more.items()}
        with using(threads), _progress() as tick:
            report = measure(target, drafts, tick=tick, **beside, **given)
    else:
        entries = list(suite(prompts or "town")) if name not in ("passes", "roofline") else []
        with _loading():
            from specviz.bench.runner import threads as using

            target, drafts = _models(model[0] if model else "town", draft, device, dtype, None)
        with using(threads), _progress() as tick:
            report = measure(target, drafts, entries, tick=tick, **given)
    report.show(_console())
    if json is not None:
        report.write(json, force)
    raise typer.Exit(0 if report.held else 1)


@bench_app.command("run")
def bench_run(
    plan: Annotated[
        Path | None, typer.Argument(help="A TOML file with the plan; the options below win over it.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder; one of the same plan is gone on with. Default: specviz-runs/."
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="Bundled name, folder, gguf:FILE or hf:<id>; may be repeated."),
    ] = None,
    draft: Annotated[
        list[str] | None,
        typer.Option("--draft", "-d", help="Draft model; may be repeated. Default: the model's bundled one."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="A method with its parameters, as 'unispec draft_size=16 draft_size=32 keep=prompt'; may be "
            "repeated. Autoregressive decoding is added."
        ),
    ] = None,
    prompts: Annotated[
        list[str] | None,
        typer.Option("--prompts", help="A bundled suite or a file; may be repeated. Default: town."),
    ] = None,
    number: Annotated[
        int | None, typer.Option("--number", min=1, help="Prompts of each suite; default: all.")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="As 0,1,2: each is a round. Default: 0.")] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", "-n", min=1, help="Default: 128.")
    ] = None,
    temperature: Annotated[str | None, typer.Option(help="As 0,1. Default: 0, greedy.")] = None,
    top_k: Annotated[int | None, typer.Option(min=0, help="Default: off.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Default: off.")] = None,
    warm_up: Annotated[
        int | None,
        typer.Option(
            min=0, help="Other prompts of the suite that fill methods' memories before. Default: 5."
        ),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads on the CPU. Default: 1.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 or mps. Default: cpu.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32, float16, bfloat16, float64 or auto. Default: float32.")
    ] = None,
    untimed: Annotated[
        bool, typer.Option("--untimed", help="Take no times, so that workers may share cores.")
    ] = False,
    traces: Annotated[bool, typer.Option("--traces", help="Keep a trace of every row.")] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes of this machine. Default: this one alone.")
    ] = None,
    dask: Annotated[str | None, typer.Option(metavar="ADDRESS", help="Scheduler of a Dask cluster.")] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Decode again what failed.")] = False,
) -> None:
    """Decode suites by methods beside autoregressive decoding, keep every row, print the table.

    What is finished is on disk at once: after Ctrl-C, or worse, the same command goes on. Exit status 1 if a
    row failed. A model that the plan splits over GPUs (tp_plan = "auto") is run by every rank of torchrun:
    torchrun --nproc-per-node 2 -m specviz bench run plan.toml

    A plan has the keys that sv.bench.run takes; lists cross:

    \b
      models = ["town", { model = "./folder", draft = "./draft" }]
      methods = ["prompt_lookup", { method = "unispec", draft_size = [16, 32] }]
      suites = ["town", "mine.jsonl"]
      prompts = 20          # of each suite
      max_new_tokens = 128
    """
    if workers is not None and dask is not None:
        raise ParameterError("--workers are processes of this machine, --dask is a cluster: drop one of them")
    with _loading():
        from specviz.bench.running import run

        contenders = [_method(each) for each in method] if method else None
        given: dict[str, Any] = {
            "models": model, "draft": draft, "methods": contenders,
            "suites": prompts, "prompts": number, "seeds": _listed("--seeds", seeds, int),
            "max_new_tokens": max_new_tokens, "temperature": _listed("--temperature", temperature, float),
            "top_k": top_k, "top_p": top_p, "warm_up": warm_up, "threads": threads, "device": device,
            "dtype": dtype, "timed": False if untimed else None, "traces": traces or None,
        }  # fmt: skip
        with _kept(), _cluster(dask) as executor, _progress() as tick:
            found = run(plan, out=out, executor=executor, workers=workers, retry=retry, tick=tick, **given)
    if not ranks.leads():
        raise typer.Exit(0)
    found.show(_console())
    raise typer.Exit(1 if len(found.failures()) else 0)


@bench_app.command("report")
def bench_report(
    path: Annotated[Path, typer.Argument(help="Folder of a run, of a replay, or of replay --all.")],
    html: Annotated[
        bool, typer.Option("--html", help="Write one offline page with tables and plots.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for an issue.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, unrounded, for a script.")] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page; default: report.html in the folder.")
    ] = None,
    force: Force = False,
) -> None:
    """Tell what a run or a replay found: a text for the terminal, Markdown, CSV, or a page.

    A replay's replay.json holds all that is told of it, the device among it: kept, or sent to another
    machine, that file is shown there beside what was printed.
    """
    from specviz.bench import page

    if out is not None and not html:
        raise ParameterError("--out names the page: add --html")
    if html + markdown + csv > 1:
        raise ParameterError("one of --html, --markdown and --csv at a time")
    found = page.opened(path)
    if html:
        print(f"page: {page.write(found, out, force)}")
    elif markdown:
        print(page.markdown(found))
    elif csv:
        print(page.csv(found), end="")
    else:
        found.show(_console())


def _method(text: str) -> dict[str, Any]:
    """``NAME parameter=value ...`` as a plan has it; a parameter that stands there twice has two values."""
    from specviz import methods

    name, *pairs = shlex.split(text) or [""]
    kind = methods.find(name)
    found: dict[str, Any] = {"method": name}
    for pair in pairs:
        if pair.startswith("draft="):
            found.setdefault("draft", []).append(pair.removeprefix("draft="))
            continue
        for key, value in _parameters(kind, [pair]).items():
            found.setdefault(key, []).append(value)
    return found


@contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    """A Dask cluster's executor; None without an address."""
    if address is None:
        yield None
        return
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise SpecvizError('Dask is not installed: pip install "specviz-lm[cluster]"') from None
    logging.disable()  # of what Dask has to tell, the run says in one line what matters
    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError, TimeoutError) as error:
        raise SpecvizError(f"no Dask scheduler answers at {address}: {error}") from None
    with client:
        yield client.get_executor()


def _listed(option: str, given: str | None, kind: Callable[[str], Any]) -> list[Any] | None:
    """Values with commas between them."""
    try:
        return None if given is None else [kind(part.strip()) for part in given.split(",")]
    except ValueError:
        example = "0,0.2,0.5" if kind is float else "3,5"
        raise ParameterError(f"{option} wants numbers with commas between them, as {example}") from None


def _translators() -> list[str]:
    """The bundled translators, or the model that is not one but has read translations."""
    return [name for name in _bundled() if name.startswith("town-translator")] or ["town"]


def _sizes(given: list[str]) -> dict[str, Any]:
    """``--size``: a number for all, and METHOD=NUMBER for one."""
    found: dict[str, Any] = {}
    for text in given:
        method, _, number = text.rpartition("=")
        if not number.isdecimal():
            raise ParameterError(f"--size takes a number, or METHOD=NUMBER, not {text!r}")
        if method:
            found.setdefault("own", {})[method] = int(number)
        else:
            found["size"] = int(number)
    return found


@app.command()
def replay(
    table: Annotated[
        str | None, typer.Argument(help="A published table, as unispec/table3; without one they are listed.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every table of the five papers.")] = False,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="Instead of the recipe's bundled one: a name, a folder, hf:<id>."),
    ] = None,
    draft: Annotated[
        list[str] | None,
        typer.Option(
            "--draft", "-d", help="Its drafter; where a recipe has several, as ROLE=NAME. May be repeated."
        ),
    ] = None,
    prompts: Annotated[
        str | None, typer.Option("--prompts", help="A suite or a file instead of the bundled prompts.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few prompts, short answers: minutes.")] = False,
    number: Annotated[
        int | None, typer.Option("--number", min=1, help="How many prompts; default: the recipe's.")
    ] = None,
    max_new_tokens: Annotated[
        int | None, typer.Option("--max-new-tokens", "-n", min=1, help="Default: the recipe's.")
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    threads: OneThread = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder; what is finished there is kept. Default: specviz-replays/."
        ),
    ] = None,
) -> None:
    """Measure here what a paper's table printed, and show both, cell by cell."""
    from specviz.bench import replays

    if table is None and not every:
        replays.show_recipes(_console())
        return
    if table is not None and every:
        raise ParameterError("name a table, or say --all, not both")
    given = {
        "model": model, "draft": _drafters(draft), "suite": prompts, "quick": quick, "prompts": number,
        "max_new_tokens": max_new_tokens, "device": device, "dtype": dtype, "threads": threads,
    }  # fmt: skip
    with _loading():
        if table is not None:
            replays.find(table)
            with _progress() as tick:
                found: Any = replays.replay(table, out=out, tick=tick, **given)
        else:
            with _progress() as tick:
                found = replays.replay_all(
                    out or Path("specviz-replays"),
                    tick=lambda name: lambda done, of, what: tick(done, of, f"{name}: {what}"),
                    **given,
                )
    found.show(_console())
    if table is None:
        from specviz.bench import page

        print(f"page: {page.write(found, force=True)}")
    else:
        print(f"page: {_command('bench', 'report', found.path, '--html')}")


def _drafters(given: list[str] | None) -> Any:
    """``--draft``: a name for the only drafter, or ROLE=NAME for each."""
    if not given:
        return None
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    pairs = [each.partition("=") for each in given]
    if not all(role and name for role, _, name in pairs):
        raise ParameterError("several drafters are told apart by their roles, as --draft small=NAME")
    return {role: name for role, _, name in pairs}


@app.command()
def calibrate(
    method: Annotated[str, typer.Argument(help="A method with a draft size.")] = "unispec",
    model: Model = "town",
    draft: Draft = None,
    prompts: Annotated[
        str, typer.Option("--prompts", help="How many of the bundled suite; or a suite or a file, all of it.")
    ] = "5",
    warm_up: Annotated[
        int, typer.Option(min=0, help="Texts of the bundled suite that fill the method's memory before.")
    ] = 20,
    sizes: Annotated[
        str | None,
        typer.Option(help="Draft sizes to measure, as 1,2,4,8; default: up to where it gets slow."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A parameter of the method; may be repeated."),
    ] = None,
    max_new_tokens: NewTokens = 128,
    rounds: Annotated[int, typer.Option(min=1, help="How often each text is timed at each size.")] = 5,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads on the CPU; default: every physical core.")
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    revision: Revision = None,
    tp_plan: Annotated[
        str | None,
        typer.Option(help="auto: split the model over the ranks of torchrun, on whose devices it then runs."),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where calibrations are kept; default: the user's cache.")
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Write a picture of the curves.")] = None,
    force: Annotated[
        bool, typer.Option("--force", "-f", help="Measure anew; replace files that exist.")
    ] = False,
) -> None:
    """Find a method's best draft size on this device; generate takes it with --set SIZE=calibrated."""
    if png is not None:
        _writable(png, force)
    wanted: Any = None
    if sizes is not None:
        parts = [part.strip() for part in sizes.split(",")]
        if not all(part.isdecimal() for part in parts):
            raise ParameterError(f"--sizes wants whole numbers with commas between them, got {sizes!r}")
        wanted = [int(part) for part in parts]
    entries: Any = int(prompts) if prompts.lstrip("-").isdecimal() else None
    if entries is None:
        from specviz.suites import suite

        entries = suite(prompts)
    with _loading():
        from specviz import methods
        from specviz.bench.calibrate import calibrate as measure
        from specviz.models import load

        kind = methods.find(method)
        values = _parameters(kind, set_ or [])
        target = load(model, None if tp_plan else device, dtype, revision=revision, tp_plan=tp_plan)
    with _threads(threads):
        begun = False
        try:
            with _progress() as tick:

                def told(done: int, of: int, what: str) -> None:
                    nonlocal begun
                    begun = True
                    tick(done, of, what)

                found = measure(
                    target, method, entries, wanted, draft, warm_up=warm_up, max_new_tokens=max_new_tokens,
                    rounds=rounds, folder=folder, force=force, tick=told, **values,
                )  # fmt: skip
        except KeyboardInterrupt:
            print("specviz: what was measured is kept: the same command goes on", file=sys.stderr)
            raise
    if not ranks.leads():
        return
    _show_calibration(found, begun)
    if png is not None:
        from specviz import view

        print(f"picture: {write_bytes(png, view.calibration_png(found), force=True)}")


models_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
app.add_typer(models_app, name="models")


@models_app.callback()
def models(context: typer.Context) -> None:
    """List the bundled models with their figures, and the methods with their parameters."""
    if context.invoked_subcommand is not None:
        return
    from rich.text import Text

    from specviz.bench.report import Column, print_table
    from specviz.models.zoo import ggufs

    console = _console()
    rows = [[name, f"{_weights(path) / 1e6:.2f} M", _card(path)] for name, path in _bundled().items()]
    for name, path in ggufs().items():
        size = f"{path.stat().st_size / 1e6:.1f} MB"
        rows.append([f"gguf:{name}", size, f"{name} in float16, for llama.cpp."])
    if rows:
        print_table(console, [Column("bundled model"), Column("size", True), Column("card", folds=30)], rows)
    else:
        print("No models are bundled with this installation.")
    with _loading():
        from specviz import methods

        found = {name: methods.find(name) for name in methods.names()}
    columns = [Column("parameter"), Column("default"), Column("range"), Column("meaning", folds=30)]
    for name, kind in found.items():
        title = (
            kind.title
            + (f" ({kind.paper})" if kind.paper else "")
            + (", needs a draft" if kind.needs_draft else "")
        )
        console.print(Text(f"\n{name}: {title}"), soft_wrap=not console.is_terminal)
        rows = []
        for p in kind.parameters:
            legal = "true or false" if isinstance(p.default, bool) else p.range
            legal = legal.removeprefix("lie in ").removeprefix("be ")
            meaning = p.meaning + (f" Paper: {p.symbol}." if p.symbol else "")
            rows.append(
                [
                    f"  {p.name}",
                    f"{p.default}".lower() if isinstance(p.default, bool) else f"{p.default}",
                    f"{legal} {p.unit}".strip(),
                    meaning,
                ]
            )
        if rows:
            print_table(console, columns, rows, headings=False)


@models_app.command()
def gguf(
    model: Annotated[str, typer.Argument(help="Bundled name or folder of the Llama family.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The .gguf file to write.")],
    type_: Annotated[str, typer.Option("--type", help="f32, f16, q8_0 or q4_k_m.")] = "f16",
    force: Force = False,
) -> None:
    """Write a model as a GGUF file, which llama.cpp runs; use it with --model gguf:FILE."""
    _writable(out, force)
    with _loading():
        from specviz.models.llamacpp import write_gguf

        written = write_gguf(model, out, type_, force)
    print(f"gguf: {written}")
    print(_command("generate", "autoregressive", "--model", f"gguf:{out}", "--prompt", "..."))


@models_app.command()
def align(
    draft: Annotated[
        str, typer.Argument(help="The draft: bundled name, folder or hf:<id>; it is left as is.")
    ],
    target: Annotated[str, typer.Option("--target", "-t", help="The model whose answers it learns.")],
    prompts: Annotated[str, typer.Option(help="A file: plain lines, or JSON lines with prompt or turns.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")],
    epochs: Annotated[float, typer.Option(help="How often each answer is read.")] = 3,
    rate: Annotated[float, typer.Option(help="Peak learning rate.")] = 5e-4,
    batch: Annotated[int, typer.Option(min=1, help="Texts of an update.")] = 16,
    max_new_tokens: NewTokens = 128,
    seed: Annotated[int, typer.Option(min=0, help="Of the order of the answers.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads on the CPU.")] = None,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Fine-tune a draft on its target's own answers to your prompts: more of its tokens are accepted."""
    from specviz.models.loading import find

    asked = [entry.get("prompt") or entry["turns"][0] for entry in _entries(None, prompts)]
    for model in (target, draft):
        find(model)
    with _loading():
        from specviz.training.align import align as aligned

    with _threads(threads):
        made = aligned(target, draft, asked, out, epochs=epochs, rate=rate, batch=batch, device=device,
                       max_new_tokens=max_new_tokens, seed=seed, force=force)  # fmt: skip
    print(f"aligned: {made}")
    print(_command("generate", "speculative", "--model", target, "--draft", out, "--prompts", prompts))


@models_app.command()
def eagle(
    target: Annotated[str, typer.Argument(help="The model whose states it learns to go on from.")],
    prompts: Annotated[str, typer.Option(help="A file: plain lines, or JSON lines with prompt or turns.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")],
    generation: Annotated[int, typer.Option(help="3, or 1, whose weights EAGLE-2 drafts with too.")] = 3,
    layers: Annotated[
        str | None, typer.Option(help="Whose states generation 3 reads, such as 2,16,29; 0 is the embedding.")
    ] = None,
    draft_vocabulary: Annotated[
        int | None, typer.Option(help="Rows of generation 3's head: so many of the commonest tokens.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Of generation 3's training-time test.")] = 4,
    epochs: Annotated[float, typer.Option(help="How often each answer is read.")] = 3,
    rate: Annotated[float, typer.Option(help="Peak learning rate of the matrices.")] = 0.01,
    batch: Annotated[int, typer.Option(min=1, help="Texts of an update.")] = 16,
    max_new_tokens: NewTokens = 128,
    seed: Annotated[int, typer.Option(min=0, help="Of the first weights and of the order.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads on the CPU.")] = None,
    device: Device = "cpu",
    force: Force = False,
) -> None:
    """Train an EAGLE drafter on a model's own answers to your prompts; the model stays as it is."""
    from specviz.models.loading import find

    try:
        read = None if layers is None else [int(layer) for layer in layers.split(",")]
    except ValueError:
        raise ParameterError(f"--layers takes numbers such as 2,16,29, got {layers!r}") from None
    asked = [entry.get("prompt") or entry["turns"][0] for entry in _entries(None, prompts)]
    find(target)
    with _loading():
        from specviz.training.own_eagle import train_eagle

    with _threads(threads):
        made = train_eagle(target, asked, out, generation, layers=read, draft_vocabulary=draft_vocabulary,
                           steps=steps, epochs=epochs, rate=rate, batch=batch, device=device,
                           max_new_tokens=max_new_tokens, seed=seed, force=force)  # fmt: skip
    print(f"eagle: {made}")
    print(_command("generate", "eagle", "--model", target, "--draft", out, "--prompts", prompts))


@app.command()
def datastore(
    text: Annotated[Path, typer.Argument(help="A text file in UTF-8.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")],
    model: Model = "town",
    force: Force = False,
) -> None:
    """Build a datastore for spectra from a text, in a model's tokens; use it with --set datastore=FILE."""
    _writable(out, force)
    with _loading():
        from specviz.methods.datastore import Datastore
        from specviz.models import load

    target = load(model)
    built = Datastore.build(text, target)
    size = f"{len(built):,} token{'s' * (len(built) != 1)} of {target.name}"
    print(f"datastore: {built.save(out, target)} ({size})")
    print(_command("generate", "spectra", "--model", model, "--set", f"datastore={out}", "--prompt", "..."))


streams = typer.Typer(help="Make sources that arrive in updates.")
app.add_typer(streams, name="streams")


@streams.command()
def simulate(
    text: Annotated[Path, typer.Argument(help="A text file in UTF-8; each line is an utterance.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file of JSON lines to write.")],
    seed: Annotated[int, typer.Option(min=0, help="Seed; the next line has the next one.")] = 0,
    language: Annotated[str, typer.Option(help="The text's, as en or ja.")] = "en",
    force: Force = False,
) -> None:
    """Make up what a speech recogniser might have guessed while it heard a text."""
    from specviz.streams import from_file, save_partials, simulate_partials

    _writable(out, force)
    sources = [list(stream)[-1].text for stream in from_file(text, 10**9, language)]
    found = [simulate_partials(source, seed + i, language=language) for i, source in enumerate(sources)]
    save_partials(found, out, force=force)
    updates = sum(len(list(stream)) for stream in found)
    print(f"partials: {out} ({len(found)} utterance{'s' * (len(found) != 1)}, {updates} updates)")
    model = ("--model", "town-translator") if language == "en" else ()  # it reads English alone
    print(_command("generate", "retranslate", *model, "--stream", out))


@app.command()
def suites(
    name: Annotated[
        str | None,
        typer.Argument(help="Which one, as flores:en-de; without it they are listed."),
    ] = None,
    path: Annotated[
        Path | None,
        typer.Argument(help="A local copy in its makers' form; default: it is fetched once."),
    ] = None,
) -> None:
    """List the suites of prompts, or say what is in one; every --prompts takes their names."""
    from specviz.bench.report import Column, print_table
    from specviz.suites import list_suites, suite
    from specviz.view.picture import visible

    if name is None:
        rows = []
        for row in list_suites().to_dict("records"):
            parts = row["parts"].split(", ")
            told = f"{parts[0]}, {parts[1]} and {len(parts) - 2} more" if len(parts) > 7 else row["parts"]
            rows.append([row["name"], told, row["about"], row["licence"]])
        columns = [
            Column("suite"), Column(":part", folds=14), Column("what", folds=30), Column("licence", folds=12),
        ]  # fmt: skip
        print_table(_console(), columns, rows)
        return
    found = suite(name, path)
    counts = found.counts
    print(f"{visible(found.name)}: {len(found):,} prompts, licence: {found.licence or 'not said'}")
    headings = [Column("kind"), *(Column(visible(str(code)), True) for code in counts.columns)]
    cells = [[visible(str(kind)), *map(str, values)] for kind, values in zip(counts.index, counts.values)]
    print_table(_console(), headings, cells)
    for kind in counts.index:
        first = next(p for p in found if (p.get("kind") or "–") == kind)
        asked = first["turns"][0] if "turns" in first else first["prompt"]
        said = asked if isinstance(asked, str) else asked[-1]["content"]
        line = " ".join(said.split())
        print(
            f"\n{visible(str(kind))} {visible(first['id'])}: {visible(line[:200])}{'…' * (len(line) > 200)}"
        )


@app.command()
def lab(
    folder: Annotated[Path, typer.Argument(help="Where the copy goes; your edits in it stay.")] = Path(
        "specviz-notebooks"
    ),
    copy_only: Annotated[
        bool, typer.Option("--copy-only", help="Copy, and do not start JupyterLab.")
    ] = False,
    browser: Annotated[bool, typer.Option(help="Open a browser.")] = True,
    force: Force = False,
) -> None:
    """Open JupyterLab on a copy of the walkthroughs."""
    from importlib.util import find_spec

    from specviz.paths import walkthroughs

    source = walkthroughs()
    if not copy_only and find_spec("jupyterlab") is None:
        raise SpecvizError('JupyterLab is not installed: pip install "specviz-lm[lab]"')
    if folder.exists() and not folder.is_dir():
        raise SpecvizError(f"{folder} is a file; name a folder for the walkthroughs")
    _writable(folder / "x", True)
    new = 0
    for path in sorted(source.rglob("*")):
        part = path.relative_to(source)
        hidden = any(name.startswith((".", "__")) for name in part.parts)
        if path.is_dir() or hidden or (path.with_suffix(".ipynb").exists() and path.suffix == ".py"):
            continue
        copy = folder / part
        if copy.exists() and not force:
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        new += 1
    print(
        f"walkthroughs: {folder} ({new} files copied, what was there stays)"
        if new
        else f"walkthroughs: {folder}"
    )
    if not copy_only:
        import subprocess

        command = [sys.executable, "-m", "jupyterlab", str(folder)] + ([] if browser else ["--no-browser"])
        raise typer.Exit(subprocess.run(command, check=False).returncode)


@app.command()
def exercises(
    folder: Annotated[Path, typer.Argument(help="Where the students' copy goes.")] = Path(
        "specviz-exercises"
    ),
    force: Force = False,
) -> None:
    """Write the exercises for students: hints and checks, no solutions."""
    from specviz.check.students import copy_exercises

    for path in copy_exercises(folder, force):
        print(f"exercises: {path}")


# ---------------------------------------------------------------- what commands share


def _streaming(methods: list[str] | None) -> tuple[list[str] | None, list[str] | None]:
    """The methods that decode prompts, and those that decode streams; None: the audit's own choice."""
    from specviz.methods import find

    if methods is None:
        return None, None
    moving = [name for name in methods if find(name.partition(":")[0].strip()).streams]
    return [name for name in methods if name not in moving], moving


def _test_streams(target: Any, number: int) -> list[Any]:
    """Test texts as streams, as many of them as have room in the model's context."""
    from specviz.bench.translations import streams, texts

    made = texts("de", number)
    room = target.max_length // 2
    found = [stream for stream, each in zip(streams(made), made) if len(target.encode(each.source)) < room]
    if len(found) < number:
        print(
            f"specviz: {number - len(found)} streams are too long for {target.name}: left out",
            file=sys.stderr,
        )
    return found


def _parameters(kind: Any, pairs: list[str]) -> dict[str, Any]:
    """``name=value`` texts as values of the types that the method's parameters declare."""
    from specviz.methods import near
    from specviz.methods.base import CALIBRATED

    known = {p.name: p for p in kind.parameters}
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = (part.strip() for part in pair.partition("="))
        if not equals or not name:
            raise ParameterError(f"--set wants name=value, got {pair!r}")
        if name not in known:
            raise ParameterError(f"{kind.name} has no parameter {name!r}" + near(name, known, "it has none"))
        if name == kind.size and text == CALIBRATED:
            found[name] = text
            continue
        value: Any = text
        default = known[name].default
        if isinstance(default, bool):
            value = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(
                text.lower(), text
            )
        elif isinstance(default, int | float):
            with suppress(ValueError):
                value = float(text)
            with suppress(ValueError):
                value = int(text)
        found[name] = known[name].check(value)
    return found


def _entries(prompt: str | None, file: str | None) -> list[dict[str, Any]]:
    """What is to be decoded."""
    from specviz.suites import suite

    if file is not None:
        return list(suite(file))
    if prompt is None or not prompt.strip():
        raise PromptError("the prompt is empty; give at least one word")
    return [{"prompt": prompt}]


def _streams(text: Path | None, stream: Path | None, lag: int, language: str | None) -> list[Any]:
    """The streams of a text file, of partial results or of a transcript: first line and ending tell."""
    from specviz import streams
    from specviz.streams.lag import read

    if lag < 1:
        raise ParameterError(f"--lag must be at least 1, got {lag}")
    if text is not None:
        return streams.from_file(text, lag, language)
    assert stream is not None
    first = next((line for line in read(stream).splitlines() if line.strip()), "")
    try:
        keys = set(json.loads(first))
    except (ValueError, RecursionError, TypeError):
        keys = set()
    timed = stream.suffix.lower() in (".json", ".vtt", ".srt")
    if "word" in keys or (timed and not (keys and keys <= {"text", "time", "final"})):
        return [streams.word_timed(stream, lag, language=language)]
    return streams.from_partials(stream)


def _follow(run: Any, show: Callable[[list[int]], str]) -> None:
    """Print each update as it is decoded, {+what is new+}, then a table with a line a stream."""
    from specviz.bench.report import Column, print_table
    from specviz.streams import follow
    from specviz.view.picture import visible

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    marks = ("\033[1;4;32m", "\033[0m") if colour else ("{+", "+}")  # as `specviz show` has it
    found: list[list[Any]] = []
    for u in follow(run, show):
        if u.stream == len(found):
            found.append([])
            entry = run.prompts[u.stream]
            print(f"{visible(entry['id'] or f'stream {u.stream + 1}')}")
        found[-1].append(u)
        new = f"{marks[0]}{visible(u.new)}{marks[1]}" if u.new else ""
        print(f"{u.update:4}  {visible(u.source)}\n      {visible(u.kept)}{new}")
        told = [f"{u.erased_tokens} tokens erased"] if u.erased_tokens else []
        told += [f"{u.hidden} hidden"] if u.hidden else []
        told += [f"{u.accepted} of {u.drafted} drafted accepted"] if u.drafted else []
        told += [f"{u.reused} of {u.prompt} cache rows kept"] + (
            [f"{1e3 * u.seconds:.1f} ms"] if u.seconds == u.seconds else []
        )
        print("      (" + ", ".join(told) + ")", flush=True)
    rows = []
    for number, updates in enumerate(found):
        tokens, seconds = sum(u.tokens for u in updates), sum(u.seconds for u in updates)
        drafted, accepted = sum(u.drafted for u in updates), sum(u.accepted for u in updates)
        erased, prompt = sum(u.erased_tokens for u in updates), sum(u.prompt for u in updates)
        cells = [f"{len(updates)}", f"{tokens:,}", f"{erased:,}"]
        cells += [
            f"{accepted / drafted:.2f}" if drafted else "–",
            f"{sum(u.reused for u in updates) / prompt:.2f}",
        ]
        cells += (
            [f"{1e3 * seconds / len(updates):.1f}", f"{tokens / seconds:,.0f}"]
            if seconds == seconds
            else ["–"] * 2
        )
        rows.append([visible(run.prompts[number]["id"] or f"stream {number + 1}"), *cells])
    names = ("updates", "tokens", "erased tokens", "A/D", "rows kept", "ms an update", "tokens/s")
    if rows:
        print()
        print_table(_console(), [Column("stream"), *(Column(name, True) for name in names)], rows)


def _bundled() -> dict[str, Path]:
    """The bundled models' folders, without loading what could load them."""
    from specviz.paths import folder

    try:
        return {path.parent.name: path.parent for path in sorted(folder("models").glob("*/config.json"))}
    except SpecvizError:
        return {}


def _models(
    model: str, draft: list[str] | None, device: str, dtype: str, revision: str | None
) -> tuple[Any, list[Any]]:
    """A target and its drafters, loaded and checked against each other."""
    from specviz.loop.run import DEFAULT_DRAFT, beside
    from specviz.models import load

    names = draft or [
        name
        for name in _bundled()
        if name.startswith(f"{model}-draft") or name in DEFAULT_DRAFT.get(model, {}).values()
    ]
    target = load(model, device, dtype, revision=revision)
    drafts = [beside(target, name, device, dtype) for name in dict.fromkeys(names)]
    for each in drafts:
        target.check_vocabulary(each)
    if len({each.name for each in drafts}) < len(drafts):
        raise ParameterError(
            "two draft models have the same folder name: rename one, so that tables can tell them apart"
        )
    if not drafts:
        print("specviz: no --draft, so methods that need a draft model are left out", file=sys.stderr)
    return target, drafts


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:.1e}" if isinstance(value, float) else str(value)
    )


def _weights(path: Path) -> int:
    """Numbers in a folder's safetensors files, read off their headers."""
    from math import prod

    total = 0
    for file in sorted(path.glob("*.safetensors")):
        with suppress(OSError, ValueError), open(file, "rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(min(size, 1 << 24)))
            total += sum(prod(t["shape"]) for name, t in header.items() if name != "__metadata__")
    return total


def _card(path: Path) -> str:
    """The figures of a model's card: what it read, how well it translates, how well it drafts."""
    found: dict[str, Any] = {}
    for name in ("training.json", "scores.json"):
        with suppress(OSError, ValueError):
            found |= json.loads((path / name).read_text(encoding="utf8"))
    words = []
    with suppress(
        KeyError, TypeError, ValueError, AttributeError
    ):  # a card of another make is no reason to fail
        words.append(f"{found['tokens']:,} tokens seen")
        if "guesses" in found:  # of heads and slots, which are no models by themselves
            words.append(f"guesses right {found['guesses']['mean'][0]:.2f} tokens in a row")
        if "ahead" in found:  # of EAGLE drafters
            each = (f"{code} {row['right'][0]:.2f}" for code, row in found["ahead"].items())
            words.append(f"likeliest token right {', '.join(each)}")
        for pair, t in found["translation"].items():
            words.append(f"BLEU {pair} {t['bleu']:.1f} ({t['share']:.2f} of a paraphrase's)")
        words.append(f"A/D as a draft {found['acceptance']['all']:.2f}")
    return ", ".join(words)


def _writable(path: Path, force: bool) -> None:
    """Check, before any work, that a file may be written here."""
    from specviz.trace.files import partial_of

    for name in (path, partial_of(path)):
        if name.exists() and not force:
            raise TraceError(f"{name} exists: choose another path, or overwrite it with --force")
    if path.is_dir():
        raise TraceError(f"{path} is a folder; name a file")
    above = next(p for p in path.absolute().parents if p.exists())
    if not above.is_dir():
        raise TraceError(f"cannot write {path}: {above} is not a folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise TraceError(f"cannot write {path}: no permission to write into {above}")


def _command(name: str, *arguments: Any) -> str:
    """A command that can be copied."""
    return shlex.join(["specviz", name, *map(str, arguments)])


def _show(trace: Trace, path: Path | None) -> None:
    """The metrics, if there are several runs, and the first prompts as text; how to see more of `path`."""
    from specviz import view

    runs = trace.split()
    if len(runs) > 1:
        _print_table(trace)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    most = 1 if len(runs) > 1 else 2
    print(view.text(trace, colour=colour, most=most))
    count = max(run.cycles["prompt"].nunique() for run in runs)
    if count > most:
        more = f"{count - most} more text{'s' * (count - most != 1)}"
        how = _command("show", path, "--prompt", most + 1) if path else "--out DIR keeps them to look at"
        print(f"\n{more}: {how}")


def _show_calibration(found: Any, new: bool) -> None:
    """The measured points, what each fit makes of them, and g*."""
    from specviz.bench.report import Column, print_table

    names = list(found.fits)
    columns = [Column("g", True), Column("τ", True), Column("ms a cycle", True)]
    columns += [Column("25%", True, spare=1), Column("75%", True, spare=0), Column("tokens/s", True)]
    columns += [Column(f"{name} fit", True) for name in names if name != "grid"] + [Column("")]
    rows = []
    for row in found.table.to_dict("records"):
        g, at = int(row["g"]), int(row["g"]) - found.points[0].g
        cells = [str(g), f"{row['tau']:.2f}", *(f"{row[key]:.2f}" for key in ("ms", "ms_q25", "ms_q75"))]
        cells.append(f"{row['tokens_per_second']:,.0f}")
        for name in names:
            if name != "grid":
                cost = found.fits[name].s[at]
                cells.append(f"{found.fits[name].tau[at] / cost:,.0f}" if cost > 0 else "–")
        rows.append([*cells, "g*" if g == found.g else ""])
    how = found.how
    console = _console()
    print(
        f"{how['prompts']} texts behind {how['warm_up']} others, {how['rounds']} rounds, {how['clock']}, "
        f"{found.spent:.0f} s" + ("" if new else f"; measured {found.created}, --force measures anew")
    )
    print_table(console, columns, rows)
    for name, fit in found.fits.items():
        # What is smooth between points may swing there: its g* can then lie where no point would put it.
        note = "taken" if name == found.chosen else "its s(g) falls below zero" if min(fit.s) <= 0 else ""
        print(f"{name:9} g* = {fit.g}" + (f" ({note})" if note else ""))
    if found.ended:
        print(f"no larger sizes: {found.ended}")
    if found.at_end:
        print("g* is the largest size that was measured: try larger ones with --sizes")
    print(found.summary)
    if ranks.size() > 1:  # of a model that only a plan can split
        print(f'to use it: {found.size} = "calibrated" in a plan of specviz bench run, on as many ranks')
        return
    command = f"specviz generate {found.setting['method']} --set {found.size}=calibrated"
    print(f"to use it: {command} ...")


def _print_table(trace: Trace) -> None:
    """One line a run; runs of streams have a table of their own."""
    parts = trace.split()
    streams = [part for part in parts if len(part.updates)]
    if streams:
        _print_streams(streams)
    if len(streams) < len(parts):
        _print_prompts([part for part in parts if not len(part.updates)])


def _print_streams(parts: list[Trace]) -> None:
    from specviz.bench.report import Column, print_table
    from specviz.view.picture import visible

    shown = {
        "updates": ("updates", "{:,.0f}"),
        "NE": ("NE", "{:.2f}"),
        "A/D": ("A/D", "{:.2f}"),
        "A/O": ("A/O", "{:.2f}"),
        "tokens_per_second": ("tokens/s", "{:,.0f}"),
        "AL": ("AL", "{:.1f}"),
        "reused_share": ("reused", "{:.0%}"),
        "BLEU": ("BLEU", "{:.1f}"),
    }
    columns = [Column("method"), Column("setting"), Column("exactness", folds=14)]
    spare = {"reused_share": 0, "AL": 1, "A/O": 2}
    columns += [Column(heading, True, spare=spare.get(name)) for name, (heading, _) in shown.items()]
    rows, tokenizers = [], []
    for part in parts:
        row, values = part.summary().iloc[0], part.run["parameters"] or {}
        setting = str(values.get("mode", ""))
        setting += f" β={values['beta']:g}" if setting == "ssbd" else ""
        setting += f" k={values['k']} ({values['mask']})" if values.get("k") else ""
        cells = [
            form.format(row[name]) if row[name] == row[name] else "–" for name, (_, form) in shown.items()
        ]
        rows.append([*map(visible, (row["method"], setting, row["exactness"])), *cells])
        tokenizers.append(row["tokenizer"])
    print_table(_console(), columns, rows)
    print(
        f"NE: tokens ({', '.join(dict.fromkeys(tokenizers))}) erased from the display for each of the last "
        "one; AL: words behind; reused: of the prompts' tokens"
    )


def _print_prompts(parts: list[Trace]) -> None:
    from specviz.bench.report import Column, print_table
    from specviz.view.picture import visible

    shown = {
        "tau": "τ",
        "A/D": "A/D",
        "A/O": "A/O",
        "tokens_per_second": "tokens/s",
        "target_passes": "target passes",
    }
    columns = [Column("method"), Column("draft"), Column("exactness", folds=14)]
    columns += [Column(heading, True, spare=0 if heading == "A/O" else None) for heading in shown.values()]
    rows = []
    for run in parts:
        row = run.summary().iloc[0].to_dict()
        numbers = [row[name] for name in shown]
        forms = ("{:.2f}", "{:.2f}", "{:.2f}", "{:,.0f}", "{:,.0f}")
        cells = [form.format(x) if x == x else "–" for form, x in zip(forms, numbers)]
        names = (row["method"], str((run.run["draft"] or {}).get("name") or "–"), row["exactness"])
        rows.append([*map(visible, names), *cells])
    print_table(_console(), columns, rows)


def _print_definitions(found: Any, baseline: Any) -> None:
    """One line a definition; what is missing is said below."""
    from specviz.bench.report import Column, print_table
    from specviz.metrics import rosetta
    from specviz.metrics.definitions import LEGEND

    table = rosetta(found, baseline)
    columns = [Column("who", folds=32), Column("value", True), Column("average")]
    columns += [Column("formula", spare=0, folds=28)]
    for quantity, rows in table.groupby("quantity", sort=False):
        print(f"\n{quantity}")
        told = rows[rows["value"].notna()]
        cells = []
        for row in told.to_dict("records"):
            value = f"{row['value']:.3f}" + (f" to {row['high']:.3f}" if row["badge"] == "bounded" else "")
            average = row["average"].replace("mean over requests", "by request")
            cells.append([row["who"], value, average, row["formula"]])
        print_table(_console(), columns, cells)
        for row in rows[rows["value"].isna()].to_dict("records"):
            print(f"not known: {row['who']}: {row['why']}")
    _console().print(f"\n{LEGEND}", markup=False)
    if baseline is None:
        print("\nspeedups: name the same prompts decoded without speculation with --baseline")


def _console(stderr: bool = False) -> Any:
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    # Where nobody reads along, a table is not cut to a terminal's width.
    return Console(file=stream, highlight=False, width=None if stream.isatty() else 160)


@contextmanager
def _loading() -> Iterator[None]:
    """Turns a missing torch or transformers into one line."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in ("torch", "transformers", "tokenizers", "safetensors"):
            raise
        raise ModelError(
            f'{error.name} is not installed; running models needs it: pip install "specviz-lm[run]"'
        ) from None


@contextmanager
def _threads(wanted: int | None) -> Iterator[int]:
    """Run on so many threads; by default torch's own choice, every physical core, if so many are allowed."""
    import torch

    from specviz.bench.runner import threads

    usual = torch.get_num_threads()
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else usual
    with threads(wanted or min(usual, allowed)) as count:
        yield count


@contextmanager
def _progress() -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on standard error that is told (done, of, what)."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    # Two redraws a second: the bar's thread must not take time from what is measured.
    with Progress(
        *columns,
        console=_console(True),
        transient=True,
        refresh_per_second=2,
        disable=not sys.stderr.isatty() or not ranks.leads(),
    ) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, of, what: bar.update(task, completed=done, total=of, description=what)


# ---------------------------------------------------------------- from arguments to an exit status


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit status; nothing a person can mend ends in a traceback."""
    # typer may bring its own copy of click: the base of its complaints is found through a public name.
    complaint: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
    try:
        status = typer.main.get_command(app).main(arguments, "specviz", standalone_mode=False)
        sys.stdout.flush()
        if status == 130:  # newer versions of typer make this of Ctrl-C, older ones Abort
            raise KeyboardInterrupt
        return status if isinstance(status, int) else 0
    except SpecvizError as error:
        if not ranks.leads() and not isinstance(error, ranks.RankError):
            return 2  # rank 0 has met it, too, and says it
        return _say(str(error))
    except complaint as error:
        if not ranks.leads():
            return 2
        where = error.ctx.command_path if error.ctx else "specviz"  # type: ignore[attr-defined]
        return _say(f"{error.format_message()} ({where} --help)")  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        if ranks.leads():
            print("specviz: interrupted", file=sys.stderr)
        return 130
    except _Interrupted as error:
        print(f"specviz: interrupted: {error}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return _quiet()
    except MemoryError as error:
        return _say(_memory(error))
    except OSError as error:
        if error.errno == errno.EPIPE:
            return _quiet()
        if error.errno is None:
            raise
        return _say(f"{error.strerror}" + (f": {error.filename}" if error.filename else ""))
    except RuntimeError as error:  # torch has no public class for a full CPU memory
        if "out of memory" not in str(error) and "allocate memory" not in str(error):
            raise
        return _say(_memory(error))


class _Interrupted(Exception):
    """Ctrl-C, with a word on what is kept; typer would drop the word."""


@contextmanager
def _kept() -> Iterator[None]:
    """Carry the word of an interrupt past typer."""
    try:
        yield
    except KeyboardInterrupt as error:
        if not str(error):
            raise
        raise _Interrupted(str(error)) from None


def _say(line: str) -> int:
    print("specviz: " + " ".join(line.split()), file=sys.stderr)
    return 2


def _memory(error: BaseException) -> str:
    where = "on the GPU" if "CUDA" in str(error) or "MPS" in str(error) else "on this machine"
    return f"out of memory {where}: lower --max-new-tokens, shorten the prompts, or use --dtype bfloat16"


def _quiet() -> int:
    """Whoever read our output has gone: end without a word, now and when Python flushes at its end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    sys.exit(run())
