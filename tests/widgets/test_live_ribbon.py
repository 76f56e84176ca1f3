"""The live ribbon's tables: the browser's look-ups match the record."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from ribbons import FLICKERS, PIECES, W, stream

import specviz as sv
from specviz.errors import ParameterError, TraceError
from specviz.trace import Trace
from specviz.view.updates import ribbon
from traces import build

pytest.importorskip("anywidget", reason="needs the lab extra")

from benchmarks.front_end import unpack

from specviz.widgets import flicker
from specviz.widgets.columns import columns as player_columns
from specviz.widgets.flicker import BETAS, FATED, MOST_K, RECORDED, columns, partings, table
from specviz.widgets.race import race

OTHER = [[W, W + 1, W + 2], [W, W + 1, W + 2, W + 3], [W, W + 1], [W, W + 1]]


def cut(told, k, i):
    """An update as the browser assembles it."""
    place, found = 0, []
    text, before = (told["rows"][j][0].encode("utf-16-le") for j in (i, i - 1))  # as JavaScript counts
    part = lambda text, a, b: text[2 * a : 2 * b].decode("utf-16-le")
    for fate, a, b, _ in told["cuts"][k]["rows"][i]:
        if FATED[fate] == "erased":
            found.append(("erased", part(before, a, b)))
        else:
            found.append((FATED[fate], part(text, place, place + b)))
            place += b
    return found


@pytest.mark.parametrize("k", [0, 1, 3])
def test_the_cuts_are_the_ribbon_at_every_k(k, monkeypatch):
    emoji = {W: " 😀".encode(), W + 5: "😀😀".encode()}
    monkeypatch.setattr("ribbons.PIECES", [emoji.get(token, piece) for token, piece in enumerate(PIECES)])
    trace = stream(FLICKERS)
    told = table(columns(trace))["columns"][0]["runs"][0]
    for i, row in enumerate(ribbon(trace, k=k).rows):
        parts = cut(told, k, i)
        assert "".join(t for f, t in parts if f != "erased") == "".join(row.words)
        assert "".join(t for f, t in parts if f == "erased") == "".join(row.erased)
        for fate in ("kept", "rewritten", "new", "hidden"):
            own = "".join(word for word, f in zip(row.words, row.fates) if f == fate)
            assert "".join(t for f, t in parts if f == fate) == own


def test_a_beta_is_told_up_to_where_its_text_would_part():
    """Kept at 0.9 of 0.9, refused at 0.3 of 0.6: a gap of 0.3 is accepted once β/(1 - β) reaches it."""
    found = partings(stream(FLICKERS), 0, [0.0, 0.2, 0.23, 0.24, 1.0])
    assert [until for until, _ in found.values()] == [4, 4, 4, 1, 1]
    assert found[1.0][1] == "at update 1 the text diverges here (‘w1’)"


def test_a_bias_that_kept_what_is_not_the_first_choice_parts_below_it():
    trace = stream([[W, W + 1], [W, W + 1, W + 2]])
    first = trace.tops()
    assert len(first) and first["p"].notna().all()
    assert partings(trace, 0, [0.0])[0.0] == (2, ""), "every draft token was the first choice"


def test_runs_that_differ_in_beta_share_a_column():
    made = columns(
        [stream(FLICKERS, mode="rt"), stream(FLICKERS), stream(OTHER, beta=0.5), stream(FLICKERS, k=1)]
    )
    assert [c.name for c in made] == ["Re-translation (RT)", "SSBD", "SSBD, mask-k 1 (display)"]
    betas = made[1].betas
    assert betas[0.2].badge == betas[0.5].badge == RECORDED and (betas[0.2].run, betas[0.5].run) == (0, 1)
    assert (betas[0.0].run, betas[0.0].badge) == (0, "exact")
    assert set(betas) == {*BETAS} and not made[0].betas
    told = table(made)
    assert told["ks"] == [-1, *range(MOST_K + 1)], "the columns hid differently when they ran"
    with pytest.raises(TraceError, match="sources differ"):
        columns([stream(FLICKERS), stream(FLICKERS[:2], mode="rt")])


def test_every_column_tells_every_beta_of_the_slider():
    made = columns([stream(FLICKERS, beta=0.0), stream(FLICKERS, beta=0.97, k=2)])
    sent = table(made)
    assert 0.97 in sent["betas"]
    for column in sent["columns"]:
        assert [beta for beta, *_ in column["betas"]] == sent["betas"]
    assert (made[0].betas[0.97].until, made[0].betas[0.97].badge) == (1, "exact before update 1")


def test_a_beta_has_its_own_exactness():
    """It may differ from that of the recorded run: without a bias the text is the target's own."""
    (column,) = table(columns(stream(FLICKERS, beta=0.0, exactness="exact up to ties")))["columns"]
    sure = {beta: last for beta, *_, last in column["betas"]}
    assert sure[0.0] == {"exactness": "exact up to ties", "kind": "ties"}
    assert sure[0.3] == {"exactness": "lossy", "kind": "lossy"}
    (column,) = table(columns(stream(FLICKERS, beta=0.2)))["columns"]
    assert column["betas"][0][-1]["exactness"] == "exact up to ties"


