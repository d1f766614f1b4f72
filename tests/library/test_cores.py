"""How many cores may be used: by affinity, and by what control groups of both versions grant."""

import pytest

from worldsize import cores

V1 = "3:cpuset:/\n2:cpu,cpuacct:{}\n1:memory:/other\n0::/\n"
V2 = "0::{}\n"


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """A function that describes the control groups of this process, which may run on eight cores."""
    monkeypatch.setattr(cores, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(cores, "_GROUPS", tmp_path / "fs")
    monkeypatch.setattr(cores, "cores", lambda: range(8))

    def write(own: str, files: dict[str, str]) -> None:
        (tmp_path / "own").write_text(own)
        for name, text in files.items():
            file = tmp_path / "fs" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"{text}\n")

    return write


@pytest.mark.parametrize(
    ("quota", "num"), [("max 100000", 8), ("400000 100000", 4), ("250000 100000", 2), ("50000 100000", 1), ("?", 8)]
)
def test_a_group_of_version_2_grants_whole_cores(groups, quota, num):
    groups(V2.format("/"), {"cpu.max": quota})
    assert cores.num_cores() == num


@pytest.mark.parametrize(("quota", "num"), [("-1", 8), ("300000", 3), ("10000000", 8)])
@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
def test_a_group_of_version_1_does_too(groups, quota, num, mount):
    groups(V1.format("/"), {f"{mount}/cpu.cfs_quota_us": quota, f"{mount}/cpu.cfs_period_us": "100000"})
    assert cores.num_cores() == num


def test_the_tightest_of_the_groups_above_counts(groups):
    files = {
        "jobs.slice/cpu.max": "300000 100000",
        "jobs.slice/mine/cpu.max": "max 100000",
        "other/cpu.max": "1 100000",
    }
    groups(V2.format("/jobs.slice/mine"), files)
    assert cores.num_cores() == 3


def test_a_container_that_sees_only_its_own_group_as_the_root_is_limited_by_it(groups):
    groups(V1.format("/docker/1234"), {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"})
    assert cores.num_cores() == 2


def test_without_control_groups_all_cores_may_be_used(groups, monkeypatch):
    assert cores.num_cores() == 8
    groups(V2.format("/"), {})
    assert cores.num_cores() == 8
    monkeypatch.setattr(cores, "cores", lambda: [5])
    assert cores.num_cores() == 1


def test_only_cores_that_this_process_may_run_on_count(monkeypatch):
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda process: {3, 1}, raising=False)
    assert list(cores.cores()) == [1, 3]
    monkeypatch.delattr(cores.os, "sched_getaffinity")
    monkeypatch.setattr(cores.os, "cpu_count", lambda: 3)
    assert list(cores.cores()) == [0, 1, 2]
