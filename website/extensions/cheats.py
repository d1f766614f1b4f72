"""A cheat that failed: what a known answer tries, and what the judge says of it, graded while the site is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from autograder.authoring.known_answers import answer_path, read_answer
from autograder.grading import verify
from autograder.judging.report import CheckResult

ROOT = Path(__file__).resolve().parents[2]
_SEED = 1  # of the inputs, so that the page is the same for every build


class FailedCheat(SphinxDirective):
    """The verdict on a cheating answer, on one check of it: `{failed-cheat} lab01 cheat_name check_name`."""

    required_arguments = 3

    def run(self) -> list[nodes.Node]:
        lab, name, check = self.arguments
        folder = ROOT / "solutions" / lab
        self.env.note_dependency(answer_path(folder, f"wrong/{name}"))
        case = next(one for one in verify.cases(ROOT, lab) if one.name == f"wrong/{name}")
        (finding,) = verify.verify(ROOT, [case], seed=_SEED, use_kept=True)
        if finding.problems:
            raise self.error(finding.describe())
        report = finding.report
        (result,) = (one for one in report.checks if one.name == check)
        score = f"{report.score:g} of {report.max_score:g} points"
        return [_told(read_answer(folder, f"wrong/{name}").about, score, result)]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive."""
    app.add_directive("failed-cheat", FailedCheat)
    return {"parallel_read_safe": True}


def _told(about: str, score: str, check: CheckResult) -> nodes.definition_list:
    rows = {
        "The cheat": about,
        "What a hidden check promises": check.promise,
        "What the judge answers": check.message,
        "The score": score,
    }
    terms = [
        nodes.definition_list_item("", nodes.term(text=term), nodes.definition("", nodes.paragraph(text=text)))
        for term, text in rows.items()
    ]
    return nodes.definition_list("", *terms)
