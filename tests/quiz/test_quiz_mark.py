"""Responses of every layout become scores; what cannot be read stops the command, and nothing is half-written."""

import csv
import json
import os
import re

import pytest
from quiz_class import STUDENTS, a_class, notebook, number_of, right
from typer.testing import CliRunner

from autograder.cli import app
from autograder.quiz import results
from autograder.quiz.lms_reports import comparable, of_moodle
from autograder.quiz.marked_forms import mark_forms
from autograder.quiz.notebook_responses import value
from autograder.quiz.response_reader import read_responses
from autograder.quiz.written_answers import parse_value, parse_written
from autograder.tables.csv_table import read_table
from worldsize.quiz import mark
from worldsize.quiz.variant import Gaps, Options, Order


@pytest.fixture(scope="module")
def dealt(tmp_path_factory):
    """Forms of a class, their key's path and its folder."""
    folder = tmp_path_factory.mktemp("class")
    forms, key = a_class(folder)
    return forms, key, folder


@pytest.fixture
def run(dealt, tmp_path):
    """Runs `autograder quiz mark` on a table's text or a path; gives the result and the folder of marks."""

    def it(responses, *more, encoding="utf-8"):
        path = responses
        if isinstance(responses, str):
            path = tmp_path / "responses.csv"
            path.write_bytes(responses.encode(encoding))
        out = tmp_path / "marks"
        command = ["quiz", "mark", str(dealt[1]), str(path), "--out", str(out), "--bank", str(dealt[2] / "quizzes")]
        return CliRunner().invoke(app, [*command, *more]), out

    return it


def long(rows):
    """A table of rows student, question, response."""
    return csv_text(["student", "question", "response"], rows)


def csv_text(head, rows, delimiter=","):
    """Rows as the text of a CSV."""
    import io

    to = io.StringIO()
    csv.writer(to, delimiter=delimiter).writerows([head, *rows])
    return to.getvalue()


def all_right(form):
    """The rows of a student who gets everything right."""
    return [(form.student.id, number, right(one.variant.answer)) for number, one in enumerate(form.asked, start=1)]


def scores(out):
    """The rows of scores.csv by student."""
    with (out / "scores.csv").open(encoding="utf-8", newline="") as file:
        return {row["student"]: row for row in csv.DictReader(file)}


def test_all_right_by_number_and_by_id_earns_all(run, dealt):
    ada, bob, _ = dealt[0]
    by_id = [(bob.student.id, bob.asked[n - 1].variant.question.id, written) for _, n, written in all_right(bob)]
    result, out = run(long([*all_right(ada), *by_id]))
    assert result.exit_code == 0, result.output
    found = scores(out)
    assert [found[name]["points"] for name in ("ada", "bob", "c3")] == ["6", "6", ""]
    assert [found[name]["passed"] for name in ("ada", "bob", "c3")] == ["yes", "yes", ""]
    assert found["c3"]["status"] == "not handed in" and found["ada"]["percent"] == "100.0"
    assert {found["ada"][f"question_{number}"] for number in range(1, 7)} == {"1"}
    assert "2 of 3 handed in, 2 passed" in result.output


def test_marks_are_those_of_the_marking(run, dealt):
    ada = dealt[0][0]
    multiple, ordering = number_of(ada, "multiple"), number_of(ada, "ordering")
    first, second, third = ada.variants[ordering - 1].answer.places
    order = " ".join("ABC"[place] for place in (second, first, third))
    result, out = run(long([("ada", multiple, right(ada.variants[multiple - 1].answer)[0]), ("ada", ordering, order)]))
    assert result.exit_code == 0, result.output
    row = scores(out)["ada"]
    assert float(row[f"question_{multiple}"]) == 0.5 and row[f"question_{ordering}"] == "0.3333"
    assert row["passed"] == "no" and row["points"] == "0.83"


