"""What an audit found in the student's own lines, in words for feedback; no score depends on it.

The notes of an audit are made in the student's process, and read in the jail: what comes back is a claim. Of a finding
only its kind and its line are taken, where the kind has a cure and the line is one of the submission's. All that is
shown is the cure, and the line as it was submitted.
"""

from __future__ import annotations

import os
from typing import Any

from autograder.judging.judge.failures import Sources, shown_lines
from worldsize.audit.cures import CURES
from worldsize.audit.notes import EVERY, FOLDER
from worldsize.source import Line, quote

NOTES = "audit"  # the folder in the jail's /tmp
ENV = {FOLDER: os.path.join("/tmp", NOTES), EVERY: "1"}
MOST_CLAIMS = 20


def finding_in(claims: Any, sources: Sources) -> str:
    """The first of these claims that is about a line of the submission, in words; empty if there is none."""
    for claim in claims[:MOST_CLAIMS] if isinstance(claims, list) else ():
        match claim:
            case [str(kind), str(filename), int(number)] if kind in CURES:
                if lines := shown_lines([Line(filename, number, "", "")], sources):
                    return "\n".join([f'An audit of this run found "{kind}":', *quote(lines), f"Cure: {CURES[kind]}."])
    return ""
