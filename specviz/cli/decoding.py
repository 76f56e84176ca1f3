"""``specviz demo`` and ``specviz generate``: decode prompts and streams, and show and keep the results."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from specviz.cli.arguments import (
    Values,
    distinct,
    entries_of,
    hint,
    loaded,
    on_threads,
    parameters_of,
    writable,
)
from specviz.cli.options import (
    MODEL,
    Device,
    Draft,
    Drafts,
    Dtype,
    Force,
    Invariant,
    Kernels,
    Model,
    NewTokens,
    Number,
    OneThread,
    Prompts,
    Revision,
    Settings,
    Threads,
    argument,
    option,
)
from specviz.cli.terminal import progress, screen, show_trace
from specviz.errors import ModelError, ParameterError, PromptError, TraceError, loading, plural
from specviz.models.downloads import DOWNLOADS, local_path
from specviz.models.zoo import bundled
from specviz.paths import expanded

if TYPE_CHECKING:
    from specviz.loop import Run
    from specviz.methods.base import Method
    from specviz.models import protocols
    from specviz.streams import Shown, Stream
    from specviz.suites.files import Prompt
    from specviz.trace import Trace

LAG = 3  # words that each update of a text or a transcript adds


def demo(
    out: Annotated[Path | None, option("Output folder; default: a new folder specviz-demo.")] = None,
    model: Model = "smollm2",
    draft: Drafts = None,
    prompts: Annotated[
        str | None, option("A suite or a file of prompts. Default: demo; for bundled models, town.")
    ] = None,
    number: Annotated[int, option("How many prompts of each kind of task.", min=1)] = 3,
    max_new_tokens: Annotated[
        int | None,
        option(
            "Maximum number of tokens per prompt. Default: 36; bundled models: 96. A slow machine decodes "
            "fewer tokens, and fewer prompts (at least five).",
            "--max-new-tokens",
            "-n",
            min=1,
        ),
    ] = None,
    threads: OneThread = 1,
    device: Device = "cpu",
    dtype: Dtype = "auto",
    kernels: Kernels = None,
    invariant: Invariant = None,
    force: Force = False,
) -> None:
    """Decode a few prompts of each kind of task by several methods. Write a table, traces and a page.

    SmolLM2 (specviz models get smollm2) runs the methods that need no training, and others with the drafters
    in this package, in about three minutes on two cores. --model town runs the methods that continue a
    prompt on a toy model that comes with the package (not blockwise, for which it has no heads).
    """
    if out is None:
        out = Path("specviz-demo")
        for folder in count(2):
            if force or not out.exists():
                break
            out = Path(f"specviz-demo-{folder}")
    elif out.suffix[1:2].isalpha() and not out.is_dir():  # run-0.6 names a folder
        raise TraceError(f"--out takes a folder, and {out} looks like a file")
    writable(out / "demo.html", force)
    from specviz.suites import suite

    toy = model in bundled()
    entries = list(suite(prompts or ("town" if toy else "demo")))
    path = None
    if model in DOWNLOADS and not DOWNLOADS[model].is_gguf:
        raise ParameterError(
            f"the demo asks questions, and {model} translates: run `specviz bench streams --model {model}`"
        )
    if model in DOWNLOADS:
        path = local_path(model)
        if path is None:
            raise ModelError(
                f"{model} is not downloaded yet: run `specviz models get {model}` (once), or try the "
                f"bundled toy model with `specviz demo --model town`"
            )
    with loading():
        from specviz.measure import demo as demonstration

        target, drafts = loaded(model, draft, device, dtype, kernels, invariant)
    # For a large model show only a few methods: all of them would take many minutes.
    names = None if toy or draft else demonstration.UNTRAINED + demonstration.TRAINED
    traces = out / demonstration.TRACES
    try:
        with progress() as tick:
            report, page = demonstration.run(
                target,
                drafts,
                entries,
                out,
                each=number,
                max_new_tokens=max_new_tokens or (96 if toy else None),
                force=force,
                count=threads,
                path=path if device == "cpu" else None,  # the other engine runs on the CPU
                practice=suite("demo-calibration"),
                names=names,
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
    method: Annotated[str, argument("A decoding method; specviz models lists them.")],
    model: Annotated[
        str | None,
        option(
            f"{MODEL}. Default: town; streams: town-translator; canvases: town-diffusion.",
            "--model",
            "-m",
        ),
    ] = None,
    draft: Draft = None,
    prompt: Annotated[str | None, option("The text to continue.", "--prompt", "-p")] = None,
    prompts: Prompts = None,
    number: Number = None,
    text: Annotated[
        Path | None, option("For retranslate: a text file, revealed --lag words at a time.")
    ] = None,
    stream: Annotated[
        Path | None,
        option(
            "For retranslate: partial results as JSON lines (text, time, final), or a transcript with "
            "times (JSON, WebVTT, SRT)."
        ),
    ] = None,
    clock: Annotated[
        str | None,
        option("Clock of partial results: utterance (each starts at 0), or file (times run on through it)."),
    ] = None,
    lag: Annotated[
        int | None,
        option("Words that each update of a text or a transcript adds (3); for WebVTT and SRT: cues."),
    ] = None,
    language: Annotated[
        str | None,
        option("Language of the source, such as en or ja; it defines the words that --lag counts."),
    ] = None,
    raw: Annotated[bool, option("Do not use the model's chat template.", "--raw")] = False,
    set_: Settings = None,
    out: Annotated[
        Path | None,
        option("Output folder for METHOD.parquet and METHOD.html, or a .parquet file.", "--out", "-o"),
    ] = None,
    max_new_tokens: NewTokens = 128,
    temperature: Annotated[float, option("0 is greedy.")] = 0.0,
    top_k: Annotated[int, option("0 is off.")] = 0,
    top_p: Annotated[float, option("1 is off.")] = 1.0,
    seed: Annotated[int, option("Seed of the random numbers.")] = 0,
    record: Annotated[
        str, option("What the trace keeps: judged, all, dense (for what-ifs), none (only the text).")
    ] = "judged",
    batch: Annotated[
        int, option("Maximum number of prompts decoded together; 1: one after another.", min=1)
    ] = 1,
    threads: Threads = None,
    device: Device = "cpu",
    dtype: Dtype = "auto",
    kernels: Kernels = None,
    invariant: Invariant = None,
    revision: Revision = None,
    store: Annotated[
        Path | None, option("Load what the method learnt earlier from a file written by --save-store.")
    ] = None,
    save_store: Annotated[
        Path | None, option("Write what the method has learnt to this file at the end.")
    ] = None,
    resume: Annotated[
        bool, option("Continue an interrupted run: decode what --out does not hold yet.", "--resume")
    ] = False,
    force: Force = False,
) -> None:
    """Decode your own prompts with one method. Print what happened; --out also writes a trace and a page."""
    source = _source({"--prompt": prompt, "--prompts": prompts, "--text": text, "--stream": stream})
    streamed = source in ("--text", "--stream")
    if number is not None and source != "--prompts":
        raise ParameterError(f"--number counts --prompts: drop it with {source}")
    either = ("--text", "--stream")
    for name, value, sources in (
        ("--lag", lag, either), ("--language", language, either), ("--clock", clock, ("--stream",)),
    ):  # fmt: skip
        if value is not None and source not in sources:
            raise ParameterError(f"{name} is for {' and '.join(sources)}: drop it with {source}")
    if record not in ("judged", "all", "dense", "none"):
        raise ParameterError(f"--record must be judged, all, dense or none, not {record!r}")
    file = _output(out, method, force, resume)
    if save_store is not None:
        writable(save_store, force)
        distinct(save_store, *([] if file is None else [file, file.with_suffix(".html")]))
    if streamed and raw:
        raise ParameterError(f"--raw is for --prompt and --prompts: with {source} use --set template=plain")
    if streamed and batch > 1:
        raise ParameterError("streams are decoded one after another: drop --batch")
    entries: Sequence[Stream | Prompt] = (
        _streams(text, stream, clock, lag, language) if streamed else entries_of(prompt, prompts, number)
    )
    with loading():
        from specviz import methods
        from specviz.loop.resume import load_saved
        from specviz.loop.run import Run, RunOptions

    options = {
        "max_new_tokens": max_new_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p,
        "seed": seed, "batch": batch, "record": None if record == "none" else record, "out": file,
        "force": force, "resume": resume,
    }  # fmt: skip
    RunOptions.split(options)[0].sampling  # noqa: B018  refuse bad values before a model is read
    kind = methods.find(method)
    _check_source(kind, source)
    built = kind(**parameters_of(kind, set_ or []))
    if (store or save_store) and built.memory is None:
        raise ParameterError(f"{method} keeps no memory between texts: drop --store and --save-store")
    chosen = {"dtype": dtype, "revision": revision, "kernels": kernels, "invariant": invariant}
    target, drafter = _models(kind, model, draft, device, chosen, file if resume else None)
    own = prompt is not None or (prompts is not None and expanded(prompts).is_file())
    if model is None and own and not kind.canvas:
        print(
            "specviz: without --model the toy town decodes, which knows only its own few sentences; "
            "-m smollm2 decodes ordinary texts",
            file=sys.stderr,
        )
    if store is not None:
        built.load(store, target)
    if raw:
        plain = [entry for entry in entries if isinstance(entry, dict)]
        entries = [_raw(entry, place, target) for place, entry in enumerate(plain, 1)]
    with on_threads(threads) as threads_used:
        run = Run(target, entries, built, draft=drafter, **options)
        _decode(run, streamed)
    _report(run, threads_used, None if streamed else show_trace, file, force or resume)
    whole, stopped = run.recorder.run["complete"], run.recorder.run["stopped"]
    learns = (built.memory or {}).get("keep") == "run"
    texts = [len(entry.get("turns", [0])) for entry in run.prompts]
    # What a method has learnt from finished prompts is not in the trace.
    resumable = file is not None and (whole or not learns or not load_saved(file).has_prompt(texts))
    stored = save_store if whole or not resumable else None  # otherwise the resumed run writes it
    if stored is not None:
        built.save(stored, target)
        learnt = run.recorder.run["memory"]["end"]
        print(f"store: {stored} ({learnt['known']:,} entries, {learnt['bytes'] / 1e6:.1f} MB)")
    if stopped == "interrupted":
        if resumable:
            without = "" if stored is None else " and without --save-store"
            print(f"to decode the rest, run the same command with --resume{without}")
        elif file is not None:
            print(
                f"{kind.name} learns from prompt to prompt, so this run cannot be resumed: decode again with "
                "--force (a run with --set keep=prompt can be resumed)"
            )
        raise KeyboardInterrupt


def _raw(entry: Prompt, place: int, target: protocols.Model) -> Prompt:
    """Encode a prompt without the chat template."""
    texts = entry.get("turns") or [entry.get("prompt")]
    if len(texts) != 1 or not isinstance(texts[0], str):
        raise ParameterError(
            f"--raw leaves the chat template out of plain texts, and prompt {place} is a conversation: drop "
            "--raw"
        )
    others = {name: value for name, value in entry.items() if name != "turns"}
    return others | {"prompt": target.encode(texts[0], raw=True)}


def _source(options: Values) -> str:
    """Name of the one option given that selects the input."""
    given = [name for name, value in options.items() if value is not None]
    if len(given) != 1:
        raise PromptError(
            "give either --prompt TEXT or --prompts FILE; for retranslate --text or --stream FILE"
        )
    return given[0]


def _check_source(kind: type[Method], source: str) -> None:
    """Refuse a prompt for a method that decodes streams, and vice versa."""
    streamed = source in ("--text", "--stream")
    if kind.streams and not streamed:
        raise PromptError(
            f"{kind.name} decodes a source that arrives in updates: give --text or --stream, not {source}"
        )
    if streamed and not kind.streams:
        raise PromptError(f"{kind.name} takes a fixed prompt: give --prompt or --prompts, not {source}")


def _output(out: Path | None, method: str, force: bool, resume: bool) -> Path | None:
    """Path of the trace; check that it and its page may be written."""
    if out is None:
        if resume:
            raise TraceError("--resume continues a file: name it, or its folder, with --out")
        return None
    if out.suffix != ".parquet" and out.suffix[1:2].isalpha() and not out.is_dir():
        raise TraceError(f"--out takes a folder or a .parquet file, and {out} looks like another file")
    file = out if out.suffix == ".parquet" else out / f"{Path(method).name}.parquet"
    for path in (file, file.with_suffix(".html")):
        writable(path, force or resume)
    return file


def _models(
    kind: type[Method], model: str | None, draft: str | None, device: str, chosen: Values,
    resumed: Path | None,
) -> tuple[protocols.Model, protocols.Drafter | None]:  # fmt: skip
    """Load the target, with its `chosen` options, and the draft model if the method needs the given one.

    The target of a resumed run is loaded as its file says; options of the command come first.
    """
    from specviz.loop.drafters import bundled_draft
    from specviz.loop.resume import saved_options
    from specviz.methods.hooks import ADDITIONS
    from specviz.models.loading import find, load

    model = model or ("town-translator" if kind.streams else "town-diffusion" if kind.canvas else "town")
    find(model)
    if kind.needs_draft and draft is None and bundled_draft(kind, Path(model).name) is None:
        needed = ADDITIONS.get(kind.drafts_with, "a draft model")
        raise ParameterError(
            f"{kind.name} needs {needed}: pass --draft (a bundled name, a folder or hf:<id>)"
        )
    if draft is not None and not kind.needs_draft:
        print(f"specviz: {kind.name} uses no draft model, so --draft is ignored", file=sys.stderr)
    dtype = chosen["dtype"]
    with loading():
        if resumed is not None:
            saved = saved_options(resumed, model, dtype, chosen["kernels"])
            open_ = {name for name in saved if chosen[name] in (None, "auto")}
            chosen = {**chosen, **{name: saved[name] for name in open_}}
        target = load(model, device, **chosen)
        return target, load(draft, device, dtype) if draft is not None and kind.needs_draft else None


def _decode(run: Run, streamed: bool) -> None:
    """Exhaust a run, with a progress bar or, for streams, its updates; Ctrl-C keeps the trace so far."""
    try:
        if streamed:
            _follow(run, run.model.decode)
            return
        texts = sum(len(entry.get("turns", [0])) for entry in run.prompts)
        with progress() as tick:
            done = 0
            for cycle in run:
                if cycle.end is not None:
                    done += 1
                    tick(done, texts, run.method.name)
    except KeyboardInterrupt:  # it may also come while output is drawn
        run.close("interrupted")


def _report(
    run: Run, threads: int, show: Callable[[Trace, Path | None], None] | None, file: Path | None, force: bool
) -> None:
    """Print what happened and where it is saved; write the page."""
    trace = run.trace
    if trace is None:  # Ctrl-C came while the recorder closed
        if file is None:
            raise KeyboardInterrupt
        raise TraceError(f"interrupted while the trace was written: the run is in {run.recorder.partial}")
    if show is not None:
        show(trace, file)
    size = trace.run["calibration"]
    calibrated = f", {size['parameter']} {size['value']} by calibration" if size else ""
    dtype = str(run.model.dtype).removeprefix("torch.")
    layout = getattr(run.model, "kernels", None)  # llama.cpp has its own
    kernels = f", {layout} kernels" if layout else ""
    print(f"\non {run.model.device}, {plural(threads, 'thread')}, {dtype}{kernels}{calibrated}")
    if file is not None:
        page = trace.to_html(file.with_suffix(".html"), force=force)
        print(f"trace: {file}\npage: {page}")


def _streams(
    text: Path | None, stream: Path | None, clock: str | None, lag: int | None, language: str | None
) -> list[Stream]:
    """Streams of a text file, of partial results or of a transcript, by its first line and its suffix."""
    from specviz import streams
    from specviz.streams.lag import read

    words = LAG if lag is None else lag
    if words < 1:
        raise ParameterError(f"--lag must be at least 1, got {lag}")
    if text is not None:
        return streams.from_file(text, words, language)
    assert stream is not None
    lines = [line for line in read(stream).splitlines() if line.strip()]
    try:
        keys = set(json.loads(lines[0] if lines else ""))
    except (ValueError, RecursionError, TypeError):
        keys = set()
    timed = stream.suffix.lower() in (".json", ".vtt", ".srt")
    listed = keys & {"words", "segments", "word_segments"}  # a document, if nothing follows
    partial = "text" in keys and not listed and "word" not in keys
    if "word" in keys or (timed and not partial) or (listed and len(lines) == 1):
        if clock is not None:
            raise ParameterError(f"{stream} is a transcript, which has one clock: drop --clock")
        return [streams.word_timed(stream, words, language=language)]
    if lag is not None or language is not None:
        raise ParameterError(
            f"{stream} holds partial results, which are updates already: drop --lag and --language"
        )
    return streams.from_partials(stream, clock=clock or "utterance")


def _follow(run: Run, show: Callable[[list[int]], str]) -> None:
    """Print each update as it is decoded, with {+new text+} marked, then a table with one line per stream."""
    from specviz.escape import visible
    from specviz.streams import follow

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    marks = ("\033[1;4;32m", "\033[0m") if colour else ("{+", "+}")  # as in `specviz show`
    streams: dict[str, list[Shown]] = {}  # a resumed run decodes only the later ones
    for u in follow(run, show):
        name = run.prompts[u.stream]["id"] or f"stream {u.stream + 1}"
        if name not in streams:
            print(visible(name))
        streams.setdefault(name, []).append(u)
        new = f"{marks[0]}{visible(u.new)}{marks[1]}" if u.new else ""
        print(f"{u.update:4}  {visible(u.source)}\n      {visible(u.kept)}{new}")
        facts = [f"{u.erased_tokens} tokens erased"] if u.erased_tokens else []
        facts += [f"{u.hidden} hidden"] if u.hidden else []
        facts += [f"{u.accepted} of {u.drafted} drafted accepted"] if u.drafted else []
        facts += [f"{u.reused} of {u.prompt} cache rows kept"]
        facts += [f"{1e3 * u.seconds:.1f} ms"] if u.seconds == u.seconds else []
        print("      (" + ", ".join(facts) + ")", flush=True)
    if streams:
        print()
        _print_updates(streams)


def _print_updates(streams: dict[str, list[Shown]]) -> None:
    """Print a table with one line per stream."""
    from specviz.escape import visible
    from specviz.measure.report import Column, print_table

    rows = []
    for name, updates in streams.items():
        tokens, seconds = sum(u.tokens for u in updates), sum(u.seconds for u in updates)
        drafted, accepted = sum(u.drafted for u in updates), sum(u.accepted for u in updates)
        erased, prompt = sum(u.erased_tokens for u in updates), sum(u.prompt for u in updates)
        cells = [f"{len(updates)}", f"{tokens:,}", f"{erased:,}"]
        cells.append(f"{accepted / drafted:.2f}" if drafted else "–")
        cells.append(f"{sum(u.reused for u in updates) / prompt:.2f}")
        timed = seconds == seconds
        cells += [f"{1e3 * seconds / len(updates):.1f}", f"{tokens / seconds:,.0f}"] if timed else ["–"] * 2
        rows.append([visible(name), *cells])
    columns = ("updates", "tokens", "erased tokens", "A/D", "rows kept", "ms per update",
               "tokens/s with prefill")  # fmt: skip
    print_table(screen(), [Column("stream"), *(Column(name, True) for name in columns)], rows)
