"""`python -m worldsize update`: what the course changed arrives, and what a student changed stays."""

import json
import zipfile

import pytest

from worldsize.__main__ import main
from worldsize.update import CONTENTS, contents, update_course

BEFORE = {
    "README.md": b"a course\n",
    "worldsize/ring.py": b"RING = 1\n",
    "worldsize/gone.py": b"GONE = 1\n",
    "weeks/week01.ipynb": b"week 1\n",
    "labs/lab01/lab01.ipynb": b"lab 1\n",
    "labs/lab02/lab02.ipynb": b"lab 2\n",
}
AFTER = {
    "README.md": b"a course\n",
    "worldsize/ring.py": b"RING = 2\n",
    "worldsize/new/tree.py": b"TREE = 1\n",
    "weeks/week01.ipynb": b"week 1, mended\n",
    "labs/lab01/lab01.ipynb": b"lab 1, mended\n",
    "labs/lab02/lab02.ipynb": b"lab 2\n",
}


def packed(path, files, listing=None):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**files, CONTENTS: listing or contents(files).encode()}.items():
            archive.writestr(f"worldsize-course/{name}", content)
    return path


@pytest.fixture
def newer(tmp_path):
    return packed(tmp_path / "student.zip", AFTER)


@pytest.fixture
def course(tmp_path):
    """The folder of a student who has not begun."""
    with zipfile.ZipFile(packed(tmp_path / "first.zip", BEFORE)) as archive:
        archive.extractall(tmp_path)
    return tmp_path / "worldsize-course"


def everything(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_course_that_nobody_has_touched_becomes_the_newer_one(course, newer):
    done = update_course(newer, course)
    assert everything(course) == {**AFTER, CONTENTS: contents(AFTER).encode()}
    assert sorted(done.written) == sorted({*AFTER} - {"README.md", "labs/lab02/lab02.ipynb"})
    assert done.removed == ("worldsize/gone.py",) and done.beside == {}
    assert str(update_course(newer, course)) == "Up to date already."


def test_a_students_work_stays_and_the_newer_file_lies_beside_it(course, newer, capsys):
    mine = {"labs/lab01/lab01.ipynb": b"solved 1", "labs/lab02/lab02.ipynb": b"solved 2", "labs/lab02/notes.md": b"!"}
    for path, content in mine.items():
        (course / path).write_bytes(content)
    assert main(["update", str(newer), str(course)]) == 0
    said = capsys.readouterr().out
    assert "  labs/lab01/lab01.ipynb: labs/lab01/lab01.new.ipynb\n" in said and "lab02" not in said
    assert everything(course).items() >= {**mine, "labs/lab01/lab01.new.ipynb": b"lab 1, mended\n"}.items()
    update_course(newer, course)  # again changes nothing, and neither does a zip in which that file is as it was
    assert everything(course).items() >= mine.items()


def test_work_in_a_newer_file_is_not_lost_to_the_next_one(course, newer, tmp_path):
    (course / "labs/lab01/lab01.ipynb").write_bytes(b"solved 1")
    update_course(newer, course)
    (course / "labs/lab01/lab01.new.ipynb").write_bytes(b"solved anew")
    third = {**AFTER, "labs/lab01/lab01.ipynb": b"lab 1, mended twice\n"}
    for name in ("lab01.new2.ipynb", "lab01.new2.ipynb"):  # the second time nothing is left to be done
        (course / CONTENTS).write_bytes(contents(BEFORE).encode())
        done = update_course(packed(tmp_path / "third.zip", third), course)
        assert done.beside == {"labs/lab01/lab01.ipynb": f"labs/lab01/{name}"}
    assert (course / "labs/lab01/lab01.new.ipynb").read_bytes() == b"solved anew"
    assert (course / "labs/lab01/lab01.new2.ipynb").read_bytes() == b"lab 1, mended twice\n"


def test_a_third_version_is_compared_with_the_second(course, newer, tmp_path):
    (course / "labs/lab01/lab01.ipynb").write_bytes(b"solved 1")
    update_course(newer, course)
    third = {**AFTER, "labs/lab02/lab02.ipynb": b"lab 2, mended\n", "weeks/week02.ipynb": b"week 2\n"}
    done = update_course(packed(tmp_path / "third.zip", third), course)
    assert sorted(done.written) == ["labs/lab02/lab02.ipynb", "weeks/week02.ipynb"] and done.beside == {}
    assert (course / "labs/lab01/lab01.ipynb").read_bytes() == b"solved 1"


def test_a_zip_of_one_week_takes_nothing_away(course, tmp_path):
    few = {"README.md": b"a course\n", "weeks/week02.ipynb": b"week 2\n", "worldsize/ring.py": b"RING = 1\n"}
    done = update_course(packed(tmp_path / "week02.zip", few), course)
    assert done.written == ("weeks/week02.ipynb",) and done.removed == ("worldsize/gone.py",)
    assert "labs/lab01/lab01.ipynb" in (course / CONTENTS).read_text()


def test_an_interrupted_update_goes_on(course, newer, monkeypatch):
    (course / "labs/lab01/lab01.ipynb").write_bytes(b"solved 1")
    from worldsize import update as module

    def until_the_disk_is_full(path, content, write=module._write):
        if path.name == "week01.ipynb":
            raise OSError("No space left on device")
        write(path, content)

    monkeypatch.setattr(module, "_write", until_the_disk_is_full)
    with pytest.raises(OSError, match="No space"):
        update_course(newer, course)
    monkeypatch.undo()
    update_course(newer, course)
    whole = {**AFTER, "labs/lab01/lab01.ipynb": b"solved 1", "labs/lab01/lab01.new.ipynb": b"lab 1, mended\n"}
    assert everything(course) == {**whole, CONTENTS: contents(AFTER).encode()}


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.unlink(), "there is no file"),
        (lambda path: path.write_bytes(path.read_bytes()[:300]), "not a whole zip"),
        (lambda path: packed(path, {**AFTER, "README.md": b"?"}, contents(AFTER).encode()), "damaged at README.md"),
        (lambda path: packed(path, AFTER, f"{'0' * 64}  ../../elsewhere\n".encode()), "no hash and path"),
        (lambda path: packed(path, AFTER, b"0  README.md\n"), "no hash and path"),
        (lambda path: packed(path, AFTER, f"{'0' * 64}  missing.py\n".encode()), "not a whole zip"),
    ],
)
def test_a_damaged_zip_changes_nothing(course, newer, spoil, said, capsys):
    before = everything(course)
    spoil(newer)
    assert main(["update", str(newer), str(course)]) == 1
    assert said in capsys.readouterr().err and everything(course) == before


