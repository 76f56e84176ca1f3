"""Frozen suites equal the generator's output, and meet their readers' assumptions."""

from itertools import islice

import pytest

import specviz as sv
from specviz.errors import ParameterError
from specviz.measure import pairs
from specviz.replays import canvases, translations
from specviz.suites.frozen import frozen, take
from town import suites

SIZES = {"audit": 2000, "practice": 300, "pairs": 4 * 400, "streams": 4 * 200, "canvases": 8 * 200}


@pytest.mark.parametrize("name", suites.WRITERS)
def test_a_frozen_file_is_what_is_generated(name):
    entries = frozen(name)
    assert len(entries) == SIZES[name]
    assert list(islice(suites.WRITERS[name](), 8)) == list(entries[:8])
    assert len({(entry.get("group"), entry["id"]) for entry in entries}) == len(entries)


@pytest.mark.parametrize("of", [pairs.suite, translations.texts, canvases.suite])
def test_every_group_begins_as_it_is_generated(of):
    """The first entry of each group, drawn again: no group is a copy of another."""
    name, groups, write = {
        pairs.suite: ("pairs", pairs.TASKS, suites.paired),
        translations.texts: ("streams", translations.TARGETS, suites.streamed),
        canvases.suite: ("canvases", ("mix", *sv.suite("town").kinds), suites.written),
    }[of]
    size = SIZES[name] // len(groups)
    assert list(write(1)) == list(frozen(name)[::size])


def test_walkthroughs_decode_what_is_generated():
    made = [entry | {"prompt": entry.pop("messages")} for entry in suites.walkthroughs()]
    assert [{name: entry[name] for name in made[0]} for entry in sv.suite("walkthroughs")] == made


def test_more_than_there_is():
    with pytest.raises(ParameterError, match="401 prompts of de-en were requested, but 400 are bundled"):
        pairs.suite("de-en", 401)
    with pytest.raises(ParameterError, match="4 examples were requested, but a prompt has only 3"):
        canvases.suite(1, shots=4)
    assert take("abc", 2, "letters") == ["a", "b"]
