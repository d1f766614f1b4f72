"""A document's violations of a schema, as sentences: what is wrong, and what would be right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from worldsize.course.manifests.schema import Schema

_TYPES = {
    "object": "named fields",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "nothing",
}
_MOST_LISTED = 12


@dataclass(frozen=True)
class ManifestMistake:
    """One mistake: the kind and the name of the document, the field, and what is wrong and would be right there."""

    kind: str
    name: str
    where: str
    what: str

    def __str__(self) -> str:
        place = " ".join(part for part in (self.kind, self.name) if part)
        return ": ".join(part for part in (place, self.where, self.what) if part)


def against(schema: Schema, value: Any) -> list[tuple[str, str]]:
    """Find each path at which a value violates a schema, with a sentence, in the order of the paths.

    Raises:
        RuntimeError: jsonschema is not installed.
    """
    try:
        from jsonschema import Draft202012Validator
    except ImportError:
        raise RuntimeError("jsonschema, which checks manifests, is not installed: pip install jsonschema") from None

    errors = sorted(Draft202012Validator(schema).iter_errors(value), key=lambda error: [*map(str, error.absolute_path)])
    return list(
        dict.fromkeys((path_text(error.absolute_path), what) for error in errors for what in _sentences(error, schema))
    )


def path_text(parts: Any) -> str:
    """Format keys and positions as one path, such as spec.tasks[0].name."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).lstrip(".")


def _sentences(error: Any, whole: Schema) -> Iterator[str]:
    """Yield a sentence for each field at fault; the error is a ValidationError of jsonschema."""
    rule, wanted = error.validator, error.validator_value
    if rule == "additionalProperties":
        for name in _unknown(error):
            yield f"there is no field {name!r} here; {_instead(name, error.schema, whole)}"
    elif rule == "required":
        for name in (name for name in wanted if name not in error.instance):
            yield f"{name!r} is missing{_meaning(error.schema['properties'].get(name, {}))}"
    elif rule == "dependentRequired":
        for name in (name for name in wanted if name in error.instance):
            yield f"{name!r} needs {', '.join(map(repr, wanted[name]))} beside it"
    else:
        yield f"it is {_shown(error.instance)}; it must be {_wanted(rule, wanted, error)}"


def _wanted(rule: str, wanted: Any, error: Any) -> str:
    if rule == "type":
        return " or ".join(_TYPES[one] for one in ([wanted] if isinstance(wanted, str) else wanted))
    if rule == "enum":
        return f"one of {', '.join(map(str, wanted))}{_closest(error.instance, wanted)}"
    if rule == "const":
        return repr(wanted) if wanted != "" else "given without a value"
    if rule == "pattern":
        return error.schema.get("x-pattern-means", f"text of the form {wanted}")
    if rule in ("minimum", "maximum"):
        return f"{'at least' if rule == 'minimum' else 'at most'} {wanted}"
    if rule in ("minItems", "maxItems"):
        return f"a list of at {'least' if rule == 'minItems' else 'most'} {wanted}"
    return f"such that {rule} is {wanted}"


def _unknown(error: Any) -> list[str]:
    """Return the fields of a document that its schema does not list."""
    from re import search

    patterns = error.schema.get("patternProperties", {})
    known = error.schema.get("properties", {})
    names = [str(name) for name in error.instance if name not in known]
    return [name for name in names if not any(search(pattern, name) for pattern in patterns)]


def _instead(name: str, schema: Schema, whole: Schema) -> str:
    """Say what to write instead of an unknown field."""
    if name in schema.get("x-removed", {}):
        return schema["x-removed"][name]
    known = [*schema.get("properties", {})]
    if close := get_close_matches(name, known, n=1, cutoff=0.75):
        return f"did you mean {close[0]!r}?"
    if elsewhere := next(iter(sorted(_paths(name, whole), key=len)), None):
        return f"it belongs in {path_text(elsewhere)}"
    listed = ", ".join(known[:_MOST_LISTED]) + (", ..." if len(known) > _MOST_LISTED else "")
    return f"there are {listed}" if listed else "there are none"


def _paths(name: str, schema: Any) -> Iterator[tuple[str, ...]]:
    """Yield the paths of a schema, outside metadata, that list a field of this name."""
    if not isinstance(schema, dict):
        return
    properties = schema.get("properties", {})
    if name in properties:
        yield ()
    for key, inner in properties.items():
        if key != "metadata":
            is_list = isinstance(inner, dict) and "items" in inner
            for path in _paths(name, inner["items"] if is_list else inner):
                yield (f"{key}[]" if is_list else key, *path)


def _closest(value: Any, among: list[Any]) -> str:
    close = get_close_matches(str(value), [str(one) for one in among], n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _meaning(schema: Any) -> str:
    """Return the field's description, to follow its name."""
    text = schema.get("description", "") if isinstance(schema, dict) else ""
    return f": {text[0].lower()}{text[1:].rstrip('.')}" if text else ""


def _shown(value: Any) -> str:
    """Format a value briefly, with its type if that is not obvious."""
    if isinstance(value, dict | list):
        return _TYPES["object" if isinstance(value, dict) else "array"]
    return "nothing" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)[:60]
