"""The papers' own setups: the published checkpoints, data and settings with which each table was measured.

They are data in ``data/published/setups.toml``, with a part for each model of a paper. `choose` adapts a
table's recipe to a part. We have never run any part on the published weights.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from specviz.errors import ModelError, ParameterError
from specviz.files import checked
from specviz.measure.report import Settings
from specviz.paths import folder, home
from specviz.replays.recipes import RECIPES, Recipe
from specviz.replays.tasks import tasks_of
from specviz.suites import Suite, suite

PAPER = "paper"  # the only setup so far
FILE = "setups.toml"
BIN = "pytorch_model.bin"  # weights that must be converted once
BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8}  # per number
NEVER_RUN = (
    "this recipe was never run on these published weights; its loading is tested on tiny models of "
    "the same shape"
)


@dataclass(frozen=True)
class Shape:
    """Dimensions of a network; for an encoder-decoder, those of its decoder."""

    layers: int
    hidden: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    heads: int = 0  # 0: the same as `kv_heads`
    vocabulary: int = 0
    tied: bool = False  # whether the output head shares the embeddings' weights

    @property
    def parameters(self) -> int:
        """Number of weights of a gated decoder of this shape, without its norms."""
        attention = 2 * self.hidden * self.head_dim * ((self.heads or self.kv_heads) + self.kv_heads)
        layer = attention + 3 * self.hidden * self.feed_forward
        return self.layers * layer + (2 - self.tied) * self.vocabulary * self.hidden

    def cached(self, tokens: int) -> int:
        """How many numbers a text's keys and values hold."""
        return 2 * self.layers * self.kv_heads * self.head_dim * tokens


@dataclass(frozen=True)
class Checkpoint:
    """A model as its makers published it.

    Attributes
    ----------
    id : str
        Its id on the Hugging Face hub.
    architecture : str
        The class that its config names; for an EAGLE head, its generation.
    weights : str
        The file of its weights, or a pattern that matches several.
    stored : str
        The weights' number format.
    licence : str
        As its page states it.
    size : int or None
        Bytes of the weights, if stated by its page or by that of `size_of`, which has the same shape.
    gated : bool
        Whether its licence must be accepted on the hub before it can be downloaded.
    needs : str
        A package that its tokenizer needs and that is not installed with this one.
    """

    id: str
    architecture: str
    shape: Shape
    weights: str
    stored: str
    licence: str
    size: int | None = None
    size_of: str = ""
    gated: bool = False
    needs: str = ""

    @property
    def name(self) -> str:
        """The last part of its id."""
        return self.id.rpartition("/")[2]

    @property
    def pickled(self) -> bool:
        """Whether its weights must be converted once."""
        return self.weights == BIN

    @property
    def path(self) -> Path:
        """The folder in which it is expected."""
        return home() / "checkpoints" / self.name

    @property
    def here(self) -> bool:
        """Whether that folder holds its weights as safetensors."""
        return any(self.path.glob("*.safetensors"))

    @property
    def location(self) -> str:
        """Its name or path for `specviz.load`."""
        return str(self.path) if self.here else f"hf:{self.id}"

    @property
    def bytes(self) -> int:
        """Bytes of its weights, as a page states them or estimated from its shape."""
        return self.size or self.shape.parameters * BYTES[self.stored]

    @property
    def origin(self) -> str:
        """Where `bytes` comes from."""
        if self.size is None:
            return "estimate from its shape"
        return f"by the page of {self.size_of}, of the same shape" if self.size_of else "from its page"

    @property
    def parameters(self) -> int:
        """Number of weights, from `bytes`."""
        return self.bytes // BYTES[self.stored]

    def commands(self, root: str | Path | None = None) -> list[str]:
        """Commands that fetch it into its folder, under `root` or by default `specviz.paths.home`."""
        path = shlex.quote(str(self.path if root is None else Path(root) / self.path.relative_to(home())))
        # The option takes one pattern: a second value would name a file to fetch, and then only that one.
        left_out = "".join(f" --exclude {name}" for name in ("'*.pt'", "'*.pth'", "training_args.bin"))
        get = f"hf download {self.id} --local-dir {path}{left_out}"
        return [get, *([f"specviz models convert {path}"] if self.pickled else [])]


@dataclass(frozen=True)
class Part:
    """One of a paper's models, with the data and the settings of its figures.

    Attributes
    ----------
    model : Checkpoint
    drafts : dict of str to Checkpoint
        Drafters by role.
    suites : dict of str to str
        Suite of each task, as `specviz.suite` takes it.
    rows : dict
        Columns of the printed table, with the values that select this part's rows.
    wording : str
        Text around a prompt of the suites; empty: the suites' own.
    template : str
        Text around the source of a stream.
    limits : dict of str to int
        How many prompts of a task are used, from the first on.
    dtype : str
        The paper's number format; empty if it states none.
    numbers : dict
        Prompts, new tokens, thresholds.
    gguf : str
        The quantisation, if the paper ran llama.cpp.
    stated, unstated : str
        What else the paper states, and what is stated nowhere.
    """

    name: str
    model: Checkpoint
    drafts: Mapping[str, Checkpoint]
    suites: Mapping[str, str]
    rows: Mapping[str, str]
    wording: str
    template: str
    limits: Mapping[str, int]
    dtype: str
    numbers: Settings
    gguf: str
    stated: str
    unstated: str

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The model and its drafters."""
        return [self.model, *self.drafts.values()]


@dataclass(frozen=True)
class Chosen:
    """A table's recipe for a part of its setup."""

    table: str
    recipe: Recipe
    part: Part

    @property
    def dtype(self) -> str:
        """The paper's number format, else that of the stored weights."""
        return self.part.dtype or self.part.model.stored

    def suites(self) -> dict[str, Suite]:
        """The prompts of each task of the table.

        Raises
        ------
        PromptError
            If a suite is neither on this disk nor reachable.
        """
        made = {}
        for task, name in self.part.suites.items():
            if task in tasks_of(self.recipe):
                made[task] = suite(name, template=self.part.wording or None, limit=self.part.limits.get(task))
        return made


