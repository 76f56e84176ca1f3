"""Cut a small, untrained draft out of its target: first layers, and the most common tokens of its answers."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from specviz.arguments import check_int
from specviz.errors import ModelError
from specviz.escape import markdown
from specviz.finetune import training
from specviz.finetune.align import ABSENT, Student
from specviz.models import load, trimmed
from specviz.models.bergamot import trimmed as bergamot
from specviz.models.bergamot.model import Bergamot
from specviz.models.model import Model

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specviz.finetune.answers import Answers
    from specviz.models.protocols import Spec


TEXTS = 16  # answers used to choose the scale of the scores


@training.alone
def cut(
    target: Spec, answers: Answers, out: str | Path, layers: int = 2, vocabulary: int = 8192, *,
    device: str | None = None, force: bool = False, say: Callable[[str], None] = training.print_line,
) -> Path:  # fmt: skip
    """Write the first layers of a target as a separate draft, for `specviz.finetune.align` to train.

    For a translator these are decoder layers. The draft uses the target's embedding, head and encoder, so the
    folder does not store them.

    Parameters
    ----------
    target : Model, or anything else that `specviz.load` takes
        A causal model of the Llama family on torch, or a Bergamot translator.
    answers : Answers
        The target's answers. The draft can write only their most common tokens.
    out : str or Path
        The folder to write.
    layers : int
        Number of the target's layers to keep.
    vocabulary : int
        Rows of the draft's head.
    device : str, optional
        Default: that of a model in memory, otherwise ``cpu``.
    force : bool
        Whether an existing folder may be replaced.

    Raises
    ------
    ModelError
        If the target cannot be cut, the answers are another model's, or `out` exists.
    ParameterError
        If `layers` or `vocabulary` is out of range for the target.
    """
    path = training.vacant(out, force)
    training.check_format(target)
    teacher = load(target, device, "float32", invariant=False)
    if not isinstance(teacher, Bergamot) and not (isinstance(teacher, Model) and teacher.plain):
        raise ModelError(
            f"{teacher.name} cannot be cut: use a causal model of the Llama family on torch, or a Bergamot "
            "translator"
        )
    answers.check(teacher)
    check_int("layers", layers, 1, teacher.layers)
    check_int("vocabulary", vocabulary, 1, teacher.vocabulary)
    learnt, _ = training.parted(training.pairs_of(answers), say)
    counts = Counter(chain.from_iterable(pair.answer for pair in learnt))
    tokens = training.draft_tokens(teacher.eos, counts, vocabulary, say)
    weights: bergamot.TrimmedDecoder | trimmed.TrimmedNet
    draft: bergamot.TrimmedBergamot | trimmed.TrimmedModel
    if isinstance(teacher, Bergamot):
        weights = bergamot.cut(teacher.net, layers, tokens)
        draft = bergamot.TrimmedBergamot(weights, teacher, path.name)
    else:
        weights = trimmed.cut(teacher.net, layers, tokens)
        draft = trimmed.TrimmedModel(weights, teacher, path.name)
    weights.temper(_factor(draft, learnt[:TEXTS]))
    share = sum(counts[token] for token in tokens) / sum(counts.values())

    def write(folder: Path) -> None:
        draft.save(weights.on(teacher.net), torch.float16, folder)

    card = (
        f"# {markdown(path.name)}\n\nThe first {layers} layers of {markdown(teacher.name)}, not trained. "
        f"It can write {len(tokens):,} of the {teacher.vocabulary:,} tokens, which cover {share:.1%} of the "
        "answers. Made by `specviz models cut`; embedding and head are the target's own.\n"
    )
    partial = training.begun(path, ["cut", teacher.content, layers, vocabulary], force)
    training.publish(partial, path, write, card)
    return path


@torch.no_grad()
def _factor(draft: bergamot.TrimmedBergamot | trimmed.TrimmedModel, pairs: Sequence[training.Pair]) -> float:
    """Scale for the draft's scores: the power of two under which some answers are most likely.

    The last norm's weights are meant for the last layer. After an early layer they make the draft far too
    confident, and training would spend most of its time correcting that.
    """
    student = Student(draft)
    scores, wanted = student(pairs)
    factors = [2.0**-i for i in range(8)]
    return min(factors, key=lambda by: float(cross_entropy(by * scores, wanted, ignore_index=ABSENT)))
