"""The catalogue of suites, and how to load one by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specviz.errors import ParameterError, PromptError, near
from specviz.files import exists
from specviz.paths import expanded, folder

from . import files, tasks, texts
from .fetching import File, cached, fetch, forget, given
from .prompts import Suite
from .tasks import Get, Prompts

if TYPE_CHECKING:
    import pandas as pd

_announced: set[str] = set()  # suites whose licence has been printed
SEVEN = ("en", "de", "fr", "es", "zh", "ja", "vi")
# Sources of UniSpec's Multi-SpecBench (section 5.1, Appendix C): for English, and for other languages.
ENGLISH = ("spec-bench", "humaneval")
SOURCES = ("mt-bench", "wikitext", "wikipedia", "webfaq", "mgsm", "xquad", "humaneval-xl")
# Suites whose prompts are their authors' own; those of the other third-party suites are worded here.
QUESTIONS = (
    "spec-bench", "multi-specbench", "mt-bench", "humaneval", "humaneval-xl", "gsm8k", "mgsm", "math",
    "webfaq",
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """A suite of the catalogue.

    Parameters
    ----------
    about : str
        Short description of its contents.
    licence : str
        Licence of its texts, as stated by their authors.
    load : callable, optional
        ``load(get, part)`` gives its prompts; ``get(file)`` gives the paths of a `File`. None: bundled, or
        composed of other suites.
    parts : sequence of str
        Parts that may follow the name and a colon.
    default : str
        The part that is used when none is named.
    note : str
        Further remark to print when it is first used.
    """

    about: str
    licence: str
    load: Callable[[Get, str], Prompts] | None = None
    parts: Sequence[str] = ()
    default: str = ""
    note: str = ""


def _each_way(codes: Sequence[str]) -> tuple[str, ...]:
    """Every pair with English, in both directions."""
    return tuple(pair for code in codes for pair in (f"{code}-en", f"en-{code}"))


def _splits(pairs: Sequence[str]) -> tuple[str, ...]:
    """Each pair's test split, and its validation split."""
    return tuple(part for pair in pairs for part in (pair, f"{pair}:{texts.VALIDATION}"))


