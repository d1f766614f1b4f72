"""The judge's main program: it runs hidden checks against a student in a sandbox, and never imports student code."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import resource
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from autograder.judging.checks.check import Check, PartlyHeld, StudentFailed
from autograder.judging.report import CheckResult, Drawing, Outcome, Report
from autograder.judging.request import JudgeRequest
from autograder.sandbox import Tier, obstacle
from worldsize.check import CheckFailed, Drawn

# a judge cannot cache rewritten assertions, and checks do not assert: they raise CheckFailed
_OPTIONS = [
    "-q",
    "--noconftest",
    "-p",
    "no:cacheprovider",
    "-c",
    os.devnull,
    "--import-mode=importlib",
    "--assert=plain",
    "-p",
    "no:logging",
]
_NAMES = ["-o", "python_files=checks.py", "-o", "python_functions=check_*"]
_MEMORY_BYTES = 768 << 20  # that a judge may allocate after its start: submissions decide what it receives
_STACK_BYTES = 1 << 20  # of a thread, eight times less than usual: programs may open hundreds of connections
_UNREADABLE = "Expected a result that this check can read; got something else."
_MAX_MESSAGE_CHARS = 8000
_MAX_PICTURE_BYTES = 200_000
_MAX_PICTURES_BYTES = 400_000  # of one submission: a page of feedback stays below a megabyte
_MAX_AUDITS = 3  # of one submission, each of a different cell: an audit repeats a run


def refuse_weak_walls(tier: Tier, is_allowed: bool) -> None:
    """Refuse to run student code in a sandbox that is too weak.

    Raises:
        SystemExit: the sandbox is too weak for a final grade, and nobody has allowed that.
    """
    if not (tier.is_trusted or is_allowed):
        raise SystemExit(
            f"The sandbox that this machine offers is too weak for final grades: {tier} ({obstacle()}). Grade on Linux "
            "as root or with user namespaces. To grade all the same, pass --allow-untrusted to autograder grade, or "
            "set c.Grade.allow_untrusted = True for nbgrader."
        )


def main(request_path: str, report_path: str) -> None:
    """Judge the submission that the request names, and write the report."""
    import torch

    from autograder.judging.judge.error_texts import forms_raised
    from autograder.judging.judge.student import SandboxedStudent

    request = JudgeRequest.model_validate_json(Path(request_path).read_bytes())
    start_s = time.monotonic()
    _limit_memory()
    student = SandboxedStudent(request, sentences=forms_raised(request.checks.read_text(encoding="utf-8")))
    try:
        refuse_weak_walls(student.tier, request.allow_untrusted)
        assert request.seed is not None
        session = _JudgePlugin(student, request.seed, request.only)
        torch.set_num_threads(1)  # small tensors, and judges side by side
        ended = pytest.main([*_OPTIONS, *_NAMES, *_rooted(request.checks)], plugins=[session])
        if ended not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            raise SystemExit(f"The checks could not all be tried ({ended!s}); see pytest's output above.")
        session.audit_failures()
    finally:
        student.close()
    report = Report(
        checks=session.results,
        tier=str(student.tier),
        seed=request.seed,
        duration_s=time.monotonic() - start_s,
    )
    Path(report_path).write_text(report.model_dump_json())


def _limit_memory() -> None:
    status = Path("/proc/self/status")
    if status.exists():
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        limit_bytes = int(lines["VmData"].split()[0]) * 1024 + _MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (limit_bytes, limit_bytes))
        threading.stack_size(_STACK_BYTES)


def _rooted(checks: Path) -> list[str]:
    """Return the arguments that restrict pytest to this file: otherwise it would list every folder above."""
    return [f"--rootdir={checks.parent}", str(checks)]


class _JudgePlugin:
    """A pytest plugin that gives checks their fixtures and records how each one ended."""

    def __init__(self, student: Any, seed: int, only: Collection[str] | None) -> None:
        self._student, self._seed, self._only = student, seed, only
        self._left_bytes = _MAX_PICTURES_BYTES
        self._num_returned, self._cell = 0, ""  # when the check began, and of it
        self._causes: dict[str, CheckResult] = {}  # for a check that did not hold, the one to fix first
        self._to_audit: dict[str, tuple[CheckResult, Any]] = {}  # of a cell: the first check that failed, and its run
        self.results: list[CheckResult] = []

    @pytest.fixture
    def student(self) -> Any:
        return self._student

    @pytest.fixture
    def rng(self, request: pytest.FixtureRequest) -> Any:
        import torch

        digest = hashlib.sha256(f"{self._seed}/{request.node.name}".encode()).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest[:6], "little"))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for module in {item.module for item in items if isinstance(item, pytest.Function)}:
            cloudpickle.register_pickle_by_value(module)  # ranks cannot import the checks
        items[:] = [item for item in items if self._only is None or item.name in self._only]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._num_returned, check = self._student.num_returned, _check_of(item)
        if check.cell != self._cell:  # checks of one cell may share a run
            self._cell, self._student.last_run = check.cell, None
        causes = [self._causes[need] for need in check.needs if need in self._causes]
        if causes:
            self._causes[item.name] = causes[0]
            pytest.skip(f"{Outcome.SKIPPED.sentence} Fix this one first: {causes[0].promise}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
        report = yield
        is_outcome = call.when == "call" or (call.when == "setup" and call.excinfo is not None)
        if is_outcome or (call.when == "teardown" and call.excinfo is not None):
            has_returned = self._student.num_returned > self._num_returned
            self._note(item, _result(item, call, has_returned), call.excinfo.value if call.excinfo else None)
        return report

    def audit_failures(self) -> None:
        """Repeat runs of failed checks with an audit, and add each finding to the message of the first one with it.

        This comes after all checks: the time that it takes is none of theirs.
        """
        found = {""}
        for result, run in list(self._to_audit.values())[:_MAX_AUDITS]:
            with contextlib.suppress(Exception):  # the feedback is then as it would be without audits
                if (finding := self._student.audited(run)) not in found:
                    found.add(finding)
                    result.message += f"\n{finding}"

    def _note(self, item: pytest.Item, result: CheckResult, error: BaseException | None) -> None:
        if isinstance(error, CheckFailed) and error.picture:
            result.picture, excuse = _draw(error.picture, min(self._left_bytes, _MAX_PICTURE_BYTES))
            result.message += excuse
            self._left_bytes -= len(base64.b64decode(result.picture.png)) if result.picture else 0
        if isinstance(error, CheckFailed) and self._student.last_run:
            self._to_audit.setdefault(result.cell, (result, self._student.last_run))
        if cause := self._causes.get(item.name):
            result.blocked_by = cause.name
        elif not result.outcome.holds:
            self._causes[item.name] = result
        self.results.append(result)


def _check_of(item: pytest.Item) -> Check:
    return item.function.check  # type: ignore[attr-defined]


def _result(item: pytest.Item, call: pytest.CallInfo, has_returned: bool) -> CheckResult:
    check = _check_of(item)
    error = call.excinfo.value if call.excinfo else None
    outcome, message = _explain(error)
    stopped_by = ""
    if outcome is Outcome.FAULT and has_returned and _may_be_of_values(error):
        outcome, message, stopped_by = Outcome.WRONG, _UNREADABLE, _storable(message)
    promise = " ".join((item.function.__doc__ or "").split())  # type: ignore[attr-defined]
    return CheckResult(
        name=item.name,
        cell=check.cell,
        promise=promise,
        points=check.points,
        outcome=outcome,
        message=_storable(message),
        share=error.share if isinstance(error, PartlyHeld) else None,
        stopped_by=stopped_by,
        may_be_external=getattr(error, "may_be_external", False),
    )


def _may_be_of_values(error: BaseException | None) -> bool:
    """Whether an error is the check's own: a forged value may have caused it, so the check earns nothing.

    An error inside a run is the engine's, unless the judge's memory was too small for what came.
    """
    from autograder.judging.judge import student

    frames = traceback.walk_tb(error.__traceback__) if error else ()
    is_of_engine = any(frame.f_code.co_filename == student.__file__ for frame, _ in frames)
    return isinstance(error, MemoryError) or (isinstance(error, Exception) and not is_of_engine)


def _draw(picture: Callable[[], Drawn], limit_bytes: int) -> tuple[Drawing | None, str]:
    """Draw a failure; return the picture, or None and a sentence that says why there is none."""
    try:
        drawn = picture()
        png, alt = drawn.png(), _storable(drawn.alt)
    except Exception:  # it draws what a student's code returned: if that fails, the grader is not at fault
        return None, "\n(This could not be drawn.)"
    if len(png) > limit_bytes:
        return (
            None,
            f"\n(The picture is left out: it has {len(png) // 1000} kB, but only {limit_bytes // 1000} kB were left.)",
        )
    return Drawing(png=base64.b64encode(png).decode(), alt=alt), ""


def _storable(message: str) -> str:
    """Shorten the message and remove invalid Unicode: a student may have written it."""
    text = message.encode(errors="replace").decode()
    return text if len(text) <= _MAX_MESSAGE_CHARS else text[:_MAX_MESSAGE_CHARS] + " ..."


def _explain(error: BaseException | None) -> tuple[Outcome, str]:
    if error is None:
        return Outcome.PASSED, ""
    if isinstance(error, pytest.skip.Exception):
        return Outcome.SKIPPED, str(error.msg)
    if isinstance(error, PartlyHeld):
        return Outcome.PARTLY, str(error)
    if isinstance(error, CheckFailed):
        return Outcome.WRONG, str(error)
    if isinstance(error, StudentFailed):
        return error.outcome, str(error)
    return Outcome.FAULT, f"{type(error).__name__}: {error}"
