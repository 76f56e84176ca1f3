"""`replay`: measure a paper's table here, following its recipe."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias

from specviz import calibration
from specviz.arguments import check_threads, checked
from specviz.errors import ParameterError, SpecvizError, loading, near, one_line
from specviz.measure.report import Settings, Tick, Values
from specviz.paths import expanded
from specviz.replays import setups
from specviz.replays.published import published
from specviz.replays.recipes import CURVES, FIGURES, RECIPES, SETTINGS, Best, Recipe, Row
from specviz.replays.replays import ALL, FILE, Replay, Replays, compared, opened
from specviz.replays.tasks import PLAIN, Given, check_suites, fitting, read_suites, tasks_of
from specviz.rules.store import SCORES

if TYPE_CHECKING:
    from multiprocessing import SimpleQueue

    from specviz.models import Model
    from specviz.replays.sources.shared import RunOptions


LOOK = 1.0  # seconds between checks on the progress of other processes
SIDE_BY_SIDE = ("processes",)  # key in the replays' shared memory: how many processes measure at once
Memory: TypeAlias = dict[tuple, Any]  # models and measurements that several replays share
READINGS = {"paper": "paper", "ours": "monotone"}  # of a calibration: names in `specviz.measure.fits`
CALIBRATIONS = ("calibrated", "fitted", "samples")  # sources that draw a calibration


def find(table: str) -> Recipe:
    """Find the recipe of a table.

    Raises
    ------
    ParameterError
        If there is no such table, or none of it can be measured; the message suggests similar names.
    """
    if table in RECIPES or table in CURVES:
        return RECIPES.get(table) or CURVES[table]
    if table in FIGURES:
        raise ParameterError(f"{table} has no replay of its own: {FIGURES[table]}")
    if table in SETTINGS:
        raise ParameterError(f"{table} cannot be replayed: {SETTINGS[table]}")
    published(table)  # raises if no paper has it
    raise ParameterError(f"{table} has no recipe")


@checked
@loading()
def replay(
    table: str,
    *,
    model: str | Path | Model | None = None,
    draft: str | Mapping[str, str] | None = None,
    suite: Given = None,
    device: str = "cpu",
    dtype: str | None = None,
    quick: bool = False,
    number: int | None = None,
    max_new_tokens: int | None = None,
    kernels: str | None = None,
    invariant: bool | None = None,
    threads: int = 1,
    template: str | None = None,
    chat: Values | None = None,
    baselines: str = "authors",
    fit: str = "paper",
    score: str | None = None,
    setup: str | None = None,
    part: str | None = None,
    out: str | Path | None = None,
    tick: Tick | None = None,
    memory: Memory | None = None,
    shared: Path | None = None,
) -> Replay:
    """Measure a paper's printed table here and compare the two.

    Parameters
    ----------
    table : str
        A name for `specviz.published`, such as ``"unispec/table1"``.
    model : str or Model, optional
        A name, a folder, ``hf:<id>``, or a loaded model. Default: the recipe's real model, if it has one and
        it is downloaded, else its bundled one. Naming the real model also selects its drafters and prompts.
    draft : str or mapping, optional
        Its drafter; a mapping from roles if the recipe has several (``small``, ``aligned`` ...).
    suite : str, Suite or mapping, optional
        Prompts used instead of the bundled ones, as for `specviz.suite`. A mapping names one for each of the
        table's tasks (or languages, or data sets), in the paper's words. A single suite fills only the tasks
        whose kind and language its prompts state; the others stay empty, with the reason. Of several tasks of
        one kind and language, a data set fills the one of its name, or else the first.
    template : str, optional
        Text around the source of a stream, as for `specviz.stream`; other tables reject it.
    chat : mapping, optional
        Variables of the model's chat template, such as ``{"enable_thinking": False}``; a model without a
        template is rejected.
    baselines : {"authors", "ours"}
        Whose parameters to use for the baseline methods; a table without such baselines rejects ``ours``.
    fit : {"paper", "ours"}
        Which reading of a calibration decides the draft size g*: UniSpec's own (its Table 14), or a monotone
        one (`specviz.measure.fits`). Both are printed. A table without a calibrated size rejects ``ours``.
    score : {"product", "least", "edge"}, optional
        UniSpec's score of a node, in tables with UniSpec.
    setup : {"paper"}, optional
        Use the paper's published checkpoints, data, wording, precision and sizes (`specviz.replays.setups`)
        instead of the bundled models and texts. Other arguments override it.
    part : str, optional
        Which of the paper's models, if a table has several.
    device, dtype : str
        Default: ``cpu``, and ``float32`` or the setup's.
    kernels, invariant : str, bool, optional
        The model's, as for `specviz.load`. Drafters follow the environment variables.
    quick : bool
        Use few prompts and short answers: takes minutes, with wide intervals.
    number, max_new_tokens : int, optional
        Number of prompts and maximum tokens per prompt; default: the recipe's. For UniSpec `number` counts
        all prompts, which are divided among a table's tasks; for the other papers it counts those of each
        task. A figure that draws a calibration rejects both, because a calibration has its own.
    threads : int
        Threads on a CPU.
    out : path, optional
        The folder; default ``specviz-replays/PAPER-TABLE``. Finished work in it is not measured again.
    tick : callable
        Called with (done, of, what); default: a progress bar; where none can be shown, a line a
        minute on standard error.
    memory, shared : dict, path, optional
        Shared by several replays: loaded models and measurements, and the folder of calibrations.

    Returns
    -------
    Replay

    Raises
    ------
    ParameterError, ModelError, PromptError, SpecvizError
        With one line that says what to do. The folder of a replay with other settings is rejected and left
        unchanged.

    Examples
    --------
    >>> replayed = specviz.replay("unispec/table3", quick=True)  # doctest: +SKIP
    >>> replayed.frame()[["method", "language", "metric", "value", "measured", "ratio"]]  # doctest: +SKIP
    """
    from specviz.arguments import check_int
    from specviz.measure import fits
    from specviz.replays.sources import RunOptions

    recipe = find(table)
    recipe = recipe_for(recipe, model, suite)
    recipe = with_options(table, recipe, baselines, score)
    path = Path("specviz-replays") / table.replace("/", "-") if out is None else expanded(out, ParameterError)
    if setup is not None:
        chosen_part = setups.choose(table, with_options(table, find(table), baselines, score), setup, part)
        if model is None:
            setups.check_here(chosen_part.part)
        recipe = chosen_part.recipe
        if not str(model).startswith("gguf:"):  # a GGUF file has its own
            dtype = dtype or chosen_part.dtype
        suite = chosen_part.suites() if suite is None else suite
        template = template or chosen_part.part.template or None
    elif part is not None:
        raise ParameterError("part needs a setup: also give setup='paper'")
    if recipe.source in CALIBRATIONS and (number, max_new_tokens) != (None, None):
        raise ParameterError(
            f"{table} draws a calibration, which has prompts and tokens of its own: drop number and "
            "max_new_tokens"
        )
    dtype = dtype or "float32"
    numbers = dict(recipe.quick if quick else recipe.whole)
    numbers |= {k: v for k, v in (("prompts", number), ("max_new_tokens", max_new_tokens)) if v is not None}
    numbers["prompts"] = check_int("number", numbers["prompts"], 1)
    numbers["max_new_tokens"] = check_int("max_new_tokens", numbers["max_new_tokens"], 1)
    threads = check_threads(check_int("threads", threads, 1))
    if fit not in READINGS:
        raise ParameterError(f"fit must be 'paper' or 'ours', got {fit!r:.40}")
    if fit != "paper" and not calibrates(recipe):
        raise ParameterError(f"fit decides a calibrated draft size, and {table} has none: drop it")
    drafts = roles(recipe, model, draft)
    in_memory = None if model is None or isinstance(model, str | Path) else model
    if in_memory is not None:
        from specviz.models import load

        load(in_memory, device, dtype, kernels=kernels, invariant=invariant)  # raises if not the model's
    chosen = read_suites(suite)
    check_suites(recipe, chosen)
    if template is not None and recipe.source != "streams":
        raise ParameterError(f"template is for sources that arrive in updates, and {table} has none")
    settings = {
        "table": table, "model": name_of(model, recipe.model), "drafts": drafts,
        "suite": {task: each.digest for task, each in chosen.items()} or recipe.suite, "device": device,
        "dtype": dtype, "threads": threads, "template": template, "chat": dict(chat or {}),
        "baselines": baselines, "fit": fit, "score": score, "quick": bool(quick), "setup": setup,
        "part": None if setup is None else chosen_part.part.name,
        "kernels": os.environ.get("SPECVIZ_KERNELS") if kernels is None else kernels,
        "invariant": os.environ.get("SPECVIZ_INVARIANT") if invariant is None else str(int(invariant)),
        "weights": None if in_memory is None else weights_of(in_memory),
        **numbers,
    }  # fmt: skip
    try:
        json.dumps(settings)
    except (TypeError, ValueError) as error:  # after hours of decoding, they could not be saved
        raise ParameterError(f"chat must hold texts, numbers and booleans: {one_line(error)}") from None
    finished = opened_same(path, settings)
    if finished is not None:
        refuse_older(path, [settings["model"]] * (in_memory is None) + list(drafts.values()))
        return finished
    if calibrates(recipe) and not any(calibration.calibrations()):
        fits.needed()  # before a model is loaded, which may take long; a stored calibration holds its fits
    options = RunOptions(
        model, drafts, chosen, numbers["prompts"], numbers["max_new_tokens"], threads, numbers, path,
        shared or path / "calibrations", {} if memory is None else memory, template, dict(chat or {}),
        () if chosen else (memory or {}).get(("peers", table), ()), quick, READINGS[fit],
        kernels=kernels, invariant=invariant,
    )  # fmt: skip
    return measure(recipe, settings, options, tick)


def recipe_for(recipe: Recipe, model: str | Path | Model | None, suite: Given) -> Recipe:
    """The recipe that a replay follows: the real model's if it is downloaded, and no other model is given."""
    if model is not None and not named(model, recipe.real.get("model", "")):
        return recipe
    real = on_real(recipe)
    if suite is None or "parts" not in recipe.real:
        return real
    # The user's texts fit the table's own parts, but a translator's language pair is its own.
    if model is None:
        return recipe
    if recipe.source == "streams":
        return real
    return replace(real, suite=recipe.suite, parts=recipe.parts, absent=recipe.absent)


