"""Loads a model from a name, a folder, a file, a hub id or a model in memory.

Importing this loads neither torch nor transformers; the loaders of the various formats are imported when
needed.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specviz.errors import ModelError, loading, near
from specviz.files import exists
from specviz.models import devices, ranks
from specviz.models.downloads import DOWNLOADS, require
from specviz.models.zoo import bundled
from specviz.paths import expanded

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from transformers import PreTrainedTokenizerBase

    from specviz.models.llamacpp.model import LlamaCpp
    from specviz.models.model import Model
    from specviz.models.protocols import Drafter, Spec

GGUF = "gguf:"
BERGAMOT = "bergamot:"
VARIABLE = "SPECVIZ_INVARIANT"
BACKENDS = ("torch", "llama.cpp")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")  # owner and name, as on the hub
# Loading never reads pickles; on request, `specviz.models.converting` extracts only the tensors from one.
CONVERT = "convert pytorch_model.bin once: specviz models convert FOLDER"
SHARDS = "pytorch_model-*.bin"
SHARDED = "its pickle is in several files, which are not converted: save it with transformers as safetensors"


def find(spec: str | Path) -> Path | None:
    """Find the folder of a bundled, downloaded or local model; return None if the model is not a folder.

    A Path is always a folder, also if a model of the same name is bundled or downloaded.

    Raises
    ------
    ModelError
        If there is no such folder, it holds no readable model, or the model is not downloaded yet.
    """
    if isinstance(spec, Path):
        return _checked(spec, expanded(spec, ModelError))
    if (name := spec.removeprefix(GGUF)) in DOWNLOADS:
        path = require(name)
        return path if DOWNLOADS[name].in_folder else None
    if spec.startswith(("hf:", GGUF)):
        return None
    if spec.startswith(BERGAMOT):
        return _bergamot(spec)
    return _checked(spec, bundled().get(spec, expanded(spec, ModelError)))


def address(spec: str | Path) -> str:
    """The text by which `load` finds a model: a Path's is never the name of another one."""
    return os.path.join(".", expanded(spec, ModelError)) if isinstance(spec, Path) else str(spec)


