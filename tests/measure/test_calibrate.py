"""Calibration: fits with an exact answer, resuming, running out of memory, and the size the loop takes."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from benchmarks import calibrate as calibrate_bench
from rich.console import Console
from tiny import llama

import specviz
from specviz import calibration, cli
from specviz.calibration import Calibration
from specviz.errors import ModelError, ParameterError, PromptError, SpecvizError, TraceError
from specviz.loop import machine
from specviz.measure import calibrate as room
from specviz.measure import fits, timing
from specviz.methods import find, names
from specviz.methods.unispec import UniSpec

EVEN = np.arange(1, 66, 4)
TEXTS = [[3, 4, 5], [7, 8]]
SMALL = {"sizes": [1, 2, 3, 4, 6], "warm_up": [[3, 4, 5]], "max_new_tokens": 12, "rounds": 2}


@pytest.fixture(autouse=True)
def _nowhere_else(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_CALIBRATIONS", str(tmp_path / "kept"))


@pytest.fixture(scope="module")
def model():
    return llama(seed=5, vocabulary=24, eos=(), name="tiny")


class TestFits:
    def test_smooth_curves(self):
        """s = 1 + (g/40)^2 and a cubic τ are in the paper's families, so all fits find the optimum."""
        every = np.arange(1, 66)
        s, tau = lambda g: 1 + (g / 40) ** 2, lambda g: 1 + g / 12 - (g / 60) ** 2 + (g / 200) ** 3
        true = every[np.argmax(tau(every) / s(every))]
        assert 5 < true < 60
        found = fits.fit(EVEN, s(EVEN), tau(EVEN))
        assert found["paper"].g == true
        assert np.allclose(found["paper"].s, s(every))
        assert np.allclose(found["paper"].tau, tau(every))
        assert found["grid"].g == EVEN[np.argmax(tau(EVEN) / s(EVEN))]
        assert abs(found["monotone"].g - true) <= 4

    def test_monotone_is_monotone_and_concave(self):
        rng = np.random.default_rng(0)
        tau = 1 + np.log(EVEN) / 3 + 0.1 * rng.normal(size=len(EVEN))
        s = 1 + EVEN / 40 + 0.1 * rng.normal(size=len(EVEN))
        found = fits.monotone(EVEN, s, tau)
        assert np.diff(found.s).min() >= 0
        assert np.diff(found.tau).min() >= -1e-9
        assert np.diff(found.tau, 2).max() <= 1e-9
        exact = fits.monotone(EVEN, 1 + EVEN / 40, np.log(EVEN) + 1.0)
        assert np.allclose(np.array(exact.tau)[EVEN - 1], np.log(EVEN) + 1)
        falling = fits.monotone(EVEN, 1 + EVEN / 40, 3 - EVEN / 100)  # noise may fall; the fit is then flat
        assert np.allclose(falling.tau, np.mean(3 - EVEN / 100))

    def test_eight_knots_mislead_where_points_are_far_apart(self):
        sizes = np.array([1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48])
        s = [2.436, 2.622, 2.853, 2.891, 3.055, 3.172, 3.388, 3.453]
        s += [3.737, 3.824, 4.089, 4.239, 4.635, 5.132, 5.444]
        tau = [1.260, 1.329, 1.448, 1.426, 1.448, 1.470, 1.590, 1.617]
        tau += [1.540, 1.590, 1.672, 1.672, 1.702, 1.702, 1.702]
        s, tau = np.array(s), np.array(tau)  # measured: unispec on the bundled target, one thread
        found = fits.fit(sizes, s, tau)
        true = tau / s
        at = lambda g: np.interp(g, sizes, true) / true.max()
        assert at(found["monotone"].g) > 0.98
        assert at(found["paper"].g) < 0.7
        assert np.ptp(found["paper"].s) > 2 * np.ptp(s)  # it swings far outside the data between two points

    def test_the_end_of_the_range_bounds_it(self):
        found = fits.fit(EVEN, np.ones(len(EVEN)), EVEN.astype(float))
        assert {fit.g for fit in found.values()} == {65}


