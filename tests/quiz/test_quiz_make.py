"""`autograder quiz make` writes all of a quiz or nothing, the same bytes every time, and says what is wrong where."""

import csv
import dataclasses
import os
import signal
import stat
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
from processes import wait_until
from quiz_banks import write_bank, write_roster
from quiz_samples import NUMERIC, WORDS, question
from typer.testing import CliRunner

from autograder.cli import app
from autograder.quiz import form_writers, quiz_folder
from autograder.quiz.blueprint import Blueprint
from autograder.quiz.formats import FORMATS
from autograder.quiz.forms import Form, deal
from autograder.quiz.forms_summary import shared, summary_text
from autograder.quiz.key import printed, read_key
from autograder.quiz.whole_bank import read_bank
from autograder.tables.roster import Student, read_roster

PAPER = ("md", "html", "pdf", "ipynb")


@pytest.fixture
def place(tmp_path):
    """A folder with a bank of 24 questions and a class of three."""
    write_bank(tmp_path / "bank", num_weeks=2, num_figures=0)
    write_roster(tmp_path / "roster.csv", 3)
    return tmp_path


@pytest.fixture
def make(place):
    """Runs the command there; an option of None is left out."""

    def run(*more, **options):
        given = {"bank": place / "bank", "roster": place / "roster.csv", "out": place / "quiz", "count": 8, "seed": 1}
        given = {name.replace("_", "-"): value for name, value in {**given, **options}.items() if value is not None}
        words = [str(word) for name, value in given.items() for word in (f"--{name}", value)]
        return CliRunner().invoke(app, ["quiz", "make", *words, *more])

    return run


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_every_student_gets_a_form_in_every_format_and_the_instructor_a_key(place, make):
    result = make()
    assert result.exit_code == 0, result.output
    files = contents(place / "quiz")
    handouts = {f"handouts/{name}/s000{n}{FORMATS[name].suffix}" for name in PAPER for n in range(3)}
    others = {f"answers/{name}/s000{n}{FORMATS[name].suffix}" for name in set(FORMATS) - set(PAPER) for n in range(3)}
    keys = {f"answers/key.{suffix}" for suffix in ("json", "csv", "html", "pdf")}
    assert set(files) == handouts | others | keys | {"summary.txt"}
    assert (place / "quiz/summary.txt").read_text() in result.output and "3 forms of 8 questions" in result.output


@pytest.mark.parametrize("jobs", [1, 2])
def test_only_its_owner_can_read_what_holds_answers(place, make, monkeypatch, jobs):
    monkeypatch.setattr(quiz_folder, "_FEW", 2)
    make("--format", "md", format="moodle", jobs=jobs)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (place / "quiz").rglob("*")}
    answers = place / "quiz/answers"
    private = [path for path in modes if path == answers or answers in path.parents]
    assert {path.name for path in private} >= {"moodle", "s0000.moodle.xml", "key.json", "key.csv"}
    assert {path: modes[path] for path in private} == {path: 0o700 if path.is_dir() else 0o600 for path in private}
    assert modes[place / "quiz/handouts/md/s0000.md"] & 0o044 == 0o044


def test_a_format_that_nobody_says_to_hand_out_is_taken_to_hold_answers():
    assert quiz_folder.place_of(dataclasses.replace(FORMATS["md"], name="new")) == "answers/new"


def test_key_draws_the_forms_again_and_its_table_has_every_answer(place, make):
    make(format="md")
    forms = read_key(place / "quiz/answers/key.json", read_bank(place / "bank"))
    rows = list(csv.DictReader((place / "quiz/answers/key.csv").read_text("utf-8-sig").splitlines()))
    wanted = [
        (form.student.id, str(number), variant.question.id, variant.id, printed(variant.answer))
        for form in forms
        for number, variant in enumerate(form.variants, start=1)
    ]
    assert len(wanted) == 24
    assert [tuple(row.values()) for row in rows] == wanted
    assert forms[0].variants[0].text.split("**")[1] in (place / "quiz/handouts/md/s0000.md").read_text()


def test_an_answer_is_no_formula_in_the_keys_table():
    asked = question(WORDS.replace('"all-gather", ', '"＝1+1", '))
    (form,) = deal(Blueprint(title="Test", count=1), [asked], [Student("ada", "Ada")], b"k")
    (_, row) = csv.reader(quiz_folder._table([form]).decode("utf-8-sig").splitlines())
    assert row[-1] == "'＝1+1 or allgather"


