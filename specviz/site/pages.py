"""Pages of the site from the repository's Markdown: their names, and links adapted to the site."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from specviz.paths import HERE, walkthroughs
from specviz.site.links import source

# A fenced block, or code within a line.
CODE = re.compile(r"^(`{3,}|~{3,}).*?^\1[ \t]*$|(`+)[^`].*?(?<!`)\2(?!`)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\(|\b(?:src|href)=\")([^)\"\s]+)")
PICTURES = (".png", ".gif", ".svg", ".jpg")


@dataclass(frozen=True)
class Page:
    """A page: its path in the repository, its name on the site, and its Markdown."""

    origin: str
    name: str
    text: str


def root(part: str) -> Path | None:
    """Location of a repository path in a checkout or the installed package; None if it is missing."""
    installed = (HERE / "docs").is_dir()  # its parent then holds other packages, and perhaps their docs
    inside = {"README.md": "docs/README.md"}.get(part, part)
    path = HERE / inside if installed else HERE.parent / part
    return path if path.exists() else None


def written() -> list[Page]:
    """Pages of README, ``docs/`` and the data's READMEs; in a checkout CONTRIBUTING and changelog, too."""
    names = {"README.md": "index", "CONTRIBUTING.md": "contributing", "CHANGELOG.md": "changelog"}
    documents = root("docs")
    if documents is not None:
        for path in sorted(documents.rglob("*.md")):
            inner = path.relative_to(documents).as_posix()
            if inner != "README.md":
                names[f"docs/{inner}"] = inner.removesuffix(".md")
    names |= {"data/traces/README.md": "traces", "data/runs/README.md": "runs"}
    there = {origin: root(origin) for origin in names}
    return [
        Page(origin, names[origin], file.read_text(encoding="utf8"))
        for origin, file in there.items()
        if file is not None
    ]


def books() -> dict[str, Path]:
    """The walkthroughs, by name on the site."""
    paths = sorted(walkthroughs().glob("[0-9]*.ipynb"))
    return {f"walkthroughs/{path.stem}": path for path in paths}


def places(pages: list[Page]) -> dict[str, str]:
    """Name of the page that shows each file of the repository."""
    return {page.origin: page.name for page in pages} | {
        f"notebooks/{path.name}": name for name, path in books().items()
    }


def linked(page: Page, names: Mapping[str, str], folder: Path) -> str:
    """Adapt the links of a page's Markdown to the site; pictures are copied into `folder`.

    Files that the site shows are linked there, other files of the repository at their public address.
    """

    def target(match: re.Match[str]) -> str:
        before, link = match[1], match[2]
        path, mark, anchor = link.partition("#")
        if not path or re.match(r"[a-z]+:", link):
            return match[0]
        part = posixpath.normpath(posixpath.join(posixpath.dirname(page.origin), path))
        here = posixpath.dirname(page.name)
        if (
            folder / posixpath.normpath(posixpath.join(here, path))
        ).exists():  # a picture that a walkthrough drew
            return match[0]
        if part in names:
            return f"{before}{posixpath.relpath(names[part], here or '.')}.md{mark}{anchor}"
        file = root(part)
        if file is not None and file.suffix in PICTURES:
            copy = folder / "pictures" / part.replace("/", "-")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
            return f"{before}{posixpath.relpath(f'pictures/{copy.name}', here or '.')}"
        return before + source(part) + mark + anchor

    return outside_code(page.text, lambda text: LINK.sub(target, text))


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Apply `change` to a Markdown text everywhere except in code."""
    parts, end = [], 0
    for match in CODE.finditer(text):
        parts += [change(text[end : match.start()]), match[0]]
        end = match.end()
    return "".join([*parts, change(text[end:])])


def write(folder: Path, name: str, text: str) -> Path:
    """Write a page's source."""
    path = folder / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf8")
    return path
