"""The interface of a quiz format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autograder.quiz.forms import Form


@dataclass(frozen=True)
class Format:
    """A kind of file that a form can be written to; the same form always gives the same bytes.

    `key` renders the answers of all forms, in formats that people read.
    """

    name: str
    suffix: str
    render: Callable[[Form], bytes]
    key: Callable[[Sequence[Form]], bytes] | None = None
