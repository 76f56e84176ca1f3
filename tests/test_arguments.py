"""Arguments are checked against the functions' declarations; nonsense gives a result or a one-line error."""

from __future__ import annotations

import math
import os
import random
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import typer
from tiny import llama

import specviz
from specviz import cli
from specviz.arguments import Range, check, check_int, checked
from specviz.errors import ParameterError, SpecvizError
from specviz.loop import Run
from specviz.loop.run import RunOptions
from specviz.methods.sampling import Sampling

CALLS = int(os.environ.get("SPECVIZ_NONSENSE", "300"))  # shared by the two property tests


@pytest.mark.parametrize(
    ("hint", "good", "bad"),
    [
        (int, [0, -3, np.int64(3), 10**30], [True, None, 2.0, "3", math.nan, np.array(3), [3]]),
        (Annotated[int, Range(1, 4)], [1, 4], [0, 5, -1, 10**30]),
        (float, [0, 0.5, np.float32(0.5), math.inf], [True, "0.7", None, math.nan, np.array([0.5]), 1j]),
        (bool, [True, np.bool_(False)], [0, 1, "yes", None]),
        (str, ["", "a"], [b"a", 1, None, Path("a"), "a\0b"]),
        (str | Path, ["a", Path("a")], [b"a", 1, None, "a\0b", Path("a\0b")]),
        (int | None, [None, 3], ["3", 0.5]),
        (Literal["a", None], ["a", None], ["b", 0, False, "", ["a"], np.array(["a"])]),
        (Sequence[int], [[], [1], (1, 2)], ["12", [1.5], [True], 3, None, {1}]),
        (Callable[..., Any], [print], [None, 3]),
        (Any, [None, object()], []),
    ],
)
def test_a_declared_type(hint, good, bad):
    for value in good:
        assert check("x", value, hint) == value
    for value in bad:
        with pytest.raises(ParameterError, match=r"^x must ") as caught:
            check("x", value, hint)
        assert "\n" not in str(caught.value)


def test_a_message_says_what_is_declared():
    for hint, words in (
        (Annotated[int, Range(1)], "x must be a whole number of at least 1, got 0"),
        (Annotated[int, Range(2, 9)], "x must be a whole number from 2 to 9, got 0"),
        (str | Path | None, "x must be a string, a path or None, got 0"),
        (Literal["a", "b", None], "x must be 'a', 'b' or None, got 0"),
        (Sequence[int], "x must be a list (a whole number each), got 0"),
    ):
        with pytest.raises(ParameterError) as caught:
            check("x", 0, hint)
        assert str(caught.value) == words
    with pytest.raises(ParameterError, match=r"… *$"):
        check("x", "long" * 100, int)


def test_numbers_become_pythons():
    assert type(check_int("x", np.int64(3), 1)) is int
    sampling = Sampling(np.float32(0.5), np.int64(2), 1)
    assert [type(value) for value in (sampling.temperature, sampling.top_k, sampling.top_p)] == [
        float, int, float,
    ]  # fmt: skip


def test_what_only_type_checkers_import_is_told_apart_by_name():
    @checked
    def shown(trace: Trace | None, most: int = 3) -> int:  # noqa: F821
        return most

    trace = specviz.open(specviz.example("prompt_lookup"))
    assert shown(trace) == shown(None) == 3
    for bad in ("trace", 3):
        with pytest.raises(ParameterError, match=r"trace must be a Trace or None, got"):
            shown(bad)
    with pytest.raises(ParameterError, match="most must be a whole number"):
        shown(trace, "3")
    with pytest.raises(TypeError, match="missing"):
        shown()


def test_what_the_system_refuses_is_one_line(tmp_path):
    @checked
    def reading(path: Path) -> str:
        return path.read_text()

    with pytest.raises(SpecvizError, match=r"No such file or directory: .*no$"):
        reading(tmp_path / "no")


@pytest.mark.parametrize("name", ["temperature", "top_k", "top_p"])
@pytest.mark.parametrize("value", ["0.7", math.nan, None, True, math.inf, -1, [0.5], 1j])
def test_sampling_values_of_another_type(name, value):
    with pytest.raises(ParameterError, match=f"^{name} must "):
        Sampling(**{"temperature": 1.0, name: value})
    with pytest.raises(ParameterError, match=f"^{name} must "):
        specviz.generate("no such model", [1], **{name: value})


