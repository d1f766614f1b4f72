"""Archives as Moodle, Canvas and Blackboard give them: every file lands with its student, by one roster."""

import zipfile
from datetime import datetime
from pathlib import PurePath
from zoneinfo import ZoneInfo

import pytest
from commands import run
from tiny_project import NAME, PROGRAM, make_course

from autograder.submissions.collecting.lms_names import HandIn, UnknownStudent, read_name
from autograder.tables.collected import read_collected
from autograder.tables.roster import Student

BERLIN = ZoneInfo("Europe/Berlin")
ROSTER = [
    Student("ada", "Lovelace, Ada", lms_id="4711", team="red"),
    Student("jo_o", "José O'Brien-Ott", lms_id="4712", team="red"),
    Student("o", "Kim Lee", lms_id="4713"),
    Student("kim2", "Lee Kim", lms_id="4714"),
]


@pytest.mark.parametrize(
    ("system", "path", "found"),
    [
        ("moodle", "Ada Lovelace_12345_assignsubmission_file/lab01.ipynb", HandIn("ada", "lab01.ipynb")),
        (
            "moodle",
            "all/Lovelace Ada_12345_assignsubmission_file_/sub/lab01 (1).ipynb",
            HandIn("ada", "lab01 (1).ipynb"),
        ),
        ("moodle", "Jose OBrien-Ott_12_assignsubmission_file_my_lab.ipynb", HandIn("jo_o", "my_lab.ipynb")),
        ("moodle", "red_77_assignsubmission_file/train.py", HandIn("ada", "train.py")),
        ("moodle", "Ada Lovelace_12345_assignsubmission_onlinetext/onlinetext.html", None),
        ("canvas", "lovelaceada_4711_88_lab_01_02_x.ipynb", HandIn("ada", "lab_01_02_x.ipynb")),
        ("canvas", "all/obrien_ottjosé_LATE_4712_88_train-1.py", HandIn("jo_o", "train.py", is_late=True)),
        ("canvas", "lovelaceada_4711_88_lab01-1.ipynb", HandIn("ada", "lab01.ipynb")),
        ("canvas", "lovelaceada_4711_88_work-1.txt", HandIn("ada", "work-1.txt")),
        ("canvas", "lovelaceada_4711_text.html", None),
        (
            "blackboard",
            "Lab_1_jo_o_attempt_2026-11-20-18-30-59_lab01.ipynb",
            HandIn("jo_o", "lab01.ipynb", datetime(2026, 11, 20, 17, 30, 59)),
        ),
        (
            "blackboard",
            "Lab 1_ADA_attempt_2026-07-20-18-30-59_lab01.ipynb",
            HandIn("ada", "lab01.ipynb", datetime(2026, 7, 20, 16, 30, 59)),
        ),
        ("blackboard", "Lab 1_ada_attempt_2026-11-20-18-30-59.txt", None),
        # a student's own names for files and folders name nobody else, and no time
        (
            "moodle",
            "Jose OBrien-Ott_12_assignsubmission_file/Ada Lovelace_1_assignsubmission_file/lab01.ipynb",
            HandIn("jo_o", "lab01.ipynb"),
        ),
        (
            "moodle",
            "all/Jose OBrien-Ott_12_assignsubmission_file/Ada Lovelace_1_assignsubmission_file_lab01.ipynb",
            HandIn("jo_o", "Ada Lovelace_1_assignsubmission_file_lab01.ipynb"),
        ),
        (
            "canvas",
            "ottjosé_4712_88_lovelaceada_4711_89_lab01.ipynb",
            HandIn("jo_o", "lovelaceada_4711_89_lab01.ipynb"),
        ),
        (
            "canvas",
            "all_1_2_x/ottjosé_4712_88_a/lovelaceada_4711_1_lab01.ipynb",
            HandIn("jo_o", "lovelaceada_4711_1_lab01.ipynb"),
        ),
        (
            "blackboard",
            "all/Lab 1_o_attempt_2026-11-20-18-30-59_a/Lab 1_ada_attempt_2026-01-01-00-00-00_lab01.ipynb",
            HandIn("o", "Lab 1_ada_attempt_2026-01-01-00-00-00_lab01.ipynb", datetime(2026, 11, 20, 17, 30, 59)),
        ),
        (
            "blackboard",
            "Lab 1_o_attempt_2026-11-20-18-30-59_x_ada_attempt_2026-01-01-00-00-00_lab01.ipynb",
            HandIn("o", "x_ada_attempt_2026-01-01-00-00-00_lab01.ipynb", datetime(2026, 11, 20, 17, 30, 59)),
        ),
    ],
)
def test_a_name_says_whose_which_and_when(system, path, found):
    assert read_name(system, PurePath(path), ROSTER, BERLIN) == found


