"""`python -m tests.benchmarks eagle` counts correctly. No test here judges a time."""

from __future__ import annotations

import io
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from benchmarks import eagle
from benchmarks.__main__ import main
from rich.console import Console
from test_benches import check
from tiny import llama

import specviz
from specviz import metrics
from specviz.audit import law
from specviz.errors import ParameterError
from specviz.measure.sweep import Point
from specviz.measure.timing import Timed
from specviz.methods.eagle import Eagle

sys.path.insert(0, str(Path(__file__).parents[1] / "methods"))
from test_eagle import V, head

STATIC = "eagle (draft_size=25, tree=static, depth=5, branches=4)"
FEW = {"languages": ["en", "ja", "de"], "number": 3, "rounds": 1, "max_new_tokens": 8, "size": 4}


@pytest.fixture(scope="module")
def target():
    """A tiny model that reads the last words of a text, one token per word, computed from its letters."""
    made = llama(seed=0, vocabulary=V, eos=(1,), name="target")
    made.encode = lambda prompt: prompt if isinstance(prompt, list) else words(prompt)
    return made


def words(text):
    return [2 + sum(map(ord, word)) % (V - 2) for word in text.split()[-9:]]


@pytest.fixture(scope="module")
def drafts(target):
    found = []
    for generation, name in ((1, "one-en"), (1, "one"), (3, "three-en"), (3, "three")):
        made = head(target, generation, seed=len(found) + 2)
        made.name = name
        found.append(made.on(target))
    return found


def test_every_part_measures_and_tells_its_bars(target, drafts):
    told, parts = [], [name for name in eagle.PARTS if name != "law"]
    found = eagle.bench(target, drafts, parts=parts, **FEW, tick=lambda *a: told.append(a))
    assert all(done <= of for done, of, _ in told)
    data = check(found, bars=2 + 3 * (1 + 2 * 2))
    assert data["setting"]["prompts"] == dict.fromkeys(parts, 3)
    assert all(bar["held"] for bar in data["bars"][:2])
    titles = [found.title, *(part.title for part in found.parts)]
    names = ("Texts equal", "Table 3", "How often", "τ of answers", "What unispec", "Milliseconds")
    where = {name: next(i for i, title in enumerate(titles) if title.startswith(name)) for name in names}
    shown = [{"rows": data["rows"]}, *data["parts"]]
    exact = shown[where["Texts equal"]]["rows"]
    assert {(row["method"], row["draft"]) for row in exact} == {
        (method, name) for method in ("eagle", STATIC) for name in ("one", "three")
    }
    assert all(row["equal"] == row["prompts"] == 3 for row in exact)
    rows = shown[where["Table 3"]]["rows"]
    labels = ["autoregressive", "unispec"]
    labels += [f"{name}, {known}" for name in eagle.EAGLES for known in ("en", "all")]
    assert [(row["language"], row["label"]) for row in rows] == [
        (language, label) for language in FEW["languages"] for label in labels
    ]
    assert all(row["same"] == "3/3" for row in rows)
    for row in rows:
        if row["label"] == "autoregressive":
            assert (row["tau"]["median"], row["speedup"]) == (1, None)
        else:
            assert row["speedup"]["pairs"] == 3
    # τ of the same texts, as the trace measures it.
    for row in rows:
        if row["label"] == "EAGLE-3, all":
            entries = eagle.prompts_of(row["language"], 3, target)
            trace = specviz.generate(
                target, entries, "eagle", draft=drafts[3], max_new_tokens=8, draft_size=4
            )
            assert row["tau"]["median"] == pytest.approx(metrics.tau(trace))
    deep = shown[where["How often"]]["rows"]
    assert [row["label"] for row in deep[:5]] == ["unispec", *labels[4:]]
    work = shown[where["τ of answers"]]["rows"]
    assert [row["answers"] for row in work] == ["words", "figures, code"] * 3
    assert all(row["EAGLE-2, en"] >= 1 for row in work[::2])
    assert all(row["EAGLE-2, en"] is None for row in work[1::2])  # no text is of these kinds
    learning = shown[where["What unispec"]]["rows"]
    assert [row["language"] for row in learning] == FEW["languages"]
    cost = shown[where["Milliseconds"]]["rows"]
    assert cost[0]["pays"] == 1
    assert all(row["cycle"] == pytest.approx(sum(row[name] for name in eagle.PHASES)) for row in cost)
    for part in (found.table, *found.parts):
        console = Console(width=80, file=io.StringIO())
        part.print(console)
        assert max(map(len, console.file.getvalue().splitlines())) <= 80


