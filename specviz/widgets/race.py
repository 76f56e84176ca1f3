"""The same prompt by several methods, aligned by output position and played at true relative speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from specviz.errors import TraceError
from specviz.trace import whole_characters
from specviz.view.picture import KINDS

if TYPE_CHECKING:
    from specviz.trace import Trace

PHASES = ("draft", "forward", "verify", "commit")  # the recorded ones; the rest of a cycle is its own
PARTIAL = "\u25cc"  # a token whose bytes end inside a character; the token that completes it shows it
END = "\u25a0"  # the token that ends the text
LONGEST = 3  # how many of a lane's longest waits are named
ENDED = ("eos", "length", "context")
# What must agree before two clocks may be compared, and how a person calls it.
CLOCKS = (
    ("machine", "machines"),
    ("threads", "numbers of threads"),
    ("dtype", "number formats"),
    ("model", "target models"),
    ("timing", "ways of taking the time"),
)


@dataclass(frozen=True)
class Lane:
    """One method's way through the text.

    Times are in seconds on the run's own clock from the start of its prefill, what passed between the
    cycles (recording, the caller) left out, as in `specviz.metrics.seconds`. A block is a cycle after the
    prefill; its tokens appear when it ends.

    Parameters
    ----------
    name, method, exactness, draft : str
    end : str
        What ended the text; empty if the run was cut off.
    output : int
        Tokens of the final text.
    prefill : float
        When the prompt was read.
    blocks : dict of str to array [blocks]
        ``cycle``, ``begin``, ``end``, ``tokens`` (emitted), ``sent``, ``accepted`` and the phases' times.
    tokens : dict of str to array [emitted tokens]
        ``position``, ``block``, ``kind`` (index into `KINDS`), ``gone`` (when a later cycle took it back;
        infinity if it stayed), ``text`` (index into `texts`).
    texts : list of str
        The distinct token texts.
    waits : list of int
        The blocks that took longest, longest first.
    parts : int
        The first output position where the text is not the baseline's; -1 if there is none.
    """

    name: str
    method: str
    exactness: str
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
        """When the last cycle ended."""
        ends = self.blocks["end"]
        return float(ends[-1]) if len(ends) else self.prefill

    def speed(self, prefill: bool = False) -> float:
        """Tokens of the final text per second of decoding, or with the prefill's time inside."""
        seconds = self.finish if prefill else self.finish - self.prefill
        return self.output / seconds if seconds > 0 else float("nan")


@dataclass(frozen=True)
class Field:
    """Everybody who runs: one prompt, its lanes, and what must be said about comparing them.

    Parameters
    ----------
    prompt : str
        The prompt's text; empty where the traces do not hold it.
    baseline : int
        The lane that speeds are given over: autoregressive decoding, else the first.
    comparable : bool
        Whether the clocks may be compared; if not, no speedup is given.
    notes : list of str
        What a viewer has to know before believing the picture.
    """

    prompt: str
    lanes: list[Lane]
    baseline: int
    comparable: bool
    notes: list[str]

    def speedup(self, lane: int, prefill: bool = False) -> float:
        """Its `Lane.speed` over the baseline's, as `specviz.metrics.compare`; NaN where the clocks differ."""
        if not self.comparable:
            return float("nan")
        return self.lanes[lane].speed(prefill) / self.lanes[self.baseline].speed(prefill)


def fields(traces: Sequence[Trace] | Mapping[str, Trace] | Trace) -> list[Field]:
    """What is raced, one field a prompt.

    Parameters
    ----------
    traces : list of Trace, dict of name to Trace, or a Trace of several runs
        At least two runs that decoded the same prompts in the same order.

    Raises
    ------
    TraceError
        If there are fewer than two runs, their prompts differ, or one recorded no times.
    """
    named = _named(traces)
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
            "the traces did not decode the same prompt: a race needs one prompt by several methods"
        )
    notes, comparable = _notes([trace for _, trace in named], all(s[1] for source in sources for s in source))
    if less := len(first) - len(same):
        notes.append(
            f"{less} of {len(first)} prompts left out: not the same in every run (a later turn's prompt "
            "holds the earlier answers)."
        )
    found = []
    for k in same:
        lanes = [_lane(name, trace, source[k][0]) for (name, trace), source in zip(named, sources)]
        base = next((i for i, lane in enumerate(lanes) if lane.method == "autoregressive"), 0)
        lanes = [_parted(lane, lanes[base]) for lane in lanes]
        more = [
            f"{lane.name} was cut off after {lane.output} tokens: it has no finish."
            for lane in lanes
            if not lane.end
        ]
        found.append(Field(first[k][3], lanes, base, comparable, notes + more))
    return found


