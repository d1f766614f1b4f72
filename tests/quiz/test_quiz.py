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


def test_a_week_asks_the_first_five_of_its_ten_questions():
    loaded = quiz.load("week01")
    assert len(loaded.question) == 10
    assert {question.week for question in loaded.question} == {1}
    asked = [variant.question.id for variant in quiz.ask("week01").variants]
    assert asked == [question.id for question in loaded.question[:5]]


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
            r"line 9, question 1 \(t-two\), difficulty: Input should be less than or equal",
        ),
        ("week = 1\n", "", r"line 4, question 1 \(t-two\), week: Field required"),
        ("minutes", "minuets", r"question 1 \(t-two\), minuets: Extra inputs are not permitted"),
        (', feedback = "That is one too many."', "", r"question 1 \(t-two\), choice 2, feedback: Field required"),
        ('"That is one too many."', '" "', r"question 1 \(t-two\), choice 2, feedback: String should have at least"),
        (
            "correct = true",
            f"correct = false{MISCOUNTED}",
            r"\(t-two\): a single-choice question has exactly one .* one has 0",
        ),
        (
            f"correct = false{MISCOUNTED}",
            "correct = true",
            r"\(t-two\): a single-choice question has exactly one .* one has 2",
        ),
        (MISCOUNTED, "", r"question 1 \(t-two\), choice 2: a wrong choice names its misconception"),
        ('"t-even"', '"t-two"', "line 19, question t-two: its id is used more than once"),
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
    with pytest.raises(ValueError, match=r"question 2 \(t-even\): a multiple-choice question has at least one"):
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