def on_real(recipe: Recipe) -> Recipe:
    """The recipe with its real language model if that is downloaded, else with the bundled one."""
    from specviz.models import available

    real = dict(recipe.real)
    if not real or real.pop("download", real["model"]) not in available():
        return recipe
    return replace(recipe, **real)


def peers_of(quick: bool, given: Values) -> dict[tuple, tuple[Recipe, ...]]:
    """For each table, the recipes that decode the same prompts of its suite, so that one run serves all."""
    groups: dict[tuple, dict[str, Recipe]] = {}
    for table, recipe in RECIPES.items():
        if recipe.source != "run":
            continue
        used = recipe_for(recipe, given.get("model"), None)
        own = usable(used, {"baselines": given.get("baselines"), "score": given.get("score")})
        used = with_options(table, used, own.get("baselines") or "authors", own.get("score"))
        numbers = tuple((used.quick if quick else used.whole).items())
        if given.get("model") is not None:  # peers' drafters belong to the bundled model
            used = replace(used, rows=tuple(row for row in used.rows if not row.role))
        groups.setdefault((used.model, used.suite, numbers), {})[table] = used
    return {
        ("peers", table): tuple(each for name, each in group.items() if name != table)
        for group in groups.values()
        for table in group
    }


def with_options(table: str, recipe: Recipe, baselines: str, score: str | None) -> Recipe:
    """Apply the chosen baseline parameters and UniSpec score to a recipe.

    Raises
    ------
    ParameterError
        For an unknown choice, for a score if no row is UniSpec's, or for our parameters if no row has any.
    """
    if baselines not in ("authors", "ours"):
        raise ParameterError(f"baselines must be 'authors' or 'ours', got {baselines!r:.40}")
    rows = recipe.rows
    if baselines == "ours":
        if not any(row.ours is not None for row in rows):
            raise ParameterError(f"{table} has no baseline with parameters of ours: drop baselines")
        rows = tuple(row if row.ours is None else replace(row, values=row.ours) for row in rows)
    if score is not None:
        if score not in SCORES:
            raise ParameterError(f"score must be one of {', '.join(SCORES)}, got {score!r:.40}")
        if not any(row.method == "unispec" for row in rows):
            own = "is of the paper's own score alone"
            why = own if table.startswith("unispec/") and not rows else "has no row of it"
            raise ParameterError(f"score applies to UniSpec, and {table} {why}: drop score")
        rows = tuple(with_score(row, score) if row.method == "unispec" else row for row in rows)
    return replace(recipe, rows=rows)


