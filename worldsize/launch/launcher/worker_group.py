"""The launcher's loop for the ranks of one run, however they were started."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from typing import Any

from worldsize import framing
from worldsize.emulate.launcher.server import Emulation
from worldsize.emulate.launcher.simulator import Unanswered
from worldsize.launch.display.output import Tail
from worldsize.launch.display.view import Shielded, View
from worldsize.launch.launcher.kernel_memory import KernelMemory
from worldsize.launch.launcher.monitor import GLANCE_S, Monitor, progress
from worldsize.launch.launcher.worker import Worker
from worldsize.launch.protocol import stack_dump
from worldsize.launch.protocol.failure import Failure, FailureCause
from worldsize.launch.protocol.messages import Begin, Done, Failed, FromRank, Joined, Locate, Probe
from worldsize.launch.protocol.quota import Quota
from worldsize.launch.reports import text
from worldsize.launch.reports.diagnosis import StoppedRank
from worldsize.launch.reports.result import End, Ending, RankFailed, Run
from worldsize.launch.reports.verdict import error_of
from worldsize.memory.use import MemoryUse
from worldsize.timeline import Timeline

LAST_READS = 8  # together they read more than a socket holds


class WorkerGroup(ABC):
    """The ranks of one run; a subclass starts them, notices how they end, and ends them."""

    may_recover = False  # whether a failed rank can be restarted
    is_local = True  # False if the ranks are in a jail
    answer_s = 1.0  # how long ranks may take to report their positions

    def __init__(self, view: View, quota: Quota, emulation: Emulation | None = None) -> None:
        self.view, self.emulation = Shielded(view), emulation
        self.workers: list[Worker] = []
        self.tails: dict[int, Tail] = {}
        self.selector = selectors.DefaultSelector()
        self.backend = ""
        self.restarts = 0
        self._quota = quota
        self._kernel_memory: KernelMemory | None = None  # set if the ranks' memory is measured
        self._start_s = self._end_s = time.monotonic()

    @property
    def states(self) -> list[tuple[int, str]]:
        """Each rank with its state in words, ordered by rank."""
        return sorted((worker.rank, worker.state) for worker in self.workers)

    @property
    def warnings(self) -> list[str]:
        """Failures that did not end the run: the threads that failed, with their lines."""
        failed = [(worker.rank, thread) for worker in self.workers for thread in worker.failed_threads]
        return text.describe_threads(
            (rank, thread.thread, thread.failure) for rank, thread in sorted(failed, key=itemgetter(0))
        )

    # what a subclass provides

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to wait for."""
        return bool(self.workers) and all(worker.is_settled for worker in self.workers)

    @property
    @abstractmethod
    def headline(self) -> str:
        """One line: the number of ranks, and where they run."""

    @abstractmethod
    def end_ranks(self) -> None:
        """Kill every remaining rank and all processes it started; return when they have ended."""

    # the loop

    def add(self, rank: int, control: socket.socket) -> Worker:
        """Add a worker for a rank and start to receive its messages."""
        worker = Worker(rank, control, self._quota.value_bytes, self._start_s, self.is_local)
        self.workers.append(worker)
        self.selector.register(control, selectors.EVENT_READ, lambda: self.receive(worker))
        return worker

    def listen(self, timeout_s: float, stalled_s: float | None) -> Ending:
        """Serve the ranks until the run ends or must be stopped; return the reason."""
        monitor = Monitor(self._start_s, timeout_s, stalled_s)
        ending = None
        while not self.is_over and ending is None:
            self.turn(monitor.deadline_s)
            ending = self._interruption()
            if monitor.is_glance_due(len(self.workers)):
                if any(worker.failure for worker in self.workers) and not self.may_recover:
                    monitor.shorten()
                self.view.glance(self)
                if self._kernel_memory:
                    self._kernel_memory.glance()
                if not self.emulation and monitor.is_probe_due():  # a conductor sees by itself who waits
                    self._probe()
                num_posts = self.emulation.num_posts if self.emulation else 0
                ending = ending or monitor.stall(num_posts, self._progress)
            ending = ending or monitor.timeout()
        self._end_s = time.monotonic()
        return Ending(End.ENDED) if ending is None or self.is_over else ending

    def _progress(self) -> Any:
        return progress(self.workers, sum(tail.num_bytes for tail in self.tails.values()))

    def _probe(self) -> None:
        """Ask the ranks outside logged calls whether they wait for torch's own communication."""
        for worker in self.workers:
            if worker.has_joined and not (worker.is_settled or worker.is_hung_up or worker.is_in_call):
                with contextlib.suppress(OSError):  # the rank's end is about to be reported
                    worker.send(Probe())

    def _interruption(self) -> Ending | None:
        if self.view.is_stop_asked:
            return Ending(End.STOPPED, "Stopped by the stop button.")
        if self.emulation and self.emulation.is_stuck:
            return Ending(End.STUCK, "Deadlock: every unfinished rank is waiting for another.")
        return None

    def turn(self, deadline_s: float) -> None:
        """Handle what is ready, waiting at most until the next check of the ranks."""
        for key, _ in self.selector.select(max(0.0, min(deadline_s - time.monotonic(), GLANCE_S))):
            key.data()
            if time.monotonic() > deadline_s:  # ranks that send endlessly must not delay the check
                break
        if self.emulation:
            self.emulation.send_answers()

    def receive(self, worker: Worker) -> None:
        """Handle the messages that a rank has sent."""
        if not worker.is_hung_up:
            for message, content in self._received(worker):
                self.take(worker, message, content)

    def receive_last(self, worker: Worker) -> None:
        """Handle the remaining messages of a rank that has ended."""
        for _ in range(LAST_READS):
            self.receive(worker)

    def _received(self, worker: Worker) -> Iterator[tuple[FromRank, Any]]:
        """Yield the messages that a rank has sent; close the connection if they are malformed."""
        try:
            yield from worker.receive()
        except BlockingIOError:
            return
        except ConnectionError:
            self.hang_up(worker)
        except Exception as error:  # whatever the rank has sent, the launcher must go on
            self.hang_up(worker)
            reason = f"what the rank sent back cannot be read: {error}"
            if isinstance(error, framing.TooLong):
                worker.exceed(reason)
            else:
                worker.fail(FailureCause.MESSAGE, "broken result", reason)

    def hang_up(self, worker: Worker) -> None:
        """Stop receiving from a rank."""
        worker.is_hung_up = True
        self.selector.unregister(worker.control)

    def take(self, worker: Worker, message: FromRank, content: Any) -> None:
        """Handle one message of a rank, with its content."""
        if self.emulation and isinstance(message, Done | Failed):
            self.emulation.leave(worker.rank)
        if self._kernel_memory and isinstance(message, Joined):
            self._kernel_memory.watch(worker.rank, worker.pid)
            with contextlib.suppress(OSError):  # the rank's end is about to be reported
                worker.send(Begin())
        if self._kernel_memory and isinstance(message, Done | Failed):
            self._kernel_memory.look()
        worker.take(message, content)
        if isinstance(message, Joined):
            self.backend = message.backend
            self.view.begin(self.headline)

    def take_output(self, rank: int, data: bytes) -> None:
        """Keep what a rank printed and show it; fail a rank that prints too much."""
        tail = self.tails.setdefault(rank, Tail())
        self.view.output(rank, tail.feed(data))
        most = self._quota.printed_bytes
        if most is not None and tail.num_bytes > most:
            for worker in self.workers:
                if worker.rank == rank and not worker.is_settled:
                    worker.exceed(f"it printed more than {most / 1e6:g} MB")

    # the end

    def outcome(self, ending: Ending) -> Run:
        """Return the `Run` if every rank returned.

        Raises:
            RankFailed, RunTimeout, RunStopped: otherwise.
        """
        if not self.went_well or any(worker.failure for worker in self.workers):
            self._locate_all()
        self._note_refusals()
        failures = [worker.failure for worker in self.workers if worker.failure]  # including any reported meanwhile
        # every rank's calls are read only if something went wrong
        is_good = self.went_well and not failures and ending.end is End.ENDED
        lost_s = self.emulation.lost_s() if self.emulation else {}
        for worker in self.workers:
            worker.last_state = worker.state
        standings = [] if is_good else self._standings()
        self.end_ranks()
        self.view.end(self)
        output = self._output()
        if not is_good and (error := error_of(ending, failures, standings, output, self.warnings, lost_s)):
            raise error
        return self._run(output, lost_s)

    @property
    def went_well(self) -> bool:
        """Whether every rank has returned, except planned losses."""
        return bool(self.workers) and all(worker.has_value or worker.is_lost for worker in self.workers)

    def _note_refusals(self) -> None:
        """Set the cause of a reported failure to FORBIDDEN if the conductor had refused the rank a call."""
        for worker in self.workers:
            is_reported = worker.failure is not None and worker.failure.cause is FailureCause.REPORTED
            if self.emulation and worker.failure and is_reported and self.emulation.was_refused(worker.rank):
                worker.failure = replace(worker.failure, cause=FailureCause.FORBIDDEN)

    def _output(self) -> list[str]:
        num_ranks = max([*(worker.rank for worker in self.workers), *self.tails], default=-1) + 1
        return [self.tails[rank].text if rank in self.tails else "" for rank in range(num_ranks)]

    def _run(self, output: list[str], lost_s: dict[int, float]) -> Run:
        workers = sorted(self.workers, key=lambda worker: worker.rank)
        return Run(
            values=[worker.value for worker in workers],
            output=output,
            duration_s=self._end_s - self._start_s,
            backend=self.backend,
            cluster=self.emulation.name if self.emulation else "",
            timeline=self._timeline(output),
            states=[worker.state for worker in workers],
            durations_s=[worker.duration_s for worker in workers],
            restarts=self.restarts,
            warnings=[
                *self.warnings,
                *(self.emulation.warnings if self.emulation else []),
                *text.describe_unseen(self._num_unseen),
            ],
            lost_s=lost_s,
            exchanges=self.emulation.exchanges() if self.emulation else [],
            grown_bytes=[grown for worker in workers if (grown := self._grown_bytes(worker)) is not None],
            unawaited=text.describe_unawaited((worker.rank, worker.call_log.issued()) for worker in workers),
            memory=[one.memory or MemoryUse([], {}) for one in workers] if any(one.memory for one in workers) else [],
        )

    @property
    def _num_unseen(self) -> dict[int, int]:
        """Each rank that took part in collectives that no event describes, and their number."""
        return {worker.rank: worker.num_unseen for worker in self.workers if worker.num_unseen}

    def _grown_bytes(self, worker: Worker) -> int | None:
        return self._kernel_memory.grown_bytes(worker.rank) if self._kernel_memory else None

    def _timeline(self, output: list[str]) -> Timeline:
        if not self.emulation:
            events = [event for worker in self.workers for event in worker.events]
            return replace(Timeline.of_events(events), num_unseen=self._num_unseen)
        try:
            return self.emulation.timeline()
        except Unanswered as error:  # a rank may have reported impossible waits
            ranks, said = error.ranks, str(error)
        except MemoryError:  # or more data than fits in this process's memory
            ranks, said = range(len(self.workers)), "what the ranks did does not fit in memory"
        now_ns, cause = time.monotonic_ns(), FailureCause.MESSAGE
        failures = [Failure(rank, "broken message", said, [], now_ns, cause) for rank in ranks]
        raise RankFailed(text.describe_failure(failures, [], len(self.workers)), failures, output)

    def _locate_all(self) -> None:
        """Ask every connected rank for its position."""
        for worker in self.workers:
            if not worker.is_hung_up:
                with contextlib.suppress(OSError):
                    worker.send(Locate())
        deadline_s = time.monotonic() + self.answer_s
        while any(map(_is_awaited, self.workers)) and time.monotonic() < deadline_s:
            self.turn(deadline_s)

    def _standings(self) -> list[StoppedRank]:
        """Where every rank is; one that cannot run Python is asked for its stack last: the signal may wake it up."""
        standings = [worker.standing for worker in self.workers]
        silent = [worker for worker in self.workers if worker.is_silent and self.is_local]
        stack_dump.request({worker.call_log.fd: worker.pid for worker in silent})
        pairs = zip(self.workers, standings, strict=True)
        return [replace(one, lines=worker.dumped_lines) if worker in silent else one for worker, one in pairs]

    def close(self) -> None:
        """End remaining processes and close all files and sockets."""
        self.end_ranks()
        self.view.end(self)
        self.selector.close()
        if self.emulation:
            self.emulation.close()
        for worker in self.workers:
            worker.close()


def _is_awaited(worker: Worker) -> bool:
    return not worker.is_settled if worker.is_hung_up else worker.position is None
