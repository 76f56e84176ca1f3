"""Suites of texts to translate or summarise: FLORES, ACL 60/60, WMT, IWSLT, CNN/DailyMail, XSum, others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from specviz.errors import PromptError

from . import wording
from .fetching import File, single
from .files import Prompt
from .rows import member, rows, segments
from .tasks import EACH, Get, Prompts

# Language codes of FLORES-200, and of FLORES-101, from which it grew.
FLORES = {
    "en": ("eng_Latn", "eng"), "de": ("deu_Latn", "deu"), "fr": ("fra_Latn", "fra"),
    "es": ("spa_Latn", "spa"), "zh": ("zho_Hans", "zho_simpl"), "ja": ("jpn_Jpan", "jpn"),
    "vi": ("vie_Latn", "vie"),
}  # fmt: skip
LONG = {"zh": 150, "ja": 150}  # least characters of a passage to summarise; in other languages:
LETTERS = 400
VALIDATION = "validation"  # the split that BiLD's evaluation reads; the default is test


# ---------------------------------------------------------------- translation


def flores(get: Get, part: str) -> Prompts:
    """The 1,012 sentences of devtest."""
    file = File(
        r"flores\d+_dataset\.tar\.gz$",
        url="https://dl.fbaipublicfiles.com/nllb/flores200_dataset.tar.gz",
        whole=True,
    )
    path = single(get(file))
    pair = part.split("-")
    named = [rf"(^|/)({'|'.join(FLORES[code])})\.devtest$" for code in pair]
    return _parallel(path, named, part, "flores")


def acl6060(get: Get, part: str) -> Prompts:
    """The 416 sentences of the evaluation set's talks, transcribed by hand."""
    from_, into = part.split("-")
    columns = (f"text_{from_}", f"text_{into}")
    path = single(get(File(r"^data/eval-.*\.parquet$", repo="ymoslem/acl-6060", columns=columns, whole=True)))
    if path.suffix != ".parquet":  # the release itself
        named = [rf"(^|/)ACL\.6060\.eval\.en-xx\.{code}\.(txt|xml)$" for code in (from_, into)]
        return _parallel(path, named, part, "acl6060")
    return (
        _translation(row.text(columns[0]), row.text(columns[1]), part, f"acl6060/{number}")
        for number, row in enumerate(rows(path, columns), 1)
    )


def wmt(year: str) -> Callable[[Get, str], Prompts]:
    """Loader of a year's sets; every pair is with English and can be read in either direction."""

    def load(get: Get, part: str) -> Prompts:
        pair, split = _split(part)
        other = pair.replace("en", "").strip("-")
        file = File(rf"(^|/){other}-en/{split}-.*\.parquet$", repo=f"wmt/wmt{year}", whole=True)
        return _pairs(get(file), pair, f"wmt{year}")

    return load


def iwslt17(get: Get, part: str) -> Prompts:
    """A split of the hub's data set; its test split holds the talks of 2010 to 2015."""
    pair, split = _split(part)
    file = File(
        rf"(^|/)iwslt2017-{pair}/({split}/.*|{split}-.*|[^/]*-{split})\.parquet$", repo="IWSLT/iwslt2017",
        whole=True,
    )  # fmt: skip
    return _pairs(get(file), pair, "iwslt17")


def _split(part: str) -> tuple[str, str]:
    """Split a part's name into the pair and the split, which is ``test`` if none is named."""
    front, _, split = part.rpartition(":")
    return (front, split) if split == VALIDATION else (part, "test")


def _pairs(paths: list[Path], part: str, name: str) -> Prompts:
    """Read rows with a ``translation`` that has both languages, or a folder with one file per language."""
    from_, into = part.split("-")
    if paths[0].is_dir():
        inside = sorted(p for p in paths[0].rglob("*") if p.suffix in (".parquet", ".jsonl", ".json"))
        if not inside:
            named = [rf"(^|[./-]){code}(\.(sgm|xml|txt))?$" for code in (from_, into)]
            yield from _parallel(paths[0], named, part, name)
            return
        paths = inside
    for number, row in enumerate(rows(paths), 1):
        both = row.part("translation")
        yield _translation(both.text(from_), both.text(into), part, f"{name}/{number}")


