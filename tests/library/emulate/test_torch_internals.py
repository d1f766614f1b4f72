"""One test for each thing that emulation assumes of torch and torch does not promise."""

import sys
import threading
import time

import pytest
import torch

from worldsize.emulate.worker import torch_internals


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


def test_a_tensor_inside_torch_func_is_unwrapped_and_any_other_is_not():
    plain, seen = torch.ones(2), []

    def inside(tensor):
        seen.extend([tensor.data_ptr, torch_internals.unwrapped(tensor)])
        torch.func.grad(lambda other: seen.append(torch_internals.unwrapped(other)) or other.sum())(tensor)
        return tensor

    torch.func.vjp(inside, plain)
    assert [one.data_ptr() for one in seen[1:]] == [plain.data_ptr()] * 2
    assert torch_internals.unwrapped(plain) is plain
    with pytest.raises(RuntimeError, match="Cannot access data pointer"):
        seen[0]()


def test_a_handle_of_a_call_can_be_made_in_python():
    class Work(torch_internals.Work):
        def wait(self, timeout=None):
            return "waited"

    assert Work().wait() == "waited"
