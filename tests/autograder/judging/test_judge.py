"""How a submission fares before the judge: every kind of outcome, and who is blamed for it."""

import os
import re

import pytest
from tiny_lab import GIVEN, MEAN, TOTAL, judged, message, needs_jail, outcomes, without_jails, write_checks

from autograder.grading.verify import Case, _problems
from autograder.judging.checks.check import StudentFailed
from autograder.judging.jail.agent import describe
from autograder.judging.judge.failures import raise_described, values_of
from autograder.judging.report import Outcome
from autograder.judging.request import JudgeRequest, judge
from worldsize.launch import RankFailed, RunTimeout
from worldsize.launch.protocol.call_log import Call
from worldsize.launch.protocol.failure import Failure, FailureCause
from worldsize.launch.reports.diagnosis import StoppedRank
from worldsize.launch.reports.result import End, Ending
from worldsize.source import Line

pytestmark = needs_jail
PASSED, WRONG, CRASHED = Outcome.PASSED, Outcome.WRONG, Outcome.CRASHED
HUNG, SKIPPED, FAULT, PARTLY = Outcome.HUNG, Outcome.SKIPPED, Outcome.FAULT, Outcome.PARTLY
TIME_LIMIT, OUTPUT_LIMIT, FORBIDDEN = Outcome.TIME_LIMIT, Outcome.OUTPUT_LIMIT, Outcome.FORBIDDEN
ONE_CHECK = '''
import torch

from autograder.judging.checks.check import points
from worldsize.check import CheckFailed


def on_rank(student):
    return student.total(None)


@points(1, cell="check_total")
def check_total(student, rng):
    """The promise."""
    {body}
'''

SQUARE = """
class Square:
    alt = "a square"

    def __init__(self, num_bytes):
        self.num_bytes = num_bytes

    def png(self):
        return bytes(self.num_bytes)
"""
ONE_OF_MANY = '''

def on_rank_{number}(student):
    return student.total_{number}(None)


@points(1, cell="check_total")
def check_{number}(student, rng):
    """It is so, {number}."""
    student.{how}(on_rank_{number}, world_size=1)
'''
NUMBERED = '''
@points(1, cell="check_total"{needs})
def check_{number}(student, rng):
    """It is so, {number}."""
    raise CheckFailed("1", "2"{picture})
'''


@pytest.fixture
def checks(tmp_path):
    return write_checks(tmp_path / "course")


@pytest.fixture
def one_check(tmp_path):
    return lambda body: write_checks(tmp_path / "course", ONE_CHECK.format(body=body))


def test_a_right_answer_gets_every_point(checks):
    report = judged(checks)
    assert outcomes(report) == dict.fromkeys(["check_total_sums", "check_total_of_one", "check_mean_divides"], PASSED)
    assert (report.score, report.max_score, report.is_fault) == (5, 5, False)
    assert report.checks[0].promise == "Every rank holds the sum over all ranks."


FORGED = """
def total(tensor):
    raise type({kind!r}, (Exception,), {{}})("{kind}: No progress for 20 s: {kind}")
"""
KINDS = ["SIGKILL", "SIGXCPU", "SIGXFSZ", "output limit", "Forbidden", "MemoryError", "bad_alloc", "not done"]
KINDS += ["broken message", "a mismatched collective", "RunTimeout", "time limit", "forbidden call", "grader fault"]
KILLED = "def total(tensor):\n    import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)"
SLOW = "def total(tensor):\n    while True: pass"


@pytest.mark.parametrize(("total", "outcome"), [(KILLED, CRASHED), (SLOW, TIME_LIMIT)])
def test_what_another_process_may_have_caused_is_said(checks, total, outcome):
    first, second, _ = judged(checks, total=total, call_s=3).checks
    assert first.may_be_external and first.outcome is outcome
    assert (second.outcome, second.blocked_by) == (SKIPPED, first.name)


