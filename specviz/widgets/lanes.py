"""Data of a race: each method's decode of one prompt, on its own clock. Needs no widget library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from specviz.errors import TraceError
from specviz.escape import visible
from specviz.files import plain_data
from specviz.metrics.cycles import conditions
from specviz.rules.speculative import common_prefix
from specviz.trace import Trace, is_trace, listed
from specviz.view.picture import PHASES, run_names
from specviz.view.updates import Traces, is_stream
from specviz.widgets import columns
from specviz.widgets.columns import Json

PARTIAL = "\u25cc"  # shown for a token that ends inside a character; the completing token shows the character
LONGEST = 3  # how many of a lane's longest waits are listed
UNSENT = ("id", "cell", "kept")  # token arrays of a lane that are not sent
SENT = ("exactness", "end", "output", "texts", "waits", "parts")  # lane attributes that are sent unchanged
ENDED = ("eos", "length", "context")
# The race's keys, as its list shows them.
KEYS = (
    ("← →", "the previous or next cycle that emitted tokens"),
    ("Shift ← →", "a hundredth of the race"),
    ("space", "play or pause"),
    ("Home End", "the start or finish"),
    ("L", "the next change of the lead"),
    ("W", "the next of the longest waits"),
    ("P", "projector mode: everything larger"),
    ("?", "this list; Escape closes it"),
)


@dataclass(frozen=True)
class Lane:
    """One method's decode of the prompt.

    Times are in seconds on the run's own clock, from the start of its prefill. Time between the cycles
    (recording, the caller) is excluded, as in `specviz.metrics.seconds`. A block is a cycle after the
    prefill; its tokens appear when it ends.

    Parameters
    ----------
    name, method, exactness, target, draft : str
    end : str
        Why the text ended; empty if the run was cut off.
    output : int
        Number of tokens of the final text.
    prefill : float
        Time at which the prefill ended.
    blocks : dict of str to array [blocks]
        ``cycle``, ``begin``, ``end``, ``tokens`` (emitted), ``stands`` (length of the text after the block),
        ``sent``, ``accepted`` and the phases' times.
    tokens : dict of str to array [emitted tokens]
        ``position`` (on a canvas, the order of placing), ``cell`` (its position in the text), ``kept`` (in
        the final text), ``block``, ``kind`` (index into `KINDS`), ``gone`` (when a later cycle rolled it
        back; infinity if it stayed), ``text`` (index into `texts`).
    texts : list of str
        The distinct token texts.
    waits : list of int
        The blocks that took longest, longest first.
    parts : int
        The first output position at which the text differs from the baseline's; -1 if they agree.
    """

    name: str
    method: str
    exactness: str
    target: str
    draft: str
    end: str
    output: int
    prefill: float
    blocks: dict[str, np.ndarray]
    tokens: dict[str, np.ndarray]
    texts: list[str]
    waits: list[int]
    parts: int = -1

    @property
    def finish(self) -> float:
        """Time at which the last cycle ended."""
        ends = self.blocks["end"]
        return float(ends[-1]) if len(ends) else self.prefill

    def speed(self, prefill: bool = False) -> float:
        """Tokens of the final text per second of decoding, optionally including the prefill's time."""
        seconds = self.finish if prefill else self.finish - self.prefill
        return self.output / seconds if seconds > 0 else float("nan")


@dataclass(frozen=True)
class Field:
    """The field of a race: one prompt, its lanes, and caveats about comparing them.

    Parameters
    ----------
    prompt : str
        The prompt's text; empty if the traces do not hold it.
    lanes : list of Lane
    baseline : int
        The lane that speedups are relative to: autoregressive decoding, otherwise the first.
    comparable : bool
        Whether the clocks may be compared; if not, no speedup is given.
    notes : list of str
        Caveats that a viewer needs to interpret the race.
    filled : bool
        Whether the runs filled canvases; if so, columns follow the order of placing.
    number : int
        The prompt's number in its trace, from 1.
    """

    prompt: str
    lanes: list[Lane]
    baseline: int
    comparable: bool
    notes: list[str]
    filled: bool = False
    number: int = 1

    def speedup(self, lane: int, prefill: bool = False) -> float:
        """A lane's speed over the baseline's, as in `specviz.metrics.compare`; NaN if not `comparable`."""
        if not self.comparable:
            return float("nan")
        return self.lanes[lane].speed(prefill) / self.lanes[self.baseline].speed(prefill)


