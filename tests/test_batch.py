"""Prompts decoded together: every row is what its prompt gives alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import llama

import specviz
from specviz import metrics
from specviz.trace.identities import validate

LENGTHS = (3, 40, 1, 17, 70, 5)


@pytest.fixture(scope="module")
def pair():
    torch.set_num_threads(1)
    target = llama(seed=0, eos=(1, 7), name="target")
    drafter = llama(seed=5, eos=(1, 7), like=target, noise=0.15, name="drafter")
    for model in (target, drafter):
        model.net.double()
    return target, drafter


@pytest.fixture(scope="module")
def prompts():
    rng = np.random.default_rng(0)
    return [rng.integers(8, 48, size=n).tolist() for n in LENGTHS]


def texts(trace):
    return [group["token"].tolist() for _, group in trace.outputs.groupby("prompt")]


@pytest.mark.parametrize("method", ["autoregressive", "speculative"])
def test_each_row_is_its_single_run(pair, prompts, method):
    target, drafter = pair
    options = {"draft": drafter, "max_new_tokens": 40}
    alone = specviz.generate(target, prompts[:3], method, **options)
    batch = specviz.generate(target, prompts[:3], method, batch=3, **options)
    assert texts(batch) == texts(alone)
    validate(batch)
    assert batch.cycles["row"].tolist() == batch.cycles["prompt"].tolist()
    assert metrics.steps(batch) == metrics.steps(alone)
    assert metrics.target_passes(batch) == batch.cycles["cycle"].max()  # one pass for all rows
