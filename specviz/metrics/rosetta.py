"""Every tool's number from one decode: a trace as `counts`, and all definitions on them (`rosetta`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from specviz.errors import TraceError
from specviz.metrics.cycles import _silent, _steps, batch_rows, check_finished, drafts, seconds
from specviz.metrics.definitions import DEFINITIONS, EMITTED, MEAN, WHOLE, Definition, Tally, tally
from specviz.trace import Trace
from specviz.trace.counts import SUMS, Counts, request_table, step_table

if TYPE_CHECKING:
    import pandas as pd

    from specviz.trace.files import Record

_counted: WeakKeyDictionary[Trace, Counts] = WeakKeyDictionary()  # a baseline is compared with many runs


def counts(trace: Trace) -> Counts:
    """Reduce a trace to what other tools record: numbers of tokens, per request and per step.

    A request is a text of a run. A step is a cycle after the prefill; drafted tokens are the nodes that the
    target read, accepted ones those that were emitted. Lookahead's window counts as drafted, but is no draft:
    it adds no depth.

    Raises
    ------
    TraceError
        If the trace holds several contenders, or streams or canvases, whose steps are of another kind.
    """
    if trace not in _counted:
        _counted[trace] = _counts(trace)
    return deepcopy(_counted[trace])  # its tables may be changed


def _counts(trace: Trace) -> Counts:
    import pandas as pd

    runs = trace.split()
    if len(parts := contenders(trace)) > 1:
        raise TraceError(
            f"the trace holds {len(parts)} contenders ({', '.join(parts)}), whose pooled acceptance means "
            f"nothing: select one"
        )
    for part in runs:
        if part.run["canvas"] is not None:
            raise TraceError(
                f"run {part.run['run']} writes canvases: acceptance is defined only for texts that grow"
            )
        if part.has_streams:
            raise TraceError(
                f"run {part.run['run']} is a stream: its updates have their own metrics (by_stream)"
            )
    steps, silent = _steps_of(trace), _silent(trace)
    table = _requests_of(trace, steps)
    rows = table.reset_index()
    if silent:
        rows[["drafts", "drafted"]] = None
    at = table.index.get_indexer(pd.MultiIndex.from_frame(steps[["run", "prompt"]]))
    columns = {"request": at, "accepted": steps["accepted"], "emitted": steps["emitted"]}
    names = {"drafted": "sent", "depth": "depth", "beyond": "beyond"}
    columns |= {name: None if silent else steps[column] for name, column in names.items()}
    where = ", ".join(f"run {part.run['run']}" for part in runs[:2]) + " ..." * (len(runs) > 2)
    return Counts(
        origin="specviz",
        where=where,
        requests=request_table([{str(k): v for k, v in row.items()} for row in rows.to_dict("records")]),
        steps=step_table(columns),
        most=None if silent else int(steps["sent"].max() if len(steps) else 0),
        wall=seconds(trace),
        plain={part.run["method"] for part in runs} == {"autoregressive"},
    )


def contenders(trace: Trace) -> dict[str, Trace]:
    """Group runs by method, parameters, sampling and models, under names that say what differs."""
    groups: dict[str, list[Record]] = {}
    for part in trace.split():
        run = part.run
        key = json.dumps([run["method"], _setting(run)], sort_keys=True, default=str)
        groups.setdefault(key, []).append(run)
    first = [group[0] for group in groups.values()]
    return {
        _name(run, [other for other in first if other is not run]): trace.select(
            run=[r["run"] for r in group]
        )
        for run, group in zip(first, groups.values())
    }


def _name(run: Record, others: Sequence[Record]) -> str:
    """A run's method, with the settings that distinguish it from others of the same method."""
    own, *rest = (_setting(each) for each in (run, *others) if each["method"] == run["method"])
    differs = {key: value for key, value in own.items() if any(o.get(key) != value for o in rest)}
    for role in ("model", "draft"):
        if f"{role}'s weights" in differs and role in differs:  # the name is enough
            del differs[f"{role}'s weights"]
    inside = ", ".join(f"{key} {value}" for key, value in differs.items())
    return str(run["method"]) + (f" ({inside})" if inside else "")


def _setting(run: Record) -> Record:
    """Settings that distinguish a run from another one of the same method."""
    models: Record = {}
    for role in ("model", "draft"):
        models[role] = (run[role] or {}).get("name")
        models[f"{role}'s weights"] = ((run[role] or {}).get("content") or "")[:8]
    law = {key: value for key, value in (run["sampling"] or {}).items() if key != "seed"}
    return {**(run["parameters"] or {}), **law, **models, "number format": run["dtype"]}