CATALOGUE = {
    "town": Entry("generated: seven kinds of task in mixed languages, ten prompts each", "Apache-2.0"),
    "multi-town": Entry("generated: seven kinds of task in seven languages, 80 prompts each", "Apache-2.0"),
    "demo": Entry("ten prompts of seven kinds of task, three with a document to quote", "Apache-2.0"),
    "demo-calibration": Entry("five other prompts, used by the demo to calibrate", "Apache-2.0"),
    "narrow": Entry("generated: sums, facts, copies, order, functions; sixty with answers", "Apache-2.0"),
    "everyday": Entry("written by hand: seven kinds of task, three English prompts each", "Apache-2.0"),
    "passages": Entry("written by hand: sixteen English texts, each with a summary", "Apache-2.0"),
    "sums": Entry("generated: 60 word problems with answers", "Apache-2.0"),
    "walkthroughs": Entry("generated: further prompts for the walkthroughs", "Apache-2.0"),
    "spec-bench": Entry(
        "Spec-Bench (Xia et al. 2024): MT-bench, translation, summarization, qa, arithmetic, rag; :24",
        "Apache-2.0", tasks.spec_bench, ("24",),
    ),
    "multi-specbench": Entry(
        "Multi-SpecBench (Do, Le, Nguyen): 560 prompts per language, Spec-Bench's kinds of task plus code",
        "CC-BY-NC-4.0", tasks.multi_specbench, (*SEVEN, "mix"), "en",
        "Its card names AdaSpec; UniSpec, of the same group, describes a set of this name and size",
    ),
    "multi-sources": Entry(
        "the same kinds of task: the first 80 prompts of each source that UniSpec names for Multi-SpecBench",
        "that of each source", None, SEVEN, "en", "The authors' own selection is multi-specbench",
    ),
    "mt-bench": Entry(
        "MT-bench: 80 conversations of two turns, and their translations", "Apache-2.0", tasks.mt_bench,
        SEVEN, "en",
    ),
    "humaneval": Entry(
        "HumanEval: 164 functions to complete; :80 the first 80", "MIT", tasks.humaneval, ("80",),
        note="Which 80 UniSpec took is not stated: humaneval:80 is the first 80",
    ),
    "humaneval-xl": Entry(
        "HumanEval-XL, Python: 80 functions to complete; ja: jhumaneval", "Apache-2.0 (ja: MIT)",
        tasks.humaneval_xl, SEVEN, "en",
    ),
    "mbpp": Entry("MBPP: 500 small programs to write", "CC-BY-4.0", tasks.mbpp),
    "gsm8k": Entry("GSM8K: 1,319 exercises", "MIT", tasks.gsm8k),
    "mgsm": Entry(
        "MGSM: 250 exercises per language; vi: Vi-GSM8K", "CC-BY-SA-4.0 (vi: not stated)", tasks.mgsm,
        SEVEN, "en",
    ),
    "math": Entry(
        "MATH: 5,000 exercises; :500 those of MATH-500, :tenth a tenth of each subject (lm-eval's limit 0.1)",
        "MIT", tasks.math, ("500", "tenth"),
    ),
    "webfaq": Entry("WebFAQ: questions answered on web sites", "CC-BY-4.0", tasks.webfaq, SEVEN, "en"),
    "xquad": Entry(
        "XQuAD: questions about a passage; fr: squad_fr, ja: JSQuAD", "CC-BY-SA-4.0 (fr: CC-BY-4.0)",
        tasks.xquad, SEVEN, "en",
    ),
    "flores": Entry(
        "FLORES-200 devtest: 1,012 sentences to translate", "CC-BY-SA-4.0", texts.flores,
        tuple(f"{a}-{b}" for a in SEVEN for b in SEVEN if a != b), "en-de",
    ),
    "acl6060": Entry(
        "ACL 60/60: 416 sentences of talks to translate", "CC-BY-4.0", texts.acl6060,
        tuple(f"en-{code}" for code in ("de", "zh", "ja", "ar", "fa", "fr", "nl", "pt", "ru", "tr")), "en-de",
        "The recogniser's output for the talks is not published: Suite.partials simulates it",
    ),
    "wmt14": Entry(
        "WMT14: 3,003 sentences to translate", "not stated (research)", texts.wmt("14"),
        _splits(_each_way(("de", "fr", "cs", "ru", "hi"))), "de-en",
    ),
    "wmt16": Entry(
        "WMT16: 1,999 to 3,000 sentences to translate", "not stated (research)", texts.wmt("16"),
        _each_way(("ro", "de", "cs", "fi", "ru", "tr")), "en-ro",
    ),
    "iwslt17": Entry(
        "IWSLT 2017: sentences of talks to translate", "CC-BY-NC-ND-4.0", texts.iwslt17,
        _splits(_each_way(("de", "fr", "ja", "zh", "ar", "it", "ko", "nl", "ro"))), "de-en",
    ),
    "wikitext": Entry(
        "WikiText-103: English paragraphs to translate", "CC-BY-SA-3.0", texts.wikitext, SEVEN[1:], "de",
    ),
    "cnn-dailymail": Entry(
        "CNN/DailyMail 3.0.0: 11,490 articles to summarise", "Apache-2.0 (the articles: their publishers')",
        texts.cnn_dailymail, (texts.VALIDATION,),
    ),
    "xsum": Entry("XSum: 11,334 articles to summarise", "not stated (the articles: the BBC's)", texts.xsum,
                  (texts.VALIDATION,)),
    "wikipedia": Entry(
        "Wikipedia of November 2023: passages to summarise", "CC-BY-SA-4.0", texts.wikipedia, SEVEN, "en",
    ),
}  # fmt: skip


def suite(
    name: str | Path,
    path: str | Path | None = None,
    *,
    kind: str | Iterable[str] | None = None,
    language: str | Iterable[str] | None = None,
    each: int | None = None,
    limit: int | None = None,
    template: str | None = None,
) -> Suite:
    """Load a suite of prompts.

    Parameters
    ----------
    name : str or Path
        One of `list_suites`, with a part after a colon if it has parts (``flores:en-de``); or a file of
        prompts. ``NAME=PATH`` combines `name` and `path`.
    path : str or Path, optional
        A local file or folder to read the suite from, in its authors' published format. Default: it is
        fetched once and kept.
    kind, language, each, limit
        See `Suite.select`.
    template : str, optional
        Other wording around the bare text; see `Suite.worded`.

    Returns
    -------
    Suite

    Raises
    ------
    ParameterError
        If the suite does not have the part, kind or language.
    PromptError
        If there is no such suite or file, a line of it cannot be read (the message gives its number), or it
        is neither on this disk nor reachable.
    """
    if path is None and isinstance(name, str) and name.partition("=")[0].partition(":")[0] in CATALOGUE:
        name, _, given_path = name.partition("=")
        path = given_path or None
    base, _, part = str(name).partition(":")
    if base in CATALOGUE:
        chosen_suite = _listed(base, part, None if path is None else expanded(path, PromptError))
    elif path is None and exists(expanded(name, PromptError)):
        chosen_suite = Suite(files.read(name), str(name))
    else:
        what = (
            "neither a suite nor a file"
            if path is None
            else "a path was given for a suite, but this is not a suite"
        )
        raise PromptError(f"no prompts {str(name)!r}: {what}" + near(base, CATALOGUE))
    if template is not None:
        chosen_suite = chosen_suite.worded(template)
    if (kind, language, each, limit) != (None,) * 4:
        chosen_suite = chosen_suite.select(kind, language, each=each, limit=limit)
    return chosen_suite


