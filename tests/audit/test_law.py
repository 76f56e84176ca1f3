"""The law of sampling: exact over a toy vocabulary, by chi-square over real models."""

from __future__ import annotations

from collections import Counter

import numpy as np
import planted
import pytest
import torch
from tiny import llama

from specviz.audit import law
from specviz.errors import ParameterError
from specviz.methods import find
from specviz.methods.bild import BiLD
from specviz.methods.lookahead import Lookahead
from specviz.methods.sampling import Sampling
from specviz.methods.speculative import Speculative
from specviz.models import Model


@pytest.mark.parametrize("make", [find("autoregressive"), Speculative, lambda: Speculative(draft_length=1)])
def test_the_law_is_the_targets(make):
    results = law.check(make)
    assert len(results) == len(law.SETTINGS)
    assert all(each.holds for each in results), results
    assert all(each.bound == 1e-9 for each in results)


def test_a_lossy_method_has_another_law():
    assert not any(each.holds for each in law.check(BiLD, law.SETTINGS[:1]))
    assert all(each.holds for each in law.check(lambda: BiLD(fallback=1), law.SETTINGS[:1]))


def test_which_settings_show_which_bug():
    with planted.untempered_q():
        plain, tempered = (law.check(Speculative, [each], length=1)[0] for each in law.SETTINGS[:2])
    assert plain.holds  # at temperature 1 the bug does nothing
    assert tempered.error > 0.01
    with planted.wrong_residual():
        assert law.check(Speculative, law.SETTINGS[:1], length=1)[0].error > 0.01


def test_a_memory_is_empty_and_filled():
    results = law.check(Lookahead, law.SETTINGS[:1])
    assert [each.method for each in results] == ["lookahead", "lookahead, warm"]
    assert all(each.holds for each in results)
    with planted.undivided_siblings():
        cold, warm = law.check(Lookahead, law.SETTINGS[:1])
    assert cold.holds  # a text this short gives an empty pool nothing to judge
    assert warm.error > 0.01


def test_edges_are_found_without_guesses():
    edges = [0.1234567, 0.6, 0.600001]
    cells = law._cut(lambda u: int(np.searchsorted(edges, u)), np.array([]))
    assert np.cumsum([width for _, width in cells])[:-1] == pytest.approx(edges, abs=1e-12)
    assert sum(width for _, width in cells) == pytest.approx(1, abs=1e-15)


@pytest.fixture(scope="module")
def pair():
    target = llama(seed=0, vocabulary=16, eos=(1,), name="target")
    return target, llama(seed=6, vocabulary=16, eos=(1,), name="drafter")  # poor, so it is often rejected


def test_chi_square(pair):
    sampling = Sampling(3.0, top_k=8)
    result = law.chi_square(*pair, [3, 4, 5], 300, sampling=sampling)
    assert result.holds, str(result)
    assert result.cells > 5
    assert result.freedom == result.cells - 1
    with planted.wrong_residual():
        broken = law.chi_square(*pair, [3, 4, 5], 300, sampling=sampling)
    assert not broken.holds, str(broken)


@pytest.mark.parametrize("method", ["speculative", "prompt_lookup", "lookahead", "token_recycling"])
def test_draws_that_share_the_prompt_are_those_that_do_not(pair, method, monkeypatch):
    sampling, prompt = Sampling(3.0, top_k=8), [3, 4, 5, 3, 4]
    draft = pair[1] if method == "speculative" else None
    shared = law.chi_square(pair[0], draft, prompt, 60, method, sampling=sampling)
    monkeypatch.setattr(law, "continued", lambda *given: (None, 0))  # each draw opens its own context
    assert law.chi_square(pair[0], draft, prompt, 60, method, sampling=sampling) == shared


def test_chi_square_numbers():
    """Checked against a printed table: 3.841 is the 5 % point with one degree of freedom."""
    n = 1000
    shift = np.sqrt(3.841459 * 0.25 / n)  # shift of the share of one of two equal cells
    counts = Counter({(0,): round(n * (0.5 + shift)), (1,): round(n * (0.5 - shift))})
    result = law._test(counts, {(0,): 0.5, (1,): 0.5}, n)
    assert result.freedom == 1
    assert result.p == pytest.approx(0.05, abs=0.004)


def test_rare_cells_are_pooled():
    counts = Counter({(0,): 500, (1,): 480, (2,): 12, (3,): 8})
    expected = {(0,): 0.5, (1,): 0.48, **{(i,): 0.002 for i in range(2, 12)}}
    result = law._test(counts, expected, 1000)
    assert result.cells == 3
    assert result.statistic == pytest.approx(0, abs=1e-9)
    # An impossible outcome has no cell: it is counted in the pool or the smallest cell, where it shows.
    assert not law._test(Counter({(0,): 500, (9,): 500}), {(0,): 0.5, (1,): 0.5}, 1000).holds
    few = Counter({(0,): 150, (1,): 148, (9,): 2})
    never = law._test(few, {(0,): 0.5, (1,): 0.5}, 300)
    assert never.p == 0 and "2 of 300 draws gave a text that the target never writes" in str(never)
    rounded = law._test(few, {(0,): 0.5, (1,): 0.5}, 300, rounds=True)
    assert rounded.holds and rounded.statistic == pytest.approx(0.08 / 1.5)
    assert law._test(few, {(0,): 0.5, (1,): 0.498}, 300).holds  # rare, but not impossible


@pytest.mark.parametrize("options", [{}, {"top_k": 8}, {"top_p": 0.9}])
def test_rounding_lets_tokens_in_only_at_an_edge(pair, options, monkeypatch):
    whole, given = llama(seed=0, vocabulary=16, eos=(1,)), []
    half = Model(whole.net.to(torch.bfloat16), whole.tokenizer, "half")
    monkeypatch.setattr(law, "_test", lambda *rest, rounds: given.append(rounds))
    for model in (half, pair[0]):
        law.chi_square(model, pair[1], [3, 4, 5], 5, sampling=Sampling(3.0, **options))
    assert given == [bool(options), False]


def test_too_few_draws(pair):
    with pytest.raises(ParameterError, match="draw more"):
        law.chi_square(*pair, [3, 4, 5], 5, sampling=Sampling(1.5))
