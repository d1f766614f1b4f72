"""An audit of a run: where it is found, what it says, and what it leaves alone."""

import json
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import worldsize as ws
from worldsize import draw
from worldsize.audit import Severity, expect_different, names
from worldsize.audit.report import Audit

QUIET = {"world_size": 2, "echo": False}


def train_past_ddp():
    torch.manual_seed(0)
    model = DDP(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(3):
        optimizer.zero_grad()
        model.module(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    return model.module.weight.detach()


def train_right(num_steps=3):
    torch.manual_seed(0)
    model = DDP(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    return model.module.weight.detach()


def train_apart(is_said):
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        if is_said:
            with expect_different():
                optimizer.step()
        else:
            optimizer.step()


def kinds(run):
    return [finding.kind for finding in run.audit.findings]


@pytest.mark.parametrize("cluster", [None, "dgx-h100"])
def test_a_fault_is_named_with_its_line_on_real_and_emulated_ranks(cluster):
    run = ws.run(train_past_ddp, audit=True, cluster=cluster, **QUIET)
    (finding,) = run.audit.findings
    assert (finding.kind, finding.severity, finding.name) == ("past DDP", Severity.WRONG, "weight")
    assert finding.ranks == (0, 1) and finding.line.text.startswith("model.module(torch.randn")
    assert run.audit.is_wrong and not run.audit.failures


@pytest.mark.parametrize("cluster", [None, "dgx-h100"])
def test_an_audit_changes_nothing_and_finds_nothing_in_a_right_program(cluster):
    audited, plain = (ws.run(train_right, cluster=cluster, audit=audit, **QUIET) for audit in (True, False))
    assert torch.equal(audited.values[0], plain.values[0]) and plain.audit is None
    assert audited.audit.findings == [] and audited.audit.num_steps == 3 and not audited.audit.failures
    events = [[e for e in run.timeline.of(0) if e.kind == "communication"] for run in (audited, plain)]
    sent = [[(e.name, e.size_bytes) for e in of_run] for of_run in events]
    assert sent[0] == sent[1] and sent[0]


def test_every_kth_step_is_enough():
    assert kinds(ws.run(train_past_ddp, audit=2, **QUIET)) == ["past DDP"]


class Several(torch.optim.Optimizer):
    """An optimizer that steps one for each module, as trainers that split a model into stages have."""

    def __init__(self, modules):
        self.optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in modules]
        super().__init__([parameter for module in modules for parameter in module.parameters()], {"lr": 0.1})

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()


def train_by_several():
    model = DDP(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1)))
    optimizer = Several(model.module)
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(one, T_max=8) for one in optimizer.optimizers]
    torch.manual_seed(dist.get_rank())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        for schedule in 2 * schedules:
            schedule.step()


def test_a_step_that_consists_of_steps_counts_once():
    run = ws.run(train_by_several, audit=True, **QUIET)
    assert run.audit.num_steps == 3
    assert set(kinds(run)) == {"schedule too fast"}


def test_the_module_around_a_part_is_searched_for_once(monkeypatch):
    searched, outermost = [], names._outermost
    monkeypatch.setattr(names, "_outermost", lambda module: searched.append(module) or outermost(module))
    model, known = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False)), names.Names()
    known.learn(model)
    for part in 2 * [*model]:  # as recomputation calls them
        known.learn(part)
    assert searched == [model]
    assert [name for name, _ in known.parameters()] == [
        "Sequential.0.weight",
        "Sequential.0.bias",
        "Sequential.1.weight",
    ]


def test_ranks_that_train_apart_may_say_so():
    assert kinds(ws.run(train_apart, False, audit=True, **QUIET)) == ["weights differ"]
    assert kinds(ws.run(train_apart, True, audit=True, **QUIET)) == []


def crash_late():
    train_past_ddp()
    if dist.get_rank() == 1:
        raise ValueError("no more data")


def wait_for_ever():
    train_past_ddp()
    if dist.get_rank() == 1:
        dist.barrier()


