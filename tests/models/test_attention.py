"""Inputs that the attention function refuses, and positions beyond a context's slots."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from families import make, scores
from transformers import AttentionInterface

from specviz.draft import Draft
from specviz.errors import ModelError
from specviz.models.attention import NAME
from specviz.models.model import Model


@pytest.mark.parametrize(
    ("name", "meaning"),
    [("s_aux", "attention sinks"), ("sinks", "attention sinks")],
)
def test_what_it_does_not_compute_is_refused(name, meaning):
    states = torch.ones(1, 2, 1, 4)
    attention = AttentionInterface()[NAME]
    out, _ = attention(torch.nn.Linear(1, 1), states, states, states, None, **{name: None})
    torch.testing.assert_close(out, states.transpose(1, 2))
    with pytest.raises(ModelError, match=f"Linear uses {meaning}, which this backend does not support"):
        attention(torch.nn.Linear(1, 1), states, states, states, None, **{name: torch.zeros(2)})


@pytest.mark.parametrize("rows", [1, 2])
def test_a_tree_whose_positions_lie_beyond_the_slots(rows):
    net = make("llama", seed=3)
    context = Model(net, name="tiny").open([[1, 2, 3]] * rows, 4)
    draft = Draft(np.array([5, 6]), np.array([-1, -1]), positions=np.array([9, 30]))
    assert context.slots < 2 + 30
    for logits in context.forward([draft] * rows).logits:
        for i, (token, offset) in enumerate([(5, 9), (6, 30)]):
            expected = scores(net, [1, 2, 3, token], [0, 1, 2, 2 + offset])
            torch.testing.assert_close(logits[1 + i].float(), expected, atol=1e-4, rtol=1e-4)