def _steps_of(trace: Trace) -> pd.DataFrame:
    """One row per step: ``sent``, ``emitted`` and ``accepted`` tokens, the draft's ``depth``, and how far it
    reached ``beyond`` the text's end."""
    keys = ["run", "prompt", "cycle"]
    steps = _steps(trace)[[*keys, "sent", "emitted"]].reset_index(drop=True)
    outputs, nodes = trace.outputs, trace.nodes
    accepted = outputs[outputs["origin"] == "draft"].groupby(keys, observed=True).size().rename("accepted")
    steps = steps.merge(accepted.reset_index(), how="left", on=keys).fillna({"accepted": 0})
    cut = nodes[nodes["status"] == "cut"].groupby(keys, observed=True)["depth"].max().rename("cut")
    steps = steps.merge(drafts(trace)[[*keys, "depth"]], how="left", on=keys)
    steps = steps.merge(cut.reset_index(), how="left", on=keys)
    steps["beyond"] = (steps["cut"] - steps["accepted"]).fillna(0)
    return steps


def _requests_of(trace: Trace, steps: pd.DataFrame) -> pd.DataFrame:
    """One row per text, by run and prompt: its times, its tokens and the totals of its steps."""
    cycles, keys = trace.cycles, ["run", "prompt"]
    texts = cycles.groupby(keys, observed=True, sort=False)
    table = texts.agg(seconds=("duration", lambda x: x.sum(min_count=1)), end=("end", "last"))
    begin = texts["start"].min()
    created = {part.run["run"]: _since_1970(part.run["created"]) for part in trace.split()}
    table["begin"] = begin + [created[run] for run, _ in table.index]
    # Like `seconds`, without the pauses between cycles.
    until = cycles[texts["emitted"].cumsum() == cycles["emitted"]].groupby(keys, observed=True)["duration"]
    table["first"] = until.sum(min_count=1).where(texts["emitted"].sum() > 0).reindex(table.index)
    table["prefill"] = cycles[cycles["cycle"] == 0].set_index(keys)["duration"].reindex(table.index)
    by = steps.groupby(keys, observed=True)
    for name, column in (("drafted", "sent"), ("accepted", "accepted"), ("emitted", "emitted")):
        table[name] = by[column].sum().reindex(table.index, fill_value=0)
    table["steps"] = by.size().reindex(table.index, fill_value=0)
    had = (steps["depth"] > 0).groupby([steps["run"], steps["prompt"]], observed=True).sum()
    table["drafts"] = had.reindex(table.index, fill_value=0)
    outputs = trace.outputs
    kept = outputs[outputs["kept"]].groupby(keys, observed=True).size()
    table["output"] = kept.reindex(table.index, fill_value=0)
    prompts = trace.prompts.set_index(keys)[["kind", "tokens"]].reindex(table.index)
    table["id"] = [f"{run}/{prompt}" for run, prompt in table.index]
    table["kind"], table["prompt_tokens"] = prompts["kind"].to_numpy(), prompts["tokens"].to_numpy()
    table["eos"] = table["end"].astype(str) == "eos"
    return table


def _since_1970(created: str | None) -> float:
    try:
        return datetime.fromisoformat(created or "").timestamp()
    except ValueError:
        return float("nan")


# ---------------------------------------------------------------- all of them at once

COLUMNS = (
    "who", "quantity", "value", "high", "badge", "average", "end", "counts", "formula", "source", "why",
)  # fmt: skip


def rosetta(trace: Trace | Counts, baseline: Trace | Counts | None = None) -> pd.DataFrame:
    """Every definition of acceptance length, acceptance rate and speedup, computed from one trace.

    Parameters
    ----------
    trace : Trace or Counts
        A trace of several runs is pooled; each of their texts is a request.
    baseline : Trace or Counts, optional
        Autoregressive decoding of the same prompts by the same model. Without it there are no speedups.

    Returns
    -------
    DataFrame
        One row per definition, by its name: ``who`` uses it and what it is called there; ``quantity``;
        ``value``; ``high``, the upper end if the ``badge`` says ``bounded``. The other badges are ``exact``,
        and ``as counted`` if another tool counted to the end of the last step and this definition does not,
        or (for a server's sums) if steps with a draft stand for all steps, or if the steps without a draft
        follow from the lengths of the answers (`specviz.trace.Counts.least_steps`);
        ``average``, pooled or a mean over requests; ``end``, what is counted at a text's end; ``counts``,
        what is counted, in words; ``formula`` (symbols: `specviz.metrics.definitions`); ``source``, where it
        was read. ``value`` is NaN if something is missing; ``why`` says what.

    Raises
    ------
    TraceError
        If the trace holds streams or canvases, the baseline is not an autoregressive run of its prompts, or
        one of the two was cut off before a text's end.
    """
    import pandas as pd

    own = trace if isinstance(trace, Counts) else counts(trace)
    base = None
    if baseline is not None:
        base = baseline if isinstance(baseline, Counts) else counts(baseline)
        base = _paired(base, *_compared(trace, own, baseline, base))
    emitted, plain = tally(own, False), None if base is None else tally(base, False)
    ends = {EMITTED: (emitted, emitted), WHOLE: (tally(own, True), tally(own, True, most=True))}
    rows = []
    for definition in DEFINITIONS:
        if definition.compares and plain is None:
            continue
        has_means = not (own.pooled and definition.average == MEAN)
        value, high = _values(definition, ends[definition.end], plain) if has_means else (float("nan"),) * 2
        bounded = high == high and abs(high - value) > 1e-12
        row = {name: getattr(definition, name) for name in COLUMNS if hasattr(definition, name)}
        row |= {"who": ", ".join(definition.who), "value": value, "high": high if bounded else float("nan")}
        loose = (
            own.origin != "specviz"
            and definition.end == EMITTED
            and {"accepted", "emitted"} & {*definition.needs}
        ) or ((own.pooled or own.least_steps) and "steps" in definition.needs)
        row["badge"] = "" if value != value else "bounded" if bounded else "as counted" if loose else "exact"
        row["why"] = "" if value == value else _why(definition, own, base)
        rows.append(row)
    index = pd.Index([d.name for d in DEFINITIONS if base is not None or not d.compares], name="definition")
    return pd.DataFrame(rows, index=index, columns=list(COLUMNS))


