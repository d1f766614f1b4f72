"""One test for each thing that emulation assumes of torch and torch does not promise."""

import sys
import threading
import time

import torch

from worldsize.emulate import torch_internals


def backward_with(hook):
    """Run backward through one tensor, and call the hook inside."""
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda gradient: hook())
    x.sum().backward()


def test_the_frame_round_backward_has_the_name_that_is_looked_for():
    names = []
    backward_with(lambda: names.append(sys._getframe(2).f_code.co_name))
    assert names == [torch_internals._BACKWARD]


def test_a_wait_for_a_future_is_seen_from_another_thread():
    future, seen = torch.futures.Future(), []

    def watch():
        deadline_s = time.monotonic() + 30
        while not torch_internals.num_in_native_waits() and time.monotonic() < deadline_s:
            time.sleep(0.01)
        seen.append(torch_internals.num_in_native_waits())
        future.set_result(None)

    thread = threading.Thread(target=watch)
    thread.start()
    future.wait()
    thread.join()
    assert seen == [1]
    assert not torch_internals.num_in_native_waits()


def test_backward_is_known_inside_and_its_end_is_called_before_it_returns():
    order = []

    def inside():
        order.append(torch_internals.backward_number() is not None)
        torch_internals.call_when_backward_ends(lambda: order.append("end"))

    assert torch_internals.backward_number() is None
    backward_with(inside)
    order.append("returned")
    assert order == [True, "end", "returned"]


def test_a_handle_of_a_call_can_be_made_in_python():
    class Work(torch_internals.Work):
        def wait(self, timeout=None):
            return "waited"

    assert Work().wait() == "waited"
