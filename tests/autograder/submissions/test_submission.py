"""Whatever file is handed in, it is a notebook of the assignment or a sentence why not."""

import json
import os
from copy import deepcopy

import nbformat
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from tiny_lab import LAB, answered

from autograder.authoring.notebooks import notebook as build_notebook
from autograder.authoring.scripts import parse
from autograder.submissions import Malformed, notebook_json, submitted_files
from autograder.submissions.student_code import given_imports, student_cells, student_code
from autograder.submissions.submission import read_submission

ANSWER = "def total(tensor):\n    return 7"


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    path = tmp_path_factory.mktemp("lab") / "sums.py"
    path.write_text(LAB)
    return build_notebook(parse(path), graded=True)


@pytest.fixture
def submission(release):
    return answered(deepcopy(release), {"total": ANSWER})


@pytest.fixture
def read(tmp_path, release):
    def read_file(content):
        path = tmp_path / "sums.ipynb"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return read_submission(path, release).notebook

    return read_file


def cell_of(notebook, name):
    (found,) = (cell for cell in notebook.cells if cell.metadata.get("nbgrader", {}).get("grade_id") == name)
    return found


def cells_of(submission, release):
    return dict(student_cells(submission, release))


# Files that are no notebook of the assignment.


def nested(depth):
    return f'{{"nbformat": 4, "nbformat_minor": 5, "cells": [], "metadata": {"[" * depth}1{"]" * depth}}}'


def of_tomorrow(cell):
    """A notebook of a format that nbformat does not know yet, which may therefore have cells that it does not know."""
    return json.dumps({"nbformat": 4, "nbformat_minor": 99, "metadata": {}, "cells": [cell]}).encode()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "damaged"),
        (b"not json", "damaged"),
        (b"\x00\x01\xff\xfe" * 100, "damaged"),
        (b"\x89PNG\r\n\x1a\n", "damaged"),
        (b'{"cells": [', "damaged"),
        (b"[1, 2]", "not a valid notebook"),
        (b"null", "not a valid notebook"),
        (b"{}", "not a valid notebook"),
        (b'{"cells": 3, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}', "not a valid notebook"),
        (b'{"cells": [], "metadata": {}, "nbformat": 99, "nbformat_minor": 5}', "not a valid notebook"),
        (b'{"cells": [], "metadata": {}, "nbformat": "4", "nbformat_minor": []}', "not a valid notebook"),
        (b'{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}', "no cell of this assignment"),
        (nested(60).encode(), "deeper"),
        (nested(100_000).encode(), "damaged"),
        (b'{"nbformat": 1' + b"0" * 5000 + b"}", "damaged"),
        (of_tomorrow({"cell_type": "foo", "metadata": {}}), "a cell of a type .* 'foo'"),
        (of_tomorrow({"cell_type": "foo", "metadata": {}, "source": "x = 1"}), "a cell of a type .* 'foo'"),
        (of_tomorrow({"cell_type": "", "metadata": {}}), "a cell of a type .* ''"),
        (of_tomorrow({"cell_type": "x\ud800" * 999, "metadata": {}}), "a cell of a type"),
        (of_tomorrow({"cell_type": ["code"], "metadata": {}}), "a cell of a type"),
        (of_tomorrow({"cell_type": "markdown", "metadata": {}}), "not a valid notebook"),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_a_file_that_is_no_notebook_gets_a_sentence(read, content, said):
    with pytest.raises(Malformed, match=said) as refused:
        read(content)
    assert str(refused.value).endswith((".", "?")) and len(str(refused.value)) < 500


@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_notebook_is_damaged(read, submission, fraction):
    text = nbformat.writes(submission)
    with pytest.raises(Malformed, match="damaged"):
        read(text[: int(len(text) * fraction)])


def test_a_notebook_of_another_assignment_is_told_so(read):
    other = new_notebook(cells=[new_code_cell("def total(tensor):\n    return 7")])
    with pytest.raises(Malformed, match="a different file"):
        read(other)


def test_a_large_file_is_not_even_read(read, submission):
    submission.metadata.padding = "x" * (25 << 20)
    with pytest.raises(Malformed, match="25 MB; at most 20"):
        read(submission)


def test_endless_source_is_refused(read, submission):
    cell_of(submission, "total").source = "x = 1\n" * 200_000
    with pytest.raises(Malformed, match="characters"):
        read(submission)


