"""Recipes: what to run here for a paper's table, so that what is measured can stand beside what was printed.

A recipe is data: which rows of the table are which method with which parameters, which of its columns are
which prompts, and which of our figures answers to its metric. `specviz.replays.sources` runs them,
`specviz.replays.replays` compares. Tables that nothing here can answer are in `SETTINGS`, each with
its reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Where = Mapping[str, Any]  # columns of a published table and a value, or several, of each


@dataclass(frozen=True)
class Row:
    """A contender.

    Parameters
    ----------
    where : mapping
        Which rows of the published table it answers to.
    method : str
        Ours.
    values : mapping
        Its parameters. ``BEST`` stands for the draft size that calibration finds here, ``Best(f)`` for that
        times `f`.
    role : str, optional
        Of its drafter, a key of `Recipe.drafts`.
    plan : mapping
        What else of the run differs: ``dtype``, ``temperature``, ``context``.
    """

    where: Where
    method: str
    values: Where = field(default_factory=dict)
    role: str | None = None
    plan: Where = field(default_factory=dict)


@dataclass(frozen=True)
class Best:
    """A share of the calibrated draft size."""

    times: float = 1.0


BEST = Best()


@dataclass(frozen=True)
class Recipe:
    """What to run for a table.

    Parameters
    ----------
    source : str
        Who measures: a key of `specviz.replays.sources.SOURCES`.
    compare : tuple of str
        The columns whose values are contenders: within all others every two of them are compared.
    rows : tuple of Row
    parts : mapping
        Column: its values, and the prompts that each stands for (``kind``, ``language``).
    metrics : mapping
        The paper's metric: ours.
    total : (column, value), optional
        The value that is the mean of the column's others.
    model : str
        Of the bundled ones.
    drafts : mapping
        Role: bundled drafter.
    suite : str
        Of the bundled ones.
    options : mapping
        What else the source must know.
    quick, whole : mapping
        ``prompts`` and ``max_new_tokens``, in haste and otherwise.
    absent : tuple of (Where, reason)
        Rows that nothing here can produce.
    differs : tuple of (what, paper's, ours)
        What of the set-up is another one, besides model, device and precision.
    precision : str
        The paper's number format, where it says.
    data : str
        The paper's prompts.
    caption : str
        Of a figure whose values are not printed.
    """

    source: str
    compare: tuple[str, ...]
    rows: tuple[Row, ...] = ()
    parts: Mapping[str, Mapping[str, Where]] = field(default_factory=dict)
    metrics: Where = field(default_factory=dict)
    total: tuple[str, str] | None = None
    model: str = "town"
    drafts: Mapping[str, str] = field(default_factory=dict)
    suite: str = "multi-town"
    options: Where = field(default_factory=dict)
    quick: Where = field(default_factory=lambda: {"prompts": 14, "max_new_tokens": 48})
    whole: Where = field(default_factory=lambda: {"prompts": 70, "max_new_tokens": 128})
    absent: tuple[tuple[Where, str], ...] = ()
    differs: tuple[tuple[str, str, str], ...] = ()
    precision: str = "not said"
    data: str = ""
    caption: str = ""


# ---------------------------------------------------------------- UniSpec

TASKS: dict[str, Where] = {
    "MT": {"kind": "conversation"}, "Trans": {"kind": "translation"}, "Sum": {"kind": "summarization"},
    "QA": {"kind": "qa"}, "Math": {"kind": "arithmetic"}, "RAG": {"kind": "rag"}, "Code": {"kind": "code"},
}  # fmt: skip
LANGUAGES: dict[str, Where] = {
    name: {"language": name.lower()} for name in ("DE", "ES", "FR", "JA", "VI", "ZH")
}
THREE: dict[str, Where] = {name: {"language": name.lower()} for name in ("EN", "JA", "DE")}
TWO: dict[str, Where] = {"MT Bench": {"kind": "conversation"}, "Code": {"kind": "code"}}
SPEED: Where = {"speedup": "request_speedup", "tau": "tau", "throughput": "request_throughput"}
FIXED = 80  # nodes of a tree that nobody calibrated: Token Recycling's
WINDOW = 110  # the g* around which Table 13 moves

TWO_GPUS = (
    "a replay runs in one process; on two GPUs: torchrun --nproc-per-node 2 -m specviz calibrate unispec "
    "--model MODEL --tp-plan auto, then torchrun --nproc-per-node 2 -m specviz bench run PLAN, where the "
    "model has tp_plan = 'auto' and unispec draft_size = 'calibrated' (tested on the CPU, never run on "
    "two GPUs)"
)

UNISPEC = {"draft_size": BEST}
FIVE = {
    "PLD": Row({"method": "PLD"}, "prompt_lookup"),
    "Lookahead": Row({"method": "Lookahead"}, "lookahead"),
    "SPECTRA": Row({"method": "SPECTRA"}, "spectra"),
    "TokenRec.": Row({"method": "TokenRec."}, "token_recycling"),
    "UNISPEC (ours)": Row({"method": "UNISPEC (ours)"}, "unispec", UNISPEC),
}
EAGLES = {
    "EAGLE-1": Row({"method": "EAGLE-1"}, "eagle", {"tree": "static"}, "eagle"),
    "EAGLE-2": Row({"method": "EAGLE-2"}, "eagle", {"tree": "dynamic"}, "eagle"),
    "EAGLE-3": Row({"method": "EAGLE-3"}, "eagle", {"tree": "dynamic"}, "eagle3"),
}
HEADS = {"eagle": "town-eagle-en", "eagle3": "town-eagle3-en"}

SPEEDUP = (
    "speedup", "not said; Spec-Bench's, which it uses, is the ratio of two mean throughputs",
    "Spec-Bench's: mean over prompts of tokens/s over the same of autoregressive decoding, prefill inside",
)  # fmt: skip
THROUGHPUT = ("throughput", "not said", "mean over prompts of tokens/s, prefill inside")
TAU = ("tau", "Spec-Bench's: tokens a cycle", "tokens a cycle, the bonus token counted, all cycles pooled")
BASELINES = (
    "baselines", "SPECTRA with a datastore, Lookahead and Token Recycling as their makers set them",
    "SPECTRA without a datastore of texts; parameters are our defaults",
)  # fmt: skip
SPEC_BENCH = "Spec-Bench and code of HumanEval, 1024 new tokens at most"


def few(prompts: int, max_new_tokens: int = 48) -> Where:
    """Numbers in haste; six texts of a part are the least that can make a comparison within it clear."""
    return {"prompts": prompts, "max_new_tokens": max_new_tokens}


def unispec(compare: str | tuple[str, ...], rows: tuple[Row, ...], **more: Any) -> Recipe:
    """A recipe of UniSpec's paper."""
    given: dict[str, Any] = {
        "parts": {"task": TASKS}, "metrics": SPEED, "total": ("task", "AVG"), "precision": "float16",
        "data": SPEC_BENCH, "differs": (SPEEDUP, TAU), "suite": "town", "quick": few(4 * len(TASKS)),
    }  # fmt: skip
    names = (compare,) if isinstance(compare, str) else compare
    return Recipe(more.pop("source", "run"), names, rows, **(given | more))


def tempered(temperature: float) -> tuple[Row, ...]:
    """Table 6's contenders at a temperature."""
    named = {
        "Lookahead": "Lookahead",
        "SPECTRA": "SPECTRA",
        "TokenRec.": "TokenRec.",
        "Ours": "UNISPEC (ours)",
    }
    return tuple(
        Row({"method": theirs, "temperature": temperature}, FIVE[ours].method, FIVE[ours].values,
            plan={"temperature": temperature})
        for theirs, ours in named.items()
    )  # fmt: skip


def precise(name: str, dtype: str) -> tuple[Row, ...]:
    """Table 10's contenders in a number format."""
    plan = {"dtype": dtype}
    return (
        Row({"precision": name, "method": "Autoregressive"}, "autoregressive", plan=plan),
        Row({"precision": name, "method": "UNISPEC"}, "unispec", UNISPEC, plan=plan),
    )


ONE_TREE = Row({}, "unispec", UNISPEC)
RECIPES: dict[str, Recipe] = {
    "unispec/table1": unispec(
        "method", tuple(FIVE.values()), differs=(SPEEDUP, TAU, BASELINES), quick=few(6 * len(TASKS))
    ),
    "unispec/table2": unispec(
        "method",
        (
            FIVE["SPECTRA"], FIVE["TokenRec."], FIVE["UNISPEC (ours)"],
            Row({"method": "w/o device-aware calibration"}, "unispec", {"draft_size": FIXED}),
            Row({"method": "w/o score estimation"}, "unispec", {"draft_size": BEST, "scores": False}),
            Row({"method": "w/o tree expansion mechanism"}, "unispec",
                {"draft_size": BEST, "neighbours": False, "threshold": 0.0}),
        ),
        parts={"task": TWO}, total=None, quick=few(7 * len(TWO)),
        differs=(SPEEDUP, TAU, BASELINES,
                 ("without calibration", "a fixed size that is not named", f"{FIXED}, Token Recycling's")),
    ),
    "unispec/table3": unispec(
        "method", (EAGLES["EAGLE-2"], EAGLES["EAGLE-3"], FIVE["UNISPEC (ours)"]),
        parts={"language": THREE}, total=None, drafts=HEADS, suite="multi-town",
        quick=few(7 * len(THREE)), data="MT-bench in three languages",
        differs=(SPEEDUP, TAU,
                 ("EAGLE's heads", "the published ones, trained on ShareGPT, mostly English",
                  "bundled ones, trained on this package's English texts alone; draft size 24")),
    ),
    "unispec/table5": unispec(
        "method", tuple(FIVE.values()), parts={"language": LANGUAGES}, total=("language", "AVG"),
        suite="multi-town", data="Multi-SpecBench", differs=(SPEEDUP, TAU, BASELINES),
        quick=few(6 * len(LANGUAGES)),
    ),
    "unispec/table6": unispec(("method", "temperature"), tempered(0.0) + tempered(1.0)),
    "unispec/table7": unispec(
        "method",
        (
            Row({"gpus": 1, "method": "Autoregressive"}, "autoregressive"),
            Row({"gpus": 1, "method": "TokenRec."}, "token_recycling"),
            Row({"gpus": 1, "method": "Ours"}, "unispec", UNISPEC),
        ),
        parts={"task": {name: TASKS[name] for name in ("MT", "QA", "Math", "Code")}}, quick=few(6 * 4),
        differs=(SPEEDUP, TAU, THROUGHPUT),
        absent=(({"gpus": 2}, TWO_GPUS),),
    ),
    "unispec/table8": unispec(
        "batch_size", (), source="batches", parts={}, metrics={"speedup": "speedup"}, total=None,
        data="MT-bench", options={"sizes": (1, 2, 3, 4, 5)},
        quick={"prompts": 10, "max_new_tokens": 40, "rounds": 2},
        whole={"prompts": 30, "max_new_tokens": 128, "rounds": 5},
        differs=(("speedup", "not said",
                  "tokens/s of decoding over autoregressive decoding's at the same batch size"),
                 ("draft size", "not said", "24, the default; the store begins anew with each prompt")),
    ),
    "unispec/table9": unispec(
        "method", (*EAGLES.values(), FIVE["UNISPEC (ours)"]),
        parts={"language": THREE}, total=None, drafts=HEADS, suite="multi-town",
        quick=few(7 * len(THREE)), data="MT-bench in three languages",
        differs=(SPEEDUP, TAU,
                 ("EAGLE's heads", "the published ones, trained on ShareGPT, mostly English",
                  "bundled ones, trained on this package's English texts alone; draft size 24")),
    ),
    "unispec/table10": unispec(
        ("method", "precision"), precise("FLOAT32", "float32") + precise("FLOAT16", "float16"),
        parts={"dataset": {"CNN": {"kind": "summarization"}, "GSM8K": {"kind": "arithmetic"}}}, total=None,
        metrics=dict(SPEED) | {f"rouge_{n}": f"rouge{n.upper()}" for n in ("1", "2", "l")},
        data="CNN/DailyMail and GSM8K", precision="as the rows say",
        quick=few(8 * 2, 64), whole={"prompts": 20, "max_new_tokens": 128},
        differs=(SPEEDUP, TAU,
                 ("rouge", "against references, unnamed implementation", "rouge-score, F in percent, the "
                  "best of several references")),
    ),
    "unispec/table11": unispec(
        "context",
        tuple(Row({"context": n}, "unispec", UNISPEC, plan={"context": n})
              for n in (1024, 2048, 4096, 8192, 16384, 32768)),
        total=("task", "Avg."), quick=few(3 * len(TASKS), 32),
        differs=(SPEEDUP, TAU,
                 ("context", "1K to 32K tokens, how made is not said",
                  "earlier questions and their answers stand in front; a model that reads less than 32K gets "
                  "the same shares of what it reads (see the notes)")),
    ),
    "unispec/table12": unispec(
        "threshold",
        tuple(Row({"threshold": r}, "unispec", {"draft_size": BEST, "threshold": r})
              for r in (0.0, 0.01, 0.025, 0.05, 0.1, 0.2)),
        total=("task", "Avg."),
    ),
    "unispec/table13": unispec(
        "draft_size",
        tuple(Row({"draft_size": n}, "unispec", {"draft_size": Best(n / WINDOW)})
              for n in (95, 100, 105, 110, 115, 120, 125)),
        total=("task", "Avg."),
        differs=(SPEEDUP, TAU,
                 ("draft size", "95 to 125 around g* = 110", "the same shares of the g* that is found here")),
    ),
    "unispec/table15": unispec(
        "draft_size", (Row({"draft_size": 75}, "unispec", {"draft_size": Best(75 / 111)}),
                       Row({"draft_size": 111}, "unispec", UNISPEC)),
        parts={}, total=None, metrics={"tau": "tau", "throughput": "decode_throughput"},
        options={"passes": True}, data="not said",
        differs=(TAU, ("draft size", "75, and 111 as found best",
                       "the same shares of the g* that is found here"),
                 ("throughput", "not said", "tokens of all prompts over the seconds of their decoding"),
                 ("expected throughput", "equation 2", "equation 2: tokens a cycle over the time of a pass")),
    ),
    "unispec/table16": unispec(
        ("found_by", "draft_size"),
        (*(Row({"found_by": "grid search", "draft_size": n}, "unispec", {"draft_size": Best(n / 111)})
           for n in (25, 50, 75, 100, 125)),
         Row({"found_by": "calibration", "draft_size": 111}, "unispec", UNISPEC)),
        parts={}, total=None, data="not said",
        differs=(TAU, THROUGHPUT, ("draft size", "25 to 125, and 111 as found best",
                       "the same shares of the g* that is found here")),
    ),
    "unispec/table17": unispec(
        ("method", "draft_size"),
        tuple(Row({"method": theirs + more}, ours, {"draft_size": BEST} if more else {})
              for theirs, ours in (("Lookahead", "lookahead"), ("SPECTRA", "spectra"),
                                   ("Token Recycling", "token_recycling"))
              for more in ("", " + Device-Aware")),
        parts={"task": TWO}, total=None, quick=few(7 * len(TWO)),
        differs=(SPEEDUP, TAU, BASELINES,
                 ("draft sizes", "120, 60 and 80; 60, 30 and 53 as calibrated",
                  "our defaults; what calibration finds here for each method")),
    ),
}  # fmt: skip

# ---------------------------------------------------------------- SSBD

INTO: dict[str, Where] = {
    "English→German": {"language": "de"}, "English→Chinese": {"language": "zh"},
    "English→Japanese": {"language": "ja"},
}  # fmt: skip
CLOCK = (
    "speedup", "tokens/s of what all updates emit over RT's, the prompt's pass outside",
    "the same; tokens of all texts pooled",
)  # fmt: skip
ERASURE = (
    "NE", "tokens of SacreBLEU's Flores-101 tokenizer",
    "tokens of sacrebleu's tokenizer for the language, where it needs none of a download; all texts pooled",
)  # fmt: skip
RT, SSBD = {"mode": "rt"}, {"beta": 0.2}


def ssbd(compare: str | tuple[str, ...], rows: tuple[Row, ...], **more: Any) -> Recipe:
    """A recipe of SSBD's paper."""
    given: dict[str, Any] = {
        "parts": {"language": INTO}, "model": "town-translator", "precision": "4 bits (Q4_K_M, llama.cpp)",
        "data": "Flores, three words an update", "differs": (CLOCK, ERASURE),
        "quick": few(12, 96), "whole": {"prompts": 60, "max_new_tokens": 128},
    }  # fmt: skip
    names = (compare,) if isinstance(compare, str) else compare
    return Recipe("streams", names, rows, **(given | more))


TWO_WAYS = (Row({"method": "RT"}, "retranslate", RT), Row({"method": "SSBD"}, "retranslate", SSBD))
CHINESE = {"language": {"English→Chinese": {"language": "zh"}}}
RECIPES |= {
    "ssbd/table2": ssbd("method", TWO_WAYS),
    "ssbd/table3": ssbd(
        "beta",
        (
            Row({"beta": "RT"}, "retranslate", RT),
            *(Row({"beta": f"{b:.1f}"}, "retranslate", {"beta": b})
              for b in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0)),
            Row({"beta": "CD"}, "retranslate", {"mode": "cd"}),
        ),
        parts=CHINESE,
    ),
    "ssbd/table4": ssbd(
        ("mask", "k"),
        (
            Row({"mask": "-"}, "retranslate", SSBD),
            *(Row({"mask": theirs, "k": str(k)}, "retranslate", {"beta": 0.2, "k": k, "mask": ours})
              for theirs, ours in (("mask-k", "draft"), ("display-only mask-k", "display")) for k in (3, 5)),
        ),
        parts=CHINESE,
    ),
    "ssbd/table6": ssbd(
        "method", TWO_WAYS, options={"partials": True}, data="ACL 60/60, an ASR system's partial results",
        differs=(CLOCK, ERASURE, ("partials", "an ASR system's, not released", "simulated")),
    ),
}  # fmt: skip

