"""Judging on a Ray cluster of two nodes, both on this machine, against judging here."""

import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import tiny_project
from commands import run_afresh as run
from nbgrader.api import Gradebook
from needs import give_up
from processes import are_gone, wait_until
from tiny_class import hand_in, lab, place
from tiny_lab import CHECKS, GIVEN, MEAN, NAME, TOTAL, make_course, needs_jail, write_checks

from autograder.bench.batch import read_batch
from autograder.course import open_course, source_of
from autograder.grading import ray_engine
from autograder.grading.classroom import judge_class
from autograder.grading.engines import LocalPool
from autograder.grading.lab import Lab
from autograder.grading.preprocessor import Grade
from autograder.grading.ray_engine import RayCluster
from autograder.judging.judge.measuring import Measurement, Progress, Settings
from autograder.judging.report import Outcome
from autograder.judging.request import JudgeRequest
from worldsize.bench import Task

pytestmark = [needs_jail, pytest.mark.ray]
HANGS = "def total(tensor):\n    while True:\n        pass"
SCORES = {"right": 5, "wrong": 2, "hanging": 2, "damaged": 0}
CELLS = [("setup", GIVEN), ("total", TOTAL), ("mean", MEAN)]
# kills the process of Ray's that judges, and notes who went with it: the judge and its zygote
SLAY = """

def slay(student):
    import os, psutil, signal
    zygote = psutil.Process().parent()
    with open(TOLD, "a") as file:
        file.write(f"{os.getpid()} {zygote.pid} {zygote.ppid()}\\n")
    if CONDITION:
        zygote.parent().kill()
        signal.pause()
"""


@pytest.fixture(scope="module")
def folder():
    """Where the cluster keeps its files: a short path, for it holds the names of sockets."""
    made = Path(tempfile.mkdtemp(prefix="ray-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def address(folder):
    """The address of a cluster with two nodes, each with a CPU and one with a GPU that is only said to be there."""
    try:
        from ray.cluster_utils import Cluster  # pyright: ignore[reportMissingImports]  # an extra
    except ImportError:
        give_up("ray", "Ray is not installed: pip install -e '.[ray]'")
    import ray  # pyright: ignore[reportMissingImports]

    before = set(psutil.Process().children())
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"RAY_USAGE_STATS_ENABLED": "0", "TMPDIR": str(folder)}.items():
            patch.setenv(name, value)
        node = {"num_cpus": 1, "object_store_memory": 80 << 20, "dashboard_agent_listen_port": 0}
        cluster = Cluster(True, head_node_args={**node, "temp_dir": str(folder / "ray"), "include_dashboard": False})
        cluster.add_node(**node, num_gpus=1)
        patch.setenv("RAY_ADDRESS", cluster.address)
        daemons = set(psutil.Process().children()) - before
        yield cluster.address
    started = {one.pid for daemon in daemons for one in (daemon, *daemon.children(recursive=True))}
    ray.shutdown()
    cluster.shutdown()
    assert are_gone(started)


class SameSeeds(LocalPool):
    """This machine, with the inputs that another engine has drawn."""

    def __init__(self, seed):
        super().__init__(1)
        self._seed = seed

    def judge(self, request):
        return super().judge(request.model_copy(update={"seed": self._seed}))


@pytest.mark.usefixtures("address")
def test_a_class_gets_from_the_cluster_what_it_gets_here(tmp_path, folder):
    course = make_course(tmp_path)
    with open(course / "nbgrader_config.py", "a") as file:
        file.write("\nc.Grade.call_s = 10\n")
    for student in ("right", "wrong", "hanging"):
        hand_in(course, student, is_right=student == "right")
    path = course / "submitted" / "hanging" / NAME / f"{NAME}.ipynb"
    path.write_text(path.read_text().replace(r"def total(tensor):\n    return tensor", HANGS.replace("\n", r"\n")))
    place(course, "damaged", "not a notebook")
    run(course, "nbgrader", "generate_assignment", NAME, "--force")
    done = run(course, "autograder", "grade", NAME, "--engine", "ray")
    assert done.returncode == 0, done.stdout
    kept = [path for place in folder.iterdir() if place.name != "ray" for path in place.rglob("*")]
    assert not kept, "hidden checks or a student's work stayed on a worker"
    with Gradebook(f"sqlite:///{course / 'gradebook.db'}") as gradebook:
        assert {one.student.id: one.score for one in gradebook.assignment_submissions(NAME)} == SCORES
    coursedir = open_course(course)
    ours = Lab(coursedir, NAME, Grade(config=coursedir.config).limits(source_of(coursedir, NAME)))
    for student in SCORES:
        there = ours.kept(student)
        assert there, "the fingerprint is another one"
        here = ours.judge(student, SameSeeds(there.report and there.report.seed))
        assert as_data(there) == as_data(here)


def as_data(judged):
    return judged.model_dump(exclude={"is_entered": True, "report": {"duration_s"}})


def deadly(told, condition):
    checks = CHECKS.replace("    shards =", "    slay(student)\n    shards =", 1)
    return checks + SLAY.replace("CONDITION", condition).replace("TOLD", repr(str(told)))


@pytest.mark.usefixtures("address")
def test_a_judging_whose_worker_is_killed_is_done_again(tmp_path):
    told = tmp_path / "told"
    text = deadly(told, "len(open(TOLD).readlines()) == 1")
    report = RayCluster().judge(JudgeRequest(checks=write_checks(tmp_path / "hidden", text), cells=CELLS))
    assert report.score == 5
    first, second = ([int(pid) for pid in line.split()] for line in told.read_text().splitlines())
    assert not set(first) & set(second) and are_gone(first)


@pytest.mark.usefixtures("address")
def test_a_worker_that_always_dies_is_a_fault_of_the_grader_and_not_the_end_of_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_engine, "_TRIES_AGAIN", 0)
    told = tmp_path / "told"
    text = deadly(told, "'SCALE * tensor' in str(student._cells)")
    course = make_course(tmp_path / "course", checks=text)
    hand_in(course, "anna")
    hand_in(course, "ben", is_right=False)
    found = dict(judge_class(lab(course), ["anna", "ben"], RayCluster()))
    assert found["anna"].verdict.startswith("not graded: RuntimeError: the cluster gave no report (WorkerCrashedError")
    assert (found["ben"].score, len(told.read_text().splitlines())) == (2, 2)


