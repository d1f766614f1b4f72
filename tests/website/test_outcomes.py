"""The home page's table of what each week gives, and of the hours that it takes."""

import re
import sys
from dataclasses import replace

import pytest
from repository import ROOT

sys.path.append(str(ROOT / "website"))

import made_pages

from autograder.authoring.scripts import parse

WEEKS = sorted((ROOT / "weeks").glob("week*.py"))


@pytest.fixture(scope="module")
def rows():
    table = made_pages.outcomes(ROOT, [parse(week) for week in WEEKS]).splitlines()
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table[2:]]


def test_each_week_says_what_its_reader_can_do_afterwards(rows):
    *weeks, total = rows
    assert len(weeks) == len(WEEKS) == 15
    assert all(len(row[1].split()) > 15 and "lab" in row[2] for row in weeks)
    hours = [float(row[3].removesuffix(" h")) for row in rows]
    assert hours[-1] == pytest.approx(sum(hours[:-1]), abs=2) and total[0] == "all weeks and labs"


def test_the_hours_are_those_of_the_sample_syllabus(rows):
    page = (ROOT / "website" / "pages" / "teaching.md").read_text(encoding="utf-8")
    said = re.findall(r"^\| (\d+) \| \d+ \| \d+ \| \| (\d+) \|", page, re.M)  # weeks with a lab and without a project
    assert len(said) > 5
    for week, hours in said:
        assert float(rows[int(week) - 1][3].removesuffix(" h")) == pytest.approx(int(hours), abs=0.5), week


def test_a_lesson_without_such_a_sentence_is_named():
    script = parse(WEEKS[0])
    silent = replace(script, cells=[cell for cell in script.cells if "Afterwards you can" not in cell.source])
    with pytest.raises(AssertionError, match=r"week01.* does not say what its reader can do afterwards"):
        made_pages.outcomes(ROOT, [silent])
