"""EAGLE: the trees it grows, texts equal to the target's, and the law of what it samples."""

from __future__ import annotations

import gc

import numpy as np
import pandas as pd
import pytest
import torch
from tiny import llama
from transformers import LlamaConfig

import specviz
from specviz import metrics
from specviz.audit import law
from specviz.errors import ModelError, ParameterError
from specviz.loop import reduce
from specviz.loop.batch import decode_batch
from specviz.loop.cycle import decode
from specviz.measure.demo import SMALLER
from specviz.methods import eagle, tree
from specviz.methods.eagle import Eagle
from specviz.methods.sampling import DRAFT, Sampling
from specviz.models.additions import EagleHead
from specviz.models.eagle import Eagle as Weights
from specviz.view.picture import picture

V = 12
PROMPTS = [[3, 4, 5], [7], [1, 2, 3, 4, 5, 6, 7, 8, 9]]


def test_its_size_names_what_the_demo_takes_on_a_cpu():
    words = "{draft_size} with depth={depth} and branches={branches}".format(**SMALLER["eagle"])
    assert words in Eagle.parameters[0].meaning


@pytest.fixture(scope="module")
def target():
    return llama(seed=0, vocabulary=V, eos=(1,), name="target")


def head(target, generation, seed=2, rows=None, layers=(0, 1, 2)):
    torch.manual_seed(seed)
    own = target.net.config
    config = LlamaConfig(
        vocab_size=V, hidden_size=own.hidden_size, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=24, max_position_embeddings=64, head_dim=6,
    )  # fmt: skip
    net = Weights(config, generation, rows, len(layers)).requires_grad_(False).eval()
    for name, value in net.named_parameters():
        value.copy_(torch.randn(value.shape) * 0.5 + float("norm" in name))
    if generation == 3:  # near the target, so that some drafts are accepted
        net.fc.weight[:, -own.hidden_size :] += torch.eye(own.hidden_size) * 3
        kept = torch.randperm(V)[:rows].sort().values if rows else torch.arange(V)
        if rows:
            net.d2t.copy_(kept - torch.arange(rows))
        net.lm_head.weight.copy_(target.net.lm_head.weight[kept] * 3)
    return EagleHead(net, {"target": "target", "eagle_aux_hidden_state_layer_ids": list(layers)}, "head")


def written(trace):
    return trace.outputs.groupby("prompt")["token"].agg(list).to_dict()


SETTINGS = [
    (1, {"tree": "static"}),
    (1, {"depth": 3, "branches": 3, "draft_size": 7}),
    (3, {"depth": 4, "branches": 2, "draft_size": 5}),
    (3, {"tree": "static", "draft_size": 12}),
    (3, {"depth": 1, "branches": 1, "draft_size": 1}),
    (3, {"depth": 6, "branches": 30, "draft_size": 512}),  # more than the tree can hold
]


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 3}])
def test_siblings_share_a_prediction_and_each_node_keeps_its_own(target, sampling, monkeypatch):
    options = {"draft": head(target, 3), "max_new_tokens": 14, "depth": 4, "branches": 3, "draft_size": 9}
    shared = specviz.generate(target, PROMPTS, "eagle", **options, **sampling).nodes.drop(columns="run")
    assert len(shared) > 1.5 * shared["entropy"].nunique()  # many nodes have a sibling
    monkeypatch.setattr(
        reduce, "ChosenRows", type("Nothing", (), {})
    )  # one row per node, as in other methods
    alone = specviz.generate(target, PROMPTS, "eagle", **options, **sampling).nodes.drop(columns="run")
    pd.testing.assert_frame_equal(shared, alone, rtol=1e-6)


@pytest.mark.parametrize("values", [{"depth": 3}, {"tree": "static"}, {"temperature": 1.0, "depth": 2}])
def test_nodes_are_tokens_of_a_small_head(target, values):
    drafter = head(target, 3, rows=7)
    kept = drafter.net.tokens.tolist()
    assert kept != list(range(7))
    options = {"branches": 5, "draft_size": 12, "max_new_tokens": 14, **values}
    trace = specviz.generate(target, PROMPTS, "eagle", draft=drafter, **options)
    nodes, tops = trace.nodes, trace.arrow(["top_k", "node_token", "node_top_token"])["node_top_token"]
    listed = np.concatenate([row for row in tops.to_pylist() if row]).reshape(-1, 5)
    assert len(nodes) == len(listed) > 30
    assert set(nodes["token"]) <= set(kept) and set(listed.ravel()) <= set(kept)
    first = nodes.groupby(["prompt", "cycle", "parent"])["node"].transform("min") == nodes["node"]
    assert "temperature" in values or (nodes["token"][first] == listed[first, 0]).all()


