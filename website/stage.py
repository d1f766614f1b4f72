"""The pages of the site, staged where Sphinx reads them: links to the course's own files, and pages made from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import made_pages
from nbformat.v4 import new_code_cell

from autograder.authoring.notebooks import notebook, render
from autograder.authoring.scripts import as_given_in_lesson, is_buggy, read_week

PAGES = Path(__file__).resolve().parent / "pages"
# not quizzes/README.md: its examples are questions of exams
AS_THEY_ARE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def stage(root: Path, into: Path, weeks: Sequence[str] = ()) -> None:
    """Fill a folder with the pages of the course, with all weeks or those called `weeks`; what changed alone is new."""
    linked = dict(_linked(root, weeks))
    made = made_pages.all_of(root, [path for path in linked if path.startswith("weeks/")])
    into.mkdir(parents=True, exist_ok=True)
    for path in [*into.rglob("*.md"), *into.rglob("*.ipynb"), *into.glob("*.txt")]:
        if path.relative_to(into).as_posix() not in linked.keys() | made.keys():
            path.unlink()
    for name, file in linked.items():
        if name.startswith("weeks/"):
            made[name] = solved(file.with_suffix(".py"))
        elif name == "project.md" and "measured.md" not in made:  # nothing was recorded on GPUs
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            made[name] = "".join(line for line in lines if "measured" not in line)
        else:
            _link(into / name, file)
    for name, text in made.items():
        _write(into / name, text)


def solved(script: Path) -> str:
    """A lesson's notebook for readers: each turn as students get it, then a worked answer, folded, which alone runs."""
    lesson = read_week(script)
    turns = {cell.id: cell.source for cell in lesson.cells if cell.is_turn}
    page = notebook(lesson, graded=False, solved=True)
    cells = []
    for cell in page.cells:
        if turn := turns.get(cell.id):
            cells.append(new_code_cell(as_given_in_lesson(turn), id=cell.id, metadata={"tags": ["skip-execution"]}))
            summary = "The fix" if is_buggy(turn) else "A worked answer"
            cell.metadata = {"tags": ["hide-input"], "mystnb": {"code_prompt_show": summary}}
            cell.id = f"answer-{cell.id}"[:64]
        cells.append(cell)
    page.cells = cells
    return render(page)


def _linked(root: Path, weeks: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """The course's files that are pages as they are, by their place, and files that these show."""
    for name in AS_THEY_ARE:
        yield name, root / name
    for path in sorted(PAGES.iterdir()):
        yield path.name, path
    for pattern in ("docs/*.md", "docs/*.svg", "labs/*/*.ipynb", "weeks/week*.ipynb"):
        for path in sorted(root.glob(pattern)):
            if pattern[:5] != "weeks" or not weeks or path.stem.partition("_")[0] in weeks:
                yield path.relative_to(root).as_posix(), path


def _link(place: Path, file: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.is_symlink() or place.resolve() != file.resolve():
        place.unlink(missing_ok=True)
        place.symlink_to(file)


def _write(place: Path, text: str) -> None:
    """Write a page, unless it is there as it would be: Sphinx reads a newer file again."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if not place.is_file() or place.read_text(encoding="utf-8") != text:
        place.unlink(missing_ok=True)
        place.write_text(text, encoding="utf-8")
