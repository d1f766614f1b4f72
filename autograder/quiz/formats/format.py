"""What a format of quizzes is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autograder.quiz.forms import Form


@dataclass(frozen=True)
class Format:
    """A kind of file that a form can be written as: the same bytes for the same form, always.

    `key` gives the answers of all forms, where people read them.
    """

    name: str
    suffix: str
    render: Callable[[Form], bytes]
    key: Callable[[Sequence[Form]], bytes] | None = None
