"""System calls and socket families in a jail: those that real jobs need work, all others fail."""

from __future__ import annotations

import errno
import os
import re
import socket
import sys
from pathlib import Path

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from launching import run
from needs import give_up
from tiny_lab import needs_jail

from autograder.sandbox import Limits, Sandbox, seccomp
from worldsize.launch.launcher.spec import Spec
from worldsize.launch.runner import launch

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.xdist_group("seccomp")

MEMORY_BYTES = 2 << 30
HEADERS = (1, "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), (2, "/usr/include/asm-generic/unistd.h")

# calls that have no business in a jail: number on x86_64, number on aarch64
REFUSED = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsopen": (430, 430),
    "init_module": (175, 105),
    "io_setup": (206, 0),
    "io_submit": (209, 2),
    "io_uring_setup": (425, 425),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "landlock_create_ruleset": (444, 444),
    "migrate_pages": (256, 238),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "mq_open": (240, 180),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "semget": (64, 190),
    "setns": (308, 268),
    "setuid": (105, 146),
    "shmget": (29, 194),
    "sethostname": (170, 161),
    "settimeofday": (164, 170),
    "swapon": (167, 224),
    "sync": (162, 81),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
}
# on x86_64 alone
REFUSED_ON_X86 = {"modify_ldt": 154, "iopl": 172, "ioperm": 173, "uselib": 134, "ustat": 136, "sysfs": 139}
PROBED = {"clone3": (435, 435), "memfd_create": (319, 279), "memfd_secret": (447, 447)}
# packet, key, LLC, RDS, CAN, TIPC, Bluetooth, ALG, vsock, KCM, SMC, XDP, MCTP, AX.25, AppleTalk, X.25
REFUSED_FAMILIES = (17, 15, 26, 21, 29, 30, 31, 38, 40, 41, 43, 44, 45, 3, 5, 9)
NETLINK = 16
MACHINE = os.uname().machine


@pytest.fixture(scope="module")
def jail():
    with Sandbox(Limits(memory_bytes=MEMORY_BYTES)) as opened:
        opened.forkserver.wait_until_warm()
        yield opened


@pytest.fixture
def inside(jail):
    """Runs a function on ranks in the jail and gives what they returned; the jail is swept after it."""

    def call(fn, *args, world_size=1):
        try:
            limits = {"timeout_s": 60, "forkserver": jail.forkserver, "echo": False}
            return run(fn, *args, world_size=world_size, **limits).values
        finally:
            jail.forkserver.sweep()

    return call


# What runs inside.


def errors_of(calls):
    """The error that each call gives, by its number with arguments that are all zero; 0 where it succeeds."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    found = {}
    for name, number in calls.items():
        ctypes.set_errno(0)
        result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(0)] * 6)
        found[name] = ctypes.get_errno() if result == -1 else 0
    return found


def errors_with(calls):
    """The error that each call gives, from its number and arguments."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    found = []
    for number, *args in calls:
        result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(arg) for arg in args))
        found.append(ctypes.get_errno() if result == -1 else 0)
    return found


def errors_of_sockets(sockets):
    found = []
    for family, kind, protocol in sockets:
        try:
            socket.socket(family, kind, protocol).close()
        except OSError as error:
            found.append(error.errno)
        else:
            found.append(0)
    return found


