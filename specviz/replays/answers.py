"""Summarise the replays of a paper's tables: whether it pays here, which claims hold or fail, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from specviz.errors import plural
from specviz.replays.cells import FAILS, HOLDS, OPEN, PAYS, Verdict
from specviz.replays.replays import Replay

WORDS = {HOLDS: "pays here", FAILS: "does not pay here", OPEN: "cannot be judged here"}
PART = "pays in some cases"  # some claims hold, others fail
NO_CLAIM = "makes no claim about speed that was measured"


@dataclass
class Answer:
    """A paper's result: the verdicts on the claims about its tables.

    Attributes
    ----------
    paper, title : str
    models : list of str
        The models on which its tables were measured.
    pays : str
        ``holds here``, ``fails here`` or ``cannot be judged here``, for the claims that it pays. If tables
        were measured on models of several sizes, the largest decides: a toy's costs are not representative.
    words : str
        The result in words, with the deciding model if the tables were measured on several.
    evidence : (str, Verdict), optional
        A table and the verdict on its claim that best supports the result.
    claims : list of (str, Verdict)
        Every table's name with a verdict on one of its claims.
    """

    paper: str
    title: str
    models: list[str]
    pays: str
    words: str
    evidence: tuple[str, Verdict] | None
    claims: list[tuple[str, Verdict]] = field(default_factory=list)

    def count(self, verdict: str) -> int:
        """Number of claims with this verdict."""
        return sum(each.verdict == verdict for _, each in self.claims)

    @property
    def counts(self) -> str:
        """The number of claims by verdict, in words."""
        return (
            f"{plural(len(self.claims), 'claim')}: {self.count(HOLDS)} hold here, {self.count(FAILS)} fail, "
            f"{self.count(OPEN)} cannot be judged"
        )


def answers(tables: Iterable[Replay]) -> list[Answer]:
    """Summarise each paper, in the order in which the papers first appear in `tables`."""
    papers: dict[str, list[Replay]] = {}
    for each in tables:
        papers.setdefault(each.table.partition("/")[0], []).append(each)
    return [answer(paper, those) for paper, those in papers.items()]


def answer(paper: str, tables: list[Replay]) -> Answer:
    """Summarise one paper's tables."""
    claims = [(each.table, verdict) for each in tables for verdict in each.verdicts]
    models = list(dict.fromkeys(s.model for each in tables for s in each.sources if s.model))
    speed, model = _speed_claims(tables)
    held, failed = ([c for c in speed if c[1].verdict == word] for word in (HOLDS, FAILS))
    pays = FAILS if failed else HOLDS if held else OPEN
    words = PART if held and failed else WORDS[pays] if speed else NO_CLAIM
    words += f", on {model}" * bool(model)
    evidence = next(iter(failed or held or speed), None)
    return Answer(paper, tables[0].title, models, pays, words, evidence, claims)


def _speed_claims(tables: list[Replay]) -> tuple[list[tuple[str, Verdict]], str]:
    """Verdicts on whether the paper's own method beats plain decoding, on the largest models that have any.

    Also returns these models' names, if the tables were measured on others, too. What a name has in
    parentheses, such as the number format, makes no other model.
    """
    every: dict[str, tuple[int, str]] = {}
    by_size: dict[int, list[tuple[str, Verdict]]] = {}
    for each in tables:
        measured = [(source.parameters or 0, source.model) for source in each.sources if source.model]
        for size, model in measured:
            name = model.partition(" (")[0]
            if size > every.get(name, (-1, ""))[0]:
                every[name] = (size, model)
        speed = [(each.table, verdict) for verdict in each.verdicts if verdict.question == PAYS]
        if speed:
            by_size.setdefault(max(measured, default=(0, ""))[0], []).extend(speed)
    if not by_size:
        return [], ""
    largest = max(by_size)
    deciding = [model for size, model in every.values() if size == largest]
    return by_size[largest], " and ".join(deciding) if len(every) > len(deciding) else ""


def reasons(claims: Iterable[tuple[str, Verdict]], verdict: str) -> dict[str, list[tuple[str, Verdict]]]:
    """Group the claims with this verdict by reason."""
    groups: dict[str, list[tuple[str, Verdict]]] = {}
    for table, each in claims:
        if each.verdict == verdict:
            groups.setdefault(each.reason, []).append((table, each))
    return groups
