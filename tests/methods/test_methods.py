"""Finding methods by entry point, and checking parameters before any work starts."""

from __future__ import annotations

import re
import shutil
import sys
import types
from functools import partial
from importlib import metadata
from pathlib import Path

import pytest
from tiny import TableModel

import specviz
from specviz import cli, methods
from specviz.draft import Draft
from specviz.errors import ParameterError, SpecvizError
from specviz.loop.choices import Choices
from specviz.methods import Method, Parameter
from specviz.methods.kinds import SampledTreeMethod
from specviz.models import bundled


@pytest.fixture
def installed(monkeypatch):
    """Pretend that another package declares these entry points."""

    def install(**points):
        real = list(metadata.entry_points(group=methods.GROUP))
        more = [metadata.EntryPoint(name, value, methods.GROUP) for name, value in points.items()]
        monkeypatch.setattr(methods.metadata, "entry_points", lambda group: more + real)
        methods._points.cache_clear()

    yield install
    monkeypatch.undo()
    methods._points.cache_clear()


def test_the_three_are_there():
    assert {"autoregressive", "bild", "speculative"} <= set(methods.names())
    for name in methods.names():
        assert methods.find(name).name == name


def test_an_unknown_name_is_answered_with_near_ones():
    with pytest.raises(ParameterError, match="did you mean speculative"):
        methods.find("speculativ")
    with pytest.raises(ParameterError, match="there is autoregressive, bild"):
        methods.find("xyz")


def test_another_package_adds_a_method(installed):
    class Mine(Method):
        name = "mine"

    module = types.ModuleType("a_package_of_theirs")
    module.Mine = Mine
    sys.modules[module.__name__] = module
    try:
        installed(mine="a_package_of_theirs:Mine", speculative="a_package_of_theirs:Mine")
        assert methods.find("mine") is Mine
        assert methods.find("speculative").__module__ == "specviz.methods.speculative"  # ours stays ours
    finally:
        del sys.modules[module.__name__]


def test_a_broken_package_does_not_break_the_others(installed):
    installed(broken="no_such_package_here:Mine", foreign="pathlib:Path", other="specviz.methods.bild:BiLD")
    assert "broken" in methods.names()
    assert methods.find("autoregressive")
    with pytest.raises(SpecvizError, match=r"'broken' \(no_such_package_here:Mine\) cannot be imported"):
        methods.find("broken")
    with pytest.raises(SpecvizError, match="is not a specviz"):
        methods.find("foreign")
    with pytest.raises(SpecvizError, match="calls itself 'bild'"):
        methods.find("other")


def test_a_broken_package_is_left_out_of_the_lists(installed, capsys):
    everything = methods.names("prompt")
    installed(broken="no_such_package_here:Mine")
    assert methods.names("prompt") == everything
    out, err = capsys.readouterr()
    assert not out and err.startswith("specviz: method 'broken' (no_such") and err.count("\n") == 1
    choices = Choices("town", "speculative", None, None, {}, {})
    choices._target = TableModel(vocabulary=3, seed=1)
    assert not choices._serves("broken")
    assert cli.run(["models"]) == 0
    out, _ = capsys.readouterr()
    assert re.search(r"broken:\s+method 'broken' .* cannot be imported", out) and "unispec: UniSpec" in out


def test_the_first_choice_of_a_path_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(bundled()["town-draft"], "smollm2")
    assert Choices(Path("smollm2"), "speculative", None, None, {}, {}).first == "./smollm2"


def test_an_unknown_parameter_is_answered_with_near_ones():
    with pytest.raises(ParameterError, match="did you mean fallback"):
        methods.find("bild")(falback=0.5)
    with pytest.raises(ParameterError, match="it has none"):
        methods.find("autoregressive")(gamma=3)


def test_the_inherited_verifier_takes_probabilities_where_nothing_is_drawn():
    class Sure(Method):
        def draft(self, left):
            return Draft.chain([1], q=[[0, 1, 0]]) if left > 1 else Draft.empty()

    target = TableModel(vocabulary=3, seed=1)
    plain = specviz.generate(target, [[2]], "autoregressive", max_new_tokens=6)
    assert specviz.generate(target, [[2]], Sure, max_new_tokens=6).texts == plain.texts
    with pytest.raises(ParameterError, match="which the inherited verifier does not use"):
        specviz.generate(target, [[2]], Sure, max_new_tokens=6, temperature=0.8)