# ---------------------------------------------------------------- SSD

BENCHMARKS: dict[str, Where] = {
    "GSM8K": {"kind": "arithmetic"}, "MATH": {"kind": "arithmetic"}, "HumanEval": {"kind": "code"},
    "MBPP": {"kind": "code"},
}  # fmt: skip
ONE_BENCHMARK = {"task": {"MATH": {"kind": "arithmetic"}}}
VALID = (
    "throughput", "valid tokens a second, on each benchmark",
    "valid tokens (up to the first end token) of all texts over their seconds; every cell is written",
)  # fmt: skip
CELLS = ("length", "256 cells", "64 cells, blocks of 8, cache refreshed every 8 steps as in the paper")
NAMES = ("tasks", "four benchmarks", "two kinds of work: arithmetic for GSM8K and MATH, code for the others")


def canvas(source: str, compare: str | tuple[str, ...], rows: tuple[Row, ...], **more: Any) -> Recipe:
    """A recipe of SSD's paper."""
    given: dict[str, Any] = {
        "parts": ONE_BENCHMARK, "model": "town-diffusion", "data": "GSM8K, MATH, HumanEval and MBPP",
        "differs": (VALID, CELLS), "quick": {**few(8, 64), "rounds": 1},
        "whole": {"prompts": 30, "max_new_tokens": 64, "rounds": 3},
    }  # fmt: skip
    names = (compare,) if isinstance(compare, str) else compare
    return Recipe(source, names, rows, **(given | more))


