"""A quiz written to a folder: every form in every format, the key, and a summary; all of it or nothing."""

from __future__ import annotations

import csv
import gc
import io
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

from autograder.quiz.atomic_folder import in_place_of
from autograder.quiz.blueprint import Blueprint
from autograder.quiz.formats import FORMATS
from autograder.quiz.formats.format import Format
from autograder.quiz.forms import Form, deal
from autograder.quiz.key import Key, key_of, printed
from autograder.quiz.roster import Student
from autograder.quiz.summary import summarised
from worldsize.quiz import Question

KEY, ANSWERS, SUMMARY = "key.json", "key.csv", "summary.txt"
_BATCH = 10  # forms that a process renders at a time
_FEW = 20  # forms for which it is not worth while to start another process
_KEY_BYTES = 32
_SHARED = [__name__, "worldsize.draw", "nbconvert.filters.markdown_mistune"]  # loaded once, in memory that all share
Done = Callable[[int], object]
Write = Callable[[Sequence[Form], Sequence[Format], Path, Done], None]


def make(
    blueprint: Blueprint,
    questions: Sequence[Question],
    roster: Sequence[Student],
    key: bytes,
    formats: Sequence[Format],
    out: Path,
    *,
    force: bool = False,
    jobs: int | None = None,
    done: Done = lambda num_forms: None,
) -> str:
    """Writes a quiz to `out`, which appears when it is complete; tells what it is like.

    The same blueprint, bank, roster, key and formats give the same bytes. `done` is told of forms as they are written.

    Raises:
        ValueError: `out` holds other things, or (without `force`) an earlier quiz; or the quiz cannot be drawn.
    """
    refuse_to_destroy(out, force)
    num_processes = min(jobs or os.cpu_count() or 1, 1 + len(roster) // _FEW)
    with in_place_of(out) as folder:
        for format in formats:
            (folder / format.name).mkdir()
        forms: list[Form] = []
        with _writers(num_processes) as write:
            dealt = deal(blueprint, questions, roster, key)
            while batch := list(islice(dealt, _BATCH)):
                forms += batch
                write(batch, formats, folder, done)
        _write_keys(forms, formats, folder)  # when the processes are gone, for it takes as much memory as one of them
        summary = summarised(forms, [format.name for format in formats])
        (folder / SUMMARY).write_text(summary, encoding="utf-8")
    return summary


def secret(file: Path) -> bytes:
    """The secret in a file; where there is no such file, one is made that its owner alone can read.

    Raises:
        ValueError: the file cannot be read or written, or holds no such secret.
    """
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read_secret(file)
    except OSError as error:
        raise ValueError(f"{file} cannot be made: {error.strerror}.") from error
    key = secrets.token_bytes(_KEY_BYTES)
    with os.fdopen(descriptor, "w", encoding="ascii") as text:
        text.write(f"{key.hex()}\n")
    return key


def refuse_to_destroy(out: Path, force: bool) -> None:
    """Raises ValueError where a folder holds what `make` did not write, or, without `force`, an earlier quiz."""
    if not out.exists():
        return
    if not out.is_dir():
        raise ValueError(f"{out} is no folder: name another one.")
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir()}
    if others := sorted(files - _files_of_a_quiz(out / KEY)):
        raise ValueError(f"{out} holds {others[0]}, which is no part of a quiz: name a new or an empty folder.")
    if files and not force:
        raise ValueError(f"{out} holds a quiz already: name another folder, or replace it with --force.")


def _files_of_a_quiz(key: Path) -> set[str]:
    """What a folder with this key has been given by `make`; nothing where it is none."""
    try:
        students = [form.student for form in Key.model_validate_json(key.read_bytes()).forms]
    except (OSError, ValidationError):
        return set()
    files = {f"{format.name}/{student}{format.suffix}" for format in FORMATS.values() for student in students}
    return files | {KEY, ANSWERS, SUMMARY} | {f"key{format.suffix}" for format in FORMATS.values() if format.key}


def _read_secret(file: Path) -> bytes:
    try:
        key = bytes.fromhex(file.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read as the secret of a quiz: {error}.") from error
    if len(key) != _KEY_BYTES:
        raise ValueError(f"{file} holds {len(key)} bytes and not the {_KEY_BYTES} of a secret: name another file.")
    return key


@contextmanager
def _writers(num_processes: int) -> Iterator[Write]:
    """What writes forms, here or in other processes; in the end all are written."""
    if num_processes == 1:
        yield _write_here
        return
    # not forked from here: the progress bar has a thread, and a fork of a process with threads may hang
    context = get_context("forkserver")
    context.set_forkserver_preload(_SHARED)
    # frozen: the collector would write to what they share, and each would have a copy
    pool = ProcessPoolExecutor(num_processes, context, initializer=gc.freeze)
    under_way: list[Future[None]] = []

    def write_there(forms: Sequence[Form], formats: Sequence[Format], folder: Path, done: Done) -> None:
        with interrupts_held():  # a process that is started here never gets any: it is this one that ends it
            future = pool.submit(_write, forms, formats, folder)
        future.add_done_callback(lambda _: done(len(forms)))
        under_way.append(future)

    try:
        yield write_there
        for future in under_way:
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Lets an interrupt wait for the end of the block; processes that are started inside get none."""
    if threading.current_thread() is not threading.main_thread():  # where none is ever raised
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    # the mask is this thread's alone: another may take the signal, and Python raises here all the same
    handler = signal.signal(signal.SIGINT, lambda *told: held.append(told))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
        if held and callable(handler):
            handler(*held[0])


def _write_here(forms: Sequence[Form], formats: Sequence[Format], folder: Path, done: Done) -> None:
    _write(forms, formats, folder)
    done(len(forms))


def _write(forms: Sequence[Form], formats: Sequence[Format], folder: Path) -> None:
    for form in forms:
        for format in formats:
            try:
                made = format.render(form)
            except ValueError as error:
                raise ValueError(f"{_culprit(form, format)} cannot be written as {format.name}: {error}") from error
            (folder / format.name / f"{form.student.id}{format.suffix}").write_bytes(made)


def _culprit(form: Form, format: Format) -> str:
    """The first question that cannot be written when it is alone on the form."""
    for asked in form.asked:
        try:
            format.render(Form(form.student, form.blueprint, (asked,)))
        except ValueError:
            return f"question {asked.variant.question.id}"
    return f"the form of {form.student.id}"


def _write_keys(forms: Sequence[Form], formats: Sequence[Format], folder: Path) -> None:
    """The key for machines, as a table, and in every format that has one; its owner alone can read them."""
    made = {KEY: (key_of(forms).model_dump_json(indent=1) + "\n").encode(), ANSWERS: _table(forms)}
    made |= {f"key{format.suffix}": format.key(forms) for format in formats if format.key}
    for name, content in made.items():
        (folder / name).touch(0o600)
        (folder / name).write_bytes(content)


def _table(forms: Sequence[Form]) -> bytes:
    from autograder.grading.exports import (
        neutral,  # here, for it loads nbgrader, which no process that writes forms needs
    )

    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["student", "number", "question", "variant", "answer"])
    for form in forms:
        for number, variant in enumerate(form.variants, start=1):
            answer = printed(variant.answer)
            table.writerow([form.student.id, number, variant.question.id, variant.id, neutral(answer)])
    return text.getvalue().encode("utf-8-sig")  # by which spreadsheets know UTF-8
