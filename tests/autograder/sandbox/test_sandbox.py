"""What a rank in the jail can and cannot do, and that nothing of it is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import cloudpickle
import psutil
import pytest
from launching import run
from needs import give_up
from processes import wait_until
from tiny_lab import ROOT, need_root, needs_jail, without_jails, write_checks

from autograder.sandbox import Limits, Sandbox, Tier, plan, zygote
from autograder.sandbox.jail import SCOPED_ABI, landlock_abi
from worldsize.launch import RankFailed, RunTimeout
from worldsize.launch.protocol.quota import Quota

cloudpickle.register_pickle_by_value(sys.modules[__name__])
MEGABYTE = 1 << 20
LIMITS = Limits(memory_bytes=1536 * MEGABYTE, disk_bytes=64 * MEGABYTE, num_processes=200)
WAIT_S = 20


@pytest.fixture(scope="module")
def jail():
    with Sandbox(LIMITS) as opened:
        opened.forkserver.wait_until_warm()
        yield opened


@pytest.fixture
def inside(jail):
    """Runs a function on one rank in the jail and gives what it returned; the jail is swept after it."""

    def call(fn, *args, timeout_s=20, world_size=1):
        try:
            limits = {"timeout_s": timeout_s, "quota": Quota(value_bytes=MEGABYTE)}
            return run(fn, *args, world_size=world_size, echo=False, forkserver=jail.forkserver, **limits).values[0]
        finally:
            jail.forkserver.sweep()

    return call


@pytest.fixture
def marker():
    """Words that a process can carry in its command line; those that still live are killed at the end."""
    words = f"worldsize-test-{uuid.uuid4().hex}"
    yield words
    for pid in processes(words):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def processes(words):
    """The processes of this machine that have these words in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if words.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


# What runs inside.


def seen(paths):
    return [path for path in paths if os.path.lexists(path)]


def read(path):
    return Path(path).read_text()


def outcome_of_writing(paths):
    written = []
    for path in paths:
        with contextlib.suppress(OSError):
            with open(path, "w") as file:
                file.write("x")
            written.append(path)
    return written


def connect(address, port):
    try:
        socket.create_connection((address, port), timeout=2).close()
    except OSError as error:
        return type(error).__name__
    return "connected"


def detach(words):
    """Leaves a process in a session of its own, whose parent is gone."""
    started_r, started_w = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.dup2(started_w, 1)
            os.execv("/bin/sh", ["/bin/sh", "-c", "echo; exec >&2; sleep 1000; :", words])
        os._exit(0)
    os.close(started_w)
    os.read(started_r, 1)  # a line that the shell writes: only then are its words there to be seen
    return sum(words.encode() in path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline"))


def bomb(kind):
    if kind == "memory":
        kept = []
        while True:
            kept.append(b"x" * (100 << 20))
    elif kind == "shared memory":
        import mmap

        kept = [mmap.mmap(-1, 1 << 30) for _ in range(64)]
    elif kind == "disk":
        with open("/tmp/big", "wb") as file:
            while True:
                file.write(b"x" * (1 << 20))
    elif kind == "files":
        for number in range(10**6):
            os.symlink("x", f"/tmp/many{number}")
    elif kind == "processes":
        while True:
            if os.fork() == 0:
                time.sleep(1000)
    elif kind == "output":
        while True:
            os.write(1, b"x" * 65536)
    elif kind == "value":
        return "x" * (4 << 20)
    elif kind == "depth":
        value = []
        for _ in range(100_000):
            value = [value]
        return value
    elif kind == "detached output" and any(os.fork() == 0 for _ in range(8)):
        os.setsid()
        while True:
            os.write(1, b"x" * 65536)
    return None


def look_around():
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "environment": dict(os.environ),
        "processes": [name for name in os.listdir("/proc") if name.isdigit()],
        "user": os.getuid(),
        "host": socket.gethostname(),
        "interfaces": [name for _, name in socket.if_nameindex()],
        "capabilities": [status[name].strip() for name in status if name.startswith("Cap")],
        "no_new_privs": status["NoNewPrivs"].strip(),
        "files": [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if os.path.lexists(path)],
        "oom_score_adj": Path("/proc/self/oom_score_adj").read_text().strip(),
    }