def test_a_calibration_is_measured_kept_and_taken(model, tmp_path):
    told = []
    found = specviz.calibrate(model, "unispec", TEXTS, **SMALL, depth=4, tick=lambda *now: told.append(now))
    assert [p.g for p in found.points] == SMALL["sizes"]
    assert found.complete
    assert found.g in range(1, 7)
    assert 0 < told[-1][0] <= told[-1][1]
    assert [done for done, *_ in told] == sorted(done for done, *_ in told)
    # τ is that of a warm run whose memory was filled by the same text.
    method = UniSpec(depth=4)
    specviz.generate(model, [[3, 4, 5]], method, max_new_tokens=12, record=None)
    cold = specviz.generate(model, TEXTS[0], UniSpec(depth=4, draft_size=3), max_new_tokens=12)
    warm = UniSpec(depth=4, draft_size=3)
    warm.like(method)
    trace = specviz.generate(model, TEXTS[0], warm, max_new_tokens=12)
    assert found.points[2].cycles[0] == (trace.cycles["cycle"] > 0).sum()
    assert found.points[2].cycles[0] < (cold.cycles["cycle"] > 0).sum()
    assert found.points[2].tokens == [12, 12]
    # A second call measures nothing; other prompts need another calibration.
    again = specviz.calibrate(
        model, "unispec", TEXTS, **SMALL, depth=4, tick=lambda *_: pytest.fail("measured")
    )
    assert again == found
    trace = specviz.generate(model, TEXTS[0], "unispec", draft_size="calibrated", depth=4, max_new_tokens=6)
    assert trace.run["parameters"]["draft_size"] == found.g
    assert trace.run["calibration"]["value"] == found.g
    assert specviz.generate(model, TEXTS[0], "unispec", max_new_tokens=6).run["calibration"] is None
    how = r"run: specviz calibrate unispec --model tiny --threads \d+ --set depth=5$"
    with pytest.raises(SpecvizError, match=r"depth 4, here depth 5.; " + how):
        specviz.generate(model, TEXTS[0], "unispec", draft_size="calibrated", depth=5)
    assert [p.suffix for p in (tmp_path / "kept").iterdir()] == [".json"]


def test_a_text_at_each_size_is_what_was_measured(model):
    """The memory is filled in the same way, so cycles and tokens equal those that the calibration counted."""
    made = specviz.calibrate(model, "unispec", suite=TEXTS, **SMALL)
    texts = room.size_traces(model, made, TEXTS, warm_up=SMALL["warm_up"])
    assert list(texts) == SMALL["sizes"]
    for point in made.points:
        trace = texts[point.g]
        assert trace.run["parameters"]["draft_size"] == point.g
        assert (trace.cycles["cycle"] > 0).sum() == point.cycles[0]


def test_other_weights_are_another_model(model):
    specviz.calibrate(model, "unispec", TEXTS, **SMALL)
    other = llama(seed=6, vocabulary=24, eos=(), name="tiny")
    with pytest.raises(SpecvizError, match=r"another model.*weights"):
        specviz.generate(other, TEXTS[0], "unispec", draft_size="calibrated")
    shared = specviz.method("unispec", draft_size="calibrated")
    for _ in range(2):  # the shared method must not carry a size from one run to the next
        run = specviz.generate(model, TEXTS[0], shared, max_new_tokens=4).run
        assert run["calibration"]["value"] == run["parameters"]["draft_size"]
    with pytest.raises(SpecvizError, match=r"another model.*weights"):
        specviz.generate(other, TEXTS[0], shared)


def interrupted(monkeypatch, number=20):
    """Interrupt the twentieth text, or another; return a growing list of the texts decoded so far."""
    real, seen = room.Turns.text, []

    def stopped(self, method, ids):
        seen.append(ids)
        if len(seen) == number:
            raise KeyboardInterrupt
        return real(self, method, ids)

    monkeypatch.setattr(room.Turns, "text", stopped)
    return seen


