"""Bring the course's folder up to date from a newer zip, and keep what the student has changed.

`CONTENTS` in the zip lists each file with its hash; a notebook's is that of its cells, because JupyterLab saves outputs
and metadata of its own in a lesson that was only opened. A file that still has its listed hash is the course's and is
replaced; any other is the student's and stays, with the newer one beside it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from worldsize.files import replace_file

CONTENTS = "CONTENTS"
_LIBRARY = "worldsize/"  # the one folder from which files are removed: a module that is gone must not be imported
_INSTALLED = (  # what `pip install` reads
    "constraints.txt",
    "pyproject.toml",
    "settings/jupyter_config.py",
    "settings/pyproject.toml",
)


@dataclass(frozen=True)
class Update:
    """What an update did, as paths in the course's folder."""

    written: tuple[str, ...]
    """Files that are new, or that only the course had changed."""
    removed: tuple[str, ...]
    """Modules that the course no longer has."""
    beside: Mapping[str, str]
    """For each file that both had changed, where the newer one lies."""

    def __str__(self) -> str:
        if not (self.written or self.removed or self.beside):
            return "Up to date already."
        lines = [f"Written: {len(self.written)} files; removed: {len(self.removed)}."]
        lines += [f"  {path}" for path in self.written if path.endswith(".ipynb")]
        if self.beside:
            lines.append("You had changed these, so they stay, and the newer ones lie beside them:")
            lines += [f"  {mine}: {newer}" for mine, newer in self.beside.items()]
            lines.append(
                "To go on with a newer one, copy what you wrote into it, then give it the old one's name: hand in only "
                "that name. Delete what you do not need."
            )
        if {*_INSTALLED} & {*self.written}:
            lines.append("What the course needs has changed: pip install -c constraints.txt -e . ./settings")
        return "\n".join(lines)


def contents(files: Mapping[str, bytes]) -> str:
    """The text of `CONTENTS` for these files."""
    return "".join(f"{_hash(path, content)}  {path}\n" for path, content in sorted(files.items()))


def update_course(newer: Path, folder: Path) -> Update:
    """Update a course's folder from a zip; nothing is written unless the whole zip can be read.

    Raises:
        ValueError: the folder or the zip is not the course's, or the zip is damaged.
        OSError: a file cannot be read or written; the same command then goes on where it stopped.
    """
    listed = folder / CONTENTS
    if not listed.is_file():
        raise ValueError(
            f"{folder.resolve()} has no file {CONTENTS}. Run this in the folder of the course; if your copy is older "
            "than this command, unpack the zip elsewhere and copy your notebooks into it."
        )
    given = _parsed(listed.read_text(encoding="utf-8"), listed)
    files = _read(newer)
    written, beside = [], {}
    for path, content in files.items():
        mine = _hash_of(folder, path)
        if mine == _hash(path, content):
            continue
        if mine is None or mine == given.get(path):
            _write(folder / path, content)
            written.append(path)
        elif given.get(path) != _hash(path, content):  # otherwise only the student changed it
            beside[path] = _free(folder, path, content)
            _write(folder / beside[path], content)
    gone = [path for path in given if path.startswith(_LIBRARY) and path not in files]
    removed = [path for path in gone if _hash_of(folder, path) == given[path]]
    for path in removed:
        (folder / path).unlink()
    kept = {path: digest for path, digest in given.items() if path not in gone}  # a zip may hold a few weeks only
    listing = {**kept, **{path: _hash(path, content) for path, content in files.items()}}
    replace_file(listed, "".join(f"{digest}  {path}\n" for path, digest in sorted(listing.items())).encode())
    return Update(tuple(written), tuple(removed), beside)


def _read(path: Path) -> dict[str, bytes]:
    """The files that a zip lists, by path. Raises: ValueError."""
    try:
        with zipfile.ZipFile(path) as archive:
            (listed,) = [name for name in archive.namelist() if PurePosixPath(name).parts[1:] == (CONTENTS,)]
            top = PurePosixPath(listed).parent
            given = _parsed(archive.read(listed).decode(), path)
            files = {name: archive.read(str(top / name)) for name in given}
    except FileNotFoundError:
        raise ValueError(f"there is no file {path}") from None
    except (zipfile.BadZipFile, KeyError, UnicodeDecodeError, ValueError) as error:
        raise ValueError(f"{path} is not a whole zip of the course; download it again ({error})") from None
    for name, content in files.items():
        if _hash(name, content) != given[name]:
            raise ValueError(f"{path} is damaged at {name}; download it again")
    return files


def _parsed(text: str, where: Path) -> dict[str, str]:
    """The hash of each listed path. Raises: ValueError."""
    listed = {}
    for line in text.splitlines():
        digest, _, path = line.partition("  ")
        parts = PurePosixPath(path).parts
        if len(digest) != 64 or not parts or path.startswith("/") or ".." in parts:
            raise ValueError(f"{where} lists {line!r}, which is no hash and path of the course")
        listed[path] = digest
    return listed


def _free(folder: Path, path: str, content: bytes) -> str:
    """The path beside this one at which there is nothing yet, or this content: an earlier one may hold work."""
    at = PurePosixPath(path)
    names = itertools.chain([f"{at.stem}.new{at.suffix}"], (f"{at.stem}.new{n}{at.suffix}" for n in itertools.count(2)))
    others = (at.with_name(name).as_posix() for name in names)
    return next(other for other in others if _hash_of(folder, other) in (None, _hash(path, content)))


def _write(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, readable for whom the umask says: a hub's course has many readers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.with_name(f".{path.name}.part").write_bytes(content)
        path.with_name(f".{path.name}.part").replace(path)
    else:
        replace_file(path, content)  # which keeps its mode


def _hash(path: str, content: bytes) -> str:
    if path.endswith(".ipynb"):
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):  # by its bytes if it is no notebook
            content = json.dumps([_of_course(cell) for cell in json.loads(content)["cells"]]).encode()
    return hashlib.sha256(content).hexdigest()


def _of_course(cell: dict[str, Any]) -> list[Any]:
    """What a course determines of a cell, and a student changes by writing: JupyterLab does not by saving it."""
    metadata = cell.get("metadata", {})
    return [cell.get("id"), cell["cell_type"], "".join(cell["source"]), metadata.get("tags"), metadata.get("nbgrader")]


def _hash_of(folder: Path, path: str) -> str | None:
    """The hash of a file, or None if there is none."""
    return _hash(path, (folder / path).read_bytes()) if (folder / path).is_file() else None
