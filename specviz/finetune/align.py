"""Prediction alignment: fine-tune a draft model on its target's answers (BiLD, section 3.5.1).

The target answers the prompts, and the draft learns the answers but not the prompts. It then agrees with the
target more often, so more of its draft tokens are accepted. Both models need the same kind and vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy, linear

from specviz.errors import ModelError, ParameterError, PromptError, plural
from specviz.escape import markdown
from specviz.finetune import training
from specviz.finetune.answers import Answers
from specviz.finetune.target_states import speaks_by_its_last_state, states_of_answers, twin
from specviz.finetune.training import CHAIN, Pair, Trained, print_line
from specviz.models import load
from specviz.models.bergamot.model import Bergamot
from specviz.models.bergamot.trimmed import TrimmedBergamot
from specviz.models.model import Model
from specviz.models.trimmed import TrimmedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specviz.finetune.training import Prompts
    from specviz.models.additions import Target
    from specviz.models.protocols import Spec
    from specviz.models.torch_model import TorchModel

ABSENT = -100  # stands for a token that the draft's head lacks; the loss ignores it


@training.alone
def align(
    target: Spec,
    draft: Spec,
    prompts: Prompts | Answers,
    out: str | Path,
    *,
    soft: bool = False,
    drawn: bool | None = False,
    epochs: float = 3,
    rate: float = 5e-4,
    batch: int = 16,
    max_new_tokens: int | None = None,
    tokens: int | None = None,
    seed: int = 0,
    device: str | None = None,
    force: bool = False,
    every: float = 60.0,
    say: Callable[[str], None] = print_line,
) -> Trained:
    """Fine-tune `draft` on `target`'s answers to `prompts` and write it as a new model.

    Unfinished work is kept in ``OUT.partial``: the answers, perhaps the target's states of them, then a
    checkpoint. Repeat the call to continue.

    Parameters
    ----------
    target, draft : Model, or anything else that `specviz.load` takes
        They must share kind and vocabulary. Neither is changed.
    prompts : sequence, or Answers
        As `specviz.generate` takes them, but a list; of a conversation the first turn counts. Or the target's
        answers to them, as `specviz.finetune.answers.read` gives them. Every tenth prompt, and at least the
        last, is held out for measurement.
    out : str or Path
        The folder to write: weights in the draft's number format, tokenizer, a card.
    soft : bool
        Learn the target's distribution at each place of an answer (distillation), not only the token.
    drawn : bool, optional
        If answers are given: learn the sampled ones instead of the greedy ones; None: both.
    epochs : float
        How often each answer is read.
    rate : float
        Peak learning rate; it rises for 3 % of the run and then falls to zero along a cosine.
    batch : int
        Texts per update.
    max_new_tokens : int, optional
        Maximum number of tokens per answer, unless the answers are given; an answer that has not ended by
        then is learnt without an end. Default: 128.
    tokens : int, optional
        Learn from answers with this many tokens in total; a smaller set is part of a larger. Default: all.
    seed : int
        Seed of the order in which answers are read.
    device : str, optional
        Default: that of the model or models in memory, otherwise ``cpu``.
    force : bool
        Whether an existing folder may be replaced, and unfinished work with other settings deleted; its
        answers stay if this run would make the same.
    every : float
        Seconds between checkpoints, and between lines of progress.

    Raises
    ------
    ModelError
        If the two differ in kind or vocabulary, cannot be trained, or `out` exists.
    PromptError
        If there are fewer than two different prompts, one cannot be read, is a suite's question or leaves no
        room for an answer, or none of the given answers is of the kind that `drawn` names.
    ParameterError
        If a value is out of range or has no effect.
    """
    settings = training.Settings(epochs, rate, batch, max_new_tokens, seed, every, say, tokens)
    path = training.vacant(out, force)
    given = training.to_learn(prompts, settings)
    if not isinstance(given, Answers) and drawn:
        raise ParameterError(
            "drawn answers must be given: make them with specviz models answers --temperatures, or drop "
            "--drawn"
        )
    if isinstance(given, Answers) and given.rows and not training.pairs_of(given, drawn):
        which, remedy = ("sampled", "drop --drawn") if drawn else ("greedy", "add --drawn")
        raise PromptError(f"{given.path} holds no {which} answers: {remedy}")
    teacher, learner = _pair(target, draft, device)
    net = None  # only for a target whose distributions follow from its head and last states
    if soft and isinstance(teacher, Model) and not getattr(teacher, "prefix", None):
        net = twin(teacher.net)
        net = net if speaks_by_its_last_state(teacher, net) else None
    mark = [soft, drawn, epochs, rate, batch, tokens, seed, teacher.name, learner.name, learner.content]
    partial, answers = training.gather(teacher, (learner,), given, path, mark, force, settings)
    answered = training.pairs_of(answers)
    fitting = [
        pair
        for pair in answered
        if len(pair.answer) <= min(model.left(len(pair.prompt)) for model in (teacher, learner))
    ]
    if len(fitting) < len(answered):
        settings.say(f"left out, as a model has no room: {plural(len(answered) - len(fitting), 'answer')}")
    sampled = drawn if isinstance(given, Answers) else None
    pairs = [pair for pair in fitting if sampled in (None, pair.drawn)]
    if len(pairs) < len(fitting):
        which, remedy = ("greedy", "drop") if sampled else ("sampled", "use")
        number = plural(len(fitting) - len(pairs), f"{which} answer")
        settings.say(f"left out: {number} ({remedy} --drawn to learn them)")
    if len(pairs) < 2:
        raise PromptError("alignment needs two answers or more: one is held out for measuring")
    learnt, held = training.parted(pairs, say)
    if sampled:  # a draft is measured on greedy answers, as its τ is defined
        numbers = {pair.number for pair in held}
        held = [pair for pair in fitting if pair.number in numbers and not pair.drawn] or held
    learnt = training.some(learnt, tokens, seed)

    student = Student(learner)
    judge = None
    if soft:
        # Heads of one vocabulary may be padded to different sizes; nothing is learnt about the padding.
        shared = slice(min(teacher.vocabulary, learner.vocabulary))
        judge = Judge(teacher, shared if student.tokens is None else student.tokens, None)
        if net is not None:
            judge.kept = states_of_answers(net, learnt, (teacher.layers,), partial, settings)

    def loss(pairs: list[Pair]) -> tuple[torch.Tensor, torch.Tensor]:
        scores, wanted = student(pairs)
        if judge is None:
            total = cross_entropy(scores, wanted, ignore_index=ABSENT, reduction="sum")
            total = total / (wanted != ABSENT).sum().clamp(min=1)  # the head may lack every token of a batch
        else:
            law = judge(pairs)
            total = -(law * scores[:, : law.shape[1]].log_softmax(-1)).sum(-1).mean()
        return total, total

    before = share(hits(student, held, batch))
    curve = training.learn(student.net, 1.0, loss, learnt, partial, settings)
    right = hits(student, held, batch)
    after = share(right)

    result = Trained(
        path, len(learnt), len(held), training.count(learnt), "agreement with the target", (before,), (after,)
    )
    dtype = training.stored(draft, learner)
    which = {None: "answers", False: "greedy answers", True: "answers drawn at a temperature"}[drawn]
    about = (
        f"{markdown(learner.name)}, fine-tuned on the {which} of {markdown(teacher.name)} (prediction "
        "alignment, BiLD, section 3.5.1) by `specviz models align`."
    )
    how = "the target's distributions (distillation)" if soft else "the target's tokens"
    runs = list(map(runs_of, right))
    card = training.card(result, about, {"learnt": how}, epochs, rate)
    card += training.measured(held, runs, curve)
    scores = training.scores(held, runs, result.tokens)
    training.publish(partial, path, lambda folder: student.save(folder, dtype), card, scores)
    return result


class Student:
    """A draft model in training: a float32 copy of its weights, and the tokens of its head's rows.

    Parameters
    ----------
    model : Model
        A model from `specviz.load`, or a trimmed draft on its target. It is not changed.

    Attributes
    ----------
    net : module
    tokens : tensor of int or None
        Token of each row of its head; None if the head has the whole vocabulary.
    """

    def __init__(self, model: TorchModel) -> None:
        self.model, self.prefix = model, getattr(model, "prefix", None)
        self.tokens = getattr(model, "tokens", None)
        self.net = deepcopy(model.net).float().requires_grad_(True)
        if self.tokens is not None:  # embedding and head are the target's
            self.net.get_input_embeddings().requires_grad_(False)
            self.net.get_output_embeddings().requires_grad_(False)
            if self.prefix is not None:
                self.net.get_encoder().requires_grad_(False)
            self.rows = torch.full((model.vocabulary,), ABSENT, device=model.device)
            self.rows[self.tokens] = torch.arange(len(self.tokens), device=model.device)

    def __call__(self, pairs: Sequence[Pair]) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores [n, rows] for every token of the answers, and the head row of each token [n]."""
        scores, wanted = _scores(self.net, pairs, self.prefix)
        return scores, wanted if self.tokens is None else self.rows[wanted]

    def save(self, folder: Path, dtype: torch.dtype) -> None:
        """Write the weights, and the tokenizer if there is one."""
        if self.tokens is not None:
            assert isinstance(self.model, TrimmedModel | TrimmedBergamot)
            self.model.save(self.net, dtype, folder)
            return
        self.net.to(dtype).save_pretrained(folder)
        if self.model.tokenizer is not None:
            self.model.tokenizer.save_pretrained(folder)


