"""Invariant encoder-decoders and masked-diffusion models: a row of a pass has the bits of that row alone."""

from __future__ import annotations

import copy
from functools import lru_cache

import numpy as np
import pytest
import seq2seq
import torch
from canvases import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ordered import allowed, path_to

import specviz as sv
from specviz import audit
from specviz.draft import Draft
from specviz.errors import ModelError
from specviz.models import canvas as canvases
from specviz.models import encoder_decoder_context, kernels, ordered
from specviz.models.bergamot import net as modules
from specviz.models.bergamot.model import Bergamot
from specviz.models.canvas import Canvas
from specviz.models.context import StorageShape, Store
from specviz.models.diffusion import Diffusion
from specviz.models.encoder_decoder import EncoderDecoder
from specviz.models.layers import Lines, activation

torch.set_num_threads(1)
NUMBERS = st.integers(0, 2**32 - 1)
FORMATS = (torch.float32, torch.bfloat16)
FAMILIES = ("t5", "t5-gated", "bart", "marian", "bergamot")
LONGEST = 150  # tokens of a prompt and of a text: more than one block
CELLS = 20
WIDE = {  # head and other widths like those of trained models
    "t5": {"d_model": 96, "d_kv": 32, "d_ff": 200},
    "bart": {"d_model": 64, "decoder_ffn_dim": 200, "max_position_embeddings": 1024},
}


@lru_cache
def writer(family: str, dtype: torch.dtype = torch.float32, wide: bool = False) -> EncoderDecoder:
    """A random encoder-decoder that is invariant."""
    if family == "bergamot":
        return allowed(Bergamot(recurrent(dtype), None, "random-bergamot", kernels.PLAIN))
    kind = "t5" if "t5" in family else "bart"
    sizes = WIDE[kind] if wide else {"d_kv": 8} if kind == "t5" else {"max_position_embeddings": 1024}
    net = seq2seq.make(family, dtype=dtype, **sizes)
    return allowed(EncoderDecoder(net, kernels=kernels.PLAIN, name=f"random-{family}"))


def recurrent(dtype: torch.dtype) -> modules.Net:
    """A random translator with a recurrent decoder, narrow enough that vector loops have a remainder."""
    torch.manual_seed(0)
    sizes = {"d_model": 48, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24}
    counts = {"encoder_layers": 2, "decoder_layers": 2}
    heads = {"encoder_attention_heads": 6, "decoder_attention_heads": 6}
    net = modules.Net(modules.Config(seq2seq.VOCABULARY, **sizes, **counts, **heads))
    for parameter in net.parameters():
        parameter.data.normal_(0, 0.3)
    return net.to(dtype).eval().requires_grad_(False)


def numbers(random: np.random.Generator, count: int) -> list[int]:
    return random.integers(3, seq2seq.VOCABULARY, count).tolist()


def tree(random: np.random.Generator, nodes: int, branches: float = 0.5) -> Draft:
    parents = [
        int(random.integers(-1, node)) if random.random() < branches else node - 1 for node in range(nodes)
    ]
    return Draft(numbers(random, nodes), parents) if nodes else Draft.empty()


def alone(target: EncoderDecoder, prompt: list[int], text: list[int]) -> torch.Tensor:
    """The logits of a one-token pass after a prefilled text."""
    context = target.open([prompt], len(text) + 1)
    context.extend(text)
    context.prefill()
    return context.forward(Draft.empty()).logits[0][0]


def parted(target: EncoderDecoder, rows: int, seed: int, most: int = LONGEST, sampled: int = 4) -> int:
    """Count the rows of a pass over trees after random texts that differ from those of single passes."""
    random = np.random.default_rng(seed)
    prompts = [numbers(random, int(random.integers(1, most))) for _ in range(rows)]
    texts = [numbers(random, int(random.integers(0, most))) for _ in range(rows)]
    branches = 0.5 * getattr(target, "trees", True)
    drafts = [tree(random, int(random.integers(0, 30)), branches) for _ in range(rows)]
    context = target.open(prompts, most + 30)
    context.prefill()
    context.extend(texts)
    if random.random() < 0.5:
        context.prefill()
    wrong = 0
    for prompt, text, draft, read in zip(prompts, texts, drafts, context.forward(drafts).logits):
        for node in (-1, *random.permutation(len(draft))[:sampled].tolist()):
            tokens = [int(draft.tokens[each]) for each in path_to(draft, node)]
            wrong += not torch.equal(read[1 + node], alone(target, prompt, text + tokens))
    return wrong


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=4, deadline=None)
@given(seed=NUMBERS, rows=st.integers(1, 3))
def test_every_row_of_a_pass_is_the_row_of_its_own_path(family, dtype, seed, rows):
    assert parted(writer(family, dtype), rows, seed) == 0