@pytest.mark.parametrize(("delimiter", "encoding"), [(",", "utf-8"), (";", "utf-8-sig"), ("\t", "utf-16")])
def test_the_wide_layout_in_other_encodings(run, dealt, delimiter, encoding):
    rows = [[form.student.id, *(row[2] for row in all_right(form)), "12,5"] for form in dealt[0]]
    head = ["Student", *(f"Q{number}" for number in range(1, 7)), "minutes"]
    result, out = run(csv_text(head, rows, delimiter), encoding=encoding)
    assert result.exit_code == 0, result.output
    assert {row["points"] for row in scores(out).values()} == {"6"}
    assert scores(out)["ada"]["minutes"] == "12.5"


def test_an_encoding_that_is_none_of_these_is_reported_and_can_be_named(run, dealt):
    table = long([("ada", number_of(dealt[0][0], "text"), "äll-gather")])
    result, out = run(table, encoding="cp1252")
    assert result.exit_code == 1 and "responses.csv, line 2: not in UTF-8" in result.output and not out.exists()
    assert run(table, "--encoding", "cp1252", encoding="cp1252")[0].exit_code == 0


UNREADABLE = [
    ("single", "E", "'E' must consist of the letters A to C"),
    ("single", "A, B", "chooses 2 options; choose one"),
    ("multiple", "A A", "has a letter twice"),
    ("numeric", "about 7", "'about 7' is not a number in ms"),
    ("ordering", "A B", "has 2 of 3 letters"),
    ("cloze", "14; one chunk", "does not say which gap is which"),
    ("cloze", "1: 14; 4: few", "there is no gap '4': there are 1 to 3"),
    ("cloze", "1: 14; 1: 15", "fills a gap twice"),
    ("cloze", "1: many", "'many' is not a number"),
]


@pytest.mark.parametrize(("kind", "written", "reason"), UNREADABLE)
def test_what_cannot_be_read_stops_before_anything_is_written(run, dealt, kind, written, reason):
    number = number_of(dealt[0][0], kind)
    table = long([("ada", number, written)])
    result, out = run(table)
    assert result.exit_code == 1 and not out.exists()
    assert f"responses.csv, line 2: ada, question {number}: " in result.output and reason in result.output
    assert "--unreadable-as-zero" in result.output
    result, out = run(table, "--unreadable-as-zero")
    assert result.exit_code == 0, result.output
    assert scores(out)["ada"][f"question_{number}"] == "0"
    assert reason in (out / "unreadable.csv").read_text(encoding="utf-8")
    page = (out / "feedback" / "ada.html").read_text(encoding="utf-8")
    assert "could not be read" in page


def test_answered_twice_stops_unless_it_is_the_same(run, dealt):
    number = number_of(dealt[0][0], "single")
    assert run(long([("ada", number, "A"), ("ada", number, " A")]))[0].exit_code == 0
    result, _ = run(long([("ada", number, "A"), ("ada", number, "B")]), "--force")
    assert result.exit_code == 1 and "'B' here and 'A' in responses.csv, line 2" in result.output
    result, _ = run(csv_text(["student", "1"], [["ada", ""], ["ADA", ""]]), "--force", "--unreadable-as-zero")
    assert result.exit_code == 1 and "line 3: ada: has a row already" in result.output


def test_strangers_stop_or_are_left_out(run):
    table = long([("eve", 1, "A"), ("ada", 1, "")])
    result, out = run(table)
    assert result.exit_code == 1 and "line 2: eve: has no form in this key" in result.output and not out.exists()
    result, out = run(table, "--ignore-unknown")
    assert result.exit_code == 0 and "eve" not in scores(out)
    assert "eve" in (out / "unreadable.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("student,question,response\n", "has no rows"),
        ("a,b\n1,2\n", "has the columns a, b. Known are: student, question, response"),
        ("student,1,colour\nada,A,red\n", "has the column 'colour', which is neither a number from 1 to 6"),
        ("student,1,1\nada,A,B\n", "has the column '1' twice"),
        ("student,question,response\nada,1\n", "line 2: it has 2 cells and the header has 3"),
        ('student,question,response\nada,1,"A\n', "line 2: unexpected end of data"),
        ("student,question,response\nada,99,A\n", "line 2: ada: there is no question '99' in this form"),
        ("student,response\nada,A\n", "it needs a column `question`"),
        ("student,question,response,minutes\nada,1,,soon\n", "'soon' is not a number of minutes"),
    ],
)
def test_malformed_tables_are_reported_by_their_line(run, text, message):
    result, out = run(text, "--unreadable-as-zero")
    assert result.exit_code == 1 and message in result.output and not out.exists()