@pytest.mark.parametrize(
    ("parameter", "good", "bad"),
    [
        (Parameter("x", 0.5, 0, 1), [0, 1, 0.25], [-0.01, 1.01, "a", None, True, float("nan")]),
        (Parameter("x", 2.0, 0), [0, 1e9, float("inf")], [-1e-9, float("nan")]),
        (Parameter("x", 4, 1, 64), [1, 64, 3.0], [0, 65, 2.5, True]),
        (Parameter("x", True), [True, False], [1, "yes"]),
        (Parameter("x", "a", choices=("a", "b")), ["b"], ["c", 1]),
    ],
)
def test_ranges(parameter, good, bad):
    for value in good:
        assert parameter.check(value) == value
        assert type(parameter.check(value)) is type(parameter.default)
    for value in bad:
        with pytest.raises(ParameterError, match=r"^x must "):
            parameter.check(value)


def test_every_parameter_says_what_it_is():
    for name in methods.names():
        for parameter in methods.find(name).parameters:
            assert parameter.check(parameter.default) == parameter.default
            assert parameter.meaning.endswith(".")
            assert parameter.unit or isinstance(parameter.default, bool | str)


def test_a_kind_of_method_says_which_hook_is_missing():
    class Drawn(SampledTreeMethod):
        name = "drawn-without-tokens"

    with pytest.raises(ParameterError, match=r"drawn-without-tokens is a SampledTreeMethod: write"):
        Drawn().drawn()


def test_what_is_no_model_by_itself_is_refused_loaded_or_by_name():
    head = specviz.load("town-eagle")
    assert specviz.load(head) is head
    for given in (head, "town-eagle"):
        with pytest.raises(SpecvizError, match="is not a model by itself but an EAGLE drafter"):
            specviz.generate(given, "Who", "autoregressive")


def test_another_instance_keeps_what_was_left_open():
    """A new instance leaves a calibrated size and a model's template open instead of copying their values."""
    sized = methods.find("unispec")(draft_size="calibrated")
    open_ = methods.find("retranslate")(beta=0.2)
    for _ in range(2):
        assert (sized.again().calibrated, sized.again().unsized) == (True, sized.unsized)
        assert sized.again().chosen == sized.chosen == frozenset()
        sized.resize(7)  # as a run does when it finds a calibration
    assert sized.again().draft_size == 7
    assert open_.again().chosen == {"beta"} and open_.again().values == open_.values


def test_the_settings_of_an_instance_are_those_that_were_set():
    sized, fixed = (methods.find("unispec")(depth=9, **more) for more in ({"draft_size": "calibrated"}, {}))
    for method in (sized, fixed):
        method.resize(7)
    assert methods.settings_of(sized, {}) == ("unispec", {"depth": 9, "draft_size": "calibrated"})
    assert methods.settings_of(fixed, {}) == ("unispec", {"depth": 9, "draft_size": 7})
    static = methods.find("eagle")(tree="static", draft_size=24)
    name, values = methods.settings_of(static, {})
    assert methods.make(name, **values).values == static.values and values["draft_size"] == 24
    lookup = methods.find("prompt_lookup")
    given = next(p for p in lookup.parameters if p.name == "ngram_max")
    assert methods.settings_of(lookup(ngram_max=given.default), {}) == ("prompt_lookup", {})
    size = next(p.default for p in sized.parameters if p.name == "draft_size")
    assert methods.settings_of(methods.find("unispec")(draft_size=size), {}) == ("unispec", {})
    assert methods.settings_of(methods.find("retranslate")(template="town"), {})[1] == {"template": "town"}
    used = methods.find("retranslate")()
    used.prepare(types.SimpleNamespace(kind="encoder-decoder", template="task"))
    assert used.template == "task" and methods.settings_of(used, {}) == ("retranslate", {})


def test_a_function_that_makes_a_method_is_one_method():
    make = partial(methods.find("bild"), fallback=0.3)
    assert methods.as_list(make) == [make] and methods.as_list((make, "bild")) == [make, "bild"]
    with pytest.raises(ParameterError, match="an instance or a function that makes one, got 5"):
        methods.as_list(5)
