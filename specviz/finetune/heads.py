"""Train blockwise heads for a user's own model; from one state, each predicts a token further ahead.

They learn the target's own distributions in its answers, so they need only its last states, which are
computed once (`specviz.finetune.target_states`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specviz.arguments import check_int
from specviz.errors import ModelError, PromptError
from specviz.escape import markdown
from specviz.finetune import training
from specviz.finetune.answers import Answers
from specviz.finetune.target_states import states_of_answers, twin
from specviz.finetune.training import CHAIN, Pair, Trained, print_line
from specviz.models import load
from specviz.models.devices import has_bfloat16
from specviz.models.heads import TYPE, BlockwiseHeads
from specviz.models.layers import head_rows
from specviz.models.model import Model
from specviz.models.trimmed import write

if TYPE_CHECKING:
    from specviz.finetune.training import Prompts
    from specviz.models.protocols import Spec


@training.alone
def train_heads(
    target: Spec,
    prompts: Prompts | Answers,
    out: str | Path,
    *,
    heads: int = 4,
    inner: int = 256,
    draft_vocabulary: int | None = None,
    epochs: float = 2,
    rate: float = 0.01,
    batch: int = 16,
    max_new_tokens: int | None = None,
    tokens: int | None = None,
    seed: int = 0,
    device: str | None = None,
    force: bool = False,
    every: float = 60.0,
    say: Callable[[str], None] = print_line,
) -> Trained:
    """Train blockwise heads on a causal target's answers.

    Parameters
    ----------
    target, prompts, epochs, batch, max_new_tokens, tokens, seed, device, force, every
        See `specviz.finetune.eagle.train_eagle`.
    out : str or Path
        The folder to write: ``config.json``, ``model.safetensors`` in float16, a card.
    heads : int
        Number of heads, not counting the target's own.
    inner : int
        Width of each head's hidden layer.
    draft_vocabulary : int, optional
        Number of tokens that they can write: end tokens and the answers' most common ones. Default: all.
    rate : float
        Peak learning rate of the matrices (Muon); the offsets learn at 0.3 of it (Adam).

    Raises
    ------
    ModelError
        If the target is not a Llama-family model on torch, or `out` exists.
    PromptError
        If there are fewer than two different prompts, or one cannot be read, is a suite's question or leaves
        no room for an answer; or if all answers are too short for the last head.
    ParameterError
        If a value is out of range or has no effect.
    """
    settings = training.Settings(epochs, rate, batch, max_new_tokens, seed, every, say, tokens)
    check_int("heads", heads, 1)
    check_int("inner", inner, 1)
    path = training.vacant(out, force)
    given = training.to_learn(prompts, settings)
    training.check_format(target)
    teacher = load(target, device, "float32", invariant=False)
    if not isinstance(teacher, Model) or not teacher.plain:
        raise ModelError(
            f"{teacher.name} has no head that can be used separately: use a Llama-family model on torch"
        )
    if draft_vocabulary is not None:
        check_int("draft_vocabulary", draft_vocabulary, 1, teacher.vocabulary)
    mark = ["heads", heads, inner, draft_vocabulary, epochs, rate, batch, tokens, seed, teacher.name]
    partial, answers = training.gather(teacher, (), given, path, mark, force, settings)
    learnt, held = training.parted(training.pairs_of(answers), say)
    learnt = training.some(learnt, tokens, seed)
    if max(len(pair.answer) for pair in learnt) <= heads:
        raise PromptError(f"the answers are too short: head {heads} needs {heads + 1} tokens")
    kept = states_of_answers(twin(teacher.net), [*learnt, *held], (teacher.layers,), partial, settings)
    kept_tokens = None
    if draft_vocabulary is not None:
        counts = Counter(chain.from_iterable(pair.answer for pair in learnt))
        kept_tokens = torch.tensor(training.draft_tokens(teacher.eos, counts, draft_vocabulary, say))
    width = teacher.config.hidden_size
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        net = BlockwiseHeads(heads, width, inner, kept_tokens).to(teacher.device)
    loss = HeadsLoss(teacher, net, kept)
    before, _ = measure(loss, held)
    curve = training.learn(net, 0.3, loss, learnt, partial, settings)
    after, runs = measure(loss, held)
    by_head = "agreement with the target, by head"
    result = Trained(path, len(learnt), len(held), training.count(learnt), by_head, before, after)
    name = markdown(teacher.name)
    about = f"Blockwise heads for {name}, trained on its answers by `specviz models heads`."
    facts = {
        "shape": f"{heads} heads, {width} × {inner} × {width} each",
        "tokens that they can write": "all" if net.tokens is None else f"{len(net.tokens):,}",
    }
    card = training.card(result, about, facts, epochs, rate)
    card += training.measured(held, runs, curve, min(heads, CHAIN))
    scores = training.scores(held, runs, result.tokens)
    training.publish(partial, path, lambda folder: _save(net, teacher, folder), card, scores)
    return result


class HeadsLoss:
    """Mean cross-entropy of the heads against the target's distributions in answers.

    Parameters
    ----------
    target : Model
    net : BlockwiseHeads
    kept : callable
        Gives the target's last states for a row of the answers, [tokens - 1, 1, width].
    """

    def __init__(self, target: Model, net: BlockwiseHeads, kept: Callable[[int], Tensor]) -> None:
        self.net, self.kept = net, kept
        self.whole = target.net.get_output_embeddings().weight.detach().float()
        self.head = self.whole if net.tokens is None else head_rows(target.net, net.tokens).weight.float()
        # In training products are computed in bfloat16: convert the head once, not in every product.
        self.rounded = self.head.to(torch.bfloat16) if has_bfloat16(self.head.device) else self.head

    def __call__(self, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
        """The loss twice: for the gradient, and for display."""
        states = self._states(pairs)
        with torch.no_grad():
            laws = (torch.cat(states).to(self.rounded.dtype) @ self.rounded.T).float().softmax(-1)
        every = laws.split([len(each) for each in states])
        total, count = self.head.new_zeros(()), 0
        for ahead, guess in enumerate(self._guesses(states, self.rounded), 1):
            wanted = torch.cat([each[ahead:] for each in every])
            total = total - (wanted * guess.log_softmax(-1)).sum()
            count += len(guess)
        total = total / max(count, 1)
        return total, total.detach()

    @torch.no_grad()
    def hits(self, pairs: Sequence[Pair]) -> list[list[Tensor]]:
        """For each answer and head, whether its top token is the target's, from each place: bool [n - ahead].

        The target chooses among all tokens: one that the heads lack is never right.
        """
        states = self._states(pairs)
        chosen = (torch.cat(states) @ self.whole.T).argmax(-1).split([len(each) for each in states])
        heads = []
        for ahead, guess in enumerate(self._guesses(states, self.head), 1):
            top = guess.argmax(-1)
            top = top if self.net.tokens is None else self.net.tokens[top]
            right = top == torch.cat([each[ahead:] for each in chosen])
            heads.append(right.cpu().split([max(len(each) - ahead, 0) for each in states]))
        return [list(each) for each in zip(*heads)]

    def _states(self, pairs: Sequence[Pair]) -> list[Tensor]:
        """For each answer, the states from which the target chose its tokens, [n, width]."""
        return [self.kept(pair.row)[len(pair.prompt) - 1 :, 0].to(self.head.device) for pair in pairs]

    def _guesses(self, states: list[Tensor], rows: Tensor) -> list[Tensor]:
        """For each head, its scores at the places whose guessed token is in the answer, [n, rows]."""
        guesses = self.net(torch.cat(states)).split([len(each) for each in states])
        parts = []
        for head in range(guesses[0].shape[1]):
            guess = torch.cat([each[: max(len(each) - head - 1, 0), head] for each in guesses])
            parts.append((guess.to(rows.dtype) @ rows.T).float())
        return parts


def measure(
    loss: HeadsLoss, pairs: Sequence[Pair], batch: int = 16
) -> tuple[tuple[float, ...], list[list[int]]]:
    """How often each head's most likely token is the target's, and runs of hits.

    A run, one for each place of an answer but the first, is the number of right guesses from there, at most
    four: the first head guesses that place, from the state before the target's own token.
    """
    firsts = range(0, len(pairs), batch)
    every = [answer for first in firsts for answer in loss.hits(pairs[first : first + batch])]
    shares = [torch.cat(head).float() for head in zip(*every)]
    runs = []
    for heads in every:
        right = [head.tolist() for head in heads[:CHAIN]]
        runs.append([_run([head[at] for head in right if at < len(head)]) for at in range(len(right[0]))])
    return tuple(float(head.mean()) for head in shares), runs  # NaN where no answer is long enough


def _run(right: Sequence[bool]) -> int:
    """Number of right guesses before the first wrong one."""
    return right.index(False) if False in right else len(right)


def _save(net: BlockwiseHeads, target: Model, folder: Path) -> None:
    number, width, inner = net.up.shape
    fields = {"model_type": TYPE, **target.identity, "heads": number, "width": width, "inner": inner}
    write(net, fields, torch.float16, folder)
