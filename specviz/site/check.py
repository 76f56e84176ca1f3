"""Check a folder of pages: every link leads somewhere, and nothing is fetched from another host."""

from __future__ import annotations

import posixpath
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes whose address a browser fetches by itself when it shows a page.
FETCHED = {
    *((tag, "src") for tag in ("script", "img", "iframe", "source", "video", "audio", "track", "embed")),
    ("link", "href"), ("object", "data"), ("video", "poster"), ("img", "srcset"), ("source", "srcset"),
    ("input", "src"), *((tag, key) for tag in ("image", "use") for key in ("href", "xlink:href")),
}  # fmt: skip
LINKED = {*FETCHED, ("a", "href")}
FETCHING = {"stylesheet", "icon", "preload", "modulepreload"}  # values of `rel` that make a link fetch
SRCSET = re.compile(r"(\S*[^\s,])(?:\s+[^,]*)?(?:,|$)")  # addresses, each with a width or density
# In CSS: a comment, the address of a style sheet, a picture or a font, and any other string.
STRING = r""""((?:\\.|[^"\\\n])*)"|'((?:\\.|[^'\\\n])*)'"""
STYLED = re.compile(
    rf"""/\*.*?\*/|(?:@import\s*|url\(\s*)(?:{STRING})|url\(\s*([^"')\s][^)\s]*)|{STRING}""",
    re.DOTALL | re.IGNORECASE,
)


def _styled(css: str) -> list[str]:
    """Addresses that CSS fetches; names within the page (``#name``) are none."""
    links = (link for groups in STYLED.findall(css) for link in groups[:3])
    return [link for link in links if link and not link.startswith("#")]


class _Names(HTMLParser):
    """The links of a page, and the names that others can link to."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[tuple[str, bool]] = []  # an address, and whether it is fetched
        self.names: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.names |= {value for key in ("id", "name") if (value := values.get(key))}
        self.links += [(link, True) for link in _styled(values.get("style") or "")]
        for key, value in attrs:
            if value and (tag, key) in LINKED:
                fetched = (tag, key) in FETCHED
                if tag == "link":
                    fetched = bool(FETCHING & set((values.get("rel") or "").split()))
                links = SRCSET.findall(value) if key == "srcset" else [value]
                self.links += [(link, fetched) for link in links]

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "style":
            self.links += [(link, True) for link in _styled(data)]


def faults(folder: Path, own: tuple[str, ...] = ()) -> list[str]:
    """List the faults in the pages and style sheets of a folder, one line each.

    A link to another host is not followed, and is a fault only if the browser would fetch it by itself. In
    pages whose path begins with one of `own`, links to places within a page are not checked: pdoc links to
    annotations that it does not list.
    """
    pages: dict[str, _Names] = {}
    for path in sorted(folder.rglob("*.html")):
        names = _Names()
        names.feed(path.read_text(encoding="utf8"))
        pages[path.relative_to(folder).as_posix()] = names
    wrong = []
    for page, names in pages.items():
        for link, fetched in dict.fromkeys(names.links):
            parts = urlsplit(link)
            if parts.scheme in ("data", "blob", "mailto", "javascript"):
                continue
            if parts.scheme or parts.netloc:
                if fetched:
                    wrong.append(f"{page} fetches {link} from another host")
                continue
            if parts.path.startswith("/"):
                wrong.append(f"{page} links to {link}: write it relative to the page")
                continue
            goal = page
            if parts.path:
                goal = posixpath.normpath(posixpath.join(posixpath.dirname(page), unquote(parts.path)))
            file, place = folder / goal, unquote(parts.fragment)
            if not file.exists() or goal.startswith(".."):
                wrong.append(f"{page} links to {link}, which does not exist")
            elif place and goal in pages and not page.startswith(own) and place not in pages[goal].names:
                wrong.append(f"{page} links to {link}, but that page has no such anchor")
    for path in sorted(folder.rglob("*.css")):
        name = path.relative_to(folder).as_posix()
        links = dict.fromkeys(_styled(path.read_text(encoding="utf8")))
        wrong += [f"{name} fetches {link} from another host" for link in links if urlsplit(link).netloc]
    return wrong
