"""What a student reads about each check: what it promises, how it ended, and what to do; never a hidden input."""

from __future__ import annotations

from collections.abc import Sequence

from jinja2 import Environment, PackageLoader

from autograder.verdict import CheckResult, Outcome

_environment = Environment(loader=PackageLoader("autograder"), autoescape=True, trim_blocks=True)
# blue, vermilion and grey are told apart by every kind of colour vision; the mark says it without colour
_COLOURS = dict.fromkeys(Outcome, "#D55E00") | {Outcome.PASSED: "#0072B2", Outcome.SKIPPED: "#767676"}
_MARKS = dict.fromkeys(Outcome, "✗") | {Outcome.PASSED: "✓", Outcome.SKIPPED: "–"}


def of_checks(results: Sequence[CheckResult]) -> str:
    """The HTML that explains the checks of one grade cell."""
    return _environment.get_template("checks.html.j2").render(
        checks=results,
        earned=sum(result.earned for result in results),
        possible=sum(result.points for result in results),
        colours=_COLOURS,
        marks=_MARKS,
        passed=Outcome.PASSED,
    )


def of_malformed(reason: str) -> str:
    """The HTML that stands in every grade cell of a file that could not be read."""
    template = "<p><strong>Malformed submission, 0 points.</strong> {{ reason }}</p>"
    return _environment.from_string(template).render(reason=reason)
