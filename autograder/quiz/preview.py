"""A page to browse the bank: served on this machine and redrawn when its files change, or written to a file.

The standard library's server is enough for a single author. It answers only requests addressed to 127.0.0.1 or
localhost, so that no other website can read the bank through the browser.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from markupsafe import Markup

from autograder.quiz import page_html
from autograder.quiz.blueprint import FILE
from worldsize.quiz import Question, Variant, draw, load

_HERE = {"127.0.0.1", "localhost"}


@dataclass(frozen=True)
class Shown:
    """A variant of a question, or the reason why it cannot be drawn."""

    seed: int
    variant: Variant | None
    error: str = ""


@dataclass(frozen=True)
class PreviewEntry:
    """A question of a file, and some of its variants."""

    file: str
    question: Question
    shown: tuple[Shown, ...]

    @property
    def key(self) -> str:
        """The entry's name on the page."""
        return f"{self.file}/{self.question.id}"

    @property
    def words(self) -> str:
        """The words that the page's filter searches."""
        text = re.sub(r"\{[{%#].*?[#%}]\}", "", self.question.text, flags=re.DOTALL)
        return " ".join(f"{self.question.id} {self.question.objective} {text}".lower().split())


@dataclass(frozen=True)
class Bank:
    """The questions of a folder, the mistakes in its files, and a hash of the files."""

    questions: tuple[tuple[str, Question], ...]
    errors: tuple[str, ...]
    version: str


def read(folder: Path) -> Bank:
    """Read a folder: the questions of well-formed files, and every mistake in the others with its line."""
    questions: list[tuple[str, Question]] = []
    errors: list[str] = []
    found: dict[str, str] = {}
    for file in sorted(folder.glob("*.toml")):
        if file.name == FILE:
            continue
        try:
            quiz = load(file.stem, folder)
        except ValueError as error:
            errors += str(error).splitlines()
            continue
        for question in quiz.question:
            if question.id in found:
                where = f"{file.name}, line {line_of(file, question)}"
                errors.append(f"{where}: {question.id} is the id of a question in {found[question.id]} too.")
            found.setdefault(question.id, file.name)
            questions.append((file.stem, question))
    return Bank(tuple(questions), tuple(errors), version(folder))


def version(folder: Path) -> str:
    """A hash of the bank's files, which changes with them."""
    seen = hashlib.sha256()
    for file in sorted(folder.glob("*.toml")):
        try:
            seen.update(file.name.encode() + b"\0" + file.read_bytes())
        except OSError:
            continue  # deleted meanwhile: the next call notices
    return seen.hexdigest()[:16]


def line_of(file: Path, question: Question) -> int:
    """The line with a question's id in a file; 1 if it is not found."""
    wanted = re.compile(rf"""\s*id\s*=\s*["']{re.escape(question.id)}["']""")
    lines = file.read_text(encoding="utf-8").splitlines()
    return next((number for number, line in enumerate(lines, start=1) if wanted.match(line)), 1)


def shown(folder: Path, file: str, question: Question, seed: int) -> Shown:
    """Draw a variant and its picture; a mistake is returned with its file and line."""
    try:
        variant = draw(question, seed)
        page_html.picture(variant.picture)
    except ValueError as error:
        path = folder / f"{file}.toml"
        return Shown(seed, None, f"{path.name}, line {line_of(path, question)}: {error}")
    return Shown(seed, variant)


def page(folder: Path, num_variants: int = 1, *, is_live: bool = False) -> str:
    """The page of a folder, with `num_variants` variants of each question that has several."""
    bank = read(folder)
    entries = [
        PreviewEntry(
            file,
            question,
            tuple(shown(folder, file, question, seed) for seed in range(num_variants if question.parameters else 1)),
        )
        for file, question in bank.questions
    ]
    template = page_html.environment.get_template("quiz/preview.html.j2")
    return template.render(
        bank=bank,
        entries=entries,
        is_live=is_live,
        weeks=sorted({question.week for _, question in bank.questions}),
        kinds=sorted({question.kind for _, question in bank.questions}),
        title=f"{folder.resolve().name}: {len(entries)} questions",
    )


def fragment(folder: Path, key: str, seed: int) -> str | None:
    """The HTML of one variant of a question; None if there is no such question."""
    for file, question in read(folder).questions:
        if key == f"{file}/{question.id}":
            module = page_html.environment.get_template("quiz/variant.html.j2")
            return module.render(one=shown(folder, file, question, seed))
    return None


def write(folder: Path, out: Path, num_variants: int) -> None:
    """Write a page that needs no server. Raises: ValueError if it cannot be written."""
    text = page(folder, num_variants)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{out} cannot be written: {error.strerror}.") from error


def open_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """Open a server for the folder's page on 127.0.0.1, without serving yet.

    Raises:
        ValueError: the folder has no bank, or the port is not available.
    """
    if not any(folder.glob("*.toml")):
        raise ValueError(f"{folder} holds no questions: it should have files such as week01.toml.")

    class Handler(_Handler):
        bank = folder

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"Port {port} of 127.0.0.1 is not available ({error}): name another, or 0 for a free one."
        ) from error


class _Handler(BaseHTTPRequestHandler):
    bank: Path

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(asked.query).items()}
        if (self.headers.get("Host") or "").rpartition(":")[0] not in _HERE:
            self._answer("Only this machine may open the page, as 127.0.0.1 or localhost.", HTTPStatus.FORBIDDEN)
        elif asked.path == "/":
            self._answer(page(self.bank, is_live=True))
        elif asked.path == "/version":
            self._answer(json.dumps(version(self.bank)), kind="application/json")
        elif asked.path == "/variant" and query.get("seed", "").isdecimal() and len(query["seed"]) < 10:
            found = fragment(self.bank, query.get("key", ""), int(query["seed"]))
            status = HTTPStatus.OK if found is not None else HTTPStatus.NOT_FOUND
            self._answer(found or "This question no longer exists.", status)
        else:
            self._answer("There is no such page.", HTTPStatus.NOT_FOUND)

    def _answer(self, text: str | Markup, status: HTTPStatus = HTTPStatus.OK, kind: str = "text/html") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: one line a second would hide the address."""
