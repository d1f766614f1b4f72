"""Essays: in every format with room to answer, graded by hand, and no number anywhere until they are."""

import csv
import io
import json
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET

import nbformat
import pytest
import quiz_readers as readers
from needs import give_up
from quiz_class import KINDS, notebook, right, write_bank
from quiz_qti21 import check_package
from quiz_samples import ESSAY, NUMERIC, question
from quiz_tools import fetched, pyslet_source, qti12_dtd, qti21_engine  # noqa: F401 - fixtures
from typer.testing import CliRunner

from autograder.cli import app
from autograder.quiz import preview, statistics
from autograder.quiz.blueprint import Blueprint
from autograder.quiz.formats import FORMATS
from autograder.quiz.formats.form_text import num_lines
from autograder.quiz.forms import AskedQuestion, Form, deal
from autograder.quiz.hand_points import mark_of
from autograder.quiz.key import key_of
from autograder.quiz.marked_forms import mark_forms
from autograder.quiz.response_reader import read_responses
from autograder.quiz.whole_bank import read_bank
from autograder.tables.roster import Student
from worldsize.quiz import draw
from worldsize.quiz.question_text import as_text

CLASS = [Student("ada", "Ada Lovelace"), Student("bob"), Student("cem")]
COUNT = len(KINDS) + 1
SECRETS = ("It names", "A model answer")


@pytest.fixture(scope="module")
def form():
    asked = [draw(question(text), 3) for text in (NUMERIC, ESSAY)]
    plan = Blueprint(title="Midterm", count=2, essays=1)
    return Form(CLASS[0], plan, tuple(AskedQuestion("seed", variant) for variant in asked))


def rendered(form, name):
    return FORMATS[name].render(form).decode()


def printed(pdf, folder):
    """The words of a PDF."""
    if not shutil.which("pdftotext"):
        give_up("pdf", "pdftotext is not installed (Debian and Ubuntu: poppler-utils)")
    (folder / "form.pdf").write_bytes(pdf)
    return subprocess.run(["pdftotext", folder / "form.pdf", "-"], capture_output=True, text=True, check=True).stdout


def test_hand_outs_have_room_to_answer_and_no_rubric(form, tmp_path):
    num = num_lines(form.variants[1].answer)
    assert num == 60 / 10 + 2
    assert rendered(form, "md").count(r"\_" * 72) == num
    assert f'<textarea id="q2" name="q2" rows="{num}"' in rendered(form, "html")
    for name in ("md", "html", "ipynb"):
        text = rendered(form, name)
        assert "about 60 of them (2 points)" in text
        assert "the last one, answered in your own words, counts 2, every other question 1." in text
        assert not [secret for secret in SECRETS if secret in text]
    text = printed(FORMATS["pdf"].render(form), tmp_path)
    assert "about 60 of them" in text and not [secret for secret in SECRETS if secret in text]


def test_terms_of_a_form_of_essays_and_of_one_without(form):
    essay, numeric = form.asked[1], form.asked[0]
    two = Form(form.student, form.blueprint, (essay, essay))
    assert "the last 2, answered in your own words, count 2 each.\n" in rendered(two, "md")
    assert "every question counts the same." in rendered(Form(form.student, form.blueprint, (numeric,)), "md")


def test_the_key_has_the_rubric_and_a_model_answer(form, tmp_path):
    html_key, pdf_key = FORMATS["html"].key, FORMATS["pdf"].key
    assert html_key and pdf_key
    page, text = html_key([form]).decode(), printed(pdf_key([form]), tmp_path)
    for shown in (page, text):
        assert "Rubric, 2 points" in shown and "A model answer" in shown
        assert "reduce-scatter" in shown and "1.5" in shown and "0.5" in shown
        assert "graded by hand, 2 points" in shown


def test_the_notebook_has_a_markdown_cell_that_nbgrader_grades_by_hand(form):
    book = nbformat.reads(rendered(form, "ipynb"), as_version=4)
    nbformat.validate(book)
    (cell,) = [cell for cell in book.cells if cell.id == "question_2"]
    assert (cell.cell_type, cell.source) == ("markdown", "*Replace this line with your answer.*")
    marks = cell.metadata.nbgrader
    assert (marks.grade, marks.solution, marks.points, marks.locked, marks.task) == (True, True, 2, False, False)


