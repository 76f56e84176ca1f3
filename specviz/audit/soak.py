"""The soak: audits of random settings, one after another, for any length of time.

An entry is one small audit: a model with one layout of its matrices, some methods with random parameters,
some prompts (bundled ones and odd ones), greedy and sampled. An entry's setting depends on the seed, its
number, and the models and layouts that this machine has. Its result is a line of the ledger, with the setting
that repeats it. The ledger is rewritten after each entry, completely or not at all, so a kill loses only the
entry in progress.
"""

from __future__ import annotations

import json
import time
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from pathlib import Path
from random import Random
from typing import Any, Literal, Required, TypeAlias, cast, get_args

import torch
from typing_extensions import TypedDict

from .. import methods as catalogue
from ..errors import ModelError, ParameterError, SpecvizError, TraceError
from ..files import read_json_lines, write_text
from ..loop.batch import check_rows
from ..loop.checks import check_batchable
from ..loop.drafters import load_drafter
from ..loop.machine import number_format
from ..methods.base import Method, Parameter
from ..models import available, kernels, load
from ..models.llamacpp.library import library
from ..models.protocols import Model
from ..paths import expanded
from ..rules.parameters import LARGE
from ..streams import fixed_lag
from ..suites.frozen import frozen
from . import setup
from .batches import run as run_batches
from .canvases import DEFAULT as CANVAS_METHODS
from .canvases import run as run_canvases
from .result import AuditResult, Row
from .text import run
from .updates import default as stream_methods
from .updates import run as run_streams

Count: TypeAlias = Literal["prompts", "tokens", "equal", "tie", "noise", "reference_noise", "bug"]
COUNTS: tuple[Count, ...] = get_args(Count)
DRAFTS = {
    "town": ("town-draft", "town-draft-aligned", "town-eagle", "town-eagle3"),
    "town-t5": ("town-t5-small", "town-t5-small-aligned", "town-t5-heads"),
}
TARGETS = ("town", "town-t5", "town-t5-calm", "town-diffusion", "town-translator", "gguf:town-translator")
LONGEST = 400  # maximum number of tokens of a prompt
SHARE = 0.3  # share of a method's parameters that are drawn at random
TRIES = 20  # number of random settings tried before a method keeps its own
WIDEST = 16  # cap on random integers: larger trees only take longer
FOREIGN = (
    "你好，世界！请继续讲这个故事。", "مرحبا بالعالم، كيف حالك اليوم؟", "नमस्ते दुनिया, आज क्या हुआ?",
    "こんにちは。東京は今日も雨です。", "Привет, мир! Который час?", "שלום עולם", "สวัสดีชาวโลก",
    "abc אבג 123 مرحبا def", "Ça, c'est « naïf » — n’est-ce pas ?",
    "e\u0301 o\u0308 n\u0303 \u200b\u2060\ufeff",
)  # fmt: skip
EMOJI = ("😀", "👩‍👩‍👧‍👦", "🇩🇪🇯🇵", "🏳️‍🌈 👍🏽 ❤️", "😀" * 40, "a😀b👩‍🚀c")
MARKS = (
    "<s>", "</s>", "<|end|><|user|>Hello<|end|>", "<|im_start|>system\nYou<|im_end|>", "<|endoftext|>",
    "<mask> <pad>", "[INST] x [/INST]", "{{ bos_token }}", "{source}",
)  # fmt: skip
SHORT = (".", "a", "I", "0", "?", "…", "\n.", " x", "\t1")


Setting = TypedDict(  # noqa: UP013  what an entry audits, as `repeat` takes it
    "Setting",
    {
        "model": Required[str], "device": str | None, "dtype": str | None, "kernels": str | None,
        "drafts": list[str], "audit": str, "methods": list[str], "prompts": list[str], "max_new_tokens": int,
        "temperature": float, "top_k": int, "top_p": float, "batch": int, "seed": int, "invariant": bool,
    },
    total=False,
)  # fmt: skip
Sums = TypedDict(  # noqa: UP013  the counts of a row of its table
    "Sums",
    {
        "method": str, "draft": str, "sampling": str, "prompts": int, "tokens": int, "equal": int, "tie": int,
        "noise": int, "reference_noise": int, "bug": int,
    },
)  # fmt: skip


class Bug(TypedDict):
    method: str
    draft: str
    sampling: str
    reason: str


class Outcome(TypedDict):
    """An entry without its number."""

    setting: Setting
    seconds: float
    rows: list[Sums]
    bugs: list[Bug]
    refused: str


class Entry(Outcome):
    """A line of a ledger."""

    number: int
    seed: int


