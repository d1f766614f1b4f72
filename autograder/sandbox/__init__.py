"""A jail for student code: no network but its own loopback, no files but Python's, and all in it dies with it."""

from __future__ import annotations

import functools
import json
import os
import secrets
import shutil
import site
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType

import worldsize
from worldsize.launch.warm import Nursery

_JAIL = Path(__file__).with_name("jail.py")
_USERS = range(61184, 65520)  # numbers that systemd keeps for users of the moment
# what any program needs to start; none of it is the course's
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache", "/etc/alternatives")


class Tier(StrEnum):
    """How strong the walls are, strongest first."""

    UID = "namespaces and a user of its own"
    NAMESPACES = "namespaces"
    NONE = "none"

    @property
    def is_trusted(self) -> bool:
        """True when a final grade may rest on it."""
        return self is not Tier.NONE


@dataclass(frozen=True)
class Limits:
    """What one submission may use; each of its processes where the kernel counts by process."""

    memory_bytes: int = 4 << 30
    disk_bytes: int = 256 << 20
    cpu_s: int = 120
    num_processes: int = 512


def probe() -> Tier:
    """The strongest tier that this machine gives, found by building a jail and running Python in it."""
    return _probe()[0]


def obstacle() -> str:
    """Why this machine gives no jail; empty when it gives one."""
    return _probe()[1]


@functools.cache
def _probe() -> tuple[Tier, str]:
    if sys.platform != "linux":
        return Tier.NONE, "a sandbox needs Linux"
    if shutil.which("unshare") is None:
        return Tier.NONE, "the program unshare (package util-linux) is not installed"
    tier = Tier.UID if os.geteuid() == 0 else Tier.NAMESPACES
    with tempfile.TemporaryDirectory(prefix="worldsize-jail-") as root:
        command = _command(tier, root, Limits(), [sys.executable, "-I", "-c", "pass"])
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    if done.returncode:
        return Tier.NONE, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return tier, ""


class Sandbox:
    """A nursery in a jail: ranks forked from it run student code that reaches nothing outside.

    Modules in `preload`, all of them trusted, are imported once instead of by every rank.
    Without a jail to be had (`Tier.NONE`) the ranks run unprotected; whoever opens it decides whether that will do.
    """

    def __init__(self, limits: Limits | None = None, preload: Sequence[str] = ()) -> None:
        self.tier = probe()
        self._root = tempfile.mkdtemp(prefix="worldsize-jail-")
        if self.tier is Tier.NONE:
            self.nursery = Nursery()
            return
        program = [sys.executable, "-P", "-m", "worldsize.launch.nursery"]
        env = {"WORLDSIZE_PRELOAD": ",".join(preload)}
        self.nursery = Nursery(
            lambda fd: _command(self.tier, self._root, limits or Limits(), [*program, str(fd)], env), scratch="/tmp"
        )

    def close(self) -> None:
        """Ends every process inside, whatever state it is in."""
        self.nursery.process.kill()  # the first process of the namespace dies with it, and the rest with that
        self.nursery.close()
        shutil.rmtree(self._root, ignore_errors=True)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _command(
    tier: Tier, root: str, limits: Limits, argv: list[str], env: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    plan = {
        "root": root,
        "visible": _visible(),
        # a number of its own, so that no submission can use up the processes of another
        "user": secrets.choice(_USERS) if tier is Tier.UID else None,
        "argv": argv,
        "env": {
            "PATH": "/usr/bin:/bin",
            "HOME": "/tmp/home",
            "LANG": "C.UTF-8",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONNOUSERSITE": "1",
            **env,
        },
        "memory_bytes": limits.memory_bytes,
        "disk_bytes": limits.disk_bytes,
        "cpu_s": limits.cpu_s,
        "num_processes": limits.num_processes,
    }
    user = ["--user", "--map-root-user"] if tier is Tier.NAMESPACES else []
    unshare = ["unshare", *user, "--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
    return [*unshare, "--", sys.executable, "-I", "-S", str(_JAIL), json.dumps(plan)]


def _visible() -> list[str]:
    """The paths that a rank may read: the system's programs, this Python, and the library; never the course."""
    python = [sys.prefix, sys.base_prefix, sysconfig.get_paths()["stdlib"], *site.getsitepackages()]
    wanted = [*_SYSTEM, *python, str(Path(worldsize.__file__).parent)]
    kept: list[str] = []
    for path in sorted({os.path.abspath(path) for path in wanted if os.path.lexists(path)}):
        if not any(path.startswith(parent + os.sep) for parent in kept):
            kept.append(path)
    return kept
