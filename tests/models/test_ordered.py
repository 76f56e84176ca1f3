"""An invariant model: each row of any pass has the bits of a pass over its own text alone."""

from __future__ import annotations

from functools import lru_cache

import families
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import specviz as sv
from specviz import audit
from specviz.draft import Draft
from specviz.errors import ModelError
from specviz.models import choices, downloads, kernels, ordered
from specviz.models.context import Context
from specviz.models.layers import Lines, RMSNorm
from specviz.models.model import Model

torch.set_num_threads(1)
VOCABULARY = 61
LONGEST = 700
TEXT = np.random.default_rng(0).integers(2, VOCABULARY, LONGEST + 64).tolist()
NUMBERS = st.integers(0, 2**32 - 1)


def net(heads: int = 3, groups: int = 1, dtype: torch.dtype = torch.float32, width: int = 64):
    """A random Llama with heads as wide as SmolLM2's, 64."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width * heads, intermediate_size=320, num_hidden_layers=2,
        num_attention_heads=heads, num_key_value_heads=groups, max_position_embeddings=1024,
        initializer_range=0.2, bos_token_id=0, eos_token_id=1, pad_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval().to(dtype)


@lru_cache
def model(layout: str = kernels.PLAIN, dtype: torch.dtype = torch.float32, groups: int = 1) -> Model:
    random = net(groups=groups, dtype=dtype)
    if layout == kernels.FP16:
        kernels.round_to_halves(random)
    return allowed(Model(random, kernels=layout, name=f"random-{layout}"))


@lru_cache
def wide(width: int, sums: ordered.Sums | None = None) -> Model:
    """A model with another head width, whose attention uses the given sums or those found by trial."""
    made = allowed(Model(net(width=width), kernels=kernels.PLAIN, name=f"width-{width}"))
    if sums:
        made.plain_function.sums = sums
    return made


def allowed(made: Model) -> Model:
    """Make the model invariant, or skip the test if torch's products do not allow it."""
    try:
        made.make_invariant()
    except ModelError as error:
        pytest.skip(str(error))
    return made


def row(target: Model, text: list[int]) -> torch.Tensor:
    """The logits of a one-token pass after a text."""
    context = target.open([text], 1)
    context.prefill()
    return context.forward(Draft.empty()).logits[0][0]


def steps(target: Model, text: list[int], more: list[int]) -> list[torch.Tensor]:
    """Rows of decoding token by token: after `text`, then after each of `more`."""
    context = target.open([text], len(more) + 1)
    context.prefill()
    rows = [context.forward(Draft.empty()).logits[0][0]]
    for token in more:
        context.extend([token])
        rows.append(context.forward(Draft.empty()).logits[0][0])
    return rows


def tree(random: np.random.Generator, nodes: int) -> Draft:
    parents = [int(random.integers(-1, node)) if random.random() < 0.5 else node - 1 for node in range(nodes)]
    return Draft(random.integers(2, VOCABULARY, nodes), parents) if nodes else Draft.empty()


def path_to(draft: Draft, node: int) -> list[int]:
    path = []
    while node >= 0:
        path.insert(0, node)
        node = int(draft.parents[node])
    return path


def parted(target: Model, texts: list[list[int]], drafts: list[Draft], sampled: int = 4) -> int:
    """Count the sampled rows of a pass, roots included, that differ from those of single passes."""
    context = target.open(texts, 1 + max(map(len, drafts)))
    context.prefill()
    logits = context.forward(drafts).logits
    random, wrong = np.random.default_rng(len(texts)), 0
    for text, draft, rows in zip(texts, drafts, logits):
        nodes = random.permutation(len(draft))[:sampled].tolist()
        for node in (-1, *nodes):
            tokens = [int(draft.tokens[each]) for each in path_to(draft, node)]
            wrong += not torch.equal(rows[1 + node], row(target, text + tokens))
    return wrong


FORMATS = torch.float32, torch.bfloat16
LAYOUTS = [(dtype, layout) for dtype in FORMATS for layout in kernels.candidates(torch.device("cpu"), dtype)]
LAYOUTS += [(torch.float32, kernels.FP16)] if kernels.multiplies_halves() else []