@pytest.mark.parametrize(("seed", "rows"), [(68, 1), (104, 3)])
def test_narrow_products_whose_sums_seldom_part(seed, rows):
    """A single row's product rounds differently in one sum of thousands; these passes hit one."""
    assert parted(writer("bergamot", torch.bfloat16), rows, seed) == 0


@pytest.mark.parametrize("outputs", [37, 48])
def test_a_trial_of_sums_that_cancel_shows_their_order(outputs):
    """Another order of adding halves shows in the 16 bits only if the sums cancel."""

    class Other(Lines):
        def __call__(self, x):
            if len(x) > 1:
                return super().__call__(x)
            half = x.shape[1] // 2
            weight = self.weights[0].float()
            sums = x[:, half:].float() @ weight[:, half:].t() + x[:, :half].float() @ weight[:, :half].t()
            return sums.to(x)

    layer = torch.nn.Linear(48, outputs, bias=False, dtype=torch.bfloat16)
    product = Other(layer.requires_grad_(False), layout=kernels.PLAIN, invariant=True)
    made, x = ordered._cancelling(product, torch.Generator().manual_seed(0))
    assert type(made) is Other and not ordered._alike(made, x, whole=True)
    assert not ordered._keeps(product)


@pytest.mark.parametrize("family", ["t5", "bart"])
@settings(max_examples=4, deadline=None)
@given(seed=NUMBERS, rows=st.integers(1, 3))
def test_wider_models(family, seed, rows):
    assert parted(writer(family, wide=True), rows, seed) == 0


@pytest.mark.parametrize("family", ["t5", "marian", "bergamot"])
def test_a_pass_over_a_text_is_writing_it_token_by_token(family):
    target, random = writer(family), np.random.default_rng(1)
    prompt, text = numbers(random, 40), numbers(random, LONGEST)
    context = target.open([prompt], len(text) + 1)
    rows = context.forward(Draft.chain(text)).logits[0]
    context = target.open([prompt], len(text) + 1)
    for token, row in zip([*text, None], rows):
        assert torch.equal(context.forward(Draft.empty()).logits[0][0], row)
        if token is not None:
            context.extend([token])


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_rows_that_come_and_go_keep_their_bits(family):
    target, random = writer(family), np.random.default_rng(2)
    prompts, text = [numbers(random, n) for n in (5, 70, 9)], numbers(random, 20)
    context = target.open(prompts[:2], 60)
    context.prefill()
    context.extend([text, text[:7]])
    context.replace(0, prompts[2])
    context.extend([text[:3], []])
    rows = context.forward([Draft.empty()] * 2).logits
    assert torch.equal(rows[0][0], alone(target, prompts[2], text[:3]))
    assert torch.equal(rows[1][0], alone(target, prompts[1], text[:7]))
    context.drop(0)
    assert torch.equal(context.forward(Draft.empty()).logits[0][0], alone(target, prompts[1], text[:7]))
    branch = context.branch([context.length[0] - n for n in (0, 3)], 4)
    for row, count in zip(branch.forward([Draft.empty()] * 2).logits, (7, 4)):
        assert torch.equal(row[0], alone(target, prompts[1], text[:count]))


@pytest.mark.parametrize("family", ["t5", "marian"])
def test_it_computes_what_the_model_computes(family):
    random = np.random.default_rng(3)
    plain = EncoderDecoder(writer(family).net, kernels=kernels.PLAIN)
    first = writer(family).first(2)
    assert first.invariant
    for length in (0, 70):
        prompt, text = numbers(random, 10 + length), numbers(random, length)
        gap = (alone(plain, prompt, text) - alone(writer(family), prompt, text)).abs().max()
        assert gap < 1e-4
        assert (alone(plain.first(2), prompt, text) - alone(first, prompt, text)).abs().max() < 1e-4


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "silu"])
@pytest.mark.parametrize("width", [24, 100, 1536])
def test_nonlinearities_do_not_depend_on_rows(name, width):
    function = activation(name, invariant=True)
    both = torch.randn(60, 2 * width)
    for rows in (both[:, :width], both[:, :width].contiguous()):  # the former is half of a wider product
        single = torch.cat([function(row[None].contiguous()) for row in rows])
        assert all(torch.equal(function(rows[:n]), single[:n]) for n in (2, 5, 9, 60))
        assert (single - activation(name)(rows)).abs().max() < 1e-5


