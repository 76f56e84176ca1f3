"""Compare a method with recorded runs: decode the same prompts here and pair them with the recording."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specviz.arguments import check_int
from specviz.errors import ParameterError, SpecvizError, TraceError, loading, plural
from specviz.files import checked
from specviz.measure.claims import quotient, resampled
from specviz.measure.report import Column, Settings, Tick, Values, print_table
from specviz.measure.rows import Results, fast, paired, seconds, words, written
from specviz.measure.schema import ModelTable, RepeatableRun
from specviz.paths import expanded, folder
from specviz.replays.cells import AGAIN
from specviz.replays.judging import LEVEL, chance, holm
from specviz.replays.recorded import REMEDY, SUFFIX, Recorded, digest
from specviz.rules.parameters import Value

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from specviz.measure.report import Row
    from specviz.methods import Method
    from specviz.models import Model
    from specviz.suites import Suite

SPEEDUP = "speedup"
BUNDLED = Path("data/runs")  # stands for the package's recorded runs, wherever it is installed
MACHINE = ("processor", "device", "threads", "kernels")  # if one of these differs, times are not compared


@dataclass
class Comparison:
    """A method and the contenders of a recorded run, on the same prompts.

    Attributes
    ----------
    by : {"speedup", "τ"}
        The quantity compared. On a machine other than the recording's it is τ, tokens per cycle: speedups
        are listed, each as measured on its own machine, but not compared.
    rows : list of dict
        One per recorded contender: ``contender``, ``tau``, ``speedup`` (over its own recorded reference);
        ``ratio``, the method's speedup (or τ) over the contender's, with ``low`` and ``high`` (95 %, paired
        by prompt); ``p``, corrected for all contenders (Holm); ``clear``, whether p is at most 0.05 and the
        ratio exceeds the controls'.
    method : dict
        The method's own row: ``contender``, ``tau``, ``speedup``; ``same`` of ``of`` texts equal the
        reference's.
    notes : list of str
    ours, theirs : Results
    """

    by: str
    rows: list[Row]
    method: Row
    notes: list[str]
    ours: Results = field(repr=False)
    theirs: Results = field(repr=False)

    def frame(self) -> pd.DataFrame:
        """The contenders as a table, best first."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def _repr_html_(self) -> str:
        return str(self.frame().to_html(index=False))

    def show(self, console: Console) -> None:
        """Print the comparison on a rich console."""
        lines = [
            [
                self.method["contender"],
                f"{self.method['tau']:.2f}",
                f"{self.method['speedup']:.2f}",
                "",
                "",
                "",
            ]
        ]
        for row in self.rows:
            ends = "" if row["low"] is None else f" [{row['low']:.2f}, {row['high']:.2f}]"
            more, less = ("faster", "slower") if self.by == SPEEDUP else ("more", "fewer")
            word = (more if row["ratio"] > 1 else less) if row["clear"] else "not clear"
            lines.append([row["contender"], f"{row['tau']:.2f}", f"{row['speedup']:.2f}",
                          f"{row['ratio']:.2f}{ends}", f"{row['p']:.2g}", word])  # fmt: skip
        columns = ("contender", "τ", "speedup", f"this method's {self.by} over its", "p", "difference")
        print_table(console, [Column(name, right=i > 0) for i, name in enumerate(columns)], lines)
        for note in self.notes:
            console.print(note, soft_wrap=not console.is_terminal, markup=False)


