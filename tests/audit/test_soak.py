"""The soak: entries follow from seed and number, an interrupted ledger resumes, and bugs are repeatable."""

from __future__ import annotations

import json
import sys
from itertools import islice
from random import Random
from unittest.mock import patch

import pytest
from checkpoints import write

from specviz import audit, cli
from specviz.audit.soak import COUNTS, _audited, _value, draw, read_ledger, repeat, sums
from specviz.errors import ModelError, ParameterError, TraceError
from specviz.methods.speculative import Speculative
from specviz.rules.gap import CM_ASD


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return write(tmp_path_factory.mktemp("models"))


def options(folders):
    return {"models": [str(folders.target)], "drafts": [str(folders.draft)]}


def setting(folders, number=0):
    given = options(folders) | {"options": {"device": None, "dtype": None}}
    return draw(Random(f"0 {number}"), **given)


def quick(given):
    """A ledger entry with fixed figures, made without an audit."""
    row = {"method": "speculative (k=2)", "draft": "d", "sampling": "greedy"} | dict.fromkeys(COUNTS, 1)
    bug = {"method": "speculative", "draft": "d", "sampling": "greedy", "reason": "wrong \x1b[31m"}
    return {"setting": given, "seconds": 0.1, "rows": [row, row], "bugs": [bug], "refused": ""}


def test_an_entry_follows_from_seed_and_number(folders):
    first, again, other = setting(folders), setting(folders), setting(folders, 1)
    assert first == again != other
    assert json.loads(json.dumps(first)) == first


def test_a_limit_that_only_keeps_a_value_finite_is_not_drawn_up_to():
    gamma = next(p for p in CM_ASD if p.name == "gamma")
    assert all(0 <= _value(Random(seed), gamma) <= 2 for seed in range(5))


@pytest.mark.parametrize("number", range(12))
def test_what_is_drawn_can_be_audited(folders, number):
    given = setting(folders, number)
    assert len(given["prompts"]) in (2, 4) and given["methods"]
    given |= {"max_new_tokens": 4, "prompts": given["prompts"][:1], "methods": given["methods"][:2]}
    entry = _audited(given)
    assert not entry["refused"] and not entry["bugs"]
    assert all(row["prompts"] for row in entry["rows"])


def test_a_bug_is_repeated_from_its_entry(folders):
    given = setting(folders) | {
        "audit": "run", "methods": ["speculative:draft_length=3"], "max_new_tokens": 8, "drafts": [],
        "prompts": ["Once upon a time"],
    }  # fmt: skip
    given["drafts"] = [str(folders.draft)]
    verify = Speculative.verify

    def wrong(self, draft, scores):
        verdict = verify(self, draft, scores)
        verdict.token = (verdict.token + 1) % 261
        return verdict

    with patch.object(Speculative, "verify", wrong):
        entry = json.loads(json.dumps(_audited(given)))
        assert entry["bugs"] and "prompt 0" in entry["bugs"][0]["reason"]
        assert not repeat(entry["setting"]).holds
    assert repeat(entry["setting"]).holds


def test_an_entry_is_repeated_with_its_passes(folders):
    """Whether they are invariant depends on the machine and on an environment variable."""
    given, soak = setting(folders), sys.modules[draw.__module__]
    own = soak._loaded(given)[0]
    assert given["invariant"] == own.invariant and soak._loaded(given)[0] is own
    assert soak._loaded(given | {"invariant": False})[0].invariant is False
    eagle = given | {"model": "town", "drafts": ["town-eagle"]}
    for invariant in (True, False):  # a drafter belongs to that target
        target, (drafter,) = soak._loaded(eagle | {"invariant": invariant})
        assert target.invariant is invariant and drafter.target is target
    del given["invariant"]  # a ledger from before
    assert soak._loaded(given)[0] is own


def test_an_audit_that_raises_is_a_bug(folders):
    with patch("specviz.audit.soak.repeat", side_effect=RuntimeError("no\nmemory")):
        entry = _audited(setting(folders))
    assert [row["bug"] for row in entry["rows"]] == [1]
    assert entry["bugs"][0]["reason"] == "the audit raised RuntimeError: no memory"


