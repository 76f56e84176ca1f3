"""The site from disk: no build warnings, no requests, no errors, accessible, a small first page."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

pytest.importorskip("torch", reason="methods' pages need the run extra")

from specviz.site import build

PAGES = (
    "index", "course", "results", "traces", "methods/unispec", "papers/unispec",
    "walkthroughs/02_draft_and_verify",
)  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for name in build.NEEDED:
        pytest.importorskip(name, reason="needs the site extra")
    lines: list[str] = []

    def reference(made):  # pdoc takes half a minute, and has its own test
        for name in build.REFERENCE:
            page = made / "api" / f"{name.replace('.', '/')}.html"
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(f"<h1>{name}</h1>")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_reference", reference)
        made = build.build(tmp_path_factory.mktemp("site") / "out", say=lines.append)
    assert not [line for line in lines if "WARNING" in line or "ERROR" in line], lines
    return made


@pytest.fixture
def address(site):
    """The site on a server, as axe-core requires."""
    handler = partial(Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_no_serious_violation(address, open_page, axe, shoot, dark):
    page, faults = open_page(dark=dark), {}
    for name in PAGES:
        page.goto(f"{address}/{name}.html")
        faults |= {name: lines} if (lines := axe(page, "body")) else {}
        shoot(page, f"site-{name.replace('/', '-')}-{'dark' if dark else 'light'}")
    assert not faults, "\n".join(f"{name}: {line}" for name, lines in faults.items() for line in lines)


def test_pages_open_from_disk(site, open_page):
    page = open_page()
    for name in PAGES:
        page.goto((site / f"{name}.html").as_uri())
        assert page.locator("h1").count() >= 1


def test_the_first_page_is_light(site, open_page):
    page, sizes = open_page(), []
    page.on("requestfinished", lambda request: sizes.append(request.url))
    page.goto((site / "index.html").as_uri())
    files = {
        site / url.split("?")[0].split(f"{site.as_uri()}/")[1] for url in [*sizes, page.url] if "file:" in url
    }
    assert sum(file.stat().st_size for file in files) < 1e6


def test_search_and_formulas(site, open_page):
    page = open_page()
    page.goto((site / "search.html").as_uri() + "?q=rollback")
    page.locator("#search-results li a").first.wait_for()
    page.goto((site / "walkthroughs" / "02_draft_and_verify.html").as_uri())
    assert page.locator("math").count() > 5
    page.goto((site / "players" / "unispec.html").as_uri())
    page.locator("#place *").first.wait_for()