class Judge:
    """The target's distributions in answers, over the student's head rows.

    Parameters
    ----------
    target : Model
    tokens : tensor of int or slice
        Tokens of the student's rows.
    kept : callable, optional
        Gives the target's last states for a row of the answers. Without it the target is run.
    """

    def __init__(
        self, target: TorchModel, tokens: torch.Tensor | slice, kept: Callable[[int], torch.Tensor] | None
    ) -> None:
        self.target, self.tokens, self.kept = target, tokens, kept
        head = target.net.get_output_embeddings()
        bias = getattr(head, "bias", None)
        self.head = head.weight.detach()[tokens].float()
        self.bias = None if bias is None else bias.detach()[tokens].float()

    @torch.no_grad()
    def __call__(self, pairs: Sequence[Pair]) -> torch.Tensor:
        """Probabilities [n, rows] for every token of the answers."""
        if self.kept is None:
            scores, _ = _scores(self.target.net, pairs, getattr(self.target, "prefix", None))
            return scores[:, self.tokens].softmax(-1)
        states = [self.kept(pair.row)[len(pair.prompt) - 1 :, 0] for pair in pairs]
        return linear(torch.cat(states).to(self.head.device), self.head, self.bias).float().softmax(-1)


def _pair(target: Spec, draft: Spec, device: str | None) -> tuple[Target, Target]:
    """Load target and draft.

    Raises
    ------
    ModelError
        If they differ in kind or vocabulary, or one is not in transformers' format.
    """
    for each in (target, draft):
        training.check_format(each)
    places = {str(each.device): None for each in (target, draft) if hasattr(each, "device")}
    if device is None and places:
        device, *others = places
        if others:
            raise ModelError(f"target and draft are on {device} and {others[0]}: load both on one device")
    teacher, learner = (load(each, device, "float32", invariant=False) for each in (target, draft))
    for model in (teacher, learner):
        if not hasattr(model, "net"):
            raise ModelError(
                f"{model.name} runs on llama.cpp: alignment needs a model in transformers' format"
            )
    if isinstance(learner, Bergamot) and not isinstance(learner, TrimmedBergamot):
        raise ModelError(
            f"{learner.name} is a whole Bergamot translator, which cannot be saved: align a draft "
            "that specviz models cut made of it"
        )
    if learner.kind == "trimmed":
        learner = learner.on(teacher)
    if teacher.kind != learner.kind:
        raise ModelError(
            f"{teacher.name} is of kind {teacher.kind} and {learner.name} {learner.kind}: a draft model "
            f"must be of the same kind as the target"
        )
    teacher.check_vocabulary(learner)
    return teacher, learner