@pytest.fixture(scope="module")
def model():
    return llama(seed=0, eos=(), vocabulary=24, max_length=40, name="tiny")


@pytest.mark.parametrize(
    "extreme",
    [{"temperature": 1e-30}, {"temperature": 1e300}, {"top_p": 1e-320}, {"top_p": 1e-45}, {"top_k": 2**62}],
)
def test_extreme_sampling_draws_a_token_of_the_vocabulary(model, extreme):
    options = {"temperature": 1.0, "max_new_tokens": 12} | extreme
    for method in ("autoregressive", "prompt_lookup"):
        tokens = specviz.generate(model, [3, 4, 5], method, **options).outputs["token"]
        assert len(tokens) == 12 and tokens.between(0, 23).all()
    if extreme.get("temperature", 1.0) < 1 or "top_p" in extreme:
        greedy = specviz.generate(model, [3, 4, 5], "autoregressive", max_new_tokens=12)
        assert tokens.tolist() == greedy.outputs["token"].tolist()


def test_too_cold_is_refused(model):
    with pytest.raises(ParameterError, match="0 \\(greedy\\) or at least 1e-30"):
        specviz.generate(model, [3], "autoregressive", temperature=1e-38)


@pytest.mark.parametrize("seed", [2**63, 2**64 - 1])
def test_seeds_to_the_last_one(model, seed, tmp_path):
    options = {"temperature": 1.0, "max_new_tokens": 8, "seed": seed}
    trace = specviz.generate(model, [3, 4], "autoregressive", out=tmp_path / "a.parquet", **options)
    again = specviz.open(tmp_path / "a.parquet")
    assert again.cycles["seed"].unique().tolist() == trace.cycles["seed"].unique().tolist() == [seed]
    assert again.run["sampling"]["seed"] == seed
    with pytest.raises(ParameterError, match="seed must be a whole number from 0 to 18446744073709551615"):
        specviz.generate(model, [3], "autoregressive", seed=2**64)


@pytest.mark.parametrize("name", ["max_new_tokens", "top_k"])
def test_counts_to_the_last_one_that_a_trace_can_hold(model, name, tmp_path):
    options = {"temperature": 1.0, "max_new_tokens": 4, "out": tmp_path / "a.parquet"}
    specviz.generate(model, [3, 4], "autoregressive", **options | {name: 2**63 - 1})
    assert specviz.open(options["out"]).run["sampling"][name] == 2**63 - 1
    with pytest.raises(
        ParameterError, match=rf"{name} must be a whole number of at least . and below 2\*\*63"
    ):
        specviz.generate(model, [3], "autoregressive", **{name: 2**63})


def test_every_option_of_a_run_is_checked():
    for name in RunOptions.__dataclass_fields__:
        with pytest.raises(ParameterError, match=f"^{name} must "):
            Run("no such model", "Hello", "autoregressive", **{name: object()})
    with pytest.raises(ParameterError, match="device must be a string or None, got 1"):
        specviz.generate("town", "Hello", device=1)


# -- nonsense --------------------------------------------------------------------------------------

NONSENSE: list[Any] = [
    None, True, False, -1, 0, 1, 2, 2**31, 2**63, 2**64, 10**30, -(10**30), 0.5, 1e-38, 1e-320, 1e300,
    math.nan, math.inf, -math.inf, 1j, "", " ", "0.7", "no/such", "a\nb", "x" * 5000, "\0", "\ud800", "town:",
    b"x", [], [[]], [None], ["a"], [0.5], [-1], [10**30], (), {}, {"a": 1}, {"prompt": None}, {"turns": 3},
    {"role": "user"}, [{"role": "user"}], [{"role": 1, "content": None}], set(), object(), int, print,
    np.int64(3), np.float32(0.5), np.array([1, 2]), np.array(3), np.nan, Path("no/such"), Path("."), range(3),
    iter([1]),
]  # fmt: skip