def test_the_laws_are_judged(target, drafts, monkeypatch):
    monkeypatch.setattr(eagle.audit, "run", partial(eagle.audit.run, draws=30))
    monkeypatch.setattr(law, "check", partial(law.check, settings=law.SETTINGS[:1], length=1))
    found = eagle.bench(target, drafts[3:], parts=["law"], number=1, max_new_tokens=3)
    data = check(found, bars=3)
    assert data["held"]
    assert [row["method"] for row in data["rows"]] == ["eagle", "eagle"]
    assert data["bars"][0]["value"] == max(row["error"] for row in data["rows"])
    tests = data["parts"][0]["rows"]
    assert {row["method"] for row in tests} == {"eagle", STATIC}
    assert data["bars"][1]["value"] == min(row["p"] for row in tests)
    monkeypatch.setattr(law, "check", lambda make: [law.LawResult("eagle", "toy", 0.5, law.TOLERANCE, 1)])
    monkeypatch.setattr(law, "chi_square", lambda *given: law.ChiSquare(99.0, 1, 1e-9, 30, 2))
    found = eagle.bench(target, drafts[3:], parts=["law"], number=1, max_new_tokens=3)
    assert [bar.held for bar in found.bars] == [False, False, True]


def test_a_bug_is_found_and_named(target, drafts, monkeypatch):
    honest = Eagle.verify

    def wrong(self, draft, scores):
        verdict = honest(self, draft, scores)
        verdict.token = (verdict.token + 1) % V
        return verdict

    monkeypatch.setattr(Eagle, "verify", wrong)
    found = eagle.bench(target, drafts[3:], parts=["exact"], number=2, max_new_tokens=6)
    assert not found.bars[0].held
    assert found.bars[0].value == 4  # two trees, two prompts
    assert all("bug" in row["where"] for row in found.parts[0].rows)


def decoded(label, *cycles):
    """Ten-token texts that took this many cycles each, listed twice: an interval needs at least six."""
    cycles *= 2
    return eagle.Decoded(
        Point(label, "x"), Timed([1.0] * len(cycles), [[0] * 10] * len(cycles)), np.array(cycles, float)
    )


def test_bars_turn_on_what_they_name():
    def bars(en, store, own, every):
        found = {
            "en": {"EAGLE-2, en": decoded("", *en), "unispec": decoded("", *store)},
            "ja": {
                "EAGLE-2, en": decoded("", *own),
                "unispec": decoded("", *store),
                "EAGLE-2, all": decoded("", *every),
            },
        }
        return [bar.held for bar in eagle.bars_of(found)]

    fast, middle, slow = (2, 2, 3, 2), (5, 4, 5, 6), (9, 9, 10, 9)
    assert bars(fast, middle, slow, middle) == [True, True, True]
    assert bars(slow, middle, slow, middle) == [False, True, True]
    assert bars(fast, middle, fast, fast) == [True, False, False]
    assert bars(fast, middle, slow, slow) == [True, True, False]
    # Larger overall, but not in every resample of the texts.
    assert bars((2, 9, 4, 4), middle, slow, middle)[0] is False


def test_what_is_counted_of_first_tokens(target, drafts):
    """Recount every cycle: the likeliest token after the root, and the token written there."""
    entries = [[3, 4, 5], [7, 2], [9, 8, 6, 2]]
    trace = specviz.generate(target, entries, "eagle", draft=drafts[3], max_new_tokens=20)
    share, sure = eagle.first(trace)
    right, seen, thought = 0, 0, []
    text = trace.outputs.groupby(["prompt", "cycle"])["token"].first()
    for (prompt, cycle), nodes in trace.nodes.groupby(["prompt", "cycle"]):
        level = nodes[(nodes["depth"] == 1) & (nodes["status"] != "unsent")]
        if set(level["status"]) == {"cut"}:
            continue
        best = level.sort_values("score").iloc[-1]
        seen += 1
        right += text[prompt, cycle] == best["token"]
        thought.append(best["score"])
    assert 0 < right < seen
    assert share.median == pytest.approx(right / seen)
    assert sure == pytest.approx(np.mean(thought))