def test_too_many_cells_are_refused(read, submission):
    submission.cells += [new_code_cell("") for _ in range(submitted_files.MAX_CELLS)]
    with pytest.raises(Malformed, match="cells; at most"):
        read(submission)


def test_too_many_values_are_refused_before_nbformat_copies_each(read, submission, monkeypatch):
    submission.metadata.padding = [[{}] * 1000] * 200
    monkeypatch.setattr(nbformat, "reads", lambda *_, **__: pytest.fail("nbformat was given them"))
    with pytest.raises(Malformed, match="more than 200000 values; clear its outputs"):
        read(json.dumps(submission))


def test_as_many_values_as_outputs_have_are_read(read, submission):
    content = json.loads(nbformat.writes(submission))
    content["cells"][-1]["outputs"] = [{}] * (notebook_json.MAX_NODES + 1)
    assert cells_of(read(content), submission)["total"] == ANSWER


def test_text_that_no_file_can_hold_is_refused(read, submission):
    cell_of(submission, "total").source = 'x = "\ud800"'
    with pytest.raises(Malformed, match="Unicode"):
        read(submission)


@pytest.mark.parametrize("kind", ["missing", "link", "folder", "pipe", "dangling"])
def test_only_a_plain_file_is_read(tmp_path, release, submission, kind):
    path, real = tmp_path / "sums.ipynb", tmp_path / "real.ipynb"
    real.write_text(nbformat.writes(submission))
    if kind == "link":
        path.symlink_to(real)
    elif kind == "dangling":
        path.symlink_to(tmp_path / "nothing")
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    with pytest.raises(Malformed, match=r"holds no sums\.ipynb" if kind == "missing" else "plain file"):
        read_submission(path, release)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(content=st.binary(max_size=200))
def test_any_bytes_are_a_notebook_or_malformed(tmp_path_factory, release, content):
    path = tmp_path_factory.getbasetemp() / "any_bytes.ipynb"
    path.write_bytes(content)
    with pytest.raises(Malformed):
        read_submission(path, release)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["nbgrader", "grade_id", "cell_type", "source", "cells", "metadata", "total"]), inner
        )
    ),
    max_leaves=8,
)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(data=st.data())
def test_any_damage_to_a_notebook_is_read_or_malformed(tmp_path_factory, release, data):
    content = json.loads(nbformat.writes(release))
    for _ in range(data.draw(st.integers(1, 3))):
        place = content
        for _ in range(data.draw(st.integers(0, 5))):
            inner = list(place.values()) if isinstance(place, dict) else place
            inner = [child for child in inner if isinstance(child, dict | list) and child]
            place = data.draw(st.sampled_from(inner)) if inner else place
        if place:
            key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            place[key] = data.draw(JSON)
    path = tmp_path_factory.getbasetemp() / "any_damage.ipynb"
    path.write_text(json.dumps(content))
    try:
        notebook = read_submission(path, release).notebook
    except Malformed:
        return
    nbformat.validate(notebook)
    assert all(isinstance(source, str) for _, source in student_cells(notebook, release))
    assert {cell.metadata.nbgrader.grade_id for cell in notebook.cells if "nbgrader" in cell.metadata} >= {
        "check_total",
        "check_mean",
    }


# Files that people really hand in.


@pytest.mark.parametrize("damage", ["bom", "no ids", "bad outputs", "minor 4"])
def test_what_other_programs_write_is_read(read, submission, damage):
    content = json.loads(nbformat.writes(submission))
    if damage == "bom":
        content = "\ufeff" + json.dumps(content)
    elif damage == "bad outputs":
        content["cells"][-1]["outputs"] = [{"output_type": "stream", "text": 3}]
    else:
        content["nbformat_minor"] = 4
        for cell in content["cells"]:
            cell.pop("id")
    assert cells_of(read(content), submission)["total"] == ANSWER


@pytest.mark.parametrize("ids", [["same"] * 5, ["", "a b", None, 3, "x" * 100]])
def test_ids_of_a_stranger_are_not_read(read, submission, ids, recwarn):
    content = json.loads(nbformat.writes(submission))
    for cell, name in zip(content["cells"], ids, strict=False):
        cell["id"] = name
    assert cells_of(read(content), submission)["total"] == ANSWER
    assert not recwarn.list, "a line for every cell would bury what an instructor must read"