def everyday_work():
    """What programs do with the system beside computing; each line fails if its calls are refused."""
    import fcntl
    import multiprocessing
    import resource
    import select
    import shutil
    import signal
    import subprocess
    import tempfile
    import threading
    import time

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a")
        path.write_bytes(b"x" * 4096)
        shutil.copy2(path, Path(folder, "b"))
        os.link(path, Path(folder, "c"))
        os.symlink(path, Path(folder, "d"))
        os.mkfifo(Path(folder, "e"))
        os.chmod(path, 0o600)
        os.utime(path)
        os.truncate(path, 10)
        os.rename(path, Path(folder, "f"))
        with open(Path(folder, "b"), "rb+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            os.fsync(file.fileno())
            os.posix_fallocate(file.fileno(), 0, 8192)
            os.pread(file.fileno(), 10, 0)
    ours, theirs = socket.socketpair()
    poller = select.epoll()
    poller.register(ours, select.EPOLLOUT)
    assert poller.poll(1)
    theirs.close()
    socket.getaddrinfo("localhost", 80)
    assert [name for _, name in socket.if_nameindex()] == ["lo"]
    resource.setrlimit(resource.RLIMIT_NOFILE, resource.getrlimit(resource.RLIMIT_NOFILE))
    os.nice(1)
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    os.setpriority(os.PRIO_PROCESS, os.getpid(), os.getpriority(os.PRIO_PROCESS, 0))
    signal.setitimer(signal.ITIMER_REAL, 1000)
    signal.setitimer(signal.ITIMER_REAL, 0)
    time.sleep(0.001)
    os.urandom(8)
    os.uname()
    os.getloadavg()
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    said = subprocess.run(["/bin/sh", "-c", "echo $((6 * 7)) | cat"], capture_output=True, text=True).stdout
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=queue.put, args=(42,))
    child.start()
    got = queue.get(timeout=30)
    child.join()
    shared = torch.ones(1000).share_memory_()
    loader = torch.utils.data.DataLoader(list(range(8)), num_workers=2, multiprocessing_context="fork")
    return said.strip(), got, float(shared.sum()), sum(int(one) for one in loader)


def add_up(ranks):
    tensor = torch.full((1000,), float(dist.get_rank()))
    dist.all_reduce(tensor)
    return float(tensor[0]) == sum(ranks)


def under_torchrun():
    options = {"world_size": 2, "launcher": "torchrun", "echo": False, "timeout_s": 50}
    return launch(Spec(add_up, ([0, 1],), **options)).values


def core_limit_and_end_of_a_crash():
    import resource
    import signal

    pid = os.fork()
    if pid == 0:
        os.chdir("/tmp")
        os.abort()
    _, status = os.waitpid(pid, 0)
    left = [name for name in os.listdir("/tmp") if "core" in name]
    return resource.getrlimit(resource.RLIMIT_CORE), os.WTERMSIG(status) == signal.SIGABRT, os.WCOREDUMP(status), left


# The tests.


def for_this_machine(calls):
    column, _ = seccomp._MACHINES[MACHINE]
    return {name: numbers[column - 1] for name, numbers in calls.items()}


@needs_jail
def test_system_calls_that_have_no_business_here_are_refused(inside):
    calls = for_this_machine(REFUSED) | (REFUSED_ON_X86 if MACHINE == "x86_64" else {})
    (found,) = inside(errors_of, calls)
    assert {name: number for name, number in found.items() if number != errno.EPERM} == {}
    assert len(found) >= 40


@needs_jail
def test_calls_that_libraries_do_without_on_older_kernels_seem_to_be_absent(inside):
    absent = for_this_machine(PROBED) | {"one of the future": 4000, "x32's read": 0x40000000}
    (found,) = inside(errors_of, absent)
    assert found == dict.fromkeys(absent, errno.ENOSYS)


@needs_jail
def test_only_the_socket_families_that_jobs_need_can_be_opened(inside):
    kinds = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET
    (found,) = inside(errors_of_sockets, [(family, kind, 0) for family in REFUSED_FAMILIES for kind in kinds])
    assert set(found) == {errno.EAFNOSUPPORT}
    families = socket.AF_UNIX, socket.AF_INET, socket.AF_INET6
    opened = [(family, kind | socket.SOCK_CLOEXEC, 0) for family in families for kind in kinds[:2]]
    assert inside(errors_of_sockets, [*opened, (NETLINK, socket.SOCK_RAW, 0)]) == [[0] * (len(opened) + 1)]


@needs_jail
def test_of_a_family_only_the_usual_kinds_can_be_opened(inside):
    unusual = [
        (socket.AF_INET, socket.SOCK_RAW, 1),
        (socket.AF_INET, socket.SOCK_SEQPACKET, 0),  # by which the kernel would load SCTP
        (socket.AF_INET, socket.SOCK_STREAM, 132),
        (socket.AF_INET6, socket.SOCK_STREAM, 33),  # DCCP
        (socket.AF_INET, socket.SOCK_STREAM, 262),  # MPTCP
        (NETLINK, socket.SOCK_RAW, 12),  # netfilter
        (NETLINK, socket.SOCK_RAW, 9),  # audit
    ]
    assert inside(errors_of_sockets, unusual) == [[errno.EPROTONOSUPPORT] * len(unusual)]


