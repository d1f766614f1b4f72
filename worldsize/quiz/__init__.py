"""Self-checks: questions from the bank as a form that explains every answer, or as text if nobody can click."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worldsize.explore import frontend
from worldsize.quiz.answer_form import form
from worldsize.quiz.bank import Question, Quiz, load
from worldsize.quiz.marking import Marked, mark
from worldsize.quiz.question_text import as_html, as_text
from worldsize.quiz.variant import Variant, draw

__all__ = ["Asked", "Marked", "Question", "Quiz", "Variant", "ask", "draw", "load", "mark"]


def ask(name: str, num_questions: int = 5, *, seed: int = 0, folder: Path | str | None = None) -> Asked:
    """Show the first self-check questions of a quiz, as a form, or as text if nobody can answer.

    `seed` determines the numbers in them and the order of their choices.

    Raises:
        ValueError: there is no such quiz, its file is malformed, or none of its questions is for self-checks.
    """
    quiz = load(name, folder)
    chosen = [question for question in quiz.question if question.pool == "self-check"][:num_questions]
    if not chosen:
        raise ValueError(f'The quiz {name!r} has no question for a self-check: give some of them pool = "self-check".')
    return Asked(quiz.title, tuple(draw(question, f"{seed} {question.id}") for question in chosen))


@dataclass(frozen=True)
class Asked:
    """Questions that a notebook shows."""

    title: str
    variants: tuple[Variant, ...]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        words = {"text/html": as_html(self.title, self.variants), "text/plain": as_text(self.title, self.variants)}
        if frontend.is_interactive():
            # the form's bundle also holds the view of its widget, which a front end with a kernel prefers
            return {**(form(self.variants)._repr_mimebundle_() or {}), **words}
        return words
