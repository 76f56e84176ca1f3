"""Runs of which only numbers were recorded: how many tokens, per request and per step.

Other tools report less than a trace: not which tokens were drafted, only how many and how many were accepted.
`Counts` holds that much and no more. `specviz.trace.foreign` reads it from their files,
`specviz.metrics.counts` reduces a trace to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specviz.errors import TraceError, plural
from specviz.trace.files import Record

if TYPE_CHECKING:
    import pandas as pd

# Columns of a request. Integers are null if the source does not give them.
REQUEST: dict[str, str] = {
    "id": "The request's name in its source; of a run, run and prompt.",
    "kind": "Its kind of task, or null.",
    "prompt_tokens": "Tokens of its prompt.",
    "steps": "Verify steps: cycles after the prefill. vLLM and AIPerf count only those with a draft; the "
    "others, and all of llama.cpp and LM Studio, follow from the length of the answer.",
    "drafts": "Steps with a draft.",
    "drafted": "Draft tokens that the target read, including those after the end of the text.",
    "accepted": "How many of them were accepted.",
    "emitted": "Tokens that the steps emitted: accepted ones and the target's own.",
    "output": "Tokens of the answer. May include the prefill's token and lack what was cut off at the end.",
    "eos": "Whether an end token closed it.",
    "seconds": "Its time, prefill included.",
    "prefill": "The prefill's time, in seconds.",
    "first": "Seconds until its first tokens.",
    "begin": "When it began, in seconds since 1970.",
}
# Columns of a step. A histogram does not give the order of the steps.
STEP: dict[str, str] = {
    "request": "Row of its request.",
    "drafted": "Draft tokens that the target read.",
    "depth": "The draft's longest path; for a chain the number of drafted tokens, for other tools' trees "
    "unknown.",
    "accepted": "Draft tokens that were accepted and emitted.",
    "emitted": "Tokens that it emitted.",
    "beyond": "Upper bound on further accepted tokens after the end of the text.",
    "times": "How many such steps there were: one, except in sums over requests.",
}
WHOLE = ("prompt_tokens", "steps", "drafts", "drafted", "accepted", "emitted", "output")
REAL = ("seconds", "prefill", "first", "begin")
SUMS = "sums over all requests"
LACK = "says how many tokens were accepted, not which"
UNDRAFTED = (
    "those without a draft follow from the lengths of the answers (llama.cpp and LM Studio: all steps do); a "
    "length that is not stated, and tokens that were cut off at an answer's end or accepted after it, hide "
    "some, so there may be more of them, and fewer tokens per step"
)


@dataclass(frozen=True, eq=False)
class Counts:
    """How many tokens were drafted, accepted and emitted, per request and, if known, per step.

    Metrics that need only such numbers accept it in place of a trace: `specviz.metrics.tau`,
    `acceptance_rate`, `accepted_share`, `mean_accepted`, `mean_sent`, `steps`, `sent`, `accepted`, `emitted`,
    `output`, `rosetta` and `by_position`. All others refuse it with an error of one line.

    Parameters
    ----------
    origin : str
        Who counted: ``specviz``, or an origin of `specviz.trace.read_counts`.
    where : str
        The file, or the run.
    requests : DataFrame
        One row per request; columns `REQUEST`.
    steps : DataFrame
        One row per step; columns `STEP`. Empty if the source has no steps.
    most : int, optional
        The largest draft that a step could have.
    wall : float
        Seconds in which all requests were served; NaN if not known. Requests may overlap.
    left_out : DataFrame, optional
        Lines of the file without anything to count, and why: ``line``, ``why``.
    plain : bool
        Whether it is a run without speculation, for use as a baseline.
    pooled : bool
        Whether a row of `requests` is not a request, but the sums of one engine of a server.
    version : str, optional
        Version of the tool, as it states it.
    drafting : float
        Seconds that all drafts took; NaN if not known.
    least_steps : bool
        Whether the number of steps is a lower bound: those without a draft (of llama.cpp and LM Studio, all)
        follow from the lengths of the answers; lengths that are not stated, and tokens cut off at the ends or
        accepted after them, hide some.
    """

    origin: str
    where: str
    requests: pd.DataFrame
    steps: pd.DataFrame
    most: int | None = None
    wall: float = math.nan
    left_out: pd.DataFrame = field(default_factory=lambda: left_out_table([]))
    plain: bool = False
    pooled: bool = False
    version: str | None = None
    drafting: float = math.nan
    least_steps: bool = False

    def __post_init__(self) -> None:
        for names, table, what in (
            (REQUEST, self.requests, "requests"),
            (STEP, self.steps, "steps"),
        ):
            if list(table.columns) != list(names):
                raise TraceError(
                    f"{self.where}: the table of {what} must have the columns {', '.join(names)}"
                )

    def total(self, name: str) -> float:
        """Sum of a column of `requests`; NaN if a request does not give it."""
        return float(self.column(name).sum())

    def column(self, name: str) -> np.ndarray:
        """A column of `requests` as float64 [requests]; NaN if not known."""
        return self.requests[name].to_numpy(np.float64, na_value=np.nan)

    def each(self, name: str) -> np.ndarray:
        """A column of `steps` as float64 [steps]; NaN if not known."""
        return self.steps[name].to_numpy(np.float64, na_value=np.nan)

    def to_aiperf(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the records that AIPerf keeps of requests; see `specviz.trace.aiperf.write_aiperf`."""
        from specviz.trace.aiperf import write_aiperf

        return write_aiperf(self, Path(path), force)

    def __getattr__(self, name: str) -> Any:
        from specviz.trace.trace import Trace

        if not name.startswith("_") and hasattr(Trace, name):
            raise TraceError(f"{self.where} ({self.origin}) {LACK}: this needs a trace's {name}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __repr__(self) -> str:
        n, sums = len(self.requests), {name: self.total(name) for name in WHOLE[1:]}
        words = ", ".join(f"{value:,.0f} {name}" for name, value in sums.items() if value == value)
        out = len(self.left_out)
        whose = f"all requests of {plural(n, 'engine')}" if self.pooled else plural(n, "request")
        return (
            f"<Counts of {whose} from {self.origin}, {self.where}: {words}"
            + f"; {plural(out, 'line')} skipped" * bool(out)
            + ">"
        )


def request_table(rows: list[Record]) -> pd.DataFrame:
    """Build the table of requests for `Counts`; missing values are null."""
    import pandas as pd

    table = pd.DataFrame(rows, columns=list(REQUEST))
    kinds = dict.fromkeys(WHOLE, "Int64") | dict.fromkeys(REAL, "float64") | {"eos": "boolean"}
    return table.astype(kinds)


def left_out_table(rows: list[Record]) -> pd.DataFrame:
    """Build the table of lines without anything to count."""
    import pandas as pd

    return pd.DataFrame(rows, columns=["line", "why"])


def step_table(columns: Record) -> pd.DataFrame:
    """Build the table of steps for `Counts`; missing values are null."""
    import pandas as pd

    return pd.DataFrame({"times": 1} | columns, columns=list(STEP)).astype(dict.fromkeys(STEP, "Int64"))