def test_moodle_has_an_essay_with_information_for_graders(form):
    (found,) = [one for one in ET.fromstring(FORMATS["moodle"].render(form)) if one.get("type") == "essay"]
    assert found.findtext("defaultgrade") == "2"
    assert "reduce-scatter" in found.findtext("graderinfo/text") and "<strong>1.5</strong>" in found.findtext(
        "graderinfo/text"
    )
    assert "reduce-scatter" not in found.findtext("questiontext/text")
    assert found.findtext("responseformat") == "editor" and found.findtext("responsefieldlines") == "8"
    assert not found.findall("answer")


def test_canvas_has_an_essay_question(form, qti12_dtd):  # noqa: F811
    from lxml import etree

    files = readers.unzip(FORMATS["canvas"].render(form))
    (text,) = [file.decode() for file in files.values() if b"questestinterop" in file]
    text = text.replace(' xmlns="http://www.imsglobal.org/xsd/ims_qtiasiv1p2"', "")
    assert qti12_dtd.validate(etree.fromstring(text.encode())), qti12_dtd.error_log.filter_from_errors()
    kinds = re.findall(r"<fieldentry>(\w+_question)</fieldentry>", text)
    assert kinds == ["numerical_question", "essay_question"]
    assert re.findall(r"points_possible</fieldlabel><fieldentry>(.*?)<", text) == ["1", "2"]
    assert "reduce-scatter" not in text
    (settings,) = [file.decode() for name, file in files.items() if "assessment_meta" in name]
    assert "<points_possible>3.0</points_possible>" in settings


def test_qti21_has_a_text_for_a_scorer(form, qti21_engine):  # noqa: F811
    check_package(FORMATS["qti21"].render(form))
    item = readers.unzip(FORMATS["qti21"].render(form))[f"items/{form.variants[1].id}.xml"]
    text = item.decode()
    assert '<extendedTextInteraction responseIdentifier="RESPONSE" expectedLines="8"' in text
    assert text.index('<rubricBlock view="scorer">') < text.index("reduce-scatter")
    assert text.count("reduce-scatter") == 1 and "correctResponse" not in text
    score, shown = qti21_engine(item, {"RESPONSE": "Because."})
    assert score == 0 and shown == {"general"}


def test_the_preview_shows_the_rubric_and_the_pool(tmp_path):
    page = preview.page(write_bank(tmp_path / "quizzes", [ESSAY]))
    assert "about 60 words" in page and "Rubric, 2 points" in page and "<li>weekly</li>" in page
    assert "Right:" not in page


def test_as_text_it_has_no_options(form):
    assert as_text("t", form.variants[1:]).endswith("Explain **why** $2(N-1)$ <steps>.")


# --- graded by hand --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dealt(tmp_path_factory):
    """Forms with one essay, and the folder with their key and bank."""
    folder = tmp_path_factory.mktemp("class")
    questions = read_bank(write_bank(folder / "quizzes", [*KINDS, ESSAY]))
    plan = Blueprint(title="Midterm", count=COUNT, essays=1, pass_fraction=0.5)
    forms = list(deal(plan, questions, CLASS, b"secret"))
    (folder / "key.json").write_text(key_of(forms).model_dump_json(), encoding="utf-8")
    return forms, folder


@pytest.fixture
def mark(dealt, tmp_path):
    """Runs `autograder quiz mark` on what ada and bob handed in; gives the result and the folder of marks."""
    forms, folder = dealt
    essays = {"ada": "First sums,\nthen copies: ü", "bob": "=1+1"}
    table = io.StringIO()
    rows = [["student", "question", "response"]]
    for form in forms[:2]:
        rows += [[form.student.id, n, right(one.answer)] for n, one in enumerate(form.variants[:-1], start=1)]
        rows.append([form.student.id, COUNT, essays[form.student.id]])
    csv.writer(table).writerows(rows)
    (tmp_path / "responses.csv").write_text(table.getvalue(), encoding="utf-8")
    out = tmp_path / "marks"

    def run(*more):
        words = [folder / "key.json", tmp_path / "responses.csv", "--out", out, "--bank", folder / "quizzes", *more]
        return CliRunner().invoke(app, ["quiz", "mark", *map(str, words)]), out

    return run