def drafts(method: str, tree: str, number: type) -> tuple[Row, ...]:
    """SSD's three draft lengths."""
    return tuple(
        Row({"method": method, "draft_length": number(n)}, "ssd", {"tree": tree, "draft_length": n})
        for n in (3, 4, 5)
    )


RECIPES |= {
    "ssd/table1": canvas(
        "canvases", ("method", "draft_length"),
        (Row({"method": "Origin", "draft_length": "-"}, "stepwise"), *drafts("Origin+SSD", "chain", str)),
        parts={"task": BENCHMARKS}, total=("task", "Mean"), differs=(VALID, CELLS, NAMES),
    ),
    "ssd/table2": canvas(
        "limits", ("k", "draft_length"), (), data="MATH",
        differs=(("length", "256 cells", "64 cells, blocks of 8, without a cache"),
                 ("reading", "not said in full", "rounds of N + 1 steps, any order counts")),
    ),
    "ssd/table3": canvas(
        "canvases", ("method", "draft_length"),
        drafts("Greedy", "chain", int) + drafts("Mix-order", "mix", int),
        options={"bounds": True}, data="MATH", differs=(CELLS,), quick={**few(12, 64), "rounds": 1},
    ),
    "ssd/figure3": canvas(
        "lengths", ("method", "generation_length", "shots"), (),
        parts={"task": {"GSM8K": {"kind": "arithmetic"}, "MBPP": {"kind": "code"}}},
        options={"cells": {"128": 32, "512": 128}, "shots": (0, 3), "normal": 64}, data="GSM8K and MBPP",
        quick={**few(6, 64), "rounds": 1},
        differs=(VALID, ("length", "128 and 512 cells, else 256", "32 and 128 cells, else 64")),
    ),
}  # fmt: skip

