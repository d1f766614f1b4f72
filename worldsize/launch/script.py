"""One rank of a script under torchrun: `-m worldsize.launch.script FILE [ARGUMENTS]`.

Runs the file as `__main__`, notes how it failed before torchrun can blame another rank, and leaves without the
interpreter's own shutdown, which aborts now and then on Gloo (torch 2.13).
"""

from __future__ import annotations

import json
import os
import sys
import time
import types

from worldsize.launch import failure
from worldsize.launch.process import AGENT_PID, die_with_parent


def main() -> None:
    """Runs the script that the command line names; never returns."""
    die_with_parent(int(os.environ[AGENT_PID]))
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    path, sys.argv = sys.argv[1], sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(path))
    module = types.ModuleType("__main__")
    module.__file__ = path
    sys.modules["__main__"] = module  # its globals stay alive to the end: a DDP object that goes early hangs
    code = 0
    try:
        with open(path, encoding="utf-8") as file:
            exec(compile(file.read(), path, "exec"), module.__dict__)
    except SystemExit as leave:
        code = _exit_code(leave)
        if code:
            _note(leave)
    except BaseException as error:
        code = 1
        _note(error)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _exit_code(leave: SystemExit) -> int:
    if leave.code is None or isinstance(leave.code, int):
        return leave.code or 0
    print(leave.code, file=sys.stderr)
    return 1


def _note(error: BaseException) -> None:
    rank = int(os.environ.get("RANK", 0))
    told = failure.of_exception(rank, error, time.monotonic_ns()).to_fields()
    with open(os.path.join(os.environ[failure.FAILURES_DIR], f"{rank}.json"), "w", encoding="utf-8") as file:
        json.dump(told, file)


if __name__ == "__main__":
    main()