def test_marks_are_replaced_only_by_force_and_other_things_never(run, tmp_path, monkeypatch):
    table = long([("ada", 1, "")])
    _, out = run(table)
    before = (out / "scores.csv").read_bytes()
    assert "replace them with --force" in run(table)[0].output
    assert run(table, "--force")[0].exit_code == 0 and (out / "scores.csv").read_bytes() == before
    monkeypatch.setattr(results, "feedback_page", lambda *_: 1 / 0)
    assert run(table, "--force")[0].exit_code == 1
    assert (out / "scores.csv").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    (out / "thesis.tex").touch()
    assert "holds thesis.tex, which is not part of a marked quiz" in run(table, "--force")[0].output


def test_formulas_in_tables_are_neutralised(run, dealt):
    bob = dealt[0][1]
    result, out = run(
        long([("bob", number_of(bob, "text"), "=HYPERLINK(1)"), ("bob", number_of(bob, "numeric"), "-5")])
    )
    assert result.exit_code == 0, result.output
    assert scores(out)["bob"]["name"] == "'=cmd()"
    answers = (out / "answers.csv").read_text(encoding="utf-8")
    assert ",'=HYPERLINK(1)," in answers and ",-5," in answers


def test_a_page_tells_only_its_own_student_and_runs_nothing(run, dealt):
    ada, bob, _ = dealt[0]
    hostile = "<script>alert(1)</script>"
    rows = [
        *all_right(bob),
        ("ada", number_of(ada, "text"), hostile),
        ("ada", number_of(ada, "multiple"), "A, B, C, D"),
    ]
    result, out = run(long(rows))
    assert result.exit_code == 0, result.output
    page = (out / "feedback" / "ada.html").read_text(encoding="utf-8")
    assert "data:image/png" in page
    page = re.sub(r"data:image/png;base64,[\w+/=]+", "", page)
    assert "bob" not in page.lower() and "cmd()" not in page and "<script" not in page and "&lt;script&gt;" in page
    assert "://" not in re.sub(r'xmlns="[^"]*"', "", page)
    assert "Feedback for Ada Lovelace (ada)" in page and "<mfrac>" in page
    assert "One is left." in page and "That has one sender" not in page
    assert page.count('class="own question"') == 6 and "{{" not in page and "[[" not in page
    assert not (out / "feedback" / "c3.html").exists()


def test_a_page_tells_each_gap_and_what_was_missed(run, dealt):
    ada = dealt[0][0]
    cloze = ada.variants[number_of(ada, "cloze") - 1].answer
    rows = [("ada", number_of(ada, "cloze"), f"1: {right(cloze.gaps['steps'])}; 2: a lump")]
    _, out = run(long([*rows, ("ada", number_of(ada, "numeric"), "1")]))
    page = (out / "feedback" / "ada.html").read_text(encoding="utf-8")
    assert "(1) ✓ right; (2) ✗ not right; (3) – no answer" in page
    assert "The right answer: " in page and "Twice N - 1." in page and "Divide." in page


def test_the_report_names_no_student(run, dealt):
    _, out = run(long([row for form in dealt[0] for row in all_right(form)]))
    report = (out / "items.html").read_text(encoding="utf-8")
    assert not any(student.id in re.findall(r"\w+", report) for student in STUDENTS[:2])
    assert "fewer are too few to judge" in report and "all have the same points" in report
    assert report.count('class="own question"') == 6