def with_score(row: Row, score: str) -> Row:
    """A row of UniSpec with another node score, for which its draft size is calibrated."""
    values = {
        name: replace(each, values={**each.values, "score": score}) if isinstance(each, Best) else each
        for name, each in row.values.items()
    }
    return replace(row, values={**values, "score": score})


def calibrates(recipe: Recipe) -> bool:
    """Whether a recipe needs a calibrated draft size."""
    return recipe.source in (*CALIBRATIONS, "batches") or any(row.calibrated for row in recipe.rows)


def usable(recipe: Recipe, options: Values) -> Settings:
    """Those of the options for all tables that apply to a recipe; one table refuses the others."""
    unused = set[str]()
    if not any(row.method == "unispec" for row in recipe.rows):
        unused.add("score")
    if options.get("baselines") == "ours" and not any(row.ours is not None for row in recipe.rows):
        unused.add("baselines")
    if options.get("fit") == "ours" and not calibrates(recipe):
        unused.add("fit")
    if recipe.source in CALIBRATIONS:
        unused |= {"number", "max_new_tokens"}
    if recipe.source != "streams":
        unused.add("template")
    return {name: value for name, value in options.items() if name not in unused}


@contextmanager
def chatting(model: Any, variables: Values) -> Iterator[None]:
    """Set variables of a model's chat template within the block.

    Raises
    ------
    ParameterError
        If the model has no chat template, or its template does not read one of them.
    """
    if not variables:
        yield
        return
    text = getattr(model, "text", None)
    template = getattr(getattr(text, "tokenizer", None), "chat_template", None)
    if text is None or not isinstance(template, str):
        raise ParameterError(f"{model.name} has no chat template that could take {next(iter(variables))}")
    for name in variables:
        if not re.search(rf"\b{re.escape(name)}\b", template):
            raise ParameterError(f"the chat template of {model.name} does not read {name!r:.40}")
    before, text.chat = text.chat, dict(variables)
    try:
        yield
    finally:
        text.chat = before


