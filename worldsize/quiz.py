"""Self-checks: questions of the bank as a form that explains every choice, and as text where nobody can click."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

if TYPE_CHECKING:
    import ipywidgets

FOLDER = "quizzes"
Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Strict(BaseModel):
    """A part of the bank in which a misspelt key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Choice(Strict):
    """One answer to choose: plain text, whether it is right, and what to tell who chose it (Markdown)."""

    text: Text
    correct: bool
    feedback: Text


class Question(Strict):
    """One question of the bank; `text` is Markdown, `minutes` the time it should take."""

    id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]*$")]
    kind: Literal["single", "multiple"]
    text: Text
    week: Annotated[int, Field(ge=1, le=14)]
    objective: Text
    difficulty: Annotated[int, Field(ge=1, le=3)]
    minutes: Annotated[float, Field(gt=0, le=30)]
    source: Text
    choice: Annotated[list[Choice], Field(min_length=2)]

    @model_validator(mode="after")
    def _choices_fit_the_kind(self) -> Question:
        num_correct = sum(choice.correct for choice in self.choice)
        if self.kind == "single" and num_correct != 1:
            raise ValueError(f"a single-choice question has exactly one correct choice, this one has {num_correct}")
        if self.kind == "multiple" and not num_correct:
            raise ValueError("a multiple-choice question has at least one correct choice, this one has none")
        if len({choice.text for choice in self.choice}) < len(self.choice):
            raise ValueError("two of its choices have the same text")
        return self

    @property
    def right(self) -> set[int]:
        """The places of the correct choices."""
        return {place for place, choice in enumerate(self.choice) if choice.correct}


class Quiz(Strict):
    """One file of the bank."""

    title: Text
    question: Annotated[list[Question], Field(min_length=1)]


def load(name: str, folder: Path | str | None = None) -> Quiz:
    """The quiz of this name, such as `week01`, from a folder or the nearest `quizzes` folder above.

    Raises:
        ValueError: there is no such quiz, or its file is malformed; names the file, the question and the reason.
    """
    file = (Path(folder) if folder else _find_folder()) / f"{name}.toml"
    if not file.is_file():
        known = sorted(path.stem for path in file.parent.glob("*.toml"))
        raise ValueError(f"There is no quiz {name!r} in {file.parent}: choose one of {', '.join(known) or 'none'}.")
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file.name} is not valid TOML: {error}.") from error
    try:
        quiz = Quiz.model_validate(data)
    except ValidationError as error:
        raise ValueError("\n".join(f"{file.name}, {problem}" for problem in _problems(error, data))) from error
    ids = [question.id for question in quiz.question]
    if twice := sorted({id for id in ids if ids.count(id) > 1}):
        raise ValueError(f"{file.name}, question {twice[0]}: its id is used more than once.")
    return quiz


def ask(name: str, folder: Path | str | None = None) -> Asked:
    """The quiz of this name, shown as a form, or as text where no one can answer."""
    return Asked(load(name, folder))


@dataclass(frozen=True)
class Asked:
    """A quiz that a notebook shows."""

    quiz: Quiz

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle: dict[str, Any] = {"text/html": _as_html(self.quiz), "text/plain": _as_text(self.quiz)}
        if _someone_is_there():
            # the form's bundle also holds the view of its widget, which a front end with a kernel prefers
            bundle = {**(form(self.quiz)._repr_mimebundle_() or {}), **bundle}
        return bundle


def judge(question: Question, chosen: set[int]) -> tuple[bool, list[Choice]]:
    """Whether exactly the right choices were made, and the choices to explain: the chosen ones."""
    return chosen == question.right, [question.choice[place] for place in sorted(chosen)]


def form(quiz: Quiz) -> ipywidgets.Widget:
    """The quiz as a form, one question at a time; feedback comes with an attempt and never before."""
    import ipywidgets as widgets

    pages = [_page(question) for question in quiz.question]
    place = widgets.HTML()
    shown = widgets.VBox()
    back = widgets.Button(description="Previous", tooltip="Go to the previous question")
    onward = widgets.Button(description="Next", tooltip="Go to the next question")

    def turn(to: int) -> None:
        shown.children = [pages[to]]
        place.value = f"<b>Question {to + 1} of {len(pages)}</b>"
        back.disabled, onward.disabled = to == 0, to == len(pages) - 1
        current[0] = to

    current = [0]
    back.on_click(lambda _: turn(current[0] - 1))
    onward.on_click(lambda _: turn(current[0] + 1))
    turn(0)
    box = widgets.VBox([place, shown, widgets.HBox([back, onward])])
    box.layout = widgets.Layout(border="1px solid #BBBBBB", padding="0.8em", max_width="56em")
    return box


