"""Small Bergamot translators with random weights, written as Marian files."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import yaml
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from specviz.models.bergamot import loading, marian

WIDTH, INNER, HEADS, WORDS = 16, 24, 4, 40
Part = tuple[str, int, tuple[int, ...], bytes]  # an item's name, type, shape and content


def items(seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights under the names of a Marian file, with matrices as [out, in]."""
    random = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}

    def matrix(name: str, out: int, of: int, bias: str | None = None) -> None:
        made[name] = random.normal(0, 0.7, (out, of)).astype(np.float32)
        if bias:
            made[bias] = random.normal(0, 0.5, (1, out)).astype(np.float32)

    def norm(name: str) -> None:
        made[f"{name}_ln_scale"] = random.normal(1, 0.1, (1, WIDTH)).astype(np.float32)
        made[f"{name}_ln_bias"] = random.normal(0, 0.1, (1, WIDTH)).astype(np.float32)

    matrix("Wemb", WORDS, WIDTH)
    made["decoder_ff_logit_out_b"] = random.normal(0, 1, (1, WORDS)).astype(np.float32)
    for side, part, layers in (("encoder", "self", 2), ("decoder", "context", 2)):
        for layer in range(1, layers + 1):
            at = f"{side}_l{layer}"
            for letter in "qkvo":
                matrix(f"{at}_{part}_W{letter}", WIDTH, WIDTH, f"{at}_{part}_b{letter}")
            norm(f"{at}_{part}_Wo")
            matrix(f"{at}_ffn_W1", INNER, WIDTH, f"{at}_ffn_b1")
            matrix(f"{at}_ffn_W2", WIDTH, INNER, f"{at}_ffn_b2")
            norm(f"{at}_ffn_ffn")
            if side == "decoder":
                matrix(f"{at}_rnn_W", WIDTH, WIDTH)
                matrix(f"{at}_rnn_Wf", WIDTH, WIDTH, f"{at}_rnn_bf")
                norm(f"{at}_rnn_ffn")
    return made


def config(**changes: object) -> dict[str, object]:
    sizes = {
        "dim-emb": WIDTH, "dim-vocabs": [WORDS, WORDS], "enc-depth": 2, "dec-depth": 2,
        "transformer-heads": HEADS, "transformer-dim-ffn": INNER,
    }  # fmt: skip
    return loading.EXPECTED | sizes | changes


def parts(weights: dict[str, np.ndarray], settings: dict[str, object] | bytes) -> list[Part]:
    """The items of a file: vectors in float32, 8-bit matrices in intgemm's layout, and the settings last."""
    made: list[Part] = []
    for name, value in weights.items():
        if len(value) == 1:
            made.append((name, marian.FLOAT32, value.shape, value.tobytes()))
            continue
        scale = np.float32(127 / np.abs(value).max())
        whole = np.rint(value * scale).astype(np.int8)
        shape = value.shape if name == marian.TABLE else value.shape[::-1]
        made.append((name, marian.INTGEMM8, shape, whole.tobytes() + scale.tobytes() + bytes(252)))
    text = settings if isinstance(settings, bytes) else yaml.safe_dump(settings).encode()
    return [*made, (marian.CONFIG, marian.INT8, (len(text) + 1,), text + b"\0")]


def packed(items: list[Part], version: int = 1) -> bytes:
    """A Marian binary with these items."""
    data = struct.pack("<QQ", version, len(items))
    for name, kind, shape, content in items:
        data += struct.pack("<QQQQ", len(name) + 1, kind, len(shape), len(content))
    data += b"".join(name.encode() + b"\0" for name, *_ in items)
    data += b"".join(struct.pack(f"<{len(shape)}i", *shape) for _, _, shape, _ in items)
    return data + struct.pack("<Q", 5) + bytes(5) + b"".join(content for *_, content in items)


def words(path: Path, pieces: int = WORDS) -> None:
    letters = ["</s>", "<unk>", "▁", *(f"▁{c}" for c in "abcdefgh"), *"abcdefghijklmnopqrstuvwxyz"]
    letters += [f"<{i}>" for i in range(pieces - len(letters))]
    made = Tokenizer(models.Unigram([(piece, -float(i)) for i, piece in enumerate(letters)], 1, False))
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.save(str(path))


def folder(
    root: Path, settings: dict[str, object] | bytes | None = None, seed: int = 0, pieces: int = WORDS
) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    (root / "model.bin").write_bytes(packed(parts(items(seed), settings or config())))
    words(root / "tokenizer.json", pieces)
    return root
