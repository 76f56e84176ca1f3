"""Measure re-translation on our translators: Tables 2 to 4 of Zeng et al., and the paper's claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from specviz import audit, metrics
from specviz.measure.claims import Quality, ratio, resampled
from specviz.measure.report import Estimate, Part, Report
from specviz.measure.retranslation import METHOD, RT, Decoded, Setting, measure
from specviz.measure.timing import quiet_clock, setting
from specviz.methods import find
from specviz.models.template import Template
from specviz.replays.translations import TARGETS, bundled, streams, texts

from . import late, printed
from .claims import Claim, bars_of

MODELS = ("town-translator", "town-translator-prefix")  # defaults
BETAS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0)
MASKS = (3, 5)
BETA = 0.2  # the paper's in Tables 2 and 4
CD, TWICE = "CD", "two passes"
GOAL = 1.3  # speedup over RT, English to German
SAME = 0.05  # differences of NE up to this count as none

PUBLISHED = ("paper_comet", "paper_ne", "paper_ad", "paper_ao", "paper_speedup")

FIGURES = [
    ("bleu", "BLEU", "{:.1f}"),
    ("chrf", "chrF", "{:.1f}"),
    ("ne", "NE [95%]", ""),
    ("ad", "A/D [95%]", ""),
    ("ao", "A/O", "{:.3f}"),
    ("al", "AL", "{:.1f}"),
    ("tps", "tokens/s", "{:,.0f}"),
    ("speedup", "speedup [95%]", ""),
    ("prefilled", "with prefill", ""),
    ("paper_ne", "paper: NE", "{:.2f}"),
    ("paper_ad", "A/D", "{:.2f}"),
    ("paper_speedup", "speedup", "{:.2f}"),
]
DROP_ORDER = ("paper_ad", "paper_speedup", "paper_ne", "prefilled", "chrf", "al", "ao", "tps")
NOTES = [
    "BLEU, chrF: sacrebleu, of the last outputs, against up to eight accepted translations a text. NE: "
    "tokens taken back between displayed outputs over tokens of the last ones. A/D: accepted over drafted "
    "tokens; continuous decoding accepts all of its draft, unread. A/O: over emitted tokens, ends among "
    "them. AL: average lagging of the display, in words. tokens/s: emitted by all updates, the verification "
    "pass inside, the prompt's outside, as the paper counts; speedup: over RT's on the same texts. "
    "Intervals: 95 % bootstrap over texts, both sides of a comparison drawn together.",
    "with prefill: the same speedup with the prompt's pass inside. Continuous decoding needs keys and values "
    "of what it keeps, and computes them in that pass: the paper's clock leaves that out, while β = 1, which "
    "writes the same text, has its verification pass inside.",
    "paper: Tower+ 2B on Flores, Apple M2 Pro: other texts, model and machine; only directions compare.",
]


def settings(betas: Sequence[float] = BETAS, masks: Sequence[int] = MASKS) -> list[Setting]:
    """List the settings: RT, SSBD at each β, continuous decoding, both masks at each k, and Algorithm 1.

    Raises
    ------
    ParameterError
        If a β is not a probability or a k is negative.
    """
    found = [Setting(RT, {"mode": "rt"})]
    found += [Setting(label(beta), {"beta": beta}) for beta in sorted({*betas, 0.0, BETA, 0.5})]
    found.append(Setting(CD, {"mode": "cd"}))
    for mask, name in (("draft", "mask"), ("display", "display")):
        found += [Setting(f"{name}-{k}", {"beta": BETA, "k": k, "mask": mask}) for k in masks]
    found.append(Setting(TWICE, {"beta": BETA, "second_pass": True}))
    for each in found:
        find(METHOD)(**each.values)
    return found


def label(beta: float) -> str:
    """Return the label of a β in the tables."""
    return f"β = {beta:g}"


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
    age: int = late.AGE,
    old: int = late.OLD,
    tick: Callable[[int, int, str], None] = lambda done, of, name: None,
) -> Report:
    """Compare re-translation, SSBD and continuous decoding, greedy, on each model and language.

    Parameters
    ----------
    models : sequence of Model
        Translators.
    languages : sequence of str
        Keys of `specviz.replays.translations.TARGETS`.
    number : int
        Texts per language.
    rounds : int
        How often each text is timed.
    betas, masks : sequence of float, of int
        SSBD's β and the masks' k; β = 0, 0.2 and 0.5 are always included.
    template : str
        Prompt template, as for ``retranslate``.
    age, old : int
        Updates of the streams that measure the cost of late updates and the growth of memory; 0 omits one.

    Raises
    ------
    ParameterError
        For an unknown language, an invalid β or k, or a model that cannot read the template.
    """
    chosen = settings(betas, masks)
    metrics.tokenizer({})  # fails early without sacrebleu
    for code in languages:
        texts(code, 0)
    for model in models:
        Template(model, *find(METHOD)(template=template).wording())
    done = 0
    of = len(models) * (len(languages) * (number * len(chosen) * rounds + number) + bool(age) + bool(old))

    def advance(name: str) -> None:
        nonlocal done
        done += 1
        tick(done, of, name)

    parts: list[Part] = []
    notes = list(NOTES)
    claims: list[Claim] = []
    for model in models:
        whole: dict[str, dict[str, Decoded]] = {}
        second: list[dict[str, Any]] = []
        first = len(parts)
        for code in languages:
            found, quality = measure(
                model, bundled(code, number), chosen, rounds=rounds, max_new_tokens=max_new_tokens,
                template=template, tick=advance,
            )  # fmt: skip
            whole[code] = found
            where = f"{model.name}, {code}"
            rows = rows_of(found, quality, code)
            second += table_2(rows, code)
            parts += tables(rows, f"{model.name}, English to {TARGETS[code]}")
            if code != "xx":  # the paper has no claims on Control, a language for word order only
                claims += claims_of(where, code, found, quality)
            result = audit.streams(
                model, streams(texts(code, number)),
                [lambda code=code: find(METHOD)(beta=0.0, target_language=TARGETS[code], template=template)],
                max_new_tokens, sampled=0, laws=False, progress=lambda *_: None,
            )  # fmt: skip
            row = result.rows[0]
            claims.append(Claim("β = 0 is RT: updates that are not, or too many near-ties",
                                where, 0.0 if row.holds else max(row.bug, 1), 0, "at most"))  # fmt: skip
            notes.append(f"{where}, audit of β = 0: {result.summary}")
            notes += [f"{where}: {difference}" for difference in row.differences[:5]]
            for _ in range(number):
                advance("audit")
        title = f"Table 2: {model.name}, {number} texts a language, three words an update, greedy"
        parts.insert(
            first, Part(title, [("language", "into", ""), ("method", "", ""), *FIGURES], second, DROP_ORDER)
        )
        claims += orders(model.name, whole)
        if age or old:
            part, more = late.part(model, languages[0], age, old, max_new_tokens, template, advance)
            parts.append(part)
            claims += [Claim(*each) for each in more]
    about = setting(models[0], [], texts=number, rounds=rounds, languages=list(languages))
    about["models"] = [{"name": model.name, "parameters": model.parameters} for model in models]
    about["clock"] = quiet_clock(models[0].device)[1]
    notes.append(f"Time: {about['clock']}, recording off.")
    head, *rest = parts
    return Report("retranslation", head.title, about, head.columns, head.rows, bars_of(claims), notes,
                  head.dropped, rest)  # fmt: skip


def rows_of(found: dict[str, Decoded], quality: Quality, code: str) -> dict[str, dict[str, Any]]:
    """Return the figures of every setting, and the printed ones if Tables 3 and 4 cover this language."""
    rows = {}
    for name, decoded in found.items():
        sums = decoded.sums
        drafts, base = sums["drafted"].any(), name == RT
        bleu = decoded.of(quality.bleu, "bleu")
        kept = decoded.of(ratio, "accepted", "emitted") if drafts else None
        rows[name] = {
            "language": code,
            "method": name,
            "bleu": bleu.median,
            "bleu_interval": bleu,
            "chrf": decoded.chrf,
            "ne": decoded.of(ratio, "erased", "final"),
            "ad": decoded.of(ratio, "accepted", "drafted") if drafts else None,
            "ao": None if kept is None else kept.median,
            "ao_interval": kept,
            "al": decoded.of(ratio, "lag", "texts").median,
            "tps": float(sums["emitted"].sum() / sums["seconds"].sum()),
            "speedup": None if base else decoded.over(found[RT]),
            "prefilled": None if base else decoded.over(found[RT], prefill=True),
        }
        if code == "zh":
            rows[name] |= dict(zip(PUBLISHED, printed.setting(name)))
    return rows


def table_2(rows: dict[str, dict[str, Any]], code: str) -> list[dict[str, Any]]:
    """Return the two rows of Table 2 for a language."""
    return [
        rows[name] | {"method": said} | dict(zip(PUBLISHED, printed.pair(code, name)))
        for name, said in ((RT, RT), (label(BETA), "SSBD"))
    ]


def tables(rows: dict[str, dict[str, Any]], what: str) -> list[Part]:
    """Return Tables 3 and 4 for a model and a language."""
    columns, main = [("method", "", ""), *FIGURES], rows[label(BETA)]
    masked = [row for name, row in rows.items() if name.startswith(("mask-", "display-"))]
    swept = [row for name, row in rows.items() if row not in masked and name != TWICE]
    return [
        Part(f"Table 3: the bias; {what}", columns, swept, DROP_ORDER),
        Part(f"Table 4: masks, and two passes where a draft ends (Algorithm 1), β = {BETA:g}; {what}",
             columns, [main, *masked, rows[TWICE]], DROP_ORDER),
    ]  # fmt: skip


def gain(one: Decoded, other: Decoded, above: str, below: str) -> Estimate:
    """How much larger a ratio of sums is than the other's."""
    sums = (side.sums[name] for side in (one, other) for name in (above, below))
    return resampled(lambda a, b, c, d: ratio(a, b) - ratio(c, d), *sums)