@pytest.mark.parametrize(("generation", "values"), SETTINGS)
def test_the_text_is_the_targets(target, generation, values):
    wanted = specviz.generate(target, PROMPTS, "autoregressive", max_new_tokens=14)
    found = specviz.generate(
        target, PROMPTS, "eagle", draft=head(target, generation), max_new_tokens=14, record="all", **values
    )
    assert written(found) == written(wanted)
    assert metrics.accepted(found) > 0
    assert found.nodes["score"].notna().all()


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 3}])
def test_decisions_are_rechecked_and_rows_are_single_runs(target, sampling):
    options = {"draft": head(target, 3), "depth": 3, "branches": 3, "draft_size": 6, "max_new_tokens": 10}
    alone = specviz.generate(target, PROMPTS, "eagle", **options, **sampling)
    again = metrics.recheck(alone)
    assert len(again) > 20
    assert again["agrees"].all()
    together = specviz.generate(target, PROMPTS, "eagle", batch=2, **options, **sampling)
    assert written(together) == written(alone)
    assert together.recheck()["agrees"].all()
    order = ["prompt", "cycle", "node"]
    for name in ("token", "parent", "status"):
        assert (
            together.nodes.sort_values(order)[name].tolist() == alone.nodes.sort_values(order)[name].tolist()
        )


def slow(reader, text, g, depth, k):
    """EAGLE-2 in plain Python, as the paper has it: all candidates, then the g best."""
    candidates: list[tuple[float, tuple[int, ...]]] = []
    front = [(0.0, ())]
    for _ in range(depth):
        new = []
        for score, path in front:
            p = reader.logits([*text, *path]).log_softmax(-1)
            best = p.argsort(descending=True, stable=True)[:k]
            new += [(score + float(p[token]), (*path, int(token))) for token in best]
        candidates += new
        front = sorted(new, key=lambda each: -each[0])[:k]
    return {path for _, path in sorted(candidates, key=lambda each: -each[0])[:g]}


@pytest.mark.parametrize(("g", "depth", "k"), [(4, 3, 2), (9, 3, 3), (30, 4, 3), (2, 1, 5), (3, 4, 5)])
def test_a_dynamic_tree_is_the_papers(g, depth, k):
    reader = law.Reader(6, 3)
    method = Eagle(draft_size=g, depth=depth, branches=k)
    cycles = decode(law.Table(6, 4), [0, 1, 2], method, drafter=reader, max_new_tokens=depth + 1)
    next(cycles)
    draft = next(cycles).draft
    found = {tuple(int(draft.tokens[i]) for i in draft.path(node)) for node in range(len(draft))}
    assert found == slow(reader, [0, 1, 2], g, depth, k)


def test_a_static_tree_has_the_ranks_of_its_template(tmp_path):
    file = tmp_path / "tree.json"
    file.write_text("[[0], [2], [2, 1], [2, 1, 0], [0, 0]]")
    reader, method = law.Reader(6, 3), Eagle(tree="static", template=str(file))
    cycles = decode(law.Table(6, 4), [0, 1, 2], method, drafter=reader, max_new_tokens=8)
    next(cycles)
    draft = next(cycles).draft

    def word(text, ranks):
        for rank in ranks:
            text = [*text, int(reader.logits(text).argsort(descending=True)[rank])]
        return tuple(text[3:])

    found = {tuple(int(draft.tokens[i]) for i in draft.path(node)) for node in range(len(draft))}
    assert found == {word([0, 1, 2], ranks) for ranks in ([0], [2], [2, 1], [2, 1, 0], [0, 0])}


