"""Estimate what a part of a paper's setup takes before anything is fetched: downloads, memory and time.

Sizes come from the checkpoints' pages, or are marked as estimates. Memory and time are estimates: the time is
that of reading the weights once per token, at a rate that is briefly measured on this device.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from specviz.errors import ParameterError, plural
from specviz.replays.contenders import NUCLEUS_GRID, ORACLE
from specviz.replays.recipes import REJECTION
from specviz.replays.setups import BYTES, NEVER_RUN, Chosen
from specviz.replays.tasks import tasks_of
from specviz.suites.catalogue import CATALOGUE

BASELINE = "autoregressive"
PROMPT = 1024  # prompt tokens per text that the estimate of memory allows for
ROWS, COLUMNS = 16384, 4096  # of the matrix whose reading is timed: larger than the caches
SECONDS = 0.3  # length of the measurement
GB = 1e9


@dataclass(frozen=True)
class Plan:
    """A part of a setup and what it would take.

    Attributes
    ----------
    download, here : int
        Bytes of all weights, and of those already in their folders.
    memory : int
        Estimated bytes of weights, keys and values while it runs.
    tokens : int
        Upper limit on new tokens, summed over all contenders.
    rate : float
        Measured bytes of a matrix that this device reads per second in this format.
    """

    chosen: Chosen
    device: str
    dtype: str
    prompts: int
    new_tokens: int
    download: int
    here: int
    memory: int
    tokens: int
    rate: float

    @property
    def seconds(self) -> float:
        """Estimated time, in which each new token reads the large model's weights once."""
        return self.tokens * self.chosen.part.model.parameters * BYTES[self.dtype] / self.rate

    def facts(self) -> list[str]:
        """The part in words, one fact per line: models, texts, settings."""
        part = self.chosen.part
        out = []
        for role, each in [("model", part.model), *part.drafts.items()]:
            gated = ", accept its licence on the hub first" if each.gated else ""
            needs = f"; its tokenizer needs: pip install {each.needs}" if each.needs else ""
            out.append(f"{role}: {each.id}, {each.architecture}, {gigabytes(each.bytes)} ({each.origin}), "
                       f"licence: {each.licence}{gated}{needs}")  # fmt: skip
        for task, name in part.suites.items():
            licence = CATALOGUE[name.partition(":")[0]].licence
            first = f", the first {part.limits[task]}" if task in part.limits else ""
            out.append(f"{task}: {name}{first}, licence: {licence}")
        words = part.wording or (f"template {part.template}" if part.template else "the suites' own")
        grid = {k: v for k, v in part.numbers.items() if isinstance(v, list)}
        return [
            *out,
            f"wording: {words}",
            f"number format: {part.dtype or part.gguf or 'the paper gives none'}",
            f"size: {plural(self.prompts, 'prompt')}, at most {self.new_tokens} new tokens each",
            *(f"{name}: {', '.join(map(str, values))}" for name, values in grid.items()),
            f"the paper says: {part.stated}",
            *([f"not stated anywhere: {part.unstated}"] if part.unstated else []),
        ]

    def lines(self) -> list[str]:
        """The facts, and what the part would take here."""
        return [
            f"{self.chosen.table}, part {self.chosen.part.name} of the paper's setup: nothing is fetched",
            *(f"  {fact}" for fact in self.facts()),
            f"here: {self.dtype} on {self.device}",
            f"download: {gigabytes(self.download)} of weights, {gigabytes(self.here)} of it already here",
            f"memory: about {gigabytes(self.memory)} (estimate: weights, and keys and values of one text)",
            f"time: about {hours(self.seconds)} (estimate: {self.tokens:,} tokens at most, each reading the "
            f"weights once at {self.rate / GB:.1f} GB/s, measured on {self.device}; drafting, prompts, a "
            f"stream's updates after the first, and the savings of drafts are not included)",
            *(f"to fetch: {line}" for each in self.chosen.part.checkpoints if not each.here
              for line in each.commands()),
            *gguf_lines(self.chosen),
            f"note: {NEVER_RUN}",
        ]  # fmt: skip