@loading()
def load(
    spec: Spec,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    tokenizer: PreTrainedTokenizerBase | str | Path | None = None,
    revision: str | None = None,
    *,
    threads: int | None = None,
    gpu_layers: int | None = None,
    context: int | None = None,
    device_map: str | Mapping[str, int | str] | None = None,
    tp_plan: str | None = None,
    backend: str | None = None,
    kernels: str | None = None,
    invariant: bool | None = None,
) -> Any:
    """Load a language model, or a drafter that was trained on top of one.

    Parameters
    ----------
    spec : str, Path, PreTrainedModel or Model
        A bundled name, a downloaded one (``smollm2``, see ``specviz models get``), a folder in transformers'
        format or in that of LLaDA and Dream, ``hf:<id>`` of such a folder, ``gguf:`` and a GGUF file
        (a path, or the name of a bundled or downloaded model) for llama.cpp, ``bergamot:`` and a folder
        with a Marian binary and its tokenizer (or a downloaded language pair, ``bergamot:en-pt``), or a
        model in memory: a transformers model is converted to the given device and dtype; a model loaded
        here is reused, and rejected if the given options differ. A Path is always a folder, never a name.
    device : str, default ``cpu``
        ``cpu``, ``cuda``, ``cuda:1`` or ``mps``. For a GGUF file it sets ``gpu_layers``: none for ``cpu``,
        otherwise all. A drafter that was trained on top of a model follows that model in device and format.
    dtype : str, default ``auto``
        ``float32``, ``float16``, ``bfloat16``, ``float64``, ``stored`` for the weights' own format, or
        ``auto``: float32, but for a large Llama-family model on a CPU the fastest of float32, bfloat16, and
        float32 with weights rounded to float16, measured once; the last two only if its passes can be
        invariant. A model in memory keeps its own format, and a GGUF file on llama.cpp has its own
        (``float32``, the default of benches, is accepted for one and changes nothing).
    tokenizer : transformers tokenizer, folder or ``hf:<id>``, optional
        Default: the one stored with the weights.
    revision : str, optional
        Branch, tag or commit of a hub model.
    threads, gpu_layers, context : int, optional
        For a GGUF file: the number of threads (default: torch's), layers on the GPU (-1: all; default none),
        and the maximum number of tokens of a text (default: the model's limit, at most 4096).
    device_map : str or dict, optional
        Instead of `device`: how to spread a causal model that is too large for one device over several, in
        transformers' format (``auto``, ``balanced``, or modules by device); it needs accelerate. Its layers
        run through transformers' modules, and each keeps its keys and values on its device.
    tp_plan : "auto", optional
        Instead of `device`: split every matrix of a causal model over the ranks of torchrun, one GPU each
        (without GPUs: processes on the CPU), by transformers' tensor-parallel plan for its architecture. The
        script must run on every rank (``torchrun --nproc-per-node N script.py``), and all ranks decode the
        same texts in step (`specviz.models.ranks`); each rank loads the whole drafter. This is tested with
        ranks on the CPU and was never run on several GPUs.

    backend : {"torch", "llama.cpp"}, optional
        Library that runs a GGUF file. Default: llama.cpp for ``gguf:``, torch for a downloaded name. On
        torch, the weights of a Llama-family file are dequantised, and the model's name says so.
    kernels : {"auto", "plain", "transposed", "onednn", "onednn-unpadded", "fp16", "int8", "int4", \
"w8a8"}, optional
        Layout of the matrices in memory on torch (`specviz.models.kernels`). It changes the speed and the
        last digits. Default: the environment variable SPECVIZ_KERNELS, else the fastest here, measured once;
        the next load measures again if other work disturbed the measurement.
        ``fp16`` rounds the weights to float16, except those of a model in memory, and computes in float32 (on
        x86); if no dtype is named, a large model's weights are rounded in this way if that is fastest.
        ``int8`` rounds the weights to eight bits; ``int4`` keeps weights stored in four bits and rounds the
        others to eight. Both compute in bfloat16 on a CPU. ``w8a8`` rounds weights and inputs to eight bits,
        on a processor with instructions for it. It is the default for EAGLE heads and drafters cut from a
        large model, unless SPECVIZ_KERNELS is set, because it does not change the text of an exact method.
    invariant : bool, optional
        Compute each row of a pass bit for bit as if it were alone (`specviz.models.ordered`): verification in
        one pass then gives the same result as decoding token by token. Supported on a CPU, for the Llama
        family, Gemma 2, encoder-decoders and masked-diffusion models on torch. Default: the environment
        variable SPECVIZ_INVARIANT (1 or 0), for models that can be invariant; without it, on for large causal
        models if it costs at most 10 %, measured once, or if ``auto`` chose bfloat16.

    Returns
    -------
    Model, EncoderDecoder, Diffusion or LlamaCpp; or an addition such as Heads, Slots or EagleHead, which can
    be used only as a drafter

    Raises
    ------
    ModelError
        If there is no such model, it cannot be served, or the device is absent or full; with `tp_plan`, if
        there are no ranks or they cannot share the model. Code that comes with a model is never run, and only
        safetensors weights are read.
    """
    _check_spread(spec, device, device_map, tp_plan)
    if tokenizer is not None and not isinstance(tokenizer, (str, Path)) and not hasattr(tokenizer, "encode"):
        raise ModelError(
            f"tokenizer is a transformers tokenizer, a folder or hf:<id>, got {type(tokenizer).__name__}"
        )
    if hasattr(spec, "open") and hasattr(spec, "encode") and not isinstance(spec, Path):
        model: Any = spec
        _check_loaded(model, device, dtype, kernels)
        options = {
            "tokenizer": tokenizer, "revision": revision, "threads": threads, "gpu_layers": gpu_layers,
            "context": context, "backend": backend, "device_map": device_map, "tp_plan": tp_plan,
        }  # fmt: skip
        if ignored := [name for name, value in options.items() if value is not None]:
            raise ModelError(f"{model.name} is already loaded: drop {ignored[0]}=, or load its files with it")
        if hasattr(model, "make_invariant") and invariant not in (None, model.invariant):
            state = "invariant already" if model.invariant else "not invariant"
            raise ModelError(f"{model.name} is {state}: load its files with {invariant=}")
    elif isinstance(spec, str) and _is_gguf(spec):
        _drop("a GGUF file brings its own {0}: drop {0}={1!r}", tokenizer=tokenizer, revision=revision)
        model = _gguf(spec, backend, device, dtype, threads, gpu_layers, context, kernels)
    elif isinstance(spec, str) and _is_bergamot(spec):
        _drop(
            "a Bergamot translator brings its own {0}: drop {0}={1!r}",
            tokenizer=tokenizer, revision=revision, threads=threads, gpu_layers=gpu_layers, context=context,
            backend=None if backend == "torch" else backend,
        )  # fmt: skip
        from specviz.models import fetching

        path = _bergamot(spec)
        number = dtype or "float32"
        model = fetching.from_bergamot(path, device or "cpu", number, path.resolve().name, kernels)
    else:
        _drop(
            "{0} works only with a GGUF file (gguf:PATH): drop {0}={1!r}",
            backend=None if backend == "torch" else backend,
            threads=threads, gpu_layers=gpu_layers, context=context,
        )  # fmt: skip
        path = None  # looked up before importing the libraries, which takes seconds
        if isinstance(spec, (str, Path)) and tp_plan is None:
            path = find(spec)
        if path is not None:
            _drop("{0} is of a model on the hub (hf:ID): drop {0}={1!r}", revision=revision)
        from specviz.models import fetching

        if tp_plan is not None:
            layout = None if kernels in ("auto", "plain") else kernels
            _drop("a model split by tp_plan keeps transformers' layout: drop {0}={1!r}", kernels=layout)
            assert isinstance(spec, (str, Path))  # see `_check_spread`
            model = fetching.fetch_split(spec, dtype or "auto", tokenizer, revision)
        elif isinstance(spec, (str, Path)):
            given = device or "cpu", _format(dtype, kernels), tokenizer, revision, device_map, kernels
            model = fetching.fetch(str(spec), path, *given)
        else:
            model = fetching.adopt(spec, device, dtype, tokenizer, kernels)
    chosen = _format(dtype, kernels) == "auto"  # whether the format was left to `auto`
    if invariant and not getattr(model, "invariant", False):
        if not hasattr(model, "make_invariant"):
            raise ModelError(f"{spec} cannot be invariant: only language models on torch can; drop invariant")
        model.make_invariant()
    elif invariant is None and isinstance(spec, (str, Path)) and hasattr(model, "make_invariant"):
        from specviz.models import choices

        if choices.unasked(model, chosen, os.environ.get(VARIABLE)):
            try:
                model.make_invariant()
            except ModelError as error:  # the variable applies only to models that can be invariant
                if chosen and str(model.dtype) == "torch.bfloat16":
                    print(f"specviz: {error} to accept this, or with dtype='float32'", file=sys.stderr)
    if isinstance(spec, (str, Path)) and hasattr(model, "requested_invariant"):
        model.requested_invariant, model.chosen_format = invariant, chosen
    _warn_of_slow(model, dtype)
    return model


