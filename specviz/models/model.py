"""Causal language models ready to run: weights, tokenizer and the facts that the decoding loop needs."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from specviz.errors import ModelError
from specviz.models import attention, gemma2, geometry, ranks
from specviz.models import kernels as layouts
from specviz.models.context import Context, PassInput, Spread, States, StorageShape, Store
from specviz.models.layers import compact
from specviz.models.llama import Llama, describes, groups
from specviz.models.torch_model import UNBOUNDED, TorchModel, unserved

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


ORIGINAL = "original_max_position_embeddings"  # config field: context length of the original training
# Config fields of features that this backend does not compute, and their names in errors.
UNKNOWN = {
    "attn_logit_softcapping": "attention soft-capping",
    "final_logit_softcapping": "soft-capped scores",
    "num_kv_shared_layers": "layers that share keys and values",
    "kv_lora_rank": "latent attention",
    "attention_chunk_size": "chunked attention",
}

_running = threading.Lock()  # held while a model's config names our attention
BIDIRECTIONAL = "it is not a causal language model (its attention is bidirectional)"
GEMMA2 = ("attn_logit_softcapping", "final_logit_softcapping")  # fields of `UNKNOWN` computed for Gemma 2


class Model(TorchModel):
    """A transformers causal language model with the interface of `specviz.models.protocols.Model`.

    Parameters
    ----------
    net : PreTrainedModel
        Already on its device and in its number format. It is read, never changed.
    tokenizer : transformers tokenizer, optional
        Without one, the model takes and returns token ids only.
    name : str, optional
    plain : bool, optional
        Force (True) or forbid (False) the plain function for the Llama family. Default: use it if it applies.
    layers : int, optional
        Run only the first `layers` layers; see `first`.
    kernels : str, optional
        Layout of the matrices: see `specviz.models.kernels.choose`. Default: the fastest on this machine.

    Attributes
    ----------
    kernels : str
        The layout in use; ``plain`` if transformers' modules run.
    vocabulary : int
        Rows of the head.
    eos : tuple of int
        Ids that end a text, from the generation config.
    max_length : int
        Maximum tokens of one text: the model's positions, or its sliding window if that is shorter.
    layers, group : int
        Number of layers; query heads that share one key-value head.
    geometry : dict or None
        Counts and widths, from `specviz.models.geometry.causal`.
    places : list of (torch.device, int) or None
        For a model on several devices: each device, in layer order, with its number of layers. Ids go to the
        first device and logits come back to it.
    ranks : specviz.models.ranks.Ranks
        The processes that the model is split over, including this one; usually it is the only one. Contexts
        hold the keys and values of this process's heads.

    Raises
    ------
    ModelError
        If this backend cannot serve the model; the message says why.
    """

    kind = "causal"

    def __init__(
        self, net: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None, name: str | None = None,
        plain: bool | None = None, layers: int | None = None, kernels: str | None = None,
    ) -> None:  # fmt: skip
        name = name or type(net).__name__
        _check_served(net, name)
        super().__init__(net, tokenizer, name, kernels)
        self.places, self.ranks, config = _places(net, name), ranks.of(net), net.config
        if self.places and layers:
            raise ModelError(
                f"the first layers of {self.name} cannot be run separately: it is on several devices"
            )
        self.layers = layers or config.num_hidden_layers
        heads = config.num_attention_heads
        self.heads = getattr(config, "num_key_value_heads", None) or heads
        self.group = heads // self.heads
        self.dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        if self.ranks.size > 1:
            self.heads = ranks.heads_here(config, self.heads)
        # Within the window a sliding layer equals a full one; only Gemma 2 supports texts beyond the window.
        self.window = _window(config)
        self.geometry = geometry.causal(net, self.layers)
        self._family = gemma2.Gemma2 if gemma2.describes(net) else Llama if describes(net) else None
        self.plain = self._family is not None if plain is None else plain
        if self.plain and self._family is None:
            raise ModelError(f"{self.name} ({config.model_type}) is not a plain member of the Llama family")
        # Gemma 2's norms compute in float32 whatever their stored format.
        narrow = 1 if self._family is gemma2.Gemma2 else 0
        if self.plain and len({p.dtype for p in net.parameters() if p.ndim > narrow}) > 1:
            raise unserved(
                self.name, config.model_type,
                "its weights have several number formats; load it with dtype='float32'",
            )  # fmt: skip
        if not (self.plain and self._family is gemma2.Gemma2):  # its plain function computes the window
            self.max_length = min(self.max_length, self.window or UNBOUNDED)
        rope = getattr(config, "rope_parameters", None) or {}
        if rope.get("rope_type") == "longrope":
            # Beyond this length a full pass uses rotary angles that differ from those of the cached keys.
            short = rope.get(ORIGINAL) or getattr(config, ORIGINAL, None)
            self.max_length = min(self.max_length, short or UNBOUNDED)
        self._llama = self._laid()
        self._shallow = _first(net, self.layers) if self.layers < config.num_hidden_layers else net
        self._count: torch.Tensor | None = None

    # -- running ----------------------------------------------------------------------------------

    def open(self, prompts: Sequence[Sequence[int]], room: int) -> Context:
        """Open a context that holds `prompts` (token ids, one list per row), not yet computed.

        Parameters
        ----------
        prompts : list of lists of int
        room : int
            Maximum number of tokens that follow the longest prompt at any time, draft nodes included.

        Raises
        ------
        PromptError
            If a prompt is empty, longer than the model's context, or holds an id outside the vocabulary.
        ModelError
            If the storage does not fit into memory, or the model cannot be invariant on this many threads.
        """
        stale = self._llama is not None and self._llama.stale()
        if stale:
            self._llama = self._laid()
        if self.order_stale(stale):
            self.make_invariant()
        return Context(self, prompts, room)

    def _laid(self) -> Llama | None:
        """Choose a layout and build the plain function; None if transformers' modules run."""
        if not self.plain:
            if self.requested_kernels not in (None, layouts.PLAIN):
                raise ModelError(
                    f"{self.name} runs through transformers' modules, which keep their layout: drop "
                    f"kernels={self.requested_kernels!r}"
                )
            self.kernels = layouts.PLAIN
            return None
        self.kernels = layouts.choose(self.requested_kernels, self.net, groups(self.net))
        self._weigh()
        return self.function(self.kernels)

    @property
    def layouts(self) -> tuple[str, ...]:
        """Layouts available on this machine that change no weight."""
        return layouts.keeping(self.net) if self.plain else (layouts.PLAIN,)

    def function(self, layout: str, invariant: bool = False) -> Llama:
        """See `TorchModel.function`."""
        assert self._family is not None
        return self._family(self.net, self.layers, layout, invariant)

    def make_invariant(self) -> None:
        """Make each row of a pass bit-identical to the same row computed alone (`specviz.models.ordered`).

        Raises
        ------
        ModelError
            If tests show that this fails here, for this model, layout, format and number of threads.
        """
        function = self.ordered_function(plain=self._llama is not None)
        assert isinstance(function, Llama)
        self._llama = function
        self._weigh()

    @property
    def plain_function(self) -> Llama | None:
        """The function that computes passes; None if transformers' modules run."""
        return self._llama

    def first(self, layers: int) -> Model:
        """Early-exit drafter: the first `layers` layers with the same norm and head, sharing the weights."""
        if not 1 <= layers <= self.layers:
            raise ModelError(f"{self.name} has {self.layers} layers; first({layers}) is out of range")
        name = f"{self.name}[:{layers}]"
        first = Model(self.net, self.tokenizer, name, self.plain, layers, self.requested_kernels)
        if self.invariant:
            first.make_invariant()
        return first

    def shape(self, rows: int, slots: int) -> StorageShape:
        """Shape of the storage for a context of `rows` x `slots` tokens, in attention's format.

        An invariant model of 16 bits stores float32: converting the cache in every pass costs more.
        """
        dtype = self.attention_dtype
        return StorageShape(self.layers, rows, self.heads, slots, self.dim, dtype, self.device)

    def logits(self, last: torch.Tensor) -> torch.Tensor:
        """Logits in float32 from final hidden states [..., size] (logits given instead pass through)."""
        if self._llama is not None:
            last = self._llama.scores(last.flatten(0, 1)).view(*last.shape[:2], -1)
        elif last.dtype == torch.float32:
            last = last.clone()
        return compact(last)

    @property
    def leaves(self) -> bool:
        """Whether a pass may exit early: only the plain function can; transformers' modules cannot."""
        return self._llama is not None

    def check_leaves(self) -> None:
        """Check that a pass may exit early.

        Raises
        ------
        ModelError
            If it may not.
        """
        if not self.leaves:
            raise ModelError(
                f"a pass of {self.name} ({self.config.model_type}) cannot exit early: it runs through "
                f"transformers' modules; use a model of the Llama family or an encoder-decoder"
            )

    def last(self, state: torch.Tensor) -> torch.Tensor:
        """Apply the final norm to a hidden state [tokens, size], for `logits`; needs the plain function."""
        assert self._llama is not None
        return self._llama.final(state)

    def run(self, given: PassInput, store: Store | Spread) -> States:
        """Run a pass over an aimed store; see `PassInput`. Only the plain function can exit early."""
        if self._llama is not None:
            assert isinstance(store, Store)  # the plain function runs on one device
            return self._llama(given, store)
        ids, positions, keep, hidden = given.ids, given.positions, given.keep, given.hidden
        if isinstance(positions, slice):
            if self._count is None or len(self._count) < positions.stop or self._count.device != ids.device:
                self._count = torch.arange(max(store.reach, positions.stop), device=ids.device)
            positions = self._count[positions][None].expand(len(ids), -1)
        if store.cache is None:
            store.cache = Cache(layers=[_Layer(weakref.proxy(store), i) for i in range(self.layers)])
        base = self._shallow.base_model
        assert isinstance(base, PreTrainedModel)
        with _attention(self.config, base.config):  # the same object, except for a model cut by `first`
            out = self._shallow(
                input_ids=ids,
                position_ids=positions,
                attention_mask=given.mask,
                past_key_values=store.cache,
                use_cache=True,
                logits_to_keep=keep or 1,
                output_hidden_states=bool(hidden),
            )
        states = {layer: out.hidden_states[layer][:, -keep:].to(ids.device) for layer in hidden}
        return out.logits.to(ids.device), states