@cache
def functions(model: Any) -> dict[str, dict[str, Any]]:
    """Every public function, with arguments that make it quick: a tiny or a missing model."""
    trace, absent = specviz.open(specviz.example("prompt_lookup")), {"model": "no such model"}
    decode = {"model": model, "prompt": [3, 4], "method": "prompt_lookup", "max_new_tokens": 3}
    options = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0, "batch": 1, "record": "judged",
               "out": None, "force": False, "resume": False, "device": None, "dtype": None, "kernels": None,
               "draft": None}  # fmt: skip
    kinds = dict.fromkeys(("kind", "language", "each", "limit", "template"))
    return {
        "generate": decode | options,
        "stream": decode | options,
        "load": {"spec": "no such model"} | dict.fromkeys(
            ("device", "dtype", "tokenizer", "revision", "threads", "gpu_layers", "context", "backend",
             "kernels")
        ),
        "densify": {"trace": trace, "model": model, "draft": None, "tail": 3},
        "advise": absent | {"draft": None, "suite": "town", "answers": None, "number": 2, "batch": (),
                            "context": (), "temperature": 0.0, "top_k": 0, "top_p": 1.0,
                            "max_new_tokens": 4, "seed": 0, "confirm": False, "as_device": None,
                            "device": None, "dtype": None, "folder": None},
        "explain": {"source": trace, "plain": None, "origin": None},
        "calibrate": absent | {"method": "unispec", "sizes": None, "max_new_tokens": 4, "rounds": 1,
                               "folder": None, "force": False, "device": None, "dtype": None, "warm_up": 1},
        "method": {"name": "bild", "fallback": 0.5, "rollback": 1.0},
        "list_methods": {"writes": None},
        "list_models": {}, "catalog": {}, "list_published": {"paper": None}, "list_suites": {},
        "example": {"name": "prompt_lookup"},
        "open": {"path": "no such file"},
        "read_counts": {"path": "no such file", "origin": "vllm", "plain": False, "since": None},
        "published": {"name": "unispec/table3"},
        "suite": {"name": "town", "path": None} | kinds,
        "whatif": {"trace": trace},
        "player": {"trace": trace, "prompts": None}, "race": {"traces": [trace, trace]},
        "flicker": {"traces": trace, "prompt": None},
        "diff": {"a": trace, "b": trace, "prompt": 0}, "runs": {"folder": "."},
        "explore": {"method": "bild", "prompt": "Hello", "draft": None} | absent,
        "live": absent | {"target_language": "German", "languages": ("German",), "source": ""},
        "results": {"path": "no such file"},
        "run": {"models": ["no such model"], "out": None, "workers": None, "retry": False, "seeds": [0],
                "threads": 1, "max_new_tokens": 4, "temperature": 0.0},
        "sweep": {"points": [], "entries": [], "max_new_tokens": 4, "rounds": 1, "seed": 0},
        "replay": absent | {"table": "unispec/table3", "quick": True, "threads": 1, "max_new_tokens": 4,
                            "device": "cpu", "dtype": "float32", "out": None},
        "compare": {"method": "unispec", "against": "no/such", "run": None, "draft": None, "suite": None,
                    "number": None, "out": None},
        "replay_all": absent | {"out": "replays", "quick": True, "threads": 1, "device": "cpu", "workers": 1},
        "train_eagle": {"target": "no such model", "prompts": ["Hello"], "out": "eagle", "generation": 3,
                        "steps": 1, "epochs": 1, "rate": 0.01, "batch": 1, "max_new_tokens": 4, "seed": 0},
    }  # fmt: skip


def test_every_public_function_is_called(model):
    callable_names = {n for n in specviz.__all__ if not isinstance(getattr(specviz, n), type)}
    submodules = {"audit", "check", "errors", "metrics", "streams", "view"}
    inner = {"judge"}  # called once per cycle by a method's own code, with tensors: it checks nothing
    assert set(functions(model)) == callable_names - submodules - inner