def test_an_interrupted_soak_goes_on(folders, tmp_path):
    path = tmp_path / "ledger.jsonl"
    done = []

    def interrupted(given):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(given)
        return quick(given)

    with patch("specviz.audit.soak._audited", interrupted), pytest.raises(KeyboardInterrupt):
        list(audit.soak(path, **options(folders)))
    assert [entry["number"] for entry in read_ledger(path)] == [0, 1]
    with patch("specviz.audit.soak._audited", quick):
        more = list(islice(audit.soak(path, **options(folders)), 2))
        other = next(audit.soak(path, seed=5, **options(folders)))
    assert [entry["number"] for entry in more] == [2, 3]
    assert more[0]["setting"] == setting(folders, 2)
    assert (other["number"], other["seed"]) == (0, 5)
    assert [entry["number"] for entry in read_ledger(path)] == [0, 1, 2, 3, 0]
    path.write_text("")
    assert read_ledger(path) == []


def test_a_soak_that_is_stopped_before_its_first_entry_ends_quietly(tmp_path, capsys):
    with patch("specviz.audit.soak.soak", side_effect=KeyboardInterrupt):
        assert cli.run(["audit", "--soak", "--ledger", str(tmp_path / "new.jsonl")]) == 0
    assert "interrupted: run the same command again to continue" in capsys.readouterr().err


def test_two_soaks_do_not_write_one_ledger(folders, tmp_path):
    path = tmp_path / "ledger.jsonl"
    with patch("specviz.audit.soak._audited", quick):
        first = audit.soak(path, **options(folders))
        next(first)
        with pytest.raises(TraceError, match="another soak writes"):
            next(audit.soak(path, **options(folders)))
        first.close()
        assert next(audit.soak(path, **options(folders)))["number"] == 1


def test_only_the_ledgers_errors_are_the_ledgers(folders, tmp_path):
    broken = patch("specviz.audit.soak.draw", side_effect=OSError("no model"))
    with broken, pytest.raises(OSError, match="no model"):
        next(audit.soak(tmp_path / "a.jsonl", **options(folders)))
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="cannot write"):
        next(audit.soak(tmp_path / "file" / "a.jsonl", **options(folders)))


def test_the_time_ends_a_soak(folders, tmp_path):
    with patch("specviz.audit.soak._audited", quick):
        assert list(audit.soak(tmp_path / "a.jsonl", minutes=1e-9, **options(folders))) == []
    with pytest.raises(ParameterError, match="minutes must be above 0"):
        next(audit.soak(tmp_path / "a.jsonl", minutes=0))


def test_a_ledger_keeps_prompts_with_line_ends_of_their_own(folders, tmp_path):
    path, odd = tmp_path / "ledger.jsonl", "a\u2028b\x85c\x1cd\r\ne"
    with patch("specviz.audit.soak._audited", lambda given: quick(given | {"prompts": [odd]})):
        next(audit.soak(path, **options(folders)))
    (entry,) = read_ledger(path)
    assert entry["setting"]["prompts"] == [odd]


def test_sums_add_up_by_model_and_method():
    entries = [quick({"model": "a"}), quick({"model": "b"}), quick({"model": "a"})]
    one, two, total = sums(entries)
    assert (one["model"], one["method"], one["entries"], one["tokens"]) == ("a", "speculative", 2, 4)
    assert (two["model"], two["entries"]) == ("b", 1)
    assert (total["model"], total["entries"], total["bug"]) == ("all", 3, 6)


@pytest.mark.parametrize("damage", [
    "{", "[]", "null", '{"number": 0}', "[" * 100_000,
    lambda entry: entry["rows"][0].update(tokens="1"),
    lambda entry: entry["rows"][0].pop("draft"),
    lambda entry: entry["bugs"][0].update(reason=None),
    lambda entry: entry["setting"].update(model=[]),
    lambda entry: entry.update(rows=3),
])  # fmt: skip
def test_a_damaged_ledger_is_refused_in_one_line(tmp_path, damage):
    path, line = tmp_path / "ledger.jsonl", damage
    entry = {"number": 0, "seed": 0} | quick({"model": "a"})
    if callable(damage):
        damage(entry)
        line = json.dumps(entry)
    path.write_text(json.dumps({"number": 0, "seed": 0} | quick({"model": "a"})) + f"\n{line}\n")
    with pytest.raises(TraceError, match=r"line 2.*: delete the line, or name another file") as error:
        read_ledger(path)
    assert "\n" not in str(error.value)


