"""Files in one zip, the same bytes for the same files."""

from __future__ import annotations

import io
import zipfile

_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can say


def packed(files: dict[str, str | bytes]) -> bytes:
    """A zip of these files, by their paths in it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for path, content in files.items():
            info = zipfile.ZipInfo(path, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system, info.external_attr = 3, 0o644 << 16  # as on Unix, wherever it is made
            archive.writestr(info, content)
    return buffer.getvalue()