def _warn_of_slow(model: Model, dtype: str | torch.dtype | None) -> None:
    """Warn if this processor emulates the requested format, and the model is large enough to lose time."""
    number, net = str(dtype).removeprefix("torch."), getattr(model, "net", None)
    if net is None or not devices.emulates(str(getattr(model, "device", "")), number):
        return
    from specviz.models import choices

    if choices.large(net):
        print(
            f"specviz: torch reports no instructions for {number} on this processor, so passes may take "
            "longer than in float32; dtype='auto' takes the fastest format",
            file=sys.stderr,
        )


def _format(dtype: str | torch.dtype | None, kernels: str | None) -> str | torch.dtype:
    """The requested number format; if there is none, bfloat16 for integer kernels, else ``auto``."""
    if dtype not in (None, "auto"):
        return dtype
    named = None if kernels == "auto" else kernels
    whole = (named or os.environ.get("SPECVIZ_KERNELS")) in ("int8", "int4")
    return "bfloat16" if whole else "auto"


def _is_gguf(spec: str) -> bool:
    return spec.startswith(GGUF) or (spec in DOWNLOADS and DOWNLOADS[spec].is_gguf)


def _is_bergamot(spec: str) -> bool:
    return spec.startswith(BERGAMOT) or (spec in DOWNLOADS and not DOWNLOADS[spec].is_gguf)


def _bergamot(spec: str) -> Path:
    """The folder of a translator: a downloaded one, by name or language pair, or a local one."""
    text = spec.removeprefix(BERGAMOT)
    for name in (text, f"bergamot-{text}"):
        if name in DOWNLOADS and not DOWNLOADS[name].is_gguf:
            return require(name)
    return expanded(text, ModelError)


def _check_loaded(
    model: Drafter, device: str | torch.device | None, dtype: str | torch.dtype | None, kernels: str | None
) -> None:
    """Reject options that differ from the properties of a loaded model, which is not changed."""
    # An addition has neither a device nor a format before it is bound to a target.
    place, number = (str(getattr(model, name, "")).removeprefix("torch.") for name in ("device", "dtype"))
    if device is not None and place and str(device) not in (place, place.partition(":")[0]):
        raise ModelError(f"{model.name} is on {place}, not on {device}: load it there, or drop device=")
    if dtype not in (None, "auto", "stored") and number and str(dtype).removeprefix("torch.") != number:
        raise ModelError(f"{model.name} is in {number}, not in {dtype}: load it so, or drop dtype=")
    if kernels not in (None, "auto", getattr(model, "kernels", None)):
        raise ModelError(f"{model.name} is already loaded: pass kernels={kernels!r} to load")


