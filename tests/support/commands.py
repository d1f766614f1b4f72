"""Commands of nbgrader and the autograder at the root of a course, each from its own start or from a warm process.

The warm process has imported what every command imports and forks for each. Run as a script, this file is that process.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from pathlib import Path

IMPORTED = ("nbgrader.apps.nbgraderapp", "autograder.cli", "autograder.nbgrader", "autograder.grading.classroom")


def run_afresh(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, as a person would, and wait for it."""
    words = ["-m", "autograder"] if command[0] == "autograder" else [str(Path(sys.executable).with_name(command[0]))]
    return subprocess.run(
        [sys.executable, *words, *command[1:]],
        cwd=root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        env=_environment(),
    )


def run(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a fork of the warm process, without the time of its imports."""
    with tempfile.TemporaryFile("w+") as output:
        code = _warm().ask({"command": command, "root": str(root), "env": _environment()}, output.fileno())
        output.seek(0)
        return subprocess.CompletedProcess(command, code, output.read())


def _environment() -> dict[str, str]:
    return {**os.environ, "COLUMNS": "200"}


class _Warm:
    """The warm process that forks for each command and ends with this one."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        atexit.register(self.close)

    def ask(self, request: dict, output_fd: int) -> int:
        """Ask the warm process to run a command that prints to `output_fd`; return its exit code."""
        body = json.dumps(request).encode()
        socket.send_fds(self._ours, [len(body).to_bytes(4)], [output_fd])
        self._ours.sendall(body)
        answer = self._ours.recv(1)
        assert answer, "the process that commands are forked from has ended"
        return answer[0]

    def close(self) -> None:
        self._ours.close()
        self._process.wait()


@cache
def _warm() -> _Warm:
    return _Warm()


def serve(fd: int) -> None:
    """Fork for each request until the other side hangs up, and answer with the exit code."""
    for name in IMPORTED:
        importlib.import_module(name)
    with socket.socket(fileno=fd) as line:
        while True:
            head, fds, *_ = socket.recv_fds(line, 4, 1)
            if not head:
                return
            request = json.loads(line.recv(int.from_bytes(head), socket.MSG_WAITALL))
            pid = os.fork()
            if pid == 0:
                line.close()
                _obey(request, fds[0])
            os.close(fds[0])
            _, status = os.waitpid(pid, 0)
            line.sendall(bytes([os.waitstatus_to_exitcode(status) % 256]))


def _obey(request: dict, output_fd: int) -> None:
    """Run a command in this process, which ends with it."""
    code: object = 1
    try:
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        os.close(output_fd)
        os.chdir(request["root"])
        os.environ.clear()
        os.environ.update(request["env"])
        sys.argv = request["command"]
        if sys.argv[0] == "autograder":
            importlib.import_module("autograder.cli").app()
        else:
            importlib.import_module("nbgrader.apps.nbgraderapp").main()
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    serve(int(sys.argv[1]))
