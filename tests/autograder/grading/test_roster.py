"""One roster for gradebook, quizzes and exports: what is read, what is refused, and that no import loses a grade."""

import csv
import os
import sys

import pytest
from nbgrader.api import Gradebook
from typer.testing import CliRunner

from autograder.cli import app
from autograder.tables.roster import Student, class_roster, read_file, read_roster

FULL = """\
id,name,email,section,lms id,extra time,team
ada,Ada Lovelace,ada@example.org,Mon,4711,25%,t1
noor,"Khan, Noor",noor@example.org,Tue,4712,,t1
"""


def write(folder, text, name="class.csv"):
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


@pytest.fixture
def course(tmp_path, monkeypatch):
    """An empty course, in which commands run."""
    (tmp_path / "nbgrader_config.py").write_text('c = get_config()\nc.CourseDirectory.course_id = "worldsize"\n')
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)  # alembic, for a new gradebook
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def people(root):
    with Gradebook(f"sqlite:///{root}/gradebook.db", "worldsize") as book:
        return {one.id: (one.first_name, one.last_name, one.email, one.lms_user_id) for one in book.students}


def test_every_column_is_read(tmp_path):
    ada, noor = read_roster(write(tmp_path, FULL))
    assert ada == Student("ada", "Ada Lovelace", "ada@example.org", "Mon", "4711", 25, "t1")
    assert ada.first_and_last == ("Ada", "Lovelace") and noor.first_and_last == ("Noor", "Khan")
    assert noor.extra_time_percent == 0


def test_the_file_that_nbgrader_itself_imports_is_a_roster(tmp_path):
    text = "id;first_name;last_name;shoe size\nana;Ana María;de la Cruz;38\n"
    found = read_file(write(tmp_path, text))
    (ana,) = found.students
    assert ana.name == "Ana María de la Cruz" and ana.first_and_last == ("Ana María", "de la Cruz")
    assert found.unused == ["shoe size"]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("bo,Bo,not an address,,,", "line 3: 'not an address' is not an e-mail address."),
        ("bo,Bo,,,,half", "line 3: the extra time 'half' is not a percentage from 0 to 300: write 25 for a quarter"),
        ("bo,Bo,,,,-5", "line 3: the extra time '-5' is not"),
        ("bo,Bo,,,,nan", "line 3: the extra time 'nan' is not"),
        ("bo,Bo,ADA@example.org,,,", "line 3: the address 'ADA@example.org' is that of line 2."),
        ("bo,Bo,,,4711,", "line 3: the LMS id '4711' is that of line 2."),
        ("Ada,Bo,,,,", "line 3: the id 'Ada' is that of line 2."),
        (",Bo,,,,", "line 3: Bo has no id."),
        ("b/o,Bo,,,,", "line 3: the id 'b/o' cannot be a file name"),
        ("bo,Bo", "line 3: it has 2 cells and the header has 6."),
    ],
)
def test_a_bad_row_is_refused_by_line_and_nothing_is_changed(course, row, sentence):
    text = f"id,name,email,section,lms id,extra time\nada,Ada,ada@example.org,,4711,\n{row}\n"
    done = run("roster", "import", write(course, text))
    assert done.exit_code == 1 and sentence in done.output
    assert not (course / "roster.csv").exists() and not (course / "gradebook.db").exists()


def test_all_bad_rows_are_named_at_once_in_the_order_of_the_file(tmp_path):
    text = "id,email\nada,x\nada,\n,\nbo,y\n"
    with pytest.raises(ValueError, match="ada") as caught:
        read_roster(write(tmp_path, text))
    assert [line.split(":")[0] for line in str(caught.value).splitlines()] == [
        "class.csv, line 2",
        "class.csv, line 3",
        "class.csv, line 5",
    ]


