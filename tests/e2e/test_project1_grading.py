"""Programs that do their worst: each gets a verdict that says what happened, and leaves nothing to whoever comes next.

Every program is judged by two small checks: it is to train, and after that our own is to train in the same sandbox.
"""

from pathlib import Path

import psutil
import pytest
from processes import wait_until
from tiny_lab import ROOT, needs_jail, outcomes

from autograder.authoring import programs
from autograder.judging.report import CheckResult, Outcome
from autograder.judging.request import JudgeRequest, judge
from autograder.sandbox import zygote

pytestmark = needs_jail
REFERENCE = programs.solved(ROOT / "solutions" / "project1" / "train.py")
CHECKS = '''
import os

from autograder.judging.checks.check import points
from worldsize import bench
from worldsize.bench import RestartPolicy, TrainingSpec, Task
from worldsize.check import CheckFailed

TASK = Task(num_steps=4, batch_size=8, width=4)


def num_files():
    return len(os.listdir("/proc/self/fd"))


@points(1, cell="check")
def check_theirs(student, rng):
    """It trains."""
    student.run(nothing, world_size=1)
    before = num_files()
    try:
        spec = TrainingSpec(TASK, 2, checkpoint_every=1)
        trial = bench.attempt(student.program("train.py"), spec, 5, ELASTIC)
    finally:
        assert num_files() <= before + 8, "files were left open in the judge"
    if trial.record.weights is None:
        raise CheckFailed("weights", f"none; {len(trial.result.lines)} lines")
    if not bench.weights_error(trial, TASK) < 1e-3:
        raise CheckFailed("the weights of one process", "others")
    if not {0, 1, 2, 3} <= {line.step for line in trial.result.lines}:
        raise CheckFailed("4 lines", f"{len(trial.result.lines)}")


@points(1, cell="check")
def check_ours(student, rng):
    """The reference trains in the same sandbox afterwards."""
    trial = bench.attempt(student.reference("train.py"), TrainingSpec(TASK, 2), 6)
    if not bench.weights_error(trial, TASK) < 1e-3:
        raise CheckFailed("the weights of one process", "others")


def nothing(student):
    return None
'''
AT_START = "    flags = read_flags()\n"
AT_SAVE = "    if replica.rank == 0:\n        folder.mkdir"


def of_theirs(
    program: str, tmp_path: Path, *, call_s: float = 60, elastic: bool = False, checks: str = CHECKS
) -> CheckResult:
    """What the judge says of the program; ours must have trained after it, and nothing be left running."""
    path = tmp_path / "checks.py"
    path.write_text(checks.replace("ELASTIC", "RestartPolicy(0)" if elastic else "None"))
    source = zygote.shared(())
    before = set(Path(source.scratch).iterdir())
    report = judge(
        JudgeRequest(
            checks=path,
            cells=[],
            call_s=call_s,
            total_s=200,
            programs={"train.py": program},
            references={"train.py": REFERENCE},
        )
    )
    assert outcomes(report)["check_ours"] is Outcome.PASSED, report
    assert source._process
    children = psutil.Process(source._process.pid)
    assert wait_until(lambda: not children.children(), 5), children.children(recursive=True)
    assert set(Path(source.scratch).iterdir()) <= before
    return report.checks[0]


def disturbed(lines: str, at: str = AT_START) -> str:
    """The reference with more lines before a place."""
    assert REFERENCE.count(at) == 1
    indent = at[: len(at) - len(at.lstrip(" "))]
    return REFERENCE.replace(at, "".join(f"{indent}{line}\n" for line in lines.strip().splitlines()) + at)


