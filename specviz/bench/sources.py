"""Who measures what a recipe asks for: each source turns a recipe into figures in the paper's own keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from specviz.bench.recipes import Best, Recipe, Row
from specviz.bench.report import Estimate
from specviz.bench.rows import figures
from specviz.bench.runner import calibrated
from specviz.errors import ParameterError
from specviz.suites import Suite

Where = Mapping[str, Any]
Tick = Callable[[int, int, str], None]

CALIBRATION = {"sizes": (4, 8, 16, 32, 64), "prompts": 3, "warm_up": 5, "max_new_tokens": 48, "rounds": 1}
NOT_GREEDY = ("autoregressive", "stepwise")


@dataclass
class How:
    """How a recipe is run.

    Parameters
    ----------
    model : Model
        Loaded.
    drafts : dict
        Role: name of the drafter.
    suite : Suite or None
        Prompts in place of the recipe's.
    device, dtype : str
    prompts, max_new_tokens, threads : int
    options : dict
        The recipe's numbers besides: ``rounds``.
    path : Path
        The replay's folder.
    shared : Path
        Where calibrations are kept that several replays use.
    memory : dict
        Measurements of this process that several tables are made of.
    tick : callable
        Told (done, of, what).
    """

    model: Any
    drafts: dict[str, str]
    suite: Suite | None
    device: str
    dtype: str
    prompts: int
    max_new_tokens: int
    threads: int
    options: dict[str, Any]
    path: Path
    shared: Path
    memory: dict[Any, Any]
    tick: Tick

    def best(self, method: str) -> tuple[int, str]:
        """The calibrated draft size of a method here, and where it comes from."""
        found = calibrated(self.model, method)
        if found is not None:
            return found, "as calibrated before"
        from specviz.bench.calibrate import calibrate

        key = ("g*", self.model.name, method, str(self.model.dtype))
        if key not in self.memory:
            made = calibrate(self.model, method, folder=self.shared, tick=self.tick, **CALIBRATION)
            self.memory[key] = made.g
        return self.memory[key], "calibrated in haste"

    def sized(self, row: Row) -> dict[str, Any]:
        """A row's parameters, the calibrated draft size put in."""
        values = dict(row.values)
        for name, value in values.items():
            if isinstance(value, Best):
                values[name] = max(1, round(self.best(row.method)[0] * value.times))
        return values


