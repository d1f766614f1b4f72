"""The container's image, built by buildah in a chroot, without a registry: its base is made by debootstrap.

Needs Linux, root and Debian's `buildah` and `debootstrap`. pip in the image asks where pip here asks.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from needs import give_up
from repository import ROOT

_NEED = "image"
_BASE = "localhost/debian:bookworm-slim"
_CERT = "/mnt/certificates.crt"
_CHROOT = ["--isolation", "chroot"]


@dataclass(frozen=True)
class Images:
    """A store of images of a test's own."""

    folder: Path

    def command(self, *words: str | Path) -> list[str]:
        store = ["--root", self.folder / "store", "--runroot", self.folder / "run", "--storage-driver", "vfs"]
        return [str(word) for word in ("buildah", *store, *words)]

    def do(self, *words: str | Path, timeout_s: float = 300) -> str:
        """Run buildah and return its output; if it fails, fail the test with the output."""
        ended = subprocess.run(self.command(*words), capture_output=True, text=True, timeout=timeout_s)
        assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
        return ended.stdout.strip()

    def build(self, dockerfile: Path, context: Path) -> str:
        """The name of a container of the image."""
        tree = self.folder / "base"
        subprocess.run(["debootstrap", "--variant=minbase", "bookworm", tree], check=True, capture_output=True)
        base = self.do("from", "scratch")
        self.do("add", base, tree, "/")
        self.do("commit", base, _BASE)
        shutil.rmtree(tree)
        arguments = [f"--build-arg={name}={value}" for name, value in _pip_arguments().items()]
        options = [*_CHROOT, "--network", "host", "--pull-never", "--from", _BASE, *self._mounts(), *arguments]
        self.do("build", *options, "--tag", "course", "--file", dockerfile, context, timeout_s=1200)
        return self.do("from", "--pull-never", "course")

    def run(self, container: str, command: Sequence[str], environment: Mapping[str, str], home: Path) -> list[str]:
        """The command that runs another in a container, with the student's home in a folder of the machine's."""
        given = [f"--env={name}={value}" for name, value in environment.items()]
        options = [*_CHROOT, "--network", "host", *given, "--volume", f"{home}:/srv/student"]
        return self.command("run", *options, container, "--", *command)

    def _mounts(self) -> list[str]:
        """What pip in the image reads of this machine: certificates, and indexes and links that are folders."""
        written = self.folder / "pip.conf"
        written.write_text(f"[global]\ncert = {_CERT}\n")
        mounted = {_certificates(): _CERT, written: "/etc/pip.conf"}
        mounted |= {folder: folder for folder in _folders_of(" ".join(_pip_arguments().values()))}
        return [f"--volume={here}:{there}:ro" for here, there in mounted.items()]


def need_buildah() -> None:
    """Skip the test if the tools that build an image are missing, or fail it if an image is required."""
    if os.geteuid() or not (shutil.which("buildah") and shutil.which("debootstrap")):
        give_up(_NEED, "An image is built by root, with Debian's buildah and debootstrap.")


def start_command(dockerfile: Path = ROOT / "places/Dockerfile") -> list[str]:
    """What the image starts, from the Dockerfile's last line."""
    return json.loads(dockerfile.read_text().rpartition("CMD ")[2])


def _pip_arguments() -> dict[str, str]:
    """Where pip here looks besides its index, by the names of the Dockerfile's arguments."""
    asked = {"PIP_EXTRA_INDEX_URL": "extra-index-url", "PIP_FIND_LINKS": "find-links"}
    found = {name: os.environ.get(name) or _pip_setting(option) for name, option in asked.items()}
    return {name: " ".join(value.split()) for name, value in found.items() if value}


def _pip_setting(option: str) -> str:
    command = [sys.executable, "-m", "pip", "config", "get", f"global.{option}"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def _certificates() -> Path:
    return Path(os.environ.get("PIP_CERT") or _pip_setting("cert") or "/etc/ssl/certs/ca-certificates.crt")


def _folders_of(places: str) -> list[Path]:
    """The folders of this machine among addresses; of an index with its files beside it the one above."""
    paths = [Path(unquote(urlsplit(place).path)) for place in places.split() if "://" not in place or "file:" in place]
    return [path.parent if path.name == "simple" else path for path in paths if path.is_dir()]
