"""``specviz bench``: named benches, your own runs, and the results of both."""

from __future__ import annotations

import hashlib
import json
import logging
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer

from specviz.cli.arguments import Values, listed, loaded, parameters_of, writable
from specviz.cli.options import (
    CSV,
    MODEL,
    Device,
    Drafts,
    Dtype,
    Force,
    Invariant,
    Json,
    Kernels,
    Model,
    OneThread,
    Prompts,
    argument,
    option,
)
from specviz.cli.terminal import message_kept, progress, screen
from specviz.errors import ParameterError, SpecvizError, install, loading
from specviz.models import ranks

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from specviz.measure.report import Report

COMMANDS = {
    "run": "a run of your own: models x methods x parameters x suites (see bench run --help)",
    "report": "show the result of a run or a replay as text, Markdown, CSV or a page",
    "history": "what moved in the last result of each bench, beyond the noise between runs",
}


def _commands() -> dict[str, str]:
    """Subcommands of ``specviz bench``, each with a one-line description."""
    from specviz.measure import BENCHES

    return COMMANDS | BENCHES


class Benches(typer.core.TyperGroup):
    """``specviz bench NAME``: a bench's command is built from its function when it is named."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_commands().items()))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_commands())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS or cmd_name.startswith("-"):
            return super().get_command(ctx, cmd_name)
        return bench_command(cmd_name)


class BenchCommand(typer.core.TyperCommand):
    """One bench's command; the error for an unknown option names the bench."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:  # typer may bring its own copy of click, so check the class by name
            if type(error).__name__ != "NoSuchOption":
                raise
            option = getattr(error, "option_name", "such option")
            raise ParameterError(
                f"bench {self.name} takes no {option} (specviz bench {self.name} --help lists what it takes)"
            ) from None


bench_app = typer.Typer(cls=Benches, invoke_without_command=True, rich_markup_mode=None)


@bench_app.callback()
def benches(context: typer.Context) -> None:
    """Measure with your own plan, or with a named bench. Without a name, list the benches."""
    if context.invoked_subcommand is not None:
        return
    for name, meaning in _commands().items():
        print(f"{name:13} {meaning}")


# ---------------------------------------------------------------- benches by name

# Parameters that are no options: the command line fills them itself, or leaves them at their default.
FILLED = ("model", "drafts", "entries", "source", "rounds_file", "tick", "values")


def bench_command(name: str) -> Any:
    """Build the command of a bench; its options are the keywords that its function takes."""
    from specviz.measure import BENCHES, find

    with loading():
        measure = find(name)
        taken = signature(measure, eval_str=True).parameters

    notes = {
        each.name: get_args(each.annotation)[1:]
        for each in taken.values()
        if get_origin(each.annotation) is Annotated
    }
    checks = {name: note[1] for name, note in notes.items() if len(note) > 1}  # called before any work

    def command(
        model: Model = "town-diffusion" if name == "canvases" else "town",
        draft: Drafts = None,
        prompts: Prompts = "town",
        threads: OneThread = 1,
        device: Device = "cpu",
        dtype: Dtype = "float32",
        kernels: Kernels = None,
        invariant: Invariant = None,
        json: Json = None,
        force: Force = False,
        **given: Any,
    ) -> None:
        if json is not None:
            writable(json, force)
            if "rounds_file" not in taken and (rounds := _rounds_file(json)).exists():
                raise ParameterError(f"{rounds} keeps another bench's rounds: delete it, or change --json")
        values = _values(given)
        for name, check in checks.items():
            check(values.get(name, ()))
        filled = {"source": prompts or "town", "rounds_file": None if json is None else _rounds_file(json)}
        chosen = {"device": device, "dtype": dtype, "kernels": kernels, "invariant": invariant}
        report = _measured(measure, taken, model, draft, chosen, threads, filled | values)
        report.show(screen())
        if json is not None:
            report.write(json, force)
            _rounds_file(json).unlink(missing_ok=True)
        raise typer.Exit(0 if report.held else 1)

    absent = {"draft": "drafts", "prompts": "entries"}
    common = [
        each
        for each in signature(command, eval_str=True).parameters.values()
        if each.kind is not Parameter.VAR_KEYWORD and absent.get(each.name, "model") in taken
    ]
    own = [_option(each) for each in taken.values() if each.name not in FILLED]
    own = [each.replace(kind=Parameter.POSITIONAL_OR_KEYWORD) for each in own]
    command.__signature__ = Signature([*common[:3], *own, *common[3:]])  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in (*common, *own)}
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    about = f"{BENCHES[name][0].upper()}{BENCHES[name][1:]}. Exit status 1 if a limit is missed."
    app.command(name, cls=BenchCommand, help=about)(command)
    return typer.main.get_command(app)


