"""Building a jail around the calling process: its own namespaces, a root without the course, no rights, Landlock.

Without namespaces, Landlock is the only fence. Files outside cannot be opened then, but their names and sizes can be
seen; network and users are the machine's; the total size of files is not limited.

Imports only the standard library. `python -I -S jail.py PLAN [PROGRAM ...]` builds one, to see whether this machine
can, and runs a program inside; the plan is JSON, made by `autograder.sandbox.plan`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import platform
import re
import resource
import signal
import socket
import stat
import struct
import sys
import tempfile
from typing import Any

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446
LANDLOCK_CREATE_RULESET_VERSION, LANDLOCK_RULE_PATH_BENEATH = 1, 1
LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET, LANDLOCK_SCOPE_SIGNAL = 1, 2
SCOPED_ABI = 6  # the first version of Landlock that can keep signals inside a jail
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
UNTOUCHED_BYTES = 4 << 30  # address space that threads and libraries reserve but do not use
HOME = "/tmp/home"
_INSIDE = "/inside"  # below the root of the mounts: a process in a chroot can make no user namespace, hence no mount
_SYSCALLS = {
    "x86_64": {"pivot_root": 155, "capset": 126},
    "aarch64": {"pivot_root": 41, "capset": 91},
}
_READ = 1 << 0 | 1 << 2 | 1 << 3  # LANDLOCK_ACCESS_FS_EXECUTE, READ_FILE, READ_DIR
_OF_A_FILE = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # EXECUTE, WRITE_FILE, READ_FILE, TRUNCATE, IOCTL_DEV
_NUM_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # by Landlock's ABI; from 5 on 16
_HARDWARE = "/sys"  # where Gloo looks it up; Gloo does without it only if it is missing altogether
_SCRATCH = ("/tmp", "/dev/shm")
_NAMES = "/etc/hosts"
_DEVICES = ("null", "zero", "full", "random", "urandom")
# flags that a mount already has may not be cleared inside a user namespace
_KEPT_FLAGS = {os.ST_NOSUID: MS_NOSUID, os.ST_NODEV: MS_NODEV, os.ST_NOEXEC: MS_NOEXEC}

_libc = ctypes.CDLL(None, use_errno=True)


def isolate(plan: dict[str, Any]) -> int:
    """Fork; return 0 in the jail's first process, which dies with its parent, and its process id in the parent.

    The parent must then call `wait_for_end`.

    Raises:
        OSError: this machine cannot build such a jail.
    """
    if plan["namespaces"]:
        _unshare(plan["user"] is None)
    else:
        _become_subreaper()
    pid = os.fork()
    if pid == 0:
        (_enter_jail if plan["namespaces"] else _enter_fence)(plan)
        _die_with_parent()  # only now, because the kernel resets it when the user changes
    return pid


def wait_for_end(first: int, plan: dict[str, Any]) -> int:
    """Wait until a jail's first process and all others have ended, and return the exit code of the first.

    Without namespaces, a SIGTERM to the process that waits here ends the jail; with them, so does a SIGKILL.
    """
    if plan["namespaces"]:
        return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
    signal.signal(signal.SIGTERM, lambda *_: _kill(first))
    _die_with_parent(signal.SIGTERM)
    status = os.waitpid(first, os.WUNTRACED)[1]  # if code inside stops it, that code is trying to outlive it
    _end_all_inside()
    return -os.WSTOPSIG(status) if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)


def landlock_abi() -> int:
    """The version of this kernel's Landlock; 0 if it has none."""
    version = ctypes.c_uint(LANDLOCK_CREATE_RULESET_VERSION)
    return max(0, _libc.syscall(ctypes.c_long(LANDLOCK_CREATE_RULESET), None, ctypes.c_size_t(0), version))