# ---------------------------------------------------------------- BiLD

UNALIGNED, ALIGNED, REJECTION = "BiLD, unaligned", "BiLD, aligned", "speculative, sampling"
FALLBACKS = (0.3, 0.5, 0.7, 0.9)  # the paper: 0.5 to 0.9 for translation, 0.2 to 0.6 for summaries
ROLLBACKS = (1.0, 2.0, 4.0, 8.0)  # the paper: 1 to 10, and 2 to 6
WINDOWS = (3, 4, 5, 6, 7, 8, 9, 10)
EXIT_FALLBACKS, EXIT_ROLLBACKS = (0.2, 0.5, 0.8), (0.5, 1.0, 1.5)
LATENCY = (
    "speedup", "latency of the same texts, batch 1",
    "seconds of greedy decoding of the same texts over seconds here, the encoder's pass inside",
)  # fmt: skip
POINTS = (
    "thresholds",
    "chosen on a sweep that is not printed",
    "the best of a small grid, on the same texts",
)
DATASETS: dict[str, Where] = {
    "IWSLT": {"task": "de-en"}, "WMT": {"task": "de-en"}, "XSUM": {"task": "sum-en"},
    "CNN/DailyMail": {"task": "sum-en"},
}  # fmt: skip
PAIR: dict[str, Where] = {"IWSLT": {"task": "de-en"}, "XSUM": {"task": "sum-en"}}
ONE_OF_EACH = (
    "data sets", "two of translations, two of summaries",
    "one of German to English, one of English summaries, which stand beside both",
)  # fmt: skip
NO_LOSS, ONE_POINT = 0.2, 1.0  # points that count as minimal, and as about one


