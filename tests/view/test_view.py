"""What a trace shows: safe, whole, small, and true to the record."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
import traces

from specviz import view
from specviz.errors import TraceError
from specviz.view import static
from specviz.view.picture import KINDS, picture, pictures

METHODS = ("autoregressive", "speculative", "bild")


class Page(HTMLParser):
    """Tags, attributes and the visible text of each token span."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs


@pytest.mark.parametrize("method", METHODS)
def test_hostile_text_stays_text(method):
    trace = traces.build(method, prompts=6, tokens=80, seed=3)
    page = Page(view.html(trace, most=6))
    assert not {"script", "img", "iframe", "object", "link"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href")]
    html = view.html(trace, most=6)
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in html
    assert "\u202e" not in html, "a token must not turn its neighbours around"


def test_page_makes_no_request(tmp_path):
    path = traces.build("bild", prompts=2, tokens=30).to_html(tmp_path / "page.html")
    html = path.read_text(encoding="utf8")
    assert "default-src 'none'" in html
    assert not re.findall(r"(?:https?:)?//[\w.]+|url\(|@import", html)


def test_a_page_is_not_overwritten_unasked(tmp_path):
    trace = traces.build("speculative", tokens=20)
    path = trace.to_html(tmp_path / "page.html")
    with pytest.raises(TraceError, match="exists"):
        trace.to_html(path)
    assert view.page(trace, path, force=True) == path
    with pytest.raises(TraceError, match="cannot write"):
        view.page(trace, path / "below" / "a" / "file.html")
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


@pytest.mark.parametrize("method", METHODS)
def test_two_hundred_tokens_are_small(method):
    trace = max((traces.build(method, tokens=200, seed=i) for i in range(12)), key=lambda t: len(t.outputs))
    assert len(trace.outputs) >= 60
    scale = max(1.0, 200 / len(trace.outputs))
    assert len(view.html(trace).encode()) * scale <= 300_000


def test_whole_characters():
    trace = traces.build("speculative", prompts=8, tokens=120, seed=5)
    spans = [s for shown in pictures(trace, 8) for s in shown.spans]
    split = [s for s in spans if len(s.tokens) == 2]
    assert {s.text for s in split} & set("猫座席")
    assert all("�" not in s.text for s in split if s.text[0] in "猫座席")


@pytest.mark.parametrize("method", METHODS)
def test_a_picture_says_what_the_record_says(method):
    trace = traces.build(method, prompts=3, tokens=50, seed=2)
    for number in range(3):
        shown = picture(trace, number, 3)
        one = trace.select(prompt=number)
        kept = one.outputs[one.outputs["kept"]]
        assert [t for s in shown.spans for t in s.tokens] == kept["token"].tolist()
        words = {"correction": "rollback"} if method == "bild" else {}
        origin = kept["origin"].astype(str).tolist()
        for span in shown.spans:
            first = origin.pop(0)
            del origin[: len(span.tokens) - 1]  # a character's tokens share a span; its first token names it
            assert span.kind == words.get(first, first)
        assert not origin
        assert sum(c.accepted for c in shown.cycles) == (one.nodes["status"] == "accepted").sum()
        assert len(shown.beliefs) == len(one.nodes)


def test_beliefs_stand_where_their_tokens_went():
    trace = traces.build("speculative", tokens=60, seed=4, hostile=False)
    shown = picture(trace, 0)
    nodes = trace.nodes
    kept = trace.outputs.set_index("position")["token"]
    for belief, token in zip(shown.beliefs, nodes["token"]):
        if belief.status == "accepted":
            assert kept[belief.position] == token


def test_dropped_drafts_and_exactness_are_shown():
    html = view.html(traces.build("bild", tokens=80, seed=1))
    assert "<del" in html and "sv-lost" in html and "lossy" in html
    for kind in ("fallback", "rollback"):
        assert KINDS[kind].mark in html


def test_text_view_cannot_command_a_terminal():
    trace = traces.build("bild", prompts=4, tokens=80, seed=3)
    plain = view.text(trace, most=4)
    assert not set(plain) & {chr(i) for i in range(32) if i != 10}
    assert "\u202e" not in plain
    assert "▾" in plain and "fallback" in plain
    assert "\x1b[34m" in view.text(trace, colour=True)


def test_png_and_mimebundle():
    trace = traces.build("speculative", tokens=60, seed=3)
    assert view.png(trace).startswith(b"\x89PNG")
    bundle = trace._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html", "image/png"}


@pytest.mark.parametrize("name", ["token_strip", "timeline", "confidence", "reliability", "phases"])
@pytest.mark.parametrize("method", METHODS)
def test_plots_draw_on_the_axes_they_are_given(name, method):
    from matplotlib.figure import Figure

    trace = traces.build(method, prompts=2, tokens=40)
    ax = Figure().subplots()
    assert getattr(view, name)(trace, ax=ax) is ax
    assert getattr(view, name)(trace) is not ax


def test_reliability_counts_only_judged_nodes():
    trace = traces.build("speculative", prompts=4, tokens=80, seed=7)
    ax = view.reliability(trace)
    judged = trace.nodes["status"].isin(["accepted", "rejected"])
    assert sum(int(t.get_text()) for t in ax.texts) == judged.sum() < len(trace.nodes)
    heights = np.array([bar.get_height() for bar in ax.patches])
    assert ((heights >= 0) & (heights <= 1)).all()


def test_a_table_escapes_its_cells():
    import pandas as pd

    assert "<b>" not in static.table(pd.DataFrame({"<b>x": ["<b>y"], "n": [1.5]}))


def test_an_empty_run_still_shows():
    from specviz.trace import Recorder

    recorder = Recorder(traces.metadata("speculative", prompts=1), None, piece=traces.piece)
    trace = recorder.close(False, "Ctrl-C")
    assert "Ctrl-C" in view.html(trace)
    assert view.text(trace)
    assert view.png(trace).startswith(b"\x89PNG")


def test_looking_needs_no_torch(tmp_path):
    path = traces.build("bild", tokens=40, path=tmp_path / "run.parquet")
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from specviz.trace import Trace\n"
        f"t = Trace.open({str(tmp_path / 'run.parquet')!r}); t._repr_mimebundle_(); t.summary(); print('ok')"
    )
    assert path.cycles is not None
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "ok", done.stderr