def by_position(trace: Trace | Counts) -> pd.DataFrame:
    """Acceptance by position in the draft, as defined by vLLM and by EAGLE.

    Returns
    -------
    DataFrame
        One row per position, from 1: ``accepted``, steps that accepted a token there; ``rate`` = accepted /
        steps with a draft (vLLM's per-position acceptance rate); ``given`` = accepted / steps whose draft
        reached the position and that accepted all tokens before it (EAGLE's n-α, n = position - 1; NaN if the
        lengths of drafts are not known). Tokens cut off at a text's end do not count as accepted.

    Raises
    ------
    TraceError
        If it is not known which steps had a draft.
    """
    import pandas as pd

    own = trace if isinstance(trace, Counts) else counts(trace)
    t = tally(own, True)
    if not len(t.n) or np.isnan(t.n).any():
        raise TraceError(f"{own.where}: {own.origin} does not say {NAMES['drafts']}")
    vague = bool(np.isnan(t.d).any())  # the lengths of drafts are not known
    longest = np.nanmax([t.a.max(), t.k]) if vague else t.d.max()
    places = np.arange(1, int(longest) + 1)
    hit = (t.a[:, None] >= places) & ~(t.d[:, None] < places)
    came = (t.a[:, None] >= places - 1) & (t.d[:, None] >= places)
    accepted, reached = ((t.w[:, None] * each).sum(0).astype(np.int64) for each in (hit, came))
    table = pd.DataFrame({"position": places, "accepted": accepted})
    table["rate"] = accepted / max(t.w[t.n == 1].sum(), 1)
    return table.assign(given=np.nan if vague else accepted / np.maximum(reached, 1))


def _values(definition: Definition, own: tuple[Tally, Tally], plain: Tally | None) -> tuple[float, float]:
    """The least and the greatest value, from the least and the most that the last steps accepted."""
    with np.errstate(divide="ignore", invalid="ignore"):
        if plain is not None and definition.compares:
            value = float(definition.of(own[0], plain))
            return (value if np.isfinite(value) else float("nan")), float("nan")
        values = [definition.of(each) for each in own]
    low, high = (float(value) if np.isfinite(value) else float("nan") for value in values)
    return min(low, high), max(low, high)


def _why(definition: Definition, own: Counts, base: Counts | None) -> str:
    """Say what a definition lacks."""
    if own.pooled and definition.average == MEAN:
        return f"the file holds {SUMS}"
    if own.total("steps") == 0 and not definition.compares:
        return f"{own.where} has no steps"
    sides = [("", own)] + ([("the baseline's ", base)] if base is not None and definition.compares else [])
    for whose, side in sides:
        for name in definition.needs:
            if name == "wall":
                lacks = np.isnan(side.wall)
            elif name == "most":
                lacks = side.most is None
            elif name == "depth":
                lacks = not len(side.steps) or bool(side.steps["depth"].isna().any())
            else:
                lacks = bool(np.isnan(side.column(name)).any())
            if lacks:
                return f"{side.origin} does not say {whose}{NAMES[name]}"
    steps = own.total("steps")
    if "steps" in definition.needs and steps == steps and own.steps["times"].sum() != steps:
        return f"{own.origin} does not say how many tokens each step accepted"
    return "nothing to divide by"


