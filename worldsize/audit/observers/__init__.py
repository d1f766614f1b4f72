"""What watches a rank of an audited run: each file watches one part of torch and writes notes, nothing else."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from worldsize.audit.notes import COMPARED, EVERY, FOLDER, Notebook


def is_asked_for() -> bool:
    """Whether this rank's environment asks for an audit."""
    return bool(os.environ.get(FOLDER))


@contextlib.contextmanager
def observing(listeners: list[object]) -> Iterator[None]:
    """Observe the program that runs inside, on the rank of this environment; calls are reported to `listeners`."""
    from worldsize.audit.names import Names
    from worldsize.audit.observers.communicating import CallsObserver
    from worldsize.audit.observers.data import DataObserver
    from worldsize.audit.observers.making import MakingObserver
    from worldsize.audit.observers.modes import ModesObserver
    from worldsize.audit.observers.operators import OperatorsObserver
    from worldsize.audit.observers.passing import PassingObserver
    from worldsize.audit.observers.patching import failures
    from worldsize.audit.observers.placing import PlacingObserver
    from worldsize.audit.observers.recomputing import RecomputingObserver
    from worldsize.audit.observers.saving import SavingObserver
    from worldsize.audit.observers.scaling import ScalingObserver
    from worldsize.audit.observers.stepping import SteppingObserver
    from worldsize.audit.observers.training import TrainingObserver
    from worldsize.audit.observers.wrapping import WrappingObserver

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    notebook, names = Notebook(os.environ[FOLDER], rank, world_size), Names()
    wrapping = WrappingObserver(notebook, names)
    training = TrainingObserver(notebook, names, wrapping, int(os.environ.get(EVERY, "1")))
    calls = CallsObserver(notebook, names, training)
    making = MakingObserver(notebook)
    operators = OperatorsObserver(notebook, calls, training, making)
    recomputing = RecomputingObserver(notebook, operators)
    with contextlib.ExitStack() as stack:
        stack.callback(notebook.close)
        stack.callback(lambda: notebook.say("failures", texts=failures[:20]))
        for observer in (wrapping, training, DataObserver(notebook), ScalingObserver(notebook, names, training)):
            observer.install(stack)
        for observer in (calls, recomputing, SavingObserver(notebook, names), making, ModesObserver(notebook)):
            observer.install(stack)
        for observer in (SteppingObserver(notebook, names), PlacingObserver(notebook, training)):
            observer.install(stack)
        if COMPARED in os.environ:
            PassingObserver(notebook, names).install(stack)
        listeners.append(calls)
        stack.callback(listeners.remove, calls)
        operators.install(stack)
        stack.callback(training.finish)
        yield
        calls.finish()  # if the program did not fail
