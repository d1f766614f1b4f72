"""A plugin of coverage.py that keeps what ranks have run: a rank is killed as soon as it has reported its end."""

import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import coverage

RANK = "worldsize.launch.worker.main"


class _Finder(MetaPathFinder):
    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if fullname != RANK:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec and spec.loader
        spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    def __init__(self, real: Any) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._real.exec_module(module)
        send = module.LauncherLink.send

        def save_and_send(link: Any, message: Any, body: bytes = b"") -> None:
            if isinstance(message, module.Done | module.Failed) and (current := coverage.Coverage.current()):
                current.save()
            send(link, message, body)

        module.LauncherLink.send = save_and_send


def coverage_init(reg: Any, options: dict[str, str]) -> None:
    """Called by coverage.py in every process that it measures."""
    sys.meta_path.insert(0, _Finder())