def fields(traces: Sequence[Trace] | Mapping[str, Trace] | Trace) -> list[Field]:
    """Build the fields of a race, one per prompt.

    Parameters
    ----------
    traces : list of Trace, dict of name to Trace, or a Trace of several runs
        At least two runs that decoded the same prompts in the same order.

    Raises
    ------
    TraceError
        If there are fewer than two runs, they share no prompt, only some fill a canvas, a run recorded no
        times, or a run decodes streams.
    """
    named = _named(traces)
    filled = _check_order(named)
    sources = [_sources(trace) for _, trace in named]
    first = sources[0]
    if not first:
        raise TraceError(f"{named[0][0]} holds no prompt: choose one with select(prompt=...)")
    for (name, _), other in zip(named[1:], sources[1:]):
        if len(other) != len(first):
            raise TraceError(
                f"{named[0][0]} holds {len(first)} prompts and {name} {len(other)}: choose the same "
                "ones with select(prompt=...)"
            )
    same = [k for k in range(len(first)) if _same([source[k] for source in sources])]
    if not same:
        raise TraceError(
            "the traces did not decode the same prompt: a race needs one prompt decoded by several methods"
        )
    notes, comparable = _notes([trace for _, trace in named], all(s[1] for source in sources for s in source))
    if less := len(first) - len(same):
        notes.append(
            f"{less} of {len(first)} prompts skipped: they differ between runs (a later turn's prompt "
            f"contains the earlier answers)."
        )
    raced = []
    entrants = [
        _lanes(name, trace, [source[k][0] for k in same]) for (name, trace), source in zip(named, sources)
    ]
    for k, lanes in zip(same, map(list, zip(*entrants))):
        base = next((i for i, lane in enumerate(lanes) if lane.method == "autoregressive"), 0)
        lanes = [_parted(lane, lanes[base]) for lane in lanes]
        more = [
            f"{lane.name} was cut off after {lane.output} tokens: it has no finish."
            for lane in lanes
            if not lane.end
        ]
        raced.append(Field(first[k][3], lanes, base, comparable, notes + more, filled, first[k][0] + 1))
    return raced


def _check_order(named: Sequence[tuple[str, Trace]]) -> bool:
    """Return whether all runs fill canvases; raise if one decodes streams or only some fill canvases."""
    for name, trace in named:
        if is_stream(trace):
            raise TraceError(
                f"{name} decoded a source that arrived in updates, but a race is over one text: "
                f"specviz.flicker([...]) shows such runs side by side"
            )
    filled = [bool(trace.run.get("canvas")) for _, trace in named]
    if any(filled) and not all(filled):
        raise TraceError(
            f"{named[filled.index(True)][0]} fills a canvas, but {named[filled.index(False)][0]} writes "
            f"from left to right: their tokens have no common order for a race"
        )
    return all(filled)


def _same(prompts: list[tuple[int, list[int], int, str]]) -> bool:
    """Whether these prompts are the same; redacted ones, without tokens, are compared by length alone."""
    ids = [p[1] for p in prompts if p[1]]
    return all(p[2] == prompts[0][2] for p in prompts) and all(i == ids[0] for i in ids)


def _named(traces: Traces) -> list[tuple[str, Trace]]:
    """Name each run by its key or by its method and, if several runs share the method, what differs."""
    if isinstance(traces, Mapping):
        named = [(str(name), is_trace(trace)) for name, trace in traces.items()]
        for name, trace in named:
            if len(trace.split()) != 1:
                raise TraceError(
                    f"{name} holds {len(trace.split())} runs, but a lane shows one run: select(run=...)"
                )
    else:
        given = listed(traces)
        runs = [run for trace in given for run in is_trace(trace).split()]
        named = list(zip(run_names([run.run for run in runs]), runs))
    if len(named) < 2:
        raise TraceError("a race needs at least two runs of the same prompt")
    return named


