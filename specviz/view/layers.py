"""Plot the layer after which each token exited: one column per token, filled up to its exit layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from specviz.errors import TraceError
from specviz.trace import Trace
from specviz.view.axes import axes, bare, fonts
from specviz.view.lattices import short
from specviz.view.picture import first_run, picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SKIPPED = "#e6e6e6"
NAMED = 8  # a deeper model has a colour bar instead of a legend
LABELS = 15  # maximum number of labelled layers
RGBA = tuple[float, float, float, float]


def exit_layers(trace: Trace, prompt: int | None = None, ax: Axes | None = None, most: int = 60) -> Axes:
    """Plot each token's exit layer for an early-exit method: one column per token, coloured by that layer.

    Skipped layers are grey: only their keys and values were computed, from the hidden state at the exit.

    Parameters
    ----------
    trace : Trace
        Its first run is used.
    prompt : int, optional
        Default: the first.
    ax : Axes, optional
    most : int
        Maximum number of tokens drawn.

    Returns
    -------
    Axes

    Raises
    ------
    TraceError
        If no pass of the prompt could exit early.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    run, index = first_run(trace, prompt)
    cycles = run.cycles
    cycles = cycles[(cycles["prompt"] == index) & (cycles["cycle"] > 0)]
    if "control_layers" not in cycles or cycles["control_layers"].isna().all():
        raise TraceError(
            f"no pass of prompt {index} could exit early; calm records the exit layer of each token"
        )
    layers = cycles["control_layers"].to_numpy(np.int64)
    depth = max((run.run["model"].get("shape") or {}).get("layers", 0), int(layers.max()))
    words = {span.position: short(span.text) for span in picture(run, index).spans}
    count = min(len(layers), most)
    ax = axes(ax, (min(14.0, max(5.0, 1.2 + 0.24 * count)), max(3.2, 1.4 + 0.1 * depth)))
    hues = {layer: colormaps["viridis"](1 - layer / (depth + 1)) for layer in range(1, depth + 1)}
    for at, layer in enumerate(layers[:count].tolist()):
        bottoms = np.arange(depth)
        colours = [hues[layer] if below < layer else SKIPPED for below in bottoms]
        ax.bar(np.full(depth, at), 0.9, 0.84, bottom=bottoms + 0.05, color=colours, lw=0)
    ax.set_xlim(-0.6, count - 0.4)
    ax.set_ylim(0, depth)
    step = -(-depth // LABELS)
    marked = range(step, depth + 1, step)
    ax.set_yticks([layer - 0.5 for layer in marked], list(map(str, marked)))
    ax.set_ylabel("layer")
    ax.set_xticks(
        range(count), [words.get(at, "") for at in range(count)], rotation=90, size=8, family=fonts(),
        parse_math=False,
    )  # fmt: skip
    bare(ax, above=False)
    more = f"; {len(layers) - count} more tokens are in the trace" if count < len(layers) else ""
    ax.set_title(f"{layers.mean():.1f} of {depth} layers per token{more}", loc="left", size=10)
    if depth > NAMED:
        scale = ScalarMappable(Normalize(0, depth + 1), "viridis_r")  # as in `hues`
        bar = ax.figure.colorbar(scale, ax=ax, label="exit layer of the token (grey: skipped)")
        bar.set_ticks(list(marked))
    else:
        _legend(ax, layers, depth, hues)
    return ax


def _legend(ax: Axes, layers: np.ndarray, depth: int, hues: Mapping[int, RGBA]) -> None:
    """Add a legend with the number of tokens that exited at each layer."""
    from matplotlib.patches import Patch

    of = {layer: int((layers == layer).sum()) for layer in sorted(set(layers.tolist()))}
    names = [
        f"ran through all {depth} ({tokens})" if layer == depth else f"exited after layer {layer} ({tokens})"
        for layer, tokens in of.items()
    ]
    skipped = [(SKIPPED, "skipped")] if min(of) < depth else []
    handles = [Patch(color=hues[layer], label=name) for layer, name in zip(of, names)]
    handles += [Patch(color=colour, label=name) for colour, name in skipped]
    ax.legend(
        handles=handles, frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), handlelength=1.2,
        borderpad=0,
    )  # fmt: skip
