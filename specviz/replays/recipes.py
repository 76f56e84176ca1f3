"""Recipes: what to run here for a paper's table, so that measured numbers can be compared with printed ones.

A recipe is data. It maps rows of the table to methods and parameters, values of its columns to prompts, and
its metrics to ours. Recipes are in ``data/recipes``, one file per paper. `specviz.replays.sources` runs them
and `specviz.replays.replays` compares the numbers. Tables with nothing to measure are in `SETTINGS`, each
with the reason.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from specviz.paths import folder

Where = Mapping[str, Any]  # columns of a published table, each with a value or a list of values


@dataclass(frozen=True)
class Row:
    """A contender."""

    where: Where  # selects the rows of the published table that it reproduces
    method: str = ""  # our name of it
    values: Where = field(default_factory=dict)  # its parameters
    ours: Where | None = None  # its parameters if ours are to be used, not the authors'
    role: str | None = None  # its drafter's, a key of `Recipe.drafts`
    plan: Where = field(default_factory=dict)  # other settings of the run: dtype, temperature, context

    @property
    def calibrated(self) -> Best | None:
        """The first parameter that follows from the calibrated draft size."""
        return next((value for value in self.values.values() if isinstance(value, Best)), None)


@dataclass(frozen=True)
class Best:
    """A parameter's value, as a multiple of the draft size that calibration yields here."""

    times: float = 1.0
    values: Where = field(default_factory=dict)  # the method's other parameters in that calibration


@dataclass(frozen=True)
class Recipe:
    """What to run for a table."""

    source: str  # a key of `specviz.replays.sources.SOURCES`
    compare: tuple[
        str, ...
    ]  # the columns whose values are contenders; each pair is compared at equal values of the others
    rows: tuple[Row, ...] = ()
    # Column: its values, each with the prompts that it stands for (``kind``, ``language``).
    parts: Mapping[str, Mapping[str, Where]] = field(default_factory=dict)
    metrics: Where = field(default_factory=dict)  # the paper's metric: ours
    total: tuple[str, str] | None = None  # a column, and its value that is the mean of the others
    model: str = "town"  # of the bundled ones, as are the drafters and the suite
    drafts: Mapping[str, str] = field(default_factory=dict)  # role: drafter
    suite: str = "multi-town"
    # Fields that change if a real model is downloaded (under the name ``download``, if that differs from
    # its ``model``).
    real: Where = field(default_factory=dict)
    options: Where = field(default_factory=dict)  # further options of the source
    # ``prompts`` and ``max_new_tokens``, of quick and of full replays.
    quick: Where = field(default_factory=lambda: {"prompts": 14, "max_new_tokens": 48})
    whole: Where = field(default_factory=lambda: {"prompts": 70, "max_new_tokens": 128})
    absent: tuple[tuple[Where, str], ...] = ()  # rows that cannot be measured here, and why
    differs: tuple[tuple[str, str, str], ...] = ()  # definitions that differ: what, the paper's, ours
    theirs: Mapping[str, str] = field(default_factory=dict)  # further facts about the paper's setup
    precision: str = "not stated"  # the paper's number format, if stated
    data: str = ""  # the paper's prompts
    caption: str = ""  # of a figure whose values are not printed


# ---------------------------------------------------------------- the papers' files

PAPERS = ("unispec", "ssbd", "ssd", "bild", "cm_asd")
DRAWN = "drawn only: no values are printed, so only the curve's shape can be compared"
OF_FIGURE: dict[str, Any] = {  # defaults of figures whose values are not printed
    "compare": ["method"], "data": DRAWN, "quick": {"prompts": 6, "max_new_tokens": 40},
    "whole": {"prompts": 30, "max_new_tokens": 128},
}  # fmt: skip
UNALIGNED, ALIGNED, REJECTION = "BiLD, unaligned", "BiLD, aligned", "speculative, sampling"  # curves


def _resolved(value: Any, names: Mapping[str, Any]) -> Any:
    """Resolve a file's value: ``$NAME`` refers to `names`, ``{best = "95/110"}`` is a share of g*.

    Other keys next to ``best`` are parameters with which g* is calibrated.
    """
    if isinstance(value, str) and value.startswith("$"):
        return _resolved(names[value[1:]], names)
    if isinstance(value, list):
        return [_resolved(each, names) for each in value]
    if not isinstance(value, dict):
        return value
    if "best" in value:
        others = {key: each for key, each in value.items() if key != "best"}
        return Best(float(Fraction(value["best"])), others)
    return {key: _resolved(each, names) for key, each in value.items()}


def _recipe(keys: Mapping[str, Any], names: Mapping[str, Any]) -> Recipe:
    values = _resolved(dict(keys), names)
    tuples = {key: tuple(values.get(key, ())) for key in ("compare", "absent", "differs")}
    rows = tuple(Row(**row) for row in values.get("rows", ()))
    return Recipe(**values | tuples | {"rows": rows, "total": tuple(values.get("total", ())) or None})


RECIPES: dict[str, Recipe] = {}
CURVES: dict[str, Recipe] = {}  # figures whose values are not printed
FIGURES: dict[str, str] = {}  # figures that need no run of their own, and why
SETTINGS: dict[str, str] = {}  # tables of settings, where there is nothing to measure
for _paper in PAPERS:
    _file = tomllib.loads((folder("recipes") / f"{_paper}.toml").read_text(encoding="utf8"))
    for _name, _keys in _file["tables"].items():
        _drawn = "caption" in _keys
        _made = _recipe((OF_FIGURE if _drawn else _file["defaults"]) | _keys, _file["names"])
        (CURVES if _drawn else RECIPES)[f"{_paper}/{_name}"] = _made
    FIGURES |= {f"{_paper}/{name}": why for name, why in _file.get("elsewhere", {}).items()}
    SETTINGS |= {f"{_paper}/{name}": why for name, why in _file.get("settings", {}).items()}
