"""Free texts from Debian packages, which are downloaded, unpacked and read, but not installed."""

from __future__ import annotations

import gzip
import html
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

PACKAGES = {  # name: licence, as given in its copyright file
    "wordnet-base": "WordNet 3.0",
    "dict-foldoc": "GFDL 1.1+",
    "debian-handbook": "GPL-2+ and CC-BY-SA-3.0",
    "fortunes-de": "GPL-2+",
    "manpages-de": "GPL-3+",
    "python3.11-doc": "PSF-2",
    "postgresql-doc-15": "PostgreSQL",
}
# WordNet's noun files, by number.
FILES = {
    3: "tops", 4: "act", 5: "animal", 6: "artifact", 7: "attribute", 8: "body", 9: "cognition",
    10: "communication", 11: "event", 12: "feeling", 13: "food", 14: "group", 15: "location", 16: "motive",
    17: "object", 18: "person", 19: "phenomenon", 20: "plant", 21: "possession", 22: "process",
    23: "quantity", 24: "relation", 25: "shape", 26: "state", 27: "substance", 28: "time",
}  # fmt: skip
SHARE = Path("usr/share")


def fetch(folder: Path) -> Path:
    """Download the packages and unpack them into `folder`, unless they are already there."""
    unpacked = folder / "unpacked"
    for package in PACKAGES:
        if (unpacked / SHARE / "doc" / package).exists():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", package], cwd=folder, check=True)
        for file in folder.glob(f"{package}_*.deb"):
            subprocess.run(["dpkg-deb", "-x", file, unpacked], check=True)
    return unpacked / SHARE


def versions(folder: Path) -> dict[str, str]:
    """The version of each package, taken from its file name."""
    return {
        name: next(folder.glob(f"{name}_*.deb")).name.split("_")[1].replace("%3a", ":") for name in PACKAGES
    }


def nouns(share: Path) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Common nouns, most frequent first, and names, each by the WordNet file of the first sense."""
    counts: dict[str, int] = {}
    for line in (share / "wordnet/cntlist.rev").read_text().splitlines():
        key, _, count = line.split()
        word, sense = key.split("%")
        if sense.startswith("1:"):
            counts[word] = counts.get(word, 0) + int(count)
    common: dict[str, list[tuple[int, str]]] = {}
    named: dict[str, list[str]] = {}
    for line in (share / "wordnet/data.noun").read_text().splitlines():
        if line.startswith(" "):
            continue
        fields = line.split("|")[0].split()
        kind, word = FILES.get(int(fields[1]), ""), fields[4]
        if "@i" in fields:
            if "(" not in word and word[0].isupper():
                named.setdefault(kind, []).append(word.replace("_", " "))
        elif word.islower() and word.isalpha() and counts.get(word, 0) > 1:
            common.setdefault(kind, []).append((-counts[word], word))
    return {kind: [word for _, word in sorted(set(words))] for kind, words in common.items()}, named


def terms(share: Path) -> list[tuple[str, str]]:
    """Terms of the Free On-line Dictionary of Computing with their definitions of 30 to 160 words."""
    text = gzip.decompress((share / "dictd/foldoc.dict.dz").read_bytes()).decode("utf-8", "replace")
    kept = []
    for match in re.finditer(r"^(\S[^\n]{1,40})\n\n((?:   [^\n]*\n|\n)+)", text, re.M):
        term, body = match[1], re.sub(r"[{}]", "", match[2])
        body = re.sub(r"\((\d{4}-\d\d-\d\d|http\S+)\)|\[[^\]]*\]", "", body)
        body = " ".join(re.sub(r"<[^>]*>", "", body).split())
        if 30 <= len(body.split()) <= 160 and "http" not in body:
            kept.append((term, body))
    return kept


def paragraphs(files: Iterator[Path], least: int, most: int) -> list[str]:
    """Paragraphs of HTML pages with `least` to `most` words, without markup; each paragraph once."""
    kept: dict[str, None] = {}
    for file in files:
        page = file.read_text(encoding="utf-8", errors="replace")
        for match in re.finditer(r"<(?:p|div class=\"para\")[^>]*>(.*?)</(?:p|div)>", page, re.S):
            text = " ".join(html.unescape(re.sub(r"<[^>]+>", "", match[1])).split()).replace("¶", "")
            if least <= len(text.split()) <= most and text[0].isupper() and text[-1] in ".!?":
                kept[text] = None
    return list(kept)


def passages(share: Path) -> list[str]:
    """English prose to summarise: runs of adjacent paragraphs, 70 to 200 words in total."""
    doc, kept = share / "doc", []
    for pattern in (
        "debian-handbook/html/en-US/*.html",
        "python3.11/html/**/*.html",
        "postgresql-doc-15/html/*.html",
    ):
        for file in sorted(doc.glob(pattern)):
            text = ""
            for paragraph in paragraphs(iter([file]), 15, 130):
                text += ("\n" if text else "") + paragraph
                if len(text.split()) >= 70:
                    kept.append(text)
                    text = ""
    return [text for text in kept if len(text.split()) <= 200]


def german(share: Path) -> list[str]:
    """German sentences of 6 to 28 words."""
    texts = paragraphs(iter(sorted((share / "doc/debian-handbook/html/de-DE").glob("*.html"))), 6, 120)
    for name in ("anekdoten", "sprichworte", "sprueche", "wusstensie", "zitate", "murphy", "witze"):
        whole = (share / f"games/fortunes/de/{name}").read_text(encoding="utf-8", errors="replace")
        texts += [" ".join(each.split("\n\t\t--")[0].split()) for each in whole.split("\n%\n")]
    for file in sorted((share / "man/de").glob("man[15]/*.gz")):
        page = gzip.decompress(file.read_bytes()).decode("utf-8", "replace")
        page = re.sub(r"\\f.|\\&|\\[(].{2}", "", page).replace("\\-", "-")
        texts += [line for line in page.splitlines() if line[:1].isalpha() and "\\" not in line]
    sentences: dict[str, None] = {}
    for text in texts:
        for sentence in re.split(r"(?<=[.!?]) (?=[A-ZÄÖÜ])", text):
            if 6 <= len(sentence.split()) <= 28 and sentence[0].isupper() and sentence[-1] in ".!?":
                sentences[sentence] = None
    return list(sentences)
