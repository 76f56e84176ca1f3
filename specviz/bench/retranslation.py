"""Re-translation measured: Tables 2, 3 and 4 of Zeng et al., asked of translators that are at hand.

Every setting decodes the same streams in turns. Quality and acceptance are counts, so one round has them;
only the speed needs a clock. Intervals and comparisons come from drawing the texts anew, the same ones for
both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specviz.bench.report import RESAMPLES, Bar, Estimate, Part, Report
from specviz.bench.runner import closing, paired, quiet_clock, setting, synchroniser
from specviz.bench.translations import references, streams, texts
from specviz.corpus.prefixes import TARGETS
from specviz.errors import ParameterError
from specviz.loop import Run
from specviz.methods import find
from specviz.streams import Stream

METHOD = "retranslate"
BETAS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0)
MASKS = (3, 5)
BETA = 0.2  # the paper's, in Tables 2 and 4
RT, CD, TWICE = "RT", "CD", "two passes"
GOAL = 1.3  # times RT's tokens a second, English to German
SAME = 0.05  # a difference of speed, or of NE, that counts as none
AGE, OLD = 200, 5000  # updates of the streams that show what an update costs late, and what memory grows to
GROWTH, LEAK = 0.05, 8.0  # of an update's cost over AGE updates; MB over OLD updates

# Zeng et al., Flores, Tower+ 2B, Apple M2 Pro. COMET, NE, A/D, A/O, speedup.
TABLE_2 = {
    ("de", RT): (0.877, 1.17, None, None, 1.00), ("de", "β = 0.2"): (0.877, 0.77, 0.790, 0.631, 1.69),
    ("zh", RT): (0.882, 1.72, None, None, 1.00), ("zh", "β = 0.2"): (0.880, 1.01, 0.717, 0.570, 1.48),
    ("ja", RT): (0.912, 2.06, None, None, 1.00), ("ja", "β = 0.2"): (0.911, 1.49, 0.604, 0.485, 1.36),
}  # fmt: skip
# The same of English to Chinese: Table 3, then Table 4.
TABLES_3_4 = {
    RT: (0.882, 1.72, None, None, 1.00), "β = 0": (0.882, 1.53, 0.538, 0.427, 1.28),
    "β = 0.1": (0.881, 1.19, 0.662, 0.526, 1.40), "β = 0.2": (0.880, 1.01, 0.717, 0.570, 1.48),
    "β = 0.3": (0.870, 0.83, 0.773, 0.614, 1.58), "β = 0.4": (0.842, 0.57, 0.850, 0.674, 1.70),
    "β = 0.5": (0.742, 0.0, 1.0, 0.775, 2.10), "β = 1": (0.742, 0.0, 1.0, 0.775, 2.10),
    CD: (0.742, 0.0, 1.0, 0.775, 2.60),
    "mask-3": (0.880, 0.52, 0.806, 0.523, 1.42), "mask-5": (0.881, 0.34, 0.845, 0.472, 1.39),
    "display-3": (0.880, 0.53, 0.717, 0.570, 1.48), "display-5": (0.880, 0.35, 0.717, 0.570, 1.48),
}  # fmt: skip
PUBLISHED = ("their COMET", "their NE", "their A/D", "their A/O", "their speedup")

FIGURES = [
    ("bleu", "BLEU", ""),
    ("ne", "NE", ""),
    ("ad", "A/D", ""),
    ("ao", "A/O", ""),
    ("tps", "tokens/s", "{:,.0f}"),
    ("speedup", "speedup [95%]", ""),
    ("prefilled", "with prefill", ""),
]
THEIRS = [
    ("their NE", "paper: NE", "{:.2f}"),
    ("their A/D", "A/D", "{:.2f}"),
    ("their speedup", "speedup", "{:.2f}"),
]
NOTES = [
    "BLEU: sacrebleu, of the last outputs, against up to eight accepted translations a text. NE: tokens "
    "erased between displayed outputs over tokens of the last one (Arivazhagan et al. 2020). A/D: accepted "
    "over drafted tokens, A/O: over emitted ones; end tokens are emitted, never drafted. tokens/s: of all "
    "updates, the prompt's pass left out, the verification inside, as the paper counts. Intervals: 95 % "
    "bootstrap over texts, paired.",
    "with prefill: speedup when the prompt's pass counts. Continuous decoding computes the keys and values "
    "of what it keeps in that pass: the paper's clock leaves its verification-sized pass out, and β = 1, "
    "with the same text, has it inside.",
    "paper: Tower+ 2B, Apple M2 Pro, Flores; other texts, model and machine: only directions compare.",
]


@dataclass(frozen=True)
class Setting:
    """A way to decode the streams: its name in the tables, and the method's parameters."""

    label: str
    values: Mapping[str, Any]


