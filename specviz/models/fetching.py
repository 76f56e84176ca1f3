"""Loads models from folders in transformers' format, hub ids or transformers models in memory."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import torch
from huggingface_hub import hf_hub_download, model_info, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, logging

from specviz.draft import Draft
from specviz.errors import ModelError, SpecvizError, install, one_line
from specviz.files import read_json
from specviz.models import adapters, choices, diffusion_checkpoints, ranks
from specviz.models import kernels as layouts
from specviz.models.additions import ADDITION_FILES, Addition, load_addition, may_be_addition
from specviz.models.diffusion import Diffusion
from specviz.models.encoder_decoder import SERVED, TYPES, EncoderDecoder
from specviz.models.loading import CONVERT, find
from specviz.models.model import Model, check_config
from specviz.models.schema import FILES, check_files
from specviz.models.torch_model import TorchModel, move, unserved
from specviz.models.zoo import bundled
from specviz.paths import expanded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import PreTrainedConfig, PreTrainedTokenizerBase
    from transformers.distributed import DistributedConfig

    from specviz.models.bergamot.model import Bergamot
    from specviz.models.protocols import AnyTokenizer, Net, Settings, Spec

VOCABULARIES = (
    "tokenizer.json", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "source.spm",
    "vocab.json", "vocab.txt", "tekken.json", "tiktoken.model",
)  # fmt: skip
TESTED = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gpt2",
)  # families whose logits our tests compare
NO_WEIGHTS = (
    "has no safetensors weights, and other formats are not read: download the repository to a folder, then "
    f"{CONVERT}"
)
NO_CONFIG = (
    "has no config.json: it holds no model in transformers' format (a GGUF file: download it and write "
    "gguf:FILE; a LoRA adapter: merge it into its model)"
)
AUTO, STORED = "auto", "stored"
DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}

Loaded = TypeVar("Loaded", bound=TorchModel)
Words: TypeAlias = "PreTrainedTokenizerBase | str | Path | None"  # a tokenizer, or its location


def adopt(
    spec: Spec, device: str | torch.device | None, dtype: str | torch.dtype | None, tokenizer: Words,
    kernels: str | None = None,
) -> Model | EncoderDecoder:  # fmt: skip
    """Wrap a transformers model in memory; it keeps its device and dtype unless they are given."""
    if not isinstance(spec, PreTrainedModel):
        raise ModelError(
            "a model must be a bundled name, a folder, gguf:PATH, hf:<id> or a transformers model; got "
            f"{type(spec).__name__}"
        )
    name = Path(getattr(spec, "name_or_path", "") or type(spec).__name__).name
    number = _dtype(STORED if dtype in (None, AUTO) else dtype)
    if device is not None or isinstance(number, torch.dtype):
        target = _device(device) if device is not None else spec.device
        try:
            move(spec, name, target, number if isinstance(number, torch.dtype) else None)
        except ValueError as error:  # transformers converts no quantized model
            raise ModelError(f"{name}: {one_line(error, 150)}") from None
    return _model(spec.eval(), _tokenizer(tokenizer), name, kernels)


def fetch(
    text: str, path: Path | None, device: str | torch.device, dtype: str | torch.dtype, tokenizer: Words,
    revision: str | None, device_map: str | Mapping[str, int | str] | None = None, kernels: str | None = None,
) -> Model | EncoderDecoder | Diffusion | Addition:  # fmt: skip
    """Load a folder's model, or a hub model if there is no `path`, or an addition to a model."""
    if device_map is not None and find_spec("accelerate") is None:
        raise ModelError(f"device_map needs accelerate: {install('large')}")
    target = _device(device)
    number = _dtype(dtype)
    source, name, local = _source(text, path)
    folder = path if path is not None else _hub_folder(source, revision)
    given = _tokenizer(tokenizer)
    if folder is not None:
        _check_json(folder)
        with _as_model_error(source, name):
            addition = load_addition(folder, name)
            config = {} if addition else diffusion_checkpoints.read_config(folder)
            adapter, diffuses = (
                config.get("model_type") == adapters.TYPE,
                diffusion_checkpoints.family(config),
            )
            if device_map is not None and (addition or adapter or diffuses):
                raise ModelError(
                    f"device_map supports only causal models; {name} is not one: drop device_map"
                )
            if given is not None and (addition or adapter):
                raise ModelError(f"{name} has its target's tokenizer: drop tokenizer=")
            if addition:
                if layouts.check(kernels) is not None:
                    raise ModelError(
                        f"{name} is not a model by itself but {addition.description} {addition.trained_on}, "
                        f"and drafts in its layout or in eight bits: drop kernels=, or set {layouts.VARIABLE}"
                    )
                return addition  # moved and converted when it is bound to its target
            if adapter:
                return adapters.load_adapter(folder, name, config, target, number, kernels)
            if diffuses:
                return diffusion_checkpoints.load_checkpoint(folder, name, target, number, given, kernels)
    spread = {} if device_map is None else {"device_map": device_map}
    net, words = _fetch(source, name, local, revision, number, spread, given)
    if device_map is None:
        move(net, name, target)
    with _as_model_error(source, name):
        net = net.eval().requires_grad_(False)
        model = _model(net if device_map else _chosen(net, dtype, kernels), words, name, kernels)
    return _identified(model, source, local, revision)


