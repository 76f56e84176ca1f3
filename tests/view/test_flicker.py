"""The flicker ribbon: each word's history, counted by hand; safe, complete and readable without colour."""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from ribbons import FLICKERS, PIECES, C, H, W, stream

import specviz as sv
import traces
from specviz import view
from specviz.errors import ParameterError, TraceError
from specviz.trace import Recorder
from specviz.view import flicker as module
from specviz.view.flicker import FIRST, LAST
from specviz.view.updates import is_stream, ribbon, side_by_side, words


@pytest.fixture(autouse=True)
def _no_figure_stays_open():
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


def fates(trace, **more):
    return [row.fates for row in ribbon(trace, **more).rows]


def test_words():
    assert words("Tom was  tired, so.") == ["Tom", " was", "  tired", ",", " so", "."]
    assert words("Emma's state-of-the-art") == ["Emma's", " state-of-the-art"]
    assert words("猫は a 座る。") == ["猫", "は", " a", " 座", "る", "。"]
    assert words("か\u3099👩\u200d👩 x\u0301y") == ["か\u3099", "👩\u200d👩", " x\u0301y"]
    assert words("한국어 단어") == ["한국어", " 단어"]
    assert words("a ") == ["a "] and words("  ") == ["  "] and words("") == []


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("rock'n'roll 'n' x-1 -1 a- b", ["rock'n'roll", " '", "n", "'", " x-1", " -", "1", " a", "-", " b"]),
        ("Emma’s ’’ a'\u0301b", ["Emma’s", " ’", "’", " a", "'\u0301", "b"]),
        ("a'猫'b", ["a'", "猫", "'", "b"]),
        ("x² ½ⅷ ٣4", ["x²", " ½ⅷ", " ٣4"]),
        ("भाषा ภาษา မြန်", ["भाषा", " ภ", "า", "ษ", "า", " မြ", "န်"]),
        ("ｶﾞ か゛〆々ー。", ["ｶ", "ﾞ", " か", "゛", "〆", "々", "ー", "。"]),
        ("\U00020000\U00020001a", ["\U00020000", "\U00020001", "a"]),
        ("👍\U0001f3fd❤\ufe0f👩\u200d💻!", ["👍\U0001f3fd", "❤\ufe0f", "👩\u200d💻", "!"]),
        ("a\u200d-b \u200dab \u200d c", ["a\u200d-b", " \u200da", "b", " \u200d", " c"]),
        ("a\x1cb\u3000c\u2028\td\n", ["a", "\x1cb", "\u3000c", "\u2028\td\n"]),
        (" \x1f", [" \x1f"]),
        ("\u0301a \u0301a", ["\u0301", "a", " \u0301", "a"]),
        ("\u200ba\ufeff\x00\ud800", ["\u200b", "a", "\ufeff", "\x00", "\ud800"]),
    ],
)
def test_words_of_hard_texts(text, split):
    assert words(text) == split and "".join(split) == text


def test_what_became_of_each_word():
    one = ribbon(stream(FLICKERS))
    new, kept, again = "new", "kept", "rewritten"
    assert [r.fates for r in one.rows] == [(new,) * 3, (kept, again, again, new), (kept, kept), (kept, kept)]
    assert [r.erased for r in one.rows] == [(), (" w1", " w2"), (" w6", " w7"), ()]
    assert [r.source for r in one.rows][1] == ("src0 src1", "", " src2 src3")
    assert [r.counts["reused"] for r in one.rows] == [0, 8, 10, 12]
    assert one.rows[1].notes() == (
        "2 erased", "1 kept", "2 rewritten", "1 new", "draft 1/3 tokens", "cache 8/10", "30.0 ms",
    )  # fmt: skip
    numbers = {name: value for name, value, _ in one.numbers}
    assert numbers["erased a word"] == "2.00", "four words taken back, two are left"
    assert numbers["A/D"] == f"{(1 + 2 + 2) / (3 + 4 + 2):.2f}"


