"""Paths that a jail must show for GPUs: device files, the driver's folders, and the topology files that NCCL reads.

Only the device files determine which GPUs exist inside: CUDA finds those that it can open. Only whole NVIDIA GPUs are
shown, not partitions of one (MIG).
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

# how the machine is wired; not the kernel's modules, its own files or control groups
_TOPOLOGY = ("/sys/devices", "/sys/class", "/sys/bus", "/sys/dev")
_SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
_LIBRARY = re.compile(r"^\s*libcuda\.so\S* .*=> (/\S+)$", re.MULTILINE)


def devices_of(gpus: Sequence[str], dev: str = "/dev", driver: str = "/proc/driver/nvidia/gpus") -> list[str]:
    """The device files of these GPUs, named as in CUDA_VISIBLE_DEVICES, by number or UUID; unknown GPUs have none.

    Numbers count the GPUs that this process may open, in the order of the PCI bus.
    """
    known = _known(dev, driver)
    chosen = [path for name in gpus if (path := _find(name.strip(), known))]
    if not chosen:
        return []
    shared = [os.path.join(dev, name) for name in _SHARED]
    return [*(path for path in shared if os.path.exists(path)), *dict.fromkeys(chosen)]


def folders() -> list[str]:
    """The folders needed in addition to the devices: the driver's libraries, and the machine's topology."""
    found = [os.path.realpath(folder) for folder in (*_driver_folders(), *library_path())]
    return [path for path in dict.fromkeys([*found, *_TOPOLOGY]) if os.path.isdir(path)]


def library_path() -> list[str]:
    """The folders in LD_LIBRARY_PATH with the driver's library, where the loader does not find it otherwise."""
    named = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return [folder for folder in named if os.path.isabs(folder) and any(Path(folder).glob("libcuda.so*"))]


def _known(dev: str, driver: str) -> list[tuple[str, str]]:
    """The (UUID, device file) of every GPU that can be opened, in the order of the PCI bus."""
    found = []
    for folder in sorted(Path(driver).glob("*")):
        with contextlib.suppress(OSError):
            lines = (line.partition(":") for line in (folder / "information").read_text().splitlines())
            fields = {key.strip(): value.strip() for key, _, value in lines}
            path = os.path.join(dev, f"nvidia{fields.get('Device Minor', '')}")
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))  # a batch system or a container may withhold some
            found.append((fields.get("GPU UUID", ""), path))
    return found


def _find(name: str, known: Sequence[tuple[str, str]]) -> str | None:
    if name.isdigit():
        return known[int(name)][1] if int(name) < len(known) else None
    return next((path for uuid, path in known if name and uuid.startswith(name)), None)


def _driver_folders() -> list[str]:
    for tool in ("/sbin/ldconfig", "/usr/sbin/ldconfig"):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            listed = subprocess.run([tool, "-p"], capture_output=True, text=True, timeout=10).stdout
            return [os.path.dirname(os.path.realpath(path)) for path in _LIBRARY.findall(listed)]
    return []
