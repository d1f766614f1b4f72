"""GPUs in a jail, with stand-ins for their device files: seen and used where they were granted, absent where not."""

import os
import stat
import sys
from pathlib import Path

import cloudpickle
import pytest
import torch
import torch.distributed as dist
from launching import run
from needs import give_up
from tiny_lab import needs_jail

from autograder.grading import engines
from autograder.grading.engines import LocalPool
from autograder.judging.request import JudgeRequest, environment
from autograder.sandbox import WITH_GPUS, Sandbox, Tier, gpus, plan

cloudpickle.register_pickle_by_value(sys.modules[__name__])
STAND_IN = "/dev/tty"  # no jail shows it; without a terminal, opening it gives ENXIO and not EACCES or ENOENT


@pytest.fixture
def machine(tmp_path):
    """Three GPUs, of which the second cannot be opened; minors are in another order than the bus."""
    dev, driver = tmp_path / "dev", tmp_path / "gpus"
    dev.mkdir()
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia2"):
        (dev / name).touch()
    for bus, minor in (("0000:01:00.0", 2), ("0000:02:00.0", 1), ("0000:03:00.0", 0)):
        (driver / bus).mkdir(parents=True)
        (driver / bus / "information").write_text(
            f"Model: \t\t A\nGPU UUID: \t GPU-{minor}c\nDevice Minor: \t {minor}\n"
        )
    return {"dev": str(dev), "driver": str(driver)}


@pytest.mark.parametrize(
    ("named", "found"),
    [
        (["0"], ["nvidia2"]),
        (["0", "1"], ["nvidia2", "nvidia0"]),
        (["GPU-0"], ["nvidia0"]),
        (["1", "GPU-0c"], ["nvidia0"]),
        (["7"], []),
        (["GPU-1c"], []),
        ([""], []),
        ([], []),
    ],
)
def test_gpus_are_found_by_number_and_by_name(machine, named, found):
    paths = gpus.devices_of(named, **machine)
    shared = ["nvidiactl", "nvidia-uvm"] if found else []
    assert [os.path.basename(path) for path in paths] == [*shared, *found]


def test_a_machine_without_gpus_has_no_devices(tmp_path):
    assert gpus.devices_of(["0"], str(tmp_path), str(tmp_path / "none")) == []


def look(paths):
    """What a rank sees: which of these paths are devices or folders, how opening the first ends, and its limits."""
    import resource

    kinds = []
    for path in paths:
        mode = os.stat(path).st_mode if os.path.exists(path) else 0
        kinds.append("device" if stat.S_ISCHR(mode) else "folder" if stat.S_ISDIR(mode) else "none")
    try:
        os.close(os.open(paths[0], os.O_RDWR))
        ended = 0
    except OSError as error:
        ended = error.errno
    limits = [resource.getrlimit(one)[0] for one in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return kinds, ended, limits


def summed():
    ones = torch.ones(1)
    dist.all_reduce(ones)
    return ones.item()


@needs_jail
def test_a_device_that_was_granted_is_seen_and_opened_inside_and_else_not():
    import errno

    if not os.path.exists(STAND_IN):
        give_up("sandbox", f"this machine has no {STAND_IN}")
    paths = [STAND_IN, "/sys/devices", "/sys/bus"]
    with Sandbox() as sandbox:
        kinds, ended, limits = run(look, paths, world_size=1, echo=False, forkserver=sandbox.forkserver).values[0]
        assert (kinds, ended) == (["none"] * 3, errno.ENOENT) and limits[0] > 0
    with Sandbox(devices=[STAND_IN]) as sandbox:
        kinds, ended, limits = run(look, paths, world_size=1, echo=False, forkserver=sandbox.forkserver).values[0]
        assert kinds == ["device", "folder", "folder"]
        assert ended in (0, errno.ENXIO), os.strerror(ended)  # it is reached, whether or not there is a terminal
        assert limits == [-1, WITH_GPUS.memory_bytes]
        assert run(summed, world_size=2, echo=False, forkserver=sandbox.forkserver).values == [2, 2], "Gloo reads /sys"


def test_without_a_grant_a_plan_shows_no_devices_and_none_of_sys(tmp_path):
    bare = plan(Tier(), str(tmp_path), WITH_GPUS)
    assert bare["devices"] == [] and not [path for path in bare["visible"] if path.startswith("/sys")]
    shown = plan(Tier(), str(tmp_path), WITH_GPUS, devices=[STAND_IN])
    assert [path for path in shown["visible"] if path.startswith("/sys")]


def test_the_drivers_own_folder_is_known_to_the_process_that_jails_come_from(tmp_path, monkeypatch):
    (tmp_path / "libcuda.so.1").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"relative:{tmp_path}:/nowhere")
    assert gpus.library_path() == [str(tmp_path)] and str(tmp_path) in gpus.folders()


@pytest.mark.parametrize(
    ("visible", "num_gpus", "sets"),
    [
        (None, 0, [[]]),
        (None, 2, [["0", "1"], ["2", "3"]]),
        (None, 3, [["0", "1", "2"]]),
        ("4,5,6,7", 2, [["4", "5"], ["6", "7"]]),
        (None, 0.5, [[str(number // 2)] for number in range(8)]),
        (None, 0.7, [["0"], ["1"], ["2"], ["3"]]),
        (None, 0.4, [[str(number // 2)] for number in range(8)]),
        (None, 1 / 3, [["0"]] * 3 + [["1"]] * 3 + [["2"]] * 2),
    ],
)
def test_judgings_side_by_side_have_their_own_gpus(monkeypatch, visible, num_gpus, sets):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    asked = []
    monkeypatch.setattr(engines, "judge", lambda request, granted: asked.append(granted))
    pool = LocalPool(8 if num_gpus else 1, num_gpus)
    for _ in range(pool.jobs):
        pool.judge(JudgeRequest(checks=Path()))
    assert asked == sets


def test_a_judge_counts_the_gpus_that_were_granted_and_no_others(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert environment(["2", "3"])["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert environment([])["CUDA_VISIBLE_DEVICES"] == ""