def _same(prompts: list[tuple[int, list[int], int, str]]) -> bool:
    """Whether these are one prompt; of one without tokens (redacted) only the length is known."""
    ids = [p[1] for p in prompts if p[1]]
    return all(p[2] == prompts[0][2] for p in prompts) and all(i == ids[0] for i in ids)


def _named(traces: Any) -> list[tuple[str, Trace]]:
    """Each run with the name it races under: its method and, where that is not enough, what differs."""
    if isinstance(traces, Mapping):
        named = [(str(name), trace) for name, trace in traces.items()]
        for name, trace in named:
            if len(trace.split()) != 1:
                raise TraceError(
                    f"{name} holds {len(trace.split())} runs: a lane is one run, select(run=...)"
                )
    else:
        given = [traces] if hasattr(traces, "split") else list(traces)
        runs = [run for trace in given for run in trace.split()]
        named = list(zip(_names([run.run for run in runs]), runs))
    if len(named) < 2:
        raise TraceError("a race needs at least two runs of the same prompt")
    return named


def _names(runs: list[dict[str, Any]]) -> list[str]:
    names = []
    for run in runs:
        same = [other for other in runs if other["method"] == run["method"]]
        own = {"draft": (run["draft"] or {}).get("name"), **(run["parameters"] or {})}
        others = [{"draft": (o["draft"] or {}).get("name"), **(o["parameters"] or {})} for o in same]
        told = [f"{k} {v}" for k, v in own.items() if any(o.get(k) != v for o in others)]
        names.append(run["method"] + (f" ({', '.join(told)})" if told else ""))
    return [
        name if names.count(name) == 1 else f"{name} #{names[: i + 1].count(name)}"
        for i, name in enumerate(names)
    ]


def _sources(trace: Trace) -> list[tuple[int, list[int], int, str]]:
    """For each chosen prompt: index, token ids, length, text."""
    known = trace.run["prompts"] or []
    table = trace.prompts
    return [
        (int(i), known[i].get("tokens") or [], int(n), str(text))
        for i, n, text in zip(table["prompt"], table["tokens"], table["text"])
    ]


def _notes(traces: list[Trace], seen: bool) -> tuple[list[str], bool]:
    """What must be said before anyone compares, and whether the clocks may be compared at all."""
    runs = [trace.run for trace in traces]
    notes = []
    clocks = [{name: run[name] for name, _ in CLOCKS} | {"machine": _place(run)} for run in runs]
    differ = [word for name, word in CLOCKS if any(clock[name] != clocks[0][name] for clock in clocks)]
    comparable = not differ
    if differ:
        words = differ[0] if len(differ) == 1 else ", ".join(differ[:-1]) + " and " + differ[-1]
        notes.append(f"Not comparable: the runs had different {words}. No speedup is given.")
    if not all((run["machine"] or {}).get("processor") for run in runs):
        notes.append("A trace does not say which machine it ran on: its times may not be comparable.")
    if any((run["versions"] or {}) != (runs[0]["versions"] or {}) for run in runs):
        notes.append("The runs had different versions of the libraries.")
    if not seen:
        notes.append("The traces do not hold the prompt's tokens; only its length was compared.")
    drawn = [{k: v for k, v in (run["sampling"] or {}).items() if k != "max_new_tokens"} for run in runs]
    if any(d != drawn[0] for d in drawn):
        notes.append("The runs drew their tokens differently (temperature, top_k, top_p or seed).")
    if any(
        (r["sampling"] or {}).get("max_new_tokens") != (runs[0]["sampling"] or {}).get("max_new_tokens")
        for r in runs
    ):
        notes.append("The runs had different limits of new tokens.")
    return notes, comparable


def _place(run: dict[str, Any]) -> tuple[Any, Any]:
    machine = run["machine"] or {}
    return machine.get("processor"), machine.get("device")


