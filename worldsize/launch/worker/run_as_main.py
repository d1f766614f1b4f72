"""Running of a script on a rank as Python would run it."""

from __future__ import annotations

import functools
import itertools
import os
import sys
import types
from typing import Any

from worldsize.launch.worker import call_tracer


def play(path: str, *args: str) -> bool:
    """Run a script as `__main__`, as Python would; return whether it joined a process group or communicated.

    Raises:
        SystemExit: the script ended by it with another exit code than 0; its message, if any, has been printed.
    """
    import torch.distributed
    from torch.distributed import device_mesh, distributed_c10d

    init, num_joined = distributed_c10d.init_process_group, itertools.count()

    @functools.wraps(init)
    def join(*args: Any, **kwargs: Any) -> Any:
        next(num_joined)
        return init(*args, **kwargs)

    for module in (torch.distributed, distributed_c10d, device_mesh):
        module.init_process_group = join  # pyright: ignore[reportAttributeAccessIssue]
    try:
        _play(path, *args)
    except SystemExit as leave:
        if _exit_code(leave):
            raise
    return next(num_joined) > 0 or call_tracer.num_calls() > 0


def _play(path: str, *args: str) -> None:
    sys.argv = [path, *args]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    module = types.ModuleType("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module  # keeps its globals alive to the end: a DDP object that is freed early hangs
    with open(path, encoding="utf-8") as file:
        exec(compile(file.read(), path, "exec"), module.__dict__)


def play_in(env: dict[str, str], path: str, *args: str) -> None:
    """Run a script as `play_joined` does, with these environment variables as well."""
    os.environ.update(env)
    play_joined(path, *args)


def play_joined(path: str, *args: str) -> bool:
    """Run a script as `play` does on a rank that has joined its group, on an emulated cluster or on paper.

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
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[1:1] = [folder for folder in given if folder not in sys.path]  # this process has started without them
    os.environ.update(_set_by_torchrun(*(int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))))
    return play(path, *args)


def _set_by_torchrun(rank: int, world_size: int, local_world_size: int) -> dict[str, str]:
    """The variables that torchrun sets in addition; at the master's address nobody listens."""
    role = {"ROLE_NAME": "default", "ROLE_RANK": rank, "ROLE_WORLD_SIZE": world_size}
    nodes = {"GROUP_RANK": rank // local_world_size, "GROUP_WORLD_SIZE": -(-world_size // local_world_size)}
    elastic = {f"TORCHELASTIC_{name}": 0 for name in ("RESTART_COUNT", "MAX_RESTARTS")}
    master = {"MASTER_ADDR": "localhost", "MASTER_PORT": 29500, "TORCHELASTIC_RUN_ID": "none"}
    return {name: str(value) for name, value in (role | nodes | elastic | master).items()}


def _exit_code(leave: SystemExit) -> int:
    """Return the exit code of a `SystemExit`; print a message in its place, as Python would."""
    if leave.code is None or isinstance(leave.code, int):
        return leave.code or 0
    print(leave.code, file=sys.stderr)
    return 1
