"""EAGLE: a layer trained on the target's hidden states drafts a tree, level by level.

Li et al. 2024 (EAGLE-1: features, a static tree), Li et al. 2024 (EAGLE-2: the tree grows where the drafter
is sure), Li et al. 2025 (EAGLE-3: fused layers). The generation of the weights is the drafter's
(`specviz.models.eagle`); which tree it grows is the parameter ``tree``.

Greedily a node's score is the drafter's confidence in its path, the node's own token included (EAGLE-2,
section 4). In sampling every child is drawn from the drafter's distribution q, siblings without replacement.
The verdict (`specviz.methods.tree.drawn`) is exact as long as nothing is grown or sent for what was drawn: a
token that is dropped for being unlikely no longer comes from q. So there the score is what is known before
the draw: the confidence in the path above, times what the elder siblings left of q.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..devices import send
from ..draft import Draft
from ..errors import ParameterError
from ..paths import folder
from ..sampling import ACCEPT, DRAFT, FINAL, Sampling, draw
from .base import Method, Parameter, Session, Unsent, Verdict
from .template import MOST, Template, read
from .tree import bring, drawn, judge


class Eagle(Method):
    """A small layer reads what the target thinks, and goes on thinking by itself."""

    name = "eagle"
    title = "EAGLE"
    paper = "Li et al. 2024, 2024, 2025"
    parameters = (
        Parameter(
            "draft_size", 24, 1, MOST, "tokens", "Nodes of the tree that are sent, without the root.", "g"
        ),
        Parameter(
            "tree", "dynamic", choices=("dynamic", "static"),
            meaning="Grown where the drafter is sure (EAGLE-2, 3), or the same in every cycle (EAGLE-1).",
        ),
        Parameter("depth", 6, 1, 64, "tokens", "Most levels of a dynamic tree.", "d"),
        Parameter(
            "branches", 10, 1, 64, "tokens",
            "Children of a node, and nodes that are read a level, of a dynamic tree.", "k",
        ),
        Parameter(
            "template", "",
            meaning="A static tree's JSON file of rank paths, as [[0], [1], [0, 0]]; empty: EAGLE-1's 25.",
        ),
    )  # fmt: skip
    pseudocode = (
        ("", "repeat until the text ends:"),
        ("draft", "    read (f_i, x_i+1) of the new tokens"),
        ("draft", "    level 1 = k children of x_t, by q"),
        ("draft", "    for level = 2 .. d:"),
        ("draft", "        read the k best nodes, their own f̂ for f"),
        ("draft", "        each gets k children"),
        ("draft:unsent", "    T = the g nodes of highest score"),
        ("forward", "    p, f = target(text + T)   # one pass"),
        ("verify", "    from the root down, as long as a child survives:"),
        ("verify:accepted", "        x is the target's own, or u < p(x)/q(x)"),
        ("verify:rejected", "        x refused; drawn: p = max(0, p−q), q less x"),
        ("commit:bonus", "    nothing hangs below: one more from p, the bonus"),
        ("commit:correction", "    all refused, greedy: what the target writes"),
        ("commit:resampled", "    all refused, drawn: from what is left of p"),
        ("commit", "    text = text + path + [this token]"),
    )
    needs_draft = True
    drafts_with = "eagle"
    reads_prompt = draws_siblings = True
    toy: ClassVar[dict[str, Any]] = {"draft_size": 2, "depth": 1, "branches": 3}
    size = "draft_size"
    draft_size: int
    tree: str
    depth: int
    branches: int
    template: str

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.paths = []
        if self.tree == "static":
            file = Path(self.template) if self.template else folder("templates") / "eagle.json"
            self.paths = read(file, MOST)[: self.draft_size]
        elif self.template:
            raise ParameterError("template is a static tree's: pass tree='static' with it")
        self.spare = self.draft_size
        # The drafter reads nodes that are not sent: so many slots of its own.
        self.reads = len(self.paths) if self.paths else self.branches * (self.depth - 1)

    def exactness(self, sampling: Sampling, dtype: str) -> str:
        return "exact up to ties" if sampling.greedy else "exact"

    def hidden_layers(self, drafter: Any) -> tuple[int, ...]:
        return tuple(drafter.layers)

    def start(self, session: Session) -> None:
        self.session = session
        self.growth: Growth | None = None
        self.context = session.open(session.drafter, session.prompt, session.limit + self.reads, "draft")
        tree = Template([path for path in self.paths if max(path) < session.target.vocabulary])
        self.ranks = ranked(tree, len(tree.levels))
        self.ends = send(np.array(sorted(session.eos), np.int64), session.target.device)
        self.new: tuple[Tensor, Tensor] | None = None
        if len(session.prompt) == 1:
            return
        # The target reads a prompt up to its last token: of that one there is no state yet.
        states = self._side_by_side(session.states)
        tokens = send(np.array(session.prompt[1:]), states.device)
        if len(tokens) > 1:
            self.context.read(tokens[:-1], states[:-1])
        self.new = tokens[-1:], states[-1:].clone()  # or all of them would stay
        session.states = {}

    def _side_by_side(self, states: dict[int, Tensor]) -> Tensor:
        parts = [states[layer] for layer in self.session.drafter.layers]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def draft(self, left: int) -> Draft:
        self.growth = None
        self.session.control.pop("candidates", None)
        if left < 2:
            return Draft.empty("room")
        if self.new is None:  # a prompt of one token: the target has said nothing yet
            return Draft.empty("none")
        if self.paths and not self.ranks:  # ranks that so small a vocabulary has not
            return Draft.empty("none")
        state, logits = self.context.read(*self.new)
        given = self.session, self.context, self.ends, state, logits
        if self.tree == "static":
            ranks = self.ranks[: left - 1]
            growth = Growth(*given, sum(each.kept.size for each in ranks))
            growth.static(ranks)
        else:
            levels, k = min(self.depth, left - 1), min(self.branches, self.session.target.vocabulary)
            growth = Growth(*given, k + (levels - 1) * k * k)
            growth.dynamic(levels, k)
        self.growth = growth
        draft, self.unsent = growth.cut(self.draft_size)
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
            verdict = drawn(draft, scores, session.sampling, u, last)
        verdict.unsent = self.unsent if len(draft) else None
        return verdict

    def learn(self, draft: Draft, result: Any, verdict: Verdict) -> None:
        """The target's own states take the place of those that the drafter made up."""
        rows = [0, *(node + 1 for node in verdict.path)]
        states = self._side_by_side({layer: found[0] for layer, found in result.hidden.items()})
        tokens = [*(verdict.tokens[node] for node in verdict.path), verdict.token]
        self.new = (
            send(np.array(tokens), states.device),
            states.index_select(0, send(np.array(rows), states.device)),
        )


