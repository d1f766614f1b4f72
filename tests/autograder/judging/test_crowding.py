"""Limits of time on a machine that does other work."""

import os
from contextlib import closing

import pytest
from tiny_lab import needs_jail

from autograder.judging.checks.check import StudentFailed
from autograder.judging.judge import student
from autograder.judging.judge.crowding import MOST, crowding
from autograder.judging.request import CodeUnderTest


@pytest.mark.parametrize(("load", "wanted"), [(0.1, 1), (2, 1), (6, 3), (100, MOST)])
def test_it_is_what_wants_to_run_for_each_core(monkeypatch, load, wanted):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    assert crowding() == wanted


@needs_jail
@pytest.mark.parametrize(("times", "left_s"), [(0.2, 1), (100, 3)])
def test_after_a_hang_the_limit_is_short_but_for_a_crowded_machine(monkeypatch, times, left_s):
    monkeypatch.setattr(student, "crowding", lambda: times)
    with closing(student.SandboxedStudent(CodeUnderTest(cells=[], preload=(), call_s=3, total_s=100))) as one:
        with pytest.raises(StudentFailed):
            one.run(hangs, world_size=1)
        assert one._call_s == left_s


@needs_jail
@pytest.mark.parametrize(("call_s", "left_s"), [(15, 5), (120, 20)])
def test_where_a_call_is_given_more_a_hang_leaves_more(call_s, left_s):
    with closing(student.SandboxedStudent(CodeUnderTest(cells=[], preload=(), call_s=call_s, total_s=900))) as one:
        assert one._after_a_hang_s == left_s


def hangs(_student):
    import time

    time.sleep(60)
