"""A prediction is committed before its result, and survives whatever happens to the file."""

import json
import os

import pytest
from filelock import FileLock, Timeout
from IPython.core.error import StdinNotImplementedError

from worldsize import ledger
from worldsize.ledger import Predictions


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def predictions():
    return Predictions("week06")


@pytest.fixture
def answers(monkeypatch):
    """What the person types, in order; what was asked is kept in `answers.asked`."""

    class Answers(list):
        asked = ()

    given = Answers()

    def answer(prompt):
        given.asked = (*given.asked, prompt)
        return given.pop(0)

    monkeypatch.setattr(ledger.frontend, "is_interactive", lambda: True)
    monkeypatch.setattr("builtins.input", answer)
    return given


def test_prediction_stands_beside_result(predictions):
    predictions.ask("speed-up", 2, "times")
    predictions.reveal("speed-up", 1.5)
    assert predictions.table().rows() == [["speed-up", "2.00 times", "1.50 times", "0.750 ×"]]
    assert str(predictions.table()).splitlines()[1].split("  ")[0] == "speed-up"


def test_prediction_may_change_until_the_result_is_known(predictions):
    predictions.ask("time", 3, "s")
    predictions.ask("time", 4, "s")
    predictions.reveal("time", 8, "s")
    predictions.ask("time", 4, "s")  # the cell is run again: nothing changes
    with pytest.raises(ValueError, match=r"already known \(8\.00 s\), so your prediction stays as it was: 4\.00 s"):
        predictions.ask("time", 8, "s")
    assert predictions.table().entries["time"].prediction == 4


def test_no_prediction_can_be_made_after_the_result(predictions, capsys):
    predictions.ask("time", None, "s")
    assert capsys.readouterr().out == "time: predict it before you read on, in s.\n"
    predictions.reveal("time", 8)
    assert capsys.readouterr().out == "time: it is 8 s.\n"
    predictions.ask("time", None, "s")
    assert capsys.readouterr().out == "time: its result is known.\n"
    with pytest.raises(ValueError, match="no prediction"):
        predictions.ask("time", 8, "s")
    assert predictions.table().rows() == [["time", "", "8.00 s", ""]]
    assert str(predictions.table()).splitlines()[0].split() == ["quantity", "result"]
    predictions.ask("space", 1, "GB")
    assert str(predictions.table()).splitlines()[0].split()[:3] == ["quantity", "prediction", "result"]


def test_a_later_result_replaces_the_earlier_one(predictions):
    predictions.reveal("time", 8, "s")
    predictions.reveal("time", 9, "s")
    assert predictions.table().rows() == [["time", "", "9.00 s", ""]]


@pytest.mark.parametrize("value", ["soon", float("nan"), float("inf"), True, [1, 2]])
def test_only_numbers_are_predictions_and_results(predictions, value):
    for record in (predictions.ask, predictions.reveal):
        with pytest.raises(ValueError, match=r"'time' needs a number, such as 12\.5"):
            record("time", value)
    assert not predictions.table().entries


def test_a_week_shows_its_own_rows_in_the_order_asked(in_empty_folder):
    other = Predictions("week01")
    other.ask("years", 10)
    first = Predictions("week06")
    first.ask("b", 1)
    first.ask("gone", 1)
    again = Predictions("week06")
    again.reveal("a", 3)  # of another order of cells
    again.ask("a", None)
    again.ask("b", 1)
    assert list(again.table().entries) == ["a", "b", "gone"]
    assert list(other.table().entries) == ["years"]
    assert set(json.loads((in_empty_folder / "ledger.json").read_text())) == {"week01", "week06"}


