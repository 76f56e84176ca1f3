"""``specviz app`` in a real browser: decode, race, traces; token, origin, turn-taking, shutdown."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

import specviz as sv
from traces import build

api = pytest.importorskip("playwright.sync_api", reason="needs playwright (the test extra)")
pytest.importorskip("voila", reason="needs voila (the test extra)")
pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="a decode needs torch (the test extra)")
expect = api.expect
expect.set_options(timeout=60_000)
EVIL = "<img src=x onerror=alert(1)>.parquet"


@dataclass
class Served:
    """A running app."""

    address: str  # with its token
    folder: Path
    process: subprocess.Popen[bytes]
    temporary: Path

    @property
    def root(self) -> str:
        return self.address.partition("?")[0]


@pytest.fixture(scope="module")
def served(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, temporary = tmp_path_factory.mktemp("traces"), tmp_path_factory.mktemp("t")
    for name in ("autoregressive", "prompt_lookup"):
        shutil.copy(sv.example(name), folder / f"{name}.parquet")
    (folder / EVIL).write_bytes(b"PAR1 and nothing else")
    log = temporary / "log.txt"
    with log.open("wb") as out:
        port = 8866 + 30 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])  # one range per worker
        command = [sys.executable, "-m", "specviz", "app", str(folder), "--model", "town", "--no-browser"]
        command += ["--port", str(port)]
        environment = os.environ | {"TMPDIR": str(temporary), "JUPYTER_CONFIG_DIR": str(temporary / "c")}
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
            # A shell's background jobs ignore Ctrl-C, and their children would inherit that.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
    begun = time.monotonic()
    while not (match := re.search(r"http\S+", log.read_text())):
        assert process.poll() is None and time.monotonic() - begun < 90, log.read_text()
        time.sleep(0.1)
    yield Served(match[0], folder, process, temporary)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answer(url: str, method: str = "GET", **headers: str) -> int:
    """The HTTP status of a request."""
    request = urllib.request.Request(
        url, method=method, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as got:
            return 302 if "/login" in got.url else got.status
    except urllib.error.HTTPError as error:
        return error.code


def test_requests_without_the_token_or_from_elsewhere_are_refused(served):
    from websocket import WebSocketBadStatusException, create_connection

    token = served.address.partition("token=")[2]
    assert len(token) >= 32 and served.root.startswith("http://127.0.0.1:")
    assert answer(served.root) == 302, "a page without the token leads to the form that asks for it"
    paths = [
        "voila/static/voila.js", "voila/templates/base/static/voila.js", "voila/files/specviz.ipynb",
        "voila/api/themes/x", "voila/labextensions/anywidget/package.json",
        "api/kernels/0a-0b-0c-0d-0e", "voila/query/0a-0b-0c-0d-0e",
    ]  # fmt: skip
    for path in paths:
        assert answer(served.root + path) == 403, path
        assert answer(f"{served.root}{path}?token=wrong") == 403, path
    assert answer(served.root + "voila/templates/base/static/voila.js", Authorization=f"token {token}") == 200
    assert answer(f"{served.root}voila/files/specviz.ipynb?token={token}") == 403, "no file is served"
    for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}, {"Host": "10.1.2.3:8866"},
                    {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"}):  # fmt: skip
        assert answer(served.address, **headers) == 403, f"with its token and {headers}"
    shutdown = f"{served.root}voila/api/shutdown/0a-0b-0c-0d-0e"
    assert answer(shutdown, "POST", Origin="http://evil.example") == 403 and answer(shutdown, "POST") == 403
    for path in ("api/kernels/0a-0b-0c-0d-0e/channels", "voila/query/0a-0b-0c-0d-0e"):
        socket = served.root.replace("http", "ws") + path
        for url, origin in (
            (socket, served.root.rstrip("/")),
            (f"{socket}?token={token}", "http://evil.example"),
        ):
            with pytest.raises(WebSocketBadStatusException) as caught:
                create_connection(url, origin=origin, timeout=20)
            assert caught.value.status_code == 403, url


def test_it_decodes_races_and_opens_traces(served, open_page, shoot, axe):
    page = open_page()
    page.goto(served.address)
    head = page.locator(".sv.app")
    expect(head).to_be_visible()
    expect(page.locator(".sv.explore")).to_be_visible()
    expect(page.locator(".sv.explore tbody tr")).to_have_count(1)  # it decodes as soon as it is shown
    shoot(page, "app-decode")
    head.get_by_role("button", name="Race", exact=True).press("Enter")
    expect(page.locator(".sv.race")).to_be_visible()  # of the live race, which has ended
    shoot(page, "app-race")
    head.get_by_role("button", name="Traces").press("Enter")
    rows = page.locator(".sv.runs tbody tr")
    expect(rows).to_have_count(3)
    assert EVIL in rows.last.inner_text() and page.locator(".sv.runs img").count() == 0
    assert "Parquet" in rows.last.inner_text(), "a broken file says why"
    page.get_by_role("button", name="prompt_lookup.parquet").press("Enter")
    page.wait_for_selector(".sv.runs ~ * .sv.player, .sv.player")
    shoot(page, "app-traces")
    assert not axe(page, "#rendered_cells")
    page.goto("about:blank")


FOCUSED = (
    "() => { const n = document.activeElement; return n.getAttribute('aria-label') ?? n.textContent.trim(); }"
)


def tab_to(page, name: str, key: str = "Tab") -> int:
    """Press a key until the element with this name has the focus; returns the number of presses."""
    for times in range(1, 60):
        page.keyboard.press(key)
        if page.evaluate(FOCUSED) == name:
            return times
    raise AssertionError(f"{name} is not reached by {key}")


def test_a_newcomer_decodes_and_races_by_keyboard_alone(served, open_page, shoot):
    page = open_page()
    page.goto(served.address)
    rows = page.locator(".sv.explore tbody tr")
    expect(rows).to_have_count(1)  # it starts with a decode
    assert "Type a prompt and press ▶ Decode" in page.locator(".sv.app").inner_text()
    steps = tab_to(page, "prompt")
    page.keyboard.press("Control+a")
    page.keyboard.type("The cook saw")
    page.keyboard.press("Control+Enter")
    expect(rows).to_have_count(2)
    assert steps <= 7, "three sections, three menus, the box"
    page.goto(served.address)  # and from the first page to a race
    expect(page.locator(".sv.explore tbody tr")).to_have_count(1)
    tab_to(page, "prompt")
    page.keyboard.press("Control+a")
    page.keyboard.type("The cook saw")
    back = tab_to(page, "Race", "Shift+Tab")
    assert back <= 5
    page.keyboard.press("Enter")
    race = page.locator(".sv.live_race")
    expect(race).to_be_visible()
    expect(page.locator(".sv.race")).to_be_visible()  # it has ended, and can be replayed
    assert race.locator("textarea").input_value() == "The cook saw", "what was typed is raced"
    assert "press ▶ Race" in page.locator(".sv.app").inner_text()
    assert race.locator(".column").count() == 2
    tab_to(page, "method 2")
    page.keyboard.type("prompt")
    tab_to(page, "▶ Race")
    page.keyboard.press("Enter")
    expect(race.locator(".column h3").last).to_contain_text("prompt_lookup")
    expect(race.locator(".leader")).to_contain_text("finished first")
    shoot(page, "app-newcomer")
    page.set_viewport_size({"width": 390, "height": 844})
    page.emulate_media(color_scheme="dark")
    shoot(page, "app-newcomer-narrow")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.goto("about:blank")


def test_nobody_with_the_token_runs_code_or_names_a_model(served, open_page):
    """Check the raw channel that any page could use, not only the messages our page sends."""
    from jupyter_client.session import Session
    from websocket import WebSocketTimeoutException, create_connection

    page = open_page()
    page.goto(served.address)
    expect(page.locator(".sv.app")).to_be_visible()
    kernel = json.loads(page.locator("#jupyter-config-data").text_content())["kernelId"]
    token = served.address.partition("token=")[2]
    url = f"{served.root.replace('http', 'ws')}api/kernels/{kernel}/channels?session_id=x"
    socket = create_connection(url, header=[f"Authorization: token {token}"], timeout=60)
    target = served.temporary / "written"
    content = {"code": f"open({str(target)!r}, 'w')", "silent": False, "store_history": False,
               "user_expressions": {}, "allow_stdin": False, "stop_on_error": True}  # fmt: skip
    for kind, more in (("execute_request", content), ("kernel_info_request", {})):
        message = Session().msg(kind, more)
        socket.send(json.dumps(message | {"channel": "shell", "buffers": []}, default=str))
    answers = set()
    try:
        while "kernel_info_reply" not in answers:  # the message sent last
            answers.add(json.loads(socket.recv())["msg_type"])
    except WebSocketTimeoutException:
        pass
    socket.close()
    assert "kernel_info_reply" in answers and "execute_reply" not in answers and not target.exists()
    page.goto("about:blank")


def test_a_second_tab_waits_its_turn(served, open_page):
    first, second = open_page(), open_page()
    first.goto(served.address)
    expect(first.locator(".sv.explore")).to_be_visible()
    second.goto(served.address)
    note = second.locator(".sv.app .note")
    expect(note).to_contain_text("is still using the models")
    assert second.locator(".sv.explore").count() == 0
    second.get_by_role("button", name="Traces").click()
    expect(second.locator(".sv.runs tbody tr")).to_have_count(3)
    first.goto("about:blank")
    second.get_by_role("button", name="Decode").click()
    expect(second.locator(".sv.explore")).to_be_visible()
    expect(note).to_be_hidden()
    second.goto("about:blank")


def test_a_dropped_trace_is_checked_and_kept_only_if_saved(served, open_page):
    page = open_page(dark=True)
    page.goto(served.address)
    page.get_by_role("button", name="Traces").click()
    rows, error = page.locator(".sv.runs tbody tr"), page.locator(".sv.runs .error")
    expect(rows).to_have_count(3)
    before = sorted(served.folder.iterdir())
    choose = page.locator(".sv.runs input[type=file]")
    choose.set_input_files({"name": EVIL, "mimeType": "x", "buffer": b"no trace <b>at all</b>" * 100_000})
    expect(error).to_contain_text("not a complete Parquet file")
    path = build("bild", seed=3).save(served.temporary / "x.parquet")
    choose.set_input_files({"name": EVIL, "mimeType": "x", "buffer": path.read_bytes()})
    expect(rows).to_have_count(4)
    expect(error).to_be_hidden()
    expect(page.locator(".sv.player")).to_be_visible()
    assert sorted(served.folder.iterdir()) == before, "nothing is kept"
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("button", name="Save", exact=True)).to_have_count(0)
    (new,) = set(served.folder.iterdir()) - set(before)
    assert new.name == "img_src_x_onerror_alert_1__.parquet" and sv.open(new).run["method"] == "bild"
    new.unlink()
    page.goto("about:blank")


def test_an_unreadable_folder_or_option_is_one_line(tmp_path):
    for arguments, words in (
        (["nowhere"], "missing"), ([".", "--ip", "localhost"], "--ip takes an address"),
        ([".", "--model", "no-such"], "no-such"),
    ):  # fmt: skip
        command = [sys.executable, "-m", "specviz", "app", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1


def test_ctrl_c_ends_it_and_leaves_nothing(served):
    os.kill(served.process.pid, signal.SIGINT)
    assert served.process.wait(60) == 0
    assert (served.temporary / "log.txt").read_text().splitlines()[-1] == "specviz app has stopped"
    assert not list(served.temporary.glob("specviz-*")), "what was dropped is gone, too"
