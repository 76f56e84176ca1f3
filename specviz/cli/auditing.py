"""``specviz audit``: is every exact method's text the target's own?"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specviz.cli.arguments import entries_of, loaded, writable
from specviz.cli.options import Device, Drafts, Dtype, Force, Kernels, Model, NewTokens, OneThread, Prompts
from specviz.cli.terminal import progress, screen
from specviz.errors import ParameterError, loading
from specviz.files import write_text

if TYPE_CHECKING:
    from specviz.audit.result import AuditResult

MOST_DIFFERENCES = 40  # that the audit prints


def audit(
    model: Model = "town",
    draft: Drafts = None,
    prompts: Prompts = None,
    number: Annotated[
        int | None,
        typer.Option(
            "--number",
            min=1,
            help="How many prompts. Default: 100 bundled ones, 2,000 at most; all of --prompts.",
        ),
    ] = None,
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
    seed: Annotated[int, typer.Option(help="Which of the bundled prompts: another seed draws others.")] = 0,
    threads: OneThread = 1,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    kernels: Kernels = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result as JSON.")] = None,
    force: Force = False,
) -> None:
    """Check that every exact method writes the target's own text; exit status 1 when one does not.

    Of a diffusion model: the same cells, tokens and order as stepwise decoding under the same cache policy.
    """
    if json is not None:
        writable(json, force)
    entries = _bundled(number or 100, seed) if prompts is None else entries_of(None, prompts, number)
    with loading():
        from specviz import audit as auditing

        still, moving = _streaming(method)  # a name that is none is told before a model is read
        target, drafts = loaded(model, draft, device, dtype, None)
    if not getattr(target.tokenizer, "chat_template", None):  # a plain model goes on from the user's words
        entries = [e[-1]["content"] if isinstance(e, list) else e for e in entries]
    cells = target.kind == "diffusion"
    left_out: dict[str, str] = {}
    if method is not None:
        auditing.served(target, method, named=True)
    if batch is not None or cells:
        still, moving = method, []
    elif moving is None and streams:
        moving, left_out = auditing.served(target, auditing.stream_methods(target))
    arriving = _test_streams(target, streams) if moving else []
    result = None
    with progress() as tick:
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
        if arriving:
            more = auditing.streams(
                target, arriving, moving, max_new_tokens=max_new_tokens, threads=threads,
                sampled=min(sampled, len(arriving) // 2), progress=lambda done, of: tick(done, of, "updates"),
            )  # fmt: skip
            result = more if result is None else result.joined(more)
    if result is None:
        raise ParameterError("nothing to audit: these methods decode streams, so --streams must be above 0")
    _print(result, left_out | result.left_out)
    if json is not None:
        write_text(json, result.to_json() + "\n", force)
    raise typer.Exit(0 if result.holds else 1)


def _print(result: AuditResult, left_out: dict[str, str]) -> None:
    """A table with a line a method, what was left out, the first differences and the summary."""
    from specviz.measure.report import Column, print_table
    from specviz.view.picture import visible

    rows = result.table()
    names = list(rows[0]) if rows else []
    droppable = ("bound", "tokens", "prompts")  # the summary line has them, too
    columns = [
        Column(
            name,
            right=all(isinstance(row[name], int | float | None) for row in rows),
            folds=14 if name in ("method", "sampling") else None,
            spare=droppable.index(name) if name in droppable else None,
        )
        for name in names
    ]
    print_table(screen(), columns, [[_cell(row[name]) for name in names] for row in rows])
    if left_out:
        print(_left_out(left_out))
    for audited, difference in result.differences[:MOST_DIFFERENCES]:
        print(visible(f"{audited.method} {audited.draft} {audited.sampling}: {difference}"))
    if len(result.differences) > MOST_DIFFERENCES:
        print(f"{len(result.differences) - MOST_DIFFERENCES} more differences are in the result (--json)")
    print(result.summary)


def _streaming(methods: list[str] | None) -> tuple[list[str] | None, list[str] | None]:
    """The methods that decode prompts, and those that decode streams; None: the audit's own choice."""
    from specviz.methods import find

    if methods is None:
        return None, None
    moving = [name for name in methods if find(name.partition(":")[0].strip()).streams]
    return [name for name in methods if name not in moving], moving


def _bundled(number: int, seed: int) -> list[Any]:
    """Bundled chats of every kind and language: the first ones, or by another seed others."""
    from specviz.suites.frozen import frozen, take

    chats = [entry["messages"] for entry in frozen("audit")]
    if seed:
        random.Random(seed).shuffle(chats)
    return take(chats, number, "prompts")


def _test_streams(target: Any, number: int) -> list[Any]:
    """Test texts as streams, as many of them as have room in the model's context."""
    from specviz.replays.translations import streams, texts

    chosen = texts("de", number)
    room = target.max_length // 2
    short = [
        stream for stream, each in zip(streams(chosen), chosen) if len(target.encode(each.source)) < room
    ]
    if len(short) < number:
        print(
            f"specviz: {number - len(short)} streams are too long for {target.name}: left out",
            file=sys.stderr,
        )
    return short


def _left_out(reasons: dict[str, str]) -> str:
    """The methods that were not asked of the model, and why, in a line."""
    parts = [f"{name} ({reason.removeprefix(f'{name} ')})" for name, reason in sorted(reasons.items())]
    return f"left out: {', '.join(parts)}"


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return (
        f"{value:,}" if isinstance(value, int) else f"{value:.1e}" if isinstance(value, float) else str(value)
    )