def fastest(where: Where, curve: str, lose: float) -> Row:
    """The fastest setting of a curve that loses at most so many points."""
    return Row(where, "bild", {"curve": curve, "pick": "fastest", "lose": lose})


def big_little(rows: tuple[Row, ...], curves: tuple[str, ...], **more: Any) -> Recipe:
    """A recipe of BiLD's paper."""
    given: dict[str, Any] = {
        "parts": {"dataset": PAIR}, "model": "town-t5",
        "drafts": {"small": "town-t5-small", "aligned": "town-t5-small-aligned"},
        "differs": (LATENCY, POINTS), "data": "IWSLT 2017, WMT 2014, XSUM, CNN/DailyMail",
        "quick": {**few(16, 64), "fallbacks": (0.3, 0.6, 0.9), "rollbacks": (1.0, 4.0), "windows": (4, 8)},
        "whole": {"prompts": 60, "max_new_tokens": 128, "fallbacks": FALLBACKS, "rollbacks": ROLLBACKS,
                  "windows": WINDOWS},
    }  # fmt: skip
    compare = more.pop("compare", ("method",))
    options = {"curves": curves, **more.pop("options", {})}
    return Recipe("thresholds", compare, rows, options=options, **(given | more))


VANILLA = Row({"method": "Vanilla Inference"}, "autoregressive")
REJECTING = Row(
    {"method": "Rejection Sampling Based"}, "speculative", {"curve": REJECTION, "pick": "fastest"}
)
RECIPES |= {
    "bild/table1": big_little(
        (
            VANILLA,
            *(fastest({"method": f"BiLD ({name})", "score_drop": drop}, curve, lose)
              for name, curve in (("Unaligned", UNALIGNED), ("Aligned", ALIGNED))
              for drop, lose in (("minimal", NO_LOSS), ("~1 point", ONE_POINT))),
        ),
        (UNALIGNED, ALIGNED), parts={"dataset": DATASETS}, compare=("method", "score_drop"),
        differs=(LATENCY, POINTS, ONE_OF_EACH),
    ),
    "bild/table3": big_little(
        (
            VANILLA,
            REJECTING,
            Row({"method": "BiLD (Match Latency)"}, "bild",
                {"curve": UNALIGNED, "pick": "as fast", "like": REJECTION}),
            Row({"method": "BiLD (Match BLEU/ROUGE-L)"}, "bild",
                {"curve": UNALIGNED, "pick": "as good", "like": REJECTION}),
        ),
        (UNALIGNED, REJECTION),
        differs=(LATENCY, POINTS, ("rejection sampling", "its temperature and window are not said",
                                   "temperature 1, the fastest window")),
    ),
    "bild/table4": big_little(
        (
            REJECTING,
            fastest({"method": ["BiLD (Better BLEU)", "BiLD (Better ROUGE-L)"]}, UNALIGNED, NO_LOSS),
        ),
        (UNALIGNED, REJECTION),
        differs=(LATENCY, POINTS, ("fallback, rollback", "shares of what is not said", "of tokens written")),
    ),
    "bild/table5": big_little(
        (
            VANILLA,
            *(Row({"method": "BiLD", "row": str(i + 1)}, "bild",
                  {"curve": "nucleus", "pick": "number", "at": i + 1}) for i in range(3)),
        ),
        ("nucleus",), options={"base": "nucleus: autoregressive"}, compare=("method", "row"),
        differs=(LATENCY, ("thresholds", "three that are not named", "0.7 and 1, 0.7 and 2, 0.5 and 4")),
    ),
    "bild/figure6": big_little(
        (fastest({"method": "BiLD"}, "early exit", ONE_POINT),), ("early exit",), model="town-t5-exit",
        parts={"dataset": {"IWSLT": {"task": "de-en"}, "WMT": {"task": "de-en"}}}, drafts={},
        quick={**few(16, 64), "fallbacks": (0.2, 0.8), "rollbacks": (0.5, 1.5)},
        whole={"prompts": 60, "max_new_tokens": 128, "fallbacks": EXIT_FALLBACKS,
               "rollbacks": EXIT_ROLLBACKS},
    ),
    "bild/figure8": big_little(
        (fastest({"method": "BiLD"}, ALIGNED, NO_LOSS),), (ALIGNED,),
        parts={"dataset": {"CNN/DailyMail": {"task": "sum-en"}}},
    ),
}  # fmt: skip

