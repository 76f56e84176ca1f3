"""Additions: weights trained on top of a target to draft for it (heads, slots, EAGLE, trimmed models).

None is a model by itself: all need parts of the target, such as its states, embeddings or head. An addition
loaded from a folder must be bound to a target with `on` before it can draft.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, NoReturn, TypeAlias

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import Tensor, nn

from specviz.errors import ModelError, one_line
from specviz.models import eagle_loading, heads, slots, trimmed
from specviz.models.bergamot import trimmed as bergamot
from specviz.models.bergamot.model import Bergamot
from specviz.models.eagle import Eagle
from specviz.models.eagle_model import EagleModel
from specviz.models.encoder_decoder import EncoderDecoder
from specviz.models.encoder_decoder_context import EncoderDecoderContext, TargetsEncoder
from specviz.models.gguf.reading import load_gguf
from specviz.models.layers import Lines, embeddings, head_rows, over_all
from specviz.models.model import Model
from specviz.models.t5 import T5

if TYPE_CHECKING:
    from specviz.models.llamacpp.model import LlamaCpp
    from specviz.models.protocols import Prompt, Settings

Target: TypeAlias = Model | EncoderDecoder


class Addition:
    """Weights that draft for the target on which they were trained.

    Parameters
    ----------
    net : module
        In float32.
    config : dict
        The folder's ``config.json``; its ``target`` is the name of the model the weights were trained on.
    name : str

    Attributes
    ----------
    kind : str
        ``heads``, ``slots``, ``eagle`` or ``trimmed``.
    most : int
        Most tokens of a block that heads or slots predict; for heads, one of them is the target's own token.
    parameters : int
    folder : Path or None
        Where it was loaded from.
    """

    kind: str
    description: str  # what it is, before the name of its target
    most: int
    folder: Path | None = None

    def __init__(self, net: nn.Module, config: Settings, name: str) -> None:
        self.net, self.config, self.name = net, config, name
        self.parameters = sum(p.numel() for p in net.parameters())

    def __repr__(self) -> str:
        size = f"{self.parameters / 1e6:.2f} M parameters"
        return f"<{type(self).__name__} {self.name}: {size}, on {self.trained_on}>"

    @property
    def trained_on(self) -> str:
        """The target's name, or a description of it."""
        return str(self.config["target"])

    def on(
        self, target: Target
    ) -> HeadModel | SlotModel | EagleModel | trimmed.TrimmedModel | bergamot.TrimmedBergamot:
        """Bind to `target` and return a drafter on its device, in its number format and with its tokens.

        Raises
        ------
        ModelError
            If the addition was not trained on this target or does not fit it.
        """
        raise NotImplementedError

    def alone(self, *_: Prompt, **__: bool) -> NoReturn:
        """Reject use as a model.

        Raises
        ------
        ModelError
            Always.
        """
        target = self.trained_on.partition(" (")[0]  # names of converted weights end with their origin
        raise ModelError(
            f"{self.name} is not a model by itself but {self.description} {target}: decode with {target} "
            "and pass it as the draft"
        )

    open = encode = check_vocabulary = alone
    text = property(alone)

    def _check(self, target: Target) -> None:
        own, width = self.config["target"], self.config["width"]
        self._check_kind(target, self.trained_on)
        self._check_whose(target)
        size = target.net.get_output_embeddings().weight.shape[1]
        if size != width:
            raise self._unfit(f"{own} of width {width}", f"this one's is {size}")

    def _check_kind(self, target: Target, trained_on: str) -> None:
        """Raise `ModelError` if the target is of another kind or provides no hidden states."""
        if target.kind not in self.targets:
            raise self._unfit(trained_on, f"{target.name} is {target.kind}")
        if not hasattr(target, "net"):
            why = f"{target.name} runs on llama.cpp, which provides no hidden states"
            raise self._unfit(self.trained_on, why)

    def _check_whose(self, target: Target) -> None:
        """Raise `ModelError` if this is another target, even one of the same name."""
        if heads.whose(self.config, target):
            return
        content = self.config.get("content")
        if content is None or target.name != self.trained_on:
            raise self._unfit(self.trained_on, f"{target.name} is a different model")
        raise self._unfit(
            f"{self.trained_on} ({content[:8]})",
            f"this {target.name} has different weights ({target.file_content[:8]})",
        )

    targets: tuple[str, ...] = ("encoder-decoder",)

    def _unfit(self, trained_on: str, but: str) -> ModelError:
        return ModelError(f"{self.name} was trained on {trained_on}, and {but}: use a drafter that fits it")


class Heads(Addition):
    """Blockwise decoding heads."""

    net: heads.BlockwiseHeads

    kind = "heads"
    description = "heads on"
    targets = ("encoder-decoder", "causal")

    @property
    def most(self) -> int:  # type: ignore[override]
        return self.config["heads"] + 1

    def on(self, target: Target) -> HeadModel:
        self._check(target)
        if isinstance(target, Model) and not target.plain:
            raise self._unfit("a model whose head can be used separately", f"{target.name}'s cannot")
        return HeadModel(self, target)


