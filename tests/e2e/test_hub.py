"""docs/hub.md: on a real JupyterHub, ngshare as the exchange and the course by a link; scores sent over LTI."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import nbformat
import pytest
from commands import run_afresh
from fetched import fetched  # noqa: F401 - a fixture
from graded_course import hand_in
from hubs import Hub, course, hub_tools, ngshare, running_hub  # noqa: F401 - three are fixtures
from lti_platform import CLIENT_ID, Platform, running
from nbformat.v4 import new_output
from repository import ROOT
from tiny_lab import MEAN, NAME, TOTAL, answered, make_course, release

from worldsize.course.ports import free_ports

# ngshare: an instructor and three students, one of whom speaks to it without nbgrader

MALICE = f"""
import base64, json, os, requests
files = [{{"path": "timestamp.txt/x", "content": base64.b64encode(b"").decode()}}]
url, token = os.environ["NGSHARE_URL"], os.environ["JUPYTERHUB_API_TOKEN"]
sent = {{"data": {{"files": json.dumps(files)}}, "headers": {{"Authorization": f"token {{token}}"}}}}
print(requests.post(f"{{url}}/submission/worldsize/{NAME}", **sent).json())
print(requests.get(f"{{url}}/submissions/worldsize/{NAME}", headers=sent["headers"]).json())
"""


@pytest.fixture
def class_hub(course, hub_tools, ngshare, tmp_path):  # noqa: F811
    """A hub with ngshare, by our configurations of both; ines teaches a small course there."""
    (port,) = free_ports(1)
    (tmp_path / "handed_in").mkdir()
    environment = {
        "WORLDSIZE_NGSHARE": str(ngshare),
        "WORLDSIZE_NGSHARE_URL": f"http://127.0.0.1:{port}",
        "WORLDSIZE_HANDED_IN": str(tmp_path / "handed_in"),
        "WORLDSIZE_INSTRUCTORS": "ines",
    }
    config = f'c.Spawner.environment["JUPYTER_CONFIG_PATH"] = {str(ROOT / "places")!r}\n'
    with running_hub(course, hub_tools, tmp_path, config, environment) as hub:
        hub.add("ines", "ada", "zoe", "mia")
        make_course(hub.homes / "ines/teaching")
        yield hub


def answer(hub: Hub, student: str, **cells: str) -> Path:
    """The student's notebook, with these cells answered."""
    path = hub.homes / student / "course/labs" / NAME / f"{NAME}.ipynb"
    nbformat.write(answered(nbformat.read(path, as_version=4), cells), path)
    return path


@pytest.mark.nightly("minutes of installing")
def test_a_lab_goes_out_and_comes_back_through_ngshare(class_hub):
    hub, teaching = class_hub, class_hub.homes / "ines/teaching"

    def teach(*command: str, fails: bool = False) -> str:
        return hub.run("ines", *command, cwd="teaching", fails=fails)

    teach("ngshare-course-management", "create_course", "worldsize", "ines")
    for student in ("ada", "zoe", "mia"):
        teach("ngshare-course-management", "add_student", "worldsize", student)
    teach("nbgrader", "generate_assignment", NAME, "--force")
    teach("nbgrader", "release_assignment", NAME)

    hub.run("ada", "nbgrader", "fetch_assignment", NAME)
    right = answer(hub, "ada", total=TOTAL, mean=MEAN)
    (right.parent / "checks.py").write_text("not asked for")
    hub.run("ada", "nbgrader", "submit", NAME)
    # what JupyterLab's list of assignments asks for
    hub.ask("POST", f"user/zoe/assignments/fetch?course_id=worldsize&assignment_id={NAME}")
    half = answer(hub, "zoe", total=TOTAL)
    assert '"success": true' in hub.ask("POST", f"user/zoe/assignments/submit?course_id=worldsize&assignment_id={NAME}")
    said = hub.run("mia", sys.executable, "-c", MALICE)
    assert "'success': True" in said and "Permission denied" in said  # she may hand in, and not see who else did

    assert "Not collected: mia" in teach("nbgrader", "collect", NAME, fails=True)
    found = sorted(path.relative_to(teaching / "submitted") for path in teaching.glob("submitted/*/*/*"))
    assert found == [Path(one, NAME, file) for one in ("ada", "zoe") for file in (f"{NAME}.ipynb", "timestamp.txt")]
    with open(teaching / "collected.csv", newline="") as file:
        times = {row["student"]: row["submitted"] for row in csv.DictReader(file)}
    for student, notebook in (("ada", right), ("zoe", half)):
        folder = teaching / "submitted" / student / NAME
        assert (folder / notebook.name).read_bytes() == notebook.read_bytes()
        assert times.pop(student) == f"{(folder / 'timestamp.txt').read_text()} UTC"
    assert not times

    teach("autograder", "grade", NAME)
    teach("nbgrader", "export")
    with open(teaching / "grades.csv", newline="") as file:
        assert {row["student_id"]: row["score"] for row in csv.DictReader(file)} == {
            "ada": "5.0",
            "zoe": "3.0",
            "mia": "",
        }
    teach("autograder", "feedback", NAME)
    teach("nbgrader", "release_feedback", NAME)
    hub.run("zoe", "nbgrader", "fetch_feedback", NAME)
    (page,) = half.parent.glob(f"feedback/*/{NAME}.html")
    assert page.read_bytes() == (teaching / f"feedback/zoe/{NAME}/{NAME}.html").read_bytes()


