"""EAGLE: a layer trained on the target's hidden states drafts a tree, level by level.

Li et al. 2024 (EAGLE-1: features, a static tree), Li et al. 2024 (EAGLE-2: the tree grows where the drafter
is confident), Li et al. 2025 (EAGLE-3: fused layers). The drafter determines the generation of the weights
(`specviz.models.eagle`), and the parameter ``tree`` the tree.

When greedy, a node's score is the drafter's confidence in its path, including the node's own token (EAGLE-2,
section 4). When sampling, every child is drawn from the drafter's distribution q, siblings without
replacement. Verification (`specviz.methods.tree.judge_drawn`) is exact only if the drawn token does not
decide whether its node is grown or sent: if unlikely tokens were dropped, the others would no longer follow
q. So when sampling, the score does not depend on the draw: it is the confidence in the path above, times the
share of q that earlier siblings left.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..draft import Draft
from ..errors import ParameterError
from ..models.devices import send
from ..models.layers import over_all
from ..models.protocols import Model, Pass
from ..paths import expanded, folder
from ..rules.parameters import Value
from ..schema import Signal
from .base import Parameter, Session, Unsent, Verdict
from .kinds import SampledTreeMethod
from .sampling import ACCEPT, DRAFT, FINAL, Sampling, exact_type, located
from .template import MOST, Template, read
from .tree import bring, judge, judge_drawn

if TYPE_CHECKING:
    from ..models.eagle_model import EagleModel

WIDEST = 64  # maximum number of children of a node


class Eagle(SampledTreeMethod):
    """A small layer reads the target's hidden states and continues them by itself."""

    name = "eagle"
    trees = True
    title = "EAGLE"
    paper = "Li et al. 2024, 2024, 2025"
    parameters = (
        Parameter(
            "draft_size", 24, 1, MOST, "tokens",
            "Number of nodes sent, without the root; default for a static tree: all. On a CPU few nodes pay, "
                "such as 3 with depth=2 and branches=2.", "g",
        ),
        Parameter(
            "tree", "dynamic", choices=("dynamic", "static"),
            meaning="dynamic: grown where the drafter is confident (EAGLE-2, 3); static: the same in every "
                "cycle (EAGLE-1).",
        ),
        Parameter(
            "depth", 6, 1, 64, "tokens", "Maximum number of levels; default for a static tree: its "
                "template's.", "d"
        ),
        Parameter(
            "branches", 10, 1, WIDEST, "tokens",
            "Maximum number of children per node and of nodes read per level; default for a static tree: "
            "its template's.",
            "k",
        ),
        Parameter(
            "template", "",
            meaning="A static tree's JSON file of rank paths, such as [[0], [1], [0, 0]]; empty: EAGLE-1's "
                "25.",
        ),
    )  # fmt: skip
    signals = (Signal("candidates", "nodes", "Number of nodes grown, sent or not.", "cycle"),)
    pseudocode = (
        ("", "repeat until the text ends:"),
        ("draft", "    read (f_i, x_i+1) of the new tokens"),
        ("draft", "    level 1 = k children of x_t, by q"),
        ("draft", "    for level = 2 .. d:"),
        ("draft", "        read the k best nodes, with their own f̂ for f"),
        ("draft", "        each gets k children"),
        ("draft:unsent", "    T = the g nodes of highest score"),
        ("forward", "    p, f = target(text + T)   # one pass"),
        ("verify", "    from the root down, as long as a child survives:"),
        ("verify:accepted", "        x is the target's own, or u < p(x)/q(x)"),
        ("verify:rejected", "        x rejected; sampling: p = max(0, p−q), q less x"),
        ("commit:bonus", "    no children left: one more from p, the bonus"),
        ("commit:correction", "    all rejected, greedy: what the target writes"),
        ("commit:resampled", "    all rejected, sampling: from the rest of p"),
        ("commit", "    text = text + path + [this token]"),
    )
    needs_draft = True
    drafts_with = "eagle"
    reads_prompt = True
    law_check_params: ClassVar[dict[str, Value]] = {"draft_size": 2, "depth": 1, "branches": 3}
    size = "draft_size"
    draft_size: int
    tree: str
    depth: int
    branches: int
    template: str

    def __init__(self, **values: Value) -> None:
        super().__init__(**values)
        self.paths = []
        if self.tree == "static":
            named = self.template or folder("templates") / "eagle.json"
            paths = read(expanded(named, ParameterError), WIDEST)
            deep, wide = max(map(len, paths)), 1 + max(map(max, paths))
            own = {"draft_size": len(paths), "depth": deep, "branches": wide}
            for p in self.parameters:
                if p.name in own.keys() - values.keys():  # parameters not passed follow the template
                    setattr(self, p.name, p.check(own[p.name]))
            paths = [path for path in paths if len(path) <= self.depth and max(path) < self.branches]
            self.paths = paths[: self.draft_size]
        elif self.template:
            raise ParameterError("template is for a static tree: also pass tree='static'")
        self.extra_cache_slots = self.draft_size
        # The drafter also reads nodes that are not sent, and needs slots for them.
        self.reads = self.branches * (self.depth - 1) if self.tree == "dynamic" else len(self.paths)

    def guarantee(self, sampling: Sampling, dtype: str) -> str:
        return "exact up to ties" if sampling.greedy else "exact in law"

    def hidden_layers(self, drafter: Model | None) -> tuple[int, ...]:
        return tuple(cast("EagleModel", drafter).layers)

    def start(self, session: Session) -> None:
        self.session = session
        self.growth: Growth | None = None
        self.context = session.open(session.drafter, session.prompt, session.limit + self.reads, "draft")
        self.tokens = session.drafter.tokens
        self.widest = session.target.vocabulary if self.tokens is None else len(self.tokens)
        tree = Template([path for path in self.paths if max(path) < self.widest])
        self.ranks = ranked(tree, len(tree.levels))
        over = np.zeros(session.target.vocabulary, np.float32)
        over[[token for token in session.eos if token < len(over)]] = -np.inf
        self.over = send(over, session.target.device)
        self.new: tuple[Tensor, Tensor] | None = None
        if len(session.prompt) == 1:
            return
        # The prefill stops before the prompt's last token, which has no state yet.
        states = self._side_by_side(session.states)
        tokens = send(np.array(session.prompt[1:]), states.device)
        if len(tokens) > 1:
            self.context.read(tokens[:-1], states[:-1])
        self.new = tokens[-1:], states[-1:].clone()  # a view would keep all states in memory
        session.states = {}

    def _side_by_side(self, states: dict[int, Tensor]) -> Tensor:
        parts = [states[layer] for layer in self.session.drafter.layers]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    @torch.inference_mode()
    def draft(self, left: int) -> Draft:
        self.growth = None
        self.session.control.pop("candidates", None)
        if left < 2:
            return Draft.empty("room")
        if self.new is None:  # a prompt of one token: the target has no states yet
            return Draft.empty("none")
        if self.tree == "static" and not self.ranks:  # no path of the template fits the vocabulary
            return Draft.empty("none")
        state, logits = self.context.read(*self.new)
        given = self.session, self.context, self.over, self.tokens, state, logits
        if self.tree == "static":
            ranks = self.ranks[: left - 1]
            growth = Growth(*given, [each.kept.shape for each in ranks])
            growth.static(ranks)
        else:
            levels, k = min(self.depth, left - 1), min(self.branches, self.widest)
            growth = Growth(*given, [(1, k), *[(k, k)] * (levels - 1)])
            growth.dynamic(self.draft_size)
        self.growth = growth
        shallow = left <= (len(self.ranks) if self.tree == "static" else self.depth)
        draft, self.unsent = growth.cut(self.draft_size, "room" if shallow else "length")
        self.session.control |= {"candidates": growth.size}
        return draft

    def drawn(self) -> tuple[int, ...]:
        levels = [] if self.growth is None else self.growth.levels
        return tuple(token for level in levels for token in level.tokens.flatten().tolist())

    def verify(self, draft: Draft, scores: Tensor | None) -> Verdict:
        assert scores is not None
        session = self.session
        if session.sampling.greedy or not len(draft):
            verdict, _ = judge(draft, scores, session)
        else:
            u, last = session.uniforms(ACCEPT, len(draft)), float(session.uniforms(FINAL, 1)[0])
            verdict = judge_drawn(draft, scores, session.sampling, u, last)
        verdict.unsent = self.unsent if len(draft) else None
        return verdict

    def learn(self, draft: Draft, result: Pass | None, verdict: Verdict) -> None:
        """Replace the hidden states that the drafter estimated by the target's own."""
        assert result is not None
        rows = [0, *(node + 1 for node in verdict.path)]
        states = self._side_by_side({layer: rows[0] for layer, rows in result.hidden.items()})
        tokens = [*(verdict.tokens[node] for node in verdict.path), verdict.token]
        self.new = (
            send(np.array(tokens), states.device),
            states.index_select(0, send(np.array(rows), states.device)),
        )


