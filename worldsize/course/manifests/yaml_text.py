"""YAML as Kubernetes reads it, several documents to a text; a key that is given twice is refused."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml


def dump(documents: Iterable[dict[str, Any]]) -> str:
    """Write the documents as one text, with fields in insertion order."""
    return yaml.dump_all(list(documents), Dumper=_Dumper, sort_keys=False, explicit_start=False, width=100)


def load(text: str) -> list[Any]:
    """Load the documents of a text, except empty ones.

    Raises:
        ValueError: it is not YAML, or a mapping has a key twice, of which other loaders silently take the last.
    """
    try:
        return [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None


class _Dumper(yaml.SafeDumper):
    """A writer that repeats equal parts in full, because people read them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        if twice := next((key for key in keys if keys.count(key) > 1), None):
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: {twice!r} is given twice; keep one of them")
        return super().construct_mapping(node, deep)
