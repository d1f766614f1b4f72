"""Judging on the machines of a Ray cluster, to which only data goes, and from which only reports come back.

A worker judges as this machine would: it forks a judge, and student code runs in a jail that the judge requests. No
process of Ray's imports any of that code. The hidden checks are on the worker while it judges; a worker
that is killed leaves them behind, in a folder of the machine's /tmp that only its user may enter.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import platform
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autograder.grading.audit_log import engine_sha256
from autograder.judging.judge.measuring import Measured, Measurement, Progress, measured
from autograder.judging.report import Report
from autograder.judging.request import JudgeRequest, judge

_TRIES_AGAIN = 3  # when a worker or its machine dies
_CONNECT_S = 5
_HELP = "Start a cluster with `ray start --head`, or set RAY_ADDRESS to the address of one that runs, as host:port."


class RayCluster:
    """The cluster that runs at RAY_ADDRESS, or on this machine; one judging needs `num_gpus` and a CPU.

    With `has_whole_nodes` a judging takes as many CPUs as the largest node has, so that it shares no node.

    Raises:
        ValueError: Ray is not installed, no cluster answers, or none of its nodes has room for a judging.
    """

    def __init__(self, jobs: int | None = None, num_gpus: float = 0, has_whole_nodes: bool = False) -> None:
        self._ray = _connect()
        self._num_gpus = num_gpus
        num_cpus = _most_cpus(self._ray.nodes()) if has_whole_nodes else 1
        self.jobs = jobs or _room(self._ray.nodes(), num_gpus, num_cpus)
        needs = {"num_cpus": num_cpus, "num_gpus": num_gpus}
        self._task = self._ray.remote(judge_here).options(**needs, max_retries=_TRIES_AGAIN)
        # not retried by Ray itself: what was measured before a worker died must be kept
        self._measuring = self._ray.remote(measure_here).options(**needs, max_retries=0, num_returns="streaming")
        self._running: set[Any] = set()
        self._is_stopped = False

    def judge(self, request: JudgeRequest) -> Report:
        """Have a request judged by a process that a worker of the cluster forks for it.

        Raises:
            RuntimeError: the judge broke, its worker died too often, or it has a different version of the grader.
        """
        errors = self._ray.exceptions
        files = {path.name: path.read_bytes() for path in request.checks.parent.glob("*.py")}
        asked = self._task.remote(grader(), files, request.model_dump_json(), self._num_gpus > 0)
        self._running.add(asked)
        try:
            if self._is_stopped:
                self._ray.cancel(asked)
            return Report.model_validate_json(self._ray.get(asked))
        except errors.RayTaskError as error:
            raise error.cause from None
        except errors.RayError as error:
            reason = (str(error).strip().splitlines() or [""])[0]
            raise RuntimeError(f"the cluster gave no report ({type(error).__name__}): {reason}") from None
        finally:
            self._running.discard(asked)

    def measure(self, job: Measurement, journal: Path) -> Iterator[Progress | Measured]:
        """Measure a program on a worker; every timing is kept here as soon as it arrives.

        Raises:
            RuntimeError: as for `judge`.
        """
        errors = self._ray.exceptions
        for left in reversed(range(_TRIES_AGAIN + 1)):
            kept = journal.read_text() if journal.exists() else ""
            messages = self._measuring.remote(grader(), job.model_dump_json(), kept, self._num_gpus > 0)
            self._running.add(messages)
            try:
                for asked in messages:
                    yield _received(json.loads(self._ray.get(asked)), journal)
                return
            except errors.RayTaskError as error:
                raise error.cause from None
            except errors.RayError as error:
                if self._is_stopped or not left:
                    reason = (str(error).strip().splitlines() or [""])[0]
                    raise RuntimeError(f"the cluster gave no measurement ({type(error).__name__}): {reason}") from None
            finally:
                self._running.discard(messages)

    def abort(self) -> None:
        """Do the same as `stop`."""
        self.stop()

    def stop(self) -> None:
        """Cancel what waits or runs on the cluster."""
        self._is_stopped = True
        for asked in list(self._running):
            self._ray.cancel(asked)


def judge_here(asked_by: Mapping[str, str], files: Mapping[str, bytes], request: str, on_gpus: bool = False) -> str:
    """Have a request judged on a worker; request and report are JSON. `asked_by` is `grader()` where it was made.

    `files` are the checks and the scripts beside them, by name. With `on_gpus` the sandbox shows the GPUs that Ray has
    given to this worker.

    Raises:
        RuntimeError: this machine has a different grader, or the judge broke.
    """
    refuse_another_grader(asked_by)
    with tempfile.TemporaryDirectory(prefix="worldsize-checks-") as folder:  # which only this user may enter
        for name, content in files.items():
            Path(folder, name).write_bytes(content)
        path = Path(folder, "checks.py")
        here = JudgeRequest.model_validate_json(request).model_copy(update={"checks": path})
        return judge(here, _granted() if on_gpus else ()).model_dump_json()


def measure_here(asked_by: Mapping[str, str], job: str, kept: str, on_gpus: bool) -> Iterator[str]:
    """Measure a program on a worker; yield messages as JSON, each with the new lines of the journal.

    Raises:
        RuntimeError: as for `judge_here`.
    """
    refuse_another_grader(asked_by)
    with tempfile.TemporaryDirectory(prefix="worldsize-timings-") as folder:
        journal = Path(folder, "journal")
        journal.write_text(kept)
        at = len(kept)
        for message in measured(Measurement.model_validate_json(job), journal, _granted() if on_gpus else ()):
            text = journal.read_text()
            kind = "progress" if isinstance(message, Progress) else "measured"
            yield json.dumps({"lines": text[at:], kind: message.model_dump()})
            at = len(text)


def _received(message: dict[str, Any], journal: Path) -> Progress | Measured:
    """Append the lines in a worker's message to the journal, and return the rest of the message."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    with open(journal, "a", encoding="utf-8") as file:
        file.write(message["lines"])
        file.flush()
        os.fsync(file.fileno())
    if "progress" in message:
        return Progress.model_validate(message["progress"])
    return Measured.model_validate(message["measured"])


