"""The image of places/Dockerfile, built whole: JupyterLab answers in it, and a week runs."""

import json
import os
import signal
import subprocess
from urllib.error import URLError
from urllib.request import urlopen

import psutil
import pytest
from hubs import course  # noqa: F401 - a fixture
from images import Images, need_buildah, start_command
from processes import are_gone, wait_until
from repository import ROOT

from worldsize.course.ports import free_ports

pytestmark = [pytest.mark.nightly("minutes of installing"), pytest.mark.timeout(2400)]
WEEK = "course/weeks/week01_why_one_gpu_is_not_enough.ipynb"


@pytest.fixture(scope="module")
def container(course, tmp_path_factory):  # noqa: F811
    """The images, a container of ours, and the folder of the student's home."""
    need_buildah()
    folder = tmp_path_factory.mktemp("image")
    images = Images(folder)
    name = images.build(ROOT / "places/Dockerfile", course)
    home = folder / "home"
    home.mkdir()
    os.chown(home, 1000, 1000)
    return images, name, home


def is_answering(url):
    try:
        return urlopen(url, timeout=5).status == 200
    except (URLError, OSError):
        return False


def test_jupyterlab_answers_and_a_week_runs(container):
    images, name, home = container
    (port,) = free_ports(1)
    environment = {"JUPYTER_PORT": str(port), "JUPYTER_TOKEN": "of-this-test", "JUPYTER_IP": "127.0.0.1"}
    command = images.run(name, start_command(), environment, home)
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        url = f"http://127.0.0.1:{port}"
        assert wait_until(lambda: is_answering(f"{url}/api") or server.poll() is not None, within_s=120)
        page = urlopen(f"{url}/lab/tree/{WEEK.removeprefix('course/')}?token=of-this-test", timeout=60).read()
        assert b"JupyterLab" in page
    finally:
        started = [one.pid for one in psutil.Process(server.pid).children(recursive=True)]
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=60)
        assert are_gone(started, 60)
    papermill = ["papermill", WEEK, "done.ipynb", "--cwd", "course/weeks"]
    subprocess.run(images.run(name, papermill, {}, home), check=True, capture_output=True, timeout=900)
    assert json.loads((home / "done.ipynb").read_text())["metadata"]["papermill"]["exception"] is None


def test_a_newer_image_overwrites_nothing_of_the_students(container):
    images, name, home = container
    setting_up = start_command()[2].rpartition("&& exec ")[0] + "&& true"
    set_up = images.run(name, ["sh", "-c", setting_up], {}, home)
    subprocess.run(set_up, check=True, capture_output=True, timeout=300)
    mine = home / "course/labs/lab01/lab01.ipynb"
    mine.write_text("mine")
    (home / "course/README.md").unlink()
    subprocess.run(set_up, check=True, capture_output=True, timeout=300)
    assert mine.read_text() == "mine" and (home / "course/README.md").exists()