def test_a_static_tree_is_its_templates_unless_asked(tmp_path):
    whole = Eagle(tree="static")
    assert len(whole.paths) == 25
    assert (whole.draft_size, whole.depth, whole.branches) == (25, 5, 4)
    for values in ({}, {"depth": 2}, {"branches": 2}, {"draft_size": 7}):
        method = Eagle(tree="static", **values)
        wanted = [
            path
            for path in whole.paths
            if len(path) <= values.get("depth", 9) and max(path) < values.get("branches", 9)
        ]
        assert method.paths == wanted[: values.get("draft_size", 99)]
        assert method.again().paths == method.paths and method.again().values == method.values
    file = tmp_path / "tree.json"
    file.write_text(str([[0] * n for n in range(1, 31)]))
    assert len(Eagle(tree="static", template=str(file)).again().paths) == 30
    file.write_text(str([[0] * n for n in range(1, 71)]))
    with pytest.raises(ParameterError, match=r"depth must lie in \[1, 64\], got 70"):
        Eagle(tree="static", template=str(file))
    file.write_text("[[64]]")
    with pytest.raises(ParameterError, match="ranks go from 0 to 63"):
        Eagle(tree="static", template=str(file))
    assert Eagle().values == {"draft_size": 24, "tree": "dynamic", "depth": 6, "branches": 10, "template": ""}


def contexts_of(monkeypatch, *models):
    """Collect every context that the models open from now on."""
    opened = []
    for model in models:

        def open(prompts, room, honest=model.open):
            opened.append(honest(prompts, room))
            return opened[-1]

        monkeypatch.setattr(model, "open", open)
    return opened


def test_a_row_that_ends_gives_its_storage_back(target, monkeypatch):
    drafter = head(target, 3).on(target)
    opened = contexts_of(monkeypatch, drafter)
    prompts = [[3, 4, 5], [7], [1, 2, 3], [5, 6], [9, 8, 7]]
    ended, most = set(), 0
    run = decode_batch(
        target, prompts, Eagle(depth=2, branches=2, draft_size=3), rows=2, drafter=drafter, max_new_tokens=7,
        eos=(),
    )  # fmt: skip
    for cycles in run:
        ended |= {cycle.prompt for cycle in cycles if cycle.end}
        held = [context for context in opened if context.store is not None or context.mask is not None]
        assert held == [context for number, context in enumerate(opened) if number not in ended]
        most = max(most, len(held))
    assert len(opened) == 5 and len(ended) == 5 and most == 2
    opened.clear()
    run = decode_batch(target, prompts, Eagle(), rows=2, drafter=drafter, max_new_tokens=7, eos=())
    next(run)
    assert [context.store is None for context in opened] == [False, False]
    run.close()  # closing early releases the storage too
    assert [context.store is None for context in opened] == [True, True]


@pytest.mark.parametrize("rows", [1, 2])
def test_the_prompts_states_go_when_they_are_read(target, monkeypatch, rows):
    drafter = head(target, 3).on(target)
    opened = contexts_of(monkeypatch, target)
    options = {"drafter": drafter, "max_new_tokens": 6}
    if rows == 1:
        run = decode(target, PROMPTS[2], Eagle(), **options)
    else:
        run = decode_batch(target, [PROMPTS[2], PROMPTS[0]], Eagle(), rows=2, **options)
    next(run)
    assert opened[0].states == {}
    shape = len(PROMPTS[2]) - 1, target.net.config.hidden_size
    assert not [each for each in gc.get_objects() if torch.is_tensor(each) and each.shape == shape]


@pytest.mark.parametrize("setting", law.SETTINGS, ids=str)
def test_the_law_is_the_targets(setting):
    assert all(each.holds for each in law.check(lambda: Eagle(**Eagle.law_check_params), [setting]))


# Two levels, and a choice of what is sent. If no more are sent than the first level holds, only the tokens up
# to the last one sent are read there. Sending more needs a vocabulary of two: three tokens take minutes.
@pytest.mark.parametrize(("draft_size", "vocabulary", "cells"), [(3, 2, 40), (2, 3, 500)])
def test_the_law_of_what_is_sent_is_the_targets(draft_size, vocabulary, cells):
    short = {"draft_size": draft_size, "depth": 2, "branches": 2}
    results = law.check(lambda: Eagle(**short), law.SETTINGS[:1], vocabulary)
    assert all(each.holds for each in results), results
    assert results[0].cells > cells


def test_a_tree_says_that_the_limit_kept_it_low():
    options = {"draft": "town-eagle", "draft_size": 40, "depth": 3, "branches": 2}
    trace = specviz.generate("town", "Tom", "eagle", max_new_tokens=12, **options)
    drafts = trace.cycles[trace.cycles["sent"] > 0]
    left = 12 - drafts["emitted"].cumsum().shift(fill_value=0) - 1  # the prefill's token comes first
    assert ((drafts["stop"] == "room") == (left <= 3)).all() and (left <= 3).any()


