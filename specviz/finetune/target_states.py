"""The target's hidden states for texts, kept in a file: computed once, and read in every epoch.

A file holds bfloat16 [tokens - 1, layers, width] for each text: nothing is drafted after a text's last token.
"""

from __future__ import annotations

import copy
import hashlib
import shutil
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from specviz.finetune.checkpoint import writing
from specviz.models.devices import has_bfloat16
from specviz.models.layers import embeddings

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from specviz.finetune.training import Pair, Settings
    from specviz.models import Model

BYTES = 2  # per bfloat16 number
SHARE = 4  # use at most 1 / SHARE of the free disk space
FILE = "states"  # in OUT.partial

Texts = Sequence[Sequence[int]]


def states_of_answers(
    net: PreTrainedModel, pairs: Sequence[Pair], layers: Sequence[int], partial: Path, settings: Settings
) -> Callable[[int], Tensor]:
    """Compute some layers' states of texts (`compute_states`) and return a lookup by row of the answers."""
    texts = [[*pair.prompt, *pair.answer] for pair in pairs]
    place = {pair.row: number for number, pair in enumerate(pairs)}
    of = compute_states(net, texts, layers, partial / FILE, settings)
    return lambda row: of(place[row])


def digest(net: torch.nn.Module) -> str:
    """Hash of a network's weights."""
    made = hashlib.blake2b(digest_size=8)
    for name, value in sorted(net.state_dict().items()):
        made.update(name.encode() + value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return made.hexdigest()


def twin(net: PreTrainedModel) -> PreTrainedModel:
    """Copy the modules but share the weights: transformers leaves hooks on modules that returned states."""
    memo: dict[int, Tensor] = {id(b): b for b in net.buffers()}
    memo |= {id(p): torch.nn.Parameter(p.detach(), False) for p in net.parameters()}
    return copy.deepcopy(net, memo).eval()


@torch.inference_mode()
def speaks_by_its_last_state(model: Model, net: PreTrainedModel) -> bool:
    """Whether a target's scores are its head applied to its last state: some families scale or cap them.

    `net` is its `twin`.
    """
    head, table = net.get_output_embeddings(), embeddings(net)
    ids = torch.arange(min(8, len(table)), device=model.device)[None]
    logits = net(input_ids=ids, use_cache=False).logits.float()
    states = net.get_decoder()(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
    alike = {state.shape[-1] for state in states} == {table.shape[1]} and len(head.weight) == len(table)
    alike = alike and len(states) == model.layers + 1
    return alike and torch.allclose(head(states[-1]).float(), logits, atol=1e-2, rtol=1e-2)


def compute_states(
    net: PreTrainedModel, texts: Texts, layers: Sequence[int], file: Path, settings: Settings
) -> Callable[[int], Tensor]:
    """Compute some layers' states into a file; return a lookup by text, float32 [tokens - 1, layers, width].

    If the disk has little room, each lookup runs the target instead. The file of an interrupted run is
    continued after its last whole pass. The longest texts come first: texts of a pass have similar lengths,
    and if memory runs out, it does so at the start.

    Parameters
    ----------
    net : transformers model
        A causal model in evaluation mode.
    texts : sequence of sequences of int
        Token ids.
    layers : sequence of int
        0 is the embedding; the last layer's states are taken after the final norm.
    settings : Settings
        `batch` is the number of texts per pass; `every` and `say` control the lines of progress.
    """
    order = sorted(range(len(texts)), key=lambda text: -len(texts[text]))
    place = {text: at for at, text in enumerate(order)}
    lengths, width = [len(texts[text]) for text in order], net.config.hidden_size
    size = len(layers) * width * BYTES  # per token
    held = file.stat().st_size if file.exists() else 0
    missing = (sum(lengths) - len(lengths)) * size - held
    free = shutil.disk_usage(file.parent).free
    if missing > free / SHARE:
        settings.say(
            f"{missing / 1e9:.1f} GB of states are more than a quarter of the free {free / 1e9:.1f} GB: the "
            "target reads the texts in every epoch"
        )
        return lambda text: _read(net, [texts[text]], layers)[0].float()
    ends = list(accumulate((length - 1) * size for length in lengths))
    done = next((number for number, end in enumerate(ends) if end > held), len(ends))
    done -= done % settings.batch * (done < len(ends))  # whole passes: other batches round differently
    spoken = began = time.monotonic()
    before = ends[done - 1] if done else 0
    with writing(file), file.open("ab") as out:
        out.truncate(before)
        while done < len(texts):
            for values in _read(net, [texts[text] for text in order[done : done + settings.batch]], layers):
                out.write(values.view(torch.int16).numpy().tobytes())
            out.flush()
            done, now = min(done + settings.batch, len(texts)), time.monotonic()
            if now - spoken > settings.every:
                # Estimate by tokens, since the longest texts come first.
                each = (now - began) / max(1, ends[done - 1] - before)
                spoken, left = now, each * (ends[-1] - ends[done - 1]) / 60
                settings.say(f"the target reads {done:,} of {len(texts):,} texts  {left:.1f} min left")
    spans = list(zip([0, *(end // size for end in ends)], (end // size for end in ends)))
    stored = np.memmap(file, np.int16, "r", shape=(ends[-1] // size, len(layers), width))

    def of(text: int) -> Tensor:
        kept = stored[slice(*spans[place[text]])].copy()  # torch takes no read-only array
        return torch.from_numpy(kept).view(torch.bfloat16).float()

    return of


@torch.no_grad()
def _read(net: PreTrainedModel, texts: Texts, layers: Sequence[int]) -> list[Tensor]:
    """Read texts in one batch and return their states, bfloat16 [tokens - 1, layers, width] each.

    Products are computed in bfloat16 if the device has instructions for it: this takes a quarter of the time
    on a processor that multiplies tiles, and the states are stored in bfloat16 anyway.
    """
    ids = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.long)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor(text)
    ids, half = ids.to(net.device), has_bfloat16(net.device)
    with torch.autocast(net.device.type, torch.bfloat16, enabled=half):
        hidden = net.get_decoder()(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
    kept = torch.stack([hidden[layer] for layer in layers], 2).to("cpu", torch.bfloat16)
    return [kept[row, : len(text) - 1].contiguous() for row, text in enumerate(texts)]