def is_addition(spec: str | Path) -> bool:
    """Whether a folder or hub model is an addition; of any other model only the config is read."""
    folder = find(spec)
    if folder is None and str(spec).startswith("hf:"):
        folder = _hub_folder(str(spec).removeprefix("hf:"), None)
    return folder is not None and load_addition(folder, folder.name) is not None


def _check_json(folder: Path) -> None:
    """Reject a model's folder whose JSON files are damaged."""
    check_files({file: folder / file for file in FILES if (folder / file).is_file()})


@contextmanager
def _as_model_error(source: str, name: str) -> Iterator[None]:
    """Convert any exception that a library raises for a damaged model to a one-line `ModelError`."""
    try:
        yield
    except (SpecvizError, MemoryError):
        raise
    except Exception as error:  # tokenizers raises bare exceptions
        raise ModelError(_why(source, name, True, None, error)) from None


def from_gguf(
    path: Path, device: str | torch.device, dtype: str | torch.dtype, name: str, kernels: str | None
) -> Model:
    """Load a GGUF file's model on torch, with dequantised weights."""
    from specviz.models.gguf.reading import load_gguf

    return load_gguf(path, _device(device), _dtype(dtype), name, kernels, fastest=dtype == AUTO)


def from_bergamot(
    folder: Path, device: str | torch.device, dtype: str | torch.dtype, name: str, kernels: str | None
) -> Bergamot:
    """Load the translator in a folder, with dequantised weights."""
    from specviz.models.bergamot.loading import load

    number = _dtype("float32" if dtype == AUTO else dtype)
    if not isinstance(number, torch.dtype):
        raise ModelError(f"a Bergamot file stores 8-bit weights: choose {', '.join(DTYPES)}, not {dtype!r}")
    with _as_model_error(str(folder), name):
        return load(folder, _device(device), number, name, kernels)


def fetch_split(spec: str | Path, dtype: str | torch.dtype, tokenizer: Words, revision: str | None) -> Model:
    """Load a causal model split over the ranks of torchrun; each rank reads its own shards."""
    group = ranks.join()

    def place() -> tuple[str, str, bool]:
        path = find(spec)
        source, name, local = _source(str(spec), path)
        folder = path if path is not None else _hub_folder(source, revision)
        if folder is not None:
            _check_json(folder)
            with _as_model_error(source, name):
                config = diffusion_checkpoints.read_config(folder)
                adapter = config.get("model_type") == adapters.TYPE
                if adapter or load_addition(folder, name) or diffusion_checkpoints.family(config):
                    raise ModelError(
                        f"{name} is not a causal model, and only causal models can be split: drop tp_plan"
                    )
        return source, name, local

    def read() -> tuple[PreTrainedModel, AnyTokenizer]:
        spread = {"distributed_config": _split()}
        given = _tokenizer(tokenizer)
        net, words = _fetch(source, name, local, revision, _dtype(dtype), spread, given)
        return net.eval().requires_grad_(False), words

    # All ranks locate the files first: if one failed later, the others would wait for it while loading.
    source, name, local = group.tried(place)
    net, words = group.tried(read)
    return _identified(_probed(Model(net, words, name)), source, local, revision)


