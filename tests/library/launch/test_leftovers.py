"""What a run leaves behind: no rank, no child of one, no open file, no forkserver of a launcher that died."""

import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest
import torch.distributed as dist
from launching import failed, values
from processes import STAY, are_gone, told_pids

import worldsize as ws
from worldsize.launch.launcher import forkserver


def returning(folder, launcher):
    def on_rank():
        with open(f"{folder}/{dist.get_rank()}.pids", "w") as file:
            file.write(f"{os.getpid()} {subprocess.Popen(['sleep', '1000']).pid}")
        dist.barrier()  # or the end of one could keep the other from telling

    return on_rank


def failing(folder, launcher):
    tell = returning(folder, launcher)

    def on_rank():
        tell()
        if dist.get_rank() == 0:
            raise ValueError
        signal.pause()

    return on_rank


def leaving(folder, launcher):
    tell = returning(folder, launcher)

    def on_rank():
        tell()
        os._exit(0)

    return on_rank


def hanging(folder, launcher):
    tell = returning(folder, launcher)

    def on_rank():
        tell()
        signal.pause()

    return on_rank


def interrupting(folder, launcher):
    tell = returning(folder, launcher)

    def on_rank():
        tell()
        dist.barrier()
        if dist.get_rank() == 0:
            os.kill(launcher, signal.SIGINT)
        signal.pause()

    return on_rank


@pytest.mark.parametrize(
    ("make", "error", "timeout_s"),
    [
        (returning, None, 30),
        (failing, ws.RankFailed, 30),
        (leaving, ws.RankFailed, 30),
        (hanging, ws.RunTimeout, 5),
        (interrupting, KeyboardInterrupt, 30),
    ],
)
def test_no_rank_and_none_of_its_children_outlive_a_run(tmp_path, make, error, timeout_s):
    # tests that run in the background are told to ignore an interrupt
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    fn = make(tmp_path, os.getpid())
    try:
        if error:
            failed(fn, timeout_s=timeout_s, error=error)
        else:
            values(fn, timeout_s=timeout_s)
    finally:
        signal.signal(signal.SIGINT, before)
    pids = told_pids(tmp_path, 2)
    assert len(pids) == 4
    assert are_gone(pids)
    assert values(dist.get_rank) == [0, 1], "a run after that works"


def test_many_runs_leave_no_process_no_open_file_and_no_scratch():
    def on_rank():
        if dist.get_rank() == 1:
            raise ValueError

    def left():
        me, server = psutil.Process(), psutil.Process(forkserver.shared().process.pid)
        running = me.children(recursive=True)
        return me.num_fds(), server.num_fds(), len(running), os.listdir(forkserver.shared().scratch)

    values(dist.get_rank)
    before = left()
    for _ in range(10):
        values(dist.get_rank)
        failed(on_rank)
    assert left() == before


LAUNCHER = """
import sys, threading
import worldsize as ws
{stay}
def on_rank(folder):
    import torch.distributed as dist
    stay(folder, dist.get_rank())

def launch():
    ws.run(on_rank, sys.argv[1], world_size=2)

if sys.argv[2] == "main":
    launch()
else:
    threading.Thread(target=launch).start()
"""


@pytest.mark.parametrize("thread", ["main", "side"])
def test_ranks_and_their_forkserver_end_with_a_killed_launcher(tmp_path, thread):
    command = [sys.executable, "-c", LAUNCHER.format(stay=STAY), str(tmp_path), thread]
    launcher = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        pids = told_pids(tmp_path, 2)
    finally:
        launcher.kill()
        launcher.wait()
    assert len(pids) == 3, "two ranks of one forkserver"
    assert are_gone(pids)


def in_thread(fn):
    """What the function gave in a thread that has ended."""
    gave = []
    thread = threading.Thread(target=lambda: gave.append(fn()))
    thread.start()
    thread.join()
    return gave[0]


def test_a_forkserver_that_died_is_replaced_also_from_a_thread_and_outlives_the_thread():
    first = forkserver.shared().process
    first.kill()
    first.wait()
    assert in_thread(lambda: values(dist.get_rank)) == [0, 1]
    second = forkserver.shared().process
    assert second.pid != first.pid
    assert values(os.getppid) == [second.pid] * 2


def test_a_forkserver_that_dies_in_a_run_fails_that_run_and_heals():
    def on_rank():
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()

    failed(on_rank, match="SIGKILL")
    assert values(dist.get_rank) == [0, 1]


def test_runs_from_two_threads_wait_for_each_other():
    gave = {}

    def launch(name):
        gave[name] = values(lambda: f"{name}{dist.get_rank()}")

    threads = [threading.Thread(target=launch, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert gave == {"a": ["a0", "a1"], "b": ["b0", "b1"]}
