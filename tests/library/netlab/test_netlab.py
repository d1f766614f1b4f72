"""Real hosts on one machine: what they are, that traffic goes through them, that nothing of them stays behind."""

import contextlib
import dataclasses
import os
import re
import socket
import subprocess

import psutil
import pytest
import torch
import torch.distributed as dist
from launching import run
from needs import give_up
from netlab import Lab, __main__, cases, compare, unavailable_because, virtual_hosts
from netlab.compare import Result

from worldsize.launch.protocol import process
from worldsize.units import MB


@pytest.fixture
def root_only():
    """Skip the test unless a lab can be built; fail it where WORLDSIZE_REQUIRE names netlab."""
    if reason := unavailable_because():
        give_up("netlab", f"no network lab here: {reason}")


def leftovers():
    """The namespaces and relays of this process that are still there."""
    found = [name for name in os.listdir(process.NETWORKS) if name.startswith(f"netlab{os.getpid()}n")]
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has just ended
            found += [word for word in child.cmdline() if word == str(virtual_hosts.RELAY)]
    return found


def run_on(hosts_of, fn, *args):
    return run(fn, *args, world_size=hosts_of.num_hosts, netns=hosts_of.hosts, env=hosts_of.env, echo=False)


# without root


def test_the_cluster_is_what_was_configured(monkeypatch):
    monkeypatch.setattr(virtual_hosts, "_has_netem", lambda: False)
    described = Lab([100] * 3, 0.005).cluster
    assert (described.world_size, described.library, described.inter.kind) == (3, "gloo", "tcp")
    assert described.inter.latency_s == pytest.approx(2 * 0.005)
    assert described.inter.bandwidth_bytes_per_s == pytest.approx(12.5 * MB * (3125 - 52) / 3125)
    near = Lab([50] * 2).cluster.inter  # a veth pair: tc also counts Ethernet's 14 bytes
    assert (near.latency_s, near.bandwidth_bytes_per_s) == (0, pytest.approx(6.25 * MB * 1510 / 1576))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (([100],), "rates_mbit_s has 1 rates, one a host; a lab has 2 to 4"),
        (([100] * 5,), "rates_mbit_s has 5 rates, one a host; a lab has 2 to 4"),
        (([100, 0.5],), "rates_mbit_s has 0.5; give 1 to 10000 Mbit/s"),
        (([100] * 2, -1), "delay_s is -1; give 0 to 1 s"),
    ],
)
def test_a_lab_that_cannot_be_is_refused(args, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        Lab(*args)


@pytest.mark.parametrize(
    ("module", "name", "value", "words"),
    [
        ("sys", "platform", "darwin", "Linux"),
        ("os", "geteuid", lambda: 1000, "only root"),
        ("shutil", "which", lambda name: None if name == "tc" else name, "the command tc is missing; on Debian"),
    ],
)
def test_it_says_what_is_missing(monkeypatch, module, name, value, words):
    if module != "sys":
        monkeypatch.setattr(virtual_hosts.sys, "platform", "linux")
    if module == "shutil":
        monkeypatch.setattr(virtual_hosts.os, "geteuid", lambda: 0)
    monkeypatch.setattr(getattr(virtual_hosts, module), name, value)
    assert words in unavailable_because()
    with pytest.raises(ValueError, match="no lab can be built here: "), Lab([100] * 2):
        pass


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"netns": ["a"]}, "netns must name one network namespace per rank; got ['a'] for 2 ranks"),
        ({"netns": "ab"}, "netns must name one network namespace per rank; got 'ab' for 2 ranks"),
        ({"netns": ["no such", "b"]}, "there is no network namespace 'no such'; on Linux `ip netns add no such`"),
        ({"netns": ["../netns", "b"]}, "there is no network namespace '../netns'"),
        ({"netns": ["a", "b"], "cluster": "dgx-h100"}, "netns works only for real ranks of the warm launcher"),
        ({"netns": ["a", "b"], "launcher": "torchrun"}, "netns works only for real ranks of the warm launcher"),
    ],
)
def test_namespaces_that_cannot_be_entered_are_refused(kwargs, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        run(print, world_size=2, **kwargs)


def test_only_root_may_enter_a_namespace(monkeypatch, tmp_path):
    for name in "ab":
        (tmp_path / name).touch()
    monkeypatch.setattr(process, "NETWORKS", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ValueError, match="only root may enter network namespaces; run this as root"):
        run(print, world_size=2, netns=["a", "b"])


@pytest.mark.parametrize(("require", "code"), [("", 0), ("browser,netlab", 1)])
def test_the_lesson_says_why_it_cannot_be_given(monkeypatch, capsys, require, code):
    monkeypatch.setattr(__main__, "unavailable_because", lambda: "only root may make network namespaces")
    monkeypatch.setenv("WORLDSIZE_REQUIRE", require)
    assert __main__.main() == code
    assert capsys.readouterr().out == "No network lab here: only root may make network namespaces.\n"


@pytest.mark.parametrize(("reals_s", "code"), [([1.0, 1.04, 1.1], 0), ([1.0, 1.0, 1.3], 1), ([1.06, 1.06, 1.06], 1)])
def test_the_lesson_fails_when_a_goal_is_missed(capsys, reals_s, code):
    results = [Result("send", MB, (100, 100), 0.005, 1.0, 1.0, real_s) for real_s in reals_s]
    assert __main__._judge(results, __main__.Console()) == code
    assert ("misses the goal of 5% in the median and 20% at worst" in " ".join(capsys.readouterr().out.split())) == code


def test_a_case_that_misses_its_goal_is_measured_once_more_and_that_is_said(monkeypatch, capsys):
    tried = []

    def again(result):
        tried.append(result)
        return dataclasses.replace(result, real_s=1.0)

    monkeypatch.setattr(compare, "measured_again", again)
    good, bad = (Result("send", MB, (100, 100), 0.005, 1.0, 1.0, real_s) for real_s in (1.1, 1.5))
    found = [__main__.retried(one, __main__.Console(width=120)) for one in (good, bad)]
    assert tried == [bad] and [one.real_s for one in found] == [1.1, 1.0]
    assert capsys.readouterr().out == "send on 2 hosts was -33.3% off and was measured once more: +0.0%.\n"


@pytest.mark.parametrize("kind", ["send", "ring by hand"])
def test_the_emulator_gives_the_textbooks_time_for_single_messages(kind):
    described = Lab([200] * 3, 0.002)
    emulated_s = compare.emulated_time_s(kind, MB, described)
    assert emulated_s == pytest.approx(compare.formula_s(kind, MB, described), rel=1e-9)


def test_the_plan_is_as_wide_as_was_promised():
    todo = [(*where, kind) for *where, cases_there in compare.PLAN for kind, _ in cases_there]
    assert len(todo) >= 32
    assert {kind for *_, kind in todo} == set(cases.KINDS)
    assert {len(rates) for rates, *_ in todo} == {2, 3, 4}
    assert {50, 1000} <= {rates[0] for rates, *_ in todo} and {0, 0.010} <= {delay_s for _, delay_s, _ in todo}
    assert {"1F1B", "all-reduce"} <= {kind for rates, _, kind in todo if len({*rates}) > 1}


# as root


def look_around():
    total = torch.arange(100_000.0) + dist.get_rank()
    dist.all_reduce(total)
    return float(total[1]), [name for _, name in socket.if_nameindex()], os.stat("/proc/self/ns/net").st_ino


@pytest.mark.parametrize(("num_hosts", "delay_s"), [(2, 0.0), (3, 0.0), (2, 0.003), (4, 0.003)])
def test_ranks_on_hosts_talk_through_the_shaped_cards(root_only, num_hosts, delay_s):
    with Lab([400] * num_hosts, delay_s) as built:
        sums, cards, networks = zip(*run_on(built, look_around).values, strict=True)
        shown = [
            subprocess.run(f"tc -s -n {host} qdisc".split(), capture_output=True, text=True) for host in built.hosts
        ]
    assert set(sums) == {num_hosts + sum(range(num_hosts))}
    assert all(sorted(names) == ["lo", "net0"] for names in cards)
    assert len({*networks, os.stat("/proc/self/ns/net").st_ino}) == num_hosts + 1
    for one in shown:
        (sent_bytes,) = re.findall(r"qdisc tbf .* rate 400Mbit .*\n Sent (\d+) bytes", one.stdout)
        assert int(sent_bytes) > 2 * (num_hosts - 1) / num_hosts * 400_000
    assert leftovers() == []


def test_a_message_takes_two_delays_and_no_less(root_only):
    with Lab([400] * 2, 0.100) as built:
        (real_s,) = compare.real_times_s(built, [("send", 4)])
    assert 0.200 <= real_s < 0.300


def test_what_a_rank_starts_is_not_sent_to_the_same_hosts(root_only):
    with Lab([400] * 2) as built:
        assert run_on(built, lambda: any("NETNS" in name for name in os.environ)).values == [False, False]


def test_two_labs_side_by_side_do_not_meet(root_only):
    with Lab([400] * 2) as one, Lab([400] * 2, 0.002) as other:
        assert not set(one.hosts) & set(other.hosts)
        assert [run_on(built, look_around).values[0][0] for built in (other, one)] == [3, 3]
    assert leftovers() == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("delay_s", [0.0, 0.003])
def test_nothing_stays_behind_when_it_is_broken_off(root_only, error, delay_s):
    with pytest.raises(error), Lab([400] * 2, delay_s):
        assert leftovers()
        raise error
    assert leftovers() == []


@pytest.mark.parametrize("delay_s", [0.0, 0.003])
@pytest.mark.parametrize("words", ["link set net0", "tbf"])
def test_nothing_stays_behind_when_it_is_broken_off_while_it_is_built(root_only, words, delay_s):
    def say(command):
        if words in command:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Lab([400] * 2, delay_s, say):
        pass
    assert leftovers() == []


def test_a_command_that_fails_is_told_with_what_it_said(root_only, monkeypatch):
    monkeypatch.setattr(virtual_hosts, "_TCP_SETTINGS", {"no_such_setting": "0"})
    with pytest.raises(ValueError, match=r"`ip netns exec .*no_such_setting'` failed: "), Lab([400] * 2):
        pass
    assert leftovers() == []


def test_a_relay_ends_with_who_started_it(root_only):
    with virtual_hosts.Commands() as commands:
        hosts = [f"netlab{os.getpid()}n0h{host}" for host in range(2)]
        for host in hosts:
            commands.run(f"ip netns add {host}", undo=f"ip netns delete {host}")
        with virtual_hosts._Relay(hosts, 0.001, [1e6] * 2) as relay:
            relay._process.stdin.close()
            assert relay._process.wait(30) == 0
            relay._process.stdin = None


@pytest.mark.netlab
def test_the_emulator_is_as_near_to_real_hosts_as_was_promised(root_only, capsys):
    results = compare.compare_all()
    with capsys.disabled():
        __main__.Console(width=120).print("", __main__.table(results))
    assert compare.median_error(results) <= compare.MEDIAN_GOAL
    assert abs(compare.worst(results).error_fraction) <= compare.WORST_GOAL, compare.worst(results)