def _identified(model: Loaded, source: str, local: bool, revision: str | None) -> Loaded:
    """Identify a model by its files: its weights in memory depend on the format in which it was loaded."""
    names = SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME
    files = _files(source, local, revision, names)
    if (index := files.get(SAFE_WEIGHTS_INDEX_NAME)) and SAFE_WEIGHTS_NAME not in files:
        files = _files(source, local, revision, sorted({*read_json(index, dict)["weight_map"].values()}))
    files.pop(SAFE_WEIGHTS_INDEX_NAME, None)
    if files:
        model.keep_files(list(files.values()))
    return model


def _files(source: str, local: bool, revision: str | None, names: Iterable[str]) -> dict[str, Path]:
    """Those of a model's files that are in its folder or in the hub's cache."""
    if not local:
        return _cached(source, revision, names)
    return {name: Path(source) / name for name in names if (Path(source) / name).is_file()}


def _source(text: str, path: Path | None) -> tuple[str, str, bool]:
    """The source to pass to transformers, the model's name, and whether it is local."""
    return (text[3:], text[3:], False) if path is None else (str(path), path.resolve().name, True)


def _model(
    net: PreTrainedModel, words: AnyTokenizer, name: str, kernels: str | None
) -> Model | EncoderDecoder:
    if net.config.is_encoder_decoder:
        return EncoderDecoder(net, words, name, kernels=kernels)
    return _probed(Model(net, words, name, kernels=kernels))


@torch.no_grad()
def _probed(model: Model) -> Model:
    """Check that a small tree's logits match those of transformers, for families that our tests do not cover.

    A family may derive positions from slots, keep a state of its own or attend both ways; this detects it.
    """
    if model.config.model_type in TESTED:
        return model
    head, tokens = [i % model.vocabulary for i in (5, 3, 7)], [i % model.vocabulary for i in (11, 2, 13)]
    draft = Draft(np.array(tokens), np.array([-1, -1, 0]))
    try:
        scores = model.open([head], 8).forward(draft).logits[0].cpu()
        paths: tuple[list[int], ...] = ([], tokens[:1], tokens[1:2], [tokens[0], tokens[2]])
        texts = [torch.tensor([head + path], device=model.device) for path in paths]
        want = torch.stack([model.net(text, use_cache=False).logits[0, -1].float().cpu() for text in texts])
    except Exception as error:  # whatever an untested model raises, it cannot be served
        reason = one_line(error, 150)
        raise ModelError(f"{model.name} ({model.config.model_type}) is not supported: {reason}") from None
    bound = (1e-3 if model.dtype in (torch.float32, torch.float64) else 5e-2) * float(want.abs().max())
    if not (scores - want).abs().max() <= bound:
        raise ModelError(
            f"{model.name} ({model.config.model_type}) is not supported: a token tree's scores differ from "
            "those of its paths read alone: it is not a causal language model, or it keeps its own state"
        )
    return model


def _fetch(
    source: str, name: str, local: bool, revision: str | None, dtype: torch.dtype | str, spread: Settings,
    given: AnyTokenizer | None = None,
) -> tuple[PreTrainedModel, AnyTokenizer]:  # fmt: skip
    """Load weights and tokenizer (unless given) from disk or the hub's cache, else from the network.

    `spread` holds the options that tell transformers where to put the weights, if not on the CPU.
    """
    options = {"trust_remote_code": False} | ({"revision": revision} if revision else {})
    error: Exception | None = None
    bar = logging.is_progress_bar_enabled()
    try:
        for only in (True,) if local else (True, False):
            # Show a progress bar for downloads only.
            (logging.disable_progress_bar if only or not bar else logging.enable_progress_bar)()
            try:
                if not only:
                    _ask(source, revision)
                elif not local:
                    check_files(_cached(source, revision))
                config = AutoConfig.from_pretrained(source, local_files_only=only, **options)
                if config.is_encoder_decoder and config.model_type not in TYPES:
                    raise unserved(name, config.model_type, SERVED)
                if not config.is_encoder_decoder:
                    check_config(_built(config), name)
                if "distributed_config" in spread:
                    ranks.check_plan(config, name)
                words = given
                if words is None:
                    words = AutoTokenizer.from_pretrained(source, local_files_only=only, **options)
                kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
                loaded: Net = kind.from_pretrained(
                    source, config=config, dtype=dtype, use_safetensors=True, local_files_only=only,
                    output_loading_info=True, **spread, **options,
                )  # fmt: skip
                net, report = loaded
                if missing := sorted(report["missing_keys"]):  # they would be random
                    raise ModelError(
                        f"{name} lacks {len(missing)} weights that its config requires (first {missing[0]})"
                    )
                if not only:
                    check_files(_cached(source, revision))
                return net, words
            except (SpecvizError, MemoryError):
                raise
            except Exception as fault:  # tokenizers raises bare exceptions
                # Prefer the error from loading the cached files over the error that the hub is unreachable.
                if error is None or isinstance(error, OSError) or not isinstance(fault, OSError):
                    error = fault
    finally:
        if bar:
            logging.enable_progress_bar()
    raise ModelError(_why(source, name, local, revision, error)) from None