class HeadModel:
    """Blockwise heads bound to a target: they predict the tokens after its next one from its hidden state.

    Parameters
    ----------
    addition : Heads
    target : Model
    """

    kind = "heads"
    geometry = None  # it runs no passes of its own

    def __init__(self, addition: Heads, target: Target) -> None:
        self.addition, self.target, self.name = addition, target, addition.name
        self.parameters, self.most = addition.parameters, addition.most
        self.net = copy.deepcopy(addition.net).to(target.device, target.dtype).requires_grad_(False)
        for name in ("text", "tokenizer", "vocabulary", "max_length", "device", "dtype", "left"):
            setattr(self, name, getattr(target, name))
        self.head: Lines | None = None  # the target's head, cut to the tokens that the heads can predict
        if self.net.tokens is not None:
            self.head = Lines(head_rows(target.net, self.net.tokens), layout=target.kernels)

    def on(self, target: Target) -> HeadModel:
        """See `Addition.on`."""
        return self if target is self.target else self.addition.on(target)

    @torch.no_grad()
    def guesses(self, state: Tensor, n: int) -> Tensor:
        """Logits of the n tokens after the target's next one, float32 [n, vocabulary].

        Parameters
        ----------
        state : tensor [width]
            The target's hidden state at a position, after its final norm. The target's own head predicts the
            next token from it, heads 2 to n + 1 the tokens that follow.
        n : int
        """
        states = self.net(state[None], n)
        if self.head is None or self.net.tokens is None:
            return self.target.logits(states)[0]
        return over_all(self.head(states[0]).float(), self.net.tokens, self.target.vocabulary)


class EagleHead(Addition):
    """The weights of an EAGLE drafter of any generation."""

    net: Eagle

    kind = "eagle"
    description = "an EAGLE drafter on"
    targets = ("causal",)

    @property
    def trained_on(self) -> str:
        verifier = (self.config.get("speculators_config") or {}).get("verifier")
        named = verifier.get("name_or_path") if isinstance(verifier, dict) else None
        return str(self.config.get("target") or named or f"a model of width {self.net.target_size}")

    def on(self, target: Target) -> EagleModel:
        self._check(target)
        assert isinstance(target, Model)
        return EagleModel(self, target)

    def layers(self, target: Target) -> tuple[int, ...]:
        """The layers of `target` whose states the drafter reads."""
        if self.net.generation == 1:
            return (target.layers,)
        return eagle_loading.read_layers(self.config, self.net.states, target.layers)

    def _check(self, target: Target) -> None:
        own, size, vocabulary = self.config.get("target"), self.net.target_size, self.net.config.vocab_size
        self._check_kind(target, self.trained_on)
        if getattr(target, "places", None):
            raise self._unfit(self.trained_on, f"{target.name}'s layers are on several devices")
        words, width = embeddings(target.net).shape
        if width != size:
            raise self._unfit(f"a model of width {size}", f"{target.name}'s is {width}")
        if words != vocabulary:
            raise self._unfit(f"a vocabulary of {vocabulary:,}", f"{target.name}'s has {words:,}")
        if own:
            self._check_whose(target)
        if self.net.generation == 1:
            return
        layers, last = self.layers(target), target.layers
        if not all(0 <= layer <= last for layer in layers):
            read = ", ".join(map(str, layers))
            raise self._unfit(f"a model whose layers {read} it reads", f"{target.name} has {last}")
        if last in layers and not own:  # other publishers mean the state before the final norm
            why = f"{target.name}'s is available only after its norm"
            raise self._unfit(f"the state after the last layer, {last}", why)


class Trimmed(Addition):
    """A drafter cut out of its target."""

    net: trimmed.TrimmedNet

    kind = "trimmed"
    description = "a drafter cut out of"
    targets = ("causal",)

    def on(self, target: Target | LlamaCpp) -> trimmed.TrimmedModel:
        """See `Addition.on`; for a target on llama.cpp, embedding and head are read from its file."""
        file: Path | None = getattr(target, "path", None)
        if not isinstance(target, Model) and file is not None:
            target = load_gguf(file, torch.device("cpu"), torch.float32, file.stem)
        if not isinstance(target, Model):
            raise self._unfit(self.trained_on, f"{target.name} is {target.kind}")
        self._check_whose(target)
        return trimmed.TrimmedModel(self.net, target, self.name)


class TrimmedTranslator(Addition):
    """A drafter cut out of a Bergamot translator."""

    net: bergamot.TrimmedDecoder

    kind = "trimmed"
    description = "a drafter cut out of"

    def on(self, target: Target) -> bergamot.TrimmedBergamot:
        """See `Addition.on`."""
        if not isinstance(target, Bergamot):
            raise self._unfit(self.trained_on, f"{target.name} is not a Bergamot translator")
        self._check_whose(target)
        return bergamot.TrimmedBergamot(self.net, target, self.name)


