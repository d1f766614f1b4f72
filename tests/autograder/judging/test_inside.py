"""What holds on ranks before and beside student code: bans, ranks without it, and what is made before it runs."""

import time
from contextlib import closing

import pytest
from tiny_lab import message, needs_jail, outcomes, write_checks

from autograder.judging.checks.check import StudentFailed
from autograder.judging.judge.student import SandboxedStudent
from autograder.judging.report import Outcome
from autograder.judging.request import CodeUnderTest, JudgeRequest, judge

pytestmark = needs_jail
HEAD = """
import torch
import torch.distributed as dist

from autograder.checks import Made, points
from worldsize.check import CheckFailed

FORBID = {"torch.distributed.Reducer": "Torch's Reducer is not allowed.",
          "torch.distributed.algorithms.ddp_comm_hooks": "Torch's hooks are not allowed."}


def made_of(text):
    scope = {}
    exec(compile(text, "the class", "exec"), scope)
    return scope["Thing"]


def on_rank(student, name, *args):
    return getattr(student, name)(*args) if student else "no student"


def expect(given, wanted):
    if given != wanted:
        raise CheckFailed(str(wanted), str(given))
"""
CHECK = '''

@points(1, cell="check_total")
def check_{name}(student, rng):
    """It holds."""
    {body}
'''
SETUP = "import gc, importlib.util, os, sys\nimport torch\nimport torch.distributed as dist\nfrom torch import nn"
# each gets hold of torch's own solution, if it can
TRICKS = {
    "ddp": "def ddp():\n    nn.parallel.DistributedDataParallel(nn.Linear(2, 2))",
    "reducer": "def reducer():\n    dist.Reducer([nn.Parameter(torch.ones(1))], [[0]], [8], dist.group.WORLD)",
    "kept": (
        "kept = dist.Reducer.__init__\n"
        "def kept_(): pass\n"
        "def kept_init():\n"
        "    dist.Reducer.__init__ = kept\n"
        "    dist.Reducer([nn.Parameter(torch.ones(1))], [[0]], [8], dist.group.WORLD)"
    ),
    "subclass": (
        "class Mine(dist.Reducer):\n    pass\n"
        "def subclass():\n    Mine([nn.Parameter(torch.ones(1))], [[0]], [8], dist.group.WORLD)"
    ),
    "collected": (
        "found = [one for one in gc.get_objects() if 'Reducer' in str(getattr(one, '__doc__', '')) and callable(one)\n"
        "         and getattr(one, '__name__', '') == '__init__']\n"
        "def collected():\n"
        "    dist.Reducer.__init__ = found[0]\n"
        "    dist.Reducer([nn.Parameter(torch.ones(1))], [[0]], [8], dist.group.WORLD)"
    ),
    "hooks": (
        "def hooks():\n    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook\n"
        "    return [powerSGD_hook.__name__]"
    ),
    "hooks_again": (
        "def hooks_again():\n"
        "    sys.meta_path[:] = [one for one in sys.meta_path if 'PathFinder' in str(one)]\n"
        "    sys.modules.pop('torch.distributed.algorithms', None)\n"
        "    return [importlib.import_module('torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook').__name__]"
    ),
    "hooks_by_file": (
        "def hooks_by_file():\n"
        "    path = torch.__path__[0] + '/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py'\n"
        "    return [open(path).read()[:9]]"
    ),
    "hooks_by_link": (
        "def hooks_by_link():\n"
        "    import tempfile\n"
        "    path = torch.__path__[0] + '/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py'\n"
        "    link = os.path.join(tempfile.mkdtemp(), 'own.py')\n"
        "    os.symlink(path, link)\n"
        "    os.path.realpath = os.fsdecode = lambda path, *_, **__: path\n"
        "    return [len(open(link, 'rb').read())]"
    ),
    "hooks_compiled": (
        "def hooks_compiled():\n"
        "    folder = torch.__path__[0] + '/distributed/algorithms/ddp_comm_hooks/'\n"
        "    os.chdir(folder)\n"
        "    path = importlib.util.cache_from_source('powerSGD_hook.py')\n"
        "    return [len(open(path, 'rb').read())]"
    ),
}
NAMES = {"kept": "kept_init"}