def test_same_secret_gives_the_same_bytes_in_one_process_or_two_and_another_one_others(place, make, monkeypatch):
    monkeypatch.setattr(quiz_folder, "_FEW", 2)
    secret = place / "secret"
    assert make(seed=None, key_file=secret, out=place / "one", jobs=1).exit_code == 0
    key = secret.read_text()
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600 and len(bytes.fromhex(key)) == 32
    result = make(seed=None, key_file=secret, out=place / "two", jobs=2)
    assert secret.read_text() == key and key.strip() not in result.output
    one = contents(place / "one")
    assert one == contents(place / "two")
    assert not any(key.strip().encode() in content for content in one.values())
    make(seed=None, key_file=place / "other", out=place / "three", format="md")
    assert not {one[name] for name in one if name.startswith("handouts/md/")} & set(contents(place / "three").values())


@pytest.mark.parametrize(
    ("roster", "sentences"),
    [
        ("id,name\nann,Ann\nAnn,Another\n", ["roster.csv, line 3: the id 'Ann' is that of line 2"]),
        ("id,name\n../ann,Ann\n,Bo\n", ["line 2: the id '../ann' cannot be a file name", "line 3: Bo has no id"]),
        ("name\nAnn\n", ["it needs one called `id`"]),
        ("id,name\n", ["names no students"]),
    ],
)
def test_a_wrong_roster_is_reported_by_line(place, make, roster, sentences):
    (place / "roster.csv").write_text(roster)
    refused(place, make(), *sentences)


def test_a_malformed_bank_is_reported_by_file_and_line(place, make):
    text = (place / "bank/week02.toml").read_text()
    (place / "bank/week02.toml").write_text(text.replace("difficulty = 2", "difficulty = 9", 1))
    line = next(n for n, row in enumerate(text.splitlines(), start=1) if row == "difficulty = 2")
    refused(place, make(), f"week02.toml, line {line}, question", "difficulty: Input should be less than or equal to 3")


def test_an_id_of_two_files_is_reported(place, make):
    text = (place / "bank/week02.toml").read_text()
    (place / "bank/week02.toml").write_text(text.replace('"w02-text-0"', '"w01-text-0"'))
    refused(place, make(), "week02.toml: w01-text-0 is the id of a question in week01.toml")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"count": 25}, "asks for 25 questions, and the bank has 24 that fit"),
        ({"week": 3}, "asks for 8 questions, and the bank has 0 that fit"),
        ({"minutes": 15}, "No form of 8 questions took 15 minutes or less"),
        (
            {"difficulty": 4},
            "These options do not make a quiz: difficulties 0: Input should be less than or equal to 3",
        ),
        ({"count": None}, "Say which quiz: --blueprint NAME, or --count"),
        ({"blueprint": "final"}, "There is no blueprint 'final'"),
        ({"format": "docx"}, "There is no format 'docx': choose from md, html"),
        ({"paper": "a5"}, "There is no paper 'a5': choose one of a4, letter"),
        ({"seed": None}, "Give either --key-file, a secret that is created if absent, or --seed for a demonstration"),
        ({"key_file": "secret"}, "Give either --key-file"),
    ],
)
def test_what_cannot_be_made_is_reported(place, make, options, sentence):
    refused(place, make(**options), sentence)


def refused(place, result, *sentences):
    assert result.exit_code == 1
    for sentence in sentences:
        assert sentence in result.output
    assert {path.name for path in place.iterdir()} == {"bank", "roster.csv"}


def test_no_secret_is_made_for_a_quiz_that_cannot_be(place, make):
    refused(place, make(seed=None, key_file=place / "secret", count=25), "the bank has 24 that fit")


def test_a_secret_that_is_none_is_reported(place, make):
    (place / "secret").write_text("abcd\n")
    assert "holds 2 bytes and not the 32 of a secret" in make(seed=None, key_file=place / "secret").output


def test_options_change_a_blueprint(place, make):
    (place / "bank/blueprints.toml").write_text('[weekly]\ntitle = "Weekly quiz"\ncount = 4\nminutes = 30\n')
    result = make(blueprint="weekly", count=None, week=2, title="Quiz of week 2", format="md")
    assert "Quiz of week 2: 3 forms of 4 questions" in result.output
    assert "week 2" in result.output and "week 1" not in result.output
    assert "4 questions, 30 minutes" in (place / "quiz/handouts/md/s0001.md").read_text()


def test_a_quiz_of_one_week_is_not_made_of_all(place, make):
    (place / "bank/blueprints.toml").write_text('[weekly]\ntitle = "Weekly quiz"\ncount = 4\nneeds_week = true\n')
    said = make(blueprint="weekly", count=None, format="md").output
    assert "'weekly' needs its weeks: name them with --week." in said and not (place / "quiz").exists()
    assert make(blueprint="weekly", count=None, week=2, format="md").exit_code == 0