def _sources(trace: Trace) -> list[tuple[int, list[int], int, str]]:
    """The index, token ids, length and text of each of the trace's prompts."""
    records = trace.run["prompts"] or []
    table = trace.prompts
    return [
        (int(i), records[i].get("tokens") or [], int(n), str(text))
        for i, n, text in zip(table["prompt"], table["tokens"], table["text"])
    ]


def _notes(traces: list[Trace], seen: bool) -> tuple[list[str], bool]:
    """Return caveats about comparing the runs, and whether their clocks may be compared at all."""
    runs = [trace.run for trace in traces]
    notes = []
    clocks = [conditions(trace) | {"target models": trace.run["model"]} for trace in traces]
    differ = [word for word in clocks[0] if any(clock[word] != clocks[0][word] for clock in clocks)]
    comparable = not differ
    if differ:
        words = differ[0] if len(differ) == 1 else ", ".join(differ[:-1]) + " and " + differ[-1]
        notes.append(f"Not comparable: the runs had different {words}. No speedup is given.")
    if not all((run["machine"] or {}).get("processor") for run in runs):
        notes.append("One trace does not say which machine it ran on: its times may not be comparable.")
    if any((run["versions"] or {}) != (runs[0]["versions"] or {}) for run in runs):
        notes.append("The runs used different library versions.")
    if runs[0].get("canvas"):
        notes.append(
            "The runs fill canvases: columns follow the order in which cells were placed, not their "
            "position in the text."
        )
    if not seen:
        notes.append("The traces do not hold the prompt's tokens; only its length was compared.")
    drawn = [{k: v for k, v in (run["sampling"] or {}).items() if k != "max_new_tokens"} for run in runs]
    if any(d != drawn[0] for d in drawn):
        notes.append("The runs drew their tokens differently (temperature, top_k, top_p or seed).")
    if any(
        (r["sampling"] or {}).get("max_new_tokens") != (runs[0]["sampling"] or {}).get("max_new_tokens")
        for r in runs
    ):
        notes.append("The runs had different limits on new tokens.")
    return notes, comparable


def _lanes(name: str, trace: Trace, prompts: list[int]) -> list[Lane]:
    """Build one run's lanes, one per prompt; the run is read once."""
    one = trace.select(prompt=prompts)
    if not len(one.cycles) or not np.isfinite(one.cycles["duration"].to_numpy(np.float64)).all():
        raise TraceError(f"{name} recorded no times, so it cannot race: run it with record='judged'")
    header, sent = columns.columns(one)
    rows = {p["prompt"]: slice(p["first"], p["last"]) for p in header["prompts"]}
    return [_lane(name, one, header["words"]["text"], sent, rows[prompt]) for prompt in prompts]


def _lane(name: str, trace: Trace, words: list[str], sent: columns.Arrays, rows: slice) -> Lane:
    """Build the lane of one prompt from its rows of the cycles and the tokens they emitted."""
    run, cycles = trace.run, trace.cycles.iloc[rows]
    out_at = sent["out_at"][rows.start : rows.stop + 1].astype(np.int64)
    own = slice(int(out_at[0]), int(out_at[-1]))
    outputs = trace.outputs.iloc[own]
    duration = cycles["duration"].to_numpy(np.float64)
    end = np.cumsum(duration)
    emitted = np.diff(out_at)
    paid = cycles["cycle"].to_numpy() > 0  # the prefill is not a block
    blocks: dict[str, np.ndarray] = {
        "cycle": cycles["cycle"].to_numpy()[paid],
        "begin": (end - duration)[paid],
        "end": end[paid],
        "tokens": emitted[paid],
        "stands": (np.nan_to_num(cycles["keep"].to_numpy(np.float64)).astype(np.int64) + emitted)[paid],
        "sent": cycles["sent"].to_numpy()[paid],
        "accepted": cycles["accepted"].to_numpy()[paid],
    }
    for phase, seconds in zip(PHASES, sent["times"].reshape(-1, len(PHASES))[rows].T):
        blocks[phase] = seconds[paid]
    gone = sent["out_gone"][own].astype(np.int64)
    # A character that spans several tokens is shown at the last of them.
    whole = sent["out_by"][own] == np.arange(own.start, own.stop)
    codes, text = np.unique(sent["out_text"][own], return_inverse=True)
    last = cycles["end"].iloc[-1]
    return Lane(
        name=name,
        method=str(run["method"]),
        exactness=str(run["exactness"] or ""),
        target=str((run["model"] or {}).get("name") or ""),
        draft=str((run["draft"] or {}).get("name") or ""),
        end=last if last in ENDED else "",
        output=int(outputs["kept"].sum()),
        prefill=float(end[~paid][-1]) if not paid.all() else 0.0,
        blocks=blocks,
        tokens={
            "id": outputs["token"].to_numpy(),
            # on a canvas the tokens appear in the order in which they were placed
            "position": outputs["order" if run.get("canvas") else "position"].to_numpy().astype(np.int64),
            "cell": outputs["position"].to_numpy(),
            "kept": outputs["kept"].to_numpy(),
            "block": np.repeat(np.cumsum(paid) - 1, emitted),
            "kind": sent["out_kind"][own],
            "gone": np.where(gone < 0, np.inf, end[np.maximum(gone - rows.start, 0)]),
            "text": np.where(whole, text, len(codes)),
        },
        texts=[*(words[code] for code in codes), PARTIAL],
        waits=np.argsort(-duration[paid], kind="stable")[:LONGEST].tolist(),
    )


