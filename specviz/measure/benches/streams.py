"""Re-translation of texts that arrive a few words at a time, over SSBD's bias and masks.

Zeng et al., Tables 2 to 4, for any translator: each setting decodes the same streams, text by text in turns.
There are no human translations, so the reference is the last output of re-translation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np

from specviz import audit, streams
from specviz.errors import ParameterError, PromptError, plural
from specviz.measure.claims import ratio
from specviz.measure.report import Bar, Report, Row, Tick
from specviz.measure.retranslation import METHOD, RT, Decoded, Setting, measure
from specviz.measure.retranslation import Sources as Given
from specviz.measure.timing import counter, setting
from specviz.methods import find
from specviz.metrics.tokens import words as words_of
from specviz.models.protocols import Model
from specviz.paths import folder

SENTENCES = folder("suites") / "sentences.txt"  # written for this package
BETAS = (0.0, 0.1, 0.2, 0.3, 0.5)
MASKS = (3, 5)
BETA = 0.2  # the paper's bias, to which the bars apply
COLUMNS = [
    ("setting", "setting", ""), ("passes", "passes", "{:,.0f}"), ("tau", "tokens per pass", "{:.2f}"),
    ("ad", "A/D", "{:.3f}"), ("ne", "NE [95%]", ""), ("bleu", "BLEU", "{:.1f}"), ("chrf", "chrF", "{:.1f}"),
    ("same", "same text", ""), ("kept", "prompt kept", "{:.0%}"), ("speed", "tokens/s", "{:,.0f}"),
    ("speedup", "over RT [95%]", ""),
    ("prefilled", "with prefill [95%]", ""),
]  # fmt: skip
DROP_ORDER = ("chrf", "passes", "same", "kept", "prefilled")
NOTES = [
    "NE: tokens erased between displayed outputs, divided by tokens of the final outputs. BLEU and chrF: of "
    "the final outputs against those of RT, so that RT has 100; same text: how many of them are equal. "
    "tokens/s: all emitted tokens, including the verification pass but not the prompt's (encoder's) pass, "
    "as the paper counts; with prefill: including it. Intervals: 95 % bootstrap over texts.",
    "prompt kept: share of the updates' prompt tokens whose keys and values were kept from the previous "
    "update. A causal model keeps the prompt up to the first word that changed (Table 5's note); an "
    "encoder-decoder encodes it again.",
    "mask-k removes the last k tokens from both the draft and the display; display-k only hides them. β = 0 "
    "is exact.",
]


def bench(
    model: Model,
    *,
    text: Annotated[Path | None, "A text file with one text per line. Default: bundled."] = None,
    words: Annotated[int, "Words per update."] = 1,
    language: Annotated[
        str, "The output language, as named in the prompt; it also chooses the tokenizer that counts."
    ] = "German",
    number: Annotated[int, "Texts."] = 30,
    max_new_tokens: Annotated[int, "Maximum number of tokens per update."] = 96,
    rounds: Annotated[int, "Number of rounds over all texts."] = 3,
    betas: Annotated[Sequence[float] | None, "Values of the bias, such as 0,0.2."] = None,
    template: Annotated[
        str | None, "The prompt template, as for retranslate. Default: the model's own."
    ] = None,
    tick: Tick = lambda done, of, name: None,
) -> Report:
    """Measure re-translation from scratch, and SSBD at each bias and with each mask; greedy.

    Parameters
    ----------
    model : Model
        A translator: causal or an encoder-decoder.
    text : Path, optional
        UTF-8, one line per text. Default: thirty sentences that come with the package.
    words : int
        Words per update.
    language : str
        Output language, as the model's prompt names it. A translator of one language pair needs none in its
        prompt, but it also chooses the tokenizer of NE and BLEU (`specviz.metrics.tokenizer`).
    number, max_new_tokens, rounds : int
    betas : sequence of float, optional
        Biases; 0 and 0.2 are always added. Default: `BETAS`.
    template : str, optional
        The prompt template, as for ``retranslate``.

    Returns
    -------
    Report
        Bars of SSBD against RT: at β = 0 the updates that differ and are not ties (by the audit); at β = 0.2
        tokens/s, the remaining share of NE, and BLEU of the last outputs.

    Raises
    ------
    ParameterError
        If a bias is not a probability, or the model cannot read the prompt.
    PromptError
        If the file cannot be read or has too few lines.
    """
    given = streams.from_file(text or SENTENCES, words)
    if len(given) < number:
        raise PromptError(f"{text or SENTENCES} has {len(given)} texts, but {number} were requested")
    given = given[:number]
    chosen = settings(BETAS if betas is None else betas)
    count = counter(tick, rounds * number * len(chosen) + sum(len(list(stream)) for stream in given))
    decoded, quality = measure(
        model, Given(language, given), chosen, rounds=rounds, max_new_tokens=max_new_tokens,
        template=template, tick=count,
    )  # fmt: skip
    base = decoded[RT]
    rows: list[Row] = []
    for each in chosen:
        mine = decoded[each.label]
        sums, drafts = mine.sums, mine.sums["drafted"].any()
        rows.append({
            "setting": each.label,
            "passes": float(sums["passes"].sum()),
            "tau": float(sums["emitted"].sum() / sums["passes"].sum()),
            "ad": mine.of(ratio, "accepted", "drafted").median if drafts else None,
            "ne": mine.of(ratio, "erased", "final"),
            "bleu": mine.of(quality.bleu, "bleu").median,
            "chrf": mine.chrf,
            "same": f"{sum(a == b for a, b in zip(mine.texts, base.texts))} of {number}",
            "kept": mine.of(ratio, "reused", "read").median,
            "speed": float(sums["emitted"].sum() / sums["seconds"].sum()),
            "speedup": None if mine is base else mine.over(base),
            "prefilled": None if mine is base else mine.over(base, prefill=True),
        })  # fmt: skip
    exact = {"beta": 0.0, "target_language": language} | ({} if template is None else {"template": template})
    result = audit.streams(
        model, given, [lambda: find(METHOD)(**exact)], max_new_tokens, sampled=0, laws=False,
        progress=lambda *_: count("audit"),
    )  # fmt: skip
    about = setting(model, [], texts=number, words=words, rounds=rounds, max_new_tokens=max_new_tokens)
    about["source"] = Path(text).name if text else "the package's thirty sentences"
    notes = [*NOTES, f"Audit of β = 0: {result.summary}"]
    spaced, counted = (sum(len(cut(each)) for each in base.texts) for cut in (str.split, words_of))
    if quality.tokenize == "13a" and counted > 2 * spaced:
        notes.append(
            f"The outputs have few spaces, but NE and BLEU cut them into words as in {language}: "
            "name their language with --language."
        )
    title = f"Re-translation, {plural(words, 'word')} an update, {number} texts, greedy"
    kept = bars(decoded, base, quality.bleu, result.rows[0].bug)
    return Report("streams", title, about, COLUMNS, rows, kept, notes, DROP_ORDER)


def settings(betas: Sequence[float]) -> list[Setting]:
    """RT, SSBD at each bias, and both masks at each k."""
    try:
        values = sorted({*map(float, betas), 0.0, BETA})
    except ValueError:
        raise ParameterError(f"betas must be numbers from 0 to 1, got {', '.join(map(str, betas))}") from None
    made = [Setting(RT, {"mode": "rt"}), *(Setting(f"β = {beta:g}", {"beta": beta}) for beta in values)]
    for mask, name in (("draft", "mask"), ("display", "display")):
        made += [Setting(f"β = {BETA:g}, {name}-{k}", {"beta": BETA, "k": k, "mask": mask}) for k in MASKS]
    for each in made:
        find(METHOD)(**each.values)
    if len({each.label for each in made}) < len(made):
        raise ParameterError(f"two betas are the same to six digits (0 and {BETA:g} are always measured)")
    return made


def bars(
    decoded: dict[str, Decoded], base: Decoded, bleu: Callable[[np.ndarray], np.ndarray], bugs: int
) -> list[Bar]:
    """The bars of the bench."""
    biased = decoded[f"β = {BETA:g}"]
    erased = [float(ratio(*(each.sums[n].sum() for n in ("erased", "final")))) for each in (biased, base)]
    return [
        Bar("β = 0: updates that differ from RT's and are not ties", float(bugs), 0.0, "at most"),
        Bar("β = 0.2: tokens/s relative to RT", biased.over(base).median, 2.3, goal=3.5),
        Bar(
            "β = 0.2: NE relative to RT",
            erased[0] / erased[1] if erased[1] else 0.0,
            0.5,
            "at most",
            goal=0.3,
        ),
        Bar("β = 0.2: BLEU against RT's final texts", biased.of(bleu, "bleu").median, 90.0, goal=95.0),
    ]