def test_what_is_chosen_by_its_own_token_has_another_law(monkeypatch):
    monkeypatch.setattr(law, "STEP", 1e-8)
    honest = eagle.without_replacement

    def sly(*given):
        tokens, _, p, q = honest(*given)
        return tokens, p, p, q

    monkeypatch.setattr(eagle, "without_replacement", sly)
    assert law.check(lambda: Eagle(**Eagle.law_check_params), law.SETTINGS[:1])[0].error > 0.01


def test_siblings_that_forget_each_other_have_another_law(monkeypatch):
    monkeypatch.setattr(law, "STEP", 1e-8)
    honest = eagle.Growth._from

    def forgetful(self, row, rank):
        return torch.cat([each.q for each in self.levels])[torch.from_numpy(row)]

    monkeypatch.setattr(eagle.Growth, "_from", forgetful)
    assert law.check(lambda: Eagle(**Eagle.law_check_params), law.SETTINGS[:1])[0].error > 0.001
    monkeypatch.setattr(eagle.Growth, "_from", honest)
    # With the same residual for every sibling, verification forgets the rejected ones.
    judged = tree.judge_drawn

    def unmoved(draft, scores, sampling, u, last):
        verdict = judged(draft, scores, sampling, u, last)
        first = specviz.Draft.chain(draft.tokens[:1], q=draft.q[:1])
        verdict.token = judged(first, scores[:2], sampling, u[:1], last).token
        return verdict

    monkeypatch.setattr(eagle, "judge_drawn", unmoved)
    assert law.check(lambda: Eagle(**Eagle.law_check_params), law.SETTINGS[:1])[0].error > 0.01


def test_draws_without_replacement():
    torch.manual_seed(0)
    logits, n = torch.randn(1, 5, dtype=torch.float64), 20_000
    u = torch.rand(n, 3, dtype=torch.float64)
    tokens, left, p, q = eagle.without_replacement(logits.expand(n, -1), Sampling(1.0), u)
    assert all(len(set(row)) == 3 for row in tokens[:500].tolist())
    q = q[0]
    assert torch.allclose(left[:, 1], 1 - q[tokens[:, 0]])
    assert torch.allclose(p[:, 2], q[tokens[:, 2]])
    for first in (q > 0.1).nonzero()[:, 0].tolist():  # the law of the second draw, given the first
        rest = q.index_fill(0, torch.tensor(first), 0)
        second = tokens[tokens[:, 0] == first, 1].bincount(minlength=5) / (tokens[:, 0] == first).sum()
        assert (second - rest / rest.sum()).abs().max() < 0.03
    # With only two tokens to draw from, a third draw finds nothing.
    _, left, _, _ = eagle.without_replacement(logits, Sampling(1.0, top_k=2), u[:1])
    assert (left[0] > 0).tolist() == [True, True, False]


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.7, top_k=4), Sampling(1.5, top_p=0.4)])
@pytest.mark.parametrize("vocabulary", [1, 2, 3, 12, 1000, 5001])
def test_draws_by_blocks_are_those_from_the_whole_vocabulary(vocabulary, sampling, monkeypatch):
    rng, k = np.random.default_rng(vocabulary), min(vocabulary, 6)
    logits = torch.from_numpy(rng.normal(size=(9, vocabulary)) * 3).float()
    logits[:, 5::3] = -torch.inf
    u = rng.random((9, k))
    u[0], u[1] = 0, 1 - 2**-53  # tokens of probability 0 are not drawn at the ends
    q = sampling.probabilities(logits)
    summed, real = [], torch.Tensor.cumsum
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "cumsum", lambda x, dim: (summed.append(x.numel()), real(x, dim))[1])
        patch.setattr(Sampling, "probabilities", lambda self, rows: q)
        tokens, left, p, _ = eagle.without_replacement(logits, sampling, u)
    assert sum(summed) <= 9 * k * (2 * vocabulary**0.5 + 4)  # else sampled cycles took a tenth longer
    rest = q.double()
    for i in range(k):
        sums = rest.cumsum(-1)
        wanted = torch.searchsorted(sums, torch.from_numpy(u[:, i : i + 1]) * sums[:, -1:], right=True)
        there = sums[:, -1] > 0  # otherwise nothing is left to draw
        assert torch.equal(left[:, i] > 0, there)
        assert torch.equal(tokens[there, i], wanted[there, 0])
        assert torch.allclose(left[:, i].double(), sums[:, -1].clamp(max=1))
        assert torch.equal(p[there, i], q[there].gather(1, wanted[there])[:, 0])
        rest.scatter_(1, wanted.clamp(max=vocabulary - 1), 0)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0}])