# ---------------------------------------------------------------- canvases


@lru_cache
def painter(cache: str, shift: int = 0, dtype: torch.dtype = torch.float32) -> Diffusion:
    """A random masked-diffusion model that is invariant."""
    del cache  # each kind of pass has its own model, which a test may break
    made = tiny(3, shift, torch.float32, (), hidden_size=32, head_dim=8, max_position_embeddings=256)
    net = made.net.to(dtype)
    return allowed(Diffusion(net, name="tiny", mask=made.mask, shift=shift, kernels=kernels.PLAIN))


def canvases_of(random: np.random.Generator, open_cells: np.ndarray, depth: int, nodes: int) -> Draft:
    """A tree of placements in which no path repeats a cell."""
    parents: list[int] = []
    positions: list[int] = []
    depths: list[int] = []
    for _ in range(nodes):
        above = [-1, *(node for node, deep in enumerate(depths) if deep < depth)]
        parent = int(random.choice(above))
        used, node = set(), parent
        while node >= 0:
            used.add(positions[node])
            node = parents[node]
        parents.append(parent)
        positions.append(int(random.choice([cell for cell in open_cells[: depth + 6] if cell not in used])))
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return Draft(random.integers(6, 37, nodes), parents, positions=positions)


def twin(canvas: Canvas) -> Canvas:
    """Copy a canvas's state so that it can continue on its own."""
    other = copy.copy(canvas)
    for name in ("text", "masked", "stale"):
        setattr(other, name, [each.copy() for each in getattr(canvas, name)])
    other.since, other._read, other._packings = list(canvas.since), {}, {}
    if canvas.cache == "dual":
        layers, _, rows, heads, slots, dim = canvas.store.data.shape
        kind, device = canvas.store.data.dtype, canvas.model.device
        store = Store(StorageShape(layers, rows, heads, slots, dim, kind, device))
        store.data.copy_(canvas.store.data)
        store.reach = canvas.store.reach
        other.store, other._layers = store, store.data.flatten(2, 4).unbind(0)
    return other


def rows_read(read, canvas: int) -> dict[int, torch.Tensor]:
    at = np.flatnonzero(read.canvas == canvas)
    return {int(read.cell[i]): read.logits[int(i)] for i in at}


def parted_canvases(target: Diffusion, cache: str, rows: int, seed: int, prompt: int = 90) -> int:
    """Count the cells of a pass over packed canvases that differ from stepwise decoding alone."""
    random = np.random.default_rng(seed)
    policy = {"block": 8, "cache": cache, "refresh": 6}
    prompts = [random.integers(6, 37, int(random.integers(1, prompt))).tolist() for _ in range(rows)]
    packed = target.open(prompts, CELLS, canvases=8, **policy)
    single = [target.open([each], CELLS, **policy) for each in prompts]
    for _ in range(int(random.integers(0, 8))):  # both place the same tokens, step by step
        packed.forward([Draft.empty()] * rows)
        for row, own in enumerate(single):
            packed.commit([], row)
            own.forward(Draft.empty())
            own.commit([])
            cell, token = (
                int(random.choice(np.flatnonzero(own.open_cells())[:6])),
                int(random.integers(6, 37)),
            )
            packed.fill([cell], [token], row)
            own.fill([cell], [token])
    drafts = []
    for row in range(rows):
        depth = max(packed.room(row) - 1, 0)
        nodes = int(random.integers(1, 8)) if depth else 0
        drafts.append(canvases_of(random, np.flatnonzero(packed.open_cells(row)), depth, nodes))
    wrong = 0
    for draft, own, read in zip(drafts, single, packed.forward(drafts)):
        for node in range(-1, len(draft)):
            state = twin(own)
            step = state.forward(Draft.empty())[0]
            for each in path_to(draft, node):
                state.commit([])
                state.fill([int(draft.positions[each])], [int(draft.tokens[each])])
                step = state.forward(Draft.empty())[0]
            mine, theirs = rows_read(read, node), rows_read(step, -1)
            assert mine.keys() == theirs.keys()
            wrong += sum(not torch.equal(mine[cell], theirs[cell]) for cell in mine)
    return wrong


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize(("cache", "shift"), [("none", 0), ("dual", 0), ("none", 1), ("dual", 1)])
@settings(max_examples=5, deadline=None)
@given(seed=NUMBERS, rows=st.integers(1, 3))
def test_every_canvas_of_a_pass_is_the_canvas_alone(cache, shift, dtype, seed, rows):
    assert parted_canvases(painter(cache, shift, dtype), cache, rows, seed) == 0


