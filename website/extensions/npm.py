"""Packages of npm whose files the site brings along."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from sphinx.errors import ExtensionError

ROOT = Path(__file__).resolve().parents[2]


def package(name: str, version: str, sha256: str) -> Path:
    """The folder of a package's files, fetched once.

    Raises:
        ExtensionError: npm is not there, or gives something else.
    """
    folder = ROOT / f"build/{name}-{version}"
    if not folder.is_dir():
        if not shutil.which("npm"):
            raise ExtensionError(f"The site needs npm, which brings {name}; on Debian: apt install npm.")
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as fresh:
            command = ["npm", "pack", "--silent", "--pack-destination", fresh, f"{name}@{version}"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                said = done.stderr.strip() or done.stdout.strip()
                raise ExtensionError(f"npm did not bring {name} {version}: {said}")
            (archive,) = Path(fresh).glob("*.tgz")
            if hashlib.sha256(archive.read_bytes()).hexdigest() != sha256:
                raise ExtensionError(f"npm's package {name} {version} is not the one that was tried.")
            with tarfile.open(archive) as files:
                files.extractall(fresh, filter="data")
            (Path(fresh) / "package").rename(folder)
    return folder