def test_nonsense_in_python_is_one_line_or_a_result(model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rng, every, failed = random.Random(CALLS), functions(model), []
    for number in range(CALLS * 2 // 3):
        name = list(every)[number % len(every)]
        arguments = dict(every[name])
        changed = rng.sample(list(arguments), min(len(arguments), rng.choice((1, 1, 2))))
        arguments |= {argument: rng.choice(NONSENSE) for argument in changed}
        line = "no error"
        try:
            made = getattr(specviz, name)(**arguments)
            if name == "stream":
                made.close()
        except SpecvizError as error:
            line = str(error)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            line = f"\n{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        if len(line.splitlines()) != 1:
            shown = ", ".join(f"{argument}={arguments[argument]!r:.40}" for argument in changed)
            failed.append(f"{name}({shown}): {line[:300]}")
    assert not failed, "\n".join(failed)


WORDS = [
    "", " ", "nan", "inf", "-inf", "-1", "0", "1", "2.5", "1e-320", "1e-38", "9" * 30, "0x10", "é" * 300,
    "none", "no/such", ".", "/dev/null", "/dev/null/x", "a=b", "=", ",", "1,", "--", "%s", "{}", "[]",
    "true", "\ud800", "\x1b[2J", "a\nb", "hf:no/such", "gguf:no/such", "x" * 5000, "data.html", "a.parquet",
]  # fmt: skip


@cache
def commands(target: str, draft: str) -> dict[str, tuple[str, ...]]:
    """Every command with arguments that make it quick."""
    absent = ("--model", "no such model")
    return {
        "demo": absent, "generate": ("autoregressive", "-m", target, "-p", "Hello", "-n", "2"),
        "show": ("no such file",), "metrics": ("no such file",), "audit": absent, "calibrate": absent,
        "import": ("no such file", "--from", "vllm"), "suites": (), "exercises": ("exercises",),
        "datastore": ("no such file", "-o", "out.store"), "lab": ("notebooks", "--copy-only"),
        "streams simulate": ("no such file", "-o", "out.jsonl"), "models": (), "models verify": ("no-such",),
        "models get": ("no-such",), "models remove": ("no-such",),
        "models gguf": ("no-such", "-o", "out.gguf"),
        "models align": ("no-such", "-t", "no-such", "--prompts", "town", "--out", "out"),
        "models eagle": ("no-such", "--prompts", "town", "--out", "out"),
        "models heads": ("no-such", "--prompts", "town", "--out", "out"),
        "models answers": ("no-such", "--prompts", "town", "--out", "out"),
        "models cut": ("no-such", "--answers", "no-such", "--out", "out"),
        "models check": ("no-such", "--target", "no-such"),
    }  # fmt: skip


def leaves(command, path=()):
    """The parameters of every command, by its words."""
    yield " ".join(path), command.params
    for name, inner in getattr(command, "commands", {}).items():
        yield from leaves(inner, (*path, name))


def test_nonsense_on_the_command_line_is_one_line_or_a_result(folders, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    every = commands(str(folders.target), str(folders.draft))
    parameters = {name: each for name, each in leaves(typer.main.get_command(cli.app)) if name in every}
    assert set(parameters) == set(every)
    rng, failed = random.Random(CALLS), []
    for number in range(CALLS - CALLS * 2 // 3):
        name = list(every)[number % len(every)]
        line = [*name.split(), *every[name]]
        options = [p for p in parameters[name] if p.param_type_name == "option" and p.opts[0] != "--help"]
        for option in rng.sample(options, min(len(options), rng.choice((1, 1, 2)))):
            line += [option.opts[0]] if getattr(option, "is_flag", False) else [
                option.opts[0], rng.choice(WORDS),
            ]  # fmt: skip
        try:
            status, why = cli.run(line), ""
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            status, why = 3, f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})"
        err = capsys.readouterr().err
        complaints = [text for text in err.splitlines() if text.startswith("specviz: ")]
        if status not in (0, 1, 2) or "Traceback" in err or (status == 2 and not complaints):
            failed.append(f"{line!r:.200}: {status} {why[:300]} {err[-200:]}")
    assert not failed, "\n".join(failed)


def test_a_cold_start_is_fast():
    """The argument check imports nothing heavy."""
    import subprocess
    import sys

    code = (
        "import sys, specviz; specviz.example('prompt_lookup')\n"
        "assert not {'torch', 'numpy', 'pandas', 'pyarrow', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_layout_that_no_environment_holds_is_one_line(monkeypatch, capsys):
    monkeypatch.setenv("SPECVIZ_KERNELS", "plain")
    assert cli.run(["generate", "autoregressive", "-p", "a", "--kernels", "\ud800"]) != 0
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_command_leaves_the_environment_as_it_was(monkeypatch, capsys):
    """Models loaded later in the process, such as a notebook's, are loaded as if the command had not run."""
    import os

    monkeypatch.setenv("SPECVIZ_KERNELS", "transposed")
    words = [
        "generate",
        "autoregressive",
        "-m",
        "town",
        "-p",
        "a",
        "-n",
        "2",
        "--kernels",
        "plain",
        "--invariant",
    ]
    assert cli.run(words) == 0
    assert "exact" in capsys.readouterr().out
    assert cli.run([*words[:-2], "fast"]) == 2  # also when a command fails
    assert os.environ["SPECVIZ_KERNELS"] == "transposed" and os.environ["SPECVIZ_INVARIANT"] == "0"