def _parallel(path: Path, patterns: list[str], part: str, name: str) -> Prompts:
    """Pair the sentences of two files, which must have the same number of them."""
    (here, sources), (there, answers) = (member(path, pattern) for pattern in patterns)
    one, other = segments(sources), segments(answers)
    if len(one) != len(other):
        raise PromptError(f"{here} has {len(one)} sentences and {there} {len(other)}: they must be parallel")
    for number, (source, answer) in enumerate(zip(one, other), 1):
        if not source or not answer:
            raise PromptError(f"{here if not source else there}, sentence {number} is empty")
        yield _translation(source, answer, part, f"{name}/{number}")


def _translation(source: str, answer: str, part: str, name: str) -> Prompt:
    from_, into = part.split("-")
    return {"id": name, "kind": "translation", "language": into, "from": from_, "source": source,
            "prompt": wording.translate(source, from_, into), "reference": [answer]}  # fmt: skip


def wikitext(get: Get, part: str) -> Prompts:
    """Paragraphs of English Wikipedia articles to translate; there are no references."""
    file = File(r"^(wikitext-103-raw-v1/)?test-.*\.parquet$|wiki\.test\.raw$", repo="Salesforce/wikitext")
    path = single(get(file))
    lines = path.read_text("utf8").split("\n") if path.suffix == ".raw" else (
        str(row.values.get("text") or "") for row in rows(path, ("text",))
    )  # fmt: skip
    number = 0
    for line in lines:
        source = line.strip()
        if len(source) >= LETTERS and not source.startswith("="):  # = a heading =
            number += 1
            yield {"id": f"wikitext/{number}", "kind": "translation", "language": part, "from": "en",
                   "source": source, "prompt": wording.translate(source, "en", part)}  # fmt: skip


# ---------------------------------------------------------------- summaries


def cnn_dailymail(get: Get, part: str) -> Prompts:
    """A split; each article's highlights are its reference."""
    split = part or "test"
    pattern = rf"(^|/)3\.0\.0/{split}-.*\.parquet$|^{split}\.(csv|jsonl)$"
    file = File(pattern, repo="abisee/cnn_dailymail")
    for number, row in enumerate(rows(get(file)), 1):
        yield _summary(row.text("article"), row.text("highlights"), row.values.get("id") or number)


def xsum(get: Get, part: str) -> Prompts:
    """A split; each article's first sentence, which was removed, is its reference."""
    split = part or "test"
    pattern = rf"(^|/)(default/{split}/.*|default/xsum-{split}|data/{split}-.*)\.parquet$"
    file = File(pattern, repo="EdinburghNLP/xsum")
    for number, row in enumerate(rows(get(file)), 1):
        yield _summary(row.text("document"), row.text("summary"), row.values.get("id") or number)


def _summary(source: str, answer: str, name: str | int) -> Prompt:
    return {"id": f"{name}", "kind": "summarization", "language": "en", "source": source,
            "prompt": wording.summarize(source, "en"), "reference": [answer]}  # fmt: skip


def wikipedia(get: Get, part: str) -> Prompts:
    """One long passage from each of the first 80 articles that have one; there are no references."""
    columns = ("title", "text")
    file = File(rf"(^|/){part}/0000\.parquet$", repo="Cohere/wikipedia-2023-11-embed-multilingual-v3",
                columns=columns, rows=20_000)  # fmt: skip
    seen: set[str] = set()
    for row in rows(get(file), columns):
        title, text = row.text("title"), str(row.values.get("text") or "").strip()
        if title not in seen and len(text) >= LONG.get(part, LETTERS):
            seen.add(title)
            yield {"id": f"{len(seen)}", "kind": "summarization", "language": part, "source": text,
                   "prompt": wording.summarize(text, part)}  # fmt: skip
            if len(seen) == EACH:
                return
