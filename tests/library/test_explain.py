"""Dumps of hung jobs are explained as worldsize explains its own runs."""

import json
import pickle
import subprocess
import sys

import pytest

import worldsize as ws
from worldsize.__main__ import main
from worldsize.explain import explain
from worldsize.launch.reports import cures

PG_CONFIG = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}, "5": {"ranks": "[0, 2]"}}


def entry(number, op, state="completed", line=10, group=("0", "default_pg"), sizes=((4,),)):
    """An entry of NCCL's flight recorder, as torch 2.13 writes it."""
    frames = [
        {"name": "all_reduce", "filename": "/env/lib/python3.11/site-packages/torch/distributed/c10d.py", "line": 3018},
        {"name": "step", "filename": "/ada/train.py", "line": line},
    ]
    return {
        "record_id": number,
        "profiling_name": f"nccl:{op}",
        "process_group": group,
        "collective_seq_id": number,
        "input_sizes": [list(one) for one in sizes],
        "input_dtypes": ["Float"] * len(sizes),
        "state": state,
        "retired": state == "completed",
        "is_p2p": " " in op,
        "frames": frames,
    }


def written(folder, *dumps, form="pickle"):
    """The files of these ranks' entries."""
    paths = []
    for rank, entries in enumerate(dumps):
        dump = {"version": "2.10", "pg_config": PG_CONFIG, "entries": entries}
        paths.append(folder / f"nccl_trace_rank_{rank}")
        paths[-1].write_bytes(pickle.dumps(dump) if form == "pickle" else json.dumps(dump).encode())
    return paths


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_mismatch_in_dumps_is_named_with_lines_and_what_to_do(tmp_path, form):
    usual = [entry(1, "all_reduce"), entry(2, "all_reduce", "scheduled")]
    odd = [entry(1, "all_reduce"), entry(2, "all_reduce_barrier", "started", line=12, sizes=())]
    report = explain(written(tmp_path, usual, odd, usual, form=form)).splitlines()
    assert report[0] == "Of ranks 0 to 2 there are dumps or stacks."
    assert report[1] == (
        "Collectives do not match: Rank 1 calls collective 2, barrier, "
        "ranks 0 and 2 call collective 2, all_reduce (float32 [4])."
    )
    assert "  train.py, line 12, in step" in report and report[-1] == str(cures.SAME_CALLS)


def batch(number, state, *ops):
    """The entries of `batch_isend_irecv`: NCCL's recorder updates the state of the last alone, which has no tensor."""
    members = [entry(number + place, op, "scheduled") for place, op in enumerate(ops)]
    whole = entry(number + len(ops), "coalesced", state, sizes=()) | {"is_p2p": True}
    return [one | {"p2p_seq_id": number, "collective_seq_id": 0} for one in [*members, whole]]


def test_a_batch_of_messages_is_done_when_its_last_entry_is(tmp_path):
    waiting = entry(4, "all_reduce", "started", line=30)
    first = [*batch(1, "completed", "send 0->1", "recv 0<-1"), waiting]
    report = explain(written(tmp_path, first, batch(1, "completed", "send 1->0", "recv 1<-0"), [waiting]))
    assert "Ranks 0 and 2 wait for rank 1 in collective 4, all_reduce (float32 [4])" in report
    assert "coalesced" not in report


def test_a_rank_waits_in_a_batch_of_messages_that_is_not_done(tmp_path):
    before = batch(1, "completed", "send 0->1", "recv 0<-1")
    stuck = [*before, *batch(4, "started", "recv 0<-2")]
    report = explain(written(tmp_path, stuck, batch(1, "completed", "send 1->0", "recv 1<-0"), []))
    assert "Rank 0 waits for rank 2 in recv from rank 2" in report


def test_a_batch_of_which_only_the_last_entry_is_known_is_a_call_itself(tmp_path):
    stuck = entry(2, "coalesced", "started", sizes=())
    report = explain(written(tmp_path, [entry(1, "all_reduce"), stuck], [entry(1, "all_reduce")], [stuck]))
    assert "Ranks 0 and 2 wait for rank 1 in collective 2, coalesced" in report


def test_a_rank_without_a_dump_is_named(tmp_path):
    waiting = [entry(1, "all_reduce"), entry(2, "all_reduce", "started")]
    report = explain(written(tmp_path, waiting, waiting))
    assert "There is none of rank 2, which may be gone or stuck elsewhere." in report


def test_a_rank_that_has_not_come_is_named_in_its_group(tmp_path):
    pair = ("5", "tp")
    ahead = [entry(1, "all_reduce"), entry(2, "broadcast", "started", group=pair)]
    report = explain(written(tmp_path, ahead, [entry(1, "all_reduce")], [entry(1, "all_reduce")]))
    assert "Rank 0 waits for rank 2 in collective 2, broadcast (float32 [4], group [0, 2])" in report


def test_messages_that_wait_for_each_other_are_named(tmp_path):
    report = explain(written(tmp_path, [entry(1, "send 0->1", "started")], [entry(1, "send 1->0", "started")], []))
    assert "Ranks 0 and 1 wait for each other: rank 0 waits for rank 1 in send to rank 1" in report
    assert report.endswith(str(cures.SEND_FIRST))


def test_a_job_that_waits_for_nothing_says_so(tmp_path):
    assert "No call is unfinished" in explain(written(tmp_path, [entry(1, "all_reduce")], [entry(1, "all_reduce")]))