def test_the_command_line(tmp_path, folders, capsys):
    path = tmp_path / "ledger.jsonl"
    given = ["audit", "--model", str(folders.target), "--ledger", str(path)]
    with patch("specviz.audit.soak._audited", quick):
        assert cli.run([*given, "--soak", "--minutes", "0.01"]) == 1  # the entries contain bugs
    out, err = capsys.readouterr()
    assert "entry 0" in err and "bugs" in err
    assert cli.run(["audit", "--ledger", str(path)]) == 1
    out, err = capsys.readouterr()
    assert "speculative" in out and "all" in out and "\x1b" not in out and not err
    assert "speculative with d, greedy: wrong" in out
    for wrong, reason in (
        (["--soak"], "--ledger FILE"),
        (["--ledger", str(tmp_path / "none")], "cannot read "),
        (["--minutes", "1", "--ledger", str(path)], "add --soak"),
        (["--soak", "--ledger", str(path), "--batch", "2", "--number", "3"], "drop --batch, --number"),
        (["--ledger", str(path), "--answers", "a.jsonl"], "drop --answers"),
        (["--answers", "a.jsonl", "--max-new-tokens", "9"], "not decoded: drop --max-new-tokens"),
    ):
        assert cli.run(["audit", *wrong]) == 2
        assert reason in " ".join(capsys.readouterr().err.split())


def test_the_command_draws_layouts(tmp_path, folders):
    """As the function does; the command's own default number format is auto."""
    seen = []

    def asked(ledger, soak, threads, given):
        seen.append(given["dtype"])

    with patch("specviz.cli.auditing._soak", asked):
        for words in ((), ("--dtype", "float64")):
            cli.run(
                ["audit", "--model", str(folders.target), "--ledger", str(tmp_path / "l"), "--soak", *words]
            )
    assert seen == [None, "float64"]


def test_a_model_with_one_layout_is_loaded_in_it(monkeypatch):
    """A model run by transformers' modules refuses every layout; the entry records that it keeps its own."""
    soak = sys.modules[draw.__module__]
    setting = draw(Random(3), ["town"], [], {"device": "cpu", "dtype": "float32"})
    assert setting["kernels"] is not None
    target = soak._model("town", "cpu", "float32", setting["kernels"])
    given = []

    def load(name, device, dtype, kernels=None, invariant=None):
        given.append(kernels)
        if kernels is not None:
            raise ModelError("transformers' modules keep their layout")
        return target

    monkeypatch.setattr(soak, "load", load)
    monkeypatch.setattr(target, "plain", False)
    soak._model.cache_clear()
    try:
        again = draw(Random(3), ["town"], [], {"device": "cpu", "dtype": "float32"})
    finally:
        soak._model.cache_clear()
    assert given == [setting["kernels"], None] and again["kernels"] is None


@pytest.mark.parametrize("installed", [True, False])
def test_a_target_on_llama_cpp_is_drawn_only_if_it_can_run(monkeypatch, tmp_path, installed):
    soak, drawn = sys.modules[draw.__module__], []

    def library():
        if not installed:
            raise ModelError("llama.cpp is not installed")

    monkeypatch.setattr(soak, "library", library)
    monkeypatch.setattr(soak, "draw", lambda random, models, *rest: drawn.extend(models) or {"model": "a"})
    monkeypatch.setattr(soak, "_audited", quick)
    next(audit.soak(tmp_path / "l.jsonl"))
    assert "town" in drawn and ("gguf:town-translator" in drawn) == installed


def test_a_soak_computes_in_float32(monkeypatch):
    """By default: a large model would be in the fastest format, for which the layouts are not drawn."""
    soak, formats = sys.modules[draw.__module__], []
    monkeypatch.setattr(soak, "load", lambda name, device, dtype, **_: formats.append(dtype))
    for dtype in (None, "float64"):
        soak._model.__wrapped__("smollm2", None, dtype, "plain")
    assert formats == ["float32", "float64"]
