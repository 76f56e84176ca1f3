"""Measure methods on prompts: with the runner, which saves, pairs and resumes rows, and in batches."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import numpy as np

from specviz.errors import ModelError, SpecvizError, plural
from specviz.files import write_bytes
from specviz.loop.machine import identity
from specviz.measure.claims import BootstrapEstimate, ratio, resampled
from specviz.measure.plan import Suite as Prompts
from specviz.measure.report import Entry, Estimate, Settings, Values
from specviz.measure.rows import Results, fast, key_of, matched_rows, paired, per_prompt, speed, sums
from specviz.measure.timing import BASELINE
from specviz.methods.autoregressive import Autoregressive
from specviz.models.protocols import Model
from specviz.replays.cells import ABILITY, AGAIN, ALL_TASKS
from specviz.replays.recipes import Recipe, Row
from specviz.replays.sources.shared import (
    UNTESTED,
    Measurement,
    RunOptions,
    Where,
    again,
    exact,
    middle,
    placed,
    totals,
)
from specviz.replays.tasks import PLAIN, own_prompts, single, tasks_of
from specviz.suites import spread

Entries = tuple[list[Entry], list[Entry]]  # to measure, and to warm up
ALONE = "run"  # the folder of the only group
LONGEST = 32768  # Table 11's; for a model with less context, lengths are scaled down


@dataclass
class Group:
    """Rows that one run decodes because they need the same plan."""

    name: str  # of the run's folder
    rows: list[Row]
    contenders: list[tuple[str, Settings, str | None]]  # of each row: method, parameters, drafter
    plan: Settings


NO_MORE = "its prompts are those of a smaller context: nothing more fits before them"
NO_CONTEXT = "nothing can be put before its prompts: there is no other question with a reference that fits"


def run(recipe: Recipe, options: RunOptions) -> Measurement:
    """Measure methods on prompts with `specviz.run`, one run for each plan that the rows need.

    Tables with `RunOptions.peers` share their runs: each also decodes for the others, and keeps no folder.
    """
    from specviz.measure.plan import Plan
    from specviz.measure.running import run as run_plan

    made, begin = Measurement.begin(options), datetime.now(UTC).isoformat(timespec="milliseconds")
    entries, rest = divided(recipe, options, made)
    made.notes.append(
        f"memories and clocks were warmed up on {plural(len(entries[1]), 'other prompt')}"
        if entries[1]
        else "no prompt was left to warm up on: memories begin empty"
    )
    options = replace(options, practice=tuple(rest or entries[1]))
    shared = options.shared.parent / "runs"
    groups = grouped(recipe, options, entries, made)
    done, of = 0, sum(Plan.of(**group.plan).rows for group in groups)
    places: list[Settings] = []
    for group in groups:

        def progress(now: int, _: int, what: str, before: int = done) -> None:
            options.tick(before + now, of, what)

        folder = options.path / group.name
        if options.peers:
            folder = shared / Plan.of(**group.plan).digest
        results = run_plan(group.plan, out=folder, tick=progress)
        refuse_older(options, group, results)
        done += len(results.wanted)
        if options.peers:
            keep_traces(options, group, results, made)
        else:
            made.runs.append(group.name)
            before = (row for row in results.records() if str(row.get("started") or begin) < begin)
            made.earlier += sum(row.get("wall_seconds") or 0.0 for row in before)
        place = next(iter(results.environments.values()), {})
        places += results.environments.values()
        made.on(**{k: v for k, v in placed(place).items() if k != "weights"})
        made.notes += [f"a row failed: {error}" for error in results.failures()["error"].unique()]
        add_figures(recipe, options, group, results, made)
    made.environment = joined(places) or made.environment
    if recipe.options.get("passes"):
        equation_2(recipe, options, made)
    best = [(row.method, row.calibrated.values) for row in recipe.rows if row.calibrated is not None]
    made.notes += [options.calibrated_words(*each) for i, each in enumerate(best) if each not in best[:i]]
    totals(made, recipe)
    return made


def refuse_older(options: RunOptions, group: Group, results: Results) -> None:
    """Reject rows that were decoded before the weights of the model or of a drafter changed.

    Raises
    ------
    SpecvizError
    """
    model = group.plan["models"][0]
    now = {model.name: identity(model)}
    if model is options.model:
        roles = {row.role for row in group.rows if row.role}
        now |= {options.drafts[role]: identity(options.drafter(role)) for role in roles}
    for place in results.environments.values():
        for name, then in ((model.name, place["model"]), *(place.get("drafts") or {}).items()):
            if name in now and then.get("weights") != now[name].get("weights"):
                raise SpecvizError(
                    f"{name} has different weights than when {results.path} was started: delete that folder"
                )


def joined(places: Sequence[Settings]) -> Settings:
    """One environment of several: texts that differ, such as number formats, are listed."""
    one = dict(places[0]) if places else {}
    for name, value in one.items():
        if isinstance(value, str):
            one[name] = "; ".join(dict.fromkeys(str(place[name]) for place in places if name in place))
    return one


def grouped(recipe: Recipe, options: RunOptions, entries: Entries, made: Measurement) -> list[Group]:
    """The runs that a recipe needs; rows that cannot be run are noted as absent."""
    groups: dict[tuple, list[Row]] = {}
    met: set[str] = set()
    for row in recipe.rows:
        if row.role and not options.drafts[row.role]:
            lacking = f"no drafter for {options.model.name}: name one with --draft {row.role}=NAME"
            made.absent.append((row.where, lacking))
        else:
            groups.setdefault(plan_of(row), []).append(row)
    others: dict[tuple, list[tuple[Row, str | None]]] = {}
    for peer in options.peers:
        for row in peer.rows:
            if not row.role or row.role in options.drafts or not options.drafts:
                others.setdefault(plan_of(row), []).append((row, row.role and peer.drafts[row.role]))
    plans = (
        planned(options, rows, others.get(shared, []), dict(shared), entries, met, recipe, made)
        for shared, rows in groups.items()
    )
    return [plan for plan in plans if plan is not None]


def keep_traces(options: RunOptions, group: Group, results: Results, made: Measurement) -> None:
    """Copy traces of a shared run: the best, median and worst prompt of the fastest row."""
    from specviz.replays.kept_traces import marked

    chosen = None if made.traces else marked(results, group.contenders)
    if chosen is None:
        return
    cell, rows = chosen
    made.by(cell["method"], cell["parameters"], cell["draft"])
    made.on(task="")  # over all tasks
    for name, (row, figure) in rows.items():
        file = options.path / "traces" / f"{name}.parquet"
        key = key_of(row["cell"], row["round"], row["prompt"])
        write_bytes(file, (results.path / "traces" / f"{key}.parquet").read_bytes(), force=True)
        made.keep_trace(name, made.source.contender, figure, file)


def plan_of(row: Row) -> tuple[tuple[str, Any], ...]:
    """The part of the plan that rows of one run share; temperature 0 is the same as none."""
    return tuple(sorted((k, v) for k, v in row.plan.items() if (k, v) != ("temperature", 0.0)))


def add_figures(
    recipe: Recipe, options: RunOptions, group: Group, results: Results, made: Measurement
) -> None:
    """Add each row's figures for each combination of the parts, and the run's checks."""
    records, prompts = results.records(), results.prompts("prompts")
    of_cell = {c["cell"]: [r for r in records if r["cell"] == c["cell"]] for c in results.cells}
    control = next(c for c in results.cells if c["method"].endswith(f"_{AGAIN}"))
    pairs = paired(of_cell[control["cell"]], of_cell[control["against"]])
    speeds = [np.array(per_prompt(side, speed)) for side in zip(*pairs)] if pairs else [np.zeros(0)] * 2
    made.control(BASELINE, speeds[0], speeds[1], "" if group.name == ALONE else group.name)
    greedy = not group.plan.get("temperature")
    base_rows = [row for row in of_cell[control["against"]] if row["error"] is None]
    made.by(BASELINE)
    check_ability(recipe, base_rows, prompts, made)
    for row, contender in zip(group.rows, group.contenders):
        cell = next(c for c in results.cells if (c["method"], c["parameters"], c["draft"]) == contender)
        weights = next((e["drafts"].get(contender[2], {}).get("weights", "")
                        for e in results.environments.values() if e.get("drafts")), "")  # fmt: skip
        shared = {k: v for k, v in group.plan.items() if k == "temperature" and v}
        made.by(contender[0], {**contender[1], **shared, **row_plan(row)}, contender[2])
        made.on(drafter_weights=weights or "")
        for where, part in combined(recipe.parts):
            mine, base = (
                [r for r in of_cell[number] if fits(r, part)] for number in (cell["cell"], cell["against"])
            )
            if not mine:
                continue
            task = task_of(where)
            name = options.suite_of(task, recipe.suite)
            made.on(task=task, language=str(part.get("language", "")), suite=name,
                    texts=len({r["prompt"] for r in mine}))  # fmt: skip
            dates = sorted({row["started"][:10] for row in (*mine, *base) if row.get("started")})
            made.on(date=" to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else made.source.date)
            for theirs, ours in recipe.metrics.items():
                made.add({**row.where, **where}, theirs, FIGURES[ours](results, mine, base))
            both = matched_rows(mine, base)
            if cell["cell"] != cell["against"]:
                phases = [[pair[side].get("phases") or {} for pair in both] for side in (0, 1)]
                made.cost(phases[0], phases[1], options.model, partial(options.drafter, row.role or ""))
            if greedy and cell["cell"] != cell["against"]:
                made.same_texts(task, [a["ids"] for a, _ in both], [b["ids"] for _, b in both])


def check_ability(recipe: Recipe, rows: Rows, prompts: Sequence[Entry], made: Measurement) -> None:
    """Test whether the model can do each task; if each has too few references, test all tasks at once."""
    parts = {task_of(where): part for where, part in combined(recipe.parts)}
    groups = {task: [row for row in rows if fits(row, part)] for task, part in parts.items()}
    groups[ALL_TASKS] = [row for row in rows if any(fits(row, part) for part in parts.values())]
    right = {task: [prompts[row["prompt"]].get("reference") for row in some] for task, some in groups.items()}
    for task, some in groups.items():
        tested = {check.task for check in made.checks if check.kind == ABILITY}
        if task not in tested and (task != ALL_TASKS or not tested):
            kinds = [next(each for each, part in parts.items() if fits(row, part)) for row in some]
            kinds = [f"{kind} {row.get('kind')}" for kind, row in zip(kinds, some)]
            made.ability(task, [row["text"][-1] for row in some], right[task], kinds=kinds)
    tested = {check.task for check in made.checks if check.kind == ABILITY}
    lacking = [task for task in parts if task not in tested] if tested else ["these tasks"]
    if ALL_TASKS in tested:
        lacking = []
    kept = tuple(f"{UNTESTED.format(task)} (" for task in lacking)
    front = UNTESTED.partition("{")[0]
    made.notes = [note for note in made.notes if note.startswith(kept) or not note.startswith(front)]


def task_of(where: Where) -> str:
    """The paper's name for a part of the prompts."""
    return ", ".join(where.values())


