"""One rank under torchrun's agent: runs a FILE with its ARGUMENTS or, without a file, a function of `run`.

Started as `python -m worldsize.launch.worker.torchrun_main [FILE ARGUMENTS]`.
Runs the file as `__main__`, tells the launcher how it failed before torchrun can blame another rank, and leaves without
the interpreter's own shutdown, which aborts now and then on Gloo (torch 2.13).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from typing import Any

from worldsize import framing
from worldsize.launch.protocol.process import AGENT_PID, SOCKET, die_with_parent
from worldsize.launch.worker import main as worker
from worldsize.launch.worker import spans
from worldsize.launch.worker.run_as_main import exit_code, play


def main() -> None:
    """Serves one rank; never returns."""
    die_with_parent(int(os.environ[AGENT_PID]))
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    link, job, payload = worker.take_job(_call_launcher())
    if len(sys.argv) > 1:
        _leave(_run_script(link))
    if not worker.serve(link, job, payload, _join):
        _leave(1)
    while True:  # the launcher says when all are done
        signal.pause()


def _call_launcher() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(os.environ[SOCKET])
    here: dict[str, Any] = {name.lower(): int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    framing.send(sock, "hello", pid=os.getpid(), restarts=restarts, **here)
    return sock


def _join(job: dict[str, Any]) -> str:
    """The backend of the process group, joined through the agent's own rendezvous."""
    import torch
    import torch.distributed as dist

    backend = worker.choose_backend(job)
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend)
    return backend


def _run_script(link: worker.Link) -> int:
    """The exit code of the script, after telling the launcher how it went."""
    start_s = time.monotonic()
    try:
        play(*sys.argv[1:])
    except SystemExit as leave:
        if code := exit_code(leave):
            link.report(int(os.environ["RANK"]), leave)
            return code
    except BaseException as error:
        link.report(int(os.environ["RANK"]), error)
        return 1
    link.tell_events()
    link.send("done", spans=spans.drain(), duration_s=time.monotonic() - start_s)
    return 0


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
