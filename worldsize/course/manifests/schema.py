"""JSON schemas of the kinds of manifests: ours, of the fields that the course teaches, or full ones that a user saved.

Ours are in the folder schemas/. In addition to JSON Schema's keywords they use `x-removed`, fields that older versions
had, each with what to write now, and `x-pattern-means`, a pattern in words. Where properties are listed, no others are
accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from worldsize.course.manifests import yaml_text

Schema = Mapping[str, Any]
Schemas = Mapping[tuple[str, str], Schema]  # by apiVersion and kind
SCRIPT = ("", "Slurm script")
_FOLDER = Path(__file__).with_name("schemas")


@cache
def ours() -> Schemas:
    """Read the schemas of this package."""
    schemas: dict[tuple[str, str], Schema] = {SCRIPT: _closed(_resolved(_file("slurm.yaml")["script"]))}
    for path in sorted(_FOLDER.glob("*.yaml")):
        for kind, schema in _file(path.name).items():
            if "apiVersion" in schema:
                schemas[schema["apiVersion"], kind] = _closed(_whole(kind, _resolved(schema)))
    return schemas


def saved(folder: Path | str) -> Schemas:
    """Read the schemas of CustomResourceDefinitions in a folder, as from `kubectl get crd -o yaml` or a release.

    Raises:
        ValueError: there is no such definition in the folder, or a file is not YAML.
    """
    schemas = {}
    for path in sorted([*Path(folder).glob("*.yaml"), *Path(folder).glob("*.yml")]):
        for definition in _definitions(path):
            try:
                names, group = definition["spec"]["names"], definition["spec"]["group"]
                for version in definition["spec"]["versions"]:
                    schema = version["schema"]["openAPIV3Schema"]
                    schemas[f"{group}/{version['name']}", names["kind"]] = _closed(_with_metadata(schema))
            except (KeyError, TypeError, AttributeError) as error:
                lack = f"lacks {error}" if isinstance(error, KeyError) else "is malformed"
                raise ValueError(
                    f"{path}: a CustomResourceDefinition {lack}; save it again with `kubectl get crd -o yaml`"
                ) from None
    if not schemas:
        raise ValueError(f"{folder} holds no CustomResourceDefinition; save one with `kubectl get crd -o yaml`")
    return schemas


def _definitions(path: Path) -> Iterator[Any]:
    try:
        documents = yaml_text.load(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    for document in documents:
        one_by_one = document.get("items", [document]) if isinstance(document, dict) else []
        yield from (
            document
            for document in one_by_one
            if isinstance(document, dict) and document.get("kind") == "CustomResourceDefinition"
        )


@cache
def _file(name: str) -> dict[str, Any]:
    return yaml_text.load((_FOLDER / name).read_text(encoding="utf-8"))[0]


def _resolved(schema: Any) -> Any:
    """Replace every `$ref` to a part of a file by that part; keys next to the `$ref` win."""
    if isinstance(schema, list):
        return [_resolved(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    rest = {key: _resolved(value) for key, value in schema.items() if key != "$ref"}
    if "$ref" not in schema:
        return rest
    file, _, part = schema["$ref"].partition("#")
    return {**_resolved(_file(file)[part]), **rest}


def _whole(kind: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Make the schema of a document: its fields, and those that all documents have."""
    every = {
        "apiVersion": {
            "const": schema["apiVersion"],
            "description": f"The group and version of the API: {kind} in it.",
        },
        "kind": {"const": kind},
        "metadata": _resolved({"$ref": "pods.yaml#metadata"}),
    }
    required = ["apiVersion", "kind", "metadata", *schema.get("required", [])]
    return {**schema, "properties": {**every, **schema["properties"]}, "required": required}


def _with_metadata(schema: Schema) -> dict[str, Any]:
    """Put our schema of metadata into a CRD's, which says only that it is an object."""
    metadata = _resolved({"$ref": "pods.yaml#metadata"})
    return {**schema, "properties": {**schema.get("properties", {}), "metadata": metadata}}


def _closed(schema: Any) -> Any:
    """Close a schema: accept only listed properties, and translate Kubernetes' keywords into JSON Schema's."""
    if not isinstance(schema, dict):
        return schema
    closed = {
        key: {name: _closed(part) for name, part in value.items()}
        if key in ("properties", "patternProperties")
        else _closed(value)
        if key in ("items", "additionalProperties")
        else value
        for key, value in schema.items()
    }
    if schema.get("x-kubernetes-int-or-string"):
        closed["type"] = ["integer", "string"]
        closed.pop("anyOf", None)  # says the same
    if schema.get("properties"):
        closed.setdefault("type", "object")
        if not schema.get("x-kubernetes-preserve-unknown-fields"):
            closed.setdefault("additionalProperties", False)
    if schema.get("nullable") and isinstance(closed.get("type"), str):
        closed["type"] = [closed["type"], "null"]
    return closed
