"""The table of a folder's traces without a browser: its rows, the view below, dropped files."""

from __future__ import annotations

import threading

import pytest

pytest.importorskip("anywidget", reason="needs the lab extra")

import specviz as sv
from specviz import metrics
from specviz.errors import TraceError
from specviz.trace.files import PARTIAL
from specviz.widgets import runs as module
from specviz.widgets.player import Player
from specviz.widgets.race import Race
from traces import build


@pytest.fixture
def folder(tmp_path):
    for name in ("autoregressive", "speculative"):
        build(name).save(tmp_path / f"{name}.parquet")
    (tmp_path / "below").mkdir()
    build("bild", prompts=2).save(tmp_path / "below" / "bild.parquet")
    (tmp_path / "below" / "broken.parquet").write_bytes(b"PAR1 hardly anything\nmore")
    (tmp_path / f"_cut.parquet{PARTIAL}").write_bytes(b"")
    (tmp_path / ".hidden").mkdir()
    build("tree").save(tmp_path / ".hidden" / "tree.parquet")
    (tmp_path / "notes.txt").write_text("no trace")
    return tmp_path


def test_a_row_for_each_file_and_a_line_for_a_broken_one(folder):
    shown = sv.runs(folder)
    table = shown.table
    names = [f"_cut.parquet{PARTIAL}", "autoregressive.parquet", "below/bild.parquet", "below/broken.parquet",
             "speculative.parquet"]  # fmt: skip
    assert table["file"].tolist() == names
    broken = table[table["problem"] != ""]
    assert broken["file"].tolist() == [names[0], names[3]]
    assert all("\n" not in line and str(folder) not in line for line in broken["problem"])
    row = table.iloc[2]
    trace = sv.open(folder / "below" / "bild.parquet")
    assert (row["method"], row["prompts"], row["exactness"]) == ("bild", 2, "lossy")
    assert row["tau"] == metrics.tau(trace) and row["tokens"] == metrics.output(trace)


def test_the_rest_of_a_large_folder_follows(folder, monkeypatch):
    monkeypatch.setattr(module, "AT_ONCE", 2)
    assert len(sv.runs(folder).table) == 5
    monkeypatch.setattr(module, "MOST_FILES", 3)
    shown = sv.runs(folder)
    assert len(shown.table) == 3 and "first 3 files" in shown.panel.note


def test_a_folder_that_is_read_again_meanwhile_keeps_its_order(folder, monkeypatch):
    monkeypatch.setattr(module, "AT_ONCE", 2)
    read, gates = module.Listed.row, {}

    def slow(self):
        if (thread := threading.current_thread()) is not threading.main_thread():
            assert gates.setdefault(thread, threading.Event()).wait(20)
        return read(self)

    monkeypatch.setattr(module.Listed, "row", slow)
    shown = sv.runs(folder)
    first = shown._reading
    shown.refresh()
    names = [each.name for each in shown._files]
    gates.setdefault(first, threading.Event()).set()
    first.join(20)
    assert [row["file"] for row in shown.panel.rows] == names[:2] and shown.panel.reading
    gates.setdefault(shown._reading, threading.Event()).set()
    assert shown.table["file"].tolist() == names and not shown.panel.reading


def test_rows_are_opened_and_compared(folder):
    shown = sv.runs(folder)
    press = lambda what, *rows: shown._on_message(shown.panel, {"do": what, "rows": list(rows)}, [])
    press("open", 1)
    (player,) = shown.children[1:]
    assert isinstance(player, Player) and shown.panel.chosen == [1]
    other = sv.runs(folder)
    other.play(1)
    views = other.children
    other.close()
    assert len(views) == 2 and [each.comm for each in views] == [None, None]
    press("race", 1, 4)
    assert isinstance(shown.children[1], Race) and len(shown.children) == 2
    press("diff", 1, 4)
    assert 'class="steps"' in shown.children[-1].value and not shown.panel.error
    for what, rows, words in (
        ("open", [3], "Parquet"),
        ("open", [9], "no row 9"),
        ("open", [], "IndexError"),
    ):
        press(what, *rows)
        assert words in shown.panel.error and "\n" not in shown.panel.error
    (folder / "speculative.parquet").unlink()
    press("refresh")
    assert len(shown.table) == 4 and not shown.panel.error