def test_it_goes_on_after_an_interruption(model, tmp_path, monkeypatch):
    seen = interrupted(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        specviz.calibrate(model, "unispec", TEXTS, **SMALL)
    (partial,) = (tmp_path / "kept").iterdir()
    assert partial.suffix == ".partial"
    kept = Calibration.open(partial)
    done = sum(s is not None for s in kept.points[0].seconds[0])
    assert done == 1
    with pytest.raises(SpecvizError, match="not calibrated"):
        specviz.generate(model, TEXTS[0], "unispec", draft_size="calibrated")
    before = kept.points[0].seconds[0][0]
    found = specviz.calibrate(model, "unispec", TEXTS, **SMALL)
    assert len(seen) - 20 == 1 + 3 * 5  # the memory, then the three remaining texts at five sizes
    assert found.points[0].seconds[0][0] == before
    assert [p.suffix for p in (tmp_path / "kept").iterdir()] == [".json"]


def test_a_forced_one_goes_on_where_it_was_interrupted(model, tmp_path, monkeypatch):
    before = specviz.calibrate(model, "unispec", TEXTS, **SMALL)
    seen = interrupted(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        specviz.calibrate(model, "unispec", TEXTS, **SMALL, force=True)
    assert specviz.calibrate(model, "unispec", TEXTS, **SMALL) == before, "the finished one is still there"
    found = specviz.calibrate(model, "unispec", TEXTS, **SMALL, force=True)
    assert len(seen) - 20 == 1 + 3 * 5 and found != before
    assert [p.suffix for p in (tmp_path / "kept").iterdir()] == [".json"]


def test_invariant_passes_cost_otherwise():
    """A calibration, like its saved rounds, is valid only for one kind of pass."""
    ordinary, invariant = (specviz.load("town", invariant=each) for each in (False, True))
    method = UniSpec()
    settings = [machine.calibration_setting(each, method) for each in (ordinary, invariant)]
    assert settings[0]["model"].pop("kernels") and settings[1]["model"].pop("kernels")
    assert settings[1]["model"].pop("invariant") is True
    assert settings[0] == settings[1]


@pytest.mark.parametrize("looks", [0, 14])
def test_memory_that_runs_out_ends_the_range(model, monkeypatch, looks):
    """Memory runs out at once, or after each size's first look, whatever order sizes are then tried in."""
    real, seen = room.Turns.text, []

    def full(self, method, ids):
        seen.append(method.draft_size)
        if method.draft_size >= 5 and len(seen) > looks:
            raise RuntimeError("CUDA out of memory. Tried to allocate")
        return real(self, method, ids)

    monkeypatch.setattr(room.Turns, "text", full)
    wide = SMALL | {"warm_up": 0, "sizes": [1, 2, 3, 4, 5, 6, 7]}
    found = specviz.calibrate(model, "unispec", TEXTS, **wide)
    assert [p.g for p in found.points] == [1, 2, 3, 4]
    assert found.ended == "out of memory at g = 5"
    assert found.g <= 4
    monkeypatch.setattr(room.Turns, "text", lambda *_: (_ for _ in ()).throw(MemoryError()))
    with pytest.raises(
        ModelError, match="out of memory at g = 1, and curves need 4 sizes below it: free some"
    ):
        specviz.calibrate(model, "unispec", TEXTS, **wide, force=True)


def test_memory_that_leaves_too_few_sizes_ends_it_at_once_and_not_for_ever(model, monkeypatch):
    seen, real = [], room.Turns.text

    def full(self, method, ids):
        seen.append(method.draft_size)
        if method.draft_size >= 3:
            raise RuntimeError("CUDA out of memory. Tried to allocate")
        return real(self, method, ids)

    few = SMALL | {"warm_up": 0, "sizes": [1, 2, 3, 4]}
    with monkeypatch.context() as patch:
        patch.setattr(room.Turns, "text", full)
        with pytest.raises(ModelError, match="out of memory at g = 3, and curves need 4 sizes"):
            specviz.calibrate(model, "unispec", TEXTS, **few)
    assert seen == [1, 1, 2, 2, 3], "nothing is timed after the first look"
    assert [point.g for point in specviz.calibrate(model, "unispec", TEXTS, **few).points] == [1, 2, 3, 4]


def test_the_range_ends_where_it_gets_slow(model, monkeypatch):
    cost = lambda self, method, ids: (10, 5, 0.01 * max(1, method.draft_size / 16))
    monkeypatch.setattr(room.Turns, "text", cost)
    made = specviz.calibrate(model, "unispec", TEXTS, warm_up=0, rounds=1)
    assert made.points[-1].g == 32
    assert "in a first look g = 32 reached under 60% of the best size's tokens/s" in made.ended
    assert not made.at_end
    flat = specviz.calibrate(model, "unispec", TEXTS, sizes=[1, 2, 3, 64], warm_up=0, rounds=1)
    assert [p.g for p in flat.points] == [1, 2, 3, 64]  # sizes given explicitly are always measured


@pytest.mark.parametrize(("method", "at_end"), [("prompt_lookup", False), ("unispec", True)])
def test_a_larger_size_is_advised_only_if_the_method_takes_one(model, monkeypatch, method, at_end):
    kind = find(method)
    longer_is_better = lambda self, built, ids: (5 * getattr(built, kind.size), 5, 0.01)
    monkeypatch.setattr(room.Turns, "text", longer_is_better)
    made = specviz.calibrate(model, method, TEXTS, sizes=[8, 16, 32, 64], warm_up=0, rounds=1)
    assert made.g == 64 and made.at_end == at_end
    assert made.ended == (None if at_end else "draft_length is at most 64")


@pytest.mark.parametrize("name", [n for n in names() if find(n).size and find(n).drafts_with == "model"])
def test_every_method_with_a_size(model, name):
    draft = llama(seed=5, vocabulary=24, eos=(), like=model, noise=0.1, name="small")
    found = specviz.calibrate(model, name, TEXTS, draft=draft, **SMALL | {"rounds": 1})
    assert found.complete
    rest = {found.size: "calibrated", "draft": draft, "max_new_tokens": 4}
    trace = specviz.generate(model, TEXTS[0], name, **rest)
    assert trace.run["parameters"][found.size] == found.g


def test_bad_input(model, monkeypatch):
    for values, words in (
        ({"method": "autoregressive"}, "no draft size to calibrate; .*unispec"),
        ({"draft_size": 3}, "drop it"), ({"sizes": [1, 2]}, "at least 4 sizes"),
        ({"sizes": [0, 1, 2, 3]}, "draft_size must lie"), ({"rounds": 0}, "rounds must be"),
        ({"max_new_tokens": 2**63}, "max_new_tokens must be a whole number of at least 2 and below"),
        ({"number": 0}, "number must be"), ({"suite": 5}, "for a count, use number = 5"),
        ({"method": "speculative"}, "needs a draft model"),
    ):  # fmt: skip
        with pytest.raises(ParameterError, match=words):
            specviz.calibrate(model, **{"method": "unispec", "suite": TEXTS} | values)
    with pytest.raises(PromptError, match="leaves no room"):
        specviz.calibrate(model, "unispec", [[1] * 95], warm_up=0)
    with pytest.raises(ParameterError, match="draft_size must be a whole number"):
        specviz.generate(model, TEXTS[0], "unispec", draft_size="best")
    with pytest.raises(ParameterError, match="has no draft_size yet"):
        list(specviz.loop.decode(model, [1, 2], UniSpec(draft_size="calibrated")))
    monkeypatch.setitem(__import__("sys").modules, "sklearn.linear_model", None)
    with pytest.raises(SpecvizError, match=r"pip install -e \"\.\[calibrate\]\""):
        specviz.calibrate(model, "unispec", TEXTS)


def test_numbers_of_numpy_are_saved_as_pythons(model):
    given = {"sizes": np.array(SMALL["sizes"]), "max_new_tokens": np.int64(12), "rounds": np.int64(1)}
    made = specviz.calibrate(model, "unispec", TEXTS, **SMALL | given)
    assert made.complete and specviz.calibrate(model, "unispec", TEXTS, **SMALL | {"rounds": 1}) == made


def test_what_a_model_cannot_serve_is_refused_before_any_work(model, monkeypatch):
    monkeypatch.setattr(room.Turns, "text", lambda *_: pytest.fail("it decoded"))
    with pytest.raises(ParameterError, match="town-diffusion is a masked-diffusion model"):
        specviz.calibrate("town-diffusion", "unispec")
    with pytest.raises(ModelError, match="town-eagle"):
        specviz.calibrate("town-eagle", "unispec")
    monkeypatch.setattr(model, "trees", False, raising=False)
    with pytest.raises(ParameterError, match="unispec drafts trees, but tiny reads only chains"):
        specviz.calibrate(model, "unispec", TEXTS)


def test_a_folder_that_cannot_be_written_is_refused_before_any_work(model, tmp_path, monkeypatch):
    monkeypatch.setattr(room.Turns, "text", lambda *_: pytest.fail("it decoded"))
    (tmp_path / "file").touch()
    with pytest.raises(TraceError, match="cannot write"):
        specviz.calibrate(model, "unispec", TEXTS, **SMALL, folder=tmp_path / "file")


def test_resizing_keeps_what_is_remembered(model):
    method = UniSpec(depth=3)
    specviz.generate(model, TEXTS[0], method, max_new_tokens=8, record=None)
    known = method.store.entries
    method.resize(7)
    assert (method.draft_size, method.extra_cache_slots, method.depth) == (7, 7, 3)
    assert method.store.entries == known
    other = UniSpec(depth=3)
    other.like(method)
    specviz.generate(model, TEXTS[1], other, max_new_tokens=8, record=None)
    assert method.store.entries == known < other.store.entries


def test_the_bench_tells_the_best_from_the_lucky(model, monkeypatch):
    """Sizes that differ by noise alone count as equally good; a slow size counts as worse."""
    rng = np.random.default_rng(0)

    def text(self, method, ids):
        slow = 1.5 if method.draft_size > 8 else 1.0
        return 20, 10, 0.01 * slow * float(np.exp(0.05 * rng.normal()))

    monkeypatch.setattr(room.Turns, "text", text)
    entries = [{"prompt": [1 + i % 20, 2]} for i in range(40)]
    report = calibrate_bench.bench(model, [], entries, number=10, rounds=10, max_new_tokens=8)
    assert [row["prompts"] for row in report.rows] == ["1", "2", "5", "10", "20", "5 others", "5 others"]
    assert report.bars[0].held
    assert all(row["grid_share"] < 1.05 for row in report.rows)
    report.show(Console(width=100, file=open("/dev/null", "w")))  # noqa: SIM115
    assert "best g" in report.notes[0]


def test_the_bench_names_the_drafter_that_was_used(model, monkeypatch):
    made = specviz.calibrate(model, "unispec", TEXTS, **SMALL)
    monkeypatch.setattr(calibrate_bench, "calibrate", lambda *_, **options: made)
    drafts = [SimpleNamespace(name=kind, kind=kind, parameters=1) for kind in ("causal", "eagle")]
    entries = [{"prompt": [1 + i % 20, 2]} for i in range(40)]
    report = calibrate_bench.bench(model, drafts, entries, number=10, method="eagle")
    assert [each["name"] for each in report.setting["drafts"]] == ["eagle"]


def test_the_time_of_a_calibration_includes_its_memory_and_its_first_look(model, monkeypatch):
    real, seen = room.Turns.text, []
    monkeypatch.setattr(room.Turns, "text", lambda *given: (seen.append(given), real(*given))[1])
    clock = lambda: float(len(seen))  # a second for each text
    monkeypatch.setattr(room, "time", SimpleNamespace(perf_counter=clock, process_time=clock))
    made = specviz.calibrate(model, "unispec", TEXTS, **SMALL)
    assert made.spent == made.worked == len(seen) == 1 + 5 * 2 + 2 * 5 * 2


@pytest.mark.parametrize(("texts", "message"), [(20, "measurements are kept: run"), (5, "")])
def test_an_interruption_says_what_is_kept(model, tmp_path, monkeypatch, texts, message):
    """In the first look nothing is saved yet."""
    interrupted(monkeypatch, texts)
    with pytest.raises(KeyboardInterrupt) as stopped:
        specviz.calibrate(model, "unispec", TEXTS, **SMALL)
    assert str(stopped.value).startswith(message) and bool(str(stopped.value)) == bool(message)
    assert any((tmp_path / "kept").iterdir()) == bool(message)
    with pytest.raises(KeyboardInterrupt) as stopped, timing.temporary_folder() as folder:
        raise KeyboardInterrupt(message)
    assert not str(stopped.value) and not Path(folder).exists()


def test_the_command(folders, tmp_path, capsys, monkeypatch):
    rest = ["--model", str(folders.target), "--threads", "1"]
    (tmp_path / "p.txt").write_text("One two\nred green\n")
    order = ["calibrate", *rest, "--prompts", str(tmp_path / "p.txt"), "--warm-up", "2", "--sizes", "1,2,3,4",
             "--rounds", "1", "-n", "8"]  # fmt: skip
    assert cli.run([*order, "--png", str(tmp_path / "x.png")]) == 0
    out = capsys.readouterr().out
    assert "monotone  g* = " in out
    assert "(taken)" in out
    (line,) = [line for line in out.splitlines() if line.startswith("to use it: specviz ")]
    assert (tmp_path / "x.png").read_bytes()[:4] == b"\x89PNG"
    if importlib.util.find_spec("plotly"):
        assert cli.run([*order, "--pages", str(tmp_path / "pages")]) == 0
        assert f"plot: {tmp_path / 'pages' / 'index.html'}" in capsys.readouterr().out
        names = ["index.html", *(f"size-{i}.html" for i in range(4))]
        assert sorted(p.name for p in (tmp_path / "pages").iterdir()) == names
        assert cli.run([*order, "--pages", str(tmp_path / "pages")]) == 2, "nothing is replaced unasked"
        (tmp_path / "pages" / "index.html").unlink()
        assert cli.run([*order, "--pages", str(tmp_path / "pages")]) == 2
        assert "exists" in capsys.readouterr().err
        capsys.readouterr()
    assert cli.run(order) == 0
    assert "--force measures again" in capsys.readouterr().out
    with monkeypatch.context() as patch:
        interrupted(patch, 16)  # two fill the memory, eight are looks, and four are the first text's
        assert cli.run([*order, "--force"]) == 130
    assert capsys.readouterr().err == (
        "specviz: interrupted: measurements are kept: run the same command again to continue\n"
    )
    told = shlex.split(line.removesuffix("...").partition("specviz ")[2])
    assert cli.run([*told, "--prompt", "One", "-n", "4"]) == 0, "what it says to run, runs"
    assert " by calibration\n" in capsys.readouterr().out
    said = ["generate", "unispec", *rest, "--prompt", "One", "-n", "4", "--set"]
    assert cli.run([*said, "draft_size=calibrated", "--set", "depth=2"]) == 2
    assert f"run: specviz calibrate unispec --model {folders.target} " in capsys.readouterr().err
    assert cli.run(["calibrate", "--png", "x.jpg"]) == 2
    assert "--png writes a PNG: name the file .png, not x.jpg" in capsys.readouterr().err
    assert cli.run(["calibrate", "--number", "9999"]) == 2
    assert "70 prompts, and 9999 + 20 are needed" in capsys.readouterr().err
    assert cli.run(["calibrate", "--sizes", "1,two"]) == 2
    assert cli.run(["calibrate", "--sizes", "1,4", "--model", "nowhere"]) == 2
    assert "at least 4 sizes are needed" in capsys.readouterr().err, "before the model is loaded"
    assert calibration.folder() == tmp_path / "kept"


@pytest.mark.parametrize("options", [{"kernels": "plain"}, {"kernels": "onednn", "invariant": True}])
def test_the_command_of_a_refusal_measures_with_the_same_kernels_and_invariance(options, tmp_path, capsys):
    target = specviz.load("town", **options)
    ask = lambda: specviz.generate(target, "One", "unispec", draft_size="calibrated", max_new_tokens=4)
    with pytest.raises(SpecvizError) as refused:
        ask()
    order = shlex.split(str(refused.value).partition("run: specviz ")[2])
    (tmp_path / "p.txt").write_text("One two\nred green\n")
    few = ["--sizes", "1,2,3,4", "--prompts", str(tmp_path / "p.txt"), "--warm-up", "0", "--rounds", "1"]
    assert cli.run([*order, *few, "-n", "4"]) == 0
    assert ask().run["calibration"]["value"]