# ---------------------------------------------------------------- CM-ASD

WMT: dict[str, Where] = {"EN-DE": {"task": "en-de"}, "DE-EN": {"task": "de-en"}}
ROMANIAN = ({"task": ["EN-RO", "RO-EN"]}, "the bundled encoder-decoders read German and English alone")
OTHERS = (
    {"method": ["GLAT+CTC", "DAT", "CMLM", "RewriteNAT", "Deep-Shallow"]},
    "a model of its own kind, trained to write with little or no autoregression: nothing here decodes it",
)
BEAMS = ("speedup", "over beam 5, batches of 16", "over beam 5 of transformers, one text at a time")
VALUES = ("parameters", "α, γ, the weights, k_min, k_max and β are not printed", "defaults, k_max 10")


def modulated(rows: Mapping[str, str], **more: Any) -> Recipe:
    """A recipe of CM-ASD's paper; `rows` are its methods and the labels of our settings."""
    given: dict[str, Any] = {
        "parts": {"task": WMT}, "model": "town-t5", "differs": (BEAMS, VALUES),
        "drafts": {"small": "town-t5-small", "heads": "town-t5-heads"}, "options": {"points": "lineup"},
        "data": "WMT14 EN-DE, WMT16 EN-RO", "absent": (ROMANIAN,),
        "quick": few(16, 64), "whole": {"prompts": 50, "max_new_tokens": 128},
    }  # fmt: skip
    made = tuple(Row({"method": theirs}, "", {"point": ours}) for theirs, ours in rows.items())
    return Recipe("beams", ("method",), made, **(given | more))


