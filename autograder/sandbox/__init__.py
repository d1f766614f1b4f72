"""A jail for student code: no network except its own loopback, no files except Python's, no process outlives it.

A machine that does not support all of this builds the walls that it can; `Tier` says which these are.
"""

from __future__ import annotations

import functools
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import autograder
from autograder.sandbox import gpus, jail, seccomp, zygote
from autograder.sandbox.visible import courses_around, visible_paths
from worldsize.launch.launcher.forkserver import Forkserver

_USERS = range(61184, 65520)  # user ids that systemd reserves for dynamic users


@dataclass(frozen=True)
class Tier:
    """The walls between student code and this machine; the description of the tier is stored with every result.

    Landlock without namespaces prevents code from opening files and ends all processes of a run. It does not block the
    network, hide names and sizes of files, or limit the total size of files.
    """

    namespaces: bool = False
    user: bool = False  # its own user ID
    landlock: bool = False

    @property
    def is_trusted(self) -> bool:
        """Whether the tier is strong enough for final grades."""
        return self.namespaces

    @property
    def is_jail(self) -> bool:
        """Whether there is any wall."""
        return self.namespaces or self.landlock

    def __str__(self) -> str:
        words = {"namespaces": self.namespaces, "a user of its own": self.user, "Landlock": self.landlock}
        return ", ".join(word for word, stands in words.items() if stands) or "none"


@dataclass(frozen=True)
class Limits:
    """Limits of one submission, or of each of its processes where the kernel counts per process."""

    memory_bytes: int = 4 << 30
    disk_bytes: int = 256 << 20
    cpu_s: int = 120
    num_processes: int = 224 + 16 * (os.cpu_count() or 1)  # includes threads, of which libraries start one per core
    is_address_space_limited: bool = True


_ADDRESS_SPACE = "is_address_space_limited"
# CUDA reserves terabytes of address space, and each process on a GPU has a hundred threads or more. The memory that a
# process uses is still limited; a GPU's own memory is not
WITH_GPUS = Limits(memory_bytes=32 << 30, num_processes=8192, is_address_space_limited=False)


def limits_with(changes: Mapping[str, int], has_gpus: bool = False) -> Limits:
    """The default limits, for a sandbox with or without GPUs, with these changes."""
    return replace(WITH_GPUS if has_gpus else Limits(), **changes)


def refuse_unknown_limits(changes: Mapping[str, Any], where: str) -> None:
    """Raise ValueError unless `limits_with` can apply these changes; messages name `where` they were written.

    Raises:
        ValueError: a name is not known, or a value is not a whole number, 1 or more.
    """
    known = [one.name for one in fields(Limits)]
    for name, value in changes.items():
        if name not in known:
            raise ValueError(f"{where} names {name!r}; a sandbox's limits are {', '.join(known)}")
        if name == _ADDRESS_SPACE and not isinstance(value, bool):
            raise ValueError(f"{where} sets {name} to {value!r}; it is True or False")
        if name != _ADDRESS_SPACE and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise ValueError(f"{where} sets {name} to {value!r}; it must be a whole number, 1 or more")


def probe() -> Tier:
    """Find the strongest tier that this machine supports by building jails and running Python in them."""
    return _probe()[0]


def obstacle() -> str:
    """The reason why this machine cannot build a jail of namespaces; empty if it can."""
    return _probe()[1]


@functools.cache
def _probe() -> tuple[Tier, str]:
    if sys.platform != "linux":
        return Tier(), "a sandbox needs Linux"
    is_root, abi = os.geteuid() == 0, jail.landlock_abi()
    whole, fence = Tier(namespaces=True, user=is_root, landlock=abi > 0), Tier(user=is_root, landlock=True)
    if not (said := _try(whole)):
        return whole, ""
    # without Landlock's scopes, the processes of a jail cannot be identified, so they cannot be ended
    return (fence if abi >= jail.SCOPED_ABI and not _try(fence) else Tier()), said


def _try(tier: Tier) -> str:
    """Try to build a jail of this tier; return the reason why it failed, empty if it did not."""
    with tempfile.TemporaryDirectory(prefix="worldsize-jail-") as root:
        try:
            jail_plan = plan(tier, root, Limits())
        except OSError as error:  # an architecture for which there is no list of system calls
            return str(error)
        command = [sys.executable, "-I", "-S", jail.__file__, json.dumps(jail_plan)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    if not done.returncode:
        return ""
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]


class Sandbox:
    """A forkserver in a jail: ranks forked from it run student code that cannot reach anything outside.

    Modules in `preload`, all of them trusted, are imported once instead of by every rank. Folders in `shown` can be
    read inside at the same path, and sockets in them can be connected to; `devices`, from `gpus.devices_of`, can be
    used. `hidden` folders and the course that this process works in cannot be read, wherever they are. If no wall can
    be built, the ranks run unprotected; the caller must check `tier`.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        preload: Sequence[str] = (),
        shown: Sequence[str] = (),
        devices: Sequence[str] = (),
        hidden: Sequence[str] = (),
    ) -> None:
        self.tier = probe()
        if not self.tier.is_jail:
            self._root, self.forkserver = "", Forkserver()
            return
        self._root = tempfile.mkdtemp(prefix="jail-", dir=zygote.shared(preload).scratch)
        limits = limits or (WITH_GPUS if devices else Limits())
        courses = courses_around([os.getcwd(), autograder.__file__, *hidden])
        jail_plan = plan(self.tier, self._root, limits, shown, devices, [*courses, *hidden])
        scratch = "/tmp" if self.tier.namespaces else self._root
        self.forkserver = Forkserver(lambda fd: zygote.shared(preload).jail(jail_plan, fd), scratch=scratch)

    def sweep(self, kept: str = "") -> None:
        """Remove the processes and files that runs have left, or close the jail if they cannot be removed otherwise.

        In a jail with namespaces, the file or folder called `kept` in /tmp stays.
        """
        if not self.forkserver.is_alive or not self.tier.is_jail:
            return
        try:
            if self.tier.namespaces:
                self.forkserver.sweep(kept)
                return
        except OSError:  # it has just died, or is too busy to answer
            pass
        self.close()

    def close(self) -> None:
        """End every process inside, whatever its state."""
        # it runs outside; the jail's first process dies with it, and all others die with the first
        self.forkserver.process.terminate()
        self.forkserver.close()
        if self._root:
            shutil.rmtree(self._root, ignore_errors=True)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def plan(
    tier: Tier,
    root: str,
    limits: Limits,
    shown: Sequence[str] = (),
    devices: Sequence[str] = (),
    hidden: Sequence[str] = (),
) -> dict[str, Any]:
    """The plan from which `jail.isolate` builds a jail, below the empty folder `root`, with the walls of the tier."""
    return {
        "root": root,
        "namespaces": tier.namespaces,
        "landlock": tier.landlock,
        "visible": [*visible_paths(hidden, gpus.folders() if devices else ()), *shown],
        "devices": list(devices),
        # its own user ID, so that no submission can use up another's processes
        "user": secrets.choice(_USERS) if tier.user else None,
        "memory_bytes": limits.memory_bytes,
        "is_address_space_limited": limits.is_address_space_limited,
        "disk_bytes": limits.disk_bytes,
        "cpu_s": limits.cpu_s,
        "num_processes": limits.num_processes,
        # without its own network, a UNIX socket could reach a service of this machine by its path
        "filter": seccomp.program(has_unix_sockets=tier.namespaces, has_gpus=bool(devices)),
    }
