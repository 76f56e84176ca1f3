"""Schemas of the JSON files in a model's folder, checked before transformers reads them."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from typing_extensions import TypedDict

from specviz.errors import ModelError
from specviz.files import read_json

Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
Size = Annotated[int, Field(ge=1, le=2**27)]
TokenId = Annotated[int, Field(ge=-1, lt=2**31)]  # some configs use -1 for no token
VocabularyId = Annotated[int, Field(ge=0, lt=2**27)]
TokenIds = TokenId | Annotated[list[TokenId], Field(max_length=10_000)] | None
Number = Annotated[float, Field(allow_inf_nan=False)]


def _file(name: str) -> str:
    if PurePath(name).name != name:
        raise ValueError("is not a file of the folder")
    return name


class Config(TypedDict, total=False):
    """``config.json``: the fields common to all families, each optional."""

    model_type: str
    architectures: list[str] | None
    is_encoder_decoder: bool
    tie_word_embeddings: bool
    vocab_size: Size
    hidden_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    eos_token_id: TokenIds
    bos_token_id: TokenIds
    pad_token_id: TokenIds


class Generation(TypedDict, total=False):
    """``generation_config.json``."""

    eos_token_id: TokenIds
    bos_token_id: TokenIds
    pad_token_id: TokenIds
    do_sample: bool | None
    temperature: Number | None
    top_p: Number | None
    top_k: int | None
    max_length: int | None
    max_new_tokens: int | None


class TokenizerConfig(TypedDict, total=False):
    """``tokenizer_config.json``."""

    tokenizer_class: str | None
    chat_template: str | list[Any] | dict[str, Any] | None
    eos_token: str | dict[str, Any] | None
    bos_token: str | dict[str, Any] | None


class AddedToken(TypedDict, total=False):
    """A token added to the vocabulary."""

    id: VocabularyId


class Vocabulary(TypedDict, total=False):
    """Ids by token, or a list of tokens with scores."""

    vocab: dict[str, VocabularyId] | list[Any]


class Tokenizer(TypedDict, total=False):
    """``tokenizer.json``. Ids are limited because the tokenizers library iterates up to the largest."""

    model: Vocabulary
    added_tokens: list[AddedToken]


class Index(TypedDict):
    """``model.safetensors.index.json``."""

    weight_map: dict[str, Annotated[str, AfterValidator(_file)]]


class Tensor(TypedDict, total=False):
    """A tensor's entry in the header of a safetensors file; the file's metadata is an entry, too."""

    shape: list[Count]
    dtype: str


class Share(TypedDict):
    """Translation quality for a pair of languages."""

    bleu: Number
    share: Number


class Guesses(TypedDict):
    """Number of consecutive tokens predicted correctly."""

    mean: Annotated[list[Number], Field(min_length=1)]


class Ahead(TypedDict):
    """How often the likeliest token is correct, by its distance ahead."""

    right: Annotated[list[Number], Field(min_length=1)]


class Acceptance(TypedDict):
    """Fraction of drafted tokens that were accepted."""

    all: Number


class Card(TypedDict, total=False):
    """``training.json`` and ``scores.json`` of a model trained with this package."""

    tokens: Count
    tau: Number
    content: str  # the drafter's hash on its target in float32, which recorded replays name
    guesses: Guesses
    ahead: dict[str, Ahead]
    translation: dict[str, Share]
    acceptance: Acceptance


FILES = {
    "config.json": Config,
    "generation_config.json": Generation,
    "tokenizer_config.json": TokenizerConfig,
    "model.safetensors.index.json": Index,
    "tokenizer.json": Tokenizer,
}
REMEDY = "the model's folder is damaged: fetch or save it again"


def check_files(files: dict[str, Path]) -> None:
    """Reject damaged files of a model, some of which transformers would silently ignore.

    Parameters
    ----------
    files : dict
        Paths of the existing files, by name.

    Raises
    ------
    ModelError
        Naming the file, the location in it and the fault.
    """
    for name, path in files.items():
        read_json(path, FILES[name], REMEDY, ModelError)