SEVEN = {
    "Transformer-base (b=5)": "beam 5 (transformers)", "Transformer-base (b=1)": "autoregressive",
    "Blockwise (k=10)": "blockwise, k 10", "Blockwise (k=25)": "blockwise, k 25",
    "SpecDec(k=10)": "SpecDec, k 10", "SpecDec(k=25)": "SpecDec, k 25", "CM-ASD": "CM-ASD",
}  # fmt: skip
RECIPES |= {
    "cm_asd/table1": modulated(SEVEN),
    "cm_asd/table2": modulated(SEVEN),
    "cm_asd/table3": modulated(
        {
            "Transformer-base (b=5)": "beam 5 (transformers)",
            "w/o Adaptive Drafting (Fixed k, adaptive τ)": "w/o adaptive drafting",
            "w/o Adaptive Verification (adaptive k, fixed τ)": "w/o adaptive verification",
            "w/o Confidence (Fixed k & τ)": "w/o confidence", "Entropy-only Confidence": "entropy only",
            "Margin-only Confidence": "margin only", "Softmax-only Confidence": "softmax only",
            "CM-ASD (Full: Adaptive k + Adaptive τ)": "CM-ASD",
        },
        parts={"task": {"EN-DE": {"task": "en-de"}}}, drafts={"small": "town-t5-small"},
        options={"points": "ablation", "drafting": True}, data="WMT14 EN-DE", absent=(),
        differs=(BEAMS, VALUES,
                 ("accepted tokens", "of an iteration; whether the verifier's own counts is not said",
                  "of the draft, the verifier's own left out; 1 without a draft")),
    ),
    "cm_asd/table4": modulated(
        {"AR BART-base (b=5)": "beam 5 (transformers)", "AR BART-base (b=1)": "autoregressive",
         "SpecDec(k=25)": "SpecDec, k 25", "CM-ASD": "CM-ASD"},
        parts={"task": {"CNN/DailyMail": {"task": "sum-en"}}}, data="CNN/DailyMail", absent=(OTHERS,),
    ),
    "cm_asd/table5": modulated(
        {"Transformer-base (Greedy)": "autoregressive", "SpecDec(k=25)": "SpecDec, k 25", "CM-ASD": "CM-ASD"},
        parts={}, data="not said", absent=(OTHERS,),
    ),
}  # fmt: skip