def settings(betas: Sequence[float] = BETAS, masks: Sequence[int] = MASKS) -> list[Setting]:
    """RT; SSBD at each β; continuous decoding; both masks at each k; Algorithm 1's pass at the divergence.

    Raises
    ------
    ParameterError
        If a β is no probability or a k is negative.
    """
    found = [Setting(RT, {"mode": "rt"})]
    for beta in sorted({*betas, BETA}):
        found.append(Setting(name_of(beta), {"beta": beta}))
    found.append(Setting(CD, {"mode": "cd"}))
    for mask, name in (("draft", "mask"), ("display", "display")):
        found += [Setting(f"{name}-{k}", {"beta": BETA, "k": k, "mask": mask}) for k in masks]
    found.append(Setting(TWICE, {"beta": BETA, "second_pass": True}))
    for each in found:
        find(METHOD)(**each.values)
    return found


def name_of(beta: float) -> str:
    """A β as the tables name it."""
    return f"β = {beta:g}"


class Follow:
    """A run that is advanced one stream at a time and notes what each update took."""

    def __init__(self, run: Run, given: Sequence[Stream], clock: Callable[[], float]) -> None:
        self.run, self.clock, self.model = run, clock, run.model
        self.lengths = [len(list(stream)) for stream in given]
        self.wait = synchroniser(run.model.device)
        self.rows: list[dict[str, Any]] = []

    def __call__(self, number: int) -> list[int]:
        """Decode the next stream; return all that was emitted."""
        left, text, all_of_it = self.lengths[number], [0][:0], [0][:0]
        begin = self.clock()
        for cycle in self.run:
            if cycle.number == 0:
                self.wait()
                now = self.clock()
                counts = dict.fromkeys(("emitted", "drafted", "accepted", "cycles"), 0)
                row = {"prompt": number, "update": cycle.update, "prefill": now - begin, "duration": 0.0}
                row |= counts | {"reused": cycle.reused, "prompt_tokens": cycle.context}
                self.rows.append(row)
                text = []
            else:
                now = self.clock()
                row["duration"] += now - begin
                row["emitted"] += len(cycle.tokens)
                row["drafted"] += len(cycle.status)
                row["accepted"] += sum(status in ("accepted", "unreviewed") for status in cycle.status)
                row["cycles"] += 1
                text += cycle.tokens
                all_of_it += cycle.tokens
            if cycle.end is not None:
                ids = [token for token in text if token not in self.model.eos]
                row["text"] = self.model.decode(ids)
                row["shown_text"] = self.model.decode(ids[: cycle.shown]).rstrip("\ufffd")
                left -= 1
                if not left:
                    return all_of_it
            begin = self.clock()
        raise KeyboardInterrupt  # it was interrupted, and has kept its trace


