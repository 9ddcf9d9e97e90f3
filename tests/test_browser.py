"""The course as a reader meets it: JupyterLab in headless Chromium, every notebook run from top to bottom, one exercise solved; and the
site.

`make browser-test` installs Playwright and runs all of it; screenshots land in build/browser/.
"""

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import nbformat
import notebook_rules as rules
import pytest

from fa_tutorial import notebooks
from fa_tutorial.exercises import catalogue

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: `make browser-test` installs it")
pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parents[1]
PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SCREENSHOTS = ROOT / "build" / "browser"
BROWSERS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
VIEWPORT = {"width": 1280, "height": 1000}
START_SECONDS = 90
RUN_SECONDS = 600
# As a reader's first start, but for two things: no request for news, and every cell in the page, so that a locator finds it.
SETTINGS = {
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},
}

EXERCISE = "1.1"
# ---------------------------------------------------------------- a server and a browser


def copy_unrun(folder: Path) -> None:
    """The notebooks as they are stored, but without outputs, so that what the browser shows was run there, and the images they show."""
    shutil.copytree(ROOT / "images", folder / "images")
    (folder / "notebooks").mkdir()
    for path in PATHS:
        notebook = rules.load(path)
        for cell in rules.code_cells(notebook):
            cell.outputs, cell.execution_count = [], None
        nbformat.write(notebook, folder / "notebooks" / path.name)


def lab_environment(private: Path) -> dict[str, str]:
    """The environment of a reader who starts JupyterLab for the first time: no settings, no workspace and no progress of their own."""
    folders = {name: private / name.lower() for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")}
    folders |= {name: private / name.lower() for name in ("JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR", "IPYTHONDIR")}
    for name, settings in SETTINGS.items():
        path = folders["JUPYTERLAB_SETTINGS_DIR"] / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(settings))
    return notebooks.kernel_environment(FA_TUTORIAL_STATE=str(private / "state")) | {name: str(path) for name, path in folders.items()}


def wait_for(server: subprocess.Popen, runtime: Path, log: Path) -> dict:
    """What the server writes down of itself once it answers: its address and its token among it."""
    from jupyter_server.serverapp import list_running_servers  # part of JupyterLab

    for _ in range(2 * START_SECONDS):
        for found in list_running_servers(str(runtime)):
            return found
        assert server.poll() is None, f"JupyterLab ended:\n{log.read_text()[-2000:]}"
        time.sleep(0.5)
    pytest.fail(f"JupyterLab did not answer in {START_SECONDS} s:\n{log.read_text()[-2000:]}")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A running JupyterLab, on copies of the notebooks and images, in `folder`. state: where its readers' progress is."""
    pytest.importorskip("jupyterlab", reason="JupyterLab is not installed")
    folder, private = tmp_path_factory.mktemp("course"), tmp_path_factory.mktemp("private")
    copy_unrun(folder)
    log = private / "log"
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--ServerApp.root_dir={folder}"]
    # A kernel whose page is closed goes soon: nine at once would hold some gigabytes.
    command += ["--MappingKernelManager.cull_idle_timeout=20", "--MappingKernelManager.cull_interval=5"]
    with log.open("w") as file:
        server = subprocess.Popen(command, env=lab_environment(private), cwd=folder, stdout=file, stderr=subprocess.STDOUT)
    try:
        found = wait_for(server, private / "jupyter_runtime_dir", log)
        yield SimpleNamespace(address=found["url"], token=found["token"], folder=folder, state=private / "state")
    finally:
        server.terminate()
        server.wait(timeout=30)


def launch(engine):
    """Playwright's own Chromium, or one on the path, or the one that the variable CHROMIUM names; skips where none starts."""
    named = os.environ.get("CHROMIUM")
    found = [named] if named else [None, *filter(None, map(shutil.which, BROWSERS))]
    reasons = []
    for path in found:
        try:
            return engine.chromium.launch(executable_path=path)
        except playwright.Error as error:
            reasons.append(f"{path or 'Playwright’s Chromium'}: {error.message.splitlines()[0]}")
    looked_for = ", ".join(BROWSERS)
    pytest.skip(
        f"no Chromium starts here: {'; '.join(reasons)} (looked on the path for {looked_for}). `playwright install chromium` gets one"
    )


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as engine:
        chromium = launch(engine)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module", autouse=True)
def new_screenshots():
    shutil.rmtree(SCREENSHOTS, ignore_errors=True)


@pytest.fixture
def page(browser):
    with closing(browser.new_page(viewport=VIEWPORT)) as page:
        yield page


# ---------------------------------------------------------------- what a reader does


