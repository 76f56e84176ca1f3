"""The recorded traces shipped with the package."""

from __future__ import annotations

import pytest
from identities import validate

import specviz
from specviz.errors import SpecvizError
from specviz.metrics import recheck
from specviz.paths import folder

NAMES = ("autoregressive", "prompt_lookup", "unispec")


@pytest.fixture(scope="module")
def runs():
    return {name: specviz.open(specviz.example(name)) for name in NAMES}


def test_they_are_whole_and_small(runs):
    files = sorted(folder("traces").glob("*.parquet"))
    assert [path.stem for path in files] == sorted(NAMES)
    assert sum(path.stat().st_size for path in files) < 1_500_000
    for name, trace in runs.items():
        validate(trace)
        assert trace.run["complete"] and trace.run["method"] == name
        assert recheck(trace)["agrees"].all()


def test_the_drafters_left_the_text_alone(runs):
    texts = runs["autoregressive"].texts
    assert [prompt["kind"] for prompt in runs["autoregressive"].run["prompts"]] == [
        "summary", "code", "arithmetic", "conversation"
    ]  # fmt: skip
    assert "def divide" in texts[1] and "54 shells" in texts[2]
    assert all(trace.texts == texts for trace in runs.values())


def test_they_say_whose_the_model_is_and_nothing_of_the_recorders_disk(runs):
    for trace in runs.values():
        assert trace.run["model"]["name"] == "smollm2 (4-bit, dequantised)"
        assert trace.run["model"]["content"] and trace.run["backend"]["kernels"]
        assert not [value for value in str(trace.run).split("'") if value.startswith("/")]


def test_another_name_is_refused():
    with pytest.raises(SpecvizError, match="available: autoregressive, prompt_lookup, unispec"):
        specviz.example("bild")