@pytest.mark.parametrize(("dtype", "layout"), LAYOUTS)
@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, LONGEST), nodes=st.integers(0, 40), seed=NUMBERS)
def test_every_row_of_a_tree_is_the_row_of_its_own_path(dtype, layout, length, nodes, seed):
    draft = tree(np.random.default_rng(seed), nodes)
    assert parted(model(layout, dtype), [TEXT[:length]], [draft]) == 0


@pytest.mark.parametrize(
    ("name", "dtype", "layout"),
    [
        *((name, torch.float32, kernels.PLAIN) for name in families.PLAIN),
        ("qwen3", torch.bfloat16, kernels.PLAIN),
        ("qwen2", torch.bfloat16, kernels.INT8), ("llama", torch.float32, kernels.W8A8),
    ],
)  # fmt: skip
def test_every_family_and_integer_weights(name, dtype, layout):
    """Biases, norms of queries and keys, scaled positions, soft caps, and weights rounded to integers."""
    if layout == kernels.W8A8 and not kernels.multiplies_eight_bits():
        pytest.skip("torch does not multiply 8-bit matrices here")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "max_position_embeddings": 256}
    random = families.make(name, vocab_size=VOCABULARY, **sizes).to(dtype)
    target = allowed(Model(random, kernels=layout))
    assert target.kernels == layout
    draft = tree(np.random.default_rng(0), 24)
    assert parted(target, [TEXT[:130]], [draft]) == 0
    assert parted(target, [TEXT[:70], TEXT[:9]], [draft, Draft.chain(TEXT[:6])]) == 0


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize("dtype", FORMATS)
def test_two_threads(dtype, two_threads):
    layout = kernels.candidates(torch.device("cpu"), dtype)[-1]
    target = allowed(Model(net(groups=3, dtype=dtype), kernels=layout))
    draft = tree(np.random.default_rng(1), 30)
    assert parted(target, [TEXT[:130]], [draft]) == 0
    assert parted(target, [TEXT[:100], TEXT[:20]], [draft, Draft.chain(TEXT[:5])]) == 0
    assert parted(target, [TEXT[:LONGEST]], [Draft.chain(TEXT[:9])]) == 0


def test_another_number_of_threads_is_tested_when_a_context_opens(monkeypatch):
    target = allowed(Model(net(), kernels=kernels.PLAIN))
    tried, original = [], choices._tried

    def noted(*given):
        tried.append(torch.get_num_threads())
        return original(*given) if tried == [2] else choices.Way(fault="it changes its order")

    monkeypatch.setattr(choices, "_tried", noted)
    target.open([TEXT[:5]], 1)
    assert tried == []
    try:
        torch.set_num_threads(2)
        assert parted(target, [TEXT[:70]], [tree(np.random.default_rng(2), 9)]) == 0
        assert tried == [2]
        torch.set_num_threads(1)
        with pytest.raises(ModelError, match="it changes its order"):
            target.open([TEXT[:5]], 1)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("width", [16, 36, 128])
@settings(max_examples=10, deadline=None)
@given(length=st.integers(1, LONGEST), nodes=st.integers(0, 40), seed=NUMBERS)
def test_heads_of_any_width(width, length, nodes, seed):
    draft = tree(np.random.default_rng(seed), nodes)
    assert parted(wide(width), [TEXT[:length]], [draft]) == 0


@pytest.mark.parametrize("width", [36, 64, 128])
def test_scores_whose_mask_is_added_apart(width):
    apart = wide(width, ordered.Sums(ordered.LEAST[-1], fused=False))
    draft = tree(np.random.default_rng(width), 30)
    for length in (1, 40, 64, 150):
        assert parted(apart, [TEXT[:length], TEXT[: length + 70]], [draft, draft]) == 0
        gap = (row(apart, TEXT[:length]) - row(wide(width), TEXT[:length])).abs().max()
        assert gap < 1e-4