def test_draft_and_display_are_apart():
    one = ribbon(stream(FLICKERS))
    assert [r.reuse for r in one.rows][1] == ("draft", "", "", "")
    assert one.rows[1].draft == ((" w0", "accepted"), (" w1", "rejected"), (" w2", "unjudged"))
    carried = ribbon(stream([[W], [W, W + 1]], mode="cd"))
    assert carried.rows[1].reuse == ("unreviewed", "")
    assert ribbon(stream(FLICKERS, mode="rt")).rows[1].reuse == ("",) * 4


@pytest.mark.parametrize("k", [1, 2, 9])
def test_a_mask_asked_for_is_a_mask_recorded(k):
    """k affects only the display, so showing another k is exact."""
    asked, recorded = ribbon(stream(FLICKERS), k=k), ribbon(stream(FLICKERS, k=k))
    assert [r.fates for r in asked.rows] == [r.fates for r in recorded.rows]
    assert [r.erased for r in asked.rows] == [r.erased for r in recorded.rows]
    assert asked.rows[0].count("hidden") == min(k, 3) and asked.rows[-1].count("hidden") == 0


def test_what_was_hidden_is_not_erased():
    one = ribbon(stream([[W, W + 1], [W, W + 2]], k=1))
    assert [r.count("erased") for r in one.rows] == [0, 0]
    assert one.rows[1].fates == ("kept", "new")


@pytest.mark.parametrize("end", ["interrupted", None])
def test_an_update_that_was_broken_off_leaves_the_display(end):
    whole = stream(FLICKERS)
    rows = whole.arrow([column.name for column in sv.schema.COLUMNS]).to_pylist()
    count = next(i for i, row in enumerate(rows, 1) if (row["update"], row["cycle"]) == (1, 1))
    rows[count - 1] |= {"end": end, "shown": None}
    recorder = Recorder(whole.run, piece=lambda token: PIECES[token])
    for row in rows[:count]:
        recorder.add(row)
    one = ribbon(recorder.close(complete=False, stopped="interrupted"))
    assert [r.words for r in one.rows] == [(" w0", " w1", " w2")] * 2
    assert (one.rows[1].fates, one.rows[1].erased) == (("kept",) * 3, ())
    assert {name: value for name, value, _ in one.numbers}["erased a word"] == "0.00"


def test_characters_stay_whole_when_a_mask_cuts_their_bytes():
    whole = [*range(C, C + 15)]
    one = ribbon(stream([whole, whole], shown=[8, 15]))
    assert one.rows[0].words == ("猫", "は", "座", "る", "。")
    assert one.rows[0].shown == 2, "eight bytes are two characters and two thirds of one"
    assert one.rows[1].fates == ("kept", "kept", "new", "new", "new")
    assert one.rows[1].reuse == ("draft",) * 5


def test_a_source_that_shrinks_and_one_that_stays():
    one = ribbon(stream([[W]] * 3, sources=["a b c", "a x", "a x"]))
    assert [r.source for r in one.rows] == [("", "", "a b c"), ("a", " b c", " x"), ("a x", "", "")]
    html = view.html(stream([[W]] * 3, sources=["a b c", "a x", "a x"]))
    assert "<s>b c</s>" in html and "no change" in html


