"""The places of docs/places.md: a real JupyterHub with two users, the chart's values."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request, urlopen

import jsonschema
import psutil
import pytest
import yaml
from fetched import fetched  # noqa: F401 - a fixture
from needs import give_up
from processes import are_gone, wait_until
from repository import ROOT

from autograder.authoring.student_copy import TOP, write_student_copy
from worldsize.ports import free_ports

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
c.JupyterHub.services = [dict(name="tester", api_token={token!r})]
scopes = ["admin:users", "admin:servers", "access:servers"]
c.JupyterHub.load_roles = [dict(name="tester", scopes=scopes, services=["tester"])]
"""


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """What `autograder release` packs, unpacked."""
    folder = tmp_path_factory.mktemp("released")
    write_student_copy(ROOT, folder / "student.zip")
    with zipfile.ZipFile(folder / "student.zip") as packed:
        packed.extractall(folder)
    return folder / TOP


# JupyterHub


@dataclass(frozen=True)
class Hub:
    """A running hub, by its address, and the folder with its users' homes."""

    url: str
    homes: Path

    def ask(self, method: str, path: str) -> str:
        """The answer to a request of a service that may do everything."""
        data = b"" if method == "POST" else None
        request = Request(f"{self.url}/{path}", data, {"Authorization": f"token {TOKEN}"}, method=method)
        with urlopen(request, timeout=240) as answer:
            return answer.read().decode()

    def start(self, user: str) -> None:
        """Start a user's server; return when it is ready."""
        self.ask("POST", f"hub/api/users/{user}/server")
        events = self.ask("GET", f"hub/api/users/{user}/server/progress").split("\n\n")
        assert any('"ready": true' in event for event in events), events

    def stop(self, user: str) -> None:
        """Stop a user's server."""
        self.ask("DELETE", f"hub/api/users/{user}/server")
        assert wait_until(lambda: not json.loads(self.ask("GET", f"hub/api/users/{user}"))["server"], 60)


@contextmanager
def running_hub(course: Path, packages: Path, proxy: Path, folder: Path) -> Iterator[Hub]:
    port, hub_port, api_port = free_ports(3)
    homes = folder / "homes"
    fields = {"config": str(ROOT / "places/jupyterhub_config.py"), "homes": str(homes / "{username}"), "token": TOKEN}
    config = folder / "config.py"
    config.write_text(HUB.format(**fields, hub_port=hub_port, api_port=api_port))
    url = f"http://127.0.0.1:{port}"
    path = os.pathsep.join([str(Path(sys.executable).parent), str(packages / "bin"), str(proxy), os.environ["PATH"]])
    ours = {"WORLDSIZE_COURSE": str(course), "WORLDSIZE_HUB": url, "PYTHONPATH": str(packages), "PATH": path}
    log = folder / "hub.log"
    with log.open("w") as out:
        command = [sys.executable, "-m", "jupyterhub", "--config", str(config)]
        hub = psutil.Popen(command, env=os.environ | ours, cwd=folder, stdout=out, stderr=out)
    started: list[psutil.Process] = []
    try:
        assert wait_until(lambda: "JupyterHub is now running" in log.read_text(), 120), log.read_text()
        yield Hub(url, homes)
        started = hub.children(recursive=True)
    finally:
        hub.terminate()  # it ends its users' servers and its proxy
        hub.wait(60)
    assert are_gone(one.pid for one in started), log.read_text()[-2000:]


@pytest.fixture
def hub(course, fetched, tmp_path):  # noqa: F811
    """JupyterHub by our configuration, but that anybody gets in and that all servers run as one user."""
    if not shutil.which("npm"):
        give_up("hub", "there is no npm")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    packages = fetched("jupyterhub-6.1.1", [*pip, *HUB_PACKAGES, "--target"])
    npm = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
    proxy = fetched("configurable-http-proxy-5.3.0", [*npm, "configurable-http-proxy@5.3.0", "--prefix"])
    with running_hub(course, packages, proxy / "node_modules/.bin", tmp_path) as one:
        yield one


