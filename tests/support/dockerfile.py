"""A Dockerfile's steps in a plain folder: where no container can be built, they run under `chroot` all the same.

Debian's debootstrap gives what FROM names. Each step runs in a mount namespace of its own, so that nothing stays
mounted. It knows the instructions of our own files and refuses others.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_FROM = re.compile(r"debian:(\w+)-slim")


@dataclass
class Image:
    """A root folder, and what the instructions so far have said of the process to run in it."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    user: str = "root"
    workdir: str = "/"
    command: list[str] = field(default_factory=list)

    def run(self, command: Sequence[str], *, network: bool = True, timeout_s: float = 900) -> str:
        """What a command prints that runs as this image's user; without a network it has a loopback of its own.

        Raises:
            AssertionError: it failed.
        """
        mounts = [f"mount --bind {source} {self.root}{place}" for source, place in self._shared().items()]
        mounts += [f"mount -t proc proc {self.root}/proc", f"mount -t tmpfs tmpfs {self.root}/dev/shm"]
        inner = ["chroot", f"--userspec={self.user}", str(self.root), "env", "-i", *self._environment()]
        inner += ["sh", "-c", f'cd {shlex.quote(self.workdir)} && exec "$@"', "sh", *command]
        script = " && ".join([*mounts, *([] if network else ["ip link set lo up"]), f"exec {shlex.join(inner)}"])
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *([] if network else ["--net"])]
        done = subprocess.run([*apart, "sh", "-c", script], capture_output=True, text=True, timeout=timeout_s)
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def _environment(self) -> list[str]:
        plain = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": self._home()}
        pip = _PIP_SETTINGS | {name: f"/var/tmp/{name}" for name in _pip_files()}
        return [f"{name}={value}" for name, value in (plain | pip | self.env).items()]

    def _home(self) -> str:
        users = (self.root / "etc/passwd").read_text().splitlines()
        return next(line.split(":")[5] for line in users if line.split(":")[0] == self.user)

    def _shared(self) -> dict[str, str]:
        """What a build needs of this machine, and its place there: devices, names, and where pip looks."""
        said = " ".join(_PIP_SETTINGS.values())
        named = (Path(one) for one in re.findall(r"(?:^|(?<= )|(?<=file://))(/[\w./-]+)", said))
        folders = [
            str(one.parent if one.name == "simple" else one) for one in named if one.is_dir()
        ]  # files lie beside
        shared = {one: one for one in ["/dev", "/etc/resolv.conf", *folders]}
        for name, source in _pip_files().items():
            shared[source] = f"/var/tmp/{name}"  # not where the image has its own, which its packages replace
        for source, place in shared.items():
            inside = Path(f"{self.root}{place}")
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.mkdir(exist_ok=True) if Path(source).is_dir() else inside.touch()
        return shared


def build(file: Path, context: Path, root: Path) -> Image:
    """The image of a Dockerfile, built in an empty folder. Raises: AssertionError, ValueError."""
    image = Image(root)
    for word, rest in _instructions(file.read_text(encoding="utf-8")):
        match word:
            case "FROM":
                _bootstrap(rest, root)
            case "RUN":
                image.run(["sh", "-c", rest])
            case "COPY":
                source, target = rest.split()
                shutil.copytree(context / source, Path(f"{root}{target}"))
            case "ENV":
                image.env |= dict(one.split("=", 1) for one in shlex.split(rest))
            case "USER":
                image.user = rest
            case "WORKDIR":
                image.workdir = rest
            case "CMD":
                image.command = json.loads(rest)
            case "ARG" | "EXPOSE":
                pass
            case _:
                raise ValueError(f"{file.name}: {word} is not known here.")
    return image


def _instructions(text: str) -> list[tuple[str, str]]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in whole.splitlines() if line)]


def _bootstrap(image: str, root: Path) -> None:
    match = _FROM.fullmatch(image)
    if not match:
        raise ValueError(f"FROM {image}: only Debian's slim images are known here.")
    command = ["debootstrap", "--variant=minbase", match[1], str(root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def _pip_settings() -> dict[str, str]:
    """pip's settings on this machine, as variables of the environment."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    pairs = (re.fullmatch(r"(?:global|install|env|:env:)\.([\w-]+)='(.*)'", line) for line in lines)
    return {f"PIP_{match[1].upper().replace('-', '_')}": match[2].replace("\\n", " ") for match in pairs if match}


_PIP_SETTINGS = _pip_settings()


def _pip_files() -> dict[str, str]:
    """Files among pip's settings, by the setting's name: certificates, constraints."""
    return {name: value for name, value in _PIP_SETTINGS.items() if Path(value).is_file()}
