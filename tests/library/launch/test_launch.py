import contextlib
import ctypes
import dataclasses
import inspect
import linecache
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from launching import failed, run, values

import worldsize as ws
from worldsize import source
from worldsize.emulate.launcher.server import Emulation
from worldsize.emulate.launcher.simulator import Unanswered
from worldsize.launch.display import live
from worldsize.launch.display.output import KEPT_OUTPUT
from worldsize.launch.display.view import Plain, View
from worldsize.launch.launcher import forked, forkserver, monitor
from worldsize.launch.launcher.spec import Spec
from worldsize.launch.launcher.worker import Worker
from worldsize.launch.launcher.worker_group import WorkerGroup
from worldsize.launch.protocol.events import SentEvent
from worldsize.launch.protocol.messages import Events, Joined
from worldsize.launch.protocol.quota import Quota
from worldsize.launch.reports.result import End
from worldsize.launch.runner import launch
from worldsize.message import pack, pack_and_send

# what comes back


def test_ranks_are_processes_in_one_group_with_values_in_order():
    def on_rank():
        total = torch.tensor([1.0 + dist.get_rank()])
        dist.all_reduce(total)
        return dist.get_rank(), dist.get_world_size(), os.getpid(), total

    run = ws.run(on_rank, world_size=3, echo=False)
    ranks, sizes, pids, totals = zip(*run.values, strict=True)
    assert (ranks, sizes) == ((0, 1, 2), (3, 3, 3))
    assert len({*pids, os.getpid()}) == 4
    assert [total.item() for total in totals] == [6, 6, 6]
    assert (run.backend, run.output) == ("gloo", ["", "", ""])
    assert run.duration_s > 0 and repr(run).startswith("Run(3 ranks on gloo, ")


@pytest.mark.gpu
def test_ranks_with_a_gpu_each_join_on_nccl():
    if torch.cuda.device_count() < 2:
        pytest.skip(f"needs two CUDA devices; this machine has {torch.cuda.device_count()}")

    def on_rank():
        total = torch.ones(4, device="cuda") * (1 + dist.get_rank())
        dist.all_reduce(total)
        return total, torch.cuda.current_device()

    run = ws.run(on_rank, world_size=2, echo=False)
    assert run.backend == "nccl"
    assert [(total.tolist(), device) for total, device in run.values] == [([3.0] * 4, 0), ([3.0] * 4, 1)]


def test_arguments_go_to_all_ranks_and_each_adds_one_rank_s_own():
    def on_rank(*args):
        return list(args)

    shards = [(torch.ones(2), "left"), (torch.zeros(2), "right")]
    first, second = values(on_rank, "both", each=shards)
    assert (first[0], first[2], second[0], second[2]) == ("both", "left", "both", "right")
    assert (first[1].tolist(), second[1].tolist()) == ([1, 1], [0, 0])


def test_what_all_ranks_share_and_what_is_a_rank_s_own_stay_one_object():
    shared, seen = [0], []

    def note(rank):
        seen.append(rank)

    def on_rank(common, write, own, rank):
        write(rank)
        return common is own, seen

    each = [(note, shared, 0), (note, [1], 1), (note, shared, 2)]
    assert values(on_rank, shared, world_size=3, each=each) == [(True, [0]), (False, [1]), (True, [2])]


def test_lambdas_closures_and_bound_methods_are_carried():
    factor = 3

    class Model:
        def __init__(self, size):
            self.size = size

        def scaled(self):
            return self.size * factor

    assert values(lambda x: x * factor, 2) == [6, 6]
    assert values(Model(5).scaled) == [15, 15]


def test_a_function_of_a_module_is_found_where_the_launcher_finds_it(tmp_path, monkeypatch):
    (tmp_path / "step_of_lesson.py").write_text("import os\ndef where():\n    return os.getcwd()\n")
    values(os.getpid, world_size=1)  # the forkserver is warm from here on, in another folder
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    import step_of_lesson  # pyright: ignore[reportMissingImports]

    assert values(step_of_lesson.where) == [str(tmp_path)] * 2