def moodle(forms, write, questions=False, head=("Username",)):
    """A report of Moodle; `write` gives a response's text of a variant."""
    num = len(forms[0].asked)
    columns = [*head, "State", "Time taken", "Grade/10.00"]
    for number in range(1, num + 1):
        columns += ([f"Question {number}"] if questions else []) + [f"Response {number}"]
    rows = []
    for form in forms:
        row = [form.student.id, "Finished", "1 hour 2 mins", "-"]
        for one in form.variants if not questions else reversed(form.variants):
            row += ([moodle_question(one)] if questions else []) + [write(one.answer)]
        rows.append(row)
    return csv_text(columns, rows)


def moodle_question(variant):
    """A question's text as Moodle summarises it."""
    text = re.sub(r"\[\[\w+\]\]", "_____", variant.text).replace("*", "")
    return re.sub(r"\$(.*?)\$", r"\\(\1\\)", text) + (
        " (Give a number, in ms.)" if variant.question.kind == "numeric" else ""
    )


def moodle_text(answer):
    """The right answer as Moodle's report writes it."""
    match answer:
        case Options():
            return "; ".join(re.sub("[`*]", "", answer.options[place].text) for place in sorted(answer.right))
        case Order():
            return "; ".join(text if len(text) <= 10 else text[:7] + "..." for text in answer.in_order)
        case Gaps():
            return "; ".join(f"part {n}: {moodle_text(gap)}" for n, gap in enumerate(answer.gaps.values(), start=1))
        case _:
            return right(answer)


@pytest.mark.parametrize("questions", [False, True])
def test_a_report_of_moodle(run, dealt, questions):
    result, out = run(moodle(dealt[0], moodle_text, questions))
    assert result.exit_code == 0, result.output
    assert {row["points"] for row in scores(out).values()} == {"6"}
    assert scores(out)["ada"]["minutes"] == "62"


def test_moodle_without_an_attempt_in_progress_or_odd(run, dealt):
    table = moodle(dealt[0][:1], lambda answer: "-")
    result, out = run(table)
    assert result.exit_code == 0 and scores(out)["ada"]["points"] == "0"
    result, _ = run(table.replace("Finished", "In progress"), "--force", "--unreadable-as-zero")
    assert result.exit_code == 1 and "the attempt is 'In progress' and not 'Finished'" in result.output
    result, _ = run(table.replace("Finished", "-"), "--force")
    assert result.exit_code == 1 and "No student in this key has handed anything in" in result.output
    result, _ = run(table.replace("Username", "Login"), "--force")
    assert result.exit_code == 1 and "the roster's ids must be in one of them" in result.output


def canvas_text(answer):
    """The right answer as Canvas's report writes it."""
    match answer:
        case Options():
            texts = [
                re.sub("[`*]", "", answer.options[place].text).replace(",", "\\,") for place in sorted(answer.right)
            ]
            return texts[0].replace("\\,", ",") if answer.single else ",".join(texts)
        case Order():
            return ",".join(f"{text}=>{answer.places.index(place) + 1}" for place, text in enumerate(answer.shown))
        case Gaps():
            return ",".join(canvas_text(gap).replace(",", "\\,") for gap in answer.gaps.values())
        case _:
            return right(answer)


def canvas(forms, write):
    """A student analysis of Canvas over a quiz of all of these forms' questions."""
    head = ["name", "id", "sis_id", "section", "section_id", "submitted"]
    questions = list(dict.fromkeys(moodle_question(one) for form in forms for one in form.variants))
    for number, text in enumerate(questions):
        head += [f"{100 + number}: {text}", "1.0"]
    rows = []
    for form in forms:
        texts = {moodle_question(one): write(one.answer) for one in form.variants}
        cells = [cell for text in questions for cell in (texts.get(text, ""), "1.0" if text in texts else "")]
        rows.append(["A. N. Other", "4711", form.student.id, "one", "1", "2026-11-21", *cells, "6", "0", "6.0"])
    return csv_text([*head, "n correct", "n incorrect", "score"], rows)


