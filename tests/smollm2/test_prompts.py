"""Training prompts of SmolLM2's drafters, built here from small stand-ins for Debian packages."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pytest

import specviz as sv
from smollm2 import prompts, sources, sums, topics

GERMAN = "Der Hund läuft heute durch den großen Garten."
PROSE = "The server reads its settings from a file when it begins, and again when it is told to. " * 2
NOUN = "0000000{0} {1:02d} n 01 {2} 0 001 {3} 0000000{0} n 0000 | what it is"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all packages unpacked, so that nothing is fetched."""
    share = tmp_path / "unpacked" / sources.SHARE
    for name in sources.PACKAGES:
        (share / "doc" / name).mkdir(parents=True)
    nouns, counts = [], []
    for number, kind in sources.FILES.items():
        if kind in {*topics.WORDS, *topics.NAMED}:
            nouns += [
                NOUN.format(1, number, f"{kind}thing", "@"),
                NOUN.format(2, number, f"Old_{kind.title()}", "@i"),
            ]
            counts.append(f"{kind}thing%1:00:00:: 1 9")
    (share / "wordnet").mkdir()
    (share / "wordnet/data.noun").write_text("\n".join(["  licence", *nouns]))
    (share / "wordnet/cntlist.rev").write_text("\n".join(counts))
    (share / "dictd").mkdir()
    entries = [
        f"term {i}\n\n" + "".join(f"   Word {j} of {{many}} words in it.\n" for j in range(8))
        for i in range(4)
    ]
    (share / "dictd/foldoc.dict.dz").write_bytes(gzip.compress("\n".join(entries).encode()))
    for folder, text in (
        ("doc/debian-handbook/html/en-US", PROSE), ("doc/debian-handbook/html/de-DE", GERMAN),
        ("doc/python3.11/html", PROSE), ("doc/postgresql-doc-15/html", PROSE),
    ):  # fmt: skip
        (share / folder).mkdir(parents=True)
        page = "".join(f"<p>{text.strip()} <b>Page {i}</b> ends here now.</p>" for i in range(6))
        (share / folder / "a.html").write_text(page, encoding="utf-8")
    (share / "games/fortunes/de").mkdir(parents=True)
    for name in ("anekdoten", "sprichworte", "sprueche", "wusstensie", "zitate", "murphy", "witze"):
        (share / "games/fortunes/de" / name).write_text(f"{GERMAN}\n\t\t-- {name}\n%\n", encoding="utf-8")
    (share / "man/de/man1").mkdir(parents=True)
    (share / "man/de/man1/a.1.gz").write_bytes(
        gzip.compress(b".TH A\nDieser Befehl zeigt alle Dateien an.\n")
    )
    few = {"conversation": 40, "coding": 20, "qa": 12, "math_reasoning": 30, "translation": 10,
           "summarization": 8, "rag": 9}  # fmt: skip
    monkeypatch.setattr(prompts, "SHARES", few)
    monkeypatch.setattr(sources.subprocess, "run", None)
    return tmp_path


def test_all_kinds_of_work_are_mixed_without_a_prompt_twice(packages: Path) -> None:
    made = list(prompts.prompts(packages))
    assert Counter(each["kind"] for each in made) == prompts.SHARES
    assert len({each["prompt"] for each in made}) == len(made)
    assert len({each["kind"] for each in made[:40]}) > 4
    assert not any("{" in each["prompt"] for each in made)
    assert list(prompts.prompts(packages)) == made


def test_texts_become_what_is_asked_about(packages: Path) -> None:
    share = sources.fetch(packages)
    common, named = sources.nouns(share)
    assert common["animal"] == ["animalthing"] and named["person"] == ["Old Person"]
    assert len(sources.terms(share)) == 4 and "{" not in sources.terms(share)[0][1]
    assert GERMAN in sources.german(share) and "Dieser Befehl zeigt alle Dateien an." in sources.german(share)
    assert all(70 <= len(text.split()) <= 200 for text in sources.passages(share)) and sources.passages(share)


@pytest.mark.parametrize(
    ("one", "many"), [("fox", "foxes"), ("berry", "berries"), ("day", "days"), ("owl", "owls")]
)
def test_plurals(one: str, many: str) -> None:
    assert prompts.plural(one) == many


def test_the_sums_are_what_the_suite_holds_and_right():
    made = sums.sums()
    suite = sv.suite("sums")
    assert [(e["id"], e["prompt"], e["reference"]) for e in suite] == [
        (e["id"], e["prompt"], e["reference"]) for e in made
    ]
    assert len({e["prompt"] for e in made}) == len(made) == 60
    plain = {" plus ": int.__add__, " minus ": int.__sub__, " times ": int.__mul__}
    asked = [
        (e, sign) for e in made for sign in plain if e["prompt"].startswith("What is") and sign in e["prompt"]
    ]
    assert len(asked) == 15
    for entry, sign in asked:
        first, second = entry["prompt"].removeprefix("What is ").removesuffix("?").split(sign)
        assert entry["reference"] == [str(plain[sign](int(first), int(second)))]
    learnt = set(prompts.lines(topics.SUMS))
    assert not learnt & {wording for wording, *_ in sums.WORDINGS}
    assert all(int(e["reference"][0]) >= 0 for e in made)
