"""The bench of trained drafters: its contenders, choice of settings, cost of lossy texts, and bars."""

from __future__ import annotations

import math

import pytest
import tiny
import torch

import specviz
from specviz.cli import run
from specviz.errors import ParameterError, PromptError
from specviz.measure.benches import drafters, speed
from specviz.measure.benches.drafters import Loss, bench, last_number
from specviz.suites import spread, suite

FEW = {
    "speculative": [{"draft_length": 2}, {"draft_length": 3}],
    "bild": [{"fallback": 0.5, "rollback": 1000.0, "cap": 4}, {"fallback": 0.0, "rollback": 0.0}],
    "eagle": [{"draft_size": 4, "depth": 2, "branches": 2}],
}


@pytest.fixture
def entries():
    return spread(list(suite("town")), 16)


def test_a_text_is_read_by_its_target() -> None:
    model = tiny.llama(seed=3, layers=2)
    own = specviz.generate(model, [[3, 4]], "autoregressive", max_new_tokens=6).outputs["token"].tolist()
    good = Loss.of(model, [3, 4], own)
    assert (good.tokens, good.others, good.lost) == (6, 0, 0.0)
    changed = [*own[:3], (own[3] + 1) % 48, *own[4:]]
    bad = Loss.of(model, [3, 4], changed)
    assert bad.others >= 1 and bad.share >= 1 / 6
    scores = model.net(input_ids=torch.tensor([[3, 4, *changed]])).logits[0, 1:-1].log_softmax(-1)
    want = sum(float((row.max() - row[token]).detach()) for row, token in zip(scores, changed))
    assert bad.lost == pytest.approx(want, abs=1e-3)
    assert (good + bad).tokens == 12 and Loss.of(model, [3], []).share == 0


def test_every_method_runs_with_each_drafter_that_fits(entries, monkeypatch) -> None:
    monkeypatch.setattr(drafters, "GRIDS", FEW)
    model = specviz.load("town")
    drafts = [specviz.load(name) for name in ("town-draft", "town-draft-aligned")]
    drafts.append(specviz.load("town-eagle").on(model))
    report = bench(model, drafts, entries, number=2, max_new_tokens=8, rounds=1, sums=2)
    rows = {row["contender"]: row for row in report.rows}
    assert set(rows) == {
        "autoregressive", "transformers", "eagle, town-eagle",
        *(f"{name}, {each.name}" for name in ("speculative", "bild") for each in drafts[:2]),
    }  # fmt: skip
    for name, row in rows.items():
        if name == "transformers":
            assert row["method"] is None and row["right"] is None
        elif not name.startswith("bild"):
            assert row["others"] == 0 and row["same"] == "2/2"
        else:
            assert row["setting"] in {drafters._shown(values) for values in FEW["bild"]}
    names = [bar.name for bar in report.bars]
    assert "bild, town-draft-aligned over bild, town-draft" in names
    assert sum("texts equal to" in name for name in names) == 3
    assert sum("tokens that are not the target's" in name for name in names) == 2
    split = {row["contender"]: row for row in report.parts[0].rows}
    assert sum(split["eagle, town-eagle"][name] for name in drafters.PHASES) == pytest.approx(1, abs=0.02)
    base, own = (split[f"bild, {each.name}"]["A/D"] for each in drafts[:2])
    title = "bild, town-draft-aligned over bild, town-draft: A/D"
    (gain,) = [bar.value for bar in report.bars if bar.name == title]
    assert gain == pytest.approx(own / base if base else math.nan, nan_ok=True)
    chosen = [row for row in report.parts[1].rows if row["chosen"]]
    assert len(chosen) == 5
    best = report.setting["best_exact"]
    assert best["contender"] in rows and not best["contender"].startswith("bild")
    assert best["engine"] in ("autoregressive", "transformers")
    line = "best exact method relative to the fastest plain decoding of this file by any installed engine"
    (note,) = [note for note in report.notes if note.startswith(line)]
    assert note == f"{line} ({best['engine']}): {best['contender']}, {best['ratio']['median']:.2f}"
    assert "skipped: llama.cpp (the model does not come from a GGUF file)" in report.notes or (
        "skipped: llama.cpp (llama-cpp-python is not installed)" in report.notes
    )
    data = report.as_dict()
    assert set(data["setting"]["sums"]) == {"autoregressive", *(f"bild, {each.name}" for each in drafts[:2])}
    assert {row["sums"] for row in data["rows"] if (row["method"] or "").startswith("bild")} == {2}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7 + 10 = 17.", "17"), ("It is 1,200 in all, or 1,200.00", "1200"), ("12.50", "12.50"),
        ("none", None), ("", None), ("Step 1. Add. It is **35**", "35"), ("15, 16 or 17 are left", "17"),
    ],
)  # fmt: skip
def test_an_answer_is_its_last_number(text, number) -> None:
    assert last_number(text) == number


