"""Rendering forms to files, in this process or in several."""

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

# loaded once, before forking, so that all processes share the memory
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
    """A function that writes forms in `num_processes` processes; all are written by the end of the block."""
    if num_processes == 1:
        yield _write_here
        return
    # not forked from this process: the progress bar runs a thread, and forking a process with threads may hang
    context = get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    # without the freeze, the garbage collector writes to shared pages, so each process gets its own copy
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
    """Defer interrupts to the end of the block; processes started in it receive none."""
    if threading.current_thread() is not threading.main_thread():  # interrupts are raised in the main thread only
        yield
        return
    held: list[tuple[int, FrameType | None]] = []
    # the mask covers only this thread: if another thread takes the signal, Python still raises in this one
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
    """The first question that cannot be written even alone on a form."""
    for asked in form.asked:
        try:
            format.render(Form(form.student, form.blueprint, (asked,)))
        except ValueError:
            return f"question {asked.variant.question.id}"
    return f"the form of {form.student.id}"
