"""The course folder, in nbgrader's terms, for commands that are not nbgrader's own."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from nbgrader.apps.baseapp import NbGrader
from nbgrader.coursedir import CourseDirectory
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from traitlets.config import Config, Configurable


def open_course(root: Path) -> CourseDirectory:
    """Open the folders and the gradebook that nbgrader_config.py in `root` names.

    Raises:
        ValueError: that file fails; nbgrader itself would report it and continue with default settings.
    """
    app, here = NbGrader(), os.getcwd()
    app.raise_config_file_errors = True
    try:
        os.chdir(root)  # nbgrader reads its configuration from the working directory
        app.initialize([])
    except Exception as error:
        raise ValueError(
            f"nbgrader_config.py cannot be read, so nothing was done: {type(error).__name__}: {error}"
        ) from error
    finally:
        os.chdir(here)
    return CourseDirectory(parent=app, root=str(root))  # nbgrader creates its own before it has read the configuration


def coursedir_of(part: Configurable) -> CourseDirectory:
    """The course folder of the nbgrader command that this part belongs to."""
    while not hasattr(part, "coursedir"):
        assert part.parent, "made outside an nbgrader command"
        part = part.parent
    return getattr(part, "coursedir")  # noqa: B009


def settings_of(coursedir: CourseDirectory) -> Config:
    """The settings of the command that a course folder belongs to; the folder itself may have been created earlier."""
    return coursedir.parent.config if coursedir.parent else coursedir.config


QUIZ_KEY = "key.json"  # in the source folder of a quiz, where a lab has hidden checks


def graded_files(coursedir: CourseDirectory, names: dict[str, str]) -> dict[str, Path]:
    """The current paths of the submission, the release and the hidden checks of a grading."""
    name = names["notebook"] + ".ipynb"
    submitted = coursedir.format_path(coursedir.submitted_directory, names["student"], names["assignment"])
    release = coursedir.format_path(coursedir.release_directory, ".", names["assignment"])
    return {
        "submission": handed_in(Path(submitted), names["notebook"]),
        "release": Path(release, name),
        "checks": hidden(source_of(coursedir, names["assignment"])),
    }


def source_of(coursedir: CourseDirectory, assignment: str) -> Path:
    """The folder of an assignment's solution, hidden checks and settings."""
    return Path(coursedir.format_path(coursedir.source_directory, ".", assignment))


def programs_of(coursedir: CourseDirectory, names: dict[str, str]) -> dict[str, Path]:
    """The current paths of the programs of a grading, as "submitted/NAME" and "reference/NAME".

    The script of the assignment itself is one of the references: hidden checks may take parts of its solution.
    """
    places = graded_files(coursedir, names)
    script = solution_script(source_of(coursedir, names["assignment"]))
    return {
        f"{kind}/{name}": place.with_name(name)
        for name in beside(places["release"].parent)
        for kind, place in (("submitted", places["submission"]), ("reference", places["checks"]))
    } | ({f"reference/{script.name}": script} if script.is_file() else {})


def hidden(source: Path) -> Path:
    """The file that decides the grades of an assignment: its hidden checks, or the key of a quiz."""
    key = source / QUIZ_KEY
    return key if key.is_file() else source / "checks.py"


def solution_script(source: Path) -> Path:
    """The authored script in the folder of an assignment's solution; it may be absent."""
    return source / f"{notebook_of(source.name)}.py"


def notebook_of(assignment: str) -> str:
    """The name of an assignment's notebook, without suffix; the notebook of a project is its report."""
    return "report" if is_project(assignment) else assignment


def handed_in(folder: Path, notebook: str) -> Path:
    """The notebook that a student submitted: with this name, or the only one in the folder; it may be absent."""
    due = folder / f"{notebook}.ipynb"
    others = [] if os.path.lexists(due) else other_notebooks(folder, due.name)
    return others[0] if len(others) == 1 else due


def submitted_folder(coursedir: CourseDirectory, assignment: str, student: str, outside: Path | None = None) -> Path:
    """The folder that a student submitted: in the course, or as STUDENT/ASSIGNMENT or STUDENT in a folder outside."""
    if outside is None:
        return Path(coursedir.format_path(coursedir.submitted_directory, student, assignment))
    nested = outside / student / assignment
    return nested if nested.is_dir() else outside / student


def other_notebooks(folder: Path, name: str) -> list[Path]:
    """The notebooks in a folder that have a different name, such as the copies that browsers make."""
    found = sorted(folder.glob("*.ipynb")) if folder.is_dir() else []
    return [
        path for path in found if path.name != name and path.name[0] != "." and path.is_file() and not path.is_symlink()
    ]


def is_project(assignment: str) -> bool:
    """Whether an assignment consists of a report and programs, according to its name."""
    return assignment.startswith("project")


SETTINGS = "lab.toml"  # in the folder of a lab that does not use the default settings


class LabSettings(BaseModel):
    """The settings for judging submissions to a lab, and whether teams share them.

    By default, a project has real jobs, is timed and has teams.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    call_s: float | None = Field(default=None, gt=0)  # seconds of one run of student code; None: the default
    total_s: float | None = Field(default=None, gt=0)  # seconds of all runs of one submission
    limits: dict[str, Any] = {}  # of the sandbox, if they differ from the default
    num_gpus: float = Field(default=0, ge=0)  # for judging one submission
    has_real_jobs: bool = False  # judged by jobs of up to a minute; `autograder verify --real-jobs` takes its answers
    is_timed: bool = False  # speed is graded, so submissions never share cores
    has_teams: bool = False


def lab_settings(source: Path) -> LabSettings:
    """Read the settings of the lab whose solution is in this folder.

    Raises:
        ValueError: the file cannot be read, or has an unknown key or an invalid value.
    """
    path, shown = source / SETTINGS, f"{source.name}/{SETTINGS}"
    kind = dict.fromkeys(("has_real_jobs", "is_timed", "has_teams"), is_project(source.name))
    try:
        own = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return LabSettings.model_validate(kind | own)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{shown} cannot be read: {error}") from None
    except ValidationError as error:
        raise ValueError("\n".join(f"{shown}: {_described(problem)}" for problem in error.errors())) from None


def _described(problem: Any) -> str:
    """A problem found by pydantic: the key, and the values that are valid."""
    key = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        return f"there is no key {key}; a lab can set {', '.join(LabSettings.model_fields)}."
    return f"{key} is {problem['input']!r}: {problem['msg']}."


def beside(released_folder: Path) -> list[str]:
    """The names of the programs that were released next to a notebook and must be submitted with it."""
    return sorted(path.name for path in released_folder.glob("*.py") if is_project(released_folder.name))


CONFIG_FILE = "nbgrader_config.py"


def find_root(start: Path) -> Path:
    """Find the course folder that contains `start`. Raises: ValueError."""
    for folder in (start, *start.parents):
        if (folder / CONFIG_FILE).exists():
            return folder
    raise ValueError(f"{start} is not in a course: change to the folder that holds {CONFIG_FILE}.")
