"""The parallel drafter of an encoder-decoder: the Spec-Drafter of Xia et al. 2023 ("Speculative Decoding").

A small T5 decoder over the target's encoder reads what was written, then masked slots, and says in one pass
what stands in each of them. Its input is

    <start> y_1 ... y_n  slot_1 ... slot_k        (k <= the slots there are; all causal)

where a written token is embedded by the target's own embeddings and a slot by its own row of `slots`. The
state at slot j, after the final norm, gives by the target's head the scores of y_(n + j). So slot j stands
where the token that it guesses would stand, a cache of the written tokens stays good from pass to pass, and
fewer slots give the same guesses in those there are.

A folder holds ``config.json`` with ``model_type`` "specviz-slots", ``target``, ``slots``, ``layers`` and the
target's ``width``, ``heads``, ``feed_forward``, and ``model.safetensors`` with the tensors of a transformers
T5Stack below ``decoder.``: ``decoder.embed_tokens.weight`` [slots, width] are the slots.
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
    """A T5 decoder whose own embeddings are the slots'.

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
            Embeddings of written tokens (the target's) and, after them, of slots (`slot_embeddings`).
        encoded : Tensor [rows, source, width]
            What the target's encoder made of the prompt.
        mask : Tensor [rows, source], optional
            1 where there is a prompt, 0 where it is padded.
        cache : transformers EncoderDecoderCache, optional
            Of the tokens before; the pass appends to it, slots included: crop them before the next.
        """
        return self.decoder(
            inputs_embeds=embedded, encoder_hidden_states=encoded, encoder_attention_mask=mask,
            past_key_values=cache, use_cache=cache is not None,
        ).last_hidden_state  # fmt: skip

    @property
    def slot_embeddings(self) -> Tensor:
        """[slots, width]."""
        return self.decoder.embed_tokens.weight


def load_slots(folder: Path) -> tuple[SlotDrafter, Settings]:
    """The drafter of a folder in float32, and its ``config.json``."""
    return loaded(folder, SlotDrafter, ("slots", "layers", "width", "heads", "feed_forward"))
