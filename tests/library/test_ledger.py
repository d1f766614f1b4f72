"""A prediction is committed before its result, and survives whatever happens to the file."""

import json

import pytest

from worldsize import ledger


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_prediction_stands_beside_result():
    ledger.predict("speed-up", 2, "times")
    ledger.result("speed-up", 1.5)
    assert ledger.show().rows() == [["speed-up", "2.00 times", "1.50 times", "0.750 ×"]]
    assert str(ledger.show()).splitlines()[1].split("  ")[0] == "speed-up"


def test_prediction_may_change_until_the_result_is_known():
    ledger.predict("time", 3, "s")
    ledger.predict("time", 4, "s")
    ledger.result("time", 8, "s")
    ledger.predict("time", 4, "s")  # the cell is run again: nothing changes
    with pytest.raises(ValueError, match=r"already known \(8\.00 s\), so your prediction stays as it was: 4\.00 s"):
        ledger.predict("time", 8, "s")
    assert ledger.show().entries["time"].prediction == 4


def test_no_prediction_can_be_made_after_the_result(capsys):
    ledger.predict("time", None, "s")
    assert "no prediction" in capsys.readouterr().out
    ledger.result("time", 8)
    with pytest.raises(ValueError, match="no prediction"):
        ledger.predict("time", 8, "s")
    assert ledger.show().rows() == [["time", "no prediction", "8.00 s", ""]]


def test_unattended_run_keeps_an_earlier_prediction(capsys):
    ledger.predict("time", 3, "s")
    capsys.readouterr()
    ledger.predict("time", None, "s")
    assert capsys.readouterr().out == ""
    assert ledger.show().entries["time"].prediction == 3


def test_a_later_result_replaces_the_earlier_one():
    ledger.result("time", 8, "s")
    ledger.result("time", 9, "s")
    assert ledger.show().rows() == [["time", "no prediction", "9.00 s", ""]]


@pytest.mark.parametrize("value", ["soon", float("nan"), float("inf"), True, [1, 2]])
def test_only_numbers_are_predictions(value):
    with pytest.raises(ValueError, match=r"'time' needs a number, such as 12\.5"):
        ledger.predict("time", value)
    assert not ledger.show().entries


@pytest.mark.parametrize("content", ['{"time": ', "[1, 2]", '{"time": {"colour": 3}}', '{"time": {"result": "3"}}'])
def test_unreadable_file_is_kept_and_a_new_one_begins(in_empty_folder, capsys, content):
    (in_empty_folder / "ledger.json").write_text(content)
    ledger.predict("time", 3, "s")
    assert "kept as ledger.unreadable-1.json; a new one begins" in capsys.readouterr().out
    assert (in_empty_folder / "ledger.unreadable-1.json").read_text() == content
    assert json.loads((in_empty_folder / "ledger.json").read_text())["time"]["prediction"] == 3


def test_second_unreadable_file_does_not_replace_the_copy_of_the_first(in_empty_folder):
    for content in ("first", "second"):
        (in_empty_folder / "ledger.json").write_text(content)
        ledger.show()
    assert (in_empty_folder / "ledger.unreadable-1.json").read_text() == "first"
    assert (in_empty_folder / "ledger.unreadable-2.json").read_text() == "second"


def test_file_is_replaced_whole(in_empty_folder, monkeypatch):
    ledger.predict("time", 3, "s")
    monkeypatch.setattr(ledger.os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        ledger.result("time", 8)
    assert [path.name for path in in_empty_folder.iterdir()] == ["ledger.json"]
    assert ledger.show().entries["time"].result is None


def test_table_shows_as_html_and_text_and_escapes_names():
    ledger.result("<b>time</b>", 8, "s", path="other.json")
    bundle = ledger.show("other.json")._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain"}
    assert "&lt;b&gt;time&lt;/b&gt;" in bundle["text/html"]
    assert "<caption" in bundle["text/html"] and 'scope="col"' in bundle["text/html"]
    assert "8.00 s" in bundle["text/plain"]
