"""Rewrite a drafter's folder with its matrices in eight bits, which halves its size."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file, save

from specviz.errors import ModelError
from specviz.finetune.training import SCORES, begun, publish, read_card, vacant
from specviz.models.additions import load_addition
from specviz.models.eight_bits import pack
from specviz.models.loading import find

WEIGHTS = "model.safetensors"
KEPT = "config.json", "README.md", "training.json", SCORES


@dataclass(frozen=True)
class Shrunk:
    """A drafter whose matrices have been stored in eight bits.

    Attributes
    ----------
    path : Path
    before, after : int
        Size of its weights in bytes.
    """

    path: Path
    before: int
    after: int

    def __str__(self) -> str:
        return f"{self.path} (weights of {self.before / 1e6:.1f} MB in {self.after / 1e6:.1f} MB)"


def shrink(drafter: str | Path, out: str | Path, *, force: bool = False) -> Shrunk:
    """Write a drafter trained on top of a target to a new folder, with its matrices in eight bits.

    It loads as before and drafts slightly differently: no weight changes by more than 1/254 of the largest in
    its row. Its drafts are still verified, so exact methods write the same texts.

    Parameters
    ----------
    drafter : str or Path
        A folder with one file of weights, as `specviz models align`, `eagle` and `heads` write it, or a
        bundled name.
    out : str or Path
        The folder to write.
    force : bool
        Whether an existing folder may be replaced.

    Raises
    ------
    ModelError
        If it is a model by itself, has several files of weights, is in eight bits already, or `out` exists.
    """
    path = vacant(out, force)
    folder = find(drafter) or Path(drafter)
    if load_addition(folder, folder.name) is None:
        raise ModelError(
            f"{drafter} is a model by itself: only drafters on a target's own layers can be shrunk"
        )
    if not (folder / WEIGHTS).is_file():
        raise ModelError(f"{folder} has no {WEIGHTS}: only a drafter in one file can be shrunk")
    tensors = load_file(folder / WEIGHTS)
    packed = pack(tensors)
    if len(packed) == len(tensors):
        raise ModelError(f"{folder} has no float matrices: its weights are already in eight bits")
    kept = {name: (folder / name).read_bytes() for name in KEPT if (folder / name).is_file()}
    card = read_card(kept.pop("README.md", b""), folder)
    weights = save(packed, metadata={"format": "pt"})
    sizes = (folder / WEIGHTS).stat().st_size, len(weights)
    stored = (
        f"\nStored with its matrices in eight bits and one scale per row (`specviz models shrink`): "
        f"{sizes[0] / 1e6:.1f} MB in {sizes[1] / 1e6:.1f} MB. The numbers above are from before.\n"
    )

    def write(made: Path) -> None:
        for name, content in kept.items():
            (made / name).write_bytes(content)
        (made / WEIGHTS).write_bytes(weights)

    partial = begun(path, ["shrink", hashlib.blake2b(weights).hexdigest()], force)
    publish(partial, path, write, card + stored if card else "")
    return Shrunk(path, *sizes)
