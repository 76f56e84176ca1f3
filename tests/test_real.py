"""Third-party models: a pair of character-level story models, if the folder contains them."""

from __future__ import annotations

from pathlib import Path

import pytest

from specviz import audit, load
from specviz.methods import find

REAL = Path(__file__).parents[2] / "shared" / "real"
pytestmark = pytest.mark.skipif(
    not (REAL / "babyllama-a").is_dir(), reason="the pair of real models is not there (../shared/real)"
)

STARTS = [
    "Once upon a time, there was a", "Tim had a big red", "The cat sat on", "One day, Anna went to",
    "A bird flew over the", "Mom said, \"Please", "It was raining and", "Ben and Mia liked to play",
    "The little dog was very", "In the garden there was", "\"Can I have", "Lily was sad because",
    "The sun was hot, so", "Dad gave Sam a", "There was an old man who", "Jack found a shiny",
    "The frog jumped into", "At night, the moon", "Sue wanted to bake", "The bear was hungry and",
    "They ran to the", "\"Look!\" said", "A small boat", "The teacher told the",
    "Max did not want to", "She opened the box and", "The two friends", "He was afraid of",
    "Every morning, Rose", "The end of the",
]  # fmt: skip


@pytest.fixture(scope="module")
def pair():
    return load(REAL / "babyllama-a"), load(REAL / "babyllama-b")


def test_every_exact_method_holds(pair):
    lengths = [lambda n=n: find("speculative")(draft_length=n) for n in (1, 4, 8)]
    methods = ["autoregressive", *lengths]
    result = audit.run(*pair, STARTS, methods, max_new_tokens=64, sampled=4, laws=False, threads=1)
    assert result.holds, result.summary + "\n" + "\n".join(str(d) for _, d in result.differences)
    greedy = [row for row in result.rows if row.sampling == "greedy"]
    assert [row.method for row in greedy] == [
        "autoregressive", "speculative (draft_length=1)", "speculative", "speculative (draft_length=8)",
    ]  # fmt: skip
    assert all(row.prompts == len(STARTS) for row in greedy)
    assert all(row.tokens > 40 * len(STARTS) for row in greedy)
    assert result.bound.value < 1e-3  # float32 logits reach about 20: any bug would exceed this
    sampled = [row for row in result.rows if row.sampling != "greedy"]
    assert len(sampled) == 4
    assert all(row.prompts == row.equal == 4 for row in sampled)


def test_a_full_context_and_the_end_of_a_story(pair):
    """Decode to the context's end (256) unless the story ends earlier."""
    methods = ["autoregressive", "speculative:draft_length=8", "bild:rollback=0,cap=4,review_end=true"]
    result = audit.run(*pair, STARTS[:1], methods, max_new_tokens=400, sampled=0, laws=False, threads=1)
    assert result.holds, [str(d) for _, d in result.differences]


def test_the_law_of_the_first_tokens(pair):
    result = audit.law.chi_square(*pair, STARTS[0], 300, sampling=audit.law.Sampling(1.0, top_p=0.95))
    assert result.holds, str(result)
    assert result.cells > 5
