"""HTML about each check for the student: its promise, its outcome, and what to do; never a hidden input."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from autograder.files import templates
from autograder.judging.report import CheckResult, Outcome, format_points

# signs that are legible without colour
_OPEN = (Outcome.SKIPPED, Outcome.FAULT, Outcome.NO_ANSWER, Outcome.NOT_WRITTEN, Outcome.BY_HAND)
_MARKS = {Outcome.PASSED: ("✓", "good"), **dict.fromkeys(_OPEN, ("–", "open"))}
_OTHER_MARKS = {True: ("◐", "part"), False: ("✗", "bad")}
# blue, vermilion and grey are distinct for every kind of colour vision, on white and on black
CSS = """\
.checks { list-style: none; margin: 0; padding: 0; }
.checks li { margin: .5em 0; padding: .3em .8em; border-left: 5px solid #D55E00; }
.checks li.good { border-color: #0072B2; }
.checks li.open { border-color: #767676; }
.checks li.part { border-left-style: double; }
.checks pre { white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere; margin: .3em 0; font-size: .95em; }
.checks img { display: block; max-width: min(100%, 42rem); height: auto; margin: .4em 0; background: white; }
"""


def mark(check: CheckResult) -> tuple[str, str]:
    """A sign for the outcome of a check, and the name of its style."""
    return _MARKS.get(check.outcome) or _OTHER_MARKS[0 < check.earned < check.points]


def of_checks(results: Sequence[CheckResult], cell: str) -> str:
    """The HTML that explains the checks of one grade cell; the id of the n-th is the cell's id with `-n` appended."""
    return _environment.get_template("checks.html.j2").render(
        checks=results,
        cell=cell,
    )


def of_malformed(reason: str) -> str:
    """The HTML for every grade cell of a file that could not be read."""
    template = "<p><strong>Malformed submission, 0 points.</strong> {{ reason }}</p>"
    return _environment.from_string(template).render(reason=reason)


def explained(markdown: str) -> Markup:
    """Markdown of the question bank as HTML, with formulas that need no script."""
    from autograder.markdown import bank_text  # only a quiz needs it

    return Markup(bank_text.html(markdown))


def styled(html: str) -> str:
    """The HTML of checks together with their styles, for pages that lack these, such as the formgrader's."""
    return f'<style>{CSS}</style>\n<div style="font-family: system-ui, sans-serif; max-width: 52em">\n{html}\n</div>'


_environment = templates()
_environment.filters |= {"points": format_points, "mark": mark, "explained": explained}