def _page(question: Question) -> ipywidgets.Widget:
    import ipywidgets as widgets

    wide = widgets.Layout(width="100%", height="auto")
    texts = [choice.text for choice in question.choice]
    if question.kind == "single":
        radio = widgets.RadioButtons(
            options=[(text, place) for place, text in enumerate(texts)], value=None, layout=wide
        )
        fields: list[Any] = [radio]
    else:
        fields = [widgets.Checkbox(description=text, indent=False, layout=wide) for text in texts]
    check = widgets.Button(description="Check", button_style="primary", tooltip="Check your answer")
    feedback = widgets.HTMLMath()

    def tell(_: Any) -> None:
        if question.kind == "single":
            chosen = set() if radio.value is None else {radio.value}
        else:
            chosen = {place for place, box in enumerate(fields) if box.value}
        feedback.value = _feedback(question, chosen)

    check.on_click(tell)
    return widgets.VBox([widgets.HTMLMath(_html(question.text)), *fields, check, feedback])


def _feedback(question: Question, chosen: set[int]) -> str:
    if not chosen:
        return "<p>Choose an answer first, then press <b>Check</b>.</p>"
    is_right, explained = judge(question, chosen)
    if is_right:
        verdict, colour, sign = "Right.", "#009E73", "✓"
    elif question.kind == "multiple" and chosen < question.right:
        verdict, colour, sign = "Right as far as it goes, but something is missing.", "#E69F00", "…"
    else:
        verdict, colour, sign = "Not yet.", "#D55E00", "✗"
    told = "".join(f"<p><b>{escape(choice.text)}</b></p>{_html(choice.feedback)}" for choice in explained)
    return (
        f'<div role="status" style="border-left: 4px solid {colour}; padding-left: 0.8em; line-height: 1.5">'
        f"<p><b>{sign} {verdict}</b></p>{told}</div>"
    )


def _as_html(quiz: Quiz) -> str:
    items = "".join(
        f"<li>{_html(question.text)}<ul>"
        + "".join(f"<li>{escape(choice.text)}</li>" for choice in question.choice)
        + "</ul></li>"
        for question in quiz.question
    )
    note = "Run this cell in JupyterLab to answer and to get an explanation of every choice."
    return f"<div><p><b>Self-check: {escape(quiz.title)}</b></p><ol>{items}</ol><p><i>{note}</i></p></div>"


def _as_text(quiz: Quiz) -> str:
    lines = [f"Self-check: {quiz.title}"]
    for number, question in enumerate(quiz.question, start=1):
        lines += ["", f"{number}. {question.text}"]
        lines += [f"   ( ) {choice.text}" for choice in question.choice]
    return "\n".join(lines)


def _html(markdown: str) -> str:
    from nbconvert.filters.markdown_mistune import markdown2html_mistune

    return markdown2html_mistune(markdown)


def _someone_is_there() -> bool:
    """False where nobody can click: outside a notebook, and in one that runs unattended."""
    from IPython.core.getipython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return False
    # nbclient, papermill and nbconvert say with every request that they cannot be asked for input
    request = kernel.get_parent("shell") or {}
    return bool(request.get("content", {}).get("allow_stdin", False))


def _find_folder() -> Path:
    here, ours = Path.cwd(), Path(__file__).resolve()
    for folder in (here, *here.parents, *ours.parents):
        if any((folder / FOLDER).glob("*.toml")):
            return folder / FOLDER
    raise ValueError(f"There is no folder {FOLDER!r} with quizzes in {here} or above: start in the course's folder.")


def _problems(error: ValidationError, data: dict[str, Any]) -> list[str]:
    return [
        f"{_where(problem['loc'], data)}: {problem['msg'].removeprefix('Value error, ').rstrip('.')}."
        for problem in error.errors()
    ]


def _where(loc: tuple[int | str, ...], data: dict[str, Any]) -> str:
    """The place in words: `question 3 (w01-mean), choice 1, feedback`."""
    words: list[str] = []
    for part in loc:
        if isinstance(part, int):
            words[-1] += f" {part + 1}"
        else:
            words.append(part)
    if len(loc) > 1 and loc[0] == "question":
        question = data["question"][loc[1]]
        if isinstance(question, dict) and isinstance(question.get("id"), str):
            words[0] += f" ({question['id']})"
    return ", ".join(words) or "the file"
