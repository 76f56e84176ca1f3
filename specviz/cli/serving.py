"""``specviz app``: explorer, live race and a folder's traces in a browser, served by Voila on loopback."""

from __future__ import annotations

import errno
import hmac
import html
import ipaddress
import json
import os
import socket
import sys
import tempfile
import webbrowser
from collections.abc import Awaitable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, urlsplit

from specviz.cli.options import argument, option
from specviz.errors import ParameterError, SpecvizError, TraceError, install
from specviz.files import exists
from specviz.paths import expanded

if TYPE_CHECKING:
    from jupyter_server.auth.identity import IdentityProvider
    from tornado.httputil import HTTPServerRequest
    from tornado.web import RequestHandler
    from voila.app import Voila

    from specviz.trace.files import Record

MOST_PATH = 103  # maximum length of a socket's path: macOS has the smallest limit
PORT, MOST_PORT = 8866, 65535
FOLDERS = ("SPECVIZ_HOME", "SPECVIZ_SUITES", "SPECVIZ_CALIBRATIONS")  # environment variables with a path
NOTEBOOK = {
    "cells": [{
        "cell_type": "code", "execution_count": None, "id": "page", "metadata": {}, "outputs": [],
        "source": "from specviz.widgets.app import page\n\npage()",
    }],
    "metadata": {
        "title": "specviz",
        "kernelspec": {"name": "specviz", "display_name": "specviz", "language": "python"},
    },
    "nbformat": 4, "nbformat_minor": 5,
}  # fmt: skip
# Voila's own page without its links to a CDN, and dark if the system is.
TEMPLATE = """{%- extends 'voila/templates/lab/index.html.j2' -%}
{%- block notebook_css -%}
{{ resources.include_js("static/voila-style.js") if frontend == "voila" }}
{{ spinner.css() }}
{{ super.super() }}
<style>
.jp-mod-noOutputs.jp-mod-noInput,.jp-OutputPrompt{display:none}
body.jp-Notebook{padding:0;overflow:auto}
#rendered_cells{max-width:1320px;margin:0 auto;padding:.3em}
.jp-Cell,.jp-OutputArea-output{padding:0;margin:0;overflow:visible}
.widget-vbox{overflow:visible}
@media (prefers-color-scheme:dark){body.jp-Notebook{
--jp-layout-color0:#161616;--jp-layout-color1:#161616;--jp-layout-color2:#2a2a2a;--jp-border-color1:#555;
--jp-content-font-color1:#eee;--jp-ui-font-color1:#eee;--jp-ui-font-color0:#fff;
color-scheme:dark;background:#161616;color:#eee}}
</style>
{%- endblock notebook_css -%}
{%- block body_header -%}
<link rel="icon" href="data:;base64,=">
<body class="jp-Notebook" data-base-url="{{resources.base_url}}voila/" data-voila="voila">
{{ spinner.html() }}
{{ voila_setup_helper_functions() }}
<div id="rendered_cells" style="display: none"><div>
{%- endblock body_header -%}
"""


def transport() -> str:
    """Transport between the server and its kernels: socket files, unless a path would be too long."""
    name = "voila_xxxxxxxx/kernel-01234567-0123-0123-0123-0123456789ab-ipc-1"
    return "ipc" if sys.platform != "win32" and len(f"{tempfile.gettempdir()}/{name}") <= MOST_PATH else "tcp"