def test_a_head_of_few_tokens(target, sampling):
    """Tokens outside the drafter's vocabulary are never drafted, but the text still contains them."""
    some = head(target, 3, rows=5)
    known = set((some.net.d2t + torch.arange(5)).tolist())
    found = specviz.generate(
        target, [[3, 4, 5]] * 4, "eagle", draft=some, max_new_tokens=20, branches=8, record="all", **sampling
    )
    assert set(found.nodes["token"]) <= known
    assert not {token for text in written(found).values() for token in text} <= known
    assert np.isfinite(found.nodes["score"]).all()
    if not sampling:
        wanted = specviz.generate(target, [3, 4, 5], "autoregressive", max_new_tokens=20)
        assert written(found)[0] == written(wanted)[0]


def test_the_drafter_reads_what_the_target_thought(target):
    """The drafter reads the text's tokens with the target's states, as in a fresh pass over the text."""
    drafter = head(target, 3).on(target)
    seen = []
    method = Eagle(depth=3, branches=3, draft_size=6)
    honest = Eagle.draft

    def watched(self, left):
        seen.append((self.context.length, [t.clone() for t in self.new]))
        return honest(self, left)

    try:
        Eagle.draft = watched
        text = [3, 4, 5]
        for cycle in decode(target, [3, 4, 5], method, drafter=drafter, max_new_tokens=12):
            text += cycle.tokens
    finally:
        Eagle.draft = honest
    with torch.no_grad():
        out = target.net(torch.tensor([text]), output_hidden_states=True).hidden_states
    states = torch.cat([out[layer][0] for layer in drafter.layers], -1)
    for length, (tokens, read) in seen:
        assert tokens.tolist() == text[length + 1 : length + 1 + len(tokens)]
        assert torch.allclose(read, states[length : length + len(tokens)], atol=1e-4)


def test_uniforms_do_not_depend_on_what_was_drawn(target):
    asked = []

    def uniforms(cycle, use, n):
        asked.append((cycle, use, n))
        return np.full(n, 0.5)

    drafter = head(target, 3).on(target)
    method = Eagle(depth=3, branches=3, draft_size=6)
    for _ in decode(
        target, [3, 4], method, drafter=drafter, sampling=Sampling(1.0), max_new_tokens=6, uniforms=uniforms
    ):
        pass
    drawn = [n for cycle, use, n in asked if use == DRAFT]
    assert drawn[0] == 3 + 2 * 9
    assert len({(cycle, use) for cycle, use, _ in asked}) == len(asked)


def test_bad_input(target):
    with pytest.raises(ParameterError, match="template is for a static tree"):
        Eagle(template="x.json")
    with pytest.raises(ParameterError, match="tree must be one of dynamic, static"):
        Eagle(tree="round")
    with pytest.raises(
        ModelError, match="eagle drafts with an EAGLE drafter of the target; target is causal"
    ):
        specviz.generate(target, [3], "eagle", draft=target)
    with pytest.raises(ParameterError, match="eagle needs an EAGLE drafter of the target: pass draft="):
        specviz.generate(target, [3], "eagle")
    with pytest.raises(ModelError, match="is not a model by itself"):
        specviz.generate(head(target, 3), [3], "autoregressive")
    other = llama(seed=0, vocabulary=V + 1, name="target")
    with pytest.raises(ModelError, match="a vocabulary of 12, and target's has 13"):
        specviz.generate(other, [3], "eagle", draft=head(target, 3))


def test_a_what_if_says_why_it_cannot_be_told(target):
    """A smaller tree is in the record; the trees that would grow after its shorter paths are not."""
    trace = specviz.generate(target, [3, 4, 5], "eagle", draft=head(target, 1), max_new_tokens=12)
    asked = specviz.whatif(trace)
    why = "eagle cannot be replayed from a trace, because another tree starts cycles"
    with pytest.raises(ParameterError, match=why):
        asked.ask(draft_size=4)
    assert asked.can_answer("draft_size")[0] == "needs a rerun"
    assert asked.can_answer("draft_size")[1].startswith(why)
    assert f"Nothing: {why}" in repr(asked)
    # A question that needs only the text works on any run whose text is the target's own.
    told = asked.prompt_lookup(draft_length=4)
    alone = specviz.generate(target, [3, 4, 5], "prompt_lookup", draft_length=4, max_new_tokens=12)
    assert told.badge == "exact" and told.table["cycles"].item() == (alone.cycles["cycle"] > 0).sum()


