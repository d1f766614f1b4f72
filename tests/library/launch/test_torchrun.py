import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import nbformat
import psutil
import pytest
from nbclient import NotebookClient
from needs import give_up
from processes import STAY, are_gone, told_pids

import worldsize as ws
from worldsize import framing
from worldsize.launch import command
from worldsize.launch.display.view import View
from worldsize.launch.launcher import elastic
from worldsize.launch.launcher.flags import Flags
from worldsize.launch.protocol.call_log import CallLog
from worldsize.launch.protocol.messages import Hello, RunScript
from worldsize.launch.protocol.process import AGENT_PID, SOCKET
from worldsize.message import pack, pack_and_send, read
from worldsize.paper import torchrun

SCRIPT = """
import os, signal, sys
import torch, torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(total)
print("sum", total.item(), "with", *sys.argv[1:], os.environ["LESSON"], os.path.basename(__file__), __name__)
if dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.barrier()
"""


def test_a_script_runs_in_one_group_and_the_report_names_the_rank_that_was_killed(tmp_path, capsys):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    with pytest.raises(ws.RankFailed, match=r"^Rank 1 of 2 failed with SIGKILL: something") as caught:
        torchrun(script, "--steps", "20", nproc_per_node=2, max_restarts=0, env={"LESSON": "3"}, timeout_s=90)
    assert caught.value.failures[0].rank == 1
    assert caught.value.output == ["sum 3.0 with --steps 20 3 train.py __main__\n"] * 2
    assert set(capsys.readouterr().out.splitlines()[1:]) == {
        f"[rank {rank}] sum 3.0 with --steps 20 3 train.py __main__" for rank in range(2)
    }
    assert agents() == []