def test_an_earlier_quiz_is_replaced_by_force_alone_and_other_things_never(place, make):
    make(format="md")
    before = contents(place / "quiz")
    assert "holds a quiz already" in make(seed=2, format="md").output and contents(place / "quiz") == before
    assert make("--force", seed=2, format="html").exit_code == 0
    after = contents(place / "quiz")
    assert "handouts/html/s0000.html" in after and not (place / "quiz/handouts/md").exists()
    (place / "quiz/handouts/html/marks.txt").write_text("mine")
    assert "holds handouts/html/marks.txt, which is not part of a quiz" in make("--force").output
    assert contents(place / "quiz") == {**after, "handouts/html/marks.txt": b"mine"}


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError("no such formula")])
def test_what_goes_wrong_on_the_way_leaves_everything_as_it_was(place, make, monkeypatch, error):
    make(format="md")
    before = contents(place)
    html = FORMATS["html"]

    def render(form):
        if form.student.id == "s0001" and any(one.question.id.startswith("w01-cloze") for one in form.variants):
            raise error
        return html.render(form)

    monkeypatch.setitem(FORMATS, "html", dataclasses.replace(html, render=render))
    result = make("--force", "--week", "1", format="html", count=12)
    assert result.exit_code != 0
    assert contents(place) == before
    if error is not KeyboardInterrupt:
        assert "question w01-cloze-" in result.output and "as html: no such formula" in result.output


def test_an_interrupt_ends_all_processes_and_leaves_nothing(place):
    write_roster(place / "roster.csv", 2000)
    command = [sys.executable, "-m", "autograder", "quiz", "make", "--bank", place / "bank", "--count", "24"]
    command += ["--roster", place / "roster.csv", "--out", place / "quiz", "--seed", "1", "--jobs", "2"]
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
    process = subprocess.Popen(list(map(str, command)), **piped)
    try:
        assert wait_until(lambda: process.poll() is not None or list(place.glob(".quiz-*/new/handouts/md/*.md")), 120)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all of them
        output = process.communicate(timeout=120)[0].decode()  # until the last process has closed it
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert process.returncode != 0 and "Traceback" not in output, output
    assert {path.name for path in place.iterdir()} == {"bank", "roster.csv"}


def test_an_interrupt_waits_while_a_process_is_started_also_where_another_thread_takes_it():
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    reached = []
    try:
        with pytest.raises(KeyboardInterrupt), form_writers.interrupts_held():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append(over.wait(0.1))
    finally:
        over.set()
        other.join()
    assert reached == [False] and signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_summary_tells_shared_variants_as_a_count_by_hand_does(place):
    questions, roster = read_bank(place / "bank"), read_roster(write_roster(place / "many.csv", 30))
    forms = list(deal(Blueprint(title="t", count=12), questions, roster, b"k"))
    ids = [{variant.id for variant in form.variants if variant.parameters} for form in forms]
    pairs = [len(one & other) / 12 for n, one in enumerate(ids) for other in ids[:n]]
    assert shared(forms) == (pytest.approx(sum(pairs) / len(pairs)), max(pairs)) and max(pairs) > 0
    text = summary_text(forms, ["md"])
    assert "questions of every form" in text and f"at worst {max(pairs):.1%}" in text
    assert [line.split()[-1] for line in text.splitlines() if line.strip().startswith("all ")] == ["12"]


def test_summary_tells_when_forms_differ():
    ada, bo = Student("ada"), Student("bo")
    blueprint = Blueprint(title="t", count=1)
    asked = [next(deal(blueprint, [question(text)], [ada], b"k")).asked for text in (WORDS, NUMERIC)]
    harder = dataclasses.replace(
        asked[1][0].variant, question=asked[1][0].variant.question.model_copy(update={"difficulty": 3})
    )
    other = (dataclasses.replace(asked[1][0], variant=harder),)
    text = summary_text([Form(ada, blueprint, asked[0]), Form(bo, blueprint, other)], ["md"])
    assert "OTHERS DIFFER" in text and "mean difficulty  2.00 to 3.00" in text


def test_a_bank_needs_questions(tmp_path):
    with pytest.raises(ValueError, match="holds no questions"):
        read_bank(tmp_path)


def test_extra_time_is_on_the_students_form_and_in_the_summary(place, make):
    (place / "roster.csv").write_text("id,name,extra time\nann,Ann,\nbo,Bo,25%\ncy,Cy,50\n")
    assert make(format="md", minutes=30).exit_code == 0
    texts = {one: (place / f"quiz/handouts/md/{one}.md").read_text() for one in ("ann", "bo", "cy")}
    assert " 30 minutes." in texts["ann"] and " 38 minutes." in texts["bo"] and " 45 minutes." in texts["cy"]
    assert "extra time       minutes: bo 38, cy 45" in (place / "quiz/summary.txt").read_text()
    (place / "roster.csv").write_text("id,name\nann,Ann\nbo,Bo\ncy,Cy\n")
    assert make(format="md", minutes=30, out=place / "same").exit_code == 0
    assert "extra time" not in (place / "same/summary.txt").read_text()
    without = (place / "same/handouts/md/bo.md").read_text()
    assert without == texts["bo"].replace("38 minutes", "30 minutes"), "the same questions"
