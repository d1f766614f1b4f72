"""The program of the limited process that reads untrusted files; `bounded_process` starts it.

Imports only a little of the standard library, because every submission starts one.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from typing import Any

from autograder.submissions import Malformed, cell_facts, notebook_json


def main(kind: str, memory_bytes: int, cpu_s: int) -> None:
    """Answer the request on standard input, with a line of JSON for each value, within the limits."""
    if sys.platform == "linux":  # macOS refuses it
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = sys.stdin.buffer.read()
    for answer in _content(asked) if kind == "content" else _facts(asked):
        sys.stdout.buffer.write(line(answer))
        sys.stdout.buffer.flush()


def line(value: Any) -> bytes:
    """A value as one line of JSON; lone surrogates, which cannot be encoded, are preserved."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def _content(file: bytes) -> Iterator[Any]:
    try:
        yield {"content": notebook_json.content_of(file)}
    except Malformed as reason:
        yield {"malformed": str(reason)}


def _facts(sources: bytes) -> Iterator[Any]:
    yield from cell_facts.facts(json.loads(sources.decode("utf-8", "surrogatepass")))
