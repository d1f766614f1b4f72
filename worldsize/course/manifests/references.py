"""Names in manifests that must resolve: to another document of the same text, or to a volume of the same pod."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

# which field of a kind names a document of which kind
_NAMED = [
    ("LocalQueue", ("spec", "clusterQueue"), "ClusterQueue"),
    ("ClusterQueue", ("spec", "resourceGroups", "flavors", "name"), "ResourceFlavor"),
    ("ResourceFlavor", ("spec", "topologyName"), "Topology"),
    ("PersistentVolumeClaim", ("spec", "storageClassName"), "StorageClass"),
    ("TrainJob", ("spec", "runtimeRef", "name"), "TrainingRuntime"),
    ("Job", ("spec", "queue"), "Queue"),
]


def lost(documents: Sequence[dict[str, Any]]) -> Iterator[tuple[int, str, str]]:
    """Yield each name that does not resolve: the number of its document, its field, and a sentence.

    A document that is missing may be in the cluster already, so a name is reported only if the text has other documents
    of the kind that it refers to.
    """
    for number, document in enumerate(documents):
        for kind, path, target in _NAMED:
            there = [name_of(document) for document in documents if document.get("kind") == target]
            for name in _values(document, path) if document.get("kind") == kind and there else ():
                if name not in there:
                    yield number, ".".join(path), f"there is no {target} {name!r} here, but {', '.join(there)}"
        for pod in _pods(document):
            yield from ((number, "volumeMounts", sentence) for sentence in _unmounted(pod))


def name_of(document: dict[str, Any]) -> str:
    """Return the name in a document's metadata; empty if there is none."""
    metadata = document.get("metadata")
    return str(metadata.get("name", "")) if isinstance(metadata, dict) else ""


def _values(value: Any, path: Sequence[str]) -> Iterator[Any]:
    """Yield the values at a path, one for each item of a list."""
    if isinstance(value, list):
        for item in value:
            yield from _values(item, path)
    elif not path:
        yield value
    elif isinstance(value, dict) and path[0] in value:
        yield from _values(value[path[0]], path[1:])


def _pods(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the pod specifications anywhere in a document."""
    if isinstance(value, dict):
        if isinstance(value.get("containers"), list):
            yield value
        for item in value.values():
            yield from _pods(item)
    elif isinstance(value, list):
        for item in value:
            yield from _pods(item)


def _unmounted(pod: dict[str, Any]) -> Iterator[str]:
    volumes = [*_values(pod, ("volumes", "name"))]
    for name in _values(pod, ("containers", "volumeMounts", "name")):
        if name not in volumes:
            yield f"the pod has no volume {name!r}, but {', '.join(map(str, volumes)) or 'none at all'}"
