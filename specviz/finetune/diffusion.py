"""Adapt a causal model to fill masked cells: a low-rank adapter, trained on short tasks and their answers.

The model's weights stay fixed. The trained parts are a product of two thin matrices added to each matrix
(LoRA, Hu et al. 2021) and the embedding of the mask token. Attention is bidirectional, and a cell is
predicted where the causal model predicted its token, at the place before it (Dream, Ye et al. 2025). The
objective is in `specviz.finetune.masking`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NotRequired

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from typing_extensions import TypedDict

from specviz.arguments import check_int
from specviz.errors import ModelError, ParameterError, PromptError
from specviz.escape import markdown
from specviz.files import read_json, read_json_lines
from specviz.finetune import training
from specviz.finetune.answers import check_apart, digest
from specviz.finetune.masking import draw_masks
from specviz.finetune.training import Pair, Trained, print_line
from specviz.models import adapters, load
from specviz.models.devices import has_bfloat16
from specviz.models.loading import find
from specviz.paths import expanded

if TYPE_CHECKING:
    from specviz.finetune.answers import Answers
    from specviz.models.model import Model
    from specviz.models.protocols import AnyTokenizer, Net, Spec

# Cells of padding after the longest answer of a batch: (share of the batches, from, to).
PADDING = ((0.6, 0, 8), (0.3, 8, 48), (0.1, 48, 200))
CELLS = 4096  # maximum tokens per pass: longer canvases are split into passes of fewer rows
BLOCKWISE = 0.5  # share of the texts that are masked block by block, as in decoding


class Text(TypedDict):
    """A line of a file of texts: a task and its answer."""

    prompt: str
    answer: str
    kind: NotRequired[str]


def read_texts(path: str | Path) -> list[Text]:
    """Read a file of texts.

    Raises
    ------
    PromptError
        If the file cannot be read, or a line is not a task with its answer; the message names the line.
    """
    return read_json_lines(
        expanded(path, PromptError), Text, "write one prompt and answer per line", PromptError
    )


@training.alone
def adapt(
    target: Spec,
    texts: Sequence[Text],
    out: str | Path,
    *,
    answers: Answers | None = None,
    start: str | Path | None = None,
    rank: int = 32,
    longest: int = 64,
    epochs: float = 1,
    rate: float = 0.003,
    batch: int = 16,
    tokens: int | None = None,
    seed: int = 0,
    device: str | None = None,
    force: bool = False,
    every: float = 60.0,
    say: Callable[[str], None] = print_line,
) -> Trained:
    """Train a low-rank adapter that makes a causal model a masked-diffusion model, and write its folder.

    Unfinished work is kept in ``OUT.partial``. Repeat the call to continue.

    Parameters
    ----------
    target : str or Path
        Name or folder of a causal model of the Llama family. It is not changed.
    texts : list of dict
        With ``prompt`` and ``answer``. Every tenth, and at least the last, is held out.
    out : str or Path
        The folder to write; `specviz.load` reads it if the target can be loaded.
    answers : Answers, optional
        The target's own answers, to learn those that end within `longest` tokens as well.
    start : str or Path, optional
        An adapter of this target to train further; it is not changed.
    rank : int
        Rank of the adapter's products; if `start` is given, its rank is used instead.
    longest : int
        Maximum number of tokens per answer, including the end token; longer answers are left out.
    epochs, batch, tokens, seed, device, force, every
        See `specviz.finetune.align.align`.
    rate : float
        Peak learning rate of the matrices (Muon) and of the mask's embedding (Adam).

    Raises
    ------
    ModelError
        If the target cannot be adapted or has no end token or no unused special token, `start` is not an
        adapter of it, or `out` exists.
    PromptError
        If fewer than two texts are short enough, or one has a suite's question.
    ParameterError
        If a value is out of range, or the target is not given by name or folder.
    """
    settings = training.Settings(epochs, rate, batch, None, seed, every, say, tokens)
    check_int("rank", rank, 1)
    check_int("longest", longest, 1)
    path = training.vacant(out, force)
    if not isinstance(target, str | Path):
        raise ParameterError("an adapter is loaded with its target by name: give the target's name or folder")
    name = str(target)
    if (folder := find(target)) and folder == expanded(target):  # not a name: loadable from anywhere
        name = str(folder.resolve())
    check_apart([text["prompt"] for text in texts])
    model = adapters.base(load(target, device, "float32", invariant=False, kernels="plain", backend="torch"))
    if not model.eos:
        raise ModelError(f"{model.name} has no end token, with which answers must end")
    tensors = None if start is None else _tensors(start, model)
    rank = rank if tensors is None else next(v.shape[0] for k, v in tensors.items() if k.endswith(".down"))
    mask = unused_token(model)
    pairs = _pairs(model, texts, answers, longest)
    if len(pairs) < 2:
        raise PromptError(f"adapting needs at least two texts of at most {longest} tokens: one is held out")
    learnt, held = training.parted(pairs, say)
    learnt = training.some(learnt, tokens, seed)
    mark = [
        "diffusion",
        rank,
        longest,
        epochs,
        rate,
        batch,
        tokens,
        seed,
        model.content,
        digest((pair.prompt, pair.answer) for pair in pairs),
        None if tensors is None else [float(value.double().sum()) for value in tensors.values()],
    ]
    partial = training.begun(path, mark, force)
    with torch.random.fork_rng([]):
        torch.manual_seed(seed)
        net = AdaptedNet(model, rank, mask)
    if tensors is not None:
        net.put(tensors)
    loss = MaskedLoss(net, model.eos[0])
    before = bound(loss, held, batch)
    curve = training.learn(net, 1.0, loss, learnt, partial, settings)
    after = bound(loss, held, batch)
    nats = "nats per cell, padding included"
    result = Trained(path, len(learnt), len(held), training.count(learnt), nats, (before,), (after,))
    about = (
        f"{markdown(model.name)} as a masked-diffusion model: a low-rank adapter by `specviz models "
        "diffusion`. Attention is bidirectional; the position before a cell predicts it."
    )
    number = sum(p.numel() for p in net.parameters() if p.requires_grad)
    token = model.tokenizer.convert_ids_to_tokens(mask) if model.tokenizer else str(mask)
    facts = {
        "trained parameters": f"{number:,} of {model.parameters:,}",
        "mask token": f"{markdown(token)} ({mask}), its embedding trained",
        **({} if start is None else {"trained further from": markdown(Path(start).name)}),
    }
    card = training.card(result, about, facts, epochs, rate) + training.measured([], [], curve)
    write = lambda folder: adapters.save(folder, net.tensors(), model, name, mask)
    training.publish(partial, path, write, card)
    return result


def _tensors(start: str | Path, model: Model) -> dict[str, Tensor]:
    """Load the tensors of an adapter of `model`, to train it further."""
    folder, name = find(start), Path(start).name
    fields = None if folder is None else read_json(folder / "config.json", dict, error=ModelError)
    if folder is None or not fields or fields.get("model_type") != adapters.TYPE:
        raise ModelError(f"{start} is not a diffusion adapter: start from the folder or bundled name of one")
    config, tensors = adapters.read(folder, name, fields)
    adapters.check_content(config, name, adapters.content_of(model))
    adapters.check_shapes(model, tensors, name)
    return tensors


def unused_token(model: Model) -> int:
    """Find a special token that no chat uses, to stand for the mask.

    Raises
    ------
    ModelError
        If there is none.
    """
    words: AnyTokenizer = model.tokenizer
    template = str(getattr(words, "chat_template", "") or "")
    added = {} if words is None else words.added_tokens_decoder
    unused = [
        i for i, token in added.items()
        if token.special and i not in model.eos and token.content not in template and i < model.vocabulary
        and i not in (words.bos_token_id, words.eos_token_id, words.pad_token_id, words.unk_token_id)
    ]  # fmt: skip
    if not unused:
        raise ModelError(f"the tokenizer of {model.name} has no unused special token for the mask")
    return max(unused)


def _pairs(model: Model, texts: Sequence[Text], answers: Answers | None, longest: int) -> list[Pair]:
    """Texts and answers as token ids, without those that are too long.

    All end with the model's first end token, which also pads canvases, whichever one the target wrote.
    """
    words: AnyTokenizer = model.tokenizer
    end, pairs = model.eos[0], []
    prompts = training.encoded(model, [text["prompt"] for text in texts])
    for number, (text, prompt) in enumerate(zip(texts, prompts)):
        ids = [*words(text["answer"], add_special_tokens=False)["input_ids"], end]
        pairs.append(Pair(prompt, ids, number, number, text.get("kind", "")))
    if answers is not None:
        answers.check(model)
        first = len(pairs)
        pairs += [
            pair._replace(number=first + pair.number, answer=[*pair.answer[:-1], end])
            for pair in training.pairs_of(answers) if pair.answer and pair.answer[-1] in model.eos
        ]  # fmt: skip
    room = model.max_length
    return [p for p in pairs if len(p.answer) <= longest and len(p.prompt) + len(p.answer) <= room]


class AdaptedLinear(nn.Module):
    """A frozen linear layer plus the trained product of two thin matrices.

    Parameters
    ----------
    linear : torch.nn.Linear
    rank : int
    dtype : torch.dtype
        Number format of the computation.
    """

    def __init__(self, linear: nn.Linear, rank: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = linear.weight.detach().to(dtype)
        self.bias = None if linear.bias is None else linear.bias.detach().to(dtype)
        self.down = nn.Parameter(torch.randn(rank, linear.in_features) * linear.in_features**-0.5)
        self.up = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        """The layer's output plus the adapter's."""
        dtype = self.weight.dtype
        flat = x.reshape(-1, x.shape[-1]).to(dtype)
        y = torch.addmm(flat @ self.weight.T, flat @ self.down.to(dtype).T, self.up.to(dtype).T)
        y = y if self.bias is None else y + self.bias
        return y.view(*x.shape[:-1], -1)


class AdaptedNet(nn.Module):
    """A target's network with bidirectional attention and a trained adapter.

    Parameters
    ----------
    model : Model
        The target; it is not changed.
    rank : int
    mask : int
        The token whose embedding is trained.
    """

    def __init__(self, model: Model, rank: int, mask: int) -> None:
        super().__init__()
        dtype = torch.bfloat16 if has_bfloat16(model.device) else torch.float32
        net: Net = copy.deepcopy(model.net).requires_grad_(False)
        net.config.is_causal = False
        net.set_attn_implementation("eager")  # backward is twice as fast as the fused one at these lengths
        layers = adapters.adapted(net)
        self.names = list(layers)
        for name, layer in layers.items():
            parent = net.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], AdaptedLinear(layer, rank, dtype))
        for each in net.model.layers:
            each.self_attn.is_causal = False
        self.net = net
        self.head = net.get_output_embeddings().weight.detach().to(dtype)
        self.id = mask
        self.mask = nn.Parameter(net.get_input_embeddings().weight[mask].detach().clone())
        self.to(model.device)

    def forward(self, ids: Tensor, masked: Tensor, learnt: Tensor) -> Tensor:
        """Scores [learnt cells, vocabulary] for ids [rows, length] whose `masked` cells are hidden."""
        x = self.net.get_input_embeddings()(ids)
        x = torch.where(masked[..., None], self.mask, x)
        state = self.net.model(inputs_embeds=x, use_cache=False).last_hidden_state
        place = learnt.flatten().nonzero()[:, 0] - adapters.SHIFT
        scores = state.flatten(0, 1).index_select(0, place).to(self.head.dtype) @ self.head.T
        hidden = torch.zeros(scores.shape[-1], dtype=torch.bool, device=scores.device)
        hidden[self.id] = True
        return scores.float().masked_fill(hidden, -torch.inf)

    def tensors(self) -> dict[str, Tensor]:
        """The adapter's tensors, as its folder holds them."""
        layers = {name: self.net.get_submodule(name) for name in self.names}
        given = {
            f"{name}.{part}": getattr(layer, part)
            for name, layer in layers.items()
            for part in ("down", "up")
        }
        return {**given, "mask": self.mask}

    @torch.no_grad()
    def put(self, tensors: dict[str, Tensor]) -> None:
        """Copy an adapter's tensors, as its folder holds them, into the parameters."""
        for name, value in self.tensors().items():
            value.copy_(tensors[name])


