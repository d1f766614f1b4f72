"""`python tests/support/foreign_readers.py READER FOLDER`: a reader of quizzes that is not ours, in its own process.

It reads requests from standard input, one JSON value a line, and answers each with a line. FOLDER holds the reader's
package; what it imports only in order to print is replaced by empty modules, which must not reach the tests' process.
"""

from __future__ import annotations

import importlib
import io
import json
import sys
import types
import xml.etree.ElementTree as ET
from collections.abc import Callable
from typing import Any


def amc2moodle() -> Callable[[str], list[dict[str, Any]]]:
    """Read the questions of a Moodle XML file that amc2moodle supports."""
    from lxml import etree  # type: ignore[reportAttributeAccessIssue]

    _replace_by_empty_modules("markdown", "wand", "wand.image")
    sys.modules["wand.image"].__dict__["Image"] = None
    questions = importlib.import_module("amc2moodle.moodle2amc._questions")

    def read(xml: str) -> list[dict[str, Any]]:
        results = []
        for question in etree.fromstring(xml.encode()):
            kind = question.get("type")
            if kind in questions.SUPPORTED_QUESTION_TYPE:
                created = questions.CreateQuestion(kind, question)
                answers = created.answers()
                result = {"kind": kind, "id": question.findtext("idnumber"), "type": created.gettype()}
                choices = [{"tag": choice.tag, "text": "".join(choice.itertext())} for choice in answers]
                results.append(result | {"tag": answers.tag, "target": answers.get("target"), "choices": choices})
        return results

    return read


def qti2latex() -> Callable[[str], list[dict[str, Any]]]:
    """Read the groups of a Canvas package's assessment, with the choices of each item."""
    _replace_by_empty_modules("pypandoc")
    reader = importlib.import_module("qti2latex")

    def read(xml: str) -> list[dict[str, Any]]:
        groups = []
        for section in reader.findall_anyns(ET.fromstring(xml), "section"):
            if reader.childall_anyns(section, "item"):
                num_picked, points, items = reader.get_group(section)
                groups.append(
                    {"num_picked": num_picked, "points": points, "items": [read_item(item) for item in items]}
                )
        return groups

    def read_item(item: ET.Element) -> dict[str, Any]:
        _drop_comments(item)
        kind = reader.guess_type(reader.get_qti_metadata(item), item)
        return {"type": kind, "choices": reader.get_choices(item), "right": list(reader.get_correct_idents(item))}

    return read


def _drop_comments(item: ET.Element) -> None:
    """Remove the conditions that give no points: qti2latex takes what shows a comment for a right answer."""
    for scoring in item.findall("{*}resprocessing"):
        for condition in scoring.findall("{*}respcondition"):
            if condition.find("{*}setvar") is None:
                scoring.remove(condition)


def pyslet() -> Callable[[tuple[str, dict[str, Any]]], tuple[float, list[str]]]:
    """Score a QTI 2.1 item: its XML and responses by name, to the score and the identifiers of what is shown."""
    variables, xml = (importlib.import_module(f"pyslet.qtiv2.{name}") for name in ("variables", "xml"))

    def score(request: tuple[str, dict[str, Any]]) -> tuple[float, list[str]]:
        item, responses = request
        document = xml.QTIDocument()
        document.read(src=io.BytesIO(item.encode()))
        session = variables.ItemSessionState(document.root)
        session.begin_session()
        for name, value in responses.items():
            session[name].set_value(value)
        session.end_attempt()
        return session["SCORE"].value, list(session["FEEDBACK"].value or ())

    return score


def _replace_by_empty_modules(*names: str) -> None:
    for name in names:
        sys.modules[name] = types.ModuleType(name)


if __name__ == "__main__":
    name, folder = sys.argv[1:]
    sys.path.insert(0, folder)
    answer = {reader.__name__: reader for reader in (amc2moodle, qti2latex, pyslet)}[name]()
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
