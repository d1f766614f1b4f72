"""One page has every week's numbers to remember, in order, and is out of date when a lesson changes."""

import shutil

import pytest
from repository import ROOT

from autograder.authoring.notebooks import build, out_of_date
from autograder.authoring.numbers_page import PAGE, numbers_page
from autograder.authoring.scripts import AuthoringError, read_week

WEEK = """\
# %% [markdown]
# # Week {number}. On numbers

# %% numbers_to_remember [markdown]
# ## Numbers to remember
#
# | number | threshold | from |
# |---|---|---|
# | {number}0 GB | all | section 3 |
"""


@pytest.fixture
def course(tmp_path):
    (tmp_path / "weeks").mkdir()
    for number in (2, 1):
        (tmp_path / f"weeks/week0{number}_on.py").write_text(WEEK.format(number=number))
    (tmp_path / "weeks/week03_none.py").write_text("# %% [markdown]\n# # Week 3. None\n")
    shutil.copy(ROOT / "nbgrader_config.py", tmp_path)
    return tmp_path


def test_weeks_with_numbers_have_a_section_in_order(course):
    build(course)
    text = (course / PAGE).read_text()
    assert text.startswith("# Numbers to remember\n\n")
    first = "## Week 1. On numbers\n\n| number | threshold | from |\n|---|---|---|\n| 10 GB | all | section 3 |\n"
    assert first in text and text.endswith("| 20 GB | all | section 3 |\n")
    assert text.index("Week 1.") < text.index("Week 2.") and "Week 3" not in text
    assert text.count("Numbers to remember") == 1


def test_the_page_without_any_number_is_its_introduction(tmp_path):
    assert len(numbers_page([]).splitlines()) == 5


def test_a_changed_number_makes_the_page_out_of_date(course):
    build(course)
    assert out_of_date(course) == out_of_date(course, ["week01"]) == []
    path = course / "weeks/week02_on.py"
    path.write_text(path.read_text().replace("20 GB", "30 GB"))
    assert PAGE in out_of_date(course) and PAGE in out_of_date(course, ["week01"])
    assert PAGE in build(course, ["week01"])
    assert "30 GB" in (course / PAGE).read_text()


def test_numbers_without_their_heading_are_refused(course):
    path = course / "weeks/week01_on.py"
    path.write_text(path.read_text().replace("## Numbers to remember", "## Numbers"))
    with pytest.raises(AuthoringError, match=r"week01_on\.py:4: The numbers to remember are a markdown cell"):
        read_week(path)
