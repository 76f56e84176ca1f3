"""Advice as one object: the answer and why, the ranked table, other conditions, other engines' flags."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from specviz.errors import ParameterError, install, plural
from specviz.escape import html, visible
from specviz.files import plain_data, write_text
from specviz.measure.report import Part, Row, Settings, print_lines
from specviz.metrics import Estimate
from specviz.metrics.interval import LEAST
from specviz.metrics.speedups import Drafter, PassTimes
from specviz.view.advised import advice as advice_axes
from specviz.view.axes import image, new_figure, png
from specviz.view.static import Page, document
from specviz.view.static import table as html_table
from specviz.whatifs.answer import BOUNDED, EXACT, MODELLED

from .engines import READ, Flags
from .ranking import LOADS as DRAFTED
from .ranking import NOT, WORTH, Prediction
from .simulation import COUNTED, Candidate

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from specviz.trace import Trace
    from specviz.widgets.surface import SpeedupSurface

SCHEMA = 1
COMPARED = ("predicted", "measured")
TOP = 6  # fastest settings to show, in addition to the best of each method and drafter
COLUMNS = [
    ("rank", "rank", ""), ("method", "method", ""), ("draft", "drafter", ""), ("setting", "setting", ""),
    ("tau", "τ", ""), ("badge", "τ is", ""), ("speedup", "speedup [95%]", ""),
    ("speed", "tokens/s [95%]", ""), ("memory", "memory", ""),
]  # fmt: skip
PARTS = [
    ("method", "method", ""), ("setting", "setting", ""), ("tau", "τ", "{:.2f}"),
    ("accepted", "A/D", "{:.2f}"), ("cycle", "cycle", "{:.2f}"), ("forward", "pass", "{:.2f}"),
    ("drafting", "drafting", "{:.2f}"), ("rest", "rest", "{:.2f}"),
]  # fmt: skip
CHANGES = [
    ("where", "at", ""), ("best", "best", ""), ("speedup", "speedup", "{:.2f}"),
    ("speed", "tokens/s", "{:,.0f}"), ("badge", "basis", ""),
]  # fmt: skip
CONFIRMED = [
    ("label", "setting", ""), ("tau", "τ predicted", "{:.2f}"), ("tau_measured", "measured", "{:.2f}"),
    ("predicted", "speedup predicted [95%]", ""), ("measured", "measured [95%]", ""),
    ("off", "off by", "{:+.1%}"), ("covered", "in the interval", ""),
]  # fmt: skip
LOADS = [
    ("batch", "batch", ""), ("plain", "plain", "{:,.1f}"),
    *((str(length), str(length), "{:,.1f}") for length in DRAFTED),
    ("gain", "best over plain", "{:.2f}"), ("latency", "ms between a row's tokens", "{:,.0f}"),
]  # fmt: skip
USE, UNDECIDED = "draft", "undecided"
WITHIN = " (–: what drafting takes is in the rest)"


def memory_words(size: int | None) -> str:
    """Format a number of bytes."""
    if size is None:
        return "–"
    return "none" if not size else f"+{size / 1e6:,.1f} MB"


def gain_words(value: float, low: float, high: float) -> str:
    """Format a speedup, with its interval if it has one."""
    return f"{value:.2f}" + (f" [{low:.2f}, {high:.2f}]" if low == low else "")


def rate_words(value: float, low: float, high: float) -> str:
    """Format tokens per second with their interval; whole numbers from ten on."""
    form = "{:,.0f}" if value >= 10 else "{:.2f}"
    bounds = f" [{form.format(low)}, {form.format(high)}]" if low == low else ""
    return form.format(value) + bounds


def compared(confirmed: Sequence[Row], texts: int = 0) -> list[Row]:
    """Confirmed settings as rows of a table with the columns `CONFIRMED`."""
    return [
        row
        | {name: Estimate(row[name][0], row[name][1], row[name][2], texts) for name in COMPARED}
        | {"covered": {True: "yes", False: "no"}.get(row["covered"])}
        for row in confirmed
    ]


def fastest_of(confirmed: Sequence[Row]) -> Row:
    """The confirmed setting with the highest measured speedup."""
    return max(confirmed, key=lambda row: row["measured"][0])


def _experts_note(mixture: Settings) -> str:
    """Explain why a pass over more tokens costs a mixture more."""
    shown = [(int(g), n) for g, n in mixture["touched"].items() if int(g) in (1, 2, 5, 9)]
    counts = ", ".join(f"{n:.1f} over {plural(g, 'token')}" for g, n in sorted(shown))
    how = "counted on these answers" if mixture["by"] == "counted" else "expected if tokens choose evenly"
    return (
        f"experts: of the {mixture['count']} in a layer a pass reads {counts} ({how}), so a longer draft "
        "reads more weights"
    )


@dataclass(eq=False)
class Advice(Page):
    """Advice for a model on these texts and this device.

    Attributes
    ----------
    setting : dict
        Models, device, threads, number format, texts, clock, versions.
    predictions : list of Prediction
        Every setting, the fastest first.
    oracle : dict or None
        `Ranking.oracle`; None for sampled texts.
    changes : list of dict
        The best setting at other contexts, batch sizes and temperatures.
    flags : list of Flags
        The setting `advised` as options of other engines.
    warnings : list of str
    confirmed : list of dict
        Predictions and measurements on other prompts.
    passes : PassTimes, optional
    drafters : sequence of Drafter
        For `surface`.
    decode : callable, optional
        Decodes the first prompt with a setting and returns its trace.
    elsewhere : callable, optional
        For `on`.
    loads : list of dict
        `Ranking.loads`.
    """

    setting: Settings
    predictions: list[Prediction]
    oracle: dict[str, float] | None
    changes: list[Row]
    flags: list[Flags]
    warnings: list[str] = field(default_factory=list)
    confirmed: list[Row] = field(default_factory=list)
    passes: PassTimes | None = None
    drafters: Sequence[Drafter] = ()
    decode: Callable[[Candidate], Trace] | None = None
    elsewhere: Callable[[str, int | Sequence[int] | None, int | Sequence[int] | None], Advice] | None = None
    loads: list[Row] = field(default_factory=list)

    @property
    def best(self) -> Prediction:
        """The fastest setting that drafts."""
        return next(each for each in self.predictions if each.drafts)

    @property
    def answer(self) -> str:
        """``draft``, ``do not draft``, or ``undecided`` if drafting may gain here and lose on other texts.

        If the advice was confirmed, the measurements on other prompts decide. The fastest of several settings
        is chosen by them, so its interval is one that holds for all at once.
        """
        speedup, low = self.best.speedup, self.best.low
        if self.confirmed:
            speedup, low, _ = self.fastest["joint"]
        if speedup < WORTH:
            return NOT
        return UNDECIDED if low < 1 or low != low else USE

    @property
    def fastest(self) -> Row:
        """The confirmed setting with the highest measured speedup."""
        return fastest_of(self.confirmed)

    @property
    def advised(self) -> str:
        """Label of the setting that `sentence` and `flags` describe: the fastest confirmed one, or else the
        fastest predicted one."""
        return str(self.fastest["label"]) if self.confirmed else self.best.candidate.label

    @property
    def command(self) -> str:
        """The command that decodes with the setting `advised`, sampled and computed like the texts."""
        made = next(each.candidate for each in self.predictions if each.candidate.label == self.advised)
        s = self.setting
        given_as = s["given_as"]
        words = ["specviz", "generate", made.method, "-m", given_as.get("", "MODEL")]
        words += ["--revision", s["revision"]] if s["revision"] else []
        words += ["--draft", given_as.get(made.draft, made.draft)] if made.draft else []
        for name, value in made.values:
            words += ["--set", f"{name}={value}" if isinstance(value, str) else f"{name}={value:g}"]
        for name, usual in (("temperature", 0), ("top_k", 0), ("top_p", 1)):
            if s[name] != usual:
                words += [f"--{name.replace('_', '-')}", str(s[name])]
        return shlex.join([*words, *s["options"], "--prompts", "FILE"])

    @property
    def sentence(self) -> str:
        """The advice and its reason."""
        if self.confirmed:
            return self._measured_sentence()
        best = self.best
        parts = [f"{best.forward:.2f} the target's pass"]
        if best.drafting == best.drafting:
            parts += [f"{best.drafting:.2f} drafting", f"{best.rest:.2f} the rest"]
        else:
            parts.append(f"{best.rest:.2f} drafting and the rest")
        why = (
            f"it writes {best.tau:.2f} tokens per cycle, and a cycle costs {best.cycle:.2f} plain cycles: "
            f"{', '.join(parts)}"
        ).replace("-0.", "−0.")
        gain = gain_words(best.speedup, best.low, best.high)
        label = best.candidate.label
        if self.answer == NOT:
            little = f", and less than {WORTH:g} counts as no gain" if best.speedup >= 1 else ""
            return (
                f"Do not draft. The best setting, {label}, reaches {gain} times the plain speed{little}: "
                f"{why}. It breaks even at {best.cycle:.2f} tokens per cycle."
            )
        if self.answer == USE:
            return f"Draft with {label}: {gain} times the plain speed, because {why}."
        s = self.setting
        rest = "measure it on more texts"
        if not (s.get("as_device") or s["answers"] or s["temperature"]):
            rest += ", or with --confirm"
        if best.low == best.low:
            rest = f"it may be slower on other texts like these; {rest}"
        return f"Undecided. {label} is predicted to reach {gain} times the plain speed, for {why}; {rest}."

    def _measured_sentence(self) -> str:
        row, count = self.fastest, plural(self.setting["confirmed_on"], "other prompt")
        gain, predicted = gain_words(*row["joint"]), gain_words(*row["predicted"])
        label = row["label"]
        if self.answer == NOT:
            several = len(self.confirmed) > 1
            setting = f"the fastest of {len(self.confirmed)} settings, {label}," if several else label
            return (
                f"Do not draft. On {count} {setting} ran at {gain} times the plain speed; "
                f"{predicted} was predicted."
            )
        measured = f"{gain} times the plain speed, measured on {count}; {predicted} was predicted"
        if self.answer == USE:
            return f"Draft with {label}: {measured}."
        why = "It may be slower on others" if row["joint"][1] < 1 else "These are too few for an interval"
        return f"Undecided. {label} ran at {measured}. {why}: measure it on more texts."

    @property
    def shown(self) -> list[Prediction]:
        """The fastest settings, and the best of each method and drafter."""
        families, chosen = set[tuple[str, str]](), []
        for number, each in enumerate(self.predictions):
            if number < TOP or each.candidate.family not in families:
                chosen.append(each)
            families.add(each.candidate.family)
        return chosen

    @property
    def table(self) -> pd.DataFrame:
        """Every setting as a row, the fastest first."""
        import pandas as pd

        rows = []
        for each in self.predictions:
            row = each.as_dict()
            candidate = row.pop("candidate")
            rows.append({"method": candidate["method"], "draft": candidate["draft"]} | row)
        return pd.DataFrame(rows)

    @property
    def parts(self) -> list[Part]:
        """The tables."""
        made = [
            Part(self._ranked_title(), COLUMNS, self._ranked(), ("memory", "speed")),
            Part(f"Cost of a cycle in units of a plain cycle{WITHIN}", PARTS, self._split(), ("accepted",)),
        ]
        if self.changes:
            made.append(Part("What would change the answer", CHANGES,
                             self.changes))  # fmt: skip
        if self.loads:
            method = self.loads[0]["method"]
            title = f"Load: tokens/s of all rows, without drafts and by {method} at a draft length of"
            made.append(Part(title, LOADS, self.loads, ("1", "8")))
        if self.confirmed:
            made.append(Part(f"Confirmed on {self.setting['confirmed_on']} other prompts", CONFIRMED,
                             compared(self.confirmed)))  # fmt: skip
        return made

    def _ranked_title(self) -> str:
        left = len(self.predictions) - len(self.shown)
        more = (
            f", of {len(self.predictions)} settings, and the best of each method and drafter" if left else ""
        )
        return f"Predictions: the fastest{more}"

    def _ranked(self) -> list[Row]:
        rows, count = [], self.setting["texts"]
        for each in self.shown:
            sure = each.badge in (EXACT, COUNTED)
            bounds = "" if sure else f" [{each.tau_low:.2f}, {each.tau_high:.2f}]"
            plain = not each.drafts
            rows.append({
                "rank": self.predictions.index(each) + 1, "method": each.candidate.method,
                "draft": each.candidate.draft or None, "setting": each.candidate.setting or None,
                "tau": f"{each.tau:.2f}{bounds}", "badge": None if plain else each.badge,
                "speedup": None if plain else Estimate(each.speedup, each.low, each.high, count),
                "speed": rate_words(each.speed, each.speed_low, each.speed_high),
                "memory": memory_words(each.memory),
            })  # fmt: skip
        return rows

    def _split(self) -> list[Row]:
        families, rows = set[tuple[str, str]](), []
        for each in self.predictions:
            if each.candidate.family in families:
                continue
            families.add(each.candidate.family)
            row = {
                name: getattr(each, name)
                for name in ("tau", "accepted", "cycle", "forward", "drafting", "rest")
            }
            method = " ".join(filter(None, each.candidate.family))
            rows.append({"method": method, "setting": each.candidate.setting or None} | row)
        return rows

    @property
    def notes(self) -> list[str]:
        """Sentences below the tables."""
        s = self.setting
        timed = not s.get("as_device")
        lines = [
            f"{plural(s['texts'], 'text')} of {s['tokens'] / s['texts']:.0f} tokens on average, after "
            f"{s['between'][0]} to {s['between'][1]} tokens; computed on {s['device']}, "
            f"{plural(s['threads'], 'thread')}, {s['dtype']}" + (f"; times by {s['clock']}" if timed else ""),
            f"speedup, tokens/s: without the prefill; modelled from the record of the texts and "
            f"{'timed' if timed else 'modelled'} passes. The interval is for the same number of other texts "
            f"like these: it covers the choice of texts{' and the clock' if timed else ''}, not other kinds "
            "of text.",
        ]
        if s.get("as_device"):
            lines.append(
                f"modelled: the times are a roofline of {s['as_device']} in 16 bit, without the loop's own "
                f"overhead; real kernels do not reach either rate"
            )
        if s.get("experts"):
            lines.append(_experts_note(s["experts"]))
        stopped = [row["where"] for row in self.changes if row["best"] == NOT]
        if stopped and self.answer != NOT:
            lines.append(f"drafting stops paying at: {', '.join(stopped)}")
        if self.changes:
            lines.append(
                "other contexts and batches: at these texts' acceptance. Temperatures: of prompt lookup and "
                "draft models, by Σ min(p, q) along the same texts, which sampling would not write."
            )
        if s["temperature"]:
            lines.append(
                "τ of a draft model: from min(1, q/p) of each token of the sampled texts, whose mean is "
                "Σ min(p, q)."
            )
        if self.oracle is not None:
            badges = {each.badge for each in self.predictions if each.candidate.by_place}
            sure = next((badge for badge in (MODELLED, BOUNDED) if badge in badges), EXACT)
            lines.append(
                f"oracle: the best drafter and length at every cycle would reach "
                f"{self.oracle['speedup']:.2f} "
                f"(τ {self.oracle['tau']:.2f}); no controller can gain more with these drafters. Its cycles "
                f"are {sure} and its times use the {'measured' if timed else 'modelled'} costs; it does not "
                "use trees or stores."
            )
        if (count := len(self.confirmed)) > 1 and self.fastest["joint"][1] == self.fastest["joint"][1]:
            lines.append(
                f"confirmed: the fastest of {count} settings is advised. Its interval in the advice allows "
                f"for that choice ({1 - 0.05 / count:.1%} for each setting); those in the table do not."
            )
        if s["texts"] < LEAST:
            lines.append(f"intervals need {LEAST} texts or more")
        if s["left_out"]:
            lines += [f"skipped: {name} ({why})" for name, why in s["left_out"].items()]
        return lines

    def flag_lines(self) -> list[str]:
        """The setting `advised` for other engines, one line per engine."""
        lines = []
        for each in self.flags:
            text = each.flags if each.flags else "not supported"
            lines.append(f"{each.engine}: {text}" + (f"   ({each.note})" if each.note else ""))
        return lines

    def __repr__(self) -> str:
        return "\n".join([self.sentence, *(f"  {visible(each)}" for each in self.warnings)])

    def _repr_html_(self) -> str:
        return f"<div>{self._body()}</div>"

    def on(
        self, device: str, batch: int | Sequence[int] | None = None,
        context: int | Sequence[int] | None = None,
    ) -> Advice:  # fmt: skip
        """The advice for the same texts on another device, from a roofline of its passes.

        Nothing is decoded: the texts and the accepted drafts stay the same, and only the costs change.

        Parameters
        ----------
        device : str
            As `as_device` of `specviz.advise`.
        batch, context : int or sequence of int
            Batch sizes and context lengths to price as well.

        Raises
        ------
        ParameterError
            If the device is unknown, or this advice was saved without its texts.
        """
        if self.elsewhere is None:
            raise ParameterError(
                "this advice was saved without texts, so it cannot be projected to another device: "
                "run advise again"
            )
        return self.elsewhere(device, batch, context)

    def surface(self) -> SpeedupSurface:
        """A surface of speedups with sliders for context, batch, cost and acceptance; a click decodes.

        Raises
        ------
        ParameterError
            If the lab extra is not installed, or nothing was timed.
        """
        try:
            from specviz.widgets.surface import SpeedupSurface
        except ImportError:
            raise ParameterError(f"the sliders need plotly and ipywidgets: {install('lab')}") from None
        if self.passes is None:
            raise ParameterError(
                "this advice was saved without pass times, so what-ifs are unavailable: run advise again"
            )
        settings = {each.candidate.label: each.candidate for each in self.predictions}
        return SpeedupSurface(self.passes, self.drafters, settings, self.decode, self._body())

    def _repr_mimebundle_(self, include: None = None, exclude: None = None) -> dict[str, str]:
        """The sliders in a live notebook; the tables elsewhere and in exported pages."""
        made = {"text/plain": repr(self), "text/html": self._repr_html_()}
        if "ipykernel" not in sys.modules or self.passes is None:
            return made
        with suppress(ParameterError):
            return made | self.surface()._repr_mimebundle_()
        return made

    def show(self, console: Console) -> None:
        """Print the advice on a rich console."""
        print_lines(console, f"Advice for {self.setting['model']['name']}", "")
        for part in self.parts:
            print_lines(console, part.title)
            part.print(console)
            print_lines(console, "")
        print_lines(console, *self.notes, "", self.sentence, *(f"warning: {each}" for each in self.warnings))
        if self.flags and self.answer != NOT:
            print_lines(
                console, "", f"To decode with it here: {self.command}", "",
                f"{self.advised} in other engines' options (read {READ}):",
                *(f"  {each}" for each in self.flag_lines()),
            )  # fmt: skip

    def _body(self) -> str:
        import pandas as pd

        parts = [f"<p><b>{html(self.sentence)}</b></p>"]
        parts += [f"<p>⚠ {html(each)}</p>" for each in self.warnings]
        parts.append(image(self.png(), self.sentence))
        for part in self.parts:
            parts.append(f"<h2>{html(part.title)}</h2>{html_table(part.frame())}")
        if self.flags and self.answer != NOT:
            rows = [
                [each.engine, each.flags or "not supported", each.note, each.source] for each in self.flags
            ]
            frame = pd.DataFrame(rows, columns=["engine", "flags", "note", "source"])
            parts.append(f"<p>To decode with it here: <code>{html(self.command)}</code></p>")
            parts.append(
                f"<h2>{html(self.advised)} in other engines' options</h2>"
                f'<div class="flags">{html_table(frame)}</div>'
            )
        parts.append("".join(f"<p>{html(each)}</p>" for each in self.notes))
        return "".join(parts)

    def _page(self) -> str:
        return document(f"Advice for {self.setting['model']['name']}", [self._body()])

    def png(self) -> bytes:
        """The predicted speedups over draft length as an image (`specviz.view.advice`)."""
        figure = new_figure((7.0, 3.8), layout="constrained")
        advice_axes(self.table, self.confirmed, figure.add_subplot())
        return png(figure)

    def as_dict(self) -> Row:
        """Everything as plain data, ready for JSON: NaN becomes null."""
        return plain_data({
            "schema": SCHEMA, "answer": self.answer, "sentence": self.sentence, "setting": self.setting,
            "advised": self.advised, "command": self.command, "best": self.best.as_dict(),
            "predictions": [each.as_dict() for each in self.predictions],
            "oracle": self.oracle, "changes": self.changes, "loads": self.loads,
            "flags": [asdict(each) | {"source": each.source} for each in self.flags],
            "warnings": self.warnings, "confirmed": self.confirmed, "notes": self.notes,
        })  # fmt: skip

    def write(self, path: str | Path, force: bool = False) -> Path:
        """Write the advice as JSON, whole or not at all.

        Raises
        ------
        TraceError
            If the file exists (unless `force`) or cannot be written.
        """
        text = json.dumps(self.as_dict(), indent=1, ensure_ascii=False) + "\n"
        return write_text(Path(path), text, force)


def kinds_differ(advised: Sequence[str], others: Sequence[str]) -> str:
    """A warning if the confirming texts are of other kinds of work than the advised ones, or an empty string.

    Kinds count as different if the total variation distance between their shares exceeds a quarter.
    """
    if not any(advised) or not any(others):
        return ""
    names = sorted({*advised, *others})
    shares = [(list(side).count(name) / len(side)) for name in names for side in (advised, others)]
    apart = sum(abs(a - b) for a, b in zip(shares[::2], shares[1::2])) / 2
    if apart <= 0.25:
        return ""

    def listed(side: Sequence[str]) -> str:
        return ", ".join(f"{list(side).count(name)} {name or 'unnamed'}" for name in names if name in side)

    return (
        f"the confirming texts are of other kinds ({listed(others)}) than the advised ones "
        f"({listed(advised)}): the intervals do not cover that"
    )