def test_a_mask_of_the_draft_cannot_be_moved():
    column = columns(stream(FLICKERS, k=2, mask="draft"))[0]
    assert column.ks == [2] and "rerun" in column.masked


def test_the_widget_starts_where_the_run_was():
    live = sv.flicker([stream(FLICKERS), stream(FLICKERS, mode="rt")], live=True)
    assert (live.update, live.beta, live.k) == (3, 0.2, 0)
    header, _ = unpack(live.data)
    assert header["betas"][4] == 0.2 and len(header["sources"]) == 4
    with pytest.raises(ParameterError, match="no 'speed'"):
        sv.flicker(stream(FLICKERS), live=True, speed=2)
    for state in ({"update": "x"}, {"update": 4}, {"update": -1}, {"beta": 0.33}, {"k": 99}):
        with pytest.raises(ParameterError, match="cannot start"):
            sv.flicker(stream(FLICKERS), live=True, **state)
    with pytest.raises(ParameterError, match=r"beta takes one of 0, .*, got 0.33"):
        sv.flicker(stream(FLICKERS), live=True, beta=0.33)
    scratch = stream(FLICKERS, mode="rt")
    assert sv.flicker(scratch, live=True, k=2).beta == -1
    with pytest.raises(ParameterError, match="no run here uses beta"):
        sv.flicker(scratch, live=True, beta=0.2)


def test_the_player_knows_the_updates():
    header, arrays = player_columns(stream(FLICKERS, streams=2, k=1))
    for prompt in header["prompts"]:
        updates = prompt["updates"]
        assert [u["update"] for u in updates] == [0, 1, 2, 3]
        assert [u["first"] for u in updates] == [
            r for r in range(prompt["first"], prompt["last"]) if not arrays["cycle"][r]
        ]
        assert [u["last"] for u in updates] == [*(u["first"] for u in updates[1:]), prompt["last"]]
        assert [u["shown"] for u in updates] == [2, 3, 1, 2] and [u["reused"] for u in updates] == [
            0,
            8,
            10,
            12,
        ]
        assert updates[1]["source"][updates[1]["new"] :] == " src2 src3"
    sources = [f"😀 a{' b' * n}" for n in range(4)]
    (prompt,) = player_columns(stream(FLICKERS, sources=sources))[0]["prompts"]
    assert prompt["updates"][1]["new"] == 4, "JavaScript counts an emoji twice"
    standing = player_columns(sv.open(sv.example("unispec")))[0]
    assert all(prompt["updates"] == [] for prompt in standing["prompts"])
    both = Trace([*stream(FLICKERS)._stores, *build("tree")._stores])
    counts = [len(player_columns(run)[0]["prompts"][0]["updates"]) for run in both.split()]
    assert counts == [4, 0]


def test_a_race_is_over_one_text():
    with pytest.raises(TraceError, match=r"specviz.flicker"):
        race([stream(FLICKERS), stream(FLICKERS, mode="rt")])


def test_a_beta_without_an_answer_says_so(monkeypatch):
    monkeypatch.setattr(flicker, "partings", lambda run, prompt, betas: dict.fromkeys(betas, (0, "why")))
    (column,) = columns(stream(FLICKERS))
    assert column.betas[0.5].badge == "needs a rerun"
