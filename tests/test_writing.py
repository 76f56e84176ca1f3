"""A file is either written completely or left unchanged."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from specviz.errors import TraceError
from specviz.files import shown, write_bytes, write_text


def test_a_file_is_replaced_only_when_asked(tmp_path):
    file = tmp_path / "new" / "a.txt"
    assert write_text(file, "für \ud800") == file
    with pytest.raises(TraceError, match=r"a.txt exists: choose another path, or overwrite it with --force"):
        write_text(file, "other")
    assert file.read_text("utf8", "surrogatepass") == "für \ud800"
    assert write_bytes(file, b"other", force=True).read_bytes() == b"other"


def test_a_value_is_described_without_writing_it_out():
    class Endless(list):
        def __repr__(self):
            raise AssertionError("it was written out")

    assert shown(Endless()) == "something of type Endless"
    assert [shown(each) for each in ([], {}, None, True, 3, "x")] == [
        "a list", "an object", "null", "true", "3", "'x'",
    ]  # fmt: skip
    assert shown(10**5000) == "a huge number" and shown("x" * 50) == "a long text"


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    file = write_text(tmp_path / "a.txt", "old")
    order = []
    replace = os.replace

    def full(descriptor):
        order.append("wait")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(TraceError, match=r"cannot write .*a.txt: No space left on device$"):
        write_text(file, "new", force=True)
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.txt", "old")]
    monkeypatch.setattr(os, "fsync", lambda descriptor: order.append("wait"))
    monkeypatch.setattr(os, "replace", lambda *names: (order.append("rename"), replace(*names)))
    write_text(file, "new", force=True)
    assert order == ["wait", "wait", "rename"] and file.read_text() == "new"
    with pytest.raises(TraceError, match="cannot write"):
        write_text(file / "below.txt", "x")


def test_a_folder_that_cannot_be_searched_is_one_line(tmp_path, monkeypatch):
    def closed(path, **_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "exists", closed)
    with pytest.raises(TraceError, match=r"cannot write .*a.txt: Permission denied$"):
        write_text(tmp_path / "a.txt", "x")
