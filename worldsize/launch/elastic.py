"""`torchrun`: a script under torch's real elastic agent, with torchrun's own flags."""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from worldsize.launch import failure
from worldsize.launch.failure import FAILURES_DIR, Failure, RankFailed, RunTimeout
from worldsize.launch.runner import KEPT_OUTPUT, Run, refuse_bad_timeout

_RANK_LINE = re.compile(r"\[rank (\d+)\] ?(.*)", re.DOTALL)
_EXIT = re.compile(r"rank +: (\d+) .*\n +exitcode +: (-?\d+)")  # in the agent's closing summary
_RENDEZVOUS_FLAGS = ("--standalone", "--rdzv", "--master", "--nnodes", "--node-rank")
_CLOSE_S = 3.0  # how long the agent may take to end its ranks before it is killed


def torchrun(
    script: str | os.PathLike[str],
    *args: str,
    timeout_s: float = 300,
    env: Mapping[str, str] | None = None,
    echo: bool = True,
    **flags: str | int | bool,
) -> Run:
    """A `Run` of `script` under torchrun; `nproc_per_node=2` is torchrun's `--nproc-per-node=2`, and so for every flag.

    The script joins its process group itself, as it would in a shell. `values` is empty: a script returns nothing.

    Raises:
        ValueError: there is no such script, or torchrun does not take a flag.
        RankFailed: a rank ended badly and no restart was left; names the culprit.
        RunTimeout: the script was not done after `timeout_s` seconds.
    """
    words = [f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}") for name, value in flags.items()]
    return launch(words, script, list(args), timeout_s, dict(env or {}), echo)


def launch(
    flags: list[str],
    script: str | os.PathLike[str],
    args: list[str],
    timeout_s: float,
    env: dict[str, str],
    echo: bool,
) -> Run:
    """The same with torchrun's flags as they are written in a shell."""
    refuse_bad_timeout(timeout_s)
    if _num_ranks_here(flags) < 1:
        raise ValueError("--nproc-per-node is the number of ranks on this machine, from 1 up; got 0")
    if not Path(script).is_file():
        raise ValueError(f"there is no script {os.fspath(script)!r} in {os.getcwd()}")
    with tempfile.TemporaryDirectory(prefix="worldsize-") as folder:
        command = [sys.executable, "-m", "worldsize.launch.agent", str(os.getpid())]
        command += [
            *_defaults(flags, folder),
            *flags,
            "-m",
            "worldsize.launch.script",
            os.fspath(script),
            *args,
        ]
        agent = _Agent(command, _environment(flags, env, folder), echo)
        try:
            is_done = agent.listen(timeout_s)
        finally:
            agent.end()
        if not is_done:
            raise RunTimeout(f"{os.fspath(script)} was not done after {timeout_s:g} s; its ranks were ended.")
        agent.raise_if_failed(_noted_failures(folder), _num_ranks_here(flags))
    return Run([], agent.texts(), agent.duration_s, backend="torchrun")


def _defaults(flags: list[str], folder: str) -> list[str]:
    defaults = []
    if not _has(flags, *_RENDEZVOUS_FLAGS):
        defaults.append("--standalone")  # a free port instead of the fixed 29500
    if not _has(flags, "--tee", "-t", "--redirects", "-r"):
        defaults.append("--tee=3")
    if not _has(flags, "--log-dir"):
        defaults.append(f"--log-dir={folder}")
    return defaults


def _has(flags: list[str], *names: str) -> bool:
    return any(flag.replace("_", "-").startswith(names) for flag in flags)


def _num_ranks_here(flags: list[str]) -> int:
    """What --nproc-per-node says; 1 when it is a word such as auto."""
    match = re.search(r"--nproc[-_]per[-_]node[= ](\d+)", " ".join(flags))
    return int(match[1]) if match else 1


def _environment(flags: list[str], env: dict[str, str], folder: str) -> dict[str, str]:
    num_threads = max(1, (os.cpu_count() or 1) // max(1, _num_ranks_here(flags)))
    ours = {
        "OMP_NUM_THREADS": str(num_threads),
        "PYTHONUNBUFFERED": "1",
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[rank ${rank}] ",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # keys left in a shared store fail restarts on Gloo (torch 2.13)
        FAILURES_DIR: folder,
    }
    if "--standalone" in [*flags, *_defaults(flags, folder)]:
        ours["GLOO_SOCKET_IFNAME"] = "lo0" if sys.platform == "darwin" else "lo"
    return {**ours, **os.environ, **env, FAILURES_DIR: folder}


def _noted_failures(folder: str) -> list[Failure]:
    notes = [(int(path.stem), json.loads(path.read_text())) for path in Path(folder).glob("*.json")]
    return [Failure.from_fields(rank, note) for rank, note in notes]


class _Agent:
    """The running agent and what it has printed, by rank."""

    def __init__(self, command: list[str], env: dict[str, str], echo: bool) -> None:
        self._echo = echo
        self._rank_texts: dict[int, str] = {}
        self._own_text = ""
        self._rest = b""
        self._start_s = time.monotonic()
        self.duration_s = 0.0
        self._process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def listen(self, timeout_s: float) -> bool:
        """True once the agent has ended by itself, False when time is up."""
        assert self._process.stdout
        fd = self._process.stdout.fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(fd, selectors.EVENT_READ)
            while remaining_s := max(0.0, self._start_s + timeout_s - time.monotonic()):
                if selector.select(remaining_s):
                    data = os.read(fd, 1 << 16)
                    self._take(data)
                    if not data:
                        self._process.wait()
                        self.duration_s = time.monotonic() - self._start_s
                        return True
        return False

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data and self._rest:
            lines.append(self._rest)
        for line in lines:
            self._take_line(line.decode("utf-8", "replace") + "\n")

    def _take_line(self, line: str) -> None:
        match = _RANK_LINE.match(line)
        if match is None:
            self._own_text = (self._own_text + line)[-KEPT_OUTPUT:]
            return
        rank = int(match[1])
        self._rank_texts[rank] = (self._rank_texts.get(rank, "") + match[2])[-KEPT_OUTPUT:]
        if self._echo:
            sys.stdout.write(line)
            sys.stdout.flush()

    def end(self) -> None:
        """Ends the agent if it still runs: first as an interrupt in a shell would, then for good."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(_CLOSE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            pipe.close()

    def raise_if_failed(self, failures: list[Failure], num_ranks_here: int) -> None:
        """Nothing when the agent ended well; otherwise the report of what it and its ranks said."""
        if self._process.returncode == 0:
            return
        if self._process.returncode == 2 and "error: " in self._own_text:
            raise ValueError(f"torchrun refused its flags: {self._own_text.rsplit('error: ', 1)[1].strip()}")
        noted = {note.rank for note in failures}
        for rank, code in ((int(rank), int(code)) for rank, code in _EXIT.findall(self._own_text)):
            if rank not in noted and code != -signal.SIGTERM:  # by which the agent itself ends the others
                failures.append(failure.of_status(rank, -code if code < 0 else code << 8, 0))
        if not failures:
            raise RankFailed(f"torchrun failed and named no rank. It said:\n{self._own_text[-2000:]}")
        world_size = max(num_ranks_here, *(rank + 1 for rank in [*self._rank_texts, *(f.rank for f in failures)]))
        raise RankFailed(failure.tell(failures, world_size), failure.order(failures), self.texts())

    def texts(self) -> list[str]:
        """What each rank printed."""
        return [self._rank_texts.get(rank, "") for rank in range(max(self._rank_texts, default=-1) + 1)]