def measure(recipe: Recipe, settings: Settings, options: RunOptions, tick: Tick | None) -> Replay:
    """Run a recipe and compare the figures with the printed ones; load the model first if necessary."""
    from specviz.measure.progress import bar
    from specviz.measure.timing import threads
    from specviz.replays import sources

    begin = perf_counter()
    shown = bar() if tick is None else nullcontext(tick)
    model = loaded(settings, options)
    with threads(options.threads), chatting(model, options.chat), shown as progress:
        suites, left_out = fitting(options.suites, model, options.max_new_tokens)
        check_suites(recipe, suites)
        options = replace(options, model=model, suites=suites, tick=progress)
        made = sources.find(recipe.source)(recipe, options)
        made.notes += left_out
    if options.kept:
        made.earlier += sum(seconds for _, seconds in options.kept)
        made.date_from(min(date for date, _ in options.kept))
    replayed = compared(settings["table"], recipe, made, settings)
    replayed = replace(replayed, seconds=made.earlier + perf_counter() - begin, path=options.path)
    if SIDE_BY_SIDE in options.memory:
        place = replayed.environment | {"processes": options.memory[SIDE_BY_SIDE]}
        replayed = replace(replayed, environment=place)
    replayed.save()
    return replayed


def loaded(settings: Values, options: RunOptions) -> Any:
    """The model, loaded only once for all replays that share a memory."""
    if options.model is not None and not isinstance(options.model, str | Path):
        return options.model
    key = ("model", settings["model"], settings["device"], settings["dtype"])
    if key not in options.memory:
        from specviz.models import load

        options.memory[key] = load(
            settings["model"], settings["device"], settings["dtype"], kernels=options.kernels,
            invariant=options.invariant,
        )  # fmt: skip
    return options.memory[key]


