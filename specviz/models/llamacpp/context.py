"""The causal context over llama.cpp: rows of text in shared cells, and trees with one sequence per leaf.

Row r is sequence r. A chain's nodes are additional tokens of its row. A tree has one sequence per leaf: a
node belongs to the sequences of all leaves below it, and during verification the row's own tokens belong to
all of them, so that each leaf's sequence is a complete text. Committing a path adds its nodes to the row and
removes the leaves' sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from specviz.draft import Draft
from specviz.errors import ModelError, plural
from specviz.models.context import Pass, check_fits, check_ids, check_path, for_rows, longest
from specviz.models.llamacpp.native import SEQUENCES, Native

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from specviz.models.llamacpp.model import LlamaCpp
    from specviz.models.protocols import Path, Tokens

NONE = np.empty(0, np.int64)


class LlamaCppContext:
    """A batch of rows of committed text over a GGUF file; created by `LlamaCpp.open`.

    The methods are those of `specviz.models.Context`.

    Attributes
    ----------
    length : list of int
        Committed tokens of each row.
    cached : list of int
        How many of them have keys and values in the cells; the next pass computes the rest.
    """

    def __init__(self, model: LlamaCpp, prompts: Sequence[Sequence[int]], room: int) -> None:
        length = longest(prompts, model.max_length, model.name)
        if len(prompts) > SEQUENCES:
            raise ModelError(
                f"llama.cpp decodes at most {SEQUENCES} rows at once, got {len(prompts)}: open fewer"
            )
        self.model = model
        self.rows = len(prompts)
        self.slots = length + room
        self.length = [len(prompt) for prompt in prompts]
        self.cached = [0] * self.rows
        self._drafts: list[Draft] | None = None
        self._leaves: list[list[int]] = []  # for each row's open draft, one sequence per leaf
        self._ids = np.zeros((self.rows, self.slots), np.int32)
        for row, prompt in enumerate(prompts):
            self._ids[row, : len(prompt)] = _checked(prompt, model)
        self.native: Native = model.take(self.rows * self.slots, self.rows)

    # -- committed text -----------------------------------------------------------------------

    @property
    def tokens(self) -> list[list[int]]:
        """The committed tokens of each row."""
        return [self._ids[row, :length].tolist() for row, length in enumerate(self.length)]

    @property
    def room(self) -> int:
        """Number of tokens that still fit after the longest row, draft nodes included."""
        return min(self.slots, self.model.max_length) - max(self.length)

    def extend(self, tokens: Tokens | Sequence[Tokens]) -> None:
        """See `Context.extend`; always for all rows."""
        each = for_rows(tokens, self.rows)
        if len(each) != self.rows:
            raise ModelError(f"extend got tokens for {plural(len(each), 'row')}; the context has {self.rows}")
        checked = [_checked(new, self.model) for new in each]
        for row, new in enumerate(checked):
            check_fits(self, row, self.length[row], len(new), len(new))
        self._drop()
        for row, new in enumerate(checked):
            end = self.length[row] + len(new)
            self._ids[row, self.length[row] : end] = new
            self.length[row] = end

    def commit(self, paths: Path | Sequence[Path]) -> None:
        """See `Context.commit`; always for all rows."""
        drafts = self._drafts
        if drafts is None:
            raise ModelError("commit must follow forward: there is no draft to keep nodes of")
        each = for_rows(paths, self.rows)
        if len(each) != self.rows:
            raise ModelError(f"commit got paths for {plural(len(each), 'row')}; the context has {self.rows}")
        nodes_of = [_host(path) for path in each]
        for row, nodes in enumerate(nodes_of):
            check_path(drafts[row], nodes.tolist(), row)
        for row, nodes in enumerate(nodes_of):
            if len(nodes):
                start, end = self.length[row], self.length[row] + len(nodes)
                self._ids[row, start:end] = _host(drafts[row].tokens)[nodes]
                if sequences := self._leaves[row]:
                    below = drafts[row].mask[_ends(drafts[row]), nodes[-1]]
                    self.native.copy(sequences[int(below.argmax())], row, start, end)
                self.length[row] = self.cached[row] = end
        self._drop()

    def rewind(self, length: int | Sequence[int]) -> None:
        """Drop everything after the first `length` tokens (one number, or one per row)."""
        lengths = [length] * self.rows if isinstance(length, int) else list(length)
        for row, (new, old) in enumerate(zip(lengths, self.length, strict=True)):
            if not 1 <= new <= old:
                raise ModelError(
                    f"rewind of row {row} to {new} tokens: it holds {old}, and at least 1 must remain"
                )
        self._drop()
        for row, new in enumerate(lengths):
            if new < self.cached[row]:
                self.native.remove(row, new)
                self.cached[row] = new
        self.length = lengths

    def reserve(self, room: int) -> None:
        """See `Context.reserve`; a single row already has all its cells."""
        want = min(max(self.length) + room, self.model.max_length)
        if want <= self.slots:
            return
        self._drop()
        self.slots = min(self.model.max_length, max(want, 2 * self.slots))
        if self.rows * self.slots > self.native.cells:
            self._move(self.rows * self.slots, self.native.sequences)
        ids = np.zeros((self.rows, self.slots), np.int32)
        ids[:, : self._ids.shape[1]] = self._ids
        self._ids = ids

    def branch(self, lengths: Sequence[int], room: int) -> LlamaCppContext:
        """See `Context.branch`; the rows share the cells of their common prefix."""
        if self.rows != 1 or not 1 <= min(lengths) <= max(lengths) <= self.length[0]:
            raise ModelError(
                f"branch takes lengths from 1 to {self.length[0]} and needs a context of one row; this one "
                f"has {self.rows}"
            )
        self._drop()
        text = self.tokens[0]
        branch = LlamaCppContext(self.model, [text[:length] for length in lengths], room)
        branch.cached = [min(self.cached[0], length) for length in lengths]
        if any(branch.cached):
            self.native.move(branch.native, 0)
            for row, count in enumerate(branch.cached):
                branch.native.copy(0, row, 0, count)
            branch.native.remove(0, branch.cached[0])
        return branch

    def close(self) -> None:
        """Return the cells to the model for its next context."""
        if self.native is not None:
            self.model.give(self.native)
            self.native = None  # type: ignore[assignment]

    # -- passes -----------------------------------------------------------------------------

    def prefill(self) -> int:
        """Compute every pending token except the last of each row, without logits; return the number fed."""
        self._drop()
        before = sum(self.cached)
        self._advance([length - 1 for length in self.length])
        return sum(self.cached) - before

    def forward(self, drafts: Draft | Sequence[Draft], hidden: Sequence[int] = ()) -> Pass:
        """See `Context.forward`; always for all rows, without hidden states or an exit rule.

        Raises
        ------
        ModelError
            If nodes or positions exceed the room or the model's context, a node's position is not its depth,
            the pass or the number of leaves is too large for llama.cpp, or hidden states are requested.
        """
        if isinstance(drafts, Draft):
            if self.rows == 1 and not len(drafts) and not len(hidden):
                return self._root(drafts)
            drafts = [drafts]
        if len(drafts) != self.rows:
            raise ModelError(f"forward got {plural(len(drafts), 'draft')} for {plural(self.rows, 'row')}")
        if len(hidden):
            raise ModelError(
                f"{self.model.name} runs on llama.cpp, which provides no hidden states: a method that "
                f"drafts from the target's layers needs a folder in transformers' format"
            )
        drafts = list(drafts)
        tokens, ends = self._legal(drafts)
        self._drop()
        self._again()
        sequences = self.rows + sum(map(len, ends))
        if sequences > self.native.sequences:
            self._move(self.native.cells, sequences)
        nodes = sum(map(len, drafts))
        each = [a - b + len(d) for a, b, d in zip(self.length, self.cached, drafts)]
        fed = sum(each)
        if fed > self.native.batch:
            self._advance([length - 1 for length in self.length])
        count, kept = self._enter(drafts, tokens, ends)
        self.native.decode(count)
        del kept
        self.cached = self.length[:]
        logits = self.native.logits(self.rows + nodes)
        if self.rows == 1:
            return Pass([logits], [fed], {})
        return Pass(list(logits.split([1 + len(draft) for draft in drafts])), each, {})

    def _root(self, draft: Draft) -> Pass:
        """Run a pass over the pending tokens of the only row, without nodes."""
        self._drop()
        self._again()
        length = self.length[0]
        fed = length - self.cached[0]
        if fed > self.native.batch:
            self._advance([length - 1])
        if length - self.cached[0] == 1:
            logits = self.native.one(self._ids[0, length - 1], length - 1)
        else:
            self.native.decode(self._enter([draft], [NONE], [NONE])[0])
            logits = self.native.logits(1)
        self.cached[0] = length
        self._drafts, self._leaves = [draft], [[]]
        return Pass([logits], [fed], {})

    def _legal(self, drafts: list[Draft]) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Each draft's tokens, and the leaves of trees; raise `ModelError` if llama.cpp cannot read them."""
        tokens, ends = [NONE] * self.rows, [NONE] * self.rows
        for row, draft in enumerate(drafts):
            if not len(draft):
                continue
            tokens[row] = _checked(draft.tokens, self.model)
            if draft.is_chain:
                check_fits(self, row, self.length[row], len(draft), len(draft))
                continue
            check_fits(self, row, self.length[row], len(draft), draft.depth)
            if draft.positions is not None and not np.array_equal(draft.offsets, draft.depths):
                raise ModelError("llama.cpp reads a node at its depth, but this draft places one elsewhere")
            ends[row] = _ends(draft)
        leaves, width = sum(map(len, ends)), self.rows + sum(map(len, tokens))
        if self.rows + leaves > SEQUENCES:
            raise ModelError(
                f"the draft has {leaves} leaves; llama.cpp has {SEQUENCES} sequences, {self.rows} of them in "
                "use: draft a narrower tree"
            )
        if width > self.native.batch:
            raise ModelError(
                f"a pass of {width} tokens through {self.model.name}; llama.cpp takes {self.native.batch}: "
                "draft fewer"
            )
        return tokens, ends

    def _enter(
        self, drafts: list[Draft], tokens: list[np.ndarray], ends: list[np.ndarray]
    ) -> tuple[int, list[np.ndarray]]:
        """Write pending tokens and nodes into the batch; return their number, and arrays it points into."""
        native, at, free, kept = self.native, 0, self.rows, []
        self._drafts, self._leaves = drafts, [[]] * self.rows  # set first, for `_drop` after an error
        for row, draft in enumerate(drafts):
            start, length = self.cached[row], self.length[row]
            root = at + length - start
            end = root + len(draft)
            native.tokens[at:root] = self._ids[row, start:length]
            native.positions[at:root] = native.places[start:length]
            native.outputs[at : root - 1] = 0
            native.outputs[root - 1 : end] = 1
            native.tokens[root:end] = tokens[row]
            if not len(ends[row]):
                native.positions[root:end] = native.places[length : length + end - root]
                native.counts[at:end] = 1
                native.lists[at:end] = native.alone[row]
            else:
                native.positions[root:end] = draft.depths + (length - 1)
                self._leaves[row] = leaves = list(range(free, free + len(ends[row])))
                free += len(leaves)
                for leaf in leaves:
                    native.copy(row, leaf, 0, -1)
                kept.append(self._mark(row, leaves, draft.mask[ends[row]], at, root))
            at = end
        return at, kept

    def _mark(self, row: int, leaves: list[int], below: np.ndarray, at: int, root: int) -> np.ndarray:
        """Write the sequences of a row's tokens: all sequences for the row's own, and its leaves' for a node.

        `below` [leaves, nodes] says which nodes each leaf sees. Returns the array of ids, into which the
        batch points.
        """
        native, n = self.native, below.shape[1]
        node, leaf = np.nonzero(below.T)
        ids = np.concatenate([[row, *leaves], leaf + leaves[0]]).astype(np.int32)
        count = np.bincount(node, minlength=n)
        first = 1 + len(leaves) + np.cumsum(count) - count
        base = ids.ctypes.data
        native.counts[at:root], native.lists[at:root] = 1 + len(leaves), base
        native.counts[root : root + n] = count
        native.lists[root : root + n] = base + 4 * first.astype(np.uintp)
        return ids

    def _again(self) -> None:
        """Make the last committed token pending if no token is, to get the root's prediction."""
        for row, length in enumerate(self.length):
            if self.cached[row] == length:
                self.native.remove(row, length - 1)
                self.cached[row] = length - 1

    def _advance(self, ends: list[int]) -> None:
        """Compute each row's tokens up to `ends`, without logits, in as many passes as necessary."""
        native, at = self.native, 0
        native.outputs[:] = 0
        for row, end in enumerate(ends):
            while (start := self.cached[row]) < end:
                count = min(end - start, native.batch - at)
                native.tokens[at : at + count] = self._ids[row, start : start + count]
                native.positions[at : at + count] = native.places[start : start + count]
                native.counts[at : at + count], native.lists[at : at + count] = 1, native.alone[row]
                self.cached[row], at = start + count, at + count
                if at == native.batch:
                    native.decode(at)
                    at = 0
        if at:
            native.decode(at)

    def _move(self, cells: int, sequences: int) -> None:
        """Move to another context of llama.cpp, keeping the computed cells."""
        other = self.model.take(cells, sequences)
        for row, cached in enumerate(self.cached):
            if cached:
                self.native.move(other, row)
        self.model.give(self.native)
        self.native = other

    def _drop(self) -> None:
        """Remove the uncommitted nodes of the drafts last read."""
        if self._drafts is None:
            return
        for row, draft in enumerate(self._drafts):
            for leaf in self._leaves[row]:
                self.native.remove(leaf, 0)
            if len(draft) and not self._leaves[row]:
                self.native.remove(row, self.cached[row])
        self._drafts, self._leaves = None, []


def _ends(draft: Draft) -> np.ndarray:
    """Nodes of a draft without children."""
    leaf = np.ones(len(draft) + 1, bool)
    leaf[draft.parents] = False  # -1, the root, refers to the additional last entry
    return np.flatnonzero(leaf[:-1])


def _host(tokens: Tokens) -> NDArray[np.int64]:
    return tokens.cpu().numpy() if isinstance(tokens, torch.Tensor) else np.asarray(tokens, np.int64)


def _checked(tokens: Tokens, model: LlamaCpp) -> NDArray[np.int64]:
    """Copy tokens to the host and check that they are in the vocabulary."""
    values = _host(tokens)
    if len(values):
        check_ids(values.min(), values.max(), model)
    return values
