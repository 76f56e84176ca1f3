"""Plan of a benchmark run: models x methods x parameters x suites x seeds, checked before any work.

A plan comes from a small TOML file, a dict or arguments. Lists are expanded to all combinations. Every cell
(a model, a method with its parameters, a suite, a temperature) is compared with the reference that it speeds
up, which the plan adds by itself.

A model is a name, or a table that also places it: ``device``, or ``device_map`` (its layers on several
devices), or ``tp_plan = "auto"`` (every layer split over the ranks of torchrun), as for `specviz.load`.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from specviz import methods
from specviz.arguments import MOST, check_int
from specviz.errors import ParameterError, PromptError, near
from specviz.files import checked, exists
from specviz.loop.checks import check_prompts as entries_of
from specviz.loop.drafters import bundled_draft
from specviz.measure.prompts import first_turn_key
from specviz.measure.report import Entry, Settings, Values
from specviz.measure.rows import words
from specviz.measure.schema import ModelTable, PlanKeys
from specviz.measure.timing import BASELINE
from specviz.methods.hooks import ADDITIONS
from specviz.methods.sampling import Sampling, check_drawing
from specviz.models.loading import address
from specviz.models.loading import find as find_model
from specviz.models.protocols import Model
from specviz.paths import expanded
from specviz.rules.parameters import Value
from specviz.streams import Stream
from specviz.suites import Suite as Prompts
from specviz.suites import spread, suite

# Key: default.
KEYS: Settings = {
    "models": ("town",), "methods": None, "suites": ("town",), "seeds": (0,), "number": None, "warm_up": 5,
    "max_new_tokens": 128, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "threads": 1, "timed": True,
    "traces": False, "device": "cpu", "dtype": "float32", "draft": None,
}  # fmt: skip
SPREAD = ("device_map", "tp_plan")  # instead of a device: spread over several
MODEL = ("model", "draft", "device", "dtype", "revision", "kernels", *SPREAD)  # keys of a model's own table
CANVAS, STREAM = "stepwise", "retranslate"
LANGUAGES = ("template", "source_language", "target_language")  # what compared streams must share


@dataclass(frozen=True)
class Cell:
    """One row of the table."""

    cell: int  # its number
    model: str
    method: str
    draft: str | None  # None for a method that needs none
    parameters: Settings  # given parameters of the method
    suite: str
    temperature: float
    against: int  # number of the reference's cell; a reference has its own

    @property
    def label(self) -> str:
        """The method's name in a table."""
        parts = [self.method, *([self.draft] if self.draft else []), words(self.parameters)]
        return " ".join(filter(None, parts))


@dataclass
class Suite:
    """Prompts under a name: those to measure, and others that first fill the methods' memories."""

    name: str
    entries: list[Entry]
    warm: list[Entry]

    @property
    def digest(self) -> str:
        """Hash of all its prompts, in order."""
        prompts = [list(map(plain, self.entries)), list(map(plain, self.warm))]
        content = json.dumps(prompts, ensure_ascii=False)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


