"""Extra packages that a lab needs, named at the top of its script: `# needs: ray.train`."""

from __future__ import annotations

import importlib.machinery
import re
from collections.abc import Sequence

from nbformat import NotebookNode

from autograder.authoring.scripts import Script

_NEEDS = re.compile(r"#\s*needs:(.*)")
_FIELD = "worldsize_needs"  # in a notebook's metadata


def metadata_of(script: Script) -> dict[str, list[str]]:
    """The metadata field of a notebook that names the packages its script needs; empty if it needs none."""
    found = [match[1] for line in script.preamble if (match := _NEEDS.match(line))]
    needs = [name for names in found for name in re.split(r"[,\s]+", names.strip()) if name]
    return {_FIELD: needs} if needs else {}


def needs_of(release: NotebookNode) -> list[str]:
    """The modules that a released lab needs."""
    return list(release.metadata.get(_FIELD, []))


def refuse_absent(needs: Sequence[str], lab: str) -> None:
    """Raise ValueError unless all these modules are installed.

    Raises:
        ValueError: some are not.
    """
    if absent := [name for name in needs if not _is_installed(name)]:
        verb = "is" if len(absent) == 1 else "are"
        raise ValueError(
            f"{lab} needs {' and '.join(absent)}, which {verb} not installed here: install what the lab needs, for "
            "example by the extra of that name in pyproject.toml, and give the command again. Nothing was judged."
        )


def _is_installed(module: str) -> bool:
    """Whether the module can be found, without importing it."""
    places: Sequence[str] | None = None
    parts = module.split(".")
    for number in range(1, len(parts) + 1):
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[:number]), places)
        if spec is None:
            return False
        places = spec.submodule_search_locations or []
    return True
