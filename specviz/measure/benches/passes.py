"""s(g): cost of a pass over g tokens in units of a pass over one, in each layout and number format."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Annotated, Any, Generic

import numpy as np
import torch

from specviz.draft import Draft
from specviz.errors import ModelError, ParameterError, plural
from specviz.measure.report import Bar, Estimate, Report, Row, Tick
from specviz.measure.timing import Call, K, clock_of, seconds_of, setting, settled, synchroniser
from specviz.methods import find
from specviz.models import kernels
from specviz.models.devices import to_format
from specviz.models.protocols import Context, Model

SIZES = (1, 2, 4, 5, 8, 9, 16, 17, 32)
FORMATS = (torch.float32, torch.bfloat16)
REFERENCE = kernels.PLAIN, "float32"  # baseline of the others, in the same rounds
COLUMNS = [
    ("model", "model", ""), ("layout", "layout", ""), ("format", "format", ""), ("g", "g", "{:d}"),
    ("median", "ms", "{:.2f}"), ("q25", "25%", "{:.2f}"), ("q75", "75%", "{:.2f}"),
    ("ratio", "s(g) [95%]", ""), ("over", "over plain float32 [95%]", ""),
]  # fmt: skip
DROP_ORDER = ("q25", "q75", "over")
NOTES = [
    "s(g): time of a pass over g tokens divided by the time of a pass over one, in the same layout and "
    "format. It is flat while reading the weights costs more than computing with them, and then grows.",
    "Layouts: plain is torch's own product; transposed is one buffer whose rows are the inputs; onednn is "
    "oneDNN's blocked layout. The numbers are for this model on this machine.",
    "int8 and int4 weights are rounded to integers, which makes a different model; they compute in "
    "bfloat16. int4 is listed if the weights came in 4 bits.",
]
INVARIANT = ", invariant"  # suffix of a layout's name
# By size: largest time of an invariant pass, relative to the fastest other one in the same format.
COST = {1: 1.1, 9: 1.1}
# By model, format and size: largest time of the layout in use, relative to the plain product in float32, on
# one thread.
BARS = {
    "smollm2": {
        "float32": {1: 1.02, 5: 0.58, 9: 0.62, 17: 0.66},
        "bfloat16": {1: 0.60, 5: 0.36, 9: 0.38, 17: 0.41},
    }
}
SHARE = 0.42  # least share of the memory's read rate at which their bfloat16 passes read the weights


def measure(model: Model, sizes: Sequence[int] = SIZES, context: int = 128, rounds: int = 31) -> list[Row]:
    """Time passes of each size after the same context, in turns.

    Parameters
    ----------
    model : Model
    sizes : sequence of int
        Numbers of tokens in a pass; 1 is added if missing.
    context : int
        Tokens committed before the pass.
    rounds : int
        Number of passes of each size.

    Returns
    -------
    list of dict
        For each size: ``g``, ``median``, ``q25``, ``q75`` (milliseconds), ``ratio`` (s(g), an `Estimate`: the
        median over rounds of its time over that of one token in the same round), ``each`` (ms per token).

    Raises
    ------
    ParameterError
        If the model's context is too short.
    """
    return rows_of(measure_models({"": model}, sizes, context, rounds)[""])


def measure_models(
    models: Mapping[K, Model],
    sizes: Sequence[int] = SIZES,
    context: int = 128,
    rounds: int = 31,
    tick: Tick = lambda done, of, name: None,
    rows: int = 1,
    prefill: int = 0,
) -> dict[K, dict[int, np.ndarray]]:
    """Like `measure`, for several models that take turns within each round; a pass may hold several rows.

    Returns
    -------
    dict of label to dict of size to array [rounds]
        Milliseconds; under -1 those of a prefill of `prefill` tokens, if any.
    """
    with closing(Rounds(models, sizes, context, rows, prefill)) as again, settled():
        for turn in range(rounds):
            again()
            tick(turn + 1, rounds, "rounds")
        return again.spent()


class Rounds(Generic[K]):
    """Passes of models after one context, kept open so that rounds can be timed with other work in between.

    Parameters
    ----------
    models, sizes, context, rows, prefill
        As for `measure_models`.
    text : sequence of int, optional
        Tokens to read, repeated as needed; default: random ones. The choice matters for a mixture, as
        neighbouring tokens of a text use the same experts more often than random ones do.

    Raises
    ------
    ParameterError
        If a model's context is too short.
    """

    def __init__(
        self, models: Mapping[K, Model], sizes: Sequence[int], context: int, rows: int = 1, prefill: int = 0,
        text: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.sizes = sorted({1, *sizes})
        if self.sizes[0] < 1 or context < 1:
            raise ParameterError("a pass holds at least one token, and so does its context")
        self.models, self.context, self.rows, self.prefill = models, context, rows, prefill
        self.text = text
        self.ms = {label: {g: list[float]() for g in self.sizes + [-1] * bool(prefill)} for label in models}
        self.turn = 0
        self.open: dict[K, tuple[Context, dict[int, Call]]] = {}
        try:
            for label, model in models.items():
                self._open(label, model)
        except BaseException:
            self.close()
            raise

    def _open(self, label: K, model: Model) -> None:
        context, longest = self.context, self.sizes[-1]
        if context + longest > model.max_length:
            raise ParameterError(
                f"{context} tokens of context and {longest} in a pass do not fit into {model.name}'s "
                f"{model.max_length}"
            )
        ids = self._ids(model)
        begun = model.open(ids[:, :context].tolist(), longest)
        passes: dict[int, Call] = {
            g: partial(begun.forward, [Draft.chain(row[context : context + g - 1]) for row in ids])
            for g in self.sizes
        }
        self.open[label] = begun, passes
        begun.prefill()
        for g in self.sizes * 3:
            passes[g]()  # the first also computes the context's last token

    def _ids(self, model: Model) -> np.ndarray:
        shape = self.rows, self.context + self.sizes[-1]
        if len(self.text):
            return np.resize(np.asarray(self.text) % model.vocabulary, shape)
        return np.random.default_rng(0).integers(0, model.vocabulary, shape)

    def close(self) -> None:
        """Close the contexts."""
        for begun, _passes in self.open.values():
            begun.close()

    def __call__(self) -> None:
        """Time one round: every size once, on all models in turn; the first size rotates."""
        first = self.turn % len(self.sizes)
        for g in self.sizes[first:] + self.sizes[:first]:
            for label, (_, passes) in self.open.items():
                self._time(label, g, passes[g])
        for label, model in self.models.items() if self.prefill else ():
            new = model.open(self._ids(model)[:, : self.prefill + 1].tolist(), 1)
            try:
                self._time(label, -1, new.prefill)
            finally:
                new.close()
        self.turn += 1

    def _time(self, label: K, g: int, call: Call) -> None:
        model = self.models[label]
        seconds = seconds_of(call, synchroniser(model.device), clock_of(model)[0])
        self.ms[label][g].append(1e3 * seconds)

    def spent(self) -> dict[K, dict[int, np.ndarray]]:
        """Milliseconds of each round, as `measure_models` returns them."""
        return {label: {g: np.array(each) for g, each in by.items()} for label, by in self.ms.items()}


def rows_of(spent: dict[int, np.ndarray], reference: dict[int, np.ndarray] | None = None) -> list[Row]:
    """A row for each size; with a `reference` also the time relative to it, as an `Estimate`."""
    rows = []
    for g, times in spent.items():
        q25, median, q75 = np.quantile(times, (0.25, 0.5, 0.75)).tolist()
        row = {"g": g, "median": median, "q25": q25, "q75": q75, "each": median / g}
        row["ratio"] = Estimate.of((times / spent[1]).tolist())
        row["over"] = None if reference is None else Estimate.of((times / reference[g]).tolist())
        rows.append(row)
    return rows


def variants(model: Model) -> dict[tuple[str, str], Any]:
    """A model in each layout and number format available for it here, by layout and format.

    Only a causal torch model on the CPU has several; any other is returned as it was loaded.
    """
    from specviz.models.model import Model as Causal

    own = _label(model)
    if not isinstance(model, Causal) or not model.plain or torch.device(model.device).type != "cpu":
        return {own: model}
    made = {}
    for dtype in FORMATS:
        net: Any = model.net
        if model.dtype != dtype:
            net = copy.deepcopy(net)
            to_format(net, dtype)
        for layout in kernels.candidates(net.device, dtype):
            label = layout, str(dtype).removeprefix("torch.")
            made[label] = model if label == own else Causal(net, model.tokenizer, model.name, kernels=layout)
        if kernels.takes_halves(net) and kernels.in_reach(net):
            halves = copy.deepcopy(net)
            kernels.round_to_halves(halves)
            made["packed", kernels.FP16] = Causal(halves, model.tokenizer, model.name, kernels=kernels.FP16)
        for layout in kernels.WHOLE_NUMBERS:
            with suppress(ModelError):  # only in bfloat16, and int4 only if the weights came so
                whole = Causal(net, model.tokenizer, model.name, kernels=layout)
                made.setdefault(_label(whole), whole)
        again = Causal(net, model.tokenizer, model.name, kernels=None)
        with suppress(ModelError):  # if torch's products do not allow it
            again.make_invariant()
            made.setdefault(_label(again), again)
    return made if own in made else {**made, own: model}


def formats(model: Model) -> dict[str, Model]:
    """A causal model on the CPU in each number format available for it here, by the format's name.

    float32 and bfloat16 in their fastest layouts, bfloat16 with invariant passes if torch allows it here, as
    `load` makes them; a float32 model stored in float16 (``fp16``) both so and in four bytes per weight; then
    integer weights, if torch multiplies them and, for ``int4``, if the weights came so.

    Raises
    ------
    ModelError
        If the model is not causal or not on the CPU.
    """
    from specviz.models.model import Model as Causal

    if not isinstance(model, Causal) or torch.device(model.device).type != "cpu":
        raise ModelError(
            f"{model.name} is not a causal model on the CPU: its number formats are not compared"
        )
    made: dict[str, Model] = {}
    net = model.net
    for dtype in FORMATS:
        net = copy.deepcopy(net)
        to_format(net, dtype)
        name, laid = str(dtype).removeprefix("torch."), Causal(net, model.tokenizer, model.name)
        if dtype == torch.bfloat16:
            with suppress(ModelError):
                laid.make_invariant()
        if laid.kernels == kernels.FP16:
            made[name] = Causal(net, model.tokenizer, model.name, kernels=kernels.ONEDNN)
            name = kernels.FP16
        made[name] = laid
    for layout in kernels.WHOLE_NUMBERS:
        with suppress(ModelError):
            made[layout] = Causal(net, model.tokenizer, model.name, kernels=layout)
    return made


def _label(model: Any) -> tuple[str, str]:
    """A model's layout, and the number format of its weights."""
    layout, number = getattr(model, "kernels", "–"), str(model.dtype).removeprefix("torch.")
    if layout in (kernels.FP16, *kernels.WHOLE_NUMBERS):
        layout, number = "packed", layout
    return layout + INVARIANT * getattr(model, "invariant", False), number