def soak(
    ledger: str | Path,
    models: Sequence[str] | None = None,
    minutes: float | None = None,
    seed: int = 0,
    drafts: Sequence[str] | None = None,
    device: str | None = None,
    dtype: str | None = None,
) -> Iterator[Entry]:
    """Audit random settings until the time is up, and record the results in a ledger.

    Parameters
    ----------
    ledger : str or path
        A file of JSON lines; an existing one is continued.
    models : sequence of str, optional
        What `specviz.load` takes. Default: six bundled targets (five without llama.cpp), and SmolLM2 if it
        was downloaded. Another list gives other entries.
    minutes : float, optional
        No entry begins later than this. Default: until interrupted.
    seed : int
        A different seed gives different entries.
    drafts : sequence of str, optional
        Drafters for all of `models`. Default: those bundled for each.
    device, dtype : str, optional
        For all models. Default: float32 on the CPU.

    Yields
    ------
    dict
        Each entry, once it is in the ledger: number, seed, setting (what `repeat` takes), seconds, rows (one
        for each method, draft and sampling, with `COUNTS`), bugs (row and reason), refused (empty, or why
        nothing ran).

    Raises
    ------
    TraceError
        If the ledger cannot be read or written, or another soak is writing it.
    ParameterError
        If minutes is not above 0.
    """
    path = expanded(ledger, TraceError)
    if minutes is not None and not minutes > 0:
        raise ParameterError(f"minutes must be above 0, got {minutes:g}")
    end = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    with _locked(path):
        entries = read_ledger(path) if path.exists() else []
        number = max((entry["number"] + 1 for entry in entries if entry["seed"] == seed), default=0)
        targets = models or _targets()
        while time.monotonic() < end:
            setting = draw(Random(f"{seed} {number}"), targets, drafts, {"device": device, "dtype": dtype})
            entry: Entry = {"number": number, "seed": seed, **_audited(setting)}
            entries.append(entry)
            lines = [json.dumps(each, ensure_ascii=False, allow_nan=False) + "\n" for each in entries]
            write_text(path, "".join(lines), force=True)
            yield entry
            number += 1


def repeat(setting: Setting) -> AuditResult:
    """Run one entry's audit again.

    Parameters
    ----------
    setting : dict
        The ``setting`` of a ledger's entry.
    """
    target, drafters = _loaded(setting)
    prompts, methods, batch = setting["prompts"], setting["methods"], setting["batch"]
    if setting["audit"] == "canvases":
        return run_canvases(target, prompts, methods, batch, setting["max_new_tokens"])
    names = ("max_new_tokens", "temperature", "top_k", "top_p", "seed")
    options: dict[str, Any] = {name: value for name, value in setting.items() if name in names}
    options["sampled"] = len(prompts)
    if setting["audit"] == "streams":
        streams = [fixed_lag(text, words=1 + setting["seed"] % 4, language=None) for text in prompts]
        return run_streams(target, streams, methods, laws=False, **options)
    if setting["audit"] == "batches":
        return run_batches(target, drafters, prompts, methods, batch, **options)
    return run(target, drafters, prompts, methods, laws=False, **options)


def read_ledger(path: str | Path) -> list[Entry]:
    """Read the entries of a ledger.

    Raises
    ------
    TraceError
        If it cannot be read, or a line is not an entry.
    """
    return read_json_lines(expanded(path, TraceError), Entry, "delete the line, or name another file")


def sums(entries: Sequence[Entry]) -> list[dict[str, str | int]]:
    """The table of a ledger: a row for each model and method, whatever its parameters, and a total."""
    rows: dict[tuple[str, str], list[tuple[int, Sums]]] = {}
    for number, entry in enumerate(entries):
        for row in entry["rows"]:
            key = entry["setting"]["model"], row["method"].partition(" ")[0]
            rows.setdefault(key, []).append((number, row))
    table = [_summed(*key, rows[key]) for key in sorted(rows)]
    return [*table, _summed("all", "", [*chain(*rows.values())]) | {"entries": len(entries)}]


def _summed(model: str, method: str, rows: list[tuple[int, Sums]]) -> dict[str, str | int]:
    """A row of the table: the sums of rows, each given with the number of its entry."""
    counts: dict[str, str | int] = {name: sum(row[name] for _, row in rows) for name in COUNTS}
    return {"model": model, "method": method, "entries": len({number for number, _ in rows}), **counts}


# -- what an entry audits ------------------------------------------------------------------------------


