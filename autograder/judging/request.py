"""A request to a judge, and the function of the grader's process that forks a judge for it and returns the report."""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
from collections.abc import Mapping, Sequence, Set
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from autograder.judging.report import Report
from autograder.sandbox import gpus, zygote

_PYTEST_ENV = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
_SPARE_S = 60  # for the judge's own work next to the student's


class CodeUnderTest(BaseModel):
    """A student's code, and what it may use in its sandbox.

    `cells` are (name, source). `programs` are the sources of files that the student handed in with the notebook, by
    name, and `references` our own solutions to them. `preload` names modules that the lab itself imports. `call_s`
    bounds one run of student code and `total_s` all of them. `sandbox` changes fields of `autograder.sandbox.Limits`;
    nothing in `hidden` folders can be read inside, and `devices` are the GPUs that are visible there.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    cells: Sequence[tuple[str, str]] = ()
    programs: Mapping[str, str] = {}
    references: Mapping[str, str] = {}
    preload: Sequence[str] = ()
    call_s: float = 15
    total_s: float = 120
    allow_untrusted: bool = False
    sandbox: Mapping[str, int] = {}
    hidden: Sequence[str] = ()
    devices: Sequence[str] = ()


class JudgeRequest(CodeUnderTest):
    """Code to be judged by the hidden checks in a file, or by those of them that `only` names.

    Inputs are drawn from `seed`, a fresh and secret one by default.
    """

    checks: Path
    seed: int | None = None
    only: Set[str] | None = None


def judge(request: JudgeRequest, granted: Sequence[str] = ()) -> Report:
    """Have a request judged; `granted` are the GPUs that the sandbox shows, named as in CUDA_VISIBLE_DEVICES.

    Raises:
        RuntimeError: the judge itself broke, or did not finish; nothing is known about the submission.
    """
    checks = request.checks.resolve()
    complete = {
        "checks": checks,
        "hidden": [str(checks.parent), *request.hidden],
        "devices": gpus.devices_of(granted),
        "seed": secrets.randbits(48) if request.seed is None else request.seed,
    }
    with tempfile.TemporaryDirectory(prefix="judge-", dir=zygote.shared(request.preload).scratch) as folder:
        path, report = Path(folder, "request.json"), Path(folder, "report.json")
        path.write_text(request.model_copy(update=complete).model_dump_json())
        said = _run_judge(path, report, request.preload, granted, request.total_s + _SPARE_S)
        if not report.exists():
            raise RuntimeError(f"the judge crashed before it could report:\n{said[-4000:]}")
        return Report.model_validate_json(report.read_text())


def _run_judge(request: Path, report: Path, preload: Sequence[str], granted: Sequence[str], timeout_s: float) -> str:
    """Run a judge in its own process, and return its output.

    Raises:
        RuntimeError: it did not finish, or there was no room for it.
    """
    with tempfile.TemporaryFile() as output:
        env = {**environment(granted), **_PYTEST_ENV}
        judging = zygote.shared(preload).call(
            "autograder.judging.judge.main:main", [str(request), str(report)], env, output.fileno()
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