@settings(max_examples=20, deadline=None)
@given(lengths=st.lists(st.integers(1, 300), min_size=2, max_size=4), seed=NUMBERS, chains=st.booleans())
def test_every_row_of_a_batch_is_the_row_of_its_own_path(lengths, seed, chains):
    random = np.random.default_rng(seed)
    sizes = random.integers(0, 20, len(lengths)).tolist()
    drafts = [Draft.chain(TEXT[:n]) if chains else tree(random, n) for n in sizes]
    assert parted(model(groups=3), [TEXT[:length] for length in lengths], drafts, 2) == 0


@settings(max_examples=10, deadline=None)
@given(length=st.integers(1, LONGEST - 20), count=st.integers(1, 20))
def test_a_chain_is_decoding_token_by_token(length, count):
    target, more = model(), TEXT[length : length + count]
    context = target.open([TEXT[:length]], count + 1)
    context.prefill()
    rows = context.forward(Draft.chain(more)).logits[0]
    assert all(torch.equal(a, b) for a, b in zip(rows, steps(target, TEXT[:length], more), strict=True))
    assert torch.equal(rows[-1], row(target, TEXT[: length + count]))  # a prefill of all of it


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_length_up_to_700(dtype):
    """One pass over a text, its tokens one by one, and prefills of its prefixes give the same rows."""
    target, text = model(dtype=dtype), TEXT[:LONGEST]
    rows = target.open([text[:1]], LONGEST).forward(Draft.chain(text[1:])).logits[0]
    assert all(torch.equal(a, b) for a, b in zip(rows, steps(target, text[:1], text[1:]), strict=True))
    assert all(torch.equal(rows[n - 1], row(target, text[:n])) for n in range(1, LONGEST + 1, 31))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_prefill_and_a_tree_at_every_length_up_to_700(dtype):
    target, text, random = model(dtype=dtype, groups=3), TEXT[:LONGEST], np.random.default_rng(0)
    rows = target.open([text[:1]], LONGEST).forward(Draft.chain(text[1:])).logits[0]
    for n in range(1, LONGEST + 1):
        assert torch.equal(rows[n - 1], row(target, text[:n]))
        assert parted(target, [text[:n]], [tree(random, 20)], 1) == 0


def smollm2(dtype: str, layout: str) -> Model:
    """SmolLM2 in an explicit layout: the tests' variable would pin another one."""
    if layout not in kernels.candidates(torch.device("cpu"), getattr(torch, dtype)):
        pytest.skip(f"torch has no {layout} layout in {dtype} here")
    return allowed(sv.load("smollm2", dtype=dtype, kernels=layout, invariant=False))


def test_smollm2_as_it_is_loaded():
    """A few rows in a format that users get."""
    try:
        downloads.require("smollm2")
    except ModelError as error:
        pytest.skip(f"SmolLM2 is not here: {error}")
    fast = choices.has_bfloat16(torch.device("cpu"))
    target = smollm2("bfloat16" if fast else "float32", kernels.ONEDNN)
    text = target.encode("The harbour was quiet, and the boats lay still in the morning light. " * 8)[:90]
    context = target.open([text[:60]], 20)
    context.prefill()
    rows = context.forward(Draft.chain(text[60:68])).logits[0]
    assert all(map(torch.equal, rows, steps(target, text[:60], text[60:68])))
    draft = Draft(text[50:62], [-1, *np.random.default_rng(0).integers(-1, np.arange(1, 12)).tolist()])
    assert parted(target, [text[:50], text[:20]], [draft, Draft.chain(text[20:25])], 2) == 0


SMOLLM2 = [("float32", kernels.ONEDNN), ("bfloat16", kernels.ONEDNN), ("bfloat16", kernels.TRANSPOSED)]


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "layout"), SMOLLM2)
def test_smollm2(dtype, layout, smollm2_file):
    target = smollm2(dtype, layout)
    text = target.encode("The harbour was quiet, and the boats lay still in the morning light. " * 8)[:100]
    context = target.open([text[:1]], len(text) + 1)
    rows = context.forward(Draft.chain(text[1:])).logits[0]
    assert all(torch.equal(a, b) for a, b in zip(rows, steps(target, text[:1], text[1:]), strict=True))
    draft = Draft(text[50:80], [-1, *np.random.default_rng(0).integers(-1, np.arange(1, 30)).tolist()])
    assert parted(target, [text[:50], text[:20]], [draft, Draft.chain(text[20:25])], 3) == 0


