"""The factors of a run's speedup, as a table, as sentences and as a picture."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np

from specviz.errors import TraceError
from specviz.escape import html, visible
from specviz.explanations.costs import PARTS, Costs, Plain
from specviz.files import plain_data, write_bytes, write_text
from specviz.metrics import Estimate
from specviz.paths import expanded
from specviz.trace.files import Record
from specviz.view.axes import image, png
from specviz.view.static import document
from specviz.view.waterfall import waterfall

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from specviz.trace import Trace

WORDS = {
    "forward": "the target's wider pass",
    "draft": "drafting",
    "rest": "the rest of a cycle",
    "cycle": "a cycle's cost",
}
WRAPPED = "<style>pre{white-space:pre-wrap}</style>"
BAR = 32  # characters of the longest bar


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why a run is slow or fast: speedup = τ / (s(g) + drafter + fixed).

    The denominator is in plain steps: s(g) is 1 plus the extra time of the target's pass over a draft,
    compared with one over a single token; drafter is the time of drafting; fixed is any other extra time of a
    cycle.

    Parameters
    ----------
    name, origin : str
        What was explained, and the tool that recorded it (``specviz``, ``llama.cpp`` ...).
    version : str or None
        Version of the tool.
    costs : Costs
    plain : Plain or None
        Cost of a plain step; None if unknown.
    speedup : Estimate
        Relative to plain decoding, without the prefill; NaN without `plain`.
    factors : DataFrame
        One row per factor: ``factor``, ``plain_steps`` (its part of a cycle's cost), ``speedup`` (after it
        and those before), ``without`` (the speedup if it were free).
    positions, contexts, starts, lengths : DataFrame or None
        See `specviz.explanations.acceptance`.
    places : float
        Share of all judged places at which the draft was right.
    worst : DataFrame
        The cycles that lost the most time, or without `plain` took longest per token: ``run``,
        ``prompt``, ``cycle``, ``sent``, ``accepted``, ``emitted``, ``seconds``, ``lost`` (seconds beyond the
        plain cost of its tokens), ``draft``, ``forward``.
    even : float
        The acceptance of each drafted token at which the run would break even; NaN if not known.
    rate : float
        The acceptance that, by the same model, gives the run's τ.
    missing : list of str
        Facts that the record does not contain, and how to get them.
    player : str
        The command that shows the trace, if it is in a file.
    trace : Trace or None
        The explained trace, if it is one.
    scope : str
        A sentence on requests that the figures do not cover; empty if they cover all.
    """

    name: str
    origin: str
    version: str | None
    costs: Costs
    plain: Plain | None
    speedup: Estimate
    factors: pd.DataFrame
    positions: pd.DataFrame | None
    contexts: pd.DataFrame | None
    starts: pd.DataFrame | None
    lengths: pd.DataFrame | None
    places: float
    worst: pd.DataFrame | None
    even: float
    rate: float
    missing: list[str] = field(default_factory=list)
    player: str = ""
    trace: Trace | None = None
    scope: str = ""

    # -- words -------------------------------------------------------------------------------------

    @property
    def badge(self) -> str:
        """How the speedup is known: exact or modelled; empty if it is not."""
        return "" if self.plain is None else self.plain.badge

    @property
    def cost(self) -> float:
        """A cycle's cost in plain steps, which is also the τ at which the run breaks even."""
        return float("nan") if self.plain is None else self.costs.cycle / self.plain.cycle

    @property
    def sentence(self) -> str:
        """The explanation in a few sentences."""
        return " ".join(filter(None, (self._explained, self.scope)))

    @property
    def _explained(self) -> str:
        tau, cycle = self.costs.tau, self.costs.cycle
        if np.isnan(tau):
            return "The record does not say how many cycles there were, nor what one writes or costs."
        if self.plain is None or np.isnan(self.cost):
            if np.isnan(cycle):
                return f"A cycle writes {tau:.2f} tokens; the record does not say how long it takes."
            return (
                f"A cycle writes {tau:.2f} tokens and takes {cycle * 1e3:.2f} ms, {cycle / tau * 1e3:.2f} ms "
                "per token: this is faster than plain decoding if a plain step takes longer than that."
            )
        value, cost = self.speedup.median, self.cost
        parts = self.factors[self.factors["plain_steps"].notna() & (self.factors["factor"] != "tau")]
        terms = [f"{steps:+.2f} {WORDS[name]}" for name, steps in zip(parts["factor"], parts["plain_steps"])]
        split = f" (1, {', '.join(terms)})" if len(parts) > 1 else ""
        verdict = "faster" if value > 1 else "slower"
        low, high = self.speedup.low, self.speedup.high
        verdict = verdict if np.isnan(low) or low > 1 or high < 1 else "not clearly faster or slower"
        lines = [
            f"{self.name} runs at {_times(self.speedup)} of plain decoding, {verdict}: a cycle writes "
            f"{tau:.2f} tokens and costs {cost:.2f} plain steps{split}."
        ]
        if self.badge == "modelled":
            lines.append(f"This is modelled: the cost of a plain step is from {self.plain.source}.")
        if len(parts) > 1:
            worst = max(parts.to_dict("records"), key=lambda row: row["plain_steps"])
            if worst["plain_steps"] > 0.01:
                words = WORDS[worst["factor"]]
                lines.append(
                    f"The largest cost is {words}: without it the run would be at {worst['without']:.2f}."
                )
        lines.append(self._even())
        return " ".join(filter(None, lines))

    def _even(self) -> str:
        if np.isnan(self.cost):
            return ""
        words = f"It breaks even at {self.cost:.2f} tokens per cycle"
        if self.cost <= 1:
            return f"{words}: no draft token needs to be accepted."
        if not np.isnan(self.even) and not np.isnan(self.rate):
            return f"{words}, an acceptance of {self.even:.2f} per drafted token (here {self.rate:.2f})."
        if self.rate == self.rate:
            return f"{words}, which drafts of these lengths cannot reach."
        return f"{words}."

    @property
    def selection(self) -> str:
        """Why the first position's rate is not a rate over all places."""
        if self.starts is None or not len(self.starts):
            return ""
        rates = dict(zip(self.starts["after"], self.starts["rate"]))
        shares = dict(zip(self.starts["after"], self.starts["share"]))
        often = [after for after in rates if shares[after] >= 0.01]
        parts = [f"{rates[after]:.2f} after {after} ({shares[after]:.0%} of the drafts)" for after in often]
        first = float((self.starts["rate"] * self.starts["share"]).sum())
        words = f"First position: {first:.2f} accepted; {', '.join(parts)}."
        if not np.isnan(self.places):
            words += f" Of all judged positions, {self.places:.2f} were right."
        if self.lengths is not None and len(self.lengths) > 1:
            one, last = self.lengths.iloc[0], self.lengths.iloc[-1]
            words += (
                f" With drafts of 1 token the first position would have {one['first']:.2f} (modelled), with "
                f"{int(last['k'])} {last['first']:.2f}, with the same tokens being right"
            )
            if last["first"] < one["first"]:
                words += ": a longer draft also covers the easy positions, and the next cycle starts where "
                words += "the draft was stopped"
            words += "."
        return words

    def text(self) -> str:
        """The whole explanation, for a terminal."""
        version = f" ({self.version})" if self.version else ""
        about = self.plain
        size = f"{self.costs.steps:,.0f} cycles, {self.costs.tokens:,.0f} tokens"
        if np.isnan(self.costs.tau):
            size = "unknown number of cycles"
        head = [f"{self.name}{version}: {size}"]
        if about is not None:
            spread = "" if np.isnan(about.low) else f", {about.low * 1e3:.2f} to {about.high * 1e3:.2f}"
            head.append(
                f"a plain step: {about.cycle * 1e3:.2f} ms{spread} [{about.badge}], from {about.source}"
            )
        lines = [*head, "", *self._bars(), "", self.sentence]
        lines += self._tables()
        if self.selection:
            lines += ["", self.selection]
        if self.worst is not None and len(self.worst):
            loss = self.worst["lost"].notna().any()
            lines += [
                "",
                "cycles that lost the most time:" if loss else "cycles that took longest per token:",
            ]
            lines += [f"  {place}: {words}" for place, words, _ in self._worst()]
            if self.player:
                text = self.worst["prompt"].iloc[0] + 1
                lines.append(f"  in the player: {self.player} --prompt {text} --html PAGE.html")
        if self.missing:
            lines += ["", "not in the record:", *(f"  {each}" for each in self.missing)]
        return visible("\n".join(lines))

    def _worst(self) -> list[tuple[str, str, str]]:
        """The worst cycles: place, counts and times, and address in the trace's player."""
        if self.worst is None:
            return []
        runs = [] if self.trace is None else self.trace.split()
        views = {run.run["run"]: i for i, run in enumerate(runs, 1)}
        rows = []
        for row in self.worst.to_dict("records"):
            spent = f"{row['seconds'] * 1e3:.2f} ms"
            spent += f", {row['lost'] * 1e3:.2f} lost" if row["lost"] == row["lost"] else ""
            counts = (
                f"{row['accepted']} of {row['sent']:.0f} drafted tokens accepted, {row['emitted']} written"
            )
            rows.append((
                f"text {row['prompt'] + 1}, cycle {row['cycle']}", f"{counts} in {spent}",
                f"#run={views.get(row['run'], 1)}&prompt={row['prompt'] + 1}&cycle={row['cycle']}",
            ))  # fmt: skip
        return rows

    def _bars(self) -> list[str]:
        """The waterfall, one bar per line."""
        rows = self.bars()
        if not rows:
            return []
        longest = max(max(low, high) for _, low, high in rows)
        wide = max(len(name) for name, *_ in rows)
        lines = []
        for name, low, high in rows:
            start, end = (round(BAR * value / longest) for value in sorted((low, high)))
            fill = "█" if name in ("plain decoding", "speedup") else "▒" if high < low else "▓"
            bar = " " * start + fill * max(1, end - start)
            shown = high if name in ("plain decoding", "speedup") else high - low
            form = "{:.2f}" if name in ("plain decoding", "speedup") else "{:+.2f}"
            lines.append(f"  {name:<{wide}} {form.format(shown):>6} {bar}")
        return lines

    def bars(self) -> list[tuple[str, float, float]]:
        """The waterfall's bars: name, start and end, in multiples of plain decoding's speed."""
        if np.isnan(self.speedup.median):
            return []
        rows, at = [("plain decoding", 0.0, 1.0)], 1.0
        for name, value in zip(self.factors["factor"], self.factors["speedup"]):
            rows.append(
                (f"{self.costs.tau:.2f} tokens per cycle" if name == "tau" else WORDS[name], at, value)
            )
            at = value
        return [*rows, ("speedup", 0.0, self.speedup.median)]

    def _tables(self) -> list[str]:
        lines = []
        if self.positions is not None and len(self.positions):
            cells = [
                f"{row['position']}: {row['rate']:.2f}"
                + ("" if np.isnan(row["given"]) else f" ({row['given']:.2f})")
                for row in self.positions.to_dict("records")
            ]
            lines += ["", "share of all drafts accepted at each position (of those that reached it):"]
            lines.append("  " + "  ".join(cells[:16]) + (" ..." if len(cells) > 16 else ""))
        if self.contexts is not None and len(self.contexts):
            lines += ["", "by context length in tokens:"]
            for row in self.contexts.to_dict("records"):
                forward, first = row["forward"], row["first"]
                words = "" if np.isnan(first) else f"first drafted token accepted {first:.2f}, "
                words += f"{row['accepted']:.2f} accepted per cycle"
                words += "" if np.isnan(forward) else f", the pass {forward * 1e3:.2f} ms"
                lines.append(f"  {row['low']}-{row['high']}: {words}")
        return lines

    # -- pictures and files ------------------------------------------------------------------------

    def figure(self) -> Figure:
        """The waterfall, and acceptance by position if it is known."""
        return waterfall(self.bars(), self.name, self.badge, self.positions, self.places)

    def to_png(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the picture.

        Raises
        ------
        TraceError
            If the file exists (unless `force`) or cannot be written.
        """
        return write_bytes(Path(path), png(self.figure()), force)

    def to_html(self, path: str | Path, *, force: bool = False) -> Path:
        """Write one offline page and, for a trace, its player next to it, with links to the worst cycles.

        Raises
        ------
        TraceError
            If one of the files exists (unless `force`) or cannot be written.
        """
        path = expanded(path, TraceError)
        player = path.with_name(f"{path.stem}-player.html")
        for each in (path, player):
            if each.exists() and not force:
                raise TraceError(f"{each} exists: choose another path, or overwrite it with --force")
        parts = [f"<p>{html(self.sentence)}</p>"]
        if self.bars():
            parts.append(f"<p>{image(png(self.figure()), self.sentence)}</p>")
        if self.trace is not None and self._worst():
            self.trace.to_html(player, force=force)
            links = "".join(
                f'<li><a href="{quote(player.name)}{html(address)}">{html(place)}</a>: {html(words)}</li>'
                for place, words, address in self._worst()
            )
            parts.append(f"<h2>The worst cycles, in the player</h2><ul>{links}</ul>")
        parts += [f"<p>{html(self.selection)}</p>"] * bool(self.selection)
        words = f"<pre>{html(self.text())}</pre>"
        parts.append(f"{WRAPPED}<details><summary>Full text, as in the terminal</summary>{words}</details>")
        return write_text(path, document(f"Why {self.name} runs at this speed", parts), force)

    def to_json(self) -> str:
        """The whole explanation as JSON."""
        content: Record = {
            "name": self.name, "origin": self.origin, "version": self.version, "badge": self.badge,
            "tau": self.costs.tau, "cost": self.cost, "speedup": asdict(self.speedup),
            "seconds": {part: getattr(self.costs, part) for part in ("cycle", *PARTS)},
            "plain": None if self.plain is None else {
                "cycle": self.plain.cycle, "low": self.plain.low, "high": self.plain.high,
                "badge": self.plain.badge, "source": self.plain.source,
            },
            "even": self.even, "rate": self.rate, "places": self.places, "sentence": self.sentence,
            "selection": self.selection, "missing": self.missing,
        }  # fmt: skip
        for table in ("factors", "positions", "contexts", "starts", "lengths", "worst"):
            frame = getattr(self, table)
            content[table] = None if frame is None else json.loads(frame.to_json(orient="records"))
        return json.dumps(plain_data(content), ensure_ascii=False, allow_nan=False)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        picture = image(png(self.figure()), self.sentence) if self.bars() else ""
        return f"<div>{picture}<pre>{html(self.text())}</pre></div>"


def _times(estimate: Estimate) -> str:
    spread = "" if np.isnan(estimate.low) else f" [{estimate.low:.2f}, {estimate.high:.2f}]"
    return f"{estimate.median:.2f} times{spread} the speed"