def test_a_folder_that_is_not_the_course_is_named(newer, tmp_path, capsys):
    assert main(["update", str(newer), str(tmp_path)]) == 1
    assert f"{tmp_path} has no file CONTENTS. Run this in the folder of the course" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["constraints.txt", "settings/pyproject.toml"])
def test_new_packages_are_asked_for(course, tmp_path, name):
    newer = packed(tmp_path / "newer.zip", {**AFTER, name: b"torch==3\n"})
    assert "pip install -c constraints.txt -e . ./settings" in str(update_course(newer, course))


def a_notebook(source, **more):
    cell = {"cell_type": "code", "id": "turn", "source": source, "metadata": {"tags": ["turn"]}, "outputs": []}
    return json.dumps({"cells": [{**cell, **more}], "metadata": {"language_info": {"name": "python"}}}).encode()


def test_a_lesson_that_jupyterlab_has_saved_is_not_the_students(tmp_path):
    """JupyterLab adds outputs, numbers and metadata of its own; a student writes into cells."""
    path, given, newer = "weeks/week01.ipynb", a_notebook("x = None"), a_notebook("x = None  # in seconds")
    (tmp_path / "weeks").mkdir()
    (tmp_path / CONTENTS).write_text(contents({path: given}))
    zipped = packed(tmp_path / "student.zip", {path: newer})
    outputs = [{"output_type": "stream", "name": "stdout", "text": "5"}]
    saved = a_notebook(["x = ", "None"], outputs=outputs, execution_count=3, metadata={"tags": ["turn"], "a": 1})
    (tmp_path / path).write_bytes(saved)
    done = update_course(zipped, tmp_path)
    assert done.written == (path,) and not done.beside and (tmp_path / path).read_bytes() == newer
    assert str(done).splitlines()[1] == f"  {path}"

    (tmp_path / CONTENTS).write_text(contents({path: given}))
    (tmp_path / path).write_bytes(a_notebook("x = 5"))
    assert update_course(zipped, tmp_path).beside == {path: "weeks/week01.new.ipynb"}
    (tmp_path / path).write_bytes(saved)  # the newer one's cells are those of the listing: outputs stay
    assert not update_course(packed(tmp_path / "same.zip", {path: given}), tmp_path).written
