"""Loads a translator from a folder with a Marian binary and a tokenizer."""

from __future__ import annotations

import re
import reprlib
from pathlib import Path

import torch
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from specviz.errors import ModelError
from specviz.files import exists
from specviz.models import choices
from specviz.models.bergamot import marian
from specviz.models.bergamot.model import Bergamot
from specviz.models.bergamot.net import MOST_LAYERS, Config, Net
from specviz.models.protocols import Settings
from specviz.models.torch_model import hashed

TOKENIZER = "tokenizer.json"
SOURCE = "Marian binary, 8-bit weights, dequantised; its own engine also computes in 8 bits"
# The supported architecture's settings; a file with other values is rejected by name. Absent means false.
EXPECTED: Settings = {
    "type": "transformer", "transformer-decoder-autoreg": "rnn", "dec-cell": "ssru",
    "dec-cell-base-depth": 2, "tied-embeddings-all": True, "transformer-preprocess": "",
    "transformer-postprocess": "dan", "transformer-postprocess-emb": "d", "transformer-postprocess-top": "",
    "transformer-ffn-activation": "relu", "transformer-ffn-depth": 2, "transformer-tied-layers": [],
    "transformer-train-position-embeddings": False, "input-types": [], "lemma-dim-emb": 0,
    "output-omit-bias": False, "right-left": False, "transformer-no-projection": False,
    "transformer-pool": False, "transformer-rnn-projection": False,
}  # fmt: skip
PIECES = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "out_proj"}


def load(folder: Path, device: torch.device, dtype: torch.dtype, name: str, kernels: str | None) -> Bergamot:
    """Load a translator from a folder with one Marian binary (``*.bin``) and a ``tokenizer.json``.

    Raises
    ------
    ModelError
        If a file is missing, damaged or not quantised, or the model is of another architecture.
    """
    file, words = _files(folder)
    contents = marian.read(file)
    net = build(contents, file).eval().requires_grad_(False)
    words_of = _tokenizer(words, net.config.vocab_size)
    content = hashed(net, words_of)  # of the weights as read
    net = choices.convert(net.to(device, dtype), kernels, auto=False)
    model = Bergamot(net, words_of, f"{name} (8-bit, dequantised)", kernels)
    model.source, model.path = SOURCE, file
    model.keep_content(content)
    return model


def _files(folder: Path) -> tuple[Path, Path]:
    if not (exists(folder) and folder.is_dir()):
        raise ModelError(f"no folder {folder}; write a Bergamot translator as bergamot:FOLDER")
    files = [path for path in sorted(folder.glob("*.bin")) if not path.name.startswith("lex.")]
    if len(files) != 1:
        raise ModelError(
            f"{folder} holds {len(files)} Marian files (*.bin); a translator's folder must hold one"
        )
    words = folder / TOKENIZER
    if not words.is_file():
        raise ModelError(f"{folder} holds no {TOKENIZER}")
    return files[0], words


