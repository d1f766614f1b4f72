"""The paths of this machine that a jail shows: programs, this Python and the library; never a course."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import worldsize

_COURSE = "nbgrader_config.py"  # marks the folder of a course
# paths that any program needs to start; none belongs to the course
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")
# folders of an environment that was created at the root of a course, which uses other names for its own folders
_OF_PYTHON = ("bin", "include", "lib", "lib32", "lib64", "libexec", "pyvenv.cfg", "share")


def visible_paths(hidden: Sequence[str], more: Sequence[str] = ()) -> list[str]:
    """The paths that a rank may read, none inside another; of hidden folders, only Python and the library.

    A folder that contains a hidden one is replaced by its other contents.
    """
    python = [sys.prefix, sys.base_prefix, sysconfig.get_paths()["stdlib"], *site.getsitepackages()]
    wanted = [*_SYSTEM, *python, str(Path(worldsize.__file__).parent), *more]
    there = [path for path in wanted if os.path.lexists(path)]
    away = {os.path.realpath(folder) for folder in hidden}
    # a link is shown as a link, so its target has to be shown too
    paths = {*map(os.path.abspath, there), *map(os.path.realpath, there)}
    kept: list[str] = []
    for path in sorted(inner for one in paths for inner in _shown_of(one, away)):
        if not any(path == other or path.startswith(other + os.sep) for other in kept):
            kept.append(path)
    return kept


def courses_around(paths: Sequence[str]) -> list[str]:
    """The courses that contain these files or folders."""
    above = [(Path(os.path.realpath(path)), *Path(os.path.realpath(path)).parents) for path in paths]
    found = (next((folder for folder in folders if (folder / _COURSE).exists()), None) for folders in above)
    return sorted({str(folder) for folder in found if folder})


def _shown_of(path: str, away: Collection[str]) -> Iterator[str]:
    if os.path.realpath(path) in away and not os.path.islink(path):
        yield from (inner for name in _OF_PYTHON if os.path.lexists(inner := os.path.join(path, name)))
    else:
        yield from _without(path, away)


def _without(path: str, away: Collection[str]) -> Iterator[str]:
    """The path, or if it contains folders in `away`, all of its contents except these folders."""
    real = os.path.realpath(path)
    if os.path.islink(path) or not any(one == real or one.startswith(real + os.sep) for one in away):
        yield path
    elif real not in away:
        for name in sorted(_names_in(path)):
            yield from _without(os.path.join(path, name), away)


def _names_in(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # unreadable: show none of it
        return []