@dataclass
class Level:
    """Children of the nodes read in one pass of the drafter, [m, k] each.

    Attributes
    ----------
    tokens, score : tensors [m, k]
        The score, a logarithm, ranks nodes to grow and send; it never rises from a parent to a child.
    sure : tensor [m, k]
        Logarithm of the drafter's confidence in the path that ends with the child; −inf after an end token,
        which nothing follows.
    parents : tensor [m]
        Indices of the nodes read, among all children so far; -1 is the root.
    logits : tensor [m, rows of the head]
        The drafter's prediction after each node that it read.
    q : tensor [m, vocabulary] or None
        The distribution from which the first child was drawn, when sampling.
    """

    tokens: Tensor
    score: Tensor
    sure: Tensor
    parents: Tensor
    logits: Tensor
    q: Tensor | None


class Growth:
    """A tree on the device, grown level by level; `cut` copies it to the host and selects what is sent.

    Parameters
    ----------
    session : Session
    context : EagleContext
        A context that has just read the text.
    over : tensor [vocabulary]
        −inf for tokens that end a text, else 0.
    tokens : tensor of int or None
        Token of each logit; None if the drafter's head covers the vocabulary.
    state, logits : tensors [1, width], [1, rows of the head]
        The drafter's state and prediction after the text.
    shapes : list of (int, int)
        For each level, from the first down: the maximum number of nodes read, and of children of each. When
        sampling, one uniform is taken for every possible child, whatever the other draws give.
    """

    def __init__(
        self, session: Session, context: Any, over: Tensor, tokens: Tensor | None, state: Tensor,
        logits: Tensor, shapes: list[tuple[int, ...]],
    ) -> None:  # fmt: skip
        self.sampling, self.context, self.over, self.shapes = session.sampling, context, over, shapes
        self.tokens, self.state, self.logits = tokens, state, logits
        self.parents = torch.full((1,), -1, device=logits.device)
        self.sure = logits.new_zeros(1)
        self.u: list[np.ndarray] | None = None
        if not session.sampling.greedy:
            ends = np.cumsum([m * k for m, k in shapes])
            self.u = np.split(session.uniforms(DRAFT, int(ends[-1])), ends[:-1])
        self.levels: list[Level] = []
        self.size = 0  # children so far
        self.nodes_read = 0  # how many of them the drafter has read

    def dynamic(self, g: int) -> None:
        """EAGLE-2, section 4.1: at each level, read the k best nodes and give each k children."""
        self._children()
        top = self.sure[:0]  # the g best scores so far
        for k, _ in self.shapes[1:]:
            last = self.levels[-1]
            worth = last.sure if self.u is None else last.score + self.over.take(last.tokens)
            value, best = (each[:k] for each in worth.flatten().sort(descending=True, stable=True))
            if value.device.type == "cpu":  # reading values needs no synchronisation there
                # Scores never rise, and of equal scores the earlier wins: a node not above the g-th best so
                # far has no child that would be sent. Neither has an end token.
                top = torch.cat((top, last.score.flatten()))
                top = top.topk(min(g, len(top))).values
                best = best[value > (top[-1] if len(top) == g else -torch.inf)]
                if not len(best):
                    return
            self._read(best)
            self._children()

    def static(self, levels: list[Ranks]) -> None:
        """EAGLE-1: read and grow the nodes of a template, whatever the drafter's confidence in them."""
        for number, ranks in enumerate(levels):
            if number:
                self._read(send(ranks.parents, self.logits.device))
            self._children()
            other = send(~ranks.kept, self.logits.device)
            self.levels[-1].score.masked_fill_(other, -torch.inf)

    def _read(self, best: Tensor) -> None:
        """Let the drafter read some children of the last level, given by their indices in it."""
        last = self.levels[-1]
        m, k = last.tokens.shape
        row = best.div(k, rounding_mode="floor")
        above = row + (self.nodes_read - m) if self.nodes_read else None  # among all nodes read; or the root
        self.parents = best + (self.size - m * k)
        self.sure = last.sure.take(best)
        self.nodes_read += len(best)
        self.state, self.logits = self.context.grow(
            last.tokens.take(best), self.state.index_select(0, row), above
        )

    def _children(self) -> None:
        """Add the k likeliest tokens after each node that was read, or k draws without replacement."""
        logits, base, q, number = self.logits, self.sure[:, None], None, len(self.levels)
        k = self.shapes[number][1]
        if self.u is None:
            p, tokens = logits.log_softmax(-1).topk(k)
            tokens = tokens if self.tokens is None else self.tokens.take(tokens)
            score = path = base + p
        else:
            u = self.u[number].reshape(-1, k)[: len(logits)]
            whole = over_all(logits, self.tokens, len(self.over))
            tokens, left, p, q = without_replacement(whole, self.sampling, u)
            score, path = base + left.log(), base + p.log()
        self.levels.append(Level(tokens, score, path + self.over.take(tokens), self.parents, logits, q))
        self.size += tokens.numel()

    def cut(self, g: int, stop: str) -> tuple[Draft, Unsent]:
        """A draft of the g nodes with the highest scores, and the other nodes read (EAGLE-2, section 4.2).

        `stop` is the reason why the tree is no deeper.
        """
        levels = self.levels
        token, score, parents = bring(
            torch.cat([each.tokens.flatten() for each in levels]),
            torch.cat([each.score.flatten() for each in levels]),
            torch.cat([each.parents for each in levels]),
        )
        # Rows are the nodes read, the root first: each one's number of children, and each child's row.
        wide = np.repeat([each.tokens.shape[1] for each in levels], [len(each.tokens) for each in levels])
        row = np.repeat(np.arange(len(wide)), wide)
        # Of equal scores the earlier child wins, so that none is sent without its parent.
        sent = np.sort(np.argsort(-score, kind="stable")[:g])
        sent = sent[score[sent] > -np.inf]
        place = np.full(self.size + 1, -2)
        place[-1] = -1
        place[sent] = np.arange(len(sent))
        more = parents[1:]
        more = more[(place[more] == -2) & (score[more] > -np.inf)]
        place[more] = len(sent) + np.arange(len(more))
        logits, head = [each.logits for each in levels], (self.tokens, len(self.over))
        first = np.cumsum(wide) - wide
        draft = Draft(
            token[sent].astype(np.int64),
            place[parents[row[sent]]],
            q=None if self.u is None else self._from(row[sent], sent - first[row[sent]]),
            logits=ChosenRows(logits, row[sent], *head),
            signals={"score": np.exp(score[sent])},
            stop="budget" if len(sent) == g else stop,
        )
        unsent = Unsent(
            token[more].tolist(),
            place[parents[row[more]]].tolist(),
            logits=ChosenRows(logits, row[more], *head),
            signals={"score": np.exp(score[more])},
        )
        return draft, unsent

    def _from(self, row: np.ndarray, rank: np.ndarray) -> Tensor:
        """Distributions of the children by row and rank: q without their elder siblings, [n, vocabulary]."""
        levels, device = self.levels, self.logits.device
        most = max(each.tokens.shape[1] for each in levels)
        at = send(row, device)
        tokens = torch.cat([F.pad(each.tokens, (0, most - each.tokens.shape[1])) for each in levels])[at]
        q = torch.cat([each.q for each in levels if each.q is not None])[at]
        elder = send(np.where(np.arange(most) < rank[:, None], 0.0, np.inf), device, q.dtype)
        q.scatter_reduce_(1, tokens, elder, "amin")
        return q / q.sum(-1, keepdim=True)


