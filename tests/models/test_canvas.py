"""Canvases: what a pass computes, attends to, reads and keeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from canvases import MASK, plain, tiny

from specviz.draft import Draft
from specviz.errors import ModelError, PromptError
from specviz.models.diffusion import Diffusion

torch.set_num_threads(1)
PROMPT = [9, 2, 11, 4]
EMPTY = Draft.empty()


def draft(parents: list[int], cells: list[int], tokens: list[int]) -> Draft:
    return Draft(np.array(tokens), np.array(parents), positions=np.array(cells))


def close(one: torch.Tensor, other: torch.Tensor, by: float = 1e-10) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=by)


PLAIN = 1e-5  # transformers computes the norms in float32


@pytest.fixture(params=[0, 1], ids=["in place", "shifted"])
def model(request: pytest.FixtureRequest) -> Diffusion:
    return tiny(1, request.param)


def rows_of(context, row: int = 0) -> torch.Tensor:
    """The keys and values of a row, at all its positions."""
    return context.store.data[:, :, row, :, : len(context.text[row])].clone()


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_the_first_pass_is_the_plain_one(model: Diffusion, cache: str) -> None:
    context = model.open([PROMPT], 10, block=4, cache=cache)
    (read,) = context.forward(EMPTY)
    assert read.cell.tolist() == list(range(8))  # of the current block and the next
    assert read.refreshed and read.block.tolist() == [0] and read.fed == 14
    close(read.logits, plain(model, context.tokens[0])[4:12], PLAIN)


def test_without_a_cache_every_canvas_is_the_plain_pass(model: Diffusion) -> None:
    context = model.open([PROMPT], 6, block=3)
    context.fill([1], [8])
    tree = draft([-1, 0, -1, 1], [0, 2, 2, 4], [7, 12, 13, 1])
    (read,) = context.forward(tree)
    base = context.tokens[0]
    for canvas, path in ((-1, []), (0, [0]), (1, [0, 1]), (2, [2]), (3, [0, 1, 3])):
        text = list(base)
        for node in path:
            text[4 + tree.positions[node]] = int(tree.tokens[node])
        mine = read.canvas == canvas
        close(read.logits[mine], plain(model, text)[4 + read.cell[mine]], PLAIN)
        assert all(text[4 + cell] == MASK for cell in read.cell[mine])
    assert read.block.tolist() == [0, 0, 1, 0, 1]


def test_a_window_alone_is_computed_and_the_rest_stays(model: Diffusion) -> None:
    context = model.open([PROMPT], 9, block=3, cache="dual", refresh=20)
    context.forward(EMPTY)
    before = rows_of(context)
    context.fill([1], [8])
    (read,) = context.forward(EMPTY)
    after = rows_of(context)
    changed = (before != after).any(-1).any(-2).any(0).any(0)
    window = range(4 - model.shift, 7)
    assert set(np.flatnonzero(changed).tolist()) <= set(window)
    assert read.fed == len(window) and not read.refreshed
    assert read.cell.tolist() == [0, 2, 3][: 2 + model.shift]  # cell 3 is read at the last place of the block
    # Cells 0 and 2 see the current block, and everything else as the first pass left it.
    again = model.open([PROMPT], 9, block=3)
    again.fill([1], [8])
    (whole,) = again.forward(EMPTY)
    assert (read.logits[:2] - whole.logits[:2]).abs().nan_to_num(
        0
    ).max() > 1e-4  # unlike a plain pass: other rows are stale


def test_the_place_before_the_block_is_computed_while_it_tells_a_masked_cell() -> None:
    context = tiny(1, 1).open([PROMPT], 6, block=3, cache="dual", refresh=20)
    context.forward(EMPTY)
    context.fill([2], [8])
    assert context.forward(EMPTY)[0].fed == 4
    context.fill([0], [8])
    assert context.forward(EMPTY)[0].fed == 3


def test_a_refresh_comes_after_so_many_tokens(model: Diffusion) -> None:
    context = model.open([PROMPT], 8, block=4, cache="dual", refresh=3)
    seen = []
    for cell in range(7):
        read = context.forward(EMPTY)[0]
        seen.append(read.refreshed)
        assert context.room() == 3 - cell % 3 or context.room() == 8 - cell
        if read.refreshed:
            close(read.logits, plain(context.model, context.tokens[0])[4 + read.cell], PLAIN)
        context.fill([cell], [7])
    assert seen == [True, False, False, True, False, False, True]


def test_behind_a_border_the_last_token_placed_is_computed_anew(model: Diffusion) -> None:
    context = model.open([PROMPT], 6, block=2, cache="dual", refresh=20)
    context.forward(EMPTY)
    context.fill([1], [8])
    context.forward(EMPTY)
    context.fill([0], [9])
    before = rows_of(context)
    (read,) = context.forward(EMPTY)
    changed = (before != rows_of(context)).any(-1).any(-2).any(0).any(0)
    assert read.block.tolist() == [1]
    assert set(np.flatnonzero(changed)) >= {4, 6, 7}  # cell 0 and the block; if shifted, cell 1 too
    assert changed[5] == bool(model.shift)


@pytest.mark.parametrize("block", [2, 4, 9])
@pytest.mark.parametrize("refreshing", [True, False])
def test_packed_canvases_are_the_passes_one_by_one(model: Diffusion, block: int, refreshing: bool) -> None:
    """A chain across blocks with one more leaf: each canvas equals a single pass over its own state."""
    tokens, cells = [7, 8, 9, 1], [1, 0, 2, 3]

    def opened():
        context = model.open([PROMPT], 9, block=block, cache="dual", refresh=50, canvases=5)
        if not refreshing:
            context.forward(EMPTY)
            context.fill([4 if block > 4 else 1], [6])
        return context

    if not refreshing and block <= 4:
        tokens, cells = tokens[1:], cells[1:]
    n = len(cells)
    packed = opened()
    parents = [*range(-1, n - 1), -1]
    (read,) = packed.forward(draft(parents, [*cells, cells[1]], [*tokens, tokens[1]]))
    one = opened()
    for at in range(-1, n):
        if at >= 0:
            one.fill([cells[at]], [tokens[at]])
        (alone,) = one.forward(EMPTY)
        mine = read.canvas == at
        known = np.isin(alone.cell, read.cell[mine])
        assert known.all() and mine.sum() == len(alone.cell)
        close(read.logits[mine], alone.logits)
    packed.commit(list(range(n)))
    close(rows_of(packed), rows_of(one))
    assert packed.tokens == one.tokens and packed.since == one.since
    leaf = opened()
    leaf.forward(EMPTY)
    leaf.fill([cells[1]], [tokens[1]])
    close(read.logits[read.canvas == n], leaf.forward(EMPTY)[0].logits)


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_rows_of_a_batch_are_their_single_selves(model: Diffusion, cache: str) -> None:
    prompts = [PROMPT, [1, 2], [12, 3, 4, 5, 6, 7]]
    policy = {"block": 3, "cache": cache, "refresh": 4, "canvases": 2}
    drafts = [draft([-1, 0], [0, 1], [7, 8]), EMPTY, draft([-1], [2], [1])]
    paths: list[list[int]] = [[0, 1], [], []]
    together = model.open(prompts, 7, **policy)
    singles = [model.open([prompt], 7, **policy) for prompt in prompts]
    for taking in ([0, 1, 2], [0, 2], [0, 1, 2], [1]):
        reads = together.forward([drafts[row] for row in taking], taking)
        for row, read in zip(taking, reads):
            (alone,) = singles[row].forward(drafts[row])
            close(read.logits, alone.logits)
            assert read.cell.tolist() == alone.cell.tolist() and read.refreshed == alone.refreshed
            together.commit(paths[row], row)
            singles[row].commit(paths[row])
            placed = [int(drafts[row].positions[node]) for node in paths[row]]
            assert not together.open_cells(row)[placed].any()
            cell = int(together.open_cells(row).argmax())
            together.fill([cell], [9], row)
            singles[row].fill([cell], [9])
            drafts[row], paths[row] = EMPTY, []
            assert together.tokens[row] == singles[row].tokens[0]


def test_rows_side_by_side_are_read_without_a_copy() -> None:
    context = tiny(1).open([PROMPT] * 4, 4, block=4, cache="dual", refresh=4, canvases=2)
    for rows, copied in (([0, 1, 2, 3], False), ([0, 1], False), ([2, 3], False), ([0, 2], True)):
        context.forward([EMPTY] * len(rows), rows)
        read, stored = (
            data.untyped_storage().data_ptr() for data in (context.store.read[0], context.store.data)
        )
        assert (read != stored) == copied


def test_what_does_not_fit_is_said(model: Diffusion) -> None:
    with pytest.raises(PromptError, match="the prompt is empty"):
        model.open([[]], 4)
    with pytest.raises(PromptError, match="4 tokens, and 61 more cells exceed the 64 positions of tiny"):
        model.open([PROMPT], 61)
    with pytest.raises(PromptError, match="token id 99 is outside tiny's vocabulary of 37"):
        model.open([[99]], 4)
    context = model.open([PROMPT], 4)
    context.fill([1], [7])
    with pytest.raises(ModelError, match="not all masked"):
        context.fill([1], [7])
    with pytest.raises(ModelError, match="named twice"):
        context.fill([2, 2], [7, 8])
    with pytest.raises(ModelError, match="cells that are not masked"):
        context.forward(draft([-1], [1], [8]))
    with pytest.raises(ModelError, match="commit must follow forward"):
        context.commit([])
    context.forward(draft([-1, -1], [0, 2], [8, 8]))
    with pytest.raises(ModelError, match="not a path from the root"):
        context.commit([0, 1])
    with pytest.raises(ModelError, match="mask token 37 is outside its vocabulary of 37"):
        Diffusion(model.net, name="tiny", mask=37)