class Setups:
    """The content of ``setups.toml``."""

    def __init__(self) -> None:
        from specviz.replays.setups_schema import SetupsFile

        file = folder("published") / FILE
        content = tomllib.loads(file.read_text(encoding="utf8"))
        checked(SetupsFile, content, str(file), "reinstall specviz-lm")
        shapes = {name: Shape(**values) for name, values in content["shapes"].items()}
        self.without: dict[str, str] = content["without"]
        self.tables: dict[str, list[str]] = content["tables"]
        self.checkpoints = {
            id: Checkpoint(
                id, v["architecture"], shapes[v["shape"]], v["weights"], v["stored"], v["licence"],
                v.get("bytes"), v.get("size_of", ""), v.get("gated", False), v.get("needs", ""),
            )
            for id, v in content["checkpoints"].items()
        }  # fmt: skip
        self.parts = {name: self._part(name, values) for name, values in content["parts"].items()}

    def _part(self, name: str, values: Settings) -> Part:
        drafts = {role: self.checkpoints[id] for role, id in values.get("drafts", {}).items()}
        return Part(
            name, self.checkpoints[values["model"]], drafts, values["suites"], values.get("rows", {}),
            values.get("wording", ""), values.get("template", ""), values.get("limits", {}),
            values.get("dtype", ""), values["numbers"], values.get("gguf", ""), values["stated"],
            values.get("unstated", ""),
        )  # fmt: skip

    def of(self, table: str) -> list[Part]:
        """The parts of a table.

        Raises
        ------
        ParameterError
            If no published checkpoint produces it; the message says why.
        """
        if table in self.tables:
            return [self.parts[name] for name in self.tables[table]]
        why = self.without.get(table, "no model produces it")
        raise ParameterError(f"{table} has no setup with published checkpoints: {why}")


def choose(table: str, recipe: Recipe, setup: str, part: str | None) -> Chosen:
    """Adapt a table's recipe to the paper's own models, data and sizes.

    Parameters
    ----------
    setup : {"paper"}
    part : str, optional
        Which of the paper's models; required if it has several.

    Raises
    ------
    ParameterError
        For an unknown setup or part, or if a table has several parts and none is named.
    """
    if setup != PAPER:
        raise ParameterError(f"setup must be {PAPER!r}, got {setup!r:.40}")
    parts = {each.name: each for each in Setups().of(table)}
    if part is None and len(parts) > 1:
        raise ParameterError(
            f"{table} has several models: choose one with --part {' or --part '.join(parts)}"
        )
    if part is not None and part not in parts:
        raise ParameterError(f"{table} has no part {part!r:.40}; it has {', '.join(parts)}")
    one = next(iter(parts.values())) if part is None else parts[part]
    return Chosen(table, fitted(table, recipe, one), one)


def fitted(table: str, recipe: Recipe, part: Part) -> Recipe:
    """Give a recipe a part's model, drafters and numbers; its rows then match that model's printed ones."""
    others = [each for each in Setups().of(table) if each.name != part.name]
    rows, absent = recipe.rows, recipe.absent
    if table in RECIPES and part.rows:
        rows = tuple(replace(row, where={**row.where, **part.rows}) for row in rows)
        absent = (
            *absent, *((each.rows, f"of another model: --setup paper --part {each.name}") for each in others),
        )  # fmt: skip
    drafts = {role: part.drafts[role].location if role in part.drafts else "" for role in recipe.drafts}
    whole = {**recipe.whole, **part.numbers}
    differs = recipe.differs
    if part.unstated:
        differs = (
            *differs,
            ("setup", f"does not say: {part.unstated}", "from data/published/setups.toml"),
        )
    return replace(
        recipe,
        model=part.model.location,
        drafts=drafts,
        whole=whole,
        rows=rows,
        absent=absent,
        differs=differs,
    )


def missing(part: Part) -> Iterator[Checkpoint]:
    """The checkpoints that must be fetched and converted by hand before the part can run."""
    return (each for each in part.checkpoints if each.pickled and not each.here)


def check_here(part: Part) -> None:
    """Check that no checkpoint still needs to be converted.

    Raises
    ------
    ModelError
        With the commands for the first checkpoint that does.
    """
    for each in missing(part):
        raise ModelError(f"{each.id} is published as {BIN}; run once: {' && '.join(each.commands())}")