def row_plan(row: Row) -> Settings:
    """The settings of a row's plan that do not concern the model."""
    return {key: value for key, value in row.plan.items() if key == "context"}


def planned(
    options: RunOptions, rows: list[Row], others: Sequence[tuple[Row, str | None]], shared: Settings,
    entries: Entries, met: set[str], recipe: Recipe, made: Measurement,
) -> Group | None:  # fmt: skip
    """Plan the run of rows that share some settings, with other tables' rows; None if it cannot be run."""
    model, (chosen, warm) = options.model, entries
    name = "-".join(str(value) for _, value in sorted(shared.items())) or ALONE
    dtype, context = shared.pop("dtype", None), shared.pop("context", None)
    if dtype is not None:
        try:
            model = renamed(in_dtype(model, dtype), f"{options.model.name} ({dtype})")
        except ModelError as error:
            made.absent += [(row.where, str(error)) for row in rows]
            return None
    if context is not None:
        room = model.max_length - 2 * options.max_new_tokens - 128  # some of it for a tree
        length = round(context * min(1.0, room / LONGEST))
        if not getattr(getattr(model, "tokenizer", None), "chat_template", None):
            why = f"{model.name} has no chat template, so nothing can be put before a prompt"
            made.absent += [(row.where, why) for row in rows]
            return None
        longer = lengthened(chosen, warm, length, options.model)
        chosen = [each for each in longer if is_new(each, met)]
        for where, part in combined(recipe.parts):
            those = [each for each in longer if fits(each, part)]
            if those and not any(fits(each, part) for each in chosen):
                why = NO_MORE if any(map(has_context, those)) else NO_CONTEXT
                made.absent += [({**row.where, **where}, why) for row in rows]
        if not chosen:
            return None
        tokens = [len(model.encode(each["prompt"])) for each in chosen if "prompt" in each]
        mean = float(np.mean(tokens)) if tokens else float("nan")
        made.notes.append(f"context {context}: prompts of {mean:.0f} tokens on average, {length} at most")
    contenders = [
        (row.method, options.sized(row), options.drafts[row.role] if row.role else None) for row in rows
    ]
    methods: list[Settings] = []
    more = [(row.method, options.sized(row), draft) for row, draft in others]
    if more:  # sorted, so that the order does not depend on the table
        more = sorted([*contenders, *more], key=lambda each: str((each[0], sorted(each[1].items()), each[2])))
    for method, values, draft in more or contenders:
        each = {"method": method, **values} | ({"draft": draft} if draft else {})
        if each not in methods:  # two of the paper's rows may be one contender here
            methods.append(each)
    methods.append({"method": again(Autoregressive)})
    plan = {
        "models": [model], "methods": methods, "suites": {"prompts": Prompts("prompts", chosen, warm)},
        "number": len(chosen), "warm_up": len(warm), "max_new_tokens": options.max_new_tokens,
        "threads": options.threads, "traces": True, **shared,
    }  # fmt: skip
    return Group(name, rows, contenders, plan)