def test_person_is_asked_until_there_is_a_number(predictions, answers, capsys):
    answers += ["", "many", "nan", " 3 GB "]
    predictions.ask("memory", None, "GB")
    assert answers.asked == ("Your prediction, memory? A number, in GB: ",) * 4
    out = capsys.readouterr().out
    assert out.count("is not a number in GB; type a number, in GB, such as 12.5") == 3
    assert out.endswith("memory: you predict 3 GB.\n")
    assert predictions.table().entries["memory"].prediction == 3


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("b", 10),
        ("B)", 10),
        ("12.5", 12.5),
        ("1,000", 1000),
        ("1e3 GB", 1000),
        ("-2", -2),
        ("3gB", 3),
        ("+1,000", 1000),
        ("1,5", 1.5),
    ],
)
def test_person_chooses_a_magnitude_or_types_a_number(predictions, answers, typed, value):
    answers += [typed]
    predictions.ask("memory", None, "GB", choices=(1, 10, 100))
    assert "a) 1 GB,  b) 10 GB,  c) 100 GB." in answers.asked[0]
    assert predictions.table().entries["memory"].prediction == value


@pytest.mark.parametrize("typed", ["d", "ab", "1,5,5", "3 MB", "inf"])
def test_what_is_neither_is_asked_again(predictions, answers, typed, capsys):
    answers += [typed, "a"]
    predictions.ask("memory", None, "GB", choices=(1, 10, 100))
    assert f"{typed!r} is not a number in GB; type one of the letters a, b, c, or a number" in capsys.readouterr().out
    assert predictions.table().entries["memory"].prediction == 1


def test_bits_are_not_taken_for_bytes(predictions, answers, capsys):
    answers += ["24 Gb", "3 GB"]
    predictions.ask("memory", None, "GB")
    assert "'24 Gb' is not a number in GB: b is a bit, B a byte; type a number" in capsys.readouterr().out
    assert predictions.table().entries["memory"].prediction == 3


def test_nobody_is_asked_twice_nor_when_the_result_is_known(predictions, answers, capsys):
    answers += ["3"]
    for _ in range(2):
        predictions.ask("time", None, "s")
    assert len(answers.asked) == 1
    assert capsys.readouterr().out == "time: you predict 3 s.\n" * 2
    predictions.reveal("size", 8)
    predictions.ask("size", None)
    assert len(answers.asked) == 1


def test_what_another_notebook_records_meanwhile_is_kept(predictions, answers, monkeypatch):
    other = Predictions("week02")
    other.ask("before", 1)

    def answer(prompt):
        other.ask("all-reduce", 3.5, "ms")
        other.reveal("all-reduce", 4.1, "ms")
        return "7"

    monkeypatch.setattr("builtins.input", answer)
    predictions.ask("speed-up", None)
    assert other.table().rows()[1] == ["all-reduce", "3.50 ms", "4.10 ms", "1.17 ×"]
    assert predictions.table().entries["speed-up"].prediction == 7


def test_an_unattended_run_uses_no_question_up(predictions, monkeypatch):
    """Such as papermill's, or `nbgrader validate` of a lesson."""
    unattended = Predictions("week06")
    unattended.ask("speed-up", None)
    unattended.reveal("speed-up", 5)
    monkeypatch.setattr(ledger.frontend, "is_interactive", lambda: True)
    monkeypatch.setattr("builtins.input", lambda prompt: "4")
    predictions.ask("speed-up", None)
    assert predictions.table().rows() == [["speed-up", "4.00", "5.00", "1.25 ×"]]
    predictions.reveal("speed-up", 5)
    with pytest.raises(ValueError, match=r"already known \(5\.00\)"):
        predictions.ask("speed-up", 5)


def test_a_result_that_became_known_meanwhile_keeps_the_prediction(predictions, answers, monkeypatch):
    def answer(prompt):
        Predictions("week06").reveal("speed-up", 5)
        return "5"

    monkeypatch.setattr("builtins.input", answer)
    with pytest.raises(ValueError, match=r"already known \(5\.00\).* no prediction"):
        predictions.ask("speed-up", None)
    assert predictions.table().entries["speed-up"].prediction is None


@pytest.mark.parametrize("record", ["ask", "reveal"])
def test_ledger_is_locked_from_reading_to_writing(predictions, monkeypatch, record):
    could_lock = []

    def spy(name, before):
        def watch(*args):
            try:
                FileLock(".ledger.json.lock").acquire(blocking=False).lock.release()
                could_lock.append(name)
            except Timeout:
                could_lock.append(None)
            return before(*args)

        monkeypatch.setattr(ledger, name, watch)

    spy("_read", ledger._read)
    spy("_write", ledger._write)
    getattr(predictions, record)("time", 3, "s")
    assert could_lock == [None, None]