def test_a_notebook_in_an_old_form_is_refused_before_nbformat_reads_it(read, release, submission):
    old = nbformat.convert(submission, 3)
    old.worksheets[0].cells[0] = {"cell_type": "heading", "level": 10**12, "source": "of 1 TB", "metadata": {}}
    with pytest.raises(Malformed, match=r"^The file is of version 3 of its form. Open it in JupyterLab, save it and"):
        cells_of(read(old), release)


# What of a file is taken.


def test_grading_metadata_and_outputs_of_a_stranger_are_not_taken(read, release, submission):
    forged = json.loads(nbformat.writes(submission))
    for cell in forged["cells"]:
        cell["metadata"]["nbgrader"]["points"] = 1000
        cell["metadata"]["nbgrader"]["schema_version"] = 99
        cell["metadata"]["nbgrader"]["locked"] = False
        cell["metadata"]["tags"] = ["remove_cell"]
    forged["cells"][-1]["outputs"] = [
        {"output_type": "execute_result", "data": {"text/plain": "1000"}, "metadata": {}, "execution_count": 1}
    ]
    forged["metadata"] = {"worldsize": {"checks": []}, "kernelspec": {"name": "evil", "display_name": "evil"}}
    rebuilt = read(forged)
    assert rebuilt.metadata == release.metadata
    assert [cell.metadata for cell in rebuilt.cells] == [cell.metadata for cell in release.cells]
    assert not any(cell.get("outputs") for cell in rebuilt.cells)


@pytest.mark.parametrize("marks", [[], "x", None, 3, {}, {"grade_id": []}, {"grade_id": {"a": 1}}, {"solution": True}])
def test_strange_grading_metadata_makes_a_cell_the_students_own(read, submission, marks):
    submission.cells.append(new_code_cell("EXTRA = 1"))
    content = json.loads(nbformat.writes(submission))
    content["cells"][-1]["metadata"]["nbgrader"] = marks
    rebuilt = read(content)
    assert rebuilt.cells[-1].source == "EXTRA = 1"
    assert rebuilt.cells[-1].metadata == {}


def test_a_changed_cell_type_is_put_back(read, submission):
    content = json.loads(nbformat.writes(submission))
    for cell in content["cells"]:
        if cell["metadata"]["nbgrader"]["grade_id"] in ("total", "check_total"):
            cell["cell_type"] = "markdown"
            del cell["outputs"], cell["execution_count"]
    rebuilt = read(content)
    assert cell_of(rebuilt, "total").cell_type == "code"
    assert cells_of(rebuilt, submission)["total"] == ANSWER


def test_deleted_check_cells_come_back(read, submission, release):
    submission.cells = [cell for cell in submission.cells if cell.metadata.nbgrader.grade_id == "total"]
    rebuilt = read(submission)
    assert [cell.metadata.nbgrader.grade_id for cell in rebuilt.cells] == ["total", "check_total", "check_mean"]
    assert cells_of(rebuilt, release)["setup"].startswith("import torch")


def test_a_deleted_check_cell_comes_back_in_its_place(read, submission, release):
    submission.cells = [cell for cell in submission.cells if cell.metadata.nbgrader.grade_id != "check_total"]
    names = [cell.metadata.nbgrader.grade_id for cell in read(submission).cells]
    assert names == [cell.metadata.nbgrader.grade_id for cell in release.cells] and names[-1] != "check_total"


def test_of_cells_with_one_grade_id_the_last_counts(read, submission, release):
    copied = deepcopy(cell_of(submission, "total"))
    copied.id, copied.source = "another", "def total(tensor):\n    return 8"
    submission.cells.append(copied)
    rebuilt = read(submission)
    assert cell_of(rebuilt, "total").source == copied.source
    assert list(cells_of(rebuilt, release).items())[-1] == ("total", copied.source)


def test_pictures_in_written_text_stay(read, submission):
    picture = {"a.png": {"image/png": "aGVsbG8="}}
    submission.cells.append(new_markdown_cell("![](attachment:a.png)", attachments=picture))
    assert read(submission).cells[-1].attachments == picture


def test_given_cells_are_the_releases(release, submission):
    cell_of(submission, "setup").source = "import os\nos.abort()"
    assert cells_of(submission, release)["setup"] == "import torch\nimport torch.distributed as dist\nSCALE = 1"


