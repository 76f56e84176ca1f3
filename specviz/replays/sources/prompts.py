"""Methods on prompts: by the runner, so that every row is on disk, paired, and resumed; and in batches."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from specviz.errors import ModelError, ParameterError
from specviz.measure.claims import Drawn, ratio, resampled
from specviz.measure.report import Estimate
from specviz.measure.rows import fast, paired, per_prompt, speed, sums
from specviz.replays.recipes import Best, Recipe, Row
from specviz.replays.sources.shared import Found, How, Where, about, known, middle, totals
from specviz.suites import spread

LONGEST = 32768  # Table 11's; a model that reads less gets the same shares of what it reads


def run(recipe: Recipe, how: How) -> Found:
    """Methods on prompts by `specviz.measure.run`: one run for each plan that the rows ask for."""
    from specviz.measure.plan import Plan
    from specviz.measure.running import run as run_plan

    found = Found()
    entries, found.data = prompts_of(recipe, how)
    groups: dict[tuple, list[Row]] = {}
    for row in recipe.rows:
        if row.role and not how.drafts[row.role]:
            lacking = f"no drafter for {how.model.name}: name one with --draft {row.role}=NAME"
            found.absent.append((row.where, lacking))
            continue
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
                for theirs, ours in recipe.metrics.items():
                    found.add({**row.where, **where}, theirs, FIGURES[ours](results, mine, base))
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
        model = renamed(in_dtype(model, dtype), f"{how.model.name} ({dtype})")
    if context is not None:
        room = model.max_length - 2 * how.max_new_tokens - 128  # a tree stands behind it, too
        length = round(context * min(1.0, room / LONGEST))
        if not getattr(model.tokenizer, "chat_template", None):
            why = f"{model.name} has no chat template, so nothing can be put in front of a prompt"
            found.absent += [(row.where, why) for row in rows]
            return None
        chosen = lengthened(chosen, warm, length, how)
        tokens = [len(model.encode(each["prompt"])) for each in chosen if "prompt" in each]
        mean = float(np.mean(tokens)) if tokens else float("nan")
        found.notes.append(f"context {context}: prompts of {mean:.0f} tokens on average, {length} at most")
    contenders = []
    for row in rows:
        draft = how.drafts[row.role] if row.role else None
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
    counts = [
        f"{n} {word}{'s' * (n != 1)}"
        for word, n in (("kind", len({p.get("kind") for p in chosen})),
                        ("language", len({p.get("language") for p in chosen})))
    ]  # fmt: skip
    words = f"{whole.name}: {len(chosen)} prompts of {' in '.join(counts)}"
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
    chosen: list[dict[str, Any]], warm: list[dict[str, Any]], length: int, how: How
) -> list[dict[str, Any]]:
    """The prompts behind earlier questions and their answers, as many as fit into `length` tokens."""
    everyone = [each for each in chosen + warm if question(each)]
    made = [behind(each, everyone, length, how.model) if question(each) else each for each in chosen]
    return [{**new, "id": old.get("id")} for new, old in zip(made, chosen)]


def question(entry: dict[str, Any]) -> str:
    """What a prompt of a single turn asks; empty for another."""
    asked = entry["turns"][0] if len(entry.get("turns", ())) == 1 else entry.get("prompt", "")
    return asked if isinstance(asked, str) else ""


def behind(entry: dict[str, Any], others: list[dict[str, Any]], length: int, model: Any) -> dict[str, Any]:
    """The prompt as the last turn of a conversation of at most `length` tokens."""
    turns: list[dict[str, str]] = []
    last = {"role": "user", "content": question(entry)}
    for other in spread(others, len(others)):
        known = other.get("reference")
        if other is entry or not known:
            continue
        answer = known if isinstance(known, str) else known[0]
        pair = [{"role": "user", "content": question(other)}, {"role": "assistant", "content": answer}]
        if len(model.encode([*turns, *pair, last])) > length:
            break
        turns += pair
    about = {name: entry[name] for name in ("kind", "language") if name in entry}
    return about | {"prompt": [*turns, last]}


def in_dtype(model: Any, dtype: str) -> Any:
    """The model with its weights in another number format: a copy, unless it has it already.

    Raises
    ------
    ModelError
        If there is no memory for it.
    """
    import torch

    from specviz.models import Model

    kind = getattr(torch, dtype)
    if model.dtype == kind:
        return model
    try:
        net = copy.deepcopy(model.net).to(kind)
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        raise ModelError(f"no memory for a copy of {model.name} in {dtype}: use a smaller model") from None
    return Model(net, model.tokenizer, model.name)


def combined(parts: Mapping[str, Mapping[str, Where]]) -> list[tuple[dict[str, str], dict[str, Any]]]:
    """Every combination of the columns' values, and which prompts it stands for."""
    found: list[tuple[dict[str, str], dict[str, Any]]] = [({}, {})]
    for column, values in parts.items():
        found = [({**w, column: v}, {**p, **more}) for w, p in found for v, more in values.items()]
    return found