def _option(parameter: Parameter) -> Parameter:
    """Turn a keyword of a bench into an option; ``Annotated[int, "a help text", check]`` gives its help."""
    kind, help_text = parameter.annotation, ""
    if get_origin(kind) is Annotated:
        kind, help_text = get_args(kind)[:2]
    name = "--" + parameter.name.replace("_", "-")
    short = ("-n",) if parameter.name == "max_new_tokens" else ()
    kinds = [each for each in get_args(kind) if each is not type(None)] or [kind]
    if any(get_origin(each) is Sequence for each in (kind, *kinds)):  # repeated, or separated by commas
        several = option(f"{help_text} May be repeated.".strip(), name)
        return parameter.replace(annotation=Annotated[list[str] | None, several], default=None)
    least = (0 if "0: " in help_text else 1) if kinds[0] is int else None  # the help says what 0 does
    return parameter.replace(annotation=Annotated[kind, option(help_text, name, *short, min=least)])


def _values(given: Values) -> Values:
    """The options that were given; those with several values are split at commas."""
    return {
        name: [part.strip() for each in value for part in each.split(",")]
        if isinstance(value, list)
        else value
        for name, value in given.items()
        if value is not None
    }


def _measured(
    measure: Callable[..., Report], taken: Mapping[str, Parameter], model: str, draft: list[str] | None,
    chosen: Values, threads: int, given: Values,
) -> Report:  # fmt: skip
    """Run a bench on the models and prompts that it takes, and return its report."""
    from specviz.suites import suite

    if "entries" in taken:
        given["entries"] = list(suite(given["source"]))
    with loading():
        from specviz.measure.timing import threads as on_threads
        from specviz.models import load

        if "drafts" in taken:
            target, given["drafts"] = loaded(model, draft, **chosen)
            # A diffusion model's methods need no separate drafter.
            if "entries" in taken and not given["drafts"] and target.kind != "diffusion":
                print("specviz: no --draft, so methods that need a draft model are skipped", file=sys.stderr)
        else:
            target = load(model, **chosen)
    given = {name: value for name, value in given.items() if name in taken}
    with on_threads(threads), message_kept(), progress() as tick:
        report = measure(target, tick=tick, **given)
    report.setting["options"] = {
        name: str(given.get(name, parameter.default))
        for name, parameter in taken.items()
        if name not in (*FILLED, "rounds")
    }
    if "entries" in given:
        words = json.dumps(given["entries"], sort_keys=True, default=str).encode()
        report.setting["entries"] = hashlib.sha256(words).hexdigest()[:16]
    return report


def _rounds_file(json: Path) -> Path:
    """File of finished rounds, kept until the result is written, so that the same command can continue."""
    return json.with_name(json.name + ".rounds")


@bench_app.command("run")
def bench_run(
    plan: Annotated[
        Path | None, argument("A TOML file with the plan; the options below override it.")
    ] = None,
    out: Annotated[
        Path | None,
        option("Output folder; a run of the same plan continues. Default: specviz-runs/.", "--out", "-o"),
    ] = None,
    model: Annotated[
        list[str] | None,
        option(f"{MODEL}; may be repeated.", "--model", "-m"),
    ] = None,
    draft: Annotated[
        list[str] | None,
        option("Draft model; may be repeated. Default: the model's bundled one.", "--draft", "-d"),
    ] = None,
    method: Annotated[
        list[str] | None,
        option(
            "A method with its parameters, such as 'unispec draft_size=16 draft_size=32 keep=prompt'; may be "
            "repeated. Autoregressive decoding is added."
        ),
    ] = None,
    prompts: Annotated[
        list[str] | None, option("A bundled suite or a file; may be repeated. Default: town.")
    ] = None,
    number: Annotated[int | None, option("Prompts of each suite; default: all.", min=1)] = None,
    seeds: Annotated[str | None, option("Seeds, such as 0,1,2; each is a round. Default: 0.")] = None,
    max_new_tokens: Annotated[int | None, option("Default: 128.", "--max-new-tokens", "-n", min=1)] = None,
    temperature: Annotated[str | None, option("Temperatures, such as 0,1. Default: 0 (greedy).")] = None,
    top_k: Annotated[int | None, option("Default: off.", min=0)] = None,
    top_p: Annotated[float | None, option("Default: off.")] = None,
    warm_up: Annotated[
        int | None,
        option(
            "How many prompts fill the memories first, of those that --number leaves out. Default: 5.", min=0
        ),
    ] = None,
    threads: Annotated[int | None, option("Threads on the CPU. Default: 1.", min=1)] = None,
    device: Annotated[str | None, option("cpu, cuda, cuda:1 or mps. Default: cpu.")] = None,
    dtype: Annotated[
        str | None, option("float32, float16, bfloat16, float64, stored or auto. Default: float32.")
    ] = None,
    untimed: Annotated[
        bool, option("Do not time anything, so that workers may share cores.", "--untimed")
    ] = False,
    traces: Annotated[bool, option("Keep a trace of every row.", "--traces")] = False,
    workers: Annotated[
        int | None, option("Processes on this machine. Default: only this one.", min=1)
    ] = None,
    dask: Annotated[str | None, option("Scheduler of a Dask cluster.", metavar="ADDRESS")] = None,
    retry: Annotated[bool, option("Decode again what failed.", "--retry")] = False,
) -> None:
    """Decode suites with methods and with autoregressive decoding, keep every row and print the table.

    Every finished row is written to disk: after Ctrl-C or a crash, run the same command again to continue.
    Exit status 1 if a row failed. A model that the plan splits over GPUs (tp_plan = "auto") needs torchrun:
    torchrun --nproc-per-node 2 -m specviz bench run plan.toml

    A plan has the keys that sv.run takes; every combination of its lists is run:

    \b
      models = ["town", { model = "./folder", draft = "./draft" }]
      methods = ["prompt_lookup", { method = "unispec", draft_size = [16, 32] }]
      suites = ["town", "mine.jsonl"]
      number = 20           # prompts of each suite
      max_new_tokens = 128
    """
    if workers is not None and dask is not None:
        raise ParameterError(
            "--workers starts processes on this machine and --dask uses a cluster: drop one of them"
        )
    with loading():
        from specviz.measure.running import run

        contenders = [_method(each) for each in method] if method else None
        given: Values = {
            "models": model, "draft": draft, "methods": contenders,
            "suites": prompts, "number": number, "seeds": listed("--seeds", seeds, int),
            "max_new_tokens": max_new_tokens, "temperature": listed("--temperature", temperature, float),
            "top_k": top_k, "top_p": top_p, "warm_up": warm_up, "threads": threads, "device": device,
            "dtype": dtype, "timed": False if untimed else None, "traces": traces or None,
        }  # fmt: skip
        with message_kept(), _cluster(dask) as executor, progress() as tick:
            results = run(plan, out=out, executor=executor, workers=workers, retry=retry, tick=tick, **given)
    if not ranks.leads():
        raise typer.Exit(0)
    results.show(screen())
    raise typer.Exit(1 if len(results.failures()) else 0)


