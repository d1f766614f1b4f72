"""One rank under torchrun's agent: runs a FILE with its ARGUMENTS or, without a file, a function of `run`.

Started as `python -m worldsize.launch.worker.torchrun_main [FILE ARGUMENTS]`.
Runs the file as `__main__`, reports a failure to the launcher before torchrun can blame a different rank, and exits
without the interpreter's own shutdown, which occasionally aborts on Gloo (torch 2.13).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

from worldsize.launch.protocol import codec
from worldsize.launch.protocol.messages import Done, Hello, RunFunction
from worldsize.launch.protocol.process import AGENT_PID, SOCKET, die_with_parent
from worldsize.launch.worker import main as worker
from worldsize.launch.worker import native_calls, spans
from worldsize.launch.worker.main import Membership, RankAssignment
from worldsize.launch.worker.run_as_main import play
from worldsize.message import pack_and_send


def main() -> None:
    """Serve one rank; never return."""
    die_with_parent(int(os.environ[AGENT_PID]))
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    assignment = worker.take_assignment(_call_launcher())
    if not isinstance(assignment.task, RunFunction):
        _leave(_run_script(assignment.link))
    elif not worker.serve(assignment, assignment.task, _join):
        _leave(1)
    while True:  # until the launcher says that all ranks are done
        signal.pause()


def _call_launcher() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(os.environ[SOCKET])
    hello = Hello(
        pid=os.getpid(),
        rank=int(os.environ["RANK"]),
        local_rank=int(os.environ["LOCAL_RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        restarts=int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)),
    )
    pack_and_send(sock, hello)
    return sock


def _join(_assignment: RankAssignment, job: RunFunction) -> Membership:
    """This rank's membership in the process group, joined through the agent's own rendezvous."""
    import torch
    import torch.distributed as dist

    backend = worker.choose_backend(job)
    worker.keep_to_allowed(job)
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(backend)
    return Membership(backend)


def _run_script(link: worker.LauncherLink) -> int:
    """The exit code of the script, once the launcher has a report of how it went."""
    start_s = time.monotonic()
    try:
        with worker.audited():
            has_joined = play(*sys.argv[1:])
    except SystemExit as leave:
        link.report(leave)
        return leave.code if isinstance(leave.code, int) else 1
    except BaseException as error:
        link.report(error)
        return 1
    link.send_events()
    done = Done(spans.drain(), time.monotonic() - start_s, native_calls.num_unseen())
    link.send(done, codec.encode(has_joined))
    return 0


def _leave(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
