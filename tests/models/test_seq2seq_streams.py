"""Re-translation on every family of encoder-decoders: the old output is verified against the new source."""

from __future__ import annotations

from itertools import pairwise

import pytest

import specviz
from models import seq2seq
from specviz.loop.updates import decode_stream
from specviz.methods import find
from specviz.methods.retranslate import Retranslate
from specviz.models.encoder_decoder import EncoderDecoder

SOURCE = [5, 9, 30, 12, 7, 21, 33, 8, 16]


def outputs(model, method) -> tuple[list[list[int]], int, list[int | None]]:
    """Return each update's ids, the number of cycles, and the reused prompt tokens."""
    stream = specviz.streams.fixed_lag(" ".join(map(str, SOURCE)), 1)
    written: dict[int, list[int]] = {}
    cycles, reused = 0, []
    template = lambda text: [*map(int, text.split())]
    for cycle in decode_stream(model, stream, method, template=template, max_new_tokens=14):
        written.setdefault(cycle.update, []).extend(cycle.tokens)
        cycles += cycle.number > 0
        reused += [cycle.reused] if cycle.number == 0 else []
    return [*written.values()], cycles, reused


@pytest.mark.parametrize("family", [*seq2seq.CONFIGS])
def test_unbiased_it_is_retranslation(family) -> None:
    model = EncoderDecoder(seq2seq.make(family))
    plain, passes, _ = outputs(model, find("retranslate")(mode="rt"))
    assert len(plain) == len(SOURCE)
    drafted, fewer, reused = outputs(model, find("retranslate")(beta=0.0))
    assert drafted == plain
    assert fewer < passes
    assert set(reused) == {0}, "no state survives a new source"
    again, _, _ = outputs(model, find("retranslate")(beta=0.0, second_pass=True))
    assert again == plain


class Frozen(Retranslate):
    """Keep the end token in the draft."""

    def _draft(self, previous):
        return list(previous)


def test_a_drafted_end_token_freezes_the_text() -> None:
    """Why the end is stripped: a fully biased, accepted end stays, whatever the source becomes."""
    model = specviz.load("town-t5")
    heard = specviz.streams.fixed_lag("The doctor bought a red bicycle. Tom was tired on Sunday.", 3)
    frozen = specviz.generate(model, heard, Frozen(beta=0.5)).updates
    assert frozen["end"].iloc[0] == "eos", "else there is nothing to freeze"
    assert len(frozen) > 2 and frozen["text"].nunique() == 1
    own = specviz.generate(model, heard, "retranslate", beta=0.5)
    assert not own.nodes["token"].isin(model.eos).any()
    assert own.updates["text"].nunique() > 1


@pytest.mark.parametrize("family", ["t5", "bart-forced", "marian"])
def test_wholly_biased_it_goes_on_from_what_was_written(family) -> None:
    model = EncoderDecoder(seq2seq.make(family))
    for method in (find("retranslate")(beta=0.5), find("retranslate")(mode="cd")):
        written, _, _ = outputs(model, method)
        for before, after in pairwise(written):
            kept = before[:-1] if before[-1] in model.eos else before
            assert after[: len(kept)] == kept