STACK = """Process 71: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 71 (active): "MainThread"
    forward (site-packages/torch/nn/modules/linear.py:134)
    load (/ada/data.py:7)
    main (/ada/train.py:30)
Thread 80 (idle): "Thread-1"
    wait (threading.py:331)
"""


def test_a_stack_of_py_spy_says_where_a_rank_is(tmp_path):
    dumps = written(tmp_path, [entry(1, "all_reduce", "started")], [], [entry(1, "all_reduce", "started")])
    (tmp_path / "stack1.txt").write_text(STACK)
    report = explain([*dumps, tmp_path / "stack1.txt"])
    assert "Ranks 0 and 2 wait for rank 1 in collective 1" in report
    assert "rank 1 is at train.py, line 30" in report or "rank 1 is at data.py, line 7" in report


IN_TORCH = """Process 71: python -u train.py

Thread 71 (idle): "MainThread"
    _wait (torch/distributed/distributed_c10d.py:60)
    {op} (torch/distributed/distributed_c10d.py:3252)
    _exception_logger.<locals>.wrapper (torch/distributed/c10d_logger.py:83)
    train (train.py:{line})
    <module> (train.py:12)
"""


def test_stacks_alone_say_in_which_collective_each_rank_is(tmp_path):
    for rank, (op, line) in enumerate((("all_reduce", 7), ("recv", 11))):
        (tmp_path / f"stack{rank}.txt").write_text(IN_TORCH.format(op=op, line=line))
    report = explain(sorted(tmp_path.iterdir()))
    assert report.splitlines() == [
        "Of ranks 0 and 1 there are dumps or stacks.",
        "By their stacks, rank 0 waits in all_reduce, rank 1 waits in recv.",
        "Rank 0 stopped in all_reduce",
        "  train.py, line 12",
        "  train.py, line 7, in train",
        "Rank 1 stopped in recv",
        "  train.py, line 12",
        "  train.py, line 11, in train",
        str(cures.SAME_CALLS),
    ]


def test_stacks_alone_name_the_rank_that_is_in_no_collective(tmp_path):
    for rank in (0, 1, 3):
        (tmp_path / f"stack{rank}.txt").write_text(IN_TORCH.format(op="all_reduce", line=7))
    (tmp_path / "stack2.txt").write_text(STACK)
    first, sentence, *_, cure = explain(sorted(tmp_path.iterdir())).splitlines()
    assert first == "Of ranks 0 to 3 there are dumps or stacks."
    assert sentence == "By their stacks, ranks 0, 1 and 3 wait in all_reduce, rank 2 is in no collective."
    assert cure.startswith("What to do: look at the line where that rank is")


def test_stacks_in_one_collective_accuse_none(tmp_path):
    for rank in range(2):
        (tmp_path / f"stack{rank}.txt").write_text(IN_TORCH.format(op="all_reduce", line=7))
    assert "By their stacks" not in explain(sorted(tmp_path.iterdir()))


class Evil:
    def __reduce__(self):
        return print, ("run",)


@pytest.mark.parametrize(
    ("name", "body", "why"),
    [
        ("rank_0", pickle.dumps(Evil()), r"it holds a builtins\.print, which no dump has"),
        ("rank_0", pickle.dumps({"entries": [{"record_id": 1}]}), "not a dump of torch's flight recorder"),
        ("rank_0", b"{'entries'", "not a dump of torch's flight recorder"),
        ("rank_0", b"hello", r"neither a dump .* nor a stack of `py-spy dump`"),
        ("trace", b"", "its name must end in the rank's number"),
    ],
)
def test_what_is_no_dump_is_refused_and_never_run(tmp_path, capsys, name, body, why):
    (tmp_path / name).write_bytes(body)
    with pytest.raises(ValueError, match=why):
        explain([tmp_path / name])
    assert main(["explain", str(tmp_path / name)]) == 1
    said = capsys.readouterr()
    assert not said.out and said.err


def test_missing_files_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("rank_0", "dump*"):  # a shell leaves a pattern that matches nothing as it is
        assert main(["explain", name]) == 1 and f"no such file: {name}\n" in capsys.readouterr().err
    with pytest.raises(ValueError, match="one for each rank"):
        explain([])


def waits_for_rank_1(folder):
    """Write real dumps of Gloo while rank 0 waits for rank 1."""
    import torch
    import torch.distributed as dist
    from torch._C import _distributed_c10d

    rank = dist.get_rank()
    dist.all_reduce(torch.ones(2))
    dist.barrier()
    work = dist.all_reduce(torch.ones(3, 2), async_op=True) if rank == 0 else None
    dump = b""
    while dump.count(b'"retired": true') < 2 and dump.count(b'"retired":true') < 2:  # torch notes it after the call
        dump = _distributed_c10d._dump_fr_trace_json()
    with open(f"{folder}/dump{rank}.json", "wb") as file:
        file.write(dump)
    store = dist.distributed_c10d._get_default_store()
    store.set(f"written by {rank}", "1")
    store.wait(["written by 0", "written by 1"])
    (work or dist.all_reduce(torch.ones(3, 2), async_op=True)).wait()


def test_real_dumps_are_explained_by_the_command(tmp_path):
    ws.run(waits_for_rank_1, str(tmp_path), world_size=2, echo=False)
    command = [sys.executable, "-m", "worldsize", "explain", "dump0.json", "dump1.json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Rank 0 waits for rank 1 in collective 3, all_reduce (float32 [3, 2]);" in done.stdout
