"""Offline pages with plots: plotly's script packed once, a policy of hashes, no request.

plotly is the lab extra. While it runs it fills style elements and sets style attributes, which a policy of
hashes forbids. It finds its style elements in the page already (`style_elements`) and fills them through the
CSSOM; ``plots.js`` sends its style attributes the same way. So no page's policy allows unhashed styles.
"""

from __future__ import annotations

import base64
import re
import zlib
from importlib.resources import files

from specviz.errors import ParameterError, install
from specviz.escape import content_policy, html

# plotly asks for the first by its name; of the second, a map's style sheet that no plot here needs, the name
# is a digest in plotly's script. An element that is there is not made.
GLOBAL_STYLE = "plotly.js-style-global"
MAP_STYLE = re.compile(r'getElementById\("([0-9a-f]{64})"\)')


def text(name: str) -> str:
    """One of the files beside this one."""
    return files("specviz.view").joinpath(name).read_text(encoding="utf8")


def script() -> str:
    """plotly's script.

    Raises
    ------
    ParameterError
        If it is not installed.
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
    """A whole page.

    Parameters
    ----------
    title : str
    style : str
        The page's style sheet.
    body : str
        HTML, already escaped.
    boot : str
        The page's own script; ``plots.js`` and ``click.js`` stand in front of it.
    figures : str
        plotly's figures as a JSON list, ``figures`` to the script.
    plotly : str
        What `script` gives; empty where there is no figure.

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