def test_an_import_enters_the_class_and_a_second_one_its_changes(course):
    first = run("roster", "import", write(course, FULL))
    assert first.exit_code == 0 and "2 students: 2 new, 0 changed, 0 as before." in first.output
    assert people(course)["noor"] == ("Noor", "Khan", "noor@example.org", "4712")
    assert [one.section for one in class_roster(course)] == ["Mon", "Tue"]
    again = run("roster", "import", course / "class.csv")
    assert "2 students: 0 new, 0 changed, 2 as before." in again.output
    later = "id,name,email,shoe\nnoor,Noor Ali,noor@example.org,\nzoe,Zoe Ott,,\n"
    second = run("roster", "import", write(course, later))
    assert "2 students: 1 new, 1 changed, 0 as before." in second.output and "Changed: noor." in second.output
    assert "In the gradebook and not in this file, kept with all grades: ada." in second.output
    assert "Columns that were not used: shoe." in second.output
    assert people(course)["noor"] == ("Noor", "Ali", "noor@example.org", "4712"), "no column, so nothing was said of it"
    assert "No longer in roster.csv: ada." in second.output and "No longer" not in again.output
    assert read_roster(course / "roster-before.csv")[0].extra_time_percent == 25, "nothing of theirs is lost"
    noor, zoe = class_roster(course)
    assert (noor.name, noor.section, noor.lms_id, zoe.id) == ("Noor Ali", "Tue", "4712", "zoe")
    third = run("roster", "import", write(course, "id\nzoe\n"))
    assert "No longer in roster.csv: noor." in third.output
    kept = {one.id: one for one in read_roster(course / "roster-before.csv")}
    assert kept["ada"].extra_time_percent == 25 and kept["noor"].section == "Tue", "nor is it at the next import"
    (course / "roster-before.csv").write_text("nobody\n")
    refused = run("roster", "import", write(course, "id\nyan\n"))
    assert refused.exit_code == 1 and "roster-before.csv" in refused.output and "yan" not in people(course)


def test_an_id_in_other_letters_is_nobody_new(course):
    run("roster", "import", write(course, "id\nada\nnoor\n"))
    done = run("roster", "import", write(course, "id\nAda\nnoor\nzoe\n"))
    assert done.exit_code == 1 and "only in case: Ada is ada there. Write them as the gradebook does." in done.output
    assert {*people(course)} == {"ada", "noor"} and [one.id for one in class_roster(course)] == ["ada", "noor"]


def test_two_columns_of_one_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has the columns id, ID, which mean the same"):
        read_roster(write(tmp_path, "id,ID,name\nada,a17,Ada\n"))


def test_a_student_is_in_one_team(course):
    done = run("roster", "import", write(course, 'id,team\nada,"blue, red"\n'))
    assert done.exit_code == 1 and "line 2: the team 'blue, red' looks like several teams: give one" in done.output


def test_who_is_alone_in_a_team_is_named(course):
    text = "id,team\nada,red\nnoor,Red\nzoe,rde\nben,\n"
    assert "Alone in a team: zoe (rde)." in run("roster", "import", write(course, text)).output
    assert "Alone" not in run("roster", "import", write(course, text.replace("rde", "RED"))).output


def test_a_roster_that_lies_at_its_place_is_imported_and_left_as_it_is(course):
    text = "id,name,remark\nada,Ada Lovelace,sits in front\n"
    assert run("roster", "import", write(course, text, "roster.csv")).exit_code == 0
    assert (course / "roster.csv").read_text() == text and people(course)["ada"][:2] == ("Ada", "Lovelace")
    write(course, text.replace("Lovelace", "Byron"), "roster.csv")
    assert "1 changed" in run("roster", "import", "roster.csv").output


