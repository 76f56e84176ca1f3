"""Check that a user's method keeps its claims: everything that the package requires of a method."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from specviz import schema
from specviz.check.result import STYLE
from specviz.errors import ParameterError, SpecvizError, one_line, plural
from specviz.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

    from specviz.audit import AuditResult
    from specviz.loop.drafters import Loadable
    from specviz.methods import Method
    from specviz.models.protocols import Model, Prompt

PASS, FAIL, NOT_CLAIMED, NOT_TRIED = "pass", "fail", "not claimed", "not tried"
SIGNS = {PASS: "✓", FAIL: "✗", NOT_CLAIMED: "–", NOT_TRIED: "–"}
CLASSES = {PASS: "right", FAIL: "wrong", NOT_CLAIMED: "todo", NOT_TRIED: "todo"}  # of `STYLE`
PROMPTS, TOKENS = 4, 24
REPEATING = "The cook visited a doctor. The cook visited a"  # any lookup drafts well on it
LIMITS = (1, 2, 5)  # tokens: shorter than most drafts
DRAFTED = ["prompt", "cycle", "node", "token"]  # columns that identify drafts
# Beginning of an audit's finding about the record, not the text.
OF_RECORD = re.compile(r"(the |\d+ )recorded|\d+ tokens were sent")
ROWS = """
.specviz-check.specviz-check td{font-family:inherit;font-weight:400}
.specviz-check tr.wrong .sign{color:#d55e00}.specviz-check tr.right .sign{color:#009e73}
"""


class Row(NamedTuple):
    """One claim: its name, ``pass``, ``fail``, ``not claimed`` or ``not tried``, and a line of detail."""

    check: str
    state: str
    detail: str


@dataclass(frozen=True, repr=False)
class Conformance:
    """Report of `specviz.check.method`: true if nothing fails.

    Parameters
    ----------
    method : str
    model : str
    rows : list of Row
    """

    method: str
    model: str
    rows: list[Row]

    def __bool__(self) -> bool:
        return not any(row.state == FAIL for row in self.rows)

    def __getitem__(self, check: str) -> Row:
        """The row of a check, by its name."""
        for row in self.rows:
            if row.check == check:
                return row
        raise KeyError(f"no check {check!r}; available: {', '.join(row.check for row in self.rows)}")

    @property
    def headline(self) -> str:
        """Summary of the checks in one line."""
        failed = [row.check for row in self.rows if row.state == FAIL]
        held = sum(row.state == PASS for row in self.rows)
        idle = [row.check for row in self.rows if row.state == NOT_TRIED]
        words = f"fails {', '.join(failed)}" if failed else f"all {held} claims hold"
        words += f"; not tried: {', '.join(idle)}" if idle else ""
        return f"{self.method} on {self.model}: {words}"

    def __repr__(self) -> str:
        wide = max(len(row.check) for row in self.rows)
        rows = (f"{SIGNS[row.state]} {row.check:{wide}}  {row.state:11}  {row.detail}" for row in self.rows)
        return "\n  ".join([f"{SIGNS[PASS if self else FAIL]} {self.headline}", *rows])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr class='{CLASSES[row.state]}'><th scope='row'>{escape(row.check)}</th>"
            f"<td><span class='sign' aria-hidden='true'>{SIGNS[row.state]}</span>{row.state}</td>"
            f"<td>{escape(row.detail)}</td></tr>"
            for row in self.rows
        )
        state = PASS if self else FAIL
        return (
            f"<div class='specviz-check {CLASSES[state]}' role='status'><style>{STYLE}{ROWS}</style>"
            f"<p><span class='sign' aria-hidden='true'>{SIGNS[state]}</span>"
            f"<strong>{escape(self.headline)}</strong></p>"
            f"<div class='table'><table><tbody>{rows}</tbody></table></div></div>"
        )


class Unclaimed(Exception):
    """A check does not apply to the method; the message says why."""


class Untried(Exception):
    """The prompts do not show whether a claim holds; the message says why."""


class Broken(Exception):
    """A check failed; the message says how."""


class Case:
    """A method under check, with results that several checks use."""

    def __init__(
        self, make: Callable[[], Method], model: Model, draft: Model | None, prompts: list[Prompt]
    ) -> None:
        self.make, self.model, self.draft, self.prompts = make, model, draft, prompts
        self.method = make()

    def generate(self, **options: Any) -> Trace:
        """Decode the prompts with a fresh method."""
        from specviz.loop import generate

        options = {"max_new_tokens": TOKENS, "draft": self.draft} | options
        return generate(self.model, self.prompts, self.make(), **options)

    @cached_property
    def forgets(self) -> bool:
        """Whether an instance drafts the same for the prompts again; true as well if it declares a memory."""
        from specviz.loop import generate

        method = self.make()
        if method.memory is not None:
            return True
        options: dict[str, Any] = {"max_new_tokens": TOKENS, "draft": self.draft}
        first, again = (generate(self.model, self.prompts, method, **options) for _ in range(2))
        return _same(first.nodes[DRAFTED], again.nodes[DRAFTED])

    @cached_property
    def trace(self) -> Trace:
        """Trace of decoding the prompts greedily."""
        return self.generate()

    @cached_property
    def repeats(self) -> bool:
        """Whether a second run with the same prompts and seed gives the same drafts."""
        return _same(self.generate().nodes[DRAFTED], self.trace.nodes[DRAFTED])

    def claims(self, make: Callable[[], Method], temperature: float) -> bool:
        """Whether the method claims to be exact."""
        from specviz.loop.machine import number_format
        from specviz.methods.sampling import Sampling

        return make().exactness(Sampling(temperature), number_format(self.model)) != "lossy"

    @cached_property
    def audit(self) -> AuditResult | None:
        """Audit of the method, or of the setting that it declares exact; None if it declares none."""
        from specviz import audit

        make = self.make
        if not self.claims(make, 0.0):
            make = partial(type(self.method), **(self.method.values | self.method.exact))
            if not self.method.exact or not self.claims(make, 0.0):
                return None
        return audit.run(self.model, self.draft, self.prompts, [make], TOKENS, sampled=2, laws=False, draws=0)

    def bugs(self, of_record: bool) -> list[str]:
        """The audit's findings about the record, or about the text."""
        if self.audit is None:
            return []
        bugs = [difference for _, difference in self.audit.differences if difference.verdict == "bug"]
        return [str(each) for each in bugs if bool(OF_RECORD.match(each.reason)) == of_record]


def check(
    given: Method | type[Method] | str, model: Loadable, draft: Loadable | None,
    prompts: str | Sequence[Prompt] | None,
) -> Conformance:  # fmt: skip
    """See `specviz.check.method`."""
    from specviz import methods, suites
    from specviz.loop.drafters import choose_drafter, load_if_needed

    make = methods.factory(given)
    if make().streams or make().canvas:
        how = "streams" if make().streams else "canvases"
        raise ParameterError(f"check.method needs a method that continues prompts: use audit.{how}")
    if prompts is None:
        prompts = [entry["turns"][0] if "turns" in entry else entry["prompt"]
                   for entry in suites.spread(list(suites.suite("town")), PROMPTS)]  # fmt: skip
        prompts.append(REPEATING)
    target = load_if_needed(model, None, None)
    drafter = choose_drafter(target, make(), draft, None, None)  # loaded once for all checks
    case = Case(make, target, drafter, [prompts] if isinstance(prompts, str) else list(prompts))
    rows = []
    for name, run in CHECKS.items():
        try:
            rows.append(Row(name, PASS, run(case)))
        except Unclaimed as reason:
            rows.append(Row(name, NOT_CLAIMED, str(reason)))
        except Untried as reason:
            rows.append(Row(name, NOT_TRIED, str(reason)))
        except Broken as reason:
            rows.append(Row(name, FAIL, str(reason)))
        except Exception as error:  # a user's method may raise anything
            kind = "" if isinstance(error, SpecvizError) else f"{type(error).__name__}: "
            rows.append(Row(name, FAIL, one_line(f"it raised {kind}{error}", 240)))
    return Conformance(case.method.name, target.name, rows)


# ---------------------------------------------------------------- the checks


def _decodes(case: Case) -> str:
    """Check that the method runs, drafts the same each time, and respects small limits of new tokens."""
    cycles = case.trace.cycles
    for limit in LIMITS:
        outputs = case.generate(max_new_tokens=limit).outputs
        longest = int(outputs[outputs["kept"]].groupby("prompt").size().max())
        if longest > limit:
            raise Broken(f"it wrote {longest} tokens although max_new_tokens was {limit}")
    if not case.repeats:
        raise Broken(
            "the same prompts and seed gave different drafts the second time: draw from "
            "self.session.uniforms(DRAFT, n), and reset the state of the last prompt in start"
        )
    if not case.forgets:
        raise Broken(
            "the same instance drafted the same prompts differently the second time: reset the state of the "
            "last prompt in start, or derive from specviz.methods.memory.Remembering"
        )
    drafted, accepted = int(cycles["drafted"].sum()), int(cycles["accepted"].sum())
    emitted, passes = int(cycles["emitted"].sum()), int((cycles["cycle"] > 0).sum())
    what = f"{len(case.prompts)} prompts, {emitted} tokens in {passes} cycles"
    return f"{what}; {accepted} of {drafted} accepted"


def _text(case: Case) -> str:
    """Check by the text audit that every token is the target's own."""
    if case.audit is None:
        raise Unclaimed("the method declares itself lossy")
    if bugs := case.bugs(False):
        raise Broken(one_line(bugs[0], 240))
    cycles = case.trace.cycles
    if cycles["drafted"].sum() and not cycles["accepted"].sum():
        raise Untried(
            "no drafted token was accepted, so what follows an accepted one was not checked: give prompts "
            "on which the method drafts well (prompts=)"
        )
    tokens = sum(row.tokens for row in case.audit.rows)
    setting = "" if case.claims(case.make, 0.0) else f" with {case.method.exact}"
    sampled = any(row.sampling != "greedy" for row in case.audit.rows)
    how = "greedy and sampled" if sampled else "greedy"
    return f"{tokens} tokens, {how}, are the target's own{setting}"


def _record(case: Case) -> str:
    """Check that the record matches the emitted tokens and reproduces the method's decisions."""
    if bugs := case.bugs(True):
        raise Broken(one_line(bugs[0], 240))
    if case.audit is None and not case.trace.nodes["threshold"].notna().any():
        raise Unclaimed("the method's own lossy rule cannot be recomputed from the record")
    again = case.trace.recheck()
    if wrong := int((~again["agrees"]).sum()):
        raise Broken(f"{wrong} of {len(again)} recorded decisions do not follow from the recorded numbers")
    return f"{len(again)} decisions follow from the recorded numbers"


def _law(case: Case) -> str:
    """Check the distribution of sampled texts, enumerated over a toy vocabulary."""
    from specviz.audit import law

    if case.method.only_greedy:
        raise Unclaimed("the method decodes greedily only")
    if not case.claims(case.make, 1.0):
        raise Unclaimed("the method declares its sampling lossy")
    if not case.repeats:
        raise Unclaimed("drafts that do not repeat have no distribution that can be enumerated")
    try:
        results = law.check(law.enumerable(case.make))
    except law.OutsideVocabulary as reason:
        raise Unclaimed(str(reason)) from None
    worst = max(results, key=lambda result: result.error)
    if not worst.holds:
        off = f"at {worst.sampling} a text's probability is off by {worst.error:.2g}"
        raise Broken(f"{off} {worst.reason}".strip())
    return f"{len(results)} settings enumerated, off by at most {worst.error:.1g}"


def _batch(case: Case) -> str:
    """Check that the rows of a batch write the same as the prompts alone."""
    from specviz.loop.checks import check_batchable

    try:
        check_batchable(case.method, [{}] * len(case.prompts))
    except SpecvizError as reason:
        raise Unclaimed(str(reason)) from None
    texts = zip(case.generate(batch=2).texts, case.trace.texts)
    apart = [prompt for prompt, (text, alone) in enumerate(texts) if text != alone]
    if not apart:
        return f"{len(case.prompts)} prompts write the same text two at a time"
    # Passes of other shapes round differently: the audit distinguishes a near-tie from a mistake.
    if case.model.kind != "diffusion":
        from specviz import audit

        result = audit.batches(
            case.model, case.draft, case.prompts, [case.make], batch=2, max_new_tokens=TOKENS, sampled=0
        )
        if result.holds:
            count = plural(len(apart), "prompt")
            return f"two at a time, {count} of {len(case.prompts)} part from the text alone, by rounding"
    raise Broken(f"prompt {apart[0]} has a different text in a batch of 2 than alone")


def _trace(case: Case) -> str:
    """Check that the trace and its signals survive Parquet, in a folder with another method's trace."""
    from specviz.loop import generate

    with tempfile.TemporaryDirectory() as folder:
        case.trace.save(Path(folder) / "own.parquet")
        generate(case.model, case.prompts[:1], "autoregressive", max_new_tokens=4, out=Path(folder))
        opened = Trace.open(folder).select(run=case.trace.run["run"])
        for name in ("nodes", "outputs", "cycles", "signals"):
            if not _same(getattr(opened, name), getattr(case.trace, name)):
                raise Broken(f"the table of {name} changed when it was written and opened")
        rows = len(opened.cycles)
        opened.redact()
    signals = case.trace.signals
    missing = [s.name for s in case.method.signals if not _given(case.trace, s)]
    if missing:
        raise Broken(f"the method declares the signal {missing[0]!r} but never sets it")
    words = f"; {plural(len(signals), 'signal')}" if len(signals) else ""
    if plain := signals.loc[signals["meaning"] == "", "signal"].tolist():
        words += f", not declared: {', '.join(plain)}"
    return f"{rows} cycles survive Parquet{words}"


def _given(trace: Trace, signal: schema.Signal) -> bool:
    """Whether a declared signal was recorded anywhere; true as well if nothing was drafted."""
    of_cycle = signal.level == "cycle"
    frame, column = (trace.cycles, f"control_{signal.name}") if of_cycle else (trace.nodes, signal.name)
    return not len(trace.nodes) or (column in frame and bool(frame[column].notna().any()))


def _same(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Whether two tables hold the same values, regardless of category codes."""
    if list(one) != list(other) or len(one) != len(other):
        return False
    return all(
        np.array_equal(a, b, equal_nan=True) if a.dtype.kind == "f" else [*map(str, a)] == [*map(str, b)]
        for a, b in ((one[name].to_numpy(), other[name].to_numpy()) for name in one)
    )


def _whatif(case: Case) -> str:
    """Check that a what-if for the run's own setting can be answered from the trace."""
    from specviz.whatifs import whatif
    from specviz.whatifs.answer import RERUN
    from specviz.whatifs.question import METHODS

    method = case.method
    if method.name not in METHODS:
        raise Unclaimed("a what-if cannot replay the method: run it again with another setting")
    questions = whatif(case.trace)
    name = next(iter(METHODS[method.name]))
    answer = getattr(questions, method.name)(**{name: method.values[name]})
    if answer.badge == RERUN:
        raise Unclaimed(answer.why)
    return f"{name}={method.values[name]} is answered as {answer.badge}"


def _player(case: Case) -> str:
    """Check that the player's page can be written, and that its pseudocode labels can be highlighted."""
    try:
        from specviz.widgets import page
    except ImportError:
        raise Unclaimed("the player needs the extra lab") from None

    with tempfile.TemporaryDirectory() as folder:
        file = page.write(case.trace, Path(folder) / "page.html", False)
        size = file.stat().st_size
    own = case.method.pseudocode
    loop = "its own pseudocode" if own else "the general loop, because it declares no pseudocode"
    return f"a page of {size / 1000:.0f} kB, with {loop}{_labels(own, case.trace) if own else ''}"


def _labels(pseudocode: Sequence[tuple[str, str]], trace: Trace) -> str:
    """Describe pseudocode labels that were not highlighted but can be, and phases without a line.

    Raises
    ------
    Broken
        If a label can never be highlighted.
    """
    labels = [when.partition(":")[::2] for when, _ in pseudocode if when]
    stops = set(trace.cycles["stop"].dropna())  # a drafter's own stop reasons
    unlit = []
    for phase, event in labels:
        if phase not in schema.PHASES:
            phases = ", ".join(schema.PHASES)
            raise Broken(
                f"the pseudocode's label {phase!r} is not a phase of the loop: the phases are {phases}"
            )
        if not event or event in {*schema.ORIGINS, *schema.STATUSES, *schema.ENDS, *stops}:
            continue
        if phase != "draft":
            raise Broken(
                f"the pseudocode's label '{phase}:{event}' is never lit: {event!r} is not an origin, status "
                "or end"
            )
        unlit.append(f"'{phase}:{event}'")
    words = f"; no draft here stopped for the label {', '.join(unlit)}" if unlit else ""
    idle = set() if trace.cycles["drafted"].any() else {"draft", "verify"}
    missing = [p for p in schema.PHASES if p not in {phase for phase, _ in labels} | idle]
    return words + (f"; it has no line for {', '.join(missing)}" if missing else "")


CHECKS: dict[str, Callable[[Case], str]] = {
    "decode": _decodes, "text": _text, "record": _record, "sampling law": _law, "batch": _batch,
    "trace": _trace, "what-if": _whatif, "player": _player,
}  # fmt: skip
