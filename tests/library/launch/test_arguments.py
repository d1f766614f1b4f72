import resource
from pathlib import Path

import pytest

from worldsize.launch.launcher import arguments
from worldsize.launch.launcher.flags import Flags
from worldsize.launch.launcher.spec import Spec
from worldsize.launch.protocol import process


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A function that gives limits the contents of the system's files, by path."""

    def pretend(**files):
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        names = {"/proc/meminfo": "meminfo", "/sys/fs/cgroup": ""}
        monkeypatch.setattr(arguments, "Path", lambda path: tmp_path / names[path] if path in names else Path(path))

    return pretend


def test_the_least_of_what_machine_and_container_leave_is_free(machine):
    machine(meminfo="MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    assert arguments.free_memory_bytes() == 4000 << 10
    machine(
        **{"memory.max": "3000000\n", "memory.current": "2500000\n", "memory.stat": "anon 5\ninactive_file 400000\n"}
    )
    assert arguments.free_memory_bytes() == 900_000
    machine(**{"memory.max": "max\n"})
    assert arguments.free_memory_bytes() == 4000 << 10


def test_a_system_that_does_not_say_refuses_nobody(machine, monkeypatch):
    monkeypatch.setattr(arguments.sys, "platform", "freebsd")
    machine()
    assert arguments.free_memory_bytes() is None
    arguments._refuse_too_large(10**6, "warm")


def test_more_ranks_than_memory_holds_are_refused_with_the_number_that_it_holds(monkeypatch):
    monkeypatch.setattr(arguments, "free_memory_bytes", lambda: 2 << 30)
    arguments.refuse_too_many(128, "warm")
    words = r"^129 ranks need at least 2.0 GB of memory, but only 2.0 GB are free; start at most 128$"
    with pytest.raises(ValueError, match=words):
        arguments.refuse_too_many(129, "warm")
    with pytest.raises(ValueError, match="start at most 8"):
        arguments.refuse_too_many(9, "torchrun")


@pytest.fixture
def limits(monkeypatch):
    """A function that sets this process's limits on open files, and gives those that were set since; 10 are open."""
    monkeypatch.setattr(arguments.os, "listdir", lambda path: list("0123456789"))
    changes = []

    def pretend(soft, hard):
        changes.clear()
        monkeypatch.setattr(arguments.resource, "getrlimit", lambda _: (soft, hard))
        monkeypatch.setattr(arguments.resource, "setrlimit", lambda _, limits: changes.append(limits))
        return changes

    return pretend


def test_the_limit_on_open_files_is_raised_as_far_as_ranks_need(limits):
    unlimited = resource.RLIM_INFINITY
    for soft, hard, changed in [(1024, 4096, []), (120, 4096, [(242, 4096)]), (120, unlimited, [(242, unlimited)])]:
        changes = limits(soft, hard)
        arguments._make_room_for_files(40, "warm")
        assert changes == changed
    changes = limits(unlimited, unlimited)
    arguments._make_room_for_files(40, "warm")
    assert changes == []


def test_more_ranks_than_there_may_be_files_are_refused(limits):
    limits(120, 150)
    words = r"^40 ranks need 242 open files, but this process may have 150; start at most 21, or raise the limit"
    with pytest.raises(ValueError, match=words):
        arguments.refuse_too_many(40, "warm")
    arguments.refuse_too_many(21, "warm")
    arguments.refuse_too_many(40, "torchrun")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cluster": "dgx-h100"}, "netns works only for real ranks of the warm launcher"),
        ({"launcher": "torchrun"}, "netns works only for real ranks of the warm launcher"),
        ({"forkserver": "in a jail"}, "netns works only for real ranks of the warm launcher"),
        ({"netns": ["red"]}, r"netns must name one network namespace per rank; got \['red'\] for 2 ranks"),
        ({"netns": "ab"}, "netns must name one network namespace per rank; got 'ab' for 2 ranks"),
        ({"netns": ["red", "blue"]}, "there is no network namespace 'blue'; on Linux `ip netns add blue` makes one"),
        ({"netns": ["red", ""]}, "there is no network namespace ''"),
        ({"netns": ["red", "../netns/red"]}, "there is no network namespace '../netns/red'"),
    ],
    ids=str,
)
def test_network_namespaces_that_cannot_be_entered_are_refused(monkeypatch, tmp_path, options, words):
    monkeypatch.setattr(process, "NETWORKS", str(tmp_path / "netns"))
    (tmp_path / "netns/red").mkdir(parents=True)
    with pytest.raises(ValueError, match=words):
        arguments.refuse_bad_spec(Spec(print, world_size=2, **{"netns": ["red", "red"], **options}))


