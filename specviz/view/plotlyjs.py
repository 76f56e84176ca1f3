"""Build offline pages with plots: plotly's script packed once, a hash-based content policy, no requests.

plotly comes with the lab extra. It normally adds style elements and sets style attributes, which a hash-based
policy forbids. The page therefore already contains the style elements (`style_elements`), which plotly fills
through the CSSOM, and ``plots.js`` sets its style attributes the same way. No page allows unhashed styles.
"""

from __future__ import annotations

import base64
import re
import zlib
from importlib.resources import files

from specviz.errors import ParameterError, install
from specviz.escape import content_policy, html

# plotly looks up the first by name. The second is a map's style sheet, which no plot here needs; its name is
# a digest in plotly's script. plotly does not create an element that already exists.
GLOBAL_STYLE = "plotly.js-style-global"
MAP_STYLE = re.compile(r'getElementById\("([0-9a-f]{64})"\)')


def text(name: str) -> str:
    """Read one of the package's data files."""
    return files("specviz.view").joinpath(name).read_text(encoding="utf8")


def script() -> str:
    """Plotly's JavaScript source.

    Raises
    ------
    ParameterError
        If plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise ParameterError(f"a page with plots needs plotly: {install('lab')}") from None
    return str(get_plotlyjs())


def style_elements(plotly: str) -> str:
    """The style elements that plotly's script would add to a page, still empty."""
    names = [GLOBAL_STYLE, *dict.fromkeys(MAP_STYLE.findall(plotly))]
    return "".join(f'<style id="{name}"></style>' for name in names)


def document(title: str, style: str, body: str, boot: str, figures: str, plotly: str) -> str:
    """Assemble a complete HTML page.

    Parameters
    ----------
    title : str
    style : str
        The page's style sheet.
    body : str
        HTML, already escaped.
    boot : str
        The page's own script; ``plots.js`` and ``click.js`` are prepended to it.
    figures : str
        Plotly figures as a JSON list, which the script reads as ``figures``.
    plotly : str
        The result of `script`, or an empty string if the page has no figure.

    Returns
    -------
    str
    """
    whole = text("plots.js") + text("click.js") + boot
    head = f"<style>{style}</style>" + (style_elements(plotly) if plotly else "")
    policy = content_policy(head + body, whole, *filter(None, [plotly]))
    packed = base64.b64encode(zlib.compress(plotly.encode(), 9)).decode() if plotly else ""
    data = figures.replace("</", "<\\/")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"{head}</head><body><main>{body}</main>"
        f'<script type="text/plain" id="plotly">{packed}</script>'
        f'<script type="application/json" id="figures">{data}</script>'
        f'<script type="module">{whole}</script></body></html>'
    )