def draw(
    random: Random, models: Sequence[str], drafts: Sequence[str] | None, options: dict[str, str | None]
) -> Setting:
    """Draw the setting of an entry, of plain values that JSON can hold."""
    device, dtype = options["device"], options["dtype"]
    setting: Setting = {"model": random.choice(list(models)), "device": device, "dtype": dtype}
    given = DRAFTS.get(setting["model"], ()) if drafts is None else drafts
    setting["drafts"] = sorted(random.sample(list(given), min(len(given), 2)))
    layouts = kernels.candidates(torch.device(setting["device"] or "cpu"), torch.float32)
    setting["kernels"] = random.choice(layouts) if setting["dtype"] in (None, "float32") else None
    target, drafters = _loaded(setting)
    if not getattr(target, "plain", True):
        setting["kernels"] = None  # it has the layout of transformers' modules, whatever was drawn
    setting["invariant"] = getattr(target, "invariant", False)
    setting["audit"] = _kind(random, target)
    bases = {
        "canvases": [name for name in CANVAS_METHODS if "dual" in name or random.random() < 0.5],
        "streams": stream_methods(target) if setting["audit"] == "streams" else [],
    }.get(setting["audit"], catalogue.names("prompt"))
    able = [base for base in bases if _suits(base, target, drafters, setting["audit"])]
    chosen = random.sample(able, min(3, len(able)))
    setting["methods"] = [_spelled(random, base, target, drafters, setting["audit"]) for base in chosen]
    if setting["audit"] == "run":
        setting["methods"] = ["autoregressive", *(m for m in setting["methods"] if m != "autoregressive")]
    setting["max_new_tokens"] = random.choice((1, 2, 8, 24, 64))
    if setting["audit"] == "canvases":  # a canvas consists of whole blocks
        setting["max_new_tokens"] = 64
    setting["temperature"] = random.choice((0.05, 0.3, 0.7, 1.0, 1.6))
    setting["top_k"] = random.choice((0, 0, 1, 2, 5, 50))
    setting["top_p"] = random.choice((1.0, 1.0, 0.01, 0.5, 0.9, 0.99))
    setting["batch"], setting["seed"] = random.choice((1, 2, 3, 8)), random.randrange(2**31)
    setting["prompts"] = [_fitting(target, _prompt(random)) for _ in range(4)]
    if setting["audit"] == "streams":
        setting["prompts"] = [" ".join(text.split()[:8])[:120] for text in setting["prompts"][:2]]
    return setting


def _targets() -> list[str]:
    """The default targets that this machine can run."""
    targets = [*TARGETS, *({"smollm2"} & available().keys())]
    try:
        library()
    except ModelError:  # llama.cpp is not installed
        return [name for name in targets if not name.startswith("gguf:")]
    return targets


def _kind(random: Random, target: Model) -> str:
    """Draw the audit: canvases for a diffusion model; batches and streams only if the target can."""
    if target.kind == "diffusion":
        return "canvases"
    drawn = random.choice(("run", "run", "run", "batches", "streams"))
    try:
        if drawn == "batches":
            check_rows(target)
        elif drawn == "streams":
            setup.served(target, stream_methods(target), named=True)
    except SpecvizError:
        return "run"
    return drawn


def _suits(base: str, target: Model, drafters: Sequence[Model], audit: str) -> bool:
    """Whether a method can be audited on the target with one of the drafters."""
    try:
        setup.served(target, [base], named=True)
        method = catalogue.factory(base)()
        if audit == "batches":
            check_batchable(method, [])
        return bool(method.suited(drafters)) and not (audit == "run" and _lossy(_exactly(base), target))
    except SpecvizError:
        return False


def _lossy(spelled: str, target: Model) -> bool:
    return setup.is_lossy(catalogue.factory(spelled)(), number_format(target))


def _exactly(base: str) -> str:
    """A method with the parameters under which it is exact, if it is lossy by default."""
    name, _, fixed = base.partition(":")
    exact = ",".join(f"{key}={value}" for key, value in catalogue.find(name).exact.items())
    return base if fixed else f"{name}:{exact}".removesuffix(":")


def _spelled(random: Random, base: str, target: Model, drafters: Sequence[Model], audit: str) -> str:
    """The method with some random parameters, as `specviz audit --method` takes it."""
    base = base if audit in ("batches", "canvases") else _exactly(base)
    name, _, fixed = base.partition(":")
    kind: type[Method] = catalogue.find(name)
    free = [p for p in kind.parameters if f"{p.name}=" not in fixed and p.name not in kind.files]
    free = [p for p in free if p.choices or not isinstance(p.default, str)]
    for _ in range(TRIES):
        drawn = [p for p in free if p.name == kind.size or random.random() < SHARE]
        settings = [fixed, *(f"{p.name}={_value(random, p)}" for p in drawn)]
        spelled = f"{name}:{','.join(filter(None, settings))}"
        if _suits(spelled, target, drafters, audit) and (audit != "streams" or not _lossy(spelled, target)):
            return spelled
    return base


