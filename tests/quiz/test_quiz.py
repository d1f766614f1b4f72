"""The bank refuses malformed questions by line and name, and a form reveals nothing before an attempt."""

import pytest

from worldsize import quiz
from worldsize.explore import frontend
from worldsize.quiz.answer_form import form
from worldsize.quiz.answer_form import page as page_of

QUESTION = """
title = "a test"

[[question]]
id = "t-two"
kind = "single"
pool = "self-check"
week = 1
objective = "Add."
difficulty = 1
minutes = 1
source = "arithmetic"
text = "What is **1 + 1**?"
choice = [
    {text = "2", correct = true, feedback = "One *and* one."},
    {text = "3", correct = false, misconception = "miscounted", feedback = "That is one too many."},
]

[[question]]
id = "t-even"
kind = "multiple"
pool = "self-check"
week = 1
objective = "Know even numbers."
difficulty = 1
minutes = 1
source = "arithmetic"
text = "Which are even?"
choice = [
    {text = "four", correct = true, feedback = "Two twos."},
    {text = "five", correct = false, misconception = "miscounted", feedback = "One is left over."},
    {text = "six", correct = true, feedback = "Three twos."},
]
"""
MISCOUNTED = ', misconception = "miscounted"'


@pytest.fixture
def bank(tmp_path):
    """Writes a quiz called `test` and gives its folder."""

    def write(text=QUESTION):
        folder = tmp_path / "quizzes"
        folder.mkdir(exist_ok=True)
        (folder / "test.toml").write_text(text, encoding="utf-8")
        return folder

    return write


@pytest.fixture
def page(bank):
    """The widgets of one question's page: fields by the texts of their choices, Check, feedback."""

    def make(place):
        variant = quiz.ask("test", folder=bank()).variants[place]
        _, *fields, check, feedback = page_of(variant).children
        texts = [option.text for option in variant.answer.options]
        if len(fields) == 1:
            return fields[0], {text: place for place, text in enumerate(texts)}, check, feedback
        return fields, dict(zip(texts, fields, strict=True)), check, feedback

    return make


def test_a_lesson_asks_its_weeks_self_check_and_nothing_that_is_graded():
    loaded = quiz.load("week01")
    wanted = [question.id for question in loaded.question if question.pool == "self-check"]
    assert len(wanted) == 5 < len(loaded.question)
    assert [variant.question.id for variant in quiz.ask("week01").variants] == wanted
    assert [variant.question.id for variant in quiz.ask("week01", 99).variants] == wanted


def test_a_quiz_without_a_self_check_is_not_asked(bank):
    with pytest.raises(ValueError, match='has no question for a self-check: give some of them pool = "self-check"'):
        quiz.ask("test", folder=bank(QUESTION.replace('"self-check"', '"exam"')))


def test_an_essay_is_no_self_check(bank):
    essay = """
kind = "essay"
num_words = 50
feedback = "So."
rubric = [{points = 1, text = "This."}, {points = 0.5, text = "That."}]
"""
    asked = QUESTION.partition("text =")[0].replace('kind = "single"', essay) + 'text = "Explain."'
    with pytest.raises(ValueError, match=r"\(t-two\): an essay is graded by hand, so it cannot be a self-check"):
        quiz.load("test", bank(asked))
    (question,) = quiz.load("test", bank(asked.replace("self-check", "exam"))).question
    assert question.points == 1.5
    assert quiz.mark(quiz.draw(question, 0), "Because.").is_waiting


def test_folder_is_found_upwards_from_the_working_directory(bank, monkeypatch):
    deep = bank().parent / "weeks" / "deep"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert quiz.load("test").title == "a test"


