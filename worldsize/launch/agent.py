"""torchrun's elastic agent in a process that ends with the launcher: `python -m worldsize.launch.agent PID [FLAGS]`."""

from __future__ import annotations

import os
import signal
import sys

from worldsize.launch.process import AGENT_PID, die_with_parent, exit_at_eof


def main() -> None:
    """Runs torchrun with the flags after the launcher's process id."""
    die_with_parent(int(sys.argv[1]), signal.SIGTERM)  # by which it ends its ranks first
    exit_at_eof(0)
    os.environ[AGENT_PID] = str(os.getpid())
    from torch.distributed.run import main as torchrun_main

    torchrun_main(sys.argv[2:])


if __name__ == "__main__":
    main()
