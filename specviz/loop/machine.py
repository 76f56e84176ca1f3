"""Identity of a model, a machine and library versions: the conditions of a measurement or a record."""

from __future__ import annotations

import hashlib
import platform
import shlex
import sys
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from ..methods.base import Method
from ..models.choices import large
from ..models.downloads import DOWNLOADS, local_path
from ..models.kernels import AUTO, processor
from ..models.loading import HUB_ID
from ..models.protocols import Model
from ..models.ranks import holding, whole
from ..models.torch_model import TorchModel
from ..models.zoo import bundled
from ..trace.files import Record

if TYPE_CHECKING:
    from ..models.diffusion import Diffusion

# Digests of split models, cached because gathering every weight takes time.
_split_digests: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def identity(model: Model) -> Record:
    """Identify a model among others of the same name: its size and a digest of some of its weights."""
    about: Record = {"name": model.name, "parameters": model.parameters, "vocabulary": model.vocabulary}
    if chat := getattr(getattr(model, "text", None), "chat", None):  # variables of its chat template
        about["chat"] = dict(chat)
    net = getattr(model, "net", None)
    if net is None:
        return about | ({"weights": model.digest} if hasattr(model, "digest") else {})
    digest = _split_digests.get(model)
    if digest is None:
        digest = _sampled_digest(net)
        if holding(model).size > 1:
            _split_digests[model] = digest
    return about | {"weights": digest}


def computed_by(model: Model) -> Record:
    """How a model's passes are computed: its kernels, whether rows are invariant, and layers on a GPU.

    Measured times are valid only for these settings.
    """
    more = {name: getattr(model, name, None) for name in ("invariant", "gpu_layers")}
    return {"kernels": getattr(model, "kernels", None)} | {name: each for name, each in more.items() if each}


def load_options(model: object, run: Record, dtype: str | None = None, kernels: str | None = None) -> Record:
    """Options of `specviz.load` that load a run's target by name as the run had it.

    They are empty for a model in memory, if `dtype` or `kernels` name something else, or if the run's backend
    has no layouts.
    """
    backend = run["backend"] or {}
    named = kernels not in (None, AUTO) or dtype not in (None, AUTO, run["dtype"])
    if named or "kernels" not in backend or not isinstance(model, str | Path) or str(model)[:5] == "gguf:":
        return {}
    layout = {"kernels": backend["kernels"], "invariant": backend.get("invariant", False)}
    return {"dtype": run["dtype"]} | layout


def drafter_identity(drafter: Model, target: Model) -> Record:
    """As `identity`, plus the drafter's matrix layout if that differs from the target's."""
    layout = getattr(drafter, "kernels", None)
    same = layout in (None, getattr(target, "kernels", None))
    return identity(drafter) | ({} if same else {"kernels": layout})