def open_notebook(page, lab, path: Path) -> None:
    """Open the notebook, with the side bar folded away, and wait until its kernel is idle."""
    # reset: no notebook of an earlier test is opened too.
    page.goto(f"{lab.address}lab/tree/notebooks/{path.name}?reset&token={lab.token}")
    page.locator(".jp-Notebook .jp-Cell").first.wait_for(timeout=60_000)
    page.get_by_role("tab", name=re.compile("File Browser")).click()
    wait_until_idle(page)


def wait_until_idle(page) -> None:
    """The status bar also tells a kernel that has not started from one that is idle."""
    page.get_by_text(re.compile(r"\(ipykernel\) \| Idle$")).wait_for(timeout=60_000)


def run_all(page) -> None:
    """Menu Run, Run All Cells; waits until every code cell has its number."""
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    page.wait_for_function(
        r"""() => [...document.querySelectorAll(".jp-Notebook .jp-CodeCell .jp-InputPrompt")].every(e => /^\[\d+\]:$/.test(e.textContent))""",
        timeout=RUN_SECONDS * 1_000,
    )
    wait_until_idle(page)


def cell_at(page, place: int):
    return page.locator(".jp-Notebook .jp-Cell").nth(place)


def run_cell(page, cell) -> str:
    """Shift+Enter in the cell; returns the text of its output."""
    prompt = cell.locator(".jp-InputPrompt")
    before = prompt.inner_text()
    cell.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    playwright.expect(prompt).not_to_have_text(before)
    playwright.expect(prompt).to_have_text(re.compile(r"^\[\d+\]:$"), timeout=120_000)
    return "\n".join(cell.locator(".jp-OutputArea-output").all_inner_texts()).strip()


def type_body(page, cell, body: str) -> None:
    """Type over the last line of the cell's function."""
    cell.locator(".cm-line").last.click()
    page.keyboard.press("End")
    page.keyboard.press("Shift+Home")
    page.keyboard.type(body)


def faults_of(page) -> list[str]:
    """What a reader would see amiss: an error, anything on stderr, an image that is not there, a formula left as TeX or refused."""
    return page.evaluate(
        r"""() => {
            const faults = [];
            document.querySelectorAll(".jp-Notebook .jp-Cell").forEach((cell, place) => {
                const add = (what, text) => faults.push(`cell ${place}: ${what}: ${text.trim().slice(0, 200)}`);
                cell.querySelectorAll("[data-mime-type$='error'], [data-mime-type$='stderr']").forEach(e => add("error output", e.textContent));
                cell.querySelectorAll("img").forEach(e => e.naturalWidth || add("image not found", e.getAttribute("src")));
                cell.querySelectorAll("mjx-merror").forEach(e => add("formula refused", e.textContent));
                cell.querySelectorAll(".jp-RenderedMarkdown").forEach(text => {
                    const prose = text.cloneNode(true);
                    prose.querySelectorAll("code, mjx-container").forEach(e => e.remove());
                    (prose.textContent.match(/.*(\[a-z]{2,}|\$\$).*/g) || []).forEach(line => add("TeX", line));
                });
            });
            return faults;
        }"""
    )


# ---------------------------------------------------------------- the tests


@pytest.mark.timeout(RUN_SECONDS)
def test_an_exercise_is_solved(page, lab):
    """Left alone, answered wrongly, answered rightly, and counted."""
    exercise = catalogue.find(EXERCISE)
    label = f"{EXERCISE} {exercise.name}"
    [path] = [path for path in PATHS if path.name.startswith("01_")]
    notebook = rules.load(path)
    [state] = [cell for cell in rules.code_cells(notebook) if cell["source"].startswith("progress(")]
    those = *rules.starter_cells(notebook, exercise), *rules.check_cells(notebook, exercise), state
    starter, checked, state = ([id(cell) for cell in notebook["cells"]].index(id(cell)) for cell in those)

    def answer(body: str) -> str:
        """The verdict on a starter whose last line is typed over."""
        type_body(page, cell_at(page, starter), body)
        assert run_cell(page, cell_at(page, starter)) == ""
        return run_cell(page, cell_at(page, checked))

    open_notebook(page, lab, path)
    run_all(page)
    assert faults_of(page) == []
    assert run_cell(page, cell_at(page, checked)) == f'· {label}: not attempted → hint("{EXERCISE}")'

    verdict = answer("return torch.exp(x) / torch.exp(x).sum(dim=-1, keepdim=True)")
    assert verdict.startswith(f"✗ {label}: ") and "88.72" in verdict, "from where on exp overflows"

    right = "p = torch.exp(x.double() - x.double().amax(-1, keepdim=True)); return (p / p.sum(-1, keepdim=True)).to(x.dtype)"
    assert answer(right) == f"✓ {label}: correct"

    assert f"✓ {EXERCISE}" in run_cell(page, cell_at(page, state))
    assert json.loads((lab.state / "progress.json").read_text()) == {EXERCISE: "correct"}


