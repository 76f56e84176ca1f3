"""The front-end files as sent: without comments and indentation."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from benchmarks.front_end import names

from specviz.widgets import assets

SCRIPTS = [name for name in names() if name.endswith(".js")]


def source(name):
    return files("specviz.widgets").joinpath(name).read_text(encoding="utf8")


@pytest.mark.parametrize("name", SCRIPTS)
def test_comments_and_indentation_stay_behind(name):
    whole, sent = source(name), assets.text(name)
    assert len(sent.encode()) < 0.96 * len(whole.encode())
    pairs = list(zip(whole.split("\n"), sent.split("\n"), strict=True))
    for line, rest in pairs:
        code = line.strip("\t")
        assert rest == "" if code.startswith("//") else code.startswith(rest)
        lost = code[len(rest) :]
        assert not lost or lost.lstrip().startswith("//")
        assert not set(lost) & set("\"'`") or code.startswith("//"), (
            f"a comment behind code, or a string? {line}"
        )


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_template_goes_over_a_lines_end(name):
    """A multi-line template would include its indentation, and an address in it would look like a comment."""
    odd = [line for line in assets.text(name).split("\n") if line.count("`") % 2]
    assert not odd


def test_what_looks_like_a_comment_and_is_none():
    kept = [
        "const a = 'x; // y';",
        'f("a, // b");',
        "g(`) // ${b}`);",
        "const u = 'https://x';",
        "a = b / c;",
    ]
    assert assets.UNSENT.sub("", "\n".join(kept)).split("\n") == kept
    gone = "\t\t// all of it\n\tf(x); // why it is\n"
    assert assets.UNSENT.sub("", gone) == "\nf(x);\n"


@pytest.mark.parametrize("name", names())
def test_no_class_is_one_of_jupyters_icon_font(name):
    """Font Awesome's class names set an icon font wherever JupyterLab or Voila shows a view."""
    icons = r"(fa|fas|far|fab|fal|fad)"
    assert not re.search(rf"""\.{icons}\b|["']{icons}["']""", source(name))
