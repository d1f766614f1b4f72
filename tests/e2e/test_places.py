"""The places of docs/places.md: a real JupyterHub with two users, the chart's values."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import jsonschema
import pytest
import yaml
from fetched import fetched  # noqa: F401 - a fixture
from hubs import course, hub_tools, running_hub  # noqa: F401 - two are fixtures
from repository import ROOT


@pytest.fixture
def hub(course, hub_tools, tmp_path):  # noqa: F811
    """JupyterHub by our configuration, but that anybody gets in and that all servers run as one user."""
    with running_hub(course, hub_tools, tmp_path) as one:
        yield one


@pytest.mark.nightly("minutes of installing")
def test_two_users_of_a_hub_have_a_course_each_that_nothing_overwrites(hub):
    hub.add("ada", "zoe")
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
def test_the_zip_installs_beside_what_is_there_and_a_week_runs(course, tmp_path):  # noqa: F811
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    home = tmp_path / "venv/bin"
    pip = [home / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", "constraints.txt", "."], check=True, cwd=course, timeout=900)
    command = [home / "papermill", "weeks/week01_why_one_gpu_is_not_enough.ipynb", tmp_path / "done.ipynb"]
    path = f"{home}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(command, check=True, cwd=course, env=os.environ | {"PATH": path}, timeout=600, capture_output=True)
    assert json.loads((tmp_path / "done.ipynb").read_text())["metadata"]["papermill"]["exception"] is None
