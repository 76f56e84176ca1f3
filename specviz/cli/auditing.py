"""``specviz audit``: check that every exact method, or another program, writes the target's own text."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias, TypedDict

import typer

from specviz.cli.arguments import Values, entries_of, loaded, writable
from specviz.cli.options import (
    DTYPE,
    MODEL,
    Device,
    Drafts,
    Force,
    Invariant,
    Json,
    Kernels,
    NewTokens,
    OneThread,
    Prompts,
    option,
)
from specviz.cli.terminal import progress, screen
from specviz.errors import ParameterError, loading, plural
from specviz.escape import visible
from specviz.files import write_text

if TYPE_CHECKING:
    from specviz.audit import AuditResult
    from specviz.audit.soak import Entry as SoakEntry
    from specviz.models.protocols import Drafter, Model
    from specviz.streams import Stream


Chat: TypeAlias = list[dict[str, str]]
Entry: TypeAlias = str | Chat | Values


class Limits(TypedDict):
    """Options that every audit of texts takes."""

    max_new_tokens: int
    threads: int


MOST_DIFFERENCES = 40  # printed by the audit

Target = Annotated[
    str | None,
    option(
        f"{MODEL}. Default: town; for a soak, six bundled targets (one of them on llama.cpp, if that is "
        "installed), and SmolLM2 if it was downloaded.",
        "--model",
        "-m",
    ),
]
Number = Annotated[
    int | None,
    option("How many prompts. Default: 100 of the bundled ones (at most 2,000), or all of --prompts.", min=1),
]
Methods = Annotated[
    list[str] | None,
    option(
        "NAME or NAME:parameter=value,...; may be repeated. Default: every exact method, and lossy ones with "
        "parameters that make them exact; with --batch, every method that can share a batch; for a "
        "diffusion model, every method.",
        "--method",
    ),
]
Sampled = Annotated[int, option("How many prompts to decode again with sampling.", min=0)]
Streams = Annotated[
    int, option("How many texts that arrive in updates, for methods that decode streams; 0: none.", min=0)
]
Batch = Annotated[
    int | None,
    option("Instead: check that each row of batches of this size equals its prompt's single run.", min=1),
]
AuditDtype = Annotated[str, option(f"{DTYPE}. With --soak and --answers, auto is float32.", "--dtype")]
Seed = Annotated[int, option("Which of the bundled prompts to use: another seed selects others.")]
Soak = Annotated[bool, option("Instead: audit random settings, one after another, until Ctrl-C.", "--soak")]
Ledger = Annotated[
    Path | None,
    option("File in which a soak keeps its entries, and from which it continues; alone: print their totals."),
]
Answers = Annotated[
    Path | None,
    option(
        "Instead: check whether answers from another program are the model's own. JSON lines with prompt or "
        "messages, answer or token_ids, finish_reason, max_tokens; engine, temperature and top_p if known."
    ),
]
Honest = Annotated[
    Path | None,
    option(
        "With --answers: greedy answers that are known to be the model's, to measure each engine's noise."
    ),
]
Envelope = Annotated[
    float | None,
    option(
        "With --answers: how many logits below the top token noise may put a token. "
        "Default: 0.5, and 0.75 for llama.cpp and engines that run it."
    ),
]
Sibling = Annotated[
    str | None,
    option("With --answers: other weights, or template:FILE, to compare the answers with as well."),
]
Minutes = Annotated[float | None, option("Stop the soak after this many minutes.")]


def audit(
    model: Target = None,
    draft: Drafts = None,
    prompts: Prompts = None,
    number: Number = None,
    method: Methods = None,
    max_new_tokens: NewTokens = 64,
    sampled: Sampled = 20,
    streams: Streams = 10,
    batch: Batch = None,
    seed: Seed = 0,
    threads: OneThread = 1,
    device: Device = "cpu",
    dtype: AuditDtype = "auto",
    kernels: Kernels = None,
    invariant: Invariant = None,
    json: Json = None,
    force: Force = False,
    soak: Soak = False,
    ledger: Ledger = None,
    minutes: Minutes = None,
    answers: Answers = None,
    honest: Honest = None,
    envelope: Envelope = None,
    sibling: Sibling = None,
) -> None:
    """Check that every exact method writes the target's own text. Exit status 1 if one does not.

    For a diffusion model, check for the same cells, tokens and order as in stepwise decoding with the same
    cache policy.
    """
    if soak or ledger is not None or minutes is not None:
        chosen = {
            "--method": method, "--batch": batch, "--json": json, "--kernels": kernels, "--answers": answers,
            "--prompts": prompts, "--number": number, "--honest": honest, "--envelope": envelope,
            "--sibling": sibling, "--invariant": invariant,
        }  # fmt: skip
        if wrong := [name for name, value in chosen.items() if value is not None]:
            raise ParameterError(f"a soak chooses its own settings: drop {', '.join(wrong)}")
        if (max_new_tokens, sampled, streams) != (64, 20, 10):
            raise ParameterError(
                "a soak chooses its own settings: drop --max-new-tokens, --sampled and --streams"
            )
        if not soak and (model is not None or draft is not None or seed != 0):
            raise ParameterError(
                "--ledger alone prints a soak's totals: add --soak, or drop --model, --draft and --seed"
            )
        given = {"models": model and [model], "drafts": draft, "device": device}
        given["dtype"] = None if dtype == "auto" else dtype  # random layouts need the default, float32
        _soak(ledger, soak, threads, given | {"minutes": minutes, "seed": seed})
        return
    if json is not None:
        writable(json, force)
    if answers is not None:
        if any(given is not None for given in (method, batch, prompts, draft, number)):
            raise ParameterError("--answers are read, not decoded: drop the methods, prompts and drafts")
        if (max_new_tokens, sampled, streams, seed) != (64, 20, 10, 0):
            raise ParameterError(
                "--answers are read, not decoded: drop --max-new-tokens, --sampled, --streams and --seed"
            )
        options = {"honest": honest, "envelope": envelope, "sibling": sibling, "device": device}
        options |= {"kernels": kernels, "invariant": invariant}
        _answers(answers, model, threads, json, options | {"dtype": None if dtype == "auto" else dtype})
        return
    if any(given is not None for given in (honest, envelope, sibling)):
        raise ParameterError("--honest, --envelope and --sibling need --answers: add that file")
    if prompts is not None and seed != 0:
        raise ParameterError("--seed chooses among the bundled prompts: drop it or --prompts")
    if batch is not None and streams not in (0, 10):
        raise ParameterError("--batch checks prompts, not streams: drop --streams")
    entries: Sequence[Entry] = (
        _bundled(number or 100, seed) if prompts is None else entries_of(None, prompts, number)
    )
    with loading():
        from specviz import audit as auditing

        still, moving = _streaming(method)  # reject an unknown name before a model is read
        target, drafts = loaded(model or "town", draft, device, dtype, kernels, invariant)
    # A model without a chat template continues the user's text.
    if not getattr(target.text.tokenizer, "chat_template", None):
        entries = [e[-1]["content"] if isinstance(e, list) else e for e in entries]
    left_out: dict[str, str] = {}
    if method is not None:
        auditing.served(target, method, named=True)
    if target.kind == "diffusion" and (draft is not None or sampled not in (0, 20) or streams not in (0, 10)):
        raise ParameterError(
            f"{target.name} is a diffusion model, whose canvases are compared cell by cell: drop --draft, "
            "--sampled and --streams"
        )
    if batch is not None or target.kind == "diffusion":
        still, moving = method, []
    elif moving == [] and streams not in (0, 10):
        raise ParameterError("--streams is for methods that decode streams, and none of these does: drop it")
    elif still == [] and (prompts is not None or number is not None):
        raise ParameterError(
            "these methods decode streams, and --streams says how many: drop --prompts and --number"
        )
    elif moving is None and streams:
        moving, left_out = auditing.served(target, auditing.stream_methods(target))
    given_streams = _test_streams(target, streams) if moving else []
    limits = Limits(max_new_tokens=max_new_tokens, threads=threads)
    result = _audited(target, drafts, entries, still, batch, sampled, limits)
    if given_streams:
        some = min(sampled, len(given_streams) // 2)
        with _counting("updates") as tick:
            more = auditing.streams(target, given_streams, moving, sampled=some, progress=tick, **limits)
        result = more if result is None else result.joined(more)
    if result is None and moving and streams:
        raise ParameterError(f"nothing to audit: every test text is too long for {target.name}")
    if result is None:
        raise ParameterError("nothing to audit: these methods decode streams, so --streams must be above 0")
    result = replace(result, left_out=left_out | result.left_out)
    _print_result(result)
    if json is not None:
        write_text(json, result.to_json() + "\n", force)
    raise typer.Exit(0 if result.holds else 1)


def _answers(path: Path, model: str | None, threads: int, json: Path | None, options: Values) -> None:
    """Audit another program's answers, and print the evidence against them."""
    if model is None:
        raise ParameterError("--answers needs a model to compare with: name it with --model")
    with loading():
        from specviz import audit as auditing
        from specviz.audit.answer_report import NOISE, OTHER, OWN, UNSURE

        with _counting("answers") as tick:
            result = auditing.answers(path, model, threads=threads, progress=tick, **options)
    for line in result.head:
        print(visible(line))
    print()
    doubted = [text for text in result.texts if text.reason]
    worst_first = (OTHER, UNSURE, NOISE, OWN)
    for text in sorted(doubted, key=lambda text: worst_first.index(text.verdict))[:MOST_DIFFERENCES]:
        print(visible(str(text)))
    if (more := len(doubted) - MOST_DIFFERENCES) > 0:
        print(f"the result has {plural(more, 'more answer')} (--json)")
    for part in (*result.drawn, *filter(None, [result.sibling])):
        print(visible(str(part)))
    print(visible(result.summary))
    if json is not None:
        write_text(json, result.to_json() + "\n", force=True)
    raise typer.Exit(0 if result.holds else 1)


