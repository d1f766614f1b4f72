"""Self-checks that answer in the page: a form for each question, with every explanation hidden in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from jinja2 import FileSystemLoader
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective

from autograder.quiz import page_html
from worldsize import quiz
from worldsize.quiz.bank import find_folder
from worldsize.quiz.question_text import QUESTIONS

ENVIRONMENT = page_html.environment.overlay(loader=FileSystemLoader(Path(__file__).parent))


class SelfCheck(SphinxDirective):
    """The self-check of a week: `{self-check} week01`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        return [nodes.raw("", _form_of(self.env, self.arguments[0]), format="html")]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive, and put the form where a lesson's self-check has its text."""
    app.add_directive("self-check", SelfCheck)
    app.connect("doctree-read", _replace)
    return {"parallel_read_safe": True}


def form(name: str) -> str:
    """The self-check questions of a quiz, as the lesson draws them."""
    asked = quiz.ask(name)
    return ENVIRONMENT.get_template("questions.html.j2").render(name=name, asked=asked)


def _form_of(env: BuildEnvironment, name: str) -> str:
    """The form for the page that is being read, which is read again when the questions change."""
    env.note_dependency(str(find_folder() / f"{name}.toml"))
    return form(name)


def _replace(app: Sphinx, doctree: nodes.document) -> None:
    week = app.env.docname.rpartition("/")[2].partition("_")[0]
    for output in doctree.findall(nodes.raw):
        if output.astext().lstrip().startswith(f'<div class="{QUESTIONS}">'):
            output.children = [nodes.Text(_form_of(app.env, week))]
            output.rawsource = ""