@pytest.mark.parametrize("how", ["run", "emulated"])
def test_a_ban_holds_from_before_the_first_cell(tmp_path, how):
    names = [NAMES.get(trick, trick) for trick in TRICKS]
    bodies = {
        name: f"student.{how}(on_rank, {name!r}, world_size=2, forbid=FORBID)\n"
        '    raise CheckFailed("a refusal", "none")'
        for name in names
    }
    checks = HEAD + "".join(CHECK.format(name=name, body=body) for name, body in bodies.items())
    report = judge(
        JudgeRequest(
            checks=write_checks(tmp_path / "course", checks), cells=[("setup", SETUP), *TRICKS.items()], call_s=60
        )
    )
    expected = Outcome.FORBIDDEN if how == "emulated" else Outcome.CRASHED
    found = outcomes(report)
    assert found.pop("check_collected") in (Outcome.CRASHED, expected)  # there is nothing to be found
    others = [(check.name, check.message) for check in report.checks if check.outcome is not expected]
    assert set(found.values()) == {expected}, others
    assert "Torch's Reducer is not allowed." in message(report, "check_kept_init")
    assert "Torch's hooks are not allowed." in message(report, "check_hooks_again")


def test_without_a_ban_torch_s_own_solutions_run(tmp_path):
    body = 'student.run(on_rank, "ddp", world_size=2)\n    student.run(on_rank, "hooks", world_size=2)'
    checks = HEAD + CHECK.format(name="it", body=body)
    report = judge(
        JudgeRequest(
            checks=write_checks(tmp_path / "course", checks), cells=[("setup", SETUP), *TRICKS.items()], call_s=60
        )
    )
    assert outcomes(report) == {"check_it": Outcome.PASSED}


LEFT_BELOW = """
def total(tensor):
    dist.all_reduce(tensor)
    return tensor

import worldsize as ws
open("a.py", "w").close()
{call}
"""
ADDS_UP = 'expect([float(one) for one in student.run(on_rank, "total", torch.ones(()), world_size=2)], [2.0, 2.0])'


@pytest.mark.parametrize(
    "call",
    [
        "ws.run(dist.get_rank, world_size=2)",
        "ws.run(dist.get_rank, world_size=2, cluster='dgx-h100')",
        "ws.torchrun('a.py')",
    ],
)
def test_a_run_that_is_left_below_a_function_starts_no_ranks_and_costs_no_points(tmp_path, call):
    cells = [("setup", SETUP), ("total", LEFT_BELOW.format(call=call))]
    report = judge(
        JudgeRequest(
            checks=write_checks(tmp_path / "course", HEAD + CHECK.format(name="it", body=ADDS_UP)),
            cells=cells,
            call_s=60,
            total_s=60,
        )
    )
    assert outcomes(report) == {"check_it": Outcome.PASSED}


WHO = """
import builtins
builtins.print = None
dist.broken = True
def who():
    return "student"
"""
ROLES = """
    for ranks, wanted in (((0,), ["student", "no student"]), ((), ["no student"] * 2), (None, ["student"] * 2)):
        expect(student.run(on_rank, "who", world_size=2, student_ranks=ranks), wanted)
        expect(student.emulated(on_rank, "who", world_size=2, student_ranks=ranks).values, wanted)
    untouched = student.run(lambda student: [print is None, hasattr(dist, "broken")], world_size=2, student_ranks=(0,))
    expect(untouched, [[True, True], [False, False]])
"""


def test_cells_run_on_the_named_ranks_only(tmp_path):
    checks = HEAD + CHECK.format(name="it", body=ROLES.strip())
    report = judge(
        JudgeRequest(
            checks=write_checks(tmp_path / "course", checks), cells=[("setup", SETUP), ("who", WHO)], call_s=60
        )
    )
    assert outcomes(report) == {"check_it": Outcome.PASSED}, message(report, "check_it")


WAITS = """
def wait():
    dist.barrier() if dist.get_rank() == 0 else __import__("time").sleep(60)
"""
NEVER_ENDS = "student.emulated(lambda _: __import__('time').sleep(60), world_size=2, student_ranks=())"


def test_ranks_that_fail_without_the_students_code_are_no_fault_of_the_students(tmp_path):
    for body in (NEVER_ENDS, "student.run(lambda _: 1 / 0, world_size=2, student_ranks=())"):
        checks = write_checks(tmp_path / "course", HEAD + CHECK.format(name="it", body=body))
        report = judge(JudgeRequest(checks=checks, cells=[("setup", SETUP)], call_s=3))
        assert outcomes(report) == {"check_it": Outcome.FAULT} and report.is_fault
        assert "ranks without the student's code failed" in message(report, "check_it")


