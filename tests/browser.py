"""In a real browser: notebook 00 against a real `jupyter lab`. `make test-browser`. (Not collected by `make test`.)"""

import contextlib
import html
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from playwright.sync_api import sync_playwright

from fa_lib.execution.paths import ROOT

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
SETTINGS = '{"fetchNews": "false", "checkForUpdates": false}'  # no dialog about news


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of the panel in what `make lab` opens, with copies of the notebooks and nothing of this machine's
    Jupyter."""
    home = tmp_path_factory.mktemp("lab")
    for name in ("00_attention_in_low_precision.ipynb", "tutorials/panel.ipynb"):
        (home / "notebooks" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "notebooks" / name, home / "notebooks" / name)
    shutil.copy(ROOT / "Makefile", home)
    (home / "figures").mkdir()
    shutil.copy(ROOT / "figures" / "explore.png", home / "figures")
    (home / "fa_lib").symlink_to(ROOT / "fa_lib")
    no_news = home / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    no_news.parent.mkdir(parents=True)
    no_news.write_text(SETTINGS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    opened = home / "opened"  # what Jupyter's browser is given: the name of a page that leads to the notebook
    browser = f'{sys.executable} -c \'import sys; open("{opened}", "w").write(sys.argv[1])\' %s'
    server = dict(ip="127.0.0.1", port=port, port_retries=0, allow_root=True, browser=browser)
    lab = dict(user_settings_dir=str(home / "settings"), workspaces_dir=str(home / "workspaces"))
    (home / "config").mkdir()
    (home / "config" / "jupyter_server_config.json").write_text(json.dumps(dict(ServerApp=server, LabApp=lab)))
    folders = dict(
        JUPYTER_CONFIG_DIR="config", JUPYTER_DATA_DIR="data", JUPYTER_RUNTIME_DIR="run", IPYTHONDIR="ipython"
    )
    env = os.environ | {name: str(home / folder) for name, folder in folders.items()}
    with open(home / "log", "w") as log:
        command = ["make", "lab", f"PYTHON={sys.executable}"]
        running = subprocess.Popen(command, cwd=home, env=env, stdout=log, stderr=log, start_new_session=True)
    try:
        since = time.monotonic()
        while not (opened.exists() and opened.read_text()):
            assert running.poll() is None and time.monotonic() - since < 120, (home / "log").read_text()
            time.sleep(0.2)
        leads_to = urllib.request.urlopen(opened.read_text()).read().decode()
        address = html.unescape(re.search(r'href="([^"]+)"', leads_to)[1])
        assert "00_attention_in_low_precision.ipynb" in address
        yield address.replace("00_attention_in_low_precision.ipynb", "tutorials/panel.ipynb")
    finally:
        os.killpg(running.pid, signal.SIGTERM)  # the server ends its kernels, which are in groups of their own
        try:
            running.wait(30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    assert "Traceback" not in (home / "log").read_text(), (home / "log").read_text()


WATCH = """() => {  // every picture that is drawn from now on, and what its file says
    const picture = document.querySelector(".jp-OutputArea img")
    window.seen = {frames: []}
    const look = async () => {
        const frame = {}
        seen.frames.push(frame)
        const bytes = await (await fetch(picture.src)).arrayBuffer()
        await picture.decode().catch(() => null)  // a newer picture came meanwhile
        const text = new TextDecoder("latin1").decode(bytes), start = text.indexOf("Description\\0")
        const length = new DataView(bytes).getUint32(start - 8)  // of the chunk that begins there
        frame.says = text.slice(start + 12, start + length)
    }
    new MutationObserver(look).observe(picture, {attributes: true, attributeFilter: ["src"]})
    look()
}"""


@pytest.fixture(scope="module")
def browser():
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert chromium, "no Chromium: install one, or say where it is: make test-browser CHROMIUM=path"
    (ROOT / "build").mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page(lab, browser):
    """The notebook after Run All Cells, watched."""
    with contextlib.closing(browser.new_page(viewport=dict(width=1280, height=720), device_scale_factor=1.5)) as page:
        page.errors = []
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.on("console", lambda said: page.errors.append(said.text) if said.type == "error" else None)
        page.goto(lab)
        page.get_by_text("| Idle").wait_for(timeout=120_000)  # before that Run All is lost
        for item in ("Run", "Run All Cells"):
            page.get_by_role("menuitem", name=item, exact=True).click()
        page.locator(".jp-OutputArea img").wait_for(timeout=120_000)
        page.locator(".jp-OutputArea img").scroll_into_view_if_needed()
        page.evaluate(WATCH)
        yield page


def frames(page):
    """The settings of the pictures drawn so far, as their files say them."""
    return page.evaluate("() => seen.frames.filter(frame => frame.says).map(frame => frame.says)")


def wait_for(page, words):
    """The frames, once the last one's setting has the words."""
    since = time.monotonic()
    while words not in (seen := frames(page) or ["nothing"])[-1]:
        assert time.monotonic() - since < 30, f"waiting for {words!r}, seeing {seen[-1]!r}"
        page.wait_for_timeout(50)
    return seen


def slider(page, label):
    return page.locator(".widget-hslider").filter(has=page.get_by_text(label, exact=True))


def test_run_all_draws_the_first_setting(page):
    assert wait_for(page, "error; BF16; fa1, B_c = 64; N = 1024, d = 64, uniform inputs, seed 0")[-1].startswith(
        "Fails"
    )
    page.screenshot(path=ROOT / "build" / "explore_1280.png")  # to be looked at


def test_fast_keys_end_at_the_last_setting_and_nothing_stale_is_drawn(page):
    slider(page, "seed").locator(".noUi-handle").click()
    before, presses = len(frames(page)), 40
    for _ in range(presses):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(20)
    seen = wait_for(page, f"seed {presses}")
    page.wait_for_timeout(2000)
    assert frames(page) == seen  # nothing came after the last
    seeds = [int(re.search(r"seed (\d+)", words)[1]) for words in seen[before:]]
    assert seeds == sorted(set(seeds)) and len(seeds) < presses  # none twice or late; those overtaken were left out


def test_no_error_is_on_the_page(page):
    assert page.errors == []
    bad = ", ".join(f".jp-OutputArea-output[data-mime-type*={kind}]" for kind in ("error", "stderr"))
    assert page.locator(bad).count() == 0
