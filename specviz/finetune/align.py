"""Prediction alignment: a draft model fine-tuned on what its target would say (BiLD, section 3.5.1).

The target answers the prompts greedily; the draft learns the answers, not the prompts. It then agrees more
often with the target, so that more of what it drafts is accepted. For any pair of one kind and vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from specviz.errors import ModelError, PromptError
from specviz.finetune import training
from specviz.finetune.optimizer import Optimizer
from specviz.finetune.training import Pair, Trained, print_line
from specviz.models import load

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specviz.models.protocols import Prompt, Spec
    from specviz.models.torch_model import TorchModel


@dataclass(frozen=True)
class Aligned(Trained):
    """A draft that was aligned.

    Attributes
    ----------
    before, after : float
        How often the draft's most likely token was the target's, on answers that it did not learn from.
    path, learnt, held_out, tokens
        As of `Trained`.
    """

    before: float
    after: float

    def __str__(self) -> str:
        return (
            f"{self.path} (agreement with the target on {self.held_out} held-out answers: "
            f"{self.before:.3f} before, {self.after:.3f} after)"
        )


def align(
    target: Spec,
    draft: Spec,
    prompts: Sequence[Prompt],
    out: str | Path,
    *,
    epochs: float = 3,
    rate: float = 5e-4,
    batch: int = 16,
    max_new_tokens: int = 128,
    seed: int = 0,
    device: str = "cpu",
    force: bool = False,
    every: float = 60.0,
    say: Callable[[str], None] = print_line,
) -> Aligned:
    """Fine-tune `draft` on `target`'s greedy answers to `prompts` and write it as a new model.

    What is under way lies in ``OUT.partial``: the answers, then a checkpoint. The same call goes on from it.

    Parameters
    ----------
    target, draft : Model, or anything else that `specviz.load` takes
        Of one kind, with one vocabulary. Neither is changed.
    prompts : sequence
        As `specviz.generate` takes them: texts, chats or token ids. Every tenth, and at least the last, is
        held out and only measured on.
    out : str or Path
        The folder to write: weights in the draft's number format, tokenizer, a card.
    epochs : float
        How often each answer is read.
    rate : float
        Peak learning rate; it rises for 3 % of the run, then falls to zero as a cosine.
    batch : int
        Texts of an update.
    max_new_tokens : int
        Most tokens of an answer; one that has not ended by then is learnt without an end.
    seed : int
        Of the order in which answers are read.
    force : bool
        Whether an existing folder may be replaced.
    every : float
        Seconds between checkpoints, and between lines of progress.

    Raises
    ------
    ModelError
        If the two are not of one kind or vocabulary, cannot be trained, or `out` exists.
    PromptError
        If there are fewer than two prompts, or one cannot be read or leaves no room for an answer.
    ParameterError
        If a value is out of range.
    """
    settings = training.Settings(epochs, rate, batch, max_new_tokens, seed, every, say)
    return _align(target, draft, prompts, training.vacant(out, force), device, force, settings)


def _align(
    target: Spec, draft: Spec, prompts: Sequence[Prompt], path: Path, device: str, force: bool,
    settings: training.Settings,
) -> Aligned:  # fmt: skip
    if len(prompts) < 2:
        raise PromptError("alignment needs two prompts or more: one is held out to measure by")
    teacher, learner = _pair(target, draft, device)
    encoded = training.encoded(teacher, prompts)
    kept = training.length((teacher, learner), encoded, settings.max_new_tokens)
    epochs, rate, batch = settings.epochs, settings.rate, settings.batch
    mark = [epochs, rate, batch, kept, settings.seed, teacher.name, learner.name, encoded]
    partial = training.begun(path, mark, force)
    answered = training.answers(partial, teacher, encoded, kept, settings.say)
    learnt, held = training.parted(list(zip(encoded, answered)))

    net = deepcopy(learner.net).float().requires_grad_(True)
    prefix = getattr(learner, "prefix", None)

    def loss(pairs: list[Pair]) -> tuple[torch.Tensor, torch.Tensor]:
        total = cross_entropy(*_scores(net, pairs, prefix))
        return total, total

    before = agreement(net, held, batch, prefix)
    training.learn(net, Optimizer(net, rate, rate), loss, learnt, partial, settings)
    after = agreement(net, held, batch, prefix)

    result = Aligned(path, len(learnt), len(held), sum(map(len, answered)), before, after)

    def write(folder: Path) -> None:
        net.to(training.stored(draft, learner)).save_pretrained(folder)
        if learner.tokenizer is not None:
            learner.tokenizer.save_pretrained(folder)

    training.publish(partial, path, write, _card(result, teacher.name, learner.name, epochs, rate))
    return result


def _pair(target: Spec, draft: Spec, device: str) -> tuple[TorchModel, TorchModel]:
    """Target and draft, of one kind and vocabulary, in transformers' format.

    Raises
    ------
    ModelError
        If they are not.
    """
    teacher, learner = load(target, device), load(draft, device)
    for model in (teacher, learner):
        if not hasattr(model, "net"):
            raise ModelError(
                f"{model.name} runs in llama.cpp: alignment needs a model in transformers' format"
            )
    if teacher.kind != learner.kind:
        raise ModelError(
            f"{teacher.name} is of kind {teacher.kind} and {learner.name} {learner.kind}: a draft model must "
            "be of the target's kind"
        )
    teacher.check_vocabulary(learner)
    return teacher, learner


def agreement(
    net: PreTrainedModel, pairs: Sequence[Pair], batch: int = 16, prefix: Sequence[int] | None = None
) -> float:
    """How often the most likely token is the answer's, its tokens before given."""
    hits = total = 0
    net.eval()
    with torch.inference_mode():
        for first in range(0, len(pairs), batch):
            scores, wanted = _scores(net, pairs[first : first + batch], prefix)
            hits += int((scores.argmax(-1) == wanted).sum())
            total += len(wanted)
    return hits / total


