"""``specviz replay``: a paper's table, measured here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from specviz.cli.arguments import Values, hint
from specviz.cli.options import Device, Dtype, Invariant, Kernels, OneThread, argument, option
from specviz.cli.terminal import progress, screen
from specviz.errors import ParameterError, loading


def replay(
    table: Annotated[
        str | None, argument("A published table, as unispec/table3; without one they are listed.")
    ] = None,
    every: Annotated[bool, option("Every table of the five papers.", "--all")] = False,
    model: Annotated[
        str | None, option("Instead of the recipe's bundled one: a name, a folder, hf:<id>.", "--model", "-m")
    ] = None,
    draft: Annotated[
        list[str] | None,
        option("Its drafter; where a recipe has several, as ROLE=NAME. May be repeated.", "--draft", "-d"),
    ] = None,
    suite: Annotated[
        list[str] | None,
        option(
            "A suite or a file instead of the bundled prompts; of one task as TASK=SUITE. May be repeated.",
            "--suite",
            "--prompts",
        ),
    ] = None,
    quick: Annotated[bool, option("Few prompts, short answers: minutes.", "--quick")] = False,
    number: Annotated[
        int | None, option("How many prompts; default: the recipe's.", "--number", min=1)
    ] = None,
    max_new_tokens: Annotated[
        int | None, option("Default: the recipe's.", "--max-new-tokens", "-n", min=1)
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = "float32",
    kernels: Kernels = None,
    invariant: Invariant = None,
    threads: OneThread = 1,
    template: Annotated[
        str | None, option("Around the source of a stream: its name, or a text with {source}.")
    ] = None,
    chat: Annotated[
        list[str] | None,
        option("A variable of the model's chat template, as enable_thinking=false. May be repeated."),
    ] = None,
    baselines: Annotated[str, option("Parameters of the baselines: authors or ours.")] = "authors",
    fit: Annotated[str, option("Which fit of a calibration decides g*: paper or ours.")] = "paper",
    score: Annotated[
        str | None, option("UniSpec's score of a node: product (the path's), least, or edge (its own).")
    ] = None,
    out: Annotated[
        Path | None,
        option("Folder; what is finished there is kept. Default: specviz-replays/.", "--out", "-o"),
    ] = None,
) -> None:
    """Measure here what a paper's table printed, and show both, cell by cell."""
    from specviz.replays import running, terminal

    if table is None and not every:
        terminal.show_recipes(screen())
        return
    if table is not None and every:
        raise ParameterError("name a table, or say --all, not both")
    given: Values = {
        "model": model, "draft": _drafters(draft), "suite": _suites(suite), "quick": quick, "number": number,
        "max_new_tokens": max_new_tokens, "device": device, "dtype": dtype, "threads": threads,
        "template": template, "chat": _variables(chat), "baselines": baselines, "fit": fit, "score": score,
    }  # fmt: skip
    with loading():
        if table is not None:
            running.find(table)
            with progress() as tick:
                result: Any = running.replay(table, out=out, tick=tick, **given)
        else:
            with progress() as tick:
                result = running.replay_all(
                    out or Path("specviz-replays"),
                    tick=lambda name: lambda done, of, what: tick(done, of, f"{name}: {what}"),
                    **given,
                )
    terminal.show(result, screen())
    if table is None:
        from specviz.replays import page

        print(f"page: {page.write(result, force=True)}")
    else:
        print(f"page: {hint('bench', 'report', result.path, '--html')}")


def _suites(given: list[str] | None) -> str | dict[str, str] | None:
    """``--suite``: one for all tasks, or TASK=SUITE for each; NAME=FILE is a local copy of a known suite."""
    from specviz.suites import list_suites

    if not given:
        return None
    names = set(list_suites()["name"])
    pairs = [each.partition("=") for each in given]
    if len(pairs) == 1 and (not pairs[0][1] or pairs[0][0].partition(":")[0] in names):
        if given[0].isdecimal():
            raise ParameterError(f"--suite takes a suite or a file; how many prompts: --number {given[0]}")
        return given[0]
    if not all(task and name for task, _, name in pairs):
        raise ParameterError("several suites are told apart by their tasks, as --suite GSM8K=gsm8k")
    return {task: name for task, _, name in pairs}


def _variables(given: list[str] | None) -> dict[str, bool | str]:
    """``--chat``: NAME=VALUE; true and false are meant as such."""
    pairs = [each.partition("=") for each in given or ()]
    if not all(name and value for name, _, value in pairs):
        raise ParameterError("a variable of the chat template is given as NAME=VALUE")
    words = {"true": True, "false": False}
    return {name: words.get(value.lower(), value) for name, _, value in pairs}


def _drafters(given: list[str] | None) -> str | dict[str, str] | None:
    """``--draft``: a name for the only drafter, or ROLE=NAME for each."""
    if not given:
        return None
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    pairs = [each.partition("=") for each in given]
    if not all(role and name for role, _, name in pairs):
        raise ParameterError("several drafters are told apart by their roles, as --draft small=NAME")
    return {role: name for role, _, name in pairs}