def _unshare(is_user_needed: bool) -> None:
    flags = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS
    user, group = os.geteuid(), os.getegid()
    _check(_libc.unshare(flags | (CLONE_NEWUSER if is_user_needed else 0)), "unshare")
    if is_user_needed:  # root in here is the caller outside
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)


def _enter_jail(plan: dict[str, Any]) -> None:
    _mount("none", "/", None, MS_REC | MS_PRIVATE)
    _mount("tmpfs", plan["root"], "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=64k")
    os.mkdir(plan["root"] + _INSIDE)
    _build_root(plan["root"] + _INSIDE, plan["visible"], plan["devices"], plan["disk_bytes"])
    _enter(plan["root"])
    _raise_loopback()
    socket.sethostname("sandbox")
    _limit(plan)
    _gain_no_rights()
    if plan["landlock"]:
        devices = [*(f"/dev/{name}" for name in _DEVICES), *plan["devices"]]
        shown = ["/proc", _NAMES, *plan["visible"]]
        _confine({**dict.fromkeys(shown, _READ), **dict.fromkeys([*devices, *_SCRATCH], -1)})
    _give_up_rights(plan["user"])
    _filter_calls(plan["filter"])
    os.chdir(HOME)


def _become_subreaper() -> None:
    """Enable this process to end all processes that it will start, orphans included, and no others."""
    _gain_no_rights()
    _check(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "adopt orphans")
    _restrict(0, LANDLOCK_SCOPE_SIGNAL, {})


def _end_all_inside() -> None:
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # all at once, so that no fork escapes
    else:
        raise RuntimeError("signals leave this jail, so the processes in it cannot be ended safely")
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _enter_fence(plan: dict[str, Any]) -> None:
    """Build and enter a jail without namespaces, with `root` as the scratch folder and the home."""
    root, user = plan["root"], plan["user"]
    if user is not None:
        os.chown(root, user, user)
    _limit(plan)
    _gain_no_rights()
    devices = [*(f"/dev/{name}" for name in _DEVICES), *plan["devices"]]
    _confine({_HARDWARE: _READ, **dict.fromkeys(plan["visible"], _READ), **dict.fromkeys([*devices, root], -1)})
    _give_up_rights(user)
    _filter_calls(plan["filter"])
    _check(_libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), "hide memory")
    os.environ.update(HOME=root, TMPDIR=root)
    tempfile.tempdir = root  # the process that forked this one may have cached a different one
    os.chdir(root)


def _die_with_parent(by: int = signal.SIGKILL) -> None:
    _check(_libc.prctl(PR_SET_PDEATHSIG, by, 0, 0, 0), "die with parent")


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):  # it may have just ended
        os.kill(pid, signal.SIGKILL)


def _confine(rights: dict[str, int]) -> None:
    """Allow opening only files at and below these paths, and keep signals and abstract sockets inside."""
    abi = landlock_abi()
    scopes = LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | LANDLOCK_SCOPE_SIGNAL if abi >= SCOPED_ABI else 0
    _restrict((1 << _NUM_RIGHTS.get(abi, 16)) - 1, scopes, rights)


def _restrict(handled: int, scopes: int, rights: dict[str, int]) -> None:
    """Drop the handled rights, a set of Landlock's bits, except those granted for each path."""
    attributes = struct.pack("QQQ", handled, 0, scopes)  # the second field restricts networks, which Gloo needs
    ruleset = _libc.syscall(ctypes.c_long(LANDLOCK_CREATE_RULESET), attributes, ctypes.c_size_t(len(attributes)), 0)
    _check(min(ruleset, 0), "landlock")
    for path, given in rights.items():
        with contextlib.suppress(FileNotFoundError):  # a dangling link
            fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)  # a link may point to a hidden file
            allowed = given & handled & (-1 if stat.S_ISDIR(os.fstat(fd).st_mode) else _OF_A_FILE)
            rule = struct.pack("=Qi", allowed, fd)
            add = ctypes.c_long(LANDLOCK_ADD_RULE)
            _check(_libc.syscall(add, ruleset, LANDLOCK_RULE_PATH_BENEATH, rule, 0), f"landlock {path}")
            os.close(fd)
    _check(_libc.syscall(ctypes.c_long(LANDLOCK_RESTRICT_SELF), ruleset, 0), "landlock")
    os.close(ruleset)


