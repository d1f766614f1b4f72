"""Unpacking the archives of an LMS for `nbgrader zip_collect`, including archives that students put into them.

An archive may be damaged, locked with a password, contain itself, or unpack to more than fits on the disk. nbgrader's
own extractor stops at the first archive that it cannot read, and follows nested archives without limit.
"""

from __future__ import annotations

import gzip
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO, Any

from nbgrader.plugins import ExtractorPlugin
from traitlets import Integer

_MAX_DEPTH = 3  # of nested archives
_LEAST_BYTES = 4096  # the least that a file occupies on a disk
_CHUNK_BYTES = 1 << 20
_MAX_NAME_BYTES, _MAX_ENDING_BYTES = 255, 20


class Extractor(ExtractorPlugin):
    """nbgrader's extractor, made robust: it reports archives that cannot be unpacked, and continues with the others."""

    max_archive_bytes = Integer(
        10 << 30, help="Bytes that an archive may unpack to; one within it: CourseDirectory.max_dir_size."
    ).tag(config=True)

    def extract(self, archive_path: str, extracted_path: str) -> None:
        """Unpack the archives in a folder into another, and copy all other files.

        Only an archive's plain files are unpacked, and only below the folder that has its name.
        """
        app: Any = self.parent
        inner_bytes = 1000 * app.coursedir.max_dir_size
        failed = []
        for path in sorted(Path(archive_path).rglob("*")):
            dest = Path(extracted_path, path.relative_to(archive_path)).parent
            if not path.is_file():
                continue
            dest.mkdir(parents=True, exist_ok=True)
            if _is_archive(path, self.zip_ext):
                unpacking = _Unpacking(self.zip_ext, self.log, inner_bytes)
                unpacking.archive(path, dest, _Budget(self.max_archive_bytes), _MAX_DEPTH)
                failed += unpacking.failed
            else:
                shutil.copy(path, dest)
        if failed:
            self.log.error("Not unpacked: %s", ", ".join(failed))


class _Budget:
    """A budget of bytes that may still be written for one archive."""

    def __init__(self, num_bytes: int):
        self._num_bytes = self._left_bytes = num_bytes

    def take(self, num_bytes: int) -> None:
        """Subtract that many bytes; raise ValueError if fewer are left."""
        self._left_bytes -= num_bytes
        if self._left_bytes < 0:
            raise ValueError(f"it unpacks to more than {self._num_bytes:,} bytes")


class _Unpacking:
    """The unpacking of one archive and of the archives in it."""

    def __init__(self, extensions: list[str], log: Any, inner_bytes: int):
        self._extensions, self._log, self._inner_bytes = extensions, log, inner_bytes
        self.failed: list[str] = []

    def archive(self, path: Path, folder: Path, budget: _Budget, depth: int) -> None:
        """Unpack a whole archive into a folder of its name in `folder`, or record that it cannot be."""
        # without this, the name left of x.tar.zip would not show that there is an archive next to its folder
        ending = ".tar.gz" if path.name.lower().endswith(".tar.gz") else path.suffix
        name = path.name[: -len(ending)]
        with tempfile.TemporaryDirectory(dir=folder) as unpacked:
            try:
                written = set(_unpack(path, Path(unpacked), budget))
                shutil.copytree(unpacked, folder / name, dirs_exist_ok=True)
            except Exception as reason:  # the archive's author can provoke any exception
                self._log.error("%s is not unpacked: %s", path, reason or type(reason).__name__)
                self.failed.append(path.name)
                return
        for inner in sorted(folder / name / one for one in written if _is_archive(one, self._extensions)):
            if not depth:
                self._log.error("%s is not unpacked: it lies in more than %d archives", inner, _MAX_DEPTH)
                self.failed.append(inner.name)
                continue
            # a student's archive has its own budget, which the archives in it share
            own = _Budget(self._inner_bytes) if depth == _MAX_DEPTH else budget
            self.archive(inner, inner.parent, own, depth - 1)


def _is_archive(path: Path, extensions: list[str]) -> bool:
    return path.suffix.lower() in [extension.lower() for extension in extensions]


def _unpack(path: Path, dest: Path, budget: _Budget) -> Iterator[Path]:
    """Unpack an archive, and yield the files, relative to `dest`; raises whatever a damaged archive provokes."""
    for member, source in _members(path, dest, budget):
        name = PurePosixPath(member.replace("\\", "/").encode(errors="replace").decode())  # UTF-8, as recorded
        if name.is_absolute() or ".." in name.parts or not name.parts:
            continue
        name = PurePosixPath(*map(_short, name.parts))
        target = dest.joinpath(*name.parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        with source, open(target, "wb") as copy:
            budget.take(_LEAST_BYTES)
            _copy(source, copy, budget)
        yield Path(*name.parts)


def _short(name: str) -> str:
    """The name, shortened before its suffix if file systems reject it, so that the archive can be unpacked."""
    ending = PurePosixPath(name).suffix.encode()[-_MAX_ENDING_BYTES:]
    stem = name.encode()[: _MAX_NAME_BYTES - len(ending)]
    return name if len(name.encode()) <= _MAX_NAME_BYTES else (stem + ending).decode(errors="ignore")


def _members(path: Path, dest: Path, budget: _Budget) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the name of every plain file in an archive, and the opened file."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if not entry.is_dir():
                    yield entry.filename, archive.open(entry)
        return
    with tempfile.TemporaryFile(dir=dest.parent) as plain:  # tarfile reads a whole header, whatever size it claims
        with gzip.open(path) as packed:
            _copy(packed, plain, budget)
        plain.seek(0)
        with tarfile.open(fileobj=plain, mode="r:") as archive:
            for entry in archive:
                if entry.isreg() and (source := archive.extractfile(entry)):
                    yield entry.name, source


def _copy(source: IO[bytes] | gzip.GzipFile, target: IO[bytes], budget: _Budget) -> None:
    while chunk := source.read(_CHUNK_BYTES):
        budget.take(len(chunk))
        target.write(chunk)