def test_how_a_run_ended_is_decided_by_no_words_of_the_students(tmp_path):
    text = ONE_CHECK.split("def on_rank")[0]
    for number in range(len(KINDS)):
        text += ONE_OF_MANY.format(number=number, how="emulated" if number % 2 else "run")
    cells = [(f"total_{number}", FORGED.format(kind=kind).replace("total", f"total_{number}"))
             for number, kind in enumerate(KINDS)]  # fmt: skip
    cells.append(("real", "from worldsize.emulate import Forbidden\ndef total_4(x):\n    raise Forbidden('x')"))
    for kind, check in zip(
        KINDS, judge(JudgeRequest(checks=write_checks(tmp_path / "course", text), cells=cells)).checks, strict=True
    ):
        assert (check.outcome, check.may_be_external) == (CRASHED, False), kind
        assert "No progress" not in check.message.splitlines()[0]


WAITING = Call(1, "barrier", line=Line("<cell total>", 2, "total", "a line that is not there"))
LOOPING = StoppedRank(0, lines=[Line("/course/checks.py", 3, "check", "hidden"), Line("<cell total>", 2, "total", "x")])


@pytest.mark.parametrize(
    ("error", "outcome", "may_be_external"),
    [
        (RunTimeout("", standings=[StoppedRank(0, calls=[WAITING])], ending=Ending(End.STALLED)), HUNG, True),
        (RunTimeout("", standings=[StoppedRank(0, calls=[WAITING])], ending=Ending(End.STUCK)), HUNG, False),
        (RunTimeout("", standings=[StoppedRank(0, calls=[WAITING])], ending=Ending(End.TIMEOUT)), HUNG, True),
        (RunTimeout("", standings=[LOOPING], ending=Ending(End.TIMEOUT)), TIME_LIMIT, True),
        (RankFailed("", [Failure(0, "SIGKILL", "it was killed", cause=FailureCause.SIGNAL)]), CRASHED, True),
        (RankFailed("", [Failure(0, "SIGKILL", "it was killed")]), CRASHED, False),
        (RankFailed("", [Failure(0, "SIGXCPU", "", cause=FailureCause.SIGNAL)]), TIME_LIMIT, True),
        (RankFailed("", []), CRASHED, False),
    ],
)
def test_a_failure_that_is_described_inside_the_sandbox_is_read_outside(error, outcome, may_be_external):
    described = describe(error)
    with pytest.raises(StudentFailed) as caught:
        raise_described(described, {"<cell total>": "def total(x):\n    while True: pass"})
    assert (caught.value.outcome, caught.value.may_be_external) == (outcome, may_be_external)
    assert "hidden" not in str(caught.value) and "not there" not in str(caught.value)


ODD = [None, 1, "x", [], [{}], {"failures": 1}, {"failures": "["}, {"failures": "[[0]]", "standings": "[]"}]
ODD += [{"failures": '[[0, {"kind": 1}, "SIGNAL"]]', "standings": "[]"}, {"ending": "STALLED"}, {"ending": []}]
ODD += [{"ending": "TIMEOUT", "standings": text} for text in ("{}", "[1]", '[{"rank": "x"}]', "[" * 9999)]
ODD += [{"failures": f'[[0, {{"kind": "A", "message": "", "lines": [], "time_ns": 0}}, "{kind}"]]', "standings": "[]"}
        for kind in ("nothing", "__class__")]  # fmt: skip


@pytest.mark.parametrize("described", ODD)
def test_an_odd_description_is_a_crash(described):
    with pytest.raises(StudentFailed) as caught:
        raise_described(described, {})
    assert (caught.value.outcome, caught.value.may_be_external) == (CRASHED, False)


@pytest.mark.parametrize("returned", [None, {}, [], {"values": 1}, {"values": []}, {"values": {"0": 1}}])
def test_values_that_are_not_there_are_a_crash(returned):
    with pytest.raises(StudentFailed, match="cannot be read"):
        values_of(returned, 2)


