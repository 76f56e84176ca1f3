"""Writes views as one offline file with their ES modules and data, without a server or network requests.

The modules are the ones that run in a notebook; a stand-in for the widget's model supplies their state. The
page's content security policy forbids every connection. Without scripts, the static picture remains.
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
from specviz.view import static
from specviz.view.picture import name_of
from specviz.widgets import assets
from specviz.widgets.columns import Chunks, Json, columns, pack
from specviz.widgets.lanes import Field, flat

STILLS = 5  # number of texts per run in the static picture


@dataclass
class View:
    """One view on a page.

    Parameters
    ----------
    view : str
        Name of its module in `assets`: ``player``, ``race`` ...
    name : str
        Label of its button.
    data : bytes
        Its trait ``data``.
    state : dict
        The initial values of its other traits, as plain JSON.
    chunks : sequence of bytes
        The chunks that it requests by ``want``.
    numbers : sequence of int
        The number of each of its prompts, by which the page's address names them.
    """

    view: str
    name: str
    data: bytes
    state: Json = field(default_factory=dict)
    chunks: Sequence[bytes] = ()
    numbers: Sequence[int] = ()


START = {
    "want": 0, "prompt": 0, "cycle": 0, "phase": "commit", "playing": False, "speed": 1, "predict": False,
    "score": [0, 0], "substeps": False, "growth": False, "projector": False,
}  # fmt: skip


def document(title: str, views: Sequence[View], still: str = "") -> str:
    """Build a complete HTML page that contains views.

    Parameters
    ----------
    title : str
    views : sequence of View
        The first is shown at the start; buttons switch to the others.
    still : str
        Escaped HTML of a static picture, for readers without scripts and for print.

    Returns
    -------
    str
    """
    names = list(dict.fromkeys(v.view for v in views))
    buttons = "".join(
        f'<button type="button" aria-pressed="{str(i == 0).lower()}">{html(v.name)}</button>'
        for i, v in enumerate(views)
    )
    nav = f'<nav aria-label="Runs">{buttons}</nav>' if len(views) > 1 else ""
    below = (
        f'<details class="still" open><summary>As a static picture</summary>{still}</details>'
        if still
        else ""
    )
    body = (
        f'<h1 class="unseen">{html(title)}</h1>{nav}<p id="failed" role="alert" hidden></p>'
        f'<div id="place"></div>{below}'
    )
    return _whole(title, body, views, "page", assets.text("page.css") + "".join(map(assets.style, names)))


@dataclass
class Gallery:
    """A page with one leading view and a choice of others.

    Parameters
    ----------
    above, between, below : str
        Escaped HTML at the top of the page, after the first view, and at the end.
    first : View or None
        The view that is shown at once and plays, if any.
    views : sequence of View
        One per run, over the same prompts.
    prompts : sequence of str
        The prompts' labels.
    stills : sequence of sequences of str
        Escaped HTML of each run's static picture of each prompt.
    """

    above: str
    first: View | None
    between: str
    views: Sequence[View]
    prompts: Sequence[str]
    stills: Sequence[Sequence[str]]
    below: str = ""

    def document(self, title: str) -> str:
        """Build the complete page."""
        views = [*([self.first] if self.first else []), *self.views]
        sheets = [
            assets.text("page.css"),
            static.style(),
            *dict.fromkeys(assets.style(v.view) for v in views),
        ]
        body = (
            f'<div class="specviz">{self.above}</div><p id="failed" role="alert" hidden></p>'
            f'<div id="first"></div><div class="specviz">{self.between}</div><div class="pick">'
            f"<h2>Look at a decode</h2>{_picker('run', 'Method', [v.name for v in self.views])}"
            f"{_picker('prompt', 'Prompt', self.prompts)}</div>"
            f'<div id="place"></div><div id="picture" class="specviz"></div>'
            f'<div class="specviz">{self.below}</div>'
            + "".join(
                _script(f"still-{i}-{k}", _packed(still.encode("utf8")))
                for i, each in enumerate(self.stills)
                for k, still in enumerate(each)
            )
        )
        return _whole(
            title, body, views, "gallery", "".join([*sheets, assets.text("gallery.css")]), bool(self.first)
        )


def _picker(name: str, label: str, choices: Sequence[str]) -> str:
    options = "".join(f'<option value="{i}">{html(each)}</option>' for i, each in enumerate(choices))
    return f'<label>{label} <select id="{name}">{options}</select></label>'


def _whole(title: str, body: str, views: Sequence[View], boot: str, styles: str, lead: bool = False) -> str:
    """Wrap a body into a page with its views' data and modules, the boot script and the content policy."""
    blocks = [
        _script(f"data-{i}", _packed(v.data))
        + "".join(_script(f"chunk-{i}-{k}", _packed(c)) for k, c in enumerate(v.chunks))
        for i, v in enumerate(views)
    ]
    names = list(dict.fromkeys(v.view for v in views))
    listing = [
        {"view": v.view, "state": dict(v.state), "chunks": len(v.chunks), "numbers": list(v.numbers)}
        | {"lead": lead and i == 0}
        for i, v in enumerate(views)
    ]
    script = assets.text("offline.js") + assets.text(f"{boot}.js")
    head = f"<style>{styles}</style>"
    policy = content_policy(head + body, script, modules=True)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"{head}</head><body><main>{body}</main>{''.join(blocks)}"
        + _script("views", json.dumps(listing))
        + "".join(_script(f"module-{n}", assets.script(n)) for n in names)
        + f'<script type="module">{script}</script></body></html>'
    )


def race_view(fields: Sequence[Field]) -> View:
    """Wrap a race as one view of a page; as a gallery's first view it plays unless motion is reduced."""
    state = {"prompt": 0, "time": 0.0, "playing": False, "pace": 12.0, "projector": False}
    return View("race", "Race", pack(*flat(fields)), state, numbers=[field.number for field in fields])


def player_view(run: Trace, name: str = "") -> View:
    """Wrap the player of a trace of one run as one view of a page."""
    header, arrays = columns(run)
    chunks = Chunks(run)
    facts = run.run
    models = " ← ".join(filter(None, (name_of(facts["model"]), name_of(facts["draft"]))))
    return View(
        "canvas" if facts.get("canvas") else "player",
        name or f"{facts['method']}: {models}",
        pack(header, arrays),
        START | {"cycle": header["prompts"][0]["opens"]},
        [pack(*chunks[i]) for i in range(len(chunks))],
        [each["prompt"] + 1 for each in header["prompts"]],
    )


def write(trace: Trace, path: Path, force: bool = False) -> Path:
    """Write a page with the player of each run of a trace.

    Raises
    ------
    TraceError
        If the file exists (unless `force`) or cannot be written, or the trace is empty.
    """
    views = [player_view(run) for run in trace.split()]
    methods = ", ".join(dict.fromkeys(str(run.run["method"]) for run in trace.split()))
    return write_text(path, document(f"specviz: {methods}", views, view.html(trace, STILLS)), force)


def _packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data, 6)).decode("ascii")


def _script(name: str, text: str) -> str:
    """Embed text in an inert script block, escaped so that it cannot close the block."""
    return f'<script type="text/plain" id="{name}">{text.replace("</", "<" + chr(92) + "/")}</script>'