class Slots(Addition):
    """The weights of a parallel drafter."""

    net: slots.SlotDrafter

    kind = "slots"
    description = "slots on"

    @property
    def most(self) -> int:  # type: ignore[override]
        return self.config["slots"]

    def on(self, target: Target) -> SlotModel:
        self._check(target)
        if not isinstance(target, EncoderDecoder) or not isinstance(target.decoder, T5):
            raise self._unfit("a T5", f"{target.name} is a {target.config.model_type}")
        return SlotModel(self, target)


class SlotModel(EncoderDecoder):
    """A parallel drafter bound to a target: a small decoder over the target's encoding of the prompt.

    A slot is a token id beyond the vocabulary. A context reads ``Draft.chain(slots)`` after the text like any
    draft and then drops it, since it is not committed. The cache therefore keeps only text tokens, and row j
    of the pass holds the prediction of slot j for its own position.

    Parameters
    ----------
    addition : Slots
    target : EncoderDecoder
        A T5.

    Attributes
    ----------
    slots : tensor of int [slots]
        Ids of the slots, on the device.
    """

    kind = "slots"
    geometry = None
    decoder: SlotDecoder

    def __init__(self, addition: Slots, target: EncoderDecoder) -> None:
        self.addition, self.target, self.name = addition, target, addition.name
        self.parameters, self.most = addition.parameters, addition.most
        self.drafter = copy.deepcopy(addition.net).to(target.device, target.dtype).requires_grad_(False)
        self.net, self.config = self.drafter.decoder, self.drafter.decoder.config
        for name in ("text", "tokenizer", "vocabulary", "max_length", "eos", "prefix"):
            setattr(self, name, getattr(target, name))
        self.layers = len(self.net.block)
        self.slots = torch.arange(self.vocabulary, self.vocabulary + self.most, device=target.device)
        self.encoder = TargetsEncoder(target)
        self.decoder = SlotDecoder(self.drafter, target)

    def on(self, target: Target) -> SlotModel:
        """See `Addition.on`."""
        return self if target is self.target else self.addition.on(target)

    def open(self, prompts: Sequence[Sequence[int]], room: int) -> EncoderDecoderContext:
        """Open a context of `prompts`, to be encoded by the target's encoder; see `EncoderDecoder.open`."""
        if self.decoder.target is not self.target.decoder:  # the target was trained or moved
            self.decoder = SlotDecoder(self.drafter, self.target)
        return EncoderDecoderContext(self, prompts, room)


class SlotDecoder(T5):
    """The drafter's layers with the target's token embeddings and head.

    Parameters
    ----------
    drafter : SlotDrafter
    target : EncoderDecoder
    """

    def __init__(self, drafter: slots.SlotDrafter, target: EncoderDecoder) -> None:
        stack = drafter.decoder
        net = SimpleNamespace(
            config=stack.config, decoder=stack, lm_head=target.net.lm_head, device=stack.device,
            dtype=stack.dtype, parameters=drafter.parameters,
        )  # fmt: skip
        super().__init__(net, len(stack.block), target.kernels)
        assert isinstance(target.decoder, T5)
        self.target = target.decoder
        self.head, self.shrink = self.target.head, self.target.shrink
        # One table for both, so that a pass may read tokens and slots in any order.
        self.embedding = torch.cat([self.target.embedding, self.embedding])


READ_ERRORS = (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError, StrictDataclassError)
KINDS: dict[str, tuple[type[Addition], Callable[[Path], tuple[nn.Module, Settings]]]] = {
    heads.TYPE: (Heads, heads.load_heads),
    slots.TYPE: (Slots, slots.load_slots),
    "eagle": (EagleHead, eagle_loading.load_eagle),
    trimmed.TYPE: (Trimmed, trimmed.load_trimmed),
    bergamot.TYPE: (TrimmedTranslator, bergamot.load_trimmed),
}


ADDITION_FILES = "config.json", "*.safetensors", "*.safetensors.index.json"


def may_be_addition(config: Settings) -> bool:
    """Whether a folder with this config may hold an addition."""
    return config.get("model_type") in KINDS or eagle_loading.claims(config)


def load_addition(path: Path, name: str) -> Addition | None:
    """Load the addition in a folder; return None if the folder holds no addition.

    Raises
    ------
    ModelError
        If the folder's contents do not match its config.
    """
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        kind = config.get("model_type")
    except (OSError, ValueError, AttributeError):
        return None  # transformers will report the fault
    try:
        if kind not in KINDS and eagle_loading.is_eagle(path, config):
            kind = "eagle"  # published as a one-layer model; identified by its tensors
    except (OSError, SafetensorError) as error:
        if not eagle_loading.claims(config):
            return None
        raise ModelError(f"{path} has no readable safetensors: {one_line(error, 200)}") from None
    if kind not in KINDS:
        return None
    made, read = KINDS[kind]
    try:
        net, config = read(path)
        if made is not EagleHead:  # published EAGLE drafters need not name a target
            config |= {"target": str(config["target"])}
        addition = made(net, config, name)
        addition.folder = path
        return addition
    except ModelError:
        raise
    except READ_ERRORS as error:
        raise ModelError(f"{path} does not load as {made.kind}: {one_line(error, 200)}") from None