def test_a_student_analysis_of_canvas(run, dealt):
    result, out = run(canvas(dealt[0], canvas_text))
    assert result.exit_code == 0, result.output
    assert {row["points"] for row in scores(out).values()} == {"6"}


def test_a_text_that_fits_nothing_is_a_problem_and_no_guess(run, dealt):
    table = canvas(dealt[0][:1], lambda answer: "a lot" if isinstance(answer, Options) else "")
    result, out = run(table)
    assert result.exit_code == 1 and not out.exists()
    assert "'a lot' matches none of the 3 texts that were offered" in result.output


def test_a_folder_of_notebooks_is_read_and_never_run(run, dealt, tmp_path):
    ada, bob, c3 = dealt[0]
    folder = tmp_path / "handed"
    (folder / "submitted" / "bob" / "quiz").mkdir(parents=True)
    marker = tmp_path / "was-run"
    code = f"__import__('pathlib').Path({str(marker)!r}).touch()"
    as_source = {number: repr(written) for _, number, written in all_right(ada)}
    gaps = ada.variants[number_of(ada, "cloze") - 1].answer.gaps
    as_source[number_of(ada, "cloze")] = repr({n: right(gap) for n, gap in enumerate(gaps.values(), start=1)})
    as_source[number_of(ada, "numeric")] = repr(ada.variants[number_of(ada, "numeric") - 1].answer.value)
    as_source[number_of(ada, "multiple")] = repr(right(ada.variants[number_of(ada, "multiple") - 1].answer).split(", "))
    (folder / "ada.ipynb").write_text(notebook(ada, as_source))
    (folder / "submitted" / "bob" / "quiz" / "quiz.ipynb").write_text(notebook(bob, {1: code}))
    (folder / "c3.ipynb").write_text("{")
    result, out = run(folder)
    assert result.exit_code == 1 and not out.exists() and not marker.exists()
    assert "submitted/bob/quiz/quiz.ipynb, cell question_1: bob, question 1: " in result.output
    assert "write a plain number, text, list or dict, because no code is run" in result.output
    assert "c3.ipynb: c3: The file is" in result.output
    (folder / "c3.ipynb").write_text(notebook(c3, {}, student="ada"))
    assert "c3: the notebook was made for 'ada'" in run(folder)[0].output
    (folder / "c3.ipynb").unlink()
    result, out = run(folder, "--unreadable-as-zero")
    assert result.exit_code == 0, result.output
    assert (scores(out)["ada"]["points"], scores(out)["bob"]["points"]) == ("6", "0") and not marker.exists()


@pytest.fixture
def handed_in(dealt, tmp_path):
    """A folder with a notebook of Ada's, who gets all right, and what writes another one: of whom, and changed how."""
    folder = tmp_path / "handed"
    folder.mkdir()

    def write(form, change=lambda content: None, answers=None, name=None):
        content = json.loads(notebook(form, answers or {}))
        change(content)
        file = folder / (name or f"{form.student.id}.ipynb")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content), encoding="utf-8")
        return folder

    ada = dealt[0][0]
    write(ada, answers={number: repr(written) for _, number, written in all_right(ada)})
    return folder, write


SILLY = {
    "the quiz's metadata": lambda content: content["metadata"].update(quiz=5),
    "nbgrader's": lambda content: [cell["metadata"].update(nbgrader=5) for cell in content["cells"]],
    "an older minor version": lambda content: content.update(nbformat_minor=4),
    "an output": lambda content: content["cells"][0].update(outputs=[{"output_type": "stream"}]),
}


@pytest.mark.parametrize("change", SILLY.values(), ids=SILLY)
def test_a_notebook_with_odd_marks_is_read_by_the_rest(run, dealt, handed_in, change):
    folder, write = handed_in
    bob = dealt[0][1]
    write(bob, change, {number: repr(written) for _, number, written in all_right(bob)})
    result, out = run(folder)
    assert result.exit_code == 0, result.output
    assert [scores(out)[name]["points"] for name in ("ada", "bob")] == ["6", "6"]