@loading()
def compare(
    method: str | type[Method] | Method,
    against: str | Path = BUNDLED,
    *,
    run: str | None = None,
    model: Model | None = None,
    draft: str | None = None,
    suite: Suite | None = None,
    number: int | None = None,
    out: str | Path | None = None,
    tick: Tick | None = None,
    **parameters: Value,
) -> Comparison:
    """Decode a recorded run's prompts with a method and compare it with the recording, prompt by prompt.

    The reference is decoded again as well, and once more under a second name (the control), so that speedups
    over it can be compared. The notes say how its speed differs from the recorded one. On a machine other
    than the recording's, or with other kernels for the same numbers, tokens per cycle are compared instead.

    Parameters
    ----------
    method : str, type or Method
        A method's name, your own class, or an instance.
    against : path
        A recorded run or a folder of them. Default: those that come with the package.
    run : str, optional
        The run to take from a folder. Default: the first that the method can decode and whose model is
        available; one whose prompts must be fetched comes last.
    model : Model, optional
        Default: the recorded one, loaded with its number format and kernels.
    draft : str, optional
        The drafter, for a method that needs one.
    suite : Suite, optional
        The prompts, for a run that you recorded yourself.
    number : int, optional
        Use only this many prompts, from the first on.
    out : path, optional
        Keep the rows there and continue from them. Default: they are discarded.
    **parameters
        Parameters of the method.

    Returns
    -------
    Comparison

    Raises
    ------
    ParameterError, TraceError, ModelError, PromptError, SpecvizError
        If there is no such run, or if the number format, the weights, rounding kernels, the prompts or the
        parameters of the reference (of a canvas or stream method) differ from the recording. In these cases
        nothing is decoded.

    Examples
    --------
    >>> specviz.compare("prompt_lookup", draft_length=3, number=7).frame()  # doctest: +SKIP
    """
    import torch

    from specviz import methods
    from specviz.loop.machine import machine
    from specviz.measure.running import run as run_plan
    from specviz.models import load
    from specviz.models.kernels import rounding
    from specviz.replays.sources.shared import again

    name, values = methods.settings_of(method, parameters)
    kind = methods.find(type(method) if isinstance(method, methods.Method) else method)
    kind(**values)  # a wrong parameter is refused before any run is read
    theirs = chosen(expanded(against, ParameterError), run, kind, values)
    ours = prompts_of(theirs, suite)
    spec = theirs.plan["models"][0]
    place = next(iter(theirs.environments.values()))
    if model is None:
        here = machine(torch.device("cpu"))["processor"] == place.get("processor")
        options = {key: value for key, value in spec.items() if key in ModelTable.__annotations__}
        if here or rounding(place.get("kernels")):
            options["kernels"] = place.get("kernels")
        model = load(spec["model"], **options)
    elsewhere = differing(theirs, model)
    if number is not None:
        measured = ours["number"]
        ours["number"] = min(check_int("number", number, 1), measured)
        # Methods with a memory warm up on the recorded texts, however few prompts follow.
        ours["suites"] = {
            key: [*entries[: ours["number"]], *entries[measured:]] for key, entries in ours["suites"].items()
        }
    reference = next(cell for cell in theirs.cells if cell["cell"] == cell["against"])
    twin = {"method": again(methods.find(reference["method"])), **reference["parameters"]}
    mine = {"method": method if isinstance(method, type) else name, **values}
    plan = ours | {
        "models": [model], "methods": [mine | ({"draft": draft} if draft else {}), twin],
        "seeds": theirs.plan["seeds"][: 1 + max(row["round"] for row in theirs.records())],
        "max_new_tokens": theirs.plan["max_new_tokens"], "threads": theirs.plan["threads"],
        "temperature": theirs.cells[0]["temperature"],
    }  # fmt: skip
    plan |= {name: theirs.plan[name] for name in ("top_k", "top_p") if name in theirs.plan}
    with ExitStack() as stack:
        folder = (
            Path(out) if out is not None else Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run"
        )
        results = run_plan(plan, out=folder, tick=tick)
        return compared(results, theirs, name, elsewhere)


# ---------------------------------------------------------------- what can be compared


def chosen(against: Path, run: str | None, kind: type[Method], values: Values) -> Recorded:
    """Choose the recorded run to compare with a method of these parameters.

    Raises
    ------
    ParameterError, TraceError
        If there is no run, or none that the method can decode.
    """
    from specviz.models.loading import find as find_model

    if against == BUNDLED and not against.exists():
        against = folder("runs")
    if against.suffix == SUFFIX:
        return fitting(Recorded(against), kind, values)
    # The one whose prompts must be fetched comes last.
    paths = sorted(against.glob(f"*{SUFFIX}"), key=lambda path: (path.stem == "smollm2-questions", path))
    files = {path.stem: path for path in paths}
    if not files:
        raise TraceError(f"{against} holds no recorded runs: specviz.replays.recordings.record makes one")
    if run is not None:
        if run not in files:
            raise ParameterError(f"{against} has no run {run!r:.40}; it has {', '.join(files)}")
        return fitting(Recorded(files[run]), kind, values)
    reasons = []
    for path in files.values():
        try:
            result = fitting(Recorded(path), kind, values)
            find_model(result.plan["models"][0]["model"])
            return result
        except SpecvizError as error:
            reasons.append(f"{path.stem}: {error}")
    raise ParameterError(f"no run in {against} can be compared with {kind.name}: {'; '.join(reasons)}")


