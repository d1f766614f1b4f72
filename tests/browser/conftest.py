"""JupyterLab on a copy of the course, started by the command of `make lab`, and Chromium to look at it."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import IO
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

import psutil
import pytest
from chromium import ARGUMENTS, NAMES, installed
from needs import give_up
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
from processes import wait_until
from repository import ROOT

COURSE = ("weeks", "labs", "quizzes", "nbgrader_config.py", "jupyter_lab_config.py")
PATIENCE_S = 60  # for one step of a page, on a machine that has other work to do


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab: the course that it shows, its address, the page that it opens with, how it started."""

    course: Path
    url: str
    token: str
    first_page: str
    log: list[str]

    def errors(self) -> list[str]:
        """What the server logged as an error while it started; later, a kernel that ends leaves harmless ones."""
        return [line for line in self.log if line.startswith(("[E ", "Traceback"))]

    def end_kernels(self) -> None:
        """Shut down every kernel."""
        assert wait_until(self._has_ended_kernels, PATIENCE_S), "JupyterLab does not end its kernels."

    def _has_ended_kernels(self) -> bool:
        """Whether all were listed and ended: while one of them starts, the server answers 500 to both."""
        try:
            for kernel in json.loads(self._ask("GET", "api/kernels")):
                self._ask("DELETE", f"api/kernels/{kernel['id']}")
        except HTTPError as error:
            if error.code != 500:
                raise
            return False
        return True

    def _ask(self, method: str, path: str) -> bytes:
        request = Request(self.url + path, method=method, headers={"Authorization": f"token {self.token}"})
        with urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.read()


@dataclass(frozen=True)
class Notebook:
    """An open notebook, and what a student does with it."""

    page: Page
    file: Path

    @property
    def code_cells(self) -> Locator:
        """Its code cells, from the top."""
        return self.page.locator(".jp-CodeCell")

    def wait_for_kernel(self) -> None:
        """Wait until the kernel has started and has no work."""
        idle = self.page.get_by_role("button", name=re.compile(r"\| Idle$"))
        expect(idle).to_be_visible()

    def shut_down_kernel(self) -> None:
        """Wait until the kernel has ended: a page that is loaded earlier joins the one that is about to end."""
        self.choose("Kernel", "Shut Down Kernel")
        expect(self.page.get_by_role("button", name="No Kernel", exact=True)).to_be_visible()

    def choose(self, menu: str, *items: str) -> None:
        """Pick an item of a menu, or of a menu in that menu."""
        self.page.get_by_role("menuitem", name=menu, exact=True).click()
        for item in items:
            self.page.locator(".lm-Menu-itemLabel").get_by_text(item, exact=True).click()

    def run_all(self, timeout_s: float) -> None:
        """Wait until the last code cell has its number, or until a cell before it has failed."""
        self.choose("Run", "Run All Cells")
        failed = self.page.locator(".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.stderr']")
        expect(has_run(self.code_cells.last).or_(failed).first).to_be_attached(timeout=timeout_s * 1000)

    def add_and_run(self, source: str) -> str:
        """The text of the output of a new cell at the end with this source."""
        cell = self.add_and_start(source)
        self.wait_for(cell)
        return cell.locator(".jp-OutputArea").inner_text()

    def add_and_start(self, source: str) -> Locator:
        """A new cell at the end with this source, which has been started."""
        self.page.get_by_role("button", name="Click to add a cell.").click()
        cell = self.code_cells.last
        cell.get_by_role("textbox").click()
        self.page.keyboard.insert_text(source)  # all at once: the editor would indent typed lines
        self.page.keyboard.press("Control+Enter")
        return cell

    def wait_for(self, cell: Locator) -> None:
        """Wait until the cell has run."""
        expect(has_run(cell)).to_be_attached()

    def save(self) -> str:
        """The text of the file, after saving."""
        self.choose("File", "Save Notebook")
        expect(self.page.locator(".lm-DockPanel-tabBar .jp-mod-dirty")).to_have_count(0)
        return self.file.read_text(encoding="utf-8")