def test_a_wrong_value_is_told_and_what_builds_on_it_is_skipped(checks):
    report = judged(checks, total="def total(tensor):\n    return tensor")
    assert outcomes(report) == {
        "check_total_sums": WRONG,
        "check_total_of_one": SKIPPED,
        "check_mean_divides": PASSED,
    }
    assert "Expected: the total on rank 0" in message(report, "check_total_sums")
    assert "Sum over all ranks." in message(report, "check_total_sums")
    assert report.score == 2


def test_a_broken_cell_costs_only_its_own_function(checks):
    report = judged(checks, total="def total(tensor:\n    return tensor")
    assert outcomes(report)["check_total_sums"] is CRASHED
    assert outcomes(report)["check_mean_divides"] is PASSED
    assert "SyntaxError" in message(report, "check_total_sums")
    assert "total, line 1" in message(report, "check_total_sums")


def test_a_function_that_is_not_there_is_named(checks):
    report = judged(checks, total="def totals(tensor):\n    return tensor")
    assert "the notebook defines no total" in message(report, "check_total_sums")
    assert report.score == 2


def test_an_error_is_quoted_with_the_students_lines_and_no_others(checks):
    report = judged(
        checks, total="def total(tensor):\n    return deeper(tensor)\n\ndef deeper(x):\n    return x.nothing"
    )
    text = message(report, "check_total_sums")
    assert "AttributeError: 'Tensor' object has no attribute 'nothing'" in text
    assert "total, line 5, in deeper" in text and "return x.nothing" in text
    assert "checks" not in text and "on_rank" not in text


def test_a_hang_costs_its_check_and_then_time_runs_out(checks):
    hangs = "def {}(tensor):\n    while dist.get_rank() == 0:\n        pass\n    dist.barrier()"
    report = judged(checks, total=hangs.format("total"), mean=hangs.format("mean"), call_s=6, total_s=6)
    assert outcomes(report) == {
        "check_total_sums": HUNG,
        "check_total_of_one": SKIPPED,
        "check_mean_divides": TIME_LIMIT,
    }
    assert "while dist.get_rank() == 0" in message(report, "check_total_sums")
    assert "on_rank" not in message(report, "check_total_sums")


ENDS = {
    "loops": ("while True: pass", TIME_LIMIT, "The ranks did not finish within"),
    "waits": ("if dist.get_rank() == 0: dist.barrier()", HUNG, "rank 1 has returned."),
    "waits on the wire": ("if dist.get_rank() == 0: dist.barrier()", HUNG, "Deadlock: every unfinished rank"),
    "cpu": (
        "import resource\n    resource.setrlimit(resource.RLIMIT_CPU, (1, 2))\n    while True: pass",
        TIME_LIMIT,
        "",
    ),
    "memory": ("bytearray(1 << 40)", CRASHED, "needs more memory than a submission may use"),
    "tensor": ("torch.empty(1 << 40)", CRASHED, "needs more memory than a submission may use"),
    "prints": ("while True: print('x' * 100_000)", OUTPUT_LIMIT, "it printed more than"),
    "returns": ("return torch.zeros(17 << 20)", OUTPUT_LIMIT, "bytes; the limit is"),
    "writes": ("open('file', 'wb').write(bytes(300 << 20))", CRASHED, "writes more than a submission may"),
    "forbidden": ("dist.all_reduce(tensor)", FORBIDDEN, "all_reduce is not allowed here"),
}


@pytest.mark.parametrize("name", ENDS)
def test_every_limit_has_a_verdict_of_its_own(one_check, name):
    body, outcome, words = ENDS[name]
    path = one_check('student.emulated(on_rank, world_size=2, allow={"send", "recv", "barrier"})')
    if name == "waits":  # on the emulated wire a wait for nobody is seen at once
        path = one_check("student.run(on_rank, world_size=2)")
    given = "import torch\nimport torch.distributed as dist\ntensor = torch.zeros(1)"
    code = f"def total(x):\n    {body}"
    report = judge(
        JudgeRequest(
            checks=path, cells=[("setup", given), ("total", code)], call_s=6 if name in ("loops", "waits") else 60
        )
    )
    assert outcomes(report) == {"check_total": outcome}
    assert words in message(report, "check_total")