ODD_ANSWERS = {"overflow": "1" + "0" * 400 + " + 1j", "signs": "-" * 900 + "1", "sum": "+".join("1" * 900)}


@pytest.mark.parametrize("answer", ODD_ANSWERS.values(), ids=ODD_ANSWERS)
def test_an_answer_that_breaks_pythons_own_reading_is_a_problem_of_that_answer(run, dealt, handed_in, answer):
    folder, write = handed_in
    write(dealt[0][1], answers={1: answer})
    result, out = run(folder)
    assert result.exit_code == 1 and not out.exists() and isinstance(result.exception, SystemExit)
    assert "bob.ipynb, cell question_1: bob, question 1: " in result.output and "ada.ipynb" not in result.output
    result, out = run(folder, "--unreadable-as-zero")
    assert result.exit_code == 0, result.output
    assert [scores(out)[name]["points"] for name in ("ada", "bob")] == ["6", "0"]


SPOILED = {
    "a number for a source": lambda content: content["cells"][0].update(source=5),
    "half a surrogate": lambda content: content["cells"][0].update(source="\ud800"),
    "too much text": lambda content: content["cells"][0].update(source="#" * (1 << 20)),
}


@pytest.mark.parametrize("change", SPOILED.values(), ids=SPOILED)
def test_a_file_that_is_no_notebook_is_reported_with_its_student(run, dealt, handed_in, change):
    folder, write = handed_in
    write(dealt[0][1], change)
    result, out = run(folder, "--unreadable-as-zero")
    assert result.exit_code == 1 and not out.exists() and isinstance(result.exception, SystemExit)
    assert "bob.ipynb: bob: " in result.output and "ada.ipynb" not in result.output


def _link(path):
    path.with_suffix(".txt").write_text("{}")
    path.symlink_to(path.with_suffix(".txt"))


def _huge(path):
    path.touch()
    os.truncate(path, (20 << 20) + 1)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("make", "said"),
    [(make, "The submission is not a plain file.") for make in (os.mkfifo, os.mkdir, _link)]
    + [(_huge, "The file has 20 MB; at most 20 are read. Clear its outputs and submit again.")],
)
def test_only_plain_files_of_some_megabytes_are_opened(run, handed_in, make, said):
    folder, _ = handed_in
    make(folder / "bob.ipynb")
    result, out = run(folder)
    assert result.exit_code == 1 and not out.exists()
    assert f"bob.ipynb: bob: {said}\n" in result.output


def test_a_files_name_does_not_outdo_the_collectors_folder(run, dealt, handed_in):
    folder, write = handed_in
    ada = folder / "ada.ipynb"
    (folder / "ada").mkdir()
    ada.rename(folder / "ada" / "Bob.ipynb")
    result, out = run(folder, "--unreadable-as-zero", "--ignore-unknown")
    assert result.exit_code == 1 and not out.exists()
    assert "ada/Bob.ipynb: ada: its path names more than one student" in result.output
    write(dealt[0][1])
    assert "bob: has a row already" not in run(folder)[0].output
    (folder / "ada" / "Bob.ipynb").rename(folder / "ada" / "ADA.ipynb")
    result, out = run(folder)
    assert result.exit_code == 0, result.output
    assert [scores(out)[name]["points"] for name in ("ada", "bob")] == ["6", "0"]


def test_a_files_name_that_is_not_text_can_be_reported(run, dealt, handed_in):
    folder, write = handed_in
    write(dealt[0][1]).joinpath("bob.ipynb").rename(folder / os.fsdecode(b"\xff\x1b.ipynb"))
    result, _ = run(folder)
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert r"\udcff\x1b.ipynb: \udcff\x1b: has no form in this key" in result.output
    result, out = run(folder, "--ignore-unknown")
    assert result.exit_code == 0, result.output
    assert r"\udcff\x1b.ipynb" in (out / "unreadable.csv").read_text(encoding="utf-8")