def fits(row: Mapping[str, Any], part: Where) -> bool:
    """Whether a row is of a part."""
    return all(row.get(key) == value for key, value in part.items())


# ---------------------------------------------------------------- figures

Rows = Sequence[Mapping[str, Any]]  # of one cell, or of its reference


def per_cycle(results: Any, mine: Rows, base: Rows) -> Drawn:
    """τ: tokens a cycle, all cycles pooled."""
    good = [row for row in mine if row["error"] is None]
    return resampled(ratio, sums(good, "tokens"), sums(good, "steps"))


def of_requests(results: Any, mine: Rows, base: Rows) -> Drawn:
    """Mean over the prompts of tokens/s, prefill inside."""
    speeds = np.array(per_prompt([row for row in mine if row["error"] is None and fast(row)], speed))
    return resampled(ratio, speeds, np.ones(len(speeds)))


def of_decoding(results: Any, mine: Rows, base: Rows) -> Drawn:
    """Tokens of all prompts over the seconds of their decoding."""
    good = [row for row in mine if row["error"] is None and fast(row)]
    return resampled(ratio, sums(good, "tokens"), sums(good, "decode_seconds"))


def over_reference(results: Any, mine: Rows, base: Rows) -> Estimate:
    """Spec-Bench's speedup: the ratio of two means over the prompts of tokens/s, pair by pair."""
    pairs = paired(mine, base)
    if any(a is b for a, b in pairs):
        return known()
    speeds = (np.array(per_prompt(side, speed)) for side in zip(*pairs)) if pairs else np.zeros((2, 0))
    return resampled(ratio, *speeds)


def scored(name: str) -> Callable[[Any, Rows, Rows], Drawn]:
    """ROUGE of the last answers against the prompts' references."""

    def mean(results: Any, mine: Rows, base: Rows) -> Drawn:
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
FIGURES: dict[str, Callable[[Any, Rows, Rows], Estimate]] = {
    "tau": per_cycle, "request_speedup": over_reference, "request_throughput": of_requests,
    "decode_throughput": of_decoding, **{name: scored(name) for name in ("rouge1", "rouge2", "rougeL")},
}  # fmt: skip


def equation_2(recipe: Recipe, how: How, found: Found) -> None:
    """Table 15's s(g) and the throughput that equation 2 expects of it."""
    from specviz.measure.benches import passes

    sizes = {row.where["draft_size"]: how.sized(row)["draft_size"] for row in recipe.rows}
    times = {each["g"]: each["median"] for each in
             passes.measure(how.model, [g + 1 for g in sizes.values()], 128, 15, 3)}  # fmt: skip
    taus = {row["where"]["draft_size"]: row["value"] for row in found.rows if row["metric"] == "tau"}
    for theirs, g in sizes.items():
        seconds = times[g + 1] / 1e3
        found.add({"draft_size": theirs}, "forward_time", seconds)
        if theirs in taus:
            found.add({"draft_size": theirs}, "expected_throughput", taus[theirs] / seconds)


# ---------------------------------------------------------------- batches


def batches(recipe: Recipe, how: How) -> Found:
    """UniSpec at several batch sizes over autoregressive decoding at the same one."""
    from specviz.measure.benches import batches as measure

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