def _built(config: PreTrainedConfig) -> PreTrainedConfig:
    """The config of the causal model that transformers makes: of some composite models, the text's."""
    text = config.sub_configs.get("text_config")
    own = getattr(MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None), "config_class", None)
    return config.get_text_config() if text is not None and own is text else config


def _cached(source: str, revision: str | None, files: Iterable[str] = FILES) -> dict[str, Path]:
    """A hub model's files in the hub's cache; by default its JSON files."""
    paths = {file: try_to_load_from_cache(source, file, revision=revision) for file in files}
    return {file: Path(path) for file, path in paths.items() if isinstance(path, str)}


def _hub_folder(source: str, revision: str | None) -> Path | None:
    """Folder of a hub model, from cache or network, if transformers alone cannot load it; else None."""
    what: Settings = {"repo_id": source, "revision": revision}
    try:
        config = try_to_load_from_cache(filename="config.json", **what)
        if not isinstance(config, str):
            _ask(source, revision)
            config = hf_hub_download(filename="config.json", **what)
        fields = diffusion_checkpoints.read_config(Path(config).parent)
        if diffusion_checkpoints.family(fields):
            what["allow_patterns"] = list(diffusion_checkpoints.FILES)
        elif may_be_addition(fields) or fields.get("model_type") == adapters.TYPE:
            what["allow_patterns"] = list(ADDITION_FILES)
        else:
            return None
        folder = Path(snapshot_download(local_files_only=True, **what))
        if not diffusion_checkpoints.complete(folder):  # an interrupted download
            _ask(source, revision)
            folder = Path(snapshot_download(**what))
            if not any(folder.glob("*.safetensors")):
                raise ModelError(f"hf:{source} {NO_WEIGHTS}")
        return folder
    except ModelError:
        raise
    except Exception as error:  # as in `_ask`
        if isinstance(error, EntryNotFoundError) and not isinstance(error, LocalEntryNotFoundError):
            raise ModelError(f"hf:{source} {NO_CONFIG}") from None
        cause = error if isinstance(error, ValueError) else OSError(str(error))
        raise ModelError(_why(source, source, False, revision, cause)) from None


def _ask(source: str, revision: str | None) -> None:
    """Query the hub for a model once: a download would retry an unreachable hub for a long time."""
    try:
        model_info(source, revision=revision, timeout=10)
    except Exception as error:  # the client's error classes differ between its versions
        raise OSError(str(error)) from error


