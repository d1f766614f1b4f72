"""Grade a whole class: judge several submissions at once, and enter the results into the gradebook one at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

from nbgrader.api import Gradebook, MissingEntry
from nbgrader.apps.api import NbGraderAPI
from nbgrader.coursedir import CourseDirectory
from traitlets.utils.importstring import import_item

from autograder.course import notebook_of
from autograder.grading.engines import Engine
from autograder.grading.lab import Judged, Lab
from autograder.grading.preprocessor import Grade
from autograder.submissions.class_folders import pattern


def judge_class(lab: Lab, students: Sequence[str], engine: Engine, again: bool = False) -> Iterator[tuple[str, Judged]]:
    """Judge these students; yield each judgement as it arrives. With `again`, kept ones are judged anew.

    A submission that may have lost time or memory to another is judged once more at the end, alone.
    """
    with ThreadPoolExecutor(engine.jobs) as pool:
        kept = {} if again else {student: judged for student in students if (judged := lab.kept(student))}
        yield from kept.items()
        is_alone = engine.jobs == 1
        others = [student for student in students if student not in kept]
        asked = {pool.submit(lab.judge, student, engine, is_alone): student for student in others}
        crowded = []
        try:
            for done in as_completed(asked):
                if not is_alone and done.result().may_be_external:
                    crowded.append(asked[done])
                else:
                    yield asked[done], done.result()
            for student in crowded:
                yield student, lab.judge(student, engine)
        finally:
            for future in asked:
                future.cancel()
            engine.stop()


def enter(lab: Lab, student: str, judged: Judged) -> Judged:
    """Enter a judgement into the gradebook, one at a time; return it, with the reason where that was not possible.

    nbgrader's grading preprocessor takes the judgement that waits to be entered, and judges nothing itself.
    """
    if judged.fault or (judged.is_entered and _is_in_gradebook(lab, student)):
        return judged
    refuse_stock_grading(lab.coursedir)
    lab.keep(student, judged.model_copy(update={"is_entered": False}))
    api = NbGraderAPI(coursedir=lab.coursedir, config=lab.coursedir.config)
    done = api.autograde(lab.name, pattern(student), force=True)
    if not done["success"]:
        return judged.model_copy(update={"fault": f"nbgrader could not take the score: {_reason(done)}"})
    judged = judged.model_copy(update={"is_entered": True})
    lab.keep(student, judged)
    return judged


def refuse_stock_grading(coursedir: CourseDirectory) -> None:
    """Raise ValueError unless nbgrader leaves the grading to `Grade`: it would run the students' code itself."""
    if not any(_is_ours(named) for named in coursedir.config.Autograde.get("autograde_preprocessors", ())):
        raise ValueError(
            "nbgrader_config.py does not name autograder.nbgrader.Grade among c.Autograde.autograde_preprocessors: "
            "nbgrader would run the students' code itself, outside any sandbox."
        )


def refuse_unknown(lab: Lab) -> None:
    """Raise ValueError unless the gradebook knows the assignment; otherwise it could not take the scores."""
    name, coursedir = notebook_of(lab.name), lab.coursedir
    with Gradebook(coursedir.db_url, coursedir.course_id) as book, contextlib.suppress(MissingEntry):
        book.find_notebook(name, lab.name)
        return
    raise ValueError(
        f"The gradebook does not know {lab.name} yet. Run this first: nbgrader generate_assignment {lab.name} --force"
    )


def _is_ours(preprocessor: Any) -> bool:
    try:
        kind = import_item(preprocessor) if isinstance(preprocessor, str) else preprocessor
    except ImportError:
        return False
    return isinstance(kind, type) and issubclass(kind, Grade)


def _is_in_gradebook(lab: Lab, student: str) -> bool:
    """True if the gradebook has a score for every cell graded by checks; an older one may have been restored."""
    name, coursedir = notebook_of(lab.name), lab.coursedir
    with Gradebook(coursedir.db_url, coursedir.course_id) as book, contextlib.suppress(MissingEntry):
        grades = book.find_submission_notebook(name, lab.name, student).grades
        return all(grade.auto_score is not None for grade in grades if grade.cell.cell_type == "code")
    return False


def _reason(done: Mapping[str, Any]) -> str:
    """What nbgrader said was wrong; its last line only points to the lines before."""
    said = f"{done.get('log', '')}\n{done.get('error', '')}".splitlines()
    lines = [
        line.strip() for line in said if ": " in line and "Please see" not in line and "Error processing" not in line
    ]
    return next((line for line in reversed(lines) if "Exception: " in line or "Error: " in line), "it did not say why")