def _listed(base: str, part: str, path: Path | None) -> Suite:
    """Load a suite of the catalogue from `path`, or by default from the package, the cache or the network."""
    entry = CATALOGUE[base]
    if part and part not in entry.parts:
        if not entry.parts:
            raise ParameterError(f"{base} has no parts: drop :{part}")
        raise ParameterError(f"{base} has no part {part!r}" + near(part, entry.parts))
    part = part or entry.default
    name = f"{base}:{part}" if part else base
    if base == "multi-sources":
        loaded = _composed(name, part, path)
    elif entry.load is None:
        if path is not None:
            raise ParameterError(f"{base} comes with the package: drop the path, or give only the path")
        return Suite(files.read(next(folder("suites").glob(f"{base}.jsonl*"))), name, entry.licence)
    else:
        fetched: list[Path] = []

        def get(file: File) -> list[Path]:
            if path is not None:
                return given(file, path, name)
            fetched.extend(paths := fetch(file, name))
            return paths

        try:
            loaded = Suite(entry.load(get, part), name, entry.licence)
        except PromptError:
            for each in fetched:
                forget(each)
            raise
    if base not in _announced:
        _announced.add(base)
        note = f". {entry.note}" if entry.note else ""
        print(f"specviz: {base} belongs to its authors, licence: {entry.licence}{note}", file=sys.stderr)
    return loaded


def _composed(name: str, part: str, path: Path | None) -> Suite:
    """80 prompts per kind of work in a language, from each source or from a folder's copies of them."""
    if path is not None and not path.is_dir():
        raise PromptError(f"{path} is not a folder: {name} needs one with a file or folder of each source")
    prompts = []
    for base in ENGLISH if part == "en" else SOURCES:
        local = None
        if path is not None:
            matches = sorted(p for p in path.iterdir() if p.name == base or p.name.startswith(f"{base}."))
            if not matches:
                raise PromptError(
                    f"{path} has no {base}: it needs a file or folder of that name from each source"
                )
            local = matches[0]
        source = _listed(base, part if part in CATALOGUE[base].parts else "", local)
        chosen = source.select(each=tasks.EACH)
        prompts += [{**prompt, "id": f"{base}/{prompt['id']}"} for prompt in chosen]
    return Suite(prompts, name, CATALOGUE["multi-sources"].licence)


def measures(name: str) -> bool:
    """Whether a name is that of a suite to measure on: any but a validation split."""
    base, _, part = name.partition("=")[0].partition(":")
    return base in CATALOGUE and not part.endswith(texts.VALIDATION)


def cached_questions() -> Iterator[Suite]:
    """The suites of `QUESTIONS` that were fetched before, part by part; nothing is fetched."""

    def get(file: File) -> list[Path]:
        if not (paths := cached(file)):
            raise PromptError(f"{file.home} was not fetched")
        return paths

    for base in QUESTIONS:
        entry = CATALOGUE[base]
        assert entry.load is not None
        for part in dict.fromkeys((entry.default, *entry.parts)):
            name = f"{base}:{part}" if part else base
            with suppress(PromptError):  # not fetched, or damaged: nobody can measure on it
                yield Suite(entry.load(get, part), name, entry.licence)


def bundled() -> list[str]:
    """Names of the suites that come with the package."""
    return [name for name, entry in CATALOGUE.items() if entry.load is None and name != "multi-sources"]


def list_suites() -> pd.DataFrame:
    """List the available suites.

    Returns
    -------
    DataFrame
        ``name``, ``parts``, ``licence``, ``bundled``, ``about``.
    """
    import pandas as pd

    return pd.DataFrame(
        {
            "name": name,
            "parts": ", ".join(entry.parts),
            "licence": entry.licence,
            "bundled": name in bundled(),
            "about": entry.about,
        }
        for name, entry in CATALOGUE.items()
    )