class Page(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.tags, self.names, self.words = [], [], ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.names += [name for name, _ in attrs]

    def handle_data(self, data):
        self.words += data


def test_hostile_text_stays_text():
    hostile = list(range(H, C))
    one = stream([hostile, hostile[::-1]], sources=["<b onclick=x>", "</table><script>"], run="<i>")
    html = sv.flicker({"<img src=x>": one})._repr_html_()
    page = Page(html)
    assert not {"script", "img", "iframe", "object", "link"} & set(page.tags)
    assert not [n for n in page.names if n.startswith("on") or n in ("src", "href")]
    assert "</script>" in page.words and "<img src=x>" in page.words and "\u202e" not in html
    assert "‮" not in str(sv.flicker(one))


def test_every_fate_can_be_told_without_colour():
    html = sv.flicker([stream(FLICKERS, k=1), stream(FLICKERS, mode="cd", k=1, beta=0.0)])._repr_html_()
    assert "<s>" in html and 'class="rewritten' in html and 'class="hidden' in html and 'class="new' in html
    assert "[-erased-] {~rewritten~} {+new+} ⟦hidden⟧" in str(sv.flicker(stream(FLICKERS, k=1)))
    assert "hidden" not in str(sv.flicker(stream(FLICKERS)))
    style = (Path(view.__file__).parent / "ribbon.css").read_text()
    for rule, sign in (
        ("rewritten", "repeating-linear"),
        ("hidden", "dashed"),
        ("u", "solid"),
        ("unseen-draft", "dotted"),
    ):
        assert sign in re.search(rf"^\.{rule}\{{(.*)\}}$", style, re.M)[1]
    for word in ("erased", "kept", "rewritten", "new", "hidden"):
        assert f"</span> {word}</span>" in html, "the legend names it"
    assert 'aria-label="map of 4 updates, words over all of them' in html


def test_the_bars_below_updates_are_in_the_legend():
    html = sv.flicker(stream(FLICKERS))._repr_html_()
    assert html.count('class="took key"') == 2
    assert "time to read the prompt</span>" in html and "time to write</span>" in html


def test_a_map_counts_the_updates_that_it_shows(monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 2)
    html = sv.flicker(stream(FLICKERS))._repr_html_()
    assert "map of the first 2 of 4 updates, words over all of them: 1 kept, 2 rewritten, 4 new" in html


def test_a_poster_names_the_stream_and_its_exactness(monkeypatch):
    figures = []
    monkeypatch.setattr(module, "png", lambda figure: figures.append(figure))
    module.poster(stream(FLICKERS, streams=3))
    assert figures[0].get_suptitle().startswith("town (lossy), stream 1 of 3   ")


def test_side_by_side():
    runs = [stream(FLICKERS, mode=m) for m in ("rt", "ssbd", "cd")]
    assert [r.name for r in side_by_side(runs)] == [
        "Re-translation (RT)",
        "SSBD, β = 0.2",
        "Continuous decoding (CD)",
    ]
    assert [r.name for r in side_by_side({"a": runs[0], "b": runs[1]})] == ["a", "b"]
    html = sv.flicker(runs)._repr_html_()
    assert html.count("<tr>") == 1 + 4 and html.count("<td>") == 3 + 4 * 3
    with pytest.raises(TraceError, match="their sources differ"):
        sv.flicker([runs[0], stream(FLICKERS[:3])])
    with pytest.raises(TraceError, match="no updates"):
        sv.flicker(traces.build("speculative", tokens=8))


def test_long_streams_are_folded():
    grown = [[W + i % 20 for i in range(1 + n // 4)] for n in range(60)]
    html = sv.flicker(stream(grown))._repr_html_()
    assert f"updates {FIRST} to {60 - LAST - 1}</summary>" in html
    assert html.count('<th scope="row">') == 60 + 1
    assert len(html) < 120_000
    long = [[W + i % 20 for i in range(80)]] * 3
    html = sv.flicker(stream(long))._repr_html_()
    assert html.count("characters kept") == 1, "the last row stands whole"


def test_the_trace_shows_its_ribbon(tmp_path):
    one = stream(FLICKERS, streams=3)
    assert is_stream(one) and not is_stream(traces.build("bild", tokens=8))
    html = view.html(one)
    assert html.count('class="ribbon"') == 2 and "1 more streams" in html
    assert view.png(one).startswith(b"\x89PNG")
    assert "[- w1 w2-]" not in view.text(one) and "{~" in view.text(one) and "[-w1 w2-]" in view.text(one)
    assert 'class="ribbon"' in one.to_html(tmp_path / "a.html").read_text(encoding="utf8")
    page = sv.flicker(one).to_html(tmp_path / "b.html")
    assert "default-src 'none'" in page.read_text(encoding="utf8")
    with pytest.raises(TraceError, match="exists"):
        sv.flicker(one).to_html(page)


def test_drawn_for_a_paper():
    ax = view.ribbon(stream(FLICKERS, k=1))
    assert [t.get_text() for t in ax.get_legend().get_texts()] == [
        "kept",
        "rewritten",
        "new",
        "hidden",
        "erased",
    ]
    assert view.ribbon(stream(FLICKERS), ax=ax) is ax


def test_the_door():
    assert sv.flicker(stream(FLICKERS)).ribbons[0].rows
    with pytest.raises(ParameterError, match="live=True"):
        sv.flicker(stream(FLICKERS), k=2)
