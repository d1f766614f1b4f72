import os
import sys
import threading

import pytest

from worldsize.launch.protocol.call_log import DONE, ISSUED, WAITING, Call, CallLog
from worldsize.launch.worker import call_tracer
from worldsize.source import Line

LINE = Line("/tmp/train.py", 3, "step", "dist.all_reduce(x)")


@pytest.fixture
def call_log():
    book = CallLog.make()
    yield book
    book.close()


def test_a_call_is_read_as_it_was_written(call_log):
    calls = [
        Call(0, "all_reduce", None, 1, "float32", (4, 2), None, 0, "MAX", LINE, DONE),
        Call(1, "isend", (0, 3), 0, "int64", (), 0, 7, state=ISSUED),
        Call(2, "barrier", (0, 3), 2, state=WAITING, group="1"),
    ]
    for call in calls:
        call_log.write(call)
    assert call_log.read() == calls


def test_a_state_changes_in_place_and_the_waiting_call_is_the_current_one(call_log):
    for number in range(3):
        call_log.write(Call(number, "isend", state=ISSUED))
    assert call_log.current() == Call(2, "isend", state=ISSUED)
    call_log.mark(0, WAITING)
    assert call_log.current() == Call(0, "isend", state=WAITING)
    call_log.mark(0, DONE)
    assert call_log.current() == Call(2, "isend", state=ISSUED)


def test_of_many_calls_the_last_64_are_kept(call_log):
    for number in range(1000):
        call_log.write(Call(number, "barrier"))
    assert [call.number for call in call_log.read()] == list(range(936, 1000))


def test_a_call_whose_place_another_has_taken_changes_no_more(call_log):
    for number in range(65):
        call_log.write(Call(number, "irecv", state=ISSUED))
    call_log.mark(0, WAITING)
    assert call_log.current() == Call(64, "irecv", state=ISSUED)


def test_an_empty_and_a_closed_one_hold_nothing(call_log):
    assert (call_log.read(), call_log.current()) == ([], None)
    call_log.close()
    call_log.close()
    assert (call_log.read(), call_log.current()) == ([], None)


def test_a_call_that_is_too_long_for_its_slot_is_left_out(call_log):
    call_log.write(Call(0, "all_reduce", tuple(range(1000))))
    assert call_log.read() == []


HEAD = b"w" + b"%09d" * 2 % (1, 1)  # state, number, sequence


@pytest.mark.parametrize(
    "slot",
    [
        HEAD + b"[]\n",
        HEAD + b"{}\n",
        HEAD[:-1] + b'x{"op":"send"}\n',
        HEAD + b'{"op":"send","shape":5}\n',
        HEAD + b'{"op":"send","shape":[Infinity]}\n',
        HEAD + b'{"op":"send","line":{}}\n',
        HEAD + b"[" * 1000 + b"\n",
        HEAD + b'{"op":"send"}',
        b"\xff" * 1024,
    ],
)
def test_what_is_no_call_is_passed_over(call_log, slot):
    os.pwrite(call_log.fd, slot, 1024)
    call_log.write(Call(0, "barrier"))
    assert call_log.read() == [Call(0, "barrier")]
    assert call_log.current() in (None, Call(0, "barrier"))


def test_its_size_cannot_be_changed_by_who_writes_it(call_log):
    if sys.platform != "linux":
        pytest.skip("sealed files are Linux's")
    for size in (0, 1 << 20):
        with pytest.raises(PermissionError):
            os.ftruncate(call_log.fd, size)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (Call(0, "all_reduce", None, 3, "float32", (4,)), "collective 3, all_reduce (float32 [4])"),
        (Call(0, "all_reduce", None, 3, reduction="MAX"), "collective 3, all_reduce (MAX)"),
        (Call(0, "broadcast", (0, 2), 1, peer=2), "collective 1, broadcast (root 2, group [0, 2])"),
        (Call(0, "barrier", None, 1), "collective 1, barrier"),
        (Call(0, "send", peer=1, dtype="int64", shape=()), "send to rank 1 (int64 [])"),
        (Call(0, "irecv", peer=0, tag=5), "irecv from rank 0 (tag 5)"),
        (Call(0, "recv"), "recv from any rank"),
    ],
)
def test_a_call_is_told_in_words(call, words):
    assert str(call) == words


def test_before_a_process_group_ends_another_thread_has_its_turn(monkeypatch):
    monkeypatch.setattr(call_tracer, "_PAUSE_S", 1)
    held, let_go, seen = threading.Lock(), [], []
    held.acquire()
    thread = threading.Thread(target=lambda: (held.acquire(), let_go.append("tensors")))
    thread.start()
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(100)  # from here on a thread has its turn only where this one waits
    try:
        held.release()
        call_tracer._delayed(lambda: seen.extend(let_go))()
    finally:
        sys.setswitchinterval(before_s)
    thread.join()
    assert seen == ["tensors"]
