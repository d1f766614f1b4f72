"""What launching patches in torch and ipykernel, or reads of their internals; docs/patches.md is the list.

Each test fails when its patch is no longer needed, or no longer reaches what it patches.
"""

import inspect

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.elastic.rendezvous import dynamic_rendezvous

import worldsize as ws
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


def test_a_widget_notes_the_thread_that_its_clicks_go_to():
    from ipykernel.comm import comm

    assert 'getattr(self, "_reply_subshell_id"' in inspect.getsource(comm)
