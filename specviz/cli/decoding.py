"""``specviz demo`` and ``specviz generate``: prompts and streams decoded, shown and kept."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from specviz.cli.arguments import (
    bundled_models,
    entries_of,
    hint,
    loaded,
    on_threads,
    parameters_of,
    writable,
)
from specviz.cli.options import (
    Device,
    Draft,
    Drafts,
    Dtype,
    Force,
    Kernels,
    Model,
    NewTokens,
    OneThread,
    Prompts,
    Revision,
    Threads,
)
from specviz.cli.terminal import progress, screen, show_trace
from specviz.errors import ModelError, ParameterError, PromptError, TraceError, loading
from specviz.models.downloads import DOWNLOADS, local_path


def demo(
    out: Annotated[
        Path | None, typer.Option(help="Folder to write; default: a new folder specviz-demo.")
    ] = None,
    model: Model = "smollm2",
    draft: Drafts = None,
    prompts: Annotated[
        str | None,
        typer.Option(help="A suite or a file of prompts. Default: demo; of bundled models town."),
    ] = None,
    each: Annotated[int, typer.Option(min=1, help="Prompts of each kind of work.")] = 3,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens", "-n", min=1, help="Most tokens for each prompt. Default: 36; bundled: 96."
        ),
    ] = None,
    threads: OneThread = 1,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    kernels: Kernels = None,
    force: Force = False,
) -> None:
    """Decode a few prompts of each kind of work by several methods: a table, traces, an offline page.

    SmolLM2 (specviz models get smollm2) runs the methods that need no trained drafter, in under three minutes
    on two cores. --model town runs every method on a toy that comes with the package.
    """
    if out is None:
        number = 1
        out = Path("specviz-demo")
        while out.exists() and not force:
            number += 1
            out = Path(f"specviz-demo-{number}")
    elif out.suffix[1:2].isalpha() and not out.is_dir():  # run-0.6 is a folder's name
        raise TraceError(f"--out takes a folder, and {out} looks like a file")
    writable(out / "demo.html", force)
    from specviz.suites import suite

    toy = model in bundled_models()
    entries = list(suite(prompts or ("town" if toy else "demo")))
    path = None
    if model in DOWNLOADS:
        path = local_path(model)
        if path is None:
            raise ModelError(
                f"{model} is not downloaded yet: run `specviz models get {model}` (once), or see the bundled "
                "toy by `specviz demo --model town`"
            )
    with loading():
        from specviz.measure import demo as demonstration

        target, drafts = loaded(model, draft, device, dtype, None)
    traces = out / demonstration.TRACES
    try:
        with progress() as tick:
            report, page = demonstration.run(
                target,
                drafts,
                entries,
                out,
                each=each,
                max_new_tokens=max_new_tokens or (96 if toy else 36),
                force=force,
                count=threads,
                path=path if device == "cpu" else None,  # where the other engine computes
                practice=() if drafts else suite("demo-calibration"),
                tick=tick,
            )
    except KeyboardInterrupt:
        if traces.is_dir():
            print(f"traces so far: {traces} ({hint('show', traces)})")
        raise
    report.show(screen())
    print(f"traces: {traces} ({hint('show', traces)})")
    print(f"page: {page}")


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
    threads: Threads = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    kernels: Kernels = None,
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
        writable(file, force)
        writable(file.with_suffix(".html"), force)
    if save_store is not None:
        writable(save_store, force)
    streamed = text is not None or stream is not None
    if streamed and batch > 1:
        raise ParameterError("streams are decoded one after another: drop --batch")
    entries: list[Any] = _streams(text, stream, lag, language) if streamed else entries_of(prompt, prompts)
    with loading():
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
    built = kind(**parameters_of(kind, set_ or []))
    if (store or save_store) and built.memory is None:
        raise ParameterError(f"{method} remembers nothing from text to text: drop --store and --save-store")
    find(model)
    if kind.needs_draft and draft is None and bundled_draft(kind, Path(model).name) is None:
        what = methods.hooks.ADDITIONS.get(kind.drafts_with, "a draft model")
        raise ParameterError(f"{method} needs {what}: pass --draft (a bundled name, a folder or hf:<id>)")
    if draft is not None and not kind.needs_draft:
        print(f"specviz: {method} uses no draft model, so --draft is left alone", file=sys.stderr)
    with loading():
        target = load(model, device, dtype, revision=revision)
        drafter = load(draft, device, dtype) if draft is not None and kind.needs_draft else None
    if store is not None:
        built.load(store, target)
    for entry in entries if raw and not streamed else ():
        if isinstance(entry.get("prompt"), str):
            entry["prompt"] = target.encode(entry["prompt"], raw=True)
    from specviz.loop import Run

    with on_threads(threads) as count:
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
                with progress() as tick:
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
        show_trace(trace, file)
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
    from specviz.escape import visible
    from specviz.measure.report import Column, print_table
    from specviz.streams import follow

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
        print_table(screen(), [Column("stream"), *(Column(name, True) for name in names)], rows)