def test_the_prompt_of_a_difference_can_be_chosen(tmp_path):
    for method in ("speculative", "bild"):
        build(method, prompts=2).save(tmp_path / f"{method}.parquet")
    shown = sv.runs(tmp_path)
    shown.diff(0, 1)
    choice, place = shown.children[1:]
    before = place.value
    choice.value = 1
    assert place.value != before and [label for label, _ in choice.options] == [
        "prompt 1: translation",
        "prompt 2: translation",
    ]


def test_a_prompt_whose_kind_is_no_text_has_a_name(tmp_path):
    prompts = [{"prompt": "The cook saw.", "kind": 3}, {"prompt": "A man came."}]
    for method in ("autoregressive", "prompt_lookup"):
        sv.generate("town", prompts, method, max_new_tokens=6).save(tmp_path / f"{method}.parquet")
    shown = sv.runs(tmp_path)
    shown.diff(0, 1)
    assert [label for label, _ in shown.children[1].options] == ["prompt 1: 3", "prompt 2"]


def send(shown, data, name="x.parquet", size=1000):
    """Send a file as the page does when one is dropped."""
    parts = [data[i : i + size] for i in range(0, len(data), size)] or [b""]
    for i, part in enumerate(parts):
        content = {"do": "upload", "name": name, "first": i == 0, "last": i == len(parts) - 1}
        shown._on_message(shown.panel, content, [memoryview(part)])


def test_a_dropped_file_is_checked_and_kept_only_if_saved(folder, tmp_path_factory, monkeypatch):
    shown = sv.runs(folder)
    before = sorted(folder.rglob("*"))
    data = build("unispec").save(tmp_path_factory.mktemp("x") / "x.parquet").read_bytes()
    for n, bad in enumerate((b"", b"PAR1" * 1000, data[:-9]), 1):
        send(shown, bad)
        assert len(shown.panel.error.splitlines()) == n and len(shown.table) == 5
    shown._on_message(shown.panel, {"do": "clear", "rows": []}, [])  # the page begins another batch
    send(shown, data, "../../<b>autoregressive.parquet")
    assert len(shown.table) == 6 and not shown.panel.error and isinstance(shown.children[1], Player)
    assert sorted(folder.rglob("*")) == before
    saved = shown.save(5)
    assert saved.parent == folder and saved.name == "b_autoregressive.parquet"
    assert sv.open(saved).texts == build("unispec").texts and shown.table["file"].iloc[5] == saved.name
    send(shown, data, "autoregressive.parquet")
    assert shown.save(6).name == "autoregressive (2).parquet"
    monkeypatch.setattr(module, "UPLOAD_LIMIT", 1500)
    send(shown, data)
    assert "larger than" in shown.panel.error and shown._upload is None and len(shown.table) == 7


def test_dropped_files_of_one_name_have_rows_of_their_own(folder, tmp_path_factory):
    shown = sv.runs(folder)
    for method in ("speculative", "bild"):
        data = build(method).save(tmp_path_factory.mktemp("x") / "x.parquet").read_bytes()
        send(shown, data, "speculative.parquet")
    ids = [row["id"] for row in shown.panel.rows]
    assert len(ids) == 7 and len(set(ids)) == 7
    shown.refresh()
    assert [row["id"] for row in shown.panel.rows] == ids, "marks outlast a reading of the folder"


def test_what_is_no_folder_is_one_line(folder):
    for wrong, words in (("nowhere", "missing"), ("notes.txt", "specviz.open")):
        with pytest.raises(TraceError, match=words):
            sv.runs(folder / wrong)
    (folder / "empty").mkdir()
    assert "holds no traces" in sv.runs(folder / "empty").panel.note
