"""The parallel drafter of an encoder-decoder: the Spec-Drafter of Xia et al. 2023 ("Speculative Decoding").

A small T5 decoder over the target's encoder reads the text so far, then masked slots, and predicts the token
of every slot in one pass. Its input is

    <start> y_1 ... y_n  slot_1 ... slot_k        (k <= number of slots; causal attention throughout)

where a text token uses the target's embedding and a slot uses its own row of `slots`. The state at slot j,
after the final norm, gives the logits of y_(n + j) through the target's head. Slot j therefore has the
position of the token that it predicts, the cache of the text stays valid from pass to pass, and a slot's
prediction does not depend on the number of slots after it.

A folder holds ``config.json`` with ``model_type`` "specviz-slots", ``target``, ``slots``, ``layers`` and the
target's ``width``, ``heads``, ``feed_forward``, and ``model.safetensors`` with the tensors of a transformers
T5Stack under ``decoder.``: ``decoder.embed_tokens.weight`` [slots, width] holds the slots.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor, nn

from specviz.models.heads import loaded

if TYPE_CHECKING:
    from transformers import EncoderDecoderCache

    from specviz.models.protocols import Settings

TYPE = "specviz-slots"


class SlotDrafter(nn.Module):
    """A T5 decoder whose embedding table holds the slots.

    Parameters
    ----------
    slots, layers, width, heads, feed_forward : int
    """

    def __init__(self, slots: int, layers: int, width: int, heads: int, feed_forward: int) -> None:
        super().__init__()
        from transformers import T5Config
        from transformers.models.t5.modeling_t5 import T5Stack

        config = T5Config(
            vocab_size=slots, d_model=width, d_kv=width // heads, d_ff=feed_forward, num_layers=layers,
            num_decoder_layers=layers, num_heads=heads, dropout_rate=0.0, is_decoder=True, pad_token_id=None,
        )  # fmt: skip
        self.decoder = T5Stack(config)

    def forward(
        self,
        embedded: Tensor,
        encoded: Tensor,
        mask: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
    ) -> Tensor:
        """States after the final norm, [rows, n, width].

        Parameters
        ----------
        embedded : Tensor [rows, n, width]
            Embeddings of text tokens (the target's), followed by those of slots (`slot_embeddings`).
        encoded : Tensor [rows, source, width]
            The target's encoding of the prompt.
        mask : Tensor [rows, source], optional
            1 for prompt tokens, 0 for padding.
        cache : transformers EncoderDecoderCache, optional
            KV cache of the preceding tokens. The pass appends to it, slots included: crop them before the
            next pass.
        """
        return self.decoder(
            inputs_embeds=embedded, encoder_hidden_states=encoded, encoder_attention_mask=mask,
            past_key_values=cache, use_cache=cache is not None,
        ).last_hidden_state  # fmt: skip

    @property
    def slot_embeddings(self) -> Tensor:
        """Embeddings of the slots [slots, width]."""
        return self.decoder.embed_tokens.weight


def load_slots(folder: Path) -> tuple[SlotDrafter, Settings]:
    """Load a folder's drafter in float32, and its ``config.json``."""
    return loaded(folder, SlotDrafter, ("slots", "layers", "width", "heads", "feed_forward"))