def test_what_a_lossy_method_loses_of_the_sums() -> None:
    answers = {"autoregressive": [True, True, False, False], "bild, a": [True, False, True, True]}
    assert drafters._sums(answers, "bild, a") == {"sums": 4, "right": 3, "shown_sums": "3/4 (−1 +2)"}
    assert drafters._sums(answers, "autoregressive")["shown_sums"] == "2/4"
    assert drafters._sums(answers, "eagle, b")["shown_sums"] is None


def test_the_best_exact_method_is_set_against_the_fastest_engine() -> None:
    def took(seconds):
        return [{"tokens": [1, 2], "seconds": seconds, "prefill": 0.0, "head": 0, "passes": 2}]

    times = {"autoregressive": 4.0, "transformers": 6.0, "llama.cpp": 2.0, "eagle": 3.0, "slow": 5.0}
    results = speed.Results([{"measurements": {name: took(each) for name, each in times.items()}}])
    best = speed.best_over_plain(results, ["slow", "eagle"])
    assert (best.contender, best.engine) == ("eagle", "llama.cpp")
    assert best.ratio.median == pytest.approx(2 / 3)
    assert best.line.endswith("(llama.cpp): eagle, 0.67")
    assert speed.best_over_plain(results, []) is None


def test_the_least_lossy_setting_is_chosen_where_none_may_be_lost(entries, monkeypatch) -> None:
    monkeypatch.setattr(drafters, "GRIDS", {"bild": FEW["bild"]})
    model, draft = specviz.load("town"), specviz.load("town-draft")
    strict = bench(model, [draft], entries, number=1, max_new_tokens=12, rounds=1, loss=0.0, sums=0)
    (row,) = [row for row in strict.rows if row["method"] == "bild"]
    tried_points = strict.setting["calibration"]["bild, town-draft"]["points"]
    assert len(tried_points) == 2
    points = {drafters._shown(point["values"]): point["others"] for point in tried_points}
    assert points[row["setting"]] == min(points.values())


def test_rounds_of_a_drafter_that_was_trained_since_are_refused(entries, tmp_path) -> None:
    model, draft = specviz.load("town"), specviz.load("town-draft")
    given = {
        "rounds_file": tmp_path / "rounds.json",
        "rounds": 1,
        "number": 2,
        "max_new_tokens": 4,
        "sums": 0,
    }
    bench(model, [draft], entries, only=["speculative"], **given)
    with torch.no_grad():
        next(draft.net.parameters()).add_(1)
    with pytest.raises(ParameterError, match="drafters"):
        bench(model, [draft], entries, only=["speculative"], **given)


def test_what_is_refused(entries, capsys) -> None:
    model, draft = specviz.load("town"), specviz.load("town-draft")
    with pytest.raises(ParameterError, match="no contender 'eagel'; did you mean eagle"):
        bench(model, [draft], entries, only=["eagel"])
    with pytest.raises(ParameterError, match="no drafter fits"):
        bench(model, [draft], entries, only=["eagle"])
    with pytest.raises(ParameterError, match="no drafter fits"):
        bench(model, [], entries)
    with pytest.raises(PromptError, match="prompts that are not timed, and none are left"):
        bench(model, [draft], entries[:1], number=1)
    with pytest.raises(ParameterError, match=r"sums must lie in 0 \.\. 60, got 61"):
        bench(model, [draft], entries, sums=61)
    with pytest.raises(ParameterError, match="loss must lie in"):
        bench(model, [draft], entries, loss=2)
    assert run(["bench", "drafters", "--model", "town", "--draft", "town-t5-heads"]) == 2
    assert capsys.readouterr().err.count("\n") <= 2


def test_settings_are_chosen_on_five_prompts_though_few_are_left(entries, monkeypatch) -> None:
    """Regression: ten of the other prompts were reserved for warm stores, which drafters do not have."""
    seen = []

    def asked(model, drafts, contender, texts, *rest):
        seen.append(len(texts))
        raise KeyboardInterrupt

    monkeypatch.setattr(drafters, "_tried", asked)
    model, draft = specviz.load("town"), specviz.load("town-draft")
    with pytest.raises(KeyboardInterrupt):
        bench(model, [draft], entries[:13], number=2, max_new_tokens=2)
    assert seen == [5]


def test_ctrl_c_after_the_rounds_says_that_they_are_kept(entries, tmp_path, monkeypatch) -> None:
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(drafters, "GRIDS", FEW)
    monkeypatch.setattr(drafters, "_split", interrupt)
    model, draft = specviz.load("town"), specviz.load("town-draft")
    given = {"number": 1, "max_new_tokens": 4, "rounds": 1, "sums": 0, "rounds_file": tmp_path / "rounds"}
    with pytest.raises(KeyboardInterrupt, match="1 of 1 rounds are kept: run the same command again"):
        bench(model, [draft], entries, only=["speculative"], **given)