@pytest.mark.usefixtures("address")
def test_a_worker_with_another_grader_judges_nothing(tmp_path, monkeypatch):
    course = make_course(tmp_path)
    hand_in(course, "anna")
    monkeypatch.setattr(ray_engine, "engine_sha256", lambda: "another")
    ((_, judged),) = judge_class(lab(course), ["anna"], RayCluster())
    assert "has a different version of autograder or worldsize. Install the same there" in judged.fault
    assert judged.report is None


@pytest.mark.usefixtures("address")
def test_a_judging_that_takes_a_gpu_gets_one(tmp_path):
    sees = CHECKS.replace("shards =", "assert __import__('os').environ['CUDA_VISIBLE_DEVICES'] == '0'\n    shards =")
    assert (RayCluster().jobs, RayCluster(num_gpus=1).jobs, RayCluster(num_gpus=0.5).jobs) == (2, 1, 1)
    report = RayCluster(num_gpus=1).judge(JudgeRequest(checks=write_checks(tmp_path / "hidden", sees), cells=CELLS))
    assert {check.outcome for check in report.checks} == {Outcome.PASSED}, report
    with pytest.raises(ValueError, match=r"No node .* 2 GPUs"):
        RayCluster(num_gpus=2)


@pytest.mark.usefixtures("address")
def test_what_waits_for_the_cluster_is_given_up_when_the_command_ends(tmp_path):
    engine = RayCluster(jobs=1, num_gpus=2)  # for which it waits, as no node has them
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(engine.judge, JudgeRequest(checks=write_checks(tmp_path / "hidden"), cells=CELLS))
        assert wait_until(lambda: bool(engine._running), within_s=30)
        engine.stop()
        with pytest.raises(RuntimeError, match="the cluster gave no report"):
            asked.result(timeout=60)


TINY = ["--steps=6", "--batch=32", "--width=4", "--repeats=1", "--world-sizes=2", "--engine=ray"]


@pytest.mark.usefixtures("address")
def test_a_class_is_measured_on_the_cluster_and_its_results_come_here(tmp_path, folder):
    root = tiny_project.make_course(tmp_path)
    before = left(folder)
    for student, source in {"right": tiny_project.program(root), "missing": None}.items():
        tiny_project.hand_in(root / "handed" / student, source, root)
    done = run(root, "autograder", "bench", tiny_project.NAME, "--submissions=handed", "--out=out", *TINY)
    assert done.returncode == 0, done.stdout
    assert "6 of 6" in done.stdout and "malformed: The submission holds no train.py" in done.stdout
    (result,) = read_batch(root / "out").values()
    assert not [one.failure for one in result.timings if one.failure] and len(result.timings) >= 4

    assert wait_until(lambda: left(folder) <= before, within_s=60), left(folder) - before


def left(folder: Path) -> set[Path]:
    """What lies below the temporary folders of the cluster's nodes; a worker that another test killed has left some."""
    return {path for place in folder.iterdir() if place.name != "ray" for path in place.rglob("*")}


@pytest.mark.usefixtures("address")
def test_a_measurement_whose_worker_is_killed_goes_on_with_what_was_timed(tmp_path):
    root = tiny_project.make_course(tmp_path)
    settings = Settings(task=Task(num_steps=6, batch_size=32, width=4), world_sizes=(1,), num_repeats=3)
    job = Measurement(
        program=tiny_project.program(root),
        settings=settings,
        preload=(),
        call_s=60,
        total_s=200,
        allow_untrusted=False,
    )
    journal, words = tmp_path / "out" / "journal", []
    for word in RayCluster(has_whole_nodes=True).measure(job, journal):
        words.append(word)
        if len(words) == 1:
            first = journal.read_text()
            (worker,) = (one for one in psutil.process_iter(["cmdline"]) if is_measuring(one))
            worker.kill()
    assert [word.done for word in words if isinstance(word, Progress)][-1] == 3
    result = words[-1].result
    assert len(result.timings) == 3 and not any(one.failure for one in result.timings)
    assert journal.read_text().startswith(first), "what was timed before is kept"
    assert first.strip().split('"window_s": ')[1].split(",")[0] == repr(result.timings[0].window_s)


def is_measuring(process):
    return "ray::measure_here" in " ".join(process.info["cmdline"] or [])
