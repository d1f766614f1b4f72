"""The judge: a process that runs a lab's hidden checks against a student in a sandbox, and never imports student code.

`judge(...)` has it forked and returns its report; `main` runs in it.
"""

from __future__ import annotations

import base64
import hashlib
import os
import resource
import secrets
import subprocess
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from autograder.judging.checks.points import Check, PartlyHeld
from autograder.judging.report import CheckResult, Drawing, Outcome, Report
from autograder.sandbox import Tier, gpus, obstacle, zygote
from worldsize.check import CheckFailed, Drawn

_PYTEST_ENV = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
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
_MEMORY_BYTES = 768 << 20  # that a judge may fill beyond what it begins with: submissions decide what comes to it
_STACK_BYTES = 1 << 20  # of a thread, eight times less than usual: programs may open hundreds of connections
_UNREADABLE = "Expected a result that this check can read; got something else."
_SPARE_S = 60  # for the judge's own work beside the student's
_MAX_MESSAGE_CHARS = 8000
_MAX_PICTURE_BYTES = 200_000
_MAX_PICTURES_BYTES = 400_000  # of one submission: a page of feedback stays below a megabyte


class Request(BaseModel):
    """A request to a judge: the checks and the student's code, what it may use, and what inputs are drawn from."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    checks: Path
    cells: list[tuple[str, str]]
    preload: list[str]
    call_s: float
    total_s: float
    allow_untrusted: bool
    seed: int
    programs: dict[str, str]
    references: dict[str, str]
    devices: list[str]
    only: list[str] | None
    sandbox: dict[str, int]
    hidden: list[str]


def judge(
    checks: Path,
    cells: Sequence[tuple[str, str]],
    *,
    preload: Sequence[str] = (),
    call_s: float = 15,
    total_s: float = 120,
    allow_untrusted: bool = False,
    seed: int | None = None,
    programs: Mapping[str, str] | None = None,
    references: Mapping[str, str] | None = None,
    granted: Sequence[str] = (),
    only: Collection[str] | None = None,
    sandbox: Mapping[str, int] | None = None,
    hidden: Sequence[str] = (),
) -> Report:
    """The report on a student's cells, given as (name, source), by the hidden checks in a file.

    `preload` names modules that the lab itself imports. `call_s` bounds one run of student code and `total_s` all of
    them, in seconds. Inputs are drawn from `seed`, a fresh and secret one by default. `programs` are the sources of
    files that the student handed in beside the notebook, by name, and `references` our own solutions to them. `granted`
    are the GPUs that the sandbox shows, named as in CUDA_VISIBLE_DEVICES. `only` names the checks to try, by default
    all. `sandbox` changes fields of `autograder.sandbox.Limits`; nothing in `hidden` folders can be read inside.

    Raises:
        RuntimeError: the judge itself broke, or did not finish; nothing is known about the submission.
    """
    with tempfile.TemporaryDirectory(prefix="judge-", dir=zygote.shared(preload).scratch) as folder:
        path, report = Path(folder, "request.json"), Path(folder, "report.json")
        request = Request(
            checks=checks.resolve(),
            cells=list(cells),
            preload=list(preload),
            call_s=call_s,
            total_s=total_s,
            allow_untrusted=allow_untrusted,
            seed=secrets.randbits(48) if seed is None else seed,
            programs=dict(programs or {}),
            references=dict(references or {}),
            devices=gpus.devices_of(granted),
            only=None if only is None else sorted(only),
            sandbox=dict(sandbox or {}),
            hidden=[str(checks.resolve().parent), *hidden],
        )
        path.write_text(request.model_dump_json())
        said = _run_judge(path, report, preload, granted, total_s + _SPARE_S)
        if not report.exists():
            raise RuntimeError(f"the judge broke before it could report:\n{said[-4000:]}")
        return Report.model_validate_json(report.read_text())


def _run_judge(request: Path, report: Path, preload: Sequence[str], granted: Sequence[str], timeout_s: float) -> str:
    """The output of a judge in a process of its own.

    Raises:
        RuntimeError: it did not finish, or there was no room for it.
    """
    with tempfile.TemporaryFile() as output:
        env = {**environment(granted), **_PYTEST_ENV}
        judging = zygote.shared(preload).call(
            "autograder.judging.judge.judge:main", [str(request), str(report)], env, output.fileno()
        )
        try:
            judging.wait(timeout_s)
        except subprocess.TimeoutExpired:
            reason = f"the judge was not done after {timeout_s:g} s, of which {_SPARE_S:g} s are its own"
            raise RuntimeError(f"{reason}; judge fewer at once (--jobs), or look for a check that takes long") from None
        finally:
            judging.kill()
            judging.close()
        output.seek(0)
        return output.read().decode(errors="replace")


def environment(granted: Sequence[str]) -> dict[str, str]:
    """The environment of a process that judges or measures: it sees the GPUs that its jail shows, and no others."""
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(granted), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    return {**os.environ, **visible, "PYTHONDONTWRITEBYTECODE": "1"}


def refuse_weak_walls(tier: Tier, is_allowed: bool) -> None:
    """Raise SystemExit unless student code may run behind these walls.

    Raises:
        SystemExit: they are too weak for a final grade, and nobody has allowed that.
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
    from autograder.judging.judge.student import Student

    request = Request.model_validate_json(Path(request_path).read_bytes())
    start_s = time.monotonic()
    _limit_memory()
    student = Student(
        request.cells,
        request.preload,
        request.call_s,
        request.total_s,
        programs=request.programs,
        references=request.references,
        devices=request.devices,
        sentences=forms_raised(request.checks.read_text(encoding="utf-8")),
        limits=request.sandbox,
        hidden=request.hidden,
    )
    try:
        refuse_weak_walls(student.tier, request.allow_untrusted)
        session = _Session(student, request.seed, request.only)
        torch.set_num_threads(1)  # small tensors, and judges side by side
        ended = pytest.main([*_OPTIONS, *_NAMES, *_rooted(request.checks)], plugins=[session])
        if ended not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            raise SystemExit(f"The checks could not all be tried ({ended!s}); see pytest's output above.")
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
    """The arguments that show pytest this file alone: otherwise it would list every folder above."""
    return [f"--rootdir={checks.parent}", str(checks)]