def test_canvases_are_what_the_model_computes():
    for cache in ("none", "dual"):
        mine = painter(cache)
        plain = Diffusion(mine.net, name="plain", mask=mine.mask, kernels=kernels.PLAIN)
        policy = {"block": 8, "cache": cache, "canvases": 2}
        draft = Draft([7, 8], [-1, 0], positions=[1, 2])
        both = [each.open([[9, 8, 7]], CELLS, **policy).forward(draft)[0].logits for each in (mine, plain)]
        finite = both[1].isfinite()
        assert (both[0] - both[1])[finite].abs().max() < 1e-4


# ---------------------------------------------------------------- each part is needed


def _source_unmasked(monkeypatch):
    """The padding of the encoder's states is visible."""
    original = encoder_decoder_context.joined

    def joined(rows, invariant):
        source = original(rows, invariant)
        source.mask.zero_()
        return source

    monkeypatch.setattr(encoder_decoder_context, "joined", joined)


def _encoded_together(monkeypatch):
    """Prompts are encoded in one pass."""

    def read(self, prompts, decoder):
        source = self._encoded(prompts, decoder)
        return encoder_decoder_context.joined(source.apart(), True), 0

    monkeypatch.setattr(encoder_decoder_context.Encoder, "read", read)


def _varying_activation(monkeypatch):
    """A nonlinearity's vector loop ends with the rows."""
    monkeypatch.setattr(ordered, "steady", lambda function: function)


def _values_by_slot(monkeypatch):
    """A tree's values are added in blocks by slot, not by position."""

    def by_slot(weights, values, tail, orders):
        last = weights[..., tail.start :]
        last.copy_(ordered._arranged(last, orders[1]))
        return ordered._summed(ordered._blocks(weights, values))

    monkeypatch.setattr(ordered, "_by_position", by_slot)


def _bias_by_slot(monkeypatch):
    """T5's biases use slots, not positions."""
    original = encoder_decoder_context.EncoderDecoderContext._places

    def places(self, positions):
        right = original(self, positions)
        return torch.arange(right.shape[1]).expand_as(right)

    monkeypatch.setattr(encoder_decoder_context.EncoderDecoderContext, "_places", places)


@pytest.mark.parametrize(
    ("family", "broken"),
    [
        ("t5", _source_unmasked), ("bart", _encoded_together),
        ("marian", _varying_activation),
        ("bart", _values_by_slot), ("t5", _bias_by_slot),
    ],
)  # fmt: skip
def test_a_broken_part_of_an_encoder_decoder_shows(family, broken, monkeypatch):
    whole = writer(family, wide=broken is _values_by_slot)
    broken(monkeypatch)
    target = allowed(type(whole)(whole.net, None, "broken", kernels=kernels.PLAIN))
    assert any(parted(target, 3, seed, sampled=8) for seed in range(12))


def _canvases_by_slot(monkeypatch):
    """What a canvas attends to is added in slot order."""
    original = canvases._windows_of

    def windows_of(*given):
        windows, results = original(*given)
        sorted_slots = []
        for each in windows:
            have = each.mask[:, :1, :1].squeeze(1).eq(0)
            slots = torch.where(have, each.slots, 1 << 30).sort(-1).values
            sorted_slots.append(each._replace(slots=torch.where(have, slots, each.slots)))
        return canvases.Seen(sorted_slots, results)

    monkeypatch.setattr(canvases, "_windows_of", windows_of)


def _windows_unmasked(monkeypatch):
    """The padding of a canvas to whole blocks is visible."""
    original = canvases._windows_of

    def windows_of(*given):
        windows, results = original(*given)
        return canvases.Seen([w._replace(mask=torch.zeros_like(w.mask)) for w in windows], results)

    monkeypatch.setattr(canvases, "_windows_of", windows_of)


def _unpadded(monkeypatch):
    """Products are not padded to more rows."""
    monkeypatch.setattr(ordered, "fixed_order", lambda *_: ordered.Sums(least=1, fused=True))
    monkeypatch.setattr(ordered, "settle", lambda lines: "")