def claims_of(where: str, code: str, found: dict[str, Decoded], quality: Quality) -> list[Claim]:
    """List the claims about a model and a language; a difference must hold over its whole interval."""
    rt, main, cd = found[RT], found[label(BETA)], found[CD]
    swept = sorted((d for d in found.values() if set(d.setting.values) == {"beta"}),
                   key=lambda d: d.setting.values["beta"])  # fmt: skip
    rising = [d for d in swept if d.setting.values["beta"] <= 0.5]
    claims = []

    def more(name: str, estimate: Estimate, limit: float = 0.0) -> None:
        claims.append(Claim(name, where, estimate.low, limit, "more than", estimate))

    if code == "de":
        speed = main.over(rt)
        claims.append(Claim(f"β = {BETA:g} over RT, tokens/s, English to German",
                            where, speed.median, GOAL, "at least", speed))  # fmt: skip
    zero, half = rising[0], rising[-1]
    more("A/D at β = 0.5 above that at 0", gain(half, zero, "accepted", "drafted"))
    more("NE at β = 0 above that at 0.5", gain(zero, half, "erased", "final"))
    back = [(gain(b, a, "accepted", "drafted").high, -gain(b, a, "erased", "final").low)
            for a, b in pairwise(rising)]  # fmt: skip
    claims.append(Claim("A/D never falls, NE never rises from one β to the next, up to 0.5: steps that do",
                        where, float(sum(min(step) < 0 for step in back)), 0, "at most"))  # fmt: skip
    least = min(d.of(ratio, "accepted", "drafted").median for d in swept if d.setting.values["beta"] >= 0.5)
    claims.append(Claim("β ≥ 0.5 accepts every draft token: A/D", where, least, 1, "at least"))
    fastest = max((d for d in found.values() if d is not cd), key=lambda d: d.over(rt).median)
    more("continuous decoding over the fastest other, tokens/s", cd.over(fastest), 1.0)
    better = resampled(
        lambda a, b: quality.bleu(a) - quality.bleu(b), *(each.sums["bleu"] for each in (main, half))
    )
    more(f"BLEU at β = {BETA:g} above that at 0.5", better)
    for name, decoded in found.items():
        kind, _, k = name.partition("-")
        if kind == "mask":
            more("mask-k lowers A/O: by", gain(main, decoded, "accepted", "emitted"))
        elif kind == "display":
            same = max(abs(gain(decoded, main, "accepted", "drafted").median),
                       abs(gain(decoded, main, "accepted", "emitted").median))  # fmt: skip
            claims.append(Claim("display-only mask-k leaves A/D and A/O: apart", where, same, 0, "at most"))
            speed = decoded.over(main)
            off = max(0.0, speed.low - 1, 1 - speed.high)
            claims.append(Claim("display-only mask-k leaves the speed: 1 is outside its interval by",
                                where, off, 0, "at most", speed))  # fmt: skip
            other = gain(decoded, found[f"mask-{k}"], "erased", "final")
            claims.append(Claim("display-only mask-k has mask-k's NE: apart",
                                where, abs(other.median), SAME, "at most", other))  # fmt: skip
            more("display-only mask-k lowers NE: by", gain(main, decoded, "erased", "final"))
    return claims


def orders(where: str, whole: dict[str, dict[str, Decoded]]) -> list[Claim]:
    """List the claims across languages: a word order closer to English means fewer erasures and more kept."""
    claims = []
    for near, far in (("xx", "de"), ("de", "ja")):
        if near in whole and far in whole:
            a, b = whole[near][label(BETA)], whole[far][label(BETA)]
            for name, found in (("NE", gain(b, a, "erased", "final")),
                                ("A/D", gain(a, b, "accepted", "drafted"))):  # fmt: skip
                sides = (far, near) if name == "NE" else (near, far)
                said = f"{name} into {TARGETS[sides[0]]} above that into {TARGETS[sides[1]]}"
                claims.append(Claim(said, where, found.low, 0, "more than", found))
    return claims
