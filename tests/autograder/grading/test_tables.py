"""The tables at the root of a course, to which commands add, however a person or a spreadsheet has saved them."""

import os
from datetime import datetime, timedelta

import pytest

from autograder.tables.collected import COLLECTED, note_collected, read_collected
from autograder.tables.extensions import EXTENSIONS, note_extension, read_extensions
from autograder.tables.regrades import REGRADES, note_answer, read_answers

NOON = datetime(2026, 11, 20, 12)
BEGINNINGS = {
    "as written by hand, without an end of line": ("", ",", "\n"),
    "by a spreadsheet": ("\ufeff", ";", "\r\n"),
}


def written(path, beginning, *lines):
    mark, delimiter, end = BEGINNINGS[beginning]
    path.write_bytes((mark + end.join(delimiter.join(cells) for cells in lines)).encode())


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_a_row_is_added_to_a_table_as_it_is(tmp_path, beginning):
    written(tmp_path / EXTENSIONS, beginning, ["assignment", "student", "days"], ["lab01", "zoe", "2"])
    note_extension(tmp_path, "lab01", "ada", 1.5)
    days = {student: time / timedelta(days=1) for (_, student), time in read_extensions(tmp_path).items()}
    assert days == {"zoe": 2, "ada": 1.5}

    head = ["assignment", "student", "cell", "request", "answer"]
    written(tmp_path / REGRADES, beginning, head, ["lab01", "zoe", "mean", "1f", "No."])
    note_answer(tmp_path, "lab01", "ada", "mean", "2e", "Yes; really, yes.")
    assert read_answers(tmp_path) == {
        ("lab01", "zoe", "mean", "1f"): "No.",
        ("lab01", "ada", "mean", "2e"): "Yes; really, yes.",
    }

    late = ["lab01", "zoe", "2026-11-21 12:00:00 UTC"]
    written(tmp_path / COLLECTED, beginning, ["assignment", "student", "submitted"], late)
    note_collected(tmp_path, "lab01", "ada", NOON, "a folder, in the exchange")
    assert read_collected(tmp_path) == {("lab01", "zoe"): NOON + timedelta(days=1), ("lab01", "ada"): NOON}


def test_a_row_is_added_below_an_empty_first_line(tmp_path):
    (tmp_path / EXTENSIONS).write_text(",,\nassignment,student,days\nlab01,zoe,2\n")
    note_extension(tmp_path, "lab01", "ada", 3)
    assert read_extensions(tmp_path)["lab01", "ada"] == timedelta(days=3)


def test_no_row_is_lost_where_several_commands_add_at_once(tmp_path):
    children = []
    for number in range(4):
        child = os.fork()
        if not child:
            status = 1
            try:
                for place in range(10):
                    note_extension(tmp_path, "lab01", f"s{number}{place}", 1)
                status = 0
            finally:  # the child is no second session of tests
                os._exit(status)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert len(read_extensions(tmp_path)) == 40


def test_a_table_that_a_group_shares_stays_shared(tmp_path):
    note_collected(tmp_path, "lab01", "ada", NOON, "a folder")
    (tmp_path / COLLECTED).chmod(0o664)
    note_collected(tmp_path, "lab01", "ben", NOON, "a folder")
    assert (tmp_path / COLLECTED).stat().st_mode & 0o777 == 0o664


def test_nothing_is_added_to_a_table_that_cannot_be_read(tmp_path):
    (tmp_path / EXTENSIONS).write_text(text := "assignment;student;days\nlab01;zoe;1,5,5\n")
    with pytest.raises(ValueError, match="line 2: '1,5,5' is not a number of days"):
        note_extension(tmp_path, "lab01", "ada", 1)
    assert (tmp_path / EXTENSIONS).read_text() == text


@pytest.mark.parametrize("zone", ["UTC", "+01:00", "-0500", "America/New_York", "EST"])
def test_a_time_is_read_in_its_zone(tmp_path, zone):
    hours = {"UTC": 0, "+01:00": -1}.get(zone, 5)
    (tmp_path / COLLECTED).write_text(f"assignment,student,submitted\nlab01,ada,2026-11-20 12:00:00 {zone}\n")
    assert read_collected(tmp_path) == {("lab01", "ada"): NOON + timedelta(hours=hours)}


@pytest.mark.parametrize(
    "time",
    ["2026-07-20 12:00:00 EDT", "2026-11-20 12:00:00 Europe/Berln", "2026-11-20 11:59 PM", "2026-11-30T23:59:00 PST"],
)
def test_a_time_in_no_zone_that_is_known_is_refused_and_not_taken_for_utc(tmp_path, time):
    (tmp_path / COLLECTED).write_text(f"assignment,student,submitted\nlab01,ada,{time}\n")
    with pytest.raises(ValueError, match=r"line 2: write .* such as 2026-11-30 23:59:00 UTC or .* Europe/Berlin\."):
        read_collected(tmp_path)
