"""What holds where no namespaces can be made and Landlock is the only wall, and what is left behind."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cloudpickle
import pytest
from launching import run
from needs import give_up
from processes import wait_until
from test_sandbox import LIMITS, WAIT_S, detach, marker, processes  # noqa: F401
from tiny_lab import need_root, without_jails, write_checks

from autograder import sandbox
from autograder.judging.report import Report
from autograder.sandbox import Sandbox, Tier, jail, zygote
from worldsize.launch import RankFailed, RunTimeout

cloudpickle.register_pickle_by_value(sys.modules[__name__])
FENCES = [Tier(user=True, landlock=True), Tier(landlock=True)]


@pytest.fixture(params=FENCES, ids=str)
def fence(request, monkeypatch):
    """A sandbox as on a machine without namespaces; without a user of its own, the files of this one are the target."""
    if jail.landlock_abi() < jail.SCOPED_ABI:
        give_up("sandbox", "this kernel's Landlock cannot keep signals to a jail")
    if request.param.user:
        need_root("only root can give a jail a user of its own")
    monkeypatch.setattr(sandbox, "probe", lambda: request.param)
    with Sandbox(LIMITS) as opened:
        opened.forkserver.wait_until_warm()
        yield opened


def inside(fence, fn, *args, timeout_s=20):
    return run(fn, *args, world_size=1, echo=False, forkserver=fence.forkserver, timeout_s=timeout_s).values[0]


@pytest.fixture
def open_folder():
    """A folder of the outside in which everybody may do everything."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        path = Path(folder, "gradebook.db")
        path.write_text("secret")
        path.chmod(0o777)
        yield Path(folder)


# What runs inside.


def reach(folder):
    """What can be done to the files of a folder."""
    ways = {
        "read": lambda: Path(folder, "gradebook.db").read_text(),
        "write": lambda: Path(folder, "gradebook.db").write_text("5 points"),
        "truncate": lambda: os.truncate(Path(folder, "gradebook.db"), 0),
        "list": lambda: os.listdir(folder),
        "create": lambda: Path(folder, "new").touch(),
        "mkdir": lambda: Path(folder, "folder").mkdir(),
        "link": lambda: os.symlink("a", Path(folder, "link")),
        "rename": lambda: os.rename(Path(folder, "gradebook.db"), Path(folder, "other")),
        "take": lambda: os.rename(Path(folder, "gradebook.db"), "mine"),
        "execute": lambda: subprocess.run([Path(folder, "gradebook.db")]),
        "remove": lambda: os.unlink(Path(folder, "gradebook.db")),
    }
    return [name for name, way in ways.items() if is_possible(way)]


def is_possible(way):
    try:
        way()
    except OSError:
        return False
    return True


def reach_sockets(path, name):
    found = []
    for address in (path, "\0" + name):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
            sock.connect(address)
            found.append(address)
    return found


def reach_abstract_socket(name):
    """Past the filter: by one end of a pair."""
    ours, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        ours.sendto(b"x", "\0" + name)
    except OSError as error:
        return type(error).__name__
    return "sent"


def reach_process(pid):
    return is_possible(lambda: os.kill(pid, 0))