def roles(
    recipe: Recipe, model: str | Path | Model | None, draft: str | Mapping[str, str] | None
) -> dict[str, str]:
    """Map each role to a drafter's name; empty if the user's own model was given no drafter for it.

    Raises
    ------
    ParameterError
        For a role or a drafter that the recipe does not have, or one name for several roles.
    """
    from specviz.models.loading import address

    needed = dict(recipe.drafts)
    if draft is None:
        given: dict[str, str] = {}
    elif isinstance(draft, Mapping):
        given = {str(role): address(name) for role, name in draft.items()}
    elif not needed:
        raise ParameterError("this table has no drafter: drop --draft")
    elif len(needed) > 1:
        words = ", ".join(f"{role}=..." for role in needed)
        raise ParameterError(f"this table needs several drafters: name each role, such as --draft {words}")
    else:
        given = dict.fromkeys(needed, address(draft))
    for role in given:
        if role not in needed:
            raise ParameterError(f"this table has no drafter {role!r}; it has {', '.join(needed) or 'none'}")
    own = model is not None and not named(model, recipe.model)
    return {role: given.get(role, "" if own else name) for role, name in needed.items()}


def name_of(model: str | Path | Model | None, default: str) -> str:
    """A model's name."""
    if model is None:
        return default
    if not isinstance(model, str | Path) and not hasattr(model, "name"):
        raise ParameterError(f"model must be a name, a path or a loaded model, got {model!r:.80}")
    from specviz.models.loading import address

    return address(model) if isinstance(model, str | Path) else str(model.name)


def named(model: str | Path | Model, name: str) -> bool:
    """Whether a model has this name; a loaded one's may go on with how its weights were obtained."""
    return name_of(model, "").partition(" (")[0] == name


def weights_of(model: Model) -> str | None:
    """Digest of a loaded model's weights, as a model of the same name may have been trained since."""
    from specviz.loop.machine import identity

    weights: str | None = identity(model).get("weights")
    return weights


# Settings that older replays did not save.
LATER = ("quick", "setup", "part", "kernels", "invariant", "weights")


class OtherSettings(SpecvizError):
    """A folder holds a replay with other settings or older weights."""


def opened_same(path: Path, settings: Values) -> Replay | None:
    """Open a folder's replay if it has the same settings; None if the folder holds none.

    Raises
    ------
    SpecvizError
        If its settings differ, or the folder holds something else.
    """
    refuse_others(path, ALL)
    if not (path / FILE).exists():
        return None
    finished = opened(path)
    now = json.loads(json.dumps(settings))
    wrong = [
        f"its {key} is {finished.settings.get(key)}, here {now.get(key)}"
        for key in {**finished.settings, **now}
        # An older replay may lack the settings in `LATER`.
        if finished.settings.get(key, now.get(key) if key in LATER else None) != now.get(key)
    ]
    if wrong:
        raise OtherSettings(
            f"{path} holds a replay with different settings: {'; '.join(wrong)}. Give the same ones, or "
            f"another "
            "folder"
        )
    return finished


def refuse_older(path: Path, models: Sequence[str]) -> None:
    """Reject a finished replay if files of its models have changed since.

    Raises
    ------
    SpecvizError
    """
    made = (path / FILE).stat().st_mtime
    for place in map(Path, filter(None, models)):
        files = [each for each in place.iterdir() if each.is_file()] if place.is_dir() else [place]
        if any(each.stat().st_mtime > made for each in files if each.exists()):
            raise OtherSettings(
                f"{place} was written after {path} was measured: give another folder, or delete this one to "
                "measure again"
            )


def refuse_others(path: Path, other: str) -> None:
    """Reject a folder that holds a run or the other kind of replay, and a name that no folder can have."""
    try:
        with suppress(OSError):  # it may not exist yet
            path.lstat()
    except ValueError as error:  # `exists` would hide this, and hours of work could not be saved
        raise SpecvizError(f"{str(path)!r} cannot be a folder: {one_line(error)}") from None
    if (path / "run.json").exists() or (path / other).exists():
        raise SpecvizError(f"{path} holds another kind of result: choose another folder")


