"""What refers to a call's tensors for a moment longer than the program, and is waited for before memory is recorded."""

import threading

import pytest
import torch

from worldsize.emulate.worker import works
from worldsize.emulate.worker.works import Fulfilments, Future


@pytest.fixture
def lingering(monkeypatch):
    """A thread that has fulfilled its future, and ends once it is joined."""
    joined = threading.Event()
    join = threading.Thread.join
    monkeypatch.setattr(works, "_join", lambda thread: (joined.set(), join(thread)))

    def start(future):
        def fulfil():
            torch.futures.Future.set_result(future, 1)
            joined.wait()

        thread = threading.Thread(target=fulfil, daemon=True)
        fulfilments = Fulfilments()
        fulfilments.add(thread, future)
        thread.start()
        torch.futures.Future.wait(future)
        return thread, fulfilments

    yield start
    joined.set()


def test_a_thread_that_has_fulfilled_its_future_has_ended_once_they_are_settled(lingering):
    thread, fulfilments = lingering(Future())
    fulfilments.settle()
    assert not thread.is_alive()


def test_one_whose_callback_may_wait_for_ever_is_left_alone(lingering):
    future = Future()
    future.add_done_callback(lambda _: None)
    thread, fulfilments = lingering(future)
    fulfilments.settle()
    assert thread.is_alive()