def test_a_second_import_loses_no_grade_and_exports_take_the_section(course):
    run("roster", "import", write(course, FULL))
    with Gradebook(f"sqlite:///{course}/gradebook.db", "worldsize") as book:
        book.add_assignment("lab01")
        book.add_notebook("lab01", "lab01")
        book.add_grade_cell("cell", "lab01", "lab01", max_score=3, cell_type="markdown")
        book.add_submission("lab01", "ada")
        grade = book.find_grade("cell", "lab01", "lab01", "ada")
        grade.manual_score, grade.needs_manual_grade = 2.5, False
        book.db.commit()
    run("roster", "import", write(course, FULL.replace("Ada Lovelace", "Ada King").replace("Mon", "Wed")))
    run("roster", "import", write(course, "id\nnoor\n"))
    with Gradebook(f"sqlite:///{course}/gradebook.db", "worldsize") as book:
        assert book.find_submission("lab01", "ada").score == 2.5
    run("roster", "import", write(course, FULL.replace("Mon", "Wed")))
    assert run("export", "canvas").exit_code == 0
    with open(course / "grades-canvas.csv", newline="") as file:
        rows = {row["SIS Login ID"]: row for row in csv.DictReader(file)}
    assert (rows["ada"]["Section"], rows["ada"]["ID"], rows["ada"]["lab01"]) == ("Wed", "4711", "2.5")


# what `lib/gradebook_exporter.rb` of instructure/canvas-lms writes: a mark of the encoding, two rows that are nobody's,
# and a student for trying things out
CANVAS = """\
\ufeffStudent,ID,SIS User ID,SIS Login ID,Section,Lab 1 (5501),Current Score
,,,,,Manual Posting,
    Points Possible,,,,,22.00,(read only)
"Lovelace, Ada",4711,S1,ada,Mon,,
"Khan, Noor",4712,,Noor.K@example.org,Mon and Tue,21.50,97.7
"Student, Test",4999,,bbbc6740f0b946afbbbc6740f0b946af,Mon,,
"""


def test_what_canvas_exports_is_a_roster(course):
    done = run("roster", "import", write(course, CANVAS))
    assert done.exit_code == 0, done.output
    assert "2 students: 2 new" in done.output and "not used" not in done.output
    assert "Read as Canvas's gradebook: SIS Login ID is the id, ID the lms id." in done.output
    assert "Left out: Canvas's own Student, Test." in done.output
    assert class_roster(course) == [
        Student("ada", "Lovelace, Ada", section="Mon", lms_id="4711"),
        Student("Noor.K@example.org", "Khan, Noor", section="Mon and Tue", lms_id="4712"),
    ]
    assert people(course)["ada"] == ("Ada", "Lovelace", None, "4711")


def test_an_export_from_canvas_may_have_names_in_two_columns_and_columns_of_ours(tmp_path):
    head = "LastName;FirstName;ID;SIS Login ID;Section;Extra time;Team"
    rows = ["    Points Possible;;;;;;", "de la Cruz;Ana María;4713;ana;Mon;25;red"]
    (ana,) = read_roster(write(tmp_path, "\n".join([head, *rows])))
    assert ana == Student("ana", "Ana María de la Cruz", "", "Mon", "4713", 25, "red", "de la Cruz")


def test_whom_canvas_gives_no_login_is_named_and_nobody_called_student_test_is_lost(tmp_path):
    rows = '"Ott, Zoe",4714,S2,,Mon,,\n"Student, Test",4715,S3,tstudent,Mon,,\n'
    with pytest.raises(ValueError, match=r"^class.csv, line 7: Ott, Zoe has no SIS Login ID.$"):
        read_roster(write(tmp_path, CANVAS + rows))
    found = read_roster(write(tmp_path, CANVAS + rows.split("\n")[1]))
    assert [one.id for one in found] == ["ada", "Noor.K@example.org", "tstudent"]


def test_the_second_import_from_canvas_keeps_what_canvas_has_no_column_for(course):
    run("roster", "import", write(course, FULL))
    head, rows = "Student,ID,SIS User ID,SIS Login ID,Section", ['"Lovelace, Ada",4711,,ada,Wed', "Noor,4712,,noor,Tue"]
    text = "\n".join([head, *rows])
    assert run("roster", "import", write(course, text)).exit_code == 0
    ada, _ = class_roster(course)
    assert (ada.section, ada.email, ada.extra_time_percent, ada.team) == ("Wed", "ada@example.org", 25, "t1")
