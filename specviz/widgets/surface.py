"""Modelled speedup of drafting as a surface, with sliders for context, batch, cost and acceptance.

This package may not run a model itself: the caller passes the measurements and the function that decodes
when a point is clicked, as `specviz.advise` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Generic, TypeVar

import ipywidgets
import numpy as np
import plotly.graph_objects as go
from IPython.display import HTML, display
from traitlets import Bunch

from specviz.errors import SpecvizError, plural
from specviz.escape import html, plotly
from specviz.metrics.speedups import Drafter, PassTimes, cycle_cost, written
from specviz.trace import Trace
from specviz.view.interactive import CONFIG
from specviz.widgets.job import decoding
from specviz.widgets.player import Player, player
from specviz.widgets.stateful import error_line

Key = TypeVar("Key")
LENGTHS = np.arange(1, 17)  # drafted tokens per cycle
RATES = np.linspace(0.0, 0.98, 50)  # acceptance rates per token
COST = 0.5  # least maximum of the slider for the cost of a drafted token, in plain passes
MOST = 2.0  # speedup at which the colour scale ends; its middle is a speedup of 1


class SpeedupSurface(ipywidgets.VBox, Generic[Key]):
    """The speedup over draft length and acceptance, at a context, a batch size and a cost of drafting.

    Parameters
    ----------
    passes : PassTimes
    drafters : sequence of Drafter
    settings : mapping of str to any, optional
        The key to pass to `decode` for each setting's label.
    decode : callable, optional
        ``decode(key)`` returns the trace of a prompt with this setting, shown when its point is clicked or
        its name is chosen from the list.
    head : str
        HTML above the sliders.

    Notes
    -----
    Speedups are modelled as in `specviz.metrics.speedups`. `speedup` is the surface as a function, and
    `sentence` summarises the current acceptance rate.
    """

    def __init__(
        self, passes: PassTimes, drafters: Sequence[Drafter],
        settings: Mapping[str, Key] = MappingProxyType({}), decode: Callable[[Key], Trace] | None = None,
        head: str = "",
    ) -> None:  # fmt: skip
        self.passes, self.drafters = passes, {each.name: each for each in drafters}
        self.settings, self.decode = settings, decode
        wide = {"style": {"description_width": "150px"}, "layout": {"width": "350px"}}
        self.drafter = ipywidgets.Dropdown(options=list(self.drafters), description="drafter", **wide)
        low, high = passes.contexts[0], passes.contexts[-1]
        self.context = ipywidgets.IntSlider(
            min=low, max=high, value=low, description="context, tokens", disabled=low == high, **wide
        )
        self.batch = ipywidgets.SelectionSlider(
            options=list(passes.batches),
            description="batch, texts",
            disabled=len(passes.batches) < 2,
            **wide,
        )
        self.cost = ipywidgets.FloatSlider(
            min=0.0,
            max=COST,
            step=0.005,
            readout_format=".3f",
            description="token cost, passes",
            **wide,
        )
        self.rate = ipywidgets.FloatSlider(
            min=0.0, max=0.98, step=0.01, description="acceptance rate", **wide
        )
        self.choice = ipywidgets.Dropdown(description="setting", **wide)
        self.button = ipywidgets.Button(description="Decode", tooltip="decode a prompt and open its player")
        self.words, self.below = ipywidgets.HTML(), ipywidgets.Output()
        self.figure = self._figure()
        self._player: Player | None = None
        rows = [
            ipywidgets.HBox([self.drafter, self.context, self.batch], layout={"flex_flow": "row wrap"}),
            ipywidgets.HBox([self.cost, self.rate], layout={"flex_flow": "row wrap"}),
        ]
        top = [ipywidgets.HTML(head)] if head else []
        pick = [ipywidgets.HBox([self.choice, self.button])] if decode is not None else []
        super().__init__([*top, *rows, self.words, self.figure, *pick, self.below])
        self._choose()
        self.drafter.observe(self._choose, names="value")
        for each in (self.context, self.batch, self.cost, self.rate):
            each.observe(self._draw, names="value")
        if decode is not None:
            self.figure.data[2].on_click(lambda _, points, __: self.show_trace(points.point_inds))
            self.button.on_click(lambda _: self.show_trace([self.choice.index]))

    def close(self) -> None:
        """Close the widget with its sliders, figure and player: an open one would keep the models."""
        boxes = [each for each in self.children if isinstance(each, ipywidgets.Box)]
        parts = [*self.children, *(part for box in boxes for part in box.children), self._player]
        super().close()
        for each in filter(None, parts):
            each.close()

    def speedup(self, sent: np.ndarray, rate: np.ndarray) -> np.ndarray:
        """Speedup over decoding without drafts, at the sliders' current values."""
        return written(sent, rate) / self._cycle(sent)

    def _cycle(self, sent: np.ndarray) -> np.ndarray:
        """Duration of a cycle, in units of a cycle of plain decoding."""
        fixed = self.drafters[self.drafter.value].fixed
        return cycle_cost(self.passes, fixed, sent, self.context.value, self.batch.value, self.cost.value)

    @property
    def sentence(self) -> str:
        """Best draft length at the current acceptance, and the acceptance from which drafting pays off."""
        rate, sent = round(self.rate.value, 2), LENGTHS.astype(float)
        at = self.speedup(sent, np.full(len(sent), rate))
        best = int(at.argmax())
        rates = np.arange(99) / 100  # all values of the slider
        pays = rates[(self.speedup(sent[None], rates[:, None]) > 1).any(1)]
        where = f"pays from an acceptance of {pays[0]:.2f} on" if len(pays) else "never pays"
        return (
            f"At an acceptance of {rate:.2f} the best draft has "
            f"{plural(int(LENGTHS[best]), 'token')}: {at[best]:.2f} times the plain speed (modelled); "
            f"drafting {where}."
        )

    def show_trace(self, points: Sequence[int]) -> None:
        """Decode a prompt with the setting of a point, unless another decode runs; show its player below."""
        settings = self.drafters[self.drafter.value].settings
        if not points or self.decode is None or not 0 <= points[0] < len(settings):
            return
        # Waiting would block the kernel, and with it the stop button of the decode that runs.
        if not decoding.acquire(blocking=False):
            with self.below:
                display(HTML("<p>Another decode is running: stop it, or wait until it has ended.</p>"))
            return
        setting = settings[points[0]]
        self.below.clear_output()
        if self._player is not None:
            self._player.close()
            self._player = None
        with self.below:
            try:
                self._player = player(self.decode(self.settings[setting.label]))
                display(HTML(f"<p>{html(setting.label)}</p>"), self._player)
            except SpecvizError as error:
                display(HTML(f"<p>{html(error_line(error))}</p>"))
            finally:
                decoding.release()

    def _figure(self) -> go.FigureWidget:
        figure = go.FigureWidget()
        figure._config = CONFIG
        figure.add_surface(
            cmin=0, cmax=MOST, colorscale="RdBu", opacity=0.85,
            colorbar={"title": "speedup", "thickness": 12},
            hovertemplate="%{x} drafted, acceptance %{y:.2f}: %{z:.2f}<extra></extra>",
        )  # fmt: skip
        figure.add_scatter3d(
            mode="lines", line={"color": "#d55e00", "width": 6}, hoverinfo="skip", showlegend=False
        )
        figure.add_scatter3d(
            mode="markers",
            marker={"color": "#000000", "size": 4},
            showlegend=False,
            hovertemplate="%{text}<extra></extra>",
        )
        figure.update_layout(
            template="plotly_white", height=480, margin={"t": 30, "b": 10, "l": 10, "r": 10},
            title={"text": "Modelled speedup by drafted tokens and acceptance", "font": {"size": 14}},
            scene={"xaxis": {"title": "drafted tokens per cycle"}, "yaxis": {"title": "acceptance"},
                   "zaxis": {"title": "speedup"}, "camera": {"eye": {"x": -1.5, "y": -1.7, "z": 0.8}}},
        )  # fmt: skip
        return figure

    def _choose(self, change: Bunch | None = None) -> None:
        """Reset the cost and acceptance sliders to the chosen drafter's measurements."""
        drafter = self.drafters[self.drafter.value]
        cost = max(0.0, (drafter.ms + drafter.per_token) / self.passes.one(self.context.value, 1))
        self.cost.max = max(COST, 2 * cost)
        self.cost.value = cost
        self.choice.options = [each.label for each in drafter.settings]
        self.button.disabled = not drafter.settings
        rates = [each.rate for each in drafter.settings]
        self.rate.value = float(np.clip(np.median(rates), 0, 0.98)) if rates else 0.5
        self._draw()

    def _draw(self, change: Bunch | None = None) -> None:
        sent, settings = LENGTHS.astype(float), self.drafters[self.drafter.value].settings
        at = self.speedup(sent, np.full(len(sent), self.rate.value))
        drafted, tau = (np.array([getattr(each, name) for each in settings]) for name in ("sent", "tau"))
        values = tau / self._cycle(drafted) if len(settings) else tau
        words = [
            f"{plotly(each.label)}<br>τ {each.tau:.2f}, {each.sent:.1f} drafted: {value:.2f}"
            for each, value in zip(settings, values)
        ]
        with self.figure.batch_update():
            surface = self.figure.data[0]
            # Arrays passed when the figure is created do not reach the browser unchanged (plotly 7.1).
            surface.x, surface.y, surface.z = sent, RATES, self.speedup(sent[None], RATES[:, None])
            line = self.figure.data[1]
            line.x, line.y, line.z = sent, np.full(len(sent), self.rate.value), at
            points = self.figure.data[2]
            points.x, points.y, points.z = drafted, [each.rate for each in settings], values
            points.text = words
        self.words.value = f"<p>{html(self.sentence)}</p>"
