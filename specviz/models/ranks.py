"""Ranks of torchrun: processes that each hold a shard of a model and decode the same texts in lock-step.

Every rank runs the whole loop: it drafts, verifies and records. Only the target's matrices are split, by
heads and by columns, so the ranks communicate inside its passes: an all-reduce after the embedding, after
attention and after the feed-forward network of each layer, and one all-gather of the logits. All ranks choose
the same tokens because

- each logit is computed on one rank and copied to the others bit for bit, and an all-reduce gives the same
  sum on all ranks;
- random numbers are functions of (seed, prompt, cycle), not of a state, and no choice depends on a clock;
- every rank holds the whole drafter and runs the same code on the same tokens. This requires identical
  hardware: different kinds of processors may round differently.

So tokens need no communication. All texts of a run are compared once, at its end (`Ranks.check`), to detect a
rank that has diverged. Importing this loads no torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from specviz.errors import ModelError, ParameterError, PromptError, SpecvizError

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist
    from transformers import PreTrainedConfig

    from specviz.models.protocols import Drafter

T = TypeVar("T")
# Longest wait for another rank, including the time to read its weights. torchrun detects dead ranks at once.
LIMIT = timedelta(minutes=30)
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # set by torchrun
COMMAND = "torchrun --nproc-per-node {} -m specviz"
DIVERGED = "the ranks are out of step"  # in the error of a run whose texts differ
KEYS = ("k_proj", "qkv_proj", "query_key_value")  # names of the key projections in transformers' plans


class RankError(SpecvizError):
    """An error that stopped a single rank, which prints it itself, whichever rank it is."""


def size() -> int:
    """Number of ranks; 1 outside torchrun."""
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in VARIABLES) else 1


def leads() -> bool:
    """Whether this process writes, prints and shows progress: it is rank 0 or the only process."""
    return size() == 1 or os.environ["RANK"] == "0"


class Ranks:
    """Communication between the ranks, from the view of one of them; without a split there is one rank.

    Messages and compared values are sent as JSON over the CPU, separately from the tensors of the passes.

    Attributes
    ----------
    rank, size : int
        This process's rank, and the number of ranks.
    """

    def __init__(self, several: bool) -> None:
        self.rank, self.size = 0, 1
        self._group: dist.ProcessGroup | None = None
        if several:
            self._meet()

    def _meet(self) -> None:
        """Join torch's process group, with NCCL if there are GPUs, else with gloo."""
        import torch
        import torch.distributed as dist

        local = int(os.environ.get("LOCAL_RANK", os.environ["RANK"]))
        cuda = torch.cuda.is_available()
        if cuda and local >= torch.cuda.device_count():
            raise ModelError(
                f"each rank needs its own GPU, and torch sees {torch.cuda.device_count()}: start as "
                "many ranks (torchrun --nproc-per-node)"
            )
        if not dist.is_initialized():
            device = torch.device("cuda", local) if cuda else None
            if device is not None:
                torch.cuda.set_device(device)
            dist.init_process_group("nccl" if cuda else "gloo", timeout=LIMIT, device_id=device)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._group = dist.new_group(backend="gloo", timeout=LIMIT)

    def __repr__(self) -> str:
        return f"<rank {self.rank} of {self.size}>"

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """Collect every rank's JSON-serialisable value, in order of ranks.

        Raises
        ------
        RankError
            If another rank has died or does not answer within `LIMIT`.
        """
        if self.size == 1:
            return [value]
        import torch
        import torch.distributed as dist

        data = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.long) for _ in range(self.size)]
        try:
            dist.all_gather(sizes, torch.tensor([len(data)]), self._group)
            longest = max(int(n) for n in sizes)
            parts = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.size)]
            dist.all_gather(parts, torch.cat([data, data.new_zeros(longest - len(data))]), self._group)
        except RuntimeError as error:
            raise self.alone(error) from None
        return [json.loads(bytes(part[: int(n)].tolist())) for part, n in zip(parts, sizes)]

    def from_leader(self, make: Callable[[], T]) -> T:
        """Call `make` on rank 0 and return its JSON-serialisable result on all ranks.

        Raises
        ------
        SpecvizError
            On all ranks, if the call failed.
        """
        made = self.tried(lambda: [make()] if self.leads else [])
        return self.gather(made)[0][0]

    def tried(self, make: Callable[[], T]) -> T:
        """Call `make` on each rank and return its own result.

        Raises
        ------
        SpecvizError
            On all ranks, if the call failed on one.
        """
        mine: SpecvizError | None = None
        made: list[T] = []
        try:
            made.append(make())
        except SpecvizError as error:
            mine = error
        for rank, line in enumerate(self.gather(None if mine is None else str(mine))):
            if line is None:
                continue
            if rank == self.rank and self.leads and mine is not None:
                raise mine
            kind = SpecvizError if mine is None else type(mine)
            raise kind(line if rank == 0 else f"rank {rank}: {line}") from mine
        return made[0]

    def check(self, value: T, what: str) -> None:
        """Check that all ranks have the same value.

        Raises
        ------
        SpecvizError
            On all ranks, naming the first whose value differs from rank 0's.
        """
        values = self.gather(value)
        for rank, other in enumerate(values):
            if other != values[0]:
                raise SpecvizError(
                    f"rank {rank} has a different {what} than rank 0, so {DIVERGED}: they must run the same "
                    f"code on the same files and the same kind of device"
                )

    def stop(self, error: Exception) -> None:
        """Handle an error during decoding: raise it unless every rank has met it, since others would wait.

        Errors caused by the prompt or the parameters occur on all ranks; running out of memory may not.
        """
        if self.size == 1:
            return
        user_error = isinstance(error, (PromptError, ParameterError, ModelError))
        if user_error and "out of memory" not in str(error):
            return
        if type(error) in (SpecvizError, RankError):  # raised here, on all ranks or this one
            raise error
        raise self.alone(error) from error

    def alone(self, error: Exception) -> RankError:
        """The `RankError` for an error that only this rank has met."""
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return RankError(f"rank {self.rank} of {self.size} stopped or lost another rank: {reason}")