def attack_the_forkserver():
    """The ways in which a rank got at the process that forks ranks; empty when there is none."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    ways = []
    for path in ("mem", "environ", "fd/0", "maps", "syscall"):
        with contextlib.suppress(OSError):
            with open(f"/proc/1/{path}", "rb") as file:
                file.read(1)
            ways.append(path)
    if libc.ptrace(16, 1, 0, 0) == 0:  # PTRACE_ATTACH
        ways.append("ptrace")
    for number in (signal.SIGKILL, signal.SIGSTOP):
        with contextlib.suppress(OSError):
            os.kill(1, number)
    return ways


def send(header):
    """Sends these bytes to the launcher as a message's header, and no more."""
    for fd in range(64):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as found:
            if found.family == socket.AF_UNIX:
                found.sendall(struct.pack("<IQ", len(header), 0) + header)
    time.sleep(1000)


def make_namespaces():
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    flags = {"user": 0x10000000, "mount": 0x20000, "net": 0x40000000}
    return [name for name, flag in flags.items() if libc.unshare(flag) == 0]


def same_answer():
    return 42


# The tests.


@needs_jail
def test_files_of_the_outside_are_not_there(inside, tmp_path):
    secret = tmp_path / "gradebook.db"
    secret.write_text("secret")
    wanted = [
        str(secret),
        str(ROOT / "solutions"),
        str(ROOT / "autograder"),
        str(ROOT / "tests"),
        "/etc/passwd",
        "/etc/shadow",
        f"{Path.home()}/.bashrc",
        f"{Path.home()}/.ssh",
        "/home",
        "/var",
        "/run",
        "/sys",
        "/boot",
        "/outside",
        "/proc/1/root/etc/passwd",
        "/dev/mem",
        "/dev/vda",
        "/dev/tty",
        "/dev/fuse",
    ]
    assert inside(seen, wanted) == []
    assert inside(seen, [str(ROOT / "worldsize" / "__init__.py")]) != []


@needs_jail
def test_nothing_outside_the_scratch_folders_can_be_written(inside):
    import worldsize

    here, python = Path(worldsize.__file__).parent, Path(sys.prefix)
    (site,) = python.glob("lib/python3*/site-packages")
    shut = [here / "a.py", here / "check.py", site / "evil.pth", site / "sitecustomize.py", python / "bin" / "python"]
    shut += [
        Path(path)
        for path in ("/a", "/usr/a", "/usr/local/a", "/dev/a", "/proc/sys/kernel/core_pattern", f"{Path.home()}/a")
    ]
    assert inside(outcome_of_writing, [str(path) for path in shut]) == []
    assert inside(outcome_of_writing, ["/tmp/a", "/dev/shm/a", "a", "/dev/null"]) != []


@needs_jail
def test_all_that_is_shown_is_mounted_read_only(inside):
    mounts = [line.split() for line in inside(read, "/proc/mounts").splitlines()]
    writable = {point for _, point, _, options, *_ in mounts if "ro" not in options.split(",")}
    assert "/tmp" in writable
    assert all(point in ("/tmp", "/dev/shm", "/proc") or point.startswith("/dev/") for point in writable), writable


@needs_jail
def test_a_mount_below_what_is_shown_is_read_only_too(tmp_path):
    need_root("only root can mount something for this test")
    folder = os.path.join(sys.prefix, "share")
    write, tier = f"open({folder + '/a'!r}, 'w')", Tier(namespaces=True, user=True)
    build = f"""
import json, sys
from autograder.sandbox import Limits, Tier, jail, plan
sys.exit(jail.main([json.dumps(plan({tier!r}, {str(tmp_path)!r}, Limits())), sys.executable, "-I", "-c", {write!r}]))
"""
    mount = 'mount -t tmpfs -o mode=777 none "$0" && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", mount, folder, sys.executable, "-c", build]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "Read-only file system" in done.stderr


@needs_jail
def test_landlock_shuts_what_is_mounted_writable(jail, inside):
    if not landlock_abi():
        give_up("sandbox", "this kernel has no Landlock")
    assert "Landlock" in str(jail.tier)
    assert inside(outcome_of_writing, ["/proc/self/comm", "/proc/self/timerslack_ns"]) == []
    with pytest.raises(RankFailed, match="PermissionError"):
        inside(os.listdir, "/")


