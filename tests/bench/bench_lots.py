"""Whether a right answer keeps its full marks whatever its checks draw."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from figures import Figure, scaled
from repository import ROOT

from autograder.authoring.notebooks import find_sources
from autograder.course import lab_settings
from autograder.grading.verify import cases, verify

NUM_DRAWS = 20


def drawing_lots(scale: float) -> Iterator[Figure]:
    """Of the right answers to every lab, graded on 20 draws of all inputs, the gradings that lost a point."""
    labs = [path.parent.name for path in find_sources(ROOT).labs if not lab_settings(path.parent).has_real_jobs]
    right = [case for lab in labs for case in cases(ROOT, lab) if case.score is None]
    asked = (NUM_DRAWS * right)[: scaled(NUM_DRAWS * len(right), scale)]
    lost = [finding for finding in verify(ROOT, asked) if finding.problems]
    for finding in lost:
        print(finding.describe(), file=sys.stderr)
    how = f"{len(right)} right answers to {len(labs)} labs, {NUM_DRAWS} draws each"
    yield Figure("right answers that a draw cost points", len(lost), "", f"0 of {len(asked)}", not lost, how)
