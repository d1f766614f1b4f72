"""Building notebooks and a page of numbers from scripts, byte-identical every time; releasing labs with nbgrader."""

import logging
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from nbgrader.converters import GenerateAssignment
from nbgrader.converters.base import NbGraderException
from nbgrader.coursedir import CourseDirectory
from traitlets.config.loader import Config, PyFileConfigLoader

from autograder.authoring import programs
from autograder.authoring.extra_packages import metadata_of
from autograder.authoring.numbers_page import PAGE, numbers_page
from autograder.authoring.scripts import (
    AuthoringError,
    Cell,
    Script,
    as_given_in_lesson,
    is_buggy,
    read_lab,
    read_week,
    without_markers,
)
from autograder.course import CONFIG_FILE, QUIZ_KEY, hidden, notebook_of

METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}


@dataclass(frozen=True)
class Sources:
    """The scripts of a course, or the requested ones."""

    weeks: list[Path]
    labs: list[Path]


def find_sources(root: Path, names: Sequence[str] = ()) -> Sources:
    """Find the scripts called `names`, such as week01 or lab01, or all of them. Raises: ValueError."""
    weeks = sorted((root / "weeks").glob("*.py"))
    labs = sorted(path for path in (root / "solutions").glob("*/*.py") if path.stem == notebook_of(path.parent.name))
    known = {alias for path in weeks + labs for alias in _aliases(path)}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(f"No script is called {', '.join(unknown)}: there are {', '.join(sorted(known)) or 'none'}.")
    if names:
        weeks, labs = ([path for path in paths if _aliases(path) & {*names}] for paths in (weeks, labs))
    return Sources(weeks, labs)


def _aliases(path: Path) -> set[str]:
    return {path.stem, path.stem.split("_")[0]} if path.parent.name == "weeks" else {path.parent.name}


def build(root: Path, names: Sequence[str] = ()) -> dict[Path, bool]:
    """Build all files, and return whether each, relative to `root`, had to be written. Raises: ValueError."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder).resolve()
        built = build_fresh(root, fresh, names)
        changed = {path: not _same(root / path, fresh / path) for path in built}
        for path in (path for path in built if changed[path]):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes((fresh / path).read_bytes())
    return changed


def out_of_date(root: Path, names: Sequence[str] = ()) -> list[Path]:
    """The built files, relative to `root`, that a fresh build would change or not write."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder).resolve()
        built = build_fresh(root, fresh, names)
        stale = [] if names else [path for path in _built_files(root) if path not in built]
        return sorted([path for path in built if not _same(root / path, fresh / path)] + stale)


def build_fresh(root: Path, into: Path, names: Sequence[str] = ()) -> list[Path]:
    """Build the scripts below `root` into `into`, and return the files relative to it. Raises: ValueError."""
    sources = find_sources(root, names)
    scripts = _read_all(sources)
    for script in scripts:
        target = into / script.path.relative_to(root).with_suffix(".ipynb")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(render(notebook(script, graded=script.path in sources.labs)), encoding="utf-8")
    if sources.weeks:  # the page covers all weeks, whichever were requested
        (into / PAGE).parent.mkdir(exist_ok=True)
        (into / PAGE).write_text(numbers_page(find_sources(root).weeks), encoding="utf-8")
    config = PyFileConfigLoader(CONFIG_FILE, path=str(root)).load_config()
    for lab in sources.labs:
        _copy_given_files(lab.parent, into / lab.parent.relative_to(root), config.CourseDirectory.ignore)
        release(into, lab.parent.name, config)
    return sorted(_built_files(into))


