"""Whether a failure is a rank's own or torch's word that another rank is gone: a program's words decide nothing."""

from types import FunctionType

import torch
import torch.distributed as dist
from launching import failed

from worldsize.launch.protocol import failure
from worldsize.launch.protocol.failure import Failure, of_exception
from worldsize.message import parse, to_fields

LOST = "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3201"


def failure_of(raising):
    """The failure of a rank that calls a function which raises, as its launcher reads it."""
    try:
        raising()
    except Exception as error:
        return parse(to_fields(of_exception(3, error, 10)), Failure)


def raise_in_torch(error):
    """Raise from a frame of torch's, as its C++ does."""

    def fail(*_):
        raise error

    code = fail.__code__.replace(co_filename=dist.__file__)
    FunctionType(code, {}, "fail", None, fail.__closure__)()


def reraise():
    try:
        raise_in_torch(RuntimeError(LOST))
    except RuntimeError as error:
        raise ValueError("step 3 failed") from error


def clean_up_badly():
    try:
        raise KeyError("weights")
    finally:
        raise_in_torch(RuntimeError(LOST))


def raise_own(error):
    raise error


def test_torchs_own_errors_and_what_follows_from_them_are_a_victims():
    for raising in (
        lambda: raise_in_torch(RuntimeError(LOST)),
        lambda: raise_own(dist.DistBackendError("NCCL communicator was aborted on rank 1")),
        lambda: raise_own(dist.DistNetworkError("failed to recv, got 0 bytes: Connection reset by peer")),
        reraise,
    ):
        found = failure_of(raising)
        assert found.is_victim and found.is_symptom and found.rank == 3, found


def test_a_programs_own_errors_are_never_a_victims_whatever_they_say():
    for error in (
        OSError("write error: disk full"),
        RuntimeError(LOST),
        ConnectionResetError(104, "gloo"),
        KeyError(LOST),
    ):
        found = failure_of(lambda error=error: raise_own(error))
        assert not found.is_victim and not found.is_symptom, found
    assert not failure_of(lambda: raise_in_torch(OSError("Broken pipe"))).is_victim, "of a file that torch writes"
    assert not failure_of(clean_up_badly).is_victim


def test_an_abort_is_a_symptom_only_if_a_signal_ended_the_process():
    assert failure.of_status(0, 6, 0).is_symptom
    assert not Failure(0, "SIGABRT", "").is_symptom


def test_a_rank_whose_disk_is_full_is_named_beside_calls_that_do_not_match():
    def on_rank():
        if dist.get_rank() == 1:
            dist.all_reduce(torch.ones(3), async_op=True)
            raise RuntimeError("write error: disk full")
        dist.all_reduce(torch.ones(4))

    report = str(failed(on_rank, cluster="dgx-h100"))
    assert report.startswith("Rank 1 of 2 failed with RuntimeError: write error: disk full")


def test_a_message_that_is_cut_says_so():
    failure = of_exception(0, ValueError("x" * 10_000), 0)
    assert len(failure.message) == 4000 and failure.message.endswith("x ...")
    assert parse(to_fields(failure), Failure) == failure
