"""Ports of this machine that nothing listens on."""

from __future__ import annotations

import contextlib
import socket


def free_ports(number: int) -> list[int]:
    """Return different ports on which nothing listens now; another program may take one before it is used."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(number)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