class _Layer(CacheLayerMixin):
    """One layer of the storage, in the form of a transformers cache layer.

    The storage holds the cache, so `store` is a weak reference: a reference cycle would be freed late.
    """

    is_sliding = False

    def __init__(self, store: Store | Spread, layer: int) -> None:
        super().__init__()
        self.store, self.layer = store, layer
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: None, **__: None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.store.write(self.layer, key_states, value_states)

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        pass  # the storage was allocated when the context was opened

    def get_seq_length(self) -> int:
        return 0  # positions are always passed explicitly

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.store.read[0].shape[2], 0

    def get_max_length(self) -> int:
        return self.store.data.shape[4]


def check_config(config: PreTrainedConfig, name: str) -> None:
    """Raise `ModelError` with the reason if no causal model of this config can be served."""

    def has(field: str) -> bool:
        return bool(getattr(config, field, None))

    kinds = set(getattr(config, "layer_types", None) or ()) - {
        "full_attention",
        "sliding_attention",
        "attention",
    }
    computed = GEMMA2 if config.model_type == "gemma2" else ()
    unknown = next((field for field in UNKNOWN if has(field) and field not in computed), "")
    reasons = (
        (has("text_config") or has("vision_config"),
         "it takes more than text; load only its language model"),
        (has("is_encoder_decoder"), "it is not a causal language model but an encoder-decoder"),
        (not hasattr(config, "num_hidden_layers") or not hasattr(config, "num_attention_heads"),
         "its config does not give its layers and heads"),
        (getattr(config, "is_causal", None) is False or has("use_bidirectional_attention"), BIDIRECTIONAL),
        (unknown,
         f"it uses {UNKNOWN.get(unknown)} ({unknown} in its config), which this backend does not support"),
        (kinds, f"its {', '.join(sorted(kinds))} layers keep a state that a key-value cache does not hold"),
        (has("add_cross_attention"),
         "it has cross-attention, so it is not a causal language model by itself"),
    )  # fmt: skip
    _refuse(config, name, reasons)


