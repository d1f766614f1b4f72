"""Running of a script on a rank as Python would run it."""

from __future__ import annotations

import os
import sys
import types
from typing import Any


def play(path: str, *args: str) -> None:
    """Run a script as `__main__`, as Python would."""
    sys.argv = [path, *args]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    module = types.ModuleType("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module  # keeps its globals alive to the end: a DDP object that is freed early hangs
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), module.__dict__)


def play_joined(path: str, *args: str) -> None:
    """Run a script as `__main__` on a rank that has already joined its group, such as one of an emulated cluster.

    The script's own `init_process_group` does nothing, and it cannot join a second time.
    """
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    def joined(*_args: Any, **_kwargs: Any) -> None:
        """Refuse to join a second time."""
        if not dist.is_initialized():
            raise RuntimeError(
                "this script destroyed its process group and joins again, which ranks of an emulated cluster cannot "
                "do; destroy the group once, at the end, or run the script without a cluster"
            )

    dist.init_process_group = distributed_c10d.init_process_group = joined
    os.environ.update(_set_by_torchrun(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))))
    try:
        play(path, *args)
    except SystemExit as leave:
        if code := exit_code(leave):
            raise SystemExit(code) from None


def _set_by_torchrun(rank: int, world_size: int, local_world_size: int) -> dict[str, str]:
    """The variables that torchrun sets in addition; at the master's address nobody listens."""
    role = {"ROLE_NAME": "default", "ROLE_RANK": rank, "ROLE_WORLD_SIZE": world_size}
    nodes = {"GROUP_RANK": rank // local_world_size, "GROUP_WORLD_SIZE": -(-world_size // local_world_size)}
    elastic = {f"TORCHELASTIC_{name}": 0 for name in ("RESTART_COUNT", "MAX_RESTARTS")}
    master = {"MASTER_ADDR": "localhost", "MASTER_PORT": 29500, "TORCHELASTIC_RUN_ID": "none"}
    return {name: str(value) for name, value in (role | nodes | elastic | master).items()}


def exit_code(leave: SystemExit) -> int:
    """Return the exit code of a `SystemExit`; print a message in its place, as Python would."""
    if leave.code is None or isinstance(leave.code, int):
        return leave.code or 0
    print(leave.code, file=sys.stderr)
    return 1