@dataclass
class Plan:
    """A plan with all names and numbers checked."""

    models: list[Settings]  # ``model`` (a name), ``device``, ``device_map`` or ``tp_plan``, ``dtype`` ...
    cells: list[Cell]
    suites: dict[str, Suite]  # by name
    seeds: list[int]
    options: Settings  # ``max_new_tokens``, ``top_k``, ``top_p``
    number: int | None  # prompts of each suite; None: all
    warm_up: int
    threads: int
    timed: bool
    traces: bool
    objects: dict[str, Model] = field(
        default_factory=dict
    )  # models in memory, which cannot leave this process

    @classmethod
    def of(cls, given: str | Path | Values | None = None, **keys: Any) -> Plan:
        """Read a plan and check it; arguments win over the file.

        Raises
        ------
        ParameterError, PromptError, ModelError
            With one line that names the wrong entry.
        """
        plan_keys = read(given) | {name: value for name, value in keys.items() if value is not None}
        if "prompts" in plan_keys:
            raise ParameterError(
                "a plan has no key 'prompts': use number = 20 for how many of each suite and suites = "
                "['town', 'mine.jsonl'] for suites and files"
            )
        for name in plan_keys:
            if name not in KEYS:
                raise ParameterError(f"a plan has no key {name!r}" + near(name, KEYS))
        if "models" not in keys:
            _refuse_two(plan_keys.get("models"), keys)
        plan_keys = KEYS | plan_keys
        plan_keys |= {name: plain_numbers(plan_keys[name]) for name in PlanKeys.__annotations__}
        checked(PlanKeys, plan_keys, "the plan", error=ParameterError)
        if plan_keys["methods"] is None:
            raise ParameterError("a plan needs methods, such as methods = ['prompt_lookup', 'unispec']")
        number = None if plan_keys["number"] is None else check_int("number", plan_keys["number"], 1)
        warm_up = check_int("warm_up", plan_keys["warm_up"], 0)
        for name in ("timed", "traces"):
            if not isinstance(plan_keys[name], bool):
                raise ParameterError(f"{name} must be true or false, got {plan_keys[name]!r}")
        seeds = [check_int("seeds", seed, 0) for seed in several("seeds", plan_keys["seeds"])]
        once("seeds", seeds)
        top = {"top_k": plan_keys["top_k"], "top_p": plan_keys["top_p"]}
        temperatures = several("temperature", plan_keys["temperature"])
        temperatures = [Sampling(value, **top).temperature for value in temperatures]
        once("temperature", temperatures)
        check_drawing(any(temperatures), **top)
        suites = read_suites(plan_keys["suites"], number, warm_up)
        objects: dict[str, Model] = {}
        models, drafts = read_models(plan_keys, objects)
        contenders = read_methods(plan_keys["methods"], objects)
        longest = check_int("max_new_tokens", plan_keys["max_new_tokens"], 1, MOST)
        plan = cls(
            models, [], suites, seeds, {"max_new_tokens": longest} | top,
            number, warm_up, check_int("threads", plan_keys["threads"], 1), plan_keys["timed"],
            plan_keys["traces"], objects,
        )  # fmt: skip
        for model, model_drafts in zip(models, drafts):
            lacking = [methods.find(each["method"]) for each in contenders if not each["draft"]]
            wanted = {kind.drafts_with for kind in lacking if kind.needs_draft}
            if model_drafts and wanted and "model" not in wanted:  # it would run with a bundled one
                raise ParameterError(
                    f"no method here drafts with {model_drafts[0]}: drop it, or name heads and the like "
                    "in the method that takes them, such as 'eagle draft=NAME'"
                )
            for name, temperature in product(suites, temperatures):
                plan._add(model["model"], name, float(temperature), contenders, model_drafts)
        return plan

    def _add(
        self, model: str, suite: str, temperature: float, contenders: list[Settings], drafts: list[str]
    ) -> None:
        """Add the cells of one model, suite and temperature: each contender's, its reference's first."""
        numbers: dict[str, int] = {}

        def number(method: str, draft: str | None, parameters: Settings, against: int | None) -> int:
            key = json.dumps([method, draft, parameters], sort_keys=True)
            if key not in numbers:
                numbers[key] = at = len(self.cells)
                where = (suite, temperature, at if against is None else against)
                self.cells.append(Cell(at, model, method, draft, parameters, *where))
            return numbers[key]

        for each in contenders:
            method, parameters = each["method"], each["parameters"]
            kind = methods.find(method)
            if kind.only_greedy and temperature:
                raise ParameterError(f"{method} decodes greedily: leave temperature at 0 for it")
            check_kind(method, kind.streams, self.suites[suite])
            if each["draft"] and not kind.needs_draft:
                raise ParameterError(f"{method} takes no draft: drop draft={each['draft'][0]}")
            reference, shared = reference_of(method, parameters)
            own = method == reference and kind(**parameters).values == kind(**shared).values
            base = number(reference, None, shared, None)
            if own:
                continue
            fitting = drafts if kind.drafts_with == "model" else []  # heads and the like are named per method
            for draft in drafts_of(kind, model, each["draft"] or fitting):
                number(method, draft, parameters, base)

    @property
    def settled(self) -> Settings:
        """The plan as plain data: two runs with the same data have the same rows, except for timings."""
        return {
            "models": self.models,
            "cells": [asdict(cell) for cell in self.cells],
            "suites": {
                name: {"digest": each.digest, "prompts": len(each.entries)}
                for name, each in self.suites.items()
            },
            "seeds": self.seeds, "prompts": self.number, "warm_up": self.warm_up, **self.options,
            "threads": self.threads, "timed": self.timed, "traces": self.traces,
        }  # fmt: skip

    @property
    def digest(self) -> str:
        """Hash of `settled`."""
        return hashlib.sha256(json.dumps(self.settled, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def rows(self) -> int:
        """How many rows the finished run has."""
        return sum(len(self.suites[cell.suite].entries) for cell in self.cells) * len(self.seeds)


# ---------------------------------------------------------------- reading


def read(given: str | Path | Values | None) -> Settings:
    """Read the keys of a TOML file or a dict."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        return dict(given)
    path = expanded(given, ParameterError)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ParameterError(f"cannot read the plan {path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise ParameterError(f"the plan {path} is not UTF-8 text") from None
    except (ValueError, RecursionError) as error:  # not TOML, or a number of thousands of digits
        raise ParameterError(f"the plan {path} is not TOML: {error}") from None


def plain_numbers(value: Value) -> Value:
    """NumPy's numbers and arrays, and ranges, as Python's numbers and lists, which JSON can hold."""
    if isinstance(value, range | list | tuple):
        return [plain_numbers(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


def several(name: str, value: Any) -> list[Any]:
    """A list with at least one value; a single value becomes a list of one."""
    values = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not values:
        raise ParameterError(f"{name} is an empty list: name at least one")
    return values


def once(name: str, values: Iterable[Any]) -> None:
    """Refuse duplicates in a list."""
    seen: list[Any] = []
    for value in values:
        if value in seen:
            raise ParameterError(f"{name} holds {value!r} twice")
        seen.append(value)


def name_of(model: Model, what: str, objects: dict[str, Model]) -> str:
    """A model's name; a model in memory is added to `objects` under it."""
    if isinstance(model, str | Path):
        find_model(model) if not str(model).startswith(("hf:", "gguf:")) else None
        return address(model)
    if not (hasattr(model, "open") and hasattr(model, "encode")):
        raise ParameterError(f"{what} must be a name, a folder, hf:<id> or a loaded model, got {model!r:.80}")
    if objects.setdefault(model.name, model) is not model:
        raise ParameterError(f"two models in memory are called {model.name!r}: load them under other names")
    return model.name  # type: ignore[no-any-return]


def _refuse_two(models: Any, keys: Values) -> None:
    """Refuse an argument that a model's own table in the file contradicts."""
    for i, each in enumerate(models if isinstance(models, list | tuple) else ()):
        own = each if isinstance(each, Mapping) else {}
        for name in ("device", "dtype", "draft"):
            if keys.get(name) is not None and own.get(name, keys[name]) != keys[name]:
                raise ParameterError(
                    f"models[{i}] of the plan has its own {name}, {own[name]!r}: change it there, or drop "
                    f"{name}={keys[name]!r}"
                )


def read_models(plan_keys: Values, objects: dict[str, Model]) -> tuple[list[Settings], list[list[str]]]:
    """Each model as the plan stores it, and the names of its draft models."""
    models, drafts = [], []
    for i, each in enumerate(several("models", plan_keys["models"])):
        entry = dict(each) if isinstance(each, Mapping) else {"model": each}
        for key in entry:
            if key not in MODEL:
                raise ParameterError(f"models[{i}] has no key {key!r}" + near(key, MODEL))
        checked(ModelTable, entry, f"the plan, models[{i}]", error=ParameterError)
        if "model" not in entry:
            raise ParameterError(f"models[{i}] lacks its model, such as {{model = 'town'}}")
        model: Settings = {"model": name_of(entry["model"], f"models[{i}]", objects)}
        if model["model"] not in objects:
            model |= {key: entry.get(key, plan_keys[key]) for key in ("device", "dtype")}
            model |= {key: entry[key] for key in ("revision", "kernels", *SPREAD) if entry.get(key)}
            if not model.keys().isdisjoint(SPREAD):
                model["device"] = entry.get("device")  # `load` refuses both at once
        own_draft = entry.get("draft", plan_keys["draft"])
        names = [] if own_draft is None else several("draft", own_draft)
        models.append(model)
        drafts.append([name_of(draft, f"the draft of models[{i}]", objects) for draft in names])
    once("models", (model_["model"] for model_ in models))
    return models, drafts


def read_methods(given: Any, objects: dict[str, Model]) -> list[Settings]:
    """Each method with each combination of its parameters, checked."""
    contenders = []
    kinds: dict[str, type[methods.Method]] = {}
    for i, each in enumerate(several("methods", given)):
        entry = dict(each) if isinstance(each, Mapping) else {"method": each}
        if "method" not in entry:
            raise ParameterError(f"methods[{i}] lacks its method, such as {{method = 'unispec'}}")
        given_method, own_draft = entry.pop("method"), entry.pop("draft", None)
        if not isinstance(given_method, str | type | methods.Method):
            raise ParameterError(
                f"methods[{i}] must be a name, a class or a method, got {given_method!r:.80}"
            )
        name, entry = methods.settings_of(given_method, entry)
        names = [] if own_draft is None else several("draft", own_draft)
        drafts = [name_of(draft, f"the draft of {name}", objects) for draft in names]
        kind = methods.find(name)
        if kinds.setdefault(name, kind) is not kind:
            raise ParameterError(f"methods holds two classes named {name!r}: give each its own name")
        choices = [several(parameter, plain_numbers(value)) for parameter, value in entry.items()]
        for values in product(*choices):
            parameters = dict(zip(entry, values))
            kind(**parameters)  # refuses unknown and wrong parameters
            for key, value in parameters.items():
                if value in (math.inf, -math.inf):  # JSON has none
                    raise ParameterError(f"{key} must be finite in a plan, got {value}: write 1e6, say")
            one = {"method": name, "parameters": parameters, "draft": drafts}
            if one in contenders:
                raise ParameterError(f"methods holds {f'{name} {words(parameters)}'.rstrip()} twice")
            contenders.append(one)
    return contenders


def read_suites(given: Any, count: int | None, warm_up: int) -> dict[str, Suite]:
    """The suites by name: prompts to measure, and other prompts to warm up with."""
    named: list[tuple[str, Any]] = []
    if isinstance(given, Mapping):
        named = [(str(name), entries) for name, entries in given.items()]
    else:
        for each in several("suites", given):
            if not isinstance(each, str | Path | Prompts):
                raise ParameterError(f"a suite must be a name or a file, got {each!r:.80}")
            read_in = each if isinstance(each, Prompts) else suite(each)
            file = isinstance(each, Path) or (isinstance(each, str) and exists(expanded(each)))
            named.append((Path(read_in.name).stem if file else read_in.name, read_in))
    once("suites", (name for name, _ in named))
    suites = {}
    for name, source in named:
        if isinstance(source, Suite):  # it says itself which prompts are measured
            suites[name] = Suite(name, entries_of(source.entries), source.warm and entries_of(source.warm))
            continue
        if isinstance(source, str | Path | Prompts):
            entries = list(suite(source) if isinstance(source, str | Path) else source)
        elif not isinstance(source, Iterable):
            raise ParameterError(
                f"the suite {name} must be a name, a file or a list of prompts, got {source!r:.60}"
            )
        elif all(isinstance(each, Stream) for each in source):
            entries = [streamed(stream) for stream in source]
        else:
            entries = entries_of(source)
        if not entries:
            raise PromptError(f"the suite {name} holds no prompts")
        chosen = entries if count is None else spread(entries, count)
        suites[name] = Suite(name, chosen, others(entries, chosen, warm_up))
    return suites


def streamed(stream: Stream) -> Entry:
    """A stream as an entry of a suite."""
    if not isinstance(stream.updates, list | tuple):
        raise PromptError(
            "a stream that arrives live cannot be measured repeatedly: give its updates as a list"
        )
    attributes = {key: getattr(stream, key) for key in ("id", "language", "reference")}
    return {"stream": stream, "kind": "stream"} | {k: v for k, v in attributes.items() if v is not None}


def content_key(entry: Entry) -> str:
    """A key that is equal for entries that start with the same text."""
    return json.dumps(plain(entry)["stream"]) if "stream" in entry else first_turn_key(entry)


def plain(entry: Values) -> Entry:
    """A suite's entry as JSON data."""
    content = dict(entry)
    if "stream" in content:
        content["stream"] = [[update.text, update.time] for update in content["stream"].updates]
    return content


# ---------------------------------------------------------------- comparisons


def reference_of(method: str, parameters: Values) -> tuple[str, Settings]:
    """The method that another one speeds up, and its parameters.

    Autoregressive decoding; for a canvas, one token per pass in the same blocks with the same cache; for a
    stream, re-translation from scratch with the same prompt.
    """
    kind = methods.find(method)
    if not kind.canvas and not kind.streams:
        return BASELINE, {}
    name = CANVAS if kind.canvas else STREAM
    values = kind(**parameters).values
    shared = {
        p.name: values[p.name]
        for p in methods.find(name).parameters
        if (kind.canvas or p.name in LANGUAGES) and values.get(p.name, p.default) != p.default
    }
    return name, ({"mode": "rt"} if kind.streams else {}) | shared


def check_kind(method: str, streams: bool, suite: Suite) -> None:
    """Refuse streams for a method that continues prompts, and prompts for one that decodes streams."""
    if all(("stream" in entry) == streams for entry in suite.entries):
        return
    what = "sources that arrive in updates" if streams else "fixed prompts"
    raise PromptError(f"{method} decodes {what}, and the suite {suite.name} holds others")


def drafts_of(kind: type[methods.Method], model: str, drafts: list[str]) -> Sequence[str | None]:
    """The drafters that a method runs with."""
    if not kind.needs_draft:
        return [None]
    if drafts:
        return drafts
    bundled = bundled_draft(kind, model)
    if bundled is None:
        what = ADDITIONS.get(kind.drafts_with, "a draft model")
        raise ParameterError(f"{kind.name} needs {what} for {model}: add draft = 'NAME' to the plan")
    return [bundled]


def others(entries: list[Entry], chosen: list[Entry], warm_up: int) -> list[Entry]:
    """Up to `warm_up` prompts that are not measured, to fill the methods' memories."""
    taken = set(map(content_key, chosen))
    rest = [entry for entry in entries if content_key(entry) not in taken]
    return spread(rest, max(len(chosen), warm_up))[:warm_up] if rest else []