@loading()
def replay_all(
    out: str | Path,
    *,
    draft: str | Mapping[str, str] | None = None,
    suite: Given = None,
    score: str | None = None,
    workers: int = 1,
    tick: Callable[[str], Tick] | None = None,
    **options: Any,
) -> Replays:
    """Replay every published table and curve into a folder; those that cannot be replayed are listed with the
    reason.

    Parameters
    ----------
    out : path
        Gets a folder for each table, and ``replays.json``. Finished work in it is not measured again.
    workers : int
        Processes that measure side by side on a CPU, each the tables of one paper after another. They share
        the machine's caches and memory, which makes times less exact; each table's environment says so.
    tick : callable
        Given a table's name, returns the function that is called with its progress. With several workers it
        is given their number instead, and the progress is the number of finished tables.

    Other parameters and errors are those of `replay`. An error of one table becomes its reason, and the
    others continue; only a folder of other settings is refused, before anything is measured.
    """
    path = expanded(out, ParameterError)
    refuse_others(path, FILE)
    every, shared = Replays(path, left=SETTINGS | FIGURES), Memory()
    chosen = read_suites(suite)
    workers = _checked_workers(workers, options)
    if isinstance(draft, Mapping):
        drafted = {role for each in (*RECIPES, *CURVES) for role in find(each).drafts}
        if unknown := sorted(set(draft) - drafted):
            raise ParameterError(
                f"no table has a drafter {unknown[0]!r:.40}; the roles are {', '.join(sorted(drafted))}"
            )
    if options.get("chat") and options.get("model") is None:
        raise ParameterError("chat is for one model, and the tables use several: name one with model")
    if draft is None and options.get("setup") is None:
        shared |= peers_of(bool(options.get("quick")), {**options, "score": score})
    jobs, every_task = [], set[str]()
    for table in [*RECIPES, *CURVES]:
        recipe = find(table)
        if options.get("setup") is None:
            recipe = recipe_for(recipe, options.get("model"), chosen or None)
        own = draft  # of several drafters, only those that this table has
        if isinstance(draft, Mapping):
            own = {role: name for role, name in draft.items() if role in recipe.drafts} or None
        elif not recipe.drafts:
            own = None
        tasks = tasks_of(recipe)  # of several suites, only those that fit a task
        every_task |= tasks.keys()
        suites = {task: each for task, each in chosen.items() if task == PLAIN or task in tasks}
        if chosen and not suites:
            every.left[table] = "no suite is named for one of its tasks"
            continue
        given = {
            "draft": own, "suite": suites or None, "out": path / table.replace("/", "-"),
            "shared": path / "calibrations", **usable(recipe, {**options, "score": score}),
        }  # fmt: skip
        jobs.append((table, given))
    if unknown := sorted(chosen.keys() - every_task - {PLAIN}):
        raise ParameterError(f"no table has a task {unknown[0]!r:.40}" + near(unknown[0], sorted(every_task)))
    order = {table: place for place, (table, _) in enumerate(jobs)}
    # Finished tables first: one with other settings is refused before hours of measuring, not among them.
    finished = {table for table, given in jobs if (given["out"] / FILE).exists()}
    ready = list(_in_turn([job for job in jobs if job[0] in finished], shared, None))
    jobs = [job for job in jobs if job[0] not in finished]
    outcomes = _in_turn(jobs, shared, tick)
    if workers > 1 and jobs:
        outcomes = _side_by_side(jobs, shared, workers, tick)
    for table, outcome in chain(ready, outcomes):
        if isinstance(outcome, Replay):
            every.tables.append(outcome)
            every.tables.sort(key=lambda each: order[each.table])
        else:
            every.left[table] = outcome
        every.save()
    return every


Queue: TypeAlias = "SimpleQueue[tuple[str, int, int]]"  # a table, its finished steps, and all its steps
Job: TypeAlias = tuple[str, Settings]  # a table, and the keyword arguments of its replay


