"""Runs whose ranks are audited."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from worldsize.audit.notes import EVERY, FOLDER
from worldsize.launch.reports.result import Run, RunError

if TYPE_CHECKING:
    from worldsize.audit.report import Audit


def audited(audit: bool | int, env: Mapping[str, str], launch: Callable[[Mapping[str, str]], Run]) -> Run:
    """Launch a run with these environment variables; with `audit`, its ranks also write the notes of an audit.

    Raises:
        ValueError: `audit` is neither a truth value nor a number of steps.
        RunError: same as `launch`; its `audit` is what the ranks' notes show up to there.
    """
    if not audit:
        return launch(env)
    if not isinstance(audit, int) or audit < 1:
        raise ValueError(f"audit is {audit!r}; give True, or k to look at every k-th optimizer step")
    with tempfile.TemporaryDirectory(prefix="worldsize-audit-") as folder:
        try:
            run = launch({**env, FOLDER: folder, EVERY: str(int(audit))})
        except RunError as error:
            error.audit = _audit_of(folder)
            raise
        run.audit = _audit_of(folder)
    return run


def _audit_of(folder: str) -> Audit | None:
    """The audit of the notes in a folder; None if no rank began to write any."""
    from worldsize.audit.report import audit_of  # for runs that ask for it

    with contextlib.suppress(ValueError):
        return audit_of(folder)
    return None