def _why(source: str, name: str, local: bool, revision: str | None, error: Exception | None) -> str:
    """Summarise an error of transformers in one line."""
    words = " ".join(str(error).split())
    if "trust_remote_code" in words or "custom code" in words:
        return f"{name} comes with its own code, which is never run; use a model that transformers supports"
    if local and "okenizer" in words and not any((Path(source) / file).is_file() for file in VOCABULARIES):
        return f"{source} has no tokenizer: put the model's tokenizer.json there, or pass tokenizer="
    if not local and "okenizer" in words and not _cached(source, revision, VOCABULARIES):
        return f"hf:{source} has no tokenizer, or none that is cached: pass tokenizer=, or download it"
    if find_spec("sentencepiece") is None and ("sentencepiece" in words or "build an AutoTokenizer" in words):
        return f"the tokenizer of {name} needs sentencepiece: pip install sentencepiece"
    if os.strerror(errno.ENOSPC) in words:
        return (
            f"the disk is full, so {name} was not downloaded: free some space, or set HF_HOME to another disk"
        )
    if "out of memory" in words or "allocate memory" in words:
        return f"out of memory while loading {name}; load with dtype='bfloat16' or a smaller model"
    if local:
        return f"{source} does not load as a language model: {one_line(words, 200)}"
    where = f" at revision {revision}" if revision else ""
    if "does not appear to have a file named model.safetensors" in words:  # the hub did answer
        return f"hf:{source}{where} {NO_WEIGHTS}"
    if isinstance(error, OSError):
        return (
            f"hf:{source}{where} is neither cached nor reachable (no network, no such model, or no access); "
            f"pass a local folder or one of the bundled models: {', '.join(bundled()) or 'none here'}"
        )
    return f"hf:{source}{where} does not load as a language model: {one_line(words, 200)}"


def _split() -> DistributedConfig:
    """The config that makes transformers split a model over all ranks by its own plan."""
    from transformers import distributed

    if "tp_plan" not in distributed.DistributedConfig.__dataclass_fields__:
        raise ModelError("tp_plan needs a newer transformers: pip install -U transformers")
    return distributed.DistributedConfig(tp_plan="auto", tp_size=ranks.size())


def _tokenizer(source: Words) -> AnyTokenizer:
    """Return the given tokenizer, or load it from a folder, from the hub's cache or from the network."""
    if not isinstance(source, str | Path):
        return source
    text = str(source)
    error: Exception = OSError(text)
    hub = text.startswith("hf:")
    where = text.removeprefix("hf:") if hub else str(expanded(text, ModelError))
    for only in (True, False) if hub else (True,):
        try:
            if not only:
                _ask(where, None)
            words: AnyTokenizer = AutoTokenizer.from_pretrained(
                where, local_files_only=only, trust_remote_code=False
            )
            names = set(getattr(words, "vocab_files_names", {}).values())  # none for a tokenizer of bytes
            if names and not _files(where, not hub, None, names | {*VOCABULARIES}):
                raise ValueError("it has no tokenizer files")  # transformers builds an empty tokenizer
            return words
        except Exception as fault:  # tokenizers raises bare exceptions
            if isinstance(error, OSError) or not isinstance(fault, OSError):  # as in `_fetch`
                error = fault
    raise ModelError(f"no tokenizer in {text} (a folder, or hf:<id>): {one_line(error, 200)}") from None


def _dtype(dtype: str | torch.dtype) -> torch.dtype | str:
    """Convert a format to transformers' notation, in which ``auto`` is the format of the stored weights."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == STORED:
        return "auto"
    if dtype == AUTO:  # see `_chosen`
        return torch.float32
    if dtype not in DTYPES:
        raise ModelError(f"no dtype {dtype!r}; choose one of {', '.join(DTYPES)}, {STORED} or {AUTO}")
    return DTYPES[dtype]


def _chosen(net: PreTrainedModel, dtype: str | torch.dtype, kernels: str | None) -> PreTrainedModel:
    """Convert the network to the fastest format if none was named, or to the one that its kernels need."""
    return choices.convert(net, kernels, auto=dtype == AUTO)


def _device(device: str | torch.device) -> torch.device:
    try:
        target = torch.device(device)
    except RuntimeError:
        raise ModelError(f"no device {str(device)!r}; choose cpu, cuda, cuda:<number> or mps") from None
    if target.type == "cuda" and (target.index or 0) >= torch.cuda.device_count():
        raise ModelError(
            f"device {device} is not available (torch sees {torch.cuda.device_count()} CUDA devices); use cpu"
        )
    if target.type == "mps" and not torch.backends.mps.is_available():
        raise ModelError("device mps is not available; use cpu")
    if target.type not in ("cpu", "cuda", "mps"):
        available = getattr(getattr(torch, target.type, None), "is_available", None)  # for example torch.xpu
        if available is None or not available():
            raise ModelError(f"device {device} is not available; use cpu")
    return target
