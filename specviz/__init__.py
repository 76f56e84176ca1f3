"""Learn, see and measure speculative decoding: instrumented decoders and their traces.

Names are resolved when first used: importing the package loads neither torch nor pandas.
"""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import bench, check, metrics, streams, view
    from .bench.calibrate import calibrate
    from .bench.replaying.replays import replay
    from .calibration import Calibration
    from .errors import ModelError, ParameterError, PromptError, SpecvizError, TraceError
    from .explorer import explore, live
    from .finetune.eagle import train_eagle
    from .loop import densify, generate, stream
    from .methods import make as method
    from .methods import names as list_methods
    from .models import available as list_models
    from .models import load
    from .papers import list_published, published
    from .paths import example
    from .ribbon import flicker
    from .suites import list_suites, suite
    from .trace import Trace, read_counts
    from .whatifs import whatif
    from .widgets.player import player
    from .widgets.race import race

    open = Trace.open

# Where each public name lives, and what it is called there.
_DOORS = {
    "load": ("models", "load"),
    "list_models": ("models", "available"),
    "list_methods": ("methods", "names"),
    "method": ("methods", "make"),
    "generate": ("loop", "generate"),
    "stream": ("loop", "stream"),
    "densify": ("loop", "densify"),
    "train_eagle": ("finetune.eagle", "train_eagle"),
    "calibrate": ("bench.calibrate", "calibrate"),
    "Calibration": ("calibration", "Calibration"),
    "whatif": ("whatifs", "whatif"),
    "replay": ("bench.replaying.replays", "replay"),
    "player": ("widgets.player", "player"),
    "race": ("widgets.race", "race"),
    "flicker": ("ribbon", "flicker"),
    "explore": ("explorer", "explore"),
    "live": ("explorer", "live"),
    "open": ("trace", "Trace.open"),
    "read_counts": ("trace", "read_counts"),
    "bench": ("bench", ""),
    "check": ("check", ""),
    "streams": ("streams", ""),
    "metrics": ("metrics", ""),
    "view": ("view", ""),
    "published": ("papers", "published"),
    "list_published": ("papers", "list_published"),
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

__all__ = [
    "Calibration", "ModelError", "ParameterError", "PromptError", "SpecvizError", "Trace", "TraceError",
    "bench", "calibrate", "check", "densify", "example", "explore", "flicker", "generate", "list_methods",
    "list_models", "list_published", "list_suites", "live", "load", "method", "metrics", "open", "player",
    "published", "race", "read_counts", "replay", "stream", "streams", "suite", "train_eagle", "view",
    "whatif",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            value: Any = version("specviz-lm")
        except PackageNotFoundError:  # a checkout that was never installed
            value = "0+unknown"
    elif name in _DOORS:
        from .extras import loading

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