def test_an_agent_that_is_slow_to_start_is_not_taken_for_a_hang(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("print('here')")
    assert torchrun(script, nproc_per_node=2, stalled_s=0.1, echo=False).output == ["here\n"] * 2


def agents():
    """The processes of torchrun that this one has started."""
    running = psutil.Process().children(recursive=True)
    return [process.pid for process in running if "worldsize.launch.worker.agent" in process.cmdline()]


def run_notebook(folder, *cells):
    """The outputs of each cell, from a kernel of its own; cells go on after an error."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client = NotebookClient(
        notebook,
        timeout=120,
        allow_errors=True,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    return [cell["outputs"] for cell in notebook.cells]


def printed(outputs, name="stdout"):
    return "".join(output["text"] for output in outputs if output.get("name") == name)


HELLO = """\
%%torchrun --nproc-per-node 2 --max-restarts=0 -- --lr 0.1
import os, sys
from lesson import greeting
print(greeting, os.environ["LOCAL_RANK"], *sys.argv[1:])
"""
BLAMES_THE_RIGHT_RANK = """\
%%torchrun --nproc_per_node=2
import torch.distributed as dist
dist.init_process_group("gloo")
try:
    if dist.get_rank() == 1:
        raise KeyError("weights")
    dist.barrier()
finally:
    dist.destroy_process_group()
"""


def test_a_torchrun_cell_shows_each_rank_s_lines_and_a_failure_as_its_report(tmp_path):
    (tmp_path / "lesson.py").write_text("greeting = 'hello from'\n")
    loaded, hello, failed = run_notebook(tmp_path, "%load_ext worldsize", HELLO, BLAMES_THE_RIGHT_RANK)
    assert loaded == []
    lines = ["[rank 0] hello from 0 --lr 0.1", "[rank 1] hello from 1 --lr 0.1"]
    assert sorted(printed(hello).splitlines()) == ["2 ranks under torchrun", *lines]
    assert hello[-1]["data"]["text/plain"].startswith("Run(2 ranks on torchrun, ")
    assert {output["output_type"] for output in hello} == {"stream", "execute_result"}
    error = failed[-1]
    assert error["ename"] == "RankFailed"
    (report,) = error["traceback"]
    culprit = ["RankFailed: Rank 1 of 2 failed with KeyError: 'weights'", "  the cell, line 6"]
    assert report.splitlines()[:3] == [*culprit, '    raise KeyError("weights")']
    victim = report.splitlines()[3:]  # how far rank 0 came, and could tell, before the agent ended it too
    assert set(victim) <= {
        "Rank 0 lost the connection because of it.",
        "Rank 0, last call: collective 1, barrier, broken off",
        "Rank 0, last call: collective 1, barrier, waiting",
    }
    assert not any(printed(outputs, "stderr") for outputs in (loaded, hello, failed))


RUN_IN_A_CELL = """\
import torch.distributed as dist
import worldsize as ws

def on_rank(offset):
    print("rank", dist.get_rank())
    return dist.get_rank() + offset

ws.run(on_rank, 10, world_size=2).values
"""
FAILS_IN_A_CELL = """\
def on_rank():
    if dist.get_rank() == 1:
        raise ValueError("no data")
    dist.barrier()

ws.run(on_rank, world_size=2)
"""


def test_a_function_of_a_cell_runs_on_ranks_and_a_failure_quotes_the_cell(tmp_path):
    ran, failed = run_notebook(tmp_path, RUN_IN_A_CELL, FAILS_IN_A_CELL)
    assert sorted(printed(ran).splitlines()) == [
        "2 ranks on Gloo: this machine has no GPU",
        "[rank 0] rank 0",
        "[rank 1] rank 1",
    ]
    assert ran[-1]["data"]["text/plain"] == "[10, 11]"
    assert failed[-1]["traceback"] == [
        "RankFailed: Rank 1 of 2 failed with ValueError: no data\n"
        "  the cell, line 3, in on_rank\n"
        '    raise ValueError("no data")\n'
        "Rank 0, last call: collective 1, barrier, waiting"
    ]
    assert not printed(ran, "stderr") + printed(failed, "stderr")


LOSES_ITS_AGENT = f"""
import os, pathlib, signal, sys, time

ready = pathlib.Path(sys.argv[1])
if os.environ["RANK"] == "0":
    while not ready.exists():
        time.sleep(0.01)
    raise ValueError("a rank that may be restarted")
signal.signal(signal.SIGTERM, lambda *_: os.kill(int(os.environ["{AGENT_PID}"]), signal.SIGKILL))
ready.touch()
while True:
    signal.pause()
"""


def test_an_agent_that_fails_while_it_restarts_ranks_is_named_beside_the_rank(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(LOSES_ITS_AGENT)
    with pytest.raises(ws.RankFailed) as caught:
        torchrun(script, tmp_path / "ready", nproc_per_node=2, max_restarts=1, echo=False, timeout_s=60)
    said = str(caught.value)
    assert "Rank 0 of 2 failed with ValueError: a rank that may be restarted" in said
    assert said.endswith("torchrun's agent failed, too, after that: with SIGKILL")


LAUNCHER = """
import signal, sys
from worldsize import torchrun

signal.signal(signal.SIGINT, signal.default_int_handler)  # tests that run in the background are told to ignore it
torchrun(sys.argv[1], sys.argv[2], nproc_per_node=2)
"""


@pytest.mark.parametrize(
    ("signal_number", "receiver", "error"),
    [
        (signal.SIGKILL, "launcher", ""),
        (signal.SIGKILL, "agent", "RankFailed: torchrun failed and named no rank"),
        (signal.SIGINT, "launcher", "KeyboardInterrupt"),
    ],
)
def test_launcher_agent_and_ranks_end_together(tmp_path, signal_number, receiver, error):
    script = tmp_path / "stay.py"
    script.write_text(STAY + "import os, sys\nstay(sys.argv[1], os.environ['RANK'])\n")
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(script), str(tmp_path)],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        pids = told_pids(tmp_path, 2)
        (agent,) = (process.pid for process in psutil.Process(launcher.pid).children())
        assert len(pids) == 3 and agent in pids, "two ranks of one agent"
        os.kill(launcher.pid if receiver == "launcher" else agent, signal_number)
        assert are_gone(pids)
        launcher.wait(20)
    finally:
        launcher.kill()
        _, told = launcher.communicate()
    assert error in told and bool(error) == bool(told)


@pytest.mark.parametrize(
    ("text", "code", "printed", "told"),
    [
        ("import sys\nprint(sys.argv[1:])", 0, "['--lr', '0.1']\n", None),
        ("import sys\nsys.exit()", 0, "", None),
        ("import sys\nsys.exit(3)", 3, "", ("sys.exit(3)", 2, "sys.exit(3)")),
        (
            "import sys\nsys.exit('no data')",
            1,
            "no data\n",
            ("sys.exit('no data')", 2, "sys.exit('no data')"),
        ),
        ("print(1)\nx = = 1", 1, "", ("SyntaxError", 2, "x = = 1")),
        ("def f():\n  1 / 0\nf()", 1, "", ("ZeroDivisionError", 2, "1 / 0")),
    ],
)
def test_a_rank_of_a_script_tells_how_it_failed_and_leaves_with_its_exit_code(tmp_path, text, code, printed, told):
    script = tmp_path / "train.py"
    script.write_text(text)
    command = [sys.executable, "-m", "worldsize.launch.worker.torchrun_main", str(script), "--lr", "0.1"]
    here = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"}
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "ranks"))
        server.listen()
        env = {**os.environ, **here, AGENT_PID: str(os.getpid()), SOCKET: str(tmp_path / "ranks")}
        rank = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        control, _ = server.accept()
        with control:
            hello = framing.read_fields(framing.receive(control)[0])
            pack_and_send(control, RunScript(), fds=[CallLog.make().fd])
            assert rank.communicate()[0] == printed
            last = framing.read_fields(framing.receive(control)[0])
    assert (hello["kind"], hello["rank"], hello["pid"], rank.returncode) == ("hello", 1, rank.pid, code)
    assert last["kind"] == ("failed" if told else "done")
    if told:
        line = last["failure"]["lines"][-1]
        assert (last["failure"]["kind"], line["number"], line["text"]) == told


@pytest.fixture
def group():
    """A group of ranks under torchrun, of which none has been started."""
    with elastic.ElasticWorkerGroup(Flags.parse(["--nproc-per-node=2"]), {}, View()) as group:
        yield group


@pytest.fixture
def caller(group):
    """A process of the user that has connected where ranks do."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(group._path)
        caller.settimeout(20)
        yield caller


def test_a_script_that_connects_and_says_nothing_holds_up_nobody(group, caller):
    hello = pack(Hello(pid=os.getpid(), rank=1, local_rank=1, world_size=2, restarts=0))
    for part in (b"", hello[:3], hello[3:20]):
        caller.sendall(part)
        group.turn(time.monotonic() + 1)
    assert group.workers == []
    caller.sendall(hello[20:])
    group.turn(time.monotonic() + 1)
    assert [worker.rank for worker in group.workers] == [1]
    assert read(framing.receive(caller)[0], RunScript) == RunScript()
    group.workers[0].pid = 0  # it is the test's own process


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff" * 100,
        pack(RunScript()),
        framing.pack("hello", pid=5, rank=2, local_rank=0, world_size=2, restarts=0),
        framing.pack("hello", pid=1, rank=0, local_rank=0, world_size=2, restarts=0),
        pack(Hello(pid=5, rank=0, local_rank=0, world_size=2, restarts=0)) * 2,
    ],
    ids=["noise", "another message", "no such rank", "no rank's process", "twice"],
)
def test_what_says_no_hello_is_hung_up_on(group, caller, sent):
    caller.sendall(sent)
    for _ in range(2):
        group.turn(time.monotonic() + 1)
    assert (caller.recv(1), group.workers, group._callers) == (b"", [], [])


