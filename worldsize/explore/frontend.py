"""Whether anybody is there to click."""

from __future__ import annotations


def is_there() -> bool:
    """False where nobody can click: outside a notebook, and in one that runs unattended."""
    from IPython.core.getipython import get_ipython  # takes a while to import: only those who ask pay

    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return False
    # nbclient, papermill and nbconvert say with every request that they cannot be asked for input
    request = kernel.get_parent("shell") or {}
    return bool(request.get("content", {}).get("allow_stdin", False))