def read(file):
    return list(csv.DictReader(file.read_text("utf-8-sig").splitlines(keepends=True)))


def fill(file, points, encoding="utf-8", **more):
    """Enters points by student, as an instructor does in a spreadsheet."""
    rows = [{**row, "points": points.get(row["student"], ""), **more} for row in read(file)]
    with file.open("w", newline="", encoding=encoding) as lines:
        table = csv.DictWriter(lines, rows[0])
        table.writeheader()
        table.writerows(rows)


def test_an_essay_waits_and_nothing_is_a_number_until_it_is_graded(mark):
    result, out = mark()
    assert result.exit_code == 0, result.output
    assert "2 essays wait to be graded: fill in `points` in" in result.output and "none is marked yet" in result.output
    ada, bob, cem = read(out / "scores.csv")
    for row in (ada, bob):
        assert row["status"] == "waiting to be graded by hand" and row["out_of"] == "8"
        assert [row["points"], row["percent"], row["passed"], row[f"question_{COUNT}"]] == [""] * 4
        assert row["question_1"] == "1"
    assert cem["status"] == "not handed in"
    assert [row["share"] for row in read(out / "answers.csv") if row["number"] == str(COUNT)] == ["", ""]
    page = (out / "feedback/ada.html").read_text()
    assert "1 answer is still to be read by your instructor" in page and "Waiting to be graded by hand" in page
    assert "% is needed" not in page and not [secret for secret in SECRETS if secret in page]
    report = (out / "items.html").read_text()
    assert "essays of 2 students are still to be graded by hand" in report and "t-essay" not in report
    assert "nan" not in "".join(file.read_text() for file in out.rglob("*.csv")) + report + page


def test_points_that_are_entered_make_the_score_and_stay(mark):
    _, out = mark()
    by_hand = read(out / "by_hand.csv")
    assert [row["answer"] for row in by_hand] == ["First sums,\nthen copies: ü", "'=1+1"]
    assert {(row["points"], row["out_of"], row["number"]) for row in by_hand} == {("", "2", str(COUNT))}
    fill(out / "by_hand.csv", {"ada": "1,5"}, comment="Good.")
    result, _ = mark("--force")
    assert "1 essay waits to be graded" in result.output
    ada, bob, _ = read(out / "scores.csv")
    assert (ada["status"], ada["points"], ada["percent"], ada["passed"]) == ("marked", "7.5", "93.8", "yes")
    assert (bob["status"], bob["points"]) == ("waiting to be graded by hand", "")
    page = (out / "feedback/ada.html").read_text()
    assert "7.5</strong> of 8 points" in page and "1.5 of 2 points" in page and "comment: Good." in page
    assert "A model answer" in page
    assert [row["points"] for row in read(out / "by_hand.csv")] == ["1.5", ""]
    fill(out / "by_hand.csv", {"ada": "1.5", "bob": "0"})
    mark("--force")
    ada, bob, _ = read(out / "scores.csv")
    assert (ada["points"], bob["points"]) == ("7.5", "6")
    assert "Points</dt><dd>mean 84%" in (out / "items.html").read_text()
    assert "t-essay" in (out / "items.html").read_text()


@pytest.mark.parametrize("encoding", ["cp1252", "utf-8", "utf-8-sig", "utf-16"])
def test_points_may_be_in_the_encoding_that_is_named_or_in_unicode(mark, tmp_path, encoding):
    responses = tmp_path / "responses.csv"
    responses.write_text(responses.read_text(encoding="utf-8"), encoding="cp1252")
    _, out = mark("--encoding", "cp1252")
    fill(out / "by_hand.csv", {"ada": "1.5", "bob": "2"}, encoding, comment="Größe: gut")
    result, _ = mark("--force", "--encoding", "cp1252")
    assert result.exit_code == 0, result.output
    assert "comment: Größe: gut" in (out / "feedback/ada.html").read_text()