@dataclass
class Decoded:
    """What a setting did with every text, over all rounds.

    Parameters
    ----------
    sums : dict of str to array
        One entry a text: emitted, drafted, accepted, erased, final (tokens of the last output), seconds,
        prefill (medians over the rounds), and bleu [texts, 10], what its statistics are summed from.
    last : list of str
        Last outputs.
    """

    setting: Setting
    sums: dict[str, np.ndarray] = field(default_factory=dict)
    last: list[str] = field(default_factory=list)

    def of(self, function: Callable[..., Any], *names: str) -> Estimate:
        """A function of sums over the texts."""
        return resampled(function, *(self.sums[name] for name in names))

    def versus(self, other: Decoded, function: Callable[..., Any], *names: str) -> Estimate:
        """A function of this one's sums and then the other's."""
        return resampled(function, *(side.sums[name] for side in (self, other) for name in names))

    def over(self, other: Decoded, prefill: bool = False) -> Estimate:
        """How many times the other's tokens a second."""
        names = ("emitted", "total" if prefill else "seconds")
        return self.versus(other, lambda e, s, f, t: (e / s) / (f / t), *names)

    def more(self, other: Decoded, above: str, below: str) -> Estimate:
        """By how much a ratio of sums is larger than the other's."""
        return self.versus(other, lambda a, b, c, d: ratio(a, b) - ratio(c, d), above, below)