UNDER_AGENT = """
def total(x):
    import os
    told = [os.environ["TORCHELASTIC_RUN_ID"] != "", os.environ["LOCAL_RANK"], os.readlink("/proc/self/ns/pid")]
    value = torch.ones(1)
    dist.all_reduce(value)
    {more}
    return [value, *told]
"""


@pytest.mark.parametrize(
    ("more", "outcome", "words"),
    [
        ("", WRONG, "Expected: [2.0, True, '1', 'pid:["),
        (
            "if dist.get_rank() == 1: raise KeyError(2)",
            CRASHED,
            "Rank 1: KeyError, with its own text, which is not shown here\n  cell total, line 7",
        ),
        ("if dist.get_rank() == 0: dist.barrier()", HUNG, "rank 1 has returned."),
    ],
)
def test_the_student_s_function_runs_under_the_real_agent_in_the_sandbox(one_check, more, outcome, words):
    body = "_, (value, *told) = student.torchrun(on_rank, world_size=2)\n"
    body += "    raise CheckFailed(str([value.item(), *told]), '')"
    given = "import torch\nimport torch.distributed as dist"
    report = judge(
        JudgeRequest(
            checks=one_check(body), cells=[("setup", given), ("total", UNDER_AGENT.format(more=more))], call_s=60
        )
    )
    assert outcomes(report) == {"check_total": outcome}, message(report, "check_total")
    assert words in message(report, "check_total")
    assert os.readlink("/proc/self/ns/pid") not in message(report, "check_total")


def test_a_check_that_holds_in_part_gives_a_part_and_lets_others_be_tried(one_check):
    path = one_check(
        'from autograder.judging.checks.check import PartlyHeld\n    raise PartlyHeld(0.25, "all", "a quarter")'
    )
    more = ONE_CHECK.format(body="pass").partition("@points")[2].replace("check_total(", "check_more(")
    path.write_text(path.read_text() + "\n\n@points" + more.replace('_total")', '_total", needs=["check_total"])'))
    report = judge(JudgeRequest(checks=path, cells=[]))
    assert outcomes(report) == {"check_total": PARTLY, "check_more": PASSED}
    assert report.score == 1.25
    assert message(report, "check_total") == "Expected: all. Got: a quarter."


def test_functions_of_the_checks_reach_ranks_through_a_function_of_the_kit(one_check):
    path = one_check(
        "from autograder.checks import call_each\n"
        '    found = student.run(call_each, "total", [(1,)], {"part": part}, world_size=1)\n'
        '    if found != [[3]]:\n        raise CheckFailed("3", f"{found}")'
    )
    path.write_text(path.read_text() + "\n\ndef part(number):\n    return number + 2\n")
    total = ("total", "def total(number):\n    return part(number)")
    assert outcomes(judge(JudgeRequest(checks=path, cells=[total]))) == {"check_total": PASSED}


FAT = """
import torch
import worldsize.launch.protocol.codec as codec
real = codec._to_tree

def total(x):
    codec._to_tree = lambda value, tensors, depth: real([value, {kind}] if depth == 0 else value, tensors, depth)
    return torch.ones(3)
"""
PEAK = """from autograder.checks import entry, is_same

def peak_bytes():
    words = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return 1024 * int(words["VmHWM"].split()[0])

"""
MEASURED = """
    start_bytes = peak_bytes()
    try:
        values = student.run(on_rank, world_size=4)
        entry(values, 0, 1) is not None and is_same(values[0], values[1])
        [[float(one) for one in value[1].flatten()] for value in values]  # as no check should
    finally:
        if peak_bytes() - start_bytes > 800 << 20:  # without the libraries' own memory
            raise ValueError(f"{peak_bytes() - start_bytes:,} bytes")
"""


