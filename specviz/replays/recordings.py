"""The plans of the recorded runs in ``data/runs``, and a way to record them again on another machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from specviz.errors import ParameterError
from specviz.measure.report import Entry, Settings, Tick
from specviz.methods import find
from specviz.paths import expanded, folder
from specviz.replays import canvases
from specviz.replays.recorded import write
from specviz.replays.sources.shared import again
from specviz.rules.parameters import Value
from specviz.streams import from_file
from specviz.suites import suite

DRAFTS = "smollm2-draft-aligned"


def _control(name: str, **values: Value) -> Settings:
    return {"method": again(find(name)), **values}


def _smollm2() -> Settings:
    return {
        "models": ["smollm2"], "number": None, "warm_up": 0, "max_new_tokens": 96,
        "methods": [
            _control("autoregressive"), {"method": "prompt_lookup"},
            {"method": "lookahead", "draft_size": 24}, {"method": "spectra", "draft_size": 24},
            {"method": "token_recycling", "draft_size": 8}, {"method": "unispec", "draft_size": 4},
            {"method": "speculative", "draft_length": 2, "draft": DRAFTS},
            {"method": "bild", "draft": DRAFTS}, {"method": "specdec", "draft_length": 4, "draft": DRAFTS},
            {"method": "cm_asd", "draft": DRAFTS},
            {"method": "eagle", "draft_size": 3, "depth": 2, "branches": 2, "draft": "smollm2-eagle3"},
            {"method": "blockwise", "k": 2, "draft": "smollm2-heads"},
        ],
    }  # fmt: skip


def _bergamot() -> Settings:
    rt = {"method": "retranslate", "mode": "rt"}
    biased = [{"method": "retranslate", "beta": beta} for beta in (0.0, 0.1, 0.2, 0.3, 0.5)]
    masked = [{"method": "retranslate", "beta": 0.2, "k": 3, "mask": mask} for mask in ("draft", "display")]
    return {
        "models": ["bergamot:en-pt"],
        "suites": {"sentences": from_file(folder("suites") / "sentences.txt", 1)},
        "number": None, "warm_up": 0, "max_new_tokens": 96,
        "methods": [rt, _control("retranslate", mode="rt"), *biased, *masked],
    }  # fmt: skip


def _languages() -> Settings:
    # Sorted by number, so that each kind of work cycles through its languages.
    entries = sorted(suite("multi-town"), key=lambda entry: str(entry["id"]).rpartition("-")[2])
    return {
        "models": ["town"], "suites": {"multi-town": entries}, "number": 49, "warm_up": 7,
        "max_new_tokens": 64,
        "methods": [
            _control("autoregressive"), {"method": "prompt_lookup"},
            {"method": "lookahead", "draft_size": 120, "ngram": 5}, {"method": "spectra", "draft_size": 60},
            {"method": "token_recycling"}, {"method": "unispec", "draft_size": 8},
            {"method": "eagle", "tree": "static", "draft": "town-eagle-en"},
            {"method": "eagle", "tree": "dynamic", "draft": ["town-eagle-en", "town-eagle3-en"]},
        ],
    }  # fmt: skip


def _averages() -> Settings:
    """The plan of walkthrough 13: English and Japanese texts of four kinds of work."""
    kinds = ["summarization", "qa", "arithmetic", "rag"]
    entries = suite("multi-town", kind=kinds, language=["en", "ja"], each=3)
    last = [entry for entry in entries if str(entry["id"]).endswith("02")]
    return {
        "models": ["town"], "suites": {"multi-town": [e for e in entries if e not in last] + last},
        "number": 16, "warm_up": 6, "max_new_tokens": 96,
        "methods": ["prompt_lookup", "unispec", {"method": "eagle", "draft": "town-eagle-en"}],
    }  # fmt: skip


def _canvases(model: str, suites: Mapping[str, str | list[Entry]]) -> Settings:
    return {
        "models": [model], "suites": suites, "number": None, "warm_up": 0, "max_new_tokens": 64,
        "methods": [
            _control("stepwise", **canvases.PAPER),
            *({"method": "ssd", "draft_length": n, **canvases.PAPER} for n in (3, 4, 5)),
            {"method": "ssd", "draft_length": 4, "tree": "mix", **canvases.PAPER},
            {"method": "fast_dllm", **canvases.PAPER},
        ],
    }  # fmt: skip


PLANS: dict[str, Callable[[], Settings]] = {
    # In the fastest format of the recording machine; the next run in a format that every machine has.
    "smollm2-questions": lambda: _smollm2() | {"dtype": "auto", "suites": {"spec-bench:24": "spec-bench:24"}},
    "smollm2-everyday": lambda: _smollm2() | {"suites": {"everyday": "everyday"}},
    "bergamot-streams": _bergamot,
    "town-languages": _languages,
    "town-two-averages": _averages,
    "town-diffusion": lambda: _canvases("town-diffusion", {"canvases": canvases.suite(24)}),
    "smollm2-diffusion": lambda: _canvases("smollm2-diffusion", {"narrow": "narrow"}),
}


def plan(name: str) -> Settings:
    """The plan of a recorded run, as `specviz.run` takes it.

    Raises
    ------
    ParameterError
        If no run of this name is recorded.
    """
    if name not in PLANS:
        raise ParameterError(f"no recorded run {name!r:.40}; available: {', '.join(PLANS)}")
    return PLANS[name]()


def record(name: str, out: str | Path, tick: Tick | None = None) -> Path:
    """Measure a recorded run's plan here and write ``NAME.parquet`` into a folder; resume if interrupted.

    Raises
    ------
    ParameterError, ModelError, PromptError, SpecvizError
        With one line that says what to do.
    """
    from specviz.measure.running import run

    path = expanded(out, ParameterError)
    results = run(plan(name), out=path / name, tick=tick)
    return write(results, path / f"{name}.parquet", name, force=True)