def test_ranks_see_the_environment_of_now_and_what_env_adds(monkeypatch):
    values(os.getpid, world_size=1)  # the forkserver is warm from here on
    monkeypatch.setenv("LESSON", "3")
    monkeypatch.setenv("STEPS", "10")

    def on_rank():
        return [os.environ.get(name) for name in ("LESSON", "STEPS", "RANK", "WORLD_SIZE")]

    assert values(on_rank, env={"STEPS": "20"}) == [["3", "20", "0", "2"], ["3", "20", "1", "2"]]


def test_tensors_larger_than_any_buffer_go_and_come():
    shards = [(torch.full((3_000_000,), float(rank)),) for rank in range(2)]
    assert [(value.mean().item(), value.numel()) for value in values(lambda x: x + 1, each=shards)] == [
        (1.0, 3_000_000),
        (2.0, 3_000_000),
    ]


@pytest.mark.parametrize("draw", [lambda: random.random(), lambda: float(np.random.rand())], ids=["random", "numpy"])
def test_ranks_draw_different_random_numbers_in_every_run(draw):
    assert len({number for _ in range(2) for number in values(draw)}) == 4


def test_a_variable_that_was_deleted_is_gone_on_ranks_too(monkeypatch):
    monkeypatch.setenv("LESSON", "3")
    server = forkserver.Forkserver()
    try:
        server.wait_until_warm()
        monkeypatch.delenv("LESSON")
        assert values(lambda: os.environ.get("LESSON"), forkserver=server) == [None, None]
    finally:
        server.close()


def remember_cell(number, text):
    """A notebook cell of this text, run: the names that it defines."""
    name, names = f"/tmp/ipykernel_1/{number}.py", {}
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    exec(compile(text, name, "exec"), names)
    return names


def test_of_the_cells_so_far_only_those_with_carried_functions_go_to_ranks(monkeypatch):
    monkeypatch.setattr(linecache, "cache", dict(linecache.cache))
    for number in range(10):
        remember_cell(number, f"# {'x' * 1_000_000}")
    inner = remember_cell(10, "def divide(by):\n    return 1 / by\n")
    text = "def on_rank():\n    return divide(0)\n"
    outer = remember_cell(11, text)
    outer["divide"] = inner["divide"]
    report = str(failed(outer["on_rank"], world_size=1))
    assert "    return divide(0)" in report and "    return 1 / by" in report


def test_a_job_that_cannot_be_read_is_reported(monkeypatch):
    monkeypatch.setattr(source, "_MAX_SOURCES", 1 << 30)
    monkeypatch.setattr(linecache, "cache", dict(linecache.cache))
    cell = remember_cell(1, f"# {'x' * 9_000_000}\ndef on_rank():\n    pass\n")
    failed(cell["on_rank"], world_size=2, match=r"ValueError: the header has \d+ bytes; the limit is 8388608")


def test_run_shows_twelve_options():
    fn, args, *options = inspect.signature(ws.run).parameters.values()
    assert (fn.name, args.kind, len(options)) == ("fn", args.VAR_POSITIONAL, 12)
    assert {one.name for one in options} - {"audit"} < {one.name for one in dataclasses.fields(Spec)}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (Unanswered([1]), "^Rank 1 of 2 failed with broken message"),
        (MemoryError(), "what the ranks did does not fit in memory"),
    ],
)
def test_a_record_without_a_timeline_is_a_failure_of_the_ranks(monkeypatch, error, said):
    monkeypatch.setattr(Emulation, "timeline", lambda _: (_ for _ in ()).throw(error))
    failed(lambda: None, world_size=2, cluster="dgx-h100", match=said)


# output and timeline


def test_output_is_shown_as_it_comes_with_its_rank_and_kept(capsys):
    def on_rank():
        print("hello from", dist.get_rank())
        print("to stderr", file=sys.stderr)
        os.system("echo from a child")
        print("no newline", end="")

    run = ws.run(on_rank, world_size=2)
    assert run.output == [f"hello from {rank}\nto stderr\nfrom a child\nno newline" for rank in range(2)]
    shown, errors = capsys.readouterr()
    expected = [
        f"[rank {rank}] {line}"
        for rank in range(2)
        for line in (f"hello from {rank}", "to stderr", "from a child", "no newline")
    ]
    first, *lines = shown.splitlines()
    assert first == "2 ranks on Gloo: this machine has no GPU" or torch.cuda.is_available()
    assert sorted(lines) == sorted(expected)
    assert errors == ""