def _drop(message: str, **options: object) -> None:
    """Reject options that have no meaning here; `message` has placeholders for name and value."""
    for name, value in options.items():
        if value is not None:
            raise ModelError(message.format(name, value))


def _gguf(
    spec: str, backend: str | None, device: str | torch.device | None, dtype: str | torch.dtype | None,
    threads: int | None, gpu_layers: int | None, context: int | None, kernels: str | None,
) -> Model | LlamaCpp:  # fmt: skip
    """Load a GGUF file's model on torch or llama.cpp."""
    if backend not in (None, *BACKENDS):
        raise ModelError(f"backend must be {' or '.join(BACKENDS)}; got {backend!r}")
    name = spec.removeprefix(GGUF)
    if name in DOWNLOADS:
        require(name)  # fail before importing the libraries, which takes seconds
    if (backend or (BACKENDS[1] if spec.startswith(GGUF) else BACKENDS[0])) == BACKENDS[0]:
        message = "{0} works only on llama.cpp: drop {0}={1!r}, or set backend='llama.cpp'"
        _drop(message, threads=threads, gpu_layers=gpu_layers, context=context)
        from specviz.models.fetching import from_gguf

        number = _format(dtype, kernels)
        return from_gguf(_gguf_file(name), device or "cpu", number, Path(name).stem, kernels)
    message = "a GGUF file brings its own {0} to llama.cpp: drop {0}={1!r}, or set backend='torch'"
    _drop(
        message,
        # float32 is the default of benches
        dtype=None if str(dtype).removeprefix("torch.") in ("auto", "float32") else dtype,
        kernels=None if kernels == "auto" else kernels,
    )
    from specviz.models.llamacpp.model import LlamaCpp

    if gpu_layers is None:
        gpu_layers = 0 if device is None or str(device) == "cpu" else -1
    return LlamaCpp(_gguf_file(name), threads, gpu_layers, context)


def _gguf_file(name: str) -> Path:
    """The GGUF file of a downloaded, bundled or local model."""
    if name in DOWNLOADS:
        return require(name)
    if name in bundled():
        from specviz.models.llamacpp.bundled import bundled_gguf

        return bundled_gguf(name)
    return expanded(name, ModelError)


def _check_spread(
    spec: Spec, device: str | torch.device | None, device_map: str | Mapping[str, int | str] | None,
    tp_plan: str | None,
) -> None:  # fmt: skip
    """Reject conflicting placement options before anything is loaded."""
    if device_map is not None and tp_plan is not None:
        raise ModelError(
            "device_map puts layers on devices and tp_plan splits each layer over ranks: drop one of them"
        )
    name, given = ("tp_plan", tp_plan) if device_map is None else ("device_map", device_map)
    if given is None:
        return
    if isinstance(spec, str) and _is_gguf(spec):
        raise ModelError(
            f"{name} does not work with a GGUF file: drop it; on llama.cpp, gpu_layers puts layers on a GPU"
        )
    if isinstance(spec, str) and _is_bergamot(spec):
        raise ModelError(f"{name} does not work with a Bergamot translator, which is small: drop it")
    if device is not None or not isinstance(spec, (str, Path)):
        raise ModelError(f"{name} places the weights of a folder or hub model: drop device= and give a name")
    if tp_plan is not None:
        if tp_plan != "auto":
            raise ModelError(f"tp_plan must be 'auto', the plan of the model's architecture; got {tp_plan!r}")
        ranks.join()


def _checked(spec: str | Path, path: Path) -> Path:
    """Return `path`, the folder that `spec` names; raise `ModelError` if it holds no readable model."""
    text = str(spec)
    if not exists(path):
        hub = [f"hf:{text}"] if HUB_ID.fullmatch(text) else []
        close = "" if isinstance(spec, Path) else near(text, [*bundled(), *DOWNLOADS, *hub])
        raise ModelError(f"no model {text!r}{close} (or give a folder, gguf:PATH or hf:<id>)")
    if not path.is_dir():
        gguf = f"; for a GGUF file write {GGUF}{text}" if path.suffix == ".gguf" else ""
        raise ModelError(f"{text} is a file; a model is a folder in transformers' format{gguf}")
    if not (path / "config.json").is_file():
        lora = (path / "adapter_config.json").is_file()
        why = "holds a LoRA adapter: merge it into its model and load that"
        raise ModelError(f"{text} {why if lora else 'is not a model folder: it has no config.json'}")
    if not any(path.glob("*.safetensors")):
        how = f": {CONVERT}" if (path / "pytorch_model.bin").is_file() else ""
        how = f": {SHARDED}" if any(path.glob(SHARDS)) else how
        raise ModelError(
            f"{text} has no safetensors weights (other formats can run code and are not read){how}"
        )
    return path