def bench(
    model: Model,
    drafts: list[Model],
    *,
    context: Annotated[int, "Tokens committed before the pass."] = 128,
    largest: Annotated[int, "Maximum number of tokens in a pass."] = 32,
    rounds: Annotated[int, "Number of passes of each size."] = 31,
    floor: Annotated[bool, "Also measure how fast a pass and its parts read the weights."] = False,
    tick: Tick = lambda done, of, name: None,
) -> Report:
    """Measure s(g) of the target in each layout and number format, and of each draft model as loaded."""
    # an EAGLE drafter has no passes of its own
    drafts = [each for each in drafts if find("speculative").suited([each])]
    models = [model, *drafts]
    context = min(context, model.max_length // 2)
    sizes = [g for g in SIZES if g <= min(largest, min(m.max_length for m in models) - context)]
    used = _label(model)
    spent = measure_models(variants(model), sizes, context, rounds, tick=tick)
    rows: list[Row] = []
    for (layout, number), times in spent.items():
        made = rows_of(times, spent.get(REFERENCE))
        labels = {"model": model.name, "layout": layout, "format": number, "used": (layout, number) == used}
        rows += [labels | row for row in made]
    for each in drafts:
        labels = {"model": each.name, "layout": getattr(each, "kernels", "–"), "used": True}
        labels["format"] = str(each.dtype).removeprefix("torch.")
        rows += [labels | row for row in measure(each, sizes, context, rounds)]
    runs = f"{model.name} runs {used[0]}, {used[1]}"
    title = f"One pass over g tokens after {context}, median of {rounds}; {runs}"
    about = setting(model, drafts, context=context, rounds=rounds, clock=clock_of(model)[1], kernels=None)
    bars = _bars(model, rows) + _cost(model, rows)
    parts, notes = [], NOTES
    if floor:
        from specviz.measure.benches import floor as floors

        parts.append(floors.measure(model, context, rounds))
        bars += _shares(model, parts[0].rows)
        if any(row.get("share", 0) > 1 for row in parts[0].rows):
            notes = [*NOTES, floors.CACHED]
    return Report("passes", title, about, COLUMNS, rows, bars, notes, DROP_ORDER, parts)


def _cost(model: Model, rows: list[Row]) -> list[Bar]:
    """Bars on an invariant pass relative to the fastest other one, in the model's format."""
    number = _label(model)[1]
    mine = [row for row in rows if row["model"] == model.name and row["format"] == number]
    bars = []
    for g, limit in COST.items() if model.name.split(" ")[0] in BARS else ():
        times = {row["layout"]: row["median"] for row in mine if row["g"] == g}
        ordinary = [time for layout, time in times.items() if not layout.endswith(INVARIANT)]
        for layout in times if ordinary else ():
            if not layout.endswith(INVARIANT):
                continue
            words = f"an invariant pass over {plural(g, 'token')} relative to the fastest other one"
            bars.append(Bar(words, times[layout] / min(ordinary), limit, "at most"))
    return bars


def _bars(model: Model, rows: list[Row]) -> list[Bar]:
    number = _label(model)[1]
    limits = BARS.get(model.name.split(" ")[0], {}).get(number, {})
    mine = {row["g"]: row for row in rows if row["used"] and row["format"] == number and row["over"]}
    plain = "the plain product" if number == REFERENCE[1] else "the plain product in float32"
    return [
        Bar(f"a pass over {g} tokens relative to {plain}", mine[g]["over"].median, limit, "at most")
        for g, limit in limits.items()
        if g in mine
    ]


def _shares(model: Model, rows: list[Row]) -> list[Bar]:
    """Bars on the rate at which whole passes in bfloat16 read the weights."""
    if model.name.split(" ")[0] not in BARS or _label(model)[1] != "bfloat16":
        return []
    words = "share of the memory's read rate in a pass over"
    whole = [row for row in rows if row["part"] == "the whole pass"]
    return [Bar(f"{words} {plural(row['g'], 'token')}", row["share"], SHARE, "at least") for row in whole]