def test_unknown_quiz_names_those_there_are(bank):
    folder = bank()
    (folder / "blueprints.toml").write_text("[module]\ncount = 3\n")  # lies beside the questions and has none
    with pytest.raises(ValueError, match=r"no quiz 'week99' in .*: choose one of test\.$"):
        quiz.load("week99", folder)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("id =", "id", "test.toml is not valid TOML: Expected '=' after a key"),
        (
            "difficulty = 1",
            "difficulty = 4",
            r"line 10, question 1 \(t-two\), difficulty: Input should be less than or equal",
        ),
        (
            'pool = "self-check"',
            'pool = "midterm"',
            r"line 7, question 1 \(t-two\), pool: Input should be 'self-check', 'weekly' or 'exam'",
        ),
        ('pool = "self-check"\n', "", r"line 4, question 1 \(t-two\), pool: Field required"),
        ("week = 1\n", "", r"line 4, question 1 \(t-two\), week: Field required"),
        ("minutes", "minuets", r"question 1 \(t-two\), minuets: Extra inputs are not permitted"),
        (', feedback = "That is one too many."', "", r"question 1 \(t-two\), choice 2, feedback: Field required"),
        ('"That is one too many."', '" "', r"question 1 \(t-two\), choice 2, feedback: String should have at least"),
        (
            "correct = true",
            f"correct = false{MISCOUNTED}",
            r"\(t-two\): a single-choice question needs exactly one .* one has 0",
        ),
        (
            f"correct = false{MISCOUNTED}",
            "correct = true",
            r"\(t-two\): a single-choice question needs exactly one .* one has 2",
        ),
        (MISCOUNTED, "", r"question 1 \(t-two\), choice 2: a wrong choice must name its misconception"),
        ('"t-even"', '"t-two"', "line 20, question t-two: its id is used more than once"),
        (
            'kind = "single"',
            'kind = "guess"',
            r"line 4, question 1 \(t-two\): Input tag 'guess' found using 'kind' does not match",
        ),
        (QUESTION, 'title = "empty"\nquestion = []', "question: List should have at least 1 item"),
    ],
)
def test_malformed_file_is_refused_by_file_question_and_reason(bank, old, new, sentence):
    assert old in QUESTION
    with pytest.raises(ValueError, match=sentence) as caught:
        quiz.load("test", bank(QUESTION.replace(old, new)))
    assert str(caught.value).startswith("test.toml")


def test_multiple_choice_needs_a_correct_choice(bank):
    with pytest.raises(ValueError, match=r"question 2 \(t-even\): a multiple-choice question needs at least one"):
        quiz.load("test", bank(QUESTION.split('id = "t-even"')[0] + 'id = "t-even"' + _all_wrong()))


def _all_wrong():
    return QUESTION.split('id = "t-even"')[1].replace("true", f"false{MISCOUNTED}")


def test_without_anyone_to_click_the_questions_stand_there_without_answers(bank):
    bundle = quiz.ask("test", folder=bank())._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    for text in bundle.values():
        assert "four" in text and "3" in text
        assert not any(words in text for words in ("one too many", "Two twos", "correct", "Right"))
    assert "<strong>1 + 1</strong>" in bundle["text/html"]
    assert "http" not in bundle["text/html"]


def test_with_a_live_kernel_the_form_comes_with_html_and_text(bank, monkeypatch):
    monkeypatch.setattr(frontend, "is_interactive", lambda: True)
    bundle = quiz.ask("test", folder=bank())._repr_mimebundle_()
    assert set(bundle) == {"application/vnd.jupyter.widget-view+json", "text/html", "text/plain"}


def test_form_tells_nothing_before_an_attempt(page):
    radio, _, check, feedback = page(0)
    assert feedback.value == "" and radio.value is None
    check.click()
    assert "Choose an answer first" in feedback.value


def test_single_choice_explains_the_choice_that_was_made(page):
    radio, places, check, feedback = page(0)
    radio.value = places["3"]
    check.click()
    assert "Not yet." in feedback.value and "That is one too many." in feedback.value
    assert "One <em>and</em> one" not in feedback.value
    radio.value = places["2"]
    check.click()
    assert "Right." in feedback.value and "One <em>and</em> one" in feedback.value


@pytest.mark.parametrize(
    ("chosen", "verdict"),
    [
        (["four", "six"], "Right."),
        (["four"], "something is missing"),
        (["four", "five", "six"], "Not yet."),
        (["five"], "Not yet."),
        (["four", "five"], "Not yet."),
    ],
)
def test_multiple_choice_is_right_only_as_a_whole(page, chosen, verdict):
    _, boxes, check, feedback = page(1)
    for text in chosen:
        boxes[text].value = True
    check.click()
    assert verdict in feedback.value
    assert ("One is left over." in feedback.value) == ("five" in chosen)


def test_form_turns_from_question_to_question(bank):
    place, shown, buttons = form(quiz.ask("test", folder=bank()).variants).children
    back, onward = buttons.children
    first = shown.children[0]
    assert "Question 1 of 2" in place.value and back.disabled and not onward.disabled
    onward.click()
    assert "Question 2 of 2" in place.value and onward.disabled
    assert shown.children[0] is not first
    back.click()
    assert shown.children[0] is first  # and with it what was answered
