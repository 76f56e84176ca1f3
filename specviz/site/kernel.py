"""Replace live widgets by pages in a walkthrough's kernel while the site runs it."""

from __future__ import annotations

from itertools import count
from pathlib import Path

PLOTLY = "../_static/plotly.min.js"
FRAME = (
    '<iframe class="{kind}" src="../players/{name}" title="{title}" loading="lazy"></iframe>'
    '<p class="wide"><a href="../players/{name}">Open it on its own page</a></p>'
)


def install(folder: str, book: str) -> None:
    """Make widgets display as pages written to `folder`, and plotly figures share one script."""
    from specviz.view.interactive import Interactive
    from specviz.widgets.stateful import Stateful

    numbers = count(1)

    def framed(self: Stateful, **options: bool) -> dict[str, str]:
        name = f"{book}-{next(numbers)}.html"
        self.to_html(Path(folder) / name, force=True)
        return {
            "text/html": FRAME.format(name=name, title=type(self).__name__, kind=type(self).__name__.lower())
        }

    def drawn(self: Interactive) -> str:
        return self._html(f"{book}-{next(numbers)}", PLOTLY)

    for kind, name, shown in ((Stateful, "_repr_mimebundle_", framed), (Interactive, "_repr_html_", drawn)):
        setattr(kind, name, shown)
