"""The hooks that a method must write, those derived from them, and the optional ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from identities import validate
from tiny import llama

import specviz
from specviz.draft import Draft
from specviz.errors import ParameterError
from specviz.methods import Method, Parameter, Verdict, find, names
from specviz.methods.sampling import Sampling

SAMPLED = Sampling(1.0)


class Repeats(Method):
    """Draft the last token again."""

    name = "repeats"
    title = "Repeats"
    parameters = (Parameter("times", 2, 1, 8, "tokens", "How often."),)
    only_greedy = True
    times: int

    def guarantee(self, sampling, dtype):
        return "exact up to ties"

    def start(self, session):
        super().start(session)
        self.last = session.prompt[-1]

    def draft(self, left):
        return Draft.chain(np.full(min(self.times, left - 1), self.last))

    def verify(self, draft, scores):
        best, tokens = scores.argmax(-1).tolist(), draft.tokens.tolist()
        kept = next((i for i, token in enumerate(tokens) if token != best[i]), len(tokens))
        status = ["accepted"] * kept + ["rejected"] * (len(tokens) > kept)
        status += ["unjudged"] * (len(tokens) - len(status))
        self.last = best[kept]
        return Verdict(list(range(kept)), tokens, best[kept], "plain" if not tokens else "correction", status)


class Unread(Method):
    """Emit two tokens without a pass, in every second cycle."""

    def guarantee(self, sampling, dtype):
        return "lossy"

    def draft(self, left):
        return Draft.chain([9, 11], read=False) if self.session.cycle % 2 else Draft.empty()

    def verify(self, draft, scores):
        if scores is None:
            return Verdict([0, 1], [9, 11], None, "", ["unreviewed"] * 2)
        return super().verify(draft, scores)


@pytest.mark.parametrize("batch", [1, 2])
def test_the_target_goes_on_after_tokens_that_it_has_not_read(batch):
    model, prompts = llama(seed=0, eos=(), max_length=64, name="target"), [[3, 4, 5], [7], [8, 2]]
    trace = specviz.generate(model, prompts, Unread, max_new_tokens=9, batch=batch)
    validate(trace)
    for prompt, tokens in zip(prompts, trace.outputs.groupby("prompt")["token"].agg(list)):
        assert (tokens[0::3], tokens[1::3]) == ([9] * 3, [11] * 3)
        for at in (2, 5, 8):
            alone = specviz.generate(model, prompt + tokens[:at], "autoregressive", max_new_tokens=1)
            assert alone.outputs["token"].tolist() == tokens[at : at + 1]


def test_a_method_of_few_lines_decodes():
    torch.set_num_threads(1)
    model = llama(seed=0, eos=(1,), max_length=64, name="target")
    alone = specviz.generate(model, [3, 4, 5], "autoregressive", max_new_tokens=20)
    for batch in (1, 2):
        trace = specviz.generate(model, [[3, 4, 5]] * batch, Repeats(times=3), max_new_tokens=20, batch=batch)
        assert trace.texts == alone.texts * batch
    assert trace.run["exactness"] == "exact up to ties"
    with pytest.raises(ParameterError, match="repeats decodes greedily"):
        specviz.generate(model, [3, 4, 5], Repeats(), temperature=1.0)


@pytest.mark.parametrize("path", [[-1], [-1, 0], [0, 9]])
def test_a_path_of_other_nodes_than_the_drafts_is_one_line(path):
    class Wrong(Repeats):
        name = "wrong"

        def verify(self, draft, scores):
            return replace(super().verify(draft, scores), path=path)

    model = llama(seed=0, eos=(1,), max_length=64, name="target")
    with pytest.raises(
        ParameterError, match=r"^wrong.verify returned the path .* of a draft of 2 nodes: name"
    ):
        specviz.generate(model, [3, 4, 5], Wrong, max_new_tokens=8)


def test_greedy_only_is_declared_once():
    """A method without a rule for sampling guarantees nothing there, whatever its own guarantee is."""
    assert Repeats().guarantee(SAMPLED, "float32") == "exact up to ties"
    assert Repeats().exactness(SAMPLED, "float32") == "lossy"
    assert Repeats().exactness(Sampling(), "float32") == "exact up to ties"
    greedy = [name for name in names() if find(name).only_greedy]
    assert {"specdec", "cm_asd", "oracle", "blockwise", "stepwise"} <= set(greedy)
    for name in greedy:
        assert find(name)(**find(name).exact).exactness(SAMPLED, "float32") == "lossy"


def test_exactness_is_not_overridden():
    with pytest.raises(TypeError, match=r"Sure defines exactness.*rename it guarantee"):

        class Sure(Repeats):
            def exactness(self, sampling, dtype):
                return "exact"