def test_a_hang_of_the_students_leaves_no_less_time_to_ranks_without_their_code():
    with closing(
        SandboxedStudent(CodeUnderTest(cells=[("setup", SETUP)], preload=["torch"], call_s=60, total_s=120))
    ) as student:
        student._call_s = 0.2  # as after a hang
        assert student.run(rests, world_size=2, student_ranks=()) == ["rested"] * 2
        with pytest.raises(StudentFailed):
            student.run(rests, world_size=2)


def rests(_):
    time.sleep(1)
    return "rested"


def test_time_that_the_submission_has_used_up_stays_its_own(tmp_path):
    waits = CHECK.format(name="first", body='student.run(on_rank, "wait", world_size=2)')
    checks = write_checks(tmp_path / "course", HEAD + waits + CHECK.format(name="second", body=NEVER_ENDS))
    report = judge(JudgeRequest(checks=checks, cells=[("setup", SETUP), ("wait", WAITS)], call_s=3, total_s=5))
    assert outcomes(report) == {"check_first": Outcome.HUNG, "check_second": Outcome.TIME_LIMIT}


HIDDEN_COPY = """
import numpy
kept = []
def lean():
    kept.append(numpy.ones(10_000_000))
"""
GROWN = """
    run = student.emulated(on_rank, "lean", world_size=2, student_ranks=(0,), memory=True)
    expect([grown > 60_000_000 for grown in run.grown_bytes], [True, False])
    expect([use.most_bytes < 1_000 for use in run.memory], [True, True])
"""


def test_a_judge_has_the_kernels_word_on_memory(tmp_path):
    checks = HEAD + CHECK.format(name="it", body=GROWN.strip())
    cells = [("setup", SETUP), ("lean", HIDDEN_COPY)]
    report = judge(JudgeRequest(checks=write_checks(tmp_path / "course", checks), cells=cells, call_s=60))
    assert outcomes(report) == {"check_it": Outcome.PASSED}, message(report, "check_it")


# looks for the source of a class under test: in frames, in what the collector knows, in the cache of lines
SEARCH = """
import linecache

def texts(value, depth=0):
    if isinstance(value, (str, bytes)):
        yield value if isinstance(value, str) else value.decode(errors="replace")
    elif depth < 4 and isinstance(value, (list, tuple, set, frozenset)):
        for one in list(value):
            yield from texts(one, depth + 1)
    elif depth < 4 and isinstance(value, dict):
        for one in list(value.values()):
            yield from texts(one, depth + 1)
    elif depth < 4 and hasattr(value, "__dict__") and not isinstance(value, type(sys)):
        yield from texts(vars(value), depth + 1)

def is_marked(text):
    return "NEDDIH_EB_OT" in text[::-1]

def found_now(place):
    frames = [frame for top in sys._current_frames().values() for frame in stack(top)]
    return [place] if any(is_marked(text) for frame in frames for text in texts(frame.f_locals)) else []

def stack(frame):
    while frame is not None:
        yield frame
        frame = frame.f_back

at_cell = found_now("cells")

def look(Thing):
    assert Thing().value() == 1
    lines = ["linecache"] if any(is_marked(str(one)) for one in linecache.cache.values()) else []
    return at_cell + found_now("frames") + lines
"""
LOOK = """
    source = "# TO_BE_HIDDEN\\nclass Thing:\\n    def value(self):\\n        return 1"
    for how in ("run", "emulated"):
        values = getattr(student, how)(on_rank, "look", world_size=2, made=Made(made_of, source))
        expect(values if how == "run" else values.values, [[], []])
    values = student.run(lambda student, source: student.look(made_of(source)), source, world_size=1)
    expect(values, [["cells", "frames"]])
"""


def test_what_a_class_under_test_is_made_of_is_in_no_frame(tmp_path):
    checks = HEAD + CHECK.format(name="it", body=LOOK.strip())
    report = judge(
        JudgeRequest(
            checks=write_checks(tmp_path / "course", checks), cells=[("setup", SETUP), ("look", SEARCH)], call_s=60
        )
    )
    assert outcomes(report) == {"check_it": Outcome.PASSED}, message(report, "check_it")