# At and between the block sizes of the cache and of torch's products.
LENGTHS = (
    1,
    2,
    7,
    31,
    32,
    33,
    63,
    64,
    65,
    100,
    127,
    128,
    129,
    200,
    255,
    256,
    257,
    384,
    511,
    512,
    513,
    600,
    LONGEST,
)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "layout"), SMOLLM2[:2])
def test_smollm2_at_lengths_up_to_700(dtype, layout, smollm2_file):
    """A long pass, prefills of its prefixes, trees after them and batches of two give the same rows."""
    target, random = smollm2(dtype, layout), np.random.default_rng(1)
    text = target.encode("The harbour was quiet, and 17 boats lay still in the morning light. " * 60)[
        : LONGEST + 8
    ]
    rows = target.open([text[:1]], LONGEST).forward(Draft.chain(text[1:LONGEST])).logits[0]
    for n in LENGTHS:
        assert torch.equal(rows[n - 1], row(target, text[:n])), n
        parents = [-1, *random.integers(-1, np.arange(1, 20)).tolist()]
        draft = Draft(random.integers(0, target.vocabulary, 20).tolist(), parents)
        other = Draft.chain(text[: int(random.integers(1, 8))])
        assert parted(target, [text[:n], text[: n // 2 + 1]], [draft, other], 1) == 0, n


@settings(max_examples=10, deadline=None)
@given(length=st.integers(1, 300), seed=NUMBERS)
def test_what_was_committed_is_read_like_text(length, seed):
    """A path's keys and values move to the slots where text would have been written, bit for bit."""
    target, random = model(), np.random.default_rng(seed)
    draft = tree(random, 24)
    path = path_to(draft, int(random.integers(24)))
    context = target.open([TEXT[:length]], 40)
    context.prefill()
    context.forward(draft)
    context.commit(path)
    text = TEXT[:length] + [int(draft.tokens[node]) for node in path]
    assert torch.equal(context.forward(Draft.empty()).logits[0][0], row(target, text))


def test_a_model_of_16_bits_keeps_its_cache_as_attention_reads_it():
    target = model(dtype=torch.bfloat16)
    context = target.open([[1, 2]], 4)
    context.forward(Draft.empty())
    kept = context.store.data
    assert kept.dtype == torch.float32 and kept.any()
    assert torch.equal(kept, kept.bfloat16().float())  # the same numbers as in 16 bits
    assert target.geometry["cache_bytes"] == 4
    ordinary = Model(target.net, kernels="plain")
    assert ordinary.open([[1, 2]], 4).store.data.dtype == torch.bfloat16
    assert ordinary.geometry["cache_bytes"] == 2


@pytest.mark.parametrize("length", [3, 63, 64, 130])
def test_bfloat16(length):
    target = model(dtype=torch.bfloat16)
    draft = tree(np.random.default_rng(length), 20)
    assert parted(target, [TEXT[:length]], [draft]) == 0
    assert parted(target, [TEXT[:length], TEXT[:20]], [draft, Draft.chain(TEXT[:5])]) == 0


def test_it_computes_what_the_model_computes():
    plain = Model(net(), kernels=kernels.PLAIN)
    for length in (1, 64, 200):
        gap = (row(plain, TEXT[:length]) - row(model(), TEXT[:length])).abs().max()
        assert 0 < gap < 1e-4 or (length == 1 and gap < 1e-4)


# ---------------------------------------------------------------- each part is needed


def _unmasked(monkeypatch):
    """Slots after the text are visible."""
    original = ordered.sight

    def sight(mask, *rest):
        return original(torch.zeros_like(mask), *rest)

    monkeypatch.setattr(ordered, "sight", sight)


def _values_by_slot(monkeypatch):
    """A tree's values are added in blocks by slot, not by position."""

    def by_slot(weights, values, tail, orders):
        last = weights[..., tail.start :]
        last.copy_(ordered._arranged(last, orders[1]))
        return ordered._summed(ordered._blocks(weights, values))

    monkeypatch.setattr(ordered, "_by_position", by_slot)


def _weights_by_slot(monkeypatch):
    """The softmax adds a tree's weights in slot order."""
    monkeypatch.setattr(ordered, "_arranged", lambda columns, order: columns)


def _last_block_first(monkeypatch):
    """The blocks of a tree's pass are added in reverse order."""
    original, summed = ordered._by_position, ordered._summed

    def falling(*given):
        with monkeypatch.context() as patch:
            patch.setattr(ordered, "_summed", lambda blocks: summed(reversed(list(blocks))))
            return original(*given)

    monkeypatch.setattr(ordered, "_by_position", falling)


@pytest.mark.parametrize("broken", [_unmasked, _values_by_slot, _weights_by_slot, _last_block_first])
def test_a_broken_part_shows(broken, monkeypatch):
    draft = tree(np.random.default_rng(1), 30)
    texts = [TEXT[:245]]  # the tree crosses the end of a block
    assert parted(model(), texts, [draft], 30) == 0
    broken(monkeypatch)
    assert parted(model(), texts, [draft], 30) > 0


def test_a_varying_product_is_noticed_and_computed_in_pieces(monkeypatch):
    original = ordered._keeps
    monkeypatch.setattr(ordered, "_tried_products", {})
    monkeypatch.setattr(ordered, "_keeps", lambda line: line.cut.pieces == 3 and original(line))
    target = allowed(Model(net(), kernels=kernels.PLAIN))
    assert {line.cut.pieces for line in target._llama.lines()} == {3}
    assert parted(target, [TEXT[:100]], [tree(np.random.default_rng(2), 20)]) == 0
    assert (row(target, TEXT[:100]) - row(model(), TEXT[:100])).abs().max() < 1e-4


def test_a_product_that_varies_with_many_rows_is_computed_a_few_at_a_time(monkeypatch):
    def varying(self, x):
        rows = [torch.cat([row @ matrix for matrix in self.matrices]) for row in x]
        return torch.stack(rows) * (1 + 1e-6 * (len(x) > ordered.FEW_ROWS))

    monkeypatch.setattr(ordered, "_tried_products", {})
    monkeypatch.setattr(kernels.Plain, "__call__", varying)
    monkeypatch.setattr(kernels.Plain, "add", lambda self, x, to: self(x).add_(to))
    target = allowed(Model(net(), kernels=kernels.PLAIN))
    assert {line.cut for line in target._llama.lines()} == {ordered.Cut(1, 1, ordered.FEW_ROWS)}
    draft = tree(np.random.default_rng(2), 50)
    assert parted(target, [TEXT[:100]], [draft]) == 0
    for line in target._llama.lines():
        line.divide(ordered.WAYS[0])
    assert parted(target, [TEXT[:100]], [draft]) > 0


def test_products_are_compared_row_by_row():
    line = model()._llama.weights[0].down
    assert ordered._keeps(line)

    class Varying:
        """Round differently from nine rows on, or with seven rows only."""

        def __init__(self, product, varies):
            self.product, self.varies = product, varies

        def __call__(self, x):
            return self.product(x) * (1 + 1e-6 * self.varies(len(x)))

        def add(self, x, to):
            return self(x) + to

    kept = line.product
    try:
        for varies in (lambda rows: rows > 8, lambda rows: rows == 7):
            line.product = Varying(kept, varies)
            assert not ordered._keeps(line)
    finally:
        line.product = kept


@pytest.mark.parametrize(("size", "width"), [(16, 16), (61, 64), (16, 65)])
@pytest.mark.parametrize("swapped", [False, True])
def test_another_order_of_two_terms_is_noticed_in_16_bits(size, width, swapped, monkeypatch):
    """In bfloat16 nearly all sums of random terms would be rounded to the same number."""

    def summed(self, x):
        terms = x.float()[:, :, None] * self.matrices[0].float()
        order = list(range(width))
        if swapped and len(x) > 4:
            order[-2:] = width - 1, width - 2
        out = torch.zeros(len(x), size)
        for k in order:
            out += terms[:, k]
        return out.to(x.dtype)

    monkeypatch.setattr(kernels.Plain, "__call__", summed)
    monkeypatch.setattr(kernels.Plain, "add", lambda self, x, to: to.add_(self(x)))
    torch.manual_seed(0)
    layer = torch.nn.Linear(width, size, bias=False, dtype=torch.bfloat16)
    assert ordered._keeps(Lines(layer, layout=kernels.PLAIN, invariant=True)) is not swapped


def test_attention_is_tested_over_trees_with_several_queries(monkeypatch):
    original = ordered._by_position

    def varying(weights, *rest):
        wrong = len(weights) == 3 and weights.shape[1] == 40  # heads and queries
        return original(weights, *rest) * (1 + 1e-6 * wrong)

    assert ordered.fixed_order.__wrapped__(64, 1)
    monkeypatch.setattr(ordered, "_by_position", varying)
    assert not ordered.fixed_order.__wrapped__(64, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_attention_is_tested_in_the_format_in_which_it_computes(dtype, monkeypatch):
    tried, original = [], ordered._tried

    def noted(*given):
        tried.append(given[-1])
        return original(*given)

    monkeypatch.setattr(ordered, "_tried", noted)
    monkeypatch.setattr(ordered, "LENGTHS", (40,))
    monkeypatch.setattr(ordered, "fixed_order", ordered.fixed_order.__wrapped__)
    try:
        Model(net(dtype=dtype), kernels=kernels.PLAIN).make_invariant()
    except ModelError as error:
        pytest.skip(str(error))
    assert set(tried) == {torch.promote_types(dtype, torch.float32)}


def test_a_model_that_cannot_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(ordered, "_tried_products", {})
    monkeypatch.setattr(ordered, "_keeps", lambda line: False)
    target = Model(net(), kernels=kernels.PLAIN)
    with pytest.raises(
        ModelError, match=r"random|Llama.*cannot be invariant: with plain kernels a product with"
    ):
        target.make_invariant()
    assert not target.invariant
    modules = Model(net(), plain=False)
    with pytest.raises(ModelError, match="through transformers' modules"):
        modules.make_invariant()
    with pytest.raises(ModelError, match="only language models on torch can"):
        sv.load("town-t5-heads", invariant=True)


@pytest.mark.parametrize("length", [20, 120])
def test_a_large_tree(length):
    draft = tree(np.random.default_rng(length), 300)
    assert parted(model(groups=3), [TEXT[:length]], [draft], 12) == 0
    assert parted(model(), [TEXT[:length], TEXT[:90]], [draft, Draft.chain(TEXT[:5])], 8) == 0
    for width in (36, 128):
        assert parted(wide(width), [TEXT[:length]], [draft], 12) == 0


# ---------------------------------------------------------------- what is reported


def test_the_variable_holds_for_models_that_can(monkeypatch):
    monkeypatch.setenv("SPECVIZ_INVARIANT", "1")
    allowed(sv.load("town", invariant=False))
    assert all(sv.load(name).invariant for name in ("town", "town-t5", "town-diffusion"))
    assert not sv.load("town", invariant=False).invariant


def test_runs_are_labelled_exact():
    target = allowed(sv.load("town"))
    prompts = ["A walk by the sea", "Once upon a time"]
    own = sv.generate(target, prompts, method="autoregressive", max_new_tokens=24)
    for options in ({"method": "unispec"}, {"method": "prompt_lookup", "batch": 2}):
        trace = sv.generate(target, prompts, max_new_tokens=24, **options)
        assert trace.run["exactness"] == "exact"
        assert trace.run["backend"]["invariant"] is True
        assert trace.texts == own.texts
    assert (
        sv.generate("town", prompts[0], method="unispec", max_new_tokens=4).run["exactness"]
        == "exact up to ties"
    )


def test_the_audit_compares_bits(monkeypatch):
    target = allowed(sv.load("town"))
    prompts = ["A walk by the sea"]
    limits = {"max_new_tokens": 80, "sampled": 0, "laws": False}
    result = audit.run(target, None, prompts, ["unispec"], **limits)
    assert result.holds and result.invariant and "bit for bit" in result.summary
    original = ordered._by_position
    monkeypatch.setattr(ordered, "_by_position", lambda *given: original(*given) * (1 + 1e-6))
    broken = audit.run(target, None, prompts, ["unispec"], **limits)
    assert not broken.holds
    assert any("not bit-identical" in difference.reason for _, difference in broken.differences)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_a_norm_is_transformers_own_up_to_rounding(dtype, rows):
    numbers = torch.Generator().manual_seed(rows)
    x = (3 * torch.randn(rows, 96, generator=numbers)).to(dtype)
    weight = torch.randn(96, generator=numbers).to(dtype)
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    theirs = LlamaRMSNorm(96, 1e-5).to(dtype)
    theirs.weight.data.copy_(weight)
    for invariant in (False, True):
        ours = RMSNorm(1e-5, weight, invariant)
        torch.testing.assert_close(
            ours(x, weight), theirs(x).detach(), rtol=2 * torch.finfo(dtype).eps, atol=1e-6
        )
        if invariant:
            assert torch.equal(ours(x, weight)[-1:], ours(x[-1:], weight))


@pytest.mark.parametrize("lines", [8, 16])
def test_a_block_of_one_slot_adds_as_in_a_longer_one(lines):
    """MKL adds a product of a single slot with one rounding, but with two among masked slots."""
    torch.manual_seed(lines)
    first = torch.rand(3, lines, ordered.BLOCK), torch.randn(3, ordered.BLOCK, 64)
    weights, values = torch.rand(3, lines, 1), torch.randn(3, 1, 64)
    masked = torch.nn.functional.pad(weights, (0, 7)), torch.cat([values, torch.randn(3, 7, 64)], 1)
    assert torch.equal(
        ordered._summed(iter([first, (weights, values)])), ordered._summed(iter([first, masked]))
    )


def test_a_prefill_goes_in_parts_whose_bits_are_the_wholes(monkeypatch):
    """A prefill's mask grows with the square of its tokens, so it is computed in parts."""
    made = model()
    text = np.random.default_rng(5).integers(2, VOCABULARY, 150).tolist()
    asked = []
    chain = Context._chain

    def counted(self, start, count):
        asked.append((start, count))
        return chain(self, start, count)

    monkeypatch.setattr(Context, "_chain", counted)
    rows = []
    for lines in (ordered.LINES, 40):
        monkeypatch.setattr(ordered, "LINES", lines)
        asked.clear()
        context = made.open([text], 1)
        context.prefill(hidden=(0, 1))
        rows.append((context.forward(Draft.empty()).logits[0], *context.states[0].values()))
        parts = [count for _, count in asked[:-1]]
        assert parts == ([149] if lines > 149 else [40, 40, 40, 29])
    assert all(torch.equal(one, other) for one, other in zip(*rows))
    context = made.open([text[:60], text], 150)  # a row alone, and then the rest of both rows
    asked.clear()
    context.prefill([1], hidden=(0, 1))
    assert [count for _, count in asked] == [40, 40, 40, 29]
    assert all(map(torch.equal, context.states[1].values(), rows[0][1:]))
    context.prefill([0])
    context.rewind(20, [1])
    context.extend([text[60:], text[20:110]])
    context.prefill(hidden=(0, 1))
    for row, (start, end) in enumerate([(59, 149), (20, 109)]):
        for states, whole in zip(context.states[row].values(), rows[0][1:]):
            assert torch.equal(states, whole[start:end])


def test_the_head_reads_no_padding_of_a_batch(monkeypatch):
    target, counted = model(groups=3), []
    scores = target.plain_function.scores
    noted = lambda last: counted.append(len(last)) or scores(last)
    monkeypatch.setattr(target.plain_function, "scores", noted)
    context = target.open([TEXT[:9], TEXT[:5], TEXT[:7]], 20)
    context.prefill()
    drafts = [Draft.chain(TEXT[:12]), Draft.empty(), tree(np.random.default_rng(0), 3)]
    read = context.forward([drafts[0], drafts[2]], (2,), [0, 2])
    assert counted == [13 + 4]
    assert [len(each) for each in read.logits] == [len(each) for each in read.hidden[2]] == [13, 4]
    for text, own, states in zip((TEXT[:9], TEXT[:7]), read.logits, read.hidden[2]):
        assert torch.equal(own[0], row(target, text))
        assert torch.equal(scores(states), own)