@pytest.mark.parametrize(
    "kind", ["torch.zeros(60 << 20, dtype=torch.uint8)", "torch.zeros(24 << 20).half()", "[0] * 10**6"]
)
def test_a_fat_value_fills_no_judge(one_check, kind):
    path = one_check(MEASURED.strip())
    path.write_text(PEAK + path.read_text())
    (check,) = judge(JudgeRequest(checks=path, cells=[("total", FAT.format(kind=kind))], call_s=60)).checks
    assert check.outcome in (WRONG, CRASHED), check.message
    assert "bytes" not in check.stopped_by


def test_inputs_are_drawn_afresh_unless_a_seed_is_given(one_check):
    path = one_check('raise CheckFailed("an input", str(torch.rand(1, generator=rng).item()))')
    first, second = judge(JudgeRequest(checks=path, cells=[])), judge(JudgeRequest(checks=path, cells=[]))
    again = judge(JudgeRequest(checks=path, cells=[], seed=first.seed))
    assert message(first, "check_total") == message(again, "check_total") != message(second, "check_total")


def test_student_code_runs_in_no_process_of_the_judge(one_check):
    told = "import os\ndef total(tensor):\n    return os.readlink('/proc/self/ns/pid')"
    path = one_check('raise CheckFailed(student.run(on_rank, world_size=1)[0], "")')
    text = message(judge(JudgeRequest(checks=path, cells=[("total", told)])), "check_total")
    assert "pid:[" in text
    assert os.readlink("/proc/self/ns/pid") not in text  # the judge is in ours


def test_a_check_with_a_mistake_is_our_fault(one_check):
    mistakes = {
        "ZeroDivisionError": "1 / 0",
        "world_size": "student.run(on_rank, world_size=0)",
        "SystemExit": "raise SystemExit(0)",
    }
    path = one_check("pass")
    for number, body in enumerate(mistakes.values()):
        text = ONE_CHECK.format(body=body).replace("check_total(", f"check_{number}(")
        path.write_text(path.read_text() + text)
    report = judge(JudgeRequest(checks=path, cells=[("total", "def total(x):\n    return 1")]))
    assert outcomes(report) == {"check_total": PASSED, **{f"check_{number}": FAULT for number in range(3)}}
    for number, said in enumerate(mistakes):
        assert said in message(report, f"check_{number}")
    assert report.is_fault


UNREADABLE = [
    "student.run(on_rank, world_size=1) + 1",
    "student.run(on_rank, world_size=1)[0]['steps']",
    "torch.ones(2) + student.emulated(on_rank, world_size=1).values[0]",
]


@pytest.mark.parametrize("body", UNREADABLE)
def test_a_check_that_cannot_read_what_came_back_gives_nothing_and_is_named(one_check, body):
    report = judge(
        JudgeRequest(
            checks=one_check(body), cells=[("total", "def total(x):\n    return torch.ones(3)"), ("i", "import torch")]
        )
    )
    (check,) = report.checks
    assert (check.outcome, report.score, report.is_fault) == (WRONG, 0, False)
    assert check.stopped_by.startswith(("TypeError", "IndexError", "RuntimeError")) and "Error" not in check.message
    case = Case("lab", "wrong/it", {}, 0.0)
    assert [*_problems(case, report)] == [f"check_total cannot read what came back: {check.stopped_by}"]


@pytest.mark.parametrize(
    "text", ["import nothing_at_all", "def check_without_points(student, rng):\n    '''It.'''", "x = ("]
)
def test_checks_that_cannot_all_be_tried_give_no_report(tmp_path, text):
    working = ONE_CHECK.format(body="pass")
    checks = write_checks(tmp_path / "course", working + "\n" + text)
    with pytest.raises(RuntimeError, match="before it could report"):
        judge(JudgeRequest(checks=checks, cells=[("total", TOTAL)]))