def test_missing_given_cells_come_first(release, submission):
    submission.cells = [cell for cell in submission.cells if cell.metadata.nbgrader.grade_id != "setup"]
    names = [name for name, _ in student_cells(submission, release)]
    assert names == ["setup", "total", "mean"]


def test_of_added_cells_only_definitions_are_taken(release, submission):
    submission.cells.insert(
        0, new_code_cell("import math\n%time x\nLIMIT: int = 4\nNAMES = ['a']\nprint('run')\nx = f()\ndef g(): pass")
    )
    submission.cells.append(new_markdown_cell("import nothing"))
    added = cells_of(submission, release)["number 1"]
    assert added == "import math\nLIMIT: int = 4\nNAMES = ['a']\ndef g():\n    pass"


def test_added_cells_count_where_the_release_has_cells_without_id(release, submission):
    release = deepcopy(release)
    release.cells.append(new_markdown_cell("no grade id"))
    submission.cells.append(new_code_cell("def helper(): pass"))
    assert "def helper" in cells_of(submission, release)[f"number {len(submission.cells)}"]


def test_magics_are_blanked_and_lines_stay(release, submission):
    cell_of(submission, "total").source = "%matplotlib inline\n!ls\ndef total(tensor):\n    return 7"
    assert cells_of(submission, release)["total"] == "\n\ndef total(tensor):\n    return 7"


@pytest.mark.parametrize("source", ["x = 1\0", "def f(:", "x = 1" + "0" * 5000, "x = 1" + "0" * 400 + " + 1j"])
def test_a_cell_that_is_not_python_defines_nothing(release, submission, source):
    submission.cells.append(new_code_cell(source))
    assert f"number {len(submission.cells)}" not in cells_of(submission, release)


def test_imports_of_given_cells_may_be_made_ahead(release, submission):
    cell_of(submission, "total").source = "import antigravity"
    assert given_imports(release) == ["torch", "torch.distributed"]


# What is known of the code without running it.


def test_an_answer_as_it_was_released_is_not_written_yet(release):
    assert student_code(deepcopy(release), release).unwritten == {"check_total", "check_mean"}


def test_a_check_is_about_the_answer_before_it(release, submission):
    assert student_code(submission, release).unwritten == {"check_mean"}
    cell_of(submission, "mean").source = "def mean(tensor):\n    raise NotImplementedError('later')"
    assert student_code(submission, release).unwritten == {"check_mean"}
    cell_of(submission, "mean").source = "def mean(tensor):\n    return 0"
    assert student_code(submission, release).unwritten == set()


def test_names_are_seen_in_answers_additions_and_programs_but_not_in_given_cells(release, submission):
    cell_of(submission, "setup").source = "import ctypes"
    cell_of(submission, "total").source = "import gc\ngc.freeze()"
    submission.cells.append(new_code_cell("!cat /proc/1/maps\nimport gc\ngc.freeze()"))
    seen = student_code(submission, release, {"train.py": "open('/proc/1/maps')"}).look_at
    assert seen == ["total: gc.freeze", f"number {len(submission.cells)}: gc.freeze", "train.py: /proc"]


def test_a_cell_that_cannot_be_parsed_within_the_limits_is_a_verdict(release, submission):
    submission.cells.append(new_code_cell("import a" + ".a" * 100_000))
    with pytest.raises(Malformed, match=rf"^Cell {len(submission.cells)} cannot be parsed within 512 MB .*again\.$"):
        student_code(submission, release)
    submission.cells.pop()
    cell_of(submission, "total").source = "x = " + "not " * 50_000 + "1"
    with pytest.raises(Malformed, match="The cell total cannot be parsed"):
        student_code(submission, release)


def test_a_large_file_is_read_as_a_small_one_is(read, submission):
    submission.metadata.padding = "é\U0001f600\ud83d" * (1 << 18)
    assert cells_of(read(json.dumps(submission)), submission)["total"] == ANSWER
    for text, said in (("[" * (2 << 20), "damaged"), ('{"a":0},' * (1 << 18), "damaged")):
        with pytest.raises(Malformed, match=said):
            read(text)


def test_an_error_s_text_is_its_first_line_and_says_where_it_is_cut():
    assert notebook_json.first_line(ValueError(" one\ntwo")) == "one"
    assert notebook_json.first_line(ValueError("x" * 300)) == "x" * 200 + " ..."
