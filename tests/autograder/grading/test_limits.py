"""Limits of the sandbox by lab: from the configuration through the judge to the kernel, and into the audit log."""

from pathlib import Path

import pytest
from tiny_lab import CHECKS, judged, message, needs_jail, write_checks
from traitlets.config import Config

from autograder.grading import audit_log
from autograder.grading.preprocessor import Grade
from autograder.sandbox import WITH_GPUS, Limits, limits_with

SEES = """
import resource
def total(tensor):
    limits = [resource.getrlimit(one)[0] for one in (resource.RLIMIT_NOFILE, resource.RLIMIT_CPU, resource.RLIMIT_DATA)]
    raise BufferError if limits == WANTED else KeyError
"""


def grade(**settings):
    return Grade(config=Config({"Grade": settings}))


@needs_jail
def test_a_labs_own_limits_hold_in_its_sandbox(tmp_path):
    checks = write_checks(tmp_path / "course", CHECKS)
    limits = grade(limits_of={"lab12": {"cpu_s": 77, "memory_bytes": 3 << 30}}).limits(Path("lab12"))
    for own, wanted in (
        (limits.sandbox, [1024, 77, 3 << 30]),
        ({}, [1024, Limits().cpu_s, Limits().memory_bytes]),
    ):
        report = judged(checks, total=SEES.replace("WANTED", str(wanted)), sandbox=own)
        assert "BufferError" in message(report, "check_total_sums")


def test_what_is_not_changed_is_as_usual():
    assert limits_with({}) == Limits() and limits_with({}, has_gpus=True) == WITH_GPUS
    assert limits_with({"num_processes": 4096}).num_processes == 4096
    assert limits_with({"num_processes": 4096}, has_gpus=True).memory_bytes == WITH_GPUS.memory_bytes
    assert grade(limits_of={"lab12": {"cpu_s": 77}}).limits(Path("lab01")).sandbox == {}


@pytest.fixture
def lab(tmp_path):
    """A function that writes the settings of a lab and returns the folder of its solution."""

    def written(text):
        (folder := tmp_path / "lab12").mkdir()
        (folder / "lab.toml").write_text(text)
        return folder

    return written


def test_a_lab_has_limits_of_its_own_and_the_configuration_comes_before_them(lab):
    source = lab("call_s = 60\ntotal_s = 600\nnum_gpus = 2\nlimits = { num_processes = 4096, cpu_s = 7 }\n")
    usual, changed = grade(), grade(call_s_of={"lab12": 70}, limits_of={"lab12": {"cpu_s": 9}}, num_gpus={"lab12": 0.5})
    limits = usual.limits(source)
    assert (limits.call_s, limits.total_s, usual.gpus(source)) == (60, 600, 2)
    assert limits.sandbox == {"num_processes": 4096, "cpu_s": 7}
    limits = changed.limits(source)
    assert (limits.call_s, limits.total_s, changed.gpus(source)) == (70, 600, 0.5)
    assert limits.sandbox == {"num_processes": 4096, "cpu_s": 9}
    elsewhere = source.with_name("lab01")
    limits = grade(call_s=20, call_s_of={"lab12": 70}).limits(elsewhere)
    assert (limits.call_s, limits.total_s, limits.sandbox, usual.gpus(elsewhere)) == (20, 120, {}, 0)


def test_an_impossible_limit_of_a_lab_is_refused(lab):
    with pytest.raises(ValueError, match=r"limits in lab12/lab\.toml names 'processes'; a sandbox's limits are"):
        grade().limits(lab("limits = { processes = 4096 }"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"processes": 4096}, r"c\.Grade\.limits_of\['lab12'\] names 'processes'; a sandbox's limits are memory_bytes"),
        ({"num_processes": "4096"}, "sets num_processes to '4096'; it must be a whole number, 1 or more"),
        ({"cpu_s": 0}, "sets cpu_s to 0"),
        ({"memory_bytes": True}, "sets memory_bytes to True"),
        ({"is_address_space_limited": 2}, "sets is_address_space_limited to 2; it is True or False"),
    ],
)
def test_a_limit_that_cannot_be_set_is_refused(changes, words):
    with pytest.raises(ValueError, match=words):
        grade(limits_of={"lab12": changes}).limits(Path("lab12"))


def test_an_entry_of_the_audit_log_from_before_keeps_its_hash():
    usual = audit_log.RecordedLimits(call_s=15, total_s=120, allow_untrusted=False)
    assert usual.model_dump() == {"call_s": 15, "total_s": 120, "allow_untrusted": False}
    changed = usual.model_copy(update={"sandbox": {"num_processes": 4096}})
    assert audit_log.RecordedLimits.model_validate_json(changed.model_dump_json()) == changed
    assert changed.model_dump()["sandbox"] == {"num_processes": 4096}
