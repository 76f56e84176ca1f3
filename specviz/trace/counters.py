"""Reads the counters of a vLLM server as `Counts`: sums over all requests since the server was started.

The server publishes them at ``/metrics`` in Prometheus' text format: drafts, their tokens, those accepted,
and those accepted at each position, which tell how many steps accepted how many. Two pages give the counts
between them. Identities between the counters must hold, and the line that breaks one is named.

Source: vllm, v1/spec_decode/metrics.py (SpecDecodingProm) and v1/metrics/loggers.py; the suffixes ``_total``
and ``_created`` are those of Prometheus' client for Python.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from specviz.errors import ParameterError, TraceError
from specviz.trace.counts import STEP, SUMS, Counts, request_table, step_table
from specviz.trace.files import Record

PREFIX = "vllm:spec_decode_num_"
DRAFTS, DRAFTED, ACCEPTED = (PREFIX + name for name in ("drafts", "draft_tokens", "accepted_tokens"))
AT = f"{ACCEPTED}_per_pos"
CREATED = f"{DRAFTS}_created"  # when the counter was created, which each start of the server changes
OUTPUT, PREFILLS = "vllm:generation_tokens", "vllm:time_to_first_token_seconds_count"
LABEL = r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"'
SAMPLE = re.compile(rf"[\w:]+(?:\{{((?:{LABEL}(?:,\s*|(?=\}})))*)\}})?\s+(\S+)(?:\s+-?\d+)?\s*")
MOST = 2**53  # maximum of a counter: they are floats, which skip integers beyond it


@dataclass
class Engine:
    """Counters of one engine on a page: values and line numbers, by name or by position in the draft."""

    path: Path
    labels: tuple[tuple[str, str], ...]
    value: dict[str | int, int] = field(default_factory=dict)
    line: dict[str | int, int] = field(default_factory=dict)
    created: str | None = None

    def positions(self) -> list[int]:
        """Accepted tokens at each position."""
        return [self.value[i] for i in sorted(key for key in self.value if isinstance(key, int))]

    def fail(self, name: str | int, what: str) -> NoReturn:
        raise TraceError(f"{self.path}, line {self.line[name]} {what}")

    def check(self) -> None:
        """Refuse counters that contradict each other."""
        missing = [f"{name}_total" for name in (DRAFTED, ACCEPTED) if name not in self.value]
        at = self.positions()
        missing += [f'{AT}_total{{position="{i}"}}' for i in range(len(at) or 1) if i not in self.value]
        if missing:
            self.fail(DRAFTS, f"counts an engine's drafts, but its {missing[0]} is missing")
        drafts, drafted, accepted = (self.value[name] for name in (DRAFTS, DRAFTED, ACCEPTED))
        if accepted > drafted:
            self.fail(ACCEPTED, f"counts {accepted} accepted tokens of {drafted} drafted ones")
        if drafted > len(at) * drafts:
            self.fail(DRAFTED, f"counts {drafted} tokens in {drafts} drafts of at most {len(at)}")
        for i, (before, here) in enumerate(zip([drafts, *at], at)):
            if here > before:
                of = f"{before} at the previous position" if i else f"there were {drafts} drafts"
                self.fail(i, f"counts {here} accepted tokens at position {i}, but {of}")
        if sum(at) != accepted:
            self.fail(ACCEPTED, f"counts {accepted} accepted tokens, but at all positions {sum(at)}")


def read_counters(path: Path, since: Path | None = None, plain: bool = False) -> Counts:
    """Sums over all requests from the page `path`, a row per engine; minus those of an earlier page, `since`.

    Arguments and errors are those of `specviz.trace.read_counts`. Steps without a draft are not counted: if
    more tokens were generated than drafts and prefills account for, these steps wrote the others. Without the
    counters of generated tokens and prefills, ``steps`` and ``emitted`` are not known.
    """
    if plain:
        raise ParameterError(
            f"speedups compare requests, but a server's counters are {SUMS}: drop the baseline"
        )
    engines = _page(path) if since is None else _between(_page(since), _page(path))
    where = f"{path}" if since is None else f"{path} since {since}"
    if not any(engine.value[DRAFTS] for engine in engines):
        raise TraceError(f"{where} counts no drafts")
    rows: list[Record] = []
    steps: list[tuple[int | None, ...]] = []
    least_steps = False
    for i, engine in enumerate(engines):
        drafts, drafted, accepted = (engine.value[name] for name in (DRAFTS, DRAFTED, ACCEPTED))
        output, prefills = (engine.value.get(name) for name in (OUTPUT, PREFILLS))
        row: Record = {"id": ", ".join(f"{label} {value[:80]}" for label, value in engine.labels)}
        row |= {"drafts": drafts, "drafted": drafted, "accepted": accepted, "output": output}
        if output is not None and prefills is not None:
            undrafted = max(output - prefills - accepted - drafts, 0)
            row |= {"steps": drafts + undrafted, "emitted": accepted + drafts + undrafted}
            if undrafted:
                least_steps = True
                steps.append((i, 0, 0, 0, 1, 0, undrafted))
        rows.append(row)
        at = engine.positions()
        depth = len(at) if drafted == len(at) * drafts else None  # known only if all drafts were full
        for a, times in enumerate(b - c for b, c in zip([drafts, *at], [*at, 0])):
            steps.append((i, depth, depth, a, a + 1, 0, times))
    return Counts(
        origin="vllm-metrics",
        where=where,
        requests=request_table(rows),
        steps=step_table(dict(zip(STEP, zip(*steps)))),
        most=max(len(engine.positions()) for engine in engines),
        pooled=True,
        least_steps=least_steps,
    )


def _page(path: Path) -> list[Engine]:
    """Read the engines of a page."""
    from specviz.trace.foreign import text_of

    engines: dict[tuple[tuple[str, str], ...], Engine] = {}
    for number, line in enumerate(text_of(path).split("\n"), 1):
        name = re.split(r"[\s{]", line, maxsplit=1)[0].removesuffix("_total")
        if name not in (DRAFTS, DRAFTED, ACCEPTED, AT, OUTPUT, PREFILLS, CREATED):
            continue
        sample = SAMPLE.fullmatch(line)
        labels = dict(re.findall(LABEL, sample[1] or "")) if sample else {}
        position = labels.pop("position", "")
        if sample is None or (name == AT and not re.fullmatch(r"\d{1,4}", position, re.ASCII)):
            raise TraceError(f"{path}, line {number} is not a sample of {name} as Prometheus writes it")
        whose = tuple(sorted(labels.items()))
        engine = engines.setdefault(whose, Engine(path, whose))
        if name == CREATED:
            engine.created = sample[4]
            continue
        key: str | int = int(position) if name == AT else name
        if engine.line.setdefault(key, number) != number:
            engine.fail(key, f"and line {number} count the same thing: keep only one page in the file")
        value = (
            float(sample[4]) if re.fullmatch(r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?", sample[4], re.ASCII) else -1.0
        )
        if not 0 <= value <= MOST or not value.is_integer():
            engine.fail(key, f"has {sample[4][:20]}, which is not a count")
        engine.value[key] = int(value)
    drafting = [engine for engine in engines.values() if DRAFTS in engine.value]
    if not drafting:
        raise TraceError(f"{path} has no {DRAFTS}_total: it is not a /metrics page of a vLLM that speculates")
    models = sorted({value for engine in drafting for label, value in engine.labels if label == "model_name"})
    if len(models) > 1:
        names = ", ".join(models)[:120]
        raise TraceError(
            f"{path} counts {len(models)} models ({names}): keep only one model's lines in the file"
        )
    for engine in drafting:
        engine.check()
    return drafting


def _between(before: list[Engine], after: list[Engine]) -> list[Engine]:
    """Subtract an earlier page of a server from a later one."""
    earlier, differences = {engine.labels: engine for engine in before}, []
    for new in after:
        old = earlier.get(new.labels)
        if old is None or len(before) != len(after) or len(old.positions()) != len(new.positions()):
            raise TraceError(f"{new.path} and {before[0].path} differ in engines, model or positions")
        if old.created and new.created and old.created != new.created:
            new.fail(DRAFTS, f"and {old.path} are from two starts of the server, which resets its counters")
        rest = Engine(new.path, new.labels, line=new.line)
        for name in (name for name in new.value if name in old.value):
            rest.value[name] = new.value[name] - old.value[name]
            if rest.value[name] < 0:
                why = "the server was restarted between them, or the two are swapped"
                new.fail(name, f"counts {new.value[name]}, but {old.path} {old.value[name]}: {why}")
        rest.check()
        differences.append(rest)
    return differences