def fitting(run: Recorded, kind: type[Method], values: Values) -> Recorded:
    """Return the run if the method can decode it and, with these parameters, has the recorded reference.

    Raises
    ------
    ParameterError, TraceError
    """
    from specviz.measure.plan import reference_of

    content = {"plan": run.plan, "environments": run.environments}
    checked(RepeatableRun, content, str(run.path), REMEDY)
    cell = next((cell for cell in run.cells if cell["cell"] == cell["against"]), None)
    if cell is None or not run.records():
        raise TraceError(f"{run.path} has no {'reference' if cell is None else 'rows'}: {REMEDY}")
    reference = cell["method"]
    wanted, own = reference_of(kind.name, values)
    if wanted != reference:
        raise ParameterError(f"{run.path.name} compares with {reference}, and {kind.name} with {wanted}")
    if kind.name == reference:
        raise ParameterError(f"{kind.name} is what {run.path.name} compares with: name another method")
    theirs = reference_of(reference, cell["parameters"])[1]
    if own != theirs:
        wrong = [key for key in own | theirs if own.get(key) != theirs.get(key)]
        defaults = {p.name: p.default for p in kind.parameters}
        lacking = [key for key in wrong if key not in defaults]
        remedy = (
            f"add {', '.join(lacking)} to the parameters of its class"
            if lacking
            else "give " + ", ".join(f"{key}={theirs.get(key, defaults[key])!r}" for key in wrong)
        )
        raise ParameterError(
            f"{run.path.name} compares with {' '.join(filter(None, [reference, words(theirs)]))}, and "
            f"{kind.name} here with {' '.join(filter(None, [reference, words(own)]))}: {remedy}"
        )
    if len({cell["temperature"] for cell in run.cells}) > 1:
        raise ParameterError(f"{run.path.name} has several temperatures: record one run for each")
    if len(run.plan["models"]) > 1 or len(run.plan["suites"]) > 1:
        raise ParameterError(f"{run.path.name} has several models or suites: record one run for each")
    return run


def prompts_of(run: Recorded, suite: Suite | None) -> Settings:
    """The recorded prompts, including the warm-up ones, as keys of a plan.

    Raises
    ------
    ParameterError
        If the prompts have changed since.
    """
    from specviz.measure.plan import read_suites
    from specviz.replays.recordings import plan

    ((name, recorded),) = run.plan["suites"].items()
    keys: Settings = {key: run.plan[at] for key, at in (("number", "prompts"), ("warm_up", "warm_up"))}
    given = {name: suite} if suite is not None else plan(run.name)["suites"]
    (made,) = read_suites(given, keys["number"], keys["warm_up"]).values()
    if made.digest != recorded["digest"]:
        raise ParameterError(f"the prompts of {name} differ from those of {run.path.name}: record it again")
    return keys | {"number": len(made.entries), "suites": {name: made.entries + made.warm}}


def differing(run: Recorded, model: Model) -> list[str]:
    """List in words how the machine differs from the recording's; if it does, times are not compared.

    Raises
    ------
    ParameterError
        If anything that decides the texts differs: the number format, the weights or rounding kernels.
    """
    from specviz.loop.machine import identity, machine_of, number_format
    from specviz.models.kernels import rounding

    here = {
        **machine_of(model), "threads": run.plan["threads"], "dtype": number_format(model),
        "kernels": getattr(model, "kernels", None), "weights": identity(model).get("weights"),
    }  # fmt: skip
    differences: dict[str, str] = {}
    for place in run.environments.values():
        then = place | {"weights": (place.get("model") or {}).get("weights")}
        changed = {
            key: f"{key} {here[key]}, recorded {then.get(key)}" for key in here if here[key] != then.get(key)
        }
        same = rounding(here["kernels"]) == rounding(place.get("kernels"))
        texts = ("dtype", "weights", *([] if same else ["kernels"]))
        if wrong := [changed[key] for key in texts if key in changed]:
            raise ParameterError(
                f"{run.path.name} cannot be compared with this model ({'; '.join(wrong)}): record "
                f"it here, specviz.replays.recordings.record({run.name!r}, FOLDER), and compare with FOLDER"
            )
        differences |= {key: changed[key] for key in MACHINE if key in changed}
    return list(differences.values())