def _parted(lane: Lane, base: Lane) -> Lane:
    """Set `Lane.parts` to the first position at which the final text differs from the baseline's."""

    def final(one: Lane) -> list[tuple[int, int]]:
        stays = np.isinf(one.tokens["gone"])
        return list(zip(one.tokens["cell"][stays].tolist(), one.tokens["id"][stays].tolist()))

    def text(one: Lane) -> list[tuple[int, int]]:
        kept = one.tokens["kept"]
        return sorted(zip(one.tokens["cell"][kept].tolist(), one.tokens["id"][kept].tolist()))

    if text(lane) == text(base) and lane.end and base.end:
        return lane  # canvases filled in different orders may still hold the same text
    own, other = final(lane), final(base)
    same = common_prefix(own, other)
    # A text that was cut off does not differ from a longer one: it merely stops earlier.
    rest, ahead = len(own) > same, len(other) > same
    over = (rest and ahead) or (rest and bool(base.end)) or (ahead and bool(lane.end))
    return replace(lane, parts=same if over else -1)


def flat(fields: Sequence[Field]) -> tuple[Json, dict[str, np.ndarray]]:
    """Convert the fields to a header and flat arrays, named ``<field>.<lane>.<array>``, for the browser.

    Times are float32 seconds, which is as fine as the displayed clock.
    """
    small = {"kind": np.uint8, "gone": np.float32}
    arrays: dict[str, np.ndarray] = {}
    listing = []
    for f, field in enumerate(fields):
        lanes = []
        for i, lane in enumerate(field.lanes):
            own = {"end_time" if name == "end" else name: value for name, value in lane.blocks.items()}
            own |= {name: value for name, value in lane.tokens.items() if name not in UNSENT}
            for name, value in own.items():
                kind = small.get(name, np.float32 if value.dtype.kind == "f" else np.int32)
                arrays[f"{f}.{i}.{name}"] = np.ascontiguousarray(value, kind)
            lanes.append(
                {
                    "name": visible(lane.name),
                    "drafter": visible(lane.draft),
                    **{name: getattr(lane, name) for name in SENT},
                    "prefill": _float32(lane.prefill),
                    "finish": _float32(lane.finish),
                    "speedup": plain_data(field.speedup(i)),
                    "speedup_with_prefill": plain_data(field.speedup(i, prefill=True)),
                    "columns": list(own),
                }
            )
        listing.append(
            {
                "prompt": visible(field.prompt),
                "number": field.number,
                **{name: getattr(field, name) for name in ("baseline", "comparable", "notes")},
                **({"across": "order of placing"} if field.filled else {}),
                "lanes": lanes,
            }
        )
    words = {"kinds": columns.KINDS_SENT, "phases": list(PHASES), "keys": KEYS}
    targets = dict.fromkeys(lane.target for field in fields for lane in field.lanes)
    return words | {"model": visible(", ".join(targets)), "fields": listing}, arrays


def _float32(value: float) -> float:
    """Round a time to float32, so that it compares equal to the times in the browser's arrays."""
    return float(np.float32(value))
