"""Assign a user's prompts to a table's tasks, by name or by kind of work and language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from specviz.errors import ParameterError, PromptError, plural
from specviz.measure.pairs import TASKS
from specviz.measure.report import Entry, Values
from specviz.models.protocols import Model
from specviz.replays.recipes import Recipe
from specviz.suites import Suite, suite
from specviz.suites.catalogue import CATALOGUE

PLAIN = ""  # key of a suite given for no task in particular
Given = str | Path | Suite | Mapping[str, str | Path | Suite] | None


def read_suites(given: Given) -> dict[str, Suite]:
    """Read the suite of each task, or under `PLAIN` one for all; empty: use the bundled ones.

    Raises
    ------
    ParameterError, PromptError
        If there is no such suite, or a file cannot be read.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        given = {PLAIN: given}
    return {str(task): suite(str(each)) if isinstance(each, str | Path) else each
            for task, each in given.items()}  # fmt: skip


def tasks_of(recipe: Recipe) -> dict[str, Values]:
    """The table's tasks (or languages, or data sets), and which prompts each stands for."""
    return dict(next(iter(recipe.parts.values()), {}))


def check_suites(recipe: Recipe, suites: Mapping[str, Suite]) -> None:
    """Reject suites that no task can use, before anything is decoded.

    Raises
    ------
    ParameterError
        For an unknown task, a suite named for a task but without a prompt for it, or suites without a prompt
        for any task.
    """
    tasks = tasks_of(recipe)
    for task in suites:
        if task != PLAIN and task not in tasks:
            has = f"it has {', '.join(tasks)}" if tasks else "give one suite for all of it"
            raise ParameterError(f"this table has no task {task!r} to measure; {has}")
    got = {task: own_prompts(suites, task, part) for task, part in tasks.items()}
    for task, (prompts, why) in got.items():
        if task in suites and not prompts:
            raise ParameterError(f"--suite {task}: {why}")
        if recipe.source != "streams" or not suites:
            continue
        if chats := [each["id"] for each in map(single, prompts) if not text_of(each, suites, task)]:
            raise ParameterError(
                f"{task}: prompt {chats[0]} has no source text that could arrive in updates: give it a field "
                "source, or name a suite without kinds for the task"
            )
    if suites and tasks and not any(prompts for prompts, _ in got.values()):
        task, (_, why) = next(iter(got.items()))
        unsaid = all(not each.kinds for each in suites.values())
        hint = (
            f". Its prompts do not say; name a suite for the task: --suite '{task}=SUITE'" if unsaid else ""
        )
        raise ParameterError(why + hint)


def wanted(part: Values) -> dict[str, str]:
    """The kind and the languages of the prompts that belong to a part of a recipe."""
    if "task" in part:
        return dict(zip(("kind", "from", "language"), TASKS[part["task"]]))
    return {key: str(part[key]) for key in ("kind", "from", "language") if key in part}


def own_prompts(suites: Mapping[str, Suite], task: str, part: Values) -> tuple[list[Entry], str]:
    """A user's prompts for a task, or the reason why there are none.

    A suite named for the task may omit its prompts' kind and language; any other suite must state them.
    Prompts of another kind or language are never used.
    """
    named = task in suites
    given = suites.get(task) or suites.get(PLAIN)
    if given is None:
        return [], f"no suite is named for it: --suite '{task}=SUITE'"
    labels = wanted(part)

    def fits(prompt: Values) -> bool:
        return all(
            prompt.get(key) == value or (prompt.get(key) is None and (named or key == "from"))
            for key, value in labels.items()
        )

    prompts = [prompt | labels for prompt in given if fits(prompt)]
    if prompts:
        return prompts, ""
    has = [f"{word} {', '.join(map(str, values))}"
           for word, values in (("kind", given.kinds), ("language", given.languages)) if values]  # fmt: skip
    words = ", ".join(f"{key} {value}" for key, value in labels.items())
    return [], f"{given.name} has no prompt of {words} ({'; '.join(has) or 'its prompts say no kind'})"


def filled_by(given: Suite, tasks: Sequence[str]) -> list[str]:
    """Those of several tasks, all of one kind and language, that a suite for the whole table fills.

    A data set of the catalogue fills one task: that of its name, else the first. A user's own file is shared
    out among all.
    """
    name = given.name.partition(":")[0]
    if name not in CATALOGUE:
        return list(tasks)
    same = [task for task in tasks if bare(name).startswith(bare(task))]
    return (same or list(tasks))[:1]


def bare(name: str) -> str:
    """A name's letters and digits in lower case: ``cnndailymail`` for CNN/DailyMail."""
    return "".join(filter(str.isalnum, name.lower()))


def fitting(suites: Mapping[str, Suite], model: Model, tokens: int) -> tuple[dict[str, Suite], list[str]]:
    """Keep the prompts that a model has room to answer; describe in words those left out.

    A canvas takes all of its tokens at once; any other answer may end when the context is full.

    Raises
    ------
    PromptError
        If no prompt of a suite fits, or a prompt cannot be encoded; the message names it.
    """
    kept, left_out = {}, []
    needed = tokens if model.kind == "diffusion" else 1
    for task, given in suites.items():
        some, long = [], {}
        for prompt in given:
            try:
                length = len(model.encode(single(prompt)["prompt"]))
            except PromptError as error:
                raise PromptError(f"{given.name}, prompt {prompt['id']}: {error}") from None
            if model.left(length) >= needed:
                some.append(prompt)
            else:
                long[prompt["id"]] = length
        if long:
            first, room = next(iter(long)), plural(needed, "new token")
            why = (
                f"{given.name}: {plural(len(long), 'prompt')} of {len(given)} left out, for {model.name} has "
                f"no room for {room} after them (prompt {first} has {long[first]} tokens)"
            )
            if not some:
                lower = ", or a lower max_new_tokens" * (needed > 1)
                raise PromptError(f"{why}: give shorter prompts{lower}")
            left_out.append(why)
        kept[task] = Suite(some, given.name, given.licence)
    return kept, left_out


def text_of(entry: Entry, suites: Mapping[str, Suite], task: str) -> str:
    """The text that arrives in updates: a prompt's source, or else the prompt of a suite without kinds.

    Empty for a chat, and in a suite with kinds: there a prompt may be an instruction around its source.
    """
    plain = not (suites.get(task) or suites[PLAIN]).kinds
    text = entry.get("source", entry["prompt"] if plain else None)
    return text if isinstance(text, str) else ""


def single(entry: Entry) -> Entry:
    """Reduce a conversation to its first turn, without the references, which answer a later turn."""
    if "turns" not in entry:
        return entry
    turns = entry["turns"]
    left_out = ("turns", "reference") if len(turns) > 1 else ("turns",)
    return {k: v for k, v in entry.items() if k not in left_out} | {"prompt": turns[0]}