def _sampled_digest(net: Any) -> str:
    """Digest of sixteen numbers from each weight tensor."""
    digest = hashlib.sha256()
    for weight in net.parameters():
        flat = whole(weight.detach()).flatten()
        digest.update(flat[:: max(1, len(flat) // 16)][:16].double().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def about(model: Model) -> Record:
    """Fields of the trace's metadata that describe a model."""
    fields = {"name": model.name, "parameters": model.parameters, "max_length": model.max_length}
    fields |= {"kind": model.kind, "shape": getattr(model, "geometry", None)}
    fields |= {"content": content(model), "source": getattr(model, "source", None)}
    return fields | ({"prefix": len(model.prefix)} if hasattr(model, "prefix") else {})


def about_drafter(drafter: Model) -> Record:
    """Fields that describe a drafter, including its matrix layout, which may differ from the target's."""
    layout = getattr(drafter, "kernels", None)
    return about(drafter) | ({} if layout is None else {"kernels": layout})


def content(model: Model) -> str | None:
    """SHA-256 of a model's weights and tokenizer; None if the model is split or has no such hash."""
    return None if holding(model).size > 1 else getattr(model, "content", None)


def number_format(model: Model | Diffusion) -> str:
    """Name of a model's number format, without ``torch.``."""
    return str(model.dtype).removeprefix("torch.")


def thread_count(model: Model | Diffusion) -> int:
    """Number of threads that a model's backend computes on."""
    return getattr(model, "threads", None) or torch.get_num_threads()


def machine(device: torch.device) -> dict[str, str]:
    """Processor, device and system; no names of machines or people."""
    name = torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else str(device)
    return {"processor": processor(), "device": name, "system": f"{platform.system()} {platform.release()}"}


def machine_of(model: Model) -> dict[str, str]:
    """As `machine`, for a model; lists the devices of all ranks if the model is split."""
    described, ranks = machine(model.device), holding(model)
    if ranks.size > 1:
        devices = ranks.gather(described["device"])
        same = len(set(devices)) == 1
        described["device"] = f"{len(devices)} × {devices[0]}" if same else " + ".join(devices)
    return described


@cache
def versions() -> dict[str, str]:
    """Versions of Python, specviz and the installed libraries."""
    installed = {"python": platform.python_version()}
    for package, name in (
        ("specviz", "specviz-lm"),
        *((n, n) for n in ("torch", "transformers", "numpy", "pyarrow")),
    ):
        with suppress(metadata.PackageNotFoundError):
            installed[package] = metadata.version(name)
    return installed


def peak_memory(device: torch.device) -> dict[str, int | None]:
    """Peak resident bytes of the process so far, and peak bytes that it allocated on a CUDA device."""
    process = None
    with suppress(ImportError):  # Windows
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    cuda = torch.device(device).type == "cuda"
    return {"process": process, "device": torch.cuda.max_memory_allocated(device) if cuda else None}


def calibration_setting(model: Model, method: Method, drafter: Model | None = None) -> Record:
    """The setting in which a draft size was measured: the keys of `calibration.SETTING`.

    The number of threads belongs to it only on a CPU.
    """
    where, count = machine_of(model), holding(model).size
    cpu = torch.device(model.device).type == "cpu"
    processor = where["processor"] if count == 1 else f"{count} × {where['processor']}"
    installed = versions()
    return {
        "method": method.name,
        "parameters": {name: value for name, value in method.values.items() if name != method.size},
        "model": identity(model) | computed_by(model),
        "draft": None if drafter is None or not method.needs_draft else drafter_identity(drafter, model),
        "device": processor if cpu else where["device"],
        "dtype": number_format(model),
        "threads": thread_count(model) if cpu else None,
        "versions": {
            name: installed[name]
            for name in ("python", "specviz", "torch", "transformers")
            if name in installed
        }
        | getattr(model, "versions", {}),
    }


def given_as(model: Model) -> str:
    """Command-line argument that loads a model: a download, the folder it came from, a hub id or its name."""
    download = model.name.partition(" (")[0]  # the rest of the name says how the weights were obtained
    if download in DOWNLOADS and getattr(model, "path", None) == local_path(download):
        return download
    folder = str(getattr(getattr(model, "net", None), "name_or_path", ""))
    if model.name in bundled() or not folder:
        return model.name
    if Path(folder).is_dir():
        return folder
    return f"hf:{folder}" if HUB_ID.fullmatch(folder) else model.name


def calibrate_options(model: Model, method: Method, drafter: Model | None = None) -> str:
    """Options of `specviz calibrate`, apart from method and model, that measure in this setting."""
    device, dtype = torch.device(model.device).type, number_format(model)
    options = [] if drafter is None else ["--draft", given_as(drafter)]
    if holding(model).size > 1:
        options += ["--tp-plan", "auto"]
    elif device != "cpu" or getattr(model, "gpu_layers", None):
        options += ["--device", device if device != "cpu" else "cuda"]
    if device == "cpu":
        options += ["--threads", str(thread_count(model))]
    if isinstance(model, TorchModel) and large(model.net):  # a dtype is chosen if none is named
        options += ["--dtype", "auto" if model.chosen_format else dtype]
    elif dtype != "float32":
        options += ["--dtype", dtype]
    # On the command line the next two also hold for the drafter, so they are named only if they were given.
    if kernels := getattr(model, "requested_kernels", None):
        options += ["--kernels", kernels]
    if (invariant := getattr(model, "requested_invariant", None)) is not None:
        options += ["--invariant" if invariant else "--no-invariant"]
    for p in method.parameters:
        if p.name != method.size and method.values[p.name] != p.default:
            options += ["--set", f"{p.name}={method.values[p.name]}"]
    return "".join(f" {shlex.quote(word)}" for word in options)