@pytest.mark.nightly("minutes of installing")
def test_two_users_of_a_hub_have_a_course_each_that_nothing_overwrites(hub):
    for user in ("ada", "zoe"):
        (hub.homes / user).mkdir(parents=True)
        hub.ask("POST", f"hub/api/users/{user}")
        hub.start(user)
    listed = json.loads(hub.ask("GET", "user/ada/api/contents/labs/lab01"))
    assert [one["name"] for one in listed["content"]] == ["lab01.ipynb"]
    assert "python3" in json.loads(hub.ask("GET", "user/zoe/api/kernelspecs"))["kernelspecs"]
    assert "JupyterLab" in hub.ask("GET", "user/zoe/lab/tree/weeks/week01_why_one_gpu_is_not_enough.ipynb")
    mine = hub.homes / "ada/course/labs/lab01/lab01.ipynb"
    assert mine.read_text() == (hub.homes / "zoe/course/labs/lab01/lab01.ipynb").read_text()
    mine.write_text("mine")
    hub.stop("ada")
    (hub.homes / "ada/course/README.md").unlink()
    hub.start("ada")
    assert mine.read_text() == "mine" and (hub.homes / "ada/course/README.md").exists()


# Kubernetes

TEXT, NUMBER, AMOUNT = {"type": "string"}, {"type": "number"}, {"type": ["number", "string"]}


def closed(**properties: dict) -> dict:
    """The schema of an object with these properties and no others."""
    return {"type": "object", "additionalProperties": False, "properties": properties}


# what the chart's own values.schema.yaml says of the fields that we set, zero-to-jupyterhub-k8s, version 4
VALUES = closed(
    hub=closed(config={"type": "object"}),
    singleuser=closed(
        image=closed(name=TEXT, tag=TEXT) | {"required": ["name", "tag"]},
        cmd={"type": "array", "items": TEXT},
        uid={"type": "integer"},
        fsGid={"type": "integer"},
        defaultUrl=TEXT,
        storage=closed(capacity=TEXT, homeMountPath=TEXT),
        memory=closed(guarantee=AMOUNT, limit=AMOUNT),
        cpu=closed(guarantee=NUMBER, limit=NUMBER),
        profileList={
            "type": "array",
            "items": closed(
                display_name=TEXT, default={"type": "boolean"}, kubespawner_override=closed(extra_resource_limits={})
            ),
        },
    ),
    cull=closed(enabled={"type": "boolean"}, timeout={"type": "integer"}),
)


def values() -> dict:
    return yaml.safe_load((ROOT / "places/zero-to-jupyterhub.yaml").read_text())


def test_the_values_are_those_of_the_chart_and_of_the_image():
    jsonschema.validate(values(), VALUES)
    steps = (ROOT / "places/Dockerfile").read_text()
    single = values()["singleuser"]
    assert f"--uid {single['uid']}" in steps and f"WORKDIR {single['storage']['homeMountPath']}\n" in steps
    setting_up = single["cmd"][2].rpartition("&& exec ")[0]
    assert setting_up in steps  # one way to set up a student's folder


def test_a_misspelt_value_is_refused():
    one = values()
    one["singleuser"]["storage"]["homeMountpath"] = one["singleuser"]["storage"].pop("homeMountPath")
    with pytest.raises(jsonschema.ValidationError, match="homeMountpath"):
        jsonschema.validate(one, VALUES)


# A hosted notebook


@pytest.mark.nightly("minutes of installing")
def test_the_zip_installs_beside_what_is_there_and_a_week_runs(course, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    home = tmp_path / "venv/bin"
    pip = [home / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", "constraints.txt", "."], check=True, cwd=course, timeout=900)
    command = [home / "papermill", "weeks/week01_why_one_gpu_is_not_enough.ipynb", tmp_path / "done.ipynb"]
    path = f"{home}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(command, check=True, cwd=course, env=os.environ | {"PATH": path}, timeout=600, capture_output=True)
    assert json.loads((tmp_path / "done.ipynb").read_text())["metadata"]["papermill"]["exception"] is None
