"""The page of ``specviz app``: the explorer, a live race and a folder's traces, without a notebook.

Voila runs this in one kernel per tab. The server passes the state that tabs share through the environment:
the folder, the model, and the location of a lock that lets only one tab decode.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import ipywidgets
import traitlets as t
from anywidget import AnyWidget
from filelock import FileLock

from specviz.errors import ParameterError
from specviz.escape import visible
from specviz.widgets.assets import script, style
from specviz.widgets.columns import Json
from specviz.widgets.runs import Runs, runs, unused
from specviz.widgets.stateful import error_line

if TYPE_CHECKING:
    from specviz.trace import Trace

VARIABLE = "SPECVIZ_APP"  # the environment variable that holds a `Setting` as JSON
HINTS = {  # instructions for each section
    "Decode": "A cheap drafter guesses the next tokens, and the model checks all of them in one pass, which "
    "can save time. Type a prompt and press ▶ Decode: the text appears while it is written, coloured by how "
    "each token came about. Race has two methods write it side by side.",
    "Race": "The methods write one text side by side, each on its own clock. Choose others, or change the "
    "prompt, and press ▶ Race.",
    "Traces": "Recorded decodes of the folder. Open one to step through it; mark two to race them or to see "
    "where they differ.",
}
SECTIONS = tuple(HINTS)
TURN = "turn.lock"  # in the server's scratch folder
WAITS = (
    "Another tab, or this page before it was loaded again, is still using the models. This tab gets its turn "
    "when that one is closed; traces can be opened meanwhile."
)
LOADS = "Loading what decodes: this takes a few seconds …"
PATIENCE = 2.0  # seconds a reloaded page waits for its predecessor's lock before it shows `WAITS`


@dataclass(frozen=True)
class Setting:
    """The options chosen on the command line.

    Parameters
    ----------
    folder : str
        The folder whose traces are listed and where new traces are saved.
    model : str or None
        The target that is offered first.
    scratch : str
        The server's temporary folder, deleted when the server ends.
    """

    folder: str
    model: str | None
    scratch: str

    def to_environment(self) -> dict[str, str]:
        """Return the environment variable that passes this setting to a kernel."""
        return {VARIABLE: json.dumps(asdict(self))}

    @classmethod
    def from_environment(cls) -> Setting:
        """Read the setting that the server left in the environment.

        Raises
        ------
        ParameterError
            If the environment holds no setting.
        """
        if VARIABLE not in os.environ:
            raise ParameterError(
                "this page is for specviz app: in a notebook, use specviz.explore and specviz.runs"
            )
        return cls(**json.loads(os.environ[VARIABLE]))


class Head(AnyWidget):
    """The page's heading: the choice of section, its hint, and a status note."""

    _esm = script("app")
    _css = style("app")
    sections: t.List[str] = t.List(list(SECTIONS)).tag(sync=True)
    section = t.Unicode(SECTIONS[0]).tag(sync=True)
    hints = t.Dict(HINTS).tag(sync=True)
    note = t.Unicode().tag(sync=True)
    theme = t.Enum(["auto", "light", "dark"], "auto").tag(sync=True)


class App(ipywidgets.VBox):
    """The heading and the sections below it, each built when first shown. Created by `page`."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.head = Head()
        # not thread-local: one thread acquires the lock and another checks whether it is held
        self._lock = FileLock(Path(setting.scratch, TURN), thread_local=False)
        self._waiting = False
        self._adding = threading.Lock()
        self._made: dict[str, ipywidgets.Box] = {}
        super().__init__([self.head])
        self.head.observe(lambda change: self._show(change["new"]), names="section")
        self.head.on_msg(self._on_message)

    children: tuple[ipywidgets.DOMWidget, ...]

    def _on_message(self, _: AnyWidget, content: Json, buffers: list[memoryview]) -> None:
        """Show the section once the heading is on a page, and again if its button is pressed again.

        A pre-warmed kernel has no page yet. A section that could not be built is built anew.
        """
        if content.get("do") == "show":
            self._show(self.head.section)

    def _show(self, section: str) -> None:
        """Show a section and hide the others, which keep their state."""
        if not self._waiting:
            self.head.note = ""
        for name, box in list(self._made.items()):
            box.layout.display = "" if name == section else "none"
        if section in self._made:
            return
        if section == "Traces" or self._lock.is_locked:
            self._add(section)
        elif not self._waiting:
            self._waiting = True
            threading.Thread(target=self._wait, daemon=True).start()

    def _wait(self) -> None:
        """Acquire the model lock for good; the operating system releases it when this kernel ends."""
        try:
            self._lock.acquire(timeout=PATIENCE)
        except TimeoutError:
            self.head.note = WAITS
            self._lock.acquire(poll_interval=0.3)
        self._waiting, self.head.note = False, ""
        self._show(self.head.section)

    def _add(self, section: str) -> None:
        """Build a section once, although the page's thread and the waiting thread may both call this."""
        with self._adding:
            if section in self._made:
                return
            if section != "Traces":
                self.head.note = LOADS
            try:
                box = self._make(section)
            except Exception as error:  # any failure is shown as one line below the heading
                self.head.note = error_line(error)
                return
            if self.head.note == LOADS:
                self.head.note = ""
            box.layout.display = "" if section == self.head.section else "none"
            self._made[section] = box
            self.children = (*self.children, box)

    def _make(self, section: str) -> ipywidgets.Box:
        if section == "Traces":
            return runs(self.setting.folder)
        from specviz.widgets.explore import Explorer
        from specviz.widgets.explorer import explore, first_method

        if section == "Race" and isinstance(decode := self._made.get("Decode"), Explorer):
            return decode.contest()  # with its prompt, model and method
        model = self.setting.model
        explorer = explore(first_method(model), model=model)
        explorer.keep = self._keep
        if section == "Race":
            live_race = explorer.contest()
            explorer.close()
            return live_race
        return explorer

    def _keep(self, name: str, trace: Trace) -> str:
        """Save a trace in the folder under an unused name, list it, and return a message that says where."""
        folder = Path(self.setting.folder)
        path = trace.save(unused(folder, name.removesuffix(".parquet")))
        if isinstance(listed := self._made.get("Traces"), Runs):
            listed.refresh()
        return f"Saved as {path.name} in {visible(str(folder))}: Traces lists it."


def page() -> App:
    """Build the page that ``specviz app`` shows; traces saved from it go to the folder."""
    setting = Setting.from_environment()
    os.chdir(setting.folder)
    with suppress(FileExistsError):  # only the first kernel warms up: a later one would slow another tab
        Path(setting.scratch, "warm").touch(exist_ok=False)
        threading.Thread(target=_warm, daemon=True).start()
    return App(setting)


def _warm() -> None:
    """Import the sections' dependencies while the kernel waits for its page."""
    for name in ("pandas", "pyarrow.parquet", "specviz.trace.metadata", "specviz.loop.choices"):
        with suppress(ImportError):  # the section that needs the module reports it
            import_module(name)