NAMES = {
    "accepted": "how many were accepted",
    "depth": "how long the draft of each step was",
    "drafted": "how many tokens were drafted",
    "drafts": "which steps had a draft",
    "emitted": "how many tokens the steps emitted",
    "eos": "whether an end token closed an answer",
    "first": "when the first tokens came",
    "most": "the largest draft of a step",
    "output": "how long the answers are",
    "prefill": "how long the prefill took",
    "seconds": "how long a request took",
    "steps": "how many verify steps there were",
    "wall": "how long the whole run took",
}


Keys: TypeAlias = Sequence[tuple[str | float, ...]]


def _compared(
    trace: Trace | Counts, own: Counts, baseline: Trace | Counts, base: Counts
) -> tuple[Keys, Keys]:
    """Keys that identify the requests of a run and those of its baseline.

    Checks that it is a baseline: autoregressive, of the same prompts, by the same model, and to their ends.
    """
    if not base.plain:
        raise TraceError(
            f"the baseline ({base.where}) is not autoregressive: a speedup is relative to decoding without "
            f"drafts"
        )
    if own.origin != base.origin:
        raise TraceError(
            f"{own.where} is from {own.origin}, but the baseline is from {base.origin}: use the same tool "
            f"for both"
        )
    mine: Keys
    theirs: Keys
    if isinstance(trace, Counts) or isinstance(baseline, Counts):
        mine, theirs = (
            list(zip(c.requests["id"], c.requests["prompt_tokens"].fillna(-1))) for c in (own, base)
        )
    else:
        one, other = ({_model(part) for part in t.split()} for t in (trace, baseline))
        if one != other:
            raise TraceError(
                f"the baseline ran {_words(other)}, not {_words(one)}: both must use the same model"
            )
        mine, theirs = _prompts(trace, own), _prompts(baseline, base)
        check_finished(trace, baseline)
    if sorted(mine) != sorted(theirs):
        raise TraceError(
            f"the baseline ({base.where}) decoded different prompts: {len(theirs)} against {len(mine)}, "
            f"{len(set(mine) & set(theirs))} in common"
        )
    return mine, theirs


def _paired(base: Counts, mine: Keys, theirs: Keys) -> Counts:
    """Reorder the baseline's requests like the run's, for definitions that compare request by request."""
    order = np.empty(len(mine), np.int64)
    order[sorted(range(len(mine)), key=mine.__getitem__)] = sorted(range(len(theirs)), key=theirs.__getitem__)
    at = np.argsort(order)[base.steps["request"].to_numpy(np.int64)]
    requests = base.requests.iloc[order].reset_index(drop=True)
    return replace(base, requests=requests, steps=base.steps.assign(request=at))


SETTINGS = ("threads", "machine", "backend")
DRAWN = ("top_k", "top_p")  # these only matter for sampling


def differing_settings(trace: Trace, baseline: Trace) -> list[str]:
    """Settings, apart from the method, in which a baseline differs: a speedup compares those too."""
    one, other = (_settings(each) for each in (trace, baseline))
    differing = [
        name for name, values in one.items()
        if values != other[name] and not (name == "weights" and None in values | other[name])  # not recorded
    ]  # fmt: skip
    return [name for name in differing if name not in DRAWN or "temperature" not in differing]


def _settings(trace: Trace) -> dict[str, set[str | float | None]]:
    """The values of each setting among the runs of a trace."""
    runs = [part.run for part in trace.split()]
    values: dict[str, set[str | float | None]] = {name: {str(run[name]) for run in runs} for name in SETTINGS}
    sampled = [run["sampling"] or {} for run in runs]
    values["weights"] = {(run["model"] or {}).get("content") for run in runs}
    values["temperature"] = {each.get("temperature") for each in sampled}
    values |= {name: {each.get(name) for each in sampled if each.get("temperature")} for name in DRAWN}
    return values | {"batch": {batch_rows(trace)}}


def _model(part: Trace) -> tuple[str, str]:
    """Name and number format of a run's target."""
    return str((part.run["model"] or {}).get("name")), str(part.run["dtype"])


def _words(models: set[tuple[str, str]]) -> str:
    return ", ".join(f"{name} ({dtype})" for name, dtype in sorted(models))


def _prompts(trace: Trace, counted: Counts) -> list[tuple[int, ...]]:
    """The tokens of each request's prompt."""
    prompts: dict[str, tuple[int, ...]] = {}
    for part in trace.split():
        for i, prompt in enumerate(part.run["prompts"] or []):
            prompts[f"{part.run['run']}/{i}"] = tuple(prompt.get("tokens") or ())
    own = [prompts.get(name, ()) for name in counted.requests["id"]]
    for name, tokens in zip(counted.requests["id"], own):
        if not tokens:
            run = name.rpartition("/")[0]
            raise TraceError(f"run {run} holds no prompts (it was redacted), so they cannot be compared")
    return own