# ---------------------------------------------------------------- curves without printed values

DRAWN = "drawn only: no value is printed, so there is nothing to compare with but the curve's shape"


def curve(source: str, caption: str, **more: Any) -> Recipe:
    """A recipe of a figure whose values are not printed."""
    given: dict[str, Any] = {
        "caption": caption, "data": DRAWN, "quick": {"prompts": 6, "max_new_tokens": 40},
        "whole": {"prompts": 30, "max_new_tokens": 128},
    }  # fmt: skip
    return Recipe(source, more.pop("compare", ("method",)), **(given | more))


GRIDS: dict[str, Any] = {
    "model": "town-t5", "drafts": {"small": "town-t5-small", "aligned": "town-t5-small-aligned"},
    "parts": {"dataset": PAIR}, "compare": ("curve", "setting"),
    "quick": big_little((), ()).quick, "whole": big_little((), ()).whole,
}  # fmt: skip
CURVES: dict[str, Recipe] = {
    "unispec/figure2": curve(
        "sizes", "Tokens a cycle and time of a pass by the number of draft tokens", compare=("draft size",),
        options={"sizes": (4, 8, 16, 32, 64)}, suite="town",
    ),
    "unispec/figure3": curve(
        "scores", "How often nodes of a confidence score are accepted", compare=("score",), suite="town"
    ),
    "unispec/figure5": curve("calibrated", "The draft size that calibration finds here"),
    "ssd/figure1": curve(
        "canvas batches", "Throughput by batch size, with and without a cache", model="town-diffusion",
        compare=("method", "batch size"), quick={"prompts": 4, "max_new_tokens": 64, "rounds": 1},
        whole={"prompts": 16, "max_new_tokens": 64, "rounds": 3},
    ),
    "cm_asd/figure2": curve(
        "batched", "Latency and throughput by batch size", model="town-t5", drafts={"small": "town-t5-small"},
        compare=("method", "batch size"),
        options={"methods": ("autoregressive", "specdec", "cm_asd"), "sizes": (1, 2, 4, 8)},
        quick={"prompts": 8, "max_new_tokens": 32, "rounds": 1},
        whole={"prompts": 16, "max_new_tokens": 128, "rounds": 3},
    ),
    "bild/figure2": curve(
        "settings", "The oracle: the large model only where the small one's token is too unlikely to it",
        **(GRIDS | {"options": {"curves": ("oracle",)}}),
    ),
    "bild/figure4": curve(
        "settings", "Quality and speed of BiLD by its thresholds (Figure 10 too)",
        **(GRIDS | {"options": {"curves": (UNALIGNED, ALIGNED)}}),
    ),
    "bild/figure5": curve(
        "settings", "BiLD without rollback, and without fallback",
        **(GRIDS | {"options": {"curves": ("without",)}}),
    ),
    "bild/figure7": curve(
        "settings", "CALM: quality and speed by its threshold",
        **(GRIDS | {"model": "town-t5-calm", "drafts": {}, "options": {"curves": ("CALM",)},
                    "parts": {"dataset": {"IWSLT": {"task": "de-en"}}}}),
    ),
}  # fmt: skip
# Figures that need no run of their own.
FIGURES: dict[str, str] = {
    "unispec/figure4": "the means of unispec/table5: replay that",
    "unispec/figure6": "what a calibration of more prompts finds: specviz calibrate --number measures it",
    "bild/figure10": "bild/figure4 on other data sets: replay that",
}

# ---------------------------------------------------------------- nothing to run

# Tables of settings: there is nothing to measure.
SETTINGS: dict[str, str] = {
    "unispec/table4": "the paper's machines: a setting, not a result",
    "unispec/table14": "settings of its regressions and of its search: not a result",
    "bild/table2": "sizes of its models: a setting, not a result",
}