# ---------------------------------------------------------------- how they compare


def gains(
    mine: np.ndarray, taken: np.ndarray, base: np.ndarray, base_taken: np.ndarray,
    theirs: np.ndarray, their_taken: np.ndarray, their_base: np.ndarray, their_base_taken: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Ratio of two speedups, each of which is tokens/s over its own reference's."""
    ours = (mine / taken) / (base / base_taken)
    return ours / ((theirs / their_taken) / (their_base / their_base_taken))


def compared(ours: Results, theirs: Results, name: str, elsewhere: Sequence[str]) -> Comparison:
    """Compare the method with every recorded contender; by τ if it ran `elsewhere`."""
    sides = {side: by_cell(each) for side, each in (("ours", ours), ("theirs", theirs))}
    cell = next(each for each in ours.cells if each["cell"] != each["against"] and each["method"] == name)
    mine, base = sides["ours"][cell["cell"]], sides["ours"][cell["against"]]
    noise = 0.0 if elsewhere else max(control(ours), control(theirs))
    rows: list[Row] = []
    for each in theirs.cells:
        if each["cell"] == each["against"] or each["method"].endswith(f"_{AGAIN}"):
            continue
        other, base_rows = sides["theirs"][each["cell"]], sides["theirs"][each["against"]]
        columns = totals(*in_pairs(mine, base), *in_pairs(other, base_rows))
        if not len(columns[0]):
            continue
        cycles = totals(mine, other, value=steps_of)
        ratio = resampled(quotient, *cycles) if elsewhere else resampled(gains, *columns)
        logs = None if ratio.values is None else np.log(ratio.values)
        p = chance(math.log(ratio.median), logs, len((cycles if elsewhere else columns)[0]))
        tokens, taken, its_base, its_base_taken = (column.sum() for column in columns[4:])
        low, high = (None if end != end else end for end in (ratio.low, ratio.high))
        rows.append({
            "contender": " ".join(filter(None, [each["method"], each["draft"], words(each["parameters"])])),
            "tau": tau(other, mine),
            "speedup": float((tokens / taken) / (its_base / its_base_taken)),
            "ratio": ratio.median, "low": low, "high": high, "p": p, "clear": False,
        })  # fmt: skip
    if not rows:
        raise SpecvizError(
            "no prompt was decoded by both: see the failures in the run that compare(out=) keeps"
        )
    for row, p in zip(rows, holm([row["p"] for row in rows])):
        row |= {"p": p, "clear": p <= LEVEL and abs(math.log(row["ratio"])) > noise}
    rows.sort(key=lambda row: -row["tau" if elsewhere else "speedup"])
    lines = notes(ours, theirs, base, noise, elsewhere)
    own = own_row(cell, mine, base, theirs)
    return Comparison("τ" if elsewhere else SPEEDUP, rows, own, lines, ours, theirs)


def own_row(cell: Values, mine: list[Row], base: list[Row], theirs: Results) -> Row:
    """The method's own row of the comparison."""
    pairs = paired(mine, base)
    times = [sum(map(value, side)) for side in zip(*pairs) for value in (written, seconds)]
    recorded = next(each for each in theirs.cells if each["cell"] == each["against"])
    right = {at(row): row["ids"] for row in theirs.records() if row["cell"] == recorded["cell"]}
    same = [marked(row["ids"]) == right.get(at(row)) for row in mine if row["error"] is None]
    return {
        "contender": " ".join(filter(None, [cell["method"], cell["draft"], words(cell["parameters"])])),
        "tau": tau(mine, mine),
        "speedup": (times[0] / times[1]) / (times[2] / times[3]) if pairs else float("nan"),
        "same": sum(same), "of": len(same),
    }  # fmt: skip


def marked(ids: list[list[int]]) -> list[list[int]]:
    """Digest of a text in the form that a recorded row holds."""
    return [[int(word, 16)] for word in digest(ids).split()]


def at(row: Values) -> tuple[int, int]:
    """Key of the text that a row decodes: round and prompt."""
    return row["round"], row["prompt"]


def steps_of(row: Values) -> float:
    return float(row["steps"])


def by_cell(results: Results) -> dict[int, list[Row]]:
    """The rows of each cell."""
    made: dict[int, list[Row]] = {cell["cell"]: [] for cell in results.cells}
    for row in results.records():
        made[row["cell"]].append(row)
    return made


def tau(rows: Sequence[Row], like: Sequence[Row]) -> float:
    """Tokens per cycle, on the texts that `like` also has."""
    texts = {at(row) for row in like if row["error"] is None}
    good = [row for row in rows if row["error"] is None and at(row) in texts]
    steps = sum(row["steps"] for row in good)
    return sum(written(row) for row in good) / steps if steps else float("nan")


def in_pairs(rows: list[Row], base: list[Row]) -> tuple[list[Row], list[Row]]:
    """The rows whose times can be compared with the reference's, as `paired` chooses them, and those."""
    pairs = paired(rows, base)
    return [row for row, _ in pairs], [other for _, other in pairs]


def totals(*sides: list[Row], value: Callable[[Values], float] = seconds) -> list[np.ndarray]:
    """Tokens and seconds (or another value) of each side, float [prompts], summed over the rounds that all
    sides have."""
    good = [{at(row): row for row in side if row["error"] is None and fast(row)} for side in sides]
    shared = sorted(set.intersection(*(set(each) for each in good)), key=lambda place: place[::-1])
    prompts = sorted({prompt for _, prompt in shared})
    place = {prompt: i for i, prompt in enumerate(prompts)}
    columns = []
    for rows in good:
        for each in (written, value):
            sums = np.zeros(len(prompts))
            for key in shared:
                sums[place[key[1]]] += each(rows[key])
            columns.append(sums)
    return columns


def control(results: Results) -> float:
    """The control's noise: the larger absolute logarithm of its speed ratio's interval ends."""
    cells = by_cell(results)
    twin = next((cell for cell in results.cells if cell["method"].endswith(f"_{AGAIN}")), None)
    if twin is None:
        return math.inf
    columns = totals(*in_pairs(cells[twin["cell"]], cells[twin["against"]]))
    if not len(columns[0]):
        return math.inf
    ratio = resampled(quotient, *columns)
    ends = [end for end in (ratio.low, ratio.high) if end == end]
    return max((abs(math.log(end)) for end in ends), default=math.inf)


def notes(
    ours: Results, theirs: Results, base: list[Row], noise: float, elsewhere: Sequence[str]
) -> list[str]:
    """Notes for the reader: prompts, the reference's drift, noise, and changed versions."""
    recorded = next(cell for cell in theirs.cells if cell["cell"] == cell["against"])
    columns = totals(base, by_cell(theirs)[recorded["cell"]])
    drift = "was timed on none of them in both"
    if len(columns[0]):
        ratio = (columns[0].sum() / columns[1].sum()) / (columns[2].sum() / columns[3].sum())
        drift = f"is {ratio:.2f} times as fast here as when recorded"
    lines = [
        f"{plural(len(columns[0]), 'prompt')} of {theirs.path.name}, recorded {theirs.created[:10]}; "
        f"{recorded['method']} {drift}",
        f"tokens per cycle are compared, and no times ({'; '.join(elsewhere)}): each speedup is that of its "
        f"own machine" if elsewhere
        else "no difference is clear: there are too few prompts for a control" if noise == math.inf
        else f"the controls differ by up to {math.expm1(noise):.1%}: smaller differences are not significant",
    ]  # fmt: skip
    then, now = (next(iter(each.environments.values())).get("versions") or {} for each in (theirs, ours))
    changed = [
        f"{name} {then[name]} to {now[name]}" for name in then if name in now and now[name] != then[name]
    ]
    return lines + [f"versions since: {', '.join(changed)}"] * bool(changed)