def test_a_picture_is_carried_while_it_is_small_and_told_when_it_is_not(tmp_path):
    text = ONE_CHECK.split("@points")[0] + SQUARE
    for number, size in enumerate(["150_000", "250_000", "150_000", "150_000", "'no number'"]):
        text += NUMBERED.format(number=number, needs="", picture=f", picture=lambda: Square({size})")
    report = judge(JudgeRequest(checks=write_checks(tmp_path / "course", text), cells=[]))
    assert set(outcomes(report).values()) == {WRONG}
    alts = [check.picture and check.picture.alt for check in report.checks]
    assert alts == ["a square", None, "a square", None, None]
    assert "it has 250 kB, but only 200 kB were left" in message(report, "check_1")
    assert "it has 150 kB, but only 100 kB were left" in message(report, "check_3")
    assert "could not be drawn" in message(report, "check_4")


def test_a_check_that_was_not_tried_names_the_one_to_fix_first(tmp_path):
    text = ONE_CHECK.split("@points")[0]
    for number, needs in enumerate(["", ', needs=["check_0"]', ', needs=["check_1"]']):
        text += NUMBERED.format(number=number, needs=needs, picture="")
    report = judge(JudgeRequest(checks=write_checks(tmp_path / "course", text), cells=[]))
    assert [*outcomes(report).values()] == [WRONG, SKIPPED, SKIPPED]
    for name in ("check_1", "check_2"):
        assert message(report, name).endswith("Fix this one first: It is so, 0.")


def test_a_message_fits_a_file_whatever_the_student_put_in(one_check):
    hostile = "def total(x):\n    raise ValueError('\\ud800 \\x1b[31m <b>' + 'x' * 100_000)"
    report = judge(JudgeRequest(checks=one_check("student.run(on_rank, world_size=1)"), cells=[("total", hostile)]))
    assert outcomes(report) == {"check_total": CRASHED}
    assert len(message(report, "check_total")) < 10_000
    report.model_dump_json().encode()


def test_options_for_pytest_in_the_environment_change_nothing(checks, monkeypatch):
    monkeypatch.setenv("PYTEST_ADDOPTS", "--collect-only")
    assert judged(checks).score == 5


def test_without_a_jail_the_judge_refuses_unless_told_otherwise(checks):
    judged_there = f"""
from pathlib import Path
from autograder.judging.request import JudgeRequest, judge
def judged(**options):
    cells = {[("setup", GIVEN), ("total", TOTAL), ("mean", MEAN)]!r}
    return judge(JudgeRequest(checks=Path({str(checks)!r}), cells=cells, **options))
report = judged(allow_untrusted=True)
print(report.score, report.tier)
judged()
"""
    done = without_jails(judged_there)
    assert done.stdout in ("5.0 none\n", "5.0 a user of its own, Landlock\n")
    assert re.search(r"RuntimeError: .*too weak for final grades.*allow_untrusted = True", done.stderr, re.DOTALL)


def test_values_that_are_shared_between_checks_are_gone(checks):
    """Neither files nor shared memory of one check reach the next."""
    remembers = """
import glob, os
from multiprocessing import shared_memory
def total(tensor):
    dist.all_reduce(tensor)
    open(f"/tmp/left{os.getpid()}", "w").close(), open(f"left{os.getpid()}", "w").close()
    shared_memory.SharedMemory(f"left{os.getpid()}", create=True, size=8)
    return tensor
"""
    finds = """
import glob
def mean(tensor):
    if left := glob.glob("/tmp/left*") + glob.glob("left*") + glob.glob("/dev/shm/*left*"):
        raise ValueError(left)
    dist.all_reduce(tensor)
    return tensor / dist.get_world_size()
"""
    assert judged(checks, total=remembers, mean=finds).score == 5


def test_a_judge_that_comes_to_no_end_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("autograder.judging.request._SPARE_S", -1)
    with pytest.raises(RuntimeError, match=r"the judge was not done after 0 s.*--jobs"):
        judge(
            JudgeRequest(checks=write_checks(tmp_path), cells=[("total", TOTAL), ("mean", MEAN)], call_s=1, total_s=1)
        )
