"""Sources: each figure is in the cell whose definition it meets, computed by hand from counts and seconds.

Decoding is replaced by fakes; the tests examine the sources' results.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from types import SimpleNamespace

import canvas_traces
import numpy as np
import pandas as pd
import pytest
from tiny import llama

from specviz import metrics
from specviz.errors import ParameterError
from specviz.loop import generate
from specviz.measure import retranslation
from specviz.measure.canvases import ssd, stepwise
from specviz.measure.phases import SUMS
from specviz.measure.retranslation import Decoded
from specviz.measure.sweep import Measured, Point
from specviz.measure.timing import BASELINE
from specviz.metrics import Estimate
from specviz.metrics.canvases import COUNTS
from specviz.models import load
from specviz.replays import contenders, replays, running, sources
from specviz.replays.canvases import suite
from specviz.replays.cells import CONTROL, SAME
from specviz.replays.recipes import CURVES, RECIPES, Best
from specviz.replays.sources import beams, canvases, curves, prompts, shared, thresholds
from specviz.replays.sources import streams as streams_of
from specviz.replays.sources.prompts import filled
from specviz.replays.sources.shared import AGAIN, Measurement, RunOptions
from specviz.replays.tasks import PLAIN
from specviz.streams import fixed_lag
from specviz.suites import Suite

MODEL = SimpleNamespace(
    parameters=1, name="m", device="cpu", eos=(0,), kind="diffusion", dtype="float32", decode=str, encode=len
)


@pytest.fixture
def how(monkeypatch, tmp_path):
    monkeypatch.setattr(shared, "about", lambda model: {"device": "cpu"})
    monkeypatch.setattr(shared, "content", lambda model: None)
    monkeypatch.setattr(Measurement, "record", lambda *_: None)
    monkeypatch.setattr(Measurement, "ability", lambda *_, **__: None)

    def made(**options):
        drafts = {"small": "s", "aligned": "a", "heads": "h"}
        numbers = (MODEL, drafts, {}, 2, 8, 1, options, tmp_path, tmp_path, {})
        return RunOptions(*numbers, tick=lambda *_: None)

    return made


def value(found, metric, **where):
    (figure,) = (f for f in found.figures if f.metric == metric and f.where.items() >= where.items())
    return figure.value


# ---------------------------------------------------------------- rows and methods


@pytest.mark.parametrize(
    ("table", "where", "method", "values", "more"),
    [
        ("unispec/table1", {"method": "TokenRec."}, "token_recycling", {"template": "authors"}, {}),
        ("unispec/table1", {"method": "UNISPEC (ours)"}, "unispec", {"draft_size": Best()}, {}),
        ("unispec/table2", {"method": "w/o score estimation"}, "unispec",
         {"draft_size": Best(), "scores": False}, {}),
        ("unispec/table9", {"method": "EAGLE-1"}, "eagle", {"tree": "static"}, {"role": "eagle"}),
        ("unispec/table9", {"method": "EAGLE-2"}, "eagle", {"tree": "dynamic"}, {"role": "eagle"}),
        ("unispec/table9", {"method": "EAGLE-3"}, "eagle", {"tree": "dynamic"}, {"role": "eagle3"}),
        ("unispec/table6", {"temperature": 1.0, "method": "Ours"}, "unispec", {"draft_size": Best()},
         {"plan": {"temperature": 1.0}}),
        ("unispec/table10", {"precision": "FLOAT16", "method": "UNISPEC"}, "unispec", {"draft_size": Best()},
         {"plan": {"dtype": "float16"}}),
        ("unispec/table11", {"context": 2048}, "unispec", {"draft_size": Best()},
         {"plan": {"context": 2048}}),
        ("unispec/table12", {"threshold": 0.025}, "unispec", {"draft_size": Best(), "threshold": 0.025}, {}),
        ("unispec/table13", {"draft_size": 95}, "unispec", {"draft_size": Best(95 / 110)}, {}),
        ("unispec/table15", {"draft_size": 75}, "unispec", {"draft_size": Best(75 / 111)}, {}),
        ("unispec/table17", {"method": "Lookahead"}, "lookahead", {"draft_size": 120, "ngram": 5}, {}),
        ("unispec/table1", {"method": "SPECTRA"}, "spectra", {"draft_size": 60}, {}),
        ("unispec/table17", {"method": "SPECTRA + Device-Aware"}, "spectra", {"draft_size": Best()}, {}),
        ("ssbd/table2", {"method": "RT"}, "retranslate", {"mode": "rt"}, {}),
        ("ssbd/table3", {"beta": "0.3"}, "retranslate", {"beta": 0.3}, {}),
        ("ssbd/table3", {"beta": "CD"}, "retranslate", {"mode": "cd"}, {}),
        ("ssbd/table4", {"mask": "display-only mask-k", "k": "5"}, "retranslate",
         {"beta": 0.2, "k": 5, "mask": "display"}, {}),
        ("ssd/table1", {"method": "Origin", "draft_length": "-"}, "stepwise", {}, {}),
        ("ssd/table1", {"method": "Origin+SSD", "draft_length": "4"}, "ssd",
         {"tree": "chain", "draft_length": 4}, {}),
        ("ssd/table3", {"method": "Mix-order", "draft_length": 5}, "ssd",
         {"tree": "mix", "draft_length": 5}, {}),
        ("bild/table1", {"method": "BiLD (Aligned)", "score_drop": "~1 point"}, "bild",
         {"curve": "BiLD, aligned", "pick": "fastest", "lose": 1.0}, {}),
        ("bild/table1", {"method": "BiLD (Unaligned)", "score_drop": "minimal"}, "bild",
         {"curve": "BiLD, unaligned", "pick": "fastest", "lose": 0.2}, {}),
        ("cm_asd/table1", {"method": "SpecDec(k=25)"}, "", {"point": "SpecDec, k 25"}, {}),
        ("cm_asd/table3", {"method": "w/o Adaptive Drafting (Fixed k, adaptive τ)"}, "",
         {"point": "w/o adaptive drafting"}, {}),
    ],
)  # fmt: skip
def test_a_row_of_the_paper_is_this_method(table, where, method, values, more):
    (row,) = (row for row in RECIPES[table].rows if dict(row.where) == where)
    assert (row.method, dict(row.values)) == (method, values)
    for name, expected in more.items():
        assert getattr(row, name) == expected


def test_a_column_of_the_paper_is_these_prompts():
    parts = RECIPES["unispec/table1"].parts["task"]
    assert parts["MT"] == {"kind": "conversation"} and parts["Trans"] == {"kind": "translation"}
    assert RECIPES["unispec/table5"].parts["language"]["JA"] == {"language": "ja"}
    assert RECIPES["ssd/table1"].parts["task"]["MBPP"] == {"kind": "code"}
    assert RECIPES["bild/table1"].parts["dataset"]["XSUM"] == {"task": "sum-en"}
    assert RECIPES["cm_asd/table1"].parts["task"] == {"EN-DE": {"task": "en-de"}, "DE-EN": {"task": "de-en"}}
    named = {name: RECIPES[f"unispec/{name}"].metrics["throughput"] for name in ("table7", "table15")}
    assert named == {
        "table7": "request_throughput", "table15": "decode_throughput",
    }  # fmt: skip


# ---------------------------------------------------------------- prompts


def rows(tokens, steps, prefill, decode, sitting="s"):
    return [
        {"round": 0, "prompt": i, "tokens": t, "steps": s, "prefill_seconds": p, "decode_seconds": d,
         "timed": True, "error": None, "sitting": sitting, "text": [""]}
        for i, (t, s, p, d) in enumerate(zip(tokens, steps, prefill, decode))
    ]  # fmt: skip


def test_figures_of_prompts():
    mine = rows([10, 30], [5, 10], [1, 1], [1, 5])
    base = rows([10, 30], [10, 30], [1, 1], [4, 9])
    given = (None, mine, base)
    assert prompts.FIGURES["tau"](*given).median == 40 / 15
    assert prompts.FIGURES["request_throughput"](*given).median == (10 / 2 + 30 / 6) / 2
    assert prompts.FIGURES["decode_throughput"](*given).median == 40 / 6
    ratio = ((10 / 2 + 30 / 6) / 2) / ((10 / 5 + 30 / 10) / 2)
    assert prompts.FIGURES["request_speedup"](*given).median == pytest.approx(ratio)
    itself = prompts.FIGURES["request_speedup"](None, base, base)
    assert (itself.median, itself.low, itself.high) == (1, 1, 1)
    other = rows([10, 30], [10, 30], [1, 1], [4, 9], "another sitting")
    assert np.isnan(prompts.FIGURES["request_speedup"](None, mine, other).median), "no pair, no speedup"


def test_the_language_of_figures_is_the_one_that_all_prompts_state():
    made = Measurement()
    for languages, expected in ((["de", "de"], "de"), (["de", "en"], ""), (["de", None], ""), ([None], "")):
        made.of_prompts("T", "s", [{"language": each} for each in languages])
        assert (made.source.language, made.source.texts) == (expected, len(languages))


# ---------------------------------------------------------------- streams


def test_figures_of_streams(how, monkeypatch):
    def measure(model, code, chosen, *, tick, **_):
        def decoded(setting):
            fast = setting.values.get("beta") == 0.2
            sums = {"emitted": [8, 12], "drafted": [10, 6] if fast else [0, 0],
                    "accepted": [5, 3] if fast else [0, 0], "erased": [1, 2] if fast else [4, 5],
                    "final": [4, 8], "seconds": [1, 1] if fast else [2, 3]}  # fmt: skip
            sums = {name: np.array(values, float) for name, values in sums.items()} | {
                "bleu": np.ones((2, 1))
            }
            # Without a bias the last texts are those of re-translation, but an update of one differs.
            tokens = [[1, 2], [3, 4 if setting.values.get("beta") == 0.0 else 5]]
            return Decoded(setting, sums, texts=["a", "b"], tokens=tokens)

        return {each.label: decoded(each) for each in chosen}, SimpleNamespace(
            bleu=lambda sums: sums[..., 0], tokenize="13a", right=[]
        )

    monkeypatch.setattr(retranslation, "measure", measure)
    (same,) = (c for c in sources.find("streams")(RECIPES["ssbd/table3"], how()).checks if c.kind == SAME)
    assert (same.count, same.of) == (1, 2)
    real = replace(RECIPES["ssbd/table3"], **{k: v for k, v in RECIPES["ssbd/table3"].real.items()
                                              if k == "parts"})  # fmt: skip
    found = sources.find("streams")(real, how())
    assert {f.source.task for f in found.figures} == {"English→Portuguese"}
    shown = replays.compared("ssbd/table3", RECIPES["ssbd/table3"], found, {}).verdicts[0].numbers
    assert "English→Chinese (here English→Portuguese) against 0.2, " in shown
    found = sources.find("streams")(RECIPES["ssbd/table2"], how())
    rt, ours = (
        {"method": "RT", "language": "English→German"},
        {"method": "SSBD", "language": "English→German"},
    )
    codes = {f.where["language"]: f.source.language for f in found.figures}
    assert codes == {"English→German": "de", "English→Chinese": "zh", "English→Japanese": "ja"}
    assert value(found, "ne", **rt) == 9 / 12 and value(found, "ne", **ours) == 3 / 12
    assert value(found, "a_d", **ours) == 100 * 8 / 16 and value(found, "a_o", **ours) == 100 * 8 / 20
    assert value(found, "throughput", **rt) == 4 and value(found, "throughput", **ours) == 10
    assert value(found, "speedup", **rt) == 1 and value(found, "speedup", **ours) == 2.5
    assert not any(f.metric in ("a_d", "a_o") for f in found.figures if f.where["method"] == "RT")
    made = replays.compared("ssbd/table2", RECIPES["ssbd/table2"], found, {})
    verdicts = made.compared().groupby("metric")["verdict"].agg(set).to_dict()
    assert verdicts == {"ne": {"agrees"}, "throughput": {"agrees"}}, "the speedup says no more"
    other = {"RT": "SSBD", "SSBD": "RT"}
    found.figures = [replace(f, where={**f.where, "method": other[f.where["method"]]}) for f in found.figures]
    made = replays.compared("ssbd/table2", RECIPES["ssbd/table2"], found, {})
    assert set(made.compared()["verdict"]) == {"against"}


def test_a_line_of_a_text_file_is_its_own_source(how):
    lines = Suite([{"prompt": "one two three four"}], "talk.txt")
    options = replace(how(), suites={"English→Chinese": lines})
    for table, updates in (("ssbd/table2", 2), ("ssbd/table6", None)):
        made = Measurement()
        given = streams_of.sources(RECIPES[table], options, made, updates is None)["English→Chinese"]
        (stream,) = given.streams
        assert given.language == "Chinese" and stream.language == "en" and given.references is None
        assert list(stream)[-1].text == "one two three four" and updates in (len(list(stream)), None)


# ---------------------------------------------------------------- canvases


def test_figures_of_canvases(how, monkeypatch):
    """Two texts of four cells (one an end token), in two rounds; SSD takes half the passes and a third of
    the seconds."""

    def timed(model, ids, ways, length, rounds, tick):
        found = []
        for way in ways:
            quick = way.method == "ssd"
            text = SimpleNamespace(
                text=lambda ends: [5, 6, 7], passes=2 if quick else 4,
                phases=SimpleNamespace(
                    sums=lambda n=2 if quick else 4: dict.fromkeys(SUMS, 1.0) | {"cycles": n}
                ),
            )  # fmt: skip
            found.append(SimpleNamespace(texts=[text] * 4, seconds=[1.0 if quick else 3.0] * 4))
        return found

    monkeypatch.setattr(canvases, "timed", timed)
    monkeypatch.setattr(
        canvases, "prompts_of", lambda recipe, *_: {t: [{"prompt": "a"}] * 2 for t in recipe.parts["task"]}
    )
    found = canvases.canvases(RECIPES["ssd/table1"], how(rounds=2))
    for task in ("GSM8K", "Mean"):
        origin, ours = ({"method": m, "draft_length": n, "task": task}
                        for m, n in (("Origin", "-"), ("Origin+SSD", "3")))  # fmt: skip
        assert value(found, "throughput", **origin) == 1 and value(found, "throughput", **ours) == 3
        assert value(found, "speedup", **ours) == 3 and value(found, "step_reduction", **ours) == 50
    assert {f.texts for f in found.figures if f.metric == "throughput"} == {2, 8}, "rounds are no texts"
    assert {each.tau for each in found.costs} == {0.5} and {each.plain_tau for each in found.costs} == {0.25}
    found = canvases.canvases(RECIPES["ssd/table3"], how())
    assert value(found, "verification_nodes", method="Greedy", draft_length=4) == 5
    assert value(found, "verification_nodes", method="Mix-order", draft_length=4) == 8
    assert value(found, "added_nodes", method="Mix-order", draft_length=4) == 3
    assert value(found, "step_reduction_bound", method="-", draft_length=4) == 80


def test_limits_are_compared_on_the_same_texts(how, monkeypatch):
    """Texts differ widely, but in each the longer draft matches one step more, so the gain is constant."""
    rows = [(n, 1, 10, 3, matched + (n > 3), 0, 2) for n in (3, 4) for matched in (1, 1, 1, 8, 8, 8)]
    counts = pd.DataFrame(rows, columns=["draft_length", "top", *COUNTS])
    monkeypatch.setattr(metrics, "limits_by_text", lambda trace, lengths: counts)
    monkeypatch.setattr(canvases, "decoded", lambda *_, **__: SimpleNamespace(texts=[]))
    monkeypatch.setattr(canvases, "prompts_of", lambda *_: {"GSM8K": [{"prompt": "a"}] * 6})
    measured = canvases.limits(RECIPES["ssd/table2"], how())
    assert value(measured, "step_reduction", draft_length=3) == pytest.approx(45)
    assert value(measured, "step_reduction_bound", draft_length=4) == 80
    short, long = (f for f in measured.figures if f.metric == "step_reduction")
    assert short.high - short.low > 20 and long.value == pytest.approx(55)
    assert np.ptp(long.draws - short.draws) == pytest.approx(0)


def test_lengths_say_where_the_time_goes(how, monkeypatch):
    """Each length is a contender of its own, with the passes that SSD saves in it."""

    def timed(model, ids, ways, length, rounds, tick):
        found = []
        for way in ways:
            sums = dict.fromkeys(SUMS, 1.0) | {"cycles": length // (2 if way.method == "ssd" else 1)}
            phases = SimpleNamespace(sums=lambda sums=sums: sums)
            text = SimpleNamespace(text=lambda ends: [5, 6, 7], passes=1, phases=phases)
            found.append(SimpleNamespace(texts=[text] * len(ids), seconds=[1.0] * len(ids)))
        return found

    monkeypatch.setattr(canvases, "timed", timed)
    monkeypatch.setattr(canvases, "prompts_of", lambda *_: {"GSM8K": [{"id": "0", "prompt": "a"}] * 2})
    monkeypatch.setattr(canvases, "with_shots", lambda entries, *_: entries)
    found = canvases.lengths(RECIPES["ssd/figure3"], how())
    cycles = [each.sums["cycles"] for each in found.costs]
    assert cycles == [2 * length // 2 for length in (4, 16, 8, 8)], "half, twice, and with 0 and 3 examples"
    assert len({each.contender for each in found.costs}) == 4
    assert all(each.plain["cycles"] == 2 * each.sums["cycles"] for each in found.costs)


@pytest.mark.parametrize("own", [(), ("a", "b", "c")])
def test_throughput_by_batch_counts_texts_of_the_suite_and_not_rounds(monkeypatch, how, own):
    speed = Estimate(5.0, 4.0, 6.0, 1)  # from one round
    decoded = []

    def batches(model, entries, rounds, tick, length):
        decoded.extend(entries)
        return [{"way": "stepwise", "batch": 1, "speed": speed}], []

    monkeypatch.setattr(curves.canvases_of, "batches", batches)
    entries = [{"id": each, "prompt": each} for each in own]
    options = replace(how(), suites={"": Suite(entries, "mine.jsonl")} if own else {})
    found = curves.canvases(CURVES["ssd/figure1"], options)
    (figure,) = found.figures
    assert len(decoded) == figure.source.texts == 2, "as many as the options say"
    assert [each["prompt"] for each in decoded] == (["a", "b"] if own else [e["prompt"] for e in suite(2)])
    assert figure.source.suite == ("mine.jsonl" if own else "generated prompts (bundled)")
    assert (figure.value, figure.low, figure.high) == (5, 4, 6)
    notes = replays.compared("ssd/figure1", CURVES["ssd/figure1"], found, {}).notes
    assert "batch size 4: it needs 4 prompts, and there are 2" in notes and len(notes) == 3, "and of 8 and 16"


def test_figure_1_of_ssd_has_the_definitions_of_table_1():
    assert CURVES["ssd/figure1"].differs == RECIPES["ssd/table1"].differs
    assert [what for what, _, _ in CURVES["ssd/figure1"].differs] == ["throughput", "cache"]


# ---------------------------------------------------------------- thresholds and beams


class Score:
    """A score whose quality is the sum itself; `name` decides the metric."""

    name = "BLEU"

    @staticmethod
    def of(sums):
        return sums[..., 0]


def point(label, seconds, quality, group="", base=BASELINE, **counts):
    sums = {"seconds": np.array([seconds, seconds], float), "tokens": np.array([10.0, 10.0]),
            "score": np.array([[quality], [quality]]) / 2}  # fmt: skip
    counts = {"fallbacks": 0, "rollbacks": 0} | counts
    sums |= {name: np.array([n, n], float) for name, n in counts.items()}
    method = "speculative" if group.startswith("speculative") else "bild"
    return Measured(Point(label, method, base=base, group=group), sums, ["a", "b"], Score)


def test_figures_of_thresholds(how, monkeypatch):
    greedy = {"BiLD, unaligned": 6, "BiLD, aligned": 9, "speculative, sampling": 8}  # seconds of each sweep
    every = {
        "BiLD, unaligned": [point("slow", 5, 40, "BiLD, unaligned", fallbacks=1, rollbacks=2),
                            point("good", 4, 39.9, "BiLD, unaligned", fallbacks=2, rollbacks=1),
                            point("near", 3, 39.1, "BiLD, unaligned", fallbacks=3),
                            point("bad", 2, 30, "BiLD, unaligned")],
        "BiLD, aligned": [point("all lose", 2, 38, "BiLD, aligned")],
        "speculative, sampling": [point("w4", 5, 38, "speculative, sampling", rollbacks=3),
                                  point("w8", 4, 37, "speculative, sampling", rollbacks=4)],
    }  # fmt: skip

    def measured(curve, *_):
        base, again = point(BASELINE, greedy[curve], 40), point(AGAIN, greedy[curve] + 1, 40)
        return {BASELINE: base, AGAIN: again} | {each.point.label: each for each in every[curve]}

    monkeypatch.setattr(thresholds, "measured", measured)
    found = sources.find("thresholds")(RECIPES["bild/table1"], how())
    unaligned = {"method": "BiLD (Unaligned)", "dataset": "IWSLT"}
    assert value(found, "speedup", score_drop="minimal", **unaligned) == 6 / 4
    assert {f.source.language for f in found.figures} == {"en"}
    assert value(found, "speedup", score_drop="~1 point", **unaligned) == 6 / 3
    assert value(found, "bleu", score_drop="~1 point", **unaligned) == pytest.approx(39.1)
    assert value(found, "bleu_gain", score_drop="~1 point", **unaligned) == pytest.approx(-0.9)
    assert not any(f.where["method"] == "BiLD (Aligned)" for f in found.figures), "all lose more than a point"
    assert any("loses this little" in why for _, why in found.absent)
    controls = [check.value for check in found.checks if check.kind == CONTROL and check.task == "IWSLT"]
    assert controls == [6 / 7, 9 / 10], "one for each sweep"
    found = sources.find("thresholds")(RECIPES["bild/table4"], how())
    ours = {"method": ["BiLD (Better BLEU)", "BiLD (Better ROUGE-L)"], "dataset": "IWSLT"}
    drawn = {"method": "Rejection Sampling Based", "dataset": "IWSLT"}
    # The fastest setting that scores at least as well as rejection sampling.
    assert value(found, "fallback", **ours) == 30 and value(found, "rollback", **ours) == 0
    assert value(found, "rollback", **drawn) == 40
    assert value(found, "speedup", **drawn) == 8 / 4, "over the greedy decoding of its own sweep"
    assert value(found, "speedup", **ours) == 6 / 3
    made = replays.compared("bild/table4", RECIPES["bild/table4"], found, {})
    assert [each.reason for each in made.verdicts[2:]] == [thresholds.NO_FALLBACK] * 2
    every["speculative, sampling"] = [point("w8", 1, 41, "speculative, sampling")]
    found = sources.find("thresholds")(RECIPES["bild/table4"], how())
    worse = "no setting of the grid scores as speculative, sampling does"
    assert worse in [why for _, why in found.absent]
    found = sources.find("thresholds")(RECIPES["bild/table3"], how())
    whys = {where["method"]: why for where, why in found.absent if where.get("dataset") == "IWSLT"}
    assert whys["BiLD (Match BLEU/ROUGE-L)"] == worse, "like quality has to be reached"
    assert whys["BiLD (Match Latency)"] == "no setting of the grid is as fast as speculative, sampling"
    every["speculative, sampling"] = [point("w8", 4, 37, "speculative, sampling")]
    found = sources.find("thresholds")(RECIPES["bild/table3"], how())
    # Sampling is 8 / 4 = 2 times as fast as greedy; two BiLD settings reach 2 over their own baseline.
    assert value(found, "bleu", method="BiLD (Match Latency)", dataset="IWSLT") == pytest.approx(39.1)
    assert value(found, "speedup", method="BiLD (Match BLEU/ROUGE-L)", dataset="IWSLT") == 2
    assert value(found, "bleu", method="Vanilla Inference", dataset="IWSLT") == 40


def test_two_suites_that_number_their_prompts_alike_are_measured_each(how):
    options = how()
    made = [options.once(("sweep", "c"), [{"id": 1, "prompt": text}], lambda: [0]) for text in "aba"]
    assert made[0] is made[2] and made[0] is not made[1]


def test_a_finished_sweep_outlives_a_kill(how, monkeypatch):
    model, entries = llama(seed=1), [{"prompt": [3, 4, 5]}, {"prompt": [7, 8]}]
    points = [Point(BASELINE, BASELINE, model=model), Point("copy", "prompt_lookup", model=model)]
    again, ticks = replace(how(), model=model), []
    made = thresholds.swept(points, "task", entries, again)
    monkeypatch.setattr(thresholds, "sweep", None)
    saved = thresholds.swept(points, "task", entries, replace(again, tick=lambda *now: ticks.append(now)))
    assert list(saved) == list(made) == [BASELINE, "copy", AGAIN]
    assert ticks[-1] == (6, 6, "task: measured before")
    for mine, other in zip(saved.values(), made.values()):
        assert (mine.point, mine.texts, mine.phases) == (other.point, other.texts, other.phases)
        assert mine.tokens == other.tokens and all(mine.tokens)
        assert mine.sums.keys() == other.sums.keys()
        assert all(np.array_equal(mine.sums[name], other.sums[name], equal_nan=True) for name in mine.sums)
    for some, texts in ((points[:1], entries), (points, entries[:1])):
        with pytest.raises(TypeError):  # it measures
            thresholds.swept(some, "task", texts, again)
    model.invariant = True
    with pytest.raises(TypeError):  # passes that are computed in another way take other times
        thresholds.swept(points, "task", entries, again)


def test_the_kernels_of_a_drafter_are_part_of_a_sweep(how, monkeypatch):
    target, draft = llama(seed=1), llama(seed=2)
    draft.kernels = "int8"
    keys = []
    monkeypatch.setattr(RunOptions, "outlasting", lambda self, key, *_: keys.append(json.dumps(key)))
    for kernels in ("int8", "plain"):
        draft.kernels = kernels
        points = [Point("s", "speculative", {}, target, draft)]
        thresholds.swept(points, "task", [], replace(how(), model=target))
    assert keys[0] != keys[1]


def test_what_was_kept_has_its_own_date_and_seconds(how, monkeypatch, tmp_path):
    def result(options, make):
        same = lambda value: value
        return options.outlasting({"a": 1}, make, same, same, lambda label: None, 0)

    first, second = how(), how()
    assert result(first, lambda: {"b": 2}) == {"b": 2} and not first.kept
    (file,) = (tmp_path / "measured").iterdir()
    stored = json.loads(file.read_text())
    assert stored["result"] == {"b": 2} and stored["seconds"] >= 0
    file.write_text(json.dumps(stored | {"date": "2020-01-01", "seconds": 5000.0}))
    assert result(second, None) == {"b": 2} and second.kept == [("2020-01-01", 5000.0)]

    third, fourth = (replace(how(), memory=second.memory) for _ in range(2))
    for later, kept in ((third, [("2020-01-01", 5000.0)]), (fourth, [("2020-01-01", 0.0)])):
        made = later.once(("shared",), [], lambda later=later: result(later, None))
        assert made == {"b": 2} and later.kept == kept, "a table that shares it has its date, too"

    def measured(recipe, options):
        result(options, None)
        made = Measurement.begin(options)
        made.add({"language": "EN", "method": "EAGLE-2"}, "tau", 2.0)
        return made

    monkeypatch.setattr(sources, "find", lambda name: measured)
    made = running.measure(RECIPES["unispec/table3"], {"table": "unispec/table3"}, how(), lambda *_: None)
    (source,) = made.sources
    assert source.date.startswith("2020-01-01 to 2") and made.seconds > 5000


def same_content(mine, other):
    """Whether two dataclasses with dicts of arrays hold the same."""
    mine, other = asdict(mine), asdict(other)
    sums = mine.pop("sums", {}), other.pop("sums", {})
    assert mine == other and sums[0].keys() == sums[1].keys()
    return all(np.array_equal(sums[0][name], sums[1][name], equal_nan=True) for name in sums[0])


def test_measured_streams_outlast_a_kill(how, monkeypatch):
    model = load("town-translator")
    given = retranslation.Sources("German", [fixed_lag("The cook sees"), fixed_lag("a boat")])
    chosen = [retranslation.Setting(retranslation.RT, {"mode": "rt"}),
              retranslation.Setting("SSBD", {"beta": 0.2})]  # fmt: skip
    options, steps = replace(how(rounds=2), model=model, max_new_tokens=6), []
    decoded, quality = streams_of.measured(options, given, chosen, None, lambda label: None)
    monkeypatch.setattr(retranslation, "measure", None)
    kept, again = streams_of.measured(options, given, chosen, None, steps.append)
    assert steps == ["measured before"] * 8, "the bar goes on from there"
    assert all(same_content(kept[name], decoded[name]) for name in decoded) and kept.keys() == decoded.keys()
    assert kept["SSBD"].of(again.bleu, "bleu").median == decoded["SSBD"].of(quality.bleu, "bleu").median
    with pytest.raises(TypeError):  # it measures
        streams_of.measured(options, given, chosen, "qwen3", steps.append)


def test_measured_canvases_outlast_a_kill(how, monkeypatch):
    options, steps = replace(how(rounds=2), model=canvas_traces.model()), []
    given = [[3, 4, 5], [6, 7]], [stepwise(), ssd(2)], 6
    written = canvases.measured(options, *given, lambda label: None)
    assert all(text.seconds and len(text.tokens) == len(text.passes) == 4 for text in written)
    limits = canvases.counted(options, given[0], {})
    monkeypatch.setattr(canvases, "timed", None)
    monkeypatch.setattr(canvases, "decoded", None)
    assert canvases.measured(options, *given, steps.append) == written and len(steps) == 8
    texts, counts = canvases.counted(options, given[0], {})
    assert texts == limits[0] and counts.equals(limits[1])
    for file in (options.path / "measured").iterdir():
        file.write_text(file.read_text()[:40])
    with pytest.raises(TypeError):  # it measures
        canvases.measured(options, *given, steps.append)


def test_texts_without_references_have_a_reason(how, monkeypatch):
    class Unscored(Score):
        name = ""

    def measured(curve, *_):
        every = [point(BASELINE, 6, 0), point(AGAIN, 6, 0), point("one", 3, 0, curve)]
        return {each.point.label: replace(each, score=Unscored) for each in every}

    monkeypatch.setattr(thresholds, "measured", measured)
    monkeypatch.setattr(curves, "measured", measured)
    found = sources.find("thresholds")(RECIPES["bild/table4"], how())
    whys = {why for where, why in found.absent if "method" in where}
    assert whys == {thresholds.NO_REFERENCES}


def test_tables_of_scores_refuse_texts_without_references_before_any_work(how, monkeypatch):
    measured = lambda curve, dataset, *_: pytest.fail(f"{dataset} was measured")
    monkeypatch.setattr(thresholds, "measured", measured)
    monkeypatch.setattr(curves, "measured", measured)
    plain = {"prompt": "a", "kind": "summarization", "language": "en"}
    options = replace(how(), suites={PLAIN: Suite([plain], "mine")})
    for name, recipe in (("thresholds", RECIPES["bild/table1"]), ("settings", CURVES["bild/figure4"])):
        with pytest.raises(ParameterError, match=r"no references.*: give them references"):
            sources.find(name)(recipe, options)
    made, some = Measurement(), {"XSUM": [plain], "CNN/DailyMail": [plain | {"reference": "b"}]}
    assert list(thresholds.scorable(some, made)) == ["CNN/DailyMail"]
    assert made.absent == [({"dataset": "XSUM"}, thresholds.NO_REFERENCES)]


def test_the_notes_give_both_rouge_l_scores_of_summaries(how, monkeypatch):
    class Summaries(Score):
        name = "ROUGE-L"

    def measured(curve, task, entries, options):
        texts = [entry["reference"][0] for entry in entries]
        every = [point(BASELINE, 6, 40), point(AGAIN, 6, 40), point("one", 3, 40, curve)]
        return {each.point.label: replace(each, texts=texts, score=Summaries) for each in every}

    monkeypatch.setattr(thresholds, "measured", measured)
    made = sources.find("thresholds")(RECIPES["bild/table1"], how())
    for label in (BASELINE, "one"):
        assert made.notes.count(f"XSUM, {label}: ROUGE-L 100.00, ROUGE-Lsum 100.00") == 1


def test_batches_that_the_prompts_do_not_fill_are_absent(how):
    made = Measurement.begin(how())
    recipe = RECIPES["unispec/table8"]
    assert filled(recipe.options["sizes"], 2, made, "batch_size") == [1, 2]
    assert ({"batch_size": 4}, "it needs 4 prompts, and there are 2") in made.absent


def test_figures_of_beams(how, monkeypatch):
    every = {row.values["point"]: point(row.values["point"], 4, 30, accepted=6, cycles=2)
             for row in RECIPES["cm_asd/table3"].rows}  # fmt: skip
    every[contenders.BEAMS] = point(contenders.BEAMS, 12, 29)
    every[BASELINE] = point(BASELINE, 6, 28)
    every[AGAIN] = every[BASELINE]
    monkeypatch.setattr(beams, "measured", lambda *_: (every, {"CM-ASD": 1.5}))
    found = sources.find("beams")(RECIPES["cm_asd/table3"], how())
    ours, wide = ({"method": m, "task": "EN-DE"}
                  for m in ("CM-ASD (Full: Adaptive k + Adaptive τ)", "Transformer-base (b=5)"))  # fmt: skip
    assert value(found, "speedup", **ours) == 3 and value(found, "speedup", **wide) == 1
    assert value(found, "accepted_tokens", **ours) == 3 and value(found, "accepted_tokens", **wide) == 1
    assert value(found, "bleu", **ours) == 30 and value(found, "draft_latency", **ours) == 1.5


@pytest.mark.parametrize("gap", ["as_written", "as_described"])
@pytest.mark.parametrize("weights", [{}, {"w_entropy": 0.0, "w_margin": 0.0, "w_softmax": 1.0}])
def test_the_fixed_threshold_is_the_mean_of_cm_asd_s_own(gap, weights):
    """They follow from the confidence score of all signals, which is not the drafter's probability."""
    large = llama(seed=0, name="large")
    small = llama(seed=5, like=large, noise=0.15, name="small")
    values = {**contenders.FULL, **weights, "gap": gap, "gamma": 2.0}
    whole, prompts = Point("CM-ASD", "cm_asd", values, large, small), [[3, 4], [5, 6], [7], [9, 2, 3]]
    entries = [{"prompt": ids} for ids in prompts]
    fixed = contenders.mean_threshold(whole, entries, 40)
    nodes = generate(large, prompts, "cm_asd", draft=small, max_new_tokens=40, **values).nodes
    judged = nodes[nodes["status"].isin(["accepted", "rejected"])]
    assert fixed == pytest.approx(judged["threshold"].mean(), rel=1e-5)
    sure = judged["score"].mean()
    assert fixed == pytest.approx(0.1 + 2 * (1 - sure if gap == "as_written" else sure), rel=1e-5)
    assert contenders.mean_threshold(whole, entries, 1) == 0.1, "no token was judged"