def _value(random: Random, parameter: Parameter) -> str | float:
    """Draw a legal value of a parameter."""
    if parameter.choices:
        return random.choice(parameter.choices)
    if isinstance(parameter.default, bool):
        return random.choice(("true", "false"))
    low = parameter.low if parameter.low is not None else 0
    if isinstance(parameter.default, int):
        return random.randint(int(low), int(min(parameter.high or WIDEST, max(WIDEST, low))))
    high = low + 2 if parameter.high is None or parameter.high >= LARGE else parameter.high
    return round(random.uniform(low, high), 3)


def _prompt(random: Random) -> str:
    """Draw a prompt: bundled, short, long, repetitive, in any script, or with special tokens."""
    chats = frozen("audit")
    words = random.choice(chats)["messages"][-1]["content"]
    return random.choice((
        lambda: words,
        lambda: random.choice(SHORT),
        lambda: " ".join(random.choice(chats)["messages"][-1]["content"] for _ in range(12)),
        lambda: random.choice((words.split()[0] + " ", "ab", "\n", "1, ")) * 60 + ".",
        lambda: random.choice(FOREIGN),
        lambda: random.choice(EMOJI),
        lambda: f"{random.choice(MARKS)}{words}{random.choice(MARKS)}",
        lambda: "".join(chr(random.choice((random.randrange(32, 0xD800), random.randrange(0xE000, 0x1F700))))
                        for _ in range(40)),
    ))()  # fmt: skip


def _fitting(target: Model, text: str) -> str:
    """Shorten a text until it fits an entry; a text that cannot be encoded becomes a full stop."""
    try:
        while len(target.encode(text)) > min(LONGEST, target.max_length // 2):
            text = text[: len(text) // 2]
        return text
    except SpecvizError:
        return "."


# -- one entry -----------------------------------------------------------------------------------------


def _audited(setting: Setting) -> Outcome:
    """Run an entry's audit; return the sums of its rows, and the bugs."""
    begin = time.monotonic()
    outcome: Outcome = {"setting": setting, "seconds": 0.0, "rows": [], "bugs": [], "refused": ""}
    try:
        for row in repeat(setting).rows:
            outcome["rows"].append(_sums(row))
            outcome["bugs"] += [_bug(row, str(d)) for d in row.differences if d.verdict == "bug"]
    except SpecvizError as error:
        outcome["refused"] = str(error)
    except Exception as error:  # an exception that ends an audit counts as a bug
        row = Row(" + ".join(setting["methods"]), "", "", 0.0, bug=1)
        outcome["rows"].append(_sums(row))
        outcome["bugs"].append(_bug(row, f"the audit raised {setup.raised(error)}"))
    return outcome | {"seconds": round(time.monotonic() - begin, 1)}


def _sums(row: Row) -> Sums:
    return cast(Sums, {name: getattr(row, name) for name in Sums.__annotations__})


def _bug(row: Row, reason: str) -> Bug:
    return {"method": row.method, "draft": row.draft, "sampling": row.sampling, "reason": reason}


def _loaded(setting: Setting) -> tuple[Model, list[Model]]:
    """The target and the drafters of a setting."""
    options = setting["device"], setting["dtype"], setting["kernels"]
    target = _model(setting["model"], *options)
    invariant = setting.get("invariant")
    if invariant not in (None, getattr(target, "invariant", False)):  # another default than in the entry
        target = _model(setting["model"], *options, invariant)
    key = cast(Hashable, target)
    return target, [_drafter(key, name, *options[:2]) for name in setting["drafts"]]


@lru_cache(maxsize=4)
def _model(
    name: str, device: str | None, dtype: str | None, layout: str | None, invariant: bool | None = None
) -> Model:
    given = layout if not name.startswith("gguf:") else None
    dtype = dtype or "float32"  # not auto: the layouts are those of float32
    try:
        return load(name, device, dtype, kernels=given, invariant=invariant)
    except ModelError:  # a model that runs through transformers' modules has no other layout
        if given is None:
            raise
        return load(name, device, dtype, invariant=invariant)


@lru_cache(maxsize=4)
def _drafter(target: Hashable, name: str, device: str | None, dtype: str | None) -> Model:
    return load_drafter(cast(Model, target), name, device, dtype)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Allow one soak at a time; the system frees the lock of one that was killed."""
    from filelock import FileLock, Timeout

    try:
        held = FileLock(path.with_name(path.name + ".lock"), timeout=0).acquire()
    except Timeout:
        raise TraceError(f"another soak writes {path}: name another file") from None
    except OSError as error:
        raise TraceError(f"cannot write {path}: {error.strerror or error}") from None
    with held:
        yield