def _check_served(net: PreTrainedModel, name: str) -> None:
    """Raise `ModelError` with the reason if a model cannot be served."""
    check_config(net.config, name)
    parts = list(net.modules())
    reasons = (
        (net.get_output_embeddings() is None,
         "it is not a causal language model (it has no language-model head)"),
        (any(getattr(part, "is_causal", None) is False for part in parts), BIDIRECTIONAL),
        (any(hasattr(part, each) for part in parts for each in ("sinks", "conv1d", "A_log")),
         "it has attention sinks or recurrent layers, which this backend does not support"),
        (not getattr(net, "_supports_attention_backend", False),
         "its attention is custom and cannot use our storage"),
        (any(p.is_meta for p in net.parameters()),
         "part of it is offloaded to disk or to another memory: load less of it"),
    )  # fmt: skip
    _refuse(net.config, name, reasons)


def _refuse(
    config: PreTrainedConfig, name: str, reasons: Iterable[tuple[bool | str | set[str], str]]
) -> None:
    if reason := next((reason for true, reason in reasons if true), None):
        raise unserved(name, config.model_type, reason)


@contextmanager
def _attention(*configs: PreTrainedConfig) -> Iterator[None]:
    """Use our attention within the block, then restore the model's own so that its `generate` still works.

    One thread at a time: another that ended first would restore the model's own under this one's pass.
    """
    with _running:
        before = [config._attn_implementation for config in configs]
        for config in configs:
            config._attn_implementation = attention.NAME
        try:
            yield
        finally:
            for config, own in zip(configs, before):
                config._attn_implementation = own


