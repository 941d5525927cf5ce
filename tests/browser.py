"""In a real browser: notebook 00 against a real `jupyter lab`, and the page of a report, wide, narrow and in the dark.
`make test-browser`. (Not collected by `make test`.)"""

import contextlib
import html
import json
import os
import re
import shutil
import signal
import socket
import statistics
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
    """The address that `make lab` opens, with a copy of the notebook and nothing of this machine's Jupyter."""
    home = tmp_path_factory.mktemp("lab")
    (home / "notebooks").mkdir()
    shutil.copy(ROOT / "notebooks" / "00_explore.ipynb", home / "notebooks")
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
        yield html.unescape(re.search(r'href="([^"]+)"', leads_to)[1])
    finally:
        os.killpg(running.pid, signal.SIGTERM)  # the server ends its kernels, which are in groups of their own
        try:
            running.wait(30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    assert "Traceback" not in (home / "log").read_text(), (home / "log").read_text()


WATCH = """() => {  // every picture that is drawn from now on: when, its bytes; and when each key was pressed
    const picture = document.querySelector(".jp-OutputArea img")
    window.seen = {keys: [], frames: []}
    const look = async () => {
        const frame = {}
        seen.frames.push(frame)
        const bytes = await (await fetch(picture.src)).arrayBuffer()
        await picture.decode().catch(() => null)  // a newer picture came meanwhile
        frame.at = performance.now()
        const text = new TextDecoder("latin1").decode(bytes), start = text.indexOf("Description\\0")
        const length = new DataView(bytes).getUint32(start - 8)  // of the chunk that begins there
        frame.says = text.slice(start + 12, start + length)
    }
    new MutationObserver(look).observe(picture, {attributes: true, attributeFilter: ["src"]})
    document.addEventListener("keydown", () => seen.keys.push(performance.now()), true)
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
def reporting(tmp_path_factory):
    """A report in the making, and its folder: it is made while the lab starts."""
    folder = tmp_path_factory.mktemp("reports")
    words = ["check", "kernel", "examples.my_kernel:attention", "--quick", "--out", folder]
    return subprocess.Popen([sys.executable, "-m", "fa_lib", *map(str, words)], cwd=ROOT), folder


@pytest.fixture(scope="module")
def page(reporting, lab, browser):
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
        page.wait_for_timeout(1000)  # it scrolls to the panel
        page.evaluate(WATCH)
        reporting[0].wait(300)  # nothing runs beside what is timed
        yield page


def frames(page):
    """The settings of the pictures drawn so far, as their files say them, and when each was there (ms)."""
    return page.evaluate("() => seen.frames.filter(frame => frame.says).map(frame => [frame.says, frame.at])")


def wait_for(page, words):
    """The frames, once the last one's setting has the words."""
    since = time.monotonic()
    while words not in (seen := frames(page) or [("nothing", 0)])[-1][0]:
        assert time.monotonic() - since < 30, f"waiting for {words!r}, seeing {seen[-1][0]!r}"
        page.wait_for_timeout(50)
    return seen


def slider(page, label):
    return page.locator(".widget-hslider").filter(has=page.get_by_text(label, exact=True))


def choose(page, label, value):
    menu = page.locator(".widget-dropdown").filter(has=page.get_by_text(label, exact=True))
    menu.locator("select").select_option(value)


def verdict(page):
    return page.locator(".fa-verdict").inner_text().split()[0]


def box(page, of):
    """left, top, right, bottom of an element."""
    return page.locator(of).first.evaluate("e => (({left, top, right, bottom}) => [left, top, right, bottom])"
                                           "(e.getBoundingClientRect())")  # fmt: skip


SCROLLS = """() => [...document.querySelectorAll(".jp-OutputArea, .jp-OutputArea *")].filter(e =>
    e.clientWidth && (e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1)
    && ["auto", "scroll"].some(kind => [getComputedStyle(e).overflowX, getComputedStyle(e).overflowY].includes(kind))
).map(e => e.className)"""


def test_the_whole_panel_is_in_view_after_run_all(page):
    """At 1280 x 720, the file browser open: nothing is cut, nothing has a scrollbar; the verdict and the problem are on
    top."""
    left, top, right, bottom = box(page, ".jp-WindowedPanel-outer")
    panel = box(page, ".fa-panel")
    assert left <= panel[0] and top <= panel[1] and panel[2] <= right and panel[3] <= bottom
    for name in (".fa-head", ".fa-problem", ".fa-kernel", ".fa-found img", ".fa-numbers", ".fa-caption"):
        inner = box(page, f".fa-panel {name}")
        assert panel[0] - 1 <= inner[0] and inner[2] <= panel[2] + 1 and inner[3] <= panel[3] + 1, name
    assert page.evaluate(SCROLLS) == []
    tops = [box(page, name)[1] for name in (".fa-head", ".fa-problem", ".fa-kernel")]
    assert tops == sorted(tops) and box(page, ".fa-found img")[1] > tops[1]
    assert box(page, ".fa-found img")[0] > box(page, ".fa-kernel")[2]  # the picture stands beside the controls


def test_below_1000_pixels_the_picture_stands_above_the_controls(page):
    page.set_viewport_size(dict(width=900, height=800))
    page.wait_for_timeout(500)
    assert box(page, ".fa-kernel")[1] >= box(page, ".fa-found")[3] - 1
    assert box(page, ".fa-panel")[2] <= box(page, ".jp-WindowedPanel-outer")[2] and page.evaluate(SCROLLS) == []
    assert box(page, ".fa-numbers")[2] <= box(page, ".fa-panel")[2] + 1
    page.screenshot(path=ROOT / "build" / "explore_900.png")  # to be looked at
    page.set_viewport_size(dict(width=1280, height=720))
    page.wait_for_timeout(500)


def test_the_file_browser_shows_the_root(page):
    names = page.locator(".jp-DirListing-itemText").all_inner_texts()
    assert {"Makefile", "fa_lib", "notebooks"} <= set(names)


BUSY = """() => {  // from now on: whether "computing" was seen, and for how long the panel had worked then
    window.busy = {shown: 0, since: 0, at: []}
    const look = () => {
        const working = document.querySelector(".fa-working")
        const shown = working && getComputedStyle(document.querySelector(".fa-busy")).visibility === "visible"
        busy.since = working ? busy.since || performance.now() : 0
        if (shown) busy.at.push(performance.now() - busy.since)
        requestAnimationFrame(look)
    }
    look()
}"""


def test_work_of_more_than_a_third_of_a_second_is_shown(page):
    page.evaluate(BUSY)
    slider(page, "N").locator(".noUi-handle").click()
    for key, n in (("ArrowLeft", 512), ("ArrowLeft", 256), ("ArrowLeft", 128)):
        page.keyboard.press(key)
        wait_for(page, f"N = {n},")
    page.wait_for_timeout(300)
    page.evaluate("() => { busy.at = [] }")
    choose(page, "sums in", "FP32")
    wait_for(page, "every step, row_sum FP32, accumulator FP32;")
    quick = page.evaluate("() => busy.at")
    choose(page, "sums in", "BF16")
    for n in (256, 512, 1024, 2048, 4096):
        slider(page, "N").locator(".noUi-handle").press("ArrowRight")
        wait_for(page, f"N = {n},")
    slow = page.evaluate("() => busy.at")
    assert slow and min(slow) > 250, slow
    print(f"\ncomputing is shown from {min(slow):.0f} ms of work on; at N = 128 it was shown {len(quick)} times")
    page.wait_for_function("() => !document.querySelector('.fa-working')")
    assert page.locator(".fa-busy").evaluate("e => getComputedStyle(e).visibility") == "hidden"
    for n in (2048, 1024):
        slider(page, "N").locator(".noUi-handle").press("ArrowLeft")
        wait_for(page, f"N = {n},")


def test_run_all_draws_the_first_setting(page):
    assert wait_for(page, "BF16; Flash: every step; fa1, B_r = 128, B_c = 64; N = 1024, d = 64, uniform inputs, seed 0")
    assert verdict(page) == "Fails" and page.locator(".fa-numbers tr").count() == 3
    page.screenshot(path=ROOT / "build" / "explore_1280.png")  # to be looked at
    page.locator(".fa-panel").screenshot(path=ROOT / "build" / "explore.png")  # figures/explore.png


def test_sliders_redraw_at_once(page):
    slider(page, "keys B_c").locator(".noUi-handle").click()
    waited = []
    for key, width in [("ArrowRight", 128), ("ArrowLeft", 64)] * 4:
        page.evaluate("() => { seen.keys = [] }")
        page.keyboard.press(key)
        at = wait_for(page, f"B_c = {width};")[-1][1]
        assert slider(page, "keys B_c").locator(".widget-readout").inner_text() == str(width)
        waited.append(at - page.evaluate("() => seen.keys[0]"))
    print(f"\nkey to picture at N = 1024: {min(waited):.0f} to {max(waited):.0f} ms, "
          f"median {statistics.median(waited):.0f} ms")  # fmt: skip
    slider(page, "N").locator(".noUi-handle").click()
    page.keyboard.press("ArrowRight")
    wait_for(page, "N = 2048,")
    page.keyboard.press("ArrowLeft")
    wait_for(page, "N = 1024,")


def test_menus_turn_the_verdict(page):
    choose(page, "accumulator O", "FP32")
    wait_for(page, "every step, accumulator FP32;")
    assert verdict(page) == "Fails"
    choose(page, "row sum l", "FP32")
    wait_for(page, "every step, row_sum FP32, accumulator FP32;")
    assert verdict(page) == "Passes"
    choose(page, "accumulator O", "BF16")
    choose(page, "row sum l", "BF16")
    wait_for(page, "Flash: every step;")
    choose(page, "sums in", "FP32")
    before = len(wait_for(page, "every step, row_sum FP32, accumulator FP32;"))
    assert verdict(page) == "Passes"
    choose(page, "precision", "as shipped")
    seen = wait_for(page, "Flash: as shipped;")
    assert verdict(page) == "Passes" and len(seen) == before + 1  # nine menus, one picture
    choose(page, "precision", "every step")
    wait_for(page, "Flash: every step;")
    assert verdict(page) == "Fails"


def test_fast_keys_end_at_the_last_setting_and_nothing_stale_is_drawn(page):
    slider(page, "seed").locator(".noUi-handle").click()
    before, presses = len(frames(page)), 40
    for _ in range(presses):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(20)
    seen = wait_for(page, f"seed {presses}")
    page.wait_for_timeout(2000)
    assert frames(page) == seen  # nothing came after the last
    seeds = [int(re.search(r"seed (\d+)", words)[1]) for words, _ in seen[before:]]
    print(f"\n{presses} key presses, {len(seeds)} pictures, of seeds {seeds}")
    assert seeds == sorted(set(seeds)) and len(seeds) < presses  # none twice or late; those overtaken were left out


def test_no_error_is_on_the_page(page):
    assert page.errors == []
    bad = ", ".join(f".jp-OutputArea-output[data-mime-type*={kind}]" for kind in ("error", "stderr"))
    assert page.locator(bad).count() == 0


WIDE = """() => [...document.querySelectorAll("body *")].filter(
    each => !each.closest(".table") && each.getBoundingClientRect().right > innerWidth + 0.5
).map(each => each.outerHTML)"""
LOW = """() => {  // texts whose colour is below 4.5 : 1 on the first ground behind them
    const light = text => {
        const part = text.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255)
        const [r, g, b] = part.map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b
    }
    const ground = each => {
        const color = getComputedStyle(each).backgroundColor
        return color === "rgba(0, 0, 0, 0)" ? ground(each.parentElement) : color
    }
    const seen = [...document.querySelectorAll("body *")].filter(each => [...each.childNodes].some(
        node => node.nodeType === 3 && node.data.trim()))
    return seen.filter(each => {
        const [low, high] = [light(getComputedStyle(each).color), light(ground(each))].sort((a, b) => a - b)
        return (high + 0.05) / (low + 0.05) < 4.5
    }).map(each => each.outerHTML)
}"""


@pytest.fixture(scope="module")
def report(reporting):
    """The page of a kernel that fails in many ways."""
    running, folder = reporting
    assert running.wait(300) == 0  # it fails, and no --exit-code was asked for
    (page,) = folder.glob("*.html")
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_a_report_is_read_wide_and_narrow_in_the_light_and_in_the_dark(report, browser, width, scheme):
    with contextlib.closing(browser.new_page(viewport=dict(width=width, height=900), color_scheme=scheme)) as page:
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(report.as_uri())
        assert [url for url in asked if not url.startswith(("data:", report.as_uri()))] == []
        assert page.evaluate("document.documentElement.scrollWidth") == width and page.evaluate(WIDE) == []
        assert page.evaluate(LOW) == []
        figures = [each.bounding_box() for each in page.locator("figure").all()]
        lefts = {round(box["x"]) for box in figures}
        assert len(figures) == 4 and len(lefts) == (2 if width == 1280 else 1)  # beside each other, or stacked
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
        page.locator("a", has_text="picture").first.click()
        assert page.locator(":target img").is_visible()
        page.screenshot(path=ROOT / "build" / f"report_{width}_{scheme}.png", full_page=True)  # to be looked at