# nbgitpuller: a hub of somebody else's, and a repository of what students get

PAGE = (ROOT / "docs/hub.md").read_text()
(COMMIT,) = re.findall(r"^```sh\n(git init .*?)^```$", PAGE, re.M | re.S)
(LINK,) = re.findall(r"^https://hub\.example\.org/hub/user-redirect/git-pull\?(\S+)$", PAGE, re.M)
AUTHOR = {f"GIT_{who}_{what}": "ines@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


@pytest.fixture
def campus_hub(course, hub_tools, tmp_path):  # noqa: F811
    """A hub that knows nothing of the course and has nbgitpuller, switched on as pip does it."""
    config = f"""
c.Spawner.cmd = ["jupyterhub-singleuser", "--allow-root"]
c.Spawner.environment = {{"JUPYTER_CONFIG_PATH": {str(hub_tools.packages / "etc/jupyter")!r}}}
"""
    with running_hub(course, hub_tools, tmp_path, config) as hub:
        hub.add("ada")
        yield hub


def commit(teaching: Path, names: str) -> Path:
    """The repository of what students get, after what the page says has been run in `teaching` for these names."""
    teaching.mkdir(exist_ok=True)
    here = f'autograder() {{ (cd {ROOT} && {sys.executable} -m autograder "$@" --to {teaching}/student.zip); }}\n'
    commands = here + COMMIT.replace("week01 lab01", names).replace("python ", f"{sys.executable} ")
    subprocess.run(["sh", "-e", "-c", commands], cwd=teaching, env=os.environ | AUTHOR, check=True, timeout=120)
    return teaching.parent / "worldsize-course"


def edit(path: Path, ran: str = "", **sources: str) -> None:
    """Write these sources into the cells of a notebook that have these ids, and what a run leaves into another."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.source = sources.pop(cell.id, cell.source)
        if cell.id == ran:
            cell.execution_count, cell.outputs = 1, [new_output("stream", text="2 ranks\n")]
    assert not sources
    nbformat.write(notebook, path)


@pytest.mark.nightly("minutes of installing")
def test_a_link_brings_the_course_and_then_what_is_new(campus_hub, tmp_path):
    repository = commit(tmp_path / "teaching", "week01 lab01")
    link = urlencode(dict(parse_qsl(LINK)) | {"repo": str(repository)})

    def follow() -> None:
        assert "weeks/week01_why_one_gpu_is_not_enough.ipynb" in campus_hub.ask("GET", f"user/ada/git-pull?{link}")
        said = campus_hub.ask("GET", f"user/ada/git-pull/api?{link}")  # what that page then asks for
        assert '"phase": "finished"' in said, said

    follow()
    mine, lab = campus_hub.homes / "ada/worldsize-course", "labs/lab01/lab01.ipynb"
    edit(mine / lab, ran="setup", rank_batches="# my answer", train="# my training")
    (mine / "notes.md").write_text("my notes")
    (mine / "README.md").unlink()

    assert not (mine / "labs/lab02").exists()
    commit(tmp_path / "teaching", "week01 week02 lab01 lab02")
    corrected = dict.fromkeys(("top-markdown-1", "setup", "average_gradients"), "# corrected")
    edit(repository / lab, train="# a correction where there is work", **corrected)
    subprocess.run(["git", "commit", "-qam", "Corrections"], cwd=repository, env=os.environ | AUTHOR, check=True)
    follow()
    notebook = nbformat.read(mine / lab, as_version=4)
    nbformat.validate(notebook)
    cells = {cell.id: cell.source for cell in notebook.cells}
    assert cells["rank_batches"] == "# my answer" and cells["train"] == "# my training"
    assert corrected.items() <= cells.items()
    assert [cell.outputs[0].text for cell in notebook.cells if cell.id == "setup"] == ["2 ranks\n"]
    assert (mine / "labs/lab02/lab02.ipynb").exists() and (mine / "README.md").exists()
    assert (mine / "notes.md").read_text() == "my notes"


# LTI: an LMS of the test's own

SETTINGS = """
client_id = "{client}"
key = "lti.key"
token_url = "{url}/token"
lineitems_url = "{url}/columns"
members_url = "{url}/members"
"""
ROSTER = "id,name,email\nada,Ada,ada@example.org\nzoe,Zoe,Zoe@Example.org\nmia,Mia,mia@example.org\nnoor,Noor,\n"


def new_key(file: Path) -> str:
    """The public half of a new key, whose private half is in the file."""
    subprocess.run(["openssl", "genrsa", "-out", file, "2048"], check=True, capture_output=True)
    command = ["openssl", "rsa", "-in", file, "-pubout"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.nightly("minutes of installing")
def test_scores_arrive_in_an_lms_over_lti(hub_tools, tmp_path, monkeypatch):  # noqa: F811
    teaching = make_course(tmp_path / "teaching")
    monkeypatch.setenv("PYTHONPATH", str(hub_tools.packages))

    def teach(*command: str, fails: bool = False) -> str:
        done = run_afresh(teaching, *command)
        assert (done.returncode != 0) == fails, done.stdout
        return " ".join(done.stdout.split())

    (teaching / "class.csv").write_text(ROSTER)
    teach("autograder", "roster", "import", "class.csv")
    teach("nbgrader", "generate_assignment", NAME, "--force")
    for student, cells in {"ada": {"total": TOTAL, "mean": MEAN}, "zoe": {"total": TOTAL}, "mia": {}}.items():
        hand_in(teaching, student, nbformat.writes(answered(release(teaching), cells)))
    teach("autograder", "grade", NAME)
    hand_in(teaching, "noor", nbformat.writes(release(teaching)))

    monkeypatch.syspath_prepend(hub_tools.packages)
    names = ("ada", "zoe", "mia", "mia", "dan")
    members = [{"user_id": f"lms-{name}", "email": f"{name}@example.org"} for name in names]
    with running(Platform(new_key(teaching / "lti.key"), members)) as lms:
        (teaching / "lti.toml").write_text(SETTINGS.format(client=CLIENT_ID, url=lms.url))
        said = teach("autograder", "passback", "--rename", f"{NAME}=Sums")
        assert "Scores sent: 2" in said and f"noor {NAME} waiting to be graded" in said
        assert f"mia {NAME} the LMS lists no user, or several, with the address mia@example.org" in said
        assert [(one["tag"], one["label"], one["scoreMaximum"]) for one in lms.columns] == [(NAME, "Sums", 5)]
        given = {who: [(one["column"], one["scoreGiven"]) for one in scores] for who, scores in lms.scores.items()}
        assert given == {"lms-ada": [(NAME, 5)], "lms-zoe": [(NAME, 3)]}

        lms.refused = {"lms-ada"}  # which does not stop the others; and there is still one column
        said = teach("autograder", "passback")
        assert "Scores sent: 1" in said and f"ada {NAME} the LMS answered 409" in said
        assert len(lms.columns) == 1 and {who: len(kept) for who, kept in lms.scores.items()} == {
            "lms-ada": 1,
            "lms-zoe": 2,
        }

        lms.refused, lms.unanswered = set(), {"lms-ada"}
        said = teach("autograder", "passback")
        assert "Scores sent: 1" in said and f"ada {NAME} the LMS did not answer" in said

        new_key(teaching / "lti.key")  # which the LMS does not know
        assert "The scores cannot be sent" in teach("autograder", "passback", fails=True)