def test_pictures_tell_siblings_apart(target):
    trace = specviz.generate(target, [3, 4, 5], "eagle", draft=head(target, 1), max_new_tokens=12)
    shown = picture(trace, 0)
    assert shown.belief == "score"
    assert [b.value for b in shown.beliefs] == pytest.approx(trace.nodes["score"].tolist())


def test_explore_opens(target):
    pytest.importorskip("ipywidgets", reason="needs the lab extra")
    opened = specviz.explore("eagle", target, [3, 4, 5], draft=head(target, 1), max_new_tokens=8)
    assert type(opened).__name__ == "Explorer"


def test_nothing_is_drafted_where_nothing_can_be():
    cycles = list(decode(law.Table(6, 4), [0], Eagle(), drafter=law.Reader(6, 3), max_new_tokens=1))
    assert cycles[-1].draft.stop == "room"


def test_nothing_is_drafted_behind_an_end_token(target):
    found = specviz.generate(
        target,
        PROMPTS * 3,
        "eagle",
        draft=head(target, 3),
        branches=6,
        draft_size=40,
        max_new_tokens=16,
        record="all",
    )
    nodes = found.nodes.set_index(["prompt", "cycle", "node"])
    ends = nodes[(nodes["token"] == 1) & (nodes["status"] != "unsent")]
    assert len(ends) > 3
    inner = {(p, c, parent) for (p, c, _), parent in nodes["parent"].items()}
    assert not inner & set(ends.index)


def test_what_is_recorded_of_siblings(target):
    """q is the drafter's own; p is what earlier siblings left; an emitted token's p is the target's."""
    found = specviz.generate(
        target, PROMPTS * 4, "eagle", draft=head(target, 3), depth=2, branches=4, draft_size=9,
        max_new_tokens=12, temperature=1.0, record="all",
    )  # fmt: skip
    nodes = found.nodes[found.nodes["status"].isin(["accepted", "rejected"])]
    assert nodes["q"].between(0, 1 + 1e-6).all()
    younger = nodes.duplicated(["prompt", "cycle", "parent"])
    assert (younger & (nodes["status"] == "accepted")).sum() > 3
    text = {
        prompt: [*found.run["prompts"][prompt]["tokens"], *tokens]
        for prompt, tokens in written(found).items()
    }
    for prompt, rows in found.outputs.groupby("prompt"):
        first = len(found.run["prompts"][prompt]["tokens"])
        with torch.no_grad():
            p = target.net(torch.tensor([text[prompt]])).logits[0].softmax(-1)
        for position, token, own in rows[["position", "token", "p"]].itertuples(index=False):
            assert own == pytest.approx(float(p[first + position - 1, token]), abs=1e-4)


def test_a_target_that_was_converted(target):
    other = llama(seed=0, vocabulary=V, eos=(1,), name="target")
    drafter = head(other, 3).on(other)
    wanted = specviz.generate(other, [3, 4, 5], "eagle", draft=drafter, max_new_tokens=6)
    for _ in range(2):
        other.net.to(torch.float64 if other.dtype == torch.float32 else torch.float32)
        assert written(
            specviz.generate(other, [3, 4, 5], "eagle", draft=drafter, max_new_tokens=6)
        ) == written(wanted)


def test_a_template_that_fits_no_vocabulary(target, tmp_path):
    file = tmp_path / "tree.json"
    file.write_text("[[20]]")
    found = specviz.generate(
        target, [3, 4, 5], "eagle", draft=head(target, 1), tree="static", template=str(file), max_new_tokens=5
    )
    assert metrics.tau(found) == 1


def test_the_law_where_texts_end():
    ended = law.Table(3, 8, eos=(2,)), law.Reader(3, 9, near=law.Table(3, 8))
    sampling = Sampling(1.0)
    found, _ = law.law_of(lambda: Eagle(**Eagle.law_check_params), *ended, [0, 1], 2, sampling)
    expected: dict[tuple, float] = {}
    for first, p in enumerate(sampling.probabilities(ended[0].logits([0, 1])).tolist()):
        if first == 2:
            expected[(2,)] = p
            continue
        for second, q in enumerate(sampling.probabilities(ended[0].logits([0, 1, first])).tolist()):
            expected[(first, second)] = p * q
    assert max(abs(found.get(text, 0) - expected.get(text, 0)) for text in {*found, *expected}) < 1e-9
