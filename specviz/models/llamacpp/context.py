"""The causal context over llama.cpp: rows of text in shared cells, a tree as one sequence a leaf.

Row r is sequence r. A chain's nodes are more tokens of its row. A tree has a sequence for each leaf: a node
belongs to those of all leaves below it, and so do the row's own tokens while the tree is judged, so that each
leaf's sequence is one whole text. Committing a path gives its nodes to the row and forgets the leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from specviz.draft import Draft
from specviz.errors import ModelError, PromptError
from specviz.models.context import Pass
from specviz.models.llamacpp.native import SEQUENCES, Native

if TYPE_CHECKING:
    from specviz.models.llamacpp.model import LlamaCpp


NONE = np.empty(0, np.int64)


class LlamaCppContext:
    """Rows of committed text over a GGUF file; made by `LlamaCpp.open`.

    The verbs are those of `specviz.models.Context`.

    Attributes
    ----------
    length : list of int
        Committed tokens of each row.
    cached : list of int
        How many of them have their keys and values in the cells; the rest are computed by the next pass.
    """

    def __init__(self, model: LlamaCpp, prompts: Sequence[Sequence[int]], room: int) -> None:
        if not prompts or any(len(prompt) == 0 for prompt in prompts):
            raise PromptError("the prompt is empty; give at least one token")
        longest = max(len(prompt) for prompt in prompts)
        if longest > model.max_length:
            raise PromptError(
                f"the prompt has {longest} tokens, but {model.name} takes at most {model.max_length}"
            )
        if len(prompts) > SEQUENCES:
            raise ModelError(
                f"llama.cpp decodes at most {SEQUENCES} rows at once, got {len(prompts)}: open fewer"
            )
        self.model = model
        self.rows = len(prompts)
        self.slots = longest + room
        self.length = [len(prompt) for prompt in prompts]
        self.cached = [0] * self.rows
        self._drafts: list[Draft] | None = None
        self._leaves: list[
            list[int]
        ] = []  # of each row's open draft: the first node below each sequence's end
        self._ids = np.zeros((self.rows, self.slots), np.int32)
        for row, prompt in enumerate(prompts):
            self._ids[row, : len(prompt)] = _checked(prompt, model)
        self.native: Native = model.take(self.rows * self.slots, self.rows)

    # -- what is committed --------------------------------------------------------------------

    @property
    def tokens(self) -> list[list[int]]:
        """The committed tokens of each row."""
        return [self._ids[row, :length].tolist() for row, length in enumerate(self.length)]

    @property
    def room(self) -> int:
        """How many more tokens fit behind the longest row, draft nodes included."""
        return min(self.slots, self.model.max_length) - max(self.length)

    def extend(self, tokens: Any) -> None:
        """Commit tokens that no draft held; they are computed by the next pass.

        Parameters
        ----------
        tokens : list of lists of int, one for each row (an empty list leaves its row as it is)
            For a context of one row also a flat list or a tensor.

        Raises
        ------
        ModelError
            If the tokens do not fit into the room that `open` was asked for.
        """
        if self.rows == 1 and (torch.is_tensor(tokens) or not nested(tokens)):
            tokens = [tokens]
        if len(tokens) != self.rows:
            raise ModelError(f"extend got tokens for {len(tokens)} rows; the context has {self.rows}")
        checked = [_checked(new, self.model) for new in tokens]
        for row, new in enumerate(checked):
            self._fits(row, len(new), len(new))
        self._drop()
        for row, new in enumerate(checked):
            end = self.length[row] + len(new)
            self._ids[row, self.length[row] : end] = new
            self.length[row] = end

    def commit(self, paths: Sequence[Any]) -> None:
        """Keep these nodes of the drafts just read, drop the others.

        Parameters
        ----------
        paths : list of lists of int, one for each row
            Node indices from the first level down; empty keeps nothing. One row also takes a flat list.

        Raises
        ------
        ModelError
            If no draft is open or the nodes are not a path from the root.
        """
        drafts = self._drafts
        if drafts is None:
            raise ModelError("commit follows forward: there is no draft to keep nodes of")
        if self.rows == 1 and not nested(paths):
            paths = [paths]
        if len(paths) != self.rows:
            raise ModelError(f"commit got paths for {len(paths)} rows; the context has {self.rows}")
        for row, path in enumerate(paths):
            if any(drafts[row].parents[node] != before for before, node in zip([-1, *path], path)):
                raise ModelError(f"commit of row {row}: nodes {list(path)} are not a path from the root")
        for row, path in enumerate(paths):
            if len(path):
                start, end = self.length[row], self.length[row] + len(path)
                nodes = np.asarray(path, np.int64)
                self._ids[row, start:end] = _host(drafts[row].tokens)[nodes]
                if sequences := self._leaves[row]:
                    below = drafts[row].mask[_ends(drafts[row]), nodes[-1]]
                    self.native.copy(sequences[int(below.argmax())], row, start, end)
                self.length[row] = self.cached[row] = end
        self._drop()

    def rewind(self, length: int | Sequence[int]) -> None:
        """Forget everything past the first `length` tokens (one number, or one for each row)."""
        lengths = [length] * self.rows if isinstance(length, int) else list(length)
        for row, (new, old) in enumerate(zip(lengths, self.length, strict=True)):
            if not 1 <= new <= old:
                raise ModelError(
                    f"rewind of row {row} to {new} tokens: it holds {old}, and at least 1 must stay"
                )
        self._drop()
        for row, new in enumerate(lengths):
            if new < self.cached[row]:
                self.native.remove(row, new)
                self.cached[row] = new
        self.length = lengths

    def reserve(self, room: int) -> None:
        """Make sure that `room` more tokens fit behind the longest row; what is computed stays.

        The room grows by doubling, up to the model's `max_length`; of one row's the cells are there already.

        Raises
        ------
        ModelError
            If there is no memory for the cells.
        """
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
        """Another context, each row of which is a first part of this one's text, as far as it is computed.

        Parameters
        ----------
        lengths : list of int
            For each row how many of the committed tokens it begins with.
        room : int
            As `LlamaCpp.open` takes it.

        Raises
        ------
        ModelError
            If this context has several rows or fewer tokens, or there is no memory for the cells.
        """
        if self.rows != 1 or not 1 <= min(lengths) <= max(lengths) <= self.length[0]:
            raise ModelError(
                f"branch takes lengths from 1 to {self.length[0]} of a context of one row; this one has "
                f"{self.rows}"
            )
        self._drop()
        text = self.tokens[0]
        branch = LlamaCppContext(self.model, [text[:length] for length in lengths], room)
        branch.cached = [min(self.cached[0], length) for length in lengths]
        if any(branch.cached):
            self.native.move(branch.native, 0)  # rows share the cells of what they have in common
            for row, count in enumerate(branch.cached):
                branch.native.copy(0, row, 0, count)
            branch.native.remove(0, branch.cached[0])
        return branch

    def close(self) -> None:
        """Give the cells back to the model, for its next context."""
        if self.native is not None:
            self.model.give(self.native)
            self.native = None  # type: ignore[assignment]

    # -- passes -----------------------------------------------------------------------------

    def prefill(self) -> int:
        """Compute all pending tokens but the last of each row, without logits; give how many were fed."""
        self._drop()
        before = sum(self.cached)
        self._advance([length - 1 for length in self.length])
        return sum(self.cached) - before

    def forward(self, drafts: Draft | Sequence[Draft], hidden: Sequence[int] = ()) -> Pass:
        """One pass over the pending tokens and the drafts' nodes.

        Parameters
        ----------
        drafts : Draft, or one for each row
            ``Draft.empty()`` reads the root alone.
        hidden : sequence of int
            Must be empty: llama.cpp does not give hidden states.

        Raises
        ------
        ModelError
            If nodes or positions go beyond the room or the model's context, a node stands elsewhere than at
            its depth, or the trees have more leaves than llama.cpp has sequences.
        """
        if isinstance(drafts, Draft):
            if self.rows == 1 and not len(drafts) and not len(hidden):
                return self._root(drafts)
            drafts = [drafts]
        if len(drafts) != self.rows:
            raise ModelError(f"forward got {len(drafts)} drafts for {self.rows} rows")
        if len(hidden):
            raise ModelError(
                f"{self.model.name} runs on llama.cpp, which gives no hidden states: a method that drafts "
                f"from "
                "the target's layers needs a folder in transformers' format"
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
        """A pass over what is pending of the one row, without nodes."""
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
        """Each draft's tokens, and of those that branch the leaves; refused is what llama.cpp cannot read."""
        tokens, ends = [NONE] * self.rows, [NONE] * self.rows
        for row, draft in enumerate(drafts):
            if not len(draft):
                continue
            tokens[row] = _checked(draft.tokens, self.model)
            if draft.is_chain:
                self._fits(row, len(draft), len(draft))
                continue
            self._fits(row, len(draft), draft.depth)
            if draft.positions is not None and not np.array_equal(draft.offsets, draft.depths):
                raise ModelError("llama.cpp reads a node at its depth; this draft places one elsewhere")
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
        """Write the pending tokens and the nodes into the batch: how many, and arrays that it points into."""
        native, at, free, kept = self.native, 0, self.rows, []
        self._drafts, self._leaves = drafts, [[]] * self.rows  # from here on there is something to drop
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
        """Write the sequences of a row's tokens: all for the row's own, of a node those of its leaves.

        `below` [leaves, nodes] says which nodes each leaf sees. Given back is the array of ids, into which
        the batch points.
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
        """With nothing pending the last committed token is fed again: the root needs its prediction."""
        for row, length in enumerate(self.length):
            if self.cached[row] == length:
                self.native.remove(row, length - 1)
                self.cached[row] = length - 1

    def _advance(self, ends: list[int]) -> None:
        """Compute each row's tokens up to `ends`, without logits, in passes of what one takes."""
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
        """Go on in another context of llama.cpp, with what is computed."""
        other = self.model.take(cells, sequences)
        for row, cached in enumerate(self.cached):
            if cached:
                self.native.move(other, row)
        self.model.give(self.native)
        self.native = other

    def _drop(self) -> None:
        """Forget what is left of the drafts just read."""
        if self._drafts is None:
            return
        for row, draft in enumerate(self._drafts):
            for leaf in self._leaves[row]:
                self.native.remove(leaf, 0)
            if len(draft) and not self._leaves[row]:
                self.native.remove(row, self.cached[row])
        self._drafts, self._leaves = None, []

    def _fits(self, row: int, tokens: int, reach: int) -> None:
        if self.length[row] + tokens > self.slots:
            raise ModelError(
                f"row {row} holds {self.length[row]} of {self.slots} tokens; {tokens} more do not fit: "
                "open with more room"
            )
        if self.length[row] + reach > self.model.max_length:
            raise ModelError(
                f"{self.model.name} takes at most {self.model.max_length} tokens; position "
                f"{self.length[row] + reach - 1} is beyond that"
            )


def _ends(draft: Draft) -> np.ndarray:
    """Nodes of a draft that have no child."""
    leaf = np.ones(len(draft) + 1, bool)
    leaf[draft.parents] = False  # the root's -1 is the entry behind the last node
    return np.flatnonzero(leaf[:-1])


def nested(values: Sequence[Any]) -> bool:
    return (
        len(values) > 0
        and not isinstance(values[0], (int, np.integer))
        and not (torch.is_tensor(values[0]) and not values[0].ndim)
    )


def _host(tokens: Any) -> np.ndarray:
    return tokens.cpu().numpy() if torch.is_tensor(tokens) else np.asarray(tokens, np.int64)


def _checked(tokens: Any, model: LlamaCpp) -> Any:
    """Tokens on the host, each of them in the vocabulary."""
    if not isinstance(tokens, list):
        tokens = _host(tokens)
    if len(tokens):
        low, high = (min(tokens), max(tokens)) if isinstance(tokens, list) else (tokens.min(), tokens.max())
        if not 0 <= low <= high < model.vocabulary:
            wrong = int(high if high >= model.vocabulary else low)
            raise PromptError(f"token id {wrong} is outside {model.name}'s vocabulary of {model.vocabulary}")
    return tokens