@dataclass
class Level:
    """Children of the nodes that were read together, [m, k] each.

    Attributes
    ----------
    tokens, score : tensors [m, k]
        By the score, a logarithm, nodes are grown and sent: it never rises from a parent to its child.
    sure : tensor [m, k]
        The drafter's confidence in the path that ends with the child, a logarithm; −inf behind an end token,
        which nothing follows.
    parents : tensor [m]
        Of all children so far, the ones that were read; -1 is the root.
    logits : tensor [m, vocabulary]
        What the drafter said behind each node that was read.
    q : tensor [m, vocabulary] or None
        What the first child was drawn from, in a sampled run.
    """

    tokens: Tensor
    score: Tensor
    sure: Tensor
    parents: Tensor
    logits: Tensor
    q: Tensor | None


class Growth:
    """A tree on the device, grown from the root's level down; `cut` brings what is sent to the host.

    Parameters
    ----------
    session : Session
    context : EagleContext
        Which has just read the text.
    ends : tensor of int
        Tokens that end a text.
    state, logits : tensors [1, width], [1, vocabulary]
        What it said there.
    most : int
        Most children of a cycle: so many uniforms are drawn, in a sampled run.
    """

    def __init__(
        self, session: Session, context: Any, ends: Tensor, state: Tensor, logits: Tensor, most: int
    ) -> None:
        self.sampling, self.context = session.sampling, context
        self.state, self.logits = state, logits
        self.parents = torch.full((1,), -1, device=logits.device)
        self.sure = logits.new_zeros(1)
        self.ends = ends
        self.u = None if session.sampling.greedy else session.uniforms(DRAFT, most)
        self.levels: list[Level] = []
        self.size = 0  # children so far
        self.read: list[Tensor] = []  # those that were read, a tensor a level

    def dynamic(self, levels: int, k: int) -> None:
        """EAGLE-2, section 4.1: each level the k best nodes are read, and each gets k children."""
        for number in range(levels):
            if number:
                last = self.levels[-1]
                worth = torch.where(last.sure > -torch.inf, last.score, -torch.inf).flatten()
                self._read(worth.sort(descending=True, stable=True).indices[:k])
            self._children(k)

    def static(self, levels: list[Ranks]) -> None:
        """EAGLE-1: the nodes of a template are read and grown, whatever the drafter thinks of them."""
        for number, ranks in enumerate(levels):
            if number:
                self._read(send(ranks.read, self.logits.device))
            self._children(ranks.k)
            other = send(~ranks.kept, self.logits.device)
            self.levels[-1].score.masked_fill_(other, -torch.inf)

    def _read(self, best: Tensor) -> None:
        """Let the drafter read some children of the last level, by their places in it."""
        last = self.levels[-1]
        row = best // last.tokens.shape[1]
        above = None
        if self.read:  # else they hang on the root
            above = sum(map(len, self.read)) - len(self.read[-1]) + row
        self.parents = self.size - last.tokens.numel() + best
        self.sure = last.sure.flatten().index_select(0, best)
        self.read.append(self.parents)
        tokens, states = last.tokens.flatten().index_select(0, best), self.state.index_select(0, row)
        self.state, self.logits = self.context.grow(tokens, states, above)

    def _children(self, k: int) -> None:
        """The k likeliest tokens behind each node that was read, or k draws without replacement."""
        logits, base = self.logits, self.sure[:, None]
        k = min(k, logits.shape[1])
        if self.u is None:
            p, tokens = logits.log_softmax(-1).topk(k)
            level = Level(tokens, base + p, base + p, self.parents, logits, None)
        else:
            m = len(logits)
            u, self.u = self.u[: m * k].reshape(m, k), self.u[m * k :]
            tokens, left, p, q = without_replacement(logits, self.sampling, send(u, logits.device))
            level = Level(tokens, base + left.log(), base + p.log(), self.parents, logits, q)
        if len(self.ends):
            level.sure = level.sure.masked_fill(torch.isin(level.tokens, self.ends), -torch.inf)
        self.levels.append(level)
        self.size += level.tokens.numel()

    def cut(self, g: int) -> tuple[Draft, Unsent]:
        """The g nodes of highest score, and what else was read (EAGLE-2, section 4.2)."""
        levels = self.levels
        tokens = torch.cat([each.tokens.flatten() for each in levels])
        score = torch.cat([each.score.flatten() for each in levels])
        parents = torch.cat([each.parents.repeat_interleave(each.tokens.shape[1]) for each in levels])
        # Of equal scores the earlier child goes first, so that none is sent without its parent.
        sent = score.sort(descending=True, stable=True).indices[:g].sort().values
        read = torch.cat([*self.read, sent[:0]])
        shown = torch.cat((sent, read))
        host = bring(shown, tokens[shown], parents[shown], score[shown])
        at, word, above, value = (each[: len(sent)] for each in host)
        real = np.flatnonzero(value > -np.inf)
        place = np.full(self.size + 1, -2)
        place[-1] = -1
        place[at[real]] = np.arange(len(real))
        if len(real) < len(sent):
            sent = sent[send(real, sent.device)]
        stop = "budget" if len(real) == g else "length"
        draft = Draft(
            word[real].astype(np.int64), place[above[real]], q=None if self.u is None else self._from(sent),
            logits=Behind(self._logits, self._rows(sent)), signals={"score": np.exp(value[real])}, stop=stop,
        )  # fmt: skip
        at, word, above, value = (each[len(at) :] for each in host)
        rest = np.flatnonzero((place[at] == -2) & (value > -np.inf))
        place[at[rest]] = len(real) + np.arange(len(rest))
        unsent = Unsent(
            word[rest].tolist(), place[above[rest]].tolist(), signals={"score": np.exp(value[rest])},
            logits=Behind(self._logits, self._rows(read[send(rest, read.device)])),
        )  # fmt: skip
        return draft, unsent

    def _rows(self, nodes: Tensor) -> Tensor:
        """Of children, each one's parent among all nodes that were read, the root first."""
        wide = np.repeat([each.tokens.shape[1] for each in self.levels], [*map(len, self._logits)])
        return send(np.repeat(np.arange(len(wide)), wide), nodes.device)[nodes]

    @property
    def _logits(self) -> list[Tensor]:
        return [each.logits for each in self.levels]

    def _from(self, nodes: Tensor) -> Tensor:
        """What each child was drawn from: its parent's q without its elder siblings, [n, vocabulary]."""
        row, levels = self._rows(nodes), self.levels
        most = max(each.tokens.shape[1] for each in levels)
        drawn = torch.cat([F.pad(each.tokens, (0, most - each.tokens.shape[1])) for each in levels])[row]
        wide = np.repeat([each.tokens.shape[1] for each in levels], [*map(len, self._logits)])
        first = send(np.cumsum(wide) - wide, nodes.device)[row]
        elder = torch.arange(most, device=nodes.device) < (nodes - first)[:, None]
        q = torch.cat([each.q for each in levels if each.q is not None])[row]
        q.scatter_reduce_(1, drawn, torch.where(elder, 0.0, torch.inf).to(q.dtype), "amin")
        return q / q.sum(-1, keepdim=True)