@pytest.mark.parametrize(
    ("system", "path", "reason"),
    [
        ("moodle", "Kim Lee_5_assignsubmission_file/lab01.ipynb", "o, kim2 may be 'Kim Lee'"),
        ("moodle", "Eve Adams_5_assignsubmission_file/lab01.ipynb", "nobody on the roster is 'Eve Adams'"),
        ("canvas", "adamseve_99_88_lab01.ipynb", "nobody on the roster is '99'"),
        ("canvas", "anon_ab3cd_88_lab01.ipynb", "the assignment is graded anonymously in Canvas"),
        ("canvas", "all/LATE_anon_ab3cd_88_lab01.ipynb", "the assignment is graded anonymously in Canvas"),
        # five characters, which may all be digits; the second number is that of the file
        ("canvas", "anon_4711_88_lab01.ipynb", "the assignment is graded anonymously in Canvas"),
        ("blackboard", "Lab 1_eve_attempt_2026-11-20-18-30-59_lab01.ipynb", "nobody on the roster is 'Lab 1_eve'"),
    ],
)
def test_who_is_nobody_or_several_is_refused(system, path, reason):
    with pytest.raises(UnknownStudent, match=reason):
        read_name(system, PurePath(path), ROSTER, BERLIN)


CLASS = "id,name,lms id\nada,Ada Lovelace,4711\nben,Ben Odd,4712\ncy,Cy Young,4713\n"
MOODLE = {
    "Ada Lovelace_1_assignsubmission_file/report.ipynb": b"ada",
    f"Ada Lovelace_1_assignsubmission_file/{PROGRAM}": b"ada's",
    f"Ada Lovelace_1_assignsubmission_file/old/{PROGRAM}": b"older",
    "Ben Odd_2_assignsubmission_file/__MACOSX/._report.ipynb": b"no notebook",
    "Eve Adams_3_assignsubmission_file/report.ipynb": b"eve",
}
CANVAS = {
    "lovelaceada_4711_900_report-2.ipynb": b"ada",
    f"lovelaceada_4711_901_{PROGRAM[:-3]}-1.py": b"ada's",
    "oddben_LATE_4712_902_report.ipynb": b"ben",
    "adamseve_99_903_report.ipynb": b"eve",
}
BLACKBOARD = {
    "Project_ada_attempt_2026-11-20-12-00-00_report.ipynb": b"first",
    "Project_ada_attempt_2026-11-21-12-00-00_report.ipynb": b"ada",
    f"Project_ada_attempt_2026-11-21-12-00-00_{PROGRAM}": b"ada's",
    "Project_ada_attempt_2026-11-21-12-00-00.txt": b"Name: Ada Lovelace (ada)",
    "Project_ben_attempt_2026-11-21-13-00-00_report.ipynb": b"ben",
}


def zipped_work(system):
    """The name of a zip that a student hands in."""
    return {
        "moodle": "Cy Young_4_assignsubmission_file/work.zip",
        "canvas": "youngcy_4713_904_work.zip",
        "blackboard": "Project_cy_attempt_2026-11-22-12-00-00_work.zip",
    }[system]