def hits(student: Student, pairs: Sequence[Pair], batch: int = 16) -> list[list[bool]]:
    """For each answer and place, whether the student's most likely token is the answer's token there."""
    right: list[list[bool]] = []
    student.net.eval()
    with torch.inference_mode():
        for first in range(0, len(pairs), batch):
            some = pairs[first : first + batch]
            scores, wanted = student(some)
            each = (scores.argmax(-1) == wanted).split([len(pair.answer) for pair in some])
            right += [values.tolist() for values in each]
    return right


def share(right: Sequence[Sequence[bool]]) -> float:
    """Share of right guesses among all tokens."""
    return sum(map(sum, right)) / sum(map(len, right))


def runs_of(right: Sequence[bool]) -> list[int]:
    """For each place, the number of consecutive right guesses from there, at most four."""
    return [
        next((i for i, hit in enumerate(right[at : at + CHAIN]) if not hit), len(right[at : at + CHAIN]))
        for at in range(len(right))
    ]


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
        encoded, there = padded([pair.prompt for pair in pairs])
        written, mask = padded([[*prefix, *pair.answer] for pair in pairs])
        given = {"input_ids": encoded, "attention_mask": there.long(), "decoder_input_ids": written[:, :-1]}
        begins = torch.full((len(pairs),), len(prefix), device=device)
    else:
        written, mask = padded([[*pair.prompt, *pair.answer] for pair in pairs])
        given = {"input_ids": written[:, :-1], "attention_mask": mask[:, :-1].long()}
        begins = torch.tensor([len(pair.prompt) for pair in pairs], device=device)
    answers = mask & (torch.arange(mask.shape[1], device=device) >= begins[:, None])
    # The head is most of a small draft's work, so it runs only on states that predict answer tokens.
    hook = net.get_output_embeddings().register_forward_pre_hook(
        lambda _, read: read[0][answers[:, 1:]][None]
    )
    try:
        logits = net(**given, use_cache=False).logits[0]
    finally:
        hook.remove()
    return logits.float(), written[answers]