ALONE = Ranks(False)
_met: list[Ranks] = []


def everyone() -> Ranks:
    """The ranks of this process's group, which is joined on the first call."""
    if size() == 1:
        return ALONE
    if not _met:
        _met.append(Ranks(True))
    return _met[0]


def join() -> Ranks:
    """Return `everyone`, which must be several ranks.

    Raises
    ------
    ModelError
        If there is only one; the message says how to start more.
    """
    if size() < 2:
        raise ModelError(
            "tp_plan splits a model over the ranks of torchrun, but this is a single process: start it as "
            f"{COMMAND.format('N')} bench run ..., or run your own script with torchrun"
        )
    return everyone()


def of(net: torch.nn.Module) -> Ranks:
    """The ranks that hold the shards of a transformers model."""
    return join() if (getattr(net, "tp_size", None) or 1) > 1 else ALONE


def holding(model: Drafter) -> Ranks:
    """The ranks that hold a model."""
    return getattr(model, "ranks", ALONE)


def heads_here(config: PreTrainedConfig, heads: int) -> int:
    """Number of a sharded model's key-value heads on each rank."""
    return heads // size() if cuts_heads(config) else heads


def cuts_heads(config: PreTrainedConfig) -> bool:
    """Whether an architecture's plan splits the heads between ranks; a few plans gather them again."""
    plan = config.base_model_tp_plan or {}
    return any(key.rsplit(".", 1)[-1] in KEYS and how == "colwise" for key, how in plan.items())


def check_plan(config: PreTrainedConfig, name: str) -> None:
    """Check, before any weight is read, that a model can be split over these ranks.

    Raises
    ------
    ModelError
        If transformers has no plan for its architecture, its heads do not divide, or it is quantised.
    """
    instead = "load it with device_map, or on one device"
    if config.is_encoder_decoder or not getattr(config, "base_model_tp_plan", None):
        raise ModelError(
            f"transformers has no tensor-parallel plan for {name} ({config.model_type}): {instead}"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise ModelError(f"{name} is quantised, and packed weights cannot be split: {instead}")
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    if cuts_heads(config) and heads % size():
        able = [str(n) for n in range(2, heads + 1) if heads % n == 0]
        start = f"start {' or '.join(able)} of them (torchrun --nproc-per-node)" if able else instead
        raise ModelError(f"{name} has {heads} key-value head(s), which {size()} ranks cannot share: {start}")


def whole(weight: torch.Tensor) -> torch.Tensor:
    """The complete parameter, gathered from all ranks if it is in shards; every rank must then call this."""
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight


def here(weight: torch.Tensor) -> torch.Tensor:
    """The part of a parameter in this process: its shard, or all of it."""
    return weight.to_local() if hasattr(weight, "to_local") else weight
