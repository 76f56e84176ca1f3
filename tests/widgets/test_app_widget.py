"""The app's page without a server: sections are created once, and one kernel holds the models at a time."""

from __future__ import annotations

import threading
import time

import ipywidgets
import pytest

pytest.importorskip("anywidget", reason="needs the lab extra")

import specviz
from specviz.errors import ParameterError
from specviz.methods import names
from specviz.widgets.app import App, Setting
from specviz.widgets.explorer import first_method


class Pretended(App):
    """An app whose sections are empty boxes that take a moment to create."""

    def _make(self, section):
        time.sleep(0.05)
        if section == "Race":
            raise ParameterError("no race today")
        return ipywidgets.VBox()


def app(tmp_path) -> Pretended:
    made = Pretended(Setting(str(tmp_path), None, str(tmp_path)))
    made._on_message(made.head, {"do": "show"}, [])
    return made


def until(condition) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_section_is_made_once_whoever_comes_first(tmp_path, monkeypatch):
    one = app(tmp_path)
    one.head.section = "Traces"
    threads = [threading.Thread(target=one._show, args=("Traces",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: one._lock.is_locked)
    one.head.section = "Decode"
    until(lambda: "Decode" in one._made)
    assert len(one.children) == 3 and sorted(one._made) == ["Decode", "Traces"], "each of them once"
    assert [one._made[name].layout.display for name in ("Traces", "Decode")] == ["none", ""]
    one.head.section = "Race"
    assert one.head.note == "no race today" and len(one.children) == 3
    monkeypatch.setattr(App, "_make", lambda self, section: ipywidgets.VBox())
    monkeypatch.delattr(Pretended, "_make")
    one._on_message(one.head, {"do": "show"}, [])  # its button is pressed again
    assert one.head.note == "" and len(one.children) == 4
    one._lock.release()


def test_a_second_one_waits_and_then_has_its_turn(tmp_path):
    first = app(tmp_path)
    until(lambda: "Decode" in first._made)
    second = app(tmp_path)
    until(lambda: second.head.note)
    assert "Another tab" in second.head.note and not second._made
    first._lock.release()
    until(lambda: "Decode" in second._made)
    assert second.head.note == "" and second._made["Decode"].layout.display == ""
    second._lock.release()


def test_what_is_saved_is_listed_and_never_overwritten(tmp_path):
    one = App(Setting(str(tmp_path), None, str(tmp_path)))
    one._add("Traces")
    listed, trace = one._made["Traces"], specviz.open(specviz.example("prompt_lookup"))
    said = [one._keep("prompt_lookup-1.parquet", trace) for _ in range(2)]
    names = ["prompt_lookup-1.parquet", "prompt_lookup-1 (2).parquet"]
    assert said == [f"Saved as {name} in {tmp_path}: Traces lists it." for name in names]
    assert {row["file"] for row in listed.panel.rows} == set(names)


def test_it_is_for_the_server_alone(monkeypatch):
    monkeypatch.delenv("SPECVIZ_APP", raising=False)
    with pytest.raises(ParameterError, match="specviz app"):
        Setting.from_environment()


def test_a_model_without_a_drafter_starts_with_a_method_that_needs_none(tmp_path):
    pytest.importorskip("torch", reason="needs the run extra")
    assert [first_method(name) for name in ("town", "town-draft")] == ["speculative", "prompt_lookup"]
    one = App(Setting(str(tmp_path), "town-diffusion", str(tmp_path)))
    for section in ("Race", "Decode", "Race"):  # a race may be opened first
        one._add(section)
        assert not one.head.note
        methods = one._made.pop("Race").panel.lanes if section == "Race" else [one._made["Decode"].method]
        assert set(methods) < set(names("canvas")), "the baseline continues prompts"