HARMLESS = {
    "prints garbage": """
import sys
sys.stdout.buffer.write(os.urandom(1 << 20) + b"\\n")
print('{"step": NaN, "loss": Infinity, "sent_bytes": -1}\\n{"step": 1' + 4200 * "0" + ', "loss": 1, "sent_bytes": 0}')
print("[" * 5000 + "\\n{" + '"a":{' * 5000 + "\\n" + '{"step": "x"}\\n' * 1000, flush=True)
""",
    "opens a thousand connections": """
import socket
kept = [socket.socket(socket.AF_UNIX) for _ in range(1000 if dist.is_initialized() and dist.get_rank() else 0)]
for one in kept:
    try:
        one.settimeout(0.2)
        one.connect(os.environ["WORLDSIZE_FEED"])
    except OSError:
        break
for one in kept:
    one.close()
""",
    "sends broken frames with open files": """
import socket
import struct
for number in range(300):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(os.environ["WORLDSIZE_FEED"])
        try:
            socket.send_fds(one, [struct.pack("<IQ", 12, 1 << 62)], [0, 1, 2])
        except OSError:
            pass
""",
    "sends half a frame and waits": """
import socket
import struct
waits = socket.socket(socket.AF_UNIX)
waits.connect(os.environ["WORLDSIZE_FEED"])
waits.sendall(struct.pack("<IQ", 100, 0) + b'{"kind"')
dist.waits = waits
""",
    "hands in a gigabyte, and a list, and no number": """
import socket
import struct
for frame in (b'{"kind": "hand_in", "size": 1000000000}', b"[]", b'{"kind": "take", "size": 0}', b'{"size": "x"}',
    b'{"kind": "take", "rank": 0, "step": 1e999, "start": true, "stop": null}', b"[" * 4000):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(os.environ["WORLDSIZE_FEED"])
        try:
            one.sendall(struct.pack("<IQ", len(frame), 0) + frame + bytes(1 << 20))
        except OSError:
            pass
""",
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_harms_nobody_costs_nothing(name, tmp_path):
    lines = HARMLESS[name].strip().splitlines()
    theirs = of_theirs(disturbed("\n".join(lines)), tmp_path)
    assert theirs.outcome is Outcome.PASSED, theirs


FATAL = {
    "prints nothing": ("os._exit(0)", {Outcome.WRONG, Outcome.CRASHED}, ""),
    "prints without end": ("while True: print(1000 * 'x')", {Outcome.OUTPUT_LIMIT}, "printed more"),
    "never ends": ("while True: pass", {Outcome.TIME_LIMIT}, "did not finish"),
    "forks without end": (
        "while True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
        {Outcome.TIME_LIMIT, Outcome.CRASHED, Outcome.HUNG},
        "",
    ),
    "wants more GPUs than there are": ("torch.cuda.set_device(7)", {Outcome.CRASHED}, "CUDA"),
    "asks for NCCL": ("dist.new_group(backend='nccl')", {Outcome.CRASHED}, "NCCL"),
    "kills all that it can": ("import signal; os.kill(-1, signal.SIGKILL)", {Outcome.CRASHED}, ""),
    "takes all memory": ("held = bytearray(64 << 30)", {Outcome.CRASHED}, "more memory than"),
    "is no Python": ("this is no Python", {Outcome.CRASHED}, "SyntaxError"),
}


@pytest.mark.parametrize("name", FATAL)
def test_what_breaks_a_program_is_said(name, tmp_path):
    lines, expected, words = FATAL[name]
    theirs = of_theirs(disturbed(lines), tmp_path, call_s=5 if Outcome.TIME_LIMIT in expected else 60)
    assert theirs.outcome in expected, theirs
    assert words.lower() in theirs.message.lower()


def test_a_full_disk_is_said(tmp_path):
    fills = "folder.mkdir(parents=True, exist_ok=True)\n(folder / 'large').write_bytes(bytes(1 << 30))"
    theirs = of_theirs(disturbed(fills, "    if replica.rank == 0:\n        folder"), tmp_path, elastic=True)
    assert theirs.outcome is Outcome.CRASHED, theirs
    # by the limit of a file, as an error or as the signal that ends a rank there, or of all, where both ranks write
    said = ("File too large", "a file grew past the limit", "No space left on device")
    assert any(words in theirs.message for words in said), theirs.message


def test_a_program_finds_nothing_of_its_run_before(tmp_path):
    keeps = """
import tempfile
folders = ["/tmp", "/dev/shm", os.path.expanduser("~"), os.getcwd(), os.path.dirname(__file__), tempfile.gettempdir()]
assert not any(os.path.exists(f"{folder}/kept.{other}") for folder in folders for other in "01" if dist.get_rank() == 0)
dist.barrier()
for folder in folders:
    open(f"{folder}/kept.{dist.get_rank()}", "w").close()
"""
    program = disturbed(keeps, "    replica = Replica(flags)\n")
    checks = CHECKS.replace('student.reference("train.py")', 'student.program("train.py")')
    assert of_theirs(program, tmp_path, checks=checks).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    "lines",
    [
        "import signal; os.kill(os.getppid(), signal.SIGKILL)",
        "import signal; os.kill(-1, signal.SIGKILL)",
    ],
)
def test_a_program_that_kills_torchrun_or_itself_has_crashed(lines, tmp_path):
    theirs = of_theirs(disturbed(lines), tmp_path, elastic=True, call_s=30)
    assert theirs.outcome in {Outcome.CRASHED, Outcome.TIME_LIMIT}, theirs
