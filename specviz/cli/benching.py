"""``specviz bench``: a bench by name, a run of one's own, and what either found."""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer

from specviz.cli.arguments import listed, loaded, parameters_of, writable
from specviz.cli.options import CSV, Device, Drafts, Dtype, Force, Kernels, Model, Prompts, checked_threads
from specviz.cli.terminal import Interrupted, progress, screen
from specviz.errors import ParameterError, SpecvizError, install, loading
from specviz.models import ranks


def _benches() -> Iterator[tuple[str, str]]:
    """What follows ``specviz bench``, each with a line."""
    from specviz.measure import BENCHES

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
    model: Model = "town",
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
            "--size",
            help="Draft nodes; METHOD=NODES in bench trees for one method besides, in bench speed in place "
            "of calibration. May be repeated.",
        ),
    ] = None,
    ids: Annotated[
        Path | None,
        typer.Option(help="Of bench speed: a JSON file that lists the questions of --prompts to time."),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(help="Of bench speed: contenders, and of bench overhead: methods, as unispec,spectra."),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, callback=checked_threads, help="Threads on the CPU.")] = 1,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    kernels: Kernels = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the result as JSON.")] = None,
    force: Force = False,
) -> None:
    """Print a table and one summary line; exit status 1 when a bar is missed."""
    from specviz.measure import BENCHES, find
    from specviz.suites import suite

    if name not in BENCHES:
        find(name)
    if json is not None:
        writable(json, force)
    asked = {"prompts": number, "max_new_tokens": max_new_tokens, "rounds": rounds, **_sizes(size or [])}
    asked |= {"ids": ids, "only": listed("--only", only, str)}
    given = {option: value for option, value in asked.items() if value is not None}
    with loading():
        measure = find(name)
    taken = signature(measure).parameters
    if "sizes" in given and "sizes" not in taken:
        given["size"] = given.pop("sizes")[-1]
    for option in given.keys() - taken.keys():
        spoken = {"own": "size", "prompts": "number"}.get(option, option.replace("_", "-"))
        raise ParameterError(f"bench {name} takes no --{spoken}")
    if name == "speed":
        report = _speed(measure, model, prompts or "town", device, dtype, threads, json, given)
    else:
        entries = list(suite(prompts or "town")) if name not in ("passes", "roofline") else []
        with loading():
            from specviz.measure.timing import threads as using

            target, drafts = loaded(model, draft, device, dtype, None)
        if entries and not drafts and target.kind != "diffusion":  # whose methods draft by themselves
            print("specviz: no --draft, so methods that need a draft model are left out", file=sys.stderr)
        with using(threads), progress() as tick:
            report = measure(target, drafts, entries, tick=tick, **given)
    report.show(screen())
    if json is not None:
        report.write(json, force)
        _rounds_of(json).unlink(missing_ok=True)
    raise typer.Exit(0 if report.held else 1)


def _speed(
    measure: Any,
    model: str,
    prompts: str,
    device: str,
    dtype: str,
    threads: int,
    json: Path | None,
    given: dict[str, Any],
) -> Any:
    """``bench speed``, which keeps its rounds beside the result, so that the same command goes on."""
    from specviz.suites import suite

    entries = list(suite(prompts))
    with loading():
        from specviz.measure.benches.speed import chosen_ids
        from specviz.measure.timing import threads as using
        from specviz.models import load

        if "ids" in given:
            given["ids"] = chosen_ids(given["ids"], prompts)
        target = load(model, device, dtype)
    with using(threads), _kept(), progress(lines=True) as tick:
        kept = _rounds_of(json) if json is not None else None
        return measure(target, [], entries, tick=tick, kept=kept, **given)


def _rounds_of(json: Path) -> Path:
    """Where bench speed keeps the rounds of a result that is still to come."""
    return json.with_name(json.name + ".rounds")


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

    A plan has the keys that sv.run takes; lists cross:

    \b
      models = ["town", { model = "./folder", draft = "./draft" }]
      methods = ["prompt_lookup", { method = "unispec", draft_size = [16, 32] }]
      suites = ["town", "mine.jsonl"]
      prompts = 20          # of each suite
      max_new_tokens = 128
    """
    if workers is not None and dask is not None:
        raise ParameterError("--workers are processes of this machine, --dask is a cluster: drop one of them")
    with loading():
        from specviz.measure.running import run

        contenders = [_method(each) for each in method] if method else None
        given: dict[str, Any] = {
            "models": model, "draft": draft, "methods": contenders,
            "suites": prompts, "prompts": number, "seeds": listed("--seeds", seeds, int),
            "max_new_tokens": max_new_tokens, "temperature": listed("--temperature", temperature, float),
            "top_k": top_k, "top_p": top_p, "warm_up": warm_up, "threads": threads, "device": device,
            "dtype": dtype, "timed": False if untimed else None, "traces": traces or None,
        }  # fmt: skip
        with _kept(), _cluster(dask) as executor, progress() as tick:
            found = run(plan, out=out, executor=executor, workers=workers, retry=retry, tick=tick, **given)
    if not ranks.leads():
        raise typer.Exit(0)
    found.show(screen())
    raise typer.Exit(1 if len(found.failures()) else 0)


@bench_app.command("report")
def bench_report(
    path: Annotated[Path, typer.Argument(help="Folder of a run, of a replay, or of replay --all.")],
    html: Annotated[
        bool, typer.Option("--html", help="Write one offline page with tables and plots.")
    ] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for an issue.")] = False,
    csv: CSV = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page; default: report.html in the folder.")
    ] = None,
    force: Force = False,
) -> None:
    """Tell what a run or a replay found: a text for the terminal, Markdown, CSV, or a page.

    A replay's replay.json holds all that is told of it, the device among it: kept, or sent to another
    machine, that file is shown there beside what was printed.
    """
    from specviz.replays import page

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
        found.show(screen())


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
        for key, value in parameters_of(kind, [pair]).items():
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
        raise SpecvizError(f"Dask is not installed: {install('cluster')}") from None
    logging.disable()  # of what Dask has to tell, the run says in one line what matters
    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError, TimeoutError) as error:
        raise SpecvizError(f"no Dask scheduler answers at {address}: {error}") from None
    with client:
        yield client.get_executor()


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
            found.setdefault("sizes", []).append(int(number))
    return found


@contextmanager
def _kept() -> Iterator[None]:
    """Carry the word of an interrupt past typer."""
    try:
        yield
    except KeyboardInterrupt as error:
        if not str(error):
            raise
        raise Interrupted(str(error)) from None