def renamed(model: Model, name: str) -> Any:
    """The same model under another name, so that a run's rows distinguish two number formats."""
    other = copy.copy(model)
    other.name = name
    return other


def prompts_of(recipe: Recipe, options: RunOptions, made: Measurement) -> Entries:
    """The measured prompts and the warm-up ones, spread evenly over kinds and languages."""
    return divided(recipe, options, made)[0]


def divided(recipe: Recipe, options: RunOptions, made: Measurement) -> tuple[Entries, list[Entry]]:
    """Like `prompts_of`, with the rest of the suite."""
    from specviz.suites import suite

    column, tasks = next(iter(recipe.parts), ""), tasks_of(recipe)
    source = options.suites.get(PLAIN) or suite(recipe.suite)
    if options.suites and tasks:
        wanted = []
        for task, part in tasks.items():
            some, why = own_prompts(options.suites, task, part)
            wanted += [{**prompt, "id": f"{task} {prompt['id']}"} for prompt in some]
            if not some:
                made.absent.append(({column: task}, why))
    else:
        every = [list(tasks_of(each).values()) for each in (recipe, *options.peers)]
        parts = [part for some in every for part in some] if all(every) else []
        wanted = [dict(p) for p in source if not parts or any(fits(p, part) for part in parts)]
    turns = in_turns(wanted)
    for task, part in tasks.items():
        if any(fits(each, part) for each in turns) and not any(
            fits(each, part) for each in turns[: options.number]
        ):
            few = plural(options.number, "prompt")
            made.absent.append(
                ({column: task}, f"with {few} in all, none is left for this task: raise --number")
            )
    upto = options.number + max(3, options.number // 2)
    return (turns[: options.number], turns[options.number : upto]), turns[upto:]


def in_turns(prompts: Sequence[Values]) -> list[Entry]:
    """Alternate kinds of work and, within each kind, languages; each kind starts with another language."""
    kinds: dict[str | None, dict[str | None, list[Entry]]] = {}
    for prompt in prompts:
        kinds.setdefault(prompt.get("kind"), {}).setdefault(prompt.get("language"), []).append(dict(prompt))
    lines = []
    for number, languages in enumerate(kinds.values()):
        names = list(languages)
        names = names[number % len(names) :] + names[: number % len(names)]
        most = max(map(len, languages.values()))
        lines.append([languages[n][i] for i in range(most) for n in names if i < len(languages[n])])
    most = max(map(len, lines), default=0)
    return [line[i] for i in range(most) for line in lines if i < len(line)]


def lengthened(chosen: list[Entry], warm: list[Entry], length: int, model: Model) -> list[Entry]:
    """Put earlier questions and answers before the prompts, as many as fit into `length` tokens.

    Of a conversation of several turns only the first is kept.
    """
    chosen = list(map(single, chosen))
    others = [each for each in chosen + warm if question(each)]
    longer = [with_context(each, others, length, model) if question(each) else each for each in chosen]
    return [{**new, "id": old.get("id")} for new, old in zip(longer, chosen)]


def is_new(entry: Entry, met: set[str]) -> bool:
    """Whether a prompt has a context that no smaller context size gave it; adds the prompt to `met`."""
    content = json.dumps([entry.get("id"), entry.get("prompt")], default=str)
    new = has_context(entry) and content not in met
    met.add(content)
    return new


def has_context(entry: Entry) -> bool:
    """Whether something stands before a prompt's last turn."""
    turns = entry.get("prompt")
    return isinstance(turns, list) and len(turns) > 1


def question(entry: Entry) -> str:
    """The question of a single-turn prompt; empty for any other prompt."""
    text = entry["turns"][0] if len(entry.get("turns", ())) == 1 else entry.get("prompt", "")
    return text if isinstance(text, str) else ""


def with_context(entry: Entry, others: list[Entry], length: int, model: Model) -> Entry:
    """The prompt as the last turn of a conversation of at most `length` tokens."""
    turns: list[dict[str, str]] = []
    last = {"role": "user", "content": question(entry)}
    for other in spread(others, len(others)):
        reference = other.get("reference")
        if other is entry or not reference:
            continue
        answer = reference if isinstance(reference, str) else reference[0]
        pair = [{"role": "user", "content": question(other)}, {"role": "assistant", "content": answer}]
        if len(model.encode([*turns, *pair, last])) > length:
            break
        turns += pair
    about = {name: entry[name] for name in ("kind", "language", "reference") if name in entry}
    return about | {"prompt": [*turns, last]}


def in_dtype(model: Any, dtype: str) -> Model:
    """The model with its weights in another number format: a copy, unless it already has that format.

    The copy has the requested kernels, the chat variables and the invariance of the model.

    Raises
    ------
    ModelError
        If there is no memory for it, the kernels or invariance are not available in that format, or it is a
        llama.cpp model, whose file has one format.
    """
    import torch

    from specviz.models import Model as Causal
    from specviz.models.devices import to_format

    kind = getattr(torch, dtype)
    if model.dtype == kind:
        return model
    if not hasattr(model, "net"):
        raise ModelError(f"{model.name} has one number format, its file's")
    try:
        net = copy.deepcopy(model.net)
        to_format(net, kind)
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        raise ModelError(f"no memory for a copy of {model.name} in {dtype}: use a smaller model") from None
    copied = Causal(net, model.tokenizer, model.name, kernels=model.requested_kernels)
    copied.text.chat = model.text.chat
    if model.invariant:
        copied.make_invariant()
    return copied


def combined(parts: Mapping[str, Mapping[str, Where]]) -> list[tuple[dict[str, str], Settings]]:
    """Every combination of the columns' values, with the conditions on its prompts."""
    out: list[tuple[dict[str, str], Settings]] = [({}, {})]
    for column, values in parts.items():
        out = [({**w, column: v}, {**p, **more}) for w, p in out for v, more in values.items()]
    return out


def fits(row: Values, part: Where) -> bool:
    """Whether a row belongs to a part."""
    return all(row.get(key) == value for key, value in part.items())


# ---------------------------------------------------------------- figures

Rows = Sequence[Settings]  # of one cell, or of its reference


def per_cycle(results: Results, mine: Rows, base: Rows) -> BootstrapEstimate:
    """τ: tokens per cycle, all cycles pooled."""
    good = [row for row in mine if row["error"] is None]
    return resampled(ratio, sums(good, "tokens"), sums(good, "steps"))


def of_requests(results: Results, mine: Rows, base: Rows) -> BootstrapEstimate:
    """Tokens/s including the prefill, averaged over the prompts."""
    speeds = np.array(per_prompt([row for row in mine if row["error"] is None and fast(row)], speed))
    return resampled(ratio, speeds, np.ones(len(speeds)))


def of_decoding(results: Results, mine: Rows, base: Rows) -> BootstrapEstimate:
    """Tokens of all prompts divided by the seconds of their decoding."""
    good = [row for row in mine if row["error"] is None and fast(row)]
    return resampled(ratio, sums(good, "tokens"), sums(good, "decode_seconds"))


def over_reference(results: Results, mine: Rows, base: Rows) -> Estimate:
    """Spec-Bench's speedup: the ratio of the two mean tokens/s over the paired prompts."""
    pairs = paired(mine, base)
    if any(a is b for a, b in pairs):
        return exact()
    speeds = (np.array(per_prompt(side, speed)) for side in zip(*pairs)) if pairs else np.zeros((2, 0))
    return resampled(ratio, *speeds)


def scored(name: str) -> Callable[[Results, Rows, Rows], BootstrapEstimate]:
    """Make the figure of mean ROUGE of the last answers against the prompts' references."""

    def mean(results: Results, mine: Rows, base: Rows) -> BootstrapEstimate:
        from specviz.metrics.rouge import Rouge

        rouge, entries = Rouge(), results.prompts("prompts")
        values = [
            rouge(entries[row["prompt"]]["reference"], row["text"][-1])[name]
            for row in mine
            if row["error"] is None and entries[row["prompt"]].get("reference")
        ]
        return resampled(ratio, np.array(values), np.ones(len(values)))

    return mean


# Our metrics that a recipe may name.
FIGURES: dict[str, Callable[[Results, Rows, Rows], Estimate]] = {
    "tau": per_cycle, "request_speedup": over_reference, "request_throughput": of_requests,
    "decode_throughput": of_decoding, **{name: scored(name) for name in ("rouge1", "rouge2", "rougeL")},
}  # fmt: skip


def equation_2(recipe: Recipe, options: RunOptions, made: Measurement) -> None:
    """Add Table 15's s(g) and the throughput that equation 2 predicts from it."""
    from specviz.measure.benches import passes

    sizes = {row.where["draft_size"]: options.sized(row)["draft_size"] for row in recipe.rows}
    times = {each["g"]: each["median"] for each in
             passes.measure(options.model, [g + 1 for g in sizes.values()], 128, 15)}  # fmt: skip
    taus = {f.where["draft_size"]: f.value for f in made.figures if f.metric == "tau"}
    for theirs, g in sizes.items():
        seconds = times[g + 1] / 1e3
        made.by("unispec", {"draft_size": g})
        made.add({"draft_size": theirs}, "forward_time", seconds)
        if theirs in taus:
            made.add({"draft_size": theirs}, "expected_throughput", taus[theirs] / seconds)


# ---------------------------------------------------------------- batches


def batches(recipe: Recipe, options: RunOptions) -> Measurement:
    """Measure UniSpec's speedup over autoregressive decoding at each of several batch sizes."""
    from specviz.measure.benches import batches as batch_bench

    made = Measurement.begin(options)
    (chosen, warm), rest = divided(recipe, options, made)
    options = replace(options, practice=tuple(rest or warm))
    values = {"draft_size": options.best("unispec")}
    sizes = filled(recipe.options["sizes"], len(chosen), made, "batch_size")
    report = batch_bench.bench(
        options.model, [], chosen, only=(BASELINE, "unispec"), sizes=sizes, rounds=options.rounds,
        max_new_tokens=options.max_new_tokens, values={"unispec": values}, tick=options.tick,
    )  # fmt: skip
    made.notes += [*report.notes[:1], options.calibrated_words("unispec")]
    made.by("unispec", values)
    made.on(suite=options.suite_of("", recipe.suite), texts=len(chosen))
    speeds = {(row["method"], row["batch"]): row["speed"] for row in report.rows}
    for size in sizes:
        ours, base = speeds["unispec", size], speeds["autoregressive", size]
        made.add({"batch_size": size}, "speedup", middle(ours) / middle(base))
    return made


def filled(sizes: Sequence[int], number: int, made: Measurement, column: str) -> list[int]:
    """The batch sizes that `number` prompts can fill; the others are noted as absent."""
    for size in sizes:
        if size > number:
            made.absent.append(({column: size}, f"it needs {size} prompts, and there are {number}"))
    return [size for size in sizes if size <= number]