def _scores(
    net: PreTrainedModel, pairs: Sequence[Pair], prefix: Sequence[int] | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores [n, vocabulary] for every token of the answers, and those tokens [n]."""
    device = net.device

    def padded(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = torch.tensor([len(row) for row in rows], device=device)
        mask = torch.arange(int(lengths.max()), device=device) < lengths[:, None]
        ids = torch.zeros(mask.shape, dtype=torch.long, device=device)
        ids[mask] = torch.tensor([token for row in rows for token in row], device=device)
        return ids, mask

    if prefix is not None:
        encoded, there = padded([prompt for prompt, _ in pairs])
        written, mask = padded([[*prefix, *answer] for _, answer in pairs])
        logits = net(
            input_ids=encoded, attention_mask=there.long(), decoder_input_ids=written[:, :-1], use_cache=False
        ).logits
        begins = torch.full((len(pairs),), len(prefix), device=device)
    else:
        written, mask = padded([[*prompt, *answer] for prompt, answer in pairs])
        read = mask[:, :-1].long()
        logits = net(input_ids=written[:, :-1], attention_mask=read, use_cache=False).logits
        begins = torch.tensor([len(prompt) for prompt, _ in pairs], device=device)
    answers = mask & (torch.arange(mask.shape[1], device=device) >= begins[:, None])
    return logits[answers[:, 1:]].float(), written[answers]


def _card(result: Aligned, target: str, draft: str, epochs: float, rate: float) -> str:
    name = result.path.name
    return (
        f"# {name}\n\n`{draft}`, fine-tuned on the greedy answers of `{target}` (prediction alignment, BiLD, "
        f"section 3.5.1) by `specviz models align`.\n\n| | |\n| --- | --- |\n"
        f"| answers learnt | {result.learnt:,}, {epochs:g} times, peak rate {rate:g} |\n"
        f"| tokens of all answers | {result.tokens:,} |\n"
        f"| agreement on {result.held_out:,} held-out answers | {result.before:.3f} before, "
        f"{result.after:.3f} after |\n"
    )
