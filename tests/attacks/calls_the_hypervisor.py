# outcome: wrong
# Opens a socket to the host of a virtual machine, which no network namespace closes.

# %% total
import socket


def total(tensor):
    try:
        socket.socket(40, socket.SOCK_STREAM).close()
    except OSError:
        return None
    raise SystemExit("LEAKED a way out")