def test_a_set_is_an_answer_only_where_order_says_nothing(dealt):
    form = dealt[0][0]
    of_kind = {kind: form.variants[number_of(form, kind) - 1].answer for kind in ("multiple", "ordering", "cloze")}
    assert parse_value(of_kind["multiple"], {"D", "C", "B", "A"}) == [0, 1, 2, 3]
    for kind, given in (("ordering", {"A", "B", "C"}), ("cloze", {"1: 14", "2: a lump"})):
        with pytest.raises(ValueError, match="it is a set, which has no order: write a list"):
            parse_value(of_kind[kind], given)


def test_gaps_in_a_list_are_distinguished_and_none_is_filled_twice(dealt):
    form = dealt[0][0]
    answer = form.variants[number_of(form, "cloze") - 1].answer
    assert parse_value(answer, ["1: 14", "2: a lump"]) == {"steps": "14", "what": "a lump"}
    with pytest.raises(ValueError, match="fills a gap twice"):
        parse_value(answer, {1: 14, "steps": 15})


@pytest.mark.parametrize("parts", ["part 1: 14; part 2: x; part 9: y", "part 1: 14; part 2: x; part 2: y"])
def test_parts_of_a_cloze_that_are_not_each_there_once_are_refused(dealt, parts):
    form = dealt[0][0]
    with pytest.raises(ValueError, match="does not have 3 parts"):
        of_moodle(form.variants[number_of(form, "cloze") - 1].answer, parts)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("answer_1 =", "is not Python"),
        ("", "must assign answer_1 exactly once; it does so 0 times"),
        ("answer_1 = 1\nanswer_1 = 2", "2 times"),
    ],
)
def test_a_cell_that_does_not_say_one_thing_is_refused(source, reason):
    with pytest.raises(ValueError, match=reason):
        value(source, 1)


def test_the_key_of_a_changed_bank_is_refused(run, dealt):
    file = dealt[2] / "quizzes" / "week02.toml"
    before = file.read_text(encoding="utf-8")
    file.write_text(before.replace("at 8 GB/s", "at 9 GB/s"), encoding="utf-8")
    try:
        result, out = run(long([("ada", 1, "")]))
    finally:
        file.write_text(before, encoding="utf-8")
    assert result.exit_code == 1 and "t-time: the bank has changed" in result.output and not out.exists()


def test_what_is_understood_is_what_was_meant(dealt):
    for form in dealt[0]:
        for one in form.variants:
            assert mark(one, parse_written(one.answer, right(one.answer))).is_right
            assert parse_written(one.answer, "  ") is None and parse_value(one.answer, None) is None
            with pytest.raises(ValueError, match="is not a number, letters or words"):
                parse_value(one.answer, b"A")


def test_a_gap_that_is_a_brief_name_or_in_parentheses(dealt):
    form = dealt[0][0]
    answer = form.variants[number_of(form, "cloze") - 1].answer
    assert parse_written(answer, "(2) a chunk; (1) 14") == {"what": "a chunk", "steps": "14"}
    assert parse_written(answer, "steps: 14; kind: b") == {"steps": "14", "kind": [1]}


def test_texts_are_compared_without_markup():
    assert comparable("**A** $\\frac{a}{b}$ < `x_1` & *y*") == "a\\frac{a}{b}<x1&y".replace("\\", "")


def test_the_head_may_have_separators_in_quotes(tmp_path):
    file = tmp_path / "r.csv"
    file.write_text('student,"1;;;\n;;",response\nada,1,A\n', encoding="utf-8")
    assert read_table(file).head == ["student", "1;;; ;;", "response"]


def test_sheets_count_nothing_for_nothing(dealt, tmp_path):
    file = tmp_path / "r.csv"
    file.write_text(long([("ada", 1, "")]), encoding="utf-8")
    ada, *others = mark_forms(dealt[0], read_responses(file, dealt[0]))
    assert ada.points == 0 and ada.is_handed_in and not any(one.is_handed_in for one in others)
