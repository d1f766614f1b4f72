"""Forms rendered to files, by this process or by several."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from types import FrameType

from autograder.quiz.atomic_folder import write_private
from autograder.quiz.formats.format import Format
from autograder.quiz.forms import Form

# loaded once, in memory that all processes share
_PRELOADED = [__name__, "autograder.quiz.formats", "worldsize.draw", "nbconvert.filters.markdown_mistune"]
Done = Callable[[int], object]


@dataclass(frozen=True)
class FormatFolder:
    """The folder of a format; nobody but the owner can read files in one that is private."""

    format: Format
    folder: Path
    is_private: bool


Write = Callable[[Sequence[Form], Sequence[FormatFolder], Done], None]


@contextmanager
def writers(num_processes: int) -> Iterator[Write]:
    """A function that writes forms, here or in other processes; at the end of the block all are written."""
    if num_processes == 1:
        yield _write_here
        return
    # not forked from here: the progress bar has a thread, and a fork of a process with threads may hang
    context = get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    # frozen: otherwise the collector writes to what they share, and each gets a copy
    pool = ProcessPoolExecutor(num_processes, context, initializer=gc.freeze)
    pending: list[Future[None]] = []

    def write_there(forms: Sequence[Form], places: Sequence[FormatFolder], done: Done) -> None:
        with interrupts_held():  # a process started here never gets one: this process ends it
            future = pool.submit(_write, forms, places)
        future.add_done_callback(lambda _: done(len(forms)))
        pending.append(future)

    try:
        yield write_there
        for future in pending:
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Defer an interrupt to the end of the block; processes started inside get none."""
    if threading.current_thread() is not threading.main_thread():  # interrupts are raised in the main thread only
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    # the mask is this thread's alone: another may take the signal, and Python raises here all the same
    handler = signal.signal(signal.SIGINT, lambda *received: held.append(received))
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGINT, handler)
        if held and callable(handler):
            handler(*held[0])


def _write_here(forms: Sequence[Form], places: Sequence[FormatFolder], done: Done) -> None:
    _write(forms, places)
    done(len(forms))


def _write(forms: Sequence[Form], places: Sequence[FormatFolder]) -> None:
    for form in forms:
        for place in places:
            format = place.format
            try:
                rendered = format.render(form)
            except ValueError as error:
                raise ValueError(f"{_culprit(form, format)} cannot be written as {format.name}: {error}") from error
            write = write_private if place.is_private else Path.write_bytes
            write(place.folder / f"{form.student.id}{format.suffix}", rendered)


def _culprit(form: Form, format: Format) -> str:
    """The first question that cannot be written when it is alone on the form."""
    for asked in form.asked:
        try:
            format.render(Form(form.student, form.blueprint, (asked,)))
        except ValueError:
            return f"question {asked.variant.question.id}"
    return f"the form of {form.student.id}"