def test_of_many_that_connect_the_first_are_hung_up_on(group, caller, monkeypatch):
    monkeypatch.setattr(elastic, "_MAX_CALLERS", 1)
    with socket.socket(socket.AF_UNIX) as second:
        second.connect(group._path)
        for _ in range(2):
            group.turn(time.monotonic() + 1)
        assert caller.recv(1) == b"" and len(group._callers) == 1


def test_a_script_that_takes_too_long_is_ended(tmp_path):
    script = tmp_path / "slow.py"
    script.write_text("import signal\nsignal.pause()\n")
    start_s = time.monotonic()
    with pytest.raises(ws.RunTimeout, match=r"^The ranks did not finish within 0.5 s"):
        torchrun(script, nproc_per_node=2, timeout_s=0.5)
    assert time.monotonic() - start_s < 60
    assert agents() == []


def test_a_flag_that_torchrun_does_not_take_is_refused(tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    with pytest.raises(ValueError, match=r"torchrun refused its flags: .*--num-gpus"):
        torchrun(script, num_gpus=2)


@pytest.mark.parametrize(
    ("script", "flags", "words"),
    [
        ("absent.py", {}, r"there is no script 'absent.py' in /"),
        (".", {}, r"there is no script '\.' in /"),
        ("import os\nprint(1)", {}, "this is text of several lines: write it to a file, or use %%torchrun"),
        (__file__, {"timeout_s": 0}, "timeout_s must be a number of seconds above 0"),
        (
            __file__,
            {"nproc_per_node": 0},
            "--nproc-per-node must be a whole number, 1 or more",
        ),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(monkeypatch, script, flags, words):
    monkeypatch.setattr(elastic, "ElasticWorkerGroup", lambda *_: pytest.fail("a process was started"))
    with pytest.raises(ValueError, match=words):
        torchrun(script, **flags)


def completed(*words):
    return Flags.parse(words).complete("logs")


def environment_with(*words, env=None):
    return elastic.environment(Flags.parse(words), env or {}, "ranks")


def test_flags_reach_torchrun_as_they_are_typed_and_add_to_a_private_rendezvous():
    typed = ["--nproc-per-node", "2", "--max_restarts=3"]
    assert completed(*typed) == ["--standalone", "--tee=3", "--log-dir=logs", "--local-addr=localhost", *typed]
    assert environment_with(*typed)["GLOO_SOCKET_IFNAME"] in ("lo", "lo0")


@pytest.mark.parametrize("typed", ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv_endpoint=a:1", "--master-port=9"])
def test_a_rendezvous_that_is_typed_is_left_alone(monkeypatch, typed):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert "--standalone" not in completed(typed) and "GLOO_SOCKET_IFNAME" not in environment_with(typed)


def test_a_typed_standalone_stays_on_this_machine_too(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert completed("--standalone").count("--standalone") == 1
    assert "GLOO_SOCKET_IFNAME" in environment_with("--standalone")


def test_ranks_meet_on_a_machine_whose_name_nobody_knows(tmp_path):
    named = ["unshare", "--uts", "sh", "-c", 'hostname nowhere-7f3a && exec "$@"', "sh"]
    if not shutil.which("unshare") or subprocess.run([*named, "true"], capture_output=True).returncode:
        give_up("netlab", "Only root can give a process another name of the machine, on Linux.")
    script = tmp_path / "meet.py"
    script.write_text(
        "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\nprint('met')\n"
    )
    run = f"import worldsize as ws; print(ws.torchrun({str(script)!r}, nproc_per_node=2, timeout_s=60))"
    done = subprocess.run([*named, sys.executable, "-c", run], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout.count("met") == 2, done.stdout + done.stderr


def test_a_log_folder_of_one_s_own_does_not_silence_the_ranks():
    assert completed("--log_dir=mine") == ["--standalone", "--tee=3", "--local-addr=localhost", "--log_dir=mine"]
    assert "--tee=3" not in completed("-r", "3")


def test_threads_are_shared_out_and_what_the_user_set_stays(monkeypatch):
    def num_threads(*words, **env):
        return environment_with(*words, env=env)["OMP_NUM_THREADS"]

    monkeypatch.setattr(elastic, "num_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert num_threads("--nproc_per_node=2") == "4"
    assert num_threads("--nproc-per-node", "auto") == "8"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert num_threads("--nproc_per_node=2") == "1"
    assert num_threads("--nproc_per_node=2", OMP_NUM_THREADS="3") == "3"


def test_keyword_flags_become_torchrun_s_own(monkeypatch):
    taken = []
    monkeypatch.setattr(command, "run_script", lambda flags, *_: taken.append(flags))
    torchrun("train.py", nproc_per_node=2, rdzv_backend="c10d", no_python=True)
    assert taken == [["--nproc-per-node=2", "--rdzv-backend=c10d", "--no-python"]]


ENDS_EARLY = """
import os
import torch, torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(4))
elif dist.get_rank() == 1:
    os._exit(0)
"""


def test_of_ranks_that_end_well_and_too_early_the_one_that_others_needed_is_named(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(ENDS_EARLY)
    # whichever left first; the other one counts, too, where it was gone before rank 0 lost the connection
    with pytest.raises(ws.RankFailed, match=r"^Rank [12] of 3 failed with an early end: its process ended") as caught:
        torchrun(script, nproc_per_node=3, max_restarts=0, echo=False, timeout_s=120)
    assert "Its last call was at\n  train.py, line 6" in str(caught.value)
    assert "Rank 0 lost the connection because of it." in str(caught.value)
