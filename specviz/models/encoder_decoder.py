"""Encoder-decoder models ready to run: T5, mT5, BART and Marian."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from specviz.errors import ModelError
from specviz.models import bart, geometry, t5
from specviz.models import kernels as layouts
from specviz.models.context import PassInput, Spread, States, StorageShape, Store
from specviz.models.encoder_decoder_context import Encoder, EncoderDecoderContext
from specviz.models.layers import Decoder, compact, hooked
from specviz.models.torch_model import TorchModel, unserved

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FAMILIES = dict.fromkeys(t5.CLASSES, (t5.T5, t5.refusal)) | dict.fromkeys(
    bart.CLASSES, (bart.Bart, bart.refusal)
)
TYPES = ("t5", "mt5", "bart", "marian")  # model types of their configs
SERVED = "of encoder-decoders, T5, mT5, BART and Marian with their language-model heads are"
PLAIN = ("transformers.models.", "transformers.activations", "torch.nn.modules.")


class EncoderDecoder(TorchModel):
    """A transformers encoder-decoder with the interface of `specviz.models.protocols.Model`.

    The encoder is transformers' own; the decoder is a plain function over the model's weights.

    Parameters
    ----------
    net : PreTrainedModel
        Already on its device and in its number format. It is not changed, except for bad words of one token:
        their entries in ``final_logits_bias`` become −inf, and they are removed from the generation config.
    tokenizer : transformers tokenizer, optional
        Without one, the model takes and returns token ids only.
    name : str, optional
    layers : int, optional
        Run only the decoder's first `layers` layers; see `first`.
    encoder : Encoder, optional
        Another model's encoder, to share.
    kernels : str, optional
        Layout of the decoder's matrices; see `Model`.

    Attributes
    ----------
    vocabulary : int
        Rows of the head.
    eos : tuple of int
        Ids that end a text, from the generation config.
    prefix : list of int
        The hidden start of every decoder text: the start token and, if the model has one, the token that its
        generation config forces after it (``forced_bos_token_id``).
    max_length : int
        Maximum tokens of a prompt, and of a decoder text with its prefix: the model's positions.
    layers : int
        Number of the decoder's layers.
    group : int
        Query heads that share one key-value head: 1.
    geometry : dict or None
        Counts and widths, from `specviz.models.geometry.encoder_decoder`.
    template : str
        Prompt for re-translation (`specviz.methods.retranslate.TEMPLATES`): T5 and mT5 learn tasks in words,
        BART and Marian read the source alone.

    Raises
    ------
    ModelError
        If this backend cannot serve the model; the message says why.
    """

    kind = "encoder-decoder"
    group = 1

    def __init__(
        self, net: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None = None, name: str | None = None,
        layers: int | None = None, encoder: Encoder | None = None, kernels: str | None = None,
    ) -> None:  # fmt: skip
        name = name or type(net).__name__
        self._family = _served(net, name)
        self.prefix = _prefix(net, name)
        bart.fold_bad_words(net)
        super().__init__(net, tokenizer, name, kernels, encoder=True)
        self.encoder = encoder or Encoder(net)
        self.layers = layers or getattr(self.config, "num_decoder_layers", None) or self.config.decoder_layers
        self.geometry = geometry.encoder_decoder(net, self.layers, len(self.prefix))
        self.decoder = self._laid()
        self.template = "task" if self._family is t5.T5 else "plain"

    def open(self, prompts: Sequence[Sequence[int]], room: int) -> EncoderDecoderContext:
        """Open a context of `prompts`, not yet encoded; for arguments and errors see `Model.open`."""
        self._refresh()
        return EncoderDecoderContext(self, prompts, room)

    def _refresh(self) -> None:
        """Rebuild the decoder if the weights or, for an invariant model, the number of threads changed."""
        stale = self.decoder.stale()
        if stale:
            self.decoder = self._laid()
            self.encoder.encodings.clear()
        if self.order_stale(stale):
            self.make_invariant()

    def _laid(self) -> Decoder:
        """Choose a layout and build the decoder as a plain function."""
        self.kernels = layouts.choose(self.requested_kernels, self.net, self._groups())
        self._weigh()
        return self.function(self.kernels)

    def _groups(self) -> Iterator[tuple[torch.nn.Linear, ...]]:
        return (t5 if self._family is t5.T5 else bart).groups(self.net)

    def function(self, layout: str, invariant: bool = False) -> Decoder:
        """See `TorchModel.function`; builds the decoder."""
        return self._family(self.net, self.layers, layout, invariant)

    def make_invariant(self) -> None:
        """See `Model.make_invariant`; each prompt is encoded in a separate pass."""
        decoder = self.ordered_function()
        assert isinstance(decoder, Decoder)
        self.decoder = decoder
        self._weigh()
        self.encoder.encodings.clear()

    def left(self, prompt: int) -> int:
        """Number of tokens that can be written for a prompt of `prompt` tokens."""
        return self.max_length - len(self.prefix) if prompt <= self.max_length else 0

    def first(self, layers: int) -> EncoderDecoder:
        """Early-exit drafter: the decoder's first `layers` layers with the same encoder, norm and head."""
        if not 1 <= layers <= self.layers:
            raise ModelError(f"{self.name} has {self.layers} layers; first({layers}) is out of range")
        name = f"{self.name}[:{layers}]"
        first = EncoderDecoder(self.net, self.tokenizer, name, layers, self.encoder, self.requested_kernels)
        if self.invariant:
            first.make_invariant()
        return first

    def shape(self, rows: int, slots: int) -> StorageShape:
        """Shape of the storage for a context of `rows` x `slots` written tokens."""
        heads, dim = self.decoder.heads, self.decoder.dim
        return StorageShape(self.layers, rows, heads, slots, dim, self.attention_dtype, self.device)

    def logits(self, last: torch.Tensor) -> torch.Tensor:
        """Logits in float32 from final hidden states [..., size]."""
        return compact(self.decoder.logits(last.flatten(0, 1)).view(*last.shape[:2], -1))

    leaves = True  # whether a pass may exit early

    def check_leaves(self) -> None:
        """See `Model.check_leaves`; every pass may exit early."""

    def last(self, state: torch.Tensor) -> torch.Tensor:
        """Convert a hidden state [tokens, size] to the head's input, for `logits`."""
        return self.decoder.final(state)

    def run(self, given: PassInput, store: Store | Spread) -> States:
        """Run the decoder over an aimed store whose source is set; see `PassInput`."""
        assert isinstance(store, Store)  # the decoder's layers are on one device
        return self.decoder(given, store)