def test_a_view_that_fails_does_not_disturb_the_run(monkeypatch):
    for error in (BrokenPipeError(), OSError(28, "no space left"), UnicodeEncodeError("ascii", "é", 0, 1, "no")):
        view = Plain()
        monkeypatch.setattr(view, "begin", Mock(side_effect=error))
        monkeypatch.setattr(view, "output", Mock(side_effect=error))
        monkeypatch.setattr(live, "choose_view", lambda _, view=view: view)
        run = ws.run(lambda: print("said") or dist.get_rank(), world_size=2)
        assert (run.values, run.output) == ([0, 1], ["said\n"] * 2)


def test_nothing_is_shown_without_echo(capsys):
    assert ws.run(lambda: print("quiet"), world_size=1, echo=False).output == ["quiet\n"]
    assert capsys.readouterr() == ("", "")


def test_output_before_a_failure_is_in_the_error():
    def on_rank():
        print("step 7", end="")
        raise ValueError

    assert failed(on_rank).output == ["step 7", "step 7"]


def test_of_much_output_the_end_is_kept():
    def on_rank():
        print("first")
        print("x" * KEPT_OUTPUT)
        print("last")

    (text,) = ws.run(on_rank, world_size=1, echo=False).output
    assert len(text) == KEPT_OUTPUT and text.endswith("x\nlast\n") and text.startswith("x")


def test_no_letter_is_torn_where_output_is_read_in_pieces(monkeypatch, capsys):
    monkeypatch.setattr(forked, "_OUTPUT_CHUNK", 3)
    assert ws.run(lambda: print("aéé" * 50), world_size=1).output == ["aéé" * 50 + "\n"]
    assert capsys.readouterr().out.endswith("\n[rank 0] " + "aéé" * 50 + "\n")


def test_spans_become_the_timeline_of_all_ranks():
    def on_rank():
        for step in range(2):
            with ws.span(f"step {step}", kind="forward"), ws.span("matmul"):
                torch.ones(50, 50) @ torch.ones(50, 50)

    run = ws.run(on_rank, world_size=2, echo=False)
    assert run.timeline.num_ranks == 2
    for rank in range(2):
        events = run.timeline.of(rank)
        assert [(event.name, event.kind, event.stream) for event in events] == [
            ("step 0", "forward", "main"),
            ("matmul", "compute", "main"),
            ("step 1", "forward", "main"),
            ("matmul", "compute", "main"),
        ]
        assert all(0 < event.start_s <= event.end_s <= run.duration_s for event in events)


def test_spans_of_a_long_loop_arrive_and_the_latest_are_kept():
    def on_rank():
        for step in range(60_000):
            with ws.span(f"step {step} of a loop", kind="communication"):
                pass

    events = ws.run(on_rank, world_size=1, echo=False).timeline.events
    assert len(events) == 50_000 and events[-1].name == "step 59999 of a loop"


# failures


def raises_and_cleans_up():
    def on_rank():
        try:
            if dist.get_rank() == 1:
                raise KeyError("weights")
            dist.all_reduce(torch.ones(1))
        finally:
            dist.destroy_process_group()

    return on_rank


def exits():
    def on_rank():
        if dist.get_rank() == 1:
            sys.exit(3)
        dist.barrier()

    return on_rank


def is_killed():
    def on_rank():
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()

    return on_rank


def crashes():
    def on_rank():
        if dist.get_rank() == 1:
            ctypes.string_at(0)
        dist.barrier()

    return on_rank


def leaves():
    def on_rank():
        if dist.get_rank() == 1:
            os._exit(4)
        dist.barrier()

    return on_rank


def returns_a_set():
    return lambda: {dist.get_rank()} if dist.get_rank() == 1 else None


@pytest.mark.parametrize(
    ("make", "headline", "quoted"),
    [
        (raises_and_cleans_up, "KeyError: 'weights'", 'raise KeyError("weights")'),
        (exits, r"sys.exit\(3\): the function ended the process", "sys.exit(3)"),
        (is_killed, "SIGKILL: something killed it; out of memory", None),
        (crashes, "SIGSEGV: native code accessed invalid memory", "ctypes.string_at(0)"),
        (leaves, "exit code 4: the process ended without returning", None),
        (returns_a_set, "ValueError: a rank returned a set, which cannot leave it", None),
    ],
)
def test_the_report_names_the_culprit_and_quotes_its_line(make, headline, quoted):
    error = failed(make(), world_size=3, match=rf"^Rank 1 of 3 failed with {headline}")
    lines = str(error).splitlines()
    assert error.failures[0].rank == 1
    assert [line.strip() for line in lines[2:3]] == [quoted] if quoted else "  " not in str(error)
    if quoted:
        assert "test_launch.py, line " in lines[1] and lines[1].endswith(", in on_rank")
    assert "launch/rank.py" not in str(error) and "site-packages" not in str(error)