@pytest.mark.parametrize(
    ("points", "more", "reason"),
    [
        ("2.5", {}, "by_hand.csv, line 3: ada, question 7: '2.5' is not a number of points from 0 to 2"),
        ("-1", {}, "is not a number of points from 0 to 2"),
        ("nan", {}, "is not a number of points from 0 to 2"),
        ("all", {}, "is not a number of points from 0 to 2"),
        ("1_0", {}, "is not a number of points from 0 to 2"),
        ("1", {"number": "1"}, "is marked by the key and takes no points by hand"),
        ("1", {"number": "9"}, "ada: there is no question '9'"),
        ("1", {"student": "eve"}, "eve has no form in this key"),
        ("1", {"mark": "a0"}, "Points were given to answers that have changed since:\nada, question 7"),
    ],
)
def test_points_that_cannot_be_are_refused_and_nothing_is_written(mark, points, more, reason):
    _, out = mark()
    fill(out / "by_hand.csv", {"ada": points}, **more)
    before = (out / "by_hand.csv").read_text()
    result, _ = mark("--force")
    assert result.exit_code == 1 and reason in result.output, result.output
    assert (out / "by_hand.csv").read_text() == before


def test_points_from_another_file_and_a_file_that_is_no_table_of_points(mark, tmp_path):
    _, out = mark()
    fill(out / "by_hand.csv", {"ada": "2", "bob": "2"})
    (out / "by_hand.csv").rename(tmp_path / "graded.csv")
    mark("--force", "--points", tmp_path / "graded.csv")
    assert [row["points"] for row in read(out / "scores.csv")] == ["8", "8", ""]
    result, _ = mark("--force", "--points", out / "scores.csv")
    assert result.exit_code == 1 and "has no column 'number'" in result.output


@pytest.mark.parametrize("platform", ["moodle", "canvas"])
def test_an_essay_in_a_platforms_report_is_found_by_its_text(form, tmp_path, platform):
    numeric, essay = form.variants
    shown = essay.text.replace("<steps>", "")  # platforms drop an element that they do not know
    asked = [f"{numeric.text} (Give a number, in ms.)", f"{shown} (Answer in your own words, about 60 of them"]
    asked[1] += " (2 points).)"
    answers = ["12", "Sums -> copies, 1: 2; 3"]
    rows = {
        "moodle": [
            ["Username", "State", *(f"{name} {n}" for n in (1, 2) for name in ("Question", "Response"))],
            ["ada", "Finished", asked[1], answers[1], asked[0], answers[0]],
        ],
        "canvas": [
            [
                "name",
                "id",
                "sis_id",
                f"7: {asked[1]}",
                "2.0",
                f"8: {asked[0]}",
                "1.0",
                "n correct",
                "n incorrect",
                "score",
            ],
            ["Ada", "1", "ada", answers[1], "", answers[0], "1.0", "1", "0", "1.0"],
        ],
    }[platform]
    with (tmp_path / "report.csv").open("w", newline="") as lines:
        csv.writer(lines).writerows(rows)
    responses = read_responses(tmp_path / "report.csv", [form])
    assert not responses.problems and not responses.strangers
    assert responses.given["ada"][2].response == answers[1]


def test_points_are_of_one_answer_alone(dealt):
    variant = dealt[0][0].variants[-1]
    assert mark_of(variant, "sums") == mark_of(variant, " sums\n") != mark_of(variant, "other sums")
    assert mark_of(variant, "sums").startswith("a")


def test_a_notebooks_essay_is_read_and_an_untouched_one_is_empty(dealt, tmp_path):
    forms, _ = dealt
    for form, written in zip(forms, ["Sums & copies.", "*Replace this line with your answer.*", None], strict=True):
        book = json.loads(notebook(form, {}))
        book["cells"][-1] = {"cell_type": "markdown", "id": f"question_{COUNT}", "metadata": {}, "source": written}
        del book["cells"][-1 if written is None else len(book["cells"]) :]
        (tmp_path / f"{form.student.id}.ipynb").write_text(json.dumps(book))
    responses = read_responses(tmp_path, forms)
    assert responses.given["ada"][COUNT].response == "Sums & copies."
    assert responses.given["bob"][COUNT].response is None
    assert [str(one) for one in responses.problems] == [
        f"cem.ipynb: cem, question {COUNT}: there is no cell question_{COUNT}."
    ]
    marked = mark_forms(forms, responses)
    assert [one.num_waiting for one in marked] == [1, 1, 1]
    with pytest.raises(ValueError, match="1 answer of ada is still to be graded by hand"):
        _ = marked[0].is_passed
    assert statistics.overview(marked).totals is None
    assert "t-essay" not in {item.question.id for item in statistics.items(marked)}
