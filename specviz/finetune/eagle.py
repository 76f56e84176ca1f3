"""Train an EAGLE drafter for a user's own model, on the states and tokens of the target's answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig

from specviz.arguments import check_int
from specviz.errors import ModelError, ParameterError, PromptError
from specviz.escape import markdown
from specviz.finetune import eagle_loss, training
from specviz.finetune.answers import Answers
from specviz.finetune.target_states import digest, speaks_by_its_last_state, states_of_answers, twin
from specviz.finetune.training import Pair, Trained, print_line
from specviz.models import load
from specviz.models.additions import EagleHead, load_addition
from specviz.models.eagle import Eagle, Variant
from specviz.models.eagle_loading import read_layers
from specviz.models.layers import embeddings
from specviz.models.loading import find

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specviz.finetune.training import Prompts
    from specviz.models.model import Model
    from specviz.models.protocols import Spec

TEXTS = 8  # answers used to choose the initial scale of the scores
STEPS = 4  # steps ahead for which agreement is reported
TEST_STEPS = 4  # default steps of the training-time test
OTHERS = 0.3  # rate of all but matrices, as a share of the matrices': as in the bundled drafters' recipes


@training.alone
def train_eagle(
    target: Spec,
    prompts: Prompts | Answers,
    out: str | Path,
    generation: int = 3,
    *,
    layers: Sequence[int] | None = None,
    draft_vocabulary: int | None = None,
    own_head: bool = True,
    start: str | Path | None = None,
    steps: int | None = None,
    epochs: float = 3,
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
    """Train an EAGLE drafter on `target`'s answers to `prompts`, and write it in the published format.

    Unfinished work is kept in ``OUT.partial``: the answers, the target's states of their tokens where the
    disk has room (12 GB for 2.6 M tokens, four layers and width 576), then a checkpoint. Repeat the call to
    continue.

    Parameters
    ----------
    target : Model, or anything else that `specviz.load` takes
        A causal model in transformers' format. It is not changed.
    prompts : sequence, or Answers
        As `specviz.generate` takes them, but a list; of a conversation the first turn counts. Or the target's
        answers to them, as `specviz.finetune.answers.read` gives them. Every tenth prompt, and at least the
        last, is held out for measurement.
    out : str or Path
        The folder to write: ``config.json``, ``model.safetensors`` in the target's number format, a card.
    generation : int
        3, or 1 (whose weights EAGLE-2 also uses).
    layers : sequence of int, optional
        Layers whose states generation 3 reads; 0 is the embedding. Default: 2, the middle, and the third from
        the top, as in the authors' code. The last layer's states are taken after the final norm, which other
        tools do not do.
    draft_vocabulary : int, optional
        Rows of generation 3's head: this many of the answers' most common tokens. Default: the whole
        vocabulary.
    own_head : bool
        Train generation 3's head, as in the published drafters. Otherwise its rows stay the target's and are
        not stored, which gives a smaller file that other tools cannot read.
    start : str or Path, optional
        A drafter of this target to train further: a folder, or a bundled one's name. It keeps its layers, the
        tokens of its head, and whether it has a head of its own.
    steps : int, optional
        Steps of generation 3's training-time test (the paper has 7). Default: 4.
    epochs : float
        How often each answer is read.
    rate : float
        Peak learning rate of the matrices (Muon); everything else learns at 0.3 of it (Adam). It rises for 3
        % of the run and then falls to zero along a cosine.
    batch : int
        Texts per update. The scores of the whole vocabulary for each token of their answers, times the steps,
        are in memory at once, so a large vocabulary needs a small batch.
    max_new_tokens : int, optional
        Maximum number of tokens per answer, unless the answers are given; an answer that has not ended by
        then is learnt without an end. Default: 128.
    tokens : int, optional
        Learn from answers with this many tokens in total; a smaller set is part of a larger one. Default:
        all.
    seed : int
        Seed of the initial weights, the order of the answers, and generation 1's noise.
    device : str, optional
        Default: that of a model in memory, otherwise ``cpu``.
    force : bool
        Whether an existing folder may be replaced, and unfinished work with other settings deleted; its
        answers stay if this run would make the same.
    every : float
        Seconds between checkpoints, and between lines of progress.

    Raises
    ------
    ModelError
        If an EAGLE drafter cannot learn from the target, `start` cannot be trained further, or `out` exists.
    PromptError
        If there are fewer than two different prompts, or one cannot be read, is a suite's question or leaves
        no room for an answer.
    ParameterError
        If a value is out of range, has no effect or belongs to the other generation.
    """
    settings = training.Settings(epochs, rate, batch, max_new_tokens, seed, every, say, tokens)
    _check_generation(generation, own_head, layers=layers, draft_vocabulary=draft_vocabulary, steps=steps)
    steps = TEST_STEPS if steps is None else check_int("steps", steps, 1)
    path = training.vacant(out, force)
    given = training.to_learn(prompts, settings)
    training.check_format(target)
    teacher = load(target, device, "float32", invariant=False)
    _refuse(teacher)
    net = twin(teacher.net)
    if not speaks_by_its_last_state(teacher, net):
        raise ModelError(
            f"{teacher.name} ({net.config.model_type}) does not compute its tokens from its head and last "
            f"state alone: an EAGLE drafter cannot learn from it"
        )
    begun = None if start is None else _begun(start, teacher, generation)
    if begun is not None and (layers is not None or draft_vocabulary is not None or not own_head):
        raise ParameterError(f"{start} keeps its layers and head: drop layers, draft_vocabulary, own_head")
    states = begun.layers(teacher) if begun is not None else _layers(teacher, generation, layers)
    words = len(embeddings(teacher.net))
    if draft_vocabulary is not None:
        check_int("draft_vocabulary", draft_vocabulary, 1, words)
    mark = ["eagle", generation, states, draft_vocabulary, own_head, steps, epochs, rate, batch, tokens,
            seed, teacher.name, None if begun is None else digest(begun.net)]  # fmt: skip
    partial, answers = training.gather(teacher, (), given, path, mark, force, settings)
    # The first two tokens of a text are never drafted.
    pairs = [pair for pair in training.pairs_of(answers) if len(pair.prompt) + len(pair.answer) > 2]
    if len(pairs) < 2:
        raise PromptError(f"{teacher.name}'s answers are too short to learn from: use other prompts")
    learnt, held = training.parted(pairs, say)
    learnt = training.some(learnt, tokens, seed)

    shape = Shape(generation, states, draft_vocabulary, own_head)
    model = begun.net if begun is not None else _fresh(teacher, net, shape, learnt, seed)
    read = (*(states if generation == 3 else ()), teacher.layers)
    kept = states_of_answers(net, [*learnt, *held], read, partial, settings)
    loss = KeptLoss(eagle_loss.EagleLoss(net, steps), kept)
    if generation == 3 and begun is None:
        _temper(model, loss, learnt[:TEXTS])
    before, _ = measure(model, loss, held, batch)
    curve = _learn(model, loss, learnt, partial, settings)
    after, runs = measure(model, loss, held, batch)

    by_step = "agreement with the target, by step"
    result = Trained(path, len(learnt), len(held), training.count(learnt), by_step, before, after)
    dtype = training.stored(target, teacher)
    kinds = {"drawn" if pair.drawn else "greedy" for pair in learnt}
    which = " and ".join(sorted(kinds, reverse=True))
    about = (
        f"An EAGLE drafter of generation {generation} for {markdown(teacher.name)}, trained on its {which} "
        "answers by `specviz models eagle`. It is measured with the answer's own tokens given, and after the "
        "first step its own states."
    )
    card = training.card(result, about, _facts(model, states, start), epochs, rate)
    card += training.measured(held, runs, curve)
    scores = training.scores(held, runs, result.tokens)

    def write(folder: Path) -> None:
        save(model, teacher.identity, states, dtype, folder)

    training.publish(partial, path, write, card, scores)
    return result


def _begun(start: str | Path, teacher: Model, generation: int) -> EagleHead:
    """Load a drafter to train it further, in float32."""
    source = find(start)
    head = load_addition(source, source.name) if source is not None else None
    if not isinstance(head, EagleHead):
        raise ModelError(f"{start} is not an EAGLE drafter: start from the folder or the bundled name of one")
    head.on(teacher)
    net = head.net
    if net.generation != generation:
        raise ParameterError(f"{start} is of generation {net.generation}, not {generation}")
    why = [
        "has embeddings of its own" * (net.embed_tokens is not None),
        "goes on from normed states" * net.variant.norm_output,
        "has a head of its own in generation 1" * (net.generation == 1 and net.lm_head is not None),
    ]
    if any(why):
        raise ModelError(f"{start} {next(filter(None, why))}, which is not trained here")
    net.to(teacher.device).requires_grad_(True)
    return head


class Shape(NamedTuple):
    """Shape of a drafter; `train_eagle` explains the fields."""

    generation: int
    states: tuple[int, ...]
    draft_vocabulary: int | None
    own_head: bool


class KeptLoss(NamedTuple):
    """A loss, and a lookup of the target's states by row of the answers."""

    loss: eagle_loss.EagleLoss
    kept: Callable[[int], torch.Tensor]

    def given(self, pairs: Sequence[Pair]) -> tuple[np.ndarray, np.ndarray, torch.Tensor]:
        """Tokens and answer marks, as in `padded`, and the states at them [rows, n, layers, width]."""
        tokens, answer = padded(pairs)
        rows = [self.kept(pair.row) for pair in pairs]
        states = rows[0].new_zeros(*tokens.shape, *rows[0].shape[1:])
        for row, values in enumerate(rows):
            states[row, : len(values)] = values
        return tokens, answer, states


