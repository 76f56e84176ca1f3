"""A view as one offline file: the same ES module, its data inside, no server, no request.

The module is the one that runs in a notebook; a stand-in for the widget's model gives it its state. The
page's policy forbids every connection. Without scripts the still picture is left.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specviz import view
from specviz.escape import content_policy, html
from specviz.files import write_text
from specviz.trace import Trace
from specviz.view.picture import name_of
from specviz.widgets import assets
from specviz.widgets.columns import Chunks, Json, columns, pack

STILLS = 5  # texts of each run in the still picture


@dataclass
class View:
    """One view on a page.

    Parameters
    ----------
    view : str
        ``player``, ``race`` ...: the module in `assets`.
    name : str
        What its button says.
    data : bytes
        Its trait ``data``.
    state : dict
        Its other traits at the start; plain JSON.
    chunks : sequence of bytes
        What it asks for by ``want``.
    """

    view: str
    name: str
    data: bytes
    state: Json = field(default_factory=dict)
    chunks: Sequence[bytes] = ()


START = {
    "want": 0, "prompt": 0, "cycle": 0, "phase": "commit", "playing": False, "speed": 1, "predict": False,
    "score": [0, 0], "substeps": False, "growth": False, "projector": False,
}  # fmt: skip


def document(title: str, views: Sequence[View], still: str = "") -> str:
    """A whole page around views.

    Parameters
    ----------
    title : str
    views : sequence of View
        The first is shown; the others by their buttons.
    still : str
        HTML, already escaped, for readers without scripts and for print.

    Returns
    -------
    str
    """
    blocks = [
        _script(f"data-{i}", _packed(v.data))
        + "".join(_script(f"chunk-{i}-{k}", _packed(c)) for k, c in enumerate(v.chunks))
        for i, v in enumerate(views)
    ]
    names = list(dict.fromkeys(v.view for v in views))
    listing = [{"view": v.view, "state": dict(v.state), "chunks": len(v.chunks)} for v in views]
    buttons = "".join(
        f'<button type="button" aria-pressed="{str(i == 0).lower()}">{html(v.name)}</button>'
        for i, v in enumerate(views)
    )
    nav = f'<nav aria-label="Runs">{buttons}</nav>' if len(views) > 1 else ""
    below = (
        f'<details class="still" open><summary>As a still picture</summary>{still}</details>' if still else ""
    )
    boot = assets.text("page.js")
    styles = "<style>" + assets.text("page.css") + "".join(assets.style(n) for n in names) + "</style>"
    policy = content_policy(styles + below, boot, modules=True)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"{styles}</head><body><main>"
        f'<h1 class="unseen">{html(title)}</h1>{nav}<p id="failed" role="alert" hidden></p>'
        f'<div id="place"></div>{below}</main>{"".join(blocks)}'
        + _script("views", json.dumps(listing))
        + "".join(_script(f"module-{n}", assets.script(n)) for n in names)
        + f'<script type="module">{boot}</script></body></html>'
    )


def write(trace: Trace, path: Path, force: bool = False) -> Path:
    """Write a trace's page: the player of each of its runs.

    Raises
    ------
    TraceError
        If the file exists (unless `force`) or cannot be written, or the trace is empty.
    """
    views = []
    for run in trace.split():
        header, arrays = columns(run)
        chunks = Chunks(run)
        facts = run.run
        models = " ← ".join(filter(None, (name_of(facts["model"]), name_of(facts["draft"]))))
        views.append(
            View(
                "canvas" if facts.get("canvas") else "player",
                f"{facts['method']}: {models}",
                pack(header, arrays),
                START | {"cycle": header["prompts"][0]["opens"]},
                [pack(*chunks[i]) for i in range(len(chunks))],
            )
        )
    methods = ", ".join(dict.fromkeys(str(run.run["method"]) for run in trace.split()))
    return write_text(path, document(f"specviz: {methods}", views, view.html(trace, STILLS)), force)


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode("ascii")


def _script(name: str, text: str) -> str:
    """Text in the page that nothing executes by itself; it cannot end its own block."""
    return f'<script type="text/plain" id="{name}">{text.replace("</", "<" + chr(92) + "/")}</script>'