@needs_jail
def test_a_sweep_takes_the_files_of_a_run_with_it(inside):
    left = ["/tmp/a", "/dev/shm/a", "a"]
    assert inside(outcome_of_writing, left) == left
    assert inside(seen, left) == []


@needs_jail
def test_the_network_is_not_there(inside):
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert inside(connect, "127.0.0.1", server.getsockname()[1]) == "ConnectionRefusedError"
    assert inside(connect, "192.0.2.1", 80) == "OSError"


@needs_jail
def test_a_rank_sees_neither_the_environment_nor_the_processes_of_the_machine(jail, inside, monkeypatch):
    monkeypatch.setenv("WORLDSIZE_TEST_SECRET", "hush")
    found = inside(look_around)
    assert "hush" not in str(found) and not {"SECRET", "TOKEN", f"HOME={Path.home()}"} & set(found["environment"])
    assert found["environment"]["HOME"].startswith("/tmp")
    assert len(found["processes"]) <= 4
    assert found["host"] == "sandbox" and found["interfaces"] == ["lo"]
    assert set(found["capabilities"]) == {"0" * 16} and found["no_new_privs"] == "1"
    assert found["oom_score_adj"] == "1000"
    if jail.tier.user:
        assert found["user"] not in (0, os.getuid())


@needs_jail
def test_a_rank_holds_no_file_of_the_forkserver(inside):
    """Its own socket, its output, and what torch opened: no second link to the launcher."""
    kinds = [name.split(":")[0] for name in inside(look_around)["files"]]
    assert kinds.count("socket") <= 2 and kinds.count("anon_inode") <= 1, kinds


@needs_jail
@pytest.mark.parametrize("attempt", [attack_the_forkserver, make_namespaces])
def test_the_walls_hold(inside, attempt):
    assert inside(attempt) == []
    assert inside(same_answer) == 42


@needs_jail
def test_two_jails_run_as_two_users(jail, inside):
    need_root("only root can give every jail a user of its own")
    with Sandbox(LIMITS) as other:
        other.forkserver.wait_until_warm()
        user = run(look_around, world_size=1, echo=False, forkserver=other.forkserver).values[0]["user"]
    assert user != inside(look_around)["user"]


@needs_jail
def test_detached_children_die_with_the_sweep(inside, marker):
    assert inside(detach, marker) >= 1
    assert processes(marker) == []


@needs_jail
def test_detached_children_die_with_the_jail(marker):
    with Sandbox(LIMITS) as opened:
        opened.forkserver.wait_until_warm()
        run(detach, marker, world_size=1, echo=False, forkserver=opened.forkserver)
        assert processes(marker)
    assert wait_until(lambda: processes(marker) == [], WAIT_S)
    assert not os.path.exists(opened._root)


@needs_jail
@pytest.mark.parametrize(
    ("kind", "ends_with"),
    [
        ("memory", "MemoryError"),
        ("shared memory", "Cannot allocate memory"),
        ("disk", "No space left|File too large"),
        ("files", "No space left"),
        ("processes", "temporarily unavailable|did not finish"),
        ("output", "did not finish"),
        ("value", "output limit"),
        ("depth", "nested deeper"),
    ],
)
def test_a_bomb_hurts_nobody_else(inside, kind, ends_with):
    before_bytes = memory_of_this_process()
    with pytest.raises((RankFailed, RunTimeout), match=ends_with):
        inside(bomb, kind, timeout_s=4 if "did not finish" in ends_with else 60)
    assert memory_of_this_process() - before_bytes < 200 * MEGABYTE
    assert inside(same_answer) == 42


@needs_jail
@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b"not json",
        b"\xff\xfe",
        b"[]",
        b'{"kind": "done"}',
        b'{"kind": ["done"]}',
        b'{"kind": "done", "spans": []}',
        b'{"kind": "failed", "spans": []}',
        b'{"kind": "failed", "spans": [], "failure": ["no", "fields"]}',
        b'{"kind": "failed", "spans": [], "failure": {"time_ns": Infinity}}',
        b'{"kind": "failed", "spans": [], "failure": {"lines": {"a": 1}}}',
        b'{"kind": "failed", "spans": [1, 2, 3], "failure": {}}',
        b'{"kind": "failed", "spans": [["a", "b", "c", "d"]], "failure": {}}',
        b'{"kind": "where", "lines": [{"filename": 1}]}',
        b'{"kind": "joined", "size": 0}',
    ],
    ids=lambda header: header.decode(errors="replace")[:80],
)
def test_a_message_of_no_known_kind_is_the_ranks_own_failure(inside, header):
    with pytest.raises(RankFailed, match="broken result: what the rank sent back cannot be read"):
        inside(send, header)


