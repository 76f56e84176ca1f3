"""The site from disk: built without a warning, no request, no error, accessible, a light first page."""

from __future__ import annotations

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

    def reference(made):  # pdoc takes half a minute, and has a test of its own
        (made / "api").mkdir()
        (made / "api" / "specviz.html").write_text("<h1>specviz</h1>")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_reference", reference)
        made = build.build(tmp_path_factory.mktemp("site") / "out", say=lines.append)
    assert not [line for line in lines if "WARNING" in line or "ERROR" in line], lines
    return made


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pages_open_from_disk(site, open_page, axe, dark):
    for name in PAGES:
        page = open_page(dark=dark)
        page.goto((site / f"{name}.html").as_uri())
        assert page.locator("h1").count() >= 1
        assert not axe(page, "body"), name
        page.context.close()


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
