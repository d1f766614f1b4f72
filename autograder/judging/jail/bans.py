"""Bans on torch's own solutions, in force in a rank before the student's first cell runs there.

What stays possible in one's own process: to bring along a copy of what is Python source, and to rebuild a C++ object by
hand through ctypes or in another process that is started afresh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any


def put_out_of_reach(name: str, sentence: str) -> None:
    """Refuse a class, or a module and all below it, to code that runs in this process from now on.

    `name` is a full one, such as "torch.distributed.Reducer"; `sentence` is for the student who uses it.
    """
    import importlib

    parent, _, own = name.rpartition(".")
    owner = importlib.import_module(parent)
    if isinstance(forbidden := getattr(owner, own, None), type):
        _refuse_class(forbidden, _refusal(sentence))
    else:
        _refuse_module(owner, name, _refusal(sentence))


def _refusal(sentence: str) -> Callable[..., None]:
    """A function that takes anything and raises `Forbidden`, after the conductor has noted it."""
    from worldsize import emulate
    from worldsize.emulate.worker import backend

    def refuse(*_: Any, **__: Any) -> None:
        client = backend.client()
        if client is not None:
            client.note_refusal()
        raise emulate.Forbidden(sentence)

    return refuse


def _refuse_class(forbidden: type, refuse: Callable[..., None]) -> None:
    """Replace the constructor: nothing else holds it, so no reference that student code can take leads to it."""
    forbidden.__init__ = refuse  # pyright: ignore[reportAttributeAccessIssue]


def _refuse_module(package: ModuleType, name: str, refuse: Callable[..., None]) -> None:
    """Put a stand-in into the module's package, and refuse its import and the opening of its files.

    An audit hook refuses them, which Python cannot take away; compiled files are refused too.
    """
    import os
    import sys

    own = name.rpartition(".")[2]
    _let_torch_import_its_own()
    _let_worldsize_import_its_own()
    for loaded in [other for other in sys.modules if other == name or other.startswith(f"{name}.")]:
        del sys.modules[loaded]
    setattr(package, own, _stand_in(refuse))
    files = _files_of(getattr(package, "__path__", ()), own)
    is_a, stat, text, texts = isinstance, os.stat, str, (str, bytes)  # held: student code may replace the originals

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "import" and is_a(args[0], text) and (args[0] == name or args[0].startswith(f"{name}.")):
            refuse()
        if event == "open" and is_a(args[0], texts):
            try:
                status = stat(args[0])
            except (OSError, ValueError):  # what is not there cannot be read
                return
            if (status.st_dev, status.st_ino) in files:
                refuse()

    sys.addaudithook(audit)


def _let_torch_import_its_own() -> None:
    """Make torch import `torch.distributed.tensor` now, as at its first operation on any subclass of tensors.

    Torch keeps what it needs. Later, the ban would refuse that import to code that never asked for a DTensor.
    """
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    subclass = type("Subclass", (torch.Tensor,), {"__torch_dispatch__": classmethod(lambda *_, **__: None)})
    with _disable_current_modes():
        _ = torch.ones(()).as_subclass(subclass) + 1


def _let_worldsize_import_its_own() -> None:
    """Import all that `worldsize` offers now: later, the ban on a part would refuse it to `ws.run`, which uses it."""
    import worldsize

    for name in worldsize.__all__:
        getattr(worldsize, name)


def _stand_in(refuse: Callable[..., None]) -> Any:
    """An object that refuses every attribute except Python's own, for which other code may look."""

    class OutOfReach:
        def __getattr__(self, name: str) -> Any:
            if not name.startswith("__"):
                refuse()
            raise AttributeError(name)

    return OutOfReach()


def _files_of(folders: Iterable[str], own: str) -> frozenset[tuple[int, int]]:
    """The files of a module in its package's folders, compiled ones too, by device and inode, which links share."""
    from pathlib import Path

    paths = []
    for folder in map(Path, folders):
        paths += [folder / f"{own}.py", *folder.glob(f"__pycache__/{own}.*"), *folder.glob(f"{own}/**/*")]
    states = [path.stat() for path in paths if path.is_file()]
    return frozenset((state.st_dev, state.st_ino) for state in states)