@pytest.mark.parametrize(("system", "names"), [("moodle", MOODLE), ("canvas", CANVAS), ("blackboard", BLACKBOARD)])
def test_zip_collect_brings_everybody_their_files(tmp_path, system, names):
    make_course(tmp_path, f"c.FileNames.system, c.FileNames.time_zone = {system!r}, 'Europe/Berlin'\n")
    (tmp_path / "roster.csv").write_text(CLASS)
    archive = tmp_path / "downloaded" / NAME / "archive"
    archive.mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "work.zip", "w") as file:
        file.writestr("mine/report.ipynb", b"cy")
        file.writestr(f"mine/{PROGRAM}", b"cy's")
    with zipfile.ZipFile(archive / "all.zip", "w") as file:
        for name, content in names.items():
            file.writestr(name, content)
        file.write(tmp_path / "work.zip", zipped_work(system))
    done = run(tmp_path, "nbgrader", "zip_collect", NAME)
    assert done.returncode == 0, done.stdout
    there = {path.parts[-3]: path for path in tmp_path.glob(f"submitted/*/{NAME}/*.ipynb")}
    assert {student: path.read_bytes() for student, path in there.items()} == {
        one: one.encode() for one in ("ada", "cy", *([] if system == "moodle" else ["ben"]))
    }
    for student in ("ada", "cy"):
        assert (tmp_path / "submitted" / student / NAME / PROGRAM).read_bytes() == f"{student}'s".encode()
    times = read_collected(tmp_path)
    if system == "blackboard":
        assert times[NAME, "ada"] == datetime(2026, 11, 21, 11) and times[NAME, "cy"] == datetime(2026, 11, 22, 11)
    else:
        assert times == {} and "is left out: nobody on the roster is" in done.stdout
    request = tmp_path / "submitted/ada" / NAME / "regrade.md"
    request.write_text("# why")
    again = run(tmp_path, "nbgrader", "zip_collect", NAME, "--force")
    assert again.returncode == 0 and request.read_text() == "# why", "an archive that comes again takes no request away"
    if system == "canvas":
        assert "ben: late, but the name does not say when: write the time into collected.csv" in done.stdout


@pytest.mark.parametrize(
    ("system", "archive", "inside"),
    [
        ("canvas", "youngcy_4713_904_x.tar.zip", "lovelaceada_4711_1_report.ipynb"),
        (
            "blackboard",
            "Lab_cy_attempt_2026-11-22-12-00-00_x.tar.zip",
            "Lab_ada_attempt_2026-11-29-00-00-00_report.ipynb",
        ),
    ],
)
def test_no_ending_of_an_archive_lets_a_student_hand_in_for_another(tmp_path, system, archive, inside):
    make_course(tmp_path, f"c.FileNames.system = {system!r}\n")
    (tmp_path / "roster.csv").write_text(CLASS)
    folder = tmp_path / "downloaded" / NAME / "archive"
    folder.mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "work.zip", "w") as file:
        file.writestr(inside, b"cy's")
    with zipfile.ZipFile(folder / "all.zip", "w") as file:
        file.write(tmp_path / "work.zip", archive)
    done = run(tmp_path, "nbgrader", "zip_collect", NAME)
    assert done.returncode == 0, done.stdout
    assert [path.name for path in (tmp_path / "submitted").iterdir()] == ["cy"]


def test_an_unknown_user_name_is_not_the_student_whose_id_ends_it(tmp_path):
    make_course(tmp_path, "c.FileNames.system = 'blackboard'\n")
    (tmp_path / "roster.csv").write_text("id\nada\nsmith\n")
    archive = tmp_path / "downloaded" / NAME / "archive"
    archive.mkdir(parents=True)
    for number, who in enumerate(("ada", "j_smith", "smith", "o_smith")):
        (archive / f"Lab 1_{who}_attempt_2026-11-20-12-00-0{number}_report.ipynb").write_text(who)
    # what a student calls a file is not the assignment's name
    (archive / "Lab 1_ada_attempt_2026-11-20-12-00-00_Lab_ada_attempt_2026-11-20-12-00-00_x.ipynb").write_text("x")
    done = run(tmp_path, "nbgrader", "zip_collect", NAME)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "submitted/smith" / NAME / "report.ipynb").read_text() == "smith"
    assert (tmp_path / "submitted/ada" / NAME / "report.ipynb").read_text() == "ada"
    for who in ("j_smith", "o_smith"):
        assert f"is left out: nobody on the roster is 'Lab 1_{who}'" in done.stdout


@pytest.mark.parametrize(
    ("system", "zone", "sentence"),
    [
        ("blackboard", "Berlin", "'Berlin' is not a time zone; write one such as Europe/Berlin"),
        ("mooodle", "UTC", "c.FileNames.system: 'mooodle' is not one of moodle, canvas, blackboard."),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_in_a_sentence(tmp_path, system, zone, sentence):
    make_course(tmp_path, f"c.FileNames.system, c.FileNames.time_zone = {system!r}, {zone!r}\n")
    archive = tmp_path / "downloaded" / NAME / "archive"
    archive.mkdir(parents=True)
    (archive / "Project_ada_attempt_2026-11-20-12-00-00_report.ipynb").write_text("{}")
    done = run(tmp_path, "nbgrader", "zip_collect", NAME)
    assert done.returncode != 0 and sentence in done.stdout and "Traceback" not in done.stdout