def _granted() -> list[str]:
    return [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]


def refuse_another_grader(asked_by: Mapping[str, str]) -> None:
    """Raise RuntimeError unless this machine grades exactly as the one that asks."""
    if differing := [name for name, own in grader().items() if asked_by.get(name) != own]:
        raise RuntimeError(
            f"the worker on {platform.node()} would not grade as this machine does: it has a different "
            f"{' and a different '.join(differing)}. Install the same there, and grade again"
        )


def grader() -> dict[str, str]:
    """What must be the same wherever a class is graded."""
    torch = version("torch").partition("+")[0]  # its builds for CPUs and for GPUs may be mixed
    return {"version of autograder or worldsize": engine_sha256(), "version of torch": torch}


def _connect() -> Any:
    try:
        ray = importlib.import_module("ray")
    except ImportError:
        raise ValueError("Ray is not installed here: pip install -e '.[ray]'") from None
    address = os.environ.get("RAY_ADDRESS") or "auto"
    try:
        _refuse_closed_port(address)
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, ignore_reinit_error=True)
    except (OSError, RuntimeError, ValueError) as error:
        where = "on this machine" if address == "auto" else f"at {address}"
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ValueError(f"No Ray cluster can be reached {where}. {_HELP} Ray said: {reason}") from None
    return ray


def _refuse_closed_port(address: str) -> None:
    """Raise OSError unless something listens at an address with a port: Ray itself would keep trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()


def _most_cpus(nodes: Sequence[Mapping[str, Any]]) -> float:
    return max((node["Resources"].get("CPU", 0) for node in nodes if node["Alive"]), default=0) or 1


def _room(nodes: Sequence[Mapping[str, Any]], num_gpus: float, num_cpus: float = 1) -> int:
    """How many judgings these nodes hold at once, when nothing else runs there."""
    needs = {"CPU": num_cpus, "GPU": num_gpus}
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    room = sum(int(min(has.get(name, 0) / need for name, need in needs.items() if need)) for has in alive)
    if not room:
        raise ValueError(
            f"No node of the Ray cluster has the CPU and the {num_gpus:g} GPUs (c.Grade.num_gpus) that judging takes. "
            "If the cluster scales on demand, give the number to judge at once with --jobs."
        )
    return room