def test_victims_are_named_in_one_sentence_and_never_first(monkeypatch):
    monkeypatch.setattr(monitor, "_GRACE_S", 20.0)  # until the others have noticed, on however busy a machine
    killed = is_killed()

    def on_rank():
        dist.barrier()  # until all are connected: one that still connects would wait for the dead rank
        killed()

    error = failed(on_rank, world_size=3)
    assert "Ranks 0 and 2 lost the connection because of it." in str(error).splitlines()
    assert [one.is_victim for one in error.failures] == [False, True, True]


def test_ranks_that_fail_alike_are_told_once():
    report = str(failed(lambda: undefined_name, world_size=3))  # noqa: F821  # pyright: ignore
    assert report.count("name 'undefined_name' is not defined") == 1
    assert "failed in the same way." in report


def test_a_notebook_prints_the_report_alone():
    assert failed(exits())._render_traceback_()[0].startswith("RankFailed: Rank 1 of 2 failed with sys.exit(3)")


def test_a_rank_that_hides_its_failure_from_print_is_still_told():
    def on_rank():
        class Broken(Exception):
            def __str__(self):
                raise RuntimeError

        sys.stdout.close()
        raise Broken

    failed(on_rank, match="Broken: an exception that cannot be printed")


def test_an_endless_message_and_an_endless_recursion_are_cut():
    def talks():
        raise ValueError("x" * 9_000_000)

    def recurses():
        return recurses()

    assert 3000 < len(str(failed(talks, world_size=1))) < 6000
    report = str(failed(recurses, world_size=1))
    assert "RecursionError" in report and len(report.splitlines()) < 50


def test_an_error_in_a_library_quotes_the_line_that_called_it():
    report = str(failed(lambda: torch.nn.Linear(2, 3)(torch.ones(5)), world_size=1))
    assert "torch.nn.Linear(2, 3)(torch.ones(5))" in report and "in forward" not in report


def test_bytes_that_are_no_message_fail_the_run_and_not_the_launcher():
    def on_rank():
        for fd in range(3, 64):
            try:
                if stat.S_ISSOCK(os.fstat(fd).st_mode):
                    with socket.socket(fileno=os.dup(fd)) as sock:
                        if sock.family == socket.AF_UNIX:
                            sock.sendall(b"\xff" * 64)
            except OSError:
                pass

    failed(on_rank, world_size=1, match="broken result: what the rank sent back cannot be read")


def test_a_rank_that_talks_without_end_is_ended_all_the_same():
    def on_rank():
        for fd in range(3, 64):
            with contextlib.suppress(OSError):
                if stat.S_ISSOCK(os.fstat(fd).st_mode):
                    sock = socket.socket(fileno=os.dup(fd))
                    while sock.family == socket.AF_UNIX:
                        pack_and_send(sock, Joined("gloo"))

    start_s = time.monotonic()
    failed(on_rank, world_size=1, timeout_s=1, error=ws.RunTimeout)
    assert time.monotonic() - start_s < 20


def test_messages_of_no_events_cost_nothing_beside_many_events():
    ours, theirs = socket.socketpair()
    worker = Worker(rank=0, control=ours, max_value_bytes=0, start_s=0.0)
    event = SentEvent("communication", "communication", "send", 1.0, 2.0)
    for _ in range(60):
        message = Events([event] * 2000)
        worker.take(message, worker._content_of(message, b""))
    assert len(list(worker.events)) == 100_000, "the last ones are kept"
    data = pack(Events([])) * 1000
    start_s = time.process_time()
    with theirs, contextlib.closing(worker):
        for _ in range(5):
            theirs.sendall(data)
            for message, content in worker.receive():
                worker.take(message, content)
    assert time.process_time() - start_s < 2