CONFIG = {
    "VoilaConfiguration": {
        "template": "specviz", "allow_template_override": "NO", "file_allowlist": [],
        "extension_allowlist": [
            "@jupyter-widgets/jupyterlab-manager", "@voila-dashboards/widgets-manager8", "anywidget",
        ],
        "preheat_kernel": True, "default_pool_size": 1,  # keep one kernel warm
    },
    "VoilaKernelManager": {"fill_delay": 8.0},  # seconds: a tab's first decode has the machine to itself
    # for kernels of tabs that were closed without notice
    "MappingKernelManager": {"cull_idle_timeout": 120, "cull_interval": 30},
    "KernelManager": {"transport": transport()},
}  # fmt: skip
# Sources the browser may load: Voila's scripts are inline and built at run time; no other host is contacted.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "connect-src 'self' blob: data:; worker-src 'self' blob:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def app(
    folder: Annotated[
        Path, argument("Folder whose traces are listed and where dropped ones are saved.")
    ] = Path("."),
    model: Annotated[
        str | None,
        option("The target: a name or a folder. Default: smollm2, if downloaded.", "--model", "-m"),
    ] = None,
    port: Annotated[int, option("Port of the server; the next free one if it is taken.", min=1)] = PORT,
    ip: Annotated[
        str,
        option("Address to listen on. In a container use 0.0.0.0 and publish the port only to 127.0.0.1."),
    ] = "127.0.0.1",
    browser: Annotated[bool, option("Open a browser.")] = True,
) -> None:
    """Decode, race and open traces in a browser, without a notebook. Ctrl-C stops the app.

    The address contains a token, which every request needs. Dropped files are checked and are kept only if
    saved.
    """
    if find_spec("voila") is None:
        raise SpecvizError(f"Voila is not installed: {install('app')}")
    if not folder.is_dir():
        raise TraceError(f"{folder} is {'a file' if folder.exists() else 'missing'}: name a folder of traces")
    if port > MOST_PORT:
        raise ParameterError(f"--port takes a number up to {MOST_PORT}, got {port}")
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        raise ParameterError(f"--ip takes an address such as 127.0.0.1 or 0.0.0.0, got {ip!r}") from None
    if not (address.is_loopback or address.is_unspecified):  # `refusal` would refuse every request
        raise ParameterError(
            f"the app answers only requests to this machine's loopback address, not to {ip}: drop --ip (in a "
            f"container, pass 0.0.0.0), and open the app from another machine through an SSH tunnel"
        )
    if model is not None:
        from specviz.errors import loading

        with loading():
            from specviz.models.loading import find as find_model
        find_model(model)  # raise an error now, not in the page
        model = _absolute(model)
    for name in FOLDERS:
        if os.environ.get(name):
            os.environ[name] = str(expanded(os.environ[name]).resolve())
    with tempfile.TemporaryDirectory(prefix="specviz-app-") as scratch:
        _serve(Path(scratch), folder.resolve(), model, free_port(ip, port), ip, browser)
    print("specviz app has stopped")


def _absolute(model: str) -> str:
    """A model's name, or its absolute path: the page runs in the folder of traces."""
    from specviz.models.downloads import DOWNLOADS
    from specviz.models.loading import BERGAMOT, GGUF
    from specviz.models.zoo import bundled

    prefix = next((each for each in (GGUF, BERGAMOT) if model.startswith(each)), "")
    name = model.removeprefix(prefix)
    pair = f"bergamot-{name}" if prefix == BERGAMOT else name
    if {name, pair} & {*bundled(), *DOWNLOADS} or not exists(Path(name)):
        return model
    return prefix + str(Path(name).resolve())


