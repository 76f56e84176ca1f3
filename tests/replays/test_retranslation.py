"""The bench of re-translation: its streams, counts, comparisons and bars."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from benchmarks import late, retranslation
from benchmarks.__main__ import main
from benchmarks.claims import Claim, bars_of
from benchmarks.confidence import relative
from benchmarks.retranslation import CD, label

import specviz
from specviz.errors import ParameterError
from specviz.measure import claims
from specviz.measure import retranslation as measured
from specviz.measure.benches import streams
from specviz.measure.claims import Quality, ratio, resampled
from specviz.measure.report import Bar, Estimate
from specviz.measure.retranslation import RT, Follow
from specviz.methods.retranslate import TEMPLATES
from specviz.models import load
from specviz.replays import translations


@pytest.fixture(scope="module")
def town():
    return load("town")


# -- the streams ---------------------------------------------------------------------------------------


def test_the_sources_are_the_same_in_every_language():
    made = {code: translations.texts(code, 20) for code in translations.TARGETS}
    sources = {tuple(each.source for each in some) for some in made.values()}
    assert len(sources) == 1
    assert len({each.reference for some in made.values() for each in some}) > 70  # Control is near German
    assert len(set(next(iter(sources)))) == 20


def test_references_are_right_and_different():
    for code in translations.TARGETS:
        for made in translations.texts(code, 10):
            assert made.references[0] == made.reference
            assert 1 <= len(made.references) == len(set(made.references)) <= 8


def test_three_words_more_at_each_update():
    made = translations.texts("de", 4)
    for stream, text in zip(translations.streams(made), made, strict=True):
        updates = list(stream)
        words = [len(update.text.split()) for update in updates]
        assert words[:-1] == list(range(3, 3 * len(words), 3))
        assert updates[-1].last and updates[-1].text == text.source
        assert stream.reference == text.reference


# -- counts and comparisons ----------------------------------------------------------------------------


def test_what_follows_a_run_counts_what_its_trace_has(town):
    given = translations.streams(translations.texts("de", 3))
    run = specviz.stream(town, given, "retranslate", max_new_tokens=24)
    ticks = iter(range(10**6))
    follow = Follow(run, given, lambda: float(next(ticks)))
    texts = [follow(i) for i in range(3)]
    trace = run.finish()
    by = trace.updates.groupby("prompt")
    for name in ("emitted", "drafted", "accepted"):
        assert follow.sums[name].tolist() == by[name].sum().tolist()
    assert [len(text) for text in texts] == by["emitted"].sum().tolist()
    cycles = trace.cycles.groupby("prompt")["cycle"]
    assert follow.sums["prefill"].tolist() == (by["update"].size()).tolist()  # one clock tick per pass
    assert follow.sums["seconds"].tolist() == (cycles.size() - by["update"].size()).tolist()


def test_sums_are_drawn_together():
    rng = np.random.default_rng(1)
    a, b = rng.normal(5, 1, 40), rng.normal(4, 1, 40)
    alone = resampled(lambda x: x, a)
    assert alone.median == pytest.approx(a.sum())
    assert alone.low < a.sum() < alone.high
    paired = resampled(lambda x, y: x - y, a, a + 0.1)
    assert paired.low == pytest.approx(paired.high) == pytest.approx(-4.0)
    assert resampled(ratio, a, b).median == pytest.approx(a.sum() / b.sum())
    assert resampled(ratio, a[:2], b[:2]).low != resampled(ratio, a[:2], b[:2]).low  # too few texts: NaN
    assert np.isnan(resampled(ratio, a, np.zeros(40)).median)


def test_without_sacrebleu_a_score_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics.bleu", None)
    for score in (lambda: Quality("13a", [["a"]]), lambda: relative(None, None)):
        with pytest.raises(ParameterError, match="sacrebleu is not installed: pip install"):
            score()


def test_without_sacrebleu_nothing_is_decoded(town, monkeypatch):
    """Regression: every round was decoded first, and was lost."""
    monkeypatch.setitem(sys.modules, "sacrebleu.metrics", None)
    monkeypatch.setattr(measured, "Run", lambda *_, **options: pytest.fail("decoded"))
    given = measured.Sources("German", translations.streams(translations.texts("de", 1)))
    with pytest.raises(ParameterError, match="sacrebleu is not installed: pip install"):
        measured.measure(town, given, [measured.Setting(RT, {"mode": "rt"})])


def test_bleu_of_sums_is_the_corpus_bleu():
    sacrebleu = pytest.importorskip("sacrebleu")
    right = [["der Mann liest ein Buch .", "ein Buch liest der Mann ."], ["die Frau rennt heute schnell ."]]
    said = ["der Mann liest das Buch .", "die Frau rennt heute schnell weg ."]
    quality = Quality("13a", right)
    columns = [[r[0] for r in right], [right[0][1], None]]
    wanted = sacrebleu.corpus_bleu(said, columns).score
    assert float(quality.bleu(quality.statistics(said).sum(0))) == pytest.approx(wanted)
    right, text = [["the dog sat on a mat"]], ["the cat sat on mat"]  # without a common run of four words
    wanted = sacrebleu.corpus_bleu(text, [right[0]]).score
    few = Quality("13a", right)
    assert float(few.bleu(few.statistics(text).sum(0))) == pytest.approx(wanted) and wanted > 0
    assert quality.chrf(said) == pytest.approx(sacrebleu.corpus_chrf(said, columns).score)


def test_a_claim_stands_where_it_is_least_clear():
    estimate = Estimate(0.4, 0.3, 0.5, 9)
    claims = [Claim("x", "a", 0.3, 0, "more than", estimate), Claim("x", "b", 0.1), Claim("x", "c", 0.2)]
    claims += [Claim("y", "a", 0.2, 0.1, "at most"), Claim("y", "b", float("nan"), 0.1, "at most")]
    claims.append(Claim("z", "a", 1, 1, "at least"))
    x, y, z = bars_of(claims)
    assert x.held and "(b, of 3 the least clear)" in x.name and x.value == 0.1
    assert not y.held and "missed in a; b" in y.name and y.value != y.value
    assert z.held and "0.400" in bars_of(claims[:1])[0].name
    assert "missed by 0.200" in str(Bar("w", -0.2, 0, "more than"))


# -- late updates --------------------------------------------------------------------------------------


def test_growth():
    costs = np.tile([1.0, 5.0, 2.0, 9.0], 50)
    rng = np.random.default_rng(0)
    noise = rng.normal(1, 0.01, 200)
    flat = late.growth(late.relative(costs * noise, 4))
    assert flat.low <= 0.01 and abs(flat.median) < 0.01
    rising = late.growth(late.relative(costs * noise * np.linspace(1, 1.2, 200), 4))
    assert 0.1 < rising.low < rising.median < 0.2


# -- the whole -----------------------------------------------------------------------------------------


def test_bench(town, monkeypatch):
    pytest.importorskip("sacrebleu")
    monkeypatch.setattr(claims, "RESAMPLES", 20)
    ticks = []
    found = retranslation.bench(
        [town], languages=["de", "xx"], number=3, betas=[1.0], masks=[2], max_new_tokens=24, age=24,
        old=40, tick=lambda *given: ticks.append(given),
    )  # fmt: skip
    data = found.as_dict()
    assert ticks[-1][0] == ticks[-1][1] == len(ticks)
    assert [(row["language"], row["method"]) for row in data["rows"]] == [
        ("de", "RT"), ("de", "SSBD"), ("xx", "RT"), ("xx", "SSBD"),
    ]  # fmt: skip
    bias, masks = data["parts"][:2]
    assert [row["method"] for row in bias["rows"]] == [RT, *map(label, (0, 0.2, 0.5, 1)), CD]
    assert [row["method"] for row in masks["rows"]] == [label(0.2), "mask-2", "display-2", "two passes"]
    rows = {row["method"]: row for row in bias["rows"] + masks["rows"]}
    assert rows[RT]["bleu"] == rows[label(0)]["bleu"] and rows[RT]["ne"] == rows[label(0)]["ne"]
    assert rows[label(0.5)]["ad"]["median"] == rows[label(1)]["ad"]["median"] == rows[CD]["ad"]["median"] == 1
    assert rows[CD]["ne"]["median"] == 0
    assert rows["display-2"]["ad"] == rows[label(0.2)]["ad"] == rows["two passes"]["ad"]
    assert rows["display-2"]["ne"]["median"] < rows[label(0.2)]["ne"]["median"]
    named = {bar["name"].split(" (")[0]: bar for bar in data["bars"]}
    for name in ("β ≥ 0.5 accepts every draft token: A/D", "display-only mask-k leaves A/D and A/O: apart",
                 "β = 0 is RT: updates that are not, or too many near-ties"):  # fmt: skip
        assert named[name]["held"], name
    assert any("English to German" in name for name in named)
    last = data["parts"][-1]["rows"]
    assert len(last) == 2 * late.BLOCKS
    assert last[-1]["updates"] == "40" and last[-1]["memory"] > 10


def test_what_it_refuses(town):
    for options, words in (
        ({"languages": ["fr"]}, "no test texts"), ({"betas": [1.5]}, "beta must lie in"),
        ({"masks": [-1]}, "k must be at least"), ({"template": "Hello"}, "source"),
    ):  # fmt: skip
        with pytest.raises(ParameterError, match=words):
            retranslation.bench([town], number=1, **options)


def test_command(monkeypatch, capsys):
    given = {}

    def bench(models: Any, *, tick: Any, languages: Sequence[str] = (), betas: Sequence[float] = (),
              masks: Sequence[int] = (), number: int = 100) -> None:  # fmt: skip
        given.update(models=[m.name for m in models], languages=languages, betas=betas, masks=masks, n=number)
        raise ParameterError("enough")

    monkeypatch.setattr(retranslation, "bench", bench)
    options = ["--model", "town", "town-draft", "--languages", "de", "ja"]
    options += ["--betas", "0", "0.2", "--masks", "3", "--number", "5"]
    assert main(["retranslation", *options]) == 2
    assert "enough" in capsys.readouterr().err
    assert given == {"models": ["town", "town-draft"], "languages": ["de", "ja"], "betas": [0.0, 0.2],
                     "masks": [3], "n": 5}  # fmt: skip
    with pytest.raises(SystemExit):
        main(["retranslation", "--betas", "0", "x"])
    assert "invalid float value: 'x'" in capsys.readouterr().err


def test_options_of_it_are_no_other_bench_s(capsys):
    with pytest.raises(SystemExit):
        main(["stores", "--masks", "3"])
    assert "unrecognized arguments: --masks" in capsys.readouterr().err


# -- specviz bench streams -----------------------------------------------------------------------------


def test_the_bench_names_its_file_and_a_language_that_does_not_fit(town, monkeypatch, tmp_path):
    pytest.importorskip("sacrebleu")
    monkeypatch.setattr(claims, "RESAMPLES", 20)
    (tmp_path / "mine.txt").write_text("The baker sells fresh bread.\n")
    options = {"text": str(tmp_path / "mine.txt"), "words": 5, "number": 1, "rounds": 1, "betas": []}
    template = TEMPLATES["town"].replace("{target_language}", "Japanese")
    for language, counted in (("German", False), ("Japanese", True)):
        found = streams.bench(town, **options, language=language, template=template)
        assert found.as_dict()["setting"]["source"] == "mine.txt"
        assert any("cut them into words as in German" in note for note in found.notes) != counted


def test_two_biases_have_two_names():
    with pytest.raises(ParameterError, match="two betas are the same to six digits"):
        streams.settings([0.2000001])
    assert len(streams.settings([0.2, 0.2])) == len(streams.settings([]))