@pytest.mark.parametrize(
    ("cache", "broken"),
    [("dual", _canvases_by_slot), ("dual", _windows_unmasked), ("dual", _unpadded), ("none", _unpadded)],
)
def test_a_broken_part_of_a_canvas_shows(cache, broken, monkeypatch):
    whole = painter(cache)
    broken(monkeypatch)
    target = Diffusion(whole.net, name="broken", mask=whole.mask, kernels=kernels.PLAIN)
    target.make_invariant()
    assert any(parted_canvases(target, cache, 3, seed) for seed in range(12))


# ---------------------------------------------------------------- what is reported


def bundled(name: str):
    """Load a bundled model as invariant, or skip the test if the products do not allow it."""
    try:
        return sv.load(name, invariant=True)
    except ModelError as error:
        pytest.skip(str(error))


def test_runs_of_encoder_decoders_are_exact_and_audited_bit_for_bit(monkeypatch):
    target = bundled("town-t5")
    assert target.invariant
    prompts = ["translate English to German: the harbour is quiet", "translate English to German: a walk"]
    own = sv.generate(target, prompts, method="autoregressive", max_new_tokens=16)
    trace = sv.generate(target, prompts, method="prompt_lookup", max_new_tokens=16, batch=2)
    assert trace.run["exactness"] == "exact" and trace.texts == own.texts
    limits = {"max_new_tokens": 16, "sampled": 0, "laws": False}
    result = audit.run(target, [], prompts[:1], ["unispec"], **limits)
    assert result.holds and result.invariant and "bit for bit" in result.summary
    original = ordered._by_position
    monkeypatch.setattr(ordered, "_by_position", lambda *given: original(*given) * (1 + 1e-6))
    broken = audit.run(target, [], prompts[:1], ["unispec"], **limits)
    assert any("not bit-identical" in difference.reason for _, difference in broken.differences)


def test_rows_of_a_batch_are_audited_bit_for_bit(monkeypatch):
    target = bundled("town-t5")
    prompts = ["The harbour is quiet.", "A walk by the sea"]
    limits = {"batch": 2, "max_new_tokens": 12, "sampled": 0}
    assert audit.batches(target, [], prompts, ["prompt_lookup"], **limits).holds
    original = ordered.attend

    def turned(query, *rest):  # by rounding, and only in passes of several rows
        return original(query, *rest) * (1 + 1e-6 * (len(query) > 1))

    monkeypatch.setattr(ordered, "attend", turned)
    broken = audit.batches(target, [], prompts, ["prompt_lookup"], **limits)
    assert any("not bit-identical" in difference.reason for _, difference in broken.differences)


def test_retranslation_on_an_invariant_encoder_decoder():
    target = bundled("town-t5")
    heard = sv.streams.fixed_lag("The doctor bought a red bicycle. Tom was tired on Sunday.", 3)
    result = audit.streams(target, [heard], max_new_tokens=16, sampled=0, laws=False)
    assert result.holds and result.invariant and "bit for bit" in result.summary
    own = sv.generate(target, heard, "retranslate", mode="rt", max_new_tokens=16)
    trace = sv.generate(target, heard, "retranslate", beta=0.0, max_new_tokens=16)
    assert trace.run["exactness"] == "exact"
    assert trace.updates["text"].tolist() == own.updates["text"].tolist()


@pytest.mark.parametrize("batch", [1, 2])
def test_runs_of_canvases_are_exact_and_audited_bit_for_bit(batch, monkeypatch):
    target = bundled("town-diffusion")
    prompts = ["A walk by the sea", "Once upon a time"]
    options = {"max_new_tokens": 16, "batch": batch}
    trace = sv.generate(target, prompts, "ssd", cache="dual", **options)
    own = sv.generate(target, prompts, "stepwise", cache="dual", max_new_tokens=16)
    assert trace.run["exactness"] == "exact" and trace.texts == own.texts
    methods = ["ssd:cache=dual,tree=mix", "ssd"]
    result = audit.canvases(target, prompts, methods, **options)
    assert result.holds and result.invariant and "bit for bit" in result.summary
    original = ordered.Windows.attend

    def turned(self, query, *rest):  # by rounding, and only in passes that hold several canvases
        return original(self, query, *rest) * (1 + 1e-6 * (len(self.slots) > 1))

    monkeypatch.setattr(ordered.Windows, "attend", turned)
    broken = audit.canvases(target, prompts, methods[:1], **options)
    assert any("not bit-identical" in difference.reason for _, difference in broken.differences)