@needs_jail
def test_the_first_process_of_the_jail_is_not_changed_by_others(jail, inside):
    if not jail.tier.namespaces:
        give_up("sandbox", "only in namespaces is the first process known by its number")
    calls = seccomp.numbers(seccomp._CONDITIONAL, seccomp._MACHINES[MACHINE][0])
    tried = [
        (calls["prlimit64"], 1, 7, 0, 0),
        (calls["setpriority"], 0, 1, 19),
        (calls["setpriority"], 2, 0, 19),  # all processes of the user
        (calls["sched_setscheduler"], 1, 5, 0),
        (calls["sched_setparam"], 1, 0),
        (calls["sched_setattr"], 1, 0, 0),
    ]
    assert inside(errors_with, tried) == [[errno.EPERM] * len(tried)]


@needs_jail
def test_no_namespace_is_made_with_a_new_process(inside):
    clone = seccomp.numbers(seccomp._CONDITIONAL, seccomp._MACHINES[MACHINE][0])["clone"]
    flags = 0x10000000, 0x20000, 0x40000000, 0x20000000, 0x8000000, 0x4000000, 0x2000000
    assert inside(errors_with, [(clone, flag | 17, 0, 0, 0, 0) for flag in flags]) == [[errno.EPERM] * len(flags)]


@needs_jail
def test_everyday_work_goes_on(inside):
    assert inside(everyday_work) == [("42", 42, 1000.0, 28)]


@needs_jail
def test_ranks_meet_over_gloo_and_under_torchrun(inside):
    assert inside(add_up, [0, 1, 2], world_size=3) == [True] * 3
    assert inside(under_torchrun) == [[True, True]]


@needs_jail
def test_a_crash_leaves_no_core_and_starts_nothing_outside(inside):
    """At a limit of 1 byte, and at no other, the kernel gives no core to the program that core_pattern may name."""
    assert inside(core_limit_and_end_of_a_crash) == [((1, 1), True, False, [])]


@pytest.mark.parametrize(("column", "header"), HEADERS)
def test_the_numbers_are_those_of_the_kernels_headers(column, header):
    if not os.path.exists(header):
        give_up("sandbox", f"{header} is not there")
    text = Path(header).read_text()
    known = {name: int(number) for name, number in re.findall(r"__NR(?:3264)?_(\w+)\s+(\d+)", text)}
    known |= {name: known[same] for name, same in re.findall(r"__NR_(\w+) __NR3264_(\w+)", text) if same in known}
    for names in (seccomp._ALLOWED, seccomp._CONDITIONAL, seccomp._UNKNOWN):
        listed = seccomp.numbers(names, column)
        assert {name: known[name] for name in listed if name in known} == {
            name: number for name, number in listed.items() if name in known
        }
        new = set(listed) - set(known)
        assert all(listed[name] > 440 for name in new), "an old call that the header does not name"
    tried = {name: numbers[column - 1] for name, numbers in (REFUSED | PROBED).items()}
    assert {name: known.get(name, number) for name, number in tried.items()} == tried


def test_every_program_is_one_that_the_kernel_takes():
    for machine in seccomp._MACHINES:
        for has_unix_sockets in (True, False):
            program = seccomp.program(has_unix_sockets, machine=machine)
            assert len(program) < 4096
            for place, (code, if_true, if_false, _) in enumerate(program):
                assert max(if_true, if_false) < 256
                assert code == seccomp._GIVE or place + 1 + max(if_true, if_false) < len(program)
                assert code in (seccomp._LOAD, seccomp._AND, seccomp._EQUAL, seccomp._AT_LEAST, seccomp._GIVE)
            assert program[-1][0] == seccomp._GIVE


def test_a_machine_without_a_list_gets_no_jail():
    with pytest.raises(OSError, match="no list of system calls for riscv64"):
        seccomp.program(machine="riscv64")
