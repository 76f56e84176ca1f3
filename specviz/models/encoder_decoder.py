"""An encoder-decoder that is ready to run: T5, mT5, BART and Marian."""

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
from specviz.models.layers import Decoder, hooked
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
    """A transformers encoder-decoder behind the seam's verbs.

    The encoder is transformers' own; the decoder is a plain function over the model's weights.

    Parameters
    ----------
    net : PreTrainedModel
        On its device, in its number format. It is read, never changed, but for bad words of one token: their
        entries in ``final_logits_bias`` become −inf, and the generation config no longer names them.
    tokenizer : transformers tokenizer, optional
        Without one the model takes and gives token ids only.
    name : str, optional
    layers : int, optional
        Run only the decoder's first so many layers; see `first`.
    encoder : Encoder, optional
        Another model's, to share.
    kernels : str, optional
        Of the decoder, as `Model` takes it.

    Attributes
    ----------
    vocabulary : int
        Rows of the head.
    eos : tuple of int
        Ids that end a text, from the generation config.
    prefix : list of int
        What every text begins with, unseen: the decoder's start token and, where the model has one, the
        token that its generation config forces after it (``forced_bos_token_id``).
    max_length : int
        Most tokens of a prompt, and of a written text with its prefix: the positions that the model knows.
    layers : int
        Of the decoder.
    group : int
        Query heads that share one key-value head: 1.
    geometry : dict or None
        Counts and widths, as `specviz.models.geometry.encoder_decoder` gives them.

    Raises
    ------
    ModelError
        If the model is one that this backend cannot serve; the line says why.
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
        self.decoder = self._laid()
        self.geometry = geometry.encoder_decoder(net, self.layers, len(self.prefix))

    def open(self, prompts: Sequence[Sequence[int]], room: int) -> EncoderDecoderContext:
        """A context of `prompts`, not yet encoded; arguments and errors are those of `Model.open`."""
        self._refresh()
        return EncoderDecoderContext(self, prompts, room)

    def _refresh(self) -> None:
        """Read the weights again, and try the order of sums again, where either has changed."""
        stale = self.decoder.stale()
        if stale:
            self.decoder = self._laid()
            self.encoder.encodings.clear()
        if self.order_stale(stale):
            self.make_invariant()

    def _laid(self) -> Decoder:
        """The decoder as a plain function, its matrices laid out."""
        self.kernels = layouts.choose(self._kernels, self.net, self._groups())
        return self.function(self.kernels)

    def _groups(self) -> Iterator[tuple[torch.nn.Linear, ...]]:
        return (t5 if self._family is t5.T5 else bart).groups(self.net)

    def function(self, layout: str, invariant: bool = False) -> Decoder:
        """As `TorchModel.function`: the decoder."""
        return self._family(self.net, self.layers, layout, invariant)

    def make_invariant(self) -> None:
        """As `Model.make_invariant`; each prompt is encoded by a pass of its own."""
        decoder = self.ordered_function()
        assert isinstance(decoder, Decoder)
        self.decoder = decoder
        self.encoder.encodings.clear()

    def left(self, prompt: int) -> int:
        """How many tokens can be written after a prompt of so many."""
        return self.max_length - len(self.prefix) if prompt <= self.max_length else 0

    def first(self, layers: int) -> EncoderDecoder:
        """The decoder's first `layers` layers with the same encoder, norm and head: an early-exit drafter."""
        if not 1 <= layers <= self.layers:
            raise ModelError(f"{self.name} has {self.layers} layers; first({layers}) is out of range")
        name = f"{self.name}[:{layers}]"
        first = EncoderDecoder(self.net, self.tokenizer, name, layers, self.encoder, self._kernels)
        if self.invariant:
            first.make_invariant()
        return first

    def shape(self, rows: int, slots: int) -> StorageShape:
        """Arguments of the storage that a context of `rows` x `slots` written tokens needs."""
        heads, dim = self.decoder.heads, self.decoder.dim
        return StorageShape(self.layers, rows, heads, slots, dim, self.dtype, self.device)

    def logits(self, last: torch.Tensor) -> torch.Tensor:
        """Scores in float32 of final hidden states [..., size]."""
        return self.decoder.logits(last.flatten(0, 1)).view(*last.shape[:2], -1).float()

    leaves = True  # whether a pass may leave early

    def check_leaves(self) -> None:
        """As `Model.check_leaves`: every pass may."""

    def last(self, state: torch.Tensor) -> torch.Tensor:
        """What the head reads of a hidden state [tokens, size], for `logits`."""
        return self.decoder.final(state)

    def run(self, given: PassInput, store: Store | Spread) -> States:
        """Feed the decoder over an aimed store that has its source; see `PassInput`."""
        assert isinstance(store, Store)  # its layers lie on one device
        return self.decoder(given, store)


def _prefix(net: PreTrainedModel, name: str) -> list[int]:
    """The decoder's start token, and what is forced after it."""
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
    """The function of a model that can be served; otherwise the reason why not."""
    kind = net.config.model_type
    refuse = partial(unserved, name, kind)

    if type(net).__name__ not in FAMILIES or not type(net).__module__.startswith(PLAIN[0]):
        raise unserved(name, kind, SERVED)
    function, refusal = FAMILIES[type(net).__name__]
    parts = [net.get_output_embeddings(), *net.get_decoder().modules()]
    for part in parts:
        own = type(part).__module__.startswith(PLAIN)
        if not own or (isinstance(part, torch.nn.Linear) and type(part) is not torch.nn.Linear):
            raise refuse(f"its decoder holds a {type(part).__name__} (quantised, or with an adapter)")
        if hooked(part):
            raise refuse("its decoder has hooks, which would not be called")
    if len({p.device for p in net.parameters()}) > 1:
        raise refuse("its layers are on several devices; load it on one")
    if reason := refusal(net):  # of float16 first: transformers keeps some of T5's weights in float32 then
        raise refuse(reason)
    if len({p.dtype for p in net.parameters()}) > 1:
        raise refuse("its weights have several number formats; load it with one dtype")
    return function
