"""A switch in user space that holds every packet for a while, where the kernel cannot delay by `tc netem`.

Run as `python relay.py DELAY_S BYTES_PER_S,... DEVICE HOST...`: reads each host's packets from a TUN
device in its network namespace and writes them to the device of the host that they are for, the i-th of which has an
address that ends in i + 1; to each host no faster than its bytes a second. Prints "ready" once it is; ends when its
standard input closes.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import os
import select
import struct
import sys
import time
from collections.abc import Sequence

from worldsize.launch.protocol.process import enter_network

_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
_MAX_PACKET = 1 << 16
_PACKETS_AT_ONCE = 64  # of one host before the others have their turn
_NICENESS = -20  # ahead of the ranks, because it stands for a wire
_SLACK_S = 4e-3  # how far a host's way in may fall behind and still catch up: sixteen packets, the same as in `lab`


def main(delay_s: float, bytes_per_s: Sequence[float], device: str, hosts: Sequence[str]) -> None:
    """Relay packets until the standard input closes."""
    tuns = [_open_tun(host, device) for host in hosts]
    os.nice(_NICENESS)
    print("ready", flush=True)
    lifeline = sys.stdin.fileno()
    wire = _Wire(tuns, delay_s, bytes_per_s)
    while True:
        readable, _, _ = select.select([lifeline, *tuns], [], [], wire.wait_s())  # epoll waits whole milliseconds
        if lifeline in readable:
            return
        for tun in readable:
            wire.take(tun)
        wire.deliver()


class _Wire:
    """The packets under way, by the time at which they are due."""

    def __init__(self, tuns: list[int], delay_s: float, bytes_per_s: Sequence[float]) -> None:
        self._tuns, self._delay_s = tuns, delay_s
        self._bytes_per_s = dict(zip(tuns, bytes_per_s, strict=True))
        self._held: list[tuple[float, int, int, bytes]] = []
        self._numbers = itertools.count()  # of two packets due at once, the first to come goes first
        self._free_s = dict.fromkeys(tuns, 0.0)  # when a host's way in is free again

    def wait_s(self) -> float | None:
        """The seconds until a packet is due; None when there is no packet."""
        return max(0.0, self._held[0][0] - time.monotonic()) if self._held else None

    def take(self, tun: int) -> None:
        """Take the packets that a host has sent."""
        for _ in range(_PACKETS_AT_ONCE):
            try:
                packet = os.read(tun, _MAX_PACKET)
            except BlockingIOError:
                return
            number = packet[19]  # the last byte of an IPv4 packet's destination
            if packet[0] >> 4 == 4 and 0 < number <= len(self._tuns):
                self._hold(packet, self._tuns[number - 1])

    def _hold(self, packet: bytes, target: int) -> None:
        arrival_s = time.monotonic() + self._delay_s
        start_s = max(self._free_s[target], arrival_s - _SLACK_S)
        self._free_s[target] = start_s + len(packet) / self._bytes_per_s[target]
        heapq.heappush(self._held, (max(arrival_s, start_s), next(self._numbers), target, packet))

    def deliver(self) -> None:
        """Hand over the packets that are due."""
        now_s = time.monotonic()
        while self._held and self._held[0][0] <= now_s:
            _, _, target, packet = heapq.heappop(self._held)
            os.write(target, packet)


def _open_tun(host: str, device: str) -> int:
    enter_network(host)
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", device.encode(), _IFF_TUN | _IFF_NO_PI))
    return fd


if __name__ == "__main__":
    main(float(sys.argv[1]), [float(rate) for rate in sys.argv[2].split(",")], sys.argv[3], sys.argv[4:])
