"""The course folder as nbgrader sees it, for commands that are not nbgrader's own."""

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
    """The folders and the gradebook that nbgrader_config.py in `root` names.

    Raises:
        ValueError: that file fails; nbgrader itself would report it and go on with settings of its own.
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
    return CourseDirectory(parent=app, root=str(root))  # nbgrader makes its own before it has read the configuration


def coursedir_of(part: Configurable) -> CourseDirectory:
    """The course folder of the nbgrader command that this part belongs to."""
    while not hasattr(part, "coursedir"):
        assert part.parent, "made outside an nbgrader command"
        part = part.parent
    return getattr(part, "coursedir")  # noqa: B009


def settings_of(coursedir: CourseDirectory) -> Config:
    """The settings of the command that a course folder belongs to, which makes the folder before it reads them."""
    return coursedir.parent.config if coursedir.parent else coursedir.config


QUIZ_KEY = "key.json"  # in the source of an assignment that is a quiz, in place of hidden checks


def graded_files(coursedir: CourseDirectory, names: dict[str, str]) -> dict[str, Path]:
    """Where the submission, the release and the hidden checks of a grading lie now."""
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
    """Where the programs of a grading lie now, as "submitted/NAME" and "reference/NAME"."""
    places = graded_files(coursedir, names)
    return {
        f"{kind}/{name}": place.with_name(name)
        for name in beside(places["release"].parent)
        for kind, place in (("submitted", places["submission"]), ("reference", places["checks"]))
    }


def hidden(source: Path) -> Path:
    """What decides the grades of an assignment: hidden checks, or the key of a quiz."""
    key = source / QUIZ_KEY
    return key if key.is_file() else source / "checks.py"


def notebook_of(assignment: str) -> str:
    """The name of the notebook that an assignment asks for, without its suffix: that of a project is its report."""
    return "report" if is_project(assignment) else assignment


def handed_in(folder: Path, notebook: str) -> Path:
    """The notebook that a student handed in: of this name, or the only one in the folder; it may be absent."""
    due = folder / f"{notebook}.ipynb"
    others = [] if os.path.lexists(due) else other_notebooks(folder, due.name)
    return others[0] if len(others) == 1 else due


def other_notebooks(folder: Path, name: str) -> list[Path]:
    """The plain files of a folder that are notebooks, under another name; browsers and hidden folders make copies."""
    found = sorted(folder.glob("*.ipynb")) if folder.is_dir() else []
    return [
        path for path in found if path.name != name and path.name[0] != "." and path.is_file() and not path.is_symlink()
    ]


def is_project(assignment: str) -> bool:
    """True for an assignment of a report and programs; its name says so."""
    return assignment.startswith("project")


SETTINGS = "lab.toml"  # beside the solution of a lab that needs other settings than usual


class LabSettings(BaseModel):
    """What judging the submissions to one lab takes, and whose they are.

    A project has real jobs, is timed and has teams, unless its file says otherwise.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    call_s: float | None = Field(default=None, gt=0)  # seconds of one run of student code; None: as for every lab
    total_s: float | None = Field(default=None, gt=0)  # of all runs of one submission
    limits: dict[str, Any] = {}  # of the sandbox, where the lab needs others than usual
    num_gpus: float = Field(default=0, ge=0)  # for judging one submission
    has_real_jobs: bool = False  # judged by jobs of up to a minute; `autograder verify --real-jobs` takes its answers
    is_timed: bool = False  # speed is graded, so submissions never share cores
    has_teams: bool = False


def lab_settings(source: Path) -> LabSettings:
    """The settings of the lab whose solution is in this folder.

    Raises:
        ValueError: its file cannot be read, or has a key that is unknown or a value that is not possible.
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
    """A problem that pydantic found: the key, and what would be right."""
    key = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        return f"there is no key {key}; a lab can set {', '.join(LabSettings.model_fields)}."
    return f"{key} is {problem['input']!r}: {problem['msg']}."


def beside(released_folder: Path) -> list[str]:
    """The names of the programs that were released beside a notebook, and are to come back beside it."""
    return sorted(path.name for path in released_folder.glob("*.py") if is_project(released_folder.name))


CONFIG_FILE = "nbgrader_config.py"


def find_root(start: Path) -> Path:
    """The course folder that `start` lies in. Raises: ValueError."""
    for folder in (start, *start.parents):
        if (folder / CONFIG_FILE).exists():
            return folder
    raise ValueError(f"{start} lies in no course: change to the folder that holds {CONFIG_FILE}.")
