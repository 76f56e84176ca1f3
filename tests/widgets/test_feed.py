"""A running decode's updates to the page: text, its origin, dropped tokens; few messages, little delay."""

from __future__ import annotations

import json
import time

import pytest
from pretended import Cycle, Run, judged

from specviz.view.picture import KINDS
from specviz.widgets.feed import PAUSE, Feed, Writing

NAMES = list(KINDS)


def entries(cycles, method="speculative"):
    writing = Writing(Run(method, {}))
    return [writing.cycle(cycle) for cycle in cycles]


def test_tokens_say_how_they_came_about():
    (entry,) = entries(
        [judged(1, 0, [2, 3, 0], ["draft", "draft", "bonus"], [2, 3], ["accepted", "accepted"])]
    )
    assert [(text, NAMES[kind]) for text, kind in entry["tokens"]] == [
        (" two", "draft"), (" three", "draft"), ("■", "bonus"),
    ]  # fmt: skip
    assert entry["dropped"] == ""
    (entry,) = entries([Cycle(1, 0, [2], ["correction"])], "bild")
    assert NAMES[entry["tokens"][0][1]] == "rollback", "BiLD's large model takes back"


def test_a_character_is_shown_by_the_token_that_completes_it():
    first, second, again = entries(
        [Cycle(1, 0, [2, 4], ["plain"] * 2), Cycle(2, 2, [5, 4], ["plain"] * 2), Cycle(3, 3, [3], ["plain"])]
    )
    assert [text for text, _ in first["tokens"]] == [" two", ""]
    assert [text for text, _ in second["tokens"]] == ["€", ""]
    assert [text for text, _ in again["tokens"]] == [" three"], "half a character that was taken back is gone"
    *_, last = entries(
        [Cycle(1, 0, [2, 4], ["plain"] * 2), Cycle(2, 2, [3], ["plain"]), Cycle(3, 2, [5], ["plain"])]
    )
    assert [text for text, _ in last["tokens"]] == ["€"], "the kept half is completed"
    (cells,) = entries([Cycle(1, 0, [4, 2], ["plain"] * 2, cells=[3, 1])])
    assert cells["cells"] == [3, 1] and cells["tokens"][1][0] == " two"


def test_dropped_drafts_are_named_of_a_chain_all_of_a_tree_the_tried():
    chain = judged(1, 0, [3], ["correction"], [2, 3, 2], ["rejected", "unjudged", "unjudged"])
    tree = judged(
        2, 1, [2, 3], ["draft", "correction"], [2, 3, 2, 3, 6], ["accepted", *["rejected"] * 4],
        [-1, -1, 0, 0, 0],
    )  # fmt: skip
    one, other = entries([chain, tree])
    assert one["dropped"] == " two three two"
    assert other["dropped"] == " two │ three │… 2 more", "where the target left it"


def test_messages_are_few_and_soon():
    sent = []
    feed = Feed(lambda cycles: sent.append((time.monotonic(), cycles)), [Run("speculative", {})])
    begun = time.monotonic()
    born = {}
    for number in range(1, 41):
        born[number] = time.monotonic()
        feed.add(Cycle(number, number - 1, [2], ["plain"]), 0.01 * number)
        time.sleep(0.01)
    feed.close()
    arrived = {cycle["cycle"]: at for at, cycles in sent for cycle in cycles}
    assert list(arrived) == list(born), "each once, in order"
    assert len(sent) <= 2 + (sent[-1][0] - begun) / PAUSE
    assert feed.sent == [cycle for _, cycles in sent for cycle in cycles]
    assert feed.sent[4]["seconds"] == 0.05 and feed.sent[4]["lane"] == 0
    sizes = [len(json.dumps(cycle)) for cycle in feed.sent]
    assert max(sizes) < 140, "bytes of a cycle of one token"


def test_what_goes_wrong_is_raised_where_the_feed_is_closed():
    feed = Feed(lambda cycles: None, [Run("speculative", {})])
    feed.add(Cycle(1, 0, [99], ["plain"]), 0.0)
    with pytest.raises(KeyError):
        feed.close()
