"""nbgrader's formgrader in a real Jupyter server on a graded course: pages, manual points, nothing that runs."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest
from commands import run
from graded_course import grade_course
from nbgrader.api import Gradebook
from tiny_lab import NAME, needs_jail, once

pytestmark = [needs_jail, pytest.mark.xdist_group("graded_course")]


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    return once(tmp_path_factory.getbasetemp(), "graded_course", grade_course)


@pytest.fixture(scope="module")
def server(graded, tmp_path_factory):
    """The address of a Jupyter server that runs at the root of the graded course."""
    with serving(graded, tmp_path_factory) as address:
        yield address


@contextmanager
def serving(folder, tmp_path_factory):
    """The address of a Jupyter server that runs in this folder, and ends with the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}"]
    options += ["--IdentityProvider.token=t", "--ServerApp.disable_check_xsrf=True", "--ServerApp.port_retries=0"]
    scripts = os.path.dirname(sys.executable)
    private = {f"JUPYTER_{kind}_DIR": str(tmp_path_factory.mktemp(kind)) for kind in ("RUNTIME", "DATA")}
    log_path = tmp_path_factory.mktemp("log") / "server.log"
    with open(log_path, "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyter_server", *options],
            cwd=folder,
            env={**os.environ, **private, "PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(f"{address}/api/status", process, log_path)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def wait_for(address, process, log):
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s and process.poll() is None:
        try:
            ask(address)
            return
        except OSError:
            time.sleep(0.2)
    pytest.fail(log.read_text())


def ask(address, content=None):
    """What the server answers the instructor."""
    data = None if content is None else json.dumps(content).encode()
    method = "GET" if data is None else "PUT"
    request = urllib.request.Request(address, data, {"Authorization": "token t"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


def submission_id(graded, student):
    with Gradebook(f"sqlite:///{graded}/gradebook.db", "worldsize") as book:
        return book.find_submission_notebook(NAME, NAME, student).id


@pytest.mark.parametrize("page", ["manage_assignments", "gradebook", f"gradebook/{NAME}", f"gradebook/{NAME}/{NAME}"])
def test_a_page_of_the_formgrader_opens(server, page):
    assert "<title>nbgrader formgrade</title>" in ask(f"{server}/formgrader/{page}")


def test_a_submission_is_shown_and_nothing_in_it_runs(server, graded):
    assert_harmless(ask(f"{server}/formgrader/submissions/{submission_id(graded, 'ada')}/"))


def test_a_server_above_the_course_shows_submissions_by_the_course_s_settings(graded, tmp_path_factory):
    with serving(graded.parent, tmp_path_factory) as address:
        ask(f"{address}/formgrader/?path={graded.name}")
        assert_harmless(ask(f"{address}/formgrader/submissions/{submission_id(graded, 'ada')}/"))


def assert_harmless(page):
    assert "Every rank holds the sum over all ranks." in page  # our explanation of a check
    assert "&lt;script&gt;alert" in page
    assert "<script>alert" not in page and "onerror=" not in page and 'href="javascript' not in page
    assert "$a&lt;b$" in page


def test_points_given_by_hand_reach_the_export(server, graded):
    grades = json.loads(ask(f"{server}/formgrader/api/grades?submission_id={submission_id(graded, 'bob')}"))
    grade = next(one for one in grades if one["name"] == "check_total")
    ask(f"{server}/formgrader/api/grade/{grade['id']}", {**grade, "manual_score": 1.0, "extra_credit": 0.5})
    assert run(graded, "nbgrader", "export", "--to", "by_hand.csv").returncode == 0
    (row,) = [line for line in (graded / "by_hand.csv").read_text().splitlines() if ",bob," in line]
    assert row.endswith(",3.5,1.0,2.5,5.0,graded")
