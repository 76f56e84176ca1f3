"""Check of the installation: what is installed, what is missing, and whether decoding works."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from specviz.errors import RUNNING, SpecvizError, install, one_line
from specviz.escape import visible
from specviz.paths import home

DISTRIBUTION = "specviz-lm"
PROMPT = "The cook saw the cook. The cook saw the"
# Purpose of each extra that a user may install, the most needed first.
EXTRAS = {
    "run": "decoding with models",
    "lab": "notebooks, players and sliders",
    "calibrate": "calibration, replays",
    "quality": "BLEU and ROUGE",
    "llamacpp": "GGUF files on llama.cpp",
    "streams": "phrase boundaries of Japanese, Chinese and Thai sources",
    "app": "the explorer as a stand-alone page",
    "site": "specviz site",
    "large": "models split across devices",
    "cluster": "folders of traces on Dask",
}


@dataclass(frozen=True)
class Check:
    """One line of the report: ``fault`` is something to fix, ``missing`` something to install if wanted."""

    name: str
    state: Literal["ok", "missing", "fault"]
    detail: str


@dataclass(frozen=True)
class Report:
    """Result of `doctor`."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no fault; a missing extra is not one."""
        return all(check.state != "fault" for check in self.checks)

    def text(self) -> str:
        """One line per check."""
        wide = max(len(check.name) for check in self.checks)
        return "\n".join(f"{c.state:<8} {c.name:<{wide}}  {visible(c.detail)}" for c in self.checks)

    def to_json(self) -> str:
        """The checks, and whether there is no fault, as JSON."""
        return json.dumps({"ok": self.ok, "checks": [asdict(check) for check in self.checks]}, indent=1)


def doctor(model: str = "town") -> Report:
    """Check this installation.

    Parameters
    ----------
    model : str
        Model for a test decode.

    Returns
    -------
    Report
    """
    return Report((*_python(), *_names(), *_extras(), *_machine(), *_downloads(), *_decode(model)))


def _python() -> Iterator[Check]:
    import specviz

    yield Check(
        "specviz", "ok", f"{specviz.__version__} on Python {platform.python_version()}, {platform.system()}"
    )


def _names() -> Iterator[Check]:
    """Check for PyPI's package `specviz` for spectra, which takes over this one's import name."""
    try:
        other = metadata.distribution("specviz")
    except metadata.PackageNotFoundError:
        yield Check("name", "ok", "no other package called specviz is installed")
        return
    label = f"{other.metadata['Name']} {other.version}"
    yield Check(
        "name", "fault",
        f"PyPI's unrelated {label} is installed under the same import name: pip uninstall specviz, "
        "then install specviz-lm again",
    )  # fmt: skip


def _requirements() -> dict[str, list[str]]:
    """The distributions that each extra requires, except this package; under '' those always required."""
    from packaging.requirements import Requirement

    wanted: dict[str, list[str]] = {extra: [] for extra in ("", *EXTRAS)}
    for line in metadata.requires(DISTRIBUTION) or []:
        requirement = Requirement(line)
        for extra in wanted:
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
            if applies and requirement.name != DISTRIBUTION and (extra == "" or requirement.marker):
                wanted[extra].append(f"{requirement.name}{requirement.specifier}")
    return wanted


def _lacking(wanted: list[str]) -> list[str]:
    """Requirements that are not installed, or installed in a wrong version, which is named."""
    from packaging.requirements import Requirement

    lacking = []
    for line in wanted:
        requirement = Requirement(line)
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            lacking.append(requirement.name)
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            lacking.append(f"{line} (there is {version})")
    return lacking


def _extras() -> Iterator[Check]:
    try:
        wanted = _requirements()
    except metadata.PackageNotFoundError:
        yield Check("packages", "fault", f"{DISTRIBUTION} is not installed: pip install -e . in a checkout")
        return
    if lacking := _lacking(wanted.pop("")):
        yield Check("packages", "fault", f"missing required packages: {', '.join(lacking)}; pip install -e .")
    declared = metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    for extra, use in EXTRAS.items():
        command = install(extra)
        if extra not in declared:
            yield Check(
                f"[{extra}]", "missing", f"{use}: this extra did not exist when it was installed; {command}"
            )
        elif lacking := _lacking(wanted[extra]):
            yield Check(f"[{extra}]", "missing", f"{use}: lacks {', '.join(lacking)}; {command}")
        else:
            yield Check(f"[{extra}]", "ok", use)


def _machine() -> Iterator[Check]:
    cores = os.cpu_count() or 1
    detail = f"{platform.machine()}, {cores} cores"
    if find_spec("torch") is not None:
        try:
            import torch
        except (ImportError, OSError, RuntimeError) as error:  # such as a missing library of CUDA
            yield Check("machine", "fault", f"{detail}; torch cannot be imported: {one_line(error)}")
            return
        detail += f", {torch.backends.cpu.get_cpu_capability()}, torch {torch.__version__}"
        detail += f" on {torch.get_num_threads()} threads"
        if torch.cuda.is_available():
            detail += f", {torch.cuda.get_device_name()}"
        if torch.backends.mps.is_available():
            detail += ", mps"
    yield Check("machine", "ok", detail)


def _downloads() -> Iterator[Check]:
    from specviz.models.downloads import DOWNLOADS, local_path

    for name, download in DOWNLOADS.items():
        there = local_path(name)
        yield Check(name, "ok" if there else "missing", str(there) if there else download.command)
    above = next(path for path in (home(), *home().absolute().parents) if path.exists())
    if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        yield Check("cache", "fault", f"{home()} cannot be written: let SPECVIZ_HOME name a folder that can")
        return
    kept = len(list(Path(home() / "kernels").glob("*.json")))
    pinned = os.environ.get("SPECVIZ_KERNELS")
    yield Check(
        "cache", "ok", f"{home()}, {kept} measurements of kernels" + (f", pinned: {pinned}" * bool(pinned))
    )


def _decode(model: str) -> Iterator[Check]:
    """Decode a prompt with drafts and without, and recompute every verdict from the record."""
    absent = [name for name in RUNNING if find_spec(name) is None]
    if absent:
        yield Check("decode", "missing", f"viewing traces works; running models needs {', '.join(absent)}")
        return
    try:
        from specviz.loop import Run
        from specviz.measure.timing import finish
        from specviz.models import load

        loaded, begun = load(model), time.perf_counter()
        names = ("ssd", "stepwise") if loaded.kind == "diffusion" else ("prompt_lookup", "autoregressive")
        drafted, alone = (finish(Run(loaded, PROMPT, name, max_new_tokens=24)) for name in names)
        seconds = time.perf_counter() - begun
    except (SpecvizError, OSError, RuntimeError, ImportError) as error:
        yield Check("decode", "fault", f"{model}: {one_line(error)}")
        return
    layout = getattr(loaded, "kernels", None)
    dtype = str(getattr(loaded, "dtype", "")).removeprefix("torch.")
    yield Check("kernels", "ok", f"{model}: {layout or 'its own'}, {dtype or 'its own format'}")
    judged = drafted.recheck()
    wrong = int((~judged["agrees"]).sum())
    same = drafted.texts == alone.texts or drafted.run["exactness"] != "exact"
    detail = f"{model}: {names[0]} and {names[1]}, 24 tokens each, {seconds:.1f} s; "
    detail += f"{len(judged) - wrong} of {len(judged)} verdicts recomputed as recorded"
    detail += "" if drafted.texts == alone.texts else "; the two texts differ"
    yield Check("decode", "ok" if same and not wrong else "fault", detail)