def plan(
    chosen: Chosen, device: str, dtype: str | None, number: int | None, max_new_tokens: int | None
) -> Plan:
    """Estimate what a part would take on a device.

    Parameters
    ----------
    dtype : str, optional
        Default: the paper's number format, else the stored one.
    number, max_new_tokens : int, optional
        Default: the paper's sizes.

    Raises
    ------
    ParameterError
        If the device is not available or the number format is not supported.
    """
    part, numbers = chosen.part, chosen.recipe.whole
    form = dtype or chosen.dtype
    if form not in BYTES:
        raise ParameterError(
            f"the number format of an estimate must be one of {', '.join(BYTES)}, not {form!r:.40}"
        )
    prompts = int(number or numbers["prompts"])
    longest = int(max_new_tokens or numbers["max_new_tokens"])
    width = BYTES[form]
    weights = sum(each.parameters for each in part.checkpoints) * width
    tokens = longest + PROMPT
    sides = 2 if part.model.architecture.endswith("ConditionalGeneration") else 1  # own and cross-attention
    kept = sides * part.model.shape.cached(tokens) * width
    tasks = set(part.suites) & set(tasks_of(chosen.recipe))
    texts = prompts * (1 if chosen.recipe.source == "run" else len(tasks))  # the others: per task
    passes = round(texts * longest * contenders(chosen) * int(numbers.get("rounds", 1)))
    return Plan(
        chosen, device, form, prompts, longest, sum(each.bytes for each in part.checkpoints),
        sum(each.bytes for each in part.checkpoints if each.here), weights + kept, passes,
        rate(device, form),
    )  # fmt: skip


def contenders(chosen: Chosen) -> float:
    """How often a round decodes a text at full length.

    Each run and each curve decodes it once per setting, for the reference and for the control.
    """
    recipe, numbers = chosen.recipe, chosen.recipe.whole
    if recipe.source == "limits":
        return 1
    if recipe.source == "lengths":  # stepwise decoding, SSD and the control, at each length and with examples
        return 3 * float(sum(map(Fraction, recipe.options["cells"].values())) + len(recipe.options["shots"]))
    if "curves" not in recipe.options:
        runs: dict[str, set[str]] = {}
        for row in recipe.rows:
            plain = row.method in (BASELINE, "stepwise") or row.values.get("mode") == "rt"
            name = BASELINE if plain else repr((row.method, row.values, row.role))
            runs.setdefault(repr(sorted(row.plan.items())), {BASELINE}).add(name)
        return sum(len(each) + 1 for each in runs.values())
    names = "fallbacks", "rollbacks", "windows"
    fallbacks, rollbacks, windows = (len(numbers.get(name, ())) for name in names)
    sizes = {
        "without": fallbacks + windows * rollbacks, "oracle": len(ORACLE), "nucleus": len(NUCLEUS_GRID) + 1,
        REJECTION: windows + 1,
    }  # fmt: skip
    curves = recipe.options["curves"]
    return sum(max(1, sizes.get(curve, fallbacks * rollbacks)) + 2 for curve in curves)


def rate(device: str, dtype: str) -> float:
    """Measure the bytes per second at which a product with one row reads a matrix; the best of several."""
    import torch

    kind: torch.dtype = getattr(torch, dtype)
    try:
        matrix = torch.ones(ROWS, COLUMNS, dtype=kind, device=device)  # not zeros: those may share one page
        row = torch.ones(1, COLUMNS, dtype=kind, device=device)
    except (RuntimeError, AssertionError, TypeError):  # torch reports this in several ways
        raise ParameterError(
            f"device {device} is not available or has no {dtype}: choose another --device or --dtype"
        ) from None
    best, end = float("inf"), time.perf_counter() + SECONDS
    with torch.inference_mode():
        while True:
            begin = time.perf_counter()
            float((row @ matrix.t())[0, 0])  # reading back waits for a GPU
            now = time.perf_counter()
            best = min(best, now - begin)
            if now > end:
                return ROWS * COLUMNS * BYTES[dtype] / best


def gguf_lines(chosen: Chosen) -> list[str]:
    """How to make a GGUF file of the model, if the paper ran llama.cpp."""
    part = chosen.part
    if not part.gguf:
        return []
    name = f"{part.model.name}.{part.gguf}.gguf"
    return [
        "on llama.cpp, as in the paper: python convert_hf_to_gguf.py FOLDER --outfile whole.gguf && "
        f"llama-quantize whole.gguf {name} {part.gguf} (both of llama.cpp), then add --model gguf:{name}"
    ]


def gigabytes(size: float) -> str:
    """Bytes in decimal gigabytes, as the hub prints them."""
    return f"{size / GB:.2f} GB" if size >= GB / 10 or not size else f"{size / 1e6:.0f} MB"


def hours(seconds: float) -> str:
    """Seconds in a unit suited to planning."""
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.0f} {unit}"
    return f"{max(1, round(seconds))} seconds"


def overview(plans: Sequence[Plan]) -> list[str]:
    """Lines for several parts, separated by empty lines."""
    return [line for each in plans for line in [*each.lines(), ""]][:-1]
