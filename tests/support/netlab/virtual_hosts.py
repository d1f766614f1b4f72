"""Hosts as network namespaces, links shaped by `tc`; Linux and root only."""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from netlab.system_commands import Commands, Refused
from worldsize import hardware
from worldsize.faults import SlowLink
from worldsize.hardware import Cluster, Link

DEVICE = "net0"  # the name of every host's network card
MAX_HOSTS = 4
RELAY = Path(__file__).with_name("relay.py")  # a program of its own
_PACKET_S = 250e-6  # how long a packet may take: fine enough for small messages, coarse enough for this machine's CPU
_PACKET_BYTES = 1500, 60_000
# how far tbf may fall behind and still catch up: 2 ms, because a virtual machine's timer is now and then 1 ms late,
# which would otherwise slow the link by up to 40%; more would let a message's first packets through at once
_BURST_PACKETS = 8
_BURST_PACKETS_IN = 16  # more on the way in, which limits several senders together, not one alone
_QUEUE_BYTES = 64 << 20  # a queue that drops nothing
_ETHERNET, _IP, _TCP = 14, 20, 20 + 12  # header bytes: no frame check in software; TCP with time stamps
# an idle connection resumes at full speed, and because nothing is lost, Reno never slows down
_TCP_SETTINGS = {"tcp_slow_start_after_idle": "0", "tcp_congestion_control": "reno"}
_numbers = itertools.count(1)


def unavailable_because() -> str | None:
    """Why no lab can be built here, as the end of a sentence; None where one can."""
    if sys.platform != "linux":
        return "network namespaces are a Linux feature"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"the command {tool} is missing; on Debian and Ubuntu: apt-get install iproute2"
    if refusal := _refusal("link add probe type veth", "link add switch type bridge", _shape("lo root", 1000, 1500)):
        return f"this kernel or container refuses: {refusal}"
    if not os.path.exists("/dev/net/tun") and not _has_netem():
        return "nothing can delay packets: there is neither /dev/net/tun nor netem"
    return None


class Lab:
    """Hosts on one switch: each sends and receives at a rate of its own; what is sent arrives `delay_s` later.

    Entering builds it; leaving removes it, also after an exception or Ctrl-C. A rate, in 10^6 bits a second, is that of
    whole packets, as `tc` counts them. `say` is called with every command before it runs.

    Raises:
        ValueError: an argument is out of range, or (on entering) no lab can be built here.
    """

    def __init__(
        self, rates_mbit_s: Sequence[float], delay_s: float = 0.0, say: Callable[[str], None] | None = None
    ) -> None:
        if not 2 <= len(rates_mbit_s) <= MAX_HOSTS:
            raise ValueError(f"rates_mbit_s has {len(rates_mbit_s)} rates, one a host; a lab has 2 to {MAX_HOSTS}")
        if odd := [rate for rate in rates_mbit_s if not 1 <= rate <= 10_000]:
            raise ValueError(f"rates_mbit_s has {odd[0]}; give 1 to 10000 Mbit/s")
        if not 0 <= delay_s <= 1:
            raise ValueError(f"delay_s is {delay_s}; give 0 to 1 s")
        self.rates_mbit_s, self.delay_s = tuple(rates_mbit_s), delay_s
        self._name = f"netlab{os.getpid()}n{next(_numbers)}"
        self._commands = Commands(say)

    @property
    def num_hosts(self) -> int:
        """How many hosts there are."""
        return len(self.rates_mbit_s)

    @property
    def hosts(self) -> list[str]:
        """The hosts' network namespaces, for `Spec(netns=...)`."""
        return [f"{self._name}h{host}" for host in range(self.num_hosts)]

    @property
    def env(self) -> dict[str, str]:
        """The environment in which Gloo finds a host's network card, for `Spec(env=...)`."""
        return {"GLOO_SOCKET_IFNAME": DEVICE}

    @property
    def is_relayed(self) -> bool:
        """True when a relay in user space holds the packets: there is a delay and the kernel has no netem."""
        return self.delay_s > 0 and not _has_netem()

    @property
    def mtu_bytes(self) -> int:
        """The size of the largest packet: what the slowest link carries in 0.25 ms, but at least 1500."""
        least, most = _PACKET_BYTES
        return round(min(max(min(self.rates_mbit_s) * 1e6 / 8 * _PACKET_S, least), most))

    @property
    def payload_fraction(self) -> float:
        """The share of a full packet that is data: `mtu_bytes` without the headers, over what `tc` counts."""
        return (self.mtu_bytes - _IP - _TCP) / (self.mtu_bytes + (0 if self.is_relayed else _ETHERNET))

    @property
    def cluster(self) -> Cluster:
        """The same hosts and links for the emulator, all at the highest rate; `faults` has the slower ones.

        Nothing in it is measured. A small send of Gloo takes two delays: the receiver first signals that it is ready
        (`worldsize.gloo`).
        """
        rate_mbit_s = max(self.rates_mbit_s)
        link = Link(
            f"{rate_mbit_s:g} Mbit/s, {self.delay_s * 1e3:g} ms",
            latency_s=2 * self.delay_s,
            bandwidth_bytes_per_s=rate_mbit_s * 1e6 / 8 * self.payload_fraction,
            peak_bytes_per_s=rate_mbit_s * 1e6 / 8,
            kind="tcp",
            source="as configured by netlab (2026): two delays for Gloo's rendezvous, rate x payload share",
        )
        return Cluster(
            name=f"netlab-x{self.num_hosts}",
            gpu=hardware.A100_PCIE,  # a cluster needs one; the comparison prices no work on it
            gpus_per_node=1,
            intra=hardware.PCIE4,
            num_nodes=self.num_hosts,
            inter=link,
            library="gloo",
            source="netlab (2026)",
        )

    @property
    def faults(self) -> list[SlowLink]:
        """What makes the links of `cluster` as slow as those of the slower hosts."""
        cluster, fastest = self.cluster, max(self.rates_mbit_s)
        slow = [(host, fastest / rate) for host, rate in enumerate(self.rates_mbit_s) if rate < fastest]
        return [SlowLink(hop, factor) for host, factor in slow for hop in _hops_of(host, cluster)]

    def __enter__(self) -> Lab:
        if reason := unavailable_because():
            raise ValueError(f"no lab can be built here: {reason}")
        try:
            self._build()
        except BaseException:  # also on Ctrl-C
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._commands.__exit__()

    def _build(self) -> None:
        run = self._commands.run
        for host in self.hosts:
            self._add_namespace(host)
        if self.is_relayed:
            self._join_by_relay()
        else:
            self._join_by_switch()
        for number, (host, rate_mbit_s) in enumerate(zip(self.hosts, self.rates_mbit_s, strict=True), 1):
            for name, value in _TCP_SETTINGS.items():
                run(f"ip netns exec {host} sh -c 'echo {value} > /proc/sys/net/ipv4/{name}'")
            run(f"ip -n {host} link set lo up")  # a host also talks to itself
            run(f"ip -n {host} addr add 10.77.0.{number}/24 dev {DEVICE}")
            run(f"ip -n {host} link set {DEVICE} mtu {self.mtu_bytes} up")
            run(f"tc -n {host} {_shape(f'{DEVICE} root', rate_mbit_s, self.mtu_bytes)}")

    def _add_namespace(self, name: str) -> None:
        self._commands.run(f"ip netns add {name}", undo=f"ip netns delete {name}")

    def _join_by_switch(self) -> None:
        run, switch = self._commands.run, f"{self._name}s"
        self._add_namespace(switch)
        run(f"ip -n {switch} link add switch type bridge")
        run(f"ip -n {switch} link set switch up")
        for number, (host, rate_mbit_s) in enumerate(zip(self.hosts, self.rates_mbit_s, strict=True)):
            run(f"ip link add {DEVICE} netns {host} type veth peer name port{number} netns {switch}")
            run(f"ip -n {switch} link set port{number} mtu {self.mtu_bytes} master switch up")
            place = "root"
            if self.delay_s:
                delay = f"netem delay {self.delay_s * 1e6:.0f}us limit 100000"
                run(f"tc -n {switch} qdisc add dev port{number} root handle 1: {delay}")
                place = "parent 1:1"
            run(f"tc -n {switch} {_shape(f'port{number} {place}', rate_mbit_s, self.mtu_bytes, _BURST_PACKETS_IN)}")

    def _join_by_relay(self) -> None:
        for host in self.hosts:
            self._commands.run(f"ip -n {host} tuntap add dev {DEVICE} mode tun")
        relay = _Relay(self.hosts, self.delay_s, [rate * 1e6 / 8 for rate in self.rates_mbit_s])
        self._commands.say(f"{relay.command} &")
        self._commands.keep(relay)