def has_run(cell: Locator) -> Locator:
    """The number that a code cell has once it has run; nothing before."""
    return cell.locator(".jp-InputPrompt", has_text=re.compile(r"\[\d+\]"))


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium; without one the test is skipped, or fails where WORLDSIZE_REQUIRE names a browser."""
    found = installed()
    if found is None:
        message = f"No browser: install one of {', '.join(NAMES)} (Debian and Ubuntu: apt-get install chromium)."
        give_up("browser", message)
    return found


@pytest.fixture(scope="session")
def lab(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab as `make lab` starts it, on a copy of the course and with settings of its own."""
    course, home = tmp_path_factory.mktemp("course"), tmp_path_factory.mktemp("home")
    for name in COURSE:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, course / name)
    with running(course, home) as lab:
        yield lab


@pytest.fixture(scope="session")
def start_lab(chromium: str) -> Callable[..., AbstractContextManager[Lab]]:
    """Starts JupyterLab in a folder that holds a course, with settings of its own in another."""
    return running


@contextmanager
def running(course: Path, home: Path, *command: str) -> Iterator[Lab]:
    """JupyterLab in this folder, by this command or that of `make lab`; all that it started ends with the block."""
    server = subprocess.Popen(
        [*(command or make_lab()), "--no-browser", "--port=0"],
        cwd=course,
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield started(server, course)
    finally:
        server.terminate()
        left = end_all_of(home)
        server.wait()
    assert left == [], f"JupyterLab was asked to stop, and these still ran: {left}"


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """A headless Chromium; it ends with its module, because Playwright's event loop is in the way of nbclient's."""
    expect.set_options(timeout=PATIENCE_S * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser, lab: Lab) -> Iterator[Page]:
    """A page as large as a small laptop's screen; the kernels that it started end with it."""
    context = browser.new_context(viewport={"width": 1366, "height": 768})
    context.set_default_timeout(PATIENCE_S * 1000)
    yield context.new_page()
    context.close()
    lab.end_kernels()


@pytest.fixture
def open_notebook(page: Page, lab: Lab, request: pytest.FixtureRequest) -> Callable[..., Notebook]:
    """Opens a notebook of the course by its path, at this address or else where nothing else is open."""

    def open_it(path: str, address: str = "") -> Notebook:
        alone = f"{lab.url}lab/workspaces/{request.node.name}/tree/{quote(path)}?token={lab.token}"
        page.goto(address or alone)
        notebook = Notebook(page, lab.course / path)
        notebook.wait_for_kernel()
        return notebook

    return open_it


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the repository."""
    return ROOT


@pytest.fixture(scope="session")
def screenshots() -> Path:
    """The folder for pictures of what the tests saw."""
    folder = ROOT / "build" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def make_lab() -> list[str]:
    """The command that `make lab` ends with, in this environment."""
    make = ["make", "--dry-run", "--no-print-directory", "lab", f"VENV={sys.prefix}"]
    recipe = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return shlex.split(recipe.splitlines()[-1])


def environment(home: Path) -> dict[str, str]:
    """The environment of a user whose home, with all settings of Jupyter, is this folder."""
    jupyter = {f"JUPYTER_{kind}_DIR": str(home / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
    return {**os.environ, **jupyter, "HOME": str(home)}


def started(server: subprocess.Popen[str], course: Path) -> Lab:
    """The server, once it has printed its address."""
    assert server.stdout is not None
    log: list[str] = []
    for line in server.stdout:
        log.append(line)
        if found := re.search(r"(http://localhost:\d+/)\S*\?token=(\w+)", line):
            Thread(target=read_to_the_end, args=[server.stdout], daemon=True).start()  # a full pipe would stop it
            return Lab(course, found[1], found[2], found[0], log)
    pytest.fail("JupyterLab did not start:\n" + "".join(log))


def read_to_the_end(output: IO[str]) -> None:
    """Read what comes until the other end closes; close this one then."""
    with output:
        output.readlines()


def end_all_of(home: Path) -> list[str]:
    """The commands of this home's processes that did not end by themselves; afterwards they are killed."""
    ours = [process for process in psutil.process_iter() if home_of(process) == str(home)]
    _, left = psutil.wait_procs(ours, timeout=PATIENCE_S)
    processes = [f"{process.pid} {process.name()}" for process in left]
    for process in left:
        process.kill()
    return processes


def home_of(process: psutil.Process) -> str | None:
    """The HOME that a process was started with; None where that cannot be seen."""
    try:
        return process.environ().get("HOME")
    except psutil.Error:
        return None
