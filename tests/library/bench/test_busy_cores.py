"""How busy a machine is: read from the cores' times, noted beside each timing of real ranks, and judged."""

from collections import namedtuple
from unittest.mock import Mock

import psutil
import pytest
from test_harness import TASK, timing

from worldsize.bench import CLASSROOM, Machine, Result, harness, machine
from worldsize.bench.harness import Planned, time_one
from worldsize.bench.machine import busy_limit_cores

Times = namedtuple("Times", "user nice system idle iowait irq softirq steal guest guest_nice")
START = Times(100, 10, 50, 900, 7, 1, 2, 3, 4, 5)


def later(**seconds):
    return START._replace(**{name: getattr(START, name) + more for name, more in seconds.items()})


def may_use(monkeypatch, cores, num=None):
    monkeypatch.setattr(machine, "cores", lambda: cores)
    monkeypatch.setattr(machine, "num_cores", lambda: num or len(cores))


@pytest.fixture
def readings(monkeypatch):
    """Where a test puts what the system says of each core, first before the pause and then after it."""
    said = []
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: said.pop(0))
    monkeypatch.setattr(machine.time, "sleep", lambda seconds: None)
    may_use(monkeypatch, [0, 1])
    return said


def test_whatever_is_not_idle_is_busy_and_guests_count_once(readings):
    first = later(user=0.04, nice=0.01, system=0.02, irq=0.01, softirq=0.01, steal=0.01, guest=0.04, idle=0.1)
    readings += [[START, START], [first, later(user=0.01, idle=0.15, iowait=0.04)]]
    assert machine.busy_cores() == pytest.approx(0.5 + 0.05)


def test_only_this_process_s_cores_count(readings, monkeypatch):
    may_use(monkeypatch, [1, 2])
    readings += [[START] * 3, [later(user=0.2), later(user=0.1, idle=0.1), later(idle=0.2)]]
    assert machine.busy_cores() == pytest.approx(0.5)


def test_cores_that_a_container_numbers_anew_are_all_its_own(readings, monkeypatch):
    may_use(monkeypatch, [6, 7])
    readings += [[START] * 2, [later(user=0.2), later(user=0.1, idle=0.1)]]
    assert machine.busy_cores() == pytest.approx(1.5)


def test_others_on_a_machine_of_which_a_container_may_use_a_part_count_by_their_share(readings, monkeypatch):
    may_use(monkeypatch, [0, 1, 2, 3], num=2)
    readings += [[START] * 4, [later(user=0.2), later(user=0.2), later(idle=0.2), later(idle=0.2)]]
    assert machine.busy_cores() == pytest.approx(1)


def test_a_clock_that_goes_back_takes_nothing_away(readings):
    readings += [[START], [later(user=0.1, idle=0.1, iowait=-0.5)]]
    assert machine.busy_cores() == pytest.approx(0.5)


@pytest.mark.parametrize("said", [[], [START, START]])
def test_where_no_time_passes_nothing_is_known(readings, said):
    readings += [said, said]
    assert machine.busy_cores() is None


@pytest.mark.parametrize("error", [PermissionError(), psutil.AccessDenied(), NotImplementedError()])
def test_where_times_cannot_be_read_nothing_is_known(monkeypatch, error):
    monkeypatch.setattr(psutil, "cpu_times", Mock(side_effect=error))
    assert machine.busy_cores() is None


@pytest.mark.parametrize(
    ("cores", "needed", "limit"),
    [(2, 1, 0.5), (2, 2, 0.5), (2, 4, 0.5), (4, 2, 1), (8, 8, 0.5), (8, 4, 2), (64, 4, 30)],
)
def test_other_work_may_have_half_of_what_the_ranks_leave_and_half_a_core(cores, needed, limit):
    assert busy_limit_cores(cores, needed) == limit


@pytest.mark.parametrize(("kind", "noted", "order"), [("real", 0.3, ["read", "run"]), ("emulated", None, ["run"])])
def test_the_machine_is_read_before_a_timing_of_real_ranks_alone(monkeypatch, kind, noted, order):
    seen = []
    monkeypatch.setattr(harness, "busy_cores", lambda: seen.append("read") or 0.3)
    program = Mock(errors=(RuntimeError,))
    monkeypatch.setattr(harness, "attempt", lambda *_: seen.append("run") or program.fail())
    program.fail.side_effect = RuntimeError("no luck")
    timed = time_one(program, TASK, Planned("strong", 2, kind, True, 0), 2, CLASSROOM)
    assert (timed.busy_cores, timed.failure, seen) == (noted, "no luck", order)


def result(*timings, num_cores=8, num_threads=1):
    described = Machine.model_construct(num_cores=num_cores)
    return Result.model_construct(machine=described, num_threads=num_threads, timings=[*timings])


def test_the_most_of_all_readings_is_known_where_one_is():
    assert (
        result(timing(busy_cores=0.2), timing(busy_cores=1.5), timing(), timing(kind="emulated")).most_busy_cores == 1.5
    )
    assert result(timing(), timing(kind="emulated")).most_busy_cores is None


def test_a_result_is_disturbed_where_one_timing_s_ranks_lacked_cores():
    few, many = timing(world_size=2, busy_cores=2.9), timing(world_size=4, busy_cores=2.1)
    assert not result(few).is_disturbed and result(few, many).is_disturbed
    assert not result(timing(world_size=4, busy_cores=2.0)).is_disturbed
    assert result(few, num_threads=2).is_disturbed
    assert not result(timing(), timing(kind="emulated")).is_disturbed


def test_a_timing_from_before_loads_were_noted_still_loads():
    fields = timing().model_dump()
    del fields["busy_cores"]
    assert type(timing()).model_validate(fields).busy_cores is None