@needs_jail
def test_a_child_that_prints_for_ever_holds_nobody_up(inside):
    assert inside(bomb, "detached output") is None
    assert inside(same_answer) == 42


def test_of_what_the_zygote_forked_no_dead_process_stays():
    with Sandbox() as sandbox:
        first = sandbox.forkserver.process.pid
        assert psutil.pid_exists(first)
    assert wait_until(lambda: not psutil.pid_exists(first), WAIT_S)  # for which a zombie is still there


def test_no_room_for_a_fork_is_said_and_ends_nothing_else(tmp_path, monkeypatch):
    def fork():
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    ours, theirs = socket.socketpair()
    served = threading.Thread(target=zygote._Server(theirs, str(tmp_path / "scratch"), 0).serve)
    served.start()
    asks = zygote.Zygote(ours, str(tmp_path))
    for _ in range(2):
        with open(os.devnull) as output, pytest.raises(RuntimeError, match=r"unavailable.*--jobs"):
            asks.call("autograder.judging.judge.main:main", [], {}, output.fileno())
    asks.close()
    served.join(10)
    assert not served.is_alive()


def memory_of_this_process():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@needs_jail
def test_a_jail_ends_with_who_asked_for_the_grade(tmp_path, marker):
    checks = write_checks(tmp_path / "course")
    hang = f"import os\ndef total(x):\n    os.execv('/bin/sh', ['/bin/sh', '-c', 'sleep 1000; :', '{marker}'])"
    program = f"""
from pathlib import Path
from autograder.judging.request import JudgeRequest, judge
judge(JudgeRequest(checks=Path({str(checks)!r}), cells=[("total", {hang!r})], call_s=100, total_s=100))
"""
    grading = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: processes(marker), WAIT_S)
    finally:
        grading.kill()
        grading.wait()
    assert wait_until(lambda: processes(marker) == [], WAIT_S)


# Which jail a machine gives.


def test_where_namespaces_cannot_be_made_there_is_at_most_landlock():
    told = without_jails("from autograder.sandbox import probe, obstacle; print(probe(), '|', obstacle())")
    left = "a user of its own, Landlock" if landlock_abi() >= SCOPED_ABI else "none"
    assert told.stdout.startswith(f"{left} | ") and "unshare: Operation not permitted" in told.stdout


@needs_jail
def test_without_root_the_jail_is_built_of_user_namespaces(tmp_path):
    """The system's own Python stands in for ours, which another user may not be allowed to read."""
    python = "/usr/bin/python3"
    need_root("this test becomes another user, which only root can")
    if not os.path.exists(python):
        give_up("sandbox", f"there is no {python} that another user may run")
    tmp_path.chmod(0o755)
    root = Path("/tmp", f"worldsize-jail-{uuid.uuid4().hex}")
    root.mkdir()
    os.chown(root, 65534, 65534)
    told = (
        "import json, os; print(json.dumps([os.getuid(), os.path.exists('/etc/passwd'), os.access('/usr', os.W_OK)]))"
    )
    become = {"user": 65534, "group": 65534, "extra_groups": []}
    ours = plan(Tier(namespaces=True, landlock=landlock_abi() > 0), str(root), LIMITS)
    hidden = (str(Path.home()), os.path.realpath(sys.prefix), sys.prefix, str(ROOT))
    ours["visible"] = [path for path in ours["visible"] if not path.startswith(hidden)]
    command = [python, "-I", "-S", "/dev/stdin", json.dumps(ours), python, "-I", "-c", told]
    try:
        with open(ROOT / "autograder" / "sandbox" / "jail.py") as jail:
            done = subprocess.run(command, stdin=jail, capture_output=True, text=True, timeout=30, **become)
    finally:
        root.rmdir()
    if "unshare: Operation not permitted" in done.stderr:
        give_up("sandbox", "this machine lets only root make namespaces")
    assert done.stderr == ""
    assert json.loads(done.stdout) == [0, False, False]
