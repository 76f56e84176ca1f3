"""Schemas of the files in a run's folder and of a plan's keys; imported only when these are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NotRequired

from pydantic import AfterValidator, ConfigDict, Field, with_config
from typing_extensions import TypedDict

from specviz.files import whole_text

MOST_ROWS = 2_000_000  # rows of a plan: (cell, round, prompt)

Count = Annotated[int, Field(ge=0, le=2**53)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)]
Text = Annotated[str, AfterValidator(whole_text)]
Word = Text | int | None
Plain = Text | int | float | bool | list[Any] | dict[str, Any] | None
Fields = dict[Text, Plain]  # all fields of a row, including undeclared ones


class ModelName(TypedDict, total=False):
    """A model or a drafter of an environment."""

    name: Text | None
    parameters: Count | None
    weights: Text | None
    kernels: Text | None


@with_config(ConfigDict(extra="allow"))
class _Environment(TypedDict, total=False):
    system: Text | None
    cores: int | None
    kernels: Plain
    model: ModelName | None
    drafts: dict[Text, ModelName] | Annotated[list[ModelName], Field(max_length=0)] | None
    versions: dict[Text, Plain] | None


class Environment(_Environment, total=False):
    """Where something was measured."""

    device: Text
    processor: Text
    threads: int
    dtype: Text
    clock: Text


class RowEnvironment(_Environment):
    """Where rows were decoded; all keys are required."""

    device: Text
    processor: Text
    threads: int
    dtype: Text
    clock: Text


class NamedModel(TypedDict):
    """A model or a drafter that has a name."""

    name: Text


class ResumedEnvironment(TypedDict):
    """What a resumed run needs of an earlier environment to compare the weights."""

    model: NamedModel
    drafts: dict[Text, NamedModel]


class PlanKeys(TypedDict, total=False):
    """Keys of a plan, except its models, methods and suites, which may be objects."""

    seeds: int | Sequence[int]
    warm_up: int
    max_new_tokens: int
    temperature: Number | Sequence[Number]
    top_k: int
    top_p: Number
    threads: int
    device: Text
    dtype: Text


class ModelTable(TypedDict, total=False):
    """A model's own table in a plan."""

    device: Text | None
    dtype: Text | None
    revision: Text | None
    kernels: Text | None
    device_map: Text | dict[Text, Any] | None
    tp_plan: Text | None


class Cell(TypedDict):
    """A cell of the plan."""

    cell: Count
    model: Text
    method: Text
    draft: Text | None
    parameters: Fields
    suite: Text
    temperature: Number
    against: Count


class PlanSuite(TypedDict):
    """A suite of the plan."""

    digest: Text
    prompts: Annotated[int, Field(ge=0, le=MOST_ROWS)]


class PlanModel(TypedDict):
    """A model of the plan."""

    model: Text


class Plan(TypedDict):
    """The checked plan of a run."""

    models: NotRequired[list[PlanModel]]
    cells: list[Cell]
    suites: dict[Text, PlanSuite]
    seeds: Annotated[list[int], Field(max_length=MOST_ROWS)]
    timed: bool
    traces: NotRequired[bool]


def _consistent(plan: Plan) -> Plan:
    numbers = [cell["cell"] for cell in plan["cells"]]
    if numbers != list(range(len(numbers))):
        raise ValueError("has cells that are not numbered 0, 1, 2, ...")
    for cell in plan["cells"]:
        if cell["suite"] not in plan["suites"]:
            raise ValueError(f"has cell {cell['cell']} of a suite that is not in the plan")
        if cell["against"] >= len(numbers):
            raise ValueError(f"compares cell {cell['cell']} with a cell that is not in the plan")
    rows = sum(plan["suites"][cell["suite"]]["prompts"] for cell in plan["cells"]) * len(plan["seeds"])
    if rows > MOST_ROWS:
        raise ValueError(f"asks for {rows:,} rows; the limit is {MOST_ROWS:,}")
    return plan


class RunFile(TypedDict):
    """``run.json``."""

    plan: Annotated[Plan, AfterValidator(_consistent)]
    created: Text
    warm: NotRequired[dict[Text, Count]]  # prompts of each suite that fill memories


class RecordedModel(ModelTable):
    """A model that is loaded as a recorded plan says."""

    model: Text


class RepeatablePlan(TypedDict):
    """What a recorded plan must hold for its prompts to be decoded again."""

    models: Annotated[list[RecordedModel], Field(min_length=1)]
    prompts: Count | None
    warm_up: Count
    max_new_tokens: Count
    threads: Count


class RepeatableEnvironment(TypedDict):
    """Where the rows of such a plan were decoded."""

    kernels: NotRequired[Text | None]


class RepeatableRun(TypedDict):
    """A recorded run whose prompts can be decoded again."""

    plan: RepeatablePlan
    environments: Annotated[dict[Text, RepeatableEnvironment], Field(min_length=1)]


class FailedRow(TypedDict):
    """A row whose decoding failed; every row has these fields."""

    cell: Count
    round: Count
    prompt: Count
    error: Text | None
    environment: NotRequired[Text | None]
    seed: NotRequired[int | None]
    id: NotRequired[Word]
    kind: NotRequired[Word]
    language: NotRequired[Word]
    model: NotRequired[Text]
    method: NotRequired[Text]
    draft: NotRequired[Text | None]
    parameters: NotRequired[Fields]
    suite: NotRequired[Text]


class PhaseSums(TypedDict):
    """Sums over a text's cycles after the prefill, as `phases.SUMS`."""

    cycles: Count
    emitted: Count
    context: Count
    passes: Count
    fed: Count
    draft_passes: Count
    draft_fed: Count
    draft: Seconds
    forward: Seconds
    verify: Seconds
    commit: Seconds
    between: Seconds


class DecodedRow(FailedRow):
    """A row of a decoded prompt."""

    sitting: Word
    ids: list[list[int]]
    tokens: Count
    written: NotRequired[Count | None]  # tokens without a canvas's padding, which `tokens` includes
    steps: Count
    peak_memory: Count | None
    device_memory: Count | None
    phases: NotRequired[PhaseSums | None]


class TimedRow(DecodedRow):
    """A row of a run that measured times."""

    timed: Literal[True]
    prefill_seconds: Seconds
    decode_seconds: Seconds


class UntimedRow(DecodedRow):
    """A row of a run without times."""

    timed: Literal[False]
    prefill_seconds: None
    decode_seconds: None


class SuiteEntry(TypedDict):
    """A measured prompt as stored in the folder."""

    reference: NotRequired[Text | list[Any] | None]
    id: NotRequired[Word]
    kind: NotRequired[Word]
    language: NotRequired[Word]