def test_only_root_enters_network_namespaces(monkeypatch, tmp_path):
    monkeypatch.setattr(process, "NETWORKS", str(tmp_path))
    (tmp_path / "red").mkdir()
    monkeypatch.setattr(arguments.os, "geteuid", lambda: 1000)
    with pytest.raises(ValueError, match="only root may enter network namespaces"):
        arguments.refuse_bad_spec(Spec(print, world_size=1, netns=["red"]))
    monkeypatch.setattr(arguments.os, "geteuid", lambda: 0)
    arguments.refuse_bad_spec(Spec(print, world_size=1, netns=["red"]))


@pytest.mark.parametrize(("num_gpus", "found"), [(0, "0 CUDA devices"), (1, "1 CUDA device")])
def test_nccl_with_too_few_gpus_is_refused(num_gpus, found):
    arguments.refuse_missing_gpus(2, "nccl", 2)
    arguments.refuse_missing_gpus(2, "auto", num_gpus)
    with pytest.raises(ValueError, match=rf"2 ranks, and this machine has {found}\. Leave backend='auto'"):
        arguments.refuse_missing_gpus(2, "nccl", num_gpus)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--nproc-per-nod=2"], "there is no flag --nproc-per-nod; did you mean --nproc-per-node"),
        (["--max-restart", "2"], "did you mean --max-restarts"),
        (["--zzzzzz"], "there is no flag --zzzzzz$"),
        (["--max-restarts=many"], "argument --max-restarts/--max_restarts: invalid int value: 'many'"),
        (["--nproc-per-node"], "--nproc-per-node needs a value"),
        (["train.py"], "train.py is not a flag; a script's own arguments come after it, or after --"),
        (["--nproc-per-node=-1"], "must be a whole number, 1 or more; got -1"),
    ],
)
def test_flags_that_torchrun_does_not_take_are_refused_with_the_one_that_was_meant(words, told):
    with pytest.raises(ValueError, match=told):
        Flags.parse(words)


def test_help_is_printed_and_starts_nothing(capsys):
    with pytest.raises(SystemExit):
        Flags.parse(["--help"])
    assert "--nproc-per-node" in capsys.readouterr().out


def test_a_range_of_nodes_gets_patience_and_what_is_typed_stands():
    def conf(*words):
        return [word for word in Flags.parse(words).complete("logs") if word.startswith("--rdzv-conf")]

    ours = "--rdzv-conf=keep_alive_interval=1,last_call_timeout=3"
    assert conf("--nnodes=1:2") == [ours]
    assert conf("--nnodes=1:2", "--rdzv-conf=is_host=1") == ["--rdzv-conf=is_host=1", f"{ours},is_host=1"]
    assert conf("--nnodes=2") == conf("--nnodes=2:2") == []


def test_agents_that_meet_on_this_machine_use_its_local_address():
    assert "--local-addr=localhost" in Flags.parse(["--rdzv-endpoint=localhost:29400"]).complete("logs")
    assert "--local-addr=localhost" not in Flags.parse(["--rdzv-endpoint=gpu1:29400"]).complete("logs")
    typed = ["--rdzv-endpoint=localhost:29400", "--local-addr=10.0.0.1"]
    assert "--local-addr=localhost" not in Flags.parse(typed).complete("logs")