def _learn(
    model: Eagle, loss: KeptLoss, pairs: Sequence[Pair], partial: Path,
    settings: training.Settings,
) -> training.Curve:  # fmt: skip
    """Train the drafter on the mean loss per token."""

    def mean(pairs: list[Pair]) -> tuple[torch.Tensor, torch.Tensor]:
        tokens, answer, states = loss.given(pairs)
        total, shown = loss.loss(model, tokens, answer, states)
        count = int(answer[:, 2:].sum())
        return total / count, shown / count

    # Answers begin in one column, so prompts and answers are padded separately.
    size = lambda pair: (len(pair.answer) // 16, len(pair.prompt))
    return training.learn(model, OTHERS, mean, pairs, partial, settings, size)


def _check_generation(generation: int, own_head: bool, **of_generation_3: int | Sequence[int] | None) -> None:
    if generation not in (1, 3):
        raise ParameterError(f"generation must be 1 (whose weights EAGLE-2 also uses) or 3, got {generation}")
    for name, value in of_generation_3.items():
        if value is not None and generation == 1:
            raise ParameterError(f"{name} needs generation 3: drop it or pass generation=3")
    if generation == 1 and not own_head:
        raise ParameterError("generation 1 always uses the target's head: drop own_head")


@torch.no_grad()
def _temper(model: Eagle, loss: KeptLoss, pairs: Sequence[Pair]) -> None:
    """Set the last norm's weights to the power of two under which some answers are most likely.

    With random states, a large target's head is far too confident; unlearning that takes hundreds of
    updates.
    """
    tokens, answer, states = loss.given(pairs)

    def missed(size: float) -> float:
        model.norm.weight.fill_(size)
        return float(loss.loss(model, tokens, answer, states)[1])

    model.norm.weight.fill_(min([2.0**-i for i in range(8)], key=missed))


def measure(
    model: Eagle, loss: KeptLoss, pairs: Sequence[Pair], batch: int = 16
) -> tuple[tuple[float, ...], list[list[int]]]:
    """How often the drafter's most likely token is the target's, 1, 2, 3 and 4 steps ahead, and runs of hits.

    Shares of steps that no answer has are NaN. A run, one for each place of each answer, is the number of
    right guesses of a chain from there.
    """
    model.eval()
    hits, counted, runs = np.zeros(STEPS), np.zeros(STEPS), []
    for first in range(0, len(pairs), batch):
        some = pairs[first : first + batch]
        tokens, answer, states = loss.given(some)
        every = [right.cpu().numpy() for right in loss.loss.hits(model, tokens, answer, STEPS, states)]
        for step, right in enumerate(every):
            hits[step] += right.sum()
            counted[step] += eagle_loss.chains(answer, step).sum()
        for row, pair in enumerate(some):
            begin, end = len(pair.prompt), len(pair.prompt) + len(pair.answer)
            runs.append([_run(every, row, place, end) for place in range(max(begin, 2), end)])
    return tuple(np.where(counted, hits / np.maximum(counted, 1), np.nan).tolist()), runs


def _run(every: Sequence[np.ndarray], row: int, place: int, end: int) -> int:
    """Number of consecutive right guesses of the chain whose first guess is token `place`."""
    for step, right in enumerate(every):
        if place + step >= end or not right[row, place - 2]:
            return step
    return len(every)


def padded(pairs: Sequence[Pair]) -> tuple[np.ndarray, np.ndarray]:
    """Texts as rows padded on the right [rows, length], and marks of their answers."""
    width = max(len(pair.prompt) + len(pair.answer) for pair in pairs)
    tokens, answers = np.zeros((len(pairs), width), np.int64), np.zeros((len(pairs), width), bool)
    for row, (prompt, answer, *_) in enumerate(pairs):
        end = len(prompt) + len(answer)
        tokens[row, :end] = [*prompt, *answer]
        answers[row, len(prompt) : end] = True
    return tokens, answers


def save(
    model: Eagle, target: dict[str, str], states: Sequence[int], dtype: torch.dtype, folder: Path
) -> None:
    """Write a drafter under the published names; with a draft vocabulary, both ``d2t`` and ``t2d``."""
    tensors = {
        name: (value.to(dtype) if value.is_floating_point() else value).contiguous().cpu()
        for name, value in model.state_dict().items()
    }
    if (kept := eagle_loss.words(model)) is not None:
        there = torch.zeros(model.config.vocab_size, dtype=torch.bool)
        there[kept.cpu()] = True
        tensors["t2d"] = there
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    fields = json.dumps(eagle_loss.config(model, target, states), indent=2)
    (folder / "config.json").write_text(fields + "\n", encoding="utf-8")


def _refuse(model: Model) -> None:
    """Raise `ModelError` unless `model` is a causal model in transformers' format."""
    if not hasattr(model, "net"):
        raise ModelError(f"{model.name} runs on llama.cpp, which provides no hidden states: pass its "
            f"weights as "
                         "a folder in transformers' format")  # fmt: skip
    if model.kind != "causal":
        raise ModelError(f"{model.name} is of kind {model.kind}: an EAGLE drafter needs a causal model")


def _layers(model: Model, generation: int, layers: Sequence[int] | None) -> tuple[int, ...]:
    """Choose the layers whose states are read."""
    if generation == 1:
        return (model.layers,)
    if layers is not None and not layers:
        raise ParameterError("layers must name one or more of the target's layers")
    chosen = tuple(layers) if layers is not None else read_layers({}, 3, model.layers)
    if not all(0 <= layer <= model.layers for layer in chosen):
        named = "layers" if layers is not None else "the authors' choice of layers"
        raise ParameterError(
            f"{named} {', '.join(map(str, chosen))}: {model.name} has 0 (its embedding) to {model.layers}; "
            "pass layers= with those to read"
        )
    return chosen


def _fresh(teacher: Model, net: PreTrainedModel, shape: Shape, learnt: Sequence[Pair], seed: int) -> Eagle:
    """An untrained one-layer drafter with the target's width, heads and feed-forward size."""
    generation, states, draft_vocabulary, own_head = shape
    own, (words, width) = teacher.config, embeddings(net).shape
    rope = {"rope_parameters": own.rope_parameters} if teacher.plain else {}
    heads = teacher.heads * teacher.group
    config = LlamaConfig(
        vocab_size=words, hidden_size=width, num_hidden_layers=1, head_dim=teacher.dim,
        num_attention_heads=heads, num_key_value_heads=heads if generation == 3 else teacher.heads,
        intermediate_size=getattr(own, "intermediate_size", None) or 4 * width,
        max_position_embeddings=min(teacher.max_length, 1 << 20),
        rms_norm_eps=getattr(own, "rms_norm_eps", 1e-6), tie_word_embeddings=False,
        bos_token_id=own.bos_token_id, eos_token_id=list(teacher.eos) or None, pad_token_id=None, **rope,
    )  # fmt: skip
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        variant = Variant(head=own_head) if generation == 3 else None
        model = Eagle(config, generation, draft_vocabulary, len(states), variant)
    if model.d2t is not None:
        counts = np.zeros(words, np.int64)
        np.add.at(counts, [token for pair in learnt for token in pair.answer], 1)
        kept = np.sort(np.argsort(-counts, kind="stable")[:draft_vocabulary])
        model.d2t.copy_(torch.from_numpy(kept - np.arange(len(kept))))
    model.to(teacher.device)
    texts = [[*pair.prompt, *pair.answer] for pair in learnt]
    eagle_loss.begin(model, net, eagle_loss.sizes(net, texts, states) if generation == 3 else [])
    return model


def _facts(model: Eagle, states: Sequence[int], start: str | Path | None) -> dict[str, str]:
    """Rows of the card about the drafter's shape."""
    shape = model.config
    facts = {
        "shape": f"one layer × {shape.hidden_size}, {shape.num_attention_heads} heads "
        f"({shape.num_key_value_heads} for keys and values), feed-forward {shape.intermediate_size}",
        "states read": f"layers {', '.join(map(str, states))} of the target",
    }
    if model.generation == 3:
        kept = shape.vocab_size if model.d2t is None else len(model.d2t)
        facts["tokens of its head"] = f"{kept:,} of {shape.vocab_size:,}"
    if start is not None:
        facts["trained further from"] = markdown(Path(start).name)
    return facts
