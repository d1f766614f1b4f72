"""The stack of a rank that cannot run Python, as its launcher reads it."""

import ctypes
import faulthandler
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from launching import failed

import worldsize as ws
from worldsize.launch.protocol import stack_dump
from worldsize.launch.protocol.call_log import STACK_BYTES, STACK_START, Call, CallLog

needs_signal = pytest.mark.skipif(not stack_dump.SIGNAL, reason="only Linux has signals to spare")


@pytest.fixture
def call_log():
    made = CallLog.make()
    yield made
    made.close()


def put(call_log, text):
    os.pwrite(call_log.fd, text.encode(), STACK_START)


@needs_signal
def test_a_process_dumps_its_stack_beside_its_calls(call_log):
    call_log.write(Call(0, "barrier"))
    stack_dump.install(call_log.fd)
    try:
        stack_dump.request({call_log.fd: os.getpid()})
    finally:
        faulthandler.unregister(stack_dump.SIGNAL)
    inner = stack_dump.read(call_log.fd, quotes_files=True)[-1]
    assert (inner.filename, inner.function) == (__file__, "test_a_process_dumps_its_stack_beside_its_calls")
    assert inner.text == "stack_dump.request({call_log.fd: os.getpid()})"
    assert stack_dump.read(call_log.fd, quotes_files=False)[-1].text == "", "a rank in a jail may name any file"
    assert call_log.read() == [Call(0, "barrier")]


@needs_signal
def test_a_process_that_is_not_ready_is_left_alone(call_log):
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        stack_dump.request({call_log.fd: child.pid})
        child.communicate(b"\n")
    assert child.returncode == 0, "the signal would have ended it"
    assert stack_dump.read(call_log.fd, quotes_files=True) == []


def test_of_several_dumps_the_last_counts_and_its_letters_are_read(call_log):
    put(
        call_log,
        "ready\nStack (most recent call first):\n"
        '  File "/old.py", line 1 in old\n'
        "Fatal Python error: Segmentation fault\n\nCurrent thread 0x01 (most recent call first):\n"
        '  File "/caf\\xe9/\\u4e2d\\U0001f600.py", line 12 in f\n'
        '  File "/caf\\udce9.py", line 3 in <module>\n'
        '  File "/cut.py", line ',
    )
    lines = stack_dump.read(call_log.fd, quotes_files=True)
    assert [(one.filename, one.number, one.function) for one in lines] == [
        ("/caf\\udce9.py", 3, "<module>"),
        ("/café/中😀.py", 12, "f"),
    ]


@pytest.mark.parametrize("text", ["", "x" * STACK_BYTES, '  File "/a\\Uffffffff.py", line 1 in f\n' * 300])
def test_anything_can_be_read(call_log, text):
    put(call_log, text[:STACK_BYTES])
    assert len(stack_dump.read(call_log.fd, quotes_files=True)) <= 20


def hold_the_lock():
    if dist.get_rank() == 1:
        ctypes.PyDLL(None).pause()  # native code that does not release the interpreter's lock
    dist.all_reduce(torch.ones(1))


@needs_signal
@pytest.mark.parametrize("options", [{}, {"cluster": "dgx-h100"}], ids=["real", "emulated"])
def test_native_code_that_holds_the_interpreter_s_lock_is_named_with_its_line(options):
    error = failed(hold_the_lock, timeout_s=4, error=ws.RunTimeout, **options)
    number = hold_the_lock.__code__.co_firstlineno + 2
    assert (
        "Rank 1 stopped outside any call, at\n"
        f"  test_stack_dump.py, line {number}, in hold_the_lock\n"
        "    ctypes.PyDLL(None).pause()"
    ) in str(error)
    assert "rank 1 is at test_stack_dump.py, line" in str(error)