@pytest.mark.timeout(RUN_SECONDS + 120)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_every_notebook_runs(path, page, lab):
    open_notebook(page, lab, path)
    run_all(page)
    page.screenshot(path=SCREENSHOTS / f"{path.stem}.png")
    assert faults_of(page) == []


# ---------------------------------------------------------------- the site

SCREENS = ((320, 640), (1280, 900))
PAGES = ("README.html", "GLOSSARY.html", *(f"notebooks/{path.stem}.html" for path in PATHS), "site/api.html")


@pytest.fixture(scope="module")
def site_folder(tmp_path_factory):
    from test_site import sphinx  # skips where the extra is not installed

    folder = tmp_path_factory.mktemp("build")
    done = sphinx(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder / "site"


@pytest.fixture(scope="module")
def site(site_folder):
    """The address of the built site, served from this machine."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site_folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def visit(context, site: str, name: str, faults: list[str]):
    """Open a page of the site; what its console says, and what it fetches from elsewhere, becomes a fault."""
    page = context.new_page()
    page.on("console", lambda message: faults.append(f"{name}: {message.text}") if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: faults.append(f"{name}: {error}"))
    page.on("request", lambda request: faults.append(f"{name} fetches {request.url}") if not request.url.startswith(site) else None)
    page.goto(f"{site}/{name}", wait_until="networkidle")
    return page


@pytest.mark.timeout(RUN_SECONDS)
@pytest.mark.parametrize("screen", SCREENS)
def test_every_page_of_the_site_is_whole(screen, browser, site):
    """No page is wider than the screen, every formula is drawn, the console stays empty, and nothing is fetched from elsewhere."""
    faults, (width, height) = [], screen
    with closing(browser.new_context(viewport={"width": width, "height": height})) as context:
        for name in PAGES:
            page = visit(context, site, name, faults)
            page.screenshot(path=SCREENSHOTS / f"site_{Path(name).stem}_{width}.png")
            if (found := page.evaluate("document.documentElement.scrollWidth")) > width:
                faults.append(f"{name} is {found} pixels wide")
            refused = page.locator("mjx-merror, [data-mjx-error]").all_inner_texts()
            faults += [f"{name}, formula refused: {text}" for text in refused]
            # The site's MathJax knows no macros inside \text: \_ is \mathrm's.
            if backslashes := page.locator("mjx-mtext .mjx-c5C").count():
                faults.append(f"{name}, {backslashes} backslashes in formulas")
            page.close()
    assert faults == []


@pytest.mark.timeout(RUN_SECONDS)
def test_axe_finds_nothing_serious(browser, site):
    """axe-core's rules of accessibility, on every third page, for a chapter takes it a quarter of a minute; formulas are MathJax's own."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not installed").Axe()
    with closing(browser.new_context(viewport=VIEWPORT)) as context:
        for name in PAGES[::3]:
            page = visit(context, site, name, [])
            found = axe.run(page, context={"exclude": [["mjx-container"]]}).response["violations"]
            page.close()
            assert [fault["nodes"][0]["html"][:200] for fault in found if fault["impact"] in ("serious", "critical")] == [], name


def search(page, site: str, words: str):
    """Search as a reader does, from the first page; returns the results."""
    page.goto(f"{site}/index.html")
    page.wait_for_url("**/README.html")
    page.keyboard.press("Control+k")
    page.keyboard.type(words)
    page.keyboard.press("Enter")
    page.get_by_text("Search finished").wait_for(timeout=20_000)
    return page.locator("#search-results li")


@pytest.mark.parametrize(
    ("words", "begins", "address"),
    [
        ("exercise 5.5", "Exercise 5.5", "notebooks/05_flash_forward_in_triton.html#exercise-5-5"),
        ("tma", "descriptor, TMA", "GLOSSARY.html#term-descriptor-tma"),
    ],
)
def test_search_lands_where_a_name_is_explained(words, begins, address, page, site):
    first = search(page, site, words).first
    playwright.expect(first.locator(".context")).to_contain_text(re.compile(rf"^\s*{begins}"))
    first.locator("a").click()
    page.wait_for_url(f"**/{address}*")
    anchor = urlsplit(page.url).fragment
    playwright.expect(page.locator(f"[id='{anchor}'] >> text={begins}").first).to_be_in_viewport()


def test_a_number_leads_to_its_equation_and_code_is_copied(page, site):
    page.goto(f"{site}/notebooks/05_flash_forward_in_triton.html", wait_until="networkidle")
    page.locator("a", has_text="(4.6)").first.click()
    page.wait_for_url("**/04_flash_forward_in_pytorch.html#equation-4.6")
    playwright.expect(page.locator("[id='equation-4.6']")).to_be_in_viewport()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    cell = page.locator("div.cell_input").first
    cell.hover()
    cell.locator("button.copybtn").click()
    assert page.evaluate("navigator.clipboard.readText()").strip() == cell.locator("pre").inner_text().strip()