class ChosenRows(Sequence):
    """The drafter's predictions where each of n nodes was chosen, gathered only if they are recorded."""

    def __init__(
        self, logits: list[Tensor], rows: np.ndarray, tokens: Tensor | None, vocabulary: int
    ) -> None:
        self.logits, self.rows, self.tokens, self.vocabulary = logits, rows, tokens, vocabulary

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: Any) -> Any:
        rows = torch.cat(self.logits)[send(self.rows[i], self.logits[0].device)]
        return over_all(rows, self.tokens, self.vocabulary)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self[:].unbind())

    @staticmethod
    def distinct(parts: Sequence[ChosenRows]) -> tuple[list[Tensor], np.ndarray]:
        """The distinct rows of some parts of one tree, and the index of each node's row among them."""
        rows, chosen = np.unique(np.concatenate([part.rows for part in parts]), return_inverse=True)
        one = parts[0]
        return list(ChosenRows(one.logits, rows, one.tokens, one.vocabulary)), chosen


def without_replacement(
    logits: Tensor, sampling: Sampling, u: np.ndarray | Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw k different tokens after each of m nodes, one after another.

    Parameters
    ----------
    logits : tensor [m, vocabulary]
    u : array [m, k]
        Uniforms.

    Returns
    -------
    tokens : tensor of int [m, k]
    left : tensor [m, k]
        Share of q left before each draw; 0: there was nothing to draw, and the token is meaningless.
    p : tensor [m, k]
        Probability of each token under q.
    q : tensor [m, vocabulary]
    """
    q = sampling.probabilities(logits)
    m, vocabulary = q.shape
    # Tokens are grouped in blocks: a draw sums the blocks, then the tokens of one, not all tokens.
    wide = math.isqrt(vocabulary - 1) + 1
    rest = q.new_zeros(m, -(-vocabulary // wide) * wide, dtype=exact_type(q.device))
    rest[:, :vocabulary] = q
    rest = rest.view(m, -1, wide)
    mass, row = rest.sum(-1), torch.arange(m, device=q.device)[:, None]
    tokens, left, p = [], [], []
    for each in send(u, q.device, rest.dtype).split(1, 1):
        sums = mass.cumsum(-1)
        block = located(sums, each).clamp_(max=mass.shape[1] - 1)
        before = sums.gather(1, block) - mass.gather(1, block)
        some = rest[row, block][:, 0]
        inner = some.cumsum(-1)
        # Place of u within the block; rounding must not put it outside, where no token could be drawn.
        within = ((each * sums[:, -1:] - before) / inner[:, -1:]).clamp_(0, 1 - 2**-53)
        at = located(inner, within).clamp_(max=wide - 1)
        tokens.append((block * wide + at).clamp_(max=vocabulary - 1))
        left.append(sums[:, -1:])
        p.append(some.gather(1, at))
        some.scatter_(1, at, 0.0)
        rest[row, block] = some[:, None]
        mass.scatter_(1, block, some.sum(-1, keepdim=True))
    # At most 1: rounding must not rank a child before its parent.
    return torch.cat(tokens, 1), torch.cat(left, 1).clamp_(max=1).to(q.dtype), torch.cat(p, 1).to(q.dtype), q


@dataclass(frozen=True)
class Ranks:
    """A level of a template."""

    kept: np.ndarray  # bool [m, k]: which of the k likeliest children of each node read it has
    parents: np.ndarray  # int [m]: the nodes read, by index among the children of the level above


def ranked(template: Template, levels: int) -> list[Ranks]:
    """The first levels of a template, as `Growth.static` takes them."""
    ranks: list[Ranks] = []
    place: dict[int, int] = {}  # index of each node of the level above among the children there
    for level in template.levels[:levels]:
        parents = list(dict.fromkeys(level.above.tolist()))
        row = {node: i for i, node in enumerate(parents)}
        k = int(level.rank.max()) + 1
        kept = np.zeros((len(parents), k), bool)
        rows = np.array([row[node] for node in level.above.tolist()])
        kept[rows, level.rank] = True
        ranks.append(Ranks(kept, np.array([place.get(node, 0) for node in parents])))
        place = dict(zip(level.at.tolist(), (rows * k + level.rank).tolist()))
    return ranks
