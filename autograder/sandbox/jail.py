"""Builds the jail around itself, gives up every right, and becomes the program inside.

Run by `unshare` as the first process of fresh namespaces, with nothing but the standard library, as
`python -I -S jail.py PLAN`. The plan is JSON: see `autograder.sandbox.Plan`.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import platform
import re
import resource
import socket
import struct
import sys
from typing import Any

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
UNTOUCHED_BYTES = 4 << 30  # address space that threads and libraries reserve and never fill
HOME = "/tmp/home"
_INSIDE = "/inside"  # below the root of the mounts: who lives in a chroot can make no user namespace, hence no mount
_SYSCALLS = {"x86_64": {"pivot_root": 155, "capset": 126}, "aarch64": {"pivot_root": 41, "capset": 91}}
_DEVICES = ("null", "zero", "full", "random", "urandom")
# flags that a mount already has may not be taken away inside a user namespace
_KEPT_FLAGS = {os.ST_NOSUID: MS_NOSUID, os.ST_NODEV: MS_NODEV, os.ST_NOEXEC: MS_NOEXEC}

_libc = ctypes.CDLL(None, use_errno=True)


def main(plan: dict[str, Any]) -> None:
    """Ends as the program that the plan names; never returns."""
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", plan["root"], "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=64k")
    os.mkdir(plan["root"] + _INSIDE)
    _build_root(plan["root"] + _INSIDE, plan["visible"], plan["disk_bytes"])
    _enter(plan["root"])
    _raise_loopback()
    socket.sethostname("sandbox")
    _limit(plan)
    _give_up_rights(plan["user"])
    os.chdir(HOME)
    os.execve(plan["argv"][0], plan["argv"], plan["env"])


def _build_root(root: str, visible: list[str], disk_bytes: int) -> None:
    _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m")
    for path in ("/tmp", "/dev/shm"):  # first, for what is shown may lie below them
        os.makedirs(root + path)
        _mount("tmpfs", root + path, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={disk_bytes},nr_inodes=65536")
    os.makedirs(root + HOME)
    os.chmod(root + HOME, 0o777)
    for path in visible:
        _show(path, root + path)
    for name in _DEVICES:
        _show(f"/dev/{name}", f"{root}/dev/{name}", writable=True)
    os.makedirs(root + "/proc")
    _mount("proc", root + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def _show(source: str, target: str, writable: bool = False) -> None:
    """Makes one file or folder of the outside visible inside at the same path."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
        return
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        open(target, "w").close()
    _mount(source, target, None, MS_BIND | MS_REC)
    for mount in () if writable else _mounts_below(target):
        present = os.statvfs(mount).f_flag
        kept = sum(flag for seen, flag in _KEPT_FLAGS.items() if present & seen)
        _mount("none", mount, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | kept)


def _mounts_below(target: str) -> list[str]:
    """The mount points at and under a path: a remount changes only one, and what was bound may hold others."""
    with open("/proc/self/mountinfo") as file:
        points = {re.sub(r"\\([0-7]{3})", lambda o: chr(int(o[1], 8)), line.split()[4]) for line in file}
    return sorted(point for point in points if point == target or point.startswith(target + "/"))


def _enter(root: str) -> None:
    os.makedirs(root + "/outside")
    os.chdir(root)
    _syscall("pivot_root", os.fsencode(root), os.fsencode(root + "/outside"))
    os.chdir("/")
    _check(_libc.umount2(b"/outside", MNT_DETACH), "umount /outside")
    os.rmdir("/outside")
    os.chroot(_INSIDE)
    os.chdir("/")
    _mount("none", "/", None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        request = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(sock, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def _limit(plan: dict[str, Any]) -> None:
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_DATA: plan["memory_bytes"],
        resource.RLIMIT_AS: plan["memory_bytes"] + UNTOUCHED_BYTES,  # shared memory is no data to the kernel
        resource.RLIMIT_FSIZE: plan["disk_bytes"],
        resource.RLIMIT_CPU: plan["cpu_s"],
        resource.RLIMIT_NPROC: plan["num_processes"],
        resource.RLIMIT_NOFILE: 1024,
    }
    for which, value in limits.items():
        resource.setrlimit(which, (value, value))
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # when memory runs out, all in here goes before anything outside


def _give_up_rights(user: int | None) -> None:
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    for capability in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # past the last one that this kernel knows
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    header, nothing = struct.pack("Ii", 0x20080522, 0), struct.pack("6I", *[0] * 6)
    _syscall("capset", header, nothing)


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    encoded = [os.fsencode(source), os.fsencode(target), kind and kind.encode()]
    _check(_libc.mount(*encoded, ctypes.c_ulong(flags), data.encode() or None), f"mount {target}")


def _syscall(name: str, *args: bytes) -> None:
    _check(_libc.syscall(ctypes.c_long(_SYSCALLS[platform.machine()][name]), *args), name)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