def free_port(ip: str, port: int) -> int:
    """The first free port from `port` on.

    Raises
    ------
    SpecvizError
        If none of twenty is free, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    for each in range(port, min(port + 20, MOST_PORT + 1)):
        with socket.socket(family) as one:
            try:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                one.bind((ip, each))
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise SpecvizError(f"cannot listen on {ip}: {error.strerror}") from error
                continue
            return each
    raise SpecvizError(f"no port from {port} to {port + 19} is free: choose another with --port")


def _serve(scratch: Path, folder: Path, model: str | None, port: int, ip: str, browser: bool) -> None:
    """Run Voila with our own page until Ctrl-C; it writes files only in `scratch`."""
    from specviz.widgets.app import Setting

    files = {
        "app/specviz.ipynb": json.dumps(NOTEBOOK),
        "kernels/specviz/kernel.json": json.dumps({
            "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
            "display_name": "specviz", "language": "python",
        }),
        "voila/templates/specviz/index.html.j2": TEMPLATE,
        "voila/templates/specviz/conf.json": json.dumps({"base_template": "lab"}),
    }  # fmt: skip
    for name, text in files.items():
        (scratch / name).parent.mkdir(parents=True, exist_ok=True)
        (scratch / name).write_text(text, encoding="utf8")
    (scratch / "files").mkdir()
    # Kernels and templates are looked up along this path; dropped files go to TMPDIR, deleted at the end.
    paths = filter(None, [str(scratch), os.environ.get("JUPYTER_PATH")])
    os.environ["JUPYTER_PATH"] = os.pathsep.join(paths)
    os.environ |= Setting(str(folder), model, str(scratch)).to_environment()
    os.environ["TMPDIR"] = str(scratch / "files")
    server = _server(scratch, ip, browser)
    server.initialize([str(scratch / "app/specviz.ipynb")])
    server.port = port
    try:
        server.start()
    except KeyboardInterrupt:  # after the address is printed and before the loop runs, which would catch it
        server.stop()


def _server(scratch: Path, ip: str, browser: bool) -> Voila:
    """A guarded Voila server that prints its address once it listens."""
    from traitlets.config import Config
    from voila.app import Voila

    class Server(Voila):
        def init_settings(self) -> Record:
            settings: Record = super().init_settings()
            if not self.identity_provider.token:
                raise SpecvizError("a Jupyter setting here switches tokens off: specviz app needs one")
            return settings | {"headers": HEADERS, "allow_remote_access": False}

        def init_handlers(self) -> list[tuple[str, type[RequestHandler]]]:
            login = {kind for _, kind, *_ in self.identity_provider.get_handlers()}
            return [
                (pattern, guarded(kind, self.identity_provider, open_to_all=kind in login), *rest)
                for pattern, kind, *rest in super().init_handlers()
            ]

        def launch_browser(self) -> None:
            address = address_of(ip, self.port, self.identity_provider.token)
            print(f"specviz app: {address}\nCtrl-C stops it.", flush=True)
            if browser:  # through a file, as in Jupyter: other users can read a program's arguments
                page = scratch / "open.html"
                page.write_text(f'<meta http-equiv="refresh" content="0;url={html.escape(address)}">', "utf8")
                webbrowser.open(page.as_uri())

    return Server(
        ip=ip, port_retries=0, auto_token=True, log_level=40, config_file_paths=[], config=Config(CONFIG)
    )


def address_of(ip: str, port: int, token: str) -> str:
    """The address that a browser on this machine opens."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(ip, f"[{ip}]" if ":" in ip else ip)
    return f"http://{host}:{port}/?token={quote(token, safe='')}"


def guarded(
    kind: type[RequestHandler], provider: IdentityProvider, *, open_to_all: bool = False
) -> type[RequestHandler]:
    """Make a handler answer only requests from the server's own pages that carry its token or cookie.

    Voila checks the token only for pages and kernels. This handler checks it on every path except the login
    form (`open_to_all`) and the root page, which redirects there without a token.
    """
    from tornado.web import HTTPError

    class Guarded(kind):  # type: ignore[misc, valid-type]
        def check_xsrf_cookie(self) -> None:
            if "Origin" not in self.request.headers:  # `refusal` has checked the origin, if given
                super().check_xsrf_cookie()

        async def prepare(self) -> None:
            if why := refusal(self.request):
                raise HTTPError(403, why)
            form = open_to_all or (self.request.method == "GET" and self.request.path == "/")
            if not form and not provider.get_user_cookie(self) and not _has_token(self, provider):
                raise HTTPError(403, "the token is missing")
            more = super().prepare()
            if isinstance(more, Awaitable):
                await more

    return Guarded


def _has_token(handler: RequestHandler, provider: IdentityProvider) -> bool:
    return hmac.compare_digest((provider.get_token(handler) or "").encode(), provider.token.encode())


def refusal(request: HTTPServerRequest) -> str:
    """Reason to refuse a request that does not come from a page of this server; empty if it is allowed.

    The host name must be this machine's, so that no other site's name leads here. Requests by another site's
    pages are refused, with or without a token.
    """
    name = (urlsplit(f"//{request.host}").hostname or "").rstrip(".")
    try:
        local = name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        local = False
    if not local:
        return f"{name[:80]} is not this machine: use 127.0.0.1 or localhost"
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc.lower() != request.host.lower():
        return "another origin"
    site = request.headers.get("Sec-Fetch-Site", "none")
    if site in ("cross-site", "same-site") and request.headers.get("Sec-Fetch-Mode") != "navigate":
        return "another site"
    return ""