def _prefix(net: PreTrainedModel, name: str) -> list[int]:
    """The decoder's start token, and the token that is forced after it, if any."""
    generation = getattr(net, "generation_config", None)

    def token(field: str) -> int | None:
        id = getattr(generation, field, None)
        return getattr(net.config, field, None) if id is None else id

    start, forced = token("decoder_start_token_id"), token("forced_bos_token_id")
    if start is None:
        raise unserved(
            name, net.config.model_type, "neither its config nor its generation config names a "
            "decoder_start_token_id",
        )  # fmt: skip
    return [start] if forced is None else [start, forced]


def _served(net: PreTrainedModel, name: str) -> type[t5.T5] | type[bart.Bart]:
    """The decoder class for a model; raise `ModelError` with the reason if it cannot be served."""
    kind = net.config.model_type
    refuse = partial(unserved, name, kind)

    if type(net).__name__ not in FAMILIES or not type(net).__module__.startswith(PLAIN[0]):
        raise unserved(name, kind, SERVED)
    function, refusal = FAMILIES[type(net).__name__]
    parts = [net.get_output_embeddings(), *net.get_decoder().modules()]
    for part in parts:
        own = type(part).__module__.startswith(PLAIN)
        if not own or (isinstance(part, torch.nn.Linear) and type(part) is not torch.nn.Linear):
            raise refuse(f"its decoder holds the module {type(part).__name__} (quantised, or an adapter)")
        if hooked(part):
            raise refuse("its decoder has hooks, which would not be called")
    if len({p.device for p in net.parameters()}) > 1:
        raise refuse("its layers are on several devices; load it on one")
    if reason := refusal(net):  # before the next check: T5 in float16 keeps some weights in float32
        raise refuse(reason)
    if len({p.dtype for p in net.parameters()}) > 1:
        raise refuse("its weights have several number formats; load it with one dtype")
    return function
