"""Train blockwise heads for a user's own model; from one state, each predicts a token further ahead.

They learn the target's own distributions in its answers, so they need only its last states, which are
computed once (`specviz.finetune.target_states`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from torch import Tensor

from specviz.errors import ModelError, ParameterError, PromptError
from specviz.finetune import training
from specviz.finetune.answers import Answers
from specviz.finetune.target_states import states_of_answers, twin
from specviz.finetune.training import Pair, Trained, print_line
from specviz.models import load
from specviz.models.heads import TYPE, BlockwiseHeads
from specviz.models.layers import head_rows
from specviz.models.model import Model

if TYPE_CHECKING:
    from specviz.models.protocols import Prompt, Spec


@dataclass(frozen=True)
class OwnHeads(Trained):
    """Trained blockwise heads.

    Attributes
    ----------
    before, after : tuple of float
        How often each head's most likely token was the target's on held-out answers.
    path, learnt, held_out, tokens
        See `Trained`.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]

    def __str__(self) -> str:
        shares = ", ".join(f"{share:.3f}" for share in self.after)
        return (
            f"{self.path} (agreement with the target on {self.held_out} held-out answers, by head: {shares})"
        )


def train_heads(
    target: Spec,
    prompts: Sequence[Prompt] | Answers,
    out: str | Path,
    *,
    heads: int = 4,
    inner: int = 256,
    draft_vocabulary: int | None = None,
    epochs: float = 2,
    rate: float = 0.01,
    batch: int = 16,
    max_new_tokens: int = 128,
    tokens: int | None = None,
    seed: int = 0,
    device: str = "cpu",
    force: bool = False,
    every: float = 60.0,
    say: Callable[[str], None] = print_line,
) -> OwnHeads:
    """Train blockwise heads on a causal target's answers.

    Parameters
    ----------
    target, prompts, out, epochs, batch, max_new_tokens, tokens, seed, force, every
        See `specviz.finetune.eagle.train_eagle`.
    heads : int
        Number of heads, not counting the target's own.
    inner : int
        Width of each head's hidden layer.
    draft_vocabulary : int, optional
        Number of tokens that they can write: the answers' most common ones. Default: all.
    rate : float
        Peak learning rate of the matrices (Muon); the offsets learn at 0.3 of it (AdamW).

    Raises
    ------
    ModelError
        If the target is not a Llama-family model on torch, or `out` exists.
    PromptError
        If there are fewer than two prompts, or one cannot be read or leaves no room for an answer.
    ParameterError
        If a value is out of range.
    """
    settings = training.Settings(epochs, rate, batch, max_new_tokens, seed, every, say, tokens)
    training.positive(heads=heads, inner=inner)
    path = training.vacant(out, force)
    if not isinstance(prompts, Answers) and len(prompts) < 2:
        raise PromptError("heads need two prompts or more: one is held out for measuring")
    teacher = load(target, device, "float32", invariant=False)
    if not isinstance(teacher, Model) or not teacher.plain:
        raise ModelError(
            f"{teacher.name} has no head that can be used separately: use a Llama-family model on torch"
        )
    if draft_vocabulary is not None and not 0 < draft_vocabulary <= teacher.vocabulary:
        raise ParameterError(
            f"draft_vocabulary must lie in 1 .. {teacher.vocabulary:,}, got {draft_vocabulary}"
        )
    last = teacher.layers
    mark = ["heads", heads, inner, draft_vocabulary, epochs, rate, batch, tokens, seed, teacher.name]
    partial, answers = training.gather(teacher, (), prompts, path, mark, force, settings, (last,))
    learnt, held = training.parted(training.pairs_of(answers))
    learnt = training.some(learnt, tokens, seed)
    kept = states_of_answers(twin(teacher.net), answers, [*learnt, *held], (last,), partial, settings)
    kept_tokens = None
    if draft_vocabulary is not None:
        counts = Counter(chain.from_iterable(pair.answer for pair in learnt))
        kept_tokens = torch.tensor(sorted(token for token, _ in counts.most_common(draft_vocabulary)))
    width = teacher.config.hidden_size
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        net = BlockwiseHeads(heads, width, inner, kept_tokens).to(teacher.device)
    loss = HeadsLoss(teacher, net, kept)
    before = agreement(loss, held)
    curve = training.learn(net, 0.3, loss, learnt, partial, settings)
    after = agreement(loss, held)
    result = OwnHeads(path, len(learnt), len(held), training.count(learnt), before, after)
    card = _card(result, net, teacher.name) + "".join(line + "\n" for line in training.curve_table(curve))
    training.publish(partial, path, lambda folder: _save(net, teacher, folder), card)
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

    def __call__(self, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
        """The loss twice: for the gradient, and for display."""
        states = self._states(pairs)
        with torch.no_grad():
            laws = [(each @ self.head.T).float().softmax(-1) for each in states]
        total, count = self.head.new_zeros(()), 0
        for ahead, guess in enumerate(self._guesses(states), 1):
            wanted = torch.cat([each[ahead:] for each in laws])
            total = total - (wanted * guess.log_softmax(-1)).sum()
            count += len(guess)
        total = total / max(count, 1)
        return total, total.detach()

    @torch.no_grad()
    def right(self, pairs: Sequence[Pair]) -> tuple[list[int], list[int]]:
        """How often each head's top token is the target's, and of how many.

        The target chooses among all tokens: one that the heads lack is never right.
        """
        states = self._states(pairs)
        chosen = [(each @ self.whole.T).argmax(-1) for each in states]
        hits, counted = [], []
        for ahead, guess in enumerate(self._guesses(states), 1):
            top = guess.argmax(-1)
            top = top if self.net.tokens is None else self.net.tokens[top]
            hits.append(int((top == torch.cat([each[ahead:] for each in chosen])).sum()))
            counted.append(len(guess))
        return hits, counted

    def _states(self, pairs: Sequence[Pair]) -> list[Tensor]:
        """For each answer, the states from which the target chose its tokens, [n, width]."""
        return [self.kept(pair.row)[len(pair.prompt) - 1 :, 0].to(self.head.device) for pair in pairs]

    def _guesses(self, states: list[Tensor]) -> list[Tensor]:
        """For each head, its scores at the places whose guessed token is in the answer, [n, rows]."""
        guesses = self.net(torch.cat(states)).split([len(each) for each in states])
        parts = []
        for head in range(guesses[0].shape[1]):
            guess = torch.cat([each[: max(len(each) - head - 1, 0), head] for each in guesses])
            parts.append((guess @ self.head.T).float())
        return parts


def agreement(loss: HeadsLoss, pairs: Sequence[Pair], batch: int = 16) -> tuple[float, ...]:
    """How often each head's most likely token is the target's."""
    sums = [loss.right(pairs[first : first + batch]) for first in range(0, len(pairs), batch)]
    hits, counted = (torch.tensor([each[i] for each in sums]).sum(0) for i in (0, 1))
    return tuple((hits / counted.clamp(min=1)).tolist())


def _save(net: BlockwiseHeads, target: Model, folder: Path) -> None:
    tensors = {
        name: value.to(torch.int32 if name == "tokens" else torch.float16).contiguous().cpu()
        for name, value in net.state_dict().items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    number, width, inner = net.up.shape
    fields = {"model_type": TYPE, **target.identity, "heads": number, "width": width, "inner": inner}
    (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def _card(result: OwnHeads, net: BlockwiseHeads, target: str) -> str:
    number, width, inner = net.up.shape
    lines = [
        f"# {result.path.name}", "",
        f"Blockwise heads for `{target}`, trained on its answers by `specviz models heads`.", "",
        "| | |", "| --- | --- |", f"| shape | {number} heads, {width} × {inner} × {width} each |",
        f"| tokens that they can write | {'all' if net.tokens is None else f'{len(net.tokens):,}'} |",
        f"| training answers | {result.learnt:,} |", f"| tokens of these answers | {result.tokens:,} |", "",
        f"How often each head's top token is the target's, on {result.held_out:,} held-out answers:",
        "",
        "| tokens ahead | before | after |", "| ---: | ---: | ---: |",
        *(f"| {i} | {a:.3f} | {b:.3f} |" for i, (a, b) in enumerate(zip(result.before, result.after), 1)),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