@dataclass
class Found:
    """What a source found.

    Parameters
    ----------
    rows : list of dict
        ``where`` (columns of the published table and their values), ``metric``, ``value``, ``low``, ``high``.
    absent : list of (where, reason)
    environment : dict
        Device, processor, threads, versions ...
    data : str
        The prompts in words.
    metrics : dict
        Metric: what ours is, where it says more than the recipe.
    notes : list of str
    runs : list of str
        Folders of runs, below the replay's.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    absent: list[tuple[Where, str]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)
    data: str = ""
    notes: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)

    def add(self, where: Where, metric: str, value: Any, low: Any = None, high: Any = None) -> None:
        """A figure; an `Estimate` brings its interval."""
        if isinstance(value, Estimate):
            value, low, high = value.median, value.low, value.high
        if value is None or value != value:
            return
        ends = [None if end is None or end != end else float(end) for end in (low, high)]
        row = {"where": dict(where), "metric": metric, "value": float(value), "low": ends[0], "high": ends[1]}
        self.rows.append(row)


def totals(found: Found, recipe: Recipe) -> None:
    """Add the means over the parts of a column, as the paper's own total has them.

    The interval of a mean of independent parts: their half widths, squared, add up.
    """
    if recipe.total is None:
        return
    column, name = recipe.total
    groups: dict[Any, list[dict[str, Any]]] = {}
    for row in found.rows:
        if column in row["where"]:
            rest = tuple(sorted((k, v) for k, v in row["where"].items() if k != column))
            groups.setdefault((rest, row["metric"]), []).append(row)
    for (rest, metric), rows in groups.items():
        if len(rows) < len(recipe.parts.get(column, ())):
            continue  # a mean of some parts is not the paper's
        value = float(np.mean([row["value"] for row in rows]))
        low = high = None
        if all(row["low"] is not None for row in rows):
            below, above = (
                float(np.sqrt(sum((row[end] - row["value"]) ** 2 for row in rows))) / len(rows)
                for end in ("low", "high")
            )
            low, high = value - below, value + above
        elif all(row["low"] is None for row in rows) and len({row["value"] for row in rows}) == 1:
            pass  # a reference's speedup is 1
        found.add(dict(rest) | {column: name}, metric, value, low, high)


# ---------------------------------------------------------------- prompts by the runner


def run(recipe: Recipe, how: How) -> Found:
    """Methods on prompts by `specviz.bench.run`: one run for each plan that the rows ask for."""
    from specviz.bench.plan import Plan
    from specviz.bench.running import run as run_plan

    found = Found()
    entries, found.data = prompts_of(recipe, how)
    groups: dict[tuple, list[Row]] = {}
    for row in recipe.rows:
        groups.setdefault(tuple(sorted(row.plan.items())), []).append(row)
    plans = []
    for given, rows in groups.items():
        made = planned(recipe, how, rows, dict(given), entries, found)
        if made is not None:
            plans.append((given, rows, made))
    of = sum(Plan.of(**each).rows for _, _, (each, _) in plans)
    done = 0
    for given, rows, (plan, contenders) in plans:
        name = "-".join(str(value) for _, value in given) or "run"

        def told(at: int, _: int, what: str, before: int = done) -> None:
            how.tick(before + at, of, what)

        results = run_plan(plan, out=how.path / name, tick=told)
        done += len(results.wanted)
        found.runs.append(name)
        found.environment = found.environment or next(iter(results.environments.values()), {})
        records = results.records()
        for failure in results.failures()["error"].unique():
            found.notes.append(f"a row failed: {failure}")
        for row, (method, values, draft) in zip(rows, contenders):
            cell = next(
                c for c in results.cells
                if c["method"] == method and c["parameters"] == values and c["draft"] == draft
            )  # fmt: skip
            for where, part in combined(recipe.parts):
                mine, base = (
                    [r for r in records if r["cell"] == number and fits(r, part)]
                    for number in (cell["cell"], cell["against"])
                )
                if not mine:
                    continue
                said = figures(mine, base, cell)
                for theirs, ours in recipe.metrics.items():
                    value = (
                        scored(results, mine, ours)
                        if ours.startswith("rouge")
                        else Estimate(
                            said[ours], said.get(f"{ours}_low"), said.get(f"{ours}_high"), len(mine)
                        )
                    )
                    found.add({**row.where, **where}, theirs, value)
    if recipe.options.get("passes"):
        equation_2(recipe, how, found)
    sizes = {row.method: how.best(row.method) for row in recipe.rows if has_best(row)}
    for method, (g, origin) in sizes.items():
        found.notes.append(f"{method}: g* = {g}, {origin}")
    totals(found, recipe)
    return found


def has_best(row: Row) -> bool:
    """Whether a row asks for the calibrated draft size."""
    return any(isinstance(value, Best) for value in row.values.values())


def planned(
    recipe: Recipe, how: How, rows: Sequence[Row], given: dict[str, Any],
    entries: tuple[list[dict[str, Any]], list[dict[str, Any]]], found: Found,
) -> tuple[dict[str, Any], list[tuple[str, dict[str, Any], str | None]]] | None:  # fmt: skip
    """The plan of a run and each row's (method, parameters, drafter); None where it cannot be run."""
    model = how.model
    chosen, warm = entries
    dtype, context = given.pop("dtype", None), given.pop("context", None)
    if dtype is not None:
        from specviz.bench.experiments import in_dtype

        model = renamed(in_dtype(model, dtype), f"{how.model.name} ({dtype})")
    if context is not None:
        longer = lengthened(chosen, warm, context, how)
        if longer is None:
            most = f"{model.name} reads {model.max_length} tokens at most, and {how.max_new_tokens} follow"
            found.absent += [(row.where, most) for row in rows]
            return None
        chosen = longer
    contenders = []
    for row in rows:
        draft = how.drafts.get(row.role) if row.role else None
        contenders.append((row.method, how.sized(row), draft))
    methods: list[dict[str, Any]] = []
    for method, values, draft in contenders:
        each = {"method": method, **values} | ({"draft": draft} if draft else {})
        if each not in methods:  # two of the paper's rows may be one contender here
            methods.append(each)
    plan = {
        "models": [model], "methods": methods, "suites": {"prompts": chosen + warm}, "prompts": len(chosen),
        "warm_up": len(warm), "max_new_tokens": how.max_new_tokens, "threads": how.threads, "traces": True,
        **given,
    }  # fmt: skip
    return plan, contenders


def renamed(model: Any, name: str) -> Any:
    """The same model under a name of its own, so that a run's rows tell two number formats apart."""
    import copy

    other = copy.copy(model)
    other.name = name
    return other


