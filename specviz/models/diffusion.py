"""Masked-diffusion language models ready to run: a bidirectional transformer and its mask token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import PreTrainedModel

from specviz.errors import ModelError
from specviz.models import kernels as layouts
from specviz.models.canvas import Canvas
from specviz.models.llama import Llama, describes, groups
from specviz.models.torch_model import TorchModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from specviz.models.context import PassInput
    from specviz.models.protocols import Storage


class Diffusion(TorchModel):
    """A bidirectional model of the Llama family that predicts masked cells from the others.

    Parameters
    ----------
    net : LlamaForCausalLM or Qwen2ForCausalLM
        The weights; read, never changed. LLaDA is a Llama and Dream a Qwen2 under other names
        (`specviz.models.diffusion_checkpoints`).
    tokenizer : transformers tokenizer, optional
        Without one, the model takes and returns token ids only.
    name : str, optional
    mask : int
        The id of the mask token.
    shift : {0, 1}
        Where a cell's prediction is read: at the cell's own position (LLaDA), or at the position before it
        (Dream, which was initialised from an autoregressive model's weights).
    kernels : str, optional
        See `Model`.

    Attributes
    ----------
    vocabulary, eos, max_length, layers, group
        See `Model`.

    Raises
    ------
    ModelError
        If the net is of another family, `shift` is neither 0 nor 1, or the mask token is outside the
        vocabulary.
    """

    kind = "diffusion"

    def __init__(
        self, net: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None, name: str | None = None,
        *, mask: int, shift: int = 0, kernels: str | None = None,
    ) -> None:  # fmt: skip
        self.name = name or type(net).__name__
        if not describes(net):
            raise ModelError(
                f"{self.name} ({net.config.model_type}) is not a plain member of the Llama family"
            )
        super().__init__(net, tokenizer, self.name, kernels)
        config = net.config
        self.layers = config.num_hidden_layers
        heads = config.num_attention_heads
        self.heads = config.num_key_value_heads
        self.group = heads // self.heads
        self.dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        if shift not in (0, 1):
            raise ModelError(f"{self.name}: shift must be 0 or 1, got {shift!r}")
        if not 0 <= mask < self.vocabulary:
            raise ModelError(f"{self.name}: mask token {mask} is outside its vocabulary of {self.vocabulary}")
        self.mask, self.shift = mask, shift
        self._llama = self._laid()

    def open(self, prompts: Sequence[Sequence[int]], room: int, **policy: Any) -> Canvas:
        """Open canvases that hold `prompts` (token ids, one list per row), each with `room` masked cells.

        Parameters
        ----------
        prompts : list of lists of int
        room : int
            Masked cells of each canvas.
        **policy
            ``block``, ``cache``, ``refresh``, ``cache_rule`` and ``canvases``: see `Canvas`.

        Raises
        ------
        PromptError
            If a prompt is empty, too long, or holds an id outside the vocabulary.
        ModelError
            If the storage does not fit into memory.
        """
        stale = self._llama.stale()
        if stale:
            self._llama = self._laid()
        if self.order_stale(stale):
            self.make_invariant()
        return Canvas(self, prompts, room, **policy)

    def _laid(self) -> Llama:
        self.kernels = layouts.choose(self.requested_kernels, self.net, groups(self.net))
        return self.function(self.kernels)

    def function(self, layout: str, invariant: bool = False) -> Llama:
        """See `TorchModel.function`."""
        return Llama(self.net, self.layers, layout, invariant)

    def make_invariant(self) -> None:
        """See `Model.make_invariant`; a row is a position of a canvas."""
        function = self.ordered_function()
        assert isinstance(function, Llama)
        self._llama = function

    def run(self, given: PassInput, store: Storage) -> torch.Tensor:
        """Run a pass over ids [rows, n]; return logits [places, vocabulary] at the flattened places to keep.

        The logits are float32, or float64 for a float64 model. The mask token gets -inf, so that no cell
        becomes a mask (MDLM, Sahoo et al. 2024; the published samplers of LLaDA and Dream allow it).
        """
        last, _ = self._llama(given, store)
        scores = self._llama.head(last)
        scores = scores if scores.dtype == torch.float64 else scores.float()
        scores[:, self.mask] = -torch.inf
        return scores
