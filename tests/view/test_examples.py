"""Example texts mark the large model's tokens and nothing else, and are plain text."""

from __future__ import annotations

import re
import sys
from html import unescape
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
import traces
from specviz import view
from specviz.errors import TraceError
from specviz.escape import visible

DRAFTED = ("draft", "unreviewed")


@pytest.fixture(scope="module")
def runs():
    plain = traces.build("autoregressive", prompts=4, tokens=40, seed=5, hostile=False)
    mixed = traces.build("bild", prompts=4, tokens=40, seed=5, hostile=False)
    small = traces.build("autoregressive", prompts=4, tokens=40, seed=5, hostile=False)
    return mixed, plain, small


def test_what_the_target_wrote_is_marked(runs):
    mixed, large, small = runs
    found = view.examples(mixed, large, small, which=[0, 2])
    for index, one in zip((0, 2), found.examples):
        assert [row.name for row in one.rows] == ["ground truth", "large", "small", "bild"]
        assert "".join(p.text for p in one.rows[3].pieces) == mixed.select(prompt=index).text
        assert one.rows[0].pieces[0].text == "Die Katze."
        outputs = mixed.select(prompt=index).outputs
        own = outputs[outputs["kept"] & ~outputs["origin"].isin(DRAFTED) & (outputs["token"] != traces.EOS)]
        marked = "".join(p.text for p in one.rows[3].pieces if p.kind)
        assert marked == b"".join(traces.piece(t) for t in own["token"]).decode()
        assert f"{(~outputs['origin'].isin(DRAFTED)).sum()} of {len(outputs)} tokens" in one.rows[3].note
    html = found._repr_html_()
    assert "".join(unescape(w) for w in re.findall(r"<mark[^>]*title[^>]*>([^<]*)</mark>", html)).startswith(
        "".join(p.text.lstrip(" ") for p in found.examples[0].rows[3].pieces if p.kind)
    )
    assert "text-decoration" in html and "font-weight:700" in html, "not by colour alone"


def test_by_itself_it_shows_texts_of_both_models(runs):
    mixed, large, _ = runs
    found = view.examples({"mine": mixed}, large, most=2)
    assert len(found.examples) == 2
    assert all(any(piece.kind for piece in one.rows[-1].pieces) for one in found.examples)
    assert found.examples[0].rows[-1].name == "mine"


def test_hostile_tokens_stay_text(tmp_path):
    mixed = traces.build("bild", prompts=4, tokens=80, seed=3)
    found = view.examples(mixed, which=range(4))
    html = found.to_html(tmp_path / "page.html").read_text(encoding="utf8")
    assert "<img" not in html and "<script" not in html and "\u202e" not in html
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in html
    plain = found.text()
    assert not set(plain) & {chr(i) for i in range(32) if i != 10} and "\u202e" not in plain
    piece = next(p for p in found.examples[0].rows[-1].pieces if p.kind and p.text.strip())
    assert f"[{visible(piece.text).lstrip(' ')}]".replace("\n", "⏎") in plain
    assert "\x1b[1;4;" in found.text(colour=True) and "[" + visible(piece.text) not in found.text(True)


def test_examples_compare_the_same_prompts(runs):
    with pytest.raises(TraceError, match="other prompts"):
        view.examples(runs[0], traces.build("autoregressive", prompts=2, seed=9))
    with pytest.raises(TraceError, match="no prompt 7"):
        view.examples(runs[0], which=7)