def test_a_number_in_the_parameters_is_not_asked_for(predictions, answers):
    predictions.ask("time", 3, "s")
    assert answers.asked == ()


def test_front_end_that_cannot_ask_after_all_is_not_asked(predictions, answers, monkeypatch, capsys):
    def refuse(prompt):
        raise StdinNotImplementedError(prompt)

    monkeypatch.setattr("builtins.input", refuse)
    predictions.ask("time", None, "s")
    assert capsys.readouterr().out == "time: predict it before you read on, in s.\n"


@pytest.mark.parametrize(
    ("prediction", "result", "words"),
    [
        (3, 54.5, "you predicted 3 GB; it is 54.5 GB, 18 times as much."),
        (40, 60, "you predicted 40 GB; it is 60 GB, 1.5 times as much."),
        (50, 54, "you predicted 50 GB; it is 54 GB, within 10%."),
        (54, 54, "you predicted 54 GB; it is 54 GB, as you said."),
        (80, 60, "you predicted 80 GB; it is 60 GB, 75% of that."),
        (900, 50, "you predicted 900 GB; it is 50 GB, 1/18 of that."),
        (0, 54, "you predicted 0 GB; it is 54 GB, not zero."),
        (54, 0, "you predicted 54 GB; it is 0 GB: nothing at all."),
        (-3, 4, "you predicted -3 GB; it is 4 GB, of the opposite sign."),
        (None, 54.5, "it is 54.5 GB."),
    ],
)
def test_result_says_how_far_off_the_prediction_was(predictions, capsys, prediction, result, words):
    predictions.ask("memory", prediction, "GB", section=5)
    capsys.readouterr()
    predictions.reveal("memory", result)
    assert capsys.readouterr().out == f"memory: {words} Section 5 derives it.\n"


def test_percent_sign_has_no_space_and_no_section_is_no_sentence(predictions, capsys):
    predictions.ask("share", 40, "%")
    predictions.reveal("share", 55.56)
    assert capsys.readouterr().out.splitlines()[1] == "share: you predicted 40%; it is 55.6%, 1.4 times as much."


@pytest.mark.parametrize(
    "content",
    [
        '{"week06": ',
        "[1, 2]",
        '{"week06": {"time": {"colour": 3}}}',
        '{"week06": {"time": {"result": "3"}}}',
        '{"time": {"prediction": 3, "result": null, "unit": "s"}}',  # before predictions were kept by week
    ],
)
def test_unreadable_file_is_kept_and_a_new_one_begins(in_empty_folder, predictions, capsys, content):
    (in_empty_folder / "ledger.json").write_text(content)
    predictions.ask("time", 3, "s")
    assert "kept as ledger.unreadable-1.json; a new one begins" in capsys.readouterr().out
    assert (in_empty_folder / "ledger.unreadable-1.json").read_text() == content
    assert json.loads((in_empty_folder / "ledger.json").read_text())["week06"]["time"]["prediction"] == 3


def test_second_unreadable_file_does_not_replace_the_copy_of_the_first(in_empty_folder, predictions):
    for content in ("first", "second"):
        (in_empty_folder / "ledger.json").write_text(content)
        predictions.table()
    assert (in_empty_folder / "ledger.unreadable-1.json").read_text() == "first"
    assert (in_empty_folder / "ledger.unreadable-2.json").read_text() == "second"


def test_file_is_replaced_whole(in_empty_folder, predictions, monkeypatch):
    predictions.ask("time", 3, "s")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        predictions.reveal("time", 8)
    assert {path.name for path in in_empty_folder.iterdir()} == {"ledger.json", ".ledger.json.lock"}
    assert predictions.table().entries["time"].result is None


def test_table_shows_as_html_and_text_and_escapes_names():
    predictions = Predictions("week06", "other.json")
    predictions.reveal("<b>time</b>", 8, "s")
    bundle = predictions.table()._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert "&lt;b&gt;time&lt;/b&gt;" in bundle["text/html"]
    assert "<caption" in bundle["text/html"] and 'scope="col"' in bundle["text/html"]
    assert "8.00 s" in bundle["text/plain"]