@pytest.mark.parametrize(
    ("program", "limit"),
    [(crash_late, {}), (wait_for_ever, {"cluster": "dgx-h100"}), (wait_for_ever, {"stalled_s": 1})],
)
def test_a_run_that_fails_is_reported_as_without_an_audit(program, limit):
    reports = []
    for audit in (True, False):
        with pytest.raises(ws.RunError) as caught:
            ws.run(program, audit=audit, **limit, **QUIET)
        reports.append(str(caught.value))
        assert (caught.value.audit is not None) == audit
        if audit:
            assert caught.value.audit.findings[0].kind == "past DDP"
    assert reports[0] == reports[1]


@pytest.mark.parametrize("audit", [-1, 0.5, "yes"])
def test_a_wrong_argument_is_refused(audit):
    with pytest.raises(ValueError, match="give True, or k to look at every k-th optimizer step"):
        ws.run(train_right, audit=audit, **QUIET)


def test_the_audit_is_part_of_what_a_run_shows():
    run = ws.run(train_past_ddp, audit=True, **QUIET)
    assert "Audit of 2 ranks, 3 optimizer steps: 1 wrong" in repr(run)
    assert "cure: call the DDP object itself" in repr(run.audit)
    assert "&lt;" not in run.audit._repr_html_() and "<b>Cure</b>" in run.audit._repr_html_()
    (finding,) = json.loads(run.audit.to_json())["findings"]
    assert (finding["kind"], finding["severity"], finding["ranks"], finding["step"]) == ("past DDP", "wrong", [0, 1], 1)


def test_where_ranks_differ_is_known_by_tensor_and_step_and_can_be_drawn():
    audit = ws.run(train_past_ddp, audit=True, **QUIET).audit
    weights, gradients = audit.differences["weights"], audit.differences["gradients"]
    assert [*weights] == [*gradients] == ["Linear.weight", "Linear.bias"]
    assert [step for step, of in weights["Linear.weight"].items() if of > 1e-5] == [2, 3, 4]
    assert all(of > 1e-3 for of in gradients["Linear.weight"].values())
    assert "Of 2 weights, these differ between ranks: Linear.weight from step 2" in draw.differences(audit).alt
    audit = ws.run(train_right, audit=True, **QUIET).audit
    assert "All 2 weights are equal on all ranks. All 2 gradients" in draw.differences(audit).alt


def test_without_anything_to_compare_there_is_no_picture():
    with pytest.raises(ValueError, match="no two ranks of this run hold a weight of the same name"):
        draw.differences(Audit((), 2, 0))


def test_errors_of_the_audit_itself_are_shown():
    audit = Audit((), 2, 3, ["Traceback ... <IndexError>"])
    assert repr(audit).endswith("failed in 1 observation, and may have missed something:\nTraceback ... <IndexError>")
    assert "&lt;IndexError&gt;" in audit._repr_html_()
    assert json.loads(audit.to_json())["failures"] == ["Traceback ... <IndexError>"]


SCRIPT = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
flat = torch.ones(1000)
work = dist.all_reduce(flat, async_op=True)
if "early" in sys.argv:
    print(flat.sum().item())
work.wait()
assert sys.argv[-1] == "last"
if "fail" in sys.argv and rank == 1:
    raise ValueError("no data")
dist.destroy_process_group()
"""


@pytest.mark.parametrize(("words", "status"), [(["early"], 1), ([], 0), (["fail"], 2)])
def test_a_script_is_audited_from_a_shell(tmp_path, words, status):
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "worldsize", "audit", "--json", "audit.json", "train.py", *words]
    done = subprocess.run(
        [*command, "--nproc-per-node", "3", "last"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stderr
    assert ("reads a tensor while all_reduce is still moving it" in done.stdout) == (words == ["early"])
    assert ("ValueError: no data" in done.stderr) == (words == ["fail"])
    assert json.loads((tmp_path / "audit.json").read_text())["ranks"] == 3


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "name a script, or the folder of a run's notes after --notes"),
        (["--notes", "."], "has no notes of an audited run"),
        (["--notes", ".", "train.py"], "--notes goes with ranks that torchrun has started"),
        (["--every", "0", "train.py"], "--every is 0; it must be at least 1"),
        (["none.py"], "there is no script 'none.py'"),
    ],
)
def test_a_wrong_command_says_what_to_do(tmp_path, words, says):
    command = [sys.executable, "-m", "worldsize", "audit", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and says in done.stderr
