"""What launching patches in torch and ipykernel, or reads of their internals; docs/patches.md is the list.

Each test fails when its patch is no longer needed, or no longer reaches what it patches.
"""

import inspect
import mmap
import os
import signal
import string
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.elastic.rendezvous import dynamic_rendezvous

import worldsize as ws
from worldsize.launch.launcher import elastic
from worldsize.launch.launcher.flags import Flags
from worldsize.launch.protocol import failure
from worldsize.launch.worker import call_tracer


def test_torchrun_starts_every_rank_afresh_and_by_the_method_that_is_replaced(monkeypatch):
    started = []
    monkeypatch.setattr(SubprocessHandler, "_popen", lambda self, args, env: started.append((args, env["NAME"])))
    SubprocessHandler("python", ("file.py",), {"NAME": "value"}, None, None, 0, None)
    assert started == [(("python", "file.py"), "value")]
    monkeypatch.undo()
    assert "return Popen(" in inspect.getsource(SubprocessHandler._popen)


def test_torchrun_shares_its_store_unless_the_environment_says_otherwise():
    switch = 'os.getenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0")'
    assert switch in inspect.getsource(dynamic_rendezvous)


@pytest.mark.parametrize("codes", [{0: 1, 1: -9}, {1: -15}])
def test_torchruns_summary_is_read_by_rank_and_exit_code(codes):
    failures = {rank: ProcessFailure(rank, 10 + rank, code, error_file="<N/A>") for rank, code in codes.items()}
    summary = ChildFailedError("train.py", failures).format_msg()
    assert {int(rank): int(code) for rank, code in elastic._EXIT.findall(summary)} == codes


def test_torchrun_puts_the_rank_before_each_line(monkeypatch):
    environment = elastic.environment(Flags.parse([]), {}, "ranks")
    name = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"
    monkeypatch.setenv(name, environment[name])
    config, _, _ = torchrun.config_from_args(torchrun.parse_args(["--standalone", "train.py"]))
    prefix = string.Template(config.log_line_prefix_template).safe_substitute(rank=12, local_rank=0, role_name="x")
    assert elastic._RANK_LINE.match(f"{prefix}hello".encode())[1] == b"12"


@pytest.mark.parametrize("sentence", failure.OF_GLOO)
def test_gloo_still_says_that_a_peer_is_gone(sentence):
    (library,) = (Path(torch.__file__).parent / "lib").glob("libtorch_cpu.*")
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as text:
        assert text.find(b"\0" + sentence.encode()) >= 0


def test_an_error_of_gloo_is_raised_by_torch_with_the_reason_of_the_system():
    def on_rank():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.recv(torch.ones(1), 1)

    with pytest.raises(ws.RankFailed) as caught:
        ws.run(on_rank, world_size=2, backend="gloo", echo=False)
    victim = caught.value.failures[-1]
    assert (victim.rank, victim.is_victim) == (0, True)
    assert "gloo" in victim.torch_message.lower(), "by this word calls that do not match are recognised, too"


def test_every_traced_function_has_the_parameter_that_is_read():
    traced = {name: getattr(distributed_c10d, name, None) for name in call_tracer._PAYLOADS}
    assert set(filter(traced.get, traced)) >= {
        "all_reduce",
        "all_gather",
        "broadcast",
        "send",
        "recv",
        "isend",
        "irecv",
    }
    for name, fn in traced.items():
        if fn is not None and (parameter := call_tracer._PAYLOADS[name]):
            assert parameter in inspect.signature(fn).parameters, name
    assert callable(distributed_c10d.Work.wait)


def test_the_flight_recorder_knows_what_was_called():
    def on_rank():
        dist.all_reduce(torch.ones(2))
        return call_tracer.native()["num_native"]

    assert ws.run(on_rank, world_size=2, backend="gloo", echo=False).values == [1, 1]


def test_torchs_profiler_writes_to_stderr(capfd):
    with torch.profiler.profile():
        torch.ones(2)
    assert "profiler_start" in capfd.readouterr().err


def test_the_kernel_asks_a_comm_where_its_messages_go():
    from ipykernel import kernelbase

    assert 'getattr(comm, "_reply_subshell_for"' in inspect.getsource(kernelbase)