def test_what_a_store_learns(target):
    entries = [[3, 4, 5], [3, 4, 5], [3, 4, 5], [7, 2]]
    cold, kept = (
        specviz.generate(target, entries, "unispec", max_new_tokens=20, keep=keep)
        for keep in ("prompt", "run")
    )
    found = eagle.learnt(cold, kept)
    assert found["cold"].median == pytest.approx(metrics.tau(cold))
    assert found["kept"].median == pytest.approx(metrics.tau(kept))
    assert found["more"].median == pytest.approx(metrics.tau(kept) - metrics.tau(cold))
    assert found["n1"] == pytest.approx(metrics.tau(cold.select(prompt=0)))
    assert found["n2"] == pytest.approx(metrics.tau(kept.select(prompt=[1, 2])))
    assert found["n4"] == pytest.approx(metrics.tau(kept.select(prompt=3)))
    assert np.isnan(found["n8"])
    emitted = cold.cycles[cold.cycles["cycle"] > 0].set_index("cycle")["emitted"]
    assert found["c5"] == pytest.approx(emitted[emitted.index.isin(range(5, 13))].mean())


def test_answers_in_figures_are_told_apart(target):
    kinds = ["code", "qa", "arithmetic", "rag"]
    entries = [{"prompt": [3 + i, 4, 5], "kind": kind} for i, kind in enumerate(kinds)]
    trace = specviz.generate(target, entries, "unispec", max_new_tokens=20)
    assert eagle.tau_of(trace, True) == pytest.approx(metrics.tau(trace.select(prompt=[0, 2])))
    assert eagle.tau_of(trace, False) == pytest.approx(metrics.tau(trace.select(prompt=[1, 3])))


def test_prompts_are_answered_in_their_language(target):
    for language in ("en", "ja"):
        found = eagle.prompts_of(language, 14, target)
        assert found == eagle.prompts_of(language, 14, target)
        assert [entry["kind"] for entry in found] == specviz.suite("multi-town").kinds * 2
        assert {entry["language"] for entry in found} == {language}
    into = [entry for entry in eagle.prompts_of("ja", 28, target) if entry["kind"] == "translation"]
    assert sum("Japan" in entry["prompt"] or "日本語" in entry["prompt"] for entry in into) > 2


def test_published_numbers_stand_beside_ours():
    printed = eagle.paper()
    assert printed["unispec", "ja", "tau"] == 4.23
    assert printed["EAGLE-1", "en", "tau"] == 3.48  # Table 9
    assert printed["EAGLE-2", "en", "speedup"] == 1.86  # not Table 9's 2.18, which is for another model
    assert printed["EAGLE-3", "ja", "speedup"] == 0.71
    assert len(printed) == 4 * 3 * 2


def test_a_drafter_that_is_not_there_is_named(target, drafts):
    found = eagle.bench(target, drafts[2:3], **FEW | {"languages": ["en"]}, parts=["table"])
    assert [row["label"] for row in found.rows] == ["autoregressive", "unispec", "EAGLE-3, en"]
    assert len(found.bars) == 1
    assert "EAGLE-1, en; EAGLE-1, all; EAGLE-2, en; EAGLE-2, all; EAGLE-3, all." in found.notes[-1]


def test_what_cannot_be_measured_is_refused(target, drafts, folders, capsys):
    with pytest.raises(ParameterError, match="no part 'tables': choose of exact, law, table, cause, time"):
        eagle.bench(target, drafts, parts=["tables"])
    with pytest.raises(ParameterError, match="no prompts in 'xx'"):
        eagle.bench(target, drafts, languages=["xx"])
    with pytest.raises(ParameterError, match="two drafters for EAGLE-1, all"):
        eagle.bench(target, [drafts[1], drafts[1]])
    with pytest.raises(ParameterError, match="compares EAGLE drafters, and there is none"):
        eagle.bench(target, [])
    assert main(["eagle", "--model", str(folders.target), "--draft", str(folders.draft)]) == 2
    assert "and draft is none" in capsys.readouterr().err
    assert main(["eagle", "--draft", "town-eagle9"]) == 2
    assert "no model 'town-eagle9'" in capsys.readouterr().err