class Behind(Sequence):
    """What the drafter said where each of n nodes was chosen: fetched when it is recorded, if it is."""

    def __init__(self, logits: list[Tensor], rows: Tensor) -> None:
        self.logits, self.rows = logits, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: Any) -> Any:
        return torch.cat(self.logits)[self.rows[i]]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self[:].unbind())


def without_replacement(
    logits: Tensor, sampling: Sampling, u: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """k different tokens behind each of m nodes, drawn one after another.

    Parameters
    ----------
    logits : tensor [m, vocabulary]
    u : tensor [m, k]
        Uniforms.

    Returns
    -------
    tokens : tensor of int [m, k]
    left : tensor [m, k]
        What was left of q before each draw; 0: there was nothing to draw, and the token means nothing.
    p : tensor [m, k]
        q of each token.
    q : tensor [m, vocabulary]
    """
    q = sampling.probabilities(logits)
    rest, last = q.clone(), q.shape[1] - 1
    tokens, left, p = [], [], []
    for each in u.unbind(1):
        left.append(rest.sum(-1).clamp(max=1))  # or rounding puts a child before its parent
        tokens.append(draw(rest, each).clamp_(max=last))
        p.append(rest.gather(1, tokens[-1][:, None])[:, 0])
        rest.scatter_(1, tokens[-1][:, None], 0.0)
    return torch.stack(tokens, 1), torch.stack(left, 1), torch.stack(p, 1), q


@dataclass(frozen=True)
class Ranks:
    """A level of a template.

    Attributes
    ----------
    k : int
        Children of each node that is read.
    kept : array of bool [m, k]
        Which of them the template has.
    read : array of int [m]
        The nodes that are read, by their places among the children of the level above.
    """

    k: int
    kept: np.ndarray
    read: np.ndarray


def ranked(template: Template, levels: int) -> list[Ranks]:
    """The first levels of a template, as `Growth.static` takes them."""
    found: list[Ranks] = []
    place: dict[int, int] = {}  # of each node of the level above, where it stands among the children there
    for level in template.levels[:levels]:
        read = list(dict.fromkeys(level.above.tolist()))
        row = {node: i for i, node in enumerate(read)}
        k = int(level.rank.max()) + 1
        kept = np.zeros((len(read), k), bool)
        rows = np.array([row[node] for node in level.above.tolist()])
        kept[rows, level.rank] = True
        found.append(Ranks(k, kept, np.array([place.get(node, 0) for node in read])))
        place = dict(zip(level.at.tolist(), (rows * k + level.rank).tolist()))
    return found