class _Session:
    """A pytest plugin that gives checks their fixtures and records how each one ended."""

    def __init__(self, student: Any, seed: int, only: Collection[str] | None) -> None:
        self._student, self._seed, self._only = student, seed, only
        self._left_bytes = _MAX_PICTURES_BYTES
        self._num_returned = 0  # when the check began
        self._causes: dict[str, CheckResult] = {}  # for a check that did not hold, the one to fix first
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
        items[:] = [item for item in items if self._only is None or item.name in self._only]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self._num_returned = self._student.num_returned
        causes = [self._causes[need] for need in _check_of(item).needs if need in self._causes]
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

    def _note(self, item: pytest.Item, result: CheckResult, error: BaseException | None) -> None:
        if isinstance(error, CheckFailed) and error.picture:
            result.picture, excuse = _draw(error.picture, min(self._left_bytes, _MAX_PICTURE_BYTES))
            result.message += excuse
            self._left_bytes -= len(base64.b64decode(result.picture.png)) if result.picture else 0
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
    """True for an error of the check itself: it may come from a value that ranks have forged, and earns nothing.

    An error inside a run is the engine's, unless the judge's memory was too small for what came.
    """
    from autograder.judging.judge import student

    frames = traceback.walk_tb(error.__traceback__) if error else ()
    is_of_engine = any(frame.f_code.co_filename == student.__file__ for frame, _ in frames)
    return isinstance(error, MemoryError) or (isinstance(error, Exception) and not is_of_engine)


def _draw(picture: Callable[[], Drawn], limit_bytes: int) -> tuple[Drawing | None, str]:
    """The picture of a failure, or None and a sentence that says why there is none."""
    try:
        drawn = picture()
        png, alt = drawn.png(), _storable(drawn.alt)
    except Exception:  # it draws what a student's code returned: if that fails, the grader is not at fault
        return None, "\n(This could not be drawn.)"
    if len(png) > limit_bytes:
        return None, f"\n(The picture is left out: it has {len(png) // 1000} kB, {limit_bytes // 1000} were left.)"
    return Drawing(png=base64.b64encode(png).decode(), alt=alt), ""


def _storable(message: str) -> str:
    """The message cut to a readable length, without what no file can hold: a student may have written it."""
    text = message.encode(errors="replace").decode()
    return text if len(text) <= _MAX_MESSAGE_CHARS else text[:_MAX_MESSAGE_CHARS] + " ..."


def _explain(error: BaseException | None) -> tuple[Outcome, str]:
    from autograder.judging.judge.failures import StudentFailed

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