def ratio(above: Any, below: Any) -> Any:
    """A quotient; NaN where there is nothing to divide by."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(np.asarray(below) > 0, above / np.asarray(below, float), np.nan)


def resampled(function: Callable[..., Any], *arrays: np.ndarray) -> Estimate:
    """A function of sums over texts, with its 95 % interval over texts drawn anew.

    The draws are the same at every call, so that two settings of the same texts are resampled together.
    """
    n = len(arrays[0])
    value = float(function(*(a.sum(0) for a in arrays)))
    if n < 3 or value != value:
        return Estimate(value, float("nan"), float("nan"), n)
    drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), RESAMPLES)
    found = np.asarray(function(*(drawn @ a for a in arrays)), float)
    low, high = np.nanquantile(found, (0.025, 0.975)).tolist()
    return Estimate(value, low, high, n)


class Quality:
    """BLEU and chrF of last outputs in one language, and the tokens that erasure is counted in.

    Raises
    ------
    ParameterError
        If sacrebleu is not installed.
    """

    def __init__(self, code: str) -> None:
        try:
            from sacrebleu.metrics.bleu import BLEU
            from sacrebleu.metrics.chrf import CHRF
        except ImportError:
            raise ParameterError(
                "BLEU and erasure need the package sacrebleu: pip install 'specviz-lm[quality]'"
            ) from None
        # ja-mecab needs a dictionary that is not installed with sacrebleu: Japanese goes by characters.
        self.scheme = {"zh": "zh", "ja": "char"}.get(code, "13a")
        self.rated: Any = BLEU(tokenize=self.scheme, effective_order=True)
        self.letters: Any = CHRF()

    def tokens(self, text: str) -> list[str]:
        """A displayed output, tokenised."""
        return self.rated.tokenizer(text).split()

    def statistics(self, said: Sequence[str], right: Sequence[Sequence[str]]) -> np.ndarray:
        """What corpus BLEU is summed from, [texts, 10]: matches, n-grams, both lengths."""
        found = [self.rated.sentence_score(text, known) for text, known in zip(said, right)]
        return np.array([[*s.counts, *s.totals, s.sys_len, s.ref_len] for s in found], float)

    def bleu(self, sums: np.ndarray) -> Any:
        """Corpus BLEU of summed statistics, [..., 10]."""
        def one(s: np.ndarray) -> float:
            numbers = s.round().astype(int).tolist()
            return self.rated.compute_bleu(numbers[:4], numbers[4:8], *numbers[8:]).score

        return np.apply_along_axis(one, -1, sums)

    def chrf(self, said: Sequence[str], right: Sequence[Sequence[str]]) -> float:
        """Corpus chrF."""
        most = max(map(len, right))
        columns = [[known[i] if i < len(known) else None for known in right] for i in range(most)]
        return float(self.letters.corpus_score(list(said), columns).score)


def erased(displayed: Sequence[Sequence[str]]) -> int:
    """Tokens that successive displayed outputs take back: of each, what the next one does not begin with."""
    total = 0
    for before, after in zip(displayed, displayed[1:]):
        same = next((i for i, (a, b) in enumerate(zip(before, after)) if a != b), min(len(before), len(after)))
        total += len(before) - same
    return total


def measure(
    model: Any,
    code: str,
    chosen: Sequence[Setting],
    *,
    number: int = 100,
    rounds: int = 1,
    max_new_tokens: int = 128,
    template: str = "town",
    tick: Callable[[str], None] = lambda label: None,
) -> tuple[dict[str, Decoded], Quality]:
    """Let every setting decode the test streams of a language, text by text in turns."""
    quality = Quality(code)
    made = texts(code, number)
    given, right = streams(made), [references(each) for each in made]
    clock, _ = quiet_clock(model.device)
    shared = {"target_language": TARGETS[code], "template": template}
    frames: dict[str, list[Any]] = {each.label: [] for each in chosen}
    import pandas as pd

    for number_of_round in range(rounds):
        runs: dict[str, Run] = {}
        with closing(runs):
            for each in chosen:
                options = {"max_new_tokens": max_new_tokens, "record": None}
                for _ in Run(model, given[:2], METHOD, **options, **shared, **each.values):  # warm-up
                    pass
                runs[each.label] = Run(model, given, METHOD, **options, **shared, **each.values)
            followed = {label: Follow(run, given, clock) for label, run in runs.items()}
            paired(followed, len(given), model.device, tick, clock)
        for label, each_followed in followed.items():
            frames[label].append(pd.DataFrame(each_followed.rows))
    found = {}
    for each in chosen:
        first, *others = frames[each.label]
        for name in ("duration", "prefill"):
            first[name] = np.median([frame[name] for frame in (first, *others)], axis=0)
        found[each.label] = judged(each, first, quality, right)
    return found, quality


def judged(of: Setting, updates: Any, quality: Quality, right: Sequence[Sequence[str]]) -> Decoded:
    """Sums a text of a table of updates."""
    texts_of = updates.groupby("prompt")
    names = ["emitted", "drafted", "accepted", "duration", "prefill"]
    sums = {name: texts_of[name].sum().to_numpy(float) for name in names}
    sums["seconds"] = sums.pop("duration")
    sums["total"] = sums["seconds"] + sums["prefill"]
    shown = [[quality.tokens(t) for t in texts] for texts in texts_of["shown_text"].agg(list)]
    sums["erased"] = np.array([erased(each) for each in shown], float)
    sums["final"] = np.array([len(each[-1]) for each in shown], float)
    last = texts_of["text"].last().tolist()
    sums["bleu"] = quality.statistics(last, right)
    return Decoded(of, sums, last)


def bench(
    models: Sequence[Any],
    *,
    languages: Sequence[str] = tuple(TARGETS),
    number: int = 100,
    rounds: int = 1,
    betas: Sequence[float] = BETAS,
    masks: Sequence[int] = MASKS,
    max_new_tokens: int = 128,
    template: str = "town",
    age: int = AGE,
    old: int = OLD,
    tick: Callable[[int, int, str], None] = lambda done, of, name: None,
) -> Report:
    """Re-translation, SSBD and continuous decoding on each model and language, greedy.

    Parameters
    ----------
    models : sequence of Model
        Translators.
    languages : sequence of str
        Keys of `specviz.corpus.prefixes.TARGETS`.
    number : int
        Texts a language.
    rounds : int
        How often each text is timed; of an update's times the median counts.
    betas, masks : sequence of float, of int
        SSBD's β and the k of the masks.
    template : str
        The prompt, as ``retranslate`` takes it.
    age, old : int
        Updates of the streams that show what an update costs late, and how memory grows; 0 leaves one out.

    Raises
    ------
    ParameterError
        For an unknown language, a β or k that does not exist, or a model that cannot read the template.
    """
    chosen = settings(betas, masks)
    for code in languages:
        texts(code, 0)
    if not models:
        raise ParameterError("the bench needs a model: pass --model")
    for model in models:
        Run(model, Stream([]), METHOD, template=template).close()
    done, of = 0, len(models) * len(languages) * number * (len(chosen) * rounds + 1)

    def told(label: str) -> None:
        nonlocal done
        done += 1
        tick(done, of, label)

    report = Report(
        "retranslation",
        f"Table 2: re-translation and SSBD, {number} texts a language, three words an update, greedy",
        setting(models[0], [], texts=number, rounds=rounds, languages=list(languages)),
        [("model", "model", ""), ("language", "into", ""), ("method", "method", ""), *FIGURES, *THEIRS],
        [], notes=list(NOTES), spare=SPARE,
    )  # fmt: skip
    report.setting["models"] = [{"name": m.name, "parameters": m.parameters} for m in models]
    report.setting["clock"] = quiet_clock(models[0].device)[1]
    for model in models:
        whole: dict[str, dict[str, Decoded]] = {}
        for code in languages:
            found, quality = measure(
                model, code, chosen, number=number, rounds=rounds, max_new_tokens=max_new_tokens,
                template=template, tick=told,
            )  # fmt: skip
            whole[code] = found
            table(report, model.name, code, found, quality)
            row, updates = verdict(model, code, number, max_new_tokens, template, told)
            report.bars += [
                *bars(f"{model.name}, {code}", code, found, quality, betas, masks),
                audit_bar(f"{model.name}, {code}", row, updates),
            ]
            report.notes += [f"{model.name}, {code}: {difference}" for difference in row.differences[:5]]
        report.bars += order_bars(model.name, whole)
        if age or old:
            report.parts.append(late(report, model, languages[0], age, old, max_new_tokens, template))
    return report


SPARE = ("their speedup", "their A/D", "their NE", "prefilled", "ao", "chrf", "tps")
SWEEP = [("method", "", ""), *FIGURES, ("chrf", "chrF", "{:.1f}"), *THEIRS]


def table(report: Report, model: str, code: str, found: dict[str, Decoded], quality: Quality) -> None:
    """Add a language's rows to Table 2, and its Tables 3 and 4 as parts."""
    rows = {label: row_of(decoded, found[RT], quality) for label, decoded in found.items()}
    main = name_of(BETA)
    for label, name in ((RT, "RT"), (main, "SSBD")):
        theirs = dict(zip(PUBLISHED, TABLE_2.get((code, label), ())))
        report.rows.append({"model": model, "language": code, "method": name} | rows[label] | theirs)
    theirs_of = TABLES_3_4 if code == "zh" else {}
    for label, row in rows.items():
        row |= {"method": label, "model": model, "language": code}
        row |= dict(zip(PUBLISHED, theirs_of.get(label, ())))
    split = {"mask", "display"}
    parts = {
        "Table 3: the bias": [rows[each] for each in rows if each.split("-")[0] not in split and each != TWICE],
        f"Table 4: masks, β = {BETA:g}": [rows[each] for each in rows if each.split("-")[0] in split],
    }
    parts[f"Table 4: masks, β = {BETA:g}"].insert(0, rows[main])
    parts["The pass at the divergence (Algorithm 1, lines 13 to 15)"] = [rows[main], rows[TWICE]]
    for title, lines in parts.items():
        report.parts.append(Part(f"{title}; {model}, English to {TARGETS[code]}", SWEEP, lines, SPARE))


def row_of(decoded: Decoded, base: Decoded, quality: Quality) -> dict[str, Any]:
    """A setting's figures."""
    drafts = decoded.sums["drafted"].any()
    return {
        "bleu": decoded.of(quality.bleu, "bleu"),
        "chrf": quality.chrf(decoded.last, decoded.right),
        "ne": decoded.of(ratio, "erased", "final"),
        "ad": decoded.of(ratio, "accepted", "drafted") if drafts else None,
        "ao": decoded.of(ratio, "accepted", "emitted") if drafts else None,
        "tps": float(ratio(decoded.sums["emitted"].sum(), decoded.sums["seconds"].sum())),
        "speedup": None if decoded is base else decoded.over(base),
        "prefilled": None if decoded is base else decoded.over(base, prefill=True),
    }
