"""Learn, see and measure speculative decoding: instrumented decoders and their traces.

Names are resolved when first used: importing the package loads neither torch nor pandas.
"""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import check, metrics, streams, view
    from .calibration import Calibration
    from .draft import Draft
    from .errors import ModelError, ParameterError, PromptError, SpecvizError, TraceError
    from .finetune.eagle import train_eagle
    from .loop import densify, generate, stream
    from .measure.calibrate import calibrate
    from .measure.rows import results
    from .measure.running import run
    from .methods import Method, Parameter, Verdict
    from .methods import make as method
    from .methods import names as list_methods
    from .methods.tree import judge
    from .models import available as list_models
    from .models import load
    from .paths import example
    from .replays.published import list_published, published
    from .replays.replays import Replay
    from .replays.running import replay, replay_all
    from .schema import Signal
    from .suites import list_suites, suite
    from .trace import Trace, read_counts
    from .whatifs import whatif
    from .widgets.explorer import explore, live
    from .widgets.player import player
    from .widgets.race import race
    from .widgets.ribbon import flicker

    open = Trace.open

# Where each public name lives, and what it is called there.
_DOORS = {
    "load": ("models", "load"),
    "list_models": ("models", "available"),
    "list_methods": ("methods", "names"),
    "method": ("methods", "make"),
    "Method": ("methods", "Method"),
    "Parameter": ("methods", "Parameter"),
    "Signal": ("schema", "Signal"),
    "Draft": ("draft", "Draft"),
    "Verdict": ("methods", "Verdict"),
    "judge": ("methods.tree", "judge"),
    "generate": ("loop", "generate"),
    "stream": ("loop", "stream"),
    "densify": ("loop", "densify"),
    "train_eagle": ("finetune.eagle", "train_eagle"),
    "calibrate": ("measure.calibrate", "calibrate"),
    "Calibration": ("calibration", "Calibration"),
    "whatif": ("whatifs", "whatif"),
    "replay": ("replays.running", "replay"),
    "replay_all": ("replays.running", "replay_all"),
    "Replay": ("replays.replays", "Replay"),
    "run": ("measure.running", "run"),
    "results": ("measure.rows", "results"),
    "player": ("widgets.player", "player"),
    "race": ("widgets.race", "race"),
    "flicker": ("widgets.ribbon", "flicker"),
    "explore": ("widgets.explorer", "explore"),
    "live": ("widgets.explorer", "live"),
    "open": ("trace", "Trace.open"),
    "read_counts": ("trace", "read_counts"),
    "check": ("check", ""),
    "streams": ("streams", ""),
    "metrics": ("metrics", ""),
    "view": ("view", ""),
    "published": ("replays.published", "published"),
    "list_published": ("replays.published", "list_published"),
    "suite": ("suites", "suite"),
    "list_suites": ("suites", "list_suites"),
    "example": ("paths", "example"),
    "Trace": ("trace", "Trace"),
    "SpecvizError": ("errors", "SpecvizError"),
    "TraceError": ("errors", "TraceError"),
    "ModelError": ("errors", "ModelError"),
    "ParameterError": ("errors", "ParameterError"),
    "PromptError": ("errors", "PromptError"),
}

# What a trace calls to sum itself up and to show itself (`specviz.trace.display`), as "module:function".
TRACE_HOOKS = {
    "summary": "specviz.metrics:summary",
    "recheck": "specviz.metrics:recheck",
    "html": "specviz.view:html",
    "png": "specviz.view:png",
    "text": "specviz.view:text",
    "page": "specviz.widgets.page:write",
}

__all__ = [
    "Calibration", "Draft", "Method", "ModelError", "Parameter", "ParameterError", "PromptError",
    "Replay", "Signal", "SpecvizError", "Trace", "TraceError", "Verdict", "calibrate", "check", "densify",
    "example", "explore", "flicker", "generate", "judge", "list_methods", "list_models", "list_published",
    "list_suites", "live", "load", "method", "metrics", "open", "player", "published", "race",
    "read_counts", "replay", "replay_all", "results", "run", "stream", "streams", "suite", "train_eagle",
    "view", "whatif",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            value: Any = version("specviz-lm")
        except PackageNotFoundError:  # a checkout that was never installed
            value = "0+unknown"
    elif name in _DOORS:
        from .errors import loading

        room, inner = _DOORS[name]
        with loading():
            value = import_module(f"{__name__}.{room}")
        value = attrgetter(inner)(value) if inner else value
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(
        [*_DOORS, "__version__", *(n for n in globals() if n.startswith("__") and n != "__version__")]
    )
