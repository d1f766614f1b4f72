"""The judge: a process that runs a lab's hidden checks against a student in a sandbox, and never imports student code.

`judge(...)` starts it and returns its report; `python -m autograder.judge REQUEST REPORT` is that process.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from autograder.checks import Check
from autograder.sandbox import obstacle
from autograder.verdict import CheckResult, Outcome, Report
from worldsize.check import CheckFailed

_PYTEST_ENV = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
_SPARE_S = 60  # for the judge's own work beside the student's
_MAX_MESSAGE_CHARS = 8000


def judge(
    checks: Path,
    cells: Sequence[tuple[str, str]],
    *,
    preload: Sequence[str] = (),
    call_s: float = 15,
    total_s: float = 120,
    allow_untrusted: bool = False,
    seed: int | None = None,
) -> Report:
    """The report on a student's cells, given as (name, source), by the hidden checks in a file.

    `preload` names modules that the lab itself imports. `call_s` bounds one run of student code and `total_s` all of
    them, in seconds. Inputs are drawn from `seed`, a fresh and secret one by default.

    Raises:
        RuntimeError: the judge itself broke; nothing is known about the submission.
    """
    with tempfile.TemporaryDirectory(prefix="worldsize-judge-") as folder:
        request, report = Path(folder, "request.json"), Path(folder, "report.json")
        request.write_text(
            json.dumps(
                {
                    "checks": os.fspath(checks.resolve()),
                    "cells": list(cells),
                    "preload": list(preload),
                    "call_s": call_s,
                    "total_s": total_s,
                    "allow_untrusted": allow_untrusted,
                    "seed": secrets.randbits(48) if seed is None else seed,
                }
            )
        )
        done = subprocess.run(
            [sys.executable, "-m", "autograder.judge", str(request), str(report)],
            env={**os.environ, **_PYTEST_ENV, "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=total_s + _SPARE_S,
        )
        if not report.exists():
            raise RuntimeError(f"the judge broke before it could report:\n{done.stdout[-4000:]}")
        return Report.model_validate_json(report.read_text())


def main(request_path: str, report_path: str) -> None:
    """Judges the submission that the request names and writes the report."""
    from autograder.student import Student

    request = json.loads(Path(request_path).read_text())
    start_s = time.monotonic()
    student = Student(request["cells"], request["preload"], request["call_s"], request["total_s"])
    try:
        if not (student.tier.is_trusted or request["allow_untrusted"]):
            raise SystemExit(
                f"This machine gives no sandbox ({obstacle()}), so a final grade would rest on nothing. "
                "Grade on Linux with user namespaces or as root, or allow it: c.Grade.allow_untrusted = True."
            )
        session = _Session(student, request["seed"])
        options = ["-q", "--noconftest", "-p", "no:cacheprovider", "-c", os.devnull, "--import-mode=importlib"]
        names = ["-o", "python_files=checks.py", "-o", "python_functions=check_*"]
        ended = pytest.main([*options, *names, request["checks"]], plugins=[session])
        if ended not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            raise SystemExit(f"The checks could not all be tried ({ended!s}); what pytest said stands above.")
    finally:
        student.close()
    report = Report(
        checks=session.results,
        tier=str(student.tier),
        seed=request["seed"],
        duration_s=time.monotonic() - start_s,
    )
    Path(report_path).write_text(report.model_dump_json())


class _Session:
    """A pytest plugin: gives checks their fixtures and notes how each one ended."""

    def __init__(self, student: Any, seed: int) -> None:
        self._student, self._seed = student, seed
        self.results: list[CheckResult] = []

    @pytest.fixture
    def student(self) -> Any:
        return self._student

    @pytest.fixture
    def rng(self, request: pytest.FixtureRequest) -> Iterator[Any]:
        import torch

        digest = hashlib.sha256(f"{self._seed}/{request.node.name}".encode()).digest()
        yield torch.Generator().manual_seed(int.from_bytes(digest[:6], "little"))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        failed = {result.name for result in self.results if result.outcome is not Outcome.PASSED}
        if any(need in failed for need in _check_of(item).needs):
            pytest.skip()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
        report = yield
        is_outcome = call.when == "call" or (call.when == "setup" and call.excinfo is not None)
        if is_outcome or (call.when == "teardown" and call.excinfo is not None):
            self.results.append(_result(item, call))
        return report


def _check_of(item: pytest.Item) -> Check:
    return item.function.check  # type: ignore[attr-defined]


def _result(item: pytest.Item, call: pytest.CallInfo) -> CheckResult:
    check = _check_of(item)
    outcome, message = _explain(call.excinfo.value if call.excinfo else None)
    promise = " ".join((item.function.__doc__ or "").split())  # type: ignore[attr-defined]
    return CheckResult(
        name=item.name, cell=check.cell, promise=promise, points=check.points, outcome=outcome, message=_tame(message)
    )


def _tame(message: str) -> str:
    """The message cut to a length that people read, without what no file can hold: a student may have written it."""
    text = message.encode(errors="replace").decode()
    return text if len(text) <= _MAX_MESSAGE_CHARS else text[:_MAX_MESSAGE_CHARS] + " ..."


def _explain(error: BaseException | None) -> tuple[Outcome, str]:
    from autograder.student import StudentFailed

    if error is None:
        return Outcome.PASSED, ""
    if isinstance(error, pytest.skip.Exception):
        return Outcome.SKIPPED, Outcome.SKIPPED.sentence
    if isinstance(error, CheckFailed):
        return Outcome.WRONG, str(error)
    if isinstance(error, StudentFailed):
        return error.outcome, str(error)
    return Outcome.FAULT, f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
