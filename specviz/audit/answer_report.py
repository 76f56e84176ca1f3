"""The results of an audit of another program's answers: one verdict per text, and tests of the set."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from specviz.errors import plural

from .result import Plain, finite

FLOOR = 0.01  # minimum of an envelope, in logits
FOREIGN = 2.0  # its maximum: a larger margin cannot be an honest answer's

OWN, NOISE, OTHER, UNSURE = "the target's own", "within the noise", "not the target's", "cannot tell"
VERDICTS = (OWN, NOISE, OTHER, UNSURE)
CHANCE = 1e-4  # how often a test on the set is wrong
DOUBTFUL = 0.01  # below this a set that passes is not called likely
LEAST_TOKENS = 100  # minimum number of tokens of a set for a likelihood test
FLIPS = 20_000  # number of random flips of a sign-flip test
FLIPPED = 2**20  # maximum number of signs that are held at once
LEAST_TEXTS = 8  # with fewer texts, a sign-flip test cannot find a difference: 2 / 2^7 is above 0.01


@dataclass(frozen=True)
class Envelope:
    """How far below the target's first choice a token of an honest answer may be.

    Parameters
    ----------
    engine : str
        Engine whose answers it applies to; empty: answers that name no engine.
    value : float
        In logits.
    largest : float or None
        Largest margin of the honest answers on which it was measured, ends included; None: it was not
        measured.
    texts, tokens : int
        Numbers of honest answers and of their tokens.
    others : bool
        If `engine` is empty, whether it also applies to all engines that have none of their own.
    stated : bool
        Whether the value is the one that was passed.
    """

    engine: str
    value: float
    largest: float | None = None
    texts: int = 0
    tokens: int = 0
    others: bool = True
    stated: bool = False

    def __str__(self) -> str:
        nameless = "any engine" if self.others else "answers that name no engine"
        whose = f"of {self.engine or nameless}"
        if self.largest is None:
            return f"{self.value:g} logits {whose}, {'given' if self.stated else 'not measured'}"
        return (
            f"{self.value:.3g} logits {whose}: twice the largest margin ({self.largest:.3g}) of {self.texts} "
            f"honest answers with {self.tokens:,} tokens, at least {FLOOR:g} and at most {FOREIGN:g}"
        )


@dataclass(frozen=True)
class TextVerdict:
    """The verdict on one answer.

    Parameters
    ----------
    where : str
        Its line.
    verdict : str
        One of `VERDICTS`.
    reason : str
        One sentence; empty if every token is the target's first choice.
    engine : str
    tokens : int
        Number of tokens read.
    place : int or None
        Index of the first token that is not the target's first choice, or that follows an end token; equal to
        `tokens` for the end of the answer.
    expected, actual : str
        The target's token there (empty: none), and the answer's.
    margin : float or None
        Logit of the first choice minus that of the answer's token there, in float64.
    largest : float or None
        The largest such margin of the answer.
    mean_margin : float or None
        Mean margin of all tokens of a greedy answer.
    """

    where: str
    verdict: str
    reason: str = ""
    engine: str = ""
    tokens: int = 0
    place: int | None = None
    expected: str = ""
    actual: str = ""
    margin: float | None = None
    largest: float | None = None
    mean_margin: float | None = None

    def __str__(self) -> str:
        return f"{self.where}: {self.verdict}" + (f": {self.reason}" if self.reason else "")


@dataclass(frozen=True)
class Likelihood:
    """Whether sampled answers are as likely as the target's own would be, at a stated temperature and top-p.

    Each token's log probability, less its expectation at its place, has mean 0 and a variance that follows
    from the distribution there, whatever tokens precede it. The same holds for the sum over all tokens.

    Parameters
    ----------
    temperature, top_p : float
    top_k : int
    texts, tokens : int
    mean : float
        Mean log probability of the tokens.
    expected : float
        Its expectation.
    z : float
        Difference of the two in standard deviations.
    p : float
        Chance of a difference as large if the answers were drawn with these settings.
    engine : str
    """

    temperature: float
    top_p: float
    top_k: int
    texts: int
    tokens: int
    mean: float
    expected: float
    z: float
    p: float
    engine: str = ""

    @property
    def verdict(self) -> str:
        """The verdict on the set."""
        if self.tokens < LEAST_TOKENS:
            return UNSURE
        return OTHER if self.p < CHANCE else OWN

    def __str__(self) -> str:
        setting = f"temperature {self.temperature:g}, top-p {self.top_p:g}"
        setting += f", top-k {self.top_k}" if self.top_k else ""
        whose = f" of {self.engine}" if self.engine else ""
        many = plural(self.texts, "sampled answer")
        head = f"{many}{whose} ({setting}), {plural(self.tokens, 'token')}: "
        if self.tokens < LEAST_TOKENS:
            return f"{head}{UNSURE}: testing the set needs {LEAST_TOKENS} tokens"
        words = f"mean log probability {self.mean:.3f}, {self.expected:.3f} expected, z = {self.z:+.1f}"
        if self.verdict == OWN:
            if self.p >= DOUBTFUL:
                return f"{head}as likely as the target's own ({words}, p = {self.p:.2g})"
            return (
                f"{head}unusual for the target's own, but not ruled out ({words}, p = {self.p:.2g}; below "
                f"{CHANCE:g} they would count as not the target's): test more answers"
            )
        how = (
            "more likely than this sampling gives: a lower temperature, or greedy"
            if self.z > 0
            else "less likely: a higher temperature, or not the target's own"
        )
        return f"{head}{OTHER}: {how} ({words}, p = {max(self.p, 1e-300):.2g}; by chance 1 set in 10,000)"


@dataclass(frozen=True)
class Sibling:
    """Which of two models, or two templates, a set of greedy answers is nearer to.

    Parameters
    ----------
    name, target : str
    texts : int
    margin, sibling_margin : float
        Mean over texts of the mean margin of their tokens, in logits, under the target and the sibling.
    nearer : int
        Texts with the smaller mean margin under the sibling.
    error : float
        Chance of a difference as large, in either direction, if the two were equally near, from a sign-flip
        test; at least about 1 / `FLIPS`.
    """

    name: str
    target: str
    texts: int
    margin: float
    sibling_margin: float
    nearer: int
    error: float

    @classmethod
    def of(cls, name: str, target: str, margins: Sequence[float], others: Sequence[float]) -> Sibling:
        """Compare the mean margins of each text under the target and the sibling."""
        own, other = np.asarray(margins, np.float64), np.asarray(others, np.float64)
        difference = own - other
        error = 1.0
        if difference.any():
            rng, rows = np.random.default_rng(0), max(1, FLIPPED // len(difference))
            least, as_far = abs(difference.sum()) * (1 - 1e-12), 0
            for start in range(0, FLIPS, rows):
                flips = rng.choice((-1.0, 1.0), (min(rows, FLIPS - start), len(difference)))
                as_far += int((abs(flips @ difference) >= least).sum())
            error = (as_far + 1) / (FLIPS + 1)
        return cls(
            name, target, len(own), float(own.mean()), float(other.mean()), int((difference > 0).sum()), error
        )

    @property
    def like(self) -> str:
        """The name of the nearer one; empty if the two cannot be distinguished."""
        if self.error >= 0.01:
            return ""
        return self.name if self.margin > self.sibling_margin else self.target

    def __str__(self) -> str:
        numbers = (
            f"mean margin {self.margin:.4f} logits under {self.target}, {self.sibling_margin:.4f} under "
            f"{self.name}; {self.nearer} of {self.texts} are nearer to the sibling; p = {self.error:.2g}"
        )
        if not self.like:
            few = f" (the test needs at least {LEAST_TEXTS})" if self.texts < LEAST_TEXTS else ""
            return f"{plural(self.texts, 'answer')} cannot be distinguished{few}: {numbers}"
        rest = self.target if self.like == self.name else self.name
        return f"{self.texts} answers look like {self.like}, not like {rest}: {numbers}"


@dataclass
class AnswersResult:
    """The result of `specviz.audit.answers`.

    Parameters
    ----------
    against : dict of str to str
        What the answers were compared with: ``model``, ``weights``, ``format``, ``computed``, ``template``,
        ``tokenizer``, ``end tokens``, ``defaults``; and ``hint``, if the prompts look misread.
    envelopes : list of Envelope
        Those of engines first, the one for all others last.
    texts : list of TextVerdict
        One per answer, in their order.
    drawn : list of Likelihood
        One per engine and setting of sampled answers.
    sibling : Sibling or None
    """

    against: dict[str, str]
    envelopes: list[Envelope]
    texts: list[TextVerdict]
    drawn: list[Likelihood] = field(default_factory=list)
    sibling: Sibling | None = None

    @property
    def holds(self) -> bool:
        """Whether some answer could be judged, and no text, set or sibling speaks against the answers."""
        verdicts = [each.verdict for each in self.texts] + [each.verdict for each in self.drawn]
        judged = any(verdict != UNSURE for verdict in verdicts)
        return judged and not (
            any(text.verdict == OTHER for text in self.texts)
            or any(each.verdict == OTHER for each in self.drawn)
            or (self.sibling is not None and self.sibling.like == self.sibling.name)
        )

    def count(self, verdict: str) -> int:
        """Number of answers with a verdict."""
        return sum(text.verdict == verdict for text in self.texts)

    @property
    def head(self) -> list[str]:
        """The model and envelopes that the answers were compared with, one per line."""
        lines = [f"{name}: {value}" for name, value in self.against.items()]
        return lines + [f"envelope: {envelope}" for envelope in self.envelopes]

    @property
    def summary(self) -> str:
        """The result in one line."""
        counts = ", ".join(f"{self.count(v)} {v}" for v in VERDICTS if self.count(v))
        tokens = sum(text.tokens for text in self.texts)
        many = plural(len(self.texts), "answer")
        return f"{many}, {tokens:,} tokens, against {self.against['model']}: {counts}"

    def __str__(self) -> str:
        texts = [str(text) for text in self.texts if text.reason]
        more = [str(each) for each in self.drawn] + ([] if self.sibling is None else [str(self.sibling)])
        return "\n".join([*self.head, "", *texts, *more, self.summary])

    def to_json(self) -> str:
        """The whole result as JSON."""
        result: Plain = asdict(self) | {"holds": self.holds, "summary": self.summary}
        for part, plain in zip(self.drawn, result["drawn"]):
            plain["verdict"] = part.verdict
        if self.sibling is not None:
            result["sibling"]["like"] = self.sibling.like
        return json.dumps(finite(result), ensure_ascii=False, allow_nan=False)