def _checked_workers(workers: int, options: Values) -> int:
    """Number of worker processes; raise if they would share cores or a GPU, or lack a loaded model."""
    from specviz.arguments import check_int
    from specviz.measure.work import cores

    threads = check_int("threads", options.get("threads", 1), 1)
    if check_int("workers", workers, 1) == 1:
        return 1
    if workers * threads > cores():
        raise ParameterError(
            f"{workers} workers of {threads} thread(s) on {cores()} core(s) would not be timed correctly: "
            "use fewer"
        )
    if str(options.get("device", "cpu")) != "cpu":
        raise ParameterError("several workers would share the GPU and not be timed correctly: use workers=1")
    if options.get("model") is not None and not isinstance(options["model"], str | Path):
        raise ParameterError("a loaded model stays in its process: pass its name, or workers=1")
    return min(workers, len({table.partition("/")[0] for table in (*RECIPES, *CURVES)}))


def _in_turn(
    jobs: Sequence[Job], memory: Memory, tick: Callable[[str], Tick] | None
) -> Iterator[tuple[str, Replay | str]]:
    """Replay tables one after another; yield each with its replay, or with the reason for having none."""
    for table, given in jobs:
        outcome: Replay | str
        try:
            outcome = replay(table, memory=memory, tick=tick(table) if tick else None, **given)
        except OtherSettings:
            raise
        except SpecvizError as error:
            outcome = str(error)
        except (MemoryError, RuntimeError) as error:
            from specviz.measure.calibrate import out_of_memory

            if not out_of_memory(error):
                raise
            outcome = "out of memory: give fewer or shorter prompts, or a smaller model"
        yield table, outcome


class _Reports:
    """Reports a worker's progress on its table, at most once per second."""

    queue: Queue | None = None
    last = -LOOK

    @classmethod
    def attend(cls, queue: Queue) -> None:
        """Initialise a worker process."""
        from specviz.measure import work

        work.attend()
        cls.queue = queue

    @classmethod
    def of(cls, table: str) -> Tick:
        def tick(done: int, of: int, _: str) -> None:
            if cls.queue is not None and perf_counter() - cls.last >= LOOK:
                cls.last = perf_counter()
                cls.queue.put((table, done, of))

        return tick


def _paper(jobs: Sequence[Job], memory: Memory) -> list[tuple[str, str]]:
    """Replay a paper's tables in a worker process; return each with its error, or an empty string."""
    outcomes = _in_turn(jobs, memory, _Reports.of)
    return [(table, "" if isinstance(outcome, Replay) else outcome) for table, outcome in outcomes]


def _side_by_side(
    jobs: Sequence[Job], memory: Memory, workers: int, tick: Callable[[str], Tick] | None
) -> Iterator[tuple[str, Replay | str]]:
    """Like `_in_turn`, in parallel; a paper's tables share one process, its models and measurements."""
    from specviz.measure.running import processes

    papers: dict[str, list[Job]] = {}
    for table, given in jobs:
        papers.setdefault(table.partition("/")[0], []).append((table, given))
    folders = {table: given["out"] for table, given in jobs}
    memory = memory | {SIDE_BY_SIDE: workers}
    order = sorted(papers, key=lambda paper: -len(papers[paper]))  # most tables first
    finished: dict[str, Replay | str] = {}
    reports = get_context("spawn").SimpleQueue()
    latest: dict[str, str] = {}  # by paper
    with processes(workers, _Reports.attend, (reports,)) as pool:
        waiting = {pool.submit(_paper, papers[paper], memory) for paper in order}
        while waiting:
            ended, waiting = wait(waiting, LOOK, FIRST_COMPLETED)
            for future in ended:
                try:
                    outcomes = future.result()
                except BrokenExecutor as error:
                    raise SpecvizError(
                        "a worker died (killed, or out of memory): give the same command again, with fewer "
                        "workers"
                    ) from error
                for table, why in outcomes:
                    try:
                        finished[table] = why or opened(folders[table])
                    except SpecvizError as error:
                        finished[table] = str(error)
                    yield table, finished[table]
            while not reports.empty():
                table, done, of = reports.get()
                latest[table.partition("/")[0]] = f"{table} {done} of {of}"
            if tick is not None:
                there = {table for table in folders if table in finished or (folders[table] / FILE).exists()}
                now = [words for words in latest.values() if words.partition(" ")[0] not in there]
                tick(f"{workers} processes")(len(there), len(jobs), ", ".join(["tables", *now]))