class MaskedLoss:
    """Nats per cell of a batch's answers, on canvases with a random amount of padding.

    Parameters
    ----------
    net : AdaptedNet
    end : int
        The end token, which also pads the answers.
    """

    def __init__(self, net: AdaptedNet, end: int) -> None:
        self.net, self.end = net, end

    def __call__(self, pairs: Sequence[Pair]) -> tuple[Tensor, Tensor]:
        """The loss twice: for the gradient, and for display."""
        rng = np.random.default_rng(int(torch.randint(1 << 62, ())))
        canvas, cells = canvases(pairs, self.end, rng)
        masks = draw_masks(canvas, cells, self.end, BLOCKWISE, rng)
        device, weights = self.net.head.device, np.zeros(masks.learnt.shape, np.float32)
        weights[masks.learnt] = masks.weights
        total = torch.zeros((), device=device)
        rows = max(1, CELLS // canvas.shape[1])  # per pass
        for first in range(0, len(canvas), rows):
            part = slice(first, first + rows)
            arrays = canvas[part], masks.masked[part], masks.learnt[part], weights[part]
            ids, masked, learnt, weight = (torch.from_numpy(each).to(device) for each in arrays)
            if not learnt.any():
                continue
            if rows < len(canvas):  # hold one pass's activations: recompute the others in the backward pass
                scores = checkpoint(self.net, ids, masked, learnt, use_reentrant=False)
            else:
                scores = self.net(ids, masked, learnt)
            total = total + cross_entropy(scores, ids[learnt], reduction="none") @ weight[learnt]
        return total, total.detach()


def canvases(pairs: Sequence[Pair], end: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A batch's canvases, int [rows, length], and marks of the places that are cells, bool [rows, length]."""
    share = rng.choice(len(PADDING), p=[part for part, *_ in PADDING])
    width = max(len(pair.prompt) + len(pair.answer) for pair in pairs) + int(
        rng.integers(*PADDING[share][1:])
    )
    canvas = np.full((len(pairs), width), end, np.int64)
    for row, pair in zip(canvas, pairs):
        text = pair.prompt + pair.answer
        row[: len(text)] = text
    begin = np.array([len(pair.prompt) for pair in pairs])
    return canvas, np.arange(width) >= begin[:, None]


@torch.no_grad()
def bound(loss: MaskedLoss, pairs: Sequence[Pair], batch: int) -> float:
    """Nats per cell of answers: the objective, with the same masks each time."""
    total = count = 0.0
    order = sorted(pairs, key=lambda pair: len(pair.prompt) + len(pair.answer))
    half = loss.net.head.dtype == torch.bfloat16
    for first in range(0, len(order), batch):
        part = order[first : first + batch]
        with (
            torch.random.fork_rng([]),
            torch.autocast(loss.net.head.device.type, torch.bfloat16, enabled=half),
        ):
            torch.manual_seed(first)
            total += float(loss(part)[1]) * len(part)
        count += len(part)
    return total / count