def release(root: Path, name: str, config: Config) -> None:
    """Write `labs/name` from `solutions/name` below `root`, without changing a gradebook. Raises: ValueError."""
    quiet = Config(config)
    quiet.SaveCells.enabled = False
    coursedir = CourseDirectory(root=str(root), assignment_id=name, config=quiet)
    converter = GenerateAssignment(coursedir=coursedir, config=quiet, no_database=True)
    messages = _Messages()
    converter.log.addHandler(messages)
    try:
        converter.start()
    except NbGraderException as error:
        raise ValueError(f"nbgrader cannot release {name}.\n" + "\n".join(messages.texts)) from error
    finally:
        converter.log.removeHandler(messages)


def notebook(script: Script, graded: bool, solved: bool = False) -> NotebookNode:
    """Build the notebook of a script, with nbgrader's metadata if it is graded.

    Unless `solved`, readers write the turns of a lesson, and a worked answer is folded below each check.
    """
    cells = []
    for cell in script.cells:
        source = cell.source
        if cell.is_turn:
            source = without_markers(source) if solved else as_given_in_lesson(source)
        cells.append(_cell(replace(cell, source=source), graded))
        if not solved:
            cells += [_worked_answer(turn) for turn in script.cells if turn.is_turn and cell.title == turn.check]
    return new_notebook(cells=cells, metadata=METADATA | metadata_of(script))


def _worked_answer(turn: Cell) -> NotebookNode:
    summary = "The bug, and its fix" if is_buggy(turn.source) else "A worked answer"
    code = f"```python\n{without_markers(turn.source).strip()}\n```"
    text = f"<details><summary>{summary}</summary>\n\n{code}\n\n</details>"
    return new_markdown_cell(text, id=f"answer-{turn.id}"[:64])


def render(node: NotebookNode) -> str:
    """The text of a notebook file, formatted as nbgrader does it."""
    return nbformat.writes(node) + "\n"


def _cell(cell: Cell, graded: bool) -> NotebookNode:
    metadata: dict[str, object] = {}
    if tags := [tag for tag in cell.tags if tag != "solution"]:
        metadata["tags"] = tags
    if graded:
        metadata["nbgrader"] = _nbgrader(cell)
    new_cell = new_code_cell if cell.kind == "code" else new_markdown_cell
    return new_cell(cell.source, id=cell.id, metadata=metadata)


def _nbgrader(cell: Cell) -> dict[str, object]:
    metadata: dict[str, object] = {
        "cell_type": cell.kind,
        "grade": cell.points is not None,
        "grade_id": cell.id,
        "locked": not cell.is_solution,
        "schema_version": 3,
        "solution": cell.is_solution,
        "task": False,
    }
    return metadata if cell.points is None else metadata | {"points": cell.points}


def _read_all(sources: Sources) -> list[Script]:
    scripts, problems = [], []
    for read, paths in ((read_week, sources.weeks), (read_lab, sources.labs)):
        for path in paths:
            try:
                scripts.append(read(path))
            except AuthoringError as error:
                problems += error.problems
    if problems:
        raise AuthoringError(problems)
    return scripts


def _copy_given_files(solution: Path, target: Path, ignore: list[str]) -> None:
    shutil.copytree(solution, target, ignore=shutil.ignore_patterns(*ignore, "*.ipynb"), dirs_exist_ok=True)
    for path in programs.authored(solution):
        shutil.copy(path, target)


def _built_files(root: Path) -> Iterator[Path]:
    """The files that only a build writes, relative to `root`: all notebooks, the page of numbers, all of labs/."""
    for pattern in (str(PAGE), "weeks/*.ipynb", "solutions/*/*.ipynb", "labs/**/*"):
        for path in root.glob(pattern):
            inside = path.relative_to(root)
            is_of_a_quiz = hidden(root / "solutions" / inside.parts[1]).name == QUIZ_KEY
            if path.is_file() and not is_of_a_quiz and not any(part.startswith(".") for part in inside.parts):
                yield inside


def _same(left: Path, right: Path) -> bool:
    return left.exists() and left.read_bytes() == right.read_bytes()


class _Messages(logging.Handler):
    """A log handler that collects nbgrader's errors, which are shown only if it fails."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
