"""Learn, see and measure speculative decoding: instrumented decoders and their traces.

Names are resolved when first used: importing the package loads neither torch nor pandas.
"""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from . import audit, check, errors, metrics, streams, view
    from .calibration import Calibration
    from .draft import Draft
    from .errors import ModelError, ParameterError, PromptError, SpecvizError, TraceError
    from .explanations import explain
    from .finetune.eagle import train_eagle
    from .loop import densify, generate, stream
    from .measure.advice.advising import advise
    from .measure.calibrate import calibrate
    from .measure.running import run
    from .measure.sweep import sweep
    from .methods import Method, Parameter, Verdict
    from .methods import make as method
    from .methods import names as list_methods
    from .methods.tree import judge
    from .models import available as list_models
    from .models import load
    from .paths import example
    from .replays.comparing import compare
    from .replays.published import list_published, published
    from .replays.recorded import results
    from .replays.replays import Replay
    from .replays.running import replay, replay_all
    from .schema import Signal
    from .suites import list_suites, suite
    from .trace import Trace, read_counts
    from .view.difference import diff
    from .whatifs import whatif
    from .widgets.explorer import explore, live
    from .widgets.player import player
    from .widgets.race import race
    from .widgets.ribbon import flicker
    from .widgets.runs import runs

    open = Trace.open

# Module of each public name, and its name there; "" is the module itself.
_DOORS = {
    # decode
    "load": ("models", "load"),
    "Signal": ("schema", "Signal"),
    "generate": ("loop", "generate"),
    "stream": ("loop", "stream"),
    "open": ("trace", "Trace.open"),
    "Trace": ("trace", "Trace"),
    "densify": ("loop", "densify"),
    "read_counts": ("trace", "read_counts"),
    # write a method
    "Method": ("methods", "Method"),
    "Parameter": ("methods", "Parameter"),
    "Draft": ("draft", "Draft"),
    "Verdict": ("methods", "Verdict"),
    "judge": ("methods.tree", "judge"),
    "method": ("methods", "make"),
    "train_eagle": ("finetune.eagle", "train_eagle"),
    # see
    "player": ("widgets.player", "player"),
    "race": ("widgets.race", "race"),
    "explore": ("widgets.explorer", "explore"),
    "live": ("widgets.explorer", "live"),
    "flicker": ("widgets.ribbon", "flicker"),
    "runs": ("widgets.runs", "runs"),
    "diff": ("view.difference", "diff"),
    "view": ("view", ""),
    # ask
    "whatif": ("whatifs", "whatif"),
    "explain": ("explanations", "explain"),
    "metrics": ("metrics", ""),
    "audit": ("audit", ""),
    "check": ("check", ""),
    # measure
    "advise": ("measure.advice.advising", "advise"),
    "run": ("measure.running", "run"),
    "results": ("replays.recorded", "results"),
    "calibrate": ("measure.calibrate", "calibrate"),
    "Calibration": ("calibration", "Calibration"),
    "sweep": ("measure.sweep", "sweep"),
    "compare": ("replays.comparing", "compare"),
    "replay": ("replays.running", "replay"),
    "replay_all": ("replays.running", "replay_all"),
    "Replay": ("replays.replays", "Replay"),
    "published": ("replays.published", "published"),
    # data
    "suite": ("suites", "suite"),
    "streams": ("streams", ""),
    "example": ("paths", "example"),
    "list_models": ("models", "available"),
    "list_methods": ("methods", "names"),
    "list_suites": ("suites", "list_suites"),
    "list_published": ("replays.published", "list_published"),
    # what goes wrong
    "errors": ("errors", ""),
    "SpecvizError": ("errors", "SpecvizError"),
    "TraceError": ("errors", "TraceError"),
    "ModelError": ("errors", "ModelError"),
    "ParameterError": ("errors", "ParameterError"),
    "PromptError": ("errors", "PromptError"),
}

# Functions by which a trace summarises and displays itself (`specviz.trace.display`): "module:function".
TRACE_HOOKS = {
    "summary": "specviz.metrics:summary",
    "recheck": "specviz.metrics:recheck",
    "html": "specviz.view:html",
    "png": "specviz.view:png",
    "text": "specviz.view:text",
    "page": "specviz.widgets.page:write",
    "film": "specviz.view.film:write",
}

__all__ = [
    "Calibration", "Draft", "Method", "ModelError", "Parameter", "ParameterError", "PromptError", "Replay",
    "Signal", "SpecvizError", "Trace", "TraceError", "Verdict", "advise", "audit", "calibrate", "catalog",
    "check", "compare", "densify", "diff", "errors", "example", "explain", "explore", "flicker", "generate",
    "judge", "list_methods", "list_models", "list_published", "list_suites", "live", "load", "method",
    "metrics", "open", "player", "published", "race", "read_counts", "replay", "replay_all", "results", "run",
    "runs", "stream", "streams", "suite", "sweep", "train_eagle", "view", "whatif",
]  # fmt: skip

# Modules below the public names that walkthroughs and users may import from.
SUBMODULES = (
    "audit", "check", "errors", "explanations", "measure.benches.passes", "measure.fits", "measure.pairs",
    "measure.sweep", "measure.timing", "methods", "methods.retranslate", "methods.sampling",
    "methods.signals", "methods.unmasking", "metrics", "models", "models.kernels", "models.llamacpp",
    "models.template", "replays.comparing", "replays.recorded", "replays.recordings", "replays.translations",
    "rules.store", "streams", "suites", "trace", "view", "whatifs", "widgets.acceptance",
)  # fmt: skip


def catalog() -> pd.DataFrame:
    """Every model, method, suite and published table that can be named here.

    Returns
    -------
    DataFrame
        Columns ``kind`` (model, method, suite or published) and ``name``, as `load`, `generate`, `suite` and
        `published` take it.
    """
    import pandas as pd

    from .errors import loading

    with loading():
        from .methods import names
        from .models import available
        from .replays.published import list_published
        from .suites import list_suites
    kinds = {
        "model": list(available()),
        "method": names(),
        "suite": list_suites()["name"].tolist(),
        "published": list_published()["name"].tolist(),
    }
    rows = [(kind, name) for kind, each in kinds.items() for name in each]
    return pd.DataFrame(rows, columns=["kind", "name"])


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            value: Any = version("specviz-lm")
        except PackageNotFoundError:  # a checkout that was never installed
            value = "0+unknown"
    elif name in _DOORS:
        from .arguments import checked
        from .errors import loading

        room, inner = _DOORS[name]
        with loading():
            value = import_module(f"{__name__}.{room}")
        value = attrgetter(inner)(value) if inner else value
        if isinstance(value, FunctionType | MethodType) and name != "judge":  # which every cycle calls
            value = checked(value)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(
        [
            "catalog",
            *_DOORS,
            "__version__",
            *(n for n in globals() if n.startswith("__") and n != "__version__"),
        ]
    )
