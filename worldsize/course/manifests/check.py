"""Offline checks of whether a cluster would accept a manifest, and explanations of its fields."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from worldsize.course.manifests import references, schema, yaml_text
from worldsize.course.manifests.mistakes import ManifestMistake, against, path_text
from worldsize.course.manifests.schema import SCRIPT, Schemas

_DIRECTIVE = re.compile(r"#SBATCH\s+--([\w-]+)(?:[=\s]\s*(.*?))?\s*(?:\s#.*)?$")


def check(text: str, crds: Path | str | None = None) -> list[ManifestMistake]:
    """Find the mistakes in the documents of a YAML text, or in the options of a batch script for Slurm.

    A document is compared with our schema of its kind, which has the fields that the course teaches and refuses others.
    `crds` is a folder of full CustomResourceDefinitions; kinds that it defines are compared with those. A cluster
    checks more than either: rules between fields and the controllers' own tests run only there.

    Raises:
        ValueError: `crds` holds no definitions.
    """
    if text.startswith("#!"):
        return _check_script(text)
    schemas = {**schema.ours(), **(schema.saved(crds) if crds else {})}
    try:
        documents = yaml_text.load(text)
    except ValueError as error:
        return [ManifestMistake("", "", "", f"this is not YAML: {error}")]
    if not documents:
        return [ManifestMistake("", "", "", "the text contains no document")]
    found = [mistake for document in documents for mistake in _check_document(document, schemas)]
    named = [document for document in documents if isinstance(document, dict)]
    for number, where, what in references.lost(named):
        found.append(ManifestMistake(str(named[number].get("kind")), references.name_of(named[number]), where, what))
    return found


def explain(text: str) -> list[dict[str, str]]:
    """Explain each field of a manifest or batch script, in rows of kind, field, value and meaning.

    Fields without a meaning of their own, such as the parts of a path, are left out; so are fields that our schemas do
    not have. Of several parts of the same form, such as groups of pods, only the first is explained.
    """
    parts = [(SCRIPT[1], SCRIPT, _options(text))] if text.startswith("#!") else list(_explained(text))
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for kind, key, value in parts:
        for path, one, meaning in _fields(value, schema.ours().get(key, {}), ()):
            row = {"kind": kind, "field": path_text(path), "value": _short(one), "what it does": meaning}
            rows.setdefault((kind, meaning, row["value"]), row)
    return [*rows.values()]


def _explained(text: str) -> Iterator[tuple[str, tuple[str, str], Any]]:
    for document in yaml_text.load(text):
        kind, api = str(document.get("kind", "")), str(document.get("apiVersion", ""))
        yield kind, (api, kind), document


def _check_document(document: Any, schemas: Schemas) -> list[ManifestMistake]:
    if not isinstance(document, dict):
        return [ManifestMistake("", "", "", f"a document must have named fields; this one is {str(document)[:60]!r}")]
    kind, api, name = str(document.get("kind", "")), str(document.get("apiVersion", "")), references.name_of(document)
    if (api, kind) not in schemas:
        return [ManifestMistake(kind, name, "apiVersion", _unknown_kind(api, kind, schemas))]
    return [ManifestMistake(kind, name, where, what) for where, what in against(schemas[api, kind], document)]


def _unknown_kind(api: str, kind: str, schemas: Schemas) -> str:
    versions = [known for known, name in schemas if name == kind and known]
    if versions:
        return f"it is {api!r}; only a {kind} of {' or '.join(sorted(versions))} can be checked"
    kinds = ", ".join(sorted({name for known, name in schemas if known}))
    return f"there is no schema for {kind or 'a document without a kind'}; save its CRD and pass crds=, or use {kinds}"


def _check_script(text: str) -> list[ManifestMistake]:
    options = _options(text)
    name = options.get("job-name", "")
    found = [ManifestMistake(SCRIPT[1], name, where, what) for where, what in against(schema.ours()[SCRIPT], options)]
    is_head = True
    for number, line in enumerate(text.splitlines(), start=1):
        is_directive = line.startswith("#SBATCH")
        if is_directive and not is_head:
            what = "Slurm reads no option after the first command; move it to the top"
            found.append(ManifestMistake(SCRIPT[1], name, f"line {number}", what))
        elif is_directive and not _DIRECTIVE.match(line):
            found.append(ManifestMistake(SCRIPT[1], name, f"line {number}", "write the option as #SBATCH --name=value"))
        is_head = is_head and (is_directive or line.startswith("#") or not line.strip())
    return found


def _options(text: str) -> dict[str, str]:
    """Read the options of a batch script by name; '' for an option without a value."""
    matches = (_DIRECTIVE.match(line) for line in text.splitlines())
    return {match[1]: match[2] or "" for match in matches if match}


def _fields(value: Any, field: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any, str]]:
    """Yield each field of a value that its schema describes, with its path and meaning, from the outside in."""
    if path and field.get("description"):
        yield path, value, field["description"]
    if isinstance(value, dict):
        for name, one in value.items():
            inner = field.get("properties", {}).get(name)
            if isinstance(inner, dict):
                yield from _fields(one, inner, (*path, name))
    elif isinstance(value, list) and isinstance(field.get("items"), dict):
        for number, one in enumerate(value):
            yield from _fields(one, field["items"], (*path, number))


def _short(value: Any) -> str:
    """Format a value for a table: empty for a container, one line for a list of words."""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return " ".join(value)
    return "" if isinstance(value, dict | list) else str(value).lower() if isinstance(value, bool) else str(value)
