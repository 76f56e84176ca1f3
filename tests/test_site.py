"""The site: pages from Markdown and notebooks, links that resolve, and no request to another host."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import papers
import pytest

from specviz import cli
from specviz.errors import SpecvizError
from specviz.site import books, build, check, pages

nbformat = pytest.importorskip("nbformat", reason="needs the site extra")

ROOT = Path(__file__).parents[1]


def cell(source, *outputs, kind="code"):
    made = getattr(nbformat.v4, f"new_{kind}_cell")(source)
    if outputs:
        made.outputs = [nbformat.v4.new_output(**output) for output in outputs]
    return made


def test_links_follow_their_pages(tmp_path):
    text = "[a](docs/results.md#kernels) ![b](docs/player.png) [c](specviz/draft.py) `[d](x.md)` [e](#here) [f](https://x.y)"
    page = pages.Page("README.md", "index", f"{text}\n```python\na[0](docs/results.md)\n```\n")
    made = pages.linked(page, {"docs/results.md": "results"}, tmp_path)
    assert made.startswith("[a](results.md#kernels) ![b](pictures/docs-player.png) [c](https://")
    assert "blob/main/specviz/draft.py) `[d](x.md)` [e](#here) [f](https://x.y)" in made
    assert "a[0](docs/results.md)" in made and (tmp_path / "pictures" / "docs-player.png").is_file()
    drawn = pages.Page("notebooks/02.ipynb", "walkthroughs/02", "![a](../pictures/docs-player.png)")
    assert pages.linked(drawn, {}, tmp_path) == drawn.text
    deep = pages.Page("notebooks/02.ipynb", "walkthroughs/02", "[a](../docs/results.md)")
    assert pages.linked(deep, {"docs/results.md": "results"}, tmp_path) == "[a](../results.md)"


def test_a_walkthrough_becomes_a_page(tmp_path):
    html = {"output_type": "display_data", "data": {"text/html": "<b>x</b>\n\n```"}}
    widget = {"output_type": "display_data", "data": {books.WIDGET: {}, "text/plain": "Box()"}}
    picture = {"output_type": "display_data", "data": {"image/png": "aGVsbG8="}}
    book = nbformat.v4.new_notebook(cells=[
        cell("# Title\n\nText.", kind="markdown"),
        cell("print(1)", {"output_type": "stream", "name": "stdout", "text": "<1>\x1b[31m"}),
        cell("shown", html, widget, picture),
    ])  # fmt: skip
    text = books.markdown(book, Path("02_x.ipynb"), tmp_path)
    assert text.startswith("# Title\n\n[Binder](https://mybinder.org/") and "```python\nprint(1)\n```" in text
    assert "<pre>&lt;1&gt;</pre>" in text and "a kernel" in text and "Box()" not in text
    assert "````{raw} html" in text  # a fence that the output cannot close
    (drawn,) = (tmp_path / "pictures").iterdir()
    assert drawn.read_bytes() == b"hello" and f"../pictures/{drawn.name}" in text


def test_widgets_show_themselves_as_offline_pages(tmp_path):
    """A separate kernel runs a small walkthrough; a failure is one line."""
    pytest.importorskip("nbclient")
    pytest.importorskip("anywidget")
    book = nbformat.v4.new_notebook(cells=[
        cell("import specviz as sv\ntrace = sv.open(sv.example('prompt_lookup'))"),
        cell("sv.player(trace)"),
        cell("trace.to_html('mine.html')"),
    ])  # fmt: skip
    book.metadata.kernelspec = {"name": "python3", "display_name": "", "language": "python"}
    path = tmp_path / "02_x.ipynb"
    path.write_text(nbformat.writes(book))
    (made,) = books.executed([path], tmp_path / "out", 1, lambda line: None)
    assert "players/02-1.html" in json.dumps(made) and (tmp_path / "out/players/02-1.html").is_file()
    assert (tmp_path / "out/walkthroughs/02_x-files/mine.html").is_file()
    assert len(made.cells) == 3 and not (tmp_path / "out/notebooks").exists()
    book.cells.append(cell("1 / 0"))
    path.write_text(nbformat.writes(book))
    with pytest.raises(SpecvizError, match="02_x does not run: ZeroDivisionError"):
        books.executed([path], tmp_path / "again", 1, lambda line: None)


def test_faults_are_noticed(tmp_path):
    (tmp_path / "a.html").write_text(
        '<h1 id="top"></h1><a href="b.html#no">1</a><a href="c.html">2</a><a href="#top">3</a>'
        '<a href="https://x.y">4</a><img src="https://x.y/z.png"><link rel="stylesheet" href="//x.y/z.css">'
        '<link rel="canonical" href="https://x.y">'
    )
    (tmp_path / "b.html").write_text('<p id="yes"></p><script src="none.js"></script>')
    lines = check.faults(tmp_path)
    assert len(lines) == 5 and sum("another host" in line for line in lines) == 2
    fetching = ("video", "src"), ("audio", "src"), ("embed", "src"), ("object", "data")
    fetched = "".join(f'<{tag} {name}="https://x.y/{tag}"></{tag}>' for tag, name in fetching)
    (tmp_path / "d.html").write_text(
        f"{fetched}<style>@import url('https://x.y/s.css'); @import \"t.css\";</style>@import 'u.css'"
        '<img srcset="data:image/png;base64,AA 1x, https://x.y/e.png 2x, none.png">'
        f'<a href="{tmp_path}/b.html">1</a>'
    )
    more = [line for line in check.faults(tmp_path) if line not in lines]
    assert sum("another host" in line for line in more) == 6 and len(more) == 9
    assert f"d.html links to {tmp_path}/b.html: write it relative to the page" in more
    assert {f"d.html links to {name}, which does not exist" for name in ("t.css", "none.png")} < {*more}
    assert "a.html links to b.html#no, but that page has no such anchor" in lines
    assert "b.html links to none.js, which does not exist" in lines


def test_requests_of_style_sheets_and_drawings_are_noticed(tmp_path):
    (tmp_path / "a.html").write_text(
        "<style>/* url(https://x.y/0) */ a{background:url( 'https://x.y/1' )} @font-face{src:url(//x.y/2)}"
        "b{fill:url(#here);background:url(data:image/png;base64,AA)} i::before{content:'/*'}"
        "i{background:url(\"data:image/svg+xml;utf8,<svg><g filter='url(%23a)'/></svg>\")}"
        "i{background:url('https://x.y/10')} i::after{content:'*/ url(https://x.y/0)'}</style>"
        '<p style="background:URL(&quot;https://x.y/3&quot;)"><input type=image src=https://x.y/4>'
        '<svg id="here"><image href="https://x.y/5"/><image xlink:href="https://x.y/6"/>'
        '<use href="https://x.y/7#a"/><use href="#here"/></svg>'
    )
    (tmp_path / "a.css").write_text(
        '@import "//x.y/8"; a{background:url(none.png)} b{src:url(https://x.y/9)}'
    )
    lines = check.faults(tmp_path)
    assert len(lines) == 10 and all("fetches" in line and "another host" in line for line in lines)
    assert not any("//x.y/0 " in line for line in lines), "in a comment or a string"
    assert sum(line.startswith("a.css") for line in lines) == 2


def test_an_installed_package_leaves_the_documents_of_others(tmp_path, monkeypatch):
    """Next to it, where a checkout has its own, another distribution may have put a README and docs."""
    monkeypatch.setattr(pages, "HERE", tmp_path / "specviz")
    (tmp_path / "specviz" / "docs").mkdir(parents=True)
    (tmp_path / "docs").mkdir()
    for part in ("README.md", "ours.md"):
        (tmp_path / "specviz" / "docs" / part).write_text("ours")
    for part in ("README.md", "CHANGELOG.md", "docs/theirs.md"):
        (tmp_path / part).write_text("theirs")
    assert {page.name: page.text for page in pages.written()} == {"index": "ours", "ours": "ours"}


def test_papers_pages_are_those_of_the_data(tmp_path):
    for path in papers.write(tmp_path):
        committed = (ROOT / "docs" / "papers" / path.name).read_text("utf8")
        assert committed == path.read_text("utf8"), "run: python -m tests.papers docs/papers"
    assert all((ROOT / "docs" / "papers" / f"{paper}.md").is_file() for paper in papers.METHODS)


def test_only_tables_with_claims_count_as_measured_in_haste(monkeypatch):
    quick = {"bild/table1": True, "bild/table3": False, "bild/figure2": None}
    of = {"model": "m", "suite": "s", "processor": "p", "dtype": "d", "kernels": "k", "date": ""}
    source = SimpleNamespace(threads=1, **of)
    every = {
        name: SimpleNamespace(
            settings={} if value is None else {"quick": value},
            verdicts=[] if value is None else ["held"],
            sources=[source],
        )
        for name, value in quick.items()
    }
    monkeypatch.setattr(papers, "recorded", lambda name: every)
    assert "1 of 2 tables and figures with claims were measured in haste" in papers.about_verdicts()
    assert [line.endswith("; quick\n") for line in papers._settings("replays", list(every))] == [True, False]


def test_papers_pages_name_the_tables_of_an_earlier_drafter():
    """The folder of the recorded runs lists the same ones by hand."""
    lines = {paper: papers._earlier("replays", paper) for paper in papers.METHODS}
    earlier = {paper: line.partition(":")[0][2:] for paper, each in lines.items() for line in each}
    assert earlier == {
        "bild": "figure4, figure5, figure8, table1, table5",
        "cm_asd": "figure2, table4, table5",
    }
    assert "an earlier `smollm2-draft-aligned` (weights 819d30e53076f6bc)" in lines["bild"][0]


def test_only_a_site_is_replaced(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(SpecvizError, match="name a new folder"):
        build._free(tmp_path, True)
    (tmp_path / build.MARK).write_text("")
    with pytest.raises(SpecvizError, match="--force"):
        build._free(tmp_path, False)
    build._free(tmp_path, True)


def test_without_the_extra_one_line_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SpecvizError, match=r"\[site\]"):
        build.build(tmp_path / "site")


def contents(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_the_command_builds_the_site_and_packs_it(tmp_path, monkeypatch, capsys):
    """A small site stands in for the build; the archive holds what the folder holds."""
    given = []

    def small(out, execute, workers, force):
        given.append((out, execute, workers, force))
        (out / "papers").mkdir(parents=True, exist_ok=True)
        (out / "index.html").write_text("<h1>specviz</h1>")
        (out / "papers" / "bild.html").write_text("<p>für</p>", encoding="utf8")
        return out

    monkeypatch.setattr(build, "build", small)
    out, archive = tmp_path / "site", tmp_path / "site.zip"
    assert cli.run(["site", "--out", str(out), "--zip", "--jobs", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"site: {out / 'index.html'}", f"archive: {archive}"]
    shutil.unpack_archive(archive, tmp_path / "unpacked")
    assert contents(tmp_path / "unpacked") == contents(out) and len(contents(out)) == 2
    assert cli.run(["site", "--out", str(out), "--zip"]) == 2
    assert "site.zip exists" in capsys.readouterr().err
    assert cli.run(["site", "--out", str(out), "--execute", "--force"]) == 0
    assert given == [(out, False, 1, False), (out, True, 2, True)]  # nothing is built over an archive
    before = archive.read_bytes()
    monkeypatch.setattr(shutil, "make_archive", full)
    assert cli.run(["site", "--out", str(out), "--zip", "--force"]) == 2
    assert "No space left" in capsys.readouterr().err
    assert archive.read_bytes() == before and {p.name for p in tmp_path.iterdir()} == {
        "site",
        "site.zip",
        "unpacked",
    }


def full(name, *given):
    """Begin a file, then fail as a full disk does."""
    Path(f"{name}.zip").write_bytes(b"PK")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_keeps_the_old_site(tmp_path, monkeypatch):
    made, out = tmp_path / "made", tmp_path / "site"
    for folder, text in ((made, "new"), (out, "old"), (tmp_path / "site.partial", "mine")):
        folder.mkdir()
        (folder / "index.html").write_text(text)

    def stops(source, target):
        target.mkdir()
        raise shutil.Error([(str(source), str(target), "[Errno 28] No space left on device")])

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copytree", stops)
        with pytest.raises(SpecvizError, match=r"cannot write .*site: .*No space left"):
            build._place(made, out)
    there = {"made", "site", "site.partial"}
    assert {p.name for p in tmp_path.iterdir()} == there and (out / "index.html").read_text() == "old"
    build._place(made, out)
    assert {p.name for p in tmp_path.iterdir()} == there and (out / "index.html").read_text() == "new"
    assert (tmp_path / "site.partial" / "index.html").read_text() == "mine"


def test_a_control_that_draws_never_waits_for_a_reply(tmp_path, monkeypatch):
    """A message to the kernel while a reply arrives hides the reply until the cell times out."""
    output_widget = pytest.importorskip("nbclient.output_widget", reason="needs the site extra")
    sent = []
    monkeypatch.setattr(output_widget.OutputWidget, "send", lambda self, data: sent.append(data))
    draw = "import ipywidgets\ncontrols = ipywidgets.interact(lambda x: print('drawn', x), x=(1, 9))"
    book = nbformat.v4.new_notebook(cells=[cell(draw), cell("print('after')")])
    client = books.runner(book, tmp_path, 60)
    client.execute()
    assert not sent and book.cells[1].outputs[0].text == "after\n"
    shown = [o.text for state in client.widget_state.values() for o in state.get("outputs", ())]
    assert shown == ["drawn 5\n"]  # and its drawing is kept