def use_scratch():
    """Where files can be made and processes started."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x")
        told = subprocess.run(["/bin/echo", "42"], capture_output=True, text=True).stdout
        return os.path.dirname(file.name), os.getcwd(), os.path.expanduser("~"), told


def hop(words):
    """Leaves a process that is for ever another one: each forks the next and ends."""
    program = "f() { sleep 0.01; f & exit; }; echo; f"
    subprocess.Popen(["/bin/sh", "-c", program, words], stdout=subprocess.PIPE, start_new_session=True).stdout.read(1)


def stop_the_forkserver(words):
    detach(words)
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(1000)


# The tests.


def test_files_of_the_outside_are_shut(fence, open_folder):
    assert inside(fence, reach, str(open_folder)) == []
    assert (open_folder / "gradebook.db").read_text() == "secret"


def test_a_run_has_a_folder_of_its_own(fence):
    scratch, here, home, told = inside(fence, use_scratch)
    assert scratch == here == home == fence._root and told == "42\n"
    assert inside(fence, reach, here) == ["write", "truncate", "list", "create", "mkdir", "link", "rename"]


def test_other_processes_are_out_of_reach(fence):
    assert not inside(fence, reach_process, os.getpid())
    assert not inside(fence, reach_process, fence.forkserver.process.pid), "who ends the jail must not be ended by it"


def test_services_of_the_machine_are_out_of_reach(fence, open_folder):
    path, name = str(open_folder / "service"), f"worldsize-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as by_path, socket.socket(socket.AF_UNIX) as by_name:
        for sock, address in ((by_path, path), (by_name, "\0" + name)):
            sock.bind(address)
            sock.listen()
        os.chmod(path, 0o777)
        assert inside(fence, reach_sockets, path, name) == []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as by_name:
        by_name.bind("\0" + name)
        assert inside(fence, reach_abstract_socket, name) == "PermissionError"


@pytest.mark.parametrize("leave", [detach, hop])
def test_what_a_run_leaves_ends_with_the_sweep(fence, marker, leave):  # noqa: F811
    inside(fence, leave, marker)
    assert wait_until(lambda: processes(marker), WAIT_S)
    fence.sweep()
    assert processes(marker) == []
    assert not fence.forkserver.is_alive and not os.path.exists(fence._root)


def test_a_forkserver_that_is_stopped_ends_the_jail(fence, marker):  # noqa: F811
    with pytest.raises((RankFailed, RunTimeout)):
        inside(fence, stop_the_forkserver, marker, timeout_s=5)
    assert wait_until(lambda: processes(marker) == [], WAIT_S)


def test_the_end_of_the_zygote_ends_the_jail(fence, marker):  # noqa: F811
    inside(fence, detach, marker)
    zygote.shared().close()
    assert wait_until(lambda: processes(marker) == [], WAIT_S)


def test_where_signals_would_leave_the_jail_none_is_sent_to_all(monkeypatch):
    sent = []
    monkeypatch.setattr(os, "kill", lambda *signal: sent.append(signal))
    with pytest.raises(RuntimeError, match="signals leave this jail"):
        jail._end_all_inside()
    assert sent == [(os.getppid(), 0)]


def test_a_lab_is_judged_and_values_do_not_pass_between_checks(tmp_path):
    checks = write_checks(tmp_path / "course")
    remembers = (
        "import os\ndef total(tensor):\n    dist.all_reduce(tensor)\n    open('left', 'w').close()\n    return tensor"
    )
    finds = "import os\ndef mean(tensor):\n    raise KeyError if 'left' in os.listdir('.') else FileNotFoundError"
    program = f"""
import sys
sys.path.insert(0, "tests/support")
from pathlib import Path
from tiny_lab import judged
report = judged(Path({str(checks)!r}), total={remembers!r}, mean={finds!r}, allow_untrusted=True)
print(report.model_dump_json())
"""
    if jail.landlock_abi() < jail.SCOPED_ABI:
        give_up("sandbox", "this kernel's Landlock cannot keep signals to a jail")
    done = without_jails(program)
    assert done.returncode == 0, done.stderr
    report = Report.model_validate_json(done.stdout)
    assert report.tier == "a user of its own, Landlock"
    assert report.score == 3 and "FileNotFoundError" in report.checks[-1].message


def test_a_program_that_landlock_alone_would_keep_from_its_samples_is_not_judged(tmp_path):
    checks = write_checks(tmp_path / "course")
    program = f"""
from pathlib import Path
from autograder.judging.request import JudgeRequest, judge
programs = {{"train.py": ""}}
checks = Path({str(checks)!r})
judge(JudgeRequest(checks=checks, cells=[], allow_untrusted=True, programs=programs, references=programs))
"""
    if jail.landlock_abi() < jail.SCOPED_ABI:
        give_up("sandbox", "this kernel's Landlock cannot keep signals to a jail")
    done = without_jails(program)
    assert done.returncode and "samples from reaching a program" in done.stderr and "user namespaces" in done.stderr


# Which walls a machine gives.


@pytest.mark.parametrize(
    ("abi", "refused", "walls"),
    [
        (7, [], "namespaces, a user of its own, Landlock"),
        (0, [], "namespaces, a user of its own"),
        (7, ["namespaces"], "a user of its own, Landlock"),
        (5, ["namespaces"], "none"),
        (0, ["namespaces"], "none"),
        (7, ["namespaces", "landlock"], "none"),
    ],
)
def test_the_walls_are_told_as_they_stand(monkeypatch, abi, refused, walls):
    tried = []

    def try_(tier):
        tried.append(tier)
        return "refused" if any(getattr(tier, wall) for wall in refused) else ""

    monkeypatch.setattr(jail, "landlock_abi", lambda: abi)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(sandbox, "_try", try_)
    tier, said = sandbox._probe.__wrapped__()
    assert str(tier) == walls and tier.is_trusted == ("namespaces" in walls)
    assert said == ("refused" if refused else "")
    assert not tier.is_jail or tier in tried, "only what was seen to stand is told"


def test_a_jail_of_namespaces_is_built_also_without_landlock(monkeypatch):
    if not sandbox.probe().is_trusted:
        give_up("sandbox", sandbox.obstacle())
    monkeypatch.setattr(jail, "landlock_abi", lambda: 0)
    assert sandbox._try(Tier(namespaces=True, user=os.geteuid() == 0)) == ""
