"""Links: those within the repository resolve, and those to Binder and Colab share one base address."""

from __future__ import annotations

import re
from email.message import Message
from pathlib import Path

import pytest

from specviz.errors import SpecvizError
from specviz.site import links

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BOOKS = sorted((ROOT / "notebooks").glob("*.py"))
LINK = re.compile(r"\]\(([^)\s]+)\)|<(?:img|a)[^>]+(?:src|href)=\"([^\"]+)\"")


def targets(text: str) -> list[str]:
    return [a or b for a, b in LINK.findall(re.sub(r"^```.*?^```", "", text, flags=re.M | re.S))]


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def broken(page: Path, text: str) -> list[str]:
    missing = []
    for link in targets(text):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        file = (page.parent / path) if path else page
        lost = (
            anchor
            and file.suffix == ".md"
            and file.exists()
            and anchor not in anchors(file.read_text("utf8"))
        )
        if not file.exists() or lost:
            missing.append(link)
    return missing


@pytest.mark.parametrize("page", [*PAGES, *BOOKS], ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    assert not broken(page, page.read_text("utf8"))


def test_a_broken_link_is_seen():
    page = ROOT / "README.md"
    assert broken(page, "[a](nowhere.md) [b](docs/results.md#no-such) ![c](docs/none.png)") == [
        "nowhere.md", "docs/results.md#no-such", "docs/none.png",
    ]  # fmt: skip
    assert not broken(page, "[a](docs/results.md#kernels) [b](https://example.org)")


def test_binder_and_colab_are_of_the_repository():
    text = (ROOT / "README.md").read_text("utf8")
    given = re.findall(r"https://(?:mybinder\.org/v2|colab\.research)[^)\s]+", text)
    assert sorted(given) == sorted([links.binder(), links.colab()]), "write these into README.md"
    assert links.install() in (ROOT / "notebooks" / "start.py").read_text("utf8"), links.install()


def test_another_address_gives_other_links(monkeypatch, tmp_path):
    monkeypatch.setattr(links, "HERE", tmp_path / "specviz")
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "specviz-lm"\n[project.urls]\nRepository = "https://github.com/a/b/"\n'
    )
    assert links.binder("notebooks/x y.ipynb").endswith(
        "gh/a/b/main?urlpath=lab%2Ftree%2Fnotebooks%2Fx%20y.ipynb"
    )
    assert links.source("docs/x.md") == "https://github.com/a/b/blob/main/docs/x.md"
    monkeypatch.setattr(links, "metadata", lambda name: Message())  # an installation without URLs
    others = '[project]\nname = "other"\n[project.urls]\nRepository = "https://github.com/c/d"\n'
    for content in ("[project]\n", "[tool.x]\n", others):  # of this or of another package next to ours
        (tmp_path / "pyproject.toml").write_text(content)
        with pytest.raises(SpecvizError, match="set Repository"):
            links.repository()
