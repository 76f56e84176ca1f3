"""Views of a trace are safe, complete, small, and true to the record."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pytest

import specviz
import traces
from specviz import metrics, schema, view
from specviz.errors import TraceError
from specviz.escape import spaced, visible
from specviz.trace import Recorder, Trace
from specviz.view import plots, static
from specviz.view.picture import (
    FATE_WORDS,
    FATES,
    KINDS,
    MOST_TRIED,
    PHASES,
    Span,
    excerpt,
    picture,
    pictures,
)

METHODS = ("autoregressive", "speculative", "bild")


class Page(HTMLParser):
    """Tags and attributes, and the text outside the style block."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data):
        if self.tags[-1:] != ["style"] or not data.startswith("."):
            self.words += data

    def named(self, name: str) -> list[str]:
        return [value or "" for key, value in self.attributes if key == name]


@pytest.fixture(autouse=True)
def _no_figure_stays_open():
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.mark.parametrize("method", METHODS)
def test_hostile_text_stays_text(method):
    trace = traces.build(method, prompts=6, tokens=80, seed=3)
    page = Page(view.html(trace, most=6))
    assert not {"script", "img", "iframe", "object", "link"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href")]
    html = view.html(trace, most=6)
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;" in html
    assert "\u202e" not in html, "a token must not turn its neighbours around"


def test_a_page_is_not_overwritten_unasked(tmp_path):
    trace = traces.build("speculative", tokens=20)
    path = trace.to_html(tmp_path / "page.html")
    with pytest.raises(TraceError, match="exists"):
        trace.to_html(path)
    assert trace.to_html(path, force=True) == path
    with pytest.raises(TraceError, match="cannot write"):
        trace.to_html(path / "below" / "a" / "file.html")
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
        shown = picture(trace, number)
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
        kinds = [words.get(each, each) for each in kept["origin"].astype(str)]
        assert dict(shown.counts) == {kind: kinds.count(kind) for kind in set(kinds)}
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


def test_a_node_says_how_near_the_verdict_was():
    trace = traces.build("cm_asd", tokens=60, seed=2)
    shown, nodes = picture(trace, 0), trace.nodes
    lane = unescape(static.confidence_lane(shown))
    for belief, node in zip(shown.beliefs, nodes.to_dict("records")):
        if node["status"] in ("accepted", "rejected"):
            sign = "≤" if node["status"] == "accepted" else ">"
            assert f"gap {node['gap']:.3f} {sign} τ {node['threshold']:.3f}" in belief.more
        assert belief.value == pytest.approx(node["score"]) and belief.more in lane
        assert f"largest probability {node['confidence']:.3f}" in belief.more
        assert f" {belief.value:.3f}, {FATE_WORDS[node['status']]}; {belief.more}" in lane
    judged = [b for b in picture(traces.build("bild", tokens=60), 0).beliefs if b.status == "rejected"]
    assert judged and all("> α_RB 2.000" in b.more for b in judged)


@pytest.mark.parametrize("method", ["speculative", "bild", "tree"])
def test_each_cycle_s_dropped_draft_is_drawn_once(method):
    """It precedes the token that the target wrote in its place, whatever that token is called."""
    shown = picture(traces.build(method, tokens=80, seed=1, hostile=False), 0)
    page = static.text_lane(shown)
    lost = [static.shown_token(cycle.lost) for cycle in shown.cycles if cycle.lost]
    assert lost and re.findall("<del[^>]*>(.*?)</del>", page, re.S) == lost
    spans = [replace(s, kind="plain") if s.kind != "draft" else s for s in shown.spans]
    assert static.text_lane(replace(shown, spans=tuple(spans))).count("<del") == len(lost)


@pytest.mark.parametrize("method", ["speculative", "bild", "tree", "unispec"])
def test_the_text_of_a_dropped_draft(method):
    """A chain's is whole; of a tree's, the deepest rejected tokens are written out and the others counted."""
    trace = traces.build(method, tokens=80, seed=1, hostile=False)
    nodes = trace.nodes[trace.nodes["status"].isin(["rejected", "unjudged"])]
    shown = {cycle.number: cycle.lost for cycle in picture(trace, 0).cycles}
    for number, lost in shown.items():
        dropped = nodes[nodes["cycle"] == number]
        if dropped["parent"].is_unique:
            pieces = [trace.pieces[token] for token in dropped["token"]]
            assert lost == b"".join(pieces).decode("utf8", "replace")
            continue
        refused = dropped[dropped["status"] == "rejected"]
        deepest = refused[refused["depth"] == refused["depth"].max()][:MOST_TRIED]
        *tried, rest = lost.split("│")
        assert rest == f"… {len(dropped) - len(deepest)} more"
        assert "".join(tried) == "".join(trace.pieces[token].decode() for token in deepest["token"])
    assert any(shown.values()) and any(count > 2 for count in nodes.value_counts("cycle"))


def test_nothing_is_lost_where_all_is_accepted():
    made = traces.cycles("speculative", tokens=5)
    recorder = Recorder(traces.metadata("speculative"), piece=traces.piece)
    for cycle in made:
        kept = {"node_status": ["accepted"] * len(cycle["node_status"])} if "node_status" in cycle else {}
        recorder.add(cycle | kept)
    shown = picture(recorder.close(), 0)
    assert shown.drafts and [cycle.lost for cycle in shown.cycles] == [""] * len(shown.cycles)


def test_a_picture_is_made_once_for_text_html_and_image(monkeypatch, tmp_path):
    made = []
    monkeypatch.setattr(
        "specviz.view.picture.picture", lambda run, number: made.append(number) or picture(run, number)
    )
    trace = Trace([t._stores[0] for t in (traces.build("bild", prompts=3), traces.build("tree"))])
    bundle = trace._repr_mimebundle_()
    trace.to_html(tmp_path / "a.html")
    assert made == [0, 1, 0, 2]  # the page also has the third text
    assert trace._repr_mimebundle_() == bundle == Trace(trace._stores)._repr_mimebundle_()
    assert view.text(trace.select(prompt=1)) == view.text(Trace(trace._stores).select(prompt=1))
    pictures(trace).clear()
    assert len(pictures(trace)) == 4


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


def test_texts_that_are_not_shown_are_counted():
    trace = traces.build("bild", prompts=3)
    assert repr(trace).endswith("\n\n1 more text: trace.select(prompt=…) shows each.")
    assert "1 more text: trace" in view.html(trace) and "2 more texts: trace" in view.html(trace, most=1)
    assert "more text" not in repr(traces.build("bild", prompts=2))


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


def test_a_table_escapes_its_cells():
    import pandas as pd

    assert "<b>" not in static.table(pd.DataFrame({"<b>x": ["<b>y"], "n": [1.5]}))


def test_an_empty_run_still_shows():
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


def test_every_word_of_the_record_has_its_sign():
    assert set(schema.ORIGINS) <= set(KINDS)
    assert set(schema.STATUSES) == set(FATES) == set(static.DOTS)


def test_numbers_say_whose_they_are():
    trace = traces.build("speculative", prompts=3, tokens=50, seed=4)
    page = Page(view.html(trace, most=3))
    assert page.words.count("All 3 texts:") == 1 and page.words.count("This text:") == 3
    for number in range(3):
        shown = picture(trace, number)
        assert shown.name == f"text {number + 1} of 3"
        tau = metrics.tau(trace.select(prompt=number))
        assert {name: value for name, value, _ in shown.numbers}["τ"] == f"{tau:.2f}"
    alone = Page(view.html(traces.build("speculative", tokens=50))).words
    assert "This text:" not in alone and "All 1" not in alone
    words = view.text(trace, most=2)
    assert words.count("all 3 texts:") == 1 and "text 2 of 3:" in words and "text 3 of 3:" not in words


@pytest.mark.parametrize("method", METHODS)
def test_phase_times_add_up(method):
    made = traces.cycles(method, tokens=40)
    for cycle in made[1:]:
        cycle["duration"] += 0.0011  # time outside all phases
        cycle["draft_time"] += 0.0001  # calling the drafter takes time, even if nothing is drafted
    trace = recorded(method, made)
    cycles = trace.cycles[trace.cycles["cycle"] > 0]
    shown = picture(trace, 0)
    assert [sum(c.times) for c in shown.cycles] == pytest.approx(cycles["duration"].tolist())
    assert sum(shown.phases.values()) == pytest.approx(cycles["duration"].sum())
    assert shown.phases["rest"] >= 0.00099 * len(cycles)
    assert ("draft" in shown.phases) == (method != "autoregressive")
    assert set(shown.phases) <= set(PHASES)


def test_bars_of_a_page_differ_without_colour():
    page = view.html(traces.build("speculative", tokens=40))
    style, drawing = page.split("</style>", 1)
    for name, mark in static.TILES.items():
        assert f"url(#sv-{name})" in style
        if name.startswith("p-"):
            assert f'<pattern id="sv-{name}"' in drawing and f'<path d="{mark}"/>' in drawing


def test_time_between_cycles_is_named():
    made = traces.cycles("speculative", tokens=40)
    for cycle in made[3:]:
        cycle["start"] += 0.05
    trace = recorded("speculative", made)
    gaps = [c.pause for c in picture(trace, 0).cycles]
    assert gaps[1] == pytest.approx(0.05) and sum(gaps) == pytest.approx(0.05)
    assert "between cycles 50.0 ms" in view.html(trace)
    assert "between cycles" not in view.html(traces.build("speculative", tokens=40))


def recorded(method, made):
    recorder = Recorder(traces.metadata(method), None, piece=traces.piece)
    for cycle in made:
        recorder.add(cycle)
    return recorder.close()


def test_nothing_is_said_of_drafts_where_there_are_none():
    trace = traces.build("autoregressive", tokens=40, hostile=False)
    shown = Page(view.html(trace)).words
    assert "Nothing was drafted." in shown
    for words in (shown.replace("Nothing was drafted.", ""), view.text(trace)):
        assert "draft" not in words and "sent" not in words and "0/0" not in words
    assert view.timeline(trace).get_legend().texts[0].get_text().startswith("forward")


def test_cycles_that_sent_nothing_are_labelled_alike():
    trace = next(t for t in (traces.build("bild", tokens=60, seed=i) for i in range(9)) if empty(t))
    assert "accepted/sent by cycle (–: nothing sent)" in view.text(trace)
    assert "–: nothing was sent" in view.html(trace) and ">–</text>" in view.html(trace)
    assert " –" in [t.get_text() for t in view.timeline(trace).texts]
    assert "0/0" not in view.text(trace) + view.html(trace)


def test_a_replayed_decode_has_no_time_axis():
    answer = specviz.whatif(specviz.open(specviz.example("prompt_lookup"))).prompt_lookup(draft_length=3)
    ax = view.timeline(answer.trace(), prompt=0)
    assert ax.get_xlabel() == "no times were recorded" and not len(ax.get_xticks())
    assert "above" not in ax.get_title("left")


def test_the_poster_of_a_replayed_decode_has_no_empty_timeline(drawn_words):
    run = specviz.open(specviz.example("prompt_lookup"))
    plots.poster(run)
    assert "time in ms" in drawn_words
    drawn_words.clear()
    plots.poster(specviz.whatif(run).prompt_lookup(draft_length=3).trace())
    assert drawn_words and not any("time" in word for word in drawn_words)


def empty(trace):
    cycles = trace.cycles[trace.cycles["cycle"] > 0]
    return (cycles["sent"] == 0).any() and len(cycles) <= 40


def test_unseen_characters_are_written_out():
    assert visible("a\x00\x1b[1m\u202eb\u200b\u2028\U000e0041") == (
        "a⟨U+0000⟩⟨U+001B⟩[1m⟨U+202E⟩b⟨U+200B⟩⟨U+2028⟩⟨U+E0041⟩"
    )
    assert visible("\t|\u00a0|\n| |") == "⇥|⍽|\n| |"
    for whole in ("می\u200cخواهم", "👩\u200d💻", "مرحبا", "é", "猫"):
        assert visible(whole) == whole
    assert spaced(" a b") == " a b"
    assert (spaced(" "), spaced("x  y"), spaced("  x"), spaced("x \ny")) == ("␣", "x␣␣y", "␣␣x", "x␣\ny")


def test_bytes_that_are_no_text_are_written_out():
    trace = traces.build("bild", tokens=80, seed=3)
    spans = [s for s in picture(trace, 0).spans if "⟨0x" in s.text]
    assert "⟨0xFF⟩⟨0xFE⟩" in {s.text for s in spans}
    assert '<i class="sign">⟨0xFF⟩</i>' in view.html(trace)
    for span in spans:
        raw = b"".join(trace.pieces[t] for t in span.tokens)
        with pytest.raises(UnicodeDecodeError):
            raw.decode()


def span(text, kind="plain"):
    return Span(text, kind, 1, 0, (5,), 0.5, False)


def test_text_flows_by_its_width():
    spans = [span(t) for t in ("The", " quick", " br", "own", " fox", "\n", " a", "b" * 30, "猫" * 12)]
    places = plots.flow(spans, 14.0, len)
    lines: dict[int, str] = {}
    for x, line, text, width, _, _ in places:
        assert x == len(lines.get(line, "")) and width == len(text), "a token stands where the last one ended"
        assert x + width <= 14
        lines[line] = lines.get(line, "") + text
    assert "".join(lines.values()) == "".join(s.text for s in spans).replace("\n", "⏎")
    assert (lines[0], lines[1]) == ("The quick", " brown fox⏎"), "a word's tokens stay together"


def test_a_mark_is_drawn_once():
    places = plots.flow([span("x" * 9), span("y" * 30, "bonus")], 10.0, len)
    assert [mark for *_, mark, s in places if s.kind == "bonus"].count("+") == 1


def test_the_strip_is_as_tall_as_its_text():
    def tall(tokens):
        return view.token_strip(traces.build("bild", tokens=tokens, hostile=False)).figure.get_size_inches()[
            1
        ]

    assert tall(8) < 1.0 < tall(200) < 5.0


@pytest.mark.parametrize("lane", [True, False])
def test_a_poster_has_every_line_of_its_text(lane, drawn_words, monkeypatch):
    """The strip's height in inches is rounded on the way to points."""
    trace = traces.build("speculative", tokens=20)
    shown = picture(trace, 0)
    shown = shown if lane else replace(shown, beliefs=())
    for count in range(1, 15):
        drawn_words.clear()
        text = replace(shown, spans=tuple(span(f"line {i}\n") for i in range(count)))
        monkeypatch.setattr(plots, "pictures", lambda *_, text=text: [text])
        plots.poster(trace)
        assert f"line {count - 1}⏎" in drawn_words and not any("more tokens" in word for word in drawn_words)


def test_a_poster_s_heading_stays_on_the_page(monkeypatch):
    name = "HuggingFaceTB/SmolLM2-1.7B-Instruct (4-bit, dequantised)"
    trace = traces.build("speculative", tokens=20)
    shown = replace(picture(trace, 0), model=name, draft=name + ", aligned")
    monkeypatch.setattr(plots, "pictures", lambda *_: [shown])
    figures = []
    monkeypatch.setattr(plots, "png", lambda figure: figures.append(figure))
    plots.poster(trace)
    heading = figures[0].texts[0]
    box = heading.get_window_extent(figures[0].canvas.get_renderer())
    assert box.x1 < figures[0].bbox.width and box.y0 > figures[0].axes[0].get_window_extent().y1


def test_confidence_shows_every_draft_token():
    made = traces.cycles("speculative", tokens=60, seed=2, hostile=False)
    made[1]["node_status"] = ["unsent"] * 4
    made[1]["out_origin"] = ["correction"] * len(made[1]["out_origin"])
    trace = recorded("speculative", made)
    ax = view.confidence(trace)
    dots = {c.get_label(): len(c.get_offsets()) for c in ax.collections}
    counted = trace.nodes["status"].value_counts().to_dict()
    assert dots == {FATE_WORDS[status]: count for status, count in counted.items() if count}
    assert dots["drafted, not sent"] == 4
    ax.figure.canvas.draw()
    assert all(float(t).is_integer() for t in ax.get_xticks())


def test_phases_name_each_run_and_phase():
    runs = [traces.build(method, tokens=40) for method in METHODS]
    ax = view.phases(Trace([store for run in runs for store in run._stores]))
    assert [t.get_text() for t in ax.get_yticklabels()] == [
        "autoregressive",
        "speculative\n← town-draft",
        "bild\n← town-draft",
    ]
    assert [t.get_text() for t in ax.get_legend().texts] == ["draft", "forward", "verify", "commit"]
    for bars in (ax, view.timeline(runs[1])):
        assert len({bar.get_hatch() for bar in bars.patches}) == 4, "phases differ without colour"


def test_series_differ():
    from specviz.view.axes import LOOKS, look

    assert [look(n) for n in range(6)] == list(LOOKS) and len({look(n) for n in range(36)}) == 36


def test_a_figure_shows_itself_where_the_backend_is_a_notebooks(monkeypatch):
    plt = pytest.importorskip("matplotlib.pyplot")
    trace = traces.build("tree", tokens=20)
    ax = view.draft_tree(trace)
    assert ax._repr_html_() is None and plt.fignum_exists(ax.figure.number)  # a window shows itself
    monkeypatch.setattr(plt, "get_backend", lambda: "module://matplotlib_inline.backend_inline")
    shown = ax._repr_html_()
    assert shown.count("<img") == 1 and "data-jp-theme-light" in shown and "cycle " in shown
    assert not plt.fignum_exists(ax.figure.number)  # or the cell would show it again
    loop = lambda: view.control_loop(trace)  # its titles are in its panels
    figure, (left, _) = plt.subplots(1, 2)
    view.phases(trace, ax=left)
    assert figure._repr_html_().count("<img") == 1
    alts = [re.search('alt="([^"]*)"', draw()._repr_html_())[1] for draw in (view.threshold_readings, loop)]
    assert alts[0] == "largest gap allowed, nats by C, the drafter&#x27;s confidence"
    assert alts[1].startswith("tree: ") and "figure" not in alts


@pytest.mark.parametrize(
    ("prompt", "line"),
    [
        ("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nWhy\nblue?<|im_end|>\n", "Why blue?"),
        ("<s>[INST] One [/INST] A </s>[INST] Two [/INST]", "Two"),
        ("<|start_header_id|>user<|end_header_id|>\n\nWho?<|eot_id|>", "Who?"),
        ("<|user|>\nWho?<|end|>\n<|assistant|>", "Who?"),
        ("<|im_start|>user\n<|im_end|>", "<|im_start|>user <|im_end|>"),
        ("no chat,\n  the user said", "no chat, the user said"),
    ],
)  # fmt: skip
def test_a_prompt_in_one_line_is_what_the_user_asked(prompt, line):
    assert excerpt(prompt) == line
    assert excerpt(prompt, 2) == line[:2] + "…"


def test_what_a_trace_s_author_wrote_is_no_markup_and_no_command():
    """The unit of a custom signal and the label of a run come from the file."""
    unit = "</title></g></svg><img src=x onerror=alert(1)>"
    signals = schema.as_metadata((schema.Signal("age", unit, "m"),))
    label = "\x1b]0;owned\x07\x1b[2J"
    run = traces.metadata("tree", prompts=1) | {"signals": signals, "exactness": label}
    recorder = Recorder(run, None, piece=traces.piece)
    for cycle in traces.cycles("tree", prompts=1, hostile=False):
        nodes = len(cycle.get("node_token", ()))
        own = {"signal:age": np.arange(nodes) - 2.0, "node_confidence": np.full(nodes, 0.5, np.float32)}
        recorder.add(cycle | own if nodes else cycle)
    trace = recorder.close()
    assert unit not in trace._repr_html_() and "onerror" in trace._repr_html_()
    assert "\x1b" not in view.text(trace)


def test_many_runs_are_not_all_drawn(tmp_path):
    folder = tmp_path / "runs"
    for seed in range(11):
        traces.build("speculative", tokens=12, seed=seed, path=folder / f"{seed}.parquet")
    trace = specviz.open(folder)
    shown = repr(trace)
    assert "3 more runs: trace.select(run=…) shows each." in shown
    assert shown.count("speculative") < 10 and "3 more runs" in trace._repr_html_()


def test_a_threshold_is_the_one_that_the_method_has():
    for name, value, words in (("stop", 0.4, "stop threshold 0.4"), ("stop", 0.0, None)):
        shown = picture(traces.build("speculative", parameters={"length": 4, name: value}), 0)
        assert shown.threshold == (value or None)
        html = view.html(traces.build("speculative", parameters={"length": 4, name: value}))
        assert (words in html) if words else "threshold" not in html