class _Relay:
    """A running relay between the TUN devices of hosts, of which the i-th has an address that ends in i + 1."""

    def __init__(self, hosts: Sequence[str], delay_s: float, bytes_per_s: Sequence[float]) -> None:
        rates = ",".join(f"{rate:g}" for rate in bytes_per_s)
        self._words = [str(RELAY), f"{delay_s:g}", rates, DEVICE, *hosts]

    @property
    def command(self) -> str:
        """The command that starts it, as typed in a shell."""
        return " ".join(["python", *self._words])

    def __enter__(self) -> _Relay:
        self._process = subprocess.Popen(
            [sys.executable, *self._words],
            stdin=subprocess.PIPE,  # it ends when this closes, so it cannot be left behind
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process, which ends the relay
        )
        assert self._process.stdout
        if self._process.stdout.readline() != b"ready\n":
            self.__exit__()
            raise Refused(f"`{self.command}` did not start; its output is above")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def _hops_of(host: int, cluster: Cluster) -> list[str]:
    """The names of a host's way out and its way in."""
    other = 0 if host else 1
    return [cluster.route(host, other).hops[0].name, cluster.route(other, host).hops[-1].name]


def _shape(place: str, rate_mbit_s: float, mtu_bytes: int, burst_packets: int = _BURST_PACKETS) -> str:
    """The words for `tc` that limit a device's sending to a rate; `place` is "DEVICE root" or below another shaper."""
    burst_bytes = burst_packets * (mtu_bytes + _ETHERNET)
    return f"qdisc add dev {place} tbf rate {rate_mbit_s:g}mbit burst {burst_bytes} limit {_QUEUE_BYTES}"


@functools.cache
def _has_netem() -> bool:
    """True when this kernel can delay packets by itself."""
    return _refusal("qdisc add dev lo root netem delay 1ms") is None


@functools.cache
def _refusal(*commands: str) -> str | None:
    """Why these words for `ip` and `tc` fail in a temporary namespace; None when they work."""
    name = f"netlab{os.getpid()}n{next(_numbers)}"
    try:
        with Commands() as probe:
            probe.run(f"ip netns add {name}", undo=f"ip netns delete {name}")
            for words in commands:
                probe.run(f"{'tc' if words.startswith('qdisc') else 'ip'} -n {name} {words}")
    except Refused as error:
        return str(error)
    return None