def build(contents: marian.MarianFile, path: Path) -> Net:
    """Build the modules with a file's weights.

    Raises
    ------
    ModelError
        If the file has another architecture, or a matrix is missing, unknown or of a wrong shape.
    """
    config = contents.config
    for key, value in EXPECTED.items():
        if config.get(key, False) != value:
            raise ModelError(
                f"{path} has an unsupported architecture: its {key} is {reprlib.repr(config.get(key)):.60}, "
                f"and only {value!r} is supported"
            )
    try:
        heads, inner = int(config["transformer-heads"]), int(config["transformer-dim-ffn"])
        sizes = [int(size) for size in config["dim-vocabs"]]
        shape = Config(
            sizes[0], int(config["dim-emb"]), int(config["enc-depth"]), int(config["dec-depth"]),
            heads, heads, inner, inner,
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        raise ModelError(f"{path} does not say how large its model is") from None
    _check_sizes(shape, sizes, max(map(torch.numel, contents.tensors.values()), default=0), path)
    with torch.device("meta"):
        net = Net(shape)
    names = _names(shape)
    state = {own: _taken(contents, theirs, path) for own, theirs in names}
    if unread := sorted(contents.tensors.keys() - {theirs for _, theirs in names}):
        raise ModelError(f"{path} has an unsupported architecture: {unread[0]!r:.60} has no place in it")
    zeros = torch.zeros(shape.d_model)
    for i in range(shape.decoder_layers):
        state[f"decoder.layers.{i}.rnn.candidate.bias"] = zeros  # Marian's unit has no bias here
    state["lm_head.weight"] = state["encoder.embed_tokens.weight"]
    for key, own in net.state_dict().items():
        if own.shape != state[key].shape:
            raise ModelError(
                f"{path} is damaged: the matrix for {key} is {list(state[key].shape)}, not {list(own.shape)}"
            )
    net.load_state_dict(state, assign=True)
    net.lm_head.weight = net.encoder.embed_tokens.weight
    return net


def _check_sizes(shape: Config, sizes: list[int], most: int, path: Path) -> None:
    """Check the config's sizes; `most` is the number of weights of the largest matrix."""
    counts = (
        shape.vocab_size,
        shape.d_model,
        shape.encoder_layers,
        shape.decoder_layers,
        shape.encoder_ffn_dim,
    )
    heads, layers = shape.encoder_attention_heads, max(shape.encoder_layers, shape.decoder_layers)
    fits = len(set(sizes)) == 1 and min(counts) >= 1 and max(counts) <= most and layers <= MOST_LAYERS
    # The storage holds a state in two halves, split by heads; positions have at least two wavelengths.
    if not fits or heads < 2 or heads % 2 or shape.d_model % heads or shape.d_model < 4:
        raise ModelError(f"{path} is damaged: its sizes do not fit together")


def _taken(contents: marian.MarianFile, name: str, path: Path) -> torch.Tensor:
    if name not in contents.tensors:
        raise ModelError(f"{path} is damaged: it has no {name}")
    return contents.tensors[name]


def _names(shape: Config) -> list[tuple[str, str]]:
    """Each weight's names in `Net` and in the file."""
    pairs = [("encoder.embed_tokens.weight", marian.TABLE), ("lm_head.bias", "decoder_ff_logit_out_b")]

    def attention(own: str, theirs: str, norm: str) -> None:
        for letter, name in PIECES.items():
            pairs.append((f"{own}.{name}.weight", f"{theirs}_W{letter}"))
            pairs.append((f"{own}.{name}.bias", f"{theirs}_b{letter}"))
        normed(norm, f"{theirs}_Wo")

    def normed(own: str, theirs: str) -> None:
        pairs.append((f"{own}.weight", f"{theirs}_ln_scale"))
        pairs.append((f"{own}.bias", f"{theirs}_ln_bias"))

    def fed(own: str, theirs: str) -> None:
        for i in (1, 2):
            pairs.append((f"{own}.fc{i}.weight", f"{theirs}_W{i}"))
            pairs.append((f"{own}.fc{i}.bias", f"{theirs}_b{i}"))
        normed(f"{own}.norm", f"{theirs}_ffn")

    for i in range(shape.encoder_layers):
        own, theirs = f"encoder.layers.{i}", f"encoder_l{i + 1}"
        attention(f"{own}.self_attn", f"{theirs}_self", f"{own}.norm")
        fed(f"{own}.ffn", f"{theirs}_ffn")
    for i in range(shape.decoder_layers):
        own, theirs = f"decoder.layers.{i}", f"decoder_l{i + 1}"
        pairs.append((f"{own}.rnn.forget.weight", f"{theirs}_rnn_Wf"))
        pairs.append((f"{own}.rnn.forget.bias", f"{theirs}_rnn_bf"))
        pairs.append((f"{own}.rnn.candidate.weight", f"{theirs}_rnn_W"))
        normed(f"{own}.rnn_norm", f"{theirs}_rnn_ffn")
        attention(f"{own}.encoder_attn", f"{theirs}_context", f"{own}.encoder_norm")
        fed(f"{own}.ffn", f"{theirs}_ffn")
    return pairs


def _tokenizer(path: Path, vocabulary: int) -> PreTrainedTokenizerFast:
    """Load the tokenizer, set to end every source text with the end token."""
    try:
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path), eos_token="</s>", unk_token="<unk>")
    except Exception as error:  # the library raises a bare Exception
        raise ModelError(f"{path} is not a tokenizer: {re.sub(chr(10), ' ', str(error))[:200]}") from None
    backend = tokenizer.backend_tokenizer
    backend.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 0)])
    if len(tokenizer) != vocabulary or tokenizer.eos_token_id != 0:
        raise ModelError(
            f"{path} does not fit the model: it has {len(tokenizer):,} pieces and ends texts with "
            f"{tokenizer.eos_token_id}; the model has {vocabulary:,} and ends them with 0"
        )
    return tokenizer
