"""The pages of the site, staged where Sphinx reads them: links to the course's own files, and pages made from them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import made_pages

PAGES = Path(__file__).resolve().parent / "pages"
# not quizzes/README.md: its examples are questions of exams
AS_THEY_ARE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")


def stage(root: Path, into: Path, weeks: Sequence[str] = ()) -> None:
    """Fill a folder with the pages of the course, with all weeks or those called `weeks`; what changed alone is new."""
    linked = dict(_linked(root, weeks))
    made = made_pages.all_of(root, [path for path in linked if path.startswith("weeks/")])
    into.mkdir(parents=True, exist_ok=True)
    for path in [*into.rglob("*.md"), *into.rglob("*.ipynb")]:
        if path.relative_to(into).as_posix() not in linked.keys() | made.keys():
            path.unlink()
    for name, file in linked.items():
        _link(into / name, file)
    for name, text in made.items():
        _write(into / name, text)


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
