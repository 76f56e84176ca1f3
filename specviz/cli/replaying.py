"""``specviz replay``: measure a paper's table on this machine."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from specviz.cli.arguments import Values, hint
from specviz.cli.options import Device, Invariant, Kernels, OneThread, argument, option
from specviz.cli.terminal import progress, screen
from specviz.errors import ParameterError, loading


def replay(
    table: Annotated[
        str | None, argument("A published table, such as unispec/table3; without one, list them.")
    ] = None,
    every: Annotated[bool, option("Every table of the five papers.", "--all")] = False,
    model: Annotated[
        str | None,
        option(
            "Model to use: a name, a folder, hf:<id>. Default: the recipe's real model (SmolLM2 or "
            "Bergamot), if it has one and it is downloaded, else its bundled one.",
            "--model",
            "-m",
        ),
    ] = None,
    draft: Annotated[
        list[str] | None,
        option("Its drafter; if a recipe has several, as ROLE=NAME. May be repeated.", "--draft", "-d"),
    ] = None,
    suite: Annotated[
        list[str] | None,
        option(
            "A suite or a file instead of the bundled prompts; for one task as TASK=SUITE. May be repeated.",
            "--suite",
            "--prompts",
        ),
    ] = None,
    quick: Annotated[bool, option("Use few prompts and short answers: takes minutes.", "--quick")] = False,
    number: Annotated[
        int | None,
        option(
            "How many prompts for each task, or in all for UniSpec's tables; default: the recipe's.",
            "--number",
            min=1,
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None, option("Default: the recipe's.", "--max-new-tokens", "-n", min=1)
    ] = None,
    device: Device = "cpu",
    dtype: Annotated[
        str | None, option("Number format; default: float32, or the setup's.", "--dtype")
    ] = None,
    kernels: Kernels = None,
    invariant: Invariant = None,
    threads: OneThread = 1,
    workers: Annotated[
        int | None,
        option(
            "With --all: processes that measure side by side. Default: 1; for --quick on a CPU one "
            "per core, at most 2.",
            min=1,
        ),
    ] = None,
    template: Annotated[
        str | None,
        option("Prompt template for a stream's source: its name, or a text that contains {source}."),
    ] = None,
    chat: Annotated[
        list[str] | None,
        option("A variable of the model's chat template, such as enable_thinking=false. May be repeated."),
    ] = None,
    baselines: Annotated[str, option("Parameters of the baselines: authors or ours.")] = "authors",
    fit: Annotated[str, option("Which fit of a calibration decides g*: paper or ours.")] = "paper",
    score: Annotated[
        str | None,
        option("UniSpec's node score: product, least or edge; or comet=FILE for scores made elsewhere."),
    ] = None,
    setup: Annotated[
        str | None, option("paper: use its published checkpoints, data, wording, precision and sizes.")
    ] = None,
    part: Annotated[str | None, option("Which of the paper's models, if a table has several.")] = None,
    dry_run: Annotated[
        bool, option("With --setup: print downloads, licences, memory, time; fetch nothing.", "--dry-run")
    ] = False,
    kit: Annotated[
        Path | None, option("With --setup: write a folder for someone with the hardware to run it.")
    ] = None,
    add: Annotated[
        Path | None, option("The folder of a replay that came back: check it and compare it with ours.")
    ] = None,
    out: Annotated[
        Path | None,
        option("Output folder; finished parts are kept. Default: specviz-replays/.", "--out", "-o"),
    ] = None,
) -> None:
    """Measure a paper's table on this machine. Compare it with the printed one, cell by cell."""
    from specviz.replays import running, terminal

    if workers is not None and not every:
        raise ParameterError("--workers needs --all: one table is measured in one process")
    settings = {
        "--model": model, "--draft": draft, "--suite": suite, "--quick": quick or None, "--kernels": kernels,
        "--invariant": invariant, "--threads": None if threads == 1 else threads, "--template": template,
        "--chat": chat, "--baselines": None if baselines == "authors" else baselines,
        "--fit": None if fit == "paper" else fit, "--score": score,
    }  # fmt: skip
    if add is not None:
        others = {
            "TABLE": table, "--all": every or None, "--setup": setup, "--part": part, "--number": number,
            "--max-new-tokens": max_new_tokens, "--dtype": dtype, "--dry-run": dry_run or None, "--kit": kit,
            "--device": None if device == "cpu" else device,
        }  # fmt: skip
        _refuse(settings | others, "--add reads a finished replay")
        _add(add, out)
        return
    if table is None and not every and setup is None:
        others = {
            "--part": part, "--number": number, "--max-new-tokens": max_new_tokens, "--dtype": dtype,
            "--device": None if device == "cpu" else device, "--dry-run": dry_run or None, "--kit": kit,
            "--out": out,
        }  # fmt: skip
        _refuse(settings | others, "name a table, or use --all")
        terminal.show_recipes(screen())
        return
    if table is not None and every:
        raise ParameterError("name a table or use --all, not both")
    if dry_run and kit is not None:
        raise ParameterError("--dry-run writes nothing, but --kit writes a folder: drop one of them")
    if dry_run or kit is not None:
        _refuse(settings | {"--out": out}, "--dry-run and --kit are of the paper's setup")
        if kit is not None:
            others = {
                "--number": number, "--max-new-tokens": max_new_tokens, "--dtype": dtype,
                "--device": None if device == "cpu" else device,
            }  # fmt: skip
            _refuse(others, "a kit has the paper's sizes, and its README says how to choose others")
        with loading():
            _plan(table, setup, part, device, dtype, number, max_new_tokens, kit)
        return
    if table is None:
        for option, value in (("--setup", setup), ("--part", part)):
            if value is not None:
                raise ParameterError(f"{option} needs one table: name it")
        if (score or "").startswith("comet="):
            raise ParameterError("--score comet=FILE needs one table: name it")
    score, scores = _scores(score)
    given: Values = {
        "model": model, "draft": _drafters(draft), "suite": _suites(suite), "quick": quick, "number": number,
        "max_new_tokens": max_new_tokens, "device": device, "dtype": dtype, "kernels": kernels,
        "invariant": invariant, "threads": threads,
        "template": template, "chat": _variables(chat), "baselines": baselines, "fit": fit, "score": score,
    }  # fmt: skip
    with loading():
        if table is not None:
            recipe = running.find(table)
            if scores is not None:
                _check_scores(scores, table, recipe.source)
            with progress() as tick:
                result: Any = running.replay(table, setup=setup, part=part, out=out, tick=tick, **given)
            if scores is not None:
                from specviz.replays.comet import scored

                result = scored(result, scores)
        else:
            from specviz.measure.work import cores

            with progress() as tick:
                result = running.replay_all(
                    out or Path("specviz-replays"),
                    workers=workers
                    or (min(2, max(1, cores() // threads)) if quick and device == "cpu" else 1),
                    tick=lambda name: lambda done, of, what: tick(done, of, f"{name}: {what}"),
                    **given,
                )
    terminal.show(result, screen())
    if table is None and find_spec("plotly") is not None:
        from specviz.replays import page

        print(f"page: {page.write(result, force=True)}")
    else:
        print(f"page: {hint('bench', 'report', result.path, '--html')}")


def _refuse(options: Values, why: str) -> None:
    """Refuse options that would have no effect."""
    if given := [name for name, value in options.items() if value is not None]:
        raise ParameterError(f"{why}: drop {', '.join(given)}")


def _scores(score: str | None) -> tuple[str | None, Path | None]:
    """``--score``: the name of UniSpec's node score, or a file of COMET scores."""
    name, is_file, path = (score or "").partition("=")
    if not is_file:
        return score, None
    if name != "comet" or not path:
        raise ParameterError(f"--score takes product, least, edge or comet=FILE, got {score!r:.60}")
    return None, Path(path)


def _check_scores(file: Path, table: str, source: str) -> None:
    """Refuse COMET scores of a table without streams, or of no file, before anything is decoded."""
    if source != "streams":
        raise ParameterError(f"--score comet=FILE scores re-translation, and {table} has none: drop it")
    if not file.is_file():
        raise ParameterError(f"there is no {file}: data/comet/score.py writes it")


def _plan(
    table: str | None, setup: str | None, part: str | None, device: str, dtype: str | None,
    number: int | None, max_new_tokens: int | None, kit: Path | None,
) -> None:  # fmt: skip
    """``--dry-run`` and ``--kit``: print or pack what a setup needs."""
    from specviz.measure.report import print_lines
    from specviz.replays import dry_run, kits, running, setups

    if table is None or setup is None:
        raise ParameterError("--dry-run and --kit need a table's setup: add the table and --setup paper")
    recipe = running.find(table)
    names = [part] if part is not None else [each.name for each in setups.Setups().of(table)]
    chosen = [setups.choose(table, recipe, setup, name) for name in names]
    plans = [dry_run.plan(each, device, dtype, number, max_new_tokens) for each in chosen]
    if kit is not None:
        print(f"kit: {kits.write(kit, plans)}")
    else:
        print_lines(screen(), *dry_run.overview(plans))


def _add(result: Path, out: Path | None) -> None:
    """``--add``: check a result that came back, keep it with ours and show it."""
    from specviz.measure.report import print_lines
    from specviz.replays import kits

    placed = kits.add(result, out or Path("specviz-replays"))
    print_lines(screen(), *placed.lines())


def _suites(given: list[str] | None) -> str | dict[str, str] | None:
    """``--suite``: one for all tasks, or TASK=SUITE for each; NAME=FILE is a local copy of a known suite."""
    from specviz.suites import list_suites

    if not given:
        return None
    if len(given) == 1 and os.path.exists(given[0]):  # its name may hold a =
        return given[0]
    names = set(list_suites()["name"])
    pairs = [each.partition("=") for each in given]
    if len(pairs) == 1 and (not pairs[0][1] or pairs[0][0].partition(":")[0] in names):
        if given[0].isdecimal():
            raise ParameterError(f"--suite takes a suite or a file; for a count, use --number {given[0]}")
        return given[0]
    return _named(given, "several suites need their tasks, such as --suite GSM8K=gsm8k")


def _variables(given: list[str] | None) -> dict[str, bool | str]:
    """``--chat``: NAME=VALUE; true and false become booleans."""
    words = {"true": True, "false": False}
    values = _named(given or [], "write a variable of the chat template as NAME=VALUE")
    return {name: words.get(value.lower(), value) for name, value in values.items()}


def _drafters(given: list[str] | None) -> str | dict[str, str] | None:
    """``--draft``: a name for the only drafter, or ROLE=NAME for each."""
    if not given:
        return None
    if len(given) == 1 and ("=" not in given[0] or os.path.exists(given[0])):
        return given[0]
    return _named(given, "several drafters need their roles, such as --draft small=NAME")


def _named(given: list[str], otherwise: str) -> dict[str, str]:
    """Values of NAME=VALUE by name; `otherwise` is the error for one without either, and none may repeat."""
    out: dict[str, str] = {}
    for name, _, value in (each.partition("=") for each in given):
        if not name or not value:
            raise ParameterError(otherwise)
        if name in out:
            raise ParameterError(f"{name} is given twice: {name}={out[name]:.40} and {name}={value:.40}")
        out[name] = value
    return out