def _lane(name: str, trace: Trace, prompt: int) -> Lane:
    """Blocks and tokens of one prompt of one run."""
    one = trace.select(prompt=prompt)
    run, cycles, outputs = one.run, one.cycles, one.outputs
    duration = cycles["duration"].to_numpy(np.float64)
    if not len(cycles) or not np.isfinite(duration).all():
        raise TraceError(f"{name} recorded no times, so it cannot race: run it with record='judged'")
    end = np.cumsum(duration)
    number, keep = cycles["cycle"].to_numpy(), cycles["keep"].to_numpy()
    emitted = cycles["emitted"].to_numpy()
    filled = number == 0
    block_of = np.cumsum(~filled) - 1  # of each cycle; the prefill is none
    blocks: dict[str, np.ndarray] = {
        "cycle": number[~filled],
        "begin": (end - duration)[~filled],
        "end": end[~filled],
        "tokens": emitted[~filled],
        "sent": cycles["sent"].to_numpy()[~filled],
        "accepted": cycles["accepted"].to_numpy()[~filled],
    }
    for phase in PHASES:
        blocks[phase] = np.nan_to_num(cycles[f"{phase}_time"].to_numpy(np.float64)[~filled])

    # A later cycle's `keep` takes tokens back: from then on they are gone.
    gone = np.full(len(outputs), np.inf)
    standing: list[int] = []
    row = 0
    for i in range(len(cycles)):
        if np.isfinite(keep[i]):
            for lost in standing[int(keep[i]) :]:
                gone[lost] = end[i]
            del standing[int(keep[i]) :]
        standing += range(row, row + int(emitted[i]))
        row += int(emitted[i])

    # A character that several tokens make up is shown by the last of them, which completes it.
    shown = outputs["text"].astype(object).to_numpy(copy=True)
    ids, pieces = outputs["token"].tolist(), one.pieces
    ends = set(run["eos"] or [])
    words = [i for i in standing if ids[i] not in ends]
    place = 0
    for text, group in whole_characters((ids[i], pieces.get(ids[i], b"<%d>" % ids[i])) for i in words):
        shown[words[place : place + len(group)]] = [PARTIAL] * (len(group) - 1) + [text]
        place += len(group)
    shown[np.isin(ids, list(ends))] = END
    texts, index = (
        np.unique(shown.astype(str), return_inverse=True) if len(shown) else (np.array([]), np.array([], int))
    )

    origin = outputs["origin"].astype(str).to_numpy(copy=True)
    if run["method"] == "bild":
        origin[origin == "correction"] = "rollback"
    kinds = list(KINDS)
    last = cycles["end"].astype(object).iloc[-1]
    width = blocks["end"] - blocks["begin"]
    return Lane(
        name=name,
        method=str(run["method"]),
        exactness=str(run["exactness"] or ""),
        draft=str((run["draft"] or {}).get("name") or ""),
        end=last if last in ENDED else "",
        output=len(standing),
        prefill=float(end[filled][-1]) if filled.any() else 0.0,
        blocks=blocks,
        tokens={
            "id": outputs["token"].to_numpy(),
            "position": outputs["position"].to_numpy(),
            "block": np.repeat(block_of, emitted),
            "kind": np.array([kinds.index(o) if o in kinds else 0 for o in origin], np.int64),
            "gone": gone,
            "text": index.reshape(-1),
        },
        texts=[str(text) for text in texts],
        waits=np.argsort(-width, kind="stable")[:LONGEST].tolist(),
    )


def _parted(lane: Lane, base: Lane) -> Lane:
    """The lane with the first position where its final text is not the baseline's."""

    def final(one: Lane) -> list[int]:
        stays = np.isinf(one.tokens["gone"])
        return one.tokens["id"][stays].tolist()

    own, other = final(lane), final(base)
    same = 0
    while same < min(len(own), len(other)) and own[same] == other[same]:
        same += 1
    # A text that was cut off did not part from one that went on: it stopped.
    rest, ahead = len(own) > same, len(other) > same
    over = (rest and ahead) or (rest and bool(base.end)) or (ahead and bool(lane.end))
    return replace(lane, parts=same if over else -1)
