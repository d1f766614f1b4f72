"""Changes of modules right after their import, for those whose import here would take long."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from typing import Any


def when_imported(name: str, change: Callable[[Any], None]) -> None:
    """Change a module now or, if nothing has imported it yet, right after its import."""
    if name in sys.modules:
        change(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, change))


class _Finder(importlib.abc.MetaPathFinder):
    """A finder that finds one module as Python does, and patches it after its import."""

    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        self._name, self._change = name, change

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """Return the spec of the module; None for any other."""
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)  # so that the next finder of this kind, or Python, finds it
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                self._change(module)

            spec.loader.exec_module = exec_module
        return spec
