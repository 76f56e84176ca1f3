"""The comparison of training-free methods and the costs of stores: their runs, counts and bars."""

from __future__ import annotations

import io

import numpy as np
import pytest
from benchmarks import stores
from rich.console import Console
from test_benches import ENTRIES, check
from tiny import llama
from typer.testing import CliRunner

import specviz
from specviz.cli import app
from specviz.errors import ParameterError
from specviz.measure import report, timing
from specviz.measure.benches import trees
from specviz.measure.benches.trees import Side, draft_sizes
from specviz.models import load
from specviz.suites.frozen import frozen
from town import template
from town.template import grow


@pytest.fixture(scope="module")
def target(folders):
    return load(folders.target)


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(trees, "WARM", 2)
    monkeypatch.setattr(stores, "WARM", 2)
    monkeypatch.setattr(stores, "LARGE", 4000)


def test_trees(target):
    ticks = []
    found = trees.bench(
        target, ENTRIES, number=3, max_new_tokens=10, size=[6, "unispec=3"],
        tick=lambda *given: ticks.append(given),
    )  # fmt: skip
    installed = [name for name in trees.FAMILY if name in specviz.list_methods()]
    assert {"prompt_lookup", "token_recycling", "unispec"} <= set(installed)
    data = check(found, bars=4)
    assert [bar["limit"] for bar in data["bars"]] == [1, 1, 1, 1.4]
    assert "unispec, warm, g=3" in data["bars"][2]["name"]
    assert "g=6" in data["bars"][0]["name"]
    assert {row["same"] for row in data["rows"]} == {"3/3"}
    assert data["rows"][0]["tau"] == 1
    shown = {(row["method"], row["memory"], row["g"]) for row in data["rows"]}
    assert {("unispec", state, g) for state in ("cold", "warm") for g in (6, 3)} <= shown
    assert ("prompt_lookup", None, 6) in shown
    assert ticks[-1][0] == ticks[-1][1] == 4 * len(data["rows"])
    kinds, languages, split = data["parts"]
    assert {row["kind"] for row in kinds["rows"]} == {"conversation", "counting", "colours"}
    assert {row["language"] for row in languages["rows"]} == {"–"}
    for row in languages["rows"]:  # with one language, the row equals the total
        whole = next(
            r for r in data["rows"]
            if (r["method"], r["g"]) == (row["method"], row["g"]) and r["memory"] != "cold"
        )  # fmt: skip
        state = "warm" if whole["memory"] else "cold"
        assert row[f"tau_{state}"] == pytest.approx(whole["tau_pooled"])
        assert row[f"speedup_{state}"] == whole["speedup"]
    for row in split["rows"]:
        assert row["drafted"] <= (row["g"] or 0)


def test_cold_and_warm_are_what_they_say(target, monkeypatch):
    methods = {}
    monkeypatch.setattr(trees, "Run", watched(trees.Run, methods))
    trees.bench(target, ENTRIES, number=2, max_new_tokens=6, size=[4])
    runs = methods["token_recycling"]
    assert [(m.keep, n, record) for m, n, record in runs] == [
        ("prompt", 2, None), ("prompt", 2, "judged"), ("run", 2, None), ("run", 2, "judged"),
    ]  # fmt: skip
    assert runs[2][0] is runs[3][0]  # the suite begins with the store filled in practice
    assert all(m.draft_size == 4 for m, _, _ in runs)
    assert all(m.draft_length == 4 for m, _, _ in methods["prompt_lookup"])


def watched(kind, found):
    class Watched(kind):
        def __init__(self, model, prompts, method, *, record="judged", **options):
            found.setdefault(method.name, []).append((method, len(prompts), record))
            super().__init__(model, prompts, method, record=record, **options)

    return Watched


def test_practice_shares_no_prompt_with_a_test_set(target):
    given = timing.practice(target, 7)
    assert given == timing.practice(target, 7)
    assert all(0 < len(ids) < target.max_length for ids in given)
    practised, audited = (
        {e["messages"][-1]["content"] for e in frozen(name)} for name in ("practice", "audit")
    )
    assert len(practised) > 250 and not practised & audited
    assert not practised & {entry["turns"][-1] for entry in specviz.suite("multi-town")}


def test_bars_turn_on_what_they_name():
    def rows(unispec, recycling, lookup):
        found = {Side("autoregressive"): {"tau": 1, "speedup": None}}
        seconds = {Side("autoregressive"): timing.Timed([1.0] * 3, [[1]] * 3)}
        for side, (tau, speed) in (
            (Side("prompt_lookup", "", 24), lookup), (Side("token_recycling", "warm", 24), recycling),
            (Side("unispec", "warm", 24), (unispec[0], 0.1)), (Side("unispec", "warm", 8), (0.1, unispec[1])),
            *((Side(name, "cold", 24), (9, 9)) for name in ("unispec", "token_recycling")),  # ignored
        ):  # fmt: skip
            seconds[side] = timing.Timed([1 / speed] * 3, [[1]] * 3)
            found[side] = {"tau": tau, "speedup": seconds[side].over(seconds[Side("autoregressive")])}
        return [bar.held for bar in trees._bars(found, seconds, 24)]

    assert rows((3, 1.5), (2, 1.2), (1.5, 1.3)) == [True, True, True, True]
    assert rows((2, 1.5), (2, 1.2), (1.5, 1.3)) == [False, True, True, True]
    assert rows((3, 1.5), (2, 1.2), (2.5, 1.3)) == [True, False, True, True]
    assert rows((3, 1.5), (2, 1.2), (1.5, 1.6)) == [True, True, False, True]
    assert rows((3, 1.39), (2, 1.2), (1.5, 1.3)) == [True, True, True, False]


