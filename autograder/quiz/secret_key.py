"""The file with the secret from which a quiz's forms are drawn."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

_KEY_BYTES = 32


def read_or_create(file: Path) -> bytes:
    """Read the secret in a file; if the file does not exist, create it, readable only by its owner.

    Raises:
        ValueError: the file cannot be read or written, or does not hold a secret.
    """
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read(file)
    except OSError as error:
        raise ValueError(f"{file} cannot be created: {error.strerror}.") from error
    key = secrets.token_bytes(_KEY_BYTES)
    with os.fdopen(descriptor, "w", encoding="ascii") as text:
        text.write(f"{key.hex()}\n")
    return key


def _read(file: Path) -> bytes:
    try:
        key = bytes.fromhex(file.read_text(encoding="ascii").strip())
    except (OSError, ValueError) as error:
        raise ValueError(f"{file} cannot be read as the secret of a quiz: {error}.") from error
    if len(key) != _KEY_BYTES:
        raise ValueError(f"{file} holds {len(key)} bytes and not the {_KEY_BYTES} of a secret: name another file.")
    return key