@bench_app.command("report")
def bench_report(
    path: Annotated[Path, argument("Folder of a run, a replay, or replay --all; or a recorded run.")],
    html: Annotated[bool, option("Write one offline page with tables and plots.", "--html")] = False,
    markdown: Annotated[bool, option("Print Markdown, for an issue.", "--markdown")] = False,
    csv: CSV = False,
    out: Annotated[
        Path | None, option("File of the page; default: report.html in the folder.", "--out", "-o")
    ] = None,
    force: Force = False,
) -> None:
    """Show the result of a run or a replay as text, Markdown, CSV or a page.

    A replay's replay.json holds its whole result, including the device, and can be shown on any machine.
    """
    from specviz.replays import markdown as texts
    from specviz.replays import page, terminal
    from specviz.replays.replays import opened_result

    if out is not None and not html:
        raise ParameterError("--out sets the page's file: add --html")
    if html + markdown + csv > 1:
        raise ParameterError("give only one of --html, --markdown and --csv")
    result = opened_result(path)
    if html:
        print(f"page: {page.write(result, out, force)}")
    elif markdown:
        print(texts.markdown(result))
    elif csv:
        print(texts.csv(result), end="")
    else:
        terminal.show(result, screen())


@bench_app.command("history")
def bench_history(
    results: Annotated[list[Path], argument("Files that bench NAME --json wrote, or folders of them.")],
    json: Json = None,
    force: Force = False,
) -> None:
    """Compare the last result of each bench with the earlier ones, and list the figures that moved.

    Results are compared if they are of the same bench, models, prompts, tokens, device, processor, threads
    and number format. At least two earlier ones are needed: their spread is the noise. Exit status 1 if a
    figure moved.
    """
    from specviz.measure.history import history

    if json is not None:
        writable(json, force)
    report = history(results)
    report.show(screen())
    if json is not None:
        report.write(json, force)
    raise typer.Exit(1 if report.rows else 0)


def _method(text: str) -> Values:
    """Parse ``NAME parameter=value ...`` as a plan entry; a parameter given twice has two values."""
    from specviz import methods

    try:
        name, *pairs = shlex.split(text) or [""]
    except ValueError:  # no closing quotation
        raise ParameterError(f"--method {text!r}: close the quotation mark") from None
    kind = methods.find(name)
    entry: Values = {"method": name}
    for pair in pairs:
        if pair.startswith("draft="):
            entry.setdefault("draft", []).append(pair.removeprefix("draft="))
            continue
        for key, value in parameters_of(kind, [pair]).items():
            entry.setdefault(key, []).append(value)
    return entry


@contextmanager
def _cluster(address: str | None) -> Iterator[Executor | None]:
    """A Dask cluster's executor; None without an address."""
    if address is None:
        yield None
        return
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise SpecvizError(f"Dask is not installed: {install('cluster')}") from None
    logging.disable()  # the run itself reports in one line what matters
    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError, TimeoutError) as error:
        raise SpecvizError(f"no Dask scheduler answers at {address}: {error}") from None
    with client:
        yield client.get_executor()