def _window(config: PreTrainedConfig) -> int | None:
    """The sliding window if some layer uses it, else None."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    used = "sliding_attention" in kinds if kinds else getattr(config, "use_sliding_window", True)
    return window if window and used else None


def _places(net: PreTrainedModel, name: str) -> list[tuple[torch.device, int]] | None:
    """Devices of a model loaded with a `device_map`, each with its number of layers; None for one device.

    Raises
    ------
    ModelError
        If the model is on several devices and nothing moves states between them.
    """
    if len({p.device for p in net.parameters()}) == 1:
        return None
    if not getattr(net, "hf_device_map", None):
        raise ModelError(
            f"{name} is on several devices: load it with device_map, which moves states between them"
        )
    devices = [next(layer.parameters()).device for layer in _stack(net.base_model)]
    if len(devices) != net.config.num_hidden_layers:
        raise ModelError(f"{name} keeps its layers under an unknown name: load it on one device")
    return [(device, len(list(layers))) for device, layers in groupby(devices)]


def _stack(base: torch.nn.Module) -> torch.nn.ModuleList:
    """The layers of a model without its head; empty if they are not named `layers` or `h`."""
    named = dict(base.named_children())
    stack = named.get("layers", named.get("h"))
    return stack if isinstance(stack, torch.nn.ModuleList) else torch.nn.ModuleList()


def _first(net: PreTrainedModel, layers: int) -> PreTrainedModel:
    """`net` cut to its first layers: shallow copies of the two outer modules around the same layers."""
    shallow, base = copy.copy(net), copy.copy(net.base_model)
    stack = _stack(net.base_model)
    name = next((name for name, part in base._modules.items() if part is stack), None)
    if name is None or not isinstance(base, PreTrainedModel):
        raise ModelError(
            f"{type(net).__name__} keeps its layers under an unknown name; first() cannot cut it"
        )
    base._modules = {**base._modules, name: stack[:layers]}
    shallow._modules = {**shallow._modules, net.base_model_prefix: base}
    base.config = copy.copy(net.config)
    base.config.num_hidden_layers = layers
    return shallow
