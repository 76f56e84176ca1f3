"""An answer: a table with one row per setting, and how certain each number is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from specviz.errors import ParameterError
from specviz.escape import html
from specviz.metrics.cycles import ratio
from specviz.trace import Trace
from specviz.whatifs.texts import Row, Setting, Value
from specviz.whatifs.walk import Place, Step, Walk

EXACT, BOUNDED, MODELLED, RERUN = BADGES = ("exact", "bounded", "modelled", "needs a rerun")
COUNTS = ("cycles", "drafted", "sent", "accepted", "emitted", "tau", "A/D", "A/O", "target_passes",
          "draft_passes")  # fmt: skip
BOUNDS = ("drafted", "sent", "A/D", "draft_passes")  # columns that depend on unrecorded drafts
SHOWN = 12  # most rows of an answer shown in a notebook


@dataclass(eq=False)
class Answer:
    """What other settings would have done.

    Attributes
    ----------
    question : str
        The question in words.
    badge : str
        The weakest of the table's badges: exact, bounded, modelled or needs a rerun.
    why : str
        One line that explains the badge.
    table : DataFrame
        One row per setting: its parameters, ``texts`` (how many were replayed to their end), then, as defined
        by `specviz.metrics`, ``cycles``, ``drafted``, ``sent``, ``accepted``, ``emitted``, ``tau``,
        ``A/D``, ``A/O``, ``target_passes`` and ``draft_passes``, and the row's ``badge``. If a value is only
        bounded, ``<column>_lo`` and ``<column>_hi`` give the bounds, and the column is their mean. A row that
        needs a rerun counts the cycles up to where the replay had to stop, and has no ratios.
    places : DataFrame
        Where and why replays stopped or continued as a model: the parameters, ``prompt``, ``cycle``,
        ``position``, ``token`` (the token that would be there, -1 if the record does not say), ``text`` (that
        token's) and ``why``.
    badges : dict of str to str
        The badge of each column of numbers.
    walks : list of list of Walk
        For each row, the replay of each text.
    parameters : tuple of str
        The table's columns that describe the setting.
    drafter : bool
        Whether drafting takes passes.
    begun : bool
        Whether a row that needs a rerun can be shown up to that point; for streams, in whole updates.
    """

    question: str
    badge: str
    why: str
    table: pd.DataFrame
    places: pd.DataFrame
    badges: dict[str, str]
    walks: list[list[Walk]]
    parameters: tuple[str, ...]
    drafter: bool
    _cell: Callable[[int], Trace] = field(repr=False)
    begun: bool = False

    def row(self, **setting: Value) -> int:
        """The index of the row with these parameters.

        Raises
        ------
        ParameterError
            If no row has them, or several do.
        """
        unknown = set(setting) - set(self.parameters)
        if unknown:
            raise ParameterError(
                f"the answer has no parameter {min(unknown)!r}; it has {', '.join(self.parameters)}"
            )
        fits = np.ones(len(self.table), bool)
        for name, value in setting.items():
            if isinstance(value, str) or self.table[name].dtype.kind not in "biuf":
                fits &= (self.table[name] == value).to_numpy()
            elif isinstance(value, int | float | np.number | np.bool_):
                fits &= np.isclose(self.table[name].to_numpy(np.float64), float(value), rtol=0, atol=1e-12)
            else:
                raise ParameterError(f"{name} must be a number, not {value!r}")
        rows = np.flatnonzero(fits)
        if len(rows) != 1:
            words = ", ".join(f"{name}={value}" for name, value in setting.items()) or "nothing"
            raise ParameterError(f"{len(rows)} rows of the answer have {words}; name one row")
        return int(rows[0])

    def trace(self, row: int | None = None, **setting: Value) -> Trace:
        """The replayed cycles of a row as a trace, so that every view shows them.

        Its metadata say so (``replayed``), and it has no times because none were measured. A rejected draft
        token that was not recorded is shown as ``⟨?⟩`` (`schema.UNKNOWN`); if the number of such tokens is
        only bounded, the lower bound is shown.

        Parameters
        ----------
        row : int, optional
            Row of the table; or name the setting: ``answer.trace(draft_length=8)``.

        Raises
        ------
        ParameterError
            If the row's replay had to stop, because there is no complete trace to show. For streams the
            updates before that point are still shown.
        """
        row = self.row(**setting) if row is None else row
        if not 0 <= row < len(self.table):
            raise ParameterError(f"the answer has rows 0 to {len(self.table) - 1}, not {row}")
        if not self.begun and any(walk.place for walk in self.walks[row]):
            raise ParameterError(
                f"row {row} needs a rerun, so there is no complete run to show: see answer.places"
            )
        return self._cell(row)

    def __repr__(self) -> str:
        return f"{self.question} [{self.badge}: {self.why}]\n{self.table.to_string(max_rows=SHOWN)}"

    def _repr_html_(self) -> str:
        question, badge, why = map(html, (self.question, self.badge, self.why))
        head = f"<p><b>{question}</b> <code>{badge}</code> {why}</p>"
        shown = self.table.to_html(
            index=False, max_rows=SHOWN, border=0, escape=True, float_format=lambda x: f"{x:.4g}"
        )
        return f"<div>{head}{shown}</div>"


def tabulate(rows: list[tuple[Setting, list[Walk]]], drafter: bool) -> pd.DataFrame:
    """One row per setting; `drafter` says whether drafting takes passes."""
    table = pd.DataFrame([setting | _row(walks, drafter) for setting, walks in rows])
    bounded = [name for name in BOUNDS if _differ(table[f"{name}_lo"], table[f"{name}_hi"])]
    lone = [f"{name}_{side}" for name in BOUNDS for side in ("lo", "hi") if name not in bounded]
    return table.drop(columns=lone)


def _differ(low: pd.Series, high: pd.Series) -> bool:
    """Whether bounds differ in some row; a row without a value, NaN in both, has no bounds."""
    return bool(((low != high) & ~(low.isna() & high.isna())).any())


def _row(walks: list[Walk], drafter: bool) -> Row:
    steps = [step for walk in walks for step in walk.steps]
    total = {name: sum(getattr(step, name) for step in steps) for name in Step._fields[3:-1]}
    low = {"drafted": total["drafted"], "sent": total["sent"]}
    high = {"drafted": total["drafted_high"], "sent": total["sent_high"]}
    low["draft_passes"], high["draft_passes"] = ((x["drafted"] if drafter else 0) for x in (low, high))
    # The more tokens are sent in vain, the smaller the accepted share.
    low["A/D"], high["A/D"] = (ratio(total["accepted"], x["sent"] - total["cut"]) for x in (high, low))
    row: Row = {"texts": sum(walk.place is None for walk in walks), "cycles": len(steps)}
    row |= {name: (low[name] + high[name]) / 2 if low[name] != high[name] else low[name] for name in BOUNDS}
    row |= {"accepted": total["accepted"], "emitted": total["emitted"]}
    row["tau"] = ratio(total["emitted"], len(steps))
    row["A/O"] = ratio(total["accepted"], total["emitted"])
    row["target_passes"] = sum(not step.unreviewed for step in steps)
    row = {name: row[name] for name in ("texts", *COUNTS)} | {"badge": badge(walks)}
    if row["badge"] == RERUN:  # where a replay stopped depends on the record, not on the setting
        row |= dict.fromkeys(("tau", "A/D", "A/O"), np.nan)
        low["A/D"] = high["A/D"] = np.nan
    for name in BOUNDS:
        row[f"{name}_lo"], row[f"{name}_hi"] = low[name], high[name]
    return row


def badge(walks: Iterable[Walk]) -> str:
    """The badge of a row."""
    walks = list(walks)
    if any(walk.place for walk in walks):
        return RERUN
    if any(walk.modelled for walk in walks):
        return MODELLED
    return EXACT if all(step.certain for walk in walks for step in walk.steps) else BOUNDED


def weakest(badges: Iterable[str]) -> str:
    """The badge that promises least."""
    return max(badges, key=BADGES.index, default=EXACT)


def list_places(rows: list[tuple[Setting, list[Walk]]], piece: Callable[[int], str]) -> pd.DataFrame:
    """Table of the places where replays stopped or continued as a model."""
    places = []
    for setting, walks in rows:
        for place in filter(None, (place for walk in walks for place in (walk.modelled, walk.place))):
            token = -1 if place.token is None else place.token
            text = "" if place.token is None else piece(place.token)
            places.append(setting | place._asdict() | {"token": token, "text": text})
    names = [*(rows[0][0] if rows else ()), *Place._fields[:-1], "text", "why"]
    return pd.DataFrame(places, columns=names)
