"""Third-party tools that only tests use, downloaded once into pytest's cache and not installed."""

import shutil
import subprocess
from pathlib import Path

import pytest
from needs import give_up


@pytest.fixture(scope="session")
def fetched(request):
    """The folder of a package; on first use, a command whose last argument is that folder downloads it."""
    cache = request.config.cache.mkdir("quiztools")

    def get(name, command, unpack=None, *, need="quiztools"):
        folder = cache / name
        if not folder.exists():
            half = Path(f"{folder}.{id(command)}")  # becomes the folder at once, whichever process fetches it first
            half.mkdir()
            try:
                subprocess.run([*command, str(half)], check=True, capture_output=True, timeout=240, cwd=half)
                if unpack:
                    unpack(half)
                half.rename(folder)
            except (OSError, subprocess.SubprocessError) as error:
                if not folder.exists():
                    said = getattr(error, "stderr", b"") or b""
                    give_up(need, f"{name} cannot be fetched: {error} {said.decode()[-300:]}")
            finally:
                shutil.rmtree(half, ignore_errors=True)
        return folder

    return get