def test_the_clock_is_looked_at_between_ranks_that_send_without_end(monkeypatch):
    group = Idle(View(), Quota())
    heard = []
    for number in range(3):
        selected = Mock(data=lambda number=number: heard.append(number) or time.sleep(0.02))
        group.ready.append((selected, 1))
    group.turn(time.monotonic() + 0.01)
    assert heard == [0]


class Idle(WorkerGroup):
    """Ranks without processes: what is `ready` is heard."""

    headline = ""

    def __init__(self, *args):
        super().__init__(*args)
        self.ready = []
        self.selector.close()
        self.selector = Mock(select=lambda _: self.ready)

    def end_ranks(self):
        """End nothing."""


def test_a_value_beyond_the_limit_fails_the_run():
    words = "the message has .* bytes; the limit is 1000"
    failed(lambda: torch.zeros(1000), world_size=1, quota=Quota(value_bytes=1000), match=words)


def test_a_rank_that_returns_early_leaves_the_others_hanging_and_the_report_says_where():
    def on_rank():
        if dist.get_rank() == 0:
            return
        dist.barrier()

    error = failed(on_rank, world_size=3, timeout_s=5, error=ws.RunTimeout)
    lines = str(error).splitlines()
    assert lines[:3] == [
        "The ranks did not finish within 5 s.",
        "Ranks 1 and 2 wait for rank 0 in collective 1, barrier; rank 0 has returned.",
        "Ranks 1 and 2 stopped in collective 1, barrier",
    ]
    assert "test_launch.py" in lines[3] and lines[4].strip() == "dist.barrier()"
    assert isinstance(error, ws.RunError) and not isinstance(error, ws.RankFailed)
    assert [one.rank for one in error.failures] == [0, 1, 2]


def test_a_run_in_which_nothing_moves_is_ended_long_before_its_time():
    def on_rank():
        if dist.get_rank() == 1:
            dist.recv(torch.ones(1), 0)
        dist.barrier()

    error = failed(on_rank, timeout_s=600, stalled_s=0.5, error=ws.RunTimeout)
    assert error.ending.end is End.STALLED
    assert str(error).startswith("No progress for 0.5 s: every unfinished rank is waiting in a call.\nRanks 0 and 1")


def test_a_run_in_which_one_rank_works_while_the_others_wait_goes_on():
    def on_rank():
        dist.barrier()
        if dist.get_rank() == 0:
            time.sleep(1.5)
        dist.barrier()
        return True

    assert values(on_rank, stalled_s=0.5) == [True, True]


def test_a_rank_that_computes_for_ever_is_ended():
    def on_rank():
        while True:
            pass

    failed(on_rank, world_size=1, timeout_s=4, error=ws.RunTimeout, match=", in on_rank")


def test_a_rank_that_prints_for_ever_is_ended():
    def on_rank():
        while True:
            print("again")

    assert len(failed(on_rank, world_size=1, timeout_s=0.5, error=ws.RunTimeout).output[0]) <= KEPT_OUTPUT


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"world_size": 0}, "world_size must be a whole number, 1 or more; got 0"),
        ({"world_size": -1}, "got -1"),
        ({"world_size": True}, "got True"),
        ({"world_size": 2.5}, "got 2.5"),
        ({"world_size": "2"}, "got '2'"),
        ({"each": [(1,)]}, "each must hold one tuple of arguments per rank; got 1 for 2 ranks"),
        ({"each": []}, "got 0 for 2 ranks"),
        ({"each": [1, 2]}, r"for one argument per rank, write \[\(a0,\), \(a1,\)\]"),
        ({"each": torch.ones(2, 2)}, "for one argument per rank, write"),
        ({"each": [torch.ones(3), torch.ones(3)]}, "for one argument per rank, write"),
        ({"each": ["ab", "cd"]}, "for one argument per rank, write"),
        ({"world_size": 10**6}, r"1000000 ranks need at least 15625.0 GB .* start at most \d+"),
        ({"launcher": "slurm"}, "launcher 'slurm' is not known; use one of warm, torchrun"),
        ({"backend": "mpi"}, "backend 'mpi' is not known; use one of auto, gloo, nccl"),
        ({"timeout_s": 0}, "timeout_s must be a number of seconds above 0.*got 0"),
        ({"timeout_s": -1}, "got -1"),
        ({"timeout_s": float("nan")}, "got nan"),
        ({"timeout_s": float("inf")}, "got inf"),
        ({"timeout_s": "60"}, "got '60'"),
        ({"timeout_s": True}, "got True"),
        ({"stalled_s": "2"}, "stalled_s must be a number of seconds above 0, or None; got '2'"),
        ({"stalled_s": 0}, "stalled_s must be .* got 0"),
        ({"stalled_s": float("nan")}, "stalled_s must be .* got nan"),
        ({"cluster": "dgx-h100", "faults": ["x"]}, "'x' is not a fault"),
        ({"world_size": np.int64(0)}, r"world_size must be .* got .*0"),
        ({"world_size": np.float64(2)}, r"world_size must be .* got .*2\.0"),
        ({"env": {"STEPS": 3}}, "env must map names to strings; got 'STEPS': 3"),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused_before_anything_starts(monkeypatch, kwargs, words):
    monkeypatch.setattr(forkserver, "shared", lambda: pytest.fail("a process was started"))
    with pytest.raises(ValueError, match=words):
        run(print, **{"world_size": 2, **kwargs})


