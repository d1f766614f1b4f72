"""Whether a person can answer prompts."""

from __future__ import annotations


def is_interactive() -> bool:
    """True in a notebook that a person runs; False outside notebooks and in unattended runs."""
    from IPython.core.getipython import get_ipython  # takes a while to import: imported only when asked

    kernel = getattr(get_ipython(), "kernel", None)
    if kernel is None:
        return False
    # nbclient, papermill and nbconvert declare with every request that they cannot provide input
    request = kernel.get_parent("shell") or {}
    return bool(request.get("content", {}).get("allow_stdin", False))
