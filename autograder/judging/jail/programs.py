"""Submitted programs inside the jail: written to a file, and run on ranks or under torchrun."""

from __future__ import annotations

from typing import Any

from autograder.judging.jail.agent import describe
from worldsize.bench.program import RestartPolicy, TrainingSpec

FOLDER = "checkpoints"  # in the sandbox's /tmp


def _write(folder: str, source: str) -> str:
    """Write the program, inside the sandbox, and return its path."""
    import os

    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "train.py")
    partial = f"{path}.{os.getpid()}"  # ranks of one machine write the same file at the same time
    with open(partial, "w", encoding="utf-8") as file:
        file.write(source)
    os.replace(partial, path)
    return path


def play(folder: str, source: str, num_threads: int, args: list[str]) -> None:
    """Run the program inside the sandbox, on a rank that has joined."""
    from worldsize.bench.program import play_on

    play_on(num_threads, _write(folder, source), *args)


def under_agent(
    folder: str, source: str, spec: TrainingSpec, restart_policy: RestartPolicy, limit_s: float, env: dict[str, str]
) -> dict[str, Any]:
    """Call torchrun inside the sandbox, from a process that runs none of the program's code itself."""
    import contextlib
    import os
    import signal

    from worldsize.bench import program
    from worldsize.launch import RunError

    def end_all() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # all except this process and the jail's first: nothing of the job lives on

    os.makedirs(os.path.join(folder, "checkpoints"), exist_ok=True)
    path = _write(folder, source)
    try:
        result = program.under_agent(
            path, spec, os.path.join(folder, "checkpoints"), restart_policy, limit_s, env, end_all
        )
        return {"printed": "\n".join(line.model_dump_json() for line in result.lines), "restarts": result.restarts}
    except RunError as error:
        return describe(error)


def lend_on_rank(folder: str) -> None:
    """Make the folder of checkpoints and lend it to the sample server, before any of the student's ranks runs."""
    import os

    from worldsize.bench.samples import ADDRESS, lend_folder

    os.makedirs(folder)
    lend_folder(os.environ[ADDRESS], folder)