def test_sizes_are_read_and_checked():
    given = ["24", 12, "unispec=8", "token_recycling=6"]
    assert draft_sizes(given) == ([24, 12], {"unispec": 8, "token_recycling": 6})
    for bad in ("x", "unispec=", "=", "-3", "unispec=2.5"):
        with pytest.raises(ParameterError, match="--size takes a number"):
            draft_sizes([bad])
    with pytest.raises(ParameterError, match="did you mean unispec"):
        trees.sides(24, {"unispek": 3})
    with pytest.raises(ParameterError, match="no draft size to compare for 'bild'"):
        trees.sides(24, {"bild": 3})
    with pytest.raises(ParameterError, match="draft_size must lie in"):
        trees.sides(24, {"unispec": 0})
    with pytest.raises(ParameterError, match=r"one number for all methods, not \[8, 16\]: METHOD=NUMBER"):
        trees.bench(None, [], size=["8", "16"])


@pytest.mark.parametrize(("given", "words"), [
    (["bench", "passes", "--size", "8"], "bench passes takes no --size"),
    (["bench", "trees", "--rounds", "2"], "bench trees takes no --rounds"),
])  # fmt: skip
def test_a_bench_refuses_what_it_does_not_take(given, words):
    result = CliRunner().invoke(app, given)
    assert isinstance(result.exception, ParameterError)
    assert words in str(result.exception)


def test_every_table_fits_80_columns():
    estimate = report.Estimate(1.234, 1.111, 1.432, 21)
    longest = {"method": "token_recycling", "memory": "warm", "group": "summarization", "what": "V = 150,000"}
    for columns, drop_order in (
        (trees.COLUMNS, trees.DROP_ORDER), (trees.GROUPED, ()), (trees.SPLIT, ("drafted",)),
        (stores.COLUMNS, ()),
    ):  # fmt: skip
        row = {key: 24 if form == "{:d}" else 12.34 if form else estimate for key, _, form in columns}
        row |= longest | {"same": "70/70", "share": 0.15}
        console = Console(width=80, file=io.StringIO())
        report.Part("title", columns, [row], drop_order).print(console)
        lines = console.file.getvalue().splitlines()
        assert max(map(len, lines)) <= 80
        assert any("token_recycling" in line for line in lines)


def test_stores(target):
    found = stores.bench(target, [], ENTRIES, number=2, max_new_tokens=10, rounds=3, size=20)
    data = check(found, bars=4)
    assert [bar["limit"] for bar in data["bars"]] == [0.1, 1.0, 0.1, 1.0]
    assert [row["method"] for row in data["rows"]] == ["token_recycling"] * 3 + ["unispec"] * 3
    for row in data["rows"]:
        assert row["both"] == pytest.approx(row["draft"] + row["learn"])
        assert min(row[part] for part in stores.PARTS) > 0
    for row in data["rows"][1::3] + data["rows"][2::3]:
        assert row["nodes"] == 20  # a full store fills the tree
    assert all((row["share"] is None) == (row["what"] != "texts") for row in data["rows"])


def test_the_stopwatch_goes_as_it_came():
    method = specviz.method("token_recycling")
    with stores.stopwatch(method, iter(range(99)).__next__) as spent:
        method.learn = stores.stopwatch  # even if the caller replaces a method meanwhile
    assert set(vars(method)).isdisjoint(stores.PARTS)
    assert spent == {part: [] for part in stores.PARTS}


class TestTemplate:
    def test_rates_are_counted_by_hand(self):
        """Recount every cycle: the rank of the next token at each node of the path and at its end."""
        model = llama(seed=5, vocabulary=12, eos=(), max_length=256)
        paths = grow([[0.5, 0.25, 0.2]] * 3, 20)
        probe = template.Probe(candidates=3, draft_size=20)
        probe.paths = paths
        probe.extra_cache_slots = len(paths)
        right, reached = np.zeros((9, 3)), np.zeros(9)
        text, known = [3, 4, 5], np.full((12, 3), -1)
        for cycle in specviz.loop.decode(model, [*text], probe, max_new_tokens=90):
            if cycle.draft is None:
                continue
            words = [text[-1], *cycle.tokens[:-1]]
            for level, (word, token) in enumerate(zip(words, cycle.tokens)):
                if cycle.end is None:
                    reached[level] += 1
                    right[level] += known[word] == token
            text += cycle.tokens
            known = probe.store.tokens.copy()
        assert reached[1] > 5
        assert np.array_equal(probe.right[:9], right)
        assert np.array_equal(probe.reached[:9], reached)

    def test_it_is_derived(self, monkeypatch):
        model = llama(seed=5, vocabulary=12, eos=(), max_length=256)
        monkeypatch.setattr(template, "ENOUGH", 3)
        found = template.derive(model, [[3, 4], [5, 6, 7]], 60)
        assert found["paths"] == grow(found["rates"], len(found["paths"]))
        assert 1 <= len(found["rates"]) <= template.DEPTH
        assert all(0 <= rate <= 1 for level in found["rates"] for rate in level)
        assert found == template.derive(model, [[3, 4], [5, 6, 7]], 60)