def test_world_size_may_be_numpys_integer():
    assert values(dist.get_world_size, world_size=np.int64(2)) == [2, 2]


def test_nccl_without_enough_gpus_is_refused_before_a_rank_starts():
    too_many = torch.cuda.device_count() + 1
    with pytest.raises(ValueError, match=rf"NCCL needs a GPU for every rank: {too_many} ranks, and this machine has"):
        ws.run(print, world_size=too_many, backend="nccl")


@pytest.mark.parametrize(
    ("fn", "args", "words"),
    [
        (42, (), "run takes a function; got a int"),
        (print, (threading.Lock(),), "print and its arguments cannot be carried to another process"),
        (print, ((i for i in range(3)),), "running generators must be made inside the function"),
    ],
)
def test_what_cannot_be_carried_is_refused_before_anything_starts(monkeypatch, fn, args, words):
    monkeypatch.setattr(forkserver, "shared", lambda: pytest.fail("a process was started"))
    with pytest.raises(ValueError, match=words):
        ws.run(fn, *args, world_size=2)


def test_windows_is_told_where_to_go():
    code = "import sys, worldsize; sys.platform = 'win32'; worldsize.run"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith("ImportError: worldsize starts its ranks as forks")
    assert done.stderr.endswith("work inside WSL\n")


def test_a_function_runs_under_torchrun_as_it_does_warm():
    def on_rank(offset, shard):
        total = shard.clone()
        dist.all_reduce(total)
        if dist.get_rank() == 1 and offset == 0:
            raise ValueError("no offset")
        return total + offset, os.environ["TORCHELASTIC_RUN_ID"], os.environ["LESSON"]

    each = [(torch.ones(3),), (torch.full((3,), 2.0),)]
    done = run(on_rank, 10, world_size=2, each=each, launcher="torchrun", env={"LESSON": "3"}, echo=False)
    totals, ids, lessons = zip(*done.values, strict=True)
    assert [total.tolist() for total in totals] == [[13.0] * 3] * 2
    assert len(set(ids)) == 1 and lessons == ("3", "3")
    assert (done.states, len(done.durations_s), done.backend) == (["done", "done"], 2, "gloo")
    report = str(failed(on_rank, 0, each=each, launcher="torchrun", env={"LESSON": "3"}))
    assert report.startswith("Rank 1 of 2 failed with ValueError: no offset\n  test_launch.py, line ")


def test_more_ranks_than_the_sockets_hold_messages_for(monkeypatch):
    start = forkserver._start_here

    def start_with_small_buffers(fd):
        with socket.socket(fileno=os.dup(fd)) as theirs:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel's least, some four messages
        return start(fd)

    monkeypatch.setattr(forkserver, "_start_here", start_with_small_buffers)
    monkeypatch.setattr(forked, "_FORKS_AT_ONCE", 2)
    server = forkserver.Forkserver()
    server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    try:
        server.wait_until_warm()
        run = launch(Spec(fn=dist.get_rank, world_size=24, forkserver=server, echo=False, timeout_s=120))
    finally:
        server.close()
    assert run.values == list(range(24))
