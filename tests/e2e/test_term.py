"""A term played through by an instructor's commands: every number is right, and no hand grade is lost.

The judge looks for words in the source: real judging is tested elsewhere, and here only what becomes of its points.
"""

import csv
import json
import re

import pytest
from tiny_term import ABSENT, DAMAGED, LABS, NUM_QUESTIONS, Term, name, penalty, play, points_by_hand, score

from autograder.judging.report import format_points

# all of it is one fixture
pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200), pytest.mark.nightly("minutes; `make term` plays it")]
GRADED = (*LABS, "quiz_two", "final_exam")


@pytest.fixture(scope="module")
def term(tmp_path_factory):
    term = Term(tmp_path_factory.mktemp("term"), num_students=40)
    play(term)
    return term


def read(path, key):
    with open(path, newline="", encoding="utf-8-sig") as file:
        return {row[key]: row for row in csv.DictReader(file)}


def rows(path):
    with open(path, newline="", encoding="utf-8-sig") as file:
        return {(row["assignment"], row["student_id"]): row for row in csv.DictReader(file)}


@pytest.mark.parametrize("file", ["grades-csv.csv", "grades.csv"])
def test_every_score_is_the_one_that_arithmetic_gives(term, file):
    found = rows(term.root / file)
    assert len(found) == 5 * term.num_students
    for assignment in GRADED:
        for number in term.numbers:
            row = found[assignment, name(number)]
            assert float(row["score"]) == pytest.approx(score(number, assignment)), (assignment, number)
            absent = (assignment, number) == ("lab01", ABSENT)
            assert row["status"] == ("not submitted" if absent else "graded")


def test_lateness_counts_with_grace_extensions_and_the_cap(term):
    found = rows(term.root / "grades-csv.csv")
    taken = {n: float(found["lab02", name(n)]["late_submission_penalty"]) for n in range(1, 7)}
    raw = {n: float(found["lab02", name(n)]["raw_score"]) for n in range(1, 7)}
    share = {n: round(taken[n] / raw[n], 6) for n in taken}
    assert share == {1: 0, 2: 0.1, 3: 0.2, 4: 0, 5: 0.2, 6: 0.5}
    assert all(taken[n] == pytest.approx(penalty(n, raw[n])) for n in taken)
    assert found["lab02", name(4)]["duedate"] == "2020-11-22 12:00:00"


def test_no_point_by_hand_was_lost_when_the_checks_were_corrected(term):
    found = rows(term.root / "grades-csv.csv")
    said = [text for command, text in zip(term.typed, term.said, strict=True) if command[1:] == ("grade", "lab03")]
    assert len(said) == 2 and "Answers to grade by hand" in said[0] and "Answers to grade by hand" not in said[1]
    assert "has changed since it was graded by hand" not in said[1]
    before, after = (dict(re.findall(r"^ *(s\d\d) +([\d.]+) ", text, re.MULTILINE)) for text in said)
    with_mean = [n for n in term.numbers if n % 4 != 1]
    assert all(float(after[name(n)]) - float(before[name(n)]) == 2 for n in with_mean), "the check was wrong to them"
    for number in term.numbers:
        code = {0: 5, 1: 3, 2: 2, 3: 5}[number % 4]
        assert float(found["lab03", name(number)]["raw_score"]) == code + points_by_hand(number)


def test_other_systems_get_the_same_numbers(term):
    canvas = read(term.root / "grades-canvas.csv", "SIS Login ID")
    moodle = read(term.root / "grades-moodle.csv", "Username")
    for number in term.numbers:
        for assignment in GRADED:
            absent = (assignment, number) == ("lab01", ABSENT)
            for row in (canvas[name(number)], moodle[name(number)]):
                assert (
                    row[assignment] == ""
                    if absent
                    else float(row[assignment]) == pytest.approx(score(number, assignment))
                )
            results = term.root / "gradescope" / assignment / name(number) / "results.json"
            if absent:
                assert not results.exists()
            else:
                assert json.loads(results.read_text())["score"] == pytest.approx(score(number, assignment))
    assert (canvas["s03"]["ID"], canvas["s03"]["Section"]) == ("9003", "1")
    assert (moodle["s03"]["First name"], moodle["s03"]["Email address"]) == ("First", "s03@example.org")


def test_the_quiz_on_paper_is_marked_and_extra_time_is_on_its_form(term):
    marks = read(term.root / "marks/scores.csv", "student")
    assert len(marks) == term.num_students
    for number in term.numbers:
        right = number % (NUM_QUESTIONS + 1)
        # who answered nothing has handed nothing in
        assert marks[name(number)]["points"] == (format_points(right) if right else "")
    assert "extra time       minutes: s03 " in (term.root / "one/summary.txt").read_text()


def test_feedback_and_checklists_say_the_same(term):
    for assignment in GRADED:
        pages = sorted(term.root.glob(f"feedback/*/{assignment}/{assignment}.html"))
        assert len(pages) == term.num_students - (assignment == "lab01")
    with open(term.root / "progress.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 5 * term.num_students
    for line in lines:
        number = int(line["student"][1:])
        assert float(line["score"]) == pytest.approx(score(number, line["assignment"]))


def test_the_status_said_what_was_to_be_done_and_at_the_end_nothing_is(term):
    first, last = (text for command, text in zip(term.typed, term.said, strict=True) if command[1] == "status")
    # by last names, where "Last10" comes before "Last2"
    assert "lab02, answers to be read: s00, s01, s" in first and "final_exam, answers to be read: s01, s" in first
    for text in (first, last):
        assert f"lab01, damaged files: {name(DAMAGED)};" in text
    assert "to be read:" not in last and "to be graded:" not in last


def test_an_instructor_types_few_commands(term):
    assert (
        len(term.typed) == 38
    )  # those of docs/term.md, for three labs, two quizzes and an exam; the class's size is no matter


def test_the_log_of_gradings_is_whole(term):
    assert re.search(rf"{6 * term.num_students - 1} entries, intact", term.said[-1])
