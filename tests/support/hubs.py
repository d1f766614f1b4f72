"""A real JupyterHub by our own configuration, on this machine and as one user; fetched once into pytest's cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import psutil
import pytest
from fetched import fetched  # noqa: F401 - a fixture
from needs import give_up
from processes import are_gone, wait_until
from repository import ROOT

from autograder.authoring.student_copy import TOP, write_student_copy
from worldsize.course.ports import free_ports

PIP = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
# JupyterHub and what it needs besides what the tests have
HUB_PACKAGES = [
    "jupyterhub==6.1.1",
    "certipy==0.2.3",
    "oauthlib==4.0.1",
    "pamela==1.2.0",
    "cryptography==50.0.2",
    "cffi==2.1.1",
    "pycparser==3.12",
    "aiodns==4.0.4",
    "aiohttp==3.14.5",
    "aiohappyeyeballs==2.7.1",
    "aiosignal==1.4.0",
    "frozenlist==1.8.0",
    "multidict==7.2.1",
    "propcache==0.5.4",
    "yarl==1.25.1",
    "pycares==5.2.1",
    # what docs/hub.md adds
    "ngshare_exchange==0.5.2",
    "nbgitpuller==1.3.0",
    "PyLTI1p3==2.0.0",
    "PyJWT==2.15.1",
    "jwcrypto==1.6.1",
]
TOKEN = "of-the-service-that-asks-in-this-test"
# what `--config` reads first is ours; who signs in and how a server starts is otherwise the machine's
HUB = """
c = get_config()
load_subconfig({config!r})
c.JupyterHub.spawner_class = "simple"
c.JupyterHub.authenticator_class = "dummy"
c.JupyterHub.db_url = "sqlite://"
c.JupyterHub.hub_port = {hub_port}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api_port}"
c.SimpleLocalProcessSpawner.home_dir_template = {homes!r}
c.JupyterHub.services.append(dict(name="tester", api_token={token!r}))
scopes = ["admin:users", "admin:servers", "access:servers"]
c.JupyterHub.load_roles.append(dict(name="tester", scopes=scopes, services=["tester"]))
"""


@dataclass(frozen=True)
class Tools:
    """What a hub needs that is not installed here: the folder of Python packages, and that of the proxy's command."""

    packages: Path
    proxy: Path


@dataclass(frozen=True)
class Hub:
    """A running hub, by its address, and the folder with its users' homes."""

    url: str
    homes: Path
    process: psutil.Process

    def ask(self, method: str, path: str) -> str:
        """Send a request as a service with all permissions, and return the answer."""
        data = b"" if method == "POST" else None
        request = Request(f"{self.url}/{path}", data, {"Authorization": f"token {TOKEN}"}, method=method)
        with urlopen(request, timeout=240) as answer:
            return answer.read().decode()

    def add(self, *users: str) -> None:
        """Add users and start their servers."""
        for user in users:
            (self.homes / user).mkdir(parents=True)
            self.ask("POST", f"hub/api/users/{user}")
            self.start(user)

    def start(self, user: str) -> None:
        """Start a user's server; return when it is ready."""
        self.ask("POST", f"hub/api/users/{user}/server")
        events = self.ask("GET", f"hub/api/users/{user}/server/progress").split("\n\n")
        assert any('"ready": true' in event for event in events), events

    def stop(self, user: str) -> None:
        """Stop a user's server."""
        self.ask("DELETE", f"hub/api/users/{user}/server")
        assert wait_until(lambda: not json.loads(self.ask("GET", f"hub/api/users/{user}"))["server"], 60)

    def run(self, user: str, *command: str, cwd: str = "course", fails: bool = False) -> str:
        """What a command prints that ends well, or `fails`, where a terminal of this user's server would run it."""
        running = [one.environ() for one in self.process.children(recursive=True)]
        theirs = next(one for one in running if one.get("JUPYTERHUB_USER") == user)
        kept = {"env": theirs, "cwd": self.homes / user / cwd, "stderr": subprocess.STDOUT, "text": True}
        done = subprocess.run(command, **kept, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=240)
        assert (done.returncode != 0) == fails, done.stdout
        return done.stdout


@contextmanager
def running_hub(
    course: Path, tools: Tools, folder: Path, config: str = "", environment: Mapping[str, str] | None = None
) -> Iterator[Hub]:
    """A hub by places/jupyterhub_config.py with what `config` adds, but that anybody gets in and all servers run as one
    user; `environment` is the hub's own."""
    port, hub_port, api_port = free_ports(3)
    homes = folder / "homes"
    fields = {"config": str(ROOT / "places/jupyterhub_config.py"), "homes": str(homes / "{username}"), "token": TOKEN}
    file = folder / "config.py"
    file.write_text(HUB.format(**fields, hub_port=hub_port, api_port=api_port) + config)
    url = f"http://127.0.0.1:{port}"
    path = os.pathsep.join(
        map(str, [Path(sys.executable).parent, tools.packages / "bin", tools.proxy, os.environ["PATH"]])
    )
    ours = {"WORLDSIZE_COURSE": str(course), "WORLDSIZE_HUB": url, "PYTHONPATH": str(tools.packages), "PATH": path}
    log = folder / "hub.log"
    with log.open("w") as out:
        command = [sys.executable, "-m", "jupyterhub", "--config", str(file)]
        hub = psutil.Popen(command, env=os.environ | ours | (environment or {}), cwd=folder, stdout=out, stderr=out)
    started: list[psutil.Process] = []
    try:
        assert wait_until(lambda: "JupyterHub is now running" in log.read_text(), 120), log.read_text()
        yield Hub(url, homes, hub)
        started = hub.children(recursive=True)
    finally:
        hub.terminate()  # it ends its users' servers and its proxy
        hub.wait(60)
    assert are_gone(one.pid for one in started), log.read_text()[-2000:]


@pytest.fixture(scope="session")
def hub_tools(fetched):  # noqa: F811
    """Where JupyterHub, its proxy and what these tests add to it lie."""
    if not shutil.which("npm"):
        give_up("hub", "there is no npm")
    packages = fetched("jupyterhub-6.1.1-and-more", [*PIP, *HUB_PACKAGES, "--target"])
    npm = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
    proxy = fetched("configurable-http-proxy-5.3.0", [*npm, "configurable-http-proxy@5.3.0", "--prefix"])
    return Tools(packages, proxy / "node_modules/.bin")


@pytest.fixture(scope="session")
def ngshare(fetched):  # noqa: F811
    """The Python of an environment that has ngshare and an SQLAlchemy that it works with."""
    steps = f'{sys.executable} -m venv "$0" && "$0/bin/python" -m pip install -q ngshare==0.6.0 "sqlalchemy==1.4.54"'
    return fetched("ngshare-0.6.0", ["sh", "-c", steps]) / "bin/python"


@pytest.fixture(scope="session")
def course(tmp_path_factory):
    """What `autograder release` packs, unpacked."""
    folder = tmp_path_factory.mktemp("released")
    write_student_copy(ROOT, folder / "student.zip")
    with zipfile.ZipFile(folder / "student.zip") as packed:
        packed.extractall(folder)
    return folder / TOP