def _build_root(root: str, visible: list[str], devices: list[str], disk_bytes: int) -> None:
    _mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755,size=4m")
    for path in _SCRATCH:  # first, because shown paths may lie below them
        os.makedirs(root + path)
        _mount("tmpfs", root + path, "tmpfs", MS_NOSUID | MS_NODEV, f"mode=1777,size={disk_bytes},nr_inodes=65536")
    os.makedirs(root + HOME)
    os.chmod(root + HOME, 0o777)
    for path in visible:
        _show(path, root + path)
    for path in [*(f"/dev/{name}" for name in _DEVICES), *devices]:
        _show(path, root + path, writable=True)
    os.makedirs(root + "/etc", exist_ok=True)
    with open(root + _NAMES, "w") as file:
        file.write("127.0.0.1 localhost sandbox\n")  # torchrun's agent asks for both
    os.makedirs(root + "/proc")
    _mount("proc", root + "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def _show(source: str, target: str, writable: bool = False) -> None:
    """Make a file or folder from outside visible inside, at the same path."""
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
    """The mount points at and below a path: a remount changes only one, and a bound folder may contain others."""
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
        resource.RLIMIT_CORE: 1,  # with 0, a program in core_pattern would still get core dumps
        resource.RLIMIT_DATA: plan["memory_bytes"],
        resource.RLIMIT_FSIZE: plan["disk_bytes"],
        resource.RLIMIT_CPU: plan["cpu_s"],
        resource.RLIMIT_NPROC: plan["num_processes"] + _num_tasks_of(plan["user"]),
        resource.RLIMIT_NOFILE: 1024,
    }
    if plan["is_address_space_limited"]:
        # RLIMIT_DATA is not enough: the kernel does not count shared memory as data
        limits[resource.RLIMIT_AS] = plan["memory_bytes"] + UNTOUCHED_BYTES
    for which, value in limits.items():
        resource.setrlimit(which, (value, value))
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # when memory runs out, processes in here are killed before those outside


def _num_tasks_of(user: int | None) -> int:
    """The number of processes and threads that the kernel already counts for the jail's user."""
    if user is not None:
        return 0
    found = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == os.geteuid():
                found += len(os.listdir(f"/proc/{name}/task"))
    return found


def _gain_no_rights() -> None:
    _check(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def _give_up_rights(user: int | None) -> None:
    for capability in range(64):
        if _libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # beyond the last one that this kernel knows
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    header, nothing = struct.pack("Ii", 0x20080522, 0), struct.pack("6I", *[0] * 6)
    _syscall("capset", header, nothing)


def _filter_calls(program: list[list[int]]) -> None:
    """Make the kernel reject all system calls that the program, written by `seccomp`, does not allow."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in program))
    filter_ = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    _check(_libc.prctl(PR_SET_SECCOMP, 2, filter_, 0, 0), "seccomp")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    encoded = [os.fsencode(source), os.fsencode(target), kind and kind.encode()]
    _check(_libc.mount(*encoded, ctypes.c_ulong(flags), data.encode() or None), f"mount {target}")


def _syscall(name: str, *args: bytes) -> None:
    _check(_libc.syscall(ctypes.c_long(_SYSCALLS[platform.machine()][name]), *args), name)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def main(words: list[str]) -> int:
    """Run the program named after the plan in a jail and return its exit code; without one, 0 if there is a jail."""
    plan = json.loads(words[0])
    if first := isolate(plan):
        return wait_for_end(first, plan)
    if words[1:]:
        os.execv(words[1], words[1:])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