def _soak(ledger: Path | None, soak: bool, threads: int, options: Values) -> None:
    """Run a soak or read a ledger, then print the totals and the bugs."""
    if ledger is None:
        raise ParameterError("a soak keeps its entries in a file: name it with --ledger FILE")
    with loading():
        from specviz.audit.result import with_draft
        from specviz.audit.soak import read_ledger, sums
        from specviz.audit.soak import soak as run
    from specviz.measure.timing import threads as on_threads

    if not soak and options["minutes"] is not None:
        raise ParameterError("--minutes works only with --soak: add --soak")
    try:
        if soak:
            with on_threads(threads):
                for entry in run(ledger, **options):
                    print(visible(_line(entry)), file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print(f"specviz: interrupted: run the same command again to continue {ledger}", file=sys.stderr)
    entries = read_ledger(ledger) if ledger.exists() or not soak else []
    _print_rows(sums(entries))
    bugs = [(entry, bug) for entry in entries for bug in entry["bugs"]]
    for entry, bug in bugs[:MOST_DIFFERENCES]:
        place = f"entry {entry['number']} of seed {entry['seed']}, {entry['setting']['model']}"
        words = with_draft(bug["method"], bug["draft"], bug["sampling"])
        print(visible(f"{place}: {words}: {bug['reason']}"))
    if refused := sum(bool(entry["refused"]) for entry in entries):
        print(f"rejected before any work: {refused} of {len(entries)}")
    raise typer.Exit(1 if bugs else 0)


def _line(entry: SoakEntry) -> str:
    """Format an entry of a soak as one line."""
    about = f"entry {entry['number']}, {entry['setting']['model']}, {entry['setting']['audit']}"
    if entry["refused"]:
        return f"{about}: refused: {entry['refused']}"
    tokens, bugs = (sum(row[name] for row in entry["rows"]) for name in ("tokens", "bug"))
    return f"{about}: {plural(tokens, 'token')}, {plural(bugs, 'bug')} ({entry['seconds']:g} s)"


def _audited(
    target: Model, drafts: Sequence[Drafter], entries: Sequence[Entry], methods: list[str] | None,
    batch: int | None, sampled: int, limits: Limits,
) -> AuditResult | None:  # fmt: skip
    """Run the audit of prompts that fits the target and the options; None if no method decodes prompts."""
    from specviz import audit as auditing

    if target.kind == "diffusion":
        with _counting("prompts") as tick:
            return auditing.canvases(target, entries, methods, batch or 1, progress=tick, **limits)
    if batch is not None:
        with _counting("methods") as tick:
            return auditing.batches(
                target, drafts, entries, methods, batch, progress=tick, sampled=sampled, **limits
            )
    if methods == []:
        return None
    with _counting("prompts and tests of the law") as tick:
        return auditing.run(target, drafts, entries, methods, progress=tick, sampled=sampled, **limits)


@contextmanager
def _counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar that counts one kind of item."""
    with progress() as tick:
        yield lambda done, of: tick(done, of, what)


def _print_result(result: AuditResult) -> None:
    """Print the table, the methods left out, the differences and the summary."""
    _print_rows(result.table(), ("bound", "tokens", "prompts"))  # the summary line has them too
    if result.left_out:
        print(visible(_left_out(result.left_out)))
    for audited, difference in result.differences[:MOST_DIFFERENCES]:
        print(visible(f"{audited}: {difference}"))
    if (more := len(result.differences) - MOST_DIFFERENCES) > 0:
        print(f"the result has {plural(more, 'more difference')} (--json)")
    print(visible(result.summary))


def _print_rows(rows: list[Values], drop_first: tuple[str, ...] = ()) -> None:
    """Print a table with right-aligned numbers; if it is too wide, drop the columns of `drop_first`."""
    from specviz.measure.report import Column, print_table

    names = list(rows[0]) if rows else []
    columns = [
        Column(
            name.replace("_", " "),
            right=all(isinstance(row[name], int | float | None) for row in rows),
            folds=14 if name in ("method", "sampling") else None,
            drop_rank=drop_first.index(name) if name in drop_first else None,
        )
        for name in names
    ]
    print_table(screen(), columns, [[visible(_cell(row[name])) for name in names] for row in rows])


def _streaming(methods: list[str] | None) -> tuple[list[str] | None, list[str] | None]:
    """Split methods into those that decode prompts and those that decode streams; None: the audit chooses."""
    from specviz.methods import find

    if methods is None:
        return None, None
    moving = [name for name in methods if find(name.partition(":")[0].strip()).streams]
    return [name for name in methods if name not in moving], moving


def _bundled(number: int, seed: int) -> list[Chat]:
    """Bundled chats of every kind and language; a seed other than 0 selects others than the first."""
    from specviz.suites.frozen import frozen, take

    chats = [entry["messages"] for entry in frozen("audit")]
    if seed:
        random.Random(seed).shuffle(chats)
    return take(chats, number, "prompts")


def _test_streams(target: Model, number: int) -> list[Stream]:
    """Test texts as streams, without those that are too long for the model's context."""
    from specviz.replays.translations import streams, texts

    made = texts("de", number)
    room = target.max_length // 2
    fitting = [stream for stream, each in zip(streams(made), made) if len(target.encode(each.source)) < room]
    if absent := number - len(fitting):
        words = f"specviz: skipped, as too long for {target.name}: {plural(absent, 'stream')}"
        print(visible(words), file=sys.stderr)
    return fitting


def _left_out(reasons: dict[str, str]) -> str:
    """List in one line the methods that were left out, and why."""
    parts = [f"{name} ({reason.removeprefix(f'{name} ')})" for name, reason in sorted(reasons.items())]
    return f"left out: {', '.join(parts)}"


def _cell(value: str | float | None) -> str:
    if value is None:
        return "–"
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:.1e}" if isinstance(value, float) else str(value)
    )
