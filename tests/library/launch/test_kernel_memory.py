"""The kernel's word on what a rank fills, by whatever means it does so."""

import os
import platform
import subprocess
import sys
import time

import pytest

import worldsize as ws
from worldsize.launch.launcher.kernel_memory import KernelMemory
from worldsize.launch.launcher.worker import Worker

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process fills, in /proc")
SIZE = 200 * 10**6  # stands out of all that a rank does besides


def numpy_array():
    import numpy

    return float(numpy.ones(SIZE // 8).sum()) * 0


def thread():
    import threading

    import numpy

    one = threading.Thread(target=lambda: numpy.ones(SIZE // 8))
    one.start()
    one.join()


def child():
    import subprocess
    import sys

    program = f"filled = b'x' * {SIZE}; print(len(filled), flush=True); input()"
    started = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert started.stdout
    started.stdout.readline()
    child.kept = started  # type: ignore[attr-defined]


def shared_memory():
    import mmap

    shared = mmap.mmap(-1, SIZE)
    for _ in range(100):
        shared.write(b"x" * (SIZE // 100))
    shared_memory.kept = shared  # type: ignore[attr-defined]


def tensors():
    import torch

    return float(torch.ones(SIZE // 4).sum()) * 0


def little():
    return sum([1] * 1_000) * 0


@pytest.mark.parametrize("fill", [numpy_array, thread, child, shared_memory, tensors])
def test_what_a_rank_fills_is_seen_from_outside(fill):
    run = ws.run(on_rank_1, fill, world_size=2, echo=False, memory=True)
    little_bytes, filled_bytes = run.grown_bytes
    assert SIZE <= filled_bytes < 1.3 * SIZE + little_bytes
    assert little_bytes < 0.2 * SIZE


def test_no_watched_rank_starts_before_its_process_is_known(monkeypatch):
    """A rank that joined earlier was looked for in vain, and its memory was missing from the run."""
    pids, send = [], Worker.send

    def note(worker, *message):
        pids.append(worker.pid)
        send(worker, *message)

    monkeypatch.setattr(Worker, "send", note)
    run = ws.run(little, world_size=2, echo=False, memory=True)
    assert all(pids) and len(run.grown_bytes) == 2


def on_rank_1(fill):
    import torch.distributed as dist

    if dist.get_rank() == 1:
        fill()


FILLS_AND_FREES = f"print('ready', flush=True); input(); bytearray({SIZE}); print('free', flush=True); input()"


def test_a_peak_between_two_looks_is_seen():
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-uc", FILLS_AND_FREES], stdin=pipe, stdout=pipe, text=True) as started:
        assert started.stdin and started.stdout
        started.stdout.readline()
        kernel = KernelMemory(os.getpid())
        kernel.watch(0, started.pid)
        kernel.look()
        before = kernel.grown_bytes(0)
        print(file=started.stdin, flush=True)
        started.stdout.readline()
        kernel.look()
        after = kernel.grown_bytes(0)
        started.kill()
    assert before is not None and after is not None
    assert before < 0.1 * SIZE and 0.9 * SIZE < after < 1.2 * SIZE
    assert kernel.grown_bytes(1) is None


def starting_a_program():
    """Hold a process for a moment where vfork has it: in its parent's memory, before it runs a program of its own."""
    import ctypes
    import os
    import signal
    import time

    libc, stack = ctypes.CDLL(None), ctypes.create_string_buffer(1 << 16)
    libc.clone.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
    top = (ctypes.addressof(stack) + (1 << 16)) & ~15
    pid = libc.clone(ctypes.cast(libc.pause, ctypes.c_void_p), top, 0x100 | signal.SIGCHLD, None)  # CLONE_VM
    time.sleep(0.5)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="kcmp has another number here")
def test_a_process_in_its_parents_memory_fills_nothing():
    run = ws.run(on_rank_1, starting_a_program, world_size=2, echo=False, memory=True)
    assert max(run.grown_bytes) < 0.2 * SIZE  # a rank alone holds more than that


def test_nothing_is_read_unless_memory_is_asked_for():
    assert ws.run(little, world_size=1, echo=False).grown_bytes == []


def test_a_rank_fills_nothing_before_it_is_watched(monkeypatch, tmp_path):
    begun = tmp_path / "begun"
    watch = KernelMemory.watch

    def watch_slowly(self, rank, inner_pid):
        end_s = time.monotonic() + 0.5  # in which a rank that did not wait would begin
        while time.monotonic() < end_s and not begun.exists():
            os.sched_yield()
        assert not begun.exists()
        watch(self, rank, inner_pid)

    monkeypatch.setattr(KernelMemory, "watch", watch_slowly)
    (grown,) = ws.run(begun.touch, world_size=1, echo=False, memory=True).grown_bytes
    assert begun.exists() and grown < SIZE / 10


def test_a_rank_that_has_not_joined_yet_is_no_orphan_of_another():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as first:
        counted = KernelMemory(os.getpid(), num_ranks=2)
        counted.watch(0, first.pid)
        program = "filled = b'x' * 10**8; print(1, flush=True); input()"
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as second:
            assert second.stdout and second.stdout.readline()
            counted.look()
            grown_bytes = counted.grown_bytes(0)
            assert grown_bytes is not None and grown_bytes < 10**8
            counted.watch(1, second.pid)
            second.communicate(b"\n")
        first.communicate(b"\n")