def prompts_of(recipe: Recipe, how: How) -> tuple[tuple[list[dict[str, Any]], list[dict[str, Any]]], str]:
    """The measured prompts and those that warm up, alike over kinds and languages; and both in words."""
    from specviz.suites import suite

    whole = how.suite or suite(recipe.suite)
    asked = [part for parts in recipe.parts.values() for part in parts.values()]
    wanted = [p for p in whole if not asked or any(fits(p, part) for part in asked)]
    if not wanted:
        words = ", ".join(sorted({str(v) for part in asked for v in part.values()}))
        raise ParameterError(f"{whole.name} has no prompt of {words}: this table needs such ones")
    turns = in_turns(wanted)
    chosen, warm = turns[: how.prompts], turns[how.prompts : how.prompts + max(5, how.prompts // 2)]
    kinds = len({p.get("kind") for p in chosen})
    languages = len({p.get("language") for p in chosen})
    words = f"{whole.name}: {len(chosen)} prompts of {kinds} kinds of work in {languages} languages"
    # The runner takes as many of each kind, in order: the measured ones come first.
    return (chosen, warm), f"{words}, {len(warm)} others to warm up, {how.max_new_tokens} new tokens at most"


def in_turns(prompts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Kinds of work take turns, and within each its languages do, beginning with another one each."""
    kinds: dict[Any, dict[Any, list[dict[str, Any]]]] = {}
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


def lengthened(
    chosen: list[dict[str, Any]], warm: list[dict[str, Any]], context: int, how: How
) -> list[dict[str, Any]] | None:
    """The prompts behind earlier questions and answers, `context` tokens; None where they do not fit."""
    from specviz.bench.experiments import behind, question

    room = 4 * how.max_new_tokens
    if context + room > how.model.max_length or not getattr(how.model.tokenizer, "chat_template", None):
        return None
    everyone = [each for each in chosen + warm if question(each)]
    made = [behind(each, everyone, context, how.model) if question(each) else each for each in chosen]
    return [{**new, "id": old.get("id")} for new, old in zip(made, chosen)]


def combined(parts: Mapping[str, Mapping[str, Where]]) -> list[tuple[dict[str, str], dict[str, Any]]]:
    """Every combination of the columns' values, and which prompts it stands for."""
    found: list[tuple[dict[str, str], dict[str, Any]]] = [({}, {})]
    for column, values in parts.items():
        found = [({**w, column: v}, {**p, **more}) for w, p in found for v, more in values.items()]
    return found


def fits(row: Mapping[str, Any], part: Where) -> bool:
    """Whether a row is of a part."""
    return all(row.get(key) == value for key, value in part.items())


def scored(results: Any, rows: Sequence[Mapping[str, Any]], name: str) -> Estimate:
    """ROUGE of the last answers against the prompts' references."""
    from specviz.metrics.rouge import Rouge

    rouge, entries = Rouge(), results.prompts("prompts")
    values = [
        rouge(entries[row["prompt"]]["reference"], row["text"][-1])[name]
        for row in rows
        if row["error"] is None and entries[row["prompt"]].get("reference")
    ]
    if not values:
        return Estimate(float("nan"), float("nan"), float("nan"), 0)
    drawn = np.random.default_rng(0).choice(values, (1000, len(values))).mean(1)
    low, high = np.quantile(drawn, (0.025, 0.975)).tolist() if len(values) > 2 else (float("nan"),) * 2
    return Estimate(float(np.mean(values)), low, high, len(values))


def equation_2(recipe: Recipe, how: How, found: Found) -> None:
    """Table 15's s(g) and the throughput that equation 2 expects of it."""
    from specviz.bench import passes

    sizes = {row.where["draft_size"]: how.sized(row)["draft_size"] for row in recipe.rows}
    times = {each["g"]: each["median"] for each in
             passes.measure(how.model, [g + 1 for g in sizes.values()], 128, 15, 3)}  # fmt: skip
    taus = {row["where"]["draft_size"]: row["value"] for row in found.rows if row["metric"] == "tau"}
    for theirs, g in sizes.items():
        seconds = times[g + 1] / 1e3
        found.add({"draft_size": theirs}, "forward_time", seconds)
        if theirs in taus:
            found.add({"draft_size": theirs}, "expected_throughput", taus[theirs] / seconds)


def about(model: Any, **more: Any) -> dict[str, Any]:
    """Where something was measured that left no run's folder."""
    from specviz.bench.runner import quiet_clock, setting
    from specviz.loop.run import identity

    said = setting(model, [])
    return said | {"model": identity(model), "clock": quiet_clock(model.device)[1], **more}


# ---------------------------------------------------------------- batches


def batches(recipe: Recipe, how: How) -> Found:
    """UniSpec at several batch sizes over autoregressive decoding at the same one."""
    from specviz.bench import batches as measure

    (chosen, _), data = prompts_of(recipe, how)
    made = measure.bench(
        how.model, [], chosen, ("autoregressive", "unispec"), recipe.options["sizes"],
        how.options.get("rounds", 2), how.max_new_tokens, how.threads, how.tick,
    )  # fmt: skip
    found = Found(environment=about(how.model), data=data, notes=list(made.notes[:1]))
    speeds = {(row["method"], row["batch"]): row["speed"] for row in made.rows}
    for size in recipe.options["sizes"]:
        ours, base = speeds["unispec", size], speeds["autoregressive", size]
        found.add({"batch_size": size}, "speedup", middle(ours) / middle(base))
    return found


def middle(value: Any) -> float:
    """The value of a figure, with or without an interval."""
    return float(value.median if isinstance(value, Estimate) else value)


SOURCES: dict[str, Callable[[Recipe, How], Found]] = {"run": run, "batches": batches}
