"""Collecting from ngshare, nbgrader's exchange as a service of a JupyterHub.

It identifies users by the hub's tokens and records the time itself. Students choose the paths and contents of files.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ngshare_exchange import ExchangeCollect  # pyright: ignore[reportMissingImports]

from autograder.submissions.collecting.collectors import StudentByStudent
from autograder.submissions.collecting.exchange import ignored


class CollectFromNgshare(StudentByStudent, ExchangeCollect):
    """ngshare's collector, extended to record the time of each submission; no student can stop or mislead it."""

    student = "student_id"

    def do_copy(self, src: list[dict], dest: str) -> None:
        """Write one submission's files and record its time.

        Raises:
            OSError, ValueError: a file cannot be written; nothing is left at `dest`.
        """
        left_out = ignored(self.coursedir)
        kept = [one for one in src if not _is_ignored(one["path"], left_out)]
        try:
            super().do_copy(kept, dest)
        except BaseException:
            shutil.rmtree(dest, ignore_errors=True)  # half a submission must not be graded
            raise
        (record,) = self.src_records
        self.note_time(record["student_id"], record["timestamp"], "ngshare")

    def _get_submission(self, *which: str) -> Any:
        if not (found := super()._get_submission(*which)):
            raise RuntimeError("ngshare did not give it, for the reason above.")
        return found


def _is_ignored(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(part, pattern) for part in Path(path).parts for pattern in patterns)
